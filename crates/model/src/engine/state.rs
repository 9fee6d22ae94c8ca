//! The engine's state besides the objects that commands create.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use super::condition::Condition;
use super::cqe::Completion;
use super::faults::Faults;
use super::flushes::Flushes;
use super::scratch::Phase;
use super::sweeps::Sweeps;
use crate::fabric::Delivery;
use crate::fabric::frame::{Buffers, Frame};
use crate::hca::objects::Mkey;
use crate::numbered::Numbered;
use crate::watch::Outbox;

/// Maximum number of stray doorbells that are recorded.
pub(crate) const MAX_STRAYS: usize = 16;

/// A key as it was before a UMR, for a request that does not wait for the UMR.
pub(crate) struct UnfencedKey {
    /// Index of the request right after the UMR.
    pub request: u16,
    /// Index of the key.
    pub number: u32,
    pub before: Mkey,
}

/// The engine's state of a function.
#[derive(Default)]
pub(crate) struct EngineState {
    /// QPs and SQs that are awake, each once, in the order of their turns.
    pub active: VecDeque<u32>,
    /// Bytes that this turn moved.
    pub moved_bytes: u64,
    /// The kind of work that is done next, if there is some.
    pub phase: Phase,
    /// Number of turns so far.
    pub turns: u32,
    /// QPs with answers to send, each once.
    pub answering: VecDeque<u32>,
    /// Packets that the ports must send.
    pub egress: Vec<Egress>,
    /// Packets that have arrived, and the buffers of handled ones.
    pub ingress: VecDeque<Delivery>,
    pub spent: Vec<Frame>,
    /// Buffers of packets that are free.
    pub buffers: Buffers,
    /// QPs that wait, by the time at which they continue.
    pub timers: BTreeSet<(u64, u32)>,
    /// QPs that wait for data.
    pub waits: Waits,
    /// QPs and RQs in the error state: receives that are posted to them are flushed.
    pub errored: BTreeSet<u32>,
    /// The queue of `errored` that was checked last.
    pub last_checked: u32,
    /// Keys that the last requests of QPs changed, as they were before.
    pub unfenced: BTreeMap<u32, UnfencedKey>,
    /// Queues with a pending flush.
    pub flushes: Flushes,
    /// Pages on which doorbells may have been overwritten.
    pub sweeps: Sweeps,
    /// Doorbells that named no queue of their page, each with its page: the first ones.
    pub strays: Vec<(u32, u64)>,
    /// CQEs that a fault delays, by due time and order of creation.
    pub delayed: BTreeMap<(u64, u64), Delayed>,
    /// CQs with an event that moderation holds back, by its due time; 0 if that is not known yet.
    pub moderated: BTreeSet<(u64, u32)>,
    /// How many CQEs a fault held back so far.
    pub delays: u64,
    pub faults: Faults,
    /// The function's number, and the outbox for the observers of its requests.
    pub outbox: Option<(usize, Arc<Outbox>)>,
    /// Whether the addresses of its ports differ from those that the fabric knows.
    pub moved: bool,
    /// Trapped stores that may become BlueFlame copies.
    pub held: HeldStores,
}

impl EngineState {
    /// Forgets all queues, after they were destroyed.
    pub(super) fn forget_queues(&mut self) {
        self.active.clear();
        self.unfenced.clear();
        self.answering.clear();
        self.egress.clear();
        self.timers.clear();
        self.waits.queues.clear();
        self.errored.clear();
        self.flushes.clear();
        self.sweeps.clear();
        self.delayed.clear();
        self.moderated.clear();
    }

    /// Cancels the timer of a QP that waited until `at`, if it did.
    pub(super) fn stop_timer(&mut self, at: Option<u64>, qpn: u32) {
        if let Some(at) = at {
            self.timers.remove(&(at, qpn));
        }
    }
}

/// Send queues that wait until a word in memory fulfils their condition.
#[derive(Debug, Default)]
pub(crate) struct Waits {
    pub queues: Numbered<u32, WaitingQueue>,
    /// Whether every step of the function reads the words, without timers: a stepped model with
    /// timers would never become idle.
    pub at_every_step: bool,
}

/// A send queue that waits.
#[derive(Debug)]
pub(crate) struct WaitingQueue {
    pub condition: Condition,
    /// When the wait began, and when the word is read next.
    pub since: u64,
    pub due: u64,
}

impl Waits {
    pub(super) fn is_empty(&self) -> bool {
        self.queues.is_empty()
    }

    /// Ends the wait of a queue.
    pub(super) fn remove(&mut self, qpn: u32) {
        self.queues.remove(&qpn);
    }

    /// When the word of a waiting queue is read next; `None` if no queue waits, or every step reads
    /// the words.
    pub(super) fn next_due(&self) -> Option<u64> {
        let due = self.queues.values().map(|waiting| waiting.due).min();
        due.filter(|_| !self.at_every_step)
    }
}

/// A packet that a port must send.
#[derive(Debug)]
pub(crate) struct Egress {
    /// The port that the packet leaves from, from 1.
    pub port: u8,
    pub frame: Frame,
}

/// A CQE that a fault holds back.
#[derive(Debug)]
pub(crate) struct Delayed {
    pub cqn: u32,
    pub completion: Completion,
}

/// Trapped stores to the doorbell registers of a function that may continue, by page and register.
#[derive(Debug, Default)]
pub(crate) struct HeldStores(pub BTreeMap<(u32, u64), HeldStore>);

/// A store that may continue, or the stores that continued it so far.
#[derive(Debug)]
pub(crate) struct HeldStore {
    /// When the store counts as a doorbell.
    pub due: u64,
    pub bytes: Vec<u8>,
}

impl HeldStores {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// When the next held store counts as a doorbell.
    pub(crate) fn next_due(&self) -> Option<u64> {
        self.0.values().map(|copy| copy.due).min()
    }
}
