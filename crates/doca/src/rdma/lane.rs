//! The jobs in flight of one of the two queues of an instance, in their order.

use std::mem;

use crate::buffer::Buf;
use crate::context::event::Tag;
use crate::context::failure::JobType;
use crate::types::UserData;

/// The jobs of one queue.
pub(super) struct Lane {
    /// The numbers of the next job and of the first in flight, modulo 2^32: what is between them
    /// is at its number modulo the length of `jobs`, a power of two, which is `mask` and 1.
    pub(super) next: u32,
    pub(super) first: u32,
    pub(super) mask: u32,
    /// Jobs in flight at most.
    pub(super) most: u32,
    pub(super) jobs: Box<[Option<Running>]>,
}

/// A job in flight.
pub(super) struct Running {
    pub(super) local: Option<Buf>,
    pub(super) remote: Option<Buf>,
    pub(super) user_data: UserData,
    pub(super) tag: Tag,
    pub(super) job_type: JobType,
}

impl Lane {
    pub(super) fn new(most: u32) -> Self {
        let places = most.next_power_of_two();
        let jobs = (0..places).map(|_| None).collect();
        Self { next: 0, first: 0, mask: places - 1, most, jobs }
    }

    #[inline(always)]
    pub(super) fn in_flight(&self) -> u32 {
        self.next.wrapping_sub(self.first)
    }

    #[inline(always)]
    pub(super) fn is_full(&self) -> bool {
        self.in_flight() >= self.most
    }

    #[inline(always)]
    pub(super) fn put(&mut self, job: Running) {
        if let Some(place) = self.jobs.get_mut((self.next & self.mask) as usize) {
            // Nothing is there, so that nothing is forgotten.
            mem::forget(place.take());
            *place = Some(job);
        }
        self.next = self.next.wrapping_add(1);
    }

    /// Takes the first job out.
    #[inline(always)]
    pub(super) fn take_first(&mut self) -> Option<Running> {
        let job = self.jobs.get_mut((self.first & self.mask) as usize)?.take()?;
        self.first = self.first.wrapping_add(1);
        Some(job)
    }
}
