//! Sync events: on one side, and between a host and its DPU.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, poll};
use verbless_doca::graph::Graph;
use verbless_doca::sync_event::{Location, SyncEvent, SyncEventBuilder, SyncEventCtx};
use verbless_doca::{
    AsyncWorkQ, Dev, DevInfo, ErrorKind, Event, Job, JobType, Memory, Mmap, Refused, Retrieve,
    WorkQ,
};

use verbless_devx::Backend;
use verbless_model::{Link, Model, Profile};
use verbless_model_kernel::InProcess;

use crate::support::{dev, sides};

const TIMEOUT: Option<Duration> = Some(Duration::from_secs(60));

fn configured(dev: &Dev) -> SyncEventBuilder {
    let builder = SyncEvent::builder(dev).publisher_add_location(Location::Cpu).unwrap();
    builder.subscriber_add_location(Location::Cpu).unwrap()
}

fn sync(dev: &Dev) -> SyncEvent {
    configured(dev).start().unwrap()
}

fn context(dev: &Dev) -> SyncEventCtx {
    configured(dev).as_ctx().start().unwrap()
}

fn kind<T, E: Into<verbless_doca::Error>>(result: Result<T, E>) -> ErrorKind {
    match result {
        Ok(_) => panic!("the call was not refused"),
        Err(error) => error.into().kind(),
    }
}

/// Submits a job, and returns its event's value.
fn run(workq: &mut WorkQ, job: impl Job) -> Option<u64> {
    workq.submit(job).map_err(|refused: Refused<_>| refused.error).unwrap();
    value(workq)
}

/// The next event's value.
fn value(workq: &mut WorkQ) -> Option<u64> {
    match workq.retrieve_within(TIMEOUT) {
        Ok(Some(Event::SyncEvent(done))) => done.value,
        other => panic!("{other:?}"),
    }
}

fn on(context: &SyncEventCtx) -> WorkQ {
    let mut workq = WorkQ::builder(8).event_driven().build().unwrap();
    workq.add(context).unwrap();
    workq
}

/// Checks that nothing is retrieved for a while.
fn quiet(workq: &mut WorkQ) {
    let end = Instant::now() + Duration::from_millis(50);
    while Instant::now() < end {
        assert!(matches!(workq.progress_retrieve(), Err(Retrieve::Again)));
    }
}

#[test]
fn cpu_event_counts_and_wraps() {
    let event = sync(&dev());
    assert_eq!(event.get().unwrap(), 0);
    event.update_set(u64::MAX - 1).unwrap();
    assert_eq!(event.update_add(3).unwrap(), u64::MAX - 1);
    assert_eq!(event.get().unwrap(), 1, "the counter wraps");
    event.wait_gt(0).unwrap();
    event.wait_gt_yield(0).unwrap();
    event.stop().destroy();
}

#[test]
fn builder_requires_both_cpu_locations() {
    let dev = dev();
    let builder = || SyncEvent::builder(&dev);
    assert_eq!(kind(builder().start()), ErrorKind::BadState);
    let one = builder().publisher_add_location(Location::Cpu).unwrap();
    assert_eq!(kind(one.clone().start()), ErrorKind::BadState);
    assert_eq!(kind(one.clone().as_ctx().start()), ErrorKind::BadState);
    assert_eq!(kind(one.publisher_add_location(Location::Cpu)), ErrorKind::AlreadyExist);
    let one = builder().subscriber_add_location(Location::Cpu).unwrap();
    assert_eq!(kind(one.start()), ErrorKind::BadState);
    for location in [Location::Dpa, Location::Gpu] {
        assert_eq!(kind(builder().publisher_add_location(location)), ErrorKind::NotSupported);
        assert_eq!(kind(builder().subscriber_add_location(location)), ErrorKind::NotSupported);
    }
    assert_eq!(kind(SyncEvent::export_to_dpa_supported(&dev)), ErrorKind::NotSupported);
    assert_eq!(kind(SyncEvent::export_to_gpu_supported(&dev)), ErrorKind::NotSupported);
}

