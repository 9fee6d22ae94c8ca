//! The queues of a recorded device: where their rings are, and what is new in them.
//!
//! A queue is memory of the program, which no request passes through. A thread reads the doorbell
//! records and the rings some thousand times a second: the program's own post and poll are as
//! without a recording. What was overwritten between two looks is counted as unseen. The thread
//! reads by system calls, so memory that is gone is an error and no crash.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::Thread;
use std::time::Duration;

use verbless_devx::abi::{attr, method};
use verbless_prm::{
    CqeSize, CreateCqIn, CreateCqOut, CreateQpIn, CreateQpOut, CreateRmpIn, CreateRmpOut,
    CreateRqIn, CreateRqOut, CreateSqIn, CreateSqOut, MemRqType, ModifyRqIn, ModifySqIn, Opcode,
    RqState, RqType, ServiceType, SqState, WqContext, WqType,
};

use super::bytes::Bytes;
use super::compare::method_of;
use super::entry::{Cqe, Data, Entry, Ioctl, Unseen, Wqe};
use super::payload::{self, Keys, Range};
use super::wqe::{Class, without_data_of_cqe, without_data_of_wqe};
use super::writer::Section;
use crate::own_memory;

/// Time between two looks at the rings, and between those at rings where nothing happens.
const PAUSE: Duration = Duration::from_micros(20);
const LONG_PAUSE: Duration = Duration::from_micros(200);
/// Looks that found nothing, before which there is no pause, and after which the pause is long.
const BUSY: u32 = 50;
const IDLE: u32 = 150;
/// Rings of a device that are looked at: each look takes two system calls for each.
const MOST_RINGS: usize = 128;
/// Bytes of a WQEBB, and of what is read of a CQE.
const WQEBB: u64 = 64;
const CQE: usize = 64;
/// Where a CQE has the number of the queue.
const QPN: usize = 56;
/// Where a responder's CQE has the bytes of the message.
const BYTE_COUNT: usize = 44;
/// Bytes of a doorbell record: two counters.
const RECORD: u64 = 8;
/// Receive queues have strides of at least this many bytes.
const LEAST_STRIDE: u64 = 16;
/// Bytes of the link at the start of an SRQ's WQE (`mlx5_wqe_srq_next_seg`); the index of the next
/// WQE is in its first word.
const LINK: usize = 16;

/// A queue's ring.
#[derive(Clone)]
struct Ring {
    kind: Kind,
    number: u32,
    /// The handle of the queue's object.
    handle: u64,
    address: u64,
    log_entries: u32,
    stride: u64,
    /// Address of its counter in the doorbell record.
    record: u64,
    /// Counter of the next entry; its index, modulo the size, unless the ring is a list.
    next: u32,
    /// The counter when the queue was reset: the program has posted nothing since while the record
    /// still has it.
    before_reset: Option<u32>,
    /// Of a list: the indexes of the next entries, as far as their links are known.
    list: VecDeque<u32>,
    /// Of an SRQ in a replay: the indexes of posted entries without a CQE.
    outstanding: HashSet<u32>,
    /// The posted WQEs that have no CQE yet, by index, if payload is recorded.
    posted: VecDeque<(u32, Vec<u8>)>,
}

/// What a ring has.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Send(Class),
    Receive,
    /// An SRQ: its entries are a list, or come in the order of the ring.
    Shared {
        is_list: bool,
    },
    Completion,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Send(_) => "sq",
            Self::Receive => "rq",
            Self::Shared { .. } => "srq",
            Self::Completion => "cq",
        }
    }
}

impl Ring {
    /// A ring whose memory is not known.
    fn empty(kind: Kind, number: u32, handle: u64) -> Self {
        Self {
            kind,
            number,
            handle,
            address: 0,
            log_entries: 0,
            stride: 0,
            record: 0,
            next: 0,
            before_reset: None,
            list: VecDeque::new(),
            outstanding: HashSet::new(),
            posted: VecDeque::new(),
        }
    }
}

/// Registered memory: the id that commands have, the address and the bytes.
struct Memory {
    id: u32,
    address: u64,
    len: u64,
}

