//! The mkey of a buffer's memory, for requests that are not jobs.

use verbless_queue::{Lkey, Rkey};

use super::buf::Buf;
use crate::device::Dev;
use crate::error::{Error, ErrorKind, Result};

impl Buf {
    /// The lkey of this buffer's memory for work requests on `dev` (`doca_buf_get_mkey`). It is
    /// valid while the buffer lives.
    ///
    /// # Errors
    /// [`ErrorKind::NotPermitted`] if its map was not added to `dev`, or if the memory is a peer's,
    /// which has a remote key only.
    pub fn mkey(&self, dev: &Dev) -> Result<Lkey> {
        let Some(key) = self.first().chunk().key(dev) else {
            let text = format!("the map of the buffer was not added to {dev:?}: add it");
            return Err(Error::new(ErrorKind::NotPermitted, text));
        };
        key.lkey().ok_or_else(|| {
            let text = "memory of a peer has no local key: a request names it by `Buf::rkey`";
            Error::plain(ErrorKind::NotPermitted, text)
        })
    }

    /// The rkey of this buffer's memory for queue pairs on `dev`: the exported key for an imported
    /// map, the key for peers for a map of this side. The address is the buffer's.
    ///
    /// # Errors
    /// [`ErrorKind::NotPermitted`] if its map was not added to `dev`, or has no permission for
    /// peers.
    pub fn rkey(&self, dev: &Dev) -> Result<Rkey> {
        let chunk = self.first().chunk();
        let Some(key) = chunk.key(dev) else {
            let text = format!("the map of the buffer was not added to {dev:?}: add it");
            return Err(Error::new(ErrorKind::NotPermitted, text));
        };
        key.rkey().filter(|_| chunk.access().is_rdma()).ok_or_else(|| {
            let text = "the map of the buffer lets no peer in: give it an RDMA permission";
            Error::plain(ErrorKind::NotPermitted, text)
        })
    }
}
