//! Objects of the DPA: processes, threads, calls, outboxes, windows, core dumps. No public source
//! describes hardware's commands; these are the model's own (`prm/dpa`).

use std::sync::Arc;

use verbless_dpa::{Affinity, Dpa, DpaRefusal, HEAP, RunnerId, RunnerState, Start, function_of};
use verbless_prm::{
    CreateGeneralObjectIn, CreateGeneralObjectOut, DestroyGeneralObjectIn, DestroyGeneralObjectOut,
    DpaAffinity, DpaCall, DpaCoreDump, DpaOutbox, DpaProcess, DpaThread, DpaThreadState, DpaWindow,
    ModifyGeneralObjectIn, ModifyGeneralObjectOut, QueryGeneralObjectIn, QueryGeneralObjectOut,
};
use verbless_riscv::PAGE;

use super::call::{Call, Outcome};
use super::domain::check_uar;
use crate::hca::dump::DumpInProgress;
use crate::hca::objects::{self, DpaEventTarget, QueueMemory, Umem};
use crate::hca::refusal::Refusal;
use crate::hca::registry::{ObjectKind, kind};
use crate::hca::state::Hca;

/// The largest ELF file in bytes.
const MAX_FILE_BYTES: u64 = 64 << 20;

impl Call<'_> {
    pub(super) fn dpa(&self) -> Result<Arc<Dpa>, Refusal> {
        self.hca().dpa.clone().ok_or(Refusal::DpaAbsent)
    }

    /// The command's refusal for a refusal of the DPA.
    fn refused(&self, refused: DpaRefusal) -> Refusal {
        match refused {
            DpaRefusal::Program(why) => self.with_detail(Refusal::DpaProgram, why),
            DpaRefusal::Full => Refusal::DpaFull,
            DpaRefusal::NoProcess => Refusal::DpaEnded,
            DpaRefusal::NoUnit => Refusal::DpaUnit,
            DpaRefusal::NoConfig => Refusal::DpaConfig,
            DpaRefusal::NoPartition => Refusal::DpaPartitionless,
            DpaRefusal::HadThread => Refusal::DpaHasThreads,
        }
    }
}

/// Calls `each` with the address and offset of each contiguous part of a range of a UMEM.
pub(super) fn parts(
    memory: &QueueMemory,
    mut each: impl FnMut(u64, std::ops::Range<usize>) -> Outcome,
) -> Outcome {
    let mut done = 0;
    while done < memory.length {
        let page = 1 << memory.log_page_size;
        let room = page - ((memory.offset + done) & (page - 1));
        let here = room.min(memory.length - done);
        each(memory.address(done), done as usize..(done + here) as usize)?;
        done += here;
    }
    Ok(())
}

/// Supported values of a CQ's ext_element_type.
const DPA_THREAD: u8 = 0;
const EXTERNAL_EQ: u8 = 2;

/// The part of the DPA that gets a CQ's events.
pub(super) fn target(
    call: &Call<'_>,
    of: u8,
    number: u32,
    uar_page: u32,
) -> Result<DpaEventTarget, Refusal> {
    match of {
        DPA_THREAD => {
            let own = call.find(kind::DpaThread, number).map(|_| DpaEventTarget::Thread(number));
            match (own, thread_of_other_context(call, number, uar_page)) {
                (Ok(_), Some(_)) => Err(Refusal::DpaNumberAmbiguous),
                (Err(_), Some(far)) => Ok(far),
                (own, None) => own,
            }
        }
        EXTERNAL_EQ => call.find(kind::DpaEq, number).map(|_| DpaEventTarget::Eq(number)),
        _ => Err(Refusal::Unsupported),
    }
}

/// The thread of this number in a process that this context has extended the CQ's UAR page to. A
/// context that lets a process ring for its queues also lets them start its threads.
fn thread_of_other_context(call: &Call<'_>, thread: u32, uar_page: u32) -> Option<DpaEventTarget> {
    let extensions = call.hca().objects.uar_extensions.values();
    extensions.filter(|it| it.uid == call.uid && it.context.uar_page() == uar_page).find_map(|it| {
        let process = it.context.process_serial();
        let function = function_of(process);
        let dpa = call.hca().reaching_dpas.get(&function)?.upgrade()?;
        dpa.has_thread(process, thread).then_some(DpaEventTarget::OtherContext {
            function,
            process,
            thread,
        })
    })
}

