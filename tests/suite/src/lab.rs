//! The environment of the cases: the model with two devices on one fabric, or a device behind a
//! kernel, with or without a peer.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use nix::sys::resource::{Resource, getrlimit};
use verbless_command::{Device, KeyAccess};
use verbless_devx::abi::core::port_state;
use verbless_devx::{Backend, DeviceInfo, ErrorKind, Kernel, LinkLayer, PortInfo};
use verbless_model::{FaultPlan, Link, Model, ObjectCounts, Profile, Side};
use verbless_model_kernel::{InProcess, KernelRelease, SystemPage};
use verbless_queue::{CqConfig, Domain, QpConfig};

use crate::doctor::{self, Blockage};
use crate::failed_commands::{FailedCommands, FailureBackend};
use crate::fault_counts::FaultCounts;
use crate::need::{CAP_IPC_LOCK, CAP_NET_RAW, Facts, privilege};
use crate::recording::recorder::RecordingBackend;
use crate::recording::writer::{Recording, Section};
use crate::{Need, Stop};

/// The user's choice of environment; by default the model of a ConnectX-6 Dx.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    /// `auto`, `model`, or a device's name.
    pub device: String,
    /// The device that it talks to: `auto`, `none` (its port loops back), or a device's name.
    pub peer: String,
    /// Profile of the model: a name or a TOML file.
    pub profile: String,
    /// `infiniband` or `ethernet`, if not the profile's own.
    pub link: Option<String>,
    /// The owners of the model's devices: `hosts`, `host-and-dpu` or `dpus`; by default a host and
    /// its DPU if the profile has both, otherwise hosts.
    pub between: Option<String>,
    /// Packet mode: the model's messages travel as packets. By default they are carried whole.
    pub packets: bool,
    /// Each case runs twice, with messages carried whole and in packets; the CQEs and data of its
    /// queues are compared.
    pub both_ways: bool,
    /// The Linux release that the model's kernel is like, if not the newest.
    pub model_kernel: Option<KernelRelease>,
    /// The size of its pages, if not that of this process.
    pub model_pages: Option<SystemPage>,
    /// A fault plan for the model's links.
    pub faults: Option<std::path::PathBuf>,
    /// Whether a hardware run may change more than its own objects.
    pub destructive: bool,
    /// Whether cases that repeat something run for minutes.
    pub long: bool,
}

impl Default for Choice {
    fn default() -> Self {
        Self {
            device: "model".into(),
            peer: "auto".into(),
            profile: "connectx6dx".into(),
            link: None,
            between: None,
            packets: false,
            both_ways: false,
            model_kernel: None,
            model_pages: None,
            faults: None,
            destructive: false,
            long: false,
        }
    }
}

/// Queue pairs that [`Lab::check`] makes at once, each with a CQ.
const CHECK_QUEUES: usize = 8;
/// Bytes that [`Lab::check`] registers, in a region as most cases have it.
const CHECK_BYTES: usize = 1 << 18;

/// The devices and facts that a case uses.
pub struct Lab {
    choice: Choice,
    profile: Option<Profile>,
    backend: Arc<dyn Backend>,
    /// The last failed commands, in the lab of one case.
    failed: FailedCommands,
    /// The recording that the cases are part of.
    recording: Option<Arc<Recording>>,
    /// The link of the doctor's chain that failed: the cases that need it are blocked.
    blockage: Option<Blockage>,
    /// The model, if the lab is one: cases inspect it and break it.
    model: Option<Model>,
    devices: Vec<DeviceInfo>,
    /// Effects of the model's faults on frames, if it has any; all labs of a run share them.
    fault_counts: Option<Arc<FaultCounts>>,
    /// The number of objects of each device of the model when it was built.
    before: Option<Vec<ObjectCounts>>,
    /// Why the lab is the model although the user did not ask for it.
    why_model: Option<String>,
    /// Devices that `auto` passed over, each with the reason.
    left_out: Vec<String>,
    /// Bit per device: the case may leave objects behind there.
    excused: AtomicU64,
    /// Whether the case rings doorbells for queues that are not on their UAR page.
    strays: AtomicBool,
    /// The available features, or why they cannot be determined.
    facts: OnceLock<Result<Facts, String>>,
    two_processes: bool,
    dpu_elsewhere: bool,
}

