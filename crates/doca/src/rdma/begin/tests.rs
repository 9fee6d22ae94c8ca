//! Which jobs begin and end in inlined code.

use std::sync::Arc;

use verbless_devx::Backend;
use verbless_model::{Model, Profile};
use verbless_model_kernel::InProcess;

use super::*;
use crate::buffer::{Extensions, Inventory};
use crate::context::device_cq::DeviceCq;
use crate::context::engine::{Engine, EngineArgs};
use crate::context::event::{Event, EventSlot};
use crate::device::DevInfo;
use crate::error::ErrorKind;
use crate::memory::{Memory, Mmap};
use crate::rdma::checks::{RdmaLimits, check};
use crate::rdma::{Rdma, RdmaDone, RdmaOpcode, RdmaState};
use crate::types::AccessFlags;

/// One end of a connection; the test drives its engine.
struct End {
    device_cq: DeviceCq,
    engine: RdmaEngine,
    rdma: Rdma,
    /// Memory of this side, and the peer's.
    map: Mmap,
    there: Mmap,
    inventory: Inventory,
}

/// Two ends that are not connected, on devices that do nothing by themselves.
fn ends() -> (Model, [End; 2]) {
    let card = Profile::load("bluefield3").unwrap();
    let model = Model::builder().device(card.clone()).device(card).stepped().build();
    let backend: Arc<dyn Backend> = Arc::new(InProcess::of(&model));
    let infos = DevInfo::list_of(&backend).unwrap();
    let devs = [0, 1].map(|at: usize| infos[at].open().unwrap());
    let access = AccessFlags::LOCAL_READ_WRITE
        | AccessFlags::RDMA_READ
        | AccessFlags::RDMA_WRITE
        | AccessFlags::RDMA_ATOMIC;
    let maps = devs.each_ref().map(|dev| {
        let builder = Mmap::builder().memrange(Memory::allocate(4096).unwrap());
        builder.permissions(access).add_dev(dev).start().unwrap()
    });
    let exports = [0, 1].map(|at| maps[at].export_rdma(&devs[at]).unwrap());
    let mut maps = maps.map(Some);
    let ends = [0, 1].map(|at: usize| {
        let dev = &devs[at];
        let mut device_cq = DeviceCq::for_test(dev, 8).unwrap();
        let rdma = Rdma::builder(dev).permissions(access).start().unwrap();
        let args = EngineArgs { depth: 8, user_index: 0, device_cq: &mut device_cq };
        let engine = RdmaEngine::new(&rdma.instance, &args).unwrap();
        let there = Mmap::create_from_export(exports[1 - at].as_bytes(), dev).unwrap();
        let inventory = Inventory::builder(256).extensions(Extensions::LINKED_LIST);
        let inventory = inventory.start().unwrap();
        End { device_cq, engine, rdma, map: maps[at].take().unwrap(), there, inventory }
    });
    (model, ends)
}

fn connected() -> (Model, [End; 2]) {
    let (model, mut ends) = ends();
    let blobs = ends.each_ref().map(|end| end.rdma.export().unwrap());
    for (at, end) in ends.iter_mut().enumerate() {
        end.rdma.connect(blobs[1 - at].as_bytes()).unwrap();
        // The first job would do the same.
        end.begin(end.rdma.send(None).user_data(99)).unwrap();
    }
    for end in &mut ends {
        end.begin(end.rdma.receive(None)).unwrap();
    }
    for end in &mut ends {
        for _ in 0..2 {
            end.end(&model);
        }
    }
    (model, ends)
}

impl End {
    fn data(&self, at: u64, length: u64) -> Option<Buf> {
        self.inventory.buf_by_data(&self.map, self.map.address() + at, length).ok()
    }

    fn room(&self, at: u64, length: u64) -> Option<Buf> {
        self.inventory.buf_by_addr(&self.map, self.map.address() + at, length).ok()
    }

    fn remote(&self, at: u64, length: u64) -> Option<Buf> {
        self.inventory.buf_by_addr(&self.there, self.there.address() + at, length).ok()
    }

