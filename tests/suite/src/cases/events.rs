//! Events: completions that wake a waiter, and asynchronous events of the device.

use std::os::fd::AsFd;
use std::time::Duration;

use nix::sys::eventfd::EventFd;
use verbless_command::Moderation;
use verbless_devx::abi::mlx5::MAX_ASYNC_BYTES;
use verbless_devx::{Errno, ErrorKind, Event, EventChannel};
use verbless_prm::hot::event_type;
use verbless_prm::{QueryQpIn, QueryQpOut};
use verbless_queue::cq::Notify;
use verbless_queue::wr::{Inline, Nop, Send, Write};
use verbless_queue::{ConnectOptions, CqConfig, QpConfig, RemoteAddr, Rkey, WcStatus};

use crate::case::cases;
use crate::need::cap;
use crate::{
    Endpoint, Lab, Pair, SMALL_MTU, Stop, TIMEOUT, ensure, ensure_eq, failed, quiet,
    ready_to_receive, until,
};

cases!(
    "events",
    "Events: completions that wake a waiter, and asynchronous events of the device.":
    armed_cq_reports_next_completion,
    eqe_names_its_cq,
    cq_reports_once_per_arm,
    arm_after_unpolled_cqe_reports_at_once,
    arm_after_poll_waits_for_next_cqe,
    arm_before_poll_skips_reported_cqe,
    arming_twice_reports_once,
    solicited_arm_waits_for_solicited_send,
    error_cqe_counts_as_solicited,
    event_arrives_on_selected_vector,
    eventfd_is_signaled_instead_of_channel,
    pending_events_merge_when_data_is_omitted,
    two_channels_report_one_cq,
    channel_wait_lasts_its_timeout,
    sleeping_receiver_misses_no_message,
    destroyed_cq_reports_no_event,
    closed_client_keeps_other_subscriptions,
    moderated_cq_reports_after_its_period [cap!(cq_moderation)],
    privileged_event_types_are_rejected,
    subscription_to_0_or_17_events_is_rejected,
    access_error_event_names_responder_qp,
    first_message_in_rtr_raises_comm_established,
    async_query_answers_through_its_channel,
    unread_async_answers_are_limited_to_1_mib,
);

/// A pair; a's sends complete on an armed CQ of this channel.
fn watched(lab: &Lab, omit_data: bool) -> Result<(Pair, EventChannel), Stop> {
    let pair = Pair::new(lab)?;
    let channel = pair.a.device.event_channel(omit_data)?;
    pair.a.send_cq.subscribe(&channel, 0x1234_5678_9abc)?;
    Ok((pair, channel))
}

fn next(channel: &EventChannel) -> Result<Event, Stop> {
    ensure!(channel.wait(Some(TIMEOUT))?, "no event within {} s", TIMEOUT.as_secs());
    channel.read()?.ok_or_else(|| Stop::fail("the channel was readable, but had no event"))
}

fn none(channel: &EventChannel) -> Result<(), Stop> {
    quiet("an unexpected event", || channel.read().transpose())
}

/// A request of a, completed and polled.
fn one(pair: &mut Pair) -> Result<(), Stop> {
    pair.a.perform(&Nop::new().signaled())?;
    Ok(())
}

fn armed_cq_reports_next_completion(lab: &Lab) -> Result<(), Stop> {
    let (mut pair, channel) = watched(lab, true)?;
    for _ in 0..10 {
        pair.a.send_cq.arm(Notify::Next);
        pair.a.qp.post(&Nop::new().signaled(), 0)?;
        let event = next(&channel)?;
        ensure_eq!(event, Event { cookie: 0x1234_5678_9abc, eqe: None }, "event");
        pair.a.send_cq.event_received();
        pair.a.sent()??;
    }
    Ok(())
}

fn eqe_names_its_cq(lab: &Lab) -> Result<(), Stop> {
    let (mut pair, channel) = watched(lab, false)?;
    pair.a.send_cq.arm(Notify::Next);
    one(&mut pair)?;
    let event = next(&channel)?;
    ensure_eq!(event.cookie, 0x1234_5678_9abc, "cookie");
    let eqe = event.eqe.ok_or_else(|| Stop::fail("the event has no EQE"))?;
    ensure_eq!(eqe[1], event_type::COMPLETION, "type");
    let cqn = u32::from_be_bytes([eqe[0x38], eqe[0x39], eqe[0x3a], eqe[0x3b]]) & 0xff_ffff;
    ensure_eq!(cqn, pair.a.send_cq.cqn().0, "CQ number");
    Ok(())
}

