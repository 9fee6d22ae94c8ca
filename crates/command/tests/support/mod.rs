//! Devices, memory and attributes for the tests.
#![allow(dead_code, reason = "each test program uses some of it")]
#![allow(unsafe_code, reason = "registers memory that its owner keeps")]

use std::sync::Arc;

use verbless_command::{
    CqAttr, CqEventTarget, Device, Eqn, Error, ErrorKind, InitAttr, Mtu, Path, QpAttr, QpObject,
    Qpn, QueueMemory, RemoteAccess, RmpAttr, RtrAttr, ServiceType, UserMemory,
};
use verbless_devx::abi::core::access;
use verbless_devx::{Backend, PageSizes, UarKind};
use verbless_model::{Link, Model, Profile};
use verbless_model_kernel::InProcess;
use verbless_prm::{CommandStatus, CqeSize, Opcode};

/// A ConnectX-6 Dx with ports of type `link`.
pub(crate) fn connectx6dx(link: Link) -> (Model, Device) {
    open(Profile::load("connectx6dx").expect("a profile").with_link(link))
}

/// A device with a DPA.
pub(crate) fn with_dpa() -> (Model, Device) {
    open(Profile::load("bluefield3").expect("a profile"))
}

/// A device whose `ports` ports form one bond (LAG).
pub(crate) fn bonded(ports: u8) -> (Model, Device) {
    let text = include_str!("../../../model/profiles/connectx6dx-bond.toml");
    let (from, to) = ("num_lag_ports = 2", format!("num_lag_ports = {ports}"));
    assert!(text.contains(from));
    open(Profile::from_toml(&text.replace(from, &to)).expect("a profile"))
}

/// A model device with some capabilities changed.
pub(crate) fn with_caps(changes: &[(&str, &str)]) -> (Model, Device) {
    let mut text = include_str!("../../../model/profiles/connectx6dx.toml").to_owned();
    for (from, to) in changes {
        assert!(text.contains(from), "the profile has no {from}");
        text = text.replace(from, to);
    }
    open(Profile::from_toml(&text).expect("a profile"))
}

/// The device of this profile with additional lines.
pub(crate) fn based_on(name: &str, lines: &str) -> (Model, Device) {
    let text = format!("base = \"{name}\"\n{lines}");
    open(Profile::from_toml(&text).expect("a profile"))
}

pub(crate) fn open(profile: Profile) -> (Model, Device) {
    let model = Model::builder().device(profile).stepped().build();
    let backend = InProcess::of(&model);
    let info = backend.enumerate().expect("the model has devices").remove(0);
    let device = Device::open(&backend, &info).expect("the model opens");
    (model, device)
}

#[repr(align(4096))]
struct Pages([u8; BYTES]);
const BYTES: usize = 4 << 12;

/// Registers a new buffer of 16 KiB. The last page is zero, for doorbell records; the other bytes
/// are 0xf0, so that CQEs are invalid until the device writes them.
pub(crate) fn register_pages(device: &Device) -> Arc<UserMemory> {
    let mut pages = Box::new(Pages([0xf0; BYTES]));
    pages.0[BYTES - 4096..].fill(0);
    register(device, pages)
}

/// Registers a new buffer of 16 KiB that begins with these bytes.
pub(crate) fn register_bytes(device: &Device, bytes: &[u8]) -> Arc<UserMemory> {
    let mut pages = Box::new(Pages([0; BYTES]));
    pages.0[..bytes.len()].copy_from_slice(bytes);
    register(device, pages)
}

fn register(device: &Device, mut pages: Box<Pages>) -> Arc<UserMemory> {
    let address = pages.0.as_mut_ptr().expose_provenance() as u64;
    let length = BYTES as u64;
    let sizes = PageSizes::Bitmap(1 << 12);
    // SAFETY: `UserMemory` owns `pages` until deregistration, and no Rust reference to them exists.
    let umem = unsafe { device.umem_reg(address, length, access::LOCAL_WRITE, sizes) };
    let umem = umem.expect("memory that is ours");
    let umem = Arc::new(UserMemory::new(umem, address, length, pages));
    assert_eq!((umem.address(), umem.length()), (address, length));
    umem
}

/// Memory for a ring, and for a doorbell record in the last page of the same UMEM.
pub(crate) fn memory(device: &Device) -> (QueueMemory, QueueMemory) {
    let umem = register_pages(device);
    let last = umem.length() - 4096;
    (QueueMemory::new(umem.clone(), 0), QueueMemory::new(umem, last))
}

pub(crate) fn cq_attr(device: &Device) -> CqAttr {
    let (ring, record) = memory(device);
    let uar = Arc::new(device.uar_alloc(UarKind::NonCached).expect("a page"));
    let element = CqEventTarget::Eq(Eqn(device.query_eqn(0).expect("an event queue")));
    CqAttr {
        uar,
        ring,
        record,
        log_cqes: 4,
        cqe_size: CqeSize::BYTES_64,
        element,
        ignore_overrun: false,
    }
}

pub(crate) fn qp_attr(device: &Device, service: ServiceType) -> QpAttr {
    let attr = cq_attr(device);
    let uar = attr.uar.clone();
    let cq = Arc::new(device.create_cq(attr).expect("a CQ"));
    let (rings, record) = memory(device);
    QpAttr {
        service,
        pd: device.alloc_pd().expect("a protection domain"),
        uar,
        send_cq: cq.clone(),
        receive_cq: cq,
        rings,
        record,
        log_send_wqebbs: Some(3),
        log_receive_wqes: Some(2),
        rmp: None,
        log_receive_stride: 5,
        user_index: 0x12_3456,
        dma_mmo: false,
    }
}

pub(crate) fn qp(device: &Device, service: ServiceType) -> QpObject {
    device.create_qp(qp_attr(device, service)).expect("a queue pair")
}

pub(crate) fn rmp_attr(device: &Device) -> RmpAttr {
    let (ring, record) = memory(device);
    let pd = device.alloc_pd().expect("a protection domain");
    RmpAttr { pd, ring, record, log_wqes: 4, log_stride: 6, cyclic: false }
}

/// Fails unless the request was refused with `words` in the message.
#[track_caller]
pub(crate) fn refused<T>(result: Result<T, Error>, words: &str) {
    let Err(error) = result else {
        panic!("the command succeeded; expected an error with {words:?}")
    };
    assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
    assert!(error.to_string().contains(words), "{error} does not say {words:?}");
}

/// INIT with all access flags.
pub(crate) fn init() -> InitAttr {
    InitAttr { port: 1, pkey_index: 0, access: RemoteAccess::ALL }
}

/// RTR with a different value in each field.
pub(crate) fn rtr() -> RtrAttr {
    RtrAttr {
        path: Path::to_lid(0x17),
        mtu: Mtu::B1024,
        remote_qpn: Qpn(0x1234),
        receive_psn: 0x56_789a,
        max_destination_reads: 5,
        min_rnr_timer: 13,
    }
}

/// Fails unless `destroy` returns the device's refusal.
#[track_caller]
pub(crate) fn refusal_is_reported(
    model: &Model,
    opcode: Opcode,
    destroy: impl FnOnce() -> Result<(), Error>,
) {
    model.fail_command(0, opcode, 1, CommandStatus::BAD_RES_STATE, 7);
    let error = destroy().expect_err("the device refused it");
    assert!(error.to_string().contains("DESTROY"), "{error}");
}
