//! The UAR: a page of device registers for doorbells.
//!
//! A [`UarPage`] is a mapped page. A send queue takes a [`SendDoorbell`] from it: either a
//! BlueFlame register, which only that queue uses, because two threads' copies must not mix; or a
//! plain 8-byte doorbell, which any number of queues may share. Nothing here reads a register.
#![allow(unsafe_code, reason = "writes device registers through raw pointers")]

pub mod barrier;

use alloc::sync::Arc;
use core::fmt;
use core::mem::offset_of;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, Ordering};

use verbless_prm::hot::{self, CqArm, CqArmDoorbell, WQEBB};

use crate::ring::{LayoutError, SharedMemory, Wqe};
use crate::trace::{Event, event};
use verbless_prm::number::Cqn;

/// Bytes of a UAR page.
const PAGE: usize = hot::UarPage::BYTES;
/// The first BlueFlame register of a page.
const BLUEFLAME: usize = offset_of!(hot::UarPage, blueflame_0);
/// Bytes of the smallest BlueFlame buffer, of which a register has two.
const BLUEFLAME_BUFFER: usize = 256;

/// First arm word: sequence number 1, since 0 equals a fresh record.
pub const FIRST_ARM: u32 = 1 << 28;

/// A UAR page of 4096 bytes. Clones refer to the same page.
#[derive(Clone)]
pub struct UarPage(Arc<Page>);

struct Page {
    memory: SharedMemory,
    /// One bit for each BlueFlame register (256 bytes) that a queue has taken.
    taken: AtomicU32,
}

impl UarPage {
    /// The page that `memory` maps: a device's, or ordinary memory in a test.
    ///
    /// # Safety
    /// The page becomes a `UarPage` only once. While the `UarPage` or a doorbell of it lives,
    /// nothing else in this process stores to the page, not even through another handle to the
    /// memory. One exception: a second `UarPage` of a device's page that only arms CQs, a store
    /// that a clone may make too. Their stores to its registers are device accesses, not atomic
    /// ones; code that accesses ordinary memory in place of the registers runs on the thread that
    /// rings.
    ///
    /// ```compile_fail,E0133
    /// # use verbless_ring::{ring::SharedMemory, uar::UarPage};
    /// fn page_in_safe_code(memory: SharedMemory) -> UarPage {
    ///     UarPage::new(memory).unwrap()
    /// }
    /// ```
    pub unsafe fn new(memory: SharedMemory) -> Result<Self, LayoutError> {
        if memory.len() < PAGE || !memory.address().is_multiple_of(PAGE as u64) {
            return Err(LayoutError::new(
                "UAR page",
                "is not a whole aligned page",
                memory.len() as u64,
            ));
        }
        Ok(Self(Arc::new(Page { memory, taken: AtomicU32::new(0) })))
    }

    /// The BlueFlame register at byte `offset` of the page, with two buffers of `buffer` bytes each
    /// (a power of two from 256; half of the size in the capability `log_bf_reg_size`), for one
    /// queue until it is dropped.
    ///
    /// The page must be mapped write-combining for a copy to arrive as one write; see
    /// [`UarPage::doorbell`] if it is not.
    pub fn blueflame(&self, offset: usize, buffer: usize) -> Result<SendDoorbell, LayoutError> {
        if !buffer.is_power_of_two() || !(BLUEFLAME_BUFFER..=1024).contains(&buffer) {
            return Err(LayoutError::new(
                "BlueFlame buffer",
                "is not 256, 512 or 1024",
                buffer as u64,
            ));
        }
        if offset < BLUEFLAME || offset > PAGE - 2 * buffer || !offset.is_multiple_of(2 * buffer) {
            return Err(LayoutError::new(
                "BlueFlame register",
                "is not in the page's second half",
                offset as u64,
            ));
        }
        let bits = (((1u32 << (2 * buffer / 256)) - 1) << ((offset - BLUEFLAME) / 256)) & 0xff;
        // Takes all bits or none.
        let take = |taken| (taken & bits == 0).then_some(taken | bits);
        if self.0.taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_err() {
            return Err(LayoutError::new(
                "BlueFlame register",
                "is another queue's",
                offset as u64,
            ));
        }
        Ok(SendDoorbell {
            next: self.at(offset).as_ptr().expose_provenance(),
            buffer,
            bits,
            page: self.clone(),
        })
    }

    /// The doorbell register at 0x800 of a page, without BlueFlame: for non-cached pages, and for
    /// several queues. On a page with BlueFlame registers it is part of the first one, where
    /// another queue's copy and this doorbell would mix.
    pub fn doorbell(&self) -> SendDoorbell {
        SendDoorbell {
            next: self.at(BLUEFLAME).as_ptr().expose_provenance(),
            buffer: 0,
            bits: 0,
            page: self.clone(),
        }
    }

    /// Arms a CQ: writes the doorbell `word`, arm word in the upper half and CQ number in the
    /// lower.
    #[inline]
    pub(crate) fn arm_cq(&self, word: u64) {
        // SAFETY: inside the page, aligned.
        unsafe { store(self.at(offset_of!(hot::UarPage, cq_arm)), word.to_be()) };
    }

