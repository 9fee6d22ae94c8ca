//! A guest's command queue: entries and mailboxes as Linux lays them out, with mistakes in both.

use std::sync::Arc;

use arbitrary::Arbitrary;
use verbless_model::memory::HostMemory;
use verbless_model_host::pci::{FuzzDevice, Region};
use verbless_prm::mailbox::xor8;
use verbless_prm::{CommandMailbox, CommandOwnership, CommandQueueEntry, CommandTransport};

use crate::address::{Address, COMMANDS, INPUTS, MAILBOXES, OUTPUTS};
use crate::memory::Memory;

/// Data bytes of a mailbox, and of the entry itself.
const BLOCK: usize = 512;
const INLINE: usize = 16;
/// Bytes of the longest input or output that the mailboxes hold.
pub const MAX_MAILBOX_BYTES: usize = INLINE + MAILBOXES * BLOCK;

/// Registers of the initialization segment.
const CMDQ_ADDR_H: u64 = 0x10;
const CMDQ_ADDR_L: u64 = 0x14;
const COMMAND_DOORBELL_VECTOR: u64 = 0x18;

/// A mistake in the entry or the mailboxes of a command.
#[derive(Arbitrary, Debug, Clone, Copy)]
pub enum Corruption {
    /// The entry has another token than its mailboxes.
    Token(u8),
    /// A mailbox has another number, token or signature.
    Mailbox { output: bool, number: u8, byte: u8, value: u8 },
    /// A mailbox has another next pointer.
    Next { output: bool, number: u8, to: Address },
    /// The entry has another mailbox pointer.
    First { output: bool, to: Address },
    /// The lengths are wrong.
    Lengths { input: u32, output: u32 },
    /// One byte of the entry is wrong.
    Entry { byte: u8, value: u8 },
    /// Another slot, or several at once with their present content.
    Slots(u32),
}

/// One function's guest.
pub struct Guest {
    pub function: usize,
    pub memory: Arc<Memory>,
    token: u8,
}

impl Guest {
    pub fn new(function: usize) -> Self {
        Self { function, memory: Memory::new(), token: 0 }
    }

    /// The guest's memory as the device sees it.
    pub fn dma(&self) -> Arc<dyn HostMemory> {
        self.memory.clone()
    }

    /// Gives the device the address of the command queue.
    pub fn set_queue(&self, device: &mut FuzzDevice, address: u64) {
        let (high, low) = ((address >> 32) as u32, address as u32);
        device.write(self.function, Region::Bar, CMDQ_ADDR_H, &high.to_be_bytes());
        device.write(self.function, Region::Bar, CMDQ_ADDR_L, &low.to_be_bytes());
    }

    /// Sends a command; returns its output if its delivery status is OK.
    pub fn send(
        &mut self,
        device: &mut FuzzDevice,
        input: &[u8],
        room: usize,
        corruption: Option<Corruption>,
    ) -> Option<Vec<u8>> {
        let input = &input[..input.len().min(MAX_MAILBOX_BYTES)];
        let room = room.min(MAX_MAILBOX_BYTES);
        self.token = self.token.wrapping_add(1).max(1);
        let mut entry = CommandQueueEntry::zeroed();
        entry.set_type(CommandTransport::PCIE).set_token(self.token);
        entry.set_input_length(input.len() as u32).set_output_length(room as u32);
        let (inline, rest) = input.split_at(input.len().min(INLINE));
        entry.as_bytes_mut()[0x10..0x10 + inline.len()].copy_from_slice(inline);
        let first = self.mailboxes(INPUTS, rest.chunks(BLOCK), false, corruption);
        entry.set_input_mailbox(first);
        let empty = (0..room.saturating_sub(INLINE).div_ceil(BLOCK)).map(|_| &[][..]);
        let first = self.mailboxes(OUTPUTS, empty, true, corruption);
        entry.set_output_mailbox(first);
        entry.set_ownership(CommandOwnership::HARDWARE);
        let slots = corrupt(&mut entry, corruption);
        entry.set_signature(entry.signature() ^ !xor8(entry.as_bytes()));
        let slot = u64::from(slots.trailing_zeros() % 32);
        self.memory.put(COMMANDS + slot * 64, entry.as_bytes());
        device.write(self.function, Region::Bar, COMMAND_DOORBELL_VECTOR, &slots.to_be_bytes());
        self.output(COMMANDS + slot * 64, room)
    }

    /// Writes a chain of mailboxes to memory; returns the address of the first.
    fn mailboxes<'a>(
        &self,
        at: u64,
        blocks: impl ExactSizeIterator<Item = &'a [u8]>,
        output: bool,
        corruption: Option<Corruption>,
    ) -> u64 {
        let count = blocks.len();
        for (number, data) in blocks.enumerate() {
            let address = at + 1024 * number as u64;
            let mut next = if number + 1 < count { address + 1024 } else { 0 };
            let mut mailbox = CommandMailbox::zeroed();
            mailbox.as_bytes_mut()[..data.len()].copy_from_slice(data);
            mailbox.set_block_number(number as u32).set_token(self.token);
            match corruption {
                Some(Corruption::Next { output: of, number: n, to })
                    if of == output && usize::from(n) % count == number =>
                {
                    next = to.get() & if n & 0x80 == 0 { !0x3ff } else { !0 };
                }
                Some(Corruption::Mailbox { output: of, number: n, byte, value })
                    if of == output && usize::from(n) % count == number =>
                {
                    let control = &mut mailbox.as_bytes_mut()[0x200..];
                    control[usize::from(byte) % 0x40] = value;
                }
                _ => {}
            }
            mailbox.set_next(next);
            let control = !xor8(mailbox.control());
            mailbox.set_ctrl_signature(mailbox.ctrl_signature() ^ control);
            mailbox.set_signature(mailbox.signature() ^ !xor8(mailbox.as_bytes()));
            self.memory.put(address, mailbox.as_bytes());
        }
        if count == 0 { 0 } else { at }
    }

    /// The output of an entry whose delivery status is OK.
    fn output(&self, entry: u64, room: usize) -> Option<Vec<u8>> {
        let owner = self.memory.get::<1>(entry + 0x3f)[0];
        if owner != 0 {
            return None;
        }
        let mut output = self.memory.get::<INLINE>(entry + 0x20).to_vec();
        if output[0] != 0 {
            return None;
        }
        for number in 0..room.saturating_sub(INLINE).div_ceil(BLOCK).min(1) as u64 {
            output.extend(self.memory.get::<BLOCK>(OUTPUTS + 1024 * number));
        }
        Some(output)
    }
}

/// Puts the mistake into the entry; returns the slots to ring for.
fn corrupt(entry: &mut CommandQueueEntry, corruption: Option<Corruption>) -> u32 {
    match corruption {
        Some(Corruption::Token(token)) => {
            entry.set_token(token);
        }
        Some(Corruption::First { output, to }) => {
            match output {
                true => entry.set_output_mailbox(to.get()),
                false => entry.set_input_mailbox(to.get()),
            };
        }
        Some(Corruption::Lengths { input, output }) => {
            entry.set_input_length(input).set_output_length(output);
        }
        Some(Corruption::Entry { byte, value }) => {
            entry.as_bytes_mut()[usize::from(byte) % 64] = value
        }
        Some(Corruption::Slots(slots)) => return slots,
        Some(Corruption::Mailbox { .. } | Corruption::Next { .. }) | None => {}
    }
    1
}