/// The rings of one open device.
pub(super) struct Rings {
    /// Where what is new goes; a replay has none.
    section: Option<Arc<Section>>,
    file: u32,
    /// Registered memory by handle.
    memory: HashMap<u64, Memory>,
    rings: Vec<Ring>,
    /// The handle of the object whose events have this cookie in this channel.
    subscriptions: HashMap<(i64, u64), u64>,
    watched: bool,
    /// The thread that looks at the rings.
    watcher: Option<Thread>,
    /// Whether a request ended after its last look: the program may use a queue at once.
    requested: bool,
}

impl Rings {
    pub(super) fn new(section: Option<Arc<Section>>, file: u32) -> Self {
        Self {
            section,
            file,
            memory: HashMap::new(),
            rings: Vec::new(),
            subscriptions: HashMap::new(),
            watched: false,
            watcher: None,
            requested: false,
        }
    }

    /// Looks after a request, and has the thread look again at once.
    pub(super) fn look_after_request(&mut self) {
        self.look();
        self.requested = true;
        if let Some(watcher) = &self.watcher {
            watcher.unpark();
        }
    }

    fn add(&self, entry: Entry) {
        if let Some(section) = &self.section {
            section.add(entry);
        }
    }

    /// The memory keys of the case, if payload is recorded.
    fn keys(&self) -> Option<&Keys> {
        self.section.as_ref()?.keys()
    }

    /// Writes what a message wrote; false if the memory is not registered.
    pub(super) fn write(&self, umem: u32, offset: u64, bytes: &[u8]) -> bool {
        let address = self.address(umem, offset, bytes.len() as u64);
        address.is_some_and(|address| own_memory::write(address, bytes))
    }

    fn ring(&self, queue: &str, number: u32) -> Option<&Ring> {
        self.rings.iter().find(|ring| ring.kind.name() == queue && ring.number == number)
    }

    /// The WQE at an index of a queue, `len` bytes of it without data; `None`: it is not posted.
    pub(super) fn wqe(&self, queue: &str, number: u32, index: u32, len: usize) -> Option<Vec<u8>> {
        let ring = self.ring(queue, number)?;
        let after = Self::counter(ring)?.wrapping_sub(index) & 0xffff;
        if after == 0 || after > 0x7fff {
            return None;
        }
        let most = (ring.stride << ring.log_entries).min(len as u64);
        let mut bytes = Self::read(ring, index, most);
        if let Kind::Send(class) = ring.kind {
            without_data_of_wqe(&mut bytes, class);
        }
        Some(bytes)
    }

    /// Takes the next posted WQE of an SRQ, and its index; `None`: none is posted.
    pub(super) fn take_shared(&mut self, number: u32) -> Option<(u32, Vec<u8>)> {
        let is_it =
            |ring: &&mut Ring| matches!(ring.kind, Kind::Shared { .. }) && ring.number == number;
        let ring = self.rings.iter_mut().find(is_it)?;
        if Self::counter(ring)? & 0xffff == ring.next {
            return None;
        }
        let taken = Self::next_shared(ring);
        ring.outstanding.insert(taken.0);
        Some(taken)
    }

    /// Whether an SRQ of the device has this WQE, and a replay has not completed it.
    pub(super) fn is_outstanding(&self, index: u32) -> bool {
        self.rings.iter().any(|ring| ring.outstanding.contains(&index))
    }

    /// A message took this WQE of an SRQ.
    pub(super) fn complete_shared(&mut self, index: u32) {
        self.rings.iter_mut().for_each(|ring| {
            ring.outstanding.remove(&index);
        });
    }

    /// Whether a queue of this number has receives of its own.
    pub(super) fn has_receives(&self, number: u32) -> bool {
        self.ring(Kind::Receive.name(), number).is_some()
    }

    /// The CQ to which a record of an event channel belongs, and the word that armed it; `None`: of
    /// another object, or the CQ is gone.
    pub(super) fn arm_of(&self, channel: u32, record: &[u8]) -> Option<[u32; 2]> {
        let cookie = u64::from_ne_bytes(*record.first_chunk()?);
        let handle = *self.subscriptions.get(&(channel.into(), cookie))?;
        let is_it = |it: &&Ring| it.kind == Kind::Completion && it.handle == handle;
        let ring = self.rings.iter().find(is_it)?;
        Some([ring.number, Self::arm(ring)?])
    }

