//! The command queue: entries and mailboxes in guest memory, from doorbell to answer.
//!
//! An entry holds the first 16 bytes of a command's input and output; the rest is in two chains of
//! mailboxes of 512 bytes each. A malformed entry or chain gets a delivery status, and the command
//! is not executed. The walk of a chain ends at the length that the entry states, so a chain that
//! loops ends too.

use verbless_prm::hot::event_type;
use verbless_prm::mailbox::xor8;
use verbless_prm::{
    CmdifChecksum, CommandInfo, CommandMailbox, CommandOwnership, CommandQueueEntry,
    CommandTransport, DeliveryStatus,
};

use verbless_model::function::Function;
use verbless_model::memory::HostMemory;

/// log2 of the number of entries.
pub(super) const LOG_SIZE: u8 = 5;
/// log2 of the bytes from one entry to the next.
pub(super) const LOG_STRIDE: u8 = 6;

/// Bytes of input and output that are in the entry itself.
const INLINE: usize = 16;
/// Bytes of input and output in a mailbox.
const BLOCK: usize = 512;
/// Alignment of the other mailboxes of a chain in bytes.
const MAILBOX_ALIGNMENT: u64 = 1 << 10;
/// Alignment of the first mailbox in bytes.
const FIRST_ALIGNMENT: u64 = 1 << 9;
/// The longest input or output: a list of pages for 8 GiB of memory.
const MAX_LENGTH: u32 = 16 << 20;
/// Offsets in the entry that the device writes.
const OUTPUT_INLINE: u64 = 0x20;
const SIGNATURE: u64 = 0x3d;
const STATUS_AND_OWNER: u64 = 0x3f;

/// Executes the command in entry `slot` of the queue at `queue`, and raises COMMAND_COMPLETION on
/// the EQs that subscribe to it.
pub(super) fn execute(device: &Function, queue: u64, slot: u32) {
    let memory = device.memory();
    let address = queue + (u64::from(slot) << LOG_STRIDE);
    let mut entry = CommandQueueEntry::zeroed();
    if let Err(fault) = memory.read(address, entry.as_bytes_mut()) {
        tracing::warn!(slot, %fault, "a command queue entry cannot be read");
        return;
    }
    if entry.ownership() != CommandOwnership::HARDWARE {
        tracing::debug!(slot, "a doorbell for a command queue entry that is not the device's");
        return;
    }
    // Sampled before execution: the CREATE_EQ that subscribes to this event does not raise it,
    // because its driver still polls.
    let reported = device.takes_event(event_type::COMMAND_COMPLETION);
    let status = match deliver(device, &*memory, slot, &mut entry) {
        Ok(()) => DeliveryStatus::OK,
        Err(status) => {
            tracing::warn!(slot, ?status, "a command cannot be delivered");
            status
        }
    };
    entry.set_status(status).set_ownership(CommandOwnership::SOFTWARE).set_signature(0);
    let signature = !xor8(entry.as_bytes());
    let owner = entry.as_bytes()[STATUS_AND_OWNER as usize];
    let written = memory
        .write(address + OUTPUT_INLINE, entry.command_output_inline_data())
        .and_then(|()| memory.store8(address + SIGNATURE, signature))
        .and_then(|()| memory.store8(address + STATUS_AND_OWNER, owner));
    if let Err(fault) = written {
        tracing::warn!(slot, %fault, "a command queue entry cannot be written");
    }
    if reported {
        let mut data = [0; 28];
        data[..4].copy_from_slice(&(1_u32 << slot).to_be_bytes());
        device.report_event(event_type::COMMAND_COMPLETION, data);
    }
}

