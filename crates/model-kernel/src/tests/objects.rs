//! The objects of verbs: the commands that each becomes, the refusals before any command, and the
//! delivery of events.

use std::io::Read;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use nix::errno::Errno;
use verbless_prm::hot::event_type as event;
use verbless_prm::{
    AttachToMcgIn, CqeSize, CreateCqIn, CreateMkeyIn, CreateQpIn, CreateRmpIn, HcaCap,
    Init2rtrQpIn, ModifyCqIn, ModifyRmpIn, Opcode, OptParamMask, RqType, Rst2initQpIn, Rtr2rtsQpIn,
    ServiceType,
};

use super::support::{Device, Fixture, Request, buffer};

/// `ib_qp_attr_mask` of a queue pair's changes.
const STATE: u32 = 1;
const INIT: u32 = STATE | 1 << 3 | 1 << 4 | 1 << 5;
const RTR: u32 = STATE | 1 << 7 | 1 << 8 | 1 << 12 | 1 << 15 | 1 << 17 | 1 << 20;
const RTS: u32 = STATE | 1 << 9 | 1 << 10 | 1 << 11 | 1 << 13 | 1 << 16;

/// A file of a device with everything that queues need, memory for them, and a PD.
pub(super) struct Verbs {
    pub fixture: Fixture,
    _memory: Vec<u8>,
    /// Page-aligned, 64 pages.
    pub address: u64,
    pub pd: u32,
}

impl Verbs {
    pub(super) fn new() -> Self {
        Self::with(|_| ())
    }

    /// A file of a device with capabilities changed by `change`.
    pub(super) fn with(change: fn(&mut HcaCap)) -> Self {
        let mut caps = HcaCap::zeroed();
        caps.set_log_max_uctx(4).set_num_ports(1).set_cqe_version(1).set_log_max_msg(30);
        caps.set_log_max_qp(17).set_log_max_qp_sz(10).set_log_max_cq_sz(12).set_cq_moderation(true);
        caps.set_log_max_srq_sz(10).set_max_wqe_sz_rq(512).set_max_wqe_sz_sq(512);
        caps.set_log_max_ra_req_qp(4).set_log_max_ra_res_qp(4).set_atomic(true);
        caps.set_sctr_data_cqe(true).set_imaicl(true).set_umr_extended_translation_offset(true);
        change(&mut caps);
        Self::on(Device::with(caps, false))
    }

    /// A file of this device, with memory and a PD.
    pub(super) fn on(device: Device) -> Self {
        Self::of(Fixture::of(Arc::new(device)))
    }

    /// A file with a context, with memory and a PD.
    pub(super) fn of(fixture: Fixture) -> Self {
        let (memory, address) = buffer(64);
        let mut verbs = Self { fixture, _memory: memory, address, pd: 0 };
        verbs.pd = word(&verbs.write(3, &[0; 8], 4, &[], 4).expect("a PD").0);
        verbs
    }

    /// INVOKE_WRITE of a command with its driver part; returns the core's and the driver's output.
    pub(super) fn write(
        &self,
        number: u64,
        core: &[u8],
        out: usize,
        driver: &[u8],
        driver_out: usize,
    ) -> Result<(Vec<u8>, Vec<u8>), Errno> {
        let (mut core_out, mut uhw_out) = (vec![0; out], vec![0; driver_out]);
        let mut request = Request::new(0, 0).number(2, number).input(0, core);
        if out > 0 {
            request = request.output(1, &mut core_out);
        }
        if !driver.is_empty() {
            request = request.input(0x1000, driver);
        }
        if driver_out > 0 {
            request = request.output(0x1001, &mut uhw_out);
        }
        request.send(&self.fixture.file)?;
        Ok((core_out, uhw_out))
    }

    pub(super) fn reg_mr(
        &self,
        start: u64,
        length: u64,
        va: u64,
        access: u32,
    ) -> Result<Vec<u8>, Errno> {
        let core =
            fields(&[8, 8, 8, 8, 4, 4], &[0, start, length, va, self.pd.into(), access.into()]);
        self.write(9, &core, 12, &[], 0).map(|(core, _)| core)
    }

