//! A program that has ended: its memory is gone, but its queues still exist for a moment.

use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

use verbless_prm::hot::{DataSegment, cqe_opcode, cqe_syndrome, opcode};

use super::rig::{ALL, Entry, Request, Rig};
use crate::hca::objects::QpState;
use crate::memory::{Fault, HostMemory};

/// ACK timeout code 14.
const TIMEOUT: Duration = Duration::from_nanos(4096 << 14);

/// Memory that is absent, because its program has ended or because it never existed.
struct AbsentMemory {
    /// Addresses of memory whose program has ended.
    gone: Range<u64>,
}

impl AbsentMemory {
    fn fault<T>(address: u64, length: u64) -> Result<T, Fault> {
        Err(Fault { address, length })
    }
}

impl HostMemory for AbsentMemory {
    fn read(&self, address: u64, into: &mut [u8]) -> Result<(), Fault> {
        Self::fault(address, into.len() as u64)
    }
    fn write(&self, address: u64, from: &[u8]) -> Result<(), Fault> {
        Self::fault(address, from.len() as u64)
    }
    fn load32(&self, address: u64) -> Result<u32, Fault> {
        Self::fault(address, 4)
    }
    fn store32(&self, address: u64, _: u32) -> Result<(), Fault> {
        Self::fault(address, 4)
    }
    fn store8(&self, address: u64, _: u8) -> Result<(), Fault> {
        Self::fault(address, 1)
    }
    fn compare_exchange64(&self, address: u64, _: u64, _: u64) -> Result<u64, Fault> {
        Self::fault(address, 8)
    }
    fn copy_to(&self, from: u64, _: &dyn HostMemory, _: u64, length: u64) -> Result<(), Fault> {
        Self::fault(from, length)
    }
    fn direct(&self, _: u64, _: u64) -> Option<NonNull<u8>> {
        None
    }
    fn is_gone(&self, address: u64) -> bool {
        self.gone.contains(&address)
    }
}

/// The program that has ended.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Gone {
    NoProgram,
    /// The program that owns the key's memory, not that of the QP.
    Owner,
    BothPrograms,
}

/// The requester's CQE, and the number of timeouts before it, when the memory of the other side is
/// absent.
fn failure(request: impl Fn(u64, u32, DataSegment) -> Request, gone: Gone) -> (Entry, u32) {
    let mut rig = Rig::new();
    let (mut a, mut b) = rig.pair();
    let (local, lkey) = rig.region(0, 64);
    let (remote, length) = (rig.alloc(64), 64);
    let rkey = rig.mkey(1, remote, length, ALL);
    rig.receive(&mut b, &[DataSegment::new(64, rkey, remote)]);
    let gone = match gone {
        Gone::NoProgram => 0..0,
        Gone::Owner => remote..remote + length,
        Gone::BothPrograms => 0..u64::MAX,
    };
    rig.set_memory(1, Arc::new(AbsentMemory { gone }));
    rig.post(&mut a, request(remote, rkey, DataSegment::new(8, lkey, local)));
    for timeouts in 0..16 {
        rig.run();
        if let Some(entry) = rig.poll(0, a.send_cq) {
            assert_eq!(entry.opcode(), cqe_opcode::REQUESTER_ERROR);
            assert_eq!(rig.qp(&a).state, QpState::Error);
            return (entry, timeouts);
        }
        rig.advance(TIMEOUT);
    }
    panic!("the requester gets no completion");
}

type Make = fn(u64, u32, DataSegment) -> Request;

/// A request of each kind.
const REQUESTS: [Make; 5] = [
    |_, _, from| Request::send().sge(from.addr(), 8, from.lkey()),
    |at, key, from| Request::write(at, key).sge(from.addr(), 8, from.lkey()),
    |at, key, from| {
        let request = Request::new(opcode::WRITE_IMM).remote(at, key);
        request.sge(from.addr(), 8, from.lkey())
    },
    |at, key, to| Request::read(at, key).sge(to.addr(), 8, to.lkey()),
    |at, key, to| {
        let request = Request::atomic(opcode::FETCH_ADD, at, key, 1, 0);
        request.sge(to.addr(), 8, to.lkey())
    },
];

#[test]
fn request_to_gone_memory_fails_after_its_retries() {
    let (retries, operation) =
        (cqe_syndrome::TRANSPORT_RETRY_EXCEEDED, cqe_syndrome::REMOTE_OPERATION);
    for (what, gone, expected) in [
        ("dead peer program", Gone::BothPrograms, (retries, 3)),
        ("unmapped memory", Gone::NoProgram, (operation, 0)),
    ] {
        for request in REQUESTS {
            let (entry, timeouts) = failure(request, gone);
            assert_eq!((entry.syndrome(), timeouts), expected, "{what}");
        }
    }
}

#[test]
fn memory_of_dead_owner_is_a_remote_access_error() {
    let [send, write, write_imm, read, add] = REQUESTS;
    for request in [write, read, add] {
        let (entry, timeouts) = failure(request, Gone::Owner);
        assert_eq!((entry.syndrome(), timeouts), (cqe_syndrome::REMOTE_ACCESS, 0));
    }
    // A receive buffer of the QP's own program, also absent, gives a remote operation error.
    for request in [send, write_imm] {
        let (entry, _) = failure(request, Gone::Owner);
        assert_eq!(entry.syndrome(), cqe_syndrome::REMOTE_OPERATION);
    }
}
