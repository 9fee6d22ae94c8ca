//! The thread context: 64 little-endian bytes with the addresses of a thread's outboxes and
//! windows, in which the system also stores errors that do not end the process.
//!
//! `ThreadContext::current` returns the thread's own. The system rewrites it at the start of each
//! run, so the outbox and the windows that a run selects last until its end; a thread that yields
//! keeps them.

use core::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering};

use crate::metadata::ThreadMetadata;
use crate::outbox::{self, Outbox};
use crate::status::Failed;
use crate::window::Window;

/// One of a thread's two windows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WindowEntity {
    /// The primary window; the only one of older versions of the API.
    Primary = 0,
    /// The secondary window.
    Secondary = 1,
}

/// The thread context, in the layout of the headers of FlexIO SDK 25.1.
#[derive(Debug)]
#[repr(C, align(8))]
pub struct ThreadContext {
    /// Version of the outbox page: 9.
    pub version: u32,
    default_outbox_config_id: AtomicU16,
    default_primary_window_config_id: AtomicU16,
    outbox_base: AtomicU64,
    /// Address of the per-application tables.
    pub per_app_table_base: u64,
    /// Address of the configuration of window 0.
    pub window_config_base: u64,
    metadata_parameter: AtomicU64,
    /// The last error; the system writes it, too.
    os_errno: AtomicU32,
    /// log2 of the stride of the per-application tables.
    pub per_app_table_vhca_id_shift: u8,
    /// log2 of the bytes of a window's configuration.
    pub window_config_log_size: u8,
    default_secondary_window_config_id: AtomicU16,
    /// Top byte of every address in a window.
    pub window_msbs: u8,
    /// log2 of the bytes of a window.
    pub window_log_size: u8,
    /// log2 of the number of windows.
    pub window_ix_log_size: u8,
    reserved: [u8; 13],
}

impl ThreadContext {
    /// No outbox or window. The model's own choice.
    pub const NONE: u16 = 0xffff;

    /// The last error that did not end the process; 0 if there was none (`flexio_dev_get_errno`).
    pub fn errno(&self) -> u32 {
        self.os_errno.load(Ordering::Relaxed)
    }

    /// Clears the last error (`flexio_dev_rst_errno`).
    pub fn reset_errno(&self) {
        self.os_errno.store(0, Ordering::Relaxed);
    }

    /// Clears the last error and returns it, in one step (`flexio_dev_get_and_rst_errno`): an error
    /// that occurs meanwhile is either returned or kept.
    pub fn take_errno(&self) -> u32 {
        self.os_errno.swap(0, Ordering::Relaxed)
    }

    /// The `metadata_parameter` that the host gave the thread: 0, or the address of its
    /// [`ThreadMetadata`].
    pub fn metadata_parameter(&self) -> u64 {
        self.metadata_parameter.load(Ordering::Relaxed)
    }

    /// The thread's metadata; `None` if the host gave none, or a misaligned address.
    pub fn metadata(&self) -> Option<ThreadMetadata> {
        match self.metadata_parameter() {
            address if address != 0 && address.is_multiple_of(8) => {
                Some(ThreadMetadata::read(address))
            }
            _ => None,
        }
    }

    /// Address of the page of the thread's outbox.
    pub fn outbox_base(&self) -> u64 {
        self.outbox_base.load(Ordering::Relaxed)
    }

    /// Address of the page of outbox `id`. Consecutive pages are the model's choice.
    pub fn outbox_address(&self, id: u16) -> u64 {
        let page = |id: u16| u64::from(id) * outbox::PAGE_BYTES as u64;
        self.outbox_base().wrapping_sub(page(self.outbox_id())).wrapping_add(page(id))
    }

    /// The thread's outbox: the one that it was created with, or selected since; [`Self::NONE`] if
    /// there is none.
    pub fn outbox_id(&self) -> u16 {
        self.default_outbox_config_id.load(Ordering::Relaxed)
    }

