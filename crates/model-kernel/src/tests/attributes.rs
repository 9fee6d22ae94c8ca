//! Attributes of verbs, one by one: the command field that each sets, the values that the kernel
//! refuses, and the answer field that each comes from.

use std::sync::atomic::Ordering;

use nix::errno::Errno;
use verbless_prm::{
    AtomicMode, CqeSize, CreateCqIn, CreateMkeyIn, CreateQpIn, CreateRmpIn, Init2rtrQpIn, Opcode,
    PathMigrationState, PkeyTableSize, PortType, QpContext, QueryAdapterOut,
    QueryHcaVportContextOut, QueryQpOut, QueryRmpOut, Rst2initQpIn, Rtr2rtsQpIn, ServiceType,
};

use super::super::client::Capability;
use super::support::Device;
use super::verbs_rig::{Verbs, fields, word};

/// `ib_qp_attr_mask`.
const STATE: u32 = 1;
const CURRENT: u32 = 1 << 1;
const ACCESS: u32 = 1 << 3;
const PKEY: u32 = 1 << 4;
const PORT: u32 = 1 << 5;
const QKEY: u32 = 1 << 6;
const AV: u32 = 1 << 7;
const MTU: u32 = 1 << 8;
const TIMEOUT: u32 = 1 << 9;
const RETRIES: u32 = 1 << 10;
const RNR_RETRY: u32 = 1 << 11;
const RQ_PSN: u32 = 1 << 12;
const READS: u32 = 1 << 13;
pub(super) const ALTERNATE: u32 = 1 << 14;
const RNR_TIMER: u32 = 1 << 15;
const SQ_PSN: u32 = 1 << 16;
const ANSWERS: u32 = 1 << 17;
const MIGRATION: u32 = 1 << 18;
const REMOTE: u32 = 1 << 20;
const RATE_LIMIT: u32 = 1 << 25;

pub(super) const INIT: u32 = STATE | ACCESS | PKEY | PORT;
pub(super) const RTR: u32 = STATE | AV | MTU | RQ_PSN | RNR_TIMER | ANSWERS | REMOTE;
pub(super) const RTS: u32 = STATE | TIMEOUT | RETRIES | RNR_RETRY | READS | SQ_PSN;

