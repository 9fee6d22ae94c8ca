//! Asynchronous events of uverbs: ports, GIDs, the whole device.

use super::file::{Channel, channel};
use crate::abi::attr::async_event_alloc as alloc;
use crate::abi::core::{AsyncEventDescriptor, event_type};
use crate::abi::method;
use crate::context::Context;
use crate::error::Result;
use crate::sys::Request;
use zerocopy::IntoBytes;

/// A file of asynchronous events of the context.
#[derive(Debug)]
pub struct AsyncEventChannel {
    channel: Channel,
}

channel!(AsyncEventChannel);

/// An asynchronous event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AsyncEvent {
    /// The device failed: nothing completes any more.
    DeviceFatal,
    /// The speed of the device's ports changed.
    DeviceSpeedChange,
    /// A port changed.
    Port {
        /// 1-based port.
        port: u64,
        /// The event's type: one of [`event_type`].
        event: u32,
    },
    /// An event of a verbs object; DevX objects have none in this file.
    Other {
        /// User handle of the object.
        element: u64,
        /// The event's type: one of [`event_type`].
        event: u32,
    },
}

impl From<AsyncEventDescriptor> for AsyncEvent {
    fn from(record: AsyncEventDescriptor) -> Self {
        let (element, event) = (record.element, record.event_type);
        match event {
            event_type::DEVICE_FATAL => Self::DeviceFatal,
            event_type::DEVICE_SPEED_CHANGE => Self::DeviceSpeedChange,
            event_type::PORT_ACTIVE..=event_type::SM_CHANGE
            | event_type::CLIENT_REREGISTER
            | event_type::GID_CHANGE => Self::Port { port: element, event },
            _ => Self::Other { element, event },
        }
    }
}

impl Context {
    /// Creates a channel of the context's asynchronous events.
    ///
    /// # Errors
    /// EMFILE when the process has too many files.
    pub fn async_event_alloc(&self) -> Result<AsyncEventChannel> {
        let method = method::ASYNC_EVENT_ALLOC;
        let answer = Request::new(method).new_handle(alloc::FD_HANDLE).send(self.device())?;
        Ok(AsyncEventChannel {
            channel: Channel::new(self, "the async event file", method, &answer, alloc::FD_HANDLE)?,
        })
    }
}

impl AsyncEventChannel {
    /// Takes the next event; `None` if there is none.
    ///
    /// # Errors
    /// [`ErrorKind::DeviceGone`](crate::ErrorKind::DeviceGone) at end of file.
    pub fn read(&self) -> Result<Option<AsyncEvent>> {
        let mut record = AsyncEventDescriptor::default();
        Ok(self.channel.read_exact(record.as_mut_bytes())?.then(|| record.into()))
    }
}
