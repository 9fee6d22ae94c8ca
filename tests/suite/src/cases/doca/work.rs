//! Work queues: contexts, polling, and sleeping until a job is done.

use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, poll};
use verbless_doca::dma::Dma;
use verbless_doca::sha::{Algorithm, Sha};
use verbless_doca::{ErrorKind, Event, Retrieve, WorkQ};

use super::bench::{Bench, copied, event, refusal, refused_job, submit};
use crate::case::cases;
use crate::need::{LARGE_COPIES, cap};
use crate::{Lab, Stop, ensure, ensure_eq, pattern};

cases!(
    "doca_workq",
    "Work queues of DOCA: contexts of several kinds, polling, and sleeping until a job is done.":
    workq_serves_dma_and_sha_contexts[cap!(dma_mmo_qp)],
    full_workq_returns_memcpy_with_again[cap!(dma_mmo_qp)],
    workq_returns_job_of_unadded_context[cap!(dma_mmo_qp)],
    context_on_workq_rejects_stop[cap!(dma_mmo_qp)],
    workq_with_jobs_in_flight_rejects_remove[cap!(dma_mmo_qp)],
    abort_returns_each_job_once[cap!(dma_mmo_qp)],
    armed_workq_wakes_thread_on_completion[cap!(dma_mmo_qp), LARGE_COPIES],
    arm_after_unretrieved_job_signals_at_once[cap!(dma_mmo_qp)],
    arm_and_submit_in_any_order_lose_no_job[cap!(dma_mmo_qp)],
    depth_and_mode_are_fixed_once_context_is_added,
    event_handle_is_silent_without_completion,
    failed_file_wait_is_operating_system_error[cap!(dma_mmo_qp)],
);

fn workq_serves_dma_and_sha_contexts(lab: &Lab) -> Result<(), Stop> {
    let mut bench = Bench::new(lab)?;
    let dma = bench.dma()?;
    let sha = Sha::builder(&bench.dev).start()?;
    bench.workq.add(&sha)?;
    bench.fill(0, &pattern(1, 1000))?;
    let copy = dma.memcpy(bench.data(0, 1000)?, bench.room(4096, 1000)?);
    let hash = sha.hash(Algorithm::Sha1, bench.data(0, 1000)?, bench.room(8192, 20)?);
    submit(&mut bench.workq, copy.user_data(1))?;
    submit(&mut bench.workq, hash.user_data(2))?;
    let mut seen = [event(&mut bench.workq)?, event(&mut bench.workq)?].map(|it| it.user_data().0);
    seen.sort_unstable();
    ensure_eq!(seen, [1, 2], "user data");
    ensure!(bench.bytes(4096, 1000)? == pattern(1, 1000), "other bytes");
    bench.leave(&dma)?;
    bench.leave(&sha)?;
    dma.stop().map_err(|refused| refused.error)?.start()?;
    Ok(())
}

fn full_workq_returns_memcpy_with_again(lab: &Lab) -> Result<(), Stop> {
    let mut bench = Bench::with(lab, WorkQ::new(2)?)?;
    let dma = bench.dma()?;
    for _ in 0..2 {
        let job = dma.memcpy(bench.data(0, 64)?, bench.room(4096, 64)?);
        submit(&mut bench.workq, job)?;
    }
    let job = dma.memcpy(bench.data(64, 32)?, bench.room(8192, 32)?).user_data(9);
    let (kind, job) = refused_job(bench.workq.submit(job))?;
    ensure_eq!(kind, ErrorKind::Again, "kind of the refusal");
    copied(&mut bench.workq)?;
    submit(&mut bench.workq, job)?;
    copied(&mut bench.workq)?;
    ensure_eq!(copied(&mut bench.workq)?.user_data.0, 9, "user data");
    ensure!(matches!(bench.workq.progress_retrieve(), Err(Retrieve::Again)), "one more event");
    Ok(())
}

fn workq_returns_job_of_unadded_context(lab: &Lab) -> Result<(), Stop> {
    let mut bench = Bench::new(lab)?;
    let dma = Dma::builder(&bench.dev).start()?;
    let job = dma.memcpy(bench.data(0, 64)?, bench.room(4096, 64)?);
    let (kind, job) = refused_job(bench.workq.submit(job))?;
    ensure_eq!(kind, ErrorKind::BadState, "kind of the refusal");
    bench.workq.add(&dma)?;
    submit(&mut bench.workq, job)?;
    copied(&mut bench.workq)?;
    Ok(())
}

