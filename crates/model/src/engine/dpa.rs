//! Requests of DPA programs to the device (doorbells, memory through windows), and the turns of
//! their runs.
//!
//! In threaded mode, separate threads execute the programs, a fraction of a millisecond at a time,
//! so that no program holds up the data path. They lock the function only for a program's request.
//! In stepped mode a turn is a step.

use std::num::NonZero;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Weak};

use verbless_prm::GeneralObjectType;

use super::cqe::Completion;
use super::doorbell;
use super::function::Function;
use super::keys::{Need, Range, Sge, User, VISITS};
use crate::dpa::{Ask, Doorbell, Dpa, Given, Queues, Soon, Turn, Waker};
use crate::shared::SharedWorld;
use crate::world::World;

/// Maximum number of threads that give turns.
const MOST_THREADS: usize = 4;

/// Work that a run may do through windows before it releases the function, in visited entries of
/// indirect keys; each access adds [`ACCESS`]. The last access may visit more, up to [`VISITS`], as
/// a message may.
pub(super) const HOLD: u32 = 4096;
/// Cost of an access and of the instructions up to the next one, in entries.
pub(super) const ACCESS: u32 = 32;

/// Limits how long a run holds the function, by the work done for it.
#[derive(Debug, Default)]
pub(super) struct Hold {
    pub(super) work: u32,
}

impl Hold {
    /// Counts an access that visited this many entries; returns whether the run may make another.
    fn goes_on(&mut self, visited: u32) -> bool {
        self.work += ACCESS + visited;
        self.work < HOLD
    }
}

/// Starts the threads that give turns, if any function has a DPA.
pub(super) fn spawn(shared: &Arc<SharedWorld>) {
    let dpas: Vec<(usize, Arc<Dpa>)> = (0..shared.count())
        .filter_map(|id| Some((id, shared.look(id, |function| function.hca.dpa.clone())?)))
        .collect();
    if dpas.is_empty() {
        return;
    }
    dpas.iter().for_each(|(_, dpa)| dpa.set_waker(&shared.programs));
    let processors = std::thread::available_parallelism().map_or(1, NonZero::get);
    for first in 0..processors.min(MOST_THREADS) {
        let (dpas, waker, shared) = (dpas.clone(), shared.programs.clone(), Arc::downgrade(shared));
        std::thread::Builder::new()
            .name("verbless-dpa".into())
            .spawn(move || give_turns(&dpas, first, &waker, &shared))
            .expect("a thread for the DPA");
    }
}

/// Gives turns for as long as the model lives.
fn give_turns(dpas: &[(usize, Arc<Dpa>)], first: usize, waker: &Waker, shared: &Weak<SharedWorld>) {
    loop {
        let seen = waker.news();
        let mut worked = false;
        for at in 0..dpas.len() {
            let (id, dpa) = &dpas[(first + at) % dpas.len()];
            let ended = dpa.take_ended();
            if !ended.is_empty() {
                let Some(shared) = shared.upgrade() else { return };
                shared
                    .with_function(*id, |world| tell_ended(&mut world.functions[*id], dpa, &ended));
                worked = true;
            }
            let Some(turn) = dpa.turn() else { continue };
            worked = true;
            let given = catch_unwind(AssertUnwindSafe(|| give_turn(*id, dpa, turn, shared)));
            match given {
                Ok(true) => {}
                Ok(false) => return,
                Err(panic) => {
                    if let Some(shared) = shared.upgrade() {
                        shared.fail();
                    }
                    resume_unwind(panic)
                }
            }
        }
        if !worked && !waker.wait(seen) || shared.strong_count() == 0 {
            return;
        }
    }
}

/// Gives a run its turn; false: the model is gone.
fn give_turn(id: usize, dpa: &Dpa, turn: Turn, shared: &Weak<SharedWorld>) -> bool {
    let mut asked = dpa.run(turn);
    while let Some((turn, ask)) = asked {
        let Some(shared) = shared.upgrade() else { return false };
        asked = answer_shared(&shared, id, dpa, turn, ask);
    }
    true
}

