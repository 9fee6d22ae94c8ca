//! Queues and RMPs: the device's contexts have the requested attributes, and invalid requests are
//! refused; queries, MTUs, limits of WQEs, relaxed ordering and LAG ports.

use std::sync::Arc;

use verbless_command::{
    CqAttr, CqEventTarget, CqObject, DatagramAttr, Eqn, ErrorKind, Gid, InitAttr, KeyAccess,
    KeyMemory, MkeyAttr, Moderation, Mtu, QKey, QpAttr, RemoteAccess, RmpAttr, RtrAttr, RtsAttr,
    RtsChange, ServiceType,
};
use verbless_model::Link;
use verbless_prm::{CommandStatus, CqPeriodMode, CqeSize, Opcode, QpState};

use crate::support::{
    connectx6dx, cq_attr, init, qp, qp_attr, refusal_is_reported, register_pages, rmp_attr, rtr,
    with_caps,
};

#[test]
fn cq_query_returns_requested_attributes() {
    let (model, device) = connectx6dx(Link::Ethernet);
    let before = model.counts(0).cqs;
    for (cqe_size, ignore_overrun) in [(CqeSize::BYTES_64, true), (CqeSize::BYTES_128, false)] {
        let attr = CqAttr { cqe_size, ignore_overrun, ..cq_attr(&device) };
        let cq = device.create_cq(attr.clone()).expect("a CQ");
        let context = cq.query().expect("the context");
        assert_eq!((context.cqe_sz(), context.oi()), (cqe_size, ignore_overrun));
        assert_eq!((context.log_cq_size(), context.uar_page()), (4, attr.uar.page_id()));
        assert_eq!(CqEventTarget::Eq(Eqn(context.c_eqn_or_apu_element())), attr.element);
        assert_eq!(context.dbr_addr(), attr.record.offset());
        assert_eq!(cq.attr().log_cqes, 4);
        assert_eq!(model.counts(0).cqs, before + 1);
        cq.destroy().expect("no object uses the CQ");
        assert_eq!(model.counts(0).cqs, before);
    }
    let padded = CqAttr { cqe_size: CqeSize::BYTES_128_PADDED, ..cq_attr(&device) };
    let error = device.create_cq(padded).expect_err("padding is not supported").to_string();
    assert!(error.contains("CqeSize::BYTES_128"), "{error}");
    let each: [CqObject; 2] =
        std::array::from_fn(|_| device.create_cq(cq_attr(&device)).expect("a CQ"));
    assert_ne!(each[0].cqn(), each[1].cqn());
}

#[test]
fn moderation_is_set_and_limited_to_12_bits() {
    let (_model, device) = connectx6dx(Link::Ethernet);
    let cq = device.create_cq(cq_attr(&device)).expect("a CQ");
    for (period, count) in [(16, 32), (0xfff, 0xffff), (0, 0)] {
        cq.set_moderation(Moderation { period, count }).expect("period and count fit");
        let context = cq.query().expect("the context");
        assert_eq!((context.cq_period(), context.cq_max_count()), (period, count));
    }
    for (cqe, mode) in [(true, CqPeriodMode::START_FROM_CQE), (false, CqPeriodMode::START_FROM_EQE)]
    {
        cq.set_moderation_from(Moderation { period: 7, count: 9 }, cqe)
            .expect("period and count fit");
        let context = cq.query().expect("the context");
        assert_eq!((context.cq_period(), context.cq_max_count()), (7, 9));
        assert_eq!(context.cq_period_mode(), mode);
    }
    let refused = cq.set_moderation(Moderation { period: 0x1000, count: 1 });
    let error = refused.expect_err("4096 µs do not fit");
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    assert!(error.to_string().contains("at most 4095"), "{error}");
}

fn rts() -> RtsAttr {
    RtsAttr { send_psn: 0xab_cdef, ack_timeout: 14, retry_count: 6, rnr_retry: 5, max_reads: 3 }
}

