//! A driver for tests: its own memory, a command queue, and mailboxes as Linux lays them out.

use std::fs::File;
use std::sync::Arc;

use nix::sys::memfd::{MFdFlags, memfd_create};
use verbless_prm::{
    CommandMailbox, CommandOwnership, CommandQueueEntry, CommandTransport, DeliveryStatus,
};
use vfio_bindings::bindings::vfio::VFIO_PCI_CONFIG_REGION_INDEX;
use vfio_user::ServerBackend;

use super::function::PciFunction;
use super::server::attach;
use verbless_model::memory::{GuestMemory, HostMemory};
use verbless_model::{Link, Model, Profile};

/// Start and size of the guest's memory, in bytes.
pub(super) const MEMORY: u64 = 0x10_0000;
pub(super) const MEMORY_BYTES: u64 = 16 << 20;
/// Address of the command queue.
pub(super) const QUEUE: u64 = MEMORY;

/// Registers of the initialization segment.
pub(super) const CMDQ_ADDR_H: u64 = 0x10;
pub(super) const CMDQ_ADDR_L: u64 = 0x14;
pub(super) const COMMAND_DOORBELL_VECTOR: u64 = 0x18;

pub(super) struct Driver {
    pub model: Model,
    pub function: PciFunction,
    pub memory: Arc<GuestMemory>,
    next: u64,
    token: u8,
}

pub(super) fn ram(bytes: u64) -> File {
    let file = memfd_create(c"guest", MFdFlags::MFD_CLOEXEC).unwrap();
    nix::unistd::ftruncate(&file, bytes as i64).unwrap();
    file.into()
}

impl Driver {
    /// A device of one function that is a bus master, whose driver has written the address of its
    /// command queue.
    pub(super) fn new() -> Self {
        Self::of(Profile::load("bluefield3").unwrap().with_link(Link::Infiniband))
    }

    /// Starts a driver for a device of this profile.
    pub(super) fn of(profile: Profile) -> Self {
        let memory = Arc::new(GuestMemory::default());
        memory.map(MEMORY, MEMORY_BYTES, &ram(MEMORY_BYTES), 0, true).unwrap();
        let model = Model::builder()
            .device_in(profile, [memory.clone() as Arc<dyn HostMemory>])
            .stepped()
            .build();
        let function = attach(&model, 0, memory.clone(), false);
        let mut driver = Self { model, function, memory, next: QUEUE + 0x1000, token: 0 };
        driver.start();
        driver
    }

    /// Makes the function a bus master and writes the address of the command queue.
    pub(super) fn start(&mut self) {
        self.command_register(0x0006);
        self.write(CMDQ_ADDR_H, (QUEUE >> 32) as u32);
        self.write(CMDQ_ADDR_L, QUEUE as u32);
    }

    pub(super) fn command_register(&mut self, value: u16) {
        let config = VFIO_PCI_CONFIG_REGION_INDEX;
        self.function.region_write(config, 0x04, &value.to_le_bytes()).unwrap();
    }

    /// Writes a register.
    pub(super) fn write(&mut self, at: u64, value: u32) {
        let PciFunction { registers, device, .. } = &mut self.function;
        registers.write(device, at, &value.to_be_bytes());
    }

    /// Reads a register.
    pub(super) fn read(&self, at: u64) -> u32 {
        let mut word = [0; 4];
        let function = &self.function;
        function.registers.read(&function.device, at, &mut word);
        u32::from_be_bytes(word)
    }

    /// Fresh memory of zeros, aligned to 4 KiB.
    pub(super) fn allocate(&mut self, bytes: usize) -> u64 {
        let address = self.next;
        self.next += (bytes as u64).next_multiple_of(0x1000);
        assert!(self.next <= MEMORY + MEMORY_BYTES, "the guest has no more memory");
        address
    }

    /// Writes `bytes` into a mailbox chain; returns the address of the first, or 0 if `bytes` is
    /// empty.
    pub(super) fn mailboxes(&mut self, bytes: &[u8]) -> u64 {
        let count = bytes.len().div_ceil(512);
        if count == 0 {
            return 0;
        }
        let first = self.allocate(count * 1024);
        for (number, data) in bytes.chunks(512).enumerate() {
            let mut mailbox = CommandMailbox::zeroed();
            mailbox.as_bytes_mut()[..data.len()].copy_from_slice(data);
            let address = first + 1024 * number as u64;
            let next = if number + 1 < count { address + 1024 } else { 0 };
            mailbox.set_next(next).set_block_number(number as u32).set_token(self.token);
            self.memory.write(address, mailbox.as_bytes()).unwrap();
        }
        first
    }

    /// Builds a command queue entry (owner: hardware) and its mailbox chains.
    pub(super) fn entry(&mut self, input: &[u8], output_bytes: usize) -> CommandQueueEntry {
        self.token = self.token.wrapping_add(1).max(1);
        let (inline, rest) = input.split_at(input.len().min(16));
        let mut entry = CommandQueueEntry::zeroed();
        entry.set_type(CommandTransport::PCIE).set_token(self.token);
        entry.set_input_length(input.len() as u32).set_output_length(output_bytes as u32);
        entry.as_bytes_mut()[0x10..0x10 + inline.len()].copy_from_slice(inline);
        let first_input = self.mailboxes(rest);
        let first_output = self.mailboxes(&vec![0; output_bytes.saturating_sub(16)]);
        entry.set_input_mailbox(first_input).set_output_mailbox(first_output);
        entry.set_ownership(CommandOwnership::HARDWARE);
        entry
    }

    /// Puts an entry into a slot.
    pub(super) fn put(&mut self, slot: u32, entry: &CommandQueueEntry) {
        self.memory.write(QUEUE + 64 * u64::from(slot), entry.as_bytes()).unwrap();
    }

    /// The entry in a slot.
    pub(super) fn get(&self, slot: u32) -> CommandQueueEntry {
        let mut entry = CommandQueueEntry::zeroed();
        self.memory.read(QUEUE + 64 * u64::from(slot), entry.as_bytes_mut()).unwrap();
        entry
    }

    /// Puts an entry into slot 0, rings, and returns it as the device left it.
    pub(super) fn ring(&mut self, entry: &CommandQueueEntry) -> CommandQueueEntry {
        self.put(0, entry);
        self.write(COMMAND_DOORBELL_VECTOR, 1);
        self.get(0)
    }

    /// The output of an answered entry.
    pub(super) fn output(&self, entry: &CommandQueueEntry) -> Vec<u8> {
        let length = entry.output_length() as usize;
        let mut output = entry.command_output_inline_data().to_vec();
        let mut mailbox = CommandMailbox::zeroed();
        let mut at = entry.output_mailbox();
        while output.len() < length {
            self.memory.read(at, mailbox.as_bytes_mut()).unwrap();
            output.extend_from_slice(mailbox.mailbox_data());
            at = mailbox.next();
        }
        output.truncate(length);
        output
    }

    /// Sends a command through slot 0; returns its output, or why it was not delivered. Its
    /// mailboxes are free again afterwards.
    pub(super) fn send(&mut self, input: &[u8], bytes: usize) -> Result<Vec<u8>, DeliveryStatus> {
        let mark = self.next;
        let entry = self.entry(input, bytes);
        let answered = self.ring(&entry);
        assert_eq!(answered.ownership(), CommandOwnership::SOFTWARE);
        let result = match answered.status() {
            DeliveryStatus::OK => Ok(self.output(&answered)),
            status => Err(status),
        };
        self.next = mark;
        result
    }
}
