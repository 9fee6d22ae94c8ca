//! BAR 0: the initialisation segment, then the UAR pages.

use std::time::{SystemTime, UNIX_EPOCH};

use verbless_prm::{HealthSyndrome, InitialSegment, NicInterface};

use super::command_queue;
use verbless_model::Side;
use verbless_model::function::Function;

/// Registers of the initialisation segment that the driver writes.
const QUEUE_HIGH: u64 = 0x10;
const QUEUE_LOW: u64 = 0x14;
const DOORBELL: u64 = 0x18;

/// The value that the driver writes to bits 10:8 to request a reset.
const RESET: u32 = 7;

/// Revision of the command interface.
const COMMAND_INTERFACE: u16 = 5;
/// Period of the health counter.
const HEARTBEAT_NANOSECONDS: u64 = 10_000_000;

/// The registers of a function outside its UAR pages.
#[derive(Debug)]
pub(super) struct Registers {
    /// The bits of the command queue's address that the driver has written.
    queue: u64,
    interface: NicInterface,
}

impl Registers {
    pub(super) fn new() -> Self {
        Self { queue: 0, interface: NicInterface::FULL_DRIVER }
    }

    /// Reads from the initialisation segment; bytes beyond it read as 0.
    pub(super) fn read(&self, device: &Function, at: u64, into: &mut [u8]) {
        into.fill(0);
        let segment = self.segment(device);
        let start = usize::try_from(at).ok();
        let bytes = start.and_then(|start| segment.as_bytes().get(start..)).unwrap_or_default();
        into.iter_mut().zip(bytes).for_each(|(into, from)| *into = *from);
    }

    /// The current initialisation segment.
    fn segment(&self, device: &Function) -> InitialSegment {
        let profile = device.profile();
        let [major, minor, sub_minor] = profile.device().firmware;
        let mut segment = InitialSegment::zeroed();
        segment.set_fw_rev_major(major).set_fw_rev_minor(minor).set_fw_rev_subminor(sub_minor);
        segment.set_cmd_interface_rev(COMMAND_INTERFACE);
        segment.set_cmdq_phy_addr_63_32((self.queue >> 32) as u32);
        segment.set_cmdq_phy_addr_31_12(self.queue as u32 >> 12);
        segment.set_nic_interface(self.interface);
        segment.set_log_cmdq_size(command_queue::LOG_SIZE);
        segment.set_log_cmdq_stride(command_queue::LOG_STRIDE);
        segment.set_nic_interface_supported(
            1 << NicInterface::FULL_DRIVER.0 | 1 << NicInterface::DISABLED.0,
        );
        segment.set_fw_reset_supported(true);
        segment.set_embedded_cpu(profile.side() == Side::Dpu);
        let health = segment.health_buffer_mut();
        health
            .set_fw_version(u32::from(major) << 28 | u32::from(minor) << 16 | u32::from(sub_minor));
        health.set_hw_id(profile.device().device_id.into());
        let time = device.timer();
        segment.set_internal_timer_h((time >> 32) as u32).set_internal_timer_l(time as u32);
        let real = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        segment.set_real_time_h(real.as_secs() as u32).set_real_time_l(real.subsec_nanos());
        if !device.is_alive() {
            let health = segment.health_buffer_mut();
            health.set_synd(HealthSyndrome::FW_INTERNAL_ERR).set_rfr(true);
            segment.set_health_syndrome(HealthSyndrome::FW_INTERNAL_ERR);
        } else {
            segment.set_health_counter((device.now() / HEARTBEAT_NANOSECONDS) as u32 & 0xff_ffff);
        }
        segment
    }

    /// Writes a register of the initialisation segment.
    pub(super) fn write(&mut self, device: &Function, at: u64, from: &[u8]) {
        // A 64-bit write is two of 32 bits.
        for (index, word) in from.chunks_exact(4).enumerate() {
            let word = u32::from_be_bytes(word.try_into().unwrap_or_default());
            self.write_word(device, at + 4 * index as u64, word);
        }
    }

