//! `hwtest --connect`: the cases of two machines.

use std::error::Error;
use std::io::{self, Write};
use std::time::Instant;

use verbless_conformance::report::{FactLink, FactSide};
use verbless_conformance::roles::{self, About, Case, Peer, Program};
use verbless_conformance::{Lab, Run, Stop};

use crate::options::{DeviceOptions, SuiteOptions};
use crate::results::{Closing, Results};
use crate::{serve, versions};

/// After this many failures for one cause the run stops, if no case has passed: each takes seconds
/// where nothing arrives at the other machine.
const SOLE_CAUSE: usize = 3;

/// Runs the selected cases; returns whether no case failed.
pub(crate) fn run(options: &SuiteOptions) -> Result<bool, Box<dyn Error>> {
    let all = roles::all().into_iter().filter(Case::spans_machines);
    let selected: Vec<Case> = all.filter(|case| options.chooses(&case.id())).collect();
    if selected.is_empty() {
        let parts = options.filter.join(" or ");
        return Err(format!("no case of two machines contains {parts}; see --list").into());
    }
    if options.list {
        return list(&selected);
    }
    let mut results = Results::create(options)?;
    let address = options.connect.as_deref().unwrap_or_default();
    let Some((lab, here, peer)) = ends(&options.on, address)? else { return Ok(false) };
    let there = peer.about();
    let device = roles::describe(&here, there);
    let mut run = Run { device, preconditions: preconditions(&here, there), cases: Vec::new() };
    results.open(&run)?;
    let program = Program::this(options.on.of_role())?;
    let begun = Instant::now();
    let not_run = cases(&lab, &program, &peer, &selected, &mut run, &mut results)?;
    let devices = vec![here.facts.clone(), there.facts.clone()];
    let closing = Closing {
        devices,
        peer: Some(there.machine.clone()),
        seconds: begun.elapsed().as_secs_f64(),
        not_run,
        ..Closing::default()
    };
    results.close(&run, closing)
}

/// Both ends of the cases: the lab here, what it says of itself, and the peer.
pub(crate) type Ends = (Lab, About, Peer);

/// Finds both ends; `None` if the device here is not usable, which is then shown.
pub(crate) fn ends(on: &DeviceOptions, address: &str) -> Result<Option<Ends>, Box<dyn Error>> {
    let Some((lab, here)) = serve::end(&on.one_end())? else { return Ok(None) };
    let peer = Peer::connect(&roles::with_port(address), versions::line());
    let peer = peer.map_err(|Stop(why)| why)?;
    is_possible(&here, peer.about())?;
    let lab = if on_one_card(&here, peer.about()) { lab.with_remote_dpu() } else { lab };
    Ok(Some((lab, here, peer)))
}

/// Fails unless both ends can exchange packets, as far as they know their ports.
fn is_possible(here: &About, there: &About) -> Result<(), String> {
    let link = |end: &About| end.facts.ports.first().map(|port| port.link_layer);
    let name = |link| match link {
        Some(FactLink::Infiniband) => "InfiniBand",
        Some(FactLink::Ethernet) => "Ethernet",
        _ => "of an unknown kind",
    };
    match (link(here), link(there)) {
        (one, other) if one == other => Ok(()),
        (one, other) => Err(format!(
            "port 1 of {} is {}, and that of the peer's {} is {}: choose other devices with \
             --device",
            here.facts.name,
            name(one),
            there.facts.name,
            name(other)
        )),
    }
}

/// Whether this end is the host of a card, and the other one the card's own processor.
fn on_one_card(here: &About, there: &About) -> bool {
    let card = |end: &About| end.facts.identity.as_ref().map(|it| it.system_image_guid.clone());
    let sides = (here.facts.side, there.facts.side) == (FactSide::Host, FactSide::Dpu);
    sides && card(here).is_some() && card(here) == card(there)
}

/// The preconditions of both ends.
pub(crate) fn preconditions(here: &About, there: &About) -> Vec<String> {
    let theirs = there.preconditions.iter().map(|line| format!("peer: {line}"));
    here.preconditions.iter().cloned().chain(theirs).collect()
}

/// Runs the cases; returns how many were left out after failures for one cause.
fn cases(
    lab: &Lab,
    program: &Program,
    peer: &Peer,
    selected: &[Case],
    run: &mut Run,
    results: &mut Results<'_>,
) -> io::Result<usize> {
    for case in selected {
        let row = roles::row(program, Some(peer), lab, case);
        writeln!(results.table, "{}", row.line())?;
        run.cases.push(row);
        if run.sole_cause(SOLE_CAUSE).is_some() {
            break;
        }
    }
    Ok(selected.len() - run.cases.len())
}

/// Lists the cases with their needs.
fn list(selected: &[Case]) -> Result<bool, Box<dyn Error>> {
    let mut out = io::stdout().lock();
    for case in selected {
        let needs: Vec<_> = case.needs.iter().map(ToString::to_string).collect();
        match needs.is_empty() {
            true => writeln!(out, "{}", case.id())?,
            false => writeln!(out, "{}  (needs {})", case.id(), needs.join(", "))?,
        }
    }
    Ok(true)
}
