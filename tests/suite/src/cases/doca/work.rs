//! Work queues: contexts, polling, and sleeping until a job is done.

use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, poll};
use verbless_doca::sha::{Algorithm, Sha};
use verbless_doca::{ErrorKind, Event, Retrieve, WorkQ};

use super::rig::{Rig, copied, event, refusal, refused_job, submit};
use crate::case::cases;
use crate::need::{LARGE_COPIES, cap};
use crate::{Lab, Stop, ensure, ensure_eq, pattern};

cases!(
    "doca_workq",
    "Work queues of DOCA: contexts of several kinds, polling, and sleeping until a job is done.":
    workq_serves_dma_and_sha_contexts[cap!(dma_mmo_qp)],
    abort_returns_each_job_once[cap!(dma_mmo_qp)],
    armed_workq_wakes_thread_on_completion[cap!(dma_mmo_qp), LARGE_COPIES],
    arm_after_unretrieved_job_signals_at_once[cap!(dma_mmo_qp)],
    arm_and_submit_in_any_order_lose_no_job[cap!(dma_mmo_qp)],
    event_handle_is_silent_without_completion,
    failed_file_wait_is_operating_system_error[cap!(dma_mmo_qp)],
);

fn workq_serves_dma_and_sha_contexts(lab: &Lab) -> Result<(), Stop> {
    let mut rig = Rig::new(lab)?;
    let dma = rig.dma()?;
    let sha = Sha::builder(&rig.dev).start()?;
    rig.workq.add(&sha)?;
    rig.fill(0, &pattern(1, 1000))?;
    let copy = dma.memcpy(rig.data(0, 1000)?, rig.room(4096, 1000)?);
    let hash = sha.hash(Algorithm::Sha1, rig.data(0, 1000)?, rig.room(8192, 20)?);
    submit(&mut rig.workq, copy.user_data(1))?;
    submit(&mut rig.workq, hash.user_data(2))?;
    let mut seen = [event(&mut rig.workq)?, event(&mut rig.workq)?].map(|it| it.user_data().0);
    seen.sort_unstable();
    ensure_eq!(seen, [1, 2], "user data");
    ensure!(rig.bytes(4096, 1000)? == pattern(1, 1000), "other bytes");
    rig.leave(&dma)?;
    rig.leave(&sha)?;
    dma.stop().map_err(|refused| refused.error)?.start()?;
    Ok(())
}

fn abort_returns_each_job_once(lab: &Lab) -> Result<(), Stop> {
    let mut rig = Rig::new(lab)?;
    let dma = rig.dma()?;
    for number in 0..16 {
        let job = dma.memcpy(rig.data(0, 4096)?, rig.room(4096, 4096)?);
        submit(&mut rig.workq, job.user_data(number))?;
    }
    rig.workq.abort(&dma)?;
    let mut seen = Vec::new();
    for event in rig.workq.drain() {
        match event {
            Ok(event) | Err(Retrieve::IoFailed(event)) => seen.push(event.user_data().0),
            Err(other) => return Err(other.into()),
        }
    }
    seen.sort_unstable();
    ensure_eq!(seen, (0..16).collect::<Vec<_>>(), "user data");
    let job = dma.memcpy(rig.data(0, 64)?, rig.room(4096, 64)?);
    ensure_eq!(refused_job(rig.workq.submit(job))?.0, ErrorKind::Shutdown, "a job after the abort");
    rig.leave(&dma)
}

/// A rig with an event-driven work queue.
fn sleeping(lab: &Lab) -> Result<Rig, Stop> {
    Rig::with(lab, WorkQ::builder(16).event_driven().build()?)
}

/// Whether the event file becomes readable within this time.
fn readable(workq: &WorkQ, milliseconds: u16) -> Result<bool, Stop> {
    let mut files = [PollFd::new(workq.event_handle(), PollFlags::POLLIN)];
    Ok(poll(&mut files, milliseconds)? == 1)
}

fn armed_workq_wakes_thread_on_completion(lab: &Lab) -> Result<(), Stop> {
    let mut rig = sleeping(lab)?;
    let dma = rig.dma()?;
    rig.fill(0, &pattern(3, 100_000))?;
    for round in 0..10 {
        rig.workq.arm()?;
        let job = dma.memcpy(rig.data(0, 100_000)?, rig.room(200_000, 100_000)?);
        submit(&mut rig.workq, job.user_data(round))?;
        ensure!(readable(&rig.workq, 10_000)?, "no wake-up in round {round}");
        rig.workq.clear()?;
        match rig.workq.progress_retrieve() {
            Ok(Event::Dma(done)) => ensure_eq!(done.user_data.0, round, "user data"),
            other => return Err(Stop::fail(format!("woken without an event: {other:?}"))),
        }
    }
    ensure!(rig.bytes(200_000, 100_000)? == pattern(3, 100_000), "other bytes");
    Ok(())
}