fn context_on_workq_rejects_stop(lab: &Lab) -> Result<(), Stop> {
    let mut bench = Bench::new(lab)?;
    let dma = bench.dma()?;
    let dma = match dma.stop() {
        Ok(_) => return Err(Stop::fail("it stopped")),
        Err(refused) => {
            ensure_eq!(refused.error.kind(), ErrorKind::InUse, "kind of the refusal");
            refused.given
        }
    };
    bench.leave(&dma)?;
    dma.stop().map_err(|refused| refused.error)?.start()?;
    Ok(())
}

fn workq_with_jobs_in_flight_rejects_remove(lab: &Lab) -> Result<(), Stop> {
    let mut bench = Bench::new(lab)?;
    let dma = bench.dma()?;
    let job = dma.memcpy(bench.data(0, 64)?, bench.room(4096, 64)?);
    submit(&mut bench.workq, job)?;
    ensure_eq!(refusal(bench.workq.remove(&dma))?, ErrorKind::InUse, "kind of the refusal");
    copied(&mut bench.workq)?;
    bench.leave(&dma)
}

fn abort_returns_each_job_once(lab: &Lab) -> Result<(), Stop> {
    let mut bench = Bench::new(lab)?;
    let dma = bench.dma()?;
    for number in 0..16 {
        let job = dma.memcpy(bench.data(0, 4096)?, bench.room(4096, 4096)?);
        submit(&mut bench.workq, job.user_data(number))?;
    }
    bench.workq.abort(&dma)?;
    let mut seen = Vec::new();
    for event in bench.workq.drain() {
        match event {
            Ok(event) | Err(Retrieve::IoFailed(event)) => seen.push(event.user_data().0),
            Err(other) => return Err(other.into()),
        }
    }
    seen.sort_unstable();
    ensure_eq!(seen, (0..16).collect::<Vec<_>>(), "user data");
    let job = dma.memcpy(bench.data(0, 64)?, bench.room(4096, 64)?);
    ensure_eq!(refused_job(bench.workq.submit(job))?.0, ErrorKind::Shutdown, "a job after that");
    bench.leave(&dma)
}

/// A work queue that sleeps.
fn sleeping(lab: &Lab) -> Result<Bench, Stop> {
    Bench::with(lab, WorkQ::builder(16).event_driven().build()?)
}

/// Whether the event file becomes readable within this time.
fn readable(workq: &WorkQ, milliseconds: u16) -> Result<bool, Stop> {
    let mut files = [PollFd::new(workq.event_handle(), PollFlags::POLLIN)];
    Ok(poll(&mut files, milliseconds)? == 1)
}

fn armed_workq_wakes_thread_on_completion(lab: &Lab) -> Result<(), Stop> {
    let mut bench = sleeping(lab)?;
    let dma = bench.dma()?;
    bench.fill(0, &pattern(3, 100_000))?;
    for round in 0..10 {
        bench.workq.arm()?;
        let job = dma.memcpy(bench.data(0, 100_000)?, bench.room(200_000, 100_000)?);
        submit(&mut bench.workq, job.user_data(round))?;
        ensure!(readable(&bench.workq, 10_000)?, "no wake-up in round {round}");
        bench.workq.clear()?;
        match bench.workq.progress_retrieve() {
            Ok(Event::Dma(done)) => ensure_eq!(done.user_data.0, round, "user data"),
            other => return Err(Stop::fail(format!("woken for nothing: {other:?}"))),
        }
    }
    ensure!(bench.bytes(200_000, 100_000)? == pattern(3, 100_000), "other bytes");
    Ok(())
}

