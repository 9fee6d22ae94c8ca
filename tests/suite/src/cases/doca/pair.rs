//! Two instances of DOCA RDMA, one on each device of the lab, or both on its only one.

use verbless_doca::rdma::{Rdma, RdmaBuilder, RdmaDone, RdmaJob};
use verbless_doca::{
    AccessFlags, Buf, Dev, ErrorKind, Event, Extensions, Inventory, Mmap, Retrieve, WorkQ,
};

use super::rig::{map, open};
use crate::endpoint::TIMEOUT;
use crate::{Lab, Stop, ensure};

/// Bytes of the memory of each end.
pub(super) const BYTES: usize = 1 << 16;

/// The access flags that an instance or a map may grant a peer.
pub(super) const ACCESS_FLAGS: [AccessFlags; 3] =
    [AccessFlags::RDMA_READ, AccessFlags::RDMA_WRITE, AccessFlags::RDMA_ATOMIC];

/// All access flags that the device has.
pub(super) fn access_flags(lab: &Lab) -> Result<AccessFlags, Stop> {
    let mut all = AccessFlags::RDMA_READ | AccessFlags::RDMA_WRITE;
    if lab.device()?.caps().atomics && lab.other_device()?.caps().atomics {
        all |= AccessFlags::RDMA_ATOMIC;
    }
    Ok(all)
}

/// One end.
pub(super) struct End {
    pub(super) dev: Dev,
    pub(super) map: Mmap,
    /// The peer's memory.
    pub(super) there: Mmap,
    pub(super) inventory: Inventory,
    pub(super) workq: WorkQ,
    /// `None` while it is stopped.
    pub(super) rdma: Option<Rdma>,
}

impl End {
    pub(super) fn rdma(&self) -> Result<&Rdma, Stop> {
        self.rdma.as_ref().ok_or_else(|| Stop::fail("the instance is stopped"))
    }

    /// A buffer of its own memory whose dataroom is all of it.
    pub(super) fn data(&self, at: u64, length: u64) -> Result<Option<Buf>, Stop> {
        Ok(Some(self.inventory.buf_by_data(&self.map, self.map.address() + at, length)?))
    }

    /// A buffer of its own memory whose dataroom is empty.
    pub(super) fn room(&self, at: u64, length: u64) -> Result<Option<Buf>, Stop> {
        Ok(Some(self.inventory.buf_by_addr(&self.map, self.map.address() + at, length)?))
    }

    /// A buffer of the peer's memory whose dataroom is empty.
    pub(super) fn remote(&self, at: u64, length: u64) -> Result<Buf, Stop> {
        Ok(self.inventory.buf_by_addr(&self.there, self.there.address() + at, length)?)
    }

    pub(super) fn fill(&self, at: usize, bytes: &[u8]) -> Result<(), Stop> {
        Ok(self.map.write_at(at, bytes)?)
    }

    pub(super) fn bytes(&self, at: usize, length: usize) -> Result<Vec<u8>, Stop> {
        let mut bytes = vec![0; length];
        self.map.read_at(at, &mut bytes)?;
        Ok(bytes)
    }

    pub(super) fn submit(&mut self, job: RdmaJob) -> Result<(), Stop> {
        super::rig::submit(&mut self.workq, job)
    }

    /// The next event, of a finished job.
    pub(super) fn done(&mut self) -> Result<RdmaDone, Stop> {
        match super::rig::event(&mut self.workq)? {
            Event::Rdma(done) => Ok(done),
            other => Err(Stop::fail(format!("no job of RDMA is done, but {other:?}"))),
        }
    }

    pub(super) fn perform(&mut self, job: RdmaJob) -> Result<RdmaDone, Stop> {
        self.submit(job)?;
        self.done()
    }

