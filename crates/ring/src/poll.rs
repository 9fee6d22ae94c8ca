//! The poll loop. A CQE of the usual kind is completed where it is in the ring; any other is copied
//! out first.

use crate::completion::CompletionError;
use crate::cq::CompletionQueue;
use crate::ring::Look;

/// A queue whose requests the CQEs of a completion queue complete.
pub(crate) trait Poll {
    /// A completed request.
    type Completion;

    /// Whether the entry is ours and of the usual kind.
    fn is_usual(look: &Look<'_>) -> bool;

    /// Completes the request of a usual CQE. `None`, and nothing changes, if the CQE is of another
    /// queue, or invalid.
    fn complete_usual(&mut self, look: &Look<'_>) -> Option<Self::Completion>;

    /// Takes a CQE off the fast path, and completes its request. Skips retired CQEs; `None`, with
    /// the consumer index written, if no other is left.
    fn take_other(&mut self, cq: &mut CompletionQueue) -> Polled<Self::Completion>;
}

/// Nothing, or the outcome of a request.
pub(crate) type Polled<C> = Option<Result<C, CompletionError>>;

/// Takes one CQE, if there is one, and returns its entry to the device.
///
/// It does not share a function with [`poll_into`] that takes a CQE: the compiler would copy the
/// outcome once more.
#[inline(always)]
pub(crate) fn poll<Q: Poll>(queue: &mut Q, cq: &mut CompletionQueue) -> Polled<Q::Completion> {
    let look = cq.look();
    if Q::is_usual(&look) {
        if let Some(completion) = queue.complete_usual(&look) {
            cq.step();
            cq.publish();
            return Some(Ok(completion));
        }
    } else if look.is_not_ours() {
        return None;
    }
    poll_other(queue, cq)
}

#[inline(never)]
fn poll_other<Q: Poll>(queue: &mut Q, cq: &mut CompletionQueue) -> Polled<Q::Completion> {
    let polled = queue.take_other(cq);
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
        let look = cq.look();
        if Q::is_usual(&look) {
            if let Some(completion) = queue.complete_usual(&look) {
                cq.step();
                *place = Some(Ok(completion));
                continue;
            }
        } else if look.is_not_ours() {
            left_over = 1;
            break;
        }
        let Some(polled) = queue.take_other(cq) else {
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
