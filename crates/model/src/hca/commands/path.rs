//! Address paths: checks whether a QP can use a path, and finds its destination.

use verbless_prm::{AddressPath, RoceVersion};

use super::call::{Call, Outcome};
use crate::fabric::address::FIRST_MULTICAST_LID;
use crate::hca::objects::Address;
use crate::hca::qp_type::QpType;
use crate::hca::refusal::Refusal;
use crate::profile::Link;

/// The destination of the path of a QP of this type. Refuses a path that does not name a port and a
/// destination of the link layer. A loopback path names no destination.
pub(super) fn destination(
    call: &Call<'_>,
    qp_type: &QpType,
    path: &AddressPath,
) -> Result<Address, Refusal> {
    let hca = call.hca();
    let number = usize::from(path.vhca_port_num());
    let port = number.checked_sub(1).and_then(|index| hca.ports.get(index));
    port.ok_or(Refusal::PathPort)?;
    if path.fl() {
        return if qp_type.reliable && forced_loopback(call) {
            Ok(Address::Own)
        } else {
            Err(Refusal::PathLoopback)
        };
    }
    match hca.profile.link() {
        Link::Infiniband => {
            if path.grh() && u32::from(path.src_addr_index()) >= hca.caps.gids() {
                return Err(Refusal::PathGid);
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
            let mac = u64::from(path.rmac_47_32()) << 32 | u64::from(path.rmac_31_0());
            if mac == 0 || mac >> 40 & 1 == 1 {
                return Err(Refusal::PathMac);
            }
            check_udp_port(call, path, own.roce_version())?;
            let [_, _, mac @ ..] = mac.to_be_bytes();
            Ok(Address::Roce { gid: *path.rgid_rip(), mac, own: path.src_addr_index() })
        }
    }
}

/// Whether an RC QP may use forced loopback: that may depend on whether RoCE is on.
///
/// Sources: rdma-core `providers/mlx5/dr_send.c` (`dr_send_allow_fl`) for the capability, and DPDK
/// `drivers/common/mlx5/mlx5_devx_cmds.c` (`mlx5_devx_cmd_modify_qp_state`), whose path has no GID
/// either.
fn forced_loopback(call: &Call<'_>) -> bool {
    let hca = call.hca();
    let (general, roce) = (hca.caps.general(), hca.caps.roce());
    match general.roce() && hca.nic_vport().context.roce_en() {
        true => roce.fl_rc_qp_when_roce_enabled(),
        false => general.fl_rc_qp_when_roce_disabled() || roce.fl_rc_qp_when_roce_disabled(),
    }
}

/// RoCE v2 packets have a UDP source port, in the range that the device states.
fn check_udp_port(call: &Call<'_>, path: &AddressPath, version: RoceVersion) -> Outcome {
    let roce = call.hca().caps.roce();
    let range = roce.r_roce_min_src_udp_port()..=roce.r_roce_max_src_udp_port();
    if version == RoceVersion::V2 && !range.contains(&path.udp_sport()) {
        return Err(Refusal::PathUdpPort);
    }
    Ok(())
}