    /// The word that last armed a CQ.
    pub(super) fn arm_word(&self, number: u32) -> Option<u32> {
        Self::arm(self.ring(Kind::Completion.name(), number)?)
    }

    fn arm(ring: &Ring) -> Option<u32> {
        let word = own_memory::read(ring.record + RECORD / 2, 4);
        word.first_chunk().map(|bytes| u32::from_be_bytes(*bytes))
    }

    /// Writes a CQE as a device does: the owner byte last. False if there is no such CQ, or no room
    /// before its consumer's index.
    pub(super) fn complete(&self, number: u32, index: u32, cqe: &[u8]) -> bool {
        let Some(ring) = self.ring(Kind::Completion.name(), number) else { return false };
        let consumed = Self::counter(ring).unwrap_or(0) & 0xff_ffff;
        let ahead = index.wrapping_sub(consumed) & 0xff_ffff;
        let Some((owner, body)) = cqe.split_last().filter(|_| cqe.len() == CQE) else {
            return false;
        };
        if ahead >= 1 << ring.log_entries && ahead < 1 << 23 {
            return false;
        }
        let entry = index & ((1 << ring.log_entries) - 1);
        let at = ring.address + u64::from(entry) * ring.stride + ring.stride - CQE as u64;
        let body = own_memory::write(at, body);
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
        body && own_memory::write(at + CQE as u64 - 1, &[*owner])
    }

    /// Follows a request that succeeded; whether it made the first ring.
    pub(super) fn follow(&mut self, ioctl: &Ioctl, input: &[u8], output: &[u8]) -> bool {
        let new = ioctl.attributes.iter().find_map(|attr| attr.new_handle);
        let old = ioctl.attributes.iter().find_map(|attr| attr.handle);
        match (method_of(ioctl), new, old) {
            (method::DEVX_UMEM_REG, ..) => self.register(ioctl),
            (method::DEVX_UMEM_DEREG, _, Some(handle)) => self.deregister(handle),
            (method::DEVX_OBJ_CREATE, Some(handle), _) => {
                return self.create(handle, input, output);
            }
            (method::DEVX_OBJ_DESTROY, _, Some(handle)) => self.destroy(handle),
            (method::DEVX_OBJ_MODIFY, _, Some(handle)) if is_reset(input) => self.reset(handle),
            (method::DEVX_SUBSCRIBE_EVENT, _, Some(handle)) => self.subscribe(ioctl, handle),
            _ => {}
        }
        false
    }

    /// Learns whose events have a cookie.
    fn subscribe(&mut self, ioctl: &Ioctl, handle: u64) {
        use attr::devx_subscribe_event::{COOKIE, FD_HANDLE};
        let of = |id| ioctl.attributes.iter().find(|attr| attr.id == id);
        let cookie = of(COOKIE).and_then(|attr| attr.input.as_ref());
        let cookie = cookie.and_then(|bytes| bytes.0.first_chunk());
        let channel = of(FD_HANDLE).and_then(|attr| attr.channel);
        if let (Some(cookie), Some(channel)) = (cookie, channel) {
            self.subscriptions.insert((channel, u64::from_ne_bytes(*cookie)), handle);
        }
    }

    /// Learns registered memory.
    fn register(&mut self, ioctl: &Ioctl) {
        use attr::devx_umem_reg::{ADDR, HANDLE, LEN, OUT_ID};
        let of = |id| ioctl.attributes.iter().find(|attr| attr.id == id);
        let id = of(OUT_ID).and_then(|attr| attr.output.as_ref());
        let id = id.and_then(|bytes| bytes.0.first_chunk()).map(|it| u32::from_ne_bytes(*it));
        let handle = of(HANDLE).and_then(|attr| attr.new_handle);
        let address = of(ADDR).and_then(|attr| attr.address);
        let len = of(LEN).and_then(|attr| attr.input.as_ref());
        let len = len.and_then(|bytes| bytes.0.first_chunk()).map(|it| u64::from_ne_bytes(*it));
        if let (Some(id), Some(handle), Some(address), Some(len)) = (id, handle, address, len) {
            self.memory.insert(handle, Memory { id, address, len });
            if let Some(keys) = self.keys() {
                keys.register(self.file, id, address);
            }
        }
    }

