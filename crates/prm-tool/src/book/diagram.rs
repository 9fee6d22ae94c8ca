//! The bits of a structure, and the states of an object, as SVG. Colours are those of the text, so
//! that the dark theme and print need no other picture.

use std::collections::BTreeMap;

use super::html::escape;
use super::place::Places;
use crate::description::{Description, Structure};

/// Width of a bit, height of a row, width of the offsets, in pixels.
const BIT: u32 = 22;
const ROW: u32 = 24;
const LEFT: u32 = 52;
/// Width of a letter of the labels.
const LETTER: u32 = 7;

/// A box for each field, a row for each dword, bit 31 at the left; a long field has one tall row.
pub(super) fn structure(places: &Places, structure: &Structure) -> String {
    let mut cells: Vec<(u32, u32, &str)> = Vec::new();
    for field in structure.fields.iter().filter(|field| !field.tail) {
        let (start, end) = (field.start, field.span().end());
        // The table has fields that overlap an earlier one.
        if cells.iter().all(|cell| cell.1 <= start || end <= cell.0) {
            cells.push((start, end, &field.name));
        }
    }
    cells.extend(structure.gaps().iter().map(|gap| (gap.start, gap.end(), "")));
    cells.sort_unstable();
    let (mut body, mut y, mut dword) = (String::new(), ROW, 0);
    let bytes = structure.bytes;
    while dword * 4 < bytes {
        let (first, end) = (dword * 32, (dword * 32 + 32).min(bytes * 8));
        let row: Vec<_> = cells.iter().filter(|cell| cell.0 < end && first < cell.1).collect();
        let dwords = match row[..] {
            [cell] if cell.0 <= first => (cell.1.min(bytes * 8) - first).div_ceil(32),
            _ => 1,
        };
        let height = if dwords > 2 { ROW * 2 } else { ROW };
        let step = if dwords > 2 { dwords } else { 1 };
        let middle = y + height / 2 + 4;
        body += &format!("<text x=\"4\" y=\"{middle}\">0x{:02x}</text>\n", dword * 4);
        for (start, stop, name) in row.iter().map(|cell| (cell.0.max(first), cell.1, cell.2)) {
            let stop = if dwords > 2 { end } else { stop.min(end) };
            let (x, width) = (LEFT + (start - first) * BIT, (stop - start) * BIT);
            let size = format!("x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\"");
            if name.is_empty() {
                body += &format!("<rect class=\"gap\" {size}/>\n");
                continue;
            }
            let more = (dwords > 2).then(|| format!(" ({} bytes)", dwords * 4));
            let label = shortened(&format!("{name}{}", more.unwrap_or_default()), width / LETTER);
            let full = format!("{}.{name}", structure.name);
            let href = places.href(&full).unwrap_or_default();
            body += &format!(
                "<a href=\"{href}\"><title>{name}</title><rect {size}/><text class=\"name\" \
                 x=\"{}\" y=\"{middle}\">{}</text></a>\n",
                x + width / 2,
                escape(&label)
            );
        }
        y += height;
        dword += step;
    }
    let numbers: String = (0..32)
        .filter(|bit| bit % 8 == 7 || bit % 8 == 0)
        .map(|bit| {
            let x = LEFT + (31 - bit) * BIT + BIT / 2;
            format!("<text class=\"name\" x=\"{x}\" y=\"16\">{bit}</text>")
        })
        .collect();
    let (width, height) = (LEFT + 32 * BIT + 2, y + 2);
    let label = format!("The bits of {}: a row for each dword, bit 31 at the left", structure.name);
    format!(
        "<div class=\"wide\"><svg class=\"bits\" role=\"img\" aria-label=\"{label}\" \
         viewBox=\"0 0 {width} {height}\" width=\"{width}\" height=\"{height}\">\n{numbers}\n{body}\
         </svg></div>\n"
    )
}

fn shortened(text: &str, letters: u32) -> String {
    let letters = letters.max(1) as usize;
    match text.chars().count() {
        count if count <= letters => text.to_owned(),
        _ if letters < 4 => text.chars().take(letters).collect(),
        _ => text.chars().take(letters - 1).chain(['…']).collect(),
    }
}

/// Width and height of a state, and the distance of two states.
const STATE: (u32, u32) = (90, 30);
const STEP: u32 = 70;

