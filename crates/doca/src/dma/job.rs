//! The job of a DMA copy.

use crate::buffer::Buf;
use crate::context::core::CtxId;
use crate::types::UserData;

/// A copy (`struct doca_dma_job_memcpy`).
#[derive(Debug)]
#[must_use = "a job runs only if it is submitted"]
pub struct Memcpy {
    pub(super) ctx: CtxId,
    pub(super) user_data: UserData,
    pub(super) source: Buf,
    pub(super) destination: Buf,
}

impl Memcpy {
    /// Sets the user data that the job's event returns.
    #[inline]
    pub fn user_data(self, user_data: impl Into<UserData>) -> Self {
        Self { user_data: user_data.into(), ..self }
    }

    /// Returns the job's buffers: source, destination.
    pub fn into_bufs(self) -> (Buf, Buf) {
        (self.source, self.destination)
    }
}
