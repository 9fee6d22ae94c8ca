//! Replaces `dpa` in a build without that feature: no device has a DPA, whatever its profile says.

use std::sync::Arc;

use crate::profile::DpaNumbers;

/// A DPA, which cannot exist here.
pub(crate) enum Dpa {}

impl Dpa {
    pub(crate) fn of(_: &DpaNumbers) -> Option<Arc<Self>> {
        None
    }

    pub(crate) fn remove_groups(&self, _: Option<u16>) {
        match *self {}
    }

    pub(crate) fn halt(&self) {
        match *self {}
    }

    pub(crate) fn unhalt(&self) {
        match *self {}
    }
}

/// There are no programs, and no threads that run them.
#[derive(Default)]
pub(crate) struct Waker;

impl Waker {
    pub(crate) fn close(&self) {}
}
