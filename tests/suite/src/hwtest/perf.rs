//! `hwtest perf`: bandwidths, message rates and latencies.

use std::error::Error;
use std::io::{self, Write};

use verbless_conformance::report::{DeviceFacts, Machine, Measurement, Report, facts};
use verbless_conformance::roles::{self, Peer};
use verbless_conformance::{Examination, Host, Lab, Run, Stop, examine, gigabits};
use verbless_perf::{Kind, Measured, Operation, Plan};

use crate::options::PerfOptions;
use crate::sink::Sink;
use crate::{connect, serve, versions};

/// What is measured by default.
const TESTS: [&str; 9] = [
    "write_bw",
    "read_bw",
    "send_bw",
    "ud_send_bw",
    "write_lat",
    "read_lat",
    "send_lat",
    "ud_send_lat",
    "fetch_add_lat",
];
/// Bytes of messages by default.
const SIZES: [u32; 6] = [8, 64, 1024, 4096, 65_536, 1 << 20];
/// The longest message by default where a latency is measured.
const LONGEST_LATENCY: u32 = 65_536;

/// The devices of a measurement.
struct Ends {
    lab: Lab,
    peer: Option<Peer>,
    described: String,
    preconditions: Vec<String>,
    devices: Vec<DeviceFacts>,
    machine_of_peer: Option<Machine>,
}

/// Measures and shows the numbers; returns whether all could be measured.
pub(crate) fn run(options: &PerfOptions) -> Result<bool, Box<dyn Error>> {
    let plans = plans(options)?;
    let json = options.json.as_deref().map(Sink::create).transpose()?;
    let mut out: Box<dyn Write> = match json {
        Some(Sink::Stdout) => Box::new(io::stderr()),
        _ => Box::new(io::stdout()),
    };
    let Some(ends) = ends(options)? else { return Ok(false) };
    writeln!(out, "Measuring on {}", ends.described)?;
    if ends.devices.iter().any(|device| device.model) {
        writeln!(out, "  These are numbers of the software model on this machine, of no card.")?;
    }
    let (speed, longest) = (speed(&ends.devices), longest_datagram(&ends.devices));
    if let Some(speed) = speed {
        writeln!(out, "  port[%]: payload's share of {speed} Gb/s, the speed of the slower port")?;
    }
    let mut measurements: Vec<Measurement> = Vec::new();
    let fits = |plan: &Plan| plan.operation != Operation::UdSend || plan.bytes <= longest;
    // Sizes that were asked for are tried, whatever they are.
    let is_default = options.size.is_empty();
    for plan in plans.iter().filter(|plan| !is_default || fits(plan)) {
        let measured = roles::measure(&ends.lab, ends.peer.as_ref(), plan).map_err(|Stop(why)| why);
        let is_first = measurements.last().is_none_or(|it| it.name != plan.name());
        let row = Measurement::of(plan, measured.clone(), speed);
        show(&mut out, plan, &measured, &row, is_first)?;
        measurements.push(row);
    }
    let failed = measurements.iter().filter(|it| it.error.is_some()).count();
    if let Some(sink) = json {
        let run =
            Run { device: ends.described, preconditions: ends.preconditions, cases: Vec::new() };
        let report = Report {
            peer: ends.machine_of_peer,
            performance: measurements,
            ..Report::of(versions::program(), ends.devices, &run)
        };
        let report = if options.identify { report } else { report.without_identity() };
        sink.write(&report.json()?)?;
    }
    Ok(failed == 0)
}

/// What is measured, in order.
fn plans(options: &PerfOptions) -> Result<Vec<Plan>, String> {
    let tests: Vec<&str> = match options.tests.is_empty() {
        true => TESTS.to_vec(),
        false => options.tests.iter().map(String::as_str).collect(),
    };
    let mut plans = Vec::new();
    for name in tests {
        let like = Plan::named(name).ok_or_else(|| {
            let known: Vec<_> = Operation::ALL.iter().map(|it| it.name()).collect();
            format!("{name:?}: there are {}, each with _bw or _lat", known.join(", "))
        })?;
        let like = Plan { iterations: options.iterations.unwrap_or(like.iterations), ..like };
        let like = match like.kind {
            Kind::Latency => like,
            Kind::Bandwidth => {
                let &PerfOptions { depth, qps, batch, .. } = options;
                Plan { depth, qps, batch, ..like }
            }
        };
        let sizes: Vec<u32> = match (like.operation.is_atomic(), options.all) {
            (true, _) => vec![8],
            (false, true) => (1..=23).map(|power| 1 << power).collect(),
            _ if !options.size.is_empty() => options.size.clone(),
            _ if like.kind == Kind::Latency => {
                SIZES.into_iter().filter(|&bytes| bytes <= LONGEST_LATENCY).collect()
            }
            _ => SIZES.to_vec(),
        };
        for bytes in sizes {
            let plan = Plan { bytes, ..like };
            plan.check().map_err(|error| format!("{name}: {error}"))?;
            plans.push(plan);
        }
    }
    Ok(plans)
}

