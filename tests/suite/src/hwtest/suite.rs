//! Runs the cases, shows them as a table and writes their results.

use std::error::Error;
use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use verbless_conformance::recording::{RecordLimits, Recording};
use verbless_conformance::report::{DeviceFacts, Report, facts};
use verbless_conformance::{
    Case, Examination, Host, Lab, Link, Outcome, Row, Run, Stop, default_jobs, examine, groups,
    run_cases, unexpected_skips,
};

use crate::options::SuiteOptions;
use crate::sink::Sink;
use crate::{summary, versions};

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
    let recording = options.record.as_deref().map(|file| record(file, options)).transpose()?;
    let Examination { chain, lab } =
        examine(&options.choice(), &Host::new()).map_err(|Stop(what)| what)?;
    let described = lab.as_ref().map_or_else(|| "no device".into(), Lab::describe);
    let preconditions = lab.as_ref().map_or_else(Vec::new, Lab::preconditions);
    let mut run = Run { device: described, preconditions, cases: Vec::new() };
    run.preconditions.extend(chain.brief().lines().map(|line| line.trim().to_string()));
    // Results on standard output are for a program: the table goes to standard error.
    let for_program = [&json, &junit].iter().any(|sink| matches!(sink, Some(Sink::Stdout)));
    let mut table: Box<dyn Write> =
        if for_program { Box::new(io::stderr()) } else { Box::new(io::stdout()) };
    writeln!(table, "Running on {}", run.device)?;
    for line in &run.preconditions {
        writeln!(table, "  {line}")?;
    }
    if options.verbose {
        write!(table, "{}", chain.table())?;
    }
    let failed_link = chain.failure().map(|(link, _)| link);
    let lab = match (lab, failed_link) {
        (Some(lab), Some(link)) => Some(lab.blocked_by(link)),
        (lab, _) => lab,
    };
    // Before the cases: one of them may break the device. JUnit needs them to leave them out.
    let devices =
        lab.as_ref().filter(|_| json.is_some() || junit.is_some()).map(facts).unwrap_or_default();
    // A link that blocks every case leaves no device to ask.
    let lab = lab.filter(|_| failed_link.is_none_or(|link| !link.blocks_all()));
    let unexpected = match (&options.expect, &lab) {
        (Some(environment), Some(lab)) => {
            let needs = selected.iter().map(|case| (case.id(), &case.needs[..]));
            unexpected_skips(lab, environment, needs).map_err(|Stop(what)| what)?
        }
        _ => Vec::new(),
    };
    let lab = match (lab, &recording) {
        (Some(lab), Some(recording)) => {
            recording.describe(&lab, versions::line(), &run.device);
            Some(lab.recorded_in(recording.clone()))
        }
        (lab, _) => lab,
    };
    let begun = Instant::now();
    let not_run = match (&lab, failed_link) {
        (Some(lab), _) => {
            if failed_link.is_none()
                && let Err(Stop(why)) = lab.check()
            {
                let left = selected.len();
                writeln!(
                    table,
                    "FAIL  no case can run: {why}\n0 passed, 1 failed, {left} skipped"
                )?;
                run.preconditions.push(format!("no case can run: {why}"));
                write_results((json, junit), devices, &run, options)?;
                return Ok(false);
            }
            cases(lab, &selected, options, &mut run, &mut table)?
        }
        (None, link) => {
            let reason = link.map_or_else(String::new, Link::blocked);
            run.cases.extend(selected.iter().map(|case| Row {
                case: case.id(),
                outcome: Outcome::Blocked(reason.clone()),
                seconds: 0.0,
                failed_commands: Vec::new(),
                kernel_log: Vec::new(),
            }));
            0
        }
    };
    let seconds = begun.elapsed().as_secs_f64();
    write_results((json, junit), devices, &run, options)?;
    let (passed, failed, skipped) = run.counts();
    let blocked = run.blocked();
    let skipped = skipped + not_run;
    let rate = (passed + failed) as f64 / seconds;
    summary::write(&mut table, &run, options)?;
    if let Some(recording) = &recording {
        writeln!(table, "\n{}", recording.finish())?;
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
    if let Some((happened, never)) = lab.as_ref().and_then(Lab::faults) {
        writeln!(table, "\n{happened}")?;
        for line in &never {
            writeln!(table, "{}: {line}", if all { "FAIL" } else { "note" })?;
        }
        idle = if all { never.len() } else { 0 };
    }
    // An unexpected skip, a fault that never happened and a link that blocked cases count as
    // failures: the last line shows them too.
    let failed = failed + unexpected.len() + idle + usize::from(blocked > 0);
    let mut counts = format!("{passed} passed, {failed} failed, {skipped} skipped");
    if blocked > 0 {
        writeln!(table, "\n{}", chain.verdict())?;
        counts += &format!(", {blocked} blocked");
    }
    writeln!(table, "\n{counts} in {seconds:.1} s ({rate:.0} cases/s)")?;
    Ok(failed == 0)
}

/// Creates the recording of a run.
fn record(file: &Path, options: &SuiteOptions) -> io::Result<Arc<Recording>> {
    let limits =
        RecordLimits { bytes: u64::from(options.record_limit) << 20, identity: options.identify };
    Recording::create(file, limits)
}

/// Writes the report and the JUnit file of a run, where they are wanted.
fn write_results(
    (json, junit): (Option<Sink>, Option<Sink>),
    devices: Vec<DeviceFacts>,
    run: &Run,
    options: &SuiteOptions,
) -> Result<(), Box<dyn Error>> {
    if let Some(sink) = junit {
        let xml = match options.identify {
            true => run.junit()?,
            false => run.clone().without_identity(&devices).junit()?,
        };
        sink.write(&xml)?;
    }
    if let Some(sink) = json {
        let report = Report::of(versions::program(), devices, run);
        let report = if options.identify { report } else { report.without_identity() };
        sink.write(&report.json()?)?;
    }
    Ok(())
}

/// Runs the cases on a lab and shows each; returns how many were left out after failures for one
/// cause.
fn cases(
    lab: &Lab,
    selected: &[&'static Case],
    options: &SuiteOptions,
    run: &mut Run,
    table: &mut dyn Write,
) -> io::Result<usize> {
    let one = options.record.is_some().then_some(1);
    let jobs = one.or(options.jobs).unwrap_or_else(|| default_jobs(lab));
    let ran = run_cases(lab, selected, jobs, |row| {
        writeln!(table, "{}", row.line()).map_err(Ended::Io)?;
        run.cases.push(row);
        if run.sole_cause(SOLE_CAUSE).is_some() { Err(Ended::SoleCause) } else { Ok(()) }
    });
    match ran {
        Ok(()) => Ok(0),
        Err(Ended::SoleCause) => Ok(selected.len() - run.cases.len()),
        Err(Ended::Io(error)) => Err(error),
    }
}

/// After this many failures for one cause the run stops, if no case has passed.
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
