//! The uverbs ioctl ABI as numbers and layouts: what both sides of the [backend](crate::Backend)
//! agree on.
//!
//! The driver above builds requests from these definitions and a software device answers them with
//! the same ones. Everything here is native-endian (only command mailboxes inside the payloads are
//! big-endian), and every layout is checked against the size that the kernel's headers give it.
//!
//! - [`frame`]: the request header and its attributes.
//! - [`method`]: which object and method a request calls.
//! - [`attr`]: attribute ids, one module per method.
//! - [`core`]: structures of the generic part (`ib_user_verbs.h`, `ib_user_ioctl_verbs.h`).
//! - [`mlx5`]: structures and numbers of the mlx5 part (`mlx5-abi.h`, `mlx5_user_ioctl_verbs.h`).
//! - [`fwctl`]: the ioctls of another file of the device, `/dev/fwctl/fwctlN`.

pub mod attr;
pub mod core;
pub mod frame;
pub mod fwctl;
pub mod method;
pub mod mlx5;

pub use frame::{Attribute, Header};
pub use method::Method;
