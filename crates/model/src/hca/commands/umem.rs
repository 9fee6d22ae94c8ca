//! User memory: CREATE_UMEM, and the buffers and records of other objects in it.

use verbless_prm::{CreateUmemIn, CreateUmemOut, DestroyUmemIn, DestroyUmemOut};

use super::call::{Call, Outcome};
use super::pages::addresses;
use crate::hca::objects::{QueueMemory, Umem};
use crate::hca::refusal::Refusal;
use crate::hca::registry::kind;
use crate::memory::{CARD, IOVA, Iommu};

/// Bits of a translation entry that are not part of the address: read and write permission.
const WRITE: u64 = 0x2;
const READ: u64 = 0x1;
/// Bits 7:2 of a translation entry.
const ENTRY_RESERVED: u64 = 0xfc;

/// The pages of a translation table, and whether the device may write all of them. Each bus address
/// must be aligned to the page size.
pub(super) fn pages(
    entries: &[u8],
    log_page_size: u32,
    iommu: &Iommu,
) -> Result<(Vec<u64>, bool), Refusal> {
    let size = 1_u64.checked_shl(log_page_size).unwrap_or(0);
    let mask = size.wrapping_sub(1);
    let mut writable = true;
    let pages: Result<Vec<u64>, Refusal> = addresses(entries)
        .map(|entry| {
            let page = entry & !(READ | WRITE);
            writable &= entry & WRITE != 0;
            if page >= CARD {
                return Err(Refusal::PageOnCard);
            }
            if entry & ENTRY_RESERVED != 0 {
                return Err(Refusal::Reserved);
            }
            if page & mask != 0 {
                return Err(Refusal::PageMisaligned);
            }
            let resolved = (page >= IOVA).then(|| iommu.resolve(page, size)).flatten();
            Ok(resolved.unwrap_or(page))
        })
        .collect();
    Ok((pages?, writable))
}

/// The pages of a UMEM: as [`pages`], but the last page may extend past the IOMMU's mapping, as in
/// Linux 5.10. The last number is the bytes of that page that the IOMMU does not map.
fn umem_pages(
    entries: &[u8],
    log_page_size: u32,
    iommu: &Iommu,
) -> Result<(Vec<u64>, bool, u64), Refusal> {
    let (mut pages, writable) = pages(entries, log_page_size, iommu)?;
    // An unresolved page still has its bus address.
    let part = pages.last_mut().filter(|page| **page >= IOVA).and_then(|page| {
        let size = 1 << log_page_size;
        let (memory, mapped) = iommu.resolve_part(*page, size)?;
        *page = memory;
        Some(size - mapped)
    });
    Ok((pages, writable, part.unwrap_or(0)))
}

/// CREATE_UMEM.
pub(in crate::hca) fn create(
    call: &mut Call<'_>,
    input: &CreateUmemIn,
    output: &mut CreateUmemOut,
) -> Outcome {
    let general = call.hca().caps.general();
    let umem = input.umem();
    if call.uid == 0 && !general.umem_uid_0() {
        return Err(Refusal::NoSuchUid);
    }
    if umem.ats() && !general.ats() {
        return Err(Refusal::Unsupported);
    }
    call.check_count(call.hca().objects.umems.len(), general.log_max_umem())?;
    let log_page_size = u32::from(umem.log_page_size()) + 12;
    let bytes = usize::try_from(umem.num_of_mtt()).ok().and_then(|count| count.checked_mul(8));
    let list = bytes.and_then(|bytes| call.list.get(..bytes)).ok_or(Refusal::ListTooShort)?;
    if !call.hca().budget.has_room(list.len()) {
        return Err(Refusal::OverBudget);
    }
    let (pages, writable, unmapped) = umem_pages(list, log_page_size, &call.hca().iommu)?;
    let offset = u64::from(umem.page_offset());
    let whole = (pages.len() as u64).checked_mul(1 << log_page_size);
    let length = whole
        .and_then(|whole| whole.checked_sub(unmapped)?.checked_sub(offset))
        .ok_or(Refusal::UmemPages)?;
    if length == 0 || offset >> log_page_size != 0 {
        return Err(Refusal::UmemPages);
    }
    let pages = call.hca().budget.list(pages);
    let memory = QueueMemory { pages, log_page_size, offset, length };
    let umem = Umem { uid: call.uid, memory, writable, device: false };
    output.set_umem_id(call.make(kind::Umem, umem)?);
    Ok(())
}

/// DESTROY_UMEM. A process's heap is destroyed with the process.
pub(in crate::hca) fn destroy(
    call: &mut Call<'_>,
    input: &DestroyUmemIn,
    _: &mut DestroyUmemOut,
) -> Outcome {
    if call.find(kind::Umem, input.umem_id())?.device {
        return Err(Refusal::NoSuchUmem);
    }
    call.destroy(kind::Umem, input.umem_id())
}

