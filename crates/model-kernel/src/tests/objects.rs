//! Verbs objects: the commands that they send, arguments refused before any command, and event
//! delivery.

use std::io::Read;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;

use nix::errno::Errno;
use verbless_prm::hot::event_type as event;
use verbless_prm::{
    AttachToMcgIn, CqeSize, CreateCqIn, CreateMkeyIn, CreateQpIn, CreateRmpIn, Init2rtrQpIn,
    ModifyCqIn, ModifyRmpIn, Opcode, OptParamMask, RqType, Rst2initQpIn, Rtr2rtsQpIn, ServiceType,
};

use super::support::Request;
use super::verbs_rig::{IB_SRQT_BASIC, IB_SRQT_XRC, Verbs, command, fields, word};
use crate::abi::object;

/// `ib_qp_attr_mask`.
const IB_QP_STATE: u32 = 1;
const IB_QP_ACCESS_FLAGS: u32 = 1 << 3;
const IB_QP_PKEY_INDEX: u32 = 1 << 4;
const IB_QP_PORT: u32 = 1 << 5;
const IB_QP_AV: u32 = 1 << 7;
const IB_QP_PATH_MTU: u32 = 1 << 8;
const IB_QP_TIMEOUT: u32 = 1 << 9;
const IB_QP_RETRY_CNT: u32 = 1 << 10;
const IB_QP_RNR_RETRY: u32 = 1 << 11;
const IB_QP_RQ_PSN: u32 = 1 << 12;
const IB_QP_MAX_QP_RD_ATOMIC: u32 = 1 << 13;
const IB_QP_MIN_RNR_TIMER: u32 = 1 << 15;
const IB_QP_SQ_PSN: u32 = 1 << 16;
const IB_QP_MAX_DEST_RD_ATOMIC: u32 = 1 << 17;
const IB_QP_DEST_QPN: u32 = 1 << 20;

/// The attributes that an RC QP needs for each transition.
const INIT: u32 = IB_QP_STATE | IB_QP_ACCESS_FLAGS | IB_QP_PKEY_INDEX | IB_QP_PORT;
const RTR: u32 = IB_QP_STATE
    | IB_QP_AV
    | IB_QP_PATH_MTU
    | IB_QP_RQ_PSN
    | IB_QP_MIN_RNR_TIMER
    | IB_QP_MAX_DEST_RD_ATOMIC
    | IB_QP_DEST_QPN;
const RTS: u32 = IB_QP_STATE
    | IB_QP_TIMEOUT
    | IB_QP_RETRY_CNT
    | IB_QP_RNR_RETRY
    | IB_QP_MAX_QP_RD_ATOMIC
    | IB_QP_SQ_PSN;

fn read(fd: &OwnedFd) -> Vec<u8> {
    nix::sys::socket::setsockopt(
        fd,
        nix::sys::socket::sockopt::ReceiveTimeout,
        &nix::sys::time::TimeVal::new(0, 1000),
    )
    .expect("a socket");
    let mut bytes = vec![0; 64];
    let mut file = std::fs::File::from(fd.try_clone().expect("a descriptor"));
    let len = file.read(&mut bytes).unwrap_or(0);
    bytes.truncate(len);
    bytes
}

