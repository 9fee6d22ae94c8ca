//! Files from which events are read: device events, answers of asynchronous queries, uverbs events.
//!
//! A read takes one record. The files are non-blocking: poll them ([`AsFd`](std::os::fd::AsFd),
//! [`AsRawFd`](std::os::fd::AsRawFd)) or call [`wait`](EventChannel::wait).

mod command;
mod event;
mod file;
mod verbs;
mod waiter;

pub use command::{AsyncQueryResponse, CommandChannel};
pub use event::{Event, EventChannel};
pub use verbs::{AsyncEvent, AsyncEventChannel};
pub use waiter::Waiter;
