//! A recording that is read: a stranger's file.
//!
//! Reading limits its size. An error names the first line that does not belong to a recording.

use std::collections::HashSet;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use verbless_prm::dump::parse_log;

use super::bytes::{self, take};
use super::entry::{CaseEnd, CaseStart, Entry, FORMAT, Header, Ioctl, TITLE};
use crate::report::plain;

/// The default limit of a file that is read.
const MAX_BYTES: u64 = 1 << 30;
/// Bytes of memory that its bytes, lists and entries may take.
const MAX_DECODED: usize = 1 << 30;
/// Attributes of an ioctl: the length of a request, 24 bytes and 16 for each, has 16 bits.
const MAX_ATTRIBUTES: usize = (u16::MAX as usize - 24) / 16;
/// Lines of one command, with both mailboxes: the longest mailbox has 64 KiB, 16 bytes in a line.
const MAX_COMMAND_LINES: usize = 3 * 4096;
/// Cases, and devices.
const MAX_CASES: usize = 100_000;
const MAX_DEVICES: usize = 2;

/// A recording.
#[derive(Debug)]
pub(super) struct Document {
    pub(super) header: Header,
    pub(super) cases: Vec<RecordedCase>,
}

/// What one case asked.
#[derive(Debug)]
pub(super) struct RecordedCase {
    pub(super) name: String,
    pub(super) entries: Vec<Recorded>,
    /// How it ended; `None`: the recording ends within it.
    pub(super) end: Option<CaseEnd>,
}

/// Something that happened, with the mailboxes of its command.
#[derive(Clone, Debug)]
pub(super) struct Recorded {
    pub(super) entry: Entry,
    pub(super) input: Arc<[u8]>,
    pub(super) output: Arc<[u8]>,
}

impl Document {
    /// Reads a file.
    pub(super) fn read(path: &Path) -> Result<Self, String> {
        let named = |error: std::io::Error| format!("{}: {error}", path.display());
        let file = File::open(path).map_err(named)?;
        let mut text = String::new();
        let read = file.take(MAX_BYTES + 1).read_to_string(&mut text).map_err(named)?;
        if read as u64 > MAX_BYTES {
            let limit = MAX_BYTES >> 20;
            return Err(format!("{}: it is larger than {limit} MiB", path.display()));
        }
        // A message may quote the file.
        Self::parse(&text)
            .map_err(|why| format!("{} is no recording: {}", path.display(), plain(&why)))
    }

    /// Parses its text.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        bytes::within(MAX_DECODED, || Self::parse_all(text))
    }

    fn parse_all(text: &str) -> Result<Self, String> {
        if !text.starts_with(TITLE) {
            return Err(format!(
                "its first line is not `{TITLE}`, which `hwtest --record FILE` writes"
            ));
        }
        let mut header = None;
        let mut cases: Vec<RecordedCase> = Vec::new();
        // The lines of a command, until its ioctl comes.
        let mut command = Commands::default();
        for (number, line) in (1..).zip(text.lines()) {
            let parsed = parse_line(line, &mut header, &mut cases, &mut command);
            parsed.map_err(|why| format!("line {number}: {why}"))?;
        }
        let header = header.ok_or("it has no line `recording`")?;
        let mut names = HashSet::new();
        if let Some(case) = cases.iter().find(|case| !names.insert(&case.name)) {
            return Err(format!("the case {:?} is in it twice", case.name));
        }
        Ok(Self { header, cases })
    }
}

/// The input and the output of a command.
type Mailboxes = (Arc<[u8]>, Arc<[u8]>);

/// Commands of the recording.
#[derive(Default)]
struct Commands {
    /// Lines of one that is not complete.
    text: String,
    lines: usize,
    /// The mailboxes of those with a number.
    numbered: Vec<Mailboxes>,
}

impl Commands {
    /// The mailboxes of the command before an ioctl.
    fn take(&mut self, number: Option<u32>) -> Result<Mailboxes, String> {
        let number = number.map(|number| number as usize);
        if self.lines == 0 {
            return match number {
                None => Ok(Default::default()),
                Some(number) => {
                    let known = self.numbered.get(number).cloned();
                    known.ok_or_else(|| format!("there is no command {number} before it"))
                }
            };
        }
        let dumped = parse_log(&self.text)?.pop().ok_or("lines that are no command")?;
        let (input, output) = (dumped.input, dumped.output.unwrap_or_default());
        take(input.len() + output.len())?;
        let mailboxes = (input.into(), output.into());
        if let Some(number) = number {
            if number != self.numbered.len() {
                return Err(format!("command {number} is not the next"));
            }
            self.numbered.push(mailboxes.clone());
        }
        self.text.clear();
        self.lines = 0;
        Ok(mailboxes)
    }
}

