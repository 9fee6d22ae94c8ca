//! SHA (`doca_sha.h`): SHA-1, SHA-256 and SHA-512 of buffers, at once or in parts.
//!
//! The hardware's command for it is not public. So software computes the hashes, on the thread that
//! calls [`WorkQ::progress_retrieve`](crate::WorkQ::progress_retrieve), a step at a time; the
//! [capabilities](Sha::hardware_supported) report that. Everything else is as with a hardware
//! context.
//!
//! ```
//! # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doc.rs"));
//! # use verbless_doca::{Event, WorkQ};
//! use verbless_doca::sha::{Algorithm, Sha};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let dev = doc::dev();
//! # let (message, digest) = (doc::data(&dev, b"hashed"), doc::room(&dev));
//! let sha = Sha::builder(&dev).start()?;
//! let mut workq = WorkQ::new(16)?;
//! workq.add(&sha)?;
//! workq.submit(sha.hash(Algorithm::Sha256, message, digest).user_data(7))?;
//! let Some(Event::Sha(done)) = workq.retrieve_within(None)? else { panic!("no other jobs") };
//! assert_eq!(done.destination.unwrap().data_len(), 32);
//! # Ok(())
//! # }
//! ```

pub(crate) mod done;
mod function;
pub(crate) mod hasher;

use std::sync::Arc;

use crate::as_dev::AsDev;
use crate::buffer::Buf;
use crate::buffer::Link;
use crate::context::core::{Core, CtxId};
use crate::context::device_cq::DeviceCqLookup;
use crate::context::engine::EngineArgs;
use crate::context::engines::AnyEngine;
use crate::context::event::Tag;
use crate::context::job::Job;
use crate::context::job_sealed;
use crate::context::job_type::JobType;
use crate::context::library::Context;
use crate::context::sealed;
use crate::device::Dev;
use crate::error::{Error, ErrorKind, Refused, Result};
use crate::types::UserData;

pub use done::HashDone;
use function::HashState;
pub use function::{Algorithm, Partial};
use hasher::{HashRef, Hasher, RunningHash};

/// A started SHA context. It takes any number of work queues, in either mode.
#[derive(Debug)]
pub struct Sha {
    core: Arc<Core>,
}

/// A SHA context that is being configured.
#[derive(Clone, Debug)]
pub struct ShaBuilder {
    dev: Dev,
}

impl ShaBuilder {
    /// The device.
    pub const fn dev(&self) -> &Dev {
        &self.dev
    }

    /// Starts the context.
    ///
    /// # Errors
    /// None at present.
    pub fn start(self) -> Result<Sha> {
        Ok(Sha { core: Arc::new(Core::new(&self.dev, true, u32::MAX)) })
    }
}

impl Sha {
    /// A context on `dev`, to be configured.
    #[must_use = "a context exists when it is started"]
    pub fn builder(dev: &Dev) -> ShaBuilder {
        ShaBuilder { dev: dev.clone() }
    }

    /// The context's device.
    pub fn dev(&self) -> &Dev {
        self.core.dev()
    }

    /// Whether `dev` supports jobs of this function (`doca_sha_job_get_supported`): all do, by
    /// software.
    ///
    /// # Errors
    /// None at present.
    pub fn job_supported(dev: &impl AsDev, algorithm: Algorithm) -> Result<()> {
        let _ = (dev, algorithm);
        Ok(())
    }

    /// Whether hardware computes the hashes (`doca_sha_get_hardware_supported`).
    ///
    /// # Errors
    /// [`ErrorKind::NotSupported`]: software computes them.
    pub fn hardware_supported(dev: &impl AsDev) -> Result<()> {
        let dev = dev.dev()?;
        let text = format!("software hashes for {dev:?}: the hardware's command is not public");
        Err(Error::new(ErrorKind::NotSupported, text))
    }

    /// Maximum number of buffers in a source's chain (`doca_sha_get_max_list_buf_num_elem`): any
    /// number.
    pub const fn max_list_buf_num_elem() -> u32 {
        u32::MAX
    }

    /// Maximum bytes of a source (`doca_sha_get_max_src_buffer_size`).
    pub const fn max_source_len() -> u64 {
        1 << 40
    }

    /// A job: the hash of the datarooms of `source`, appended to `destination`.
    pub fn hash(&self, algorithm: Algorithm, source: Buf, destination: Buf) -> HashJob {
        HashJob {
            ctx: self.core.id(),
            user_data: UserData::default(),
            part: None,
            algorithm,
            source,
            destination: Some(destination),
        }
    }

    /// Begins a hash in parts (`doca_sha_partial_session_create`).
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doc.rs"));
    /// # use verbless_doca::{Event, WorkQ, sha::{Algorithm, Sha}};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dev = doc::dev();
    /// # let (first, last) = (doc::data(&dev, &[1; 64]), doc::data(&dev, b"the rest"));
    /// # let digest = doc::room(&dev);
    /// # let sha = Sha::builder(&dev).start()?;
    /// # let mut workq = WorkQ::new(4)?;
    /// # workq.add(&sha)?;
    /// let session = sha.partial(Algorithm::Sha256);
    /// workq.submit(sha.update(session, first))?;
    /// let Some(Event::Sha(part)) = workq.retrieve_within(None)? else { panic!("no other jobs") };
    /// let session = part.session.ok_or("a part gives its session back")?;
    /// workq.submit(sha.finish(session, last, digest))?;
    /// let Some(Event::Sha(whole)) = workq.retrieve_within(None)? else { panic!("no other jobs") };
    /// assert_eq!(whole.destination.ok_or("the last part has the digest")?.data_len(), 32);
    /// # Ok(())
    /// # }
    /// ```
    pub fn partial(&self, algorithm: Algorithm) -> Partial {
        Partial { algorithm, state: Box::new(HashState::new(algorithm)) }
    }

