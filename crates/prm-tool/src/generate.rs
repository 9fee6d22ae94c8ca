//! `prm generate`: generates crates/prm/src/generated from the description, and the model's
//! profiles as Rust, both formatted.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command as Process, Stdio};

use super::check;
use super::description::{
    Command, Content, Description, Enum, EnumValue, Field, Status, Structure,
};
use super::find::prefixes;
use super::names::{method_name, type_name, unsigned};

pub(crate) mod hot;
mod narrow;
mod profiles;

/// Directory of the generated files, from the root of the repository.
const DIRECTORY: &str = "crates/prm/src/generated";

/// An optional family of the description.
struct Feature {
    name: &'static str,
    /// Its files without `.toml`.
    files: &'static [&'static str],
    /// Features of the files to which they refer.
    needs: &'static [&'static str],
}

/// The optional families. The other files are always compiled: every driver needs them.
const FEATURES: &[Feature] = &[
    Feature { name: "dpa", files: &["dpa_event", "dpa_process", "dpa_thread"], needs: &[] },
    Feature {
        name: "kernel",
        files: &["eq", "eqe", "init", "multicast", "pd", "verbs"],
        needs: &[],
    },
    Feature {
        name: "offloads",
        files: &["crypto", "device_memory", "regex", "virtio", "wqe_offload", "xrq"],
        needs: &[],
    },
    Feature { name: "packets", files: &["packet"], needs: &[] },
    Feature { name: "ports", files: &["port_counters", "ports"], needs: &["registers"] },
    Feature { name: "qos", files: &["qos"], needs: &[] },
    Feature { name: "queues", files: &["cqe_form", "dct", "flow", "rqsq"], needs: &[] },
    Feature { name: "registers", files: &["register"], needs: &[] },
    Feature {
        name: "steering",
        files: &["flex_parser", "ste", "steering", "wqe_steering"],
        needs: &["queues"],
    },
    Feature { name: "virtualization", files: &["lag_control", "virtualization"], needs: &[] },
];

/// The feature that compiles a file; `None` if it is always compiled.
fn feature(file: &str) -> Option<&'static Feature> {
    let stem = stem(file);
    FEATURES.iter().find(|feature| feature.files.contains(&&*stem))
}

/// The feature of `other`'s file, if `file` is compiled without it: an item of `file` that uses
/// `other` then needs the feature.
pub(crate) fn missing_feature(file: &str, other: &str) -> Option<&'static str> {
    let (own, wanted) = (feature(file), feature(other)?.name);
    let has = own.is_some_and(|own| own.name == wanted || own.needs.contains(&wanted));
    (!has).then_some(wanted)
}

/// The `cfg` attribute of a feature.
fn attribute(feature: &str) -> String {
    format!("#[cfg(feature = {feature:?})]\n")
}

/// The `cfg` attribute for the items of a file; empty if it is always compiled.
fn gate(file: &str) -> String {
    feature(file).map_or_else(String::new, |feature| attribute(feature.name))
}

/// Runs the task.
pub(crate) fn run(root: &Path) -> crate::repository::Result {
    let done = write(root, &super::check::load_sound(root)?)?;
    done.iter().for_each(|line| println!("{line}"));
    Ok(())
}

/// Writes changed files, removes files that no table generates, and returns a line about each.
fn write(root: &Path, description: &Description) -> crate::repository::Result<Vec<String>> {
    for directory in [DIRECTORY, profiles::DIRECTORY] {
        std::fs::create_dir_all(root.join(directory))?;
    }
    let files = files(root, description)?;
    let mut done = Vec::new();
    for path in existing(root)? {
        if !files.contains_key(&path) {
            std::fs::remove_file(root.join(&path))?;
            done.push(format!("{path}: removed"));
        }
    }
    for (name, text) in &files {
        let path = root.join(name);
        if std::fs::read_to_string(&path).ok().as_ref() != Some(text) {
            std::fs::write(&path, text)?;
            done.push(format!("{name}: written"));
        }
    }
    let texts = check::all(description).len();
    if texts > 0 {
        done.push(format!("{texts} texts are still missing; `cargo xtask prm check` lists them"));
    }
    Ok(done)
}

