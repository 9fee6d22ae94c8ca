//! What all contexts have in common.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::device::Dev;
use crate::error::{Error, ErrorKind, Result};

/// Which context a job is for: a number that no other context ever has. Its lower 24 bits are the
/// context's index, which no other has at a time; work queues find it by that, and the completions
/// of its queues name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CtxId(u64);

/// Indexes that are free again, and the first that was never used.
static INDEXES: Mutex<(Vec<u32>, u32)> = Mutex::new((Vec::new(), 0));
static SERIAL: AtomicU64 = AtomicU64::new(1);

impl CtxId {
    /// Of those beyond, no work queue has any.
    pub(super) const MOST: u32 = (1 << Self::BITS) - 1;
    const BITS: u32 = 24;

    fn of(index: u32) -> Self {
        let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
        Self(serial << Self::BITS | u64::from(index.min(Self::MOST)))
    }

    #[inline]
    pub(super) const fn index(self) -> u32 {
        self.0 as u32 & Self::MOST
    }
}

/// A context as work queues know it.
#[derive(Debug)]
pub struct Core {
    id: CtxId,
    index: u32,
    dev: Dev,
    pub(crate) event_driven: bool,
    workqs: AtomicU32,
    most: u32,
}

impl Core {
    /// Of a context on `dev`, which takes `most` work queues at a time.
    pub(crate) fn new(dev: &Dev, event_driven: bool, most: u32) -> Self {
        let (free, next) = &mut *INDEXES.lock().unwrap_or_else(PoisonError::into_inner);
        let index = free.pop().unwrap_or_else(|| {
            *next += 1;
            *next - 1
        });
        let (id, dev, workqs) = (CtxId::of(index), dev.clone(), AtomicU32::new(0));
        Self { id, index, dev, event_driven, workqs, most }
    }

    #[inline]
    pub(crate) fn id(&self) -> CtxId {
        self.id
    }

    pub(crate) fn dev(&self) -> &Dev {
        &self.dev
    }

    pub(crate) fn workqs(&self) -> u32 {
        self.workqs.load(Ordering::Acquire)
    }

    pub(super) fn attach(&self) -> Result<()> {
        let more = |count: u32| (count < self.most).then_some(count + 1);
        match self.workqs.fetch_update(Ordering::AcqRel, Ordering::Acquire, more) {
            Ok(_) => Ok(()),
            Err(count) => {
                let text = format!(
                    "the context is on {count} work queues, as many as it takes: remove it from one"
                );
                Err(Error::new(ErrorKind::InUse, text))
            }
        }
    }

    pub(super) fn detach(&self) {
        self.workqs.fetch_sub(1, Ordering::AcqRel);
    }

    /// Refuses while work queues have it.
    pub(crate) fn may_stop(&self) -> Result<()> {
        match self.workqs() {
            0 => Ok(()),
            some => {
                let text =
                    format!("{some} work queues have the context: remove it from them first");
                Err(Error::new(ErrorKind::InUse, text))
            }
        }
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        INDEXES.lock().unwrap_or_else(PoisonError::into_inner).0.push(self.index);
    }
}
