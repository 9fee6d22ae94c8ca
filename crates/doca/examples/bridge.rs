//! DOCA on a verbs context and a protection domain that another library has made: the RDMA bridge.
//!
//! The parent process leaves a duplicate of `cmd_fd` of rdma-core's `struct ibv_context` open and
//! passes its number; `bridge.py` beside this file does both. A WRITE by verbless-queue and a copy
//! by DOCA then run in the protection domain of rdma-core.
#![allow(unsafe_code, reason = "rdma-core gives its descriptor as a number")]

use std::os::fd::{BorrowedFd, RawFd};

use clap::Parser;
use verbless_command::KeyAccess;
use verbless_doca::dma::Dma;
use verbless_doca::{AccessFlags, Dev, Event, Inventory, Memory, Mmap, WorkQ};
use verbless_queue::wr::Write;
use verbless_queue::{ConnectOptions, CqConfig, QpConfig, Sge};

type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error>>;

#[derive(Parser)]
struct Options {
    /// The descriptor of the context.
    #[arg(long)]
    fd: RawFd,
    /// Handle and number of a protection domain of the context, to be shared.
    #[arg(long, value_name = "HANDLE:PDN", value_parser = pair)]
    pd: Option<(u32, u32)>,
}

fn pair(text: &str) -> std::result::Result<(u32, u32), String> {
    let numbers = text.split_once(':').and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)));
    numbers.ok_or_else(|| format!("{text:?} is not HANDLE:PDN"))
}

const TEXT: &[u8] = b"through the bridge";

fn main() -> Result {
    let Options { fd, pd } = Options::parse();
    // SAFETY: the parent left it open for this program, and nothing here closes it.
    let context = unsafe { BorrowedFd::borrow_raw(fd) };
    let dev = Dev::open_from_context(context.try_clone_to_owned()?, pd)?;
    let number = dev.domain().pd().pdn();
    println!("{} with protection domain {number}", dev.info().ib_device_name());

    let map = Mmap::builder()
        .memrange(Memory::allocate(4096)?)
        .permissions(AccessFlags::LOCAL_READ_WRITE)
        .add_dev(&dev)
        .start()?;
    map.write_at(0, TEXT)?;
    let length = TEXT.len() as u64;
    let inventory = Inventory::builder(2).start()?;
    let source = inventory.buf_by_data(&map, map.address(), length)?;
    let destination = inventory.buf_by_addr(&map, map.address() + 1024, length)?;
    let local = Sge::new(source.data(), length as u32, source.mkey(&dev)?);

    // A queue pair of verbless-queue, in the same protection domain, uses the buffer's key.
    let domain = dev.domain();
    let region = domain.region(4096, KeyAccess::ALL)?;
    let mut cq = domain.completion_queue(&CqConfig::new(16))?;
    let mut qp = domain.queue_pair(&QpConfig::new(4, 4), &cq, &cq)?;
    domain.connect_loopback(&mut qp, &ConnectOptions::default())?;
    qp.post(&Write::new(local, region.remote(0, TEXT.len())?).signaled(), 0)?;
    loop {
        if let Some(done) = qp.poll(&mut cq) {
            done?;
            break;
        }
    }
    let mut bytes = vec![0; TEXT.len()];
    region.read_at(0, &mut bytes)?;
    println!("by a queue pair: {}", if bytes == TEXT { "equal" } else { "not equal" });

    let dma = Dma::builder(&dev).start()?;
    let mut workq = WorkQ::new(1)?;
    workq.add(&dma)?;
    workq.submit(dma.memcpy(source, destination))?;
    let Some(Event::Dma(done)) = workq.retrieve_within(None)? else {
        return Err("no copy".into());
    };
    let equal = done.destination.to_vec()? == TEXT;
    println!("by a DMA job: {}", if equal { "equal" } else { "not equal" });
    if equal && bytes == TEXT { Ok(()) } else { Err("other bytes".into()) }
}
