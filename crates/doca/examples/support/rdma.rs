//! What the samples of RDMA share: an instance, and how two of them connect.
#![allow(dead_code, reason = "each sample uses its part")]

use verbless_doca::rdma::Rdma;
use verbless_doca::{AccessFlags, Dev};

use super::support::{Channel, Result};

/// Bytes of the memory of a sample.
pub(crate) const BYTES: usize = 4096;
/// What the guide's samples write and send, with the zero at its end.
pub(crate) const TEXT: &[u8] = b"Hello World!\0";
/// The guide's immediate.
pub(crate) const IMMEDIATE: u32 = 0xdead_beef;

/// The flags of samples that connect.
#[derive(clap::Args, Debug)]
pub(crate) struct Address {
    /// Index of the GID in the port's table; if not given, the one that routers forward best.
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

/// Gives the other side our descriptor, and connects by its own.
pub(crate) fn connect(rdma: &Rdma, channel: &mut Channel) -> Result {
    channel.send(rdma.export()?.as_bytes())?;
    Ok(rdma.connect(channel.receive()?)?)
}

/// Both sides are as far as this.
pub(crate) fn meet(channel: &mut Channel) -> Result {
    channel.send(b"here")?;
    match &channel.receive()?[..] {
        b"here" => Ok(()),
        other => Err(format!("the other side says {other:?}").into()),
    }
}
