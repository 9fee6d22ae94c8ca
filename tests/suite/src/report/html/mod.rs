//! The report as one HTML page: no script, nothing from elsewhere, on a phone too.
//!
//! - `device`: a device, its ports and its answers; `pages`: its capability pages.
//! - `performance`: bandwidths and latencies.
//! - `cases`: failures, skips and all cases; `timing`: how long they took.
//!
//! No text of the report is trusted: `maud` escapes it, and [`plain`] removes marks that would
//! change the writing direction.

mod cases;
mod device;
mod pages;
mod performance;
#[cfg(test)]
mod tests;
mod timing;

use maud::{DOCTYPE, Markup, PreEscaped, html};

use super::document::{Ending, Machine, Report};
use super::text::plain;

const STYLE: &str = include_str!("style.css");
/// The page may do nothing but show itself, whatever a report contains.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; \
                      form-action 'none'";

impl Report {
    /// The report as a page.
    pub fn html(&self) -> String {
        page(self).into_string()
    }
}

fn page(report: &Report) -> Markup {
    let failures = report.cases.iter().filter(|case| case.outcome == Ending::Failed).count();
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta http-equiv="Content-Security-Policy" content=(POLICY);
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                meta name="referrer" content="no-referrer";
                title { "hwtest: " (plain(&report.device)) }
                style { (PreEscaped(STYLE)) }
            }
            body {
                header {
                    p.kicker { "hwtest report" }
                    h1 { (plain(&report.device)) }
                    @if !report.cases.is_empty() { (counts(report)) }
                    nav aria-label="Sections" {
                        @if !report.performance.is_empty() {
                            a href="#performance" { "Performance" }
                        }
                        @if failures > 0 { a href="#failed" { "Failed" } }
                        @if !report.cases.is_empty() {
                            @if report.blocked > 0 { a href="#blocked" { "Blocked" } }
                            @if report.skipped > 0 { a href="#skipped" { "Skipped" } }
                            a href="#time" { "Time" }
                            a href="#cases" { "Cases" }
                        }
                        @for (index, facts) in report.devices.iter().enumerate() {
                            a href={ "#device-" (index) } { (plain(&facts.name)) }
                        }
                    }
                }
                main {
                    (machine(report))
                    @if !report.performance.is_empty() { (performance::section(report)) }
                    @if failures > 0 { (cases::failed(report)) }
                    @if !report.cases.is_empty() {
                        (cases::not_run(report, Ending::Blocked))
                        (cases::not_run(report, Ending::Skipped))
                        (timing::plot(&report.cases))
                        (cases::all(report))
                    }
                    @for (index, facts) in report.devices.iter().enumerate() {
                        (device::device(index, facts))
                    }
                }
            }
        }
    }
}

/// The numbers of cases, and a bar of their shares.
fn counts(report: &Report) -> Markup {
    let mut numbers =
        vec![("passed", report.passed), ("failed", report.failed), ("skipped", report.skipped)];
    if report.blocked > 0 {
        numbers.push(("blocked", report.blocked));
    }
    html! {
        div.counts {
            @for &(what, number) in &numbers {
                div class={ "count " (what) } { strong { (number) } " " (what) }
            }
        }
        div.bar role="img" aria-label="shares of the cases" {
            @for &(what, number) in &numbers {
                @if number > 0 {
                    span class=(what) style={ "flex-grow:" (number) } {}
                }
            }
        }
    }
}

/// The machine, the program, and what was checked before the run.
fn machine(report: &Report) -> Markup {
    let program = &report.program;
    let version = match &program.commit {
        Some(commit) => format!("{} (commit {commit})", program.version),
        None => program.version.clone(),
    };
    html! {
        section #machine {
            h2 { "Machine" }
            (rows(&of_machine(&report.machine)))
            @if let Some(peer) = &report.peer {
                h3 { "Machine of the peer" }
                (rows(&of_machine(peer)))
            }
            h3 { "Program" }
            (rows(&[("verbless", version), ("PRM", program.prm.clone())]))
            @if !report.preconditions.is_empty() {
                h3 { "Before the run" }
                ul.plain { @for line in &report.preconditions { li { (plain(line)) } } }
            }
        }
    }
}

fn of_machine(machine: &Machine) -> [(&'static str, String); 3] {
    [
        ("Kernel", machine.kernel.as_deref().unwrap_or("unknown").to_owned()),
        ("Architecture", machine.architecture.clone()),
        ("Page", format!("{} bytes", machine.page_bytes)),
    ]
}

/// A table of two columns.
fn rows(rows: &[(&str, String)]) -> Markup {
    html! {
        table.facts {
            tbody {
                @for (name, value) in rows {
                    tr { th scope="row" { (name) } td { (plain(value)) } }
                }
            }
        }
    }
}
