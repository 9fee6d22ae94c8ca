//! The key of a buffer's memory, for requests that are not jobs.

use verbless_queue::Lkey;

use super::buf::Buf;
use crate::device::Dev;
use crate::error::{Error, ErrorKind, Result};

impl Buf {
    /// The key by which work requests on `dev` name the memory of this buffer, as local memory
    /// (`doca_buf_get_mkey`). It is good while the buffer lives.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidValue`] if its map was not added to `dev`; [`ErrorKind::NotPermitted`]
    /// for memory of a peer, which has a remote key only.
    pub fn mkey(&self, dev: &Dev) -> Result<Lkey> {
        let Some(key) = self.first().chunk().key(dev) else {
            let text = format!("the map of the buffer was not added to {dev:?}: add it");
            return Err(Error::new(ErrorKind::InvalidValue, text));
        };
        key.lkey().ok_or_else(|| {
            let text = "memory of a peer has no local key: a request names it by the remote key";
            Error::plain(ErrorKind::NotPermitted, text)
        })
    }
}
