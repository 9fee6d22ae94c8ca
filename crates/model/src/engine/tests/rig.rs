//! The rig of the engine's tests: two functions with queues built by hand, without commands and
//! front end.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use verbless_prm::hot::{
    AtomicSegment, Cqe, CtrlFlags, CtrlSegment, CtrlWord, DataSegment, InlineHeader, InlineWord,
    RaddrSegment, completion, cqe_opcode, opcode,
};
use verbless_prm::{CqeError, CqeOpcode, Eqe, IntoBytes, RqContext, RqState, SqContext, SqState};

use crate::engine::transport::types::RC;
use crate::engine::{self, FunctionEngine};
use crate::hca::effect::Resize;
use crate::hca::objects::*;
use crate::hca::{Effect, Hca, Refusal};
use crate::locked::LockedFunctions;
use crate::memory::{HostMemory, ProcessMemory, Spaces, UAR_PAGE};
use crate::profile::{Link, Profile};

/// All access flags.
pub(super) const ALL: Access = Access {
    local_read: true,
    local_write: true,
    remote_read: true,
    remote_write: true,
    atomic: true,
};
pub(super) const PD: u32 = 7;
/// The UAR page of every queue, unless a test says otherwise.
pub(super) const PAGE: u32 = 3;
/// The event queues: one takes everything except completions, the other only completions.
pub(super) const ASYNC_EQ: u32 = 1;
pub(super) const COMP_EQ: u32 = 2;
pub(super) const EQ_PAGE: u32 = 1;
const LOG_EQ: u32 = 4;

pub(super) struct Rig {
    pub locked: LockedFunctions,
    arena: Box<[AtomicU64]>,
    used: u64,
    next: u32,
    eq_index: [[u32; 3]; 2],
    /// Count of rung send doorbells.
    rings: u64,
}

/// A QP, an SQ or an RQ, as software sees it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Endpoint {
    pub hca: usize,
    pub qpn: u32,
    pub send_cq: u32,
    pub receive_cq: u32,
    /// Next send index.
    pub posted: u16,
    /// Next receive index.
    pub received: u16,
}

/// A CQE, as software reads it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) cqe: Cqe,
}

impl Entry {
    pub(super) fn opcode(&self) -> u8 {
        self.cqe.opcode().0
    }
    pub(super) fn index(&self) -> u16 {
        self.cqe.wqe_counter()
    }
    pub(super) fn bytes(&self) -> u32 {
        self.cqe.byte_cnt()
    }
    pub(super) fn syndrome(&self) -> u8 {
        CqeError::from_prefix(self.cqe.as_bytes()).unwrap().syndrome().0
    }
    /// Opcode, index and syndrome of an error CQE.
    pub(super) fn error(&self) -> (u8, u16, u8) {
        (self.opcode(), self.index(), self.syndrome())
    }
}

/// If it is set, messages go in packets in every test; else they are carried whole.
const IN_PACKETS: &str = "VERBLESS_TEST_IN_PACKETS";

impl Rig {
    pub(super) fn new() -> Self {
        Self::on(Link::Infiniband)
    }

    pub(super) fn on(link: Link) -> Self {
        let profile = Profile::load("bluefield3").expect("a built-in profile");
        let profile = Arc::new(profile.with_link(link));
        let memory: Arc<dyn HostMemory> = Arc::new(ProcessMemory);
        let hca = |index| Hca::new(index, profile.clone(), memory.clone(), engine::qp_type);
        let functions = (0..2).map(|index| FunctionEngine::new(hca(index))).collect();
        let mut locked = LockedFunctions::new(functions, true);
        locked.in_packets = std::env::var_os(IN_PACKETS).is_some();
        let arena = bytemuck::zeroed_slice_box(1 << 18);
        let mut rig = Self { locked, arena, used: 0, next: 0x10, eq_index: [[0; 3]; 2], rings: 0 };
        for hca in 0..2 {
            for page in [EQ_PAGE, PAGE, PAGE + 1] {
                rig.locked.functions[hca].hca.bar.set_allocated(page, true);
            }
            rig.eq(hca, ASYNC_EQ, [!1, u64::MAX, u64::MAX, u64::MAX]);
            rig.eq(hca, COMP_EQ, [0; 4]);
        }
        rig
    }

