//! A value at a limit is accepted; one beyond it is refused before the command is sent, with the
//! limit in the message.

use std::sync::Arc;

use verbless_command::{
    CqAttr, CqObject, CqOptions, DatagramAttr, Device, Error, GlobalRoute, InitAttr, KeyAccess,
    KeyMemory, Klm, Lkey, MkeyAttr, Moderation, Mtu, Path, QKey, QpAttr, Qpn, RmpAttr, RoceVersion,
    RtrAttr, RtsAttr, RtsChange, ServiceType,
};
use verbless_devx::page_size;
use verbless_model::Link;
use verbless_prm::{AtomicMode, CqeSize, MiniCqeFormat, MkeyAccessMode, RqType, TimestampFormat};

use crate::support::{
    based_on, connectx6dx, cq_attr, init, qp, qp_attr, refused, register_pages, rmp_attr, with_caps,
};

#[test]
fn ring_sizes_above_limit_are_rejected() {
    let (_model, device) = with_caps(&[
        ("log_max_qp_sz = 15", "log_max_qp_sz = 5"),
        ("log_max_cq_sz = 22", "log_max_cq_sz = 6"),
        ("log_max_srq_sz = 15", "log_max_srq_sz = 5"),
    ]);
    let attr = |sends, receives| QpAttr {
        log_send_wqebbs: sends,
        log_receive_wqes: receives,
        ..qp_attr(&device, ServiceType::RC)
    };
    let made = device.create_qp(attr(Some(5), Some(5))).expect("rings of the limit");
    let context = made.query().expect("the context");
    assert_eq!((context.log_sq_size(), context.log_rq_size()), (5, 5));
    refused(device.create_qp(attr(Some(6), Some(5))), "send ring's WQEBBs is 6; at most 5");
    refused(device.create_qp(attr(Some(5), Some(6))), "receive WQEs is 6; at most 5");
    refused(device.create_qp(attr(Some(200), None)), "at most 5");

    let cq = |log_cqes| device.create_cq(CqAttr { log_cqes, ..cq_attr(&device) });
    assert_eq!(cq(6).expect("the limit").query().expect("the context").log_cq_size(), 6);
    refused(cq(7), "CQEs is 7; at most 6");

    let create_rmp = |log_wqes| device.create_rmp(RmpAttr { log_wqes, ..rmp_attr(&device) });
    let made = create_rmp(5).expect("the limit").query().expect("the context");
    assert_eq!(made.wq().log_wq_sz(), 5);
    refused(create_rmp(6), "receives is 6; at most 5");
}

#[test]
fn receive_stride_is_16_to_512_bytes() {
    let (_model, device) = connectx6dx(Link::Infiniband);
    let make = |log_receive_stride, log_receive_wqes| {
        let attr = qp_attr(&device, ServiceType::RC);
        device.create_qp(QpAttr { log_receive_stride, log_receive_wqes, ..attr })
    };
    for log in [4, 9] {
        let made = make(log, Some(3)).expect("the least and the most");
        assert_eq!(made.query().expect("the context").log_rq_stride(), log - 4);
    }
    for log in [0, 3, 10, 255] {
        refused(make(log, Some(3)), "16 to 512 bytes");
    }
    // Without a receive ring the stride cannot be wrong.
    let none = make(0, None).expect("a queue pair that receives nothing");
    assert_eq!(none.query().expect("the context").rq_type(), RqType::NONE);
}

#[test]
fn user_index_has_24_bits() {
    let (_model, device) = connectx6dx(Link::Infiniband);
    let make =
        |user_index| device.create_qp(QpAttr { user_index, ..qp_attr(&device, ServiceType::RC) });
    let made = make(0xff_ffff).expect("all 24 bits").query().expect("the context");
    assert_eq!(made.user_index(), 0xff_ffff);
    refused(make(1 << 24), "the user index is 16777216; at most 16777215");
}

#[test]
fn qp_without_sq_sets_no_sq() {
    let (_model, device) = connectx6dx(Link::Infiniband);
    for log_send_wqebbs in [None, Some(3)] {
        let attr = QpAttr { log_send_wqebbs, ..qp_attr(&device, ServiceType::RC) };
        let made = device.create_qp(attr).expect("a queue pair").query().expect("the context");
        assert_eq!(made.no_sq(), log_send_wqebbs.is_none());
        assert_eq!(made.ts_format(), TimestampFormat::FREE_RUNNING);
    }
}

