//! Raw Ethernet queues, TIRs and flow rules: the device's context has the requested attributes, the
//! state transitions work, and invalid requests are refused before they are sent.

use std::sync::Arc;

use verbless_command::{
    Device, Error, ErrorKind, FlowAttr, RqAttr, RqWqes, SelfLoopback, SqAttr, TisAttr, TisObject,
};
use verbless_model::Link;
use verbless_prm::{
    MemRqType, MinWqeInlineMode, Opcode, RqState, SqState, TimestampFormat, TirDispType,
};

use crate::support::{
    based_on, bonded, connectx6dx, cq_attr, memory, refusal_is_reported, refused, rmp_attr,
    with_caps,
};

pub(crate) fn rq_attr(device: &Device) -> RqAttr {
    let (ring, record) = memory(device);
    let pd = device.alloc_pd().expect("a protection domain");
    RqAttr {
        cq: Arc::new(device.create_cq(cq_attr(device)).expect("a CQ")),
        wqes: RqWqes::Own { pd, ring, record, log_wqes: 4, log_stride: 6 },
        user_index: 0x12_3456,
        flush_in_error: true,
        keep_vlan: false,
        timestamps: device.caps().rq_timestamps,
        counter: None,
    }
}

/// A change of the profile that clears UCTX_CAP RAW_TX, so that CREATE_SQ needs no CAP_NET_RAW.
const WITHOUT_RAW_TX: (&str, &str) = ("uctx_cap = 0x3", "uctx_cap = 0x2");

fn tis(device: &Device, priority: u8) -> Result<TisObject, Error> {
    let domain = Arc::new(device.alloc_transport_domain().expect("a transport domain"));
    device.create_tis(TisAttr { domain, priority, pd: None })
}

pub(crate) fn sq_attr(device: &Device) -> SqAttr {
    let (ring, record) = memory(device);
    let cq = cq_attr(device);
    SqAttr {
        pd: device.alloc_pd().expect("a protection domain"),
        uar: cq.uar.clone(),
        cq: Arc::new(device.create_cq(cq).expect("a CQ")),
        tis: Some(Arc::new(tis(device, 0).expect("a TIS"))),
        ring,
        record,
        log_wqebbs: 5,
        min_inline: MinWqeInlineMode::L2,
        user_index: 0x65_4321,
        flush_in_error: true,
        multi_packet: false,
        timestamps: device.caps().sq_timestamps,
    }
}

#[test]
fn rq_query_returns_attributes_of_ring_or_rmp() {
    let (_model, device) = connectx6dx(Link::Ethernet);
    for (flush_in_error, keep_vlan) in [(true, false), (false, true)] {
        let attr = RqAttr { flush_in_error, keep_vlan, ..rq_attr(&device) };
        let rq = device.create_rq(attr.clone()).expect("an RQ");
        let context = rq.query().expect("the context");
        assert_eq!((context.state(), context.mem_rq_type()), (RqState::RST, MemRqType::INLINE));
        assert_eq!((context.flush_in_error_en(), context.vsd()), (flush_in_error, keep_vlan));
        assert_eq!((context.user_index(), context.cqn()), (0x12_3456, attr.cq.cqn().0));
        let RqWqes::Own { pd, record, .. } = &attr.wqes else { panic!("the RQ has its own ring") };
        let wq = context.wq();
        assert_eq!((wq.log_wq_sz(), wq.log_wq_stride(), wq.pd()), (4, 6, pd.pdn()));
        assert_eq!(wq.dbr_addr(), record.offset());
    }
    let rmp = Arc::new(device.create_rmp(rmp_attr(&device)).expect("an RMP"));
    let attr = RqAttr { wqes: RqWqes::Rmp(rmp.clone()), ..rq_attr(&device) };
    assert!(attr.flush_in_error);
    let context = device.create_rq(attr).expect("an RQ").query().expect("the context");
    assert_eq!((context.mem_rq_type(), context.rmpn()), (MemRqType::RMP, rmp.rmpn().0));
    assert!(!context.flush_in_error_en(), "flush_in_error_en must be 0 with an RMP");
}

#[test]
fn vlan_stripping_requires_vlan_cap() {
    for lines in
        ["[ethernet.caps.ethernet_offloads]\nvlan_cap = false\n", "link = \"infiniband\"\n"]
    {
        let (_model, device) = based_on("connectx6dx", lines);
        refused(device.create_rq(rq_attr(&device)), "capability vlan_cap is 0");
        let attr = RqAttr { keep_vlan: true, ..rq_attr(&device) };
        device.create_rq(attr).expect("frames keep their tags");
    }
}

