//! SRQ WQEs that come back from queue pairs that were reset or destroyed.

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::types::WqeIndex;

/// WQEs to return to a shared receive queue: messages consumed them for queue pairs that were reset
/// or destroyed before their CQEs were polled. Clones share the list.
#[derive(Clone)]
pub struct SrqReturns(Arc<Returns>);

struct Returns {
    /// Whether the list may have WQEs.
    any: AtomicBool,
    /// A bit for each WQE.
    wqes: Box<[AtomicU64]>,
}

impl SrqReturns {
    pub(crate) fn new(count: u32) -> Self {
        let wqes = (0..count.div_ceil(64)).map(|_| AtomicU64::new(0)).collect();
        Self(Arc::new(Returns { any: AtomicBool::new(false), wqes }))
    }

    /// Gives a WQE back.
    pub(crate) fn push(&self, WqeIndex(index): WqeIndex) {
        if let Some(word) = self.0.wqes.get(usize::from(index / 64)) {
            word.fetch_or(1 << (index % 64), Ordering::Release);
            self.0.any.store(true, Ordering::Release);
        }
    }

    /// The number of WQEs in the list.
    pub(crate) fn count(&self) -> u32 {
        if !self.0.any.load(Ordering::Acquire) {
            return 0;
        }
        self.0.wqes.iter().map(|word| word.load(Ordering::Acquire).count_ones()).sum()
    }

    /// Takes a WQE from the list.
    pub(crate) fn take(&self) -> Option<WqeIndex> {
        if !self.0.any.swap(false, Ordering::AcqRel) {
            return None;
        }
        for (index, word) in (0u16..).zip(&self.0.wqes) {
            let bits = word.load(Ordering::Acquire);
            if bits != 0 {
                let bit = bits.trailing_zeros() as u16;
                word.fetch_and(!(1 << bit), Ordering::AcqRel);
                // The list may have more.
                self.0.any.store(true, Ordering::Release);
                return Some(WqeIndex(64 * index + bit));
            }
        }
        None
    }
}

impl core::fmt::Debug for SrqReturns {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "SrqReturns({})", self.count())
    }
}