/// One line for each generated file that differs from the description.
pub(crate) fn stale(
    root: &Path,
    description: &Description,
) -> crate::repository::Result<Vec<String>> {
    let files = files(root, description)?;
    let mut stale = Vec::new();
    for name in existing(root)? {
        if !files.contains_key(&name) {
            stale.push(format!("{name}: no table generates it; run `cargo xtask prm generate`"));
        }
    }
    for (name, text) in &files {
        if std::fs::read_to_string(root.join(name)).ok().as_ref() != Some(text) {
            stale.push(format!("{name}: is stale; run `cargo xtask prm generate`"));
        }
    }
    Ok(stale)
}

/// The files in the directories of generated files, as paths from the root.
fn existing(root: &Path) -> crate::repository::Result<Vec<String>> {
    let mut names = Vec::new();
    for directory in [DIRECTORY, profiles::DIRECTORY] {
        if !root.join(directory).exists() {
            continue;
        }
        for entry in std::fs::read_dir(root.join(directory))? {
            names.push(format!("{directory}/{}", entry?.file_name().to_string_lossy()));
        }
    }
    Ok(names)
}

/// Every generated file, formatted, by its path from the root.
fn files(
    root: &Path,
    description: &Description,
) -> crate::repository::Result<BTreeMap<String, String>> {
    let mut texts = vec![("mod".to_owned(), module(description))];
    texts.push(("hot".to_owned(), hot::module(description)));
    texts.extend(description.files.iter().map(|file| (stem(file), one_file(description, file))));
    texts.push(("numbers".to_owned(), numbers(description)));
    let mut names: Vec<String> =
        texts.iter().map(|(name, _)| format!("{DIRECTORY}/{name}.rs")).collect();
    for (name, text) in profiles::modules(root, description)? {
        names.push(format!("{}/{name}.rs", profiles::DIRECTORY));
        texts.push((name, text));
    }
    let formatted = rustfmt(root, texts.into_iter().map(|(_, text)| text).collect())?;
    Ok(names.into_iter().zip(formatted).collect())
}

/// `prm/dpa/thread.toml` as `dpa_thread`.
fn stem(file: &str) -> String {
    file.trim_start_matches("prm/").trim_end_matches(".toml").replace(['/', '-'], "_")
}

/// Formats all texts, two at a time.
fn rustfmt(root: &Path, texts: Vec<String>) -> crate::repository::Result<Vec<String>> {
    let mut formatted = Vec::new();
    for pair in texts.chunks(2) {
        let results: Vec<Result<String, String>> = std::thread::scope(|scope| {
            let threads: Vec<_> =
                pair.iter().map(|text| scope.spawn(|| rustfmt_one(root, text))).collect();
            threads.into_iter().map(|t| t.join().expect("formatting does not panic")).collect()
        });
        for result in results {
            formatted.push(narrow::narrow(&result?));
        }
    }
    Ok(formatted)
}

