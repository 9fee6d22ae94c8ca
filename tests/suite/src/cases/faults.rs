//! Faults that a model injects on request: commands that fail, completions that are lost, ports and
//! devices that go down.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use verbless_command::{Device, InitAttr, KeyAccess, RemoteAccess};
use verbless_devx::abi::core::event_type as verbs_event;
use verbless_devx::{AsyncEvent, Errno, ErrorKind};
use verbless_model::{Fault, Ioctl};
use verbless_prm as prm;
use verbless_prm::hot::event_type;
use verbless_prm::{CommandInfo, CommandStatus};
use verbless_queue::cq::Notify;
use verbless_queue::ring::SharedMemory;
use verbless_queue::wr::{Inline, Nop, Send, Write};
use verbless_queue::{
    ConnectOptions, CqConfig, CqEvents, Domain, QpConfig, Region, SrqConfig, WcStatus,
};

use crate::case::cases;
use crate::need::SRQ;
use crate::raw;
use crate::{Endpoint, Lab, Need, Pair, Stop, TIMEOUT, ensure, ensure_eq, failed, quiet, until};

cases!(
    "faults",
    "Faults on request: commands that fail, lost completions, ports and devices that go down.",
    needs [Need::Model, Need::Lossless]:
    failed_command_reports_status_and_syndrome,
    injected_failure_hits_only_nth_command,
    failed_creation_leaves_no_objects,
    failed_open_succeeds_on_retry,
    failed_transition_keeps_qp_state,
    failed_destroy_counts_leak_and_keeps_memory,
    unreset_qp_keeps_its_qpn,
    lost_message_is_retransmitted,
    repeated_message_loss_exceeds_retries,
    next_cqe_covers_lost_cqe,
    delayed_cqe_arrives_in_order,
    port_down_and_up_raise_events,
    messages_wait_for_port_recovery,
    lasting_port_down_exceeds_retries,
    fatal_device_rejects_commands_with_hint,
    fatal_device_ends_waits_for_completions,
    removed_device_ends_channels,
    fatal_device_completes_nothing_and_leaks_nothing,
    fatal_peer_exceeds_transport_retries,
    fatal_device_rejects_open,
    removed_device_frees_its_memory [SRQ],
    lost_umem_is_freed_when_device_file_closes [SRQ],
    leaked_umem_of_live_device_is_never_freed,
);

/// Makes the next command of this kind on the first device fail with a resource error.
fn fail_next(lab: &Lab, command: &CommandInfo) -> Result<(), Stop> {
    lab.model()?.fail_command(
        0,
        verbless_prm::Opcode(command.opcode),
        1,
        CommandStatus::NO_RES,
        0xbad_cafe,
    );
    Ok(())
}

fn failed_command_reports_status_and_syndrome(lab: &Lab) -> Result<(), Stop> {
    let device = lab.device();
    fail_next(lab, &prm::NOP)?;
    let device = device?;
    let Err(error) = device.nop() else { return Err(Stop::fail("the NOP succeeded")) };
    ensure_eq!(error.kind(), ErrorKind::Command, "kind");
    let hidden = device.hides_refusals();
    let (status, syndrome) = (CommandStatus::NO_RES.0, 0xbad_cafe);
    ensure_eq!(error.status(), (!hidden).then_some(status), "status");
    ensure_eq!(error.syndrome(), (!hidden).then_some(syndrome), "syndrome");
    let errno = if hidden { Errno::EAGAIN } else { Errno::EREMOTEIO };
    ensure_eq!(error.errno(), Some(errno), "errno");
    ensure_eq!(error.command().and_then(|command| command.name()), Some("NOP"), "command");
    let text = error.to_string();
    for word in ["NOP", "NO_RES", if hidden { "dmesg" } else { "0xbadcafe" }] {
        ensure!(text.contains(word), "{text:?} does not say {word}");
    }
    ensure!(!error.hint().is_empty(), "no hint");
    Ok(device.nop()?)
}

