//! Replays the bring-up of a real ConnectX-4: decodes, re-encodes and counts each command.
//!
//! The trace confirms a field that holds a telling value in a command with status OK. A telling
//! value is not zero; it is a named value if the field has an enum; it does not have all bits of a
//! wider field set. A single bit is telling only if every gap of its buffer is zero: then the
//! device agrees with us about which bits exist. The firmware wrote the outputs. Linux wrote the
//! inputs from its own header; they count because the device executed them.

use std::collections::BTreeSet;
use std::io::Read;
use std::path::Path;

use verbless_prm::CommandInfo;
use verbless_prm::bits;
use verbless_prm::dump::{Dumped, parse_log};
use verbless_prm::reflect::{Kind, Leaf, Path as FieldPath, View};

use super::runtime::Runtime;

/// Path of the trace from the root of the repository.
pub(crate) const TRACE: &str = "prm/evidence/connectx4-bringup-trace.txt.gz";

/// Results of the replay of a trace.
#[derive(Debug, Default)]
pub(crate) struct Replay {
    /// Each command of the trace, with its description.
    pub(crate) commands: Vec<(&'static CommandInfo, Dumped)>,
    /// Commands that are unknown or differ after re-encoding.
    pub(crate) problems: Vec<String>,
    /// (structure, field) pairs that the trace confirms.
    pub(crate) confirmed: BTreeSet<(&'static str, &'static str)>,
    /// Buffers with bits set where the description has gaps: command, direction, first bit.
    pub(crate) undescribed: Vec<String>,
}

/// Reads the trace of the repository at `root`.
pub(crate) fn read(root: &Path) -> crate::repository::Result<Vec<Dumped>> {
    let path = root.join(TRACE);
    let bytes = std::fs::read(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    let mut text = String::new();
    flate2::read::GzDecoder::new(bytes.as_slice()).read_to_string(&mut text)?;
    Ok(parse_log(&text).map_err(|error| format!("{}: {error}", path.display()))?)
}

/// Decodes, re-encodes and counts each command.
pub(crate) fn replay(runtime: &Runtime, trace: Vec<Dumped>) -> Replay {
    let mut replay = Replay::default();
    for dumped in trace {
        let Some(command) = runtime.command_of(&dumped.input) else {
            replay.problems.push(format!("{}: no command of that opcode", dumped.title));
            continue;
        };
        let output = dumped.output.as_deref().unwrap_or(&[]);
        let done = output.first() == Some(&0);
        let views = [
            ("input", command.view_input(&dumped.input)),
            ("output", command.view_output(&dumped.input, output)),
        ];
        for (direction, view) in views {
            let buffer = format!("{} {direction}", command.name);
            match first_difference(view.bytes, &encode_again(&view)) {
                Some(byte) => replay.problems.push(format!(
                    "{buffer}: byte {byte:#x} belongs to no field and no gap of [{}]",
                    view.info.name
                )),
                None if done => confirm(&view, &mut replay.confirmed),
                None => {}
            }
            if let Some((bit, _)) = view.nonzero_reserved() {
                let held =
                    view.holds.map_or(String::new(), |(_, info)| format!(" ({})", info.name));
                replay.undescribed.push(format!("{buffer}{held}, byte {:#x}", bit / 8));
            }
        }
        replay.commands.push((command, dumped));
    }
    replay
}

/// The buffer rebuilt from its fields and gaps; bytes that belong to neither are 0xa5.
pub(crate) fn encode_again(view: &View<'_>) -> Vec<u8> {
    let mut again = vec![0xa5; view.bytes.len()];
    let mut copy = |start: usize, width: usize| {
        for bit in (start..start + width).step_by(64) {
            let width = (start + width - bit).min(64);
            bits::set(&mut again, bit, width, bits::get(view.bytes, bit, width));
        }
    };
    view.leaves(&mut |_, leaf| copy(leaf.bit, leaf.width));
    view.gaps(&mut |start, width| copy(start, width));
    again
}

fn first_difference(one: &[u8], other: &[u8]) -> Option<usize> {
    one.iter().zip(other).position(|(a, b)| a != b)
}

/// Records the fields of a buffer with telling values, and the fields around them.
fn confirm(view: &View<'_>, confirmed: &mut BTreeSet<(&'static str, &'static str)>) {
    let no_surprises = view.nonzero_reserved().is_none();
    view.leaves(&mut |path, leaf| {
        if is_telling(view.bytes, leaf, no_surprises) {
            confirm_path(path, confirmed);
        }
    });
}

/// Records a field and the fields around it.
pub(crate) fn confirm_path(
    path: &FieldPath<'_>,
    confirmed: &mut BTreeSet<(&'static str, &'static str)>,
) {
    let mut path = Some(path);
    while let Some(FieldPath { parent, info, field, .. }) = path {
        confirmed.insert((info.name, field.name));
        path = *parent;
    }
}

fn is_telling(bytes: &[u8], leaf: Leaf, no_surprises: bool) -> bool {
    let value = match leaf.field.kind {
        Kind::Number | Kind::Enum(_) => bits::get(bytes, leaf.bit, leaf.width),
        _ => {
            let bytes = &bytes[leaf.bit / 8..][..leaf.width / 8];
            return bytes.iter().any(|&byte| byte != 0);
        }
    };
    match leaf.field.kind {
        _ if value == 0 => false,
        Kind::Enum(info) => info.name_of(value).is_some(),
        _ if leaf.width == 1 => no_surprises,
        _ => value != u64::MAX >> (64 - leaf.width),
    }
}

#[cfg(test)]
mod tests {
    use super::super::check::load_sound;
    use super::super::description::Description;
    use super::super::repository::root;
    use super::*;
    use verbless_prm::reflect::{EnumInfo, FieldInfo};

    fn replayed() -> Replay {
        let runtime = Runtime::new(&load_sound(&root()).unwrap());
        replay(&runtime, read(&root()).unwrap())
    }

    #[test]
    fn telling_value_is_neither_zero_nor_all_ones() {
        static KINDS: EnumInfo = EnumInfo {
            name: "kinds",
            bits: 4,
            values: &[("NONE", 0), ("SMALL", 1), ("ALL", 15)],
            model_only: &[],
        };
        const fn field(kind: Kind, width: u32) -> FieldInfo {
            let (overlay, model_only) = (false, false);
            FieldInfo { name: "it", offset: 0, width, count: 1, kind, overlay, model_only }
        }
        static NUMBER: FieldInfo = field(Kind::Number, 4);
        static FLAG: FieldInfo = field(Kind::Number, 1);
        static ENUM: FieldInfo = field(Kind::Enum(&KINDS), 4);
        static BYTES: FieldInfo = field(Kind::Bytes, 8);
        for (field, byte, no_surprises, tells) in [
            (&NUMBER, 0x0f, true, false),
            (&NUMBER, 0x50, false, true),
            (&NUMBER, 0xf0, true, false),
            (&FLAG, 0x80, true, true),
            (&FLAG, 0x80, false, false),
            (&FLAG, 0x7f, true, false),
            (&ENUM, 0x00, true, false),
            (&ENUM, 0x10, false, true),
            (&ENUM, 0x20, true, false),
            (&ENUM, 0xf0, false, true),
            (&BYTES, 0x00, true, false),
            (&BYTES, 0x01, false, true),
        ] {
            let leaf = Leaf { field, bit: 0, width: field.width as usize };
            assert_eq!(is_telling(&[byte], leaf, no_surprises), tells, "{field:?} in {byte:#x}");
        }
    }

    #[test]
    fn trace_commands_are_described_and_round_trip() {
        let replay = replayed();
        assert_eq!(replay.problems, Vec::<String>::new());
        assert_eq!(replay.undescribed, Vec::<String>::new());
        assert_eq!(replay.commands.len(), 42);
    }

    #[test]
    fn command_names_match_kernel() {
        for (command, dumped) in replayed().commands {
            let (theirs, opcode) = dumped.title.split_once("(0x").unwrap();
            assert_eq!(u16::from_str_radix(opcode.trim_end_matches(')'), 16), Ok(command.opcode));
            if theirs == "unknown command opcode" {
                assert!(["QUERY_ISSI", "SET_ISSI"].contains(&command.name));
            } else {
                let theirs = theirs.trim_start_matches("MLX5_CMD_OP_");
                assert!(command.name.starts_with(theirs), "{} is {theirs}", command.name);
            }
        }
    }

    #[test]
    fn trace_adapter_is_mellanox() {
        let replay = replayed();
        let adapter = replay.commands.iter().find(|(c, _)| c.name == "QUERY_ADAPTER").unwrap();
        let text = verbless_prm::command::Decoded {
            command: adapter.0,
            input: &adapter.1.input,
            output: adapter.1.output.as_deref(),
        };
        // ieee_vendor_id is Mellanox's OUI.
        assert!(text.to_string().contains("ieee_vendor_id = 0x2c9"), "{text}");
    }

    const TABLES: &str = r#"
        [make_thing]
        kind = "command"
        opcode = 0x900
        input = "make_thing_in"
        output = "make_thing_out"
        devx = "none"

        [make_thing_in]
        bytes = 0x10
        fields.opcode = { at = "0x00.31:16" }
        fields.inner = { at = "0x08", struct = "inner" }
        fields.raw = { at = "0x0c", bytes = 2 }

        [inner]
        bytes = 4
        fields.number = { at = "0x00.15:0" }

        [make_thing_out]
        bytes = 0x08
        fields.status = { at = "0x00.31:24" }
        fields.syndrome = { at = "0x04" }
    "#;

    /// The confirmed fields, problems and undescribed bits of one command with this status.
    fn result_of(input: &[u8], status: u8) -> (Vec<&'static str>, Vec<String>, Vec<String>) {
        let runtime = Runtime::new(&Description::parse([("prm/x.toml", TABLES)]));
        let output = Some(vec![status, 0, 0, 0, 0, 0, 0, 5]);
        let title = "SOME".to_owned();
        let dumped = Dumped { title, input: input.to_vec(), output, ..Dumped::default() };
        let replay = replay(&runtime, vec![dumped]);
        let fields = replay.confirmed.iter().map(|(_, field)| *field).collect();
        (fields, replay.problems, replay.undescribed)
    }

    #[test]
    fn executed_command_confirms_its_fields() {
        let input = [9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7, 0, 8, 0, 0];
        let fields = vec!["number", "inner", "opcode", "raw", "syndrome"];
        assert_eq!(result_of(&input, 0), (fields, vec![], vec![]));
        assert_eq!(result_of(&input, 3), (vec![], vec![], vec![]), "the command failed");
        let none = [9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(result_of(&none, 0).0, ["opcode", "syndrome"]);
    }

    #[test]
    fn unknown_opcode_and_undescribed_bit_are_reported() {
        let unknown = vec!["SOME: no command of that opcode".to_owned()];
        assert_eq!(result_of(&[9, 1, 0, 0], 0), (vec![], unknown, vec![]));
        let input = [9, 0, 0, 0, 0, 0x10, 0, 0, 0, 0, 0, 7, 0, 8, 0, 0];
        assert_eq!(result_of(&input, 0).2, ["MAKE_THING input, byte 0x2"], "where the gap begins");
    }

    #[test]
    fn encode_again_restores_buffer() {
        let runtime = Runtime::new(&Description::parse([("prm/x.toml", TABLES)]));
        let bytes: Vec<u8> = (1..=16).collect();
        let view = View::new(runtime.structure("make_thing_in").unwrap(), &bytes);
        assert_eq!(encode_again(&view), bytes);
        assert_eq!(first_difference(&bytes, &bytes), None);
        let mut other = bytes.clone();
        other[5..].fill(0);
        assert_eq!(first_difference(&bytes, &other), Some(5));
    }
}
