//! Whatever sends, seen alike: the send half of a QP, and an SQ.

use verbless_prm::hot::{CtrlSegment, WQEBB};

use super::ring::record;
use crate::hca::objects::{Objects, SendQueue};
use crate::memory::{Fault, HostMemory};

/// A send queue, with what stands beside it in whatever it belongs to.
pub(crate) struct Sender<'a> {
    pub queue: &'a mut SendQueue,
    /// Address of the word that counts what was posted.
    pub record: u64,
    /// The page on which its doorbells ring.
    pub uar_page: u32,
}

impl Objects {
    /// The send queue of this number. It tells enough: QPs and SQs have numbers of one range, since neither WQEs nor doorbells say
    /// which of the two they mean.
    pub(crate) fn sender(&mut self, number: u32) -> Option<Sender<'_>> {
        let (queue, record, uar_page) = match self.qps.get_mut(&number) {
            Some(qp) => (qp.sq.as_mut()?, qp.record, qp.uar_page),
            None => {
                let sq = self.sqs.get_mut(&number)?;
                (&mut sq.queue, sq.record, sq.uar_page)
            }
        };
        Some(Sender { queue, record: record.wrapping_add(4), uar_page })
    }
}

impl Sender<'_> {
    /// Learns how much was posted.
    pub(super) fn read_producer(&mut self, memory: &dyn HostMemory) -> Result<(), Fault> {
        self.queue.producer = record(memory, self.record)? as u16;
        Ok(())
    }

    /// Takes the next WQE from the ring without a look at what it asks for: its index and opcode, if one is posted.
    pub(super) fn skip(&mut self, memory: &dyn HostMemory) -> Option<(u16, u8)> {
        // A record that cannot be read any more has posted nothing new.
        let _ = self.read_producer(memory);
        let queue = &mut *self.queue;
        queue.runtime.ahead.bytes.clear();
        let index = queue.consumer;
        let posted = queue.producer.wrapping_sub(index);
        if posted == 0 {
            return None;
        }
        let mut control = [0; CtrlSegment::BYTES];
        let slot = u64::from(u32::from(index) & (1_u32.checked_shl(queue.log_size)? - 1));
        let _ = queue.memory.read_wrapping(memory, slot * WQEBB as u64, &mut control);
        let word = CtrlSegment::read(&control)?.control();
        let blocks = u16::from(word.ds()).div_ceil(4).clamp(1, posted);
        queue.consumer = index.wrapping_add(blocks);
        Some((index, word.opcode()))
    }
}