fn injected_failure_hits_only_nth_command(lab: &Lab) -> Result<(), Stop> {
    let model = lab.model()?;
    let device = lab.device()?;
    model.fail_command(0, verbless_prm::Opcode(prm::NOP.opcode), 3, CommandStatus::INTERNAL_ERR, 1);
    for nth in 1..=5 {
        ensure_eq!(device.nop().is_err(), nth == 3, format!("whether command {nth} fails"));
    }
    Ok(())
}

fn failed_creation_leaves_no_objects(lab: &Lab) -> Result<(), Stop> {
    let model = lab.model()?;
    let device = lab.device()?;
    let domain = Domain::new(&device)?;
    let cq = domain.completion_queue(&CqConfig::new(16))?;
    drop(domain.queue_pair(&QpConfig::new(4, 4), &cq, &cq)?);
    let before = model.counts(0);
    fail_next(lab, &prm::CREATE_MKEY)?;
    ensure!(domain.region(4096, KeyAccess::ALL).is_err(), "a region without a key");
    fail_next(lab, &prm::CREATE_UMEM)?;
    ensure!(domain.region(4096, KeyAccess::ALL).is_err(), "a region without a UMEM");
    fail_next(lab, &prm::CREATE_CQ)?;
    ensure!(domain.completion_queue(&CqConfig::new(16)).is_err(), "a CQ that was refused");
    fail_next(lab, &prm::CREATE_QP)?;
    ensure!(domain.queue_pair(&QpConfig::new(4, 4), &cq, &cq).is_err(), "a QP that was refused");
    // Without a BlueFlame page, the driver would take one of the other kind.
    fail_next(lab, &prm::ALLOC_UAR)?;
    fail_next(lab, &prm::ALLOC_UAR)?;
    ensure!(Domain::new(&device).is_err(), "a domain without a UAR page");
    fail_next(lab, &prm::ALLOC_PD)?;
    ensure!(Domain::new(&device).is_err(), "a domain without a PD");
    ensure_eq!(model.counts(0), before, "objects");
    ensure_eq!(device.leaked(), 0, "leaks");
    Ok(())
}

fn failed_open_succeeds_on_retry(lab: &Lab) -> Result<(), Stop> {
    let before = lab.model()?.counts(0);
    for command in [
        &prm::ENABLE_HCA,
        &prm::INIT_HCA,
        &prm::CREATE_EQ,
        &prm::QUERY_HCA_CAP,
        &prm::CREATE_UCTX,
        &prm::ALLOC_UAR,
        &prm::QUERY_ADAPTER,
    ] {
        fail_next(lab, command)?;
        let opened = Device::open(lab.backend(), lab.info());
        ensure!(opened.is_err(), "the device opened without {}", command.name);
        let left = lab.model()?.counts(0);
        ensure_eq!(left, before, format!("objects after {} failed", command.name));
        lab.device()?.nop()?;
    }
    Ok(())
}

fn failed_transition_keeps_qp_state(lab: &Lab) -> Result<(), Stop> {
    let mut pair = Pair::unconnected(lab, &QpConfig::new(4, 4), 4096)?;
    for (command, state) in [
        (&prm::RST2INIT_QP, prm::QpState::RST),
        (&prm::INIT2RTR_QP, prm::QpState::INIT),
        (&prm::RTR2RTS_QP, prm::QpState::RTR),
    ] {
        fail_next(lab, command)?;
        let Err(Stop(text)) = pair.connect(&ConnectOptions::default()) else {
            return Err(Stop::fail(format!("the pair connected without {}", command.name)));
        };
        ensure!(text.contains(command.name), "{text:?} does not name {}", command.name);
        ensure_eq!(pair.a.qp.object().state()?, state, "state");
        for end in [&mut pair.a, &mut pair.b] {
            end.qp.reset()?;
        }
    }
    pair.connect(&ConnectOptions::default())
}