#[test]
fn rc_qp_query_returns_values_of_each_transition() {
    let (model, device) = connectx6dx(Link::Infiniband);
    let before = model.counts(0).qps;
    let attr = qp_attr(&device, ServiceType::RC);
    let mut qp = device.create_qp(attr.clone()).expect("a queue pair");
    let context = qp.query().expect("the context");
    assert_eq!((qp.state().expect("a state"), context.st()), (QpState::RST, ServiceType::RC));
    assert_eq!((context.log_sq_size(), context.log_rq_size()), (3, 2));
    assert_eq!((context.log_rq_stride(), context.user_index()), (1, 0x12_3456));
    assert_eq!((context.pd(), context.uar_page()), (attr.pd.pdn(), attr.uar.page_id()));
    assert_eq!(context.cqn_snd(), attr.send_cq.cqn().0);
    assert_eq!(context.cqn_rcv(), attr.receive_cq.cqn().0);
    assert_eq!(context.dbr_addr(), attr.record.offset());
    assert!(!qp.has_left_reset());

    qp.to_init(&init()).expect("INIT");
    assert!(qp.has_left_reset());
    let context = qp.query().expect("the context");
    assert!(context.rre() && context.rwe() && context.rae());
    assert_eq!(context.primary_address_path().vhca_port_num(), 1);
    let less = RemoteAccess { write: true, ..Default::default() };
    qp.change_init(&InitAttr { access: less, ..init() }).expect("INIT again");
    let context = qp.query().expect("the context");
    assert_eq!((context.rre(), context.rwe(), context.rae()), (false, true, false));
    let empty = InitAttr { pkey_index: 1, ..init() };
    let error = qp.change_init(&empty).expect_err("there is one partition key");
    assert_eq!(error.status(), Some(CommandStatus::IX.0), "{error}");
    qp.change_init(&init()).expect("INIT again");
    qp.to_rtr(&rtr()).expect("RTR");
    let context = qp.query().expect("the context");
    assert_eq!(context.mtu().0, Mtu::B1024 as u8);
    assert_eq!((context.remote_qpn(), context.next_rcv_psn()), (0x1234, 0x56_789a));
    assert_eq!((context.min_rnr_nak(), context.log_rra_max()), (13, 3));
    assert_eq!(context.primary_address_path().rlid(), 0x17);
    assert!(context.rre() && context.rwe() && context.rae());

    qp.to_rts(&rts()).expect("RTS");
    let context = qp.query().expect("the context");
    assert_eq!(context.next_send_psn(), 0xab_cdef);
    assert_eq!((context.retry_count(), context.rnr_retry(), context.log_sra_max()), (6, 5, 2));
    assert_eq!(context.primary_address_path().ack_timeout(), 14);

    qp.change(&RtsChange { access: Some(less), min_rnr_timer: Some(7) }).expect("RTS again");
    let context = qp.query().expect("the context");
    assert_eq!((context.rre(), context.rwe(), context.min_rnr_nak()), (false, true, 7));
    assert_eq!(qp.state().expect("a state"), QpState::RTS);
    qp.to_error().expect("ERR");
    assert_eq!(qp.state().expect("a state"), QpState::ERR);
    qp.to_reset().expect("RST");
    assert_eq!(qp.state().expect("a state"), QpState::RST);
    assert!(!qp.has_left_reset());
    assert_eq!((qp.attr().user_index, model.counts(0).qps), (0x12_3456, before + 1));
    qp.destroy().expect("no object uses the QP");
    assert_eq!(model.counts(0).qps, before);
}

#[test]
fn qp_without_inbound_reads_has_no_read_right() {
    let (_model, device) = connectx6dx(Link::Infiniband);
    let mut qp = qp(&device, ServiceType::RC);
    qp.to_init(&init()).expect("INIT");
    qp.to_rtr(&RtrAttr { max_destination_reads: 0, ..rtr() }).expect("RTR");
    let context = qp.query().expect("the context");
    assert_eq!((context.rre(), context.rwe(), context.rae()), (false, true, false));
}

