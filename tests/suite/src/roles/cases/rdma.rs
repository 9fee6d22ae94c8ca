//! Two programs connected by DOCA RDMA: their jobs, and the state of one when the other is killed.
//!
//! `VERBLESS_LIVES=500 verbless-model run --devices 2 -- process --device mlx5_0 --filter
//! doca_rdma` kills a program a thousand times.

use verbless_doca::rdma::{Rdma, RdmaDone, RdmaJob, RdmaState};
use verbless_doca::{
    AccessFlags, Buf, Dev, ErrorKind, Event, Inventory, Memory, Mmap, Retrieve, WorkQ,
};

use crate::roles::case::{By, Case, Side};
use crate::roles::channel::PATIENCE;
use crate::roles::role::Role;
use crate::{Stop, ensure, ensure_eq, pattern};

/// The number of kills in a campaign by hand; 3 if the variable is not set.
const LIVES: &str = "VERBLESS_LIVES";

/// The number of kills of one of two programs.
fn lives() -> u32 {
    std::env::var(LIVES).ok().and_then(|lives| lives.parse().ok()).unwrap_or(3)
}

pub(super) fn cases() -> Vec<Case> {
    let lives = lives();
    let mut cases = vec![Case::new("two_programs_run_all_doca_rdma_jobs", asks, answers)];
    for (by, how) in [(By::Itself, "kills_itself"), (By::Director, "is_killed")] {
        let name = format!("doca_rdma_jobs_end_once_when_peer_{how}_and_resume");
        cases.push(Case::new(&name, outlives, dies).kill(Side::B, "at work", by).lives(lives));
    }
    cases
}

const BYTES: usize = 1 << 16;
const DEPTH: u32 = 64;

/// One end.
struct End {
    dev: Dev,
    map: Mmap,
    inventory: Inventory,
    workq: WorkQ,
    /// `None` while it is stopped.
    rdma: Option<Rdma>,
    /// The peer's memory, once connected.
    there: Option<Mmap>,
}

impl End {
    fn new(role: &Role) -> Result<Self, Stop> {
        let dev = role.dev()?;
        let access = AccessFlags::RDMA_READ | AccessFlags::RDMA_WRITE;
        let map = Mmap::builder()
            .memrange(Memory::allocate(BYTES)?)
            .permissions(AccessFlags::LOCAL_READ_WRITE | access)
            .add_dev(&dev)
            .start()?;
        // Gives up soon: some tries of a few milliseconds each, enough for lossy links.
        let builder = Rdma::builder(&dev).permissions(access).ack_timeout(12).retry_count(4);
        let rdma = builder.start().map_err(|refused| refused.error)?;
        let mut workq = WorkQ::new(DEPTH)?;
        workq.add(&rdma)?;
        let inventory = Inventory::builder(2 * DEPTH as usize).start()?;
        Ok(Self { dev, map, inventory, workq, rdma: Some(rdma), there: None })
    }

    fn rdma(&self) -> Result<&Rdma, Stop> {
        self.rdma.as_ref().ok_or_else(|| Stop::fail("the instance is stopped"))
    }

    /// Sends this end's connection details to the other role, and connects to it.
    fn connect(&mut self, role: &mut Role) -> Result<(), Stop> {
        let connection = self.rdma()?.export()?;
        let memory = self.map.export_rdma(&self.dev)?;
        role.send(&[connection.as_bytes(), memory.as_bytes()].concat())?;
        let said = role.message()?;
        let (connection, memory) = said
            .split_at_checked(connection.as_bytes().len())
            .ok_or_else(|| Stop::fail(format!("{} bytes are not descriptors", said.len())))?;
        self.rdma()?.connect(connection)?;
        self.there = Some(Mmap::create_from_export(memory, &self.dev)?);
        meet(role)
    }

    fn here(&self, at: u64, length: u64) -> Result<Option<Buf>, Stop> {
        Ok(Some(self.inventory.buf_by_data(&self.map, self.map.address() + at, length)?))
    }

    fn far(&self, at: u64, length: u64) -> Result<Option<Buf>, Stop> {
        let there = self.there.as_ref().ok_or_else(|| Stop::fail("it is not connected"))?;
        Ok(Some(self.inventory.buf_by_addr(there, there.address() + at, length)?))
    }

    fn submit(&mut self, job: RdmaJob) -> Result<(), Stop> {
        self.workq.submit(job).map_err(|refused| refused.error.into())
    }

    /// The next finished job, successful or not.
    fn ended(&mut self) -> Result<RdmaDone, Stop> {
        match self.workq.retrieve_within(Some(PATIENCE)) {
            Ok(Some(Event::Rdma(done))) | Err(Retrieve::IoFailed(Event::Rdma(done))) => Ok(done),
            other => Err(Stop::fail(format!("no job of RDMA ended: {other:?}"))),
        }
    }

    fn perform(&mut self, job: RdmaJob) -> Result<RdmaDone, Stop> {
        self.submit(job)?;
        let done = self.ended()?;
        match done.result {
            Ok(()) => Ok(done),
            Err(error) => Err(Stop::fail(format!("{:?}: {error}", done.job_type))),
        }
    }
}

/// Waits until both roles have reached this point.
fn meet(role: &mut Role) -> Result<(), Stop> {
    super::link::meet(role, b"here")
}

