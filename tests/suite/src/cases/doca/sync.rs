//! Sync events: operations by the CPU and by jobs of the device.

use std::sync::atomic::{AtomicU64, Ordering};

use verbless_doca::sync_event::{Location, SyncEvent, SyncEventBuilder, SyncEventCtx};
use verbless_doca::{Dev, ErrorKind, Event, JobType, Memory, Retrieve, WorkQ};

use super::rig::{Rig, event, failed_job, open, refusal, submit};
use crate::case::cases;
use crate::need::{ATOMICS, SHARES_KEYS, cap};
use crate::{Lab, Need, Stop, ensure, ensure_eq};

cases!(
    "doca_sync",
    "Sync events of DOCA: counters that a host and its DPU set, add to and wait for.":
    cpu_gets_sets_adds_and_waits,
    jobs_get_and_set,
    add_job_returns_old_value[ATOMICS],
    wait_job_ends_once_value_exceeds_threshold[cap!(wait_on_data)],
    wait_jobs_end_in_threshold_order[cap!(wait_on_data)],
    event_counts_in_user_memory,
    host_and_dpu_share_one_event[Need::Sides, SHARES_KEYS, ATOMICS],
    wait_job_sees_set_of_other_side[Need::Sides, SHARES_KEYS, cap!(wait_on_data)],
    dpu_import_fails_once_event_is_destroyed[Need::Sides, SHARES_KEYS],
);

fn configured(dev: &Dev) -> Result<SyncEventBuilder, Stop> {
    let builder = SyncEvent::builder(dev).publisher_add_location(Location::Cpu)?;
    Ok(builder.subscriber_add_location(Location::Cpu)?)
}

/// A rig, and a context with its work queue attached.
fn context(lab: &Lab) -> Result<(Rig, SyncEventCtx), Stop> {
    let mut rig = Rig::new(lab)?;
    let context = configured(&rig.dev)?.as_ctx().start()?;
    rig.workq.add(&context)?;
    Ok((rig, context))
}

/// The next event: its job's type and value.
fn done(workq: &mut WorkQ) -> Result<(JobType, Option<u64>), Stop> {
    match event(workq)? {
        Event::SyncEvent(done) => Ok((done.job_type, done.value)),
        other => Err(Stop::fail(format!("not of a sync event: {other:?}"))),
    }
}

/// The value that a get returns.
fn got(workq: &mut WorkQ, context: &SyncEventCtx) -> Result<u64, Stop> {
    submit(workq, context.get())?;
    match done(workq)? {
        (JobType::SyncEventGet, Some(value)) => Ok(value),
        other => Err(Stop::fail(format!("a get ended as {other:?}"))),
    }
}

/// Sets the value, and waits until it is set.
fn set(workq: &mut WorkQ, context: &SyncEventCtx, value: u64) -> Result<(), Stop> {
    submit(workq, context.set(value))?;
    ensure_eq!(done(workq)?, (JobType::SyncEventSet, None), "a set");
    Ok(())
}

/// The device does other jobs meanwhile; no wait may end.
fn ensure_no_wait_ends(workq: &mut WorkQ, context: &SyncEventCtx) -> Result<(), Stop> {
    for _ in 0..20 {
        got(workq, context)?;
    }
    ensure!(matches!(workq.progress_retrieve(), Err(Retrieve::Again)), "a wait ended early");
    Ok(())
}

fn cpu_gets_sets_adds_and_waits(lab: &Lab) -> Result<(), Stop> {
    let event = configured(&open(lab, lab.info())?)?.start()?;
    ensure_eq!(event.get()?, 0, "value at first");
    event.update_set(u64::MAX)?;
    event.wait_gt(u64::MAX - 1)?;
    ensure_eq!(event.update_add(3)?, u64::MAX, "value before");
    event.wait_gt_yield(1)?;
    ensure_eq!(event.get()?, 2, "value");
    event.stop().destroy();
    Ok(())
}

fn jobs_get_and_set(lab: &Lab) -> Result<(), Stop> {
    let (mut rig, context) = context(lab)?;
    ensure_eq!(got(&mut rig.workq, &context)?, 0, "value at first");
    for value in [1, 0x0123_4567_89ab_cdef, u64::MAX] {
        set(&mut rig.workq, &context, value)?;
        ensure_eq!(got(&mut rig.workq, &context)?, value, "value");
    }
    Ok(())
}

fn add_job_returns_old_value(lab: &Lab) -> Result<(), Stop> {
    let (mut rig, context) = context(lab)?;
    set(&mut rig.workq, &context, u64::MAX - 1)?;
    for (increment, before) in [(1, u64::MAX - 1), (1, u64::MAX), (40, 0), (0, 40)] {
        submit(&mut rig.workq, context.add(increment))?;
        let expected = (JobType::SyncEventAdd, Some(before));
        ensure_eq!(done(&mut rig.workq)?, expected, "an add");
    }
    // Each of many concurrent jobs counts.
    for _ in 0..16 {
        submit(&mut rig.workq, context.add(10))?;
    }
    for turn in 0..16 {
        let expected = (JobType::SyncEventAdd, Some(40 + 10 * turn));
        ensure_eq!(done(&mut rig.workq)?, expected, "an add among many");
    }
    ensure_eq!(got(&mut rig.workq, &context)?, 200, "value");
    Ok(())
}

