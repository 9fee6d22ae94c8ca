//! One function as a vfio-user device: handles the client's accesses to its regions.

use std::fs::File;
use std::io;
use std::sync::Arc;

use vfio_bindings::bindings::vfio::{
    VFIO_IRQ_SET_DATA_EVENTFD, VFIO_IRQ_SET_DATA_NONE, VFIO_PCI_BAR0_REGION_INDEX,
    VFIO_PCI_CONFIG_REGION_INDEX, VFIO_PCI_MSIX_IRQ_INDEX,
};
use vfio_user::{DmaMapFlags, DmaUnmapFlags, ServerBackend};

use super::bar::Registers;
use super::config::{ConfigSpace, Effect};
use super::interrupts::Vectors;
use super::layout::Layout;
use verbless_model::device::Device;
use verbless_model::memory::GuestMemory;

/// A function, and the memory and vectors that its client provided.
pub(super) struct Function {
    pub device: Device,
    pub memory: Arc<GuestMemory>,
    pub config: ConfigSpace,
    pub registers: Registers,
    pub vectors: Arc<Vectors>,
    pub layout: Layout,
}

impl Function {
    /// Resets the function to the state after power-on.
    fn restart(&mut self) {
        self.device.reset();
        self.registers = Registers::new();
        self.config.reset();
        self.follow_command_register();
    }

    /// Does DMA and raises vectors from now on as the command register lets it.
    pub(super) fn follow_command_register(&mut self) {
        let on = self.config.is_bus_master();
        if self.vectors.set_bus_master(on) {
            self.device.set_bus_master(&self.memory, on);
        }
    }

    /// Handles the end of the client, and so of its memory and vectors.
    pub(super) fn client_left(&mut self) {
        self.restart();
        self.vectors.clear();
        self.device.unmap(&self.memory, 0, u64::MAX);
    }
}

fn invalid() -> io::Error {
    io::Error::from_raw_os_error(libc::EINVAL)
}

impl ServerBackend for Function {
    fn region_read(&mut self, region: u32, offset: u64, data: &mut [u8]) -> io::Result<()> {
        match region {
            VFIO_PCI_CONFIG_REGION_INDEX => self.config.read(offset, data),
            VFIO_PCI_BAR0_REGION_INDEX if offset < self.layout.doorbells => {
                self.registers.read(&self.device, offset, data);
            }
            // Doorbell registers are for writing.
            _ => data.fill(0),
        }
        Ok(())
    }

    fn region_write(&mut self, region: u32, offset: u64, data: &[u8]) -> io::Result<()> {
        match region {
            VFIO_PCI_CONFIG_REGION_INDEX => {
                if self.config.write(offset, data) == Effect::Reset {
                    self.restart();
                }
                self.follow_command_register();
            }
            VFIO_PCI_BAR0_REGION_INDEX if offset < self.layout.doorbells => {
                self.registers.write(&self.device, offset, data);
            }
            VFIO_PCI_BAR0_REGION_INDEX if offset < self.layout.bytes => {
                self.device.trapped_write(offset, data);
            }
            _ => tracing::debug!(region, offset, "a write to no register"),
        }
        Ok(())
    }

    fn dma_map(
        &mut self,
        flags: DmaMapFlags,
        offset: u64,
        address: u64,
        size: u64,
        file: Option<File>,
    ) -> io::Result<()> {
        // What comes without a file is no memory: a ROM, or this BAR itself.
        let Some(file) = file else { return Ok(()) };
        let writable = flags.contains(DmaMapFlags::WRITE);
        let mapped = self.memory.map(address, size, &file, offset, writable);
        tracing::debug!(address, size, offset, ?flags, ?mapped, "guest memory");
        mapped
    }

    fn dma_unmap(&mut self, flags: DmaUnmapFlags, address: u64, size: u64) -> io::Result<()> {
        tracing::debug!(address, size, ?flags, "guest memory goes");
        let all = flags.contains(DmaUnmapFlags::UNMAP_ALL);
        let (address, size) = if all { (0, u64::MAX) } else { (address, size) };
        self.device.unmap(&self.memory, address, size);
        Ok(())
    }

    fn reset(&mut self) -> io::Result<()> {
        self.restart();
        Ok(())
    }

    fn set_irqs(
        &mut self,
        index: u32,
        flags: u32,
        start: u32,
        count: u32,
        eventfds: Vec<File>,
    ) -> io::Result<()> {
        if index != VFIO_PCI_MSIX_IRQ_INDEX {
            return Ok(());
        }
        let set = if flags & VFIO_IRQ_SET_DATA_NONE != 0 && count == 0 {
            self.vectors.clear();
            true
        } else if flags & VFIO_IRQ_SET_DATA_EVENTFD != 0 && eventfds.is_empty() {
            let end = start.checked_add(count).ok_or_else(invalid)?;
            self.vectors.set(start, (start..end).map(|_| None))
        } else {
            self.vectors.set(start, eventfds.into_iter().map(Some))
        };
        if set { Ok(()) } else { Err(invalid()) }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::{AsFd, OwnedFd};

    use nix::sys::eventfd::{EfdFlags, EventFd};
    use verbless_model::memory::{HostMemory, Interrupts};
    use verbless_prm::EnableHcaIn;

    use super::super::rig::{Driver, MEMORY, QUEUE};
    use super::*;

    /// Bits of the command register: answers to accesses of its BAR, bus mastering.
    const ACCESSES: u16 = 0x2;
    const MASTER: u16 = 0x4;

    #[test]
    fn a_function_that_is_no_bus_master_reaches_no_memory_and_sends_no_message() {
        let mut driver = Driver::new();
        let counter = EventFd::from_value_and_flags(0, EfdFlags::EFD_NONBLOCK).unwrap();
        let copy: OwnedFd = counter.as_fd().try_clone_to_owned().unwrap();
        let index = VFIO_PCI_MSIX_IRQ_INDEX;
        let function = &mut driver.function;
        function.set_irqs(index, VFIO_IRQ_SET_DATA_EVENTFD, 0, 1, vec![copy.into()]).unwrap();
        let entry = driver.entry(EnableHcaIn::new().as_bytes(), 16);
        driver.put(0, &entry);
        // A reset takes it away, as the register is 0 then; so does the driver.
        for way in 0..3 {
            match way {
                0 => driver.command_register(ACCESSES),
                1 => driver.function.reset().unwrap(),
                _ => driver.function.restart(),
            }
            assert!(driver.memory.read(MEMORY, &mut [0; 8]).is_err());
            assert!(driver.memory.write(MEMORY, &[0; 8]).is_err());
            assert!(driver.memory.direct(MEMORY, 8).is_none());
            driver.write(0x10, (QUEUE >> 32) as u32);
            driver.write(0x14, QUEUE as u32);
            driver.write(0x18, 1);
            driver.function.vectors.raise(0);
            driver.command_register(ACCESSES | MASTER);
            assert_eq!(driver.get(0), entry, "the command was not seen");
            assert!(counter.read().is_err(), "the message was not sent");
        }
        assert_ne!(driver.ring(&entry), entry, "a bus master sees it");
        driver.function.vectors.raise(0);
        assert_eq!(counter.read(), Ok(1));
    }
}
