//! The keys of devices to a range.

use std::any::Any;
use std::sync::OnceLock;

use verbless_command::AccessKey;
use verbless_queue::{Lkey, Region, Rkey, SharedRegion};

use crate::device::Dev;

/// The keys of one device.
#[derive(Debug)]
pub(crate) struct DeviceKey {
    pub(super) dev: Dev,
    pub(super) lkey: Option<Lkey>,
    pub(super) rkey: Option<Rkey>,
    /// The key for the DPU.
    pub(super) shared: OnceLock<DpuKey>,
    /// The owner of the keys: a registration of local memory, or an alias; `None` for keys of a
    /// peer.
    _held: Option<Box<dyn Any + Send + Sync>>,
}

/// A key for the DPU, separate from the key for devices of this side and peers: knowledge of that
/// one gives no right to this one.
#[derive(Debug)]
pub(super) struct DpuKey {
    pub(super) region: SharedRegion,
    pub(super) secret: AccessKey,
    pub(super) _key: Region,
}

impl DeviceKey {
    pub(super) fn new(
        dev: &Dev,
        (lkey, rkey): (Option<Lkey>, Option<Rkey>),
        held: Option<Box<dyn Any + Send + Sync>>,
    ) -> Self {
        Self { dev: dev.clone(), lkey, rkey, shared: OnceLock::new(), _held: held }
    }

    #[inline]
    pub(crate) const fn lkey(&self) -> Option<Lkey> {
        self.lkey
    }

    #[inline]
    pub(crate) const fn rkey(&self) -> Option<Rkey> {
        self.rkey
    }
}

/// The keys of a range, by device. They are added while buffers point there, and removed only
/// without buffers.
#[derive(Debug, Default)]
pub(super) struct Keys {
    /// The only device's keys in most maps.
    first: OnceLock<DeviceKey>,
    rest: OnceLock<Box<Keys>>,
}

impl Keys {
    pub(super) fn add(&self, mut key: DeviceKey) {
        let mut here = self;
        while let Err(back) = here.first.set(key) {
            key = back;
            here = here.rest.get_or_init(Box::default);
        }
    }

    #[inline]
    pub(super) fn first(&self) -> Option<&DeviceKey> {
        self.first.get()
    }

    #[inline]
    pub(super) fn of(&self, dev: &Dev) -> Option<&DeviceKey> {
        let all = std::iter::successors(Some(self), |here| here.rest.get().map(|rest| &**rest));
        all.filter_map(|here| here.first.get()).find(|key| key.dev == *dev)
    }

    /// Drops the keys of a device.
    pub(super) fn remove(&mut self, dev: &Dev) {
        let (mut rest, mut kept) = (std::mem::take(self), Vec::new());
        loop {
            kept.extend(rest.first.take().filter(|key| key.dev != *dev));
            match rest.rest.take() {
                Some(next) => rest = *next,
                None => break,
            }
        }
        kept.into_iter().for_each(|key| self.add(key));
    }
}
