//! Compares the kernel's mailboxes with ours: `prm/evidence/linux-*-commands.txt.gz`.
//!
//! Linux's mlx5_ib and our driver run the same cases, and a recorder at the device writes down
//! their commands. The recordings confirm a field if two cases request different values of it and
//! both drivers write the same value in every case. A plausible constant confirms nothing, and a
//! field on which the drivers ever differ is unconfirmed. The device is the model, so its answers
//! confirm nothing: the evidence is mlx5_ib, which drives real devices and is independent of the
//! header that it is compiled with.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::path::{Path, PathBuf};

use verbless_prm::bits;
use verbless_prm::dump::{Dumped, parse_log};
use verbless_prm::reflect::Kind;

use super::runtime::Runtime;

/// Results of comparing the recordings.
#[derive(Debug, Default)]
pub(crate) struct Comparison {
    /// Commands that both drivers sent.
    pub(crate) commands: usize,
    /// (structure, field) pairs whose value varies with the request and is equal on both sides.
    pub(crate) confirmed: BTreeSet<(&'static str, &'static str)>,
    /// Commands that are unknown.
    pub(crate) problems: Vec<String>,
}

/// Recorded values of a field.
#[derive(Debug, Default)]
struct Seen {
    values: BTreeSet<Vec<u8>>,
    differed: bool,
}

/// A side's commands by case and opcode, in order of arrival.
type Side = BTreeMap<(String, u16), Vec<Vec<u8>>>;

/// Reads the recordings of the repository at `root`, by name.
pub(crate) fn read(root: &Path) -> crate::repository::Result<Vec<(String, Vec<Dumped>)>> {
    let folder = root.join("prm/evidence");
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(&folder)?.filter_map(|entry| Some(entry.ok()?.path())).collect();
    files.sort();
    let mut recordings = Vec::new();
    for file in files {
        let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if let Some(name) = name.strip_suffix("-commands.txt.gz") {
            let bytes = std::fs::read(&file)?;
            let mut text = String::new();
            flate2::read::GzDecoder::new(bytes.as_slice()).read_to_string(&mut text)?;
            recordings.push((name.to_owned(), parse_log(&text)?));
        }
    }
    Ok(recordings)
}

/// Compares the sides of each recording.
pub(crate) fn compare(runtime: &Runtime, recordings: Vec<(String, Vec<Dumped>)>) -> Comparison {
    let mut comparison = Comparison::default();
    let mut seen: BTreeMap<(&'static str, &'static str), Seen> = BTreeMap::new();
    for (name, commands) in recordings {
        let unknown = commands.iter().filter(|it| runtime.command_of(&it.input).is_none());
        comparison
            .problems
            .extend(unknown.map(|it| format!("{name}: {} is not a command of prm/", it.title)));
        let (theirs, ours) = sides(&commands);
        for (key, theirs) in &theirs {
            // Unequal numbers of commands cannot be matched.
            let Some(ours) = ours.get(key).filter(|ours| ours.len() == theirs.len()) else {
                continue;
            };
            for (theirs, ours) in theirs.iter().zip(ours) {
                comparison.commands += 1;
                note(runtime, theirs, ours, &mut seen);
            }
        }
    }
    comparison.confirmed = seen
        .into_iter()
        .filter(|(_, seen)| !seen.differed && seen.values.len() > 1)
        .map(|(field, _)| field)
        .collect();
    comparison
}

