//! Two reports, or a report and a profile of the model, compared in words.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;

use verbless_command::CapMode;
use verbless_model::{Link, Profile};
use verbless_prm::CommandInfo;

use super::docs;
use super::document::{CaseResult, DeviceFacts, Ending, FactLink, Page, Query, Report};
use super::fields::{Value, of_view};
use super::profile::facts_of;
use super::text::plain;
use crate::Stop;

/// One of the two that are compared.
struct Side {
    /// What the user calls it.
    name: String,
    devices: Vec<DeviceFacts>,
    /// The cases of a report; a profile has none.
    cases: Option<Vec<CaseResult>>,
    /// Kernel and program of a report.
    about: Vec<(&'static str, String)>,
}

/// All differences between two sides.
pub struct Diff {
    names: [String; 2],
    /// The heading and the lines of each group that has a difference.
    groups: Vec<(String, Vec<String>)>,
}

/// Compares two files of reports, or names or TOML files of profiles. A profile is taken on the
/// link layer of the other side if that is a report, otherwise on its own.
///
/// # Errors
/// A file cannot be read or is no report, or a profile has a mistake.
pub fn diff(one: &str, other: &str) -> Result<Diff, Stop> {
    let reports = [one, other].map(|name| match is_profile(name) {
        true => Ok(None),
        false => Report::read(Path::new(name)).map(Some).map_err(|error| {
            let known = Profile::names().collect::<Vec<_>>().join(", ");
            Stop::fail(format!("{error}; profiles are {known}, and files that end in .toml"))
        }),
    });
    let [first, second] = reports;
    let (first, second) = (first?, second?);
    let link = [&first, &second].into_iter().flatten().find_map(link_of);
    let side = |name: &str, report: Option<Report>| match report {
        Some(report) => Ok(Side::of_report(name, report)),
        None => Side::of_profile(name, link),
    };
    Ok(Diff::of(&side(one, first)?, &side(other, second)?))
}

fn is_profile(name: &str) -> bool {
    Profile::names().any(|known| known == name)
        || Path::new(name).extension().is_some_and(|extension| extension == "toml")
}

fn link_of(report: &Report) -> Option<&'static str> {
    match report.devices.first()?.ports.first()?.link_layer {
        FactLink::Infiniband => Some("infiniband"),
        FactLink::Ethernet => Some("ethernet"),
        FactLink::Unspecified => None,
    }
}

impl Side {
    fn of_report(name: &str, report: Report) -> Self {
        let program = &report.program;
        let about = vec![
            ("kernel", report.machine.kernel.clone().unwrap_or_else(|| "unknown".into())),
            ("architecture", report.machine.architecture.clone()),
            ("bytes of a page", report.machine.page_bytes.to_string()),
            ("verbless", program.version.clone()),
            ("PRM", program.prm.clone()),
        ];
        Self { name: name.into(), devices: report.devices, cases: Some(report.cases), about }
    }

    fn of_profile(name: &str, link: Option<&'static str>) -> Result<Self, Stop> {
        let own = Profile::load(name)?.link();
        let link = link.unwrap_or(match own {
            Link::Infiniband => "infiniband",
            Link::Ethernet => "ethernet",
        });
        let devices = facts_of(name, link)?;
        Ok(Self {
            name: format!("profile {name} on {link}"),
            devices,
            cases: None,
            about: Vec::new(),
        })
    }
}

impl Diff {
    fn of(one: &Side, other: &Side) -> Self {
        let mut diff = Self { names: [one.name.clone(), other.name.clone()], groups: Vec::new() };
        let pairs = one.about.iter().zip(&other.about);
        diff.group(
            "Machine".into(),
            pairs.filter_map(|((what, a), (_, b))| line(what, a, b, "")).collect(),
        );
        let found = |ours: &&DeviceFacts| other.devices.iter().find(|it| it.side == ours.side);
        let mut compared = 0;
        for ours in one.devices.iter().take(1).chain(one.devices.iter().skip(1).take(1)) {
            // A second device on the same side is a peer: of the same kind, in a lab.
            let is_peer = compared > 0 && ours.side == one.devices[0].side;
            if let Some(theirs) = found(&ours).filter(|_| !is_peer) {
                diff.device(ours, theirs);
                compared += 1;
            }
        }
        if compared == 0 {
            let lines = vec!["A and B have no device on the same side of a card".to_owned()];
            diff.group("Devices".into(), lines);
        }
        if let (Some(ours), Some(theirs)) = (&one.cases, &other.cases) {
            diff.cases(ours, theirs);
        }
        diff
    }

