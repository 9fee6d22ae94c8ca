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
use super::config::{ConfigEffect, ConfigSpace};
use super::interrupts::Vectors;
use super::layout::Layout;
use verbless_model::function::Function;
use verbless_model::memory::GuestMemory;

/// A function, and the memory and vectors that its client provided.
pub(super) struct PciFunction {
    pub device: Function,
    pub memory: Arc<GuestMemory>,
    pub config: ConfigSpace,
    pub registers: Registers,
    pub vectors: Arc<Vectors>,
    pub layout: Layout,
}

impl PciFunction {
    /// Resets the function to the state after power-on.
    fn restart(&mut self) {
        self.device.reset();
        self.registers = Registers::new();
        self.config.reset();
        self.follow_command_register();
    }

    /// Enables or disables DMA and vectors by the bus master bit of the command register.
    pub(super) fn follow_command_register(&mut self) {
        let on = self.config.is_bus_master();
        if self.vectors.set_bus_master(on) {
            self.device.set_bus_master(&self.memory, on);
        }
    }

    /// Handles the client's disconnect: its memory and vectors are gone.
    pub(super) fn client_left(&mut self) {
        self.restart();
        self.vectors.clear();
        self.device.unmap(&self.memory, 0, u64::MAX);
    }
}

fn invalid() -> io::Error {
    io::Error::from_raw_os_error(libc::EINVAL)
}

impl ServerBackend for PciFunction {
    fn region_read(&mut self, region: u32, offset: u64, data: &mut [u8]) -> io::Result<()> {
        match region {
            VFIO_PCI_CONFIG_REGION_INDEX => self.config.read(offset, data),
            // Doorbell registers, beyond the segment, are write-only and read as 0.
            VFIO_PCI_BAR0_REGION_INDEX => self.registers.read(&self.device, offset, data),
            _ => data.fill(0),
        }
        Ok(())
    }

