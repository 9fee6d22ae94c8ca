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
use verbless_queue::{ConnectOptions, CqConfig, Domain, QpConfig, Region, SrqConfig, Status};

use crate::case::cases;
use crate::raw;
use crate::{Endpoint, Lab, Need, Pair, Stop, TIMEOUT, ensure, ensure_eq, failed, quiet, until};

cases!(
    "faults",
    "Faults on request: commands that fail, lost completions, ports and devices that go down.",
    needs [Need::Model, Need::Lossless]:
    a_command_that_fails_reports_status_syndrome_and_name,
    only_the_command_that_was_chosen_fails,
    a_creation_that_fails_leaves_nothing_behind,
    a_device_that_fails_while_it_is_opened_opens_the_next_time,
    a_transition_that_fails_leaves_the_state_as_it_was,
    a_destruction_that_fails_is_counted_and_its_memory_is_kept,
    a_queue_pair_that_does_not_reset_keeps_its_number,
    a_lost_message_is_sent_again,
    messages_that_are_lost_too_often_exceed_the_retries,
    a_lost_completion_is_made_good_by_the_next,
    a_delayed_completion_comes_later_and_in_order,
    a_port_that_goes_down_says_so_and_comes_back,
    messages_wait_for_a_port_that_comes_back_in_time,
    a_port_that_stays_down_exceeds_the_retries,
    a_dead_device_refuses_commands_with_a_clear_error,
    a_dead_device_wakes_all_who_wait,
    a_dead_device_completes_nothing_and_is_let_go,
    a_dead_peer_completes_with_retries_exceeded,
    a_dead_device_cannot_be_opened,
    what_a_removed_device_held_is_destroyed_and_its_memory_freed,
    memory_that_a_removed_devices_kernel_keeps_is_held_until_its_file_closes_and_then_freed,
    memory_that_a_living_device_did_not_let_go_of_is_never_freed,
);

/// Lets the next command of this kind on the first device fail for want of resources.
fn fail_next(lab: &Lab, command: &CommandInfo) -> Result<(), Stop> {
    lab.model()?.fail_command(0, command.opcode, 1, CommandStatus::NO_RES.0, 0xbad_cafe);
    Ok(())
}

fn a_command_that_fails_reports_status_syndrome_and_name(lab: &Lab) -> Result<(), Stop> {
    let device = lab.device();
    fail_next(lab, &prm::NOP)?;
    let device = device?;
    let Err(error) = device.nop() else { return Err(Stop::fail("it worked")) };
    ensure_eq!(error.kind(), ErrorKind::Command, "kind");
    ensure_eq!(error.status(), Some(CommandStatus::NO_RES.0), "status");
    ensure_eq!(error.syndrome(), Some(0xbad_cafe), "syndrome");
    ensure_eq!(error.errno(), Some(Errno::EREMOTEIO), "errno");
    ensure_eq!(error.command().and_then(|command| command.name()), Some("NOP"), "command");
    let text = error.to_string();
    for word in ["NOP", "NO_RES", "0xbadcafe"] {
        ensure!(text.contains(word), "{text:?} does not say {word}");
    }
    ensure!(!error.hint().is_empty(), "no hint");
    Ok(device.nop()?)
}

fn only_the_command_that_was_chosen_fails(lab: &Lab) -> Result<(), Stop> {
    let model = lab.model()?;
    let device = lab.device()?;
    model.fail_command(0, prm::NOP.opcode, 3, CommandStatus::INTERNAL_ERR.0, 1);
    for nth in 1..=5 {
        ensure_eq!(device.nop().is_err(), nth == 3, format!("whether command {nth} fails"));
    }
    Ok(())
}

