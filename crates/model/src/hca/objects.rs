//! What a function holds: the objects that commands create and the data path uses.
//!
//! Commands (`hca::commands`) create, change and destroy these by their entries in the registry
//! (`hca::registry`); the engine moves queues forward. The PRM context that software wrote is kept
//! whole beside the values that the data path needs, so that a query gives back every bit.

use std::sync::Arc;

use verbless_prm::{
    CqContext, CqErrorSyndrome, DpaCall as DpaCallContext, DpaCoreDump as DpaCoreDumpContext,
    DpaEmulatedDevice as DpaEmulatedDeviceContext,
    DpaEmulatedDoorbell as DpaEmulatedDoorbellContext, DpaEq as DpaEqContext,
    DpaOutbox as DpaOutboxContext, DpaProcess as DpaProcessContext, DpaThread as DpaThreadContext,
    DpaUarExtension as UarExtensionContext, DpaWindow as DpaWindowContext, EqContext, HcaCap,
    MkeyContext, QpContext, QueryQCounterOut, RmpContext, RqContext, RqState, SqContext, SqState,
    TirContext, TisContext, XrcSrqContext,
};

use crate::hca::budget::List;
use crate::hca::qp_type::QpType;
pub use crate::hca::registry::ObjectCounts;
pub(crate) use crate::hca::registry::Objects;
use crate::profile::KeyNumbers;
use crate::runtime::{CqRuntime, QpRuntime, SendRuntime};

/// A run of host memory that holds a queue, record or translation table: pages of one size and an
/// offset into the first.
#[derive(Debug, Clone)]
pub(crate) struct QueueMemory {
    /// DMA addresses of the pages, in order.
    pub pages: List<u64>,
    /// log2 of the page size in bytes.
    pub log_page_size: u32,
    /// Byte offset of the first byte, counted from the first page; it may lie in a later one.
    pub offset: u64,
    /// Length in bytes; an access past it is the model's bug.
    pub length: u64,
}

impl QueueMemory {
    /// DMA address of byte `at`; the caller keeps within a naturally aligned 64-byte (or smaller)
    /// unit, which never crosses a page.
    pub(crate) fn address(&self, at: u64) -> u64 {
        debug_assert!(at < self.length);
        let at = at + self.offset;
        self.pages[(at >> self.log_page_size) as usize] + (at & ((1 << self.log_page_size) - 1))
    }

    /// The part of `length` bytes from byte `at`, if it lies within.
    pub(crate) fn slice(&self, at: u64, length: u64) -> Option<Self> {
        at.checked_add(length).filter(|&end| end <= self.length)?;
        Some(Self { offset: self.offset.checked_add(at)?, length, ..self.clone() })
    }
}

/// Who owns an object: 0 is the kernel, others are user contexts (CREATE_UCTX).
pub(crate) type Uid = u16;

/// The uid that a driver stamps on an event queue which every user context may name in its CQs.
pub(crate) const SHARED_UID: Uid = 0xffff;

/// A registered piece of user memory (CREATE_UMEM).
#[derive(Debug)]
pub(crate) struct Umem {
    pub uid: Uid,
    pub memory: QueueMemory,
    /// Every page allows the device to write.
    pub writable: bool,
    /// It is the heap of a process of the DPA, and goes with that.
    pub device: bool,
}

/// A process of the DPA.
#[derive(Debug)]
pub(crate) struct DpaProcess {
    pub uid: Uid,
    /// UMEM of its heap.
    pub heap: u32,
    pub context: DpaProcessContext,
}

/// A thread of the DPA.
#[derive(Debug)]
pub(crate) struct DpaThread {
    pub uid: Uid,
    pub context: DpaThreadContext,
}

/// A call of a function on the DPA.
#[derive(Debug)]
pub(crate) struct DpaCall {
    pub uid: Uid,
    pub context: DpaCallContext,
}

/// A page of doorbells for the DPA.
#[derive(Debug)]
pub(crate) struct DpaOutbox {
    pub uid: Uid,
    pub context: DpaOutboxContext,
}

/// A UAR page whose queues a process of another function's DPA may ring for.
#[derive(Debug)]
pub(crate) struct UarExtension {
    pub uid: Uid,
    pub context: UarExtensionContext,
}

/// A window of the DPA.
#[derive(Debug)]
pub(crate) struct DpaWindow {
    pub uid: Uid,
    pub context: DpaWindowContext,
}

