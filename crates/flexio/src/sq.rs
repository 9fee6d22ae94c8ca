//! Raw Ethernet send queues for programs on the DPA.
//!
//! ```
//! # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/documented.rs"));
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let process = process_on_ethernet()?;
//! use verbless_flexio::{CqElement, DpaCq, DpaCqConfig, DpaSq, DpaSqConfig};
//! use verbless_flexio::{SqTis, TransportDomain};
//!
//! let cq = DpaCq::create(&process, &DpaCqConfig::new(4, CqElement::NonDpa { vector: 0 }))?;
//! let domain = TransportDomain::create(process.device())?;
//! let tis = SqTis::create(process.device(), &domain)?;
//! let sq = DpaSq::create(&process, &cq, &DpaSqConfig { tis: Some(tis), ..DpaSqConfig::new(4) })?;
//! println!("SQ {}, whose WQEs are at {:#x}", sq.number(), sq.ring_address());
//! sq.destroy()?;
//! # Ok(())
//! # }
//! ```

use std::sync::Arc;

use verbless_command::{Device, Qpn, SqAttr, SqObject};
use verbless_flexio_dev::segment::WQEBB;
use verbless_queue::Domain;

use crate::cq::CqHandle;
use crate::error::Error;
use crate::holders::{Holding, key};
use crate::ids::SqNumber;
use crate::process::Process;
use crate::transport::{SqTis, TransportDomain};
use crate::wq::{WqConfig, WqMemory, WqTsFormat};

/// Configuration of a send queue (`flexio_wq_attr` with `flexio_wq_sq_attr`).
#[derive(Debug, Clone)]
pub struct DpaSqConfig {
    /// Parameters of every work queue.
    pub wq: WqConfig,
    /// A WQE may hold several frames (`allow_multi_pkt_send_wqe`), if the device supports that
    /// (capability `enhanced_multi_pkt_send_wqe`).
    pub allow_multi_pkt_send_wqe: bool,
    /// The TIS for its frames; `None`: the queue creates one, in its own transport domain.
    pub tis: Option<SqTis>,
    /// Further attributes.
    pub ext: SqExtAttr,
}

impl DpaSqConfig {
    /// 2^`log_wq_depth` WQEBBs in the heap.
    pub fn new(log_wq_depth: u8) -> Self {
        Self {
            wq: WqConfig::new(log_wq_depth),
            allow_multi_pkt_send_wqe: false,
            tis: None,
            ext: SqExtAttr::default(),
        }
    }
}

/// Further attributes of a send queue (`flexio_wq_sq_ext_attr`). The public headers declare this
/// struct without fields, so verbless chose the fields. It has no C layout and no version field.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SqExtAttr {
    /// The clock of the CQE timestamps.
    pub ts_format: WqTsFormat,
    /// Whether posted requests complete as flushed in the error state.
    pub flush_in_error: bool,
}

/// A frame send queue (`flexio_sq`), in RDY.
#[derive(Debug)]
pub struct DpaSq {
    object: SqObject,
    process: Process,
    memory: WqMemory,
    inline: u32,
    _holding: Holding,
}

impl DpaSq {
    /// Creates a send queue that completes in `cq`, a CQ of the process or the host's
    /// (`flexio_sq_create`).
    ///
    /// # Errors
    /// - The process has ended.
    /// - The TIS belongs to another device context.
    /// - The device has no SQ objects or TISs (capabilities `log_max_sq`, `log_max_tis`), or its
    ///   port is InfiniBand.
    /// - The device lacks the clock (`sq_ts_format`), or multi-packet WQEs
    ///   (`enhanced_multi_pkt_send_wqe`).
    /// - The heap is full.
    /// - [`Error::CopyTimeout`]: nothing was created.
    pub fn create(
        process: &Process,
        cq: impl Into<CqHandle>,
        config: &DpaSqConfig,
    ) -> Result<Self, Error> {
        Self::make(process, process.device(), process.domain(), cq.into(), config)
    }

    /// Creates a send queue on another device context than the process's
    /// (`flexio_sq_create_cross_dev`). Ring and record must be in host memory registered there,
    /// which the program accesses through a window; protection domain, UAR
    /// ([`Uar::extend`](crate::Uar::extend)) and CQ must be of that context too. The program
    /// selects the extended UAR on its outbox and rings there. The host rings the UAR page.
    ///
    /// # Errors
    /// `device` is the process's own context; a part of the configuration belongs to another one;
    /// as for [`DpaSq::create`].
    pub fn create_cross_dev(
        process: &Process,
        device: &Device,
        cq: impl Into<CqHandle>,
        config: &DpaSqConfig,
    ) -> Result<Self, Error> {
        config.wq.check_cross_device(process, device)?;
        Self::make(process, device, &Domain::new(device)?, cq.into(), config)
    }

    fn make(
        process: &Process,
        device: &Device,
        domain: &Domain,
        cq: CqHandle,
        config: &DpaSqConfig,
    ) -> Result<Self, Error> {
        process.alive()?;
        let tis = match &config.tis {
            Some(tis) => {
                tis.on(device)?;
                tis.clone()
            }
            None => SqTis::create(device, &TransportDomain::create(device)?)?,
        };
        let (min_inline, inline) = domain.min_inline_header()?;
        let memory = config.wq.allocate(process, device, WQEBB.ilog2() as u8)?;
        let mut holds = vec![process.key(), key(&cq.0), key(tis.object())];
        holds.extend(memory.buffers());
        let object = device.create_sq(SqAttr {
            pd: config.wq.pd(process).clone(),
            uar: config.wq.uar.clone().unwrap_or_else(|| process.uar()).page().clone(),
            cq: cq.0,
            tis: Some(Arc::clone(tis.object())),
            ring: memory.ring.for_command(),
            record: memory.record.for_command(),
            log_wqebbs: config.wq.log_wq_depth,
            min_inline,
            user_index: config.wq.user_index,
            flush_in_error: config.ext.flush_in_error,
            multi_packet: config.allow_multi_pkt_send_wqe,
            timestamps: config.ext.ts_format.to_prm(),
        });
        let object = object.map_err(|error| process.fatal_or(error))?;
        object.to_ready()?;
        crate::log::debug!("made SQ {}", object.sqn());
        let _holding = Holding::new(format!("SQ {}", object.sqn().0), holds);
        Ok(Self { object, process: process.clone(), memory, inline, _holding })
    }

    /// The number of the send queue (`flexio_sq_get_wq_num`).
    pub fn number(&self) -> SqNumber {
        SqNumber(self.object.sqn().0)
    }

    /// The number of the send queue, as a type of `verbless-command`.
    pub fn sqn(&self) -> Qpn {
        self.object.sqn()
    }

    /// The [`SqObject`] of `verbless-command`.
    pub const fn object(&self) -> &SqObject {
        &self.object
    }

    /// Address of the WQEs for a program.
    pub const fn ring_address(&self) -> u64 {
        self.memory.ring.address()
    }

    /// Address of the doorbell record; its second word counts posted WQEBBs.
    pub const fn record_address(&self) -> u64 {
        self.memory.record.address()
    }

    /// Bytes of each frame that its WQE must carry inline (min_wqe_inline_mode); 0 if none.
    pub const fn inline_bytes(&self) -> u32 {
        self.inline
    }

    /// The process.
    pub const fn process(&self) -> &Process {
        &self.process
    }

    /// Destroys the queue (`flexio_sq_destroy`). A drop destroys it too, and ignores the error.
    ///
    /// # Errors
    /// The device refuses.
    pub fn destroy(self) -> Result<(), Error> {
        Ok(self.object.destroy()?)
    }
}