fn a_creation_that_fails_leaves_nothing_behind(lab: &Lab) -> Result<(), Stop> {
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
    // Where there is no page for BlueFlame, one of the other kind would do.
    fail_next(lab, &prm::ALLOC_UAR)?;
    fail_next(lab, &prm::ALLOC_UAR)?;
    ensure!(Domain::new(&device).is_err(), "a domain without a UAR page");
    fail_next(lab, &prm::ALLOC_PD)?;
    ensure!(Domain::new(&device).is_err(), "a domain without a PD");
    ensure_eq!(model.counts(0), before, "objects");
    ensure_eq!(device.leaked(), 0, "leaks");
    Ok(())
}

fn a_device_that_fails_while_it_is_opened_opens_the_next_time(lab: &Lab) -> Result<(), Stop> {
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
        ensure!(opened.is_err(), "it opened without {}", command.name);
        lab.device()?.nop()?;
    }
    Ok(())
}

fn a_transition_that_fails_leaves_the_state_as_it_was(lab: &Lab) -> Result<(), Stop> {
    let mut pair = Pair::unconnected(lab, &QpConfig::new(4, 4), 4096)?;
    for (command, state) in [
        (&prm::RST2INIT_QP, prm::QpState::RST),
        (&prm::INIT2RTR_QP, prm::QpState::INIT),
        (&prm::RTR2RTS_QP, prm::QpState::RTR),
    ] {
        fail_next(lab, command)?;
        let Err(Stop(text)) = pair.connect(&ConnectOptions::default()) else {
            return Err(Stop::fail(format!("it connected without {}", command.name)));
        };
        ensure!(text.contains(command.name), "{text:?} does not name {}", command.name);
        ensure_eq!(pair.a.qp.object().state()?, state, "state");
        for end in [&mut pair.a, &mut pair.b] {
            end.qp.reset()?;
        }
    }
    pair.connect(&ConnectOptions::default())
}

fn a_destruction_that_fails_is_counted_and_its_memory_is_kept(lab: &Lab) -> Result<(), Stop> {
    let model = lab.model()?;
    lab.excuse(0);
    let device = lab.device()?;
    let domain = Domain::new(&device)?;
    let region = domain.region(4096, KeyAccess::ALL)?;
    let before = model.counts(0);
    model.fail_command(0, prm::DESTROY_MKEY.opcode, 1, CommandStatus::RES_BUSY.0, 0);
    model.fail_command(0, prm::DESTROY_MKEY.opcode, 1, CommandStatus::RES_BUSY.0, 0);
    drop(region);
    ensure!(device.leaked() > 0, "no leak was counted");
    let after = model.counts(0);
    ensure_eq!((after.mkeys, after.umems), (before.mkeys, before.umems), "keys and UMEMs");
    Ok(device.nop()?)
}

/// What it has outstanding may still complete, and would complete another's requests.
fn a_queue_pair_that_does_not_reset_keeps_its_number(lab: &Lab) -> Result<(), Stop> {
    let model = lab.model()?;
    lab.excuse(0);
    let device = lab.device()?;
    let domain = Domain::new(&device)?;
    let cq = domain.completion_queue(&CqConfig::new(1024))?;
    let make = || domain.queue_pair(&QpConfig::new(4, 4), &cq, &cq);
    let mut qp = make()?;
    let number = qp.qpn();
    // In RESET there is nothing to take back.
    let access = RemoteAccess::ALL;
    qp.to_init(&InitAttr { port: 1, pkey_index: 0, access })?;
    let before = model.counts(0).qps;
    model.fail_command(0, prm::QP_2RST.opcode, 1, CommandStatus::NO_RES.0, 0);
    ensure!(qp.reset().is_err(), "it was reset");
    ensure_eq!(device.leaked(), 0, "leaks");
    model.fail_command(0, prm::QP_2RST.opcode, 1, CommandStatus::NO_RES.0, 0);
    drop(qp);
    ensure_eq!(device.leaked(), 1, "leaks");
    ensure_eq!(model.counts(0).qps, before, "queue pairs");
    let others = (0..64).map(|_| make()).collect::<Result<Vec<_>, _>>()?;
    ensure!(others.iter().all(|other| other.qpn() != number), "{number} was given again");
    Ok(())
}

