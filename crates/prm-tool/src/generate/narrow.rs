//! Breaks lines that rustfmt leaves too long: rustfmt breaks neither strings nor macro arguments.

/// Columns of a line.
const WIDTH: usize = 100;
/// Additional indent of the rest of a line.
const INDENT: usize = 4;

/// Breaks the long lines of a text where it can.
pub(super) fn narrow(text: &str) -> String {
    let mut narrow = String::with_capacity(text.len());
    for line in text.lines() {
        for part in parts(line) {
            narrow.push_str(&part);
            narrow.push('\n');
        }
    }
    narrow
}

/// Where a line may be broken.
struct LineBreak {
    /// Index of the first byte of the rest.
    at: usize,
    in_string: bool,
    /// Whether the break is within a phrase: not after a comma or a colon.
    in_phrase: bool,
    /// The number of brackets around it.
    depth: usize,
}

/// Breaks a line.
fn parts(line: &str) -> Vec<String> {
    let margin = line.len() - line.trim_start().len();
    let is_comment = line[margin..].starts_with("///");
    let begin = match is_comment {
        true => format!("{:margin$}/// ", ""),
        false => " ".repeat(margin + INDENT),
    };
    let (mut parts, mut rest, mut in_string) = (Vec::new(), line.to_owned(), false);
    while rest.chars().count() > WIDTH {
        let start = if parts.is_empty() && !is_comment { margin } else { begin.len() };
        let found =
            if is_comment { in_comment(&rest, start) } else { in_code(&rest, start, in_string) };
        let Some(line_break) = found else { break };
        let (part, more) = rest.split_at(line_break.at);
        parts.push(match line_break.in_string {
            true => format!("{part}\\"),
            false => part.trim_end().to_owned(),
        });
        in_string = line_break.in_string;
        rest = format!("{begin}{more}");
    }
    parts.push(rest);
    parts
}

/// The break after the last word of a comment that fits in the width.
fn in_comment(line: &str, start: usize) -> Option<LineBreak> {
    let spaces = line.char_indices().take(WIDTH + 1).filter(|&(at, c)| c == ' ' && at >= start);
    spaces.last().map(|(at, _)| LineBreak {
        at: at + 1,
        in_string: false,
        in_phrase: false,
        depth: 0,
    })
}

/// The best break at which the first part fits the line: the last one after a comma or a colon at
/// the lowest bracket depth, else between two words, else within a string.
fn in_code(line: &str, start: usize, mut in_string: bool) -> Option<LineBreak> {
    let (mut depth, mut before, mut best) = (0_usize, ' ', None::<LineBreak>);
    for (column, (at, c)) in line.char_indices().enumerate() {
        match c {
            '"' if before != '\\' => in_string = !in_string,
            '(' | '[' | '{' if !in_string => depth += 1,
            ')' | ']' | '}' if !in_string => depth = depth.saturating_sub(1),
            _ => {}
        }
        // A string needs its backslash.
        let fits = column + usize::from(in_string) < WIDTH;
        // A comma in a string is text.
        let in_phrase = !in_string && !matches!(before, ',' | ':');
        let new = LineBreak { at: at + 1, in_string, in_phrase, depth };
        let rank =
            |line_break: &LineBreak| (line_break.in_string, line_break.in_phrase, line_break.depth);
        let is_better = best.as_ref().is_none_or(|best| rank(&new) <= rank(best));
        // rustfmt joins a string with the name before it.
        let is_string = before == ':' && line[at..].starts_with(" \"");
        let is_blank = line[at + c.len_utf8()..].starts_with(' ');
        if c == ' ' && !is_blank && at >= start && fits && is_better && (in_string || !is_string) {
            best = Some(new);
        }
        before = c;
    }
    best
}

#[cfg(test)]
mod tests {
    use super::{WIDTH, narrow};

