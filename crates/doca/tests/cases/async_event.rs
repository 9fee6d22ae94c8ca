//! External events: events of a device without a job.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, poll};
use verbless_doca::async_event::{AsyncEvents, Change};
use verbless_doca::dma::Dma;
use verbless_doca::future::AsyncWorkQ;
use verbless_doca::graph::Graph;
use verbless_doca::sync_event::{Location, SyncEvent, SyncEventCtx};
use verbless_doca::{Context, Dev, ErrorKind, Event, JobType, Retrieve, WorkQ};
use verbless_model::Model;

use crate::support::{disturbed, plain};

include!("../support/doc.rs");

const TIMEOUT: Option<Duration> = Some(Duration::from_secs(60));

fn event_ctx(dev: &Dev) -> SyncEventCtx {
    let event = SyncEvent::builder(dev).publisher_add_location(Location::Cpu).unwrap();
    event.subscriber_add_location(Location::Cpu).unwrap().as_ctx().start().unwrap()
}

fn workq(events: bool) -> WorkQ {
    match events {
        true => WorkQ::builder(1).event_driven().build().unwrap(),
        false => WorkQ::new(1).unwrap(),
    }
}

/// The next event, which must be external.
fn next_change(workq: &mut WorkQ) -> (u64, Change) {
    match workq.retrieve_within(TIMEOUT) {
        Ok(Some(Event::Async(event))) => {
            assert_eq!(Event::Async(event).job_type(), JobType::AsyncEvent);
            (event.user_data.0, event.result.unwrap())
        }
        other => panic!("{other:?}"),
    }
}

fn is_readable(file: BorrowedFd<'_>, milliseconds: u8) -> bool {
    poll(&mut [PollFd::new(file, PollFlags::POLLIN)], milliseconds).unwrap() > 0
}

/// Takes the model's one port down and up.
fn flap(model: &Model) {
    model.set_port(0, 1, false);
    model.set_port(0, 1, true);
}

#[test]
fn port_changes_are_reported_in_either_mode() {
    for events in [false, true] {
        let (model, dev) = disturbed();
        let context = AsyncEvents::builder(&dev).user_data(7).start().unwrap();
        assert!(context.event_driven_supported());
        let mut workq = workq(events);
        model.set_port(0, 1, false);
        workq.add(&context).unwrap();
        assert!(matches!(workq.progress_retrieve(), Err(Retrieve::Again)), "not what was before");
        model.set_port(0, 1, true);
        flap(&model);
        assert_eq!(next_change(&mut workq), (7, Change::PortUp(1)));
        assert_eq!(next_change(&mut workq), (7, Change::PortDown(1)));
        assert_eq!(next_change(&mut workq), (7, Change::PortUp(1)));
        assert!(matches!(workq.progress_retrieve(), Err(Retrieve::Again)));
        let context = context.stop().unwrap_err().given;
        workq.abort(&context).unwrap();
        workq.remove(&context).unwrap();
        let context = context.stop().unwrap().start().unwrap();
        flap(&model);
        assert!(matches!(workq.progress_retrieve(), Err(Retrieve::Again)), "of no job");
        workq.add(&context).unwrap();
        workq.remove(&context).unwrap();
        workq.destroy().unwrap();
    }
}

#[test]
fn external_events_take_no_job_slot() {
    let (model, dev) = disturbed();
    let (context, event) = (AsyncEvents::builder(&dev).start().unwrap(), event_ctx(&dev));
    let mut workq = workq(true);
    workq.add(&context).unwrap();
    workq.add(&event).unwrap();
    workq.submit(event.wait_gt(5).user_data(3)).unwrap();
    flap(&model);
    for expected in [Change::PortDown(1), Change::PortUp(1)] {
        assert_eq!(next_change(&mut workq), (0, expected));
        assert_eq!(workq.in_flight(), 1);
        let refused = workq.submit(event.get()).unwrap_err();
        assert_eq!(refused.error.kind(), ErrorKind::Again);
    }
    // A graph displaces no event, and its nodes displace none.
    workq.abort(&event).unwrap();
    assert!(matches!(workq.retrieve_within(TIMEOUT), Err(Retrieve::IoFailed(_))));
    let event = event_ctx(&dev);
    workq.add(&event).unwrap();
    let mut graph = Graph::builder();
    let node = graph.ctx_node(&event, JobType::SyncEventWait);
    let graph = graph.start().unwrap();
    workq.add_graph(&graph).unwrap();
    let instance = graph.instance();
    instance.set_ctx_node_data(node, event.wait_gt(5)).unwrap();
    workq.submit_graph(&instance, 4).unwrap();
    flap(&model);
    assert_eq!(next_change(&mut workq), (0, Change::PortDown(1)));
    assert!(instance.is_running());
    assert_eq!(next_change(&mut workq), (0, Change::PortUp(1)));
    workq.abort(&event).unwrap();
    let Ok(Some(Event::Graph(done))) = workq.retrieve_within(TIMEOUT) else { panic!() };
    assert_eq!((done.user_data.0, done.result.unwrap_err().kind()), (4, ErrorKind::Shutdown));
}

