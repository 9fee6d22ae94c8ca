//! Sleeping until completions arrive: no wake-up is lost, and none is waited for in vain.

use std::os::fd::{AsFd, AsRawFd};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use verbless_devx::ErrorKind;
use verbless_queue::wr::{Inline, Nop, Send};
use verbless_queue::{CqConfig, CqEvents, Dispatcher, Parked, QpConfig};

use crate::case::cases;
use crate::need::Need;
use crate::{Endpoint, Lab, Pair, Stop, TIMEOUT, ensure, ensure_eq, quiet, until};

cases!(
    "sleep",
    "Sleeping until completions arrive: no wake-up is lost, and none is waited for in vain.":
    a_parked_queue_wakes_who_waits_for_its_token,
    a_queue_with_completions_is_ready_and_need_not_be_waited_for,
    a_completion_between_the_poll_and_the_park_is_not_slept_through,
    an_event_that_nobody_took_does_not_keep_the_queue_from_waking_again,
    a_wait_ends_when_its_time_is_over_and_not_before,
    an_event_without_a_new_completion_wakes_and_is_waited_through,
    waiting_for_one_queue_keeps_the_events_of_the_others,
    completions_are_iterated_as_they_come_and_the_iterator_ends_with_the_time,
    a_future_is_ready_when_a_completion_is_there,
    a_future_that_was_dropped_has_lost_nothing,
    a_queue_that_was_not_added_is_not_parked_and_one_is_added_once,
    a_queue_goes_on_with_another_channel_when_its_first_is_gone,
    queues_that_come_and_go_are_heard_of_no_more,
    a_thousand_messages_to_a_sleeping_receiver_wake_it_for_each,
    many_queue_pairs_are_served_by_one_thread_that_sleeps_on_one_file,
    five_hundred_connections_share_one_completion_queue_and_one_sleeping_thread,
    workers_park_their_queues_while_another_thread_hands_out_the_events,
    a_device_that_is_removed_wakes_all_who_sleep [Need::Model],
);

/// A pair, and a file for the events of a's sends under the token 7.
fn watched(lab: &Lab) -> Result<(Pair, CqEvents), Stop> {
    let mut pair = Pair::new(lab)?;
    let events = CqEvents::new(&pair.a.device)?;
    events.add(&mut pair.a.send_cq, 7)?;
    Ok((pair, events))
}

/// A request of a that completes; it is not polled.
fn start(pair: &mut Pair) -> Result<(), Stop> {
    pair.a.qp.post(&Nop::new().signaled(), 0)?;
    Ok(())
}

fn there(pair: &Pair) -> Result<(), Stop> {
    until("a completion", || (!pair.a.send_cq.is_empty()).then_some(()))
}

fn readable(events: &CqEvents) -> Result<bool, Stop> {
    let mut files = [PollFd::new(events.as_fd(), PollFlags::POLLIN)];
    Ok(poll(&mut files, PollTimeout::ZERO)? == 1)
}

fn a_parked_queue_wakes_who_waits_for_its_token(lab: &Lab) -> Result<(), Stop> {
    let (mut pair, events) = watched(lab)?;
    for _ in 0..20 {
        ensure_eq!(events.park(&mut pair.a.send_cq)?, Parked::Armed, "an empty queue");
        start(&mut pair)?;
        ensure_eq!(events.wait(Some(TIMEOUT))?, Some(7), "token");
        pair.a.sent()??;
        ensure_eq!(events.try_next()?, None, "another token");
        ensure!(!readable(&events)?, "the file is readable without an event");
    }
    ensure_eq!(events.as_raw_fd(), events.as_fd().as_raw_fd(), "descriptor");
    Ok(())
}

fn a_queue_with_completions_is_ready_and_need_not_be_waited_for(lab: &Lab) -> Result<(), Stop> {
    let (mut pair, events) = watched(lab)?;
    start(&mut pair)?;
    there(&pair)?;
    for _ in 0..3 {
        ensure_eq!(events.park(&mut pair.a.send_cq)?, Parked::Ready, "with a completion");
    }
    pair.a.sent()??;
    ensure_eq!(events.park(&mut pair.a.send_cq)?, Parked::Armed, "when it was polled");
    Ok(())
}

