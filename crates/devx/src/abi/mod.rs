//! The uverbs ioctl ABI as numbers and layouts: used on both sides of the
//! [backend](crate::Backend).
//!
//! The driver builds requests from these definitions; a software device answers with the same ones.
//! All fields are native-endian; command mailboxes inside payloads are big-endian. Every layout is
//! checked against its size in the kernel's headers.
//!
//! - [`request`]: the request header and its attributes.
//! - [`method`]: which object and method a request calls.
//! - [`attr`]: attribute ids, one module per method.
//! - [`core`]: structures of the generic part (`ib_user_verbs.h`, `ib_user_ioctl_verbs.h`).
//! - [`mlx5`]: structures and numbers of the mlx5 part (`mlx5-abi.h`, `mlx5_user_ioctl_verbs.h`).
//! - [`fwctl`]: the ioctls of the device's control file, `/dev/fwctl/fwctlN`.

pub mod attr;
pub mod core;
pub mod fwctl;
pub mod method;
pub mod mlx5;
pub mod request;

pub use method::Method;
pub use request::{Attribute, Header};
