//! Commands as text: debug messages of mlx5_core, recordings of the model, and plain hex.
//!
//! The kernel dumps a command before and after it runs: the 64-byte command queue entry, then the
//! mailbox blocks, in lines like `010: 01040000 00000000 00000000 00000000`. The entry holds the
//! first 16 bytes of input and output; each block holds 512 more and a 64-byte trailer. Some dumps
//! are `data` only: the bytes without entry and blocks. The model records every command as `data`,
//! with its time and function, so one parser reads both.
//!
//! ```
//! use verbless_prm::dump::{parse_log, write_command};
//! let mut text = Vec::new();
//! let (nop, done) = ([0x08, 0x0d, 0, 0, 0, 0, 0, 0, 0x2a], [0; 8]);
//! write_command(&mut text, "[0.5] function 0", "NOP(0x80d)", &nop, &done)?;
//! let commands = parse_log(std::str::from_utf8(&text).unwrap()).unwrap();
//! assert_eq!(commands[0].input.as_slice(), &nop[..]);
//! assert_eq!(commands[0].output.as_deref(), Some(&done[..]));
//! # std::io::Result::Ok(())
//! ```

use std::borrow::ToOwned;
use std::format;
use std::io::{self, Write};
use std::string::String;
use std::vec::Vec;

/// One command of a dump.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Dumped {
    /// The command's name in the kernel's dump.
    pub title: String,
    /// The start of the line before the title: timestamp and device.
    pub origin: String,
    /// The input mailbox.
    pub input: Vec<u8>,
    /// The input length in the entry; the kernel sometimes dumps only the first 16 bytes.
    pub input_length: usize,
    /// The output mailbox, if the dump has it.
    pub output: Option<Vec<u8>>,
    /// The output length in the entry.
    pub output_length: usize,
}

const ENTRY: usize = 64;
const INLINE: usize = 16;
const BLOCK: usize = 512;
const BLOCK_WITH_TRAILER: usize = 576;

/// The commands of a log in sending order; name and token join an output to its input.
///
/// # Errors
/// If a dump ends within the command queue entry, or an output has no input.
pub fn parse_log(text: &str) -> Result<Vec<Dumped>, String> {
    let mut commands: Vec<(u8, Dumped)> = Vec::new();
    for dump in dumps(text) {
        let Dump { title, origin, input: is_input, data_only, bytes } = dump;
        let (token, length, data) = if data_only {
            (0, bytes.len(), bytes)
        } else {
            if bytes.len() < ENTRY {
                return Err(format!(
                    "{title}: the dump has {} bytes; it must start with the 64 bytes of the \
                     command queue entry",
                    bytes.len()
                ));
            }
            let length = be32(&bytes, if is_input { 0x04 } else { 0x38 }) as usize;
            let inline = if is_input { 0x10 } else { 0x20 };
            let mut data = bytes[inline..inline + INLINE].to_vec();
            for block in bytes[ENTRY..].chunks(BLOCK_WITH_TRAILER) {
                data.extend_from_slice(&block[..block.len().min(BLOCK)]);
            }
            data.truncate(length);
            (bytes[0x3c], length, data)
        };
        if is_input {
            let command =
                Dumped { title, origin, input: data, input_length: length, ..Dumped::default() };
            commands.push((token, command));
            continue;
        }
        let asked = commands.iter_mut().rev().find(|(asked, command)| {
            *asked == token && command.title == title && command.output.is_none()
        });
        match asked {
            Some((_, command)) => {
                command.output = Some(data);
                command.output_length = length;
            }
            None => return Err(format!("{title}: the output has no input before it")),
        }
    }
    Ok(commands.into_iter().map(|(_, command)| command).collect())
}

struct Dump {
    title: String,
    origin: String,
    input: bool,
    data_only: bool,
    bytes: Vec<u8>,
}

