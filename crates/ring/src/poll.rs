//! The poll loop. A plain CQE (success, no inline data) completes its request from the ring; any
//! other is copied first.

use crate::completion::CompletionError;
use crate::cq::CompletionQueue;
use crate::ring::CqeView;

/// A queue that a completion queue reports to.
pub(crate) trait Poll {
    /// A completed request.
    type Completion;

    /// Whether the entry is software-owned and plain.
    fn is_plain(view: &CqeView<'_>) -> bool;

    /// Completes the request of a plain CQE. `None` if the CQE is of another queue or invalid: then
    /// nothing changes.
    fn complete_fast(&mut self, view: &CqeView<'_>) -> Option<Self::Completion>;

    /// Takes a CQE off the fast path, and completes its request. Skips retired CQEs; `None`, with
    /// the consumer index written, if no other is left.
    fn take_slow(&mut self, cq: &mut CompletionQueue) -> Polled<Self::Completion>;
}

/// Nothing, or the outcome of a request.
pub(crate) type Polled<C> = Option<Result<C, CompletionError>>;

/// Takes one CQE, if there is one, and returns its entry to the device.
///
/// It shares no function with [`poll_into`]: the compiler would copy the outcome once more.
#[inline(always)]
pub(crate) fn poll<Q: Poll>(queue: &mut Q, cq: &mut CompletionQueue) -> Polled<Q::Completion> {
    let view = cq.view();
    if Q::is_plain(&view) {
        if let Some(completion) = queue.complete_fast(&view) {
            cq.step();
            cq.publish();
            return Some(Ok(completion));
        }
    } else if view.is_device_owned() {
        return None;
    }
    poll_slow(queue, cq)
}

#[inline(never)]
fn poll_slow<Q: Poll>(queue: &mut Q, cq: &mut CompletionQueue) -> Polled<Q::Completion> {
    let polled = queue.take_slow(cq);
    cq.publish();
    polled
}

/// Takes CQEs until `into` is full or none is left; returns their number. The consumer index is
/// written once, at the end.
#[inline(always)]
pub(crate) fn poll_into<Q: Poll>(
    queue: &mut Q,
    cq: &mut CompletionQueue,
    into: &mut [Polled<Q::Completion>],
) -> usize {
    let (room, mut places) = (into.len(), into.iter_mut());
    let mut left_over = 0;
    for place in &mut places {
        let view = cq.view();
        if Q::is_plain(&view) {
            if let Some(completion) = queue.complete_fast(&view) {
                cq.step();
                *place = Some(Ok(completion));
                continue;
            }
        } else if view.is_device_owned() {
            left_over = 1;
            break;
        }
        let Some(polled) = queue.take_slow(cq) else {
            left_over = 1;
            break;
        };
        *place = Some(polled);
    }
    let polled = room - places.len() - left_over;
    if polled != 0 {
        cq.publish();
    }
    polled
}
