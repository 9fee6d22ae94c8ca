//! The operations, one entry each: required arguments, options, and the segments of its WQE.
//!
//! A new operation needs an entry here. In addition,
//! - a new opcode needs a variant of [`WcOpcode`] (`completion.rs`), which its CQEs report;
//! - a new kind of segment needs a type that implements [`Segment`] (`segment.rs`);
//! - a new set of services needs a class in `service/classes.rs`, and its name in `carries` of each
//!   service in `service/`;
//! - a new capability needs an entry in `capability.rs`.

use verbless_prm::hot::AtomicSegment;

use super::capability::Capability;
use super::datagram::SendTo;
use super::declare::{any, datagram, entry, operations, options};
use super::encode::{Encode, Fence, Limits, Options, PostError, Request};
use super::eth_send::EthSend;
use super::info::OperationInfo;
use super::payload::{Payload, SgList};
use super::scratch::Scratch;
use super::segment::{AtomicResult, DmaMmoSegments, Segment, WaitSegment};
use super::umr::{LocalInv, Umr};
use super::wait::WaitCondition;
use crate::address::Destination;
use crate::completion::WcOpcode;
use crate::ring::Wqe;
use crate::service::{Class, class};
use crate::types::{Lkey, RemoteAddr, Rkey, Sge};

operations! {
declared {
    /// No operation; completes in order with the other requests.
    Nop = "NOP" {
        completes: Nop, op_mod: 0, class: Nop;
        /// A request that does nothing.
        new();
        segments: {};
    }

    /// Sends a message to the peer's next receive.
    Send<P: Payload> = "SEND" {
        completes: Send, op_mod: 0, class: Send;
        /// Sends `payload`.
        new(payload: P);
        segments: { payload: P = payload };
        datagram: "SEND to a destination";
    }

    /// Sends a message and 32 bits of immediate data, which the peer's completion reports.
    SendImm<P: Payload> = "SEND with immediate" {
        completes: SendImm, op_mod: 0, class: Send;
        /// Sends `payload` and `immediate`.
        new(payload: P, immediate: u32);
        control: u32 = immediate;
        segments: { payload: P = payload };
        datagram: "SEND with immediate to a destination";
    }

    /// Sends a message, and invalidates a key of the peer when it arrives.
    SendInvalidate<P: Payload> = "SEND with invalidate" {
        completes: SendInvalidate, op_mod: 0, class: Invalidate;
        /// Sends `payload` and invalidates `rkey`.
        new(payload: P, rkey: Rkey);
        control: u32 = rkey.0;
        segments: { payload: P = payload };
    }

    /// Writes to memory of the peer. The peer gets no completion, and ours does not promise that
    /// the peer's CPU sees the bytes: that takes a completion at the peer (of a [`WriteImm`] or a
    /// [`Send`] behind it), or a [`Read`] or an atomic behind it on the same queue pair.
    Write<P: Payload> = "RDMA WRITE" {
        completes: Write, op_mod: 0, class: Write;
        /// Writes `payload` to `remote`.
        new(payload: P, remote: RemoteAddr);
        segments: { remote: RemoteAddr = remote, payload: P = payload };
    }

    /// Writes to memory of the peer, then completes one of its receives with 32 bits of immediate
    /// data.
    WriteImm<P: Payload> = "RDMA WRITE with immediate" {
        completes: WriteImm, op_mod: 0, class: Write;
        /// Writes `payload` to `remote`, and gives the peer `immediate` in a receive completion.
        new(payload: P, remote: RemoteAddr, immediate: u32);
        control: u32 = immediate;
        segments: { remote: RemoteAddr = remote, payload: P = payload };
    }

    /// Reads memory of the peer.
    Read<P: SgList> = "RDMA READ" {
        completes: Read, op_mod: 0, class: Read;
        /// Reads from `remote` as many bytes as `into` takes.
        new(into: P, remote: RemoteAddr);
        segments: { remote: RemoteAddr = remote, into: P = into };
    }

    /// Compares 8 bytes of remote memory with a value, and swaps in another if they are equal.
    /// Atomic with respect to the device's other atomics.
    CompareSwap = "compare and swap" {
        completes: CompareSwap, op_mod: 0, class: Atomic, needs: Atomics;
        /// If the 8 bytes at `remote` (aligned to 8) are `compare`, they become `swap`. The device
        /// writes the old value to `old`, which must be 8 bytes.
        new(old: Sge, remote: RemoteAddr, compare: u64, swap: u64);
        segments: {
            remote: RemoteAddr = remote,
            operands: AtomicSegment = AtomicSegment::new(swap, compare),
            old: AtomicResult = AtomicResult(old)
        };
    }

    /// Adds to 8 bytes of remote memory. Atomic with respect to the device's other atomics.
    FetchAdd = "fetch and add" {
        completes: FetchAdd, op_mod: 0, class: Atomic, needs: Atomics;
        /// Adds `add` to the 8 bytes at `remote` (aligned to 8). The device writes the old value to
        /// `old`, which must be 8 bytes.
        new(old: Sge, remote: RemoteAddr, add: u64);
        segments: {
            remote: RemoteAddr = remote,
            operands: AtomicSegment = AtomicSegment::new(add, 0),
            old: AtomicResult = AtomicResult(old)
        };
    }

    /// Invalidates a local key that UMR may change. The next request waits until that is done.
    LocalInvalidate = "local invalidate" {
        completes: Umr, op_mod: 0, class: Umr;
        /// Invalidates `rkey`.
        new(rkey: Rkey);
        control: u32 = rkey.0;
        segments: { free: LocalInv = LocalInv };
    }

    /// Copies memory to memory within the device, on a queue pair that was made for it
    /// (`QpConfig::dma_mmo` of verbless-queue). Only a [`Fence::Strong`] orders such requests
    /// among each other and with other requests; their completions are in order (UCX:
    /// `src/uct/ib/mlx5/gga/gga_mlx5.c`).
    DmaMmo = "memory copy" {
        completes: DmaMmo, op_mod: 1, class: DmaMmo, needs: Dma;
        /// Copies `from` to `to`, which has the same length: 1 byte to 2 GiB - 1, or to the
        /// device's limit (`Caps::max_dma_mmo_bytes` of verbless-command). The device fails a
        /// longer copy with [`LocalLength`](crate::WcStatus::LocalLength), and uses `scratch` while
        /// it copies.
        new(scratch: Scratch, from: Sge, to: Sge);
        segments: {
            scratch: Scratch = scratch,
            ends: DmaMmoSegments = DmaMmoSegments { from, to }
        };
    }

    /// Waits until a memory word meets the condition; later requests of the queue begin after that.
    Wait = "wait for data" {
        completes: Wait, op_mod: 1, class: Wait, needs: WaitOnData;
        /// Waits for the 8 bytes at `address` (aligned to 8) under `lkey`.
        new(address: u64, lkey: Lkey, until: WaitCondition);
        segments: { word: WaitSegment = WaitSegment { address, lkey, until } };
    }
}

elsewhere {
    Umr<'_> = "UMR" {
        completes: Umr, op_mod: 0, class: Umr, needs: Umr;
    }

    EthSend<'_, P: Payload> = "Ethernet frame" {
        completes: Send, op_mod: 0, class: EthSend;
    }
}
}

impl Default for Nop {
    fn default() -> Self {
        Self::new()
    }
}
