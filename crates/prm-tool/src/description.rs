//! The description in memory: the content of the TOML files of `prm/`, and every mistake in them.
//!
//! A mistake does not stop reading: it becomes a [`Problem`] with file, table and field, so one run
//! shows every mistake.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde::de::DeserializeOwned;
use toml::Value;

use super::at::{At, Span};
use super::raw::{RawCommand, RawEnum, RawField, RawStatus, RawStructure, RawValue, RawWord};

/// The largest size of a structure in bytes; a larger number is a mistake.
const LARGEST: u32 = 0x10_0000;

/// A mistake in the description: its location, the message and the remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Problem {
    /// File, relative to the repository.
    pub(crate) file: String,
    /// `[table]` and field, or empty for the whole file.
    pub(crate) location: String,
    /// The mistake, and what to write instead.
    pub(crate) message: String,
    /// Code can still be generated: a text is missing, or a rule has an unknown name.
    pub(crate) harmless: bool,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.location.as_str() {
            "" => write!(f, "{}: {}", self.file, self.message),
            location => write!(f, "{}: {location}: {}", self.file, self.message),
        }
    }
}

/// The whole content of `prm/`.
#[derive(Debug, Default)]
pub(crate) struct Description {
    /// The files, relative to the repository, sorted.
    pub(crate) files: Vec<String>,
    /// Structures and segments in file order.
    pub(crate) structures: Vec<Structure>,
    /// Enums in file order.
    pub(crate) enums: Vec<Enum>,
    /// Commands in file order.
    pub(crate) commands: Vec<Command>,
    /// Mistakes found while reading.
    pub(crate) problems: Vec<Problem>,
    structure_index: BTreeMap<String, usize>,
}

/// A structure: command input or output, context, capability page, register, segment.
#[derive(Clone, Debug)]
pub(crate) struct Structure {
    pub(crate) name: String,
    pub(crate) file: String,
    /// Whether it is part of a queue entry, a record or a UAR page rather than of a command.
    pub(crate) segment: bool,
    /// Whether the data path uses it: then it is a structure of `hot.rs`.
    pub(crate) hot: bool,
    /// Words that hold several fields.
    pub(crate) words: Vec<Word>,
    pub(crate) bytes: u32,
    pub(crate) doc: String,
    pub(crate) sources: Vec<String>,
    /// Names in other code that its sources do not list.
    pub(crate) aliases: Vec<String>,
    pub(crate) reserved: Vec<At>,
    /// Fields of the C structure that the table describes in another way.
    pub(crate) without: Vec<String>,
    pub(crate) fields: Vec<Field>,
}

/// A word of a hot structure that the data path reads or writes as a whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Word {
    pub(crate) name: String,
    pub(crate) span: Span,
    /// Its fields, if it leaves some out: overlapping fields need two words.
    pub(crate) only: Option<Vec<String>>,
    /// The structure that defines the word, if it is another one.
    pub(crate) of: Option<String>,
}

/// A field of a structure.
#[derive(Clone, Debug)]
pub(crate) struct Field {
    pub(crate) name: String,
    /// First bit, counted from the start of the structure.
    pub(crate) start: u32,
    /// Bits of one element.
    pub(crate) width: u32,
    /// Number of elements; 1 for a plain field.
    pub(crate) count: u32,
    pub(crate) content: Content,
    /// A flexible array after the structure's `bytes`.
    pub(crate) tail: bool,
    /// Whether the field was declared as an array, even of one element.
    pub(crate) array: bool,
    /// May overlap other fields.
    pub(crate) overlay: bool,
    pub(crate) doc: String,
    /// The field's own sources, if they are not the structure's.
    pub(crate) sources: Option<Vec<String>>,
    /// The field's name in Linux's header, if it differs.
    pub(crate) linux: Option<String>,
}

/// The content of a field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    /// A number of at most 64 bits.
    Number,
    /// A number with named values.
    Enum(String),
    /// A structure.
    Struct(String),
    /// Opaque bytes.
    Bytes,
}

