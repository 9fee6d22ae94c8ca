//! RDMA (`doca_rdma.h`): messages to a peer, and access to its memory.
//!
//! An [`Rdma`] is one end of a reliable connection. Each side exports a descriptor, sends it to the
//! other side by any means, and connects with the one that it received; then the program can submit
//! jobs of eight types.
//!
//! ```
//! # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doc.rs"));
//! # use verbless_doca::{Event, WorkQ};
//! use verbless_doca::rdma::Rdma;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let [dev, far] = doc::devs();
//! # let (message, room) = (doc::data(&dev, b"hello"), doc::room(&dev));
//! # let peer = Rdma::builder(&far).start()?;
//! # let mut peers = WorkQ::new(16)?;
//! # peers.add(&peer)?;
//! # peers.submit(peer.receive(Some(doc::room(&far))))?;
//! # let exchange = |ours: &[u8]| -> verbless_doca::Result<Vec<u8>> {
//! #     let theirs = peer.export()?.as_bytes().to_vec();
//! #     peer.connect(ours)?;
//! #     Ok(theirs)
//! # };
//! let rdma = Rdma::builder(&dev).start()?;
//! let mut workq = WorkQ::new(16)?;
//! workq.add(&rdma)?;
//! workq.submit(rdma.receive(Some(room)).user_data(1))?;
//! let theirs = exchange(rdma.export()?.as_bytes())?; // by a connection of the program's
//! rdma.connect(&theirs)?;
//! # peers.submit(peer.send(Some(doc::data(&far, b"hello yourself"))))?;
//! workq.submit(rdma.send(Some(message)).user_data(2))?;
//! for event in workq.drain() {
//!     let Event::Rdma(done) = event? else { panic!("no other jobs") };
//!     println!("{}: {:?}, {:?}", done.user_data.0, done.job_type, done.opcode);
//! }
//! # Ok(())
//! # }
//! ```
//!
//! | job | local buffer | remote buffer |
//! |---|---|---|
//! | [`receive`](Rdma::receive) | destination: from the start of its data to its end | |
//! | [`send`](Rdma::send), [`send_imm`](Rdma::send_imm) | source: its data | |
//! | [`write`](Rdma::write), [`write_imm`](Rdma::write_imm) | source: its data | destination |
//! | [`read`](Rdma::read) | destination: its data | source |
//! | [`compare_and_swap`](Rdma::compare_and_swap) | result: its data, 8 bytes | destination |
//! | [`fetch_and_add`](Rdma::fetch_and_add) | result: its data, 8 bytes | destination |
//!
//! Jobs of two buffers take them in the order of the data flow, like DOCA's: the source, then the
//! destination; an atomic takes the word at the peer, then the buffer for its old value.
//!
//! For a remote buffer, only the start of the data matters, not its length. Buffers may be omitted
//! if no data moves, except those of atomics.
//!
//! Local buffers may be chains, except those of atomics. The device must be in their maps; maps of
//! written buffers need `LOCAL_READ_WRITE`. Remote buffers must be in maps imported from an
//! [`export_rdma`](crate::Mmap::export_rdma) of the peer, and must not be chained; the peer's
//! device checks their permissions when it gets the request.
//!
//! # States
//! | state | entered by | jobs |
//! |---|---|---|
//! | RESET | [`Rdma::builder`]; [`Rdma::stop`] | none |
//! | INIT | [`RdmaBuilder::start`] | receives |
//! | CONNECTED | [`Rdma::connect`] | all |
//! | ERROR | a job failed in flight; see below | none |
//!
//! [`WorkQ::abort`](crate::WorkQ::abort) leads to ERROR as well, and so does
//! [`WorkQ::remove`](crate::WorkQ::remove) of an exported or connected instance.
//!
//! A failed job ends the connection: all other jobs in flight come back with
//! [`ErrorKind::Shutdown`], each once, with its buffers. A job that is refused at its submission
//! changes nothing. To recover, [`stop`](Rdma::stop) the instance, [`start`](RdmaBuilder::start) it
//! again, and exchange new descriptors; its work queue and its properties stay. The other side must
//! do the same. Old descriptors are invalid.
//!
//! ```
//! # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doc.rs"));
//! # use verbless_doca::{Error, WorkQ};
//! use verbless_doca::Retrieve;
//! use verbless_doca::rdma::{Rdma, RdmaBuilder};
//!
//! /// Ends the connection: all that is in flight comes back, done or failed.
//! fn end(rdma: Rdma, workq: &mut WorkQ) -> Result<RdmaBuilder, Error> {
//!     let stopped = rdma.stop()?;
//!     while workq.in_flight() > 0 {
//!         match workq.retrieve_within(None) {
//!             Ok(_) | Err(Retrieve::IoFailed(_)) => {} // drops the event, and its buffers
//!             Err(why) => return Err(why.into()),
//!         }
//!     }
//!     Ok(stopped)
//! }
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let dev = doc::dev();
//! # let mut workq = WorkQ::new(16)?;
//! # let rdma = Rdma::builder(&dev).start()?;
//! # workq.add(&rdma)?;
//! # workq.submit(rdma.receive(None))?;
//! let rdma = end(rdma, &mut workq)?.start()?; // in INIT: to be exported and connected
//! # workq.submit(rdma.receive(None))?;
//! let stopped = end(rdma, &mut workq)?;
//! workq.remove(&stopped)?; // or remove it
//! # workq.destroy()?;
//! # Ok(())
//! # }
//! ```
//!
//! A side with only receives in flight does not notice the loss of the peer: no packet reports it.
//! Use the connection that carried the descriptors, or send now and then: an empty message needs no
//! buffer, and fails with [`ErrorKind::TimeOut`] if no answer comes.
//!
//! # Work queues
//! An instance takes one work queue. A work queue takes many instances, whose completions on one
//! device share one completion queue. Only an instance that is exported or connected before it is
//! added has its own, which the work queue takes over: for many connections, add each instance
//! before its export.