/// Fetches the input, executes the command, and writes the output to the entry and its mailboxes.
fn deliver(
    device: &Function,
    memory: &dyn HostMemory,
    slot: u32,
    entry: &mut CommandQueueEntry,
) -> Result<(), DeliveryStatus> {
    let signed = device.capabilities().cmdif_checksum() == CmdifChecksum::ENABLED;
    if entry.r#type() != CommandTransport::PCIE {
        return Err(DeliveryStatus::BAD_DESCRIPTOR_TYPE);
    }
    if signed && xor8(entry.as_bytes()) != 0xff {
        return Err(DeliveryStatus::SIGNATURE_ERR);
    }
    let (first_input, first_output) = (entry.input_mailbox(), entry.output_mailbox());
    if first_input % FIRST_ALIGNMENT != 0 {
        return Err(DeliveryStatus::INPUT_POINTER_ALIGNMENT);
    }
    if first_output % FIRST_ALIGNMENT != 0 {
        return Err(DeliveryStatus::OUTPUT_POINTER_ALIGNMENT);
    }
    let (input_length, output_length) = (entry.input_length(), entry.output_length());
    if input_length == 0 || input_length > MAX_LENGTH {
        return Err(DeliveryStatus::INPUT_LENGTH_ERR);
    }
    if output_length == 0 || output_length > MAX_LENGTH {
        return Err(DeliveryStatus::OUTPUT_LENGTH_ERR);
    }
    let chain = MailboxChain { memory, token: entry.token(), signed };

    let mut input = entry.command_input_inline_data().to_vec();
    chain.walk(
        first_input,
        (input_length as usize).saturating_sub(INLINE),
        DeliveryStatus::INPUT_POINTER_ALIGNMENT,
        DeliveryStatus::INPUT_LENGTH_ERR,
        |_, mailbox| input.extend_from_slice(mailbox.mailbox_data()),
    )?;
    input.truncate(input_length as usize);

    let mut mailboxes = Vec::new();
    chain.walk(
        first_output,
        (output_length as usize).saturating_sub(INLINE),
        DeliveryStatus::OUTPUT_POINTER_ALIGNMENT,
        DeliveryStatus::OUTPUT_LENGTH_ERR,
        |address, mailbox| mailboxes.push((address, *mailbox)),
    )?;

    let mut output = vec![0; output_length as usize];
    device.execute(&input, &mut output);
    log(slot, &input, &output);

    let (inline, rest) = output.split_at(INLINE.min(output.len()));
    let mut first = [0; INLINE];
    first[..inline.len()].copy_from_slice(inline);
    entry.set_command_output_inline_data(&first);
    for ((address, mut mailbox), data) in mailboxes.into_iter().zip(rest.chunks(BLOCK)) {
        mailbox.as_bytes_mut()[..data.len()].copy_from_slice(data);
        sign(&mut mailbox);
        memory.write(address, mailbox.as_bytes()).map_err(|_| DeliveryStatus::FIRMWARE_ERR)?;
    }
    Ok(())
}

/// Logs a command and its answer.
fn log(slot: u32, input: &[u8], output: &[u8]) {
    let be16 =
        |bytes: &[u8], at| u16::from_be_bytes(bytes[at..at + 2].try_into().unwrap_or_default());
    if input.len() < 8 || output.is_empty() {
        return;
    }
    let (opcode, uid, op_mod) = (be16(input, 0), be16(input, 2), be16(input, 6));
    let command = CommandInfo::by_opcode(opcode).map_or("", |command| command.name);
    tracing::debug!(
        slot,
        uid,
        op_mod,
        input = input.len(),
        output = output.len(),
        status = output[0],
        "{opcode:#x} {command}"
    );
    tracing::trace!("{:02x?}\n{:02x?}", input, output);
}

/// A chain of mailboxes, with its expected token and signing.
struct MailboxChain<'a> {
    memory: &'a dyn HostMemory,
    token: u8,
    signed: bool,
}

impl MailboxChain<'_> {
    /// Calls `each` with the mailboxes that hold `bytes` bytes, the first at `address`.
    fn walk(
        &self,
        mut address: u64,
        bytes: usize,
        misaligned: DeliveryStatus,
        too_short: DeliveryStatus,
        mut each: impl FnMut(u64, &CommandMailbox),
    ) -> Result<(), DeliveryStatus> {
        let mut mailbox = CommandMailbox::zeroed();
        for number in 0..bytes.div_ceil(BLOCK) as u32 {
            if address == 0 {
                return Err(too_short);
            }
            if number > 0 && !address.is_multiple_of(MAILBOX_ALIGNMENT) {
                return Err(misaligned);
            }
            let read = self.memory.read(address, mailbox.as_bytes_mut());
            read.map_err(|_| DeliveryStatus::FIRMWARE_ERR)?;
            if mailbox.token() != self.token {
                return Err(DeliveryStatus::TOKEN_ERR);
            }
            if mailbox.block_number() != number {
                return Err(DeliveryStatus::BAD_BLOCK_NUMBER);
            }
            let bytes = mailbox.as_bytes();
            if self.signed && (xor8(mailbox.control()) != 0xff || xor8(bytes) != 0xff) {
                return Err(DeliveryStatus::SIGNATURE_ERR);
            }
            each(address, &mailbox);
            address = mailbox.next();
        }
        Ok(())
    }
}

/// Computes both signatures of a mailbox.
fn sign(mailbox: &mut CommandMailbox) {
    mailbox.set_ctrl_signature(0).set_signature(0);
    let control = !xor8(mailbox.control());
    mailbox.set_ctrl_signature(control);
    let whole = !xor8(mailbox.as_bytes());
    mailbox.set_signature(whole);
}

#[cfg(test)]
mod tests;
