//! Failures inside a model: what still works, and which drivers get an error.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use verbless_prm::CqeSyndrome;

use crate::memory::Interrupts;
use crate::watch::Request;
use crate::{Model, Profile};

fn model() -> crate::model::Builder {
    let profile = || Profile::load("bluefield3").unwrap();
    Model::builder().device(profile()).device(profile())
}

fn request(qpn: u32) -> Request {
    let (at, operation) = (Duration::ZERO, "NOP");
    Request { function: 0, at, qpn, index: 0, operation, bytes: 0, syndrome: None }
}

/// Whether a device answers ENABLE_HCA and DISABLE_HCA.
fn answers(model: &Model, device: usize) -> bool {
    let device = model.device(device);
    [0x104_u16, 0x105].iter().all(|opcode| {
        let (mut input, mut output) = ([0; 16], [0xff; 16]);
        input[..2].copy_from_slice(&opcode.to_be_bytes());
        device.execute(&input, &mut output);
        output[0] == 0
    })
}

#[derive(Default)]
struct FatalFlag(AtomicBool);

impl Interrupts for FatalFlag {
    fn raise(&self, _: u32) {}

    fn fatal(&self) {
        self.0.store(true, Ordering::Release);
    }
}

#[test]
fn engine_panic_is_fatal_to_every_device() {
    let model = model().threaded().build();
    assert!(answers(&model, 0) && answers(&model, 1));
    let drivers: [Arc<FatalFlag>; 2] = Default::default();
    for (device, driver) in drivers.iter().enumerate() {
        model.device(device).set_interrupts(Some(driver.clone()));
    }
    model.shared.with(|locked| locked.functions[1].engine.faults.panic = true);
    let start = Instant::now();
    while !drivers.iter().all(|driver| driver.0.load(Ordering::Acquire)) {
        assert!(start.elapsed() < Duration::from_secs(20), "no fatal event");
        std::thread::yield_now();
    }
    for device in 0..2 {
        assert!(!model.device(device).is_alive());
        assert!(!answers(&model, device));
    }
}

#[test]
fn watcher_panic_is_fatal_for_every_device() {
    let model = model().stepped().build();
    let drivers: [Arc<FatalFlag>; 2] = Default::default();
    for (device, driver) in drivers.iter().enumerate() {
        model.device(device).set_interrupts(Some(driver.clone()));
    }
    let _watch = model.watch_commands(|_| panic!("a mistake of the watcher's"));
    assert!(catch_unwind(AssertUnwindSafe(|| answers(&model, 0))).is_err());
    assert!(drivers.iter().all(|driver| driver.0.load(Ordering::Acquire)));
    assert!(!answers(&model, 0) && !answers(&model, 1), "the watcher was dropped");
}

#[test]
fn watcher_thread_survives_panic_of_another() {
    let model = model().threaded().build();
    let (sender, received) = std::sync::mpsc::channel();
    let _watch = model.watch_requests(move |request| sender.send(request.qpn).unwrap());
    let _bad = model.watch_requests(|_| panic!("a mistake of the watcher's"));
    for qpn in [1, 2] {
        model.shared.common.outbox.request(request(qpn));
        assert_eq!(received.recv_timeout(Duration::from_secs(20)), Ok(qpn));
    }
}

#[test]
fn last_handle_delivers_requests_despite_panic() {
    let model = model().stepped().build();
    let (sender, received) = std::sync::mpsc::channel();
    let _watch = model.watch_requests(move |request| sender.send(request.qpn).unwrap());
    let _bad = model.watch_commands(|_| panic!("a mistake of the watcher's"));
    model.shared.common.outbox.request(request(7));
    model.shared.common.outbox.command(0, 0, &[0; 16], &[0; 16]);
    let panic =
        catch_unwind(AssertUnwindSafe(|| drop(model))).expect_err("the watcher's panic propagates");
    assert_eq!(panic.downcast_ref(), Some(&"a mistake of the watcher's"));
    assert_eq!(received.iter().collect::<Vec<_>>(), [7], "and the watching ends");
}

#[test]
fn driver_learns_of_fatal_error_despite_panic() {
    let model = model().stepped().build();
    let driver = Arc::new(FatalFlag::default());
    model.device(0).set_interrupts(Some(driver.clone()));
    let _watch = model.watch_commands(|_| panic!("a mistake of the watcher's"));
    let command = || {
        model.shared.with(|locked| {
            locked.outbox().command(0, 0, &[0; 16], &[0; 16]);
            panic!("a mistake in a command")
        })
    };
    let panic =
        catch_unwind(AssertUnwindSafe(command)).expect_err("the watcher's panic propagates");
    assert_eq!(panic.downcast_ref(), Some(&"a mistake in a command"));
    assert!(driver.0.load(Ordering::Acquire));
}

