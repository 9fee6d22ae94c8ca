//! Cycles and instructions of a part of a program (`flexio_dev_perf_*`).
//!
//! On the model a cycle is an instruction, and reading a counter is a system call, so this measures
//! the instruction count of a part. [`calibrate`] prints the overhead of a measurement.

use crate::print;
use crate::system::{cycles, instructions};

/// Counts between two points of a thread (`flexio_dev_perf_data`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PerfData {
    /// Cycles.
    pub cycles: u64,
    /// Instructions.
    pub instructions: u64,
}

/// The current counts, as the start for [`end`] (`flexio_dev_perf_start`).
pub fn start() -> PerfData {
    PerfData { cycles: cycles(), instructions: instructions() }
}

/// Replaces the counts of [`start`] by the difference since then (`flexio_dev_perf_end`).
pub fn end(data: &mut PerfData) {
    data.cycles = cycles().wrapping_sub(data.cycles);
    data.instructions = instructions().wrapping_sub(data.instructions);
}

/// Adds counts to others (`flexio_dev_perf_aggregate`).
pub fn aggregate(collect: &mut PerfData, data: PerfData) {
    collect.cycles += data.cycles;
    collect.instructions += data.instructions;
}

/// Writes counts to the default stream, after a word to search for (`flexio_dev_perf_print`).
pub fn print(data: PerfData, keyword: &str) {
    print!("{keyword}: instructions/cycles: {}/{}", data.instructions, data.cycles);
}

/// Runs `what` and prints its counts (`FLEXIO_DEV_PERF_MEASURE`).
pub fn measure<T>(keyword: &str, what: impl FnOnce() -> T) -> T {
    let mut data = PerfData::default();
    let result = collect(&mut data, what);
    print(data, keyword);
    result
}

/// Runs `what` and adds its counts to `into` (`FLEXIO_DEV_PERF_COLLECT`).
pub fn collect<T>(into: &mut PerfData, what: impl FnOnce() -> T) -> T {
    let mut data = start();
    let result = what();
    end(&mut data);
    aggregate(into, data);
    result
}

/// Prints the counts of an empty measurement (`flexio_dev_perf_measure_calibrate`).
pub fn calibrate() {
    measure("calibration", || ());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::system::tests::answering;

    #[test]
    fn counts_are_differences_and_add_up() {
        let mut data = answering(100, start);
        assert_eq!(data, PerfData { cycles: 100, instructions: 100 });
        answering(142, || end(&mut data));
        assert_eq!(data, PerfData { cycles: 42, instructions: 42 });
        let mut all = PerfData { cycles: 1, instructions: 2 };
        aggregate(&mut all, data);
        assert_eq!(all, PerfData { cycles: 43, instructions: 44 });
        let before = all;
        assert_eq!(answering(7, || collect(&mut all, || 5)), 5);
        assert_eq!(all, before, "the counters did not move");
    }
}
