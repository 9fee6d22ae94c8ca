//! The host's side of a sync event: creates and exports it, signals the DPU, and waits for the
//! DPU's signal.
//!
//! `sync_event_host --connect 127.0.0.1:18601`, with `sync_event_dpu` on the DPU and the same
//! flags.

mod support;
#[path = "support/sync_event.rs"]
mod sync_event;

use std::process::ExitCode;

use clap::Parser;
use verbless_doca::sync_event::{Location, SyncEvent};

use support::{Common, Meeting, Result};
use sync_event::{DPU_SIGNAL, HOST_SIGNAL, Handle, Options};

/// Shares a sync event with a DPU: signals it, and waits for its signal.
#[derive(Parser)]
#[command(version, disable_version_flag = true)]
struct Flags {
    #[command(flatten)]
    common: Common,
    #[command(flatten)]
    meeting: Meeting,
    #[command(flatten)]
    options: Options,
}

fn main() -> ExitCode {
    support::exit(run(&Flags::parse()))
}

fn run(Flags { common, meeting, options }: &Flags) -> Result {
    let dev = common.open()?;
    SyncEvent::export_to_dpu_supported(&dev)?;
    let event = SyncEvent::builder(&dev)
        .publisher_add_location(Location::Cpu)?
        .subscriber_add_location(Location::Cpu)?;
    let mut event = match options.is_async {
        true => Handle::of_context(event.as_ctx().start()?, options.qdepth)?,
        false => Handle::Sync(event.start()?),
    };
    let mut channel = meeting.meet()?;
    channel.send(event.export()?.as_bytes())?;
    event.signal(HOST_SIGNAL, options)?;
    common.say(50, &format!("the host signals {HOST_SIGNAL}, and waits"));
    event.wait_gt(DPU_SIGNAL - 1)?;
    common.say(50, &format!("the DPU has signaled: the value is {}", event.get()?));
    // The event must stay until the DPU has destroyed its handle.
    let answer = channel.receive()?;
    if answer != b"done" {
        return Err(format!("the DPU failed: {}", String::from_utf8_lossy(&answer)).into());
    }
    event.destroy()
}