#[test]
fn rq_uses_its_q_counter() {
    let (_model, device) = connectx6dx(Link::Ethernet);
    let counter = Arc::new(device.alloc_q_counter().expect("a counter"));
    let attr = RqAttr { counter: Some(counter.clone()), ..rq_attr(&device) };
    let rq = device.create_rq(attr).expect("an RQ");
    let context = rq.query().expect("the context");
    assert_eq!(context.counter_set_id(), counter.number());
    assert_eq!(counter.query().expect("the counts").out_of_buffer(), 0);
    rq.destroy().expect("the RQ goes");
    Arc::into_inner(counter)
        .expect("the Q counter has one owner")
        .destroy()
        .expect("the device destroys the counter");
}

#[test]
fn timestamp_format_and_empw_require_capability() {
    use TimestampFormat as Clock;
    for (kept, has, lacks) in [
        ("FREE_RUNNING", Clock::FREE_RUNNING, Clock::REAL_TIME),
        ("REAL_TIME", Clock::REAL_TIME, Clock::FREE_RUNNING),
    ] {
        let [rqs, sqs] = ["rq", "sq"].map(|kind| {
            let line = |clock| format!("{kind}_ts_format = \"{clock}\"");
            (line("FREE_RUNNING"), line(kept))
        });
        let (_model, device) = with_caps(&[WITHOUT_RAW_TX, (&rqs.0, &rqs.1), (&sqs.0, &sqs.1)]);
        for timestamps in [has, Clock::DEFAULT] {
            let rq = device.create_rq(RqAttr { timestamps, ..rq_attr(&device) }).expect("an RQ");
            assert_eq!(rq.query().expect("the context").ts_format(), timestamps);
            let sq = device.create_sq(SqAttr { timestamps, ..sq_attr(&device) }).expect("an SQ");
            assert_eq!(sq.query().expect("the context").ts_format(), timestamps);
        }
        let timestamps = lacks;
        refused(device.create_rq(RqAttr { timestamps, ..rq_attr(&device) }), "has no clock");
        refused(device.create_sq(SqAttr { timestamps, ..sq_attr(&device) }), "has no clock");
        let several = SqAttr { multi_packet: true, ..sq_attr(&device) };
        refused(device.create_sq(several), "enhanced_multi_pkt_send_wqe");
    }
}

#[test]
fn rq_moves_through_rst_rdy_err() {
    let (_model, device) = connectx6dx(Link::Ethernet);
    let rq = device.create_rq(rq_attr(&device)).expect("an RQ");
    let state = || rq.query().expect("the context").state();
    rq.to_ready().expect("from RST");
    assert_eq!(state(), RqState::RDY);
    assert_eq!(rq.to_ready().expect_err("the RQ is in RDY").kind(), ErrorKind::Command);
    rq.to_error().expect("from RDY");
    assert_eq!(state(), RqState::ERR);
    rq.to_reset().expect("from ERR");
    assert_eq!(state(), RqState::RST);
}

#[test]
fn sq_query_returns_attributes_and_state() {
    let (_model, device) = with_caps(&[WITHOUT_RAW_TX]);
    let attr = sq_attr(&device);
    let sq = device.create_sq(attr.clone()).expect("an SQ");
    let context = sq.query().expect("the context");
    assert_eq!((context.state(), context.flush_in_error_en()), (SqState::RST, true));
    assert_eq!((context.user_index(), context.cqn()), (0x65_4321, attr.cq.cqn().0));
    assert_eq!(context.min_wqe_inline_mode(), MinWqeInlineMode::L2);
    let tis = attr.tis.as_ref().expect("the SQ has a TIS");
    assert_eq!((context.tis_lst_sz(), context.tis_num_0()), (1, tis.tisn().0));
    let wq = context.wq();
    assert_eq!((wq.log_wq_sz(), wq.log_wq_stride(), wq.pd()), (5, 6, attr.pd.pdn()));
    assert_eq!((wq.uar_page(), wq.dbr_addr()), (attr.uar.page_id(), attr.record.offset()));

    let state = || sq.query().expect("the context").state();
    sq.to_ready().expect("from RST");
    assert_eq!(state(), SqState::RDY);
    sq.to_error().expect("from RDY");
    assert_eq!(state(), SqState::ERR);
    sq.to_reset().expect("from ERR");
    assert_eq!(state(), SqState::RST);
}

