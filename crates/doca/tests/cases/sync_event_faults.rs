//! Jobs of a sync event whose queue fails: none is done twice, and none that was not done is lost.

use verbless_doca::sync_event::{Location, SyncEvent};
use verbless_doca::{ErrorKind, Event, Retrieve, WorkQ};
use verbless_model::Model;
use verbless_prm::CqeSyndrome;

/// The next event: of which job, and its value or why it failed.
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
fn what_may_have_been_done_is_not_done_again_and_what_was_not_is() {
    // An answer that is lost, and a refusal: of the second of five adds.
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
            // Whoever comes meanwhile has a queue that stands still, and is done.
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
