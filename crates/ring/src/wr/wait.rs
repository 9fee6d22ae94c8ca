//! The condition of a wait for data. A WQE compares its value with the word in memory, not the word
//! with the value, so the names are reversed there.

use verbless_prm as prm;
use verbless_prm::hot::WaitOperation;

/// A condition on a big-endian 64-bit word in memory. Only the bits of its mask count: all, unless
/// [`masked`](Self::masked) selects some.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitCondition {
    pub(super) operation: WaitOperation,
    pub(super) value: u64,
    pub(super) mask: u64,
}

impl WaitCondition {
    const fn new(condition: prm::WaitCondition, value: u64) -> Self {
        let operation = WaitOperation::new().with_condition(condition.0);
        Self { operation, value, mask: u64::MAX }
    }

    /// Waits until the word equals `value`.
    pub const fn equal(value: u64) -> Self {
        Self::new(prm::WaitCondition::EQUAL, value)
    }

    /// Waits until the word is larger than `value`.
    pub const fn above(value: u64) -> Self {
        Self::new(prm::WaitCondition::SMALLER, value)
    }

    /// Waits until the word is smaller than `value`.
    pub const fn below(value: u64) -> Self {
        Self::new(prm::WaitCondition::BIGGER, value)
    }

    /// Waits until the word is ahead of `value` by less than half the range of the masked bits: for
    /// counters that wrap.
    pub const fn past(value: u64) -> Self {
        Self::new(prm::WaitCondition::CYCLIC_SMALLER, value)
    }

    /// Waits until the word is behind `value` by less than half the range of the masked bits: for
    /// counters that wrap.
    pub const fn before(value: u64) -> Self {
        Self::new(prm::WaitCondition::CYCLIC_BIGGER, value)
    }

    /// Compares only these bits of the word.
    pub const fn masked(mut self, mask: u64) -> Self {
        self.mask = mask;
        self
    }

    /// Inverts the condition.
    pub const fn not(mut self) -> Self {
        self.operation = self.operation.with_invert(!self.operation.invert());
        self
    }
}
