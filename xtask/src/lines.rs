//! Rust lines are at most 100 columns wide. rustfmt breaks code, but neither comments nor strings
//! nor what it does not understand; this finds what it left.

use std::path::Path;
use std::process::Command;

use crate::Result;

/// Columns of a line, which are characters.
const WIDTH: usize = 100;
/// What is generated is as wide as its generator makes it.
const GENERATED: &str = "crates/prm/src/generated/";

/// The lines that are too long in the Rust files below `root` that git knows or may add, as
/// `file:line: columns`.
pub(crate) fn too_long(root: &Path) -> Result<Vec<String>> {
    let listed = Command::new("git")
        .args(["ls-files", "--cached", "--others", "--exclude-standard", "*.rs"])
        .current_dir(root)
        .output()?;
    if !listed.status.success() {
        let errors = String::from_utf8_lossy(&listed.stderr);
        return Err(format!("git does not list the Rust files: {}", errors.trim()).into());
    }
    let mut found = Vec::new();
    for file in String::from_utf8(listed.stdout)?.lines() {
        // One that is deleted and not committed is listed too.
        if file.starts_with(GENERATED) || !root.join(file).exists() {
            continue;
        }
        let text = std::fs::read_to_string(root.join(file))?;
        for (line, number) in text.lines().zip(1..) {
            if is_too_long(line) {
                found.push(format!(
                    "{file}:{number}: {} columns; at most {WIDTH}",
                    line.chars().count()
                ));
            }
        }
    }
    Ok(found)
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
    use super::{is_too_long, too_long};

    #[test]
    fn columns_are_characters_and_a_url_alone_in_a_comment_may_be_longer() {
        assert!(!is_too_long(&"ä".repeat(100)));
        assert!(is_too_long(&"a".repeat(101)));
        let url = format!("https://{}", "a".repeat(100));
        assert!(!is_too_long(&format!("    // {url}")));
        assert!(is_too_long(&format!("    // see {url}")));
        assert!(is_too_long(&format!("    let url = \"{url}\";")));
    }

    #[test]
    fn no_line_of_the_workspace_is_too_long() {
        assert_eq!(too_long(crate::workspace_root()).unwrap(), Vec::<String>::new());
    }
}
