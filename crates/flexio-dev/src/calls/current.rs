//! The functions without a context parameter: they read the thread's context themselves.

use crate::context::{ThreadContext, WindowEntity};
use crate::metadata::ThreadMetadata;
use crate::status::Failed;
pub use crate::system::{
    activate as event_handler_activate, error, finish_process as finish,
    finish_process as process_finish, finish_thread as thread_finish, reschedule,
    reschedule as thread_reschedule, retrigger as thread_retrigger, yield_and_retrigger,
    yield_until_event as r#yield,
};
use crate::system::{extend_outbox, ring_device};
use crate::word::Address;

/// The thread's context.
#[inline(always)]
pub fn get_thread_ctx() -> &'static ThreadContext {
    ThreadContext::current()
}

/// The metadata of the thread; `None` if the host gave none (`flexio_dev_get_current_thread_name`
/// is its `name`).
pub fn get_current_thread() -> Option<ThreadMetadata> {
    get_thread_ctx().metadata()
}

/// Selects this outbox for the thread's doorbells.
///
/// # Errors
/// The process has no such outbox: the thread keeps its current one.
pub fn outbox_config(id: u16) -> Result<(), Failed> {
    get_thread_ctx().set_outbox(id)
}

/// Selects outbox `id` like [`outbox_config`], without the check.
pub fn outbox_config_fast(id: u16) {
    get_thread_ctx().set_outbox_unchecked(id);
}

/// Makes the thread's outbox ring for the queues of an extended UAR.
///
/// # Errors
/// The thread has no outbox.
pub fn outbox_config_uar_extension(device: u32) -> Result<(), Failed> {
    extend_outbox(Some(device))
}

/// Rings for QP or SQ `number` of an extended UAR: WQEs up to the WQEBB index `pi` are posted; the
/// queue uses the low 16 bits.
///
/// # Errors
/// The process has no such extension, or the extension reaches no such queue.
pub fn cross_device_ring_db(device: u32, number: u32, pi: u32) -> Result<(), Failed> {
    ring_device(device, number, pi as u16)
}

/// Selects a window, and the memory key that it accesses.
///
/// # Errors
/// The process has no such window: the thread keeps its current one.
pub fn window_config(entity: WindowEntity, id: u16, mkey: u32) -> Result<(), Failed> {
    get_thread_ctx().set_window(entity, id, mkey)
}

/// Changes the memory key of the thread's window.
///
/// # Errors
/// The thread has no such window.
pub fn window_mkey_config(entity: WindowEntity, mkey: u32) -> Result<(), Failed> {
    get_thread_ctx().window(entity).map(|window| window.set_mkey(mkey))
}

/// The address in the window for the host's address `host`.
///
/// # Errors
/// The thread has no such window, or the address is outside of the window.
pub fn window_ptr_acquire(entity: WindowEntity, host: u64) -> Result<Address, Failed> {
    get_thread_ctx().window(entity)?.address(host)
}

/// Copies bytes from the host. The C library calls it unsupported; here it works.
///
/// # Errors
/// The thread has no such window, or the range exceeds the window.
pub fn window_copy_from_host(
    entity: WindowEntity,
    into: &mut [u8],
    host: u64,
) -> Result<(), Failed> {
    get_thread_ctx().window(entity)?.copy_from_host(into, host)
}

/// Copies bytes to the host.
///
/// # Errors
/// The thread has no such window, or the range exceeds the window.
pub fn window_copy_to_host(entity: WindowEntity, host: u64, from: &[u8]) -> Result<(), Failed> {
    get_thread_ctx().window(entity)?.copy_to_host(host, from)
}

/// Rings for a QP or SQ: WQEs up to the WQEBB index `pi` are posted.
pub fn qp_sq_ring_db(pi: u16, number: u32) {
    get_thread_ctx().outbox().send(number, pi);
}

/// The value of an emulated doorbell.
pub fn read_db_value(context: u32) -> u32 {
    get_thread_ctx().outbox().read_emulated(context)
}

/// Arms an emulation context.
pub fn db_ctx_arm(cqn: u32, context: u32) {
    get_thread_ctx().outbox().arm_emulated(cqn, context);
}

/// Triggers an emulation context.
pub fn db_ctx_force_trigger(cqn: u32, context: u32) {
    get_thread_ctx().outbox().trigger_emulated(cqn, context);
}

/// Updates the consumer index of EQ `eqn` to `ci`.
pub fn eq_update_ci(ci: u32, eqn: u32) {
    get_thread_ctx().outbox().update_eq(eqn, ci);
}

/// Arms CQ `cqn` for the next CQE, with consumer index `ci`.
pub fn cq_arm(ci: u32, cqn: u32) {
    get_thread_ctx().outbox().arm_cq(cqn, ci);
}

/// Writes a CQE of zeros to CQ `cqn`.
pub fn zcqe_gen(cqn: u32) {
    get_thread_ctx().outbox().trigger_cq(cqn);
}

/// Raises the MSI-X of CQ `cqn`, by a CQE of zeros.
pub fn msix_send(cqn: u32) {
    zcqe_gen(cqn);
}
