//! The DPU's side of a sync event: imports the host's, waits for its signal, and signals it.
//!
//! `sync_event_dpu --listen 127.0.0.1:18601`, with `sync_event_host` on the host and the same
//! flags.

mod support;
#[path = "support/sync_event.rs"]
mod sync_event;

use std::process::ExitCode;

use clap::Parser;
use verbless_doca::Dev;
use verbless_doca::sync_event::SyncEvent;

use support::{Channel, Common, Meeting, Result};
use sync_event::{DPU_SIGNAL, HOST_SIGNAL, Handle, Options};

/// Imports a host's sync event: waits for its signal, and signals it.
#[derive(Parser)]
#[command(version, disable_version_flag = true)]
struct Flags {
    #[command(flatten)]
    common: Common,
    #[command(flatten)]
    meeting: Meeting,
    #[command(flatten)]
    options: Options,
    /// The host's device, by the PCI address or the name of its representor on the DPU. The host's
    /// export identifies its device, too.
    #[arg(short = 'r', long = "rep-pci-addr", value_name = "ADDRESS")]
    representor: Option<String>,
}

fn main() -> ExitCode {
    support::exit(run(&Flags::parse()))
}

fn run(flags: &Flags) -> Result {
    let dev = flags.common.open()?;
    let _rep = support::representor(&dev, flags.representor.as_deref())?;
    SyncEvent::create_from_export_supported(&dev)?;
    let mut channel = flags.meeting.meet()?;
    let done = interact(flags, &dev, &mut channel);
    match &done {
        Ok(()) => channel.send(b"done")?,
        Err(error) => channel.send(error.to_string().as_bytes())?,
    }
    done
}

fn interact(Flags { common, options, .. }: &Flags, dev: &Dev, channel: &mut Channel) -> Result {
    let event = SyncEvent::create_from_export(&channel.receive()?, dev)?;
    let mut event = match options.is_async {
        true => Handle::of_context(event.as_ctx().start()?, options.qdepth)?,
        false => Handle::Sync(event.start()?),
    };
    event.wait_gt(HOST_SIGNAL - 1)?;
    common.say(50, &format!("the host has signaled: the value is {}", event.get()?));
    event.signal(DPU_SIGNAL, options)?;
    common.say(50, &format!("the DPU signals {DPU_SIGNAL}"));
    event.destroy()
}
