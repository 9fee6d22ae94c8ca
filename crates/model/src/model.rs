//! The model's public interface: build, step, inspect, and inject faults.

use std::any::Any;
use std::io::Write;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use verbless_prm::{CommandStatus, CqeSyndrome, Opcode};

use crate::engine;
use crate::engine::faults::{Fault, QueueKind};
use crate::guard::Watch;
use crate::hca::objects::ObjectCounts;
use crate::hca::resources::Resources;
use crate::hca::{Hca, Times};
use crate::ioctl::{ERRNOS, Ioctl};
use crate::locked::LockedFunctions;
use crate::memory::HostMemory;
use crate::profile::{FunctionPlace, Profile, Side};
use crate::shared_model::SharedModel;
use crate::watch::{ArrivalRecording, Executed, Request};

/// Modelled devices, and the fabric between them. Cloning gives another handle to
/// the same model.
#[derive(Clone)]
pub struct Model {
    pub(crate) shared: Arc<SharedModel>,
    auto_advance: bool,
    /// See [`Model::driver`].
    pub(crate) driver: Arc<OnceLock<Arc<dyn Any + Send + Sync>>>,
}

/// A function of a device to build.
struct FunctionSpec {
    profile: Profile,
    /// The number of earlier functions of its device.
    index: usize,
    /// The function's index on its side, from 0.
    number: u16,
    /// The function's side, role and numbers on the card.
    on_card: FunctionPlace,
    /// The memory for its DMA, if not the model's.
    memory: Option<Arc<dyn HostMemory>>,
}

/// Builds a model; see [`Model::builder`].
#[derive(Default)]
pub struct Builder {
    functions: Vec<FunctionSpec>,
    stepped: bool,
    auto_advance: bool,
    in_packets: bool,
    identity: u16,
    memory: Option<Arc<dyn HostMemory>>,
}

impl Builder {
    /// Adds a device with one function, on the profile's side.
    pub fn device(mut self, profile: Profile) -> Self {
        let on_card = FunctionPlace { side: profile.side(), ..FunctionPlace::default() };
        self.functions.push(FunctionSpec { profile, index: 0, number: 0, on_card, memory: None });
        self
    }

    /// Adds a device with a function for each of its sides: the host's, then the DPU's. Each counts
    /// as a device in the methods of [`Model`]; a backend can show those of one side.
    pub fn device_with_sides(self, profile: Profile) -> Self {
        self.sides(profile.sides().map(|profile| (profile, None)))
    }

    /// Adds a device with a function for each side, like [`Self::device_with_sides`]; each function
    /// does DMA in its own memory: the host's, then the DPU's.
    pub fn device_with_sides_in(
        self,
        profile: Profile,
        memories: impl IntoIterator<Item = Arc<dyn HostMemory>>,
    ) -> Self {
        self.sides(profile.sides().zip(memories.into_iter().map(Some)))
    }

    fn sides(
        mut self,
        sides: impl Iterator<Item = (Profile, Option<Arc<dyn HostMemory>>)>,
    ) -> Self {
        self.functions.extend(sides.enumerate().map(|(index, (profile, memory))| {
            let on_card = FunctionPlace { side: profile.side(), ..FunctionPlace::default() };
            FunctionSpec { profile, index, number: 0, on_card, memory }
        }));
        self
    }

    /// Adds a device with all functions that its profile lists in `topology`, PFs, VFs and SFs of
    /// both sides in that order; without such a list, like [`Builder::device_with_sides`]. Each
    /// counts as a device in the methods of [`Model`].
    ///
    /// ```
    /// # use verbless_model::{Model, Profile, Side};
    /// # fn main() -> Result<(), verbless_model::ProfileError> {
    /// let card = Profile::load("bluefield3")?;
    /// let model = Model::builder().device_with_topology(card).stepped().build();
    /// let of = |side| (0..model.devices()).filter(|&device| model.side(device) == side).count();
    /// assert_eq!((of(Side::Host), of(Side::Dpu)), (5, 4));
    /// # Ok(())
    /// # }
    /// ```
    pub fn device_with_topology(mut self, profile: Profile) -> Self {
        if profile.topology().is_empty() {
            return self.device_with_sides(profile);
        }
        let mut numbers = [0; 2];
        for (index, on_card) in profile.topology().iter().enumerate() {
            // A profile lists only functions on sides that it has.
            let Some(profile) = profile.clone().on(on_card.side) else { continue };
            let next = &mut numbers[on_card.side as usize];
            let (number, on_card) = (*next, on_card.clone());
            *next += 1;
            self.functions.push(FunctionSpec { profile, index, number, on_card, memory: None });
        }
        self
    }

