//! Polling with a time limit.

use std::time::{Duration, Instant};

use crossbeam_utils::Backoff;

use verbless_ring::cq::{CompletionQueue, Cqe};

/// How long it looks without a pause, and the pauses then: short beside what has passed.
const EAGER: Duration = Duration::from_millis(1);
const PAUSE: Duration = Duration::from_micros(50);

/// Polls until there is a CQE or `timeout` has passed: looks again at once for some microseconds,
/// lets other threads run between two looks for a millisecond, and then sleeps 50 microseconds or
/// somewhat more between them: a CQE that takes longer is noticed as much later. To sleep until the
/// event, arm the queue ([`CompletionQueue::arm`]).
pub fn poll_within(queue: &mut CompletionQueue, timeout: Duration) -> Option<Cqe> {
    // Where the clock does not reach as far, it waits for good.
    let start = Instant::now();
    let end = start.checked_add(timeout);
    let backoff = Backoff::new();
    loop {
        if let Some(cqe) = queue.poll() {
            return Some(cqe);
        }
        let now = Instant::now();
        match end.map(|end| end.saturating_duration_since(now)) {
            Some(Duration::ZERO) => return None,
            left if now - start >= EAGER => std::thread::sleep(left.unwrap_or(PAUSE).min(PAUSE)),
            _ => backoff.snooze(),
        }
    }
}

#[cfg(test)]
mod tests {
    use verbless_prm::{Cqe, CqeOpcode};

    use super::*;
    use crate::cq::CompletionQueueParts;
    use crate::ring::{RecordMemory, RingMemory, SharedMemory};
    use crate::types::{Cqn, WqeIndex};
    use crate::uar::UarPage;

    #[test]
    #[allow(unsafe_code, reason = "the device's side is played here")]
    fn a_poll_that_waits_ends_with_the_completion_or_the_time() {
        let memory = |length| SharedMemory::zeroed(length).slice(0, length).unwrap();
        let ring = memory(4 * Cqe::BYTES);
        // SAFETY: what is written there in the device's place is by the thread that polls.
        let own = |memory: &SharedMemory| unsafe { RingMemory::new(memory.clone()) };
        // SAFETY: the memory is this page's alone.
        let uar = unsafe { UarPage::new(memory(4096)) }.unwrap();
        let mut queue = CompletionQueue::new(CompletionQueueParts {
            cqn: Cqn(1),
            ring: own(&ring),
            entry_size: Cqe::BYTES,
            record: RecordMemory::new(own(&memory(8))).unwrap(),
            uar,
        })
        .unwrap();
        let (start, wait) = (Instant::now(), Duration::from_millis(20));
        assert!(poll_within(&mut queue, wait).is_none());
        assert!(start.elapsed() >= wait);
        for (entry, timeout) in [Duration::ZERO, Duration::MAX].into_iter().enumerate() {
            let mut cqe = Cqe::zeroed();
            cqe.set_wqe_counter(7).set_opcode(CqeOpcode::REQUESTER);
            ring.write_at(entry * Cqe::BYTES, cqe.as_bytes()).unwrap();
            assert_eq!(poll_within(&mut queue, timeout).unwrap().wqe_index(), WqeIndex(7));
        }
    }
}