#[test]
fn query_device_has_plain_and_extended_form() {
    let verbs = Verbs::new();
    let (plain, _) =
        verbs.write(command::QUERY_DEVICE, &[0; 8], 176, &[], 0).expect("the plain form");
    assert_eq!(plain[..8], (22u64 << 32 | 35 << 16 | 1012).to_ne_bytes());
    assert_eq!(word(&plain[52..]), 1 << 17, "QPs");
    assert_eq!(word(&plain[44..]), 0x101d);
    let (extended, driver) =
        verbs.write(command::EX_QUERY_DEVICE, &[0; 8], 304, &[], 112).expect("the long form");
    assert_eq!(extended[..176], plain);
    assert_eq!((word(&extended[180..]), word(&driver[4..])), (304, 112));
    let (short, driver) =
        verbs.write(command::EX_QUERY_DEVICE, &[0; 8], 184, &[], 70).expect("as much as fits");
    assert_eq!((word(&short[180..]), word(&driver[4..])), (184, 64));
    assert_eq!(
        verbs.write(command::EX_QUERY_DEVICE, &[1, 0, 0, 0, 0, 0, 0, 0], 304, &[], 0),
        Err(Errno::EINVAL)
    );
    assert_eq!(verbs.write(command::QUERY_DEVICE, &[0; 8], 175, &[], 0), Err(Errno::ENOSPC));
    let (cut, _) = verbs.write(command::EX_QUERY_DEVICE, &[0; 4], 5, &[], 0).expect("cut");
    assert_eq!(cut, extended[..5]);
}

#[test]
fn reg_mr_creates_mkey_over_pages() {
    let verbs = Verbs::new();
    let start = verbs.address + 0x1010;
    let response = verbs.reg_mr(start, 0x2000, 0x7000_1010, 1 | 4 | 8).expect("a region");
    let command: CreateMkeyIn = verbs.last(Opcode::CREATE_MKEY.0, CreateMkeyIn::from_prefix);
    let key = command.memory_key_mkey_entry();
    assert!(key.lr() && key.lw() && key.rr() && key.a() && !key.rw() && key.umr_en());
    assert_eq!((key.start_addr(), key.len(), key.qpn()), (0x7000_1010, 0x2000, 0xff_ffff));
    assert_eq!(key.log_page_size(), 12);
    let pages = verbs.list(Opcode::CREATE_MKEY.0, CreateMkeyIn::BYTES);
    let first = verbs.address + 0x1000;
    assert_eq!(pages, [first, first + 0x1000, first + 0x2000, 0], "an even number of entries");
    assert_eq!(command.translations_octword_actual_size(), 2);
    let (lkey, rkey) = (word(&response[4..]), word(&response[8..]));
    assert_eq!((lkey, lkey & 0xff), (rkey, key.mkey_7_0().into()));
    let again = verbs.reg_mr(start, 0x2000, start, 0).expect("another");
    assert_ne!(word(&again[4..]) & 0xff, lkey & 0xff, "the low byte changes with each key");
    assert_eq!(
        verbs.write(command::DEALLOC_PD, &verbs.pd.to_ne_bytes(), 0, &[], 0),
        Err(Errno::EBUSY)
    );
    // An empty range inside a page still lists that page.
    let empty = verbs.reg_mr(start, 0, 0x7000_1010, 1).expect("Linux takes it");
    let pages = verbs.list(Opcode::CREATE_MKEY.0, CreateMkeyIn::BYTES);
    assert_eq!(pages, [first, 0], "an even number of entries");
    for handle in [&response, &again, &empty] {
        let handle = word(handle).into();
        assert_eq!(Request::new(object::MR, 1).handle(0, handle).send(&verbs.fixture.file), Ok(()));
    }
    assert_eq!(
        verbs.write(command::DEALLOC_PD, &verbs.pd.to_ne_bytes(), 0, &[], 0).map(drop),
        Ok(())
    );
    assert_eq!(verbs.fixture.close(), 0);
}

#[test]
fn malformed_mr_is_rejected_before_commands() {
    let verbs = Verbs::new();
    let address = verbs.address;
    for (case, start, length, va, access, errno) in [
        (
            "va and address differ in the page offset",
            address,
            0x1000,
            address + 1,
            1,
            Errno::EINVAL,
        ),
        ("remote write alone", address, 0x1000, address, 2, Errno::EINVAL),
        ("remote atomics alone", address, 0x1000, address, 8, Errno::EINVAL),
        ("an unknown access flag", address, 0x1000, address, 1 << 12, Errno::EINVAL),
        ("on demand", address, 0x1000, address, 1 << 6, Errno::EOPNOTSUPP),
        ("length 0", address, 0, address, 1, Errno::EINVAL),
        ("no memory", 0x1000, 0x1000, 0x1000, 1, Errno::EFAULT),
    ] {
        assert_eq!(verbs.reg_mr(start, length, va, access), Err(errno), "{case}");
    }
    assert_eq!(verbs.fixture.device.count(Opcode::CREATE_MKEY.0), 0);
}