    /// Adds a device with a function for each memory, which does DMA in that memory. Each function
    /// counts as a device in the methods of [`Model`].
    pub fn device_in(
        mut self,
        profile: Profile,
        memories: impl IntoIterator<Item = Arc<dyn HostMemory>>,
    ) -> Self {
        self.functions.extend((0..).zip(memories).map(|(number, memory)| FunctionSpec {
            profile: profile.clone(),
            index: number.into(),
            number,
            on_card: FunctionPlace { side: profile.side(), pf: number, ..FunctionPlace::default() },
            memory: Some(memory),
        }));
        self
    }

    /// Makes the model stepped: the devices work only in [`Model::step`] and
    /// [`Model::run_until_idle`], and the virtual clock moves only in [`Model::advance`].
    pub fn stepped(mut self) -> Self {
        self.stepped = true;
        self
    }

    /// Lets an idle stepped model advance its clock itself: without other work, [`Model::step`]
    /// advances the clock to the next timer. [`Model::run_until_idle`] then executes all retries
    /// and delays, and a lost message costs a test no real time.
    ///
    /// A request that is retried forever (an RNR retry count of 7 without a receive) always has a
    /// next timer, so `run_until_idle` does not return; call `step` as often as needed instead.
    ///
    /// ```
    /// # use verbless_model::{Model, Profile};
    /// # fn main() -> Result<(), verbless_model::ProfileError> {
    /// let card = Profile::load("connectx6dx")?;
    /// let model = Model::builder().device(card).stepped().auto_advance().build();
    /// model.run_until_idle();
    /// # Ok(())
    /// # }
    /// ```
    pub fn auto_advance(mut self) -> Self {
        self.auto_advance = true;
        self
    }

    /// Sends every message in packets of the path MTU, with headers, acknowledgements and timers,
    /// as on a wire. By default messages of connections are carried whole, which is faster, while
    /// no link setting can affect them and no watcher sees frames; datagrams are always packets.
    ///
    /// Over perfect links CQEs, events and counters are the same in both modes, with these
    /// exceptions in packets. A message that fails halfway leaves its first packets in memory,
    /// where a whole one leaves parts of 256 KiB. A WRITE with immediate that waits for a receive
    /// has written all but its last packet, a whole one all but its last part. READs beyond the
    /// responder's `max_dest_rd_atomic` are refused. Several requests of a QP are in flight at a
    /// time. Two ends with different path MTUs fail. docs/fidelity.md lists all differences.
    pub fn in_packets(mut self) -> Self {
        self.in_packets = true;
        self
    }

    /// Gives the devices other MACs, GUIDs and link-local GIDs than those of a model with another
    /// number, so that several models can share a network. The default is 0.
    ///
    /// ```
    /// # use verbless_model::{Model, Profile};
    /// # fn main() -> Result<(), verbless_model::ProfileError> {
    /// let card = Profile::load("connectx6dx")?;
    /// let [one, other] =
    ///     [0, 1].map(|it| Model::builder().device(card.clone()).identity(it).stepped().build());
    /// assert_ne!(one.device(0).node_guid(), other.device(0).node_guid());
    /// # Ok(())
    /// # }
    /// ```
    pub fn identity(mut self, number: u16) -> Self {
        self.identity = number;
        self
    }

    /// Lets threads of the model drive the devices, in real time: one per device, at most one per
    /// processor, and at most eight. This is the default.
    pub fn threaded(mut self) -> Self {
        self.stepped = false;
        self
    }

    /// The memory for the DMA of devices without their own; the default is this process's memory.
    pub fn memory(mut self, memory: Arc<dyn HostMemory>) -> Self {
        self.memory = Some(memory);
        self
    }

