//! `hwtest replay`: the cases of a recording on its answers.

use std::error::Error;
use std::io::{self, Write};

use verbless_conformance::recording::Replayed;
use verbless_conformance::{Run, Stop};

use crate::options::ReplayOptions;

/// Runs the cases of a recording; returns whether every one does what it did there.
pub(crate) fn run(options: &ReplayOptions) -> Result<bool, Box<dyn Error>> {
    let recording = Replayed::read(&options.recording).map_err(|Stop(why)| why)?;
    let mut out = io::stdout().lock();
    writeln!(out, "Replaying {}", options.recording.display())?;
    for line in recording.describe() {
        writeln!(out, "  {line}")?;
    }
    let mut run = Run { device: "a recording".into(), preconditions: vec![], cases: vec![] };
    let chosen = |name: &str| {
        options.filter.is_empty() || options.filter.iter().any(|part| name.contains(part.as_str()))
    };
    recording.run(chosen, options.long, |row| {
        writeln!(out, "{}", row.line())?;
        run.cases.push(row);
        Ok::<_, io::Error>(())
    })?;
    let (passed, failed, skipped) = run.counts();
    writeln!(out, "\n{passed} as recorded, {failed} differ, {skipped} skipped")?;
    Ok(failed == 0)
}
