//! Event queues of the DPA, PCI devices that its programs emulate, and the doorbells of those
//! devices.
//!
//! The hardware's commands for them are not published. As with processes ([`Device::as_model`]),
//! these layouts are the software model's own.

use std::sync::Arc;

use verbless_devx::{Context, Error, ModelToken, Uar};
use verbless_prm as prm;
use verbless_prm::GeneralObjectType;

use crate::cq::CqObject;
use crate::device::Device;
use crate::dpa::{make, query};
use crate::error::{all_of, fits};
use crate::general::GeneralObject;
use crate::memory::QueueMemory;

/// Attributes of an event queue of the DPA.
#[derive(Debug, Clone)]
pub struct DpaEqAttr {
    /// Memory of the entries, 64 bytes each: the host's, or the heap of a process. Software must
    /// mark each entry as the device's (owner bit 1) before.
    pub ring: QueueMemory,
    /// log2 of the number of entries.
    pub log_entries: u8,
    /// The UAR page of the outboxes that may update it.
    pub uar: Arc<Uar>,
    /// The emulated device and its MSI-X vector that the first event after arming raises.
    pub raises: Option<(Arc<EmulatedDevice>, u16)>,
    /// Whether every event raises the vector, without arming.
    pub always_armed: bool,
    /// Whether new events overwrite unread ones; otherwise events are lost when the queue is full.
    pub ignore_overrun: bool,
}

impl DpaEqAttr {
    /// Attributes of a queue of 2^`log_entries` entries in `ring` that raises no vector.
    pub const fn new(ring: QueueMemory, log_entries: u8, uar: Arc<Uar>) -> Self {
        Self { ring, log_entries, uar, raises: None, always_armed: false, ignore_overrun: false }
    }
}

/// An event queue of the DPA. CQs target it
/// ([`CqEventTarget::DpaEq`](crate::CqEventTarget::DpaEq)). Its entries have the format of other
/// EQs; programs consume them and update the consumer index by an outbox.
#[derive(Debug)]
pub struct DpaEq {
    object: GeneralObject,
    attr: DpaEqAttr,
}

/// Indexes and arm state of an event queue of the DPA.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DpaEqInfo {
    /// Index of the next entry that the device writes (26 bits).
    pub producer: u32,
    /// Entries that programs have consumed, by the last doorbell (26 bits).
    pub consumer: u32,
    /// The next entry raises the vector.
    pub armed: bool,
}

/// A PCI device that programs of the DPA emulate. The model has no host for it:
/// [`ring`](Self::ring) does the host's part, and [`raised`](Self::raised) shows what a host would
/// receive.
#[derive(Debug)]
pub struct EmulatedDevice {
    object: GeneralObject,
    queues: u16,
    vectors: u16,
}

/// A doorbell of an emulated device. A write to it makes a CQE of zeros, one per arm.
#[derive(Debug)]
pub struct EmulatedDoorbell {
    object: GeneralObject,
    _parents: (Arc<EmulatedDevice>, Arc<CqObject>),
}

/// State of a doorbell of an emulated device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EmulatedDoorbellInfo {
    /// The last value written to the doorbell.
    pub value: u32,
    /// Number of writes to the doorbell, modulo 2^32.
    pub rings: u32,
    /// Whether the next write makes a CQE.
    pub armed: bool,
    /// Whether the doorbell was written to and has made no CQE since: an arm then makes one at
    /// once.
    pub pending: bool,
}

impl Device {
    /// Creates an event queue of the DPA.
    ///
    /// # Errors
    /// The memory is too short for the entries; the emulated device has no such vector;
    /// `always_armed` is set without a vector.
    pub fn create_dpa_eq(&self, _: &ModelToken, attr: DpaEqAttr) -> Result<DpaEq, Error> {
        let parts =
            [("memory of the ring", attr.ring.umem().context()), ("UAR", attr.uar.context())];
        all_of(self, "CREATE_GENERAL_OBJECT", parts)?;
        fits("CREATE_GENERAL_OBJECT", "log2 of the entries", attr.log_entries.into(), 5)?;
        let mut context = prm::DpaEq::default();
        context
            .set_umem_id(attr.ring.umem().id())
            .set_umem_offset(attr.ring.offset())
            .set_log_eq_size(attr.log_entries)
            .set_always_armed(attr.always_armed)
            .set_overrun(attr.ignore_overrun)
            .set_uar_page(attr.uar.page_id());
        if let Some((device, vector)) = &attr.raises {
            context.set_device_valid(true).set_device_id(device.id()).set_vector(*vector);
        }
        let object = make(self, GeneralObjectType::DPA_EQ, &context)?;
        Ok(DpaEq { object, attr })
    }

