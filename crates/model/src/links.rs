//! Control of a model's links: their settings, counters, captures and faults.

use std::io::Write;

use crate::engine;
use crate::fabric::{Capture, LinkSettings, PhysicalPort, Traffic, Vport};
use crate::guard::Watch;
use crate::locked::LockedFunctions;
use crate::model::Model;
#[cfg(feature = "toml")]
use crate::plan::{FaultPlan, FaultPlanError, IoctlFault, QueueFault};
use crate::watch::SeenFrame;

impl Model {
    /// The settings of the link of a port (numbered from 1) of device `device`. The functions of
    /// one card, such as the two sides of a DPU, share the links of its ports.
    ///
    /// # Panics
    /// When there is no such device, or it has no such port.
    pub fn link(&self, device: usize, port: u8) -> LinkSettings {
        let at = self.port(device, port);
        self.shared.common.fabric.lock().link(at).clone()
    }

    /// Changes the link of a port. While any link of the model has a latency, a bandwidth, a
    /// partition or a fault, all messages travel in packets of the path MTU. Packets take the time
    /// of the links that they cross, and the transport retransmits after a fault loses one, as on
    /// hardware. When a link goes up or down, each function that shares it gets an event.
    ///
    /// ```
    /// # use verbless_model::{Model, Profile};
    /// # fn main() -> Result<(), verbless_model::ProfileError> {
    /// use std::time::Duration;
    /// use verbless_model::{FrameEffect, FrameFault, FrameSelector, LinkSettings, Occurrence};
    ///
    /// let model = Model::builder().device(Profile::load("connectx6dx")?).stepped().build();
    /// // One frame in a hundred is lost, the same ones in every run.
    /// let lose = FrameFault {
    ///     effect: FrameEffect::Lose,
    ///     select: FrameSelector::default(),
    ///     when: Occurrence::Chance(0.01),
    /// };
    /// model.set_link(0, 1, LinkSettings {
    ///     latency: Duration::from_micros(2),
    ///     bandwidth: Some(25_000_000_000),
    ///     faults: vec![lose],
    ///     seed: 7,
    ///     ..model.link(0, 1)
    /// });
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Panics
    /// When there is no such device, or it has no such port.
    pub fn set_link(&self, device: usize, port: u8, settings: LinkSettings) {
        let at = self.port(device, port);
        self.shared.with(|locked| set_link(locked, at, settings));
    }

    /// Counts of the frames that the card sent over the link of a port, and of those that it
    /// received there. Messages of connections that are carried whole are not frames; datagrams
    /// are.
    ///
    /// # Panics
    /// When there is no such device, or it has no such port.
    pub fn traffic(&self, device: usize, port: u8) -> [Traffic; 2] {
        let at = self.port(device, port);
        self.shared.common.fabric.lock().traffic(at)
    }

    /// Counts of the frames that stayed in the card of a port: from one function to another, or to
    /// itself. Faults apply to them if the link's settings say so by
    /// [`loopback`](LinkSettings::loopback).
    ///
    /// # Panics
    /// When there is no such device, or it has no such port.
    pub fn traffic_inside(&self, device: usize, port: u8) -> Traffic {
        let at = self.port(device, port);
        self.shared.common.fabric.lock().traffic_inside(at)
    }

    /// Sends a frame of arbitrary bytes from the card of a port.
    ///
    /// # Panics
    /// When there is no such device, or it has no such port.
    #[cfg(fuzzing)]
    pub fn fuzz_frame(&self, device: usize, port: u8, frame: &[u8]) {
        let at = self.port(device, port);
        self.shared.with(|locked| {
            let now = locked.clock.now;
            locked.fabric().lock().receive_external(now, at, frame);
        });
    }

    /// The fabric's port for port `port` of device `device`. An invalid number is the caller's
    /// mistake, and this panics with nothing locked.
    fn port(&self, device: usize, port: u8) -> PhysicalPort {
        let ports = self.ports(device);
        let found =
            self.shared.common.fabric.lock().physical_port(Vport { function: device, port });
        found.unwrap_or_else(|| {
            panic!("there is no port {port}: device {device} has {ports}, numbered from 1")
        })
    }