#[test]
fn queues_above_limit_are_rejected_with_limit() {
    let (_model, device) =
        with_caps(&[WITHOUT_RAW_TX, ("log_max_wq_sz = 15", "log_max_wq_sz = 5")]);
    let own = |log_wqes, log_stride| {
        let RqWqes::Own { pd, ring, record, .. } = rq_attr(&device).wqes else { panic!() };
        let wqes = RqWqes::Own { pd, ring, record, log_wqes, log_stride };
        device.create_rq(RqAttr { wqes, ..rq_attr(&device) })
    };
    for log_stride in [4, 9] {
        own(5, log_stride).expect("the limit");
    }
    refused(own(6, 6), "receives is 6; at most 5");
    for log_stride in [3, 10] {
        refused(own(5, log_stride), "16 to 512 bytes");
    }
    let sends = |log_wqebbs| device.create_sq(SqAttr { log_wqebbs, ..sq_attr(&device) });
    assert_eq!(sends(5).expect("the limit").attr().log_wqebbs, 5);
    refused(sends(6), "WQEBBs is 6; at most 5");
    let index = 1 << 24;
    refused(device.create_rq(RqAttr { user_index: index, ..rq_attr(&device) }), "user index");
    refused(device.create_sq(SqAttr { user_index: index, ..sq_attr(&device) }), "user index");
    refused(tis(&device, 8), "priority");
}

#[test]
fn values_wider_than_field_are_rejected_by_name() {
    let (_model, device) = with_caps(&[WITHOUT_RAW_TX]);
    let sq = |change: fn(&mut SqAttr)| {
        let mut attr = sq_attr(&device);
        change(&mut attr);
        device.create_sq(attr)
    };
    let inline = |attr: &mut SqAttr| attr.min_inline = MinWqeInlineMode(8);
    refused(sq(inline), "inline_mode is 8; at most 7");
    let clock = |attr: &mut SqAttr| attr.timestamps = TimestampFormat(4);
    refused(sq(clock), "timestamp format is 4; at most 3");
    let attr = RqAttr { timestamps: TimestampFormat(255), ..rq_attr(&device) };
    refused(device.create_rq(attr), "timestamp format is 255; at most 3");
    let sq = sq(|_| ()).expect("an SQ");
    refused(sq.modify(SqState(16), SqState::RDY), "state's number is 16; at most 15");
    let rq = device.create_rq(rq_attr(&device)).expect("an RQ");
    refused(rq.modify(RqState::RST, RqState(255)), "state's number is 255; at most 15");
}

#[test]
fn tis_priority_is_in_bits_3_1() {
    let (_model, device) = connectx6dx(Link::Ethernet);
    let tis = tis(&device, 7).expect("a TIS");
    let context = tis.query().expect("the context");
    assert_eq!((context.prio(), context.transport_domain()), (14, tis.attr().domain.number()));
    tis.set_priority(2).expect("priority 2");
    assert_eq!(tis.query().expect("the context").prio(), 4);
    refused(tis.set_priority(8), "priority");
}

/// lag_tx_port_affinity of a new TIS, and whether it is strict.
fn affinity(device: &Device) -> (u8, bool) {
    let context = tis(device, 0).expect("a TIS").query().expect("the context");
    (context.lag_tx_port_affinity(), context.strict_lag_tx_port_affinity())
}

#[test]
fn tis_alternates_lag_ports() {
    let (_model, device) = bonded(2);
    let [first, second] = [(); 2].map(|()| affinity(&device));
    assert!([first.0, second.0] == [1, 2] || [first.0, second.0] == [2, 1], "{first:?} {second:?}");
    assert_eq!([affinity(&device), affinity(&device)], [first, second]);
    assert!(!first.1 && !second.1, "a port is assigned");
}

#[test]
fn lag_master_sets_strict_affinity() {
    let lines = ["num_lag_ports = 2", "lag_master = true", "vport_group_manager = true"];
    for left_out in [None, Some(0), Some(1), Some(2)] {
        let kept = (0..3).filter(|&index| Some(index) != left_out).map(|index| lines[index]);
        let kept = kept.collect::<Vec<_>>().join("\n");
        let (_model, device) =
            based_on("connectx6dx", &format!("[ethernet.caps.general]\n{kept}\n"));
        assert_eq!(affinity(&device), (0, left_out.is_none()), "{kept}");
    }
    let lines = "[ethernet.caps.general]\nnum_lag_ports = 1\nlag_master = true\n\
                 vport_group_manager = true\n";
    assert_eq!(affinity(&based_on("connectx6dx", lines).1), (0, false), "one port is not a bond");
}

