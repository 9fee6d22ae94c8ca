//! `hwtest doctor`: the chain of checks, as a table or as JSON.

use std::error::Error;
use std::io::{self, Write};

use verbless_conformance::{Host, Stop, examine};

use crate::options::DoctorOptions;

/// Checks the chain; returns whether every link holds.
pub(crate) fn run(options: &DoctorOptions) -> Result<bool, Box<dyn Error>> {
    let examined = examine(&options.choice(), &Host::new()).map_err(|Stop(what)| what)?;
    let chain = examined.chain;
    let mut out = io::stdout().lock();
    match options.json {
        true => writeln!(out, "{}", chain.json()?)?,
        false => write!(out, "{}\n{}\n", chain.table(), chain.verdict())?,
    }
    Ok(chain.failure().is_none())
}
