//! Faults of the data path that a test injects.

use std::time::Duration;

use crate::clock::nanoseconds;
use crate::hca::{Countdowns, Times};
use crate::numbered::Numbered;

/// A fault on the data path of one device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// A message that the device sends never arrives; its sender may retry it.
    LoseMessage,
    /// A doorbell of an SQ or CQ (one register of one page) is dropped.
    LoseDoorbell,
    /// A CQE is not written.
    LoseCompletion,
    /// A CQE is written this much later; later CQEs of the same CQ are written after it.
    DelayCompletion(Duration),
}

/// The occurrences that a fault hits: `count` of them, after the next `skip`.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct FaultWindow {
    pub skip: u32,
    pub count: u32,
}

/// Faults of the data path that a test injected.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    pub lose_messages: FaultWindow,
    /// Messages that will be lost, by QP.
    lose_messages_of: Numbered<u32, FaultWindow>,
    /// Send requests that will fail, by QP, each with its syndrome.
    requests: Countdowns<Option<u32>, u8>,
    /// QPs that will fail at the start of a request.
    queue_pairs: Countdowns<Option<u32>, ()>,
    /// CQs that will fail instead of taking a CQE.
    completion_queues: Countdowns<Option<u32>, ()>,
    pub lose_doorbells: FaultWindow,
    pub lose_completions: FaultWindow,
    pub delay_completions: FaultWindow,
    /// How long a delayed completion is held back, in nanoseconds.
    pub delay: u64,
    /// The engine panics.
    #[cfg(test)]
    pub panic: bool,
}

/// A kind of queue that can fail by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QueueKind {
    /// A queue pair, by its QPN.
    Qp,
    /// A completion queue, by its CQN.
    Cq,
}

impl Faults {
    /// Loses `count` consecutive messages of one QP, after `skip` that pass.
    pub(crate) fn lose_messages_of(&mut self, qpn: u32, skip: u32, count: u32) {
        self.lose_messages_of.insert(qpn, FaultWindow { skip, count });
    }

    /// Whether a message that a QP sends is lost.
    pub(crate) fn loses_message(&mut self, qpn: u32) -> bool {
        let of_qp = self.lose_messages_of.get_mut(&qpn).is_some_and(FaultWindow::hits);
        self.lose_messages.hits() || of_qp
    }

    /// Makes send requests of a QP, or of any QP, fail.
    pub(crate) fn fail_request(&mut self, qpn: Option<u32>, when: impl Into<Times>, syndrome: u8) {
        self.requests.add(qpn, when, syndrome);
    }

    /// The syndrome with which the request that a QP begins fails, if it does; a fault hits once.
    pub(crate) fn fails_request(&mut self, qpn: u32) -> Option<u8> {
        self.requests.hit(|of| of.is_none_or(|of| of == qpn))
    }

    /// Makes a queue, or any queue of a kind, fail at requests or CQEs.
    pub(crate) fn fail_queue(
        &mut self,
        kind: QueueKind,
        number: Option<u32>,
        when: impl Into<Times>,
    ) {
        let faults = match kind {
            QueueKind::Qp => &mut self.queue_pairs,
            QueueKind::Cq => &mut self.completion_queues,
        };
        faults.add(number, when, ());
    }

    /// Whether a QP that begins a request fails.
    pub(crate) fn fails_queue_pair(&mut self, qpn: u32) -> bool {
        self.queue_pairs.hit(|of| of.is_none_or(|of| of == qpn)).is_some()
    }

    /// Whether a CQ fails instead of taking a CQE.
    pub(crate) fn fails_completion_queue(&mut self, cqn: u32) -> bool {
        self.completion_queues.hit(|of| of.is_none_or(|of| of == cqn)).is_some()
    }

    /// Forgets the faults of a destroyed CQ.
    pub(crate) fn forget_cq(&mut self, cqn: u32) {
        self.completion_queues.retain(|of| *of != Some(cqn));
    }

    /// Forgets the faults of a destroyed QP: the next QP of this number has none.
    pub(crate) fn forget(&mut self, qpn: u32) {
        self.lose_messages_of.remove(&qpn);
        self.requests.retain(|of| *of != Some(qpn));
        self.queue_pairs.retain(|of| *of != Some(qpn));
    }

    /// Forgets the faults of single queues, after the queues were destroyed.
    pub(crate) fn forget_all(&mut self) {
        self.lose_messages_of.clear();
        self.requests.retain(Option::is_none);
        self.queue_pairs.retain(Option::is_none);
        self.completion_queues.retain(Option::is_none);
    }

    /// Makes `fault` hit `count` consecutive occurrences, after `skip` that pass.
    pub(crate) fn set(&mut self, fault: Fault, skip: u32, count: u32) {
        let hit = FaultWindow { skip, count };
        match fault {
            Fault::LoseMessage => self.lose_messages = hit,
            Fault::LoseDoorbell => self.lose_doorbells = hit,
            Fault::LoseCompletion => self.lose_completions = hit,
            Fault::DelayCompletion(by) => {
                self.delay_completions = hit;
                self.delay = nanoseconds(by);
            }
        }
    }
}

impl FaultWindow {
    /// Whether the fault hits this time.
    pub(crate) fn hits(&mut self) -> bool {
        if self.skip > 0 {
            self.skip -= u32::from(self.count > 0);
            false
        } else if self.count > 0 {
            self.count -= 1;
            true
        } else {
            false
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nth_request_of_qp_fails_once() {
        let mut faults = Faults::default();
        faults.fail_request(Some(7), 2, 0x13);
        faults.fail_request(None, 3, 0x14);
        let begun = [8, 7, 7, 7, 8, 7].map(|qpn| faults.fails_request(qpn));
        assert_eq!(begun, [None, None, Some(0x13), Some(0x14), None, None]);
    }

    #[test]
    fn message_losses_are_per_qp_and_end_with_it() {
        let mut faults = Faults::default();
        faults.lose_messages_of(7, 1, 2);
        faults.fail_request(Some(7), 1, 0x13);
        let lost = [7, 8, 7, 8].map(|qpn| faults.loses_message(qpn));
        assert_eq!(lost, [false, false, true, false]);
        faults.forget(7);
        assert!(!faults.loses_message(7));
        assert_eq!(faults.fails_request(7), None);
    }

    #[test]
    fn queue_fails_once_at_nth_occurrence() {
        let mut faults = Faults::default();
        faults.fail_queue(QueueKind::Qp, Some(7), 2);
        faults.fail_queue(QueueKind::Cq, None, 3);
        assert_eq!([8, 7, 7, 7].map(|it| faults.fails_queue_pair(it)), [false, false, true, false]);
        let cqs = [7, 8, 9, 9].map(|it| faults.fails_completion_queue(it));
        assert_eq!(cqs, [false, false, true, false]);
        faults.fail_queue(QueueKind::Qp, Some(7), 1);
        faults.fail_queue(QueueKind::Cq, Some(7), 1);
        faults.forget(7);
        assert!(!faults.fails_queue_pair(7));
        faults.forget_cq(7);
        assert!(!faults.fails_completion_queue(7));
    }
}
