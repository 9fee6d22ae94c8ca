//! Streams: entries of a fixed size that a program hands to its host in order, over any transport.
//!
//! Text ([`message`](crate::message)) and trace records ([`trace`](mod@crate::trace)) use the same
//! streams. A thread claims entries of a ring in the process's memory, fills them in, and writes
//! each entry's number last. Then a thread that gets the stream's lock hands all complete entries
//! to the stream's carrier, in order. When the ring is full, new entries are counted as lost; none
//! is overwritten.
//!
//! - [`control`]: a stream's parameters, written by the host, and its counts, written by threads;
//!   one block of the process's memory.
//! - [`entry`]: the layout of an entry.
//! - `ring`: claiming, numbering and handing over of entries.
//! - `carrier`: through a window, or by a queue pair whose send queue is in the process's memory.
//! - [`table`]: the existing streams, and the host's operations on them.
//!
//! FlexIO's transport of streams is not published. All layouts here are the project's own, of
//! version [`control::VERSION`].
//!
//! A run that is terminated (a call that took too long, a thread that was destroyed) while it
//! writes or hands over entries blocks the stream: later entries wait, and once the ring is full
//! they are lost and counted, until the host replaces the ring. The host's flush replaces it after
//! a second without progress.

mod carrier;
pub mod control;
pub mod entry;
mod ring;
pub mod table;
#[cfg(test)]
mod tests;