fn rustfmt_one(root: &Path, text: &str) -> Result<String, String> {
    let mut process = Process::new("rustfmt")
        .arg("--config-path")
        .arg(root)
        .args(["--edition", "2024"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| {
            format!("rustfmt: {error}; install it with `rustup component add rustfmt`")
        })?;
    let mut stdin = process.stdin.take().expect("stdin is piped");
    let output = std::thread::scope(|scope| {
        scope.spawn(move || stdin.write_all(text.as_bytes()));
        process.wait_with_output()
    })
    .map_err(|error| format!("rustfmt: {error}"))?;
    if !output.status.success() {
        let path = std::env::temp_dir().join("prm-generate-failed.rs");
        let _ = std::fs::write(&path, text);
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        return Err(format!(
            "the generated code is not valid Rust ({}): {message}",
            path.display()
        ));
    }
    String::from_utf8(output.stdout).map_err(|error| error.to_string())
}

fn module(description: &Description) -> String {
    let mut out =
        "//! Generated by `cargo xtask prm generate` from prm/; do not edit.\n\n".to_owned();
    out += "use crate::macros::prelude::*;\n\n";
    for file in &description.files {
        // The traits of all commands refer to the statuses in this module.
        let visible = if stem(file) == "command" { "pub(crate) " } else { "" };
        let _ = writeln!(out, "{}{visible}mod {};", gate(file), stem(file));
    }
    out.push_str("#[cfg(feature = \"dump\")]\nmod numbers;\npub mod hot;\n\n");
    for file in &description.files {
        let _ = writeln!(out, "{}pub use {}::*;", gate(file), stem(file));
    }
    let hot = description.structures.iter().filter(|structure| structure.hot);
    for (gate, names) in hot::by_gate(hot) {
        let names: Vec<String> = names.into_iter().collect();
        let _ = writeln!(out, "{gate}pub use hot::{{{}}};", names.join(", "));
    }
    out.push_str("#[cfg(feature = \"dump\")]\npub use numbers::NUMBERS;\n");
    if let Some(opcode) = description.enums.iter().find(|e| e.file.is_empty()) {
        enumeration(&mut out, opcode);
    }
    out += "\n/// Every structure, sorted by name.\npub static STRUCTURES: &[&StructInfo] = &[\n";
    let mut structures: Vec<_> = description.structures.iter().collect();
    structures.sort_by_key(|s| &s.name);
    for Structure { name, file, .. } in structures {
        let _ = writeln!(out, "{}{}::INFO,", gate(file), type_name(name));
    }
    out += "];\n\n/// Every enum, sorted by name.\npub static ENUMS: &[&EnumInfo] = &[\n";
    let mut enums: Vec<_> = description.enums.iter().collect();
    enums.sort_by_key(|e| &e.name);
    for Enum { name, file, .. } in enums {
        let _ = writeln!(out, "{}{}::INFO,", gate(file), type_name(name));
    }
    out +=
        "];\n\n/// Every command, sorted by opcode.\npub static COMMANDS: &[&CommandInfo] = &[\n";
    let mut commands: Vec<&Command> = description.commands.iter().collect();
    commands.sort_by_key(|c| c.opcode);
    for command in commands {
        let _ = writeln!(out, "{}&{},", gate(&command.file), command.name.to_uppercase());
    }
    out += "];\n\n/// DevX methods that differ from the command's: opcode, op_mod, ";
    out += "method.\n";
    out += "pub(crate) static DEVX_OF_OP_MODS: &[(u16, u16, crate::Devx)] = &[\n";
    for command in &description.commands {
        for op_mod in &command.op_mods {
            let Some(devx) = &op_mod.devx else { continue };
            let (opcode, value) = (command.opcode, literal(op_mod.value));
            let _ = writeln!(out, "({opcode:#x}, {value}, crate::Devx::{}),", type_name(devx));
        }
    }
    out += "];\n";
    out
}

/// The text of `numbers.rs`.
fn numbers(description: &Description) -> String {
    let mut out =
        "//! Generated by `cargo xtask prm generate` from prm/; do not edit.\n\n".to_owned();
    out += "use crate::numbers::{Code, CodeTable};\n\n";
    out += "/// The error codes that messages of drivers and programs show.\n";
    out += "pub static NUMBERS: &[CodeTable] = &[\n";
    for e in &description.enums {
        let Some(called) = &e.called else { continue };
        let _ = writeln!(out, "CodeTable {{ kind: {called:?}, decimal: {}, ", e.decimal);
        let _ = writeln!(out, "c_prefixes: &{:?}, messages: &{:?}, ", prefixes(e), e.shown_in);
        out += "codes: &[\n";
        for EnumValue { name, value, says, doc, .. } in &e.values {
            let value = literal(*value);
            let _ = writeln!(
                out,
                "Code {{ value: {value}, name: {name:?}, texts: &{says:?}, doc: {doc:?} }},"
            );
        }
        out += "] },\n";
    }
    out += "];\n";
    out
}

pub(super) fn one_file(description: &Description, file: &str) -> String {
    let mut out =
        format!("//! Generated by `cargo xtask prm generate` from {file}; do not edit.\n\n");
    for (other, names) in uses(description, file) {
        let names: Vec<String> = names.into_iter().map(|name| type_name(&name)).collect();
        // Only variants of commands may lack the feature.
        let gate = missing_feature(file, &other).map(attribute).unwrap_or_default();
        let _ = writeln!(out, "{gate}use super::{}::{{{}}};", stem(&other), names.join(", "));
    }
    out.push_str("use crate::macros::prelude::*;\n");
    for e in description.enums.iter().filter(|e| e.file == file) {
        enumeration(&mut out, e);
    }
    for command in description.commands.iter().filter(|c| c.file == file) {
        command_info(&mut out, description, command);
    }
    for structure in description.structures.iter().filter(|s| s.file == file) {
        view(&mut out, description, structure);
    }
    out
}

/// The file of [`hot`], as if a table had generated it.
const HOT: &str = "prm/hot.toml";

/// Names that a file's structures and commands use from other files, by file.
fn uses(description: &Description, file: &str) -> BTreeMap<String, BTreeSet<String>> {
    let mut named = BTreeSet::new();
    for structure in description.structures.iter().filter(|s| s.file == file) {
        for field in &structure.fields {
            if let Content::Enum(name) | Content::Struct(name) = description.content(field) {
                named.insert(name);
            }
        }
    }
    let own = description.structures.iter().filter(|s| s.file == file && s.hot);
    named.extend(own.map(|s| &s.name));
    for command in description.commands.iter().filter(|c| c.file == file) {
        named.extend([&command.input, &command.output]);
        named.extend(command.variants.iter().map(|variant| &variant.structure));
    }
    let mut uses: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for name in named {
        let home = match (description.structure(name), description.enumeration(name)) {
            (Some(structure), _) if structure.hot => HOT,
            (Some(structure), _) => &structure.file,
            (None, Some(e)) => &e.file,
            (None, None) => continue,
        };
        if home != file {
            uses.entry(home.to_owned()).or_default().insert(name.clone());
        }
    }
    uses
}

fn enumeration(out: &mut String, e: &Enum) {
    let (name, repr) = (type_name(&e.name), unsigned(e.bits));
    out.push_str("\nenumeration! {\n");
    doc_with_sources(out, "    ", &e.doc, &e.name, &e.sources);
    let _ = writeln!(out, "    pub struct {name}(pub {repr}) = {:?}, {} bits {{", e.name, e.bits);
    for value in &e.values {
        doc(out, "        ", &value.doc, &value.name);
        let _ = writeln!(out, "        {} = {},", value.name, literal(value.value));
    }
    let model: Vec<&EnumValue> = e.values.iter().filter(|value| e.is_model_only(value)).collect();
    let model = join(model.iter().map(|value| literal(value.value)));
    let model = if model.is_empty() { model } else { format!(" model [{model}]") };
    let _ = writeln!(out, "    }}{model}\n}}");
}

fn literal(value: u64) -> String {
    if value < 10 { value.to_string() } else { format!("{value:#x}") }
}

fn command_info(out: &mut String, description: &Description, command: &Command) {
    let upper = command.name.to_uppercase();
    let (input, output) = (type_name(&command.input), type_name(&command.output));
    out.push('\n');
    doc_with_sources(out, "", &command.doc, &upper, &command.sources);
    let _ = writeln!(out, "pub static {upper}: CommandInfo = CommandInfo {{");
    let _ = writeln!(out, "name: {upper:?}, opcode: {:#x},", command.opcode);
    let _ = writeln!(out, "input: {input}::INFO, output: {output}::INFO,");
    let _ = writeln!(out, "devx: Devx::{},", type_name(&command.devx));
    let op_mods = command.op_mods.iter().map(|v| format!("({:?}, {})", v.name, literal(v.value)));
    let _ = writeln!(out, "op_mods: &[{}],", join(op_mods));
    let _ = writeln!(out, "states: &{:?}, capability: {:?},", command.states, command.capability);
    let statuses = description.enumeration("command_status");
    let rules = command.statuses.iter().filter_map(|Status { name, why, .. }| {
        let value = statuses?.values.iter().find(|v| v.name == *name)?.value;
        Some(format!("StatusRule {{ status: {}, name: {name:?}, why: {why:?} }}", literal(value)))
    });
    let _ = writeln!(out, "statuses: &[{}],", join(rules));
    let known = command
        .variants
        .iter()
        .filter_map(|v| description.structure(&v.structure).map(|structure| (v, &structure.file)));
    let variants = known.map(|(v, file)| {
        format!(
            "{}Variant {{ field: {:?}, when: {:?}, values: &{:?}, info: {}::INFO }}",
            missing_feature(&command.file, file).map(attribute).unwrap_or_default(),
            v.field,
            v.when,
            v.values,
            type_name(&v.structure)
        )
    });
    let _ = writeln!(out, "variants: &[{}],", join(variants));
    let _ = writeln!(out, "sources: &{:?},\n}};", command.sources);
    let _ = writeln!(out, "\ncommand!({input} -> {output}, {upper});");
    if !command.op_mods.is_empty() {
        let _ = writeln!(out, "\nimpl {input} {{");
        for EnumValue { name, value, doc: text, .. } in &command.op_mods {
            doc(out, "", &format!("`op_mod`: {text}"), name);
            let _ = writeln!(out, "pub const {name}: u16 = {};", literal(*value));
        }
        out.push_str("}\n");
    }
}

fn join(items: impl Iterator<Item = String>) -> String {
    items.collect::<Vec<_>>().join(", ")
}

fn view(out: &mut String, description: &Description, structure: &Structure) {
    let name = type_name(&structure.name);
    let bytes = structure.bytes;
    if structure.hot {
        let _ = writeln!(out, "\nview! {{\n    {name}, {bytes:#x} bytes = {:?} {{", structure.name);
    } else {
        out.push_str("\nstructure! {\n");
        doc_with_sources(out, "    ", &structure.doc, &structure.name, &structure.sources);
        let line = format!("{name}, {name}Layout, {bytes:#x} bytes = {:?}", structure.name);
        let _ = writeln!(out, "    {line} {{");
    }
    let _ = writeln!(out, "        sources: {:?};", structure.sources);
    let gaps = structure.gaps().into_iter().map(|gap| format!("({}, {})", gap.start, gap.width));
    let _ = writeln!(out, "        reserved: [{}];", wrapped(gaps.collect()));
    for field in &structure.fields {
        line(out, description, field);
    }
    out.push_str("    }\n}\n");
    let output = description.commands.iter().any(|command| command.output == structure.name);
    if output {
        let _ = writeln!(out, "\nimpl CommandOutput for {name} {{}}");
    }
}

/// A list's items, on one line or several.
fn wrapped(items: Vec<String>) -> String {
    let line = items.join(", ");
    if line.len() <= 80 {
        return line;
    }
    let lines: Vec<String> =
        items.chunks(7).map(|chunk| format!("            {},\n", chunk.join(", "))).collect();
    format!("\n{}        ", lines.concat())
}

/// A field's doc, and the macro line for its accessors and its reflection.
fn line(out: &mut String, description: &Description, field: &Field) {
    let about = format!("{} `{}`", full_stop(&field.doc), field.position());
    let sources = field.sources.as_deref().unwrap_or(&[]);
    doc_with_sources(out, "        ", about.trim(), &field.name, sources);
    let (start, width) = (field.start, field.width);
    let (mut setter, mut kind) = match description.content(field) {
        Content::Number if width == 1 => (format!("set_{}", field.name), format!("flag({start})")),
        Content::Number => {
            let repr = unsigned(width);
            (format!("set_{}", field.name), format!("number({repr}, {start}, {width})"))
        }
        Content::Enum(e) => {
            let repr = unsigned(description.enumeration(e).map_or(width, |e| e.bits));
            let kind = format!("named({}({repr}), {start}, {width})", type_name(e));
            (format!("set_{}", field.name), kind)
        }
        Content::Bytes => {
            (format!("set_{}", field.name), format!("bytes({:#x}, {start})", width / 8))
        }
        Content::Struct(nested) => {
            (format!("{}_mut", field.name), format!("nested({}, {start})", type_name(nested)))
        }
    };
    if field.tail {
        setter = format!("{}_OFFSET", field.name.to_uppercase());
        kind = format!("tail({kind})");
    }
    if field.array {
        let _ = write!(kind, " [{}]", field.count);
    }
    if field.overlay {
        kind.push_str(" overlay");
    }
    if field.is_model_only() {
        kind.push_str(" model_only");
    }
    let _ = writeln!(out, "        {} {setter}: {kind};", method_name(&field.name));
}

fn full_stop(text: &str) -> String {
    let text = text.trim();
    if text.is_empty() || text.ends_with(['.', '!', '?', ':']) {
        text.to_owned()
    } else {
        format!("{text}.")
    }
}

/// A doc comment of `text`, or of the name if the text is empty.
fn doc(out: &mut String, indent: &str, text: &str, name: &str) {
    let text = if text.trim().is_empty() { format!("`{name}`.") } else { markdown(text.trim()) };
    let mut line = String::new();
    for word in text.split_whitespace() {
        if !line.is_empty() && indent.len() + 4 + line.len() + 1 + word.len() > 100 {
            let _ = writeln!(out, "{indent}/// {line}");
            line.clear();
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    let _ = writeln!(out, "{indent}/// {line}");
}

fn doc_with_sources(out: &mut String, indent: &str, text: &str, name: &str, sources: &[String]) {
    doc(out, indent, text, name);
    if !sources.is_empty() {
        let _ = writeln!(out, "{indent}///");
        let sources: Vec<&str> = sources.iter().map(String::as_str).collect();
        doc(out, indent, &full_stop(&format!("Source: {}", sources.join("; "))), name);
    }
}

/// Converts `text` for rustdoc: escapes its special characters, and makes links of addresses.
fn markdown(text: &str) -> String {
    let mut out = String::new();
    for (i, part) in text.split('`').enumerate() {
        if i > 0 {
            out.push('`');
        }
        if i % 2 == 1 {
            out.push_str(part);
            continue;
        }
        let mut words = part.split(' ').peekable();
        while let Some(word) = words.next() {
            let at = word.find("https://").or_else(|| word.find("http://"));
            match at {
                Some(at) => {
                    let url = word[at..].trim_end_matches([',', '.', ';', ')', ']', ':']);
                    let _ = write!(out, "{}<{url}>{}", &word[..at], &word[at + url.len()..]);
                }
                None => {
                    for c in word.chars() {
                        if matches!(c, '[' | ']' | '<' | '>' | '*' | '\\')
                            || (c == '_' && is_edge(word))
                        {
                            out.push('\\');
                        }
                        out.push(c);
                    }
                }
            }
            if words.peek().is_some() {
                out.push(' ');
            }
        }
    }
    out
}

/// Whether a word begins or ends with `_`, Markdown's mark of emphasis.
fn is_edge(word: &str) -> bool {
    word.starts_with('_') || word.ends_with('_')
}

#[cfg(test)]
mod tests;
