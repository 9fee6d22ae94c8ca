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
fn a_queue_that_is_dropped_leaves_nothing_in_the_heap_and_on_the_device() {
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
fn a_queue_whose_objects_the_device_does_not_destroy_keeps_all_that_they_use() {
    // The host's queue pair and CQ go first, then the worker's; a general object is its thread.
    for (opcode, nth) in
        [(Opcode::DESTROY_QP, 2), (Opcode::DESTROY_CQ, 2), (Opcode::DESTROY_GENERAL_OBJECT, 1)]
    {
        let (model, process, queue) = queue();
        let worker = &queue.workers[0];
        let (control, handler) = (worker.control.clone(), worker.handler.object_id());
        let used = process.heap_info().requested;
        // Whoever tries again is refused, too.
        for _ in 0..2 {
            model.fail_command(0, opcode.0, nth, 0x9, 0);
        }
        drop(queue);
        assert_eq!(process.heap_info().requested, used, "{opcode:?} of thread {handler:#x}");
        assert!(control.free().is_err(), "{opcode:?}: what the worker reads");
    }
}
