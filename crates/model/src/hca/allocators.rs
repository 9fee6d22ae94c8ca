//! The number allocators of a function. A profile gives the first number of a range; the model
//! gives those of flow tables, TIRs and TISs. SQs and RQs have numbers of the range of QPs, and
//! aliases have numbers of the range of mkeys.

use std::ops::Range;

use crate::hca::numbers::NumberAllocator;
use crate::profile::Profile;

/// Ends of the ranges of numbers whose fields in commands have 8, 16 and 24 bits.
const BITS_8: u32 = 1 << 8;
const BITS_16: u32 = 1 << 16;
const BITS_24: u32 = 1 << 24;

/// The number allocators of a function's objects.
#[derive(Debug)]
pub(crate) struct NumberAllocators {
    pub qp: NumberAllocator,
    pub flow_table: NumberAllocator,
    pub tir: NumberAllocator,
    pub tis: NumberAllocator,
    pub srq: NumberAllocator,
    pub xrcd: NumberAllocator,
    pub cq: NumberAllocator,
    pub emulated_doorbell: NumberAllocator,
    pub dpa_eq: NumberAllocator,
    pub emulated_device: NumberAllocator,
    pub dpa_call: NumberAllocator,
    pub dpa_thread: NumberAllocator,
    pub dpa_outbox: NumberAllocator,
    pub uar_extension: NumberAllocator,
    pub dpa_window: NumberAllocator,
    pub dpa_core_dump: NumberAllocator,
    pub dpa_process: NumberAllocator,
    pub mkey: NumberAllocator,
    pub umem: NumberAllocator,
    pub eq: NumberAllocator,
    pub uar: NumberAllocator,
    pub user_uar: NumberAllocator,
    pub td: NumberAllocator,
    pub pd: NumberAllocator,
    pub counter: NumberAllocator,
    pub uid: NumberAllocator,
}

impl NumberAllocators {
    pub(crate) fn new(profile: &Profile) -> Self {
        let first = profile.first();
        let dpa = || NumberAllocator::new(profile.first_dpa_object()..BITS_16);
        Self {
            qp: NumberAllocator::new(first.qp..BITS_24),
            flow_table: NumberAllocator::new(0x10..BITS_24),
            tir: NumberAllocator::new(0x200..BITS_24),
            tis: NumberAllocator::new(0x300..BITS_24),
            srq: NumberAllocator::new(first.shared_queue..BITS_24),
            xrcd: NumberAllocator::new(first.xrcd..BITS_24),
            cq: NumberAllocator::new(first.cq..BITS_24),
            emulated_doorbell: dpa(),
            dpa_eq: dpa(),
            emulated_device: dpa(),
            dpa_call: dpa(),
            dpa_thread: dpa(),
            dpa_outbox: dpa(),
            uar_extension: dpa(),
            dpa_window: dpa(),
            dpa_core_dump: dpa(),
            dpa_process: dpa(),
            mkey: NumberAllocator::new(first.mkey..BITS_24),
            umem: NumberAllocator::new(first.umem..BITS_24),
            eq: NumberAllocator::new(first.eq..BITS_8),
            uar: uar_numbers(first.uar..first.user_uar, 1),
            user_uar: uar_numbers(first.user_uar..profile.device().uar_pages, 1),
            td: NumberAllocator::new(first.transport_domain..BITS_24),
            pd: NumberAllocator::new(first.pd..BITS_24),
            counter: NumberAllocator::new(first.q_counter..BITS_8),
            uid: NumberAllocator::new(first.uid..BITS_16),
        }
    }

    /// Renumbers the UARs for another count of UARs per ALLOC_UAR; no UAR may be allocated.
    pub(crate) fn set_uars_per_page(&mut self, profile: &Profile, count: u32) {
        let (first, end) = (profile.first(), profile.device().uar_pages);
        self.uar = uar_numbers(first.uar..first.user_uar, count);
        self.user_uar = uar_numbers(first.user_uar..end, count);
    }
}

/// UAR numbers of a range in whole groups of `count`, aligned to it. As ALLOC_UAR takes a group and
/// DEALLOC_UAR frees one, the lowest free numbers are always those of one group.
fn uar_numbers(range: Range<u32>, count: u32) -> NumberAllocator {
    let end = range.end - range.end % count;
    NumberAllocator::new(range.start.next_multiple_of(count).min(end)..end)
}
