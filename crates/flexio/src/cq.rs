//! Completion queues whose CQEs are consumed by programs on the DPA, or by the host.
//!
//! ```
//! # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/documented.rs"));
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let (process, handler) = (process()?, "handler");
//! use verbless_flexio::{DpaCq, DpaCqConfig, CqElement, EventHandler, EventHandlerConfig, Handler};
//!
//! let config = EventHandlerConfig::new(Handler::named(handler));
//! let handler = EventHandler::create(&process, &config)?;
//! // 64 CQEs in the process's heap; the first one starts the handler.
//! let cq = DpaCq::create(&process, &DpaCqConfig::new(6, CqElement::Thread(handler.clone())))?;
//! handler.run(cq.ring_address())?;
//! # assert!(handler.clone().destroy().is_err());
//! # Ok(())
//! # }
//! ```

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use verbless_command::{
    CqAttr, CqEventTarget as Element, CqObject, CqOptions, Cqn, Device, DpaEq, Eqn, MiniCqeFormat,
    Moderation,
};
use verbless_queue::CqeSize;
use verbless_queue::arm_new_cq;
use verbless_queue::uar::FIRST_ARM;

use crate::error::Error;
use crate::event_handler::EventHandler;
use crate::holders::{Holding, Key, in_use, key};
use crate::ids::CqNumber;
use crate::memory::{MemoryKind, QueueMemory, RECORD};
use crate::process::Process;
use crate::uar::Uar;
use crate::wq::check_cross_device;

/// Bytes of a CQE.
pub(crate) const CQE: usize = 64;
/// Last byte of a CQE that the device has not written: opcode 0xf, and the owner bit of the
/// previous pass. A program that compares only the owner bit finds no CQE, either.
pub(crate) const UNWRITTEN: u8 = 0xf1;

/// The receiver of a CQ's events: the element of the CQ, by the C library's types.
#[derive(Debug, Clone)]
pub enum CqElement {
    /// An event handler; an event starts it (`FLEXIO_CQ_ELEMENT_TYPE_DPA_THREAD`).
    Thread(EventHandler),
    /// An event queue of the DPA (`FLEXIO_CQ_ELEMENT_TYPE_EXT_EQ`).
    ExtEq(Arc<DpaEq>),
    /// No receiver on the DPA (`FLEXIO_CQ_ELEMENT_TYPE_NON_DPA_CQ`): the owner of the ring polls
    /// it. Its EQ is that of a completion vector of the host, so a program can raise MSI-X through
    /// the CQ.
    NonDpa {
        /// The host's completion vector.
        vector: u32,
    },
    /// An event queue of the DPA that raises a vector of an emulated device: through this CQ a
    /// program sends MSI-X to that device's host (`FLEXIO_CQ_ELEMENT_TYPE_DPA_MSIX_EMULATED_CQ`).
    DpaMsixEmulated(Arc<DpaEq>),
}

impl CqElement {
    /// The C library's number of the element's type (`element_type`).
    pub const fn element_type(&self) -> u8 {
        match self {
            Self::Thread(_) => 0x0,
            Self::ExtEq(_) => 0x2,
            Self::NonDpa { .. } => 0x8,
            Self::DpaMsixEmulated(_) => 0x9,
        }
    }
}

/// The event that starts the period of a CQ's moderation (`flexio_cq_period_mode`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[repr(u8)]
pub enum CqPeriodMode {
    /// The last event (`FLEXIO_CQ_PERIOD_MODE_EVENT`).
    #[default]
    Event = 0,
    /// The last CQE (`FLEXIO_CQ_PERIOD_MODE_CQE`).
    Cqe = 1,
}

/// Event moderation: when an armed CQ makes its event. Events are delayed only if both numbers are
/// set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CqModeration {
    /// The event comes after this number of CQEs at the latest (`cq_max_count`).
    pub max_count: u16,
    /// The event comes after this number of microseconds at the latest, 12 bits (`cq_period`).
    pub period: u16,
    /// The start of the period (`cq_period_mode`).
    pub mode: CqPeriodMode,
}