/// Named values of a number.
#[derive(Clone, Debug)]
pub(crate) struct Enum {
    pub(crate) name: String,
    pub(crate) file: String,
    pub(crate) bits: u32,
    /// The module of its values as plain numbers, if the data path uses them.
    pub(crate) hot: Option<String>,
    pub(crate) doc: String,
    pub(crate) sources: Vec<String>,
    pub(crate) aliases: Vec<String>,
    /// The noun for its numbers in a sentence, if messages of drivers and programs show them.
    pub(crate) called: Option<String>,
    /// Whether these messages print it in decimal.
    pub(crate) decimal: bool,
    /// The messages.
    pub(crate) shown_in: Vec<String>,
    pub(crate) values: Vec<EnumValue>,
}

/// A named value.
#[derive(Clone, Debug)]
pub(crate) struct EnumValue {
    pub(crate) name: String,
    pub(crate) value: u64,
    /// Its words in messages.
    pub(crate) says: Vec<String>,
    /// For an op_mod: the DevX method with it, if it differs from the command's.
    pub(crate) devx: Option<String>,
    pub(crate) doc: String,
    /// The value's own sources, if they are not the enum's.
    pub(crate) sources: Option<Vec<String>>,
}

/// Whether the model is the only source. Such a definition must not reach hardware.
fn are_model_only(sources: &[String]) -> bool {
    !sources.is_empty() && sources.iter().all(|source| source == "model")
}

impl Enum {
    /// Whether only the model has a value.
    pub(crate) fn is_model_only(&self, value: &EnumValue) -> bool {
        are_model_only(value.sources.as_deref().unwrap_or(&self.sources))
    }
}

/// A command of the device.
#[derive(Clone, Debug)]
pub(crate) struct Command {
    pub(crate) name: String,
    pub(crate) file: String,
    pub(crate) opcode: u16,
    pub(crate) doc: String,
    pub(crate) sources: Vec<String>,
    pub(crate) aliases: Vec<String>,
    pub(crate) input: String,
    pub(crate) output: String,
    pub(crate) devx: String,
    pub(crate) op_mods: Vec<EnumValue>,
    /// The enum of its object's states, if it has any.
    pub(crate) state: Option<String>,
    /// States of the object in which it is legal, or `any`.
    pub(crate) states: Vec<String>,
    /// Transitions of its object that it may cause, as `RST -> INIT`.
    pub(crate) transitions: Vec<String>,
    pub(crate) capability: Option<String>,
    pub(crate) statuses: Vec<Status>,
    pub(crate) variants: Vec<Variant>,
}

/// A status that a command may return.
#[derive(Clone, Debug)]
pub(crate) struct Status {
    pub(crate) name: String,
    /// When the device returns it.
    pub(crate) why: String,
    /// The evidence for the rule: a source, or `reading`, our own reading of fields and names.
    pub(crate) from: String,
}

/// `field` of the input or output holds `struct` if the input field `when` is one of `values`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Variant {
    pub(crate) field: String,
    pub(crate) when: String,
    pub(crate) values: Vec<u64>,
    #[serde(rename = "struct")]
    pub(crate) structure: String,
}

impl Field {
    /// Whether only the model has the field, even if hardware has the structure.
    pub(crate) fn is_model_only(&self) -> bool {
        self.sources.as_deref().is_some_and(are_model_only)
    }

    /// The bits of the field; empty for a tail.
    pub(crate) fn span(&self) -> Span {
        Span { start: self.start, width: if self.tail { 0 } else { self.width * self.count } }
    }

    /// The field's position in `at` notation.
    pub(crate) fn position(&self) -> String {
        match At::of_field(self.start, self.width * self.count) {
            (at, None) => at.to_string(),
            (at, Some(bits)) if bits % 8 == 0 => format!("{at}, {} bytes", bits / 8),
            (at, Some(bits)) => format!("{at}, {bits} bits"),
        }
    }
}

impl Word {
    /// Whether the word contains a field.
    pub(crate) fn holds(&self, field: &Field) -> bool {
        let field = field.span();
        field.width > 0 && self.span.start <= field.start && field.end() <= self.span.end()
    }

    /// Its fields, in order.
    pub(crate) fn fields<'a>(&self, structure: &'a Structure) -> impl Iterator<Item = &'a Field> {
        let named = |name| self.only.as_ref().is_none_or(|only| only.contains(name));
        structure.fields.iter().filter(move |field| self.holds(field) && named(&field.name))
    }
}