    fn comp_channel(&self) -> OwnedFd {
        let (core, _) = self.write(17, &[0; 8], 4, &[], 0).expect("a channel");
        self.fixture.take_fd(word(&core).into())
    }

    /// `mlx5_ib_create_cq` for 64-byte CQEs on UAR page 7.
    pub(super) fn cq_driver(&self) -> Vec<u8> {
        let record = self.address + 0x8040;
        fields(&[8, 8, 4, 1, 1, 2, 2, 2, 4], &[self.address + 0x40, record, 64, 0, 0, 2, 7, 0, 0])
    }

    /// A CQ by ioctl; its handle, its number and its size.
    fn cq(
        &self,
        entries: u32,
        vector: u32,
        channel: Option<&OwnedFd>,
        driver: &[u8],
    ) -> Result<(u64, u32, u32), Errno> {
        let (mut cqe, mut uhw) = ([0; 4], [0; 8]);
        let mut request = Request::new(3, 0)
            .handle(0, 0)
            .input(1, &entries.to_ne_bytes())
            .number(2, 0xcafe_f00d)
            .input(4, &vector.to_ne_bytes())
            .output(6, &mut cqe)
            .input(0x1000, driver)
            .output(0x1001, &mut uhw);
        if let Some(channel) = channel {
            request = request.handle(3, channel.as_raw_fd() as u64);
        }
        request.send(&self.fixture.file)?;
        Ok((request.data(0), word(&uhw), word(&cqe)))
    }

    pub(super) fn plain_cq(&self) -> (u64, u32) {
        let (handle, number, _) = self.cq(63, 0, None, &self.cq_driver()).expect("a CQ");
        (handle, number)
    }

    /// `mlx5_ib_create_qp` of 16 send WQEBBs and 8 receives of 64 bytes on UAR page 7.
    pub(super) fn qp_driver(&self, receives: u64, flags: u64) -> Vec<u8> {
        let (stride, record) = (if receives == 0 { 0 } else { 6 }, self.address + 0x8080);
        let values =
            [self.address + 0x1_0000, record, 16, receives, stride, flags, 0x55, 7, 0, 0, 0, 0];
        fields(&[8, 8, 4, 4, 4, 4, 4, 4, 8, 4, 2, 2], &values)
    }

    /// A queue pair by ioctl; its handle and its number.
    pub(super) fn qp(
        &self,
        kind: u64,
        cqs: (u64, u64),
        srq: Option<u64>,
        capacity: [u32; 5],
        driver: &[u8],
    ) -> Result<(u64, u32), Errno> {
        let capacity: Vec<u8> = capacity.iter().flat_map(|value| value.to_ne_bytes()).collect();
        let (mut got, mut number, mut uhw) = ([0; 20], [0; 4], [0; 32]);
        let mut request = Request::new(4, 0)
            .handle(0, 0)
            .handle(2, self.pd.into())
            .handle(4, cqs.0)
            .handle(5, cqs.1)
            .number(7, 0xbeef)
            .input(8, &capacity)
            .number(9, kind)
            .output(13, &mut got)
            .output(14, &mut number)
            .input(0x1000, driver)
            .output(0x1001, &mut uhw);
        if let Some(srq) = srq {
            request = request.handle(3, srq);
        }
        request.send(&self.fixture.file)?;
        Ok((request.data(0), word(&number)))
    }

    /// An SRQ by ioctl, of 4 requests of 3 SGEs; its handle and its number.
    pub(super) fn srq(&self) -> (u64, u32) {
        let driver = [self.address, self.address + 0x8000, 0, 0, 0x66, 0];
        let driver = fields(&[8, 8, 4, 4, 4, 4], &driver);
        let (mut got, mut sges, mut uhw) = ([0; 4], [0; 4], [0; 8]);
        let mut request = Request::new(5, 0)
            .handle(0, 0)
            .handle(1, self.pd.into())
            .number(4, 0xabc)
            .input(5, &4u32.to_ne_bytes())
            .input(6, &3u32.to_ne_bytes())
            .input(7, &[0; 4])
            .number(9, 0)
            .output(11, &mut got)
            .output(12, &mut sges)
            .input(0x1000, &driver)
            .output(0x1001, &mut uhw);
        request.send(&self.fixture.file).expect("an SRQ");
        (request.data(0), word(&uhw))
    }