/// Configuration of a CQ (`flexio_cq_attr`).
#[derive(Debug, Clone)]
pub struct DpaCqConfig {
    /// log2 of the number of CQEs.
    pub log_depth: u8,
    /// The receiver of the CQ's events.
    pub element: CqElement,
    /// The UAR whose outboxes may arm the CQ; `None`: the process's.
    pub uar: Option<Uar>,
    /// Compresses bursts of CQEs of receives to mini CQEs of this format (`cqe_comp_type`,
    /// `cqe_comp_format`). A device without the capability `cqe_compression` refuses it.
    pub compression: Option<MiniCqeFormat>,
    /// The initial event moderation.
    pub moderation: CqModeration,
    /// Whether the CQ is created unarmed, for [`DpaCq::arm`]. Otherwise it is created armed, and
    /// its first CQE makes an event.
    pub no_arm: bool,
    /// Whether all CQEs go to the first entry, whose WQE counter shows the progress (`cc`). Its
    /// owner bit stays 0, and the CQ overruns like others if the consumer index in the record does
    /// not follow.
    pub collapsed: bool,
    /// Whether new CQEs overwrite unread ones; otherwise the CQ breaks (`overrun_ignore`). Nothing
    /// counts the requests of the DPA's queues against its entries: make `log_depth` large enough
    /// for all rings that complete here together.
    pub overrun_ignore: bool,
    /// Whether every CQE makes an event, without arming.
    pub always_armed: bool,
    /// Memory of the CQEs (`cq_ring_qmem`); the last byte of each must be 0xf1, which marks a CQE
    /// that the device has not written. `None`: allocates it in the heap.
    pub ring: Option<QueueMemory>,
    /// Memory of the doorbell record, 8 bytes of zeros (`cq_dbr_daddr`), in the heap for an element
    /// on the DPA. `None`: allocates it in the heap.
    pub record: Option<QueueMemory>,
}

impl DpaCqConfig {
    /// 2^`log_depth` CQEs in the heap, with events to `element`.
    pub const fn new(log_depth: u8, element: CqElement) -> Self {
        Self {
            log_depth,
            element,
            uar: None,
            compression: None,
            moderation: CqModeration { max_count: 0, period: 0, mode: CqPeriodMode::Event },
            no_arm: false,
            collapsed: false,
            overrun_ignore: false,
            always_armed: false,
            ring: None,
            record: None,
        }
    }
}

/// A completion queue (`flexio_cq`). Clones are the same CQ; the queues that complete here keep it
/// alive, and it keeps its event handler alive.
#[derive(Debug, Clone)]
pub struct DpaCq {
    object: Arc<CqObject>,
    process: Process,
    ring: u64,
    record: u64,
    /// Whether the host's doorbell can arm it: its element is on the DPA, and it is of the
    /// process's own device context.
    host_can_arm: bool,
    /// Whether the host has armed it.
    armed: Arc<AtomicBool>,
}

impl DpaCq {
    /// Creates a CQ (`flexio_cq_create`).
    ///
    /// # Errors
    /// The process has ended; the event handler is of another process; the device lacks a
    /// capability (the error names it); the heap has no room. [`Error::CopyTimeout`]: nothing was
    /// created.
    pub fn create(process: &Process, config: &DpaCqConfig) -> Result<Self, Error> {
        Self::make(process, process.device(), config)
    }

    /// Creates a CQ on another device context than the process's (`flexio_cq_create` with its
    /// `ibv_ctx`), for queues there. Ring and record must be in host memory registered there, and
    /// the UAR must be of that context ([`Uar::extend`](crate::Uar::extend)). The element is
    /// [`CqElement::NonDpa`], or an event handler ([`CqElement::Thread`]) of the process that the
    /// UAR was extended to. The handler reads the CQEs through a window, and arms the CQ by an
    /// outbox of that UAR, so the configuration needs [`DpaCqConfig::no_arm`] or
    /// [`DpaCqConfig::always_armed`].
    ///
    /// # Errors
    /// `device` is the process's own context; a part of the configuration belongs to another one;
    /// the element is an EQ of the DPA; as for [`DpaCq::create`].
    pub fn create_cross_dev(
        process: &Process,
        device: &Device,
        config: &DpaCqConfig,
    ) -> Result<Self, Error> {
        check_cross_device(process, device, [&config.ring, &config.record], &config.uar, None)?;
        match config.element {
            CqElement::NonDpa { .. } => {}
            CqElement::Thread(_) if config.no_arm || config.always_armed => {}
            CqElement::Thread(_) => {
                let why = "a CQ of another device context that starts an event handler is armed by \
                           its program: DpaCqConfig::no_arm or always_armed";
                return Err(Error::Failed(why.into()));
            }
            CqElement::ExtEq(_) | CqElement::DpaMsixEmulated(_) => {
                let why = "a CQ of another device context reports to no event queue of the DPA: \
                           CqElement::NonDpa or CqElement::Thread";
                return Err(Error::Failed(why.into()));
            }
        }
        Self::make(process, device, config)
    }

