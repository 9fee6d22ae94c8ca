//! Raw Ethernet receive queues for programs on the DPA.
//!
//! Each has a TIR as the target of flow rules. FlexIO has no functions for rules: the queue layer
//! creates them, with [`DpaRq::tir`] ([`Domain::steer`](verbless_queue::Domain::steer)).
//!
//! ```
//! # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/documented.rs"));
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let process = process_on_ethernet()?;
//! use verbless_flexio::{DpaCq, DpaCqConfig, CqElement, DpaRq, DpaRqConfig};
//! use verbless_queue::FlowAttr;
//!
//! let cq = DpaCq::create(&process, &DpaCqConfig::new(4, CqElement::NonDpa { vector: 0 }))?;
//! let rq = DpaRq::create(&process, &cq, &DpaRqConfig::new(4))?;
//! // Frames to this address, of this EtherType, come to it.
//! let frames = FlowAttr::to([0x02, 0, 0, 0, 0, 1]).ethertype(0x88b5);
//! let rule = process.domain().steer(&frames, rq.tir())?;
//! rule.destroy()?;
//! rq.destroy()?;
//! # Ok(())
//! # }
//! ```

use std::sync::Arc;

use verbless_command::{Device, QCounter, RqAttr, RqObject, RqWqes, Rqn, SelfLoopback, TirObject};

use crate::cq::CqHandle;
use crate::error::Error;
use crate::holders::{Holding, key};
use crate::ids::RqNumber;
use crate::process::Process;
use crate::transport::TransportDomain;
use crate::wq::{WqConfig, WqEndPadMode, WqMemory, WqTsFormat, WqType};

/// log2 of the bytes of a data segment.
const LOG_SEGMENT: u8 = 4;

/// Configuration of a receive queue (`flexio_wq_attr` with `flexio_wq_rq_attr`).
#[derive(Debug, Clone)]
pub struct DpaRqConfig {
    /// Parameters of every work queue.
    pub wq: WqConfig,
    /// The order of the WQEs: must be [`WqType::Cyclic`]; lists are for pools.
    pub wq_type: WqType,
    /// Whether frames are padded: not supported.
    pub end_pad_mode: WqEndPadMode,
    /// The transport domain of the TIR; `None`: the queue creates one.
    pub td: Option<TransportDomain>,
    /// Frames keep their VLAN tag.
    pub vlan_strip_disable: bool,
    /// The clock of the CQE timestamps.
    pub ts_format: WqTsFormat,
    /// The Q counter for frames that find no receive (verbless's own: the C library has none).
    pub counter: Option<Arc<QCounter>>,
}

impl DpaRqConfig {
    /// 2^`log_wq_depth` WQEs of one segment in the heap; frames keep their VLAN tag.
    pub const fn new(log_wq_depth: u8) -> Self {
        Self {
            wq: WqConfig::new(log_wq_depth),
            wq_type: WqType::Cyclic,
            end_pad_mode: WqEndPadMode::None,
            td: None,
            vlan_strip_disable: true,
            ts_format: WqTsFormat::Default,
            counter: None,
        }
    }
}

/// A frame receive queue (`flexio_rq`), in RDY.
#[derive(Debug)]
pub struct DpaRq {
    // The TIR is dropped before its queue.
    tir: Arc<TirObject>,
    object: Arc<RqObject>,
    process: Process,
    memory: WqMemory,
    _holding: Holding,
}

impl DpaRq {
    /// Creates a receive queue that completes in `cq`, with its TIR (`flexio_rq_create`).
    ///
    /// # Errors
    /// The process has ended; the transport domain is of another device context; the device has no
    /// raw Ethernet queues, for example because its port is InfiniBand; the heap has no room.
    /// [`Error::CopyTimeout`]: nothing was created.
    pub fn create(
        process: &Process,
        cq: impl Into<CqHandle>,
        config: &DpaRqConfig,
    ) -> Result<Self, Error> {
        Self::make(process, process.device(), cq.into(), config)
    }

    /// Creates a receive queue on another device context than the process's
    /// (`flexio_rq_create_cross_dev`). Ring and record must be in host memory registered there,
    /// which the program accesses through a window; protection domain, UAR
    /// ([`Uar::extend`](crate::Uar::extend)) and CQ must be of that context too.
    ///
    /// # Errors
    /// `device` is the process's own context; a part of the configuration belongs to another one;
    /// as for [`DpaRq::create`].
    pub fn create_cross_dev(
        process: &Process,
        device: &Device,
        cq: impl Into<CqHandle>,
        config: &DpaRqConfig,
    ) -> Result<Self, Error> {
        config.wq.check_cross_device(process, device)?;
        Self::make(process, device, cq.into(), config)
    }