#[test]
fn event_counts_in_user_memory() {
    let dev = dev();
    let memory = Memory::allocate(64).unwrap();
    // SAFETY: the CPU accesses the memory only by these words and the event.
    #[allow(unsafe_code, reason = "words take a promise")]
    let words: &[AtomicU64] = unsafe { memory.words() };
    words[2].store(5, Ordering::Relaxed);
    let part = |at, length| {
        // SAFETY: as above.
        #[allow(unsafe_code, reason = "the event takes a promise")]
        unsafe {
            configured(&dev).memory(memory.slice(at, length).unwrap())
        }
    };
    for (at, length) in [(0, 7), (0, 16), (4, 8), (1, 8)] {
        assert_eq!(kind(part(at, length).start()), ErrorKind::InvalidValue, "{length} at {at}");
    }
    let event = part(16, 8).start().unwrap();
    assert_eq!(event.get().unwrap(), 5);
    event.update_add(1).unwrap();
    assert_eq!(words[2].load(Ordering::Relaxed), 6);
    event.stop().destroy();
    let context = part(16, 8).as_ctx().start().unwrap();
    let mut workq = on(&context);
    run(&mut workq, context.set(0x0102_0304_0506_0708));
    let all: Vec<_> = words.iter().map(|word| word.load(Ordering::Relaxed)).collect();
    assert_eq!(all, [0, 0, 0x0102_0304_0506_0708, 0, 0, 0, 0, 0]);
}