fn failed_destroy_counts_leak_and_keeps_memory(lab: &Lab) -> Result<(), Stop> {
    let model = lab.model()?;
    lab.excuse(0);
    let device = lab.device()?;
    let domain = Domain::new(&device)?;
    let region = domain.region(4096, KeyAccess::ALL)?;
    let before = model.counts(0);
    model.fail_command(
        0,
        verbless_prm::Opcode(prm::DESTROY_MKEY.opcode),
        1,
        CommandStatus::RES_BUSY,
        0,
    );
    model.fail_command(
        0,
        verbless_prm::Opcode(prm::DESTROY_MKEY.opcode),
        1,
        CommandStatus::RES_BUSY,
        0,
    );
    drop(region);
    ensure!(device.leaked() > 0, "no leak was counted");
    let after = model.counts(0);
    ensure_eq!((after.mkeys, after.umems), (before.mkeys, before.umems), "keys and UMEMs");
    Ok(device.nop()?)
}

/// Its outstanding requests may still complete; another QP of this number would get their CQEs.
fn unreset_qp_keeps_its_qpn(lab: &Lab) -> Result<(), Stop> {
    let model = lab.model()?;
    lab.excuse(0);
    let device = lab.device()?;
    let domain = Domain::new(&device)?;
    let cq = domain.completion_queue(&CqConfig::new(1024))?;
    let make = || domain.queue_pair(&QpConfig::new(4, 4), &cq, &cq);
    let mut qp = make()?;
    let number = qp.qpn();
    // In RESET there is no request to take back.
    let access = RemoteAccess::ALL;
    qp.to_init(&InitAttr { port: 1, pkey_index: 0, access })?;
    let before = model.counts(0).qps;
    model.fail_command(0, verbless_prm::Opcode(prm::QP_2RST.opcode), 1, CommandStatus::NO_RES, 0);
    ensure!(qp.reset().is_err(), "the QP was reset");
    ensure_eq!(device.leaked(), 0, "leaks");
    model.fail_command(0, verbless_prm::Opcode(prm::QP_2RST.opcode), 1, CommandStatus::NO_RES, 0);
    drop(qp);
    ensure_eq!(device.leaked(), 1, "leaks");
    ensure_eq!(model.counts(0).qps, before, "queue pairs");
    let others = (0..64).map(|_| make()).collect::<Result<Vec<_>, _>>()?;
    ensure!(others.iter().all(|other| other.qpn() != number), "{number} was given again");
    Ok(())
}

fn lost_message_is_retransmitted(lab: &Lab) -> Result<(), Stop> {
    let model = lab.model()?;
    let options = ConnectOptions { ack_timeout: 8, ..Default::default() };
    let mut pair = Pair::connected(lab, &QpConfig::new(16, 16), 4096, &options)?;
    for round in 0..5 {
        pair.b.receive(0, 64, round)?;
        model.inject(0, Fault::LoseMessage, 1, 3);
        let to = pair.b.remote(64)?;
        pair.a.qp.post(&Write::new(Inline(b"first"), to), 0)?;
        pair.a.perform(&Send::new(Inline(&[round as u8; 8])).signaled())?;
        ensure_eq!(pair.b.received()??.cookie, round, "cookie");
        ensure_eq!(pair.b.bytes(0, 8)?, [round as u8; 8], "message");
    }
    Ok(())
}

fn repeated_message_loss_exceeds_retries(lab: &Lab) -> Result<(), Stop> {
    let model = lab.model()?;
    let mut pair = Pair::with_short_timeouts(lab)?;
    model.inject(0, Fault::LoseMessage, 0, 100);
    let to = pair.b.remote(0)?;
    pair.a.qp.post(&Write::new(Inline(b"lost"), to).signaled(), 3)?;
    ensure_eq!(failed(pair.a.sent()?, WcStatus::TransportRetryExceeded)?, 3, "cookie");
    Ok(())
}

fn next_cqe_covers_lost_cqe(lab: &Lab) -> Result<(), Stop> {
    let model = lab.model()?;
    let mut pair = Pair::new(lab)?;
    let free = pair.a.qp.send.free();
    model.inject(0, Fault::LoseCompletion, 0, 1);
    pair.a.qp.post(&Nop::new().signaled(), 0)?;
    let Endpoint { qp, send_cq, .. } = &mut pair.a;
    quiet("a lost completion was polled", || qp.poll(send_cq))?;
    pair.a.qp.post(&Nop::new().signaled(), 1)?;
    ensure_eq!(pair.a.sent()??.cookie, 1, "cookie");
    ensure_eq!(pair.a.qp.send.free(), free, "free wqebbs");
    Ok(())
}

