//! Completion queues: making them, filling them, and what happens when they are too small.

use verbless_command::{Device, Moderation};
use verbless_devx::ErrorKind;
use verbless_prm::hot::event_type;
use verbless_prm::{CqStatus, CqeSize, CreateCqIn, CreateCqOut, CreateQpIn, RqType, ServiceType};
use verbless_queue::wr::{Inline, Nop, Send, Write};
use verbless_queue::{CqConfig, Domain, QpConfig};

use crate::case::cases;
use crate::need::cap;
use crate::raw::RegisteredMemory;
use crate::{Endpoint, Lab, Pair, Stop, ensure, ensure_eq, quiet, until};

cases!(
    "cq",
    "Completion queues: making them, filling them, and what happens when they are too small.":
    completion_queues_of_every_size_are_made,
    a_completion_queue_above_the_limit_is_refused_with_the_limit,
    an_empty_completion_queue_yields_nothing,
    a_completion_queue_is_as_it_was_asked_for,
    a_completion_queue_goes_round_many_times,
    entries_of_128_bytes_work_like_those_of_64,
    completions_are_taken_in_one_go_and_their_places_given_back,
    a_completion_says_the_user_index_of_its_queue_pair,
    a_completion_queue_that_is_too_small_overruns_and_says_so,
    a_completion_queue_that_ignores_overrun_goes_on [cap!(cq_oi)],
    moderation_is_kept_by_the_device [cap!(cq_moderation)],
    moderation_beyond_its_field_is_refused,
    a_completion_queue_in_use_cannot_be_destroyed,
    a_completion_queue_in_memory_of_another_context_is_refused,
    a_completion_queue_on_an_unknown_event_queue_is_refused,
    a_completion_queue_past_the_end_of_its_memory_is_refused,
);

fn completion_queues_of_every_size_are_made(lab: &Lab) -> Result<(), Stop> {
    let domain = Domain::new(&lab.device()?)?;
    for entries in [1, 2, 3, 4, 63, 64, 65, 1000, 4096, 10_000] {
        let cq = domain.completion_queue(&CqConfig::new(entries))?;
        let made = 1u32 << cq.object().query()?.log_cq_size();
        ensure!(made >= entries, "{made} entries, not the {entries} asked for");
        ensure!(made < 2 * entries.max(2), "{made} entries for {entries}");
    }
    Ok(())
}

fn a_completion_queue_above_the_limit_is_refused_with_the_limit(lab: &Lab) -> Result<(), Stop> {
    let device = lab.device()?;
    let domain = Domain::new(&device)?;
    let most = device.caps().log_max_cqes;
    let shared = RegisteredMemory::new(&device, 4096)?;
    let cq = domain.completion_queue(&CqConfig::new(2))?;
    let place = verbless_command::QueueMemory::new(shared.umem.clone(), 0);
    let attr = verbless_command::CqAttr {
        log_cqes: most + 1,
        ring: place.clone(),
        record: place,
        ..cq.object().attr().clone()
    };
    let error = match device.create_cq(attr) {
        Ok(_) => return Err(Stop::fail("a CQ above the limit was made")),
        Err(error) => error,
    };
    ensure_eq!(error.kind(), ErrorKind::Input, format!("the kind of {error}"));
    ensure!(error.to_string().contains(&most.to_string()), "{error} does not say {most}");
    Ok(())
}

fn an_empty_completion_queue_yields_nothing(lab: &Lab) -> Result<(), Stop> {
    let domain = Domain::new(&lab.device()?)?;
    let mut cq = domain.completion_queue(&CqConfig::new(8))?;
    quiet("an empty CQ yielded a completion", || cq.poll())
}

fn a_completion_queue_is_as_it_was_asked_for(lab: &Lab) -> Result<(), Stop> {
    let device = lab.device()?;
    let domain = Domain::new(&device)?;
    let vector = device.attributes().completion_vectors - 1;
    let cq = domain.completion_queue(&CqConfig { wide: true, vector, ..CqConfig::new(256) })?;
    let context = cq.object().query()?;
    ensure_eq!(context.status(), CqStatus::OK, "status");
    ensure_eq!(context.log_cq_size(), 8, "log2 of the entries");
    ensure_eq!(context.cqe_sz(), CqeSize::BYTES_128, "entry size");
    ensure_eq!(context.c_eqn_or_apu_element(), device.query_eqn(vector)?, "event queue");
    ensure!(!context.oi(), "overrun is ignored");
    ensure_eq!(context.producer_counter(), 0, "producer");
    Ok(())
}

fn a_completion_queue_goes_round_many_times(lab: &Lab) -> Result<(), Stop> {
    let mut pair = Pair::with(lab, &QpConfig::new(2, 1), 4096)?;
    for cookie in 0..100 {
        pair.a.qp.post(&Nop::new().signaled(), cookie)?;
        ensure_eq!(pair.a.sent()??.cookie, cookie, "cookie");
    }
    ensure_eq!(pair.a.send_cq.consumer_index(), 100, "completions taken");
    Ok(())
}

