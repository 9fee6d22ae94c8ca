//! The links of the chain, what a check of one finds, and the checks in order.

use std::fmt;
use std::time::Instant;

use serde::Serialize;

/// A link of the chain, in the order in which they are checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Link {
    /// The kernel's release.
    Kernel,
    /// Its modules: mlx5_core, mlx5_ib, ib_uverbs.
    Driver,
    /// A device that they drive.
    Device,
    /// The device's node.
    Node,
    /// The right to open the node.
    Permission,
    /// A context with DevX.
    Devx,
    /// The limit of locked memory.
    Memlock,
    /// The firmware answers.
    Firmware,
    /// The first port is ACTIVE.
    Port,
    /// A protection domain.
    Pd,
    /// A memory region of 4 KiB.
    SmallMr,
    /// A memory region of 64 MiB of scattered pages.
    LargeMr,
    /// A completion queue.
    Cq,
    /// A queue pair.
    Qp,
    /// A message to itself through the port.
    Message,
    /// A completion event.
    Event,
}

impl fmt::Display for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Kernel => "kernel",
            Self::Driver => "driver",
            Self::Device => "device",
            Self::Node => "node",
            Self::Permission => "permission",
            Self::Devx => "DevX",
            Self::Memlock => "memlock",
            Self::Firmware => "firmware",
            Self::Port => "port",
            Self::Pd => "PD",
            Self::SmallMr => "MR of 4 KiB",
            Self::LargeMr => "MR of 64 MiB",
            Self::Cq => "CQ",
            Self::Qp => "QP",
            Self::Message => "message",
            Self::Event => "event",
        })
    }
}

/// What a check found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase", tag = "finding", content = "text")]
pub enum Finding {
    /// The link holds: the facts.
    Holds(String),
    /// It holds with a restriction: what, what it costs, what lifts it.
    Limited(String),
    /// It fails: what, why, what to do.
    Fails(String),
}

impl Finding {
    pub(super) fn text(&self) -> &str {
        let (Self::Holds(text) | Self::Limited(text) | Self::Fails(text)) = self;
        text
    }
}

/// One check of the chain.
#[derive(Debug, Clone, Serialize)]
pub struct Check {
    /// The link that was checked.
    pub link: Link,
    /// What was found.
    #[serde(flatten)]
    pub finding: Finding,
    /// Wall-clock seconds that it took.
    pub seconds: f64,
}

/// The checks, up to the first that fails.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Chain {
    /// The checks, in order.
    pub checks: Vec<Check>,
}

/// The chain has ended, because a link failed.
pub(super) struct Broken;

impl Chain {
    /// Checks one link.
    pub(super) fn check(
        &mut self,
        link: Link,
        check: impl FnOnce() -> Finding,
    ) -> Result<(), Broken> {
        let start = Instant::now();
        let finding = check();
        let fails = matches!(finding, Finding::Fails(_));
        self.checks.push(Check { link, finding, seconds: start.elapsed().as_secs_f64() });
        if fails { Err(Broken) } else { Ok(()) }
    }

    /// Checks one link that makes something for the next ones; the error says why it fails.
    pub(super) fn make<T>(
        &mut self,
        link: Link,
        make: impl FnOnce() -> Result<(T, Finding), String>,
    ) -> Result<T, Broken> {
        let mut made = None;
        let checked = self.check(link, || match make() {
            Ok((value, finding)) => {
                made = Some(value);
                finding
            }
            Err(why) => Finding::Fails(why),
        });
        checked.and(made.ok_or(Broken))
    }

    /// The link that failed, and the sentence about it.
    pub fn failure(&self) -> Option<(Link, &str)> {
        let last = self.checks.last()?;
        matches!(last.finding, Finding::Fails(_)).then(|| (last.link, last.finding.text()))
    }

    /// One line: that every link holds, or which one fails and why.
    pub fn verdict(&self) -> String {
        let seconds: f64 = self.checks.iter().map(|check| check.seconds).sum();
        match self.failure() {
            Some((link, why)) => format!("Doctor: {link} fails: {why}"),
            None => format!("Doctor: all {} links hold ({seconds:.2} s)", self.checks.len()),
        }
    }

    /// The verdict, and below it a line for each restriction.
    pub fn brief(&self) -> String {
        let limited = self.checks.iter().filter_map(|check| match &check.finding {
            Finding::Limited(text) => Some(format!("\n  {}: {text}", check.link)),
            _ => None,
        });
        self.verdict() + &limited.collect::<String>()
    }

    /// The checks as a table.
    pub fn table(&self) -> String {
        let row = |check: &Check| {
            let verdict = match check.finding {
                Finding::Holds(_) => "ok",
                Finding::Limited(_) => "note",
                Finding::Fails(_) => "FAIL",
            };
            let (link, text) = (check.link, check.finding.text());
            format!("{verdict:<4}  {link:<12}  {text}\n")
        };
        self.checks.iter().map(row).collect()
    }

    /// The chain as JSON: whether all links hold, and the checks.
    pub fn json(&self) -> serde_json::Result<String> {
        #[derive(Serialize)]
        struct Whole<'a> {
            holds: bool,
            #[serde(flatten)]
            chain: &'a Chain,
        }
        let holds = self.failure().is_none();
        serde_json::to_string_pretty(&Whole { holds, chain: self })
    }
}
