//! Queues of verbs, flag by flag and size by size: refusals just past a limit, and the cleanup when
//! the response cannot be written.

use nix::errno::Errno;
use verbless_prm::{
    CreateCqIn, CreateMkeyIn, CreateQpIn, CreateRmpIn, HcaCap, Init2rtrQpIn, Opcode, Rst2initQpIn,
    TimestampFormat,
};

use super::support::{Device, Fixture, Request};
use super::verbs_rig::{Verbs, fields, word};

/// CREATE_CQ by ioctl with these flags and driver flags, for CQEs of `bytes` bytes.
fn cq(
    verbs: &Verbs,
    flags: u32,
    driver_flags: u64,
    bytes: u64,
    compressed: u64,
) -> Result<u64, Errno> {
    let values =
        [verbs.address, verbs.address + 0x8040, bytes, compressed, 0, driver_flags, 7, 0, 0];
    let driver = fields(&[8, 8, 4, 1, 1, 2, 2, 2, 4], &values);
    let (mut cqe, mut uhw) = ([0; 4], [0; 8]);
    let mut request = Request::new(3, 0)
        .handle(0, 0)
        .input(1, &63u32.to_ne_bytes())
        .number(2, 0)
        .input(4, &0u32.to_ne_bytes())
        .input(5, &flags.to_ne_bytes())
        .output(6, &mut cqe)
        .input(0x1000, &driver)
        .output(0x1001, &mut uhw);
    request.send(&verbs.fixture.file).map(|()| request.data(0))
}

/// CREATE_QP by ioctl, of an RC QP with these flags; returns its handle and capacity.
fn qp(
    verbs: &Verbs,
    cqs: (u64, u64),
    flags: u32,
    capacity: [u32; 5],
    driver: &[u8],
) -> Result<(u64, Vec<u32>), Errno> {
    let capacity: Vec<u8> = capacity.iter().flat_map(|value| value.to_ne_bytes()).collect();
    let (mut got, mut number, mut uhw) = ([0; 20], [0; 4], [0; 40]);
    let mut request = Request::new(4, 0)
        .handle(0, 0)
        .handle(2, verbs.pd.into())
        .handle(4, cqs.0)
        .handle(5, cqs.1)
        .number(7, 0)
        .input(8, &capacity)
        .number(9, 2)
        .input(10, &flags.to_ne_bytes())
        .output(13, &mut got)
        .output(14, &mut number)
        .input(0x1000, driver)
        .output(0x1001, &mut uhw);
    request.send(&verbs.fixture.file)?;
    Ok((request.data(0), got.chunks_exact(4).map(word).collect()))
}

/// `mlx5_ib_create_qp` with these words replaced, by offset.
fn qp_driver_with(verbs: &Verbs, words: &[(usize, u64)]) -> Vec<u8> {
    let mut driver = verbs.qp_driver(8, 1 << 10);
    for &(at, value) in words {
        driver[at..at + 4].copy_from_slice(&value.to_ne_bytes()[..4]);
    }
    driver
}

fn created(verbs: &Verbs) -> CreateQpIn {
    verbs.last(Opcode::CREATE_QP.0, CreateQpIn::from_prefix)
}

/// A capacity that any device grants: send WRs, receive WRs, SGEs of both, inline bytes.
const CAPACITY: [u32; 5] = [4, 8, 1, 4, 0];