#[test]
fn create_cq_maps_driver_fields() {
    let verbs = Verbs::new();
    let (handle, number, entries) = verbs.cq(100, 1, None, &verbs.cq_driver()).expect("a CQ");
    assert_eq!(entries, 127);
    let command: CreateCqIn = verbs.last(Opcode::CREATE_CQ.0, CreateCqIn::from_prefix);
    let cqc = command.cq_context();
    assert_eq!((cqc.log_cq_size(), cqc.uar_page(), cqc.cqe_sz()), (7, 7, CqeSize::BYTES_64));
    assert_eq!((cqc.page_offset(), cqc.dbr_addr()), (1, verbs.address + 0x8040));
    assert_eq!(cqc.c_eqn_or_apu_element(), 0x43, "the queue of the second vector");
    assert_ne!(command.uid(), 0, "of the client's context");
    let pages = verbs.list(Opcode::CREATE_CQ.0, CreateCqIn::BYTES);
    assert_eq!(pages, [0, 1, 2].map(|page| verbs.address + page * 0x1000));
    let mut response = [0xff; 8];
    verbs.destroy(object::CQ, handle, &mut response).expect("the object is destroyed");
    assert_eq!(
        (response, verbs.fixture.device.last(Opcode::DESTROY_CQ.0).expect("sent")[11]),
        ([0; 8], number as u8)
    );
}

#[test]
fn modify_cq_sets_moderation() {
    let verbs = Verbs::new();
    let (handle, number, _) = verbs.cq(100, 0, None, &verbs.cq_driver()).expect("a CQ");
    let modify = |mask, period, reserved| {
        let request = fields(&[4, 4, 2, 2, 4], &[handle, mask, 17, period, reserved]);
        verbs.write(command::EX_MODIFY_CQ, &request, 0, &[], 0)
    };
    assert_eq!(modify(1, 40, 0), Ok((vec![], vec![])));
    let command: ModifyCqIn = verbs.last(Opcode::MODIFY_CQ.0, ModifyCqIn::from_prefix);
    assert_eq!((command.cqn(), command.modify_field_select()), (number, 3));
    assert_eq!((command.cq_context().cq_period(), command.cq_context().cq_max_count()), (40, 17));
    assert_ne!(command.uid(), 0, "of the client's context");
    for (case, answer, errno) in [
        ("nothing to change", modify(0, 40, 0), Errno::EINVAL),
        ("a reserved field", modify(1, 40, 1), Errno::EINVAL),
        ("an unknown change", modify(2, 40, 0), Errno::EOPNOTSUPP),
        ("a period of 13 bits", modify(1, 0x1000, 0), Errno::EINVAL),
    ] {
        assert_eq!(answer, Err(errno), "{case}");
    }
    assert_eq!(verbs.fixture.device.count(Opcode::MODIFY_CQ.0), 1);
}

