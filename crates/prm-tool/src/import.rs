//! `prm import`: copies offsets from recorded facts to the tables, and keeps hand-written texts.
//!
//! A table names its C structure by `sources = ["linux: mlx5_ifc_cqc_bits"]`. Import adds missing
//! fields, corrects `at` and `bits` of those that differ, and rewrites the `reserved` list if the
//! gaps differ. A field that C names otherwise has `linux = "name"`; import adds it if the position
//! is the same. A field that C lacks has its own `sources`, and import leaves it alone. Import does
//! not add fields that `without` lists, nor fields whose bits others already cover (a union).

use std::path::{Path, PathBuf};

use clap::Args;
use toml_edit::{Array, DocumentMut, InlineTable, Item, Table, TableLike, Value};

use super::at::{At, Span};
use super::description::{Content, Description, Field, Problem, Structure, gaps};
use super::facts::{Facts, Layout, ifc_name};

/// Path of the recorded facts from the root of the repository.
pub(crate) const FACTS: &str = "prm/import/linux-7.2-mlx5_ifc.json";

/// Options of `prm import`.
#[derive(Args)]
pub struct Options {
    /// The facts: JSON of C structures with bit offsets.
    #[arg(long, value_name = "JSON")]
    from: Option<PathBuf>,
    /// Add a structure, as C_NAME:OUR_NAME or one name for both (cqc:cq_context, create_cq_in).
    #[arg(long, value_name = "C:OURS", requires = "file")]
    new: Vec<String>,
    /// Add a command with its opcode, input and output (create_cq).
    #[arg(long, value_name = "NAME", requires = "file")]
    command: Vec<String>,
    /// The TOML file that --new and --command append to; it is created if missing.
    #[arg(long, value_name = "TOML")]
    file: Option<PathBuf>,
    /// Record the registers of mstflint's register_access_table.adb as evidence; give it again for
    /// a further table, of switches for example.
    #[arg(long, value_name = "ADB")]
    adb: Vec<PathBuf>,
    /// Record a public description as evidence (dpdk, freebsd, …); the arguments are its files.
    #[arg(long, value_name = "NAME", requires = "version")]
    evidence: Option<String>,
    /// The commit or release of the files of --evidence.
    #[arg(long, value_name = "VERSION")]
    version: Option<String>,
    /// Only these structures, by our names; all if none is given. With --evidence, files.
    structures: Vec<String>,
}

/// Runs the task.
pub(crate) fn run(root: &Path, options: &Options) -> crate::repository::Result {
    if !options.adb.is_empty() {
        return super::adb::record(root, &options.adb);
    }
    if let Some(name) = &options.evidence {
        let files: Vec<PathBuf> = options.structures.iter().map(PathBuf::from).collect();
        let version = options.version.as_deref().unwrap_or_default();
        return super::evidence::table::record(root, name, version, &files);
    }
    let facts = Facts::read(&options.from.clone().unwrap_or_else(|| root.join(FACTS)))?;
    if let Some(file) = &options.file {
        let mut added = String::new();
        let description = Description::load(root)?;
        for pair in &options.new {
            let (theirs, ours) = pair.split_once(':').unwrap_or((pair, pair));
            added += &new_structure(&facts, &description, theirs, ours)?;
        }
        for name in &options.command {
            added += &new_command(&facts, &description, name)?;
        }
        let mut text = if file.exists() { std::fs::read_to_string(file)? } else { String::new() };
        if text.is_empty() {
            added = added.trim_start().to_owned();
        }
        text += &added;
        std::fs::write(file, text)?;
    }
    if options.new.is_empty() && options.command.is_empty() {
        import_all(root, &facts, &options.structures)?;
    }
    Ok(())
}

