//! The in-process front end: a small kernel that answers DevX ioctls with Linux's own rules.

use std::sync::Arc;

use crate::world::Shared;

/// The devices of a model as `verbless-devx` sees them. Cloning gives another handle to the same.
#[derive(Clone)]
pub struct InProcess {
    #[expect(dead_code, reason = "the ioctls that use it land next")]
    shared: Arc<Shared>,
}

impl InProcess {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self { shared }
    }
}
