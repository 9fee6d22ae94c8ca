//! References to a buffer beside the buffer itself.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::element::BufState;
use crate::error::{Error, ErrorKind, Result};

/// A counted reference to a buffer ([`Buf::add_ref`](super::Buf::add_ref)). It has the buffer's
/// constant properties, and keeps its descriptor and its map in use; the dataroom belongs to the
/// buffer's owner. A drop is `doca_buf_refcount_rm`.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doc.rs"));
/// # use verbless_doca::Inventory;
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let map = doc::map(&doc::dev());
/// let inventory = Inventory::builder(1).start()?;
/// let buffer = inventory.buf_by_addr(&map, map.address(), 64)?;
/// let reference = buffer.add_ref()?;
/// assert_eq!(reference.refcount(), 2);
/// drop(buffer);
/// assert_eq!((reference.refcount(), inventory.num_free_elements()), (1, 0));
/// drop(reference);
/// assert_eq!(inventory.num_free_elements(), 1);
/// # Ok(())
/// # }
/// ```
pub struct BufRef(Arc<BufState>);

impl BufRef {
    pub(super) fn to(shared: &Arc<BufState>) -> Result<Self> {
        match shared.add() {
            true => Ok(Self(shared.clone())),
            false => {
                let text = "the buffer has 65,535 references: drop some";
                Err(Error::plain(ErrorKind::Full, text))
            }
        }
    }

    /// The first byte's address.
    pub fn head(&self) -> u64 {
        self.0.head.load(Ordering::Relaxed)
    }

    /// Bytes of the buffer.
    pub fn len(&self) -> u64 {
        self.0.length.load(Ordering::Relaxed)
    }

    /// Whether the buffer has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The number of references to the buffer, including this one.
    pub fn refcount(&self) -> u16 {
        self.0.count()
    }
}

impl Drop for BufRef {
    fn drop(&mut self) {
        self.0.remove();
    }
}

impl fmt::Debug for BufRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BufRef")
            .field("head", &format_args!("{:#x}", self.head()))
            .field("len", &self.len())
            .field("refcount", &self.refcount())
            .finish()
    }
}