    /// The thread's outbox. If there is none, ringing ends the process.
    pub fn outbox(&self) -> Outbox<'_> {
        Outbox::at(self.outbox_base())
    }

    /// Selects outbox `id` until the end of the run (`flexio_dev_outbox_config`). A system call
    /// checks that the process has it.
    ///
    /// # Errors
    /// The process has no such outbox: the thread keeps its current one.
    pub fn set_outbox(&self, id: u16) -> Result<(), Failed> {
        has(Config::Outbox, id)?;
        self.set_outbox_unchecked(id);
        Ok(())
    }

    /// Selects outbox `id` like [`Self::set_outbox`], without the check
    /// (`flexio_dev_outbox_config_fast`): if the process does not have it, the first doorbell ends
    /// the process.
    pub fn set_outbox_unchecked(&self, id: u16) {
        self.outbox_base.store(self.outbox_address(id), Ordering::Relaxed);
        self.default_outbox_config_id.store(id, Ordering::Relaxed);
    }

    const fn window_id(&self, entity: WindowEntity) -> &AtomicU16 {
        match entity {
            WindowEntity::Primary => &self.default_primary_window_config_id,
            WindowEntity::Secondary => &self.default_secondary_window_config_id,
        }
    }

    /// Window `id`. If the process does not have it, an access ends the process.
    pub(crate) fn window_at(&self, id: u16) -> Window<'_> {
        let (config, base) = (self.window_config_address(id), self.window_address(id, 0));
        Window::at(id, config, base, self.window_log_size)
    }

    /// The window that the thread was created with, or selected since.
    ///
    /// # Errors
    /// The thread has none.
    pub fn window(&self, entity: WindowEntity) -> Result<Window<'_>, Failed> {
        match self.window_id(entity).load(Ordering::Relaxed) {
            Self::NONE => Err(Failed),
            id => Ok(self.window_at(id)),
        }
    }

    /// Selects window `id` with the memory key `mkey` for `entity`, until the end of the run
    /// (`flexio_dev_window_config`). A system call checks that the process has it.
    ///
    /// # Errors
    /// The process has no such window: the thread keeps its current one, and its key.
    pub fn set_window(&self, entity: WindowEntity, id: u16, mkey: u32) -> Result<(), Failed> {
        has(Config::Window, id)?;
        self.window_at(id).set_mkey(mkey);
        self.window_id(entity).store(id, Ordering::Relaxed);
        Ok(())
    }

    /// Address of the word with the memory key of window `id`. Its computation is the model's
    /// choice.
    pub fn window_config_address(&self, id: u16) -> u64 {
        self.window_config_base + (u64::from(id) << self.window_config_log_size)
    }

    /// Address in window `id` for `host`, an address of the host. It keeps the low
    /// `window_log_size` bits of `host`. Its computation is the model's choice.
    pub fn window_address(&self, id: u16, host: u64) -> u64 {
        let within = host & ((1 << self.window_log_size) - 1);
        u64::from(self.window_msbs) << 56 | u64::from(id) << self.window_log_size | within
    }
}

/// An object that a thread selects by its number.
#[derive(Clone, Copy)]
enum Config {
    Outbox,
    Window,
}

/// Checks that the process has the outbox or window `id`.
fn has(config: Config, id: u16) -> Result<(), Failed> {
    #[cfg(any(doc, test, all(target_arch = "riscv64", target_os = "none")))]
    return match config {
        Config::Outbox => crate::system::has_outbox(id),
        Config::Window => crate::system::has_window(id),
    };
    #[cfg(not(any(doc, test, all(target_arch = "riscv64", target_os = "none"))))]
    unreachable!("{}", {
        let _ = (config, id);
        "only a thread of a DPA has a context"
    });
}

#[cfg(test)]
impl ThreadContext {
    /// A context for tests, with outbox 0 at `outbox_base`, outbox 1 selected, and the windows'
    /// configurations at `window_config_base`.
    pub(crate) fn at(outbox_base: u64, window_config_base: u64, window_msbs: u8) -> Self {
        Self {
            version: 9,
            default_outbox_config_id: AtomicU16::new(1),
            default_primary_window_config_id: AtomicU16::new(2),
            outbox_base: AtomicU64::new(outbox_base + outbox::PAGE_BYTES as u64),
            per_app_table_base: 0,
            window_config_base,
            metadata_parameter: AtomicU64::new(0),
            os_errno: AtomicU32::new(7),
            per_app_table_vhca_id_shift: 0,
            window_config_log_size: 6,
            default_secondary_window_config_id: AtomicU16::new(Self::NONE),
            window_msbs,
            window_log_size: 48,
            window_ix_log_size: 8,
            reserved: [0; 13],
        }
    }