/// A core dump that was written.
#[derive(Debug)]
pub(crate) struct DpaCoreDump {
    pub uid: Uid,
    pub context: DpaCoreDumpContext,
    /// By this it is known while it is written; another of its number has another.
    pub mark: Arc<()>,
}

/// What a memory key lets its holder do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Access {
    pub local_read: bool,
    pub local_write: bool,
    pub remote_read: bool,
    pub remote_write: bool,
    pub atomic: bool,
}

/// How a memory key turns an address into host memory.
#[derive(Debug, Clone)]
pub(crate) enum Translation {
    /// The address is the DMA address.
    Physical,
    /// Pages of one size.
    Pages(QueueMemory),
    /// KLM entries, each a range of another key; KSM when all have the same length.
    Indirect { entries: List<Klm>, log_entry_size: Option<u32> },
    /// KLM entries that are taken in turn, over and over.
    Interleaved(Interleaved),
    /// The null key: reads give zeros, writes vanish.
    Null,
    /// A key of a function, the same or another of its card; addresses count as there.
    Crossing { function: usize, key: u32 },
}

/// Memory of an indirect key that repeats: a round takes so many bytes of each KLM in turn, and
/// every round begins a stride further in each.
#[derive(Debug, Clone)]
pub(crate) struct Interleaved {
    pub rounds: u32,
    /// Bytes of a round.
    pub length: u64,
    pub klms: List<(Klm, Stride)>,
}

/// Bytes from where one round begins in a KLM to where the next one does.
pub(crate) type Stride = u16;

/// An entry of an indirect key: a range of another key.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Klm {
    pub key: u32,
    pub length: u32,
    pub address: u64,
}

/// A memory key.
#[derive(Debug)]
pub(crate) struct Mkey {
    pub uid: Uid,
    /// The low byte of lkey and rkey; the index is the map's key.
    pub variant: u8,
    pub pd: u32,
    pub access: Access,
    pub start: u64,
    /// Length in bytes; `None` when length64 is set: the whole address space.
    pub length: Option<u64>,
    pub translation: Translation,
    /// `free` state: a key that UMR has yet to fill refuses every access.
    pub free: bool,
    /// Restricts the key to one QP (0xffffff: any).
    pub qpn: u32,
    pub umem: Option<u32>,
    /// Of a key whose range UMR may change: its translation entries as software wrote them.
    pub table: Option<List<u8>>,
    /// What other functions must know to make an alias of it, if any may.
    pub offer: Option<Offer>,
    pub context: MkeyContext,
}

/// What the owner of an object said when it let other functions at it
/// (ALLOW_OTHER_VHCA_ACCESS).
#[derive(Clone)]
pub(crate) struct Offer {
    pub access_key: [u8; 32],
    /// Tells the object from later ones of its number.
    pub serial: u64,
}

impl std::fmt::Debug for Offer {
    /// Without the secret.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Offer").field("serial", &self.serial).finish_non_exhaustive()
    }
}

/// A memory key that a function, this one or another, opened to others.
#[derive(Debug)]
pub(crate) struct Foreign {
    pub function: usize,
    pub index: u32,
    pub offer: Offer,
}

/// An alias of a memory key of a function, this one or another.
#[derive(Debug)]
pub(crate) struct Alias {
    pub uid: Uid,
    pub pd: u32,
    /// Whose key it is, by the number in the model, and the key's index there.
    pub function: usize,
    pub index: u32,
    /// That of the offer by which it was made.
    pub serial: u64,
}

impl Mkey {
    /// The null key, which every function has without creating it.
    pub(crate) fn null(variant: u8) -> Self {
        Self {
            uid: 0,
            variant,
            pd: 0,
            access: Access {
                local_read: true,
                local_write: true,
                remote_read: true,
                remote_write: true,
                atomic: false,
            },
            start: 0,
            length: None,
            translation: Translation::Null,
            free: false,
            qpn: 0xff_ffff,
            umem: None,
            table: None,
            offer: None,
            context: MkeyContext::zeroed(),
        }
    }

    pub(crate) fn is_null(&self) -> bool {
        matches!(self.translation, Translation::Null)
    }
}

