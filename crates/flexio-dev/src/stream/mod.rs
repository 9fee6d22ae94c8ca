//! Streams: how a program hands its host entries of a fixed size, in order, whatever carries them.
//!
//! Text ([`message`](crate::message)) and trace records ([`trace`](mod@crate::trace)) travel the
//! same way. A thread claims entries of a ring in the process's memory, fills them in, and gives
//! each its number last; then whoever comes first hands all that is whole to the stream's carrier,
//! in order. What finds no room is counted and nothing is overwritten.
//!
//! - [`control`]: what the host says of a stream, and what threads count of it; one block of the
//!   process's memory.
//! - [`entry`]: what an entry looks like.
//! - `ring`: entries are claimed, numbered, handed over.
//! - `carrier`: through a window, or by a queue pair whose send queue is in the process's memory.
//! - [`table`]: which streams there are, and what the host does with them.
//!
//! How FlexIO's streams travel is not published. All layouts here are the project's own, of version
//! [`control::VERSION`].
//!
//! A run that is taken away (a call that took too long, a thread that was destroyed) while it
//! writes an entry, or while it hands entries over, leaves the stream where it was: what comes
//! behind waits, and is lost and counted when the ring is full, until the host makes the stream
//! anew. A flush of the host's does that when nothing moves for a second.

mod carrier;
pub mod control;
pub mod entry;
mod ring;
pub mod table;
#[cfg(test)]
mod tests;
