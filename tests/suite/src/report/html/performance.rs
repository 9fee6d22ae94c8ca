//! Bandwidths and latencies: a plot and a table of each.

use maud::{Markup, html};

use crate::report::document::Report;
use crate::report::performance::Measurement;
use crate::report::text::plain;

/// Width and height of a plot.
const SIZE: (f64, f64) = (640.0, 240.0);
/// Room for the labels: left and below.
const MARGIN: (f64, f64) = (64.0, 28.0);
/// Colours of curves, as classes of the style sheet.
const CURVES: usize = 6;
/// The most powers of ten of an axis.
const MAX_DECADES: i32 = 20;

/// A curve: its name, and points of bytes and a value.
struct Curve<'a> {
    name: &'a str,
    points: Vec<(f64, f64)>,
}

/// The section of the page.
pub(super) fn section(report: &Report) -> Markup {
    let of_model = report.devices.iter().any(|device| device.model);
    let (rates, times): (Vec<_>, Vec<_>) =
        report.performance.iter().partition(|it| it.latency.is_none());
    let rate = |it: &Measurement| it.bandwidth.map(|it| it.average);
    let time = |it: &Measurement| it.latency.map(|it| it.typical);
    html! {
        section #performance {
            h2 { "Performance" }
            @if of_model {
                p.note { "A device is the software model: these are numbers of the model." }
            }
            @if !rates.is_empty() {
                h3 { "Bandwidth in MiB/s, by bytes of a message" }
                (plot(&curves(&rates, rate), "MiB/s"))
                (table(
                    &["", "bytes", "messages", "in flight", "QPs", "peak", "average",
                      "million messages/s", "arrived", "of the port"],
                    &rates, bandwidth))
            }
            @if !times.is_empty() {
                h3 { "Typical latency in µs, by bytes of a message" }
                (plot(&curves(&times, time), "µs"))
                (table(
                    &["", "bytes", "messages", "min", "typical", "average", "deviation", "99 %",
                      "99.9 %", "max"],
                    &times, latency))
            }
        }
    }
}

