use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use verbless::model::Model;
use verbless_flexio_dev::stream::control::FREED_AT;

use crate::channel::EntryTransport;
use crate::channel::tests::agreeing;

use super::config::{MIN_DISK, MIN_MEMORY, MIN_USER_MEMORY, TracerPlan};
use super::*;

/// The records passed to a callback.
type Seen = Arc<Mutex<Vec<(u64, u32)>>>;

/// A tracer in the heap with a callback that accepts all.
fn tracer(change: impl FnOnce(&mut TracerSetup)) -> (Model, Process, Seen, Tracer) {
    let (model, process) = agreeing();
    let seen = Seen::default();
    let into = seen.clone();
    let mut setup = Tracer::init(&process).unwrap();
    setup.set_transport_type(TracerTransport::Dbuf).set_user_cb(move |records| {
        into.lock().unwrap().extend(records.iter().map(|record| (record.number, record.id)));
        Ok(records.len())
    });
    change(&mut setup);
    let tracer = setup.create().unwrap();
    (model, process, seen, tracer)
}

fn write(tracer: &Tracer, numbers: std::ops::Range<u64>) {
    let state = tracer.shared.state();
    numbers.for_each(|number| state.channel.write(number, 40 + number, &[]));
}

fn refused<T>(result: Result<T, Error>, text: &str) {
    let error = result.err().expect(text).to_string();
    assert!(error.contains(text), "{error}");
}

#[test]
fn tracer_delivers_records_until_stop() {
    let (_model, process, seen, tracer) = tracer(|setup| {
        setup.without_thread();
    });
    refused(Tracer::init(&process), "the process has a tracer");
    assert_eq!((tracer.runs(), tracer.poll().unwrap()), (false, 0));
    refused(tracer.stop(), "does not run");
    tracer.start().unwrap();
    refused(tracer.start(), "runs already");
    write(&tracer, 0..3);
    assert!(tracer.runs());
    assert_eq!([tracer.poll().unwrap(), tracer.poll().unwrap()], [3, 0]);
    assert_eq!(tracer.shared.state().channel.word(FREED_AT as u64), 3, "given back");
    write(&tracer, 3..5);
    tracer.stop().unwrap();
    assert_eq!(*seen.lock().unwrap(), [(0, 40), (1, 41), (2, 42), (3, 43), (4, 44)]);
    assert_eq!((tracer.runs(), tracer.lost().unwrap()), (false, TracerLosses::default()));
    tracer.shared.state().channel.put(0x20, 7);
    tracer.shared.state().damaged = 2;
    let lost = tracer.lost().unwrap();
    assert_eq!((lost.without_room, lost.damaged), (7, 2));
    assert_eq!((tracer.file(), tracer.fifo(), tracer.qp_numbers()), (None, None, None));
    // Dropped without a stop, it frees the slot for another.
    tracer.start().unwrap();
    drop(tracer);
    drop(Tracer::init(&process).unwrap());
    Tracer::init(&process).unwrap();
}

#[test]
fn lossless_tracer_frees_room_at_stop_only() {
    let (_model, _process, seen, tracer) = tracer(|setup| {
        setup.without_thread();
    });
    tracer.start_lossless().unwrap();
    write(&tracer, 0..3);
    assert_eq!(tracer.poll().unwrap(), 3);
    assert_eq!(tracer.shared.state().channel.word(FREED_AT as u64), 0);
    tracer.stop().unwrap();
    assert_eq!(tracer.shared.state().channel.word(FREED_AT as u64), 3);
    assert_eq!(seen.lock().unwrap().len(), 3);
    tracer.destroy().unwrap();
}

#[test]
fn host_memory_limit_bounds_pending_records() {
    let (_model, process) = agreeing();
    let mut setup = Tracer::init(&process).unwrap();
    let accepts = Arc::new(AtomicBool::new(false));
    let accept_count = accepts.clone();
    let callback = move |records: &[Record]| match accept_count.load(Ordering::Relaxed) {
        true => Ok(records.len()),
        false => Ok(0),
    };
    setup.set_transport_type(TracerTransport::Dbuf).set_user_cb(callback).without_thread();
    setup.set_host_mem_limit(1024).unwrap().set_dev_mem_limit(1024).unwrap();
    setup.set_batch_depth(4).unwrap();
    let tracer = setup.create().unwrap();
    tracer.start().unwrap();
    write(&tracer, 0..16);
    assert_eq!(tracer.poll().unwrap(), 16);
    write(&tracer, 16..17);
    assert_eq!(tracer.poll().unwrap(), 0, "16 reports wait for the callback");
    accepts.store(true, Ordering::Relaxed);
    assert_eq!([tracer.poll().unwrap(), tracer.poll().unwrap()], [0, 1]);
}

