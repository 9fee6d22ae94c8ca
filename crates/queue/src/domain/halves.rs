//! A queue pair as two halves for two threads: one sends, the other receives.
//!
//! ```no_run
//! # use std::sync::Arc;
//! # use verbless_queue::{Completion, Cq, Domain, Qp, Region, Sge, poll_within};
//! # use verbless_queue::wr::Send;
//! # fn f(domain: Domain, qp: Qp, mut send_cq: Cq, mut receive_cq: Cq, region: Region)
//! #      -> Result<(), Box<dyn std::error::Error>> {
//! // `qp` is connected; its sends complete in `send_cq`, its receives in `receive_cq`.
//! let (mut sender, mut receiver) = qp.split()?;
//! let (from, into) = (region.sge(0, 64)?, region.sge(64, 64)?);
//! let thread = std::thread::spawn(move || {
//!     receiver.post(into, 1).unwrap();
//!     let cqe = loop {
//!         if let Some(cqe) = receive_cq.poll() {
//!             break cqe;
//!         }
//!     };
//!     println!("{} bytes came", receiver.complete(cqe).unwrap().byte_len());
//!     receiver
//! });
//! sender.post(&Send::new(from).signaled(), 2)?;
//! while send_cq.poll().map(|cqe| sender.complete(cqe)).transpose()?.is_none() {}
//!
//! // An operation on the whole queue pair needs both halves.
//! let mut qp = Qp::join(sender, thread.join().unwrap())?;
//! qp.reset()?;
//! # Ok(())
//! # }
//! ```

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard};

use verbless_command::{Error, ErrorKind};

use super::device_qp::DeviceQp;
use super::queues::Qp;
use verbless_ring::completion::{Completion, CompletionError};
use verbless_ring::cq::Cqe;
use verbless_ring::dispatch::{SendCqe, WorkQueue};
use verbless_ring::qp::{QueuePair, ReceiveQueue, SendQueue};
use verbless_ring::service::{Rc, Service};
use verbless_ring::types::Qpn;

/// The sending half of a queue pair on a device. It derefs to the [`SendQueue`] for posting.
///
/// The drop of the second half resets the queue pair, removes its CQEs from its completion queues
/// and destroys it. Until then the device continues with the requests of both halves, and the
/// memory stays.
pub struct SendHalf<S: Service = Rc> {
    queue: SendQueue<S>,
    device: SharedDeviceQp,
}

/// The receiving half of a queue pair on a device. It derefs to the [`ReceiveQueue`] for posting.
/// [`SendHalf`] documents the drop of a half.
pub struct ReceiveHalf {
    queue: ReceiveQueue,
    device: SharedDeviceQp,
}

/// The device's side, shared by several handles. Posting and completing do not take the lock.
#[derive(Clone)]
pub(super) struct SharedDeviceQp(pub(super) Arc<Mutex<DeviceQp>>);

impl SharedDeviceQp {
    pub(super) fn lock(&self) -> MutexGuard<'_, DeviceQp> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    pub(super) fn qpn(&self) -> Qpn {
        self.lock().object().qpn()
    }
}

impl<S: Service> Qp<S> {
    /// Splits the queue pair into two halves for two threads: one posts sends, the other receives.
    /// Each half completes its own requests, from a completion queue of its own: create the queue
    /// pair with two of them.
    ///
    /// Operations on the whole queue pair, such as transitions, need [`Qp::join`] first. Only
    /// `to_error` is a method of both halves: with it one thread makes the other thread's
    /// outstanding requests complete as flushed.
    ///
    /// # Errors
    /// The queue pair has one completion queue for both sides, which two threads cannot poll; the
    /// error returns the queue pair.
    pub fn split(self) -> Result<(SendHalf<S>, ReceiveHalf), SplitError<S>> {
        let attr = self.device.object().attr();
        if Arc::ptr_eq(&attr.send_cq, &attr.receive_cq) {
            return Err(SplitError(Box::new(self)));
        }
        let Self { device, queue } = self;
        let (send, receive) = queue.split();
        let device = Arc::new(Mutex::new(device));
        let half = SendHalf { queue: send, device: SharedDeviceQp(device.clone()) };
        Ok((half, ReceiveHalf { queue: receive, device: SharedDeviceQp(device) }))
    }

    /// Joins the two halves of one queue pair.
    ///
    /// # Errors
    /// The halves are of two queue pairs; the error returns them.
    pub fn join(send: SendHalf<S>, receive: ReceiveHalf) -> Result<Self, JoinError<S>> {
        if !Arc::ptr_eq(&send.device.0, &receive.device.0) {
            return Err(JoinError(Box::new((send, receive))));
        }
        let queue = QueuePair::new(send.queue, receive.queue);
        drop(receive.device);
        let device = Arc::into_inner(send.device.0).expect("two halves hold it, and both are here");
        let device = device.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner());
        Ok(Self { device, queue })
    }
}

