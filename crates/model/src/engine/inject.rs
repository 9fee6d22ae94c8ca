//! Faults of the data path that a test asks for.

use std::time::Duration;

use super::nanoseconds;
use super::state::Strike;
use crate::model::Model;

/// Something that goes wrong on the data path of one device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// A message that the device sends never arrives; its sender may retry it.
    LoseMessage,
    /// A doorbell of an SQ or CQ (one register of one page) is not heard.
    LoseDoorbell,
    /// A CQE is not written.
    LoseCompletion,
    /// A CQE is written so much later; those of the same CQ that follow stay behind it.
    DelayCompletion(Duration),
}

impl Model {
    /// Lets `fault` hit device `device` at `count` occurrences in a row, after `skip` have passed. A new call for the same
    /// fault replaces the one before.
    ///
    /// # Panics
    /// When there is no such device.
    pub fn inject(&self, device: usize, fault: Fault, skip: u32, count: u32) {
        let strike = Strike { skip, count };
        self.check_device(device);
        self.shared.with(|world| {
            let faults = &mut world.hcas[device].engine.faults;
            match fault {
                Fault::LoseMessage => faults.lose_messages = strike,
                Fault::LoseDoorbell => faults.lose_doorbells = strike,
                Fault::LoseCompletion => faults.lose_completions = strike,
                Fault::DelayCompletion(by) => {
                    faults.delay_completions = strike;
                    faults.delay = nanoseconds(by);
                }
            }
        });
    }
}

impl Strike {
    /// Whether the fault hits this time.
    pub(crate) fn strikes(&mut self) -> bool {
        if self.skip > 0 {
            self.skip -= u32::from(self.count > 0);
            false
        } else if self.count > 0 {
            self.count -= 1;
            true
        } else {
            false
        }
    }
}