#[test]
fn create_cq_flags_set_context_bits() {
    let verbs = Verbs::with(|caps| {
        caps.set_cqe_compression(true);
    });
    let context = || {
        let command: CreateCqIn = verbs.last(Opcode::CREATE_CQ.0, CreateCqIn::from_prefix);
        let cqc = command.cq_context();
        (cqc.oi(), cqc.cqe_comp_en(), cqc.cq_timestamp_format() == TimestampFormat::REAL_TIME)
    };
    for (flags, driver, compressed, expected) in [
        (0, 2, 0, (false, false, false)),
        (1, 2, 0, (false, false, false)),
        (2, 2, 0, (true, false, false)),
        (3, 2, 0, (true, false, false)),
        (0, 2, 1, (false, true, false)),
        (0, 2, 2, (false, false, false)),
        (0, 6, 0, (false, false, true)),
    ] {
        cq(&verbs, flags, driver, 64, compressed).expect("a CQ");
        assert_eq!(context(), expected, "{flags} {driver} {compressed}");
    }
    assert_eq!(cq(&verbs, 4, 2, 64, 0), Err(Errno::EINVAL), "an unknown flag");
    assert_eq!(
        cq(&verbs, 0, 2, 128, 1),
        Err(Errno::EOPNOTSUPP),
        "the device compresses only CQEs of 64 bytes"
    );
    let long = Verbs::with(|caps| {
        caps.set_cqe_compression_128(true);
    });
    assert_eq!(cq(&long, 0, 2, 128, 1).map(drop), Ok(()));
    assert_eq!(
        cq(&long, 0, 2, 64, 1),
        Err(Errno::EOPNOTSUPP),
        "the device compresses only CQEs of 128 bytes"
    );
}

#[test]
fn old_create_cq_ignores_negative_channel() {
    let verbs = Verbs::new();
    let make = |channel: i32| {
        let channel = u64::from(channel.cast_unsigned());
        let core = fields(&[8, 8, 4, 4, 4, 4], &[0, 0, 7, 0, channel, 0]);
        verbs.write(18, &core, 8, &verbs.cq_driver(), 8).map(drop)
    };
    assert_eq!(make(-1), Ok(()));
    assert_eq!(make(i32::MIN), Ok(()));
    assert_eq!(make(0), Err(Errno::EBADF), "standard input is not a channel");
}

#[test]
fn cq_period_is_limited_to_12_bits() {
    let verbs = Verbs::new();
    let (handle, _) = verbs.plain_cq();
    let modify = |period| {
        let core = fields(&[4, 4, 2, 2, 4], &[handle, 1, 0xffff, period, 0]);
        verbs.write(1 << 31 | 57, &core, 0, &[], 0).map(drop)
    };
    assert_eq!(modify(0xfff), Ok(()));
    assert_eq!(modify(0x1000), Err(Errno::EINVAL));
}

#[test]
fn qp_ts_format_follows_cqs_and_capability() {
    use TimestampFormat as Format;
    let unsupported = Err(Errno::EOPNOTSUPP);
    let (free, real, default) = (Format::FREE_RUNNING, Format::REAL_TIME, Format::DEFAULT);
    // Flags of CREATE_CQ and of the driver: CQs without timestamps, with free-running ones, with
    // real-time ones. The expected table has a row per send CQ, for each `sq_ts_format` offered.
    let cq_flags = [(0, 2), (1, 2), (0, 6)];
    for (offered, expected) in [
        (
            0,
            [
                [Ok(free), Ok(free), unsupported],
                [Ok(free), Ok(free), unsupported],
                [unsupported, unsupported, unsupported],
            ],
        ),
        (
            1,
            [
                [Ok(default), unsupported, Ok(real)],
                [unsupported, unsupported, unsupported],
                [Ok(real), unsupported, Ok(real)],
            ],
        ),
        (
            2,
            [
                [Ok(free), Ok(free), unsupported],
                [Ok(free), Ok(free), unsupported],
                [unsupported, unsupported, Ok(real)],
            ],
        ),
    ] {
        let mut caps = HcaCap::zeroed();
        caps.set_log_max_uctx(4).set_num_ports(1).set_log_max_qp(17).set_log_max_qp_sz(10);
        caps.set_log_max_cq_sz(12).set_roce(true);
        let device = Device::with(caps, false);
        let mut page = [0; 0x50];
        page[0x13] = offered;
        device.answer(Opcode::QUERY_HCA_CAP, 4 << 1 | 1, &page);
        let verbs = Verbs::on(device);
        let cqs = cq_flags.map(|(flags, driver)| cq(&verbs, flags, driver, 64, 0).expect("a CQ"));
        for (send, row) in cqs.into_iter().zip(expected) {
            for (receive, format) in cqs.into_iter().zip(row) {
                let made = qp(&verbs, (send, receive), 0, CAPACITY, &qp_driver_with(&verbs, &[]));
                let got = made.map(|_| created(&verbs).qpc().ts_format());
                assert_eq!(got, format, "{offered}: CQs {send} and {receive} of {cqs:?}");
            }
        }
    }
}

