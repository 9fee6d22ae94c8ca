//! Reports arriving CQEs and payload to recorders ([`crate::Model::record_arrivals`]).

use verbless_prm::{Cqe, CqeOpcode};

use super::cqe::Completion;
use super::keys::Sge;
use super::state::EngineState;
use crate::memory::Spaces;
use crate::watch::{QueueId, QueueSide};

/// Bytes that are read back at a time.
const CHUNK: u64 = 4096;

/// Reports the bytes that filled `target`, the memory of a QP's request or receive.
pub(super) fn data(
    state: &EngineState,
    spaces: &Spaces,
    qpn: u32,
    side: QueueSide,
    target: &[Sge],
) {
    let Some((function, outbox)) = &state.outbox else { return };
    if outbox.arrivals.is_wanted() {
        let at = QueueId { function: *function, qpn, side };
        read_back(spaces, target, |bytes| outbox.arrivals.data(at, bytes));
    }
}

fn read_back(spaces: &Spaces, target: &[Sge], mut visit: impl FnMut(&[u8])) {
    let mut buffer = [0; CHUNK as usize];
    for sge in target {
        let mut done = 0;
        while done < sge.length() {
            let bytes = &mut buffer[..(sge.length() - done).min(CHUNK) as usize];
            match *sge {
                Sge::Memory { space, address, .. } => {
                    // Memory that cannot be read could not be written either.
                    if spaces.get(space).read(address.wrapping_add(done), bytes).is_err() {
                        return;
                    }
                }
                // The null mkey discards writes.
                Sge::Inline { .. } | Sge::Null { .. } => bytes.fill(0),
            }
            visit(bytes);
            done += bytes.len() as u64;
        }
    }
}

/// Reports a CQE that was written.
pub(super) fn completed(state: &EngineState, completion: &Completion) {
    let Some((function, outbox)) = &state.outbox else { return };
    if !outbox.arrivals.is_wanted() {
        return;
    }
    let Completion { body, first_half, .. } = completion;
    let Some(cqe) = Cqe::from_prefix(body) else { return };
    let side = match cqe.opcode() {
        CqeOpcode::REQUESTER | CqeOpcode::REQUESTER_ERROR => QueueSide::Requester,
        _ => QueueSide::Responder,
    };
    let at = QueueId { function: *function, qpn: cqe.qpn(), side };
    let whole = first_half.as_ref().map_or(&[][..], |half| &half[..]);
    outbox.arrivals.completion(at, &[whole, body].concat());
}
