//! Command queues: a program executes its host's tasks in the background.
//!
//! A command queue has workers. Each is an event handler with its own queue pair. Its receives are
//! tasks: the address of a function and its argument. [`work`] executes them;
//! [`program!`](crate::program) exports it as [`ENTRY`]. The layouts are the project's own; the C
//! library's are not published.
#![allow(unsafe_code)]

use core::ptr::{with_exposed_provenance, without_provenance};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::context::ThreadContext;
use crate::event::CqRing;
use crate::record;

/// The name of the entry point, with the version of the layouts.
pub const ENTRY: &str = "verbless_cmdq_1";
/// Bytes of a task: address of the function at 0, argument at 8, little-endian.
pub const TASK_BYTES: usize = 16;
/// Bytes of a [`Worker`]. Its address is a multiple of 8.
pub const BYTES: usize = 0x40;
/// Offset of the count of completed tasks in a [`Worker`] (8 bytes, little-endian).
pub const DONE_AT: usize = 0x38;
/// log2 of the maximum number of waiting tasks per worker.
pub const MAX_LOG_DEPTH: u8 = 15;

/// State of a worker. The host writes it before the worker's first run.
#[derive(Debug)]
#[repr(C)]
pub struct Worker {
    /// Address of the CQEs.
    pub cqes: u64,
    /// Address of the CQ's doorbell record.
    pub cq_record: u64,
    /// Address of the queue pair's doorbell record.
    pub rq_record: u64,
    /// Address of the tasks; each is at the index of its receive WQE.
    pub tasks: u64,
    /// The CQ.
    pub cqn: u32,
    /// Maximum number of tasks per run.
    pub batch: u32,
    /// log2 of the tasks, of the receive WQEs and of the CQEs.
    pub log_depth: u32,
    consumer: AtomicU32,
    reserved: u64,
    done: AtomicU64,
}

const _: () = assert!(size_of::<Worker>() == BYTES);
const _: () = assert!(core::mem::offset_of!(Worker, done) == DONE_AT);

impl Worker {
    /// A worker without completed tasks.
    pub const fn new(
        [cqes, cq_record, rq_record, tasks]: [u64; 4],
        cqn: u32,
        batch: u32,
        log_depth: u8,
    ) -> Self {
        Self {
            cqes,
            cq_record,
            rq_record,
            tasks,
            cqn,
            batch,
            log_depth: log_depth as u32,
            consumer: AtomicU32::new(0),
            reserved: 0,
            done: AtomicU64::new(0),
        }
    }

    /// The state's bytes in the process's memory.
    pub fn to_bytes(&self) -> [u8; BYTES] {
        let mut bytes = [0; BYTES];
        let addresses = [self.cqes, self.cq_record, self.rq_record, self.tasks];
        for (field, address) in bytes.chunks_exact_mut(8).zip(addresses) {
            field.copy_from_slice(&address.to_le_bytes());
        }
        let numbers = [self.cqn, self.batch, self.log_depth];
        for (field, number) in bytes[0x20..].chunks_exact_mut(4).zip(numbers) {
            field.copy_from_slice(&number.to_le_bytes());
        }
        bytes
    }
}

/// Executes a batch of the received tasks, and arms the worker's CQ: remaining tasks make an event
/// at once.
///
/// # Safety
/// `at` is the address of a [`Worker`] whose addresses are of this process and refer to the objects
/// of their names, which nothing else uses; its tasks refer to functions of this program. Only one
/// thread at a time calls this function with it.
pub unsafe fn work(context: &ThreadContext, at: u64) {
    // SAFETY: the caller's promise.
    let worker: &Worker = unsafe { &*with_exposed_provenance(at as usize) };
    let depth = 1_usize << worker.log_depth.min(MAX_LOG_DEPTH.into());
    let words = |at: u64, each: usize| {
        // SAFETY: the caller's promise; all words there are atomics.
        unsafe {
            core::slice::from_raw_parts::<AtomicU64>(
                with_exposed_provenance(at as usize),
                depth * each,
            )
        }
    };
    // SAFETY: the caller's promise, of both records.
    let cq_record: &AtomicU32 = unsafe { &*with_exposed_provenance(worker.cq_record as usize) };
    // SAFETY: as above.
    let rq_record: &AtomicU32 = unsafe { &*with_exposed_provenance(worker.rq_record as usize) };
    let tasks = words(worker.tasks, TASK_BYTES / 8);
    let consumer = worker.consumer.load(Ordering::Relaxed);
    // A power of two of CQEs is always accepted.
    let Some(mut cqes) = CqRing::new(words(worker.cqes, crate::event::BYTES / 8), consumer) else {
        return;
    };
    for _ in 0..worker.batch {
        let Some(cqe) = cqes.poll() else { break };
        let slot = usize::from(cqe.wqe_counter()) & (depth - 1);
        let received = cqe.opcode() == verbless_prm::CqeOpcode::RESPONDER_SEND;
        let [function, argument] =
            [0, 1].map(|word| tasks[2 * slot + word].load(Ordering::Relaxed));
        cqes.set_record(cq_record);
        worker.consumer.store(cqes.consumer(), Ordering::Relaxed);
        if !received {
            // The queue pair has failed: no more tasks come.
            continue;
        }
        record::rq_inc_pi(rq_record);
        // SAFETY: the host passes functions of this program with one argument or none.
        let function: extern "C" fn(u64) -> u64 = unsafe {
            core::mem::transmute::<*const (), extern "C" fn(u64) -> u64>(without_provenance(
                function as usize,
            ))
        };
        function(argument);
        worker.done.fetch_add(1, Ordering::Release);
    }
    context.outbox().arm_cq(worker.cqn, cqes.consumer());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn worker_layout_matches_device_view() {
        let worker = Worker::new([1, 2, 3, 4], 5, 6, 7);
        let bytes = worker.to_bytes();
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
        assert_eq!([0, 8, 16, 24].map(word), [1, 2, 3, 4]);
        assert_eq!([0x20, 0x28, 0x30, 0x38].map(word), [6 << 32 | 5, 7, 0, 0]);
    }
}