#[test]
fn create_qp_flags_need_capabilities() {
    const BLOCK: u32 = 1 << 1;
    const PADDING: u32 = 1 << 11;
    const SQ_SIG_ALL: u32 = 1 << 12;
    let verbs = Verbs::with(|caps| {
        caps.set_block_lb_mc(true).set_end_pad(true);
    });
    let (one, _) = verbs.plain_cq();
    for (flags, signed) in
        [(0, 0), (BLOCK, 0), (PADDING, 0), (SQ_SIG_ALL, 0), (0, 1), (BLOCK | PADDING, 1)]
    {
        let driver = qp_driver_with(&verbs, &[(28, 1 << 10 | signed)]);
        let (_, capacity) = qp(&verbs, (one, one), flags, CAPACITY, &driver).expect("a QP");
        assert_eq!(capacity, CAPACITY);
        let command = created(&verbs);
        let qpc = command.qpc();
        assert_eq!(
            (qpc.block_lb_mc(), qpc.end_padding_mode().0, qpc.wq_signature()),
            (flags & BLOCK != 0, u8::from(flags & PADDING != 0), signed == 1),
            "{flags:#x}"
        );
    }
    let lacking = Verbs::new();
    let (one, _) = lacking.plain_cq();
    for flags in [BLOCK, PADDING, 1 << 8, 1 << 9, 1 << 13] {
        let made = qp(&lacking, (one, one), flags, CAPACITY, &qp_driver_with(&lacking, &[]));
        assert_eq!(made, Err(Errno::EINVAL), "{flags:#x}");
    }
    qp(&lacking, (one, one), SQ_SIG_ALL, CAPACITY, &qp_driver_with(&lacking, &[]))
        .expect("the request needs no capability");
}

#[test]
fn longer_structure_requires_zeros() {
    let verbs = Verbs::new();
    let (one, _) = verbs.plain_cq();
    let driver = qp_driver_with(&verbs, &[]);
    let make = |capacity: &[u8]| {
        let (mut number, mut uhw) = ([0; 4], [0; 40]);
        Request::new(4, 0)
            .handle(0, 0)
            .handle(2, verbs.pd.into())
            .handle(4, one)
            .handle(5, one)
            .number(7, 0)
            .input(8, capacity)
            .number(9, 2)
            .output(14, &mut number)
            .input(0x1000, &driver)
            .output(0x1001, &mut uhw)
            .output(13, &mut [0; 20])
            .send(&verbs.fixture.file)
    };
    let capacity: Vec<u8> = CAPACITY.iter().flat_map(|value| value.to_ne_bytes()).collect();
    let longer = |more: &[u8]| make(&[&capacity[..], more].concat());
    assert_eq!(make(&capacity), Ok(()));
    assert_eq!(longer(&[0; 4]), Ok(()));
    assert_eq!(longer(&[0, 0, 0, 1]), Err(Errno::EOPNOTSUPP));
    assert_eq!(longer(&[1, 0, 0, 0]), Err(Errno::EOPNOTSUPP));
    assert_eq!(make(&capacity[..16]), Err(Errno::EINVAL));
    assert_eq!(make(&[0; 4]), Err(Errno::EINVAL));
}

