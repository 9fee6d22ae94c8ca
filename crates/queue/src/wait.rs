//! Polling with a time limit.

use std::time::{Duration, Instant};

use crossbeam_utils::Backoff;

use verbless_ring::cq::{CompletionQueue, Cqe};

/// Time of polling without a sleep.
const SPIN_TIME: Duration = Duration::from_millis(1);
/// Length of a sleep between two polls after that.
const PAUSE: Duration = Duration::from_micros(50);

/// Polls until there is a CQE or `timeout` has passed. For some microseconds it polls without a
/// pause, then yields to other threads between two polls for a millisecond, and then sleeps 50
/// microseconds or somewhat more between them, which delays a CQE by as much. To sleep until the
/// event, arm the queue ([`CompletionQueue::arm`]). It does not notice that the queue or its device
/// fails: [`Cq::poll_within`](crate::Cq::poll_within) does.
pub fn poll_within(queue: &mut CompletionQueue, timeout: Duration) -> Option<Cqe> {
    // If the clock cannot express the end, it waits forever.
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
            left if now - start >= SPIN_TIME => {
                std::thread::sleep(left.unwrap_or(PAUSE).min(PAUSE))
            }
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
    #[allow(unsafe_code, reason = "the test acts as the device")]
    fn poll_within_ends_with_cqe_or_timeout() {
        let memory = |length| SharedMemory::zeroed(length).slice(0, length).unwrap();
        let ring = memory(4 * Cqe::BYTES);
        // SAFETY: only the polling thread writes there, as the device would.
        let own = |memory: &SharedMemory| unsafe { RingMemory::new(memory.clone()) };
        // SAFETY: only this page has the memory.
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