/// A completion queue.
#[derive(Debug)]
pub(crate) struct Cq {
    pub uid: Uid,
    pub memory: QueueMemory,
    /// Address of the 8-byte doorbell record: consumer index, then arm word.
    pub record: u64,
    pub log_size: u32,
    /// Bytes per CQE: 64 or 128.
    pub cqe_bytes: u32,
    /// Who hears of its CQEs.
    pub element: Element,
    pub uar_page: u32,
    pub overrun_ignore: bool,
    /// Index of the next CQE to write, counting on without wrap.
    pub producer: u32,
    /// Why the queue takes no more CQEs, once it does not.
    pub failure: Option<CqErrorSyndrome>,
    pub arm: Arm,
    /// Index after the last solicited CQE.
    pub solicited: Option<u32>,
    /// Index after the last CQE that an event has told of: those before it make no other.
    pub notified: u32,
    pub umems: Vec<u32>,
    /// What the engine keeps; starts as the default.
    pub runtime: CqRuntime,
    pub context: CqContext,
}

/// Who hears of the CQEs of a CQ, by number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Element {
    /// An event queue.
    Eq(u32),
    /// A thread of the DPA.
    Thread(u32),
    /// An event queue of the DPA.
    DpaEq(u32),
}

/// What a CQ has been asked to report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Arm {
    /// Nothing.
    #[default]
    Idle,
    /// The next CQE after the consumer index given.
    Next { consumer: u32, sequence: u8 },
    /// The next solicited or error CQE after it.
    Solicited { consumer: u32, sequence: u8 },
}

/// Where the events of an event queue go, and how far it is.
#[derive(Debug)]
pub(crate) struct EventRing {
    pub memory: QueueMemory,
    pub log_size: u32,
    /// Events are written whether or not software has taken those before.
    pub overrun_ignore: bool,
    /// Bits of the consumer index that doorbells have.
    pub counter: u32,
    /// Index of the next EQE to write, counting on without wrap.
    pub producer: u32,
    pub consumer: u32,
    /// An EQE written while armed raises the vector and disarms.
    pub armed: bool,
}

/// An event queue; only the kernel creates them.
#[derive(Debug)]
pub(crate) struct Eq {
    pub ring: EventRing,
    pub vector: u32,
    /// Which event types come here.
    pub bitmask: [u64; 4],
    pub uar_page: u32,
    pub context: EqContext,
}

/// An event queue of the DPA.
#[derive(Debug)]
pub(crate) struct DpaEq {
    pub uid: Uid,
    pub ring: EventRing,
    pub context: DpaEqContext,
}

impl DpaEq {
    /// The emulated device and its vector that an armed EQ raises.
    pub(crate) fn raises(&self) -> Option<(u32, u16)> {
        let context = &self.context;
        context.device_valid().then(|| (context.device_id(), context.vector()))
    }
}

/// A PCI device that programs of the DPA emulate.
#[derive(Debug)]
pub(crate) struct EmulatedDevice {
    pub uid: Uid,
    pub context: DpaEmulatedDeviceContext,
}

impl EmulatedDevice {
    /// A vector is raised, which its host would see.
    pub(crate) fn raise(&mut self, vector: u16) {
        let raised = self.context.raised(vector.into()).wrapping_add(1);
        self.context.set_raised(vector.into(), raised);
    }
}

/// A doorbell of such a device that makes CQEs.
#[derive(Debug)]
pub(crate) struct EmulatedDoorbell {
    pub uid: Uid,
    pub context: DpaEmulatedDoorbellContext,
}

impl Eq {
    /// It asks for events of this type.
    pub(crate) fn takes(&self, kind: u8) -> bool {
        self.bitmask[usize::from(kind) / 64] >> (kind % 64) & 1 != 0
    }
}

/// QP states, as the PRM numbers them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum QpState {
    Reset = 0,
    Init = 1,
    Rtr = 2,
    Rts = 3,
    SqError = 4,
    SqDrained = 5,
    Error = 6,
}

impl QpState {
    /// A QP takes messages in it.
    pub(crate) fn receives(self) -> bool {
        matches!(self, Self::Rtr | Self::Rts | Self::SqError | Self::SqDrained)
    }

    pub(crate) fn to_prm(self) -> verbless_prm::QpState {
        verbless_prm::QpState(self as u8)
    }
}