#[test]
fn qp_rings_are_limited() {
    let verbs = Verbs::new();
    let (one, _) = verbs.plain_cq();
    let make = |receives: u32, words: &[(usize, u64)]| {
        let capacity = [4, receives, 1, u32::from(receives != 0), 0];
        qp(&verbs, (one, one), 0, capacity, &qp_driver_with(&verbs, words)).map(drop)
    };
    let (send, receive, stride) = (16, 20, 24);
    for (case, receives, words, expected) in [
        ("the most sends", 8, vec![(send, 1024)], Ok(())),
        ("more sends", 8, vec![(send, 2048)], Err(Errno::EINVAL)),
        ("the most receives", 1024, vec![(receive, 1024)], Ok(())),
        ("more receives", 1025, vec![(receive, 1024)], Err(Errno::EINVAL)),
        ("more in the queue", 8, vec![(receive, 1025)], Err(Errno::EINVAL)),
        ("none in the queue", 8, vec![(receive, 0)], Err(Errno::EINVAL)),
        ("the shortest stride", 8, vec![(stride, 4)], Ok(())),
        ("a shorter one", 8, vec![(stride, 3)], Err(Errno::EINVAL)),
        ("a longer one", 8, vec![(stride, 16)], Err(Errno::EINVAL)),
        ("no receives", 0, vec![(receive, 0), (stride, 0)], Ok(())),
        ("a queue for none", 0, vec![(receive, 8), (stride, 0)], Err(Errno::EINVAL)),
        ("a stride for none", 0, vec![(receive, 0), (stride, 6)], Err(Errno::EINVAL)),
    ] {
        assert_eq!(make(receives, &words), expected, "{case}");
    }
}

#[test]
fn qp_buffer_pages_are_listed() {
    let verbs = Verbs::new();
    let (one, _) = verbs.plain_cq();
    let pages = || verbs.list(Opcode::CREATE_QP.0, CreateQpIn::BYTES);
    qp(&verbs, (one, one), 0, CAPACITY, &qp_driver_with(&verbs, &[(16, 128)])).expect("a QP");
    let first = verbs.address + 0x1_0000;
    assert_eq!(pages(), [first, first + 0x1000, first + 0x2000], "512 and 8192 bytes");
    qp(&verbs, (one, one), 0, CAPACITY, &qp_driver_with(&verbs, &[(0, 0), (4, 0)])).expect("a QP");
    assert!(pages().is_empty(), "the library named none");
    let nothing = [(16, 0), (20, 0), (24, 0)];
    qp(&verbs, (one, one), 0, [0; 5], &qp_driver_with(&verbs, &nothing)).expect("a QP");
    assert!(pages().is_empty(), "there is no queue");
    assert!(created(&verbs).qpc().no_sq());
}

#[test]
fn qp_defaults_to_first_uar_of_context() {
    let fixture = Fixture::without_context(Verbs::new().fixture.device);
    let mut response = [0; 72];
    let request = [16u8, 0, 0, 0, 4, 0, 0, 0];
    let mut get = Request::new(0, 3).input(0x1000, &request).output(0x1001, &mut response);
    assert_eq!(get.send(&fixture.file), Ok(()));
    let mut page = [0; 4];
    Request::new(0x1000, 0x1001)
        .input(0x1000, &[0; 4])
        .output(0x1001, &mut page)
        .send(&fixture.file)
        .expect("the page of the first register");
    let verbs = Verbs::with_fixture(fixture);
    let (one, _) = verbs.plain_cq();
    qp(&verbs, (one, one), 0, CAPACITY, &qp_driver_with(&verbs, &[(28, 0)])).expect("a QP");
    assert_eq!(created(&verbs).qpc().uar_page(), word(&page));
    for flags in [1 << 3, 1 << 3 | 1 << 10] {
        let made = qp(&verbs, (one, one), 0, CAPACITY, &qp_driver_with(&verbs, &[(28, flags)]));
        assert_eq!(made, Err(Errno::EINVAL), "{flags:#x}: an unallocated register");
    }
}

