//! The device's queue that copies memory.

use verbless_queue::access::KeyAccess;
use verbless_queue::wr::{MemoryCopy, Nop, PostError, Request};
use verbless_queue::{
    CompletionError, ConnectOptions, Cqe, Lkey, PlainCqe, Qp, QpConfig, Rc, Region, Sge, WqeIndex,
};

use super::pieces::refuse;
use crate::context::engine::Place;
use crate::device::Dev;
use crate::error::{Error, ErrorKind, Result};

/// Bytes of memory that the device uses while it copies.
const SCRATCH: usize = 64;

/// Whether `dev` has such queues.
pub(super) fn supported(dev: &Dev) -> Result<()> {
    dev.domain().supports::<Rc>(&MemoryCopy::INFO).map_err(|why| {
        let text = format!("{dev:?} copies no memory: {why}");
        Error::new(ErrorKind::NotSupported, text).with_source(why)
    })
}

/// Bytes of a copy at most.
pub(super) fn longest(dev: &Dev) -> u64 {
    dev.caps().longest_memory_copy()
}

/// A queue pair that is its own peer.
pub(super) struct CopyQueue {
    qp: Qp,
    /// Where the device's own room is: address and key with their bytes as in requests, which
    /// saves to turn them each time.
    scratch: (u64, u32),
    _room: Region,
}

impl CopyQueue {
    /// For so many requests at a time.
    pub(super) fn new(place: &mut Place<'_>, requests: u32) -> Result<Self> {
        let (dev, cq) = (&place.side.dev, &place.side.cq);
        let config = QpConfig {
            // A copy is longer than inline data would be.
            inline: 0,
            user_index: place.user_index,
            memory_copies: true,
            ..QpConfig::new(requests, 1)
        };
        let mut qp = dev.domain().queue_pair(&config, cq, cq)?;
        dev.domain().connect_to_itself(&mut qp, &ConnectOptions::default())?;
        let room = dev.domain().region(SCRATCH, KeyAccess::LOCAL)?;
        Ok(Self { qp, scratch: (room.address().to_be(), room.lkey().0.to_be()), _room: room })
    }

    /// Posts a request.
    #[inline(always)]
    pub(super) fn copy(
        &mut self,
        (from, to): (Sge, Sge),
        cookie: u64,
        last: bool,
    ) -> std::result::Result<WqeIndex, PostError> {
        let (address, lkey) = (u64::from_be(self.scratch.0), Lkey(u32::from_be(self.scratch.1)));
        let copy = MemoryCopy::new(Sge::new(address, SCRATCH as u32, lkey), from, to);
        let copy = if last { copy.signaled() } else { copy };
        self.qp.post(&copy, cookie)
    }

    /// A request that copies nothing.
    pub(super) fn nothing(&mut self, cookie: u64) -> std::result::Result<WqeIndex, PostError> {
        self.qp.post(&Nop::new().signaled(), cookie)
    }

    /// Requests that it takes.
    pub(super) fn capacity(&self) -> u32 {
        // Each takes one wqebb.
        self.qp.send.capacity()
    }

    /// Whether it is the request of this cookie that went well; if not, nothing has changed.
    #[inline(always)]
    pub(super) fn settle(&mut self, cqe: &PlainCqe<'_>, cookie: u64) -> bool {
        self.qp.send.settle(cqe, cookie)
    }

    /// The cookie of a request that is done.
    pub(super) fn complete(&mut self, cqe: Cqe) -> std::result::Result<u64, CompletionError> {
        self.qp.complete(cqe).map(|completion| completion.cookie)
    }

    /// From the error state back to work; the device has nothing of ours.
    pub(super) fn recover(&mut self, dev: &Dev) -> Result<()> {
        self.qp.reset()?;
        Ok(dev.domain().connect_to_itself(&mut self.qp, &ConnectOptions::default())?)
    }

    /// Has the device flush what it has.
    pub(super) fn stop(&mut self) -> Result<()> {
        Ok(self.qp.to_error()?)
    }

    /// Takes from the device what it has.
    pub(super) fn reset(&mut self) -> Result<()> {
        Ok(self.qp.reset()?)
    }
}

#[cold]
pub(super) fn refused(error: PostError) -> Error {
    match error {
        PostError::Full => {
            let text = "the device has as many requests as it takes: retrieve some jobs first";
            refuse(ErrorKind::Again, text)
        }
        other => Error::new(ErrorKind::Unexpected, other.to_string()),
    }
}
