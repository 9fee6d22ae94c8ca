//! Splits a QP: one thread changes its state, another posts and polls.
//!
//! ```no_run
//! # use verbless_queue::{ConnectOptions, Domain, PeerAddress, Qp, Sge};
//! # use verbless_queue::wr::Send;
//! # fn f(domain: Domain, qp: Qp, peer: PeerAddress, sge: Sge)
//! #      -> Result<(), Box<dyn std::error::Error>> {
//! let options = ConnectOptions::default();
//! let (mut queues, control) = qp.with_control();
//! control.to_init(&options)?;
//! let thread = std::thread::spawn(move || {
//!     queues.post_receive(sge, 1).unwrap();
//!     queues
//! });
//! control.connect(&domain, &peer, &options)?;
//! let mut queues = thread.join().unwrap();
//! queues.send.open();
//! queues.post(&Send::new(sge).signaled(), 2)?;
//! # Ok(())
//! # }
//! ```

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex};

use verbless_command::{Error, Mtu, Path};
use verbless_prm::QpState;

use super::halves::SharedDeviceQp;
use super::options::ConnectOptions;
use super::peer::PeerAddress;
use super::protection::Domain;
use super::queues::Qp;
use verbless_ring::qp::QueuePair;
use verbless_ring::service::{Connected, Rc, Service};
use verbless_ring::types::Qpn;

/// The two queues of a queue pair, for posting and completing: it derefs to the [`QueuePair`].
///
/// Its send queue takes requests once its owner has [opened](verbless_ring::qp::SendQueue::open)
/// it, after [`QpControl::connect`] has returned. When both this and the control are dropped, the
/// queue pair is reset, its CQEs are removed from its completion queues, and it is destroyed.
pub struct QpQueues<S: Service = Rc> {
    queue: QueuePair<S>,
    device: SharedDeviceQp,
}

/// Changes the state of a queue pair on the device, from any thread. It takes a lock that posting
/// and completing do not take.
#[derive(Clone)]
pub struct QpControl {
    device: SharedDeviceQp,
}

/// The path from a queue pair to a peer, as [`QpControl::resolve_path`] resolved it.
#[derive(Debug)]
pub struct ResolvedPath {
    peer: PeerAddress,
    options: ConnectOptions,
    path: Path,
    mtu: Mtu,
}

impl<S: Service> Qp<S> {
    /// Splits the queue pair in two: the queues, for the thread that posts and polls, and the
    /// control of the state, for any other thread.
    pub fn with_control(self) -> (QpQueues<S>, QpControl) {
        let Self { device, queue } = self;
        let device = SharedDeviceQp(Arc::new(Mutex::new(device)));
        (QpQueues { queue, device: device.clone() }, QpControl { device })
    }
}

impl<S: Service> QpQueues<S> {
    /// 2RST_QP: the device stops working on the posted requests. The CQEs already in the CQ can
    /// still be polled; the remaining requests never complete, and the queue pair refuses sends. It
    /// leaves RESET only after [`QpQueues::reset`].
    ///
    /// # Errors
    /// The device refuses, and may still execute the posted requests.
    pub fn to_reset(&mut self) -> Result<(), Error> {
        self.queue.send.close();
        // Held until both records are cleared: in ERR the device would flush the requests that they
        // count.
        let mut device = self.device.lock();
        device.leave_to_reset()?;
        self.queue.stop();
        Ok(())
    }

    /// Fails if the queue pair is in the error state: [`Qp::check`].
    ///
    /// # Errors
    /// As [`Qp::check`].
    pub fn check(&self) -> Result<(), Error> {
        self.device.lock().object().check()
    }

    /// 2RST_QP, for a caller that abandons its posted requests: the device no longer accesses the
    /// queue pair's memory, and posting fails.
    ///
    /// # Errors
    /// The device's refusal.
    pub fn reset(&mut self) -> Result<(), Error> {
        let mut device = self.device.lock();
        device.reset()?;
        self.queue.reset();
        self.queue.send.close();
        Ok(())
    }
}

