//! The guide's sample of a write (section 6.1), the requester: a work queue in polling mode.
//!
//! `rdma_write_requester --connect 127.0.0.1:18611`, with `rdma_write_responder --listen` on the
//! other side. Either may start first.

#[path = "support/rdma.rs"]
mod rdma;
mod support;

use std::process::ExitCode;

use clap::Parser;
use rdma::{Flags, TEXT, connect, map_memory, poll};
use support::Result;
use verbless_doca::{AccessFlags, Inventory, Mmap, WorkQ};

/// Writes a text to the memory of another machine by RDMA.
#[derive(Parser)]
#[command(version, disable_version_flag = true)]
struct Options {
    #[command(flatten)]
    flags: Flags,
}

fn main() -> ExitCode {
    support::exit(run(&Options::parse()))
}

fn run(Options { flags: Flags { common, address, meeting } }: &Options) -> Result {
    // The guide's preparation: a device, a context, a work queue, a map and an inventory.
    let dev = common.open()?;
    let rdma = address.start(&dev, AccessFlags::default())?;
    let mut workq = WorkQ::new(16)?;
    workq.add(&rdma)?;
    let local = map_memory(&dev, AccessFlags::LOCAL_READ_WRITE)?;
    let inventory = Inventory::builder(2).start()?;
    let mut channel = meeting.meet()?;
    connect(&rdma, &mut channel)?;
    let remote = Mmap::create_from_export(&channel.receive()?, &dev)?;

    // A source with the text, and its destination.
    let length = TEXT.len() as u64;
    let source = inventory.buf_by_data(&local, local.address(), length)?;
    local.write_at(0, TEXT)?;
    let destination = inventory.buf_by_data(&remote, remote.address(), length)?;

    workq.submit(rdma.write(Some(source), Some(destination)))?;
    let done = poll(&mut workq)?;
    common.say(50, &format!("{:?} is done", done.job_type));
    channel.send(b"written")
}
