//! The path to a peer: as the address path of a queue pair's context, or as the address vector of a
//! datagram.

use verbless_devx::{Error, Gid};
use verbless_prm::{AddressPath, DatagramSegment};

use crate::error::invalid;

/// The fields of a global route header (GRH). On InfiniBand it routes a packet beyond its subnet;
/// on RoCE every packet has it (v1), or an IP header with the same fields (v2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GlobalRoute {
    /// Destination GID.
    pub dgid: Gid,
    /// Index of the source GID in the port's table.
    pub sgid_index: u8,
    /// Hops that the packet may take; 1 stays on the link, 64 is usual.
    pub hop_limit: u8,
    /// Traffic class; its upper six bits are the DSCP of a RoCE v2 packet.
    pub traffic_class: u8,
    /// Flow label, 20 bits.
    pub flow_label: u32,
}

impl GlobalRoute {
    /// A route to `dgid` from source `sgid_index`: hop limit 64, traffic class and flow label 0.
    pub const fn new(dgid: Gid, sgid_index: u8) -> Self {
        Self { dgid, sgid_index, hop_limit: 64, traffic_class: 0, flow_label: 0 }
    }
}

/// The RoCE version of a source GID.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RoceVersion {
    /// RoCE v1: an Ethertype of its own, one broadcast domain.
    V1,
    /// RoCE v2: over UDP and IP.
    V2,
}

/// The path from a queue pair to its peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Path {
    /// Over an InfiniBand port.
    InfiniBand {
        /// Destination LID.
        dlid: u16,
        /// Service level, 0 to 15.
        sl: u8,
        /// Source path bits: the low bits of the source LID, if the port has several (LMC).
        source_path_bits: u8,
        /// Global route header, if the packet is to leave the subnet.
        grh: Option<GlobalRoute>,
    },
    /// Over an Ethernet port.
    Roce {
        /// Version of the source GID, from the port's GID table.
        version: RoceVersion,
        /// Source and destination GIDs, and the fields of the GRH or IP header.
        route: GlobalRoute,
        /// MAC of the destination or of the first hop to it, as CREATE_AH resolves it.
        destination_mac: [u8; 6],
        /// UDP source port of RoCE v2 (0xc000 to 0xffff): spreads flows over links.
        udp_source_port: u16,
        /// 802.1p priority, 0 to 7.
        priority: u8,
    },
    /// Force loopback to this function, within the device: it needs no LID, GID or MAC, and no
    /// active port. For RC queue pairs of devices that [support
    /// it](crate::Device::forces_loopback).
    Loopback,
}

/// The lowest UDP source port that RoCE v2 uses.
pub const ROCE_V2_FIRST_PORT: u16 = 0xc000;

impl Path {
    /// A path within an InfiniBand subnet, service level 0.
    pub const fn to_lid(dlid: u16) -> Self {
        Self::InfiniBand { dlid, sl: 0, source_path_bits: 0, grh: None }
    }

    /// A RoCE v2 path with priority 0 and the first UDP source port.
    pub const fn to_gid(route: GlobalRoute, destination_mac: [u8; 6]) -> Self {
        Self::Roce {
            version: RoceVersion::V2,
            route,
            destination_mac,
            udp_source_port: ROCE_V2_FIRST_PORT,
            priority: 0,
        }
    }

