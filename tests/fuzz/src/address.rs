//! The targets of hostile pointers, and the layout of a guest's memory.

use arbitrary::Arbitrary;

use crate::memory::{BYTES, READ_ONLY_BYTES, START};

/// The command queue.
pub const COMMANDS: u64 = START;
/// Mailboxes for inputs, and as many for outputs.
pub const INPUTS: u64 = START + 0x1000;
pub const OUTPUTS: u64 = INPUTS + MAILBOXES as u64 * 1024;
/// Number of mailboxes of each.
pub const MAILBOXES: usize = 64;
/// Rings and records.
pub const QUEUES: u64 = OUTPUTS + MAILBOXES as u64 * 1024;
/// The memory that mkeys cover: the last [`DATA_BYTES`] of the guest's memory.
pub const DATA: u64 = START + BYTES - DATA_BYTES;
pub const DATA_BYTES: u64 = 0x2_0000;

/// An address that a guest gives to the device.
#[derive(Arbitrary, Debug, Clone, Copy)]
pub enum Address {
    /// In the data.
    Data(u32),
    /// Anywhere in the memory: rings, records, mailboxes.
    Anywhere(u32),
    /// In the read-only memory.
    ReadOnly(u16),
    /// At the end of a range of memory, or across it.
    Edge(u8),
    /// Aligned word n of the data.
    Word(u8),
    /// Any value.
    Wild(u64),
}

impl Address {
    /// As a number.
    pub fn get(self) -> u64 {
        match self {
            Self::Data(at) => DATA + u64::from(at) % DATA_BYTES,
            Self::Anywhere(at) => START + u64::from(at) % BYTES,
            Self::ReadOnly(at) => START + BYTES + u64::from(at) % READ_ONLY_BYTES,
            Self::Edge(at) => {
                let end = START + BYTES + if at & 1 == 1 { READ_ONLY_BYTES } else { 0 };
                end - 64 + u64::from(at >> 1)
            }
            Self::Word(at) => DATA + 8 * u64::from(at),
            Self::Wild(at) => at,
        }
    }

    /// As a page number, mostly of an existing page.
    pub fn page(self) -> u64 {
        self.get() & !0xfff
    }
}