/// The dumps of a log.
fn dumps(text: &str) -> Vec<Dump> {
    let mut dumps: Vec<Dump> = Vec::new();
    for line in text.lines() {
        if let Some(at) = line.find("dump command ") {
            let (origin, rest) = (&line[..at], &line[at + "dump command ".len()..]);
            let data_only = rest.starts_with("data ");
            let rest = rest.strip_prefix("data ").unwrap_or(rest).trim_end();
            if let Some((title, direction)) = rest.rsplit_once(' ')
                && matches!(direction, "INPUT" | "OUTPUT")
            {
                let origin = origin.trim_end().trim_end_matches(':').to_owned();
                let (title, input) = (title.to_owned(), direction == "INPUT");
                dumps.push(Dump { title, origin, input, data_only, bytes: Vec::new() });
            }
        } else if let Some((offset, bytes)) = dump_line(line) {
            // A dump without a title is a command queue entry copied from a log.
            if dumps.is_empty() {
                let (title, origin) = ("command".to_owned(), String::new());
                dumps.push(Dump {
                    title,
                    origin,
                    input: true,
                    data_only: false,
                    bytes: Vec::new(),
                });
            }
            if let Some(dump) = dumps.last_mut()
                && offset == dump.bytes.len()
            {
                dump.bytes.extend(bytes);
            }
        }
    }
    dumps
}

/// The offset and up to 16 bytes of a line `…010: 01040000 00000000 00000000 00000000`; the last
/// line of a dump may be short.
fn dump_line(line: &str) -> Option<(usize, Vec<u8>)> {
    let (head, words) = line.rsplit_once(": ")?;
    let offset = head.rsplit(' ').next()?;
    if offset.len() < 3 {
        return None;
    }
    let offset = usize::from_str_radix(offset, 16).ok()?;
    let mut bytes = Vec::new();
    for word in words.split_whitespace() {
        let short = !matches!(word.len(), 2 | 4 | 6 | 8) || !word.is_ascii();
        if short || !bytes.len().is_multiple_of(4) {
            return None;
        }
        for at in (0..word.len()).step_by(2) {
            bytes.push(u8::from_str_radix(&word[at..at + 2], 16).ok()?);
        }
    }
    (1..=16).contains(&bytes.len()).then_some((offset, bytes))
}

/// Writes a command in the format of [`parse_log`]; `origin` is its time and function.
///
/// # Errors
/// The errors of `sink`.
pub fn write_command(
    sink: &mut dyn Write,
    origin: &str,
    title: &str,
    input: &[u8],
    output: &[u8],
) -> io::Result<()> {
    for (direction, bytes) in [("INPUT", input), ("OUTPUT", output)] {
        writeln!(sink, "{origin}: dump command data {title} {direction}")?;
        for (line, row) in bytes.chunks(16).enumerate() {
            write!(sink, "{:03x}:", line * 16)?;
            for word in row.chunks(4) {
                write!(sink, " ")?;
                word.iter().try_for_each(|byte| write!(sink, "{byte:02x}"))?;
            }
            writeln!(sink)?;
        }
        writeln!(sink)?;
    }
    Ok(())
}

/// The bytes of plain hex in any grouping. Offsets before `:`, `0x` and commas are allowed; text
/// after two spaces, `|` or `#` is ignored.
///
/// # Errors
/// On any other text, on half a byte, and on no bytes.
pub fn parse_hex(text: &str) -> Result<Vec<u8>, String> {
    let mut digits = String::new();
    for (number, line) in text.lines().enumerate() {
        let line = line.split(['#', '|']).next().unwrap_or("");
        let line = line.split_once(": ").map_or(line, |(_, rest)| rest);
        // xxd prints two spaces before its text column.
        let line = line.trim().split("  ").next().unwrap_or("");
        for word in line.split(|c: char| c.is_whitespace() || c == ',') {
            let word = word.strip_prefix("0x").unwrap_or(word);
            if let Some(bad) = word.chars().find(|c| !c.is_ascii_hexdigit()) {
                return Err(format!("line {}: `{bad}` is not a hexadecimal digit", number + 1));
            }
            digits.push_str(word);
        }
    }
    if !digits.len().is_multiple_of(2) {
        return Err(format!("{} digits are not whole bytes", digits.len()));
    }
    if digits.is_empty() {
        return Err("there are no bytes".into());
    }
    let byte = |i: usize| u8::from_str_radix(&digits[i..i + 2], 16).expect("only hex digits");
    Ok((0..digits.len()).step_by(2).map(byte).collect())
}

