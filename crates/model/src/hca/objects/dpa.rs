//! Processes of the DPA and what is theirs.

use std::sync::Arc;

use verbless_prm::{
    DpaCall as DpaCallContext, DpaCoreDump as DpaCoreDumpContext, DpaOutbox as DpaOutboxContext,
    DpaProcess as DpaProcessContext, DpaThread as DpaThreadContext,
    DpaUarExtension as UarExtensionContext, DpaWindow as DpaWindowContext,
};

use super::shared::Uid;

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

/// A UAR page whose queues a process of another function's DPA may ring for.
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

/// A core dump that was written.
#[derive(Debug)]
pub(crate) struct DpaCoreDump {
    pub uid: Uid,
    pub context: DpaCoreDumpContext,
    /// Identifies the object while it is written; a later object of the same number has another
    /// mark.
    pub mark: Arc<()>,
}
