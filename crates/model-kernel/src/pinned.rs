//! Memory of a client that counts as pinned: RLIMIT_MEMLOCK and the checks of a long-term pin.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use nix::errno::Errno;

use super::client::{Capability, Client};
use super::pages::SystemPage;
use super::refused::{self, refused};

/// Memory of a client that counts as pinned until this is dropped.
pub(super) struct Pinned {
    client: Arc<dyn Client>,
    pages: u64,
}

impl fmt::Debug for Pinned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} pages", self.pages)
    }
}

impl Pinned {
    /// Accounts for the pages of a range and checks that they can be pinned.
    pub(super) fn new(
        (client, page): (&Arc<dyn Client>, SystemPage),
        address: u64,
        length: u64,
        writable: bool,
    ) -> Result<Self, Errno> {
        let pages = pin((&**client, page), address, length, writable)?;
        Ok(Self { client: client.clone(), pages })
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        unpin(&*self.client, self.pages);
    }
}

/// Accounts for the pages of a range and checks that they can be pinned; returns their number.
fn pin(
    (client, page): (&dyn Client, SystemPage),
    address: u64,
    length: u64,
    writable: bool,
) -> Result<u64, Errno> {
    let end = address
        .checked_add(length)
        .and_then(|end| end.checked_next_multiple_of(page.bytes()))
        .ok_or_else(|| {
            let words = format!("{length} bytes at {address:#x} end beyond the last address");
            refused(Errno::EINVAL, words)
        })?;
    let limit = client.memlock();
    let unlimited = client.capable(Capability::IpcLock);
    if limit == 0 && !unlimited {
        return Err(refused(Errno::EPERM, "no memory may be locked: RLIMIT_MEMLOCK is 0"));
    }
    let pages = (end - page.start_of(address)) / page.bytes();
    if length == 0 || pages > u64::from(u32::MAX) {
        let words = format!("{length} bytes cannot be pinned: from 1 byte to {} pages", u32::MAX);
        return Err(refused(Errno::EINVAL, words));
    }
    let pinned = client.pinned().fetch_add(pages, Ordering::AcqRel) + pages;
    let result = if pinned > limit / page.bytes() && !unlimited {
        let words = format!(
            "{pages} pages more would make {pinned}, and RLIMIT_MEMLOCK allows {}: raise it \
             (ulimit -l)",
            limit / page.bytes()
        );
        Err(refused(Errno::ENOMEM, words))
    } else {
        refused::take();
        let result = client.pin(address, length, writable);
        // The reason that the client's last check gave.
        let reason = refused::take();
        result.map_err(|errno| {
            let access = if writable { "written" } else { "read" };
            let words = reason.map_or_else(
                || {
                    let range = format!("{length} bytes at {address:#x}");
                    format!("not all of {range} is memory that can be {access}").into()
                },
                |(_, words)| words,
            );
            refused(errno, words)
        })
    };
    if let Err(errno) = result {
        unpin(client, pages);
        return Err(errno);
    }
    Ok(pages)
}

/// Releases the pages that a registration pinned.
fn unpin(client: &dyn Client, pages: u64) {
    client.pinned().fetch_sub(pages, Ordering::AcqRel);
}