/// Updates the tables that name a C structure from the facts.
fn import_all(root: &Path, facts: &Facts, only: &[String]) -> crate::repository::Result {
    let description = Description::load(root)?;
    let mut problems: Vec<Problem> = description.problems.clone();
    for file in &description.files {
        let text = std::fs::read_to_string(root.join(file))?;
        let Ok(mut document) = text.parse::<DocumentMut>() else {
            continue; // loading has recorded the problem
        };
        import_file(file, &mut document, &description, facts, only, &mut problems);
        let new = document.to_string();
        if new != text {
            std::fs::write(root.join(file), new)?;
            println!("{file}: updated");
        }
    }
    if problems.is_empty() {
        return Ok(());
    }
    let lines: Vec<String> = problems.iter().map(|p| format!("  {p}")).collect();
    Err(format!("{} things to settle by hand:\n{}", lines.len(), lines.join("\n")).into())
}

fn import_file(
    file: &str,
    document: &mut DocumentMut,
    description: &Description,
    facts: &Facts,
    only: &[String],
    problems: &mut Vec<Problem>,
) {
    for structure in description.structures.iter().filter(|s| s.file == file) {
        if !only.is_empty() && !only.contains(&structure.name) {
            continue;
        }
        let Some(theirs) = ifc_name(&structure.sources) else { continue };
        let mut problem = |location: String, message: String| {
            problems.push(Problem { file: file.to_owned(), location, message, harmless: false });
        };
        let Some(layout) = facts.structs.get(theirs) else {
            problem(format!("[{}]", structure.name), format!("no {theirs} among the facts"));
            continue;
        };
        let Some(table) = document.get_mut(&structure.name).and_then(Item::as_table_mut) else {
            continue;
        };
        if !table.contains_key("fields") {
            table.insert("fields", Item::Table(Table::new()));
        }
        let Some(fields) = table.get_mut("fields").and_then(Item::as_table_like_mut) else {
            continue;
        };
        let mut spans: Vec<(String, Span)> =
            structure.fields.iter().map(|f| (f.name.clone(), f.span())).collect();
        let mut added = false;
        let mut renamed: Vec<&str> = Vec::new();
        for (name, span) in layout.named() {
            let known =
                structure.fields.iter().find(|f| f.linux.as_deref().unwrap_or(&f.name) == name);
            if let Some(field) = known {
                match correct(field, span, fields) {
                    Ok(()) => {
                        spans.iter_mut().filter(|s| s.0 == field.name).for_each(|s| s.1 = span);
                    }
                    Err(error) => problem(format!("[{}] {}", structure.name, field.name), error),
                }
                continue;
            }
            let same_span = structure.fields.iter().find(|field| {
                field.span() == span
                    && field.sources.is_none()
                    && field.linux.is_none()
                    && !layout.fields.contains_key(&field.name)
            });
            if let Some(field) = same_span {
                if let Some(table) = fields.get_mut(&field.name).and_then(Item::as_table_like_mut) {
                    append(table, "linux", name);
                }
                renamed.push(&field.name);
                continue;
            }
            let ours = structure.fields.iter().map(Field::span);
            let inside = |gap: &Span| gap.start < span.end() && span.start < gap.end();
            let covered = !gaps(span.end(), ours).iter().any(inside);
            let left_out = structure.without.iter().any(|left_out| left_out == name);
            if left_out || (covered && span.width > 0) || fields.contains_key(name) {
                continue;
            }
            if span.end() > structure.bytes * 8 {
                problem(
                    format!("[{}]", structure.name),
                    format!(
                        "{theirs} has `{name}` past the end of the table; correct `bytes`, or add \
                         it to `without`"
                    ),
                );
                continue;
            }
            fields.insert(name, Item::Value(Value::InlineTable(new_field(name, span, layout))));
            spans.push((name.to_owned(), span));
            added = true;
        }
        for field in &structure.fields {
            let theirs_name = field.linux.as_deref().unwrap_or(&field.name);
            if field.sources.is_none()
                && !layout.fields.contains_key(theirs_name)
                && !renamed.contains(&field.name.as_str())
            {
                problem(
                    format!("[{}] {}", structure.name, field.name),
                    format!(
                        "{theirs} has no `{theirs_name}`; add linux = \"its name there\", or the \
                         field's own sources"
                    ),
                );
            }
        }
        if added {
            sort_fields(table, &spans);
        }
        write_reserved(table, structure, spans.iter().map(|&(_, span)| span));
    }
}

