//! `hwtest report`, `hwtest diff` and `hwtest profile`: what is made of a report.

use std::error::Error;
use std::io::{self, Write};

use verbless_conformance::Stop;
use verbless_conformance::report::{self, Report};

use crate::options::{DiffOptions, ReportOptions};
use crate::sink::Sink;

/// Writes the report as an HTML page.
pub(crate) fn page(options: &ReportOptions) -> Result<bool, Box<dyn Error>> {
    let page = Report::read(&options.report)?.html();
    Sink::create(&options.output)?.write(&page)?;
    Ok(true)
}

/// Compares two reports or profiles; returns whether they are equal.
pub(crate) fn diff(options: &DiffOptions) -> Result<bool, Box<dyn Error>> {
    let diff = report::diff(&options.one, &options.other).map_err(|Stop(why)| why)?;
    write!(io::stdout(), "{diff}")?;
    Ok(diff.is_empty())
}

/// Writes a profile of the model.
pub(crate) fn profile(options: &ReportOptions) -> Result<bool, Box<dyn Error>> {
    let profile = Report::read(&options.report)?.profile().map_err(|Stop(why)| why)?;
    Sink::create(&options.output)?.write(profile.trim_end())?;
    Ok(true)
}
