//! The size of the system's pages.

use nix::unistd::{SysconfVar, sysconf};

/// Bytes of a system page.
#[must_use]
pub fn page_size() -> usize {
    sysconf(SysconfVar::PAGE_SIZE)
        .ok()
        .flatten()
        .and_then(|bytes| usize::try_from(bytes).ok())
        .unwrap_or(4096)
}