fn arm_after_unretrieved_job_signals_at_once(lab: &Lab) -> Result<(), Stop> {
    let mut rig = sleeping(lab)?;
    let dma = rig.dma()?;
    rig.fill(0, &[7; 8])?;
    let job = dma.memcpy(rig.data(0, 8)?, rig.room(4096, 8)?);
    submit(&mut rig.workq, job)?;
    let end = Instant::now() + Duration::from_secs(10);
    while rig.bytes(4096, 8)? != [7; 8] {
        ensure!(Instant::now() < end, "the bytes were not copied within 10 s");
    }
    // The bytes have arrived; the completion follows soon.
    rig.workq.arm()?;
    ensure!(readable(&rig.workq, 10_000)?, "no wake-up");
    rig.workq.clear()?;
    copied(&mut rig.workq)?;
    Ok(())
}

fn arm_and_submit_in_any_order_lose_no_job(lab: &Lab) -> Result<(), Stop> {
    const JOBS: u64 = 10_000;
    let mut rig = sleeping(lab)?;
    let dma = rig.dma()?;
    let mut spare = Vec::new();
    for slot in 0..16 {
        spare.push((rig.data(64 * slot, 8)?, rig.room(0x1_0000 + 64 * slot, 8)?));
    }
    let (mut submitted, mut seen) = (0, 0);
    while seen < JOBS {
        // Arms before and after the jobs of a round, in turns.
        if seen % 2 == 0 {
            rig.workq.arm()?;
        }
        for _ in 0..=submitted % 7 {
            let Some((from, mut to)) = spare.pop().filter(|_| submitted < JOBS) else { break };
            to.reset_data_len();
            submit(&mut rig.workq, dma.memcpy(from, to))?;
            submitted += 1;
        }
        if seen % 2 == 1 {
            rig.workq.arm()?;
        }
        ensure!(readable(&rig.workq, 10_000)?, "asleep with {seen} of {submitted} jobs seen");
        rig.workq.clear()?;
        loop {
            match rig.workq.progress_retrieve() {
                Ok(Event::Dma(done)) => {
                    seen += 1;
                    spare.push((done.source, done.destination));
                }
                Err(Retrieve::Again) => break,
                other => return Err(Stop::fail(format!("{other:?}"))),
            }
        }
    }
    ensure_eq!(seen, submitted, "jobs");
    Ok(())
}

fn event_handle_is_silent_without_completion(lab: &Lab) -> Result<(), Stop> {
    let mut rig = sleeping(lab)?;
    let sha = Sha::builder(&rig.dev).start()?;
    rig.workq.add(&sha)?;
    rig.workq.arm()?;
    ensure!(!readable(&rig.workq, 50)?, "an event without a completion");
    let hash = sha.hash(Algorithm::Sha1, rig.data(0, 8)?, rig.room(4096, 20)?);
    submit(&mut rig.workq, hash)?;
    ensure!(readable(&rig.workq, 10_000)?, "no wake-up for a hash, which software computes");
    event(&mut rig.workq)?;
    ensure_eq!(
        refusal(WorkQ::new(1)?.arm())?,
        ErrorKind::BadState,
        "arming a work queue in polling mode"
    );
    Ok(())
}

fn failed_file_wait_is_operating_system_error(lab: &Lab) -> Result<(), Stop> {
    let mut rig = Rig::with(lab, WorkQ::builder(1).event_driven().build()?)?;
    let dma = rig.dma()?;
    let broken = || std::future::ready(Err(std::io::Error::other("broken")));
    let failed = {
        let mut next = std::pin::pin!(rig.workq.next(broken));
        next.as_mut().poll(&mut std::task::Context::from_waker(std::task::Waker::noop()))
    };
    let std::task::Poll::Ready(failed) = failed else {
        return Err(Stop::fail("`next` is pending although its wait for the file failed"));
    };
    let kind = failed.map_err(|why| why.kind()).map(drop);
    ensure_eq!(kind, Err(ErrorKind::OperatingSystem), "kind of the failure");
    rig.leave(&dma)
}
