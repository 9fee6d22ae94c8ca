//! The type of an event's job.

/// The type of an event's job (`doca_event::type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum JobType {
    /// A DMA copy.
    DmaMemcpy,
    /// A hash of one buffer.
    ShaHash,
    /// An update or the end of a hash over several buffers.
    ShaPartial,
    /// A read of a sync event's value.
    SyncEventGet,
    /// A new value of a sync event.
    SyncEventSet,
    /// An addition to a sync event's value.
    SyncEventAdd,
    /// A wait for a sync event.
    SyncEventWait,
    /// An RDMA receive (`DOCA_RDMA_JOB_RECV`).
    RdmaReceive,
    /// An RDMA SEND (`DOCA_RDMA_JOB_SEND`).
    RdmaSend,
    /// An RDMA SEND with immediate (`DOCA_RDMA_JOB_SEND_IMM`).
    RdmaSendImm,
    /// An RDMA WRITE (`DOCA_RDMA_JOB_WRITE`).
    RdmaWrite,
    /// An RDMA WRITE with immediate (`DOCA_RDMA_JOB_WRITE_IMM`).
    RdmaWriteImm,
    /// An RDMA READ (`DOCA_RDMA_JOB_READ`).
    RdmaRead,
    /// An RDMA compare and swap (`DOCA_RDMA_JOB_ATOMIC_CMP_SWP`).
    RdmaCompareSwap,
    /// An RDMA fetch and add (`DOCA_RDMA_JOB_ATOMIC_FETCH_ADD`).
    RdmaFetchAdd,
    /// An instance of a graph (`DOCA_GRAPH_JOB`).
    Graph,
    /// No job: an external event of a device.
    AsyncEvent,
}
