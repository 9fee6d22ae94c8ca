//! A device object and its attributes, which hold the parents that must outlive it.

use std::fmt;

use verbless_devx::{DevxObject, Error, ErrorKind};

/// A DevX object and its attributes. They hold its parents: the protection domain, user memory and
/// queues that the device may reach through it.
///
/// The object is destroyed first. If the device refuses, it may still use the parents, so they are
/// leaked with it (the context counts such objects) and their memory is never freed. If the device
/// was removed, the parents are dropped: their memory stays until the device's file closes (see
/// [`UserMemory`](crate::UserMemory)).
pub(crate) struct Owned<A> {
    /// `None` only during the drop.
    held: Option<(DevxObject, A)>,
}

impl<A> Owned<A> {
    pub(crate) fn new(object: DevxObject, attr: A) -> Self {
        Self { held: Some((object, attr)) }
    }

    pub(crate) fn attr(&self) -> &A {
        &self.get().1
    }

    pub(crate) fn object(&self) -> &DevxObject {
        &self.get().0
    }

    fn get(&self) -> &(DevxObject, A) {
        self.held.as_ref().expect("an object is held until it is dropped")
    }

    /// Destroys the object, then drops its attributes. On failure both are leaked, except after the
    /// device was removed: then the attributes are dropped.
    pub(crate) fn destroy(mut self) -> Result<(), Error> {
        self.destroy_once()
    }

    fn destroy_once(&mut self) -> Result<(), Error> {
        let Some((object, attr)) = self.held.take() else { return Ok(()) };
        object.destroy().map_err(|failed| {
            if failed.error.kind() != ErrorKind::DeviceGone {
                std::mem::forget(attr);
            }
            failed.into()
        })
    }
}

impl<A> Drop for Owned<A> {
    fn drop(&mut self) {
        // The context has counted the leak; a drop cannot return the error.
        let _ = self.destroy_once();
    }
}

impl<A> fmt::Debug for Owned<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.held.as_ref().map(|(object, _)| object).fmt(f)
    }
}