#[test]
fn object_with_unwritable_answer_is_destroyed() {
    let verbs = Verbs::new();
    let (one, _) = verbs.plain_cq();
    let device = verbs.fixture.device.clone();
    let made = device.held();
    let old_qp = fields(
        &[8, 8, 4, 4, 4, 4, 4, 4, 4, 4, 4, 1, 1, 1, 1],
        &[0, 0, verbs.pd.into(), one, one, 0, 4, 8, 1, 4, 0, 0, 2, 0, 0],
    );
    let old_srq = fields(&[8, 8, 4, 4, 4, 4], &[0, 0, verbs.pd.into(), 15, 1, 0]);
    let srq_driver =
        fields(&[8, 8, 4, 4, 4, 4], &[verbs.address, verbs.address + 0x8000, 0, 0, 1, 0]);
    let mw = fields(&[8, 4, 4], &[0, verbs.pd.into(), 1]);
    let mr =
        fields(&[8, 8, 8, 8, 4, 4], &[0, verbs.address, 0x1000, verbs.address, verbs.pd.into(), 1]);
    for (number, core, driver, room) in [
        (24, old_qp, verbs.qp_driver(8, 1 << 10), 32),
        (32, old_srq, srq_driver, 16),
        (14, mw, vec![0; 8], 8),
        (9, mr, vec![], 12),
    ] {
        let mut request =
            Request::new(0, 0).number(2, number).input(0, &core).raw(1, room, 1, 0, 8);
        let mut uhw = [0; 40];
        if !driver.is_empty() {
            request = request.input(0x1000, &driver).output(0x1001, &mut uhw);
        }
        assert_eq!(request.send(&verbs.fixture.file), Err(Errno::EFAULT), "command {number}");
        assert_eq!(device.held(), made, "command {number}");
    }
}

#[test]
fn srq_stride_holds_sges_and_next_segment() {
    let verbs = Verbs::new();
    let create = |sges: u64, flags: u64| {
        let driver =
            fields(&[8, 8, 4, 4, 4, 4], &[verbs.address, verbs.address + 0x8000, flags, 0, 1, 0]);
        let core = fields(&[8, 8, 4, 4, 4, 4], &[0, 0, verbs.pd.into(), 15, sges, 0]);
        let (output, _) = verbs.write(32, &core, 16, &driver, 8)?;
        let command: CreateRmpIn = verbs.last(Opcode::CREATE_RMP.0, CreateRmpIn::from_prefix);
        let wq = command.ctx().wq();
        Ok((word(&output), wq.log_wq_stride(), wq.wq_signature()))
    };
    for (sges, log) in [(0, 5), (1, 5), (2, 6), (3, 6), (4, 7), (7, 7), (8, 8), (32, 10)] {
        assert_eq!(create(sges, 0).map(|it| it.1), Ok(log), "{sges} segments");
    }
    assert_eq!(create(33, 0), Err(Errno::EINVAL), "more than 512 bytes");
    for (flags, signed) in [(0, false), (1, true), (2, false), (3, true)] {
        assert_eq!(create(1, flags).map(|it| it.2), Ok(signed), "flags {flags}");
    }
    let (srq, ..) = create(1, 0).expect("an SRQ");
    let destroy = fields(&[8, 4, 4], &[0, srq.into(), 0]);
    assert_eq!(verbs.write(35, &destroy, 4, &[], 0), Ok((vec![0; 4], vec![])));
    assert_eq!(verbs.write(35, &destroy, 4, &[], 0), Err(Errno::ENOENT));
}

#[test]
fn mkey_page_size_follows_both_addresses() {
    for (pg, present) in [(false, 0), (true, 3)] {
        let mut device = Device::with(Device::new().caps, false);
        device.caps.set_pg(pg);
        let verbs = Verbs::on(device);
        let start = verbs.address.next_multiple_of(0x1_0000);
        for (apart, log) in [(0, 16), (0x1_0000, 16), (0x2000, 13), (0x3000, 12)] {
            let output = verbs.reg_mr(start, 0x1_0000, start ^ apart, 1).expect("a region");
            let command: CreateMkeyIn =
                verbs.last(Opcode::CREATE_MKEY.0, CreateMkeyIn::from_prefix);
            assert_eq!(command.memory_key_mkey_entry().log_page_size(), log, "{apart:#x}");
            assert_eq!(command.pg_access(), pg);
            let pages = verbs.list(Opcode::CREATE_MKEY.0, CreateMkeyIn::BYTES);
            let count = 0x1_0000 >> log;
            for (page, entry) in (0..count).zip(&pages) {
                assert_eq!(*entry, start + (page << log) + present, "{apart:#x}");
            }
            let key = word(&output[4..]) >> 8;
            let handle = word(&output).to_ne_bytes();
            verbs.write(13, &handle, 0, &[], 0).expect("the object is destroyed");
            let destroy = verbs.fixture.device.last(Opcode::DESTROY_MKEY.0).expect("sent");
            assert_eq!(destroy[8..12], key.to_be_bytes(), "the key has the index of the device");
        }
    }
}