impl<S: Service> SendHalf<S> {
    /// 2ERR_QP: every request posted to either half completes as flushed, and so do later ones. The
    /// completions come after this call returns; [`Qp::reset`], or the drop of both halves,
    /// discards the remaining ones. Takes the lock that the halves share.
    ///
    /// # Errors
    /// The device's refusal.
    pub fn to_error(&mut self) -> Result<(), Error> {
        let mut device = self.device.lock();
        device.object_mut().to_error()?;
        if !device.is_in_reset() {
            self.queue.open();
        }
        Ok(())
    }
}

impl ReceiveHalf {
    /// Moves the queue pair to the error state, like [`SendHalf::to_error`]. A sending half that
    /// never reached RTS continues to refuse requests.
    ///
    /// # Errors
    /// The device's refusal.
    pub fn to_error(&mut self) -> Result<(), Error> {
        self.device.lock().object_mut().to_error()
    }
}

/// A queue pair that cannot be split: both of its sides complete in one completion queue.
pub struct SplitError<S: Service = Rc>(Box<Qp<S>>);

impl<S: Service> SplitError<S> {
    /// The queue pair that could not be split, unchanged.
    pub fn into_queue_pair(self) -> Qp<S> {
        *self.0
    }
}

impl<S: Service> fmt::Display for SplitError<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (qpn, cqn) = (self.0.qpn(), self.0.device.object().attr().send_cq.cqn());
        write!(
            f,
            "splitting QP {qpn}: its sends and its receives complete in one completion queue, CQ \
             {cqn}, which two threads cannot poll; make the queue pair with a completion queue for \
             each side"
        )
    }
}

impl<S: Service> fmt::Debug for SplitError<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SplitError({:?})", self.0)
    }
}

impl<S: Service> std::error::Error for SplitError<S> {}

impl<S: Service> From<SplitError<S>> for Error {
    fn from(error: SplitError<S>) -> Self {
        Self::new(ErrorKind::InvalidInput, "splitting a queue pair", error.to_string())
    }
}

/// Halves of two queue pairs, which cannot be joined.
pub struct JoinError<S: Service = Rc>(Box<(SendHalf<S>, ReceiveHalf)>);

impl<S: Service> JoinError<S> {
    /// The halves that were given.
    pub fn into_halves(self) -> (SendHalf<S>, ReceiveHalf) {
        *self.0
    }
}

impl<S: Service> fmt::Display for JoinError<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (send, receive) = &*self.0;
        let (send, receive) = (send.device.qpn(), receive.device.qpn());
        let whose = if send == receive { " of another device" } else { "" };
        write!(
            f,
            "joining halves: the sending one is of QP {send}, the receiving one of QP {receive}\
             {whose}; join each with the half that it was split from"
        )
    }
}

impl<S: Service> fmt::Debug for JoinError<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "JoinError({:?}, {:?})", self.0.0, self.0.1)
    }
}

impl<S: Service> std::error::Error for JoinError<S> {}

impl<S: Service> From<JoinError<S>> for Error {
    fn from(error: JoinError<S>) -> Self {
        Self::new(ErrorKind::InvalidInput, "joining halves of queue pairs", error.to_string())
    }
}

impl<S: Service> Deref for SendHalf<S> {
    type Target = SendQueue<S>;

    fn deref(&self) -> &SendQueue<S> {
        &self.queue
    }
}

impl<S: Service> DerefMut for SendHalf<S> {
    fn deref_mut(&mut self) -> &mut SendQueue<S> {
        &mut self.queue
    }
}

impl Deref for ReceiveHalf {
    type Target = ReceiveQueue;

    fn deref(&self) -> &ReceiveQueue {
        &self.queue
    }
}

impl DerefMut for ReceiveHalf {
    fn deref_mut(&mut self) -> &mut ReceiveQueue {
        &mut self.queue
    }
}

impl<S: Service> WorkQueue for SendHalf<S> {
    #[inline(always)]
    fn complete(&mut self, cqe: Cqe) -> Result<Completion, CompletionError> {
        self.queue.complete(cqe)
    }

    #[inline(always)]
    fn complete_success(&mut self, cqe: SendCqe<'_>) -> Option<Completion> {
        WorkQueue::complete_success(&mut self.queue, cqe)
    }
}

impl WorkQueue for ReceiveHalf {
    #[inline(always)]
    fn complete(&mut self, cqe: Cqe) -> Result<Completion, CompletionError> {
        self.queue.complete(cqe)
    }
}

impl<S: Service> fmt::Debug for SendHalf<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SendHalf({})", self.device.qpn())
    }
}

impl fmt::Debug for ReceiveHalf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ReceiveHalf({})", self.device.qpn())
    }
}