    /// Arms a new CQ that another program polls, for its first CQE. The second word of its record
    /// must be [`FIRST_ARM`].
    pub fn arm_new_cq(&self, cqn: Cqn) {
        let arm = CqArm::from_bits(FIRST_ARM);
        barrier::before_doorbell();
        self.arm_cq(u64::from_be_bytes(*CqArmDoorbell::new(arm, cqn.0).as_bytes()));
        barrier::after_doorbell();
    }

    /// The register at this byte offset (modulo the page).
    fn at(&self, offset: usize) -> NonNull<u8> {
        // SAFETY: inside the page.
        unsafe { self.0.memory.base().add(offset % PAGE) }
    }
}

impl fmt::Debug for UarPage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "UarPage({:?}, taken {:#x})", self.0.memory, self.0.taken.load(Ordering::Relaxed))
    }
}

/// The WQEs that BlueFlame copies: those that fit the smallest buffer, or none.
#[derive(Clone, Copy)]
pub(crate) struct BlueFlameLimit(u32);

impl BlueFlameLimit {
    /// None.
    pub(crate) const NONE: Self = Self(0);
    /// Allows WQEs of 2 to 16 `ds`; a WQE of only a control segment is complete with the doorbell.
    const BUFFER: Self = Self((BLUEFLAME_BUFFER / 16) as u32 - 1);

    /// Whether a WQE of `ds` segments is short enough.
    #[inline(always)]
    pub(crate) fn admit(self, ds: u32) -> Option<BlueFlameLen> {
        (ds.wrapping_sub(2) < self.0).then_some(BlueFlameLen { ds })
    }
}

/// The length of a WQE that fits every BlueFlame buffer.
#[derive(Clone, Copy)]
pub(crate) struct BlueFlameLen {
    ds: u32,
}

/// The doorbell register of one send queue.
pub struct SendDoorbell {
    /// Address of the next doorbell: the start of one of the register's two buffers.
    next: usize,
    /// Bytes of a buffer; 0 for a plain doorbell, which does not alternate.
    buffer: usize,
    bits: u32,
    page: UarPage,
}

impl SendDoorbell {
    /// Which WQEs may be copied here.
    pub(crate) fn copy_limit(&self) -> BlueFlameLimit {
        if self.buffer == 0 { BlueFlameLimit::NONE } else { BlueFlameLimit::BUFFER }
    }

    /// The address of this doorbell; makes the register's other buffer the next one. The register
    /// is aligned to the size of two buffers, so one bit of the address selects the buffer.
    #[inline(always)]
    fn alternate(&mut self) -> NonNull<u8> {
        let at = core::ptr::with_exposed_provenance_mut(self.next);
        self.next ^= self.buffer;
        // SAFETY: an address in a page.
        unsafe { NonNull::new_unchecked(at) }
    }

    /// Rings: writes `word`, the first 8 bytes of the last WQE in ring byte order.
    #[inline(always)]
    pub(crate) fn ring(&mut self, word: u64) {
        // SAFETY: a buffer's start inside the page.
        unsafe { store(self.alternate(), word) };
    }

    /// BlueFlame: copies `wqe` from the ring, in whole WQEBBs.
    ///
    /// It copies 8 bytes at a time: every target has such accesses, and the store buffer forwards
    /// the WQE's words to such loads, where wider loads would stall. The write-combining buffer
    /// makes one write of each WQEBB; on Arm only if nothing comes between the stores.
    #[inline(always)]
    pub(crate) fn copy(&mut self, wqe: &Wqe<'_>, copied: BlueFlameLen) {
        const WORDS: usize = WQEBB / 8;
        let at = self.alternate();
        let mut word = 0;
        let end = copied.ds.div_ceil(4) as usize * WORDS;
        while word < end {
            // SAFETY: `BlueFlameLimit` admits at most `BLUEFLAME_BUFFER` bytes, a multiple of a
            // WQEBB: no buffer is smaller, and the page has as many bytes from a plain doorbell on.
            unsafe { store_wqebb(at.add(8 * word), |i| wqe.load_word(word + i)) };
            word += WORDS;
        }
    }
}

impl Drop for SendDoorbell {
    fn drop(&mut self) {
        self.page.0.taken.fetch_and(!self.bits, Ordering::Relaxed);
    }
}

/// # Safety
/// `at` is 8 bytes of a page, aligned.
#[inline(always)]
unsafe fn store(at: NonNull<u8>, word: u64) {
    event(Event::Uar((at.addr().get() % PAGE) as u32));
    // SAFETY: promised.
    unsafe { at.cast::<u64>().write_volatile(word) }
}

/// Stores the eight words of a WQEBB.
///
/// # Safety
/// `at` is 64 bytes of a page, aligned.
#[cfg(not(target_arch = "aarch64"))]
#[inline(always)]
unsafe fn store_wqebb(at: NonNull<u8>, word: impl Fn(usize) -> u64) {
    for i in 0..WQEBB / 8 {
        // SAFETY: promised.
        unsafe { store(at.add(8 * i), word(i)) };
    }
}

