//! The registers of an outbox, a page of 4 KiB of little-endian 64-bit words, and the words that
//! ring its doorbells.
//!
//! A doorbell is rung by a store to its register after [`UCTL_BUSY`] of [`UCTL`] has been seen 0.
//! A number that is wider than its field is cut off, as the C macros do not: those let it run into
//! the next field.

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

#[cfg(test)]
mod tests {
    use super::*;

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
