//! The parts that DOCA's cases share: a device, memory that it may use, and a work queue.

use verbless_devx::DeviceInfo;
use verbless_doca::dma::{Dma, MemcpyDone};
use verbless_doca::{
    AccessFlags, Buf, Context, Dev, DevInfo, ErrorKind, Event, Extensions, Inventory, Job, Memory,
    Mmap, Refused, Retrieve, WorkQ,
};

use crate::endpoint::TIMEOUT;
use crate::{Lab, Stop};

/// Bytes of a map.
pub(super) const BYTES: usize = 1 << 20;
/// Buffers of an inventory.
pub(super) const BUFFERS: usize = 256;

/// Opens a device of the lab.
pub(super) fn open(lab: &Lab, info: &DeviceInfo) -> Result<Dev, Stop> {
    Ok(DevInfo::find_in(lab.shared_backend(), &info.name)?.open()?)
}

/// A map of fresh memory on a device.
pub(super) fn map(dev: &Dev, length: usize, access: AccessFlags) -> Result<Mmap, Stop> {
    let memory = Memory::allocate(length)?;
    Ok(Mmap::builder().memrange(memory).permissions(access).add_dev(dev).start()?)
}

/// A device, memory that it may use, and a work queue.
pub(super) struct Rig {
    pub(super) dev: Dev,
    pub(super) map: Mmap,
    pub(super) inventory: Inventory,
    pub(super) workq: WorkQ,
}

impl Rig {
    /// On the first device, with a work queue of 16 in polling mode.
    pub(super) fn new(lab: &Lab) -> Result<Self, Stop> {
        Self::with(lab, WorkQ::new(16)?)
    }

    pub(super) fn with(lab: &Lab, workq: WorkQ) -> Result<Self, Stop> {
        let dev = open(lab, lab.info())?;
        let map = map(&dev, BYTES, AccessFlags::LOCAL_READ_WRITE)?;
        let inventory = Inventory::builder(BUFFERS).extensions(Extensions::LINKED_LIST).start()?;
        Ok(Self { dev, map, inventory, workq })
    }

    /// A DMA context with the work queue attached.
    pub(super) fn dma(&mut self) -> Result<Dma, Stop> {
        let dma = Dma::builder(&self.dev).start()?;
        self.workq.add(&dma)?;
        Ok(dma)
    }

    /// A buffer of the map whose dataroom is all of it.
    pub(super) fn data(&self, at: usize, length: usize) -> Result<Buf, Stop> {
        Ok(self.inventory.buf_by_data(&self.map, self.map.address() + at as u64, length as u64)?)
    }

    /// A buffer of the map whose dataroom is empty.
    pub(super) fn room(&self, at: usize, length: usize) -> Result<Buf, Stop> {
        Ok(self.inventory.buf_by_addr(&self.map, self.map.address() + at as u64, length as u64)?)
    }

    pub(super) fn fill(&self, at: usize, bytes: &[u8]) -> Result<(), Stop> {
        Ok(self.map.write_at(at, bytes)?)
    }

    pub(super) fn bytes(&self, at: usize, length: usize) -> Result<Vec<u8>, Stop> {
        let mut bytes = vec![0; length];
        self.map.read_at(at, &mut bytes)?;
        Ok(bytes)
    }

    /// Detaches the work queue from a context, which then stops.
    pub(super) fn leave<C: Context>(&mut self, context: &C) -> Result<(), Stop> {
        Ok(self.workq.remove(context)?)
    }
}

/// Hands a job to a work queue.
pub(super) fn submit<J: Job>(workq: &mut WorkQ, job: J) -> Result<(), Stop> {
    workq.submit(job).map_err(|refused| refused.error.into())
}

/// The next event.
pub(super) fn event(workq: &mut WorkQ) -> Result<Event, Stop> {
    workq.retrieve_within(Some(TIMEOUT))?.ok_or_else(|| Stop::fail("no job was done in time"))
}

/// The next event, which must be a copy's.
pub(super) fn copied(workq: &mut WorkQ) -> Result<MemcpyDone, Stop> {
    match event(workq)? {
        Event::Dma(done) => Ok(done),
        other => Err(Stop::fail(format!("not a copy: {other:?}"))),
    }
}

/// The next event, which must be a failed job's; its error kind.
pub(super) fn failed_job(workq: &mut WorkQ) -> Result<ErrorKind, Stop> {
    match workq.retrieve_within(Some(TIMEOUT)) {
        Err(Retrieve::IoFailed(event)) => match event.result() {
            Ok(()) => Err(Stop::fail("a failed job says that it did not fail")),
            Err(error) => Ok(error.kind()),
        },
        other => Err(Stop::fail(format!("no job failed: {other:?}"))),
    }
}

/// The error kind of a refusal.
pub(super) fn refusal<T, E: Into<verbless_doca::Error>>(
    result: Result<T, E>,
) -> Result<ErrorKind, Stop> {
    match result {
        Ok(_) => Err(Stop::fail("the call was not refused")),
        Err(error) => Ok(error.into().kind()),
    }
}

/// The error kind of a refused job, and the job, which comes back.
pub(super) fn refused_job<J>(result: Result<(), Refused<J>>) -> Result<(ErrorKind, J), Stop> {
    match result {
        Ok(()) => Err(Stop::fail("the job was not refused")),
        Err(Refused { error, given }) => Ok((error.kind(), given)),
    }
}
