//! The model's public face: build it, move it, look into it, break it.

use std::sync::{Arc, MutexGuard, OnceLock};
use std::time::Duration;

use crate::engine;
use crate::hca::Hca;
use crate::hca::objects::ObjectCounts;
use crate::memory::HostMemory;
use crate::profile::{Profile, Side};
use crate::uverbs::InProcess;
use crate::world::{Shared, World};

/// A modelled machine room: devices, and the fabric between them. Cloning gives another handle to the same one.
#[derive(Clone)]
pub struct Model {
    pub(crate) shared: Arc<Shared>,
    backend: Arc<OnceLock<InProcess>>,
}

/// One function of a device that is to be.
struct Function {
    profile: Profile,
    /// How many functions of its device come before it.
    place: usize,
    /// Which it is on its side, from 0.
    number: u16,
    /// Where it does DMA, if that is a memory of its own.
    memory: Option<Arc<dyn HostMemory>>,
}

/// Says what a model consists of; [`Model::builder`] starts one.
#[derive(Default)]
pub struct Builder {
    functions: Vec<Function>,
    stepped: bool,
    memory: Option<Arc<dyn HostMemory>>,
}

impl Builder {
    /// Adds a device with one function, that of the profile's side.
    pub fn device(mut self, profile: Profile) -> Self {
        self.functions.push(Function { profile, place: 0, number: 0, memory: None });
        self
    }

    /// Adds a device with a function for each side that it has: the host's, then the DPU's. Each counts as a device in
    /// the methods of [`Model`]; [`Model::backend_of`] shows those of one side.
    pub fn device_with_sides(self, profile: Profile) -> Self {
        self.sides(profile.sides().map(|profile| (profile, None)))
    }

    /// The same, with functions that do DMA in memories of their own: the host's, then the DPU's.
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
        self.functions.extend(sides.enumerate().map(|(place, (profile, memory))| Function {
            profile,
            place,
            number: 0,
            memory,
        }));
        self
    }

    /// Adds a device whose functions, one for each memory, do DMA in memories of their own. Each function counts as a
    /// device in the methods of [`Model`].
    pub fn device_in(
        mut self,
        profile: Profile,
        memories: impl IntoIterator<Item = Arc<dyn HostMemory>>,
    ) -> Self {
        self.functions.extend((0..).zip(memories).map(|(number, memory)| Function {
            profile: profile.clone(),
            place: number.into(),
            number,
            memory: Some(memory),
        }));
        self
    }

    /// Nothing moves until [`Model::step`] or [`Model::run_until_idle`], and time only by [`Model::advance`].
    pub fn stepped(mut self) -> Self {
        self.stepped = true;
        self
    }

    /// A thread of the model's own moves it, in real time. This is what a new builder says.
    pub fn threaded(mut self) -> Self {
        self.stepped = false;
        self
    }

    /// The memory that devices with none of their own do DMA in; without it, this process's.
    pub fn memory(mut self, memory: Arc<dyn HostMemory>) -> Self {
        self.memory = Some(memory);
        self
    }

    /// Builds the model, and in threaded mode starts its thread, which ends with the last handle.
    pub fn build(self) -> Model {
        let memory = self.memory.unwrap_or_else(crate::memory::in_process);
        let hcas = self
            .functions
            .into_iter()
            .enumerate()
            .map(|(index, function)| {
                let memory = function.memory.unwrap_or_else(|| memory.clone());
                Hca::new(index, Arc::new(function.profile), memory)
                    .of_function(index - function.place, function.number)
            })
            .collect();
        let clock = engine::Clock::new(self.stepped);
        let world = World { hcas, clock, bench: Default::default() };
        let shared = Shared::new(world, self.stepped);
        if !self.stepped {
            engine::spawn(&shared);
        }
        Model { shared, backend: Arc::default() }
    }
}

impl Model {
    /// Starts the description of a model.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// How many devices there are; they are numbered from 0.
    pub fn devices(&self) -> usize {
        self.shared.lock().hcas.len()
    }

