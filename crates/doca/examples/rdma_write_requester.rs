//! The guide's sample of a write (section 6.1), the requester: a work queue in polling mode.
//!
//! `rdma_write_requester --connect 127.0.0.1:18611`, with `rdma_write_responder --listen` on the
//! other side. Either may start first.

#[path = "support/rdma.rs"]
mod rdma;
mod support;

use std::process::ExitCode;

use clap::Parser;
use rdma::{Address, BYTES, TEXT, connect};
use support::{Common, Meeting, Result};
use verbless_doca::{AccessFlags, Event, Inventory, Memory, Mmap, Retrieve, WorkQ};

/// Writes a text to the memory of another machine by RDMA.
#[derive(Parser)]
#[command(version, disable_version_flag = true)]
struct Options {
    #[command(flatten)]
    common: Common,
    #[command(flatten)]
    address: Address,
    #[command(flatten)]
    meeting: Meeting,
}

fn main() -> ExitCode {
    support::exit(run(&Options::parse()))
}

fn run(Options { common, address, meeting }: &Options) -> Result {
    // The guide's preparation: a device, a context, a work queue, a map and an inventory.
    let dev = common.open()?;
    let rdma = address.start(&dev, AccessFlags::default())?;
    let mut workq = WorkQ::new(16)?;
    workq.add(&rdma)?;
    let local = Mmap::builder()
        .memrange(Memory::allocate(BYTES)?)
        .permissions(AccessFlags::LOCAL_READ_WRITE)
        .add_dev(&dev)
        .start()?;
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
    let event = loop {
        match workq.progress_retrieve() {
            Err(Retrieve::Again) => std::hint::spin_loop(),
            other => break other?,
        }
    };
    let Event::Rdma(done) = event else { return Err("no job of RDMA is done".into()) };
    common.say(50, &format!("{:?} is done", done.job_type));
    channel.send(b"written")
}
