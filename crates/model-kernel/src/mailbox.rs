//! Single fields of command mailboxes: the few that the kernel reads or sets in a mailbox of any
//! length.
//!
//! A DevX client may send a mailbox that is shorter than the command's layout. A field past its end
//! reads as zero, and setting it does nothing. The device refuses the length.

use verbless_prm::Opcode;

/// A field within one big-endian dword: byte offset of the dword, highest and lowest bit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Field(pub u16, pub u8, pub u8);

impl Field {
    fn mask(self) -> u32 {
        (u32::MAX >> (31 - (self.1 - self.2))) << self.2
    }

    /// The field's value; 0 when the mailbox ends before it.
    pub(super) fn get(self, mailbox: &[u8]) -> u32 {
        (dword(mailbox, self.0.into()) & self.mask()) >> self.2
    }

    /// Sets the field, unless the mailbox ends before it. Bits that do not fit are cut off.
    pub(super) fn set(self, mailbox: &mut [u8], value: u32) {
        let at = usize::from(self.0);
        if let Some(bytes) = mailbox.get_mut(at..at + 4).and_then(|bytes| bytes.first_chunk_mut()) {
            let rest = u32::from_be_bytes(*bytes) & !self.mask();
            *bytes = (rest | (value << self.2) & self.mask()).to_be_bytes();
        }
    }
}

/// A dword, as if zeros followed the mailbox.
fn dword(mailbox: &[u8], at: usize) -> u32 {
    let mut bytes = [0; 4];
    if let Some(rest) = mailbox.get(at..) {
        let len = rest.len().min(4);
        bytes[..len].copy_from_slice(&rest[..len]);
    }
    u32::from_be_bytes(bytes)
}

/// The header of every inbox.
pub(super) const OPCODE: Field = Field(0x0, 31, 16);
pub(super) const UID: Field = Field(0x0, 15, 0);
pub(super) const VHCA_TUNNEL_ID: Field = Field(0x4, 31, 16);
/// op_mod; in general-object commands the object type.
pub(super) const OP_MOD: Field = Field(0x4, 15, 0);
/// The header of every outbox.
pub(super) const STATUS: Field = Field(0x0, 31, 24);
pub(super) const SYNDROME: Field = Field(0x4, 31, 0);
/// The number field in the third dword of most commands.
pub(super) const NUMBER: Field = Field(0x8, 23, 0);
/// The number field of commands whose number has 32 bits.
pub(super) const NUMBER_32: Field = Field(0x8, 31, 0);

/// An inbox of `bytes` zeros with the opcode, op_mod and uid set.
pub(super) fn inbox(opcode: Opcode, op_mod: u16, uid: u16, bytes: usize) -> Vec<u8> {
    let mut inbox = vec![0; bytes];
    OPCODE.set(&mut inbox, opcode.0.into());
    UID.set(&mut inbox, uid.into());
    OP_MOD.set(&mut inbox, op_mod.into());
    inbox
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn field_set_changes_own_bits_only() {
        let mut mailbox = [0xa5; 16];
        Field(0x4, 11, 4).set(&mut mailbox, 0x1_3c);
        assert_eq!(mailbox[4..8], [0xa5, 0xa5, 0xa3, 0xc5]);
        assert_eq!(Field(0x4, 11, 4).get(&mailbox), 0x3c);
        assert_eq!(Field(0x8, 31, 0).get(&mailbox), 0xa5a5_a5a5);
    }

    #[test]
    fn field_past_end_reads_zero() {
        let mut mailbox = [0xff; 6];
        Field(0x4, 31, 0).set(&mut mailbox, 0);
        Field(0x100, 3, 0).set(&mut mailbox, 1);
        assert_eq!(mailbox, [0xff; 6]);
        assert_eq!(Field(0x4, 31, 0).get(&mailbox), 0xffff_0000);
        assert_eq!(Field(0x100, 31, 0).get(&mailbox), 0);
    }
}
