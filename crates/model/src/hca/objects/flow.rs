//! Flow tables: the fields of a frame that they read, the matches of their entries, and the
//! destinations.
//!
//! Only the link header, and the type of the next header, can be matched: the fields in the
//! capability page of flow tables (`ft_field_support`).

use std::ops::RangeInclusive;

use verbless_prm::{FlowContext, FlowTableContext, FteMatchParam, FteMatchSetLyr24};

use crate::numbered::Numbered;

/// Bytes of the header fields in use: MAC addresses, EtherType, VLAN tag, IP version and protocol.
const KEY: usize = 0x14;

/// Maximum number of tables on the path of a frame; levels increase along it, so that it ends.
const MAX_TABLES: usize = 256;

/// The fields of a frame that entries compare, or a mask of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Key([u8; KEY]);

/// A table, with its groups and entries.
#[derive(Debug)]
pub(crate) struct FlowTable {
    pub uid: u16,
    pub context: FlowTableContext,
    pub groups: Numbered<u32, FlowGroup>,
    pub entries: Numbered<u32, FlowEntry>,
}

/// A range of entries that match the same fields.
#[derive(Debug)]
pub(crate) struct FlowGroup {
    pub range: RangeInclusive<u32>,
    pub enable: u8,
    pub mask: Key,
}

/// An entry, with its match value and destinations.
#[derive(Debug)]
pub(crate) struct FlowEntry {
    pub group: u32,
    pub mask: Key,
    pub value: Key,
    pub to: Vec<Destination>,
    pub context: Box<FlowContext>,
}

/// A destination of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Destination {
    Tir(u32),
    Table(u32),
}

impl Key {
    /// The fields in match parameters.
    pub(crate) fn of(headers: &FteMatchSetLyr24) -> Self {
        let mut key = [0; KEY];
        key.copy_from_slice(&headers.as_bytes()[..KEY]);
        Self(key)
    }

    /// The mask of match criteria; `None` if it has a field that cannot be matched.
    pub(crate) fn mask(criteria: &FteMatchParam) -> Option<Self> {
        let outer = criteria.outer_headers();
        let mut can = FteMatchSetLyr24::zeroed();
        can.set_smac_47_16(u32::MAX).set_smac_15_0(u16::MAX).set_ethertype(u16::MAX);
        can.set_dmac_47_16(u32::MAX).set_dmac_15_0(u16::MAX).set_cvlan_tag(true);
        can.set_first_prio(7).set_first_cfi(true).set_first_vid(0xfff);
        can.set_ip_version(0xf).set_ip_protocol(0xff);
        let beyond = |(asked, can): (&u8, &u8)| asked & !can != 0;
        let rest = &criteria.as_bytes()[FteMatchSetLyr24::BYTES..];
        if outer.as_bytes().iter().zip(can.as_bytes()).any(beyond) || rest.iter().any(|&it| it != 0)
        {
            return None;
        }
        Some(Self::of(outer))
    }

    /// Writes the fields into match parameters.
    pub(crate) fn write(&self, headers: &mut FteMatchSetLyr24) {
        headers.as_bytes_mut()[..KEY].copy_from_slice(&self.0);
    }

    /// Whether a frame's fields are `value` under `mask`.
    fn matches(&self, mask: &Self, value: &Self) -> bool {
        let fields = self.0.iter().zip(&mask.0).zip(&value.0);
        fields.into_iter().all(|((own, mask), value)| (own ^ value) & mask == 0)
    }
}

impl FlowTable {
    /// The number of entries.
    pub(crate) fn size(&self) -> u32 {
        1_u32.checked_shl(self.context.log_size().into()).unwrap_or(u32::MAX)
    }

    /// The table for misses.
    pub(crate) fn miss(&self) -> Option<u32> {
        use verbless_prm::TableMissAction as Action;
        (self.context.table_miss_action() == Action::FWD).then(|| self.context.table_miss_id())
    }
}

/// Calls `each` with every TIR that a frame reaches, and the tag of the entry.
pub(crate) fn steer(
    tables: &Numbered<u32, FlowTable>,
    root: Option<u32>,
    frame: &Key,
    mut each: impl FnMut(u32, u32),
) {
    let mut next: Vec<u32> = root.into_iter().collect();
    for _ in 0..MAX_TABLES {
        let Some(number) = next.pop() else { return };
        let Some(table) = tables.get(&number) else {
            tracing::error!(table = number, "a flow rule names a destroyed table");
            continue;
        };
        // The matching entry with the lowest index.
        let found = table.entries.values().find(|entry| frame.matches(&entry.mask, &entry.value));
        let Some(entry) = found else {
            next.extend(table.miss());
            continue;
        };
        for to in &entry.to {
            match *to {
                Destination::Tir(tir) => each(tir, entry.context.flow_tag()),
                Destination::Table(table) => next.push(table),
            }
        }
    }
    if !next.is_empty() {
        tracing::warn!(left = next.len(), "a frame goes through too many flow tables");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A table with one entry that matches every frame.
    fn table(to: Vec<Destination>) -> FlowTable {
        let all = Key([0; KEY]);
        let context = Box::new(FlowContext::zeroed());
        let entry = FlowEntry { group: 0, mask: all, value: all, to, context };
        let (context, groups) = (FlowTableContext::zeroed(), Numbered::new());
        FlowTable { uid: 0, context, groups, entries: Numbered::from([(0, entry)]) }
    }

    #[test]
    fn missing_table_spares_other_destinations() {
        let (gone, there) = (Destination::Table(9), Destination::Table(2));
        for to in [vec![gone, there], vec![there, gone]] {
            let tables = Numbered::from([(1, table(to)), (2, table(vec![Destination::Tir(5)]))]);
            let mut found = Vec::new();
            steer(&tables, Some(1), &Key([0; KEY]), |tirn, _| found.push(tirn));
            assert_eq!(found, [5]);
        }
    }
}
