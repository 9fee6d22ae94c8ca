//! Jobs of a sync event with a failed queue: none is executed twice, and none is lost.

use std::sync::Arc;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use verbless_devx::Backend;
use verbless_doca::sync_event::{Location, SyncEvent, SyncEventCtx};
use verbless_doca::{Dev, DevInfo, ErrorKind, Event, Retrieve, WorkQ};
use verbless_model::{Model, Profile, Side};
use verbless_model_kernel::InProcess;
use verbless_prm::{CommandStatus, CqeSyndrome, Opcode};

/// A sync event in asynchronous mode.
fn context(dev: &Dev) -> SyncEventCtx {
    let event = SyncEvent::builder(dev).publisher_add_location(Location::Cpu).unwrap();
    event.subscriber_add_location(Location::Cpu).unwrap().as_ctx().start().unwrap()
}

/// A work queue on the context.
fn on(context: &SyncEventCtx) -> WorkQ {
    let mut workq = WorkQ::new(8).unwrap();
    workq.add(context).unwrap();
    workq
}

/// Makes the device refuse the next reset of a queue pair.
fn refuse_reset(model: &Model) {
    model.fail_command(0, Opcode::QP_2RST, 1, CommandStatus::NO_RES, 1);
}

/// The next event: its job, and its value or the reason of its failure.
fn next(model: &Model, workq: &mut WorkQ) -> (u64, Result<Option<u64>, ErrorKind>) {
    for _ in 0..1000 {
        model.run_until_idle();
        match workq.progress_retrieve() {
            Ok(Event::SyncEvent(done)) => return (done.user_data.0, Ok(done.value)),
            Err(Retrieve::IoFailed(event)) => {
                return (event.user_data().0, Err(event.result().unwrap_err().kind()));
            }
            Err(Retrieve::Again) => {}
            other => panic!("{other:?}"),
        }
    }
    panic!("no event comes");
}

#[test]
fn lost_update_is_not_repeated_but_rejected_one_is() {
    // A lost answer, and a refusal: of the second of five adds.
    for (syndrome, kind, lost) in [
        (CqeSyndrome::TRANSPORT_RETRY_EXCEEDED, ErrorKind::TimeOut, true),
        (CqeSyndrome::REMOTE_ACCESS, ErrorKind::NotPermitted, false),
    ] {
        let (model, dev) = crate::support::stepped();
        let event = SyncEvent::builder(&dev).publisher_add_location(Location::Cpu).unwrap();
        let event = event.subscriber_add_location(Location::Cpu).unwrap();
        let context = event.as_ctx().start().unwrap();
        let mut workq = WorkQ::new(8).unwrap();
        workq.add(&context).unwrap();
        for round in 0..3 {
            workq.submit(context.get()).unwrap();
            let base = next(&model, &mut workq).1.unwrap().unwrap();
            model.fail_request(0, None, 2, syndrome);
            for number in 0..5 {
                workq.submit(context.add(1).user_data(number)).unwrap();
            }
            assert_eq!(next(&model, &mut workq), (0, Ok(Some(base))));
            assert_eq!(next(&model, &mut workq), (1, Err(kind)), "round {round}");
            // A job submitted meanwhile finds a stopped queue, and is executed later.
            workq.submit(context.add(100).user_data(9)).unwrap();
            let rest: Vec<_> = (0..4).map(|_| next(&model, &mut workq)).collect();
            let expected = match lost {
                true => {
                    let fails = |number| (number, Err(ErrorKind::Shutdown));
                    vec![fails(2), fails(3), fails(4), (9, Ok(Some(base + 1)))]
                }
                false => {
                    let counts = |number: u64| (number, Ok(Some(base + number - 1)));
                    vec![counts(2), counts(3), counts(4), (9, Ok(Some(base + 4)))]
                }
            };
            assert_eq!(rest, expected, "{kind:?}, round {round}");
            assert_eq!(workq.in_flight(), 0);
        }
        workq.remove(&context).unwrap();
    }
}

