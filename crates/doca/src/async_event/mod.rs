//! External events (section 4.9.6 of 1.3): events of a device without a job.
//!
//! The guides let a context yield events without a job, and name no such event. [`AsyncEvents`] is
//! a context without jobs. Its events are those that the kernel calls asynchronous: port changes,
//! and the failure of the device. Once a work queue is added to it, the program retrieves them like
//! jobs, by the same calls.
//!
//! ```
//! # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doc.rs"));
//! use verbless_doca::async_event::{AsyncEvents, Change};
//! use verbless_doca::{Event, WorkQ};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let (model, dev) = doc::model();
//! let events = AsyncEvents::builder(&dev).user_data(7).start()?;
//! let mut workq = WorkQ::builder(16).event_driven().build()?;
//! workq.add(&events)?;
//! # model.set_port(0, 1, false);
//! // The port loses its link.
//! let Some(Event::Async(event)) = workq.retrieve_within(None)? else { panic!("no jobs") };
//! assert_eq!((event.result?, event.user_data.0), (Change::PortDown(1), 7));
//! # Ok(())
//! # }
//! ```
//!
//! They do not delay jobs: the work queue checks for them when no job is done, and in event-driven
//! mode its file becomes readable for one, armed or not. They do not count against its depth, nor
//! in [`WorkQ::in_flight`](crate::WorkQ::in_flight). With futures,
//! [`AsyncWorkQ::external`](crate::AsyncWorkQ::external) is the next one.

pub(crate) mod done;
pub(crate) mod listener;

use std::sync::Arc;

pub use done::{AsyncEvent, Change};
use listener::Listener;

use crate::context::core::Core;
use crate::context::engine::EngineArgs;
use crate::context::engines::AnyEngine;
use crate::context::library::Context;
use crate::context::sealed;
use crate::device::Dev;
use crate::error::{Refused, Result};
use crate::types::UserData;

/// A started context of a device's external events. It takes any number of work queues, in either
/// mode; each of them gets every event after it was added.
#[derive(Debug)]
pub struct AsyncEvents {
    core: Arc<Core>,
    user_data: UserData,
}

/// A context of external events that is being configured.
#[derive(Clone, Debug)]
pub struct AsyncEventsBuilder {
    dev: Dev,
    user_data: UserData,
}

impl AsyncEventsBuilder {
    /// Sets the user data that each event returns.
    #[must_use = "a context exists when it is started"]
    pub fn user_data(self, user_data: impl Into<UserData>) -> Self {
        Self { user_data: user_data.into(), ..self }
    }

    /// The device.
    pub const fn dev(&self) -> &Dev {
        &self.dev
    }

    /// The user data that was set.
    pub const fn get_user_data(&self) -> UserData {
        self.user_data
    }

    /// Starts the context.
    ///
    /// # Errors
    /// None at present.
    pub fn start(self) -> Result<AsyncEvents> {
        let core = Arc::new(Core::new(&self.dev, true, u32::MAX));
        Ok(AsyncEvents { core, user_data: self.user_data })
    }
}

impl AsyncEvents {
    /// A context on `dev`, to be configured.
    #[must_use = "a context exists when it is started"]
    pub fn builder(dev: &Dev) -> AsyncEventsBuilder {
        AsyncEventsBuilder { dev: dev.clone(), user_data: UserData::default() }
    }

    /// The context's device.
    pub fn dev(&self) -> &Dev {
        self.core.dev()
    }

    /// Ends the context.
    ///
    /// # Errors
    /// [`ErrorKind::InUse`](crate::ErrorKind::InUse) while it is on a work queue.
    pub fn stop(self) -> std::result::Result<AsyncEventsBuilder, Refused<Self>> {
        match self.core.may_stop() {
            Ok(()) => {
                Ok(AsyncEventsBuilder { dev: self.core.dev().clone(), user_data: self.user_data })
            }
            Err(error) => Err(Refused::new(error, self)),
        }
    }
}

impl sealed::Sealed for AsyncEvents {
    fn core(&self) -> &Arc<Core> {
        &self.core
    }

    fn engine(&self, args: &mut EngineArgs<'_>) -> Result<AnyEngine> {
        Ok(Listener::new(&args.device_cq.dev, self.user_data)?.into())
    }
}

impl Context for AsyncEvents {}
