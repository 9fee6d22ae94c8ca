//! A host with a program for the DPA in its binary, which calls the program's functions with their
//! own types. `embedded` prints a line for each test, and `N passed, N failed`.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use verbless::command::DpaStatus;
use verbless::flexio::{App, Error as FlexioError, Function, Process, ProcessConfig, embed};
use verbless::model::{InProcess, Model, Profile};
use verbless::prelude::*;

embed!(
    /// The program of the device API's tests.
    pub mod program = "../../../../target/dpa/program.elf"
);

type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error>>;
type Test = fn(&Device) -> Result;

const TESTS: &[(&str, Test)] = &[
    ("functions are called with their own types", types),
    ("each call in a process that has ended is a fatal error", fatal),
    ("a call that times out is terminated and the process continues", timeout),
    ("a function that the program does not have is refused by name", names),
    ("a device without a DPA is refused", no_dpa),
    ("a file that is not a program is rejected", no_program),
];

fn main() -> Result<ExitCode> {
    let card = Profile::load("bluefield3")?;
    let backend = InProcess::of(&Model::builder().device(card).build());
    let device = Device::open(&backend, &backend.find("mlx5_0")?)?;
    let mut failed = 0;
    for (name, test) in TESTS {
        match test(&device) {
            Ok(()) => println!("ok      {name}"),
            Err(why) => {
                println!("FAILED  {name}: {why}");
                failed += 1;
            }
        }
    }
    println!("{} passed, {failed} failed", TESTS.len() - failed);
    Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn same<T: PartialEq + std::fmt::Debug>(found: T, expected: T) -> Result {
    match found == expected {
        true => Ok(()),
        false => Err(format!("{found:?}, not {expected:?}").into()),
    }
}

fn process(device: &Device) -> Result<Process> {
    Ok(Process::create(device, &program::APP.app()?, &ProcessConfig::default())?)
}

fn types(device: &Device) -> Result {
    let process = process(device)?;
    same(process.call(program::add, (40, 2))?, 42)?;
    let widths = (-3, 300, true, -40_000, 5, -6, 7, 255);
    same(process.call(program::widths, widths)?, -3 + 300 + 1 - 40_000 + 5 - 6 + 7 + 255)?;
    same(process.call(program::panics, (0,))?, 1_u8)?;
    process.call(program::nothing, ())?;
    let found: Function<(u64,), u64> = process.app().function("increment")?;
    same(process.call(found, (5,))?, 5)?;
    same(process.call(program::count, ())?, 5)?;
    same(program::drain.name(), "drain")
}

fn fatal(device: &Device) -> Result {
    let process = process(device)?;
    for _ in 0..2 {
        match process.call(program::ends_with, (200,)) {
            Err(FlexioError::Fatal(DpaStatus(200))) => {}
            other => return Err(format!("{other:?}").into()),
        }
    }
    same(process.status()?.status, DpaStatus(200))
}

fn timeout(device: &Device) -> Result {
    let config = ProcessConfig { timeout: Duration::from_millis(50), ..ProcessConfig::default() };
    let process = Process::create(device, &program::APP.app()?, &config)?;
    let begun = Instant::now();
    match process.call(program::wait_for, (u64::MAX,)) {
        Err(FlexioError::Timeout(_)) => {}
        other => return Err(format!("{other:?}").into()),
    }
    if begun.elapsed() < config.timeout {
        return Err("it was terminated too soon".into());
    }
    same(process.call(program::add, (1, 1))?, 2)
}

fn names(device: &Device) -> Result {
    let process = process(device)?;
    let refused = |error: Option<FlexioError>, parts: [&str; 2]| {
        let text = error.ok_or("the program was found")?.to_string();
        match parts.iter().all(|part| text.contains(part)) {
            true => Ok(()),
            false => Err(Box::<dyn std::error::Error>::from(text)),
        }
    };
    let app = process.app();
    refused(app.function::<(u64,), u64>("add").err(), ["no add(u64)->u64", "add(u64,u32)->u64"])?;
    refused(app.function::<(), ()>("dad").err(), ["no dad()", "it has activate(u32)->u32, add"])?;
    let other = Function::<(), u64>::named("nothing");
    refused(process.call(other, ()).err(), ["no nothing()->u64", "its nothing is nothing()"])
}

fn no_dpa(_: &Device) -> Result {
    let backend = InProcess::of(&Model::builder().device(Profile::load("connectx6dx")?).build());
    let device = Device::open(&backend, &backend.find("mlx5_0")?)?;
    match Process::create(&device, &program::APP.app()?, &ProcessConfig::default()) {
        Err(FlexioError::Device(_)) => Ok(()),
        other => Err(format!("{other:?}").into()),
    }
}

fn no_program(_: &Device) -> Result {
    match App::new("half", &program::APP.elf()[..100]) {
        Err(FlexioError::Failed(why)) if why.starts_with("half is not a program for a DPA: ") => {
            Ok(())
        }
        other => Err(format!("{other:?}").into()),
    }
}
