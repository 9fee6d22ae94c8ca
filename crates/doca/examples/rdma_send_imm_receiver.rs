//! The guide's sample of a send with immediate (section 6.2), the receiver: a work queue in polling
//! mode.
//!
//! `rdma_send_imm_receiver --listen 127.0.0.1:18612`, with `rdma_send_imm_sender --connect` on the
//! other side. Either may start first.

#[path = "support/rdma.rs"]
mod rdma;
mod support;

use std::process::ExitCode;

use clap::Parser;
use rdma::{BYTES, Flags, IMMEDIATE, TEXT, connect, map_memory, meet, poll};
use support::Result;
use verbless_doca::rdma::RdmaOpcode;
use verbless_doca::{AccessFlags, Inventory, WorkQ};

/// Receives a text and a number from another machine by RDMA.
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
    let rdma = address.start(&dev, AccessFlags::default())?;
    let map = map_memory(&dev, AccessFlags::LOCAL_READ_WRITE)?;
    let inventory = Inventory::builder(1).start()?;
    let mut workq = WorkQ::new(16)?;
    workq.add(&rdma)?;
    let mut channel = meeting.meet()?;
    connect(&rdma, &mut channel)?;

    // A receive uses the bytes from its data's begin to the buffer's end, whatever its data length.
    let destination = inventory.buf_by_data(&map, map.address(), BYTES as u64)?;
    workq.submit(rdma.receive(Some(destination)))?;
    meet(&mut channel)?;
    let done = poll(&mut workq)?;
    if done.opcode != Some(RdmaOpcode::RecvSendWithImm) || done.immediate != Some(IMMEDIATE) {
        return Err(format!("{:?} with {:?} has come", done.opcode, done.immediate).into());
    }
    let text = done.local.ok_or("the buffer has not come back")?.to_vec()?;
    if text != TEXT {
        return Err(format!("{text:?} has come").into());
    }
    let shown = String::from_utf8_lossy(&text[..text.len() - 1]).into_owned();
    common.say(50, &format!("{shown} {IMMEDIATE:#x}"));
    meet(&mut channel)
}