#[test]
fn tir_has_its_rq_and_self_loopback_block() {
    let (_model, device) = connectx6dx(Link::Ethernet);
    let domain = Arc::new(device.alloc_transport_domain().expect("a transport domain"));
    let rq = Arc::new(device.create_rq(rq_attr(&device)).expect("an RQ"));
    for (allow_unicast, allow_multicast, bits) in
        [(false, false, 0), (true, false, 1), (false, true, 2)]
    {
        let loopback = SelfLoopback { allow_unicast, allow_multicast };
        let tir = device.create_tir(domain.clone(), rq.clone(), loopback).expect("a TIR");
        let context = tir.query().expect("the context");
        assert_eq!((context.disp_type(), context.inline_rqn()), (TirDispType::DIRECT, rq.rqn().0));
        assert_eq!((context.transport_domain(), context.self_lb_block()), (domain.number(), bits));
        assert!(Arc::ptr_eq(tir.domain(), &domain) && Arc::ptr_eq(tir.rq(), &rq));
    }
}

#[test]
fn missing_ethernet_queues_are_named() {
    for (lacks, words) in [
        ("log_max_rq", "no RQ objects (capability log_max_rq is 0)"),
        ("log_max_sq", "no SQ objects (capability log_max_sq is 0)"),
        ("log_max_tis", "sends no raw Ethernet frames"),
        ("log_max_tir", "receives no raw Ethernet frames"),
    ] {
        let (from, to) = (format!("{lacks} = 23"), format!("{lacks} = 0"));
        let (_model, device) = with_caps(&[(&from, &to)]);
        match lacks {
            "log_max_rq" => refused(device.create_rq(rq_attr(&device)), words),
            "log_max_sq" => refused(device.create_sq(sq_attr(&device)), words),
            "log_max_tis" => refused(tis(&device, 0), words),
            _ => {
                let domain = Arc::new(device.alloc_transport_domain().expect("a domain"));
                let rq = Arc::new(device.create_rq(rq_attr(&device)).expect("an RQ"));
                refused(device.create_tir(domain, rq, SelfLoopback::default()), words);
            }
        }
    }
    let (_model, device) = with_caps(&[WITHOUT_RAW_TX]);
    let attr = SqAttr { tis: None, ..sq_attr(&device) };
    refused(device.create_sq(attr), "non_wire_sq is 0");
}

#[test]
fn failed_destroy_is_reported() {
    let (model, device) = connectx6dx(Link::Ethernet);
    let domain = || device.alloc_transport_domain().expect("a transport domain");
    let rq = || device.create_rq(rq_attr(&device)).expect("an RQ");
    let sq = device.create_sq(sq_attr(&device)).expect("an SQ");
    let tis = tis(&device, 0).expect("a TIS");
    let loopback = SelfLoopback::default();
    let tir = device.create_tir(Arc::new(domain()), Arc::new(rq()), loopback).expect("a TIR");
    let (rq, domain) = (rq(), domain());
    refusal_is_reported(&model, Opcode::DESTROY_RQ, || rq.destroy());
    refusal_is_reported(&model, Opcode::DESTROY_SQ, || sq.destroy());
    refusal_is_reported(&model, Opcode::DESTROY_TIS, || tis.destroy());
    refusal_is_reported(&model, Opcode::DESTROY_TIR, || tir.destroy());
    refusal_is_reported(&model, Opcode::DEALLOC_TRANSPORT_DOMAIN, || domain.destroy());
    let counter = device.alloc_q_counter().expect("a counter");
    refusal_is_reported(&model, Opcode::DEALLOC_Q_COUNTER, || counter.destroy());
}

#[test]
fn flow_rule_rejects_missing_field_wide_vlan_and_bad_tag() {
    let (_model, device) = connectx6dx(Link::Ethernet);
    let domain = Arc::new(device.alloc_transport_domain().expect("a transport domain"));
    let rq = Arc::new(device.create_rq(rq_attr(&device)).expect("an RQ"));
    let tir = device.create_tir(domain, rq, SelfLoopback::default()).expect("a TIR");
    let tir = Arc::new(tir);
    let to = FlowAttr::to([2, 0, 0, 0, 0, 9]);
    for attr in [to, to.tag(0xff_fffe), FlowAttr { vlan: Some(0xfff), ..to }] {
        let rule = device.create_flow_rule(&attr, &tir).expect("a rule");
        assert!(Arc::ptr_eq(rule.tir(), &tir));
        rule.destroy().expect("the rule goes");
    }
    for (attr, words) in [
        (FlowAttr::default().tag(1), "without a field"),
        (FlowAttr { vlan: Some(0x1000), ..to }, "12 bits"),
        (to.tag(0xff_ffff), "below 0xffffff"),
    ] {
        refused(device.create_flow_rule(&attr, &tir), words);
    }
}
