//! Completion queues: writing CQEs, overrun, arming, moderation.

use std::mem::offset_of;
use verbless_prm::hot::{self, CqArm, CqRecordConsumer, OpOwn};
use verbless_prm::{CqErrorSyndrome, CqPeriodMode};

use super::arrivals;
use super::cqe::Completion;
use super::events::Events;
use super::ring::record;
use super::state::{Delayed, EngineState};
use crate::hca::Refusal;
use crate::hca::objects::{Arm, Cq, EventTarget, QueueMemory};
use crate::memory::HostMemory;

/// CQ indexes count in 24 bits where software writes them.
const INDEX_MASK: u32 = 0xff_ffff;
/// Half of [`INDEX_MASK`]'s range: an index this far ahead or farther counts as behind.
const HALF_RANGE: u32 = 1 << 23;

/// The CQ takes no more CQEs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Overrun;

/// A CQ, with the context of its work.
pub(super) struct CompletionQueue<'a> {
    pub cqn: u32,
    pub cq: &'a mut Cq,
    pub events: Events<'a>,
    pub state: &'a mut EngineState,
    pub memory: &'a dyn HostMemory,
    pub now: u64,
}

impl CompletionQueue<'_> {
    /// Writes a CQE and the event that it causes; an injected fault may drop or delay it.
    pub(super) fn complete(mut self, completion: Completion) -> Result<(), Overrun> {
        if self.state.faults.fails_completion_queue(self.cqn) {
            tracing::info!(cqn = self.cqn, "an injected fault fails a completion queue");
            return Err(self.fail(CqErrorSyndrome::ACCESS_VIOLATION));
        }
        let faults = &mut self.state.faults;
        if faults.lose_completions.hits() {
            tracing::info!(cqn = self.cqn, "an injected fault loses a completion");
            return Ok(());
        }
        // Delayed CQEs of one CQ stay in order.
        let (behind, last) = self.cq.runtime.delayed;
        let due = if behind > 0 { last } else { 0 };
        let due = due.max(match faults.delay_completions.hits() {
            true => self.now.saturating_add(faults.delay),
            false => 0,
        });
        if due == 0 {
            return self.write(&completion);
        }
        self.cq.runtime.delayed = (behind + 1, due);
        self.state.delays += 1;
        let delayed = Delayed { cqn: self.cqn, completion };
        self.state.delayed.insert((due, self.state.delays), delayed);
        Ok(())
    }

    /// Writes a CQE whose delay is over.
    pub(super) fn write_delayed(mut self, completion: &Completion) {
        self.cq.runtime.delayed.0 = self.cq.runtime.delayed.0.saturating_sub(1);
        // An event has reported an overrun already.
        let _ = self.write(completion);
    }

    /// Count of CQEs that software has not consumed, as of the last read of the consumer index.
    fn used(&self) -> u32 {
        self.cq.producer.wrapping_sub(self.cq.runtime.consumer) & INDEX_MASK
    }

    /// Reads how many CQEs software has consumed.
    fn read_consumer(&mut self) {
        if let Ok(word) = record(
            self.memory,
            self.cq
                .record
                .wrapping_add(offset_of!(hot::CqDoorbellRecord, cq_record_consumer) as u64),
        ) {
            self.cq.runtime.consumer = CqRecordConsumer::from_bits(word).consumer_index();
        }
    }

    /// Fails the CQ for this reason, and reports it by an event.
    pub(super) fn fail(&mut self, why: CqErrorSyndrome) -> Overrun {
        if self.cq.failure.is_none() {
            self.cq.failure = Some(why);
            self.events.cq_error(self.cqn, why);
        }
        Overrun
    }

    fn write(&mut self, completion: &Completion) -> Result<(), Overrun> {
        if self.cq.failure.is_some() {
            return Err(Overrun);
        }
        let size = 1_u32.checked_shl(self.cq.log_size).ok_or(Overrun)?;
        if self.used() >= size && !self.cq.overrun_ignore {
            self.read_consumer();
            if self.used() >= size {
                tracing::info!(cqn = self.cqn, size, "a completion queue overran");
                return Err(self.fail(CqErrorSyndrome::OVERRUN));
            }
        }
        let cq = &mut *self.cq;
        let entry = u64::from(cq.cqe_bytes);
        // A collapsed CQ has one entry, which holds the newest CQE: its owner bit keeps the value
        // of the first round (DPDK 9c0e15a117).
        let collapsed = cq.context.cc();
        let index = if collapsed { 0 } else { cq.producer & (size - 1) };
        let at = u64::from(index) * entry;
        let owner = !collapsed && cq.producer >> cq.log_size & 1 != 0;
        let mut body = completion.body;
        body[offset_of!(hot::Cqe, cqe_tail.op_own)] |= OpOwn::new().with_owner(owner).into_bits();
        let written = match completion.first_half.as_ref().filter(|_| entry == 128) {
            half if collapsed => {
                std::hint::cold_path();
                let first = half.map_or(Ok(()), |half| cq.memory.write(self.memory, at, half));
                first.and_then(|()| cq.memory.write_over(self.memory, at + entry - 64, &body))
            }
            Some(half) => {
                let mut whole = [0; 128];
                whole[..64].copy_from_slice(half);
                whole[64..].copy_from_slice(&body);
                cq.memory.write_entry(self.memory, at, &whole)
            }
            None => cq.memory.write_entry(self.memory, at + entry - 64, &body),
        };
        if let Err(fault) = written {
            if self.memory.is_gone(fault.address) {
                tracing::debug!(cqn = self.cqn, "a CQE for a program that has exited");
            } else {
                tracing::warn!(cqn = self.cqn, %fault, "a completion queue cannot be written");
            }
            return Err(self.fail(CqErrorSyndrome::ACCESS_VIOLATION));
        }
        arrivals::completed(self.state, completion);
        cq.producer = cq.producer.wrapping_add(1);
        cq.runtime.written_at = self.now;
        if completion.solicited {
            cq.solicited = Some(cq.producer);
        }
        if cq.context.always_armed_cq() && cq.arm == Arm::Idle {
            cq.arm = Arm::Next { consumer: cq.notified, sequence: 0 };
        }
        if cq.arm != Arm::Idle {
            self.raise_if_due();
        }
        Ok(())
    }

    /// Ends the CQ's buffer with a CQE of opcode RESIZE, and continues in the new buffer; indexes
    /// count on. Software copies the CQEs that it has not consumed to one entry further on, so that
    /// the two buffers together have no gap in the indexes (Linux `copy_resize_cqes`).
    ///
    /// That CQE is like any other: it needs room, software consumes it, and an arm for the next CQE
    /// reports it. The resize is refused unless the old buffer has room for that CQE, and the new
    /// buffer for every unconsumed CQE.
    pub(super) fn resize(mut self, memory: QueueMemory, log_size: u32) -> Result<(), Refusal> {
        if self.cq.failure.is_some() {
            return Err(Refusal::CqState);
        }
        self.read_consumer();
        let size = 1_u32.checked_shl(self.cq.log_size.min(log_size)).ok_or(Refusal::CqSize)?;
        // Software that ignores overruns need not update the record.
        if self.used() >= size && !self.cq.overrun_ignore {
            return Err(Refusal::CqOutstanding);
        }
        self.write(&Completion::resize()).map_err(|Overrun| Refusal::CqState)?;
        (self.cq.memory, self.cq.log_size) = (memory, log_size);
        Ok(())
    }

    /// Takes an arm request: `word` is that of the doorbell or of the record.
    ///
    /// A request with a sequence number that has fired already has no effect: software has not
    /// seen that event yet.
    pub(super) fn arm(&mut self, word: u32) {
        self.apply_arm_request(word, false);
    }

    /// Takes an arm request, or a guessed one (`guessed`).
    fn apply_arm_request(&mut self, word: u32, guessed: bool) {
        let request = CqArm::from_bits(word);
        self.cq.runtime.arm_word = Some(word);
        let (consumer, sequence) = (request.arm_consumer_index(), request.arm_sn());
        if self.cq.runtime.fired == Some(sequence) {
            return;
        }
        self.cq.runtime.fired = None;
        self.cq.runtime.guessed = guessed;
        self.cq.arm = match request.arm_solicited_only() {
            true => Arm::Solicited { consumer, sequence },
            false => Arm::Next { consumer, sequence },
        };
        self.raise_if_due();
    }

    /// Takes an arm request of the DPA, which names only the consumer index: a CQE after that
    /// index causes an event, even if an earlier event reported it.
    pub(super) fn arm_at(&mut self, consumer: u32) {
        self.cq.runtime.consumer = consumer;
        self.cq.notified = consumer;
        self.cq.runtime.fired = None;
        self.cq.arm = Arm::Next { consumer, sequence: 0 };
        self.raise_if_due();
    }

    /// Reads the arm word of the record, for a CQ whose doorbell another CQ's doorbell on the same
    /// page may have overwritten.
    ///
    /// A record that still holds zeros may be a first request (sequence 0, index 0) or no request.
    /// The model takes it as a request: an extra event is harmless, a missing one hangs the
    /// program. Such an event does not use up a sequence number, so there is at most one extra
    /// event.
    pub(super) fn arm_from_record(&mut self) {
        match record(
            self.memory,
            self.cq.record.wrapping_add(offset_of!(hot::CqDoorbellRecord, cq_record_arm) as u64),
        ) {
            // Programs of the DPA arm by outboxes, whose doorbells are not lost, and leave it zero.
            Ok(0) if !matches!(self.cq.target, EventTarget::Eq(_)) => {}
            Ok(word) if self.cq.runtime.arm_word != Some(word) => {
                self.apply_arm_request(word, word == 0);
            }
            Ok(_) => {}
            Err(fault) => tracing::debug!(cqn = self.cqn, %fault, "a CQ's record cannot be read"),
        }
    }

    /// Reports the events that moderation held back long enough.
    pub(super) fn report_late(&mut self) {
        self.cq.runtime.moderated = None;
        self.raise_if_due();
    }

    /// Reports to the EQ, once, if the CQ holds a CQE that its arm request waits for: one that
    /// software has not seen and no event has reported. So software may arm first and then poll the
    /// CQEs of the last event (perftest does), and the next event reports a new CQE.
    ///
    /// Moderation may hold the event back.
    fn raise_if_due(&mut self) {
        let cq = &mut *self.cq;
        let notified = cq.notified;
        let ahead = |index: u32, of: u32| {
            let distance = index.wrapping_sub(of) & INDEX_MASK;
            distance != 0 && distance < HALF_RANGE
        };
        let after = |index: u32, consumer: u32| ahead(index, consumer) && ahead(index, notified);
        let sequence = match cq.arm {
            Arm::Next { consumer, sequence } if after(cq.producer, consumer) => sequence,
            Arm::Solicited { consumer, sequence }
                if cq.solicited.is_some_and(|index| after(index, consumer)) =>
            {
                sequence
            }
            _ => return,
        };
        if let Some(due) = moderation(cq, self.now) {
            if cq.runtime.moderated.is_none() {
                cq.runtime.moderated = Some(due);
                self.state.moderated.insert((due, self.cqn));
            }
            return;
        }
        cq.runtime.reported_at = self.now;
        cq.arm = Arm::Idle;
        cq.runtime.fired = (!cq.runtime.guessed).then_some(sequence);
        cq.notified = cq.producer;
        match cq.target {
            EventTarget::Eq(eqn) => self.events.completion(eqn, self.cqn),
            EventTarget::Dpa(target) => self.events.program(target, self.cqn),
        }
    }
}

/// The time until which moderation holds a CQ's event back: until `cq_max_count` CQEs are
/// unreported, or `cq_period` microseconds have passed since the last event, or the last CQE. 0 in
/// either field disables moderation.
fn moderation(cq: &Cq, now: u64) -> Option<u64> {
    let context = &cq.context;
    let (period, max_count) = (context.cq_period(), context.cq_max_count());
    if period == 0 || max_count == 0 {
        return None;
    }
    let since = cq.producer.wrapping_sub(cq.notified) & INDEX_MASK;
    let reported =
        |index: u32| index.wrapping_sub(cq.notified).wrapping_sub(1) & INDEX_MASK >= HALF_RANGE;
    let urgent =
        context.scqe_break_moderation_en() && cq.solicited.is_some_and(|index| !reported(index));
    if since >= max_count.into() || urgent {
        return None;
    }
    let from = match context.cq_period_mode() {
        CqPeriodMode::START_FROM_CQE => cq.runtime.written_at,
        _ => cq.runtime.reported_at,
    };
    let due = from.saturating_add(u64::from(period) * 1000);
    (due > now).then_some(due)
}