    /// Gives a function another memory.
    pub(super) fn set_memory(&mut self, hca: usize, memory: Arc<dyn HostMemory>) {
        self.locked.functions[hca].hca.memory = memory;
        let spaces: Spaces = self.locked.functions.iter().map(|it| it.hca.memory.clone()).collect();
        for function in self.locked.functions.iter_mut() {
            function.spaces = spaces.clone();
        }
    }

    fn number(&mut self) -> u32 {
        self.next += 1;
        self.next
    }

    pub(super) fn memory(&self) -> ProcessMemory {
        ProcessMemory
    }

    /// Allocates `bytes` bytes of zeros, aligned to 64.
    pub(super) fn alloc(&mut self, bytes: u64) -> u64 {
        let base = (self.arena.as_ptr() as u64).next_multiple_of(64);
        let at = base + self.used;
        self.used += bytes.next_multiple_of(64);
        assert!(at + bytes <= self.arena.as_ptr_range().end as u64, "the arena is full");
        at
    }

    pub(super) fn fill(&self, at: u64, bytes: &[u8]) {
        self.memory().write(at, bytes).unwrap();
    }

    pub(super) fn bytes(&self, at: u64, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.memory().read(at, &mut bytes).unwrap();
        bytes
    }

    fn queue_memory(&mut self, bytes: u64) -> QueueMemory {
        let address = self.alloc(bytes);
        QueueMemory { pages: [address].into(), log_page_size: 40, offset: 0, length: bytes }
    }

    fn eq(&mut self, hca: usize, eqn: u32, bitmask: [u64; 4]) {
        let memory = self.queue_memory(64 << LOG_EQ);
        let ring = EventRing {
            memory,
            log_size: LOG_EQ,
            overrun_ignore: false,
            counter_mask: 0xff_ffff,
            producer: 0,
            consumer: 0,
            armed: false,
        };
        let eq = Eq { ring, vector: eqn, bitmask, uar_page: EQ_PAGE, context: Default::default() };
        self.locked.functions[hca].hca.objects.eqs.insert(eqn, eq);
    }

    /// Takes the next EQE, if there is one.
    pub(super) fn eqe(&mut self, hca: usize, eqn: u32) -> Option<Eqe> {
        let eq = &self.locked.functions[hca].hca.objects.eqs[&eqn];
        let index = self.eq_index[hca][eqn as usize];
        let at = eq.ring.memory.pages[0] + u64::from(index % (1 << LOG_EQ)) * 64;
        let eqe = *Eqe::from_prefix(&self.bytes(at, 64)).unwrap();
        // The owner bit alone does not show a new entry: this EQ begins as zeros, where a driver
        // marks every entry as the device's.
        let mine = eq.ring.producer != index;
        if mine {
            assert_eq!(u32::from(eqe.owner()), index >> LOG_EQ & 1);
            self.eq_index[hca][eqn as usize] += 1;
        }
        mine.then_some(eqe)
    }

    /// Types of all pending events, in order.
    pub(super) fn events(&mut self, hca: usize) -> Vec<u8> {
        std::iter::from_fn(|| self.eqe(hca, ASYNC_EQ)).map(|eqe| eqe.event_type().0).collect()
    }

    /// Rings the EQ's doorbell with the consumer index.
    pub(super) fn eq_doorbell(&mut self, hca: usize, eqn: u32, arm: bool) {
        let word = eqn << 24 | self.eq_index[hca][eqn as usize];
        let offset = u64::from(EQ_PAGE) * UAR_PAGE + if arm { 0x40 } else { 0x48 };
        engine::mmio_write(&mut self.locked, hca, offset, &word.to_be_bytes());
    }