fn a_completion_between_the_poll_and_the_park_is_not_slept_through(lab: &Lab) -> Result<(), Stop> {
    let (mut pair, mut events) = watched(lab)?;
    for _ in 0..20 {
        let Endpoint { qp, send_cq, .. } = &mut pair.a;
        ensure!(qp.poll(send_cq).is_none(), "there is a completion already");
        start(&mut pair)?;
        there(&pair)?;
        ensure!(events.wait_for(&mut pair.a.send_cq, Some(TIMEOUT))?, "it slept through");
        pair.a.sent()??;
    }
    Ok(())
}

fn an_event_that_nobody_took_does_not_keep_the_queue_from_waking_again(
    lab: &Lab,
) -> Result<(), Stop> {
    let (mut pair, events) = watched(lab)?;
    for round in 0..20 {
        ensure_eq!(events.park(&mut pair.a.send_cq)?, Parked::Armed, "an empty queue");
        start(&mut pair)?;
        // By polling alone: the event stays where it is.
        pair.a.sent()??;
        until("the event", || readable(&events).ok().filter(|&readable| readable))?;
        if round % 2 == 1 {
            ensure_eq!(events.park(&mut pair.a.send_cq)?, Parked::Armed, "an empty queue");
            start(&mut pair)?;
            pair.a.sent()??;
        }
        ensure_eq!(events.wait(Some(TIMEOUT))?, Some(7), "token");
    }
    Ok(())
}

fn a_wait_ends_when_its_time_is_over_and_not_before(lab: &Lab) -> Result<(), Stop> {
    let (mut pair, mut events) = watched(lab)?;
    let time = Duration::from_millis(30);
    let start = Instant::now();
    ensure_eq!(events.wait(Some(time))?, None, "token");
    ensure!(!events.wait_for(&mut pair.a.send_cq, Some(time))?, "a completion came");
    ensure!(
        start.elapsed() >= 2 * time,
        "it waited {:?} instead of twice {time:?}",
        start.elapsed()
    );
    ensure_eq!(events.wait(Some(Duration::ZERO))?, None, "token without a wait");
    ensure!(!events.wait_for(&mut pair.a.send_cq, Some(Duration::ZERO))?, "a completion came");
    Ok(())
}

fn an_event_without_a_new_completion_wakes_and_is_waited_through(lab: &Lab) -> Result<(), Stop> {
    let (mut pair, mut events) = watched(lab)?;
    ensure_eq!(events.park(&mut pair.a.send_cq)?, Parked::Armed, "an empty queue");
    start(&mut pair)?;
    pair.a.sent()??;
    until("the event", || readable(&events).ok().filter(|&readable| readable))?;
    let time = Duration::from_millis(20);
    let begin = Instant::now();
    ensure!(!events.wait_for(&mut pair.a.send_cq, Some(time))?, "it found a completion");
    ensure!(begin.elapsed() >= time, "the old event ended the wait");
    start(&mut pair)?;
    ensure!(events.wait_for(&mut pair.a.send_cq, Some(TIMEOUT))?, "it is armed no more");
    pair.a.sent()??;
    Ok(())
}

fn waiting_for_one_queue_keeps_the_events_of_the_others(lab: &Lab) -> Result<(), Stop> {
    let (mut pair, mut events) = watched(lab)?;
    // The same token on purpose: it is not what tells queues apart.
    events.add(&mut pair.a.receive_cq, 7)?;
    pair.a.receive(0, 64, 0)?;
    ensure_eq!(events.park(&mut pair.a.receive_cq)?, Parked::Armed, "the other queue");
    pair.b.perform(&Send::new(Inline(b"for the other")).signaled())?;
    until("an event", || readable(&events).ok().filter(|&readable| readable))?;
    let time = Some(Duration::from_millis(20));
    ensure!(!events.wait_for(&mut pair.a.send_cq, time)?, "a completion of nothing");
    ensure_eq!(events.wait(Some(Duration::ZERO))?, Some(7), "token of the other");
    pair.a.received()??;
    ensure_eq!(events.try_next()?, None, "a token twice");
    Ok(())
}

