//! The error state: a QP that failed flushes what is posted to it, in order, once.

use verbless_prm::hot::{cqe_opcode, cqe_syndrome, event_type};

use super::counters::{self, Count};
use super::ring::record;
use super::state::Completion;
use super::{completion, events};
use crate::hca::objects::{QpState, Service};
use crate::world::{HcaId, World};

/// Moves a QP to the error state and flushes it.
pub(crate) fn to_error(world: &mut World, id: HcaId, qpn: u32) {
    let hca = &mut world.hcas[id];
    let Some(qp) = hca.objects.qps.get_mut(&qpn) else { return };
    if qp.state == QpState::Error {
        return;
    }
    qp.state = QpState::Error;
    let waits = qp.requester.resume_at.take();
    let shares = qp.srq.is_some();
    hca.engine.stop_timer(waits, qpn);
    hca.engine.errored.insert(qpn);
    if shares {
        // What it had of the shared queue is done with.
        events::queue(hca, event_type::SRQ_LAST_WQE, qpn);
    }
    flush(world, id, qpn);
}

/// A request failed: with an unreliable service only the send queue cannot go on, and SQERR2RTS puts it right.
pub(crate) fn of_request(world: &mut World, id: HcaId, qpn: u32) {
    let Some(qp) = world.hcas[id].objects.qps.get_mut(&qpn) else { return };
    let receives = qp.service == Service::Uc || qp.service.is_datagram();
    if !receives || qp.state != QpState::Rts {
        return to_error(world, id, qpn);
    }
    qp.state = QpState::SqError;
    flush_send_queue(world, id, qpn);
}

/// The QP's CQ overran: it cannot go on, and says so by an event.
pub(crate) fn no_room(world: &mut World, id: HcaId, qpn: u32) {
    counters::count(&mut world.hcas[id].objects, qpn, Count::CqOverrun);
    events::queue(&mut world.hcas[id], event_type::WQ_CATASTROPHIC, qpn);
    to_error(world, id, qpn);
}

/// Completes everything that is posted to a QP in the error state as flushed; true if there was anything.
pub(crate) fn flush(world: &mut World, id: HcaId, qpn: u32) -> bool {
    let worked = flush_send_queue(world, id, qpn);
    flush_receive_queue(world, id, qpn) || worked
}

/// The send half of [`flush`].
pub(crate) fn flush_send_queue(world: &mut World, id: HcaId, qpn: u32) -> bool {
    at_most_a_ring(|| flush_send(world, id, qpn))
}

/// The receive half of [`flush`].
pub(crate) fn flush_receive_queue(world: &mut World, id: HcaId, qpn: u32) -> bool {
    at_most_a_ring(|| flush_receive(world, id, qpn))
}

/// Calls `one` until there is nothing more, but not for ever: software may go on posting meanwhile, and what it posts
/// after as many as a record can count is flushed when it rings, or later. True if there was anything.
pub(super) fn at_most_a_ring(mut one: impl FnMut() -> Option<()>) -> bool {
    (0..=u16::MAX).take_while(|_| one().is_some()).count() > 0
}

fn flush_send(world: &mut World, id: HcaId, qpn: u32) -> Option<()> {
    let hca = &mut world.hcas[id];
    let qp = hca.objects.qps.get(&qpn)?;
    if !matches!(qp.state, QpState::Error | QpState::SqError) {
        return None;
    }
    let (index, wqe_opcode) = hca.objects.sender(qpn)?.skip(&*hca.memory)?;
    counters::request_failed(&mut hca.objects, qpn, cqe_syndrome::FLUSHED);
    let qp = hca.objects.qps.get(&qpn)?;
    let cqn = qp.sq.as_ref()?.cqn;
    let opcode = cqe_opcode::REQUESTER_ERROR;
    let flushed = cqe_syndrome::FLUSHED;
    let completion = Completion::error(qp, qpn, opcode, wqe_opcode, index, flushed);
    let _ = completion::complete(world, id, cqn, completion);
    Some(())
}

fn flush_receive(world: &mut World, id: HcaId, qpn: u32) -> Option<()> {
    let hca = &mut world.hcas[id];
    let qp = hca.objects.qps.get_mut(&qpn).filter(|qp| qp.state == QpState::Error)?;
    let rq = qp.rq.as_mut()?;
    let posted = record(&*hca.memory, qp.record).ok()? as u16;
    let index = rq.consumer;
    if posted == index {
        return None;
    }
    rq.consumer = index.wrapping_add(1);
    let cqn = rq.cqn;
    let opcode = cqe_opcode::RESPONDER_ERROR;
    let completion = Completion::error(qp, qpn, opcode, 0, index, cqe_syndrome::FLUSHED);
    counters::receive_failed(&mut hca.objects, qpn, cqe_syndrome::FLUSHED);
    let _ = completion::complete(world, id, cqn, completion);
    Some(())
}

#[cfg(test)]
mod tests {
    use super::at_most_a_ring;

    #[test]
    fn software_that_posts_as_fast_as_it_is_flushed_does_not_hold_the_device_for_ever() {
        let mut flushed = 0;
        assert!(at_most_a_ring(|| {
            flushed += 1;
            Some(())
        }));
        assert_eq!(flushed, 1 << 16);
        assert!(!at_most_a_ring(|| None));
    }
}
