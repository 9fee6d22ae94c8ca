//! The program of `docs/flexio.md`: a host calls a function of its DPA program that makes events,
//! and an event handler of the program consumes them.
//!
//! `cargo xtask dpa examples` builds and runs it; by hand `guide target/dpa/guide.elf`.

mod support;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use support::{Result, expect};
use verbless::Device;
use verbless_flexio::stream::Output;
use verbless_flexio::{
    App, AppSelect, Apps, CqElement, CqNumber, DpaCq, DpaCqConfig, EventHandler,
    EventHandlerConfig, Function, Handler, HwModel, MsgStream, MsgStreamConfig, Outbox,
    OutboxConfig, OutboxId, Process, ProcessConfig, Status,
};

const LOG_DEPTH: u8 = 6;
const EVENTS: u32 = 40;
const TIMEOUT: Duration = Duration::from_secs(30);

fn main() -> ExitCode {
    support::main(guide)
}

fn guide(device: &Device, app: &App) -> Result {
    let mut apps = Apps::default();
    apps.register(app.clone(), HwModel::Default)?;
    let select = AppSelect { device: Some(device), ..AppSelect::new(app.name()) };
    let app = apps.get(&select)?;

    let config = ProcessConfig { timeout: TIMEOUT, ..ProcessConfig::default() };
    let process = Process::create(device, app, &config)?;

    let default = MsgStreamConfig::default_stream();
    let stream = MsgStream::create(&process, &default, Output::stdout())?;

    // The call and the handler run concurrently, so each needs its own outbox.
    let outbox = Outbox::create(&process, &OutboxConfig::default())?;
    let handler_outbox = Outbox::create(&process, &OutboxConfig::default())?;
    let handler = EventHandler::create(
        &process,
        &EventHandlerConfig {
            outbox: Some(handler_outbox.clone()),
            ..EventHandlerConfig::new(Handler::named("on_event"))
        },
    )?;

    let cq =
        DpaCq::create(&process, &DpaCqConfig::new(LOG_DEPTH, CqElement::Thread(handler.clone())))?;

    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&cq.ring_address().to_le_bytes());
    bytes[8..16].copy_from_slice(&cq.record_address().to_le_bytes());
    bytes[16..20].copy_from_slice(&cq.number().0.to_le_bytes());
    bytes[20..24].copy_from_slice(&u32::from(LOG_DEPTH).to_le_bytes());
    let work = process.alloc_from(&bytes)?;

    handler.run(work.address())?;

    let make_events = Function::<(OutboxId, CqNumber, u32), u32>::named("make_events");
    let errno = process.call(make_events, (outbox.id(), cq.number(), EVENTS))?;
    expect("the errno of the call", errno, 0)?;

    let begun = Instant::now();
    let mut handled = [0; 4];
    while u32::from_le_bytes(handled) < EVENTS && begun.elapsed() < TIMEOUT {
        work.read_at(28, &mut handled)?;
    }
    expect("events that were handled", u32::from_le_bytes(handled), EVENTS)?;
    stream.flush()?;

    expect("a process that runs", process.status()?.status.runs(), true)?;

    cq.destroy()?;
    handler.destroy()?;
    work.free()?;
    outbox.destroy()?;
    handler_outbox.destroy()?;
    stream.destroy()?;
    process.destroy()?;

    failures(device, app)
}

/// Failures, and how they are reported.
fn failures(device: &Device, app: &App) -> Result {
    let process = Process::create(device, app, &ProcessConfig::default())?;

    let wrong = Function::<(u64,), u64>::named("make_events");
    let error = process.call(wrong, (1,)).err().ok_or("a call with other types")?;
    expect("the status", error.status(), Status::Failed)?;
    println!("{error}");

    // Outbox 200 does not exist: the RPC returns u32::MAX instead of crashing.
    let make_events = Function::<(u16, u32, u32), u32>::named("make_events");
    expect("result with an unknown outbox", process.call(make_events, (200, 0, 1))?, u32::MAX)?;

    let give_up = Function::<(u8,), u64>::named("give_up");
    let error = process.call(give_up, (200,)).err().ok_or("a call that returned")?;
    expect("the status", error.status(), Status::FatalError)?;
    println!("{error}");
    let again = process.alloc(64).err().ok_or("an allocation of a process that has ended")?;
    expect("the status", again.status(), Status::FatalError)?;
    let crash = process.status()?.crash.ok_or("the process status has no crash record")?;
    println!("it ended at pc {:#x}, address {:#x}", crash.pc, crash.address);
    let core = std::env::temp_dir().join(format!("guide-core-{}", std::process::id()));
    let core = process.core_dump(Some(&core))?;
    let bytes = std::fs::metadata(&core)?.len();
    println!("{bytes} bytes of core dump, for gdb-multiarch");
    std::fs::remove_file(core)?;
    Ok(process.destroy()?)
}
