//! Renders text and tables as HTML without blank lines, because a blank line ends an HTML block in
//! Markdown.

use super::place::Places;

/// Escapes `&`, `<`, `>` and `"`, and turns newlines into spaces.
pub(super) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => out += "&amp;",
            '<' => out += "&lt;",
            '>' => out += "&gt;",
            '"' => out += "&quot;",
            '\n' => out.push(' '),
            _ => out.push(letter),
        }
    }
    out
}

/// A link.
pub(super) fn link(href: &str, text: &str) -> String {
    format!("<a href=\"{}\">{}</a>", escape(href), escape(text))
}

/// A doc text: names of entries and fields become links, words between backticks code.
pub(super) fn prose(places: &Places, text: &str) -> String {
    let mut out = String::new();
    for (i, part) in text.split('`').enumerate() {
        let inner = linked(places, part);
        out += &if i % 2 == 1 { format!("<code>{inner}</code>") } else { inner };
    }
    out
}

fn linked(places: &Places, text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let is_name =
            |letter: char| letter.is_ascii_alphanumeric() || letter == '_' || letter == '.';
        let end = rest.find(|letter| !is_name(letter)).unwrap_or(rest.len()).max(first.len_utf8());
        let (word, after) = rest.split_at(end);
        let name = word.trim_end_matches('.');
        // A word of plain letters is English, though an entry may be named so.
        match places.href(name).filter(|_| name.contains(['_', '.'])) {
            Some(href) => out += &format!("{}{}", link(href, name), &word[name.len()..]),
            None => out += &escape(word),
        }
        rest = after;
    }
    out
}

/// A table: header cells, and rows of HTML. A row may have an id, the target of links.
pub(super) struct Table {
    out: String,
}

impl Table {
    pub(super) fn new(class: &str, heads: &[&str]) -> Self {
        let heads: String = heads.iter().map(|head| format!("<th>{}</th>", escape(head))).collect();
        let out = format!(
            "<div class=\"wide\"><table class=\"{class}\"><thead><tr>{heads}</tr></thead><tbody>\n"
        );
        Self { out }
    }

    pub(super) fn row(&mut self, id: Option<&str>, cells: &[String]) {
        let id = id.map(|id| format!(" id=\"{}\"", escape(id))).unwrap_or_default();
        let cells: String = cells.iter().map(|cell| format!("<td>{cell}</td>")).collect();
        self.out += &format!("<tr{id}>{cells}</tr>\n");
    }

    pub(super) fn end(self) -> String {
        self.out + "</tbody></table></div>\n"
    }
}
