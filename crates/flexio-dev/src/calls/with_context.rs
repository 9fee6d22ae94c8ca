//! The functions with a context parameter: those that lost it in 24.10, and those of the API of
//! 2022 that still have it. They return a status. Functions without a window argument use the
//! primary window.
//!
//! Doorbell records and segments of WQEs never took a context, but in 2022 their functions returned
//! a status, too: here they do. Every argument is valid, so the status is always
//! [`Status::Success`].

use core::sync::atomic::AtomicU32;

use crate::context::{ThreadContext, WindowEntity};
use crate::message::{Level, Stream};
use crate::record;
use crate::segment::{CompletionMode, Request, Segment};
use crate::status::{Failed, Status};
use crate::word::Address;

const PRIMARY: WindowEntity = WindowEntity::Primary;

/// The number of the thread in its process; 0 if the host gave none.
pub fn get_thread_id(context: &ThreadContext) -> u32 {
    context.metadata().map_or(0, |it| it.id)
}

/// The address of the thread's storage; 0 if the host gave none.
pub fn get_thread_local_storage(context: &ThreadContext) -> Address {
    context.metadata().map_or(0, |it| it.storage)
}

/// The last error that did not end the process.
pub fn get_errno(context: &ThreadContext) -> u64 {
    context.errno().into()
}

/// Clears the last error.
pub fn rst_errno(context: &ThreadContext) {
    context.reset_errno();
}

/// Clears the last error and returns it.
pub fn get_and_rst_errno(context: &ThreadContext) -> u64 {
    context.take_errno().into()
}

/// See [`calls::outbox_config`](super::outbox_config).
pub fn outbox_config(context: &ThreadContext, id: u16) -> Status {
    context.set_outbox(id).into()
}

/// See [`calls::outbox_config_fast`](super::outbox_config_fast).
pub fn outbox_config_fast(context: &ThreadContext, id: u16) {
    context.set_outbox_unchecked(id);
}

/// See [`calls::outbox_config_uar_extension`](super::outbox_config_uar_extension). It uses the
/// thread's own context and ignores the argument.
#[cfg(any(doc, test, all(target_arch = "riscv64", target_os = "none")))]
pub fn outbox_config_uar_extension(_: &ThreadContext, device: u32) -> Status {
    crate::system::extend_outbox(Some(device)).into()
}

/// See [`calls::window_config`](super::window_config).
pub fn window_config(context: &ThreadContext, id: u16, mkey: u32) -> Status {
    context.set_window(PRIMARY, id, mkey).into()
}

/// See [`calls::window_mkey_config`](super::window_mkey_config).
pub fn window_mkey_config(context: &ThreadContext, mkey: u32) -> Status {
    context.window(PRIMARY).map(|window| window.set_mkey(mkey)).into()
}

/// See [`calls::window_ptr_acquire`](super::window_ptr_acquire); on failure `address` is unchanged.
pub fn window_ptr_acquire(context: &ThreadContext, host: u64, address: &mut Address) -> Status {
    match context.window(PRIMARY).and_then(|window| window.address(host)) {
        Ok(found) => {
            *address = found;
            Status::Success
        }
        Err(Failed) => Status::Failed,
    }
}

/// See [`calls::window_copy_from_host`](super::window_copy_from_host).
pub fn window_copy_from_host(context: &ThreadContext, into: &mut [u8], host: u64) -> Status {
    context.window(PRIMARY).and_then(|window| window.copy_from_host(into, host)).into()
}

/// See [`calls::window_copy_to_host`](super::window_copy_to_host).
pub fn window_copy_to_host(context: &ThreadContext, host: u64, from: &[u8]) -> Status {
    context.window(PRIMARY).and_then(|window| window.copy_to_host(host, from)).into()
}

/// See [`calls::qp_sq_ring_db`](super::qp_sq_ring_db).
pub fn qp_sq_ring_db(context: &ThreadContext, pi: u16, number: u32) -> Status {
    context.outbox().send(number, pi);
    Status::Success
}

/// See [`calls::db_ctx_arm`](super::db_ctx_arm).
pub fn db_ctx_arm(context: &ThreadContext, cqn: u32, emulated: u32) -> Status {
    context.outbox().arm_emulated(cqn, emulated);
    Status::Success
}

/// See [`calls::db_ctx_force_trigger`](super::db_ctx_force_trigger).
pub fn db_ctx_force_trigger(context: &ThreadContext, cqn: u32, emulated: u32) -> Status {
    context.outbox().trigger_emulated(cqn, emulated);
    Status::Success
}

/// See [`calls::eq_update_ci`](super::eq_update_ci).
pub fn eq_update_ci(context: &ThreadContext, ci: u32, eqn: u32) -> Status {
    context.outbox().update_eq(eqn, ci);
    Status::Success
}

