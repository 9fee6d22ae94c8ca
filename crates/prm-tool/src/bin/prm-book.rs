//! `cargo xtask prm book`: renders `prm/` as a static site.

use std::process::ExitCode;

use clap::Parser;
use verbless_prm_tool::site::{self, Options};

fn main() -> ExitCode {
    match site::run(&Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
