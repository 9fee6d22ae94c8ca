//! The YAML subset of resource files: mappings by indentation, scalars, and lists of scalars. It
//! accepts nothing that YAML 1.2 reads differently.

/// Maximum depth of nested mappings.
const MAX_DEPTH: usize = 8;

/// An error and its line, counted from 1.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct YamlError {
    pub(super) line: usize,
    pub(super) why: String,
}

impl YamlError {
    pub(super) fn new(line: usize, why: impl Into<String>) -> Self {
        Self { line, why: why.into() }
    }
}

/// An entry of a mapping.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Node {
    pub(super) key: String,
    pub(super) value: Value,
    pub(super) line: usize,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Value {
    Scalar(String),
    /// Each item with its line.
    List(Vec<(String, usize)>),
    Mapping(Vec<Node>),
    /// The key has no value.
    Nothing,
}

/// A line with contents.
#[derive(Clone, Copy)]
struct Line<'a> {
    number: usize,
    indent: usize,
    text: &'a str,
}

/// Parses a mapping that begins in the first column.
pub(super) fn parse(text: &str) -> Result<Vec<Node>, YamlError> {
    let mut lines = Vec::new();
    for (index, line) in text.split('\n').enumerate() {
        let number = index + 1;
        let line = line.strip_suffix('\r').unwrap_or(line);
        if let Some(bad) = line.chars().find(|it| it.is_control()) {
            let why = match bad {
                '\t' => "a tab: indent by spaces".to_owned(),
                bad => format!("a control character, {}", bad.escape_default()),
            };
            return Err(YamlError::new(number, why));
        }
        let indent = line.len() - line.trim_start_matches(' ').len();
        let text = line[indent..].trim_end_matches(' ');
        if !text.is_empty() && !text.starts_with('#') {
            lines.push(Line { number, indent, text });
        }
    }
    let mut rest = &lines[..];
    let all = mapping(&mut rest, 0, 0)?;
    match rest.first() {
        None => Ok(all),
        Some(line) => {
            Err(YamlError::new(line.number, "the line is under no key: check the indentation"))
        }
    }
}

