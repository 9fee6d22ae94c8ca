//! A port's properties in words.
//!
//! Sources: Linux `include/rdma/ib_verbs.h` (`enum ib_port_width`, `enum ib_port_speed`, `enum
//! ib_port_phys_state`).

use verbless_devx::abi::core::{QueryPortResponse, port_state};
use verbless_devx::{GidTableEntry, LinkLayer, PortAttributes};

use super::chain::Finding;

/// Physical state of a port that was switched off.
const DISABLED: u8 = 3;

/// Physical state of a port whose link is up.
const LINK_UP: u8 = 5;

/// Says what the port is, and whether it carries traffic.
pub(super) fn describe(
    device: &str,
    netdevs: &[String],
    number: u8,
    port: &PortAttributes,
    gids: &[GidTableEntry],
) -> Finding {
    let raw = &port.raw;
    let (state, physical, speed) = (state(raw.state), physical(raw.phys_state), speed(raw));
    let link = match port.link_layer() {
        LinkLayer::InfiniBand => "InfiniBand",
        LinkLayer::Ethernet => "Ethernet",
        LinkLayer::Unspecified => "unknown link layer",
    };
    let own: Vec<_> = gids.iter().filter(|entry| entry.port == u32::from(number)).collect();
    let gid = match own.as_slice() {
        [] => "no GID".to_string(),
        [first, rest @ ..] => format!(
            "GID {} {} ({}){}",
            first.index,
            first.gid,
            first.kind,
            if rest.is_empty() { String::new() } else { format!(" and {} more", rest.len()) }
        ),
    };
    let mtu = port.active_mtu().map_or("an unknown MTU".into(), |bytes| format!("MTU {bytes}"));
    let is_infiniband = port.link_layer() == LinkLayer::InfiniBand;
    let lids = match is_infiniband {
        true => format!(", LID {}, subnet manager at LID {}", raw.lid, raw.sm_lid),
        false => String::new(),
    };
    let facts = format!(
        "port {number} of {device}: {link}, {state}, physical state {physical}, {speed}, {mtu}, \
         {gid}{lids}"
    );
    let advice = match raw.state {
        port_state::ACTIVE if own.is_empty() => match is_infiniband {
            true => "its GID table is empty: the kernel's log may say why",
            false if raw.gid_tbl_len == 0 => {
                "it has no GID table, so no RoCE: it is a port of an embedded switch (switchdev \
                 mode, usual on a BlueField's own cores), or RoCE is off (devlink's enable_roce); \
                 name the device of a sub-function or VF with --device (`rdma link` lists them)"
            }
            false => {
                "its network device is up, but has no GID: it may be a passive member of a bond, \
                 or in another network namespace (`ip -d link`)"
            }
        },
        port_state::ACTIVE => return Finding::Holds(facts),
        port_state::INIT if is_infiniband => {
            "no subnet manager has configured the port: start one (`opensm`) on this subnet, or \
             enable the switch's own"
        }
        port_state::ARMED => "the subnet manager has not activated the port yet: see its log",
        _ if is_infiniband && raw.phys_state == DISABLED => {
            "the port is disabled: enable it here or at the switch (`ibportstate LID PORT enable`)"
        }
        port_state::DOWN if is_infiniband && raw.phys_state == LINK_UP => {
            "the cable's link is up, but this port is kept down: on a virtual function the host \
             must give it GUIDs and a state (`ip link set IPOIB vf N node_guid GUID`, `port_guid \
             GUID`, `state auto`)"
        }
        _ if is_infiniband => {
            "there is no link: plug in the cable, and check the other end and the switch's port"
        }
        _ if device.contains("bond") => {
            return Finding::Fails(format!(
                "{facts}; messages need an ACTIVE port, and this one's state is that of the bond: \
                 bring it up (`ip link set BOND up`), and see its members in /proc/net/bonding"
            ));
        }
        _ => {
            let netdev = netdevs.first().map_or("NETDEV", String::as_str);
            return Finding::Fails(format!(
                "{facts}; messages need an ACTIVE port: bring the network device up (`ip link set \
                 {netdev} up`), and check the cable and the other end"
            ));
        }
    };
    Finding::Fails(format!("{facts}; {advice}"))
}

/// The state's name.
fn state(state: u8) -> String {
    match state {
        port_state::DOWN => "DOWN".into(),
        port_state::INIT => "INIT".into(),
        port_state::ARMED => "ARMED".into(),
        port_state::ACTIVE => "ACTIVE".into(),
        port_state::ACTIVE_DEFER => "ACTIVE_DEFER".into(),
        other => format!("in the unknown state {other}"),
    }
}

/// The physical state's name.
fn physical(state: u8) -> String {
    let name = match state {
        1 => "Sleep",
        2 => "Polling",
        3 => "Disabled",
        4 => "PortConfigurationTraining",
        5 => "LinkUp",
        6 => "LinkErrorRecovery",
        7 => "Phy Test",
        other => return format!("{other}, which has no name"),
    };
    name.into()
}

/// Lanes and speed of a lane, and their product in Gb/s.
fn speed(raw: &QueryPortResponse) -> String {
    let code = match raw.active_speed_ex {
        0 => u32::from(raw.active_speed),
        more => more,
    };
    match (lanes(raw.active_width), lane(code)) {
        (None, _) => format!("width code {}, which has no name", raw.active_width),
        (Some(lanes), None) => format!("{lanes}X, speed code {code}, which has no name"),
        (Some(lanes), Some((name, rate))) => {
            format!("{lanes}X {name} ({} Gb/s)", f64::from(lanes) * rate)
        }
    }
}

