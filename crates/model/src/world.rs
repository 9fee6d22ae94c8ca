//! The world of a thread: the functions that it has, each with a lock of its own, the fabric
//! between them, the clock.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::clock::Clock;
use crate::directory::{Directory, Entry};
use crate::engine::function::Function;
use crate::engine::scratch::Scratch;
use crate::fabric::{Fabric, SharedFabric, Vport};
use crate::functions::{Functions, Slot};
use crate::hca::{Hca, Refused};
use crate::memory::{Interrupts, NothingMoves, Space, Spaces};
use crate::profile::{Link, Role, Side};
use crate::watch::Outbox;

/// The world of one thread: the functions that it has, and the state that all threads share.
pub(crate) struct World {
    pub functions: Functions,
    pub clock: Clock,
    /// The function that each address reaches.
    pub directory: Arc<Directory>,
    /// Which state of the addresses that is.
    version: u64,
    /// Every message goes in packets, also where nobody could tell.
    pub in_packets: bool,
    /// Buffers of this thread's.
    pub scratch: Scratch,
    /// A function that the turn at hand needs and another thread has: who has this world begins
    /// again with both.
    pub wanted: Option<usize>,
    /// State that all threads share.
    pub common: Arc<ModelCommon>,
}

/// State that all threads share.
pub(crate) struct ModelCommon {
    pub slots: Box<[Slot]>,
    pub fabric: SharedFabric,
    directory: Mutex<Arc<Directory>>,
    version: AtomicU64,
    /// The model has failed.
    pub dead: AtomicBool,
    /// Events for watchers, which are told once the locks are released.
    pub outbox: Arc<Outbox>,
}

impl ModelCommon {
    /// A world with no function at hand.
    pub(crate) fn world(self: &Arc<Self>, clock: Clock, in_packets: bool) -> World {
        World {
            functions: Functions::none(self.slots.len()),
            clock,
            directory: Arc::default(),
            version: 0,
            in_packets,
            scratch: Scratch::default(),
            wanted: None,
            common: self.clone(),
        }
    }
}

impl World {
    /// A world of these functions, all of which are at hand.
    pub(crate) fn new(mut functions: Vec<Function>, stepped: bool) -> Self {
        let outbox = Arc::<Outbox>::default();
        for (number, function) in functions.iter_mut().enumerate() {
            function.engine.outbox = Some((number, outbox.clone()));
            function.engine.waits.at_every_step = stepped;
            function.engine.flushes.without_delay = stepped;
        }
        let mut fabric = Fabric::default();
        fabric.show(outbox.clone());
        let mut cards: Vec<(Link, u8, Vec<usize>)> = Vec::new();
        for (number, Function { hca, .. }) in functions.iter().enumerate() {
            match cards.last_mut().filter(|_| hca.shares_card) {
                Some((.., functions)) => functions.push(number),
                None => cards.push((hca.profile.link(), hca.ports.len() as u8, vec![number])),
            }
        }
        for (.., card) in &cards {
            tell_neighbours(&mut functions, card);
            #[cfg(feature = "dpa")]
            crate::hca::share_units(
                &card.iter().map(|&id| (id, &functions[id].hca)).collect::<Vec<_>>(),
            );
        }
        for (kind, ports, functions) in cards {
            fabric.add_card(kind, ports, functions);
        }
        let directory = Directory::new(functions.iter().map(|function| Entry::of(&function.hca)));
        let spaces: Spaces = functions.iter().map(|it| it.hca.memory.clone()).collect();
        for (number, function) in functions.iter_mut().enumerate() {
            function.space = Space::of(number);
            function.spaces = spaces.clone();
        }
        let common = Arc::new(ModelCommon {
            slots: functions.iter().map(|function| Slot::new(function.hca.bar.clone())).collect(),
            fabric: SharedFabric::new(fabric, functions.len(), outbox.clone()),
            directory: Mutex::new(Arc::new(directory)),
            version: AtomicU64::new(1),
            dead: AtomicBool::new(false),
            outbox,
        });
        let mut world = common.world(Clock::new(stepped), false);
        world.functions = Functions::all(functions);
        (0..world.functions.len()).for_each(|number| world.tell_addresses(number));
        world
    }

    /// The fabric that the functions share; nothing else of a world waits for it.
    pub(crate) fn fabric(&self) -> &SharedFabric {
        &self.common.fabric
    }

    /// The events for watchers.
    pub(crate) fn outbox(&self) -> &Outbox {
        &self.common.outbox
    }

    /// Tells the fabric and the directory what the ports of a function, which is at hand, are
    /// called.
    pub(crate) fn tell_addresses(&mut self, function: usize) {
        let hca = &self.functions[function].hca;
        let mut fabric = self.common.fabric.lock();
        for port in 1..=hca.ports.len() as u8 {
            fabric.set_addresses(Vport { function, port }, hca.addresses(port));
        }
        drop(fabric);
        let mut directory = self.common.directory.lock().unwrap_or_else(PoisonError::into_inner);
        if Arc::make_mut(&mut directory).set(function, Entry::of(hca)) {
            self.common.version.fetch_add(1, Ordering::Release);
        }
    }

