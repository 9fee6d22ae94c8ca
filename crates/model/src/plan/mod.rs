//! A fault plan for a model, from a file.
//!
//! docs/faults.md describes the file.

#[cfg(test)]
mod tests;
mod text;

use std::fmt;
use std::path::Path;
use std::time::Duration;

use nix::errno::Errno;
use toml::Spanned;
use toml::de::{DeTable, DeValue};
use verbless_prm::{BthOpcode, CommandInfo};

use self::text::{Entry, Item, Text, unknown};
use crate::engine::QueueKind;
use crate::fabric::{FrameEffect, FrameFault, FrameSelector, LinkSettings, Occurrence};
use crate::hca::Times;
use crate::ioctl::{ERRNOS, Ioctl};

/// A fault plan: settings of links, faults of frames, and commands, ioctls and queues that
/// fail.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FaultPlan {
    seed: Option<u64>,
    links: Vec<(Ports, LinkChange)>,
    faults: Vec<(Ports, FrameFault)>,
    commands: Vec<CommandFault>,
    ioctls: Vec<IoctlFault>,
    queues: Vec<QueueFault>,
}

/// The physical ports that an entry selects; `None`: all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Ports {
    /// The device that the entry is for; `None`: all.
    pub device: Option<usize>,
    /// The port's number, from 1; `None`: all.
    pub port: Option<u8>,
    /// The entry's line in the file.
    line: usize,
}

/// The settings of a link that an entry changes; the others stay as they are.
#[derive(Clone, Debug, Default, PartialEq)]
struct LinkChange {
    up: Option<bool>,
    latency: Option<Duration>,
    bandwidth: Option<u64>,
    partition: Option<u32>,
    loopback: Option<bool>,
}

/// A command that is to fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CommandFault {
    /// On this device.
    pub device: usize,
    /// The opcode of the command.
    pub opcode: u16,
    /// Which occurrences fail, counted from when the plan is applied.
    pub when: Times,
    /// The status of the failure.
    pub status: u8,
    /// The syndrome of the failure.
    pub syndrome: u32,
}

/// An ioctl that is to fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct IoctlFault {
    /// The device whose driver gets the ioctl.
    pub device: usize,
    /// Which ioctls count.
    pub ioctl: Ioctl,
    /// Which occurrences fail, counted from when the plan is applied.
    pub when: Times,
    /// The errno of the failure.
    pub errno: i32,
}

/// A queue that is to fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QueueFault {
    /// On this device.
    pub device: usize,
    /// The type of queue.
    pub kind: QueueKind,
    /// The QPN or CQN; `None`: any queue of the type.
    pub number: Option<u32>,
    /// At which requests or CQEs it fails, counted from when the plan is applied.
    pub when: Times,
}

/// Why a plan cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FaultPlanError {
    /// The line in the file, from 1.
    pub line: Option<usize>,
    /// The reason.
    pub text: String,
}

impl fmt::Display for FaultPlanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(line) = self.line {
            write!(f, "line {line}: ")?;
        }
        f.write_str(&self.text)
    }
}

impl std::error::Error for FaultPlanError {}

/// A QPN or a PSN.
const MAX_24_BITS: u64 = 0xff_ffff;
/// The sections of a plan.
const SECTIONS: [&str; 6] = ["seed", "link", "fault", "command", "ioctl", "queue"];

impl FaultPlan {
    /// Reads a plan from a file.
    ///
    /// # Errors
    /// The file cannot be read or parsed: the text says where and why.
    pub fn load(path: &Path) -> Result<Self, FaultPlanError> {
        let text = std::fs::read_to_string(path).map_err(|error| {
            let text = format!("cannot read the faults {}: {error}", path.display());
            FaultPlanError { line: None, text }
        })?;
        Self::parse(&text).map_err(|error| FaultPlanError {
            line: None,
            text: format!("{}: {error}", path.display()),
        })
    }

    /// Reads a plan.
    ///
    /// # Errors
    /// The text cannot be parsed: the error says where and why.
    pub fn parse(text: &str) -> Result<Self, FaultPlanError> {
        let tree = DeTable::parse(text).map_err(|error| FaultPlanError {
            line: None,
            text: error.to_string().trim_end().into(),
        })?;
        let text = Text(text);
        let mut plan = Self::default();
        for (key, value) in tree.into_inner() {
            let at = key.span();
            match (key.get_ref().as_ref(), value) {
                ("seed", value) => {
                    let mut keys = DeTable::new();
                    keys.insert(key, value);
                    let mut entry = Entry::new(text, "plan", at, keys);
                    plan.seed = Some(entry.require("seed")?.integer(0..=i64::MAX as u64)?);
                }
                ("link", value) => each(text, "link", value, |entry| plan.add_link(entry))?,
                ("fault", value) => each(text, "fault", value, |entry| plan.add_fault(entry))?,
                ("command", value) => {
                    each(text, "command", value, |entry| plan.add_command(entry))?;
                }
                ("ioctl", value) => each(text, "ioctl", value, |entry| plan.add_ioctl(entry))?,
                ("queue", value) => each(text, "queue", value, |entry| plan.add_queue(entry))?,
                (key, _) => return Err(text.error(&at, unknown("the file's", key, &SECTIONS))),
            }
        }
        Ok(plan)
    }

