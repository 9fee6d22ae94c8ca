//! The paths of MODIFY_QP: addresses of Ethernet and InfiniBand ports, alternate paths, and static
//! rates.

use nix::errno::Errno;
use verbless_prm::{HcaCap, Init2rtrQpIn, Opcode, PortType, Rtr2rtsQpIn};

use super::attributes::{ALTERNATE, INIT, RTR, RTS, TO_INIT, TO_RTR, Values, and, destination};
use super::support::Device;
use super::verbs_rig::Verbs;

/// The offsets of `ib_uverbs_modify_qp`'s two paths.
const PRIMARY: usize = 0;
const SECONDARY: usize = 32;

/// The offset of a path's `static_rate`.
const fn rate_at(path: usize) -> usize {
    path + 29
}

/// An alternate path from port 1.
const OTHER: Values = &[(63, &[1]), (108, &[1])];

/// A queue pair of an Ethernet port whose GID table has one entry.
fn on_ethernet() -> Verbs {
    let mut caps = Verbs::new().fixture.device.caps;
    caps.set_roce(true).set_port_type(PortType::ETHERNET);
    let device = Device::with(caps, true);
    let mut roce = [0; 0x40];
    roce[0x2f] = 1;
    device.answer(Opcode::QUERY_HCA_CAP, 4 << 1 | 1, &roce);
    Verbs::on(device)
}

#[test]
fn ethernet_path_has_mac_and_source_port() {
    let verbs = on_ethernet();
    let (qp, ..) = verbs.rc();
    verbs.modify(qp, INIT, TO_INIT).expect("INIT");
    let mut to = destination(0);
    let set = |to: &[u8]| verbs.modify(qp, RTR, &and(&[(0, to)], TO_RTR));
    to[rate_at(PRIMARY)] = 1;
    assert_eq!(set(&to), Err(Errno::ETIMEDOUT), "no neighbour has this address");
    to[15] = 9;
    to[30] = 0;
    assert_eq!(set(&to), Err(Errno::EINVAL), "RoCE has no other addresses than GIDs");
    let reason = verbs.fixture.reason().expect("a reason");
    assert!(reason.contains("is_global") && reason.contains("needs a GRH"), "{reason}");
    to[30] = 1;
    for rate in [1, 24, 255] {
        to[rate_at(PRIMARY)] = rate;
        assert_eq!(set(&to), Err(Errno::EINVAL), "rate {rate}, which does not exist");
        let reason = verbs.fixture.reason().expect("a reason");
        assert!(reason.contains(&format!("static_rate {rate}")), "{reason}");
    }
    to[rate_at(PRIMARY)] = 0;
    set(&to).expect("RTR");
    let rtr: Init2rtrQpIn = verbs.last(Opcode::INIT2RTR_QP.0, Init2rtrQpIn::from_prefix);
    let path = rtr.qpc().primary_address_path();
    assert_eq!((path.rmac_47_32(), path.rmac_31_0()), (0x0200, 9));
    assert_eq!((path.eth_prio(), path.dscp(), path.tclass()), (1, 0x67 >> 2, 0x67));
    assert_eq!(path.udp_sport(), 0xe341, "of the flow label");
    assert_eq!((path.rlid(), path.sl(), path.grh()), (0, 0, false), "those of InfiniBand");
}

#[test]
fn shared_lid_path_requires_grh() {
    let mut device = Device::with(Verbs::new().fixture.device.caps, false);
    device.grh_required = true;
    let verbs = Verbs::on(device);
    let (qp, ..) = verbs.rc();
    verbs.modify(qp, INIT, TO_INIT).expect("INIT");
    let (mut lid, global) = (destination(0), destination(32));
    lid[30] = 0;
    let set = |mask, values: Values| verbs.modify(qp, mask, &and(values, TO_RTR));
    assert_eq!(set(RTR, &[(0, &lid)]), Err(Errno::EINVAL));
    let with_other = [(0, &global[..]), (32, &lid), (108, &[1])];
    assert_eq!(set(RTR | ALTERNATE, &with_other), Err(Errno::EINVAL));
    assert_eq!(verbs.fixture.device.count(Opcode::INIT2RTR_QP.0), 0);
    assert_eq!(set(RTR, &[(0, &global)]), Ok(()));
}

