//! The requester's retransmission: sends missing packets again while retries are left, after a NAK
//! or a timeout.
//!
//! Source: InfiniBand specification, volume 1, 9.7.6 (the requester's timers and retries).

use verbless_prm::hot::cqe_syndrome;

use super::super::counters::Count;
use super::super::queue_pair::QueuePair;
use crate::clock::{ack_timeout, rnr_timer};
use crate::connection::{Distance, PsnPosition, Timer, UNLIMITED_RNR_RETRIES, Window, distance};
use crate::hca::objects::QpObject;

/// Minimum time in nanoseconds for which a requester waits for the rest of a response that has
/// begun.
const MIN_RESPONSE_WAIT: u64 = 1_000_000;

/// Ends a request with this syndrome.
pub(super) fn fail_request(qp: &mut QpObject, qpn: u32, request: usize, syndrome: u8) {
    match qp.runtime.connection().window.requests.get_mut(request) {
        Some(request) => request.failed = Some(syndrome),
        None => tracing::error!(qpn, request, syndrome, "a failing request is not outstanding"),
    }
}

/// Handles an answer at `arrived` that reveals a missing response to an earlier packet: requests
/// that response again.
pub(super) fn handle_lost_response(
    pair: &mut QueuePair<'_>,
    missing: PsnPosition,
    arrived: PsnPosition,
) {
    let window = &mut pair.qp.runtime.connection().window;
    let psn = window.psn(arrived);
    let before = std::mem::replace(&mut window.revealed, psn);
    // The peer answers in order. If this answer's PSN is behind that of the last one, it answers
    // the repeated request, and the start of that answer is lost as well. This costs no retry,
    // since a delayed packet looks the same; the timer runs on.
    let again = before
        .zip(psn)
        .is_some_and(|(before, psn)| matches!(distance(before, psn), Distance::Behind(_)));
    if again && window.missed == window.psn(missing) {
        pair.counters().count(Count::ImpliedNak);
        return pair.qp.runtime.connection().window.go_back(missing);
    }
    lost(pair, missing, Count::ImpliedNak);
}

/// Sends a packet again that is missing, or whose response is, unless its loss was reported before.
pub(super) fn lost(pair: &mut QueuePair<'_>, missing: PsnPosition, what: Count) {
    if is_new_loss(&mut pair.qp.runtime.connection().window, missing) {
        pair.counters().count(what);
        send_again(pair, missing);
    }
}

/// Whether the loss of this packet, or of its response, is new; else the packet is sent again
/// already, and a timeout reports its next loss.
fn is_new_loss(window: &mut Window, missing: PsnPosition) -> bool {
    let psn = window.psn(missing);
    std::mem::replace(&mut window.missed, psn) != psn
}

/// Sends the packets from `position` on again, if a retry is left.
pub(super) fn send_again(pair: &mut QueuePair<'_>, position: PsnPosition) {
    if pair.qp.requester.retries_left == 0 {
        return fail_request(
            pair.qp,
            pair.qpn,
            position.request,
            cqe_syndrome::TRANSPORT_RETRY_EXCEEDED,
        );
    }
    pair.qp.requester.retries_left -= 1;
    pair.qp.runtime.connection().window.go_back(position);
}

/// Whether the receiver was not ready and its time still runs.
pub(super) fn waits_for_receiver(qp: &mut QpObject) -> bool {
    let timer = qp.runtime.connection().window.timer;
    timer == Timer::NotReady && qp.runtime.resume_at.is_some()
}

/// RNR NAK: sends again after the receiver's RNR timer.
pub(super) fn handle_rnr_nak(pair: &mut QueuePair<'_>, position: PsnPosition, timer: u8) {
    if waits_for_receiver(pair.qp) {
        return;
    }
    let requester = &mut pair.qp.requester;
    let ends = requester.rnr_retry_limit != UNLIMITED_RNR_RETRIES;
    if ends && requester.rnr_retries_left == 0 {
        return fail_request(pair.qp, pair.qpn, position.request, cqe_syndrome::RNR_RETRY_EXCEEDED);
    }
    requester.rnr_retries_left -= u8::from(ends);
    pair.counters().count(Count::RnrNak);
    let window = &mut pair.qp.runtime.connection().window;
    window.go_back(position);
    window.timer = Timer::NotReady;
    wait_for(pair, rnr_timer(timer));
}

/// Starts the timer of the oldest request, if it does not run.
pub(super) fn start_timer(pair: &mut QueuePair<'_>) {
    if pair.qp.runtime.resume_at.is_some() {
        return;
    }
    let Some(time) = ack_timeout(pair.qp.requester.ack_timeout) else { return };
    let now = pair.context.now;
    let window = &mut pair.qp.runtime.connection().window;
    window.timer = Timer::Acknowledge;
    (window.since, window.expires) = (now, now.saturating_add(time));
    let begun = window.response_has_begun();
    window.response_wait = begun.then(|| MIN_RESPONSE_WAIT.max(window.slowest.saturating_mul(2)));
    window.repeated = false;
    let first = window.response_wait.unwrap_or(time).min(time);
    wait_for(pair, first);
}

/// Handles an expired timer: sends again from the oldest packet that is not acknowledged. If that
/// packet's response has begun, the requester requests its rest before the ACK timer expires: this
/// costs no retry, and each interval is twice the one before it.
pub(super) fn handle_timeout(pair: &mut QueuePair<'_>) {
    let now = pair.context.now;
    let window = &mut pair.qp.runtime.connection().window;
    window.forget_loss();
    let oldest = window.oldest();
    match window.response_wait {
        Some(response_wait) if now < window.expires => {
            let response_wait = response_wait.saturating_mul(2);
            let left = window.expires - now;
            (window.response_wait, window.repeated) = (Some(response_wait), true);
            if let Some(oldest) = oldest {
                window.go_back(oldest);
            }
            wait_for(pair, response_wait.min(left));
        }
        _ => {
            pair.counters().count(Count::Timeout);
            if let Some(oldest) = oldest {
                send_again(pair, oldest);
            }
        }
    }
}

/// Stops the ACK timer since an acknowledgement came, and measures how long that took.
pub(super) fn stop_timer_on_progress(pair: &mut QueuePair<'_>) {
    let now = pair.context.now;
    let runs = pair.qp.runtime.resume_at.is_some();
    let window = &mut pair.qp.runtime.connection().window;
    if runs && !window.repeated {
        window.slowest = window.slowest.max(now.saturating_sub(window.since));
    }
    stop_timer(pair);
}

pub(super) fn stop_timer(pair: &mut QueuePair<'_>) {
    let waits = pair.qp.runtime.resume_at.take();
    pair.context.state.stop_timer(waits, pair.qpn);
}

/// Gives the QP a turn after `time` nanoseconds, and replaces its timer.
fn wait_for(pair: &mut QueuePair<'_>, time: u64) {
    stop_timer(pair);
    let at = pair.context.now.saturating_add(time);
    pair.qp.runtime.resume_at = Some(at);
    pair.context.state.timers.insert((at, pair.qpn));
}