impl Structure {
    /// The gaps between its fields, in order.
    pub(crate) fn gaps(&self) -> Vec<Span> {
        gaps(self.bytes * 8, self.fields.iter().map(Field::span))
    }
}

/// The parts of `bits` bits that no span covers.
pub(crate) fn gaps(bits: u32, spans: impl Iterator<Item = Span>) -> Vec<Span> {
    let mut spans: Vec<Span> = spans.filter(|s| s.width > 0).collect();
    spans.sort();
    let (mut at, mut gaps) = (0, Vec::new());
    for span in spans {
        if span.start > at {
            gaps.push(Span { start: at, width: span.start - at });
        }
        at = at.max(span.end());
    }
    if at < bits {
        gaps.push(Span { start: at, width: bits - at });
    }
    gaps
}

impl Description {
    /// Reads every TOML file in `prm/` of the repository at `root`, and one level of directories;
    /// `evidence` has no entries.
    pub(crate) fn load(root: &Path) -> crate::repository::Result<Self> {
        let mut paths = Vec::new();
        collect(&root.join("prm"), true, &mut paths)?;
        paths.sort();
        let mut sources = Vec::new();
        for path in paths {
            let text = std::fs::read_to_string(&path)
                .map_err(|error| format!("{}: {error}", path.display()))?;
            let name = path.strip_prefix(root).unwrap_or(&path);
            sources.push((name.to_string_lossy().into_owned(), text));
        }
        Ok(Self::parse(sources.iter().map(|(name, text)| (name.as_str(), text.as_str()))))
    }

