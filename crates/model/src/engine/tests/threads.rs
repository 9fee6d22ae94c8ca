//! The model's own thread: a client that only touches memory gets its completions, and no queue
//! starves.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use verbless_prm::hot::opcode;

use super::rig::{Endpoint, PAGE, Request, Rig};
use crate::clock::Clock;
use crate::engine;
use crate::hca::Effect;
use crate::locked::LockedFunctions;
use crate::memory::{HostMemory, UarSpace};
use crate::shared_model::SharedModel;

/// The memory that a client has mapped: the rings of a QP and its CQ, their records, a UAR page.
struct Client {
    /// Owns the memory.
    rig: Rig,
    page: Arc<UarSpace>,
    queue: Queue,
    /// The model, as long as it exists.
    model: Weak<SharedModel>,
}

impl Drop for Client {
    /// Drop the handle of the model first: this frees the memory, and a thread that was executing
    /// may still use it.
    fn drop(&mut self) {
        let start = Instant::now();
        while self.model.strong_count() > 0 {
            if start.elapsed() > Duration::from_secs(20) {
                eprintln!("the model still executes, and its memory is about to be freed");
                std::process::abort();
            }
            std::thread::yield_now();
        }
    }
}

impl Client {
    /// A rig with a running model.
    fn new() -> (Self, Arc<SharedModel>) {
        let mut rig = Rig::new();
        let (end, _) = rig.pair();
        Self::of(rig, &end)
    }

    /// A client of a QP of `rig`, with a running model.
    fn of(mut rig: Rig, end: &Endpoint) -> (Self, Arc<SharedModel>) {
        let queue = Queue::of(&mut rig, end);
        let empty = LockedFunctions::new(vec![], false);
        let mut locked = std::mem::replace(&mut rig.locked, empty);
        locked.clock = Clock::new(false);
        let page = locked.functions[0].hca.bar.clone();
        let shared = SharedModel::new(locked, false);
        engine::spawn(&shared);
        let model = Arc::downgrade(&shared);
        (Self { rig, page, queue, model }, shared)
    }

    /// Posts a NOP and waits for its completion.
    fn nop(&mut self) {
        self.queue.write_wqe(&self.rig);
        self.page.store64(PAGE, 0x800, self.queue.doorbell());
        self.queue.wait(&self.rig);
    }
}

/// A QP's send queue as its program sees it.
struct Queue {
    qpn: u32,
    ring: u64,
    record: u64,
    cq: u64,
    cq_record: u64,
    posted: u32,
}

impl Queue {
    fn of(rig: &mut Rig, end: &Endpoint) -> Self {
        let cq = rig.cq_mut(end.hca, end.send_cq);
        let (cq, cq_record) = (cq.memory.pages[0], cq.record);
        let qp = rig.qp(end);
        let (ring, record) = (qp.sq.as_ref().unwrap().memory.pages[0], qp.record);
        Self { qpn: end.qpn, ring, record, cq, cq_record, posted: 0 }
    }

    fn doorbell(&self) -> u64 {
        u64::from(self.qpn) << 8
    }

    /// Puts a NOP into the ring, and counts it in the record.
    fn write_wqe(&mut self, rig: &Rig) {
        let index = self.posted;
        self.posted += 1;
        let wqe = Request::new(opcode::NOP).wqe(self.qpn, index as u16);
        rig.fill(self.ring + u64::from(index % 16) * 64, &wqe);
        rig.memory().store32(self.record + 4, (self.posted & 0xffff).to_be()).unwrap();
    }

    /// Waits for the completion of the last NOP.
    fn wait(&self, rig: &Rig) {
        let (index, memory) = (self.posted - 1, rig.memory());
        let owner = u64::from(index) / 64 % 2;
        let last_word = self.cq + u64::from(index % 64) * 64 + 60;
        let start = Instant::now();
        // The requester's opcode is 0 and no format is set: the last byte is the owner bit.
        while u64::from(u32::from_be(memory.load32(last_word).unwrap()) & 0xff) != owner {
            assert!(start.elapsed() < Duration::from_secs(20), "no completion of {index}");
            std::thread::yield_now();
        }
        memory.store32(self.cq_record, (self.posted & 0xff_ffff).to_be()).unwrap();
    }
}

#[test]
fn overwritten_doorbells_are_all_served() {
    let mut rig = Rig::new();
    let ends: Vec<_> = (0..5).map(|_| rig.pair().0).collect();
    let mut queues: Vec<_> = ends.iter().map(|end| Queue::of(&mut rig, end)).collect();
    let (client, shared) = Client::of(rig, &ends[0]);
    for round in 0..300 {
        for queue in &mut queues {
            queue.write_wqe(&client.rig);
            client.page.store64(PAGE, 0x800, queue.doorbell());
        }
        queues.iter().for_each(|queue| queue.wait(&client.rig));
        if round % 50 == 0 {
            // The engine's thread sleeps.
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    drop(shared);
}

#[test]
fn threaded_model_ends_with_its_last_handle() {
    let (mut client, shared) = Client::new();
    for round in 0..200 {
        client.nop();
        if round % 50 == 0 {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    let weak = Arc::downgrade(&shared);
    drop(shared);
    let start = Instant::now();
    while weak.upgrade().is_some() {
        assert!(start.elapsed() < Duration::from_secs(20), "the thread does not end");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn commands_execute_while_data_path_is_busy() {
    let (mut client, shared) = Client::new();
    let stop = Arc::new(AtomicBool::new(false));
    let busy = std::thread::spawn({
        let stop = stop.clone();
        move || {
            while !stop.load(Ordering::Relaxed) {
                client.nop();
            }
            client
        }
    });
    for _ in 0..100 {
        let start = Instant::now();
        shared.with(|locked| assert_eq!(locked.functions.len(), 2));
        assert!(start.elapsed() < Duration::from_secs(5));
    }
    stop.store(true, Ordering::Relaxed);
    let client = busy.join().unwrap();
    drop(shared);
    drop(client);
}

#[test]
fn failed_qp_flushes_while_other_function_is_busy() {
    let mut rig = Rig::new();
    let (end, failed) = rig.pair();
    rig.effect(1, Effect::QpToError(failed.qpn));
    let (record, cq) = (rig.qp(&failed).record, rig.cq_mut(1, failed.receive_cq).memory.pages[0]);
    let (mut client, _shared) = Client::of(rig, &end);
    let memory = client.rig.memory();
    // A receive has no doorbell.
    client.nop();
    memory.store32(record, 1_u32.to_be()).unwrap();
    let start = Instant::now();
    while u32::from_be(memory.load32(cq + 60).unwrap()) & 1 != 0 {
        assert!(start.elapsed() < Duration::from_secs(20), "the receive is not flushed");
        client.nop();
    }
}