#[test]
fn event_keeps_its_memory_until_destroyed() {
    /// Sets the flag when the memory's owner is dropped.
    struct Owner(Arc<AtomicBool>);
    impl Drop for Owner {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let dev = dev();
    let gone = [(); 2].map(|()| Arc::new(AtomicBool::new(false)));
    let [of_event, of_context] = gone.each_ref().map(|gone| {
        let memory = Memory::allocate(8).unwrap().guarded(Owner(gone.clone()));
        // SAFETY: nothing else accesses the memory.
        #[allow(unsafe_code, reason = "the event takes a promise")]
        unsafe {
            configured(&dev).memory(memory)
        }
    });
    let are_gone = || gone.each_ref().map(|gone| gone.load(Ordering::Relaxed));
    let event = of_event.start().unwrap();
    let context = of_context.as_ctx().start().unwrap();
    let mut workq = on(&context);
    event.update_set(7).unwrap();
    run(&mut workq, context.set(8));
    assert_eq!(are_gone(), [false; 2], "nothing but the events has it");
    assert_eq!((event.get().unwrap(), run(&mut workq, context.get())), (7, Some(8)));
    let stopped = event.stop();
    assert_eq!(are_gone(), [false; 2], "the event is stopped");
    stopped.destroy();
    assert_eq!(are_gone(), [true, false], "the event is destroyed");
    drop(context);
    drop(workq);
    assert_eq!(are_gone(), [true; 2], "the context is destroyed");
}

#[test]
fn jobs_get_set_add_and_wait() {
    let context = context(&dev());
    for mut workq in [WorkQ::new(8).unwrap(), WorkQ::builder(8).event_driven().build().unwrap()] {
        workq.add(&context).unwrap();
        assert_eq!(run(&mut workq, context.set(7)), None);
        assert_eq!(run(&mut workq, context.add(3)), Some(7));
        assert_eq!(run(&mut workq, context.get()), Some(10));
        assert_eq!(run(&mut workq, context.wait_gt(9)), None);
        workq.submit(context.wait_gt(10).user_data(1)).unwrap();
        quiet(&mut workq);
        workq.submit(context.add(1).user_data(2)).unwrap();
        let mut came = [0; 2].map(|_| {
            let event = workq.retrieve_within(TIMEOUT).unwrap().unwrap();
            (event.user_data().0, event.job_type())
        });
        came.sort_by_key(|&(number, _)| number);
        assert_eq!(came, [(1, JobType::SyncEventWait), (2, JobType::SyncEventAdd)]);
        workq.remove(&context).unwrap();
    }
    context.stop().unwrap().destroy();
}

#[test]
fn wait_threshold_is_0_to_254() {
    let context = context(&dev());
    let mut workq = on(&context);
    for threshold in [255, 256, 1 << 32, u64::MAX] {
        assert_eq!(kind(workq.submit(context.wait_gt(threshold))), ErrorKind::InvalidValue);
    }
    assert_eq!(workq.in_flight(), 0);
    for threshold in 0..=254 {
        run(&mut workq, context.set(threshold));
        workq.submit(context.wait_gt(threshold)).unwrap();
        if threshold % 50 == 4 {
            quiet(&mut workq);
        }
        workq.submit(context.set(threshold + 1)).unwrap();
        assert_eq!((value(&mut workq), value(&mut workq)), (None, None));
        // A wait that is submitted after the set completes, too.
        run(&mut workq, context.wait_gt(threshold));
    }
}

#[test]
fn waits_end_as_value_passes_in_any_order() {
    let context = context(&dev());
    let mut polled = WorkQ::new(8).unwrap();
    polled.add(&context).unwrap();
    for mut workq in [on(&context), polled] {
        run(&mut workq, context.set(0));
        for threshold in [3, 5, 1, 4, 1] {
            workq.submit(context.wait_gt(threshold).user_data(threshold)).unwrap();
        }
        for value in 0..6 {
            quiet(&mut workq);
            workq.submit(context.add(1).user_data(100u64)).unwrap();
            let waits = [0, 2, 0, 1, 1, 1][value as usize];
            let mut ended = Vec::new();
            for _ in 0..=waits {
                match workq.retrieve_within(TIMEOUT) {
                    Ok(Some(Event::SyncEvent(done))) => match done.job_type {
                        JobType::SyncEventAdd => assert_eq!(done.value, Some(value)),
                        _ => ended.push(done.user_data.0),
                    },
                    other => panic!("{other:?}"),
                }
            }
            assert_eq!(ended, vec![value; waits], "above {value}");
        }
        assert_eq!(workq.in_flight(), 0);
        workq.remove(&context).unwrap();
    }
}

#[test]
fn descending_waits_end_once_even_on_abort() {
    let context = context(&dev());
    let mut workq = on(&context);
    let submit = |workq: &mut WorkQ| {
        for threshold in (1..=8).rev() {
            workq.submit(context.wait_gt(threshold).user_data(threshold)).unwrap();
        }
    };
    let mut other = on(&context);
    submit(&mut workq);
    run(&mut other, context.set(9));
    let mut ended: Vec<u64> = Vec::new();
    while workq.in_flight() > 0 {
        ended.push(workq.retrieve_within(TIMEOUT).unwrap().unwrap().user_data().0);
    }
    ended.sort_unstable();
    assert_eq!(ended, (1..=8).collect::<Vec<_>>());
    run(&mut other, context.set(0));
    submit(&mut workq);
    workq.abort(&context).unwrap();
    ended.clear();
    while workq.in_flight() > 0 {
        match workq.retrieve_within(TIMEOUT) {
            Err(Retrieve::IoFailed(event)) => {
                assert_eq!(event.result().unwrap_err().kind(), ErrorKind::Shutdown);
                ended.push(event.user_data().0);
            }
            other => panic!("{other:?}"),
        }
    }
    ended.sort_unstable();
    assert_eq!(ended, (1..=8).collect::<Vec<_>>());
    workq.remove(&context).unwrap();
}

#[test]
fn jobs_behind_failed_one_end_individually() {
    let (host, dpu) = sides();
    let event = sync(&host);
    let descriptor = event.export_to_dpu().unwrap();
    let there = SyncEvent::create_from_export(descriptor.as_bytes(), &dpu).unwrap();
    let context = there.as_ctx().start().unwrap();
    let mut workq = on(&context);
    event.stop().destroy();
    for round in 0..3 {
        let waits = [2, 1, 3].map(|threshold| context.wait_gt(threshold));
        let others = [context.add(1), context.get(), context.set(4), context.add(2)];
        let mut came = Vec::new();
        for (number, job) in (0u64..).zip(others.into_iter().chain(waits)) {
            workq.submit(job.user_data(number)).unwrap();
        }
        for _ in 0..7 {
            match workq.retrieve_within(TIMEOUT) {
                Err(Retrieve::IoFailed(event)) => {
                    let kind = event.result().unwrap_err().kind();
                    assert_eq!(
                        kind,
                        ErrorKind::NotPermitted,
                        "each job reports the refusal, round {round}"
                    );
                    came.push(event.user_data().0);
                }
                other => panic!("{other:?}"),
            }
        }
        let updates: Vec<_> = came.iter().copied().filter(|&number| number < 4).collect();
        assert_eq!(updates, [0, 1, 2, 3], "in their order");
        came.sort_unstable();
        assert_eq!(came, (0..7).collect::<Vec<_>>());
    }
    workq.remove(&context).unwrap();
}

#[test]
fn adds_of_many_work_queues_are_all_counted() {
    let context = context(&dev());
    let mut queues = [0; 3].map(|_| on(&context));
    for _ in 0..50 {
        for workq in &mut queues {
            for _ in 0..8 {
                workq.submit(context.add(1)).unwrap();
            }
        }
        for workq in &mut queues {
            for _ in 0..8 {
                value(workq);
            }
        }
    }
    assert_eq!(run(&mut queues[0], context.get()), Some(1200));
}

#[test]
fn ctx_on_workq_rejects_stop_and_abort_ends_wait() {
    let context = context(&dev());
    let mut workq = on(&context);
    let refused = context.stop().unwrap_err();
    assert_eq!(refused.error.kind(), ErrorKind::InUse);
    let context = refused.given;
    workq.submit(context.wait_gt(9)).unwrap();
    assert_eq!(kind(workq.remove(&context)), ErrorKind::InUse);
    workq.abort(&context).unwrap();
    match workq.retrieve_within(TIMEOUT) {
        Err(Retrieve::IoFailed(event)) => {
            assert_eq!(event.result().unwrap_err().kind(), ErrorKind::Shutdown);
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(kind(workq.submit(context.get())), ErrorKind::Shutdown);
    workq.remove(&context).unwrap();
    workq.add(&context).unwrap();
    assert_eq!(run(&mut workq, context.get()), Some(0), "on it again");
    // Dropped with a wait in flight.
    workq.submit(context.wait_gt(9)).unwrap();
    drop(workq);
    context.stop().unwrap().destroy();
}

#[test]
fn wait_resolves_future() {
    let context = context(&dev());
    let queue = AsyncWorkQ::new(on(&context)).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let readable = async || {
            loop {
                let mut files = [PollFd::new(queue.file(), PollFlags::POLLIN)];
                if poll(&mut files, 0u8)? > 0 {
                    return Ok(());
                }
                tokio::task::yield_now().await;
            }
        };
        let work = async {
            let waited = queue.submit(context.wait_gt(1)).unwrap();
            let set = queue.submit(context.set(2)).unwrap();
            waited.await.unwrap();
            set.await.unwrap();
            queue.submit(context.get()).unwrap().await.unwrap()
        };
        let Event::SyncEvent(done) = queue.drive_until(readable, work).await.unwrap() else {
            panic!("no other jobs");
        };
        assert_eq!(done.value, Some(2));
    });
}

#[test]
fn waits_run_as_graph_nodes() {
    let context = context(&dev());
    let mut workq = on(&context);
    let mut graph = Graph::builder();
    let wait = graph.ctx_node(&context, JobType::SyncEventWait);
    let get = graph.ctx_node(&context, JobType::SyncEventGet);
    let add = graph.ctx_node(&context, JobType::SyncEventAdd);
    graph.add_dependency(wait, get).unwrap();
    graph.add_dependency(get, add).unwrap();
    let graph = graph.start().unwrap();
    workq.add_graph(&graph).unwrap();
    let instance = graph.instance();
    instance.set_ctx_node_data(wait, context.wait_gt(40)).unwrap();
    instance.set_ctx_node_data(get, context.get()).unwrap();
    instance.set_ctx_node_data(add, context.add(1)).unwrap();
    workq.submit_graph(&instance, 7).unwrap();
    quiet(&mut workq);
    workq.submit(context.set(41)).unwrap();
    let mut done = false;
    for _ in 0..2 {
        match workq.retrieve_within(TIMEOUT).unwrap().unwrap() {
            Event::Graph(graph) => done = graph.status() == 0,
            Event::SyncEvent(set) => assert_eq!(set.job_type, JobType::SyncEventSet),
            other => panic!("{other:?}"),
        }
    }
    assert!(done);
    for node in [get, add] {
        let Some(Event::SyncEvent(done)) = instance.take_result(node).unwrap() else { panic!() };
        assert_eq!(done.value, Some(41));
    }
    assert_eq!(run(&mut workq, context.get()), Some(42));
}

#[test]
fn parallel_wait_nodes_end_in_any_order() {
    let context = context(&dev());
    let mut workq = on(&context);
    let mut graph = Graph::builder();
    // The smaller threshold lets the value pass the larger one.
    let late = graph.ctx_node(&context, JobType::SyncEventWait);
    let early = graph.ctx_node(&context, JobType::SyncEventWait);
    let late_too = graph.ctx_node(&context, JobType::SyncEventWait);
    let add = graph.ctx_node(&context, JobType::SyncEventAdd);
    graph.add_dependency(early, add).unwrap();
    let graph = graph.start().unwrap();
    workq.add_graph(&graph).unwrap();
    let instance = graph.instance();
    instance.set_ctx_node_data(late, context.wait_gt(1)).unwrap();
    instance.set_ctx_node_data(early, context.wait_gt(0)).unwrap();
    instance.set_ctx_node_data(late_too, context.wait_gt(1)).unwrap();
    instance.set_ctx_node_data(add, context.add(1)).unwrap();
    workq.submit_graph(&instance, 7).unwrap();
    quiet(&mut workq);
    workq.submit(context.set(1)).unwrap();
    let mut done = false;
    for _ in 0..2 {
        match workq.retrieve_within(TIMEOUT).unwrap().unwrap() {
            Event::Graph(graph) => done = graph.status() == 0,
            Event::SyncEvent(set) => assert_eq!(set.job_type, JobType::SyncEventSet),
            other => panic!("{other:?}"),
        }
    }
    assert!(done);
}

#[test]
fn job_supported_matches_job_results() {
    let jobs = [
        JobType::SyncEventGet,
        JobType::SyncEventSet,
        JobType::SyncEventAdd,
        JobType::SyncEventWait,
    ];
    let profiles =
        ["bluefield3", "connectx6dx", "connectx6dx-bond", "connectx6dx-realtime", "connectx6vf"];
    let alone = profiles.map(|profile| {
        DevInfo::list_of(&crate::support::backend(profile)).unwrap()[0].open().unwrap()
    });
    let (host, dpu) = sides();
    for dev in alone.into_iter().chain([host, dpu]) {
        let context = context(&dev);
        let mut workq = on(&context);
        run(&mut workq, context.set(4));
        for job in jobs {
            let supported = SyncEvent::job_supported(&dev, job).map_err(|error| error.kind());
            let submitted = workq.submit(match job {
                JobType::SyncEventGet => context.get(),
                JobType::SyncEventSet => context.set(4),
                JobType::SyncEventAdd => context.add(0),
                _ => context.wait_gt(3),
            });
            let worked = submitted.map_err(|refused| refused.error.kind()).map(|()| {
                value(&mut workq);
            });
            assert_eq!(supported, worked, "{job:?} on {dev:?}");
            assert!(worked.is_ok() || worked == Err(ErrorKind::NotSupported));
        }
        let other = SyncEvent::job_supported(&dev, JobType::DmaMemcpy);
        assert_eq!(kind(other), ErrorKind::InvalidValue);
        let exports = SyncEvent::export_to_dpu_supported(&dev).map_err(|error| error.kind());
        assert_eq!(exports, context.export_to_dpu().map(drop).map_err(|error| error.kind()));
        assert_eq!(exports, sync(&dev).export_to_dpu().map(drop).map_err(|error| error.kind()));
    }
}

#[test]
fn host_and_dpu_set_add_and_wait_synchronously() {
    let (host, dpu) = sides();
    let event = sync(&host);
    event.update_set(1).unwrap();
    assert_eq!(event.update_add(1).unwrap(), 1, "by the CPU");
    let descriptor = event.export_to_dpu().unwrap();
    assert_eq!(descriptor, event.export_to_dpu().unwrap(), "every time the same");
    let there = SyncEvent::create_from_export(descriptor.as_bytes(), &dpu).unwrap();
    let there = there.start().unwrap();
    assert_eq!(there.get().unwrap(), 2);
    assert_eq!(there.update_add(u64::MAX).unwrap(), 2);
    assert_eq!(event.get().unwrap(), 1, "the counter wraps");
    there.update_set(0x1234_5678_9abc_def0).unwrap();
    assert_eq!(event.update_add(1).unwrap(), 0x1234_5678_9abc_def0, "by the device");
    event.wait_gt(0x1234_5678_9abc_def0).unwrap();
    there.wait_gt_yield(0x1234_5678_9abc_def0).unwrap();
    event.update_set(0).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for round in 0..20 {
                there.wait_gt(2 * round).unwrap();
                there.update_add(1).unwrap();
            }
        });
        for round in 0..20 {
            event.update_add(1).unwrap();
            event.wait_gt_yield(2 * round + 1).unwrap();
        }
        assert_eq!(event.get().unwrap(), 40);
    });
}

