//! The engine's state of each queue. Commands never read it: they create it with the queue (the
//! default), discard it when they reset the queue, and hand it to the engine when they destroy the
//! queue.

use std::collections::VecDeque;

use verbless_prm::hot::WQEBB;

use crate::connection::Connection;

/// Most BlueFlame copies that wait for one queue; the engine reads further WQEs from the ring.
const MAX_COPIES: usize = 1 << 4;

/// The engine's state of a CQ.
#[derive(Debug, Default)]
pub(crate) struct CqRuntime {
    /// Consumer index as last read from the record (24 bits are significant).
    pub consumer: u32,
    /// Arm word of the last accepted request: the same word in the record is not a new request.
    pub arm_word: Option<u32>,
    /// Sequence number of the arm request that an event answered. A guessed request does not set
    /// it: software that made no request may still use its number.
    pub fired: Option<u8>,
    /// Whether the last request is a record of zeros, which may not be a request.
    pub guessed: bool,
    /// When the CQ's last CQE was written, and when it last reported.
    pub written_at: u64,
    pub reported_at: u64,
    /// The time until which event moderation delays the CQ's event, if it does.
    pub moderated: Option<u64>,
    /// CQEs that a fault delays, and when the last of them is due.
    pub delayed: (u32, u64),
}

/// The engine's state of a send queue.
#[derive(Debug, Default)]
pub(crate) struct SendRuntime {
    /// Whether the queue waits for its turn.
    pub queued: bool,
    /// Whether its doorbell rang since its creation.
    pub rung: bool,
    /// Whether a doorbell of the DPA carried the producer index: the engine then does not read
    /// the record, which such programs need not write.
    pub indexed: bool,
    /// Bytes beyond the queue's share that it has moved; other queues may move as many first.
    pub owed: i64,
    /// WQEs from BlueFlame writes.
    pub copies: Copies,
    /// WQEs read before their turn.
    pub ahead: Ahead,
}

/// WQEBBs of a send queue that were read before their turn.
#[derive(Debug, Default)]
pub(crate) struct Ahead {
    /// Index of the first.
    pub first: u16,
    pub bytes: Vec<u8>,
}

impl Ahead {
    /// `length` bytes from WQEBB `index` on, if all of them were read.
    pub(crate) fn wqebbs(&self, index: u16, length: usize) -> Option<&[u8]> {
        let at = usize::from(index.wrapping_sub(self.first)) * WQEBB;
        self.bytes.get(at..at + length)
    }
}

/// The engine's state of a QP.
#[derive(Debug, Default)]
pub(crate) struct QpRuntime {
    /// Whether COMM_EST was reported.
    pub established: bool,
    /// Whether the current request has had an earlier turn.
    pub begun: bool,
    /// Bytes of the current request that were carried to the peer so far, for a message that is
    /// carried whole, part by part.
    pub carried: u64,
    /// Whether the current request got no response, so that the QP continues because its ACK
    /// timeout expired.
    pub overdue: bool,
    /// When a waiting request is sent again.
    pub resume_at: Option<u64>,
    /// Whether the QP failed on a shared receive queue, and the event for the end of its flush is
    /// still due.
    pub last_wqe_due: bool,
    /// Whether the engine keeps the old version of the key that the last request changed.
    pub unfenced: bool,
    /// Messages that the QP has executed, modulo 2^24: the MSN of its ACKs.
    pub msn: u32,
    /// State of a connected QP for messages in packets.
    connection: Option<Box<Connection>>,
}

impl QpRuntime {
    /// The state for messages in packets; the first call creates it.
    pub(crate) fn connection(&mut self) -> &mut Connection {
        self.connection.get_or_insert_default()
    }

    /// The state for messages in packets, if it was ever created.
    pub(crate) fn started(&self) -> Option<&Connection> {
        self.connection.as_deref()
    }
}

/// WQEs that were copied to a doorbell register, with their indexes, in index order.
#[derive(Debug, Default)]
pub(crate) struct Copies(VecDeque<(u16, Vec<u8>)>);

impl Copies {
    /// Keeps the WQE at `index`, unless too many wait.
    pub(crate) fn push(&mut self, index: u16, wqe: Vec<u8>) {
        if self.0.len() < MAX_COPIES {
            self.0.push_back((index, wqe));
        }
    }

    /// Returns the WQE at `index`, if it came as a copy, to be taken again.
    pub(crate) fn put_back(&mut self, index: u16, wqe: &[u8]) {
        self.0.push_front((index, wqe.to_vec()));
    }

    /// The WQE at `index`, if it was copied; drops the ones before it.
    pub(crate) fn take(&mut self, index: u16) -> Option<Vec<u8>> {
        let position = self.0.iter().position(|(at, _)| *at == index)?;
        self.0.drain(..=position).next_back().map(|(_, bytes)| bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn read_ahead_wqebbs_are_found_only_by_index() {
        let mut ahead = Ahead { first: u16::MAX, bytes: vec![1; 2 * WQEBB] };
        ahead.bytes[WQEBB..].fill(2);
        assert_eq!(ahead.wqebbs(u16::MAX, WQEBB), Some(&[1; WQEBB][..]));
        assert_eq!(ahead.wqebbs(0, 16), Some(&[2; 16][..]));
        assert_eq!(ahead.wqebbs(0, 2 * WQEBB), None);
        assert_eq!(ahead.wqebbs(1, WQEBB), None);
        assert_eq!(ahead.wqebbs(u16::MAX - 1, WQEBB), None);
        assert_eq!(Ahead::default().wqebbs(0, WQEBB), None);
    }
}