    fn make(process: &Process, device: &Device, config: &DpaCqConfig) -> Result<Self, Error> {
        process.alive()?;
        let (element, keeps, holds) = element(process, device, &config.element)?;
        // Dropped with the CQ, which its queues keep alive.
        let holding = Arc::new(Holding::new("CQ".into(), holds));
        if config.log_depth > device.caps().log_max_cqes {
            return Err(Error::Failed(format!(
                "a CQ of 2^{} CQEs: the device has 2^{} at most",
                config.log_depth,
                device.caps().log_max_cqes
            )));
        }
        let ring = match &config.ring {
            Some(ring) => ring.clone(),
            None => {
                let buffer = process.alloc((CQE as u64) << config.log_depth)?;
                buffer.fill(UNWRITTEN)?;
                QueueMemory::dpa(&buffer)
            }
        };
        let record = match &config.record {
            Some(record) => record.clone(),
            None => QueueMemory::holding(process, &[0; 8])?,
        };
        // The host can arm only a CQ in the heap, of the process's own context.
        let host_can_arm =
            !matches!(config.element, CqElement::NonDpa { .. }) && device.is(process.device());
        if host_can_arm && record.kind() == MemoryKind::Host {
            let why = "the doorbell record of a CQ with an element on the DPA must be in the heap";
            return Err(Error::Failed(why.into()));
        }
        [&ring, &record].into_iter().filter_map(|it| it.buffer).for_each(|it| holding.add(it));
        ring.check("ring of the CQ", process, (CQE as u64) << config.log_depth)?;
        record.check("doorbell record of the CQ", process, RECORD)?;
        let page = config.uar.clone().unwrap_or_else(|| process.uar()).page().clone();
        let CqModeration { max_count, period, mode } = config.moderation;
        let options = CqOptions {
            collapsed: config.collapsed,
            always_armed: config.always_armed,
            moderation: Moderation { period, count: max_count },
            period_from_cqe: mode == CqPeriodMode::Cqe,
            compression: config.compression,
        };
        let attr = CqAttr {
            uar: page,
            ring: ring.for_command().keeping(Arc::new((keeps, holding.clone()))),
            record: record.for_command(),
            log_cqes: config.log_depth,
            cqe_size: CqeSize::BYTES_64,
            element,
            ignore_overrun: config.overrun_ignore,
        };
        let object = device.create_cq_with(attr, &options);
        let object = object.map_err(|error| process.fatal_or(error))?;
        holding.rename(format!("CQ {}", object.cqn().0));
        crate::log::debug!("made CQ {}", object.cqn());
        let cq = Self {
            object: Arc::new(object),
            process: process.clone(),
            ring: ring.address(),
            record: record.address(),
            host_can_arm,
            armed: Arc::new(AtomicBool::new(config.always_armed)),
        };
        if host_can_arm && !config.no_arm && !config.always_armed {
            cq.arm()?;
        }
        Ok(cq)
    }

    /// Arms a CQ with [`DpaCqConfig::no_arm`], by the host's doorbell: its first CQE makes an
    /// event, even if it is already there. After that the program arms it.
    ///
    /// # Errors
    /// The CQ was armed before; it has no element on the DPA; the process has ended.
    pub fn arm(&self) -> Result<(), Error> {
        if !self.host_can_arm {
            let why = "the CQ has no element on the DPA, or is of another device context: the side \
                       that reads it arms it";
            return Err(Error::Failed(why.into()));
        }
        if self.armed.swap(true, Ordering::Relaxed) {
            let why = "the CQ was armed before: its program arms it, from what it has consumed";
            return Err(Error::Failed(why.into()));
        }
        let rung = self.ring_first_arm();
        if rung.is_err() {
            self.armed.store(false, Ordering::Relaxed);
        }
        rung
    }

    /// Writes the record and rings the doorbell of the first arm.
    fn ring_first_arm(&self) -> Result<(), Error> {
        self.process.alive()?;
        self.process.write(self.record + 4, &FIRST_ARM.to_be_bytes())?;
        arm_new_cq(&self.object).map_err(|error| Error::Failed(error.to_string()))
    }

