//! PCI configuration space of a function: identity, BAR and capabilities.
//!
//! Everything is little-endian, as in PCI. Standard structures have the layout of the PCI
//! specifications (Linux: `include/uapi/linux/pci_regs.h`); the vendor specific capability has the
//! one that Linux's `drivers/net/ethernet/mellanox/mlx5/core/lib/pci_vsc.c` reads.

use verbless_model::{Link, Profile};

/// Bytes of the space.
pub(super) const CONFIG_BYTES: usize = 4096;
/// Offsets in BAR 0 of the MSI-X table, and of its pending bits.
pub(super) const MSIX_TABLE: u32 = 0x5000;
const MSIX_PENDING: u32 = 0x6000;

const COMMAND: usize = 0x04;
/// Bit of the command register: the function may issue memory requests, MSI-X messages included.
const BUS_MASTER: u8 = 1 << 2;
const STATUS: usize = 0x06;
const BAR0: usize = 0x10;
const INTERRUPT_LINE: usize = 0x3c;
const POWER: usize = 0x40;
const EXPRESS: usize = 0x60;
const MSIX: usize = 0x9c;
const VENDOR: usize = 0xc0;

/// PCI Express: device control, and the bit in it that resets the function.
const DEVICE_CONTROL: usize = EXPRESS + 0x08;
const FUNCTION_RESET: u16 = 1 << 15;
const LINK_CONTROL: usize = EXPRESS + 0x10;
const DEVICE_CONTROL_2: usize = EXPRESS + 0x28;

/// The gateway in the vendor specific capability: which space, a counter, a semaphore.
const GATEWAY_CONTROL: usize = VENDOR + 0x04;
const GATEWAY_COUNTER: usize = VENDOR + 0x08;
const GATEWAY_SEMAPHORE: usize = VENDOR + 0x0c;

/// The configuration space of one function.
#[derive(Debug)]
pub(crate) struct ConfigSpace {
    bytes: Box<[u8; CONFIG_BYTES]>,
    /// Bits that software may write.
    writable: Box<[u8; CONFIG_BYTES]>,
    counter: u32,
}

/// The side effect of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ConfigEffect {
    Nothing,
    /// The function is to be reset.
    Reset,
}

impl ConfigSpace {
    /// The space of a function with `bar_bytes` of BAR 0, a power of two; `several`: its device has
    /// other functions.
    pub(super) fn new(profile: &Profile, bar_bytes: u64, several: bool) -> Self {
        debug_assert!(bar_bytes.is_power_of_two());
        let device = profile.device();
        let mut space = Self {
            bytes: Box::new([0; CONFIG_BYTES]),
            writable: Box::new([0; CONFIG_BYTES]),
            counter: 0,
        };
        let class: [u8; 3] = match profile.link() {
            Link::Infiniband => [0x00, 0x07, 0x02],
            Link::Ethernet => [0x00, 0x00, 0x02],
        };
        space.put(0x00, &device.vendor_id.to_le_bytes(), &[]);
        space.put(0x02, &device.device_id.to_le_bytes(), &[]);
        // Memory accesses, bus mastering, parity, SERR#, no INTx.
        space.put(COMMAND, &[0, 0], &0x0546_u16.to_le_bytes());
        space.put(STATUS, &0x0010_u16.to_le_bytes(), &[]); // there is a capability list
        space.put(0x09, &class, &[]);
        space.put(0x0c, &[0, 0], &[0xff, 0]);
        space.put(0x0e, &[if several { 0x80 } else { 0 }], &[]);
        // A prefetchable 64-bit memory BAR.
        space.put(BAR0, &0xc_u64.to_le_bytes(), &(!(bar_bytes - 1)).to_le_bytes());
        space.put(0x2c, &device.vendor_id.to_le_bytes(), &[]);
        space.put(0x2e, &0x0001_u16.to_le_bytes(), &[]);
        space.put(0x34, &[POWER as u8], &[]);
        space.put(INTERRUPT_LINE, &[0], &[0xff]);

        // Power management, version 3: D0 and D3hot, no soft reset.
        space.put(POWER, &[0x01, EXPRESS as u8, 0x03, 0x00], &[]);
        space.put(POWER + 4, &[0x08, 0x00], &[0x03, 0x00]);

        // PCI Express, version 2: an endpoint, 512-byte payloads, function level reset; a link of
        // 16 GT/s x16.
        space.put(EXPRESS, &[0x10, MSIX as u8, 0x02, 0x00], &[]);
        space.put(EXPRESS + 0x04, &0x1000_8fe2_u32.to_le_bytes(), &[]);
        space.put(DEVICE_CONTROL, &0x2810_u16.to_le_bytes(), &0x7fff_u16.to_le_bytes());
        space.put(EXPRESS + 0x0c, &0x0000_0104_u32.to_le_bytes(), &[]);
        space.put(LINK_CONTROL, &[0, 0], &0x01c3_u16.to_le_bytes());
        space.put(EXPRESS + 0x12, &0x0104_u16.to_le_bytes(), &[]);
        space.put(EXPRESS + 0x24, &0x0000_0012_u32.to_le_bytes(), &[]);
        space.put(DEVICE_CONTROL_2, &[0, 0], &0x001f_u16.to_le_bytes());
        space.put(EXPRESS + 0x2c, &0x0000_001e_u32.to_le_bytes(), &[]);

        // MSI-X: the table and its pending bits are pages of BAR 0.
        let last = (device.vectors - 1) as u16;
        space.put(MSIX, &[0x11, VENDOR as u8], &[]);
        space.put(MSIX + 2, &last.to_le_bytes(), &0xc000_u16.to_le_bytes());
        space.put(MSIX + 4, &MSIX_TABLE.to_le_bytes(), &[]);
        space.put(MSIX + 8, &MSIX_PENDING.to_le_bytes(), &[]);

        // The vendor's gateway into the device: it can be locked, and has no space after it.
        space.put(VENDOR, &[0x09, 0x00, 0x18, 0x00], &[]);
        space.put(GATEWAY_CONTROL, &[0; 4], &[0xff, 0xff, 0, 0]);
        space
    }

