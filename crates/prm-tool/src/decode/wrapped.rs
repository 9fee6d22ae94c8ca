//! Undoes what mail and web pages do to lines: quoted-printable, HTML, lines broken at a width.

/// A line of the text, and its source lines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct DecodedLine {
    pub(super) first: usize,
    pub(super) last: usize,
    pub(super) text: String,
}

/// The decoded lines of a text; `clean` strips each of them.
pub(super) fn lines(text: &str, clean: impl Fn(&str) -> String) -> Vec<DecodedLine> {
    let raw = text.lines().enumerate().map(|(at, text)| (at + 1, text.to_owned())).collect();
    let mut lines: Vec<DecodedLine> = Vec::new();
    for (number, text) in html(quoted_printable(raw)) {
        lines.push(DecodedLine { first: number, last: number, text: clean(&text) });
    }
    join(lines)
}

type Numbered = Vec<(usize, String)>;

/// Decodes quoted-printable: `=` at the end of a line joins it with the next, `=3D` is a byte.
fn quoted_printable(lines: Numbered) -> Numbered {
    let has_codes = lines.iter().any(|(_, line)| line.contains("=3D") || line.ends_with("=0A="));
    let is_soft = |line: &str| {
        let length = line.chars().count();
        line.ends_with('=') && (has_codes || (70..=77).contains(&length) && line.contains(' '))
    };
    if !lines.iter().any(|(_, line)| is_soft(line)) && !has_codes {
        return lines;
    }
    let mut out = Vec::new();
    let mut open: Option<(usize, String)> = None;
    for (number, line) in lines {
        let soft = is_soft(&line);
        let body = if soft { &line[..line.len() - 1] } else { &line };
        let body = if has_codes { decoded(body) } else { body.to_owned() };
        let (mut from, mut text) = open.take().unwrap_or((number, String::new()));
        text += &body;
        while let Some((line, rest)) = text.split_once('\n') {
            out.push((from, line.to_owned()));
            (from, text) = (number, rest.to_owned());
        }
        match soft {
            true if text.is_empty() => {}
            true => open = Some((from, text)),
            false => out.push((from, text)),
        }
    }
    out.extend(open);
    out
}

fn decoded(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find('=') {
        let code = rest.get(at + 1..at + 3).filter(|it| !it.contains(|c: char| c.is_lowercase()));
        let byte = code.and_then(|code| u8::from_str_radix(code, 16).ok()).filter(u8::is_ascii);
        out += &rest[..at];
        match byte {
            Some(byte) => out.push(byte.into()),
            None => out.push('='),
        }
        rest = &rest[at + if byte.is_some() { 3 } else { 1 }..];
    }
    out + rest
}

/// Decodes line breaks and characters of HTML.
fn html(lines: Numbered) -> Numbered {
    let mut out = Vec::new();
    for (number, line) in lines {
        let text = line.replace("<br/>", "<br>").replace("<br />", "<br>");
        let parts = text.split("<br>").enumerate();
        for (_, part) in parts.filter(|(at, part)| *at == 0 || !part.trim().is_empty()) {
            let mut part = part.to_owned();
            for (code, is) in [
                ("&gt;", ">"),
                ("&lt;", "<"),
                ("&quot;", "\""),
                ("&#39;", "'"),
                ("&nbsp;", " "),
                ("&amp;", "&"),
            ] {
                part = part.replace(code, is);
            }
            out.push((number, part));
        }
    }
    out
}

/// A message that may be broken at a width: its beginning, and a test that it is complete.
struct Message {
    begins: &'static [&'static str],
    is_whole: fn(&str) -> bool,
}

const MESSAGES: &[Message] = &[
    Message {
        begins: &["mlx5_cmd_check", " op_mod("],
        is_whole: |line| closed(line, "syndrome (0x") && !line.trim_end().ends_with(','),
    },
    Message { begins: &[":handle_wc]"], is_whole: |line| number_after(line, "qp_idx ") },
    Message { begins: &["(synd 0x"], is_whole: |line| closed(line, "(synd 0x") },
    Message {
        begins: &[" wqe["],
        is_whole: |line| line.matches('[').count() <= line.matches(']').count(),
    },
    Message {
        begins: &["Error cqe on cqn "],
        is_whole: |line| line.contains("vendor syndrome 0x"),
    },
    Message { begins: &["Got completion "], is_whole: |line| number_after(line, "vendor err ") },
];

fn closed(line: &str, open: &str) -> bool {
    line.find(open).is_some_and(|at| line[at..].contains(')'))
}

fn number_after(line: &str, label: &str) -> bool {
    let rest = line.find(label).map(|at| &line[at + label.len()..]);
    rest.is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
}

/// Maximum number of lines of a broken message.
const MAX_LINES: usize = 4;

