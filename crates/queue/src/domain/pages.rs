//! UAR pages of a domain, and the BlueFlame registers on them.

use std::sync::Arc;

use verbless_command::{Device, Error};
use verbless_devx::{Uar, UarKind};
use verbless_ring::uar::{SendDoorbell, UarPage};

use super::pool::layout;
use crate::page::map_uar;

/// A UAR page, by its number for contexts and by its mapping.
#[derive(Clone, Debug)]
pub(super) struct Page {
    pub(super) uar: Arc<Uar>,
    pub(super) memory: UarPage,
}

impl Page {
    pub(super) fn new(device: &Device, kind: UarKind) -> Result<Self, Error> {
        let (uar, memory) = map_uar(device.uar_alloc(kind)?).map_err(layout)?;
        Ok(Self { uar, memory })
    }

    /// A free BlueFlame register. The kernel gives a user two per page.
    pub(super) fn register(&self, buffer: usize) -> Option<(Self, SendDoorbell)> {
        (0..REGISTERS_PER_PAGE).find_map(|register| {
            let offset = FIRST_REGISTER + register * 2 * buffer;
            let doorbell = self.memory.blueflame(offset, buffer).ok()?;
            Some((self.clone(), doorbell))
        })
    }
}

/// Default limit of UAR pages that a domain takes for BlueFlame.
pub const BLUEFLAME_PAGES: usize = 8;
/// BlueFlame registers of a page that a user may use.
const REGISTERS_PER_PAGE: usize = 2;
/// Byte offset of the first.
const FIRST_REGISTER: usize = 0x800;
