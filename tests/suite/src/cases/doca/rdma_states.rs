//! Permissions, states and recovery of DOCA RDMA.

use verbless_doca::rdma::{Rdma, RdmaBuilder, RdmaJob, RdmaState};
use verbless_doca::{AccessFlags, Buf, ErrorKind, JobType, Retrieve, WorkQ};

use super::pair::{ACCESS_FLAGS, End, access_flags, connect, connected, ends, works};
use super::rig::{map, refusal, refused_job};
use crate::case::cases;
use crate::endpoint::TIMEOUT;
use crate::{Lab, Stop, ensure, ensure_eq, pattern};

cases!(
    "doca_rdma_states",
    "Permissions, states and recovery of DOCA RDMA.":
    remote_access_needs_instance_and_mmap_right,
    read_only_mmap_serves_only_send_and_write,
    instance_state_follows_connect_and_restart,
    failed_job_flushes_each_other_job_once,
    oversized_message_fails_both_sides,
    send_without_receive_times_out_after_rnr_retries,
    stopped_instance_flushes_jobs_and_reconnects,
    stopped_instance_moves_to_another_workq,
    stale_descriptor_reaches_no_instance,
    altered_descriptor_is_rejected,
    instance_connected_before_workq_works,
    instance_size_is_bounded_by_device_limits,
);

/// A job that needs this right to the peer's memory; `other` selects the right's second operation.
fn job_by(right: AccessFlags, other: bool, end: &End) -> Result<RdmaJob, Stop> {
    let (rdma, here, there) = (end.rdma()?, end.data(64, 8)?, end.remote(128, 8)?);
    let result = |here: Option<Buf>| here.ok_or_else(|| Stop::fail("no buffer"));
    Ok(match (right, other) {
        (AccessFlags::RDMA_READ, _) => rdma.read(Some(there), here),
        (AccessFlags::RDMA_WRITE, false) => rdma.write(here, Some(there)),
        (AccessFlags::RDMA_WRITE, true) => rdma.write_imm(here, Some(there), 1),
        (_, false) => rdma.fetch_and_add(there, result(here)?, 1),
        (_, true) => rdma.compare_and_swap(there, result(here)?, 0, 1),
    })
}

fn remote_access_needs_instance_and_mmap_right(lab: &Lab) -> Result<(), Stop> {
    let all = access_flags(lab)?;
    for needed in ACCESS_FLAGS.into_iter().filter(|right| all.contains(*right)) {
        for instance in ACCESS_FLAGS.into_iter().filter(|right| all.contains(*right)) {
            for (memory, other) in ACCESS_FLAGS.into_iter().flat_map(|it| [(it, false), (it, true)])
            {
                let mut both = ends(lab, instance, memory, |builder| builder)?;
                connect(&both)?;
                let [a, b] = &mut both;
                // A write with immediate consumes a receive.
                let receive = b.rdma()?.receive(None);
                b.submit(receive)?;
                let job = job_by(needed, other, a)?;
                let what = format!("{needed:?} of an instance with {instance:?}, a map {memory:?}");
                if instance == needed && memory == needed {
                    a.perform(job).map_err(|Stop(why)| Stop::fail(format!("{what}: {why}")))?;
                    ensure_eq!(a.rdma()?.state(), RdmaState::Connected, what);
                    continue;
                }
                a.submit(job)?;
                let (done, kind) = a.failed()?;
                ensure_eq!(kind, ErrorKind::NotPermitted, what);
                ensure!(
                    done.local.is_some() && done.remote.is_some(),
                    "{what}: a buffer is missing"
                );
                ensure_eq!(a.rdma()?.state(), RdmaState::Error, what);
                ensure!(b.bytes(128, 8)? == [0; 8], "{what}: the memory has changed");
            }
        }
    }
    Ok(())
}

