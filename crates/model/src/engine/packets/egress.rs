//! Packets that leave a QP: headers and payload, in a buffer that the port takes.

use verbless_prm::Bth;

use super::super::queue_pair::QueuePair;
use super::super::state::Egress;
use super::super::transfer::TransferEnd;
use super::path::Hop;
use crate::hca::DEFAULT_PKEY;
use verbless_wire::{Extensions, Headers, Route, Transport};

/// A packet that is being built.
pub(super) struct Outgoing {
    pub bth: Bth,
    pub extensions: Extensions,
    /// Bytes of payload.
    pub payload: usize,
}

/// Sends a packet to the QP's peer; `fill` writes the payload. A `lost` packet is dropped here.
pub(super) fn send(
    pair: &mut QueuePair<'_>,
    out: &Outgoing,
    lost: bool,
    fill: impl FnOnce(&mut [u8]) -> Result<(), TransferEnd>,
) -> Result<(), TransferEnd> {
    let hop = Hop::from(pair.qp.context.primary_address_path());
    let route = pair.context.addresses.route(pair.qp.port, &hop);
    let mut bth = out.bth;
    bth.set_destination_qp(pair.qp.remote_qpn & 0xff_ffff)
        .set_partition_key(DEFAULT_PKEY)
        .set_migrated(true);
    let transport = Transport { bth, extensions: out.extensions };
    send_to(pair, route, transport, out.payload, lost, fill)
}

/// Sends a packet with these headers; a packet without a route is dropped here.
pub(super) fn send_to(
    pair: &mut QueuePair<'_>,
    route: Option<Route>,
    transport: Transport,
    payload: usize,
    lost: bool,
    fill: impl FnOnce(&mut [u8]) -> Result<(), TransferEnd>,
) -> Result<(), TransferEnd> {
    let state = &mut pair.context.state;
    state.moved_bytes += payload as u64;
    let Some(route) = route else {
        tracing::debug!(qpn = pair.qpn, "a packet is dropped: its path has no route");
        return fill(&mut vec![0; payload]);
    };
    let headers = Headers { route, transport };
    let mut filled = Ok(());
    let frame = state.buffers.packet(&headers, payload, |into| filled = fill(into));
    if filled.is_err() || lost {
        state.buffers.recycle(frame);
        return filled;
    }
    state.egress.push(Egress { port: pair.qp.port, frame });
    Ok(())
}
