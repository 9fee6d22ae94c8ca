//! References in the chapters of `prm/book/*.md` to the tables.
//!
//! A chapter writes no number or name of the PRM: `{{cq_context.oi}}` is the name with a link to
//! its page, `{{cq_context.oi:at}}` a fact about it. On a line of its own, `{{fields cq_context: oi
//! cqe_sz}}` is a table of fields, `{{decode FILE}}` a decoded recording. `prm check` fails on a
//! reference that names nothing.

use std::fmt;
use std::path::Path;

use crate::description::{Description, Problem};
use crate::find::{Target, find};

/// The folder of the chapters, from the root of the repository.
pub(crate) const CHAPTERS: &str = "prm/book";

/// A reference in a chapter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reference {
    /// `{{NAME}}`, `{{NAME:FACT}}`.
    Name(String, Fact),
    /// `{{fields STRUCTURE: FIELD …}}`: a table of these fields.
    Fields(String, Vec<String>),
    /// `{{values ENUM}}`, `{{values ENUM: VALUE …}}`: a table of all values, or of these.
    Values(String, Vec<String>),
    /// `{{commands COMMAND …}}`: a table of commands.
    Commands(Vec<String>),
    /// `{{diagram STRUCTURE}}`: the bits of a structure.
    Diagram(String),
    /// `{{example NAME}}`: recorded bytes of a structure or of a command's input.
    Example(String),
    /// `{{states ENUM}}`: the states of an object, and the commands between them.
    States(String),
    /// `{{decode FILE}}`: a recording in `prm/book/traces`, decoded.
    Decode(String),
}

/// What a reference shows of its entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fact {
    /// Its name, with a link.
    Name,
    /// The last part of its name, with a link: the field's or the value's own.
    Short,
    /// The position of a field.
    At,
    /// The number of a value, an opcode.
    Value,
    /// Bits of a field or an enum.
    Bits,
    /// Bytes of a structure.
    Bytes,
    /// Its doc text.
    Doc,
}

impl Fact {
    fn parse(text: &str) -> Option<Self> {
        Some(match text {
            "short" => Self::Short,
            "at" => Self::At,
            "value" => Self::Value,
            "bits" => Self::Bits,
            "bytes" => Self::Bytes,
            "doc" => Self::Doc,
            _ => return None,
        })
    }

    /// The fact of an entry, without a link.
    pub(crate) fn of(self, target: &Target<'_>) -> Option<String> {
        let name = target.name();
        Some(match (self, target) {
            (Self::Name, _) => name,
            (Self::Short, _) => name.rsplit('.').next().unwrap_or_default().to_owned(),
            (Self::Doc, _) => target.doc().to_owned(),
            (Self::At, Target::Field(_, field)) => field.position(),
            (Self::Bits, Target::Field(_, field)) => (field.width * field.count).to_string(),
            (Self::Bits, Target::Enum(e)) => e.bits.to_string(),
            (Self::Value, Target::Value(_, value)) => format!("{:#x}", value.value),
            (Self::Value, Target::Command(command)) => format!("{:#x}", command.opcode),
            (Self::Bytes, Target::Structure(structure)) => structure.bytes.to_string(),
            _ => return None,
        })
    }
}

/// A part of a chapter.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum TextPart<'a> {
    Text(&'a str),
    /// The text between the braces.
    Braces(&'a str),
}

/// The parts of a chapter, in order. Braces that do not end in their line are text.
pub(crate) fn parts(text: &str) -> Vec<TextPart<'_>> {
    let (mut rest, mut parts) = (text, Vec::new());
    while let Some(start) = rest.find("{{") {
        let (before, after) = rest.split_at(start);
        let line = &after[..after.find('\n').unwrap_or(after.len())];
        let Some(end) = line.find("}}") else {
            let (text, after) = rest.split_at(start + line.len());
            parts.push(TextPart::Text(text));
            rest = after;
            continue;
        };
        parts.extend([TextPart::Text(before), TextPart::Braces(after[2..end].trim())]);
        rest = &after[end + 2..];
    }
    parts.push(TextPart::Text(rest));
    parts
}