#[test]
fn concurrent_host_and_dpu_adds_are_all_counted() {
    const EACH: u64 = 2000;
    let (host, dpu) = sides();
    let event = sync(&host);
    let descriptor = event.export_to_dpu().unwrap();
    let there = SyncEvent::create_from_export(descriptor.as_bytes(), &dpu).unwrap();
    let there = there.start().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for _ in 0..EACH {
                there.update_add(1).unwrap();
            }
        });
        for _ in 0..EACH {
            event.update_add(1).unwrap();
        }
        event.wait_gt_yield(2 * EACH - 1).unwrap();
        assert_eq!(event.get().unwrap(), 2 * EACH);
    });
}

#[test]
fn host_and_dpu_jobs_work_in_either_mode() {
    let (host, dpu) = sides();
    let (there_sync, there_ctx);
    let event = context(&host);
    let descriptor = event.export_to_dpu().unwrap();
    let import = || SyncEvent::create_from_export(descriptor.as_bytes(), &dpu).unwrap();
    there_sync = import().start().unwrap();
    there_ctx = import().as_ctx().start().unwrap();
    let (mut here, mut there) = (on(&event), on(&there_ctx));
    there.submit(there_ctx.wait_gt(0)).unwrap();
    quiet(&mut there);
    run(&mut here, event.set(1));
    value(&mut there);
    here.submit(event.wait_gt(1)).unwrap();
    quiet(&mut here);
    assert_eq!(run(&mut there, there_ctx.add(1)), Some(1));
    value(&mut here);
    assert_eq!(there_sync.get().unwrap(), 2);
    here.submit(event.wait_gt(2)).unwrap();
    there_sync.update_set(3).unwrap();
    value(&mut here);
    assert_eq!(run(&mut there, there_ctx.get()), Some(3));
    assert_eq!(kind(there_sync.export_to_dpu()), ErrorKind::NotPermitted);
    assert_eq!(kind(there_ctx.export_to_dpu()), ErrorKind::NotPermitted);
}

