//! The path of a connected queue pair: conversion between address vectors of verbs and address
//! paths of the device.

use nix::errno::Errno;
use verbless_prm::{AddressPath, PortType, StaticRate};

use super::super::device::find_gid;
use super::super::kernel::Kernel;
use super::super::refused::refused;
use super::super::uapi::{UverbsRequest, UverbsResponse};
use super::super::write::{check_rate, destination_mac, no_grh};

/// `ib_uverbs_gid_type`: RoCE v2.
const ROCE_V2: u32 = 2;
/// `ib_rate` of 800 Gb/s; mlx5 sets no limit for it.
const RATE_800: u8 = 23;
/// The `ib_rate` of the static rate codes 0 to 6; any other code is the `ib_rate` plus 5.
const RATES_BY_CODE: [u8; 7] = [0, 12, 15, 16, 17, 20, 21];
const RATE_OFFSET: u8 = 5;

/// `ib_uverbs_qp_dest`.
#[derive(Debug, Clone, Copy)]
pub(super) struct QpDestination {
    gid: [u8; 16],
    flow_label: u32,
    lid: u16,
    gid_index: u8,
    hop_limit: u8,
    traffic_class: u8,
    service_level: u8,
    path_bits: u8,
    rate: u8,
    is_global: bool,
    pub port: u8,
}

impl QpDestination {
    /// Size in bytes.
    pub(super) const BYTES: usize = 32;

    pub(super) fn read(from: &UverbsRequest, at: usize) -> Self {
        Self {
            gid: from.gid(at),
            flow_label: from.u32(at + 16),
            lid: from.u16(at + 20),
            gid_index: from.u8(at + 24),
            hop_limit: from.u8(at + 25),
            traffic_class: from.u8(at + 26),
            service_level: from.u8(at + 27),
            path_bits: from.u8(at + 28),
            rate: from.u8(at + 29),
            is_global: from.u8(at + 30) != 0,
            port: from.u8(at + 31),
        }
    }
}

/// Writes a destination into a path. `peers`: the local and the remote QPN, if the same call sets
/// the remote one.
pub(super) fn set(
    kernel: &Kernel,
    path: &mut AddressPath,
    to: &QpDestination,
    port: u8,
    peers: Option<(u32, u32)>,
) -> Result<(), Errno> {
    let state = kernel
        .function
        .port(port.into())
        .ok_or_else(|| refused(Errno::EINVAL, format!("port_num {port}: there is no such port")))?;
    let entry = match to.is_global {
        true => Some(find_gid(kernel, &state, to.gid_index.into())?),
        false if state.needs_grh() => return Err(no_grh(&state)),
        false => None,
    };
    if state.ethernet {
        let [a, b, c, d, e, f] = destination_mac(kernel, &to.gid)?;
        path.set_rmac_47_32(u16::from_be_bytes([a, b]));
        path.set_rmac_31_0(u32::from_be_bytes([c, d, e, f]));
        path.set_eth_prio(to.service_level & 7);
        if entry.is_some_and(|entry| entry.kind == ROCE_V2) {
            path.set_dscp(to.traffic_class >> 2);
            if let Some(peers) = peers {
                path.set_udp_sport(source_port(to.flow_label, peers));
            }
        }
    } else {
        path.set_rlid(to.lid).set_mlid(to.path_bits & 0x7f).set_grh(to.is_global);
        path.set_sl(to.service_level & 0xf);
    }
    if to.is_global {
        path.set_src_addr_index(to.gid_index).set_hop_limit(to.hop_limit);
        path.set_tclass(to.traffic_class).set_flow_label(to.flow_label & 0xf_ffff);
        path.set_rgid_rip(&to.gid);
    }
    check_rate(to.rate)?;
    path.set_stat_rate(StaticRate(rate_code(to.rate, kernel.caps.stat_rate_support())));
    path.set_vhca_port_num(port);
    Ok(())
}

