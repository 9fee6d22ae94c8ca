//! The row of raw Ethernet: frames from a send queue to the receive queue of another function.

use verbless_queue::wr::{EthSend, Inline, Nop, OperationInfo, Payload};
use verbless_queue::{Completion, Eth, FlowAttr, Rc, RqConfig, Sge, SqConfig};

use super::carry::{MatrixService as _, PostTarget};
use super::cell::{Cell, CellOperation, Form, INLINE, Posting, REQUESTS};
use super::memory::Memory;
use crate::cases::frames::rig::{ETHERTYPE, Hosts, frame};
use crate::{Lab, Stop, ensure, ensure_eq};

/// Bytes of each frame's inline header, the most that a device may require.
const HEADER: usize = 18;

/// The `OperationInfo` of the work request type that posts `operation`.
pub(super) fn info(operation: CellOperation) -> OperationInfo {
    Rc::info(operation)
}

/// Posts a frame or a NOP, with a completion if one is wanted.
fn put<P: Payload + Copy>(
    poster: &mut PostTarget<'_, Eth>,
    operation: CellOperation,
    (header, body): (&[u8], P),
    signaled: bool,
    number: u64,
) -> Result<(), Stop> {
    match (operation, signaled) {
        (CellOperation::EthSend, true) => {
            poster.put(&EthSend::new(header, body).signaled(), number)
        }
        (CellOperation::EthSend, false) => poster.put(&EthSend::new(header, body), number),
        (CellOperation::Nop, true) => poster.put(&Nop::new().signaled(), number),
        (CellOperation::Nop, false) => poster.put(&Nop::new(), number),
        (other, _) => Err(Stop::fail(format!("a raw SQ has no {other:?}"))),
    }
}

/// Posts the requests of a cell, and checks every completion and every byte at both ends.
pub(super) fn run(lab: &Lab, cell: &Cell) -> Result<(), Stop> {
    let Cell { operation, form, length, posting, .. } = *cell;
    let send = SqConfig { sges: 3, inline: INLINE as u32, ..SqConfig::new(REQUESTS as u32) };
    let receive = RqConfig { sges: 3, ..RqConfig::new(REQUESTS as u32 + 1) };
    let mut hosts = Hosts::of(lab, &send, &receive)?;
    let _rule = hosts.steer(&FlowAttr::to(hosts.there).ethertype(ETHERTYPE))?;
    let is_frame = operation == CellOperation::EthSend;
    let body = length.saturating_sub(HEADER);
    let local = Memory::new(&hosts.from.domain, form, body, false)?;
    let receives = Memory::new(&hosts.into.domain, form, length, false)?;
    let mut frames = Vec::new();
    if is_frame {
        for at in 0..REQUESTS {
            let bytes = frame(hosts.there, hosts.here, ETHERTYPE, length, at);
            local.fill(at, &bytes[HEADER..])?;
            hosts.receiver.post(&receives.sges(at)?[..], 100 + at as u64)?;
            frames.push(bytes);
        }
    }
    let free = hosts.sender.free();
    let mut poster = match posting {
        Posting::Batch => PostTarget::Batch(hosts.sender.batch()),
        _ => PostTarget::Single(&mut hosts.sender),
    };
    for at in 0..REQUESTS {
        let (header, body) = frames.get(at).map_or((&[][..], &[][..]), |it| it.split_at(HEADER));
        let signaled = posting != Posting::Unsignaled || at == REQUESTS - 1;
        if form == Form::Inline {
            put(&mut poster, operation, (header, Inline(body)), signaled, at as u64)?;
        } else {
            let sges: Vec<Sge> = local.sges(at)?;
            put(&mut poster, operation, (header, &sges[..]), signaled, at as u64)?;
        }
    }
    poster.ring();
    let first = if posting == Posting::Unsignaled { REQUESTS - 1 } else { 0 };
    for at in first..REQUESTS {
        let done: Completion = hosts.sent()??;
        let expected = (at as u64, operation.completions().0);
        ensure_eq!((done.cookie, done.operation()), expected, "completion of the request");
    }
    ensure_eq!(hosts.sender.free(), free, "free WQEBBs after the last completion");
    for (at, bytes) in frames.iter().enumerate() {
        let done = crate::until("a frame", || hosts.receiver.poll(&mut hosts.into.cq))??;
        let seen = (done.cookie, done.byte_len() as usize);
        ensure_eq!(seen, (100 + at as u64, length), "cookie and bytes of the receive");
        receives.holds(at, 0, bytes)?;
    }
    let more = hosts.receiver.poll(&mut hosts.into.cq).is_some();
    ensure!(!more, "a receive completed without a send");
    Ok(())
}