fn a_lost_message_is_sent_again(lab: &Lab) -> Result<(), Stop> {
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

fn messages_that_are_lost_too_often_exceed_the_retries(lab: &Lab) -> Result<(), Stop> {
    let model = lab.model()?;
    let mut pair = Pair::impatient(lab)?;
    model.inject(0, Fault::LoseMessage, 0, 100);
    let to = pair.b.remote(0)?;
    pair.a.qp.post(&Write::new(Inline(b"lost"), to).signaled(), 3)?;
    ensure_eq!(failed(pair.a.sent()?, Status::TransportRetryExceeded)?, 3, "cookie");
    Ok(())
}

fn a_lost_completion_is_made_good_by_the_next(lab: &Lab) -> Result<(), Stop> {
    let model = lab.model()?;
    let mut pair = Pair::new(lab)?;
    let free = pair.a.qp.send.free();
    model.inject(0, Fault::LoseCompletion, 0, 1);
    pair.a.qp.post(&Nop::new().signaled(), 0)?;
    let Endpoint { qp, send_cq, .. } = &mut pair.a;
    quiet("a lost completion came", || qp.poll(send_cq))?;
    pair.a.qp.post(&Nop::new().signaled(), 1)?;
    ensure_eq!(pair.a.sent()??.cookie, 1, "cookie");
    ensure_eq!(pair.a.qp.send.free(), free, "free wqebbs");
    Ok(())
}

/// How late a completion is that is delayed.
const DELAY: Duration = Duration::from_millis(200);

fn a_delayed_completion_comes_later_and_in_order(lab: &Lab) -> Result<(), Stop> {
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

fn a_port_that_goes_down_says_so_and_comes_back(lab: &Lab) -> Result<(), Stop> {
    let model = lab.model()?;
    let device = lab.device()?;
    let verbs = device.async_event_alloc()?;
    let channel = device.event_channel(false)?;
    channel.subscribe(None, &[event_type::PORT_CHANGE.into()], 4)?;
    for up in [false, true] {
        model.set_port(0, 1, up);
        let told = until("an event of the verbs", || verbs.read().transpose())??;
        let event = if up { verbs_event::PORT_ACTIVE } else { verbs_event::PORT_ERR };
        ensure_eq!(told, AsyncEvent::Port { port: 1, event }, "event of the verbs");
        let event = until("an event of the port", || channel.read().transpose())??;
        ensure_eq!(event.cookie, 4, "cookie");
        ensure_eq!(event.eqe.map(|eqe| eqe[1]), Some(event_type::PORT_CHANGE), "type");
        ensure_eq!(device.query_port(1)?.is_active(), up, "whether the port is active");
    }
    Ok(())
}

fn messages_wait_for_a_port_that_comes_back_in_time(lab: &Lab) -> Result<(), Stop> {
    let model = lab.model()?;
    let mut pair = Pair::new(lab)?;
    let to = pair.b.remote(0)?;
    model.set_port(0, 1, false);
    pair.a.qp.post(&Write::new(Inline(b"patience"), to).signaled(), 0)?;
    let Endpoint { qp, send_cq, .. } = &mut pair.a;
    quiet("a WRITE passed a port that is down", || qp.poll(send_cq))?;
    model.set_port(0, 1, true);
    pair.a.sent()??;
    ensure_eq!(pair.b.bytes(0, 8)?, b"patience", "what arrived");
    Ok(())
}

fn a_port_that_stays_down_exceeds_the_retries(lab: &Lab) -> Result<(), Stop> {
    let model = lab.model()?;
    let mut pair = Pair::impatient(lab)?;
    let to = pair.b.remote(0)?;
    model.set_port(1, 1, false);
    pair.a.qp.post(&Write::new(Inline(b"hello?"), to).signaled(), 0)?;
    failed(pair.a.sent()?, Status::TransportRetryExceeded)?;
    Ok(())
}

fn a_dead_device_refuses_commands_with_a_clear_error(lab: &Lab) -> Result<(), Stop> {
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

fn a_dead_device_wakes_all_who_wait(lab: &Lab) -> Result<(), Stop> {
    let mut pair = Pair::new(lab)?;
    let channel = pair.a.device.event_channel(true)?;
    let verbs = pair.a.device.async_event_alloc()?;
    let commands = pair.a.device.command_channel()?;
    pair.a.send_cq.subscribe(&channel, 0)?;
    pair.a.send_cq.arm(Notify::Next);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| channel.wait(Some(TIMEOUT)));
        std::thread::sleep(Duration::from_millis(20));
        lab.kill(0)?;
        let woken = waiting.join().map_err(|_| Stop::fail("the waiting thread panicked"))??;
        ensure!(woken, "who waits on an event channel sleeps on");
        Ok::<(), Stop>(())
    })?;
    let told = until("an event of the verbs", || verbs.read().transpose())??;
    ensure_eq!(told, AsyncEvent::DeviceFatal, "event of the verbs");
    ensure_eq!(channel.read().map_err(|error| error.kind()), Err(ErrorKind::DeviceGone), "channel");
    ensure!(commands.wait(Some(TIMEOUT))?, "who waits for an answer sleeps on");
    let end = commands.read().map(|_| ()).map_err(|error| error.kind());
    ensure_eq!(end, Err(ErrorKind::DeviceGone), "command channel");
    Ok(())
}

