//! The rig of the verbs tests: an open uverbs file, and calls that create and change its objects.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

use nix::errno::Errno;
use verbless_prm::HcaCap;

use super::support::{Device, Fixture, Request, buffer};
use crate::abi::{attr, object};

/// Numbers of `ib_uverbs_write_cmds`.
pub(super) mod command {
    pub(in super::super) const QUERY_DEVICE: u64 = 1;
    pub(in super::super) const ALLOC_PD: u64 = 3;
    pub(in super::super) const DEALLOC_PD: u64 = 4;
    pub(in super::super) const REG_MR: u64 = 9;
    pub(in super::super) const CREATE_COMP_CHANNEL: u64 = 17;
    pub(in super::super) const RESIZE_CQ: u64 = 19;
    pub(in super::super) const MODIFY_QP: u64 = 26;
    pub(in super::super) const ATTACH_MCAST: u64 = 30;
    pub(in super::super) const DETACH_MCAST: u64 = 31;
    pub(in super::super) const MODIFY_SRQ: u64 = 33;
    /// `IB_USER_VERBS_CMD_FLAG_EXTENDED`.
    const EXTENDED: u64 = 1 << 31;
    pub(in super::super) const EX_QUERY_DEVICE: u64 = EXTENDED | 1;
    pub(in super::super) const EX_MODIFY_CQ: u64 = EXTENDED | 57;
}

/// `ib_srq_type`.
pub(super) const IB_SRQT_BASIC: u64 = 0;
pub(super) const IB_SRQT_XRC: u64 = 1;

/// An open uverbs file of a scripted device, with buffer memory and a PD.
pub(super) struct Verbs {
    pub fixture: Fixture,
    _memory: Vec<u8>,
    /// Page-aligned, 64 pages.
    pub address: u64,
    /// Handle of the PD.
    pub pd: u32,
    /// The PDN that ALLOC_PD returned to the program.
    pub pdn: u32,
}

impl Verbs {
    pub(super) fn new() -> Self {
        Self::with(|_| ())
    }

    /// Opens a file of a device with capabilities changed by `change`.
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

    /// Opens a file of this device.
    pub(super) fn on(device: Device) -> Self {
        Self::with_fixture(Fixture::of(Arc::new(device)))
    }

    /// Wraps an open uverbs file whose context exists, and allocates a PD.
    pub(super) fn with_fixture(fixture: Fixture) -> Self {
        let (memory, address) = buffer(64);
        let mut verbs = Self { fixture, _memory: memory, address, pd: 0, pdn: 0 };
        let (core, driver) = verbs.write(command::ALLOC_PD, &[0; 8], 4, &[], 4).expect("a PD");
        (verbs.pd, verbs.pdn) = (word(&core), word(&driver));
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
        let mut request = Request::new(object::DEVICE, 0)
            .number(attr::WRITE_CMD, number)
            .input(attr::CORE_IN, core);
        if out > 0 {
            request = request.output(attr::CORE_OUT, &mut core_out);
        }
        if !driver.is_empty() {
            request = request.input(attr::UHW_IN, driver);
        }
        if driver_out > 0 {
            request = request.output(attr::UHW_OUT, &mut uhw_out);
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
        self.write(command::REG_MR, &core, 12, &[], 0).map(|(core, _)| core)
    }

    pub(super) fn comp_channel(&self) -> OwnedFd {
        let (core, _) =
            self.write(command::CREATE_COMP_CHANNEL, &[0; 8], 4, &[], 0).expect("a channel");
        self.fixture.take_fd(word(&core).into())
    }

    /// `mlx5_ib_create_cq` for 64-byte CQEs on UAR page 7.
    pub(super) fn cq_driver(&self) -> Vec<u8> {
        let record = self.address + 0x8040;
        fields(&[8, 8, 4, 1, 1, 2, 2, 2, 4], &[self.address + 0x40, record, 64, 0, 0, 2, 7, 0, 0])
    }

    /// Creates a CQ by ioctl; returns its handle, its number and its size.
    pub(super) fn cq(
        &self,
        entries: u32,
        vector: u32,
        channel: Option<&OwnedFd>,
        driver: &[u8],
    ) -> Result<(u64, u32, u32), Errno> {
        let (mut cqe, mut uhw) = ([0; 4], [0; 8]);
        let mut request = Request::new(object::CQ, 0)
            .handle(attr::HANDLE, 0)
            .input(attr::CQ_CQE, &entries.to_ne_bytes())
            .number(attr::CQ_USER_HANDLE, 0xcafe_f00d)
            .input(attr::CQ_VECTOR, &vector.to_ne_bytes())
            .output(attr::CQ_RESP_CQE, &mut cqe)
            .input(attr::UHW_IN, driver)
            .output(attr::UHW_OUT, &mut uhw);
        if let Some(channel) = channel {
            request = request.handle(attr::CQ_CHANNEL, channel.as_raw_fd() as u64);
        }
        request.send(&self.fixture.file)?;
        Ok((request.data(0), word(&uhw), word(&cqe)))
    }

    pub(super) fn plain_cq(&self) -> (u64, u32) {
        let (handle, number, _) = self.cq(63, 0, None, &self.cq_driver()).expect("a CQ");
        (handle, number)
    }

    /// `mlx5_ib_create_qp`: 16 send WQEBBs, `receives` receive WQEs of 64 bytes, UAR page 7.
    pub(super) fn qp_driver(&self, receives: u64, flags: u64) -> Vec<u8> {
        let (stride, record) = (if receives == 0 { 0 } else { 6 }, self.address + 0x8080);
        let values =
            [self.address + 0x1_0000, record, 16, receives, stride, flags, 0x55, 7, 0, 0, 0, 0];
        fields(&[8, 8, 4, 4, 4, 4, 4, 4, 8, 4, 2, 2], &values)
    }

    /// Creates a queue pair by ioctl; returns its handle and its number.
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
        let mut request = Request::new(object::QP, 0)
            .handle(attr::HANDLE, 0)
            .handle(attr::QP_PD, self.pd.into())
            .handle(attr::QP_SEND_CQ, cqs.0)
            .handle(attr::QP_RECV_CQ, cqs.1)
            .number(attr::QP_USER_HANDLE, 0xbeef)
            .input(attr::QP_CAP, &capacity)
            .number(attr::QP_TYPE, kind)
            .output(attr::QP_RESP_CAP, &mut got)
            .output(attr::QP_RESP_NUM, &mut number)
            .input(attr::UHW_IN, driver)
            .output(attr::UHW_OUT, &mut uhw);
        if let Some(srq) = srq {
            request = request.handle(attr::QP_SRQ, srq);
        }
        request.send(&self.fixture.file)?;
        Ok((request.data(0), word(&number)))
    }

