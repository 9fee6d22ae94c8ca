//! Posting and polling allocate nothing.

#![allow(unsafe_code, reason = "a global allocator is unsafe to implement")]

mod support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use support::{Completer, Receiver, Sender, Settings, to_lid};
use verbless_prm::hot::{cqe_opcode, opcode};
use verbless_ring::access::KeyAccess;
use verbless_ring::cq::Notify;
use verbless_ring::srq::SharedReceiveQueueParts;
use verbless_ring::wr::{
    CompareSwap, EthSend, FetchAdd, Inline, LocalInvalidate, Nop, PostError, Read, Send, SendImm,
    Umr, Write, WriteImm,
};
use verbless_ring::{Eth, Lkey, QKey, Qpn, RawRq, RemoteAddr, Rkey, Sge, SharedReceiveQueue, Ud};

/// Counts the allocations of the current thread.
struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u32> = const { Cell::new(0) };
}

// SAFETY: passes every call to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn allocation_counter_counts() {
    let before = ALLOCATIONS.get();
    drop(std::hint::black_box(Box::new(1)));
    assert_eq!(ALLOCATIONS.get(), before + 2);
}

#[test]
fn posting_polling_and_arming_allocate_nothing() {
    let mut sender = Sender::new(Settings::default());
    let mut receiver = Receiver::new(0x123, 16, 32);
    let remote = RemoteAddr::new(0x1000, Rkey(1));
    let sge = Sge::new(0, 8, Lkey(1));
    let before = ALLOCATIONS.get();
    for lap in 0..300u64 {
        let queue = &mut sender.queue;
        queue.post(&Write::new(sge, remote), lap).unwrap();
        queue.post(&WriteImm::new(Inline(b"some data in the WQE"), remote, 5), lap).unwrap();
        queue.post(&Send::new([sge; 4]), lap).unwrap();
        queue.post(&SendImm::new(Inline(b""), 5), lap).unwrap();
        queue.post(&Read::new(&[sge; 3][..], remote).fence(), lap).unwrap();
        queue.post(&CompareSwap::new(sge, remote, 1, 2), lap).unwrap();
        let mut batch = queue.batch();
        batch.post(&FetchAdd::new(sge, remote, 1), lap).unwrap();
        let last = batch.post(&Nop::new().signaled(), lap).unwrap();
        batch.ring();
        assert!(queue.post(&Write::new([sge; 5], remote), lap).is_err());
        let cqe = sender.device.completion(opcode::NOP, last.0);
        sender.queue.complete(cqe).unwrap();
        let cqe = sender.device.completion(opcode::NOP, last.0);
        sender.queue.complete(cqe).unwrap_err();

        let index = receiver.queue.post(sge, lap).unwrap();
        let mut cqe = sender.device.cqe(cqe_opcode::RESPONDER_ERROR, 0, index.0);
        cqe.set_timestamp(lap);
        sender.device.push(cqe);
        for cqe in sender.device.queue.drain(10) {
            receiver.queue.complete(cqe).unwrap_err();
        }
        sender.device.queue.arm(Notify::Next);
        sender.device.queue.event_received();
        let mut last = 0;
        while let Ok(index) = sender.queue.post(&Nop::new(), 0) {
            last = index.0;
        }
        assert_eq!(sender.queue.post(&Nop::new(), 0), Err(PostError::Full));
        let cqe = sender.device.completion(opcode::NOP, last);
        sender.queue.complete(cqe).unwrap();
    }
    assert_eq!(ALLOCATIONS.get(), before);
}

#[test]
fn frames_allocate_nothing() {
    let mut sender = Sender::<Eth>::of(Settings::default());
    let Receiver { queue, .. } = Receiver::new(0x123, 16, 32);
    let mut frames = RawRq::new(queue, 7).unwrap();
    let sge = Sge::new(0, 8, Lkey(1));
    let mut into = [const { None }; 4];
    let before = ALLOCATIONS.get();
    for lap in 0..300u64 {
        let index = sender.queue.post(&EthSend::new(&[1; 18], [sge; 2]), lap).unwrap();
        assert!(sender.queue.post(&EthSend::new(&[1; 17], sge), lap).is_err());
        let cqe = sender.device.completion(opcode::SEND, index.0);
        sender.queue.complete(cqe).unwrap();
        for opcode in [cqe_opcode::RESPONDER_SEND, cqe_opcode::RESPONDER_ERROR] {
            let index = frames.post(sge, lap).unwrap();
            for user_index in [7, 8] {
                let mut cqe = sender.device.cqe(opcode, 0, index.0);
                cqe.set_srqn_uidx(user_index);
                sender.device.push(cqe);
            }
        }
        assert!(frames.poll(&mut sender.device.queue).unwrap().is_ok());
        assert_eq!(frames.poll_into(&mut sender.device.queue, &mut into), 3);
        assert!(into.iter().flatten().all(Result::is_err));
    }
    assert_eq!(ALLOCATIONS.get(), before);
}