fn wait_job_ends_once_value_exceeds_threshold(lab: &Lab) -> Result<(), Stop> {
    let (mut rig, context) = context(lab)?;
    for threshold in [0, 1, 100, 253, 254] {
        set(&mut rig.workq, &context, threshold)?;
        submit(&mut rig.workq, context.wait_gt(threshold))?;
        ensure_no_wait_ends(&mut rig.workq, &context)?;
        submit(&mut rig.workq, context.set(threshold + 1))?;
        let mut ended = [done(&mut rig.workq)?.0, done(&mut rig.workq)?.0];
        ended.sort_by_key(|&job| job == JobType::SyncEventWait);
        ensure_eq!(ended, [JobType::SyncEventSet, JobType::SyncEventWait], "jobs");
        // The condition is already true.
        submit(&mut rig.workq, context.wait_gt(threshold))?;
        ensure_eq!(done(&mut rig.workq)?, (JobType::SyncEventWait, None), "a second wait");
    }
    Ok(())
}

fn wait_jobs_end_in_threshold_order(lab: &Lab) -> Result<(), Stop> {
    let (mut rig, context) = context(lab)?;
    for threshold in [7, 3, 5] {
        submit(&mut rig.workq, context.wait_gt(threshold).user_data(threshold))?;
    }
    for threshold in [3, 5, 7] {
        ensure_no_wait_ends(&mut rig.workq, &context)?;
        submit(&mut rig.workq, context.set(threshold + 1).user_data(0))?;
        let both = [event(&mut rig.workq)?, event(&mut rig.workq)?];
        let mut ended = both.map(|it| it.user_data().0);
        ended.sort_unstable();
        ensure_eq!(ended, [0, threshold], "jobs that ended");
    }
    Ok(())
}

fn event_counts_in_user_memory(lab: &Lab) -> Result<(), Stop> {
    let dev = open(lab, lab.info())?;
    let memory = Memory::allocate(64)?;
    // SAFETY: the CPU accesses the memory only by these words and the events.
    #[allow(unsafe_code, reason = "words take a promise")]
    let words: &[AtomicU64] = unsafe { memory.words() };
    words[2].store(5, Ordering::Relaxed);
    let part = |length| -> Result<_, Stop> {
        let (builder, part) = (configured(&dev)?, memory.slice(16, length)?);
        // SAFETY: as above.
        #[allow(unsafe_code, reason = "the event takes a promise")]
        Ok(unsafe { builder.memory(part) })
    };
    let too_long = part(16)?.start();
    ensure_eq!(refusal(too_long)?, ErrorKind::InvalidValue, "16 bytes");
    let context = part(8)?.as_ctx().start()?;
    let mut workq = WorkQ::new(1)?;
    workq.add(&context)?;
    ensure_eq!(got(&mut workq, &context)?, 5, "the value from before");
    set(&mut workq, &context, 0x0102_0304_0506_0708)?;
    let all: Vec<_> = words.iter().map(|word| word.load(Ordering::Relaxed)).collect();
    ensure_eq!(all, [0, 0, 0x0102_0304_0506_0708, 0, 0, 0, 0, 0], "words");
    Ok(())
}

fn host_and_dpu_share_one_event(lab: &Lab) -> Result<(), Stop> {
    const TURNS: u64 = 50;
    let (host, dpu) = (open(lab, lab.info())?, open(lab, lab.other_info())?);
    let event = configured(&host)?.start()?;
    let descriptor = event.export_to_dpu()?;
    let there = SyncEvent::create_from_export(descriptor.as_bytes(), &dpu)?.start()?;
    for turn in 0..TURNS {
        ensure_eq!(event.update_add(1)?, 2 * turn, "before the host's add");
        there.wait_gt(2 * turn)?;
        ensure_eq!(there.update_add(1)?, 2 * turn + 1, "before the DPU's add");
        event.wait_gt_yield(2 * turn + 1)?;
    }
    there.update_set(1 << 60)?;
    ensure_eq!((event.get()?, there.get()?), (1 << 60, 1 << 60), "values");
    Ok(())
}

fn wait_job_sees_set_of_other_side(lab: &Lab) -> Result<(), Stop> {
    let (mut rig, here) = context(lab)?;
    let dpu = open(lab, lab.other_info())?;
    let descriptor = here.export_to_dpu()?;
    let there = SyncEvent::create_from_export(descriptor.as_bytes(), &dpu)?.as_ctx().start()?;
    let mut workq = WorkQ::new(4)?;
    workq.add(&there)?;
    submit(&mut workq, there.wait_gt(2))?;
    ensure_no_wait_ends(&mut workq, &there)?;
    set(&mut rig.workq, &here, 3)?;
    ensure_eq!(done(&mut workq)?.0, JobType::SyncEventWait, "the DPU's job");
    submit(&mut rig.workq, here.wait_gt(4))?;
    ensure_no_wait_ends(&mut rig.workq, &here)?;
    set(&mut workq, &there, 5)?;
    ensure_eq!(done(&mut rig.workq)?.0, JobType::SyncEventWait, "the host's job");
    Ok(())
}

fn dpu_import_fails_once_event_is_destroyed(lab: &Lab) -> Result<(), Stop> {
    let (host, dpu) = (open(lab, lab.info())?, open(lab, lab.other_info())?);
    let event = configured(&host)?.start()?;
    let descriptor = event.export_to_dpu()?;
    let there = SyncEvent::create_from_export(descriptor.as_bytes(), &dpu)?.as_ctx().start()?;
    let mut workq = WorkQ::new(8)?;
    workq.add(&there)?;
    event.stop().destroy();
    // All at once, so that each is queued behind one that fails.
    for _ in 0..4 {
        submit(&mut workq, there.get())?;
        submit(&mut workq, there.set(1))?;
    }
    for _ in 0..8 {
        ensure_eq!(failed_job(&mut workq)?, ErrorKind::NotPermitted, "why a job failed");
    }
    let again = SyncEvent::create_from_export(descriptor.as_bytes(), &dpu);
    ensure_eq!(refusal(again)?, ErrorKind::NotPermitted, "another import");
    Ok(())
}
