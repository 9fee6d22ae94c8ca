//! Errors in a profile.

use std::fmt;
use std::path::PathBuf;

/// Why a profile cannot be used.
#[derive(Debug)]
pub enum ProfileError {
    /// No built-in profile has that name.
    NoSuchProfile {
        /// The requested name.
        name: String,
        /// The names that exist.
        known: String,
    },
    /// This program cannot read profiles from files.
    NoFiles {
        /// The file.
        path: PathBuf,
    },
    /// The file cannot be read.
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The text is not TOML; the string gives the mistake and its place.
    Syntax(String),
    /// A section of `caps` or `max` names no capability page.
    NoSuchPage {
        /// The section.
        section: String,
        /// The most similar name.
        near: Option<&'static str>,
    },
    /// A section of `registers` names no register.
    NoSuchRegister {
        /// The section.
        section: String,
        /// The most similar name.
        near: Option<&'static str>,
    },
    /// The PRM has no such field there.
    NoSuchField {
        /// The section.
        section: String,
        /// The name given.
        field: String,
        /// The structure that was searched.
        structure: &'static str,
        /// The most similar name.
        near: Option<&'static str>,
    },
    /// The field is missing or unknown, or its value cannot be stored there.
    Value {
        /// The section.
        section: String,
        /// The field.
        field: String,
        /// The mistake in the field's value.
        why: String,
    },
}

impl fmt::Display for ProfileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoSuchProfile { name, known } => {
                write!(f, "there is no profile {name:?}; there are: {known}")?;
                match cfg!(feature = "toml") {
                    true => f.write_str(", or give the path of a .toml file"),
                    false => Ok(()),
                }
            }
            Self::NoFiles { path } => write!(
                f,
                "cannot read the profile {}: this program was built without the feature `toml` of \
                 verbless or verbless-model",
                path.display()
            ),
            Self::Read { path, source } => {
                write!(f, "cannot read the profile {}: {source}", path.display())
            }
            Self::Syntax(text) => f.write_str(text),
            Self::NoSuchPage { section, near } => {
                write!(f, "[{section}]: there is no capability page of that name{}", hint(near))
            }
            Self::NoSuchRegister { section, near } => write!(
                f,
                "[{section}]: there is no register of that name with a known layout{}",
                hint(near)
            ),
            Self::NoSuchField { section, field, structure, near } => {
                write!(f, "[{section}] {field}: {structure} has no such field{}", hint(near))
            }
            Self::Value { section, field, why } => write!(f, "[{section}] {field} {why}"),
        }
    }
}

impl std::error::Error for ProfileError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Read { source, .. } => Some(source),
            _ => None,
        }
    }
}

fn hint(near: &Option<&'static str>) -> String {
    near.map(|near| format!("; did you mean {near}?")).unwrap_or_default()
}

/// The name in `names` with the fewest edits from `name`, if they are few.
#[cfg(feature = "toml")]
pub(crate) fn nearest(
    name: &str,
    names: impl Iterator<Item = &'static str>,
) -> Option<&'static str> {
    names
        .map(|candidate| (distance(name.as_bytes(), candidate.as_bytes()), candidate))
        .filter(|&(edits, candidate)| edits <= 2.max(candidate.len() / 4))
        .min()
        .map(|(_, candidate)| candidate)
}

/// Levenshtein's distance.
#[cfg(feature = "toml")]
fn distance(a: &[u8], b: &[u8]) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.iter().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, y) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distance_counts_fewest_edits() {
        for (a, b, edits) in [
            ("", "", 0),
            ("", "abc", 3),
            ("abc", "", 3),
            ("cap", "cap", 0),
            ("cap", "caps", 1),
            ("caps", "cap", 1),
            ("xcap", "cap", 1),
            ("xycap", "cap", 2),
            ("cap", "ecap", 1),
            ("cqe", "cwe", 1),
            ("kitten", "sitting", 3),
            ("flaw", "lawn", 2),
        ] {
            assert_eq!(distance(a.as_bytes(), b.as_bytes()), edits, "{a} and {b}");
        }
    }

    #[test]
    fn nearest_name_is_within_edit_limit() {
        let names = || ["dma", "log_max_qp", "cross_vhca_object"].into_iter();
        for (name, near) in [
            ("dna", Some("dma")),
            ("d", Some("dma")),
            ("", None),
            ("log_max_pq", Some("log_max_qp")),
            ("log_mix_pq", None),
            ("gross_vhca_objekts", Some("cross_vhca_object")),
            ("kross_whka_objekts", None),
        ] {
            assert_eq!(nearest(name, names()), near, "{name}");
        }
    }
}
