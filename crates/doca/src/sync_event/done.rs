//! The event of a sync event's job.

use crate::context::failure::JobError;
use crate::context::job_type::JobType;
use crate::types::UserData;

/// A completed job of a sync event.
#[derive(Clone, Copy, Debug)]
pub struct SyncEventDone {
    /// The user data of the job.
    pub user_data: UserData,
    /// The type of the job.
    pub job_type: JobType,
    /// The result.
    pub result: std::result::Result<(), JobError>,
    /// The value of a get, or the value before an add (`struct doca_sync_event_result`).
    pub value: Option<u64>,
}
