//! The event of a copy.

use crate::buffer::Buf;
use crate::context::failure::JobError;
use crate::types::UserData;

/// A completed copy.
#[derive(Debug)]
pub struct MemcpyDone {
    /// The user data of the job.
    pub user_data: UserData,
    /// The result of the copy.
    pub result: std::result::Result<(), JobError>,
    /// The source, unchanged.
    pub source: Buf,
    /// The destination; if the copy succeeded, its datarooms have grown by the copied bytes.
    pub destination: Buf,
}
