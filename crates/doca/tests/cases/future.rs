//! Jobs and events as futures: on an executor of a few lines, and on tokio.

use std::future::Future;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, poll};
use verbless_doca::dma::{Dma, Memcpy};
use verbless_doca::graph::Graph;
use verbless_doca::sha::{Algorithm, HashJob, Sha};
use verbless_doca::{
    AsyncWorkQ, Buf, ErrorKind, Event, Inventory, JobFuture, JobType, Mmap, Retrieve, WorkQ,
};
use verbless_model::Model;
use verbless_prm::CqeSyndrome;

use crate::support::plain;

const BUFFERS: usize = 512;

struct Rig {
    model: Model,
    map: Mmap,
    inventory: Inventory,
    dma: Dma,
    sha: Sha,
}

fn rig(depth: u32) -> (Rig, WorkQ) {
    let (model, dev) = crate::support::disturbed();
    let (map, inventory) = plain(&dev, 1 << 20, BUFFERS);
    let (dma, sha) = (Dma::builder(&dev).start().unwrap(), Sha::builder(&dev).start().unwrap());
    let mut workq = WorkQ::builder(depth).event_driven().build().unwrap();
    workq.add(&dma).unwrap();
    workq.add(&sha).unwrap();
    (Rig { model, map, inventory, dma, sha }, workq)
}

impl Rig {
    fn bufs(&self, length: u64) -> (Buf, Buf) {
        let from = self.inventory.buf_by_data(&self.map, self.map.address(), length).unwrap();
        let to = self.map.address() + 0x8_0000;
        (from, self.inventory.buf_by_addr(&self.map, to, 0x4_0000).unwrap())
    }

    fn copy(&self, number: u64) -> Memcpy {
        let (from, to) = self.bufs(64);
        self.dma.memcpy(from, to).user_data(number)
    }

    /// A hash of several software steps.
    fn hash(&self, number: u64) -> HashJob {
        let (from, to) = self.bufs(if number.is_multiple_of(5) { 200_000 } else { 64 });
        self.sha.hash(Algorithm::Sha1, from, to).user_data(number)
    }

    /// A copy or a hash.
    fn submit<'q>(&self, queue: &'q AsyncWorkQ, number: u64) -> JobFuture<'q> {
        match number.is_multiple_of(2) {
            true => queue.submit(self.copy(number)).unwrap(),
            false => queue.submit(self.hash(number)).unwrap(),
        }
    }
}

fn is_readable(file: BorrowedFd<'_>, milliseconds: u16) -> bool {
    poll(&mut [PollFd::new(file, PollFlags::POLLIN)], milliseconds).unwrap() == 1
}

/// The executor polls the file after each poll of the future.
async fn readable(file: BorrowedFd<'_>) -> io::Result<()> {
    std::future::poll_fn(|_| match is_readable(file, 0) {
        true => Poll::Ready(Ok(())),
        false => Poll::Pending,
    })
    .await
}

struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Release);
    }
}

/// An executor: polls when woken, or when the file is readable, and never otherwise.
fn block_on<F: Future>(file: BorrowedFd<'_>, future: F) -> F::Output {
    let flag = Arc::new(Flag(AtomicBool::new(true)));
    let waker = Waker::from(flag.clone());
    let mut future = pin!(future);
    loop {
        if !flag.0.swap(false, Ordering::AcqRel) {
            assert!(is_readable(file, 60_000), "nothing wakes the future");
        }
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return output;
        }
    }
}

/// Polls `times` times, and waits for the file in between.
fn poll_times<F: Future>(
    file: BorrowedFd<'_>,
    mut future: Pin<&mut F>,
    times: u64,
) -> Option<F::Output> {
    for time in 0..times {
        if time > 0 && !is_readable(file, 1) {
            return None;
        }
        let mut context = Context::from_waker(Waker::noop());
        if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
            return Some(output);
        }
    }
    None
}

/// Joins futures, each with its own waker, and has the waker of the last poll.
struct Join<F: Future>(Vec<Member<F>>, Waker);

/// A future until it completes; whether it was woken; its output.
type Member<F> = (Option<Pin<Box<F>>>, Arc<Flag>, Option<<F as Future>::Output>);

struct Both(Arc<Flag>, Waker);

impl Wake for Both {
    fn wake(self: Arc<Self>) {
        self.0.0.store(true, Ordering::Release);
        self.1.wake_by_ref();
    }
}

