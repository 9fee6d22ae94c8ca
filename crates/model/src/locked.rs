//! The functions that a thread has locked, each with a lock of its own, the fabric between them,
//! and the clock.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::clock::Clock;
use crate::directory::{AddressEntry, Directory};
use crate::engine::function::FunctionEngine;
use crate::engine::scratch::Scratch;
use crate::fabric::{Fabric, SharedFabric, Vport};
use crate::functions::{FunctionSlot, FunctionTable};
use crate::hca::{Hca, Refused};
use crate::memory::{DmaStopped, Interrupts, Space, Spaces};
use crate::profile::{Link, Role, Side};
use crate::watch::Outbox;

/// The functions that one thread has locked, and the state that all threads share.
pub(crate) struct LockedFunctions {
    pub functions: FunctionTable,
    pub clock: Clock,
    /// The directory of addresses.
    pub directory: Arc<Directory>,
    /// The version of the addresses in `directory`.
    version: u64,
    /// Whether every message travels in packets, even where the result is the same.
    pub in_packets: bool,
    /// Buffers of this thread.
    pub scratch: Scratch,
    /// A function that the current turn needs and another thread holds: the turn starts again with
    /// both.
    pub contended: Option<usize>,
    /// State that all threads share.
    pub common: Arc<SharedState>,
}

/// State that all threads share.
pub(crate) struct SharedState {
    pub slots: Box<[FunctionSlot]>,
    pub fabric: SharedFabric,
    directory: Mutex<Arc<Directory>>,
    version: AtomicU64,
    /// The model has failed.
    pub dead: AtomicBool,
    /// Events for watchers; delivered once the locks are released.
    pub outbox: Arc<Outbox>,
}

impl SharedState {
    /// No locked functions.
    pub(crate) fn lock_none(self: &Arc<Self>, clock: Clock, in_packets: bool) -> LockedFunctions {
        LockedFunctions {
            functions: FunctionTable::none(self.slots.len()),
            clock,
            directory: Arc::default(),
            version: 0,
            in_packets,
            scratch: Scratch::default(),
            contended: None,
            common: self.clone(),
        }
    }
}

impl LockedFunctions {
    /// Builds the shared state of these functions, and locks them all.
    pub(crate) fn new(mut functions: Vec<FunctionEngine>, stepped: bool) -> Self {
        let outbox = Arc::<Outbox>::default();
        for (number, function) in functions.iter_mut().enumerate() {
            function.engine.outbox = Some((number, outbox.clone()));
            function.engine.waits.at_every_step = stepped;
            function.engine.flushes.without_delay = stepped;
        }
        let mut fabric = Fabric::default();
        fabric.report_to(outbox.clone());
        let mut cards: Vec<(Link, u8, Vec<usize>)> = Vec::new();
        for (number, FunctionEngine { hca, .. }) in functions.iter().enumerate() {
            match cards.last_mut().filter(|_| hca.shares_card) {
                Some((.., functions)) => functions.push(number),
                None => cards.push((hca.profile.link(), hca.ports.len() as u8, vec![number])),
            }
        }
        for (.., card) in &cards {
            set_neighbours(&mut functions, card);
            crate::hca::share_units(
                &card.iter().map(|&id| (id, &functions[id].hca)).collect::<Vec<_>>(),
            );
        }
        for (kind, ports, functions) in cards {
            fabric.add_card(kind, ports, functions);
        }
        let directory =
            Directory::new(functions.iter().map(|function| AddressEntry::of(&function.hca)));
        let spaces: Spaces = functions.iter().map(|it| it.hca.memory.clone()).collect();
        for (number, function) in functions.iter_mut().enumerate() {
            function.space = Space::of(number);
            function.spaces = spaces.clone();
        }
        let common = Arc::new(SharedState {
            slots: functions
                .iter()
                .map(|function| FunctionSlot::new(function.hca.bar.clone()))
                .collect(),
            fabric: SharedFabric::new(fabric, functions.len(), outbox.clone()),
            directory: Mutex::new(Arc::new(directory)),
            version: AtomicU64::new(1),
            dead: AtomicBool::new(false),
            outbox,
        });
        let mut locked = common.lock_none(Clock::new(stepped), false);
        locked.functions = FunctionTable::all(functions);
        (0..locked.functions.len()).for_each(|number| locked.publish_addresses(number));
        locked
    }

