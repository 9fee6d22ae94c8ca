//! Files from which events are read: device events, answers of asynchronous queries, and the verbs'
//! own events.
//!
//! A read takes one record. The files are non-blocking; they can be polled (all are [`AsFd`] and
//! [`AsRawFd`](std::os::fd::AsRawFd)), or waited for with [`wait`](EventChannel::wait).

mod command;
mod event;
mod file;
mod verbs;
mod waiter;

pub use command::{AsyncAnswer, CommandChannel};
pub use event::{Event, EventChannel};
pub use verbs::{AsyncEvent, AsyncEventChannel};
pub use waiter::Waiter;