    /// Forgets registered memory and what is in it: the program may use it for something else.
    fn deregister(&mut self, handle: u64) {
        let Some(memory) = self.memory.remove(&handle) else { return };
        let within = |address: u64| address.wrapping_sub(memory.address) < memory.len;
        self.rings.retain(|ring| !within(ring.address) && !within(ring.record));
    }

    /// The address of `bytes` bytes in registered memory. A recording's ids are a stranger's: what
    /// is not whole within one registration has no address.
    fn address(&self, id: u32, offset: u64, bytes: u64) -> Option<u64> {
        let memory = self.memory.values().find(|memory| memory.id == id)?;
        let end = offset.checked_add(bytes)?;
        (end <= memory.len).then(|| memory.address.checked_add(offset)).flatten()
    }

    /// Learns the rings of an object that was made; whether its first one was.
    fn create(&mut self, handle: u64, input: &[u8], output: &[u8]) -> bool {
        let opcode = input.first_chunk().map(|bytes| Opcode(u16::from_be_bytes(*bytes)));
        let made = match opcode {
            Some(Opcode::CREATE_CQ) => self.cq(handle, input, output),
            Some(Opcode::CREATE_QP) => self.qp(handle, input, output),
            Some(Opcode::CREATE_SQ) => self.sq(handle, input, output),
            Some(Opcode::CREATE_RQ) => self.rq(handle, input, output),
            Some(Opcode::CREATE_MKEY) => {
                self.keys().and_then(|keys| keys.learn(self.file, handle, input, output));
                None
            }
            Some(Opcode::CREATE_RMP) => self.rmp(handle, input, output),
            _ => None,
        };
        let first = made.is_some() && !self.watched;
        self.watched |= first;
        first
    }

    fn cq(&mut self, handle: u64, input: &[u8], output: &[u8]) -> Option<()> {
        let (input, output) = (CreateCqIn::from_prefix(input)?, CreateCqOut::from_prefix(output)?);
        let context = input.cq_context();
        if !input.cq_umem_valid() || !context.dbr_umem_valid() {
            return None;
        }
        let number = output.cqn();
        if self.is_full(Kind::Completion, number) {
            return None;
        }
        if context.cc() {
            self.unseen(Kind::Completion, number, 0, "it is collapsed: its CQEs have one place");
            return None;
        }
        let stride = if context.cqe_sz() == CqeSize::BYTES_128 { 128 } else { 64 };
        let (offset, bytes) = (input.cq_umem_offset(), stride << context.log_cq_size());
        let ring = Ring {
            address: self.address(input.cq_umem_id(), offset, bytes)?,
            log_entries: context.log_cq_size().into(),
            stride,
            record: self.address(context.dbr_umem_id(), context.dbr_addr(), RECORD)?,
            ..Ring::empty(Kind::Completion, number, handle)
        };
        self.rings.push(ring);
        Some(())
    }

    fn sq(&mut self, handle: u64, input: &[u8], output: &[u8]) -> Option<()> {
        let (input, output) = (CreateSqIn::from_prefix(input)?, CreateSqOut::from_prefix(output)?);
        self.wq(Kind::Send(Class::Frames), output.sqn(), handle, input.ctx().wq())
    }

    fn rq(&mut self, handle: u64, input: &[u8], output: &[u8]) -> Option<()> {
        let (input, output) = (CreateRqIn::from_prefix(input)?, CreateRqOut::from_prefix(output)?);
        if input.ctx().mem_rq_type() != MemRqType::INLINE {
            return None;
        }
        self.wq(Kind::Receive, output.rqn(), handle, input.ctx().wq())
    }

    fn rmp(&mut self, handle: u64, input: &[u8], output: &[u8]) -> Option<()> {
        let input = CreateRmpIn::from_prefix(input)?;
        let output = CreateRmpOut::from_prefix(output)?;
        let wq = input.ctx().wq();
        let kind = Kind::Shared { is_list: wq.wq_type() == WqType::LINKED_LIST };
        self.wq(kind, output.rmpn(), handle, wq)
    }

