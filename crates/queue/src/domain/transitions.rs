//! The transitions between a queue pair's states.
//!
//! [`Domain::connect`](super::Domain::connect) and [`Qp::start`] take all
//! transitions that a program needs. The single ones serve tests, and programs that exchange
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

    /// RST2INIT_QP: RESET → INIT. Writes the count of the posted receives to the record again.
    ///
    /// # Errors
    /// The device refuses; the error has the queue pair's state.
    /// [`ErrorKind::InvalidInput`](crate::ErrorKind::InvalidInput) for a datagram queue pair. Both
    /// apply to the transitions below too.
    /// [`ErrorKind::InvalidInput`](crate::ErrorKind::InvalidInput) if a completion queue lacks room
    /// for this queue pair's requests because of CQEs from before a reset: poll it until it is
    /// empty. [`ErrorKind::InvalidInput`](crate::ErrorKind::InvalidInput) after
    /// [`to_reset`](Self::to_reset), until [`reset`](Self::reset).
    pub fn to_init(&mut self, attr: &InitAttr) -> Result<(), Error> {
        self.device.check_start()?;
        self.object_mut().to_init(attr)?;
        self.queue.publish_receives();
        Ok(())
    }

    /// INIT2INIT_QP: changes port, partition key and access of a queue pair in INIT.
    pub fn change_init(&mut self, attr: &InitAttr) -> Result<(), Error> {
        self.object_mut().change_init(attr)
    }

    /// INIT2RTR_QP: INIT → RTR. The queue pair then answers its peer.
    pub fn to_rtr(&mut self, attr: &RtrAttr) -> Result<(), Error> {
        self.object_mut().to_rtr(attr)
    }

    /// RTR2RTS_QP: RTR → RTS. Sends may be posted after it.
    pub fn to_rts(&mut self, attr: &RtsAttr) -> Result<(), Error> {
        self.object_mut().to_rts(attr)?;
        self.queue.send.open();
        Ok(())
    }

    /// RTS2RTS_QP: changes attributes of a queue pair in RTS.
    pub fn change(&mut self, change: &RtsChange) -> Result<(), Error> {
        self.object_mut().change(change)
    }

    /// RST2INIT_QP of a datagram queue pair.
    ///
    /// # Errors
    /// As [`to_init`](Self::to_init), but
    /// [`ErrorKind::InvalidInput`](crate::ErrorKind::InvalidInput) for a connected queue pair.
    pub fn to_init_datagram(&mut self, attr: &DatagramAttr) -> Result<(), Error> {
        self.device.check_start()?;
        self.object_mut().to_init_datagram(attr)?;
        self.queue.publish_receives();
        Ok(())
    }

    /// INIT2RTR_QP of a datagram queue pair, which can then receive.
    pub fn to_rtr_datagram(&mut self) -> Result<(), Error> {
        self.object_mut().to_rtr_datagram()
    }

    /// RTR2RTS_QP of a datagram queue pair: sends may be posted after it. Its sequence numbers
    /// begin with `send_psn` (24 bits); receivers do not check them.
    pub fn to_rts_datagram(&mut self, send_psn: u32) -> Result<(), Error> {
        self.object_mut().to_rts_datagram(send_psn)?;
        self.queue.send.open();
        Ok(())
    }

    /// RTS2RTS_QP of a datagram queue pair: messages must then carry the new Q_Key.
    pub fn change_q_key(&mut self, q_key: QKey) -> Result<(), Error> {
        self.object_mut().change_q_key(q_key)
    }

    /// SQERR2RTS_QP: lets a queue pair of an unreliable service send again after a failed request.
    /// The requests after that one complete as flushed: first poll as many completions as were
    /// posted.
    pub fn recover(&mut self) -> Result<(), Error> {
        self.object_mut().recover()
    }

    /// 2ERR_QP: from any state to ERR. Every posted request completes as flushed, and so do later
    /// ones, until [`reset`](Self::reset). Sends are flushed too, even if the queue pair never
    /// reached RTS.
    ///
    /// The device flushes later, and in order: the completions come after this call returns. To
    /// lose none, poll until every posted request has completed, or post a request of each kind and
    /// poll until it comes back flushed; only then reset or drop the queue pair.
    pub fn to_error(&mut self) -> Result<(), Error> {
        self.object_mut().to_error()?;
        if !self.device.is_in_reset() {
            self.queue.send.open();
        }
        Ok(())
    }

    /// 2RST_QP, only on the device: it stops working on the posted requests, and its CQEs stay in
    /// the completion queues, to be polled and completed. A caller that must not lose completions
    /// need not wait for flushed CQEs, which a broken device may never write. The queue pair
    /// refuses sends after this. Call [`reset`](Self::reset) before you post receives again:
    /// [`to_init`](Self::to_init) requires it.
    ///
    /// # Errors
    /// The device refuses: it may continue with the posted requests, unless it is
    /// [gone](crate::ErrorKind::DeviceGone).
    pub fn to_reset(&mut self) -> Result<(), Error> {
        self.device.leave_to_reset()?;
        self.queue.stop();
        Ok(())
    }

    /// 2RST_QP, with the rings and records cleared. It discards the posted requests, flushed or
    /// not, and their unpolled CQEs. Do not give a [`Cqe`](crate::Cqe) that was polled before to
    /// [`QueuePair::complete`](crate::QueuePair::complete).
    ///
    /// Its address changes: it draws another first PSN. Before a new connection, the peer needs a
    /// new [`Domain::address`](super::Domain::address).
    pub fn reset(&mut self) -> Result<(), Error> {
        self.device.reset()?;
        self.queue.reset();
        self.queue.send.close();
        Ok(())
    }

    /// Resets and destroys the queue pair, and returns whether that worked. A drop instead counts a
    /// failure in [`Context::leaked`](verbless_devx::Context::leaked).
    ///
    /// # Errors
    /// The device's refusal.
    pub fn destroy(self) -> Result<(), Error> {
        self.device.destroy()
    }
}