/// Joins each incomplete message with the lines that complete it.
fn join(lines: Vec<DecodedLine>) -> Vec<DecodedLine> {
    let mut out = Vec::new();
    let mut at = 0;
    while at < lines.len() {
        let joined = joined(&lines[at..]);
        at += joined.as_ref().map_or(1, |(count, _)| *count);
        out.push(joined.map_or_else(|| lines[at - 1].clone(), |(_, whole)| whole));
    }
    out
}

fn joined(lines: &[DecodedLine]) -> Option<(usize, DecodedLine)> {
    let first = lines.first()?;
    let begins = |message: &&Message, line: &str| message.begins.iter().any(|it| line.contains(it));
    let message = MESSAGES
        .iter()
        .find(|message| begins(message, &first.text) && !(message.is_whole)(&first.text))?;
    let mut text = first.text.clone();
    for (count, next) in lines.iter().enumerate().take(MAX_LINES).skip(1) {
        let starts = message.begins.first().is_some_and(|it| next.text.contains(it));
        if next.text.trim().is_empty() || starts {
            return None;
        }
        text = glue(&text, &next.text);
        if (message.is_whole)(&text) {
            return Some((count + 1, DecodedLine { first: first.first, last: next.last, text }));
        }
    }
    None
}

/// Two parts of a line, joined by a space unless a word or a number continues.
fn glue(one: &str, next: &str) -> String {
    const WORDS: &[&str] = &[
        "error",
        "lp",
        "hp",
        "syndrome",
        "status",
        "vendor",
        "failed",
        "opcode",
        "with",
        "parameter",
        "resource",
        "state",
        "completion",
        "qp_idx",
        "op_mod",
    ];
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let last = one.rsplit(|c| !is_word(c)).next().unwrap_or_default();
    let head = &next[..next.find(|c| !is_word(c)).unwrap_or(next.len())];
    let is_hex = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let is_number =
        last.strip_prefix("0x").is_some_and(|digits| digits.is_empty() || is_hex(digits));
    let goes_on = is_number && is_hex(head)
        || !last.is_empty()
            && !head.is_empty()
            && WORDS.contains(&format!("{last}{head}").to_ascii_lowercase().as_str());
    let is_apart = one.ends_with(' ') || next.starts_with(' ') || one.ends_with('(');
    match goes_on || is_apart {
        true => format!("{one}{next}"),
        false => format!("{one} {next}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Vec<(usize, usize, String)> {
        let lines = lines(text, str::to_owned).into_iter();
        lines.map(|line| (line.first, line.last, line.text)).collect()
    }

    #[test]
    fn quoted_printable_lines_are_whole_again() {
        let text = "[IO_PAGE_FAULT =\ndomain=3D0x2 a=3D0x24]=0A=\nWC err=\nor: 4=0A=\nend=0A=\n";
        assert_eq!(
            of(text),
            [
                (1, 1, "[IO_PAGE_FAULT domain=0x2 a=0x24]".to_owned()),
                (3, 3, "WC error: 4".to_owned()),
                (5, 5, "end".to_owned()),
            ]
        );
        assert_eq!(of("status=12\nx ="), [(1, 1, "status=12".into()), (2, 2, "x =".into())]);
    }

    #[test]
    fn html_gives_lines_and_characters() {
        let text = "&gt; one<br>two<br />\nthree &amp;lt;";
        let lines: Vec<_> = of(text).into_iter().map(|(first, _, text)| (first, text)).collect();
        let is = [(1, "> one".to_owned()), (1, "two".to_owned()), (2, "three &lt;".to_owned())];
        assert_eq!(lines, is);
    }

    #[test]
    fn parts_end_in_characters_of_any_width() {
        assert_eq!(glue("a …", "b"), "a … b");
        assert_eq!(glue("va 0x39", "84c00 len"), "va 0x3984c00 len");
        assert_eq!(glue("vendor e", "rror 136"), "vendor error 136");
    }

    #[test]
    fn error_cqe_of_mlx5e_may_be_broken() {
        let text =
            "eth1: Error cqe on cqn 0x817, ci 0x8,\nqn 0x1, syndrome 0x1, vendor syndrome 0x68";
        let whole =
            "eth1: Error cqe on cqn 0x817, ci 0x8, qn 0x1, syndrome 0x1, vendor syndrome 0x68";
        assert_eq!(of(text), [(1, 2, whole.to_owned())]);
    }

    #[test]
    fn lines_are_joined_only_to_a_whole_message() {
        let text = "x mlx5_cmd_check:756:\nCREATE(0x936) op_mod(0x0)\nother\nmore\nagain";
        assert_eq!(of(text).len(), 5);
        let text =
            "x mlx5_cmd_check:756:\nfailed, status bad\nparameter(0x3), sy\nndrome (0xa9)\nz";
        let whole = "x mlx5_cmd_check:756: failed, status bad parameter(0x3), syndrome (0xa9)";
        assert_eq!(of(text), [(1, 4, whole.to_owned()), (5, 5, "z".to_owned())]);
    }
}
