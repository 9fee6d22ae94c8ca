//! Requests of `verbless-model ctl` to a run: show links, inject faults.

use std::fmt::Write as _;

use verbless_model::{FaultPlan, LinkSettings, Model, QueueKind, Traffic};

/// A control request to a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Control {
    /// Print the links' state and traffic.
    Show,
    /// Set the link of a port up or down.
    Link {
        /// The device, from 0.
        device: usize,
        /// The device's port, from 1.
        port: u8,
        /// Whether the link goes up.
        up: bool,
    },
    /// Restore all links to perfect.
    Reset,
    /// Apply a fault plan, given as its text.
    Apply(String),
    /// Make a queue fail.
    Fail {
        /// The device, from 0.
        device: usize,
        /// The type of queue.
        kind: QueueKind,
        /// The QPN or CQN.
        number: u32,
    },
    /// Put a device into a fatal error.
    Kill(usize),
    /// Remove a device, as by hot-unplug.
    Remove(usize),
}

impl Control {
    /// The request as sent over the socket.
    pub(super) fn to_text(&self) -> String {
        match self {
            Self::Show => "show".into(),
            Self::Link { device, port, up: true } => format!("up {device} {port}"),
            Self::Link { device, port, up: false } => format!("down {device} {port}"),
            Self::Reset => "reset".into(),
            Self::Apply(plan) => format!("apply {plan}"),
            Self::Fail { device, kind: QueueKind::Qp, number } => {
                format!("fail-qp {device} {number}")
            }
            Self::Fail { device, kind: QueueKind::Cq, number } => {
                format!("fail-cq {device} {number}")
            }
            Self::Kill(device) => format!("kill {device}"),
            Self::Remove(device) => format!("remove {device}"),
        }
    }

    /// Parses a request; `None`: malformed.
    pub(super) fn of_text(text: &str) -> Option<Self> {
        let (verb, rest) = text.split_once(' ').unwrap_or((text, ""));
        let link = |up| {
            let (device, port) = rest.split_once(' ')?;
            Some(Self::Link { device: device.parse().ok()?, port: port.parse().ok()?, up })
        };
        let fail = |kind| {
            let (device, number) = rest.split_once(' ')?;
            Some(Self::Fail { device: device.parse().ok()?, kind, number: number.parse().ok()? })
        };
        match verb {
            "show" if rest.is_empty() => Some(Self::Show),
            "reset" if rest.is_empty() => Some(Self::Reset),
            "up" => link(true),
            "down" => link(false),
            "apply" => Some(Self::Apply(rest.into())),
            "fail-qp" => fail(QueueKind::Qp),
            "fail-cq" => fail(QueueKind::Cq),
            "kill" => Some(Self::Kill(rest.parse().ok()?)),
            "remove" => Some(Self::Remove(rest.parse().ok()?)),
            _ => None,
        }
    }

    /// Executes the request; returns the text to print.
    pub(crate) fn execute(&self, model: &Model) -> Result<String, String> {
        match self {
            Self::Show => return Ok(show(model)),
            Self::Link { device, port, up } => {
                check_device(model, *device)?;
                let ports = ports(model, *device);
                if !(1..=ports).contains(port) {
                    return Err(format!(
                        "there is no port {port}: device {device} has {ports}, numbered from 1"
                    ));
                }
                let settings = LinkSettings { up: *up, ..model.link(*device, *port) };
                model.set_link(*device, *port, settings);
            }
            Self::Reset => {
                for device in 0..model.devices() {
                    for port in 1..=ports(model, device) {
                        model.set_link(device, port, LinkSettings::default());
                    }
                }
            }
            Self::Apply(plan) => {
                let plan = FaultPlan::parse(plan).map_err(|error| error.to_string())?;
                model.apply(&plan).map_err(|error| error.to_string())?;
            }
            Self::Fail { device, kind, number } => {
                check_device(model, *device)?;
                if !model.fail_queue(*device, *kind, *number) {
                    return Err(match kind {
                        QueueKind::Qp => format!(
                            "device {device} has no QP {number:#x} that can fail: there must be \
                             one, neither in RESET nor in ERR"
                        ),
                        QueueKind::Cq => format!(
                            "device {device} has no CQ {number:#x} that can fail: there must be \
                             one that has not failed yet"
                        ),
                    });
                }
            }
            Self::Kill(device) => {
                check_device(model, *device)?;
                model.kill(*device);
            }
            Self::Remove(device) => {
                check_device(model, *device)?;
                model.remove(*device);
            }
        }
        Ok(String::new())
    }
}

fn check_device(model: &Model, device: usize) -> Result<(), String> {
    let devices = model.devices();
    let none = || format!("there is no device {device}: there are {devices}, numbered from 0");
    (device < devices).then_some(()).ok_or_else(none)
}

fn ports(model: &Model, device: usize) -> u8 {
    let device = model.device(device);
    (1..=u8::MAX).take_while(|&port| device.port(port.into()).is_some()).count() as u8
}