    /// An SRQ by ioctl, of 4 requests of 3 SGEs; its handle and its number.
    pub(super) fn srq(&self) -> (u64, u32) {
        let (handle, number, _) = self.try_srq(4, IB_SRQT_BASIC).expect("an SRQ");
        (handle, number)
    }

    /// An SRQ by ioctl, of requests of 3 SGEs; its handle, its number and its size.
    pub(super) fn try_srq(&self, requests: u32, kind: u64) -> Result<(u64, u32, u32), Errno> {
        let driver = [self.address, self.address + 0x8000, 0, 0, 0x66, 0];
        let driver = fields(&[8, 8, 4, 4, 4, 4], &driver);
        let (mut max_wr, mut max_sge, mut uhw) = ([0; 4], [0; 4], [0; 8]);
        let mut request = Request::new(object::SRQ, 0)
            .handle(attr::HANDLE, 0)
            .handle(attr::SRQ_PD, self.pd.into())
            .number(attr::SRQ_USER_HANDLE, 0xabc)
            .input(attr::SRQ_MAX_WR, &requests.to_ne_bytes())
            .input(attr::SRQ_MAX_SGE, &3u32.to_ne_bytes())
            .input(attr::SRQ_LIMIT, &[0; 4])
            .number(attr::SRQ_TYPE, kind)
            .output(attr::SRQ_RESP_MAX_WR, &mut max_wr)
            .output(attr::SRQ_RESP_MAX_SGE, &mut max_sge)
            .input(attr::UHW_IN, &driver)
            .output(attr::UHW_OUT, &mut uhw);
        request.send(&self.fixture.file)?;
        Ok((request.data(0), word(&uhw), word(&max_wr)))
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
        self.write(command::MODIFY_QP, &core, 0, &[], 0).map(drop)
    }

    pub(super) fn destroy(
        &self,
        object: u16,
        handle: u64,
        response: &mut [u8],
    ) -> Result<(), Errno> {
        Request::new(object, 1)
            .handle(attr::HANDLE, handle)
            .output(attr::DESTROY_RESP, response)
            .send(&self.fixture.file)
    }

    pub(super) fn last<T: Clone>(&self, opcode: u16, read: fn(&[u8]) -> Option<&T>) -> T {
        let command = self.fixture.device.last(opcode).expect("the command was sent");
        read(&command).expect("a complete command").clone()
    }

    /// The list after the fixed part of the last command with an opcode.
    pub(super) fn list(&self, opcode: u16, fixed: usize) -> Vec<u64> {
        let command = self.fixture.device.last(opcode).expect("the command was sent");
        let entry = |bytes: &[u8]| u64::from_be_bytes(bytes.try_into().expect("eight bytes"));
        command[fixed..].chunks_exact(8).map(entry).collect()
    }
}

/// Concatenates values of these sizes in bytes.
pub(super) fn fields(sizes: &[usize], values: &[u64]) -> Vec<u8> {
    let pairs = sizes.iter().zip(values);
    pairs.flat_map(|(&size, value)| value.to_ne_bytes()[..size].to_vec()).collect()
}

pub(super) fn word(bytes: &[u8]) -> u32 {
    u32::from_ne_bytes(*bytes.first_chunk().expect("four bytes"))
}
