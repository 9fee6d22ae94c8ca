//! Address paths: whether a QP's path can be taken from here, and whom it reaches.

use verbless_prm::{AddressPath, RoceVersion};

use super::call::{Call, Outcome};
use crate::hca::objects::Address;
use crate::hca::refusal::Refusal;
use crate::profile::Link;

/// LIDs from here on are multicast.
const FIRST_MULTICAST_LID: u16 = 0xc000;

/// Whom a path reaches; refused if it does not name a port and a destination that the link layer
/// has.
pub(super) fn destination(call: &Call<'_>, path: &AddressPath) -> Result<Address, Refusal> {
    let hca = call.hca();
    let number = usize::from(path.vhca_port_num());
    let port = number.checked_sub(1).and_then(|index| hca.ports.get(index));
    let port = port.ok_or(Refusal::PathPort)?;
    match hca.profile.link() {
        Link::Infiniband => {
            if path.grh() && u32::from(path.src_addr_index()) >= hca.caps.gids() {
                return Err(Refusal::PathGid);
            }
            if path.fl() {
                return Ok(hca.own_address(port));
            }
            if !(1..FIRST_MULTICAST_LID).contains(&path.rlid()) {
                return Err(Refusal::PathLid);
            }
            Ok(match path.grh() {
                true => Address::Routed { lid: path.rlid(), gid: *path.rgid_rip() },
                false => Address::Lid(path.rlid()),
            })
        }
        Link::Ethernet => {
            let own = hca.roce_address(path.src_addr_index().into());
            let own = own.map_err(|_| Refusal::PathGid)?;
            if path.fl() {
                if !forced_loopback(call) {
                    return Err(Refusal::Unsupported);
                }
                return Ok(Address::Gid(*own.source_l3_address()));
            }
            let mac = u64::from(path.rmac_47_32()) << 32 | u64::from(path.rmac_31_0());
            if mac == 0 || mac >> 40 & 1 == 1 {
                return Err(Refusal::PathMac);
            }
            check_udp_port(call, path, own.roce_version())?;
            Ok(Address::Gid(*path.rgid_rip()))
        }
    }
}

/// Whether an RC QP may be looped back on Ethernet.
fn forced_loopback(call: &Call<'_>) -> bool {
    let caps = &call.hca().caps;
    caps.roce().fl_rc_qp_when_roce_enabled() || caps.roce().fl_rc_qp_when_roce_disabled()
}

/// RoCE v2 packets have a UDP source port, from a range that the device states.
fn check_udp_port(call: &Call<'_>, path: &AddressPath, version: RoceVersion) -> Outcome {
    let roce = call.hca().caps.roce();
    let range = roce.r_roce_min_src_udp_port()..=roce.r_roce_max_src_udp_port();
    if version == RoceVersion::V2 && !range.contains(&path.udp_sport()) {
        return Err(Refusal::PathUdpPort);
    }
    Ok(())
}
