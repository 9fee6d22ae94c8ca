//! Runs many cases: concurrently if each has its own model, one after the other on a shared device.
//! Results come in the order of the cases either way.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError, mpsc};

use crate::{Case, Lab, Row, run_case};

/// The default number of concurrent cases: on the model two per core, as many cases mostly wait; on
/// a shared device, one.
pub fn default_jobs(lab: &Lab) -> usize {
    match lab.is_private() {
        true => 2 * std::thread::available_parallelism().map_or(1, usize::from),
        false => 1,
    }
}

/// Runs the cases, up to `jobs` at once, and hands out their results in the order of the cases.
pub fn run_cases<E: Send>(
    lab: &Lab,
    cases: &[&'static Case],
    jobs: usize,
    mut done: impl FnMut(Row) -> Result<(), E>,
) -> Result<(), E> {
    let queue: Mutex<VecDeque<(usize, &'static Case)>> =
        Mutex::new(cases.iter().copied().enumerate().collect());
    let (sender, receiver) = mpsc::channel();
    std::thread::scope(|scope| {
        for _ in 0..jobs.max(1) {
            let (sender, queue) = (sender.clone(), &queue);
            scope.spawn(move || {
                loop {
                    let next = queue.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
                    let Some((number, case)) = next else { break };
                    if sender.send((number, run_case(lab, case))).is_err() {
                        break;
                    }
                }
            });
        }
        drop(sender);
        let mut early = std::collections::BTreeMap::new();
        let mut next = 0;
        for (number, row) in receiver {
            early.insert(number, row);
            while let Some(row) = early.remove(&next) {
                done(row)?;
                next += 1;
            }
        }
        Ok(())
    })
}
