//! Device events (EQEs) that the kernel forwards: completions, QP and CQ errors, port changes.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use zerocopy::IntoBytes;

use super::file::{Channel, channel};
use crate::abi::attr::{devx_async_event_fd_alloc as alloc, devx_subscribe_event as subscribe};
use crate::abi::method;
use crate::abi::mlx5::{self, EQE_BYTES, EventHeader, EventWithData, MAX_SUBSCRIBE_EVENTS};
use crate::context::Context;
use crate::error::{Error, ErrorKind, Result};
use crate::object::DevxObject;
use crate::sys::Request;

/// An open DEVX_ASYNC_EVENT file. Closing it ends its subscriptions.
#[derive(Debug)]
pub struct EventChannel {
    channel: Channel,
    omit_data: bool,
}

channel!(EventChannel);

/// An event that a subscription delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// The cookie of the subscription.
    pub cookie: u64,
    /// The event queue entry; `None` on a channel that omits data.
    pub eqe: Option<[u8; EQE_BYTES]>,
}

impl Context {
    /// Creates an event channel. With `omit_data` an event is only its cookie, and unread events
    /// with the same cookie merge. Use it for completions: the CQ has the details. Without
    /// `omit_data` each event carries its EQE, and the kernel drops events when it runs out of
    /// memory.
    ///
    /// # Errors
    /// EMFILE when the process has too many files.
    pub fn event_channel(&self, omit_data: bool) -> Result<EventChannel> {
        let flags = if omit_data { mlx5::OMIT_DATA } else { 0 };
        let answer = Request::new(method::DEVX_ASYNC_EVENT_FD_ALLOC)
            .new_handle(alloc::HANDLE)
            .input_u32(alloc::FLAGS, flags)
            .send(self.device())?;
        let method = method::DEVX_ASYNC_EVENT_FD_ALLOC;
        let channel = Channel::new(self, "an event channel", method, &answer, alloc::HANDLE)?;
        Ok(EventChannel { channel, omit_data })
    }
}

/// Where the kernel reports the events of a subscription.
#[derive(Clone, Copy)]
enum Target<'a> {
    /// On the channel, with this cookie.
    Cookie(u64),
    /// By a signal to this eventfd.
    Eventfd(BorrowedFd<'a>),
}

impl EventChannel {
    /// Subscribes to `events` of an object (type 0 is a CQ's completion); without an object, of the
    /// device and its ports. Each event carries `cookie`.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] unless there are 1 to 16 events; EINVAL for a type that users
    /// may not subscribe to.
    pub fn subscribe(
        &self,
        object: Option<&DevxObject>,
        events: &[u16],
        cookie: u64,
    ) -> Result<()> {
        self.subscribe_with(object, events, Target::Cookie(cookie))
    }

    /// As [`subscribe`](Self::subscribe), but events signal an eventfd and the channel delivers
    /// nothing. Each object may signal its own eventfd. The subscription ends with the channel.
    ///
    /// # Errors
    /// As [`subscribe`](Self::subscribe); EBADF or EINVAL when the file is not an eventfd.
    pub fn subscribe_eventfd(
        &self,
        object: Option<&DevxObject>,
        events: &[u16],
        eventfd: BorrowedFd<'_>,
    ) -> Result<()> {
        self.subscribe_with(object, events, Target::Eventfd(eventfd))
    }

    fn subscribe_with(
        &self,
        object: Option<&DevxObject>,
        events: &[u16],
        target: Target<'_>,
    ) -> Result<()> {
        check(events)?;
        Request::new(method::DEVX_SUBSCRIBE_EVENT)
            .descriptor(subscribe::FD_HANDLE, self.as_fd())
            .with(|request| match target {
                Target::Cookie(cookie) => request.input_u64(subscribe::COOKIE, cookie),
                Target::Eventfd(_) => request,
            })
            .with(|request| match object {
                Some(object) => request.handle(subscribe::OBJ_HANDLE, object.handle()),
                None => request,
            })
            .input(subscribe::TYPE_NUM_LIST, events.as_bytes())
            .with(|request| match target {
                Target::Cookie(_) => request,
                Target::Eventfd(file) => {
                    request.input_u32(subscribe::FD_NUM, file.as_raw_fd().cast_unsigned())
                }
            })
            .send(self.context().device())?;
        Ok(())
    }

    /// Takes the next event; `None` if there is none.
    ///
    /// # Errors
    /// [`ErrorKind::EventsLost`] after an overflow: poll and arm every queue, then read on.
    /// [`ErrorKind::DeviceGone`] at end of file.
    pub fn read(&self) -> Result<Option<Event>> {
        let mut record = EventWithData::default();
        let bytes = if self.omit_data {
            &mut record.as_mut_bytes()[..size_of::<EventHeader>()]
        } else {
            record.as_mut_bytes()
        };
        if !self.channel.read_exact(bytes)? {
            return Ok(None);
        }
        let eqe = (!self.omit_data).then_some(record.eqe.0);
        Ok(Some(Event { cookie: record.header.cookie, eqe }))
    }
}

fn check(events: &[u16]) -> Result<()> {
    if (1..=MAX_SUBSCRIBE_EVENTS).contains(&events.len()) {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::InvalidInput,
        format!("DEVX_SUBSCRIBE_EVENT of {} events", events.len()),
        "a subscription takes 1 to 16 event types; make several",
    ))
}