/// Without a RoCE capability page, `sq_ts_format` applies.
#[test]
fn qp_timestamps_follow_sq_ts_format_without_roce() {
    for (format, expected) in [
        ("REAL_TIME", TimestampFormat::DEFAULT),
        ("FREE_RUNNING_AND_REAL_TIME", TimestampFormat::FREE_RUNNING),
    ] {
        let lines = format!("[ethernet.caps.general]\nroce = false\nsq_ts_format = \"{format}\"\n");
        let (_model, device) = based_on("connectx6dx-realtime", &lines);
        assert!(device.caps().roce.is_none());
        let made = device.create_qp(qp_attr(&device, ServiceType::RC)).expect("a queue pair");
        assert_eq!(made.query().expect("the context").ts_format(), expected, "{format}");
    }
}

#[test]
fn qp_has_own_rq_or_rmp() {
    let (_model, device) = connectx6dx(Link::Infiniband);
    let attr = qp_attr(&device, ServiceType::RC);
    let made = device.create_qp(attr.clone()).expect("a queue pair").query().expect("the context");
    assert_eq!(made.rq_type(), RqType::REGULAR);
    let rmp = Some(Arc::new(device.create_rmp(rmp_attr(&device)).expect("an RMP")));
    refused(device.create_qp(QpAttr { rmp, ..attr }), "not both");
}

/// An RTR whose QPN, PSN and RNR timer have all bits set.
fn rtr() -> RtrAttr {
    RtrAttr {
        path: Path::to_lid(1),
        remote_qpn: Qpn(0xff_ffff),
        receive_psn: 0xff_ffff,
        max_destination_reads: 1,
        min_rnr_timer: 31,
        ..crate::support::rtr()
    }
}

#[test]
fn port_and_pkey_index_name_their_limits() {
    let (_model, device) = connectx6dx(Link::Infiniband);
    let caps = device.caps();
    let (ports, pkeys) = (caps.ports, 128_u16 << caps.general.pkey_table_size().0);
    assert_eq!(pkeys, 128, "in force; the device could have 4096");
    let mut rc = qp(&device, ServiceType::RC);
    let mut ud = qp(&device, ServiceType::UD);
    let q_key = QKey(1);
    for port in [0, ports + 1, 255] {
        let words = format!("the port is {port}; this device has ports 1 to {ports}");
        refused(rc.to_init(&InitAttr { port, ..init() }), &words);
        refused(ud.to_init_datagram(&DatagramAttr { port, pkey_index: 0, q_key }), &words);
    }
    for pkey_index in [pkeys, u16::MAX] {
        let words = format!("the P_Key index is {pkey_index}; at most {}", pkeys - 1);
        refused(rc.to_init(&InitAttr { pkey_index, ..init() }), &words);
        refused(ud.to_init_datagram(&DatagramAttr { port: 1, pkey_index, q_key }), &words);
    }
    rc.to_init(&init()).expect("INIT");
    let beyond = InitAttr { pkey_index: pkeys, ..init() };
    refused(rc.change_init(&beyond), "the P_Key index");
}

#[test]
fn roce_port_has_one_pkey() {
    let (_model, device) = connectx6dx(Link::Ethernet);
    let mut rc = qp(&device, ServiceType::RC);
    let second = InitAttr { pkey_index: 1, ..init() };
    refused(rc.to_init(&second), "the P_Key index is 1; at most 0");
    rc.to_init(&init()).expect("INIT");
}

/// The driver counts ports as mlx5_ib does: a function on port 2 has num_ports 1.
#[test]
fn port_count_includes_vhca_ports() {
    for (ports, num_vhca_ports, most) in [(1, 0, 1), (1, 2, 2), (2, 0, 2), (2, 1, 2)] {
        let both = format!("num_ports = {ports}\nnum_vhca_ports = {num_vhca_ports}");
        let (_model, device) = with_caps(&[("num_ports = 1", &both)]);
        assert_eq!(device.caps().ports, most, "{both}");
        let port = most + 1;
        let words = format!("the port is {port}; this device has ports 1 to {most}");
        refused(qp(&device, ServiceType::RC).to_init(&InitAttr { port, ..init() }), &words);
    }
}

