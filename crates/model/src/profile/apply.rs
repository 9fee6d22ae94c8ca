//! Applies the layers of a profile in their order: common values, those of the link layer, those of
//! the side.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use verbless_prm::reflect::StructInfo;

use super::file::{ByLink, File, OnDpu};

/// A capability page: its values at the start of the device, and their maxima.
#[derive(Debug, Clone)]
pub(crate) struct CapPage {
    pub info: &'static StructInfo,
    pub current: Box<[u8]>,
    pub max: Box<[u8]>,
}

/// A register, as ACCESS_REGISTER reads it.
#[derive(Debug, Clone)]
pub struct Register {
    /// The register's layout.
    pub info: &'static StructInfo,
    /// The register's contents.
    pub bytes: Box<[u8]>,
}

/// All capability pages of a function.
pub(super) fn pages(
    file: &File,
    by_link: &ByLink,
    by_side: Option<&OnDpu>,
) -> BTreeMap<u16, CapPage> {
    let mut pages: BTreeMap<u16, CapPage> = BTreeMap::new();
    let by_side = by_side.map(|side| &side.caps);
    // The current value is also the maximum, unless a `max` section gives a larger one.
    for layer in [&file.caps, &by_link.caps].into_iter().chain(by_side) {
        for (&number, values) in &layer.0 {
            match pages.entry(number) {
                Entry::Vacant(entry) => {
                    let (info, current, max) =
                        (values.info, values.over_zeros(), values.over_zeros());
                    entry.insert(CapPage { info, current, max });
                }
                Entry::Occupied(mut entry) => {
                    values.apply(&mut entry.get_mut().current);
                    values.apply(&mut entry.get_mut().max);
                }
            }
        }
    }
    for layer in [&file.max, &by_link.max] {
        for (&number, values) in &layer.0 {
            match pages.entry(number) {
                Entry::Vacant(entry) => {
                    let (info, max) = (values.info, values.over_zeros());
                    entry.insert(CapPage { info, current: vec![0; max.len()].into(), max });
                }
                Entry::Occupied(mut entry) => values.apply(&mut entry.get_mut().max),
            }
        }
    }
    pages
}

/// All registers of a device.
pub(super) fn registers(file: &File, by_link: &ByLink) -> BTreeMap<u16, Register> {
    let mut registers: BTreeMap<u16, Register> = BTreeMap::new();
    for layer in [&file.registers, &by_link.registers] {
        for (&number, values) in &layer.0 {
            match registers.entry(number) {
                Entry::Vacant(entry) => {
                    entry.insert(Register { info: values.info, bytes: values.over_zeros() });
                }
                Entry::Occupied(mut entry) => values.apply(&mut entry.get_mut().bytes),
            }
        }
    }
    registers
}
