//! The results of a run: its table, its closing lines, its report and its JUnit file.

use std::error::Error;
use std::io::{self, Write};

use verbless_conformance::Run;
use verbless_conformance::report::{DeviceFacts, Machine, Report};

use crate::options::SuiteOptions;
use crate::sink::Sink;
use crate::{summary, versions};

/// Where the results of a run go.
pub(crate) struct Results<'a> {
    options: &'a SuiteOptions,
    json: Option<Sink>,
    junit: Option<Sink>,
    /// The table for people.
    pub(crate) table: Box<dyn Write>,
}

/// What a run closes with beside the results of its cases.
#[derive(Default)]
pub(crate) struct Closing {
    /// What its devices say about themselves.
    pub(crate) devices: Vec<DeviceFacts>,
    /// The machine of the second device, if it is another one.
    pub(crate) peer: Option<Machine>,
    /// Wall-clock seconds of all cases.
    pub(crate) seconds: f64,
    /// Cases that were left out after failures for one cause.
    pub(crate) not_run: usize,
    /// Skips that this environment does not expect.
    pub(crate) unexpected: Vec<String>,
    /// What faults of the model's links did, and those that did nothing.
    pub(crate) faults: Option<(String, Vec<String>)>,
    /// What the doctor says, where a link that failed blocked cases.
    pub(crate) verdict: String,
    /// What the recording of the run holds.
    pub(crate) recorded: Option<String>,
    /// The questions that only a card answers, if they were asked.
    pub(crate) unknowns: Option<String>,
}

impl<'a> Results<'a> {
    /// Creates the files before any case runs, so that a mistyped name loses no results.
    pub(crate) fn create(options: &'a SuiteOptions) -> io::Result<Self> {
        let json = options.json.as_deref().map(Sink::create).transpose()?;
        let junit = options.junit.as_deref().map(Sink::create).transpose()?;
        // Results on standard output are for a program: the table goes to standard error.
        let for_program = [&json, &junit].iter().any(|sink| matches!(sink, Some(Sink::Stdout)));
        let table: Box<dyn Write> =
            if for_program { Box::new(io::stderr()) } else { Box::new(io::stdout()) };
        Ok(Self { options, json, junit, table })
    }

    /// Whether the results name devices.
    pub(crate) fn wants_facts(&self) -> bool {
        self.json.is_some() || self.junit.is_some()
    }

    /// Writes the first lines: the device and the preconditions.
    pub(crate) fn open(&mut self, run: &Run) -> io::Result<()> {
        writeln!(self.table, "Running on {}", run.device)?;
        run.preconditions.iter().try_for_each(|line| writeln!(self.table, "  {line}"))
    }

    /// Writes the report and the JUnit file, where they are wanted.
    pub(crate) fn write(
        &mut self,
        run: &Run,
        devices: Vec<DeviceFacts>,
        peer: Option<Machine>,
    ) -> Result<(), Box<dyn Error>> {
        let identify = self.options.identify;
        if let Some(sink) = self.junit.take() {
            let xml = match identify {
                true => run.junit()?,
                false => run.clone().without_identity(&devices).junit()?,
            };
            sink.write(&xml)?;
        }
        if let Some(sink) = self.json.take() {
            let report = Report { peer, ..Report::of(versions::program(), devices, run) };
            let report = if identify { report } else { report.without_identity() };
            sink.write(&report.json()?)?;
        }
        Ok(())
    }

    /// Writes the results and the closing lines; returns whether no case failed.
    pub(crate) fn close(mut self, run: &Run, closing: Closing) -> Result<bool, Box<dyn Error>> {
        let Closing {
            devices,
            peer,
            seconds,
            not_run,
            unexpected,
            faults,
            verdict,
            recorded,
            unknowns,
        } = closing;
        self.write(run, devices, peer)?;
        let Self { options, mut table, .. } = self;
        let (passed, failed, skipped) = run.counts();
        let blocked = run.blocked();
        let skipped = skipped + not_run;
        let rate = (passed + failed) as f64 / seconds;
        summary::write(&mut table, run, options)?;
        if let Some(unknowns) = unknowns {
            write!(table, "{unknowns}")?;
        }
        if let Some(recorded) = recorded {
            writeln!(table, "\n{recorded}")?;
        }
        if not_run > 0 {
            writeln!(
                table,
                "\nStopped after {failed} failures for one cause; {not_run} cases were not run"
            )?;
        }
        for line in &unexpected {
            writeln!(table, "\nUnexpected: {line}")?;
        }
        // A few cases may end before a fault happens by chance.
        let all = options.filter.is_empty();
        let mut idle = 0;
        if let Some((happened, never)) = faults {
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
            writeln!(table, "\n{verdict}")?;
            counts += &format!(", {blocked} blocked");
        }
        writeln!(table, "\n{counts} in {seconds:.1} s ({rate:.0} cases/s)")?;
        Ok(failed == 0)
    }
}