/// One endpoint whose sends complete on a CQ of this kind, and its peer.
fn on(lab: &Lab, config: &CqConfig, sends: u32) -> Result<Pair, Stop> {
    let mut pair = Pair::unconnected(lab, &QpConfig::new(sends, sends), 64 << 10)?;
    let config = CqConfig { overcommit: true, ..*config };
    let cq = pair.a.domain.completion_queue(&config)?;
    pair.a.qp = pair.a.domain.queue_pair(&QpConfig::new(sends, sends), &cq, &pair.a.receive_cq)?;
    pair.a.send_cq = cq;
    pair.connect(&Default::default())?;
    Ok(pair)
}

fn entries_of_128_bytes_work_like_those_of_64(lab: &Lab) -> Result<(), Stop> {
    let mut pair = on(lab, &CqConfig { wide: true, ..CqConfig::new(8) }, 8)?;
    for cookie in 0..50 {
        pair.a.qp.post(&Nop::new().signaled(), cookie)?;
        ensure_eq!(pair.a.sent()??.cookie, cookie, "cookie");
    }
    Ok(())
}

fn completions_are_taken_in_one_go_and_their_places_given_back(lab: &Lab) -> Result<(), Stop> {
    let mut pair = on(lab, &CqConfig::new(16), 16)?;
    // Six times as many as the queue holds.
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

fn a_completion_says_the_user_index_of_its_queue_pair(lab: &Lab) -> Result<(), Stop> {
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

fn a_completion_queue_that_is_too_small_overruns_and_says_so(lab: &Lab) -> Result<(), Stop> {
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
    let eqe = event.eqe.ok_or_else(|| Stop::fail("the event came without its data"))?;
    ensure_eq!(eqe[1], event_type::CQ_ERROR, "type of the event");
    ensure_eq!(cq.query()?.status(), CqStatus::OVERFLOW, "status of the CQ");
    Ok(())
}

fn a_completion_queue_that_ignores_overrun_goes_on(lab: &Lab) -> Result<(), Stop> {
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

fn moderation_is_kept_by_the_device(lab: &Lab) -> Result<(), Stop> {
    let device = lab.device()?;
    let cq = Domain::new(&device)?.completion_queue(&CqConfig::new(8))?;
    for (period, count) in [(16, 32), (0xfff, 0xffff), (0, 0)] {
        cq.object().set_moderation(Moderation { period, count })?;
        let context = cq.object().query()?;
        ensure_eq!((context.cq_period(), context.cq_max_count()), (period, count), "moderation");
    }
    Ok(())
}

fn moderation_beyond_its_field_is_refused(lab: &Lab) -> Result<(), Stop> {
    let cq = Domain::new(&lab.device()?)?.completion_queue(&CqConfig::new(8))?;
    let refused = cq.object().set_moderation(Moderation { period: 0x1000, count: 1 }).err();
    ensure_eq!(refused.map(|error| error.kind()), Some(ErrorKind::Input), "4096 µs");
    Ok(())
}

/// CREATE_CQ of four entries at the start of `ring`, its record behind them.
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

fn a_completion_queue_in_use_cannot_be_destroyed(lab: &Lab) -> Result<(), Stop> {
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
        Ok(()) => return Err(Stop::fail("the CQ went while a QP used it")),
        Err(refused) => refused.object,
    };
    qp.destroy()?;
    Ok(cq.destroy()?)
}

fn a_completion_queue_in_memory_of_another_context_is_refused(lab: &Lab) -> Result<(), Stop> {
    let (device, other) = (lab.device()?, lab.device()?);
    let domain = Domain::new(&device)?;
    // Numbers of UMEMs are the device's: the other context's is one that exists.
    let foreign = RegisteredMemory::new(&other, 8192)?;
    let input = four_entries(&device, &domain, &foreign)?;
    let refused = device.obj_create(input.as_bytes(), &mut [0; 16]).err();
    let error = refused.ok_or_else(|| Stop::fail("a CQ lies in memory of another context"))?;
    ensure_eq!(error.kind(), ErrorKind::Command, format!("the kind of {error}"));
    ensure!(error.to_string().contains("CREATE_CQ"), "{error} does not name the command");
    Ok(())
}

fn a_completion_queue_on_an_unknown_event_queue_is_refused(lab: &Lab) -> Result<(), Stop> {
    let device = lab.device()?;
    let domain = Domain::new(&device)?;
    let memory = RegisteredMemory::new(&device, 8192)?;
    let mut input = four_entries(&device, &domain, &memory)?;
    input.cq_context_mut().set_c_eqn_or_apu_element(0xfe);
    ensure!(device.obj_create(input.as_bytes(), &mut [0; 16]).is_err(), "EQ 0xfe was taken");
    Ok(())
}

fn a_completion_queue_past_the_end_of_its_memory_is_refused(lab: &Lab) -> Result<(), Stop> {
    let device = lab.device()?;
    let domain = Domain::new(&device)?;
    let memory = RegisteredMemory::new(&device, 8192)?;
    let input = four_entries(&device, &domain, &memory)?;
    for spoil in [
        (|input| input.set_cq_umem_offset(8192)) as fn(&mut CreateCqIn) -> &mut CreateCqIn,
        |input| {
            input.cq_context_mut().set_log_cq_size(8);
            input
        },
        |input| {
            input.cq_context_mut().set_dbr_addr(8192);
            input
        },
    ] {
        let mut input = input;
        spoil(&mut input);
        let refused = device.obj_create(input.as_bytes(), &mut [0; 16]).err();
        ensure_eq!(refused.map(|error| error.kind()), Some(ErrorKind::Command), "past the end");
    }
    Ok(())
}
