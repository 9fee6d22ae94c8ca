//! Copies whose completions the device loses or delays: when they time out, and the state after a
//! timeout.

mod support;

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use verbless::model::{Fault, InProcess, Model, Profile};
use verbless::prelude::*;
use verbless_flexio::memory::MEMORY_BLOCK;
use verbless_flexio::{
    App, CqElement, DpaCq, DpaCqConfig, DpaQp, DpaQpConfig, Error, HeapInfo, Process,
    ProcessConfig, Rmp, RmpConfig, Status,
};

use support::{file, function};

type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error>>;

/// Long in comparison to delays of a busy machine.
const TIMEOUT: Duration = Duration::from_secs(2);
/// A timed-out operation takes less than this. A copy that restarts its timeout at its turn or at
/// each request takes at least 2 × TIMEOUT. On a very busy machine a correct copy may exceed this
/// limit too.
const TOO_LONG: Duration = TIMEOUT.saturating_mul(2);
/// Delay between the starts of operations.
const STAGGER: Duration = Duration::from_millis(200);

/// A model and a process on it with a copier, created by a first copy.
fn process() -> Result<(Model, Process)> {
    let model = Model::builder().device(Profile::load("bluefield3")?).build();
    let backend = InProcess::of(&model);
    let device = Device::open(&backend, &backend.find("mlx5_0")?)?;
    let config = ProcessConfig { timeout: TIMEOUT, ..ProcessConfig::default() };
    let process = Process::create(&device, &App::new("slow", &file())?, &config)?;
    process.alloc_from(&[1])?;
    Ok((model, process))
}

/// Checks that an operation times out like a copy, no sooner and not much later.
fn times_out<T>(what: &str, copy: impl FnOnce() -> std::result::Result<T, Error>) -> Error {
    let begun = Instant::now();
    let Err(error) = copy() else { panic!("{what} did not time out") };
    let took = begun.elapsed();
    assert!(took >= TIMEOUT && took < TOO_LONG, "{what} took {took:?}");
    assert_eq!(error.status(), Status::Timeout, "{what}: {error}");
    error
}

fn is_copy_timeout(error: &Error) -> bool {
    matches!(error, Error::CopyTimeout(TIMEOUT))
}

#[test]
fn copy_with_lost_cqe_times_out_and_next_works() -> Result {
    let (model, process) = process()?;
    let buffer = process.alloc_from(&[1; 100])?;
    let mut back = [0; 100];
    model.inject(0, Fault::LoseCompletion, 0, 1);
    assert!(is_copy_timeout(&times_out("a write", || buffer.write_at(0, &[2; 100]))));
    buffer.read_at(0, &mut back)?;
    // Any of the bytes may be copied, so each is one or the other.
    assert!(back.iter().all(|byte| [1, 2].contains(byte)), "{back:?}");
    for lost in 0..3 {
        model.inject(0, Fault::LoseCompletion, 0, 1);
        let error = match lost {
            0 => times_out("a read", || buffer.read_at(0, &mut back)),
            1 => times_out("a fill", || buffer.fill(3)),
            _ => times_out("a new buffer", || process.alloc_from(&[4; 100])),
        };
        assert!(is_copy_timeout(&error), "{error}");
        buffer.write_at(0, &[5; 100])?;
        buffer.read_at(0, &mut back)?;
        assert_eq!(back, [5; 100]);
    }
    assert_eq!(process.heap_info().requested, 100, "the new buffer is gone");
    // The process continues, too.
    assert!(process.status()?.status.runs());
    let entry = verbless_command::DpaEntry::at(function::COUNT);
    let call =
        process.device().begin_dpa_call(process.object(), &entry, [3, 7, 0, 0, 0, 0, 0, 0])?;
    let end = Instant::now() + Duration::from_secs(10);
    while call.state()? != verbless_command::DpaCallState::Returned(21) {
        assert!(Instant::now() < end, "the call did not return");
        thread::yield_now();
    }
    Ok(())
}

#[test]
fn copy_timeout_covers_all_requests() -> Result {
    let (model, process) = process()?;
    let bytes = vec![7; 5 << 16];
    let buffer = process.alloc(bytes.len() as u64)?;
    // Each of the five requests completes in time; all of them together do not.
    let delay = Fault::DelayCompletion(TIMEOUT / 2);
    model.inject(0, delay, 0, 5);
    assert!(is_copy_timeout(&times_out("a long write", || buffer.write_at(0, &bytes))));
    model.inject(0, delay, 0, 1);
    buffer.write_at(0, &bytes)?;
    let mut back = vec![0; bytes.len()];
    buffer.read_at(0, &mut back)?;
    assert!(back == bytes, "the copy that completed in time wrote other bytes");
    Ok(())
}