    /// Looks addresses up anew, if any has changed.
    pub(crate) fn renew_directory(&mut self) {
        let version = self.common.version.load(Ordering::Acquire);
        if self.version != version {
            let directory = self.common.directory.lock().unwrap_or_else(PoisonError::into_inner);
            self.directory = directory.clone();
            self.version = version;
        }
    }

    /// A function is at hand; it is dead if the model has failed.
    pub(crate) fn put(&mut self, id: usize, mut function: Box<Function>) {
        function.hca.fatal |= self.common.dead.load(Ordering::Acquire);
        self.functions.put(id, function);
    }

    /// Sees to it that another function is at hand. False: another thread has it, which may wait
    /// for one that is at hand here; then [`World::wanted`] says so.
    pub(crate) fn have(&mut self, id: usize) -> bool {
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
                // It may have waited, and others may have been told of addresses meanwhile.
                self.clock.tick();
                self.renew_directory();
                true
            }
            None => {
                self.wanted = Some(id);
                false
            }
        }
    }

    /// Sees to it that the functions are at hand whose memory keys of function `id`, which is, lead
    /// to; false as for [`World::have`].
    #[inline]
    pub(crate) fn have_owners(&mut self, id: usize) -> bool {
        self.functions[id].hca.leads_to.is_empty() || self.have_those_of(id)
    }

    #[cold]
    fn have_those_of(&mut self, id: usize) -> bool {
        let owners: Vec<usize> = self.functions[id].hca.leads_to.keys().copied().collect();
        owners.into_iter().all(|owner| self.have(owner))
    }

    /// The functions with which a thread must begin again, if it must: those at hand and the wanted
    /// one.
    pub(crate) fn needed(&self) -> Option<Vec<usize>> {
        let wanted = self.wanted?;
        let needed = |&id: &usize| id == wanted || self.functions.has(id);
        Some((0..self.functions.len()).filter(needed).collect())
    }

    /// Shows that nothing moves as long as it lives.
    ///
    /// # Panics
    /// Unless all functions are at hand.
    pub(crate) fn held(&mut self) -> NothingMoves<'_> {
        assert!(self.functions.has_all(), "a function that is elsewhere may move");
        NothingMoves::new(self)
    }

    /// Whether somebody is to hear of what was done: of interrupts, or by watching.
    pub(crate) fn has_news(&self) -> bool {
        let raised = self.functions.iter().any(|function| !function.hca.raised.is_empty());
        let Outbox { commands, requests, frames, arrivals: _ } = self.outbox();
        raised || commands.is_watched() || requests.is_watched() || frames.is_watched()
    }

    /// Takes the refusals that the log has yet to hear of.
    pub(crate) fn take_refused(&mut self) -> Vec<Refused> {
        let functions = self.functions.iter_mut();
        functions.flat_map(|function| std::mem::take(&mut function.hca.refused)).collect()
    }

    /// Takes the interrupts that were raised under the locks and are yet to be delivered.
    pub(crate) fn take_interrupts(&mut self) -> Vec<(Arc<dyn Interrupts>, u32)> {
        let mut raised = Vec::new();
        for Function { hca, .. } in self.functions.iter_mut() {
            let vectors = std::mem::take(&mut hca.raised);
            if let Some(interrupts) = &hca.interrupts {
                raised.extend(vectors.into_iter().map(|vector| (interrupts.clone(), vector)));
            }
        }
        raised
    }
}

/// Tells the functions of a card which of them they may reach: a DPU's functions reach the host's,
/// and not the other way round.
fn tell_neighbours(functions: &mut [Function], card: &[usize]) {
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
        let is_behind = |it: &&Hca| it.on_card.side == Side::Host && it.on_card.pf == own.pf;
        let behind = others.filter(is_behind).map(Hca::seen_by_manager).collect();
        functions[id].hca.behind = behind;
    }
    let with_dpa = card.iter().filter(|&&id| functions[id].hca.dpa.is_some());
    let reaching: Vec<_> = with_dpa
        .flat_map(|&id| {
            let hca = &functions[id].hca;
            let by = (hca.caps.general().vhca_id(), id);
            hca.neighbours.values().map(move |&other| (by, other))
        })
        .collect();
    for (by, other) in reaching {
        functions[other].hca.reached_by.insert(by);
    }
}

impl Drop for World {
    /// Gives back the functions that are at hand.
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
    fn a_function_is_reached_by_those_of_its_card_that_have_a_dpa_and_a_host_s_not_from_a_host() {
        let card = || Profile::load("bluefield3").expect("it comes along");
        let without_dpa = Profile::load("connectx6dx").expect("it comes along");
        let model = Model::builder()
            .device_with_sides(card())
            .device(without_dpa)
            .device_with_sides(card())
            .stepped()
            .build();
        let vhca = |id| model.shared.look(id, |it| it.hca.caps.general().vhca_id());
        // Each with those that may name it for their processes.
        let expected: [&[usize]; 5] = [&[0, 1], &[1], &[], &[3, 4], &[4]];
        for (id, by) in expected.into_iter().enumerate() {
            let by = by.iter().map(|&by| (vhca(by), by)).collect();
            let found = model.shared.look(id, |it| it.hca.reached_by.clone());
            assert_eq!(found, by, "function {id}");
        }
    }
}