#[test]
fn connection_attributes_fit_up_to_last_bit() {
    let (_model, device) = connectx6dx(Link::Infiniband);
    let mut qp = qp(&device, ServiceType::RC);
    qp.to_init(&init()).expect("INIT");
    refused(qp.to_rtr(&RtrAttr { remote_qpn: Qpn(1 << 24), ..rtr() }), "the remote QPN");
    refused(qp.to_rtr(&RtrAttr { receive_psn: 1 << 24, ..rtr() }), "the receive PSN");
    refused(qp.to_rtr(&RtrAttr { min_rnr_timer: 32, ..rtr() }), "is 32; at most 31");
    refused(qp.to_rtr(&RtrAttr { path: Path::to_lid(0), ..rtr() }), "LID 0");
    qp.to_rtr(&rtr()).expect("RTR with all bits set");
    let context = qp.query().expect("the context");
    assert_eq!((context.remote_qpn(), context.next_rcv_psn()), (0xff_ffff, 0xff_ffff));
    assert_eq!((context.min_rnr_nak(), context.atomic_mode()), (31, AtomicMode::IB_SPEC));
    assert_eq!(context.log_msg_max(), device.caps().log_max_message);
    let rts = RtsAttr {
        send_psn: 0xff_ffff,
        ack_timeout: 31,
        retry_count: 7,
        rnr_retry: 7,
        max_reads: 16,
    };
    refused(qp.to_rts(&RtsAttr { send_psn: 1 << 24, ..rts }), "the send PSN");
    refused(qp.to_rts(&RtsAttr { ack_timeout: 32, ..rts }), "at most 31");
    refused(qp.to_rts(&RtsAttr { retry_count: 8, ..rts }), "the retry count is 8; at most 7");
    refused(qp.to_rts(&RtsAttr { rnr_retry: 8, ..rts }), "the RNR retry count is 8; at most 7");
    qp.to_rts(&rts).expect("RTS with all bits set");
    let context = qp.query().expect("the context");
    assert_eq!((context.next_send_psn(), context.log_sra_max()), (0xff_ffff, 4));
    assert_eq!((context.retry_count(), context.rnr_retry()), (7, 7));
    assert_eq!(context.primary_address_path().ack_timeout(), 31);
    assert_eq!(context.log_ack_req_freq(), 8);
    let timer = |timer| RtsChange { min_rnr_timer: Some(timer), ..Default::default() };
    refused(qp.change(&timer(32)), "the RNR timer is 32; at most 31");
    qp.change(&timer(31)).expect("all its bits");
}

#[test]
fn max_destination_reads_rounds_up_to_power_of_two() {
    let (_model, device) = connectx6dx(Link::Infiniband);
    for (reads, log) in [(1, 0), (2, 1), (3, 2), (4, 2), (5, 3), (8, 3), (9, 4), (16, 4)] {
        let mut qp = qp(&device, ServiceType::RC);
        qp.to_init(&init()).expect("INIT");
        let attr = RtrAttr { max_destination_reads: reads, ..rtr() };
        qp.to_rtr(&attr).expect("RTR");
        let context = qp.query().expect("the context");
        assert_eq!(context.log_rra_max(), log, "{reads}");
        assert!(context.rre() && context.rae(), "{reads}: rre and rae");
    }
}