mod begin;
pub mod blob;
pub(crate) mod builder;
mod checks;
pub(crate) mod done;
pub(crate) mod engine;
mod instance;
mod job;
mod job_queue;
mod properties;

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use verbless_queue::Cq;

use crate::as_dev::AsDev;
use crate::buffer::Buf;
use crate::context::core::{Core, CtxId};
use crate::context::device_cq::DeviceCqLookup;
use crate::context::engine::EngineArgs;
use crate::context::engines::AnyEngine;
use crate::context::event::Tag;
use crate::context::job::Job;
use crate::context::job_type::JobType;
use crate::context::library::Context;
use crate::context::{job_sealed, sealed};
use crate::device::Dev;
use crate::error::{Refused, Result};

#[cfg(doc)]
use crate::error::ErrorKind;

pub use blob::ConnectionDescriptor;
pub use builder::RdmaBuilder;
pub use done::{RdmaDone, RdmaOpcode};
use engine::RdmaEngine;
use instance::Instance;
pub use instance::RdmaState;
use job::JobOperation;
pub use job::RdmaJob;
pub use properties::{Mtu, Properties, TransportType};

/// A started instance (`struct doca_rdma`). It takes one work queue, in either mode.
///
/// A drop (`doca_rdma_destroy`) ends its connection: the work queue returns the jobs in flight, and
/// then drops its part.
///
/// It is `Send` and `Sync`: another thread than the work queue's can make connections.
pub struct Rdma {
    core: Arc<Core>,
    instance: Owned,
    properties: Properties,
}

/// The instance of a handle. A drop of the handle ends the connection; otherwise receives in flight
/// would never end.
struct Owned(Arc<Instance>);

impl Drop for Owned {
    fn drop(&mut self) {
        self.0.abandon();
    }
}

impl Deref for Owned {
    type Target = Arc<Instance>;

    fn deref(&self) -> &Arc<Instance> {
        &self.0
    }
}

impl Rdma {
    /// An instance on `dev`, to be configured (`doca_rdma_create`).
    pub fn builder(dev: &Dev) -> RdmaBuilder {
        RdmaBuilder::new(dev)
    }

    /// The instance's device.
    pub fn dev(&self) -> &Dev {
        self.core.dev()
    }

    /// The instance's properties (`doca_rdma_get_<property>`).
    pub fn properties(&self) -> &Properties {
        &self.properties
    }

    /// The state of the instance, as far as it knows: it notices an error when a job fails.
    pub fn state(&self) -> RdmaState {
        self.instance.word().state()
    }

    /// Whether `dev` supports jobs of this type (`doca_rdma_job_get_supported`).
    ///
    /// # Errors
    /// [`ErrorKind::NotSupported`] if it does not, with the missing capability;
    /// [`ErrorKind::InvalidValue`] for a type outside of RDMA; the device cannot be opened.
    pub fn job_supported(dev: &impl AsDev, job_type: JobType) -> Result<()> {
        properties::job_supported(&dev.dev()?, job_type)
    }

