//! The condition of a WAIT on data, as its WQE states it.
//!
//! Source: DPDK `drivers/common/mlx5/mlx5_prm.h` (`struct mlx5_wqe_wseg`, MLX5_WAIT_COND_*). The
//! word in memory, the value and the mask are big-endian. The condition says how the value compares
//! to the word: DPDK (`mlx5_tx.h`) waits with CYCLIC_SMALLER until the clock has passed its value;
//! an earlier DPDK used CYCLIC_BIGGER by mistake. The low bits of the address select what happens
//! when the wait fails; their meaning is not public, and the model accepts only 0.

use verbless_prm::hot::CtrlSegment;
use verbless_prm::{WaitCondition, WaitDataSegment};

/// Bytes of the word.
pub(super) const WORD: u64 = 8;

/// A condition on a word in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Condition {
    pub lkey: u32,
    pub address: u64,
    how: WaitCondition,
    invert: bool,
    value: u64,
    mask: u64,
}

impl Condition {
    /// The condition of a WQE; `None` if the model does not know it.
    pub(super) fn of(wqe: &[u8]) -> Option<Self> {
        let segment = WaitDataSegment::from_prefix(wqe.get(CtrlSegment::BYTES..)?)?;
        let (how, address) = (segment.condition(), segment.va());
        let known = how.0 <= WaitCondition::CYCLIC_SMALLER.0 && address.is_multiple_of(WORD);
        known.then_some(Self {
            lkey: segment.lkey(),
            address,
            how,
            invert: segment.invert(),
            value: segment.value(),
            mask: segment.mask(),
        })
    }

    /// Whether a word in memory fulfils the condition.
    pub(super) fn holds(&self, word: u64) -> bool {
        let masked = word & self.mask;
        let holds = match self.how {
            WaitCondition::EQUAL => masked == self.value,
            WaitCondition::BIGGER => self.value > masked,
            WaitCondition::SMALLER => self.value < masked,
            WaitCondition::CYCLIC_BIGGER => self.is_ahead(self.value, word),
            WaitCondition::CYCLIC_SMALLER => self.is_ahead(word, self.value),
            _ => true,
        };
        holds != self.invert
    }

    /// Whether one number is ahead of another by less than half the range of the bits that count.
    fn is_ahead(&self, one: u64, other: u64) -> bool {
        let low = self.mask.trailing_zeros().min(63);
        let bits = self.mask >> low;
        let ahead = ((one & self.mask) >> low).wrapping_sub((other & self.mask) >> low) & bits;
        ahead != 0 && ahead <= bits >> 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn condition(how: WaitCondition, value: u64, mask: u64) -> Condition {
        Condition { lkey: 0, address: 0, how, invert: false, value, mask }
    }

    #[test]
    fn each_wait_condition_evaluates_as_named() {
        let max = u64::MAX;
        type Case = (WaitCondition, u64, u64, [u64; 2], Vec<u64>);
        let cases: [Case; 8] = [
            (WaitCondition::ALWAYS_TRUE, 7, max, [0, 7], vec![]),
            (WaitCondition::EQUAL, 7, 0xff, [7, 0x107], vec![8, 0]),
            (WaitCondition::SMALLER, 7, max, [8, max], vec![7, 0]),
            (WaitCondition::BIGGER, 7, 0xff, [6, 0x106], vec![7, 0xff]),
            (WaitCondition::CYCLIC_SMALLER, 0xfe, 0xff, [0xff, 0x7d], vec![0xfe, 0x7e, 0xfd]),
            (WaitCondition::CYCLIC_SMALLER, max, max, [0, 1], vec![max, max - 1]),
            (WaitCondition::CYCLIC_BIGGER, 1, 0xff, [0, 0xff], vec![1, 2, 0x81]),
            (WaitCondition::CYCLIC_BIGGER, 0x100, 0xff00, [0xab, 0xffcd], vec![0x1ff, 0x200]),
        ];
        for (how, value, mask, holding, failing) in cases {
            let mut it = condition(how, value, mask);
            for invert in [false, true] {
                it.invert = invert;
                assert!(holding.iter().all(|&word| it.holds(word) != invert), "{it:x?}");
                assert!(failing.iter().all(|&word| it.holds(word) == invert), "{it:x?}");
            }
        }
    }
}
