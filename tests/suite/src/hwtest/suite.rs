//! Runs the cases, shows them as a table and writes their results.

use std::error::Error;
use std::io::{self, Write};
use std::time::Instant;

use verbless_conformance::report::Report;
use verbless_conformance::{
    Case, Lab, Run, Stop, default_jobs, groups, run_cases, unexpected_skips,
};

use crate::options::SuiteOptions;
use crate::sink::Sink;
use crate::versions;

/// Runs the selected cases; returns whether no case failed.
pub(crate) fn run(options: &SuiteOptions) -> Result<bool, Box<dyn Error>> {
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
        return crate::sweep::run(options, part, &selected);
    }
    // Created before any case runs, so that a mistyped name loses no results.
    let json = options.json.as_deref().map(Sink::create).transpose()?;
    let junit = options.junit.as_deref().map(Sink::create).transpose()?;
    let lab = Lab::open(&options.choice()).map_err(|Stop(what)| what)?;
    let mut run =
        Run { device: lab.describe(), preconditions: lab.preconditions(), cases: Vec::new() };
    // Results on standard output are for a program: the table goes to standard error.
    let for_program = [&json, &junit].iter().any(|sink| matches!(sink, Some(Sink::Stdout)));
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
    if let Some(sink) = json {
        let report = Report::of(versions::program(), &lab, &run, options.identify);
        sink.write(&report.json()?)?;
    }
    if let Some(sink) = junit {
        sink.write(&run.junit()?)?;
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