    pub(super) fn cq(&mut self, hca: usize, log_size: u32) -> u32 {
        self.cq_of(hca, log_size, 64)
    }

    pub(super) fn cq_of(&mut self, hca: usize, log_size: u32, cqe_bytes: u32) -> u32 {
        let cqn = self.number();
        let memory = self.queue_memory(u64::from(cqe_bytes) << log_size);
        for byte in (0..memory.length).step_by(cqe_bytes as usize) {
            self.fill(memory.pages[0] + byte + u64::from(cqe_bytes) - 1, &[0xf1]);
        }
        let record = self.alloc(8);
        let cq = Cq {
            uid: 1,
            memory,
            record,
            log_size,
            cqe_bytes,
            target: EventTarget::Eq(COMP_EQ),
            uar_page: PAGE,
            overrun_ignore: false,
            producer: 0,
            failure: None,
            arm: Arm::Idle,
            solicited: None,
            notified: 0,
            umems: vec![],
            runtime: Default::default(),
            context: Default::default(),
        };
        self.locked.functions[hca].hca.objects.cqs.insert(cqn, cq);
        self.locked.functions[hca].hca.objects.index_again();
        cqn
    }

    /// Moves a CQ to a new buffer, and does the driver's part: copies every CQE not yet consumed to
    /// the entry after its own in the new buffer, up to the CQE that ends the old buffer. Checks
    /// that CQE and the indexes of both buffers on the way.
    pub(super) fn resize(&mut self, hca: usize, cqn: u32, log_size: u32) -> Result<(), Refusal> {
        let cq = self.cq_mut(hca, cqn);
        let (old, old_log, entry) = (cq.memory.pages[0], cq.log_size, u64::from(cq.cqe_bytes));
        let record = cq.record;
        let memory = self.queue_memory(entry << log_size);
        let new = memory.pages[0];
        for byte in (0..memory.length).step_by(entry as usize) {
            self.fill(new + byte + entry - 1, &[0xf1]);
        }
        let (context, umems) = (Default::default(), vec![]);
        let resize = Resize { cqn, memory, log_size, context, umems };
        self.try_effect(hca, Effect::CqResize(Box::new(resize)))?;
        let mut index = u32::from_be(self.memory().load32(record).unwrap());
        let entry_at = |base: u64, log: u32, index: u32| {
            (base + u64::from(index % (1 << log)) * entry, (index >> log & 1) as u8)
        };
        loop {
            let (at, owner) = entry_at(old, old_log, index);
            let mut cqe = self.bytes(at, entry as usize);
            let op_own = cqe.last_mut().unwrap();
            assert_eq!(*op_own & 1, owner, "entry {index} of the old buffer is software's");
            if *op_own >> 4 == cqe_opcode::RESIZE {
                break;
            }
            index += 1;
            let (at, owner) = entry_at(new, log_size, index);
            *op_own = *op_own & !1 | owner;
            self.fill(at, &cqe);
        }
        assert_eq!(self.cq_mut(hca, cqn).producer, index + 1, "the last CQE has an index too");
        let taken = u32::from_be(self.memory().load32(record).unwrap()) + 1;
        self.memory().store32(record, taken.to_be()).unwrap();
        Ok(())
    }

    /// Applies an effect that a command has on the engine.
    pub(super) fn try_effect(&mut self, hca: usize, effect: Effect) -> Result<(), Refusal> {
        let now = self.locked.clock.now;
        engine::apply(&mut self.locked.functions[hca], now, effect)
    }

    /// Applies an effect that a command has on the engine, which the engine cannot refuse.
    pub(super) fn effect(&mut self, hca: usize, effect: Effect) {
        self.try_effect(hca, effect).unwrap();
    }

    pub(super) fn cq_mut(&mut self, hca: usize, cqn: u32) -> &mut Cq {
        self.locked.functions[hca].hca.objects.cqs.get_mut(&cqn).unwrap()
    }