    /// The space of a function that is bound to its driver, as sysfs `config` shows it.
    pub(crate) fn image(profile: &Profile) -> Box<[u8]> {
        let mut space = Self::new(profile, 1 << 25, false);
        // Memory accesses, bus mastering, no INTx.
        space.write(COMMAND as u64, &0x0406_u16.to_le_bytes());
        // MSI-X is in use.
        space.write(MSIX as u64 + 3, &[0x80]);
        space.bytes
    }

    fn put(&mut self, at: usize, value: &[u8], writable: &[u8]) {
        self.bytes[at..at + value.len()].copy_from_slice(value);
        self.writable[at..at + writable.len()].copy_from_slice(writable);
    }

    /// Reads. Bytes outside read as ones, as those of a missing device do.
    pub(super) fn read(&mut self, at: u64, into: &mut [u8]) {
        into.fill(0xff);
        let Some(range) = range(at, into.len()) else { return };
        if range.contains(&GATEWAY_COUNTER) {
            self.counter = self.counter.wrapping_add(1).max(1);
            let counter = self.counter.to_le_bytes();
            self.put(GATEWAY_COUNTER, &counter, &[]);
        }
        into.copy_from_slice(&self.bytes[range]);
    }

    /// Writes the bits that may be written.
    pub(super) fn write(&mut self, at: u64, from: &[u8]) -> ConfigEffect {
        let Some(range) = range(at, from.len()) else { return ConfigEffect::Nothing };
        for (index, &new) in range.clone().zip(from) {
            let writable = self.writable[index];
            self.bytes[index] = self.bytes[index] & !writable | new & writable;
        }
        if range == (GATEWAY_SEMAPHORE..GATEWAY_SEMAPHORE + 4) {
            self.lock_gateway(from);
        }
        let reset = (FUNCTION_RESET >> 8) as u8;
        let control = (DEVICE_CONTROL + 1).checked_sub(range.start).and_then(|at| from.get(at));
        match control {
            Some(byte) if byte & reset != 0 => ConfigEffect::Reset,
            _ => ConfigEffect::Nothing,
        }
    }

    /// Whether the function may issue memory requests.
    pub(super) fn is_bus_master(&self) -> bool {
        self.bytes[COMMAND] & BUS_MASTER != 0
    }