/// Each side's executed commands by case. A NOP with text starts a side and a case.
fn sides(commands: &[Dumped]) -> (Side, Side) {
    const NOP: [u8; 2] = [0x08, 0x0d];
    const NOP_BYTES: usize = 16;
    let (mut theirs, mut ours) = (Side::new(), Side::new());
    let mut side_and_case = None;
    for command in commands {
        let input = &command.input;
        if input.starts_with(&NOP) && input.len() > NOP_BYTES {
            let text = String::from_utf8_lossy(&input[NOP_BYTES..]).into_owned();
            side_and_case =
                text.split_once(": ").map(|(side, case)| (side == "ours", case.to_owned()));
        } else if let (Some((is_ours, case)), Some(opcode), Some(&[0, ..])) =
            (&side_and_case, input.first_chunk(), command.output.as_deref())
        {
            let side = if *is_ours { &mut ours } else { &mut theirs };
            let key = (case.clone(), u16::from_be_bytes(*opcode));
            side.entry(key).or_default().push(input.clone());
        }
    }
    (theirs, ours)
}

/// Records the value of each field of a command, and whether both sides have it.
fn note(
    runtime: &Runtime,
    theirs: &[u8],
    ours: &[u8],
    seen: &mut BTreeMap<(&'static str, &'static str), Seen>,
) {
    let Some(command) = runtime.command_of(theirs) else { return };
    let view = command.view_input(theirs);
    view.leaves(&mut |path, leaf| {
        // A page list depends on the memory, and an overlay is a second name.
        let mut part = Some(path);
        while let Some(at) = part {
            if at.field.is_tail() || at.field.overlay {
                return;
            }
            part = at.parent;
        }
        let (first, last) = (leaf.bit, leaf.bit + leaf.width);
        let value = |bytes: &[u8]| match leaf.field.kind {
            _ if last > bytes.len() * 8 => vec![],
            Kind::Number | Kind::Enum(_) => {
                bits::get(bytes, first, leaf.width).to_be_bytes().to_vec()
            }
            _ => bytes[first / 8..last / 8].to_vec(),
        };
        let (theirs, ours) = (value(theirs), value(ours));
        let seen = seen.entry((path.info.name, path.field.name)).or_default();
        seen.differed |= theirs != ours;
        seen.values.insert(theirs);
    });
}

#[cfg(test)]
mod tests {
    use super::super::check::load_sound;
    use super::super::description::Description;
    use super::super::repository::root;
    use super::*;

    fn runtime() -> Runtime {
        Runtime::new(&load_sound(&root()).unwrap())
    }

    fn command(input: &[u8]) -> Dumped {
        Dumped { input: input.to_vec(), output: Some(vec![0; 16]), ..Dumped::default() }
    }

    fn mark(text: &str) -> Dumped {
        command(&[&[8, 13][..], &[0; 14], text.as_bytes()].concat())
    }

    /// MODIFY_CQ with a moderation: period and count.
    fn moderate(period: u8, count: u8) -> Dumped {
        let mut input = [0; 272];
        input[..2].copy_from_slice(&[4, 3]);
        input[0x10 + 0x11] = period;
        input[0x10 + 0x13] = count;
        command(&input)
    }

