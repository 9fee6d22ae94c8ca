//! Guards of a model's watchers.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use crate::shared_model::SharedModel;
use crate::watch::{Command, Executed, Request, SeenFrame};

/// Keeps a watcher of a model registered until this is dropped.
///
/// The drop first reports everything that was executed before it, also while a thread unwinds, and
/// then drops the watcher. When the drop returns, no code of the watcher runs. The drop therefore
/// waits for a running watcher: do not drop the guard while you hold a lock that the watcher takes.
/// Inside a watcher, where waiting for another could deadlock, the drop may return earlier.
///
/// A watcher may own a clone of its own [`Model`](crate::Model) and call it. The model then lives
/// as long as the watcher, so keep the guard outside the watcher. If the guard is forgotten
/// ([`std::mem::forget`]) or moved into such a watcher, the model and its threads live as long as
/// the process.
///
/// The guard does not keep the model alive: watching ends with the last handle as well, and
/// dropping that handle reports everything executed before.
#[must_use = "the watching ends when this is dropped: keep it as long as you want to watch"]
pub struct Watch {
    shared: Weak<SharedModel>,
    watched: Watched,
    id: u64,
    /// The count of events that did not fit for any watcher of the kind, and its value at the
    /// start.
    lost: Arc<AtomicU64>,
    before: u64,
    /// The number of frames that a capture could not write.
    failed: Arc<AtomicU64>,
}

#[derive(Clone, Copy, Debug)]
enum Watched {
    Commands,
    Requests,
    Frames,
}

impl Watch {
    pub(crate) fn commands(
        shared: &Arc<SharedModel>,
        mut watcher: impl FnMut(&Executed<'_>) + Send + 'static,
    ) -> Self {
        let watcher = move |command: &Command| watcher(&command.executed());
        let queue = &shared.common.outbox.commands;
        Self::new(shared, Watched::Commands, queue.lost_count(), || queue.add(watcher))
    }

    pub(crate) fn requests(
        shared: &Arc<SharedModel>,
        watcher: impl FnMut(&Request) + Send + 'static,
    ) -> Self {
        let queue = &shared.common.outbox.requests;
        let watch = Self::new(shared, Watched::Requests, queue.lost_count(), || queue.add(watcher));
        if !shared.stepped {
            shared.start_delivery_thread(watch.id, |outbox| &outbox.requests);
        }
        watch
    }

    pub(crate) fn frames(
        shared: &Arc<SharedModel>,
        watcher: impl FnMut(&SeenFrame) + Send + 'static,
    ) -> Self {
        let queue = &shared.common.outbox.frames;
        let watch = Self::new(shared, Watched::Frames, queue.lost_count(), || queue.add(watcher));
        if !shared.stepped {
            shared.start_delivery_thread(watch.id, |outbox| &outbox.frames);
        }
        watch
    }

    /// A capture of frames, which the engine's threads wait for; it counts the frames that it
    /// cannot write in `failed`.
    pub(crate) fn capture(
        shared: &Arc<SharedModel>,
        failed: Arc<AtomicU64>,
        watcher: impl FnMut(&SeenFrame) + Send + 'static,
    ) -> Self {
        let queue = &shared.common.outbox.frames;
        let add = || queue.add_awaited(watcher);
        let mut watch = Self::new(shared, Watched::Frames, queue.lost_count(), add);
        if !shared.stepped {
            shared.start_delivery_thread(watch.id, |outbox| &outbox.frames);
        }
        watch.failed = failed;
        watch
    }

    fn new(
        shared: &Arc<SharedModel>,
        watched: Watched,
        lost: &Arc<AtomicU64>,
        add: impl FnOnce() -> u64,
    ) -> Self {
        let (lost, before) = (lost.clone(), lost.load(Ordering::Relaxed));
        let id = add();
        Self { shared: Arc::downgrade(shared), watched, id, lost, before, failed: Arc::default() }
    }

    /// Ends the watcher, as the drop does; returns the number of commands, requests or frames that
    /// the watcher did not get, or that the capture has not written.
    pub fn end(self) -> u64 {
        let (lost, before, failed) = (self.lost.clone(), self.before, self.failed.clone());
        drop(self);
        lost.load(Ordering::Relaxed) - before + failed.load(Ordering::Relaxed)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let Some(shared) = self.shared.upgrade() else { return };
        let ended = catch_unwind(AssertUnwindSafe(|| {
            shared.deliver(|outbox| match self.watched {
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
    fn unwinding_guard_delivers_despite_watcher_panic() {
        for other_panics in [false, true] {
            let model = model();
            let (sender, received) = channel();
            let _bad = model.watch_commands(move |_| assert!(!other_panics, "a mistake"));
            let panic = catch_unwind(AssertUnwindSafe(|| {
                let _watch = model.watch_commands(move |command| {
                    sender.send(command.function).unwrap();
                });
                model.shared.common.outbox.command(7, 0, &[0; 16], &[0; 16]);
                panic!("a failing test");
            }));
            let panic = panic.expect_err("the drop panics");
            assert_eq!(panic.downcast_ref(), Some(&"a failing test"));
            assert_eq!(received.iter().collect::<Vec<_>>(), [7], "then the watcher was dropped");
        }
    }

    #[test]
    fn dropped_guard_ends_watcher_and_passes_panic_on() {
        let model = model();
        let (sender, received) = channel();
        let _bad = model.watch_commands(|_| panic!("a mistake of the watcher's"));
        let watch = model.watch_commands(move |command| sender.send(command.function).unwrap());
        model.shared.common.outbox.command(7, 0, &[0; 16], &[0; 16]);
        let panic = catch_unwind(AssertUnwindSafe(|| drop(watch))).expect_err("the drop panics");
        assert_eq!(panic.downcast_ref(), Some(&"a mistake of the watcher's"));
        assert_eq!(received.iter().collect::<Vec<_>>(), [7], "then the watcher was dropped");
        assert!(!model.device(0).is_alive());
    }
}
