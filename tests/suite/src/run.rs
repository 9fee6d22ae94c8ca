//! Runs one case: in a thread of its own, with a time limit, and with a check of the objects left
//! behind.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use verbless_model::Arrivals;

use crate::doctor::KernelLog;
use crate::failed_commands::FailedCommand;
use crate::recording::writer::Section;
use crate::{Case, Lab, Outcome, Row, Stop, ways};

/// Seconds after which a case counts as hung, in a usual run and in a long one. Its thread is
/// abandoned.
const CASE_TIMEOUT_SECONDS: [u64; 2] = [60, 3600];

/// Runs `case`; its row says how it ended and how many seconds it took. On the model, a case that
/// leaves objects behind fails.
pub fn run_case(lab: &Lab, case: &'static Case) -> Row {
    let start = Instant::now();
    let mut failed_commands = Vec::new();
    // A model in this process has no part of the kernel's log.
    let log = if lab.is_private() { None } else { KernelLog::end() };
    let blocked = lab.blockage().and_then(|blockage| blockage.before(case));
    let missing = match blocked {
        Some(_) => Ok(Vec::new()),
        None => lab.missing(&case.needs),
    };
    let outcome = match missing {
        _ if blocked.is_some() => Outcome::Blocked(blocked.unwrap_or_default()),
        Ok(missing) if !missing.is_empty() => {
            let missing: Vec<_> = missing.iter().map(ToString::to_string).collect();
            Outcome::Skipped(format!("it needs {}", missing.join(", ")))
        }
        found => {
            let section = lab.recording().map(|recording| recording.case(&case.id()));
            let ended = found.and_then(|_| run(lab, case, section.as_ref(), &mut failed_commands));
            let outcome = match ended {
                Ok(()) => Outcome::Passed,
                Err(Stop(reason)) => unsuitable(lab, case).unwrap_or(Outcome::Failed(reason)),
            };
            if let Some(section) = section {
                section.end(&outcome, start.elapsed().as_secs_f64());
            }
            outcome
        }
    };
    let failed = matches!(outcome, Outcome::Failed(_));
    if !failed {
        failed_commands.clear();
    }
    let names: Vec<String> = lab
        .devices()
        .iter()
        .flat_map(|device| device.pci_address.iter().chain([&device.name]).cloned())
        .collect();
    let kernel_log = log.filter(|_| failed).map_or_else(Vec::new, |log| log.lines(&names));
    let seconds = start.elapsed().as_secs_f64();
    Row { case: case.id(), outcome, seconds, failed_commands, kernel_log }
}

/// Why a failed case could not pass here, if so: a link of the chain has failed, or the device is
/// smaller than cases assume.
fn unsuitable(lab: &Lab, case: &Case) -> Option<Outcome> {
    if let Some(reason) = lab.blockage().and_then(|blockage| blockage.after(case)) {
        return Some(Outcome::Blocked(reason));
    }
    match lab.small(&case.needs) {
        Ok(small) if !small.is_empty() => {
            Some(Outcome::Skipped(format!("it may need {}", small.join(", "))))
        }
        _ => None,
    }
}

fn run(
    lab: &Lab,
    case: &'static Case,
    section: Option<&Arc<Section>>,
    failed_commands: &mut Vec<FailedCommand>,
) -> Result<(), Stop> {
    let mut supervise = |lab: Lab| {
        let failed = lab.failed_commands().clone();
        let ended = supervise(lab, case);
        *failed_commands = failed.list();
        ended
    };
    if !lab.both_ways() {
        let fresh = lab.fresh()?;
        return supervise(match section {
            Some(section) => fresh.into_section(section),
            None => fresh,
        });
    }
    let mut arrivals = |packets: bool| -> Result<Arrivals, Stop> {
        let fresh = lab.fresh_one_way(packets)?;
        let recording = fresh.model()?.record_arrivals();
        let way = if packets { "in packets" } else { "carried whole" };
        supervise(fresh).map_err(|Stop(why)| Stop::fail(format!("{way}: {why}")))?;
        Ok(recording.arrivals())
    };
    ways::compare(case, &arrivals(false)?, &arrivals(true)?)
}

pub(crate) fn supervise(lab: Lab, case: &'static Case) -> Result<(), Stop> {
    let lab = Arc::new(lab);
    let (done, ended) = mpsc::channel();
    let inside = lab.clone();
    std::thread::Builder::new().name(case.name.clone().into()).spawn(move || {
        let result = catch_unwind(AssertUnwindSafe(|| (case.run)(&inside)));
        drop(inside);
        // The receiver is gone only if the case already counts as hung.
        let _ = done.send(result);
    })?;
    let timeout = lab.times(CASE_TIMEOUT_SECONDS[0], CASE_TIMEOUT_SECONDS[1]);
    let ended = ended.recv_timeout(Duration::from_secs(timeout));
    lab.count_faults();
    match ended {
        Ok(Ok(result)) => result.and_then(|()| lab.nothing_is_left()),
        Ok(Err(panic)) => {
            let text = panic
                .downcast_ref::<String>()
                .map(String::as_str)
                .or(panic.downcast_ref::<&str>().copied())
                .unwrap_or("no message");
            Err(Stop::fail(format!("panicked: {text}")))
        }
        Err(_) => Err(Stop::fail(format!("{HUNG}no end after {timeout} s"))),
    }
}

/// The start of the reason of a case that has not ended.
const HUNG: &str = "hung: ";

/// Whether a case has not ended: its thread goes on.
pub(crate) fn is_hung(ended: &Result<(), Stop>) -> bool {
    matches!(ended, Err(Stop(why)) if why.starts_with(HUNG))
}