    /// A write of the counter's value takes the semaphore while it is 0; a write of 0 frees it.
    fn lock_gateway(&mut self, new: &[u8]) {
        let free = self.bytes[GATEWAY_SEMAPHORE..][..4] == [0; 4];
        if free || new == [0; 4] {
            self.bytes[GATEWAY_SEMAPHORE..][..4].copy_from_slice(new);
        }
    }

    /// Returns to the state after power-on.
    pub(super) fn reset(&mut self) {
        for (byte, writable) in self.bytes.iter_mut().zip(self.writable.iter()) {
            *byte &= !writable;
        }
        self.put(DEVICE_CONTROL, &0x2810_u16.to_le_bytes(), &[]);
        self.put(GATEWAY_SEMAPHORE, &[0; 4], &[]);
    }
}

fn range(at: u64, length: usize) -> Option<std::ops::Range<usize>> {
    let start = usize::try_from(at).ok()?;
    let end = start.checked_add(length)?;
    (end <= CONFIG_BYTES).then_some(start..end)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BAR_BYTES: u64 = 32 << 20;

    fn space(link: Link) -> ConfigSpace {
        ConfigSpace::new(&Profile::load("connectx6dx").unwrap().with_link(link), BAR_BYTES, false)
    }

    fn read<const N: usize>(space: &mut ConfigSpace, at: usize) -> [u8; N] {
        let mut bytes = [0; N];
        space.read(at as u64, &mut bytes);
        bytes
    }

    #[test]
    fn config_identity_matches_profile() {
        let mut space = space(Link::Infiniband);
        assert_eq!(read(&mut space, 0), [0xb3, 0x15, 0x1d, 0x10]);
        assert_eq!(read(&mut space, 0x0a), [0x07, 0x02], "an InfiniBand controller");
        let mut ethernet = self::space(Link::Ethernet);
        assert_eq!(read(&mut ethernet, 0x0a), [0x00, 0x02]);
    }

    /// The first words of the space from an offset on, as `lspci -x` prints bytes.
    fn words(space: &mut ConfigSpace, at: usize, count: usize) -> String {
        let word = |index: usize| read::<4>(space, at + 4 * index).map(|it| format!("{it:02x}"));
        (0..count).map(word).map(|it| it.concat()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn config_registers_have_reset_values_and_write_masks() {
        let mut space = space(Link::Infiniband);
        let expected = [
            (0x00, "b3151d10 00001000 00000702 00000000 0c000000 00000000 00000000 00000000"),
            (0x20, "00000000 00000000 00000000 b3150100 00000000 40000000 00000000 00000000"),
            (0x40, "01600300 08000000"),
            (0x60, "109c0200 e28f0010 10280000 04010000 00000401"),
            (0x80, "00000000 12000000 00000000 1e000000"),
            (0x9c, "11c03f00 00500000 00600000"),
            (0xc0, "09001800 00000000"),
        ];
        for (at, text) in expected {
            assert_eq!(words(&mut space, at, text.split(' ').count()), text, "{at:#x}");
        }
        // All but the counter, which each read changes, and the semaphore after it.
        for at in (0..CONFIG_BYTES).step_by(4).filter(|at| ![0xc8, 0xcc].contains(at)) {
            space.write(at as u64, &[0xff; 4]);
        }
        let expected = [
            (0x00, "b3151d10 46051000 00000702 ff000000 0c0000fe ffffffff 00000000 00000000"),
            (0x20, "00000000 00000000 00000000 b3150100 00000000 40000000 00000000 ff000000"),
            (0x40, "01600300 0b000000"),
            (0x60, "109c0200 e28f0010 ff7f0000 04010000 c3010401"),
            (0x80, "00000000 12000000 1f000000 1e000000"),
            (0x9c, "11c03fc0 00500000 00600000"),
            (0xc0, "09001800 ffff0000"),
        ];
        for (at, text) in expected {
            assert_eq!(words(&mut space, at, text.split(' ').count()), text, "{at:#x}");
        }
        assert_eq!(words(&mut space, 0x100, 8), ["00000000"; 8].join(" "));
    }

    #[test]
    fn capability_list_is_pm_pcie_msix_vendor() {
        let mut space = space(Link::Infiniband);
        let mut at = usize::from(read::<1>(&mut space, 0x34)[0]);
        let mut ids = vec![];
        while at != 0 {
            let [id, next] = read(&mut space, at);
            ids.push(id);
            at = next.into();
        }
        assert_eq!(ids, [0x01, 0x10, 0x11, 0x09]);
    }

    #[test]
    fn bar_sizing_reports_bar_bytes() {
        let mut space = space(Link::Infiniband);
        space.write(BAR0 as u64, &[0xff; 4]);
        space.write(BAR0 as u64 + 4, &[0xff; 4]);
        let bar = u64::from_le_bytes(read(&mut space, BAR0));
        assert_eq!(bar & 0xf, 0xc, "64 bits, prefetchable");
        assert_eq!((!(bar & !0xf)).wrapping_add(1), BAR_BYTES);
        space.write(BAR0 as u64, &0xe000_0000_u64.to_le_bytes());
        assert_eq!(u64::from_le_bytes(read(&mut space, BAR0)), 0xe000_000c);
    }

    #[test]
    fn msix_table_size_matches_profile() {
        let mut space = space(Link::Infiniband);
        assert_eq!(u16::from_le_bytes(read(&mut space, MSIX + 2)), 63);
        space.write(MSIX as u64 + 2, &[0xff, 0xff]);
        assert_eq!(u16::from_le_bytes(read(&mut space, MSIX + 2)), 63 | 0xc000);
        assert_eq!(u32::from_le_bytes(read(&mut space, MSIX + 4)), MSIX_TABLE);
    }

    #[test]
    fn read_only_bytes_keep_value_past_end_reads_ones() {
        let mut space = space(Link::Infiniband);
        let before: [u8; 64] = read(&mut space, 0);
        space.write(0, &[0xff; 4]);
        space.write(4090, &[0; 16]);
        assert_eq!(read::<4>(&mut space, 0), before[..4]);
        assert_eq!(read::<8>(&mut space, 4092), [0xff; 8]);
        let mut none = [0; 2];
        space.read(u64::MAX, &mut none);
        assert_eq!(none, [0xff; 2]);
    }

    #[test]
    fn flr_is_requested_and_clears_written_registers() {
        let mut space = space(Link::Infiniband);
        assert_eq!(space.write(COMMAND as u64, &[6, 4]), ConfigEffect::Nothing);
        assert_eq!(space.write(DEVICE_CONTROL as u64, &[0x10, 0x28]), ConfigEffect::Nothing);
        assert_eq!(space.write(DEVICE_CONTROL as u64, &[0x10, 0xa8]), ConfigEffect::Reset);
        assert_eq!(space.write(DEVICE_CONTROL as u64 + 1, &[0xa8]), ConfigEffect::Reset);
        space.reset();
        assert_eq!(read::<2>(&mut space, COMMAND), [0, 0]);
        assert_eq!(read::<2>(&mut space, DEVICE_CONTROL), [0x10, 0x28]);
    }

    #[test]
    fn vsc_semaphore_is_locked_by_counter() {
        let mut space = space(Link::Infiniband);
        let counter: [u8; 4] = read(&mut space, 0xc8);
        assert_ne!(counter, read(&mut space, 0xc8), "each reader has its own value");
        space.write(0xcc, &counter);
        space.write(0xcc, &[9; 4]);
        assert_eq!(read(&mut space, 0xcc), counter, "the first writer keeps the semaphore");
        space.write(0xc4, &7_u32.to_le_bytes());
        assert_eq!(u32::from_le_bytes(read(&mut space, 0xc4)) >> 29, 0, "no such space");
        space.write(0xcc, &[0; 4]);
        assert_eq!(read(&mut space, 0xcc), [0; 4]);
        for (at, length) in [(0xcc, 2), (0xca, 4), (0xc4, 4), (0xd0, 4)] {
            space.write(at, &[1; 4][..length]);
            assert_eq!(read(&mut space, 0xcc), [0; 4], "{length} bytes at {at:#x} lock nothing");
        }
        assert_ne!(read::<4>(&mut space, 0xc8), read::<4>(&mut space, 0xc8));
        assert_eq!(read::<4>(&mut space, 0xcc), read::<4>(&mut space, 0xcc));
    }
}
