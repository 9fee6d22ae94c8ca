//! The functions of a model: each is held by one thread at a time.
//!
//! A thread takes a function out of its slot, works with it, and puts it back. A thread that needs
//! several functions waits only for one with a higher number than all that it holds, so that no two
//! threads wait for each other. If it needs one with a lower number that is not free, it gives back
//! all functions and takes them in order.

use std::ops::{Index, IndexMut};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use crate::engine::function::FunctionEngine;
use crate::memory::UarSpace;

/// The functions that a thread holds, by their numbers.
#[derive(Default)]
pub(crate) struct FunctionTable(Vec<Option<Box<FunctionEngine>>>);

impl FunctionTable {
    /// Holds all functions.
    pub(crate) fn all(functions: Vec<FunctionEngine>) -> Self {
        Self(functions.into_iter().map(|function| Some(Box::new(function))).collect())
    }

    /// `count` functions; none is held.
    pub(crate) fn none(count: usize) -> Self {
        Self((0..count).map(|_| None).collect())
    }

    /// How many functions exist, held or not.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn has(&self, id: usize) -> bool {
        self.0[id].is_some()
    }

    pub(crate) fn has_all(&self) -> bool {
        self.0.iter().all(Option::is_some)
    }

    /// The highest number of a held function.
    pub(crate) fn last(&self) -> Option<usize> {
        self.0.iter().rposition(Option::is_some)
    }

    pub(crate) fn put(&mut self, id: usize, function: Box<FunctionEngine>) {
        self.0[id] = Some(function);
    }

    pub(crate) fn take(&mut self, id: usize) -> Option<Box<FunctionEngine>> {
        self.0[id].take()
    }

    /// Borrows a function mutably, and the other held functions.
    ///
    /// # Panics
    /// If function `id` is not held.
    #[inline]
    pub(crate) fn split(&mut self, id: usize) -> (&mut FunctionEngine, OtherFunctions<'_>) {
        let (before, rest) = self.0.split_at_mut(id);
        let (one, after) = rest.split_first_mut().expect("a function that exists");
        let one = one.as_mut().expect("a held function");
        (one, OtherFunctions { before, after })
    }

    /// The held functions.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &FunctionEngine> {
        self.0.iter().flatten().map(|function| &**function)
    }

    /// The held functions, mutable.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut FunctionEngine> {
        self.0.iter_mut().flatten().map(|function| &mut **function)
    }
}

/// The held functions beside one that is borrowed.
#[derive(Clone, Copy, Default)]
pub(crate) struct OtherFunctions<'a> {
    before: &'a [Option<Box<FunctionEngine>>],
    after: &'a [Option<Box<FunctionEngine>>],
}

impl<'a> OtherFunctions<'a> {
    /// Function `id`, if it is held and not the borrowed one.
    pub(crate) fn get(self, id: usize) -> Option<&'a FunctionEngine> {
        let slot = match id.checked_sub(self.before.len()) {
            None => self.before.get(id),
            Some(from_borrowed) => self.after.get(from_borrowed.checked_sub(1)?),
        };
        slot?.as_deref()
    }
}

/// Panics if the function is not held, as indexing out of bounds does.
impl Index<usize> for FunctionTable {
    type Output = FunctionEngine;

    fn index(&self, id: usize) -> &FunctionEngine {
        self.0[id].as_ref().expect("a held function")
    }
}

impl IndexMut<usize> for FunctionTable {
    fn index_mut(&mut self, id: usize) -> &mut FunctionEngine {
        self.0[id].as_mut().expect("a held function")
    }
}

/// Holds a function while no thread does. Threads that wait for it get it in FIFO order.
pub(crate) struct FunctionSlot {
    state: Mutex<SlotState>,
    returned: Condvar,
    /// Whether the function has work to do at once; false while a thread holds it.
    pub busy: AtomicBool,
    /// When its next timer expires; `u64::MAX`: none runs, or a thread holds it.
    pub due: AtomicU64,
    /// The UAR pages that hold its doorbells.
    pub bar: Arc<UarSpace>,
}

#[derive(Default)]
struct SlotState {
    function: Option<Box<FunctionEngine>>,
    /// The ticket of the next arrival, and the ticket that is served next.
    next: u64,
    turn: u64,
}

impl FunctionSlot {
    pub(crate) fn new(bar: Arc<UarSpace>) -> Self {
        Self {
            state: Mutex::default(),
            returned: Condvar::new(),
            busy: AtomicBool::new(false),
            due: AtomicU64::new(u64::MAX),
            bar,
        }
    }

    fn state(&self) -> MutexGuard<'_, SlotState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the function and takes it.
    pub(crate) fn take(&self) -> Box<FunctionEngine> {
        let mut state = self.state();
        let mine = state.next;
        state.next += 1;
        loop {
            if state.turn == mine
                && let Some(function) = state.function.take()
            {
                state.turn += 1;
                return self.taken(function);
            }
            state = self.returned.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Takes the function if it is in its slot and no thread waits for it.
    pub(crate) fn try_take(&self) -> Option<Box<FunctionEngine>> {
        let mut state = self.state();
        let function = if state.turn == state.next { state.function.take() } else { None };
        function.map(|function| self.taken(function))
    }

    /// Resets the hints about the function's work: the thread that takes the function knows its
    /// work.
    fn taken(&self, function: Box<FunctionEngine>) -> Box<FunctionEngine> {
        self.busy.store(false, Ordering::Relaxed);
        self.due.store(u64::MAX, Ordering::Relaxed);
        function
    }

    /// Puts the function back.
    pub(crate) fn put_back(&self, function: Box<FunctionEngine>) {
        self.due.store(function.next_timer().unwrap_or(u64::MAX), Ordering::Relaxed);
        self.busy.store(function.is_busy(), Ordering::Relaxed);
        let mut state = self.state();
        debug_assert!(state.function.is_none(), "there is one of each function");
        state.function = Some(function);
        if state.turn != state.next {
            self.returned.notify_all();
        }
    }

    /// Whether a thread waits for it.
    pub(crate) fn is_wanted(&self) -> bool {
        let state = self.state();
        state.turn != state.next
    }

    /// Whether no thread holds it.
    #[cfg(test)]
    pub(crate) fn is_free(&self) -> bool {
        self.state().function.is_some()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::time::Duration;

    use super::*;
    use crate::hca::Hca;
    use crate::profile::Profile;

    #[test]
    fn function_lock_is_fifo() {
        let profile = Arc::new(Profile::load("bluefield3").unwrap());
        let hca = Hca::new(0, profile, crate::memory::in_process(), crate::engine::qp_type);
        let slot = Arc::new(FunctionSlot::new(hca.bar.clone()));
        slot.put_back(Box::new(FunctionEngine::new(hca)));
        let mine = slot.try_take().expect("the slot is free");
        assert!(slot.try_take().is_none(), "there is one");
        let (sender, came) = channel();
        let threads: Vec<_> = (0..4_u32)
            .map(|number| {
                let (sender, waiting) = (sender.clone(), slot.clone());
                let thread = std::thread::spawn(move || {
                    let function = waiting.take();
                    sender.send(number).unwrap();
                    waiting.put_back(function);
                });
                while slot.state().next != u64::from(number) + 1 {
                    std::thread::sleep(Duration::from_millis(1));
                }
                thread
            })
            .collect();
        slot.put_back(mine);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(came.try_iter().collect::<Vec<_>>(), [0, 1, 2, 3]);
        assert!(slot.try_take().is_some() && !slot.is_wanted());
    }
}
