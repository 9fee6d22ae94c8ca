//! Requests of DPA programs to the device (doorbells, memory through windows), and the turns of
//! their runs.
//!
//! In threaded mode, separate threads execute the programs, a fraction of a millisecond at a time,
//! so that no program holds up the data path. They lock the function only for a program's request.
//! In stepped mode a turn is a step.

use std::num::NonZero;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Weak};

use verbless_dpa::{DeviceAnswer, DeviceRequest, Doorbell, Dpa, Queues, ShortTurn, Turn, Waker};
use verbless_prm::GeneralObjectType;

use super::cqe::Completion;
use super::doorbell;
use super::function::FunctionEngine;
use super::keys::{AccessRight, KeyUser, Range, Sge, VISITS};
use crate::locked::LockedFunctions;
use crate::shared_model::SharedModel;

/// Maximum number of threads that give turns.
const MAX_THREADS: usize = 4;

/// Work that a run may do through windows before it releases the function, in visited entries of
/// indirect keys. Each access adds [`VISITS_PER_ACCESS`]. The last access may exceed the limit, by
/// up to [`VISITS`], the limit of any message.
pub(super) const MAX_HELD_VISITS: u32 = 4096;
/// Cost of an access, and of the instructions up to the next one, in visited entries.
pub(super) const VISITS_PER_ACCESS: u32 = 32;

/// Limits how long a run holds the function, by the work done for it.
#[derive(Debug, Default)]
pub(super) struct HoldLimit {
    pub(super) work: u32,
}

impl HoldLimit {
    /// Counts an access that visited this many entries; returns whether the run may make another.
    fn count_access(&mut self, visited: u32) -> bool {
        self.work += VISITS_PER_ACCESS + visited;
        self.work < MAX_HELD_VISITS
    }
}

/// Starts the threads that give turns, if any function has a DPA.
pub(super) fn spawn(shared: &Arc<SharedModel>) {
    let dpas: Vec<(usize, Arc<Dpa>)> = (0..shared.count())
        .filter_map(|id| Some((id, shared.peek(id, |function| function.hca.dpa.clone())?)))
        .collect();
    if dpas.is_empty() {
        return;
    }
    dpas.iter().for_each(|(_, dpa)| dpa.set_waker(&shared.programs));
    let processors = std::thread::available_parallelism().map_or(1, NonZero::get);
    for first in 0..processors.min(MAX_THREADS) {
        let (dpas, waker, shared) = (dpas.clone(), shared.programs.clone(), Arc::downgrade(shared));
        std::thread::Builder::new()
            .name("verbless-dpa".into())
            .spawn(move || give_turns(&dpas, first, &waker, &shared))
            .expect("a thread for the DPA");
    }
}

