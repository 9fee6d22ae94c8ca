//! The tracer: reports of a compiled program's trace points in files and callbacks, by every
//! transport, started by the host or a FIFO, lossless or not; its limits, and its state after a
//! fatal error.

use std::fs::{self, File, OpenOptions};
use std::io::{BufReader, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use verbless_flexio::tracer::{
    DEFAULT_BATCH, DEFAULT_DBUF, DEFAULT_DISK, DEFAULT_FIFO, DEFAULT_FILE, DEFAULT_MEMORY,
    MIN_DISK, MIN_MEMORY, OutputMode, REPORT_BYTES, Record, TraceFile, TracerLosses,
    TracerTransport,
};
use verbless_flexio::{Error, Function, Process, ProcessConfig, RpcAttr, Tracer, TracerSetup};

use super::failed;
use super::rig::{Rig, add, ends_with};
use crate::case::cases;
use crate::endpoint::quiet;
use crate::need::cap;
use crate::{Lab, Need, Stop, ensure, ensure_eq, until};

cases!(
    "flexio_tracer",
    "FlexIO's tracer: files, callbacks, transports, limits, lossless runs, the FIFO.",
    needs [Need::DpaLayouts, cap!(apu), Need::DpaProgram]:
    binary_reports_are_read_back_on_every_transport,
    csv_file_has_one_line_per_report,
    callback_receives_reports_in_batches,
    reports_refused_by_callback_are_dropped_at_stop,
    reports_are_kept_in_user_memory,
    aborted_run_leaves_tracer_working,
    reports_exist_only_between_start_and_stop,
    lossless_run_ends_when_memory_is_full,
    reports_without_room_are_counted,
    process_rejects_second_tracer,
    setup_rejects_values_beyond_limits,
    user_umem_must_be_aligned_and_needs_callback,
    callback_beside_file_is_rejected,
    fifo_alone_starts_managed_tracer,
    fatal_error_keeps_written_reports,
    tracer_is_destroyed_while_threads_trace,
);

/// Passes trace point 7 `count` times with consecutive values from `from`; returns the number of
/// reports written.
fn points() -> Function<(u64, u64), u64> {
    Function::named("points")
}

/// Whether [`points`] wrote this report with `n`.
fn is_of(record: &Record, n: u64) -> bool {
    (record.id, record.arguments) == (7, [n, !n, u64::MAX, 0, 0, 0])
}

/// Fails unless these reports have consecutive values from `from`, in order.
fn are_of(records: &[Record], from: u64, count: u64) -> Result<(), Stop> {
    ensure_eq!(records.len() as u64, count, "reports from {from} on");
    let wrong = records.iter().zip(from..).find(|(record, n)| !is_of(record, *n));
    ensure!(wrong.is_none(), "a report of {wrong:?}");
    ensure!(records.is_sorted_by(|a, b| a.number < b.number), "numbers of reports");
    Ok(())
}

/// A temporary directory, removed on drop with its contents.
struct Directory(PathBuf);

impl Directory {
    fn new(name: &str) -> Result<Self, Stop> {
        let path = std::env::temp_dir().join(format!("verbless-{name}-{}", std::process::id()));
        fs::create_dir_all(&path)?;
        Ok(Self(path))
    }

    fn file(&self) -> PathBuf {
        self.0.join("trace")
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn read(path: Option<&Path>) -> Result<Vec<Record>, Stop> {
    let path = path.ok_or_else(|| Stop::fail("the tracer writes no file"))?;
    let records = TraceFile::new(BufReader::new(File::open(path)?))?;
    Ok(records.collect::<Result<_, _>>()?)
}

/// A rig with room for a tracer with its default memory.
fn rig(lab: &Lab) -> Result<Rig, Stop> {
    Rig::with(lab, &ProcessConfig { heap: 2 << 20, ..ProcessConfig::default() })
}

/// A tracer of 8 batches of 16 reports, which writes a file.
fn tracer(
    process: &Process,
    transport: TracerTransport,
    directory: &Directory,
) -> Result<TracerSetup, Stop> {
    let mut setup = Tracer::init(process)?;
    setup.set_dev_mem_limit(8 * 16 * REPORT_BYTES)?.set_batch_depth(16)?;
    setup.set_transport_type(transport).set_output_mode(OutputMode::Bin);
    setup.set_out_filename(directory.file());
    Ok(setup)
}

const WITHOUT_UMEM: [TracerTransport; 3] =
    [TracerTransport::Uc, TracerTransport::Window, TracerTransport::Dbuf];

fn binary_reports_are_read_back_on_every_transport(lab: &Lab) -> Result<(), Stop> {
    let Rig { process } = rig(lab)?;
    let (before, directory) = (process.heap_info(), Directory::new("reports")?);
    for transport in WITHOUT_UMEM {
        let tracer = tracer(&process, transport, &directory)?.create()?;
        ensure_eq!(tracer.qp_numbers().is_some(), transport == TracerTransport::Uc, "queue pairs");
        tracer.start()?;
        ensure!(tracer.runs(), "the tracer does not run");
        // 100 reports do not fill a batch; the memory has room for 128.
        ensure_eq!(process.call(points(), (5, 100))?, 100, "reports written by {transport:?}");
        tracer.stop()?;
        are_of(&read(tracer.file())?, 5, 100)?;
        ensure_eq!(tracer.lost()?, TracerLosses::default(), "lost by {transport:?}");
        tracer.destroy()?;
        ensure_eq!(process.heap_info(), before, "the heap after the tracer by {transport:?}");
    }
    // Defaults for everything but the file's name.
    let mut setup = Tracer::init(&process)?;
    setup.set_output_mode(OutputMode::Bin).set_out_filename(directory.file());
    let tracer = setup.create()?;
    tracer.start()?;
    ensure_eq!(process.call(points(), (0, 3000))?, 3000, "reports written by default");
    tracer.stop()?;
    are_of(&read(tracer.file())?, 0, 3000)
}

fn csv_file_has_one_line_per_report(lab: &Lab) -> Result<(), Stop> {
    let (Rig { process }, directory) = (rig(lab)?, Directory::new("lines")?);
    let mut setup = Tracer::init(&process)?;
    setup.set_out_filename(directory.file());
    let tracer = setup.create()?;
    ensure_eq!(tracer.file(), Some(&*directory.0.join("trace.csv")), "the file");
    tracer.start()?;
    process.call(points(), (1, 2))?;
    tracer.stop()?;
    let expected = "number,point,thread,arg0,arg1,arg2,arg3,arg4,arg5\n\
                    0,7,0,0x1,0xfffffffffffffffe,0xffffffffffffffff,0x0,0x0,0x0\n\
                    1,7,0,0x2,0xfffffffffffffffd,0xffffffffffffffff,0x0,0x0,0x0\n";
    ensure_eq!(fs::read_to_string(directory.0.join("trace.csv"))?, expected, "the lines");
    Ok(())
}

/// Batches that a callback received.
type Batches = Arc<Mutex<Vec<Vec<Record>>>>;

fn taken(batches: &Batches) -> Vec<Vec<Record>> {
    batches.lock().expect("no panic").clone()
}

fn take(setup: &mut TracerSetup) -> Batches {
    let batches = Batches::default();
    let to = batches.clone();
    setup.set_user_cb(move |records| {
        to.lock().expect("no panic").push(records.to_vec());
        Ok(records.len())
    });
    batches
}

fn callback_receives_reports_in_batches(lab: &Lab) -> Result<(), Stop> {
    let (Rig { process }, directory) = (rig(lab)?, Directory::new("callback")?);
    for transport in WITHOUT_UMEM {
        let mut setup = tracer(&process, transport, &directory)?;
        let batches = take(&mut setup);
        let tracer = setup.create()?;
        ensure_eq!(tracer.file(), None, "a file of a tracer with a callback");
        tracer.start()?;
        ensure_eq!(process.call(points(), (0, 40))?, 40, "reports written");
        until("two batches", || (taken(&batches).len() == 2).then_some(()))?;
        quiet("no whole batch", || (taken(&batches).len() > 2).then_some(()))?;
        tracer.stop()?;
        let lengths: Vec<_> = taken(&batches).iter().map(Vec::len).collect();
        ensure_eq!(lengths, [16, 16, 8], "reports of each call by {transport:?}");
        are_of(&taken(&batches).concat(), 0, 40)?;
    }
    Ok(())
}

fn reports_refused_by_callback_are_dropped_at_stop(lab: &Lab) -> Result<(), Stop> {
    let timeout = std::time::Duration::from_millis(300);
    let config = ProcessConfig { heap: 2 << 20, timeout, ..ProcessConfig::default() };
    let Rig { process } = Rig::with(lab, &config)?;
    let mut setup = Tracer::init(&process)?;
    setup.set_user_cb(|_| Ok(0));
    let tracer = setup.create()?;
    tracer.start()?;
    ensure_eq!(process.call(points(), (0, 40))?, 40, "reports written");
    failed("a stop", tracer.stop(), "accepted none of the last 40 reports")?;
    ensure_eq!(tracer.lost()?, TracerLosses { dropped: 40, ..TracerLosses::default() }, "lost");
    // A failing callback loses its reports, and the stop succeeds.
    tracer.destroy()?;
    let mut setup = Tracer::init(&process)?;
    setup.set_user_cb(|_| Err("no room".into()));
    let tracer = setup.create()?;
    tracer.start()?;
    ensure_eq!(process.call(points(), (0, 40))?, 40, "reports written");
    tracer.stop()?;
    ensure_eq!(tracer.lost()?.dropped, 40, "reports of a callback that failed");
    Ok(tracer.destroy()?)
}

fn aborted_run_leaves_tracer_working(lab: &Lab) -> Result<(), Stop> {
    let timeout = Some(std::time::Duration::from_millis(100));
    for lossless in [false, true] {
        // Each abandoned ring stays until the tracer is destroyed.
        let config = ProcessConfig { heap: 16 << 20, ..ProcessConfig::default() };
        let Rig { process } = Rig::with(lab, &config)?;
        let mut setup = Tracer::init(&process)?;
        let batches = take(&mut setup);
        let tracer = setup.create()?;
        // Each call is ended at another point, most of them between two stores of a report.
        for round in 0..4 {
            tracer.start()?;
            let attr = RpcAttr { timeout, ..RpcAttr::default() };
            let endless = process.call_with_attr(&attr, points(), (0, u64::MAX));
            ensure!(matches!(endless, Err(Error::Timeout(_))), "{endless:?}");
            tracer.stop()?;
            batches.lock().expect("no panic").clear();
            match lossless {
                true => tracer.start_lossless()?,
                false => tracer.start()?,
            }
            ensure_eq!(process.call(points(), (70, 20))?, 20, "reports of round {round}");
            tracer.stop()?;
            are_of(&taken(&batches).concat(), 70, 20)?;
        }
        tracer.destroy()?;
        // The program counts the threads that never left forever. This does not keep another tracer
        // from its end.
        let mut setup = Tracer::init(&process)?;
        let batches = take(&mut setup);
        let another = setup.create()?;
        another.start()?;
        ensure_eq!(process.call(points(), (0, 20))?, 20, "reports of another tracer");
        another.stop()?;
        are_of(&taken(&batches).concat(), 0, 20)?;
        another.destroy()?;
        process.destroy()?;
    }
    Ok(())
}

fn reports_are_kept_in_user_memory(lab: &Lab) -> Result<(), Stop> {
    let Rig { process } = rig(lab)?;
    let memory = process.alloc(64 + (2 << 10))?;
    let mut setup = Tracer::init(&process)?;
    setup.set_transport_type(TracerTransport::Umem).set_batch_depth(4)?;
    setup.set_umem(&memory, 64, 2 << 10)?;
    let batches = take(&mut setup);
    let tracer = setup.create()?;
    tracer.start()?;
    let mut from = 0;
    for count in [1, 20, 32, 7] {
        let written = process.call(points(), (from, count))?;
        ensure_eq!(written, count, "reports written from {from} on");
        from += count;
        let whole = || (taken(&batches).concat().len() as u64 == from - from % 4).then_some(());
        until("the reports", whole)?;
    }
    tracer.stop()?;
    are_of(&taken(&batches).concat(), 0, from)?;
    // The reports are in the ring: report 32 has the slot of report 0.
    let mut bytes = [0; 32];
    memory.read_at(64, &mut bytes)?;
    ensure_eq!(bytes[..4], 7_u32.to_le_bytes(), "the trace point's number in the memory");
    ensure_eq!(bytes[8..16], 33_u64.to_le_bytes(), "the report's number in the memory");
    failed("memory that the tracer keeps", memory.clone().free(), "in use")?;
    tracer.destroy()?;
    Ok(memory.free()?)
}

fn reports_exist_only_between_start_and_stop(lab: &Lab) -> Result<(), Stop> {
    let (Rig { process }, directory) = (rig(lab)?, Directory::new("starts")?);
    ensure_eq!(process.call(points(), (0, 5))?, 0, "reports without a tracer");
    for transport in WITHOUT_UMEM {
        let tracer = tracer(&process, transport, &directory)?.create()?;
        ensure_eq!(process.call(points(), (0, 5))?, 0, "reports before the start");
        failed("a stop before a start", tracer.stop(), "does not run")?;
        for from in [10, 20] {
            tracer.start()?;
            failed("a start of one that runs", tracer.start(), "runs already")?;
            ensure_eq!(process.call(points(), (from, 50))?, 50, "reports of the run");
            tracer.stop()?;
            ensure_eq!(process.call(points(), (0, 5))?, 0, "reports after the stop");
            are_of(&read(tracer.file())?, from, 50)?;
        }
        failed("a stop after a stop", tracer.stop(), "does not run")?;
    }
    ensure_eq!(process.call(points(), (0, 5))?, 0, "reports after the tracer");
    Ok(())
}

fn lossless_run_ends_when_memory_is_full(lab: &Lab) -> Result<(), Stop> {
    let (Rig { process }, directory) = (rig(lab)?, Directory::new("lossless")?);
    for transport in WITHOUT_UMEM {
        let tracer = tracer(&process, transport, &directory)?.create()?;
        // After a run that leaves the ring in the middle of a batch.
        tracer.start()?;
        process.call(points(), (0, 70))?;
        tracer.stop()?;
        for from in [1000, 2000] {
            tracer.start_lossless()?;
            let written = process.call(points(), (from, 100))?;
            let more = process.call(points(), (from + 100, 100))?;
            ensure_eq!((written, more), (100, 28), "reports of 128 written by {transport:?}");
            tracer.stop()?;
            are_of(&read(tracer.file())?, from, 128)?;
        }
        ensure_eq!(tracer.lost()?.without_room, 2 * 72, "reports lost for lack of room");
        // A normal run after it.
        tracer.start()?;
        ensure_eq!(process.call(points(), (7, 100))?, 100, "reports written after that");
        tracer.stop()?;
        are_of(&read(tracer.file())?, 7, 100)?;
        ensure_eq!(tracer.lost()?.undelivered, 0, "reports lost by {transport:?}");
    }
    Ok(())
}

fn reports_without_room_are_counted(lab: &Lab) -> Result<(), Stop> {
    let (Rig { process }, directory) = (rig(lab)?, Directory::new("losses")?);
    for transport in [TracerTransport::Window, TracerTransport::Dbuf] {
        let mut setup = tracer(&process, transport, &directory)?;
        setup.set_dev_mem_limit(1 << 10)?.set_batch_depth(4)?.without_thread();
        let tracer = setup.create()?;
        tracer.start()?;
        ensure_eq!(process.call(points(), (0, 40))?, 16, "reports written");
        ensure_eq!(tracer.poll()?, 16, "reports taken");
        ensure_eq!(process.call(points(), (100, 3))?, 3, "reports after that");
        tracer.stop()?;
        let records = read(tracer.file())?;
        are_of(&records[..16], 0, 16)?;
        are_of(&records[16..], 100, 3)?;
        ensure_eq!(
            tracer.lost()?,
            TracerLosses { without_room: 24, ..TracerLosses::default() },
            "lost"
        );
    }
    // With UC the host has room for four batches; the rest is lost.
    let mut setup = tracer(&process, TracerTransport::Uc, &directory)?;
    setup.set_dev_mem_limit(1 << 10)?.set_host_mem_limit(1 << 10)?;
    setup.set_batch_depth(4)?.without_thread();
    let tracer = setup.create()?;
    tracer.start()?;
    let mut written = 0;
    for round in 0..8 {
        written += process.call(points(), (8 * round, 8))?;
    }
    tracer.stop()?;
    let (records, lost) = (read(tracer.file())?, tracer.lost()?);
    ensure_eq!(lost.without_room + written, 64, "reports written and lost for lack of room");
    ensure_eq!(
        lost.undelivered + records.len() as u64,
        written,
        "reports delivered and undelivered"
    );
    ensure!(records.len() <= 32, "{} reports in memory for 16", records.len());
    ensure!(records.iter().all(|it| is_of(it, it.arguments[0])), "a report that was never written");
    Ok(())
}

fn process_rejects_second_tracer(lab: &Lab) -> Result<(), Stop> {
    let Rig { process } = rig(lab)?;
    let setup = Tracer::init(&process)?;
    failed("a second tracer", Tracer::init(&process), "has a tracer")?;
    drop(setup);
    // A tracer that fails to start frees its slot, too.
    let mut setup = Tracer::init(&process)?;
    setup.set_output_mode(OutputMode::Callback);
    failed("a callback that is none", setup.create(), "set_user_cb")?;
    let tracer = Tracer::init(&process)?.create()?;
    failed("a third tracer", Tracer::init(&process), "has a tracer")?;
    failed("a process with a tracer", process.clone().destroy(), "in use")?;
    tracer.destroy()?;
    Tracer::init(&process)?.create()?.destroy()?;
    let other = rig(lab)?;
    let (_one, _two) = (Tracer::init(&process)?.create()?, Tracer::init(&other.process)?.create()?);
    Ok(())
}

fn setup_rejects_values_beyond_limits(lab: &Lab) -> Result<(), Stop> {
    // The values of DOCA 3.2.0.
    ensure_eq!((DEFAULT_BATCH, MIN_MEMORY, DEFAULT_MEMORY), (64, 1 << 10, 512 << 10), "limits");
    ensure_eq!((DEFAULT_DBUF, MIN_DISK, DEFAULT_DISK), (16 << 10, 1 << 20, 1 << 30), "limits");
    let names = (DEFAULT_FILE, DEFAULT_FIFO);
    ensure_eq!(names, ("/tmp/flexio_dtrace", "/tmp/flexio_dtrace_cli.fifo"), "names");
    let Rig { process } = rig(lab)?;
    let init = || Tracer::init(&process);
    let plain = init()?.create()?;
    ensure_eq!(plain.file(), Some(Path::new("/tmp/flexio_dtrace.csv")), "the file without a name");
    ensure!(plain.qp_numbers().is_some(), "the transport without a choice");
    plain.destroy()?;
    for bytes in [0, 512, 1000, 3 << 10] {
        failed("device memory", init()?.set_dev_mem_limit(bytes).map(drop), "power of two")?;
        failed("host memory", init()?.set_host_mem_limit(bytes).map(drop), "power of two")?;
    }
    for depth in [0, 3, 65] {
        failed("a batch depth", init()?.set_batch_depth(depth).map(drop), "power of two")?;
    }
    let too_small = init()?.set_diskspace_limit(MIN_DISK - 1).map(drop);
    failed("a disk space limit", too_small, "1048576 or more")?;
    init()?.set_diskspace_limit(MIN_DISK)?;

    let mut setup = init()?;
    setup.set_dev_mem_limit(1 << 20)?;
    failed("more than the host's", setup.create(), "1048576 bytes is more than the host memory")?;
    let mut setup = init()?;
    setup.set_host_mem_limit(256 << 10)?;
    failed("the default above the host's", setup.create(), "524288 bytes, the default,")?;
    let mut setup = init()?;
    setup.set_dev_mem_limit(8 << 10)?;
    let both = "a batch of 64 reports, the default, is more than 32, a quarter of the 8192 bytes";
    failed("the default batch", setup.create(), both)?;
    let mut setup = init()?;
    setup.set_dev_mem_limit(8 << 10)?.set_batch_depth(64)?;
    failed("a batch", setup.create(), "a batch of 64 reports is more than 32")?;
    let mut setup = init()?;
    setup.set_dev_mem_limit(8 << 10)?.set_batch_depth(32)?;
    setup.create()?.destroy()?;
    // The default batch is exactly a quarter of the default DBUF.
    ensure_eq!(DEFAULT_DBUF / 4 / REPORT_BYTES, DEFAULT_BATCH, "the default batch");
    let mut setup = init()?;
    setup.set_transport_type(TracerTransport::Dbuf);
    setup.create()?.destroy()?;
    let mut setup = init()?;
    setup.set_dev_mem_limit(1 << 10)?.set_batch_depth(4)?.set_host_mem_limit(1 << 10)?;
    Ok(setup.create()?.destroy()?)
}

fn user_umem_must_be_aligned_and_needs_callback(lab: &Lab) -> Result<(), Stop> {
    let (Rig { process }, other) = (rig(lab)?, rig(lab)?);
    let memory = process.alloc(8 << 10)?;
    let mut setup = Tracer::init(&process)?;
    failed(
        "a misaligned offset",
        setup.set_umem(&memory, 32, 1 << 10).map(drop),
        "multiple of the 64",
    )?;
    failed("an odd length", setup.set_umem(&memory, 0, 3 << 10).map(drop), "power of two")?;
    failed("too much", setup.set_umem(&memory, 64, 8 << 10).map(drop), "the buffer has 8192")?;
    let foreign = other.process.alloc(8 << 10)?;
    failed(
        "a buffer of another process",
        setup.set_umem(&foreign, 0, 1 << 10).map(drop),
        "another process",
    )?;
    setup.set_umem(&memory, 0, 8 << 10)?.set_batch_depth(4)?;
    failed("memory by UC", setup.create(), "is for the transport UMEM, not Uc")?;
    let mut setup = Tracer::init(&process)?;
    setup.set_umem(&memory, 0, 8 << 10)?.set_transport_type(TracerTransport::Umem);
    setup.set_batch_depth(4)?;
    failed("memory without a callback", setup.create(), "needs a callback")?;
    let mut setup = Tracer::init(&process)?;
    take(setup.set_transport_type(TracerTransport::Umem));
    failed("no memory", setup.create(), "needs user memory")?;
    // The user does not choose the limits of host and device memory.
    let mut setup = Tracer::init(&process)?;
    take(setup.set_transport_type(TracerTransport::Umem).set_umem(&memory, 0, 8 << 10)?);
    let much = "64 reports, the default, is more than 32, a quarter of the 8192 bytes of the user";
    failed("the default batch", setup.create(), much)?;
    let mut setup = Tracer::init(&process)?;
    setup.set_transport_type(TracerTransport::Umem).set_umem(&memory, 0, 8 << 10)?;
    take(setup.set_host_mem_limit(1 << 10)?.set_batch_depth(32)?);
    setup.create()?.destroy()?;
    let mut setup = Tracer::init(&process)?;
    setup.set_transport_type(TracerTransport::Umem).set_umem(&memory, 64, 256)?;
    take(setup.set_batch_depth(1)?);
    setup.create()?.destroy()?;
    let too_small = Tracer::init(&process)?.set_umem(&memory, 0, 128).map(drop);
    failed("memory for two reports", too_small, "256 or more")
}

fn callback_beside_file_is_rejected(lab: &Lab) -> Result<(), Stop> {
    let Rig { process } = rig(lab)?;
    for mode in [OutputMode::Csv, OutputMode::Bin] {
        let mut setup = Tracer::init(&process)?;
        take(&mut setup);
        setup.set_output_mode(mode);
        failed("a callback and a file", setup.create(), "has a callback")?;
    }
    // In the other output mode, the callback counts.
    let mut setup = Tracer::init(&process)?;
    take(setup.set_output_mode(OutputMode::Csv));
    let tracer = setup.create()?;
    ensure_eq!(tracer.file(), None, "the file of a tracer with a callback");
    Ok(tracer.destroy()?)
}

fn fifo_alone_starts_managed_tracer(lab: &Lab) -> Result<(), Stop> {
    let (Rig { process }, directory) = (rig(lab)?, Directory::new("fifo")?);
    let path = directory.0.join("cli.fifo");
    let mut setup = tracer(&process, TracerTransport::Uc, &directory)?;
    setup.set_cli_mgmt(Some(path.clone()));
    let tracer = setup.create()?;
    ensure_eq!(tracer.fifo(), Some(&*path), "the FIFO");
    failed("a start by the host", tracer.start(), "managed by the FIFO")?;
    failed("a lossless one", tracer.start_lossless(), "managed by the FIFO")?;
    let echo = |text: &str| -> Result<(), Stop> {
        Ok(OpenOptions::new().write(true).open(&path)?.write_all(text.as_bytes())?)
    };
    let runs = |runs: bool| until("the FIFO's command", || (tracer.runs() == runs).then_some(()));
    // One second, which ends by itself.
    echo("1\n")?;
    runs(true)?;
    process.call(points(), (0, 20))?;
    runs(false)?;
    are_of(&read(tracer.file())?, 0, 20)?;
    ensure_eq!(process.call(points(), (0, 5))?, 0, "reports after the second");
    // One hour; the case ends it.
    echo("3600\n")?;
    runs(true)?;
    ensure_eq!(process.call(points(), (30, 9))?, 9, "reports of the hour");
    echo("nonsense\n0\n")?;
    runs(false)?;
    are_of(&read(tracer.file())?, 30, 9)?;
    tracer.destroy()?;
    ensure!(!path.exists(), "the FIFO is left behind");

    // An existing file that is not a FIFO stays unchanged.
    fs::write(&path, "precious")?;
    let mut setup = self::tracer(&process, TracerTransport::Dbuf, &directory)?;
    setup.set_cli_mgmt(Some(path.clone()));
    failed("a file instead of a FIFO", setup.create(), "is not a FIFO")?;
    ensure_eq!(fs::read_to_string(&path)?, "precious", "the file");
    Ok(())
}

fn fatal_error_keeps_written_reports(lab: &Lab) -> Result<(), Stop> {
    let directory = Directory::new("fatal")?;
    for transport in WITHOUT_UMEM {
        for lossless in [false, true] {
            let Rig { process } = rig(lab)?;
            let tracer = tracer(&process, transport, &directory)?.create()?;
            if lossless {
                tracer.start_lossless()?
            } else {
                tracer.start()?
            }
            ensure_eq!(process.call(points(), (3, 21))?, 21, "reports written");
            match process.call(ends_with(), (200,)) {
                Err(Error::Fatal(_)) => {}
                other => return Err(Stop::fail(format!("a call that ends it: {other:?}"))),
            }
            tracer.stop()?;
            are_of(&read(tracer.file())?, 3, 21)?;
            ensure!(
                matches!(tracer.start(), Err(Error::Fatal(_))),
                "a start after the process's end"
            );
            tracer.destroy()?;
            ensure!(
                matches!(Tracer::init(&process), Err(Error::Fatal(_))),
                "an init after the process's end"
            );
            process.destroy()?;
        }
    }
    Ok(())
}

fn tracer_is_destroyed_while_threads_trace(lab: &Lab) -> Result<(), Stop> {
    let (Rig { process }, directory) = (rig(lab)?, Directory::new("destroyed")?);
    let before = process.heap_info();
    for transport in WITHOUT_UMEM {
        let mut setup = tracer(&process, transport, &directory)?;
        let batches = take(&mut setup);
        let tracer = setup.create()?;
        tracer.start()?;
        std::thread::scope(|scope| -> Result<(), Stop> {
            let trace = |from| process.call(points(), (from, 20_000));
            let calls = [0, 1 << 32].map(|from| scope.spawn(move || trace(from)));
            until("the first reports", || (!taken(&batches).is_empty()).then_some(()))?;
            tracer.destroy()?;
            for call in calls {
                call.join().map_err(|_| Stop::fail("a panic"))??;
            }
            Ok(())
        })?;
        let records = taken(&batches).concat();
        ensure!(records.iter().all(|it| is_of(it, it.arguments[0])), "no such report");
        ensure_eq!(process.heap_info(), before, "the heap after the tracer by {transport:?}");
    }
    ensure_eq!(process.call(add(), (40, 2))?, 42, "the process continues");
    Ok(())
}