    /// Learns the ring of a work queue.
    fn wq(&mut self, kind: Kind, number: u32, handle: u64, wq: &WqContext) -> Option<()> {
        if !wq.wq_umem_valid() || !wq.dbr_umem_valid() || self.is_full(kind, number) {
            return None;
        }
        if ![WqType::LINKED_LIST, WqType::CYCLIC].contains(&wq.wq_type()) {
            self.unseen(kind, number, 0, "its WQEs take several messages each");
            return None;
        }
        let is_send = matches!(kind, Kind::Send(_));
        let stride = if is_send { WQEBB } else { 1 << wq.log_wq_stride() };
        // The second word of a record is of the send queue.
        let word = if is_send { RECORD / 2 } else { 0 };
        let bytes = stride << wq.log_wq_sz();
        let ring = Ring {
            address: self.address(wq.wq_umem_id(), wq.wq_umem_offset(), bytes)?,
            log_entries: wq.log_wq_sz().into(),
            stride,
            record: self.address(wq.dbr_umem_id(), wq.dbr_addr(), RECORD)? + word,
            ..Ring::empty(kind, number, handle)
        };
        self.rings.push(ring);
        Some(())
    }

    /// Whether there are too many rings to look at another queue's.
    fn is_full(&self, kind: Kind, number: u32) -> bool {
        let full = self.section.is_some() && self.rings.len() >= MOST_RINGS;
        if full {
            self.unseen(kind, number, 0, "the device has more queues than the recorder looks at");
        }
        full
    }

    fn qp(&mut self, handle: u64, input: &[u8], output: &[u8]) -> Option<()> {
        let (input, output) = (CreateQpIn::from_prefix(input)?, CreateQpOut::from_prefix(output)?);
        let context = input.qpc();
        if !input.wq_umem_valid() || !context.dbr_umem_valid() {
            return None;
        }
        if self.is_full(Kind::Send(Class::Connected), output.qpn()) {
            return None;
        }
        let stride = LEAST_STRIDE << context.log_rq_stride();
        // The receive queue comes first, if the QP has one of its own.
        let receives = match context.rq_type() {
            RqType::REGULAR => stride << context.log_rq_size(),
            _ => 0,
        };
        let sends = if context.no_sq() { 0 } else { WQEBB << context.log_sq_size() };
        let offset = input.wq_umem_offset();
        let mut ring = Ring {
            address: self.address(input.wq_umem_id(), offset, receives + sends)?,
            log_entries: context.log_rq_size().into(),
            stride,
            record: self.address(context.dbr_umem_id(), context.dbr_addr(), RECORD)?,
            ..Ring::empty(Kind::Receive, output.qpn(), handle)
        };
        if receives > 0 {
            self.rings.push(ring.clone());
        }
        if !context.no_sq() {
            let is_ud = context.st() == ServiceType::UD;
            ring.kind = Kind::Send(if is_ud { Class::Datagrams } else { Class::Connected });
            (ring.address, ring.record) = (ring.address + receives, ring.record + RECORD / 2);
            (ring.log_entries, ring.stride) = (context.log_sq_size().into(), WQEBB);
            self.rings.push(ring);
        }
        Some(())
    }

    /// A queue that is reset begins at the start of its rings.
    fn reset(&mut self, handle: u64) {
        for ring in self.rings.iter_mut().filter(|ring| ring.handle == handle) {
            (ring.next, ring.posted) = (0, VecDeque::new());
            ring.before_reset = Self::counter(ring).filter(|counter| counter & 0xffff != 0);
        }
    }

    /// The next posted WQE of an SRQ, without its link, and its index.
    fn next_shared(ring: &mut Ring) -> (u32, Vec<u8>) {
        let mask = (1 << ring.log_entries) - 1;
        let index = match ring.kind {
            Kind::Shared { is_list: true } => Self::next_of_list(ring, mask),
            _ => ring.next & mask,
        };
        let mut bytes = Self::read(ring, index, ring.stride);
        bytes.iter_mut().take(LINK).for_each(|byte| *byte = 0);
        ring.next = ring.next.wrapping_add(1) & 0xffff;
        (index, bytes)
    }

