//! The event of an RDMA job.

use crate::buffer::Buf;
use crate::context::failure::{JobError, JobType};
use crate::types::UserData;

/// A job that is done (`struct doca_rdma_result`).
#[derive(Debug)]
pub struct RdmaDone {
    /// The user data of the job.
    pub user_data: UserData,
    /// The type of the job.
    pub job_type: JobType,
    /// The result. After the first failure the instance is in
    /// [`RdmaState::Error`](super::RdmaState::Error), and the jobs that were in flight come back
    /// with [`ErrorKind::Shutdown`](crate::ErrorKind::Shutdown).
    pub result: std::result::Result<(), JobError>,
    /// The peer's operation, of a successful receive.
    pub opcode: Option<RdmaOpcode>,
    /// The peer's immediate data, of a successful receive, as the number that the peer gave. On the
    /// wire it is big-endian.
    pub immediate: Option<u32>,
    /// The buffer of this side: the source of a send or write, the destination of a receive or
    /// read, the result of an atomic. Of a receive that went well, its datarooms are what arrived.
    pub local: Option<Buf>,
    /// The buffer of the peer's memory: the destination of a write, the source of a read, what an
    /// atomic changed.
    pub remote: Option<Buf>,
}

/// The operation that a receive served (`enum doca_rdma_opcode_t`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RdmaOpcode {
    /// The peer has sent (`DOCA_RDMA_OPCODE_RECV_SEND`).
    RecvSend,
    /// The peer has sent with immediate (`DOCA_RDMA_OPCODE_RECV_SEND_WITH_IMM`).
    RecvSendWithImm,
    /// The peer has written with immediate (`DOCA_RDMA_OPCODE_RECV_WRITE_WITH_IMM`): the data is
    /// where the peer said, and not in the receive's buffer.
    RecvWriteWithImm,
}
