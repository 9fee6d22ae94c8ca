//! A work queue's file of external events.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use verbless_devx::AsyncEventChannel;

use super::done::AsyncEvent;
use crate::context::device_cq::DeviceCq;
use crate::context::engine::Engine;
use crate::context::event::{Done, Event, Tag};
use crate::context::failure::JobError;
use crate::device::Dev;
use crate::error::{Error, Result};
use crate::types::UserData;

/// The external events of a device for one work queue.
pub struct Listener {
    /// `None` after the last event: a closed channel wakes no thread.
    channel: Option<AsyncEventChannel>,
    user_data: UserData,
}

impl Listener {
    pub(super) fn new(dev: &Dev, user_data: UserData) -> Result<Self> {
        Ok(Self { channel: Some(dev.device().async_event_alloc()?), user_data })
    }
}

impl Engine for Listener {
    const WORKS: bool = false;

    fn progress(&mut self, _: &mut DeviceCq) -> Option<Done> {
        let result = match self.channel.as_ref()?.read() {
            Ok(event) => Ok(event?.into()),
            Err(error) => {
                self.channel = None;
                Err(JobError::unposted(&Error::from(error)))
            }
        };
        let event = Event::Async(AsyncEvent { user_data: self.user_data, result });
        Some(Done { tag: Tag::EXTERNAL, event })
    }

    fn has_work(&self) -> bool {
        let waits = |channel: &AsyncEventChannel| channel.wait(Some(Duration::ZERO));
        // If the poll fails, the caller reads, and the read reports the error.
        self.channel.as_ref().is_some_and(|channel| waits(channel).unwrap_or(true))
    }

    fn file(&self) -> Option<BorrowedFd<'_>> {
        self.channel.as_ref().map(AsFd::as_fd)
    }

    fn in_flight(&self) -> u32 {
        0
    }

    fn abort(&mut self, _: &mut DeviceCq) -> Result<()> {
        Ok(())
    }
}