pub(super) type Values<'a> = &'a [(usize, &'a [u8])];

/// Values for INIT on port 1, and from there for RTR.
pub(super) const TO_INIT: Values = &[(96, &[1]), (104, &[1])];
pub(super) const TO_RTR: Values = &[(96, &[2]), (31, &[1]), (98, &[3])];

/// The values, with `more` overriding equal offsets.
pub(super) fn and<'a>(
    values: &[(usize, &'a [u8])],
    more: &[(usize, &'a [u8])],
) -> Vec<(usize, &'a [u8])> {
    values.iter().chain(more).copied().collect()
}

fn ud(verbs: &Verbs) -> u64 {
    let (cq, _) = verbs.plain_cq();
    let driver = verbs.qp_driver(8, 1 << 10);
    verbs.qp(4, (cq, cq), None, [4, 8, 1, 4, 0], &driver).expect("a QP").0
}

/// A destination with pairwise different bytes; it begins at `at`.
pub(super) fn destination(at: usize) -> Vec<u8> {
    let gid = std::array::from_fn::<u8, 16, _>(|byte| (at + byte) as u8 | 0x80);
    let rest = fields(
        &[4, 2, 2, 1, 1, 1, 1, 1, 1, 1, 1],
        &[0xfff1_2345, 0x0708 + at as u64, 0, 0, 61, 0x67, 0xf9, 0x8b, 0, 1, 1],
    );
    [&gid[..], &rest].concat()
}

#[test]
fn modify_qp_attributes_reach_qpc_fields() {
    let verbs = Verbs::new();
    let (qp, number, _) = verbs.rc();
    verbs.modify(qp, INIT, &and(TO_INIT, &[(92, &[5, 0]), (88, &[14])])).expect("INIT");
    let init: Rst2initQpIn = verbs.last(Opcode::RST2INIT_QP.0, Rst2initQpIn::from_prefix);
    assert_eq!(init.qpc().primary_address_path().pkey_index(), 5);
    assert_eq!((init.qpn(), init.qpc().st()), (number, ServiceType::RC));
    assert_eq!(init.qpc().pm_state(), PathMigrationState::MIGRATED);
    assert!(!init.qpc().rae() && !init.qpc().rre() && init.qpc().rwe(), "without depth");

    let (to, other) = (destination(0), destination(32));
    let values = and(
        TO_RTR,
        &[
            (0, &to),
            (32, &other),
            (76, &[0x21, 0x43, 0x65, 0xff]),
            (84, &[0x89, 0x67, 0x45, 0xff]),
            (94, &[9, 0]),
            (102, &[5]),
            (103, &[0xf3]),
            (108, &[1]),
            (109, &[0xea]),
        ],
    );
    verbs.modify(qp, RTR | ALTERNATE, &values).expect("RTR");
    let rtr: Init2rtrQpIn = verbs.last(Opcode::INIT2RTR_QP.0, Init2rtrQpIn::from_prefix);
    let qpc = rtr.qpc();
    assert_eq!((qpc.next_rcv_psn(), qpc.remote_qpn()), (0x65_4321, 0x45_6789));
    assert_eq!((qpc.log_rra_max(), qpc.min_rnr_nak(), qpc.log_ack_req_freq()), (3, 19, 8));
    assert!(qpc.rae() && qpc.rre() && qpc.rwe(), "the access flags of before");
    assert_eq!(qpc.atomic_mode(), AtomicMode::IB_SPEC);
    for (path, at) in [(qpc.primary_address_path(), 0), (qpc.secondary_address_path(), 32)] {
        assert_eq!(path.rgid_rip()[..], destination(at)[..16], "{at}");
        assert_eq!((path.flow_label(), path.rlid()), (0x1_2345, 0x0708 + at as u16));
        assert_eq!((path.src_addr_index(), path.hop_limit(), path.tclass()), (0, 61, 0x67));
        assert_eq!((path.sl(), path.mlid(), path.vhca_port_num()), (9, 0x0b, 1));
        assert!(path.grh());
    }
    let other = qpc.secondary_address_path();
    assert_eq!((other.pkey_index(), other.ack_timeout()), (9, 10));

    let values = [
        (96, &[3][..]),
        (80, &[1, 2, 3, 0xff]),
        (101, &[9]),
        (105, &[0xec]),
        (106, &[0xfd]),
        (107, &[0xfe]),
        (99, &[1]),
    ];
    verbs.modify(qp, RTS | MIGRATION, &values).expect("RTS");
    let rts: Rtr2rtsQpIn = verbs.last(Opcode::RTR2RTS_QP.0, Rtr2rtsQpIn::from_prefix);
    let qpc = rts.qpc();
    assert_eq!((qpc.next_send_psn(), qpc.log_sra_max()), (0x03_0201, 4));
    assert_eq!((qpc.retry_count(), qpc.rnr_retry(), qpc.pm_state().0), (5, 6, 1));
    assert_eq!(qpc.primary_address_path().ack_timeout(), 12);
    for mask in [AV, AV | PORT, STATE | AV] {
        let values = [(31, &[1][..]), (104, &[1]), (96, &[3])];
        let moved = verbs.modify(qp, mask, &values);
        assert_eq!(moved, Err(Errno::EINVAL), "{mask:#x}: its path stays the same");
    }
    for (migration, state) in [(0, PathMigrationState::MIGRATED.0), (1, 1), (2, 0)] {
        verbs.modify(qp, MIGRATION, &[(99, &[migration])]).expect("the QP stays in RTS");
        let rts: Rst2initQpIn = verbs.last(Opcode::RTS2RTS_QP.0, Rst2initQpIn::from_prefix);
        assert_eq!(rts.qpc().pm_state().0, state);
    }
}

#[test]
fn depths_are_rounded_up_to_powers_of_two() {
    for (depth, log) in [(0, 0), (1, 0), (2, 1), (3, 2), (4, 2), (8, 3), (9, 4), (16, 4)] {
        let verbs = Verbs::new();
        let (qp, ..) = verbs.rc();
        verbs.modify(qp, INIT, TO_INIT).expect("INIT");
        verbs.modify(qp, RTR, &and(TO_RTR, &[(102, &[depth])])).expect("RTR");
        let rtr: Init2rtrQpIn = verbs.last(Opcode::INIT2RTR_QP.0, Init2rtrQpIn::from_prefix);
        assert_eq!(rtr.qpc().log_rra_max(), log, "{depth}");
        verbs.modify(qp, RTS, &[(96, &[3]), (101, &[depth])]).expect("RTS");
        let rts: Rtr2rtsQpIn = verbs.last(Opcode::RTR2RTS_QP.0, Rtr2rtsQpIn::from_prefix);
        assert_eq!(rts.qpc().log_sra_max(), log, "{depth}");
    }
}

#[test]
fn modify_qp_on_dead_device_reaches_err_and_reset_only() {
    const TO_RESET: Values = &[(96, &[0])];
    const TO_ERR: Values = &[(96, &[6])];
    let verbs = Verbs::new();
    let (qp, ..) = verbs.rc();
    verbs.modify(qp, INIT, TO_INIT).expect("INIT");
    verbs.fixture.device.alive.store(false, Ordering::Relaxed);
    assert_eq!(verbs.modify(qp, INIT, TO_INIT), Err(Errno::ENOLINK), "INIT2INIT");
    assert_eq!(verbs.modify(qp, STATE, TO_ERR), Ok(()));
    assert_eq!(verbs.modify(qp, STATE, TO_RESET), Ok(()));
    assert_eq!(verbs.modify(qp, INIT, TO_INIT), Err(Errno::ENOLINK), "RST2INIT");
}

#[test]
fn modify_qp_rejects_out_of_range_values() {
    let verbs = Verbs::new();
    let refused = |step: u32, qp: u64, mask: u32, values: Values, errno: Errno, case: &str| {
        let sent = verbs.fixture.device.commands.lock().expect("no panic").len();
        assert_eq!(verbs.modify(qp, mask, values), Err(errno), "{case}, step {step}");
        assert_eq!(verbs.fixture.device.commands.lock().expect("no panic").len(), sent, "{case}");
    };
    let (qp, ..) = verbs.rc();
    let init: &[(&str, u32, Values, Errno)] = &[
        ("port 0", INIT, &[(96, &[1]), (104, &[0])], Errno::EINVAL),
        ("a port too many", INIT, &[(96, &[1]), (104, &[2])], Errno::EINVAL),
        ("a P_Key too many", INIT, &[(96, &[1]), (104, &[1]), (92, &[128, 0])], Errno::EINVAL),
        ("a state too many", INIT, &[(96, &[7]), (104, &[1])], Errno::EINVAL),
        ("a rate limit", INIT | RATE_LIMIT, TO_INIT, Errno::EINVAL),
    ];
    for (case, mask, values, errno) in init {
        refused(0, qp, *mask, values, *errno, case);
    }
    verbs.modify(qp, INIT, &and(TO_INIT, &[(92, &[127, 0])])).expect("INIT");
    let rtr: &[(&str, u32, Values)] = &[
        ("MTU 0", RTR, &[(98, &[0])]),
        ("MTU 6", RTR, &[(98, &[6])]),
        ("a depth too many", RTR, &[(102, &[17])]),
        ("port 0", RTR, &[(31, &[0])]),
        ("rate 1", RTR, &[(29, &[1])]),
        ("rate 24", RTR, &[(29, &[24])]),
        ("a GID past the table", RTR, &[(30, &[1]), (24, &[255])]),
        ("an alternate port 0", RTR | ALTERNATE, &[(108, &[0])]),
        ("an alternate port too many", RTR | ALTERNATE, &[(63, &[2]), (108, &[2])]),
        ("an alternate path of another port", RTR | ALTERNATE, &[(63, &[0]), (108, &[1])]),
    ];
    for (case, mask, values) in rtr {
        refused(1, qp, *mask, &and(TO_RTR, values), Errno::EINVAL, case);
    }
    let empty = &and(TO_RTR, &[(30, &[1]), (24, &[1])]);
    refused(1, qp, RTR, empty, Errno::ENODATA, "a GID that is not there");
    let least: Values = &[(98, &[1]), (29, &[2]), (102, &[16])];
    verbs.modify(qp, RTR, &and(TO_RTR, least)).expect("RTR");
    refused(2, qp, RTS, &[(96, &[3]), (101, &[17])], Errno::EINVAL, "a depth too many");
    refused(2, qp, RTS | CURRENT, &[(96, &[3]), (97, &[7])], Errno::EINVAL, "a state too many");

    let (most, ..) = verbs.rc();
    verbs.modify(most, INIT, TO_INIT).expect("INIT");
    let values: Values = &[(98, &[5]), (29, &[23]), (63, &[1]), (108, &[1])];
    verbs.modify(most, RTR | ALTERNATE, &and(TO_RTR, values)).expect("RTR");

    // In RTS an address may change the port; if both are given, they must agree.
    let ud = ud(&verbs);
    let privileged: Values = &[(96, &[1]), (104, &[1]), (75, &[0x80])];
    let mask = STATE | PKEY | PORT | QKEY;
    refused(3, ud, mask, privileged, Errno::EPERM, "a privileged Q_Key");
    let capable = 1 << Capability::NetRaw as u64;
    verbs.fixture.client.capabilities.store(capable, std::sync::atomic::Ordering::Relaxed);
    verbs.modify(ud, mask, privileged).expect("INIT");
    let init: Rst2initQpIn = verbs.last(Opcode::RST2INIT_QP.0, Rst2initQpIn::from_prefix);
    assert_eq!((init.qpc().q_key(), init.qpc().st()), (0x8000_0000, ServiceType::UD));
    assert_eq!((init.qpc().mtu().0, init.qpc().log_msg_max()), (5, 12));
}

#[test]
fn atomics_need_the_capability() {
    let verbs = Verbs::with(|caps| {
        caps.set_atomic(false);
    });
    let (qp, ..) = verbs.rc();
    verbs.modify(qp, INIT, &and(TO_INIT, &[(88, &[8])])).expect("nothing is answered yet");
    let values = and(TO_RTR, &[(102, &[1])]);
    assert_eq!(verbs.modify(qp, RTR, &values), Err(Errno::EOPNOTSUPP));
    verbs.modify(qp, RTR | ACCESS, &and(&values, &[(88, &[4])])).expect("reads alone");
}

/// Fills a QP context; every field that verbs report has a different value.
fn context(qpc: &mut QpContext) {
    qpc.set_q_key(0x0102_0304).set_next_rcv_psn(0x11_2233).set_next_send_psn(0x44_5566);
    qpc.set_remote_qpn(0x77_8899).set_rwe(true).set_rae(true).set_mtu(verbless_prm::PathMtu(4));
    qpc.set_log_sra_max(3).set_log_rra_max(4).set_min_rnr_nak(21).set_retry_count(6);
    qpc.set_rnr_retry(5).set_state(verbless_prm::QpState(7)).set_pm_state(PathMigrationState(1));
    let path = qpc.primary_address_path_mut();
    path.set_pkey_index(0x0a0b).set_vhca_port_num(1).set_ack_timeout(17).set_rlid(0x1314);
    path.set_sl(11).set_eth_prio(3).set_mlid(0x15).set_grh(true).set_src_addr_index(2);
    path.set_hop_limit(63).set_tclass(0x42).set_flow_label(0x5_4321).set_rgid_rip(&[7; 16]);
    let other = qpc.secondary_address_path_mut();
    other.set_pkey_index(0x0c0d).set_vhca_port_num(2).set_ack_timeout(18).set_rlid(0x2324);
    other.set_sl(12).set_mlid(0x25).set_flow_label(0x5_4321).set_rgid_rip(&[8; 16]);
    other.set_hop_limit(64).set_tclass(0x43).set_src_addr_index(3);
}

#[test]
fn query_qp_maps_qpc_to_response() {
    let mut output = QueryQpOut::default();
    context(output.qpc_mut());
    for (ethernet, service, state) in [(false, 2, 7), (true, 2, 4), (false, 4, 5)] {
        output.qpc_mut().set_state(verbless_prm::QpState(state));
        let mut caps = Verbs::new().fixture.device.caps;
        caps.set_port_type(if ethernet { PortType::ETHERNET } else { PortType(0) });
        let device = Device::with(caps, ethernet);
        device.answer(Opcode::QUERY_QP, 0, output.as_bytes());
        let verbs = Verbs::on(device);
        let qp = if service == 2 { verbs.rc().0 } else { ud(&verbs) };
        let request = fields(&[8, 4, 4], &[0, qp, 0]);
        let (answer, _) = verbs.write(25, &request, 128, &[], 0).expect("the attributes");
        let mut expected = Vec::new();
        match (service, ethernet) {
            (4, _) => expected.extend([0; 64]),
            (_, false) => {
                expected.extend([7; 16]);
                expected.extend(fields(
                    &[4, 2, 2, 1, 1, 1, 1, 1, 1, 1, 1],
                    &[0x5_4321, 0x1314, 0, 2, 63, 0x42, 11, 0x15, 0, 1, 1],
                ));
                expected.extend([0; 20]);
                let rest = [0x2324, 0, 0, 0, 0, 12, 0x25, 0, 0, 2];
                expected.extend(fields(&[2, 2, 1, 1, 1, 1, 1, 1, 1, 1], &rest));
            }
            (_, true) => {
                for (byte, hops, class, index, prio, mlid, port) in
                    [(7, 63, 0x42, 2, 3, 0x15, 1), (8, 64, 0x43, 3, 0, 0x25, 2)]
                {
                    expected.extend([byte; 16]);
                    expected.extend(fields(
                        &[4, 2, 2, 1, 1, 1, 1, 1, 1, 1, 1],
                        &[0x5_4321, 0, 0, index, hops, class, prio, mlid, 0, 1, port],
                    ));
                }
            }
        }
        assert_eq!(answer[..64], expected, "{ethernet} {service}");
        let words = [0x0102_0304, 0x11_2233, 0x44_5566, 0x77_8899, 2 | 8];
        assert_eq!(answer[84..104], fields(&[4; 5], &words));
        assert_eq!(answer[104..108], [0x0b, 0x0a, 0x0d, 0x0c]);
        let (state_code, draining) = match state {
            4 => (5, 0),
            5 => (4, 0),
            _ => (4, 1),
        };
        assert_eq!(answer[108..112], [state_code, state_code, 4, 1], "{state}");
        assert_eq!(answer[112..123], [draining, 8, 16, 21, 1, 17, 6, 5, 2, 18, 0], "{state}");
    }
}

#[test]
fn query_device_survives_page_size_beyond_its_words() {
    let verbs = Verbs::with(|caps| _ = caps.set_log_pg_sz(255));
    let (plain, _) = verbs.write(1 << 31 | 1, &[0; 8], 304, &[], 112).expect("an answer");
    assert_eq!(plain[32..40], [0; 8]);
}

#[test]
fn query_device_reports_hca_capabilities() {
    let verbs = Verbs::with(|caps| {
        caps.set_log_max_cq(9).set_log_max_mkey(21).set_log_max_pd(11).set_log_max_mcg(6);
        caps.set_max_qp_mcg(48).set_log_max_srq(8).set_local_ca_ack_delay(15);
        caps.set_log_max_ra_res_qp(5).set_log_pg_sz(12).set_max_wqe_sz_rq(256).set_pkv(true);
        caps.set_device_frequency_khz(156_250).set_end_pad(true).set_cqe_compression(true);
        caps.set_cqe_compression_max_num(64).set_cqe_128_always(true);
    });
    let mut adapter = QueryAdapterOut::default();
    adapter.query_adapter_struct_mut().set_ieee_vendor_id(0x2c9);
    verbs.fixture.device.answer(Opcode::QUERY_ADAPTER, 0, adapter.as_bytes());
    let mut port = QueryHcaVportContextOut::default();
    let context = port.hca_vport_context_mut();
    context.set_node_guid(0x0102_0304_0506_0708).set_system_image_guid(0x1112_1314_1516_1718);
    verbs.fixture.device.answer(Opcode::QUERY_HCA_VPORT_CONTEXT, 0, port.as_bytes());
    let (plain, driver) = verbs.write(1 << 31 | 1, &[0; 8], 304, &[], 112).expect("an answer");
    assert_eq!(plain[8..24], [[1, 2, 3, 4, 5, 6, 7, 8], [17, 18, 19, 20, 21, 22, 23, 24]].concat());
    assert_eq!(plain[24..40], fields(&[8, 8], &[u64::MAX, !0xfff]));
    let flags = 1 << 1 | 1 << 5 | 1 << 10 | 1 << 11 | 1 << 12 | 1 << 17 | 1 << 24 | 1 << 21;
    let keys = 1 << 21;
    let words = [
        (40, 0x2c9),
        (44, 0x101d),
        (48, 0),
        (52, 1 << 17),
        (56, 256),
        (60, flags),
        (64, 16),
        (68, 30),
        (72, 1 << 9),
        (76, (1 << 12) - 1),
        (80, keys),
        (84, 1 << 11),
        (88, 16),
        (92, 0),
        (96, 16 << 17),
        (100, 32),
        (104, 0),
        (108, 0),
        (112, 0),
        (116, 0),
        (120, keys),
        (124, 0),
        (128, 0),
        (132, 1 << 6),
        (136, 48),
        (140, 48 << 6),
        (144, i32::MAX as u32),
        (148, 0),
        (152, 0),
        (156, 1 << 8),
        (160, (1 << 10) - 1),
        (164, 15),
        (176, 0),
        (208, u32::MAX),
        (212, 0x7fff_ffff),
        (216, 156_250),
        (224, flags),
        (228, 1 << 4),
        (280, 0x0fff_ffff),
    ];
    for (at, expected) in words {
        assert_eq!(word(&plain[at..]), expected, "at {at}");
    }
    assert_eq!(plain[168..172], [128, 0, 15, 1], "P_Keys, ack delay, ports");
    for (at, expected) in [(4, 112), (32, 64), (36, 3), (60, 1 << 3 | 1 << 1)] {
        assert_eq!(word(&driver[at..]), expected, "at {at} of the driver's");
    }
}

#[test]
fn ethernet_device_reports_pkey_table_size() {
    let verbs = Verbs::with(|caps| {
        caps.set_port_type(PortType::ETHERNET).set_pkey_table_size(PkeyTableSize(1));
    });
    let (plain, _) = verbs.write(1 << 31 | 1, &[0; 8], 304, &[], 112).expect("an answer");
    assert_eq!(plain[168..170], 256u16.to_ne_bytes());
}

#[test]
fn srq_create_reports_sizes_and_limit() {
    let verbs = Verbs::new();
    let mut output = QueryRmpOut::default();
    output.rmp_context_mut().wq_mut().set_lwm(77);
    verbs.fixture.device.answer(Opcode::QUERY_RMP, 0, output.as_bytes());
    let driver = {
        let (queue, record) = (verbs.address + 0x80, verbs.address + 0x8000);
        fields(&[8, 8, 4, 4, 4, 4], &[queue, record, 1, 0, 0x66, 0])
    };
    let create = |requests: u64, sges: u64, driver: &[u8]| {
        let core = fields(&[8, 8, 4, 4, 4, 4], &[0, 0xabc, verbs.pd.into(), requests, sges, 0]);
        verbs.write(32, &core, 16, driver, 8).map(|(core, _)| core)
    };
    assert_eq!(create(1024, 3, &driver), Err(Errno::EINVAL), "a request too many");
    assert_eq!(create(7, 33, &driver), Err(Errno::EINVAL), "an SGE too many");
    for reserved in [20, 28] {
        let mut driver = driver.clone();
        driver[reserved] = 1;
        assert_eq!(create(7, 3, &driver), Err(Errno::EINVAL), "at {reserved}");
    }
    assert_eq!(verbs.fixture.device.count(Opcode::CREATE_RMP.0), 0);
    for (requests, sges, entries, log_stride) in
        [(7, 0, 8, 5), (8, 1, 16, 5), (8, 2, 16, 6), (9, 3, 16, 6), (3, 32, 4, 10)]
    {
        let output = create(requests, sges, &driver).expect("an SRQ");
        assert_eq!((word(&output[4..]), word(&output[8..])), (entries - 1, sges as u32));
        let command: CreateRmpIn = verbs.last(Opcode::CREATE_RMP.0, CreateRmpIn::from_prefix);
        let wq = command.ctx().wq();
        assert_eq!((1 << wq.log_wq_sz(), wq.log_wq_stride()), (entries, log_stride));
        assert_eq!((wq.page_offset(), wq.dbr_addr()), (2, verbs.address + 0x8000));
        assert!(wq.wq_signature());
        let request = fields(&[8, 4, 4], &[0, word(&output).into(), 0]);
        let (answer, _) = verbs.write(34, &request, 16, &[], 0).expect("the attributes");
        assert_eq!(answer, fields(&[4; 4], &[u64::from(entries) - 1, sges, 77, 0]));
        let limit = |mask, limit: u32| {
            let core = fields(&[4; 4], &[word(&output).into(), mask, 0, limit.into()]);
            verbs.write(33, &core, 0, &[], 0).map(drop)
        };
        assert_eq!(limit(2, entries), Err(Errno::EINVAL), "more than there are");
        let armed = verbs.fixture.device.count(Opcode::MODIFY_RMP.0);
        limit(0, entries).expect("nothing to change");
        assert_eq!(verbs.fixture.device.count(Opcode::MODIFY_RMP.0), armed);
        limit(2, entries - 1).expect("the limit is armed");
    }
}

#[test]
fn alloc_mw_creates_free_mkey_of_type() {
    let verbs = Verbs::new();
    let allocate = |kind: u8, driver: [u8; 8], room: usize| {
        let core = fields(&[8, 4, 1, 1, 1, 1], &[0, verbs.pd.into(), kind.into(), 0, 0, 0]);
        verbs.write(14, &core, 8, &driver, room)
    };
    for kind in [0, 3] {
        assert_eq!(allocate(kind, [0; 8], 8), Err(Errno::EINVAL), "no kind {kind}");
    }
    for at in [0, 5, 6, 7] {
        let mut driver = [0; 8];
        driver[at] = 1;
        assert_eq!(allocate(1, driver, 8), Err(Errno::EOPNOTSUPP), "reserved, at {at}");
    }
    for (kind, entries, translations) in [(1, 0, 4), (2, 4, 4), (2, 5, 8)] {
        let (core, output) = allocate(kind, [0, 0, 0, 0, entries, 0, 0, 0], 8).expect("a window");
        let command: CreateMkeyIn = verbs.last(Opcode::CREATE_MKEY.0, CreateMkeyIn::from_prefix);
        let key = command.memory_key_mkey_entry();
        assert!(key.free() && key.umr_en() && key.lr());
        assert_eq!((key.en_rinval(), key.qpn()), (kind == 2, 0xff_ffff));
        assert_eq!(key.translations_octword_size(), translations, "{entries}");
        assert_eq!(word(&core[4..]) & 0xff, key.mkey_7_0().into());
        assert_eq!(output, [0, 0, 0, 0, 8, 0, 0, 0]);
        let mut free = super::support::Request::new(0, 0).number(2, 16).input(0, &core[..4]);
        assert_eq!(free.send(&verbs.fixture.file), Ok(()));
    }
    let lacking = Verbs::with(|caps| {
        caps.set_imaicl(false);
    });
    let core = fields(&[8, 4, 4], &[0, lacking.pd.into(), 1]);
    assert_eq!(lacking.write(14, &core, 8, &[0; 8], 8), Err(Errno::EOPNOTSUPP));
}

/// CREATE_CQ of the write interface: `mlx5_ib_create_cq` for CQEs of `bytes` bytes; handle and
/// entries.
fn old_cq(
    verbs: &Verbs,
    (entries, vector, channel): (u64, u64, i32),
    bytes: u64,
    flags: u64,
) -> Result<(u64, u32), Errno> {
    let at = verbs.address;
    let values = [at + 0x40, at + 0x8040, bytes, 0, 0, flags, 7, 0, 0];
    let driver = fields(&[8, 8, 4, 1, 1, 2, 2, 2, 4], &values);
    let channel = u64::from(channel.cast_unsigned());
    let core = fields(&[8, 8, 4, 4, 4, 4], &[0, 0xcafe, entries, vector, channel, 0]);
    let (output, _) = verbs.write(18, &core, 8, &driver, 8)?;
    Ok((word(&output).into(), word(&output[4..])))
}

#[test]
fn create_cq_rounds_size_and_sets_cqe_size() {
    let verbs = Verbs::with(|caps| {
        caps.set_cqe_128_always(true);
    });
    for (bytes, flags, size) in [
        (64, 2, CqeSize::BYTES_64),
        (128, 2, CqeSize::BYTES_128),
        (128, 3, CqeSize::BYTES_128_PADDED),
    ] {
        let (cq, entries) = old_cq(&verbs, (100, 1, -1), bytes, flags).expect("a CQ");
        let command: CreateCqIn = verbs.last(Opcode::CREATE_CQ.0, CreateCqIn::from_prefix);
        let context = command.cq_context();
        assert_eq!((entries, context.log_cq_size(), context.cqe_sz()), (127, 7, size));
        assert_eq!(context.c_eqn_or_apu_element(), 0x43, "the queue of the second vector");
        let (response, _) = verbs
            .write(20, &fields(&[8, 4, 4], &[0, cq, 0]), 16, &[], 0)
            .expect("the object is destroyed");
        assert_eq!(response, [0; 16]);
        let again = verbs.write(20, &fields(&[8, 4, 4], &[0, cq, 0]), 16, &[], 0);
        assert_eq!(again.map(drop), Err(Errno::ENOENT));
    }
    assert_eq!(old_cq(&verbs, (100, 0, -1), 64, 3), Err(Errno::EOPNOTSUPP), "padded, and short");
    assert_eq!(old_cq(&verbs, (100, 0, 0x7777), 64, 2).map(drop), Err(Errno::EBADF));
    assert_eq!(old_cq(&verbs, (4095, 0, -1), 64, 2).map(|it| it.1), Ok(4095));
    assert_eq!(old_cq(&verbs, (4096, 0, -1), 64, 2), Err(Errno::EINVAL));
    let device = verbs.fixture.device.clone();
    let made = device.held();
    let core = fields(&[8, 8, 4, 4, 4, 4], &[0, 0, 7, 0, u32::MAX.into(), 0]);
    let values = [verbs.address, verbs.address + 0x8040, 64, 0, 0, 2, 7, 0, 0];
    let driver = fields(&[8, 8, 4, 1, 1, 2, 2, 2, 4], &values);
    let mut bad = super::support::Request::new(0, 0)
        .number(2, 18)
        .input(0, &core)
        .raw(1, 8, 1, 0, 8)
        .input(0x1000, &driver);
    assert_eq!(bad.send(&verbs.fixture.file), Err(Errno::EFAULT), "no memory for the answer");
    assert_eq!(device.held(), made, "the new object is destroyed");
}

/// CREATE_QP of the write interface, with `mlx5_ib_create_qp` of these flags; the answer's words.
fn old_qp(
    verbs: &Verbs,
    kind: u64,
    cqs: (u64, u64),
    all: bool,
    flags: u64,
) -> Result<Vec<u32>, Errno> {
    let driver = verbs.qp_driver(8, flags | 1 << 10);
    let sizes = [8, 8, 4, 4, 4, 4, 4, 4, 4, 4, 4, 1, 1, 1, 1];
    let pd = u64::from(verbs.pd);
    let values = [0, 0xbeef, pd, cqs.0, cqs.1, 0, 4, 8, 1, 4, 0, u64::from(all), kind, 0, 0];
    let (core, _) = verbs.write(24, &fields(&sizes, &values), 32, &driver, 32)?;
    Ok(core.chunks_exact(4).map(word).collect())
}

#[test]
fn scatter_to_cqe_follows_cqe_size_and_flags() {
    const SCATTER: u64 = 1 << 1;
    const ALLOW: u64 = 1 << 8;
    use verbless_prm::{ScatterToCqeRequester as Req, ScatterToCqeResponder as Res};
    let verbs = Verbs::new();
    let short = old_cq(&verbs, (63, 0, -1), 64, 2).expect("a CQ").0;
    let long = old_cq(&verbs, (63, 0, -1), 128, 2).expect("a CQ").0;
    let cases = [
        (2, (short, long), false, 0, Req::DISABLED, Res::DISABLED),
        (2, (short, long), true, ALLOW, Req::DISABLED, Res::DISABLED),
        (2, (short, long), false, SCATTER, Req::DISABLED, Res::UP_TO_64B),
        (2, (long, short), false, SCATTER | ALLOW, Req::UP_TO_64B, Res::UP_TO_32B),
        (2, (short, long), true, SCATTER, Req::UP_TO_32B, Res::UP_TO_64B),
        (3, (short, long), true, SCATTER | ALLOW, Req::DISABLED, Res::UP_TO_64B),
        (4, (short, long), true, SCATTER | ALLOW, Req::DISABLED, Res::DISABLED),
    ];
    for (kind, cqs, all, flags, requester, responder) in cases {
        let output = old_qp(&verbs, kind, cqs, all, flags).expect("a QP");
        let command: CreateQpIn = verbs.last(Opcode::CREATE_QP.0, CreateQpIn::from_prefix);
        let qpc = command.qpc();
        assert_eq!((qpc.cs_req(), qpc.cs_res()), (requester, responder), "{kind} {all} {flags:#x}");
        assert_eq!(output[2..], [4, 8, 1, 4, 0, 0]);
        let service = [ServiceType::RC, ServiceType::UC, ServiceType::UD][kind as usize - 2];
        assert_eq!(qpc.st(), service);
        let destroy = fields(&[8, 4, 4], &[0, output[0].into(), 0]);
        let (response, _) = verbs.write(27, &destroy, 4, &[], 0).expect("the object is destroyed");
        assert_eq!(response, [0; 4]);
        assert_eq!(verbs.write(27, &destroy, 4, &[], 0).map(drop), Err(Errno::ENOENT));
    }
    let plain = old_qp(&verbs, 2, (short, short), false, 1 << 9);
    assert_eq!(plain, Err(Errno::EINVAL), "credits by packets, without the capability");
    let packets = Verbs::with(|caps| {
        caps.set_qp_packet_based(true).set_sctr_data_cqe(false);
    });
    let cq = old_cq(&packets, (63, 0, -1), 64, 2).expect("a CQ").0;
    old_qp(&packets, 2, (cq, cq), false, 1 << 9).expect("a QP");
    let command: CreateQpIn = packets.last(Opcode::CREATE_QP.0, CreateQpIn::from_prefix);
    assert_eq!(command.qpc().req_e2e_credit_mode(), 1);
    assert_eq!(old_qp(&packets, 3, (cq, cq), false, 1 << 9), Err(Errno::EINVAL), "of UC");
    for scatter in [SCATTER, ALLOW] {
        let refused = old_qp(&packets, 2, (cq, cq), false, scatter);
        assert_eq!(refused, Err(Errno::EINVAL), "without the capability");
    }
    for (kind, errno) in [
        (1, Errno::EINVAL),
        (8, Errno::EPERM),
        (9, Errno::EOPNOTSUPP),
        (10, Errno::EOPNOTSUPP),
        (0xff, Errno::EOPNOTSUPP),
    ] {
        assert_eq!(old_qp(&verbs, kind, (short, short), false, 0), Err(errno), "type {kind}");
    }
    let capable = 1 << Capability::NetRaw as u64;
    verbs.fixture.client.capabilities.store(capable, std::sync::atomic::Ordering::Relaxed);
    assert_eq!(old_qp(&verbs, 8, (short, short), false, 0), Err(Errno::EOPNOTSUPP));
}

#[test]
fn extended_modify_qp_rejects_unknown_mask() {
    let verbs = Verbs::new();
    let (qp, ..) = verbs.rc();
    let modify = |mask: u32, state: u8| {
        let mut core = vec![0; 120];
        core[64..68].copy_from_slice(&(qp as u32).to_ne_bytes());
        core[68..72].copy_from_slice(&mask.to_ne_bytes());
        (core[96], core[104]) = (state, 1);
        verbs.write(1 << 31 | 26, &core, 8, &[], 0).map(|(core, _)| core)
    };
    assert_eq!(modify(INIT | 1 << 26, 1), Err(Errno::EOPNOTSUPP), "no kernel knows this");
    assert_eq!(modify(INIT | RATE_LIMIT, 1), Err(Errno::EINVAL), "known, and not offered");
    assert_eq!(modify(INIT, 1), Ok(fields(&[4, 4], &[0, 8])));
    assert_eq!(verbs.fixture.device.count(Opcode::RST2INIT_QP.0), 1);
    // Missing bytes of the request count as zero; the response is cut or omitted.
    let short = fields(&[8, 8, 8, 8, 8, 8, 8, 8, 4, 4], &[0, 0, 0, 0, 0, 0, 0, 0, qp, 1]);
    assert_eq!(verbs.write(1 << 31 | 26, &short, 5, &[], 0), Ok((vec![0, 0, 0, 0, 5], vec![])));
    assert_eq!(verbs.write(1 << 31 | 26, &short, 0, &[], 0), Ok((vec![], vec![])));
}