    /// Stores the arm word into the record, and rings.
    pub(super) fn arm(&mut self, hca: usize, cqn: u32, word: u32) {
        let record = self.cq_mut(hca, cqn).record;
        self.memory().store32(record + 4, word.to_be()).unwrap();
        self.locked.functions[hca].hca.bar.store64(
            PAGE,
            0x20,
            u64::from(word) << 32 | u64::from(cqn),
        );
    }

    /// Takes the next CQE, if its owner bit says that it is there.
    pub(super) fn poll(&mut self, hca: usize, cqn: u32) -> Option<Entry> {
        let cq = self.cq_mut(hca, cqn);
        let (size, log, entry) = (1 << cq.log_size, cq.log_size, u64::from(cq.cqe_bytes));
        let (base, record) = (cq.memory.pages[0], cq.record);
        let index = u32::from_be(self.memory().load32(record).unwrap());
        let at = base + u64::from(index % size) * entry + entry - 64;
        let cqe = *Cqe::from_prefix(&self.bytes(at, 64)).unwrap();
        if cqe.opcode() == CqeOpcode::INVALID || u32::from(cqe.owner()) != index >> log & 1 {
            return None;
        }
        self.memory().store32(record, ((index + 1) & 0xff_ffff).to_be()).unwrap();
        Some(Entry { cqe })
    }

    /// The bytes of the first half of the CQE that the next poll reads.
    pub(super) fn first_half(&mut self, hca: usize, cqn: u32) -> Vec<u8> {
        let cq = self.cq_mut(hca, cqn);
        let (base, record, size) = (cq.memory.pages[0], cq.record, 1 << cq.log_size);
        let index = u32::from_be(self.memory().load32(record).unwrap());
        self.bytes(base + u64::from(index % size) * 128, 64)
    }

    pub(super) fn mkey(&mut self, hca: usize, address: u64, length: u64, access: Access) -> u32 {
        let index = self.number();
        let pages = QueueMemory { pages: [address].into(), log_page_size: 40, offset: 0, length };
        let mkey = Mkey {
            uid: 1,
            variant: 0x42,
            pd: PD,
            access,
            start: address,
            length: Some(length),
            translation: Translation::Pages(pages),
            free: false,
            qpn: 0xff_ffff,
            umem: None,
            table: None,
            offer: None,
            context: Default::default(),
        };
        self.locked.functions[hca].hca.objects.mkeys.insert(index, mkey);
        index << 8 | 0x42
    }

    pub(super) fn mkey_mut(&mut self, hca: usize, key: u32) -> &mut Mkey {
        self.locked.functions[hca].hca.objects.mkeys.get_mut(&(key >> 8)).unwrap()
    }

    /// Memory of `length` bytes, and a key that allows everything on it.
    pub(super) fn region(&mut self, hca: usize, length: u64) -> (u64, u32) {
        let address = self.alloc(length);
        (address, self.mkey(hca, address, length, ALL))
    }

    /// A QP in RESET with rings of 16 WQEBBs and 16 receives of 64 bytes, and CQs of 64 entries.
    pub(super) fn end(&mut self, hca: usize) -> Endpoint {
        let (send_cq, receive_cq) = (self.cq(hca, 6), self.cq(hca, 6));
        self.end_on(hca, send_cq, receive_cq)
    }