#[test]
fn resize_cq_sends_modify_cq() {
    let verbs = Verbs::with(|caps| {
        caps.set_cq_resize(true);
    });
    let (handle, number, entries) = verbs.cq(63, 0, None, &verbs.cq_driver()).expect("a CQ");
    assert_eq!(entries, 63);
    let resize = |handle: u64, entries: u64, driver: [u64; 4]| {
        let core = fields(&[8, 4, 4], &[0, handle, entries]);
        let driver = fields(&[8, 2, 2, 4], &driver);
        verbs.write(command::RESIZE_CQ, &core, 8, &driver, 0).map(|(core, _)| word(&core))
    };
    let buffer = verbs.address + 0x2_0080;
    assert_eq!(resize(handle, 63, [0; 4]), Ok(63), "same size: the buffer is not read");
    assert_eq!(verbs.fixture.device.count(Opcode::MODIFY_CQ.0), 0);
    assert_eq!(resize(handle, 100, [buffer, 64, 0, 0]), Ok(127));
    let command: ModifyCqIn = verbs.last(Opcode::MODIFY_CQ.0, ModifyCqIn::from_prefix);
    assert_eq!((command.op_mod(), command.cqn()), (ModifyCqIn::RESIZE, number));
    assert_eq!(command.modify_field_select(), 7);
    assert_ne!(command.uid(), 0, "of the client's context");
    let cqc = command.cq_context();
    assert_eq!((cqc.log_cq_size(), cqc.page_offset(), cqc.log_page_size()), (7, 2, 0));
    assert_eq!(cqc.cqe_sz(), CqeSize::BYTES_64);
    let pages = verbs.list(Opcode::MODIFY_CQ.0, ModifyCqIn::BYTES);
    assert_eq!(pages, [0, 1, 2].map(|page| verbs.address + 0x2_0000 + page * 0x1000));
    for (case, answer, errno) in [
        ("no entries", resize(handle, 0, [buffer, 64, 0, 0]), Errno::EINVAL),
        ("too many", resize(handle, 4096, [buffer, 64, 0, 0]), Errno::EINVAL),
        (
            "a negative number of entries",
            resize(handle, 0xffff_ffff, [buffer, 64, 0, 0]),
            Errno::EINVAL,
        ),
        ("a reserved field", resize(handle, 15, [buffer, 64, 1, 0]), Errno::EINVAL),
        ("another reserved field", resize(handle, 15, [buffer, 64, 0, 1]), Errno::EINVAL),
        ("a CQE size of 0", resize(handle, 15, [buffer, 0, 0, 0]), Errno::EINVAL),
        ("a misaligned buffer", resize(handle, 15, [buffer + 4, 64, 0, 0]), Errno::EINVAL),
    ] {
        assert_eq!(answer, Err(errno), "{case}");
    }
    assert_eq!(verbs.fixture.device.count(Opcode::MODIFY_CQ.0), 1);
    // More CQEs wait than the new size holds.
    verbs.fixture.device.refuse_next(Opcode::MODIFY_CQ.0, 0x40);
    assert_eq!(resize(handle, 3, [buffer, 64, 0, 0]), Err(Errno::EINVAL));
    assert_eq!(resize(handle, 127, [0; 4]), Ok(127), "the size is unchanged");
    let lacking = Verbs::new();
    let (handle, _) = lacking.plain_cq();
    let core = fields(&[8, 4, 4], &[0, handle, 7]);
    assert_eq!(
        lacking.write(command::RESIZE_CQ, &core, 8, &[0; 16], 0).map(drop),
        Err(Errno::ENOSYS)
    );
}

#[test]
fn malformed_cq_is_rejected() {
    let verbs = Verbs::new();
    let with = |at: usize, bytes: &[u8]| {
        let mut driver = verbs.cq_driver();
        driver[at..at + bytes.len()].copy_from_slice(bytes);
        driver
    };
    for (case, entries, vector, driver) in [
        ("too many entries", 4096, 0, verbs.cq_driver()),
        ("a negative number of entries", u32::MAX, 0, verbs.cq_driver()),
        ("no such vector", 63, 2, verbs.cq_driver()),
        ("a CQE of 32 bytes", 63, 0, with(16, &[32])),
        ("an unknown flag", 63, 0, with(22, &[10])),
        ("no uar_page and no bfreg flag", 63, 0, with(22, &[0])),
        ("a reserved field", 63, 0, with(28, &[1])),
        ("a misaligned buffer", 63, 0, with(0, &[0x41])),
        ("a truncated request", 63, 0, verbs.cq_driver()[..16].to_vec()),
    ] {
        assert_eq!(verbs.cq(entries, vector, None, &driver), Err(Errno::EINVAL), "{case}");
    }
    assert_eq!(verbs.cq(63, 0, None, &with(20, &[1])), Err(Errno::EOPNOTSUPP), "compressed");
    assert_eq!(verbs.fixture.device.count(Opcode::CREATE_CQ.0), 0);
}