    #[test]
    fn narrow_breaks_long_lines_only() {
        let name = "a_name_that_is_as_long_as_some_of_the_device";
        let words = "a long word ".repeat(10);
        let lines = [
            "fn f() {}".to_owned(),
            format!("        {name} set_{name}: number(u32, 96, 19);"),
            format!("    why: \"{words}\","),
            format!("    /// {words}"),
            format!("    {name}, {name}Layout, 0x10 bytes = \"{name}\" {{"),
        ];
        let text = lines.join("\n") + "\n";
        let narrowed = narrow(&text);
        assert!(narrowed.lines().all(|line| line.chars().count() <= WIDTH), "{narrowed}");
        let broken = format!("        {name}\n            set_{name}: number(u32, 96, 19);\n");
        assert!(narrowed.contains(&broken), "{narrowed}");
        assert_eq!(narrowed.lines().filter(|line| line.starts_with("    /// ")).count(), 2);
        // The compiler reads the same text.
        let joined: String = narrowed.split("\\\n").map(str::trim_start).collect();
        assert!(joined.contains(&format!("\"{words}\"")), "{joined}");
        assert_eq!(narrow(&narrowed), narrowed, "once is enough");
        let one = "x".repeat(WIDTH + 1) + "\n";
        assert_eq!(narrow(&one), one, "the line cannot be broken");
    }

    #[test]
    fn narrow_breaks_at_last_best_ranked_break() {
        let a = |count| "a".repeat(count);
        for (line, broken) in [
            // A line of exactly the width, and one more.
            (format!("{} {}", a(60), a(39)), None),
            (format!("{} {}", a(60), a(40)), Some((a(60), format!("    {}", a(40))))),
            // The front with its space fits in a line.
            (format!("{} {}", a(99), a(5)), Some((a(99), format!("    {}", a(5))))),
            (format!("{} {}", a(100), a(5)), None),
            // After a comma or a colon rather than between words, and outside of brackets.
            (
                format!("{}, {} {}", a(10), a(50), a(40)),
                Some((format!("{},", a(10)), format!("    {} {}", a(50), a(40)))),
            ),
            (
                format!("{}: {} {}", a(10), a(50), a(40)),
                Some((format!("{}:", a(10)), format!("    {} {}", a(50), a(40)))),
            ),
            (
                format!("{}, ({}, {}", a(10), a(50), a(40)),
                Some((format!("{},", a(10)), format!("    ({}, {}", a(50), a(40)))),
            ),
            (
                format!("[a, {{b, {}}}, c], {}", a(50), a(40)),
                Some((format!("[a, {{b, {}}}, c],", a(50)), format!("    {}", a(40)))),
            ),
            (
                format!("[a, {{b, {}}}, c, {}", a(50), a(40)),
                Some((format!("[a, {{b, {}}}, c,", a(50)), format!("    {}", a(40)))),
            ),
            // An unmatched closing bracket closes nothing.
            (
                format!(") a, (b, {}) {}", a(50), a(40)),
                Some((") a,".into(), format!("    (b, {}) {}", a(50), a(40)))),
            ),
            // Brackets and commas of a string are text; its front ends with a backslash.
            (
                format!("\"({}, {}\" {}", a(40), a(40), a(40)),
                Some((format!("\"({}, {}\"", a(40), a(40)), format!("    {}", a(40)))),
            ),
            (
                format!("\"{} {}\"", a(97), a(5)),
                Some((format!("\"{} \\", a(97)), format!("    {}\"", a(5)))),
            ),
            (format!("\"{} {}\"", a(98), a(5)), None),
            (
                format!("\"\\\"{} {}\"", a(50), a(50)),
                Some((format!("\"\\\"{} \\", a(50)), format!("    {}\"", a(50)))),
            ),
            // Not in front of a string that follows a colon, nor within several spaces.
            (format!("{} b: \"{}\"", a(20), a(90)), Some((a(20), format!("    b: \"{}\"", a(90))))),
            (format!("{}  {}", a(50), a(50)), Some((a(50), format!("    {}", a(50))))),
            // A line does not break in its indent, and its rest is indented further.
            (format!("        {}", a(100)), None),
            (
                format!("        {} {}", a(50), a(50)),
                Some((format!("        {}", a(50)), format!("            {}", a(50)))),
            ),
            // A comment does not break in its prefix.
            (format!("  /// {}", a(100)), None),
            (
                format!("  /// {} {}", a(94), a(2)),
                Some((format!("  /// {}", a(94)), format!("  /// {}", a(2)))),
            ),
            (
                format!("  /// {} {} b", a(80), a(14)),
                Some((format!("  /// {}", a(80)), format!("  /// {} b", a(14)))),
            ),
        ] {
            let expected = match &broken {
                None => format!("{line}\n"),
                Some((front, rest)) => format!("{front}\n{rest}\n"),
            };
            assert_eq!(narrow(&line), expected);
        }
    }
}