    pub(super) fn rc(&self) -> (u64, u32, u64) {
        let (cq, _) = self.plain_cq();
        let (qp, number) =
            self.qp(2, (cq, cq), None, [4, 8, 1, 4, 0], &self.qp_driver(8, 1 << 10)).expect("a QP");
        (qp, number, cq)
    }

    /// MODIFY_QP with values at offsets of `ib_uverbs_modify_qp`.
    pub(super) fn modify(
        &self,
        qp: u64,
        mask: u32,
        values: &[(usize, &[u8])],
    ) -> Result<(), Errno> {
        let mut core = vec![0; 112];
        core[64..68].copy_from_slice(&(qp as u32).to_ne_bytes());
        core[68..72].copy_from_slice(&mask.to_ne_bytes());
        for (at, bytes) in values {
            core[*at..at + bytes.len()].copy_from_slice(bytes);
        }
        self.write(26, &core, 0, &[], 0).map(drop)
    }

    pub(super) fn destroy(
        &self,
        object: u16,
        handle: u64,
        response: &mut [u8],
    ) -> Result<(), Errno> {
        Request::new(object, 1).handle(0, handle).output(1, response).send(&self.fixture.file)
    }

    pub(super) fn last<T: Clone>(&self, opcode: u16, read: fn(&[u8]) -> Option<&T>) -> T {
        let command = self.fixture.device.last(opcode).expect("the command was sent");
        read(&command).expect("it is whole").clone()
    }

    /// The list after the fixed part of the last command with an opcode.
    pub(super) fn list(&self, opcode: u16, fixed: usize) -> Vec<u64> {
        let command = self.fixture.device.last(opcode).expect("the command was sent");
        let entry = |bytes: &[u8]| u64::from_be_bytes(bytes.try_into().expect("eight bytes"));
        command[fixed..].chunks_exact(8).map(entry).collect()
    }
}

/// Values of these sizes in bytes, one after the other.
pub(super) fn fields(sizes: &[usize], values: &[u64]) -> Vec<u8> {
    let pairs = sizes.iter().zip(values);
    pairs.flat_map(|(&size, value)| value.to_ne_bytes()[..size].to_vec()).collect()
}

pub(super) fn word(bytes: &[u8]) -> u32 {
    u32::from_ne_bytes(*bytes.first_chunk().expect("four bytes"))
}

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
    let (plain, _) = verbs.write(1, &[0; 8], 176, &[], 0).expect("the plain form");
    assert_eq!(plain[..8], (22u64 << 32 | 35 << 16 | 1012).to_ne_bytes());
    assert_eq!(word(&plain[52..]), 1 << 17, "QPs");
    assert_eq!(word(&plain[44..]), 0x101d);
    let (extended, driver) =
        verbs.write(1 << 31 | 1, &[0; 8], 304, &[], 112).expect("the long form");
    assert_eq!(extended[..176], plain);
    assert_eq!((word(&extended[180..]), word(&driver[4..])), (304, 112));
    let (short, driver) = verbs.write(1 << 31 | 1, &[0; 8], 184, &[], 70).expect("as much as fits");
    assert_eq!((word(&short[180..]), word(&driver[4..])), (184, 64));
    assert_eq!(
        verbs.write(1 << 31 | 1, &[1, 0, 0, 0, 0, 0, 0, 0], 304, &[], 0),
        Err(Errno::EINVAL)
    );
    assert_eq!(verbs.write(1, &[0; 8], 175, &[], 0), Err(Errno::ENOSPC));
    let (cut, _) = verbs.write(1 << 31 | 1, &[0; 4], 5, &[], 0).expect("cut");
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
    assert_eq!(verbs.write(4, &verbs.pd.to_ne_bytes(), 0, &[], 0), Err(Errno::EBUSY));
    // An empty range inside a page still lists that page.
    let empty = verbs.reg_mr(start, 0, 0x7000_1010, 1).expect("Linux takes it");
    let pages = verbs.list(Opcode::CREATE_MKEY.0, CreateMkeyIn::BYTES);
    assert_eq!(pages, [first, 0], "an even number of entries");
    for handle in [&response, &again, &empty] {
        let handle = word(handle).into();
        assert_eq!(Request::new(7, 1).handle(0, handle).send(&verbs.fixture.file), Ok(()));
    }
    assert_eq!(verbs.write(4, &verbs.pd.to_ne_bytes(), 0, &[], 0).map(drop), Ok(()));
    assert_eq!(verbs.fixture.close(), 0);
}