#[test]
fn interrupt_is_raised_before_watchers_run() {
    struct Raised(Arc<AtomicBool>);
    impl Interrupts for Raised {
        fn raise(&self, _: u32) {
            self.0.store(true, Ordering::Release);
        }
        fn fatal(&self) {}
    }
    let model = model().stepped().build();
    let (raised, delivered) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    model.device(0).set_interrupts(Some(Arc::new(Raised(raised.clone()))));
    let received = delivered.clone();
    let _watch = model.watch_commands(move |_| {
        received.store(raised.load(Ordering::Acquire), Ordering::Release);
    });
    model.shared.with(|locked| {
        locked.outbox().command(0, 0, &[0; 16], &[0; 16]);
        locked.functions[0].hca.raised.push(0);
    });
    assert!(delivered.load(Ordering::Acquire));
}

#[test]
fn invalid_device_or_port_panics_only_the_caller() {
    type Mistake = fn(&Model);
    let mistakes: [(&str, Mistake); 12] = [
        ("device 2", |model| model.fail_request(2, None, 1, CqeSyndrome::REMOTE_ACCESS)),
        ("device 2", |model| model.lose_messages(2, 0x80, 0, 1)),
        ("device 2", |model| model.inject(2, crate::Fault::LoseMessage, 0, 1)),
        ("device 2", |model| model.set_port(2, 1, false)),
        ("port 0", |model| model.set_port(0, 0, false)),
        ("port 9", |model| model.set_port(0, 9, false)),
        ("device 2", |model| model.kill(2)),
        ("device 2", |model| model.remove(2)),
        ("device 2", |model| {
            model.fail_command(2, verbless_prm::Opcode(0x100), 1, verbless_prm::CommandStatus(1), 0)
        }),
        ("device 2", |model| assert_eq!(model.side(2), model.side(0))),
        ("device 2", |model| assert_eq!(model.counts(2), model.counts(0))),
        ("device 18446744073709551615", |model| assert_eq!(model.pages(usize::MAX), 0)),
    ];
    let model = model().stepped().build();
    for (number, (named, mistake)) in mistakes.iter().enumerate() {
        let panic = catch_unwind(AssertUnwindSafe(|| mistake(&model)));
        let panic = panic.expect_err("there is no such device or port");
        let text = panic.downcast_ref::<String>().expect("a message");
        assert!(text.contains(named) && text.contains("from "), "mistake {number}: {text}");
    }
    assert!(answers(&model, 0) && answers(&model, 1), "the devices still answer");
}

#[test]
fn command_rejection_is_logged_without_the_lock() {
    /// Queries the model for every line, as a log that records the model's state does.
    struct QueryingSubscriber(Model, std::sync::mpsc::Sender<usize>);
    impl tracing::Subscriber for QueryingSubscriber {
        fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
            metadata.file().is_some_and(|file| file.contains("src/hca/"))
        }
        fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
            tracing::span::Id::from_u64(1)
        }
        fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
        fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
        fn event(&self, _: &tracing::Event<'_>) {
            let free = self.0.shared.is_free();
            let _ = self.1.send(if free { self.0.devices() } else { 0 });
        }
        fn enter(&self, _: &tracing::span::Id) {}
        fn exit(&self, _: &tracing::span::Id) {}
    }
    let model = model().stepped().build();
    let (sender, delivered) = std::sync::mpsc::channel();
    tracing::subscriber::with_default(QueryingSubscriber(model.clone(), sender), || {
        // Refused commands: an unknown one, one that is not modelled, one with a bad op_mod, and
        // ENABLE_HCA with a reserved field set, whose refusal logs details beside its reason.
        for (command, at) in
            [([0xff, 0xf0], 7), ([0x09, 0x08], 7), ([0x01, 0x0d], 7), ([0x01, 0x04], 4)]
        {
            let mut input = [0; 64];
            input[..2].copy_from_slice(&command);
            input[at] = 0x77;
            let mut output = [0; 64];
            model.shared.with(|locked| crate::engine::execute(locked, 0, &input, &mut output));
            assert_ne!(output[0], 0);
            assert_eq!(
                delivered.try_recv(),
                Ok(2),
                "{command:x?}: reported once, and the lock is free"
            );
            assert!(delivered.try_recv().is_err());
        }
    });
}

#[test]
fn command_panic_is_fatal_and_reaches_its_sender() {
    let model = model().stepped().build();
    let command = || model.shared.with(|_| panic!("a mistake in a command"));
    assert!(catch_unwind(AssertUnwindSafe(command)).is_err());
    assert!(!answers(&model, 0) && !answers(&model, 1));
}
