//! `prm show NAME`: prints a page for an entry, field or value: bit diagram, field table with
//! confirmations, sources, users.

use std::fmt::Write as _;
use std::path::Path;

use verbless_prm::numbers::{CodeTable, Meaning, Reading, beyond, explain, readings};

use super::at::At;
use super::description::{
    Command, Content, Description, Enum, EnumValue, Field, Status, Structure,
};
use super::evidence::{Evidence, LEGEND};
use super::find::{Target, find, near};
use super::refusals;
use super::runtime::code_tables;

/// Width of a dword in the diagram: three columns per bit, one of them the bar between cells.
const COLUMNS: usize = 32 * 3 - 1;
/// The maximum number of listed candidates for a name.
const CANDIDATES: usize = 40;

/// Runs the task.
pub(crate) fn run(root: &Path, name: &str) -> crate::repository::Result {
    let description = super::check::load_sound(root)?;
    let evidence = Evidence::gather(root, &description)?;
    super::repository::print(&page(&description, &evidence, name)?)
}

/// The page of the entry with this name, or the list of entries if several have it.
pub(crate) fn page(
    description: &Description,
    evidence: &Evidence<'_>,
    name: &str,
) -> crate::repository::Result<String> {
    let mut out = String::new();
    let mut found = find(description, name);
    if found.targets.is_empty() {
        found.targets = called(description, evidence, name);
    }
    let tables = code_tables(description);
    let meanings = explain(tables, name).or_else(|| refusals::explain(name));
    match found.targets.as_slice() {
        [] if meanings.is_some() => {}
        [] if large_number(name).is_some() => {
            let value = large_number(name).unwrap_or_default();
            return Err(format!("prm/ has no entry `{name}`: {}", beyond(tables, value)).into());
        }
        [] => {
            let hint = match near(description, name, 8).as_slice() {
                [] => "names are as in prm/*.toml or Linux's headers: cq_context, create_cq, cqc, \
                       mlx5_cqe64, dbr_addr; numbers are opcodes, register ids and codes of \
                       messages: 0x400, 0x5003, 12"
                    .to_owned(),
                near => format!("near: {}", near.join(", ")),
            };
            return Err(format!("prm/ has no entry named `{name}`; {hint}").into());
        }
        [one] => target(&mut out, description, evidence, one),
        many => {
            let _ = writeln!(out, "`{name}` is one of {}; show one by its name here:", many.len());
            list(&mut out, many);
        }
    }
    if !found.others.is_empty() {
        let _ = writeln!(out, "\n`{name}` is also in the names of:");
        list(&mut out, &found.others);
    }
    // The page of a value already has its messages.
    let has_messages = |target: &Target<'_>| matches!(target, Target::Value(..));
    if let Some(meanings) = meanings
        && !found.targets.iter().any(has_messages)
    {
        let _ = writeln!(out, "{}{meanings}", if out.is_empty() { "" } else { "\n" });
    }
    Ok(out)
}

/// The fields that another description calls by a name.
fn called<'a>(
    description: &'a Description,
    evidence: &Evidence<'_>,
    name: &str,
) -> Vec<Target<'a>> {
    let field = |(structure, field): (&str, &str)| {
        let structure = description.structure(structure)?;
        let field = structure.fields.iter().find(|it| it.name == field)?;
        Some(Target::Field(structure, field))
    };
    evidence.called(name).into_iter().filter_map(field).collect()
}

/// The value of a name that is a number above 0xff.
fn large_number(name: &str) -> Option<u64> {
    // A name may consist of hexadecimal digits.
    name.starts_with(|c: char| c.is_ascii_digit()).then_some(())?;
    match readings(name).first()? {
        Reading::Hexadecimal(value) | Reading::Decimal(value) | Reading::Bare(value) => {
            Some(*value).filter(|value| *value > 0xff)
        }
        Reading::Negative(_) => None,
    }
}