/// CREATE_GENERAL_OBJECT of a process.
pub(in crate::hca) fn create_process(
    call: &mut Call<'_>,
    input: &CreateGeneralObjectIn,
    output: &mut CreateGeneralObjectOut,
) -> Outcome {
    let dpa = call.dpa()?;
    let context: DpaProcess = call.context(input)?;
    if context.error_handler() != 0 {
        return Err(Refusal::Unsupported);
    }
    let umem = call.find(kind::Umem, context.bin_umem_id())?;
    let length = context.bin_bytes();
    let file = umem.memory.slice(context.bin_umem_offset(), length);
    let file = file.filter(|_| length > 0).ok_or(Refusal::UmemBounds)?;
    if length > MAX_FILE_BYTES {
        return Err(Refusal::DpaFull);
    }
    let mut bytes = vec![0; length as usize];
    parts(&file, |address, part| {
        call.hca().memory.read(address, &mut bytes[part]).map_err(|_| Refusal::UmemPages)
    })?;
    let heap_bytes = u64::from(context.heap_bytes()).next_multiple_of(PAGE);
    call.check_count(call.hca().objects.umems.len(), call.hca().caps.general().log_max_umem())?;
    let number = call.hca().numbers.dpa_process.lowest().ok_or(Refusal::NoNumber)?;
    let (heap, serial) = dpa
        .create(number, &bytes, heap_bytes, context.watchdog())
        .map_err(|refused| call.refused(refused))?;
    let address = call.hca().heaps.add(number as u16, heap);
    let pages: Vec<u64> = (0..heap_bytes).step_by(PAGE as usize).map(|at| address + at).collect();
    let memory = QueueMemory {
        pages: call.hca().budget.list(pages),
        log_page_size: PAGE.ilog2(),
        offset: 0,
        length: heap_bytes,
    };
    let umem = Umem { uid: call.uid, memory, writable: true, device: true };
    let made = call.make(kind::Umem, umem).and_then(|heap| {
        let process = objects::DpaProcess { uid: call.uid, heap, context };
        Ok((call.make(kind::DpaProcess, process)?, heap))
    });
    let (process, umem) = made.inspect_err(|_| {
        dpa.remove(number);
        call.hca().heaps.remove(number as u16);
    })?;
    call.change(kind::DpaProcess, process, |process| {
        process.context.set_heap_address(HEAP).set_serial(serial);
        process.context.set_device_umem_id(umem);
        process.context.set_heap_bytes(heap_bytes as u32);
    })?;
    output.set_obj_id(process);
    Ok(())
}

/// QUERY_GENERAL_OBJECT of a process: whether it runs, and what ended it.
pub(in crate::hca) fn query_process(
    call: &mut Call<'_>,
    input: &QueryGeneralObjectIn,
    output: &mut QueryGeneralObjectOut,
) -> Outcome {
    let number = input.obj_id();
    let mut context = call.find(kind::DpaProcess, number)?.context;
    let state = call.dpa()?.process(number).ok_or(Refusal::NoSuchDpaProcess)?;
    context.set_status(state.status).set_ending(state.ending);
    context.set_instructions(state.instructions);
    context.set_udbg_token(call.dpa()?.debug_token(number));
    if let Some(crash) = &state.crash {
        let (in_call, runner) = match crash.runner {
            RunnerId::Thread(number) => (false, number),
            RunnerId::Call(number) => (true, number),
        };
        context.set_fault_in_call(in_call);
        context.set_fault_runner(runner);
        context.set_fault_pc(crash.registers.pc);
        context.set_fault_address(crash.address);
        for (index, &value) in crash.registers.x.iter().enumerate() {
            context.set_registers(index, value);
        }
    }
    output.set_obj_id(number);
    call.write_context(&context)
}

/// MODIFY_GENERAL_OBJECT of a process: sets its error handler.
pub(in crate::hca) fn modify_process(
    call: &mut Call<'_>,
    input: &ModifyGeneralObjectIn,
    _: &mut ModifyGeneralObjectOut,
) -> Outcome {
    let number = input.obj_id();
    let mut given: DpaProcess = call.body()?;
    let handler = entry(given.error_handler())?;
    given.set_error_handler(0);
    if given.as_bytes() != DpaProcess::default().as_bytes() {
        return Err(Refusal::Unsupported);
    }
    call.find(kind::DpaProcess, number)?;
    let set = call.dpa()?.set_error_handler(number, handler);
    set.map_err(|refused| call.refused(refused))?;
    call.change(kind::DpaProcess, number, |process| {
        process.context.set_error_handler(handler);
    })
}