#[test]
fn import_fails_after_event_is_destroyed() {
    let (host, dpu) = sides();
    let event = sync(&host);
    let descriptor = event.export_to_dpu().unwrap();
    let import = || SyncEvent::create_from_export(descriptor.as_bytes(), &dpu);
    let there = import().unwrap().start().unwrap();
    let context = import().unwrap().as_ctx().start().unwrap();
    let mut workq = on(&context);
    let stopped = event.stop();
    there.update_set(8).unwrap();
    stopped.destroy();
    for _ in 0..2 {
        assert_eq!(kind(there.get()), ErrorKind::NotPermitted);
        assert_eq!(kind(there.update_set(9)), ErrorKind::NotPermitted);
        assert_eq!(kind(there.update_add(9)), ErrorKind::NotPermitted);
        assert_eq!(kind(there.wait_gt(9)), ErrorKind::NotPermitted);
        for job in [context.get(), context.set(1), context.add(1), context.wait_gt(0)] {
            workq.submit(job).unwrap();
            match workq.retrieve_within(TIMEOUT) {
                Err(Retrieve::IoFailed(event)) => {
                    assert_eq!(event.result().unwrap_err().kind(), ErrorKind::NotPermitted);
                }
                other => panic!("{other:?}"),
            }
        }
    }
    assert_eq!(kind(import()), ErrorKind::NotPermitted);
}