#[test]
fn malformed_mr_is_rejected_before_commands() {
    let verbs = Verbs::new();
    let address = verbs.address;
    for (case, start, length, va, access, errno) in [
        ("another place in its page", address, 0x1000, address + 1, 1, Errno::EINVAL),
        ("remote write alone", address, 0x1000, address, 2, Errno::EINVAL),
        ("remote atomics alone", address, 0x1000, address, 8, Errno::EINVAL),
        ("an unknown right", address, 0x1000, address, 1 << 12, Errno::EINVAL),
        ("on demand", address, 0x1000, address, 1 << 6, Errno::EOPNOTSUPP),
        ("nothing", address, 0, address, 1, Errno::EINVAL),
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
    let mut heard = [0xff; 8];
    verbs.destroy(3, handle, &mut heard).expect("it goes");
    assert_eq!(
        (heard, verbs.fixture.device.last(Opcode::DESTROY_CQ.0).expect("sent")[11]),
        ([0; 8], number as u8)
    );
}

#[test]
fn modify_cq_sets_moderation() {
    let verbs = Verbs::new();
    let (handle, number, _) = verbs.cq(100, 0, None, &verbs.cq_driver()).expect("a CQ");
    let modify = |mask, period, reserved| {
        let request = fields(&[4, 4, 2, 2, 4], &[handle, mask, 17, period, reserved]);
        verbs.write(1 << 31 | 57, &request, 0, &[], 0)
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
        verbs.write(19, &core, 8, &driver, 0).map(|(core, _)| word(&core))
    };
    let buffer = verbs.address + 0x2_0080;
    assert_eq!(resize(handle, 63, [0; 4]), Ok(63), "as large as it is: no buffer is looked at");
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
        ("a negative number", resize(handle, 0xffff_ffff, [buffer, 64, 0, 0]), Errno::EINVAL),
        ("a reserved field", resize(handle, 15, [buffer, 64, 1, 0]), Errno::EINVAL),
        ("another", resize(handle, 15, [buffer, 64, 0, 1]), Errno::EINVAL),
        ("a buffer of nothing", resize(handle, 15, [buffer, 0, 0, 0]), Errno::EINVAL),
        ("an odd buffer", resize(handle, 15, [buffer + 4, 64, 0, 0]), Errno::EINVAL),
    ] {
        assert_eq!(answer, Err(errno), "{case}");
    }
    assert_eq!(verbs.fixture.device.count(Opcode::MODIFY_CQ.0), 1);
    // More CQEs wait than the new size holds.
    verbs.fixture.device.refuse_next(Opcode::MODIFY_CQ.0, 0x40);
    assert_eq!(resize(handle, 3, [buffer, 64, 0, 0]), Err(Errno::EINVAL));
    assert_eq!(resize(handle, 127, [0; 4]), Ok(127), "it stayed as it was");
    let lacking = Verbs::new();
    let (handle, _) = lacking.plain_cq();
    let core = fields(&[8, 4, 4], &[0, handle, 7]);
    assert_eq!(lacking.write(19, &core, 8, &[0; 16], 0).map(drop), Err(Errno::ENOSYS));
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
        ("a negative number of them", u32::MAX, 0, verbs.cq_driver()),
        ("no such vector", 63, 2, verbs.cq_driver()),
        ("a CQE of 32 bytes", 63, 0, with(16, &[32])),
        ("an unknown flag", 63, 0, with(22, &[10])),
        ("no page of its own, and none to choose from", 63, 0, with(22, &[0])),
        ("a reserved field", 63, 0, with(28, &[1])),
        ("an odd place", 63, 0, with(0, &[0x41])),
        ("half a request", 63, 0, verbs.cq_driver()[..16].to_vec()),
    ] {
        assert_eq!(verbs.cq(entries, vector, None, &driver), Err(Errno::EINVAL), "{case}");
    }
    assert_eq!(verbs.cq(63, 0, None, &with(20, &[1])), Err(Errno::EOPNOTSUPP), "compressed");
    assert_eq!(verbs.fixture.device.count(Opcode::CREATE_CQ.0), 0);
}