fn arm_after_unretrieved_job_signals_at_once(lab: &Lab) -> Result<(), Stop> {
    let mut bench = sleeping(lab)?;
    let dma = bench.dma()?;
    bench.fill(0, &[7; 8])?;
    let job = dma.memcpy(bench.data(0, 8)?, bench.room(4096, 8)?);
    submit(&mut bench.workq, job)?;
    let end = Instant::now() + Duration::from_secs(10);
    while bench.bytes(4096, 8)? != [7; 8] {
        ensure!(Instant::now() < end, "nothing was copied");
    }
    // The bytes have arrived; the completion follows soon.
    bench.workq.arm()?;
    ensure!(readable(&bench.workq, 10_000)?, "no wake-up");
    bench.workq.clear()?;
    copied(&mut bench.workq)?;
    Ok(())
}

fn arm_and_submit_in_any_order_lose_no_job(lab: &Lab) -> Result<(), Stop> {
    const JOBS: u64 = 10_000;
    let mut bench = sleeping(lab)?;
    let dma = bench.dma()?;
    let mut spare = Vec::new();
    for slot in 0..16 {
        spare.push((bench.data(64 * slot, 8)?, bench.room(0x1_0000 + 64 * slot, 8)?));
    }
    let (mut submitted, mut seen) = (0, 0);
    while seen < JOBS {
        // Arms before and after the jobs of a round, in turns.
        if seen % 2 == 0 {
            bench.workq.arm()?;
        }
        for _ in 0..=submitted % 7 {
            let Some((from, mut to)) = spare.pop().filter(|_| submitted < JOBS) else { break };
            to.reset_data_len();
            submit(&mut bench.workq, dma.memcpy(from, to))?;
            submitted += 1;
        }
        if seen % 2 == 1 {
            bench.workq.arm()?;
        }
        ensure!(readable(&bench.workq, 10_000)?, "asleep with {seen} of {submitted} jobs seen");
        bench.workq.clear()?;
        loop {
            match bench.workq.progress_retrieve() {
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

fn depth_and_mode_are_fixed_once_context_is_added(lab: &Lab) -> Result<(), Stop> {
    let mut bench = Bench::with(lab, WorkQ::new(4)?)?;
    bench.workq.set_depth(8)?;
    bench.workq.set_event_driven(true)?;
    ensure_eq!((bench.workq.depth(), bench.workq.is_event_driven()), (8, true), "as it was set");
    let sha = Sha::builder(&bench.dev).start()?;
    bench.workq.add(&sha)?;
    ensure_eq!(refusal(bench.workq.set_depth(16))?, ErrorKind::BadState, "another depth");
    let kind = refusal(bench.workq.set_event_driven(false))?;
    ensure_eq!(kind, ErrorKind::BadState, "another mode");
    bench.leave(&sha)?;
    bench.workq.set_depth(16)?;
    Ok(())
}

fn event_handle_is_silent_without_completion(lab: &Lab) -> Result<(), Stop> {
    let mut bench = sleeping(lab)?;
    let sha = Sha::builder(&bench.dev).start()?;
    bench.workq.add(&sha)?;
    bench.workq.arm()?;
    ensure!(!readable(&bench.workq, 50)?, "there is an event of nothing");
    let hash = sha.hash(Algorithm::Sha1, bench.data(0, 8)?, bench.room(4096, 20)?);
    submit(&mut bench.workq, hash)?;
    ensure!(readable(&bench.workq, 10_000)?, "software's work makes no wake-up");
    event(&mut bench.workq)?;
    ensure_eq!(
        refusal(WorkQ::new(1)?.arm())?,
        ErrorKind::BadState,
        "arming a work queue in polling mode"
    );
    Ok(())
}

fn failed_file_wait_is_operating_system_error(lab: &Lab) -> Result<(), Stop> {
    let mut bench = Bench::with(lab, WorkQ::builder(1).event_driven().build()?)?;
    let dma = bench.dma()?;
    let broken = || std::future::ready(Err(std::io::Error::other("broken")));
    let failed = {
        let mut next = std::pin::pin!(bench.workq.next(broken));
        next.as_mut().poll(&mut std::task::Context::from_waker(std::task::Waker::noop()))
    };
    let std::task::Poll::Ready(failed) = failed else {
        return Err(Stop::fail("it waits for a file that cannot be waited for"));
    };
    let kind = failed.map_err(|why| why.kind()).map(drop);
    ensure_eq!(kind, Err(ErrorKind::OperatingSystem), "kind of the failure");
    bench.leave(&dma)
}
