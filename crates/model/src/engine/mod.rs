//! The data path: doorbells, WQEs, packets, CQEs and EQEs.
//!
//! ```text
//!   thread      threads that poll for work, function by function
//!   run         the order of turns: queues, packets, timers
//!   doorbell    takes doorbells from UAR pages, wakes the queues that they name (blueflame: WQEs
//!               that come with them; sweep: doorbells that others overwrote)
//!   sender      rings of WQEs -> work (a WQE, by the table of operation) -> gather (its memory)
//!   requester   a turn of a QP -> transport (rc, uc) --> transport -> responder: carried whole
//!   packets     the same in packets: a turn of a QP -> frames --fabric--> the peer, its answers
//!   sq          a turn of an SQ: frames (ethernet), which come to RQs (rq)
//!   access      what a peer may do at a QP: memory (keys), atomics, invalidation
//!   receive     receive WQEs of QPs, in rings of their own or shared ones (srq)
//!   transfer    payload, from SGE to SGE
//!   copy        copies of memory within the device
//!   wait        queues that wait for data: conditions (condition), polls
//!   umr         changes of memory keys
//!   completion  CQEs of send WQEs
//!   cq          CQEs (cqe), overrun, arming -> events   EQEs (eq), interrupts
//!   dpa         requests of DPA programs, and the threads that run them
//!   programs    completion events for DPA programs
//!   failure     the error state; flush: later, a few WQEs a turn
//!   arrivals    CQEs and data, for recorders
//!   counters    Q counters
//!   queue_pair  a QP at work, with the context of its turn
//!   context     the part of a function that a queue borrows for its turn
//!   command     commands, and their effects on queues
//!   function    a function: its objects, and the state of the engine
//! ```

mod access;
mod arrivals;
mod blueflame;
mod command;
mod completion;
mod condition;
mod context;
mod copy;
mod counters;
mod cq;
mod cqe;
#[cfg(feature = "gdb")]
pub(crate) mod debug;
mod doorbell;
mod dpa;
mod eq;
mod ethernet;
mod events;
mod failure;
pub(crate) mod faults;
mod flush;
mod flushes;
pub(crate) mod function;
mod gather;
mod invalid;
mod keys;
mod operation;
mod packets;
mod programs;
mod queue_pair;
mod receive;
mod requester;
mod responder;
mod ring;
mod rq;
mod run;
pub(crate) mod scratch;
mod sender;
mod sq;
mod srq;
pub(crate) mod state;
mod sweep;
mod sweeps;
#[cfg(test)]
mod tests;
mod thread;
mod transfer;
mod transport;
mod umr;
mod wait;
mod work;

pub(crate) use blueflame::trapped_write;
#[cfg(test)]
pub(crate) use command::apply;
#[cfg(test)]
pub(crate) use command::execute;
pub(crate) use command::{begin, concerns_others, event, fail_queue, reset, resume, set_port};
pub(crate) use doorbell::mmio_write;
#[cfg(test)]
pub(crate) use faults::FaultWindow;
pub use faults::{Fault, QueueKind};
pub(crate) use function::FunctionEngine;
pub(crate) use run::{jump, step};
pub(crate) use thread::spawn;
pub(crate) use transport::qp_type;