/// The delay of a delayed completion.
const DELAY: Duration = Duration::from_millis(200);

fn delayed_cqe_arrives_in_order(lab: &Lab) -> Result<(), Stop> {
    let model = lab.model()?;
    let mut pair = Pair::new(lab)?;
    model.inject(0, Fault::DelayCompletion(DELAY), 0, 1);
    let to = pair.b.remote(0)?;
    let start = Instant::now();
    for cookie in 0..5 {
        pair.a.qp.post(&Write::new(Inline(b"done"), to).signaled(), cookie)?;
    }
    until("the WRITEs", || pair.b.bytes(0, 4).ok().filter(|bytes| bytes == b"done"))?;
    let Endpoint { qp, send_cq, .. } = &mut pair.a;
    while start.elapsed() < DELAY / 2 {
        let early = qp.poll(send_cq);
        ensure!(early.is_none(), "{early:?} after {:?}", start.elapsed());
        std::thread::sleep(Duration::from_millis(1));
    }
    for cookie in 0..5 {
        ensure_eq!(pair.a.sent()??.cookie, cookie, "cookie");
        ensure!(start.elapsed() >= DELAY, "completion {cookie} after {:?}", start.elapsed());
    }
    Ok(())
}

fn port_down_and_up_raise_events(lab: &Lab) -> Result<(), Stop> {
    let model = lab.model()?;
    let device = lab.device()?;
    let verbs = device.async_event_alloc()?;
    let channel = device.event_channel(false)?;
    channel.subscribe(None, &[event_type::PORT_CHANGE.into()], 4)?;
    for up in [false, true] {
        model.set_port(0, 1, up);
        let event_of_verbs = until("an event of the verbs", || verbs.read().transpose())??;
        let event = if up { verbs_event::PORT_ACTIVE } else { verbs_event::PORT_ERR };
        ensure_eq!(event_of_verbs, AsyncEvent::Port { port: 1, event }, "event of the verbs");
        let event = until("an event of the port", || channel.read().transpose())??;
        ensure_eq!(event.cookie, 4, "cookie");
        ensure_eq!(event.eqe.map(|eqe| eqe[1]), Some(event_type::PORT_CHANGE), "type");
        ensure_eq!(device.query_port(1)?.is_active(), up, "whether the port is active");
    }
    Ok(())
}

fn messages_wait_for_port_recovery(lab: &Lab) -> Result<(), Stop> {
    let model = lab.model()?;
    let mut pair = Pair::new(lab)?;
    let to = pair.b.remote(0)?;
    model.set_port(0, 1, false);
    pair.a.qp.post(&Write::new(Inline(b"patience"), to).signaled(), 0)?;
    let Endpoint { qp, send_cq, .. } = &mut pair.a;
    quiet("a WRITE passed a port that is down", || qp.poll(send_cq))?;
    model.set_port(0, 1, true);
    pair.a.sent()??;
    pair.b.placed(0, b"patience", "the arrived bytes")?;
    Ok(())
}

fn lasting_port_down_exceeds_retries(lab: &Lab) -> Result<(), Stop> {
    let model = lab.model()?;
    let mut pair = Pair::with_short_timeouts(lab)?;
    let to = pair.b.remote(0)?;
    model.set_port(1, 1, false);
    pair.a.qp.post(&Write::new(Inline(b"hello?"), to).signaled(), 0)?;
    failed(pair.a.sent()?, WcStatus::TransportRetryExceeded)?;
    Ok(())
}

