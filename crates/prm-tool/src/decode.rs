//! `prm decode`: pasted logs and dumps as named fields and sentences.
//!
//! `paste` and `rows` cut the text into dumps, dumped commands and lines. `entry` and `wqe`
//! recognize dumps by their bytes, `message` explains lines with numbers, and the other lines are
//! listed at the end.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::io::Read;
use std::path::{Path, PathBuf};

use clap::Args;
use verbless_prm::dump::{Dumped, parse_hex, parse_log};
use verbless_prm::reflect::View;

#[cfg(feature = "book")]
use super::description::Description;
use super::runtime::Runtime;
use known::{Known, shortfall};
use paste::{Command, Dump, Line, Piece};

mod entry;
mod known;
mod message;
mod paste;
mod rows;
mod wqe;
mod wrapped;

/// Maximum number of leftover lines that are all shown. If there are more, only the first and the
/// last line of each run are.
const SHOWN: usize = 40;

/// Options of `prm decode`.
#[derive(Args)]
pub struct Options {
    /// A pasted log with dumps (CQEs, WQEs, commands) and failure messages, a recording of the
    /// model, or plain hex of a CQE, a WQE or a command's input; - is standard input.
    file: PathBuf,
    /// Plain hex of the matching output.
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// The hex is this structure (cq_context, create_cq_out).
    #[arg(long, value_name = "NAME")]
    of: Option<String>,
    /// Also show zero fields, entries without an error and every leftover line.
    #[arg(long)]
    all: bool,
}

/// Runs the task.
pub(crate) fn run(root: &Path, options: &Options) -> crate::repository::Result {
    let description = super::check::load_sound(root)?;
    let runtime = Runtime::new(&description);
    let known = Known::new(&description, &runtime, options.all);
    super::repository::print(&decode(&known, options)?)
}

/// A log as [`run`] shows it by default.
#[cfg(feature = "book")]
pub(crate) fn text(
    description: &Description,
    runtime: &Runtime,
    text: &str,
) -> crate::repository::Result<String> {
    let known = Known::new(description, runtime, false);
    let options = Options { file: PathBuf::new(), output: None, of: None, all: false };
    decode_text(&known, &options, text, None)
}

fn decode(known: &Known<'_>, options: &Options) -> crate::repository::Result<String> {
    let text = read(&options.file)?;
    let output = match &options.output {
        Some(file) => Some(read(file)?),
        None => None,
    };
    decode_text(known, options, &text, output.as_deref())
}

/// The decoded text. The text and errors quote parts of the log, which may come from anyone, so
/// control characters that a terminal would obey are escaped.
fn decode_text(
    known: &Known<'_>,
    options: &Options,
    text: &str,
    output: Option<&str>,
) -> crate::repository::Result<String> {
    match decode_raw(known, options, text, output) {
        Ok(decoded) => Ok(plain(&decoded)),
        Err(error) => Err(plain(&error.to_string()).into()),
    }
}

/// Escapes control characters, except newlines and tabs, and marks that change the writing
/// direction.
fn plain(text: &str) -> String {
    let steers = |c: char| {
        c.is_control() && !matches!(c, '\n' | '\t')
            || matches!(c, '\u{61c}' | '\u{200e}'..='\u{200f}' | '\u{202a}'..='\u{202e}')
            || matches!(c, '\u{2066}'..='\u{2069}')
    };
    let mut plain = String::with_capacity(text.len());
    for c in text.chars() {
        match steers(c) {
            true => plain.extend(c.escape_unicode()),
            false => plain.push(c),
        }
    }
    plain
}

