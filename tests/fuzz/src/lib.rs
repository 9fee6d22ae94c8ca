//! Shared code of the fuzz targets: a device with hostile guests, and valid commands that bring its
//! objects into use before the guest sends invalid ones.
//!
//! ```text
//!   memory    a guest's memory, and a count of the device's accesses to it
//!   address   the targets of hostile pointers, and the layout of a guest's memory
//!   client    a client of the in-process front end, whose memory changes while it is read
//!   frame     InfiniBand packets of a hostile peer, from nearly valid to wrong
//!   guest     a guest's command queue: entries and mailboxes, with mistakes in both
//!   machine   the guests of one device, and their object numbers
//!   object    valid commands that create, modify and destroy objects
//!   tweak     changes of single fields of valid commands
//!   wqe       work requests: nearly valid, wrong, or random
//! ```

pub mod address;
pub mod client;
pub mod frame;
pub mod guest;
pub mod machine;
pub mod memory;
pub mod object;
pub mod tweak;
pub mod wqe;
