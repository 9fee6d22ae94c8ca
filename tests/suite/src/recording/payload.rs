//! The bytes that messages write to memory, which a recording has only if asked
//! (`--record-payload`).
//!
//! When a request or a receive completes, its WQE says where the message was written: a receive and
//! a READ by their own data segments, a WRITE by the remote address. Only keys of registered memory
//! are known, not those of other keys (KLM, KSM), nor the memory of other processes. The bytes are
//! read when the completion is seen, so a program that is fast may have changed them.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use verbless_prm::{CreateMkeyIn, CreateMkeyOut};

use crate::own_memory;

/// Bytes of a data segment, and of a segment's unit.
const UNIT: usize = 16;
/// The data segment holds its data itself, in the next bytes of its low bits.
const INLINE: u32 = 1 << 31;
/// The key that ends a receive's list (`MLX5_INVALID_LKEY`).
const NO_KEY: u32 = 0x100;
/// Bytes that are recorded of one completion: more are left out, with all of it.
pub(super) const MOST: u64 = 1 << 20;

/// Memory that a message was written to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Range {
    pub(super) key: u32,
    pub(super) address: u64,
    pub(super) len: u64,
}

/// Where the data segments put a message of `bytes` bytes.
pub(super) fn scattered(segments: &[u8], bytes: u64) -> Vec<Range> {
    let mut left = bytes;
    let (segments, _) = segments.as_chunks::<UNIT>();
    let ranges = segments.iter().map_while(|segment| {
        let (count, key, address) = words(segment);
        if left == 0 || key == NO_KEY || count & INLINE != 0 {
            return None;
        }
        let len = left.min(count.into());
        left -= len;
        Some(Range { key, address, len })
    });
    ranges.filter(|range| range.len > 0).collect()
}

/// What a completed request has written.
pub(super) fn written(wqe: &[u8]) -> Vec<Range> {
    let (Some(opcode), Some(remote)) = (wqe.get(3), wqe.get(UNIT..2 * UNIT)) else {
        return Vec::new();
    };
    let remote = remote.first_chunk().map(remote_of);
    let after = |at: usize| wqe.get(at..).unwrap_or_default();
    match opcode {
        // RDMA_WRITE, RDMA_WRITE_IMM.
        0x08 | 0x09 => {
            let len = message_bytes(after(2 * UNIT));
            remote.map(|it| Range { len, ..it }).into_iter().filter(|it| it.len > 0).collect()
        }
        // RDMA_READ.
        0x10 => scattered(after(2 * UNIT), u64::MAX),
        // ATOMIC_CS, ATOMIC_FA, and with masks: eight bytes at both ends.
        0x11 | 0x12 | 0x14 | 0x15 => {
            let operands = if *opcode == 0x14 { 2 * UNIT } else { UNIT };
            let here = scattered(after(2 * UNIT + operands), 8);
            here.into_iter().chain(remote.map(|it| Range { len: 8, ..it })).collect()
        }
        _ => Vec::new(),
    }
}

/// Bytes of the message that these segments have.
fn message_bytes(segments: &[u8]) -> u64 {
    let (segments, _) = segments.as_chunks::<UNIT>();
    let Some(first) = segments.first() else { return 0 };
    match words(first).0 {
        count if count & INLINE != 0 => (count & !INLINE).into(),
        _ => segments.iter().map(|segment| u64::from(words(segment).0)).sum(),
    }
}

/// Byte count, key and address of a data segment (`mlx5_wqe_data_seg`).
fn words(&[a, b, c, d, e, f, g, h, ref address @ ..]: &[u8; UNIT]) -> (u32, u32, u64) {
    let (count, key) = (u32::from_be_bytes([a, b, c, d]), u32::from_be_bytes([e, f, g, h]));
    (count, key, u64::from_be_bytes(*address))
}

/// The remote address of a WQE (`mlx5_wqe_raddr_seg`).
fn remote_of(segment: &[u8; UNIT]) -> Range {
    let &[a, b, c, d, e, f, g, h, i, j, k, l, ..] = segment;
    let address = u64::from_be_bytes([a, b, c, d, e, f, g, h]);
    Range { key: u32::from_be_bytes([i, j, k, l]), address, len: 0 }
}

/// A key of registered memory.
#[derive(Clone, Copy, Debug)]
struct Key {
    handle: u64,
    umem: u32,
    /// Where the key begins in the UMEM.
    offset: u64,
    start: u64,
    len: u64,
}

/// The keys of all open files of a case, by file and index, and where their UMEMs are.
#[derive(Debug, Default)]
pub(super) struct Keys {
    keys: Mutex<HashMap<(u32, u32), Key>>,
    umems: Mutex<HashMap<(u32, u32), u64>>,
}

/// A place in registered memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) file: u32,
    pub(super) umem: u32,
    pub(super) offset: u64,
}

impl Keys {
    fn keys(&self) -> MutexGuard<'_, HashMap<(u32, u32), Key>> {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Learns where a file's UMEM is.
    pub(super) fn register(&self, file: u32, umem: u32, address: u64) {
        let mut umems = self.umems.lock().unwrap_or_else(PoisonError::into_inner);
        umems.insert((file, umem), address);
    }