    fn write_word(&mut self, device: &Function, at: u64, word: u32) {
        match at {
            QUEUE_HIGH => self.queue = self.queue & 0xffff_ffff | u64::from(word) << 32,
            QUEUE_LOW => {
                self.queue = self.queue & !0xffff_ffff | u64::from(word & 0xffff_f000);
                let reset = word >> 8 & RESET == RESET;
                let new = NicInterface((word >> 8 & 3) as u8);
                match (reset, new) {
                    // A firmware reset, which a recovering driver requests.
                    (true, _) => device.reset(),
                    (false, NicInterface::DISABLED) => device.disable(),
                    // A restarting driver writes the address of its queue.
                    (false, NicInterface::FULL_DRIVER) if device.is_closed() => device.disable(),
                    _ => {}
                }
                self.interface = if reset { NicInterface::DISABLED } else { new };
            }
            DOORBELL if self.interface == NicInterface::FULL_DRIVER && self.queue != 0 => {
                for slot in (0..32).filter(|slot| word >> slot & 1 == 1) {
                    // A forced or fast teardown stops the device's bus traffic, including answers
                    // to commands (Linux `mlx5_try_fast_unload`).
                    if device.is_closed() {
                        tracing::debug!(slot, "a command after a forced or fast teardown");
                        break;
                    }
                    command_queue::execute(device, self.queue, slot);
                }
            }
            _ => tracing::debug!(at, word, "a write to no register"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use vfio_bindings::bindings::vfio::VFIO_PCI_CONFIG_REGION_INDEX;
    use vfio_user::ServerBackend;

    use super::super::rig::{Driver, QUEUE};
    use super::*;
    use verbless_model::Profile;

    #[test]
    fn initial_segment_reports_fw_rev_and_cmdq_size() {
        let driver = Driver::new();
        let [major, minor, _] = [32_u32, 40, 1000];
        assert_eq!(driver.read(0), minor << 16 | major);
        assert_eq!(driver.read(4) >> 16, 5);
        assert_eq!(driver.read(QUEUE_LOW), QUEUE as u32 | 5 << 4 | 6);
        assert_eq!(driver.read(0x1fc) >> 31, 0, "not initialising");
        assert_ne!(driver.read(0x230), u32::MAX, "a removed device reads all ones");
    }

    /// The segment as a driver reads it.
    fn segment(driver: &Driver) -> InitialSegment {
        let mut segment = InitialSegment::zeroed();
        driver.function.registers.read(&driver.function.device, 0, segment.as_bytes_mut());
        segment
    }

    #[test]
    fn initial_segment_reports_health_and_timers() {
        let text = include_str!("../../../model/profiles/connectx6dx.toml");
        let text = text.replace("firmware = [22, 40, 1000]", "firmware = [12, 28, 2006]");
        let driver = Driver::of(Profile::from_toml(&text).unwrap());
        driver.model.advance(Duration::from_secs(60));
        let (before, device) = (SystemTime::now(), &driver.function.device);
        let segment = segment(&driver);
        let health = segment.health_buffer();
        assert_eq!((health.fw_version(), health.hw_id()), (0xc01c_07d6, 0x101d));
        assert_eq!(segment.nic_interface_supported(), 0b11, "full driver and disabled");
        assert!(segment.fw_reset_supported());
        let time = u64::from(segment.internal_timer_h()) << 32 | segment.internal_timer_l() as u64;
        assert_eq!(time, device.timer());
        assert_ne!(segment.internal_timer_h(), 0, "a minute takes both words");
        let real = UNIX_EPOCH + Duration::new(segment.real_time_h().into(), segment.real_time_l());
        assert!(before <= real && real <= SystemTime::now(), "{real:?}");
    }

    #[test]
    fn segment_reads_zero_past_end() {
        let driver = Driver::new();
        let whole = segment(&driver);
        let read = |at| {
            let mut bytes = [0xa5; 8];
            driver.function.registers.read(&driver.function.device, at, &mut bytes);
            bytes
        };
        assert_eq!(read(2), whole.as_bytes()[2..10]);
        let end = whole.as_bytes().len() as u64;
        for at in [end - 4, end, end + 4, u64::MAX] {
            assert_eq!(read(at)[4..], [0; 4], "{at:#x}");
        }
    }

    #[test]
    fn cmdq_address_halves_are_written_independently() {
        let mut driver = Driver::new();
        let words = |driver: &Driver| [QUEUE_HIGH, QUEUE_LOW].map(|at| driver.read(at) & !0xfff);
        driver.write(QUEUE_HIGH, 0x5_000);
        driver.write(QUEUE_LOW, 0x1234_5000);
        assert_eq!(words(&driver), [0x5_000, 0x1234_5000]);
        driver.write(QUEUE_HIGH, 0x6_000);
        assert_eq!(words(&driver), [0x6_000, 0x1234_5000], "the other half stays");
        driver.write(QUEUE_LOW, 0x7000);
        assert_eq!(words(&driver), [0x6_000, 0x7000], "the other half stays");
        let both = [0x8_000_u32.to_be_bytes(), 0x4321_0000_u32.to_be_bytes()].concat();
        driver.function.registers.write(&driver.function.device, QUEUE_HIGH, &both);
        assert_eq!(words(&driver), [0x8_000, 0x4321_0000]);
    }

    #[test]
    fn reset_is_requested_by_nic_interface_bits() {
        for (word, revives) in
            [(RESET << 8, true), (QUEUE as u32 | RESET << 8, true), (0, false), (0x300, false)]
        {
            let mut driver = Driver::new();
            driver.model.kill(0);
            driver.write(QUEUE_LOW, word);
            assert_eq!(driver.read(0x23c) == 0, revives, "{word:#x}");
        }
    }

    #[test]
    fn embedded_cpu_bit_is_set_on_dpu_only() {
        let profile = Profile::load("bluefield3").unwrap();
        for (side, expected) in [(Side::Host, 0), (Side::Dpu, 1)] {
            let driver = Driver::of(profile.clone().on(side).unwrap());
            assert_eq!(driver.read(0x1fc) >> 23 & 1, expected, "{side:?}");
        }
    }

    #[test]
    fn health_counter_and_clock_advance_until_device_dies() {
        let driver = Driver::new();
        let (heartbeat, clock) = (driver.read(0x1010), driver.read(0x1004));
        driver.model.advance(Duration::from_secs(1));
        assert_eq!(driver.read(0x1010) - heartbeat, 100);
        assert!(driver.read(0x1004) > clock);
        // The counter has 24 bits.
        driver.model.advance(Duration::from_nanos((1 << 24) * HEARTBEAT_NANOSECONDS));
        assert_eq!(driver.read(0x1010) - heartbeat, 100);
        driver.model.kill(0);
        assert_eq!(driver.read(0x1010), 1 << 24, "a syndrome, and no counter");
        assert_eq!(driver.read(0x23c) >> 16 & 0xff, 1);
    }

    #[test]
    fn resets_revive_killed_but_not_removed_function() {
        type Reset = fn(&mut Driver);
        let ways: [(&str, Reset); 4] = [
            ("firmware", |driver| driver.write(QUEUE_LOW, RESET << 8)),
            ("PCI Express", |driver| {
                let config = VFIO_PCI_CONFIG_REGION_INDEX;
                driver.function.region_write(config, 0x68, &0xa810_u16.to_le_bytes()).unwrap();
            }),
            ("vfio-user", |driver| driver.function.reset().unwrap()),
            ("another client", |driver| driver.function.client_left()),
        ];
        let is_dead = |driver: &Driver| driver.read(0x238) >> 31 == 1 && driver.read(0x1010) != 0;
        for (way, reset) in ways {
            let mut driver = Driver::new();
            assert_eq!(driver.read(0x1fc) >> 30 & 1, 1, "its firmware can be reset");
            driver.send(verbless_prm::EnableHcaIn::new().as_bytes(), 16).unwrap();
            driver.model.kill(0);
            driver.write(QUEUE_LOW, QUEUE as u32 | 1 << 8);
            driver.start();
            assert!(is_dead(&driver), "{way}");
            let enable = verbless_prm::EnableHcaIn::new();
            assert_ne!(driver.send(enable.as_bytes(), 16).unwrap()[0], 0, "{way}");
            reset(&mut driver);
            assert_eq!([0x238, 0x23c].map(|at| driver.read(at)), [0, 0], "{way}");
            driver.model.advance(Duration::from_millis(20));
            let heartbeat = driver.read(0x1010);
            driver.model.advance(Duration::from_millis(20));
            assert_eq!(driver.read(0x1010) - heartbeat, 2, "{way}");
            if way != "another client" {
                driver.start();
                assert_eq!(driver.send(enable.as_bytes(), 16).unwrap()[0], 0, "{way}");
            }
            driver.model.remove(0);
            reset(&mut driver);
            assert!(is_dead(&driver), "{way}: a removed function stays removed");
        }
    }

    #[test]
    fn disabling_nic_interface_resets_hca() {
        let mut driver = Driver::new();
        let enable = verbless_prm::EnableHcaIn::new();
        driver.send(enable.as_bytes(), 16).unwrap();
        driver.write(QUEUE_LOW, QUEUE as u32 | 1 << 8);
        assert_eq!(driver.read(QUEUE_LOW) >> 8 & 7, 1);
        let entry = driver.entry(enable.as_bytes(), 16);
        assert_eq!(driver.ring(&entry), entry, "a disabled interface takes no commands");
        driver.write(QUEUE_LOW, QUEUE as u32);
        let output = driver.send(enable.as_bytes(), 16).unwrap();
        assert_eq!(output[0], 0, "the function is as after power-on");
    }

    #[test]
    fn access_at_any_bar_offset_is_survived() {
        let mut driver = Driver::new();
        for at in [0x1c, 0x200, 0x4008, 0x400c, 0x5000, 0xf000, u64::MAX - 7] {
            driver.read(at);
            driver.write(at.min(1 << 40), u32::MAX);
        }
        driver.function.registers.write(&driver.function.device, QUEUE_HIGH, &[0; 8]);
        driver.write(DOORBELL, 1);
        driver.start();
        let output = driver.send(verbless_prm::EnableHcaIn::new().as_bytes(), 16).unwrap();
        assert_eq!(output[0], 0, "the function answers a command");
    }
}
