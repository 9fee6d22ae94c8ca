//! Event queues: EQEs, arming, interrupts, and the asynchronous events that the data path reports.

use std::collections::BTreeMap;

use verbless_prm::hot::event_type;
use verbless_prm::{
    CqErrorSyndrome, Eqe, EqeCompletion, EqeCqError, EqePortState, EqeQpSrq, EqeQueueType,
    EventType, PortChangeSubtype,
};

use crate::dpa::Dpa;
use crate::hca::objects::Eq;
use crate::memory::HostMemory;
/// EQE and CQE indexes count in 24 bits where software writes them.
const COUNTER: u32 = 0xff_ffff;
/// Bytes of an EQE.
const EQE: u64 = 64;

/// The event queues of a function, and the interrupts that they raise.
pub(super) struct Events<'a> {
    pub eqs: &'a mut BTreeMap<u32, Eq>,
    /// Vectors to raise once the lock is released.
    pub raised: &'a mut Vec<u32>,
    pub memory: &'a dyn HostMemory,
    /// Who hears of CQs that start threads.
    pub dpa: Option<&'a Dpa>,
}

impl Events<'_> {
    /// The same for a shorter time.
    pub(super) fn reborrow(&mut self) -> Events<'_> {
        Events { eqs: self.eqs, raised: self.raised, memory: self.memory, dpa: self.dpa }
    }

    /// Writes an EQE into every EQ that asked for events of this type; with no such EQ the event is
    /// lost, as on hardware.
    pub(super) fn post(&mut self, kind: u8, sub_type: u8, data: [u8; 28]) {
        for (&eqn, eq) in self.eqs.iter_mut().filter(|(_, eq)| eq.takes(kind)) {
            write(eqn, eq, self.memory, self.raised, kind, sub_type, data);
        }
    }

    /// A CQ that was armed has something to say.
    pub(super) fn completion(&mut self, eqn: u32, cqn: u32) {
        let data = *EqeCompletion::zeroed().set_cqn(cqn).as_bytes();
        match self.eqs.get_mut(&eqn) {
            Some(eq) => {
                write(eqn, eq, self.memory, self.raised, event_type::COMPLETION, 0, data);
            }
            None => tracing::error!(eqn, cqn, "a CQ reports to an EQ that does not exist"),
        }
    }

    /// The same of a CQ that starts a thread of the DPA.
    pub(super) fn program(&mut self, thread: u32) {
        match self.dpa {
            Some(dpa) => dpa.event(thread),
            None => tracing::error!(thread, "a CQ starts a thread of a DPA that does not exist"),
        }
    }

    /// An event about a QP.
    pub(super) fn qp(&mut self, kind: u8, qpn: u32) {
        self.queue(kind, EqeQueueType::QP, qpn);
    }

    /// An event about an SQ.
    pub(super) fn sq(&mut self, kind: u8, sqn: u32) {
        self.queue(kind, EqeQueueType::SQ, sqn);
    }

    /// An event about an SRQ. Linux looks for a receive memory pool among receive queues.
    pub(super) fn srq(&mut self, kind: u8, number: u32, is_pool: bool) {
        self.queue(kind, if is_pool { EqeQueueType::RQ } else { EqeQueueType::QP }, number);
    }

    fn queue(&mut self, kind: u8, queue_type: EqeQueueType, number: u32) {
        let data = *EqeQpSrq::zeroed().set_type(queue_type).set_qpn_rqn_sqn(number).as_bytes();
        self.post(kind, 0, data);
    }

    /// A CQ takes no more CQEs.
    pub(super) fn cq_error(&mut self, cqn: u32, why: CqErrorSyndrome) {
        let mut data = EqeCqError::zeroed();
        data.set_cqn(cqn).set_syndrome(why);
        self.post(event_type::CQ_ERROR, 0, *data.as_bytes());
    }

    /// Port `port` (from 1) went up or down.
    pub(super) fn port(&mut self, port: u8, up: bool) {
        self.port_change(
            port,
            if up { PortChangeSubtype::ACTIVE } else { PortChangeSubtype::DOWN },
        );
    }

    /// Port `port` (from 1) has another LID.
    pub(super) fn port_lid(&mut self, port: u8) {
        self.port_change(port, PortChangeSubtype::LID);
    }

    fn port_change(&mut self, port: u8, sub_type: PortChangeSubtype) {
        let data = *EqePortState::zeroed().set_port_num(port & 0xf).as_bytes();
        self.post(event_type::PORT_CHANGE, sub_type.0, data);
    }

    /// An EQ doorbell: the consumer index, and with `arm` the wish for an interrupt when there is
    /// more than that.
    pub(super) fn doorbell(&mut self, page: u32, word: u32, arm: bool) {
        let eqn = word >> 24;
        let Some(eq) = self.eqs.get_mut(&eqn).filter(|eq| eq.uar_page == page) else {
            tracing::debug!(page, eqn, "an EQ doorbell for no EQ of this page");
            return;
        };
        eq.consumer = word & COUNTER;
        if arm {
            eq.armed = true;
            if eq.producer & COUNTER != eq.consumer {
                eq.armed = false;
                self.raised.push(eq.vector);
            }
        }
    }
}

fn write(
    eqn: u32,
    eq: &mut Eq,
    memory: &dyn HostMemory,
    raised: &mut Vec<u32>,
    kind: u8,
    sub_type: u8,
    data: [u8; 28],
) {
    let size = 1_u32.checked_shl(eq.log_size).unwrap_or(0);
    if eq.producer.wrapping_sub(eq.consumer) & COUNTER >= size && !eq.overrun_ignore {
        tracing::warn!(eqn, kind, "an event queue is full: the event is lost");
        return;
    }
    let at = u64::from(eq.producer & (size - 1)) * EQE;
    let mut eqe = Eqe::zeroed();
    eqe.set_event_type(EventType(kind)).set_event_sub_type(sub_type).set_event_data(&data);
    eqe.set_owner(eq.producer >> eq.log_size & 1 != 0);
    if let Err(fault) = eq.memory.write_entry(memory, at, eqe.as_bytes()) {
        tracing::warn!(eqn, kind, %fault, "an event queue cannot be written: the event is lost");
        return;
    }
    eq.producer = eq.producer.wrapping_add(1);
    if std::mem::take(&mut eq.armed) {
        raised.push(eq.vector);
    }
}
