//! What the PRM says of a field, in one sentence.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use super::fields::Leaf;

/// A line for each structure, in brackets, then one for each of its fields. `build.rs` makes it.
const DOCS: &str = include_str!(concat!(env!("OUT_DIR"), "/docs.tsv"));

/// The sentences by structure and field.
static BY_FIELD: LazyLock<BTreeMap<(&str, &str), &str>> = LazyLock::new(|| {
    let mut structure = "";
    let mut docs = BTreeMap::new();
    for line in DOCS.lines() {
        match line.split_once('\t') {
            Some((field, doc)) => _ = docs.insert((structure, field), doc),
            None => structure = line.trim_matches(['[', ']']),
        }
    }
    docs
});

/// What a field means; empty if `build.rs` does not take it from the PRM.
pub(super) fn doc(leaf: &Leaf) -> &'static str {
    BY_FIELD.get(&(leaf.owner.name, leaf.field.name)).copied().unwrap_or_default()
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
