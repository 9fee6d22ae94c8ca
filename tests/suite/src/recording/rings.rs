//! The queues of a recorded device: where their rings are, and what is new in them.
//!
//! A queue is memory of the program, which no request passes through. A thread reads the doorbell
//! records and the rings some thousand times a second: the program's own post and poll are as
//! without a recording. What was overwritten between two looks is counted as unseen. The thread
//! reads by system calls, so memory that is gone is an error and no crash.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use verbless_devx::abi::attr;
use verbless_prm::{
    CqeSize, CreateCqIn, CreateCqOut, CreateQpIn, CreateQpOut, Opcode, ServiceType,
};

use super::bytes::Bytes;
use super::entry::{Cqe, Entry, Ioctl, Unseen, Wqe};
use super::wqe::{without_data_of_cqe, without_data_of_wqe};
use super::writer::Section;
use crate::own_memory;

/// Time between two looks at the rings, and between those at rings where nothing happens.
const PAUSE: Duration = Duration::from_micros(20);
const LONG_PAUSE: Duration = Duration::from_micros(200);
/// Looks that found nothing, after which the pause is long.
const IDLE: u32 = 100;
/// Bytes of a WQEBB, and of what is read of a CQE.
const WQEBB: u64 = 64;
const CQE: usize = 64;
/// Receive queues have strides of at least this many bytes.
const LEAST_STRIDE: u64 = 16;

/// A queue's ring.
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
    /// Index of the next entry.
    next: u32,
}

/// What a ring has.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Send { datagrams: bool },
    Receive,
    Completion,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Send { .. } => "sq",
            Self::Receive => "rq",
            Self::Completion => "cq",
        }
    }
}

/// The rings of one open device.
pub(super) struct Rings {
    section: Arc<Section>,
    file: u32,
    /// Registered memory: ids and addresses, by handle.
    memory: HashMap<u64, (u32, u64)>,
    rings: Vec<Ring>,
    watched: bool,
}

impl Rings {
    pub(super) fn new(section: Arc<Section>, file: u32) -> Arc<Mutex<Self>> {
        let (memory, rings) = (HashMap::new(), Vec::new());
        Arc::new(Mutex::new(Self { section, file, memory, rings, watched: false }))
    }

    /// Learns registered memory.
    pub(super) fn register(&mut self, ioctl: &Ioctl) {
        use attr::devx_umem_reg::{ADDR, HANDLE, OUT_ID};
        let of = |id| ioctl.attributes.iter().find(|attr| attr.id == id);
        let id = of(OUT_ID).and_then(|attr| attr.output.as_ref());
        let id = id.and_then(|bytes| bytes.0.first_chunk()).map(|it| u32::from_ne_bytes(*it));
        let handle = of(HANDLE).and_then(|attr| attr.new_handle);
        let address = of(ADDR).and_then(|attr| attr.address);
        if let (Some(id), Some(handle), Some(address)) = (id, handle, address) {
            self.memory.insert(handle, (id, address));
        }
    }

    fn address(&self, id: u32, offset: u64) -> Option<u64> {
        let &(_, start) = self.memory.values().find(|(known, _)| *known == id)?;
        start.checked_add(offset)
    }

