//! PCI devices that programs on the DPA emulate: their queues' doorbells, which make CQEs, and
//! their MSI-X vectors, which programs raise. The API of 2022 has them; 3.2.0 has no successor.
//!
//! FlexIO does not create the devices. [`EmulatedDevice`] is one of verbless's model, without a
//! host: [`EmulatedDevice::ring`] does the host's part, and [`EmulatedDevice::raised`] shows what a
//! host would receive.
//!
//! ```
//! # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/documented.rs"));
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let process = process()?;
//! use verbless_flexio::emulation::{self, DoorbellToCq, Msix, MsixConfig, MsixMap};
//! use verbless_flexio::{DpaCq, DpaCqConfig, CqElement};
//!
//! let device = emulation::create_device(&process, 2, 4)?;
//! // The doorbell of its queue 1 makes CQEs here.
//! let cq = DpaCq::create(&process, &DpaCqConfig::new(4, CqElement::NonDpa { vector: 0 }))?;
//! let doorbell = DoorbellToCq::map(&device, 1, &cq)?;
//! // A program raises vector 2 through the CQ of this MSI-X.
//! let map = MsixMap::create(&process, &device, 4)?;
//! let msix = Msix::create(&map, &MsixConfig { vector: 2, ..MsixConfig::default() })?;
//! assert!(msix.cq().is_some());
//! doorbell.unmap()?;
//! # Ok(())
//! # }
//! ```

use std::sync::Arc;

pub use verbless_command::EmulatedDevice;
use verbless_command::{Device, DpaEq, DpaEqAttr, EmulatedDoorbell, EmulatedDoorbellInfo};

use crate::cq::{CqElement, DpaCq, DpaCqConfig};
use crate::error::Error;
use crate::holders::{Holding, in_use, key};
use crate::ids::DoorbellId;
use crate::memory::QueueMemory;
use crate::process::Process;
use crate::uar::Uar;

/// Maximum number of vectors of a [`MsixMap`] (`FLEXIO_MAX_EQ_TO_MSIX_MAP_PAIRS`; its value is not
/// published, so this is verbless's own).
pub const MAX_EQ_TO_MSIX_MAP_PAIRS: u16 = 64;

/// log2 of the entries of a map's event queue.
const LOG_ENTRIES: u8 = 6;
/// log2 of the CQEs of an MSI-X's CQ, which no program reads.
const LOG_CQES: u8 = 3;
/// Bytes of an entry.
const EQE: u64 = 64;
/// Marks an entry that the device may write.
const DEVICE_OWNED: u8 = 0xff;

/// Creates an emulated device with these numbers of queues and MSI-X vectors (64 at most).
///
/// # Errors
/// The process has ended; no queue, or too many vectors.
pub fn create_device(
    process: &Process,
    queues: u16,
    vectors: u16,
) -> Result<Arc<EmulatedDevice>, Error> {
    process.alive()?;
    Ok(process.device().create_emulated_device(process.token(), queues, vectors)?)
}

/// Fails if a device is of another context than the process, which cannot use it then.
fn of_process(process: &Process, device: &EmulatedDevice) -> Result<(), Error> {
    match device.context().is(process.device()) {
        true => process.alive(),
        false => Err(Error::Failed(
            "the emulated device is of another device context than the process".into(),
        )),
    }
}

/// A doorbell of an emulated device that makes CQEs (`flexio_emu_db_to_cq_ctx`).
///
/// A program arms it by its number before each CQE (`db_ctx_arm`), may make one without a doorbell
/// (`db_ctx_force_trigger`), and reads its last value (`read_db_value`).
#[derive(Debug)]
pub struct DoorbellToCq {
    object: EmulatedDoorbell,
    cq: DpaCq,
    _holding: Holding,
}

impl DoorbellToCq {
    /// Attaches to the doorbell of a queue (`flexio_emu_db_to_cq_map`): a write to the doorbell
    /// makes a CQE of zeros on `cq`.
    ///
    /// # Errors
    /// The process has ended; the device has no such queue, or its doorbell is already attached;
    /// the device is of another context than the CQ.
    pub fn map(device: &Arc<EmulatedDevice>, queue: u16, cq: &DpaCq) -> Result<Self, Error> {
        let process = cq.process();
        of_process(process, device)?;
        let object = process.device().create_emulated_doorbell(device, queue, cq.object())?;
        crate::log::debug!("doorbell {queue} of {:#x} makes CQEs on {}", device.id(), cq.cqn());
        let name = format!("emulated doorbell {}", object.id());
        let _holding = Holding::new(name, vec![process.key(), key(cq.object())]);
        Ok(Self { object, cq: cq.clone(), _holding })
    }

