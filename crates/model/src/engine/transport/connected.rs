//! What RC and UC have in common: a QP with a peer, and a request that goes there.

use super::super::context::{Missing, QueuePair};
use super::super::function::{Function, beside};
use super::super::responder::Message;
use super::super::scratch::Scratch;
use super::super::work::Placed;
use crate::fabric;
use crate::hca::objects::Service;
use crate::world::World;

/// A QP: its function and its number.
pub(super) type QpId = (usize, u32);

/// A QP that has a message carried whole, and all that the message can reach.
pub(in crate::engine) struct Carrier<'a> {
    pub(super) world: &'a mut World,
    pub(super) from: QpId,
}

impl<'a> Carrier<'a> {
    pub(in crate::engine) fn new(world: &'a mut World, from: QpId) -> Self {
        Self { world, from }
    }

    /// The QP itself.
    pub(super) fn pair(&mut self) -> Result<QueuePair<'_>, Missing> {
        let (function, qpn) = self.from;
        self.world.functions[function].pair(qpn, self.world.clock.now)
    }

    /// Takes the QP's request to its peer, which gets it by `receive`.
    pub(super) fn exchange(
        &mut self,
        placed: &Placed,
        scratch: &mut Scratch,
        receive: Receive,
    ) -> Result<Exchange, Missing> {
        let (world, (id, qpn)) = (&mut *self.world, self.from);
        let Function { hca, engine } = &mut world.functions[id];
        let qp = hca.objects.qps.get(&qpn).ok_or(Missing::Qp(qpn))?;
        let packets = placed.length.div_ceil(1 << qp.log_mtu.clamp(8, 12)).max(1) as u32;
        let (port, remote, to_qpn) = (qp.port, qp.remote, qp.remote_qpn);
        let (service, psn) = (qp.service, qp.requester.psn);
        let silence = Exchange { answer: Answer::Silence, peer: None, packets };
        if engine.faults.loses_message(qpn) {
            return Ok(silence);
        }
        let slid = hca.lid(port);
        let Some(target) = remote.and_then(|to| fabric::reach(&world.functions, id, port, to))
        else {
            return Ok(silence);
        };
        let sender = Sender { function: id, qpn, service };
        if !is_for(world, target, to_qpn, &sender) {
            return Ok(silence);
        }
        let now = world.clock.now;
        let (function, memory) = beside(&mut world.functions, target, id);
        let message =
            Message { slid, psn, packets, work: &placed.work, length: placed.length, memory };
        let answer = receive(&mut function.pair(to_qpn, now)?, &message, scratch);
        Ok(Exchange { answer, peer: Some((target, to_qpn)), packets })
    }
}

/// PSNs count in 24 bits.
pub(super) const PSN: u32 = 0xff_ffff;

/// What comes back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Answer {
    /// Acknowledged. An atomic gives what was there; a READ's memory is in `Scratch::remote`.
    Done { original: Option<u64> },
    /// RNR NAK with this timer code.
    NotReady { timer: u8 },
    /// NAK, or a failure at home: the requester's syndrome.
    Failed(u8),
    /// Nothing: there is nobody, or it drops the packet.
    Silence,
}

/// A request that went out, and what came of it.
pub(super) struct Exchange {
    pub answer: Answer,
    /// Whom it reached.
    pub peer: Option<QpId>,
    pub packets: u32,
}

/// How a service takes a message.
pub(super) type Receive = fn(&mut QueuePair<'_>, &Message<'_>, &mut Scratch) -> Answer;

/// Who sends a message.
struct Sender {
    function: usize,
    qpn: u32,
    service: Service,
}

/// Whether a function has such a QP, and it takes messages from this sender.
fn is_for(world: &World, id: usize, qpn: u32, sender: &Sender) -> bool {
    let Some(qp) = world.functions[id].hca.objects.qps.get(&qpn) else {
        tracing::debug!(qpn, "a message for a QP that does not exist");
        return false;
    };
    qp.state.receives()
        && qp.service == sender.service
        && qp.remote_qpn == sender.qpn
        && qp.remote.and_then(|remote| fabric::reach(&world.functions, id, qp.port, remote))
            == Some(sender.function)
}