impl Lab {
    /// Finds the devices of the choice.
    pub fn open(choice: &Choice) -> Result<Self, Stop> {
        Self::open_on(choice, Kernel::new())
    }

    /// Finds the devices of the choice among those of `kernel`.
    pub(crate) fn open_on(choice: &Choice, kernel: Kernel) -> Result<Self, Stop> {
        let mut why_model = None;
        if choice.device != "model" {
            match kernel.enumerate() {
                Ok(found) => {
                    let (wanted, left_out) = choose(&found, &choice.device);
                    if let Some(info) = wanted {
                        let peer = peer_of(info, &found, &kernel, &choice.peer)?;
                        return Ok(Self {
                            choice: choice.clone(),
                            profile: None,
                            backend: Arc::new(kernel),
                            failed: FailedCommands::default(),
                            recording: None,
                            blockage: None,
                            model: None,
                            fault_counts: None,
                            devices: [info].into_iter().chain(peer).cloned().collect(),
                            before: None,
                            why_model: None,
                            left_out,
                            excused: AtomicU64::new(0),
                            strays: AtomicBool::new(false),
                            facts: OnceLock::new(),
                            two_processes: false,
                            dpu_elsewhere: false,
                        });
                    }
                    if !left_out.is_empty() {
                        return Err(Stop::fail(format!(
                            "no device has an ACTIVE port with a GID: {}; bring one up, name one \
                             with --device all the same, or take --device model",
                            left_out.join(", ")
                        )));
                    }
                    if choice.device != "auto" {
                        let names: Vec<_> = found.iter().map(|info| info.name.as_str()).collect();
                        return Err(Stop::fail(format!(
                            "there is no device {}; this machine has {}",
                            choice.device,
                            if names.is_empty() { "none".into() } else { names.join(", ") }
                        )));
                    }
                }
                // A machine without RDMA gets the model; an unusable device must be reported.
                Err(error) if choice.device == "auto" && error.kind() == ErrorKind::NoDevice => {
                    why_model = Some(error.to_string());
                }
                Err(error) if choice.device == "auto" => return Err(error.into()),
                Err(error) => {
                    return Err(Stop::fail(format!(
                        "there is no device {}: {error}",
                        choice.device
                    )));
                }
            }
        }
        let mut profile = Profile::load(&choice.profile)?;
        if let Some(link) = &choice.link {
            profile = profile.with_link(match link.as_str() {
                "infiniband" => Link::Infiniband,
                "ethernet" => Link::Ethernet,
                other => {
                    return Err(Stop::fail(format!(
                        "--link {other}: there are infiniband and ethernet"
                    )));
                }
            });
        }
        Ok(Self { why_model, ..Self::on_model(choice, profile)? })
    }

    fn on_model(choice: &Choice, profile: Profile) -> Result<Self, Stop> {
        let builder = Model::builder();
        let dpu = profile.clone().on(Side::Dpu);
        let builder = match (choice.between.as_deref(), dpu) {
            (None, None) | (Some("hosts"), _) => {
                builder.device(profile.clone()).device(profile.clone())
            }
            (None | Some("host-and-dpu"), Some(_)) => builder.device_with_sides(profile.clone()),
            (Some("dpus"), Some(dpu)) => builder.device(dpu.clone()).device(dpu),
            (Some("dpus" | "host-and-dpu"), None) => {
                return Err(Stop::fail(format!("--between: {} is no DPU", profile.name())));
            }
            (Some(other), _) => {
                let text = format!("--between {other}: there are hosts, host-and-dpu and dpus");
                return Err(Stop::fail(text));
            }
        };
        let builder = if choice.packets { builder.in_packets() } else { builder };
        let model = builder.build();
        let mut fault_counts = None;
        if let Some(file) = &choice.faults {
            let wrong = |error| Stop::fail(format!("--faults: {error}"));
            let plan = FaultPlan::load(file).map_err(wrong)?;
            model.apply(&plan).map_err(wrong)?;
            fault_counts = Some(Arc::new(FaultCounts::new(&plan)));
        }
        let backend = InProcess::of(&model).like(choice.model_kernel.unwrap_or_default());
        let backend = Arc::new(backend.with_pages(choice.model_pages.unwrap_or_default()));
        let devices = backend.enumerate()?;
        let choice = choice.clone();
        let before = Some((0..model.devices()).map(|device| model.counts(device)).collect());
        let excused = AtomicU64::new(0);
        let (profile, model) = (Some(profile), Some(model));
        let (why_model, left_out) = (None, Vec::new());
        Ok(Self {
            choice,
            profile,
            backend,
            failed: FailedCommands::default(),
            recording: None,
            blockage: None,
            model,
            fault_counts,
            devices,
            before,
            why_model,
            left_out,
            excused,
            strays: AtomicBool::new(false),
            facts: OnceLock::new(),
            two_processes: false,
            dpu_elsewhere: false,
        })
    }

