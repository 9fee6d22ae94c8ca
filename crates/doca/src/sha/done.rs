//! The event of a hash.

use crate::buffer::Buf;
use crate::context::failure::JobError;
use crate::context::job_type::JobType;
use crate::types::UserData;

use super::function::Partial;

/// A completed SHA job.
#[derive(Debug)]
pub struct HashDone {
    /// The user data of the job.
    pub user_data: UserData,
    /// The type of the job.
    pub job_type: JobType,
    /// The result.
    pub result: std::result::Result<(), JobError>,
    /// The source, unchanged.
    pub source: Buf,
    /// The destination, with the digest appended; `None` for a part before the last.
    pub destination: Option<Buf>,
    /// The session of a part, for the next one. `None` if the part failed after some of it was
    /// hashed: start over.
    pub session: Option<Partial>,
}
