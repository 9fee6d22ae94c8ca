//! What a job of a sync event yields.

use crate::context::failure::{JobError, JobType};
use crate::types::UserData;

/// A job of a sync event that is done.
#[derive(Clone, Copy, Debug)]
pub struct SyncEventDone {
    /// What was given with the job.
    pub user_data: UserData,
    /// What sort of job it was.
    pub job_type: JobType,
    /// How it went.
    pub result: std::result::Result<(), JobError>,
    /// Of a job that got the value, the value; of one that added to it, the value before
    /// (`struct doca_sync_event_result`).
    pub value: Option<u64>,
}