    /// The context of a thread whose metadata is at `address`.
    pub(crate) fn with_metadata(self, address: u64) -> Self {
        self.metadata_parameter.store(address, Ordering::Relaxed);
        self
    }
}

#[cfg(test)]
mod tests {
    use core::mem::{offset_of, size_of};

    use super::*;
    use crate::system::tests::answering;

    fn context() -> ThreadContext {
        ThreadContext::at(0x10_0000, 0x20_0000, 0xc0)
    }

    #[test]
    fn thread_context_layout_matches_headers() {
        assert_eq!(size_of::<ThreadContext>(), 64);
        let offsets = [
            offset_of!(ThreadContext, version),
            offset_of!(ThreadContext, default_outbox_config_id),
            offset_of!(ThreadContext, default_primary_window_config_id),
            offset_of!(ThreadContext, outbox_base),
            offset_of!(ThreadContext, per_app_table_base),
            offset_of!(ThreadContext, window_config_base),
            offset_of!(ThreadContext, metadata_parameter),
            offset_of!(ThreadContext, os_errno),
            offset_of!(ThreadContext, per_app_table_vhca_id_shift),
            offset_of!(ThreadContext, window_config_log_size),
            offset_of!(ThreadContext, default_secondary_window_config_id),
            offset_of!(ThreadContext, window_msbs),
            offset_of!(ThreadContext, window_log_size),
            offset_of!(ThreadContext, window_ix_log_size),
        ];
        let published = [0, 4, 6, 8, 0x10, 0x18, 0x20, 0x28, 0x2c, 0x2d, 0x2e, 0x30, 0x31, 0x32];
        assert_eq!(offsets, published);
    }

    #[test]
    fn take_errno_returns_and_clears() {
        let context = context();
        assert_eq!(context.errno(), 7);
        assert_eq!(context.take_errno(), 7);
        assert_eq!(context.errno(), 0);
        context.os_errno.store(2, Ordering::Relaxed);
        context.reset_errno();
        assert_eq!(context.take_errno(), 0);
    }

    #[test]
    fn metadata_requires_aligned_address() {
        let memory = [7_u64, 0x40, u64::from_le_bytes(*b"name\0\0\0\0"), 0];
        let address = memory.as_ptr().expose_provenance() as u64;
        let of = |address| context().with_metadata(address);
        assert_eq!(of(address).metadata_parameter(), address);
        assert_eq!(of(address).metadata(), Some(ThreadMetadata::new(7, 0x40, "name")));
        assert_eq!([of(0), of(address + 4)].map(|it| it.metadata()), [None; 2]);
    }

    #[test]
    fn outbox_and_window_addresses_follow_ids() {
        let context = context();
        assert_eq!(context.outbox_address(3), 0x10_3000);
        assert_eq!(context.window_config_address(2), 0x20_0080);
        assert_eq!(context.window_address(2, 0xffff_7fff_1234_5678), 0xc002_7fff_1234_5678);
        assert_eq!(context.window(WindowEntity::Primary).unwrap().id(), 2);
        assert!(context.window(WindowEntity::Secondary).is_err());
    }

    #[test]
    fn unknown_outbox_or_window_keeps_current_one() {
        let context = context();
        assert_eq!((context.outbox_id(), context.outbox().address()), (1, 0x10_1000));
        answering(4, || {
            assert_eq!(context.set_outbox(3), Err(Failed));
            assert_eq!(context.set_window(WindowEntity::Primary, 3, 1), Err(Failed));
        });
        assert_eq!((context.outbox_id(), context.outbox().address()), (1, 0x10_1000));
        assert_eq!(context.window(WindowEntity::Primary).unwrap().id(), 2);
        context.set_outbox(255).unwrap();
        assert_eq!(context.outbox().address(), 0x10_0000 + 255 * 4096);
        assert_eq!(context.outbox_id(), 255);
    }
}
