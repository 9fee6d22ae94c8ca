//! How long the cases took: a row for each group, and in it a tick for each case, on a logarithmic
//! axis.

use maud::{Markup, html};

use super::cases::groups;
use crate::report::document::CaseResult;
use crate::report::text::{duration, plain};

/// The limits of the axis, as powers of 10 of a second.
const LIMITS: (f64, f64) = (-6.0, 5.0);

/// The axis: whole powers of 10 of a second.
struct Axis {
    low: i32,
    high: i32,
}

impl Axis {
    fn of(cases: &[CaseResult]) -> Self {
        let logs = cases.iter().filter(|case| case.ran()).map(log);
        let (low, high) = logs.fold((LIMITS.1, LIMITS.0), |(low, high), log| {
            (f64::min(low, log), f64::max(high, log))
        });
        let low = low.min(high).floor() as i32;
        Self { low, high: (high.ceil() as i32).max(low + 1) }
    }

    /// The place of a power of 10, in percent.
    fn place(&self, log: f64) -> f64 {
        100.0 * (log - f64::from(self.low)) / f64::from(self.high - self.low)
    }
}

fn log(case: &CaseResult) -> f64 {
    case.seconds.log10().clamp(LIMITS.0, LIMITS.1)
}

/// A power of 10 of a second.
fn label(power: i32) -> String {
    let (unit, exponent) = match power {
        ..=-4 => ("µs", power + 6),
        -3..=-1 => ("ms", power + 3),
        _ => ("s", power),
    };
    format!("{:.0} {unit}", 10f64.powi(exponent))
}

/// The plot, and the time of each group.
pub(super) fn plot(cases: &[CaseResult]) -> Markup {
    let axis = Axis::of(cases);
    let total: f64 = cases.iter().map(|case| case.seconds).sum();
    html! {
        section #time {
            h2 { "Time" }
            p.hint {
                "A tick is a case that ran; red ones failed. All together took "
                (duration(total)) " of work."
            }
            div.plot {
                div.row.axis aria-hidden="true" {
                    span {}
                    span.scale {
                        @for power in axis.low..=axis.high {
                            @let place = axis.place(power.into());
                            span style=(format!("left:{place:.2}%")) { (label(power)) }
                        }
                    }
                    span.number { "sum" }
                }
                @for (group, cases) in groups(cases) {
                    @if cases.iter().any(|case| case.ran()) {
                        (row(&axis, group, &cases))
                    }
                }
            }
        }
    }
}

fn row(axis: &Axis, group: &str, cases: &[&CaseResult]) -> Markup {
    let sum: f64 = cases.iter().map(|case| case.seconds).sum();
    // A failure is drawn over the others.
    let mut ran: Vec<_> = cases.iter().filter(|case| case.ran()).collect();
    ran.sort_by_key(|case| std::cmp::Reverse(case.outcome));
    html! {
        div.row {
            span.group { (plain(group)) }
            svg viewBox="0 0 100 10" preserveAspectRatio="none" role="img"
                aria-label={ (ran.len()) " cases" } {
                @for power in axis.low..=axis.high {
                    @let x = format!("{:.2}", axis.place(power.into()));
                    line.grid x1=(x) x2=(x) y1="0" y2="10" {}
                }
                @for case in ran {
                    @let x = format!("{:.2}", axis.place(log(case)));
                    line class=(case.outcome) x1=(x) x2=(x) y1="1.5" y2="8.5" {
                        title { (plain(&case.case)) ": " (duration(case.seconds)) }
                    }
                }
            }
            span.number { (duration(sum)) }
        }
    }
}