#[test]
fn umr_requests_allocate_nothing() {
    let mut sender = Sender::new(Settings::default());
    let klms = [Sge::new(0, 8, Lkey(1)); 53];
    let list = Sge::new(0x1000, 64, Lkey(1));
    let key = Rkey(0x1234);
    let before = ALLOCATIONS.get();
    for lap in 0..300u64 {
        let queue = &mut sender.queue;
        let counts = [0, 1, 4, 5, 52];
        queue.post(&Umr::map(key, KeyAccess::ALL, &klms[..counts[lap as usize % 5]]), lap).unwrap();
        assert!(queue.post(&Umr::map(key, KeyAccess::ALL, &klms), lap).is_err());
        queue.post(&Umr::map_from(key, KeyAccess::ALL, list, 64), lap).unwrap();
        queue.post(&Umr::access_flags(key, KeyAccess::LOCAL).fence(), lap).unwrap();
        let last = queue.post(&LocalInvalidate::new(key).signaled(), lap).unwrap();
        let cqe = sender.device.completion(opcode::UMR, last.0);
        sender.queue.complete(cqe).unwrap();
    }
    assert_eq!(ALLOCATIONS.get(), before);
}

#[test]
fn srq_receives_allocate_nothing() {
    let mut srq = SharedReceiveQueue::new(SharedReceiveQueueParts {
        ring: support::ring_of(&support::memory(64 * 8)),
        stride: 64,
        record: support::record_of(&support::memory(8)),
    })
    .unwrap();
    let mut device = Completer::new(0x123);
    let sge = Sge::new(0, 8, Lkey(1));
    let before = ALLOCATIONS.get();
    for lap in 0..300u64 {
        let first = srq.post(sge, lap).unwrap();
        let mut batch = srq.batch();
        let second = batch.post([sge; 3], lap).unwrap();
        assert!(batch.post([sge; 4], lap).is_err());
        batch.ring();
        drop(srq.batch());
        while srq.batch().post(sge, lap).is_err() {}
        for (index, opcode) in
            [(second, cqe_opcode::RESPONDER_ERROR), (first, cqe_opcode::RESPONDER_SEND)]
        {
            let cqe = device.cqe(opcode, 0, index.0);
            let cqe = device.deliver(cqe);
            let good = srq.complete(cqe).is_ok();
            assert_eq!(good, opcode == cqe_opcode::RESPONDER_SEND);
        }
        let cqe = device.cqe(cqe_opcode::RESPONDER_SEND, 0, first.0);
        let cqe = device.deliver(cqe);
        assert!(srq.complete(cqe).is_err());
    }
    assert_eq!(ALLOCATIONS.get(), before);
}

#[test]
fn datagrams_allocate_nothing() {
    let mut sender: Sender<Ud> = Sender::of(Settings::default());
    let mut receiver = Receiver::new(0x123, 16, 64);
    let peer = to_lid(7).to(Qpn(0x99), QKey(1));
    let sge = Sge::new(0, 8, Lkey(1));
    let before = ALLOCATIONS.get();
    for lap in 0..300u64 {
        let queue = &mut sender.queue;
        queue.post(&Send::new(sge).to(&peer), lap).unwrap();
        queue.post(&Send::new([sge; 4]).to(&peer), lap).unwrap();
        assert!(queue.post(&Send::new([sge; 5]).to(&peer), lap).is_err());
        let mut batch = queue.batch();
        batch.post(&SendImm::new(Inline(b"and inline data"), 3).to(&peer), lap).unwrap();
        let last = batch.post(&Send::new(Inline(b"")).signaled().to(&peer), lap).unwrap();
        batch.ring();
        let cqe = sender.device.completion(opcode::SEND, last.0);
        sender.queue.complete(cqe).unwrap();

        let index = receiver.queue.post([sge; 2], lap).unwrap();
        let cqe = sender.device.cqe(cqe_opcode::RESPONDER_SEND, 0, index.0);
        let cqe = sender.device.deliver(cqe);
        assert!(cqe.source().is_some());
        receiver.queue.complete(cqe).unwrap();
    }
    assert_eq!(ALLOCATIONS.get(), before);
}
