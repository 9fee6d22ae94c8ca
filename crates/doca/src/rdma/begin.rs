//! Begins jobs: posts them, or keeps them until they can be posted.
//!
//! Most jobs have unchained buffers with cached keys. Inlined code posts these at their submission:
//! the compiler knows the operation there, and drops the code of the others. A separate function
//! checks and posts all other jobs.

use verbless_queue::wr::{CompareSwap, FetchAdd, Read, Send, SendImm, Write, WriteImm};
use verbless_queue::{Lkey, RemoteAddr, Rkey, Sge};

use super::engine::RdmaEngine;
use super::instance::Instance;
use super::job::{JobOperation, RdmaJob};
use super::job_queue::RunningJob;
use crate::buffer::Buf;
use crate::context::device_cq::{DeviceCq, DeviceCqLookup};
use crate::context::event::Tag;
use crate::error::Refused;
use crate::types::UserData;

impl RdmaEngine {
    /// Begins a job if its buffers are unchained with cached keys, and it can begin; otherwise
    /// the job is kept for [`RdmaEngine::begin_kept`]. The work queue has reserved room for its
    /// completion.
    ///
    /// The job is in its slot before the post, and its keys are read from there, so that its parts
    /// need not be kept in registers meanwhile.
    #[inline(always)]
    pub(super) fn begin_simple(&mut self, job: RdmaJob, tag: Tag) -> bool {
        let RdmaJob { user_data, operation, local, remote, .. } = job;
        let ends = known_ends(local.as_ref(), remote.as_ref(), operation, &self.instance);
        let Some((here, there)) = ends else {
            self.kept_operation = operation;
            return self.keep(local, remote, user_data, tag);
        };
        let job_queue = match operation {
            JobOperation::Receive => &mut self.receives,
            _ => &mut self.sends,
        };
        let Some(slot) = job_queue.jobs.get_mut((job_queue.next & job_queue.mask) as usize) else {
            self.kept_operation = operation;
            return self.keep(local, remote, user_data, tag);
        };
        let none;
        (job_queue.left, none) = job_queue.left.overflowing_sub(1);
        if none {
            job_queue.left = 0;
            self.kept_operation = operation;
            return self.keep(local, remote, user_data, tag);
        }
        let number = u64::from(job_queue.next);
        let job_type = operation.job_type();
        slot.put(RunningJob { local, remote, user_data, tag, job_type });
        job_queue.next = job_queue.next.wrapping_add(1);
        let key = |buffer: &Option<Buf>| buffer.as_ref().map_or(Lkey(0), Buf::lkey);
        let here = Sge::new(here.0, here.1, key(&slot.local));
        let there = RemoteAddr::new(there, Rkey(key(&slot.remote).0));
        let queue = &mut self.queues.send;
        let posted = match operation {
            JobOperation::Receive => self.queues.post_receive(here, number),
            JobOperation::Send => queue.post(&Send::new(here).signaled(), number),
            JobOperation::SendImm(with) => queue.post(&SendImm::new(here, with).signaled(), number),
            JobOperation::Write => queue.post(&Write::new(here, there).signaled(), number),
            JobOperation::WriteImm(with) => {
                queue.post(&WriteImm::new(here, there, with).signaled(), number)
            }
            JobOperation::Read => queue.post(&Read::new(here, there).signaled(), number),
            JobOperation::CompareSwap { compare, swap } => {
                queue.post(&CompareSwap::new(here, there, compare, swap).signaled(), number)
            }
            JobOperation::FetchAdd(add) => {
                queue.post(&FetchAdd::new(here, there, add).signaled(), number)
            }
        };
        if posted.is_err() {
            self.kept_operation = operation;
            return self.take_out();
        }
        true
    }

    /// The post of the last job failed: keeps it.
    #[cold]
    #[inline(never)]
    fn take_out(&mut self) -> bool {
        let job_queue = self.job_queue(self.kept_operation == JobOperation::Receive);
        let Some(RunningJob { local, remote, user_data, tag, .. }) = job_queue.take_last() else {
            return false;
        };
        self.keep(local, remote, user_data, tag)
    }

    /// Keeps a job that has not begun, and whose operation is kept.
    #[cold]
    #[inline(never)]
    fn keep(
        &mut self,
        local: Option<Buf>,
        remote: Option<Buf>,
        user_data: UserData,
        tag: Tag,
    ) -> bool {
        let operation = self.kept_operation;
        self.kept = Some((RdmaJob { ctx: self.ctx, user_data, operation, local, remote }, tag));
        false
    }

    /// Begins the kept job, of any type; the error has the reason of a refusal.
    pub(super) fn begin_kept(
        &mut self,
        device_cq: DeviceCqLookup<'_>,
    ) -> std::result::Result<(), Refused<RdmaJob>> {
        self.begin_checked(device_cq.get())
    }

    fn begin_checked(&mut self, device_cq: &DeviceCq) -> std::result::Result<(), Refused<RdmaJob>> {
        let (job, tag) = self.kept.take().expect("a job is kept");
        match self.post_checked(&job, device_cq) {
            Ok(()) => {
                let RdmaJob { user_data, operation, local, remote, .. } = job;
                let job_type = operation.job_type();
                let running = RunningJob { local, remote, user_data, tag, job_type };
                self.job_queue(operation == JobOperation::Receive).put(running);
                Ok(())
            }
            Err(error) => Err(Refused::new(error, job)),
        }
    }
}

/// Address and bytes of the local memory of a job of unchained buffers with cached keys, and the
/// address at the peer, if the instance accepts the job now.
#[inline(always)]
fn known_ends(
    local: Option<&Buf>,
    remote: Option<&Buf>,
    operation: JobOperation,
    instance: &Instance,
) -> Option<((u64, u32), u64)> {
    let local = local?;
    let here = match operation {
        JobOperation::Receive => local.rest_writable_by(instance.receive_device())?,
        JobOperation::Send
        | JobOperation::SendImm(_)
        | JobOperation::Write
        | JobOperation::WriteImm(_) => local.readable_by(instance.send_device())?,
        JobOperation::Read | JobOperation::CompareSwap { .. } | JobOperation::FetchAdd(_) => {
            local.data_writable_by(instance.send_device())?
        }
    };
    // A buffer with a cached key has at most 2^30 bytes.
    let known = (here.address, here.length as u32);
    if matches!(operation, JobOperation::Receive | JobOperation::Send | JobOperation::SendImm(_)) {
        return Some((known, 0));
    }
    let there = remote?.rest_of_peer(instance.peer_device())?;
    let fits = match operation {
        JobOperation::CompareSwap { .. } | JobOperation::FetchAdd(_) => {
            here.length == 8 && there.length >= 8 && there.address.is_multiple_of(8)
        }
        _ => here.length <= there.length,
    };
    fits.then_some((known, there.address))
}

#[cfg(test)]
mod tests;