fn fatal_device_rejects_commands_with_hint(lab: &Lab) -> Result<(), Stop> {
    let device = lab.device()?;
    let domain = Domain::new(&device)?;
    lab.kill(0)?;
    let errors = [
        ("NOP", device.nop().err()),
        ("a PD", device.alloc_pd().err()),
        ("a region", domain.region(4096, KeyAccess::ALL).err()),
        ("a CQ", domain.completion_queue(&CqConfig::new(4)).err()),
    ];
    for (what, error) in errors {
        let error = error.ok_or_else(|| Stop::fail(format!("{what} of a dead device")))?;
        ensure!(!error.hint().is_empty(), "{what}: {error} has no hint");
    }
    let error = device.nop().err().map(|error| error.kind());
    ensure_eq!(error, Some(ErrorKind::DeviceGone), "kind");
    Ok(())
}

fn fatal_device_ends_waits_for_completions(lab: &Lab) -> Result<(), Stop> {
    let mut pair = Pair::new(lab)?;
    let mut events = CqEvents::new(&pair.a.device)?;
    events.add(&mut pair.a.send_cq, 0)?;
    let verbs = pair.a.device.async_event_alloc()?;
    let channel = pair.a.device.event_channel(true)?;
    std::thread::scope(|scope| {
        let cq = &mut pair.a.send_cq;
        let waiting = scope.spawn(|| {
            let waited = events.wait_for(cq, Some(TIMEOUT)).map_err(|error| error.kind());
            let again = events.wait_for(cq, Some(TIMEOUT)).map_err(|error| error.kind());
            let others = events.wait(Some(TIMEOUT)).map_err(|error| error.kind());
            (waited, again, others)
        });
        std::thread::sleep(Duration::from_millis(20));
        lab.kill(0)?;
        let ended = waiting.join().map_err(|_| Stop::fail("the waiting thread panicked"))?;
        let gone = ErrorKind::DeviceGone;
        ensure_eq!(
            ended,
            (Err(gone), Err(gone), Err(gone)),
            "waits for one CQ, twice, and for all"
        );
        Ok::<(), Stop>(())
    })?;
    let event = until("an event of the verbs", || verbs.read().transpose())??;
    ensure_eq!(event, AsyncEvent::DeviceFatal, "event of the verbs");
    // Linux ends DevX's own channels when the device is removed.
    ensure_eq!(channel.read()?, None, "event of a channel of DevX");
    Ok(())
}

fn removed_device_ends_channels(lab: &Lab) -> Result<(), Stop> {
    let mut pair = Pair::new(lab)?;
    let channel = pair.a.device.event_channel(true)?;
    let commands = pair.a.device.command_channel()?;
    pair.a.send_cq.subscribe(&channel, 0)?;
    pair.a.send_cq.arm(Notify::Next);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| channel.wait(Some(TIMEOUT)));
        std::thread::sleep(Duration::from_millis(20));
        lab.remove(0)?;
        let woken = waiting.join().map_err(|_| Stop::fail("the waiting thread panicked"))??;
        ensure!(woken, "the wait on an event channel did not end");
        Ok::<(), Stop>(())
    })?;
    ensure_eq!(channel.read().map_err(|error| error.kind()), Err(ErrorKind::DeviceGone), "channel");
    ensure!(commands.wait(Some(TIMEOUT))?, "the wait for an answer did not end");
    let end = commands.read().map(|_| ()).map_err(|error| error.kind());
    ensure_eq!(end, Err(ErrorKind::DeviceGone), "command channel");
    Ok(())
}

fn fatal_device_completes_nothing_and_leaks_nothing(lab: &Lab) -> Result<(), Stop> {
    let mut pair = Pair::new(lab)?;
    lab.kill(0)?;
    let to = pair.b.remote(0)?;
    pair.a.qp.post(&Write::new(Inline(b"into the void"), to).signaled(), 0)?;
    let Endpoint { qp, send_cq, .. } = &mut pair.a;
    quiet("a dead device completed a request", || qp.poll(send_cq))?;
    ensure_eq!(pair.b.bytes(0, 4)?, [0; 4], "the peer's memory");
    let device = pair.a.device.clone();
    drop(pair);
    ensure_eq!(device.leaked(), 0, "leaks");
    Ok(())
}