fn parse_line(
    line: &str,
    header: &mut Option<Header>,
    cases: &mut Vec<RecordedCase>,
    commands: &mut Commands,
) -> Result<(), String> {
    // The time is for readers.
    let timed = line.starts_with('[').then(|| line.split_once("] ")).flatten();
    let rest = timed.map_or(line, |(_, rest)| rest);
    let (word, json) = rest.split_once(' ').unwrap_or((rest, ""));
    if !json.starts_with('{') {
        if line.is_empty() || line.starts_with('#') {
            return Ok(());
        }
        if commands.lines == MAX_COMMAND_LINES {
            return Err(format!("a command has at most {MAX_COMMAND_LINES} lines"));
        }
        commands.lines += 1;
        commands.text += line;
        commands.text.push('\n');
        return Ok(());
    }
    let wrong = |error: serde_json::Error| format!("{word}: {error}");
    let entry = match word {
        "recording" => {
            let found: Header = serde_json::from_str(json).map_err(wrong)?;
            if found.format != FORMAT || header.is_some() {
                return Err(format!("this program reads one recording of format {FORMAT}"));
            }
            if found.devices.is_empty() || found.devices.len() > MAX_DEVICES {
                return Err(format!("a recording has 1 to {MAX_DEVICES} devices"));
            }
            let pages = found.page_bytes;
            if !pages.is_power_of_two() || !(0x1000..=0x1_0000).contains(&pages) {
                return Err(format!("page_bytes is {pages}: Linux has 4096, 16384 or 65536"));
            }
            *header = Some(found);
            return Ok(());
        }
        "case" => {
            let CaseStart { name } = serde_json::from_str(json).map_err(wrong)?;
            if cases.len() == MAX_CASES {
                return Err(format!("a recording has at most {MAX_CASES} cases"));
            }
            cases.push(RecordedCase { name, entries: Vec::new(), end: None });
            return Ok(());
        }
        "end" => {
            let end = serde_json::from_str(json).map_err(wrong)?;
            let case = cases.last_mut().filter(|case| case.end.is_none());
            case.ok_or("an end without a case")?.end = Some(end);
            return Ok(());
        }
        "open" => Entry::Open(serde_json::from_str(json).map_err(wrong)?),
        "ioctl" => Entry::Ioctl(serde_json::from_str::<Ioctl>(json).map_err(wrong)?),
        "map" => Entry::Map(serde_json::from_str(json).map_err(wrong)?),
        "control" => Entry::Control(serde_json::from_str(json).map_err(wrong)?),
        "wqe" => Entry::Wqe(serde_json::from_str(json).map_err(wrong)?),
        "cqe" => Entry::Cqe(serde_json::from_str(json).map_err(wrong)?),
        "event" => Entry::Event(serde_json::from_str(json).map_err(wrong)?),
        "unseen" => Entry::Unseen(serde_json::from_str(json).map_err(wrong)?),
        other => return Err(format!("{other:?} is unknown")),
    };
    let (input, output) = match &entry {
        Entry::Ioctl(ioctl) if ioctl.attributes.len() > MAX_ATTRIBUTES => {
            return Err(format!("an ioctl has at most {MAX_ATTRIBUTES} attributes"));
        }
        Entry::Ioctl(ioctl) => commands.take(ioctl.command)?,
        _ => Default::default(),
    };
    let case = cases.last_mut().filter(|case| case.end.is_none());
    let case = case.ok_or_else(|| format!("{word} outside of a case"))?;
    take(size_of::<Recorded>())?;
    case.entries.push(Recorded { entry, input, output });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(lines: &[&str]) -> String {
        let text = [&[TITLE], lines].concat().join("\n");
        Document::parse(&text).expect_err(&text)
    }

    const HEADER: &str = concat!(
        r#"recording {"format":1,"program":"","device":"","identity":false,"limit":1,"#,
        r#""page_bytes":4096,"destructive":false,"long":false,"devices":[]}"#,
    );
    const DEVICE: &str = concat!(
        r#"{"name":"","node":"","pci_address":"","function":"","vendor_id":1,"device_id":1,"#,
        r#""board_id":"","firmware":"","node_guid":"00","system_image_guid":"00","#,
        r#""embedded_cpu":false,"netdevs":[""],"ports":[]}"#,
    );
    const CASE: &str = r#"case {"name":"open::it"}"#;

    #[test]
    fn other_files_are_no_recordings() {
        assert!(Document::parse("").is_err_and(|why| why.contains("first line")));
        assert_eq!(refused(&[]), "it has no line `recording`");
        assert_eq!(refused(&[HEADER]), "line 2: a recording has 1 to 2 devices");
        let newer = HEADER.replace("\"format\":1", "\"format\":2");
        assert!(refused(&[&newer]).contains("format 1"));
        assert!(refused(&[&HEADER.replace("limit", "Limit")]).contains("unknown field"));
    }

    #[test]
    fn entries_belong_to_a_case() {
        let map = r#"[     0.1] map {"file":0,"offset":0,"length":4096}"#;
        assert_eq!(refused(&[map]), "line 2: map outside of a case");
        let end = r#"end {"outcome":"passed","seconds":0}"#;
        assert_eq!(refused(&[CASE, end, map]), "line 4: map outside of a case");
        assert_eq!(refused(&[end]), "line 2: an end without a case");
        assert_eq!(refused(&[CASE, "lost {}"]), "line 3: \"lost\" is unknown");
    }

    #[test]
    fn small_file_that_decodes_to_gigabytes_is_refused() {
        let attribute = r#"{"id":1,"input":"*65536"}"#;
        let ioctl = |count| {
            let attributes = vec![attribute; count].join(",");
            format!(r#"ioctl {{"file":0,"object":0,"method":0,"attributes":[{attributes}]}}"#)
        };
        let text = [TITLE, CASE, &ioctl(17)].join("\n");
        let why = bytes::within(1 << 20, || Document::parse_all(&text)).expect_err("too large");
        assert!(why.starts_with("line 3: ioctl: decoded, it needs too much memory"), "{why}");
        let empty = ioctl(MAX_ATTRIBUTES + 1).replace(r#","input":"*65536""#, "");
        let why = refused(&[CASE, &empty]);
        assert_eq!(why, "line 3: an ioctl has at most 4094 attributes");
    }

    #[test]
    fn case_that_comes_twice_is_refused() {
        let header = HEADER.replace("\"devices\":[]", &format!("\"devices\":[{DEVICE}]"));
        let why = refused(&[&header, CASE, CASE]);
        assert_eq!(why, "the case \"open::it\" is in it twice");
    }

    #[test]
    fn texts_have_no_control_characters() {
        let escape = r"\u001b[2J";
        let header = HEADER.replace("\"devices\":[]", &format!("\"devices\":[{DEVICE}]"));
        let header = header.replace("\"\"", &format!("\"{escape}\""));
        let case = CASE.replace("it", escape);
        let open = format!(r#"open {{"device":"{escape}","kind":"{escape}","error":"{escape}"}}"#);
        let text = [TITLE, &header, &case, &open].join("\n");
        let document = Document::parse(&text).unwrap_or_else(|why| panic!("{why}"));
        let shown = format!("{}{}", document.header.program, document.cases[0].name);
        assert_eq!(shown, r"\u{1b}[2Jopen::\u{1b}[2J");
        // `Debug` would escape a control character as one backslash, and a backslash as two.
        assert!(!format!("{document:?}").replace(r"\\", "").contains(r"\u{1b}"), "{document:?}");
    }

    #[test]
    fn commands_are_found_by_their_numbers() {
        let ioctl = r#"ioctl {"file":0,"object":0,"method":0,"command":0}"#;
        assert_eq!(refused(&[CASE, ioctl]), "line 3: there is no command 0 before it");
        assert_eq!(refused(&[CASE, "no command", ioctl]), "line 4: lines that are no command");
        let command = ["x: dump command data NOP(0x80d) INPUT", "000: 080d0000"];
        let second = ioctl.replace("\"command\":0", "\"command\":1");
        let lines = [&[CASE], &command[..], &[&second]].concat();
        assert_eq!(refused(&lines), "line 5: command 1 is not the next");
        let many = vec!["x"; MAX_COMMAND_LINES + 1];
        assert!(refused(&many).ends_with("lines"), "{}", refused(&many));
    }
}