/// The entries at an indentation.
fn mapping(rest: &mut &[Line<'_>], indent: usize, depth: usize) -> Result<Vec<Node>, YamlError> {
    let mut all: Vec<Node> = Vec::new();
    while let Some((&line, after)) = rest.split_first().filter(|(line, _)| line.indent == indent) {
        if depth == MAX_DEPTH {
            return Err(YamlError::new(line.number, "mappings nested more than 8 deep"));
        }
        *rest = after;
        let (key, value) = entry(line)?;
        if all.iter().any(|node| node.key == key) {
            return Err(YamlError::new(line.number, format!("{key} comes twice")));
        }
        let value = match value {
            Value::Nothing => below(rest, line, depth)?,
            value => value,
        };
        all.push(Node { key, value, line: line.number });
    }
    Ok(all)
}

/// Parses the indented value below a key without one on its line.
fn below(rest: &mut &[Line<'_>], key: Line<'_>, depth: usize) -> Result<Value, YamlError> {
    let Some(first) = rest.first().copied() else { return Ok(Value::Nothing) };
    let is_item = |line: &Line<'_>| line.text == "-" || line.text.starts_with("- ");
    // A list may begin in the column of its key.
    if is_item(&first) && first.indent >= key.indent {
        let mut items = Vec::new();
        let same = |line: &&Line<'_>| line.indent == first.indent && is_item(line);
        while let Some(line) = rest.first().filter(same) {
            items.push((scalar(line.text[1..].trim_start_matches(' '), line.number)?, line.number));
            *rest = &rest[1..];
        }
        return Ok(Value::List(items));
    }
    if first.indent > key.indent {
        return Ok(Value::Mapping(mapping(rest, first.indent, depth + 1)?));
    }
    Ok(Value::Nothing)
}

/// Parses a line `key:` or `key: value`.
fn entry(line: Line<'_>) -> Result<(String, Value), YamlError> {
    let fault = |why: &str| Err(YamlError::new(line.number, why));
    let Some((key, value)) = line.text.split_once(':') else {
        return fault("a line without a key and colon");
    };
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte);
    if !key.starts_with(|first: char| first.is_ascii_alphabetic()) || !key.bytes().all(plain) {
        return fault("a key is a letter, and letters, digits, `_`, `-`, `.` after it");
    }
    if !value.is_empty() && !value.starts_with(' ') {
        return fault("no space after the colon");
    }
    let value = match value.trim_start_matches(' ') {
        "" => Value::Nothing,
        comment if comment.starts_with('#') => Value::Nothing,
        list if list.starts_with('[') => Value::List(flow(list, line.number)?),
        text => Value::Scalar(scalar(text, line.number)?),
    };
    Ok((key.to_owned(), value))
}

/// Parses a list in brackets, in one line.
fn flow(text: &str, line: usize) -> Result<Vec<(String, usize)>, YamlError> {
    let unended = || YamlError::new(line, "a list without its `]` in the same line");
    let (inner, after) = text[1..].split_once(']').ok_or_else(unended)?;
    if !is_comment(after) {
        return Err(YamlError::new(line, "text after the list"));
    }
    if inner.trim_matches(' ').is_empty() {
        return Ok(Vec::new());
    }
    inner.split(',').map(|item| Ok((scalar(item.trim_matches(' '), line)?, line))).collect()
}

/// Whether the text after a value is empty, or a comment.
fn is_comment(after: &str) -> bool {
    let text = after.trim_start_matches(' ');
    text.is_empty() || text.starts_with('#') && text.len() < after.len()
}

/// Parses a scalar, plain or in double quotes.
fn scalar(text: &str, line: usize) -> Result<String, YamlError> {
    let fault = |why: &str| Err(YamlError::new(line, why));
    if let Some(quoted) = text.strip_prefix('"') {
        let Some((inner, after)) = quoted.split_once('"') else {
            return fault("a quote without its end in the same line");
        };
        if inner.contains('\\') {
            return fault("an escape in a quote");
        }
        if !is_comment(after) {
            return fault("text after the quote");
        }
        return Ok(inner.to_owned());
    }
    let text = text.split_once(" #").map_or(text, |(text, _)| text).trim_end_matches(' ');
    let Some(first) = text.chars().next() else { return fault("no value") };
    // Characters with another meaning in YAML, as the first character or anywhere.
    if "&*!|>%@`'\"#,[]{}?".contains(first) || text.contains(": ") || text.ends_with(':') {
        return fault("this part of YAML is not understood here");
    }
    if text.chars().any(|it| "[]{},\"".contains(it)) || text == "-" || text.starts_with("- ") {
        return fault("this part of YAML is not understood here");
    }
    if matches!(text, "~" | "null" | "Null" | "NULL" | "true" | "false") {
        return fault("a value that is neither a name nor a number: quote it");
    }
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(key: &str, value: Value, line: usize) -> Node {
        Node { key: key.into(), value, line }
    }

    fn list(items: &[(&str, usize)]) -> Value {
        Value::List(items.iter().map(|&(item, line)| (item.to_owned(), line)).collect())
    }

    #[test]
    fn yaml_subset_parses() {
        let text = "# head\na: 1 # one\r\n\nb:\n   c: \"x: # y\"\n   d:\n   - 1\n   - \"2\"\n\
                    \x20  e: [ ]\nf:\n  - 7\ng: [1,2 , 3]   # three\nh: x#y\ni:";
        let expected = [
            node("a", Value::Scalar("1".into()), 2),
            node(
                "b",
                Value::Mapping(vec![
                    node("c", Value::Scalar("x: # y".into()), 5),
                    node("d", list(&[("1", 7), ("2", 8)]), 6),
                    node("e", list(&[]), 9),
                ]),
                4,
            ),
            node("f", list(&[("7", 11)]), 10),
            node("g", list(&[("1", 12), ("2", 12), ("3", 12)]), 12),
            node("h", Value::Scalar("x#y".into()), 13),
            node("i", Value::Nothing, 14),
        ];
        assert_eq!(parse(text).unwrap(), expected);
        assert_eq!(parse("\n# nothing\n").unwrap(), []);
    }

    #[test]
    fn unsupported_yaml_is_rejected_with_line() {
        for (text, line, why) in [
            ("a: 1\n\tb: 2", 2, "tab"),
            ("a: \u{1}", 1, "control character"),
            ("a: 1\n  b: 2", 2, "under no key"),
            ("a:\n    b: 1\n  c: 2", 3, "under no key"),
            ("a", 1, "without a key"),
            ("---\na: 1", 1, "without a key"),
            ("a:1", 1, "no space"),
            ("1a: 1", 1, "a key is"),
            ("\"a\": 1", 1, "a key is"),
            ("<<: *b", 1, "a key is"),
            ("a: &b 1", 1, "not understood"),
            ("a: *b", 1, "not understood"),
            ("a: !!str 1", 1, "not understood"),
            ("a: {b: 1}", 1, "not understood"),
            ("a: |\n  b", 1, "not understood"),
            ("a: 'b'", 1, "not understood"),
            ("a: b: c", 1, "not understood"),
            ("a: [1, [2]]", 1, "text after"),
            ("a: [1", 1, "without its `]`"),
            ("a: [1,]", 1, "no value"),
            ("a: [,1]", 1, "no value"),
            ("a: \"b", 1, "without its end"),
            ("a: \"\\n\"", 1, "escape"),
            ("a: \"b\" c", 1, "after the quote"),
            ("a: ~", 1, "quote it"),
            ("a:\n  - b: 1", 2, "not understood"),
            ("a:\n  - - 1", 2, "not understood"),
            ("a:\n  -", 2, "no value"),
            ("- a", 1, "without a key"),
            ("a: 1\nb: 2\na: 3", 3, "a comes twice"),
        ] {
            let fault = parse(text).expect_err(text);
            assert!(fault.line == line && fault.why.contains(why), "{text:?}: {fault:?}");
        }
        let deep: String = (0..2000).map(|at| format!("{}a:\n", " ".repeat(at))).collect();
        assert_eq!(parse(&deep).unwrap_err().line, MAX_DEPTH + 1);
    }
}