#[test]
fn copy_timeout_includes_waiting_for_turn() -> Result {
    let (model, process) = process()?;
    let buffer = process.alloc_from(&[1; 8])?;
    model.inject(0, Fault::LoseCompletion, 0, 1);
    thread::scope(|scope| {
        let first = scope.spawn(|| times_out("the first", || buffer.write_at(0, &[2; 8])));
        // The others start while that one waits, one after another.
        let others = [1, 2, 3].map(|n| {
            thread::sleep(STAGGER);
            let buffer = &buffer;
            scope.spawn(move || {
                let begun = Instant::now();
                let copied = buffer.write_at(0, &[2 + n; 8]);
                (copied, begun.elapsed())
            })
        });
        assert!(is_copy_timeout(&first.join().expect("no panic")));
        for other in others {
            let (copied, took) = other.join().expect("no panic");
            // The first copy times out up to 3 × STAGGER before the others, so the others may still
            // complete.
            assert!(copied.as_ref().err().is_none_or(is_copy_timeout), "{copied:?}");
            assert!(took < TOO_LONG, "the call took {took:?}");
        }
    });
    // A copy times out while it waits for the copier, even if the copy before it succeeds.
    model.inject(0, Fault::DelayCompletion(TIMEOUT * 7 / 10), 0, 2);
    thread::scope(|scope| {
        let first = scope.spawn(|| buffer.write_at(0, &[2; 8]));
        thread::sleep(STAGGER);
        let second = times_out("the second", || buffer.write_at(0, &[3; 8]));
        assert!(is_copy_timeout(&second));
        assert!(first.join().expect("no panic").is_ok());
    });
    Ok(())
}

#[test]
fn creation_with_copy_timeout_leaves_no_memory() -> Result {
    let (model, process) = process()?;
    let before = process.heap_info();
    let config = || DpaCqConfig::new(4, CqElement::NonDpa { vector: 0 });
    let lose = || model.inject(0, Fault::LoseCompletion, 0, 1);
    lose();
    assert!(is_copy_timeout(&times_out("a CQ", || DpaCq::create(&process, &config()))));
    assert_eq!(process.heap_info(), before, "the heap after a CQ that was not made");
    let cq = DpaCq::create(&process, &config())?;
    let before = process.heap_info();
    lose();
    let queues = DpaQpConfig::rc(&cq, &cq, 4);
    assert!(is_copy_timeout(&times_out("a queue pair", || DpaQp::create(&process, &queues))));
    lose();
    assert!(is_copy_timeout(&times_out("a pool", || Rmp::create(&process, &RmpConfig::new(3)))));
    let after: HeapInfo = process.heap_info();
    assert_eq!(after, before, "the heap after queues that were not made");
    DpaQp::create(&process, &queues)?.destroy()?;
    Ok(())
}

#[test]
fn unrecovered_buffer_is_freed_after_copy_succeeds() -> Result {
    let (model, process) = process()?;
    let length = MEMORY_BLOCK as usize;
    let region = Arc::new(process.domain().region(length, KeyAccess::ALL)?);
    let buffer = process.alloc_recoverable(MEMORY_BLOCK, &region)?;
    let address = buffer.address();
    buffer.fill(0x5a)?;
    // The request fails, so it has no effect.
    model.fail_request(0, None, 1, verbless_prm::CqeSyndrome::REMOTE_ACCESS);
    let Err(Error::NotRecovered(unfreed)) = buffer.free() else {
        panic!("free() returned Ok although its copy failed");
    };
    assert_eq!(unfreed.error().status(), Status::Failed);
    let buffer = unfreed.into_buffer();
    assert_eq!(buffer.address(), address);
    let mut back = vec![0; length];
    region.read_at(0, &mut back)?;
    assert!(back.iter().all(|&byte| byte == 0), "the bytes were copied");
    buffer.read_at(0, &mut back)?;
    assert!(back.iter().all(|&byte| byte == 0x5a), "the buffer's content");
    model.inject(0, Fault::LoseCompletion, 0, 1);
    let error = times_out("to free it", || buffer.free());
    let Error::NotRecovered(unfreed) = error else { panic!("{error}") };
    assert!(is_copy_timeout(unfreed.error()), "{unfreed:?}");
    let buffer = unfreed.into_buffer();
    assert_eq!(process.heap_info().requested, MEMORY_BLOCK, "bytes that are allocated");
    buffer.free()?;
    assert_eq!(process.heap_info().requested, 0, "bytes that are allocated");
    region.read_at(0, &mut back)?;
    assert!(back.iter().all(|&byte| byte == 0x5a), "the region has other bytes than the buffer");
    Ok(())
}

#[test]
fn recoverable_buffer_needs_writable_region_in_own_pd() -> Result {
    let (_model, process) = process()?;
    let length = MEMORY_BLOCK as usize;
    let device = process.device();
    let refused = |region, why: &str| {
        let error = process.alloc_recoverable(MEMORY_BLOCK, &Arc::new(region)).unwrap_err();
        assert!(error.to_string().contains(why), "{error}");
    };
    let domain = Domain::new(device)?;
    refused(domain.region(length, KeyAccess::ALL)?, "another protection domain");
    let backend = InProcess::of(&Model::builder().device(Profile::load("bluefield3")?).build());
    let other = Domain::new(&Device::open(&backend, &backend.find("mlx5_0")?)?)?;
    refused(other.region(length, KeyAccess::ALL)?, "another protection domain");
    refused(process.domain().region(length, KeyAccess::LOCAL)?, "lacks remote write");
    Ok(())
}
