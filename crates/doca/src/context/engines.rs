//! All types of engines.
//!
//! They are a closed set, so work queues call them without a vtable, and a job finds its engine
//! without a type check: both would cost more than all other work of a work queue. An engine's file
//! imports nothing from the work queue's code.

use std::os::fd::BorrowedFd;

use verbless_queue::{Cqe, ReceiveCqe, RequestId};

use super::device_cq::DeviceCq;
use super::engine::{EndedJobs, Engine};
use super::event::{Done, EventSlot, Tag};
use crate::async_event::listener::Listener;
use crate::dma::copier::Copier;
use crate::error::{Error, ErrorKind, Result};
use crate::rdma::engine::RdmaEngine;
use crate::sha::hasher::Hasher;
use crate::sync_event::engine::SyncEngine;

/// An engine of this list.
pub trait EngineOf: Engine {
    /// The engine, if it is of this type.
    fn of(any: &mut AnyEngine) -> Option<&mut Self>;
}

/// The error for a completion of a queue without a context.
#[cold]
pub(super) fn stray(cqe: &Cqe) -> Error {
    let text = format!("the device completed a request of {}, which no context has", cqe.qpn());
    Error::new(ErrorKind::InvalidValue, text)
}

/// Declares [`AnyEngine`]: a name for each engine.
macro_rules! engines {
    ($($name:ident($engine:ty),)*) => {
        /// An engine of any type.
        pub enum AnyEngine {
            /// No engine; it has no jobs.
            None,
            $($name(Box<$engine>),)*
        }

        $(
            impl From<$engine> for AnyEngine {
                fn from(engine: $engine) -> Self {
                    Self::$name(Box::new(engine))
                }
            }

            impl EngineOf for $engine {
                #[inline(always)]
                fn of(any: &mut AnyEngine) -> Option<&mut Self> {
                    match any {
                        AnyEngine::$name(engine) => Some(engine),
                        _ => None,
                    }
                }
            }
        )*

        impl AnyEngine {
            /// Whether [`Engine::progress`] can ever do anything.
            pub(super) const fn progresses(&self) -> bool {
                match self {
                    $(Self::$name(_) => <$engine>::PROGRESSES,)*
                    Self::None => false,
                }
            }
        }

        impl Engine for AnyEngine {
            #[inline(always)]
            fn complete_success(&mut self, request: RequestId) -> Option<Done> {
                match self {
                    $(Self::$name(engine) => engine.complete_success(request),)*
                    Self::None => None,
                }
            }

            fn receive(&mut self, cqe: &ReceiveCqe<'_>, into: &mut EventSlot) -> Option<Tag> {
                match self {
                    $(Self::$name(engine) => engine.receive(cqe, into),)*
                    Self::None => None,
                }
            }

            fn complete(
                &mut self,
                cqe: Cqe,
                device_cq: &mut DeviceCq,
                into: &mut EventSlot,
            ) -> Result<Option<Tag>> {
                match self {
                    $(Self::$name(engine) => engine.complete(cqe, device_cq, into),)*
                    Self::None => Err(stray(&cqe)),
                }
            }

            fn progress(&mut self, device_cq: &mut DeviceCq) -> Option<Done> {
                match self {
                    $(Self::$name(engine) => engine.progress(device_cq),)*
                    Self::None => None,
                }
            }

            #[inline]
            fn has_work(&self) -> bool {
                match self {
                    $(Self::$name(engine) => engine.has_work(),)*
                    Self::None => false,
                }
            }

            fn file(&self) -> Option<BorrowedFd<'_>> {
                match self {
                    $(Self::$name(engine) => engine.file(),)*
                    Self::None => None,
                }
            }

            fn in_flight(&self) -> u32 {
                match self {
                    $(Self::$name(engine) => engine.in_flight(),)*
                    Self::None => 0,
                }
            }

            fn ended(&self) -> EndedJobs {
                match self {
                    $(Self::$name(engine) => engine.ended(),)*
                    Self::None => EndedJobs::NONE,
                }
            }

            fn abort(&mut self, device_cq: &mut DeviceCq) -> Result<()> {
                match self {
                    $(Self::$name(engine) => engine.abort(device_cq),)*
                    Self::None => Ok(()),
                }
            }

            fn check(&self) -> std::result::Result<(), verbless_queue::DeviceError> {
                match self {
                    $(Self::$name(engine) => engine.check(),)*
                    Self::None => Ok(()),
                }
            }

            fn fail(&mut self, device_cq: &mut DeviceCq, why: &Error) -> Result<()> {
                match self {
                    $(Self::$name(engine) => engine.fail(device_cq, why),)*
                    Self::None => Ok(()),
                }
            }
        }
    };
}

engines! {
    Dma(Copier),
    Sha(Hasher),
    Sync(SyncEngine),
    Rdma(RdmaEngine),
    Async(Listener),
}
