//! Transport of complete entries out of the process: by stores through a window, or by SENDs of a
//! queue pair whose send queue, completion queue and data are in the process's memory.
//!
//! Everything here runs under the stream's lock. The last 8 bytes of a WQE are past its ds, so the
//! device does not read them. They hold the index after the WQE's last entry; the WQE's CQE frees
//! all entries below this index.

use core::mem::offset_of;
use core::sync::atomic::Ordering;

use verbless_prm::hot::{
    self, CqRecordConsumer, CqeSyndromes, CtrlFlags, CtrlSegment, CtrlWord, OpOwn, cqe_opcode,
    opcode,
};

use super::control::{Carrier, Control, HOST_SLOTS_AT};
use super::entry::NUMBER_AT;
use crate::context::ThreadContext;
use crate::mmio;
use crate::outbox::Outbox;
use crate::segment::{self, CompletionMode, Request, Segment};
use crate::status::Failed;

const WQEBB: u64 = hot::WQEBB as u64;
const CQE_BYTES: u64 = size_of::<hot::CqeError>() as u64;
/// ds of a datagram's WQE: control, three for the address vector, data.
const DATAGRAM_DS: u8 = 5;

impl Control {
    /// The count of entries that the host has taken from its ring.
    pub(super) fn taken_by_host(&self, context: &ThreadContext) -> Result<u64, Failed> {
        context.window_at(self.setup.window).read_u64(self.setup.host_ring)
    }

    /// Hands over entries `from` to `end`, which are complete; returns the index that it reached.
    pub(super) fn carry(
        &self,
        context: &ThreadContext,
        from: u64,
        end: u64,
    ) -> Result<u64, Failed> {
        match self.setup.carrier() {
            Some(Carrier::Window) => self.store(context, from, end),
            Some(Carrier::Connected | Carrier::Datagram) => Ok(self.send(context, from, end)),
            Some(Carrier::Host) | None => Err(Failed),
        }
    }

    /// Stores entries into the host's ring. Both rings have the same number of slots, so a claimed
    /// entry always has a slot on the host.
    fn store(&self, context: &ThreadContext, from: u64, end: u64) -> Result<u64, Failed> {
        let window = context.window_at(self.setup.window);
        for index in from..end {
            let source = self.entry_address(index);
            let slot = HOST_SLOTS_AT + (source - self.setup.ring);
            let target = self.setup.host_ring + slot;
            let number = NUMBER_AT as u64;
            for word in (0..self.entry_bytes()).step_by(8).filter(|&word| word != number) {
                window.write_u64(target + word, mmio::read64(source + word))?;
            }
            mmio::in_order();
            window.write_u64(target + number, index + 1)?;
        }
        Ok(end)
    }

    /// WQEBBs of a WQE.
    fn wqebbs(&self) -> u32 {
        if self.setup.carrier() == Some(Carrier::Datagram) { 2 } else { 1 }
    }

    fn send(&self, context: &ThreadContext, from: u64, end: u64) -> u64 {
        let mut next = from;
        self.reap();
        while next < end && self.error_syndrome.load(Ordering::Relaxed) == 0 && self.has_room() {
            let within = next & (self.entries() - 1);
            let count = (end - next)
                .min(self.setup.max_entries_per_wqe.into())
                .min(self.entries() - within);
            self.post(next, count);
            next += count;
        }
        if next != from {
            let outbox = Outbox::at(context.outbox_address(self.setup.outbox));
            outbox.send(self.setup.queue, self.posted.load(Ordering::Relaxed) as u16);
        }
        next
    }

    fn has_room(&self) -> bool {
        let (posted, completed) =
            (self.posted.load(Ordering::Relaxed), self.completed.load(Ordering::Relaxed));
        posted.wrapping_sub(completed) + self.wqebbs() <= 1 << self.setup.log_wqebbs
    }

    /// Address of the WQE that begins with WQEBB `index`. No WQE wraps around the end of the ring,
    /// because the ring's length is a multiple of a WQE's.
    fn wqe(&self, index: u32) -> u64 {
        let within = index & ((1 << self.setup.log_wqebbs) - 1);
        self.setup.wqes + WQEBB * u64::from(within)
    }

    /// Address of the end index that `post` stores in the WQE's last 8 bytes.
    fn end_index_address(&self, wqe: u64) -> u64 {
        wqe + WQEBB * u64::from(self.wqebbs()) - 8
    }

    fn post(&self, from: u64, count: u64) {
        let posted = self.posted.load(Ordering::Relaxed);
        let wqe = self.wqe(posted);
        let (pi, queue) = (posted as u16, self.setup.queue);
        let mode = CompletionMode::Always;
        let bytes = count << self.setup.log_entry_bytes;
        let data = Segment::data(bytes as u32, self.setup.key, self.entry_address(from));
        let put = |at: usize, bytes: &[u8; segment::BYTES]| {
            for (word, value) in segment::words(wqe + (at * segment::BYTES) as u64, bytes) {
                mmio::write64(word, value);
            }
        };
        if self.setup.carrier() == Some(Carrier::Datagram) {
            let word = CtrlWord::new()
                .with_wqe_index(pi)
                .with_opcode(opcode::SEND)
                .with_qpn(queue & 0xff_ffff)
                .with_ds(DATAGRAM_DS);
            let flags = CtrlFlags::new().with_ce(mode as u8);
            put(0, CtrlSegment::new(word, flags).as_bytes());
            let (address, _) = self.setup.destination.as_chunks();
            address.iter().enumerate().for_each(|(index, segment)| put(1 + index, segment));
            put(4, data.as_bytes());
        } else {
            put(0, Segment::ctrl(pi, queue, mode, Request::ConnectedSend).as_bytes());
            put(1, data.as_bytes());
        }
        mmio::write64(self.end_index_address(wqe), from + count);
        self.posted.store(posted.wrapping_add(self.wqebbs()), Ordering::Relaxed);
    }

    /// Consumes the available CQEs.
    fn reap(&self) {
        let first = self.consumer.load(Ordering::Relaxed);
        let mut consumer = first;
        loop {
            let within = consumer & ((1 << self.setup.log_cqes) - 1);
            let cqe = self.setup.cqes + CQE_BYTES * u64::from(within);
            let op_own = OpOwn::from_bits(mmio::read64(cqe + CQE_BYTES - 8).to_ne_bytes()[7]);
            let owner = consumer >> self.setup.log_cqes & 1 == 1;
            if op_own.opcode() == cqe_opcode::INVALID || op_own.owner() != owner {
                break;
            }
            // The device wrote the rest before the owner bit.
            mmio::in_order();
            consumer = consumer.wrapping_add(1);
            if op_own.opcode() == cqe_opcode::REQUESTER_ERROR {
                // Unsent entries stay in the ring, where the host reads them.
                let word = mmio::read32(cqe + offset_of!(hot::CqeError, cqe_syndromes) as u64);
                let syndrome = CqeSyndromes::from_raw(word).syndrome();
                self.error_syndrome.store(syndrome.into(), Ordering::Relaxed);
                continue;
            }
            let completed = self.completed.load(Ordering::Relaxed);
            let end = mmio::read64(self.end_index_address(self.wqe(completed)));
            self.completed.store(completed.wrapping_add(self.wqebbs()), Ordering::Relaxed);
            self.freed.store(end, Ordering::Release);
        }
        if consumer != first {
            self.consumer.store(consumer, Ordering::Relaxed);
            let consumer = CqRecordConsumer::new().with_consumer_index(consumer & 0xff_ffff);
            mmio::in_order();
            mmio::write32(self.setup.cq_record, consumer.to_raw());
        }
    }
}