fn cq_reports_once_per_arm(lab: &Lab) -> Result<(), Stop> {
    let (mut pair, channel) = watched(lab, true)?;
    one(&mut pair)?;
    none(&channel)?;
    pair.a.send_cq.arm(Notify::Next);
    one(&mut pair)?;
    next(&channel)?;
    pair.a.send_cq.event_received();
    for _ in 0..10 {
        one(&mut pair)?;
    }
    none(&channel)
}

fn arm_after_unpolled_cqe_reports_at_once(lab: &Lab) -> Result<(), Stop> {
    let (mut pair, channel) = watched(lab, true)?;
    // The WRITE after it has arrived, so its completion is there; no poll has taken it.
    let to = pair.b.remote(0)?;
    pair.a.qp.post(&Nop::new().signaled(), 0)?;
    pair.a.qp.post(&Write::new(Inline(b"!"), to), 0)?;
    until("a WRITE", || pair.b.bytes(0, 1).ok().filter(|bytes| bytes == b"!"))?;
    pair.a.send_cq.arm(Notify::Next);
    next(&channel)?;
    Ok(())
}

fn arm_after_poll_waits_for_next_cqe(lab: &Lab) -> Result<(), Stop> {
    let (mut pair, channel) = watched(lab, true)?;
    for _ in 0..3 {
        one(&mut pair)?;
    }
    pair.a.send_cq.arm(Notify::Next);
    none(&channel)?;
    one(&mut pair)?;
    next(&channel)?;
    Ok(())
}

/// The loop of rdma-core's performance tests: event, arm, one poll.
fn arm_before_poll_skips_reported_cqe(lab: &Lab) -> Result<(), Stop> {
    let (mut pair, channel) = watched(lab, true)?;
    pair.a.send_cq.arm(Notify::Next);
    for _ in 0..20 {
        pair.a.qp.post(&Nop::new().signaled(), 0)?;
        next(&channel)?;
        pair.a.send_cq.event_received();
        pair.a.send_cq.arm(Notify::Next);
        let Endpoint { qp, send_cq, .. } = &mut pair.a;
        let done = qp.poll(send_cq);
        done.ok_or_else(|| Stop::fail("an event without a new completion"))??;
    }
    none(&channel)
}

fn arming_twice_reports_once(lab: &Lab) -> Result<(), Stop> {
    let (mut pair, channel) = watched(lab, true)?;
    for _ in 0..5 {
        pair.a.send_cq.arm(Notify::Next);
        pair.a.send_cq.arm(Notify::Next);
        one(&mut pair)?;
        next(&channel)?;
        none(&channel)?;
        pair.a.send_cq.event_received();
    }
    Ok(())
}

fn solicited_arm_waits_for_solicited_send(lab: &Lab) -> Result<(), Stop> {
    let mut pair = Pair::new(lab)?;
    let channel = pair.b.device.event_channel(true)?;
    pair.b.receive_cq.subscribe(&channel, 1)?;
    (0..4).try_for_each(|cookie| pair.b.receive(0, 64, cookie))?;
    pair.b.receive_cq.arm(Notify::Solicited);
    pair.a.perform(&Send::new(Inline(b"psst")).signaled())?;
    pair.b.received()??;
    none(&channel)?;
    pair.a.perform(&Send::new(Inline(b"wake up")).solicited().signaled())?;
    next(&channel)?;
    pair.b.received()??;
    Ok(())
}

/// A WRITE that the peer must refuse.
fn refused_write(pair: &Pair) -> Result<Write<Inline<'static>>, Stop> {
    let to = RemoteAddr { rkey: Rkey(0), ..pair.b.remote(0)? };
    Ok(Write::new(Inline(b"doomed"), to))
}

fn error_cqe_counts_as_solicited(lab: &Lab) -> Result<(), Stop> {
    let (mut pair, channel) = watched(lab, true)?;
    pair.a.send_cq.arm(Notify::Solicited);
    one(&mut pair)?;
    none(&channel)?;
    let doomed = refused_write(&pair)?;
    pair.a.qp.post(&doomed, 0)?;
    next(&channel)?;
    failed(pair.a.sent()?, WcStatus::RemoteAccess)?;
    Ok(())
}

