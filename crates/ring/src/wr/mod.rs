//! Work requests: an operation is a small value.
//!
//! `new` takes the required arguments; options are builder methods:
//!
//! ```
//! use verbless_ring::wr::{Inline, Write};
//! use verbless_ring::{Lkey, RemoteAddr, Rkey, Sge};
//!
//! let to = RemoteAddr::new(0x7f00_0000_0000, Rkey(0x1234));
//! let one = Write::new(Sge::new(0x1000, 64, Lkey(0x5678)), to).signaled();
//! let (header, body) = (Sge::new(0x1000, 64, Lkey(0x5678)), Sge::new(0x2000, 8, Lkey(0x5678)));
//! let gathered = Write::new([header, body], to);
//! let inline = Write::new(Inline(b"in the WQE itself"), to).solicited();
//! ```
//!
//! Local memory is an [`Sge`](crate::Sge), or several (an array or a slice, which the device
//! gathers or scatters in order). Data to send may also be [`Inline`]: it is copied to the WQE, so
//! the buffer is free at once.

mod capability;
mod datagram;
mod declare;
mod encode;
mod eth_send;
mod info;
pub mod operation;
mod payload;
#[cfg(test)]
pub(crate) mod probe;
mod request;
mod scratch;
mod segment;
mod umr;
mod wait;

pub use datagram::SendTo;
pub(crate) use encode::Limits;
pub use encode::{Fence, PostError, Request, UmrRules};
pub use eth_send::{EthSend, MIN_INLINE_HEADER};
pub use operation::{Capability, Class, OperationInfo, Unsupported, class};
pub(crate) use payload::sge_ds;
pub use payload::{Inline, Payload, SgList};
pub use request::*;
pub use scratch::Scratch;
pub(crate) use segment::data_segment;
pub use umr::Umr;
pub use wait::WaitCondition;

use crate::service::{Carries, Rc, Service};

/// A work request for a send queue of service `S`: the types in this module that the service
/// carries.
pub trait WorkRequest<S: Service = Rc>: Request {}
impl<S: Service + Carries<W::Class>, W: Request> WorkRequest<S> for W {}
