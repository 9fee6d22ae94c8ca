//! The guide's sample of a send with immediate (section 6.2), the sender: a work queue in
//! event-driven mode.
//!
//! `rdma_send_imm_sender --connect 127.0.0.1:18612`, with `rdma_send_imm_receiver --listen` on the
//! other side. Either may start first.

#[path = "support/rdma.rs"]
mod rdma;
mod support;

use std::process::ExitCode;

use clap::Parser;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use rdma::{Flags, IMMEDIATE, TEXT, connect, map_memory, meet};
use support::Result;
use verbless_doca::{AccessFlags, Event, Inventory, Retrieve, WorkQ};

/// Sends a text and a number to another machine by RDMA.
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

    // Event-driven mode is set before a context is added; epoll waits for its event handle.
    let mut workq = WorkQ::new(16)?;
    workq.set_event_driven(true)?;
    let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
    epoll.add(workq.event_handle(), EpollEvent::new(EpollFlags::EPOLLIN, 0))?;
    workq.add(&rdma)?;
    let mut channel = meeting.meet()?;
    connect(&rdma, &mut channel)?;

    let source = inventory.buf_by_data(&map, map.address(), TEXT.len() as u64)?;
    map.write_at(0, TEXT)?;
    // Returns after the receiver has submitted its receive.
    meet(&mut channel)?;
    workq.submit(rdma.send_imm(Some(source), IMMEDIATE))?;
    let event = loop {
        match workq.progress_retrieve() {
            Err(Retrieve::Again) => {
                workq.arm()?;
                epoll.wait(&mut [EpollEvent::empty()], EpollTimeout::NONE)?;
                workq.clear()?;
            }
            other => break other?,
        }
    };
    let Event::Rdma(done) = event else { return Err("the event is not an RDMA job's".into()) };
    common.say(50, &format!("{:?} is done", done.job_type));
    meet(&mut channel)
}
