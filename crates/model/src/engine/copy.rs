//! Memory copies within the device (MMO with op_mod DMA): a gather segment, a scatter segment, and
//! the address of an opaque buffer that belongs to the device while it copies.
//!
//! A long copy is done in parts, one a turn, so that it does not hold up other queues.
//!
//! Sources: rdma-core `providers/mlx5/qp.c` (`mlx5_wr_memcpy`), `wqe.h` (`struct mlx5_mmo_wqe`);
//! DPDK `drivers/common/mlx5/mlx5_prm.h` (`struct mlx5_gga_wqe`, `mlx5_gga_compress_opaque`) and
//! `drivers/compress/mlx5/mlx5_compress.c`: the scatter segment may have more room than the gather
//! segment has data, the CQE counts the bytes, and the opaque buffer receives a syndrome and that
//! count. The other bytes of the opaque buffer are not public: the model does not write them.

use verbless_prm::hot::cqe_syndrome;

use super::completion;
use super::keys::{self, AccessRight, Range, Sge};
use super::queue_pair::QueuePair;
use super::scratch::Scratch;
use super::sender::Turn;
use super::transfer::{scatter, transfer};
use super::work::{PostedWqe, Segment, Work, segments};

/// Bytes of the opaque buffer.
const OPAQUE: u64 = 64;
/// Bytes that a turn copies at most; few in tests, so that short copies have several parts.
const MAX_TURN_BYTES: u64 = if cfg!(test) { 2 << 10 } else { 256 << 10 };

/// Checks a copy and its access to memory; returns its bytes, or a syndrome.
#[cold]
#[inline(never)]
pub(super) fn check(pair: &QueuePair<'_>, work: &Work, scratch: &mut Scratch) -> Result<u64, u8> {
    if !pair.qp.mmo {
        tracing::info!(qpn = pair.qpn, "a copy on a QP that was not set up for it (mmo)");
        return Err(cqe_syndrome::LOCAL_QP_OPERATION);
    }
    let (source, target) = ends(work, &scratch.wqe)?;
    let longest = match pair.context.caps.general().log_dma_mmo_size() {
        0 => 1 << 31,
        log => 1 << log,
    };
    if source.length > target.length || source.length > longest {
        return Err(cqe_syndrome::LOCAL_LENGTH);
    }
    reach(pair, opaque(work), AccessRight::LocalWrite, &mut scratch.local)?;
    let target = Range { length: source.length, ..target };
    reach(pair, target, AccessRight::LocalWrite, &mut scratch.remote)?;
    reach(pair, source, AccessRight::LocalRead, &mut scratch.local)?;
    Ok(source.length)
}

/// Copies the next part.
#[cold]
#[inline(never)]
pub(super) fn execute(pair: &mut QueuePair<'_>, posted: &PostedWqe, scratch: &mut Scratch) -> Turn {
    let at = pair.qp.runtime.carried;
    match copy_part(pair, posted, at, scratch) {
        Ok(end) if end < posted.length => {
            pair.qp.runtime.carried = end;
            Turn::Again
        }
        Ok(_) => match write_status(pair, posted, scratch) {
            Ok(()) => completion::succeed(pair, posted, posted.length as u32, None),
            failed => completion::finish(pair, posted, failed),
        },
        Err(syndrome) => completion::finish(pair, posted, Err(syndrome)),
    }
}

/// Writes success and the byte count to the opaque buffer.
fn write_status(pair: &QueuePair<'_>, posted: &PostedWqe, scratch: &mut Scratch) -> Result<(), u8> {
    let whole = opaque(&posted.work);
    for (at, word) in [(0, 0), (8, posted.length as u32)] {
        let range = Range { address: whole.address.wrapping_add(at), length: 4, ..whole };
        reach(pair, range, AccessRight::LocalWrite, &mut scratch.remote)?;
        scatter(pair.context.spaces, &scratch.remote, &word.to_be_bytes())
            .map_err(|_| cqe_syndrome::LOCAL_PROTECTION)?;
    }
    Ok(())
}

/// Copies the part from byte `at` on, and returns where it ends.
fn copy_part(
    pair: &mut QueuePair<'_>,
    posted: &PostedWqe,
    at: u64,
    scratch: &mut Scratch,
) -> Result<u64, u8> {
    let (mut source, mut target) = ends(&posted.work, &scratch.wqe)?;
    let length = (posted.length - at.min(posted.length)).min(MAX_TURN_BYTES);
    for range in [&mut source, &mut target] {
        (range.address, range.length) = (range.address.wrapping_add(at), length);
    }
    reach(pair, source, AccessRight::LocalRead, &mut scratch.local)?;
    reach(pair, target, AccessRight::LocalWrite, &mut scratch.remote)?;
    transfer(pair.context.spaces, &scratch.local, &scratch.wqe, &scratch.remote)
        .map_err(|_| cqe_syndrome::LOCAL_PROTECTION)?;
    pair.context.state.moved_bytes += length;
    Ok(at + length)
}

/// Finds the memory of a range.
fn reach(
    pair: &QueuePair<'_>,
    range: Range,
    need: AccessRight,
    sges: &mut Vec<Sge>,
) -> Result<(), u8> {
    let user = pair.user();
    let mut visits = keys::VISITS;
    sges.clear();
    pair.context.keys().resolve(user, range, need, &mut visits, sges).map_err(|refusal| {
        tracing::info!(qpn = pair.qpn, ?range, ?refusal, "an mkey refuses a copy");
        cqe_syndrome::LOCAL_PROTECTION
    })
}

/// The opaque buffer.
fn opaque(work: &Work) -> Range {
    Range { key: work.rkey, address: work.remote_address, length: OPAQUE }
}

/// Source and destination of a copy: one segment each.
fn ends(work: &Work, wqe: &[u8]) -> Result<(Range, Range), u8> {
    let mut found = segments(wqe, work.data).map(|segment| match segment {
        Ok(Segment::Pointer { lkey, address, length }) => Ok(Range { key: lkey, address, length }),
        _ => Err(cqe_syndrome::LOCAL_QP_OPERATION),
    });
    match (found.next(), found.next(), found.next()) {
        (Some(source), Some(target), None) => Ok((source?, target?)),
        _ => Err(cqe_syndrome::LOCAL_QP_OPERATION),
    }
}