impl Reference {
    /// Parses the text between the braces; the error says what can be written.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let Some((word, rest)) = text.split_once(' ') else {
            let (name, fact) = match text.split_once(':') {
                Some((name, fact)) => {
                    let fact = Fact::parse(fact).ok_or_else(|| {
                        let known = "short, at, value, bits, bytes, doc";
                        format!("`{fact}` is not one of {known}")
                    })?;
                    (name, fact)
                }
                None => (text, Fact::Name),
            };
            return Ok(Self::Name(name.to_owned(), fact));
        };
        let (name, more) = rest.split_once(':').unwrap_or((rest, ""));
        let name = name.trim().to_owned();
        let list = |text: &str| text.split_whitespace().map(str::to_owned).collect();
        let (more, all) = (list(more), list(rest));
        let reference = match word {
            "fields" => Self::Fields(name, more),
            "values" => Self::Values(name, more),
            "commands" => Self::Commands(all),
            "diagram" => Self::Diagram(name),
            "example" => Self::Example(name),
            "states" => Self::States(name),
            "decode" => Self::Decode(name),
            _ => {
                let known = "fields, values, commands, diagram, example, states, decode";
                return Err(format!("`{word}` is not one of {known}"));
            }
        };
        Ok(reference)
    }

    /// What is wrong with it in the repository at `root`.
    pub(crate) fn fault(&self, root: &Path, description: &Description) -> Option<String> {
        let unknown = |kind: &str, name: &str| Some(format!("no {kind} is named `{name}`"));
        match self {
            Self::Name(name, fact) => match only(description, name) {
                Err(error) => Some(error),
                Ok(target) => fact
                    .of(&target)
                    .is_none()
                    .then(|| format!("`{name}` ({}) has no such fact", target.kind())),
            },
            Self::Fields(name, fields) => match description.structure(name) {
                None => unknown("structure", name),
                Some(structure) => fields
                    .iter()
                    .find(|field| !structure.fields.iter().any(|it| it.name == **field))
                    .map(|field| format!("[{name}] has no field `{field}`")),
            },
            Self::Values(name, values) => match description.enumeration(name) {
                None => unknown("enum", name),
                Some(e) => values
                    .iter()
                    .find(|value| !e.values.iter().any(|it| it.name == **value))
                    .map(|value| format!("[{name}] has no value `{value}`")),
            },
            Self::Commands(names) => {
                names.iter().find(|name| command(description, name).is_none()).map(|name| {
                    let known = "the names of prm/, such as create_cq";
                    format!("no command is named `{name}`; write {known}")
                })
            }
            Self::Diagram(name) if description.structure(name).is_none() => {
                unknown("structure", name)
            }
            Self::Example(name)
                if description.structure(name).is_none()
                    && command(description, name).is_none() =>
            {
                unknown("structure or command", name)
            }
            Self::States(name) => {
                let is_state = |command: &crate::description::Command| {
                    command.state.as_ref() == Some(name) && !command.transitions.is_empty()
                };
                let none = !description.commands.iter().any(is_state);
                none.then(|| format!("no command has transitions of `{name}`"))
            }
            Self::Decode(file) => {
                let path = root.join(CHAPTERS).join("traces").join(file);
                let is_name = !file.contains(['/', '\\']) && path.is_file();
                (!is_name).then(|| format!("{CHAPTERS}/traces has no file `{file}`"))
            }
            Self::Diagram(_) | Self::Example(_) => None,
        }
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}

/// The command of this name, as `prm/` writes it.
pub(crate) fn command<'a>(
    description: &'a Description,
    name: &str,
) -> Option<&'a crate::description::Command> {
    description.commands.iter().find(|command| command.name == name)
}

/// The only entry, field or value that this name means best.
pub(crate) fn only<'a>(description: &'a Description, name: &str) -> Result<Target<'a>, String> {
    match find(description, name).targets[..] {
        [target] => Ok(target),
        [] => Err(format!("no entry is named `{name}`")),
        ref several => {
            let names: Vec<String> = several.iter().map(Target::name).collect();
            Err(format!("`{name}` may be {}: write one of them", names.join(", ")))
        }
    }
}

