//! `hwtest`: runs the conformance suite on a device and says what it can do.

use std::collections::BTreeSet;
use std::error::Error;
use std::fs::File;
use std::io::{self, Write};
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use clap::Parser;
use verbless_conformance::{
    Case, Choice, Lab, Outcome, Run, Stop, cases, default_jobs, groups, run_cases, unexpected_skips,
};

/// Runs the conformance suite on an mlx5 device, or on the model where there is none.
#[derive(Parser)]
#[command(name = "cargo xtask hwtest", bin_name = "cargo xtask hwtest")]
struct Options {
    /// `auto` (the first mlx5 device whose port is ACTIVE, the model where there is no device),
    /// `model`, or a device's name (mlx5_0).
    #[arg(long, default_value = "auto")]
    device: String,
    /// The device that it talks to: `auto` (the next device of the same model, where a kernel shows
    /// several; else none), `none` (the port loops back), or a device's name.
    #[arg(long, default_value = "auto")]
    peer: String,
    /// The model's profile: connectx6dx, connectx6dx-bond, connectx6dx-realtime, connectx6vf,
    /// bluefield3, bluefield3-fwctl, bluefield3-relaxed, or a TOML file.
    #[arg(long, default_value = "connectx6dx")]
    profile: String,
    /// The model's port type: infiniband or ethernet; the profile's own if not given.
    #[arg(long)]
    link: Option<String>,
    /// Owners of the model's two devices: hosts, host-and-dpu (of one card) or dpus [default:
    /// host-and-dpu if the profile has a DPU, otherwise hosts].
    #[arg(long)]
    between: Option<String>,
    /// The model's messages go in packets of the path MTU; else they are carried whole.
    #[arg(long)]
    packets: bool,
    /// Each case runs twice on the model in this process, with messages carried whole and in
    /// packets, and its queues must get the same CQEs and data.
    #[arg(long, conflicts_with_all = ["packets", "faults"])]
    both_ways: bool,
    /// Faults of the model's links: a file as described in docs/faults.md. In this process, a run
    /// of all cases fails if an effect that the file asks for happened to no frame; under
    /// `verbless-model run --faults FILE` this option only declares that links lose messages of the
    /// cases.
    #[arg(long, value_name = "FILE")]
    faults: Option<PathBuf>,
    /// Only cases whose name contains this, or one of these if it is given several times.
    #[arg(long, value_name = "PART")]
    filter: Vec<String>,
    /// Of the matrix, whose cases differ in one word each, only each Nth, and the first of each
    /// service, operation and form of data.
    #[arg(long, value_name = "N", default_value = "1")]
    matrix_step: NonZero<usize>,
    /// List the groups, their cases and what each needs, and stop.
    #[arg(long)]
    list: bool,
    /// How many cases run at once. On the model each case has a model of its own; on a device that
    /// they share, cases that run at once may disturb each other.
    #[arg(long)]
    jobs: Option<usize>,
    /// Fail if a case is skipped that is not expected to be skipped in this environment, or if an
    /// expected skip is missing: an entry of tests/suite/expected-skips.toml.
    #[arg(long, value_name = "ENVIRONMENT")]
    expect: Option<String>,
    /// Write the results as JSON to this file (`-`: standard output).
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write the results as JUnit XML to this file (`-`: standard output).
    #[arg(long, value_name = "FILE")]
    junit: Option<PathBuf>,
    /// The program for the DPA of the cases `dpa_programs`:
    /// `cargo xtask dpa build crates/flexio-dev/tests/program` makes it.
    #[arg(long, value_name = "FILE")]
    dpa_program: Option<PathBuf>,
    /// On hardware, also run cases that change more than objects of their own.
    #[arg(long)]
    destructive: bool,
}

impl Options {
    fn chooses(&self, id: &str) -> bool {
        self.filter.is_empty() || self.filter.iter().any(|part| id.contains(part.as_str()))
    }

    fn select(&self) -> Vec<&'static Case> {
        let chosen = cases().filter(|case| self.chooses(&case.id()));
        let (mut cells, mut kinds) = (0_usize, BTreeSet::new());
        let mut is_due = |id: &str| {
            cells += 1;
            kinds.insert(kind(id)) || cells.is_multiple_of(self.matrix_step.get())
        };
        chosen.filter(|case| case.group != "matrix" || is_due(&case.id())).collect()
    }
}

