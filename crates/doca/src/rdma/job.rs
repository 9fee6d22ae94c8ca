//! The jobs of RDMA.

use crate::buffer::Buf;
use crate::context::core::CtxId;
use crate::context::job_type::JobType;
use crate::types::UserData;

/// A job of an [`Rdma`](super::Rdma) (`struct doca_rdma_job_recv` and similar ones).
#[derive(Debug)]
#[must_use = "a job runs only if it is submitted"]
pub struct RdmaJob {
    pub(super) ctx: CtxId,
    pub(super) user_data: UserData,
    pub(super) operation: JobOperation,
    pub(super) local: Option<Buf>,
    pub(super) remote: Option<Buf>,
}

/// The operation, with the fields of the request besides buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum JobOperation {
    Receive,
    Send,
    SendImm(u32),
    Write,
    WriteImm(u32),
    Read,
    CompareSwap { compare: u64, swap: u64 },
    FetchAdd(u64),
}

impl JobOperation {
    #[inline(always)]
    pub(super) const fn job_type(self) -> JobType {
        match self {
            Self::Receive => JobType::RdmaReceive,
            Self::Send => JobType::RdmaSend,
            Self::SendImm(_) => JobType::RdmaSendImm,
            Self::Write => JobType::RdmaWrite,
            Self::WriteImm(_) => JobType::RdmaWriteImm,
            Self::Read => JobType::RdmaRead,
            Self::CompareSwap { .. } => JobType::RdmaCompareSwap,
            Self::FetchAdd(_) => JobType::RdmaFetchAdd,
        }
    }
}

impl RdmaJob {
    #[inline(always)]
    pub(super) fn new(
        ctx: CtxId,
        operation: JobOperation,
        local: Option<Buf>,
        remote: Option<Buf>,
    ) -> Self {
        Self { ctx, user_data: UserData(0), operation, local, remote }
    }

    /// Sets the user data that the job's event returns.
    #[inline(always)]
    pub fn user_data(self, user_data: impl Into<UserData>) -> Self {
        Self { user_data: user_data.into(), ..self }
    }

    /// The type of the job.
    pub fn job_type(&self) -> JobType {
        self.operation.job_type()
    }

    /// Returns the job's buffers: the local one, and the one in the peer's memory, as in
    /// [`RdmaDone`](super::RdmaDone).
    pub fn into_bufs(self) -> (Option<Buf>, Option<Buf>) {
        (self.local, self.remote)
    }
}