    fn add_link(&mut self, entry: &mut Entry<'_>) -> Result<(), FaultPlanError> {
        let ports = ports(entry)?;
        let change = LinkChange {
            up: entry.take("up").map(|it| it.boolean()).transpose()?,
            latency: entry.take("latency").map(|it| it.duration()).transpose()?,
            bandwidth: entry.take("bandwidth").map(|it| it.rate()).transpose()?,
            partition: integer(entry, "partition", 0..=u32::MAX.into())?.map(|it| it as u32),
            loopback: entry.take("loopback").map(|it| it.boolean()).transpose()?,
        };
        self.links.push((ports, change));
        Ok(())
    }

    fn add_fault(&mut self, entry: &mut Entry<'_>) -> Result<(), FaultPlanError> {
        let ports = ports(entry)?;
        let (by, bits) = (entry.take("by"), entry.take("bits"));
        let effect = entry.require("effect")?;
        let names = [("lose", 0), ("duplicate", 1), ("delay", 2), ("corrupt", 3)];
        let effect = match (effect.one_of(&names)?, &by, &bits) {
            (0, None, None) => FrameEffect::Lose,
            (1, None, None) => FrameEffect::Duplicate,
            (2, Some(by), None) => FrameEffect::Delay(by.duration()?),
            (2, None, None) => {
                return Err(entry.error("effect = \"delay\" needs `by`, for example by = \"50us\""));
            }
            (3, None, bits) => FrameEffect::Corrupt(match bits {
                Some(bits) => bits.integer(1..=64 * 1024 * 8)? as u32,
                None => 1,
            }),
            (2, _, Some(bits)) | (_, None, Some(bits)) => {
                return Err(bits.error("belongs to effect = \"corrupt\""));
            }
            (_, Some(by), _) => return Err(by.error("belongs to effect = \"delay\"")),
            (_, None, None) => return Err(effect.error("is not an effect")),
        };
        let directions = [("out", true), ("in", false)];
        let leaving = entry.take("direction").map(|it| it.one_of(&directions)).transpose()?;
        let qpn = integer(entry, "qpn", 0..=MAX_24_BITS)?.map(|it| it as u32);
        let opcodes = entry.take("opcode").map(opcodes).transpose()?.unwrap_or_default();
        let psns = entry.take("psn").map(psns).transpose()?;
        let fatal_nak = entry.take("fatal_nak").map(|it| it.boolean()).transpose()?;
        let when = occurrence(entry)?;
        let select = FrameSelector { leaving, qpn, opcodes, psns, fatal_nak };
        self.faults.push((ports, FrameFault { effect, select, when }));
        Ok(())
    }

    fn add_command(&mut self, entry: &mut Entry<'_>) -> Result<(), FaultPlanError> {
        let names = (0..=u16::MAX).filter_map(|opcode| {
            CommandInfo::by_opcode(opcode).map(|command| (command.name, u64::from(opcode)))
        });
        let device = device(entry)?;
        let opcode = entry.require("opcode")?;
        let opcode = opcode.number_or_name(u16::MAX.into(), names, "command")? as u16;
        let when = times(entry)?;
        let status = entry.require("status")?.integer(1..=u8::MAX.into())? as u8;
        let syndrome = integer(entry, "syndrome", 0..=u32::MAX.into())?.unwrap_or(0) as u32;
        self.commands.push(CommandFault { device, opcode, when, status, syndrome });
        Ok(())
    }

