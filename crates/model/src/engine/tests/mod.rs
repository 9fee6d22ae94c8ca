//! The engine on objects that the tests build themselves.

mod completions;
mod doorbells;
mod hostile;
mod messages;
mod protection;
mod retries;
mod rig;
mod threads;
mod umr;