#[test]
fn destroy_cq_is_eagain_while_events_cannot_be_retracted() {
    let verbs = Verbs::new();
    let (channel, device) = (verbs.comp_channel(), &verbs.fixture.device);
    let (handle, number, _) = verbs.cq(63, 0, Some(&channel), &verbs.cq_driver()).expect("a CQ");
    let hide = |hide| verbs.fixture.client.hides_descriptors.store(hide, Ordering::Relaxed);
    device.event(1, 0, event::COMPLETION, &[(6, number)]);
    let mut response = [0xff; 8];
    hide(true);
    assert_eq!(verbs.destroy(object::CQ, handle, &mut response), Err(Errno::EAGAIN));
    assert_eq!(device.count(Opcode::DESTROY_CQ.0), 0);
    device.event(1, 1, event::COMPLETION, &[(6, number)]);
    hide(false);
    assert_eq!(verbs.destroy(object::CQ, handle, &mut response), Ok(()));
    assert_eq!(response, [0; 8], "both are retracted");
    let (handle, ..) = verbs.cq(63, 0, Some(&channel), &verbs.cq_driver()).expect("a CQ");
    hide(true);
    assert_eq!(verbs.destroy(object::CQ, handle, &mut response), Ok(()), "the CQ has no event");
}

#[test]
fn cq_event_is_delivered_once_and_retracted() {
    let verbs = Verbs::new();
    let channel = verbs.comp_channel();
    let (handle, number, _) = verbs.cq(63, 0, Some(&channel), &verbs.cq_driver()).expect("a CQ");
    let raise = |index| verbs.fixture.device.event(1, index, event::COMPLETION, &[(6, number)]);
    (0..3).for_each(raise);
    assert_eq!(read(&channel), 0xcafe_f00d_u64.to_ne_bytes());
    let mut response = [0; 8];
    verbs.destroy(object::CQ, handle, &mut response).expect("the object is destroyed");
    assert_eq!(word(&response), 1, "one of three was read");
    assert!(read(&channel).is_empty(), "a destroyed queue sends no event");
    raise(3);
    assert!(read(&channel).is_empty());
}

#[test]
fn create_qp_maps_driver_fields() {
    let verbs = Verbs::new();
    let (qp, number, cq) = verbs.rc();
    let command: CreateQpIn = verbs.last(Opcode::CREATE_QP.0, CreateQpIn::from_prefix);
    let qpc = command.qpc();
    assert_eq!((qpc.st(), qpc.rq_type(), qpc.no_sq()), (ServiceType::RC, RqType::REGULAR, false));
    assert_eq!((qpc.log_sq_size(), qpc.log_rq_size(), qpc.log_rq_stride()), (4, 3, 2));
    assert_eq!((qpc.uar_page(), qpc.user_index(), qpc.page_offset()), (7, 0x55, 0));
    assert_eq!(qpc.dbr_addr(), verbs.address + 0x8080);
    let pages = verbs.list(Opcode::CREATE_QP.0, CreateQpIn::BYTES);
    assert_eq!(pages, [verbs.address + 0x1_0000], "RQ 512 B and SQ 1024 B fit into one page");
    let mut response = [0; 8];
    assert_eq!(verbs.destroy(object::CQ, cq, &mut response), Err(Errno::EBUSY));
    verbs.destroy(object::QP, qp, &mut [0; 4]).expect("the object is destroyed");
    assert_eq!(verbs.fixture.device.count(Opcode::QP_2RST.0), 0, "the QP is still in RESET");
    assert_eq!(verbs.fixture.device.last(Opcode::DESTROY_QP.0).expect("sent")[11], number as u8);
    verbs.destroy(object::CQ, cq, &mut response).expect("its QP was destroyed");
}