    fn add_ioctl(&mut self, entry: &mut Entry<'_>) -> Result<(), FaultPlanError> {
        let device = device(entry)?;
        let ioctl = entry.take("method").map(ioctl).transpose()?.unwrap_or(Ioctl::Any);
        let when = times(entry)?;
        let names: Vec<_> = ERRNOS
            .map(|errno| (format!("{:?}", Errno::from_raw(errno)), errno as u64))
            .filter(|it| it.0 != "UnknownErrno")
            .collect();
        let names = names.iter().map(|(name, errno)| (&**name, *errno));
        let errno = entry.require("errno")?;
        let number = errno.number_or_name(*ERRNOS.end() as u64, names, "errno")?;
        let errno =
            i32::try_from(number).ok().filter(|it| ERRNOS.contains(it)).ok_or_else(|| {
                errno.error("is not an errno: write \"ENOMEM\", or a number from 1 to 4095")
            })?;
        self.ioctls.push(IoctlFault { device, ioctl, when, errno });
        Ok(())
    }

    /// The effects of all faults of frames, one for each `[[fault]]`.
    pub fn frame_effects(&self) -> impl Iterator<Item = FrameEffect> {
        self.faults.iter().map(|(_, fault)| fault.effect)
    }

    /// The ioctls that are to fail.
    pub(crate) fn ioctls(&self) -> &[IoctlFault] {
        &self.ioctls
    }

    /// Whether the plan makes ioctls fail, which needs a modelled kernel.
    pub fn fails_ioctls(&self) -> bool {
        !self.ioctls.is_empty()
    }

    fn add_queue(&mut self, entry: &mut Entry<'_>) -> Result<(), FaultPlanError> {
        let device = device(entry)?;
        let kinds = [("qp", QueueKind::Qp), ("cq", QueueKind::Cq)];
        let kind = entry.require("kind")?.one_of(&kinds)?;
        let number = integer(entry, "number", 0..=MAX_24_BITS)?.map(|it| it as u32);
        let when = times(entry)?;
        self.queues.push(QueueFault { device, kind, number, when });
        Ok(())
    }

    /// The queues that are to fail.
    pub(crate) fn queues(&self) -> &[QueueFault] {
        &self.queues
    }

    /// The commands that are to fail.
    pub(crate) fn commands(&self) -> &[CommandFault] {
        &self.commands
    }

    /// The settings `before` of the link at port `port` of `devices`, with the plan's changes
    /// applied.
    pub(crate) fn settings(
        &self,
        before: &LinkSettings,
        devices: &[usize],
        port: u8,
    ) -> LinkSettings {
        let names = |ports: &Ports| {
            ports.device.is_none_or(|device| devices.contains(&device))
                && ports.port.is_none_or(|number| number == port)
        };
        let mut settings =
            LinkSettings { seed: self.seed.unwrap_or(before.seed), ..before.clone() };
        for (_, change) in self.links.iter().filter(|(ports, _)| names(ports)) {
            settings.up = change.up.unwrap_or(settings.up);
            settings.latency = change.latency.unwrap_or(settings.latency);
            settings.bandwidth = change.bandwidth.or(settings.bandwidth);
            settings.partition = change.partition.unwrap_or(settings.partition);
            settings.loopback = change.loopback.unwrap_or(settings.loopback);
        }
        let faults = self.faults.iter().filter(|(ports, _)| names(ports));
        settings.faults.extend(faults.map(|(_, fault)| fault.clone()));
        settings
    }

    /// Checks that the plan's devices and ports exist; `ports` has the number of ports of each
    /// device.
    ///
    /// # Errors
    /// An entry names a device or a port that does not exist.
    pub(crate) fn check(&self, ports: &[usize]) -> Result<(), FaultPlanError> {
        let devices = ports.len();
        let no_device = |device, line| {
            let text = format!("there is no device {device}: there are {devices}, numbered from 0");
            Err(FaultPlanError { line, text })
        };
        let entries = self.links.iter().map(|it| it.0).chain(self.faults.iter().map(|it| it.0));
        for Ports { device, port, line } in entries {
            if let Some(device) = device.filter(|&device| device >= devices) {
                return no_device(device, Some(line));
            }
            let matching =
                ports.iter().enumerate().filter(|(at, _)| device.is_none_or(|it| it == *at));
            let max = matching.map(|(_, &ports)| ports).max().unwrap_or(0);
            if let Some(port) = port.filter(|&port| usize::from(port) > max) {
                let text = format!("there is no port {port}: there are {max}, numbered from 1");
                return Err(FaultPlanError { line: Some(line), text });
            }
        }
        let commands = self.commands.iter().map(|it| it.device);
        let ioctls = self.ioctls.iter().map(|it| it.device);
        let all = commands.chain(ioctls).chain(self.queues.iter().map(|it| it.device));
        match all.into_iter().find(|&device| device >= devices) {
            Some(device) => no_device(device, None),
            None => Ok(()),
        }
    }
}