#[test]
fn destroy_fails_while_unread_events_cannot_be_taken_back() {
    let verbs = Verbs::new();
    let (channel, device) = (verbs.comp_channel(), &verbs.fixture.device);
    let (handle, number, _) = verbs.cq(63, 0, Some(&channel), &verbs.cq_driver()).expect("a CQ");
    let hide = |hide| verbs.fixture.client.hides_descriptors.store(hide, Ordering::Relaxed);
    device.event(1, 0, event::COMPLETION, &[(6, number)]);
    let mut heard = [0xff; 8];
    hide(true);
    assert_eq!(verbs.destroy(3, handle, &mut heard), Err(Errno::EAGAIN));
    assert_eq!(device.count(Opcode::DESTROY_CQ.0), 0);
    device.event(1, 1, event::COMPLETION, &[(6, number)]);
    hide(false);
    assert_eq!(verbs.destroy(3, handle, &mut heard), Ok(()));
    assert_eq!(heard, [0; 8], "both are taken back");
    let (handle, ..) = verbs.cq(63, 0, Some(&channel), &verbs.cq_driver()).expect("a CQ");
    hide(true);
    assert_eq!(verbs.destroy(3, handle, &mut heard), Ok(()), "it has no event");
}

#[test]
fn cq_event_is_delivered_once_and_retracted() {
    let verbs = Verbs::new();
    let channel = verbs.comp_channel();
    let (handle, number, _) = verbs.cq(63, 0, Some(&channel), &verbs.cq_driver()).expect("a CQ");
    let tell = |index| verbs.fixture.device.event(1, index, event::COMPLETION, &[(6, number)]);
    (0..3).for_each(tell);
    assert_eq!(read(&channel), 0xcafe_f00d_u64.to_ne_bytes());
    let mut heard = [0; 8];
    verbs.destroy(3, handle, &mut heard).expect("it goes");
    assert_eq!(word(&heard), 1, "one of three was read");
    assert!(read(&channel).is_empty(), "a destroyed queue sends no event");
    tell(3);
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
    assert_eq!(pages, [verbs.address + 0x1_0000], "512 and 1024 bytes");
    let mut heard = [0; 8];
    assert_eq!(verbs.destroy(3, cq, &mut heard), Err(Errno::EBUSY));
    verbs.destroy(4, qp, &mut [0; 4]).expect("it goes");
    assert_eq!(verbs.fixture.device.count(Opcode::QP_2RST.0), 0, "it never left that state");
    assert_eq!(verbs.fixture.device.last(Opcode::DESTROY_QP.0).expect("sent")[11], number as u8);
    verbs.destroy(3, cq, &mut heard).expect("its user has gone");
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
        ("too many blocks", 2, some, with(16, 2048), Errno::EINVAL),
        ("too many receives", 2, [4, 2048, 1, 1, 0], with(16, 16), Errno::EINVAL),
        ("receives without a queue", 2, [4, 0, 1, 0, 0], with(16, 16), Errno::EINVAL),
        ("an unknown flag", 2, some, with(28, 1 << 10 | 1 << 20), Errno::EINVAL),
        ("no page", 2, some, with(28, 0), Errno::EINVAL),
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
    assert!(qpc.rwe() && !qpc.rre(), "nothing is answered without depth");
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
    let elsewhere: Vec<_> = to.iter().copied().chain([(31, &[2][..])]).collect();
    assert_eq!(verbs.modify(qp, RTR, &elsewhere), Err(Errno::EINVAL), "not its port");
    assert_eq!(verbs.modify(qp, RTR & !(1 << 7), to), Err(Errno::EINVAL), "no address");
    verbs.modify(qp, RTR, to).expect("RTR");
    let rtr: Init2rtrQpIn = verbs.last(Opcode::INIT2RTR_QP.0, Init2rtrQpIn::from_prefix);
    let qpc = rtr.qpc();
    assert_eq!(
        (qpc.remote_qpn(), qpc.mtu().0, qpc.log_msg_max(), qpc.log_rra_max()),
        (0x1234, 3, 30, 2)
    );
    assert_eq!((qpc.primary_address_path().rlid(), qpc.min_rnr_nak()), (9, 12));
    assert!(qpc.rwe() && qpc.rre());
    let rights = OptParamMask::RRE.0 | OptParamMask::RWE.0 | OptParamMask::RAE.0;
    assert_eq!(rtr.opt_param_mask(), rights);
    verbs
        .modify(qp, RTS, &[(96, &[3]), (80, &[7]), (101, &[16]), (106, &[7]), (105, &[14])])
        .expect("RTS");
    let rts: Rtr2rtsQpIn = verbs.last(Opcode::RTR2RTS_QP.0, Rtr2rtsQpIn::from_prefix);
    let qpc = rts.qpc();
    assert_eq!((qpc.next_send_psn(), qpc.log_sra_max(), qpc.retry_count()), (7, 4, 7));
    assert_eq!(qpc.primary_address_path().ack_timeout(), 14);
    assert_eq!(verbs.modify(qp, STATE, &[(96, &[1])]), Err(Errno::EINVAL), "not from there");
    verbs.destroy(4, qp, &mut [0; 4]).expect("it goes");
    assert_eq!(verbs.fixture.device.count(Opcode::QP_2RST.0), 1, "stopped first");
}