    /// Builds the model. In threaded mode this starts its threads, which end with the last handle.
    pub fn build(self) -> Model {
        let memory = self.memory.unwrap_or_else(crate::memory::in_process);
        let seed = |index: usize| usize::from(self.identity) << 16 | index;
        let functions = self
            .functions
            .into_iter()
            .enumerate()
            .map(|(index, function)| {
                let memory = function.memory.unwrap_or_else(|| memory.clone());
                let hca =
                    Hca::new(seed(index), Arc::new(function.profile), memory, engine::qp_type)
                        .of_function(
                            seed(index - function.index),
                            function.number,
                            function.on_card,
                        );
                engine::FunctionEngine::new(hca)
            })
            .collect();
        let mut locked = LockedFunctions::new(functions, self.stepped);
        locked.in_packets = self.in_packets;
        let shared = SharedModel::new(locked, self.stepped);
        if !self.stepped {
            engine::spawn(&shared);
        }
        Model { shared, auto_advance: self.auto_advance, driver: Arc::default() }
    }
}

impl Model {
    /// Maximum number of stray doorbells that are kept; later ones are only logged.
    pub const MAX_STRAYS: usize = engine::state::MAX_STRAYS;

    /// Starts the description of a model.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// The number of devices; they are numbered from 0.
    pub fn devices(&self) -> usize {
        self.shared.count()
    }

    /// The side of device `device`.
    ///
    /// # Panics
    /// When there is no such device.
    pub fn side(&self, device: usize) -> Side {
        self.peek(device, |function| function.hca.profile.side())
    }

    /// Does the next unit of work: one WQE, one packet or one timer. Returns false if there was
    /// none. With [`Builder::auto_advance`], an idle model moves its clock to the next timer first,
    /// and returns false only if no timer is running.
    pub fn step(&self) -> bool {
        self.shared.with(|locked| self.step_in(locked))
    }

    fn step_in(&self, locked: &mut LockedFunctions) -> bool {
        let jumps = self.shared.stepped && self.auto_advance;
        engine::step(locked) || jumps && engine::jump(locked)
    }

    /// Steps until no work is left at the current virtual time.
    pub fn run_until_idle(&self) {
        // Watchers and interrupt receivers get each step's events before the next step.
        let rest = |locked: &mut LockedFunctions| {
            while self.step_in(locked) {
                if locked.has_deliveries() {
                    return false;
                }
            }
            true
        };
        while !self.shared.with(rest) {}
    }

    /// Advances the virtual clock of a stepped model; timers that expire run in the next step.
    pub fn advance(&self, by: Duration) {
        self.shared.with(|locked| locked.clock.advance(by));
    }

    /// Makes commands with this opcode fail on device `device`, with this status and syndrome; a
    /// failed command has no other effect. `when` counts from this call on: 1 is the next command.
    ///
    /// ```
    /// # use verbless_model::{Model, Profile, Times};
    /// # fn main() -> Result<(), verbless_model::ProfileError> {
    /// use verbless_prm::{CommandStatus, Opcode};
    ///
    /// let model = Model::builder().device(Profile::load("connectx6dx")?).stepped().build();
    /// // The second CREATE_CQ fails, then each from the fourth on.
    /// model.fail_command(0, Opcode::CREATE_CQ, 2, CommandStatus::NO_RES, 0x1234);
    /// let rest = Times::from(4).always();
    /// model.fail_command(0, Opcode::CREATE_CQ, rest, CommandStatus::NO_RES, 0x1234);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Panics
    /// When there is no such device.
    pub fn fail_command(
        &self,
        device: usize,
        opcode: Opcode,
        when: impl Into<Times>,
        status: CommandStatus,
        syndrome: u32,
    ) {
        let failure = (status.0, syndrome);
        self.peek(device, |function| function.hca.faults.add(opcode.0, when.into(), failure));
    }

    /// Makes these ioctls of a device's driver fail with this errno, from any process; a failed
    /// ioctl has no other effect. `when` counts from this call on: 1 is the next one. The modelled
    /// kernel makes it fail, in process or under `verbless-model run`.
    ///
    /// ```
    /// # use verbless_model::{Ioctl, Model, Profile};
    /// # fn main() -> Result<(), verbless_model::ProfileError> {
    /// let model = Model::builder().device(Profile::load("connectx6dx")?).stepped().build();
    /// // The second UMEM registration fails with ENOMEM, as at the limit of locked memory.
    /// let ioctl = Ioctl::named("DEVX_UMEM_REG").expect("a name of `ioctl::NAMES`");
    /// model.fail_ioctl(0, ioctl, 2, 12);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Panics
    /// When there is no such device, or `errno` is not from 1 to 4095.
    pub fn fail_ioctl(&self, device: usize, ioctl: Ioctl, when: impl Into<Times>, errno: i32) {
        assert!(ERRNOS.contains(&errno), "{errno} is not an errno: they are from 1 to 4095");
        self.peek(device, |function| function.hca.ioctl_faults.add(ioctl, when.into(), errno));
    }

