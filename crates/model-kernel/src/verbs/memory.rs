//! Buffers and doorbell records of queues: pinned, and listed page by page as commands want them.

use std::sync::Arc;

use nix::errno::Errno;

use super::super::client::{Client, PAGE};
use super::super::pinned::Pinned;

/// Units in which a queue's offset into its first page counts: 64ths of a page of 4 KiB.
const OFFSET_UNIT: u64 = PAGE / 64;

/// A buffer that a queue lies in.
#[derive(Debug)]
pub(super) struct Buffer {
    pub pinned: Pinned,
    /// Offset into the first page in [`OFFSET_UNIT`]s.
    pub page_offset: u8,
    /// The DMA addresses of the pages, in the format of commands.
    pub pages: Vec<u8>,
}

/// Pins a buffer.
pub(super) fn buffer(
    client: &Arc<dyn Client>,
    address: u64,
    length: u64,
    writable: bool,
) -> Result<Buffer, Errno> {
    let pinned = Pinned::new(client, address, length, writable)?;
    let offset = address % PAGE;
    if !offset.is_multiple_of(OFFSET_UNIT) {
        return Err(Errno::EINVAL);
    }
    let start = client.dma_address(address - offset);
    let count = (offset + length).div_ceil(PAGE);
    let pages = (0..count).flat_map(|page| (start + page * PAGE).to_be_bytes()).collect();
    Ok(Buffer { pinned, page_offset: (offset / OFFSET_UNIT) as u8, pages })
}

/// Checks that the page in which a doorbell record begins can be pinned; the record's DMA address.
/// Such pages have many records, and are counted for none of them.
pub(super) fn record(client: &dyn Client, address: u64) -> Result<u64, Errno> {
    client.pin(address, 1, false)?;
    Ok(client.dma_address(address))
}

/// A command and the list that follows it.
pub(super) fn with_list(command: &[u8], list: &[u8]) -> Vec<u8> {
    [command, list].concat()
}
