//! `prm check`: checks the description, independently of generation.
//!
//! Rules: only fields marked `overlay` overlap, `reserved` names every gap, every used name exists,
//! values are unique and fit, command inputs and outputs have the common header, every field has a
//! doc and every entry a source. `structures` and `commands` have the rules of their entries.

mod commands;
mod structures;

use std::collections::BTreeMap;
use std::path::Path;

use super::description::{Description, Enum, EnumValue, Problem};
use super::facts::Facts;
use super::find::{find, identifiers};
use super::generate;
use super::import::FACTS;
use super::names::{is_snake, is_upper, type_name};

/// Runs the task: every mistake on standard error, or a line with counts.
pub(crate) fn run(root: &Path) -> crate::repository::Result {
    let description = Description::load(root)?;
    let mut found = all(&description);
    found.extend(linux_names(&description, &Facts::read(&root.join(FACTS))?));
    found.extend(super::book::reference::problems(root, &description)?);
    let mut problems: Vec<String> = found.iter().map(Problem::to_string).collect();
    if found.iter().all(|problem| problem.harmless) {
        problems.extend(generate::stale(root, &description)?);
    }
    if problems.is_empty() {
        let fields: usize = description.structures.iter().map(|s| s.fields.len()).sum();
        println!(
            "prm check: {} structures with {fields} fields, {} enums, {} commands; no errors",
            description.structures.len(),
            description.enums.len(),
            description.commands.len()
        );
        return Ok(());
    }
    for problem in &problems {
        eprintln!("{problem}");
    }
    Err(format!("{} mistakes in the description", problems.len()).into())
}

/// The description, or one error with all its mistakes. Missing texts do not count.
pub(crate) fn load_sound(root: &Path) -> crate::repository::Result<Description> {
    let description = Description::load(root)?;
    let problems = all(&description);
    let lines: Vec<String> =
        problems.iter().filter(|p| !p.harmless).map(|p| format!("  {p}")).collect();
    if lines.is_empty() {
        return Ok(description);
    }
    Err(format!("{} mistakes in the description:\n{}", lines.len(), lines.join("\n")).into())
}

/// Every mistake, including those of reading, in file order.
pub(crate) fn all(description: &Description) -> Vec<Problem> {
    let mut check = Check { description, problems: description.problems.clone() };
    check.names();
    for structure in &description.structures {
        check.structure(structure);
    }
    for enumeration in description.enums.iter().filter(|e| !e.file.is_empty()) {
        check.enumeration(enumeration);
    }
    for command in &description.commands {
        check.command(command);
    }
    check.opcodes();
    check.aliases();
    check.recursion();
    let position = |file: &str| description.files.iter().position(|f| f == file);
    check.problems.sort_by_key(|problem| position(&problem.file));
    check.problems
}

/// Whether a doc only repeats the words of the name; articles and the like do not count.
fn restates(name: &str, doc: &str) -> bool {
    let words = |text: &str| -> Vec<String> {
        let words = text.split(|c: char| !c.is_ascii_alphanumeric()).filter(|w| !w.is_empty());
        let long = |word: &str| match word {
            "num" => "number".to_owned(),
            "addr" => "address".to_owned(),
            "ctx" => "context".to_owned(),
            "cnt" => "count".to_owned(),
            word => word.to_owned(),
        };
        words.map(|word| long(&word.to_lowercase())).collect()
    };
    const EMPTY: &[&str] =
        &["a", "an", "the", "of", "is", "are", "in", "it", "its", "and", "by", "to", "on", "for"];
    let name_words = words(name);
    let letters = |words: &[String]| words.concat();
    let doc_words: Vec<String> =
        words(doc).into_iter().filter(|word| !EMPTY.contains(&word.as_str())).collect();
    doc_words.iter().all(|word| name_words.contains(word))
        || letters(&doc_words) == letters(&name_words)
}

