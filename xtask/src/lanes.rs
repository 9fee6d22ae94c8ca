//! Schedules the steps of `cargo xtask test` beside each other.
//!
//! A step names its resource: a directory that it builds in, or ports and devices that it uses.
//! Steps of one resource run one after the other; a step with its own directory runs beside any
//! other. Two run at a time, and a third one that only compiles uses their spare time: tests wait
//! for devices, guests and each other. A step that measures, or that does as much as it can in a
//! given time, runs alone after all others. Of the steps that may start, the first in the list
//! starts.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Steps at a time: each compiles with all processors, and a compile ends with a wait for its last
/// crate.
const WORKERS: usize = 2;

/// A resource that concurrent steps must not share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Resource {
    /// `target/debug`.
    Debug,
    /// `target/release`, and TCP ports.
    Release,
    /// `target/vm`, and the build directory of programs for the DPA.
    Guest,
    /// No resource: the step has a target directory of its own.
    Own,
    /// As `Own`, and the step only compiles: slowness cannot make it fail.
    Spare,
    /// Every resource.
    Alone,
}

/// Runs `work` for the index of each resource, and returns its results, in the same order; the flag
/// asks `work` to use only spare time.
pub(crate) fn run<T: Send>(
    resources: &[Resource],
    work: impl Fn(usize, bool) -> T + Sync,
) -> Vec<T> {
    let steps = resources.iter().copied().enumerate().collect();
    let lanes =
        Lanes { state: Mutex::new(LanesState { steps, busy: Vec::new() }), free: Condvar::new() };
    let results = Mutex::new(resources.iter().map(|_| None).collect::<Vec<Option<T>>>());
    std::thread::scope(|scope| {
        let (lanes, work, results) = (&lanes, &work, &results);
        for spare in [false; WORKERS].into_iter().chain([true]) {
            scope.spawn(move || {
                while let Some((index, _taken)) = lanes.take(spare) {
                    let result = work(index, spare);
                    results.lock().unwrap_or_else(PoisonError::into_inner)[index] = Some(result);
                }
            });
        }
    });
    // A panic of a worker ends the whole run: each step that is left here has a result.
    results.into_inner().unwrap_or_else(PoisonError::into_inner).into_iter().flatten().collect()
}

/// The remaining steps, and the running ones.
struct Lanes {
    state: Mutex<LanesState>,
    free: Condvar,
}

struct LanesState {
    steps: VecDeque<(usize, Resource)>,
    busy: Vec<Resource>,
}

impl LanesState {
    /// The step that may run next: the first one. Steps that only compile go to the spare-time
    /// worker, or to a worker without other steps; the spare-time worker takes no others.
    fn next(&self, spare: bool) -> Option<usize> {
        let others = self.steps.iter().any(|&(_, resource)| resource != Resource::Alone);
        let may = |resource| match resource {
            Resource::Alone => self.busy.is_empty() && !others,
            Resource::Own | Resource::Spare => !self.busy.contains(&Resource::Alone),
            _ => !self.busy.contains(&resource) && !self.busy.contains(&Resource::Alone),
        };
        let first = |compiles: bool| {
            let is = |resource| may(resource) && compiles == (resource == Resource::Spare);
            self.steps.iter().position(|&(_, resource)| is(resource))
        };
        if spare { first(true) } else { first(false).or_else(|| first(true)) }
    }

    /// Whether no step is left for a worker.
    fn is_over(&self, spare: bool) -> bool {
        !self.steps.iter().any(|&(_, resource)| !spare || resource == Resource::Spare)
    }
}