fn join<F: Future>(all: impl IntoIterator<Item = F>) -> Join<F> {
    let flag = || Arc::new(Flag(AtomicBool::new(true)));
    let all = all.into_iter().map(|future| (Some(Box::pin(future)), flag(), None)).collect();
    Join(all, Waker::noop().clone())
}

impl<F: Future<Output: Unpin>> Future for Join<F> {
    type Output = Vec<F::Output>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if !self.1.will_wake(context.waker()) {
            // Another task polls them now: old wakers would wake the previous one.
            self.1.clone_from(context.waker());
            self.0.iter().for_each(|(_, flag, _)| flag.0.store(true, Ordering::Release));
        }
        for (future, flag, output) in &mut self.0 {
            let Some(pending) = future else { continue };
            if !flag.0.swap(false, Ordering::AcqRel) {
                continue;
            }
            let waker = Waker::from(Arc::new(Both(flag.clone(), context.waker().clone())));
            if let Poll::Ready(ended) = pending.as_mut().poll(&mut Context::from_waker(&waker)) {
                (*future, *output) = (None, Some(ended));
            }
        }
        match self.0.iter().all(|(future, ..)| future.is_none()) {
            true => Poll::Ready(self.0.drain(..).map(|(.., output)| output.unwrap()).collect()),
            false => Poll::Pending,
        }
    }
}

fn file_of(workq: &WorkQ) -> OwnedFd {
    workq.event_handle().try_clone_to_owned().unwrap()
}

#[test]
fn next_event_future_loses_no_event() {
    let (rig, mut workq) = rig(16);
    let file = file_of(&workq);
    let file = std::os::fd::AsFd::as_fd(&file);
    // Each of the four patterns of drops, and races with the device.
    for round in 0..60u64 {
        let mut seen = [0; 8];
        for number in 0..8 {
            match number % 2 {
                0 => workq.submit(rig.copy(number)).unwrap(),
                _ => workq.submit(rig.hash(number)).unwrap(),
            }
        }
        // Dropped before the first poll, after one poll, after two...
        for drops in 0..12 {
            let next = pin!(workq.next(async || readable(file).await));
            if let Some(event) = poll_times(file, next, (drops + round) % 4) {
                seen[event.unwrap().user_data().0 as usize] += 1;
            }
        }
        while workq.in_flight() > 0 {
            let event = block_on(file, workq.next(async || readable(file).await)).unwrap();
            seen[event.user_data().0 as usize] += 1;
        }
        assert_eq!(seen, [1; 8], "round {round}");
    }
    assert_eq!(rig.inventory.num_free_elements(), BUFFERS);
    let mut polling = WorkQ::new(1).unwrap();
    match block_on(file, polling.next(async || Ok(()))) {
        Err(Retrieve::Failed(error)) => assert_eq!(error.kind(), ErrorKind::BadState),
        other => panic!("{other:?}"),
    }
    match block_on(file, workq.next(async || Err(io::Error::other("no file")))) {
        Err(Retrieve::Failed(error)) => assert!(error.to_string().contains("no file")),
        other => panic!("{other:?}"),
    }
}

#[test]
fn job_futures_get_their_own_events() {
    let (rig, workq) = rig(64);
    let queue = AsyncWorkQ::new(workq).unwrap();
    let work = async || {
        for round in 0..20 {
            let futures = (0..64).rev().map(|number| rig.submit(&queue, 64 * round + number));
            let futures = futures.inspect(|it| assert!(format!("{it:?}").contains("slot: ")));
            let events = join(futures.collect::<Vec<_>>()).await;
            for (event, number) in events.into_iter().zip((0..64).rev()) {
                assert_eq!(event.unwrap().user_data().0, 64 * round + number);
            }
        }
    };
    block_on(queue.file(), queue.drive_until(async || readable(queue.file()).await, work()))
        .unwrap();
    assert_eq!(queue.into_inner().in_flight(), 0);
    assert_eq!(rig.inventory.num_free_elements(), BUFFERS);
}

