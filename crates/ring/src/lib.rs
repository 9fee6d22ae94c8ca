//! The mlx5 data path in memory shared with the device: work requests, send, receive and completion
//! queues, doorbells. It needs no operating system, only `core` and `alloc`.
//!
//! A queue is built over ring memory, a doorbell record ([`ring::RingMemory`],
//! [`ring::RecordMemory`]) and a UAR page. Only this queue and the device use the ring and the
//! record; they may be a UMEM, memory of a program on the device, or ordinary memory in a test.
//! Posting and polling are loads and stores:
//!
//! - [`qp::SendQueue::post`] writes a work request ([`wr`]) to the ring, updates the doorbell
//!   record and rings the doorbell.
//! - [`cq::CompletionQueue::poll`] takes the next CQE from its ring.
//! - [`qp::QueuePair::complete`] turns that CQE into a [`completion::Completion`] with the cookie
//!   of the request, and frees the slots up to that request.
//!
//! With many queues on one CQ, a [`Dispatcher`] finds the queue of each CQE.
//!
//! A queue pair's transport [`service`] is part of its type: [`Rc`], [`Uc`] or [`Ud`]. With
//! [`Eth`], send queues send whole Ethernet frames; a [`RawRq`] receives them. Several
//! queue pairs may share a [`SharedReceiveQueue`]; a datagram names its [`Destination`];
//! [`wr::Umr`] changes memory keys at run time.
//!
//! The methods that post and poll take `&mut self`: a queue may move between threads, and one
//! thread at a time uses it without a lock. They do not allocate, lock, make a system call, or
//! panic.
//!
//! `unsafe` is confined to [`ring`] and [`uar`].
#![no_std]

extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod address;
pub mod completion;
pub mod cq;
pub mod dispatch;
mod eth_cqe;
#[cfg(test)]
mod order;
mod poll;
pub mod qp;
pub mod raw_rq;
mod returns;
pub mod ring;
pub mod service;
pub mod srq;
mod trace;
pub mod types;
pub mod uar;
pub mod wr;

pub use address::{AddressHandle, Destination, NetworkHeader, Source};
pub use completion::{Completion, CompletionError, Datagram, WcOpcode, WcStatus};
pub use cq::{CollapsedCompletionQueue, CompletionQueue, CqCleaner, Cqe, RequestId};
pub use dispatch::{Dispatched, Dispatcher, ReceiveCqe, SendCqe, WorkQueue};
pub use qp::{QueuePair, ReceiveQueue, SendQueue, WithSrq};
pub use raw_rq::{EthCqe, RawRq, ReceivedFrame};
pub use service::{Eth, Rc, Uc, Ud};
pub use srq::{SharedReceiveQueue, SrqReturns};
pub use types::{Cqn, Lkey, QKey, Qpn, RemoteAddr, Rkey, Sge, WqeIndex};
#[doc(no_inline)]
pub use verbless_prm::{access, number};
