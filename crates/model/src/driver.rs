//! A driver's handle to a function. A reset ends it: what the driver sends later does not reach the
//! function, which belongs to the next driver.
//!
//! Each call compares the number of resets under the function's lock, so that no reset falls
//! between the comparison and the effect.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use nix::errno::Errno;
use verbless_prm::MkeyContext;

use crate::function::Function;
use crate::hca::Hca;
use crate::memory::Interrupts;

/// A driver's handle to a function, valid until the function's next [reset](Function::reset).
pub struct DriverHandle {
    device: Function,
    resets: u64,
    uar_file: Arc<OwnedFd>,
}

impl Function {
    /// Attaches a driver. The UAR pages get new memory: stores into earlier mappings of them have
    /// no effect from here on, as if the earlier driver had unmapped them (Linux
    /// `uverbs_user_mmap_disassociate`).
    ///
    /// # Errors
    /// The system provides no memfd, or cannot map it.
    pub fn attach(&self) -> io::Result<DriverHandle> {
        let (resets, uar_file) =
            self.peek(|hca| Ok::<_, io::Error>((hca.resets, hca.bar.renew()?)))?;
        Ok(DriverHandle { device: self.clone(), resets, uar_file })
    }
}

impl DriverHandle {
    /// Runs `act` unless the function was reset.
    fn if_attached<R>(&self, act: impl FnOnce(&Hca) -> R) -> Option<R> {
        self.device.peek(|hca| (hca.resets == self.resets).then(|| act(hca)))
    }

    /// Executes a command, as [`Function::execute`] does. False: the function was reset, and the
    /// command did not reach it, or its answer was lost.
    pub fn execute(&self, input: &[u8], output: &mut [u8]) -> bool {
        self.device.execute_if(|hca| hca.resets == self.resets, input, output)
    }

    /// A store to the UAR pages, as [`Function::mmio_write`].
    pub fn mmio_write(&self, offset: u64, bytes: &[u8]) {
        self.device.mmio_write_if(|hca| hca.resets == self.resets, offset, bytes);
    }

    /// Whether the function was not reset, and has not died.
    pub fn is_alive(&self) -> bool {
        self.if_attached(|hca| !hca.fatal).unwrap_or(false)
    }

    /// Whether the driver has lost the function: it was reset or removed.
    pub fn is_released(&self) -> bool {
        self.if_attached(|hca| hca.removed).unwrap_or(true)
    }

    /// Sets the receiver of interrupts. Does nothing after a reset: the vectors are the next
    /// driver's.
    pub fn set_interrupts(&self, interrupts: Option<Arc<dyn Interrupts>>) {
        let is_attached = |hca: &Hca| hca.resets == self.resets;
        self.device.set_interrupts_if(is_attached, interrupts);
    }

    /// Changes a memory key, as [`Function::reconfigure_key`].
    pub fn reconfigure_key(&self, index: u32, change: &MkeyContext) -> bool {
        self.device.reconfigure_key_if(|hca| hca.resets == self.resets, index, change)
    }

    /// The memory of the UAR pages; a client maps its page from offset page ×
    /// [`UAR_PAGE`](crate::memory::UAR_PAGE). The function reads it until the next driver attaches.
    pub fn uar_file(&self) -> BorrowedFd<'_> {
        self.uar_file.as_fd()
    }

    /// Backs a UAR page by a page of another file, as
    /// [`UarSpace::back`](crate::memory::UarSpace::back).
    ///
    /// # Errors
    /// The errors of `UarSpace::back`; EIO after a reset.
    pub fn back_uar(&self, page: u32, file: BorrowedFd<'_>, offset: u64) -> Result<(), Errno> {
        self.if_attached(|hca| hca.bar.back(page, file, offset)).unwrap_or(Err(Errno::EIO))
    }

    /// Restores a UAR page; does nothing after a reset.
    ///
    /// # Errors
    /// The errors of [`UarSpace::unback`](crate::memory::UarSpace::unback).
    pub fn unback_uar(&self, page: u32) -> Result<(), Errno> {
        self.if_attached(|hca| hca.bar.unback(page)).unwrap_or(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use verbless_prm::EnableHcaIn;

    use crate::memory::{CQ_ARM, UAR_PAGE};
    use crate::{Model, Profile};

    fn model() -> Model {
        Model::builder().device(Profile::load("connectx6dx").unwrap()).stepped().build()
    }

    #[test]
    fn command_from_before_reset_is_not_executed() {
        let model = model();
        let enable = EnableHcaIn::new();
        let mut output = [0; 16];
        let earlier = model.device(0).attach().unwrap();
        model.device(0).reset();
        assert!(!earlier.execute(enable.as_bytes(), &mut output));
        let later = model.device(0).attach().unwrap();
        assert!(later.execute(enable.as_bytes(), &mut output));
        assert_eq!(output[0], 0, "the function was not enabled before");
    }

    #[test]
    fn attach_takes_uar_pages_from_earlier_mappings() {
        let model = model();
        let (device, page) = (model.device(0), 3);
        let (space, at) = (device.uars(), u64::from(page) * UAR_PAGE + CQ_ARM);
        let store = |file: std::os::fd::BorrowedFd<'_>| {
            nix::sys::uio::pwrite(file, &7u64.to_be_bytes(), at as i64).unwrap();
            space.take64(page, CQ_ARM)
        };
        let earlier = device.attach().unwrap();
        assert_eq!(store(earlier.uar_file()), 7);
        device.reset();
        let later = device.attach().unwrap();
        assert_eq!(store(earlier.uar_file()), 0);
        assert_eq!(store(later.uar_file()), 7);
        assert_eq!(store(space.file().as_fd()), 7);
    }
}