fn event_arrives_on_selected_vector(lab: &Lab) -> Result<(), Stop> {
    let mut pair = Pair::new(lab)?;
    let vectors = pair.a.device.attributes().completion_vectors;
    for vector in [0, vectors / 2, vectors - 1] {
        let config = CqConfig { vector, ..CqConfig::new(32) };
        let cq = pair.a.domain.completion_queue(&config)?;
        let qp = pair.a.domain.queue_pair(&QpConfig::new(8, 8), &cq, &cq)?;
        pair.a.qp = qp;
        pair.a.send_cq = cq;
        pair.b.qp.reset()?;
        pair.connect(&Default::default())?;
        let channel = pair.a.device.event_channel(true)?;
        pair.a.send_cq.subscribe(&channel, vector.into())?;
        pair.a.send_cq.arm(Notify::Next);
        one(&mut pair)?;
        ensure_eq!(next(&channel)?.cookie, u64::from(vector), "cookie");
    }
    Ok(())
}

fn eventfd_is_signaled_instead_of_channel(lab: &Lab) -> Result<(), Stop> {
    let mut pair = Pair::new(lab)?;
    let channel = pair.a.device.event_channel(true)?;
    let eventfd = EventFd::from_flags(nix::sys::eventfd::EfdFlags::EFD_NONBLOCK)?;
    let cq = pair.a.send_cq.object().clone();
    channel.subscribe_eventfd(
        Some(cq.object()),
        &[event_type::COMPLETION.into()],
        eventfd.as_fd(),
    )?;
    pair.a.send_cq.arm(Notify::Next);
    one(&mut pair)?;
    let count = until("a signal on the eventfd", || eventfd.read().ok())?;
    ensure_eq!(count, 1, "signals");
    none(&channel)
}

fn pending_events_merge_when_data_is_omitted(lab: &Lab) -> Result<(), Stop> {
    let (mut pair, channel) = watched(lab, true)?;
    for _ in 0..5 {
        pair.a.send_cq.arm(Notify::Next);
        one(&mut pair)?;
        // The next arm must come after the event of this completion.
        ensure!(channel.wait(Some(TIMEOUT))?, "no event");
        std::thread::sleep(Duration::from_millis(5));
        pair.a.send_cq.event_received();
    }
    next(&channel)?;
    none(&channel)
}

fn two_channels_report_one_cq(lab: &Lab) -> Result<(), Stop> {
    let (mut pair, first) = watched(lab, true)?;
    let second = pair.a.device.event_channel(false)?;
    pair.a.send_cq.subscribe(&second, 2)?;
    pair.a.send_cq.arm(Notify::Next);
    one(&mut pair)?;
    next(&first)?;
    ensure_eq!(next(&second)?.cookie, 2, "cookie of the second");
    // A closed channel does not count.
    drop(first);
    pair.a.send_cq.event_received();
    pair.a.send_cq.arm(Notify::Next);
    one(&mut pair)?;
    next(&second)?;
    Ok(())
}

fn channel_wait_lasts_its_timeout(lab: &Lab) -> Result<(), Stop> {
    let (_pair, channel) = watched(lab, true)?;
    let start = std::time::Instant::now();
    ensure!(!channel.wait(Some(Duration::from_millis(30)))?, "an unexpected event");
    ensure!(start.elapsed() >= Duration::from_millis(30), "after {:?}", start.elapsed());
    ensure!(!channel.wait(Some(Duration::ZERO))?, "an unexpected event");
    Ok(())
}

