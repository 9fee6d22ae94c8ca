//! Event channels: allocation, and SUBSCRIBE_EVENT with the rules of `hw/mlx5/devx.c`.

use std::sync::Arc;

use nix::errno::Errno;

use super::abi::attr;
use super::channel::Channel;
use super::event_rules::{may_subscribe, subscribed_type};
use super::file::{Method, MethodResult};
use super::handles::{Object, Stream};
use super::refused::{no_descriptor, refused};
use super::subscriptions::{EventChannel, Subscription};

/// Bytes of an `ib_uverbs_async_event_desc`.
pub(super) const ASYNC_RECORD: usize = 16;
/// Channel flag: records are cookies without event data.
const FLAG_OMIT_DATA: u32 = 1;
/// Maximum number of events per call.
const MAX_EVENTS: usize = 16;

/// Maximum number of subscriptions per channel. Linux is bounded by memory only; here all clients
/// share the memory.
pub(super) const MAX_SUBSCRIPTIONS: usize = 1 << 16;

impl Method<'_> {
    pub(super) fn async_event_alloc(&mut self) -> Result<MethodResult, Errno> {
        let (channel, fd) = Channel::new(ASYNC_RECORD)?;
        Ok(MethodResult::Stream(Stream::Async(channel), fd))
    }

    pub(super) fn command_fd_alloc(&mut self) -> Result<MethodResult, Errno> {
        let (channel, fd) = Channel::new(0)?;
        Ok(MethodResult::Stream(Stream::Commands(channel), fd))
    }

    pub(super) fn event_fd_alloc(&mut self) -> Result<MethodResult, Errno> {
        let flags = self.attrs.flags(attr::CHANNEL_FLAGS, FLAG_OMIT_DATA)?;
        let omit_data = flags & FLAG_OMIT_DATA != 0;
        let (channel, fd) = Channel::new(if omit_data { 8 } else { 0 })?;
        let channel = Arc::new(EventChannel::new(channel, omit_data));
        Ok(MethodResult::Stream(Stream::Events(channel), fd))
    }

    pub(super) fn subscribe(&mut self) -> Result<(), Errno> {
        if self.state.context()?.uid == 0 {
            return Err(refused(Errno::EINVAL, "the context has no flag DEVX (0x1)"));
        }
        let object = match self.named.handle.and_then(|handle| self.state.object(handle)) {
            Some(Object::Devx(object)) => Some(object),
            _ => None,
        };
        let Stream::Events(channel) = self.stream()? else {
            return Err(refused(Errno::EBADF, "the descriptor is no event channel of DevX"));
        };
        let eventfd = if self.attrs.has(attr::SUBSCRIBE_FD_NUM) {
            Some(self.attrs.data(attr::SUBSCRIBE_FD_NUM)? as u32 as i32)
        } else {
            None
        };
        let cookie = if self.attrs.has(attr::SUBSCRIBE_COOKIE) {
            if eventfd.is_some() {
                return Err(refused(Errno::EINVAL, "an eventfd carries no cookie"));
            }
            self.attrs.data(attr::SUBSCRIBE_COOKIE)?
        } else {
            0
        };
        let list = self.attrs.bytes(attr::SUBSCRIBE_TYPES)?;
        if !list.len().is_multiple_of(2) || list.len() / 2 > MAX_EVENTS {
            let bytes = list.len();
            let words = format!("{bytes} bytes of event types: 2 for each, {MAX_EVENTS} at most");
            return Err(refused(Errno::EINVAL, words));
        }
        let kinds: Vec<u16> =
            list.chunks_exact(2).map(|pair| u16::from_ne_bytes([pair[0], pair[1]])).collect();
        let known = self.file.kernel.subscribable.as_ref();
        let of_object = object.is_some();
        if let Some(kind) = kinds.iter().find(|&&kind| !may_subscribe(known, kind, of_object)) {
            let of = if of_object { "of an object" } else { "without an object" };
            let words = format!("a client cannot subscribe to event type {kind:#x} {of}");
            return Err(refused(Errno::EINVAL, words));
        }
        // Each subscription holds its channel.
        if Arc::strong_count(&channel) + kinds.len() > MAX_SUBSCRIPTIONS {
            let words = format!("a channel has at most {MAX_SUBSCRIPTIONS} subscriptions");
            return Err(refused(Errno::ENOMEM, words));
        }
        let client = self.attrs.client;
        let eventfd = match eventfd {
            Some(fd) => {
                let ours = client.borrow(fd).map_err(|errno| no_descriptor(errno, fd))?;
                Some(client.eventfds().hold(ours, client)?)
            }
            None => None,
        };
        let claims = channel.claims(kinds.len(), client).map_err(|errno| {
            let words = "the descriptors kept for the process are at the limit, and each 64 \
                         subscriptions count as one: raise `ulimit -n`, or end subscriptions";
            refused(errno, words)
        })?;
        let mut subscriptions = Vec::new();
        for (&kind, claim) in kinds.iter().zip(claims) {
            let release = self.file.kernel.release;
            let kind_of_object =
                object.map_or(0, |object| subscribed_type(object.id, kind, release));
            subscriptions.push(Subscription {
                key: u32::from(kind) + (u32::from(kind_of_object) << 16),
                number: object.map(|object| object.id.number),
                object: object.map(|object| object.serial),
                channel: channel.clone(),
                cookie,
                eventfd: eventfd.clone(),
                claim,
            });
        }
        self.file.kernel.subscriptions.add(subscriptions)
    }
}
