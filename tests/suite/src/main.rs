//! `hwtest`: runs the conformance suite on a device and says what it can do.

use std::collections::BTreeSet;
use std::error::Error;
use std::fs::File;
use std::io::{self, Write};
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::str::FromStr;
use std::time::Instant;

use clap::Parser;
use verbless_conformance::{
    Case, Choice, Lab, Outcome, Run, Stop, cases, default_jobs, groups, run_cases,
    unexpected_skips, variants,
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
    /// The model sends messages in packets of the path MTU; by default it carries them whole.
    #[arg(long)]
    packets: bool,
    /// Each case runs twice on the model in this process, with messages carried whole and in
    /// packets, and its queues must get the same CQEs and data.
    #[arg(long, conflicts_with_all = ["packets", "faults"])]
    both_ways: bool,
    /// Faults of the model's links: a file as described in docs/faults.md. In this process, a run
    /// of all cases fails if an effect of the file happened to no frame; under `verbless-model run
    /// --faults FILE` this option only declares that links lose messages of the cases.
    #[arg(long, value_name = "FILE")]
    faults: Option<PathBuf>,
    /// Only cases whose name contains this, or one of these if it is given several times.
    #[arg(long, value_name = "PART")]
    filter: Vec<String>,
    /// Run only every Nth case of the matrix, whose cases differ in one word each, and the first of
    /// each service, operation and form of data.
    #[arg(long, value_name = "N", default_value = "1")]
    matrix_step: NonZero<usize>,
    /// List the groups, their cases and what each needs, and stop.
    #[arg(long)]
    list: bool,
    /// How many cases run at once. On the model each case has a model of its own; on a shared
    /// device, concurrent cases may disturb each other.
    #[arg(long)]
    jobs: Option<usize>,
    /// Fail if a case is skipped unexpectedly in this environment, or if an expected skip is
    /// missing: an entry of tests/suite/expected-skips.toml.
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
    /// Runs the cases once for each capability of the model's profile, with that capability lowered
    /// or removed: a case may be skipped there, but not fail. The number is the part that runs, as
    /// in `1/4`, which is every fourth of them from the first.
    #[arg(long, value_name = "PART", num_args = 0..=1, default_missing_value = "1/1")]
    #[arg(conflicts_with_all = ["json", "junit", "expect", "faults", "device"])]
    sweep: Option<Part>,
    /// Cases that repeat something do so as many times as FlexIO's documents suggest: a million
    /// events, 10,000 frames, 16 threads of 1,000 messages. It takes minutes on the model.
    #[arg(long)]
    long: bool,
    /// On hardware, also run cases that change more than objects of their own.
    #[arg(long)]
    destructive: bool,
}

/// One of `of` equal parts of a list: every `of`th entry from the `first`.
#[derive(Debug, Clone, Copy)]
struct Part {
    /// From 0.
    first: usize,
    of: usize,
}

impl FromStr for Part {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parsed = text.split_once('/').and_then(|(part, of)| {
            let (part, of): (usize, usize) = (part.parse().ok()?, of.parse().ok()?);
            (1..=of).contains(&part).then(|| Self { first: part - 1, of })
        });
        parsed.ok_or_else(|| format!("{text}: a part is written as 1/4 to 4/4"))
    }
}

