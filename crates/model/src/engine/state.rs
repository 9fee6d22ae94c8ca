//! What the engine keeps beside the objects that commands make.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use verbless_prm::hot::WQEBB;

use super::blueflame::{Copies, Held};
use super::keys::Piece;

/// What the engine keeps per function.
#[derive(Debug, Default)]
pub(crate) struct State {
    /// QPs and SQs that are awake, each once, in the order of their turns.
    pub active: VecDeque<u32>,
    /// QPs that wait, by the time at which they go on.
    pub timers: BTreeSet<(u64, u32)>,
    /// QPs in the error state: what is posted to them is flushed.
    pub errored: BTreeSet<u32>,
    /// The one of them that was looked at last.
    pub flushed: u32,
    /// CQEs that a fault holds back, by when they are due and the order in which they were made.
    pub delayed: BTreeMap<(u64, u64), Delayed>,
    /// CQs whose event moderation holds back, by when it is due; 0 where that is yet to be worked out.
    pub moderated: BTreeSet<(u64, u32)>,
    /// How many were held back so far.
    pub delays: u64,
    /// Queues by the UAR page that they name.
    pub index: Index,
    pub faults: Faults,
    /// Trapped stores that may become BlueFlame copies.
    pub held: Held,
}

impl State {
    /// A QP waits no longer; it waited until `at`, if it did.
    pub(super) fn stop_timer(&mut self, at: Option<u64>, qpn: u32) {
        if let Some(at) = at {
            self.timers.remove(&(at, qpn));
        }
    }
}

/// Which queues a doorbell on a UAR page wakes. A queue that comes, goes or names another page changes its own entry alone,
/// so that a command costs the same however many queues there are.
#[derive(Debug, Default)]
pub(crate) struct Index {
    /// QPs and SQs.
    pub senders: ByPage,
    pub cqs: ByPage,
}

/// Queues of one kind by the UAR page that they name.
#[derive(Debug, Default)]
pub(crate) struct ByPage {
    pages: BTreeMap<u32, BTreeSet<u32>>,
    /// The page of each queue.
    page_of: BTreeMap<u32, u32>,
}

impl ByPage {
    /// Queue `number` names `page`, or is no more.
    pub(super) fn set(&mut self, number: u32, page: Option<u32>) {
        let before = match page {
            Some(page) => self.page_of.insert(number, page),
            None => self.page_of.remove(&number),
        };
        if before == page {
            return;
        }
        if let Some(before) = before
            && let Some(queues) = self.pages.get_mut(&before)
        {
            queues.remove(&number);
            if queues.is_empty() {
                self.pages.remove(&before);
            }
        }
        if let Some(page) = page {
            self.pages.entry(page).or_default().insert(number);
        }
    }

    /// The queues that name `page`.
    pub(super) fn of(&self, page: u32) -> Option<&BTreeSet<u32>> {
        self.pages.get(&page)
    }
}

/// What the engine keeps per CQ.
#[derive(Debug, Default)]
pub(crate) struct CqRuntime {
    /// Consumer index as last read from the record (24 bits count).
    pub consumer: u32,
    /// Arm word of the last request that was taken: the same word in the record asks for nothing new.
    pub arm_word: Option<u32>,
    /// Sequence number of the arm request that was answered by an event.
    pub fired: Option<u8>,
    /// When its last CQE was written, and when it last reported.
    pub written_at: u64,
    pub reported_at: u64,
    /// It waits in [`State::moderated`].
    pub moderated: bool,
    /// CQEs of it that a fault holds back, and when the last of them is due.
    pub delayed: (u32, u64),
    /// Index after the last solicited CQE.
    pub solicited: Option<u32>,
    /// Index after the last CQE that an event has told of: those before it make no other.
    pub notified: u32,
}

/// What the engine keeps per send queue.
#[derive(Debug, Default)]
pub(crate) struct SendRuntime {
    /// It waits in [`State::active`].
    pub queued: bool,
    /// WQEs that came by BlueFlame.
    pub copies: Copies,
    /// WQEs that were read before their turn.
    pub ahead: Ahead,
}

