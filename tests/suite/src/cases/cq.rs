//! Completion queues: creating, filling and overrunning them.

use verbless_command::{Device, Moderation};
use verbless_devx::ErrorKind;
use verbless_prm::hot::event_type;
use verbless_prm::{CqStatus, CqeSize, CreateCqIn, CreateCqOut, CreateQpIn, RqType, ServiceType};
use verbless_queue::wr::{Inline, Nop, Send, Write};
use verbless_queue::{CollapsedCq, CompletionError, CqConfig, Domain, QpConfig, Rc, WcStatus};

use crate::case::cases;
use crate::need::cap;
use crate::raw::RegisteredMemory;
use crate::{Endpoint, Lab, Pair, Stop, ensure, ensure_eq, quiet, until};

cases!(
    "cq",
    "Completion queues: creating, filling and overrunning them.":
    cqs_of_every_size_are_created,
    size_above_limit_is_rejected_with_limit,
    query_returns_requested_attributes,
    cq_wraps_many_times,
    drain_yields_cqes_in_order_and_frees_room,
    cqe_carries_user_index_of_qp,
    overrun_raises_cq_error_event,
    ignored_overrun_keeps_cq_working [cap!(cq_oi)],
    collapsed_cq_reports_newest_completion [cap!(cq_oi)],
    collapsed_cq_starts_over_after_reset [cap!(cq_oi)],
    collapsed_cq_reports_failed_qp [cap!(cq_oi)],
    collapsed_cq_rejects_second_queue [cap!(cq_oi)],
    query_returns_cq_moderation [cap!(cq_moderation)],
    moderation_period_above_12_bits_is_rejected,
    cq_with_live_qp_rejects_destroy,
    umem_of_another_context_is_rejected,
    unknown_eqn_is_rejected,
    ring_or_record_past_umem_end_is_rejected,
);

fn cqs_of_every_size_are_created(lab: &Lab) -> Result<(), Stop> {
    let domain = Domain::new(&lab.device()?)?;
    for entries in [1, 2, 3, 4, 63, 64, 65, 1000, 4096, 10_000] {
        let cq = domain.completion_queue(&CqConfig::new(entries))?;
        let made = 1u32 << cq.object().query()?.log_cq_size();
        ensure!(made >= entries, "{made} entries, not the {entries} asked for");
        ensure!(made < 2 * entries.max(2), "{made} entries for {entries}");
    }
    Ok(())
}

fn size_above_limit_is_rejected_with_limit(lab: &Lab) -> Result<(), Stop> {
    let device = lab.device()?;
    let domain = Domain::new(&device)?;
    let max = device.caps().log_max_cqes;
    let shared = RegisteredMemory::new(&device, 4096)?;
    let cq = domain.completion_queue(&CqConfig::new(2))?;
    let buffer = verbless_command::QueueMemory::new(shared.umem.clone(), 0);
    let attr = verbless_command::CqAttr {
        log_cqes: max + 1,
        ring: buffer.clone(),
        record: buffer,
        ..cq.object().attr().clone()
    };
    let error = match device.create_cq(attr) {
        Ok(_) => return Err(Stop::fail("a CQ above the limit was made")),
        Err(error) => error,
    };
    ensure_eq!(error.kind(), ErrorKind::InvalidInput, format!("the kind of {error}"));
    ensure!(error.to_string().contains(&max.to_string()), "{error} does not say {max}");
    Ok(())
}

fn query_returns_requested_attributes(lab: &Lab) -> Result<(), Stop> {
    let device = lab.device()?;
    let domain = Domain::new(&device)?;
    let vector = device.attributes().completion_vectors - 1;
    let cq = domain.completion_queue(&CqConfig {
        cqe_size: CqeSize::BYTES_128,
        vector,
        ..CqConfig::new(256)
    })?;
    let context = cq.object().query()?;
    ensure_eq!(context.status(), CqStatus::OK, "status");
    ensure_eq!(context.log_cq_size(), 8, "log2 of the entries");
    ensure_eq!(context.cqe_sz(), CqeSize::BYTES_128, "entry size");
    ensure_eq!(context.c_eqn_or_apu_element(), device.query_eqn(vector)?, "event queue");
    ensure!(!context.oi(), "overrun is ignored");
    ensure_eq!(context.producer_counter(), 0, "producer");
    Ok(())
}