    /// Whether there is no difference.
    pub fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }

    fn group(&mut self, heading: String, lines: Vec<String>) {
        if !lines.is_empty() {
            self.groups.push((heading, lines));
        }
    }

    fn device(&mut self, ours: &DeviceFacts, theirs: &DeviceFacts) {
        let name = format!("{} ({:?})", ours.name, ours.side).to_lowercase();
        // The model has neither a PCI link nor a file: that is no difference of the cards.
        let both = |of: fn(&DeviceFacts) -> bool| of(ours) && of(theirs);
        let linked = both(|facts| facts.pci.link.is_some());
        let with_files = both(|facts| facts.file.is_some());
        let link = |facts: &DeviceFacts| match &facts.pci.link {
            Some(link) if linked => format!("{} x{}", link.speed, link.width),
            _ => String::new(),
        };
        let id = |id: u16| format!("{id:#06x}");
        let file = |facts: &DeviceFacts| match &facts.file {
            Some(file) if with_files => format!("{} {}:{}", file.mode, file.owner, file.group),
            _ => String::new(),
        };
        let of = |facts: &DeviceFacts| {
            vec![
                ("is the model", words(facts.model)),
                ("function", format!("{:?}", facts.function).to_lowercase()),
                ("PSID", facts.psid.clone()),
                ("firmware", facts.firmware.clone()),
                ("PCI vendor", id(facts.pci.vendor_id)),
                ("PCI device", id(facts.pci.device_id)),
                ("PCI link", link(facts)),
                ("device file", file(facts)),
                ("ports", facts.ports.len().to_string()),
                ("could not be asked", facts.incomplete.clone().unwrap_or_else(|| "no".into())),
            ]
        };
        let pairs = of(ours).into_iter().zip(of(theirs));
        let lines = pairs.filter_map(|((what, a), (_, b))| line(what, &a, &b, "")).collect();
        self.group(format!("Device {name}"), lines);
        self.ports(&name, ours, theirs);
        for (what, mode) in [("capabilities", CapMode::Current), ("maximum", CapMode::Maximum)] {
            self.pages(&format!("{what} of {name}"), mode, ours, theirs);
        }
        let queries = ours.queries.iter().flat_map(|query| {
            let found = theirs.queries.iter().find(|it| it.command == query.command);
            found.map(|other| query_lines(query, other)).unwrap_or_default()
        });
        let lines = queries.collect();
        self.group(format!("Answers of {name}"), lines);
    }

    fn ports(&mut self, name: &str, ours: &DeviceFacts, theirs: &DeviceFacts) {
        for (ours, theirs) in ours.ports.iter().zip(&theirs.ports) {
            let mtu = |mtu: Option<u32>| mtu.map_or("unknown".into(), |mtu| mtu.to_string());
            let of = |port: &super::document::Port| {
                [
                    ("link layer", format!("{:?}", port.link_layer)),
                    ("state", port.state.to_string()),
                    ("physical state", port.physical_state.to_string()),
                    ("largest MTU", mtu(port.max_mtu)),
                    ("active MTU", mtu(port.active_mtu)),
                    ("width code", port.active_width.to_string()),
                    ("speed code", port.active_speed.to_string()),
                    ("entries of the GID table", port.gid_table_len.to_string()),
                    ("entries of the P_Key table", port.pkey_table_len.to_string()),
                    ("needs a GRH", words(port.grh_required)),
                    ("kinds of GIDs", port.gid_kinds.join(", ")),
                ]
            };
            let pairs = of(ours).into_iter().zip(of(theirs));
            let lines = pairs.filter_map(|((what, a), (_, b))| line(what, &a, &b, "")).collect();
            self.group(format!("Port {} of {name}", ours.number), lines);
        }
    }

    fn pages(&mut self, what: &str, mode: CapMode, ours: &DeviceFacts, theirs: &DeviceFacts) {
        let numbers = ours.pages.iter().chain(&theirs.pages).map(|page| (page.number, page));
        for (number, page) in numbers.collect::<BTreeMap<_, _>>() {
            let of = |facts: &DeviceFacts| {
                facts.pages.iter().find(|page| page.number == number).cloned()
            };
            let (a, b) = (of(ours), of(theirs));
            // An absent page differs once, and not again in its maxima.
            let absent = match (&a, &b) {
                (Some(_), None) => Some("A has the page, B does not"),
                (None, Some(_)) => Some("B has the page, A does not"),
                _ => None,
            };
            let heading = format!("Page {}: {what}", page.title());
            match absent {
                Some(text) if mode == CapMode::Current => {
                    self.group(heading, vec![text.to_owned()]);
                }
                Some(_) => {}
                None => {
                    let lines = a.zip(b).map(|(a, b)| page_lines(&a, &b, mode));
                    self.group(heading, lines.unwrap_or_default());
                }
            }
        }
    }

    fn cases(&mut self, ours: &[CaseResult], theirs: &[CaseResult]) {
        let theirs: BTreeMap<&str, &CaseResult> =
            theirs.iter().map(|case| (&*case.case, case)).collect();
        let mut changed: BTreeMap<(Ending, Ending), Vec<String>> = BTreeMap::new();
        let mut alone = 0;
        // An untrusted report may have a case twice.
        let names: BTreeSet<&str> = ours.iter().map(|case| &*case.case).collect();
        let only_theirs = theirs.keys().filter(|name| !names.contains(*name)).count();
        for ours in ours {
            let Some(theirs) = theirs.get(&*ours.case) else {
                alone += 1;
                continue;
            };
            if ours.outcome != theirs.outcome {
                let reason = ours.reason.as_ref().or(theirs.reason.as_ref());
                let reason = reason.map(|reason| format!(": {}", plain(reason)));
                let line = format!("{}{}", plain(&ours.case), reason.unwrap_or_default());
                changed.entry((ours.outcome, theirs.outcome)).or_default().push(line);
            }
        }
        for ((a, b), lines) in changed {
            self.group(format!("Cases that {a} in A and {b} in B", a = did(a), b = did(b)), lines);
        }
        let missing =
            |count: usize, of: &str| (count > 0).then(|| format!("only in {of}: {count}"));
        let lines = [missing(alone, "A"), missing(only_theirs, "B")];
        self.group("Cases of one side".into(), lines.into_iter().flatten().collect());
    }
}