    fn region_write(&mut self, region: u32, offset: u64, data: &[u8]) -> io::Result<()> {
        match region {
            VFIO_PCI_CONFIG_REGION_INDEX => {
                if self.config.write(offset, data) == ConfigEffect::Reset {
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
        // A mapping without a file is not memory: a ROM, or this BAR itself.
        let Some(file) = file else { return Ok(()) };
        let writable = flags.contains(DmaMapFlags::WRITE);
        let mapped = self.memory.map(address, size, &file, offset, writable);
        tracing::debug!(address, size, offset, ?flags, ?mapped, "guest memory");
        mapped
    }

    fn dma_unmap(&mut self, flags: DmaUnmapFlags, address: u64, size: u64) -> io::Result<()> {
        tracing::debug!(address, size, ?flags, "guest memory unmapped");
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

    use super::super::rig::{
        CMDQ_ADDR_H, CMDQ_ADDR_L, COMMAND_DOORBELL_VECTOR, Driver, MEMORY, QUEUE,
    };
    use super::*;

    /// An eventfd for a vector, and its other end.
    fn eventfd() -> (File, EventFd) {
        let counter = EventFd::from_value_and_flags(0, EfdFlags::EFD_NONBLOCK).unwrap();
        let copy: OwnedFd = counter.as_fd().try_clone_to_owned().unwrap();
        (copy.into(), counter)
    }

    #[test]
    fn set_irqs_connects_and_disconnects_msix_eventfds() {
        const EVENTFD: u32 = VFIO_IRQ_SET_DATA_EVENTFD;
        const NONE: u32 = VFIO_IRQ_SET_DATA_NONE;
        let mut function = Driver::new().function;
        let ((one, first), (two, second)) = (eventfd(), eventfd());
        let msix = VFIO_PCI_MSIX_IRQ_INDEX;
        function.set_irqs(msix, EVENTFD, 0, 2, vec![one, two]).unwrap();
        let delivered = |function: &PciFunction| {
            (0..2).for_each(|vector| function.vectors.raise(vector));
            [&first, &second].map(|counter| counter.read().is_ok())
        };
        // Calls without eventfds, which change no vector.
        for (index, flags, start, count) in
            [(msix, EVENTFD, 0, 0), (msix, NONE, 0, 1), (msix, EVENTFD, 2, 1), (0, NONE, 0, 0)]
        {
            function.set_irqs(index, flags, start, count, vec![]).unwrap();
            assert_eq!(delivered(&function), [true; 2], "{index} {flags} {start} {count}");
        }
        function.set_irqs(msix, EVENTFD, 1, 1, vec![]).unwrap();
        assert_eq!(delivered(&function), [true, false]);
        let count = function.vectors.count();
        for (start, count) in [(count, 1), (0, count + 1), (u32::MAX, 2)] {
            let refused = function.set_irqs(msix, EVENTFD, start, count, vec![]).unwrap_err();
            assert_eq!(refused.raw_os_error(), Some(libc::EINVAL), "{start} {count}");
        }
        assert_eq!(delivered(&function), [true, false]);
        function.set_irqs(msix, NONE, 0, 0, vec![]).unwrap();
        assert_eq!(delivered(&function), [false; 2]);
    }

    #[test]
    fn dma_map_sets_memory_access_rights() {
        let mut function = Driver::new().function;
        let at = MEMORY + (1 << 30);
        let file = || Some(super::super::rig::ram(0x4000));
        let (read, write) = (DmaMapFlags::READ, DmaMapFlags::READ | DmaMapFlags::WRITE);
        let reaches = |function: &PciFunction, at| {
            let memory = &function.memory;
            (memory.read(at, &mut [0; 8]).is_ok(), memory.write(at, &[0; 8]).is_ok())
        };
        function.dma_map(write, 0, at, 0x1000, None).unwrap();
        assert_eq!(reaches(&function, at), (false, false), "a ROM");
        function.dma_map(write, 0, at, 0x1000, file()).unwrap();
        function.dma_map(read, 0, at + 0x1000, 0x1000, file()).unwrap();
        assert_eq!(reaches(&function, at), (true, true));
        assert_eq!(reaches(&function, at + 0x1000), (true, false));
        function.dma_unmap(DmaUnmapFlags::empty(), at, 0x1000).unwrap();
        assert_eq!(reaches(&function, at), (false, false));
        assert_eq!(reaches(&function, at + 0x1000), (true, false));
        function.dma_unmap(DmaUnmapFlags::UNMAP_ALL, 0, 0).unwrap();
        assert_eq!(reaches(&function, at + 0x1000), (false, false));
        assert_eq!(reaches(&function, MEMORY), (false, false));
    }

    #[test]
    fn region_access_reaches_named_region_only() {
        let mut driver = Driver::new();
        let function = &mut driver.function;
        let (config, bar) = (VFIO_PCI_CONFIG_REGION_INDEX, VFIO_PCI_BAR0_REGION_INDEX);
        let doorbells = function.layout.doorbells;
        let mut read = |region, at| {
            let mut bytes = [0xa5; 4];
            function.region_read(region, at, &mut bytes).unwrap();
            bytes
        };
        assert_eq!(read(config, 0), [0xb3, 0x15, 0xdc, 0xa2], "vendor and device");
        assert_eq!(read(bar, 0), [0, 40, 0, 32], "the firmware's version");
        for (region, at) in [(bar, doorbells), (bar, doorbells + 0x40), (bar + 1, 0), (9, 0)] {
            assert_eq!(read(region, at), [0; 4], "{region} {at:#x}");
        }
        for (region, at) in [(bar, 0x14), (bar, doorbells + 0x14), (bar + 1, 0x14), (9, 0x14)] {
            function.region_write(bar, 0x14, &0x7000_u32.to_be_bytes()).unwrap();
            function.region_write(region, at, &0x9000_u32.to_be_bytes()).unwrap();
            let mut queue = [0; 4];
            function.region_read(bar, 0x14, &mut queue).unwrap();
            let expected = if (region, at) == (bar, 0x14) { 0x9000 } else { 0x7000 };
            assert_eq!(u32::from_be_bytes(queue) & !0xfff, expected, "{region} {at:#x}");
        }
        let bytes = function.layout.bytes;
        for (at, is_none) in [(0x200, true), (doorbells, false), (bytes - 8, false), (bytes, true)]
        {
            let text = crate::captured_log::captured_log(|| {
                function.region_write(bar, at, &[0; 4]).unwrap()
            });
            assert_eq!(text.contains("a write to no register"), is_none, "{at:#x}: {text}");
        }
    }

    /// Bits of the command register: memory space, bus master.
    const MEMORY_SPACE: u16 = 0x2;
    const BUS_MASTER: u16 = 0x4;

    #[test]
    fn bus_master_disabled_blocks_dma_and_msix() {
        let mut driver = Driver::new();
        let (copy, counter) = eventfd();
        let index = VFIO_PCI_MSIX_IRQ_INDEX;
        let function = &mut driver.function;
        function.set_irqs(index, VFIO_IRQ_SET_DATA_EVENTFD, 0, 1, vec![copy]).unwrap();
        let entry = driver.entry(EnableHcaIn::new().as_bytes(), 16);
        driver.put(0, &entry);
        // The driver clears the bit, and so does a reset, which zeroes the register.
        for way in 0..3 {
            match way {
                0 => driver.command_register(MEMORY_SPACE),
                1 => driver.function.reset().unwrap(),
                _ => driver.function.restart(),
            }
            assert!(driver.memory.read(MEMORY, &mut [0; 8]).is_err());
            assert!(driver.memory.write(MEMORY, &[0; 8]).is_err());
            assert!(driver.memory.direct(MEMORY, 8).is_none());
            driver.write(CMDQ_ADDR_H, (QUEUE >> 32) as u32);
            driver.write(CMDQ_ADDR_L, QUEUE as u32);
            driver.write(COMMAND_DOORBELL_VECTOR, 1);
            driver.function.vectors.raise(0);
            driver.command_register(MEMORY_SPACE | BUS_MASTER);
            assert_eq!(driver.get(0), entry, "the command was not seen");
            assert!(counter.read().is_err(), "the message was not sent");
        }
        assert_ne!(driver.ring(&entry), entry, "a bus master sees it");
        driver.function.vectors.raise(0);
        assert_eq!(counter.read(), Ok(1));
    }
}
