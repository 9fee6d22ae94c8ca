//! `prm check`: the description held against its own rules, apart from generation.
//!
//! Rules: nothing overlaps but what says so, every gap is named in `reserved`, every name that is
//! used exists, values are unique and fit, commands begin and answer as every command does, every
//! field has a text and every entry a source.

use std::collections::BTreeMap;
use std::path::Path;

use super::at::At;
use super::description::{
    Command, Content, Description, Enum, EnumValue, Field, Problem, Status, Structure, Word, gaps,
};
use super::facts::Facts;
use super::find::{find, identifiers};
use super::generate;
use super::import::FACTS;
use super::names::{TAKEN, is_snake, is_upper, type_name};

/// Runs the task: every mistake on standard error, or a line with counts.
pub(crate) fn run(root: &Path) -> crate::repository::Result {
    let description = Description::load(root)?;
    let mut found = all(&description);
    found.extend(linux_names(&description, &Facts::read(&root.join(FACTS))?));
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

/// The description, or all its mistakes but missing texts as one error.
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

/// Every mistake, those of reading included, in file order.
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

/// Whether a doc has no word that the name does not have; articles and the like do not count.
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

/// Names of Linux in `sources` that its recorded header does not have, or has with another value.
/// Those of another version of Linux say so: `linux: Linux 6.1 mlx5_ifc_…`.
pub(crate) fn linux_names(description: &Description, facts: &Facts) -> Vec<Problem> {
    let mut problems = Vec::new();
    let mut problem = |file: &str, place: String, message: String| {
        problems.push(Problem { file: file.to_owned(), place, message, harmless: true });
    };
    let unknown = |source: &str| {
        let name = source.strip_prefix("linux: ")?;
        let whole = name.starts_with("mlx5_ifc_") && name.ends_with("_bits");
        (whole && !facts.structs.contains_key(name)).then(|| {
            format!("{FACTS} has no {name}; correct the name, or name the version that has it")
        })
    };
    for structure in &description.structures {
        let place = format!("[{}]", structure.name);
        for message in structure.sources.iter().filter_map(|source| unknown(source)) {
            problem(&structure.file, place.clone(), message);
        }
        for field in &structure.fields {
            for message in field.sources.iter().flatten().filter_map(|source| unknown(source)) {
                problem(&structure.file, format!("{place} {}", field.name), message);
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
    fn error(&mut self, file: &str, place: String, message: impl Into<String>) {
        let (file, message) = (file.to_owned(), message.into());
        self.problems.push(Problem { file, place, message, harmless: false });
    }

    fn harmless(&mut self, file: &str, place: String, message: &str) {
        let (file, message) = (file.to_owned(), message.to_owned());
        self.problems.push(Problem { file, place, message, harmless: true });
    }

    fn names(&mut self) {
        let description = self.description;
        let entries = (description.structures.iter().map(|s| (&s.name, &s.file, true)))
            .chain(description.enums.iter().map(|e| (&e.name, &e.file, true)))
            .chain(description.commands.iter().map(|c| (&c.name, &c.file, false)));
        let words = description
            .structures
            .iter()
            .flat_map(|s| s.words.iter().map(|word| (&word.name, &s.file, true)));
        let modules = description.enums.iter().filter_map(|e| Some((e.hot.as_ref()?, &e.file)));
        let mut hot: BTreeMap<&str, &str> = BTreeMap::new();
        for (name, file) in modules {
            if !is_snake(name) || hot.insert(name, file).is_some() {
                let message = "hot is a module's name that no other enum has, in lower case";
                self.error(file, format!("hot = \"{name}\""), message);
            }
        }
        let mut types: BTreeMap<String, (&str, &str)> = BTreeMap::new();
        let mut names: BTreeMap<&str, &str> = BTreeMap::new();
        for (name, file, is_type) in entries.chain(words) {
            let place = format!("[{name}]");
            if !is_snake(name) {
                self.error(file, place, "names are lower case letters, digits and _");
                continue;
            }
            if let Some(other) = names.insert(name, file) {
                self.error(file, place, format!("{other} already has an entry of that name"));
                continue;
            }
            let other = is_type.then(|| types.insert(type_name(name), (name, file))).flatten();
            if let Some((other, file)) = other {
                let message =
                    format!("would be `{}` in Rust, as [{other}] in {file}", type_name(name));
                self.error(file, place, message);
            }
        }
    }

    fn entry(&mut self, file: &str, name: &str, doc: &str, sources: &[String]) {
        let place = format!("[{name}]");
        if doc.trim().is_empty() {
            self.harmless(file, place.clone(), "has no doc; say what it is in a sentence");
        }
        if sources.is_empty() {
            let message = "has no sources; name where it is known from, or \"model\"";
            self.harmless(file, place.clone(), message);
        }
        if sources.iter().any(|source| source.trim().is_empty()) {
            self.harmless(file, place, "has an empty source");
        }
    }

    fn structure(&mut self, structure: &Structure) {
        let file = &structure.file;
        self.entry(file, &structure.name, &structure.doc, &structure.sources);
        let bits = structure.bytes.saturating_mul(8);
        let mut methods: BTreeMap<String, &str> = BTreeMap::new();
        for field in &structure.fields {
            let place = format!("[{}] {}", structure.name, field.name);
            self.field(structure, field, &place);
            let name = &field.name;
            for method in [name.clone(), format!("set_{name}"), format!("{name}_mut")] {
                if let Some(other) = methods.insert(method.clone(), name) {
                    let message = format!("its accessor `{method}` is also that of `{other}`");
                    self.error(file, place.clone(), message);
                }
            }
            if field.span().end() > bits {
                let message = format!(
                    "ends at byte 0x{:x}, but the structure has 0x{:x} bytes",
                    field.span().end().div_ceil(8),
                    structure.bytes
                );
                self.error(file, place.clone(), message);
            }
            if field.tail && field.start < bits {
                let message = format!(
                    "is a tail, but begins before the structure's 0x{:x} bytes end",
                    structure.bytes
                );
                self.error(file, place, message);
            }
        }
        self.overlaps(structure);
        self.gaps(structure);
        if !structure.hot && !structure.words.is_empty() {
            let message = "has words, but is not hot; add hot = true";
            self.error(file, format!("[{}]", structure.name), message);
        }
        for word in &structure.words {
            self.word(structure, word);
        }
    }

    /// A word of a hot structure: aligned, and made of whole fields that are numbers.
    fn word(&mut self, structure: &Structure, word: &Word) {
        let (file, span) = (&structure.file, word.span);
        let place = format!("[{}] words: {}", structure.name, word.name);
        if !is_snake(&word.name) {
            self.error(file, place.clone(), "names are lower case letters, digits and _");
        }
        if ![8, 16, 32, 64].contains(&span.width) || !span.start.is_multiple_of(span.width) {
            let message = "is not an aligned word of 1, 2, 4 or 8 bytes";
            self.error(file, place.clone(), message);
        }
        if span.end() > structure.bytes.saturating_mul(8) {
            self.error(file, place.clone(), "ends behind the structure");
        }
        if word.fields(structure).next().is_none() {
            self.error(file, place.clone(), "holds no field");
        }
        for field in &structure.fields {
            let of = field.span();
            let number = matches!(field.content, Content::Number | Content::Enum(_));
            let touches = of.start < span.end() && span.start < of.end();
            if touches && !(word.holds(field) && number && !field.array) {
                let message = format!("`{}` is not a number within it", field.name);
                self.error(file, place.clone(), message);
            }
        }
    }

    fn field(&mut self, structure: &Structure, field: &Field, place: &str) {
        let file = &structure.file;
        if !is_snake(&field.name) {
            self.error(file, place.into(), "names are lower case letters, digits and _");
        }
        if TAKEN.contains(&field.name.as_str()) {
            self.error(file, place.into(), "every view has a method of that name; rename it");
        }
        if field.doc.trim().is_empty() {
            self.harmless(file, place.into(), "has no doc; say what it is");
        }
        self.doc(file, place, &field.name, &field.doc);
        if field.sources.as_ref().is_some_and(Vec::is_empty) {
            self.harmless(
                file,
                place.into(),
                "has an empty list of sources; name one, or leave it out",
            );
        }
        match &field.content {
            Content::Number if field.width > 64 => {
                self.error(file, place.into(), "a number has at most 64 bits");
            }
            Content::Number => {}
            Content::Enum(name) => match self.description.enumeration(name) {
                None => {
                    let message = format!("there is no enum [{name}]{}", self.near(name));
                    self.harmless(file, place.into(), &message);
                }
                Some(e) => {
                    let largest = e.values.iter().map(|v| v.value).max().unwrap_or(0);
                    if field.width > e.bits || (field.width < 64 && largest >> field.width != 0) {
                        let message = format!(
                            "has {} bits, but enum [{name}] has {} and values up to {largest}",
                            field.width, e.bits
                        );
                        self.error(file, place.into(), message);
                    }
                }
            },
            Content::Struct(name) => {
                if self.description.structure(name).is_none() {
                    let message = format!("there is no structure [{name}]{}", self.near(name));
                    self.error(file, place.into(), message);
                } else if !field.start.is_multiple_of(8) {
                    self.error(file, place.into(), "a structure begins at a whole byte");
                }
            }
            Content::Bytes => {
                if !field.start.is_multiple_of(8) || !field.width.is_multiple_of(8) {
                    let message = "has more than 64 bits but not whole bytes; take it apart";
                    self.error(file, place.into(), message);
                }
            }
        }
        if let Some(sources) = &field.sources
            && sources.iter().any(|source| source.trim().is_empty())
        {
            self.harmless(file, place.into(), "has an empty source");
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

    fn overlaps(&mut self, structure: &Structure) {
        let mut fields: Vec<&Field> =
            structure.fields.iter().filter(|f| !f.tail && f.span().width > 0).collect();
        if !fields.is_sorted_by_key(|f| f.start) {
            let (before, after) = fields
                .windows(2)
                .find(|pair| pair[0].start > pair[1].start)
                .map(|pair| (pair[1], pair[0]))
                .expect("the fields are not sorted");
            let message =
                format!("order of fields is order in memory; put it before `{}`", after.name);
            self.error(&structure.file, format!("[{}] {}", structure.name, before.name), message);
        }
        fields.sort_by_key(|f| f.span());
        for (i, field) in fields.iter().enumerate() {
            for other in fields[i + 1..].iter().take_while(|o| o.start < field.span().end()) {
                if !field.overlay && !other.overlay {
                    let message = format!(
                        "overlaps `{}` at {}; if intended, set overlay = true on one of them",
                        field.name,
                        field.place()
                    );
                    self.error(
                        &structure.file,
                        format!("[{}] {}", structure.name, other.name),
                        message,
                    );
                }
            }
        }
    }

    fn gaps(&mut self, structure: &Structure) {
        let place = format!("[{}]", structure.name);
        let bits = structure.bytes * 8;
        let reserved: Vec<_> = structure.reserved.iter().map(|place| place.span()).collect();
        for (i, span) in reserved.iter().enumerate() {
            let written = structure.reserved[i];
            if span.end() > bits {
                let message =
                    format!("reserved {written} is beyond its 0x{:x} bytes", structure.bytes);
                self.error(&structure.file, place.clone(), message);
            }
            let field = structure
                .fields
                .iter()
                .find(|field| field.span().start < span.end() && span.start < field.span().end());
            if let Some(field) = field {
                let message = format!("reserved {written} is where field `{}` is", field.name);
                self.error(&structure.file, place.clone(), message);
            }
            if reserved[..i].iter().any(|o| o.start < span.end() && span.start < o.end()) {
                let message = format!("reserved {written} is named twice");
                self.error(&structure.file, place.clone(), message);
            }
        }
        let fields = structure.fields.iter().map(Field::span);
        let unnamed = gaps(bits, fields.chain(reserved.iter().copied()));
        if !unnamed.is_empty() {
            let places: Vec<String> =
                unnamed.into_iter().flat_map(At::of_gap).map(|p| format!("\"{p}\"")).collect();
            let message =
                format!("has gaps without a name; add to reserved: {}", places.join(", "));
            self.error(&structure.file, place, message);
        }
    }

    fn enumeration(&mut self, e: &Enum) {
        let place = format!("[{}]", e.name);
        self.entry(&e.file, &e.name, &e.doc, &e.sources);
        if e.bits == 0 || e.bits > 64 {
            self.error(&e.file, place.clone(), "bits is from 1 to 64");
        }
        if e.values.is_empty() {
            self.error(&e.file, place.clone(), "has no values");
        }
        self.values(&e.file, &e.name, &e.values, e.bits);
    }

    /// A doc says more than the name does.
    fn doc(&mut self, file: &str, place: &str, name: &str, doc: &str) {
        if doc.trim().is_empty() {
            return;
        }
        if restates(name, doc) {
            let message = format!("`{doc}` only repeats the name; state what it means");
            self.harmless(file, place.to_owned(), &message);
        }
    }

    fn values(&mut self, file: &str, entry: &str, values: &[EnumValue], bits: u32) {
        let mut seen: BTreeMap<u64, &str> = BTreeMap::new();
        for value in values {
            let place = format!("[{entry}] {}", value.name);
            if !is_upper(&value.name) || value.name == "INFO" {
                let message = "values are named in upper case letters, digits and _, but not INFO";
                self.error(file, place.clone(), message);
            }
            if value.doc.trim().is_empty() {
                self.harmless(file, place.clone(), "has no doc; say what it means");
            }
            if value.sources.as_ref().is_some_and(|sources| {
                sources.is_empty() || sources.iter().any(|source| source.trim().is_empty())
            }) {
                let message = "has an empty source; name one, or leave the list out";
                self.error(file, place.clone(), message);
            }
            self.doc(file, &place, &value.name, &value.doc);
            if (1..64).contains(&bits) && value.value >> bits != 0 {
                let message = format!("{} does not fit into {bits} bits", value.value);
                self.error(file, place.clone(), message);
            }
            if let Some(other) = seen.insert(value.value, &value.name) {
                let message = format!("has the value {} of `{other}`", value.value);
                self.error(file, place, message);
            }
        }
    }

    fn command(&mut self, command: &Command) {
        let (file, place) = (&command.file, format!("[{}]", command.name));
        self.entry(file, &command.name, &command.doc, &command.sources);
        self.values(file, &command.name, &command.op_mods, 16);
        for op_mod in command.op_mods.iter().filter(|op_mod| op_mod.sources.is_some()) {
            let place = format!("[{}] {}", command.name, op_mod.name);
            let message = "an op_mod has no sources of its own; where it carries a structure of \
                           the model's, say so by a variant";
            self.error(file, place, message);
        }
        if !["create", "query", "modify", "destroy", "general", "none"]
            .contains(&command.devx.as_str())
        {
            let message = "devx is one of create, query, modify, destroy, general, none";
            self.error(file, place.clone(), message);
        }
        if command.opcode == 0 {
            self.error(file, place.clone(), "opcode 0 is not a command");
        }
        for (role, name) in [("input", &command.input), ("output", &command.output)] {
            match self.description.structure(name) {
                None => {
                    let message = format!("{role}: there is no structure [{name}]");
                    self.error(file, place.clone(), message);
                }
                Some(structure) => self.header(command, structure, role),
            }
        }
        let shared = self.description.commands.iter().find(|o| {
            o.name != command.name && (o.input == command.input) && o.name < command.name
        });
        if let Some(other) = shared {
            let message =
                format!("shares its input with [{}]; give each command its own", other.name);
            self.error(file, place.clone(), message);
        }
        let statuses = self.description.enumeration("command_status");
        for Status { name: status, why, from } in &command.statuses {
            let place = format!("[{}] {status}", command.name);
            if !statuses.is_some_and(|e| e.values.iter().any(|v| v.name == *status)) {
                self.harmless(file, place.clone(), "is not a value of enum [command_status]");
            }
            if why.trim().is_empty() {
                self.harmless(file, place.clone(), "does not say why it is returned");
            }
            let source = from.split_once(": ").is_some_and(|(who, what)| {
                ["linux", "dpdk", "ucx", "rdma-core", "freebsd", "mstflint", "trace"].contains(&who)
                    && !what.trim().is_empty()
            });
            let constant = identifiers(from).find(|name| name.starts_with("MLX5_CMD_STAT_"));
            if from != "reading" && !source {
                let message = "from is \"reading\", or a source such as \"linux: NAME\"";
                self.harmless(file, place, message);
            } else if constant.is_some_and(|name| name != format!("MLX5_CMD_STAT_{status}_ERR")) {
                self.harmless(file, place, "names the constant of another status");
            }
        }
        self.states(command);
        self.needs(command);
        self.variants(command);
    }

    /// The states and transitions of a command are those of its object.
    fn states(&mut self, command: &Command) {
        let (file, place) = (&command.file, format!("[{}] states", command.name));
        let Some(name) = &command.state else {
            if !command.states.is_empty() || !command.transitions.is_empty() {
                let message = "whose states? name their enum: state = \"qp_state\"";
                self.harmless(file, place, message);
            }
            return;
        };
        let Some(e) = self.description.enumeration(name) else {
            let message = format!("there is no enum [{name}]{}", self.near(name));
            return self.harmless(file, place, &message);
        };
        let known = |state: &str| e.values.iter().any(|value| value.name == state);
        let mut messages = Vec::new();
        for state in command.states.iter().filter(|state| *state != "any" && !known(state)) {
            messages.push(format!("{state} is not a value of enum [{name}]"));
        }
        if command.states.is_empty() {
            messages.push("says in no state that it is legal; \"any\" is all".to_owned());
        }
        for transition in &command.transitions {
            match transition.split_once(" -> ") {
                None => messages.push(format!("`{transition}` is not written A -> B")),
                Some((from, to)) => {
                    if !command.states.iter().any(|state| state == from) {
                        messages
                            .push(format!("`{transition}` does not start from one of its states"));
                    }
                    if !known(to) {
                        messages.push(format!("{to} is not a value of enum [{name}]"));
                    }
                }
            }
        }
        for message in messages {
            self.harmless(file, place.clone(), &message);
        }
    }

    /// What a command needs are capabilities that exist, and what the creation of an object needs,
    /// its other commands need too.
    fn needs(&mut self, command: &Command) {
        let (file, place) = (&command.file, format!("[{}] capability", command.name));
        let text = command.capability.as_deref().unwrap_or_default();
        for word in text.split([' ', ',', '(', ')', ';']) {
            let Some((page, field)) = word.split_once('.').filter(|(_, field)| !field.is_empty())
            else {
                continue;
            };
            let structure = self.description.structure(page);
            if !structure.is_some_and(|s| s.fields.iter().any(|f| f.name == field)) {
                let message = format!("there is no field {field} in [{page}]");
                self.harmless(file, place.clone(), &message);
            }
        }
        let object = ["destroy_", "dealloc_", "query_", "modify_"]
            .iter()
            .find_map(|verb| command.name.strip_prefix(verb));
        let creation = object.and_then(|object| {
            let names = [format!("create_{object}"), format!("alloc_{object}")];
            self.description.commands.iter().find(|other| names.contains(&other.name))
        });
        if let Some(creation) = creation
            && creation.capability.is_some()
            && command.capability.is_none()
        {
            let message = format!("is missing; [{}] has one for the same object", creation.name);
            self.harmless(file, place, &message);
        }
    }

    /// An input begins with opcode, uid and op_mod, an output with status and syndrome.
    fn header(&mut self, command: &Command, structure: &Structure, role: &str) {
        let header: &[(&str, u32, u32)] = match role {
            "input" => &[("opcode", 0, 16), ("uid", 16, 16), ("op_mod", 48, 16)],
            _ => &[("status", 0, 8), ("syndrome", 32, 32)],
        };
        for &(name, start, width) in header {
            let place = At::of_field(start, width).0;
            let here = format!("[{}]", structure.name);
            match structure.fields.iter().find(|f| f.name == name) {
                // Not every command is sent for a user context; DESTROY_UCTX has a uid elsewhere.
                Some(field) if name == "uid" && field.start >= 32 => {}
                None if name == "uid" && command.devx == "none" => {}
                None if name == "uid" => {
                    let message = format!(
                        "has no `uid` at {place}, which the kernel stamps: devx of [{}] is \"{}\"",
                        command.name, command.devx
                    );
                    self.error(&structure.file, here, message);
                }
                // The commands of general objects have the type of the object there.
                None if name == "op_mod"
                    && structure.fields.iter().any(|f| f.name == "obj_type") => {}
                None => {
                    let message = format!("is a command's {role}, but has no `{name}` at {place}");
                    self.error(&structure.file, here, message);
                }
                Some(field) if (field.start, field.width) != (start, width) => {
                    let message = format!("is a command's {role}, so its `{name}` is at {place}");
                    self.error(&structure.file, here, message);
                }
                Some(field) => {
                    if name == "status" && field.content != Content::Enum("command_status".into()) {
                        let message = "an output's `status` has enum = \"command_status\"";
                        self.error(&structure.file, here, message);
                    }
                }
            }
        }
    }

    fn variants(&mut self, command: &Command) {
        let input = self.description.structure(&command.input);
        let output = self.description.structure(&command.output);
        for variant in &command.variants {
            let place = format!("[{}] variants", command.name);
            let held = [output, input].into_iter().flatten().find_map(|structure| {
                structure.fields.iter().find(|field| field.name == variant.field)
            });
            match (held, self.description.structure(&variant.structure)) {
                (None, _) => {
                    let message =
                        format!("neither output nor input has a field `{}`", variant.field);
                    self.error(&command.file, place.clone(), message);
                }
                (_, None) => {
                    let message = format!("there is no structure [{}]", variant.structure);
                    self.harmless(&command.file, place.clone(), &message);
                }
                (Some(field), Some(structure)) => {
                    if !field.tail && field.span().width < structure.bytes * 8 {
                        let message =
                            format!("[{}] is larger than `{}`", structure.name, field.name);
                        self.error(&command.file, place.clone(), message);
                    }
                }
            }
            let mut inside = input;
            for part in variant.when.split('.') {
                let field = inside.and_then(|s| s.fields.iter().find(|f| f.name == part));
                if field.is_none() && input.is_some() {
                    let message = format!("the input has no field `{}`", variant.when);
                    self.error(&command.file, place.clone(), message);
                    break;
                }
                inside = field.and_then(|field| match &field.content {
                    Content::Struct(name) => self.description.structure(name),
                    _ => None,
                });
            }
            if variant.values.is_empty() {
                self.error(&command.file, place, "has no values");
            }
        }
    }

    fn opcodes(&mut self) {
        let mut seen: BTreeMap<u16, &str> = BTreeMap::new();
        for command in &self.description.commands {
            if let Some(other) = seen.insert(command.opcode, &command.name) {
                let message = format!("has the opcode 0x{:x} of [{other}]", command.opcode);
                self.error(&command.file, format!("[{}]", command.name), message);
            }
        }
    }

    /// An alias is a C identifier that leads to one entry, and not there already.
    fn aliases(&mut self) {
        let description = self.description;
        let structures = description.structures.iter().map(|s| (&s.file, &s.name, &s.aliases));
        let enums = description.enums.iter().map(|e| (&e.file, &e.name, &e.aliases));
        let commands = description.commands.iter().map(|c| (&c.file, &c.name, &c.aliases));
        for (file, name, aliases) in structures.chain(enums).chain(commands) {
            for (i, alias) in aliases.iter().enumerate() {
                let place = format!("[{name}] aliases");
                let found = find(description, alias);
                if !identifiers(alias).eq([alias.as_str()]) || alias.ends_with('*') {
                    let message = format!("`{alias}` is not a C identifier");
                    self.error(file, place, message);
                } else if let Some(other) =
                    found.targets.iter().find(|target| target.name().to_lowercase() != *name)
                {
                    let message = format!("`{alias}` is already a name of {}", other.name());
                    self.error(file, place, message);
                } else if aliases[..i].contains(alias) {
                    self.error(file, place, format!("`{alias}` is listed twice"));
                }
            }
        }
    }

    /// No structure may hold itself.
    fn recursion(&mut self) {
        for structure in &self.description.structures {
            let mut inside = vec![structure.name.as_str()];
            let mut seen = Vec::new();
            while let Some(name) = inside.pop() {
                for field in self.description.structure(name).iter().flat_map(|s| &s.fields) {
                    let Content::Struct(nested) = &field.content else { continue };
                    if *nested == structure.name {
                        let message =
                            format!("contains itself, through `{}` of [{name}]", field.name);
                        self.error(&structure.file, format!("[{}]", structure.name), message);
                        return;
                    }
                    if !seen.contains(&nested.as_str()) {
                        seen.push(nested);
                        inside.push(nested);
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
