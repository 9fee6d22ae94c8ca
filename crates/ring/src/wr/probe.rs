//! A fictional operation for tests: it has an op_mod, and a segment after its payload.
#![allow(unreachable_pub, reason = "the real operations are public")]

use super::capability::Capability;
use super::datagram::SendTo;
use super::declare::{any, datagram, entry, operations, options};
use super::encode::{Encode, Fence, Limits, Options, PostError, Request};
use super::info::OperationInfo;
use super::payload::Payload;
use super::segment::Segment;
use crate::address::Destination;
use crate::completion::WcOpcode;
use crate::ring::Wqe;
use crate::service::{Class, class};
use crate::types::{RemoteAddr, Rkey, Sge};

operations! {
declared {
    /// An operation for tests; no device has it.
    Probe<P: Payload> = "probe" {
        completes: CompareSwap, op_mod: 0x5a, class: Send, needs: Atomics;
        /// A probe.
        new(payload: P, after: RemoteAddr, word: u32);
        control: u32 = word;
        segments: { payload: P = payload, after: RemoteAddr = after };
        datagram: "probe to a destination";
    }
}

elsewhere {}
}

/// The segment that follows the payload.
pub(crate) const TRAILER: RemoteAddr = RemoteAddr::new(0x0102_0304_0506_0708, Rkey(0x090a_0b0c));