#[test]
fn failed_recovery_fails_each_job_once_and_shuts_down() {
    let (model, dev) = crate::support::stepped();
    let context = context(&dev);
    let mut workq = on(&context);
    model.fail_request(0, None, 1, CqeSyndrome::REMOTE_ACCESS);
    refuse_reset(&model);
    (0..3).for_each(|number| workq.submit(context.add(1).user_data(number)).unwrap());
    assert_eq!(next(&model, &mut workq), (0, Err(ErrorKind::NotPermitted)));
    let rest: Vec<_> = (0..2).map(|_| next(&model, &mut workq)).collect();
    assert_eq!(rest, [1, 2].map(|number| (number, Err(ErrorKind::Driver))));
    assert_eq!(workq.in_flight(), 0);
    let refused = workq.submit(context.get()).unwrap_err().error;
    assert_eq!(refused.kind(), ErrorKind::Shutdown);
    assert!(refused.to_string().contains("could not recover"), "{refused}");
    workq.remove(&context).unwrap();
    workq.add(&context).unwrap();
    workq.submit(context.get().user_data(5)).unwrap();
    assert_eq!(next(&model, &mut workq), (5, Ok(Some(0))), "nothing was added");
}

#[test]
fn aborted_jobs_are_not_executed_later() {
    let (model, dev) = crate::support::stepped();
    let context = context(&dev);
    let mut workq = on(&context);
    (0..2).for_each(|number| workq.submit(context.add(1).user_data(number)).unwrap());
    refuse_reset(&model);
    assert_eq!(workq.abort(&context).unwrap_err().kind(), ErrorKind::Driver);
    workq.abort(&context).unwrap();
    let failed: Vec<_> = (0..2).map(|_| next(&model, &mut workq)).collect();
    assert_eq!(failed, [0, 1].map(|number| (number, Err(ErrorKind::Shutdown))));
    workq.remove(&context).unwrap();
    workq.add(&context).unwrap();
    workq.submit(context.get()).unwrap();
    assert_eq!(next(&model, &mut workq), (0, Ok(Some(0))));
}

#[test]
fn event_counts_without_device_until_export() {
    let model = Model::builder().device_with_sides(Profile::load("bluefield3").unwrap()).build();
    let host: Arc<dyn Backend> = Arc::new(InProcess::of(&model).on_side(Side::Host));
    let dev = DevInfo::list_of(&host).unwrap()[0].open().unwrap();
    let event = || {
        let event = SyncEvent::builder(&dev).publisher_add_location(Location::Cpu).unwrap();
        event.subscriber_add_location(Location::Cpu).unwrap().start().unwrap()
    };
    let (own, exported) = (event(), event());
    exported.export_to_dpu().unwrap();
    for (event, adds) in [(&own, true), (&exported, false)] {
        model.fail_request(0, None, 1, CqeSyndrome::REMOTE_ACCESS);
        event.update_set(7).unwrap();
        assert_eq!(event.update_add(1).is_ok(), adds);
        assert_eq!(event.get().unwrap(), 7 + u64::from(adds));
    }
}

#[test]
fn abort_reports_completed_jobs_and_stops_signals() {
    let (model, dev) = crate::support::stepped();
    let context = context(&dev);
    let mut workq = WorkQ::builder(8).event_driven().build().unwrap();
    workq.add(&context).unwrap();
    (0..8).for_each(|number| workq.submit(context.add(1).user_data(number)).unwrap());
    model.run_until_idle();
    workq.abort(&context).unwrap();
    for number in 0..8 {
        assert_eq!(next(&model, &mut workq), (number, Ok(Some(number))));
    }
    let is_readable = |workq: &WorkQ| {
        let mut file = [PollFd::new(workq.event_handle(), PollFlags::POLLIN)];
        poll(&mut file, PollTimeout::ZERO).unwrap() > 0
    };
    workq.arm().unwrap();
    // The earlier events made the file readable, too.
    workq.clear().unwrap();
    workq.arm().unwrap();
    assert!(!is_readable(&workq));
}

#[test]
fn equal_waits_queue_and_lower_wait_preempts() {
    let (model, dev) = crate::support::stepped();
    let context = context(&dev);
    let mut workq = on(&context);
    let refuse = || model.fail_command(0, Opcode::QP_2ERR, 1, CommandStatus::NO_RES, 1);
    workq.submit(context.wait_gt(5)).unwrap();
    // The queue goes through the error state only for a job that must go first.
    refuse();
    workq.submit(context.wait_gt(5)).unwrap();
    workq.submit(context.wait_gt(6)).unwrap();
    assert_eq!(workq.submit(context.wait_gt(4)).unwrap_err().error.kind(), ErrorKind::Driver);
    workq.submit(context.wait_gt(4).user_data(4)).unwrap();
    workq.submit(context.add(5)).unwrap();
    let mut ended: Vec<_> = (0..2).map(|_| next(&model, &mut workq).0).collect();
    ended.sort_unstable();
    assert_eq!(ended, [0, 4]);
}