#[test]
fn reset_draws_new_psn() {
    let (_model, device) = connectx6dx(Link::Infiniband);
    let mut qp = qp(&device, ServiceType::RC);
    let mut drawn = vec![qp.first_psn()];
    for _ in 0..4 {
        qp.to_init(&init()).expect("INIT");
        qp.to_reset().expect("RST");
        drawn.push(qp.first_psn());
    }
    assert!(drawn.iter().all(|&psn| psn <= 0xff_ffff), "{drawn:x?}");
    assert!(
        drawn.iter().any(|&psn| psn != drawn[0]),
        "five resets drew the same 24-bit PSN {:x}",
        drawn[0]
    );
}

#[test]
fn failed_transition_hints_at_state_only_for_bad_state() {
    let (model, device) = connectx6dx(Link::Infiniband);
    let mut qp = qp(&device, ServiceType::RC);
    qp.to_init(&init()).expect("INIT");
    qp.to_rtr(&rtr()).expect("RTR");
    model.fail_command(0, Opcode::RTR2RTS_QP, 1, CommandStatus::BAD_RES_STATE, 1);
    let error = qp.to_rts(&rts()).expect_err("the model fails the command");
    assert!(error.hint().contains("RTS needs RTR"), "{}", error.hint());
    model.fail_command(0, Opcode::RTR2RTS_QP, 1, CommandStatus::BAD_PARAM, 1);
    let error = qp.to_rts(&rts()).expect_err("the model fails the command");
    assert!(!error.hint().contains("needs RTR"), "{}", error.hint());
    qp.to_rts(&rts()).expect("RTS");
}

#[test]
fn ud_qp_has_qkey_and_rejects_rc_transitions() {
    let (_model, device) = connectx6dx(Link::Infiniband);
    let mut qp = qp(&device, ServiceType::UD);
    let refused = qp.to_init(&init()).expect_err("the QP has no peer");
    assert_eq!(refused.kind(), ErrorKind::InvalidInput);
    let attr = DatagramAttr { port: 1, pkey_index: 0, q_key: QKey(0x1122_3344) };
    qp.to_init_datagram(&attr).expect("INIT");
    assert_eq!(qp.query().expect("the context").q_key(), 0x1122_3344);
    qp.to_rtr_datagram().expect("RTR");
    assert!(qp.to_rts_datagram(1 << 24).is_err(), "25 bits");
    qp.to_rts_datagram(0x65_4321).expect("RTS");
    assert_eq!(qp.query().expect("the context").next_send_psn(), 0x65_4321);
    qp.change_q_key(QKey(0x5566_7788)).expect("RTS again");
    assert_eq!(qp.query().expect("the context").q_key(), 0x5566_7788);
    for refused in [qp.to_rtr(&rtr()), qp.to_rts(&rts()), qp.change(&RtsChange::default())] {
        assert_eq!(
            refused.expect_err("connected transition on a UD QP").kind(),
            ErrorKind::InvalidInput
        );
    }
    assert_eq!(qp.state().expect("a state"), QpState::RTS);
}

#[test]
fn uc_qp_has_no_reads_or_retries() {
    let (_model, device) = connectx6dx(Link::Infiniband);
    let mut qp = qp(&device, ServiceType::UC);
    qp.to_init(&init()).expect("INIT");
    qp.to_rtr(&rtr()).expect("RTR");
    qp.to_rts(&rts()).expect("RTS");
    let context = qp.query().expect("the context");
    assert_eq!((context.st(), context.rwe(), context.rre()), (ServiceType::UC, true, false));
    assert_eq!((context.retry_count(), context.log_sra_max()), (0, 0));
    let timer = RtsChange { min_rnr_timer: Some(1), ..Default::default() };
    assert_eq!(qp.change(&timer).expect_err("no such timer").kind(), ErrorKind::InvalidInput);
    let error = qp.recover().expect_err("the QP has not failed");
    assert_eq!(error.kind(), ErrorKind::Command);
    for refused in [qp.to_init_datagram(&datagram()), qp.to_rtr_datagram(), qp.to_rts_datagram(0)] {
        assert_eq!(
            refused.expect_err("datagram transition on a UC QP").kind(),
            ErrorKind::InvalidInput
        );
    }
}

