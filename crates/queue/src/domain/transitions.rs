//! The states of a queue pair: what takes it from one to the next, and what that leaves behind.
//!
//! [`Domain::connect`](super::Domain::connect) and [`Domain::start`](super::Domain::start) take all
//! the steps that a program needs. The single ones are here for tests and for whoever exchanges
//! addresses between them.

use verbless_command::{
    DatagramAttr, Error, InitAttr, QKey, QpObject, RtrAttr, RtsAttr, RtsChange,
};

use super::queues::Qp;
use verbless_ring::qp::ReceiveSide;
use verbless_ring::service::Service;

impl<S: Service, R: ReceiveSide> Qp<S, R> {
    /// The object on the device, to query it and to subscribe to its events.
    pub fn object(&self) -> &QpObject {
        self.device.object()
    }

    fn object_mut(&mut self) -> &mut QpObject {
        self.device.object_mut()
    }

    /// RST2INIT_QP: RESET → INIT. Tells the device again of the receives that were posted before.
    ///
    /// # Errors
    /// The device's refusal, with the state that the queue pair is in;
    /// [`ErrorKind::Input`](crate::ErrorKind::Input) of a datagram queue pair. So of the
    /// transitions below. Also [`ErrorKind::Input`](crate::ErrorKind::Input) if a completion queue
    /// has no room for all that this one may complete, because of CQEs from before a reset: poll it
    /// until it is empty.
    pub fn to_init(&mut self, attr: &InitAttr) -> Result<(), Error> {
        self.device.check_room()?;
        self.object_mut().to_init(attr)?;
        self.queue.publish_receives();
        Ok(())
    }

    /// INIT2INIT_QP: changes port, partition key and access of a queue pair in INIT.
    pub fn change_init(&mut self, attr: &InitAttr) -> Result<(), Error> {
        self.object_mut().change_init(attr)
    }

    /// INIT2RTR_QP: INIT → RTR. The queue pair answers its peer from here on.
    pub fn to_rtr(&mut self, attr: &RtrAttr) -> Result<(), Error> {
        self.object_mut().to_rtr(attr)
    }

    /// RTR2RTS_QP: RTR → RTS. Sends may be posted from here on.
    pub fn to_rts(&mut self, attr: &RtsAttr) -> Result<(), Error> {
        self.object_mut().to_rts(attr)?;
        self.queue.send.open();
        Ok(())
    }

    /// RTS2RTS_QP: changes a queue pair that is sending.
    pub fn change(&mut self, change: &RtsChange) -> Result<(), Error> {
        self.object_mut().change(change)
    }

    /// RST2INIT_QP of a datagram queue pair.
    ///
    /// # Errors
    /// As [`to_init`](Self::to_init), but
    /// [`ErrorKind::Input`](crate::ErrorKind::Input) of a connected queue pair.
    pub fn to_init_datagram(&mut self, attr: &DatagramAttr) -> Result<(), Error> {
        self.device.check_room()?;
        self.object_mut().to_init_datagram(attr)?;
        self.queue.publish_receives();
        Ok(())
    }

    /// INIT2RTR_QP of a datagram queue pair, which then can receive.
    pub fn to_rtr_datagram(&mut self) -> Result<(), Error> {
        self.object_mut().to_rtr_datagram()
    }

    /// RTR2RTS_QP of a datagram queue pair: sends may be posted from here on. Its
    /// sequence numbers begin with `send_psn` (24 bits); receivers do not check them.
    pub fn to_rts_datagram(&mut self, send_psn: u32) -> Result<(), Error> {
        self.object_mut().to_rts_datagram(send_psn)?;
        self.queue.send.open();
        Ok(())
    }

    /// RTS2RTS_QP of a datagram queue pair: from now on messages must carry another key.
    pub fn change_q_key(&mut self, q_key: QKey) -> Result<(), Error> {
        self.object_mut().change_q_key(q_key)
    }

    /// SQERR2RTS_QP: lets a queue pair of an unreliable service send again after a request failed.
    /// The requests after that one complete as flushed: poll as many completions as were posted
    /// before.
    pub fn recover(&mut self) -> Result<(), Error> {
        self.object_mut().recover()
    }

    /// 2ERR_QP: from any state to ERR. Everything posted completes as flushed, and so does what is
    /// posted from now on, until [`reset`](Self::reset); sends too, if it never was in RTS.
    ///
    /// The device flushes later, and in order: the completions come after this has returned. To
    /// lose none, poll until all that was posted has completed, or post a request of each kind
    /// and poll until it has come back flushed; only then reset or drop the queue pair.
    pub fn to_error(&mut self) -> Result<(), Error> {
        self.object_mut().to_error()?;
        self.queue.send.open();
        Ok(())
    }

    /// 2RST_QP on the device alone: it stops working on what was posted, and the CQEs that it has
    /// written stay in the completion queues, to be polled and completed. A caller that must not
    /// lose completions need not wait for those of flushed requests, which a broken device may
    /// never write. Then call [`reset`](Self::reset), before anything is posted again.
    ///
    /// # Errors
    /// The device's refusal: it may go on with what was posted, unless it is
    /// [gone](crate::ErrorKind::DeviceGone).
    pub fn to_reset(&mut self) -> Result<(), Error> {
        self.device.enter_reset()
    }

    /// 2RST_QP, with the rings and records started over. What was posted is forgotten, flushed or
    /// not, and so is every completion of it that has not been polled; a [`Cqe`](crate::Cqe) that
    /// was, but has not been given to [`QueuePair::complete`](crate::QueuePair::complete), must not
    /// be any more.
    ///
    /// Its address changes: it draws another first PSN. Before it is connected again, the peer
    /// needs [`Domain::address`](super::Domain::address) anew.
    pub fn reset(&mut self) -> Result<(), Error> {
        self.device.reset()?;
        self.queue.reset();
        self.queue.send.close();
        Ok(())
    }

    /// Resets and destroys the queue pair, and returns whether that worked; a drop counts a failure
    /// in [`Context::leaked`](verbless_devx::Context::leaked).
    ///
    /// # Errors
    /// The device's refusal.
    pub fn destroy(self) -> Result<(), Error> {
        self.device.destroy()
    }
}