#[test]
fn ethernet_port_rejects_alternate_path() {
    let verbs = on_ethernet();
    let (qp, ..) = verbs.rc();
    verbs.modify(qp, INIT, TO_INIT).expect("INIT");
    let (mut to, mut other) = (destination(PRIMARY), destination(SECONDARY));
    (to[15], other[15]) = (9, 9);
    let values = and(&[(PRIMARY, &to), (SECONDARY, &other)], &and(TO_RTR, &[(108, &[1])]));
    assert_eq!(verbs.modify(qp, RTR | ALTERNATE, &values), Err(Errno::EINVAL));
    let reason = verbs.fixture.reason().expect("a reason");
    assert!(reason.contains("RoCE has no alternate paths"), "{reason}");
    assert_eq!(verbs.fixture.device.count(Opcode::INIT2RTR_QP.0), 0);
    assert_eq!(verbs.modify(qp, RTR, &values), Ok(()));
}

/// A queue pair whose device has the static rates of 100 Gb/s (code 3) and 10 Gb/s (code 8).
fn with_rates() -> Verbs {
    Verbs::with(|caps: &mut HcaCap| {
        caps.set_stat_rate_support(1 << 3 | 1 << 8);
    })
}

/// Rates (`ib_rate`) and their codes on that device, which gets the next lower rate that it has.
const RATES: [(u8, u8); 5] = [(0, 0), (2, 0), (3, 8), (15, 8), (16, 3)];

#[test]
fn static_rate_becomes_supported_code_in_each_transition() {
    for (rate, code) in RATES {
        let verbs = with_rates();
        let (qp, ..) = verbs.rc();
        let rate = [rate];
        let other = and(OTHER, &[(rate_at(SECONDARY), &rate)]);
        verbs.modify(qp, INIT, TO_INIT).expect("INIT");
        let rtr = and(&and(TO_RTR, &other), &[(rate_at(PRIMARY), &rate)]);
        verbs.modify(qp, RTR | ALTERNATE, &rtr).expect("RTR");
        let sent: Init2rtrQpIn = verbs.last(Opcode::INIT2RTR_QP.0, Init2rtrQpIn::from_prefix);
        assert_eq!(sent.qpc().primary_address_path().stat_rate().0, code, "{rate:?}");
        assert_eq!(sent.qpc().secondary_address_path().stat_rate().0, code, "{rate:?}");
        verbs.modify(qp, RTS | ALTERNATE, &and(&other, &[(96, &[3])])).expect("RTS");
        let sent: Rtr2rtsQpIn = verbs.last(Opcode::RTR2RTS_QP.0, Rtr2rtsQpIn::from_prefix);
        assert_eq!(sent.qpc().secondary_address_path().stat_rate().0, code, "{rate:?}");
        verbs.modify(qp, ALTERNATE, &other).expect("the QP stays in RTS");
        let sent: Rtr2rtsQpIn = verbs.last(Opcode::RTS2RTS_QP.0, Rtr2rtsQpIn::from_prefix);
        assert_eq!(sent.qpc().secondary_address_path().stat_rate().0, code, "{rate:?}");
    }
}

#[test]
fn nonexistent_static_rate_is_rejected_in_each_transition() {
    let verbs = with_rates();
    let (qp, ..) = verbs.rc();
    let refused = |mask: u32, values: Values, rate: u8| {
        let sent = verbs.fixture.device.commands.lock().expect("no panic").len();
        assert_eq!(verbs.modify(qp, mask, values), Err(Errno::EINVAL), "{mask:#x}, rate {rate}");
        let reason = verbs.fixture.reason().expect("a reason");
        assert!(reason.contains(&format!("static_rate {rate}")), "{reason}");
        assert_eq!(verbs.fixture.device.commands.lock().expect("no panic").len(), sent);
    };
    let each = |mask: u32, values: Values, paths: &[usize]| {
        for (rate, path) in
            [1, 24, 255].into_iter().flat_map(|it| paths.iter().map(move |&at| (it, at)))
        {
            let mask = if path == SECONDARY { mask | ALTERNATE } else { mask };
            refused(mask, &and(&and(values, OTHER), &[(rate_at(path), &[rate])]), rate);
        }
    };
    verbs.modify(qp, INIT, TO_INIT).expect("INIT");
    each(RTR, TO_RTR, &[PRIMARY, SECONDARY]);
    verbs.modify(qp, RTR, TO_RTR).expect("RTR");
    each(RTS, &[(96, &[3])], &[SECONDARY]);
    verbs.modify(qp, RTS, &[(96, &[3])]).expect("RTS");
    each(0, &[], &[SECONDARY]);
}
