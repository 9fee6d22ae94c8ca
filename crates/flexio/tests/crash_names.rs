//! Crash files with relative names are in the current directory, or in /tmp if that refuses them.
//! The current directory is the process's, so this test has its own program.

mod support;

use std::path::{Path, PathBuf};

use verbless::model::{InProcess, Model, Profile};
use verbless::prelude::*;
use verbless_command::{DpaCallState, DpaEntry};
use verbless_flexio::{App, Process, ProcessConfig};

use support::{file, function};

type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error>>;

/// A process that a fault has ended.
fn ended() -> Result<Process> {
    let backend = InProcess::of(&Model::builder().device(Profile::load("bluefield3")?).build());
    let device = Device::open(&backend, &backend.find("mlx5_0")?)?;
    let app = App::new("crashes", &file())?;
    let process = Process::create(&device, &app, &ProcessConfig::default())?;
    let entry = DpaEntry::at(function::FAULT);
    let call = device.begin_dpa_call(process.object(), &entry, [0; 8])?;
    let end = std::time::Instant::now() + std::time::Duration::from_secs(10);
    while call.state()? == DpaCallState::Running && std::time::Instant::now() < end {
        std::thread::yield_now();
    }
    Ok(process)
}

#[test]
fn relative_crash_name_is_below_cwd_or_tmp() -> Result {
    let process = ended()?;
    let number = process.object().id();
    let here = std::env::temp_dir().join(format!("verbless-crash-names-{}", std::process::id()));
    std::fs::create_dir_all(&here)?;
    std::env::set_current_dir(&here)?;
    let (crash, core) = (format!("{number}.crash"), format!("{number}.core"));
    let stem = Some(Path::new("ended"));
    for (made, name) in [
        (process.crash_data(stem)?, format!("ended.{crash}")),
        (process.core_dump(stem)?, format!("ended.{core}")),
        (process.crash_data(None)?, format!("flexio_dev.{crash}")),
        (process.core_dump(None)?, format!("flexio_dev.{core}")),
    ] {
        assert_eq!(made, PathBuf::from(&name));
        assert!(std::fs::metadata(here.join(name))?.len() > 100);
    }
    // A removed directory refuses new files.
    std::fs::remove_dir_all(&here)?;
    let stem = format!("verbless-crash-gone-{}", std::process::id());
    for (made, end) in [
        (process.crash_data(Some(Path::new(&stem)))?, &crash),
        (process.core_dump(Some(Path::new(&stem)))?, &core),
    ] {
        assert_eq!(made, Path::new("/tmp").join(format!("{stem}.{end}")));
        assert!(std::fs::metadata(&made)?.len() > 100);
        std::fs::remove_file(made)?;
    }
    let nowhere = process.crash_data(Some(&here.join("ended"))).unwrap_err().to_string();
    assert!(nowhere.contains(&here.display().to_string()), "{nowhere}");
    Ok(())
}
