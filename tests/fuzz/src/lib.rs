//! Shared code of the fuzz targets: a device with hostile guests, and valid commands by which a
//! guest reaches deep states before it misbehaves.
//!
//! ```text
//!   memory    a guest's memory, and the count of what the device does in it
//!   address   where hostile pointers point
//!   client    a client of the in-process front end, whose memory changes while it is read
//!   frame     packets of a hostile peer
//!   guest     the command queue: entries, mailboxes, and lies in both
//!   machine   the guests of one device, and the numbers of what they made
//!   object    commands that make, move and destroy, as an honest driver sends them
//!   tweak     changes of single fields of such commands
//!   wqe       work requests: nearly right, wrong, or random
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