    /// The bytes at a place; `None` if they are not mapped.
    pub(super) fn read(&self, place: Place, len: u64) -> Option<Vec<u8>> {
        let umems = self.umems.lock().unwrap_or_else(PoisonError::into_inner);
        let address = umems.get(&(place.file, place.umem))?.checked_add(place.offset)?;
        let bytes = own_memory::read(address, len as usize);
        (bytes.len() as u64 == len).then_some(bytes)
    }

    /// Learns a key that CREATE_MKEY made.
    pub(super) fn learn(&self, file: u32, handle: u64, input: &[u8], output: &[u8]) -> Option<()> {
        let input = CreateMkeyIn::from_prefix(input)?;
        let index = CreateMkeyOut::from_prefix(output)?.mkey_index();
        let context = input.memory_key_mkey_entry();
        // 1: the translation is a list of pages (MTT).
        let is_list = (context.access_mode_4_2(), context.access_mode_1_0()) == (0, 1);
        let is_known = input.mkey_umem_valid() && is_list && !context.length64();
        let (umem, offset) = (input.mkey_umem_id(), input.mkey_umem_offset());
        let key = Key { handle, umem, offset, start: context.start_addr(), len: context.len() };
        is_known.then(|| self.keys().insert((file, index), key)).map(drop)
    }

    /// Forgets a key.
    pub(super) fn forget(&self, file: u32, handle: u64) {
        self.keys().retain(|&(of, _), key| of != file || key.handle != handle);
    }

    /// Where a range is: by a key of this file, or by the only one of another.
    pub(super) fn place(&self, file: u32, range: Range) -> Option<Place> {
        let keys = self.keys();
        let within = |key: &Key| {
            let at = range.address.checked_sub(key.start)?;
            (at.checked_add(range.len)? <= key.len).then_some(())?;
            key.offset.checked_add(at)
        };
        let mut found: Vec<Place> = keys
            .iter()
            .filter(|&(&(_, index), _)| index == range.key >> 8)
            .filter_map(|(&(file, _), key)| {
                Some(Place { file, umem: key.umem, offset: within(key)? })
            })
            .collect();
        found.sort_by_key(|place| place.file != file);
        let [first, others @ ..] = &found[..] else { return None };
        (first.file == file || others.is_empty()).then_some(*first)
    }
}

#[cfg(test)]
mod tests {
    use super::super::wqe::{Class, without_data_of_wqe};
    use super::*;

    fn segment(count: u32, key: u32, address: u64) -> Vec<u8> {
        [&count.to_be_bytes()[..], &key.to_be_bytes(), &address.to_be_bytes()].concat()
    }

    #[test]
    fn message_fills_segments_in_order() {
        let list = [segment(10, 0x700, 1), segment(10, 0x800, 2), segment(0, NO_KEY, 0)].concat();
        let first = Range { key: 0x700, address: 1, len: 10 };
        assert_eq!(scattered(&list, 8), [Range { len: 8, ..first }]);
        let second = Range { key: 0x800, address: 2, len: 5 };
        assert_eq!(scattered(&list, 15), [first, second]);
    }

    #[test]
    fn requests_write_where_they_say() {
        let control = |opcode: u8| [&[0, 0, 0, opcode][..], &[0; 12]].concat();
        let remote = [&9_u64.to_be_bytes()[..], &[0, 0, 3, 1], &[0; 4]].concat();
        let local = segment(20, 0x700, 1);
        let of = |opcode| written(&[&control(opcode)[..], &remote, &local].concat());
        assert_eq!(of(0x08), [Range { key: 0x301, address: 9, len: 20 }]);
        assert_eq!(of(0x10), [Range { key: 0x700, address: 1, len: 20 }]);
        assert_eq!(of(0x0a), [], "a SEND is written by its receive");
        let inline = [&control(0x08)[..], &remote, &segment(INLINE | 7, 0, 0)].concat();
        assert_eq!(written(&inline), [Range { key: 0x301, address: 9, len: 7 }]);
    }

    #[test]
    fn recorded_atomic_writes_at_both_ends() {
        for (opcode, operands) in [(0x11, 16), (0x12, 16), (0x14, 32), (0x15, 16)] {
            let control = [&[0, 0, 0, opcode][..], &[0; 12]].concat();
            let remote = [&9_u64.to_be_bytes()[..], &[0, 0, 3, 1], &[0; 4]].concat();
            let parts = [control, remote, vec![0x55; operands], segment(8, 0x700, 1).to_vec()];
            let mut wqe = parts.concat();
            without_data_of_wqe(&mut wqe, Class::Connected);
            let ends =
                [(0x700, 1), (0x301, 9)].map(|(key, address)| Range { key, address, len: 8 });
            assert_eq!(written(&wqe), ends, "opcode {opcode:#x}");
        }
    }

    #[test]
    fn key_of_two_other_files_has_no_place() {
        let keys = Keys::default();
        let key = Key { handle: 1, umem: 4, offset: 100, start: 10, len: 50 };
        let range = Range { key: 0x501, address: 20, len: 40 };
        for file in [1, 2] {
            keys.keys().insert((file, 5), key);
        }
        let place = |file| Some(Place { file, umem: 4, offset: 110 });
        assert_eq!(keys.place(0, range), None);
        assert_eq!(keys.place(2, range), place(2));
        keys.forget(2, 1);
        assert_eq!(keys.place(0, range), place(1));
        assert_eq!(keys.place(1, Range { len: 41, ..range }), None, "past its end");
    }
}
