//! Send queues of QPs and of standalone SQs: the producer index, and the WQEs in the ring.

use std::mem::offset_of;
use verbless_prm::SqState;
use verbless_prm::hot::{self, CtrlSegment, OCTOWORD, QpRecordSend, WQEBB};

use super::ring::record;
use crate::hca::objects::{Objects, QpState, SendQueue};
use crate::memory::{Fault, HostMemory};

/// Bytes of the longest WQE: 63 ds of 16.
pub(crate) const MAX_WQE_BYTES: usize = 63 * OCTOWORD;
/// WQEBBs that are read at once where that saves calls.
const WQEBBS_AHEAD: usize = 32;

/// A WQE, or a segment of one, is incomplete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Malformed;

/// The result of a queue's turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Turn {
    /// There may be more to do.
    Again,
    /// Nothing to do until a doorbell, a command or a timer.
    Sleep,
}

/// A send queue of a QP or a standalone SQ, with the facts of its owner that the engine needs.
pub(crate) struct Sender<'a> {
    pub queue: &'a mut SendQueue,
    /// Address of the word with the producer index.
    pub record: u64,
    /// The UAR page on which doorbells of the queue ring.
    pub uar_page: u32,
    /// Whether the queue is in RESET.
    pub reset: bool,
}

impl Objects {
    /// The send queue of this number. QPs and SQs have numbers of one range, since neither WQEs nor
    /// doorbells say which of the two they mean.
    #[inline]
    pub(crate) fn sender(&mut self, number: u32) -> Option<Sender<'_>> {
        let (queue, record, uar_page, reset) = match self.qps.get_mut(&number) {
            Some(qp) => (qp.sq.as_mut()?, qp.record, qp.uar_page, qp.state == QpState::Reset),
            None => {
                let sq = self.sqs.get_mut(&number)?;
                (&mut sq.queue, sq.record, sq.uar_page, sq.state == SqState::RST)
            }
        };
        Some(Sender { queue, record: producer_word(record), uar_page, reset })
    }
}

/// Address of the word of a doorbell record with the send producer index.
pub(super) fn producer_word(record: u64) -> u64 {
    record.wrapping_add(offset_of!(hot::QpDoorbellRecord, qp_record_send) as u64)
}

impl SendQueue {
    /// Reads the producer index from the word at `address`.
    pub(super) fn read_producer(
        &mut self,
        memory: &dyn HostMemory,
        address: u64,
    ) -> Result<(), Fault> {
        // The DPA gives the index: the record may hold nothing.
        if self.runtime.indexed {
            return Ok(());
        }
        self.set_producer(record(memory, address))
    }

    /// Sets the producer index from the word of the record, unless the DPA gives it.
    pub(super) fn set_producer(&mut self, word: Result<u32, Fault>) -> Result<(), Fault> {
        if !self.runtime.indexed {
            self.producer = QpRecordSend::from_bits(word?).send_counter();
        }
        Ok(())
    }

    /// Copies the WQE at the consumer index to `wqe`, from its BlueFlame copy or else from the
    /// ring; returns its number of WQEBBs.
    pub(super) fn fetch(
        &mut self,
        memory: &dyn HostMemory,
        longest: usize,
        wqe: &mut Vec<u8>,
    ) -> Result<u16, Malformed> {
        let size = 1_u32.checked_shl(self.log_size).ok_or(Malformed)?;
        let posted = self.producer.wrapping_sub(self.consumer);
        if let Some(copy) = self.runtime.copies.take(self.consumer) {
            *wqe = copy;
            let wqebbs = wqe.len().div_ceil(WQEBB) as u16;
            // The record may have decreased since the copy came.
            return if wqebbs <= posted && wqe.len() <= longest {
                Ok(wqebbs)
            } else {
                Err(Malformed)
            };
        }
        // One WQEBB holds the control segment, and most often the whole WQE.
        wqe.clear();
        wqe.resize(WQEBB, 0);
        self.read(memory, 0, wqe).map_err(|_| Malformed)?;
        let control = CtrlSegment::from_prefix(wqe).ok_or(Malformed)?.ctrl_word;
        let bytes = usize::from(control.ds()) * 16;
        let wqebbs = bytes.div_ceil(WQEBB) as u16;
        if bytes == 0 || bytes > longest || wqebbs > posted || u32::from(wqebbs) > size {
            return Err(Malformed);
        }
        debug_assert!(bytes <= MAX_WQE_BYTES);
        if bytes > WQEBB {
            wqe.resize(bytes, 0);
            self.read(memory, 1, &mut wqe[WQEBB..]).map_err(|_| Malformed)?;
        }
        wqe.truncate(bytes);
        Ok(wqebbs)
    }

    /// Copies from WQEBB `skip` of the WQE at the consumer index on. Where each access is a system
    /// call, it reads the WQEs that are posted after it too: software does not change them after
    /// their doorbell.
    fn read(&mut self, memory: &dyn HostMemory, skip: u16, into: &mut [u8]) -> Result<(), Fault> {
        let index = self.consumer.wrapping_add(skip);
        let slot = u64::from(index) & ((1_u64 << self.log_size.min(16)) - 1);
        let at = slot * WQEBB as u64;
        if !memory.is_remote() {
            return self.memory.read_wrapping(memory, at, into);
        }
        if let Some(wqebbs) = self.runtime.ahead.wqebbs(index, into.len()) {
            into.copy_from_slice(wqebbs);
            return Ok(());
        }
        let posted = usize::from(self.producer.wrapping_sub(index)).min(WQEBBS_AHEAD) * WQEBB;
        let ahead = &mut self.runtime.ahead;
        ahead.first = index;
        ahead.bytes.resize(posted.max(into.len()), 0);
        let read = self.memory.read_wrapping(memory, at, &mut ahead.bytes);
        if read.is_err() {
            ahead.bytes.clear();
            return read;
        }
        into.copy_from_slice(&ahead.bytes[..into.len()]);
        Ok(())
    }

    /// Takes the next WQE from the ring without parsing it: its index and opcode, if one is posted.
    /// `address` is that of the word that holds the producer index.
    pub(super) fn skip(&mut self, memory: &dyn HostMemory, address: u64) -> Option<(u16, u8)> {
        if !self.runtime.indexed
            && let Err(fault) = self.read_producer(memory, address)
        {
            tracing::debug!(%fault, "a doorbell record cannot be read: nothing new is posted");
        }
        self.runtime.ahead.bytes.clear();
        let index = self.consumer;
        let posted = self.producer.wrapping_sub(index);
        if posted == 0 {
            return None;
        }
        let mut control = [0; CtrlSegment::BYTES];
        let slot = u64::from(u32::from(index) & (1_u32.checked_shl(self.log_size)? - 1));
        if let Err(fault) = self.memory.read_wrapping(memory, slot * WQEBB as u64, &mut control) {
            tracing::debug!(index, %fault, "a WQE to flush cannot be read: it counts as a NOP");
        }
        let word = CtrlSegment::from_prefix(&control)?.ctrl_word;
        let wqebbs = u16::from(word.ds()).div_ceil(4).clamp(1, posted);
        self.consumer = index.wrapping_add(wqebbs);
        Some((index, word.opcode()))
    }
}
