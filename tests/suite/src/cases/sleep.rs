//! Sleeping until completions arrive: no wake-up is lost, and none is spurious.

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
    "Sleeping until completions arrive: no wake-up is lost, and no wait is in vain.":
    parked_cq_wakes_waiter_with_its_token,
    cq_with_completions_parks_as_ready,
    untaken_event_does_not_block_next_wakeup,
    wait_ends_at_its_timeout,
    stale_event_does_not_end_wait,
    wait_for_one_cq_keeps_events_of_others,
    completion_iterator_ends_at_timeout,
    future_is_ready_on_completion,
    dropped_future_loses_no_completion,
    park_rejects_unadded_cq,
    cq_moves_to_new_channel_after_first_is_gone,
    destroyed_cqs_raise_no_more_events,
    sleeping_receiver_wakes_for_each_message,
    one_sleeping_thread_serves_many_qps,
    one_cq_and_thread_serve_500_connections,
    workers_park_cqs_while_another_thread_waits,
    removed_device_wakes_sleeper [Need::Model],
);

/// A pair, and an event file for a's sends under the token 7.
fn watched(lab: &Lab) -> Result<(Pair, CqEvents), Stop> {
    let mut pair = Pair::new(lab)?;
    let events = CqEvents::new(&pair.a.device)?;
    events.add(&mut pair.a.send_cq, 7)?;
    Ok((pair, events))
}

/// A request of a that completes and is not polled.
fn start(pair: &mut Pair) -> Result<(), Stop> {
    pair.a.qp.post(&Nop::new().signaled(), 0)?;
    Ok(())
}

fn wait_for_cqe(pair: &Pair) -> Result<(), Stop> {
    until("a completion", || (!pair.a.send_cq.is_empty()).then_some(()))
}

fn readable(events: &CqEvents) -> Result<bool, Stop> {
    let mut files = [PollFd::new(events.as_fd(), PollFlags::POLLIN)];
    Ok(poll(&mut files, PollTimeout::ZERO)? == 1)
}

fn parked_cq_wakes_waiter_with_its_token(lab: &Lab) -> Result<(), Stop> {
    let (mut pair, events) = watched(lab)?;
    for _ in 0..20 {
        ensure_eq!(events.park(&mut pair.a.send_cq)?, Parked::Armed, "an empty queue");
        start(&mut pair)?;
        ensure_eq!(events.wait(Some(TIMEOUT))?, Some(7), "token");
        pair.a.sent()??;
        ensure_eq!(events.try_next()?, None, "a second token");
        ensure!(!readable(&events)?, "the file is readable without an event");
    }
    ensure_eq!(events.as_raw_fd(), events.as_fd().as_raw_fd(), "descriptor");
    Ok(())
}

fn cq_with_completions_parks_as_ready(lab: &Lab) -> Result<(), Stop> {
    let (mut pair, mut events) = watched(lab)?;
    start(&mut pair)?;
    wait_for_cqe(&pair)?;
    for _ in 0..3 {
        ensure_eq!(events.park(&mut pair.a.send_cq)?, Parked::Ready, "with a completion");
    }
    ensure!(events.wait_for(&mut pair.a.send_cq, Some(TIMEOUT))?, "the wait missed it");
    pair.a.sent()??;
    ensure_eq!(events.park(&mut pair.a.send_cq)?, Parked::Armed, "when it was polled");
    Ok(())
}

