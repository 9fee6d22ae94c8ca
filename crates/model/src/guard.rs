//! Watchers of a model, and how long they watch.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Weak};

use crate::shared::SharedWorld;
use crate::watch::{Command, Executed, Request, SeenFrame};

/// Somebody watches a model until this is dropped.
///
/// Dropping it first tells the watcher what was executed before, also while a thread unwinds, then
/// drops the watcher with all that it owns: when the drop returns, nothing of the watcher runs any
/// more. So the drop waits for a watcher that runs: hold no lock then that the watcher takes.
/// Inside a watcher, where waiting for another could deadlock, the drop may return before.
///
/// A watcher may own a clone of its own [`Model`](crate::Model), which it can call:
/// the model then lives as long as it is watched, so keep the guard outside the watcher. Where the
/// guard is forgotten ([`std::mem::forget`]) or moved into such a watcher, the model and its
/// threads live as long as the process.
///
/// The guard does not keep the model alive: the watching ends with the last handle as well, and
/// dropping that handle tells watchers what was executed before.
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
    Frames,
}

impl Watch {
    pub(crate) fn commands(
        shared: &Arc<SharedWorld>,
        mut watcher: impl FnMut(&Executed<'_>) + Send + 'static,
    ) -> Self {
        let watcher = move |command: &Command| watcher(&command.executed());
        let id = shared.common.outbox.commands.add(watcher);
        Self { shared: Arc::downgrade(shared), watched: Watched::Commands, id }
    }

    pub(crate) fn requests(
        shared: &Arc<SharedWorld>,
        watcher: impl FnMut(&Request) + Send + 'static,
    ) -> Self {
        let id = shared.common.outbox.requests.add(watcher);
        if !shared.stepped {
            shared.start_teller(id, |outbox| &outbox.requests);
        }
        Self { shared: Arc::downgrade(shared), watched: Watched::Requests, id }
    }

    pub(crate) fn frames(
        shared: &Arc<SharedWorld>,
        watcher: impl FnMut(&SeenFrame) + Send + 'static,
    ) -> Self {
        let id = shared.common.outbox.frames.add(watcher);
        if !shared.stepped {
            shared.start_teller(id, |outbox| &outbox.frames);
        }
        Self { shared: Arc::downgrade(shared), watched: Watched::Frames, id }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let Some(shared) = self.shared.upgrade() else { return };
        let ended = catch_unwind(AssertUnwindSafe(|| {
            shared.tell(|outbox| match self.watched {
                Watched::Commands => outbox.commands.remove(self.id),
                Watched::Requests => outbox.requests.remove(self.id),
                Watched::Frames => outbox.frames.remove(self.id),
            });
        }));
        // A second panic would abort the process.
        if let Err(panic) = ended
            && !std::thread::panicking()
        {
            resume_unwind(panic);
        }
    }
}

impl std::fmt::Debug for Watch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { watched, id, .. } = self;
        f.debug_struct("Watch").field("watched", watched).field("id", id).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;
    use crate::{Model, Profile};

    fn model() -> Model {
        Model::builder().device(Profile::load("bluefield3").unwrap()).stepped().build()
    }

    #[test]
    fn a_guard_dropped_while_unwinding_tells_the_rest_though_another_watcher_panics() {
        for other_panics in [false, true] {
            let model = model();
            let (sender, heard) = channel();
            let _bad = model.watch_commands(move |_| assert!(!other_panics, "a mistake"));
            let panic = catch_unwind(AssertUnwindSafe(|| {
                let _watch = model.watch_commands(move |command| {
                    sender.send(command.function).unwrap();
                });
                model.shared.common.outbox.command(7, 0, &[0; 16], &[0; 16]);
                panic!("a failing test");
            }));
            let panic = panic.expect_err("it panics");
            assert_eq!(panic.downcast_ref(), Some(&"a failing test"));
            assert_eq!(heard.iter().collect::<Vec<_>>(), [7], "then the watcher is gone");
        }
    }

    #[test]
    fn a_guard_ends_its_watcher_though_another_panics_and_passes_the_panic_on() {
        let model = model();
        let (sender, heard) = channel();
        let _bad = model.watch_commands(|_| panic!("a mistake of the watcher's"));
        let watch = model.watch_commands(move |command| sender.send(command.function).unwrap());
        model.shared.common.outbox.command(7, 0, &[0; 16], &[0; 16]);
        let panic = catch_unwind(AssertUnwindSafe(|| drop(watch))).expect_err("it panics");
        assert_eq!(panic.downcast_ref(), Some(&"a mistake of the watcher's"));
        assert_eq!(heard.iter().collect::<Vec<_>>(), [7], "then the watcher is gone");
        assert!(!model.device(0).is_alive());
    }
}