    /// Reads the given (file name, text) pairs.
    pub(crate) fn parse<'a>(files: impl IntoIterator<Item = (&'a str, &'a str)>) -> Self {
        let mut description = Self::default();
        for (file, text) in files {
            description.files.push(file.to_owned());
            match text.parse::<toml::Table>() {
                Ok(table) => {
                    for (name, value) in table {
                        description.entry(file, name, value);
                    }
                }
                Err(error) => {
                    let message = format!("not valid TOML: {}", error.to_string().trim_end());
                    description.problem(file, "", message);
                }
            }
        }
        description.resolve();
        description.name_opcodes();
        description
    }

    /// The structure of that name.
    pub(crate) fn structure(&self, name: &str) -> Option<&Structure> {
        self.structure_index.get(name).map(|&i| &self.structures[i])
    }

    /// The enum of that name.
    pub(crate) fn enumeration(&self, name: &str) -> Option<&Enum> {
        self.enums.iter().find(|e| e.name == name)
    }

    /// The content of a field; an enum that does not exist counts as a number.
    pub(crate) fn content<'a>(&self, field: &'a Field) -> &'a Content {
        match &field.content {
            Content::Enum(name) if self.enumeration(name).is_none() => &Content::Number,
            content => content,
        }
    }

    /// Records a mistake.
    pub(crate) fn problem(&mut self, file: &str, location: &str, message: String) {
        let (file, location) = (file.to_owned(), location.to_owned());
        self.problems.push(Problem { file, location, message, harmless: false });
    }

    fn entry(&mut self, file: &str, name: String, value: Value) {
        let location = format!("[{name}]");
        let Value::Table(mut table) = value else {
            let message = "is not a table; every top-level item is one entry, [name]".to_owned();
            return self.problem(file, &name, message);
        };
        let kind = match table.remove("kind") {
            None => "structure".to_owned(),
            Some(Value::String(kind)) => kind,
            Some(_) => String::new(),
        };
        match kind.as_str() {
            "structure" | "segment" => self.read_structure(file, name, kind == "segment", table),
            "enum" => self.read_enum(file, name, table),
            "command" => self.read_command(file, name, table),
            _ => {
                let message = "kind is one of structure, segment, enum, command".to_owned();
                self.problem(file, &location, message);
            }
        }
    }

    fn read_structure(&mut self, file: &str, name: String, segment: bool, table: toml::Table) {
        let location = format!("[{name}]");
        let Some(raw) = self.typed::<RawStructure>(file, &location, Value::Table(table)) else {
            return;
        };
        if raw.bytes > LARGEST {
            let message = format!("{:#x} bytes are more than a structure can have", raw.bytes);
            return self.problem(file, &location, message);
        }
        let mut reserved = Vec::new();
        for text in &raw.reserved {
            match At::parse(text) {
                Ok(span) => reserved.push(span),
                Err(error) => self.problem(file, &location, format!("reserved: {error}")),
            }
        }
        let mut words = Vec::new();
        for (word, value) in raw.words {
            let location = format!("[{name}] words: {word}");
            let Some(raw) = self.typed::<RawWord>(file, &location, value) else { continue };
            let (at, only, of) = match raw {
                RawWord::At(at) => (at, None, None),
                RawWord::Only { at, fields } => (at, Some(fields), None),
                RawWord::Of { at, of } => (at, None, Some(of)),
            };
            match At::parse(&at) {
                Ok(at) => words.push(Word { name: word, span: at.span(), only, of }),
                Err(error) => self.problem(file, &location, error),
            }
        }
        let mut fields = Vec::new();
        for (field, value) in raw.fields {
            let location = format!("[{name}] {field}");
            if let Some(raw) = self.typed::<RawField>(file, &location, value) {
                match raw.into_field(field) {
                    Ok(field) => fields.push(field),
                    Err(error) => self.problem(file, &location, error),
                }
            }
        }
        self.structure_index.entry(name.clone()).or_insert(self.structures.len());
        self.structures.push(Structure {
            name,
            file: file.to_owned(),
            segment,
            hot: raw.hot,
            words,
            bytes: raw.bytes,
            doc: raw.doc,
            sources: raw.sources,
            aliases: raw.aliases,
            reserved,
            without: raw.without,
            fields,
        });
    }

    fn read_enum(&mut self, file: &str, name: String, table: toml::Table) {
        let location = format!("[{name}]");
        let Some(raw) = self.typed::<RawEnum>(file, &location, Value::Table(table)) else {
            return;
        };
        let RawEnum { bits, hot, doc, sources, aliases, called, decimal, shown_in, values } = raw;
        let values = self.read_values(file, &name, values);
        if called.is_some() == shown_in.is_empty() {
            let message = "`called` and `shown_in` belong together".to_owned();
            self.problem(file, &location, message);
        }
        let file = file.to_owned();
        self.enums.push(Enum {
            name,
            file,
            bits,
            hot,
            doc,
            sources,
            aliases,
            called,
            decimal,
            shown_in,
            values,
        });
    }

    fn read_command(&mut self, file: &str, name: String, table: toml::Table) {
        let location = format!("[{name}]");
        let Some(raw) = self.typed::<RawCommand>(file, &location, Value::Table(table)) else {
            return;
        };
        let op_mods = self.read_values(file, &name, raw.op_mods);
        let mut statuses = Vec::new();
        for (status, value) in raw.statuses {
            let location = format!("[{name}] {status}");
            match value {
                Value::Table(_) => {
                    if let Some(RawStatus { why, from }) = self.typed(file, &location, value) {
                        statuses.push(Status { name: status, why, from });
                    }
                }
                _ => {
                    let message = "a status is NAME = { why = \"when it is returned\", from = \
                                   \"reading\" }, or has a source as its `from`";
                    self.problem(file, &location, message.to_owned());
                }
            }
        }
        self.commands.push(Command {
            name,
            file: file.to_owned(),
            opcode: raw.opcode,
            doc: raw.doc,
            sources: raw.sources,
            aliases: raw.aliases,
            input: raw.input,
            output: raw.output,
            devx: raw.devx,
            op_mods,
            state: raw.state,
            states: raw.states,
            transitions: raw.transitions,
            capability: raw.capability,
            statuses,
            variants: raw.variants,
        });
    }

    fn read_values(&mut self, file: &str, entry: &str, table: toml::Table) -> Vec<EnumValue> {
        let mut values = Vec::new();
        for (name, value) in table {
            let raw = match value {
                Value::Integer(value) => {
                    Value::Table([("value".into(), value.into())].into_iter().collect())
                }
                other => other,
            };
            let location = format!("[{entry}] {name}");
            let raw = self.typed(file, &location, raw);
            if let Some(RawValue { value, says, devx, doc, sources }) = raw {
                values.push(EnumValue { name, value, says, devx, doc, sources });
            }
        }
        values
    }

    /// `value` as a `T`, or a problem that names the unknown, missing or mistyped part.
    fn typed<T: DeserializeOwned>(
        &mut self,
        file: &str,
        location: &str,
        value: Value,
    ) -> Option<T> {
        value
            .try_into()
            .map_err(|error: toml::de::Error| {
                let text = error.to_string();
                self.problem(file, location, text.trim().replace('\n', " "));
            })
            .ok()
    }

    /// Adds every command to the enum `opcode`, beside the values in its table. Without a table the
    /// enum belongs to no file.
    fn name_opcodes(&mut self) {
        let described = self.commands.iter().map(|command| EnumValue {
            name: command.name.to_uppercase(),
            value: command.opcode.into(),
            says: Vec::new(),
            devx: None,
            doc: command.doc.clone(),
            sources: Some(command.sources.clone()),
        });
        let mut described: Vec<EnumValue> = described.collect();
        described.sort_by_key(|value| value.value);
        if let Some(listed) = self.enums.iter_mut().find(|e| e.name == "opcode") {
            listed.values.extend(described);
            listed.values.sort_by_key(|value| value.value);
        } else if !described.is_empty() {
            self.enums.push(Enum {
                name: "opcode".into(),
                file: String::new(),
                bits: 16,
                hot: None,
                doc: "Opcodes of commands.".into(),
                sources: vec!["the commands' own".into()],
                aliases: Vec::new(),
                called: None,
                decimal: false,
                shown_in: Vec::new(),
                values: described,
            });
        }
    }

    /// Sets the width of fields that hold a structure.
    fn resolve(&mut self) {
        let sizes: BTreeMap<String, u32> =
            self.structures.iter().map(|s| (s.name.clone(), s.bytes)).collect();
        for structure in &mut self.structures {
            for field in &mut structure.fields {
                if let Content::Struct(name) = &field.content {
                    field.width = sizes.get(name).map_or(0, |bytes| bytes * 8);
                }
            }
        }
    }
}