fn decode_raw(
    known: &Known<'_>,
    options: &Options,
    text: &str,
    output: Option<&str>,
) -> crate::repository::Result<String> {
    if let Some(name) = &options.of {
        return of_structure(known, name, text);
    }
    if let Some(output) = output {
        let (input, output) = (parse_hex(text)?, parse_hex(output)?);
        return Ok(dumped(
            known,
            &Dumped { input_length: input.len(), input, output: Some(output), ..Dumped::default() },
        ));
    }
    let mut pieces = paste::pieces(text);
    if pieces.iter().all(|piece| matches!(piece, Piece::Line(_)))
        && let Ok(bytes) = parse_hex(text)
    {
        // Hex with its own grouping.
        let lines = (1, text.lines().count());
        pieces = vec![Piece::Dump(Dump { lines, bytes, ..Dump::default() })];
    }
    let mut out = String::new();
    let mut left: Vec<Line> = Vec::new();
    let outputs = outputs(&pieces);
    let is_one = pieces.len() == 1;
    let mut same = RepeatedLines::default();
    for (at, piece) in pieces.iter().enumerate() {
        if !matches!(piece, Piece::Line(_)) {
            same.end(&mut out);
        }
        match piece {
            Piece::Dump(dump) => {
                if !is_one {
                    head(&mut out, dump.lines, &dump.title);
                }
                out += &entry::show(known, dump);
            }
            Piece::Command(command) if command.is_input => {
                out += &dumped_command(known, command, outputs.of_input.get(&at).copied());
            }
            Piece::Command(command) => {
                if !outputs.joined.contains(&at) {
                    head(&mut out, command.lines, &command.title);
                    out += "  an output without an input before it:\n";
                    command.text.lines().for_each(|line| out += &format!("    {line}\n"));
                }
            }
            Piece::Line(line) => match message::explain(known, &line.text) {
                Some(text) if !known.all && same.is_it(&line.text, &text) => {
                    same.lines.push(line.number);
                }
                Some(text) => {
                    same.end(&mut out);
                    head(&mut out, (line.number, line.last), &line.text);
                    out += &text;
                    (same.shape, same.text) = (shape(&line.text), text);
                }
                None => left.push(line.clone()),
            },
        }
    }
    same.end(&mut out);
    let titles: BTreeSet<usize> = pieces
        .iter()
        .filter_map(|piece| if let Piece::Dump(dump) = piece { dump.title_line } else { None })
        .collect();
    left.retain(|line| !titles.contains(&line.number));
    if out.is_empty() {
        return Err(match left.first() {
            None => "there is nothing to decode: the text is empty".into(),
            Some(line) => format!(
                "line {}: `{}` is neither a hexdump nor a known message, nor is any of the {} \
                 lines; `cargo xtask prm show` explains single numbers",
                line.number,
                line.text,
                left.len()
            )
            .into(),
        });
    }
    print_unexplained(&mut out, &left, known.all);
    Ok(out)
}

/// Lines that repeat the words of the last shown line.
#[derive(Default)]
struct RepeatedLines {
    /// The explanation of the last shown line, and the line's words without numbers.
    text: String,
    shape: String,
    /// The numbers of the repeating lines, which are not shown.
    lines: Vec<usize>,
}

impl RepeatedLines {
    fn is_it(&self, line: &str, text: &str) -> bool {
        self.text == text && self.shape == shape(line)
    }

    /// Writes the number of repetitions, and clears the list.
    fn end(&mut self, out: &mut String) {
        let _ = match self.lines.as_slice() {
            [] => Ok(()),
            [line] => writeln!(out, "  the same once more: line {line} (--all shows each)"),
            [first, .., last] => writeln!(
                out,
                "  the same {} more times: lines {first} to {last} (--all shows each)",
                self.lines.len()
            ),
        };
        *self = Self::default();
    }
}

/// A line's words without digits: no times, numbers, host names.
fn shape(line: &str) -> String {
    let words = line.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty());
    let words = words.filter(|word| !word.contains(|c: char| c.is_ascii_digit()));
    words.collect::<Vec<_>>().join(" ")
}

/// Decodes the hex of a named structure.
fn of_structure(known: &Known<'_>, name: &str, text: &str) -> crate::repository::Result<String> {
    let info = known.runtime.structure(name).ok_or(format!("there is no structure [{name}]"))?;
    let dumps: Vec<Vec<u8>> = match parse_hex(text) {
        Ok(bytes) => vec![bytes],
        Err(error) => {
            let dumps = paste::pieces(text).into_iter().filter_map(|piece| match piece {
                Piece::Dump(dump) => Some(dump.bytes),
                _ => None,
            });
            let dumps: Vec<_> = dumps.collect();
            if dumps.is_empty() {
                return Err(error.into());
            }
            dumps
        }
    };
    let mut out = String::new();
    for bytes in dumps {
        let view = View::new(info, &bytes);
        let lines = if known.all { format!("{view:#}") } else { view.to_string() };
        let _ = write!(out, "{name}{}\n{lines}", shortfall(bytes.len(), info.bytes));
    }
    Ok(out)
}

/// Writes the line numbers and title of the text that the next lines explain.
fn head(out: &mut String, (first, last): (usize, usize), title: &str) {
    if !out.is_empty() {
        out.push('\n');
    }
    let _ = match first == last {
        true => write!(out, "line {first}"),
        false => write!(out, "lines {first} to {last}"),
    };
    let _ = if title.is_empty() { writeln!(out) } else { writeln!(out, ": {title}") };
}

