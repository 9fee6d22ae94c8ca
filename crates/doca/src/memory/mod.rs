//! Memory maps (`doca_mmap.h`; sections 3.3.2 of 2.2, 4.7 and 5.4 of 1.3).
//!
//! A map is memory, the devices that may use it, and what they may do. The two documents
//! contradict each other, so there are two types: [`Mmap`] is that of 2.2, one range that nothing
//! changes once it is started; [`DynamicMmap`] is that of 1.3, which takes ranges and devices while
//! it is started. [`MemoryMap`] is what they have in common: buffers point into either.
//!
//! The bytes of a map are [`Memory`]: allocated by it, or given by the program. They are copied in
//! and out, as a device may change them at any time.
//!
//! Memory that the program has already, as that which a DOCA program gives to
//! `doca_mmap_set_memrange`, is [`Memory::from_raw`]. It is `unsafe`: the device writes there
//! whenever a job or a peer has it do so, and Rust may not know those bytes as a slice meanwhile.
//!
//! ```
//! use std::ptr::NonNull;
//!
//! use verbless_doca::{Memory, Mmap};
//!
//! /// A table that a device reaches. It is freed when no map and no buffer needs it any more.
//! struct Table(*mut [u8]);
//! // SAFETY: it is the box's only owner, and does nothing with it but free it.
//! unsafe impl Send for Table {}
//! // SAFETY: the same.
//! unsafe impl Sync for Table {}
//! impl Drop for Table {
//!     fn drop(&mut self) {
//!         // SAFETY: it came from a box, of which nobody else has a pointer any more.
//!         drop(unsafe { Box::from_raw(self.0) });
//!     }
//! }
//!
//! # fn map_table(dev: &verbless_doca::Dev) -> Result<(), Box<dyn std::error::Error>> {
//! let table = Table(Box::into_raw(vec![0_u8; 4096].into_boxed_slice()));
//! let base = NonNull::new(table.0.cast()).ok_or("no address")?;
//! // SAFETY: the bytes stay while their owner does, and nobody has a reference to them.
//! let memory = unsafe { Memory::from_raw(base, table.0.len(), table) };
//! let map = Mmap::builder().memrange(memory).add_dev(dev).start()?;
//! assert_eq!(map.len(), 4096);
//! # Ok(())
//! # }
//! # let model = verbless_model::Model::builder()
//! #     .device(verbless_model::Profile::load("bluefield3").unwrap())
//! #     .build();
//! # let backend: std::sync::Arc<dyn verbless_devx::Backend> =
//! #     std::sync::Arc::new(verbless_model_kernel::InProcess::of(&model));
//! # let dev = verbless_doca::DevInfo::find_in(&backend, "mlx5_0").unwrap().open().unwrap();
//! # map_table(&dev).unwrap();
//! ```
//!
//! A `Vec` or `Box<[u8]>` is not taken by a safe call: the device pins whole pages, of which the
//! ends belong to other values of the heap, and a `fork` would part the program from them.

mod chunk;
mod dynamic;
pub mod export;
mod keys;
mod mmap;

use std::sync::Arc;

pub use chunk::FreeCallback;
pub(crate) use chunk::{Chunk, Reach};
pub use dynamic::{DynamicMmap, NotPopulated};
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

/// How many ranges an error names.
const NAMED: usize = 3;

/// The error of a range that is in no chunk. They are in the order of their addresses.
fn not_in_map(address: u64, length: u64, chunks: &[Arc<Chunk>]) -> Error {
    let behind = chunks.partition_point(|chunk| chunk.address() <= address);
    let first = behind.saturating_sub(NAMED - 1).min(chunks.len().saturating_sub(NAMED));
    let near: Vec<_> = chunks[first..]
        .iter()
        .take(NAMED)
        .map(|chunk| format!("{} bytes from {:#x} on", chunk.length(), chunk.address()))
        .collect();
    let what = match chunks.len() {
        0 => "has none".to_owned(),
        all if all <= NAMED => format!("has {}", near.join(", ")),
        all => format!("has {all}, the nearest of them {}", near.join(", ")),
    };
    let text =
        format!("{length} bytes from {address:#x} on are in no range of the map, which {what}");
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