/// The ending of a case as a verb.
fn did(ending: Ending) -> String {
    match ending {
        Ending::Skipped | Ending::Blocked => format!("were {ending}"),
        other => other.to_string(),
    }
}

fn words(set: bool) -> String {
    if set { "yes".into() } else { "no".into() }
}

/// A line for two values that differ.
fn line(what: &str, a: &str, b: &str, doc: &str) -> Option<String> {
    let doc = if doc.is_empty() { String::new() } else { format!("  ({doc})") };
    (a != b).then(|| format!("{what}: {} in A, {} in B{doc}", plain(a), plain(b)))
}

/// The fields in which two pages differ.
fn page_lines(a: &Page, b: &Page, mode: CapMode) -> Vec<String> {
    let (ours, theirs) = (a.capabilities(), b.capabilities());
    let mut lines = Vec::new();
    for (ours, theirs) in ours.iter().zip(&theirs) {
        let (x, y) = match mode {
            CapMode::Current => (&ours.current, &theirs.current),
            CapMode::Maximum => (&ours.maximum, &theirs.maximum),
        };
        // A maximum that differs as the current value does is said once.
        let said = mode == CapMode::Maximum && (&ours.current, &theirs.current) == (x, y);
        if !said && x != y {
            let flag = ours.leaf.field.width == 1;
            lines.extend(line(
                &ours.leaf.path,
                &shown(x, flag),
                &shown(y, flag),
                docs::doc(&ours.leaf),
            ));
        }
    }
    if mode == CapMode::Current && a.unnamed_bits() != b.unnamed_bits() {
        let bits = |page: &Page| format!("{:x?}", page.unnamed_bits());
        lines.extend(line("bits that the PRM does not name", &bits(a), &bits(b), ""));
    }
    lines
}

/// A value; a flag in words.
fn shown(value: &Value, flag: bool) -> String {
    match value {
        Value::Number(number) if flag => words(*number != 0),
        value => value.to_string(),
    }
}

