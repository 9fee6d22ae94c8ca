//! Software state of each WQE until it completes. Only the driver writes it.

use alloc::boxed::Box;
use alloc::vec;

/// One entry for each WQEBB or WQE of a ring, found by its index modulo the ring.
pub(crate) struct Slots<T> {
    slots: Box<[T]>,
    /// Masks a byte offset: one less than the number of slots, a power of two, times the bytes of a
    /// slot.
    mask: u32,
}

impl<T: Copy + Default> Slots<T> {
    /// log2 of an entry's bytes: a shift turns an index into an offset.
    const LOG_BYTES: u32 = {
        assert!(size_of::<T>().is_power_of_two() && size_of::<T>() <= 16);
        size_of::<T>().ilog2()
    };

    /// At least `count` slots, at most 2^16.
    pub(crate) fn new(count: u32) -> Self {
        Self::filled(count, T::default())
    }

    /// Slots for `count` entries, each with this value.
    pub(crate) fn filled(count: u32, value: T) -> Self {
        let count = count.next_power_of_two().min(1 << 16);
        let mask = (count - 1) << Self::LOG_BYTES;
        Self { slots: vec![value; count as usize].into(), mask }
    }

    /// Sets every slot.
    pub(crate) fn fill(&mut self, value: T) {
        self.slots.fill(value);
    }

    /// The slot of `index`.
    #[inline(always)]
    pub(crate) fn get(&self, index: u32) -> &T {
        self.at(index << Self::LOG_BYTES)
    }

    /// The slot of the index in the upper 16 bits of `word`.
    #[inline(always)]
    pub(crate) fn get_upper(&self, word: u32) -> &T {
        self.at(word >> (16 - Self::LOG_BYTES))
    }

    #[inline(always)]
    fn at(&self, offset: u32) -> &T {
        let offset = (offset & self.mask) as usize;
        // SAFETY: the masked offset is at most that of the last slot, and a multiple of a slot's
        // bytes.
        unsafe { &*self.slots.as_ptr().byte_add(offset) }
    }

    /// Sets the slot of `index`.
    #[inline(always)]
    pub(crate) fn set(&mut self, index: u32, value: T) {
        let offset = ((index << Self::LOG_BYTES) & self.mask) as usize;
        // SAFETY: as in `at`.
        unsafe { *self.slots.as_mut_ptr().byte_add(offset) = value }
    }
}
