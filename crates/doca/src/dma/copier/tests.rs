//! Which copies begin and end in inlined code, and the queue's limits.

use std::sync::Arc;

use verbless_devx::Backend;
use verbless_model::{Model, Profile};
use verbless_model_kernel::InProcess;

use super::*;
use crate::buffer::{Extensions, Inventory};
use crate::device::DevInfo;
use crate::dma::Dma;
use crate::memory::{Memory, Mmap};
use crate::types::AccessFlags;

/// A copier that the test steps, on a device that does nothing by itself.
struct Rig {
    model: Model,
    device_cq: DeviceCq,
    copier: Copier,
    dma: Dma,
    map: Mmap,
    inventory: Inventory,
}

fn rig(profile: Profile) -> Rig {
    let model = Model::builder().device(profile).stepped().build();
    let backend: Arc<dyn Backend> = Arc::new(InProcess::of(&model));
    let dev = DevInfo::list_of(&backend).unwrap()[0].open().unwrap();
    let mut device_cq = DeviceCq::for_test(&dev, 8).unwrap();
    let copier =
        Copier::new(&mut EngineArgs { depth: 8, user_index: 0, device_cq: &mut device_cq })
            .unwrap();
    let memory = Memory::allocate(1 << 16).unwrap();
    let access = AccessFlags::LOCAL_READ_WRITE;
    let map = Mmap::builder().memrange(memory).permissions(access).add_dev(&dev).start().unwrap();
    let inventory = Inventory::builder(64).extensions(Extensions::LINKED_LIST).start().unwrap();
    let dma = Dma::builder(&dev).start().unwrap();
    Rig { model, device_cq, copier, dma, map, inventory }
}

fn bluefield() -> Profile {
    Profile::load("bluefield3").unwrap()
}

/// A profile that copies 2^`log` bytes at a time.
fn with_longest(log: u32) -> Profile {
    let text = include_str!("../../../../model/profiles/bluefield3.toml");
    assert!(text.contains("log_dma_mmo_size = 31"));
    let text = text.replace("log_dma_mmo_size = 31", &format!("log_dma_mmo_size = {log}"));
    Profile::from_toml(&text).unwrap()
}

impl Rig {
    fn data(&self, length: u64) -> Buf {
        self.inventory.buf_by_data(&self.map, self.map.address(), length).unwrap()
    }

    fn room(&self, length: u64) -> Buf {
        self.inventory.buf_by_addr(&self.map, self.map.address() + 0x8000, length).unwrap()
    }

    /// Begins a job; returns whether it began in inlined code.
    fn begin(&mut self, job: Memcpy) -> std::result::Result<bool, Refused<Memcpy>> {
        let ctx = job.ctx;
        if self.copier.begin_simple(job, Tag::default()) {
            return Ok(true);
        }
        let at = self.copier.slot(self.copier.next);
        let RunningCopy { source, destination, user_data, tag } =
            self.copier.jobs[at].take().unwrap();
        let job = Memcpy { ctx, user_data, source, destination };
        self.copier.begin_other(job, tag, &mut self.device_cq).map(|()| false)
    }