/// The word in `transitions` for every state.
const ANY: &str = "any";

/// The transitions of an object: by pair of states, the commands that cause them.
pub(super) fn transitions<'a>(
    description: &'a Description,
    states: &str,
) -> BTreeMap<(&'a str, &'a str), Vec<String>> {
    let mut arrows: BTreeMap<(&str, &str), Vec<String>> = BTreeMap::new();
    for command in description.commands.iter().filter(|it| it.state.as_deref() == Some(states)) {
        for (from, to) in command.transitions.iter().filter_map(|it| it.split_once(" -> ")) {
            arrows.entry((from, to)).or_default().push(command.name.to_uppercase());
        }
    }
    arrows
}

/// The states of an object in a column; an arc for each transition, forward at the right and
/// backward at the left. A box `any` below them has the transitions from any state. Transitions of
/// a state to itself are in the table only.
pub(super) fn states(description: &Description, states: &str) -> String {
    let Some(e) = description.enumeration(states) else { return String::new() };
    let arrows = transitions(description, states);
    let used = |name: &str| arrows.keys().any(|(from, to)| *from == name || *to == name);
    let mut column: Vec<&str> =
        e.values.iter().map(|value| &*value.name).filter(|name| used(name)).collect();
    column.extend(used(ANY).then_some(ANY));
    let row = |name: &str| column.iter().position(|it| *it == name).map(|row| row as u32);
    let middle = 260;
    let mut body = String::new();
    for (from, to) in arrows.keys() {
        let (Some(first), Some(last)) = (row(from), row(to)) else { continue };
        if first == last {
            continue;
        }
        let side = if first < last { 1 } else { -1 };
        let x = middle + side * (STATE.0 as i32 / 2);
        let y = |row: u32, shift: i32| (row * STEP + STATE.1) as i32 + shift;
        let (start, end) = (y(first, 5 * side), y(last, -5 * side));
        let bend = x + side * (20 + 32 * first.abs_diff(last) as i32);
        body += &format!(
            "<path d=\"M {x} {start} C {bend} {start}, {bend} {end}, {x} {end}\" \
             marker-end=\"url(#tip)\"><title>{from} to {to}</title></path>\n"
        );
    }
    for (at, name) in column.iter().enumerate() {
        let top = at as u32 * STEP + STATE.1 / 2;
        let left = middle - STATE.0 as i32 / 2;
        body += &format!(
            "<rect x=\"{left}\" y=\"{top}\" width=\"{}\" height=\"{}\" rx=\"6\"/><text \
             class=\"name\" x=\"{middle}\" y=\"{}\">{name}</text>\n",
            STATE.0,
            STATE.1,
            top + STATE.1 / 2 + 4
        );
    }
    let height = column.len() as u32 * STEP;
    format!(
        "<div class=\"wide\"><svg class=\"states\" role=\"img\" aria-label=\"The states of \
         {states} and the transitions between them\" viewBox=\"0 0 520 {height}\" width=\"520\" \
         height=\"{height}\">\n<defs><marker id=\"tip\" viewBox=\"0 0 8 8\" refX=\"7\" refY=\"4\" \
         markerWidth=\"7\" markerHeight=\"7\" orient=\"auto\"><path d=\"M 0 0 L 8 4 L 0 8 z\"/>\
         </marker></defs>\n{body}</svg></div>\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::repository::root;

    #[test]
    fn every_field_without_overlap_has_a_box() {
        let description = crate::check::load_sound(&root()).unwrap();
        let places = Places::new(&description);
        let context = description.structure("cq_context").unwrap();
        let svg = structure(&places, context);
        for field in &context.fields {
            assert!(svg.contains(&format!("<title>{}</title>", field.name)), "{}", field.name);
        }
        assert!(!svg.contains("\n\n"), "Markdown would end the block");
    }

    #[test]
    fn state_diagram_has_an_arc_for_each_pair() {
        let description = crate::check::load_sound(&root()).unwrap();
        let svg = states(&description, "qp_state");
        for arrow in ["INIT to RTR", "RTR to RTS", "SQER to RTS", "any to ERR", "any to RST"] {
            assert!(svg.contains(&format!("<title>{arrow}</title>")), "{arrow}");
        }
        assert!(svg.contains(">INIT</text>"));
    }
}