    /// The next event, of a failed job.
    pub(super) fn failed(&mut self) -> Result<(RdmaDone, ErrorKind), Stop> {
        match self.workq.retrieve_within(Some(TIMEOUT)) {
            Err(Retrieve::IoFailed(Event::Rdma(done))) => match done.result {
                Ok(()) => Err(Stop::fail("a failed job says that it did not fail")),
                Err(error) => Ok((done, error.kind())),
            },
            other => Err(Stop::fail(format!("no job of RDMA failed: {other:?}"))),
        }
    }

    /// Stops the instance, and starts it again with the same configuration.
    pub(super) fn restart(&mut self) -> Result<(), Stop> {
        let rdma = self.rdma.take().ok_or_else(|| Stop::fail("the instance is stopped"))?;
        let stopped = rdma.stop().map_err(|refused| refused.error)?;
        self.rdma = Some(stopped.start().map_err(|refused| refused.error)?);
        Ok(())
    }
}

/// Two ends whose instances are not connected. `set` configures both instances. The instances grant
/// the access flags `instance`, and the memory of both ends grants `memory`.
pub(super) fn ends(
    lab: &Lab,
    instance: AccessFlags,
    memory: AccessFlags,
    set: impl Fn(RdmaBuilder) -> RdmaBuilder,
) -> Result<[End; 2], Stop> {
    let devices = [open(lab, lab.info())?, open(lab, lab.other_info())?];
    let mut maps = Vec::new();
    for dev in &devices {
        maps.push(map(dev, BYTES, AccessFlags::LOCAL_READ_WRITE | memory)?);
    }
    let mut ends = Vec::new();
    for side in [1, 0] {
        let (dev, here) = (devices[side].clone(), maps.pop());
        let here = here.ok_or_else(|| Stop::fail("no map"))?;
        let export = match side {
            1 => maps[0].export_rdma(&devices[0])?,
            _ => {
                let other: &End = &ends[0];
                other.map.export_rdma(&other.dev)?
            }
        };
        let there = Mmap::create_from_export(export.as_bytes(), &dev)?;
        let rdma = set(Rdma::builder(&dev).permissions(instance));
        let rdma = rdma.start().map_err(|refused| refused.error)?;
        let mut workq = WorkQ::new(64)?;
        workq.add(&rdma)?;
        let inventory = Inventory::builder(256).extensions(Extensions::LINKED_LIST).start()?;
        ends.push(End { dev, map: here, there, inventory, workq, rdma: Some(rdma) });
    }
    ends.reverse();
    ends.try_into().map_err(|_| Stop::fail("two ends"))
}

/// Connects the two to each other.
pub(super) fn connect([a, b]: &[End; 2]) -> Result<(), Stop> {
    let [from_a, from_b] = [a.rdma()?.export()?, b.rdma()?.export()?];
    a.rdma()?.connect(from_b)?;
    b.rdma()?.connect(from_a)?;
    Ok(())
}

/// Two connected ends that grant all access flags of the devices.
pub(super) fn connected(lab: &Lab) -> Result<[End; 2], Stop> {
    let all = access_flags(lab)?;
    let ends = ends(lab, all, all, |builder| builder)?;
    connect(&ends)?;
    Ok(ends)
}

/// Fails unless a receive of each side completes: the connection works in both directions.
pub(super) fn works(ends: &mut [End; 2]) -> Result<(), Stop> {
    for (from, to) in [(0, 1), (1, 0)] {
        let room = ends[to].room(60_000, 64)?;
        let job = ends[to].rdma()?.receive(room);
        ends[to].submit(job)?;
        ends[from].fill(61_000, &[0x5a; 64])?;
        let job = ends[from].rdma()?.send(ends[from].data(61_000, 64)?);
        ends[from].perform(job)?;
        let received =
            ends[to].done()?.local.ok_or_else(|| Stop::fail("the receive returned no buffer"))?;
        ensure!(received.to_vec()? == [0x5a; 64], "other bytes arrived");
    }
    Ok(())
}
