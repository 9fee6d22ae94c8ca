//! Cuts pasted text into dumps, dumped commands and lines of text.

use super::rows::{Row, row};
use super::wrapped::{self, DecodedLine};

/// A piece of the text, in order.
#[derive(Debug)]
pub(super) enum Piece {
    /// Hex of a CQE, a WQE, or another structure.
    Dump(Dump),
    /// A dumped command of mlx5_core or the model: title and rows, verbatim.
    Command(Command),
    /// A line of text.
    Line(Line),
}

/// A line of text.
#[derive(Clone, Debug)]
pub(super) struct Line {
    /// Number from 1.
    pub(super) number: usize,
    /// Number of the last source line, if mail broke the line.
    pub(super) last: usize,
    pub(super) text: String,
}

/// The rows of one dump.
#[derive(Debug, Default)]
pub(super) struct Dump {
    /// Numbers of the first and last row's lines.
    pub(super) lines: (usize, usize),
    /// The line that announces it, or else the prefix of the first row.
    pub(super) title: String,
    /// The number of the line that announces it.
    pub(super) title_line: Option<usize>,
    pub(super) bytes: Vec<u8>,
    /// Bytes per group.
    pub(super) group: usize,
    /// Byte ranges whose rows are missing.
    pub(super) missing: Vec<(usize, usize)>,
    /// Offset or address of the first byte.
    pub(super) base: Option<u64>,
    /// Bytes before the last row.
    pub(super) before_last: usize,
}

/// A dumped command.
#[derive(Debug)]
pub(super) struct Command {
    pub(super) lines: (usize, usize),
    /// Its name in the title.
    pub(super) title: String,
    pub(super) is_input: bool,
    pub(super) text: String,
    /// The number of bytes in its rows so far.
    bytes: usize,
}

/// The pieces of a text.
pub(super) fn pieces(text: &str) -> Vec<Piece> {
    let is_hex = text.lines().all(is_plain);
    let mut pieces: Vec<Piece> = Vec::new();
    let parts =
        wrapped::lines(text, clean).into_iter().flat_map(|DecodedLine { first, last, text }| {
            match glued(&text) {
                Some(at) => {
                    vec![(first, first, text[..at].to_owned()), (last, last, text[at..].to_owned())]
                }
                None => vec![(first, last, text)],
            }
        });
    for (number, last, line) in parts {
        if line.trim().is_empty() {
            continue;
        }
        if let Some(command) = command_title(&line, number) {
            pieces.push(Piece::Command(command));
            continue;
        }
        if ends(&mut pieces, line.trim(), number) {
            continue;
        }
        let found = row(&line);
        if let Some(row) = &found
            && go_on(&mut pieces, row, &line, number)
        {
            continue;
        }
        match found {
            Some(row) => {
                let (title, title_line) = title_of(&pieces, &row, number);
                let is_announced = title_line.is_some() && row.bytes.len() >= 16;
                if row.is_sure || is_hex || is_announced {
                    let dump = Dump { title, title_line, ..Dump::new(&row, number) };
                    pieces.push(Piece::Dump(dump));
                } else {
                    pieces.push(Piece::Line(Line { number, last, text: line.trim().to_owned() }));
                }
            }
            None => pieces.push(Piece::Line(Line { number, last, text: line.trim().to_owned() })),
        }
    }
    for piece in &mut pieces {
        if let Piece::Dump(dump) = piece {
            dump.end();
        }
    }
    pieces
}

/// Whether a line is the last of hexdump or od, which has only the end offset.
fn ends(pieces: &mut [Piece], line: &str, number: usize) -> bool {
    let Some(Piece::Dump(dump)) = pieces.last_mut() else { return false };
    let Some(base) = dump.base.filter(|_| line.len() >= 7) else { return false };
    let end = base + dump.bytes.len() as u64;
    let is_end = [8, 16].iter().any(|&radix| u64::from_str_radix(line, radix) == Ok(end));
    if is_end {
        dump.lines.1 = number;
    }
    is_end
}

/// Whether a line is hex, with or without an offset, with an optional comment, or empty.
fn is_plain(line: &str) -> bool {
    let line = line.split('#').next().unwrap_or_default();
    line.trim().is_empty() || row(line).is_some_and(|row| row.prefix.is_empty())
}