    /// The reason why this path cannot be encoded, if any: a value does not fit its field.
    pub(crate) fn problem(&self) -> Option<&'static str> {
        let route = match self {
            Self::InfiniBand { sl: 16.., .. } => return Some("service level above 15"),
            Self::InfiniBand { source_path_bits: 128.., .. } => {
                return Some("source path bits above 127");
            }
            Self::InfiniBand { dlid: 0, .. } => {
                return Some("destination LID 0: the peer's port has no LID yet");
            }
            Self::InfiniBand { grh, .. } => grh.as_ref(),
            Self::Roce { priority: 8.., .. } => return Some("Ethernet priority above 7"),
            Self::Roce { version: RoceVersion::V2, udp_source_port, .. }
                if *udp_source_port < ROCE_V2_FIRST_PORT =>
            {
                return Some("UDP source port below 0xc000");
            }
            Self::Roce { route, .. } => Some(route),
            Self::Loopback => None,
        };
        match route {
            Some(route) if route.flow_label > 0xf_ffff => Some("flow label above 20 bits"),
            _ => None,
        }
    }

    /// The path as an address vector of datagrams, without a Q_Key and a queue pair.
    ///
    /// # Errors
    /// A field that does not fit.
    pub fn address_vector(&self) -> Result<DatagramSegment, Error> {
        if let Some(problem) = self.problem() {
            return Err(invalid("making an address vector", problem));
        }
        let mut vector = DatagramSegment::zeroed();
        vector.set_ext(true);
        let route = match self {
            Self::InfiniBand { dlid, sl, source_path_bits, grh } => {
                vector.set_rlid(*dlid).set_sl(*sl).set_mlid(*source_path_bits);
                vector.set_grh(grh.is_some());
                grh.as_ref()
            }
            // RoCE leaves the GRH bit 0: its packets always have a GRH or an IP header.
            Self::Roce { version, route, destination_mac, udp_source_port, priority } => {
                vector.set_rmac(destination_mac).set_sl(*priority << 1);
                if *version == RoceVersion::V2 {
                    vector.set_udp_sport(*udp_source_port);
                }
                Some(route)
            }
            Self::Loopback => {
                let problem = "force loopback is for connected queue pairs";
                return Err(invalid("making an address vector", problem));
            }
        };
        if let Some(route) = route {
            vector
                .set_tclass(route.traffic_class)
                .set_hop_limit(route.hop_limit)
                .set_src_addr_index(route.sgid_index)
                .set_flow_label(route.flow_label)
                .set_rgid(&route.dgid.0);
        }
        Ok(vector)
    }

    /// Writes the path into a context. `port` is the local port, counted from 1.
    pub(crate) fn emit(&self, port: u8, context: &mut AddressPath) {
        context.set_vhca_port_num(port);
        match self {
            Self::InfiniBand { dlid, sl, source_path_bits, grh } => {
                context.set_rlid(*dlid).set_sl(*sl).set_mlid(*source_path_bits);
                if let Some(route) = grh {
                    context.set_grh(true);
                    emit_route(route, context);
                }
            }
            Self::Roce { version, route, destination_mac: m, udp_source_port, priority } => {
                context
                    .set_rmac_47_32(u16::from_be_bytes([m[0], m[1]]))
                    .set_rmac_31_0(u32::from_be_bytes([m[2], m[3], m[4], m[5]]))
                    .set_eth_prio(*priority);
                if *version == RoceVersion::V2 {
                    context.set_udp_sport(*udp_source_port).set_dscp(route.traffic_class >> 2);
                }
                emit_route(route, context);
            }
            Self::Loopback => {
                context.set_fl(true);
            }
        }
    }
}

fn emit_route(route: &GlobalRoute, context: &mut AddressPath) {
    context
        .set_src_addr_index(route.sgid_index)
        .set_hop_limit(route.hop_limit)
        .set_tclass(route.traffic_class)
        .set_flow_label(route.flow_label)
        .set_rgid_rip(&route.dgid.0);
}

#[cfg(test)]
mod tests {
    use super::*;

    const GID: Gid = Gid([0xfe, 0x80, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0xff, 0xfe, 0, 0, 1]);

    #[test]
    fn ib_path_without_grh_sets_lid_and_sl() {
        let mut context = AddressPath::zeroed();
        let path = Path::InfiniBand { dlid: 0x1234, sl: 5, source_path_bits: 3, grh: None };
        path.emit(2, &mut context);
        assert_eq!((context.rlid(), context.sl(), context.mlid()), (0x1234, 5, 3));
        assert_eq!((context.grh(), context.vhca_port_num()), (false, 2));
        assert_eq!(context.rgid_rip(), &[0; 16]);
    }

    #[test]
    fn service_level_has_4_bits() {
        for sl in 0..=15 {
            let path = Path::InfiniBand { dlid: 1, sl, source_path_bits: 0, grh: None };
            let mut context = AddressPath::zeroed();
            path.emit(1, &mut context);
            let vector = path.address_vector().expect("a path");
            assert_eq!((context.sl(), vector.sl()), (sl, sl));
            assert_eq!(vector.as_bytes()[12], sl, "`stat_rate_sl` of libmlx5: the lower half");
        }
    }

    #[test]
    fn loopback_path_sets_force_loopback_only() {
        let mut context = AddressPath::zeroed();
        Path::Loopback.emit(1, &mut context);
        let mut expected = AddressPath::zeroed();
        expected.set_vhca_port_num(1).set_fl(true);
        assert_eq!(context.as_bytes(), expected.as_bytes());
        assert_eq!(Path::Loopback.problem(), None);
        assert!(Path::Loopback.address_vector().is_err());
    }

    #[test]
    fn ib_path_with_grh_sets_global_route() {
        let mut context = AddressPath::zeroed();
        let mut route = GlobalRoute::new(GID, 1);
        route.flow_label = 0xf_ffff;
        Path::InfiniBand { dlid: 1, sl: 0, source_path_bits: 0, grh: Some(route) }
            .emit(1, &mut context);
        assert!(context.grh());
        assert_eq!((context.src_addr_index(), context.hop_limit()), (1, 64));
        assert_eq!((context.flow_label(), context.rgid_rip()), (0xf_ffff, &GID.0));
    }

