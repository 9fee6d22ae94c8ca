//! The page of the device.

/// Bytes of a page of the device, in page lists and UARs, whatever the size of the kernel's pages.
pub const PAGE: u64 = 4096;
