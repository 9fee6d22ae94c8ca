//! The functions of the C API under their names, without `flexio_dev_`, in the order of its
//! headers.
//!
//! Since 24.10, the C functions for doorbells and windows have no parameter for the thread's
//! context. Others still do (errno, outboxes, puts, yield, the thread's number and storage); here
//! none does. [`with_context`] has the signatures of the API of 2022, with the context and a
//! status.
//!
//! Functions whose counterpart is a type of this crate (locks, segments, CQEs, messages) are not
//! repeated here; `docs/mapping/flexio-dev.md` lists them.

#[cfg(any(doc, test, all(target_arch = "riscv64", target_os = "none")))]
mod current;
#[cfg(test)]
mod tests;
pub mod with_context;

#[cfg(any(doc, test, all(target_arch = "riscv64", target_os = "none")))]
pub use current::*;