    /// The lab of one case on a recording: a backend that answers from it, and its devices.
    pub(crate) fn on_recording(
        backend: Arc<dyn Backend>,
        devices: Vec<DeviceInfo>,
        choice: Choice,
    ) -> Self {
        Self {
            choice,
            profile: None,
            backend,
            failed: FailedCommands::default(),
            recording: None,
            blockage: None,
            model: None,
            fault_counts: None,
            devices,
            before: None,
            why_model: None,
            left_out: Vec::new(),
            excused: AtomicU64::new(0),
            strays: AtomicBool::new(false),
            facts: OnceLock::new(),
            two_processes: false,
            dpu_elsewhere: false,
        }
    }

    /// The lab for one case: a new model, so that no case can affect the next. Its backend records
    /// failed commands.
    pub fn fresh(&self) -> Result<Self, Stop> {
        match &self.profile {
            Some(profile) => {
                let fresh = Self::on_model(&self.choice, profile.clone())?;
                Ok(Self { fault_counts: self.fault_counts.clone(), ..fresh }.recorded())
            }
            None => Ok(Self {
                choice: self.choice.clone(),
                profile: None,
                backend: self.backend.clone(),
                failed: FailedCommands::default(),
                recording: None,
                blockage: None,
                model: None,
                fault_counts: None,
                devices: self.devices.clone(),
                before: None,
                why_model: None,
                left_out: Vec::new(),
                excused: AtomicU64::new(0),
                strays: AtomicBool::new(false),
                facts: OnceLock::new(),
                two_processes: self.two_processes,
                dpu_elsewhere: self.dpu_elsewhere,
            }
            .recorded()),
        }
    }

    /// The lab with a backend that records failed commands.
    pub(crate) fn recorded(self) -> Self {
        let failed = FailedCommands::default();
        let backend = FailureBackend { backend: self.backend, failed: failed.clone() };
        Self { backend: Arc::new(backend), failed, ..self }
    }

    /// The lab whose cases are recorded.
    #[must_use]
    pub fn recorded_in(self, recording: Arc<Recording>) -> Self {
        Self { recording: Some(recording), ..self }
    }

    /// The recording that the cases are part of.
    pub(crate) fn recording(&self) -> Option<&Arc<Recording>> {
        self.recording.as_ref()
    }

    /// The lab of one case, whose requests go into its section of a recording.
    pub(crate) fn into_section(self, section: &Arc<Section>) -> Self {
        let backend = RecordingBackend { backend: self.backend, section: section.clone() };
        Self { backend: Arc::new(backend), ..self }
    }

    /// The commands of this lab that failed: the last few, also those that a case expects to fail.
    pub(crate) fn failed_commands(&self) -> &FailedCommands {
        &self.failed
    }

    /// Whether each case runs twice, carried whole and in packets, and the results are compared.
    pub(crate) fn both_ways(&self) -> bool {
        self.choice.both_ways && self.model.is_some()
    }

    /// The lab for one case, with messages that go in packets or are carried whole.
    pub(crate) fn fresh_one_way(&self, packets: bool) -> Result<Self, Stop> {
        let choice = Choice { packets, ..self.choice.clone() };
        match &self.profile {
            Some(profile) => Ok(Self::on_model(&choice, profile.clone())?.recorded()),
            None => self.fresh(),
        }
    }

