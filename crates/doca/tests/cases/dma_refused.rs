//! Copies with a full queue, and devices that do not release them.

use verbless_doca::dma::Dma;
use verbless_doca::{Buf, Dev, ErrorKind, Event, Inventory, Mmap, Retrieve, WorkQ};
use verbless_model::Model;
use verbless_prm::{CommandStatus, Opcode};

use crate::support::{plain, stepped};

/// Buffers of the inventory.
const BUFFERS: usize = 2048;

struct Rig {
    model: Model,
    map: Mmap,
    inventory: Inventory,
    dma: Dma,
    workq: WorkQ,
}

fn rig(depth: u32) -> Rig {
    let (model, dev): (Model, Dev) = stepped();
    let (map, inventory) = plain(&dev, 1 << 16, BUFFERS);
    let dma = Dma::builder(&dev).start().unwrap();
    let mut workq = WorkQ::new(depth).unwrap();
    workq.add(&dma).unwrap();
    Rig { model, map, inventory, dma, workq }
}

impl Rig {
    fn data(&self, at: u64, length: u64) -> Buf {
        self.inventory.buf_by_data(&self.map, self.map.address() + at, length).unwrap()
    }

    fn room(&self, at: u64, length: u64) -> Buf {
        self.inventory.buf_by_addr(&self.map, self.map.address() + at, length).unwrap()
    }

    /// A chain of 64 bytes, each in its own buffer.
    fn bytes(&self) -> Buf {
        let mut chain = self.data(0, 1);
        (1..64).for_each(|at| chain.link(self.data(at, 1)).unwrap());
        chain
    }

    /// The kinds of the jobs in flight, in order: `None` for a done job.
    fn kinds(&mut self) -> Vec<Option<ErrorKind>> {
        let mut kinds = Vec::new();
        for _ in 0..1000 {
            self.model.run_until_idle();
            match self.workq.progress_retrieve() {
                Ok(_) => kinds.push(None),
                Err(Retrieve::IoFailed(event)) => {
                    kinds.push(Some(event.result().unwrap_err().kind()));
                }
                Err(Retrieve::Again) if self.workq.in_flight() == 0 => return kinds,
                Err(Retrieve::Again) => {}
                other => panic!("{other:?}"),
            }
        }
        panic!("{} jobs do not come back", self.workq.in_flight());
    }

    /// Makes the device refuse the next command of this opcode.
    fn refuse(&self, opcode: Opcode) {
        self.model.fail_command(0, opcode, 1, CommandStatus::NO_RES, 1);
    }

    fn submit(&mut self, count: u64) {
        for number in 0..count {
            let job = self.dma.memcpy(self.data(0, 64), self.room(0x8000, 64));
            self.workq.submit(job.user_data(number)).unwrap();
        }
    }
}

#[test]
fn copy_beyond_sq_room_is_returned_unchanged() {
    let mut rig = rig(256);
    let (mut chains, mut singles) = (0, 0);
    // Single buffers take the room that chains leave; their requests are not counted before the
    // post.
    while rig.workq.submit(rig.dma.memcpy(rig.bytes(), rig.room(0x8000, 64))).is_ok() {
        chains += 1;
    }
    assert!(chains > 1, "{chains}");
    let (mut source, mut into) = (rig.data(0, 8), rig.room(0x9000, 16));
    into.append(b"in front").unwrap();
    let error = loop {
        match rig.workq.submit(rig.dma.memcpy(source, into)) {
            Ok(()) => singles += 1,
            Err(refused) => {
                (source, into) = refused.given.into_bufs();
                break refused.error;
            }
        }
        (source, into) = (rig.data(0, 8), rig.room(0x9000, 16));
        into.append(b"in front").unwrap();
    };
    assert_eq!(error.kind(), ErrorKind::Again);
    assert!(error.to_string().contains("queue of requests is full"), "{error}");
    assert_eq!((source.data_len(), into.data_len()), (8, 8));
    assert!(rig.workq.in_flight() < 256, "the work queue has room");
    assert_eq!(rig.kinds(), vec![None; chains + singles]);
    rig.workq.submit(rig.dma.memcpy(source, into)).unwrap();
    rig.model.run_until_idle();
    match rig.workq.progress_retrieve() {
        Ok(Event::Dma(done)) => assert_eq!(done.destination.data_len(), 16),
        other => panic!("{other:?}"),
    }
}

#[test]
fn abort_flushes_if_reset_fails() {
    let mut rig = rig(8);
    rig.submit(8);
    rig.refuse(Opcode::QP_2RST);
    rig.workq.abort(&rig.dma).unwrap();
    assert_eq!(rig.kinds(), [Some(ErrorKind::Shutdown); 8]);
    rig.workq.abort(&rig.dma).unwrap();
    rig.workq.remove(&rig.dma).unwrap();
}

#[test]
fn abort_fails_if_reset_and_flush_fail() {
    let mut rig = rig(8);
    rig.submit(4);
    rig.refuse(Opcode::QP_2RST);
    rig.refuse(Opcode::QP_2ERR);
    assert!(rig.workq.abort(&rig.dma).is_err());
    // The device may continue with it.
    assert_eq!(rig.kinds(), [None; 4]);
}

#[test]
fn failed_reset_keeps_bufs_with_device() {
    for (refused, kept) in [(false, 0), (true, 8)] {
        let mut rig = rig(8);
        rig.submit(4);
        if refused {
            rig.refuse(Opcode::QP_2RST);
        }
        drop(rig.workq);
        assert_eq!(rig.inventory.num_free_elements(), BUFFERS - kept);
        assert_eq!(rig.map.buffers(), kept as u64);
    }
}