fn read_only_mmap_serves_only_send_and_write(lab: &Lab) -> Result<(), Stop> {
    let [mut a, mut b] = connected(lab)?;
    let fixed = map(&a.dev, 4096, AccessFlags::LOCAL_READ_ONLY)?;
    fixed.write_at(0, &pattern(1, 64))?;
    let of = |end: &End| -> Result<Option<Buf>, Stop> {
        Ok(Some(end.inventory.buf_by_data(&fixed, fixed.address(), 8)?))
    };
    let job = b.rdma()?.receive(b.room(0, 64)?);
    b.submit(job)?;
    let job = a.rdma()?.send(of(&a)?);
    a.perform(job)?;
    b.done()?;
    let job = a.rdma()?.write(of(&a)?, Some(a.remote(100, 8)?));
    a.perform(job)?;
    ensure!(b.bytes(0, 8)? == pattern(1, 64)[..8], "the sent bytes");
    ensure!(b.bytes(100, 8)? == pattern(1, 64)[..8], "the written bytes");
    let none = || Stop::fail("no buffer");
    let jobs = [
        ("a receive", a.rdma()?.receive(of(&a)?)),
        ("a read", a.rdma()?.read(Some(a.remote(0, 8)?), of(&a)?)),
        ("an addition", a.rdma()?.fetch_and_add(a.remote(0, 8)?, of(&a)?.ok_or_else(none)?, 1)),
        ("a swap", a.rdma()?.compare_and_swap(a.remote(0, 8)?, of(&a)?.ok_or_else(none)?, 1, 2)),
    ];
    for (what, job) in jobs {
        let (kind, _job) = refused_job(a.workq.submit(job))?;
        ensure_eq!(kind, ErrorKind::NotPermitted, what);
    }
    works(&mut [a, b])
}

fn instance_state_follows_connect_and_restart(lab: &Lab) -> Result<(), Stop> {
    let all = access_flags(lab)?;
    let mut both = ends(lab, all, all, |builder| builder)?;
    let descriptor = both[1].rdma()?.export()?;
    ensure_eq!(both[1].rdma()?.export()?, descriptor, "the descriptor of a second export");
    ensure_eq!(both[0].rdma()?.state(), RdmaState::Init, "after the start");
    connect(&both)?;
    ensure_eq!(both[0].rdma()?.state(), RdmaState::Connected, "after connecting");
    let again = refusal(both[0].rdma()?.connect(descriptor))?;
    ensure_eq!(again, ErrorKind::BadState, "connecting once more");
    for round in 0..3 {
        works(&mut both)?;
        for end in &mut both {
            end.restart()?;
            ensure_eq!(end.rdma()?.state(), RdmaState::Init, format!("in round {round}"));
        }
        connect(&both)?;
    }
    works(&mut both)
}

/// The user data of the next `count` jobs; each must fail once, as flushed.
fn flushed(end: &mut End, count: u64) -> Result<Vec<u64>, Stop> {
    let mut seen = Vec::new();
    for _ in 0..count {
        let (done, kind) = end.failed()?;
        ensure_eq!(kind, ErrorKind::Shutdown, "the error of a flushed job");
        ensure!(done.local.is_some(), "a flushed job returns no buffer");
        seen.push(done.user_data.0);
    }
    seen.sort_unstable();
    ensure_eq!(end.workq.in_flight(), 0, "jobs in flight");
    Ok(seen)
}

/// A write fails while later jobs and receives are in flight.
fn failed_job_flushes_each_other_job_once(lab: &Lab) -> Result<(), Stop> {
    let (may, all) = (AccessFlags::RDMA_READ, access_flags(lab)?);
    let mut both = ends(lab, all, may, |builder| builder)?;
    for round in 0..5 {
        connect(&both)?;
        works(&mut both)?;
        let [a, b] = &mut both;
        for number in 10..13 {
            let job = a.rdma()?.receive(a.room(4096, 64)?).user_data(number);
            a.submit(job)?;
        }
        // The peer's map permits no write.
        let job = a.rdma()?.write(a.data(0, 64)?, Some(a.remote(0, 64)?)).user_data(1);
        a.submit(job)?;
        for number in 2..6 {
            let job = a.rdma()?.read(Some(a.remote(0, 64)?), a.data(0, 64)?).user_data(number);
            // Accepted: the state becomes ERROR only when the failed write's event is retrieved.
            a.submit(job)?;
        }
        let (done, kind) = a.failed()?;
        ensure_eq!((done.user_data.0, kind), (1, ErrorKind::NotPermitted), "the failed job");
        ensure_eq!(done.job_type, JobType::RdmaWrite, "the type of the failed job");
        ensure_eq!(a.rdma()?.state(), RdmaState::Error, format!("state in round {round}"));
        let job = a.rdma()?.read(Some(a.remote(0, 64)?), a.data(0, 64)?);
        let (kind, _job) = refused_job(a.workq.submit(job))?;
        ensure_eq!(kind, ErrorKind::BadState, "a job of an instance in error");
        let kind = refusal(a.rdma()?.export())?;
        ensure_eq!(kind, ErrorKind::BadState, "an export of an instance in error");
        ensure_eq!(flushed(a, 7)?, [2, 3, 4, 5, 10, 11, 12], "flushed jobs");
        a.restart()?;
        b.restart()?;
    }
    connect(&both)?;
    works(&mut both)
}

