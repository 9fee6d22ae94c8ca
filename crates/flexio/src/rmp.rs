//! Receive memory pools: receives shared by several queue pairs.
//!
//! ```
//! # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/documented.rs"));
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let process = process()?;
//! use verbless_flexio::{DpaCq, DpaCqConfig, CqElement, DpaQp, DpaQpConfig, Rmp, RmpConfig};
//!
//! let pool = Rmp::create(&process, &RmpConfig::new(3))?;
//! let cq = DpaCq::create(&process, &DpaCqConfig::new(4, CqElement::NonDpa { vector: 0 }))?;
//! let config = DpaQpConfig { receive: (&pool).into(), ..DpaQpConfig::rc(&cq, &cq, 2) };
//! let (first, second) = (DpaQp::create(&process, &config)?, DpaQp::create(&process, &config)?);
//! # drop(config);
//! assert!(pool.clone().destroy().is_err(), "its queue pairs keep it");
//! # drop((first, second));
//! # Ok(())
//! # }
//! ```

use std::sync::Arc;

use verbless_command::{Device, RmpAttr, RmpObject, Rmpn};

use crate::error::Error;
use crate::holders::{Holding, in_use, key};
use crate::ids::RmpNumber;
use crate::process::Process;
use crate::qp::QpReceive;
use crate::wq::{WqConfig, WqMemory, WqType};

/// log2 of the minimum bytes of a WQE: a link and a data segment.
const LOG_MIN_STRIDE: u8 = 5;

/// Configuration of a receive memory pool (`flexio_wq_attr` with the `wq_type` of
/// `flexio_wq_rq_attr`).
#[derive(Debug, Clone)]
pub struct RmpConfig {
    /// Parameters of every work queue.
    pub wq: WqConfig,
    /// The order of the WQEs.
    pub wq_type: WqType,
}

impl RmpConfig {
    /// 2^`log_wq_depth` WQEs in the heap, each of a link and a data segment, as a list.
    pub const fn new(log_wq_depth: u8) -> Self {
        Self { wq: WqConfig::new(log_wq_depth), wq_type: WqType::LinkedList }
    }
}

/// A receive memory pool (`flexio_rmp`). Clones are the same pool; its queue pairs keep it alive.
///
/// Each of its WQEs begins with the index of the next one
/// (`verbless_flexio_dev::Segment::shared_receive`), and the data segments follow. In a ring
/// ([`WqType::Cyclic`]) that segment is present too, but unused.
#[derive(Debug, Clone)]
pub struct Rmp {
    object: Arc<RmpObject>,
    process: Process,
    memory: Arc<WqMemory>,
    _holding: Arc<Holding>,
}

impl Rmp {
    /// Creates a pool (`flexio_rmp_create`).
    ///
    /// # Errors
    /// The process has ended; WQEs of less than 32 or more than 512 bytes; the device has no pools;
    /// the heap has no room. [`Error::CopyTimeout`]: nothing was created.
    pub fn create(process: &Process, config: &RmpConfig) -> Result<Self, Error> {
        Self::make(process, process.device(), config)
    }

    /// Creates a pool on another device context than the process's (`flexio_rmp_create` with its
    /// `ibv_ctx`). Ring and record must be in host memory registered there; protection domain and
    /// UAR ([`Uar::extend`](crate::Uar::extend)) must be of that context too.
    ///
    /// # Errors
    /// `device` is the process's own context; a part of the configuration belongs to another one;
    /// as for [`Rmp::create`].
    pub fn create_cross_dev(
        process: &Process,
        device: &Device,
        config: &RmpConfig,
    ) -> Result<Self, Error> {
        config.wq.check_cross_device(process, device)?;
        Self::make(process, device, config)
    }

    fn make(process: &Process, device: &Device, config: &RmpConfig) -> Result<Self, Error> {
        process.alive()?;
        let RmpConfig { wq, wq_type } = config;
        let log_stride = wq.log_wq_stride.unwrap_or(LOG_MIN_STRIDE);
        let memory = wq.allocate(process, device, log_stride)?;
        let object = device.create_rmp(RmpAttr {
            pd: wq.pd(process).clone(),
            ring: memory.ring.for_command(),
            record: memory.record.for_command(),
            log_wqes: wq.log_wq_depth,
            log_stride,
            cyclic: *wq_type == WqType::Cyclic,
        });
        let object = object.map_err(|error| process.fatal_or(error))?;
        crate::log::debug!("made RMP {}", object.rmpn().0);
        let name = format!("RMP {}", object.rmpn().0);
        let _holding = Arc::new(Holding::new(
            name,
            [process.key()].into_iter().chain(memory.buffers()).collect(),
        ));
        let (object, memory) = (Arc::new(object), Arc::new(memory));
        Ok(Self { object, process: process.clone(), memory, _holding })
    }

    /// The number of the pool (`flexio_rmp_get_wq_num`).
    pub fn number(&self) -> RmpNumber {
        RmpNumber(self.object.rmpn().0)
    }

    /// The number of the pool, as a type of `verbless-command`.
    pub fn rmpn(&self) -> Rmpn {
        self.object.rmpn()
    }

    /// The [`RmpObject`] of `verbless-command`.
    pub const fn object(&self) -> &Arc<RmpObject> {
        &self.object
    }

    /// Address of the WQEs for a program.
    pub fn ring_address(&self) -> u64 {
        self.memory.ring.address()
    }

    /// Address of the doorbell record; its first word counts posted WQEs.
    pub fn record_address(&self) -> u64 {
        self.memory.record.address()
    }

    /// The process.
    pub const fn process(&self) -> &Process {
        &self.process
    }

    /// Destroys the pool (`flexio_rmp_destroy`). The drop of the last handle destroys it too, and
    /// ignores the error.
    ///
    /// # Errors
    /// A queue pair or a clone keeps it alive; the device refuses.
    pub fn destroy(self) -> Result<(), Error> {
        let (name, key) = (format!("RMP {}", self.number()), key(&self.object));
        let in_use = || in_use(&name, key);
        Ok(Arc::into_inner(self.object).ok_or_else(in_use)?.destroy()?)
    }
}

impl From<&Rmp> for QpReceive {
    fn from(pool: &Rmp) -> Self {
        Self::Rmp(pool.object.clone())
    }
}
