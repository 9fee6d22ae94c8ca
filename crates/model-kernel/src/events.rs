//! Event channels: allocation, and SUBSCRIBE_EVENT with the rules of `hw/mlx5/devx.c`.

use std::sync::Arc;

use nix::errno::Errno;

use super::abi::attr;
use super::channel::Channel;
use super::event_rules::{may_subscribe, subscribed_type};
use super::file::{Made, Method};
use super::handles::{Object, Stream};
use super::refused::refused;
use super::subscriptions::{EventChannel, Subscription};

/// Bytes of an `ib_uverbs_async_event_desc`.
pub(super) const ASYNC_RECORD: usize = 16;
/// Channel flag: records are cookies without event data.
const FLAG_OMIT_DATA: u32 = 1;
/// Events that one call may subscribe to.
const MAX_EVENTS: usize = 16;

/// Subscriptions of one channel. Linux takes as many as it has memory for; here that is the memory
/// of all clients.
pub(super) const MOST_SUBSCRIPTIONS: usize = 1 << 16;

impl Method<'_> {
    pub(super) fn async_event_alloc(&mut self) -> Result<Made, Errno> {
        let (channel, fd) = Channel::new(ASYNC_RECORD)?;
        Ok(Made::Stream(Stream::Async(channel), fd))
    }

    pub(super) fn command_fd_alloc(&mut self) -> Result<Made, Errno> {
        let (channel, fd) = Channel::new(0)?;
        Ok(Made::Stream(Stream::Commands(channel), fd))
    }

    pub(super) fn event_fd_alloc(&mut self) -> Result<Made, Errno> {
        let flags = self.attrs.flags(attr::CHANNEL_FLAGS, FLAG_OMIT_DATA)?;
        let omit_data = flags & FLAG_OMIT_DATA != 0;
        let (channel, fd) = Channel::new(if omit_data { 8 } else { 0 })?;
        let channel = Arc::new(EventChannel { channel, omit_data });
        Ok(Made::Stream(Stream::Events(channel), fd))
    }

    pub(super) fn subscribe(&mut self) -> Result<(), Errno> {
        if self.state.context()?.uid == 0 {
            return Err(Errno::EINVAL);
        }
        let object = match self.named.handle.and_then(|handle| self.state.object(handle)) {
            Some(Object::Devx(object)) => Some(object),
            _ => None,
        };
        let Stream::Events(channel) = self.stream()? else { return Err(Errno::EBADF) };
        let eventfd = if self.attrs.has(attr::SUBSCRIBE_FD_NUM) {
            Some(self.attrs.data(attr::SUBSCRIBE_FD_NUM)? as u32 as i32)
        } else {
            None
        };
        let cookie = if self.attrs.has(attr::SUBSCRIBE_COOKIE) {
            if eventfd.is_some() {
                return Err(Errno::EINVAL);
            }
            self.attrs.data(attr::SUBSCRIBE_COOKIE)?
        } else {
            0
        };
        let list = self.attrs.bytes(attr::SUBSCRIBE_TYPES)?;
        if !list.len().is_multiple_of(2) || list.len() / 2 > MAX_EVENTS {
            return Err(Errno::EINVAL);
        }
        let kinds: Vec<u16> =
            list.chunks_exact(2).map(|pair| u16::from_ne_bytes([pair[0], pair[1]])).collect();
        let known = self.file.kernel.subscribable.as_ref();
        if !kinds.iter().all(|&kind| may_subscribe(known, kind, object.is_some())) {
            return Err(Errno::EINVAL);
        }
        // Each subscription holds its channel.
        if Arc::strong_count(&channel) + kinds.len() > MOST_SUBSCRIPTIONS {
            let words = format!("a channel has at most {MOST_SUBSCRIPTIONS} subscriptions");
            return Err(refused(Errno::ENOMEM, words));
        }
        let client = self.attrs.client;
        let eventfd = match eventfd {
            Some(fd) => Some(client.eventfds().hold(client.borrow(fd)?)?),
            None => None,
        };
        let mut subscriptions = Vec::new();
        for &kind in &kinds {
            let kind_of_object = object.map_or(0, |object| subscribed_type(object.id, kind));
            subscriptions.push(Subscription {
                key: u32::from(kind) + (u32::from(kind_of_object) << 16),
                number: object.map(|object| object.id.number),
                object: object.map(|object| object.serial),
                channel: channel.clone(),
                cookie,
                eventfd: eventfd.clone(),
            });
        }
        self.file.kernel.subscriptions.add(subscriptions);
        Ok(())
    }
}
