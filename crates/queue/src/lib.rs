//! mlx5 queues and memory regions on a device. A program creates them from a [`Domain`].
//!
//! A [`Domain`] creates [`Region`]s, completion queues ([`Cq`]) and queue pairs ([`Qp`]), connects
//! queue pairs, and resolves paths to peers. Posting and polling are in
//! [verbless-ring](verbless_ring), whose modules and types are re-exported here: a [`Qp`] derefs to
//! a [`QueuePair`], a [`Cq`] to a [`CompletionQueue`]. Posting and polling make no system call.
//!
//! - [`qp::SendQueue::post`] writes a work request ([`wr`]) into the ring, updates the doorbell
//!   record and rings the doorbell.
//! - [`cq::CompletionQueue::poll`] takes the next CQE out of its ring.
//! - [`qp::QueuePair::complete`] turns that CQE into a [`completion::Completion`] with the cookie
//!   of the request, and frees the slots of everything up to it.
//!
//! To sleep until completions arrive, [`CqEvents`] arms completion queues and is a file to wait on.
//!
//! Functions that talk to the device return [`DeviceError`]; data-path functions return small
//! errors. [`Error`] is for programs that use both: all of these convert into it. Its
//! [`kind`](Error::kind) is for programs, its text for people.
//!
//! # Threads
//! Everything here is `Send`. Queues are not `Sync`: one thread at a time posts to or polls them,
//! through `&mut` and without a lock. [`Qp::split`] gives two threads each a half of a queue pair.
//!
//! | type | `Send` | `Sync` | why |
//! |---|---|---|---|
//! | [`Domain`] | yes | yes | creating objects takes locks; posting and polling do not |
//! | [`Region`] | yes | yes | its copies are atomic; words and plain slices are unsafe |
//! | [`WordRegion`] | yes | yes | atomics of 64 bits |
//! | [`Memory`] | yes | yes | its copies are atomic, its words too |
//! | [`RemoteRegion`] | yes | yes | a plain value |
//! | [`IndirectKey`] | yes | yes | immutable |
//! | [`UmrKey`] | yes | yes | it is changed by a request that a queue posts, under `&mut` |
//! | [`AddressHandle`] | yes | yes | immutable |
//! | [`CqEvents`] | yes | yes | each event goes to one reader; sleepers are behind a lock |
//! | [`Cq`] | yes | no | one thread polls it, through `&mut`: the cursor is a plain word |
//! | [`Qp`] | yes | no | one thread posts to it, through `&mut`, without a lock |
//! | [`CollapsedCq`] | yes | no | read beside the queue pair that completes in it |
//! | [`CollapsedCompletionQueue`] | yes | no | as a `CollapsedCq` |
//! | [`CqTarget`] | yes | no | one thread cleans at a time |
//! | [`QpControl`] | yes | yes | a lock inside, which posting never takes |
//! | [`QpQueues`] | yes | no | as a `Qp` |
//! | [`SendHalf`] | yes | no | as the queue that it derefs to |
//! | [`ReceiveHalf`] | yes | no | as the queue that it derefs to |
//! | [`Srq`] | yes | no | one thread posts to it, whichever queue pairs draw from it |
//! | [`Sq`] | yes | no | as the queue that it derefs to |
//! | [`Rq`] | yes | no | as the queue that it derefs to |
//! | [`FlowRule`] | yes | yes | immutable |
//! | [`QueuePair`] | yes | no | as its two queues |
//! | [`SendQueue`] | yes | no | `&mut` posts; `&` would read the ring's words beside it |
//! | [`ReceiveQueue`] | yes | no | as a send queue |
//! | [`SharedReceiveQueue`] | yes | no | as a send queue |
//! | [`CompletionQueue`] | yes | no | as a `Cq` |
//! | [`SrqReturns`] | yes | yes | atomic words |
//! | [`RawRq`] | yes | no | as a send queue |
//! | [`ReceivedFrame`] | yes | yes | a copy of what was in the ring |
//! | [`EthCqe`] | yes | yes | as a `Cqe` |
//! | [`CqCleaner`] | yes | no | one thread cleans at a time, while another may poll |
//! | [`Cqe`] | yes | yes | a copy of what was in the ring |
//! | [`Completion`] | yes | yes | a plain value |
//! | [`Error`] | yes | yes | a plain value |
//! | [`DeviceError`] | yes | yes | a plain value |
//!
//! `unsafe` is confined to [`region`], the registration of a descriptor with tokio, the pool that
//! leases memory to queues, the module that maps UAR pages, and [`Domain::region_from_raw`].

pub mod domain;
mod error;
pub mod events;
/// Only this crate makes UAR pages of a device's UARs.
///
/// ```
/// let _ = verbless_queue::arm_new_cq;
/// ```
/// ```compile_fail,E0603
/// let _ = verbless_queue::page::map_uar;
/// ```
mod page;
#[cfg(feature = "tokio")]
pub mod reactor;
pub mod region;
mod wait;

pub use verbless_ring::{
    access, address, completion, cq, dispatch, qp, raw_rq, ring, service, srq, types, uar, wr,
};

pub use address::{AddressHandle, Destination, NetworkHeader, Source};
pub use completion::{Completion, CompletionError, Datagram, WcOpcode, WcStatus};
pub use cq::{CollapsedCompletionQueue, CompletionQueue, CqCleaner, Cqe, RequestId};
pub use dispatch::{Dispatched, Dispatcher, ReceiveCqe, SendCqe, WorkQueue};
pub use domain::{
    CollapsedCq, ConnectOptions, Cq, CqConfig, CqTarget, DatagramOptions, Domain, DomainBuilder,
    ImportedRegion, IndirectKey, JoinError, Peer, PeerAddress, Qp, QpConfig, QpControl, QpQueues,
    ReceiveHalf, Rq, RqConfig, SendHalf, SharedRegion, SplitError, Sq, SqConfig, Srq, SrqConfig,
    UmrKey,
};
pub use error::{DeviceError, Error};
pub use events::{CqEvents, Parked, Watchable};
pub use page::arm_new_cq;
pub use qp::{QueuePair, ReceiveQueue, SendQueue, WithSrq};
pub use raw_rq::{EthCqe, RawRq, ReceivedFrame};
#[cfg(feature = "tokio")]
pub use reactor::AsyncCqEvents;
pub use region::{Memory, RangeError, Region, RemoteRegion, WordRegion};
pub use service::{Eth, Rc, Uc, Ud};
pub use srq::{SharedReceiveQueue, SrqReturns};
pub use types::{Cqn, Lkey, QKey, Qpn, RemoteAddr, Rkey, Sge, WqeIndex};
pub use verbless_command::{AccessKey, CqeSize, ErrorKind, FlowAttr, FlowRule, SelfLoopback};
pub use wait::poll_within;