fn a_dead_device_completes_nothing_and_is_let_go(lab: &Lab) -> Result<(), Stop> {
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

fn a_dead_peer_completes_with_retries_exceeded(lab: &Lab) -> Result<(), Stop> {
    let mut pair = Pair::impatient(lab)?;
    lab.kill(1)?;
    let to = pair.b.remote(0)?;
    pair.a.qp.post(&Write::new(Inline(b"hello?"), to).signaled(), 0)?;
    failed(pair.a.sent()?, Status::TransportRetryExceeded)?;
    Ok(())
}

fn a_dead_device_cannot_be_opened(lab: &Lab) -> Result<(), Stop> {
    lab.kill(0)?;
    let opened = Device::open(lab.backend(), lab.info());
    ensure!(opened.is_err(), "a dead device opened");
    lab.other_device()?.nop()?;
    Ok(())
}

/// A region over memory that says when it is freed.
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

/// What is dropped with a removed device: the objects of two queues, and a region's memory, which
/// says whether it was freed.
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

fn what_a_removed_device_held_is_destroyed_and_its_memory_freed(lab: &Lab) -> Result<(), Stop> {
    let (device, freed) = drop_removed(lab)?;
    ensure_eq!((device.leaked(), device.lost()), (0, 0), "leaks, and what was lost");
    ensure!(freed.load(Ordering::Relaxed), "memory was not freed");
    Ok(())
}

fn memory_that_a_removed_devices_kernel_keeps_is_held_until_its_file_closes_and_then_freed(
    lab: &Lab,
) -> Result<(), Stop> {
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

fn memory_that_a_living_device_did_not_let_go_of_is_never_freed(lab: &Lab) -> Result<(), Stop> {
    let model = lab.model()?;
    lab.excuse(0);
    let device = lab.device()?;
    let domain = Domain::new(&device)?;
    let (region, freed) = watched_region(&domain)?;
    for _ in 0..2 {
        model.fail_command(0, prm::DESTROY_MKEY.opcode, 1, CommandStatus::RES_BUSY.0, 0);
    }
    drop((region, domain));
    ensure_eq!((device.leaked(), device.lost()), (1, 0), "leaks, and what was lost");
    drop(device);
    ensure!(!freed.load(Ordering::Relaxed), "memory was freed that the device may write");
    Ok(())
}
