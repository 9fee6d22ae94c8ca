//! What we remember of each WQE until it completes. Only we write here.

/// One entry for each block or WQE of a ring, found by its index modulo the ring.
pub(crate) struct Slots<T> {
    slots: Box<[T]>,
    /// How many there are, a power of two, less one.
    mask: u32,
}

impl<T: Copy + Default> Slots<T> {
    /// At least `count` slots.
    pub(crate) fn new(count: u32) -> Self {
        let count = count.next_power_of_two();
        Self { slots: vec![T::default(); count as usize].into(), mask: count - 1 }
    }

    /// Forgets everything.
    pub(crate) fn clear(&mut self) {
        self.slots.fill(T::default());
    }

    /// The slot of `index`.
    #[inline(always)]
    pub(crate) fn get(&self, index: u32) -> &T {
        let at = (index & self.mask) as usize;
        // SAFETY: the mask is the length less one.
        unsafe { self.slots.get_unchecked(at) }
    }

    /// Sets the slot of `index`.
    #[inline(always)]
    pub(crate) fn set(&mut self, index: u32, value: T) {
        let at = (index & self.mask) as usize;
        // SAFETY: as in `get`.
        unsafe { *self.slots.get_unchecked_mut(at) = value }
    }
}
