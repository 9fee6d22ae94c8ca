//! What every library's context is to a work queue.

pub(crate) mod sealed {
    use std::sync::Arc;

    use verbless_queue::Cq;

    use crate::context::core::Core;
    use crate::context::engine::Place;
    use crate::context::engines::AnyEngine;
    use crate::error::Result;

    pub trait Sealed {
        fn core(&self) -> &Arc<Core>;

        /// The completion queue that it brings along, which the work queue polls from now on; most
        /// use that of the work queue.
        fn brings(&self) -> Result<Option<Cq>> {
            Ok(None)
        }

        /// What runs the jobs of one work queue.
        fn engine(&self, place: &mut Place<'_>) -> Result<AnyEngine>;
    }
}

/// A started instance of a library, which work queues are added to (`struct doca_ctx`). It is
/// `Send` and, but for that of a sync event, `Sync`.
pub trait Context: sealed::Sealed {
    /// Whether a work queue in event-driven mode can be added to it
    /// (`doca_ctx_get_event_driven_supported`).
    fn event_driven_supported(&self) -> bool {
        self.core().event_driven
    }

    /// Work queues that it is on.
    fn workqs(&self) -> u32 {
        self.core().workqs()
    }
}
