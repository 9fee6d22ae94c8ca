//! The registers of an outbox, which is a page of little-endian 64-bit words, and the words that
//! ring its doorbells.
//!
//! A thread rings a doorbell by a store to its register, after it has read [`UCTL_BUSY`] of
//! [`UCTL`] as 0. A number wider than its field is truncated; the C macros instead let it overflow
//! into the next field.

use core::hint::spin_loop;
use core::marker::PhantomData;

use crate::mmio;

/// Bytes of an outbox page.
pub const PAGE_BYTES: usize = 4096;

/// Offset of the control word: [`UCTL_BUSY`], [`UCTL_ERROR`], version in bits 39:32.
pub const UCTL: usize = 0x000;
/// Offset of the result of a read of an emulated doorbell.
pub const BUFFER: usize = 0x040;
/// Offset of the doorbell [`cq_arm`].
pub const CQ_DB: usize = 0x100;
/// Offset of the doorbell [`eq_update`] that also arms the EQ.
pub const EQ_DB_REARM: usize = 0x140;
/// Offset of the doorbell [`eq_update`] that does not arm the EQ.
pub const EQ_DB_NO_REARM: usize = 0x180;
/// Offset of the doorbell [`send`].
pub const SXD_DB: usize = 0x1c0;
/// Offset of the doorbell [`emulation`] that arms a context.
pub const EMU_CAP: usize = 0x200;
/// Offset of the doorbell [`emulation`] that triggers a context.
pub const EMU_CAP_TRIGGER: usize = 0x240;
/// Offset of the doorbell [`zero_cqe`].
pub const RXT_DB: usize = 0x280;
/// Offset of the doorbell [`emulated_read`].
pub const RXC_RD: usize = 0x300;

/// A doorbell of this outbox is in progress: do not ring another.
pub const UCTL_BUSY: u64 = 1 << 0;
/// The last doorbell failed.
pub const UCTL_ERROR: u64 = 1 << 1;

/// `low` in bits 23:0 and `high` in `bits` bits from 32 on.
const fn word(low: u32, high: u32, bits: u32) -> u64 {
    (low & 0xff_ffff) as u64 | ((high & (u32::MAX >> (32 - bits))) as u64) << 32
}

/// The word for [`CQ_DB`]: arms CQ `cqn` with consumer index `ci` (24 bits each).
pub const fn cq_arm(cqn: u32, ci: u32) -> u64 {
    word(cqn, ci, 24)
}

/// The word for [`EQ_DB_REARM`] and [`EQ_DB_NO_REARM`]: consumer index `ci` of EQ `eqn` (26 and 24
/// bits).
pub const fn eq_update(eqn: u32, ci: u32) -> u64 {
    word(eqn, ci, 26)
}

/// The word for [`SXD_DB`]: WQEs of QP or SQ `number` (24 bits) up to the WQEBB index `pi` are
/// posted.
pub const fn send(number: u32, pi: u16) -> u64 {
    word(pi as u32, number, 24)
}

/// The word for [`EMU_CAP`] and [`EMU_CAP_TRIGGER`]: emulation context `context` (26 bits) and CQ
/// `cqn` (24 bits).
pub const fn emulation(cqn: u32, context: u32) -> u64 {
    word(cqn, context, 26)
}

/// The word for [`RXT_DB`]: a CQE of zeros on CQ `cqn` (24 bits), which triggers the CQ's target: a
/// thread, or an EQ and its MSI-X.
pub const fn zero_cqe(cqn: u32) -> u64 {
    word(cqn, 0, 24)
}

/// The word for [`RXC_RD`]: reads the value of the emulated doorbell at `address` (26 bits) into
/// [`BUFFER`].
pub const fn emulated_read(address: u32) -> u64 {
    ((address & 0x3ff_ffff) as u64) << 2
}

/// An outbox of the thread's process.
///
/// An outbox has one doorbell in progress at a time: before each, the thread reads [`UCTL`] until
/// the previous one is done. A doorbell for a queue on another UAR than the outbox's sets
/// [`errno`](crate::ThreadContext::errno) and has no other effect.
///
/// Two threads that use the same outbox at the same time may lose a doorbell: each thread needs its
/// own outbox, or a [`SpinLock`](crate::SpinLock) around a shared one.
#[derive(Debug, Clone, Copy)]
pub struct Outbox<'a> {
    page: u64,
    /// An outbox belongs to its process.
    process: PhantomData<&'a ()>,
}