    pub(super) fn end_on(&mut self, hca: usize, send_cq: u32, receive_cq: u32) -> Endpoint {
        let qpn = self.number();
        let sq = SendQueue::new(self.queue_memory(64 << 4), 4, send_cq);
        let rq = ReceiveQueue {
            memory: self.queue_memory(64 << 4),
            log_size: 4,
            log_stride: 6,
            cqn: receive_cq,
            consumer: 0,
        };
        let mut context = verbless_prm::QpContext::zeroed();
        context.set_log_msg_max(30);
        let qp = QpObject {
            uid: 1,
            state: QpState::Reset,
            qp_type: RC,
            mmo: false,
            pd: PD,
            uar_page: PAGE,
            record: self.alloc(8),
            sq: Some(sq),
            rq: Some(rq),
            srq: None,
            remote_qpn: 0,
            remote: None,
            port: 1,
            user_index: 0xff_ffff,
            requester_inline: 0,
            responder_inline: 0,
            log_mtu: 10,
            requester: Requester {
                psn: 0,
                retry_limit: 2,
                rnr_retry_limit: 2,
                retries_left: 2,
                rnr_retries_left: 2,
                ack_timeout: 14,
                max_rd_atomic: 4,
            },
            responder: Responder {
                psn: 0,
                min_rnr_timer: 12,
                allow_read: true,
                allow_write: true,
                allow_atomic: true,
                max_dest_rd_atomic: 4,
            },
            umems: vec![],
            groups: vec![],
            runtime: Default::default(),
            context,
        };
        self.locked.functions[hca].hca.objects.qps.insert(qpn, qp);
        self.locked.functions[hca].hca.objects.index_again();
        Endpoint { hca, qpn, send_cq, receive_cq, posted: 0, received: 0 }
    }

    /// An SQ in RDY with a ring of 16 WQEBBs.
    pub(super) fn sq(&mut self, hca: usize) -> Endpoint {
        let send_cq = self.cq(hca, 6);
        let sqn = self.number();
        let mut context = SqContext::zeroed();
        context.set_flush_in_error_en(true).set_user_index(0x1234);
        let sq = Sq {
            uid: 1,
            state: SqState::RDY,
            pd: PD,
            uar_page: PAGE,
            record: self.alloc(8),
            queue: SendQueue::new(self.queue_memory(64 << 4), 4, send_cq),
            umems: vec![],
            context,
        };
        self.locked.functions[hca].hca.objects.sqs.insert(sqn, sq);
        self.locked.functions[hca].hca.objects.index_again();
        Endpoint { hca, qpn: sqn, send_cq, receive_cq: 0, posted: 0, received: 0 }
    }

    /// An RQ in RDY with a ring of 16 receives of 64 bytes.
    pub(super) fn rq(&mut self, hca: usize) -> Endpoint {
        let receive_cq = self.cq(hca, 6);
        let rqn = self.number();
        let mut context = RqContext::zeroed();
        context.set_flush_in_error_en(true).set_cqn(receive_cq);
        let queue = ReceiveQueue {
            memory: self.queue_memory(64 << 4),
            log_size: 4,
            log_stride: 6,
            cqn: receive_cq,
            consumer: 0,
        };
        let rq = Rq {
            uid: 1,
            state: RqState::RDY,
            pd: Some(PD),
            record: self.alloc(8),
            queue: Some(queue),
            srq: None,
            umems: vec![],
            context,
        };
        self.locked.functions[hca].hca.objects.rqs.insert(rqn, rq);
        Endpoint { hca, qpn: rqn, send_cq: 0, receive_cq, posted: 0, received: 0 }
    }

    pub(super) fn rq_mut(&mut self, end: &Endpoint) -> &mut Rq {
        self.locked.functions[end.hca].hca.objects.rqs.get_mut(&end.qpn).unwrap()
    }

    pub(super) fn sq_mut(&mut self, end: &Endpoint) -> &mut Sq {
        self.locked.functions[end.hca].hca.objects.sqs.get_mut(&end.qpn).unwrap()
    }

    pub(super) fn qp(&mut self, end: &Endpoint) -> &mut QpObject {
        self.locked.functions[end.hca].hca.objects.qps.get_mut(&end.qpn).unwrap()
    }

    /// Two QPs of two functions, connected and in RTS.
    pub(super) fn pair(&mut self) -> (Endpoint, Endpoint) {
        let (a, b) = (self.end(0), self.end(1));
        self.connect(&a, &b);
        (a, b)
    }