fn oversized_message_fails_both_sides(lab: &Lab) -> Result<(), Stop> {
    let [mut a, mut b] = connected(lab)?;
    for number in 0..2 {
        let job = b.rdma()?.receive(b.room(1000, 10)?).user_data(number);
        b.submit(job)?;
    }
    let job = a.rdma()?.send(a.data(0, 11)?);
    a.submit(job)?;
    let (_, kind) = a.failed()?;
    ensure_eq!(kind, ErrorKind::InvalidValue, "why the send failed");
    let (done, kind) = b.failed()?;
    ensure_eq!((done.user_data.0, kind), (0, ErrorKind::InvalidValue), "the receive");
    ensure_eq!(flushed(&mut b, 1)?, [1], "the flushed receive");
    for end in [&a, &b] {
        ensure_eq!(end.rdma()?.state(), RdmaState::Error, "state");
    }
    let mut both = [a, b];
    both.iter_mut().try_for_each(End::restart)?;
    connect(&both)?;
    works(&mut both)
}

fn send_without_receive_times_out_after_rnr_retries(lab: &Lab) -> Result<(), Stop> {
    let all = access_flags(lab)?;
    let mut both = ends(lab, all, all, |builder| builder.rnr_retry_count(1).min_rnr_timer(1))?;
    connect(&both)?;
    let [a, _b] = &mut both;
    let job = a.rdma()?.send(a.data(0, 8)?);
    a.submit(job)?;
    let (_, kind) = a.failed()?;
    ensure_eq!(kind, ErrorKind::TimeOut, "why it failed");
    ensure_eq!(a.rdma()?.state(), RdmaState::Error, "state");
    both.iter_mut().try_for_each(End::restart)?;
    connect(&both)?;
    works(&mut both)
}

fn stopped_instance_flushes_jobs_and_reconnects(lab: &Lab) -> Result<(), Stop> {
    let mut both = connected(lab)?;
    for round in 0..5 {
        let [a, _b] = &mut both;
        for number in 0..8 {
            let job = a.rdma()?.receive(a.room(1000, 64)?).user_data(number);
            a.submit(job)?;
        }
        // The peer has no receive: this waits.
        let job = a.rdma()?.send(a.data(0, 64)?).user_data(8);
        a.submit(job)?;
        both.iter_mut().try_for_each(End::restart)?;
        let [a, _b] = &mut both;
        ensure_eq!(flushed(a, 9)?, (0..9).collect::<Vec<_>>(), format!("jobs in round {round}"));
        connect(&both)?;
        works(&mut both)?;
    }
    Ok(())
}

fn stopped_instance_moves_to_another_workq(lab: &Lab) -> Result<(), Stop> {
    let mut both = connected(lab)?;
    let [a, b] = &mut both;
    let job = a.rdma()?.receive(a.room(1000, 64)?);
    a.submit(job)?;
    let rdma = a.rdma.take().ok_or_else(|| Stop::fail("the instance is stopped"))?;
    let stopped = rdma.stop().map_err(|refused| refused.error)?;
    ensure_eq!(refusal(a.workq.remove(&stopped))?, ErrorKind::InUse, "with a job in flight");
    flushed(a, 1)?;
    a.workq.remove(&stopped)?;
    ensure_eq!(refusal(a.workq.remove(&stopped))?, ErrorKind::NotFound, "once more");
    a.rdma = Some(stopped.start().map_err(|refused| refused.error)?);
    a.workq = WorkQ::new(8)?;
    a.workq.add(a.rdma.as_ref().ok_or_else(|| Stop::fail("no instance"))?)?;
    b.restart()?;
    connect(&both)?;
    works(&mut both)
}

