//! A function as the data path sees it: its objects and the engine's state, and the rotation in
//! which its send queues have turns.

use super::state::EngineState;
use crate::hca::Hca;
use crate::memory::{Space, Spaces};

/// A function of a device.
pub(crate) struct FunctionEngine {
    pub hca: Hca,
    pub engine: EngineState,
    /// The function's own address space, and those of all functions.
    pub space: Space,
    pub spaces: Spaces,
}

/// Bytes that a queue may transfer in each round of turns. The rotation skips a queue that
/// transferred more for as many rounds as it takes, so that queues with messages of at least this
/// length transfer equally many bytes. A shorter message takes a whole turn.
const BYTES_PER_ROUND: i64 = if cfg!(test) { 512 } else { 4 << 10 };

impl FunctionEngine {
    /// Takes the queue with the next turn out of the rotation.
    #[inline]
    pub(super) fn next_in_rotation(&mut self) -> Option<u32> {
        let Self { hca, engine, .. } = self;
        loop {
            let number = engine.active.pop_front()?;
            // A destroyed queue: its turn handles that.
            let Some(sender) = hca.objects.sender(number) else { return Some(number) };
            let runtime = &mut sender.queue.runtime;
            runtime.owed = (runtime.owed - BYTES_PER_ROUND).max(0);
            if runtime.owed == 0 || engine.active.is_empty() {
                runtime.queued = false;
                return Some(number);
            }
            engine.active.push_back(number);
        }
    }

    /// Puts a queue that transferred `moved` bytes in its turn at the end of the rotation.
    #[inline]
    pub(super) fn requeue(&mut self, number: u32, moved: u64) {
        let Self { hca, engine, .. } = self;
        let Some(sender) = hca.objects.sender(number) else { return log_destroyed(number) };
        let runtime = &mut sender.queue.runtime;
        runtime.owed = moved as i64;
        if !std::mem::replace(&mut runtime.queued, true) {
            engine.active.push_back(number);
        }
    }

    /// Puts a queue whose turn could not begin back at the front of the rotation.
    pub(super) fn requeue_first(&mut self, number: u32) {
        let Self { hca, engine, .. } = self;
        let Some(sender) = hca.objects.sender(number) else { return log_destroyed(number) };
        sender.queue.runtime.queued = true;
        engine.active.push_front(number);
    }

    /// When the next timer expires, if one runs.
    pub(crate) fn next_timer(&self) -> Option<u64> {
        let EngineState { timers, delayed, moderated, held, waits, flushes, .. } = &self.engine;
        let waiting = timers.first().map(|&(at, _)| at);
        let delayed = delayed.first_key_value().map(|(&(due, _), _)| due);
        let moderated = moderated.first().map(|&(due, _)| due);
        waiting
            .into_iter()
            .chain(delayed)
            .chain(moderated)
            .chain(held.next_due())
            .chain(waits.next_due())
            .chain(flushes.next_due())
            .min()
    }

    /// Whether the function has work that it can do now.
    pub(crate) fn is_busy(&self) -> bool {
        let EngineState { active, answering, ingress, flushes, sweeps, .. } = &self.engine;
        let idle = active.is_empty() && answering.is_empty() && ingress.is_empty();
        (!idle || flushes.is_busy() || sweeps.is_busy()) && !self.hca.fatal
    }

    pub(crate) fn new(hca: Hca) -> Self {
        Self {
            hca,
            engine: EngineState::default(),
            space: Space::default(),
            spaces: Spaces::default(),
        }
    }
}

/// Reports a send queue that was destroyed during its turn. This cannot happen: no command runs
/// during a turn.
#[cold]
fn log_destroyed(number: u32) {
    tracing::error!(number, "a send queue was destroyed during its turn");
}
