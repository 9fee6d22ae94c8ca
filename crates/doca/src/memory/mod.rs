//! Memory maps (`doca_mmap.h`; sections 3.3.2 of 2.2, 4.7 and 5.4 of 1.3).
//!
//! A map is memory, its devices, and their permissions. The two documents contradict each other, so
//! there are two types: [`Mmap`] is the map of 2.2, one range that does not change after its start;
//! [`DynamicMmap`] is the map of 1.3, which accepts ranges and devices while it is started.
//! [`MemoryMap`] covers both: buffers point into either.
//!
//! The bytes of a map are [`Memory`], allocated by it or given by the program. They are copied in
//! and out, because a device may change them at any time.
//!
//! Existing memory of the program, as a DOCA program passes it to `doca_mmap_set_memrange`, becomes
//! a [`Memory::from_raw`]. That is `unsafe`: the device writes there whenever a job or a peer makes
//! it do so, and Rust code may not hold a slice of those bytes meanwhile.
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
//!         // SAFETY: it came from a box, and this is the last pointer to it.
//!         drop(unsafe { Box::from_raw(self.0) });
//!     }
//! }
//!
//! # fn map_table(dev: &verbless_doca::Dev) -> Result<(), Box<dyn std::error::Error>> {
//! let table = Table(Box::into_raw(vec![0_u8; 4096].into_boxed_slice()));
//! let base = NonNull::new(table.0.cast()).ok_or("no address")?;
//! // SAFETY: the bytes live as long as their owner, and have no references.
//! let memory = unsafe { Memory::from_raw(base, table.0.len(), table) };
//! let map = Mmap::builder().memrange(memory).add_dev(dev).start()?;
//! assert_eq!(map.len(), 4096);
//! # // SAFETY: there are no bytes.
//! # let none = unsafe { Memory::from_raw(base, 0, ()) };
//! # let refused = Mmap::builder().memrange(none).add_dev(dev).start().unwrap_err();
//! # assert_eq!(refused.kind(), verbless_doca::ErrorKind::InvalidValue);
//! # let given = map.stop().unwrap();
//! # assert_eq!((given.devices().len(), given.memory().map(Memory::len)), (1, Some(4096)));
//! # assert_eq!(given.access(), verbless_doca::AccessFlags::default());
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
//! No safe call takes a `Vec` or `Box<[u8]>`: the device pins whole pages, whose ends belong to
//! other values of the heap, and a `fork` would separate the program from them.

mod bytes;
mod chunk;
mod dynamic;
pub mod export;
mod keys;
mod mmap;

use std::sync::Arc;

pub use bytes::Memory;
pub use chunk::FreeCallback;
pub(crate) use chunk::{CachedKey, Chunk};
pub use dynamic::{DynamicMmap, NotPopulated};
pub use export::ExportDescriptor;
pub use mmap::{Mmap, MmapBuilder};

use crate::error::{Error, ErrorKind, Result};

pub(crate) mod sealed {
    use std::sync::Arc;

    use crate::error::Result;
    use crate::memory::chunk::Chunk;

    pub trait Sealed {
        /// The range that contains all `length` bytes from `address` on.
        fn chunk(&self, address: u64, length: u64) -> Result<&Arc<Chunk>>;

        /// Address and bytes of the one range.
        fn whole(&self) -> Result<(u64, u64)>;
    }
}

/// Memory that buffers point into: an [`Mmap`] or a [`DynamicMmap`].
pub trait MemoryMap: sealed::Sealed {}

/// Maximum number of ranges in an error text.
const MAX_NAMED: usize = 3;

/// The error for a range outside of all chunks, which are in the order of their addresses.
fn not_in_map(address: u64, length: u64, chunks: &[Arc<Chunk>]) -> Error {
    let behind = chunks.partition_point(|chunk| chunk.address() <= address);
    let first = behind.saturating_sub(MAX_NAMED - 1).min(chunks.len().saturating_sub(MAX_NAMED));
    let near: Vec<_> = chunks[first..]
        .iter()
        .take(MAX_NAMED)
        .map(|chunk| format!("{} bytes from {:#x} on", chunk.length(), chunk.address()))
        .collect();
    let what = match chunks.len() {
        0 => "has none".to_owned(),
        all if all <= MAX_NAMED => format!("has {}", near.join(", ")),
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::AccessFlags;

    #[test]
    fn range_error_names_nearest_three_chunks() {
        let chunk = |_| {
            let memory = Memory::allocate(64).unwrap();
            Arc::new(Chunk::local(memory, AccessFlags::default()))
        };
        let mut chunks: Vec<_> = (0..6).map(chunk).collect();
        chunks.sort_by_key(|chunk| chunk.address());
        let error = |at: u64, chunks: &[_]| not_in_map(at, 8, chunks).to_string();
        let begin =
            "DOCA_ERROR_INVALID_VALUE: 8 bytes from 0x5 on are in no range of the map, which ";
        assert_eq!(error(5, &[]), format!("{begin}has none"));
        let named = |chunks: &[Arc<Chunk>]| {
            let each = chunks.iter().map(|it| format!("64 bytes from {:#x} on", it.address()));
            each.collect::<Vec<_>>().join(", ")
        };
        for count in 1..=3 {
            let chunks = &chunks[..count];
            assert_eq!(error(5, chunks), format!("{begin}has {}", named(chunks)));
        }
        // The range begins before the first chunk, then in each of them.
        assert_eq!(
            error(5, &chunks),
            format!("{begin}has 6, the nearest of them {}", named(&chunks[..3]))
        );
        for (at, first) in [(0, 0), (1, 0), (2, 1), (3, 2), (4, 3), (5, 3)] {
            let text = error(chunks[at].address(), &chunks);
            let near = format!("has 6, the nearest of them {}", named(&chunks[first..first + 3]));
            assert!(text.ends_with(&near), "{at}: {text}");
        }
    }
}
