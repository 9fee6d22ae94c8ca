//! The engine on objects that the tests build themselves.

mod blueflame;
mod completions;
mod datagrams;
mod doorbells;
mod hostile;
mod messages;
mod protection;
mod retries;
mod rig;
mod shared;
mod sqs;
mod threads;
mod umr;
