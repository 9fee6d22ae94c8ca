//! The functions with and without the context, against an outbox and windows in the test's memory.

use core::array::from_fn;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::boxed::Box;

use super::*;
use crate::context::{ThreadContext, WindowEntity};
use crate::metadata::ThreadMetadata;
use crate::outbox::{
    BUFFER, CQ_DB, EMU_CAP, EMU_CAP_TRIGGER, EQ_DB_NO_REARM, PAGE_BYTES, RXC_RD, RXT_DB, SXD_DB,
};
use crate::status::{Failed, Status};
use crate::system::tests::{answering, calls, enter};

/// A doorbell by its two functions, its register, and the stored word.
type Row<'a> = (&'a dyn Fn(), &'a dyn Fn(), usize, u64);

const PRIMARY: WindowEntity = WindowEntity::Primary;
const SECONDARY: WindowEntity = WindowEntity::Secondary;
/// The first address beyond every window.
const BEYOND: u64 = 1 << 48;

/// A thread with outbox 1 and window 2, and their memory.
struct Thread {
    pages: &'static [AtomicU64; 1024],
    keys: &'static [AtomicU32; 48],
    context: &'static ThreadContext,
}

impl Thread {
    fn new() -> Self {
        let pages = Box::leak(Box::new([const { AtomicU64::new(0) }; 1024]));
        let keys = Box::leak(Box::new([const { AtomicU32::new(0) }; 48]));
        let [registers, configurations] =
            [pages.as_ptr().expose_provenance(), keys.as_ptr().expose_provenance()];
        let context = enter(ThreadContext::at(registers as u64, configurations as u64, 0));
        Self { pages, keys, context }
    }

    /// A register of outbox 1.
    fn register(&self, offset: usize) -> &AtomicU64 {
        &self.pages[(PAGE_BYTES + offset) / 8]
    }

    /// The key of a window.
    fn key(&self, window: usize) -> u32 {
        self.keys[16 * window].load(Ordering::Relaxed)
    }
}

#[test]
fn doorbell_calls_store_their_register() {
    let thread = Thread::new();
    let context = thread.context;
    let success = |status| assert_eq!(status, Status::Success);
    let rows: [Row<'_>; 7] = [
        (
            &|| qp_sq_ring_db(8, 7),
            &|| success(with_context::qp_sq_ring_db(context, 8, 7)),
            SXD_DB,
            7 << 32 | 8,
        ),
        (
            &|| db_ctx_arm(10, 11),
            &|| success(with_context::db_ctx_arm(context, 10, 11)),
            EMU_CAP,
            11 << 32 | 10,
        ),
        (
            &|| db_ctx_force_trigger(12, 13),
            &|| success(with_context::db_ctx_force_trigger(context, 12, 13)),
            EMU_CAP_TRIGGER,
            13 << 32 | 12,
        ),
        (
            &|| eq_update_ci(4, 3),
            &|| success(with_context::eq_update_ci(context, 4, 3)),
            EQ_DB_NO_REARM,
            4 << 32 | 3,
        ),
        (&|| cq_arm(2, 1), &|| success(with_context::cq_arm(context, 2, 1)), CQ_DB, 2 << 32 | 1),
        (&|| zcqe_gen(9), &|| success(with_context::zcqe_gen(context, 9)), RXT_DB, 9),
        (&|| msix_send(14), &|| success(with_context::msix_send(context, 14)), RXT_DB, 14),
    ];
    for (index, (current, with_context, register, word)) in rows.into_iter().enumerate() {
        for ring in [current, with_context] {
            thread.register(register).store(0, Ordering::Relaxed);
            ring();
            assert_eq!(thread.register(register).load(Ordering::Relaxed), word, "row {index}");
        }
    }
    thread.register(BUFFER).store(0x1_0000_0077, Ordering::Relaxed);
    assert_eq!(read_db_value(3), 0x77);
    assert_eq!(thread.register(RXC_RD).load(Ordering::Relaxed), 3 << 2);
}

#[test]
fn outbox_config_selects_and_extends_outboxes() {
    let context = Thread::new().context;
    assert_eq!((answering(4, || outbox_config(3)), outbox_config(255)), (Err(Failed), Ok(())));
    assert_eq!(context.outbox_id(), 255);
    outbox_config_fast(300);
    assert_eq!(context.outbox_id(), 300);
    assert_eq!(answering(4, || with_context::outbox_config(context, 3)), Status::Failed);
    assert_eq!(context.outbox_id(), 300);
    assert_eq!(with_context::outbox_config(context, 5), Status::Success);
    assert_eq!(context.outbox_id(), 5);
    with_context::outbox_config_fast(context, 301);
    assert_eq!(context.outbox_id(), 301);
    let made = calls(|| {
        outbox_config_uar_extension(6).unwrap();
        assert_eq!(with_context::outbox_config_uar_extension(context, 7), Status::Success);
        cross_device_ring_db(8, 9, 0x1_000a).unwrap();
    });
    assert_eq!(made, [(10, [6, 0, 0]), (10, [7, 0, 0]), (11, [8, 9, 10])]);
}