#[test]
fn malformed_qp_is_rejected() {
    let verbs = Verbs::new();
    let (cq, _) = verbs.plain_cq();
    let some = [4, 8, 1, 4, 0];
    let with = |at: usize, value: u32| {
        let mut driver = verbs.qp_driver(8, 1 << 10);
        driver[at..at + 4].copy_from_slice(&value.to_ne_bytes());
        driver
    };
    for (case, kind, capacity, driver, errno) in [
        ("raw packets", 8, some, with(16, 16), Errno::EPERM),
        ("XRC", 9, some, with(16, 16), Errno::EOPNOTSUPP),
        ("no such type", 5, some, with(16, 16), Errno::EINVAL),
        ("no power of two", 2, some, with(16, 12), Errno::EINVAL),
        ("too many WQEBBs", 2, some, with(16, 2048), Errno::EINVAL),
        ("too many receives", 2, [4, 2048, 1, 1, 0], with(16, 16), Errno::EINVAL),
        ("receives without a queue", 2, [4, 0, 1, 0, 0], with(16, 16), Errno::EINVAL),
        ("an unknown flag", 2, some, with(28, 1 << 10 | 1 << 20), Errno::EINVAL),
        ("flags without a UAR page", 2, some, with(28, 0), Errno::EINVAL),
        ("no user index", 2, some, with(32, 0xff_ffff), Errno::EINVAL),
    ] {
        assert_eq!(verbs.qp(kind, (cq, cq), None, capacity, &driver), Err(errno), "{case}");
    }
    let no_cq = verbs.qp(2, (verbs.pd.into(), cq), None, some, &with(16, 16));
    assert_eq!(no_cq, Err(Errno::EINVAL), "a PD is no CQ");
    assert_eq!(verbs.fixture.device.count(Opcode::CREATE_QP.0), 0);
}

#[test]
fn modify_qp_sends_reset_to_rts_commands() {
    let verbs = Verbs::new();
    let (qp, number, _) = verbs.rc();
    let port: (usize, &[u8]) = (104, &[1]);
    verbs.modify(qp, INIT, &[(96, &[1]), port, (88, &[6])]).expect("INIT");
    let init: Rst2initQpIn = verbs.last(Opcode::RST2INIT_QP.0, Rst2initQpIn::from_prefix);
    let qpc = init.qpc();
    assert_eq!((init.qpn(), init.opt_param_mask()), (number, 0));
    assert!(qpc.rwe() && !qpc.rre(), "max_dest_rd_atomic is 0, so rre and rae stay clear");
    assert_eq!(qpc.primary_address_path().vhca_port_num(), 1);
    let to: &[(usize, &[u8])] = &[
        (96, &[2]),
        (20, &[9, 0]),
        (31, &[1]),
        (98, &[3]),
        (84, &[0x34, 0x12]),
        (102, &[4]),
        (103, &[12]),
    ];
    let other_port: Vec<_> = to.iter().copied().chain([(31, &[2][..])]).collect();
    assert_eq!(verbs.modify(qp, RTR, &other_port), Err(Errno::EINVAL), "not its port");
    assert_eq!(verbs.modify(qp, RTR & !IB_QP_AV, to), Err(Errno::EINVAL), "no address");
    verbs.modify(qp, RTR, to).expect("RTR");
    let rtr: Init2rtrQpIn = verbs.last(Opcode::INIT2RTR_QP.0, Init2rtrQpIn::from_prefix);
    let qpc = rtr.qpc();
    assert_eq!(
        (qpc.remote_qpn(), qpc.mtu().0, qpc.log_msg_max(), qpc.log_rra_max()),
        (0x1234, 3, 30, 2)
    );
    assert_eq!((qpc.primary_address_path().rlid(), qpc.min_rnr_nak()), (9, 12));
    assert!(qpc.rwe() && qpc.rre());
    let access = OptParamMask::RRE.0 | OptParamMask::RWE.0 | OptParamMask::RAE.0;
    assert_eq!(rtr.opt_param_mask(), access);
    verbs
        .modify(qp, RTS, &[(96, &[3]), (80, &[7]), (101, &[16]), (106, &[7]), (105, &[14])])
        .expect("RTS");
    let rts: Rtr2rtsQpIn = verbs.last(Opcode::RTR2RTS_QP.0, Rtr2rtsQpIn::from_prefix);
    let qpc = rts.qpc();
    assert_eq!((qpc.next_send_psn(), qpc.log_sra_max(), qpc.retry_count()), (7, 4, 7));
    assert_eq!(qpc.primary_address_path().ack_timeout(), 14);
    assert_eq!(
        verbs.modify(qp, IB_QP_STATE, &[(96, &[1])]),
        Err(Errno::EINVAL),
        "RTS to INIT is no transition"
    );
    verbs.destroy(object::QP, qp, &mut [0; 4]).expect("the object is destroyed");
    assert_eq!(verbs.fixture.device.count(Opcode::QP_2RST.0), 1, "stopped first");
}