fn sleeping_receiver_misses_no_message(lab: &Lab) -> Result<(), Stop> {
    const MESSAGES: u64 = 500;
    let Pair { mut a, b } = Pair::new(lab)?;
    let channel = b.device.event_channel(true)?;
    b.receive_cq.subscribe(&channel, 0)?;
    let Endpoint { mut receive_cq, mut qp, region, .. } = b;
    for cookie in 0..32 {
        qp.post_receive(region.sge(0, 64)?, cookie)?;
    }
    std::thread::scope(|scope| {
        let receiver = scope.spawn(move || -> Result<(), Stop> {
            let mut message = 0;
            while message < MESSAGES {
                // Arm, poll once more, then sleep: a completion in between is not lost.
                receive_cq.arm(Notify::Next);
                let Some(done) = qp.poll(&mut receive_cq) else {
                    ensure!(channel.wait(Some(TIMEOUT))?, "message {message}: no event");
                    channel.read()?;
                    receive_cq.event_received();
                    continue;
                };
                ensure_eq!(done?.cookie, message, "cookie");
                qp.post_receive(region.sge(0, 64)?, message + 32)?;
                message += 1;
            }
            Ok(())
        });
        for message in 0..MESSAGES {
            a.perform(&Send::new(Inline(b"tick")).signaled())?;
            if message % 50 == 0 {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        receiver.join().map_err(|_| Stop::fail("the receiver panicked"))?
    })
}

fn destroyed_cq_reports_no_event(lab: &Lab) -> Result<(), Stop> {
    let pair = Pair::new(lab)?;
    let channel = pair.a.device.event_channel(true)?;
    for cookie in 0..20 {
        let cq = pair.a.domain.completion_queue(&CqConfig::new(8))?;
        cq.subscribe(&channel, cookie)?;
    }
    // New queues with the same numbers are other queues.
    let cq = pair.a.domain.completion_queue(&CqConfig::new(64))?;
    let mut end = Endpoint { send_cq: cq, ..pair.a };
    end.qp = end.domain.queue_pair(&QpConfig::new(8, 8), &end.send_cq, &end.receive_cq)?;
    let options = Default::default();
    let address = end.domain.address(&end.qp, &options)?;
    end.domain.connect(&mut end.qp, &address, &options)?;
    end.send_cq.arm(Notify::Next);
    end.perform(&Nop::new().signaled())?;
    none(&channel)
}

/// Two clients make the same objects in the same order, so that counters per client have equal
/// values in both.
fn closed_client_keeps_other_subscriptions(lab: &Lab) -> Result<(), Stop> {
    let watched = |cookie| -> Result<(Endpoint, EventChannel), Stop> {
        let mut end = Endpoint::new(lab.device()?, &QpConfig::new(8, 8), 4096)?;
        let options = Default::default();
        let address = end.domain.address(&end.qp, &options)?;
        end.domain.connect(&mut end.qp, &address, &options)?;
        let channel = end.device.event_channel(true)?;
        end.send_cq.subscribe(&channel, cookie)?;
        end.send_cq.arm(Notify::Next);
        Ok((end, channel))
    };
    let mut stays = watched(0)?;
    for cookie in 1..8 {
        let comes = watched(cookie)?;
        let (mut goes, channel) = std::mem::replace(&mut stays, comes);
        goes.perform(&Nop::new().signaled())?;
        ensure_eq!(next(&channel)?.cookie, cookie - 1, "cookie of the first of two clients");
        drop((goes, channel));
        let (end, channel) = &mut stays;
        end.perform(&Nop::new().signaled())?;
        ensure_eq!(next(channel)?.cookie, cookie, "cookie after the other client closed");
        end.send_cq.event_received();
        end.send_cq.arm(Notify::Next);
    }
    Ok(())
}

fn moderated_cq_reports_after_its_period(lab: &Lab) -> Result<(), Stop> {
    let (mut pair, channel) = watched(lab, true)?;
    pair.a.send_cq.object().set_moderation(Moderation { period: 2000, count: 100 })?;
    for _ in 0..10 {
        pair.a.send_cq.arm(Notify::Next);
        one(&mut pair)?;
        one(&mut pair)?;
        next(&channel)?;
        pair.a.send_cq.event_received();
    }
    Ok(())
}

fn privileged_event_types_are_rejected(lab: &Lab) -> Result<(), Stop> {
    let pair = Pair::new(lab)?;
    let channel = pair.a.device.event_channel(false)?;
    for kind in [event_type::COMMAND_COMPLETION, event_type::PAGE_REQUEST] {
        ensure!(channel.subscribe(None, &[kind.into()], 0).is_err(), "event {kind:#x}");
    }
    ensure!(channel.subscribe(None, &[0x1ff], 0).is_err(), "event 0x1ff");
    // An event of a queue is not an event of the device.
    let completions = [event_type::COMPLETION.into()];
    ensure!(channel.subscribe(None, &completions, 0).is_err(), "completions of the device");
    Ok(())
}

fn subscription_to_0_or_17_events_is_rejected(lab: &Lab) -> Result<(), Stop> {
    let pair = Pair::new(lab)?;
    let channel = pair.a.device.event_channel(false)?;
    for count in [0, 17] {
        let kinds = vec![u16::from(event_type::PORT_CHANGE); count];
        let refused = channel.subscribe(None, &kinds, 0).err();
        let kind = refused.map(|error| error.kind());
        ensure_eq!(kind, Some(ErrorKind::InvalidInput), format!("{count} events"));
    }
    Ok(())
}

fn access_error_event_names_responder_qp(lab: &Lab) -> Result<(), Stop> {
    let mut pair = Pair::new(lab)?;
    let channel = pair.b.device.event_channel(false)?;
    let kinds = [event_type::WQ_ACCESS_ERROR, event_type::WQ_INVALID_REQUEST_ERROR].map(u16::from);
    channel.subscribe(Some(pair.b.qp.object().object()), &kinds, 31)?;
    let doomed = refused_write(&pair)?;
    pair.a.qp.post(&doomed, 0)?;
    failed(pair.a.sent()?, WcStatus::RemoteAccess)?;
    let event = next(&channel)?;
    ensure_eq!(event.cookie, 31, "cookie");
    let eqe = event.eqe.ok_or_else(|| Stop::fail("the event has no EQE"))?;
    ensure_eq!(eqe[1], event_type::WQ_ACCESS_ERROR, "type");
    let qpn = u32::from_be_bytes([0, eqe[0x39], eqe[0x3a], eqe[0x3b]]);
    ensure_eq!(qpn, pair.b.qp.qpn().0, "QP number");
    Ok(())
}

fn first_message_in_rtr_raises_comm_established(lab: &Lab) -> Result<(), Stop> {
    let mut pair = Pair::unconnected(lab, &QpConfig::new(8, 8), 4096)?;
    let channel = pair.b.device.event_channel(false)?;
    let kind = event_type::COMMUNICATION_ESTABLISHED;
    channel.subscribe(Some(pair.b.qp.object().object()), &[kind.into()], 8)?;
    let options = ConnectOptions { mtu: Some(SMALL_MTU), ..Default::default() };
    let here = pair.a.domain.address(&pair.a.qp, &options)?;
    let there = pair.b.domain.address(&pair.b.qp, &options)?;
    ready_to_receive(&pair.b.domain, &mut pair.b.qp, &here)?;
    pair.a.domain.connect(&mut pair.a.qp, &there, &options)?;
    none(&channel)?;
    let to = pair.b.remote(0)?;
    pair.a.perform(&Write::new(Inline(b"first"), to).signaled())?;
    let event = next(&channel)?;
    ensure_eq!(event.cookie, 8, "cookie");
    ensure_eq!(event.eqe.map(|eqe| eqe[1]), Some(kind), "type");
    Ok(())
}

fn async_query_answers_through_its_channel(lab: &Lab) -> Result<(), Stop> {
    let pair = Pair::new(lab)?;
    let channel = pair.a.device.command_channel()?;
    let mut input = QueryQpIn::new();
    input.set_qpn(pair.a.qp.qpn().0);
    for wr_id in 0..5 {
        channel.query(
            pair.a.qp.object().object(),
            input.as_bytes(),
            QueryQpOut::BYTES as u16,
            wr_id,
        )?;
    }
    for wr_id in 0..5 {
        ensure!(channel.wait(Some(TIMEOUT))?, "no answer {wr_id}");
        let answer = channel.read()?.ok_or_else(|| Stop::fail("no answer to read"))?;
        ensure_eq!(answer.wr_id, wr_id, "id of the answer");
        answer.check(input.as_bytes())?;
        let output = QueryQpOut::from_prefix(&answer.output);
        let shown = output.map(|output| output.qpc().remote_qpn());
        ensure_eq!(shown, Some(pair.b.qp.qpn().0), "remote QPN");
    }
    Ok(())
}

fn unread_async_answers_are_limited_to_1_mib(lab: &Lab) -> Result<(), Stop> {
    // Room for more than the answer, so that few answers fill the channel.
    const LENGTH: u16 = 4096;
    const MAX_ANSWERS: u64 = (MAX_ASYNC_BYTES / LENGTH as usize) as u64;
    let end = Pair::new(lab)?.a;
    let channel = end.device.command_channel()?;
    let mut input = QueryQpIn::new();
    input.set_qpn(end.qp.qpn().0);
    let query = |wr_id| channel.query(end.qp.object().object(), input.as_bytes(), LENGTH, wr_id);
    for wr_id in 0..MAX_ANSWERS {
        query(wr_id)?;
    }
    let refused = query(MAX_ANSWERS).err().and_then(|error| error.errno());
    ensure_eq!(refused, Some(Errno::EAGAIN), "one answer more than may wait");
    for wr_id in 0..MAX_ANSWERS {
        ensure!(channel.wait(Some(TIMEOUT))?, "no answer {wr_id}");
        let answer = channel.read()?.ok_or_else(|| Stop::fail("no answer to read"))?;
        ensure_eq!(answer.wr_id, wr_id, "id of the answer");
    }
    query(MAX_ANSWERS)?;
    ensure!(channel.wait(Some(TIMEOUT))?, "no answer when all others were read");
    Ok(())
}