fn stale_descriptor_reaches_no_instance(lab: &Lab) -> Result<(), Stop> {
    let all = access_flags(lab)?;
    let soon = |builder: verbless_doca::rdma::RdmaBuilder| builder.retry_count(1).ack_timeout(10);
    let mut both = ends(lab, all, all, soon)?;
    let old = both[1].rdma()?.export()?;
    connect(&both)?;
    works(&mut both)?;
    both.iter_mut().try_for_each(End::restart)?;
    ensure!(both[1].rdma()?.export()? != old, "the new descriptor is the old one");
    let kind = refusal(both[0].rdma()?.connect(old))?;
    ensure_eq!(kind, ErrorKind::InvalidValue, "a second connect by the same descriptor");
    connect(&both)?;
    let [a, b] = &mut both;
    // Another instance cannot know that the connection is old; its messages arrive nowhere.
    let stranger = soon(Rdma::builder(&a.dev)).start().map_err(|refused| refused.error)?;
    a.workq.add(&stranger)?;
    stranger.connect(old)?;
    let job = b.rdma()?.receive(b.room(0, 64)?);
    b.submit(job)?;
    let job = stranger.send(a.data(0, 64)?);
    a.submit(job)?;
    let Err(Retrieve::IoFailed(event)) = a.workq.retrieve_within(Some(TIMEOUT)) else {
        return Err(Stop::fail("a message by an old descriptor did not fail"));
    };
    let kind = event.result().err().map(|error| error.kind());
    ensure_eq!(kind, Some(ErrorKind::TimeOut), "why it failed");
    ensure_eq!(b.workq.in_flight(), 1, "receives in flight");
    a.workq.remove(&stranger)?;
    let job = a.rdma()?.send(a.data(0, 64)?);
    a.perform(job)?;
    b.done()?;
    works(&mut both)
}

fn altered_descriptor_is_rejected(lab: &Lab) -> Result<(), Stop> {
    let all = access_flags(lab)?;
    let mut both = ends(lab, all, all, |builder| builder)?;
    let good = both[1].rdma()?.export()?.as_bytes().to_vec();
    for length in [0, 4, good.len() - 1] {
        let kind = refusal(both[0].rdma()?.connect(&good[..length]))?;
        ensure_eq!(kind, ErrorKind::InvalidValue, format!("{length} bytes"));
    }
    for byte in 0..good.len() {
        let mut bad = good.clone();
        bad[byte] ^= 1 << (byte % 8);
        let kind = refusal(both[0].rdma()?.connect(&bad))?;
        let known =
            [ErrorKind::InvalidValue, ErrorKind::UnsupportedVersion, ErrorKind::NotSupported];
        ensure!(known.contains(&kind), "byte {byte} altered: {kind:?}");
    }
    ensure_eq!(both[0].rdma()?.state(), RdmaState::Init, "state");
    connect(&both)?;
    works(&mut both)
}

fn instance_connected_before_workq_works(lab: &Lab) -> Result<(), Stop> {
    let [mut a, mut b] = connected(lab)?;
    let all = access_flags(lab)?;
    let start = |end: &End| {
        let builder = Rdma::builder(&end.dev).permissions(all);
        builder.start().map_err(|refused| refused.error)
    };
    let (here, there) = (start(&a)?, start(&b)?);
    here.connect(there.export()?)?;
    there.connect(here.export()?)?;
    a.workq.add(&here)?;
    b.workq.add(&there)?;
    let job = there.receive(b.room(0, 64)?).user_data(9);
    b.submit(job)?;
    a.fill(0, &pattern(2, 64))?;
    let job = here.send(a.data(0, 64)?);
    a.submit(job)?;
    a.done()?;
    ensure_eq!(b.done()?.user_data.0, 9, "the receive");
    ensure!(b.bytes(0, 64)? == pattern(2, 64), "other bytes arrived");
    works(&mut [a, b])
}

fn instance_size_is_bounded_by_device_limits(lab: &Lab) -> Result<(), Stop> {
    let dev = super::rig::open(lab, lab.info())?;
    let start = |set: &dyn Fn(RdmaBuilder) -> RdmaBuilder| set(Rdma::builder(&dev)).start();
    ensure!(Rdma::max_message_size(&dev)? >= 1 << 20, "max_message_size is below 1 MiB");
    let receives = Rdma::max_recv_queue_size(&dev)?;
    let (sends, chain) = (Rdma::max_send_queue_size(&dev)?, Rdma::max_send_buf_chain_len(&dev)?);
    let scatter = Rdma::max_recv_buf_chain_len(&dev)?;
    let largest = start(&|it| it.send_buf_chain_len(1).send_queue_size(sends));
    largest.map_err(|refused| refused.error)?.export()?;
    let largest = start(&|it| it.recv_queue_size(receives));
    largest.map_err(|refused| refused.error)?.export()?;
    let largest = start(&|it| it.send_buf_chain_len(chain).recv_buf_chain_len(scatter));
    largest.map_err(|refused| refused.error)?.export()?;
    let larger = [
        start(&|it| it.send_buf_chain_len(1).send_queue_size(sends + 1)),
        start(&|it| it.recv_queue_size(receives + 1)),
        start(&|it| it.send_buf_chain_len(chain + 1)),
        start(&|it| it.recv_buf_chain_len(scatter + 1)),
    ];
    for refused in larger {
        ensure_eq!(refusal(refused)?, ErrorKind::InvalidValue, "above a limit");
    }
    Ok(())
}
