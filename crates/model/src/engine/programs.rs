//! Completion events of CQs for DPA programs: starts of threads, and the DPA's event queues.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use verbless_dpa::Dpa;
use verbless_prm::EqeCompletion;
use verbless_prm::hot::event_type;

use super::eq::{update, write};
use crate::hca::objects::{DpaEq, DpaEventTarget, EmulatedDevice};
use crate::memory::HostMemory;
use crate::numbered::Numbered;

/// The parts of a function's DPA to which CQs report.
pub(super) struct Programs<'a> {
    pub eqs: &'a mut Numbered<u32, DpaEq>,
    /// The emulated devices, whose vectors the EQs raise.
    pub devices: &'a mut Numbered<u32, EmulatedDevice>,
    /// The DPA, whose threads CQs start.
    pub dpa: &'a Option<Arc<Dpa>>,
    /// The DPAs of functions that reach this one, by number.
    pub reaching: &'a BTreeMap<usize, Weak<Dpa>>,
}

impl Programs<'_> {
    /// Reborrows all parts for a shorter time.
    pub(super) fn reborrow(&mut self) -> Programs<'_> {
        Programs { eqs: self.eqs, devices: self.devices, dpa: self.dpa, reaching: self.reaching }
    }

    /// Delivers a completion event of a CQ to its DPA element.
    pub(super) fn completion(&mut self, to: DpaEventTarget, cqn: u32, memory: &dyn HostMemory) {
        match to {
            DpaEventTarget::Thread(thread) => match self.dpa {
                Some(dpa) => dpa.event(thread),
                None => tracing::error!(thread, "a CQ starts a thread of a function without a DPA"),
            },
            DpaEventTarget::Eq(eqn) => self.report(eqn, cqn, memory),
            DpaEventTarget::OtherContext { function, process, thread } => {
                if let Some(dpa) = self.reaching.get(&function).and_then(Weak::upgrade) {
                    dpa.event_of(process, thread);
                }
            }
        }
    }

    /// Writes a completion event of a CQ into an EQ.
    fn report(&mut self, eqn: u32, cqn: u32, memory: &dyn HostMemory) {
        let data = *EqeCompletion::zeroed().set_cqn(cqn).as_bytes();
        match self.eqs.get_mut(&eqn) {
            Some(eq) => {
                let before = eq.ring.producer;
                let armed = write(eqn, &mut eq.ring, memory, event_type::COMPLETION, 0, data);
                let written = eq.ring.producer != before;
                if armed || (written && eq.context.always_armed()) {
                    raise(self.devices, eq);
                }
            }
            None => tracing::error!(eqn, cqn, "a CQ reports to a DPA EQ that does not exist"),
        }
    }

    /// Updates an EQ by an outbox; false: the UAR page has no such EQ.
    pub(super) fn doorbell(&mut self, page: u32, eqn: u32, consumer: u32, arm: bool) -> bool {
        let Some(eq) = self.eqs.get_mut(&eqn).filter(|eq| eq.context.uar_page() == page) else {
            return false;
        };
        if update(&mut eq.ring, consumer, arm) {
            raise(self.devices, eq);
        }
        true
    }
}

/// Raises the vector of an EQ that has one.
fn raise(devices: &mut Numbered<u32, EmulatedDevice>, eq: &DpaEq) {
    if let Some((device, vector)) = eq.raises()
        && let Some(device) = devices.get_mut(&device)
    {
        device.raise(vector);
    }
}