#[test]
fn dropped_futures_lose_no_event_or_buf() {
    let (rig, mut workq) = rig(64);
    // The patterns of drops and drives repeat every twelve rounds.
    for round in 0..36u64 {
        let queue = AsyncWorkQ::new(workq).unwrap();
        let file = queue.file();
        let mut kept = Vec::new();
        for number in 0..24 {
            let mut future = rig.submit(&queue, number);
            let poll_it = |future: &mut JobFuture<'_>| {
                let mut context = Context::from_waker(Waker::noop());
                Pin::new(future).poll(&mut context).is_ready()
            };
            match (number + round) % 6 {
                0 => drop(future),
                1 => std::mem::forget(future),
                2 => {
                    poll_it(&mut future);
                    drop(future);
                }
                3 => {
                    poll_it(&mut future);
                    std::mem::forget(future);
                }
                4 => {
                    poll_it(&mut future);
                    kept.push((number, future));
                }
                _ => kept.push((number, future)),
            }
            // A drive that ends at some point.
            let drive = pin!(queue.drive(async || readable(file).await));
            assert!(poll_times(file, drive, (number + round) % 4).is_none());
        }
        let (numbers, futures): (Vec<_>, Vec<_>) = kept.into_iter().unzip();
        // Some have their events by now, and are dropped with them.
        let mut futures = futures.into_iter();
        drop(futures.next());
        let drive = queue.drive_until(async || readable(file).await, join(futures));
        let events = block_on(file, drive).unwrap();
        for (event, number) in events.into_iter().zip(&numbers[1..]) {
            assert_eq!(event.unwrap().user_data().0, *number);
        }
        workq = queue.into_inner();
        workq.drain().for_each(|event| assert!(event.is_ok()));
        assert_eq!(rig.inventory.num_free_elements(), BUFFERS, "round {round}");
    }
}

#[test]
fn submit_waiting_may_be_dropped() {
    let (rig, workq) = rig(4);
    let queue = AsyncWorkQ::new(workq).unwrap();
    let (queue, rig) = (&queue, &rig);
    let done = AtomicUsize::new(0);
    let one = async |number: u64| {
        let future = queue.submit_waiting(rig.copy(number)).await.unwrap();
        assert_eq!(future.await.unwrap().user_data().0, number);
        done.fetch_add(1, Ordering::Relaxed);
    };
    let mut all = Box::pin(join((0..200).map(one)));
    {
        let drive = queue.drive_until(async || readable(queue.file()).await, all.as_mut());
        let drive = pin!(drive);
        assert!(poll_times(queue.file(), drive, 3).is_none(), "all jobs had room at once");
    }
    // Most of the waiting futures are dropped.
    all.0.truncate(100);
    let drive = queue.drive_until(async || readable(queue.file()).await, all);
    block_on(queue.file(), drive).unwrap();
    assert_eq!(done.load(Ordering::Relaxed), 100);
    assert_eq!(rig.inventory.num_free_elements(), BUFFERS);
}

#[test]
fn job_failures_and_graphs_resolve_their_futures() {
    let (rig, mut workq) = rig(16);
    let mut graph = Graph::builder();
    let copy = graph.ctx_node(&rig.dma, JobType::DmaMemcpy);
    let user = graph.user_node(|_| Ok(()));
    graph.add_dependency(copy, user).unwrap();
    let graph = graph.start().unwrap();
    workq.add_graph(&graph).unwrap();
    let instance = graph.instance();
    instance.set_user_node_data(user, ()).unwrap();
    let queue = AsyncWorkQ::new(workq).unwrap();
    for round in 0..50u64 {
        rig.model.fail_request(0, None, 1 + round as u32 % 3, CqeSyndrome::LOCAL_PROTECTION);
        instance.set_ctx_node_data(copy, rig.copy(100)).unwrap();
        let all = vec![
            rig.submit(&queue, 0),
            queue.submit_graph(&instance, round).unwrap(),
            rig.submit(&queue, 2),
        ];
        assert_eq!(queue.submit_graph(&instance, 0).unwrap_err().kind(), ErrorKind::InUse);
        let drive = queue.drive_until(async || readable(queue.file()).await, join(all));
        let mut events = block_on(queue.file(), drive).unwrap();
        let mut failures = 0;
        if let Ok(Event::Graph(done)) = &events[1] {
            assert_eq!(done.user_data.0, round);
            failures += u32::from(done.status() != 0);
        } else {
            panic!("{:?}", events[1]);
        }
        drop(events.swap_remove(1));
        for (event, number) in events.into_iter().zip([0, 2]) {
            match event {
                Ok(event) => assert_eq!(event.user_data().0, number),
                Err(Retrieve::IoFailed(event)) => {
                    assert_eq!(event.user_data().0, number);
                    failures += 1;
                }
                Err(other) => panic!("{other:?}"),
            }
        }
        assert_eq!(failures, 1, "round {round}");
    }
    queue.remove_graph(&graph).unwrap();
}

