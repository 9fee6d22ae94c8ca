//! DOCA exports: a host's program exports memory, which a program on its DPU copies, or a sync
//! event, which the DPU's program uses.

use verbless_doca::dma::Dma;
use verbless_doca::sync_event::{Location, SyncEvent, SyncEventCtx, SyncEventJob};
use verbless_doca::{
    AccessFlags, Buf, Dev, ErrorKind, Event, Inventory, Memory, Mmap, Retrieve, WorkQ,
};

use crate::roles::case::{By, Case, Side};
use crate::roles::channel::PATIENCE;
use crate::roles::role::Role;
use crate::{Need, Stop, ensure, ensure_eq, pattern};

pub(super) fn cases() -> Vec<Case> {
    let dpu = |name: &str, a, b| {
        let copies = Need::Cap("hca_cap.dma_mmo_qp", |caps| caps.general.dma_mmo_qp());
        Case::new(name, a, b).needs(Need::Sides).needs(copies)
    };
    let mut cases =
        vec![dpu("dpu_program_copies_from_and_to_host_program", lends, copies_out_and_in)];
    for (by, how) in [(By::Itself, "kills_itself"), (By::Director, "is_killed")] {
        let name = format!("dpu_cannot_reach_memory_of_exporter_that_{how}");
        cases.push(dpu(&name, lends, finds_nothing).kill(Side::A, "exported", by));
        let name = format!("dpu_copies_end_once_when_host_{how}");
        cases.push(dpu(&name, lends, copies_on).kill(Side::A, "copied from", by));
    }
    let sync = |name: &str, b| {
        let waits = Need::Cap("hca_cap.wait_on_data", |caps| caps.general.wait_on_data());
        Case::new(name, signals, b).needs(Need::Sides).needs(waits)
    };
    let name = "host_and_dpu_programs_share_one_sync_event";
    cases.push(sync(name, takes_part));
    for (by, how) in [(By::Itself, "kills_itself"), (By::Director, "is_killed")] {
        let name = format!("dpu_jobs_fail_once_when_event_owner_{how}");
        cases.push(sync(&name, is_left).kill(Side::A, "waited for", by));
    }
    cases
}

/// Bytes of the exported memory.
const LENGTH: usize = 1 << 20;
/// Concurrent copies.
const DEPTH: u32 = 16;

/// Exports memory and waits until the other role has finished.
fn lends(role: &mut Role) -> Result<(), Stop> {
    let dev = role.dev()?;
    let memory = Memory::allocate(LENGTH)?;
    let map = Mmap::builder().memrange(memory).permissions(AccessFlags::DPU_READ_WRITE);
    let map = map.add_dev(&dev).start()?;
    map.write_at(0, &pattern(1, LENGTH))?;
    role.send(map.export_dpu(&dev)?.as_bytes())?;
    ensure_eq!(role.message()?, b"imported", "message");
    role.point("exported")?;
    role.send(b"go on")?;
    ensure_eq!(role.message()?, b"copying", "message");
    role.point("copied from")?;
    role.send(b"still there")?;
    ensure_eq!(role.message()?, b"copied", "message");
    let mut bytes = vec![0; LENGTH];
    map.read_at(0, &mut bytes)?;
    ensure!(bytes == pattern(2, LENGTH), "other bytes came in");
    role.send(b"end")
}

/// The DPU's side of the export.
struct Borrower {
    dev: Dev,
    descriptor: Vec<u8>,
    far: Mmap,
    near: Mmap,
    inventory: Inventory,
    dma: Dma,
    workq: WorkQ,
}

impl Borrower {
    fn new(role: &mut Role) -> Result<Self, Stop> {
        let dev = role.dev()?;
        let descriptor = role.message()?;
        let far = Mmap::create_from_export(&descriptor, &dev)?;
        let memory = Memory::allocate(LENGTH)?;
        let near = Mmap::builder().memrange(memory).permissions(AccessFlags::LOCAL_READ_WRITE);
        let near = near.add_dev(&dev).start()?;
        let inventory = Inventory::builder(2 * DEPTH as usize).start()?;
        let dma = Dma::builder(&dev).start()?;
        let mut workq = WorkQ::new(DEPTH)?;
        workq.add(&dma)?;
        role.send(b"imported")?;
        Ok(Self { dev, descriptor, far, near, inventory, dma, workq })
    }

    /// A buffer with all bytes of a map, or with room for them.
    fn buf(&self, map: &Mmap, full: bool) -> Result<Buf, Stop> {
        let (at, length) = (map.address(), LENGTH as u64);
        Ok(match full {
            true => self.inventory.buf_by_data(map, at, length)?,
            false => self.inventory.buf_by_addr(map, at, length)?,
        })
    }

    fn submit(&mut self, source: Buf, destination: Buf, number: u64) -> Result<(), Stop> {
        let job = self.dma.memcpy(source, destination).user_data(number);
        self.workq.submit(job).map_err(|refused| refused.error.into())
    }

