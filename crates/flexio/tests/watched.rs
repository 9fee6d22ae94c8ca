//! DPA programs run while a command watcher calls the model.

mod support;

use std::sync::mpsc;
use std::time::Duration;

use verbless::model::{InProcess, Model, Profile};
use verbless::prelude::*;
use verbless_command::DpaEntry;
use verbless_flexio::{App, Process, ProcessConfig, Window};

use support::{file, function};

type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error>>;

/// Starts `times` DPA calls and destroys each while it runs. A call increments a counter in host
/// memory through a window; returns the counter.
fn destroy_running_calls(device: &Device, times: u32) -> Result<u64> {
    let process = Process::create(device, &App::new("load", &file())?, &ProcessConfig::default())?;
    let window = Window::create(&process, process.pd())?;
    let memory = process.domain().region(4096, KeyAccess::LOCAL)?;
    let id = u64::from(window.id().0);
    let address = 1 << 63 | id << 48 | memory.address();
    let register = 0x5_0000_0000 + (id << 6);
    let entry = DpaEntry::at(function::COUNT_FOREVER);
    let arguments = [address, memory.lkey().0.into(), register, 0, 0, 0, 0, 0];
    for _ in 0..times {
        let call = device.begin_dpa_call(process.object(), &entry, arguments)?;
        std::thread::sleep(Duration::from_micros(500));
        call.destroy()?;
    }
    assert_eq!(process.status()?.status.0, 0, "the program was stopped by an error");
    let mut counted = [0; 8];
    memory.read_at(0, &mut counted)?;
    Ok(u64::from_ne_bytes(counted))
}

#[test]
fn destroy_of_running_call_survives_command_watcher() -> Result {
    let device = || Profile::load("bluefield3");
    let model = Model::builder().device(device()?).device(device()?).build();
    let backend = InProcess::of(&model);
    let watched = model.clone();
    let _watch = model.watch_commands(move |_| {
        watched.counts(0);
    });
    let [first, second] = ["mlx5_0", "mlx5_1"].map(|name| backend.find(name));
    let (first, second) = (Device::open(&backend, &first?)?, Device::open(&backend, &second?)?);
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        let destroyed = destroy_running_calls(&first, 500).map_err(|error| error.to_string());
        sender.send(destroyed).expect("the test waits");
    });
    // Commands of the other function; the watcher is called for each.
    let other = std::thread::spawn({
        let second = second.clone();
        move || (0..20_000).try_for_each(|_| second.alloc_pd().map(drop))
    });
    let Ok(counted) = receiver.recv_timeout(Duration::from_secs(60)) else {
        eprintln!("the model is deadlocked: a destroy waits for a call that waits for the watcher");
        // Dropping the deadlocked model would block too.
        std::process::exit(1);
    };
    assert!(counted? > 0, "no call has executed anything");
    other.join().expect("no panic")?;
    Ok(())
}
