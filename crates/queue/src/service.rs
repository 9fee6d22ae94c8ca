//! Transport services as types: what a queue pair can carry is known when the program is compiled.
//!
//! | service | SEND | WRITE | READ, atomics, SEND with invalidate | UMR | lost messages |
//! |---|---|---|---|---|---|
//! | [`Rc`] reliable connected | yes | yes | yes | yes | are sent again, or fail the request |
//! | [`Uc`] unreliable connected | yes | yes | no: nobody answers | yes | are lost |
//! | [`Ud`] unreliable datagram | of one packet, [to anybody](crate::wr::Send::to) | no | no | no | are lost |
//!
//! ```compile_fail,E0277
//! use verbless_queue::{QueuePair, RemoteAddr, Sge, Uc, wr::Read};
//!
//! fn f(qp: &mut QueuePair<Uc>, into: Sge, from: RemoteAddr) {
//!     let _ = qp.post(&Read::new(into, from), 0); // Nobody would answer.
//! }
//! ```
//!
//! ```compile_fail,E0277
//! use verbless_queue::{QueuePair, Sge, Ud, wr::Send};
//!
//! fn f(qp: &mut QueuePair<Ud>, message: Sge) {
//!     let _ = qp.post(&Send::new(message), 0); // To whom?
//! }
//! ```

use std::fmt;

use verbless_command as command;

/// A transport service.
pub trait Service: sealed::Service {}
impl<T: sealed::Service> Service for T {}

/// A service whose queue pairs have one peer each.
pub trait Connected: sealed::Connected {}
impl<T: sealed::Connected> Connected for T {}

pub(crate) mod sealed {
    use super::{command, fmt};

    /// What is the same of all services is said by its number on the device.
    pub trait Service: Copy + fmt::Debug + Default + Send + Sync + 'static {
        /// The service as the device knows it.
        const SERVICE: command::Service;
        /// 16-byte units between the control segment and the rest of a WQE: the address of a datagram.
        const ADDRESS_UNITS: u32 = 0;
    }

    /// Connected services.
    pub trait Connected: Service {}
}

/// Reliable connected: every message arrives once and in order, or its request fails.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rc;

/// Unreliable connected: messages of any length to one peer, without acknowledgement. One that is lost in part or finds
/// no receive is gone; the next may arrive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Uc;

/// Unreliable datagram: messages of one packet, to any queue pair of this service.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ud;

impl sealed::Service for Rc {
    const SERVICE: command::Service = command::Service::Rc;
}
impl sealed::Connected for Rc {}

impl sealed::Service for Uc {
    const SERVICE: command::Service = command::Service::Uc;
}
impl sealed::Connected for Uc {}

impl sealed::Service for Ud {
    const SERVICE: command::Service = command::Service::Ud;
    const ADDRESS_UNITS: u32 = 3;
}
