//! The key of a buffer's memory, for requests that are not jobs.

use verbless_queue::{Lkey, Rkey};

use super::buf::Buf;
use crate::device::Dev;
use crate::error::{Error, ErrorKind, Result};

impl Buf {
    /// The key by which work requests on `dev` name the memory of this buffer, as local memory
    /// (`doca_buf_get_mkey`). It is good while the buffer lives.
    ///
    /// # Errors
    /// [`ErrorKind::NotPermitted`] if its map was not added to `dev`, and for memory of a peer,
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

    /// The key by which requests of queue pairs on `dev` name the memory of this buffer as the
    /// other side's: of an imported map the key that its owner exported, of a map of this side the
    /// one that peers use. The address is that of the buffer.
    ///
    /// # Errors
    /// [`ErrorKind::NotPermitted`] if its map was not added to `dev`, or lets no peer in.
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