fn cq_wraps_many_times(lab: &Lab) -> Result<(), Stop> {
    for cqe_size in [CqeSize::BYTES_64, CqeSize::BYTES_128] {
        let mut pair = on(lab, &CqConfig { cqe_size, ..CqConfig::new(2) }, 2)?;
        for cookie in 0..100 {
            pair.a.qp.post(&Nop::new().signaled(), cookie)?;
            ensure_eq!(pair.a.sent()??.cookie, cookie, "cookie");
        }
        ensure_eq!(pair.a.send_cq.consumer_index(), 100, format!("CQEs taken of {cqe_size:?}"));
    }
    Ok(())
}

/// A pair: the sends of one endpoint complete on a CQ of this kind.
fn on(lab: &Lab, config: &CqConfig, sends: u32) -> Result<Pair, Stop> {
    let mut pair = Pair::unconnected(lab, &QpConfig::new(sends, sends), 64 << 10)?;
    let config = CqConfig { overcommit: true, ..*config };
    let cq = pair.a.domain.completion_queue(&config)?;
    pair.a.qp = pair.a.domain.queue_pair(&QpConfig::new(sends, sends), &cq, &pair.a.receive_cq)?;
    pair.a.send_cq = cq;
    pair.connect(&Default::default())?;
    Ok(pair)
}

fn drain_yields_cqes_in_order_and_frees_room(lab: &Lab) -> Result<(), Stop> {
    let mut pair = on(lab, &CqConfig::new(16), 16)?;
    // Six times as many as the CQ holds.
    for round in 0..6u64 {
        for cookie in 0..16 {
            pair.a.qp.post(&Nop::new().signaled(), 16 * round + cookie)?;
        }
        let mut next = 16 * round;
        while next < 16 * round + 16 {
            let Endpoint { qp, send_cq, .. } = &mut pair.a;
            let cqes = until("completions", || {
                let cqes: Vec<_> = send_cq.drain(5).collect();
                (!cqes.is_empty()).then_some(cqes)
            })?;
            ensure!(cqes.len() <= 5, "{} completions, not at most 5", cqes.len());
            for cqe in cqes {
                ensure_eq!(qp.complete(cqe)?.cookie, next, "cookie");
                next += 1;
            }
        }
    }
    Ok(())
}

fn cqe_carries_user_index_of_qp(lab: &Lab) -> Result<(), Stop> {
    let config = QpConfig { user_index: 0xa_bcde, ..QpConfig::new(4, 4) };
    let mut pair = Pair::with(lab, &config, 4096)?;
    pair.b.receive(0, 64, 0)?;
    pair.a.qp.post(&Send::new(Inline(b"whose?")).signaled(), 0)?;
    for cq in [&mut pair.a.send_cq, &mut pair.b.receive_cq] {
        let cqe = until("a completion", || cq.poll())?;
        ensure_eq!(cqe.user_index(), 0xa_bcde, "user index");
    }
    Ok(())
}

fn overrun_raises_cq_error_event(lab: &Lab) -> Result<(), Stop> {
    let mut pair = on(lab, &CqConfig::new(4), 32)?;
    let channel = pair.a.device.event_channel(false)?;
    let cq = pair.a.send_cq.object().clone();
    channel.subscribe(Some(cq.object()), &[event_type::CQ_ERROR.into()], 77)?;
    let to = pair.b.remote(0)?;
    for cookie in 0..16 {
        pair.a.qp.post(&Write::new(Inline(b"one more"), to).signaled(), cookie)?;
    }
    let event = until("a CQ error event", || channel.read().transpose())??;
    ensure_eq!(event.cookie, 77, "cookie of the event");
    let eqe = event.eqe.ok_or_else(|| Stop::fail("the event has no EQE"))?;
    ensure_eq!(eqe[1], event_type::CQ_ERROR, "type of the event");
    ensure_eq!(cq.query()?.status(), CqStatus::OVERFLOW, "status of the CQ");
    Ok(())
}