fn collect(directory: &Path, deeper: bool, paths: &mut Vec<PathBuf>) -> crate::repository::Result {
    let entries = std::fs::read_dir(directory)
        .map_err(|error| format!("{}: {error}", directory.display()))?;
    for entry in entries {
        let path = entry?.path();
        if path.is_dir() && deeper && !path.ends_with("evidence") {
            collect(&path, false, paths)?;
        } else if path.extension().is_some_and(|e| e == "toml") {
            paths.push(path);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn field_position_is_in_whole_bytes_if_possible() {
        let text = "[thing]\nbytes = 0x18\n\
                    fields.a = { at = \"0x00.31:28\" }\n\
                    fields.b = { at = \"0x04\", bits = 36 }\n\
                    fields.c = { at = \"0x0c\", bits = 40 }\n\
                    fields.d = { at = \"0x14\", count = 3, bits = 8 }";
        let description = Description::parse([("prm/x.toml", text)]);
        let positions = description.structures[0].fields.iter().map(Field::position);
        let wanted = ["0x00.31:28", "0x04, 36 bits", "0x0c, 5 bytes", "0x14.31:8"];
        assert!(positions.eq(wanted), "{:?}", description.structures[0].fields);
    }

    #[test]
    fn gaps_are_bits_without_field() {
        let span = |(start, width)| Span { start, width };
        for (spans, wanted) in [
            (&[][..], &[(0, 64)][..]),
            (&[(0, 64)], &[]),
            (&[(0, 65)], &[]),
            (&[(32, 0)], &[(0, 64)]),
            (&[(40, 8), (8, 8)], &[(0, 8), (16, 24), (48, 16)]),
            (&[(0, 40), (8, 8)], &[(40, 24)]),
        ] {
            let found = gaps(64, spans.iter().copied().map(span));
            assert!(found.iter().copied().eq(wanted.iter().copied().map(span)), "{found:?}");
        }
    }

    #[test]
    fn structure_is_limited_to_1_mib() {
        for (bytes, problems) in [(0x10_0000, 0), (0x10_0001, 1)] {
            let text = format!("[thing]\nbytes = {bytes}\n");
            let description = Description::parse([("prm/x.toml", text.as_str())]);
            assert_eq!(description.problems.len(), problems, "{:?}", description.problems);
        }
    }
}