    /// The fabric that the functions share; it has a lock of its own.
    pub(crate) fn fabric(&self) -> &SharedFabric {
        &self.common.fabric
    }

    /// The events for watchers.
    pub(crate) fn outbox(&self) -> &Outbox {
        &self.common.outbox
    }

    /// Reports the port addresses of a held function to the fabric and the directory.
    pub(crate) fn publish_addresses(&mut self, function: usize) {
        let hca = &self.functions[function].hca;
        let mut fabric = self.common.fabric.lock();
        for port in 1..=hca.ports.len() as u8 {
            fabric.set_addresses(Vport { function, port }, hca.addresses(port));
        }
        drop(fabric);
        let mut directory = self.common.directory.lock().unwrap_or_else(PoisonError::into_inner);
        if Arc::make_mut(&mut directory).set(function, AddressEntry::of(hca)) {
            self.common.version.fetch_add(1, Ordering::Release);
        }
    }

    /// Rebuilds the directory if any address changed.
    pub(crate) fn refresh_directory(&mut self) {
        let version = self.common.version.load(Ordering::Acquire);
        if self.version != version {
            let directory = self.common.directory.lock().unwrap_or_else(PoisonError::into_inner);
            self.directory = directory.clone();
            self.version = version;
        }
    }

    /// Adds a held function; it is dead if the model has failed.
    pub(crate) fn put(&mut self, id: usize, mut function: Box<FunctionEngine>) {
        function.hca.fatal |= self.common.dead.load(Ordering::Acquire);
        self.functions.put(id, function);
    }

    /// Locks another function. False: another thread holds it, and may wait for one that this
    /// thread holds; [`LockedFunctions::contended`] is then set.
    pub(crate) fn lock(&mut self, id: usize) -> bool {
        if self.functions.has(id) {
            return true;
        }
        let slot = &self.common.slots[id];
        let function = match self.functions.last().is_none_or(|last| last < id) {
            true => Some(slot.take()),
            false => slot.try_take(),
        };
        match function {
            Some(function) => {
                function.hca.memory.hold();
                self.put(id, function);
                // The thread may have waited, and addresses may have changed meanwhile.
                self.clock.tick();
                self.refresh_directory();
                true
            }
            None => {
                self.contended = Some(id);
                false
            }
        }
    }

    /// Locks every function that the aliased and crossing mkeys of the held function `id` refer to;
    /// false as in [`LockedFunctions::lock`].
    #[inline]
    pub(crate) fn lock_owners(&mut self, id: usize) -> bool {
        self.functions[id].hca.key_owners.is_empty() || self.lock_owners_slow(id)
    }

    #[cold]
    fn lock_owners_slow(&mut self, id: usize) -> bool {
        let owners: Vec<usize> = self.functions[id].hca.key_owners.keys().copied().collect();
        owners.into_iter().all(|owner| self.lock(owner))
    }

    /// The functions to lock before the turn is repeated, if it must be: the held ones and the
    /// contended one.
    pub(crate) fn functions_to_relock(&self) -> Option<Vec<usize>> {
        let contended = self.contended?;
        let is_needed = |&id: &usize| id == contended || self.functions.has(id);
        Some((0..self.functions.len()).filter(is_needed).collect())
    }

