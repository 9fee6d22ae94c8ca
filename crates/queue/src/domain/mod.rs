//! Regions and queues on a device: their memory, objects and connections.
//!
//! A [`Domain`] is a protection domain with the resources that its queues share: UAR pages, and
//! pooled memory for rings and doorbell records. It creates regions, completion queues and queue
//! pairs; these keep the parts of it that they need alive.
//!
//! **UAR pages.** One page is mapped non-cached: every completion queue is armed through it, and
//! every queue pair without a BlueFlame register rings there. A doorbell is one store of 8 bytes,
//! so any number of queues on any threads share it without a lock. A BlueFlame register takes
//! copies of several stores, which must not mix with other stores; so one queue pair owns it until
//! that is dropped, and no other queue rings on its page. The first 16 queue pairs of a domain that
//! want a register get one ([`BLUEFLAME_PAGES`] pages of two): a device has few UARs, and libmlx5
//! takes as many. The others, and all on a device without BlueFlame, ring plain doorbells: the
//! device then reads their requests from the ring, one more read. libmlx5 shares registers behind a
//! lock instead; the data path here takes none.
//!
//! ```no_run
//! # fn f(device: &verbless_command::Device) -> Result<(), verbless_command::Error> {
//! use verbless_queue::domain::{CqConfig, Domain, QpConfig};
//! use verbless_command::KeyAccess;
//!
//! let domain = Domain::new(device)?;
//! let region = domain.region(4096, KeyAccess::ALL)?;
//! let config = QpConfig::new(32, 32);
//! let cq = domain.completion_queue(&CqConfig::new(config.cqes::<verbless_queue::Rc>()))?;
//! let qp = domain.queue_pair(&config, &cq, &cq)?;
//! # Ok(())
//! # }
//! ```

mod builder;
mod collapsed;
mod connect;
pub mod control;
mod cq_users;
mod datagram;
mod device_qp;
mod ethernet;
mod foreign;
pub mod halves;
pub(crate) mod handshake;
mod key;
mod last_wqe;
mod loopback;
mod options;
mod pages;
mod path;
mod peer;
mod pool;
mod protection;
pub(crate) mod queues;
mod raw;
mod requirements;
mod srq;
#[cfg(test)]
mod tests;
mod transitions;

pub use builder::DomainBuilder;
pub use collapsed::CollapsedCq;
pub use control::{QpControl, QpQueues, ResolvedPath};
pub use datagram::DatagramOptions;
pub use ethernet::{Rq, RqConfig, Sq, SqConfig};
pub use foreign::{ImportedRegion, SharedRegion};
pub use halves::{JoinError, ReceiveHalf, SendHalf, SplitError};
pub use handshake::Peer;
pub use key::{IndirectKey, UmrKey};
pub use options::ConnectOptions;
pub use pages::BLUEFLAME_PAGES;
pub use peer::PeerAddress;
pub use protection::Domain;
pub use queues::{Cq, CqConfig, CqTarget, Qp, QpConfig};
pub use srq::{Srq, SrqConfig};