fn be32(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec;

    const LOG: &str = "\
[  +0.07] mlx5_core 0000:02:00.0: dump command:587:(pid 87): dump command ENABLE_HCA(0x104) INPUT
[  +0.00] 000: 07000000 0000000c 00000000 00000000
[  +0.00] 010: 01040000 00000000 00000000 00000000
[  +0.00] 020: 00000000 00000000 00000000 00000000
[  +0.00] 030: 00000000 00000000 00000010 01fd0001

[  +0.00] mlx5_core 0000:02:00.0: cmd_work_handler:665:(pid 87): writing 0x1 to command doorbell
[  +0.00] mlx5_core 0000:02:00.0: dump_command:587:(pid 87): dump command ENABLE_HCA(0x104) OUTPUT
[  +0.00] 000: 07000000 0000000c 00000000 00000000
[  +0.00] 010: 01040000 00000000 00000000 00000000
[  +0.00] 020: 00000000 00000001 00000000 00000002
[  +0.00] 030: 00000000 00000000 00000010 01fd0000
";

    #[test]
    fn kernel_log_yields_command_input_and_output() {
        let commands = parse_log(LOG).unwrap();
        assert_eq!(commands.len(), 1);
        assert_eq!(commands[0].title, "ENABLE_HCA(0x104)");
        assert_eq!(commands[0].input, [1, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        let output = commands[0].output.as_deref().unwrap();
        assert_eq!(output, [0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 2]);
    }

    #[test]
    fn truncated_dump_reports_missing_bytes() {
        let cut = LOG.lines().take(3).collect::<Vec<_>>().join("\n");
        assert!(parse_log(&cut).unwrap_err().contains("64 bytes"));
        let long = parse_log(&LOG.replace("0000000c", "0000100c")).unwrap();
        assert_eq!((long[0].input.len(), long[0].input_length), (16, 4108));
        let lone = LOG.lines().skip(6).collect::<Vec<_>>().join("\n");
        assert!(parse_log(&lone).unwrap_err().contains("no input before it"));
    }

    #[test]
    fn written_commands_parse_back_at_any_length() {
        for length in (0..40).chain([511, 512, 5000]) {
            let input: Vec<u8> = (0..length).map(|at| at as u8).collect();
            let mut text = Vec::new();
            write_command(&mut text, "[0.1] function 2", "NOP(0x80d)", &input, &[1; 9]).unwrap();
            let read = parse_log(&String::from_utf8(text).unwrap()).unwrap();
            assert_eq!(read.len(), 1);
            assert_eq!((&read[0].input, read[0].output.as_deref()), (&input, Some(&[1; 9][..])));
            assert_eq!((&*read[0].origin, &*read[0].title), ("[0.1] function 2", "NOP(0x80d)"));
        }
    }

    #[test]
    fn non_hex_lines_are_skipped() {
        let mut text = vec![];
        write_command(&mut text, "x", "NOP(0x80d)", &[7; 5], &[]).unwrap();
        let text =
            String::from_utf8(text).unwrap().replace("OUTPUT", "OUTPUT\nnote: this is\n000: zz");
        assert_eq!(parse_log(&text).unwrap()[0].output.as_deref(), Some(&[][..]));
    }

    #[test]
    fn plain_hex_parses_in_any_grouping() {
        for text in [
            "01040000",
            "0x01 0x04, 0x00 0x00",
            "00000000: 0104 0000  ....\n",
            "01 04\n00 00 # ENABLE_HCA",
        ] {
            assert_eq!(parse_hex(text).unwrap(), [1, 4, 0, 0], "{text}");
        }
        assert!(parse_hex("010").unwrap_err().contains("whole bytes"));
        assert!(parse_hex("01 zz").unwrap_err().contains("`z`"));
        assert!(parse_hex(" \n").unwrap_err().contains("no bytes"));
    }
}
