//! A measurement between two devices, or of one that talks to itself; the other end is a thread or
//! on another machine.

use std::os::unix::net::UnixStream;

use verbless_perf::{Measured, Plan};

use super::case::Side;
use super::cases::{find, perf};
use super::channel::{Channel, PATIENCE};
use super::files::Files;
use super::remote::Peer;
use super::role::Role;
use crate::{Lab, Stop};

/// Measures as planned. Without `peer` the other end is a thread of this program, on the other
/// device of the lab.
pub fn measure(lab: &Lab, peer: Option<&Peer>, plan: &Plan) -> Result<Measured, Stop> {
    plan.check().map_err(Stop::fail)?;
    let (measured, arrived) = match peer {
        Some(peer) => {
            let measured = at(lab, peer.start(perf::ID, 1)?, plan);
            if measured.is_err() {
                peer.kill()?;
            }
            peer.settle()?;
            measured
        }
        None => within(lab, plan),
    }?;
    let sent = u64::from(plan.iterations) * u64::from(plan.qps);
    Ok(match measured {
        Measured::Bandwidth(mut it) if plan.operation.needs_receives() => {
            it.arrived = arrived as f64 / sent as f64;
            Measured::Bandwidth(it)
        }
        measured => measured,
    })
}

/// Measures with the other end at the end of a socket.
fn at(lab: &Lab, socket: UnixStream, plan: &Plan) -> Result<(Measured, u64), Stop> {
    let channel = Channel::new(socket, Some(PATIENCE))?;
    perf::measures(&mut Role::new(lab, Side::A, 1, channel, Files::default()), plan)
}

/// Measures with the other end in a thread.
fn within(lab: &Lab, plan: &Plan) -> Result<(Measured, u64), Stop> {
    let (ours, theirs) = UnixStream::pair()?;
    let other = find(perf::ID).ok_or_else(|| Stop::fail("nothing responds"))?;
    let channel = Channel::new(theirs, Some(PATIENCE))?;
    std::thread::scope(|scope| {
        let responder = scope.spawn(move || {
            let role = Role::new(lab, Side::B, 1, channel, Files::default());
            // It has reported its failure to the measuring end.
            let _ = role.play(other.act(Side::B));
        });
        let measured = at(lab, ours, plan);
        responder.join().map_err(|_| Stop::fail("the responding end panicked"))?;
        measured
    })
}
