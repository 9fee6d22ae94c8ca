//! The interface between work queues and the contexts of all libraries.

pub(crate) mod sealed {
    use std::sync::Arc;

    use verbless_queue::Cq;

    use crate::context::core::{Core, CtxId};
    use crate::context::engine::EngineArgs;
    use crate::context::engines::AnyEngine;
    use crate::error::Result;

    pub trait Sealed {
        fn core(&self) -> &Arc<Core>;

        /// The completion queue of the context itself, which the work queue polls from then on;
        /// most contexts use the work queue's.
        fn own_cq(&self) -> Result<Option<Cq>> {
            Ok(None)
        }

        /// Creates the engine for the jobs of one work queue.
        fn engine(&self, args: &mut EngineArgs<'_>) -> Result<AnyEngine>;
    }

    /// An object that may be on a work queue.
    pub trait Member {
        /// The object's id on its work queues; `None` if it was never on a work queue.
        fn member(&self) -> Option<CtxId>;
    }

    impl<C: Sealed + ?Sized> Member for C {
        fn member(&self) -> Option<CtxId> {
            Some(self.core().id())
        }
    }
}

/// A started instance of a library, to which work queues are added (`struct doca_ctx`). It is
/// `Send` and, except for a sync event's, `Sync`.
pub trait Context: sealed::Sealed {
    /// Whether a work queue in event-driven mode can be added to it
    /// (`doca_ctx_get_event_driven_supported`).
    fn event_driven_supported(&self) -> bool {
        self.core().event_driven
    }

    /// The number of work queues on the context.
    fn workqs(&self) -> u32 {
        self.core().workqs()
    }
}

/// An object that can be removed from a work queue: any [`Context`], and an RDMA instance that was
/// stopped while it was on one ([`RdmaBuilder`](crate::rdma::RdmaBuilder)).
pub trait Removable: sealed::Member {}

impl<C: Context + ?Sized> Removable for C {}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use verbless_devx::Backend;
    use verbless_model::{Model, Profile};
    use verbless_model_kernel::InProcess;

    use super::Context;
    use super::sealed::Sealed;
    use crate::context::core::Core;
    use crate::context::engine::EngineArgs;
    use crate::context::engines::AnyEngine;
    use crate::{AsyncWorkQ, DevInfo, ErrorKind, Result, WorkQ, sha};

    /// A library without events. This crate has no such library.
    struct Mute {
        core: Arc<Core>,
        sha: sha::Sha,
    }

    impl Sealed for Mute {
        fn core(&self) -> &Arc<Core> {
            &self.core
        }

        fn engine(&self, args: &mut EngineArgs<'_>) -> Result<AnyEngine> {
            self.sha.engine(args)
        }
    }

    impl Context for Mute {}

    #[test]
    fn ctx_without_events_needs_polling_workq() {
        let model = Model::builder().device(Profile::load("bluefield3").unwrap()).build();
        let backend: Arc<dyn Backend> = Arc::new(InProcess::of(&model));
        let dev = DevInfo::list_of(&backend).unwrap()[0].open().unwrap();
        let sha = sha::Sha::builder(&dev).start().unwrap();
        let mute = Mute { core: Arc::new(Core::new(&dev, false, u32::MAX)), sha };
        assert!(!mute.event_driven_supported() && mute.sha.event_driven_supported());
        let mut workq = WorkQ::builder(4).event_driven().build().unwrap();
        workq.add(&mute.sha).unwrap();
        let refused = workq.add(&mute).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::NotSupported, "{refused}");
        assert_eq!((mute.workqs(), mute.sha.workqs()), (0, 1));
        let queue = AsyncWorkQ::new(workq).unwrap();
        assert_eq!(queue.add(&mute).unwrap_err().kind(), ErrorKind::NotSupported);

        let mut polling = WorkQ::new(4).unwrap();
        polling.add(&mute).unwrap();
        assert_eq!(polling.set_event_driven(true).unwrap_err().kind(), ErrorKind::BadState);
        polling.remove(&mute).unwrap();
        // The mode may change after this, and the answer with it.
        polling.set_event_driven(true).unwrap();
        assert_eq!(polling.add(&mute).unwrap_err().kind(), ErrorKind::NotSupported);
        polling.set_event_driven(false).unwrap();
        polling.add(&mute).unwrap();
        assert_eq!(mute.workqs(), 1);
    }
}