/// Stores the eight words of a WQEBB by four consecutive instructions. If a load or another
/// instruction comes between, Neoverse cores write out a partial buffer, and the device gets the
/// WQE in several writes (Linux's `__iowrite64_copy` for arm64).
///
/// # Safety
/// `at` is 64 bytes of a page, aligned.
#[cfg(target_arch = "aarch64")]
#[inline(always)]
unsafe fn store_wqebb(at: NonNull<u8>, word: impl Fn(usize) -> u64) {
    event(Event::Uar((at.addr().get() % PAGE) as u32));
    let words: [u64; WQEBB / 8] = core::array::from_fn(word);
    // SAFETY: 64 bytes of the page, as promised.
    unsafe {
        core::arch::asm!(
            "stp {0}, {1}, [{at}]",
            "stp {2}, {3}, [{at}, #16]",
            "stp {4}, {5}, [{at}, #32]",
            "stp {6}, {7}, [{at}, #48]",
            in(reg) words[0],
            in(reg) words[1],
            in(reg) words[2],
            in(reg) words[3],
            in(reg) words[4],
            in(reg) words[5],
            in(reg) words[6],
            in(reg) words[7],
            at = in(reg) at.as_ptr(),
            options(nostack, preserves_flags),
        );
    }
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use super::*;

    fn page() -> UarPage {
        // SAFETY: only this page has the memory.
        unsafe { UarPage::new(SharedMemory::zeroed(PAGE)) }.unwrap()
    }

    #[test]
    fn blueflame_register_is_exclusive_until_drop() {
        let page = page();
        let first = page.blueflame(0x800, 256).unwrap();
        assert_eq!(page.blueflame(0x800, 256).err().unwrap().why, "is another queue's");
        let second = page.blueflame(0xa00, 256).unwrap();
        assert!(page.blueflame(0x800, 512).is_err());
        drop((first, second));
        assert!(page.blueflame(0x800, 512).is_ok());
    }

    /// Linux gives a user two registers of a page (`MLX5_NON_FP_BFREGS_PER_UAR`), `bf_reg_size`
    /// apart; each has two buffers, and doorbells alternate between them.
    #[test]
    fn doorbells_alternate_between_two_buffers() {
        let page = page();
        for (buffer, registers) in [(256, [0x800, 0xa00]), (512, [0x800, 0xc00])] {
            let mut both = registers.map(|at| page.blueflame(at, buffer).unwrap());
            for turn in 0..6 {
                for (doorbell, at) in both.iter_mut().zip(registers) {
                    crate::trace::take();
                    doorbell.ring(1);
                    let expected = at + turn % 2 * buffer;
                    assert_eq!(crate::trace::take(), [Event::Uar(expected as u32)]);
                }
            }
        }
        let mut plain = page.doorbell();
        for _ in 0..3 {
            crate::trace::take();
            plain.ring(1);
            assert_eq!(crate::trace::take(), [Event::Uar(0x800)]);
        }
    }

    #[test]
    fn register_outside_page_is_rejected() {
        for (offset, buffer) in [
            (0, 256),
            (0x700, 256),
            (0xf00, 256),
            (0x900, 256),
            (0x800, 0),
            (0x800, 2048),
            (usize::MAX, 256),
        ] {
            assert!(page().blueflame(offset, buffer).is_err(), "{offset:#x} {buffer}");
        }
    }

    #[test]
    fn page_fits_disjoint_blueflame_registers() {
        let all = [0x800, 0x900, 0xa00, 0xb00, 0xc00, 0xd00, 0xe00, 0xf00];
        for (buffer, expected) in
            [(256, &[0x800, 0xa00, 0xc00, 0xe00][..]), (512, &[0x800, 0xc00]), (1024, &[0x800])]
        {
            let page = page();
            let taken: Vec<_> = all
                .into_iter()
                .filter_map(|at| Some((at, page.blueflame(at, buffer).ok()?)))
                .collect();
            let places: Vec<_> = taken.iter().map(|(at, _)| *at).collect();
            assert_eq!(places, expected, "buffers of {buffer}");
        }
        // Of registers of different sizes, only those that overlap are refused.
        let page = page();
        let small = page.blueflame(0xa00, 256).unwrap();
        assert!(page.blueflame(0x800, 512).is_err());
        let large = page.blueflame(0xc00, 512).unwrap();
        assert!(page.blueflame(0xe00, 256).is_err());
        assert!(page.blueflame(0x800, 256).is_ok());
        drop((small, large));
        assert!(page.blueflame(0x800, 1024).is_ok());
    }

    #[test]
    fn arm_new_cq_writes_first_arm_doorbell() {
        let page = page();
        page.arm_new_cq(Cqn(0x12_3456));
        let mut word = [0; 8];
        page.0.memory.read_at(offset_of!(hot::UarPage, cq_arm), &mut word).unwrap();
        // Sequence number 1 in bits 29:28, any completion, index 0; then the CQ's number.
        assert_eq!(word, [0x10, 0, 0, 0, 0, 0x12, 0x34, 0x56]);
        assert_eq!(FIRST_ARM.to_be_bytes(), word[..4]);
    }
}
