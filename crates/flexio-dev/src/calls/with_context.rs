//! The functions that took the thread's context before 24.10, and those of the API of 2022 that
//! still do, with the status that they return. Those that have no window of their own to name use
//! the primary one.

use crate::context::{ThreadContext, WindowEntity};
use crate::message::{Level, Stream};
use crate::status::{Failed, Status};
use crate::word::Address;

const PRIMARY: WindowEntity = WindowEntity::Primary;

/// The number of the thread in its process; 0 if the host has not said.
pub fn get_thread_id(context: &ThreadContext) -> u32 {
    context.metadata().map_or(0, |it| it.id)
}

/// The address of the thread's storage; 0 if the host has given none.
pub fn get_thread_local_storage(context: &ThreadContext) -> Address {
    context.metadata().map_or(0, |it| it.storage)
}

/// The last error that did not end the process.
pub fn get_errno(context: &ThreadContext) -> u64 {
    context.errno().into()
}

/// Forgets the last error.
pub fn rst_errno(context: &ThreadContext) {
    context.reset_errno();
}

/// Forgets the last error and returns it.
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

/// See [`calls::outbox_config_uar_extension`](super::outbox_config_uar_extension). The context is
/// the thread's own, whatever is given.
#[cfg(any(doc, all(target_arch = "riscv64", target_os = "none")))]
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

/// See [`calls::window_ptr_acquire`](super::window_ptr_acquire); `address` is as it was on failure.
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

/// See [`Stream::write`], of the default stream.
pub fn puts(context: &ThreadContext, text: &str) -> usize {
    Stream::DEFAULT.write(context, Level::Info, format_args!("{text}"))
}
