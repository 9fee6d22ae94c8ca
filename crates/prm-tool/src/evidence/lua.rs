//! Positions in Snabb's driver: `:input("oi", 0x10 + 0x00, 17, 17, 1)` is a field of the command
//! that was begun by `:command("CREATE_EQ", …)`, and `name = self:output(0x0C, 31, 0)` one of its
//! output.

use std::collections::BTreeMap;

use crate::facts::{Facts, Layout};

/// Reads all fields; the structures are `create_eq_in` and `create_eq_out`.
pub(super) fn read(text: &str) -> Facts {
    let mut structs: BTreeMap<String, Layout> = BTreeMap::new();
    let mut command = String::new();
    for line in text.lines() {
        let line = line.split("--").next().unwrap_or_default();
        if let Some(arguments) = call(line, ":command(") {
            command = arguments[0].trim_matches('"').to_lowercase();
        }
        // A number in the middle of a loop is no position: `0x10 + i*8`.
        let (part, name, at) = if let Some(found) = call(line, ":input(") {
            (format!("{command}_in"), found[0].trim_matches('"').replace(' ', "_"), found)
        } else if let Some(mut found) = call(line, ":output(") {
            let name = line.split_once('=').map(|(name, _)| name.trim().replace("local ", ""));
            found.insert(0, "");
            (format!("{command}_out"), name.unwrap_or_default(), found)
        } else {
            continue;
        };
        let [_, at, high, low, ..] = at.as_slice() else { continue };
        let position = sum(at).zip(high.parse::<u32>().ok().zip(low.parse::<u32>().ok()));
        let Some((at, (high, low))) = position.filter(|(_, (high, low))| low <= high) else {
            continue;
        };
        let word = name.rsplit(' ').next().unwrap_or_default();
        let name = if word.is_empty() { format!("at_{at:x}_{high}_{low}") } else { word.into() };
        let layout = structs.entry(part).or_default();
        let start = at * 8 + 31 - high;
        layout.fields.entry(name).or_insert((start, high - low + 1));
        layout.bits = layout.bits.max(at * 8 + 32);
    }
    Facts { structs, enums: BTreeMap::new() }
}

/// Whether a name is made of the position, because the driver gives it none.
pub(super) fn is_unnamed(name: &str) -> bool {
    name.strip_prefix("at_")
        .is_some_and(|rest| rest.bytes().all(|b| b == b'_' || b.is_ascii_hexdigit()))
}

/// The arguments of a call, or its first ones.
fn call<'a>(line: &'a str, name: &str) -> Option<Vec<&'a str>> {
    let (_, arguments) = line.split_once(name)?;
    Some(arguments.trim_end_matches(')').split([',', ')']).map(str::trim).collect())
}

/// `0x10 + 0x0C` in bytes.
fn sum(text: &str) -> Option<u32> {
    text.split('+')
        .map(|number| u32::from_str_radix(number.trim().strip_prefix("0x")?, 16).ok())
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_fields_of_their_command() {
        let facts = read(
            r#"
            self:command("CREATE_EQ", 0x10C + n*8, 0x0C)
              :input("opcode", 0x00, 31, 16, 0x301)
              :input("oi",     0x10 + 0x00, 17, 17, 1)   -- :input("no", 0x00, 0, 0)
            for i=0, n do
              self:input(nil, 0x10 + i*8, 31, 0, 1)
            end
            local eqn = self:output(0x08, 7, 0)
            return self:output(0x0C, 31, 0)
            "#,
        );
        let fields =
            |name: &str| facts.structs[name].fields.clone().into_iter().collect::<Vec<_>>();
        let named = |name: &str, at| (name.to_owned(), at);
        assert_eq!(fields("create_eq_in"), [named("oi", (142, 1)), named("opcode", (0, 16))]);
        let output = [named("at_c_31_0", (96, 32)), named("eqn", (88, 8))];
        assert_eq!(fields("create_eq_out"), output);
        assert!(is_unnamed("at_c_31_0") && !is_unnamed("at_zero") && !is_unnamed("eqn"));
    }
}