#[test]
fn outstanding_reads_above_limit_are_rejected() {
    for (log, most_in, most_out) in [("4", 16, 16), ("63", 16, 128)] {
        let log = format!("log_max_ra_req_qp = {log}");
        let infiniband = (r#"link = "ethernet""#, r#"link = "infiniband""#);
        let (_model, device) = with_caps(&[infiniband, ("log_max_ra_req_qp = 4", &log)]);
        let caps = device.caps();
        assert_eq!((caps.max_reads_in, caps.max_reads_out), (most_in, most_out));
        let mut qp = qp(&device, ServiceType::RC);
        qp.to_init(&init()).expect("INIT");
        for reads in [17, 128, 129, 255] {
            let words = format!("log_max_ra_res_qp) is {reads}; at most {most_in}");
            refused(qp.to_rtr(&RtrAttr { max_destination_reads: reads, ..rtr() }), &words);
        }
        qp.to_rtr(&rtr()).expect("RTR");
        let rts =
            RtsAttr { send_psn: 0, ack_timeout: 14, retry_count: 7, rnr_retry: 7, max_reads: 1 };
        for reads in [most_out + 1, 129, 255] {
            let words = format!("log_max_ra_req_qp) is {reads}; at most {most_out}");
            refused(qp.to_rts(&RtsAttr { max_reads: reads, ..rts }), &words);
        }
        qp.to_rts(&RtsAttr { max_reads: most_out, ..rts }).expect("RTS");
        let context = qp.query().expect("the context");
        assert_eq!(1 << context.log_sra_max(), u32::from(most_out));
    }
}

#[test]
fn uc_ignores_max_reads() {
    let (_model, device) = connectx6dx(Link::Infiniband);
    let mut qp = qp(&device, ServiceType::UC);
    qp.to_init(&init()).expect("INIT");
    qp.to_rtr(&RtrAttr { max_destination_reads: 255, ..rtr() }).expect("RTR");
    let rts = RtsAttr { send_psn: 0, ack_timeout: 0, retry_count: 0, rnr_retry: 0, max_reads: 255 };
    qp.to_rts(&rts).expect("RTS");
}

#[test]
fn ud_has_largest_mtu_and_24_bit_psn() {
    let (_model, device) = connectx6dx(Link::Infiniband);
    let mut qp = qp(&device, ServiceType::UD);
    let attr = DatagramAttr { port: 1, pkey_index: 0, q_key: QKey(u32::MAX) };
    qp.to_init_datagram(&attr).expect("INIT");
    qp.to_rtr_datagram().expect("RTR");
    let context = qp.query().expect("the context");
    assert_eq!((context.mtu().0, context.log_msg_max()), (Mtu::B4096 as u8, 12));
    refused(qp.to_rts_datagram(1 << 24), "the send PSN");
    qp.to_rts_datagram(0xff_ffff).expect("all its bits");
}

#[test]
fn path_fields_fit_up_to_last_value() {
    let route = GlobalRoute { flow_label: 0xf_ffff, ..GlobalRoute::new(Default::default(), 0) };
    let wide = GlobalRoute { flow_label: 1 << 20, ..route };
    let level = |sl, source_path_bits, grh| {
        Path::InfiniBand { dlid: 1, sl, source_path_bits, grh }.address_vector()
    };
    level(15, 127, Some(route)).expect("all bits set");
    refused(level(16, 0, None), "service level above 15");
    refused(level(0, 128, None), "path bits above 127");
    refused(level(0, 0, Some(wide)), "flow label above 20 bits");
    let roce = |version, udp_source_port, priority, route| {
        let destination_mac = [2; 6];
        Path::Roce { version, route, destination_mac, udp_source_port, priority }.address_vector()
    };
    roce(RoceVersion::V2, 0xc000, 7, route).expect("the least port, the highest priority");
    roce(RoceVersion::V1, 0, 0, route).expect("version 1 has no port");
    refused(roce(RoceVersion::V2, 0xbfff, 0, route), "port below 0xc000");
    refused(roce(RoceVersion::V2, 0xc000, 8, route), "priority above 7");
    refused(roce(RoceVersion::V2, 0xc000, 0, wide), "flow label above 20 bits");
}

/// The attributes of a key over `length` bytes of registered memory from `offset` on.
fn umem_mkey_attr(device: &Device, offset: u64, length: u64) -> MkeyAttr {
    let umem = register_pages(device);
    MkeyAttr {
        pd: device.alloc_pd().expect("a protection domain"),
        access: KeyAccess::LOCAL,
        start: umem.address().wrapping_add(offset),
        length,
        memory: KeyMemory::Umem { umem, offset },
    }
}

#[test]
fn umem_mkey_is_bounded_by_umem_and_page_offset() {
    let (_model, device) = connectx6dx(Link::Ethernet);
    let whole = register_pages(&device).length();
    device.create_mkey(umem_mkey_attr(&device, 0, whole)).expect("all of it");
    device.create_mkey(umem_mkey_attr(&device, whole - 1, 1)).expect("the region's last byte");
    refused(device.create_mkey(umem_mkey_attr(&device, 0, whole + 1)), "the end of its UMEM");
    refused(device.create_mkey(umem_mkey_attr(&device, whole, 1)), "the end of its UMEM");
    refused(device.create_mkey(umem_mkey_attr(&device, u64::MAX - 1, 2)), "");

    let page = page_size() as u64;
    let attr = umem_mkey_attr(&device, 100, 2 * page);
    device.create_mkey(attr.clone()).expect("the key begins within a page");
    let elsewhere = MkeyAttr { start: attr.start + page, ..attr.clone() };
    device.create_mkey(elsewhere).expect("the same offset in another page");
    for start in [attr.start + 1, attr.start - 1, attr.start ^ 0x800] {
        let attr = MkeyAttr { start, ..attr.clone() };
        refused(device.create_mkey(attr), "pages of this UMEM may have 0x1000 bytes");
    }
}

#[test]
fn klm_and_ksm_mkeys_check_range_and_entries() {
    let (_model, device) = connectx6dx(Link::Ethernet);
    let klm = Klm { key: Lkey(0x1200), address: 0, length: 4096 };
    let make = |start, length, memory| {
        let pd = device.alloc_pd().expect("a protection domain");
        device.create_mkey(MkeyAttr { pd, access: KeyAccess::LOCAL, start, length, memory })
    };
    let klms = |count| KeyMemory::Klms(vec![klm; count]);
    make(u64::MAX - 4096, 4096, klms(1)).expect("up to the last address");
    refused(make(u64::MAX - 4095, 4096, klms(1)), "the end of the address space");
    refused(make(0, 0, klms(1)), "zero bytes");
    let made = make(0, 1, klms(1)).expect("one byte").query().expect("the context");
    assert_eq!(made.translations_octword_size(), 4, "the list is filled up to four");
    let made = make(0, 1, klms(5)).expect("one byte").query().expect("the context");
    assert_eq!(made.translations_octword_size(), 8, "the list is filled up to four");
    assert_eq!(made.access_mode_1_0() | made.access_mode_4_2() << 2, MkeyAccessMode::KLMS.0);
    let ksms = KeyMemory::Ksms { log_length: 12, klms: vec![klm; 2] };
    let made = make(0, 8192, ksms).expect("two pages").query().expect("the context");
    assert_eq!(made.access_mode_1_0() | made.access_mode_4_2() << 2, MkeyAccessMode::KSM.0);
    assert_eq!(made.log_page_size(), 12);
    refused(make(0, 1, KeyMemory::Ksms { log_length: 12, klms: Vec::new() }), "one KLM entry");
    let ksms = KeyMemory::Ksms { log_length: 64, klms: vec![klm] };
    refused(make(0, 1, ksms), "bytes of an entry is 64; this device takes 12 to 31");
    let ksms = |log_length| KeyMemory::Ksms { log_length, klms: vec![klm; 2] };
    refused(make(0, 1, ksms(11)), "takes 12 to 31");
    make(8, 8184, ksms(12)).expect("two pages from address 0");
    refused(make(8, 8185, ksms(12)), "do not cover 0x1ff9 bytes from 0x8");
    let klm = |length| KeyMemory::Klms(vec![Klm { length, ..klm }]);
    make(0, 4096, klm(1 << 31)).expect("2 GiB");
    refused(make(0, 4096, klm((1 << 31) + 1)), "at most 2 GiB");
    refused(make(0, 4096, klm(0)), "has no bytes");
    let (_model, device) = with_caps(&[("fixed_buffer_size = true", "fixed_buffer_size = false")]);
    let pd = device.alloc_pd().expect("a protection domain");
    let (access, memory) = (KeyAccess::LOCAL, ksms(12));
    let attr = MkeyAttr { pd, access, start: 0, length: 1, memory };
    refused(device.create_mkey(attr), "hca_cap.fixed_buffer_size");
}

#[test]
fn atomic_klm_mkey_is_aligned_to_largest_atomic() {
    let klm = Klm { key: Lkey(0x1200), address: 0, length: 4096 };
    let make = |device: &Device, start, length, access| {
        let pd = device.alloc_pd().expect("a protection domain");
        let memory = KeyMemory::Klms(vec![klm]);
        device.create_mkey(MkeyAttr { pd, access, start, length, memory })
    };
    let (_model, device) = connectx6dx(Link::Ethernet);
    assert_eq!(device.caps().max_atomic_bytes(), 8);
    make(&device, 0, 104, KeyAccess::ALL).expect("aligned");
    refused(make(&device, 0, 100, KeyAccess::ALL), "multiples of 8 bytes");
    refused(make(&device, 4, 104, KeyAccess::ALL), "104 bytes from 0x4");
    make(&device, 4, 100, KeyAccess::LOCAL).expect("no atomics");
    let (_model, device) = with_caps(&[("atomic_size_qp = 0x8", "atomic_size_qp = 0x18")]);
    assert_eq!(device.caps().max_atomic_bytes(), 16);
    refused(make(&device, 0, 104, KeyAccess::ALL), "multiples of 16 bytes");
    make(&device, 0, 112, KeyAccess::ALL).expect("aligned");
    // umr_modify_atomic_disabled does not restrict CREATE_MKEY.
    let (_model, device) =
        with_caps(&[("umr_ptr_rlky = true", "umr_modify_atomic_disabled = true")]);
    make(&device, 0, 104, KeyAccess::ALL).expect("aligned");
}

#[test]
fn mkey_page_size_is_limited_by_capability() {
    let stated = "max_mkey_log_entity_size_mtt = 31";
    for (log, most, fits) in [(0, 31, true), (12, 12, true), (11, 11, false)] {
        let (_model, device) =
            with_caps(&[(stated, &format!("max_mkey_log_entity_size_mtt = {log}"))]);
        assert_eq!(device.caps().log_max_key_page(), most);
        let made = device.create_mkey(umem_mkey_attr(&device, 0, 4096));
        match fits {
            true => drop(made.expect("a key of pages of 4 KiB")),
            false => refused(made, "at most 2^11 (max_mkey_log_entity_size_mtt)"),
        }
    }
}

#[test]
fn umr_mkey_takes_1_to_65532_klms() {
    let (_model, device) = connectx6dx(Link::Ethernet);
    let make = |length, klms| {
        let pd = device.alloc_pd().expect("a protection domain");
        let memory = KeyMemory::Umr { klms, remote_invalidate: true };
        let access = KeyAccess::LOCAL_READ;
        device.create_mkey(MkeyAttr { pd, access, start: 0, length, memory })
    };
    for (klms, octowords) in [(1, 4), (4, 4), (5, 8), (65_532, 65_532)] {
        let made = make(0, klms).expect("within the limits").query().expect("the context");
        assert_eq!(made.translations_octword_size(), octowords, "{klms}");
        assert!(made.free() && made.umr_en() && made.en_rinval());
    }
    refused(make(0, 0), "1 to 65532");
    refused(make(0, 65_533), "1 to 65532");
    refused(make(1, 4), "length 0 until it is mapped");
    let (_model, device) =
        with_caps(&[("umr_ptr_rlky = true", "umr_indirect_mkey_disabled = true")]);
    let pd = device.alloc_pd().expect("a protection domain");
    let memory = KeyMemory::Umr { klms: 4, remote_invalidate: false };
    let access = KeyAccess::LOCAL_READ;
    let attr = MkeyAttr { pd, access, start: 0, length: 0, memory };
    refused(device.create_mkey(attr), "umr_indirect_mkey_disabled is 1");
}

#[test]
fn klm_count_is_limited_by_device_and_ioctl() {
    let key = |device: &Device, klms: usize| {
        let klm = Klm { key: Lkey(0x100), address: 0x1000, length: 64 };
        let memory = KeyMemory::Klms(vec![klm; klms]);
        let length = 64 * klms as u64;
        device.create_mkey(MkeyAttr { memory, length, ..umem_mkey_attr(device, 0, 64) })
    };
    let (_model, device) =
        with_caps(&[("log_max_klm_list_size = 16", "log_max_klm_list_size = 2")]);
    assert!(key(&device, 4).is_ok());
    refused(key(&device, 5), "5 KLM entries; this device supports at most 4");
    let (_model, device) = with_caps(&[("max_indirection = 4", "max_indirection = 0")]);
    refused(key(&device, 1), "max_indirection is 0");
    let (_model, device) = connectx6dx(Link::Ethernet);
    key(&device, 4076).expect("as many as an ioctl carries");
    refused(key(&device, 4077), "takes at most 4076");
}

#[test]
fn mkey_omits_rights_that_device_lacks() {
    let all = KeyAccess { relaxed_ordering: true, ..KeyAccess::ALL };
    let key = |device: &Device| {
        let attr = MkeyAttr { access: all, ..umem_mkey_attr(device, 0, 4096) };
        let context = device.create_mkey(attr).expect("a key").query().expect("the context");
        (context.a(), context.relaxed_ordering_write(), context.relaxed_ordering_read())
    };
    let (_model, device) = connectx6dx(Link::Ethernet);
    assert!(device.caps().atomics);
    assert_eq!(key(&device), (true, true, true));
    for (from, to, expected) in [
        ("\natomic = true", "\natomic = false", (false, true, true)),
        ("atomic_operations = 0x3", "atomic_operations = 0x1", (false, true, true)),
        ("atomic_operations = 0x3", "atomic_operations = 0x2", (false, true, true)),
        ("atomic_size_qp = 0x8", "atomic_size_qp = 0x4", (false, true, true)),
        ("relaxed_ordering_write = true", "relaxed_ordering_write = false", (true, false, true)),
        ("relaxed_ordering_read = true", "relaxed_ordering_read = false", (true, true, false)),
    ] {
        let (_model, device) = with_caps(&[(from, to)]);
        assert_eq!(device.caps().atomics, expected.0, "{to}");
        assert_eq!(key(&device), expected, "{to}");
    }
}

#[test]
fn cq_without_overrun_check_requires_cq_oi() {
    let (_model, device) = with_caps(&[("cq_oi = true", "cq_oi = false")]);
    let attr = CqAttr { ignore_overrun: true, ..cq_attr(&device) };
    refused(device.create_cq(attr), "cq_oi");
    device.create_cq(cq_attr(&device)).expect("a CQ with oi = 0");
}

#[test]
fn cq_moderation_requires_its_capability() {
    let moderation = Moderation { period: 3, count: 5 };
    let moderated = CqOptions { moderation, ..CqOptions::default() };
    let from_cqe = CqOptions { period_from_cqe: true, ..CqOptions::default() };
    for (name, options) in [("cq_moderation", moderated), ("cq_period_start_from_cqe", from_cqe)] {
        let (_model, device) =
            with_caps(&[(&format!("{name} = true"), &format!("{name} = false"))]);
        refused(device.create_cq_with(cq_attr(&device), &options), name);
        device.create_cq(cq_attr(&device)).expect("a CQ with default options");
    }
    let (_model, device) = connectx6dx(Link::Ethernet);
    let cq = device.create_cq_with(cq_attr(&device), &moderated).expect("the CQ moderates");
    assert_eq!(cq.moderation().expect("the context"), (moderation, false));
    let cq = device.create_cq_with(cq_attr(&device), &from_cqe).expect("the CQ counts from CQEs");
    assert_eq!(cq.moderation().expect("the context"), (Moderation::default(), true));
}

#[test]
fn rmp_requires_log_max_rmp() {
    let (_model, device) = with_caps(&[("log_max_rmp = 23", "log_max_rmp = 0")]);
    refused(device.create_rmp(rmp_attr(&device)), "log_max_rmp");
    let (_model, device) = with_caps(&[("log_max_rmp = 23", "log_max_rmp = 1")]);
    device.create_rmp(rmp_attr(&device)).expect("a device with two");
}

#[test]
fn qp_without_atomics_has_no_atomic_mode_or_rae() {
    let (_model, device) = with_caps(&[
        ("\natomic = true", "\natomic = false"),
        ("link = \"ethernet\"", "link = \"infiniband\""),
    ]);
    let mut qp = qp(&device, ServiceType::RC);
    qp.to_init(&init()).expect("INIT");
    let context = qp.query().expect("the context");
    assert_eq!((context.rre(), context.rae()), (true, false));
    assert_eq!(context.atomic_mode(), AtomicMode::NONE);
}

#[test]
fn sge_and_inline_limits_exclude_wqe_headers() {
    for (bytes, sges, inline) in
        [(64, 1, 28), (63, 0, 27), (47, 0, 11), (976, 58, 940), (1024, 58, 940)]
    {
        let to = format!("max_wqe_sz_sq = {bytes}\n");
        let (_model, device) = with_caps(&[("max_wqe_sz_sq = 1024\n", &to)]);
        let caps = device.caps();
        assert_eq!((caps.max_send_sges(), caps.max_inline()), (sges, inline), "{bytes} bytes");
        // A READ WQE has at most 512 bytes, with control and remote address.
        assert_eq!(caps.max_read_sges(), sges.min(30), "{bytes} bytes");
    }
    // Control and address vector take 64 bytes, and the inline header 4.
    for (bytes, sges, inline) in [(64, 0, 0), (80, 1, 12), (512, 28, 444), (1024, 58, 940)] {
        let to = format!("max_wqe_sz_sq = {bytes}\n");
        let (_model, device) = with_caps(&[("max_wqe_sz_sq = 1024\n", &to)]);
        let caps = device.caps();
        let found = (caps.max_datagram_sges(), caps.max_datagram_inline());
        assert_eq!(found, (sges, inline), "a datagram of {bytes} bytes");
    }
    for (bytes, sges) in [(0, 0), (15, 0), (16, 1), (512, 32)] {
        let to = format!("max_wqe_sz_rq = {bytes}\n");
        let (_model, device) = with_caps(&[("max_wqe_sz_rq = 512\n", &to)]);
        assert_eq!(device.caps().max_receive_sges(), sges, "{bytes} bytes");
    }
}

#[test]
fn max_dma_mmo_bytes_follows_log_dma_mmo_size() {
    let longest = |lines: &str| based_on("bluefield3", lines).1.caps().max_dma_mmo_bytes();
    let none = "[caps.general]\ndma_mmo_qp = false\n";
    assert_eq!(longest(none), 0, "log_dma_mmo_size without dma_mmo_qp");
    for (log, bytes) in [(31, 1 << 31), (20, 1 << 20), (0, 1 << 31)] {
        let lines = format!("[caps.general]\nlog_dma_mmo_size = {log}\n");
        assert_eq!(longest(&lines), bytes, "log_dma_mmo_size {log}");
    }
}

#[test]
fn cqe_compression_requires_size_and_format_caps() {
    let [hash, checksum] = [MiniCqeFormat::RX_HASH, MiniCqeFormat::CHECKSUM];
    let (tag, stride) =
        (MiniCqeFormat::FLOW_TAG_STRIDE_INDEX, MiniCqeFormat::CHECKSUM_STRIDE_INDEX);
    let (of_64, of_128) = ("cqe_compression", "cqe_compression_128");
    let (small, large) = (CqeSize::BYTES_64, CqeSize::BYTES_128);
    let (with_tag, with_stride) = ("mini_cqe_resp_flow_tag", "mini_cqe_resp_stride_index");
    for (cqe_size, format, needed) in [
        (small, hash, &[of_64][..]),
        (small, checksum, &[of_64]),
        (large, checksum, &[of_128]),
        (small, tag, &[of_64, with_tag]),
        (large, tag, &[of_128, with_tag]),
        (small, stride, &[of_64, with_stride]),
        (large, stride, &[of_128, with_stride]),
    ] {
        let make = |without: Option<&str>| {
            let all = [of_64, of_128, with_tag, with_stride].into_iter();
            let caps = all.filter(|name| Some(*name) != without);
            let lines: String = caps.map(|name| format!("{name} = true\n")).collect();
            let (_model, device) = based_on("connectx6dx", &format!("[caps.general]\n{lines}"));
            let attr = CqAttr { cqe_size, ..cq_attr(&device) };
            let options = CqOptions { compression: Some(format), ..CqOptions::default() };
            device.create_cq_with(attr, &options).map(|cq| cq.query().expect("the context"))
        };
        let context = make(None).expect("the device has all of it");
        assert!(context.cqe_comp_en() && context.mini_cqe_res_format() == format);
        for name in needed {
            refused(make(Some(name)), &format!("capability {name} is 0"));
        }
        for name in [of_64, of_128, with_tag, with_stride].iter().filter(|it| !needed.contains(it))
        {
            make(Some(name)).expect("the CQ does not need the capability");
        }
    }
    let (_model, device) = connectx6dx(Link::Ethernet);
    let options = CqOptions { compression: Some(MiniCqeFormat(4)), ..CqOptions::default() };
    refused(device.create_cq_with(cq_attr(&device), &options), "mini CQEs is 4; at most 3");
}

#[test]
fn moderation_change_requires_capabilities() {
    let moderation = Moderation { period: 3, count: 5 };
    let set = |cq: &CqObject| cq.set_moderation(moderation);
    let from_event = |cq: &CqObject| cq.set_moderation_from(moderation, false);
    let from_cqe = |cq: &CqObject| cq.set_moderation_from(moderation, true);
    type Change<'a> = &'a dyn Fn(&CqObject) -> Result<(), Error>;
    let changes: [Change<'_>; 3] = [&set, &from_event, &from_cqe];
    for (name, refuses) in [
        ("cq_moderation", [true, true, true]),
        ("cq_period_mode_modify", [false, true, true]),
        ("cq_period_start_from_cqe", [false, false, true]),
    ] {
        let (_model, device) =
            with_caps(&[(&format!("{name} = true"), &format!("{name} = false"))]);
        let cq = device.create_cq(cq_attr(&device)).expect("a CQ");
        for (change, refuses) in changes.into_iter().zip(refuses) {
            match refuses {
                true => refused(change(&cq), &format!("capability {name} is 0")),
                false => change(&cq).expect("the command does not need the capability"),
            }
        }
    }
}