fn datagram() -> DatagramAttr {
    DatagramAttr { port: 1, pkey_index: 0, q_key: QKey(1) }
}

#[test]
fn rmp_query_returns_attributes_and_armed_limit() {
    let (model, device) = connectx6dx(Link::Infiniband);
    let before = model.counts(0);
    let attr = rmp_attr(&device);
    let rmp = device.create_rmp(attr.clone()).expect("an RMP");
    let context = rmp.query().expect("the context");
    let wq = context.wq();
    assert_eq!((wq.log_wq_sz(), wq.log_wq_stride(), wq.pd()), (4, 6, attr.pd.pdn()));
    assert_eq!((wq.dbr_addr(), wq.lwm()), (attr.record.offset(), 0));
    rmp.arm_limit(9).expect("the device accepts it");
    assert_eq!(rmp.query().expect("the context").wq().lwm(), 9);
    assert_eq!(rmp.attr().log_wqes, 4);
    let shared = Arc::new(rmp);
    let sharing = QpAttr {
        rmp: Some(shared.clone()),
        log_receive_wqes: None,
        ..qp_attr(&device, ServiceType::RC)
    };
    let qp = device.create_qp(sharing).expect("a queue pair that draws from it");
    assert_eq!(qp.query().expect("the context").srqn_rmpn_xrqn(), shared.rmpn().0);
    drop(qp);
    Arc::into_inner(shared)
        .expect("the RMP has one owner")
        .destroy()
        .expect("no object uses the RMP");
    assert_eq!(model.counts(0).qps, before.qps);
}

#[test]
fn rmp_stride_is_32_to_512_bytes() {
    let (_model, device) = connectx6dx(Link::Infiniband);
    for log_stride in [4, 10] {
        let error = device.create_rmp(RmpAttr { log_stride, ..rmp_attr(&device) });
        let error = error.expect_err("no such stride");
        assert!(error.to_string().contains("32 to 512"), "{error}");
    }
    for log_stride in [5, 9] {
        let attr = RmpAttr { log_stride, log_wqes: 3, ..rmp_attr(&device) };
        device.create_rmp(attr).expect("the least and the most");
    }
}

#[test]
fn queries_return_port_vport_and_gid_data() {
    let (_model, device) = connectx6dx(Link::Ethernet);
    let (issi, supported) = device.query_issi().expect("ISSI");
    assert!(issi == 1 && supported.iter().any(|&byte| byte != 0), "{issi}, {supported:?}");
    let state = device.query_vport_state().expect("a state");
    assert_eq!(state.state, 1, "{state:?}");
    let context = device.query_nic_vport_context().expect("a context");
    assert!(context.mtu() >= 1500, "MTU {}", context.mtu());
    let gid = device.gid_table().expect("a table").remove(0);
    let entry = device.query_roce_address(1, gid.index as u16).expect("an entry");
    assert_eq!(entry.gid, gid.gid);
    assert_ne!((entry.mac, entry.gid), ([0; 6], Gid::default()));
    assert!(!device.query_vuid().expect("a VUID").is_empty());
    for refused in
        [device.query_roce_address(16, 0).err(), device.query_hca_vport_context(16).err()]
    {
        assert_eq!(refused.expect("port 16 does not fit").kind(), ErrorKind::InvalidInput);
    }
    let (_model, device) = connectx6dx(Link::Infiniband);
    let context = device.query_hca_vport_context(1).expect("a context");
    assert_eq!(context.lid(), device.query_port(1).expect("a port").raw.lid);
    assert_eq!(device.lag_ports(), 1);
}

#[test]
fn mtu_is_found_by_bytes_and_code() {
    for (code, bytes) in [(1, 256), (2, 512), (3, 1024), (4, 2048), (5, 4096)] {
        let mtu = Mtu::of_bytes(bytes).expect("an MTU");
        assert_eq!((mtu.bytes(), Mtu::of_code(code)), (bytes, Some(mtu)));
    }
    assert_eq!((Mtu::of_bytes(1500), Mtu::of_code(0), Mtu::of_code(6)), (None, None, None));
}

