//! Functions, and who has them: each is lent to one thread at a time.
//!
//! A thread that works with a function takes it out of its slot and puts it back. One that needs
//! several waits only for those whose numbers are above all that it has, so that no two threads
//! wait for each other; below that it takes what nobody has, or gives back everything and begins
//! again in order.

use std::ops::{Index, IndexMut};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use crate::engine::function::Function;
use crate::memory::UarSpace;

/// The functions that a thread has, by their numbers.
#[derive(Default)]
pub(crate) struct Functions(Vec<Option<Box<Function>>>);

impl Functions {
    /// All functions, at hand.
    pub(crate) fn all(functions: Vec<Function>) -> Self {
        Self(functions.into_iter().map(|function| Some(Box::new(function))).collect())
    }

    /// As many functions as `count`, none of them at hand.
    pub(crate) fn none(count: usize) -> Self {
        Self((0..count).map(|_| None).collect())
    }

    /// How many there are, at hand or not.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn has(&self, id: usize) -> bool {
        self.0[id].is_some()
    }

    pub(crate) fn has_all(&self) -> bool {
        self.0.iter().all(Option::is_some)
    }

    /// The highest number that is at hand.
    pub(crate) fn last(&self) -> Option<usize> {
        self.0.iter().rposition(Option::is_some)
    }

    pub(crate) fn put(&mut self, id: usize, function: Box<Function>) {
        self.0[id] = Some(function);
    }

    pub(crate) fn take(&mut self, id: usize) -> Option<Box<Function>> {
        self.0[id].take()
    }

    /// One function, mutable, and the others beside it.
    ///
    /// # Panics
    /// If function `id` is not at hand.
    #[inline]
    pub(crate) fn split(&mut self, id: usize) -> (&mut Function, Others<'_>) {
        let (before, rest) = self.0.split_at_mut(id);
        let (one, after) = rest.split_first_mut().expect("a function that exists");
        let one = one.as_mut().expect("a function that is at hand");
        (one, Others { before, after })
    }

    /// The functions at hand.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Function> {
        self.0.iter().flatten().map(|function| &**function)
    }

    /// The functions at hand, mutable.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Function> {
        self.0.iter_mut().flatten().map(|function| &mut **function)
    }
}

/// The functions that a thread has beside one that it works with.
#[derive(Clone, Copy, Default)]
pub(crate) struct Others<'a> {
    before: &'a [Option<Box<Function>>],
    after: &'a [Option<Box<Function>>],
}

impl<'a> Others<'a> {
    /// Function `id`, if it is at hand and not the one in the middle.
    pub(crate) fn get(self, id: usize) -> Option<&'a Function> {
        let slot = match id.checked_sub(self.before.len()) {
            None => self.before.get(id),
            Some(behind) => self.after.get(behind.checked_sub(1)?),
        };
        slot?.as_deref()
    }
}

/// Panics if the function is not at hand, as indexing beyond bounds does.
impl Index<usize> for Functions {
    type Output = Function;

    fn index(&self, id: usize) -> &Function {
        self.0[id].as_ref().expect("a function that is at hand")
    }
}

impl IndexMut<usize> for Functions {
    fn index_mut(&mut self, id: usize) -> &mut Function {
        self.0[id].as_mut().expect("a function that is at hand")
    }
}

/// The slot of a function: where it is while no thread has it. Those who wait for it get it in the
/// order in which they came.
pub(crate) struct Slot {
    state: Mutex<Waiting>,
    returned: Condvar,
    /// Whether the function has work that it can do now; false while a thread has it.
    pub busy: AtomicBool,
    /// When its next timer runs out; `u64::MAX`: none runs, or a thread has it.
    pub due: AtomicU64,
    /// The UAR pages in which its doorbells are rung.
    pub bar: Arc<UarSpace>,
}

#[derive(Default)]
struct Waiting {
    function: Option<Box<Function>>,
    /// The number of the next who comes, and of the next whose turn it is.
    next: u64,
    turn: u64,
}

impl Slot {
    pub(crate) fn new(bar: Arc<UarSpace>) -> Self {
        Self {
            state: Mutex::default(),
            returned: Condvar::new(),
            busy: AtomicBool::new(false),
            due: AtomicU64::new(u64::MAX),
            bar,
        }
    }

    fn state(&self) -> MutexGuard<'_, Waiting> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the function, and takes it.
    pub(crate) fn take(&self) -> Box<Function> {
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

    /// Takes the function, if nobody has it or waits for it.
    pub(crate) fn try_take(&self) -> Option<Box<Function>> {
        let mut state = self.state();
        let function = if state.turn == state.next { state.function.take() } else { None };
        function.map(|function| self.taken(function))
    }

    /// Resets the hints about the function's work, which the thread that has the function knows
    /// better.
    fn taken(&self, function: Box<Function>) -> Box<Function> {
        self.busy.store(false, Ordering::Relaxed);
        self.due.store(u64::MAX, Ordering::Relaxed);
        function
    }

    /// Puts the function back.
    pub(crate) fn put_back(&self, function: Box<Function>) {
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

    /// Whether no thread has it.
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
    fn those_who_wait_get_a_function_in_the_order_in_which_they_came_and_before_who_does_not() {
        let profile = Arc::new(Profile::load("bluefield3").unwrap());
        let hca = Hca::new(0, profile, crate::memory::in_process(), crate::engine::qp_type);
        let slot = Arc::new(Slot::new(hca.bar.clone()));
        slot.put_back(Box::new(Function::new(hca)));
        let mine = slot.try_take().expect("nobody has it");
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