impl Outbox<'_> {
    /// The outbox at this page, from a thread context.
    pub(crate) const fn at(page: u64) -> Self {
        Self { page, process: PhantomData }
    }

    /// The address of the outbox's page.
    pub const fn address(&self) -> u64 {
        self.page
    }

    const fn register(&self, offset: usize) -> u64 {
        self.page + offset as u64
    }

    /// The control word: [`UCTL_BUSY`], [`UCTL_ERROR`]. On the model, a read that returns
    /// [`UCTL_BUSY`] clears it.
    pub fn control(&self) -> u64 {
        mmio::read64(self.register(UCTL))
    }

    /// Waits until no doorbell is in progress.
    fn wait(&self) {
        while self.control() & UCTL_BUSY != 0 {
            spin_loop();
        }
    }

    fn ring(&self, register: usize, word: u64) {
        self.wait();
        mmio::before_doorbell();
        mmio::write64(self.register(register), word);
    }

    /// Arms CQ `cqn` for the next CQE, with consumer index `ci` (`flexio_dev_cq_arm`). A CQE
    /// already beyond `ci` makes an event at once, so that none is missed.
    pub fn arm_cq(&self, cqn: u32, ci: u32) {
        self.ring(CQ_DB, cq_arm(cqn, ci));
    }

    /// Updates the consumer index of EQ `eqn` to `ci` (`flexio_dev_eq_update_ci`).
    pub fn update_eq(&self, eqn: u32, ci: u32) {
        self.ring(EQ_DB_NO_REARM, eq_update(eqn, ci));
    }

    /// Updates the consumer index of EQ `eqn` to `ci`, and arms the EQ: the next EQE makes an
    /// event.
    pub fn arm_eq(&self, eqn: u32, ci: u32) {
        self.ring(EQ_DB_REARM, eq_update(eqn, ci));
    }

    /// Rings for QP or SQ `number`: WQEs up to the WQEBB index `pi` are posted
    /// (`flexio_dev_qp_sq_ring_db`). The doorbell suffices: the queue's record need not be updated.
    pub fn send(&self, number: u32, pi: u16) {
        self.ring(SXD_DB, send(number, pi));
    }

    /// Writes a CQE of zeros to CQ `cqn` (`flexio_dev_zcqe_gen`, `flexio_dev_msix_send`): it starts
    /// the CQ's thread, or makes its EQE and MSI-X.
    pub fn trigger_cq(&self, cqn: u32) {
        self.ring(RXT_DB, zero_cqe(cqn));
    }

    /// Arms context `context` of an emulated doorbell with CQ `cqn` (`flexio_dev_db_ctx_arm`).
    pub fn arm_emulated(&self, cqn: u32, context: u32) {
        self.ring(EMU_CAP, emulation(cqn, context));
    }

    /// Triggers context `context` of an emulated doorbell with CQ `cqn`
    /// (`flexio_dev_db_ctx_force_trigger`).
    pub fn trigger_emulated(&self, cqn: u32, context: u32) {
        self.ring(EMU_CAP_TRIGGER, emulation(cqn, context));
    }

    /// The value of an emulated doorbell (`flexio_dev_read_db_value`).
    pub fn read_emulated(&self, address: u32) -> u32 {
        self.ring(RXC_RD, emulated_read(address));
        self.wait();
        mmio::read64(self.register(BUFFER)) as u32
    }
}

#[cfg(test)]
mod tests {
    use core::sync::atomic::{AtomicU64, Ordering};

    use super::*;
    use crate::context::ThreadContext;

    /// Two pages of registers in memory: the context's outbox is the second.
    struct Pages([AtomicU64; 1024]);

    impl Pages {
        fn new() -> Self {
            Self([const { AtomicU64::new(0) }; 1024])
        }

        fn context(&self) -> ThreadContext {
            ThreadContext::at(self.0.as_ptr().expose_provenance() as u64, 0, 0)
        }

        fn register(&self, offset: usize) -> u64 {
            self.0[(PAGE_BYTES + offset) / 8].load(Ordering::Relaxed)
        }
    }

    #[test]
    fn doorbells_store_words_in_their_registers() {
        let pages = Pages::new();
        let context = pages.context();
        let outbox = context.outbox();
        outbox.arm_cq(1, 2);
        outbox.update_eq(3, 4);
        outbox.arm_eq(5, 6);
        outbox.send(7, 8);
        outbox.trigger_cq(9);
        outbox.arm_emulated(10, 11);
        outbox.trigger_emulated(12, 13);
        assert_eq!(outbox.read_emulated(3), 0);
        let expected = [
            (CQ_DB, 2 << 32 | 1),
            (EQ_DB_NO_REARM, 4 << 32 | 3),
            (EQ_DB_REARM, 6 << 32 | 5),
            (SXD_DB, 7 << 32 | 8),
            (RXT_DB, 9),
            (EMU_CAP, 11 << 32 | 10),
            (EMU_CAP_TRIGGER, 13 << 32 | 12),
            (RXC_RD, 3 << 2),
        ];
        for (register, word) in expected {
            assert_eq!(pages.register(register), word, "register {register:#x}");
        }
    }

    #[test]
    fn doorbell_waits_while_uctl_is_busy() {
        let pages = Pages::new();
        let uctl = &pages.0[(PAGE_BYTES + UCTL) / 8];
        uctl.store(UCTL_BUSY, Ordering::Relaxed);
        std::thread::scope(|scope| {
            let rings = scope.spawn(|| pages.context().outbox().send(1, 2));
            std::thread::sleep(std::time::Duration::from_millis(20));
            assert_eq!(pages.register(SXD_DB), 0, "the doorbell did not wait");
            uctl.store(UCTL_ERROR, Ordering::Relaxed);
            rings.join().unwrap();
        });
        assert_eq!(pages.register(SXD_DB), 1 << 32 | 2);
    }

    #[test]
    fn doorbell_fields_match_headers() {
        assert_eq!(cq_arm(0x12_3456, 0xab_cdef), 0x00ab_cdef_0012_3456);
        assert_eq!(eq_update(0x12_3456, 0x3ab_cdef), 0x03ab_cdef_0012_3456);
        assert_eq!(send(0x12_3456, 0xfedc), 0x0012_3456_0000_fedc);
        assert_eq!(emulation(0x12_3456, 0x3ab_cdef), 0x03ab_cdef_0012_3456);
        assert_eq!(zero_cqe(0x12_3456), 0x12_3456);
    }

    #[test]
    fn wide_numbers_stay_within_their_field() {
        assert_eq!(cq_arm(u32::MAX, u32::MAX), 0x00ff_ffff_00ff_ffff);
        assert_eq!(eq_update(u32::MAX, u32::MAX), 0x03ff_ffff_00ff_ffff);
        assert_eq!(send(u32::MAX, u16::MAX), 0x00ff_ffff_0000_ffff);
        assert_eq!(zero_cqe(u32::MAX), 0xff_ffff);
    }
}
