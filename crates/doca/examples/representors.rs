//! Lists devices, their capabilities, and on a DPU the representors of each.
//!
//! `representors` lists all; `representors -r 0b:00.2` opens the representor of the host's function
//! with that PCI address, or the one of that name (`pf0vf0`).

mod support;

use std::process::ExitCode;

use clap::Parser;
use verbless_doca::{DevInfo, DevInfoRep, Error, ErrorKind};

use support::Result;

/// Lists devices and representors.
#[derive(Parser)]
#[command(version)]
struct Options {
    /// The PCI address or the name of a representor to open.
    #[arg(short = 'r', long = "rep-pci-addr", value_name = "ADDRESS")]
    representor: Option<String>,
}

fn main() -> ExitCode {
    support::exit(run(&Options::parse()))
}

fn run(options: &Options) -> Result {
    let mut wanted = options.representor.as_deref();
    for info in DevInfo::list()? {
        let dev = info.open()?;
        let address = info.pci_address().map_or("no address".into(), |it| it.to_string());
        println!("{} {:?} {address} {}", info.ib_device_name(), info.function_type(), info.vuid()?);
        println!("  export to the DPU: {}", can(info.mmap_export_dpu_supported())?);
        println!("  import from the host: {}", can(info.mmap_from_export_dpu_supported())?);
        let reps = match DevInfoRep::list(&dev) {
            Ok(reps) => reps,
            Err(error) if error.kind() == ErrorKind::NotSupported => continue,
            Err(error) => return Err(error.into()),
        };
        for rep in &reps {
            let address = rep.pci_address().map_or("no address".into(), |it| it.to_string());
            let vuid = rep.vuid().unwrap_or("no VUID");
            println!("  {} {:?} {address} {vuid}", rep.interface_name(), rep.function_type());
        }
        if let Some(Ok(rep)) = wanted.map(|name| DevInfoRep::find(&dev, name)) {
            println!("  opened {:?}", rep.open()?);
            wanted = None;
        }
    }
    match wanted {
        Some(name) => Err(format!("no device has a representor {name}").into()),
        None => Ok(()),
    }
}

fn can(answer: std::result::Result<(), Error>) -> Result<&'static str> {
    match answer {
        Ok(()) => Ok("yes"),
        Err(error) if error.kind() == ErrorKind::NotSupported => Ok("no"),
        Err(error) => Err(error.into()),
    }
}