#[test]
fn srq_is_rmp_referenced_by_qp() {
    let verbs = Verbs::new();
    let driver =
        fields(&[8, 8, 4, 4, 4, 4], &[verbs.address, verbs.address + 0x8000, 0, 0, 0x66, 0]);
    let create = |requests: u32, kind: u64| {
        let (mut got, mut sges, mut uhw) = ([0; 4], [0; 4], [0; 8]);
        let mut request = Request::new(5, 0)
            .handle(0, 0)
            .handle(1, verbs.pd.into())
            .number(4, 0xabc)
            .input(5, &requests.to_ne_bytes())
            .input(6, &3u32.to_ne_bytes())
            .input(7, &[0; 4])
            .number(9, kind)
            .output(11, &mut got)
            .output(12, &mut sges)
            .input(0x1000, &driver)
            .output(0x1001, &mut uhw);
        request.send(&verbs.fixture.file).map(|()| (request.data(0), word(&uhw), word(&got)))
    };
    assert_eq!(create(100, 1), Err(Errno::EOPNOTSUPP), "XRC");
    assert_eq!(create(1024, 0), Err(Errno::EINVAL), "too many");
    let (srq, number, requests) = create(100, 0).expect("an SRQ");
    assert_eq!(requests, 127);
    let command: CreateRmpIn = verbs.last(Opcode::CREATE_RMP.0, CreateRmpIn::from_prefix);
    let wq = command.ctx().wq();
    assert_eq!(
        (wq.log_wq_sz(), wq.log_wq_stride(), wq.pd()),
        (7, 6, {
            let pd = verbs.fixture.device.last(Opcode::CREATE_RMP.0).expect("sent");
            CreateRmpIn::from_prefix(&pd).expect("whole").ctx().wq().pd()
        })
    );
    let (cq, _) = verbs.plain_cq();
    let (qp, _) = verbs
        .qp(2, (cq, cq), Some(srq), [4, 0, 1, 0, 0], &verbs.qp_driver(0, 1 << 10))
        .expect("a QP");
    let command: CreateQpIn = verbs.last(Opcode::CREATE_QP.0, CreateQpIn::from_prefix);
    let qpc = command.qpc();
    assert_eq!((qpc.rq_type(), qpc.srqn_rmpn_xrqn()), (RqType::SRQ, number));
    assert_eq!(verbs.destroy(5, srq, &mut [0; 4]), Err(Errno::EBUSY));
    let limit = |mask: u32, limit: u64| {
        let core = fields(&[4, 4, 4, 4], &[srq, mask.into(), 0, limit]);
        verbs.write(33, &core, 0, &[], 0).map(drop)
    };
    assert_eq!(limit(1, 0), Err(Errno::EINVAL), "it does not grow");
    assert_eq!(limit(2, 128), Err(Errno::EINVAL));
    limit(2, 5).expect("armed");
    let armed: ModifyRmpIn = verbs.last(Opcode::MODIFY_RMP.0, ModifyRmpIn::from_prefix);
    assert_eq!((armed.rmpn(), armed.ctx().wq().lwm()), (number, 5));
    verbs.destroy(4, qp, &mut [0; 4]).expect("its user goes");
    verbs.destroy(5, srq, &mut [0; 4]).expect("it goes");
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
    assert_eq!(member(30, gid, 0xc001), Err(Errno::EINVAL), "no multicast address");
    gid[0] = 0xff;
    assert_eq!(member(30, gid, 1), Err(Errno::EINVAL), "no LID of a group");
    member(30, gid, 0xc001).expect("it joins");
    member(30, gid, 0xc001).expect("once is enough");
    assert_eq!(verbs.fixture.device.count(Opcode::ATTACH_TO_MCG.0), 1);
    let attach: AttachToMcgIn = verbs.last(Opcode::ATTACH_TO_MCG.0, AttachToMcgIn::from_prefix);
    assert_eq!(*attach.multicast_gid(), gid);
    assert_eq!(verbs.destroy(4, qp, &mut [0; 4]), Err(Errno::EBUSY));
    member(31, gid, 0xc001).expect("it leaves");
    assert_eq!(member(31, gid, 0xc001), Err(Errno::EINVAL));
    member(30, gid, 0xc001).expect("it joins again");
    let device = verbs.fixture.device.clone();
    assert_eq!(verbs.fixture.close(), 0);
    assert_eq!(device.count(Opcode::DETACH_FROM_MCG.0), 2, "closing leaves for it");
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
        assert_eq!(verbs.write(30, &core, 0, &[], 0).map(drop), joined, "{first}.1.2.3");
    }
    let attach: AttachToMcgIn = verbs.last(Opcode::ATTACH_TO_MCG.0, AttachToMcgIn::from_prefix);
    assert_eq!(attach.multicast_gid()[10..], [0xff, 0xff, 239, 1, 2, 3]);
}

#[test]
fn qp_event_reaches_async_file() {
    let verbs = Verbs::new();
    let mut file = Request::new(16, 0).handle(0, 0);
    file.send(&verbs.fixture.file).expect("an async event file");
    let file = verbs.fixture.take_fd(file.data(0));
    let (qp, number, _) = verbs.rc();
    verbs.fixture.device.event(0, 0, event::WQ_ACCESS_ERROR, &[(6, number)]);
    let record = read(&file);
    assert_eq!((&record[..8], word(&record[8..])), (&0xbeef_u64.to_ne_bytes()[..], 3));
    verbs.fixture.device.event(0, 1, event::COMMUNICATION_ESTABLISHED, &[(6, number)]);
    let mut heard = [0; 4];
    verbs.destroy(4, qp, &mut heard).expect("it goes");
    assert_eq!((word(&heard), read(&file).len()), (1, 0), "one was read, the other is taken back");
}

#[test]
fn close_releases_qp_cq_and_mr() {
    let verbs = Verbs::new();
    verbs.rc();
    verbs.reg_mr(verbs.address, 0x1000, verbs.address, 1).expect("a region");
    assert_eq!(verbs.fixture.close(), 0);
}