fn list(out: &mut String, targets: &[Target<'_>]) {
    let shown = &targets[..targets.len().min(CANDIDATES)];
    let width = shown.iter().map(|target| target.name().len()).max().unwrap_or(0);
    for target in shown {
        let _ = writeln!(out, "  {:width$}  {}: {}", target.name(), target.kind(), target.doc());
    }
    if targets.len() > shown.len() {
        let _ = writeln!(out, "  and {} more", targets.len() - shown.len());
    }
}

fn target(
    out: &mut String,
    description: &Description,
    evidence: &Evidence<'_>,
    target: &Target<'_>,
) {
    match target {
        Target::Command(it) => {
            command(out, it);
            for name in [&it.input, &it.output] {
                if let Some(part) = description.structure(name) {
                    out.push('\n');
                    structure(out, description, evidence, part);
                }
            }
        }
        Target::Structure(it) => structure(out, description, evidence, it),
        Target::Enum(it) => enumeration(out, description, it),
        Target::Field(it, part) => field(out, description, evidence, it, part),
        Target::Value(e, part) => value(out, description, evidence, e, part),
    }
}

/// Prints a field and its enum or structure.
fn field(
    out: &mut String,
    description: &Description,
    evidence: &Evidence<'_>,
    structure: &Structure,
    field: &Field,
) {
    let Structure { name, file, .. } = structure;
    let _ = writeln!(out, "{name}.{} (field, {}, {file})", field.name, field.position());
    let _ = writeln!(out, "  {}", field.doc);
    let sources = field.sources.as_ref().unwrap_or(&structure.sources);
    let _ = writeln!(out, "\n  source: {}", sources.join("; "));
    if let Some(linux) = &field.linux {
        let _ = writeln!(out, "  in Linux: {linux}");
    }
    let confirmed = evidence.of(structure, field);
    let names: Vec<&str> = confirmed.names().collect();
    let _ = match names.as_slice() {
        [] => writeln!(out, "  confirmed by: no other description"),
        names => {
            writeln!(out, "  confirmed by: {}, {} ({LEGEND})", confirmed.counts(), names.join(", "))
        }
    };
    for (alias, by) in confirmed.aliases() {
        let _ = writeln!(out, "  called {alias} in: {}", by.join(", "));
    }
    for (by, why) in evidence.divergences(name, &field.name) {
        let _ = writeln!(out, "  elsewhere in {by}: {why}");
    }
    match &field.content {
        Content::Enum(name) => {
            if let Some(e) = description.enumeration(name) {
                out.push('\n');
                enumeration(out, description, e);
            }
        }
        Content::Struct(name) => {
            let _ = writeln!(out, "  holds: {name}");
        }
        Content::Number | Content::Bytes => {}
    }
}

/// Prints a value, and the structure that it selects in a command, such as a register's.
fn value(
    out: &mut String,
    description: &Description,
    evidence: &Evidence<'_>,
    e: &Enum,
    value: &EnumValue,
) {
    let EnumValue { name, value, doc, sources, .. } = value;
    let _ = writeln!(out, "{}.{name} (value {value:#x}, {})\n  {doc}", e.name, e.file);
    let _ = writeln!(out, "\n  source: {}", sources.as_ref().unwrap_or(&e.sources).join("; "));
    let _ = writeln!(out, "  the others: prm show {}", e.name);
    if let Some(called) = &e.called {
        let table = CodeTable::of_kind(code_tables(description), called);
        let _ = writeln!(out, "  occurs as {called} in:");
        for message in table.and_then(|it| it.get(*value)).iter().flat_map(Meaning::messages) {
            let _ = writeln!(out, "    {message}");
        }
    }
    let users = users(description, &e.name);
    if !users.is_empty() {
        let _ = writeln!(out, "  used by: {}", users.join(", "));
    }
    let held = description
        .commands
        .iter()
        .flat_map(|command| &command.variants)
        .find(|variant| variant.when.ends_with(&e.name) && variant.values.contains(value));
    if let Some(layout) = held.and_then(|variant| description.structure(&variant.structure)) {
        out.push('\n');
        structure(out, description, evidence, layout);
    }
}

fn command(out: &mut String, command: &Command) {
    let _ = writeln!(out, "{} (opcode {:#x})", command.name.to_uppercase(), command.opcode);
    let _ = writeln!(out, "  {}", command.doc);
    let devx = match command.devx.as_str() {
        "none" => "not passed",
        other => other,
    };
    let _ = writeln!(out, "  DevX: {devx}");
    if !command.states.is_empty() {
        let of = command.state.as_deref().unwrap_or_default();
        let _ = writeln!(out, "  legal in: {} ({of})", command.states.join(", "));
    }
    if !command.transitions.is_empty() {
        let _ = writeln!(out, "  transitions: {}", command.transitions.join(", "));
    }
    if let Some(capability) = &command.capability {
        let _ = writeln!(out, "  needs: {capability}");
    }
    for value in &command.op_mods {
        let devx = value.devx.as_ref().map(|devx| format!(" (DevX: {devx})"));
        let EnumValue { value, name, doc, .. } = value;
        let _ = writeln!(out, "  op_mod {value:#x} {name}: {doc}{}", devx.unwrap_or_default());
    }
    for Status { name, why, from } in &command.statuses {
        let from = if from == "reading" { "our reading" } else { from };
        let _ = writeln!(out, "  may return {name}: {why} ({from})");
    }
    for variant in &command.variants {
        let values: Vec<String> = variant.values.iter().map(|v| format!("{v:#x}")).collect();
        let _ = writeln!(
            out,
            "  {} is {} when {} is {}",
            variant.field,
            variant.structure,
            variant.when,
            values.join(" or ")
        );
    }
    let _ = writeln!(out, "  source: {}", command.sources.join("; "));
    also(out, &command.aliases);
}

fn structure(
    out: &mut String,
    description: &Description,
    evidence: &Evidence<'_>,
    structure: &Structure,
) {
    let kind = if structure.segment { "segment" } else { "structure" };
    let _ = writeln!(
        out,
        "{} ({kind}, {:#x} bytes, {})",
        structure.name, structure.bytes, structure.file
    );
    let _ = writeln!(out, "  {}\n", structure.doc);
    diagram(out, structure);
    out.push('\n');
    table(out, evidence, structure);
    let _ = writeln!(out, "\n  confirmed: {LEGEND}");
    let _ = writeln!(out, "  source: {}", structure.sources.join("; "));
    also(out, &structure.aliases);
    let users = users(description, &structure.name);
    if !users.is_empty() {
        let _ = writeln!(out, "  used by: {}", users.join(", "));
    }
}

/// Draws a line of boxes per dword, bit 31 at the left; draws the dwords of a long field once.
fn diagram(out: &mut String, structure: &Structure) {
    let mut cells: Vec<(u32, u32, String)> = Vec::new();
    for field in structure.fields.iter().filter(|f| !f.tail && !overlaid(structure, f)) {
        cells.push((field.start, field.span().end(), field.name.clone()));
    }
    for gap in structure.gaps() {
        cells.push((gap.start, gap.end(), String::new()));
    }
    cells.sort();
    let mut bits = String::new();
    for bit in (0..32).rev() {
        let edge = bit % 8 == 7 || bit % 8 == 0;
        let _ = if edge { write!(bits, "{bit:>3}") } else { write!(bits, "   ") };
    }
    let _ = writeln!(out, "       {bits}");
    let rule = format!("       +{}+", "-".repeat(COLUMNS));
    let mut dword = 0;
    while dword * 32 < structure.bytes * 8 {
        let (first, end) = (dword * 32, (dword * 32 + 32).min(structure.bytes * 8));
        let inside: Vec<&(u32, u32, String)> =
            cells.iter().filter(|c| c.0 < end && c.1 > first).collect();
        let mut line = String::new();
        for (start, stop, name) in inside.iter().map(|c| (c.0.max(first), c.1.min(end), &c.2)) {
            let room = (stop - start) as usize * 3 - 1;
            let name = if name.is_empty() { "·".repeat(room.min(1)) } else { name.clone() };
            let name: String = if name.chars().count() > room && room < 6 {
                name.chars().take(room).collect()
            } else if name.chars().count() > room {
                name.chars().take(room - 1).chain(['…']).collect()
            } else {
                name
            };
            let _ = write!(line, "|{name:^room$}");
        }
        let same = match inside.as_slice() {
            [one] if one.0 <= first => (one.1.min(structure.bytes * 8) - first) / 32,
            _ => 1,
        };
        let _ = writeln!(out, "{rule}");
        let _ = writeln!(out, "  0x{:03x}{line}|", dword * 4);
        if same > 2 {
            let label = format!("{} dwords in all", same);
            let _ = writeln!(out, "       |{label:^COLUMNS$}|");
        }
        dword += if same > 2 { same } else { 1 };
    }
    let _ = writeln!(out, "{rule}");
}

/// Whether a field overlaps an earlier one, so the diagram cannot show both.
fn overlaid(structure: &Structure, field: &Field) -> bool {
    structure.fields.iter().take_while(|other| other.name != field.name).any(|other| {
        !other.tail && other.start < field.span().end() && field.start < other.span().end()
    })
}

fn table(out: &mut String, evidence: &Evidence<'_>, structure: &Structure) {
    let head = ["at", "field", "holds", "confirmed", "what it is"].map(str::to_owned);
    let rows = structure.fields.iter().map(|field| {
        let mut doc = field.doc.clone();
        if let Some(sources) = &field.sources {
            let _ = write!(doc, " [{}]", sources.join("; "));
        }
        let position = if field.tail {
            format!("{}, to the end", At::of_field(field.start, 32).0)
        } else {
            field.position()
        };
        let by = evidence.of(structure, field).counts();
        [position, field.name.clone(), holds(field), by, doc]
    });
    let rows: Vec<[String; 5]> = [head].into_iter().chain(rows).collect();
    let width = |i: usize| rows.iter().map(|row| row[i].chars().count()).max().unwrap_or(0);
    let (position, name, holds, by) = (width(0), width(1), width(2), width(3));
    for row in &rows {
        let [at, field, held, confirmed, doc] = row;
        let line =
            format!("  {at:position$}  {field:name$}  {held:holds$}  {confirmed:by$}  {doc}");
        let _ = writeln!(out, "{}", line.trim_end());
    }
}

fn holds(field: &Field) -> String {
    let one = match &field.content {
        Content::Number => String::new(),
        Content::Enum(name) | Content::Struct(name) => name.clone(),
        Content::Bytes => "bytes".into(),
    };
    match (field.tail, field.array) {
        (true, _) => format!("{one}[]"),
        (_, true) => format!("{one}[{}]", field.count),
        _ => one,
    }
}

fn enumeration(out: &mut String, description: &Description, e: &Enum) {
    let _ = writeln!(out, "{} (enum, {} bits, {})\n  {}\n", e.name, e.bits, e.file, e.doc);
    let width = e.values.iter().map(|v| v.name.len()).max().unwrap_or(0);
    for value in &e.values {
        let _ = writeln!(out, "  {:#6x}  {:width$}  {}", value.value, value.name, value.doc);
    }
    let _ = writeln!(out, "\n  source: {}", e.sources.join("; "));
    also(out, &e.aliases);
    let users = users(description, &e.name);
    if !users.is_empty() {
        let _ = writeln!(out, "  used by: {}", users.join(", "));
    }
}

fn also(out: &mut String, aliases: &[String]) {
    if !aliases.is_empty() {
        let _ = writeln!(out, "  also called: {}", aliases.join(", "));
    }
}

/// The commands and structures that directly use a structure or enum.
pub(crate) fn users(description: &Description, name: &str) -> Vec<String> {
    let commands = description.commands.iter().filter(|command| {
        command.input == name
            || command.output == name
            || command.variants.iter().any(|v| v.structure == name)
    });
    let structures = description.structures.iter().filter(|structure| {
        structure.fields.iter().any(
            |field| matches!(&field.content, Content::Enum(n) | Content::Struct(n) if n == name),
        )
    });
    commands
        .map(|command| command.name.to_uppercase())
        .chain(structures.map(|structure| structure.name.clone()))
        .collect()
}

#[cfg(test)]
mod tests;