/// See [`calls::cq_arm`](super::cq_arm).
pub fn cq_arm(context: &ThreadContext, ci: u32, cqn: u32) -> Status {
    context.outbox().arm_cq(cqn, ci);
    Status::Success
}

/// See [`calls::zcqe_gen`](super::zcqe_gen).
pub fn zcqe_gen(context: &ThreadContext, cqn: u32) -> Status {
    context.outbox().trigger_cq(cqn);
    Status::Success
}

/// See [`calls::msix_send`](super::msix_send).
pub fn msix_send(context: &ThreadContext, cqn: u32) -> Status {
    zcqe_gen(context, cqn)
}

/// See [`Stream::write`], for the default stream.
pub fn puts(context: &ThreadContext, text: &str) -> usize {
    Stream::DEFAULT.write(context, Level::Info, format_args!("{text}"))
}

/// See [`record::cq_set_ci`].
pub fn dbr_cq_set_ci(record: &AtomicU32, ci: u32) -> Status {
    record::cq_set_ci(record, ci);
    Status::Success
}

/// See [`record::rq_inc_pi`].
pub fn dbr_rq_inc_pi(record: &AtomicU32) -> Status {
    record::rq_inc_pi(record);
    Status::Success
}

/// See [`record::sq_set_pi`]; the record has the low 16 bits of `pi`.
pub fn dbr_sq_set_pi(record: &AtomicU32, pi: u32) -> Status {
    record::sq_set_pi(record, pi as u16);
    Status::Success
}

/// See [`Segment::atomic`].
pub fn swqe_seg_atomic_set(segment: &mut Segment, swap_or_add: u64, compare: u64) -> Status {
    *segment = Segment::atomic(swap_or_add, compare);
    Status::Success
}

/// See [`Segment::ctrl`]; the segment has the low 16 bits of `pi`.
pub fn swqe_seg_ctrl_set(
    segment: &mut Segment,
    pi: u32,
    number: u32,
    mode: CompletionMode,
    request: Request,
) -> Status {
    *segment = Segment::ctrl(pi as u16, number, mode, request);
    Status::Success
}

/// See [`Segment::data`].
pub fn swqe_seg_data_set(segment: &mut Segment, bytes: u32, lkey: u32, address: u64) -> Status {
    *segment = Segment::data(bytes, lkey, address);
    Status::Success
}

/// See [`Segment::eth`].
pub fn swqe_seg_eth_set(
    segment: &mut Segment,
    flags: u16,
    mss: u16,
    header_bytes: u16,
    header: [u8; 2],
) -> Status {
    *segment = Segment::eth(flags, mss, header_bytes, header);
    Status::Success
}

/// See [`Segment::rdma`].
pub fn swqe_seg_rdma_set(segment: &mut Segment, rkey: u32, address: u64) -> Status {
    *segment = Segment::rdma(rkey, address);
    Status::Success
}

#[cfg(test)]
mod tests {
    use core::sync::atomic::Ordering;

    use super::*;

    #[test]
    fn records_and_segments_equal_those_without_status() {
        let word = |set: &dyn Fn(&AtomicU32) -> Status| {
            let record = AtomicU32::new(0xfffe_u32.to_be());
            assert_eq!(set(&record), Status::Success);
            record.load(Ordering::Relaxed).to_ne_bytes()
        };
        assert_eq!(word(&|record| dbr_cq_set_ci(record, 0xff12_3456)), [0, 0x12, 0x34, 0x56]);
        assert_eq!(word(&dbr_rq_inc_pi), [0, 0, 0xff, 0xff]);
        assert_eq!(word(&|record| dbr_sq_set_pi(record, 0x1_789a)), [0, 0, 0x78, 0x9a]);
        let made = |set: &dyn Fn(&mut Segment) -> Status| {
            let mut segment = Segment::bytes([0xa5; 16]);
            assert_eq!(set(&mut segment), Status::Success);
            segment
        };
        let (mode, request) = (CompletionMode::Always, Request::RdmaWrite);
        let rows = [
            (made(&|it| swqe_seg_atomic_set(it, 1, 2)), Segment::atomic(1, 2)),
            (
                made(&|it| swqe_seg_ctrl_set(it, 0x5_0001, 2, mode, request)),
                Segment::ctrl(1, 2, mode, request),
            ),
            (made(&|it| swqe_seg_data_set(it, 1, 2, 3)), Segment::data(1, 2, 3)),
            (made(&|it| swqe_seg_eth_set(it, 1, 2, 3, [4, 5])), Segment::eth(1, 2, 3, [4, 5])),
            (made(&|it| swqe_seg_rdma_set(it, 1, 2)), Segment::rdma(1, 2)),
        ];
        rows.iter().for_each(|(made, expected)| assert_eq!(made, expected));
    }
}
