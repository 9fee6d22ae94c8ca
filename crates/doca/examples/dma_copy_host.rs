//! The host's side of a copy by DMA: lets the DPU read a file's bytes out of the host's memory.
//!
//! `dma_copy_host --connect 127.0.0.1:18600 FILE`, with `dma_copy_dpu` on the DPU. It exports the
//! memory, sends the descriptor, and waits until the other side has copied everything, for as long
//! as progress continues.

#[path = "support/copying.rs"]
mod copying;
mod support;

use std::fs::File;
use std::io::Read;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use verbless_doca::{AccessFlags, Memory, Mmap};

use copying::Copying;
use support::{Common, Meeting, Result};

/// Lets a DPU copy a file out of this host's memory by DMA.
#[derive(Parser)]
#[command(version, disable_version_flag = true)]
struct Options {
    #[command(flatten)]
    common: Common,
    #[command(flatten)]
    meeting: Meeting,
    /// The file.
    file: PathBuf,
}

fn main() -> ExitCode {
    support::exit(run(&Options::parse()))
}

fn run(Options { common, meeting, file }: &Options) -> Result {
    let dev = common.open()?;
    let named = |error: std::io::Error| format!("reading {}: {error}", file.display());
    let mut input = File::open(file).map_err(named)?;
    let length = usize::try_from(input.metadata().map_err(named)?.len())?;
    // A map has at least one byte; the file's length is sent separately.
    let memory = Memory::allocate(length.max(1))?;
    let map = Mmap::builder()
        .memrange(memory)
        .permissions(AccessFlags::DPU_READ_ONLY)
        .add_dev(&dev)
        .start()?;
    let mut part = vec![0; 1 << 20];
    let mut at = 0;
    while at < length {
        let room = part.len().min(length - at);
        let read = input.read(&mut part[..room]).map_err(named)?;
        if read == 0 {
            return Err(format!("{} became shorter while it was read", file.display()).into());
        }
        map.write_at(at, &part[..read])?;
        at += read;
    }
    let descriptor = map.export_dpu(&dev)?;
    let mut channel = meeting.meet()?;
    channel.send(descriptor.as_bytes())?;
    channel.send(&(length as u64).to_be_bytes())?;
    common.say(50, &format!("{length} bytes are there for the DPU"));
    // The memory must stay until then.
    Copying::wait(&mut channel, length as u64, |bytes| {
        common.say(60, &format!("the DPU has copied {bytes} of {length} bytes"));
    })?;
    common.say(50, "the DPU has copied them");
    Ok(())
}
