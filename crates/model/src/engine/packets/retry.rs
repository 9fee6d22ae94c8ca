//! The requester's retransmission: sends missing packets again while retries are left, after a NAK
//! or a timeout.
//!
//! Source: InfiniBand specification, volume 1, 9.7.6 (the requester's timers and retries).

use verbless_prm::hot::cqe_syndrome;

use super::super::counters::Count;
use super::super::queue_pair::QueuePair;
use crate::clock::rnr_timer;
use crate::connection::{Distance, PsnPosition, Timer, distance};

/// The RNR retry limit without end.
const FOR_EVER: u8 = 7;
/// Unit of the ACK timeout: 4.096 µs.
const TIMEOUT_UNIT: u64 = 4096;
/// Minimum time in nanoseconds for which a requester waits for the rest of a response that has
/// begun.
const MIN_RESPONSE_WAIT: u64 = 1_000_000;

impl QueuePair<'_> {
    /// Ends a request with this syndrome.
    pub(super) fn decide_at(&mut self, request: usize, syndrome: u8) {
        match self.qp.runtime.connection().window.requests.get_mut(request) {
            Some(request) => request.failed = Some(syndrome),
            None => {
                tracing::error!(
                    qpn = self.qpn,
                    request,
                    syndrome,
                    "a failing request is not outstanding"
                )
            }
        }
    }

    /// Handles an answer at `arrived` that reveals a missing response to an earlier packet:
    /// requests that response again.
    pub(super) fn response_lost(&mut self, missing: PsnPosition, arrived: PsnPosition) {
        let window = &mut self.qp.runtime.connection().window;
        let psn = window.psn(arrived);
        let before = std::mem::replace(&mut window.revealed, psn);
        // The peer answers in order. An answer after one that came already answers the repeated
        // request, and the beginning of that answer is lost as well. This costs no retry, since a
        // delayed packet looks the same; the timer runs on.
        let again = before
            .zip(psn)
            .is_some_and(|(before, psn)| matches!(distance(before, psn), Distance::Behind(_)));
        if again && window.missed == window.psn(missing) {
            self.counters().count(Count::ImpliedNak);
            return self.qp.runtime.connection().window.go_back(missing);
        }
        self.lost(missing, Count::ImpliedNak);
    }

    /// Sends a packet again that is missing, or whose response is, unless its loss was reported
    /// before.
    pub(super) fn lost(&mut self, missing: PsnPosition, what: Count) {
        if self.is_news(missing) {
            self.counters().count(what);
            self.send_again(missing);
        }
    }

    /// Whether the loss of this packet, or of its response, is new; else the packet is sent again
    /// already, and a timeout reports its next loss.
    fn is_news(&mut self, missing: PsnPosition) -> bool {
        let window = &mut self.qp.runtime.connection().window;
        let psn = window.psn(missing);
        std::mem::replace(&mut window.missed, psn) != psn
    }

    /// Sends the packets from `place` on again, if a retry is left.
    pub(super) fn send_again(&mut self, place: PsnPosition) {
        if self.qp.requester.retries_left == 0 {
            return self.decide_at(place.request, cqe_syndrome::TRANSPORT_RETRY_EXCEEDED);
        }
        self.qp.requester.retries_left -= 1;
        self.qp.runtime.connection().window.go_back(place);
    }

    /// Whether the receiver was not ready and its time still runs.
    pub(super) fn waits_for_receiver(&mut self) -> bool {
        let timer = self.qp.runtime.connection().window.timer;
        timer == Timer::NotReady && self.qp.runtime.resume_at.is_some()
    }

    /// RNR NAK: sends again after the receiver's RNR timer.
    pub(super) fn not_ready(&mut self, place: PsnPosition, timer: u8) {
        if self.waits_for_receiver() {
            return;
        }
        let requester = &mut self.qp.requester;
        let ends = requester.rnr_retry_limit != FOR_EVER;
        if ends && requester.rnr_retries_left == 0 {
            return self.decide_at(place.request, cqe_syndrome::RNR_RETRY_EXCEEDED);
        }
        requester.rnr_retries_left -= u8::from(ends);
        self.counters().count(Count::RnrNak);
        let window = &mut self.qp.runtime.connection().window;
        window.go_back(place);
        window.timer = Timer::NotReady;
        self.wait_for(rnr_timer(timer));
    }

    /// Starts the timer of the oldest request, if it does not run.
    pub(super) fn start_timer(&mut self) {
        if self.qp.runtime.resume_at.is_some() {
            return;
        }
        let time = match self.qp.requester.ack_timeout {
            0 => return,
            timeout => TIMEOUT_UNIT << timeout.min(31),
        };
        let now = self.context.now;
        let window = &mut self.qp.runtime.connection().window;
        window.timer = Timer::Acknowledge;
        (window.since, window.expires) = (now, now.saturating_add(time));
        let begun = window.response_has_begun();
        window.patience = begun.then(|| MIN_RESPONSE_WAIT.max(window.slowest.saturating_mul(2)));
        window.repeated = false;
        let first = window.patience.unwrap_or(time).min(time);
        self.wait_for(first);
    }

    /// Handles the expired timer: sends again from the oldest packet that is not acknowledged. The
    /// rest of a response that has begun is requested before the ACK timer expires, at no retry;
    /// the next time after twice as long.
    pub(super) fn expired(&mut self) {
        let now = self.context.now;
        let window = &mut self.qp.runtime.connection().window;
        window.forget_loss();
        let oldest = window.oldest();
        match window.patience {
            Some(patience) if now < window.expires => {
                let patience = patience.saturating_mul(2);
                let left = window.expires - now;
                (window.patience, window.repeated) = (Some(patience), true);
                if let Some(oldest) = oldest {
                    window.go_back(oldest);
                }
                self.wait_for(patience.min(left));
            }
            _ => {
                self.counters().count(Count::Timeout);
                if let Some(oldest) = oldest {
                    self.send_again(oldest);
                }
            }
        }
    }

    /// Stops the ACK timer since an acknowledgement came, and measures how long that took.
    pub(super) fn progressed(&mut self) {
        let now = self.context.now;
        let runs = self.qp.runtime.resume_at.is_some();
        let window = &mut self.qp.runtime.connection().window;
        if runs && !window.repeated {
            window.slowest = window.slowest.max(now.saturating_sub(window.since));
        }
        self.stop_timer();
    }

    pub(super) fn stop_timer(&mut self) {
        let waits = self.qp.runtime.resume_at.take();
        self.context.state.stop_timer(waits, self.qpn);
    }

    /// Gives the QP a turn after `time` nanoseconds, and replaces its timer.
    fn wait_for(&mut self, time: u64) {
        self.stop_timer();
        let at = self.context.now.saturating_add(time);
        self.qp.runtime.resume_at = Some(at);
        self.context.state.timers.insert((at, self.qpn));
    }
}