    /// The backend, for cases about opening devices.
    pub fn backend(&self) -> &dyn Backend {
        &*self.backend
    }

    /// The backend, for callers that keep it.
    pub fn shared_backend(&self) -> &Arc<dyn Backend> {
        &self.backend
    }

    /// The devices of the cases: the first, and its peer if there is one.
    pub(crate) fn devices(&self) -> &[DeviceInfo] {
        &self.devices
    }

    /// The first device.
    pub fn info(&self) -> &DeviceInfo {
        &self.devices[0]
    }

    /// The other device: the peer, or the same device again, whose port then loops back.
    pub fn other_info(&self) -> &DeviceInfo {
        self.devices.last().unwrap_or(&self.devices[0])
    }

    /// Whether there are two devices that can talk to each other.
    pub fn has_peer(&self) -> bool {
        self.devices.len() > 1
    }

    /// The model's handle, for cases that need [`Need::Model`].
    pub fn model(&self) -> Result<&Model, Stop> {
        self.model
            .as_ref()
            .ok_or_else(|| Stop::fail("the case does not say that it needs the model"))
    }

    /// Whether the lab is a model in this process: each case has its own, so cases cannot disturb
    /// each other.
    pub fn is_private(&self) -> bool {
        self.model.is_some()
    }

    /// Kills device `device` of the model. A dead device destroys nothing, so the case may leave
    /// objects on it.
    pub fn kill(&self, device: usize) -> Result<(), Stop> {
        self.model()?.kill(device);
        self.excuse(device);
        Ok(())
    }

    /// Removes device `device` of the model.
    pub fn remove(&self, device: usize) -> Result<(), Stop> {
        self.model()?.remove(device);
        self.excuse(device);
        Ok(())
    }

    /// Permits the case to leave objects on device `device`.
    pub fn excuse(&self, device: usize) {
        self.excused.fetch_or(1 << device, Ordering::Relaxed);
    }

    /// Permits the case to ring doorbells for queues that are not on their UAR page.
    pub fn rings_strays(&self) {
        self.strays.store(true, Ordering::Relaxed);
    }

    /// Whether cases may change more than their own objects.
    pub fn destructive(&self) -> bool {
        self.choice.destructive
    }

    /// Whether cases that repeat something run for minutes.
    pub(crate) fn is_long(&self) -> bool {
        self.choice.long
    }

    /// How often a case repeats something: `usual`, or in a long run `long`.
    pub fn times(&self, usual: u64, long: u64) -> u64 {
        if self.choice.long { long } else { usual }
    }

    /// The available features, determined once.
    fn facts(&self) -> Result<&Facts, Stop> {
        let find = || {
            let two_processes = self.two_processes;
            let (model, lossless) = (self.model.is_some(), self.choice.faults.is_none());
            Facts::find(&*self.backend, &self.devices, model, lossless, two_processes)
                .map(|facts| {
                    facts.with_destructive(self.destructive(), &*self.backend, &self.devices)
                })
                .map(|facts| if self.dpu_elsewhere { facts.with_sides() } else { facts })
                .map(|facts| match self.choice.model_kernel {
                    Some(release) if model => facts.with_srq_events(release.knows_rmp_events()),
                    _ => facts,
                })
                .map_err(|Stop(why)| why)
        };
        self.facts.get_or_init(find).as_ref().map_err(Stop::fail)
    }

    /// Makes the objects that nearly every case makes: a context, a registered region, some CQs and
    /// queue pairs. Its error is the reason for which most cases would fail.
    pub fn check(&self) -> Result<(), Stop> {
        self.facts()?;
        let domain = Domain::new(&self.device()?)?;
        domain.region(CHECK_BYTES, KeyAccess::ALL)?;
        let mut queues = Vec::new();
        for _ in 0..CHECK_QUEUES {
            let cq = domain.completion_queue(&CqConfig::new(128))?;
            queues.push((domain.queue_pair(&QpConfig::new(16, 16), &cq, &cq)?, cq));
        }
        Ok(())
    }

