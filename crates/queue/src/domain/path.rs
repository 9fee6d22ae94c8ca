//! The path from one of our ports to a peer: the source GID, and the destination.

use verbless_command::{Error, ErrorKind, Gid, GlobalRoute, Mtu, Path, Qpn, RoceVersion};
use verbless_devx::abi::core::{AhAttributes, GlobalRoute as AhRoute};
use verbless_devx::{Errno, GidTableEntry, GidType, LinkLayer, PortAttributes};

use super::options::ConnectOptions;
use super::peer::{FIRST_MULTICAST_LID, PeerAddress};
use super::protection::Domain;

impl ConnectOptions {
    /// The UDP source port towards `peer`; `local` is our QPN, 0 if unknown.
    fn source_port(&self, local: Qpn, peer: Qpn) -> u16 {
        self.udp_source_port.unwrap_or_else(|| {
            let flow = match self.flow_label {
                0 => flow_of(local, peer),
                label => label,
            };
            udp_source_port(flow)
        })
    }
}

/// A flow label for two queue pairs, 20 bits: the product of their numbers, folded; the same in
/// both directions. Linux's `rdma_calc_flow_label` computes the same.
fn flow_of(local: Qpn, peer: Qpn) -> u32 {
    // Without a local QPN, only the peer's QPN spreads the flows.
    let local = if local.0 == 0 { peer } else { local };
    let product = u64::from(local.0) * u64::from(peer.0);
    let folded = product ^ product >> 20;
    ((folded ^ folded >> 40) & 0xf_ffff) as u32
}

/// The UDP source port of a flow: its lower 14 bits with the upper six folded in, in the upper
/// quarter of all ports (Linux's `rdma_flow_label_to_udp_sport`).
fn udp_source_port(flow: u32) -> u16 {
    let low = flow & 0x3fff ^ flow >> 14 & 0x3f;
    verbless_command::ROCE_V2_FIRST_PORT | low as u16
}

impl Domain {
    /// The path to `peer`; on Ethernet the kernel resolves its MAC. All queue pairs of this domain
    /// can use it; each connection gets a UDP source port of its own.
    pub fn path(&self, peer: &PeerAddress, options: &ConnectOptions) -> Result<Path, Error> {
        let port = self.device.query_port(options.port)?;
        self.path_from(&port, Qpn(0), peer, options)
    }

    /// The path from our queue pair `local` to `peer`, and the path MTU.
    pub(super) fn resolve_peer_path(
        &self,
        local: Qpn,
        peer: &PeerAddress,
        options: &ConnectOptions,
    ) -> Result<(Path, Mtu), Error> {
        let port = self.device.query_port(options.port)?;
        let path = self.path_from(&port, local, peer, options)?;
        Ok((path, path_mtu(&port, options)?.min(peer.mtu)))
    }

    fn path_from(
        &self,
        port: &PortAttributes,
        local: Qpn,
        peer: &PeerAddress,
        options: &ConnectOptions,
    ) -> Result<Path, Error> {
        let ethernet = port.link_layer() == LinkLayer::Ethernet;
        if ethernet != peer.ethernet {
            let name = |ethernet| if ethernet { "Ethernet" } else { "InfiniBand" };
            let hint = format!(
                "the peer's port is {}, port {} is {}: choose ports of one fabric",
                name(peer.ethernet),
                options.port,
                name(ethernet)
            );
            return Err(Error::new(ErrorKind::InvalidInput, "resolving the path to a peer", hint));
        }
        let level = options.service_level.unwrap_or(peer.service_level);
        if ethernet {
            return self.roce_path(local, peer, level, options);
        }
        let router = self.router_towards(peer, options)?;
        let grh = needs_grh(port) || peer.grh_required || router.is_some();
        if grh && peer.gid.lacks_interface_id() {
            let hint = "the path needs a global route (GRH), and the peer's address has no GID: \
                        take one of the peer's port that has an interface id";
            return Err(Error::new(ErrorKind::InvalidInput, "resolving the path to a peer", hint));
        }
        Ok(Path::InfiniBand {
            dlid: router.unwrap_or(peer.lid),
            sl: level,
            source_path_bits: 0,
            grh: grh.then(|| route(peer.gid, options.gid_index.unwrap_or(0), options)),
        })
    }

    /// The LID of the router towards a peer in another InfiniBand subnet; `None` for one in ours.
    fn router_towards(
        &self,
        peer: &PeerAddress,
        options: &ConnectOptions,
    ) -> Result<Option<u16>, Error> {
        if peer.gid == Gid::default() {
            return Ok(None);
        }
        // A port without a GID has no subnet prefix to compare.
        let Some(own) = self.infiniband_gid(options)? else { return Ok(None) };
        router(own, peer.gid, options)
    }