/// The send half of a QP, or an SQ.
#[derive(Debug)]
pub(crate) struct SendQueue {
    pub memory: QueueMemory,
    /// log2 of the number of WQEBBs.
    pub log_size: u32,
    pub cqn: u32,
    /// Next WQEBB to execute, counting on without wrap; the low 16 bits are the WQE's index.
    pub consumer: u16,
    /// Producer index as last read from the record.
    pub producer: u16,
    /// Woken by a doorbell and not yet run dry.
    pub awake: bool,
    /// What the engine keeps; starts as the default, and again after a reset.
    pub runtime: SendRuntime,
}

impl SendQueue {
    /// An empty queue of 2^`log_size` WQEBBs.
    pub(crate) fn new(memory: QueueMemory, log_size: u32, cqn: u32) -> Self {
        Self {
            memory,
            log_size,
            cqn,
            consumer: 0,
            producer: 0,
            awake: false,
            runtime: Default::default(),
        }
    }

    /// Forgets what was posted; gives what the engine kept of it.
    pub(crate) fn reset(&mut self) -> SendRuntime {
        (self.consumer, self.producer, self.awake) = (0, 0, false);
        std::mem::take(&mut self.runtime)
    }
}

/// The receive half of a QP, an RQ or an RMP.
#[derive(Debug)]
pub(crate) struct ReceiveQueue {
    pub memory: QueueMemory,
    /// log2 of the number of WQEs.
    pub log_size: u32,
    /// log2 of the stride in bytes.
    pub log_stride: u32,
    pub cqn: u32,
    pub consumer: u16,
}

/// Where a connected QP sends to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Address {
    /// InfiniBand, by LID.
    Lid(u16),
    /// InfiniBand, by LID and with a GRH, whose GID says which port among those that share the LID.
    Routed { lid: u16, gid: [u8; 16] },
    /// RoCE, by GID.
    Gid([u8; 16]),
    /// The function itself, within the device (force loopback).
    Own,
}

/// The requester half of a connected QP.
#[derive(Debug, Default)]
pub(crate) struct Requester {
    /// Next PSN to send.
    pub psn: u32,
    pub retry_limit: u8,
    pub rnr_retry_limit: u8,
    /// Log of the local ACK timeout (4.096 µs * 2^n); 0: never.
    pub ack_timeout: u8,
    pub retries_left: u8,
    pub rnr_retries_left: u8,
    pub max_rd_atomic: u8,
}

/// The responder half of a connected QP.
#[derive(Debug, Default)]
pub(crate) struct Responder {
    /// Next PSN expected.
    pub psn: u32,
    pub min_rnr_timer: u8,
    pub allow_read: bool,
    pub allow_write: bool,
    pub allow_atomic: bool,
    pub max_dest_rd_atomic: u8,
}

/// A queue pair.
#[derive(Debug)]
pub(crate) struct QpObject {
    pub uid: Uid,
    pub state: QpState,
    pub qp_type: &'static QpType,
    pub pd: u32,
    pub uar_page: u32,
    /// Address of the 8-byte doorbell record: receive counter, then send counter.
    pub record: u64,
    pub sq: Option<SendQueue>,
    pub rq: Option<ReceiveQueue>,
    /// The shared receive queue (SRQ, XRC SRQ or RMP) that serves it instead.
    pub srq: Option<u32>,
    pub remote_qpn: u32,
    pub remote: Option<Address>,
    /// The port that it sends from, from 1.
    pub port: u8,
    /// Goes into every CQE; 0xffffff: the number of the shared receive queue, or 0, goes there
    /// instead.
    pub user_index: u32,
    /// It takes WQEs that copy memory within the device (mmo of the context's extension).
    pub mmo: bool,
    /// Bytes of a READ or atomic response that may be delivered in the CQE (0, 32 or 64; cs_req).
    pub requester_inline: u8,
    /// Bytes of a received message that may be delivered in the CQE (0, 32 or 64; cs_res).
    pub responder_inline: u8,
    /// log2 of the path MTU in bytes (8 to 12).
    pub log_mtu: u32,
    pub requester: Requester,
    pub responder: Responder,
    pub umems: Vec<u32>,
    /// The multicast groups that it joined.
    pub groups: Vec<[u8; 16]>,
    /// What the engine keeps; starts as the default, and again after 2RST.
    pub runtime: QpRuntime,
    pub context: QpContext,
}

/// A send queue that belongs to no QP.
#[derive(Debug)]
pub(crate) struct Sq {
    pub uid: Uid,
    pub state: SqState,
    /// Whose keys its WQEs may name. PD 0 is nobody's: with it, none.
    pub pd: u32,
    pub uar_page: u32,
    /// Address of the 8-byte doorbell record; its second word counts the WQEBBs posted.
    pub record: u64,
    pub queue: SendQueue,
    pub umems: Vec<u32>,
    pub context: SqContext,
}