fn completions_are_iterated_as_they_come_and_the_iterator_ends_with_the_time(
    lab: &Lab,
) -> Result<(), Stop> {
    const REQUESTS: u64 = 40;
    let (mut pair, mut events) = watched(lab)?;
    let Endpoint { qp, send_cq, .. } = &mut pair.a;
    (0..REQUESTS).try_for_each(|cookie| qp.post(&Nop::new().signaled(), cookie).map(drop))?;
    let mut next = 0;
    for cqe in events.completions(send_cq, Some(Duration::from_millis(200))) {
        ensure_eq!(qp.complete(cqe?)?.cookie, next, "cookie");
        next += 1;
    }
    ensure_eq!(next, REQUESTS, "completions");
    Ok(())
}

/// Runs a future as a reactor does that sleeps until the file is readable.
fn block_on<T>(future: impl Future<Output = T>) -> Result<T, Stop> {
    let mut future = pin!(future);
    let mut context = Context::from_waker(Waker::noop());
    until("the future", || match future.as_mut().poll(&mut context) {
        Poll::Ready(value) => Some(value),
        Poll::Pending => None,
    })
}

/// Waits for a file in the way of an executor: pending until it is readable.
async fn until_readable(file: impl AsFd) -> std::io::Result<()> {
    std::future::poll_fn(|_| {
        let mut files = [PollFd::new(file.as_fd(), PollFlags::POLLIN)];
        match poll(&mut files, PollTimeout::ZERO) {
            Ok(0) => Poll::Pending,
            Ok(_) => Poll::Ready(Ok(())),
            Err(errno) => Poll::Ready(Err(errno.into())),
        }
    })
    .await
}

fn a_future_is_ready_when_a_completion_is_there(lab: &Lab) -> Result<(), Stop> {
    let (mut pair, mut events) = watched(lab)?;
    let file = events.as_fd().try_clone_to_owned()?;
    for round in 0..20 {
        if round % 2 == 0 {
            start(&mut pair)?;
        }
        let Endpoint { qp, send_cq, .. } = &mut pair.a;
        let mut slept = 0;
        let ready = events.ready(send_cq, async || {
            slept += 1;
            if slept == 1 && round % 2 == 1 {
                // What arrives when it sleeps already.
                qp.post(&Nop::new().signaled(), 0).map_err(std::io::Error::other)?;
            }
            until_readable(&file).await
        });
        block_on(ready)??;
        pair.a.sent()??;
    }
    Ok(())
}

fn a_future_that_was_dropped_has_lost_nothing(lab: &Lab) -> Result<(), Stop> {
    let (mut pair, mut events) = watched(lab)?;
    let file = events.as_fd().try_clone_to_owned()?;
    for _ in 0..5 {
        let ready = events.ready(&mut pair.a.send_cq, async || until_readable(&file).await);
        let mut ready = Box::pin(ready);
        let first = ready.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        ensure!(first.is_pending(), "it is ready without a completion");
        drop(ready);
        start(&mut pair)?;
        block_on(events.ready(&mut pair.a.send_cq, async || until_readable(&file).await))??;
        pair.a.sent()??;
    }
    Ok(())
}

fn a_queue_that_was_not_added_is_not_parked_and_one_is_added_once(lab: &Lab) -> Result<(), Stop> {
    let (mut pair, events) = watched(lab)?;
    let refused = events.park(&mut pair.a.receive_cq).err();
    ensure_eq!(refused.map(|error| error.kind()), Some(ErrorKind::Input), "parking a stranger");
    let others = CqEvents::new(&pair.a.device)?;
    let refused = others.park(&mut pair.a.send_cq).err().map(|error| error.to_string());
    ensure!(
        refused.as_ref().is_some_and(|text| text.contains("call `add` first")),
        "parking at another: {refused:?}"
    );
    for events in [&events, &others] {
        let refused = events.add(&mut pair.a.send_cq, 8).err().map(|error| error.kind());
        ensure_eq!(refused, Some(ErrorKind::Input), "adding it again");
    }
    Ok(())
}

fn a_queue_goes_on_with_another_channel_when_its_first_is_gone(lab: &Lab) -> Result<(), Stop> {
    let (mut pair, mut events) = watched(lab)?;
    for round in 0..6 {
        ensure_eq!(events.park(&mut pair.a.send_cq)?, Parked::Armed, "an empty queue");
        if round % 2 == 0 {
            // Its event goes away with the channel.
            start(&mut pair)?;
            pair.a.sent()??;
        }
        drop(events);
        events = CqEvents::new(&pair.a.device)?;
        events.add(&mut pair.a.send_cq, round)?;
        ensure_eq!(events.park(&mut pair.a.send_cq)?, Parked::Armed, "an empty queue");
        start(&mut pair)?;
        ensure_eq!(events.wait(Some(TIMEOUT))?, Some(round), "token");
        pair.a.sent()??;
    }
    Ok(())
}