    /// Injects `fault` into device `device` at `count` consecutive occurrences, after the first
    /// `skip`. A later call for the same fault replaces this one.
    ///
    /// # Panics
    /// When there is no such device.
    pub fn inject(&self, device: usize, fault: Fault, skip: u32, count: u32) {
        self.peek(device, |function| function.engine.faults.set(fault, skip, count));
    }

    /// Makes send requests fail when a QP starts them: such a request is not executed, its CQE has
    /// this syndrome, and the QP changes to the state after any failed request: ERR, or SQER for UC
    /// and UD. `when` counts from this call on: 1 is the next request. `qpn` selects one QP; `None`
    /// counts the requests of all QPs of the device. Retries of a request and WQEs that are not
    /// requests do not count, and SQs are not affected. A fault of one QP ends when the QP is reset
    /// or destroyed.
    ///
    /// ```
    /// # use verbless_model::{Model, Profile};
    /// # fn main() -> Result<(), verbless_model::ProfileError> {
    /// use verbless_prm::{CommandStatus, CqeSyndrome, Opcode};
    ///
    /// let model = Model::builder().device(Profile::load("connectx6dx")?).stepped().build();
    /// // The third request on device 0 fails as if its peer had refused the remote key.
    /// model.fail_request(0, None, 3, CqeSyndrome::REMOTE_ACCESS);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Panics
    /// When there is no such device.
    pub fn fail_request(
        &self,
        device: usize,
        qpn: Option<u32>,
        when: impl Into<Times>,
        syndrome: CqeSyndrome,
    ) {
        let when = when.into();
        self.peek(device, |function| function.engine.faults.fail_request(qpn, when, syndrome.0));
    }

    /// Makes the queue of this number fail at once. A QP changes to the error state with the event
    /// WQ_CATASTROPHIC_ERROR, and its posted requests are flushed. A CQ accepts no more CQEs, with
    /// the event CQ_ERROR; a QP that has a CQE for it fails in turn. False: no such queue exists,
    /// it has failed already, or it is a QP in RESET.
    ///
    /// ```
    /// # use verbless_model::{Model, Profile, QueueKind};
    /// # fn main() -> Result<(), verbless_model::ProfileError> {
    /// let model = Model::builder().device(Profile::load("connectx6dx")?).stepped().build();
    /// let failed = model.fail_queue(0, QueueKind::Qp, 0x80);
    /// assert!(!failed, "no such QP exists");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Panics
    /// When there is no such device.
    pub fn fail_queue(&self, device: usize, kind: QueueKind, number: u32) -> bool {
        self.check_device(device);
        self.shared.with_function(device, |locked| engine::fail_queue(locked, device, kind, number))
    }

    /// Makes a queue fail as [`Model::fail_queue`] does: a QP when it starts a send request, which
    /// is flushed; a CQ instead of accepting a CQE. `when` counts send requests or CQEs from this
    /// call on: 1 is the next one. `None` counts all queues of the kind.
    ///
    /// # Panics
    /// When there is no such device.
    pub fn fail_queue_later(
        &self,
        device: usize,
        kind: QueueKind,
        number: Option<u32>,
        when: impl Into<Times>,
    ) {
        let when = when.into();
        self.peek(device, |function| function.engine.faults.fail_queue(kind, number, when));
    }

