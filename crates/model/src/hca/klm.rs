//! Translation entries of indirect keys as software writes them, in CREATE_MKEY and in UMR: ranges
//! of other keys (KLM), blocks of one size (KSM), or KLMs that are taken in turn over and over.
//!
//! The last kind begins with a header in the place of an entry; what has no header is a list.
//! Sources: Linux `include/linux/mlx5/qp.h` (mlx5_stride_block_*), rdma-core
//! `providers/mlx5/mlx5dv.h` (mlx5_wqe_umr_repeat_*).

use crate::hca::budget::Budget;
use crate::hca::objects::{Interleaved, Klm, Limits, Stride, Translation};

/// Bytes of an entry.
pub(crate) const ENTRY: usize = 16;

fn word(bytes: &[u8]) -> u32 {
    bytes.try_into().map_or(0, u32::from_be_bytes)
}

fn half(bytes: &[u8]) -> u16 {
    bytes.try_into().map_or(0, u16::from_be_bytes)
}

fn address(entry: &[u8]) -> u64 {
    u64::from(word(&entry[8..12])) << 32 | u64::from(word(&entry[12..16]))
}

/// What a list translates to, or what is wrong with its header: it does not fit the entries behind
/// it, or the device knows none. In a KSM all entries have one size.
pub(crate) fn translation(
    budget: &Budget,
    list: &[u8],
    log_entry_size: Option<u32>,
    limits: &Limits,
) -> Result<Translation, String> {
    let mut entries = list.chunks_exact(ENTRY);
    if log_entry_size.is_none()
        && let Some(header) = list.get(..ENTRY)
        && word(&header[4..8]) == limits.repeated_mkey
    {
        if limits.repeated_block_disabled {
            return Err("the device has no repeat blocks".into());
        }
        entries.next();
        return interleaved(budget, header, entries).map(Translation::Interleaved);
    }
    let entries: Vec<Klm> = entries
        .map(|entry| Klm {
            length: word(&entry[..4]),
            key: word(&entry[4..8]),
            address: address(entry),
        })
        .collect();
    Ok(Translation::Indirect { entries: budget.list(entries), log_entry_size })
}

fn interleaved<'a>(
    budget: &Budget,
    header: &[u8],
    entries: impl Iterator<Item = &'a [u8]>,
) -> Result<Interleaved, String> {
    let (length, rounds) = (u64::from(word(&header[..4])), word(&header[8..12]));
    let count = usize::from(half(&header[14..16]));
    let klms: Vec<(Klm, Stride)> = entries
        .take(count)
        .map(|entry| {
            let length = half(&entry[2..4]).into();
            let klm = Klm { length, key: word(&entry[4..8]), address: address(entry) };
            (klm, half(&entry[..2]))
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
    /// Bytes that the entries of an indirect key cover; those of other keys cover their length.
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