    /// Blocks the cases that need `link`, a link of the doctor's chain that failed.
    #[must_use]
    pub fn blocked_by(self, link: doctor::Link) -> Self {
        Self { blockage: Some(Blockage::new(link)), ..self }
    }

    /// The failed link that blocks cases.
    pub(crate) fn blockage(&self) -> Option<&Blockage> {
        self.blockage.as_ref()
    }

    /// The needs of a case that are not met.
    pub fn missing(&self, needs: &[Need]) -> Result<Vec<Need>, Stop> {
        if needs.is_empty() {
            return Ok(Vec::new());
        }
        let facts = self.facts()?;
        Ok(needs.iter().filter(|need| !facts.offer(need)).copied().collect())
    }

    /// The capabilities that are too small for some cases with these needs.
    pub(crate) fn small(&self, needs: &[Need]) -> Result<Vec<String>, Stop> {
        Ok(self.facts()?.small(needs))
    }

    /// Notes that cases of two processes can run here.
    pub fn with_two_processes(self) -> Self {
        Self { two_processes: true, ..self }
    }

    /// Notes that another program drives the other side of the card.
    pub fn with_remote_dpu(self) -> Self {
        Self { dpu_elsewhere: true, ..self }
    }

    /// Opens the first device.
    pub fn device(&self) -> Result<Device, Stop> {
        Ok(Device::open(self.backend(), self.info())?)
    }

    /// Opens the other device.
    pub fn other_device(&self) -> Result<Device, Stop> {
        Ok(Device::open(self.backend(), self.other_info())?)
    }

    /// Opens a function that owns memory, and one that uses it: another function of the same device
    /// if there is one, otherwise the same again. On a DPU the host's function owns the memory.
    pub fn owner_and_user(&self) -> Result<(Device, Device), Stop> {
        let same_card = self.other_info().system_image_guid == self.info().system_image_guid;
        let user = if same_card { self.other_device()? } else { self.device()? };
        Ok((self.device()?, user))
    }

    /// A line that describes the environment. Only a device that does not identify itself as the
    /// model is called hardware.
    pub fn describe(&self) -> String {
        let info = self.info();
        let sort = match Device::open(self.backend(), info) {
            Ok(device) if device.adapter().is_model() => "the model".to_string(),
            Ok(_) => "hardware".to_string(),
            Err(error) => format!("a device that does not open ({error})"),
        };
        let through = if self.model.is_some() { "in this process" } else { "behind a kernel" };
        let peer = if self.has_peer() { &self.other_info().name } else { "itself" };
        let on_dpu = |model: &Model| model.devices() > 1 && model.side(1) == Side::Dpu;
        let what = if self.model.as_ref().is_some_and(on_dpu) { ", its DPU side" } else { "" };
        let DeviceInfo { name, board_id, firmware, .. } = info;
        format!(
            "{sort} {through}: {name} ({board_id}, firmware {firmware}), which talks to \
             {peer}{what}"
        )
    }

    /// Fails when the model still holds objects, other than its kernel's, or when a doorbell named
    /// a queue that is not on its page.
    pub fn nothing_is_left(&self) -> Result<(), Stop> {
        let (Some(model), Some(before)) = (&self.model, &self.before) else { return Ok(()) };
        for (device, before) in before.iter().enumerate() {
            let excused = self.excused.load(Ordering::Relaxed) >> device & 1 == 1;
            let after = model.counts(device);
            if after != *before && !excused {
                return Err(Stop::fail(format!(
                    "objects are left on device {device}: {after:?}; there were {before:?}"
                )));
            }
            let strays = model.stray_doorbells(device);
            if !strays.is_empty() && !self.strays.load(Ordering::Relaxed) {
                return Err(Stop::fail(format!(
                    "doorbells on device {device} named no queue of their UAR page: {strays:x?}, \
                     each a page and a word"
                )));
            }
        }
        Ok(())
    }

    /// Adds the effects of faults on the frames of a finished case.
    pub fn count_faults(&self) {
        if let (Some(model), Some(fault_counts)) = (&self.model, &self.fault_counts) {
            fault_counts.add(model);
        }
    }