fn table(
    names: &[&str],
    rows: &[&Measurement],
    cells: fn(&Measurement) -> Option<Vec<String>>,
) -> Markup {
    html! {
        div.wide {
            table.numbers {
                thead { tr { @for name in names { th scope="col" { (name) } } } }
                tbody {
                    @for row in rows {
                        tr {
                            th scope="row" { code { (plain(&row.name)) } }
                            td.number { (row.bytes) }
                            @match (&row.error, cells(row)) {
                                (None, Some(cells)) => {
                                    td.number { (row.iterations) }
                                    @for cell in cells { td.number { (cell) } }
                                }
                                (error, _) => {
                                    td colspan=(names.len() - 2) {
                                        (plain(error.as_deref().unwrap_or("no numbers")))
                                    }
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}

fn bandwidth(row: &Measurement) -> Option<Vec<String>> {
    let it = row.bandwidth?;
    let percent = |share: f64| format!("{:.1} %", 100.0 * share);
    Some(vec![
        row.depth.to_string(),
        row.qps.to_string(),
        format!("{:.2}", it.peak),
        format!("{:.2}", it.average),
        format!("{:.6}", it.message_rate),
        percent(it.arrived),
        it.port_share.map_or_else(|| "unknown".into(), percent),
    ])
}

fn latency(row: &Measurement) -> Option<Vec<String>> {
    let it = row.latency?;
    let percentiles = [it.percentile_99, it.percentile_99_9, it.max];
    let numbers = [it.min, it.typical, it.average, it.deviation].into_iter().chain(percentiles);
    Some(numbers.map(|number| format!("{number:.2}")).collect())
}

/// A curve for each name, in the order of the rows.
fn curves<'a>(rows: &[&'a Measurement], value: fn(&Measurement) -> Option<f64>) -> Vec<Curve<'a>> {
    let mut curves: Vec<Curve<'a>> = Vec::new();
    for row in rows {
        let Some(value) = value(row).filter(|it| *it > 0.0 && it.is_finite()) else { continue };
        let point = (f64::from(row.bytes.max(1)), value);
        match curves.iter_mut().find(|curve| curve.name == row.name) {
            Some(curve) => curve.points.push(point),
            None => curves.push(Curve { name: &row.name, points: vec![point] }),
        }
    }
    curves.iter_mut().for_each(|curve| curve.points.sort_by(|a, b| a.0.total_cmp(&b.0)));
    curves
}

/// A logarithmic axis: whole powers of its base.
struct Axis {
    base: f64,
    low: i32,
    high: i32,
}

impl Axis {
    fn of(base: f64, values: impl Iterator<Item = f64>) -> Self {
        let logs: Vec<f64> = values.map(|value| value.log(base)).collect();
        let low = logs.iter().copied().fold(f64::INFINITY, f64::min).floor() as i32;
        let high = logs.iter().copied().fold(f64::NEG_INFINITY, f64::max).ceil() as i32;
        Self { base, low, high: high.clamp(low + 1, low + 2 * MAX_DECADES) }
    }

    /// The place of a value between 0 and 1.
    fn place(&self, value: f64) -> f64 {
        let place = (value.log(self.base) - f64::from(self.low)) / f64::from(self.high - self.low);
        place.clamp(0.0, 1.0)
    }

    /// Its powers, at most about a dozen.
    fn ticks(&self) -> impl Iterator<Item = f64> + use<> {
        let step = ((self.high - self.low) / 12 + 1) as usize;
        let base = self.base;
        (self.low..=self.high).step_by(step).map(move |power| base.powi(power))
    }
}

/// The curves over bytes, both axes logarithmic.
fn plot(curves: &[Curve<'_>], unit: &str) -> Markup {
    let points = || curves.iter().flat_map(|curve| &curve.points);
    if points().next().is_none() {
        return html! {};
    }
    let across = Axis::of(2.0, points().map(|point| point.0));
    let up = Axis::of(10.0, points().map(|point| point.1));
    let (width, height) = (SIZE.0 - MARGIN.0 - 10.0, SIZE.1 - MARGIN.1 - 10.0);
    let x = |value: f64| format!("{:.1}", MARGIN.0 + width * across.place(value));
    let y = |value: f64| format!("{:.1}", 10.0 + height * (1.0 - up.place(value)));
    let (left, right) = (MARGIN.0, MARGIN.0 + width);
    html! {
        svg.curves viewBox={ "0 0 " (SIZE.0) " " (SIZE.1) } role="img"
            aria-label={ (unit) " by bytes of a message" } {
            @for value in up.ticks() {
                line.grid x1=(left) x2=(right) y1=(y(value)) y2=(y(value)) {}
                text x=(left - 6.0) y=(y(value)) dy="4" text-anchor="end" { (short(value)) }
            }
            @for value in across.ticks() {
                line.grid x1=(x(value)) x2=(x(value)) y1="10" y2=(10.0 + height) {}
                text x=(x(value)) y=(SIZE.1 - 8.0) text-anchor="middle" { (bytes(value)) }
            }
            @for (at, curve) in curves.iter().enumerate() {
                @let class = format!("curve c{}", at % CURVES);
                @let line: Vec<String> =
                    curve.points.iter().map(|it| x(it.0) + "," + &y(it.1)).collect();
                polyline class=(class) points=(line.join(" ")) {}
                @for point in &curve.points {
                    circle class=(class) cx=(x(point.0)) cy=(y(point.1)) r="3" {
                        title {
                            (plain(curve.name)) ", " (bytes(point.0)) ": "
                            (format!("{:.2}", point.1)) " " (unit)
                        }
                    }
                }
            }
        }
        ul.legend {
            @for (at, curve) in curves.iter().enumerate() {
                li class={ "c" (at % CURVES) } { (plain(curve.name)) }
            }
        }
    }
}

/// A power of ten.
fn short(value: f64) -> String {
    match value {
        value if value >= 1e6 => format!("{value:.0e}"),
        value if value >= 1.0 => format!("{value:.0}"),
        value => value.to_string(),
    }
}

/// A power of two, or any number of bytes.
fn bytes(value: f64) -> String {
    match value {
        value if value >= 1_048_576.0 => format!("{} MiB", value / 1_048_576.0),
        value if value >= 1024.0 => format!("{} KiB", value / 1024.0),
        value => format!("{value} B"),
    }
}