/// Corrects `at` and `bits` of a field whose facts differ.
fn correct(field: &Field, span: Span, fields: &mut dyn TableLike) -> Result<(), String> {
    if field.sources.is_some() || (field.start == span.start && field.span().width == span.width) {
        return Ok(());
    }
    let table = fields
        .get_mut(&field.name)
        .and_then(Item::as_table_like_mut)
        .ok_or("is not a table of its own")?;
    let (at, bits) = At::of_field(span.start, span.width);
    if field.tail != (span.width == 0) {
        return Err("the facts and the table disagree about tail = true".into());
    }
    let sized = field.array || matches!(field.content, Content::Struct(_) | Content::Bytes);
    if sized && (field.span().width == span.width || field.tail) {
        // struct, bytes or bits give its size; only an array of bits in `at` needs both ends.
        let within = field.content == Content::Number && !table.contains_key("bits");
        let width = if within { field.width } else { 64 };
        table.insert("at", string_item(&At::of_field(span.start, width).0.to_string()));
        return Ok(());
    }
    if sized && !(field.content == Content::Bytes && table.contains_key("bits")) {
        return Err(format!(
            "holds {} bits, but the facts say {}; correct its struct, bytes or count",
            field.span().width,
            span.width
        ));
    }
    table.insert("at", string_item(&at.to_string()));
    match bits {
        Some(bits) => {
            table.insert("bits", Item::Value(i64::from(bits).into()));
        }
        None => {
            table.remove("bits");
        }
    }
    Ok(())
}

/// Sorts the fields in memory order; comments stay with the field below them.
fn sort_fields(table: &mut Table, spans: &[(String, Span)]) {
    let position = |key: &str| spans.iter().find(|(name, _)| name == key).map(|(_, span)| *span);
    if let Some(fields) = table.get_mut("fields").and_then(Item::as_table_mut) {
        fields.sort_values_by(|a, _, b, _| position(a.get()).cmp(&position(b.get())));
    }
}

/// Rewrites `reserved` if it is not exactly the gaps.
fn write_reserved(table: &mut Table, structure: &Structure, spans: impl Iterator<Item = Span>) {
    let bits = structure.bytes * 8;
    let wanted = gaps(bits, spans);
    let named = gaps(bits, structure.reserved.iter().map(|gap| gap.span()));
    if gaps(bits, named.into_iter()) == wanted {
        return;
    }
    let positions = wanted.into_iter().flat_map(At::of_gap).map(|at| at.to_string());
    let new: Array = positions.collect();
    if new.is_empty() {
        table.remove("reserved");
    } else {
        table.insert("reserved", Item::Value(Value::Array(new)));
    }
}

/// The text of a new structure's table, docs empty.
fn new_structure(
    facts: &Facts,
    description: &Description,
    theirs: &str,
    ours: &str,
) -> crate::repository::Result<String> {
    if description.structure(ours).is_some() {
        return Err(format!("there is already a structure [{ours}]").into());
    }
    let theirs = match theirs.starts_with("mlx5_ifc_") {
        true => theirs.to_owned(),
        false => format!("mlx5_ifc_{theirs}_bits"),
    };
    let Some(layout) = facts.structs.get(&theirs) else {
        let core = theirs.trim_start_matches("mlx5_ifc_").trim_end_matches("_bits");
        let near: Vec<&str> =
            facts.structs.keys().filter(|k| k.contains(core)).map(String::as_str).collect();
        return Err(format!("no {theirs} among the facts; near: {}", near.join(", ")).into());
    };
    let named = layout.named();
    let reserved: Vec<String> = gaps(layout.bits, named.iter().map(|&(_, span)| span))
        .into_iter()
        .flat_map(At::of_gap)
        .map(|at| format!("\"{at}\""))
        .collect();
    let mut text = format!("\n[{ours}]\nbytes = 0x{:02x}\ndoc = \"\"\n", layout.bits / 8);
    text += &format!("sources = [\"linux: {theirs}\"]\n");
    if !reserved.is_empty() {
        text += &format!("reserved = [{}]\n", reserved.join(", "));
    }
    text += &format!("[{ours}.fields]\n");
    let longest = named.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    for (name, span) in named {
        text += &format!("{name:longest$} = {}\n", new_field(name, span, layout));
    }
    Ok(text)
}