    /// The side that device `device` is on.
    ///
    /// # Panics
    /// When there is no such device.
    pub fn side(&self, device: usize) -> Side {
        self.world_with(device).hcas[device].profile.side()
    }

    /// The in-process front end; every call gives the same one.
    pub fn backend(&self) -> InProcess {
        self.backend.get_or_init(|| InProcess::new(self.shared.clone())).clone()
    }

    /// The same as a program on one side sees it: there are no devices but those of that side, numbered from 0.
    pub fn backend_of(&self, side: Side) -> InProcess {
        self.backend().of_side(side)
    }

    /// Does the next piece of work, if there is any: one WQE, one packet, one timer. False: there was none.
    pub fn step(&self) -> bool {
        self.shared.with(engine::step)
    }

    /// Steps until there is nothing left to do at the present time.
    pub fn run_until_idle(&self) {
        while self.step() {}
    }

    /// Moves the virtual clock of a stepped model on; timers that expire run with the next step.
    pub fn advance(&self, by: Duration) {
        self.shared.with(|world| world.clock.advance(by));
    }

    /// Lets the `nth` command from now with that opcode fail on device `device` (1 is the next one), with that status
    /// and syndrome; it has no other effect.
    ///
    /// # Panics
    /// When there is no such device.
    pub fn fail_command(&self, device: usize, opcode: u16, nth: u32, status: u8, syndrome: u32) {
        self.world_with(device).hcas[device].faults.add(opcode, nth, status, syndrome);
    }

    /// Device `device` dies: every command fails from now on, and nothing moves any more.
    ///
    /// # Panics
    /// When there is no such device.
    pub fn kill(&self, device: usize) {
        self.end(device, false);
    }

    /// Device `device` is taken out: it is dead, and the kernel's driver has let go of it, so that requests of the driver's own,
    /// those that destroy among them, fail with EIO. What clients have is taken back when they close their files.
    ///
    /// # Panics
    /// When there is no such device.
    pub fn remove(&self, device: usize) {
        self.end(device, true);
    }

    fn end(&self, device: usize, removed: bool) {
        let interrupts = {
            let mut world = self.world_with(device);
            let hca = &mut world.hcas[device];
            hca.fatal = true;
            hca.removed |= removed;
            hca.interrupts.clone()
        };
        if let Some(interrupts) = interrupts {
            interrupts.fatal();
        }
    }

    /// The world, of which `device` is to be a part. A number that is none is the caller's mistake: it panics with the lock released,
    /// since a panic of whoever changes the world ends the model.
    fn world_with(&self, device: usize) -> MutexGuard<'_, World> {
        let world = self.shared.lock();
        let devices = world.hcas.len();
        if device >= devices {
            drop(world);
            panic!("there is no device {device}: the model has {devices}, numbered from 0");
        }
        world
    }

    /// Panics when there is no such device.
    pub(crate) fn check_device(&self, device: usize) {
        drop(self.world_with(device));
    }

    /// Takes a port (from 1) of device `device` up or down, and reports it by an event.
    ///
    /// # Panics
    /// When there is no such device, or it has no such port.
    pub fn set_port(&self, device: usize, port: u8, up: bool) {
        let ports = self.world_with(device).hcas[device].ports.len();
        assert!(
            (1..=ports).contains(&port.into()),
            "there is no port {port}: device {device} has {ports}, numbered from 1"
        );
        self.shared.with(|world| engine::set_port(world, device, port, up));
    }

    /// How many pages of host memory device `device` was given and did not give back.
    ///
    /// # Panics
    /// When there is no such device.
    pub fn pages(&self, device: usize) -> usize {
        self.world_with(device).hcas[device].pages.given.len()
    }

    /// How many objects of each kind device `device` holds.
    ///
    /// # Panics
    /// When there is no such device.
    pub fn counts(&self, device: usize) -> ObjectCounts {
        self.world_with(device).hcas[device].objects.counts()
    }
}
