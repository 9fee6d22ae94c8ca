//! Common parts of all contexts.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::device::Dev;
use crate::error::{Error, ErrorKind, Result};

/// The id of a context; no other context ever has the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CtxId(u64);

/// Slots of a work queue's `near` array, whose contexts are found by index, without a search.
pub(super) const NEAR: usize = 64;

static NEXT: AtomicU64 = AtomicU64::new(1);

impl CtxId {
    /// The id of no context.
    pub(super) const NONE: Self = Self(0);

    fn new() -> Self {
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }

    /// The slot in a work queue's `near` that the context gets if it is free.
    pub(crate) const fn likely_slot(self) -> u32 {
        self.modulo::<NEAR>() as u32
    }

    /// The lower bits, which two contexts may share.
    #[inline(always)]
    pub(super) const fn modulo<const N: usize>(self) -> usize {
        self.0 as usize % N
    }
}

/// The part of a context for work queues.
#[derive(Debug)]
pub struct Core {
    id: CtxId,
    dev: Dev,
    pub(crate) event_driven: bool,
    workqs: AtomicU32,
    max_workqs: u32,
}

impl Core {
    /// Creates the common part of a context on `dev`, which can be added to `max_workqs` work
    /// queues at a time.
    pub(crate) fn new(dev: &Dev, event_driven: bool, max_workqs: u32) -> Self {
        let (id, dev, workqs) = (CtxId::new(), dev.clone(), AtomicU32::new(0));
        Self { id, dev, event_driven, workqs, max_workqs }
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

    /// Whether the handle was dropped, so that only work queues hold the context.
    pub(super) fn is_dropped(self: &Arc<Self>) -> bool {
        Arc::strong_count(self) <= self.workqs() as usize
    }

    pub(super) fn attach(&self) -> Result<()> {
        let more = |count: u32| (count < self.max_workqs).then_some(count + 1);
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

    /// Refuses to stop while work queues are on the context.
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