/// The chapters in the repository at `root`, sorted: their file names and texts.
pub(crate) fn chapters(root: &Path) -> crate::repository::Result<Vec<(String, String)>> {
    let mut chapters = Vec::new();
    let Ok(files) = std::fs::read_dir(root.join(CHAPTERS)) else { return Ok(chapters) };
    for file in files {
        let path = file?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if name.ends_with(".md") {
            chapters.push((name, std::fs::read_to_string(&path)?));
        }
    }
    chapters.sort();
    Ok(chapters)
}

/// Every reference of the chapters that names nothing.
pub(crate) fn problems(
    root: &Path,
    description: &Description,
) -> crate::repository::Result<Vec<Problem>> {
    let mut problems = Vec::new();
    for (file, text) in chapters(root)? {
        for (number, line) in (1..).zip(text.lines()) {
            for part in parts(line) {
                let TextPart::Braces(inner) = part else { continue };
                let fault = match Reference::parse(inner) {
                    Ok(reference) => reference.fault(root, description),
                    Err(fault) => Some(fault),
                };
                problems.extend(fault.map(|fault| Problem {
                    file: format!("{CHAPTERS}/{file}"),
                    location: format!("line {number}, {{{{{inner}}}}}"),
                    message: fault,
                    harmless: true,
                }));
            }
        }
    }
    Ok(problems)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::repository::{Scratch, root};

    #[test]
    fn parts_split_text_at_braces() {
        let parts = parts("a {{b.c}} d {{e\nf {{ g:at }}");
        let expected = [
            TextPart::Text("a "),
            TextPart::Braces("b.c"),
            TextPart::Text(" d {{e"),
            TextPart::Text("\nf "),
            TextPart::Braces("g:at"),
            TextPart::Text(""),
        ];
        assert_eq!(parts, expected);
    }

    #[test]
    fn stale_reference_is_problem_with_line() {
        let chapter = "# A\n\n{{cq_context.oi:at}} {{create_cq:value}}\n{{cq_context.oii}}\n\
                       {{fields cq_context: oi st}}\n{{fields cq_context: none}}\n{{what it}}\n\
                       {{cq_context.oi:bytes}}\n{{decode none.txt}} {{decode ../README.md}}\n\
                       {{states qp_state}} {{states cqe_size}} {{status}}\n";
        let scratch = Scratch::new("references", &[("prm/book/a.md", chapter)]);
        let description = crate::check::load_sound(&root()).unwrap();
        let found = problems(scratch.path(), &description).unwrap();
        let found: Vec<String> = found.iter().map(Problem::to_string).collect();
        let expected = [
            "line 4, {{cq_context.oii}}: no entry is named `cq_context.oii`",
            "line 6, {{fields cq_context: none}}: [cq_context] has no field `none`",
            "line 7, {{what it}}: `what` is not one of fields, values,",
            "line 8, {{cq_context.oi:bytes}}: `cq_context.oi` (field at 0x00.17) has no such fact",
            "line 9, {{decode none.txt}}: prm/book/traces has no file `none.txt`",
            "line 9, {{decode ../README.md}}: prm/book/traces has no file",
            "line 10, {{states cqe_size}}: no command has transitions of `cqe_size`",
            "line 10, {{status}}: `status` may be ",
        ];
        assert_eq!(found.len(), expected.len(), "{found:#?}");
        for (found, expected) in found.iter().zip(expected) {
            assert!(found.starts_with(&format!("prm/book/a.md: {expected}")), "{found}");
        }
    }

    #[test]
    fn facts_come_from_the_tables() {
        let description = crate::check::load_sound(&root()).unwrap();
        for (name, fact, text) in [
            ("cq_context.oi", Fact::At, "0x00.17"),
            ("cq_context.oi", Fact::Short, "oi"),
            ("cqc.oi", Fact::Name, "cq_context.oi"),
            ("create_cq", Fact::Value, "0x400"),
            ("cq_context", Fact::Bytes, "64"),
            ("cqe_size", Fact::Bits, "3"),
        ] {
            let target = only(&description, name).unwrap();
            assert_eq!(fact.of(&target).unwrap(), text, "{name} {fact:?}");
        }
    }
}
