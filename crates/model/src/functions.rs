//! Functions, and who has them: each is lent to one thread at a time.
//!
//! A thread that works with a function takes it out of its place and puts it back. One that needs
//! several waits only for those whose numbers are above all that it has, so that no two threads
//! wait for each other; below that it takes what nobody has, or gives back everything and begins
//! again in order.

use std::ops::{Index, IndexMut};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use crate::engine::function::Function;
use crate::memory::UarSpace;

/// The functions that a thread has, by their numbers.
#[derive(Default)]
pub(crate) struct Functions(Vec<Option<Box<Function>>>);

impl Functions {
    /// All of them.
    pub(crate) fn all(functions: Vec<Function>) -> Self {
        Self(functions.into_iter().map(|function| Some(Box::new(function))).collect())
    }

    /// None of so many.
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

    /// Those at hand.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Function> {
        self.0.iter().flatten().map(|function| &**function)
    }

    /// Those at hand.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Function> {
        self.0.iter_mut().flatten().map(|function| &mut **function)
    }
}

/// That a function is at hand is its user's to see to, as that an index is within bounds.
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

/// Where a function is while no thread has it.
pub(crate) struct Place {
    function: Mutex<Option<Box<Function>>>,
    returned: Condvar,
    /// How many threads wait for it, or are about to.
    waiting: AtomicU32,
    /// It has work that waits for nothing.
    pub busy: AtomicBool,
    /// When its next timer runs out; `u64::MAX`: none runs.
    pub due: AtomicU64,
    /// Where its doorbells are rung.
    pub bar: Arc<UarSpace>,
}

impl Place {
    pub(crate) fn new(bar: Arc<UarSpace>) -> Self {
        Self {
            function: Mutex::default(),
            returned: Condvar::new(),
            waiting: AtomicU32::new(0),
            busy: AtomicBool::new(false),
            due: AtomicU64::new(u64::MAX),
            bar,
        }
    }

    /// Waits for the function, and takes it.
    pub(crate) fn take(&self) -> Box<Function> {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let mut place = self.function.lock().unwrap_or_else(PoisonError::into_inner);
        let function = loop {
            match place.take() {
                Some(function) => break function,
                None => {
                    place = self.returned.wait(place).unwrap_or_else(PoisonError::into_inner);
                }
            }
        };
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        function
    }

    /// Takes the function, if nobody has it.
    pub(crate) fn try_take(&self) -> Option<Box<Function>> {
        self.function.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Puts the function back.
    pub(crate) fn put_back(&self, function: Box<Function>) {
        let mut place = self.function.lock().unwrap_or_else(PoisonError::into_inner);
        debug_assert!(place.is_none(), "there is one of each function");
        *place = Some(function);
        drop(place);
        if self.waiting.load(Ordering::Relaxed) > 0 {
            self.returned.notify_one();
        }
    }

    /// Whether a thread waits for it.
    pub(crate) fn is_wanted(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }

    /// Whether no thread has it.
    #[cfg(test)]
    pub(crate) fn is_free(&self) -> bool {
        self.function.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }
}
