//! `hwtest`: runs the conformance suite on a device and says what it can do.

use std::error::Error;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser;
use verbless_conformance::{Choice, Lab, Outcome, Row, Run, Stop, cases, run_case};

/// Runs the conformance suite on an mlx5 device, or on the model where there is none.
#[derive(Parser)]
#[command(name = "cargo xtask hwtest", bin_name = "cargo xtask hwtest")]
struct Options {
    /// `auto` (the first mlx5 device whose port is ACTIVE, the model where there is no device), `model`, or a device's name
    /// (mlx5_0).
    #[arg(long, default_value = "auto")]
    device: String,
    /// The device that it talks to: `auto` (the next device of the same model, where a kernel shows several; else none),
    /// `none` (the port loops back), or a device's name.
    #[arg(long, default_value = "auto")]
    peer: String,
    /// The model's profile: connectx6dx, connectx6dx-bond, connectx6dx-realtime, connectx6vf, bluefield3,
    /// or a TOML file.
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
        // Whoever read the table has seen enough.
        Err(error) if is_broken_pipe(&*error) => ExitCode::from(2),
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(2)
        }
    }
}

fn is_broken_pipe(error: &(dyn Error + 'static)) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

/// Runs what the options select; the result says whether no case failed.
fn suite(options: &Options) -> Result<bool, Box<dyn Error>> {
    let selected: Vec<_> =
        cases().filter(|case| case.id().contains(options.filter.as_str())).collect();
    if selected.is_empty() {
        return Err(format!("no case contains {:?}; see --list", options.filter).into());
    }
    if options.list {
        let mut out = io::stdout().lock();
        selected.iter().try_for_each(|case| writeln!(out, "{}", case.id()))?;
        return Ok(true);
    }
    // Made before anything runs, so that no results are lost to a mistyped name.
    let json = options.json.as_deref().map(Report::create).transpose()?;
    if options.junit.is_some() && !cfg!(feature = "junit") {
        return Err("this program was built without --junit; `cargo xtask hwtest --junit FILE` \
                    builds it with the feature `junit`"
            .into());
    }
    let junit = options.junit.as_deref().map(Report::create).transpose()?;
    let choice = Choice {
        device: options.device.clone(),
        peer: options.peer.clone(),
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
    let for_program = [&json, &junit].iter().any(|report| matches!(report, Some(Report::Stdout)));
    let mut table: Box<dyn Write> =
        if for_program { Box::new(io::stderr()) } else { Box::new(io::stdout()) };
    writeln!(table, "Running on {}", run.device)?;
    for line in &run.preconditions {
        writeln!(table, "  {line}")?;
    }
    for case in selected {
        let (outcome, seconds) = run_case(&lab, case);
        let row = Row { case: case.id(), outcome, seconds };
        writeln!(table, "{}", row.line())?;
        run.cases.push(row);
    }
    if let Some(report) = json {
        report.write(&run.json()?)?;
    }
    #[cfg(feature = "junit")]
    if let Some(report) = junit {
        report.write(&run.junit()?)?;
    }
    let (passed, failed, skipped) = run.counts();
    if failed > 0 {
        writeln!(table, "\nWhat failed:")?;
        for row in run.cases.iter().filter(|row| matches!(row.outcome, Outcome::Failed(_))) {
            writeln!(table, "{}", row.line())?;
        }
    }
    writeln!(table, "{passed} passed, {failed} failed, {skipped} skipped")?;
    Ok(failed == 0)
}

/// Where results for a program go.
enum Report {
    Stdout,
    File(PathBuf, File),
}

impl Report {
    fn create(path: &Path) -> io::Result<Self> {
        if path.as_os_str() == "-" {
            return Ok(Self::Stdout);
        }
        match File::create(path) {
            Ok(file) => Ok(Self::File(path.into(), file)),
            Err(error) => Err(named(path, &error)),
        }
    }

    fn write(self, text: &str) -> io::Result<()> {
        match self {
            Self::Stdout => writeln!(io::stdout(), "{text}"),
            Self::File(path, mut file) => {
                writeln!(file, "{text}").map_err(|error| named(&path, &error))
            }
        }
    }
}

/// The same error with the file in its text.
fn named(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}
