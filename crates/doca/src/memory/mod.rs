//! Memory maps (`doca_mmap.h`; sections 3.3.2 of 2.2, 4.7 and 5.4 of 1.3).
//!
//! A map is memory, the devices that may use it, and what they may do. The two documents
//! contradict each other, so there are two types: [`Mmap`] is that of 2.2, one range that nothing
//! changes once it is started; [`DynamicMmap`] is that of 1.3, which takes ranges and devices while
//! it is started. [`MemoryMap`] is what they have in common: buffers point into either.
//!
//! The bytes of a map are [`Memory`]: allocated by it, or given by the program. They are copied in
//! and out, as a device may change them at any time.

mod chunk;
mod dynamic;
pub mod export;
mod mmap;

use std::sync::Arc;

pub use chunk::FreeCallback;
pub(crate) use chunk::{Chunk, Reach};
pub use dynamic::DynamicMmap;
pub use export::ExportDescriptor;
pub use mmap::{Mmap, MmapBuilder};
pub use verbless_queue::Memory;

use crate::error::{Error, ErrorKind, Result};

pub(crate) mod sealed {
    use std::sync::Arc;

    use crate::error::Result;
    use crate::memory::chunk::Chunk;

    pub trait Sealed {
        /// The range that has all of `length` bytes from `address` on.
        fn chunk(&self, address: u64, length: u64) -> Result<&Arc<Chunk>>;

        /// Address and bytes of the one range.
        fn whole(&self) -> Result<(u64, u64)>;
    }
}

/// Memory that buffers point into: an [`Mmap`] or a [`DynamicMmap`].
pub trait MemoryMap: sealed::Sealed {}

/// The error of a range that is in no chunk.
fn not_in_map(address: u64, length: u64, chunks: &[Arc<Chunk>]) -> Error {
    let ranges: Vec<_> = chunks
        .iter()
        .map(|chunk| format!("{} bytes from {:#x} on", chunk.length(), chunk.address()))
        .collect();
    let text = format!(
        "{length} bytes from {address:#x} on are in no range of the map, which has {}",
        if ranges.is_empty() { "none".to_owned() } else { ranges.join(", ") }
    );
    Error::new(ErrorKind::InvalidValue, text)
}

/// The bytes of a chunk.
pub(crate) fn bytes_of(chunk: &Chunk) -> Result<&Memory> {
    chunk.memory().ok_or_else(|| {
        let text = "this memory is another machine's or side's: a job must copy it here first";
        Error::plain(ErrorKind::NotPermitted, text)
    })
}

/// The refusal of a copy that leaves the map.
pub(crate) fn outside(error: verbless_queue::ring::OutOfBounds) -> Error {
    Error::new(ErrorKind::InvalidValue, error.to_string())
}