/// The outputs that belong to inputs.
#[derive(Default)]
struct Outputs<'a> {
    /// The output of the input at an index.
    of_input: BTreeMap<usize, &'a Command>,
    /// Indexes of outputs that have an input.
    joined: BTreeSet<usize>,
}

/// The outputs among the pieces. An output belongs to the last input of its name and token without
/// an output.
fn outputs(pieces: &[Piece]) -> Outputs<'_> {
    let mut outputs = Outputs::default();
    // Inputs without an output, by name.
    let mut open: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for (at, piece) in pieces.iter().enumerate() {
        let Piece::Command(command) = piece else { continue };
        let inputs = open.entry(&command.title).or_default();
        if command.is_input {
            inputs.push(at);
            continue;
        }
        let found = inputs.iter().rposition(|&input| match &pieces[input] {
            Piece::Command(input) => {
                join(input, Some(command)).is_some_and(|dumped| dumped.output.is_some())
            }
            _ => false,
        });
        if let Some(index) = found {
            outputs.of_input.insert(inputs.remove(index), command);
            outputs.joined.insert(at);
        }
    }
    outputs
}

/// Input and output as one command; `None` if they are not a command.
fn join(input: &Command, output: Option<&Command>) -> Option<Dumped> {
    let text = format!("{}{}", input.text, output.map_or("", |output| &output.text));
    parse_log(&text).ok()?.pop()
}

/// A dumped command, with its output if there is one.
fn dumped_command(known: &Known<'_>, command: &Command, output: Option<&Command>) -> String {
    let Some(found) = join(command, output) else {
        let mut out = String::new();
        head(&mut out, command.lines, &command.title);
        out += "  cut off: the dump must start with the 64 bytes of the command queue entry:\n";
        command.text.lines().for_each(|line| out += &format!("    {line}\n"));
        return out;
    };
    dumped(known, &found)
}

fn dumped(known: &Known<'_>, dumped: &Dumped) -> String {
    let mut out = String::new();
    if !dumped.origin.is_empty() {
        out += &format!("{}\n", dumped.origin);
    }
    let Dumped { input, output, input_length, .. } = dumped;
    match known.runtime.command_of(input) {
        None => {
            let start: Vec<String> = input.iter().take(16).map(|it| format!("{it:02x}")).collect();
            out + &format!("unknown opcode: {}\n", start.join(" "))
        }
        Some(command) => {
            out + &entry::input(known, command, input, *input_length, output.as_deref())
        }
    }
}

/// Lists the lines that were not decoded.
fn print_unexplained(out: &mut String, left: &[Line], all: bool) {
    if left.is_empty() {
        return;
    }
    let plural = if left.len() == 1 { "" } else { "s" };
    let _ = writeln!(out, "\nnot decoded, {} line{plural}:", left.len());
    let mut runs: Vec<&[Line]> = left.chunk_by(|one, next| one.number + 1 == next.number).collect();
    if all || left.len() <= SHOWN {
        runs = left.chunks(1).collect();
    }
    for run in runs {
        let (Some(first), Some(last)) = (run.first(), run.last()) else { continue };
        let _ = match run.len() {
            1 => writeln!(out, "  {}: {}", first.number, first.text),
            2 => writeln!(
                out,
                "  {}: {}\n  {}: {}",
                first.number, first.text, last.number, last.text
            ),
            count => writeln!(
                out,
                "  {} to {}, {count} lines: {} … {} (--all shows each)",
                first.number, last.number, first.text, last.text
            ),
        };
    }
}

fn read(file: &Path) -> crate::repository::Result<String> {
    let mut bytes = Vec::new();
    if file == Path::new("-") {
        std::io::stdin().read_to_end(&mut bytes)?;
    } else {
        bytes = std::fs::read(file).map_err(|error| format!("{}: {error}", file.display()))?;
    }
    if bytes.starts_with(&[0x1f, 0x8b]) {
        let mut text = String::new();
        flate2::read::GzDecoder::new(bytes.as_slice()).read_to_string(&mut text)?;
        return Ok(text);
    }
    String::from_utf8(bytes).map_err(|_| format!("{} is not text", file.display()).into())
}

#[cfg(test)]
mod form_tests;
#[cfg(test)]
mod tests;
