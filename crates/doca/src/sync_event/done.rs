//! The event of a job on a sync event.

use crate::context::failure::{JobError, JobType};
use crate::types::UserData;

/// A job of a sync event that is done.
#[derive(Clone, Copy, Debug)]
pub struct SyncEventDone {
    /// The user data of the job.
    pub user_data: UserData,
    /// The type of the job.
    pub job_type: JobType,
    /// The result.
    pub result: std::result::Result<(), JobError>,
    /// The value that the job got, or the value before it added to it (`struct
    /// doca_sync_event_result`).
    pub value: Option<u64>,
}
