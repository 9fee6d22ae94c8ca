//! Copies between memory of the host and a process's heap: RDMA WRITEs and READs of a queue pair
//! that is connected to itself, by a key over the heap. So there is no command for them to know.

use std::sync::Arc;
use std::time::Duration;

use verbless_command::{KeyAccess, KeyMemory, MkeyAttr, MkeyObject, UserMemory};
use verbless_queue::wr::{Read, WorkRequest, Write};
use verbless_queue::{ConnectOptions, Cq, CqConfig, Domain, Qp, QpConfig, Region, RemoteAddr, Sge};

use crate::error::Error;

/// Bytes of one request.
const PIECE: usize = 1 << 16;

/// A queue pair for copies, and what it needs.
#[derive(Debug)]
pub(crate) struct Copier {
    qp: Qp,
    cq: Cq,
    staging: Region,
    heap: MkeyObject,
    timeout: Duration,
}

fn failed(error: impl std::fmt::Display) -> Error {
    Error::Failed(format!("a copy to or from the heap failed: {error}"))
}

impl Copier {
    pub(crate) fn new(
        domain: &Domain,
        heap: &Arc<UserMemory>,
        timeout: Duration,
    ) -> Result<Self, Error> {
        let cq = domain.completion_queue(&CqConfig::new(4))?;
        let mut qp = domain.queue_pair(&QpConfig::new(2, 1), &cq, &cq)?;
        domain.connect_to_itself(&mut qp, &ConnectOptions::default())?;
        let heap = domain.device().create_mkey(MkeyAttr {
            pd: domain.pd().clone(),
            access: KeyAccess::ALL,
            start: heap.address(),
            length: heap.length(),
            memory: KeyMemory::Umem { umem: heap.clone(), offset: 0 },
        })?;
        let staging = domain.region(PIECE, KeyAccess::LOCAL)?;
        Ok(Self { qp, cq, staging, heap, timeout })
    }

    fn run(&mut self, request: &impl WorkRequest<verbless_queue::Rc>) -> Result<(), Error> {
        self.qp.post(request, 0).map_err(failed)?;
        let cqe = self.cq.poll_within(self.timeout).ok_or(Error::CopyTimeout(self.timeout))?;
        self.qp.complete(cqe).map(drop).map_err(failed)
    }

    fn remote(&self, address: u64) -> RemoteAddr {
        RemoteAddr::new(address, self.heap.rkey())
    }

    /// Host to heap.
    pub(crate) fn write(&mut self, mut address: u64, bytes: &[u8]) -> Result<(), Error> {
        for piece in bytes.chunks(PIECE) {
            self.staging.write_at(0, piece).map_err(failed)?;
            let from = self.staging.sge(0, piece.len()).map_err(failed)?;
            let to = self.remote(address);
            self.run(&Write::new(from, to).signaled())?;
            address += piece.len() as u64;
        }
        Ok(())
    }

    /// Heap to host.
    pub(crate) fn read(&mut self, mut address: u64, bytes: &mut [u8]) -> Result<(), Error> {
        for piece in bytes.chunks_mut(PIECE) {
            let into = self.staging.sge(0, piece.len()).map_err(failed)?;
            let from = self.remote(address);
            self.run(&Read::new(into, from).signaled())?;
            self.staging.read_at(0, piece).map_err(failed)?;
            address += piece.len() as u64;
        }
        Ok(())
    }

    /// Heap to memory that a remote key leads to: the heap itself, or another's.
    pub(crate) fn forward(
        &mut self,
        mut from: u64,
        mut to: RemoteAddr,
        length: u64,
    ) -> Result<(), Error> {
        let mut left = length;
        while left > 0 {
            let here = left.min(PIECE as u64);
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
        let most = length.min(PIECE as u64) as usize;
        self.staging.write_at(0, &vec![value; most]).map_err(failed)?;
        let mut left = length;
        while left > 0 {
            let here = left.min(PIECE as u64);
            let from = self.staging.sge(0, here as usize).map_err(failed)?;
            let to = self.remote(address);
            self.run(&Write::new(from, to).signaled())?;
            address += here;
            left -= here;
        }
        Ok(())
    }
}