#[test]
fn tracer_thread_delivers_records() {
    let (_model, _process, seen, tracer) = tracer(|setup| {
        setup.set_batch_depth(1).unwrap();
    });
    tracer.start().unwrap();
    write(&tracer, 0..2);
    let end = Instant::now() + Duration::from_secs(20);
    while seen.lock().unwrap().len() < 2 {
        assert!(Instant::now() < end, "nothing comes");
        std::thread::yield_now();
    }
    tracer.destroy().unwrap();
}

#[test]
fn setup_enforces_limits() {
    let (_model, process) = agreeing();
    let (_other_model, other) = agreeing();
    let mut setup = Tracer::init(&process).unwrap();
    for (least, wrong) in [(MIN_MEMORY, MIN_MEMORY / 2), (4096, 4095)] {
        setup.set_dev_mem_limit(least).unwrap().set_host_mem_limit(least).unwrap();
        refused(setup.set_dev_mem_limit(wrong), "must be a power of two, 1024 or more");
        refused(setup.set_host_mem_limit(wrong), "must be a power of two");
    }
    refused(setup.set_batch_depth(0), "must be a power of two, 1 or more");
    setup.set_batch_depth(1).unwrap();
    setup.set_diskspace_limit(MIN_DISK).unwrap();
    refused(setup.set_diskspace_limit(MIN_DISK - 1), "it must be");
    // For the transport UMEM, in a buffer at a multiple of 64.
    let buffer = process.alloc(1024).unwrap();
    setup.set_umem(&buffer, 1024 - MIN_USER_MEMORY, MIN_USER_MEMORY).unwrap();
    let beyond = 1024 - MIN_USER_MEMORY + 64;
    refused(setup.set_umem(&buffer, beyond, MIN_USER_MEMORY), "the buffer has 1024");
    refused(setup.set_umem(&buffer, 8, MIN_USER_MEMORY), "at a multiple of the 64 bytes");
    refused(setup.set_umem(&buffer, 0, MIN_USER_MEMORY / 2), "a power of two, 256 or more");
    let foreign = other.alloc(1024).unwrap();
    refused(setup.set_umem(&foreign, 0, 256), "another process");
    assert!(format!("{setup:?}").starts_with("TracerSetup { transport: Uc"), "{setup:?}");
}

