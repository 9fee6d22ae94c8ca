//! Translation entries of indirect keys, as software writes them in CREATE_MKEY and in UMR: ranges
//! of other keys (KLM), blocks of one size (KSM), or interleaved KLMs (strided UMR). Interleaved
//! KLMs begin with a repeat block header; KLMs and KSMs have no header.

use verbless_prm as prm;
use verbless_prm::{Ksm, UmrRepeatBlockSegment, UmrRepeatEntry};

use crate::hca::budget::Budget;
use crate::hca::objects::{Interleaved, Klm, Limits, Stride, Translation};

/// Bytes of an entry.
pub(crate) const ENTRY: usize = prm::Klm::BYTES;

/// The translation of a list. The error is a mistake in its header: it does not match the entries
/// after it, or the device does not support it. In a KSM all entries have one size.
pub(crate) fn translation(
    budget: &Budget,
    list: &[u8],
    log_entry_size: Option<u32>,
    limits: &Limits,
) -> Result<Translation, String> {
    let mut entries = list.chunks_exact(ENTRY);
    if log_entry_size.is_none()
        && let Some(header) = UmrRepeatBlockSegment::from_prefix(list)
        && header.op() == limits.repeated_mkey
    {
        if limits.repeated_block_disabled {
            return Err("the device has no repeat blocks".into());
        }
        entries.next();
        return interleaved(budget, header, entries).map(Translation::Interleaved);
    }
    let entries: Option<Vec<Klm>> = match log_entry_size {
        Some(_) => entries.map(|entry| Some(of_ksm(Ksm::from_prefix(entry)?))).collect(),
        None => entries.map(|entry| Some(of_klm(prm::Klm::from_prefix(entry)?))).collect(),
    };
    let entries = entries.ok_or("an entry has too few bytes")?;
    if log_entry_size.is_none() && entries.iter().any(|entry| entry.length > prm::Klm::MAX_BYTES) {
        return Err("a KLM entry is longer than 2 GiB".into());
    }
    // Empty entries pad a list after its end. No public source says what a device does with
    // other empty ones: in a data segment, a length of 0 is 2 GiB (Linux odp.c).
    let is_empty = |entry: &Klm| entry.length == 0;
    if log_entry_size.is_none()
        && let Some(first) = entries.iter().position(is_empty)
        && !entries[first..].iter().all(is_empty)
    {
        return Err(format!("KLM entry {first} is empty, and others follow"));
    }
    Ok(Translation::Indirect { entries: budget.list(entries), log_entry_size })
}

fn of_klm(entry: &prm::Klm) -> Klm {
    Klm { length: entry.byte_count(), key: entry.mkey(), address: entry.address() }
}

/// An entry of a KSM; its length is the key's block size.
fn of_ksm(entry: &Ksm) -> Klm {
    Klm { length: 0, key: entry.key(), address: entry.address() }
}

fn interleaved<'a>(
    budget: &Budget,
    header: &UmrRepeatBlockSegment,
    entries: impl Iterator<Item = &'a [u8]>,
) -> Result<Interleaved, String> {
    let (length, rounds) = (u64::from(header.byte_count()), header.repeat_count());
    let count = usize::from(header.num_ent());
    let klms: Vec<(Klm, Stride)> = entries
        .take(count)
        .filter_map(UmrRepeatEntry::from_prefix)
        .map(|entry| {
            let (length, key, address) = (entry.byte_count(), entry.memkey(), entry.va());
            (Klm { length: length.into(), key, address }, entry.stride())
        })
        .collect();
    let together: u64 = klms.iter().map(|(klm, _)| u64::from(klm.length)).sum();
    let fits = klms.len() == count && together == length && length != 0 && rounds != 0;
    if !fits {
        return Err(format!(
            "an interleaved layout does not add up: {rounds} rounds of {length} bytes, {} of \
             {count} entries with {together} bytes",
            klms.len()
        ));
    }
    Ok(Interleaved { rounds, length, klms: budget.list(klms) })
}

impl Translation {
    /// Bytes that the entries of an indirect key cover; other keys cover their length.
    pub(crate) fn covers(&self) -> u64 {
        match self {
            Self::Indirect { entries, log_entry_size: Some(log) } => {
                (entries.len() as u64).saturating_mul(1_u64.checked_shl(*log).unwrap_or(u64::MAX))
            }
            Self::Indirect { entries, log_entry_size: None } => {
                entries.iter().map(|entry| u64::from(entry.length)).sum()
            }
            Self::Interleaved(layout) => layout.length * u64::from(layout.rounds),
            _ => u64::MAX,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hca::budget::Budget;

    #[test]
    fn interleaved_layout_covers_more_than_4_gib() {
        let mut header = UmrRepeatBlockSegment::zeroed();
        header.set_byte_count(0x8000).set_op(0x400).set_repeat_count(0x3_0000).set_num_ent(1);
        let mut entry = UmrRepeatEntry::zeroed();
        entry.set_byte_count(0x8000).set_memkey(7);
        let limits = Limits { repeated_mkey: 0x400, ..Limits::default() };
        let list = [&header.as_bytes()[..], &entry.as_bytes()[..]].concat();
        let made = translation(&Budget::default(), &list, None, &limits);
        assert_eq!(made.expect("the lengths add up").covers(), 0x1_8000_0000);
    }

    #[test]
    fn empty_klm_is_refused_before_others() {
        let list = |lengths: &[u32]| -> Vec<u8> {
            let entry = |&length: &u32| *prm::Klm::zeroed().set_byte_count(length).set_mkey(7);
            lengths.iter().flat_map(|length| entry(length).as_bytes().to_vec()).collect()
        };
        let made = |lengths: &[u32]| {
            translation(&Budget::default(), &list(lengths), None, &Limits::default())
        };
        for lengths in [&[8_u32, 8, 0, 0][..], &[0, 0], &[8]] {
            assert!(made(lengths).is_ok(), "{lengths:?}");
        }
        for (lengths, at) in [(&[8_u32, 0, 8][..], 1), (&[0, 8], 0)] {
            let why = made(lengths).expect_err("the behaviour of a device for it is not known");
            assert!(why.contains(&format!("entry {at} is empty")), "{why}");
        }
    }
}