/// Finds the devices; `None` if they are not usable, which is then shown.
fn ends(options: &PerfOptions) -> Result<Option<Ends>, Box<dyn Error>> {
    if let Some(address) = &options.connect {
        let both = connect::ends(&options.on, address)?;
        return Ok(both.map(|(lab, here, peer)| Ends {
            described: roles::describe(&here, peer.about()),
            preconditions: connect::preconditions(&here, peer.about()),
            devices: vec![here.facts, peer.about().facts.clone()],
            machine_of_peer: Some(peer.about().machine.clone()),
            lab,
            peer: Some(peer),
        }));
    }
    let choice = options.on.choice();
    let Examination { chain, lab } = examine(&choice, &Host::new()).map_err(|Stop(what)| what)?;
    let Some(lab) = lab.filter(|_| chain.failure().is_none()) else {
        serve::show(&chain.verdict());
        return Ok(None);
    };
    Ok(Some(Ends {
        described: lab.describe(),
        preconditions: lab.preconditions(),
        devices: facts(&lab),
        machine_of_peer: None,
        lab,
        peer: None,
    }))
}

/// The speed of the slower port in Gb/s.
fn speed(devices: &[DeviceFacts]) -> Option<f64> {
    let of = |device: &DeviceFacts| {
        let port = device.ports.first()?;
        gigabits(port.active_width, port.active_speed)
    };
    devices.iter().map(of).collect::<Option<Vec<_>>>()?.into_iter().reduce(f64::min)
}

/// The longest datagram that both ports carry.
fn longest_datagram(devices: &[DeviceFacts]) -> u32 {
    let of = |device: &DeviceFacts| device.ports.first().and_then(|port| port.active_mtu);
    devices.iter().filter_map(of).min().unwrap_or(256)
}

/// Shows a measurement; the first of its name with a headline and the names of the columns.
fn show(
    out: &mut dyn Write,
    plan: &Plan,
    measured: &Result<Measured, String>,
    row: &Measurement,
    is_first: bool,
) -> io::Result<()> {
    let Plan { depth, qps, batch, .. } = plan;
    if is_first {
        match plan.kind {
            Kind::Bandwidth => writeln!(
                out,
                "\n{}: {qps} QP, {depth} requests in flight, {batch} per doorbell, a completion for \
                 every {}",
                plan.name(),
                match plan.completes_each() {
                    1 => "message".to_string(),
                    count => format!("{count} messages"),
                },
            )?,
            Kind::Latency => writeln!(out, "\n{}", plan.name())?,
        }
        if let Ok(measured) = measured {
            let last = if row.bandwidth.is_some() { "   port[%]" } else { "" };
            writeln!(out, "{}{last}", measured.header())?;
        }
    }
    match measured {
        Err(why) => writeln!(out, "FAIL {} bytes: {why}", plan.bytes),
        Ok(measured) => {
            write!(out, "{}", measured.row(plan))?;
            if let Some(share) = row.bandwidth.and_then(|it| it.port_share) {
                write!(out, "         {:.1}", 100.0 * share)?;
            }
            if let Some(it) = row.bandwidth.filter(|it| it.arrived < 1.0) {
                write!(out, "   {:.1} % arrived", 100.0 * it.arrived)?;
            }
            writeln!(out)
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::options::{Command, Options};

    fn plans_of(words: &[&str]) -> Result<Vec<Plan>, String> {
        let options = Options::parse_from([&["hwtest", "perf"], words].concat());
        let Some(Command::Perf(options)) = &options.command else { panic!("not perf") };
        plans(options)
    }

    #[test]
    fn options_choose_plans() {
        let all = plans_of(&[]).expect("the default is possible");
        assert!(all.iter().all(|plan| plan.check().is_ok()) && all.len() > 40, "{}", all.len());
        let words = ["read_bw", "--size", "64,128", "-n", "10", "--qps", "2", "--depth", "4"];
        let plan = Plan { iterations: 10, qps: 2, depth: 4, ..Plan::named("read_bw").unwrap() };
        let expected = [64, 128].map(|bytes| Plan { bytes, ..plan });
        assert_eq!(plans_of(&words).unwrap(), expected);
        assert_eq!(plans_of(&["--all", "write_lat"]).unwrap().len(), 23);
        assert!(plans_of(&["write"]).unwrap_err().contains("each with _bw or _lat"));
        assert!(plans_of(&["write_bw", "--qps", "65"]).unwrap_err().contains("from 1 to 64"));
    }
}
