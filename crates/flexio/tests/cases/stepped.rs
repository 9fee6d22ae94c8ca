//! On a stepped model the DPA moves by steps only, and the same steps give the same results.

use verbless::model::{InProcess, Model, Profile};
use verbless::prelude::*;
use verbless_command::{Affinity, DpaCallState, DpaEntry};
use verbless_flexio::{App, Process, ProcessConfig};

use crate::support::{file, function};

type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error>>;
/// The state of each call, and the instruction count of ended runs.
type Shown = (Vec<DpaCallState>, u64);

/// The states of calls on two units after each step.
fn trace() -> Result<Vec<Shown>> {
    let model = Model::builder().device(Profile::load("bluefield3")?).stepped().build();
    let backend = InProcess::of(&model);
    let device = Device::open(&backend, &backend.find("mlx5_0")?)?;
    let process =
        Process::create(&device, &App::new("count", &file())?, &ProcessConfig::default())?;
    let calls = [(0, 150_000, 1), (1, 90_000, 1_000), (0, 10, 1 << 32), (1, 1, 1 << 40)];
    let begin = |(unit, times, step)| {
        let entry = DpaEntry { affinity: Affinity::Strict(unit), ..DpaEntry::at(function::COUNT) };
        device.begin_dpa_call(process.object(), &entry, [times, step, 0, 0, 0, 0, 0, 0])
    };
    let calls = calls.map(begin).into_iter().collect::<std::result::Result<Vec<_>, _>>()?;
    let mut trace = Vec::new();
    loop {
        let states =
            calls.iter().map(|call| call.state()).collect::<std::result::Result<Vec<_>, _>>()?;
        trace.push((states, process.status()?.instructions));
        if !model.step() {
            return Ok(trace);
        }
    }
}

#[test]
fn stepped_runs_are_deterministic() -> Result {
    let first = trace()?;
    // Nothing moves before the first step, and a single step does not complete it.
    assert!(first[0].0.iter().all(|state| *state == DpaCallState::Running));
    assert!(first.len() > 6, "{} steps", first.len());
    let (end, instructions) = &first[first.len() - 1];
    let total = 150_000 + 90_000 * 1_000 + 10 * (1_u64 << 32) + (1 << 40);
    assert!(end.contains(&DpaCallState::Returned(total)), "{end:?}, of which none is {total}");
    assert_eq!(*instructions, 3 * 240_011 + 4 * 5);
    assert_eq!(trace()?, first);
    Ok(())
}