#[test]
fn every_workq_gets_events_beside_jobs() {
    let (model, dev) = disturbed();
    let (context, dma) =
        (AsyncEvents::builder(&dev).start().unwrap(), Dma::builder(&dev).start().unwrap());
    let mut queues = [false, true, true].map(workq);
    for queue in &mut queues {
        queue.add(&context).unwrap();
        queue.add(&dma).unwrap();
    }
    assert_eq!(context.workqs(), 3);
    flap(&model);
    let (map, inventory) = plain(&dev, 4096, 2);
    for queue in &mut queues {
        let (mut copies, mut changes) = (0, Vec::new());
        while copies < 100 || changes.len() < 2 {
            if queue.in_flight() == 0 && copies < 100 {
                let source = inventory.buf_by_data(&map, map.address(), 64).unwrap();
                let to = inventory.buf_by_addr(&map, map.address() + 64, 64).unwrap();
                queue.submit(dma.memcpy(source, to)).unwrap();
            }
            match queue.retrieve_within(TIMEOUT).unwrap().unwrap() {
                Event::Dma(_) => copies += 1,
                Event::Async(event) => changes.push(event.result.unwrap()),
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(changes, [Change::PortDown(1), Change::PortUp(1)]);
    }
}

#[test]
fn device_failure_is_reported_once() {
    for end in [Model::kill, Model::remove] {
        let (model, dev) = disturbed();
        let context = AsyncEvents::builder(&dev).user_data(9).start().unwrap();
        let mut workq = workq(false);
        workq.add(&context).unwrap();
        end(&model, 0);
        assert_eq!(next_change(&mut workq), (9, Change::DeviceFatal));
        for _ in 0..3 {
            assert!(matches!(workq.progress_retrieve(), Err(Retrieve::Again)));
        }
        workq.remove(&context).unwrap();
    }
}

#[test]
fn external_event_future_loses_no_event() {
    let (model, dev) = disturbed();
    let (context, event) = (AsyncEvents::builder(&dev).start().unwrap(), event_ctx(&dev));
    let mut workq = WorkQ::builder(4).event_driven().build().unwrap();
    workq.add(&context).unwrap();
    workq.add(&event).unwrap();
    let queue = AsyncWorkQ::new(workq).unwrap();
    let readable = async || doc::readable(queue.file()).await;
    let change = async || match queue.external().await {
        Event::Async(event) => event.result.unwrap(),
        other => panic!("{other:?}"),
    };
    // A future that is dropped early has taken nothing.
    drop(queue.external());
    flap(&model);
    let work = async {
        let first = change().await;
        // Kept while the task awaits only jobs.
        let got = queue.submit(event.get()).unwrap().await;
        (first, got.unwrap().job_type(), change().await)
    };
    let seen = doc::block_on(queue.drive_until(readable, work)).unwrap();
    assert_eq!(seen, (Change::PortDown(1), JobType::SyncEventGet, Change::PortUp(1)));
    assert!(!is_readable(queue.file().as_fd(), 20), "nothing is left");
}

#[test]
fn external_event_wakes_sleeping_thread() {
    let (model, dev) = disturbed();
    let context = AsyncEvents::builder(&dev).start().unwrap();
    let mut workq = workq(true);
    workq.add(&context).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(50));
            model.set_port(0, 1, false);
        });
        workq.arm().unwrap();
        assert!(
            poll(&mut [PollFd::new(workq.event_handle(), PollFlags::POLLIN)], 60_000u16)
                .is_ok_and(|ready| ready == 1)
        );
        workq.clear().unwrap();
    });
    assert_eq!(next_change(&mut workq), (0, Change::PortDown(1)));
    // The device's completion queue has a channel of its own for such events, whose record may
    // arrive later and wakes once more.
    workq.arm().unwrap();
    if is_readable(workq.event_handle(), 100) {
        workq.clear().unwrap();
        assert!(matches!(workq.progress_retrieve(), Err(Retrieve::Again)));
        workq.arm().unwrap();
        assert!(!is_readable(workq.event_handle(), 100), "nothing is left");
    }
}
