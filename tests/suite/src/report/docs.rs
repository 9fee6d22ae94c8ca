//! What the PRM says of a field, in one sentence.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use toml::Table;

use super::fields::Leaf;

/// The files of `prm/` that describe what a report has.
const FILES: [&str; 4] = [
    include_str!("../../../../prm/adapter.toml"),
    include_str!("../../../../prm/hca_cap.toml"),
    include_str!("../../../../prm/lag.toml"),
    include_str!("../../../../prm/vport.toml"),
];

/// The sentences by structure and field.
static DOCS: LazyLock<BTreeMap<(String, String), String>> = LazyLock::new(|| {
    let mut docs = BTreeMap::new();
    // The files are part of the program, and a test reads them.
    for (structure, entry) in FILES.iter().flat_map(|text| text.parse().unwrap_or(Table::new())) {
        let fields = entry.get("fields").and_then(|fields| fields.as_table());
        for (field, about) in fields.into_iter().flatten() {
            if let Some(doc) = about.get("doc").and_then(|doc| doc.as_str()) {
                docs.insert((structure.clone(), field.clone()), doc.to_owned());
            }
        }
    }
    docs
});

/// What a field means; empty if the PRM's files of a report do not say.
pub(super) fn doc(leaf: &Leaf) -> &'static str {
    let key = (leaf.owner.name.to_owned(), leaf.field.name.to_owned());
    DOCS.get(&key).map_or("", String::as_str)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::fields::{layout, leaves};

    #[test]
    fn every_capability_has_a_sentence() {
        let pages = (0..0x40).filter_map(layout);
        let all = pages.flat_map(|info| leaves(info, info.bytes));
        let silent: Vec<_> = all.filter(|leaf| doc(leaf).is_empty()).map(|it| it.path).collect();
        assert_eq!(silent, [""; 0]);
    }
}
