//! Collapsed completion queues on a device.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use verbless_command::{CqAttr, CqEventTarget, CqObject, CqOptions, Cqn, Eqn, Error};
use verbless_prm::CqeSize;
use verbless_ring::cq::CollapsedCompletionQueue;

use super::cq_users::CqUsers;
use super::pool::layout;
use super::protection::Domain;
use super::queues::CqTarget;

/// A collapsed completion queue: one entry, in which each CQE of one send queue overwrites the one
/// before. It derefs to the [`CollapsedCompletionQueue`] that
/// [`QueuePair::poll_collapsed`](crate::QueuePair::poll_collapsed) reads.
///
/// It suits a program that needs the progress of its requests, but not the result of each:
///
/// - The requests of one send queue complete here; a second queue pair, and receives, are refused.
/// - One completion covers all requests up to its own. Byte counts and timestamps of the others are
///   not reported.
/// - When the queue pair fails, the CQEs of the flushed requests overwrite the CQE of the failed
///   one: the last status may be a flush instead of the reason.
/// - The device ignores overruns, which needs the capability `cq_oi`, and the queue cannot be
///   armed: it is polled.
pub struct CollapsedCq {
    queue: CollapsedCompletionQueue,
    object: Arc<CqObject>,
    users: Arc<CqUsers>,
}

impl Domain {
    /// Creates a collapsed completion queue (`cc`), for the send queue of one queue pair:
    /// [`Domain::queue_pair_towards`] with [`CollapsedCq::target`].
    ///
    /// ```
    /// # fn f(domain: verbless_queue::Domain) -> Result<(), Box<dyn std::error::Error>> {
    /// use verbless_queue::{ConnectOptions, CqConfig, QpConfig, Rc, wr::Nop};
    ///
    /// let sends = domain.collapsed_completion_queue()?;
    /// let config = QpConfig::new(8, 1);
    /// let receives = domain.completion_queue(&CqConfig::new(config.receive_cqes()))?;
    /// let mut qp = domain.queue_pair_towards::<Rc>(&config, &sends.target(), &receives.target())?;
    /// domain.connect_loopback(&mut qp, &ConnectOptions::default())?;
    /// for cookie in 0..8 {
    ///     qp.post(&Nop::new().signaled(), cookie)?;
    /// }
    /// let mut newest = 0;
    /// while newest < 7 {
    ///     if let Some(completion) = qp.poll_collapsed(&sends) {
    ///         newest = completion?.cookie;
    ///     }
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The device has no queues that ignore overruns (capability `cq_oi`); it refuses the command.
    pub fn collapsed_completion_queue(&self) -> Result<CollapsedCq, Error> {
        const ENTRY: usize = 64;
        let ring = self.shared.pool.ring(ENTRY)?;
        let (record, record_memory) = self.shared.pool.record()?;
        let (entry, _rest) = ring.memory.split_at(ENTRY).map_err(super::queues::out_of_bounds)?;
        // `new` marks the entry as the device's, so it runs before CREATE_CQ.
        let queue = CollapsedCompletionQueue::new(entry, record).map_err(layout)?;
        let attr = CqAttr {
            uar: self.shared.plain.uar.clone(),
            ring: ring.queue,
            record: record_memory,
            log_cqes: 0,
            cqe_size: CqeSize::BYTES_64,
            element: CqEventTarget::Eq(Eqn(self.device.query_eqn(0)?)),
            ignore_overrun: true,
        };
        let options = CqOptions { collapsed: true, ..CqOptions::default() };
        let object = self.device.create_cq_with(attr, &options)?;
        let queue = queue.with_cqn(object.cqn()).map_err(layout)?;
        Ok(CollapsedCq { queue, object: Arc::new(object), users: CqUsers::of_collapsed() })
    }
}

impl CollapsedCq {
    /// The object on the device.
    pub fn object(&self) -> &Arc<CqObject> {
        &self.object
    }

    /// The number of the completion queue.
    pub fn cqn(&self) -> Cqn {
        self.queue.cqn()
    }

    /// Fails if the device no longer writes CQEs here, like [`Cq::check`](crate::Cq::check).
    ///
    /// # Errors
    /// As [`Cq::check`](crate::Cq::check).
    pub fn check(&self) -> Result<(), Error> {
        self.object.check()
    }

    /// This completion queue as the target of the completions of a send queue.
    pub fn target(&self) -> CqTarget {
        let (object, users) = (self.object.clone(), self.users.clone());
        CqTarget { object, cleaner: self.queue.cleaner(), users }
    }
}

impl Deref for CollapsedCq {
    type Target = CollapsedCompletionQueue;

    fn deref(&self) -> &CollapsedCompletionQueue {
        &self.queue
    }
}

impl fmt::Debug for CollapsedCq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CollapsedCq({})", self.object.cqn())
    }
}