#[test]
fn async_workq_needs_idle_event_driven_workq() {
    let (rig, mut workq) = rig(4);
    let polling = AsyncWorkQ::new(WorkQ::new(1).unwrap()).map(drop).unwrap_err();
    assert_eq!(polling.error.kind(), ErrorKind::BadState);
    workq.submit(rig.copy(1)).unwrap();
    let mut workq = AsyncWorkQ::new(workq).map(drop).unwrap_err().given;
    assert_eq!(workq.drain().map(|event| event.unwrap().user_data().0).sum::<u64>(), 1);
    AsyncWorkQ::new(workq).unwrap();
}

#[test]
fn failed_file_wait_loses_no_event() {
    let (rig, mut workq) = rig(4);
    let broken = async || Err(io::Error::from_raw_os_error(5));
    let os = |error: verbless_doca::Error| {
        assert_eq!(error.kind(), ErrorKind::OperatingSystem, "{error}");
        assert!(std::error::Error::source(&error).is_some(), "{error}");
    };
    // With nothing in flight: a job might complete before a task waits.
    let file = workq.event_handle().try_clone_to_owned().unwrap();
    match block_on(file.as_fd(), workq.next(broken)) {
        Err(Retrieve::Failed(error)) => os(error),
        other => panic!("{other:?}"),
    }
    workq.submit(rig.copy(3)).unwrap();
    let event = block_on(file.as_fd(), workq.next(async || readable(file.as_fd()).await)).unwrap();
    assert_eq!(event.user_data().0, 3);

    let queue = AsyncWorkQ::new(workq).unwrap();
    match block_on(queue.file(), queue.drive(broken)) {
        Err(error) => os(error),
        Ok(never) => match never {},
    }
    let forever = std::future::pending::<()>();
    os(block_on(queue.file(), queue.drive_until(broken, forever)).unwrap_err());
    let job = rig.submit(&queue, 6);
    let drive = queue.drive_until(async || readable(queue.file()).await, job);
    assert_eq!(block_on(queue.file(), drive).unwrap().unwrap().user_data().0, 6);
}

#[test]
fn events_iterator_ends_at_timeout_or_idle() {
    let (rig, mut workq) = rig(16);
    for number in 0..8 {
        workq.submit(rig.copy(2 * number)).unwrap();
        workq.submit(rig.hash(2 * number + 1)).unwrap();
    }
    let first = workq.events(None).take(5).filter(Result::is_ok).count();
    assert_eq!((first, workq.in_flight()), (5, 11));
    assert_eq!(workq.drain().filter(Result::is_ok).count(), 11);
    assert_eq!(workq.drain().count(), 0);
    let start = std::time::Instant::now();
    assert_eq!(workq.events(Some(Duration::from_millis(20))).count(), 0);
    assert!(start.elapsed() >= Duration::from_millis(20));
    rig.model.fail_request(0, None, 1, CqeSyndrome::LOCAL_PROTECTION);
    workq.submit(rig.copy(0)).unwrap();
    workq.submit(rig.copy(0)).unwrap();
    let results: Vec<_> = workq.drain().map(|event| event.is_ok()).collect();
    assert_eq!(results.iter().filter(|good| !**good).count(), 1, "{results:?}");
    assert_eq!(results.len(), 2, "a failure is an item");
}

