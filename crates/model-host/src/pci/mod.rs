//! The PCI front end: a function of the model as a PCI device over vfio-user, for QEMU to attach.
//!
//! ```text
//!   server          vfio-user messages; one socket and one thread per function
//!   function        accesses to its regions, DMA windows, interrupts
//!   config          configuration space: identity, capabilities (PCIe, MSI-X, vendor specific)
//!   bar             BAR 0: the initialisation segment, then UAR pages
//!   command_queue   entries and mailboxes in guest memory  -> hca::execute
//!   layout          the parts of the BAR; trapped UAR pages  -> engine
//!   interrupts      MSI-X vectors as eventfds
//!   control         answers to `ctl`
//! ```
//!
//! UAR index n is page n of BAR 0. UAR pages below the profile's `user_uar` belong to the kernel
//! and are trapped, because several CPUs share their doorbell words. The others are mapped into the
//! guest.

mod bar;
mod command_queue;
pub(crate) mod config;
mod control;
mod function;
#[cfg(fuzzing)]
mod fuzz;
mod interrupts;
mod layout;
#[cfg(test)]
mod rig;
mod server;
#[cfg(test)]
mod trace;

#[cfg(fuzzing)]
pub use fuzz::{FuzzDevice, Region};
pub use server::{PciError, PciOptions, serve};