    /// The index of the next posted entry of a list. The last entry of a list is never posted, as
    /// its link is not known to the program, so a posted entry has a link.
    fn next_of_list(ring: &mut Ring, mask: u32) -> u32 {
        if ring.next == 0 && ring.list.is_empty() {
            // The whole list, as it was made.
            let (mut entry, mut seen) = (0, HashSet::new());
            while seen.insert(entry) {
                ring.list.push_back(entry);
                entry = Self::link(ring, entry) & mask;
            }
        }
        let index = ring.list.pop_front().unwrap_or(0);
        if ring.list.is_empty() {
            let next = Self::link(ring, index) & mask;
            ring.list.push_back(next);
        }
        index
    }

    fn link(ring: &Ring, entry: u32) -> u32 {
        let word = Self::read(ring, entry, 4);
        word.first_chunk::<4>().map_or(0, |it| u32::from(u16::from_be_bytes([it[2], it[3]])))
    }

    /// Forgets an object.
    fn destroy(&mut self, handle: u64) {
        if let Some(keys) = self.keys() {
            keys.forget(self.file, handle);
        }
        self.rings.retain(|ring| ring.handle != handle);
    }

    fn unseen(&self, kind: Kind, number: u32, count: u32, why: &str) {
        let (file, queue, why) = (self.file, kind.name().into(), why.into());
        self.add(Entry::Unseen(Unseen { file, queue, number, count, why }));
    }

    /// Records what is new in the rings: WQEs, then CQEs. Returns whether there was something.
    pub(super) fn look(&mut self) -> bool {
        let mut rings = std::mem::take(&mut self.rings);
        let sum = |rings: &[Ring]| rings.iter().fold(0, |sum: u32, it| sum.wrapping_add(it.next));
        let before = sum(&rings);
        for ring in rings.iter_mut().filter(|ring| ring.kind != Kind::Completion) {
            self.posted(ring);
        }
        let (mut cqs, mut queues): (Vec<_>, Vec<_>) =
            rings.into_iter().partition(|ring| ring.kind == Kind::Completion);
        cqs.iter_mut().for_each(|cq| self.completed(cq, &mut queues));
        queues.append(&mut cqs);
        self.rings = queues;
        sum(&self.rings) != before
    }

    fn counter(ring: &Ring) -> Option<u32> {
        own_memory::read(ring.record, 4).first_chunk().map(|bytes| u32::from_be_bytes(*bytes))
    }

    /// Bytes from an entry on, round the end of the ring.
    fn read(ring: &Ring, entry: u32, len: u64) -> Vec<u8> {
        let size = ring.stride << ring.log_entries;
        let at = (u64::from(entry) * ring.stride) & (size - 1);
        let first = len.min(size - at);
        let mut bytes = own_memory::read(ring.address + at, first as usize);
        bytes.extend(own_memory::read(ring.address, (len - first) as usize));
        bytes
    }

    fn posted(&self, ring: &mut Ring) {
        let Some(counter) = Self::counter(ring) else { return };
        if ring.before_reset == Some(counter) {
            return;
        }
        ring.before_reset = None;
        let counter = counter & 0xffff;
        let entries = 1_u32 << ring.log_entries;
        let posted = counter.wrapping_sub(ring.next) & 0xffff;
        if posted > entries {
            let lost = posted - entries;
            self.unseen(ring.kind, ring.number, lost, "WQEBBs were overwritten between two looks");
            ring.next = counter.wrapping_sub(entries) & 0xffff;
            ring.list.clear();
        }
        while ring.next != counter && matches!(ring.kind, Kind::Shared { .. }) {
            let (index, bytes) = Self::next_shared(ring);
            self.add_wqe(ring, index, bytes);
        }
        while ring.next != counter {
            let (mut bytes, taken) = match ring.kind {
                Kind::Send(_) => {
                    let control = Self::read(ring, ring.next, 8);
                    let ds = control.get(7).map_or(0, |byte| u64::from(byte & 0x3f));
                    let len = (ds * 16).max(16);
                    (Self::read(ring, ring.next, len), len.div_ceil(WQEBB) as u32)
                }
                _ => (Self::read(ring, ring.next, ring.stride), 1),
            };
            if let Kind::Send(class) = ring.kind {
                without_data_of_wqe(&mut bytes, class);
            }
            let index = ring.next;
            self.add_wqe(ring, index, bytes);
            let left = counter.wrapping_sub(ring.next) & 0xffff;
            ring.next = ring.next.wrapping_add(taken.min(left)) & 0xffff;
        }
    }