fn asks(role: &mut Role) -> Result<(), Stop> {
    let mut end = End::new(role)?;
    end.connect(role)?;
    end.map.write_at(0, &pattern(1, 1000))?;
    meet(role)?;
    let job = end.rdma()?.send_imm(end.here(0, 1000)?, 0xdead_beef);
    end.perform(job)?;
    let job = end.rdma()?.write(end.here(0, 1000)?, end.far(2000, 1000)?);
    end.perform(job)?;
    let job = end.rdma()?.read(end.far(10_000, 500)?, end.here(4000, 500)?);
    end.perform(job)?;
    let mut bytes = vec![0; 500];
    end.map.read_at(4000, &mut bytes)?;
    ensure!(bytes == pattern(2, 500), "other bytes were read");
    let job = end.rdma()?.write_imm(None, None, 5);
    end.perform(job)?;
    meet(role)
}

fn answers(role: &mut Role) -> Result<(), Stop> {
    let mut end = End::new(role)?;
    end.connect(role)?;
    end.map.write_at(10_000, &pattern(2, 500))?;
    let job = end.rdma()?.receive(end.here(0, 1024)?);
    end.submit(job)?;
    let job = end.rdma()?.receive(None);
    end.submit(job)?;
    meet(role)?;
    let came = end.ended()?;
    ensure_eq!(came.immediate, Some(0xdead_beef), "immediate");
    let came = came.local.ok_or_else(|| Stop::fail("the receive's buffer"))?;
    ensure!(came.to_vec()? == pattern(1, 1000), "other bytes arrived");
    ensure_eq!(end.ended()?.immediate, Some(5), "immediate of the write");
    let mut bytes = vec![0; 1000];
    end.map.read_at(2000, &mut bytes)?;
    ensure!(bytes == pattern(1, 1000), "other bytes were written");
    meet(role)
}

/// Has jobs of all types in flight when it is killed; in its last life it is a good peer.
fn dies(role: &mut Role) -> Result<(), Stop> {
    let mut end = End::new(role)?;
    end.connect(role)?;
    for _ in 0..8 {
        let job = end.rdma()?.receive(end.here(1000, 64)?);
        end.submit(job)?;
    }
    meet(role)?;
    // As many as its life's number, so that each life ends at another moment.
    for number in 0..role.life() % 24 {
        let job = match number % 3 {
            0 => end.rdma()?.write(end.here(0, 512)?, end.far(20_000, 512)?),
            1 => end.rdma()?.read(end.far(20_000, 512)?, end.here(0, 512)?),
            _ => end.rdma()?.send(end.here(0, 64)?),
        };
        end.submit(job)?;
    }
    role.point("at work")?;
    // Until the peer has finished.
    while role.message()? != b"end" {}
    Ok(())
}

/// Loses no job when its peer is killed, and none comes back twice; connects to the next life.
fn outlives(role: &mut Role) -> Result<(), Stop> {
    let mut end = End::new(role)?;
    let mut life = 1;
    loop {
        end.connect(role)?;
        let mut in_flight = std::collections::BTreeSet::new();
        let mut next = 0;
        for _ in 0..24 {
            let job = end.rdma()?.receive(end.here(2000, 64)?).user_data(next);
            end.submit(job)?;
            in_flight.insert(next);
            next += 1;
        }
        meet(role)?;
        let mut failed = 0;
        // It continues until its jobs fail, however long the peer takes to die; only jobs show the
        // death. After the last life it does not wait for a failure.
        while failed == 0 && (life <= lives() || next < 5_000) {
            while in_flight.len() < DEPTH as usize - 8 && end.rdma()?.state() != RdmaState::Error {
                let job = match next % 3 {
                    0 => end.rdma()?.write(end.here(0, 512)?, end.far(30_000, 512)?),
                    1 => end.rdma()?.read(end.far(30_000, 512)?, end.here(0, 512)?),
                    _ => end.rdma()?.write(end.here(0, 8)?, end.far(0, 8)?),
                };
                end.submit(job.user_data(next))?;
                in_flight.insert(next);
                next += 1;
            }
            let done = end.ended()?;
            ensure!(in_flight.remove(&done.user_data.0), "job {} ended twice", done.user_data.0);
            ensure!(done.local.is_some(), "job {} lost its buffer", done.user_data.0);
            failed += u32::from(done.result.is_err());
        }
        let last = failed == 0;
        if last {
            // The peer lives: it has been killed as often as planned.
            role.send(b"end")?;
        } else {
            ensure_eq!(end.rdma()?.state(), RdmaState::Error, "state after a failure");
            role.until_peer_is_gone()?;
        }
        let stopped = end.rdma.take().ok_or_else(|| Stop::fail("no instance"))?;
        let stopped = stopped.stop().map_err(|refused| refused.error)?;
        while !in_flight.is_empty() {
            let done = end.ended()?;
            ensure!(in_flight.remove(&done.user_data.0), "job {} ended twice", done.user_data.0);
            ensure!(done.local.is_some(), "job {} lost its buffer", done.user_data.0);
            let known = [ErrorKind::Shutdown, ErrorKind::TimeOut];
            let why = done.result.err().map(|error| error.kind());
            ensure!(why.is_none_or(|why| known.contains(&why)), "job {} ended as {why:?}", next);
        }
        ensure_eq!(end.workq.in_flight(), 0, "jobs in flight");
        ensure_eq!(end.inventory.num_free_elements(), 2 * DEPTH as usize, "buffers that are back");
        if last {
            ensure!(life > 1, "the peer was never killed");
            return Ok(());
        }
        end.rdma = Some(stopped.start().map_err(|refused| refused.error)?);
        role.restart_peer()?;
        life += 1;
    }
}
