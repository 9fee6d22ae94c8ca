//! mlx5 queues and memory regions on a device: what a program makes from a [`Domain`].
//!
//! A [`Domain`] makes [`Region`]s, completion queues ([`Cq`]) and queue pairs ([`Qp`]), connects
//! the latter, and finds the way to peers. What is posted and polled is in
//! [verbless-ring](verbless_ring), whose modules and types are here as well: a [`Qp`] derefs to a
//! [`QueuePair`], a [`Cq`] to a [`CompletionQueue`]. From then on, nothing makes a system call.
//!
//! - [`qp::SendQueue::post`] writes a work request ([`wr`]) into the ring, tells the doorbell
//!   record, and rings.
//! - [`cq::CompletionQueue::poll`] takes the next CQE out of its ring.
//! - [`qp::QueuePair::complete`] turns that CQE into a [`completion::Completion`] with the cookie
//!   of the request, and frees the slots of everything up to it.
//!
//! To sleep until completions arrive, [`CqEvents`] arms completion queues and is a file to wait on.
//!
//! Every function fails with [`Error`], or with a small `Copy` error of the data path that converts
//! into it; its [`kind`](Error::kind) is for programs, its text for people.
//!
//! **Threads.** Everything here is `Send`; [`Domain`], [`Region`] and [`CqEvents`] are `Sync`, too.
//! A [`Qp`] and a [`Cq`] are used by one thread at a time, through `&mut`, and need no lock.
//!
//! `unsafe` is confined to [`region`], the pool that leases memory to queues, and the module that
//! maps UAR pages.

pub mod domain;
pub mod events;
mod page;
pub mod region;
mod wait;

pub use verbless_ring::{
    access, address, completion, cq, dispatch, qp, ring, service, shared, types, uar, wr,
};

pub use address::{AddressHandle, Destination, NetworkHeader, Source};
pub use completion::{Completion, CompletionError, Datagram, Operation, Status};
pub use cq::{CompletionQueue, CqCleaner, Cqe};
pub use dispatch::{Completes, Dispatched, Dispatcher, PlainCqe};
pub use domain::{
    ConnectOptions, Cq, CqConfig, DatagramOptions, Domain, DomainBuilder, IndirectKey, Peer,
    PeerAddress, Qp, QpConfig, Srq, SrqConfig, UmrKey,
};
pub use events::{CqEvents, Parked};
pub use page::map_uar;
pub use qp::{QueuePair, ReceiveQueue, SendQueue, WithSrq};
pub use region::{RangeError, Region, RemoteRegion};
pub use service::{Rc, Uc, Ud};
pub use shared::{SharedReceiveQueue, SrqReturns};
pub use types::{Cqn, Lkey, QKey, Qpn, RemoteAddr, Rkey, Sge, WqeIndex};
pub use verbless_command::{Error, ErrorKind};
pub use wait::poll_within;
