//! Fields that a description has at other bits than ours, or whose bits are something else there,
//! each with the reason why ours stays: `prm/evidence/divergences.toml`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde::Deserialize;

use super::compare::Conflict;
use crate::repository::Result;

/// Path from the root of the repository.
const FILE: &str = "prm/evidence/divergences.toml";

/// Divergences by description.
#[derive(Debug, Default)]
pub(crate) struct Divergences(BTreeMap<String, BTreeMap<String, String>>);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    divergence: Vec<Entry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    descriptions: Vec<String>,
    fields: Vec<String>,
    why: String,
}

impl Divergences {
    /// Reads the file; a repository without one has no divergences.
    pub(crate) fn read(root: &Path) -> Result<Self> {
        match std::fs::read_to_string(root.join(FILE)) {
            Ok(text) => Self::parse(&text),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Self::default()),
            Err(error) => Err(format!("{FILE}: {error}").into()),
        }
    }

    /// Reads the text of the file.
    pub(super) fn parse(text: &str) -> Result<Self> {
        let file: File = toml::from_str(text).map_err(|error| format!("{FILE}: {error}"))?;
        let mut this = Self::default();
        for Entry { descriptions, fields, why } in file.divergence {
            for description in descriptions {
                let known = this.0.entry(description).or_default();
                known.extend(fields.iter().map(|field| (field.clone(), why.clone())));
            }
        }
        Ok(this)
    }

    /// Why a field diverges from a description.
    pub(crate) fn why(&self, description: &str, structure: &str, field: &str) -> Option<&str> {
        let why = self.0.get(description)?.get(&format!("{structure}.{field}"))?;
        Some(why)
    }

    /// Conflicts that no entry explains, and entries for which there is none. `renamed` are fields
    /// of the same bits and another name, which an entry declares to be something else.
    pub(crate) fn problems(
        &self,
        description: &str,
        conflicts: &[Conflict<'_>],
        renamed: &BTreeSet<String>,
    ) -> Vec<String> {
        let name = |it: &Conflict<'_>| format!("{}.{}", it.structure, it.field);
        let unknown = conflicts
            .iter()
            .filter(|it| self.why(description, it.structure, it.field).is_none())
            .map(|it| format!("{description}: {it}; correct prm/, or explain it in {FILE}"));
        let stale = self.0.get(description).into_iter().flat_map(BTreeMap::keys);
        let stale = stale.filter(|field| conflicts.iter().all(|it| name(it) != **field));
        let stale = stale.filter(|field| !renamed.contains(*field));
        let stale = stale.map(|field| {
            format!("{description}: {field} is in {FILE}, but there is no conflict: remove it")
        });
        unknown.chain(stale).collect()
    }
}
