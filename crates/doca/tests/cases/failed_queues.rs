//! Queues of the device that fail and complete nothing: the jobs in flight still end.

use std::future::Future;
use std::os::fd::AsFd;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, poll};
use verbless_doca::dma::Dma;
use verbless_doca::rdma::Rdma;
use verbless_doca::{ErrorKind, Event, Retrieve, WorkQ};
use verbless_model::{Fault, QueueKind, Times};
use verbless_prm::{CommandStatus, Opcode};

use crate::support::rdma::{all, connect, ends_of, opened};
use crate::support::{disturbable, disturbed, plain, stepped};

#[test]
fn failed_cq_ends_jobs_in_every_wait_mode() {
    type Wait = fn(&mut WorkQ) -> Result<Option<Event>, Retrieve>;
    let retrieve = |workq: &mut WorkQ| match workq.progress_retrieve() {
        Err(Retrieve::Again) => Ok(None),
        other => other.map(Some),
    };
    let ways: [(bool, Wait); 5] = [
        (false, |workq| workq.retrieve_within(None)),
        (false, |workq| workq.retrieve_within(Some(Duration::from_millis(1)))),
        (false, retrieve),
        (true, |workq| workq.retrieve_within(None)),
        (true, |workq| workq.retrieve_within(Some(Duration::from_millis(20)))),
    ];
    for (events, wait) in ways {
        let (model, backend) = disturbable("bluefield3");
        let devices = opened(&backend);
        let mut ends = ends_of(devices, |builder| builder, all(), 4096);
        if events {
            let a = &mut ends[0];
            a.workq.remove(a.rdma.as_ref().unwrap()).unwrap();
            a.workq.set_event_driven(true).unwrap();
            a.workq.add(a.rdma.as_ref().unwrap()).unwrap();
        }
        connect(&ends);
        let [mut a, _] = ends;
        a.workq.submit(a.rdma().receive(a.room(64, 64)).user_data(3)).unwrap();
        model.fail_queue_later(0, QueueKind::Cq, None, 1);
        a.workq.submit(a.rdma().write(a.data(0, 64), a.remote(0, 64)).user_data(4)).unwrap();
        let mut ended = Vec::new();
        let end = Instant::now() + Duration::from_secs(10);
        while ended.len() < 2 {
            assert!(Instant::now() < end, "{ended:?} ended");
            match wait(&mut a.workq) {
                Ok(None) => {}
                Err(Retrieve::IoFailed(event)) => {
                    let why = event.result().unwrap_err();
                    assert_eq!(why.kind(), ErrorKind::IoFailed, "{why}");
                    assert!(why.to_string().contains("could not write a CQE"), "{why}");
                    ended.push(event.user_data().0);
                }
                other => panic!("{other:?}"),
            }
        }
        ended.sort_unstable();
        assert_eq!((ended, a.workq.in_flight()), (vec![3, 4], 0));
        let late = a.rdma().receive(a.room(64, 64));
        assert_eq!(a.workq.submit(late).unwrap_err().error.kind(), ErrorKind::BadState);
        // No job is left to report it.
        match a.workq.retrieve_within(None) {
            Err(Retrieve::Failed(error)) => {
                assert!(error.to_string().contains("could not write a CQE"), "{error}");
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn cq_failure_wakes_event_handle_and_ends_jobs() {
    let (model, backend) = disturbable("bluefield3");
    let [dev, _] = opened(&backend);
    let (map, inventory) = plain(&dev, 4096, 4);
    let dma = Dma::builder(&dev).start().unwrap();
    let mut workq = WorkQ::builder(4).event_driven().build().unwrap();
    workq.add(&dma).unwrap();
    let source = inventory.buf_by_data(&map, map.address(), 64).unwrap();
    let destination = inventory.buf_by_addr(&map, map.address() + 64, 64).unwrap();
    model.fail_queue_later(0, QueueKind::Cq, None, 1);
    workq.submit(dma.memcpy(source, destination)).unwrap();
    let event = loop {
        match workq.progress_retrieve() {
            Err(Retrieve::Again) => {}
            other => break other,
        }
        workq.clear().unwrap();
        workq.arm().unwrap();
        let mut files = [PollFd::new(workq.event_handle(), PollFlags::POLLIN)];
        assert_ne!(poll(&mut files, 10_000_u16).unwrap(), 0, "the poll timed out");
    };
    let Err(Retrieve::IoFailed(event)) = event else { panic!("{event:?}") };
    assert!(event.result().unwrap_err().to_string().contains("could not write a CQE"));
    let again = plain(&dev, 4096, 4);
    let source = again.1.buf_by_data(&again.0, again.0.address(), 64).unwrap();
    let destination = again.1.buf_by_addr(&again.0, again.0.address() + 64, 64).unwrap();
    let refused = workq.submit(dma.memcpy(source, destination)).unwrap_err();
    assert_eq!(refused.error.kind(), ErrorKind::Shutdown);
}

#[test]
fn qp_error_without_flush_ends_jobs() {
    let (model, dev) = stepped();
    let (map, inventory) = plain(&dev, 4096, 4);
    let dma = Dma::builder(&dev).start().unwrap();
    let mut workq = WorkQ::new(4).unwrap();
    workq.add(&dma).unwrap();
    let source = inventory.buf_by_data(&map, map.address(), 64).unwrap();
    let destination = inventory.buf_by_addr(&map, map.address() + 64, 64).unwrap();
    workq.submit(dma.memcpy(source, destination)).unwrap();
    // The only queue pair that the device has.
    assert!((0..0x1000).any(|qpn| model.fail_queue(0, QueueKind::Qp, qpn)));
    let event = workq.retrieve_within(Some(Duration::from_secs(10)));
    let Err(Retrieve::IoFailed(event)) = event else { panic!("{event:?}") };
    let why = event.result().unwrap_err().to_string();
    assert!(why.contains("it is in ERR"), "{why}");
}

#[test]
fn stopped_instance_ends_unflushed_jobs_with_shutdown() {
    let (_model, dev) = stepped();
    let (map, inventory) = plain(&dev, 4096, 4);
    let rdma = Rdma::builder(&dev).start().map_err(|refused| refused.error).unwrap();
    let mut workq = WorkQ::new(4).unwrap();
    workq.add(&rdma).unwrap();
    let room = inventory.buf_by_addr(&map, map.address(), 64).unwrap();
    workq.submit(rdma.receive(Some(room))).map_err(|refused| refused.error).unwrap();
    let _stopped = rdma.stop().map_err(|refused| refused.error).unwrap();
    let event = workq.retrieve_within(Some(Duration::from_secs(10)));
    let Err(Retrieve::IoFailed(event)) = event else { panic!("{event:?}") };
    assert_eq!(event.result().unwrap_err().kind(), ErrorKind::Shutdown);
}

#[test]
fn dead_cq_stops_no_jobs_of_another_device() {
    for events in [false, true] {
        let (model, backend) = disturbable("bluefield3");
        let devs = opened(&backend);
        let mut workq = WorkQ::builder(4);
        if events {
            workq = workq.event_driven();
        }
        let mut workq = workq.build().unwrap();
        let rooms = [&devs[0], &devs[1]].map(|dev| (plain(dev, 4096, 4), Dma::builder(dev)));
        let rooms = rooms.map(|(room, dma)| (room, dma.start().unwrap()));
        rooms.iter().for_each(|(_, dma)| workq.add(dma).unwrap());
        let submit = |workq: &mut WorkQ, which: usize| {
            let ((map, inventory), dma) = &rooms[which];
            let source = inventory.buf_by_data(map, map.address(), 64).unwrap();
            let destination = inventory.buf_by_addr(map, map.address() + 64, 64).unwrap();
            workq.submit(dma.memcpy(source, destination)).unwrap();
        };
        model.fail_queue_later(0, QueueKind::Cq, None, 1);
        submit(&mut workq, 0);
        let event = workq.retrieve_within(None);
        assert!(matches!(event, Err(Retrieve::IoFailed(_))), "{event:?}");
        // The completion of the other device comes late: the wait checks both devices before it
        // comes.
        model.inject(1, Fault::DelayCompletion(Duration::from_millis(400)), 0, 1);
        submit(&mut workq, 1);
        let event = workq.retrieve_within(None);
        assert!(matches!(event, Ok(Some(Event::Dma(_)))), "{event:?}");
    }
}

#[test]
fn removed_device_stops_no_jobs_of_another() {
    type Wait = fn(&mut WorkQ) -> Result<Option<Event>, Retrieve>;
    let next = |workq: &mut WorkQ| {
        let file = workq.event_handle().try_clone_to_owned().unwrap();
        let readable = async || {
            let mut files = [PollFd::new(file.as_fd(), PollFlags::POLLIN)];
            assert_ne!(poll(&mut files, 10_000_u16).unwrap(), 0, "the poll timed out");
            Ok(())
        };
        let mut context = Context::from_waker(Waker::noop());
        match pin!(workq.next(readable)).poll(&mut context) {
            Poll::Ready(event) => event.map(Some),
            Poll::Pending => panic!("nothing is pending"),
        }
    };
    let ways: [(bool, Wait); 3] = [
        (false, |workq| workq.retrieve_within(None)),
        (true, |workq| workq.retrieve_within(None)),
        (true, next),
    ];
    for (at, (events, wait)) in ways.into_iter().enumerate() {
        for busy in [true, false] {
            let (model, backend) = disturbable("bluefield3");
            let devs = opened(&backend);
            let mut workq = WorkQ::builder(4);
            if events {
                workq = workq.event_driven();
            }
            let mut workq = workq.build().unwrap();
            let rooms = [&devs[0], &devs[1]].map(|dev| (plain(dev, 4096, 4), Dma::builder(dev)));
            let rooms = rooms.map(|(room, dma)| (room, dma.start().unwrap()));
            rooms.iter().for_each(|(_, dma)| workq.add(dma).unwrap());
            let submit = |workq: &mut WorkQ, which: usize| {
                let ((map, inventory), dma) = &rooms[which];
                let source = inventory.buf_by_data(map, map.address(), 64).unwrap();
                let destination = inventory.buf_by_addr(map, map.address() + 64, 64).unwrap();
                workq.submit(dma.memcpy(source, destination).user_data(which as u64)).unwrap();
            };
            for device in [0, 1] {
                let late = Fault::DelayCompletion(Duration::from_millis(400));
                model.inject(device, late, 0, 1);
            }
            if busy {
                submit(&mut workq, 0);
            }
            submit(&mut workq, 1);
            model.remove(0);
            if busy {
                let event = wait(&mut workq);
                let Err(Retrieve::IoFailed(event)) = event else { panic!("{at}: {event:?}") };
                assert_eq!(event.user_data().0, 0);
            }
            let event = wait(&mut workq);
            let Ok(Some(event)) = event else { panic!("{at}, busy: {busy}: {event:?}") };
            assert_eq!(event.user_data().0, 1);
            // The work queue continues.
            submit(&mut workq, 1);
            let event = wait(&mut workq);
            assert!(matches!(event, Ok(Some(Event::Dma(_)))), "{at}, busy: {busy}: {event:?}");
        }
    }
}

#[test]
fn failed_qp_query_hides_no_completion() {
    let (model, dev) = disturbed();
    let (map, inventory) = plain(&dev, 4096, 4);
    let dma = Dma::builder(&dev).start().unwrap();
    let mut workq = WorkQ::new(4).unwrap();
    workq.add(&dma).unwrap();
    let source = inventory.buf_by_data(&map, map.address(), 64).unwrap();
    let destination = inventory.buf_by_addr(&map, map.address() + 64, 64).unwrap();
    model.inject(0, Fault::DelayCompletion(Duration::from_millis(400)), 0, 1);
    workq.submit(dma.memcpy(source, destination)).unwrap();
    let nothing = workq.retrieve_within(Some(Duration::from_millis(150)));
    assert!(matches!(nothing, Ok(None)), "{nothing:?}");
    let refused = CommandStatus::INTERNAL_ERR;
    model.fail_command(0, Opcode::QUERY_QP, Times::from(1).always(), refused, 0);
    std::thread::sleep(Duration::from_millis(1500));
    let event = workq.retrieve_within(None);
    assert!(matches!(event, Ok(Some(Event::Dma(_)))), "{event:?}");
}

#[test]
fn idle_receive_is_queried_ever_less_often() {
    let (model, dev) = disturbed();
    let (map, inventory) = plain(&dev, 4096, 4);
    let rdma = Rdma::builder(&dev).start().map_err(|refused| refused.error).unwrap();
    let mut workq = WorkQ::new(4).unwrap();
    workq.add(&rdma).unwrap();
    let room = inventory.buf_by_addr(&map, map.address(), 64).unwrap();
    workq.submit(rdma.receive(Some(room))).map_err(|refused| refused.error).unwrap();
    let queries = Arc::new(AtomicUsize::new(0));
    let count = queries.clone();
    let _watch = model.watch_commands(move |command| {
        if command.input[..2] == Opcode::QUERY_QP.0.to_be_bytes() {
            count.fetch_add(1, Ordering::Relaxed);
        }
    });
    let nothing = workq.retrieve_within(Some(Duration::from_millis(1700)));
    assert!(matches!(nothing, Ok(None)), "{nothing:?}");
    // After 100 to 200 ms, and then 100, 200, 300, 400 and 500 ms later.
    let queries = queries.load(Ordering::Relaxed);
    assert!((2..=7).contains(&queries), "{queries} times");
}

/// Copies continuously on one context while the queue pair of another has failed.
fn busy_neighbour(mut workq: WorkQ, wait: impl Fn(&mut WorkQ) -> Result<Option<Event>, Retrieve>) {
    let (model, dev) = disturbed();
    let rooms = [0, 1].map(|_| (plain(&dev, 4096, 8), Dma::builder(&dev).start().unwrap()));
    workq.add(&rooms[0].1).unwrap();
    let submit = |workq: &mut WorkQ, which: usize| {
        let ((map, inventory), dma) = &rooms[which];
        let source = inventory.buf_by_data(map, map.address(), 64).unwrap();
        let destination = inventory.buf_by_addr(map, map.address() + 64, 64).unwrap();
        workq.submit(dma.memcpy(source, destination).user_data(which as u64)).unwrap();
    };
    model.inject(0, Fault::LoseCompletion, 0, 1);
    submit(&mut workq, 0);
    std::thread::sleep(Duration::from_millis(50));
    assert!((0..0x1000).any(|qpn| model.fail_queue(0, QueueKind::Qp, qpn)), "the device has a QP");
    workq.add(&rooms[1].1).unwrap();
    let end = Instant::now() + Duration::from_secs(10);
    for busy in 0.. {
        assert!(Instant::now() < end, "{busy} jobs of the other context hide it");
        if workq.in_flight() < 3 {
            submit(&mut workq, 1);
        }
        match wait(&mut workq) {
            Ok(None) => {}
            Ok(Some(event)) => assert_eq!(event.user_data().0, 1),
            Err(Retrieve::IoFailed(event)) => {
                assert_eq!(event.user_data().0, 0);
                let why = event.result().unwrap_err().to_string();
                assert!(why.contains("it is in ERR"), "{why}");
                return assert!(busy > 3, "{busy} jobs in all");
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn busy_neighbour_hides_no_failed_qp() {
    busy_neighbour(WorkQ::new(8).unwrap(), |workq| match workq.progress_retrieve() {
        Err(Retrieve::Again) => Ok(None),
        other => other.map(Some),
    });
    busy_neighbour(WorkQ::new(8).unwrap(), |workq| workq.retrieve_within(None));
    let asleep = WorkQ::builder(8).event_driven().build().unwrap();
    busy_neighbour(asleep, |workq| workq.retrieve_within(None));
}

#[test]
fn ctx_readded_after_cq_failure_gets_new_cq() {
    let (model, backend) = disturbable("bluefield3");
    let [dev, _] = opened(&backend);
    let (map, inventory) = plain(&dev, 4096, 8);
    let [first, other] = [(); 2].map(|()| Dma::builder(&dev).start().unwrap());
    let mut workq = WorkQ::new(4).unwrap();
    workq.add(&first).unwrap();
    workq.add(&other).unwrap();
    let ends = || {
        let source = inventory.buf_by_data(&map, map.address(), 64).unwrap();
        (source, inventory.buf_by_addr(&map, map.address() + 64, 64).unwrap())
    };
    model.fail_queue_later(0, QueueKind::Cq, None, 1);
    let (source, destination) = ends();
    workq.submit(first.memcpy(source, destination)).unwrap();
    let failed = workq.retrieve_within(Some(Duration::from_secs(10)));
    assert!(matches!(failed, Err(Retrieve::IoFailed(_))), "{failed:?}");
    drop(failed);
    workq.remove(&first).unwrap();
    workq.add(&first).unwrap();
    let (source, destination) = ends();
    workq.submit(first.memcpy(source, destination)).unwrap();
    let done = workq.retrieve_within(Some(Duration::from_secs(10)));
    assert!(matches!(done, Ok(Some(_))), "{done:?}");
}
