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
use verbless_queue::Domain;

use crate::cq::CqHandle;
use crate::error::Error;
use crate::holders::{Holding, key};
use crate::ids::SqNumber;
use crate::process::Process;
use crate::transport::{SqTis, TransportDomain};
use crate::wq::{WqConfig, WqMemory, WqTsFormat};

/// log2 of the bytes of a WQEBB.
const LOG_WQEBB: u8 = 6;

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

/// Further attributes of a send queue (`flexio_wq_sq_ext_attr`). The C library publishes only the
/// struct's name; the fields are verbless's own. It is a Rust type without a binary layout, so its
/// version is the crate's.
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
    places: WqMemory,
    inline: u32,
    _holding: Holding,
}

impl DpaSq {
    /// Creates a send queue that completes in `cq`, a CQ of the process or the host's
    /// (`flexio_sq_create`).
    ///
    /// # Errors
    /// The process has ended; the TIS is of another device context; the device has no raw Ethernet
    /// queues, for example because its port is InfiniBand, no such clock, or no multi-packet WQEs;
    /// the heap has no room. [`Error::CopyTimeout`]: nothing was created.
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
    /// ([`Uar::extend`](crate::Uar::extend)) and CQ must be of that context too. The program rings
    /// through an outbox that it switches to the UAR's extension, the host through the page.
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
        config.wq.cross(process, device)?;
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
        let places = config.wq.places(process, device, LOG_WQEBB)?;
        let mut holds = vec![process.key(), key(&cq.0), key(tis.object())];
        holds.extend(places.buffers());
        let object = device.create_sq(SqAttr {
            pd: config.wq.pd(process).clone(),
            uar: config.wq.uar.clone().unwrap_or_else(|| process.uar()).page().clone(),
            cq: cq.0,
            tis: Some(Arc::clone(tis.object())),
            ring: places.ring.for_command(),
            record: places.record.for_command(),
            log_wqebbs: config.wq.log_wq_depth,
            min_inline,
            user_index: config.wq.user_index,
            flush_in_error: config.ext.flush_in_error,
            multi_packet: config.allow_multi_pkt_send_wqe,
            timestamps: config.ext.ts_format.of_context(),
        });
        let object = object.map_err(|error| process.fatal_or(error))?;
        object.to_ready()?;
        crate::log::debug!("made SQ {}", object.sqn());
        let _holding = Holding::new(format!("SQ {}", object.sqn().0), holds);
        Ok(Self { object, process: process.clone(), places, inline, _holding })
    }

    /// The number of the send queue (`flexio_sq_get_wq_num`).
    pub fn number(&self) -> SqNumber {
        SqNumber(self.object.sqn().0)
    }

    /// The number of the send queue, as a type of `verbless-command`.
    pub fn sqn(&self) -> Qpn {
        self.object.sqn()
    }

    /// The object of the device.
    pub const fn object(&self) -> &SqObject {
        &self.object
    }

    /// Address of the WQEs for a program.
    pub const fn ring_address(&self) -> u64 {
        self.places.ring.address()
    }

    /// Address of the doorbell record; its second word counts posted WQEBBs.
    pub const fn record_address(&self) -> u64 {
        self.places.record.address()
    }

    /// Bytes of a frame that a WQE must have inline; 0: none.
    pub const fn inline_bytes(&self) -> u32 {
        self.inline
    }

    /// The process.
    pub const fn process(&self) -> &Process {
        &self.process
    }

    /// Destroys the queue, and returns whether that worked (`flexio_sq_destroy`); dropping it does
    /// the same.
    ///
    /// # Errors
    /// The device refuses.
    pub fn destroy(self) -> Result<(), Error> {
        Ok(self.object.destroy()?)
    }
}