impl Lanes {
    fn state(&self) -> MutexGuard<'_, LanesState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a step that may run; `None`: no step is left.
    fn take(&self, spare: bool) -> Option<(usize, Taken<'_>)> {
        let mut state = self.state();
        loop {
            if state.is_over(spare) {
                return None;
            }
            if let Some((index, resource)) = state.next(spare).and_then(|at| state.steps.remove(at))
            {
                state.busy.push(resource);
                return Some((index, Taken { lanes: self, resource }));
            }
            state = self.free.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// A resource in use, until this is dropped.
struct Taken<'a> {
    lanes: &'a Lanes,
    resource: Resource,
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        let mut state = self.lanes.state();
        if let Some(at) = state.busy.iter().position(|&resource| resource == self.resource) {
            state.busy.swap_remove(at);
        }
        self.lanes.free.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use super::*;

    /// The steps that ran beside each step, by index; each takes a moment.
    fn beside(resources: &[Resource]) -> Vec<Vec<usize>> {
        let running = Mutex::new(Vec::new());
        let seen = Mutex::new(vec![Vec::new(); resources.len()]);
        let order = run(resources, |index, _| {
            let mut now = running.lock().unwrap();
            now.push(index);
            for &one in now.iter() {
                let others = now.iter().copied().filter(|&other| other != one);
                seen.lock().unwrap()[one].extend(others);
            }
            drop(now);
            std::thread::sleep(Duration::from_millis(50));
            running.lock().unwrap().retain(|&other| other != index);
            index
        });
        assert_eq!(order, (0..resources.len()).collect::<Vec<_>>(), "each ran, once");
        seen.into_inner().unwrap()
    }

    /// Begins the next step that may run; returns its index.
    fn begin(state: &mut LanesState) -> Option<usize> {
        let (index, resource) = state.next(false).and_then(|at| state.steps.remove(at))?;
        state.busy.push(resource);
        Some(index)
    }

    #[test]
    fn steps_of_one_resource_run_serially() {
        use Resource::{Debug, Guest, Own};
        let steps = [Debug, Debug, Guest, Own, Own].into_iter().enumerate().collect();
        let mut state = LanesState { steps, busy: Vec::new() };
        // The first steps that may run; a second step of a resource in use may not.
        let begun: Vec<_> = std::iter::from_fn(|| begin(&mut state)).collect();
        assert_eq!(begun, [0, 2, 3, 4]);
        state.busy.retain(|resource| *resource != Debug);
        assert_eq!(begin(&mut state), Some(1));

        let beside = beside(&[Debug; 3]);
        assert!(beside.iter().all(Vec::is_empty), "{beside:?}");
    }

    #[test]
    fn two_steps_run_at_a_time() {
        let running = AtomicUsize::new(0);
        let met = run(&[Resource::Own; 2], |_, _| {
            running.fetch_add(1, Ordering::Relaxed);
            // Each stays until both have begun.
            let waits = (0..6000).take_while(|_| running.load(Ordering::Relaxed) < 2);
            waits.for_each(|_| std::thread::sleep(Duration::from_millis(10)));
            running.load(Ordering::Relaxed) == 2
        });
        assert_eq!(met, [true; 2]);
    }

    #[test]
    fn spare_step_runs_beside_others() {
        let running = AtomicUsize::new(0);
        let spared = run(&[Resource::Spare, Resource::Own, Resource::Own], |_, spare| {
            running.fetch_add(1, Ordering::Relaxed);
            let waits = (0..6000).take_while(|_| running.load(Ordering::Relaxed) < 3);
            waits.for_each(|_| std::thread::sleep(Duration::from_millis(10)));
            (spare, running.load(Ordering::Relaxed) == 3)
        });
        assert_eq!(spared, [(true, true), (false, true), (false, true)]);
        let steps = [(0, Resource::Spare), (1, Resource::Debug), (2, Resource::Alone)].into();
        let mut state = LanesState { steps, busy: vec![] };
        assert_eq!((state.next(false), state.next(true)), (Some(1), Some(0)));
        state.busy.push(Resource::Debug);
        assert_eq!(state.next(false), Some(0), "there is nothing else to do");
        state.steps.pop_front();
        assert!(state.is_over(true) && !state.is_over(false));
    }

    #[test]
    fn measuring_step_runs_alone_and_last() {
        let resources =
            [Resource::Alone, Resource::Own, Resource::Alone, Resource::Release, Resource::Debug];
        let beside = beside(&resources);
        assert!(beside[0].is_empty() && beside[2].is_empty(), "{beside:?}");
        let state =
            LanesState { steps: [(0, Resource::Alone), (1, Resource::Own)].into(), busy: vec![] };
        assert_eq!(state.next(false), Some(1));
        let state = LanesState { steps: [(1, Resource::Own)].into(), busy: vec![Resource::Alone] };
        assert_eq!(state.next(false), None);
    }

    #[test]
    fn panicking_step_ends_run() {
        let resources = [Resource::Debug, Resource::Debug, Resource::Alone];
        let ended = std::panic::catch_unwind(|| {
            run(&resources, |index, _| assert!(index != 0, "the step is broken"));
        });
        assert!(ended.is_err());
    }
}
