//! `hwtest doctor`: says whether the device can run the suite, and what is missing.

use std::error::Error;

use verbless_conformance::{Lab, Stop};

use crate::options::DoctorOptions;

/// Checks the device; returns whether nothing failed.
pub(crate) fn run(options: &DoctorOptions) -> Result<bool, Box<dyn Error>> {
    let lab = Lab::open(&options.choice()).map_err(|Stop(what)| what)?;
    println!("Checking {}", lab.describe());
    for line in lab.preconditions() {
        println!("  {line}");
    }
    if let Err(Stop(why)) = lab.check() {
        println!("FAIL  {why}");
        return Ok(false);
    }
    Ok(true)
}
