//! Messages in packets: what a QP sends, and what a port receives. QPs share only the contents of
//! packets.
//!
//! ```text
//!   requester    WQEs -> requests, in a window until they complete
//!   requests     requests -> packets
//!   acknowledge  ACKs, NAKs and responses -> the window, memory
//!   retry        losses and timers -> retransmissions
//!   responder    packets of requests: expected, lost or duplicate
//!   execute      packets of requests -> memory and CQEs
//!   answers      ACKs, NAKs and responses -> packets
//!   datagram     UD and the management QPs, both ways
//!   path         address paths and vectors -> headers, and the QP of a packet
//!   egress       headers and payload -> a frame that a port sends
//!   ingress      a frame that arrived -> its QP
//! ```

pub(super) mod acknowledge;
pub(super) mod answers;
pub(super) mod datagram;
pub(in crate::engine) mod egress;
mod execute;
mod ingress;
pub(super) mod path;
pub(super) mod requester;
mod requests;
pub(super) mod responder;
mod retry;

pub(super) use ingress::arrive;