    /// Executes all begun jobs; returns the next job, and whether it ended in inlined code.
    fn end(&mut self) -> (MemcpyDone, bool) {
        self.model.run_until_idle();
        let peeked = self.device_cq.cq.peek_send().map(|cqe| cqe.request());
        let (event, open) = match peeked.and_then(|request| self.copier.complete_success(request)) {
            Some(done) => {
                self.device_cq.cq.consume_peeked();
                (done.event, true)
            }
            None => {
                let mut into = None;
                // Each request of the job has a CQE.
                while into.is_none() {
                    let cqe = self.device_cq.cq.poll().unwrap();
                    self.copier.complete(cqe, &mut self.device_cq, &mut into).unwrap();
                }
                (into.unwrap().unwrap(), false)
            }
        };
        match event {
            Event::Dma(done) => (done, open),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn single_buf_copy_with_known_reach_takes_fast_path() {
    let mut rig = rig(bluefield());
    let bytes: Vec<u8> = (0..100).collect();
    rig.map.write_at(0, &bytes).unwrap();
    let mut job = rig.dma.memcpy(rig.data(100), rig.room(100)).user_data(3);
    let mut of_source = true;
    for known in [true, false, true, false, true] {
        rig.map.write_at(0x8000, &[0xa5; 101]).unwrap();
        assert_eq!(rig.begin(job).unwrap(), known);
        assert_eq!(rig.copier.in_flight(), 1);
        let (done, open) = rig.end();
        assert!(open, "a job of one request is open");
        let lengths = (done.user_data.0, done.source.data_len(), done.destination.data_len());
        assert_eq!(lengths, (3, 100, 100));
        assert_eq!(done.destination.to_vec().unwrap(), bytes);
        assert_eq!(rig.copier.in_flight(), 0);
        let MemcpyDone { source, mut destination, user_data, .. } = done;
        destination.reset_data_len();
        // A buffer that had another reference takes the full checks once more.
        if known {
            drop(if of_source { source.add_ref() } else { destination.add_ref() });
            of_source = false;
        }
        job = rig.dma.memcpy(source, destination).user_data(user_data);
    }
}

#[test]
fn empty_oversized_or_chained_copy_takes_slow_path() {
    let mut rig = rig(bluefield());
    rig.begin(rig.dma.memcpy(rig.data(64), rig.room(64))).unwrap();
    let MemcpyDone { mut source, mut destination, .. } = rig.end().0;
    for (length, begins) in [(64, Some(true)), (65, None), (0, Some(false)), (1, Some(true))] {
        source.set_data(rig.map.address(), length.min(64)).unwrap();
        let room = if length > 64 { 63 } else { 64 };
        destination.set_data(destination.head() + 64 - room, 0).unwrap();
        match rig.begin(rig.dma.memcpy(source, destination)) {
            Ok(open) => {
                assert_eq!(Some(open), begins, "{length}");
                let (done, open) = rig.end();
                assert_eq!(open, length > 0, "{length}: an empty one copies by no request");
                assert_eq!(done.destination.data_len(), length);
                (source, destination) = (done.source, done.destination);
            }
            Err(Refused { error, given }) => {
                assert_eq!((begins, error.kind()), (None, ErrorKind::InvalidValue), "{length}");
                (source, destination) = given.into_bufs();
                assert_eq!(destination.data_len(), 0);
            }
        }
    }
    let mut chain = rig.data(8);
    chain.link(rig.data(8)).unwrap();
    for _ in 0..2 {
        assert!(!rig.begin(rig.dma.memcpy(chain, rig.room(16))).unwrap());
        let (done, open) = rig.end();
        assert!(!open);
        assert_eq!(done.destination.data_len(), 16);
        chain = done.source;
    }
}

#[test]
fn device_with_short_copy_limit_never_takes_fast_path() {
    for (log, known) in [(29, false), (30, true), (31, true)] {
        let mut rig = rig(with_longest(log));
        for round in 0..4 {
            let job = rig.dma.memcpy(rig.data(64), rig.room(64));
            assert_eq!(rig.begin(job).unwrap(), known, "2^{log}, {round}");
            rig.end();
            if round == 1 {
                // The same holds after its queue has failed and recovered.
                rig.copier.halt(CopierState::Failed, rig.copier.next, &rig.device_cq);
                assert!(!rig.begin(rig.dma.memcpy(rig.data(64), rig.room(64))).unwrap());
                assert!(rig.copier.progress(&mut rig.device_cq).is_none());
                rig.end();
            }
        }
    }
}

#[test]
fn has_read_holds_for_empty_or_wrapped_cq() {
    let mut rig = rig(bluefield());
    let entries = rig.device_cq.cq.entries();
    let first = rig.device_cq.cq.consumer_index();
    assert!(rig.device_cq.has_read(first));
    for read in 0..=entries {
        rig.copier.queue.nop(0).unwrap();
        rig.model.run_until_idle();
        assert_eq!(rig.device_cq.has_read(first), read == entries, "{read}");
        let cqe = rig.device_cq.cq.poll().unwrap();
        rig.copier.queue.complete(cqe).unwrap();
        assert!(rig.device_cq.has_read(first), "there are none");
    }
}

#[test]
fn chained_copy_ends_with_cqe_of_last_request() {
    let mut rig = rig(bluefield());
    let mut chain = rig.data(8);
    for _ in 1..3 {
        chain.link(rig.data(8)).unwrap();
    }
    assert!(!rig.begin(rig.dma.memcpy(chain, rig.room(24))).unwrap());
    rig.model.run_until_idle();
    for request in 1..=3 {
        let (cqe, mut into) = (rig.device_cq.cq.poll().expect("each is signaled"), None);
        rig.copier.complete(cqe, &mut rig.device_cq, &mut into).unwrap();
        assert_eq!(into.is_some(), request == 3, "request {request}");
    }
    assert!(rig.device_cq.cq.poll().is_none());
}