#[test]
fn srq_is_rmp_referenced_by_qp() {
    let verbs = Verbs::new();
    assert_eq!(verbs.try_srq(100, IB_SRQT_XRC), Err(Errno::EOPNOTSUPP), "XRC");
    assert_eq!(verbs.try_srq(1024, IB_SRQT_BASIC), Err(Errno::EINVAL), "too many");
    let (srq, number, requests) = verbs.try_srq(100, IB_SRQT_BASIC).expect("an SRQ");
    assert_eq!(requests, 127);
    let command: CreateRmpIn = verbs.last(Opcode::CREATE_RMP.0, CreateRmpIn::from_prefix);
    let wq = command.ctx().wq();
    assert_eq!((wq.log_wq_sz(), wq.log_wq_stride(), wq.pd()), (7, 6, verbs.pdn));
    let (cq, _) = verbs.plain_cq();
    let (qp, _) = verbs
        .qp(2, (cq, cq), Some(srq), [4, 0, 1, 0, 0], &verbs.qp_driver(0, 1 << 10))
        .expect("a QP");
    let command: CreateQpIn = verbs.last(Opcode::CREATE_QP.0, CreateQpIn::from_prefix);
    let qpc = command.qpc();
    assert_eq!((qpc.rq_type(), qpc.srqn_rmpn_xrqn()), (RqType::SRQ, number));
    assert_eq!(verbs.destroy(object::SRQ, srq, &mut [0; 4]), Err(Errno::EBUSY));
    let limit = |mask: u32, limit: u64| {
        let core = fields(&[4, 4, 4, 4], &[srq, mask.into(), 0, limit]);
        verbs.write(command::MODIFY_SRQ, &core, 0, &[], 0).map(drop)
    };
    assert_eq!(limit(1, 0), Err(Errno::EINVAL), "an SRQ does not grow");
    assert_eq!(limit(2, 128), Err(Errno::EINVAL));
    limit(2, 5).expect("armed");
    let armed: ModifyRmpIn = verbs.last(Opcode::MODIFY_RMP.0, ModifyRmpIn::from_prefix);
    assert_eq!((armed.rmpn(), armed.ctx().wq().lwm()), (number, 5));
    verbs.destroy(object::QP, qp, &mut [0; 4]).expect("the QP is destroyed");
    verbs.destroy(object::SRQ, srq, &mut [0; 4]).expect("the object is destroyed");
}

