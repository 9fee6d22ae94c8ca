//! Command queues of FlexIO's host library: tasks in the background, states, room, ends.

use std::time::{Duration, Instant};

use verbless_flexio::{Cmdq, CmdqConfig, CmdqState, Error, Function, ProcessConfig, Status};

use super::rig::{Rig, ends_with};
use super::{failed, fatal};
use crate::case::cases;
use crate::endpoint::quiet;
use crate::need::cap;
use crate::{Lab, Need, Stop, ensure, ensure_eq};

cases!(
    "flexio_cmdq",
    "FlexIO's command queues: tasks in the background, states, room, ends.",
    needs [Need::DpaLayouts, cap!(apu), Need::DpaProgram]:
    cmdq_runs_1000_tasks_on_any_worker_count,
    pending_queue_runs_tasks_once_running,
    full_pending_queue_rejects_task,
    task_beyond_depth_times_out_alone,
    task_ending_process_is_fatal_error,
    queue_destroy_succeeds_with_busy_workers,
    task_of_another_signature_is_rejected,
);

/// Increments a counter.
fn increment() -> Function<(u64,), u64> {
    Function::named("increment")
}

fn counted(rig: &Rig) -> Result<u64, Stop> {
    Ok(rig.process.call(Function::<(), u64>::named("count"), ())?)
}

/// Waits until the counter has this value.
fn wait_for() -> Function<(u64,), ()> {
    Function::named("wait_for")
}

fn cmdq_runs_1000_tasks_on_any_worker_count(lab: &Lab) -> Result<(), Stop> {
    for (workers, batch_size, log_depth) in [(1, 1, 1), (1, 64, 10), (3, 8, 4), (8, 4, 8)] {
        let rig = Rig::new(lab)?;
        let before = rig.process.heap_info();
        let config = CmdqConfig { workers, batch_size, log_depth, ..CmdqConfig::default() };
        let mut queue = Cmdq::create(&rig.process, &config)?;
        ensure!(queue.is_empty()?, "a new queue is not empty");
        ensure_eq!(queue.state(), CmdqState::Running, "the state");
        for n in 0..1000 {
            queue.task_add(increment(), n)?;
        }
        queue.wait_until_empty()?;
        ensure_eq!((queue.pending()?, queue.is_empty()?), (0, true), "pending tasks");
        ensure_eq!(counted(&rig)?, 1000 * 999 / 2, "what {workers} workers have counted");
        queue.destroy();
        ensure_eq!(rig.process.heap_info(), before, "the heap after the queue");
    }
    Ok(())
}

fn pending_queue_runs_tasks_once_running(lab: &Lab) -> Result<(), Stop> {
    let rig = Rig::new(lab)?;
    let config =
        CmdqConfig { workers: 2, state: CmdqState::Pending, log_depth: 3, ..<_>::default() };
    let mut queue = Cmdq::create(&rig.process, &config)?;
    (1..=5).try_for_each(|n| queue.task_add(increment(), n))?;
    quiet("a task of a pending queue", || counted(&rig).ok().filter(|&it| it != 0))?;
    ensure_eq!((queue.pending()?, queue.is_empty()?), (5, false), "tasks that wait");
    queue.state_running()?;
    queue.wait_until_empty()?;
    ensure_eq!(counted(&rig)?, 15, "the sum");
    // It has no effect on a running queue.
    queue.state_running()?;
    queue.task_add(increment(), 1)?;
    queue.wait_until_empty()?;
    ensure_eq!((counted(&rig)?, queue.state()), (16, CmdqState::Running), "after one more");
    Ok(())
}

fn full_pending_queue_rejects_task(lab: &Lab) -> Result<(), Stop> {
    let rig = Rig::new(lab)?;
    let config =
        CmdqConfig { workers: 2, state: CmdqState::Pending, log_depth: 2, ..<_>::default() };
    let mut queue = Cmdq::create(&rig.process, &config)?;
    (0..8).try_for_each(|_| queue.task_add(increment(), 1))?;
    failed("a ninth task of eight", queue.task_add(increment(), 1), "8 tasks")?;
    queue.state_running()?;
    queue.task_add(increment(), 1)?;
    queue.wait_until_empty()?;
    ensure_eq!(counted(&rig)?, 9, "the sum");
    Ok(())
}

fn task_beyond_depth_times_out_alone(lab: &Lab) -> Result<(), Stop> {
    let timeout = Duration::from_millis(250);
    let rig = Rig::with(lab, &ProcessConfig { timeout, ..ProcessConfig::default() })?;
    let config = CmdqConfig { log_depth: 1, ..CmdqConfig::default() };
    let mut queue = Cmdq::create(&rig.process, &config)?;
    queue.task_add(wait_for(), 1)?;
    queue.task_add(increment(), 10)?;
    let began = Instant::now();
    match queue.task_add(increment(), 100) {
        Err(error @ Error::QueueTimeout(after)) => {
            ensure_eq!((error.status(), after), (Status::Timeout, timeout), "the error");
        }
        other => return Err(Stop::fail(format!("a third task of two: {other:?}"))),
    }
    ensure!(began.elapsed() >= timeout, "the wait gave up after {:?}", began.elapsed());
    match queue.wait_until_empty() {
        Err(Error::QueueTimeout(_)) => {}
        other => return Err(Stop::fail(format!("a queue that is not empty: {other:?}"))),
    }
    ensure_eq!(queue.pending()?, 2, "pending tasks");
    rig.process.call(increment(), (1,))?;
    queue.wait_until_empty()?;
    ensure_eq!(counted(&rig)?, 11, "the sum without the third task");
    queue.task_add(increment(), 100)?;
    queue.wait_until_empty()?;
    ensure_eq!(counted(&rig)?, 111, "the sum with the third task");
    Ok(())
}

fn task_ending_process_is_fatal_error(lab: &Lab) -> Result<(), Stop> {
    let rig = Rig::new(lab)?;
    let mut queue = Cmdq::create(&rig.process, &CmdqConfig::default())?;
    queue.task_add(ends_with(), 200)?;
    fatal("a wait for the task that ends the process", queue.wait_until_empty())?;
    fatal("a task after the process's end", queue.task_add(increment(), 1))?;
    fatal("whether it is empty", queue.is_empty())?;
    fatal("a running queue", queue.state_running())?;
    fatal("a new queue", Cmdq::create(&rig.process, &CmdqConfig::default()))?;
    queue.destroy();
    Ok(rig.process.destroy()?)
}

fn queue_destroy_succeeds_with_busy_workers(lab: &Lab) -> Result<(), Stop> {
    let rig = Rig::new(lab)?;
    let before = rig.process.heap_info();
    let config = CmdqConfig { workers: 2, ..CmdqConfig::default() };
    let mut queue = Cmdq::create(&rig.process, &config)?;
    (0..10).try_for_each(|_| queue.task_add(wait_for(), 1))?;
    queue.destroy();
    ensure_eq!(rig.process.heap_info(), before, "the heap after the queue");
    ensure_eq!(rig.process.call(increment(), (1,))?, 1, "a call after the queue's end");
    Ok(())
}

fn task_of_another_signature_is_rejected(lab: &Lab) -> Result<(), Stop> {
    let rig = Rig::new(lab)?;
    let mut queue = Cmdq::create(&rig.process, &CmdqConfig::default())?;
    let wrong = Function::<(u64,), u64>::named("add");
    failed("a task of other types", queue.task_add(wrong, 1), "add(u64,u32)->u64")
}