/// The fields in which the outputs of one command differ.
fn query_lines(a: &Query, b: &Query) -> Vec<String> {
    let told = |query: &Query| query.error.clone().unwrap_or_else(|| "no error".into());
    let command = plain(&a.command);
    let error = line(&format!("{command}: error"), &told(a), &told(b), "");
    if a.error.is_some() || b.error.is_some() {
        return error.into_iter().collect();
    }
    let input = a.input.padded(0x10);
    let Some(info) = CommandInfo::of_input(&input) else { return Vec::new() };
    let (x, y) = (a.output.padded(info.output.bytes), b.output.padded(info.output.bytes));
    let (x, y) = (&x[..info.output.bytes], &y[..info.output.bytes]);
    let leaves = of_view(&info.view_output(&input, x));
    let leaves = leaves.iter().filter(|leaf| !super::privacy::identifies(leaf));
    leaves
        .filter_map(|leaf| {
            let flag = leaf.field.width == 1;
            let (x, y) = (shown(&leaf.value(x), flag), shown(&leaf.value(y), flag));
            line(&format!("{command}: {}", leaf.path), &x, &y, docs::doc(leaf))
        })
        .collect()
}

impl fmt::Display for Diff {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "A: {}\nB: {}", plain(&self.names[0]), plain(&self.names[1]))?;
        if self.is_empty() {
            return writeln!(f, "No difference");
        }
        for (heading, lines) in &self.groups {
            writeln!(f, "\n{}", plain(heading))?;
            lines.iter().try_for_each(|line| writeln!(f, "  {line}"))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::report;

    fn write(report: &Report, name: &str) -> String {
        let file = std::env::temp_dir().join(format!("{name}-{}.json", std::process::id()));
        std::fs::write(&file, report.json().expect("a report is JSON"))
            .expect("the file can be written");
        file.display().to_string()
    }

    fn compared(one: &str, other: &str) -> String {
        diff(one, other).unwrap_or_else(|Stop(why)| panic!("{one} {other}: {why}")).to_string()
    }

    #[test]
    fn report_of_a_profile_equals_the_profile() {
        for profile in Profile::names() {
            for link in ["infiniband", "ethernet"] {
                let file = write(&report(profile, Some(link), false), "equal");
                let text = compared(&file, profile);
                let expected = format!("B: profile {profile} on {link}\nNo difference\n");
                assert!(text.ends_with(&expected), "{text}");
            }
        }
    }

    #[test]
    fn capabilities_differ_in_words() {
        let text = compared("connectx6dx", "connectx6vf");
        for line in [
            "A: profile connectx6dx on ethernet\nB: profile connectx6vf on infiniband\n",
            "\nPage general: capabilities of mlx5_0 (host)\n",
            "\n  atomic: yes in A, no in B  (Capability page 3 exists: RDMA atomics are",
            "\n  port_type: ETHERNET in A, INFINIBAND in B  (",
            "\nPage roce: capabilities of mlx5_0 (host)\n  A has the page, B does not\n",
            "\nPort 1 of mlx5_0 (host)\n  link layer: Ethernet in A, Infiniband in B\n",
        ] {
            assert!(text.contains(line), "{line:?}\n{text}");
        }
        // The maximum differs with the current value.
        assert_eq!(text.matches("\n  atomic: ").count(), 1, "{text}");
    }

    #[test]
    fn cases_differ_by_outcome() {
        let before = report("connectx6vf", None, false);
        let mut after = before.clone();
        after.cases[0].outcome = Ending::Failed;
        after.cases[0].reason = Some("hung\u{1b}[31m: no end".into());
        after.cases.remove(2);
        let text = compared(&write(&before, "before"), &write(&after, "after"));
        let changed =
            "Cases that passed in A and failed in B\n  qp::passes: hung\\u{1b}[31m: no end\n";
        assert!(text.contains(changed), "{text}");
        assert!(text.contains("Cases of one side\n  only in A: 1\n"), "{text}");
        assert!(!text.contains("Page"), "{text}");
    }

    #[test]
    fn case_that_a_report_has_twice_is_compared() {
        let once = report("connectx6vf", None, false);
        let mut twice = once.clone();
        twice.cases.extend(once.cases.clone());
        let text = compared(&write(&twice, "twice"), &write(&once, "once"));
        assert!(text.ends_with("No difference\n"), "{text}");
    }

    #[test]
    fn what_is_no_report_is_refused() {
        let Err(Stop(why)) = diff("connectx6vf", "/nonexistent") else {
            panic!("a missing file was compared")
        };
        assert!(why.contains("cannot read the report /nonexistent"), "{why}");
    }
}