    /// Our GID on an InfiniBand port; `None` if the options name no index and entry 0 is not
    /// in use.
    ///
    /// # Errors
    /// The index of the options is not in use.
    pub(super) fn infiniband_gid(&self, options: &ConnectOptions) -> Result<Option<Gid>, Error> {
        let table = self.device.gid_table()?;
        let index = options.gid_index.unwrap_or(0).into();
        let port = options.port.into();
        match table.iter().find(|entry| entry.port == port && entry.index == index) {
            Some(entry) => Ok(Some(entry.gid)),
            None if options.gid_index.is_none() => Ok(None),
            None => {
                let none = "the port has no GID: is there a subnet manager?";
                Err(no_such_gid(&table, options, none))
            }
        }
    }

    /// Our source GID for RoCE packets, and its index.
    pub(super) fn roce_gid(
        &self,
        options: &ConnectOptions,
    ) -> Result<(Gid, u8, RoceVersion), Error> {
        let table = self.device.gid_table()?;
        let mut ours = table.iter().filter(|entry| entry.port == options.port.into());
        let found = match options.gid_index {
            Some(index) => ours.find(|entry| entry.index == index.into()),
            None => ours.min_by_key(|entry| rank(entry)),
        };
        let usable = found.and_then(|entry| {
            let version = match entry.kind {
                GidType::RoceV1 => RoceVersion::V1,
                _ => RoceVersion::V2,
            };
            Some((entry.gid, u8::try_from(entry.index).ok()?, version))
        });
        usable.ok_or_else(|| {
            let none =
                "the port has no GID: bring its network interface up, and give it an address";
            no_such_gid(&table, options, none)
        })
    }

    fn roce_path(
        &self,
        local: Qpn,
        peer: &PeerAddress,
        priority: u8,
        options: &ConnectOptions,
    ) -> Result<Path, Error> {
        let (own, index, version) = self.roce_gid(options)?;
        let route = route(peer.gid, index, options);
        if version == RoceVersion::V2 && is_ipv4(&own) != is_ipv4(&peer.gid) {
            let hint = format!(
                "our GID {own} and the peer's {} are not both IPv4 or IPv6: choose matching ones \
                 with gid_index",
                peer.gid
            );
            return Err(Error::new(ErrorKind::InvalidInput, "resolving the path to a peer", hint));
        }
        let ah = self
            .device
            .create_ah(
                &self.pd,
                &AhAttributes {
                    grh: AhRoute {
                        dgid: peer.gid.0,
                        flow_label: route.flow_label,
                        sgid_index: route.sgid_index,
                        hop_limit: route.hop_limit,
                        traffic_class: route.traffic_class,
                        ..Default::default()
                    },
                    is_global: 1,
                    port_num: options.port,
                    ..Default::default()
                },
            )
            .map_err(|error| unresolved(error, &peer.gid, &own))?;
        let destination_mac = ah.destination_mac().ok_or_else(|| {
            Error::new(
                ErrorKind::InvalidResponse,
                "CREATE_AH",
                "the kernel did not return the destination MAC; Linux 4.10 or newer is needed",
            )
        })?;
        let udp_source_port = options.source_port(local, peer.qpn);
        Ok(Path::Roce { version, route, destination_mac, udp_source_port, priority })
    }
}

/// The error for a GID that is not in the port's table; `none` is its hint if the table is empty.
fn no_such_gid(table: &[GidTableEntry], options: &ConnectOptions, none: &str) -> Error {
    let attempted = match options.gid_index {
        Some(index) => format!("choosing GID {index} of port {}", options.port),
        None => format!("choosing a GID of port {}", options.port),
    };
    let ours = table.iter().filter(|entry| entry.port == options.port.into());
    let indexes: Vec<_> = ours.map(|entry| entry.index.to_string()).collect();
    let hint = match indexes.as_slice() {
        [] => none.to_owned(),
        _ => format!("the port has GIDs at {}", indexes.join(", ")),
    };
    Error::new(ErrorKind::InvalidInput, attempted, hint)
}

/// The LID of the router from the subnet of GID `own` to that of `peer`; `None` if it is the same.
fn router(own: Gid, peer: Gid, options: &ConnectOptions) -> Result<Option<u16>, Error> {
    if own.0[..8] == peer.0[..8] {
        return Ok(None);
    }
    let refuse = |hint: String| {
        Err(Error::new(ErrorKind::InvalidInput, "resolving the path to a peer", hint))
    };
    let Some(lid) = options.router_lid else {
        return refuse(format!(
            "the peer's GID {peer} is in another subnet than ours, {own}: set router_lid to the \
             LID of the router, as the path record says it (saquery PathRecord)"
        ));
    };
    if lid == 0 || lid >= FIRST_MULTICAST_LID {
        return refuse(format!(
            "router_lid {lid:#x} is not a unicast LID: those are 0x1 to 0xbfff"
        ));
    }
    if options.hop_limit < 2 {
        let hops = options.hop_limit;
        return refuse(format!(
            "the peer is in another subnet, and hop_limit {hops} lets no packet through a router: \
             set 2 or more"
        ));
    }
    Ok(Some(lid))
}

