//! The sizes of pages: of this process, and of the kernel that has a device.

use nix::unistd::{SysconfVar, sysconf};

/// Bytes of a page of this process, in which it maps memory. What a device's kernel counts in pages
/// is counted in those of [`Context::page_size`](crate::Context::page_size).
#[must_use]
pub fn page_size() -> usize {
    sysconf(SysconfVar::PAGE_SIZE)
        .ok()
        .flatten()
        .and_then(|bytes| usize::try_from(bytes).ok())
        .unwrap_or(4096)
}