/// The memory of a queue's entries, from a command.
pub(super) struct BufferSpec {
    /// The UMEM and the byte offset in it; `None`: the inbox ends with a list of pages.
    pub umem: Option<(u32, u64)>,
    /// log2 of the size of the list's pages in units of 4 KiB.
    pub log_page_size: u8,
    /// Offset into the first of the pages, in 64ths of their size.
    pub page_offset: u8,
    /// Bits of that field in the queue's context: the device cannot hold an offset into a UMEM page
    /// that needs more.
    pub page_offset_bits: u32,
}

/// Bits of page_offset in the contexts of QPs, CQs and SRQs.
pub(super) const CONTEXT_OFFSET_BITS: u32 = 6;
/// Bits of page_offset in the context of a work queue: of an SQ, RQ or RMP.
pub(super) const WQ_OFFSET_BITS: u32 = 5;

impl Call<'_> {
    /// The memory of a queue of `length` bytes in entries of `entry` bytes. `write`: the device
    /// writes to it.
    pub(super) fn buffer(
        &self,
        spec: &BufferSpec,
        length: u64,
        entry: u64,
        write: bool,
    ) -> Result<QueueMemory, Refusal> {
        let memory = match spec.umem {
            Some((id, offset)) => {
                let umem = self.find(kind::Umem, id)?;
                if spec.page_offset != 0 {
                    return Err(Refusal::BufferMisaligned);
                }
                if write && !umem.writable {
                    return Err(Refusal::UmemReadOnly);
                }
                let memory = umem.memory.slice(offset, length).ok_or(Refusal::UmemBounds)?;
                if memory.offset % entry != 0 {
                    return Err(Refusal::BufferMisaligned);
                }
                // The device stores the start of a queue as page and offset, whatever form the
                // command has.
                let page = 1 << memory.log_page_size;
                let (at, quantum) = (memory.offset & (page - 1), page >> 6);
                if at % quantum != 0 || (at / quantum) >> spec.page_offset_bits != 0 {
                    return Err(Refusal::BufferOffset);
                }
                memory
            }
            None => {
                let log_page_size = u32::from(spec.log_page_size) + 12;
                let offset = u64::from(spec.page_offset) << (log_page_size - 6);
                let count = (offset + length).div_ceil(1 << log_page_size) as usize;
                let list = self.list.get(..count * 8).ok_or(Refusal::ListTooShort)?;
                let mask = (1 << log_page_size) - 1;
                if addresses(list).any(|page| page & mask != 0) {
                    return Err(Refusal::PageMisaligned);
                }
                if addresses(list).any(|page| page >= CARD) {
                    return Err(Refusal::PageOnCard);
                }
                let pages = self.hca().budget.list(addresses(list).collect::<Vec<_>>());
                QueueMemory { pages, log_page_size, offset, length }
            }
        };
        if memory.offset % entry != 0 { Err(Refusal::BufferMisaligned) } else { Ok(memory) }
    }

    /// The address of a doorbell record: an offset in the UMEM if there is one, else the address
    /// itself.
    pub(super) fn record(&self, umem: Option<u32>, address: u64) -> Result<u64, Refusal> {
        let address = match umem {
            Some(id) => {
                let record = self
                    .find(kind::Umem, id)?
                    .memory
                    .slice(address, 8)
                    .ok_or(Refusal::UmemBounds)?;
                if record.offset % 8 != 0 {
                    return Err(Refusal::RecordMisaligned);
                }
                record.address(0)
            }
            None if address >= CARD => return Err(Refusal::PageOnCard),
            None => address,
        };
        if address % 8 != 0 { Err(Refusal::RecordMisaligned) } else { Ok(address) }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn last_page_of_umem_may_end_past_its_mapping() {
        const MEMORY: u64 = 0x7000_0000;
        let iommu = Arc::new(Iommu::default());
        let mapped = iommu.map(MEMORY, 0x1_0001, 0x1000).expect("there is room");
        let bus = mapped.bus_address();
        let entries = (bus | READ | WRITE).to_be_bytes();
        let found = umem_pages(&entries, 17, &iommu).ok();
        assert_eq!(found, Some((vec![MEMORY], true, 0x2_0000 - 0x1_1000)));
        let of_key = pages(&entries, 17, &iommu).ok();
        assert_eq!(of_key, Some((vec![bus], true)), "a key's list of pages has none of these");
        let twice = [entries, entries].concat();
        let found = umem_pages(&twice, 17, &iommu).ok();
        assert_eq!(found, Some((vec![bus, MEMORY], true, 0xf000)), "only the last one may");
        let whole = (bus | READ).to_be_bytes();
        assert_eq!(umem_pages(&whole, 12, &iommu).ok(), Some((vec![MEMORY], false, 0)));
    }
}