    /// A finished copy's number and its error, if it failed.
    fn ended(&mut self) -> Result<(u64, Option<ErrorKind>), Stop> {
        match self.workq.retrieve_within(Some(PATIENCE)) {
            Ok(Some(Event::Dma(done))) => Ok((done.user_data.0, None)),
            Err(Retrieve::IoFailed(event)) => {
                let why = event.result().err().map(|error| error.kind());
                Ok((event.user_data().0, why))
            }
            other => Err(Stop::fail(format!("{other:?}"))),
        }
    }

    /// Copies within the DPU's own memory succeed.
    fn works_alone(&mut self) -> Result<(), Stop> {
        self.near.write_at(0, &pattern(5, 64))?;
        let at = self.near.address();
        let source = self.inventory.buf_by_data(&self.near, at, 64)?;
        let destination = self.inventory.buf_by_addr(&self.near, at + 64, 64)?;
        self.submit(source, destination, 99)?;
        ensure_eq!(self.ended()?, (99, None), "a copy of its own");
        let mut bytes = [0; 64];
        self.near.read_at(64, &mut bytes)?;
        ensure!(bytes[..] == pattern(5, 64), "other bytes");
        Ok(())
    }
}

fn copies_out_and_in(role: &mut Role) -> Result<(), Stop> {
    let mut dpu = Borrower::new(role)?;
    ensure_eq!(role.message()?, b"go on", "message");
    role.send(b"copying")?;
    ensure_eq!(role.message()?, b"still there", "message");
    let (from, to) = (dpu.buf(&dpu.far, true)?, dpu.buf(&dpu.near, false)?);
    dpu.submit(from, to, 1)?;
    ensure_eq!(dpu.ended()?, (1, None), "the copy out");
    let mut bytes = vec![0; LENGTH];
    dpu.near.read_at(0, &mut bytes)?;
    ensure!(bytes == pattern(1, LENGTH), "other bytes came out");
    dpu.near.write_at(0, &pattern(2, LENGTH))?;
    let (from, to) = (dpu.buf(&dpu.near, true)?, dpu.buf(&dpu.far, false)?);
    dpu.submit(from, to, 2)?;
    ensure_eq!(dpu.ended()?, (2, None), "the copy in");
    role.send(b"copied")?;
    ensure_eq!(role.message()?, b"end", "message");
    Ok(())
}

/// The host's program is dead: neither the old import nor a new one reaches its memory.
fn finds_nothing(role: &mut Role) -> Result<(), Stop> {
    let mut dpu = Borrower::new(role)?;
    role.until_peer_is_gone()?;
    let (from, to) = (dpu.buf(&dpu.far, true)?, dpu.buf(&dpu.near, false)?);
    dpu.submit(from, to, 1)?;
    ensure_eq!(dpu.ended()?, (1, Some(ErrorKind::NotPermitted)), "a copy from the dead");
    let again = Mmap::create_from_export(&dpu.descriptor, &dpu.dev).map(|_| ());
    let kind = again.map_err(|error| error.kind());
    ensure_eq!(kind, Err(ErrorKind::NotPermitted), "another import");
    dpu.works_alone()
}

/// Copies from memory while its owner dies: each job comes back once, and a failed job has an
/// error.
fn copies_on(role: &mut Role) -> Result<(), Stop> {
    let mut dpu = Borrower::new(role)?;
    ensure_eq!(role.message()?, b"go on", "message");
    let mut failed = 0;
    let (mut next, mut announced) = (0, false);
    let mut in_flight = Vec::new();
    while failed == 0 || !in_flight.is_empty() {
        while failed == 0 && in_flight.len() < DEPTH as usize {
            let (from, to) = (dpu.buf(&dpu.far, true)?, dpu.buf(&dpu.near, false)?);
            dpu.submit(from, to, next)?;
            in_flight.push(next);
            next += 1;
        }
        let (number, why) = dpu.ended()?;
        let at = in_flight.iter().position(|&other| other == number);
        let at = at.ok_or_else(|| Stop::fail(format!("copy {number} ended twice")))?;
        in_flight.remove(at);
        if let Some(why) = why {
            ensure_eq!(why, ErrorKind::NotPermitted, "why a copy failed");
            failed += 1;
        }
        if !announced && next > 2 * u64::from(DEPTH) {
            role.send(b"copying")?;
            announced = true;
        }
        ensure!(next < 1_000_000, "the host lives for ever");
    }
    role.until_peer_is_gone()?;
    dpu.works_alone()
}

/// Turns of each side; each turn adds 1.
const TURNS: u64 = 50;