    /// Drops `count` consecutive messages of one QP, after the first `skip`. Each attempt to send a
    /// request is a message; in packet mode its first packet is dropped. A later call for the same
    /// QP replaces this one, and the fault ends when the QP is reset or destroyed.
    /// [`Fault::LoseMessage`] does the same for all QPs of a device.
    ///
    /// ```
    /// # use verbless_model::{Model, Profile};
    /// # fn main() -> Result<(), verbless_model::ProfileError> {
    /// let model = Model::builder().device(Profile::load("connectx6dx")?).stepped().build();
    /// // The first two messages of QP 0x80 are lost: a request is sent a third time.
    /// model.lose_messages(0, 0x80, 0, 2);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Panics
    /// When there is no such device.
    pub fn lose_messages(&self, device: usize, qpn: u32, skip: u32, count: u32) {
        self.peek(device, |function| function.engine.faults.lose_messages_of(qpn, skip, count));
    }

    /// Puts device `device` into a fatal error: every command fails, and no work request is
    /// executed, until the function is reset, as a recovering driver does
    /// ([`Function::reset`](crate::function::Function::reset)).
    ///
    /// # Panics
    /// When there is no such device.
    pub fn kill(&self, device: usize) {
        self.end(device, false);
    }

    /// Makes the pages of memory that is registered with device `device` after this call count as
    /// not adjacent, as on a host without an IOMMU and with fragmented memory. The kernel then
    /// creates UMEMs of 4 KiB pages, whatever the alignment of the memory.
    ///
    /// # Panics
    /// When there is no such device.
    pub fn fragment_memory(&self, device: usize) {
        self.peek(device, |function| function.hca.iommu.set_fragmented(true));
    }

    /// Removes device `device`, as by hot-unplug: it fails as by [`Model::kill`], and the kernel's
    /// driver has released it, so that requests to the driver fail with EIO, except for those that
    /// destroy objects, which succeed. The rest of a client's objects is freed when the client
    /// closes its files.
    ///
    /// # Panics
    /// When there is no such device.
    pub fn remove(&self, device: usize) {
        self.end(device, true);
    }

    fn end(&self, device: usize, removed: bool) {
        let interrupts = self.peek(device, |function| {
            function.hca.die();
            function.hca.removed |= removed;
            function.hca.interrupts.clone()
        });
        if let Some(interrupts) = interrupts {
            interrupts.fatal();
        }
    }

    /// Reads a device, or makes a change that neither its engine nor a watcher needs to see. An
    /// invalid number is the caller's mistake: this panics with nothing locked, since a panic under
    /// a lock ends the model.
    fn peek<R>(&self, device: usize, access: impl FnOnce(&mut engine::FunctionEngine) -> R) -> R {
        self.check_device(device);
        self.shared.peek(device, access)
    }

    /// Panics when there is no such device.
    pub(crate) fn check_device(&self, device: usize) {
        let devices = self.devices();
        assert!(
            device < devices,
            "there is no device {device}: the model has {devices}, numbered from 0"
        );
    }

    /// Number of ports of a device.
    pub(crate) fn ports(&self, device: usize) -> usize {
        self.peek(device, |function| function.hca.ports.len())
    }

    /// Takes a port (numbered from 1) of device `device` up or down, and reports the change by an
    /// event.
    ///
    /// # Panics
    /// When there is no such device, or it has no such port.
    pub fn set_port(&self, device: usize, port: u8, up: bool) {
        let ports = self.ports(device);
        assert!(
            (1..=ports).contains(&port.into()),
            "there is no port {port}: device {device} has {ports}, numbered from 1"
        );
        self.shared.with_function(device, |locked| engine::set_port(locked, device, port, up));
    }

    /// The number of pages of host memory that device `device` got and has not returned.
    ///
    /// # Panics
    /// When there is no such device.
    pub fn pages(&self, device: usize) -> usize {
        self.peek(device, |function| function.hca.pages.given.len())
    }

    /// The number of objects of each kind that device `device` holds.
    ///
    /// # Panics
    /// When there is no such device.
    pub fn counts(&self, device: usize) -> ObjectCounts {
        self.peek(device, |function| function.hca.objects.counts())
    }

    /// The objects of device `device` that programs use, one by one.
    ///
    /// # Panics
    /// When there is no such device.
    pub fn resources(&self, device: usize) -> Resources {
        self.peek(device, |function| function.hca.objects.resources())
    }

    /// Doorbells of device `device` that named no send queue, or no CQ, of the UAR page of the
    /// doorbell, and so had no effect: the page and the word of the first
    /// [`MAX_STRAYS`](Self::MAX_STRAYS). A correct driver rings none.
    ///
    /// # Panics
    /// When there is no such device.
    pub fn stray_doorbells(&self, device: usize) -> Vec<(u32, u64)> {
        self.peek(device, |function| function.engine.strays.clone())
    }