/// DESTROY_GENERAL_OBJECT of a process, in any state.
pub(in crate::hca) fn destroy_process(
    call: &mut Call<'_>,
    input: &DestroyGeneralObjectIn,
    _: &mut DestroyGeneralObjectOut,
) -> Outcome {
    let number = input.obj_id();
    let heap = call.find(kind::DpaProcess, number)?.heap;
    if call.hca().objects.is_used(ObjectKind::Umem, heap) {
        return Err(Refusal::DpaProcessInUse);
    }
    call.destroy(kind::DpaProcess, number)?;
    call.hca_mut().remove(kind::Umem, heap);
    Ok(())
}

fn affinity(affinity: DpaAffinity, id: u16) -> Result<Affinity, Refusal> {
    match affinity {
        DpaAffinity::NONE if id == 0 => Ok(Affinity::Any),
        DpaAffinity::STRICT => Ok(Affinity::Unit(id)),
        DpaAffinity::GROUP => Ok(Affinity::Group(id)),
        _ => Err(Refusal::DpaUnit),
    }
}

fn entry(entry: u64) -> Result<u64, Refusal> {
    if entry == 0 || !entry.is_multiple_of(2) { Err(Refusal::DpaEntry) } else { Ok(entry) }
}

fn state_of(state: RunnerState) -> DpaThreadState {
    match state {
        RunnerState::Idle => DpaThreadState::IDLE,
        RunnerState::Waiting => DpaThreadState::WAITING,
        RunnerState::Running => DpaThreadState::RUNNING,
        RunnerState::Finished => DpaThreadState::FINISHED,
    }
}

/// CREATE_GENERAL_OBJECT of a thread; the thread then waits for its first event.
pub(in crate::hca) fn create_thread(
    call: &mut Call<'_>,
    input: &CreateGeneralObjectIn,
    output: &mut CreateGeneralObjectOut,
) -> Outcome {
    let dpa = call.dpa()?;
    let context: DpaThread = call.context(input)?;
    call.find(kind::DpaProcess, context.process_id())?;
    let mut arguments = [0; 8];
    arguments[0] = context.argument();
    let start = Start {
        entry: entry(context.entry())?,
        arguments,
        metadata: context.metadata(),
        outbox: context.outbox_id(),
        windows: [context.window_id(), context.second_window_id()],
        affinity: affinity(context.affinity(), context.affinity_id())?,
        polling: context.polling(),
        continuable: context.continuable(),
        held: context.held(),
    };
    let number = call.hca().numbers.dpa_thread.lowest().ok_or(Refusal::NoNumber)?;
    dpa.add(RunnerId::Thread(number), context.process_id(), start)
        .map_err(|refused| call.refused(refused))?;
    let made = call.make(kind::DpaThread, objects::DpaThread { uid: call.uid, context });
    output.set_obj_id(made.inspect_err(|_| dpa.remove_runner(RunnerId::Thread(number)))?);
    Ok(())
}

/// MODIFY_GENERAL_OBJECT of a thread: events may start it from here on, with this argument.
pub(in crate::hca) fn modify_thread(
    call: &mut Call<'_>,
    input: &ModifyGeneralObjectIn,
    _: &mut ModifyGeneralObjectOut,
) -> Outcome {
    let number = input.obj_id();
    let context: DpaThread = call.body()?;
    let argument = context.argument();
    let mut rest = context;
    rest.set_argument(0);
    if rest.as_bytes() != DpaThread::default().as_bytes() {
        return Err(Refusal::Unsupported);
    }
    call.find(kind::DpaThread, number)?;
    call.dpa()?.unhold_thread(number, argument).map_err(|refused| call.refused(refused))?;
    call.change(kind::DpaThread, number, |thread| {
        thread.context.set_argument(argument).set_held(false);
    })
}

/// QUERY_GENERAL_OBJECT of a thread.
pub(in crate::hca) fn query_thread(
    call: &mut Call<'_>,
    input: &QueryGeneralObjectIn,
    output: &mut QueryGeneralObjectOut,
) -> Outcome {
    let number = input.obj_id();
    let mut context = call.find(kind::DpaThread, number)?.context;
    let (state, shown, _) =
        call.dpa()?.runner(RunnerId::Thread(number)).ok_or(Refusal::NoSuchDpaThread)?;
    context.set_state(state_of(state));
    context.set_runs(shown.runs);
    context.set_instructions(shown.instructions);
    context.set_events(shown.events);
    context.set_unit(shown.unit.into());
    output.set_obj_id(number);
    call.write_context(&context)
}

