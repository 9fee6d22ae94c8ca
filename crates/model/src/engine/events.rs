//! Posts completion and asynchronous EQEs to EQs (ring: `eq`), and collects the vectors to raise.

use verbless_prm::hot::event_type;
use verbless_prm::{
    CqErrorSyndrome, EqeCompletion, EqeCqError, EqePortState, EqeQpSrq, EqeQueueType,
    PortChangeSubtype,
};

use super::eq::{update, write};
use super::programs::Programs;
use crate::hca::objects::{DpaEventTarget, Eq};
use crate::memory::HostMemory;
use crate::numbered::Numbered;

/// The event queues of a function, and the interrupts that they raise.
pub(super) struct Events<'a> {
    pub eqs: &'a mut Numbered<u32, Eq>,
    /// Vectors to raise once the lock is released.
    pub raised: &'a mut Vec<u32>,
    pub memory: &'a dyn HostMemory,
    pub programs: Programs<'a>,
    /// A forced or fast teardown has stopped the function's bus accesses: its EQs receive the
    /// completion of that command and nothing else.
    pub closed: bool,
}

impl Events<'_> {
    /// Reborrows all parts for a shorter time.
    pub(super) fn reborrow(&mut self) -> Events<'_> {
        Events {
            eqs: self.eqs,
            raised: self.raised,
            memory: self.memory,
            programs: self.programs.reborrow(),
            closed: self.closed,
        }
    }

    /// Writes an EQE into every EQ that subscribed to events of this type; without such an EQ the
    /// event is lost, as on hardware.
    pub(super) fn post(&mut self, kind: u8, sub_type: u8, data: [u8; 28]) {
        if self.closed && kind != event_type::COMMAND_COMPLETION {
            return;
        }
        for (&eqn, eq) in self.eqs.iter_mut().filter(|(_, eq)| eq.takes(kind)) {
            if write(eqn, &mut eq.ring, self.memory, kind, sub_type, data) {
                self.raised.push(eq.vector);
            }
        }
    }

    /// Reports a completion event of an armed CQ.
    pub(super) fn completion(&mut self, eqn: u32, cqn: u32) {
        let data = *EqeCompletion::zeroed().set_cqn(cqn).as_bytes();
        match self.eqs.get_mut(&eqn) {
            Some(eq) => {
                if write(eqn, &mut eq.ring, self.memory, event_type::COMPLETION, 0, data) {
                    self.raised.push(eq.vector);
                }
            }
            None => tracing::error!(eqn, cqn, "a CQ reports to an EQ that does not exist"),
        }
    }

    /// Reports a completion event of a CQ to an element of the DPA.
    pub(super) fn program(&mut self, target: DpaEventTarget, cqn: u32) {
        self.programs.completion(target, cqn, self.memory);
    }

    /// An event about a QP.
    pub(super) fn qp(&mut self, kind: u8, qpn: u32) {
        self.queue(kind, EqeQueueType::QP, qpn);
    }

    /// An event about an SQ.
    pub(super) fn sq(&mut self, kind: u8, sqn: u32) {
        self.queue(kind, EqeQueueType::SQ, sqn);
    }

    /// An event about an RQ.
    pub(super) fn rq(&mut self, kind: u8, rqn: u32) {
        self.queue(kind, EqeQueueType::RQ, rqn);
    }

    /// An event about an SRQ. An RMP event has queue type RQ: Linux looks up the RMP's DevX
    /// subscribers under that type.
    pub(super) fn srq(&mut self, kind: u8, number: u32, is_rmp: bool) {
        self.queue(kind, if is_rmp { EqeQueueType::RQ } else { EqeQueueType::QP }, number);
    }

    fn queue(&mut self, kind: u8, queue_type: EqeQueueType, number: u32) {
        let data = *EqeQpSrq::zeroed().set_type(queue_type).set_qpn_rqn_sqn(number).as_bytes();
        self.post(kind, 0, data);
    }

    /// Reports a change of a general object.
    pub(super) fn object(&mut self, kind: verbless_prm::GeneralObjectType, number: u32) {
        let mut data = verbless_prm::EqeObjectChange::zeroed();
        data.set_obj_type(kind).set_obj_id(number);
        self.post(event_type::OBJECT_CHANGE, 0, *data.as_bytes());
    }

    /// Reports that a CQ takes no more CQEs.
    pub(super) fn cq_error(&mut self, cqn: u32, why: CqErrorSyndrome) {
        let mut data = EqeCqError::zeroed();
        data.set_cqn(cqn).set_syndrome(why);
        self.post(event_type::CQ_ERROR, 0, *data.as_bytes());
    }

    /// Reports that port `port` (from 1) went up or down.
    pub(super) fn port(&mut self, port: u8, up: bool) {
        self.port_change(
            port,
            if up { PortChangeSubtype::ACTIVE } else { PortChangeSubtype::DOWN },
        );
    }

    /// Reports a LID change of port `port` (from 1).
    pub(super) fn port_lid(&mut self, port: u8) {
        self.port_change(port, PortChangeSubtype::LID);
    }

    fn port_change(&mut self, port: u8, sub_type: PortChangeSubtype) {
        let data = *EqePortState::zeroed().set_port_num(port & 0xf).as_bytes();
        self.post(event_type::PORT_CHANGE, sub_type.0, data);
    }

    /// Handles an EQ doorbell: takes the consumer index, and with `arm` raises an interrupt if more
    /// EQEs exist.
    pub(super) fn doorbell(&mut self, page: u32, word: u32, arm: bool) {
        let eqn = word >> 24;
        let Some(eq) = self.eqs.get_mut(&eqn).filter(|eq| eq.uar_page == page) else {
            tracing::debug!(page, eqn, "an EQ doorbell for no EQ of this page");
            return;
        };
        if update(&mut eq.ring, word, arm) {
            self.raised.push(eq.vector);
        }
    }
}