    /// Learns the rings of an object that was made; whether its first one was.
    pub(super) fn create(&mut self, handle: u64, input: &[u8], output: &[u8]) -> bool {
        let opcode = input.first_chunk().map(|bytes| Opcode(u16::from_be_bytes(*bytes)));
        let made = match opcode {
            Some(Opcode::CREATE_CQ) => self.cq(handle, input, output),
            Some(Opcode::CREATE_QP) => self.qp(handle, input, output),
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
        if context.cc() {
            self.unseen(Kind::Completion, number, 0, "it is collapsed: its CQEs have one place");
            return None;
        }
        let ring = Ring {
            kind: Kind::Completion,
            number,
            handle,
            address: self.address(input.cq_umem_id(), input.cq_umem_offset())?,
            log_entries: context.log_cq_size().into(),
            stride: if context.cqe_sz() == CqeSize::BYTES_128 { 128 } else { 64 },
            record: self.address(context.dbr_umem_id(), context.dbr_addr())?,
            next: 0,
        };
        self.rings.push(ring);
        Some(())
    }

    fn qp(&mut self, handle: u64, input: &[u8], output: &[u8]) -> Option<()> {
        let (input, output) = (CreateQpIn::from_prefix(input)?, CreateQpOut::from_prefix(output)?);
        let context = input.qpc();
        if !input.wq_umem_valid() || !context.dbr_umem_valid() {
            return None;
        }
        let address = self.address(input.wq_umem_id(), input.wq_umem_offset())?;
        let record = self.address(context.dbr_umem_id(), context.dbr_addr())?;
        let mut ring = Ring {
            kind: Kind::Receive,
            number: output.qpn(),
            handle,
            address,
            log_entries: context.log_rq_size().into(),
            stride: LEAST_STRIDE << context.log_rq_stride(),
            record,
            next: 0,
        };
        // The receive queue comes first, if the QP has one of its own.
        let receives = match context.rq_type() {
            verbless_prm::RqType::REGULAR => ring.stride << ring.log_entries,
            _ => 0,
        };
        if receives > 0 {
            self.rings.push(Ring { ..ring });
        }
        if !context.no_sq() {
            ring.kind = Kind::Send { datagrams: context.st() == ServiceType::UD };
            (ring.address, ring.record) = (address.checked_add(receives)?, record.checked_add(4)?);
            (ring.log_entries, ring.stride) = (context.log_sq_size().into(), WQEBB);
            self.rings.push(ring);
        }
        Some(())
    }

    /// A QP that is reset begins at the start of its rings.
    pub(super) fn reset(&mut self, handle: u64) {
        self.rings.iter_mut().filter(|ring| ring.handle == handle).for_each(|ring| ring.next = 0);
    }

    /// Forgets an object or registered memory.
    pub(super) fn destroy(&mut self, handle: u64) {
        self.rings.retain(|ring| ring.handle != handle);
    }

    /// Forgets registered memory.
    pub(super) fn deregister(&mut self, handle: u64) {
        self.memory.remove(&handle);
    }

    fn unseen(&self, kind: Kind, number: u32, count: u32, why: &str) {
        let (file, queue, why) = (self.file, kind.name().into(), why.into());
        self.section.add(Entry::Unseen(Unseen { file, queue, number, count, why }));
    }

    /// Records what is new in the rings: WQEs, then CQEs. Returns whether there was something.
    pub(super) fn look(&mut self) -> bool {
        let mut rings = std::mem::take(&mut self.rings);
        let sum = |rings: &[Ring]| rings.iter().fold(0, |sum: u32, it| sum.wrapping_add(it.next));
        let before = sum(&rings);
        for ring in rings.iter_mut().filter(|ring| ring.kind != Kind::Completion) {
            self.posted(ring);
        }
        for ring in rings.iter_mut().filter(|ring| ring.kind == Kind::Completion) {
            self.completed(ring);
        }
        self.rings = rings;
        sum(&self.rings) != before
    }

    fn counter(ring: &Ring) -> Option<u32> {
        own_memory::read(ring.record, 4).first_chunk().map(|bytes| u32::from_be_bytes(*bytes))
    }

    /// Bytes from an entry on, round the end of the ring.
    fn read(ring: &Ring, entry: u32, len: u64) -> Vec<u8> {
        let size = ring.stride << ring.log_entries;
        let at = u64::from(entry) * ring.stride & (size - 1);
        let first = len.min(size - at);
        let mut bytes = own_memory::read(ring.address + at, first as usize);
        bytes.extend(own_memory::read(ring.address, (len - first) as usize));
        bytes
    }

    fn posted(&self, ring: &mut Ring) {
        let Some(counter) = Self::counter(ring) else { return };
        let counter = counter & 0xffff;
        let entries = 1_u32 << ring.log_entries;
        let posted = counter.wrapping_sub(ring.next) & 0xffff;
        if posted > entries {
            let lost = posted - entries;
            self.unseen(ring.kind, ring.number, lost, "WQEBBs were overwritten between two looks");
            ring.next = counter.wrapping_sub(entries) & 0xffff;
        }
        while ring.next != counter {
            let (mut bytes, taken) = match ring.kind {
                Kind::Send { .. } => {
                    let control = Self::read(ring, ring.next, 8);
                    let ds = control.get(7).map_or(0, |byte| u64::from(byte & 0x3f));
                    let len = (ds * 16).max(16);
                    (Self::read(ring, ring.next, len), len.div_ceil(WQEBB) as u32)
                }
                _ => (Self::read(ring, ring.next, ring.stride), 1),
            };
            if let Kind::Send { datagrams } = ring.kind {
                without_data_of_wqe(&mut bytes, datagrams);
            }
            self.section.add(Entry::Wqe(Wqe {
                file: self.file,
                queue: ring.kind.name().into(),
                number: ring.number,
                index: ring.next,
                bytes: Bytes(bytes),
            }));
            let left = counter.wrapping_sub(ring.next) & 0xffff;
            ring.next = ring.next.wrapping_add(taken.min(left)) & 0xffff;
        }
    }

    fn completed(&self, ring: &mut Ring) {
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
            let mut bytes = own_memory::read(ring.address + at, CQE);
            let Some(&owner) = bytes.get(CQE - 1) else { return };
            let round = ring.next >> ring.log_entries & 1;
            // An opcode of 0xf is a place that the device has never written.
            if owner >> 4 == 0xf || u32::from(owner & 1) != round {
                return;
            }
            without_data_of_cqe(&mut bytes);
            self.section.add(Entry::Cqe(Cqe {
                file: self.file,
                number: ring.number,
                index: ring.next,
                bytes: Bytes(bytes),
            }));
            ring.next = (ring.next + 1) & 0xff_ffff;
        }
    }
}

/// Looks at the rings until the device is closed.
pub(super) fn watch(rings: &Arc<Mutex<Rings>>) {
    let rings: Weak<Mutex<Rings>> = Arc::downgrade(rings);
    let look = move || {
        let mut idle = 0;
        while let Some(rings) = rings.upgrade() {
            let found = rings.lock().unwrap_or_else(PoisonError::into_inner).look();
            drop(rings);
            idle = if found { 0 } else { idle + 1 };
            std::thread::sleep(if idle < IDLE { PAUSE } else { LONG_PAUSE });
        }
    };
    // Without the thread, requests look at the rings.
    let _ = std::thread::Builder::new().name("recorder".into()).spawn(look);
}
