//! Queues over ordinary memory, and the device's side of them: reading rings, writing CQEs.
#![allow(dead_code, reason = "each test binary uses some of it")]

use verbless_prm::hot::{self, cqe_opcode, opcode};
use verbless_prm::{CqeOpcode, DatagramSegment, WqeOpcode};
use verbless_ring::cq::CompletionQueueParts;
use verbless_ring::qp::{BlueFlame, ReceiveQueueParts, SendQueueParts};
use verbless_ring::ring::{RecordMemory, RingMemory, SharedMemory};
use verbless_ring::service::Service;
use verbless_ring::uar::{SendDoorbell, UarPage};
use verbless_ring::wr::Nop;
use verbless_ring::{
    AddressHandle, CompletionQueue, Cqe, Cqn, Lkey, Qpn, Rc, ReceiveQueue, RemoteAddr, Rkey,
    SendQueue, Sge, WqeIndex,
};

/// The path to a LID of the subnet.
pub(crate) fn to_lid(lid: u16) -> AddressHandle {
    let mut vector = DatagramSegment::zeroed();
    vector.set_ext(true).set_rlid(lid);
    AddressHandle::new(vector)
}

/// `length` bytes of fresh memory, exactly.
pub(crate) fn memory(length: usize) -> SharedMemory {
    SharedMemory::zeroed(length).slice(0, length).unwrap()
}

/// `memory` as a ring of a queue.
#[allow(unsafe_code, reason = "the test acts as the device")]
pub(crate) fn ring_of(memory: &SharedMemory) -> RingMemory {
    // SAFETY: the code that acts as the device runs on the queue's thread, or stores single bytes,
    // the last of which marks the others as written.
    unsafe { RingMemory::new(memory.clone()) }
}

/// `memory` as a doorbell record.
pub(crate) fn record_of(memory: &SharedMemory) -> RecordMemory {
    RecordMemory::new(ring_of(memory)).unwrap()
}

/// All bytes of `memory`.
pub(crate) fn bytes(memory: &SharedMemory) -> Vec<u8> {
    let mut bytes = vec![0; memory.len()];
    memory.read_at(0, &mut bytes).unwrap();
    bytes
}

/// `length` bytes of a ring from byte `offset` on, unwrapped.
pub(crate) fn unwrapped(ring: &SharedMemory, offset: usize, length: usize) -> Vec<u8> {
    let all = bytes(ring);
    (0..length).map(|i| all[(offset + i) % all.len()]).collect()
}

/// A UAR page, as the device sees it and as we do.
#[allow(unsafe_code, reason = "the test acts as the device")]
pub(crate) fn uar_page() -> (SharedMemory, UarPage) {
    let memory = memory(hot::UarPage::BYTES);
    // SAFETY: the thread that rings reads the page itself.
    let page = unsafe { UarPage::new(memory.clone()) }.unwrap();
    (memory, page)
}

/// A send queue, and the memory of it that the device sees.
pub(crate) struct Sender<S: Service = Rc> {
    pub(crate) queue: SendQueue<S>,
    pub(crate) ring: SharedMemory,
    pub(crate) record: SharedMemory,
    pub(crate) uar: SharedMemory,
    pub(crate) device: Completer,
}

/// Settings of a [`Sender`].
#[derive(Clone, Copy)]
pub(crate) struct Settings {
    pub(crate) qpn: u32,
    pub(crate) wqebbs: usize,
    pub(crate) signal_all: bool,
    pub(crate) blueflame: BlueFlame,
    /// Offset of the BlueFlame register; none: a plain doorbell.
    pub(crate) register: Option<usize>,
    pub(crate) max_sges: u32,
    pub(crate) max_inline: u32,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            qpn: 0x123,
            wqebbs: 64,
            signal_all: false,
            blueflame: BlueFlame::Always,
            register: Some(0x800),
            max_sges: 4,
            max_inline: 256,
        }
    }
}

impl Sender {
    pub(crate) fn new(settings: Settings) -> Self {
        Self::of(settings)
    }
}

impl<S: Service> Sender<S> {
    pub(crate) fn of(settings: Settings) -> Self {
        let (uar, page) = uar_page();
        let doorbell: SendDoorbell = match settings.register {
            Some(offset) => page.blueflame(offset, 256).unwrap(),
            None => page.doorbell(),
        };
        let (ring, record) = (memory(64 * settings.wqebbs), memory(8));
        let queue = SendQueue::of(SendQueueParts {
            qpn: Qpn(settings.qpn),
            ring: ring_of(&ring),
            record: record_of(&record),
            doorbell,
            max_sges: settings.max_sges,
            max_inline: settings.max_inline,
            signal_all: settings.signal_all,
            blueflame: settings.blueflame,
        })
        .unwrap();
        Self { queue, ring, record, uar, device: Completer::new(settings.qpn) }
    }