/// The result of serving a run's request.
pub(super) enum Served {
    /// The answer to the request.
    Given(Turn, Ask, Given),
    /// The run was answered, and makes this request next.
    Asks(Turn, Ask),
    /// The run was answered, and rests until the function is put back.
    Rests(Turn),
    /// The run was answered, and its turn is over.
    Over,
}

/// Does what a run asks of the device, and lets it go on. A run that copies through a window asks
/// again within a few instructions, word by word: the function stays locked for a while for that.
fn answer_shared(
    shared: &SharedWorld,
    id: usize,
    dpa: &Dpa,
    turn: Turn,
    ask: Ask,
) -> Option<(Turn, Ask)> {
    if !matches!(ask, Ask::Reach { .. }) {
        let given = serve_shared(shared, id, &turn, &ask);
        return dpa.answer(turn, &ask, given);
    }
    let served = shared.with_function(id, |world| match world.have_owners(id) {
        true => Ok(reach_all(world, id, dpa, (turn, ask), &mut Hold::default())),
        false => {
            world.wanted = None;
            Err((turn, ask))
        }
    });
    let served = served.unwrap_or_else(|(turn, ask)| {
        let given = shared.with(|world| serve(world, id, &turn, &ask));
        Served::Given(turn, ask, given)
    });
    match served {
        Served::Given(turn, ask, given) => dpa.answer(turn, &ask, given),
        Served::Asks(turn, ask) => Some((turn, ask)),
        Served::Rests(turn) => dpa.resume(turn),
        Served::Over => None,
    }
}

/// Serves the window requests of a run for as long as it soon makes another.
pub(super) fn reach_all(
    world: &mut World,
    id: usize,
    dpa: &Dpa,
    (mut turn, mut ask): (Turn, Ask),
    hold: &mut Hold,
) -> Served {
    loop {
        let mut visits = VISITS;
        let given = serve_counted(world, id, &turn, &ask, &mut visits);
        match dpa.answer_soon(turn, &ask, given) {
            Soon::Asks(same, next) => (turn, ask) = (same, next),
            Soon::Rests(turn) => return Served::Rests(turn),
            Soon::Over => return Served::Over,
        }
        if !hold.goes_on(VISITS - visits) || !matches!(ask, Ask::Reach { .. }) {
            return Served::Asks(turn, ask);
        }
    }
}

pub(super) fn serve_shared(shared: &SharedWorld, id: usize, turn: &Turn, ask: &Ask) -> Given {
    let alone = shared.with_function(id, |world| {
        let at_hand = world.have_owners(id)
            && extended(&world.functions[id], ask).is_none_or(|other| world.have(other));
        let given = at_hand.then(|| serve(world, id, turn, ask));
        world.wanted = None;
        given
    });
    alone.unwrap_or_else(|| shared.with(|world| serve(world, id, turn, ask)))
}

/// Gives a turn to one run of a locked function; false if none waits for one.
pub(super) fn step(world: &mut World, id: usize) -> bool {
    let Some(dpa) = world.functions[id].hca.dpa.clone() else { return false };
    let ended = dpa.take_ended();
    tell_ended(&mut world.functions[id], &dpa, &ended);
    let Some(turn) = dpa.turn() else { return !ended.is_empty() };
    let mut asked = dpa.run(turn);
    while let Some((turn, ask)) = asked {
        let given = serve(world, id, &turn, &ask);
        asked = dpa.answer(turn, &ask, given);
    }
    true
}

/// Reports processes that have ended to software, each by an event.
fn tell_ended(function: &mut Function, dpa: &Dpa, ended: &[u32]) {
    for &number in ended {
        // Another process may have the number meanwhile.
        let there = dpa.process(number).is_some_and(|state| state.status != 0);
        if there && !function.hca.fatal {
            function.events().object(GeneralObjectType::DPA_PROCESS, number);
        }
    }
}

