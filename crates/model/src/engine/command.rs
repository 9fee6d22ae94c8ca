//! Commands as the engine handles them: a function's objects (`hca`) execute a command, then the
//! engine applies its effects to queues, under the same lock.

use verbless_prm::CqErrorSyndrome;

use super::faults::QueueKind;
use super::function::FunctionEngine;
use super::{blueflame, doorbell, failure, flush, packets};
use crate::hca::effect::Resize;
use crate::hca::objects::QpState;
use crate::hca::{DumpInProgress, Effect, ForeignObject, Refusal, cq_resized};
use crate::locked::LockedFunctions;
use crate::runtime::SendRuntime;

/// Whether a command concerns other functions too, all of which must be locked for it.
pub(crate) fn concerns_others(input: &[u8]) -> bool {
    ForeignObject::by(input).is_some()
}

/// Executes one command of function `id`: takes the whole inbox, whose uid the caller stamps as the
/// kernel does, and returns the whole outbox, which holds the outcome.
#[cfg(test)]
pub(crate) fn execute(locked: &mut LockedFunctions, id: usize, input: &[u8], output: &mut [u8]) {
    let mut rest = begin(locked, id, input, output);
    while let Some(dumping) = rest {
        rest = resume(locked, id, dumping, input, output);
    }
}

/// Begins a command. Most commands complete here. If this returns a rest, call [`resume`] until
/// none is left, and only then answer the sender; others may lock the function in between.
pub(crate) fn begin(
    locked: &mut LockedFunctions,
    id: usize,
    input: &[u8],
    output: &mut [u8],
) -> Option<Box<DumpInProgress>> {
    locked.clock.tick();
    let now = locked.clock.now;
    let answer = ForeignObject::by(input).and_then(|asked| {
        let other = asked.of(&locked.functions[id].hca)?;
        asked.answer(other, &locked.functions[other].hca)
    });
    let function = &mut locked.functions[id];
    function.hca.answer = answer;
    function.hca.execute(input, output);
    function.hca.answer = None;
    let rest = function.hca.dumping.take();
    if let Err(refusal) = apply_all(function, now) {
        function.hca.refuse(input, output, refusal, None);
    }
    if std::mem::take(&mut function.engine.moved) {
        locked.publish_addresses(id);
    }
    if rest.is_none() {
        report(locked, id, input, output);
    }
    rest
}

/// Executes the next part of a command; returns the rest, if any.
pub(crate) fn resume(
    locked: &mut LockedFunctions,
    id: usize,
    mut dumping: Box<DumpInProgress>,
    input: &[u8],
    output: &mut [u8],
) -> Option<Box<DumpInProgress>> {
    locked.clock.tick();
    let hca = &mut locked.functions[id].hca;
    match dumping.write_next_chunk(hca) {
        Ok(true) => {}
        Ok(false) => return Some(dumping),
        Err(refusal) => hca.refuse(input, output, refusal, None),
    }
    report(locked, id, input, output);
    None
}

/// Reports one command and its answer to the observers of the device's commands.
fn report(locked: &LockedFunctions, id: usize, input: &[u8], output: &[u8]) {
    let outbox = locked.outbox();
    if outbox.commands.is_watched() {
        outbox.command(id, locked.clock.now, input, output);
    }
}

/// Resets a function: undoes everything that commands did.
pub(crate) fn reset(locked: &mut LockedFunctions, id: usize) {
    locked.functions[id].hca.reset();
    if let Err(refusal) = apply_all(&mut locked.functions[id], locked.clock.now) {
        tracing::error!(?refusal, "a reset cannot be refused");
    }
    locked.publish_addresses(id);
}

/// Applies the effects of the last command to the engine; an error refuses the command.
fn apply_all(function: &mut FunctionEngine, now: u64) -> Result<(), Refusal> {
    let mut outcome = Ok(());
    // A refused effect does not stop the others.
    for effect in std::mem::take(&mut function.hca.effects) {
        outcome = outcome.and(apply(function, now, effect));
    }
    outcome
}

/// Drops the CQEs, delayed by a fault, of a queue that went to RESET: it completes nothing more.
fn forget_delayed(function: &mut FunctionEngine, number: u32) {
    let delayed = &mut function.engine.delayed;
    let cqs = &mut function.hca.objects.cqs;
    delayed.retain(|_, delayed| {
        let keep = delayed.completion.number != number;
        if !keep && let Some(cq) = cqs.get_mut(&delayed.cqn) {
            cq.runtime.delayed.0 = cq.runtime.delayed.0.saturating_sub(1);
        }
        keep
    });
}