    /// A job: the next part of a hash. Its length must be a multiple of [`Algorithm::block_len`].
    /// The event returns the session.
    pub fn update(&self, session: Partial, source: Buf) -> HashJob {
        HashJob {
            ctx: self.core.id(),
            user_data: UserData::default(),
            algorithm: session.algorithm,
            part: Some(session),
            source,
            destination: None,
        }
    }

    /// A job: the last part of a hash, possibly empty; the digest is appended to `destination`. The
    /// event returns the session reset, for the same function.
    pub fn finish(&self, session: Partial, source: Buf, destination: Buf) -> HashJob {
        HashJob { destination: Some(destination), ..self.update(session, source) }
    }

    /// Ends the context.
    ///
    /// # Errors
    /// [`ErrorKind::InUse`] while it is on a work queue.
    pub fn stop(self) -> std::result::Result<ShaBuilder, Refused<Self>> {
        match self.core.may_stop() {
            Ok(()) => Ok(ShaBuilder { dev: self.core.dev().clone() }),
            Err(error) => Err(Refused::new(error, self)),
        }
    }
}

impl sealed::Sealed for Sha {
    fn core(&self) -> &Arc<Core> {
        &self.core
    }

    fn engine(&self, args: &mut EngineArgs<'_>) -> Result<AnyEngine> {
        Ok(Hasher::new(args.depth).into())
    }
}

impl Context for Sha {}

/// A SHA job (`struct doca_sha_job`).
#[derive(Debug)]
#[must_use = "a job runs only if it is submitted"]
pub struct HashJob {
    ctx: CtxId,
    user_data: UserData,
    algorithm: Algorithm,
    part: Option<Partial>,
    source: Buf,
    destination: Option<Buf>,
}

impl HashJob {
    /// Sets the user data that the job's event returns.
    pub fn user_data(self, user_data: impl Into<UserData>) -> Self {
        Self { user_data: user_data.into(), ..self }
    }

    /// Returns the job's buffers: source, destination.
    pub fn into_bufs(self) -> (Buf, Option<Buf>) {
        (self.source, self.destination)
    }

    /// Checks that the job is valid for a context on `dev`.
    fn check(&self, dev: &Dev) -> Result<()> {
        let refuse = |kind, text: &'static str| Err(Error::plain(kind, text));
        let sole = self.source.is_sole() && self.destination.as_ref().is_none_or(Buf::is_sole);
        if !sole {
            let text = "a buffer with several references can be in no job: drop the others first";
            return refuse(ErrorKind::InvalidValue, text);
        }
        let here = |link: Link<'_>| link.chunk().memory().is_some();
        if !self.source.chain().all(here)
            || self.destination.as_ref().is_some_and(|it| !it.chain().all(here))
        {
            let text = "software hashes memory of this process only: copy it here by DMA first";
            return refuse(ErrorKind::NotSupported, text);
        }
        let on_dev = |link: Link<'_>| link.chunk().key(dev).is_some();
        if !self.source.chain().all(on_dev)
            || self.destination.as_ref().is_some_and(|it| !it.chain().all(on_dev))
        {
            let text = "the map of a buffer does not have the context's device: add it to the map";
            return refuse(ErrorKind::NotPermitted, text);
        }
        if self.source.chain_data_len() > Sha::max_source_len() {
            let text = "the source has more data than a job hashes: see max_source_len";
            return refuse(ErrorKind::InvalidValue, text);
        }
        let block = self.algorithm.block_len() as u64;
        match &self.destination {
            None if !self.source.chain_data_len().is_multiple_of(block) => {
                let text = "a part of a hash that is not the last must be whole blocks: 64 bytes, \
                            128 of SHA-512";
                refuse(ErrorKind::InvalidValue, text)
            }
            None => Ok(()),
            Some(into) if !into.permissions().is_local_write() => {
                let text = "the map of the destination has no permission LOCAL_READ_WRITE";
                refuse(ErrorKind::NotPermitted, text)
            }
            Some(into) if into.tail_len() < self.algorithm.digest_len() as u64 => {
                let text = "the tailroom of the destination's first buffer is shorter than the \
                            digest, which is not parted";
                refuse(ErrorKind::InvalidValue, text)
            }
            Some(_) => Ok(()),
        }
    }
}

impl job_sealed::Sealed for HashJob {
    type Engine = Hasher;

    fn context(&self) -> CtxId {
        self.ctx
    }

    fn job_type(&self) -> JobType {
        if self.part.is_some() { JobType::ShaPartial } else { JobType::ShaHash }
    }

    fn begin(
        mut self,
        tag: Tag,
        engine: &mut Hasher,
        device_cq: DeviceCqLookup<'_>,
    ) -> std::result::Result<(), Refused<Self>> {
        if engine.is_aborted() {
            let text = "the context was aborted on this work queue: remove it";
            return Err(Refused::new(Error::plain(ErrorKind::Shutdown, text), self));
        }
        if let Err(error) = self.check(&device_cq.get().dev) {
            return Err(Refused::new(error, self));
        }
        let kind = self.job_type();
        let part = self.part.take();
        let (algorithm, state) = match part {
            Some(part) => (part.algorithm, HashRef::Part(part.state)),
            None => (self.algorithm, HashRef::Whole(HashState::new(self.algorithm))),
        };
        let HashJob { user_data, source, destination, .. } = self;
        engine.push(RunningHash {
            tag,
            kind,
            user_data,
            algorithm,
            state,
            source,
            destination,
            done: 0,
        });
        Ok(())
    }
}

impl Job for HashJob {}