fn ignored_overrun_keeps_cq_working(lab: &Lab) -> Result<(), Stop> {
    let mut pair = on(lab, &CqConfig { ignore_overrun: true, ..CqConfig::new(4) }, 32)?;
    for at in 0..16u8 {
        let to = pair.b.remote(at.into())?;
        pair.a.qp.post(&Write::new(Inline(&[at + 1]), to).signaled(), 0)?;
    }
    let expected: Vec<u8> = (1..=16).collect();
    until("the last of 16 WRITEs", || pair.b.bytes(0, 16).ok().filter(|bytes| *bytes == expected))?;
    let status = pair.a.send_cq.object().query()?.status();
    ensure_eq!(status, CqStatus::OK, "status of the CQ");
    Ok(())
}

/// A pair whose first queue pair sends 8 requests at a time, which complete in a collapsed CQ.
fn collapsed(lab: &Lab) -> Result<(Pair, CollapsedCq), Stop> {
    let config = QpConfig::new(8, 8);
    let mut pair = Pair::unconnected(lab, &config, 64 << 10)?;
    let cq = pair.a.domain.collapsed_completion_queue()?;
    let receives = pair.a.receive_cq.target();
    pair.a.qp = pair.a.domain.queue_pair_towards(&config, &cq.target(), &receives)?;
    pair.connect(&Default::default())?;
    Ok((pair, cq))
}

/// Polls until the request of `cookie` has completed; returns the number of polls that found
/// something.
fn completes(pair: &mut Pair, cq: &CollapsedCq, cookie: u64) -> Result<u64, Stop> {
    let mut found = 0;
    loop {
        let newest = until("a completion", || pair.a.qp.poll_collapsed(cq))??;
        found += 1;
        ensure!(newest.cookie <= cookie, "cookie {} was not posted", newest.cookie);
        if newest.cookie == cookie {
            break;
        }
    }
    Ok(found)
}

fn collapsed_cq_reports_newest_completion(lab: &Lab) -> Result<(), Stop> {
    let (mut pair, cq) = collapsed(lab)?;
    quiet("a completion without a posted request", || pair.a.qp.poll_collapsed(&cq))?;
    // Many times around the ring, and past its end in each round: a completion frees room.
    let to = pair.b.remote(0)?;
    for round in 1..=40_u64 {
        let last = 8 * round;
        for cookie in last - 7..=last {
            let bytes = cookie.to_le_bytes();
            let write = Write::new(Inline(&bytes), to);
            // A request without a CQE completes with the next one that has a CQE.
            let signaled = cookie == last || round.is_multiple_of(2);
            let write = if signaled { write.signaled() } else { write };
            pair.a.qp.post(&write, cookie)?;
        }
        let found = completes(&mut pair, &cq, last)?;
        ensure!(found <= 8, "{found} completions of 8 requests");
        pair.b.placed(0, &last.to_le_bytes(), "the peer's memory")?;
        let more = pair.a.qp.poll_collapsed(&cq);
        ensure!(more.is_none(), "a completion after the newest: {more:?}");
    }
    quiet("a completion without a posted request", || pair.a.qp.poll_collapsed(&cq))?;
    cq.check()?;
    let context = cq.object().query()?;
    ensure!(context.cc() && context.oi(), "the CQ is not collapsed");
    Ok(())
}