    /// Begins a job; returns whether it began in inlined code.
    fn begin(&mut self, job: RdmaJob) -> std::result::Result<bool, Refused<RdmaJob>> {
        if self.engine.begin_simple(job, Tag::default()) {
            return Ok(true);
        }
        self.engine.begin_checked(&self.device_cq).map(|()| false)
    }

    /// The next job, and whether it ended in inlined code.
    fn end(&mut self, model: &Model) -> (RdmaDone, bool) {
        model.run_until_idle();
        let mut into: EventSlot = None;
        let sent = self.device_cq.cq.peek_send().map(|cqe| cqe.request());
        if let Some(done) = sent.and_then(|request| self.engine.complete_success(request)) {
            self.device_cq.cq.consume_peeked();
            into = Some(Ok(done.event));
        } else if let Some(cqe) = self.device_cq.cq.peek_receive()
            && self.engine.receive(&cqe, &mut into).is_some()
        {
            self.device_cq.cq.consume_peeked();
        }
        let open = into.is_some();
        if !open {
            let cqe = self.device_cq.cq.poll().unwrap();
            self.engine.complete(cqe, &mut self.device_cq, &mut into).unwrap();
        }
        match into.unwrap().unwrap() {
            Event::Rdma(done) => (done, open),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn single_buf_jobs_take_fast_path() {
    let (model, [mut a, mut b]) = connected();
    let bytes: Vec<u8> = (0..64).collect();
    a.map.write_at(0, &bytes).unwrap();
    b.map.write_at(0x800, &bytes).unwrap();
    for (number, immediate) in [(0, None), (1, Some(5))] {
        assert!(b.begin(b.rdma.receive(b.room(0x40 * number, 64)).user_data(number)).unwrap());
        let source = a.data(0, 64);
        let job = match immediate {
            None => a.rdma.send(source),
            Some(with) => a.rdma.send_imm(source, with),
        };
        assert!(a.begin(job.user_data(7)).unwrap());
        let (sent, open) = a.end(&model);
        assert!(open && sent.user_data.0 == 7);
        let (received, open) = b.end(&model);
        assert!(open && received.user_data.0 == number);
        assert_eq!(received.immediate, immediate);
        assert_eq!(received.local.unwrap().to_vec().unwrap(), bytes);
    }
    assert!(b.begin(b.rdma.receive(b.room(0x100, 64))).unwrap());
    assert!(a.begin(a.rdma.write(a.data(0, 64), a.remote(0x200, 64))).unwrap());
    assert!(a.begin(a.rdma.write_imm(a.data(0, 64), a.remote(0x240, 64), 6)).unwrap());
    assert!(a.begin(a.rdma.read(a.remote(0x800, 64), a.data(0x400, 64))).unwrap());
    assert!((0..3).all(|_| a.end(&model).1));
    let (received, open) = b.end(&model);
    assert!(open);
    assert_eq!(
        (received.immediate, received.opcode),
        (Some(6), Some(RdmaOpcode::RecvWriteWithImm))
    );
    let mut there = [0; 128];
    b.map.read_at(0x200, &mut there).unwrap();
    assert_eq!(there, *[&bytes[..], &bytes].concat());
    a.map.read_at(0x400, &mut there[..64]).unwrap();
    assert_eq!(there[..64], bytes);
    b.map.write_at(0x300, &5u64.to_ne_bytes()).unwrap();
    let [first, second] = [0x500, 0x508].map(|at| a.data(at, 8).unwrap());
    let word = || a.remote(0x300, 8).unwrap();
    let add = a.rdma.fetch_and_add(word(), first, 3);
    let swap = a.rdma.compare_and_swap(word(), second, 8, 1);
    assert!(a.begin(add).unwrap() && a.begin(swap).unwrap());
    assert!((0..2).all(|_| a.end(&model).1));
    let mut words = [0; 16];
    a.map.read_at(0x500, &mut words).unwrap();
    assert_eq!(words, *[5u64.to_ne_bytes(), 8u64.to_ne_bytes()].concat());
    b.map.read_at(0x300, &mut words[..8]).unwrap();
    assert_eq!(words[..8], 1u64.to_ne_bytes());
}

#[test]
fn known_ends_requires_fitting_known_bufs() {
    let (_model, [a, _b]) = connected();
    let instance = &a.engine.instance;
    let ends = |local: &Buf, remote: Option<&Buf>, operation| {
        known_ends(Some(local), remote, operation, instance)
    };
    let data = |at, length| a.data(at, length).unwrap();
    let remote = |at, length| a.remote(at, length).unwrap();
    let (here, there) = (a.map.address(), a.there.address());
    let (read, write) = (JobOperation::Read, JobOperation::WriteImm(1));
    let (swap, add) =
        (JobOperation::CompareSwap { compare: 0, swap: 1 }, JobOperation::FetchAdd(1));
    for (local, there_at, operation, known) in [
        ((8, 64), (16, 64), read, true),
        ((8, 64), (16, 64), write, true),
        ((8, 64), (16, 64), JobOperation::Write, true),
        ((8, 65), (16, 64), read, false),
        ((8, 65), (16, 64), write, false),
        ((8, 63), (16, 64), write, true),
        ((8, 8), (16, 8), swap, true),
        ((8, 8), (16, 8), add, true),
        ((8, 8), (16, 64), add, true),
        ((8, 8), (16, 7), add, false),
        ((8, 7), (16, 8), add, false),
        ((8, 9), (16, 16), swap, false),
        ((8, 8), (20, 8), swap, false),
        ((12, 8), (16, 8), swap, true),
    ] {
        let expected = known.then_some(((here + local.0, local.1 as u32), there + there_at.0));
        let (local, remote) = (data(local.0, local.1), remote(there_at.0, there_at.1));
        let found = ends(&local, Some(&remote), operation);
        assert_eq!(found, expected, "{operation:?} of {local:?} and {remote:?}");
        assert_eq!(ends(&local, None, operation), None, "{operation:?} needs a peer's memory");
        assert_eq!(ends(&local, Some(&data(0, 64)), operation), None, "that is none");
        assert_eq!(ends(&remote, Some(&remote), operation), None, "nor is it of this side");
        for buffer in [&local, &remote] {
            let reference = buffer.add_ref().unwrap();
            assert_eq!(
                ends(&local, Some(&remote), operation),
                None,
                "the buffer has two references"
            );
            drop(reference);
        }
    }
    let (data, room) = (data(8, 64), a.room(0x100, 32).unwrap());
    assert_eq!(ends(&data, None, JobOperation::Send), Some(((here + 8, 64), 0)));
    assert_eq!(ends(&data, None, JobOperation::SendImm(1)), Some(((here + 8, 64), 0)));
    assert_eq!(ends(&room, None, JobOperation::Receive), Some(((here + 0x100, 32), 0)));
    assert_eq!(ends(&room, None, JobOperation::Send), Some(((here + 0x100, 0), 0)));
    assert_eq!(known_ends(None, None, JobOperation::Send, instance), None);
    let read_only = Mmap::builder().memrange(Memory::allocate(64).unwrap()).add_dev(a.rdma.dev());
    let read_only = read_only.start().unwrap();
    let data = a.inventory.buf_by_data(&read_only, read_only.address(), 8).unwrap();
    let remote = remote(0, 8);
    for (operation, known) in
        [(JobOperation::Write, true), (JobOperation::Read, false), (add, false), (swap, false)]
    {
        assert_eq!(ends(&data, Some(&remote), operation).is_some(), known, "{operation:?}");
    }
    assert!(ends(&data, None, JobOperation::Send).is_some());
    assert!(ends(&data, None, JobOperation::Receive).is_none());
}

#[test]
fn fast_path_opens_after_first_accepted_job() {
    let (model, [mut a, mut b]) = ends();
    // An engine that has not read the state does not know it.
    for known in [false, true, true] {
        assert_eq!(a.begin(a.rdma.receive(a.room(0, 64))).unwrap(), known);
    }
    for _ in 0..2 {
        let refused = a.begin(a.rdma.send(a.data(0, 64))).unwrap_err();
        assert_eq!(refused.error.kind(), ErrorKind::NotConnected);
    }
    let blobs = [&a, &b].map(|end| end.rdma.export().unwrap());
    a.rdma.connect(blobs[1].as_bytes()).unwrap();
    b.rdma.connect(blobs[0].as_bytes()).unwrap();
    for known in [false, true] {
        assert_eq!(b.begin(b.rdma.send(b.data(0, 64))).unwrap(), known);
    }
    for (job, known) in [(a.rdma.send(a.data(0, 64)), false), (a.rdma.receive(a.room(0, 64)), true)]
    {
        assert_eq!(a.begin(job).unwrap(), known, "the state is another");
    }
    assert!(b.end(&model).1);
    assert_eq!(a.engine.in_flight(), 5);
    a.engine.abort(&mut a.device_cq).unwrap();
    assert!(a.engine.has_work());
    for job in [a.rdma.receive(a.room(0, 64)), a.rdma.send(a.data(0, 64))] {
        assert_eq!(a.begin(job).unwrap_err().error.kind(), ErrorKind::BadState);
    }
    assert_eq!(a.rdma.state(), RdmaState::Error);
    while a.device_cq.cq.poll().is_some() {}
    for _ in 0..5 {
        assert!(a.engine.progress(&mut a.device_cq).is_some());
    }
    assert!(!a.engine.has_work() && a.engine.progress(&mut a.device_cq).is_none());
}

#[test]
fn full_queue_rejects_job_until_one_ends() {
    let (model, [mut a, mut b]) = connected();
    let most = a.rdma.properties().send_queue_size;
    for _ in 0..most {
        assert!(a.begin(a.rdma.write(a.data(0, 8), a.remote(0, 8))).unwrap());
        assert!(b.begin(b.rdma.receive(b.room(0, 8))).unwrap());
    }
    for _ in 0..2 {
        let write = a.begin(a.rdma.write(a.data(0, 8), a.remote(0, 8))).unwrap_err();
        let receive = b.begin(b.rdma.receive(b.room(0, 8))).unwrap_err();
        for refused in [write, receive] {
            assert_eq!(refused.error.kind(), ErrorKind::Again);
        }
    }
    assert_eq!((a.engine.in_flight(), b.engine.in_flight()), (most, most));
    a.end(&model);
    assert!(a.begin(a.rdma.write(a.data(0, 8), a.remote(0, 8))).unwrap());
    let refused = a.begin(a.rdma.write(a.data(0, 8), a.remote(0, 8))).unwrap_err();
    assert_eq!(refused.error.kind(), ErrorKind::Again);
    for _ in 0..most {
        assert!(a.end(&model).1);
    }
    assert_eq!(a.engine.in_flight(), 0);
}

#[test]
fn cqe_of_another_job_is_rejected() {
    let (model, [mut a, _b]) = connected();
    for _ in 0..2 {
        a.begin(a.rdma.receive(a.room(0, 8))).unwrap();
    }
    a.engine.receives.take_first().unwrap();
    a.rdma.stop().map(drop).unwrap();
    model.run_until_idle();
    let cqe = a.device_cq.cq.poll().unwrap();
    let error = a.engine.complete(cqe, &mut a.device_cq, &mut None).unwrap_err();
    assert!(error.to_string().contains("completed job 1 before job 2"), "{error}");
}

#[test]
fn buf_with_past_reference_takes_slow_path_once() {
    let (model, [mut a, _b]) = connected();
    let (mut local, mut remote) = (a.data(0, 8), a.remote(0, 8));
    for (of_local, of_remote) in [(true, false), (false, true), (true, true)] {
        for (again, buffer) in [(of_local, &local), (of_remote, &remote)] {
            if again {
                drop(buffer.as_ref().unwrap().add_ref().unwrap());
            }
        }
        for known in [false, true] {
            assert_eq!(a.begin(a.rdma.write(local, remote)).unwrap(), known);
            let done = a.end(&model).0;
            (local, remote) = (done.local, done.remote);
        }
    }
}

#[test]
fn chain_or_length_above_limit_is_rejected() {
    let (_model, [a, _b]) = ends();
    let dev = a.rdma.dev();
    let limits = |send_chain, read_chain| RdmaLimits {
        send_chain,
        read_chain,
        receive_chain: 2,
        longest: 64,
    };
    let chain = |count: u64| {
        let mut chain = a.data(0, 8).unwrap();
        (1..count).for_each(|at| chain.link(a.data(8 * at, 8).unwrap()).unwrap());
        Some(chain)
    };
    let says = |job: &RdmaJob, limits: &RdmaLimits| match check(job, dev, limits) {
        Ok((sges, _)) => sges.as_slice().len().to_string(),
        Err(error) => error.to_string(),
    };
    for (send, read, count, expected) in [
        (2, 4, 2, ["2", "2"]),
        (2, 4, 3, ["send_buf_chain_len", "send_buf_chain_len"]),
        (4, 2, 2, ["2", "2"]),
        (4, 2, 3, ["3", "max_read_buf_chain_len"]),
        (4, 2, 4, ["4", "max_read_buf_chain_len"]),
        (3, 3, 4, ["send_buf_chain_len", "send_buf_chain_len"]),
    ] {
        let there = || a.remote(0, 64);
        let jobs = [a.rdma.write(chain(count), there()), a.rdma.read(there(), chain(count))];
        for (job, expected) in jobs.iter().zip(expected) {
            let said = says(job, &limits(send, read));
            assert!(said.ends_with(expected), "{send}, {read}, {count}: {said}");
        }
    }
    for (count, expected) in [(2, "2"), (3, "recv_buf_chain_len")] {
        let said = says(&a.rdma.receive(chain(count)), &limits(8, 8));
        assert!(said.ends_with(expected), "{said}");
    }
    for (length, expected) in [(64, "1"), (65, "max_message_size, or 2 GiB")] {
        let said = says(&a.rdma.send(a.data(0, length)), &limits(8, 8));
        assert!(said.ends_with(expected), "{said}");
        assert_eq!(says(&a.rdma.receive(a.room(0, length)), &limits(8, 8)), "1");
    }
    let read_only = Mmap::builder().memrange(Memory::allocate(64).unwrap()).add_dev(dev);
    let read_only = read_only.start().unwrap();
    let data = || a.inventory.buf_by_data(&read_only, read_only.address(), 8).ok();
    for (job, may) in [
        (a.rdma.write(data(), a.remote(0, 8)), true),
        (a.rdma.send(data()), true),
        (a.rdma.read(a.remote(0, 8), data()), false),
        (a.rdma.receive(data()), false),
        (a.rdma.fetch_and_add(a.remote(0, 8).unwrap(), data().unwrap(), 1), false),
    ] {
        let checked = check(&job, dev, &limits(8, 8));
        assert_eq!(checked.err().map(|it| it.kind()), (!may).then_some(ErrorKind::NotPermitted));
    }
}

#[test]
fn failed_qp_reset_keeps_bufs_with_device() {
    use verbless_prm::{CommandStatus, Opcode};
    for refused in [false, true] {
        let (model, [mut a, _b]) = connected();
        for _ in 0..2 {
            a.begin(a.rdma.receive(a.room(0, 8))).unwrap();
        }
        a.begin(a.rdma.write(a.data(0, 8), None)).unwrap_err();
        if refused {
            let refuse = || model.fail_command(0, Opcode::QP_2RST, 1, CommandStatus::NO_RES, 1);
            refuse();
            a.engine.abort(&mut a.device_cq).unwrap_err();
            assert!(a.engine.progress(&mut a.device_cq).is_none() && !a.engine.has_work());
            refuse();
        }
        drop(a.engine);
        assert_eq!(a.map.buffers(), if refused { 2 } else { 0 });
    }
}