#[test]
fn mw_rkey_has_index_of_device() {
    let verbs = Verbs::new();
    let core = fields(&[8, 4, 4], &[0, verbs.pd.into(), 1]);
    let (output, _) = verbs.write(14, &core, 8, &[0; 8], 8).expect("a window");
    verbs.write(16, &output[..4], 0, &[], 0).expect("the object is destroyed");
    let destroy = verbs.fixture.device.last(Opcode::DESTROY_MKEY.0).expect("sent");
    assert_eq!(destroy[8..12], (word(&output[4..]) >> 8).to_be_bytes());
}

#[test]
fn doorbell_record_must_be_client_memory() {
    let verbs = Verbs::new();
    let (one, _) = verbs.plain_cq();
    let record = |address: u64| {
        let words = [(8, address & 0xffff_ffff), (12, address >> 32)];
        qp(&verbs, (one, one), 0, CAPACITY, &qp_driver_with(&verbs, &words)).map(drop)
    };
    assert_eq!(record(0x40), Err(Errno::EFAULT));
    assert_eq!(record(verbs.address + 0xfc0), Ok(()));
    assert_eq!(created(&verbs).qpc().dbr_addr(), verbs.address + 0xfc0);
}

/// `ib_qp_attr_mask`.
const STATE: u32 = 1;
const CURRENT: u32 = 1 << 1;
const PKEY: u32 = 1 << 4;
const PORT: u32 = 1 << 5;
const QKEY: u32 = 1 << 6;
const AV: u32 = 1 << 7;

/// A UD QP on a device of two ports.
fn ud_qp() -> (Verbs, u64) {
    let verbs = Verbs::with(|caps| {
        caps.set_num_ports(2);
    });
    let (one, _) = verbs.plain_cq();
    let driver = verbs.qp_driver(8, 1 << 10);
    let (qp, _) = verbs.qp(4, (one, one), None, CAPACITY, &driver).expect("a QP");
    (verbs, qp)
}

#[test]
fn addresses_and_states_are_checked_before_the_q_key() {
    let (verbs, qp) = ud_qp();
    // A request that passes the first checks fails for its privileged Q_Key.
    let privileged: (usize, &[u8]) = (72, &[0, 0, 0, 0x80]);
    let (eperm, einval) = (Errno::EPERM, Errno::EINVAL);
    let (to, port, state, current) = (31, 104, 96, 97);
    for (case, mask, values, errno) in [
        ("no address", 0, vec![], eperm),
        ("an address alone sets the port", AV, vec![(to, 1)], eperm),
        ("of no port", AV, vec![(to, 3)], einval),
        ("on the port that is set", AV | PORT, vec![(to, 2), (port, 2)], eperm),
        ("on another", AV | PORT, vec![(to, 2), (port, 1)], einval),
        ("to INIT", STATE | AV, vec![(to, 1), (state, 1)], eperm),
        ("to RTR by another port", STATE | AV, vec![(to, 1), (state, 2)], einval),
        ("the last state", STATE, vec![(state, 6)], eperm),
        ("no such state", STATE, vec![(state, 7)], einval),
        ("no such state, but not selected", 0, vec![(state, 7), (current, 7)], eperm),
        ("the last current state", CURRENT, vec![(current, 6)], eperm),
        ("no such current state", CURRENT, vec![(current, 7)], einval),
    ] {
        let bytes: Vec<(usize, [u8; 1])> = values.iter().map(|&(at, it)| (at, [it])).collect();
        let mut values: Vec<(usize, &[u8])> = bytes.iter().map(|(at, it)| (*at, &it[..])).collect();
        values.push(privileged);
        assert_eq!(verbs.modify(qp, mask | QKEY, &values), Err(errno), "{case}");
    }
    let ready = [(96, &[1][..]), (104, &[2]), (72, &[0x34, 0x12, 0, 0])];
    verbs.modify(qp, STATE | PKEY | PORT | QKEY, &ready).expect("this Q_Key needs no privilege");
    let init: Rst2initQpIn = verbs.last(Opcode::RST2INIT_QP.0, Rst2initQpIn::from_prefix);
    assert_eq!(init.qpc().q_key(), 0x1234);
    verbs.modify(qp, STATE, &[(96, &[6]), privileged]).expect("the Q_Key is not required");
    assert_eq!(verbs.fixture.device.count(Opcode::QP_2ERR.0), 1);
}

