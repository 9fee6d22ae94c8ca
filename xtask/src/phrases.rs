//! Phrases that the repository does not use, by the list in `xtask/banned-phrases.txt`.

use std::path::Path;

use crate::lines::listed;
use crate::workspace::Result;

/// The list, and the excluded paths.
#[derive(Debug, Default, PartialEq, Eq)]
struct BannedPhrases {
    phrases: Vec<Vec<String>>,
    exempt: Vec<String>,
}

impl BannedPhrases {
    fn parse(text: &str) -> Self {
        let mut banned = Self::default();
        for line in text.lines().map(str::trim) {
            match line.strip_prefix("exempt ") {
                Some(path) => banned.exempt.push(path.trim().into()),
                None if line.is_empty() || line.starts_with('#') => {}
                None => banned.phrases.push(words(line).map(|(_, word)| word).collect()),
            }
        }
        banned
    }

    fn is_exempt(&self, file: &str) -> bool {
        self.exempt.iter().any(|path| file == path || file.starts_with(&format!("{path}/")))
    }

    /// Line numbers and phrases of a text. A phrase may be broken over two lines.
    fn find(&self, text: &str) -> Vec<(usize, String)> {
        let words: Vec<(usize, String)> = words(text).collect();
        let starts = 0..words.len();
        let found = starts.filter_map(|at| {
            let here = |phrase: &&Vec<String>| {
                let window = words.get(at..at + phrase.len());
                window.is_some_and(|window| window.iter().map(|(_, word)| word).eq(*phrase))
            };
            let phrase = self.phrases.iter().find(here)?;
            Some((words[at].0, phrase.join(" ")))
        });
        found.collect()
    }
}

/// Words in lower case, with their line numbers. A full stop or another mark between two words is a
/// word of its own, so that no phrase spans it; comment markers are skipped.
fn words(text: &str) -> impl Iterator<Item = (usize, String)> + '_ {
    (1..).zip(text.lines()).flat_map(|(number, line)| {
        let line = line.trim_start().trim_start_matches(['/', '!', '#', '>', '*']);
        let mut found = Vec::new();
        let mut word = String::new();
        for letter in line.chars().chain([' ']) {
            if letter.is_alphanumeric() || letter == '_' {
                word.extend(letter.to_lowercase());
                continue;
            }
            if !word.is_empty() {
                found.push((number, std::mem::take(&mut word)));
            }
            if !letter.is_whitespace() && letter != '*' && letter != '`' {
                found.push((number, letter.to_string()));
            }
        }
        found
    })
}

/// The banned phrases in the files below `root` that git knows or may add, as `file:line: phrase`.
pub(crate) fn banned(root: &Path) -> Result<Vec<String>> {
    let banned =
        BannedPhrases::parse(&std::fs::read_to_string(root.join("xtask/banned-phrases.txt"))?);
    let mut found = Vec::new();
    for file in listed(root, &["*.rs", "*.md", "*.toml"])? {
        if !banned.is_exempt(&file) {
            let text = std::fs::read_to_string(root.join(&file))?;
            let hits = banned.find(&text).into_iter();
            found.extend(hits.map(|(line, phrase)| format!("{file}:{line}: \"{phrase}\"")));
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list() -> BannedPhrases {
        BannedPhrases::parse("# why\nat hand\nof theirs\nexempt docs/old\n")
    }

    #[test]
    fn phrases_are_found_within_their_sentence() {
        let text = "/// What is At\n/// hand: one.\nlet x = \"of theirs\";\nat a hand\nof `theirs`";
        let found = list().find(text);
        let expected = [(1, "at hand"), (3, "of theirs"), (5, "of theirs")];
        assert_eq!(found, expected.map(|(line, phrase)| (line, phrase.to_owned())));
        assert_eq!(list().find("look at. hand it over; flat hand, what_of theirs"), []);
    }

    #[test]
    fn exempt_paths_are_whole_components() {
        let exempt = ["docs/old", "docs/old/a.md"].map(|file| list().is_exempt(file));
        let others = ["docs/older.md", "docs"].map(|file| list().is_exempt(file));
        assert_eq!((exempt, others), ([true; 2], [false; 2]));
    }

    #[test]
    fn workspace_has_no_banned_phrase() {
        assert_eq!(banned(crate::workspace::workspace_root()).unwrap(), Vec::<String>::new());
    }
}
