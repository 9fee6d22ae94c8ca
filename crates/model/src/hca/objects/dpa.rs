//! Processes of the DPA and their objects, its event queues, and the devices that it emulates.

use std::sync::Arc;

use verbless_prm::{
    DpaCall as DpaCallContext, DpaCoreDump as DpaCoreDumpContext,
    DpaEmulatedDevice as DpaEmulatedDeviceContext,
    DpaEmulatedDoorbell as DpaEmulatedDoorbellContext, DpaEq as DpaEqContext,
    DpaOutbox as DpaOutboxContext, DpaProcess as DpaProcessContext, DpaThread as DpaThreadContext,
    DpaUarExtension as UarExtensionContext, DpaWindow as DpaWindowContext,
};

use super::completions::EventRing;
use super::uid::Uid;

/// A process of the DPA.
#[derive(Debug)]
pub(crate) struct DpaProcess {
    pub uid: Uid,
    /// UMEM of the process's heap.
    pub heap: u32,
    pub context: DpaProcessContext,
}

/// A thread of the DPA.
#[derive(Debug)]
pub(crate) struct DpaThread {
    pub uid: Uid,
    pub context: DpaThreadContext,
}

/// A call of a function on the DPA.
#[derive(Debug)]
pub(crate) struct DpaCall {
    pub uid: Uid,
    pub context: DpaCallContext,
}

/// A page of doorbells for the DPA.
#[derive(Debug)]
pub(crate) struct DpaOutbox {
    pub uid: Uid,
    pub context: DpaOutboxContext,
}

/// A UAR page whose queues a process of another function's DPA may ring.
#[derive(Debug)]
pub(crate) struct UarExtension {
    pub uid: Uid,
    pub context: UarExtensionContext,
}

/// A window of the DPA.
#[derive(Debug)]
pub(crate) struct DpaWindow {
    pub uid: Uid,
    pub context: DpaWindowContext,
}

/// A core dump, written or in progress.
#[derive(Debug)]
pub(crate) struct DpaCoreDump {
    pub uid: Uid,
    pub context: DpaCoreDumpContext,
    /// Identifies the object during the write; a later object of the same number has another mark.
    pub mark: Arc<()>,
}

/// An event queue of the DPA.
#[derive(Debug)]
pub(crate) struct DpaEq {
    pub uid: Uid,
    pub ring: EventRing,
    pub context: DpaEqContext,
}

impl DpaEq {
    /// The emulated device and vector that the EQ raises when armed.
    pub(crate) fn raises(&self) -> Option<(u32, u16)> {
        let context = &self.context;
        context.device_valid().then(|| (context.device_id(), context.vector()))
    }
}

/// A PCI device that programs of the DPA emulate.
#[derive(Debug)]
pub(crate) struct EmulatedDevice {
    pub uid: Uid,
    pub context: DpaEmulatedDeviceContext,
}

impl EmulatedDevice {
    /// Counts a raised vector.
    pub(crate) fn raise(&mut self, vector: u16) {
        let raised = self.context.raised(vector.into()).wrapping_add(1);
        self.context.set_raised(vector.into(), raised);
    }
}

/// A CQE-generating doorbell of an emulated device.
#[derive(Debug)]
pub(crate) struct EmulatedDoorbell {
    pub uid: Uid,
    pub context: DpaEmulatedDoorbellContext,
}