/// CREATE_GENERAL_OBJECT of a call; the call starts at once.
pub(in crate::hca) fn create_call(
    call: &mut Call<'_>,
    input: &CreateGeneralObjectIn,
    output: &mut CreateGeneralObjectOut,
) -> Outcome {
    let dpa = call.dpa()?;
    let context: DpaCall = call.context(input)?;
    call.find(kind::DpaProcess, context.process_id())?;
    let start = Start {
        entry: entry(context.entry())?,
        arguments: std::array::from_fn(|index| context.arguments(index)),
        metadata: context.metadata(),
        outbox: context.outbox_id(),
        windows: [context.window_id(), context.second_window_id()],
        affinity: affinity(context.affinity(), context.affinity_id())?,
        polling: false,
        continuable: false,
        held: false,
    };
    let number = call.hca().numbers.dpa_call.lowest().ok_or(Refusal::NoNumber)?;
    dpa.add(RunnerId::Call(number), context.process_id(), start)
        .map_err(|refused| call.refused(refused))?;
    let made = call.make(kind::DpaCall, objects::DpaCall { uid: call.uid, context });
    output.set_obj_id(made.inspect_err(|_| dpa.remove_runner(RunnerId::Call(number)))?);
    Ok(())
}

/// QUERY_GENERAL_OBJECT of a call: whether it has ended, and what it returned.
pub(in crate::hca) fn query_call(
    call: &mut Call<'_>,
    input: &QueryGeneralObjectIn,
    output: &mut QueryGeneralObjectOut,
) -> Outcome {
    let number = input.obj_id();
    let mut context = call.find(kind::DpaCall, number)?.context;
    let (state, shown, status) =
        call.dpa()?.runner(RunnerId::Call(number)).ok_or(Refusal::NoSuchDpaCall)?;
    context.set_state(state_of(state));
    context.set_result(shown.result);
    context.set_status(status);
    output.set_obj_id(number);
    call.write_context(&context)
}

/// CREATE_GENERAL_OBJECT of an outbox.
pub(in crate::hca) fn create_outbox(
    call: &mut Call<'_>,
    input: &CreateGeneralObjectIn,
    output: &mut CreateGeneralObjectOut,
) -> Outcome {
    let dpa = call.dpa()?;
    let mut context: DpaOutbox = call.context(input)?;
    call.find(kind::DpaProcess, context.process_id())?;
    check_uar(call, context.uar_page())?;
    let device_id = context.extended().then(|| context.device_id());
    if device_id.is_none() && context.device_id() != 0 {
        return Err(Refusal::Reserved);
    }
    let id = dpa
        .add_outbox(context.process_id(), context.uar_page(), device_id)
        .map_err(|refused| call.refused(refused))?;
    context.set_config_id(id);
    let made = call.make(kind::DpaOutbox, objects::DpaOutbox { uid: call.uid, context });
    output.set_obj_id(made.inspect_err(|_| dpa.remove_outbox(context.process_id(), id))?);
    Ok(())
}

/// Whether a thread or call of a process starts with an outbox or window that `names` selects.
fn is_initial_config(call: &Call<'_>, process: u32, names: impl Fn(u16, [u16; 2]) -> bool) -> bool {
    let objects = &call.hca().objects;
    let threads = objects.dpa_threads.values().map(|it| &it.context);
    let threads = threads.filter(|it| it.process_id() == process);
    let calls = objects.dpa_calls.values().map(|it| &it.context);
    let calls = calls.filter(|it| it.process_id() == process);
    threads
        .map(|it| (it.outbox_id(), [it.window_id(), it.second_window_id()]))
        .chain(calls.map(|it| (it.outbox_id(), [it.window_id(), it.second_window_id()])))
        .any(|(outbox, windows)| names(outbox, windows))
}

/// DESTROY_GENERAL_OBJECT of an outbox.
pub(in crate::hca) fn destroy_outbox(
    call: &mut Call<'_>,
    input: &DestroyGeneralObjectIn,
    _: &mut DestroyGeneralObjectOut,
) -> Outcome {
    let outbox = call.find(kind::DpaOutbox, input.obj_id())?.context;
    if is_initial_config(call, outbox.process_id(), |id, _| id == outbox.config_id()) {
        return Err(Refusal::DpaConfigInUse);
    }
    call.destroy(kind::DpaOutbox, input.obj_id())
}