/// The name of a case of the matrix without its length and its way of posting.
fn kind(id: &str) -> String {
    let kind = ["_signaled_", "_in_a_batch"].iter().find_map(|end| id.split_once(end));
    kind.map_or(id, |it| it.0).replace(|c: char| c.is_ascii_digit(), "")
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
    let selected = options.select();
    if selected.is_empty() {
        return Err(format!("no case contains {}; see --list", options.filter.join(" or ")).into());
    }
    if options.list {
        list(&selected, &mut io::stdout().lock())?;
        return Ok(true);
    }
    if let Some(file) = &options.dpa_program {
        verbless_conformance::set_dpa_program(file.clone());
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
        between: options.between.clone(),
        packets: options.packets,
        both_ways: options.both_ways,
        faults: options.faults.clone(),
        destructive: options.destructive,
    };
    let lab = Lab::open(&choice).map_err(|Stop(what)| what)?;
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
    let unexpected = match &options.expect {
        Some(environment) => {
            let needs = selected.iter().map(|case| (case.id(), &case.needs[..]));
            unexpected_skips(&lab, environment, needs).map_err(|Stop(what)| what)?
        }
        None => Vec::new(),
    };
    let jobs = options.jobs.unwrap_or_else(|| default_jobs(&lab));
    let begun = Instant::now();
    run_cases(&lab, &selected, jobs, |row| {
        let written = writeln!(table, "{}", row.line());
        run.cases.push(row);
        written
    })?;
    let seconds = begun.elapsed().as_secs_f64();
    if let Some(report) = json {
        report.write(&run.json()?)?;
    }
    #[cfg(feature = "junit")]
    if let Some(report) = junit {
        report.write(&run.junit()?)?;
    }
    let (passed, failed, skipped) = run.counts();
    let rate = (passed + failed) as f64 / seconds;
    if failed > 0 {
        writeln!(table, "\nWhat failed:")?;
        for row in run.cases.iter().filter(|row| matches!(row.outcome, Outcome::Failed(_))) {
            writeln!(table, "{}", row.line())?;
        }
    }
    for line in &unexpected {
        writeln!(table, "\nUnexpected: {line}")?;
    }
    // A few cases may well be over before anything happens by chance.
    let all = options.filter.is_empty();
    let mut idle = 0;
    if let Some((happened, never)) = lab.faults() {
        writeln!(table, "\n{happened}")?;
        for line in &never {
            writeln!(table, "{}: {line}", if all { "FAIL" } else { "note" })?;
        }
        idle = if all { never.len() } else { 0 };
    }
    // An unexpected skip counts among the failures, as does a fault that never happened: who reads
    // only the last line sees it too.
    let failed = failed + unexpected.len() + idle;
    writeln!(
        table,
        "{passed} passed, {failed} failed, {skipped} skipped in {seconds:.1} s ({rate:.0} cases/s)"
    )?;
    Ok(failed == 0)
}

/// The groups with what they hold, and below each its cases with what they need.
fn list(selected: &[&Case], out: &mut impl Write) -> io::Result<()> {
    for group in groups() {
        let cases: Vec<_> = selected.iter().filter(|case| case.group == group.name).collect();
        if cases.is_empty() {
            continue;
        }
        writeln!(out, "{}: {}", group.name, group.holds)?;
        for case in cases {
            let needs: Vec<_> = case.needs.iter().map(ToString::to_string).collect();
            match needs.is_empty() {
                true => writeln!(out, "  {}", case.id())?,
                false => writeln!(out, "  {}  (needs {})", case.id(), needs.join(", "))?,
            }
        }
    }
    Ok(())
}

/// The destination of the machine-readable results.
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

/// The error with the file's name in its text.
fn named(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_service_operation_and_form_of_the_matrix_is_left_whatever_the_step() {
        let kinds = |options: &Options| {
            let cells = options.select().into_iter().filter(|case| case.group == "matrix");
            cells.map(|case| kind(&case.id())).collect::<Vec<_>>()
        };
        let all = kinds(&Options::parse_from(["hwtest"]));
        let distinct: BTreeSet<_> = all.iter().collect();
        assert!(distinct.len() > 40 && all.len() > 10 * distinct.len(), "{distinct:?}");
        for step in 2..12 {
            let left = kinds(&Options::parse_from(["hwtest", "--matrix-step", &step.to_string()]));
            assert_eq!(left.iter().collect::<BTreeSet<_>>(), distinct, "{step}");
            assert!(left.len() < all.len() / step + distinct.len() + 1, "{step}: {}", left.len());
        }
    }
}