/// The route with the fields of the options.
fn route(dgid: Gid, sgid_index: u8, options: &ConnectOptions) -> GlobalRoute {
    GlobalRoute {
        dgid,
        sgid_index,
        hop_limit: options.hop_limit,
        traffic_class: options.traffic_class,
        flow_label: options.flow_label,
    }
}

/// Whether the port's packets need a GRH. A virtual port does, because it shares its LID.
pub(super) fn needs_grh(port: &PortAttributes) -> bool {
    port.link_layer() != LinkLayer::Ethernet && port.is_grh_required()
}

/// The path MTU: the port's, or that of the options, which must not exceed the port's.
pub(super) fn path_mtu(port: &PortAttributes, options: &ConnectOptions) -> Result<Mtu, Error> {
    let bytes = port.active_mtu().unwrap_or(1024);
    let active = Mtu::of_bytes(bytes).unwrap_or(Mtu::B1024);
    match options.mtu {
        Some(mtu) if mtu > active => Err(Error::new(
            ErrorKind::InvalidInput,
            format!("choosing a path MTU of {} bytes", mtu.bytes()),
            format!(
                "the active MTU of port {} is {bytes}: choose at most that, or raise the MTU of \
                 its network interface or subnet",
                options.port
            ),
        )),
        Some(mtu) => Ok(mtu),
        None => Ok(active),
    }
}

/// The order of choice among our GIDs: routable ones first, RoCE v1 last, because it stays on its
/// link.
fn rank(entry: &GidTableEntry) -> (u8, u32) {
    let sort = match entry.kind {
        GidType::RoceV2 if !is_link_local(&entry.gid) => 0,
        GidType::RoceV2 => 1,
        _ => 2,
    };
    (sort, entry.index)
}

/// fe80::/10, or 169.254.0.0/16 as IPv4 in IPv6.
fn is_link_local(gid: &Gid) -> bool {
    let Gid(bytes) = gid;
    (bytes[0] == 0xfe && bytes[1] & 0xc0 == 0x80) || (is_ipv4(gid) && bytes[12..14] == [169, 254])
}

/// ::ffff:a.b.c.d
fn is_ipv4(gid: &Gid) -> bool {
    gid.0[..10] == [0; 10] && gid.0[10..12] == [0xff; 2]
}