    /// The effects of the fault plan on frames in all cases so far: a summary line, and a line
    /// for each requested effect that never happened. `None` without a plan.
    pub fn faults(&self) -> Option<(String, Vec<String>)> {
        self.fault_counts
            .as_ref()
            .map(|fault_counts| (fault_counts.describe(), fault_counts.never()))
    }

    /// Facts about the machine that influence the run, one line each.
    pub fn preconditions(&self) -> Vec<String> {
        let mut lines = Vec::new();
        if let Some(why) = &self.why_model {
            lines.push(format!("the model, because {why}"));
        }
        lines.extend(self.left_out.iter().map(|device| format!("left out: {device}")));
        lines.extend(self.devices.iter().flat_map(ports));
        lines.push(match getrlimit(Resource::RLIMIT_MEMLOCK) {
            Ok((u64::MAX, _)) => "memlock limit: none".to_string(),
            Ok((bytes, _)) if privilege(CAP_IPC_LOCK) => {
                format!("memlock limit: {} KiB, lifted by CAP_IPC_LOCK", bytes >> 10)
            }
            Ok((bytes, _)) => format!("memlock limit: {} KiB", bytes >> 10),
            Err(errno) => format!("memlock limit: unknown ({errno})"),
        });
        // The cases about frames run on the model alone.
        if self.device().is_ok_and(|device| device.adapter().is_model()) {
            let raw = if privilege(CAP_NET_RAW) { "yes" } else { "no: nothing can be steered" };
            lines.push(format!("CAP_NET_RAW: {raw}"));
        }
        // The cases use only registers of the DPA.
        if let Some(device) = self.device().ok().filter(|it| it.caps().general.apu()) {
            lines.push(match device.register_access() {
                Ok(way) => format!("registers: {way}"),
                Err(error) => format!("registers: no: {error}"),
            });
        }
        lines
    }
}

/// Whether the cases can use the first port: ACTIVE, and on Ethernet with a GID. The ports of an
/// embedded switch (switchdev mode, as on a BlueField's own cores) have none.
pub(crate) fn is_usable(info: &DeviceInfo) -> bool {
    info.ports.first().is_some_and(|port| port.state == port_state::ACTIVE && has_gid(port))
}

/// Whether the port has a GID, or is of InfiniBand, whose subnet manager gives it one.
fn has_gid(port: &PortInfo) -> bool {
    port.link_layer != LinkLayer::Ethernet || !port.gids.is_empty()
}

/// The device of that name; for `auto`, the first one whose first port the cases can use: one with
/// a node if there is any, because those come first. Also the devices before it, each with its
/// defect.
fn choose<'a>(found: &'a [DeviceInfo], name: &str) -> (Option<&'a DeviceInfo>, Vec<String>) {
    if name != "auto" {
        return (found.iter().find(|info| info.name == name), Vec::new());
    }
    let mut left_out = Vec::new();
    for info in found {
        match info.ports.first() {
            _ if is_usable(info) => return (Some(info), left_out),
            Some(port) if port.state == port_state::ACTIVE => {
                left_out.push(format!("{} (port {} has no GID)", info.name, port.number));
            }
            Some(port) => {
                left_out.push(format!("{} (port {} is {})", info.name, port.number, state(port)));
            }
            None => left_out.push(format!("{} (it has no port)", info.name)),
        }
    }
    (None, left_out)
}

/// The name of a port's state.
fn state(port: &PortInfo) -> &'static str {
    match port.state {
        port_state::DOWN => "DOWN",
        port_state::INIT => "INIT: is there a subnet manager?",
        port_state::ARMED => "ARMED",
        port_state::ACTIVE => "ACTIVE",
        port_state::ACTIVE_DEFER => "ACTIVE_DEFER",
        _ => "in an unknown state",
    }
}

/// The device that `info` talks to, as chosen; `None` if its port loops back.
///
/// Only the model reports that two of its ports are connected: a trial on hardware ports may
/// disturb other users.
fn peer_of<'a>(
    info: &DeviceInfo,
    found: &'a [DeviceInfo],
    kernel: &Kernel,
    choice: &str,
) -> Result<Option<&'a DeviceInfo>, Stop> {
    match choice {
        "none" => Ok(None),
        "auto" => {
            let mut others = found.iter().filter(|other| is_connected(info, other));
            Ok(others.find(|other| [info, other].iter().all(|it| is_model(kernel, it))))
        }
        name => match found.iter().find(|other| other.name == name) {
            Some(other) => Ok(Some(other)),
            None => Err(Stop::fail(format!("there is no device {name} for the peer"))),
        },
    }
}