#[test]
fn modify_qp_driver_data_must_be_zero() {
    let (verbs, qp) = ud_qp();
    let change = |driver: &[u8]| {
        let mut core = vec![0; 112];
        core[64..68].copy_from_slice(&(qp as u32).to_ne_bytes());
        core[68] = STATE as u8;
        verbs.write(26, &core, 0, driver, 0).map(drop)
    };
    assert_eq!(change(&[0; 16]), Ok(()));
    for at in [0, 3, 10, 11] {
        let mut driver = [0; 16];
        driver[at] = 1;
        assert_eq!(change(&driver), Err(Errno::EOPNOTSUPP), "byte {at}");
    }
    assert_eq!(change(&[[0; 16], [1; 16]].concat()), Err(Errno::EOPNOTSUPP), "longer");
    assert_eq!(change(&[0; 24]), Ok(()), "zeros follow");
}

#[test]
fn qp_without_rq_has_no_doorbell_record() {
    let verbs = Verbs::new();
    let (one, _) = verbs.plain_cq();
    let init = STATE | PKEY | PORT | 1 << 3;
    for (receives, record) in [(8, verbs.address + 0x8080), (0, 0)] {
        let capacity = [4, receives, 1, u32::from(receives != 0), 0];
        let driver = verbs.qp_driver(receives.into(), 1 << 10);
        let (qp, _) = qp(&verbs, (one, one), 0, capacity, &driver).expect("a QP");
        verbs.modify(qp, init, &[(96, &[1]), (104, &[1])]).expect("INIT");
        let command: Rst2initQpIn = verbs.last(Opcode::RST2INIT_QP.0, Rst2initQpIn::from_prefix);
        assert_eq!(command.qpc().dbr_addr(), record, "{receives} receives");
        let to_rtr = STATE | AV | 1 << 8 | 1 << 12 | 1 << 15 | 1 << 17 | 1 << 20;
        let values = [(96, &[2][..]), (31, &[1]), (98, &[3]), (102, &[4])];
        verbs.modify(qp, to_rtr, &values).expect("RTR");
        let command: Init2rtrQpIn = verbs.last(Opcode::INIT2RTR_QP.0, Init2rtrQpIn::from_prefix);
        let qpc = command.qpc();
        assert_eq!(qpc.dbr_addr(), 0, "only the first transition sets it");
        assert!(!qpc.rre() && !qpc.rwe() && !qpc.rae(), "no access flags were set");
    }
}

#[test]
fn query_device_driver_flags_follow_capabilities() {
    let flags = |change: fn(&mut HcaCap)| {
        let verbs = Verbs::with(change);
        let (base, driver) = verbs.write(1 << 31 | 1, &[0; 8], 304, &[], 112).expect("the device");
        (word(&base[64..]), word(&driver[60..]))
    };
    assert_eq!(flags(|_| ()).1, 1 << 3);
    assert_eq!(flags(|caps| _ = caps.set_cqe_compression_128(true)).1, 1 << 3 | 1);
    assert_eq!(flags(|caps| _ = caps.set_cqe_128_always(true)).1, 1 << 3 | 1 << 1);
    assert_eq!(flags(|caps| _ = caps.set_qp_packet_based(true)).1, 1 << 3 | 1 << 2);
    assert_eq!(flags(|caps| _ = caps.set_max_wqe_sz_sq(384)).0, 22, "the fewer of 22 and 32");
    assert_eq!(flags(|caps| _ = caps.set_max_wqe_sz_rq(64)).0, 4, "the fewer of 30 and 4");
}
