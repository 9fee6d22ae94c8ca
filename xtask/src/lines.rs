//! Rust lines are at most 100 columns wide, and those of Markdown 120. rustfmt breaks code, but
//! neither comments nor strings nor macros that it cannot parse; this finds the lines that it left.

use std::path::Path;
use std::process::Command;

use crate::workspace::Result;

/// Columns of a line, which are characters, of Rust and of Markdown.
const WIDTH: usize = 100;
const MARKDOWN_WIDTH: usize = 120;

/// The lines that are too long in the files below `root` that git knows or may add, as
/// `file:line: columns`.
pub(crate) fn too_long(root: &Path) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for file in listed(root, &["*.rs", "*.md"])? {
        let text = std::fs::read_to_string(root.join(&file))?;
        let (long, max) = match file.ends_with(".md") {
            true => (long_prose(&text), MARKDOWN_WIDTH),
            false => (numbered(&text).filter(|(_, line)| is_too_long(line)).collect(), WIDTH),
        };
        found.extend(long.iter().map(|(number, line)| {
            format!("{file}:{number}: {} columns; at most {max}", line.chars().count())
        }));
    }
    Ok(found)
}

/// The files below `root` of these patterns that git knows or may add.
pub(crate) fn listed(root: &Path, patterns: &[&str]) -> Result<Vec<String>> {
    let listed = Command::new("git")
        .args(["ls-files", "--cached", "--others", "--exclude-standard"])
        .args(patterns)
        .current_dir(root)
        .output()?;
    if !listed.status.success() {
        let errors = String::from_utf8_lossy(&listed.stderr);
        return Err(format!("git does not list the files: {}", errors.trim()).into());
    }
    let files = String::from_utf8(listed.stdout)?;
    // One that is deleted and not committed is listed too.
    Ok(files.lines().filter(|file| root.join(file).exists()).map(str::to_owned).collect())
}

/// Lines and their numbers.
fn numbered(text: &str) -> impl Iterator<Item = (usize, &str)> {
    (1..).zip(text.lines())
}

/// The lines of Markdown that are too long. Rows of tables and code cannot be broken.
fn long_prose(text: &str) -> Vec<(usize, &str)> {
    let mut in_code = false;
    let long = |&(_, line): &(usize, &str)| {
        in_code ^= line.trim_start().starts_with("```");
        let breaks = !in_code && !line.starts_with('|') && !line.starts_with("    ");
        breaks && line.chars().count() > MARKDOWN_WIDTH
    };
    numbered(text).filter(long).collect()
}

/// A URL that has its comment line for itself cannot be broken.
fn is_too_long(line: &str) -> bool {
    let is_url = || {
        let words: Vec<&str> = line.split_whitespace().collect();
        matches!(words[..], ["//" | "///" | "//!", url] if url.contains("://"))
    };
    line.chars().count() > WIDTH && !is_url()
}

#[cfg(test)]
mod tests {
    use super::{is_too_long, long_prose, too_long};

    #[test]
    fn line_limit_counts_chars_and_spares_urls() {
        assert!(!is_too_long(&"ä".repeat(100)));
        assert!(is_too_long(&"a".repeat(101)));
        let url = format!("https://{}", "a".repeat(100));
        assert!(!is_too_long(&format!("    // {url}")));
        assert!(is_too_long(&format!("    // see {url}")));
        assert!(is_too_long(&format!("    let url = \"{url}\";")));
    }

    #[test]
    fn prose_is_broken_where_tables_and_code_cannot_be() {
        let long = "a ".repeat(61);
        let text = format!("{long}\n| {long}\n```\n{long}\n```\n    {long}\n- {long}\nshort");
        let found: Vec<_> = long_prose(&text).iter().map(|(number, _)| *number).collect();
        assert_eq!(found, [1, 7]);
    }

    #[test]
    fn workspace_lines_fit() {
        assert_eq!(too_long(crate::workspace::workspace_root()).unwrap(), Vec::<String>::new());
    }
}