/// CREATE_GENERAL_OBJECT of a window.
pub(in crate::hca) fn create_window(
    call: &mut Call<'_>,
    input: &CreateGeneralObjectIn,
    output: &mut CreateGeneralObjectOut,
) -> Outcome {
    let dpa = call.dpa()?;
    let mut context: DpaWindow = call.context(input)?;
    call.find(kind::DpaProcess, context.process_id())?;
    call.find(kind::Pd, context.pd())?;
    let id = dpa
        .add_window(context.process_id(), context.pd())
        .map_err(|refused| call.refused(refused))?;
    context.set_config_id(id);
    let made = call.make(kind::DpaWindow, objects::DpaWindow { uid: call.uid, context });
    output.set_obj_id(made.inspect_err(|_| dpa.remove_window(context.process_id(), id))?);
    Ok(())
}

/// DESTROY_GENERAL_OBJECT of a window.
pub(in crate::hca) fn destroy_window(
    call: &mut Call<'_>,
    input: &DestroyGeneralObjectIn,
    _: &mut DestroyGeneralObjectOut,
) -> Outcome {
    let window = call.find(kind::DpaWindow, input.obj_id())?.context;
    if is_initial_config(call, window.process_id(), |_, ids| ids.contains(&window.config_id())) {
        return Err(Refusal::DpaConfigInUse);
    }
    call.destroy(kind::DpaWindow, input.obj_id())
}

/// CREATE_GENERAL_OBJECT of a core dump; the dump is written if it fits ([`DumpInProgress`]).
pub(in crate::hca) fn create_core_dump(
    call: &mut Call<'_>,
    input: &CreateGeneralObjectIn,
    output: &mut CreateGeneralObjectOut,
) -> Outcome {
    let dpa = call.dpa()?;
    let context: DpaCoreDump = call.context(input)?;
    call.find(kind::DpaProcess, context.process_id())?;
    let umem = call.find(kind::Umem, context.umem_id())?;
    if !umem.writable {
        return Err(Refusal::UmemReadOnly);
    }
    let room = umem.memory.slice(context.umem_offset(), context.dump_bytes());
    let room = room.ok_or(Refusal::UmemBounds)?;
    let file = dpa.core_dump(context.process_id()).ok_or(Refusal::NoSuchDpaProcess)?;
    let mark = Arc::new(());
    let dump = objects::DpaCoreDump { uid: call.uid, context, mark: mark.clone() };
    let number = call.make(kind::DpaCoreDump, dump)?;
    output.set_obj_id(number);
    call.hca_mut().dumping =
        Some(Box::new(DumpInProgress { number, mark, file, room, written: 0 }));
    Ok(())
}

/// Ends a call.
pub(in crate::hca) fn call_removed(hca: &mut Hca, number: u32, _: objects::DpaCall) {
    if let Some(dpa) = &hca.dpa {
        dpa.remove_runner(RunnerId::Call(number));
    }
}

/// Ends a thread.
pub(in crate::hca) fn thread_removed(hca: &mut Hca, number: u32, _: objects::DpaThread) {
    if let Some(dpa) = &hca.dpa {
        dpa.remove_runner(RunnerId::Thread(number));
    }
}

/// Removes an outbox from its process.
pub(in crate::hca) fn outbox_removed(hca: &mut Hca, _: u32, outbox: objects::DpaOutbox) {
    if let Some(dpa) = &hca.dpa {
        dpa.remove_outbox(outbox.context.process_id(), outbox.context.config_id());
    }
}

/// Removes a window from its process.
pub(in crate::hca) fn window_removed(hca: &mut Hca, _: u32, window: objects::DpaWindow) {
    if let Some(dpa) = &hca.dpa {
        dpa.remove_window(window.context.process_id(), window.context.config_id());
    }
}

/// Ends a process and frees its heap; the heap's UMEM is removed separately.
pub(in crate::hca) fn process_removed(hca: &mut Hca, number: u32, _: objects::DpaProcess) {
    if let Some(dpa) = &hca.dpa {
        dpa.remove(number);
    }
    hca.heaps.remove(number as u16);
}

#[cfg(test)]
mod tests;