    /// Applies a fault plan: changes links, adds faults of frames, and makes commands, ioctls and
    /// queues fail.
    ///
    /// # Errors
    /// The plan names a device or port that does not exist; nothing is changed then.
    #[cfg(feature = "toml")]
    pub fn apply(&self, plan: &FaultPlan) -> Result<(), FaultPlanError> {
        let ports: Vec<usize> = (0..self.devices()).map(|device| self.ports(device)).collect();
        plan.check(&ports)?;
        self.shared.with(|locked| {
            let ports = locked.fabric().lock().ports();
            for at in ports {
                let (vports, link) = {
                    let fabric = locked.fabric().lock();
                    (fabric.vports(at), fabric.link(at).clone())
                };
                let Some(&Vport { port, .. }) = vports.first() else { continue };
                let devices: Vec<usize> = vports.iter().map(|it| it.function).collect();
                set_link(locked, at, plan.settings(&link, &devices, port));
            }
            for fault in plan.commands() {
                let faults = &mut locked.functions[fault.device].hca.faults;
                faults.add(fault.opcode, fault.when, (fault.status, fault.syndrome));
            }
            for IoctlFault { device, ioctl, when, errno } in plan.ioctls().iter().copied() {
                locked.functions[device].hca.ioctl_faults.add(ioctl, when, errno);
            }
            for QueueFault { device, kind, number, when } in plan.queues().iter().copied() {
                locked.functions[device].engine.faults.fail_queue(kind, number, when);
            }
        });
        Ok(())
    }

    /// Calls `watcher` for every frame that a port sends or receives, until the guard is dropped. A
    /// watcher may call the model. While a watcher exists, all messages travel in packets.
    ///
    /// A stepped model calls it before [`Model::step`] returns. In threaded mode a thread calls it
    /// soon after, and the data path does not wait for a slow watcher: when 16 MiB wait for it, it
    /// misses further frames, and the log says how many.
    pub fn watch_frames(&self, watcher: impl FnMut(&SeenFrame) + Send + 'static) -> Watch {
        Watch::frames(&self.shared, watcher)
    }

    /// Writes every frame that a port sends or receives to `sink` in the format pcapng, which
    /// Wireshark reads, until the guard is dropped. Times are those of the model's clock.
    ///
    /// In threaded mode the data path waits for `sink`, which must not wait for the model: when
    /// nothing is written for five seconds, frames that do not fit into 16 MiB are dropped until a
    /// write succeeds. [`Watch::end`] counts these frames and those that cannot be written; the
    /// capture's last blocks count the dropped frames (`isb_ifdrop`).
    ///
    /// # Errors
    /// The header of the capture cannot be written.
    ///
    /// ```
    /// # use verbless_model::{Model, Profile};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let name = format!("verbless-doc-{}.pcapng", std::process::id());
    /// # let path = std::env::temp_dir().join(name);
    /// let model = Model::builder().device(Profile::load("connectx6dx")?).stepped().build();
    /// let capture = model.capture(std::fs::File::create(&path)?)?;
    /// // … after the program under test has posted:
    /// model.run_until_idle();
    /// drop(capture);
    /// # std::fs::remove_file(path)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn capture(&self, sink: impl Write + Send + 'static) -> std::io::Result<Watch> {
        let unseen = self.shared.common.outbox.unseen.clone();
        let mut capture = Capture::new(sink, unseen)?;
        let failed = capture.failed.clone();
        Ok(Watch::capture(&self.shared, failed, move |frame| capture.frame(frame)))
    }
}

