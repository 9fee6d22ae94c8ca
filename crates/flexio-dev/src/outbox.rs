//! The registers of an outbox, a page of 4 KiB of little-endian 64-bit words, and the words that
//! ring its doorbells.
//!
//! A doorbell is rung by a store to its register after [`UCTL_BUSY`] of [`UCTL`] has been seen 0.
//! A number that is wider than its field is cut off, as the C macros do not: those let it run into
//! the next field.

use core::hint::spin_loop;
use core::marker::PhantomData;

use crate::mmio;

/// Bytes of an outbox page.
pub const PAGE_BYTES: usize = 4096;

/// Offset of the control word: [`UCTL_BUSY`], [`UCTL_ERROR`], version in bits 39:32.
pub const UCTL: usize = 0x000;
/// Offset of what a read of an emulated doorbell returns.
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

/// A doorbell of this outbox is under way: another must not be rung.
pub const UCTL_BUSY: u64 = 1 << 0;
/// The last doorbell failed.
pub const UCTL_ERROR: u64 = 1 << 1;

/// `low` in bits 23:0 and `high` in `bits` bits from 32 on.
const fn word(low: u32, high: u32, bits: u32) -> u64 {
    (low & 0xff_ffff) as u64 | ((high & (u32::MAX >> (32 - bits))) as u64) << 32
}

/// The word for [`CQ_DB`]: arms CQ `cqn`, of which `ci` CQEs are consumed (24 bits each).
pub const fn cq_arm(cqn: u32, ci: u32) -> u64 {
    word(cqn, ci, 24)
}

/// The word for [`EQ_DB_REARM`] and [`EQ_DB_NO_REARM`]: `ci` EQEs of EQ `eqn` are consumed
/// (26 and 24 bits).
pub const fn eq_update(eqn: u32, ci: u32) -> u64 {
    word(eqn, ci, 26)
}

/// The word for [`SXD_DB`]: QP or SQ `number` (24 bits) has WQEs up to the WQEBB index `pi`.
pub const fn send(number: u32, pi: u16) -> u64 {
    word(pi as u32, number, 24)
}

/// The word for [`EMU_CAP`] and [`EMU_CAP_TRIGGER`]: emulation context `context` (26 bits) and CQ
/// `cqn` (24 bits).
pub const fn emulation(cqn: u32, context: u32) -> u64 {
    word(cqn, context, 26)
}

/// The word for [`RXT_DB`]: a CQE of zeros on CQ `cqn` (24 bits), which wakes what waits for it: a
/// thread, or an EQ and its MSI-X.
pub const fn zero_cqe(cqn: u32) -> u64 {
    word(cqn, 0, 24)
}

/// The word for [`RXC_RD`]: the value of the emulated doorbell at `address` (26 bits) is read into
/// [`BUFFER`].
pub const fn emulated_read(address: u32) -> u64 {
    ((address & 0x3ff_ffff) as u64) << 2
}

/// An outbox of the thread's process.
///
/// One doorbell of an outbox is under way at a time: before each, [`UCTL`] is read until the one
/// before is done. A doorbell for a queue that the outbox does not reach sets
/// [`errno`](crate::ThreadContext::errno) and does nothing.
///
/// Two threads that ring by the same outbox at the same time may lose a doorbell: each thread needs
/// one of its own, or a [`SpinLock`](crate::SpinLock) around it.
#[derive(Debug, Clone, Copy)]
pub struct Outbox<'a> {
    page: u64,
    /// An outbox belongs to its process.
    process: PhantomData<&'a ()>,
}

impl Outbox<'_> {
    /// The outbox whose page is there, by a thread context.
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

    /// The control word: [`UCTL_BUSY`], [`UCTL_ERROR`]. To read it is what makes a busy outbox
    /// free.
    pub fn control(&self) -> u64 {
        mmio::read64(self.register(UCTL))
    }

    /// Waits until no doorbell is under way.
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

    /// The next CQE of CQ `cqn`, of which `ci` are consumed, makes an event (`flexio_dev_cq_arm`).
    /// CQEs that are behind `ci` already make one at once, so that none is missed.
    pub fn arm_cq(&self, cqn: u32, ci: u32) {
        self.ring(CQ_DB, cq_arm(cqn, ci));
    }

    /// `ci` EQEs of EQ `eqn` are consumed (`flexio_dev_eq_update_ci`).
    pub fn update_eq(&self, eqn: u32, ci: u32) {
        self.ring(EQ_DB_NO_REARM, eq_update(eqn, ci));
    }

    /// Reports that `ci` EQEs of EQ `eqn` are consumed, and arms it: the next EQE makes an event.
    pub fn arm_eq(&self, eqn: u32, ci: u32) {
        self.ring(EQ_DB_REARM, eq_update(eqn, ci));
    }

    /// QP or SQ `number` has WQEs up to the WQEBB index `pi` (`flexio_dev_qp_sq_ring_db`). The
    /// doorbell says it all: the queue's record may be left alone.
    pub fn send(&self, number: u32, pi: u16) {
        self.ring(SXD_DB, send(number, pi));
    }

    /// Writes a CQE of zeros to CQ `cqn` (`flexio_dev_zcqe_gen`, `flexio_dev_msix_send`): it starts
    /// the thread, or makes the EQE and its MSI-X, that the CQ is made for.
    pub fn trigger_cq(&self, cqn: u32) {
        self.ring(RXT_DB, zero_cqe(cqn));
    }

    /// Arms context `context` of an emulated doorbell, whose CQ is `cqn` (`flexio_dev_db_ctx_arm`).
    pub fn arm_emulated(&self, cqn: u32, context: u32) {
        self.ring(EMU_CAP, emulation(cqn, context));
    }

    /// Triggers context `context` of an emulated doorbell, whose CQ is `cqn`
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

    /// Two pages of registers that are memory: the context's outbox is the second.
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
    fn each_doorbell_is_a_store_to_its_register() {
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
    fn no_doorbell_is_written_while_another_is_under_way() {
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
    fn doorbells_have_their_fields_where_the_headers_have_them() {
        assert_eq!(cq_arm(0x12_3456, 0xab_cdef), 0x00ab_cdef_0012_3456);
        assert_eq!(eq_update(0x12_3456, 0x3ab_cdef), 0x03ab_cdef_0012_3456);
        assert_eq!(send(0x12_3456, 0xfedc), 0x0012_3456_0000_fedc);
        assert_eq!(emulation(0x12_3456, 0x3ab_cdef), 0x03ab_cdef_0012_3456);
        assert_eq!(zero_cqe(0x12_3456), 0x12_3456);
    }

    #[test]
    fn a_number_that_is_too_wide_does_not_reach_the_next_field() {
        assert_eq!(cq_arm(u32::MAX, u32::MAX), 0x00ff_ffff_00ff_ffff);
        assert_eq!(eq_update(u32::MAX, u32::MAX), 0x03ff_ffff_00ff_ffff);
        assert_eq!(send(u32::MAX, u16::MAX), 0x00ff_ffff_0000_ffff);
        assert_eq!(zero_cqe(u32::MAX), 0xff_ffff);
    }
}
