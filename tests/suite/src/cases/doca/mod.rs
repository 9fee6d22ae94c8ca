//! DOCA Core on the lab's devices: the rules of the objects are tests of the crate
//! `verbless-doca`; here is what a device and a kernel must do for them.

mod buffers;
mod capabilities;
mod copies;
mod device;
mod dpu;
mod external;
mod graphs;
mod hashes;
mod maps;
mod pair;
mod rdma;
mod rdma_states;
mod representors;
mod sync;
mod work;

use verbless_devx::DeviceInfo;
use verbless_doca::dma::{Dma, MemcpyDone};
use verbless_doca::{
    AccessFlags, Buf, Context, Dev, DevInfo, ErrorKind, Event, Extensions, Inventory, Job, Memory,
    Mmap, Refused, Retrieve, WorkQ,
};

use crate::endpoint::TIMEOUT;
use crate::{Group, Lab, Stop};

/// The groups, in the order in which they run.
pub(super) static GROUPS: [&Group; 14] = [
    &device::GROUP,
    &capabilities::GROUP,
    &representors::GROUP,
    &maps::GROUP,
    &buffers::GROUP,
    &work::GROUP,
    &external::GROUP,
    &copies::GROUP,
    &dpu::GROUP,
    &hashes::GROUP,
    &graphs::GROUP,
    &sync::GROUP,
    &rdma::GROUP,
    &rdma_states::GROUP,
];

/// Bytes of a map.
const BYTES: usize = 1 << 20;
/// Buffers of an inventory.
const BUFFERS: usize = 256;

/// Opens a device of the lab.
fn open(lab: &Lab, info: &DeviceInfo) -> Result<Dev, Stop> {
    Ok(DevInfo::find_in(lab.shared_backend(), &info.name)?.open()?)
}

/// A map of fresh memory on a device.
fn map(dev: &Dev, length: usize, access: AccessFlags) -> Result<Mmap, Stop> {
    let memory = Memory::allocate(length)?;
    Ok(Mmap::builder().memrange(memory).permissions(access).add_dev(dev).start()?)
}

/// A device, memory that it may use, and a work queue.
struct Bench {
    dev: Dev,
    map: Mmap,
    inventory: Inventory,
    workq: WorkQ,
}

impl Bench {
    /// On the first device, with a work queue of 16 in polling mode.
    fn new(lab: &Lab) -> Result<Self, Stop> {
        Self::with(lab, WorkQ::new(16)?)
    }

    fn with(lab: &Lab, workq: WorkQ) -> Result<Self, Stop> {
        let dev = open(lab, lab.info())?;
        let map = map(&dev, BYTES, AccessFlags::LOCAL_READ_WRITE)?;
        let inventory = Inventory::builder(BUFFERS).extensions(Extensions::LINKED_LIST).start()?;
        Ok(Self { dev, map, inventory, workq })
    }

    /// A DMA context that the work queue is on.
    fn dma(&mut self) -> Result<Dma, Stop> {
        let dma = Dma::builder(&self.dev).start()?;
        self.workq.add(&dma)?;
        Ok(dma)
    }

    /// A buffer of the map whose dataroom is all of it.
    fn data(&self, at: usize, length: usize) -> Result<Buf, Stop> {
        Ok(self.inventory.buf_by_data(&self.map, self.map.address() + at as u64, length as u64)?)
    }

    /// One whose dataroom is empty.
    fn room(&self, at: usize, length: usize) -> Result<Buf, Stop> {
        Ok(self.inventory.buf_by_addr(&self.map, self.map.address() + at as u64, length as u64)?)
    }

    fn fill(&self, at: usize, bytes: &[u8]) -> Result<(), Stop> {
        Ok(self.map.write_at(at, bytes)?)
    }

    fn bytes(&self, at: usize, length: usize) -> Result<Vec<u8>, Stop> {
        let mut bytes = vec![0; length];
        self.map.read_at(at, &mut bytes)?;
        Ok(bytes)
    }

    /// Takes the work queue off a context, which then stops.
    fn leave<C: Context>(&mut self, context: &C) -> Result<(), Stop> {
        Ok(self.workq.remove(context)?)
    }
}

/// Hands a job to a work queue.
fn submit<J: Job>(workq: &mut WorkQ, job: J) -> Result<(), Stop> {
    workq.submit(job).map_err(|refused| refused.error.into())
}

/// The next event.
fn event(workq: &mut WorkQ) -> Result<Event, Stop> {
    workq.retrieve_within(Some(TIMEOUT))?.ok_or_else(|| Stop::fail("no job was done in time"))
}

/// The next event, which is of a copy.
fn copied(workq: &mut WorkQ) -> Result<MemcpyDone, Stop> {
    match event(workq)? {
        Event::Dma(done) => Ok(done),
        other => Err(Stop::fail(format!("not a copy: {other:?}"))),
    }
}

/// The next event, which is of a job that failed; how.
fn failed_job(workq: &mut WorkQ) -> Result<ErrorKind, Stop> {
    match workq.retrieve_within(Some(TIMEOUT)) {
        Err(Retrieve::IoFailed(event)) => match event.result() {
            Ok(()) => Err(Stop::fail("a failed job says that it did not fail")),
            Err(error) => Ok(error.kind()),
        },
        other => Err(Stop::fail(format!("no job failed: {other:?}"))),
    }
}

/// With what kind of error something is refused.
fn refusal<T, E: Into<verbless_doca::Error>>(result: Result<T, E>) -> Result<ErrorKind, Stop> {
    match result {
        Ok(_) => Err(Stop::fail("it was not refused")),
        Err(error) => Ok(error.into().kind()),
    }
}

/// The same of a job, which then comes back.
fn refused_job<J>(result: Result<(), Refused<J>>) -> Result<(ErrorKind, J), Stop> {
    match result {
        Ok(()) => Err(Stop::fail("the job was not refused")),
        Err(Refused { error, given }) => Ok((error.kind(), given)),
    }
}
