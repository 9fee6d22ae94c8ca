//! A log of the arrivals at each queue: CQEs, and digests of data. It is for tests that compare two
//! runs of a program.
//!
//! Unlike events for watchers, the thread that holds the function writes entries at once, so that
//! the entries of a queue are complete and in order of arrival.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A side of a QP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum QueueSide {
    /// The requester's side: the data of READs and the results of atomics arrive here.
    Requester,
    /// The responder's side: the data of the peer's SENDs and WRITEs arrive here.
    Responder,
}

/// A side of a QP of a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct QueueId {
    /// The function, from 0, in the numbering of the methods of [`Model`](crate::Model).
    pub function: usize,
    /// The QP.
    pub qpn: u32,
    /// The side of the QP.
    pub side: QueueSide,
}

/// The arrivals at one side of a QP.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Arrived {
    /// The CQEs in order: 64 bytes each, or 128 if the first half has inline data. The owner bit is
    /// cleared, since it belongs to the CQ's ring.
    pub completions: Vec<Box<[u8]>>,
    /// Bytes of data written to memory, repetitions included.
    pub bytes: u64,
    /// A digest of these bytes in their order, read back from memory. It depends neither on the
    /// sizes of the writes nor on their addresses.
    pub digest: u64,
}

/// The arrivals since recording began.
pub type Arrivals = BTreeMap<QueueId, Arrived>;

/// Offset basis and prime of FNV-1a.
const FNV: (u64, u64) = (0xcbf2_9ce4_8422_2325, 0x0100_0000_01b3);

/// The log of arrivals, kept while a recording exists.
#[derive(Default)]
pub(crate) struct ArrivalLog {
    wanted: AtomicUsize,
    arrivals: Mutex<Arrivals>,
}

impl ArrivalLog {
    /// Whether arrivals are recorded.
    pub(crate) fn is_wanted(&self) -> bool {
        self.wanted.load(Ordering::Relaxed) > 0
    }

    fn arrivals(&self) -> MutexGuard<'_, Arrivals> {
        self.arrivals.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records a written CQE.
    pub(crate) fn completion(&self, at: QueueId, cqe: &[u8]) {
        self.arrivals().entry(at).or_default().completions.push(cqe.into());
    }

    /// Records data written to memory.
    pub(crate) fn data(&self, at: QueueId, bytes: &[u8]) {
        let mut arrivals = self.arrivals();
        let Arrived { bytes: sum, digest, .. } = arrivals.entry(at).or_default();
        if *sum == 0 {
            *digest = FNV.0;
        }
        *sum += bytes.len() as u64;
        *digest =
            bytes.iter().fold(*digest, |sum, &byte| (sum ^ u64::from(byte)).wrapping_mul(FNV.1));
    }
}

/// Records arrivals until it is dropped.
pub struct ArrivalRecording(Arc<crate::watch::Outbox>);

impl ArrivalRecording {
    pub(crate) fn new(outbox: &Arc<crate::watch::Outbox>) -> Self {
        outbox.arrivals.wanted.fetch_add(1, Ordering::Relaxed);
        Self(outbox.clone())
    }

    /// All arrivals so far, of all recordings of this model since the last time without a
    /// recording.
    pub fn arrivals(&self) -> Arrivals {
        self.0.arrivals.arrivals().clone()
    }
}

impl Drop for ArrivalRecording {
    fn drop(&mut self) {
        let log = &self.0.arrivals;
        if log.wanted.fetch_sub(1, Ordering::Relaxed) == 1 {
            log.arrivals().clear();
        }
    }
}

impl std::fmt::Debug for ArrivalRecording {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ArrivalRecording").finish_non_exhaustive()
    }
}
