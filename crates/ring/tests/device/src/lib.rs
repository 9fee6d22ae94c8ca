//! A program for the device's own cores: posts and polls on a queue pair over memory from the host.
//! `cargo xtask test --only riscv64imac` builds it for such a core and checks what it links.
#![no_std]

extern crate alloc;

use alloc::sync::Arc;
use core::ptr::NonNull;

use verbless_prm::hot;
use verbless_ring::cq::CompletionQueueParts;
use verbless_ring::qp::{BlueFlame, ReceiveQueueParts, SendQueueParts};
use verbless_ring::ring::{LayoutError, OutOfBounds, RecordMemory, RingMemory, SharedMemory};
use verbless_ring::uar::UarPage;
use verbless_ring::wr::Write;
use verbless_ring::{
    CompletionQueue, Cqn, Lkey, Qpn, QueuePair, ReceiveQueue, RemoteAddr, Rkey, SendQueue, Sge,
};

/// Memory and numbers that the host passes to the program.
#[repr(C)]
pub struct Given {
    /// The UAR page.
    pub uar: NonNull<u8>,
    /// 4096 bytes, 4096-byte aligned: the receive ring (64 bytes) at 0, the send ring at 2048.
    pub rings: NonNull<u8>,
    /// 4096 bytes, 4096-byte aligned: the CQEs.
    pub cqes: NonNull<u8>,
    /// 64 bytes, 64-byte aligned: the doorbell records of the queue pair at 0 and of the completion
    /// queue at 8.
    pub records: NonNull<u8>,
    /// Number of the queue pair.
    pub qpn: u32,
    /// Number of the completion queue.
    pub cqn: u32,
}

/// A queue pair with its completion queue.
pub struct Program {
    qp: QueuePair,
    cq: CompletionQueue,
}

impl Program {
    /// # Safety
    /// What `given` points to lives as long as the program, and only the program and the device
    /// access it.
    pub unsafe fn new(given: &Given) -> Result<Self, LayoutError> {
        // SAFETY: as promised.
        let memory = |base, length| unsafe { SharedMemory::from_raw(base, length, Arc::new(())) };
        // SAFETY: as promised.
        let own = |base, length| unsafe { RingMemory::new(memory(base, length)) };
        let outside = |error: OutOfBounds| LayoutError {
            what: "part of the program's memory",
            why: "is not inside it",
            value: error.offset,
        };
        let (receives, sends) = own(given.rings, 4096).split_at(2048).map_err(outside)?;
        let (receives, _) = receives.split_at(64).map_err(outside)?;
        let (record, cq_record) = own(given.records, 64).split_at(8).map_err(outside)?;
        let record = RecordMemory::new(record)?;
        // SAFETY: as promised.
        let page = unsafe { UarPage::new(memory(given.uar, hot::UarPage::BYTES)) }?;
        let send = SendQueue::new(SendQueueParts {
            qpn: Qpn(given.qpn),
            ring: sends,
            record: record.clone(),
            doorbell: page.doorbell(),
            max_sges: 1,
            max_inline: 28,
            signal_all: false,
            blueflame: BlueFlame::Never,
        })?;
        let receive = ReceiveQueue::new(ReceiveQueueParts {
            qpn: Qpn(given.qpn),
            ring: receives,
            stride: 16,
            record,
        })?;
        let cq = CompletionQueue::new(CompletionQueueParts {
            cqn: Cqn(given.cqn),
            ring: own(given.cqes, 4096),
            entry_size: 64,
            record: RecordMemory::new(cq_record)?,
            uar: page,
        })?;
        Ok(Self { qp: QueuePair::new(send, receive), cq })
    }

    /// Writes `length` bytes to memory of the peer; false if the queue is full.
    pub fn write(&mut self, from: u64, length: u32, lkey: u32, to: u64, rkey: u32) -> bool {
        let request =
            Write::new(Sge::new(from, length, Lkey(lkey)), RemoteAddr::new(to, Rkey(rkey)));
        self.qp.post(&request.signaled(), to).is_ok()
    }

    /// Address that a completed write reached, `u64::MAX` if it failed; `None` if none completed.
    pub fn written(&mut self) -> Option<u64> {
        let polled = self.qp.poll(&mut self.cq)?;
        Some(polled.map_or(u64::MAX, |completion| completion.cookie))
    }
}

#[cfg(target_os = "none")]
mod bare;