/// Whether the first ports of two devices seem to be in one subnet.
fn is_connected(one: &DeviceInfo, other: &DeviceInfo) -> bool {
    let subnet = |port: &PortInfo| port.gids.first().map(|entry| entry.gid.0[..8].to_vec());
    match (one.ports.first(), other.ports.first()) {
        (Some(ours), Some(theirs)) if one.name != other.name => {
            let active = |port: &PortInfo| port.state == port_state::ACTIVE;
            ours.link_layer == theirs.link_layer
                && active(ours)
                && active(theirs)
                && subnet(ours).is_some()
                && subnet(ours) == subnet(theirs)
        }
        _ => false,
    }
}

fn is_model(kernel: &Kernel, info: &DeviceInfo) -> bool {
    Device::open(kernel, info).is_ok_and(|device| device.adapter().is_model())
}

/// The ports of a device, one line each.
fn ports(info: &DeviceInfo) -> Vec<String> {
    let line = |port: &PortInfo| {
        let link = match port.link_layer {
            LinkLayer::InfiniBand => "InfiniBand",
            LinkLayer::Ethernet => "Ethernet",
            LinkLayer::Unspecified => "unknown link layer",
        };
        let state = state(port);
        let gid = match port.gids.as_slice() {
            [] => "no GID".to_string(),
            [first, rest @ ..] => {
                format!(
                    "GID {} {} ({}) and {} more",
                    first.index,
                    first.gid,
                    first.kind,
                    rest.len()
                )
            }
        };
        format!("{} port {}: {link}, {state}, {gid}", info.name, port.number)
    };
    info.ports.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The devices of a machine, by the state of their first ports.
    fn machine(states: &[u8]) -> Vec<DeviceInfo> {
        let model =
            Model::builder().device(Profile::load("connectx6dx").expect("the profile is built in"));
        let like = InProcess::of(&model.build()).enumerate().expect("a device").remove(0);
        let device = |(number, &state): (usize, &u8)| {
            let mut info = DeviceInfo { name: format!("mlx5_{number}"), ..like.clone() };
            info.ports.iter_mut().for_each(|port| port.state = state);
            info
        };
        states.iter().enumerate().map(device).collect()
    }

    #[test]
    fn auto_selects_first_device_with_active_port() {
        use port_state::{ACTIVE, DOWN, INIT};
        let found = machine(&[DOWN, INIT, ACTIVE, ACTIVE]);
        let (wanted, left_out) = choose(&found, "auto");
        assert_eq!(wanted.map(|info| info.name.as_str()), Some("mlx5_2"));
        let reasons =
            ["mlx5_0 (port 1 is DOWN)", "mlx5_1 (port 1 is INIT: is there a subnet manager?)"];
        assert_eq!(left_out, reasons);

        let found = machine(&[DOWN]);
        assert_eq!(choose(&found, "auto"), (None, vec![reasons[0].to_string()]));
        assert_eq!(choose(&found, "mlx5_0").0.map(|info| info.name.as_str()), Some("mlx5_0"));
    }

    #[test]
    fn auto_passes_over_ethernet_ports_without_gid() {
        let mut found = machine(&[port_state::ACTIVE; 2]);
        assert_eq!(found[0].ports[0].link_layer, LinkLayer::Ethernet);
        found[0].ports[0].gids.clear();
        let (wanted, left_out) = choose(&found, "auto");
        assert_eq!(wanted.map(|info| info.name.as_str()), Some("mlx5_1"));
        assert_eq!(left_out, ["mlx5_0 (port 1 has no GID)"]);
        assert_eq!(choose(&found, "mlx5_0").0.map(|info| info.name.as_str()), Some("mlx5_0"));
        found[0].ports[0].link_layer = LinkLayer::InfiniBand;
        assert!(is_usable(&found[0]));
    }
}
