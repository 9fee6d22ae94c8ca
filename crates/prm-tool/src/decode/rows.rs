//! Parses one line of a hex dump of any program: prefix, offset, bytes.
//!
//! libmlx5 and DPDK print four words per line, kernels an offset, sixteen bytes and sometimes
//! ASCII, `xxd` groups of two bytes, gdb an address and words with 0x; loggers put timestamps,
//! hosts and ranks in front.

/// The minimum number of digits of hex without spaces that is a row by itself: a whole CQE.
const MIN_ROW_DIGITS: usize = 128;

/// A line of a dump.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Row<'a> {
    /// The text before offset and bytes.
    pub(super) prefix: &'a str,
    /// The offset or address of the first byte.
    pub(super) offset: Option<u64>,
    /// The offset, if the digits are octal, as od prints them.
    pub(super) octal: Option<u64>,
    pub(super) bytes: Vec<u8>,
    /// Bytes per group, which may be a machine word: 1, 2, 4, 8; 0 without groups.
    pub(super) group: usize,
    /// Whether it can only be a row. Otherwise it counts only if it continues a dump.
    pub(super) is_sure: bool,
}

/// The line as a row, if it can be one.
pub(super) fn row(line: &str) -> Option<Row<'_>> {
    let line = line.trim_end();
    let parts = std::iter::once(line).chain(line.split('|')).chain(line.split('#').next());
    parts.filter_map(part).max_by_key(|row| (row.is_sure, row.bytes.len()))
}

/// A word of a line, with the spaces before it.
#[derive(Clone, Copy)]
struct Token<'a> {
    text: &'a str,
    start: usize,
    spaces: usize,
}

fn tokens(line: &str) -> Vec<Token<'_>> {
    let mut found = Vec::new();
    let mut end = 0;
    for text in line.split_whitespace() {
        let start = text.as_ptr() as usize - line.as_ptr() as usize;
        let tabs = line[end..start].matches('\t').count();
        found.push(Token { text, start, spaces: start - end + tabs });
        end = start + text.len();
    }
    found
}

/// The digits of a group of bytes.
fn group(token: &str) -> Option<&str> {
    let token = token.trim_matches([',', ';', '{', '}']);
    let digits = token.strip_prefix("0x").or(token.strip_prefix("0X")).unwrap_or(token);
    let is_group = matches!(digits.len(), 2 | 4 | 8 | 16 | 32 | 64)
        || digits.len() >= MIN_ROW_DIGITS && digits.len().is_multiple_of(2);
    (is_group && digits.bytes().all(|byte| byte.is_ascii_hexdigit())).then_some(digits)
}

/// Whether a token is a partial group, the last one of a dump.
fn is_part(token: &str, width: usize) -> bool {
    let is_hex = token.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_hex && token.len() < width && token.len().is_multiple_of(2)
}

fn bytes_of(digits: &str) -> impl Iterator<Item = u8> {
    (0..digits.len()).step_by(2).filter_map(|at| u8::from_str_radix(&digits[at..at + 2], 16).ok())
}

/// An offset or an address: `00000030:`, `0x7ffe3040:`, `<cq+48>:`, `[0x30]`.
fn offset(token: &str) -> Option<u64> {
    let token = match token.strip_suffix(':') {
        Some(token) => token,
        None => token.strip_prefix('[')?.strip_suffix(']')?,
    };
    let token = token.trim_start_matches(['[', '<']).trim_end_matches([']', '>']);
    let token = token.rsplit_once('+').map_or(token, |(_, offset)| offset);
    let digits = token.strip_prefix("0x").unwrap_or(token);
    let fits = (2..=16).contains(&digits.len());
    fits.then(|| u64::from_str_radix(digits, 16).ok()).flatten()
}

fn part(line: &str) -> Option<Row<'_>> {
    let tokens = tokens(line);
    // DPDK's rte_memdump prints colons between the bytes.
    if let Some(token) = tokens.last()
        && token.text.len() >= 16 * 3 - 1
        && token.text.split(':').all(|byte| byte.len() == 2 && group(byte).is_some())
    {
        let bytes = token.text.split(':').flat_map(bytes_of).collect();
        let prefix = line[..token.start].trim();
        return Some(Row { prefix, offset: None, octal: None, bytes, group: 1, is_sure: true });
    }
    let (mut first, mut length) = (0, 0);
    for at in 0..tokens.len() {
        let count = run(&tokens[at..]);
        if count > length {
            (first, length) = (at, count);
        }
    }
    // The last row of a dump may be one partial word.
    if length == 0
        && let [.., before, last] = tokens.as_slice()
        && is_part(last.text, 8)
        && offset(before.text).is_some()
    {
        (first, length) = (tokens.len() - 1, 1);
    }
    let mut groups = &tokens[first..first + length];
    // Two spaces may separate the bytes from their ASCII text.
    if groups.is_empty() || tokens.get(first + length).is_some_and(|next| next.spaces < 2) {
        return None;
    }
    let mut before = first.checked_sub(1).map(|at| tokens[at]);
    let mut offset_at = before.and_then(|token| offset(token.text));
    let width = groups[0].text.len().min(group(groups[0].text).map_or(usize::MAX, str::len));
    if let Some(token) = before
        && offset_at.is_none()
        && first == 1
        && matches!(token.text.len(), 6 | 7 | 8 | 16)
        && (token.text.len() < 8 || width < token.text.len())
    {
        // hexdump -C and od print an offset without a colon at the start of the line.
        offset_at = u64::from_str_radix(token.text, 16).ok();
    }
    if offset_at.is_none() && width == 8 && groups.len() == 5 {
        let start = u64::from_str_radix(group(groups[0].text)?, 16).ok()?;
        if start.is_multiple_of(16) {
            (before, offset_at, groups) = (Some(groups[0]), Some(start), &groups[1..]);
        }
    }
    let octal = before.filter(|token| offset_at.is_some() && token.text.len() == 7);
    let octal = octal.and_then(|token| u64::from_str_radix(token.text, 8).ok());
    let prefix = match (before, offset_at) {
        (Some(token), Some(_)) => &line[..token.start],
        _ => &line[..groups[0].start],
    };
    let bytes: Vec<u8> =
        groups.iter().flat_map(|token| bytes_of(group(token.text).unwrap_or(token.text))).collect();
    let is_sure = match offset_at {
        Some(_) => bytes.len() >= 8,
        None => match width {
            2 | 4 => bytes.len() >= 16,
            8 => matches!(bytes.len(), 16 | 32 | 64),
            16 | 32 | 64 => bytes.len() >= 32 && groups.len() > 1,
            _ => true,
        },
    };
    let group = if width > 16 { 0 } else { width / 2 };
    Some(Row { prefix: prefix.trim(), offset: offset_at, octal, bytes, group, is_sure })
}