/// Gives turns for as long as the model exists.
fn give_turns(dpas: &[(usize, Arc<Dpa>)], first: usize, waker: &Waker, shared: &Weak<SharedModel>) {
    loop {
        let seen = waker.wakes();
        let mut worked = false;
        for at in 0..dpas.len() {
            let (id, dpa) = &dpas[(first + at) % dpas.len()];
            let ended = dpa.take_ended();
            if !ended.is_empty() {
                let Some(shared) = shared.upgrade() else { return };
                shared.with_function(*id, |locked| {
                    report_ended(&mut locked.functions[*id], dpa, &ended)
                });
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

/// Gives a run its turn; false: the model has ended.
fn give_turn(id: usize, dpa: &Dpa, turn: Turn, shared: &Weak<SharedModel>) -> bool {
    let mut next = dpa.run(turn);
    while let Some((turn, request)) = next {
        let Some(shared) = shared.upgrade() else { return false };
        next = answer_shared(&shared, id, dpa, turn, request);
    }
    true
}

/// The result of serving a run's request.
pub(super) enum ServeResult {
    /// The answer to the request.
    DeviceAnswer(Turn, DeviceRequest, DeviceAnswer),
    /// The run was answered, and makes this request next.
    Requests(Turn, DeviceRequest),
    /// The run was answered, and has instructions left: resume it without the lock.
    Rests(Turn),
    /// The run was answered, and its turn is over.
    Over,
}

/// Executes a run's requests to the device, and resumes it. A run that copies through a window,
/// word by word, makes its next request within a few instructions: for that the function stays
/// locked for a while.
fn answer_shared(
    shared: &SharedModel,
    id: usize,
    dpa: &Dpa,
    turn: Turn,
    request: DeviceRequest,
) -> Option<(Turn, DeviceRequest)> {
    if !matches!(request, DeviceRequest::RemoteMemory { .. }) {
        let given = serve_shared(shared, id, &turn, &request);
        return dpa.answer(turn, &request, given);
    }
    let served = shared.with_function(id, |locked| match locked.lock_owners(id) {
        true => {
            Ok(serve_window_requests(locked, id, dpa, (turn, request), &mut HoldLimit::default()))
        }
        false => {
            locked.contended = None;
            Err((turn, request))
        }
    });
    let served = served.unwrap_or_else(|(turn, request)| {
        let given = shared.with(|locked| serve(locked, id, &turn, &request));
        ServeResult::DeviceAnswer(turn, request, given)
    });
    match served {
        ServeResult::DeviceAnswer(turn, request, given) => dpa.answer(turn, &request, given),
        ServeResult::Requests(turn, request) => Some((turn, request)),
        ServeResult::Rests(turn) => dpa.resume(turn),
        ServeResult::Over => None,
    }
}

/// Serves the window requests of a run for as long as it soon makes another.
pub(super) fn serve_window_requests(
    locked: &mut LockedFunctions,
    id: usize,
    dpa: &Dpa,
    (mut turn, mut request): (Turn, DeviceRequest),
    hold: &mut HoldLimit,
) -> ServeResult {
    loop {
        let mut visits = VISITS;
        let given = serve_counted(locked, id, &turn, &request, &mut visits);
        match dpa.answer_for_short_turn(turn, &request, given) {
            ShortTurn::Requests(same, next) => (turn, request) = (same, next),
            ShortTurn::Rests(turn) => return ServeResult::Rests(turn),
            ShortTurn::Over => return ServeResult::Over,
        }
        if !hold.count_access(VISITS - visits)
            || !matches!(request, DeviceRequest::RemoteMemory { .. })
        {
            return ServeResult::Requests(turn, request);
        }
    }
}

pub(super) fn serve_shared(
    shared: &SharedModel,
    id: usize,
    turn: &Turn,
    request: &DeviceRequest,
) -> DeviceAnswer {
    let alone = shared.with_function(id, |locked| {
        let at_hand = locked.lock_owners(id)
            && extended(&locked.functions[id], request).is_none_or(|other| locked.lock(other));
        let given = at_hand.then(|| serve(locked, id, turn, request));
        locked.contended = None;
        given
    });
    alone.unwrap_or_else(|| shared.with(|locked| serve(locked, id, turn, request)))
}

/// Gives a turn to one run of a locked function; false if none waits for one.
pub(super) fn step(locked: &mut LockedFunctions, id: usize) -> bool {
    let Some(dpa) = locked.functions[id].hca.dpa.clone() else { return false };
    let ended = dpa.take_ended();
    report_ended(&mut locked.functions[id], &dpa, &ended);
    let Some(turn) = dpa.turn() else { return !ended.is_empty() };
    let mut next = dpa.run(turn);
    while let Some((turn, request)) = next {
        let given = serve(locked, id, &turn, &request);
        next = dpa.answer(turn, &request, given);
    }
    true
}

/// Reports processes that have ended to software, each by an event.
fn report_ended(function: &mut FunctionEngine, dpa: &Dpa, ended: &[u32]) {
    for &number in ended {
        // Another process may have the number meanwhile.
        let there = dpa.process(number).is_some_and(|state| state.status != 0);
        if there && !function.hca.fatal {
            function.events().object(GeneralObjectType::DPA_PROCESS, number);
        }
    }
}

/// Executes the requests of a run of function `id` to the device.
fn serve(
    locked: &mut LockedFunctions,
    id: usize,
    turn: &Turn,
    request: &DeviceRequest,
) -> DeviceAnswer {
    serve_counted(locked, id, turn, request, &mut { VISITS })
}

/// Serves a request of a run; `visits` is the rest of the run's [`VISITS`].
fn serve_counted(
    locked: &mut LockedFunctions,
    id: usize,
    turn: &Turn,
    request: &DeviceRequest,
    visits: &mut u32,
) -> DeviceAnswer {
    locked.clock.tick();
    let now = locked.clock.now;
    let is_servable =
        locked.functions[id].hca.dpa.as_ref().is_some_and(|dpa| dpa.is_servable(turn, request));
    if !is_servable || locked.functions[id].hca.fatal {
        return match request {
            DeviceRequest::Ring { .. } => DeviceAnswer::NoQueue,
            DeviceRequest::RemoteMemory { .. } => DeviceAnswer::Refused,
        };
    }
    match *request {
        DeviceRequest::Ring { queues, doorbell, .. } => {
            let rung = match queues {
                Queues::Page(page) => ring(&mut locked.functions[id], page, doorbell, now),
                Queues::Extension { device_id, process } => {
                    let by = (locked.functions[id].hca.caps.general().vhca_id(), process);
                    extended(&locked.functions[id], request).and_then(|other| {
                        let other = &mut locked.functions[other];
                        let page = extended_page(other, device_id, by)?;
                        ring(other, page, doorbell, now)
                    })
                }
            };
            rung.unwrap_or(DeviceAnswer::NoQueue)
        }
        DeviceRequest::RemoteMemory { pd, mkey, address, size, store, .. } => {
            let need =
                if store.is_some() { AccessRight::LocalWrite } else { AccessRight::LocalRead };
            let range = Range { key: mkey, address, length: size };
            access(locked, id, pd, (range, need), store, visits)
                .map_or(DeviceAnswer::Refused, DeviceAnswer::Value)
        }
    }
}

/// The function whose queues a run rings through an extended UAR; it must be one that the run's own
/// function reaches.
fn extended(function: &FunctionEngine, request: &DeviceRequest) -> Option<usize> {
    let DeviceRequest::Ring { queues: Queues::Extension { device_id, .. }, .. } = request else {
        return None;
    };
    function.hca.neighbours.get(&((device_id >> 16) as u16)).copied()
}

/// The UAR page that a function has extended to a process of another function, by that function's
/// vhca_id and serial number.
fn extended_page(function: &FunctionEngine, device_id: u32, by: (u16, u64)) -> Option<u32> {
    let number = device_id & 0xffff;
    let context = &function.hca.objects.uar_extensions.get(&number)?.context;
    let allowed = (context.vhca_id(), context.process_serial()) == by;
    (allowed && !function.hca.fatal).then(|| context.uar_page())
}

/// Rings a queue that names the outbox's UAR page; `None` if there is none.
fn ring(
    function: &mut FunctionEngine,
    page: u32,
    doorbell: Doorbell,
    now: u64,
) -> Option<DeviceAnswer> {
    let objects = &function.hca.objects;
    let names_page = |cqn: u32| objects.cqs.get(&cqn).is_some_and(|cq| cq.uar_page == page);
    // An outbox with the UAR page of an emulated doorbell's CQ may ring that doorbell.
    let emulated = |number: u32| {
        let context = &objects.emulated_doorbells.get(&number)?.context;
        names_page(context.cqn()).then_some(context)
    };
    match doorbell {
        Doorbell::ArmCq { cqn, consumer } if names_page(cqn) => {
            match function.context(now).cq(cqn) {
                Ok(mut cq) => cq.arm_at(consumer),
                Err(missing) => tracing::error!(%missing, "an outbox arms a destroyed CQ"),
            }
        }
        Doorbell::Send { number, index } => {
            function.hca.objects.sender(number).filter(|sender| sender.uar_page == page)?;
            doorbell::ring_at_index(function, number, index);
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
        Doorbell::ReadEmulated { number } => {
            return Some(DeviceAnswer::Buffer(emulated(number)?.value()));
        }
        Doorbell::Other(register) => {
            tracing::debug!(register, "a doorbell of an outbox that is not modelled");
            return None;
        }
        Doorbell::ArmCq { .. } | Doorbell::Trigger { .. } => return None,
    }
    Some(DeviceAnswer::Value(0))
}

/// Writes a CQE of zeros. An event reports a CQE that cannot be written.
fn zero_cqe(function: &mut FunctionEngine, cqn: u32, now: u64) -> Option<()> {
    match function.context(now).cq(cqn) {
        Ok(cq) => drop(cq.complete(Completion::zero())),
        Err(missing) => {
            tracing::error!(%missing, "a doorbell completes on a destroyed CQ");
            return None;
        }
    }
    Some(())
}

/// Handles a doorbell of an emulated device that was rung, or armed: one that is both causes a CQE.
pub(super) fn emulated_rung(function: &mut FunctionEngine, number: u32, now: u64) {
    let Some(doorbell) = function.hca.objects.emulated_doorbells.get_mut(&number) else {
        tracing::error!(number, "a rung or armed emulated doorbell was destroyed");
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
struct AlignedWord([u8; 8]);

/// Loads or stores up to 8 bytes through a window's key; `None` if the key does not exist.
fn access(
    locked: &mut LockedFunctions,
    id: usize,
    pd: u32,
    (range, need): (Range, AccessRight),
    store: Option<u64>,
    visits: &mut u32,
) -> Option<u64> {
    let (function, others) = locked.functions.split(id);
    let context = function.context_among(locked.clock.now, others);
    let user = KeyUser { pd, qpn: super::keys::ANY_QP, reserved_lkey: false };
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
    let mut whole = AlignedWord(store.unwrap_or(0).to_le_bytes());
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