/// Removes the marks of terminals, mail and Markdown: colours, carriage returns, quote and emphasis
/// marks.
fn clean(line: &str) -> String {
    let mut out = String::new();
    let mut rest = line;
    while let Some(at) = rest.find("\u{1b}[") {
        out += &rest[..at];
        let code = &rest[at + 2..];
        let end = code.find(|c: char| c.is_ascii_alphabetic()).map_or(code.len(), |at| at + 1);
        rest = &code[end..];
    }
    out += rest;
    let out = plain_text(&out);
    let quoted = out.trim_start_matches(['>', ' ']);
    if out.trim_start().starts_with('>') { quoted.to_owned() } else { out.replace('\r', "") }
}

/// Removes Markdown's marks: `**`, backticks, and `__` at the ends of words.
fn plain_text(line: &str) -> String {
    let mut out = line.replace("**", "").replace('`', "");
    if out.contains("__") {
        let strip = |word: &str| match word.strip_prefix("__") {
            Some(word) => word.to_owned(),
            None => word.trim_end_matches(['.', ',']).strip_suffix("__").unwrap_or(word).to_owned(),
        };
        // A pair may enclose several words. A name such as __func__ loses its marks.
        out = out.split(' ').map(strip).map(|word| strip(&word)).collect::<Vec<_>>().join(" ");
    }
    out
}

/// The offset of the next log line after a row of sixteen bytes, if the newline between them is
/// lost.
fn glued(line: &str) -> Option<usize> {
    const WIDTH: usize = 8;
    let is_hex = |text: &str| text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let (mut words, mut end) = (0, 0);
    for word in line.split_whitespace() {
        let start = end + line[end..].find(word)?;
        end = start + word.len();
        let (head, tail) = word.split_at_checked(WIDTH)?;
        if !is_hex(head) {
            return None;
        }
        words += 1;
        if words == 4 {
            // If a digit follows, the words do not have eight digits.
            return tail
                .starts_with(|c: char| !c.is_ascii_hexdigit() && c != ':')
                .then_some(start + WIDTH);
        }
        if !tail.is_empty() {
            return None;
        }
    }
    None
}

/// The title of a dumped command: `dump command CREATE_CQ(0x400) INPUT`.
fn command_title(line: &str, number: usize) -> Option<Command> {
    const MARK: &str = "dump command ";
    let rest = &line[line.find(MARK)? + MARK.len()..];
    let rest = rest.strip_prefix("data ").unwrap_or(rest).trim_end();
    let (title, direction) = rest.rsplit_once(' ')?;
    let is_input = match direction {
        "INPUT" => true,
        "OUTPUT" => false,
        _ => return None,
    };
    let (title, text) = (title.to_owned(), format!("{line}\n"));
    Some(Command { lines: (number, number), title, is_input, text, bytes: 0 })
}

/// Adds the row to the last dump or command if it continues it; lines of text may be in between.
fn go_on(pieces: &mut [Piece], row: &Row<'_>, line: &str, number: usize) -> bool {
    let mut between = 0;
    for piece in pieces.iter_mut().rev() {
        match piece {
            Piece::Line(Line { text, .. }) => {
                if is_title(text) || between > 8 {
                    return false;
                }
                between += 1;
            }
            Piece::Command(command) => {
                if row.offset != Some(command.bytes as u64) || row.bytes.len() > 16 {
                    return false;
                }
                command.bytes += row.bytes.len();
                command.text += &format!("{line}\n");
                command.lines.1 = number;
                return true;
            }
            Piece::Dump(dump) => return dump.take(row, between > 0, number),
        }
    }
    false
}

/// Whether a line announces a dump.
fn is_title(line: &str) -> bool {
    let line = line.to_ascii_lowercase();
    ["cqe", "wqe", "completion with error", "dump", "error cq", "error sq", "error rq", "len="]
        .iter()
        .any(|mark| line.contains(mark))
}

