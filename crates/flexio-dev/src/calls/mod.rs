//! The functions of the C API by their names, without `flexio_dev_`, in the order of its headers.
//!
//! From 24.10 on, doorbells and windows find the thread's context by themselves. Others still take
//! it (errno, outboxes, puts, yield, the thread's number and storage); here none does. As the API
//! of 2022 had them, with the context and a status, they are in [`with_context`].
//!
//! What has a type of its own in this crate (locks, segments, CQEs, messages) is not here again;
//! `docs/mapping/flexio-dev.md` has where it is.

#[cfg(any(doc, all(target_arch = "riscv64", target_os = "none")))]
mod current;
pub mod with_context;

#[cfg(any(doc, all(target_arch = "riscv64", target_os = "none")))]
pub use current::*;
