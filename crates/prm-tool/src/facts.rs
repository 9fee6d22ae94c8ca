//! Recorded offsets of one header: `prm/import/*.json`.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::at::Span;

/// Structures and enum values of a header.
#[derive(Debug, Default, Deserialize, Serialize)]
pub(crate) struct Facts {
    /// Structures by their C name.
    pub(crate) structs: BTreeMap<String, Layout>,
    /// Values by their C name.
    #[serde(default)]
    pub(crate) enums: BTreeMap<String, u64>,
}

/// The layout of a C structure.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
pub(crate) struct Layout {
    /// Size in bits.
    pub(crate) bits: u32,
    /// Bit offset and width by field name; width 0 is a flexible array.
    pub(crate) fields: BTreeMap<String, (u32, u32)>,
}

impl Facts {
    /// Reads a JSON file.
    pub(crate) fn read(path: &Path) -> crate::repository::Result<Self> {
        let text = std::fs::read_to_string(path)
            .map_err(|error| format!("{}: {error}", path.display()))?;
        serde_json::from_str(&text).map_err(|error| format!("{}: {error}", path.display()).into())
    }
}

impl Layout {
    /// The fields in memory order, without reserved ones.
    pub(crate) fn named(&self) -> Vec<(&str, Span)> {
        let mut fields: Vec<(&str, Span)> = self
            .fields
            .iter()
            .filter(|(name, _)| !is_reserved(name))
            .map(|(name, &(start, width))| (name.as_str(), Span { start, width }))
            .collect();
        fields.sort_by_key(|&(_, span)| span);
        fields
    }
}

/// Whether a field of this name is a gap: `reserved_at_40`, `reserved_1`.
pub(crate) fn is_reserved(name: &str) -> bool {
    let rest = name.strip_prefix("reserved_").or_else(|| name.strip_prefix("resereved_"));
    rest.map(|rest| rest.strip_prefix("at_").unwrap_or(rest))
        .is_some_and(|rest| rest.bytes().all(|b| b.is_ascii_hexdigit()))
}

/// The C structure of Linux's `mlx5_ifc.h` in a list of sources, such as `linux:
/// mlx5_ifc_cqc_bits`.
pub(crate) fn ifc_name(sources: &[String]) -> Option<&str> {
    sources.iter().find_map(|source| {
        let name = source.strip_prefix("linux: ").filter(|name| name.starts_with("mlx5_ifc_"))?;
        let end = name.find(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        Some(&name[..end.unwrap_or(name.len())])
    })
}
