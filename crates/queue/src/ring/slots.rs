//! What we remember of each WQE until it completes. Only we write here.

/// One entry for each block or WQE of a ring, found by its index modulo the ring.
pub(crate) struct Slots<T> {
    /// A power of two of them, never 0.
    slots: Box<[T]>,
}

impl<T: Copy + Default> Slots<T> {
    /// At least `count` slots.
    pub(crate) fn new(count: u32) -> Self {
        Self { slots: vec![T::default(); (count as usize).next_power_of_two()].into() }
    }

    /// The slot of `index`.
    #[inline(always)]
    pub(crate) fn get(&self, index: u32) -> T {
        let at = index as usize & (self.slots.len() - 1);
        // SAFETY: the length is a power of two, so the masked index is below it.
        unsafe { *self.slots.get_unchecked(at) }
    }

    /// Sets the slot of `index`.
    #[inline(always)]
    pub(crate) fn set(&mut self, index: u32, value: T) {
        let at = index as usize & (self.slots.len() - 1);
        // SAFETY: as in `get`.
        unsafe { *self.slots.get_unchecked_mut(at) = value }
    }
}