/// The text of a new command's three tables.
fn new_command(
    facts: &Facts,
    description: &Description,
    name: &str,
) -> crate::repository::Result<String> {
    let constant = format!("MLX5_CMD_OP_{}", name.to_uppercase());
    let opcode = facts.enums.get(&constant).ok_or(format!("no {constant} among the facts"))?;
    let devx = ["create", "query", "modify", "destroy"].into_iter().find(|v| name.starts_with(v));
    let mut text = format!("\n[{name}]\nkind = \"command\"\nopcode = 0x{opcode:x}\ndoc = \"\"\n");
    text += &format!("input = \"{name}_in\"\noutput = \"{name}_out\"\n");
    text += &format!("devx = \"{}\"\nstatuses = {{}}\n", devx.unwrap_or("none"));
    text += &format!("sources = [\"linux: {constant}\"]\n");
    for part in ["in", "out"] {
        let name = format!("{name}_{part}");
        text += &new_structure(facts, description, &name, &name)?;
    }
    Ok(text)
}

/// `{ at = …, bits = …, doc = "" }`; the common fields of commands have docs.
fn new_field(name: &str, span: Span, layout: &Layout) -> InlineTable {
    let mut table = InlineTable::new();
    let tail = span.width == 0;
    let (at, bits) = At::of_field(span.start, if tail { 32 } else { span.width });
    table.insert("at", at.to_string().into());
    if tail {
        table.insert("tail", true.into());
        table.insert("bits", (if name == "pas" || name == "mtt" { 64 } else { 32 }).into());
    } else if let Some(bits) = bits {
        table.insert("bits", i64::from(bits).into());
    }
    let overlaps = layout
        .named()
        .iter()
        .any(|&(other, o)| other != name && o.start < span.end() && span.start < o.end());
    if overlaps {
        table.insert("overlay", true.into());
    }
    let has = |name: &str, span: (u32, u32)| layout.fields.get(name) == Some(&span);
    let doc = match name {
        "status" if has("status", (0, 8)) && has("syndrome", (32, 32)) => {
            table.insert("enum", "command_status".into());
            "Outcome of the command."
        }
        "syndrome" if has("status", (0, 8)) => "Firmware's code for the reason of a failure.",
        "opcode" if has("opcode", (0, 16)) => "Opcode of the command.",
        "uid" if has("uid", (16, 16)) => {
            "User context that the command acts for; the kernel stamps it under DevX."
        }
        "op_mod" if has("op_mod", (48, 16)) => "Modifier of the opcode.",
        _ => "",
    };
    table.insert("doc", doc.into());
    table
}

/// Adds `key = "text"` at the end of a table, without a space before the comma.
fn append(table: &mut dyn TableLike, key: &str, text: &str) {
    if let Some(value) = table.iter_mut().last().and_then(|(_, item)| item.as_value_mut()) {
        value.decor_mut().set_suffix("");
    }
    table.insert(key, string_item(text));
    if let Some(value) = table.get_mut(key).and_then(Item::as_value_mut) {
        value.decor_mut().set_suffix(" ");
    }
}

fn string_item(text: &str) -> Item {
    Item::Value(text.into())
}

#[cfg(test)]
mod tests;