    #[test]
    fn roce_path_sets_mac_udp_port_and_dscp() {
        let mut route = GlobalRoute::new(GID, 3);
        route.traffic_class = 0b1010_1100;
        let mac = [0x02, 0x11, 0x22, 0x33, 0x44, 0x55];
        let mut context = AddressPath::zeroed();
        Path::to_gid(route, mac).emit(1, &mut context);
        assert_eq!((context.rmac_47_32(), context.rmac_31_0()), (0x0211, 0x2233_4455));
        assert_eq!((context.udp_sport(), context.dscp()), (ROCE_V2_FIRST_PORT, 0b10_1011));
        assert!(!context.grh(), "the bit is InfiniBand's");

        let mut old = AddressPath::zeroed();
        let version = RoceVersion::V1;
        Path::Roce { version, route, destination_mac: mac, udp_source_port: 0, priority: 7 }
            .emit(1, &mut old);
        assert_eq!((old.udp_sport(), old.dscp(), old.eth_prio()), (0, 0, 7));
    }

    #[test]
    fn roce_av_has_priority_in_sl_bits_3_1() {
        for priority in 0..8 {
            let path = Path::Roce {
                version: RoceVersion::V2,
                route: GlobalRoute::new(GID, 3),
                destination_mac: [2, 0, 0, 0, 0, 1],
                udp_source_port: 0xd123,
                priority,
            };
            let vector = path.address_vector().expect("a path");
            assert_eq!(vector.sl(), priority << 1);
            assert_eq!((vector.udp_sport(), vector.src_addr_index()), (0xd123, 3));
            assert_eq!((vector.hop_limit(), vector.rgid()), (64, &GID.0));
            assert!(!vector.grh(), "the bit is InfiniBand's");
        }
    }

    #[test]
    fn invalid_path_field_is_named() {
        let roce = |udp_source_port, priority| Path::Roce {
            version: RoceVersion::V2,
            route: GlobalRoute::new(GID, 0),
            destination_mac: [0; 6],
            udp_source_port,
            priority,
        };
        let mut wide = GlobalRoute::new(GID, 0);
        wide.flow_label = 1 << 20;
        for (path, word) in [
            (Path::to_lid(0), "LID 0"),
            (Path::InfiniBand { dlid: 1, sl: 16, source_path_bits: 0, grh: None }, "level"),
            (Path::InfiniBand { dlid: 1, sl: 0, source_path_bits: 128, grh: None }, "path bits"),
            (roce(0xbfff, 0), "UDP"),
            (roce(0xc000, 8), "priority"),
            (Path::to_gid(wide, [0; 6]), "flow label"),
        ] {
            let problem = path.problem().unwrap_or("none");
            assert!(problem.contains(word), "{path:?}: {problem}");
        }
        assert_eq!(roce(0xffff, 7).problem(), None);
    }

    /// The address vector of a datagram to a queue pair.
    fn vector_of(path: &Path, q_key: u32, qpn: u32) -> DatagramSegment {
        let mut vector = path.address_vector().unwrap();
        vector.set_q_key(q_key).set_dqp_dct(qpn);
        vector
    }

    /// Compares with the bytes that libmlx5 builds from the same attributes: `mlx5_create_ah`, and
    /// the Q_Key and QPN that posting adds.
    #[test]
    fn ib_av_matches_libmlx5_bytes() {
        let mut grh = GlobalRoute::new(Gid(*b"the peer's gid.."), 3);
        (grh.traffic_class, grh.flow_label, grh.hop_limit) = (0x12, 0x3_4567, 9);
        let path = Path::InfiniBand { dlid: 0xbeef, sl: 5, source_path_bits: 2, grh: Some(grh) };
        let to = vector_of(&path, 0x1122_3344, 0x00ab_cdef);
        let mut expected = [0; 48];
        expected[..16].copy_from_slice(&[
            0x11, 0x22, 0x33, 0x44, 0, 0, 0, 0, 0x80, 0xab, 0xcd, 0xef, 0x05, 0x02, 0xbe, 0xef,
        ]);
        expected[26..32].copy_from_slice(&[0x12, 9, 0x40, 0x33, 0x45, 0x67]);
        expected[32..].copy_from_slice(b"the peer's gid..");
        assert_eq!(to.as_bytes(), &expected);

        let plain = vector_of(&Path::to_lid(7), 2, 1);
        let mut expected = [0; 48];
        expected[..16].copy_from_slice(&[0, 0, 0, 2, 0, 0, 0, 0, 0x80, 0, 0, 1, 0, 0, 0, 7]);
        assert_eq!(plain.as_bytes(), &expected);
    }

    #[test]
    fn roce_av_has_mac_and_udp_port_without_grh_bit() {
        let route = GlobalRoute::new(Gid(*b"over ethernet..."), 1);
        let path = Path::Roce {
            version: RoceVersion::V2,
            route,
            destination_mac: [2, 3, 4, 5, 6, 7],
            udp_source_port: 0xc123,
            priority: 3,
        };
        let to = vector_of(&path, 0, 1);
        let bytes = to.as_bytes();
        assert_eq!(bytes[12..16], [0x06, 0, 0xc1, 0x23], "the priority is in bits 3:1");
        assert_eq!(bytes[20..32], [2, 3, 4, 5, 6, 7, 0, 64, 0, 0x10, 0, 0]);
    }
}
