//! The library logs the creation and the end of processes.

mod support;

use std::process::Command;

use verbless::model::{InProcess, Model, Profile};
use verbless::prelude::*;
use verbless_flexio::log::{LogLevel, set_log_level};
use verbless_flexio::{App, Process, ProcessConfig};

type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error>>;

const CHILD: &str = "VERBLESS_TEST_LOG_CHILD";

/// One process that is dropped, and one that is destroyed.
fn processes() -> Result {
    set_log_level(LogLevel::Info);
    let model = Model::builder().device(Profile::load("bluefield3")?).build();
    let backend = InProcess::of(&model);
    let device = Device::open(&backend, &backend.find("mlx5_0")?)?;
    let app = App::new("worker", &support::file())?;
    drop(Process::create(&device, &app, &ProcessConfig::default())?);
    Process::create(&device, &app, &ProcessConfig::default())?.destroy()?;
    Ok(())
}

#[test]
fn process_creation_and_end_are_logged_at_info() -> Result {
    if std::env::var_os(CHILD).is_some() {
        return processes();
    }
    let name = "process_creation_and_end_are_logged_at_info";
    let mut program = Command::new(std::env::current_exe()?);
    let said = program.args([name, "--exact", "--nocapture"]).env(CHILD, "1").output()?;
    assert!(said.status.success(), "{said:?}");
    let said = String::from_utf8(said.stderr)?;
    let lines = said.lines().filter_map(|line| line.strip_prefix("verbless-flexio: info: "));
    let created: Vec<_> = lines.map(|line| line.starts_with("made process 0x")).collect();
    assert_eq!(created, [true, false, true, false], "{said}");
    assert_eq!(said.matches(" of worker was destroyed").count(), 2, "{said}");
    Ok(())
}