#[test]
fn mmap_and_event_descriptors_are_distinguished() {
    let (host, dpu) = sides();
    let map = crate::support::map(&host, 8, verbless_doca::AccessFlags::DPU_READ_WRITE);
    let of_map = map.export_dpu(&host).unwrap();
    let event = sync(&host);
    let of_event = event.export_to_dpu().unwrap();
    let import = |bytes: &[u8], dev: &Dev| kind(SyncEvent::create_from_export(bytes, dev));
    assert_eq!(import(of_map.as_bytes(), &dpu), ErrorKind::InvalidValue);
    let made = Mmap::create_from_export(of_event.as_bytes(), &dpu);
    assert_eq!(kind(made), ErrorKind::InvalidValue);
    let mut altered = of_event.as_bytes().to_vec();
    altered[50] ^= 1;
    assert_eq!(import(&altered, &dpu), ErrorKind::InvalidValue);
    assert_eq!(import(&altered[..10], &dpu), ErrorKind::InvalidValue);
}

#[test]
fn abort_ends_jobs_of_dead_device() {
    for removed in [false, true] {
        let (model, dev) = crate::support::disturbed();
        let event = context(&dev);
        let mut workq = on(&event);
        match removed {
            true => model.remove(0),
            false => model.kill(0),
        }
        for number in 0..4 {
            workq.submit(event.add(number)).unwrap();
            // The lower thresholds come later, so that the waits are taken back.
            workq.submit(event.wait_gt(200 - number)).map_err(drop).unwrap_or_default();
        }
        let submitted = workq.in_flight();
        workq.abort(&event).unwrap();
        let mut ended = 0;
        for result in workq.drain() {
            match result {
                Err(Retrieve::IoFailed(event)) => {
                    assert_eq!(event.result().unwrap_err().kind(), ErrorKind::Shutdown);
                }
                other => panic!("{other:?}"),
            }
            ended += 1;
        }
        assert!(submitted >= 5, "{submitted}");
        assert_eq!(ended, submitted);
        workq.remove(&event).unwrap();
    }
}

#[test]
fn event_needs_no_port_address() {
    let card = Profile::load("bluefield3").unwrap().with_link(Link::Ethernet);
    let model = Model::builder().device(card).build();
    let backend = InProcess::of(&model);
    backend.move_netdev_away(0);
    let backend: Arc<dyn Backend> = Arc::new(backend);
    let dev = DevInfo::list_of(&backend).unwrap()[0].open().unwrap();
    let event = context(&dev);
    let mut workq = on(&event);
    run(&mut workq, event.set(5));
    run(&mut workq, event.wait_gt(4));
    assert_eq!(run(&mut workq, event.add(2)), Some(5));
    assert_eq!(run(&mut workq, event.get()), Some(7));
}