    /// The number of the doorbell for programs (`flexio_emu_db_to_cq_ctx_get_id`, which the
    /// document of 2022 only mentions).
    pub fn id(&self) -> DoorbellId {
        DoorbellId(self.object.id())
    }

    /// The CQ that gets the CQEs.
    pub const fn cq(&self) -> &DpaCq {
        &self.cq
    }

    /// Queries the doorbell.
    ///
    /// # Errors
    /// The device does not respond.
    pub fn query(&self) -> Result<EmulatedDoorbellInfo, Error> {
        Ok(self.object.query()?)
    }

    /// Detaches from the doorbell (`flexio_emu_db_to_cq_unmap`), as dropping does.
    ///
    /// # Errors
    /// The device refuses.
    pub fn unmap(self) -> Result<(), Error> {
        Ok(self.object.destroy()?)
    }
}

/// An event queue of the DPA; every entry raises a vector of an emulated device.
#[derive(Debug)]
struct MsixEq {
    eq: Arc<DpaEq>,
    ring: u64,
}

/// Maps event queues to the vectors of an emulated device (`flexio_emu_device_msix_map`).
#[derive(Debug)]
pub struct MsixMap {
    // By vector.
    eqs: Vec<Arc<MsixEq>>,
    process: Process,
    device: Arc<EmulatedDevice>,
    _holding: Holding,
}

impl MsixMap {
    /// Creates event queues for a device's first `max_msix` vectors, or for all if it has fewer
    /// (`flexio_emulated_device_msix_map_create`). They are in the heap, with 64 entries each; new
    /// entries overwrite unread ones.
    ///
    /// # Errors
    /// The process has ended; no vector, or more than [`MAX_EQ_TO_MSIX_MAP_PAIRS`]; the device is
    /// of another context; the heap has no room. [`Error::CopyTimeout`]: nothing was created.
    pub fn create(
        process: &Process,
        device: &Arc<EmulatedDevice>,
        max_msix: u16,
    ) -> Result<Self, Error> {
        of_process(process, device)?;
        if max_msix == 0 || max_msix > MAX_EQ_TO_MSIX_MAP_PAIRS {
            return Err(Error::Failed(format!(
                "a map of {max_msix} vectors: 1 to {MAX_EQ_TO_MSIX_MAP_PAIRS} \
                 (FLEXIO_MAX_EQ_TO_MSIX_MAP_PAIRS) are possible"
            )));
        }
        let eqs = (0..max_msix.min(device.vectors())).map(|vector| {
            let ring = process.alloc(EQE << LOG_ENTRIES)?;
            ring.fill(DEVICE_OWNED)?;
            let (memory, ring) = (QueueMemory::dpa(&ring).for_command(), ring.address());
            let attr = DpaEqAttr {
                raises: Some((device.clone(), vector)),
                always_armed: true,
                ignore_overrun: true,
                ..DpaEqAttr::new(memory, LOG_ENTRIES, process.uar().page().clone())
            };
            let eq = process.device().create_dpa_eq(process.token(), attr);
            let eq = Arc::new(eq.map_err(|error| process.fatal_or(error))?);
            Ok(Arc::new(MsixEq { eq, ring }))
        });
        let eqs = eqs.collect::<Result<_, Error>>()?;
        let _holding = Holding::new("an MSI-X map".into(), vec![process.key()]);
        Ok(Self { eqs, process: process.clone(), device: device.clone(), _holding })
    }

    /// The pairs: an event queue's number, and the vector that it raises.
    pub fn pairs(&self) -> impl ExactSizeIterator<Item = (u32, u16)> {
        self.eqs.iter().enumerate().map(|(vector, it)| (it.eq.id(), vector as u16))
    }

    /// The emulated device.
    pub const fn device(&self) -> &Arc<EmulatedDevice> {
        &self.device
    }