    pub(super) fn connect(&mut self, a: &Endpoint, b: &Endpoint) {
        for (from, to) in [(a, b), (b, a)] {
            let lid = self.locked.functions[to.hca].hca.ports[0].lid;
            let qp = self.qp(from);
            qp.state = QpState::Rts;
            qp.remote = Some(Address::Lid(lid));
            qp.context.primary_address_path_mut().set_rlid(lid).set_vhca_port_num(1);
            qp.remote_qpn = to.qpn;
            self.locked.functions[from.hca].hca.objects.index_again();
        }
    }

    /// Writes a WQE into the ring and the new index into the record, without a doorbell.
    pub(super) fn write_wqe(&mut self, end: &mut Endpoint, wqe: &[u8]) {
        let at = end.posted;
        end.posted = at.wrapping_add((wqe.len().div_ceil(64)).max(1) as u16);
        let sender = self.locked.functions[end.hca].hca.objects.sender(end.qpn).unwrap();
        let ring = &sender.queue.memory;
        let (base, size) = (ring.pages[0], ring.length);
        for (i, chunk) in wqe.chunks(16).enumerate() {
            self.fill(base + (u64::from(at) * 64 + i as u64 * 16) % size, chunk);
        }
        self.publish(end);
    }

    /// Writes the producer index into the record.
    pub(super) fn publish(&mut self, end: &Endpoint) {
        let record = self.locked.functions[end.hca].hca.objects.sender(end.qpn).unwrap().record;
        self.memory().store32(record, u32::from(end.posted).to_be()).unwrap();
    }

    /// Takes all CQEs, without a step; returns their number.
    pub(super) fn cqes(&mut self, hca: usize, cqn: u32) -> usize {
        std::iter::from_fn(|| self.poll(hca, cqn)).count()
    }

    /// Rings the queue's doorbell, in each register of its page in turn, so that a few doorbells do
    /// not overwrite each other.
    pub(super) fn ring(&mut self, end: &Endpoint) {
        let page = self.locked.functions[end.hca].hca.objects.sender(end.qpn).unwrap().uar_page;
        let word = u64::from(end.posted.wrapping_sub(1)) << 40 | u64::from(end.qpn) << 8 | 1;
        let register = 0x800 + 0x100 * (self.rings % 8);
        self.rings += 1;
        self.locked.functions[end.hca].hca.bar.store64(page, register, word);
    }

    /// Posts a request and rings.
    pub(super) fn post(&mut self, end: &mut Endpoint, request: Request) -> u16 {
        let index = end.posted;
        let wqe = request.wqe(end.qpn, index);
        self.write_wqe(end, &wqe);
        self.ring(end);
        index
    }

    /// Posts a receive of these entries.
    pub(super) fn receive(&mut self, end: &mut Endpoint, entries: &[DataSegment]) -> u16 {
        let index = end.received;
        end.received = index.wrapping_add(1);
        let posted = u32::from(end.received);
        let qp = self.qp(end);
        let rq = qp.rq.as_ref().unwrap();
        let at = rq.memory.pages[0] + (u64::from(index) % 16) * 64;
        let record = qp.record;
        let mut wqe = entries.as_bytes().to_vec();
        if wqe.len() < 64 {
            wqe.extend_from_slice(DataSegment::END.as_bytes());
        }
        self.fill(at, &wqe);
        self.memory().store32(record, posted.to_be()).unwrap();
        index
    }

    /// Steps until no work is left at the current time.
    pub(super) fn run(&mut self) {
        for _ in 0..1_000_000 {
            if !engine::step(&mut self.locked) {
                return;
            }
        }
        panic!("the engine does not become idle");
    }

    pub(super) fn advance(&mut self, by: Duration) {
        self.locked.clock.advance(by);
        self.run();
    }

    /// Runs, and expects exactly one CQE.
    pub(super) fn one(&mut self, hca: usize, cqn: u32) -> Entry {
        self.run();
        let entry = self.poll(hca, cqn).expect("a completion");
        assert_eq!(self.poll(hca, cqn), None, "one completion only");
        entry
    }