    /// The number of the CQ (`flexio_cq_get_cq_num`).
    pub fn number(&self) -> CqNumber {
        CqNumber(self.cqn().0)
    }

    /// The number of the CQ, as a type of `verbless-queue`.
    pub fn cqn(&self) -> Cqn {
        self.object.cqn()
    }

    /// The [`CqObject`] of `verbless-command` (`flexio_cq_get_obj`).
    pub const fn object(&self) -> &Arc<CqObject> {
        &self.object
    }

    /// Address of the CQEs for their consumer: a program, or the host.
    pub const fn ring_address(&self) -> u64 {
        self.ring
    }

    /// Address of the doorbell record.
    pub const fn record_address(&self) -> u64 {
        self.record
    }

    /// log2 of the number of CQEs.
    pub fn log_depth(&self) -> u8 {
        self.object.attr().log_cqes
    }

    /// The process.
    pub const fn process(&self) -> &Process {
        &self.process
    }

    /// Changes the event moderation (`flexio_cq_modify_moderation`).
    ///
    /// # Errors
    /// The process has ended; a period of more than 12 bits; the device has no moderation.
    pub fn modify_moderation(&self, moderation: CqModeration) -> Result<(), Error> {
        self.process.alive()?;
        let CqModeration { max_count, period, mode } = moderation;
        let moderation = Moderation { period, count: max_count };
        Ok(self.object.set_moderation_from(moderation, mode == CqPeriodMode::Cqe)?)
    }

    /// The event moderation that the device reports (`flexio_cq_query_moderation`).
    ///
    /// # Errors
    /// The device does not respond.
    pub fn query_moderation(&self) -> Result<CqModeration, Error> {
        let (Moderation { period, count }, from_cqe) = self.object.moderation()?;
        let mode = if from_cqe { CqPeriodMode::Cqe } else { CqPeriodMode::Event };
        Ok(CqModeration { max_count: count, period, mode })
    }

    /// Destroys the CQ (`flexio_cq_destroy`). The drop of the last handle destroys it too, and
    /// ignores the error.
    ///
    /// # Errors
    /// A queue or a clone keeps it alive; the device refuses.
    pub fn destroy(self) -> Result<(), Error> {
        let (name, key) = (format!("CQ {}", self.number()), key(&self.object));
        let in_use = || in_use(&name, key);
        Ok(Arc::into_inner(self.object).ok_or_else(in_use)?.destroy()?)
    }
}

type KeptObjects = Arc<dyn std::any::Any + Send + Sync>;

/// The event target for CREATE_CQ, the object to keep alive with the CQ, and the keys of the
/// objects that the CQ holds.
fn element(
    process: &Process,
    device: &Device,
    element: &CqElement,
) -> Result<(Element, Option<KeptObjects>, Vec<Key>), Error> {
    let mut holds = vec![process.key()];
    let (element, keeps) = match element {
        CqElement::Thread(handler) => {
            if !handler.process().is(process) {
                let why = "the event handler of the CQ is of another process";
                return Err(Error::Failed(why.into()));
            }
            holds.push(handler.key());
            let keeps: KeptObjects = Arc::new(handler.clone());
            (Element::Thread(handler.object_id().0), Some(keeps))
        }
        CqElement::NonDpa { vector } => (Element::Eq(Eqn(device.query_eqn(*vector)?)), None),
        CqElement::ExtEq(eq) => (Element::DpaEq(eq.id()), Some(eq.clone() as KeptObjects)),
        CqElement::DpaMsixEmulated(eq) if eq.attr().raises.is_none() => {
            let why = "the event queue raises no vector of an emulated device (DpaEqAttr::raises)";
            return Err(Error::Failed(why.into()));
        }
        CqElement::DpaMsixEmulated(eq) => {
            (Element::DpaEq(eq.id()), Some(eq.clone() as KeptObjects))
        }
    };
    Ok((element, keeps, holds))
}

/// The CQ of a queue of the DPA: a [`DpaCq`], or one that the host polls.
#[derive(Debug, Clone)]
pub struct CqHandle(pub(crate) Arc<CqObject>);

impl From<&DpaCq> for CqHandle {
    fn from(cq: &DpaCq) -> Self {
        Self(cq.object.clone())
    }
}

impl From<&verbless_queue::Cq> for CqHandle {
    fn from(cq: &verbless_queue::Cq) -> Self {
        Self(cq.object().clone())
    }
}
