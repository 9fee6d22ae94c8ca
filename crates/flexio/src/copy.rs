//! Copies between memory of the host and a process's heap: RDMA WRITEs and READs of a queue pair
//! connected to itself, by a key over the heap. So they need no command of their own.
//!
//! A process has one such queue pair, and its copies take turns. The time limit of a copy covers
//! its wait for the turn, and all of its requests.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use verbless_command::{KeyAccess, KeyMemory, MkeyAttr, MkeyObject, UserMemory};
use verbless_queue::wr::{Read, WorkRequest, Write};
use verbless_queue::{ConnectOptions, Cq, CqConfig, Domain, Qp, QpConfig, Region, RemoteAddr, Sge};

use crate::error::Error;

/// Bytes of one request.
const CHUNK_BYTES: usize = 1 << 16;

/// A time limit.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Deadline {
    /// `None`: never, because the clock cannot express the end.
    end: Option<Instant>,
    timeout: Duration,
}

impl Deadline {
    /// The deadline that is `timeout` from now.
    pub(crate) fn after(timeout: Duration) -> Self {
        Self { end: Instant::now().checked_add(timeout), timeout }
    }

    /// The time left until the deadline.
    pub(crate) fn left(&self) -> Duration {
        self.end.map_or(Duration::MAX, |end| end.saturating_duration_since(Instant::now()))
    }

    /// Whether no time is left.
    pub(crate) fn has_passed(&self) -> bool {
        self.left().is_zero()
    }

    /// The duration that the deadline was made with.
    pub(crate) const fn timeout(&self) -> Duration {
        self.timeout
    }

    const fn copy_timeout(&self) -> Error {
        Error::CopyTimeout(self.timeout)
    }
}

/// A process's copier, created by the first copy: one copy at a time uses it.
#[derive(Debug, Default)]
pub(crate) struct CopierSlot {
    state: Mutex<SlotState>,
    given_back: Condvar,
}

#[derive(Debug, Default)]
struct SlotState {
    copier: Option<Copier>,
    /// Whether a copy uses the copier.
    taken: bool,
}

/// The turn of a copy.
struct CopierTurn<'a> {
    slot: &'a CopierSlot,
    copier: Option<Copier>,
}

impl CopierSlot {
    fn state(&self) -> MutexGuard<'_, SlotState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn turn(&self, deadline: &Deadline) -> Result<CopierTurn<'_>, Error> {
        let waited =
            self.given_back.wait_timeout_while(self.state(), deadline.left(), |state| state.taken);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        if std::mem::replace(&mut state.taken, true) {
            return Err(deadline.copy_timeout());
        }
        Ok(CopierTurn { slot: self, copier: state.copier.take() })
    }

    /// Runs `copy` once it is this copy's turn. After a failure the copier is recreated: destroying
    /// its queue pair ensures that no request of the copy is still in flight.
    pub(crate) fn copy<T>(
        &self,
        deadline: Deadline,
        make: impl FnOnce() -> Result<Copier, Error>,
        copy: impl FnOnce(&mut Copier) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let mut turn = self.turn(&deadline)?;
        let mut copier = match turn.copier.take() {
            Some(copier) => copier,
            None => make()?,
        };
        copier.deadline = deadline;
        let copied = copy(&mut copier)?;
        turn.copier = Some(copier);
        Ok(copied)
    }
}

impl Drop for CopierTurn<'_> {
    fn drop(&mut self) {
        let mut state = self.slot.state();
        (state.copier, state.taken) = (self.copier.take(), false);
        drop(state);
        self.slot.given_back.notify_one();
    }
}

/// A queue pair for copies, and its parts.
#[derive(Debug)]
pub(crate) struct Copier {
    qp: Qp,
    cq: Cq,
    staging: Region,
    heap: MkeyObject,
    /// The deadline of the current copy.
    deadline: Deadline,
}

