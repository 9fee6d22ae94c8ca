//! Buffers and doorbell records of queues: pinning, and page lists for commands.

use std::sync::Arc;

use nix::errno::Errno;

use super::super::client::Client;
use super::super::kernel::Kernel;
use super::super::page::PAGE;
use super::super::page_lists::{ListedPages, MAX_PAGES};
use super::super::pages::SystemPage;
use super::super::pinned::Pinned;
use super::super::refused::refused;

/// Unit of a queue's offset into its first page: 1/64 of a 4 KiB page.
const OFFSET_UNIT: u64 = PAGE / 64;

/// The buffer of a queue.
#[derive(Debug)]
pub(super) struct Buffer {
    pub pinned: Pinned,
    /// Offset into the first page in [`OFFSET_UNIT`]s.
    pub page_offset: u8,
    /// DMA address of the first page.
    start: u64,
    pages: u64,
}

impl Buffer {
    /// Executes a command followed by the list of the buffer's pages. The list holds its room only
    /// during the command, which waits for no client. ENOMEM: the list is too long, or gets no room
    /// in time.
    pub(super) fn exec(
        &self,
        (client, kernel): (&dyn Client, &Kernel),
        command: &[u8],
        output: &mut [u8],
    ) -> Result<(), Errno> {
        let _listed = listed(self.pages, client)?;
        let pages = (0..self.pages).flat_map(|page| (self.start + page * PAGE).to_be_bytes());
        let list: Vec<u8> = pages.collect();
        kernel.exec(&append_list(command, &list), output)
    }
}

/// Room for a list of pages. Some callers take a length from a client, unchecked as in Linux
/// (`resize_user`).
fn listed(pages: u64, client: &dyn Client) -> Result<ListedPages, Errno> {
    ListedPages::of(pages, client).ok_or_else(|| {
        let words = format!(
            "a list of {pages} pages does not fit: all lists in progress have at most {MAX_PAGES} \
             entries, and others did not end in time"
        );
        refused(Errno::ENOMEM, words)
    })
}

/// Pins a buffer.
pub(super) fn pin_buffer(
    (client, page): (&Arc<dyn Client>, SystemPage),
    address: u64,
    length: u64,
    writable: bool,
) -> Result<Buffer, Errno> {
    let offset = address % PAGE;
    let pinned = Pinned::new((client, page), address, length, writable)?;
    if !offset.is_multiple_of(OFFSET_UNIT) {
        let words = format!("the queue's memory at {address:#x} is not aligned to {OFFSET_UNIT}");
        return Err(refused(Errno::EINVAL, words));
    }
    let start = client.dma_address(address - offset);
    let pages = (offset + length).div_ceil(PAGE);
    Ok(Buffer { pinned, page_offset: (offset / OFFSET_UNIT) as u8, start, pages })
}

/// Checks that the page of a doorbell record can be pinned; returns the record's DMA address. The
/// page holds many records: none of them is charged to the memlock limit.
pub(super) fn check_doorbell_record(client: &dyn Client, address: u64) -> Result<u64, Errno> {
    client.pin(address, 1, false)?;
    Ok(client.dma_address(address))
}

/// A command followed by a list.
pub(super) fn append_list(command: &[u8], list: &[u8]) -> Vec<u8> {
    [command, list].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::OwnProcess;
    use crate::refused;

    #[test]
    fn page_list_of_buffer_is_bounded() {
        let client = OwnProcess::default();
        assert!(listed(1, &client).is_ok());
        for pages in [MAX_PAGES as u64 + 1, u64::MAX] {
            assert_eq!(listed(pages, &client).unwrap_err(), Errno::ENOMEM);
            assert!(refused::take().unwrap().1.starts_with("a list of"));
        }
    }
}