pub(crate) fn apply(
    function: &mut FunctionEngine,
    now: u64,
    effect: Effect,
) -> Result<(), Refusal> {
    match effect {
        Effect::SenderReady(number) => {
            flush::finish(function, number, now);
            doorbell::sender_ready(function, number);
        }
        Effect::QpForgotten(qpn, runtime, send) => {
            forget_delayed(function, qpn);
            function.engine.unfenced.remove(&qpn);
            function.engine.errored.remove(&qpn);
            function.engine.flushes.remove(qpn);
            blueflame::forget(function, qpn);
            function.engine.waits.remove(qpn);
            function.engine.faults.forget(qpn);
            function.engine.stop_timer(runtime.resume_at, qpn);
            if runtime.started().is_some_and(|connection| connection.answers) {
                function.engine.answering.retain(|&answering| answering != qpn);
            }
            if let Some(send) = send {
                leave_rotation(function, qpn, &send);
            }
        }
        Effect::SqForgotten(sqn, send) => {
            forget_delayed(function, sqn);
            function.engine.flushes.remove(sqn);
            blueflame::forget(function, sqn);
            leave_rotation(function, sqn, &send);
        }
        Effect::QpToError(qpn) => {
            let mut pair = function.pair(qpn, now).map_err(|_| Refusal::NoSuchQp)?;
            failure::enter_error(&mut pair);
            packets::answers::forget(pair.qp);
        }
        Effect::RqForgotten(rqn) => {
            forget_delayed(function, rqn);
            function.engine.errored.remove(&rqn);
            function.engine.flushes.remove(rqn);
        }
        Effect::RqToError(rqn) => {
            function.rq(rqn, now).map_err(|_| Refusal::NoSuchRq)?.enter_error();
        }
        Effect::SqToError(sqn) => {
            function.sq(sqn, now).map_err(|_| Refusal::NoSuchSq)?.enter_error();
        }
        Effect::CqForgotten(cqn, runtime) => {
            // A CQE delayed for this CQ must not reach the next CQ of this number.
            if runtime.delayed.0 > 0 {
                function.engine.delayed.retain(|_, delayed| delayed.cqn != cqn);
            }
            if let Some(due) = runtime.moderated {
                function.engine.moderated.remove(&(due, cqn));
            }
            function.engine.faults.forget_cq(cqn);
        }
        Effect::DoorbellForgotten(doorbell, page) => function.engine.sweeps.add(page, doorbell),
        Effect::CqResize(resize) => {
            let Resize { cqn, memory, log_size, context, umems } = *resize;
            let mut parts = function.context(now);
            parts.cq(cqn).map_err(|_| Refusal::NoSuchCq)?.resize(memory, log_size)?;
            cq_resized(&mut function.hca, cqn, context, umems);
        }
        Effect::AllForgotten => {
            function.engine.forget_queues();
            function.engine.faults.forget_all();
            function.engine.moved = true;
        }
        Effect::PortLid(port) => {
            function.engine.moved = true;
            function.events().port_lid(port);
        }
        Effect::EmulatedDoorbell(number) => super::dpa::emulated_rung(function, number, now),
        Effect::AddressesChanged => function.engine.moved = true,
        Effect::Event { kind, data } => function.events().post(kind, 0, data),
    }
    Ok(())
}

/// Removes a send queue from the rotation.
fn leave_rotation(function: &mut FunctionEngine, number: u32, queue: &SendRuntime) {
    if queue.queued {
        function.engine.active.retain(|&active| active != number);
    }
}

/// Writes an event of type `kind` with `data` (bytes 0x20 to 0x3c) to every EQ that subscribed to
/// it.
pub(crate) fn event(locked: &mut LockedFunctions, id: usize, kind: u8, data: [u8; 28]) {
    locked.functions[id].events().post(kind, 0, data);
}

/// Makes a queue fail at once; false if no queue of that number is at work.
pub(crate) fn fail_queue(
    locked: &mut LockedFunctions,
    id: usize,
    kind: QueueKind,
    number: u32,
) -> bool {
    locked.clock.tick();
    let now = locked.clock.now;
    let function = &mut locked.functions[id];
    match kind {
        QueueKind::Qp => {
            let Ok(mut pair) = function.pair(number, now) else { return false };
            if matches!(pair.qp.state, QpState::Reset | QpState::Error) {
                return false;
            }
            failure::fail_with_event(&mut pair);
            packets::answers::forget(pair.qp);
        }
        QueueKind::Cq => {
            let mut parts = function.context(now);
            let Ok(mut cq) = parts.cq(number) else { return false };
            if cq.cq.failure.is_some() {
                return false;
            }
            cq.fail(CqErrorSyndrome::ACCESS_VIOLATION);
        }
    }
    true
}

/// Takes a port (from 1) up or down, and reports it by an event.
pub(crate) fn set_port(locked: &mut LockedFunctions, id: usize, port: u8, up: bool) {
    let function = &mut locked.functions[id];
    let ports = &mut function.hca.ports;
    match usize::from(port).checked_sub(1).and_then(|index| ports.get_mut(index)) {
        Some(state) => {
            if std::mem::replace(&mut state.up, up) != up {
                function.events().port(port, up);
                locked.publish_addresses(id);
            }
        }
        None => tracing::error!(port, "the device has no such port"),
    }
}

#[cfg(test)]
mod tests {
    use verbless_prm::{
        AliasContext, CreateGeneralObjectIn, CreateMkeyIn, GeneralObjectType, QueryGeneralObjectIn,
    };

    use super::concerns_others;

    #[test]
    fn only_alias_creation_concerns_other_functions() {
        let alias = |object, is_alias, context: usize| {
            let mut head = CreateGeneralObjectIn::new();
            head.set_obj_type(object).set_alias_object(is_alias);
            let mut input = head.as_bytes().to_vec();
            input.resize(input.len() + context, 0);
            concerns_others(&input)
        };
        let whole = AliasContext::BYTES;
        assert!(alias(GeneralObjectType::MKEY, true, whole));
        assert!(!alias(GeneralObjectType::MKEY, false, whole), "a key of its own");
        assert!(!alias(GeneralObjectType::DPA_PROCESS, true, whole), "of another object");
        assert!(!alias(GeneralObjectType::MKEY, true, whole - 1), "the inbox is cut");
        let mut query = QueryGeneralObjectIn::new().as_bytes().to_vec();
        query.resize(1024, 0xff);
        assert!(!concerns_others(&query));
        assert!(!concerns_others(CreateMkeyIn::new().as_bytes()));
        assert!(!concerns_others(&[]));
    }
}
