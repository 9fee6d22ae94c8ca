//! The engine's state of each queue. Commands make it with the queue (the default), discard it when
//! they reset the queue, hand it to the engine when the queue is destroyed, and never look inside.

use std::collections::VecDeque;

use verbless_prm::hot::WQEBB;

use crate::connection::Connection;

/// Copies that wait for one queue; the WQEs of further ones are taken from the ring.
const MOST_COPIES: usize = 1 << 4;

/// The engine's state of a CQ.
#[derive(Debug, Default)]
pub(crate) struct CqRuntime {
    /// Consumer index as last read from the record (24 bits count).
    pub consumer: u32,
    /// Arm word of the last request that was taken: the same word in the record asks for nothing
    /// new.
    pub arm_word: Option<u32>,
    /// Sequence number of the arm request that was answered by an event. Not of one that was
    /// guessed: software that made none may use its number yet.
    pub fired: Option<u8>,
    /// Whether the last request is a record of zeros, which may be none.
    pub guessed: bool,
    /// When its last CQE was written, and when it last reported.
    pub written_at: u64,
    pub reported_at: u64,
    /// The time until which event moderation holds the CQ back, if it does.
    pub moderated: Option<u64>,
    /// CQEs of it that a fault holds back, and when the last of them is due.
    pub delayed: (u32, u64),
}

/// The engine's state of a send queue.
#[derive(Debug, Default)]
pub(crate) struct SendRuntime {
    /// Whether the queue waits for its turn.
    pub queued: bool,
    /// Whether its doorbell rang, since it was made.
    pub rung: bool,
    /// Whether a doorbell of the DPA said how far it was posted to: from then on its record, which
    /// such programs need not write, is not read.
    pub indexed: bool,
    /// Bytes that it has moved beyond its share, and that others may move first.
    pub owed: i64,
    /// WQEs that came by BlueFlame.
    pub copies: Copies,
    /// WQEs that were read before their turn.
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
    /// COMM_EST was reported.
    pub established: bool,
    /// The request at hand was begun before: this is not its first turn.
    pub begun: bool,
    /// Bytes of the request at hand that were carried to the peer, of a message that is carried
    /// whole, part by part.
    pub carried: u64,
    /// Whether the present request got no answer, so that the QP goes on because its ACK timeout
    /// expired.
    pub overdue: bool,
    /// When a waiting request goes out again.
    pub resume_at: Option<u64>,
    /// Whether the QP failed on a shared receive queue, and the event that says that it has flushed
    /// is yet to come.
    pub last_wqe_due: bool,
    /// Whether the engine keeps the key that the last request changed, as it was before.
    pub unfenced: bool,
    /// Messages that it has executed, modulo 2^24: what an ACK tells of them.
    pub msn: u32,
    /// State of a connected QP for messages in packets.
    connection: Option<Box<Connection>>,
}

impl QpRuntime {
    /// The state for messages in packets; made when first needed.
    pub(crate) fn connection(&mut self) -> &mut Connection {
        self.connection.get_or_insert_default()
    }

    /// The state for messages in packets, if there ever was one.
    pub(crate) fn started(&self) -> Option<&Connection> {
        self.connection.as_deref()
    }
}

/// WQEs that were copied to a doorbell register, by their index, in the order of their indexes.
#[derive(Debug, Default)]
pub(crate) struct Copies(VecDeque<(u16, Vec<u8>)>);

impl Copies {
    /// Keeps the WQE at `index`, unless too many wait.
    pub(crate) fn push(&mut self, index: u16, wqe: Vec<u8>) {
        if self.0.len() < MOST_COPIES {
            self.0.push_back((index, wqe));
        }
    }

    /// Puts the WQE at `index` back, if it came as a copy: it is taken again.
    pub(crate) fn put_back(&mut self, index: u16, wqe: &[u8]) {
        self.0.push_front((index, wqe.to_vec()));
    }

    /// The WQE at `index`, if it was copied; those before it are forgotten.
    pub(crate) fn take(&mut self, index: u16) -> Option<Vec<u8>> {
        let position = self.0.iter().position(|(at, _)| *at == index)?;
        self.0.drain(..=position).next_back().map(|(_, bytes)| bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wqebbs_that_were_read_ahead_are_found_by_their_index_and_no_others() {
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
