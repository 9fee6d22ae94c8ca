//! Transport services as types: what a queue pair can carry is known when the program is compiled.
//! A service is one module here; what a request is called in it is its class ([`class`]).
//!
//! | service | SEND | WRITE | READ, atomics, SEND with invalidate | UMR | lost messages |
//! |---|---|---|---|---|---|
//! | [`Rc`] reliable connected | yes | yes | yes | yes | are sent again, or fail the request |
//! | [`Uc`] unreliable connected | yes | yes | no: nobody answers | yes | are lost |
//! | [`Ud`] unreliable datagram | of one packet, [to anybody] | no | no | no | are lost |
//!
//! [to anybody]: crate::wr::Send::to
//!
//! ```compile_fail,E0277
//! use verbless_ring::{QueuePair, RemoteAddr, Sge, Uc, wr::Read};
//!
//! fn f(qp: &mut QueuePair<Uc>, into: Sge, from: RemoteAddr) {
//!     let _ = qp.post(&Read::new(into, from), 0); // Nobody would answer.
//! }
//! ```
//!
//! ```compile_fail,E0277
//! use verbless_ring::{QueuePair, Sge, Ud, wr::Send};
//!
//! fn f(qp: &mut QueuePair<Ud>, message: Sge) {
//!     let _ = qp.post(&Send::new(message), 0); // To whom?
//! }
//! ```

use core::fmt;

use verbless_prm::ServiceType;

pub use crate::wr::operation::{Class, class};

mod rc;
mod uc;
mod ud;

pub use rc::Rc;
pub use uc::Uc;
pub use ud::Ud;

/// A transport service.
pub trait Service:
    sealed::Sealed + Carries<class::Nop> + Copy + fmt::Debug + Default + Send + Sync + 'static
{
    /// Its number on the device.
    const TYPE: ServiceType;
    /// As the specifications abbreviate it.
    const NAME: &'static str;
    /// Units of 16 bytes between the control segment and the rest of a WQE: the address of a
    /// datagram.
    const ADDRESS_DS: u32;
    /// The classes of requests that it carries.
    const CARRIES: &'static [Class];
    /// The same as a value.
    const INFO: ServiceInfo = ServiceInfo {
        service: Self::TYPE,
        name: Self::NAME,
        address_ds: Self::ADDRESS_DS,
        carries: Self::CARRIES,
    };
}

/// A service whose queue pairs have one peer each.
pub trait Connected:
    Service + Carries<class::Send> + Carries<class::Write> + Carries<class::KeyChange>
{
}

/// A service carries the requests of a class.
#[diagnostic::on_unimplemented(
    message = "the transport service `{Self}` has no requests of the class `{C}`",
    note = "`Uc` has no READ, atomics and SEND with invalidate; `Ud` has only `Send` and \
            `SendImm`, each with `to(destination)`"
)]
pub trait Carries<C>: sealed::Sealed {}

/// What there is to know of a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServiceInfo {
    /// Its number on the device.
    pub service: ServiceType,
    /// As the specifications abbreviate it.
    pub name: &'static str,
    /// Units of 16 bytes of an address in each WQE.
    pub address_ds: u32,
    /// The classes of requests that it carries.
    pub carries: &'static [Class],
}

/// Every service that there are queues of.
pub const SERVICES: [ServiceInfo; 3] = [Rc::INFO, Uc::INFO, Ud::INFO];

mod sealed {
    /// Only this crate's services: queues rely on what they say of WQEs.
    pub trait Sealed {}
}

/// Declares a service: its type, its numbers, and what it carries.
macro_rules! service {
    ($(#[$attr:meta])* $name:ident = $type:ident, address_ds: $ds:literal,
     carries: [$($class:ident),* $(,)?]) => {
        $(#[$attr])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct $name;

        impl super::sealed::Sealed for $name {}

        impl super::Service for $name {
            const TYPE: verbless_prm::ServiceType = verbless_prm::ServiceType::$type;
            const NAME: &'static str = stringify!($type);
            const ADDRESS_DS: u32 = $ds;
            const CARRIES: &'static [super::Class] = &[$(super::Class::$class),*];
        }

        $(impl super::Carries<super::class::$class> for $name {})*
    };
}
use service;
