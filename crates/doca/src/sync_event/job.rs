//! The jobs of a sync event.

use super::link::LinkOperation;
use crate::context::core::CtxId;
use crate::types::UserData;

/// A job of a sync event (`struct doca_sync_event_job_…`).
#[derive(Debug)]
#[must_use = "a job runs only if it is submitted"]
pub struct SyncEventJob {
    pub(super) ctx: CtxId,
    pub(super) user_data: UserData,
    pub(super) operation: LinkOperation,
}

impl SyncEventJob {
    pub(super) fn new(ctx: CtxId, operation: LinkOperation) -> Self {
        Self { ctx, user_data: UserData(0), operation }
    }

    /// Sets the user data that the job's event returns.
    pub fn user_data(self, user_data: impl Into<UserData>) -> Self {
        Self { user_data: user_data.into(), ..self }
    }
}