fn collapsed_cq_starts_over_after_reset(lab: &Lab) -> Result<(), Stop> {
    let (mut pair, cq) = collapsed(lab)?;
    for round in 1..=3 {
        // Each round posts the same WQE index: the CQE of the round before names it too.
        quiet("a CQE of another time completes a request", || pair.a.qp.poll_collapsed(&cq))?;
        let to = pair.b.remote(0)?;
        pair.a.qp.post(&Write::new(Inline(&[round]), to).signaled(), round.into())?;
        completes(&mut pair, &cq, round.into())?;
        pair.b.placed(0, &[round], "the peer's memory")?;
        pair.restart()?;
    }
    Ok(())
}

fn collapsed_cq_reports_failed_qp(lab: &Lab) -> Result<(), Stop> {
    let (mut pair, cq) = collapsed(lab)?;
    let mut nowhere = pair.b.remote(0)?;
    nowhere.address = nowhere.address.wrapping_add(1 << 40);
    for cookie in 0..4 {
        let write = Write::new(Inline(b"beyond the region"), nowhere).signaled();
        pair.a.qp.post(&write, cookie)?;
    }
    loop {
        match until("a completion", || pair.a.qp.poll_collapsed(&cq))? {
            Err(CompletionError::Failed(failure)) => {
                let flushed = failure.status == WcStatus::Flushed;
                ensure!(flushed || failure.status == WcStatus::RemoteAccess, "{failure:?}");
                if failure.cookie == 3 {
                    break;
                }
            }
            other => return Err(Stop::fail(format!("a failed request: {other:?}"))),
        }
    }
    ensure!(pair.a.qp.check().is_err(), "the queue pair is not in error");
    Ok(())
}

fn collapsed_cq_rejects_second_queue(lab: &Lab) -> Result<(), Stop> {
    let (pair, cq) = collapsed(lab)?;
    let (config, domain) = (QpConfig::new(1, 1), &pair.a.domain);
    let other = domain.completion_queue(&CqConfig::new(64))?;
    for (send, receive, why) in [
        (cq.target(), other.target(), "another queue pair"),
        (other.target(), cq.target(), "receives complete in another"),
    ] {
        let refused = domain.queue_pair_towards::<Rc>(&config, &send, &receive).err();
        let refused = refused.ok_or_else(|| Stop::fail("a second queue was taken"))?;
        ensure_eq!(refused.kind(), ErrorKind::InvalidInput, format!("the kind of {refused}"));
        ensure!(refused.to_string().contains(why), "{refused}");
    }
    drop(pair);
    Ok(())
}

fn query_returns_cq_moderation(lab: &Lab) -> Result<(), Stop> {
    let device = lab.device()?;
    let cq = Domain::new(&device)?.completion_queue(&CqConfig::new(8))?;
    for (period, count) in [(16, 32), (0xfff, 0xffff), (0, 0)] {
        cq.object().set_moderation(Moderation { period, count })?;
        let context = cq.object().query()?;
        ensure_eq!((context.cq_period(), context.cq_max_count()), (period, count), "moderation");
    }
    Ok(())
}

fn moderation_period_above_12_bits_is_rejected(lab: &Lab) -> Result<(), Stop> {
    let cq = Domain::new(&lab.device()?)?.completion_queue(&CqConfig::new(8))?;
    let refused = cq.object().set_moderation(Moderation { period: 0x1000, count: 1 }).err();
    ensure_eq!(refused.map(|error| error.kind()), Some(ErrorKind::InvalidInput), "4096 µs");
    Ok(())
}

/// CREATE_CQ of four entries at the start of `ring`, its record after them.
fn four_entries(
    device: &Device,
    domain: &Domain,
    ring: &RegisteredMemory,
) -> Result<CreateCqIn, Stop> {
    let cq = domain.completion_queue(&CqConfig::new(2))?;
    let mut input = CreateCqIn::new();
    input.set_cq_umem_id(ring.umem.id()).set_cq_umem_valid(true);
    input
        .cq_context_mut()
        .set_log_cq_size(2)
        .set_uar_page(cq.object().attr().uar.page_id())
        .set_c_eqn_or_apu_element(device.query_eqn(0)?)
        .set_dbr_umem_id(ring.umem.id())
        .set_dbr_umem_valid(true)
        .set_dbr_addr(1024);
    Ok(input)
}