/// Reads the entries of a section.
fn each<'a>(
    text: Text<'a>,
    name: &'static str,
    value: Spanned<DeValue<'a>>,
    mut add: impl FnMut(&mut Entry<'a>) -> Result<(), FaultPlanError>,
) -> Result<(), FaultPlanError> {
    let at = value.span();
    let wrong = || text.error(&at, format!("{name} is a list of entries: write [[{name}]]"));
    let DeValue::Array(entries) = value.into_inner() else { return Err(wrong()) };
    for entry in entries {
        let at = entry.span();
        let DeValue::Table(keys) = entry.into_inner() else { return Err(wrong()) };
        let mut entry = Entry::new(text, name, at, keys);
        add(&mut entry)?;
        entry.end()?;
    }
    Ok(())
}

fn integer(
    entry: &mut Entry<'_>,
    key: &'static str,
    range: std::ops::RangeInclusive<u64>,
) -> Result<Option<u64>, FaultPlanError> {
    entry.take(key).map(|item| item.integer(range)).transpose()
}

/// The device that an entry names; 0 by default.
fn device(entry: &mut Entry<'_>) -> Result<usize, FaultPlanError> {
    Ok(integer(entry, "device", 0..=u64::from(u16::MAX))?.unwrap_or(0) as usize)
}

fn ports(entry: &mut Entry<'_>) -> Result<Ports, FaultPlanError> {
    Ok(Ports {
        device: integer(entry, "device", 0..=u64::from(u16::MAX))?.map(|it| it as usize),
        port: integer(entry, "port", 1..=u64::from(u8::MAX))?.map(|it| it as u8),
        line: entry.error("").line.unwrap_or(0),
    })
}

fn opcodes(item: Item<'_>) -> Result<Vec<u8>, FaultPlanError> {
    let names = || BthOpcode::INFO.values.iter().copied();
    let each = item.each();
    each.iter()
        .map(|item| item.number_or_name(0xff, names(), "opcode of packets").map(|it| it as u8))
        .collect()
}

/// The name of a method, or its ids.
fn ioctl(item: Item<'_>) -> Result<Ioctl, FaultPlanError> {
    let wrong = item.error(
        "is neither the name of an ioctl, as `run --trace` prints it, nor the ids of object and \
         method: method = \"CQ_CREATE\" or method = [0x1001, 0x1000]",
    );
    let items = item.each();
    match &items[..] {
        [name] => name.string().ok().and_then(Ioctl::named).ok_or(wrong),
        [object, method] => {
            let [object, method] = [object, method].map(|it| it.integer(0..=u16::MAX.into()));
            Ok(Ioctl::Method { object: object? as u16, method: method? as u16 })
        }
        _ => Err(wrong),
    }
}

fn psns(item: Item<'_>) -> Result<(u32, u32), FaultPlanError> {
    let wrong = item.error("is a PSN or two, the first and the last: psn = [0, 99]");
    let all: Result<Vec<u64>, _> =
        item.each().iter().map(|item| item.integer(0..=MAX_24_BITS)).collect();
    match all?[..] {
        [only] => Ok((only as u32, only as u32)),
        [first, last] => Ok((first as u32, last as u32)),
        _ => Err(wrong),
    }
}

/// The occurrences of a command, an ioctl or a queue's work that fail: `nth`, and `count` or
/// `always`.
fn times(entry: &mut Entry<'_>) -> Result<Times, FaultPlanError> {
    let nth = integer(entry, "nth", 1..=u32::MAX.into())?.unwrap_or(1) as u32;
    let count = integer(entry, "count", 1..=u32::MAX.into())?;
    let always = entry.take("always");
    let times = Times::from(nth);
    match (always.map(|it| Ok::<_, FaultPlanError>((it.boolean()?, it))).transpose()?, count) {
        (Some((true, item)), Some(_)) => Err(item.error("does not go with count: choose")),
        (Some((true, _)), None) => Ok(times.always()),
        (_, count) => Ok(times.count(count.unwrap_or(1) as u32)),
    }
}

fn occurrence(entry: &mut Entry<'_>) -> Result<Occurrence, FaultPlanError> {
    let chance = entry.take("chance");
    let nth = integer(entry, "nth", 1..=i64::MAX as u64)?;
    let count = integer(entry, "count", 1..=i64::MAX as u64)?;
    match (chance, nth, count) {
        (Some(chance), None, None) => Ok(Occurrence::Chance(chance.probability()?)),
        (Some(chance), ..) => Err(chance.error("does not go with nth and count: choose")),
        (None, None, None) => Ok(Occurrence::Chance(1.0)),
        (None, nth, count) => {
            Ok(Occurrence::Nth { skip: nth.unwrap_or(1) - 1, count: count.unwrap_or(1) })
        }
    }
}
