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
use crate::world::World;

/// Sends the request of a QP (`place`: its function and number) that is next in its queue.
pub(super) fn send(
    world: &mut World,
    place: (usize, u32),
    service: Service,
    placed: &Placed,
    scratch: &mut Scratch,
) -> Result<Turn, Missing> {
    match service {
        Service::Rc => rc::send(world, place, placed, scratch),
        Service::Uc => uc::send(world, place, placed, scratch),
        Service::Ud | Service::Qp0 | Service::Qp1 => ud::send(world, place, placed, scratch),
        // It carries no operation that leaves the device.
        Service::RegUmr => {
            let mut pair = world.functions[place.0].pair(place.1, world.clock.now)?;
            Ok(pair.finish(placed, Err(cqe_syndrome::LOCAL_QP_OPERATION)))
        }
    }
}
