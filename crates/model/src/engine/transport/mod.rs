//! Messages that are carried whole, one module for each transport service: how a request that is
//! ready goes out, what a message meets at its receiver, and what that means to its sender.

mod connected;
mod rc;
mod uc;
pub(super) mod ud;

use verbless_prm::hot::cqe_syndrome;

use super::context::Missing;
use super::scratch::Scratch;
use super::sender::Turn;
use super::work::Placed;
use crate::hca::objects::Service;

pub(super) use connected::Carrier;

impl Carrier<'_> {
    /// Sends the request that is next in the QP's queue.
    pub(super) fn send(
        &mut self,
        service: Service,
        placed: &Placed,
        scratch: &mut Scratch,
    ) -> Result<Turn, Missing> {
        match service {
            Service::Rc => self.send_reliable(placed, scratch),
            Service::Uc => self.send_unreliable(placed, scratch),
            Service::Ud | Service::Qp0 | Service::Qp1 => self.send_datagram(placed, scratch),
            // It carries no operation that leaves the device.
            Service::RegUmr => {
                Ok(self.pair()?.finish(placed, Err(cqe_syndrome::LOCAL_QP_OPERATION)))
            }
        }
    }
}
