//! The event of an RDMA job.

use crate::buffer::Buf;
use crate::context::failure::JobError;
use crate::context::job_type::JobType;
use crate::types::UserData;

/// A completed job (`struct doca_rdma_result`).
#[derive(Debug)]
pub struct RdmaDone {
    /// The user data of the job.
    pub user_data: UserData,
    /// The type of the job.
    pub job_type: JobType,
    /// The result. After the first failure the instance is in
    /// [`RdmaState::Error`](super::RdmaState::Error), and the jobs in flight come back with
    /// [`ErrorKind::Shutdown`](crate::ErrorKind::Shutdown).
    pub result: std::result::Result<(), JobError>,
    /// For a successful receive, the peer's operation.
    pub opcode: Option<RdmaOpcode>,
    /// For a successful receive, the peer's immediate data, as the number that the peer gave. On
    /// the wire it is big-endian.
    pub immediate: Option<u32>,
    /// The buffer of this side: the source of a send or write, the destination of a receive or
    /// read, the result of an atomic. After a successful receive its datarooms are the received
    /// data.
    pub local: Option<Buf>,
    /// The buffer of the peer's memory: the destination of a write or atomic, the source of a read.
    pub remote: Option<Buf>,
}

/// The operation that a receive served (`enum doca_rdma_opcode_t`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RdmaOpcode {
    /// The peer has sent (`DOCA_RDMA_OPCODE_RECV_SEND`).
    RecvSend,
    /// The peer has sent with immediate (`DOCA_RDMA_OPCODE_RECV_SEND_WITH_IMM`).
    RecvSendWithImm,
    /// The peer has written with immediate (`DOCA_RDMA_OPCODE_RECV_WRITE_WITH_IMM`): the data is at
    /// the peer's chosen address, not in the receive's buffer.
    RecvWriteWithImm,
}