fn failed(error: impl std::fmt::Display) -> Error {
    Error::Failed(format!("a copy to or from the heap failed: {error}"))
}

impl Copier {
    pub(crate) fn new(domain: &Domain, heap: &Arc<UserMemory>) -> Result<Self, Error> {
        let cq = domain.completion_queue(&CqConfig::new(8))?;
        let mut qp = domain.queue_pair(&QpConfig::new(2, 1), &cq, &cq)?;
        domain.connect_loopback(&mut qp, &ConnectOptions::default())?;
        let heap = domain.device().create_mkey(MkeyAttr {
            pd: domain.pd().clone(),
            access: KeyAccess::ALL,
            start: heap.address(),
            length: heap.length(),
            memory: KeyMemory::Umem { umem: heap.clone(), offset: 0 },
        })?;
        let staging = domain.region(CHUNK_BYTES, KeyAccess::LOCAL)?;
        Ok(Self { qp, cq, staging, heap, deadline: Deadline::after(Duration::ZERO) })
    }

    fn run(&mut self, request: &impl WorkRequest<verbless_queue::Rc>) -> Result<(), Error> {
        self.qp.post(request, 0).map_err(failed)?;
        let cqe = self.cq.poll_within(self.deadline.left())?;
        let cqe = cqe.ok_or_else(|| self.deadline.copy_timeout())?;
        self.qp.complete(cqe).map(drop).map_err(failed)
    }

    fn remote(&self, address: u64) -> RemoteAddr {
        RemoteAddr::new(address, self.heap.rkey())
    }

    /// Host to heap.
    pub(crate) fn write(&mut self, mut address: u64, bytes: &[u8]) -> Result<(), Error> {
        for chunk in bytes.chunks(CHUNK_BYTES) {
            self.staging.write_at(0, chunk).map_err(failed)?;
            let from = self.staging.sge(0, chunk.len()).map_err(failed)?;
            let to = self.remote(address);
            self.run(&Write::new(from, to).signaled())?;
            address += chunk.len() as u64;
        }
        Ok(())
    }

    /// Heap to host.
    pub(crate) fn read(&mut self, mut address: u64, bytes: &mut [u8]) -> Result<(), Error> {
        for chunk in bytes.chunks_mut(CHUNK_BYTES) {
            let into = self.staging.sge(0, chunk.len()).map_err(failed)?;
            let from = self.remote(address);
            self.run(&Read::new(into, from).signaled())?;
            self.staging.read_at(0, chunk).map_err(failed)?;
            address += chunk.len() as u64;
        }
        Ok(())
    }

    /// Heap to memory under a remote key: the heap itself, or another memory.
    pub(crate) fn forward(
        &mut self,
        mut from: u64,
        mut to: RemoteAddr,
        length: u64,
    ) -> Result<(), Error> {
        let mut left = length;
        while left > 0 {
            let here = left.min(CHUNK_BYTES as u64);
            let sge = Sge::new(from, here as u32, self.heap.lkey());
            self.run(&Write::new(sge, to).signaled())?;
            from += here;
            to.address += here;
            left -= here;
        }
        Ok(())
    }

    /// Heap to heap.
    pub(crate) fn within(&mut self, from: u64, to: u64, length: u64) -> Result<(), Error> {
        self.forward(from, self.remote(to), length)
    }

    /// Sets bytes of the heap.
    pub(crate) fn fill(&mut self, mut address: u64, length: u64, value: u8) -> Result<(), Error> {
        let most = length.min(CHUNK_BYTES as u64) as usize;
        self.staging.write_at(0, &vec![value; most]).map_err(failed)?;
        let mut left = length;
        while left > 0 {
            let here = left.min(CHUNK_BYTES as u64);
            let from = self.staging.sge(0, here as usize).map_err(failed)?;
            let to = self.remote(address);
            self.run(&Write::new(from, to).signaled())?;
            address += here;
            left -= here;
        }
        Ok(())
    }
}