#[test]
fn widest_requests_fit_largest_wqe() {
    let (_model, device) = connectx6dx(Link::Ethernet);
    let caps = device.caps();
    let bytes = usize::from(caps.max_send_wqe_bytes);
    // A control and a remote address segment of 16 bytes, and 16 for each SGE; inline data begins
    // with a 4-byte header.
    assert!((1..=(bytes - 32) / 16).contains(&caps.max_send_sges()), "{}", caps.max_send_sges());
    assert!((1..=bytes - 36).contains(&caps.max_inline()), "{}", caps.max_inline());
    assert_eq!(caps.max_receive_sges(), usize::from(caps.max_receive_wqe_bytes) / 16);
}

#[test]
fn relaxed_writes_only_device_relaxes_every_mkey() {
    let both = "relaxed_ordering_write = true\nmkc_order_write_after_write_ro_only = true";
    let only = [("relaxed_ordering_write = true", both)];
    for (changes, always) in [(&[][..], false), (&only, true)] {
        let (_model, device) = with_caps(changes);
        assert_eq!(device.caps().relaxed_writes_only, always);
        for requested in [false, true] {
            let key = device.create_mkey(MkeyAttr {
                pd: device.alloc_pd().expect("a protection domain"),
                access: KeyAccess { relaxed_ordering: requested, ..KeyAccess::LOCAL },
                start: 0,
                length: 4096,
                memory: KeyMemory::Umem { umem: register_pages(&device), offset: 0 },
            });
            let context = key.expect("a key").query().expect("the context");
            assert_eq!(
                context.relaxed_ordering_write(),
                always || requested,
                "{always} {requested}"
            );
        }
    }
}

#[test]
fn failed_destroy_is_reported() {
    let (model, device) = connectx6dx(Link::Ethernet);
    let cq = device.create_cq(cq_attr(&device)).expect("a CQ");
    let qp = qp(&device, ServiceType::RC);
    let rmp = device.create_rmp(rmp_attr(&device)).expect("an RMP");
    let umem = register_pages(&device);
    let key = device.create_mkey(MkeyAttr {
        pd: device.alloc_pd().expect("a protection domain"),
        access: KeyAccess::default(),
        start: umem.address(),
        length: umem.length(),
        memory: KeyMemory::Umem { umem, offset: 0 },
    });
    let key = key.expect("a key");
    refusal_is_reported(&model, Opcode::DESTROY_CQ, || cq.destroy());
    refusal_is_reported(&model, Opcode::DESTROY_QP, || qp.destroy());
    refusal_is_reported(&model, Opcode::DESTROY_RMP, || rmp.destroy());
    refusal_is_reported(&model, Opcode::DESTROY_MKEY, || key.destroy());
}

#[test]
fn qps_alternate_lag_ports() {
    let (_model, device) = crate::support::bonded(2);
    assert_eq!(device.lag_ports(), 2);
    let mut ports = Vec::new();
    for _ in 0..4 {
        let mut qp = qp(&device, ServiceType::RC);
        qp.to_init(&init()).expect("INIT");
        ports.push(qp.query().expect("the context").lag_tx_port_affinity());
    }
    assert!(ports == [1, 2, 1, 2] || ports == [2, 1, 2, 1], "{ports:?}");
    for (ports, choices) in [(0, 1), (1, 1), (2, 2), (4, 4)] {
        let (_model, device) = crate::support::bonded(ports);
        assert_eq!(device.lag_ports(), choices, "num_lag_ports {ports}");
    }
    let (_model, device) = connectx6dx(Link::Ethernet);
    assert_eq!(device.lag_ports(), 1);
    let mut qp = qp(&device, ServiceType::RC);
    qp.to_init(&init()).expect("INIT");
    assert_eq!(qp.query().expect("the context").lag_tx_port_affinity(), 0);
}
