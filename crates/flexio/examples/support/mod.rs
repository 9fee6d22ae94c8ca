//! Shared code of the examples: their arguments, a device with a DPA, and the program for it.

use std::process::ExitCode;

use verbless::model::{InProcess, Link, Model, Profile};
use verbless::{Backend, Device, Kernel};
use verbless_flexio::App;

pub(crate) type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error>>;

/// Runs an example with its device and program, and prints its error.
///
/// The arguments are `PROGRAM [DEVICE]`: the program's ELF file, and the name of a device. Without
/// a device, the example uses a model in this process.
#[allow(dead_code, reason = "some examples have two devices")]
pub(crate) fn main(example: impl FnOnce(&Device, &App) -> Result) -> ExitCode {
    main_with(open, example)
}

fn main_with<D>(
    open: impl FnOnce(Option<&str>) -> Result<D>,
    example: impl FnOnce(&D, &App) -> Result,
) -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let (program, device) = (arguments.next(), arguments.next());
    let outcome = match program {
        None => Err("usage: PROGRAM [DEVICE], by default on a model; \
                     `cargo xtask dpa examples` builds the programs into target/dpa"
            .into()),
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

/// Like `main` with two devices on one Ethernet. The third argument names the second device; by
/// default it is any other device.
#[allow(dead_code, reason = "most examples have one device")]
pub(crate) fn main_of_two(example: impl FnOnce(&Device, &Device, &App) -> Result) -> ExitCode {
    main_with(open_two, |(device, other), app| example(device, other, app))
}

fn open_two(name: Option<&str>) -> Result<(Device, Device)> {
    let Some(name) = name else {
        let card = Profile::load("bluefield3")?.with_link(Link::Ethernet);
        let model = Model::builder().device(card.clone()).device(card).build();
        let backend = InProcess::of(&model);
        let first = Device::open(&backend, &backend.find("mlx5_0")?)?;
        return Ok((first, Device::open(&backend, &backend.find("mlx5_1")?)?));
    };
    let kernel = Kernel::new();
    let peer = std::env::args().nth(3);
    let other = kernel.enumerate()?.into_iter().find(|info| match &peer {
        Some(peer) => info.name == *peer,
        None => info.name != name && info.has_node,
    });
    let other = other.ok_or("this machine has no second mlx5 device")?;
    Ok((open(Some(name))?, Device::open(&kernel, &other)?))
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

/// Fails unless a value equals the expected one.
pub(crate) fn expect<T: PartialEq + std::fmt::Debug>(what: &str, is: T, expected: T) -> Result {
    match is == expected {
        true => Ok(()),
        false => Err(format!("{what}: {is:?}, not {expected:?}").into()),
    }
}