    /// Runs, and takes all CQEs.
    pub(super) fn all(&mut self, hca: usize, cqn: u32) -> Vec<Entry> {
        self.run();
        std::iter::from_fn(|| self.poll(hca, cqn)).collect()
    }

    /// Runs, and expects no CQE.
    pub(super) fn none(&mut self, hca: usize, cqn: u32) {
        self.run();
        assert_eq!(self.poll(hca, cqn), None);
    }
}

/// A send request under construction.
#[derive(Debug, Clone)]
pub(super) struct Request {
    opcode: u8,
    op_mod: u8,
    flags: CtrlFlags,
    tail: Vec<u8>,
}

impl Request {
    pub(super) fn new(opcode: u8) -> Self {
        Self {
            opcode,
            op_mod: 0,
            flags: CtrlFlags::new().with_ce(completion::ALWAYS),
            tail: vec![],
        }
    }
    pub(super) fn send() -> Self {
        Self::new(opcode::SEND)
    }
    pub(super) fn write(address: u64, rkey: u32) -> Self {
        Self::new(opcode::WRITE).remote(address, rkey)
    }
    pub(super) fn read(address: u64, rkey: u32) -> Self {
        Self::new(opcode::READ).remote(address, rkey)
    }
    pub(super) fn atomic(opcode: u8, address: u64, rkey: u32, swap_add: u64, compare: u64) -> Self {
        let mut request = Self::new(opcode).remote(address, rkey);
        request.tail.extend_from_slice(AtomicSegment::new(swap_add, compare).as_bytes());
        request
    }
    pub(super) fn remote(mut self, address: u64, rkey: u32) -> Self {
        self.tail.extend_from_slice(RaddrSegment::new(address, rkey).as_bytes());
        self
    }
    pub(super) fn sge(mut self, address: u64, length: u32, lkey: u32) -> Self {
        self.tail.extend_from_slice(DataSegment::new(length, lkey, address).as_bytes());
        self
    }
    pub(super) fn inline(mut self, bytes: &[u8]) -> Self {
        self.tail.extend_from_slice(
            InlineHeader::new(
                InlineWord::new().with_inline(true).with_byte_count(bytes.len() as u16),
            )
            .as_bytes(),
        );
        self.tail.extend_from_slice(bytes);
        self.tail.resize(self.tail.len().next_multiple_of(16), 0xee);
        self
    }
    pub(super) fn bytes(mut self, bytes: &[u8]) -> Self {
        self.tail.extend_from_slice(bytes);
        self
    }
    pub(super) fn op_mod(mut self, op_mod: u8) -> Self {
        self.op_mod = op_mod;
        self
    }
    pub(super) fn imm(mut self, imm: u32) -> Self {
        self.flags = self.flags.with_imm(imm);
        self
    }
    pub(super) fn unsignaled(mut self) -> Self {
        self.flags = self.flags.with_ce(completion::ON_ERROR);
        self
    }
    /// Makes the request wait for the responses of those before it.
    pub(super) fn fenced(mut self) -> Self {
        self.flags = self.flags.with_fm(2);
        self
    }
    pub(super) fn fence_mode(mut self, fm: u8) -> Self {
        self.flags = self.flags.with_fm(fm);
        self
    }
    pub(super) fn solicited(mut self) -> Self {
        self.flags = self.flags.with_se(true);
        self
    }
    pub(super) fn wqe(&self, qpn: u32, index: u16) -> Vec<u8> {
        let ds = (1 + self.tail.len() / 16) as u8;
        let word = CtrlWord::new()
            .with_opcode(self.opcode)
            .with_opmod(self.op_mod)
            .with_wqe_index(index)
            .with_qpn(qpn)
            .with_ds(ds);
        [&CtrlSegment::new(word, self.flags).as_bytes()[..], &self.tail].concat()
    }
}