    fn make(
        process: &Process,
        device: &Device,
        cq: CqHandle,
        config: &DpaRqConfig,
    ) -> Result<Self, Error> {
        process.alive()?;
        if config.wq_type != WqType::Cyclic || config.end_pad_mode != WqEndPadMode::None {
            let (kind, pad) = (config.wq_type, config.end_pad_mode);
            return Err(Error::Failed(format!(
                "a receive queue of type {kind:?} with padding {pad:?} is not supported: Cyclic \
                 and None are"
            )));
        }
        let td = match &config.td {
            Some(td) => {
                td.on(device)?;
                td.clone()
            }
            None => TransportDomain::create(device)?,
        };
        let log_stride = config.wq.log_wq_stride.unwrap_or(LOG_SEGMENT);
        let memory = config.wq.allocate(process, device, log_stride)?;
        let mut holds = vec![process.key(), key(&cq.0), key(td.object())];
        holds.extend(memory.buffers());
        let object = device.create_rq(RqAttr {
            cq: cq.0,
            wqes: RqWqes::Own {
                pd: config.wq.pd(process).clone(),
                ring: memory.ring.for_command(),
                record: memory.record.for_command(),
                log_wqes: config.wq.log_wq_depth,
                log_stride,
            },
            user_index: config.wq.user_index,
            flush_in_error: true,
            keep_vlan: config.vlan_strip_disable,
            timestamps: config.ts_format.to_prm(),
            counter: config.counter.clone(),
        });
        let object = Arc::new(object.map_err(|error| process.fatal_or(error))?);
        let loopback = SelfLoopback::default();
        let tir = device.create_tir(td.object().clone(), object.clone(), loopback)?;
        object.to_ready()?;
        crate::log::debug!("made RQ {}", object.rqn().0);
        let _holding = Holding::new(format!("RQ {}", object.rqn().0), holds);
        Ok(Self { tir: Arc::new(tir), object, process: process.clone(), memory, _holding })
    }

    /// The number of the receive queue (`flexio_rq_get_wq_num`).
    pub fn number(&self) -> RqNumber {
        RqNumber(self.object.rqn().0)
    }

    /// The number of the receive queue, as a type of `verbless-command`.
    pub fn rqn(&self) -> Rqn {
        self.object.rqn()
    }

    /// The [`RqObject`] of `verbless-command` (`flexio_rq_get_object`).
    pub const fn object(&self) -> &Arc<RqObject> {
        &self.object
    }

    /// The TIR, for flow rules to forward frames to (`flexio_rq_get_tir`).
    pub const fn tir(&self) -> &Arc<TirObject> {
        &self.tir
    }

    /// Address of the WQEs for a program.
    pub const fn ring_address(&self) -> u64 {
        self.memory.ring.address()
    }

    /// Address of the doorbell record; its first word counts posted WQEs.
    pub const fn record_address(&self) -> u64 {
        self.memory.record.address()
    }

    /// The process.
    pub const fn process(&self) -> &Process {
        &self.process
    }

    /// Moves the queue to the error state (`flexio_rq_set_err_state`): the posted receives complete
    /// as flushed, after this call returns, and the device drops frames. Receives that have not
    /// completed at the queue's destroy are lost.
    ///
    /// # Errors
    /// The process has ended; the device refuses.
    pub fn set_err_state(&self) -> Result<(), Error> {
        self.process.alive()?;
        Ok(self.object.to_error()?)
    }

    /// Destroys the queue and its TIR (`flexio_rq_destroy`). A drop destroys it too, and ignores
    /// the error.
    ///
    /// # Errors
    /// A flow rule forwards to it; the device refuses.
    pub fn destroy(self) -> Result<(), Error> {
        let number = self.number();
        let in_use = || {
            Error::Failed(format!(
                "RQ {number} is in use by a flow rule, or a clone of its TIR or object: destroy \
                 that first"
            ))
        };
        Arc::into_inner(self.tir).ok_or_else(in_use)?.destroy()?;
        Ok(Arc::into_inner(self.object).ok_or_else(in_use)?.destroy()?)
    }
}