fn untaken_event_does_not_block_next_wakeup(lab: &Lab) -> Result<(), Stop> {
    let (mut pair, events) = watched(lab)?;
    for round in 0..20 {
        ensure_eq!(events.park(&mut pair.a.send_cq)?, Parked::Armed, "an empty queue");
        start(&mut pair)?;
        // Only by polling: the event stays unread.
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

fn wait_ends_at_its_timeout(lab: &Lab) -> Result<(), Stop> {
    let (mut pair, mut events) = watched(lab)?;
    let time = Duration::from_millis(30);
    let start = Instant::now();
    ensure_eq!(events.wait(Some(time))?, None, "token");
    ensure!(!events.wait_for(&mut pair.a.send_cq, Some(time))?, "an unexpected completion");
    ensure!(
        start.elapsed() >= 2 * time,
        "the wait took {:?} instead of twice {time:?}",
        start.elapsed()
    );
    ensure_eq!(events.wait(Some(Duration::ZERO))?, None, "token without a wait");
    ensure!(
        !events.wait_for(&mut pair.a.send_cq, Some(Duration::ZERO))?,
        "an unexpected completion"
    );
    Ok(())
}

fn stale_event_does_not_end_wait(lab: &Lab) -> Result<(), Stop> {
    let (mut pair, mut events) = watched(lab)?;
    ensure_eq!(events.park(&mut pair.a.send_cq)?, Parked::Armed, "an empty queue");
    start(&mut pair)?;
    pair.a.sent()??;
    until("the event", || readable(&events).ok().filter(|&readable| readable))?;
    let time = Duration::from_millis(20);
    let begin = Instant::now();
    ensure!(!events.wait_for(&mut pair.a.send_cq, Some(time))?, "the wait found a completion");
    ensure!(begin.elapsed() >= time, "the old event ended the wait");
    start(&mut pair)?;
    ensure!(
        events.wait_for(&mut pair.a.send_cq, Some(TIMEOUT))?,
        "the CQ is not armed after the wait"
    );
    pair.a.sent()??;
    Ok(())
}

fn wait_for_one_cq_keeps_events_of_others(lab: &Lab) -> Result<(), Stop> {
    let (mut pair, mut events) = watched(lab)?;
    // Both CQs have token 7 on purpose: tokens do not distinguish queues.
    events.add(&mut pair.a.receive_cq, 7)?;
    pair.a.receive(0, 64, 0)?;
    ensure_eq!(events.park(&mut pair.a.receive_cq)?, Parked::Armed, "the state of the receive CQ");
    pair.b.perform(&Send::new(Inline(b"for the other")).signaled())?;
    until("an event", || readable(&events).ok().filter(|&readable| readable))?;
    let time = Some(Duration::from_millis(20));
    ensure!(!events.wait_for(&mut pair.a.send_cq, time)?, "a completion of another queue");
    ensure_eq!(events.wait(Some(Duration::ZERO))?, Some(7), "token of the other");
    pair.a.received()??;
    ensure_eq!(events.try_next()?, None, "a token twice");
    Ok(())
}

fn completion_iterator_ends_at_timeout(lab: &Lab) -> Result<(), Stop> {
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

/// Runs a future as a reactor does: it sleeps until the file is readable.
fn block_on<T>(future: impl Future<Output = T>) -> Result<T, Stop> {
    let mut future = pin!(future);
    let mut context = Context::from_waker(Waker::noop());
    until("the future", || match future.as_mut().poll(&mut context) {
        Poll::Ready(value) => Some(value),
        Poll::Pending => None,
    })
}

/// Waits for a file as an executor does: pending until it is readable.
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

fn future_is_ready_on_completion(lab: &Lab) -> Result<(), Stop> {
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
                // A completion that arrives during the sleep.
                qp.post(&Nop::new().signaled(), 0).map_err(std::io::Error::other)?;
            }
            until_readable(&file).await
        });
        block_on(ready)??;
        pair.a.sent()??;
    }
    Ok(())
}

fn dropped_future_loses_no_completion(lab: &Lab) -> Result<(), Stop> {
    let (mut pair, mut events) = watched(lab)?;
    let file = events.as_fd().try_clone_to_owned()?;
    for _ in 0..5 {
        let ready = events.ready(&mut pair.a.send_cq, async || until_readable(&file).await);
        let mut ready = Box::pin(ready);
        let first = ready.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        ensure!(first.is_pending(), "the future is ready without a completion");
        drop(ready);
        start(&mut pair)?;
        block_on(events.ready(&mut pair.a.send_cq, async || until_readable(&file).await))??;
        pair.a.sent()??;
    }
    Ok(())
}

fn park_rejects_unadded_cq(lab: &Lab) -> Result<(), Stop> {
    let (mut pair, events) = watched(lab)?;
    let refused = events.park(&mut pair.a.receive_cq).err();
    ensure_eq!(
        refused.map(|error| error.kind()),
        Some(ErrorKind::InvalidInput),
        "parking a CQ of another channel"
    );
    let others = CqEvents::new(&pair.a.device)?;
    let refused = others.park(&mut pair.a.send_cq).err().map(|error| error.to_string());
    ensure!(
        refused.as_ref().is_some_and(|text| text.contains("call `add` first")),
        "parking at another: {refused:?}"
    );
    for events in [&events, &others] {
        let refused = events.add(&mut pair.a.send_cq, 8).err().map(|error| error.kind());
        ensure_eq!(refused, Some(ErrorKind::InvalidInput), "adding it again");
    }
    Ok(())
}

fn cq_moves_to_new_channel_after_first_is_gone(lab: &Lab) -> Result<(), Stop> {
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

fn destroyed_cqs_raise_no_more_events(lab: &Lab) -> Result<(), Stop> {
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
    quiet("a destroyed queue made an event", || events.try_next().transpose())
}

fn sleeping_receiver_wakes_for_each_message(lab: &Lab) -> Result<(), Stop> {
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
                // One at a time, so that it also sleeps while completions wait.
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

fn one_sleeping_thread_serves_many_qps(lab: &Lab) -> Result<(), Stop> {
    serve(lab, 4, 24, 10)
}

fn one_cq_and_thread_serve_500_connections(lab: &Lab) -> Result<(), Stop> {
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
                ensure!(token.is_some(), "no event after {served} messages");
            }
        }
        sender.join().map_err(|_| Stop::fail("the sender panicked"))?
    })
}

fn workers_park_cqs_while_another_thread_waits(lab: &Lab) -> Result<(), Stop> {
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
                    // A finished worker does not listen.
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

fn removed_device_wakes_sleeper(lab: &Lab) -> Result<(), Stop> {
    let (mut pair, mut events) = watched(lab)?;
    std::thread::scope(|scope| {
        let cq = &mut pair.a.send_cq;
        let sleeper = scope.spawn(move || events.wait_for(cq, None).map_err(|error| error.kind()));
        std::thread::sleep(Duration::from_millis(20));
        lab.remove(0)?;
        let woken = sleeper.join().map_err(|_| Stop::fail("the sleeper panicked"))?;
        ensure_eq!(woken, Err(ErrorKind::DeviceGone), "the completion that woke it");
        Ok(())
    })
}
