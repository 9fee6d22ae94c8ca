//! The cases on the model in this process, recorded.

use std::sync::{Arc, Mutex};

use verbless_capture::recording::{Command, Section, sections};
use verbless_capture::{ours, scenario};
use verbless_model::{Link, Model, Profile};
use verbless_model_kernel::{InProcess, KernelRelease};

/// Our driver's commands for the cases.
/// The device and the kernel are like those of the recording with this name.
pub(crate) fn in_process_like(recording: &str) -> Vec<Section> {
    match recording {
        "linux-5.10" => in_process("connectx6dx", KernelRelease::V5_10),
        _ => in_process("bluefield3", KernelRelease::Newest),
    }
}

fn in_process(profile: &str, release: KernelRelease) -> Vec<Section> {
    let profile =
        Profile::load(profile).expect("the profile is built in").with_link(Link::Infiniband);
    let model = Model::builder().device(profile).stepped().build();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let sink = seen.clone();
    let _watch = model.watch_commands(move |executed| {
        sink.lock().unwrap().extend(Command::new(executed.input, executed.output));
    });
    ours::run(&InProcess::of(&model).like(release), &scenario::cases())
        .expect("the model does them all");
    let seen = std::mem::take(&mut *seen.lock().unwrap());
    sections(seen)
}