/// A receive queue of Ethernet frames.
#[derive(Debug)]
pub(crate) struct Rq {
    pub uid: Uid,
    pub state: RqState,
    /// Whose keys the WQEs of its own ring may name.
    pub pd: Option<u32>,
    /// Address of the 8-byte doorbell record of its own ring; its first word counts the WQEs
    /// posted.
    pub record: u64,
    /// Its own ring.
    pub queue: Option<ReceiveQueue>,
    /// The RMP that has the WQEs instead.
    pub srq: Option<u32>,
    pub umems: Vec<u32>,
    pub context: RqContext,
}

/// What the frames of SQs go through.
#[derive(Debug)]
pub(crate) struct Tis {
    pub uid: Uid,
    pub context: TisContext,
}

/// What leads frames to an RQ.
#[derive(Debug)]
pub(crate) struct Tir {
    pub uid: Uid,
    pub context: TirContext,
}

/// A receive queue that several QPs share.
#[derive(Debug)]
pub(crate) struct Srq {
    pub uid: Uid,
    pub pd: u32,
    pub memory: QueueMemory,
    /// Address of the 8-byte doorbell record; its first word counts the WQEs posted.
    pub record: u64,
    /// log2 of the number of WQEs.
    pub log_size: u32,
    /// log2 of the stride in bytes.
    pub log_stride: u32,
    /// The WQEs are used in the order of their places, and not of their links.
    pub cyclic: bool,
    /// The index of the next WQE to use; its low bits are its place.
    pub head: u16,
    /// WQEs used, counting on.
    pub consumed: u16,
    /// When fewer WQEs are left, the limit event is due; 0: not armed.
    pub limit: u16,
    /// The CQ of an XRC SRQ; an RMP's users have their own.
    pub cqn: Option<u32>,
    pub xrcd: Option<u32>,
    pub umems: Vec<u32>,
    pub context: SrqContext,
}

/// A shared receive queue as software made it.
#[derive(Debug, Clone)]
pub(crate) enum SrqContext {
    XrcSrq(XrcSrqContext),
    Rmp(Box<RmpContext>),
}

/// A set of counters of what happens to queues (ALLOC_Q_COUNTER).
#[derive(Debug)]
pub(crate) struct QCounter {
    pub uid: Uid,
    /// The counters as a query gives them.
    pub values: QueryQCounterOut,
}

/// What the capabilities say of the data path, where it can be looked up quickly.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Limits {
    /// The key that reaches all of memory, for queues that may use it.
    pub reserved_lkey: u32,
    /// What stands in the place of a key where a list of entries repeats.
    pub repeated_mkey: u32,
    pub repeated_block_disabled: bool,
    /// How many indirect keys may stand one on another.
    pub max_indirection: u32,
    /// Bytes of the longest send WQE.
    pub max_wqe_sz_sq: usize,
    /// log2 of the bytes of the longest message.
    pub log_max_msg: u8,
    /// Frequency of the device's clock.
    pub khz: u32,
}

impl Limits {
    pub(crate) fn new(general: &HcaCap, keys: &KeyNumbers) -> Self {
        Self {
            reserved_lkey: keys.reserved_lkey,
            repeated_mkey: keys.repeated_mkey,
            repeated_block_disabled: general.repeated_block_disabled(),
            max_indirection: general.max_indirection().into(),
            max_wqe_sz_sq: general.max_wqe_sz_sq().into(),
            log_max_msg: general.log_max_msg(),
            khz: general.device_frequency_khz(),
        }
    }

    /// Ticks of the device's free-running clock at a time in nanoseconds.
    pub(crate) fn ticks(&self, nanoseconds: u64) -> u64 {
        (u128::from(nanoseconds) * u128::from(self.khz) / 1_000_000) as u64
    }

    /// Bytes of the longest message of a QP.
    pub(crate) fn longest_message(&self, qp: &QpObject) -> u64 {
        1 << self.log_max_msg.min(qp.context.log_msg_max())
    }
}

/// A user context; what it holds says that it is its own.
#[derive(Debug)]
pub(crate) struct Uctx {
    /// What it may do beyond others (`uctx_cap`).
    pub cap: u32,
}
