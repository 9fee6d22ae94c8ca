//! The PCI front end: a function of the model as a PCI device over vfio-user, for QEMU to attach.
//!
//! ```text
//!   server          vfio-user messages; one socket and one thread per function
//!   function        accesses to its regions, DMA windows, interrupts
//!   config          configuration space: identity, capabilities (PCIe, MSI-X, vendor specific)
//!   bar             BAR 0: the initialisation segment, then UAR pages
//!   command_queue   entries and mailboxes in guest memory  -> hca::execute
//!   layout          which part of the BAR is what; UAR pages that are trapped  -> engine
//!   interrupts      MSI-X vectors as eventfds
//!   control         what `ctl` asks for
//! ```
//!
//! UAR pages are numbered as the pages of the BAR. Those that the kernel allocates are trapped,
//! since several CPUs share their doorbell words; those of user contexts are numbered from a page
//! on that the profile names, and mapped.

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