    fn confirmed(pairs: &[(Dumped, Dumped)]) -> Vec<&'static str> {
        let mut commands = Vec::new();
        for (case, (theirs, _)) in pairs.iter().enumerate() {
            commands.extend([mark(&format!("theirs: {case}")), theirs.clone()]);
        }
        for (case, (_, ours)) in pairs.iter().enumerate() {
            commands.extend([mark(&format!("ours: {case}")), ours.clone()]);
        }
        let comparison = compare(&runtime(), vec![("test".into(), commands)]);
        assert_eq!(comparison.problems, Vec::<String>::new());
        comparison.confirmed.iter().map(|(_, field)| *field).collect()
    }

    #[test]
    fn confirmation_needs_varying_equal_values() {
        let same = |period, count| (moderate(period, count), moderate(period, count));
        let both = confirmed(&[same(3, 7), same(4, 9)]);
        assert_eq!(both.len(), 2, "{both:?}");
        let one = confirmed(&[same(3, 7), same(4, 7)]);
        assert_eq!(one.len(), 1, "a value that never changes says nothing: {one:?}");
        let none = confirmed(&[same(3, 7), (moderate(4, 9), moderate(5, 8))]);
        assert_eq!(none, Vec::<&str>::new(), "a field on which they differ once");
    }

    #[test]
    fn repository_recordings_confirm_qp_and_mkey_fields() {
        let comparison = compare(&runtime(), read(&root()).unwrap());
        assert_eq!(comparison.problems, Vec::<String>::new());
        for field in [
            ("cq_context", "cqe_sz"),
            ("qp_context", "next_send_psn"),
            ("address_path", "rlid"),
            ("mkey_context", "rw"),
        ] {
            assert!(
                comparison.confirmed.contains(&field),
                "{field:?} in {:?}",
                comparison.confirmed
            );
        }
        assert!(
            !comparison.confirmed.contains(&("qp_context", "log_sq_size")),
            "the values differ there"
        );
    }

    /// A command with fields that can be confirmed, and fields that cannot.
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
        fields.op_mod = { at = "0x04.15:0" }
        fields.number = { at = "0x08" }
        fields.again = { at = "0x08", overlay = true }
        fields.raw = { at = "0x0c", bytes = 4 }
        fields.pas = { at = "0x10", bits = 32, tail = true }

        [make_thing_out]
        bytes = 0x08
        fields.status = { at = "0x00.31:24" }
    "#;

    /// MAKE_THING with a number, raw bytes and a page.
    fn make(number: u8, raw: u8, page: u8) -> Dumped {
        command(&[&[9, 0][..], &[0; 9], &[number, 0, 0, 0, raw, 0, 0, 0, page]].concat())
    }

    /// The fields that the inputs of both sides confirm, and the number of matched commands.
    fn things(theirs: &[Dumped], ours: &[Dumped]) -> (Vec<&'static str>, usize) {
        let runtime = Runtime::new(&Description::parse([("prm/x.toml", TABLES)]));
        let mut commands = vec![mark("theirs: case")];
        commands.extend_from_slice(theirs);
        commands.push(mark("ours: case"));
        commands.extend_from_slice(ours);
        let comparison = compare(&runtime, vec![("test".into(), commands)]);
        (comparison.confirmed.iter().map(|(_, field)| *field).collect(), comparison.commands)
    }

    #[test]
    fn confirmation_skips_overlays_and_tails() {
        let all = [make(1, 2, 3), make(4, 5, 6)];
        assert_eq!(things(&all, &all), (vec!["number", "raw"], 2));
        let same_bytes = [make(1, 2, 3), make(4, 2, 6)];
        assert_eq!(things(&same_bytes, &same_bytes), (vec!["number"], 2));
        assert_eq!(things(&all, &all[..1]), (vec![], 0), "unmatched commands confirm nothing");
    }

    #[test]
    fn confirmation_skips_field_past_input_end() {
        let mut short = [make(1, 2, 3), make(4, 5, 6)];
        short.iter_mut().for_each(|it| it.input.truncate(12));
        assert_eq!(things(&[make(1, 2, 3), make(4, 5, 6)], &short), (vec!["number"], 2));
    }

    #[test]
    fn marker_nop_assigns_commands_to_side_and_case() {
        let bare_nop = command(&[&[8, 13][..], &[0; 14]].concat());
        let failed = Dumped { output: Some(vec![1; 8]), ..make(7, 7, 7) };
        let commands = [
            make(0, 0, 0),
            mark("theirs: one"),
            bare_nop.clone(),
            make(1, 1, 1),
            failed,
            mark("ours: two"),
            make(2, 2, 2),
        ];
        let (theirs, ours) = sides(&commands);
        let key = |case: &str, opcode| (case.to_owned(), opcode);
        let wanted = [
            (key("one", 0x80d), vec![bare_nop.input]),
            (key("one", 0x900), vec![make(1, 1, 1).input]),
        ];
        assert_eq!(theirs, Side::from(wanted));
        assert_eq!(ours, Side::from([(key("two", 0x900), vec![make(2, 2, 2).input])]));
    }
}
