//! Doorbells of UAR pages: their registers, and the queue number in a word.

use verbless_prm::hot::{CqArmDoorbell, CtrlWord};

use crate::memory::{BLUEFLAME, BLUEFLAME_BUFFERS, BLUEFLAME_STRIDE, CQ_ARM};

/// The doorbells of a UAR page; each word names a queue of that page.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum PageDoorbell {
    /// A send doorbell: the first word of a WQE.
    Send,
    /// A CQ arm doorbell.
    Arm,
}

impl PageDoorbell {
    /// The queue number in a word.
    pub(crate) fn queue_number(self, word: u64) -> u32 {
        match self {
            Self::Send => CtrlWord::from_bits(word).qpn(),
            Self::Arm => {
                CqArmDoorbell::from_prefix(&word.to_be_bytes()).map_or(0, CqArmDoorbell::cqn)
            }
        }
    }

    /// Offsets of the doorbell's registers in a page.
    pub(crate) fn registers(self) -> impl Iterator<Item = u64> {
        let (first, count) = match self {
            Self::Send => (BLUEFLAME, BLUEFLAME_BUFFERS),
            Self::Arm => (CQ_ARM, 1),
        };
        (0..count).map(move |k| first + k * BLUEFLAME_STRIDE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn word_names_a_queue() {
        let wqe = CtrlWord::new().with_qpn(0x12_3456).with_wqe_index(0xffff).with_ds(0x3f);
        assert_eq!(PageDoorbell::Send.queue_number(wqe.into_bits()), 0x12_3456);
        assert_eq!(PageDoorbell::Arm.queue_number(0xffff_ffff_0065_4321), 0x65_4321);
        let registers: Vec<_> = PageDoorbell::Send.registers().collect();
        assert_eq!((registers[0], registers[7], registers.len()), (0x800, 0xf00, 8));
        assert_eq!(PageDoorbell::Arm.registers().collect::<Vec<_>>(), [0x20]);
    }
}
