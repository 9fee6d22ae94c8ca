//! Event queues of the DPA, PCI devices that its programs emulate, and doorbells of those.
//!
//! Hardware's commands for them are published nowhere. As with processes ([`Device::as_model`]),
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
    /// Memory of the entries, 64 bytes each: the host's, or the heap of a process. Software has
    /// marked each as the device's before (owner bit 1).
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

/// An event queue of the DPA, which CQs name ([`CqElement::DpaEq`](crate::CqElement::DpaEq)). Its
/// entries are those of other EQs; programs take them and tell the device so by an outbox.
#[derive(Debug)]
pub struct DpaEq {
    object: GeneralObject,
    attr: DpaEqAttr,
}

/// How far an event queue of the DPA is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DpaEqInfo {
    /// Index of the next entry that the device writes (26 bits).
    pub producer: u32,
    /// Entries that programs have taken, as the last doorbell said (26 bits).
    pub consumer: u32,
    /// The next entry raises the vector.
    pub armed: bool,
}

/// A PCI device that programs of the DPA emulate. The model has no host for it: what that would do
/// is [`ring`](Self::ring), what it would see is [`raised`](Self::raised).
#[derive(Debug)]
pub struct EmulatedDevice {
    object: GeneralObject,
    queues: u16,
    vectors: u16,
}

/// A doorbell of an emulated device that makes CQEs of zeros, one each time that a program has
/// armed it.
#[derive(Debug)]
pub struct EmulatedDoorbell {
    object: GeneralObject,
    _parents: (Arc<EmulatedDevice>, Arc<CqObject>),
}

/// How a doorbell of an emulated device is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EmulatedDoorbellInfo {
    /// The value that was last written to the doorbell.
    pub value: u32,
    /// How often the doorbell was rung, modulo 2^32.
    pub rings: u32,
    /// Whether the next ring makes a CQE.
    pub armed: bool,
    /// Whether the doorbell was rung and has made no CQE since: arming it makes one at once.
    pub pending: bool,
}

impl Device {
    /// Makes an event queue of the DPA.
    ///
    /// # Errors
    /// The memory is too short for the entries; the emulated device has no such vector; it is
    /// always armed and raises none.
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

    /// Makes an emulated device with these numbers of queues and MSI-X vectors.
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

    /// Attaches to the doorbell of a queue of an emulated device, so that rings make CQEs.
    ///
    /// # Errors
    /// The device has no such queue, or somebody has its doorbell already.
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
    /// The queue's object id, by which CQs and outboxes refer to it.
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
    /// A CQ still names it.
    pub fn destroy(self) -> Result<(), Error> {
        self.object.destroy()
    }
}

impl EmulatedDevice {
    /// The object id of the emulated device.
    pub fn id(&self) -> u32 {
        self.object.id()
    }

    /// The context in which the emulated device was made.
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
    /// Event queues or doorbells are still of it.
    pub fn destroy(self) -> Result<(), Error> {
        self.object.destroy()
    }

    /// Does what the host of such a device does: writes a word to the doorbell of a queue.
    ///
    /// # Errors
    /// It has no such queue.
    pub fn ring(&self, queue: u16, value: u32) -> Result<(), Error> {
        let mut context = prm::DpaEmulatedDevice::default();
        context.set_doorbell_queue(queue).set_doorbell(value);
        self.object.modify(context.as_bytes())
    }

    /// How often each vector was raised, modulo 2^32.
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

    /// Destroys the attachment: rings of the doorbell make no more CQEs.
    ///
    /// # Errors
    /// The device does not answer.
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