/// The speed of a port in Gb/s, from the codes of its active width and speed.
pub fn gigabits(active_width: u8, active_speed: u32) -> Option<f64> {
    Some(f64::from(lanes(active_width)?) * lane(active_speed)?.1)
}

fn lanes(active_width: u8) -> Option<u8> {
    Some(match active_width {
        1 => 1,
        2 => 4,
        4 => 8,
        8 => 12,
        16 => 2,
        _ => return None,
    })
}

/// The name of a lane's speed, and Gb/s.
fn lane(active_speed: u32) -> Option<(&'static str, f64)> {
    Some(match active_speed {
        1 => ("SDR", 2.5),
        2 => ("DDR", 5.0),
        4 => ("QDR", 10.0),
        8 => ("FDR10", 10.0),
        16 => ("FDR", 14.0),
        32 => ("EDR", 25.0),
        64 => ("HDR", 50.0),
        128 => ("NDR", 100.0),
        256 => ("XDR", 200.0),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use verbless_devx::{Gid, GidType};

    use super::*;

    fn finding(raw: QueryPortResponse, gids: usize) -> Finding {
        finding_of("mlx5_0", raw, gids)
    }

    fn finding_of(device: &str, raw: QueryPortResponse, gids: usize) -> Finding {
        let entry = |index| GidTableEntry {
            gid: Gid::default(),
            port: 1,
            index,
            kind: GidType::RoceV2,
            ifindex: 0,
        };
        let gids: Vec<_> = (0..gids as u32).map(entry).collect();
        describe(device, &["ens1".into()], 1, &PortAttributes { raw }, &gids)
    }

    const UP: QueryPortResponse = QueryPortResponse {
        state: port_state::ACTIVE,
        phys_state: 5,
        active_width: 2,
        active_speed: 64,
        active_mtu: 5,
        link_layer: 2,
        lid: 7,
        sm_lid: 1,
        port_cap_flags: 0,
        max_msg_sz: 0,
        bad_pkey_cntr: 0,
        qkey_viol_cntr: 0,
        gid_tbl_len: 256,
        pkey_tbl_len: 0,
        max_mtu: 0,
        lmc: 0,
        max_vl_num: 0,
        sm_sl: 0,
        subnet_timeout: 0,
        init_type_reply: 0,
        flags: 0,
        reserved: 0,
        port_cap_flags2: 0,
        reserved2: [0; 2],
        active_speed_ex: 0,
    };

    #[test]
    fn active_port_is_described_with_speed_gids_and_subnet_manager() {
        let Finding::Holds(text) = finding(UP, 3) else { panic!("the port is ACTIVE") };
        for part in ["Ethernet, ACTIVE", "LinkUp", "4X HDR (200 Gb/s)", "MTU 4096", "2 more"] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(!text.contains("LID"), "{text}");
        let Finding::Holds(text) = finding(QueryPortResponse { link_layer: 1, ..UP }, 1) else {
            panic!("the port is ACTIVE")
        };
        assert!(text.contains("LID 7, subnet manager at LID 1"), "{text}");
        let ndr = QueryPortResponse { active_speed_ex: 128, active_width: 16, ..UP };
        assert!(finding(ndr, 1).text().contains("2X NDR (200 Gb/s)"));
    }

    #[test]
    fn every_inactive_port_fails_with_its_advice() {
        use port_state::{ARMED, DOWN, INIT};
        for (state, link_layer, gids, expected) in [
            (DOWN, 2, 1, "`ip link set ens1 up`"),
            (INIT, 1, 1, "no subnet manager has configured"),
            (ARMED, 1, 1, "has not activated"),
            (port_state::ACTIVE, 2, 0, "is up, but has no GID"),
            (port_state::ACTIVE, 1, 0, "its GID table is empty"),
        ] {
            let found = finding(QueryPortResponse { state, link_layer, ..UP }, gids);
            let Finding::Fails(text) = found else { panic!("{state} {link_layer}: {found:?}") };
            assert!(text.contains(expected), "{text}");
        }
    }

    #[test]
    fn port_without_gid_table_is_of_a_switch() {
        let found = finding(QueryPortResponse { gid_tbl_len: 0, ..UP }, 0);
        let Finding::Fails(text) = found else { panic!("{found:?}") };
        for part in ["switchdev", "enable_roce", "--device", "`rdma link`"] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(!text.contains("network device is up"), "{text}");
    }

    #[test]
    fn infiniband_port_without_link_names_cable_or_switch() {
        let rows = [
            (2, "plug in the cable"),
            (DISABLED, "is disabled"),
            (LINK_UP, "`ip link set IPOIB vf N node_guid GUID`"),
        ];
        for (phys_state, expected) in rows {
            let down = QueryPortResponse { state: port_state::DOWN, phys_state, ..UP };
            let found = finding(QueryPortResponse { link_layer: 1, ..down }, 1);
            assert!(found.text().contains(expected), "{found:?}");
        }
    }

    #[test]
    fn port_of_a_bond_names_the_bond() {
        let down = QueryPortResponse { state: port_state::DOWN, ..UP };
        let found = finding_of("mlx5_bond_0", down, 1);
        assert!(found.text().contains("/proc/net/bonding"), "{found:?}");
        assert!(!found.text().contains("ens1"), "{found:?}");
    }

    #[test]
    fn unknown_codes_are_shown_as_numbers() {
        let odd = QueryPortResponse { active_width: 3, phys_state: 9, state: 77, ..UP };
        let text = finding(odd, 1).text().to_string();
        for part in ["width code 3", "physical state 9", "unknown state 77"] {
            assert!(text.contains(part), "{part}: {text}");
        }
        let odd = QueryPortResponse { active_speed: 3, ..UP };
        assert!(finding(odd, 1).text().contains("4X, speed code 3"));
    }
}