/// Linux names in `sources` that the recorded header lacks, or has with another value. A name from
/// another Linux version is written with it: `linux: Linux 6.1 mlx5_ifc_…`.
pub(crate) fn linux_names(description: &Description, facts: &Facts) -> Vec<Problem> {
    let mut problems = Vec::new();
    let mut problem = |file: &str, location: String, message: String| {
        problems.push(Problem { file: file.to_owned(), location, message, harmless: true });
    };
    let unknown = |source: &str| {
        let name = source.strip_prefix("linux: ")?;
        let whole = name.starts_with("mlx5_ifc_") && name.ends_with("_bits");
        (whole && !facts.structs.contains_key(name)).then(|| {
            format!("{FACTS} has no {name}; correct the name, or name the version that has it")
        })
    };
    for structure in &description.structures {
        let location = format!("[{}]", structure.name);
        for message in structure.sources.iter().filter_map(|source| unknown(source)) {
            problem(&structure.file, location.clone(), message);
        }
        for field in &structure.fields {
            for message in field.sources.iter().flatten().filter_map(|source| unknown(source)) {
                problem(&structure.file, format!("{location} {}", field.name), message);
            }
        }
    }
    for command in &description.commands {
        let linux = command.sources.iter().filter(|source| source.starts_with("linux"));
        let names = linux.flat_map(|source| identifiers(source));
        for name in names.filter(|name| name.starts_with("MLX5_CMD_OP")) {
            let value = facts.enums.get(name).copied();
            if value != Some(command.opcode.into()) {
                let value = value.map_or("nothing".to_owned(), |value| format!("{value:#x}"));
                let message = format!("opcode is {:#x}, but {name} is {value}", command.opcode);
                problem(&command.file, format!("[{}]", command.name), message);
            }
        }
    }
    problems
}

struct Check<'a> {
    description: &'a Description,
    problems: Vec<Problem>,
}