/// Blocks of a send queue that were read before their turn.
#[derive(Debug, Default)]
pub(crate) struct Ahead {
    /// Index of the first.
    pub first: u16,
    pub bytes: Vec<u8>,
}

impl Ahead {
    /// So many bytes from block `index` on, if they are there.
    pub(super) fn blocks(&self, index: u16, length: usize) -> Option<&[u8]> {
        let at = usize::from(index.wrapping_sub(self.first)) * WQEBB;
        self.bytes.get(at..at + length)
    }
}

/// What the engine keeps per QP.
#[derive(Debug, Default)]
pub(crate) struct QpRuntime {
    /// COMM_EST was reported.
    pub established: bool,
    /// Nothing came back for the present request: when the QP goes on, that is because its ACK timeout ran out.
    pub overdue: bool,
}

/// A CQE on its way, without its owner bit.
#[derive(Debug)]
pub(crate) struct Completion {
    /// The 64 bytes of the entry.
    pub body: [u8; 64],
    /// What goes into the first half of a 128-byte entry.
    pub first_half: Option<[u8; 64]>,
    /// It wakes who asked for solicited completions only.
    pub solicited: bool,
}

/// A CQE that a fault holds back.
#[derive(Debug)]
pub(crate) struct Delayed {
    pub cqn: u32,
    pub completion: Completion,
}

/// Which of the next occurrences a fault hits: after `skip` of them, `count`.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Strike {
    pub skip: u32,
    pub count: u32,
}

/// Faults of the data path that a test asked for.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    pub lose_messages: Strike,
    pub lose_doorbells: Strike,
    pub lose_completions: Strike,
    pub delay_completions: Strike,
    /// How long a delayed completion is held back, in nanoseconds.
    pub delay: u64,
    /// The engine panics.
    #[cfg(test)]
    pub panic: bool,
}

/// Buffers of the engine that outlive a turn, so that a turn allocates nothing.
#[derive(Debug, Default)]
pub(crate) struct Bench {
    /// The send WQE at hand.
    pub wqe: Vec<u8>,
    /// The receive WQE at hand.
    pub receive: Vec<u8>,
    /// Memory of the requester.
    pub local: Vec<Piece>,
    /// Memory of the responder.
    pub remote: Vec<Piece>,
    /// Pages whose doorbells wait.
    pub pages: Vec<u32>,
    /// The function whose turn is next.
    pub next: usize,
    /// Turns since doorbells were looked for.
    pub turns: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_is_found_by_the_page_that_it_named_last_and_by_none_once_it_is_gone() {
        let mut queues = ByPage::default();
        for (number, page) in [(1, 7), (2, 7), (3, 8), (1, 8), (1, 8)] {
            queues.set(number, Some(page));
        }
        assert_eq!(queues.of(7), Some(&BTreeSet::from([2])));
        assert_eq!(queues.of(8), Some(&BTreeSet::from([1, 3])));
        for number in [1, 2, 2, 3, 4] {
            queues.set(number, None);
        }
        assert!(queues.pages.is_empty() && queues.page_of.is_empty());
    }

    #[test]
    fn blocks_that_were_read_ahead_are_found_by_their_index_and_no_others() {
        let mut ahead = Ahead { first: u16::MAX, bytes: vec![1; 2 * WQEBB] };
        ahead.bytes[WQEBB..].fill(2);
        assert_eq!(ahead.blocks(u16::MAX, WQEBB), Some(&[1; WQEBB][..]));
        assert_eq!(ahead.blocks(0, 16), Some(&[2; 16][..]));
        assert_eq!(ahead.blocks(0, 2 * WQEBB), None);
        assert_eq!(ahead.blocks(1, WQEBB), None);
        assert_eq!(ahead.blocks(u16::MAX - 1, WQEBB), None);
        assert_eq!(Ahead::default().blocks(0, WQEBB), None);
    }
}