/// Makes a sync event, counts in turns with the DPU, and signals the value that the DPU waits for.
fn signals(role: &mut Role) -> Result<(), Stop> {
    let dev = role.dev()?;
    let event = SyncEvent::builder(&dev).publisher_add_location(Location::Cpu)?;
    let event = event.subscriber_add_location(Location::Cpu)?.start()?;
    role.send(event.export_to_dpu()?.as_bytes())?;
    for turn in 0..TURNS {
        ensure_eq!(event.update_add(1)?, 2 * turn, "before the host's add");
        event.wait_gt_yield(2 * turn + 1)?;
    }
    ensure_eq!(role.message()?, b"waiting", "message");
    role.point("waited for")?;
    event.update_set(200)?;
    ensure_eq!(role.message()?, b"went on", "message");
    event.stop().destroy();
    role.send(b"destroyed")
}

/// The DPU's handle, after its turns, with jobs in flight.
struct Waiter {
    dev: Dev,
    event: SyncEvent,
    context: SyncEventCtx,
    workq: WorkQ,
    submitted: u64,
}

impl Waiter {
    fn new(role: &mut Role) -> Result<Self, Stop> {
        let dev = role.dev()?;
        let descriptor = role.message()?;
        let event = SyncEvent::create_from_export(&descriptor, &dev)?.start()?;
        let context = SyncEvent::create_from_export(&descriptor, &dev)?.as_ctx().start()?;
        let mut workq = WorkQ::new(DEPTH)?;
        workq.add(&context)?;
        for turn in 0..TURNS {
            event.wait_gt_yield(2 * turn)?;
            ensure_eq!(event.update_add(1)?, 2 * turn + 1, "before the DPU's add");
        }
        let mut this = Self { dev, event, context, workq, submitted: 0 };
        for threshold in [150, 120, 199, 120] {
            this.submit(this.context.wait_gt(threshold))?;
        }
        role.send(b"waiting")?;
        Ok(this)
    }

    /// Submits a job; its number is its user data.
    fn submit(&mut self, job: SyncEventJob) -> Result<(), Stop> {
        let job = job.user_data(self.submitted);
        self.submitted += 1;
        self.workq.submit(job).map_err(|refused| refused.error.into())
    }

    /// All jobs succeed, once each.
    fn all_end(&mut self) -> Result<(), Stop> {
        self.each_ends(|why| why.is_none())
    }

    /// All jobs fail, once each: their word is gone.
    ///
    /// A program's memory is freed before the keys to it, so the device may find the key but no
    /// memory.
    fn all_fail(&mut self) -> Result<(), Stop> {
        let why = [ErrorKind::NotPermitted, ErrorKind::IoFailed];
        self.each_ends(|end| end.is_some_and(|end| why.contains(&end)))
    }

    /// All jobs end, once each, and as expected.
    fn each_ends(&mut self, expected: impl Fn(Option<ErrorKind>) -> bool) -> Result<(), Stop> {
        let mut seen = Vec::new();
        for _ in 0..self.submitted {
            let event = match self.workq.retrieve_within(Some(PATIENCE)) {
                Ok(Some(event)) | Err(Retrieve::IoFailed(event)) => event,
                other => return Err(Stop::fail(format!("{seen:?} ended, then {other:?}"))),
            };
            let why = event.result().err().map(|error| error.kind());
            ensure!(expected(why), "job {} ended as {why:?}", event.user_data().0);
            seen.push(event.user_data().0);
        }
        seen.sort_unstable();
        ensure_eq!(seen, (0..self.submitted).collect::<Vec<_>>(), "jobs that ended");
        ensure_eq!(self.workq.in_flight(), 0, "jobs in flight");
        Ok(())
    }
}

fn takes_part(role: &mut Role) -> Result<(), Stop> {
    let mut dpu = Waiter::new(role)?;
    dpu.all_end()?;
    ensure_eq!(dpu.event.get()?, 200, "value");
    role.send(b"went on")?;
    ensure_eq!(role.message()?, b"destroyed", "message");
    ensure_eq!(
        dpu.event.get().map_err(|error| error.kind()),
        Err(ErrorKind::NotPermitted),
        "a get of a destroyed event"
    );
    Ok(())
}

/// The host is gone with its event, which has jobs in flight.
fn is_left(role: &mut Role) -> Result<(), Stop> {
    let mut dpu = Waiter::new(role)?;
    role.until_peer_is_gone()?;
    for _ in 0..3 {
        dpu.submit(dpu.context.add(1))?;
        dpu.submit(dpu.context.get())?;
        dpu.submit(dpu.context.set(1))?;
    }
    dpu.all_fail()?;
    for waited in [dpu.event.get().map(drop), dpu.event.wait_gt(250)] {
        let why = waited.map_err(|error| error.kind());
        ensure_eq!(why, Err(ErrorKind::NotPermitted), "an operation that blocks");
    }
    // The DPU's own event continues to work.
    let own = SyncEvent::builder(&dpu.dev).publisher_add_location(Location::Cpu)?;
    let own = own.subscriber_add_location(Location::Cpu)?.as_ctx().start()?;
    dpu.workq.remove(&dpu.context)?;
    dpu.workq.add(&own)?;
    dpu.submitted = 0;
    dpu.submit(own.wait_gt(4))?;
    dpu.submit(own.set(5))?;
    dpu.all_end()
}
