//! Transport services as types: the compiler checks which requests a queue pair can carry. A
//! service is one module; it carries the requests of some classes ([`class`]).
//!
//! | service | SEND | WRITE | READ, atomics, SEND with invalidate | UMR | lost messages |
//! |---|---|---|---|---|---|
//! | [`Rc`] reliable connected | yes | yes | yes | yes | are sent again, or fail the request |
//! | [`Uc`] unreliable connected | yes | yes | no | yes | are lost |
//! | [`Ud`] unreliable datagram | of one packet, [to any peer] | no | no | no | are lost |
//! | [`Eth`] raw Ethernet | no: [frames] | no | no | no | are lost |
//!
//! READs and atomics need responses, which only RC has; SEND with invalidate is an operation of RC.
//!
//! [frames]: crate::wr::EthSend
//! [to any peer]: crate::wr::Send::to
//!
//! ```compile_fail,E0277
//! use verbless_ring::{QueuePair, RemoteAddr, Sge, Uc, wr::Read};
//!
//! fn f(qp: &mut QueuePair<Uc>, into: Sge, from: RemoteAddr) {
//!     let _ = qp.post(&Read::new(into, from), 0); // UC carries no READ.
//! }
//! ```
//!
//! ```compile_fail,E0277
//! use verbless_ring::{QueuePair, Sge, Ud, wr::Send};
//!
//! fn f(qp: &mut QueuePair<Ud>, message: Sge) {
//!     let _ = qp.post(&Send::new(message), 0); // A datagram needs a destination.
//! }
//! ```

mod classes;
mod declare;
mod eth;
mod rc;
mod uc;
mod ud;

pub use classes::{Class, class};
pub use declare::{Carries, Connected, Service, ServiceInfo};
pub use eth::Eth;
pub use rc::Rc;
pub use uc::Uc;
pub use ud::Ud;

/// All services.
pub const SERVICES: [ServiceInfo; 4] = [Rc::INFO, Uc::INFO, Ud::INFO, Eth::INFO];
