//! The types that most programs need: `use verbless::prelude::*;`.
//!
//! Work requests are in the module [`wr`], as `wr::Send` and `wr::Write`, since the standard
//! library has traits of such names. The transport services other than RC are in
//! [`service`](verbless_queue::service).

pub use verbless_command::{Device, KeyAccess, RemoteAccess};
pub use verbless_devx::{Backend, DeviceInfo, ErrorKind, Kernel};
#[cfg(feature = "tokio")]
pub use verbless_queue::AsyncCqEvents;
pub use verbless_queue::wr;
pub use verbless_queue::{
    Completion, CompletionError, ConnectOptions, Cq, CqConfig, CqEvents, Dispatcher, Domain, Error,
    Parked, PeerAddress, Qp, QpConfig, Region, RemoteAddr, RemoteRegion, Sge, Srq, SrqConfig,
    WcOpcode, WcStatus,
};