/// Does what a run of function `id` asks of the device.
fn serve(world: &mut World, id: usize, turn: &Turn, ask: &Ask) -> Given {
    serve_counted(world, id, turn, ask, &mut { VISITS })
}

/// Serves a request of a run; `visits` is the rest of the run's [`VISITS`].
fn serve_counted(world: &mut World, id: usize, turn: &Turn, ask: &Ask, visits: &mut u32) -> Given {
    world.clock.tick();
    let now = world.clock.now;
    let lives = world.functions[id].hca.dpa.as_ref().is_some_and(|dpa| dpa.lives(turn, ask));
    if !lives || world.functions[id].hca.fatal {
        return match ask {
            Ask::Ring { .. } => Given::NoQueue,
            Ask::Reach { .. } => Given::Refused,
        };
    }
    match *ask {
        Ask::Ring { queues, doorbell, .. } => {
            let rung = match queues {
                Queues::Page(page) => ring(&mut world.functions[id], page, doorbell, now),
                Queues::Extension { device_id, process } => {
                    let by = (world.functions[id].hca.caps.general().vhca_id(), process);
                    extended(&world.functions[id], ask).and_then(|other| {
                        let other = &mut world.functions[other];
                        let page = extended_page(other, device_id, by)?;
                        ring(other, page, doorbell, now)
                    })
                }
            };
            rung.unwrap_or(Given::NoQueue)
        }
        Ask::Reach { pd, mkey, address, size, store, .. } => {
            let need = if store.is_some() { Need::LocalWrite } else { Need::LocalRead };
            let range = Range { key: mkey, address, length: size };
            reach(world, id, pd, (range, need), store, visits).map_or(Given::Refused, Given::Value)
        }
    }
}

/// The function whose queues a run rings through an extended UAR; it must be one that the run's own
/// function reaches.
fn extended(function: &Function, ask: &Ask) -> Option<usize> {
    let Ask::Ring { queues: Queues::Extension { device_id, .. }, .. } = ask else { return None };
    function.hca.neighbours.get(&((device_id >> 16) as u16)).copied()
}

/// The UAR page that a function has extended to a process of another function, by that function's
/// vhca_id and serial number.
fn extended_page(function: &Function, device_id: u32, by: (u16, u64)) -> Option<u32> {
    let number = device_id & 0xffff;
    let context = &function.hca.objects.uar_extensions.get(&number)?.context;
    let allowed = (context.vhca_id(), context.process_serial()) == by;
    (allowed && !function.hca.fatal).then(|| context.uar_page())
}

/// Rings a queue that names the outbox's UAR page; `None` if there is none.
fn ring(function: &mut Function, page: u32, doorbell: Doorbell, now: u64) -> Option<Given> {
    let objects = &function.hca.objects;
    let names_page = |cqn: u32| objects.cqs.get(&cqn).is_some_and(|cq| cq.uar_page == page);
    // An outbox that reaches the CQ of an emulated doorbell reaches the doorbell.
    let emulated = |number: u32| {
        let context = &objects.emulated_doorbells.get(&number)?.context;
        names_page(context.cqn()).then_some(context)
    };
    match doorbell {
        Doorbell::ArmCq { cqn, consumer } if names_page(cqn) => {
            match function.context(now).cq(cqn) {
                Ok(mut cq) => cq.arm_at(consumer),
                Err(missing) => tracing::error!(%missing, "a CQ that an outbox arms is gone"),
            }
        }
        Doorbell::Send { number, index } => {
            function.hca.objects.sender(number).filter(|sender| sender.uar_page == page)?;
            doorbell::ring_one(function, number, index);
        }
        Doorbell::Trigger { cqn } if names_page(cqn) => zero_cqe(function, cqn, now)?,
        Doorbell::UpdateEq { eqn, consumer, arm } => {
            let known = function.events().programs.doorbell(page, eqn, consumer, arm);
            known.then_some(())?;
        }
        Doorbell::Emulated { cqn, number, arm } => {
            emulated(number).filter(|it| it.cqn() == cqn)?;
            match arm {
                true => {
                    let doorbell = function.hca.objects.emulated_doorbells.get_mut(&number)?;
                    doorbell.context.set_armed(true);
                    emulated_rung(function, number, now);
                }
                false => zero_cqe(function, cqn, now)?,
            }
        }
        Doorbell::ReadEmulated { number } => return Some(Given::Buffer(emulated(number)?.value())),
        Doorbell::Other(register) => {
            tracing::debug!(register, "a doorbell of an outbox that is not modelled");
            return None;
        }
        Doorbell::ArmCq { .. } | Doorbell::Trigger { .. } => return None,
    }
    Some(Given::Value(0))
}

