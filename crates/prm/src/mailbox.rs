//! Pointers and signatures of the command queue and its mailboxes.
//!
//! The PRM splits a pointer into two fields and reserves the bits below its alignment. These
//! accessors give the 64-bit address with those bits, because a device must refuse an address that
//! has one set. Sources: Linux `struct mlx5_cmd_layout`, `struct mlx5_cmd_prot_block`, and
//! `xor8_buf` in `cmd.c`.

use crate::generated::{CommandMailbox, CommandQueueEntry};

/// XOR of all bytes; that of signed bytes is 0xff.
pub fn xor8(bytes: &[u8]) -> u8 {
    bytes.iter().fold(0, |sum, byte| sum ^ byte)
}

fn address(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |it| u64::from_be_bytes(*it))
}

fn set_address(bytes: &mut [u8], at: usize, address: u64) {
    if let Some(field) = bytes.get_mut(at..).and_then(<[u8]>::first_chunk_mut) {
        *field = address.to_be_bytes();
    }
}

impl CommandQueueEntry {
    const INPUT_MAILBOX: usize = 0x08;
    const OUTPUT_MAILBOX: usize = 0x30;

    /// Address of the first input mailbox; 0 if the input fits into the entry.
    pub fn input_mailbox(&self) -> u64 {
        address(self.as_bytes(), Self::INPUT_MAILBOX)
    }

    /// Sets the address of the first input mailbox.
    pub fn set_input_mailbox(&mut self, address: u64) -> &mut Self {
        set_address(self.as_bytes_mut(), Self::INPUT_MAILBOX, address);
        self
    }

    /// Address of the first output mailbox; 0 if the output fits into the entry.
    pub fn output_mailbox(&self) -> u64 {
        address(self.as_bytes(), Self::OUTPUT_MAILBOX)
    }

    /// Sets the address of the first output mailbox.
    pub fn set_output_mailbox(&mut self, address: u64) -> &mut Self {
        set_address(self.as_bytes_mut(), Self::OUTPUT_MAILBOX, address);
        self
    }
}

impl CommandMailbox {
    const NEXT: usize = 0x230;

    /// Address of the next mailbox of the chain; 0 at its end.
    pub fn next(&self) -> u64 {
        address(self.as_bytes(), Self::NEXT)
    }

    /// Sets the address of the next mailbox of the chain.
    pub fn set_next(&mut self, address: u64) -> &mut Self {
        set_address(self.as_bytes_mut(), Self::NEXT, address);
        self
    }

    /// The bytes that `ctrl_signature` covers, itself included.
    pub fn control(&self) -> &[u8] {
        self.as_bytes().get(0x200..0x23f).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ADDRESS: u64 = 0x1234_5678_9abc_dc00;

    #[test]
    fn mailbox_pointers_are_the_prm_fields() {
        let mut entry = CommandQueueEntry::zeroed();
        entry.set_input_mailbox(ADDRESS).set_output_mailbox(!ADDRESS & !0x1ff);
        let input = (entry.input_mailbox_pointer_63_32(), entry.input_mailbox_pointer_31_9());
        let output = (entry.output_mailbox_pointer_63_32(), entry.output_mailbox_pointer_31_9());
        assert_eq!(input, (0x1234_5678, 0x9abc_dc00 >> 9));
        assert_eq!(output, (!0x1234_5678, (!0x9abc_dc00_u32) >> 9));
        assert_eq!((entry.input_mailbox(), entry.output_mailbox()), (ADDRESS, !ADDRESS & !0x1ff));
        let mut mailbox = CommandMailbox::zeroed();
        mailbox.set_next(ADDRESS);
        let next = (mailbox.next_pointer_63_32(), mailbox.next_pointer_31_10());
        assert_eq!((next, mailbox.next()), ((0x1234_5678, 0x9abc_dc00 >> 10), ADDRESS));
    }

    #[test]
    fn pointers_keep_bits_below_the_alignment() {
        let mut entry = CommandQueueEntry::zeroed();
        assert_eq!(entry.set_input_mailbox(ADDRESS | 1).input_mailbox(), ADDRESS | 1);
        assert_eq!(entry.set_output_mailbox(ADDRESS | 0x100).output_mailbox(), ADDRESS | 0x100);
        assert_eq!(CommandMailbox::zeroed().set_next(ADDRESS | 0x200).next(), ADDRESS | 0x200);
    }

    #[test]
    fn control_ends_with_its_signature() {
        let mut mailbox = CommandMailbox::zeroed();
        mailbox.set_ctrl_signature(0xab).set_signature(0xcd);
        assert_eq!((mailbox.control().len(), mailbox.control().last()), (0x3f, Some(&0xab)));
        assert_eq!((xor8(mailbox.control()), xor8(mailbox.as_bytes())), (0xab, 0xab ^ 0xcd));
    }
}
