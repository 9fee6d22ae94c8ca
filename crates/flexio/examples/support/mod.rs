//! What the examples share: their arguments, a device with a DPA, and the program for it.

use std::process::ExitCode;

use verbless::model::{InProcess, Model, Profile};
use verbless::{Backend, Device, Kernel};
use verbless_flexio::App;

pub(crate) type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error>>;

/// Runs an example with its device and program; what it fails with is printed.
///
/// The arguments are `PROGRAM [DEVICE]`: the program's ELF file, and the name of a device, without
/// which the example has a model in this process.
pub(crate) fn main(example: impl FnOnce(&Device, &App) -> Result) -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let (program, device) = (arguments.next(), arguments.next());
    let outcome = match program {
        None => {
            Err("give the program, and a device unless it is to be a model: PROGRAM [DEVICE]; \
                     `cargo xtask dpa examples` builds the programs into target/dpa"
                .into())
        }
        Some(program) => open(device.as_deref())
            .and_then(|device| example(&device, &App::new("program", &std::fs::read(program)?)?)),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn open(name: Option<&str>) -> Result<Device> {
    let Some(name) = name else {
        let backend = InProcess::of(&Model::builder().device(Profile::load("bluefield3")?).build());
        return Ok(Device::open(&backend, &backend.find("mlx5_0")?)?);
    };
    let kernel = Kernel::new();
    let devices = kernel.enumerate()?;
    let found = devices.iter().find(|info| info.name == name);
    let found = found.ok_or_else(|| format!("this machine has no mlx5 device {name}"))?;
    Ok(Device::open(&kernel, found)?)
}

/// Fails unless a value is as expected.
pub(crate) fn expect<T: PartialEq + std::fmt::Debug>(what: &str, is: T, expected: T) -> Result {
    match is == expected {
        true => Ok(()),
        false => Err(format!("{what}: {is:?}, not {expected:?}").into()),
    }
}
