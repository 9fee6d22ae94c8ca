//! Mutants that no test can or should notice, with the reason for each: `tests/mutants.toml`.

use serde::Deserialize;

use super::list::Mutant;
use crate::workspace::Result;

/// The list, compiled into this program.
const LIST: &str = include_str!("../../../tests/mutants.toml");

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Exclusions {
    exclude: Vec<Exclusion>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Exclusion {
    /// Path below the workspace's root.
    file: String,
    /// The change, as cargo-mutants names it after the position; `*` matches anything.
    change: String,
    reason: String,
}

impl Exclusions {
    pub(super) fn read() -> Result<Self> {
        Ok(toml::from_str(LIST)?)
    }

    /// Why a mutant is excluded, if it is.
    pub(super) fn reason(&self, mutant: &Mutant) -> Option<&str> {
        self.exclude.iter().find(|it| it.covers(mutant)).map(|it| &*it.reason)
    }

    /// Fails on an entry that matches none of the mutants, if its package is among `packages`.
    pub(super) fn match_something(&self, mutants: &[Mutant], packages: &[String]) -> Result {
        for it in &self.exclude {
            let listed = packages.is_empty() || mutants.iter().any(|mutant| mutant.file == it.file);
            if listed && !mutants.iter().any(|mutant| it.covers(mutant)) {
                return Err(format!(
                    "tests/mutants.toml excludes {:?} of {}, but there is no such mutant: name it \
                     as `cargo mutants --list` does, or delete the entry",
                    it.change, it.file
                )
                .into());
            }
        }
        Ok(())
    }
}

impl Exclusion {
    fn covers(&self, mutant: &Mutant) -> bool {
        mutant.file == self.file && matches(&self.change, mutant.change())
    }
}

/// Whether a text matches a pattern, in which `*` matches anything.
fn matches(pattern: &str, text: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == text,
        Some((head, rest)) => text.strip_prefix(head).is_some_and(|tail| {
            tail.char_indices().any(|(at, _)| matches(rest, &tail[at..])) || matches(rest, "")
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::super::list::tests::mutant;
    use super::{Exclusions, matches};
    use crate::workspace::workspace_root;

    #[test]
    fn exclusions_name_existing_file_and_reason() {
        for it in Exclusions::read().unwrap().exclude {
            assert!(workspace_root().join(&it.file).is_file(), "there is no {}", it.file);
            assert!(it.reason.len() > 10, "{}: {:?} is not a reason", it.file, it.reason);
        }
    }

    #[test]
    fn star_matches_anything() {
        for pattern in ["replace f with ()", "replace * with ()", "*", "*()", "replace f with ()*"]
        {
            assert!(matches(pattern, "replace f with ()"), "{pattern}");
        }
        for pattern in ["", "replace", "replace * with 0", "*with", "replace f with ()*x"] {
            assert!(!matches(pattern, "replace f with ()"), "{pattern}");
        }
    }

    #[test]
    fn exclusion_must_match_mutant() {
        let list = "[[exclude]]\nfile = \"a.rs\"\nchange = \"replace * with ()\"\nreason = \"-\"";
        let list: Exclusions = toml::from_str(list).unwrap();
        assert_eq!(list.reason(&mutant("a.rs", "replace f with ()")), Some("-"));
        assert_eq!(list.reason(&mutant("b.rs", "replace f with ()")), None);
        assert_eq!(list.reason(&mutant("a.rs", "replace f with 1")), None);
        let others = [mutant("a.rs", "replace f with 1")];
        assert!(list.match_something(&others, &[]).is_err());
        assert!(list.match_something(&[mutant("a.rs", "replace f with ()")], &[]).is_ok());
        let elsewhere = [mutant("b.rs", "replace f with 1")];
        assert!(list.match_something(&elsewhere, &["b".into()]).is_ok(), "not its package");
    }
}
