//! The types of jobs.

/// The type of an event's job (`doca_event::type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum JobType {
    /// A DMA copy.
    DmaMemcpy,
    /// A hash of one buffer.
    ShaHash,
    /// A part of a hash.
    ShaPartial,
    /// A read of a sync event's value.
    SyncEventGet,
    /// A new value of a sync event.
    SyncEventSet,
    /// An addition to a sync event's value.
    SyncEventAdd,
    /// A wait for a sync event.
    SyncEventWait,
    /// A receive of RDMA (`DOCA_RDMA_JOB_RECV`).
    RdmaReceive,
    /// A send (`DOCA_RDMA_JOB_SEND`).
    RdmaSend,
    /// A send with immediate (`DOCA_RDMA_JOB_SEND_IMM`).
    RdmaSendImm,
    /// A write (`DOCA_RDMA_JOB_WRITE`).
    RdmaWrite,
    /// A write with immediate (`DOCA_RDMA_JOB_WRITE_IMM`).
    RdmaWriteImm,
    /// A read (`DOCA_RDMA_JOB_READ`).
    RdmaRead,
    /// A compare and swap (`DOCA_RDMA_JOB_ATOMIC_CMP_SWP`).
    RdmaCompareSwap,
    /// A fetch and add (`DOCA_RDMA_JOB_ATOMIC_FETCH_ADD`).
    RdmaFetchAdd,
    /// An instance of a graph (`DOCA_GRAPH_JOB`).
    Graph,
    /// No job: an external event of a device.
    AsyncEvent,
}