impl QpControl {
    /// The queue pair's number.
    pub fn qpn(&self) -> Qpn {
        self.device.qpn()
    }

    /// The address by which a peer reaches the queue pair: [`Domain::address`].
    pub fn address(&self, domain: &Domain, options: &ConnectOptions) -> Result<PeerAddress, Error> {
        domain.address_of(self.device.lock().object(), options)
    }

    /// RST2INIT_QP, before anything is posted.
    ///
    /// # Errors
    /// The device's refusal; [`ErrorKind::InvalidInput`](crate::ErrorKind::InvalidInput) after
    /// [`QpQueues::to_reset`], until [`QpQueues::reset`].
    pub fn to_init(&self, options: &ConnectOptions) -> Result<(), Error> {
        let mut device = self.device.lock();
        device.check_start()?;
        device.object_mut().to_init(&options.init())
    }

    /// From INIT through RTR to RTS, towards `peer`. The queue pair must be of a connected service.
    ///
    /// # Errors
    /// As [`Domain::connect`]. If the path to the peer was not found, or the device refused RTR,
    /// nothing has changed.
    pub fn connect(
        &self,
        domain: &Domain,
        peer: &PeerAddress,
        options: &ConnectOptions,
    ) -> Result<(), Error> {
        self.connect_over(domain, &self.resolve_path(domain, peer, options)?)
    }

    /// Resolves the path to `peer`. The kernel may ask the network for it and wait for an answer;
    /// the call holds no lock meanwhile.
    ///
    /// # Errors
    /// The path was not found. Nothing has changed.
    pub fn resolve_path(
        &self,
        domain: &Domain,
        peer: &PeerAddress,
        options: &ConnectOptions,
    ) -> Result<ResolvedPath, Error> {
        let (path, mtu) = domain.resolve_peer_path(self.qpn(), peer, options)?;
        Ok(ResolvedPath { peer: *peer, options: *options, path, mtu })
    }

    /// [`QpControl::connect`] over a path that is already resolved.
    ///
    /// # Errors
    /// The device refuses. If it refused RTR, nothing has changed.
    pub fn connect_over(&self, domain: &Domain, resolved: &ResolvedPath) -> Result<(), Error> {
        let mut device = self.device.lock();
        let (peer, options) = (&resolved.peer, &resolved.options);
        options.check_advertised_psn(device.object())?;
        let steps = domain.steps_over(device.object(), resolved.path, resolved.mtu, peer, options);
        device.object_mut().to_rtr(&steps.rtr)?;
        device.object_mut().to_rts(&steps.rts)
    }

    /// 2ERR_QP: every posted request completes as flushed. The completions come after this call
    /// returns; [`QpQueues::to_reset`] and [`QpQueues::reset`] end the requests that have not
    /// completed by then.
    ///
    /// # Errors
    /// The device's refusal.
    pub fn to_error(&self) -> Result<(), Error> {
        self.device.lock().object_mut().to_error()
    }

    /// Whether `other` controls the same queue pair.
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.device.0, &other.device.0)
    }

    /// Whether the queue pair is in INIT, the state in which [`QpControl::connect`] expects it.
    ///
    /// # Errors
    /// The device's refusal.
    pub fn is_in_init(&self) -> Result<bool, Error> {
        self.device.lock().object().state().map(|state| state == QpState::INIT)
    }
}

impl<S: Service> Deref for QpQueues<S> {
    type Target = QueuePair<S>;

    #[inline(always)]
    fn deref(&self) -> &QueuePair<S> {
        &self.queue
    }
}

impl<S: Service> DerefMut for QpQueues<S> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut QueuePair<S> {
        &mut self.queue
    }
}

impl<S: Connected> fmt::Debug for QpQueues<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "QpQueues({})", self.queue.qpn())
    }
}

impl fmt::Debug for QpControl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "QpControl({})", self.qpn())
    }
}
