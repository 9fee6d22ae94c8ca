//! What `docs/flexio.md` goes through: a host that calls a function of its program, which makes
//! events, and an event handler that takes them.
//!
//! `cargo xtask dpa examples` builds and runs it; by hand `guide target/dpa/guide.elf`.

mod support;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use support::{Result, expect};
use verbless::Device;
use verbless_flexio::stream::Output;
use verbless_flexio::{
    App, CqElement, DpaCq, DpaCqConfig, EventHandler, EventHandlerConfig, Function, Handler,
    MsgStream, MsgStreamConfig, Outbox, OutboxConfig, Process, ProcessConfig, Status,
};

const LOG_DEPTH: u8 = 6;
const EVENTS: u32 = 40;
const PATIENCE: Duration = Duration::from_secs(30);

fn main() -> ExitCode {
    support::main(guide)
}

fn guide(device: &Device, app: &App) -> Result {
    let config = ProcessConfig { timeout: PATIENCE, ..ProcessConfig::default() };
    let process = Process::create(device, app, &config)?;

    let default = MsgStreamConfig::default_stream();
    let stream = MsgStream::create(&process, &default, Output::stdout())?;

    // The call and the handler run at the same time: each rings by an outbox of its own.
    let outbox = Outbox::create(&process, &OutboxConfig::default())?;
    let handlers = Outbox::create(&process, &OutboxConfig::default())?;
    let handler = EventHandler::create(
        &process,
        &EventHandlerConfig {
            outbox: Some(handlers.clone()),
            ..EventHandlerConfig::new(Handler::named("on_event"))
        },
    )?;

    let cq =
        DpaCq::create(&process, &DpaCqConfig::new(LOG_DEPTH, CqElement::Thread(handler.clone())))?;

    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&cq.ring_address().to_le_bytes());
    bytes[8..16].copy_from_slice(&cq.record_address().to_le_bytes());
    bytes[16..20].copy_from_slice(&cq.number().to_le_bytes());
    bytes[20..24].copy_from_slice(&u32::from(LOG_DEPTH).to_le_bytes());
    let work = process.alloc_from(&bytes)?;

    handler.run(work.address())?;

    let make_events = Function::<(u16, u32, u32), u32>::named("make_events");
    let errno = process.call(make_events, (outbox.id(), cq.number(), EVENTS))?;
    expect("the errno of the call", errno, 0)?;

    let begun = Instant::now();
    let mut handled = [0; 4];
    while u32::from_le_bytes(handled) < EVENTS && begun.elapsed() < PATIENCE {
        work.read_at(28, &mut handled)?;
    }
    expect("events that were handled", u32::from_le_bytes(handled), EVENTS)?;
    stream.flush()?;

    expect("a process that runs", process.status()?.status.runs(), true)?;

    cq.destroy()?;
    handler.destroy()?;
    work.free()?;
    outbox.destroy()?;
    handlers.destroy()?;
    stream.destroy()?;
    process.destroy()?;

    failures(device, app)
}

/// What goes wrong, and how it is told.
fn failures(device: &Device, app: &App) -> Result {
    let process = Process::create(device, app, &ProcessConfig::default())?;

    let wrong = Function::<(u64,), u64>::named("make_events");
    let error = process.call(wrong, (1,)).err().ok_or("a call with other types")?;
    expect("the status", error.status(), Status::Failed)?;
    println!("{error}");

    // It has no outbox: the first doorbell ends it.
    let make_events = Function::<(u16, u32, u32), u32>::named("make_events");
    let error = process.call(make_events, (0, 0, 1)).err().ok_or("a doorbell without an outbox")?;
    expect("the status", error.status(), Status::FatalError)?;
    println!("{error}");
    let again = process.alloc(64).err().ok_or("an allocation of a process that has ended")?;
    expect("the status", again.status(), Status::FatalError)?;
    let crash = process.status()?.crash.ok_or("nothing tells where it ended")?;
    println!("it ended at pc {:#x}, address {:#x}", crash.pc, crash.address);
    Ok(process.destroy()?)
}
