//! The descriptor inside a buffer.
//!
//! The drop of a buffer returns its descriptor, box included, to its store. An emptied `Option`
//! could serve for that, but an optional buffer would then take two words, which each RDMA job
//! would carry.

#![allow(unsafe_code, reason = "a box is moved out of what is dropped; this module is the place")]

use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};

use super::element::Element;

/// A descriptor, and the linked ones after it.
pub(super) struct Descriptor(ManuallyDrop<Box<Element>>);

impl Descriptor {
    pub(super) const fn new(element: Box<Element>) -> Self {
        Self(ManuallyDrop::new(element))
    }

    /// The box, which does not return to its store.
    pub(super) fn into_box(self) -> Box<Element> {
        let mut this = ManuallyDrop::new(self);
        // SAFETY: `this` is neither dropped nor used again, so the box is moved out once.
        unsafe { ManuallyDrop::take(&mut this.0) }
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        // SAFETY: nothing uses the box after the drop, so it is moved out once.
        let mut next = Some(unsafe { ManuallyDrop::take(&mut self.0) });
        while let Some(mut element) = next {
            next = element.next.take();
            element.release();
        }
    }
}

impl Deref for Descriptor {
    type Target = Element;

    #[inline(always)]
    fn deref(&self) -> &Element {
        &self.0
    }
}

impl DerefMut for Descriptor {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut Element {
        &mut self.0
    }
}
