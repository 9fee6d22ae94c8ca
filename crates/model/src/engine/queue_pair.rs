//! A QP during its turn, and what several modules of the data path read of it.

use super::context::{Context, Missing, Parts};
use super::counters::CounterSet;
use super::function::FunctionEngine;
use super::keys::KeyUser;
use crate::functions::{FunctionTable, OtherFunctions};
use crate::hca::objects::{QpObject, QpState};

/// A QP during its turn: it sends (`requester`), receives (`responder`) or fails (`failure`).
pub(super) struct QueuePair<'a> {
    pub qpn: u32,
    pub qp: &'a mut QpObject,
    pub context: Context<'a>,
}

impl QueuePair<'_> {
    /// The QP as a user of keys of its own memory.
    pub(super) fn user(&self) -> KeyUser {
        KeyUser { pd: self.qp.pd, qpn: self.qpn, reserved_lkey: self.qp.context.rlky() }
    }

    /// The counters in the set that the QP names.
    pub(super) fn counters(&mut self) -> CounterSet<'_> {
        self.context.counters(self.qp.context.counter_set_id())
    }

    /// Whether the QP sends requests, or waits for answers to those that it sent.
    pub(super) fn is_sending(&self) -> bool {
        matches!(self.qp.state, QpState::Rts | QpState::SqDrained)
    }

    /// log2 of the path MTU.
    pub(super) fn log_mtu(&self) -> u32 {
        self.qp.log_mtu.clamp(8, 12)
    }

    /// Number of packets of a message of `length` bytes.
    pub(super) fn packets(&self, length: u64) -> u32 {
        length.div_ceil(1 << self.log_mtu()).max(1) as u32
    }

    /// The CQ of the QP's send queue.
    pub(super) fn send_cq(&self) -> u32 {
        self.qp.sq.as_ref().map_or(self.qp.context.cqn_snd(), |sq| sq.cqn)
    }

    /// The CQ of the QP's receive queue.
    pub(super) fn receive_cq(&self) -> u32 {
        self.qp.rq.as_ref().map_or(self.qp.context.cqn_rcv(), |rq| rq.cqn)
    }
}

impl FunctionEngine {
    /// Borrows a QP for work that needs no key of another function.
    pub(super) fn pair(&mut self, qpn: u32, now: u64) -> Result<QueuePair<'_>, Missing> {
        self.pair_among(qpn, now, OtherFunctions::default())
    }

    /// Borrows a QP.
    #[inline(always)]
    pub(super) fn pair_among<'a>(
        &'a mut self,
        qpn: u32,
        now: u64,
        others: OtherFunctions<'a>,
    ) -> Result<QueuePair<'a>, Missing> {
        let Parts { qps, context, .. } = self.parts(now, others);
        let qp = qps.get_mut(&qpn).ok_or(Missing::Qp(qpn))?;
        Ok(QueuePair { qpn, qp, context })
    }
}

impl FunctionTable {
    /// Borrows a QP of function `id`.
    #[inline(always)]
    pub(super) fn pair(&mut self, id: usize, qpn: u32, now: u64) -> Result<QueuePair<'_>, Missing> {
        let (function, others) = self.split(id);
        function.pair_among(qpn, now, others)
    }
}