    /// Frees the map (`flexio_emulated_device_msix_map_free`). The drop of the map and of its
    /// vectors frees it too, and ignores the error.
    ///
    /// # Errors
    /// An [`Msix`] of it exists; the device refuses.
    pub fn free(self) -> Result<(), Error> {
        let eqs = self.eqs.into_iter().map(|it| {
            let key = key(&it);
            Arc::into_inner(it).ok_or_else(|| in_use("the MSI-X map", key))
        });
        for it in eqs.collect::<Result<Vec<_>, _>>()? {
            let key = key(&it.eq);
            Arc::into_inner(it.eq).ok_or_else(|| in_use("the MSI-X map", key))?.destroy()?;
        }
        Ok(())
    }
}

/// Configuration of an MSI-X of an emulated device: the arguments of
/// `flexio_emulated_device_msix_create`.
#[derive(Debug, Clone, Default)]
pub struct MsixConfig {
    /// The vector (`msix_id`).
    pub vector: u16,
    /// The program uses the event queue itself (`direct_mode`), with its own CQs; otherwise the
    /// MSI-X has a CQ for sending.
    pub direct: bool,
    /// The UAR of the outboxes that use that CQ (`target_uar_id`); by default the process's.
    pub uar: Option<Uar>,
    /// The device context of that CQ (`target_ibv_ctx`): the process's, which is the default.
    pub target: Option<Device>,
}

/// A vector of an emulated device that a program raises (`flexio_msix`).
#[derive(Debug)]
pub struct Msix {
    // The CQ is dropped before its event queue.
    cq: Option<DpaCq>,
    eq: Arc<MsixEq>,
    vector: u16,
    _holding: Holding,
}

impl Msix {
    /// Creates an MSI-X of a vector of `map` (`flexio_emulated_device_msix_create`).
    ///
    /// # Errors
    /// The process has ended; the map has no such vector; a UAR in direct mode, which has no CQ;
    /// the target is another context than the process's, whose CQs do not reach the event queue;
    /// the heap has no room. [`Error::CopyTimeout`]: nothing was created.
    pub fn create(map: &MsixMap, config: &MsixConfig) -> Result<Self, Error> {
        let process = &map.process;
        process.alive()?;
        let vector = config.vector;
        let eq = map.eqs.get(usize::from(vector)).cloned().ok_or_else(|| {
            Error::Failed(format!("vector {vector} of a map of {}", map.eqs.len()))
        })?;
        if config.target.as_ref().is_some_and(|target| !target.is(process.device())) {
            let why = "MSI-X by a CQ of another device context is not supported: the event queue \
                       is known to CQs of the process's context alone";
            return Err(Error::Failed(why.into()));
        }
        let _holding = Holding::new(format!("MSI-X {vector}"), vec![process.key(), key(&eq)]);
        if config.direct {
            if config.uar.is_some() {
                let why = "a UAR is for the CQ of an MSI-X, which has none in direct mode";
                return Err(Error::Failed(why.into()));
            }
            return Ok(Self { cq: None, eq, vector, _holding });
        }
        let element = CqElement::DpaMsixEmulated(eq.eq.clone());
        let config = DpaCqConfig {
            uar: config.uar.clone(),
            // No program reads it.
            always_armed: true,
            overrun_ignore: true,
            ..DpaCqConfig::new(LOG_CQES, element)
        };
        Ok(Self { cq: Some(DpaCq::create(process, &config)?), eq, vector, _holding })
    }

    /// The vector.
    pub const fn vector(&self) -> u16 {
        self.vector
    }

    /// The CQ for sending (`flexio_dev_msix_send`); `None` in direct mode.
    pub const fn cq(&self) -> Option<&DpaCq> {
        self.cq.as_ref()
    }

    /// The event queue, for CQs of a program in direct mode.
    pub fn eq(&self) -> &Arc<DpaEq> {
        &self.eq.eq
    }

    /// Address of the 64 entries for the program.
    pub fn eq_address(&self) -> u64 {
        self.eq.ring
    }

    /// Destroys the vector (`flexio_emulated_device_msix_destroy`). A drop destroys it too, and
    /// ignores the error.
    ///
    /// # Errors
    /// Another object keeps its CQ alive; the device refuses.
    pub fn destroy(self) -> Result<(), Error> {
        self.cq.map_or(Ok(()), DpaCq::destroy)
    }
}