#[test]
fn window_config_selects_window_and_sets_mkey() {
    let thread = Thread::new();
    let context = thread.context;
    assert_eq!(window_mkey_config(SECONDARY, 1), Err(Failed), "there is no window");
    assert_eq!(answering(4, || window_config(SECONDARY, 1, 1)), Err(Failed));
    assert_eq!(thread.key(1), 0, "the key of a window that is not there");
    window_config(SECONDARY, 1, 0x11).unwrap();
    window_mkey_config(PRIMARY, 0x22).unwrap();
    assert_eq!([0, 1, 2].map(|window| thread.key(window)), [0, 0x11, 0x22]);
    assert_eq!(answering(4, || with_context::window_config(context, 0, 1)), Status::Failed);
    assert_eq!(with_context::window_config(context, 0, 0x33), Status::Success);
    assert_eq!(thread.key(0), 0x33);
    assert_eq!(with_context::window_mkey_config(context, 0x44), Status::Success);
    assert_eq!([0, 1, 2].map(|window| thread.key(window)), [0x44, 0x11, 0x22]);
}

#[test]
fn window_calls_find_and_copy_host_memory() {
    let context = Thread::new().context;
    // Window 0 maps the test's memory at its own addresses.
    window_config(PRIMARY, 0, 1).unwrap();
    let memory: &'static [AtomicU64; 2] = Box::leak(Box::new(from_fn(|_| AtomicU64::new(0))));
    let host = memory.as_ptr().expose_provenance() as u64;
    let word = || memory[0].load(Ordering::Relaxed).to_le_bytes();

    assert_eq!(window_ptr_acquire(PRIMARY, host), Ok(host));
    assert_eq!(window_ptr_acquire(PRIMARY, BEYOND), Err(Failed));
    window_copy_to_host(PRIMARY, host, &[1, 2, 3]).unwrap();
    assert_eq!(word(), [1, 2, 3, 0, 0, 0, 0, 0]);
    let mut bytes = [0; 2];
    window_copy_from_host(PRIMARY, &mut bytes, host + 1).unwrap();
    assert_eq!(bytes, [2, 3]);
    assert_eq!(window_copy_to_host(PRIMARY, BEYOND, &bytes), Err(Failed));
    assert_eq!(window_copy_from_host(PRIMARY, &mut bytes, BEYOND), Err(Failed));
    assert_eq!(
        window_copy_from_host(SECONDARY, &mut bytes, host),
        Err(Failed),
        "there is no window"
    );

    let mut address = 5;
    let found = with_context::window_ptr_acquire(context, BEYOND, &mut address);
    assert_eq!((found, address), (Status::Failed, 5));
    let found = with_context::window_ptr_acquire(context, host, &mut address);
    assert_eq!((found, address), (Status::Success, host));
    assert_eq!(with_context::window_copy_to_host(context, host, &[7, 8]), Status::Success);
    assert_eq!(word(), [7, 8, 3, 0, 0, 0, 0, 0]);
    let copied = with_context::window_copy_from_host(context, &mut bytes, host);
    assert_eq!((copied, bytes), (Status::Success, [7, 8]));
    assert_eq!(with_context::window_copy_to_host(context, BEYOND, &bytes), Status::Failed);
    assert_eq!(with_context::window_copy_from_host(context, &mut bytes, BEYOND), Status::Failed);
}

#[test]
fn thread_calls_return_id_storage_and_errno() {
    let memory: &'static [u64; 4] = Box::leak(Box::new([7, 0x40, 0x61, 0]));
    let address = memory.as_ptr().expose_provenance() as u64;
    let context = enter(ThreadContext::at(0, 0, 0).with_metadata(address));
    assert_eq!(get_thread_ctx().metadata_parameter(), address);
    assert_eq!(get_current_thread(), Some(ThreadMetadata::new(7, 0x40, "a")));
    assert_eq!(with_context::get_thread_id(context), 7);
    assert_eq!(with_context::get_thread_local_storage(context), 0x40);
    assert_eq!(with_context::get_errno(context), 7);
    assert_eq!(with_context::get_and_rst_errno(context), 7);
    assert_eq!(with_context::get_errno(context), 0);
    let context = enter(ThreadContext::at(0, 0, 0));
    with_context::rst_errno(context);
    assert_eq!(with_context::get_errno(context), 0);
    assert_eq!(get_current_thread(), None);
    assert_eq!(with_context::get_thread_id(context), 0);
    assert_eq!(with_context::get_thread_local_storage(context), 0);
}