    /// Whether instances can have this transport type.
    ///
    /// # Errors
    /// [`ErrorKind::NotSupported`] for [`TransportType::Dc`]; the device cannot be opened.
    pub fn transport_type_supported(dev: &impl AsDev, transport_type: TransportType) -> Result<()> {
        properties::transport_type_supported(&dev.dev()?, transport_type)
    }

    /// Maximum bytes of a message of the device (`max_message_size`). A job has at most 2 GiB in
    /// any case.
    ///
    /// # Errors
    /// The device cannot be opened.
    pub fn max_message_size(dev: &impl AsDev) -> Result<u64> {
        Ok(properties::max_message_size(&dev.dev()?))
    }

    /// The upper limit of [`Properties::send_queue_size`]; it is lower with longer chains.
    ///
    /// # Errors
    /// The device cannot be opened.
    pub fn max_send_queue_size(dev: &impl AsDev) -> Result<u32> {
        Ok(properties::max_send_queue_size(&dev.dev()?))
    }

    /// The upper limit of [`Properties::recv_queue_size`].
    ///
    /// # Errors
    /// The device cannot be opened.
    pub fn max_recv_queue_size(dev: &impl AsDev) -> Result<u32> {
        Ok(properties::max_recv_queue_size(&dev.dev()?))
    }

    /// The upper limit of [`Properties::send_buf_chain_len`].
    ///
    /// # Errors
    /// The device cannot be opened.
    pub fn max_send_buf_chain_len(dev: &impl AsDev) -> Result<u32> {
        Ok(properties::max_send_buf_chain_len(&dev.dev()?))
    }

    /// Maximum number of buffers in the chain of a read's destination, if
    /// [`Properties::send_buf_chain_len`] is not lower.
    ///
    /// # Errors
    /// The device cannot be opened.
    pub fn max_read_buf_chain_len(dev: &impl AsDev) -> Result<u32> {
        Ok(properties::max_read_buf_chain_len(&dev.dev()?))
    }

    /// The upper limit of [`Properties::recv_buf_chain_len`].
    ///
    /// # Errors
    /// The device cannot be opened.
    pub fn max_recv_buf_chain_len(dev: &impl AsDev) -> Result<u32> {
        Ok(properties::max_recv_buf_chain_len(&dev.dev()?))
    }

    /// Exports the data that a peer needs to connect to the instance (`doca_rdma_export`): the same
    /// until it is stopped.
    ///
    /// # Errors
    /// [`ErrorKind::BadState`] in ERROR; the device refuses a queue pair.
    pub fn export(&self) -> Result<ConnectionDescriptor> {
        self.instance.export()
    }

    /// Connects the instance to the one that exported `descriptor` (`doca_rdma_connect`), possibly
    /// itself. A peer receives nothing until it is connected too: connect both sides before either
    /// sends.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidValue`] for bytes that are not a descriptor, or are damaged, for a
    /// descriptor that was used before, and for another type of network;
    /// [`ErrorKind::UnsupportedVersion`] for another version; [`ErrorKind::BadState`] unless it is
    /// in INIT; no path to the peer; the device refuses.
    pub fn connect(&self, descriptor: impl AsRef<[u8]>) -> Result<()> {
        self.instance.connect(descriptor.as_ref())
    }

    /// A job: receives a message (`DOCA_RDMA_JOB_RECV`) into the bytes from the data's begin to the
    /// end of each buffer; they become its data. Without a buffer it receives messages without
    /// data, and writes with immediate.
    #[doc(alias = "doca_rdma_job_rcv")]
    #[inline(always)]
    pub fn receive(&self, destination: Option<Buf>) -> RdmaJob {
        self.job(JobOperation::Receive, destination, None)
    }

    /// A job: sends the data of a chain, or an empty message (`DOCA_RDMA_JOB_SEND`).
    #[inline(always)]
    pub fn send(&self, source: Option<Buf>) -> RdmaJob {
        self.job(JobOperation::Send, source, None)
    }

    /// A send with immediate data, a number that the peer's receive reports
    /// (`DOCA_RDMA_JOB_SEND_IMM`).
    #[inline(always)]
    pub fn send_imm(&self, source: Option<Buf>, immediate: u32) -> RdmaJob {
        self.job(JobOperation::SendImm(immediate), source, None)
    }

    /// A job: writes the data of a chain to the peer's memory (`DOCA_RDMA_JOB_WRITE`), from the
    /// begin of the data of `destination` on; the length of that data is ignored.
    #[inline(always)]
    pub fn write(&self, source: Option<Buf>, destination: Option<Buf>) -> RdmaJob {
        self.job(JobOperation::Write, source, destination)
    }

