//! The data segments of a send WQE as memory: of the whole message, or of a part of it.

use verbless_prm::WqeFence;
use verbless_prm::hot::{CtrlSegment, cqe_syndrome};

use super::keys::{self, AccessRight, Range, Sge};
use super::operation::{Execution, Local};
use super::queue_pair::QueuePair;
use super::scratch::Scratch;
use super::state::UnfencedKey;
use super::work::{Segment, Work, segments};
use super::{copy, wait};

/// Fence modes that wait for changes of keys.
const WAITS: [WqeFence; 3] =
    [WqeFence::INITIATOR_SMALL, WqeFence::STRONG_ORDERING, WqeFence::FENCE_AND_INITIATOR_SMALL];

/// Finds the memory of the data segments of the WQE at `index`; the error is the syndrome. A WQE
/// right after a UMR may see the key as it was before.
pub(super) fn whole(
    pair: &mut QueuePair<'_>,
    work: &Work,
    index: u16,
    scratch: &mut Scratch,
) -> Result<u64, u8> {
    let unfenced = std::mem::take(&mut pair.qp.runtime.unfenced);
    match unfenced.then(|| pair.context.state.unfenced.remove(&pair.qpn)).flatten() {
        None => list(pair, work, scratch),
        Some(key) => gather_after_umr(pair, key, work, index, scratch),
    }
}

/// Resolves a part of the WQE's data; the error is the syndrome.
pub(super) fn part(
    pair: &QueuePair<'_>,
    work: &Work,
    at: u64,
    length: u64,
    scratch: &mut Scratch,
) -> Result<(), u8> {
    let need =
        if work.operation.scatters() { AccessRight::LocalWrite } else { AccessRight::LocalRead };
    let user = pair.user();
    let Scratch { local, wqe, .. } = scratch;
    local.clear();
    let mut visits = keys::VISITS;
    let (mut skip, mut rest) = (at, length);
    for segment in segments(wqe, work.data) {
        if rest == 0 {
            break;
        }
        let size = match segment {
            Ok(Segment::Pointer { length, .. } | Segment::Inline { length, .. }) => length,
            Err(_) => return Err(cqe_syndrome::LOCAL_QP_OPERATION),
        };
        if skip >= size {
            skip -= size;
            continue;
        }
        let here = (size - skip).min(rest);
        match segment {
            Ok(Segment::Pointer { lkey, address, .. }) => {
                let address = address.wrapping_add(skip);
                let range = Range { key: lkey, address, length: here };
                pair.context
                    .keys()
                    .resolve(user, range, need, &mut visits, local)
                    .map_err(|_| cqe_syndrome::LOCAL_PROTECTION)?;
            }
            Ok(Segment::Inline { at, .. }) => {
                local.push(Sge::Inline { at: at + skip as usize, length: here });
            }
            Err(_) => {}
        }
        rest -= here;
        skip = 0;
    }
    if rest == 0 { Ok(()) } else { Err(cqe_syndrome::LOCAL_LENGTH) }
}

/// Keeps a key as it was before a UMR, for the next WQE.
pub(super) fn keep_unfenced(pair: &mut QueuePair<'_>, key: UnfencedKey) {
    pair.qp.runtime.unfenced = true;
    pair.context.state.unfenced.insert(pair.qpn, key);
}

/// Resolves the data segments of a WQE right after a UMR that was posted together with it. Unless
/// the WQE waits for the UMR, it uses the mkey as it was before the UMR: a card may do so, the
/// model always does.
#[cold]
fn gather_after_umr(
    pair: &mut QueuePair<'_>,
    mut key: UnfencedKey,
    work: &Work,
    index: u16,
    scratch: &mut Scratch,
) -> Result<u64, u8> {
    let control = CtrlSegment::from_prefix(&scratch.wqe);
    let fence = WqeFence(control.map_or(0, |control| control.ctrl_flags.fm()));
    let changed = pair.context.mkeys.get_mut(&key.number);
    let (false, Some(changed)) = (index != key.request || WAITS.contains(&fence), changed) else {
        return list(pair, work, scratch);
    };
    // A key of another owner may have the number meanwhile.
    if changed.uid != key.before.uid || changed.context.pd() != key.before.context.pd() {
        return list(pair, work, scratch);
    }
    std::mem::swap(changed, &mut key.before);
    let length = list(pair, work, scratch);
    if let Some(changed) = pair.context.mkeys.get_mut(&key.number) {
        std::mem::swap(changed, &mut key.before);
    }
    // A request that is sent again, or in parts, must see the same key.
    keep_unfenced(pair, key);
    length
}

/// Resolves the WQE's data segments; the error is the syndrome.
fn list(pair: &QueuePair<'_>, work: &Work, scratch: &mut Scratch) -> Result<u64, u8> {
    scratch.local.clear();
    let operation = work.operation;
    if let Execution::Local(local) = operation.execution {
        return match local {
            Local::Nop | Local::Umr => Ok(0),
            Local::Copy => copy::check(pair, work, scratch),
            Local::Wait => wait::check(&scratch.wqe),
        };
    }
    let user = pair.user();
    let longest = pair.context.limits.longest_message(pair.qp);
    let need = if operation.scatters() { AccessRight::LocalWrite } else { AccessRight::LocalRead };
    let (mut total, mut visits) = (0, keys::VISITS);
    for segment in segments(&scratch.wqe, work.data) {
        match segment {
            Ok(Segment::Pointer { lkey, address, length }) => {
                total += length;
                if total > longest {
                    return Err(cqe_syndrome::LOCAL_LENGTH);
                }
                let range = Range { key: lkey, address, length };
                let keys = pair.context.keys();
                keys.resolve(user, range, need, &mut visits, &mut scratch.local).map_err(
                    |refusal| {
                        tracing::info!(
                            qpn = pair.qpn,
                            ?range,
                            ?refusal,
                            "an mkey refuses a local access"
                        );
                        cqe_syndrome::LOCAL_PROTECTION
                    },
                )?;
            }
            Ok(Segment::Inline { at, length }) if !operation.scatters() => {
                total += length;
                scratch.local.push(keys::Sge::Inline { at, length });
            }
            _ => return Err(cqe_syndrome::LOCAL_QP_OPERATION),
        }
    }
    if total > longest || (operation.is_atomic() && total != 8) {
        return Err(cqe_syndrome::LOCAL_LENGTH);
    }
    Ok(total)
}
