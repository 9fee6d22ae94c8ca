//! The guide's sample of a write (section 6.1), the responder: it lets the peer write to its
//! memory, and submits nothing.
//!
//! `rdma_write_responder --listen 127.0.0.1:18611`, with `rdma_write_requester --connect` on the
//! other side. Either may start first.

#[path = "support/rdma.rs"]
mod rdma;
mod support;

use std::process::ExitCode;

use clap::Parser;
use rdma::{Flags, TEXT, connect, map_memory};
use support::Result;
use verbless_doca::AccessFlags;

/// Lets another machine write to this one's memory by RDMA.
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
    let dev = common.open()?;
    let rdma = address.start(&dev, AccessFlags::RDMA_WRITE)?;
    let map = map_memory(&dev, AccessFlags::LOCAL_READ_WRITE | AccessFlags::RDMA_WRITE)?;
    let mut channel = meeting.meet()?;
    connect(&rdma, &mut channel)?;
    channel.send(map.export_rdma(&dev)?.as_bytes())?;
    // A write makes no event on this side: the other side reports its completion.
    if channel.receive()? != b"written" {
        return Err("the other side sent another message than `written`".into());
    }
    let mut bytes = vec![0; TEXT.len()];
    map.read_at(0, &mut bytes)?;
    if bytes != TEXT {
        return Err(format!("the memory has {bytes:?}").into());
    }
    common.say(50, &String::from_utf8_lossy(&bytes[..bytes.len() - 1]));
    Ok(())
}