    /// A write with immediate data. It consumes a receive of the peer, which reports the number
    /// (`DOCA_RDMA_JOB_WRITE_IMM`).
    #[inline(always)]
    pub fn write_imm(
        &self,
        source: Option<Buf>,
        destination: Option<Buf>,
        immediate: u32,
    ) -> RdmaJob {
        self.job(JobOperation::WriteImm(immediate), source, destination)
    }

    /// A job: reads the peer's memory, from the begin of the data of `source` on, into the data of
    /// a chain (`DOCA_RDMA_JOB_READ`). The chain's data gives the length; that of `source` is
    /// ignored.
    #[inline(always)]
    pub fn read(&self, source: Option<Buf>, destination: Option<Buf>) -> RdmaJob {
        self.job(JobOperation::Read, destination, source)
    }

    /// A job: if the first 8 bytes of the data of `destination`, in the peer's memory, equal
    /// `compare`, they become `swap` (`DOCA_RDMA_JOB_ATOMIC_CMP_SWP`). `result` gets their old
    /// value. Both are in the host's byte order.
    #[inline(always)]
    pub fn compare_and_swap(
        &self,
        destination: Buf,
        result: Buf,
        compare: u64,
        swap: u64,
    ) -> RdmaJob {
        self.job(JobOperation::CompareSwap { compare, swap }, Some(result), Some(destination))
    }

    /// A job: adds to the first 8 bytes of the data of `destination`, in the peer's memory
    /// (`DOCA_RDMA_JOB_ATOMIC_FETCH_ADD`). `result` gets their old value.
    #[inline(always)]
    pub fn fetch_and_add(&self, destination: Buf, result: Buf, add: u64) -> RdmaJob {
        self.job(JobOperation::FetchAdd(add), Some(result), Some(destination))
    }

    #[inline(always)]
    fn job(&self, operation: JobOperation, local: Option<Buf>, remote: Option<Buf>) -> RdmaJob {
        RdmaJob::new(self.core.id(), operation, local, remote)
    }

    /// Stops the instance in any state, and ends its connection (`doca_ctx_stop`). The work queue
    /// returns the jobs in flight, each once: as done if they were, otherwise failed with
    /// [`ErrorKind::Shutdown`]. The instance can be restarted at once, and accepts jobs after those
    /// have been retrieved.
    ///
    /// # Errors
    /// The device refuses; the error returns the instance. [`ErrorKind::Shutdown`] if the device is
    /// removed, and a work queue has the instance: [`abort`](crate::WorkQ::abort) it there first.
    #[doc(alias = "doxa_ctx_stop")]
    pub fn stop(self) -> std::result::Result<RdmaBuilder, Refused<Self>> {
        match self.instance.stop() {
            Ok(()) => Ok(RdmaBuilder::stopped(self)),
            Err(error) => Err(Refused::new(error, self)),
        }
    }
}

impl sealed::Sealed for Rdma {
    fn core(&self) -> &Arc<Core> {
        &self.core
    }

    fn own_cq(&self) -> Result<Option<Cq>> {
        self.instance.own_cq()
    }

    fn engine(&self, args: &mut EngineArgs<'_>) -> Result<AnyEngine> {
        Ok(RdmaEngine::new(&self.instance, args)?.into())
    }
}

impl Context for Rdma {}

impl job_sealed::Sealed for RdmaJob {
    type Engine = RdmaEngine;

    #[inline(always)]
    fn context(&self) -> CtxId {
        self.ctx
    }

    fn job_type(&self) -> JobType {
        Self::job_type(self)
    }

    const KEEPS: bool = true;

    fn begin(
        self,
        tag: Tag,
        engine: &mut RdmaEngine,
        device_cq: DeviceCqLookup<'_>,
    ) -> std::result::Result<(), Refused<Self>> {
        if engine.begin_simple(self, tag) { Ok(()) } else { engine.begin_kept(device_cq) }
    }

    #[inline(always)]
    fn begin_simple(self, tag: Tag, engine: &mut RdmaEngine) -> bool {
        engine.begin_simple(self, tag)
    }

    fn begin_kept(
        _context: CtxId,
        engine: &mut RdmaEngine,
        device_cq: DeviceCqLookup<'_>,
    ) -> std::result::Result<(), Refused<Self>> {
        engine.begin_kept(device_cq)
    }
}

impl Job for RdmaJob {}

impl fmt::Debug for Rdma {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rdma")
            .field("dev", self.dev())
            .field("state", &self.state())
            .finish_non_exhaustive()
    }
}
