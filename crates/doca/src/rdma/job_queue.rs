//! The jobs in flight of one of the two queues of an instance, in order.

use std::{fmt, mem};

use verbless_queue::QpQueues;

use super::properties::Properties;
use crate::buffer::Buf;
use crate::context::event::Tag;
use crate::context::job_type::JobType;
use crate::types::UserData;

/// The jobs of one queue.
pub(super) struct JobQueue {
    /// The numbers of the next job and of the first in flight, modulo 2^32. A job in between is at
    /// its number modulo the length of `jobs`, a power of two equal to `mask + 1`.
    pub(super) next: u32,
    pub(super) first: u32,
    pub(super) mask: u32,
    /// The number of jobs that may begin before another one ends.
    pub(super) left: u32,
    pub(super) jobs: Box<[JobSlot]>,
}

/// The queues of one start of an instance, and the slots of their jobs. The calls of the instance's
/// handle create and drop them: the engine only exchanges them, without allocation.
pub(super) struct StartQueues {
    pub(super) queues: QpQueues,
    pub(super) sends: JobQueue,
    pub(super) receives: JobQueue,
}

impl StartQueues {
    pub(super) fn new(queues: QpQueues, properties: &Properties) -> Self {
        let job_queues = [properties.send_queue_size, properties.recv_queue_size];
        let [sends, receives] = job_queues.map(JobQueue::new);
        Self { queues, sends, receives }
    }
}

impl fmt::Debug for StartQueues {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StartQueues").field("queues", &self.queues).finish_non_exhaustive()
    }
}

/// A job in flight.
pub(super) struct RunningJob {
    pub(super) local: Option<Buf>,
    pub(super) remote: Option<Buf>,
    pub(super) user_data: UserData,
    pub(super) tag: Tag,
    pub(super) job_type: JobType,
}

/// The slot of a job in flight. Each buffer is optional, rather than the whole job: to empty an
/// `Option<RunningJob>`, the compiler would move all its bytes.
#[derive(Default)]
pub(super) struct JobSlot {
    pub(super) local: Option<Buf>,
    pub(super) remote: Option<Buf>,
    user_data: UserData,
    tag: Tag,
    /// `None` in an empty slot.
    job_type: Option<JobType>,
}

impl JobSlot {
    /// Puts a job into an empty slot.
    #[inline(always)]
    pub(super) fn put(&mut self, job: RunningJob) {
        let RunningJob { local, remote, user_data, tag, job_type } = job;
        // The slot is empty, so this leaks nothing.
        mem::forget((self.local.take(), self.remote.take()));
        (self.local, self.remote) = (local, remote);
        (self.user_data, self.tag, self.job_type) = (user_data, tag, Some(job_type));
    }

    /// Takes the job out.
    #[inline(always)]
    fn take(&mut self) -> Option<RunningJob> {
        let job_type = self.job_type.take()?;
        let (local, remote) = (self.local.take(), self.remote.take());
        Some(RunningJob { local, remote, user_data: self.user_data, tag: self.tag, job_type })
    }
}

impl JobQueue {
    pub(super) fn new(most: u32) -> Self {
        let slots = most.next_power_of_two();
        let jobs = (0..slots).map(|_| JobSlot::default()).collect();
        Self { next: 0, first: 0, mask: slots - 1, left: most, jobs }
    }

    #[inline(always)]
    pub(super) fn in_flight(&self) -> u32 {
        self.next.wrapping_sub(self.first)
    }

    pub(super) fn is_full(&self) -> bool {
        self.left == 0
    }

    /// Puts a job into the next slot; there is room.
    pub(super) fn put(&mut self, job: RunningJob) {
        if let Some(slot) = self.jobs.get_mut((self.next & self.mask) as usize) {
            slot.put(job);
        }
        self.next = self.next.wrapping_add(1);
        self.left -= 1;
    }

    /// Takes the last job out, which has not begun.
    pub(super) fn take_last(&mut self) -> Option<RunningJob> {
        self.next = self.next.wrapping_sub(1);
        self.left += 1;
        self.jobs.get_mut((self.next & self.mask) as usize)?.take()
    }

    /// Takes the first job out.
    #[inline(always)]
    pub(super) fn take_first(&mut self) -> Option<RunningJob> {
        let job = self.jobs.get_mut((self.first & self.mask) as usize)?.take()?;
        self.first = self.first.wrapping_add(1);
        self.left += 1;
        Some(job)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(number: u64) -> RunningJob {
        RunningJob {
            local: None,
            remote: None,
            user_data: UserData(number),
            tag: Tag::default(),
            job_type: JobType::DmaMemcpy,
        }
    }

    #[test]
    fn job_queue_is_bounded_fifo() {
        let mut job_queue = JobQueue::new(3);
        // Wraps around the end of the slots, and of the numbers.
        (job_queue.next, job_queue.first) = (u32::MAX - 5, u32::MAX - 5);
        for round in 0..4 {
            for number in 0..3 {
                assert!(!job_queue.is_full());
                assert_eq!(job_queue.in_flight(), number);
                job_queue.put(job(10 * round + u64::from(number)));
            }
            assert!(job_queue.is_full());
            assert_eq!(job_queue.take_last().map(|it| it.user_data.0), Some(10 * round + 2));
            assert!(!job_queue.is_full());
            for number in 0..2 {
                assert_eq!(
                    job_queue.take_first().map(|it| it.user_data.0),
                    Some(10 * round + number)
                );
            }
            assert!(job_queue.take_first().is_none());
            assert_eq!((job_queue.in_flight(), job_queue.left), (0, 3));
        }
    }
}