fn queues_that_come_and_go_are_heard_of_no_more(lab: &Lab) -> Result<(), Stop> {
    let (mut pair, events) = watched(lab)?;
    for token in 0..100 {
        let mut cq = pair.a.domain.completion_queue(&CqConfig::new(8))?;
        events.add(&mut cq, 100 + token)?;
        ensure_eq!(events.park(&mut cq)?, Parked::Armed, "a new queue");
    }
    ensure_eq!(events.park(&mut pair.a.send_cq)?, Parked::Armed, "an empty queue");
    start(&mut pair)?;
    ensure_eq!(events.wait(Some(TIMEOUT))?, Some(7), "token");
    pair.a.sent()??;
    quiet("a queue that is gone was heard of", || events.try_next().transpose())
}

fn a_thousand_messages_to_a_sleeping_receiver_wake_it_for_each(lab: &Lab) -> Result<(), Stop> {
    const MESSAGES: u64 = 1000;
    let Pair { mut a, b } = Pair::new(lab)?;
    let mut events = CqEvents::new(&b.device)?;
    let Endpoint { mut receive_cq, mut qp, region, .. } = b;
    events.add(&mut receive_cq, 0)?;
    for cookie in 0..32 {
        qp.post_receive(region.sge(0, 64)?, cookie)?;
    }
    std::thread::scope(|scope| {
        let receiver = scope.spawn(move || -> Result<(), Stop> {
            let mut message = 0;
            while message < MESSAGES {
                let woken = events.wait_for(&mut receive_cq, Some(TIMEOUT))?;
                ensure!(woken, "message {message}: it was not woken");
                // One a time, so that it parks with completions there, too.
                let Some(done) = qp.poll(&mut receive_cq) else { continue };
                ensure_eq!(done?.cookie, message, "cookie");
                qp.post_receive(region.sge(0, 64)?, message + 32)?;
                message += 1;
            }
            Ok(())
        });
        for message in 0..MESSAGES {
            a.perform(&Send::new(Inline(b"tick")).signaled())?;
            if message % 100 == 0 {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        receiver.join().map_err(|_| Stop::fail("the receiver panicked"))?
    })
}

fn many_queue_pairs_are_served_by_one_thread_that_sleeps_on_one_file(
    lab: &Lab,
) -> Result<(), Stop> {
    serve(lab, 4, 24, 10)
}

fn five_hundred_connections_share_one_completion_queue_and_one_sleeping_thread(
    lab: &Lab,
) -> Result<(), Stop> {
    serve(lab, 1, 500, 4)
}

/// A server with `clients` queue pairs on `count` completion queues, whose events one thread awaits
/// on one file. Each client sends `messages`.
fn serve(lab: &Lab, count: usize, clients: usize, messages: usize) -> Result<(), Stop> {
    let config = QpConfig::new(4, 4);
    let server = Endpoint::new(lab.device()?, &config, 4096)?;
    let client = Endpoint::new(lab.other_device()?, &config, 4096)?;
    let events = CqEvents::new(&server.device)?;
    let mut cqs = Vec::new();
    for token in 0..count {
        let mut cq =
            server.domain.completion_queue(&CqConfig::new(12 * clients.div_ceil(count) as u32))?;
        events.add(&mut cq, token as u64)?;
        cqs.push(cq);
    }
    let mut queues = Dispatcher::new();
    let mut senders = Vec::new();
    let options = Default::default();
    for number in 0..clients {
        let cq = &cqs[number % count];
        let mut qp = server.domain.queue_pair(&config, cq, cq)?;
        qp.post_receive(server.region.sge(0, 64)?, 0)?;
        let far_cq = client.domain.completion_queue(&CqConfig::new(16))?;
        let mut far = client.domain.queue_pair(&config, &far_cq, &far_cq)?;
        let (here, there) =
            (server.domain.address(&qp, &options)?, client.domain.address(&far, &options)?);
        server.domain.connect(&mut qp, &there, &options)?;
        client.domain.connect(&mut far, &here, &options)?;
        queues.insert(qp.qpn().0, qp)?;
        senders.push((far, far_cq));
    }
    std::thread::scope(|scope| {
        let sender = scope.spawn(|| -> Result<(), Stop> {
            for _ in 0..messages {
                for (qp, _) in &mut senders {
                    qp.post(&Send::new(Inline(b"hello")).signaled(), 0)?;
                }
                for (qp, cq) in &mut senders {
                    until("a completion of a client", || qp.poll(cq))??;
                }
            }
            Ok(())
        });
        let mut served = 0;
        let mut awake: Vec<_> = (0..count).collect();
        while served < clients * messages {
            while let Some(token) = awake.pop() {
                let cq = &mut cqs[token];
                loop {
                    while let Some((number, done)) = queues.poll(cq) {
                        done?;
                        let qp = queues.get_mut(number).ok_or_else(|| Stop::fail("no queue"))?;
                        qp.post_receive(server.region.sge(0, 64)?, 0)?;
                        served += 1;
                    }
                    if events.park(cq)? == Parked::Armed {
                        break;
                    }
                }
            }
            if served < clients * messages {
                let token = events.wait(Some(TIMEOUT))?;
                awake.extend(token.map(|token| token as usize));
                ensure!(token.is_some(), "nothing woke it; {served} messages were served");
            }
        }
        sender.join().map_err(|_| Stop::fail("the sender panicked"))?
    })
}

fn workers_park_their_queues_while_another_thread_hands_out_the_events(
    lab: &Lab,
) -> Result<(), Stop> {
    const WORKERS: usize = 3;
    const ROUNDS: u64 = 100;
    let mut ends = Vec::new();
    let device = lab.device()?;
    let events = CqEvents::new(&device)?;
    for token in 0..WORKERS {
        let mut end = Endpoint::new(device.clone(), &QpConfig::new(8, 8), 4096)?;
        let itself = end.domain.address(&end.qp, &Default::default())?;
        end.domain.connect(&mut end.qp, &itself, &Default::default())?;
        events.add(&mut end.send_cq, token as u64)?;
        ends.push(end);
    }
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (mut wake, mut workers) = (Vec::new(), Vec::new());
        for mut end in ends {
            let (sender, woken) = std::sync::mpsc::channel();
            wake.push(sender);
            let events = &events;
            workers.push(scope.spawn(move || -> Result<(), Stop> {
                for round in 0..ROUNDS {
                    end.qp.post(&Nop::new().signaled(), round)?;
                    while events.park(&mut end.send_cq)? == Parked::Armed {
                        woken.recv_timeout(TIMEOUT)?;
                    }
                    ensure_eq!(end.sent()??.cookie, round, "cookie");
                }
                Ok(())
            }));
        }
        let (events, done) = (&events, &done);
        let hand = scope.spawn(move || -> Result<(), Stop> {
            while !done.load(Ordering::Relaxed) {
                if let Some(token) = events.wait(Some(Duration::from_millis(20)))? {
                    // A worker that is through does not listen any more.
                    let _ = wake[token as usize].send(());
                }
            }
            Ok(())
        });
        let worked = workers
            .into_iter()
            .map(|worker| worker.join().map_err(|_| Stop::fail("a worker panicked"))?);
        let worked = worked.collect::<Result<Vec<_>, _>>();
        done.store(true, Ordering::Relaxed);
        hand.join().map_err(|_| Stop::fail("the thread with the events panicked"))??;
        worked.map(drop)
    })
}

fn a_device_that_is_removed_wakes_all_who_sleep(lab: &Lab) -> Result<(), Stop> {
    let (mut pair, mut events) = watched(lab)?;
    std::thread::scope(|scope| {
        let cq = &mut pair.a.send_cq;
        let sleeper = scope.spawn(move || events.wait_for(cq, None).map_err(|error| error.kind()));
        std::thread::sleep(Duration::from_millis(20));
        lab.remove(0)?;
        let woken = sleeper.join().map_err(|_| Stop::fail("the sleeper panicked"))?;
        ensure_eq!(woken, Err(ErrorKind::DeviceGone), "what it woke up to");
        Ok(())
    })
}
