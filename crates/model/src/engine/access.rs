//! What a peer's request may do at a QP: the memory that it reaches, its atomics, the keys that it
//! frees, and why it is refused.

use super::arrivals;
use super::context::{Context, Missing};
use super::counters::Count;
use super::invalid::InvalidReason;
use super::keys::{self, AccessRight, KeyUser, Range, Sge};
use super::operation::{Atomic, Operands, Remote};
use super::queue_pair::QueuePair;
use super::scratch::Scratch;
use super::transfer;
use crate::hca::objects::{Mkey, QpObject};
use crate::memory::{HostMemory, Spaces};
use crate::numbered::Numbered;
use crate::watch::QueueSide;

/// Attempts of an atomic against a client that changes the word all the time.
const ATTEMPTS: u32 = 1 << 16;

/// The reason of the responder's refusal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Nak {
    /// The memory key refused, or does not allow it.
    Access,
    /// The operation is not enabled, misaligned, or too long for the receive WQE.
    InvalidRequest,
    /// The responder itself failed.
    Operation,
    /// There is no receive WQE.
    NotReady,
    /// The requester's own memory faulted.
    Source,
}

/// The counter that the responder increases when a message was executed, or refused for this
/// reason.
pub(super) fn counted(remote: Remote, refused: Option<Nak>) -> Option<Count> {
    match refused {
        None => remote.count(),
        Some(Nak::NotReady) => Some(Count::OutOfBuffer),
        Some(Nak::Access) => Some(Count::ResponderAccess),
        Some(Nak::InvalidRequest) => Some(Count::ResponderInvalid),
        Some(Nak::Operation | Nak::Source) => None,
    }
}

impl From<Missing> for Nak {
    fn from(missing: Missing) -> Self {
        tracing::error!(%missing, "a message cannot be received");
        Self::Operation
    }
}

/// Resolves a range that the peer names into `Scratch::remote`.
pub(super) fn range(
    pair: &QueuePair<'_>,
    key: u32,
    address: u64,
    length: u64,
    need: AccessRight,
    scratch: &mut Scratch,
) -> Result<(), Nak> {
    let responder = &pair.qp.responder;
    let (enabled, field, is_answered) = match need {
        AccessRight::RemoteRead => (responder.allow_read, "rre", true),
        AccessRight::Atomic => (responder.allow_atomic, "rae", true),
        _ => (responder.allow_write, "rwe", false),
    };
    let max_dest_rd_atomic = responder.max_dest_rd_atomic;
    if !enabled {
        return Err(invalid(pair.qpn, InvalidReason::Disabled { field }));
    }
    if is_answered && max_dest_rd_atomic == 0 {
        return Err(invalid(pair.qpn, InvalidReason::TooManyAnswers { max_dest_rd_atomic }));
    }
    scratch.remote.clear();
    if length == 0 {
        return Ok(());
    }
    let user = KeyUser { pd: pair.qp.pd, qpn: pair.qpn, reserved_lkey: false };
    let range = Range { key, address, length };
    let keys = pair.context.keys();
    keys.resolve(user, range, need, &mut { keys::VISITS }, &mut scratch.remote).map_err(|refusal| {
        tracing::info!(qpn = pair.qpn, ?range, ?refusal, "an mkey refuses a remote access");
        Nak::Access
    })
}

/// The NAK for absent memory that a peer named. Memory of an ended program is refused, as its keys
/// are once they are destroyed: a card pins the memory until then, the model cannot. If the key is
/// an alias, the memory may belong to another program than the QP, so the QP can still answer.
pub(super) fn of_remote(spaces: &Spaces, nak: Nak, remote: &[Sge]) -> Nak {
    match nak {
        Nak::Operation if keys::are_gone(spaces, remote) => Nak::Access,
        other => other,
    }
}

/// Refuses an atomic whose address is not aligned to its 8 bytes.
pub(super) fn check_alignment(qpn: u32, address: u64) -> Result<(), Nak> {
    match address.is_multiple_of(8) {
        true => Ok(()),
        false => Err(invalid(qpn, InvalidReason::UnalignedAtomic(address))),
    }
}

/// Executes an atomic on the word in `remote`, for a QP of this context; returns the old value.
pub(super) fn exchange_word(
    context: &Context<'_>,
    qpn: u32,
    atomic: Atomic,
    operands: Operands,
    remote: &[Sge],
) -> Result<u64, Nak> {
    let next = |now: u64| atomic.next(now, operands);
    // Numbers have the host's byte order: the kernel selects that mode (SET_HCA_CAP, atomic page).
    let spaces = context.spaces;
    match *remote {
        [Sge::Memory { space, address, .. }] if address.is_multiple_of(8) => {
            let mut guess = 0;
            for _ in 0..ATTEMPTS {
                let found = spaces
                    .get(space)
                    .compare_exchange64(address, guess, next(guess))
                    .map_err(|_| of_remote(spaces, Nak::Operation, remote))?;
                if found == guess {
                    arrivals::data(
                        context.state,
                        context.spaces,
                        qpn,
                        QueueSide::Responder,
                        remote,
                    );
                    return Ok(found);
                }
                guess = found;
            }
            Err(Nak::Operation)
        }
        [Sge::Null { .. }] => Ok(0),
        // Aligned in the key but not in memory: only the device's own accesses are atomic then.
        _ => {
            let mut word = [0; 8];
            transfer::gather(spaces, remote, &[], &mut word)
                .map_err(|_| of_remote(spaces, Nak::Operation, remote))?;
            let found = u64::from_ne_bytes(word);
            transfer::scatter(spaces, remote, &next(found).to_ne_bytes())
                .map_err(|_| of_remote(spaces, Nak::Operation, remote))?;
            arrivals::data(context.state, context.spaces, qpn, QueueSide::Responder, remote);
            Ok(found)
        }
    }
}

/// Frees the key that a SEND with invalidate names, for a QP of this PD.
pub(super) fn invalidate(mkeys: &mut Numbered<u32, Mkey>, pd: u32, key: u32) -> Result<(), Nak> {
    let mkey = mkeys.get_mut(&(key >> 8)).ok_or(Nak::Access)?;
    let right = u32::from(mkey.variant) == key & 0xff && mkey.pd == pd && !mkey.free;
    if !right || !mkey.context.en_rinval() {
        return Err(Nak::Access);
    }
    mkey.free = true;
    Ok(())
}

/// Logs why a request is invalid; the requester gets the NAK alone.
pub(super) fn invalid(qpn: u32, why: InvalidReason) -> Nak {
    tracing::info!(qpn, %why, "an invalid request");
    Nak::InvalidRequest
}

/// Whether a QP's program has ended. Its peer sees nothing of that in its memory, only its silence.
pub(super) fn is_gone(qp: &QpObject, memory: &dyn HostMemory) -> bool {
    let rings = [qp.sq.as_ref().map(|sq| &sq.memory), qp.rq.as_ref().map(|rq| &rq.memory)];
    let pages = rings.into_iter().flatten().filter_map(|ring| ring.pages.first().copied());
    pages.chain([qp.record]).any(|address| memory.is_gone(address))
}
