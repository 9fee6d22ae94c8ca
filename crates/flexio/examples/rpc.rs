//! Calls of functions on the DPA: arguments and results of every width, and a thousand calls in
//! flight at a time by a command queue.
//!
//! `cargo xtask dpa examples` builds and runs it; by hand `rpc target/dpa/rpc.elf`.

mod support;

use std::process::ExitCode;

use support::{Result, expect};
use verbless::Device;
use verbless_flexio::{App, Cmdq, CmdqConfig, CmdqState, Function, Process, ProcessConfig};

const IN_FLIGHT: u64 = 1000;

fn main() -> ExitCode {
    support::main(|device, app| {
        widths(device, app)?;
        in_flight(device, app)
    })
}

/// Calls the function of one width with its minimum and its maximum, and with a value between.
macro_rules! next {
    ($process:expr, $($name:literal $word:ty),*) => {$({
        for value in [<$word>::MIN, <$word>::MAX, 77] {
            let function = Function::<($word,), $word>::named($name);
            let result = $process.call(function, (value,))?;
            expect($name, result, value.wrapping_add(1))?;
        }
    })*};
}

fn widths(device: &Device, app: &App) -> Result {
    type Eight = (i8, u8, i16, u16, i32, u32, i64, bool);
    let process = Process::create(device, app, &ProcessConfig::default())?;
    next!(process, "next_u8" u8, "next_u16" u16, "next_u32" u32, "next_u64" u64);
    next!(process, "next_i8" i8, "next_i16" i16, "next_i32" i32, "next_i64" i64);
    next!(process, "next_usize" usize, "next_isize" isize);
    for value in [true, false] {
        let not = Function::<(bool,), bool>::named("not");
        expect("not", process.call(not, (value,))?, !value)?;
    }
    let sum = Function::<Eight, i64>::named("sum");
    let eight = (i8::MIN, u8::MAX, i16::MIN, u16::MAX, i32::MIN, u32::MAX, 1 << 40, true);
    let expected = -128 + 255 - 32_768 + 65_535 - (1 << 31) + ((1 << 32) - 1) + (1 << 40) + 1;
    expect("the sum of eight", process.call(sum, eight)?, expected)?;
    process.call(Function::<(), ()>::named("reset"), ())?;
    expect("calls", process.call(Function::<(), u64>::named("calls"), ())?, 0)?;
    println!("arguments and results of every width came through");
    Ok(())
}

fn in_flight(device: &Device, app: &App) -> Result {
    let process = Process::create(device, app, &ProcessConfig::default())?;
    let words: Vec<u8> = (0..IN_FLIGHT).flat_map(|n| (n * 1_000_003).to_le_bytes()).collect();
    let memory = process.alloc_from(&words)?;
    // The queue collects all tasks before the first one runs.
    let config = CmdqConfig {
        workers: 4,
        batch_size: 16,
        state: CmdqState::Pending,
        log_depth: 8,
        ..CmdqConfig::default()
    };
    let mut queue = Cmdq::create(&process, &config)?;
    for n in 0..IN_FLIGHT {
        queue.task_add(Function::<(u64,), ()>::named("square"), memory.address() + 8 * n)?;
    }
    expect("calls in flight", queue.pending()?, IN_FLIGHT)?;
    queue.state_running()?;
    queue.wait_until_empty()?;
    let mut bytes = vec![0; words.len()];
    memory.read_at(0, &mut bytes)?;
    for (n, word) in (0..).zip(bytes.as_chunks().0) {
        let value: u64 = n * 1_000_003;
        expect("a square", u64::from_le_bytes(*word), value.wrapping_mul(value))?;
    }
    let calls = process.call(Function::<(), u64>::named("calls"), ())?;
    expect("calls that were made", calls, IN_FLIGHT)?;
    queue.destroy();
    println!("{IN_FLIGHT} calls in flight on {} workers left their results", config.workers);
    Ok(())
}