/// The title of a dump that begins with `row`, and its line number.
fn title_of(pieces: &[Piece], row: &Row<'_>, number: usize) -> (String, Option<usize>) {
    match pieces.last() {
        Some(Piece::Line(line)) if number - line.number <= 3 && is_title(&line.text) => {
            (line.text.clone(), Some(line.number))
        }
        _ => (row.prefix.to_owned(), None),
    }
}

impl Dump {
    fn new(row: &Row<'_>, number: usize) -> Self {
        let mut this = Self { lines: (number, number), group: row.group, ..Self::default() };
        // A dump that starts at a small nonzero offset lacks its first rows.
        this.base = row.offset.map(|offset| if offset < 0x40 { 0 } else { offset });
        let gap = row.offset.map_or(0, |offset| (offset - this.base.unwrap_or(offset)) as usize);
        this.skip(gap);
        this.before_last = this.bytes.len();
        this.bytes.extend_from_slice(&row.bytes);
        this
    }

    fn skip(&mut self, bytes: usize) {
        if bytes > 0 {
            let start = self.bytes.len();
            self.missing.push((start, start + bytes));
            self.bytes.resize(start + bytes, 0);
        }
    }

    /// Adds the row if it continues the dump.
    fn take(&mut self, row: &Row<'_>, is_apart: bool, number: usize) -> bool {
        let entry_is_whole = self.bytes.len().is_multiple_of(64);
        match (self.base, row.offset) {
            (Some(base), Some(offset)) => {
                self.cut(offset.wrapping_sub(base));
                let entry_is_whole = self.bytes.len().is_multiple_of(64);
                let length = self.bytes.len() as u64;
                let octal = row.octal.filter(|&octal| octal == base + length);
                let Some(at) = octal.unwrap_or(offset).checked_sub(base) else { return false };
                // Up to three rows may be lost; a larger gap starts another dump.
                if at < length || at - length > 0x30 || at > length && entry_is_whole {
                    return false;
                }
                self.skip((at - length) as usize);
            }
            (None, None) => {
                let same = row.group == self.group && (!is_apart || !entry_is_whole);
                if !same || is_apart && !row.is_sure {
                    return false;
                }
            }
            _ => return false,
        }
        self.before_last = self.bytes.len();
        self.bytes.extend_from_slice(&row.bytes);
        self.lines.1 = number;
        true
    }

    /// Cuts the last row at the offset of the next one if the row is too long.
    fn cut(&mut self, next: u64) {
        let is_after_row = next == self.before_last as u64 + 16;
        if is_after_row
            && (self.before_last + 17..self.before_last + 32).contains(&self.bytes.len())
        {
            self.bytes.truncate(self.before_last + 16);
        }
    }