#[test]
fn plan_has_defaults_and_rejects_conflicts() {
    let (_model, process) = agreeing();
    let buffer = process.alloc(1 << 12).unwrap();
    let plan = |change: &dyn Fn(&mut TracerSetup)| -> Result<TracerPlan, Error> {
        let mut setup = Tracer::init(&process).unwrap();
        change(&mut setup);
        setup.plan()
    };
    let by_default = plan(&|_| ()).unwrap();
    assert_eq!(
        (by_default.entry_transport, by_default.ring_bytes, by_default.batch),
        (EntryTransport::Uc, 512 << 10, 64)
    );
    assert_eq!((by_default.ring_at, by_default.host_bytes), (None, 512 << 10));
    let of = |transport| {
        plan(&move |it| {
            it.set_transport_type(transport);
        })
        .unwrap()
    };
    let window = of(TracerTransport::Window);
    assert_eq!((window.entry_transport, window.ring_bytes), (EntryTransport::Window, 512 << 10));
    let heap = of(TracerTransport::Dbuf);
    assert_eq!((heap.entry_transport, heap.ring_bytes), (EntryTransport::Heap, 16 << 10));

    let device = |bytes: u64| {
        move |it: &mut TracerSetup| {
            it.set_dev_mem_limit(bytes).unwrap();
        }
    };
    assert_eq!(plan(&device(512 << 10)).unwrap().ring_bytes, 512 << 10);
    refused(plan(&device(1 << 20)), "is more than the host memory limit of 524288");
    assert_eq!(plan(&device(16 << 10)).unwrap().batch, 64, "a quarter");
    refused(plan(&device(8 << 10)), "a batch of 64 reports, the default, is more than 32");
    let batch = |it: &mut TracerSetup| {
        it.set_batch_depth(4096).unwrap();
    };
    refused(plan(&batch), "a batch of 4096 reports is more than 2048");

    let callback = |it: &mut TracerSetup| {
        it.set_user_cb(|_| Ok(0));
    };
    assert!(plan(&callback).is_ok());
    refused(
        plan(&|it| {
            callback(it);
            it.set_output_mode(OutputMode::Csv);
        }),
        "its output mode is Csv",
    );
    refused(
        plan(&|it| {
            it.set_output_mode(OutputMode::Callback);
        }),
        "there is none",
    );
    let umem = |it: &mut TracerSetup| {
        it.set_transport_type(TracerTransport::Umem).set_umem(&buffer, 2048, 1024).unwrap();
        it.set_batch_depth(4).unwrap();
    };
    refused(plan(&umem), "the transport UMEM needs a callback");
    let users = plan(&|it| {
        umem(it);
        callback(it);
        it.set_host_mem_limit(1024).unwrap();
    });
    let users = users.unwrap();
    assert_eq!(
        (users.entry_transport, users.ring_bytes, users.batch),
        (EntryTransport::Heap, 1024, 4)
    );
    assert_eq!(users.ring_at, Some(buffer.address() + 2048));
    let transport = |it: &mut TracerSetup| {
        it.set_transport_type(TracerTransport::Umem);
    };
    refused(plan(&transport), "needs user memory");
    let other = |it: &mut TracerSetup| {
        umem(it);
        it.set_transport_type(TracerTransport::Dbuf);
    };
    refused(plan(&other), "user memory is for the transport UMEM, not Dbuf");
}

#[test]
fn fifo_commands_start_and_stop_tracer() {
    let path = std::env::temp_dir().join(format!("verbless-tracer-{}", std::process::id()));
    let (_model, _process, seen, tracer) = tracer(|setup| {
        setup.set_cli_mgmt(Some(path.clone())).without_thread();
    });
    assert_eq!(tracer.fifo(), Some(&*path));
    refused(tracer.start(), "managed by the FIFO");
    let command = |text: &str| {
        std::fs::write(&path, text).unwrap();
        tracer.poll().unwrap()
    };
    assert_eq!((command("3600\n"), tracer.runs()), (0, true));
    write(&tracer, 0..2);
    // A longer time, from now on.
    assert_eq!((command("7200\n"), tracer.runs()), (2, true));
    assert_eq!((command("0\n"), tracer.runs()), (0, false));
    assert_eq!(seen.lock().unwrap().len(), 2);
    assert_eq!((command("0\n"), tracer.runs()), (0, false));
    tracer.destroy().unwrap();
    assert!(!path.exists());
}

#[test]
fn window_tracer_works_after_lossless_run() {
    let (_model, _process, seen, tracer) = tracer(|setup| {
        setup.set_transport_type(TracerTransport::Window).without_thread();
    });
    for round in 0..2 {
        tracer.start_lossless().unwrap();
        // The host reads the heap; the other case is a window.
        tracer.stop().unwrap();
        tracer.start().unwrap();
        write(&tracer, 3 * round..3 * round + 3);
        assert_eq!(tracer.poll().unwrap(), 3);
        tracer.stop().unwrap();
    }
    assert_eq!(seen.lock().unwrap().len(), 6);
    assert_eq!(tracer.lost().unwrap(), TracerLosses::default());
}

#[test]
fn invalid_entry_counts_as_damaged() {
    let (mut output, mut damaged) = (Output::callback(Box::new(|_| Ok(0)), 4), 3);
    put(&mut output, &mut damaged, &[]);
    put(&mut output, &mut damaged, &[0xff; 7]);
    assert_eq!((damaged, output.pending()), (5, 0));
    let record = Record { number: 1, id: 2, thread: 3, arguments: [0; 6] };
    put(&mut output, &mut damaged, &record.to_bytes());
    assert_eq!((damaged, output.pending()), (5, 1));
    assert_eq!(format!("{output:?}"), "Callback(1 pending)");
}