impl Options {
    fn choice(&self) -> Choice {
        Choice {
            device: self.device.clone(),
            peer: self.peer.clone(),
            profile: self.profile.clone(),
            link: self.link.clone(),
            between: self.between.clone(),
            packets: self.packets,
            both_ways: self.both_ways,
            faults: self.faults.clone(),
            destructive: self.destructive,
            long: self.long,
        }
    }

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
        // The reader closed the pipe.
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

/// Runs the selected cases; returns whether no case failed.
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
    if let Some(part) = options.sweep {
        return sweep(options, part, &selected);
    }
    // Created before any case runs, so that a mistyped name loses no results.
    let json = options.json.as_deref().map(Report::create).transpose()?;
    if options.junit.is_some() && !cfg!(feature = "junit") {
        return Err("this program was built without --junit; `cargo xtask hwtest --junit FILE` \
                    builds it with the feature `junit`"
            .into());
    }
    let junit = options.junit.as_deref().map(Report::create).transpose()?;
    let lab = Lab::open(&options.choice()).map_err(|Stop(what)| what)?;
    let mut run =
        Run { device: lab.describe(), preconditions: lab.preconditions(), cases: Vec::new() };
    // Results on standard output are for a program: the table goes to standard error.
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
    if let Err(Stop(why)) = lab.check() {
        let left = selected.len();
        writeln!(table, "FAIL  no case can run: {why}\n0 passed, 1 failed, {left} skipped")?;
        return Ok(false);
    }
    let jobs = options.jobs.unwrap_or_else(|| default_jobs(&lab));
    let port_is_down = lab.inactive_port().is_some();
    let begun = Instant::now();
    let ran = run_cases(&lab, &selected, jobs, |row| {
        writeln!(table, "{}", row.line()).map_err(Ended::Io)?;
        run.cases.push(row);
        let sole = match port_is_down {
            true => run.counts().1 >= SOLE_CAUSE,
            false => run.sole_cause(SOLE_CAUSE).is_some(),
        };
        if sole { Err(Ended::SoleCause) } else { Ok(()) }
    });
    let not_run = match ran {
        Ok(()) => 0,
        Err(Ended::SoleCause) => selected.len() - run.cases.len(),
        Err(Ended::Io(error)) => return Err(error.into()),
    };
    let seconds = begun.elapsed().as_secs_f64();
    if let Some(report) = json {
        report.write(&run.json()?)?;
    }
    #[cfg(feature = "junit")]
    if let Some(report) = junit {
        report.write(&run.junit()?)?;
    }
    let (passed, failed, skipped) = run.counts();
    let skipped = skipped + not_run;
    let rate = (passed + failed) as f64 / seconds;
    if failed > 0 {
        writeln!(table, "\nWhat failed:")?;
        for (reason, cases) in run.causes() {
            match cases[..] {
                [case] => writeln!(table, "FAIL  {case}\n      {reason}")?,
                [first, ..] => {
                    writeln!(table, "FAIL  {first} and {} more\n      {reason}", cases.len() - 1)?;
                }
                [] => {}
            }
        }
    }
    if not_run > 0 {
        writeln!(
            table,
            "\nStopped after {SOLE_CAUSE} failures for one cause; {not_run} cases were not run"
        )?;
    }
    for line in &unexpected {
        writeln!(table, "\nUnexpected: {line}")?;
    }
    // A few cases may end before a fault happens by chance.
    let all = options.filter.is_empty();
    let mut idle = 0;
    if let Some((happened, never)) = lab.faults() {
        writeln!(table, "\n{happened}")?;
        for line in &never {
            writeln!(table, "{}: {line}", if all { "FAIL" } else { "note" })?;
        }
        idle = if all { never.len() } else { 0 };
    }
    // An unexpected skip and a fault that never happened count as failures: the last line shows
    // them too.
    let failed = failed + unexpected.len() + idle;
    writeln!(
        table,
        "{passed} passed, {failed} failed, {skipped} skipped in {seconds:.1} s ({rate:.0} cases/s)"
    )?;
    Ok(failed == 0)
}

/// After this many failures for one cause the run stops, if no case has passed or if a port is not
/// ACTIVE.
const SOLE_CAUSE: usize = 20;

/// Why a run ended early.
enum Ended {
    SoleCause,
    Io(io::Error),
}

/// Runs the cases on each variant of the profile; returns whether no case failed.
fn sweep(
    options: &Options,
    part: Part,
    selected: &[&'static Case],
) -> Result<bool, Box<dyn Error>> {
    let all = variants(&options.profile).map_err(|Stop(what)| what)?;
    let folder = std::env::temp_dir().join(format!("verbless-sweep-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let (mut passed, mut failed, mut skipped) = (0, 0, 0);
    for (number, variant) in all.iter().enumerate().skip(part.first).step_by(part.of) {
        let file = variant.write(&folder).map_err(|Stop(what)| what)?;
        let choice = Choice {
            device: "model".into(),
            profile: file.display().to_string(),
            ..options.choice()
        };
        print!("{}/{}  {}: ", number + 1, all.len(), variant.name);
        let lab = match Lab::open(&choice).and_then(|lab| lab.check().map(|()| lab)) {
            Ok(lab) => lab,
            // The driver cannot work without this capability.
            Err(Stop(why)) => {
                println!("no device: {why}");
                skipped += 1;
                continue;
            }
        };
        let mut run = Run { device: variant.name.clone(), preconditions: vec![], cases: vec![] };
        let jobs = options.jobs.unwrap_or_else(|| default_jobs(&lab));
        run_cases(&lab, selected, jobs, |row| {
            run.cases.push(row);
            Ok::<_, io::Error>(())
        })?;
        let (good, bad, without) = run.counts();
        println!("{good} passed, {bad} failed, {without} skipped");
        for row in run.cases.iter().filter(|row| matches!(row.outcome, Outcome::Failed(_))) {
            println!("{}", row.line());
        }
        if bad == 0 { passed += 1 } else { failed += 1 }
    }
    std::fs::remove_dir_all(&folder)?;
    println!("{passed} passed, {failed} failed, {skipped} skipped");
    Ok(failed == 0)
}

/// Lists the groups with their claims, and below each its cases with their needs.
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

/// Adds the file's name to the error's text.
fn named(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matrix_step_keeps_every_kind_of_case() {
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