fn cq_with_live_qp_rejects_destroy(lab: &Lab) -> Result<(), Stop> {
    let device = lab.device()?;
    let domain = Domain::new(&device)?;
    let memory = RegisteredMemory::new(&device, 8192)?;
    let mut output = CreateCqOut::zeroed();
    let input = four_entries(&device, &domain, &memory)?;
    let cq = device.obj_create(input.as_bytes(), output.as_bytes_mut())?;
    let mut create = CreateQpIn::new();
    create.set_wq_umem_id(memory.umem.id()).set_wq_umem_valid(true).set_wq_umem_offset(4096);
    create
        .qpc_mut()
        .set_st(ServiceType::RC)
        .set_pm_state(verbless_prm::PathMigrationState::MIGRATED)
        .set_ts_format(device.caps().qp_timestamps)
        .set_pd(domain.pd().pdn())
        .set_uar_page(input.cq_context().uar_page())
        .set_cqn_snd(output.cqn())
        .set_cqn_rcv(output.cqn())
        .set_log_sq_size(2)
        .set_rq_type(RqType::NONE)
        .set_dbr_umem_id(memory.umem.id())
        .set_dbr_umem_valid(true)
        .set_dbr_addr(1088);
    let qp = device.obj_create(create.as_bytes(), &mut [0; 16])?;
    let cq = match cq.destroy() {
        Ok(()) => return Err(Stop::fail("a CQ that a QP uses was destroyed")),
        Err(refused) => refused.object,
    };
    qp.destroy()?;
    Ok(cq.destroy()?)
}

fn umem_of_another_context_is_rejected(lab: &Lab) -> Result<(), Stop> {
    let (device, other) = (lab.device()?, lab.device()?);
    let domain = Domain::new(&device)?;
    // UMEM numbers belong to the device: the other context's number exists.
    let foreign = RegisteredMemory::new(&other, 8192)?;
    let input = four_entries(&device, &domain, &foreign)?;
    let refused = device.obj_create(input.as_bytes(), &mut [0; 16]).err();
    let error = refused.ok_or_else(|| Stop::fail("a CQ lies in memory of another context"))?;
    ensure_eq!(error.kind(), ErrorKind::Command, format!("the kind of {error}"));
    ensure!(error.to_string().contains("CREATE_CQ"), "{error} does not name the command");
    Ok(())
}

fn unknown_eqn_is_rejected(lab: &Lab) -> Result<(), Stop> {
    let device = lab.device()?;
    let domain = Domain::new(&device)?;
    let memory = RegisteredMemory::new(&device, 8192)?;
    let mut input = four_entries(&device, &domain, &memory)?;
    input.cq_context_mut().set_c_eqn_or_apu_element(0xfe);
    ensure!(device.obj_create(input.as_bytes(), &mut [0; 16]).is_err(), "EQ 0xfe was taken");
    Ok(())
}

fn ring_or_record_past_umem_end_is_rejected(lab: &Lab) -> Result<(), Stop> {
    let device = lab.device()?;
    let domain = Domain::new(&device)?;
    let memory = RegisteredMemory::new(&device, 8192)?;
    let input = four_entries(&device, &domain, &memory)?;
    // The UMEM ends with its last page.
    let past = (8192 + memory.umem.page_limit() - 4096).next_power_of_two();
    let [mut far, mut long, mut record] = [input; 3];
    far.set_cq_umem_offset(past);
    long.cq_context_mut().set_log_cq_size((past / 64).ilog2() as u8 + 1);
    record.cq_context_mut().set_dbr_addr(past);
    for input in [far, long, record] {
        let refused = device.obj_create(input.as_bytes(), &mut [0; 16]).err();
        ensure_eq!(refused.map(|error| error.kind()), Some(ErrorKind::Command), "past the end");
    }
    Ok(())
}