    /// Posts and completes NOPs until the next WQE has this index; the doorbell has then rung once
    /// if `rung`, otherwise never.
    pub(crate) fn advance(&mut self, index: u16, rung: bool) {
        let mut left = u32::from(index);
        if left == 0 && rung {
            left = 0x1_0000;
        }
        while left > 0 {
            let step = left.min(self.queue.capacity());
            let mut batch = self.queue.batch();
            let mut last = WqeIndex(0);
            for _ in 0..step {
                last = batch.post(&Nop::new().signaled(), 0).unwrap();
            }
            if rung && left == step {
                batch.ring()
            } else {
                batch.hold()
            }
            let cqe = self.device.completion(opcode::NOP, last.0);
            self.queue.complete(cqe).unwrap();
            left -= step;
        }
        assert_eq!(self.queue.free(), self.queue.capacity());
    }
}

/// The device's side of a completion queue: writes CQEs.
pub(crate) struct Completer {
    pub(crate) queue: CompletionQueue,
    pub(crate) ring: SharedMemory,
    pub(crate) record: SharedMemory,
    pub(crate) uar: SharedMemory,
    entry_size: usize,
    produced: u32,
    qpn: u32,
}

impl Completer {
    pub(crate) fn new(qpn: u32) -> Self {
        Self::with(qpn, 256, 64)
    }

    pub(crate) fn with(qpn: u32, entries: usize, entry_size: usize) -> Self {
        let (uar, page) = uar_page();
        let (ring, record) = (memory(entries * entry_size), memory(8));
        let parts = CompletionQueueParts {
            cqn: Cqn(0x456),
            ring: ring_of(&ring),
            entry_size,
            record: record_of(&record),
            uar: page,
        };
        let queue = CompletionQueue::new(parts).unwrap();
        Self { queue, ring, record, uar, entry_size, produced: 0, qpn }
    }

    /// A CQE of this queue pair with only an opcode and an index.
    pub(crate) fn cqe(&self, cqe_opcode: u8, wqe_opcode: u8, index: u16) -> hot::Cqe {
        let mut cqe = hot::Cqe::zeroed();
        cqe.set_opcode(CqeOpcode(cqe_opcode)).set_wqe_opcode(WqeOpcode(wqe_opcode));
        cqe.set_qpn(self.qpn).set_wqe_counter(index);
        cqe
    }

    /// Writes a CQE as the device does, with the right owner bit.
    pub(crate) fn push(&mut self, cqe: hot::Cqe) {
        self.push_with(&[], cqe);
    }

    /// Writes a CQE as the device does, with `before` in front of it in a long entry.
    pub(crate) fn push_with(&mut self, before: &[u8], mut cqe: hot::Cqe) {
        let entries = self.ring.len() / self.entry_size;
        cqe.set_owner(self.produced as usize & entries != 0);
        let end = (self.produced as usize % entries + 1) * self.entry_size;
        self.ring.write_at(end - 64 - before.len(), before).unwrap();
        self.ring.write_at(end - 64, cqe.as_bytes()).unwrap();
        self.produced += 1;
    }

    /// Writes a CQE and polls it.
    pub(crate) fn deliver(&mut self, cqe: hot::Cqe) -> Cqe {
        self.push(cqe);
        self.queue.poll().expect("a CQE was written")
    }

    /// The successful CQE of a send request.
    pub(crate) fn completion(&mut self, wqe_opcode: u8, index: u16) -> Cqe {
        let cqe = self.cqe(cqe_opcode::REQUESTER, wqe_opcode, index);
        self.deliver(cqe)
    }

    /// Delivers meaningless CQEs until the next one has this index.
    pub(crate) fn advance(&mut self, index: u32) {
        while self.produced < index {
            let cqe = self.cqe(cqe_opcode::REQUESTER, opcode::NOP, 0);
            self.deliver(cqe);
        }
        assert_eq!(self.queue.consumer_index(), index);
    }
}

/// A receive queue, and the memory of it that the device sees.
pub(crate) struct Receiver {
    pub(crate) queue: ReceiveQueue,
    pub(crate) ring: SharedMemory,
    pub(crate) record: SharedMemory,
}

impl Receiver {
    pub(crate) fn new(qpn: u32, count: usize, stride: usize) -> Self {
        let (ring, record) = (memory(count * stride), memory(8));
        let queue = ReceiveQueue::new(ReceiveQueueParts {
            qpn: Qpn(qpn),
            ring: ring_of(&ring),
            stride,
            record: record_of(&record),
        })
        .unwrap();
        Self { queue, ring, record }
    }

    /// Posts receives and completes them, until the next one has this index.
    pub(crate) fn advance(&mut self, qpn: u32, index: u16) {
        let mut device = Completer::new(qpn);
        for i in 0..index {
            self.queue.post([], 0).unwrap();
            let cqe = device.cqe(cqe_opcode::RESPONDER_SEND, 0, i);
            self.queue.complete(device.deliver(cqe)).unwrap();
        }
    }
}

/// The remote address of the tests' requests.
pub(crate) const REMOTE: RemoteAddr = RemoteAddr::new(0x7000_0000, Rkey(0xabc));

/// An SGE of `length` bytes.
pub(crate) fn sge(length: u32) -> Sge {
    Sge::new(0x1000, length, Lkey(7))
}