/// Changes a link, and notifies the functions that share it.
fn set_link(locked: &mut LockedFunctions, at: PhysicalPort, settings: LinkSettings) {
    let (before, up, vports) = {
        let mut fabric = locked.fabric().lock();
        let (before, up) = (fabric.link(at).up, settings.up);
        fabric.set_link(at, settings);
        (before, up, fabric.vports(at))
    };
    if before != up {
        for Vport { function, port } in vports {
            engine::set_port(locked, function, port, up);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::time::Duration;

    use super::*;
    use crate::{Model, Profile};

    fn model() -> Model {
        let profile = |name| Profile::load(name).unwrap();
        Model::builder()
            .device(profile("connectx6dx"))
            .device_with_sides(profile("bluefield3"))
            .stepped()
            .build()
    }

    fn slow() -> LinkSettings {
        LinkSettings { latency: Duration::from_micros(3), ..LinkSettings::default() }
    }

    #[test]
    fn card_sides_share_the_link_of_their_port() {
        let model = model();
        model.set_link(2, 1, slow());
        assert_eq!(model.link(1, 1), slow());
        assert_eq!(model.link(0, 1), LinkSettings::default());
        assert_eq!(model.traffic(1, 1), [Traffic::default(); 2]);
    }

    #[test]
    fn link_down_takes_function_ports_down() {
        let model = model();
        let up = || [0, 1, 2].map(|id| model.shared.peek(id, |function| function.hca.is_up(1)));
        model.set_link(1, 1, LinkSettings { up: false, ..slow() });
        assert_eq!(up(), [true, false, false]);
        model.set_link(2, 1, slow());
        assert_eq!(up(), [true; 3]);
        // A port that its administrator took down stays down when only the link changes.
        model.set_port(1, 1, false);
        model.set_link(1, 1, LinkSettings::default());
        assert_eq!(up(), [true, false, true]);
    }

    #[test]
    fn plan_is_applied_atomically() {
        let model = model();
        let wrong = "[[link]]\nlatency = \"3us\"\n[[link]]\ndevice = 3\nup = false";
        let error = model.apply(&FaultPlan::parse(wrong).unwrap()).unwrap_err();
        assert_eq!(error.to_string(), "line 3: there is no device 3: there are 3, numbered from 0");
        assert_eq!(model.link(0, 1), LinkSettings::default());
        let plan = "[[link]]\ndevice = 2\nlatency = \"3us\"\n[[command]]\nopcode = 0x104\n\
            status = 0x0f\nsyndrome = 0x77";
        model.apply(&FaultPlan::parse(plan).unwrap()).unwrap();
        assert_eq!(model.link(1, 1), slow());
        let (mut input, mut output) = ([0; 16], [0; 16]);
        input[..2].copy_from_slice(&[1, 4]);
        model.device(0).execute(&input, &mut output);
        assert_eq!(output[..8], [0x0f, 0, 0, 0, 0, 0, 0, 0x77]);
    }

    #[test]
    fn later_plan_keeps_state_of_earlier_faults() {
        let model = model();
        let apply = |text| model.apply(&FaultPlan::parse(text).unwrap()).unwrap();
        let lost = || {
            let (to, at) = ([0xff; 6], PhysicalPort::default());
            let frame = [&to[..], &[2, 0, 0, 0, 0, 9], &[0x88, 0xb5], &[0; 46]].concat();
            let mut fabric = model.shared.common.fabric.lock();
            fabric.receive_external(0, at, &frame);
            fabric.traffic(at)[0].lost
        };
        apply("seed = 7\n[[fault]]\nnth = 1\neffect = \"lose\"");
        assert_eq!((lost(), lost()), (1, 1), "the first frame is lost, and no other");
        for more in
            ["[[command]]\nopcode = 0x104\nstatus = 0x0f", "[[fault]]\nnth = 9\neffect = \"lose\""]
        {
            apply(more);
            assert_eq!((model.link(0, 1).seed, lost()), (7, 1), "{more}");
        }
        apply("seed = 8");
        assert_eq!(lost(), 2, "a new seed restarts all faults");
    }

    #[test]
    fn wrong_device_or_port_is_rejected() {
        let model = model();
        type Mistake = fn(&Model);
        let mistakes: [(&str, Mistake); 4] = [
            ("device 3", |model| drop(model.link(3, 1))),
            ("port 0", |model| drop(model.link(0, 0))),
            ("port 9", |model| model.set_link(0, 9, LinkSettings::default())),
            ("port 2", |model| assert!(model.traffic(1, 2).is_empty())),
        ];
        for (named, mistake) in mistakes {
            let panic = catch_unwind(AssertUnwindSafe(|| mistake(&model))).expect_err(named);
            let text = panic.downcast_ref::<String>().expect("a message");
            assert!(text.contains(named) && text.contains("from "), "{text}");
        }
        assert!(model.device(0).is_alive());
    }
}