    /// Cuts a 17th byte from the last row of a dump with offsets.
    fn end(&mut self) {
        let is_last = self.base.is_some() && self.before_last >= 16;
        if is_last && self.bytes.len() == self.before_last + 17 {
            self.bytes.truncate(self.before_last + 16);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dumps(text: &str) -> Vec<Dump> {
        let dumps = pieces(text).into_iter();
        dumps
            .filter_map(|piece| if let Piece::Dump(dump) = piece { Some(dump) } else { None })
            .collect()
    }

    fn lines(text: &str) -> Vec<String> {
        let lines = pieces(text).into_iter();
        lines
            .filter_map(|piece| if let Piece::Line(line) = piece { Some(line.text) } else { None })
            .collect()
    }

    const ROW: &str = "01020304 05060708 090a0b0c 0d0e0f10";

    #[test]
    fn text_between_rows_does_not_end_dump() {
        let text =
            format!("got completion with error:\n{ROW}\n{ROW}\nother\n{ROW}\n{ROW}\nafter\n");
        let dumps = dumps(&text);
        assert_eq!(dumps.len(), 1, "{dumps:?}");
        assert_eq!((dumps[0].bytes.len(), dumps[0].lines), (64, (2, 6)));
        assert_eq!(dumps[0].title, "got completion with error:");
        assert_eq!(lines(&text), ["got completion with error:", "other", "after"]);
    }

    #[test]
    fn title_or_restarted_offset_begins_another_dump() {
        let four = format!("{ROW}\n{ROW}\n{ROW}\n{ROW}\n");
        assert_eq!(dumps(&format!("Error cqe:\n{four}Error wqe:\n{four}")).len(), 2);
        let offsets = (0..4).map(|at| format!("{:08x}: {ROW}\n", at * 16)).collect::<String>();
        assert_eq!(dumps(&format!("{offsets}{offsets}")).len(), 2);
        let addresses = (0..8).map(|at| format!("{:#x}: {ROW}\n", 0x7f00_0040 + at * 16));
        assert_eq!(dumps(&addresses.collect::<String>())[0].bytes.len(), 128);
    }

    #[test]
    fn missing_dump_rows_are_reported() {
        let rows = [0, 0x10, 0x30].map(|at| format!("{at:08x}: {ROW}\n")).concat();
        assert_eq!(dumps(&rows)[0].missing, [(0x20, 0x30)]);
        let rows = [0x20, 0x30].map(|at| format!("{at:08x}: {ROW}\n")).concat();
        assert_eq!(
            (&*dumps(&rows)[0].missing, dumps(&rows)[0].bytes.len()),
            (&[(0, 0x20)][..], 64)
        );
    }

    #[test]
    fn octal_offsets_of_od_go_on() {
        let text = [0, 16, 32, 48].map(|at| format!("{at:07o} {ROW}\n")).concat() + "0000100\n";
        assert_eq!((dumps(&text).len(), dumps(&text)[0].bytes.len()), (1, 64));
        assert_eq!((&dumps(&text)[0].missing[..], lines(&text).len()), (&[][..], 0));
    }

    #[test]
    fn colours_quotes_and_carriage_returns_are_left_out() {
        let text = format!("> \u{1b}[31m{ROW}\u{1b}[0m\r\n> > {ROW}\r\n");
        assert_eq!(dumps(&text)[0].bytes.len(), 32);
    }

    #[test]
    fn line_glued_to_row_is_split_off() {
        let text = format!("{ROW}\n{ROW}\n{ROW}\n{ROW}[14963.5] [veg06:14872:0] dc_verbs.c\n");
        assert_eq!(dumps(&text)[0].bytes.len(), 64);
        assert_eq!(lines(&text), ["[14963.5] [veg06:14872:0] dc_verbs.c"]);
        assert_eq!(glued("01020304 05060708 090a0b0c 0d0e0f1011"), None);
        assert_eq!(glued(ROW), None);
    }

    #[test]
    fn overlong_row_ends_at_next_offset() {
        let zeros = "00 ".repeat(17);
        let last = "00 00 00 00 60 10 68 01 0a 00 1d bb 00 0f 9f d2";
        let rows = |last: &str| {
            format!("00000000: {zeros}\n00000010: {zeros}\n00000020: {zeros}\n00000030: {last}\n")
        };
        for last in [last.to_owned(), format!("{last} 00")] {
            let dumps = dumps(&rows(&last));
            assert_eq!((dumps.len(), dumps[0].bytes.len()), (1, 64), "{dumps:?}");
            assert_eq!((dumps[0].bytes[0x37], dumps[0].bytes[0x3f]), (1, 0xd2));
        }
    }

    #[test]
    fn marks_of_markdown_are_left_out() {
        for (line, plain) in [
            (
                "op_mod(0x0) failed, **status limits exceeded(0x8),** syndrome",
                "op_mod(0x0) failed, status limits exceeded(0x8), syndrome",
            ),
            ("- `ib_iface.c:988 UCX` a", "- ib_iface.c:988 UCX a"),
            ("failed, __status bad__ in a__b", "failed, status bad in a__b"),
        ] {
            assert_eq!(lines(line), [plain]);
        }
    }

    #[test]
    fn plain_hex_of_any_grouping_is_one_dump() {
        for text in
            ["0107 0000 0000 0001", "01 07\n00 00 # comment\n00 00 00 01", "01070000\n00000001"]
        {
            let dumps = dumps(text);
            assert_eq!(
                dumps.iter().map(|dump| dump.bytes.len()).sum::<usize>(),
                8,
                "{text}: {dumps:?}"
            );
            assert_eq!(dumps.len(), 1, "{text}");
        }
        assert_eq!(lines("12\nand text"), ["12", "and text"]);
    }
}
