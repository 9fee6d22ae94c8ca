//! Who watches a model, and for how long.

use std::sync::{Arc, Weak};

use crate::watch::{Command, Executed, Request};
use crate::world::SharedWorld;

/// Somebody watches a model until this is dropped.
///
/// Dropping it first tells the watcher what was executed before, then drops the watcher with all
/// that it owns. A watcher may own a clone of its own [`Model`](crate::Model), which it can call:
/// the model then lives as long as it is watched, so keep the guard outside the watcher. Where the
/// guard is forgotten ([`std::mem::forget`]) or moved into such a watcher, the model and its thread
/// live as long as the process.
///
/// The guard does not keep the model alive: the watching ends with the last handle as well.
#[must_use = "the watching ends when this is dropped: keep it as long as you want to watch"]
pub struct Watch {
    shared: Weak<SharedWorld>,
    watched: Watched,
    id: u64,
}

#[derive(Clone, Copy, Debug)]
enum Watched {
    Commands,
    Requests,
}

impl Watch {
    pub(crate) fn commands(
        shared: &Arc<SharedWorld>,
        mut watcher: impl FnMut(&Executed<'_>) + Send + 'static,
    ) -> Self {
        let watcher = move |command: &Command| watcher(&command.executed());
        let id = shared.outbox.commands.add(watcher);
        Self { shared: Arc::downgrade(shared), watched: Watched::Commands, id }
    }

    pub(crate) fn requests(
        shared: &Arc<SharedWorld>,
        watcher: impl FnMut(&Request) + Send + 'static,
    ) -> Self {
        let id = shared.outbox.requests.add(watcher);
        if !shared.stepped {
            shared.start_teller(id);
        }
        Self { shared: Arc::downgrade(shared), watched: Watched::Requests, id }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let Some(shared) = self.shared.upgrade() else { return };
        // A watcher that panics as well would abort the process.
        if !std::thread::panicking() {
            shared.tell(|outbox| match self.watched {
                Watched::Commands => outbox.commands.tell(),
                Watched::Requests => outbox.requests.tell(),
            });
        }
        match self.watched {
            Watched::Commands => shared.outbox.commands.remove(self.id),
            Watched::Requests => shared.outbox.requests.remove(self.id),
        }
    }
}

impl std::fmt::Debug for Watch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { watched, id, .. } = self;
        f.debug_struct("Watch").field("watched", watched).field("id", id).finish_non_exhaustive()
    }
}
