//! `prm show NAME`: one entry as a page of text: bit diagram, field table, sources, users.

use std::fmt::Write as _;
use std::path::Path;

use super::description::{Command, Content, Description, Enum, Field, Structure};
use super::place::Place;

/// Width of a dword in the diagram: three columns per bit, one of them the bar between cells.
const COLUMNS: usize = 32 * 3 - 1;

/// Runs the task.
pub(crate) fn run(root: &Path, name: &str) -> crate::Result {
    let description = super::load_sound(root)?;
    super::print(&page(&description, name)?)
}

/// The page of a structure, enum or command by its name, or of a command by its opcode.
pub(crate) fn page(description: &Description, name: &str) -> crate::Result<String> {
    let lower = name.to_lowercase();
    let mut out = String::new();
    let opcode = match lower.strip_prefix("0x") {
        Some(hex) => u16::from_str_radix(hex, 16).ok(),
        None => lower.parse().ok(),
    };
    let command = description.commands.iter().find(|c| c.name == lower || Some(c.opcode) == opcode);
    if let Some(command) = command {
        self::command(&mut out, command);
        for name in [&command.input, &command.output] {
            if let Some(part) = description.structure(name) {
                out.push('\n');
                structure(&mut out, description, part);
            }
        }
    } else if let Some(found) = description.structure(&lower) {
        structure(&mut out, description, found);
    } else if let Some(found) = description.enumeration(&lower) {
        enumeration(&mut out, description, found);
    } else {
        let names = (description.structures.iter().map(|s| &s.name))
            .chain(description.enums.iter().map(|e| &e.name))
            .chain(description.commands.iter().map(|c| &c.name));
        let near: Vec<&str> =
            names.map(String::as_str).filter(|other| other.contains(&lower)).take(12).collect();
        let hint = match near.as_slice() {
            [] => "names are as in prm/*.toml: cq_context, create_cq, 0x400".to_owned(),
            near => format!("near: {}", near.join(", ")),
        };
        return Err(format!("nothing is called `{name}`; {hint}").into());
    }
    Ok(out)
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
        let _ = writeln!(out, "  legal in: {}", command.states.join(", "));
    }
    if let Some(capability) = &command.capability {
        let _ = writeln!(out, "  needs: {capability}");
    }
    for value in &command.op_mods {
        let _ = writeln!(out, "  op_mod {:#x} {}: {}", value.value, value.name, value.doc);
    }
    for (status, why) in &command.statuses {
        let _ = writeln!(out, "  may answer {status}: {why}");
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
}

fn structure(out: &mut String, description: &Description, structure: &Structure) {
    let kind = if structure.segment { "segment" } else { "structure" };
    let _ = writeln!(
        out,
        "{} ({kind}, {:#x} bytes, {})",
        structure.name, structure.bytes, structure.file
    );
    let _ = writeln!(out, "  {}\n", structure.doc);
    diagram(out, structure);
    out.push('\n');
    table(out, structure);
    let _ = writeln!(out, "\n  source: {}", structure.sources.join("; "));
    let users = users(description, &structure.name);
    if !users.is_empty() {
        let _ = writeln!(out, "  used by: {}", users.join(", "));
    }
}

/// One line of boxes per dword: bit 31 at the left; equal dwords in a row are drawn once.
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

/// Whether a field lies over one before it, so that the diagram cannot show both.
fn overlaid(structure: &Structure, field: &Field) -> bool {
    structure.fields.iter().take_while(|other| other.name != field.name).any(|other| {
        !other.tail && other.start < field.span().end() && field.start < other.span().end()
    })
}

fn table(out: &mut String, structure: &Structure) {
    let rows: Vec<[String; 4]> = structure
        .fields
        .iter()
        .map(|field| {
            let mut doc = field.doc.clone();
            if let Some(sources) = &field.sources {
                let _ = write!(doc, " [{}]", sources.join("; "));
            }
            let place = if field.tail {
                format!("{}, to the end", Place::of_field(field.start, 32).0)
            } else {
                field.place()
            };
            [place, field.name.clone(), holds(field), doc]
        })
        .collect();
    let width = |i: usize| rows.iter().map(|row| row[i].chars().count()).max().unwrap_or(0);
    let (place, name, holds) = (width(0), width(1), width(2));
    for row in &rows {
        let line = format!("  {:place$}  {:name$}  {:holds$}  {}", row[0], row[1], row[2], row[3]);
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
    let users = users(description, &e.name);
    if !users.is_empty() {
        let _ = writeln!(out, "  used by: {}", users.join(", "));
    }
}

/// Commands and structures that use a structure or enum, directly.
fn users(description: &Description, name: &str) -> Vec<String> {
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
mod tests {
    use super::super::{load_sound, root};
    use super::*;

    #[test]
    fn a_command_is_shown_by_name_or_opcode_with_its_input_and_output() {
        let description = load_sound(&root()).unwrap();
        let by_name = page(&description, "create_cq").unwrap();
        for name in ["CREATE_CQ", "0x400", "1024"] {
            assert_eq!(page(&description, name).unwrap(), by_name, "{name}");
        }
        for part in ["CREATE_CQ (opcode 0x400)", "DevX: create", "create_cq_in", "create_cq_out"] {
            assert!(by_name.contains(part), "{part}");
        }
    }

    #[test]
    fn a_page_draws_every_dword_and_names_every_field_and_user() {
        let description = load_sound(&root()).unwrap();
        let shown = page(&description, "cq_context").unwrap();
        for field in &description.structure("cq_context").unwrap().fields {
            assert!(shown.contains(&field.name), "{}", field.name);
        }
        assert!(shown.contains("0x03c|") && shown.contains("used by: create_cq_in"));
        let widths: Vec<usize> = shown
            .lines()
            .filter(|l| l.starts_with("  0x0") && l.contains('|'))
            .map(|l| l.chars().count())
            .collect();
        assert!(widths.len() >= 16 && widths.iter().all(|&w| w == COLUMNS + 9), "{widths:?}");
    }

    #[test]
    fn every_entry_has_a_page() {
        let description = load_sound(&root()).unwrap();
        let names = (description.structures.iter().map(|s| &s.name))
            .chain(description.enums.iter().map(|e| &e.name))
            .chain(description.commands.iter().map(|c| &c.name));
        for name in names {
            assert!(!page(&description, name).unwrap().is_empty(), "{name}");
        }
        let error = page(&description, "cq_contex").unwrap_err().to_string();
        assert!(error.contains("near: cq_context"), "{error}");
        assert!(page(&description, "nonsense").is_err());
    }
}