    /// Calls `watcher` after every command that any function executes, refused ones included, in
    /// order, until the guard is dropped. The sender of a command waits for its watchers: a slow
    /// one delays commands, not the data path. A watcher may call the model; it sees the commands
    /// of that call next.
    pub fn watch_commands(&self, watcher: impl FnMut(&Executed<'_>) + Send + 'static) -> Watch {
        Watch::commands(&self.shared, watcher)
    }

    /// Calls `watcher` whenever a QP has finished a send request, in order: signaled or not, failed
    /// and flushed ones included, until the guard is dropped. A watcher may call the model.
    ///
    /// A stepped model calls it before [`Model::step`] returns. In threaded mode a thread calls it
    /// soon after, and the data path does not wait for a slow watcher: when 16 MiB wait for it, it
    /// misses further requests, and the log says how many.
    ///
    /// ```
    /// # use verbless_model::{Model, Profile};
    /// # fn main() -> Result<(), verbless_model::ProfileError> {
    /// let model = Model::builder().device(Profile::load("connectx6dx")?).stepped().build();
    /// let (sender, requests) = std::sync::mpsc::channel();
    /// let watch = model.watch_requests(move |request| sender.send(*request).unwrap_or_default());
    /// // … after the program under test has posted:
    /// model.run_until_idle();
    /// drop(watch);
    /// assert!(requests.iter().all(|request| request.syndrome.is_none()), "all succeeded");
    /// # Ok(())
    /// # }
    /// ```
    pub fn watch_requests(&self, watcher: impl FnMut(&Request) + Send + 'static) -> Watch {
        Watch::requests(&self.shared, watcher)
    }

    /// Records, per queue, every CQE and a digest of all data that arrives in memory, until the
    /// guard is dropped: to compare one run of a program with another. The data of a queue is
    /// recorded once its CQE was written. CQEs are kept, 64 or 128 bytes each.
    ///
    /// ```
    /// # use verbless_model::{Model, Profile};
    /// # fn main() -> Result<(), verbless_model::ProfileError> {
    /// let model = Model::builder().device(Profile::load("connectx6dx")?).stepped().build();
    /// let recording = model.record_arrivals();
    /// // … after the program under test has posted:
    /// model.run_until_idle();
    /// assert!(recording.arrivals().is_empty(), "the program posted no request");
    /// # Ok(())
    /// # }
    /// ```
    pub fn record_arrivals(&self) -> ArrivalRecording {
        ArrivalRecording::new(&self.shared.common.outbox)
    }

    /// Serves a debugger with GDB's remote protocol at a listener, for the lifetime of the model:
    /// one debugger at a time sees one thread or call of a DPA. It gets the next run, or with
    /// `entry` the next run that begins at that address, and from then on all runs of that thread
    /// or call. The first such run waits for a debugger. Everything else continues meanwhile; the
    /// watchdog counts instructions, not time.
    ///
    /// A debugger of another user of this machine is refused, except root's.
    ///
    /// A debugger that detaches leaves the thread to the model; one that kills ends its process
    /// with status 7. Needs a model that is not stepped, and the feature `gdb`.
    ///
    /// # Errors
    /// No device has a DPA, or the system cannot start a thread for it.
    #[cfg(feature = "gdb")]
    pub fn debug_programs(
        &self,
        listener: std::net::TcpListener,
        entry: Option<u64>,
    ) -> std::io::Result<()> {
        engine::debug::spawn(&self.shared, listener, entry)
    }

    /// Writes every command to `sink`, until the guard is dropped, as text that `cargo xtask prm
    /// decode` reads. A command returns once it is written, so the recording is complete however
    /// slow `sink` is. A command that cannot be written is lost, and the log says so once.
    pub fn record_commands(&self, mut sink: impl Write + Send + 'static) -> Watch {
        let mut lost = false;
        self.watch_commands(move |executed| {
            let mut text = Vec::new();
            let written = executed.write(&mut text).and_then(|()| sink.write_all(&text));
            if let Err(error) = written
                && !lost
            {
                tracing::warn!(%error, "a command was not recorded: the recording is incomplete");
                lost = true;
            }
        })
    }
}