impl Check<'_> {
    fn error(&mut self, file: &str, location: String, message: impl Into<String>) {
        let (file, message) = (file.to_owned(), message.into());
        self.problems.push(Problem { file, location, message, harmless: false });
    }

    fn harmless(&mut self, file: &str, location: String, message: &str) {
        let (file, message) = (file.to_owned(), message.to_owned());
        self.problems.push(Problem { file, location, message, harmless: true });
    }

    fn names(&mut self) {
        let description = self.description;
        let entries = (description.structures.iter().map(|s| (&s.name, &s.file, true)))
            .chain(description.enums.iter().map(|e| (&e.name, &e.file, true)))
            .chain(description.commands.iter().map(|c| (&c.name, &c.file, false)));
        let words = description.structures.iter().flat_map(|s| {
            s.words.iter().filter(|word| word.of.is_none()).map(|word| (&word.name, &s.file, true))
        });
        let modules = description.enums.iter().filter_map(|e| Some((e.hot.as_ref()?, &e.file)));
        let mut hot: BTreeMap<&str, &str> = BTreeMap::new();
        for (name, file) in modules {
            if !is_snake(name) || hot.insert(name, file).is_some() {
                let message = "hot must be a lower case module name that no other enum has";
                self.error(file, format!("hot = \"{name}\""), message);
            }
        }
        let mut types: BTreeMap<String, (&str, &str)> = BTreeMap::new();
        let mut names: BTreeMap<&str, &str> = BTreeMap::new();
        for (name, file, is_type) in entries.chain(words) {
            let location = format!("[{name}]");
            if !is_snake(name) {
                self.error(file, location, "names are lower case letters, digits and _");
                continue;
            }
            if let Some(other) = names.insert(name, file) {
                self.error(file, location, format!("{other} already has an entry of that name"));
                continue;
            }
            let other = is_type.then(|| types.insert(type_name(name), (name, file))).flatten();
            if let Some((other, file)) = other {
                let message =
                    format!("would be `{}` in Rust, as [{other}] in {file}", type_name(name));
                self.error(file, location, message);
            }
        }
    }

    fn entry(&mut self, file: &str, name: &str, doc: &str, sources: &[String]) {
        let location = format!("[{name}]");
        if doc.trim().is_empty() {
            self.harmless(file, location.clone(), "has no doc; describe it in a sentence");
        }
        if sources.is_empty() {
            let message = "has no sources; name one, or \"model\"";
            self.harmless(file, location.clone(), message);
        }
        if sources.iter().any(|source| source.trim().is_empty()) {
            self.harmless(file, location, "has an empty source");
        }
    }

    fn near(&self, name: &str) -> String {
        let description = self.description;
        let names = (description.structures.iter().map(|s| &s.name))
            .chain(description.enums.iter().map(|e| &e.name));
        let near: Vec<&str> = names
            .filter(|other| other.contains(name) || name.contains(other.as_str()))
            .map(String::as_str)
            .take(5)
            .collect();
        if near.is_empty() { String::new() } else { format!("; did you mean {}?", near.join(", ")) }
    }

    fn enumeration(&mut self, e: &Enum) {
        let location = format!("[{}]", e.name);
        self.entry(&e.file, &e.name, &e.doc, &e.sources);
        if e.bits == 0 || e.bits > 64 {
            self.error(&e.file, location.clone(), "bits is from 1 to 64");
        }
        if e.values.is_empty() {
            self.error(&e.file, location.clone(), "has no values");
        }
        self.values(&e.file, &e.name, &e.values, e.bits);
    }

    /// A doc must say more than the name.
    fn doc(&mut self, file: &str, location: &str, name: &str, doc: &str) {
        if doc.trim().is_empty() {
            return;
        }
        if restates(name, doc) {
            let message = format!("`{doc}` only repeats the name; state what it means");
            self.harmless(file, location.to_owned(), &message);
        }
    }

    fn values(&mut self, file: &str, entry: &str, values: &[EnumValue], bits: u32) {
        let mut seen: BTreeMap<u64, &str> = BTreeMap::new();
        for value in values {
            let location = format!("[{entry}] {}", value.name);
            if !is_upper(&value.name) || value.name == "INFO" {
                let message = "values are named in upper case letters, digits and _, but not INFO";
                self.error(file, location.clone(), message);
            }
            if value.doc.trim().is_empty() {
                self.harmless(file, location.clone(), "has no doc; say what it means");
            }
            if value.sources.as_ref().is_some_and(|sources| {
                sources.is_empty() || sources.iter().any(|source| source.trim().is_empty())
            }) {
                let message = "has an empty source; name one, or leave the list out";
                self.error(file, location.clone(), message);
            }
            self.doc(file, &location, &value.name, &value.doc);
            if (1..64).contains(&bits) && value.value >> bits != 0 {
                let message = format!("{} does not fit into {bits} bits", value.value);
                self.error(file, location.clone(), message);
            }
            if let Some(other) = seen.insert(value.value, &value.name) {
                let message = format!("has the value {} of `{other}`", value.value);
                self.error(file, location, message);
            }
        }
    }

    /// An alias must be a C identifier that refers to one entry and is not already its name.
    fn aliases(&mut self) {
        let description = self.description;
        let structures = description.structures.iter().map(|s| (&s.file, &s.name, &s.aliases));
        let enums = description.enums.iter().map(|e| (&e.file, &e.name, &e.aliases));
        let commands = description.commands.iter().map(|c| (&c.file, &c.name, &c.aliases));
        for (file, name, aliases) in structures.chain(enums).chain(commands) {
            for (i, alias) in aliases.iter().enumerate() {
                let location = format!("[{name}] aliases");
                let found = find(description, alias);
                if !identifiers(alias).eq([alias.as_str()]) || alias.ends_with('*') {
                    let message = format!("`{alias}` is not a C identifier");
                    self.error(file, location, message);
                } else if let Some(other) =
                    found.targets.iter().find(|target| target.name().to_lowercase() != *name)
                {
                    let message = format!("`{alias}` is already a name of {}", other.name());
                    self.error(file, location, message);
                } else if aliases[..i].contains(alias) {
                    self.error(file, location, format!("`{alias}` is listed twice"));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