/// Adds a hint to a failed CREATE_AH: the kernel resolves the MAC by its route and neighbour
/// tables.
fn unresolved(error: Error, peer: &Gid, own: &Gid) -> Error {
    let silent = [Errno::ETIMEDOUT, Errno::EHOSTUNREACH, Errno::ENETUNREACH, Errno::EHOSTDOWN];
    match error.errno() {
        Some(errno) if silent.contains(&errno) => error.with_hint(format!(
            "no neighbour answered for {peer}, asked from {own}: is the peer up, and is there a \
             route and a neighbour (`ip route get`, `ip neigh`, `ping` between the two addresses)?"
        )),
        _ => error.with_hint(format!("the destination is {peer}, the source {own}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gid(text: &str) -> Gid {
        Gid::parse(text).expect("a GID")
    }

    fn entry(index: u32, kind: GidType, text: &str) -> GidTableEntry {
        GidTableEntry { gid: gid(text), port: 1, index, kind, ifindex: 0 }
    }

    #[test]
    fn routable_gid_and_roce_v2_rank_first() {
        const LOCAL: &str = "fe80:0000:0000:0000:0200:00ff:fe00:0001";
        const LOCAL_4: &str = "0000:0000:0000:0000:0000:ffff:a9fe:0001";
        const IPV4: &str = "0000:0000:0000:0000:0000:ffff:c0a8:0001";
        const IPV6: &str = "2001:0db8:0000:0000:0000:0000:0000:0001";
        use GidType::{RoceV1, RoceV2};
        let table = [
            entry(0, RoceV1, LOCAL),
            entry(1, RoceV2, LOCAL),
            entry(2, RoceV2, LOCAL_4),
            entry(3, RoceV1, IPV4),
            entry(4, RoceV2, IPV4),
            entry(5, RoceV2, IPV6),
        ];
        for (count, best) in [(1, 0), (2, 1), (4, 1), (5, 4), (6, 4)] {
            let found = table[..count].iter().min_by_key(|entry| rank(entry)).expect("some");
            assert_eq!(found.index, best, "the best of the first {count} entries");
        }
    }

    #[test]
    fn path_to_another_subnet_uses_router_lid() {
        let own = gid("fe80:0000:0000:0000:0200:00ff:fe00:0001");
        let near = gid("fe80:0000:0000:0000:0200:00ff:fe00:0002");
        let far = gid("fe80:0000:0000:0001:0200:00ff:fe00:0002");
        let options = ConnectOptions::default();
        let routed = ConnectOptions { router_lid: Some(0x77), ..options };
        for options in [options, routed] {
            assert_eq!(router(own, near, &options).unwrap(), None);
        }
        assert_eq!(router(own, far, &routed).unwrap(), Some(0x77));
        let missing = router(own, far, &options).unwrap_err().to_string();
        assert!(missing.contains("router_lid") && missing.contains("another subnet"), "{missing}");
        for lid in [0, 0xc000] {
            let wrong = ConnectOptions { router_lid: Some(lid), ..routed };
            assert!(router(own, far, &wrong).unwrap_err().to_string().contains("router_lid"));
        }
        let short = router(own, far, &ConnectOptions { hop_limit: 1, ..routed });
        assert!(short.unwrap_err().to_string().contains("hop_limit 1"));
    }

    #[test]
    fn link_local_gid_is_fe80_or_169_254() {
        for text in [
            "fe80:0000:0000:0000:0200:00ff:fe00:0001",
            "febf:0000:0000:0000:0200:00ff:fe00:0001",
            "0000:0000:0000:0000:0000:ffff:a9fe:ff01",
        ] {
            assert!(is_link_local(&gid(text)), "{text}");
        }
        for text in [
            "fec0:0000:0000:0000:0200:00ff:fe00:0001",
            "2080:0000:0000:0000:0200:00ff:fe00:0001",
            "0000:0000:0000:0000:0000:ffff:a9fd:0001",
            "0000:0000:0000:0000:0000:0000:a9fe:0001",
            "0001:0000:0000:0000:0000:ffff:a9fe:0001",
        ] {
            assert!(!is_link_local(&gid(text)), "{text}");
        }
    }

    #[test]
    fn udp_source_port_is_symmetric_in_qpns() {
        let options = ConnectOptions::default();
        let mut seen = std::collections::BTreeSet::new();
        for qpn in 0x100..0x200 {
            let there = options.source_port(Qpn(qpn), Qpn(qpn + 0x77));
            assert_eq!(there, options.source_port(Qpn(qpn + 0x77), Qpn(qpn)));
            assert!(there >= verbless_command::ROCE_V2_FIRST_PORT);
            seen.insert(there);
        }
        assert!(seen.len() > 200, "256 pairs share {} ports", seen.len());
        // Two values of Linux's formula.
        assert_eq!(options.source_port(Qpn(0x11), Qpn(0x11)), 0xc121);
        assert_eq!(options.source_port(Qpn(0x12345), Qpn(0x54321)), 0xc509);
    }

    #[test]
    fn unresolved_neighbour_error_names_both_gids() {
        let (peer, own) =
            ("fe80:0000:0000:0000:0000:0000:0000:0002", "fe80:0000:0000:0000:0000:0000:0000:0001");
        let failed = |errno| {
            let error = Error::new(ErrorKind::Refused, "CREATE_AH", "").with_errno(errno);
            unresolved(error, &gid(peer), &gid(own))
        };
        for errno in [Errno::ETIMEDOUT, Errno::EHOSTUNREACH, Errno::ENETUNREACH, Errno::EHOSTDOWN] {
            let error = failed(errno);
            assert_eq!(error.errno(), Some(errno));
            let text = error.to_string();
            for word in ["CREATE_AH", "no neighbour answered", "ip route get", "ip neigh"] {
                assert!(text.contains(word), "{text:?} does not say {word}");
            }
        }
        let refused = failed(Errno::EINVAL).to_string();
        assert!(!refused.contains("no neighbour answered"), "{refused:?}");
        let (peer, own) = (gid(peer).to_string(), gid(own).to_string());
        assert!(refused.contains(&peer) && refused.contains(&own), "{refused:?}");
    }

    #[test]
    fn explicit_flow_label_or_source_port_wins() {
        let labelled = ConnectOptions { flow_label: 0x4_0003, ..Default::default() };
        assert_eq!(labelled.source_port(Qpn(1), Qpn(2)), 0xc000 | (3 ^ 0x10));
        let chosen = ConnectOptions { udp_source_port: Some(0xd123), ..labelled };
        assert_eq!(chosen.source_port(Qpn(1), Qpn(2)), 0xd123);
    }
}
