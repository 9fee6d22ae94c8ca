//! Runs the cases, shows them as a table and writes their results.

use std::error::Error;
use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use verbless_conformance::recording::{RecordLimits, Recording};
use verbless_conformance::report::facts;
use verbless_conformance::{
    Case, Examination, Host, Lab, Link, Outcome, Row, Run, Stop, default_jobs, examine, groups,
    run_cases, unexpected_skips,
};

use crate::options::SuiteOptions;
use crate::results::{Closing, Results};
use crate::{unknowns, versions};

/// Runs the selected cases; returns whether no case failed.
pub(crate) fn run(options: &SuiteOptions) -> Result<bool, Box<dyn Error>> {
    let unknowns = if options.unknowns { unknowns::asked()? } else { Vec::new() };
    let mut selected = options.select();
    if options.unknowns {
        selected.retain(|case| unknowns.iter().any(|unknown| unknown.case == case.id()));
    }
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
    let mut results = Results::create(options)?;
    let recording = options.record.as_deref().map(|file| record(file, options)).transpose()?;
    let Examination { chain, lab } =
        examine(&options.choice(), &Host::new()).map_err(|Stop(what)| what)?;
    let described = lab.as_ref().map_or_else(|| "no device".into(), Lab::describe);
    let preconditions = lab.as_ref().map_or_else(Vec::new, Lab::preconditions);
    let mut run = Run { device: described, preconditions, cases: Vec::new() };
    run.preconditions.extend(chain.brief().lines().map(|line| line.trim().to_string()));
    results.open(&run)?;
    if options.verbose {
        write!(results.table, "{}", chain.table())?;
    }
    let failed_link = chain.failure().map(|(link, _)| link);
    let lab = match (lab, failed_link) {
        (Some(lab), Some(link)) => Some(lab.blocked_by(link)),
        (lab, _) => lab,
    };
    // Before the cases: one of them may break the device. JUnit needs them to leave them out.
    let devices = lab.as_ref().filter(|_| results.wants_facts()).map(facts).unwrap_or_default();
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
    let device = lab.as_ref().and_then(|lab| lab.device().ok());
    let is_model = device.is_some_and(|device| device.adapter().is_model());
    let begun = Instant::now();
    let not_run = match (&lab, failed_link) {
        (Some(lab), _) => {
            if failed_link.is_none()
                && let Err(Stop(why)) = lab.check()
            {
                let left = selected.len();
                writeln!(
                    results.table,
                    "FAIL  no case can run: {why}\n0 passed, 1 failed, {left} skipped"
                )?;
                run.preconditions.push(format!("no case can run: {why}"));
                results.write(&run, devices, None)?;
                return Ok(false);
            }
            cases(lab, &selected, options, &mut run, &mut results.table)?
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
    let closing = Closing {
        devices,
        peer: None,
        seconds: begun.elapsed().as_secs_f64(),
        not_run,
        unexpected,
        faults: lab.as_ref().and_then(Lab::faults),
        verdict: chain.verdict(),
        recorded: recording.as_ref().map(|recording| recording.finish()),
        unknowns: options.unknowns.then(|| unknowns::report(&unknowns, &run, is_model)),
    };
    results.close(&run, closing)
}

/// Creates the recording of a run.
fn record(file: &Path, options: &SuiteOptions) -> io::Result<Arc<Recording>> {
    let limits = RecordLimits {
        bytes: u64::from(options.record_limit) << 20,
        identity: options.identify,
        payload: options.record_payload,
    };
    Recording::create(file, limits)
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