/// The code of a rate, or of the next lower rate that the device supports (`mlx5r_ib_rate`).
fn rate_code(mut rate: u8, supported: u16) -> u8 {
    let code = |rate: u8| match RATES_BY_CODE.iter().position(|&first| first == rate) {
        Some(code) => code as u8,
        None => rate + RATE_OFFSET,
    };
    if rate == RATE_800 {
        return 0;
    }
    while rate != 0 && u32::from(supported) >> code(rate) & 1 == 0 {
        rate -= 1;
    }
    code(rate)
}

/// The rate of a code.
fn rate_of(code: u8) -> u8 {
    match RATES_BY_CODE.get(usize::from(code)) {
        Some(&rate) => rate,
        None => code - RATE_OFFSET,
    }
}

/// The UDP source port of RoCE v2 packets: a hash of the flow label, or of both QPNs if the label
/// is 0.
fn source_port(flow_label: u32, (local, remote): (u32, u32)) -> u16 {
    let label = match flow_label & 0xf_ffff {
        0 => {
            let mut mixed = u64::from(local) * u64::from(remote);
            mixed ^= mixed >> 20;
            mixed ^= mixed >> 40;
            (mixed & 0xf_ffff) as u32
        }
        label => label,
    };
    ((label & 0x3fff) ^ ((label & 0xf_c000) >> 14) | 0xc000) as u16
}

/// Adds an `ib_uverbs_qp_dest` to a response.
pub(super) fn put_destination(reply: &mut UverbsResponse, path: &AddressPath, link: PortType) {
    let ethernet = link == PortType::ETHERNET;
    let global = path.grh() || ethernet;
    let when = |holds: bool, value: u8| if holds { value } else { 0 };
    reply.bytes(if global { path.rgid_rip() } else { &[0; 16] });
    reply.u32(if global { path.flow_label() } else { 0 });
    reply.u16(if ethernet { 0 } else { path.rlid() }).u16(0);
    reply.u8(when(global, path.src_addr_index())).u8(when(global, path.hop_limit()));
    reply.u8(when(global, path.tclass()));
    reply.u8(if ethernet { path.eth_prio() } else { path.sl() });
    reply
        .u8(path.mlid())
        .u8(rate_of(path.stat_rate().0))
        .u8(global.into())
        .u8(path.vhca_port_num());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rate_falls_back_to_supported_code() {
        // 2.5, 10, 30, 5, 20, 40, 60, 80 and 120 Gb/s, and those with separate codes.
        for (rate, code) in [(2, 7), (3, 8), (4, 9), (5, 10), (10, 15), (12, 1), (16, 3), (21, 6)] {
            assert_eq!((rate_code(rate, u16::MAX), rate_of(code)), (code, rate));
        }
        assert_eq!(rate_code(0, u16::MAX), 0);
        assert_eq!(rate_code(RATE_800, u16::MAX), 0, "the port's own");
        assert_eq!(rate_code(22, u16::MAX), 6, "600 Gb/s has no bit: 400");
        assert_eq!(rate_code(16, 1 << 2), 2, "100 Gb/s: 25");
        assert_eq!(rate_code(16, 0), 0);
    }

    #[test]
    fn udp_source_port_matches_linux_hash() {
        assert_eq!(source_port(0x12345, (1, 2)), source_port(0x12345, (3, 4)));
        assert_eq!(source_port(0, (5, 6)), source_port(0, (6, 5)), "both directions");
        for label in [0, 1, 0xf_ffff, 0x4000] {
            assert!(source_port(label, (0x80, 0x81)) >= 0xc000);
        }
        for (label, peers, port) in [
            (0x4001, (0, 0), 0xc000),
            (0x1_2345, (0, 0), 0xe341),
            (0xf_ffff, (0, 0), 0xffc0),
            (0x3fff, (0, 0), 0xffff),
            (0xf_c000, (0, 0), 0xc03f),
            (0, (0xab_cdef, 0x12_3456), 0xc3c8),
            (0, (0xff_ffff, 0xff_fffe), 0xff12),
            (0, (3, 5), 0xc00f),
        ] {
            assert_eq!(source_port(label, peers), port, "{label:#x}, {peers:#x?}, as in Linux");
        }
    }
}
