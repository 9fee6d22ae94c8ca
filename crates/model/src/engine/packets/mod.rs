//! Messages in packets: what goes out of a QP, and what comes in at a port. QPs share nothing but
//! what packets say.
//!
//! ```text
//!   requester   requests -> packets; ACKs, NAKs, responses, timers
//!   responder   packets -> memory and CQEs; answers, duplicates
//!   datagram    UD and the management QPs, both ways
//!   path        address paths and vectors -> headers, and whose a packet is
//!   egress      headers and payload -> a frame that a port sends
//!   ingress     a frame that arrived -> its QP
//! ```

mod datagram;
pub(in crate::engine) mod egress;
mod ingress;
pub(super) mod path;
mod requester;
mod responder;

pub(super) use ingress::arrive;
