//! Tests of the library on the model, in one program: linking one per file takes longer than
//! running it. The tests beside this directory count allocations, threads, memory or time of the
//! whole process, or include the examples' modules.

#[path = "../support/mod.rs"]
mod support;

mod async_event;
mod bridge;
mod capabilities;
mod dma;
mod dma_refused;
mod dpu;
mod errors;
mod failed_queues;
mod future;
mod graph;
mod handles;
mod known;
mod limits;
mod mapping;
mod mapping_rdma;
mod memory;
mod one_thread;
mod properties;
mod ranges;
mod rdma;
mod rdma_connect;
mod rdma_faults;
mod rdma_limits;
mod rdma_states;
mod representors;
mod rules;
mod sha;
mod sub_graph;
mod sync_event;
mod sync_event_faults;
mod topology;
mod workq;
