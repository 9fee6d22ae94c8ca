//! The requester's retransmission: sends missing packets again while retries are left, after a NAK
//! or by its timers.
//!
//! Source: InfiniBand specification, volume 1, 9.7.6 (the requester's timers and retries).

use verbless_prm::hot::cqe_syndrome;

use super::super::context::QueuePair;
use super::super::counters::Count;
use crate::clock::rnr_timer;
use crate::connection::{PsnPosition, Timer, advance};

/// An RNR retry limit that means: for ever.
const FOR_EVER: u8 = 7;
/// Unit of the ACK timeout: 4.096 µs.
const TIMEOUT_UNIT: u64 = 4096;

impl QueuePair<'_> {
    /// A request ends with this syndrome.
    pub(super) fn decide_at(&mut self, request: usize, syndrome: u8) {
        match self.qp.runtime.connection().window.requests.get_mut(request) {
            Some(request) => request.failed = Some(syndrome),
            None => tracing::error!(self.qpn, request, syndrome, "a request that fails is gone"),
        }
    }

    /// A later packet was answered, and the response to this one is missing: it is asked for again.
    pub(super) fn response_lost(&mut self, missing: PsnPosition) {
        self.lost(missing, Count::ImpliedNak);
    }

    /// Sends a packet again that is missing, or whose response is, unless it was reported before.
    pub(super) fn lost(&mut self, missing: PsnPosition, what: Count) {
        if self.is_news(missing) {
            self.count(what);
            self.send_again(missing);
        }
    }

    /// Whether this packet, or its response, was not yet reported missing; else it is sent again
    /// already, and a timeout will tell if that is lost as well.
    fn is_news(&mut self, missing: PsnPosition) -> bool {
        let window = &mut self.qp.runtime.connection().window;
        let psn = window.requests.get(missing.request).map(|it| advance(it.psn, missing.packet));
        std::mem::replace(&mut window.missed, psn) != psn
    }

    /// Sends again what follows `place`, if a retry is left.
    pub(super) fn send_again(&mut self, place: PsnPosition) {
        if self.qp.requester.retries_left == 0 {
            return self.decide_at(place.request, cqe_syndrome::TRANSPORT_RETRY_EXCEEDED);
        }
        self.qp.requester.retries_left -= 1;
        self.qp.runtime.connection().window.go_back(place);
    }

    /// The receiver was not ready, and has still time.
    pub(super) fn waits_for_receiver(&mut self) -> bool {
        let timer = self.qp.runtime.connection().window.timer;
        timer == Timer::NotReady && self.qp.runtime.resume_at.is_some()
    }

    /// RNR NAK: sends again after a time that the receiver chose.
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
        self.count(Count::RnrNak);
        let window = &mut self.qp.runtime.connection().window;
        window.go_back(place);
        window.timer = Timer::NotReady;
        self.wait_for(rnr_timer(timer));
    }

    /// Lets the timer of the oldest request run, if it does not yet.
    pub(super) fn start_timer(&mut self) {
        if self.qp.runtime.resume_at.is_some() {
            return;
        }
        let time = match self.qp.requester.ack_timeout {
            0 => return,
            timeout => TIMEOUT_UNIT << timeout.min(31),
        };
        self.qp.runtime.connection().window.timer = Timer::Acknowledge;
        self.wait_for(time);
    }

    pub(super) fn stop_timer(&mut self) {
        let waits = self.qp.runtime.resume_at.take();
        self.context.state.stop_timer(waits, self.qpn);
    }

    /// Gives the QP a turn after `time` nanoseconds, in place of its timer so far.
    fn wait_for(&mut self, time: u64) {
        self.stop_timer();
        let at = self.context.now.saturating_add(time);
        self.qp.runtime.resume_at = Some(at);
        self.context.state.timers.insert((at, self.qpn));
    }
}
