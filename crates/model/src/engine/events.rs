//! Event queues: EQEs, arming, interrupts, and the asynchronous events that the data path reports.

use verbless_prm::hot::{Eqe, EventCompletion, EventCqError, EventPort, EventQueue, event_type};
use zerocopy::IntoBytes;
use zerocopy::big_endian::U32;

use crate::hca::Hca;

/// EQE and CQE indexes count in 24 bits where software writes them.
const COUNTER: u32 = 0xff_ffff;
/// Port event subtypes (Linux `mlx5_port_change` subtypes).
const PORT_DOWN: u8 = 1;
const PORT_ACTIVE: u8 = 4;
const PORT_LID: u8 = 6;
/// What an event's number is: an SQ.
const SEND_QUEUE: u8 = 2;
/// A CQ error event because software fell behind.
const CQ_OVERRUN: u8 = 1;

/// Bytes of an EQE.
const EQE: u64 = 64;

/// Writes an EQE into every EQ that asked for events of this type; with no such EQ the event is lost, as on hardware.
pub(crate) fn post(hca: &mut Hca, kind: u8, sub_type: u8, data: [u8; 28]) {
    let eqns: Vec<u32> = takers(hca, kind).collect();
    for eqn in eqns {
        write(hca, eqn, kind, sub_type, data);
    }
}

/// The EQs that ask for events of this type.
pub(crate) fn takers(hca: &Hca, kind: u8) -> impl Iterator<Item = u32> {
    let asks = move |bitmask: &[u64; 4]| bitmask[usize::from(kind) / 64] >> (kind % 64) & 1 != 0;
    hca.objects.eqs.iter().filter(move |(_, eq)| asks(&eq.bitmask)).map(|(&eqn, _)| eqn)
}

/// A CQ that was armed has something to say.
pub(crate) fn completion(hca: &mut Hca, eqn: u32, cqn: u32) {
    let data = EventCompletion { cqn: U32::new(cqn), ..EventCompletion::zeroed() };
    write(hca, eqn, event_type::COMPLETION, 0, zerocopy::transmute!(data));
}

/// An event about a QP.
pub(crate) fn queue(hca: &mut Hca, kind: u8, qpn: u32) {
    let data = EventQueue { number: U32::new(qpn), ..EventQueue::zeroed() };
    post(hca, kind, 0, zerocopy::transmute!(data));
}

/// An event about an SQ.
pub(crate) fn send_queue(hca: &mut Hca, kind: u8, sqn: u32) {
    let data = EventQueue { queue_type: SEND_QUEUE, number: U32::new(sqn), ..EventQueue::zeroed() };
    post(hca, kind, 0, zerocopy::transmute!(data));
}

/// An event about a shared queue. Linux looks for a receive memory pool among receive queues.
pub(crate) fn shared(hca: &mut Hca, kind: u8, number: u32, is_pool: bool) {
    const RECEIVE_QUEUE: u8 = 1;
    let queue_type = if is_pool { RECEIVE_QUEUE } else { 0 };
    let data = EventQueue { queue_type, number: U32::new(number), ..EventQueue::zeroed() };
    post(hca, kind, 0, zerocopy::transmute!(data));
}

/// A CQ overran.
pub(crate) fn cq_overrun(hca: &mut Hca, cqn: u32) {
    let data = EventCqError { cqn: U32::new(cqn), syndrome: CQ_OVERRUN, ..EventCqError::zeroed() };
    post(hca, event_type::CQ_ERROR, 0, zerocopy::transmute!(data));
}

/// Port `port` (from 1) went up or down.
pub(crate) fn port(hca: &mut Hca, port: u8, up: bool) {
    let data = EventPort { port: port << 4, ..EventPort::zeroed() };
    let sub_type = if up { PORT_ACTIVE } else { PORT_DOWN };
    post(hca, event_type::PORT_CHANGE, sub_type, zerocopy::transmute!(data));
}

/// Port `port` (from 1) has another LID.
pub(crate) fn port_lid(hca: &mut Hca, port: u8) {
    let data = EventPort { port: port << 4, ..EventPort::zeroed() };
    post(hca, event_type::PORT_CHANGE, PORT_LID, zerocopy::transmute!(data));
}

fn write(hca: &mut Hca, eqn: u32, kind: u8, sub_type: u8, data: [u8; 28]) {
    let Some(eq) = hca.objects.eqs.get_mut(&eqn) else { return };
    let size = 1_u32.checked_shl(eq.log_size).unwrap_or(0);
    if eq.producer.wrapping_sub(eq.consumer) & COUNTER >= size && !eq.overrun_ignore {
        tracing::warn!(eqn, kind, "an event queue is full: the event is lost");
        return;
    }
    let at = u64::from(eq.producer & (size - 1)) * EQE;
    let owner = (eq.producer >> eq.log_size & 1) as u8;
    let eqe = Eqe { event_type: kind, sub_type, data, owner, ..Eqe::zeroed() };
    if let Err(fault) = eq.memory.write_entry(&*hca.memory, at, eqe.as_bytes()) {
        tracing::warn!(eqn, kind, %fault, "an event queue cannot be written: the event is lost");
        return;
    }
    eq.producer = eq.producer.wrapping_add(1);
    if std::mem::take(&mut eq.armed) {
        hca.raised.push(eq.vector);
    }
}

/// An EQ doorbell: the consumer index, and with `arm` the wish for an interrupt when there is more than that.
pub(crate) fn doorbell(hca: &mut Hca, page: u32, word: u32, arm: bool) {
    let eqn = word >> 24;
    let Some(eq) = hca.objects.eqs.get_mut(&eqn).filter(|eq| eq.uar_page == page) else {
        tracing::debug!(page, eqn, "an EQ doorbell for no EQ of this page");
        return;
    };
    eq.consumer = word & COUNTER;
    if arm {
        eq.armed = true;
        if eq.producer & COUNTER != eq.consumer {
            eq.armed = false;
            hca.raised.push(eq.vector);
        }
    }
}