#[test]
fn ud_qp_joins_and_leaves_multicast_groups() {
    let verbs = Verbs::new();
    let (cq, _) = verbs.plain_cq();
    let driver = verbs.qp_driver(8, 1 << 10);
    let (qp, _) = verbs.qp(4, (cq, cq), None, [4, 8, 1, 4, 0], &driver).expect("a QP");
    let member = |number, gid: [u8; 16], lid: u64| {
        let core = [&gid[..], &fields(&[4, 2, 2], &[qp, lid, 0])].concat();
        verbs.write(number, &core, 0, &[], 0).map(drop)
    };
    let mut gid = [0; 16];
    assert_eq!(
        member(command::ATTACH_MCAST, gid, 0xc001),
        Err(Errno::EINVAL),
        "no multicast address"
    );
    gid[0] = 0xff;
    assert_eq!(member(command::ATTACH_MCAST, gid, 1), Err(Errno::EINVAL), "no LID of a group");
    member(command::ATTACH_MCAST, gid, 0xc001).expect("the QP joins");
    member(command::ATTACH_MCAST, gid, 0xc001).expect("once is enough");
    assert_eq!(verbs.fixture.device.count(Opcode::ATTACH_TO_MCG.0), 1);
    let attach: AttachToMcgIn = verbs.last(Opcode::ATTACH_TO_MCG.0, AttachToMcgIn::from_prefix);
    assert_eq!(*attach.multicast_gid(), gid);
    assert_eq!(verbs.destroy(object::QP, qp, &mut [0; 4]), Err(Errno::EBUSY));
    member(command::DETACH_MCAST, gid, 0xc001).expect("the QP leaves");
    assert_eq!(member(command::DETACH_MCAST, gid, 0xc001), Err(Errno::EINVAL));
    member(command::ATTACH_MCAST, gid, 0xc001).expect("the QP joins again");
    let device = verbs.fixture.device.clone();
    assert_eq!(verbs.fixture.close(), 0);
    assert_eq!(device.count(Opcode::DETACH_FROM_MCG.0), 2, "closing the file detaches it");
}

#[test]
fn qp_joins_groups_of_mapped_ipv4_addresses() {
    let verbs = Verbs::new();
    let (cq, _) = verbs.plain_cq();
    let driver = verbs.qp_driver(8, 1 << 10);
    let (qp, _) = verbs.qp(4, (cq, cq), None, [4, 8, 1, 4, 0], &driver).expect("a QP");
    for (first, joined) in
        [(223, Err(Errno::EINVAL)), (224, Ok(())), (239, Ok(())), (240, Err(Errno::EINVAL))]
    {
        let gid = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, first, 1, 2, 3];
        let core = [&gid[..], &fields(&[4, 2, 2], &[qp, 0xc001, 0])].concat();
        assert_eq!(
            verbs.write(command::ATTACH_MCAST, &core, 0, &[], 0).map(drop),
            joined,
            "{first}.1.2.3"
        );
    }
    let attach: AttachToMcgIn = verbs.last(Opcode::ATTACH_TO_MCG.0, AttachToMcgIn::from_prefix);
    assert_eq!(attach.multicast_gid()[10..], [0xff, 0xff, 239, 1, 2, 3]);
}

#[test]
fn qp_event_reaches_async_file() {
    let verbs = Verbs::new();
    let mut file = Request::new(object::ASYNC_EVENT, 0).handle(0, 0);
    file.send(&verbs.fixture.file).expect("an async event file");
    let file = verbs.fixture.take_fd(file.data(0));
    let (qp, number, _) = verbs.rc();
    verbs.fixture.device.event(0, 0, event::WQ_ACCESS_ERROR, &[(6, number)]);
    let record = read(&file);
    assert_eq!((&record[..8], word(&record[8..])), (&0xbeef_u64.to_ne_bytes()[..], 3));
    verbs.fixture.device.event(0, 1, event::COMMUNICATION_ESTABLISHED, &[(6, number)]);
    let mut response = [0; 4];
    verbs.destroy(object::QP, qp, &mut response).expect("the object is destroyed");
    assert_eq!(
        (word(&response), read(&file).len()),
        (1, 0),
        "one was read, the other is retracted"
    );
}

#[test]
fn close_releases_qp_cq_and_mr() {
    let verbs = Verbs::new();
    verbs.rc();
    verbs.reg_mr(verbs.address, 0x1000, verbs.address, 1).expect("a region");
    assert_eq!(verbs.fixture.close(), 0);
}
