//! The interface of a QP type's module: the rules that commands apply, and how its messages travel.

use super::super::context::Missing;
use super::super::queue_pair::QueuePair;
use super::super::requester::{self, TurnStart};
use super::super::scratch::Scratch;
use super::super::sender::Turn;
use super::super::work::PostedWqe;
use super::connected::Carry;
use crate::hca::qp_type::QpType;
use verbless_wire::{Opcode, Packet};

/// A QP type and its messages.
pub(in crate::engine) struct Transport {
    pub qp_type: QpType,
    /// Carries a part of a request whole to its peer; `None`: its messages go in packets only.
    pub carry: Option<Carry>,
    /// Gives a turn to a QP that sends its messages in packets.
    pub turn: fn(&mut QueuePair<'_>, &mut Scratch) -> Result<Turn, Missing>,
    /// Takes a packet that arrived for a QP, whose opcode is one of the type's service.
    pub take: fn(&mut QueuePair<'_>, &Packet<'_>, Opcode, &mut Scratch),
}

/// The turn of a QP that executes one request after the other.
pub(super) fn one_by_one(
    pair: &mut QueuePair<'_>,
    scratch: &mut Scratch,
    send: fn(&mut QueuePair<'_>, &PostedWqe, &mut Scratch) -> Turn,
) -> Result<Turn, Missing> {
    Ok(match requester::begin(pair, scratch)? {
        TurnStart::Over(turn) => turn,
        TurnStart::Request(posted) => send(pair, &posted, scratch),
    })
}