/// A line for each port of each device.
fn show(model: &Model) -> String {
    let mut text = String::new();
    for device in 0..model.devices() {
        let alive = if model.device(device).is_alive() { "" } else { ", dead" };
        let side = model.side(device);
        for port in 1..=ports(model, device) {
            let LinkSettings { up, latency, bandwidth, partition, faults, .. } =
                model.link(device, port);
            let up = if up { "up" } else { "down" };
            let _ = write!(text, "device {device} ({side:?}{alive}) port {port}: {up}");
            if !latency.is_zero() {
                let _ = write!(text, ", latency {latency:?}");
            }
            if let Some(bandwidth) = bandwidth {
                let _ = write!(text, ", {bandwidth} b/s");
            }
            if partition != 0 {
                let _ = write!(text, ", partition {partition}");
            }
            if !faults.is_empty() {
                let _ = write!(text, ", {} faults", faults.len());
            }
            let [out, into] = model.traffic(device, port).map(|it| traffic(&it));
            let _ = write!(text, "; out {out}; in {into}");
            let inside = model.traffic_inside(device, port);
            if inside.frames > 0 {
                let _ = write!(text, "; inside the card {}", traffic(&inside));
            }
            text.push('\n');
        }
    }
    text
}

fn traffic(of: &Traffic) -> String {
    let mut text = format!("{} frames of {} bytes", of.frames, of.bytes);
    for (count, what) in [
        (of.lost, "lost"),
        (of.duplicated, "duplicated"),
        (of.delayed, "delayed"),
        (of.corrupted, "corrupted"),
        (of.overflowed, "overflowed"),
        (of.down, "while down"),
    ] {
        if count > 0 {
            let _ = write!(text, ", {count} {what}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use verbless_model::Profile;

    use super::*;

    fn model() -> Model {
        let profile = Profile::load("bluefield3").unwrap();
        Model::builder().device_with_sides(profile).stepped().build()
    }

    #[test]
    fn control_text_round_trips() {
        let all = [
            Control::Show,
            Control::Link { device: 3, port: 1, up: true },
            Control::Link { device: 0, port: 2, up: false },
            Control::Reset,
            Control::Apply("[[link]]\nup = false".into()),
            Control::Fail { device: 1, kind: QueueKind::Qp, number: 0x45 },
            Control::Fail { device: 0, kind: QueueKind::Cq, number: 7 },
            Control::Kill(1),
            Control::Remove(0),
        ];
        for control in all {
            assert_eq!(Control::of_text(&control.to_text()), Some(control));
        }
        for text in [
            "",
            "show me",
            "up",
            "up 1",
            "up 1 999",
            "down -1 1",
            "kill",
            "kill x",
            "fail-qp 1",
            "go",
        ] {
            assert_eq!(Control::of_text(text), None, "{text}");
        }
    }

    #[test]
    fn control_sets_links_and_kills_devices() {
        let model = model();
        let execute = |control: Control| control.execute(&model);
        execute(Control::Link { device: 1, port: 1, up: false }).unwrap();
        assert!(!model.link(0, 1).up, "both sides share it");
        let plan = "[[link]]\nlatency = \"5us\"\nbandwidth = \"1Gb/s\"\npartition = 2\n\
            [[fault]]\neffect = \"lose\"";
        execute(Control::Apply(plan.into())).unwrap();
        execute(Control::Kill(1)).unwrap();
        let expected = "device 0 (Host) port 1: down, latency 5µs, 1000000000 b/s, partition 2, \
            1 faults; out 0 frames of 0 bytes; in 0 frames of 0 bytes\n\
            device 1 (Dpu, dead) port 1: down, latency 5µs, 1000000000 b/s, partition 2, \
            1 faults; out 0 frames of 0 bytes; in 0 frames of 0 bytes\n";
        assert_eq!(execute(Control::Show).unwrap(), expected);
        execute(Control::Reset).unwrap();
        assert_eq!(model.link(0, 1), LinkSettings::default());
    }

    #[test]
    fn traffic_text_omits_zero_counters() {
        let none = Traffic { frames: 3, bytes: 200, ..Traffic::default() };
        assert_eq!(traffic(&none), "3 frames of 200 bytes");
        let all = Traffic {
            frames: 30,
            bytes: 2000,
            lost: 1,
            duplicated: 2,
            delayed: 3,
            corrupted: 4,
            overflowed: 5,
            down: 6,
        };
        assert_eq!(
            traffic(&all),
            "30 frames of 2000 bytes, 1 lost, 2 duplicated, 3 delayed, 4 corrupted, 5 overflowed, \
             6 while down"
        );
    }

    #[test]
    fn control_rejects_absent_targets() {
        let model = model();
        let no_device = "there is no device 2: there are 2, numbered from 0";
        let cases = [
            (Control::Kill(2), no_device),
            (Control::Remove(2), no_device),
            (Control::Link { device: 2, port: 1, up: false }, no_device),
            (
                Control::Link { device: 0, port: 2, up: false },
                "there is no port 2: device 0 has 1, numbered from 1",
            ),
            (
                Control::Fail { device: 0, kind: QueueKind::Qp, number: 0x45 },
                "device 0 has no QP 0x45 that can fail: there must be one, neither in RESET",
            ),
            (
                Control::Fail { device: 1, kind: QueueKind::Cq, number: 9 },
                "device 1 has no CQ 0x9 that can fail: there must be one that has not failed yet",
            ),
            (Control::Apply("x = 1".into()), "line 1: the file's x: there is no such key"),
        ];
        for (control, expected) in cases {
            let error = control.execute(&model).unwrap_err();
            assert!(error.starts_with(expected), "{error}");
        }
        assert!(model.device(0).is_alive());
    }
}
