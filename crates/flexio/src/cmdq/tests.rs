use verbless::model::Model;
use verbless_prm::Opcode;

use crate::process::ProcessConfig;
use crate::program::process;

use super::*;

/// A worker of this program does nothing.
fn queue() -> (Model, Process, Cmdq) {
    let config = ProcessConfig::default();
    let (model, process) = process(
        &[0x0000_8067],
        &[],
        &[(ENTRY, 0), ("task", 0), ("dpa:task(u64)->u64", 0)],
        &config,
    );
    let mut queue = Cmdq::create(&process, &CmdqConfig::default()).unwrap();
    queue.task_add(Function::<(u64,), u64>::named("task"), 1).unwrap();
    (model, process, queue)
}

#[test]
fn dropped_queue_frees_heap_and_device_objects() {
    let (model, process, queue) = queue();
    let (with, held) = (process.heap_info().requested, model.counts(0));
    assert!(with > 0);
    drop(queue);
    assert_eq!(process.heap_info().requested, 0);
    assert_ne!(model.counts(0), held);
    let before = model.counts(0);
    drop(Cmdq::create(&process, &CmdqConfig::default()).unwrap());
    assert_eq!(model.counts(0), before, "objects of the device");
    assert_eq!(process.heap_info().requested, 0);
}

#[test]
fn undestroyed_objects_keep_queue_memory() {
    // The host's queue pair and CQ are dropped first, then the worker's; the general object is its
    // thread.
    for (opcode, nth) in
        [(Opcode::DESTROY_QP, 2), (Opcode::DESTROY_CQ, 2), (Opcode::DESTROY_GENERAL_OBJECT, 1)]
    {
        let (model, process, queue) = queue();
        let worker = &queue.workers[0];
        let (control, handler) = (worker.control.clone(), worker.handler.object_id());
        let used = process.heap_info().requested;
        // Another try is refused, too.
        for _ in 0..2 {
            model.fail_command(0, opcode, nth, verbless_prm::CommandStatus(0x9), 0);
        }
        drop(queue);
        assert_eq!(process.heap_info().requested, used, "{opcode:?} of thread {handler:#x}");
        assert!(control.free().is_err(), "{opcode:?}: what the worker reads");
    }
}

/// A process whose workers report `done` completed tasks at each event, and a queue of `workers`
/// workers with room for two tasks each.
fn counting(done: u32, workers: u32, timeout: Duration) -> (Model, Cmdq) {
    let config = ProcessConfig { timeout, ..ProcessConfig::default() };
    // li t0, done; sd t0, 0x38(a0); ret
    let code = [done << 20 | 0x0293, 0x0255_3c23, 0x0000_8067];
    let functions = [(ENTRY, 0), ("task", 2), ("dpa:task(u64)->u64", 2)];
    let (model, process) = process(&code, &[], &functions, &config);
    let state = CmdqState::Pending;
    let config = CmdqConfig { workers, state, log_depth: 1, ..CmdqConfig::default() };
    let queue = Cmdq::create(&process, &config).unwrap();
    (model, queue)
}

fn task() -> Function<(u64,), u64> {
    Function::named("task")
}

/// Words of the heap.
fn words<const N: usize>(process: &Process, address: u64) -> [u64; N] {
    let mut bytes = vec![0; 8 * N];
    process.read(address, &mut bytes).unwrap();
    std::array::from_fn(|at| u64::from_le_bytes(*bytes[8 * at..].first_chunk().unwrap()))
}

#[test]
fn tasks_go_round_robin_to_workers() {
    const TIMEOUT: Duration = Duration::from_secs(10);
    let (_model, mut queue) = counting(0, 3, TIMEOUT);
    let process = queue.process().clone();
    let address = process.app().symbol("task").unwrap();
    for number in 0..6 {
        queue.task_add(task(), 100 + number).unwrap();
        let sent: Vec<_> = queue.workers.iter().map(|worker| worker.sent).collect();
        let of = |worker| (number + 3 - worker) / 3;
        assert_eq!(sent, [of(0), of(1), of(2)], "task {number}");
        assert_eq!(queue.pending().unwrap(), number + 1);
    }
    assert!(!queue.is_empty().unwrap());
    let full = queue.task_add(task(), 0).unwrap_err().to_string();
    assert!(full.contains("has 6 tasks and room for no more"), "{full}");
    let end = Instant::now() + TIMEOUT;
    for (index, worker) in (0..).zip(&queue.workers) {
        let [_, _, rq_record, tasks, cqn_and_batch, log_depth, _, _] =
            words::<8>(&process, worker.control.address());
        assert_eq!(cqn_and_batch, 8 << 32 | u64::from(worker.cq.number().0));
        assert_eq!(log_depth, 1);
        let expected = [address, 100 + index, address, 103 + index];
        while words::<4>(&process, tasks) != expected {
            assert!(Instant::now() < end, "worker {index}: {:x?}", words::<4>(&process, tasks));
        }
        let [posted] = words::<1>(&process, rq_record);
        assert_eq!(posted as u32, 2_u32.to_be(), "receives");
    }
}

#[test]
fn queue_is_empty_after_all_tasks() {
    let (_model, mut queue) = counting(2, 2, Duration::from_secs(10));
    (0..3).for_each(|number| queue.task_add(task(), number).unwrap());
    assert_eq!((queue.pending().unwrap(), queue.state()), (3, CmdqState::Pending));
    queue.state_running().unwrap();
    queue.wait_until_empty().unwrap();
    assert_eq!((queue.pending().unwrap(), queue.state()), (0, CmdqState::Running));
    assert!(queue.is_empty().unwrap());
    // A second call does nothing: otherwise it would arm the CQs twice.
    queue.state_running().unwrap();
    queue.destroy();
}

#[test]
fn unfinished_tasks_time_out() {
    let (_model, mut queue) = counting(1, 1, Duration::from_millis(400));
    (0..2).for_each(|number| queue.task_add(task(), number).unwrap());
    queue.state_running().unwrap();
    let begun = Instant::now();
    let waited = queue.wait_until_empty();
    assert!(matches!(waited, Err(Error::QueueTimeout(_))), "{waited:?}");
    assert!(begun.elapsed() > Duration::from_millis(400));
    assert_eq!(queue.pending().unwrap(), 1, "one is done");
    queue.task_add(task(), 2).unwrap();
    let full = queue.task_add(task(), 3);
    assert!(matches!(full, Err(Error::QueueTimeout(_))), "{full:?}");
}

#[test]
fn create_rejects_invalid_config() {
    let (_model, queue) = counting(0, 1, Duration::from_secs(10));
    let good = CmdqConfig { log_depth: 1, ..CmdqConfig::default() };
    for (config, text) in [
        (CmdqConfig { workers: 0, ..good }, "0 workers: 1 to 4294967295 are possible"),
        (CmdqConfig { batch_size: 0, ..good }, "0 tasks in a batch"),
        (CmdqConfig { log_depth: 0, ..good }, "0 as log2 of the tasks of a worker: 1 to 15"),
        (CmdqConfig { log_depth: 16, ..good }, "16 as log2"),
    ] {
        let error = Cmdq::create(queue.process(), &config).unwrap_err().to_string();
        assert!(error.contains(text), "{error}");
    }
}