    /// Proves that no DMA runs while the proof lives.
    ///
    /// # Panics
    /// Unless all functions are held.
    pub(crate) fn dma_stopped(&mut self) -> DmaStopped<'_> {
        assert!(self.functions.has_all(), "another thread holds a function, which may do DMA");
        DmaStopped::new(self)
    }

    /// Whether there are interrupts or events to deliver.
    pub(crate) fn has_deliveries(&self) -> bool {
        let raised = self.functions.iter().any(|function| !function.hca.raised.is_empty());
        let Outbox { commands, requests, frames, .. } = self.outbox();
        raised || commands.is_watched() || requests.is_watched() || frames.is_watched()
    }

    /// Takes the refusals that are not logged so far.
    pub(crate) fn take_refused(&mut self) -> Vec<Refused> {
        let functions = self.functions.iter_mut();
        functions.flat_map(|function| std::mem::take(&mut function.hca.refused)).collect()
    }

    /// Takes the interrupts that were raised under the locks and not delivered so far.
    pub(crate) fn take_interrupts(&mut self) -> Vec<(Arc<dyn Interrupts>, u32)> {
        let mut raised = Vec::new();
        for FunctionEngine { hca, .. } in self.functions.iter_mut() {
            let vectors = std::mem::take(&mut hca.raised);
            if let Some(interrupts) = &hca.interrupts {
                raised.extend(vectors.into_iter().map(|vector| (interrupts.clone(), vector)));
            }
        }
        raised
    }
}

/// Sets which functions of a card each function may reach: a DPU's functions reach the host's, and
/// not the other way round.
fn set_neighbours(functions: &mut [FunctionEngine], card: &[usize]) {
    for &id in card {
        let side = functions[id].hca.profile.side();
        let reaches = card.iter().filter(|&&other| {
            side == Side::Dpu || functions[other].hca.profile.side() == Side::Host
        });
        let named = reaches.map(|&other| (functions[other].hca.caps.general().vhca_id(), other));
        functions[id].hca.neighbours = named.collect();
    }
    for &id in card {
        let own = functions[id].hca.on_card.clone();
        if own.side != Side::Dpu || own.role != Role::Pf {
            continue;
        }
        let others = card.iter().map(|&other| &functions[other].hca);
        let is_managed = |it: &&Hca| it.on_card.side == Side::Host && it.on_card.pf == own.pf;
        let managed = others.filter(is_managed).map(Hca::as_host_function).collect();
        functions[id].hca.host_functions = managed;
    }
    let with_dpa = card.iter().filter(|&&id| functions[id].hca.dpa.is_some());
    let reaching: Vec<_> = with_dpa
        .flat_map(|&id| {
            let hca = &functions[id].hca;
            let by = (hca.caps.general().vhca_id(), id);
            let dpa = hca.dpa.as_ref().map(Arc::downgrade);
            hca.neighbours.values().map(move |&other| (by, dpa.clone(), other))
        })
        .collect();
    for (by, dpa, other) in reaching {
        functions[other].hca.reached_by.insert(by);
        functions[other].hca.reaching_dpas.extend(dpa.map(|dpa| (by.1, dpa)));
    }
}

impl Drop for LockedFunctions {
    /// Puts the held functions back.
    fn drop(&mut self) {
        for (id, slot) in self.common.slots.iter().enumerate().rev() {
            if let Some(function) = self.functions.take(id) {
                slot.put_back(function);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::{Model, Profile};

    #[test]
    fn dpu_function_is_not_reachable_from_host() {
        let card = || Profile::load("bluefield3").expect("the profile is built in");
        let without_dpa = Profile::load("connectx6dx").expect("the profile is built in");
        let model = Model::builder()
            .device_with_sides(card())
            .device(without_dpa)
            .device_with_sides(card())
            .stepped()
            .build();
        let vhca = |id| model.shared.peek(id, |it| it.hca.caps.general().vhca_id());
        // Each with the functions that may name it for their processes.
        let expected: [&[usize]; 5] = [&[0, 1], &[1], &[], &[3, 4], &[4]];
        for (id, by) in expected.into_iter().enumerate() {
            let by = by.iter().map(|&by| (vhca(by), by)).collect();
            let found = model.shared.peek(id, |it| it.hca.reached_by.clone());
            assert_eq!(found, by, "function {id}");
        }
    }
}