/// Writes a CQE of zeros. An event reports a CQE that cannot be written.
fn zero_cqe(function: &mut Function, cqn: u32, now: u64) -> Option<()> {
    match function.context(now).cq(cqn) {
        Ok(cq) => drop(cq.complete(Completion::zero())),
        Err(missing) => {
            tracing::error!(%missing, "a CQ that a doorbell completes on is gone");
            return None;
        }
    }
    Some(())
}

/// Handles a doorbell of an emulated device that was rung, or armed: one that is both causes a CQE.
pub(super) fn emulated_rung(function: &mut Function, number: u32, now: u64) {
    let Some(doorbell) = function.hca.objects.emulated_doorbells.get_mut(&number) else {
        tracing::error!(number, "an emulated doorbell that was rung or armed is gone");
        return;
    };
    let context = &mut doorbell.context;
    if context.armed() && context.pending() {
        context.set_armed(false).set_pending(false);
        let cqn = context.cqn();
        if zero_cqe(function, cqn, now).is_none() {
            tracing::error!(cqn, number, "an emulated doorbell names a CQ that does not exist");
        }
    }
}

/// A word with the alignment of a word.
#[repr(align(8))]
struct Whole([u8; 8]);

/// Loads or stores up to 8 bytes through a window's key; `None` if the key leads nowhere.
fn reach(
    world: &mut World,
    id: usize,
    pd: u32,
    (range, need): (Range, Need),
    store: Option<u64>,
    visits: &mut u32,
) -> Option<u64> {
    let (function, others) = world.functions.split(id);
    let context = function.context_among(world.clock.now, others);
    let user = User { pd, qpn: super::keys::ANY_QP, reserved_lkey: false };
    let mut sges = Vec::new();
    context.keys().resolve(user, range, need, visits, &mut sges).ok()?;
    // A concurrent reader of an aligned word sees all of it, old or new: within one SGE this is one
    // access. An access of 8 bytes needs alignment at both addresses.
    if let ([Sge::Memory { space, address, .. }], 4) = (&sges[..], range.length)
        && address.is_multiple_of(4)
    {
        let memory = context.spaces.get(*space);
        return match store {
            Some(word) => memory.store32(*address, (word as u32).to_le()).ok().map(|()| 0),
            None => memory.load32(*address).ok().map(|word| u32::from_le(word).into()),
        };
    }
    let mut whole = Whole(store.unwrap_or(0).to_le_bytes());
    let mut done = 0;
    for sge in sges {
        let part = done..done + sge.length() as usize;
        done = part.end;
        let bytes = whole.0.get_mut(part)?;
        if let Sge::Memory { space, address, .. } = sge {
            let memory = context.spaces.get(space);
            match store {
                Some(_) => memory.write(address, bytes),
                None => memory.read(address, bytes),
            }
            .ok()?;
        }
    }
    Some(u64::from_le_bytes(whole.0))
}
