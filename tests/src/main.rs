//! `hwtest`: runs the conformance suite on a device and says what it can do.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use verbless_conformance::{Choice, Lab, Outcome, Row, Run, Stop, cases, run_case};

/// Runs the conformance suite on an mlx5 device, or on the model where there is none.
#[derive(Parser)]
#[command(name = "cargo xtask hwtest", bin_name = "cargo xtask hwtest")]
struct Options {
    /// `auto` (the first mlx5 device, else the model), `model`, or a device's name (mlx5_0).
    #[arg(long, default_value = "auto")]
    device: String,
    /// The model's profile: connectx6dx, bluefield3, or a TOML file.
    #[arg(long, default_value = "connectx6dx")]
    profile: String,
    /// The model's port type: infiniband or ethernet; the profile's own if not given.
    #[arg(long)]
    link: Option<String>,
    /// Only cases whose name contains this.
    #[arg(long, default_value = "")]
    filter: String,
    /// List the cases and stop.
    #[arg(long)]
    list: bool,
    /// Write the results as JSON to this file (`-`: standard output).
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write the results as JUnit XML to this file (`-`: standard output).
    #[arg(long, value_name = "FILE")]
    junit: Option<PathBuf>,
    /// On hardware, also run cases that change more than objects of their own.
    #[arg(long)]
    destructive: bool,
}

fn main() -> ExitCode {
    let options = Options::parse();
    match suite(&options) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(2)
        }
    }
}

fn suite(options: &Options) -> Result<bool, Box<dyn std::error::Error>> {
    let selected: Vec<_> =
        cases().filter(|case| case.id().contains(options.filter.as_str())).collect();
    if options.list {
        selected.iter().for_each(|case| println!("{}", case.id()));
        return Ok(true);
    }
    if selected.is_empty() {
        return Err(format!("no case contains {:?}; see --list", options.filter).into());
    }
    let choice = Choice {
        device: options.device.clone(),
        profile: options.profile.clone(),
        link: options.link.clone(),
        destructive: options.destructive,
    };
    let lab = Lab::open(&choice).map_err(|stop| match stop {
        Stop::Skip(what) | Stop::Fail(what) => what,
    })?;
    let mut run =
        Run { device: lab.describe(), preconditions: lab.preconditions(), cases: Vec::new() };
    // Results on standard output are for a program: the table then goes to standard error.
    let for_program = [&options.json, &options.junit]
        .iter()
        .any(|file| file.as_ref().is_some_and(|file| file.as_os_str() == "-"));
    let say = |line: &str| if for_program { eprintln!("{line}") } else { println!("{line}") };
    say(&format!("Running on {}", run.device));
    for line in &run.preconditions {
        say(&format!("  {line}"));
    }
    for case in selected {
        let (outcome, seconds) = run_case(&lab, case);
        let row = Row { case: case.id(), outcome, seconds };
        say(&row.line());
        run.cases.push(row);
    }
    if let Some(file) = &options.json {
        write(file, &run.json()?)?;
    }
    if let Some(file) = &options.junit {
        write(file, &run.junit()?)?;
    }
    let (passed, failed, skipped) = run.counts();
    let reasons = run.cases.iter().filter(|row| matches!(row.outcome, Outcome::Failed(_)));
    for row in reasons {
        say(&row.line());
    }
    say(&format!("{passed} passed, {failed} failed, {skipped} skipped"));
    Ok(failed == 0)
}

fn write(file: &std::path::Path, text: &str) -> std::io::Result<()> {
    if file.as_os_str() == "-" {
        println!("{text}");
        return Ok(());
    }
    std::fs::write(file, text)
        .map_err(|error| std::io::Error::new(error.kind(), format!("{}: {error}", file.display())))
}