    fn add_wqe(&self, ring: &mut Ring, index: u32, bytes: Vec<u8>) {
        if self.keys().is_some() {
            ring.posted.push_back((index, bytes.clone()));
            // A queue that completes nothing is never longer than its ring.
            if ring.posted.len() > 1 << ring.log_entries {
                ring.posted.pop_front();
            }
        }
        self.add(Entry::Wqe(Wqe {
            file: self.file,
            queue: ring.kind.name().into(),
            number: ring.number,
            index,
            bytes: Bytes(bytes),
        }));
    }

    /// Records what the message of a completion wrote, if payload is recorded.
    fn add_data(&self, cqe: &[u8], queues: &mut [Ring]) {
        let Some(keys) = self.keys() else { return };
        let word = |at: usize| cqe.get(at..).and_then(|rest| rest.first_chunk::<4>());
        let (Some(&[_, a, b, c]), Some(&[high, low, _, owner])) = (word(QPN), word(CQE - 4)) else {
            return;
        };
        let number = u32::from_be_bytes([0, a, b, c]);
        let index = u32::from(u16::from_be_bytes([high, low]));
        let bytes = word(BYTE_COUNT).map_or(0, |it| u32::from_be_bytes(*it));
        let ranges = match owner >> 4 {
            // A requester's, for all of its requests up to this one.
            0x0 => requests(queues, number, index),
            // SENDs of all kinds.
            0x2..=0x4 => receive(queues, number, index, bytes.into()),
            // A WRITE with an immediate: the requester's completion has its bytes.
            0x1 => {
                receive(queues, number, index, 0);
                Vec::new()
            }
            _ => Vec::new(),
        };
        if ranges.iter().fold(0_u64, |sum, it| sum.saturating_add(it.len)) > payload::MOST {
            return;
        }
        for range in ranges {
            let Some(place) = keys.place(self.file, range) else { continue };
            let Some(bytes) = keys.read(place, range.len) else { continue };
            let payload::Place { file, umem, offset } = place;
            self.add(Entry::Data(Data { file, umem, offset, bytes: Bytes(bytes) }));
        }
    }

    fn completed(&self, ring: &mut Ring, queues: &mut [Ring]) {
        // The consumer has read CQEs that were not seen here: they were overwritten.
        let consumed = Self::counter(ring).unwrap_or(0) & 0xff_ffff;
        let ahead = consumed.wrapping_sub(ring.next) & 0xff_ffff;
        if ahead < 1 << 23 && ahead > 1 << ring.log_entries {
            self.unseen(ring.kind, ring.number, ahead, "CQEs were overwritten between two looks");
            ring.next = consumed;
        }
        loop {
            let entry = ring.next & ((1 << ring.log_entries) - 1);
            let at = u64::from(entry) * ring.stride + ring.stride - CQE as u64;
            let owner = own_memory::read(ring.address + at + CQE as u64 - 1, 1);
            let Some(&owner) = owner.first() else { return };
            let round = ring.next >> ring.log_entries & 1;
            // An opcode of 0xf is a place that the device has never written.
            if owner >> 4 == 0xf || u32::from(owner & 1) != round {
                return;
            }
            // The device writes the owner byte last, so the rest is read after it.
            let mut bytes = own_memory::read(ring.address + at, CQE);
            if bytes.len() != CQE {
                return;
            }
            if bytes[CQE - 1] != owner {
                let why = "the device wrote the next round between two reads";
                self.unseen(ring.kind, ring.number, 1, why);
                ring.next = (ring.next + 1) & 0xff_ffff;
                continue;
            }
            // So do drivers void the CQEs of a queue that they reset or destroy.
            if bytes[QPN..QPN + 4] == [0xff; 4] {
                self.unseen(ring.kind, ring.number, 1, "the program voided it between two looks");
                ring.next = (ring.next + 1) & 0xff_ffff;
                continue;
            }
            if self.keys().is_none() {
                without_data_of_cqe(&mut bytes);
            }
            self.add_data(&bytes, queues);
            self.add(Entry::Cqe(Cqe {
                file: self.file,
                number: ring.number,
                index: ring.next,
                bytes: Bytes(bytes),
            }));
            ring.next = (ring.next + 1) & 0xff_ffff;
        }
    }
}

