//! The device's queue for memory copies.

use verbless_queue::access::KeyAccess;
use verbless_queue::wr::{DmaMmo, Nop, PostError, Request, Scratch};
use verbless_queue::{
    CompletionError, ConnectOptions, Cqe, ErrorKind as LowerKind, Qp, QpConfig, Rc, Region,
    RequestId, Sge, WqeIndex,
};

use super::segments::refuse;
use crate::context::engine::EngineArgs;
use crate::device::Dev;
use crate::error::{Error, ErrorKind, Result};

/// Whether `dev` has such queues.
pub(super) fn supported(dev: &Dev) -> Result<()> {
    dev.domain().supports::<Rc>(&DmaMmo::INFO).map_err(|why| {
        let text = format!("{dev:?} copies no memory: {why}");
        Error::new(ErrorKind::NotSupported, text).with_source(why)
    })
}

/// Maximum bytes of a copy.
pub(super) fn max_bytes(dev: &Dev) -> u64 {
    dev.caps().max_dma_mmo_bytes()
}

/// A queue pair connected to itself.
pub(super) struct CopyQueue {
    qp: Qp,
    /// The device's scratch buffer, in `_room`.
    scratch: Scratch,
    _room: Region,
}

impl CopyQueue {
    /// Creates a queue for `requests` requests at a time.
    ///
    /// # Errors
    /// The device refuses; without force loopback, its port has no address.
    pub(super) fn new(args: &mut EngineArgs<'_>, requests: u32) -> Result<Self> {
        let (dev, cq) = (&args.device_cq.dev, &args.device_cq.cq);
        let config = QpConfig {
            // The WQE of a copy is longer than inline data would be.
            inline: 0,
            user_index: args.user_index,
            dma_mmo: true,
            ..QpConfig::new(requests, 1)
        };
        let mut qp = dev.domain().queue_pair(&config, cq, cq)?;
        dev.domain().connect_loopback(&mut qp, &ConnectOptions::default())?;
        let room = dev.domain().region(Scratch::BYTES as usize, KeyAccess::LOCAL)?;
        let sge = Sge::new(room.address(), Scratch::BYTES, room.lkey());
        let scratch = Scratch::new(sge).ok_or_else(|| {
            let text = "memory that was allocated begins within a page";
            Error::plain(ErrorKind::Unexpected, text)
        })?;
        Ok(Self { qp, scratch, _room: room })
    }

    /// Posts a request.
    #[inline(always)]
    pub(super) fn copy(
        &mut self,
        (from, to): (Sge, Sge),
        cookie: u64,
    ) -> std::result::Result<WqeIndex, PostError> {
        let copy = DmaMmo::new(self.scratch, from, to).signaled();
        self.qp.post(&copy, cookie)
    }

    /// Posts several requests, each with its cookie. On an error none of them is posted.
    ///
    /// Each is signaled: no public source says that the CQE of a copy covers earlier unsignaled
    /// ones. UCX signals each, too (`gga_mlx5.c`).
    pub(super) fn copy_batch(
        &mut self,
        copies: impl Iterator<Item = Result<((Sge, Sge), u64)>>,
    ) -> Result<()> {
        let scratch = self.scratch;
        let mut batch = self.qp.batch();
        for copy in copies {
            let ((from, to), cookie) = copy?;
            batch.post(&DmaMmo::new(scratch, from, to).signaled(), cookie).map_err(refused)?;
        }
        batch.ring();
        Ok(())
    }

    /// A request that copies nothing.
    pub(super) fn nop(&mut self, cookie: u64) -> std::result::Result<WqeIndex, PostError> {
        self.qp.post(&Nop::new().signaled(), cookie)
    }

    /// The number of requests that the queue holds.
    pub(super) fn capacity(&self) -> u32 {
        // Each takes one wqebb.
        self.qp.send.capacity()
    }

    /// Completes the successful request if it has this cookie; otherwise returns false and changes
    /// nothing.
    #[inline(always)]
    pub(super) fn try_complete(&mut self, request: RequestId, cookie: u64) -> bool {
        self.qp.send.try_complete(request, cookie)
    }

    /// The cookie of a completed request.
    pub(super) fn complete(&mut self, cqe: Cqe) -> std::result::Result<u64, CompletionError> {
        self.qp.complete(cqe).map(|completion| completion.cookie)
    }

    /// Makes the queue work again from any state, after its completions have been read and the
    /// device has no request of it.
    pub(super) fn recover(&mut self, dev: &Dev) -> Result<()> {
        self.qp.reset()?;
        Ok(dev.domain().connect_loopback(&mut self.qp, &ConnectOptions::default())?)
    }

    /// Fails if the queue pair is in the error state.
    pub(super) fn check(&self) -> std::result::Result<(), verbless_queue::DeviceError> {
        self.qp.check()
    }

    /// Makes the device flush its requests.
    pub(super) fn flush(&mut self) -> Result<()> {
        Ok(self.qp.to_error()?)
    }

    /// Takes the requests back from the device. Its completions can still be read.
    ///
    /// # Errors
    /// The device may continue with them.
    pub(super) fn take_back(&mut self) -> Result<()> {
        match self.qp.to_reset() {
            // A removed device does nothing.
            Err(error) if error.kind() != LowerKind::DeviceGone => Err(error.into()),
            _ => Ok(()),
        }
    }
}

#[cold]
pub(super) fn refused(error: PostError) -> Error {
    match error {
        PostError::Full => {
            let text = "the device's queue of requests is full: retrieve some jobs first";
            refuse(ErrorKind::Again, text)
        }
        other => Error::new(ErrorKind::Unexpected, other.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use verbless_devx::Backend;
    use verbless_model::{Model, Profile};
    use verbless_model_kernel::InProcess;

    use super::*;
    use crate::context::device_cq::DeviceCq;
    use crate::device::DevInfo;

    #[test]
    fn failed_copy_batch_posts_nothing() {
        let model = Model::builder().device(Profile::load("bluefield3").unwrap()).stepped().build();
        let backend: Arc<dyn Backend> = Arc::new(InProcess::of(&model));
        let dev = DevInfo::list_of(&backend).unwrap()[0].open().unwrap();
        let mut device_cq = DeviceCq::for_test(&dev, 8).unwrap();
        let mut queue = CopyQueue::new(
            &mut EngineArgs { depth: 8, user_index: 0, device_cq: &mut device_cq },
            8,
        )
        .unwrap();
        let done = Arc::new(AtomicUsize::new(0));
        let counted = done.clone();
        let _watch = model.watch_requests(move |_| {
            counted.fetch_add(1, Ordering::Relaxed);
        });
        let room = Sge::new(queue._room.address(), 64, queue._room.lkey());
        let free = queue.qp.send.free();
        for at in 0..4 {
            let copies = (0..4).map(|number| match number == at {
                true => Err(Error::plain(ErrorKind::NotPermitted, "no key")),
                false => Ok(((room, room), number)),
            });
            assert_eq!(queue.copy_batch(copies).unwrap_err().kind(), ErrorKind::NotPermitted);
            assert_eq!(queue.qp.send.free(), free);
        }
        // The device reads the posted requests, and finds no more than this.
        queue.copy_batch((0..2).map(|number| Ok(((room, room), number)))).unwrap();
        model.run_until_idle();
        assert_eq!(done.load(Ordering::Relaxed), 2);
        for number in 0..2 {
            let cqe = device_cq.cq.poll().expect("each is signaled");
            assert_eq!(queue.complete(cqe).unwrap(), number);
        }
    }
}