#[test]
fn tokio_tasks_share_workq_and_cancel() {
    use tokio::io::Interest;
    use tokio::io::unix::AsyncFd;

    const TASKS: u64 = 20;
    const JOBS: u64 = 30;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (rig, workq) = rig(32);
    let (rig, queue) = (Rc::new(rig), Rc::new(AsyncWorkQ::new(workq).unwrap()));
    let cancelled = Rc::new(AtomicUsize::new(0));
    runtime.block_on(tokio::task::LocalSet::new().run_until(async {
        let file = queue.file().try_clone_to_owned().unwrap();
        // SAFETY: the descriptor is owned here, and stays the same as long as the `AsyncFd` has it.
        #[allow(unsafe_code, reason = "tokio asks for a promise about the descriptor")]
        let file = unsafe { AsyncFd::register_with_interest(file, Interest::READABLE) }.unwrap();
        let readable = async || {
            file.readable().await?.clear_ready();
            Ok(())
        };
        let tasks: Vec<_> = (0..TASKS)
            .map(|task| {
                let (rig, queue, cancelled) = (rig.clone(), queue.clone(), cancelled.clone());
                tokio::task::spawn_local(async move {
                    for job in 0..JOBS {
                        let number = JOBS * task + job;
                        let one = async {
                            let future = match job % 2 {
                                0 => queue.submit_waiting(rig.copy(number)).await.unwrap(),
                                _ => queue.submit_waiting(rig.hash(number)).await.unwrap(),
                            };
                            assert_eq!(future.await.unwrap().user_data().0, number);
                        };
                        // Time limits: some have none left, some little, and most enough.
                        let time = [0, 50, 200, 60_000_000, 60_000_000][number as usize % 5];
                        let time = Duration::from_micros(time);
                        if tokio::time::timeout(time, one).await.is_err() {
                            assert!(time.as_secs() < 60, "job {number} was lost");
                            cancelled.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                })
            })
            .collect();
        let work = async {
            for task in tasks {
                task.await.unwrap();
            }
        };
        queue.drive_until(readable, work).await.unwrap();
    }));
    assert!(cancelled.load(Ordering::Relaxed) > 0, "nothing was cancelled");
    drop(runtime);
    let mut workq = Rc::into_inner(queue).unwrap().into_inner();
    workq.drain().for_each(|event| assert!(event.is_ok()));
    assert_eq!(rig.inventory.num_free_elements(), BUFFERS);
}

#[test]
fn event_of_dropped_future_is_dropped() {
    let (rig, workq) = rig(4);
    let queue = AsyncWorkQ::new(workq).unwrap();
    drop(queue.submit(rig.copy(0)).unwrap());
    let behind = queue.submit(rig.copy(1)).unwrap();
    let file = queue.file();
    let driven = queue.drive_until(async || readable(file).await, behind);
    drop(block_on(file, driven).unwrap().unwrap());
    assert_eq!(rig.inventory.num_free_elements(), BUFFERS);
}

#[test]
fn software_job_completes_without_file_wait() {
    let (rig, mut workq) = rig(4);
    workq.submit(rig.hash(5)).unwrap();
    let event = workq.next(async || panic!("there is work to do"));
    let mut context = Context::from_waker(Waker::noop());
    match pin!(event).as_mut().poll(&mut context) {
        Poll::Ready(Ok(event)) => assert_eq!(event.user_data().0, 5),
        other => panic!("{other:?}"),
    }
}

/// Counts its wake-ups.
struct Count(AtomicUsize);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::AcqRel);
    }
}

#[test]
fn room_waiter_wakes_after_job_ends_or_aborts() {
    let (model, dev) = crate::support::stepped();
    let (map, inventory) = plain(&dev, 4096, 8);
    let dma = Dma::builder(&dev).start().unwrap();
    let mut workq = WorkQ::builder(1).event_driven().build().unwrap();
    workq.add(&dma).unwrap();
    let queue = AsyncWorkQ::new(workq).unwrap();
    let copy = || {
        let source = inventory.buf_by_data(&map, map.address(), 64).unwrap();
        dma.memcpy(source, inventory.buf_by_addr(&map, map.address() + 64, 64).unwrap())
    };
    let first = queue.submit(copy()).unwrap();
    let mut waiting = pin!(queue.submit_waiting(copy()));
    let count = Arc::new(Count(AtomicUsize::new(0)));
    let waker = Waker::from(count.clone());
    assert!(waiting.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    let file = queue.file();
    let drive = || {
        let mut driven = pin!(queue.drive(async || readable(file).await));
        assert!(driven.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    };
    drive();
    assert_eq!(count.0.load(Ordering::Acquire), 0, "nothing has ended");
    model.run_until_idle();
    drive();
    assert_eq!(count.0.load(Ordering::Acquire), 1);
    let Poll::Ready(second) = waiting.as_mut().poll(&mut Context::from_waker(&waker)) else {
        panic!("there is room")
    };
    let mut context = Context::from_waker(Waker::noop());
    assert!(matches!(pin!(first).as_mut().poll(&mut context), Poll::Ready(Ok(_))));
    queue.abort(&dma).unwrap();
    drive();
    match pin!(second.unwrap()).as_mut().poll(&mut context) {
        Poll::Ready(Err(Retrieve::IoFailed(event))) => {
            assert_eq!(event.result().unwrap_err().kind(), ErrorKind::Shutdown);
        }
        other => panic!("{other:?}"),
    }
}
