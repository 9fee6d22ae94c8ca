//! Shared code of the RDMA samples: an instance, and how two of them connect.
#![allow(dead_code, reason = "each sample uses its part")]

use verbless_doca::rdma::{Rdma, RdmaDone};
use verbless_doca::{AccessFlags, Dev, Event, Memory, Mmap, Retrieve, WorkQ};

use super::support::{Channel, Common, Meeting, Result};

/// Bytes of the memory of a sample.
pub(crate) const BYTES: usize = 4096;
/// The text of the guide's samples, with the zero at its end.
pub(crate) const TEXT: &[u8] = b"Hello World!\0";
/// The guide's immediate.
pub(crate) const IMMEDIATE: u32 = 0xdead_beef;

/// The flags of an RDMA sample.
#[derive(clap::Args, Debug)]
pub(crate) struct Flags {
    #[command(flatten)]
    pub(crate) common: Common,
    #[command(flatten)]
    pub(crate) address: Address,
    #[command(flatten)]
    pub(crate) meeting: Meeting,
}

/// The flags of an instance.
#[derive(clap::Args, Debug)]
pub(crate) struct Address {
    /// Index of the GID in the port's table [default: the first routable RoCE v2 GID, else the
    /// first RoCE v2 GID, else the first GID].
    #[arg(short, long, value_name = "INDEX")]
    gid_index: Option<u8>,
}

impl Address {
    /// A started instance.
    pub(crate) fn start(&self, dev: &Dev, permissions: AccessFlags) -> Result<Rdma> {
        let builder = Rdma::builder(dev).permissions(permissions);
        let builder = match self.gid_index {
            Some(index) => builder.gid_index(index),
            None => builder,
        };
        Ok(builder.start().map_err(|refused| refused.error)?)
    }
}

/// A started map of [`BYTES`].
pub(crate) fn map_memory(dev: &Dev, permissions: AccessFlags) -> Result<Mmap> {
    let memory = Memory::allocate(BYTES)?;
    Ok(Mmap::builder().memrange(memory).permissions(permissions).add_dev(dev).start()?)
}

/// Polls until a job of RDMA is done.
pub(crate) fn poll(workq: &mut WorkQ) -> Result<RdmaDone> {
    let event = loop {
        match workq.progress_retrieve() {
            Err(Retrieve::Again) => std::hint::spin_loop(),
            other => break other?,
        }
    };
    match event {
        Event::Rdma(done) => Ok(done),
        other => {
            Err(format!("a job of type {:?} is done, not one of RDMA", other.job_type()).into())
        }
    }
}

/// Sends our descriptor to the other side, and connects by the other side's descriptor.
pub(crate) fn connect(rdma: &Rdma, channel: &mut Channel) -> Result {
    channel.send(rdma.export()?.as_bytes())?;
    Ok(rdma.connect(channel.receive()?)?)
}

/// Waits until both sides have reached this point.
pub(crate) fn meet(channel: &mut Channel) -> Result {
    channel.send(b"here")?;
    match &channel.receive()?[..] {
        b"here" => Ok(()),
        other => Err(format!("the other side says {other:?}").into()),
    }
}