/// The number of leading tokens that are groups of one width; the last may be shorter.
fn run(tokens: &[Token<'_>]) -> usize {
    let Some(width) = tokens.first().and_then(|token| group(token.text)).map(str::len) else {
        return 0;
    };
    let mut bytes = 0;
    for (at, token) in tokens.iter().enumerate() {
        // ASCII text after sixteen bytes and two spaces may look like a group.
        if at > 0 && bytes % 16 == 0 && token.spaces >= 2 {
            return at;
        }
        match group(token.text).map(str::len) {
            Some(this) if this == width => bytes += this / 2,
            _ if at > 0 && at + 1 == tokens.len() && is_part(token.text, width) => return at + 1,
            _ => return at,
        }
    }
    tokens.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_every_printer_give_the_same_bytes() {
        let bytes: Vec<u8> = (0x10..0x20).collect();
        for (line, offset, group) in [
            ("10111213 14151617 18191a1b 1c1d1e1f", None, 4),
            ("00000030: 10111213 14151617 18191a1b 1c1d1e1f", Some(0x30), 4),
            ("00000030  10111213 14151617 18191a1b 1c1d1e1f", Some(0x30), 4),
            ("00000030: 10 11 12 13 14 15 16 17 18 19 1a 1b 1c 1d 1e 1f", Some(0x30), 1),
            (
                "00000030  10 11 12 13 14 15 16 17  18 19 1a 1b 1c 1d 1e 1f  |.....a..|ab|....|",
                Some(0x30),
                1,
            ),
            ("00000030: 1011 1213 1415 1617 1819 1a1b 1c1d 1e1f  ab cd....", Some(0x30), 2),
            (
                "00000030: 10 11 12 13 14 15 16 17 18 19 1A 1B 1C 1D 1E 1F | ................",
                Some(0x30),
                1,
            ),
            ("0x7ffd0030:\t0x10111213\t0x14151617\t0x18191a1b\t0x1c1d1e1f", Some(0x7ffd_0030), 4),
            ("0x10111213, 0x14151617, 0x18191a1b, 0x1c1d1e1f,", None, 4),
            ("[1,3]<stderr>: 10111213 14151617 18191a1b 1c1d1e1f", None, 4),
            (
                "[8123.450921] cqe_dump: 00000030: 10 11 12 13 14 15 16 17 18 19 1a 1b 1c 1d 1e 1f",
                Some(0x30),
                1,
            ),
            ("10:11:12:13:14:15:16:17:18:19:1a:1b:1c:1d:1e:1f", None, 1),
            ("node-1  | 10111213 14151617 18191a1b 1c1d1e1f", None, 4),
        ] {
            let row = row(line).unwrap_or_else(|| panic!("{line}"));
            assert_eq!((&row.bytes, row.offset, row.group), (&bytes, offset, group), "{line}");
            assert!(row.is_sure, "{line}");
        }
    }

    #[test]
    fn lines_of_text_are_no_rows() {
        for line in [
            "worker 3: completion of work request 77 failed: local protection error",
            "[  601.330120] mlx5_core 0000:3b:00.0: CQ error on CQN 0x41f, syndrom 0x1",
            "local address: LID 0x02 QPN 0x0032 PSN 0x5f2841",
            "GID: 00:00:00:00:00:00:00:00:00:00:255:255:192:168:01:39",
            " 65536      403504           0.00               42.31                0.080701",
            "added: 12 of 34",
            "gid fe80:0000:0000:0000:0a00:27ff:fe00:0001",
            "commit 0123456789abcdef0123456789abcdef01234567",
            "",
        ] {
            assert!(!row(line).is_some_and(|row| row.is_sure), "{line}: {:?}", row(line));
        }
    }

    #[test]
    fn short_last_row_counts_where_a_dump_goes_on() {
        let row = row("[  +0.00] 010: 01040000").unwrap();
        assert_eq!((row.offset, row.is_sure, row.prefix), (Some(0x10), false, "[  +0.00]"));
        let row = super::row("010: 74686569 72733a20 63712034 303030").unwrap();
        assert_eq!((row.offset, row.bytes.len()), (Some(0x10), 15));
        let row = super::row("020: 662034").unwrap();
        assert_eq!((row.offset, row.bytes.len(), row.is_sure), (Some(0x20), 3, false));
    }
}