fn fatal_peer_exceeds_transport_retries(lab: &Lab) -> Result<(), Stop> {
    let mut pair = Pair::with_short_timeouts(lab)?;
    lab.kill(1)?;
    let to = pair.b.remote(0)?;
    pair.a.qp.post(&Write::new(Inline(b"hello?"), to).signaled(), 0)?;
    failed(pair.a.sent()?, WcStatus::TransportRetryExceeded)?;
    Ok(())
}

fn fatal_device_rejects_open(lab: &Lab) -> Result<(), Stop> {
    lab.kill(0)?;
    let opened = Device::open(lab.backend(), lab.info());
    ensure!(opened.is_err(), "a dead device opened");
    lab.other_device()?.nop()?;
    Ok(())
}

/// A region over memory that records its release.
fn watched_region(domain: &Domain) -> Result<(Region, Arc<AtomicBool>), Stop> {
    struct Watched(SharedMemory, Arc<AtomicBool>);
    impl Drop for Watched {
        fn drop(&mut self) {
            let _ = &self.0;
            self.1.store(true, Ordering::Relaxed);
        }
    }
    let (memory, freed) = (SharedMemory::zeroed(4096), Arc::new(AtomicBool::new(false)));
    let owner = Watched(memory.clone(), freed.clone());
    let region = raw::region_owned_by(domain, &memory, owner, KeyAccess::ALL)?;
    Ok((region, freed))
}

/// Drops objects of a removed device: two queues, and a region whose memory records its release.
fn drop_removed(lab: &Lab) -> Result<(Device, Arc<AtomicBool>), Stop> {
    let device = lab.device()?;
    let domain = Domain::new(&device)?;
    let (region, freed) = watched_region(&domain)?;
    let cq = domain.completion_queue(&CqConfig::new(16))?;
    let qp = domain.queue_pair(&QpConfig::new(4, 4), &cq, &cq)?;
    let receives = domain.srq(&SrqConfig::new(4))?;
    lab.remove(0)?;
    let Err(error) = device.nop() else { return Err(Stop::fail("a removed device answers")) };
    ensure_eq!(error.kind(), ErrorKind::DeviceGone, "kind");
    drop((region, qp, receives, cq, domain));
    Ok((device, freed))
}

fn removed_device_frees_its_memory(lab: &Lab) -> Result<(), Stop> {
    let (device, freed) = drop_removed(lab)?;
    ensure_eq!((device.leaked(), device.lost()), (0, 0), "leaked and lost objects");
    ensure!(freed.load(Ordering::Relaxed), "memory was not freed");
    Ok(())
}

fn lost_umem_is_freed_when_device_file_closes(lab: &Lab) -> Result<(), Stop> {
    let model = lab.model()?;
    for name in ["DEVX_OBJ_DESTROY", "DEVX_UMEM_DEREG"] {
        let ioctl = Ioctl::named(name).ok_or_else(|| Stop::fail(format!("no ioctl {name}")))?;
        for nth in 1..=16 {
            model.fail_ioctl(0, ioctl, nth, Errno::EIO as i32);
        }
    }
    let (device, freed) = drop_removed(lab)?;
    ensure!(device.lost() >= 7, "{} objects were lost", device.lost());
    ensure_eq!(device.leaked(), 0, "leaks");
    ensure!(!freed.load(Ordering::Relaxed), "memory was freed while the file was open");
    drop(device);
    ensure!(freed.load(Ordering::Relaxed), "memory was not freed with the file");
    Ok(())
}

fn leaked_umem_of_live_device_is_never_freed(lab: &Lab) -> Result<(), Stop> {
    let model = lab.model()?;
    lab.excuse(0);
    let device = lab.device()?;
    let domain = Domain::new(&device)?;
    let (region, freed) = watched_region(&domain)?;
    for _ in 0..2 {
        model.fail_command(
            0,
            verbless_prm::Opcode(prm::DESTROY_MKEY.opcode),
            1,
            CommandStatus::RES_BUSY,
            0,
        );
    }
    drop((region, domain));
    ensure_eq!((device.leaked(), device.lost()), (1, 0), "leaked and lost objects");
    drop(device);
    ensure!(!freed.load(Ordering::Relaxed), "memory was freed that the device may write");
    Ok(())
}