/// What the requests of a send queue up to `index` have written; they are complete.
fn requests(queues: &mut [Ring], number: u32, index: u32) -> Vec<Range> {
    let is_it = |ring: &&mut Ring| matches!(ring.kind, Kind::Send(_)) && ring.number == number;
    let Some(ring) = queues.iter_mut().find(is_it) else { return Vec::new() };
    let Some(last) = ring.posted.iter().position(|(at, _)| *at == index) else { return Vec::new() };
    ring.posted.drain(..=last).flat_map(|(_, wqe)| payload::written(&wqe)).collect()
}

/// Where a receive put a message of `bytes` bytes: one of the queue's own, or of the only SRQ that
/// has it.
fn receive(queues: &mut [Ring], number: u32, index: u32, bytes: u64) -> Vec<Range> {
    let own = queues.iter().position(|it| it.kind == Kind::Receive && it.number == number);
    let has = |ring: &Ring| ring.posted.iter().position(|(at, _)| *at == index);
    let is_shared = |ring: &Ring| matches!(ring.kind, Kind::Shared { .. }) && has(ring).is_some();
    let shared = || {
        let mut those = (0..queues.len()).filter(|&at| is_shared(&queues[at]));
        those.next().filter(|_| those.next().is_none())
    };
    let Some(ring) = own.or_else(shared) else { return Vec::new() };
    let Some(at) = has(&queues[ring]) else { return Vec::new() };
    let ring = &mut queues[ring];
    let link = if matches!(ring.kind, Kind::Shared { .. }) { LINK } else { 0 };
    let Some((_, wqe)) = ring.posted.remove(at) else { return Vec::new() };
    payload::scattered(wqe.get(link..).unwrap_or_default(), bytes)
}

/// Whether a command moves a queue to RST.
fn is_reset(input: &[u8]) -> bool {
    let opcode = input.first_chunk().map(|bytes| Opcode(u16::from_be_bytes(*bytes)));
    match opcode {
        Some(Opcode::QP_2RST) => true,
        Some(Opcode::MODIFY_SQ) => {
            ModifySqIn::from_prefix(input).is_some_and(|it| it.ctx().state() == SqState::RST)
        }
        Some(Opcode::MODIFY_RQ) => {
            ModifyRqIn::from_prefix(input).is_some_and(|it| it.ctx().state() == RqState::RST)
        }
        _ => false,
    }
}

/// Looks at the rings until the device is closed.
pub(super) fn watch(rings: &Arc<Mutex<Rings>>) {
    let weak: Weak<Mutex<Rings>> = Arc::downgrade(rings);
    let look = move || {
        let mut idle = 0;
        while let Some(rings) = weak.upgrade() {
            let mut locked = rings.lock().unwrap_or_else(PoisonError::into_inner);
            let found = locked.look() | std::mem::take(&mut locked.requested);
            drop(locked);
            drop(rings);
            idle = if found { 0 } else { idle + 1 };
            match idle {
                0..BUSY => std::thread::yield_now(),
                BUSY..IDLE => std::thread::park_timeout(PAUSE),
                _ => std::thread::park_timeout(LONG_PAUSE),
            }
        }
    };
    // Without the thread, requests look at the rings.
    let thread = std::thread::Builder::new().name("recorder".into()).spawn(look);
    let watcher = thread.ok().map(|it| it.thread().clone());
    rings.lock().unwrap_or_else(PoisonError::into_inner).watcher = watcher;
}