    /// Creates an emulated device with these numbers of queues and MSI-X vectors.
    ///
    /// # Errors
    /// It has no queue, or more than 64 vectors.
    pub fn create_emulated_device(
        &self,
        _: &ModelToken,
        queues: u16,
        vectors: u16,
    ) -> Result<Arc<EmulatedDevice>, Error> {
        let mut context = prm::DpaEmulatedDevice::default();
        context.set_queues(queues).set_vectors(vectors);
        let object = make(self, GeneralObjectType::DPA_EMULATED_DEVICE, &context)?;
        Ok(Arc::new(EmulatedDevice { object, queues, vectors }))
    }

    /// Attaches to the doorbell of a queue of an emulated device: a write to it then makes a CQE.
    ///
    /// # Errors
    /// The device has no such queue; its doorbell is already attached.
    pub fn create_emulated_doorbell(
        &self,
        device: &Arc<EmulatedDevice>,
        queue: u16,
        cq: &Arc<CqObject>,
    ) -> Result<EmulatedDoorbell, Error> {
        let parts = [("emulated device", device.context()), ("CQ", cq.object().context())];
        all_of(self, "CREATE_GENERAL_OBJECT", parts)?;
        let mut context = prm::DpaEmulatedDoorbell::default();
        context.set_device_id(device.id()).set_queue(queue).set_cqn(cq.cqn().0);
        let object = make(self, GeneralObjectType::DPA_EMULATED_DOORBELL, &context)?;
        Ok(EmulatedDoorbell { object, _parents: (device.clone(), cq.clone()) })
    }
}

impl DpaEq {
    /// The queue's object id. CQs and outboxes refer to it.
    pub fn id(&self) -> u32 {
        self.object.id()
    }

    /// The attributes that the queue was created with.
    pub const fn attr(&self) -> &DpaEqAttr {
        &self.attr
    }

    /// Queries the indexes of the queue and whether it is armed.
    pub fn query(&self) -> Result<DpaEqInfo, Error> {
        let context: prm::DpaEq = query(&self.object)?;
        Ok(DpaEqInfo {
            producer: context.producer(),
            consumer: context.consumer(),
            armed: context.armed(),
        })
    }

    /// Destroys the event queue.
    ///
    /// # Errors
    /// A CQ still targets it.
    pub fn destroy(self) -> Result<(), Error> {
        self.object.destroy()
    }
}

impl EmulatedDevice {
    /// The object id of the emulated device.
    pub fn id(&self) -> u32 {
        self.object.id()
    }

    /// The context in which the emulated device was created.
    pub fn context(&self) -> &Context {
        self.object.context()
    }

    /// The number of queues, each with a doorbell.
    pub const fn queues(&self) -> u16 {
        self.queues
    }

    /// The number of MSI-X vectors.
    pub const fn vectors(&self) -> u16 {
        self.vectors
    }

    /// Destroys the emulated device.
    ///
    /// # Errors
    /// It still has event queues or doorbells.
    pub fn destroy(self) -> Result<(), Error> {
        self.object.destroy()
    }

    /// Does the host's part: writes a word to the doorbell of a queue.
    ///
    /// # Errors
    /// It has no such queue.
    pub fn ring(&self, queue: u16, value: u32) -> Result<(), Error> {
        let mut context = prm::DpaEmulatedDevice::default();
        context.set_doorbell_queue(queue).set_doorbell(value);
        self.object.modify(context.as_bytes())
    }

    /// Number of times that each vector was raised, modulo 2^32.
    pub fn raised(&self) -> Result<Vec<u32>, Error> {
        let context: prm::DpaEmulatedDevice = query(&self.object)?;
        Ok((0..context.vectors()).map(|vector| context.raised(vector.into())).collect())
    }
}

impl EmulatedDoorbell {
    /// The doorbell's object id: the emulation context of outboxes.
    pub fn id(&self) -> u32 {
        self.object.id()
    }

    /// Destroys the attachment: writes to the doorbell make no more CQEs.
    ///
    /// # Errors
    /// The device does not respond.
    pub fn destroy(self) -> Result<(), Error> {
        self.object.destroy()
    }

    /// Queries the doorbell.
    pub fn query(&self) -> Result<EmulatedDoorbellInfo, Error> {
        let context: prm::DpaEmulatedDoorbell = query(&self.object)?;
        Ok(EmulatedDoorbellInfo {
            value: context.value(),
            rings: context.rings(),
            armed: context.armed(),
            pending: context.pending(),
        })
    }
}
