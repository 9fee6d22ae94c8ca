//! Programs on the DPA, driven only by commands: processes, calls, threads that CQ events start,
//! outboxes, windows, faults. The layouts are the model's own, so that no hardware sees them.

pub(super) mod events;
pub(super) mod partitions;
mod program;
pub(super) mod programs;
pub(super) mod registers;
pub(super) mod rig;

use std::time::{Duration, Instant};

use verbless_command::{
    Affinity, Device, DpaCallState, DpaEntry, DpaStatus, DpaThreadState, KeyAccess, MkeyAttr,
};
use verbless_devx::ErrorKind;
use verbless_prm::{
    AccessRegisterUserIn, AccessRegisterUserOut, CommandStatus, DpaFault, NicDpaEugModify,
    NicDpaEugReg, NicDpaOperation, RegisterId,
};
use verbless_queue::wr::{Read, Write};
use verbless_queue::{CqEvents, Parked, Sge};

use self::program::{CC_DB, CODE, CQ_DB, DATA, RXT_DB, SXD_DB};
use self::rig::{Dpa, LOG_CQES, Rig};
use crate::case::cases;
use crate::need::cap;
use crate::{Lab, Need, Pair, Stop, TIMEOUT, ensure, ensure_eq, pattern, until};

cases!(
    "dpa",
    "Programs on the DPA: processes, calls, threads, outboxes, windows, faults.",
    needs [Need::DpaLayouts, cap!(apu)]:
    call_takes_eight_words_and_returns_one,
    concurrent_calls_return_own_results,
    process_memory_is_isolated,
    invalid_elf_is_rejected,
    run_context_holds_outbox_window_and_metadata,
    window_reaches_host_memory,
    window_access_beyond_mkey_ends_process,
    mkey_reaches_heap,
    cq_events_start_thread_without_loss,
    send_cqe_in_heap_cq_starts_thread,
    program_rings_sq_doorbell,
    outbox_reaches_only_queues_of_its_uar,
    doorbell_on_busy_outbox_is_lost,
    finished_thread_runs_no_more,
    rescheduled_thread_runs_until_destroyed,
    fault_ends_process_with_own_status,
    fault_leaves_other_processes_running,
    process_exit_code_becomes_its_status,
    stack_overflow_ends_process,
    ended_process_rejects_calls,
    core_dump_has_registers_and_memory,
    watchdog_stops_endless_run,
    call_destroy_ends_endless_run,
    watchdog_spares_polling_thread,
    program_wakes_host_by_cq_event,
    unknown_eu_is_rejected,
    call_with_strict_affinity_waits_for_its_eu,
    eu_group_confines_calls_to_its_eus,
    eu_group_belongs_to_its_context [cap!(access_register_user)],
    dpa_caps_report_units_and_groups,
);

const WORDS: [u64; 8] = [1, 20, 300, 4_000, 50_000, 600_000, 7_000_000, u64::MAX];

fn call_takes_eight_words_and_returns_one(lab: &Lab) -> Result<(), Stop> {
    let dpa = Dpa::new(lab)?;
    let sum = WORDS.iter().fold(0_u64, |sum, word| sum.wrapping_add(*word));
    let before = dpa.process.query()?.instructions;
    ensure_eq!(dpa.call_with("sum", WORDS)?, sum, "the sum of eight words");
    ensure_eq!(dpa.call("add", [40, 2, 0])?, 42, "the sum of two");
    let info = dpa.process.query()?;
    ensure_eq!(info.status, DpaStatus(0), "status");
    // Each count includes one instruction before the ECALL that ends the call.
    ensure_eq!(info.instructions - before, 9 + 3, "instructions of both calls");
    Ok(())
}

fn concurrent_calls_return_own_results(lab: &Lab) -> Result<(), Stop> {
    let dpa = Dpa::new(lab)?;
    let entry = dpa.entry("add");
    let calls = (0..200_u64).map(|number| {
        let arguments = [number, 1_000, 0, 0, 0, 0, 0, 0];
        dpa.device().begin_dpa_call(&dpa.process, &entry, arguments)
    });
    let calls = calls.collect::<Result<Vec<_>, _>>()?;
    for (number, call) in calls.iter().enumerate() {
        ensure_eq!(dpa.wait(call)?, 1_000 + number as u64, "the result of call {number}");
    }
    Ok(())
}

fn process_memory_is_isolated(lab: &Lab) -> Result<(), Stop> {
    let one = Dpa::new(lab)?;
    let two = Dpa::of(one.rig.clone(), 0)?;
    for (address, value) in [(DATA, 7), (one.process.heap_address(), 8)] {
        one.call("store64", [address, value, 0])?;
        ensure_eq!(one.call("load64", [address, 0, 0])?, value, "the stored value");
        ensure_eq!(two.call("load64", [address, 0, 0])?, 0, "memory of another process");
    }
    Ok(())
}

fn invalid_elf_is_rejected(lab: &Lab) -> Result<(), Stop> {
    let rig = Rig::new(lab)?;
    let whole = rig.program.file.clone();
    let refused = |bytes: &[u8]| -> Result<(), Stop> {
        let error = rig.process_of(bytes, 0).err();
        let error = error.ok_or_else(|| Stop::fail("a file that is not a program was loaded"))?;
        ensure_eq!(error.kind(), ErrorKind::Command, "{error}");
        Ok(())
    };
    refused(&whole[..60])?;
    refused(&whole[..whole.len() - 8])?;
    // Another e_machine; code above the highest address; code in the heap.
    for (at, byte) in [(18, 62), (64 + 23, 0x80), (64 + 20, 1)] {
        let mut file = whole.clone();
        file[at] = byte;
        if at == 64 + 20 {
            file[64 + 19] = 0;
        }
        refused(&file)?;
    }
    rig.process_of(&whole, 0)?;
    Ok(())
}

fn run_context_holds_outbox_window_and_metadata(lab: &Lab) -> Result<(), Stop> {
    let dpa = Dpa::new(lab)?;
    let entry = DpaEntry { metadata: 0xfeed, ..dpa.whole_entry("context") };
    // While the call exists, no other run has its context.
    let call = dpa.device().begin_dpa_call(&dpa.process, &entry, [0; 8])?;
    let context = dpa.wait(&call)?;
    let word = |at| dpa.call("load64", [context + at, 0, 0]);
    let ids = word(0)?;
    ensure_eq!(ids as u32, 9, "the version of the outbox");
    ensure_eq!(ids >> 32 & 0xffff, u64::from(dpa.outbox.id()), "the outbox");
    ensure_eq!(ids >> 48, u64::from(dpa.window.id()), "the window of entity 0");
    ensure_eq!(word(0x20)?, 0xfeed, "the metadata parameter");
    ensure_eq!(dpa.call("load32", [context + 0x28, 0, 0])?, 0, "os_errno");
    ensure_eq!(dpa.call("load32", [context + 0x2c, 0, 0])? >> 16, 0xffff, "no second window");
    Ok(())
}

fn window_reaches_host_memory(lab: &Lab) -> Result<(), Stop> {
    let dpa = Dpa::new(lab)?;
    let key = dpa.rig.key(KeyAccess::ALL)?;
    let address = dpa.through_window(key.lkey().0, dpa.rig.host.umem.address())?;
    dpa.rig.host.memory.write_at(4096, &pattern(1, 64))?;
    for at in 0..8 {
        let word = dpa.call("load64", [address + 4096 + 8 * at, 0, 0])?;
        dpa.call("store64", [address + 8 * at, word, 0])?;
    }
    dpa.call("store8", [address + 63, 0xab, 0])?;
    let mut back = [0; 64];
    dpa.rig.host.memory.read_at(0, &mut back)?;
    let mut expected = pattern(1, 64);
    expected[63] = 0xab;
    ensure_eq!(back[..], expected[..], "the program's copy");
    Ok(())
}

fn window_access_beyond_mkey_ends_process(lab: &Lab) -> Result<(), Stop> {
    let dpa = Dpa::new(lab)?;
    let read_only = dpa.rig.key(KeyAccess::LOCAL_READ)?;
    let address = dpa.through_window(read_only.lkey().0, dpa.rig.host.umem.address())?;
    ensure_eq!(dpa.call("load64", [address, 0, 0])?, 0, "what may be read");
    dpa.dies("store64", [address, 1, 0], DpaFault::WINDOW.0, address)?;
    let other = dpa.device().alloc_pd()?;
    let attr = MkeyAttr { pd: other, ..dpa.rig.key_attr(KeyAccess::ALL) };
    let foreign = dpa.device().create_mkey(attr)?;
    // Past the end of the key, by a key that does not exist, and by one of another PD.
    let length = dpa.rig.host.umem.length();
    let read_only = read_only.lkey().0;
    for (key, offset) in [(read_only, length), (read_only ^ 1, 0), (0, 0), (foreign.lkey().0, 0)] {
        let dpa = Dpa::of(dpa.rig.clone(), 0)?;
        let address = dpa.through_window(key, dpa.rig.host.umem.address())? + offset;
        dpa.dies("load64", [address, 0, 0], DpaFault::WINDOW.0, address)?;
    }
    // A window that does not exist is not memory.
    let dpa = Dpa::of(dpa.rig.clone(), 0)?;
    let nowhere = dpa.window_address(dpa.window.id() + 9, 0);
    dpa.dies("load64", [nowhere, 0, 0], DpaFault::LOAD.0, nowhere)
}

fn mkey_reaches_heap(lab: &Lab) -> Result<(), Stop> {
    let mut pair = Pair::new(lab)?;
    let dpa = Dpa::of(Rig::of(pair.a.domain.device().clone(), pair.a.domain.pd().clone())?, 0)?;
    let (heap, base) = (dpa.rig.heap_key(&dpa.process)?, dpa.process.heap_address());
    pair.b.fill(0, &pattern(2, 3000))?;
    let into = Sge { address: base + 5, lkey: heap.lkey(), length: 3000 };
    pair.a.perform(&Read::new(into, pair.b.remote(0)?).signaled())?;
    let first = u64::from_le_bytes(*pattern(2, 8).first_chunk().unwrap_or(&[0; 8]));
    ensure_eq!(dpa.call("load64", [base, 0, 0])? >> 40, first & 0xff_ffff, "bytes of the peer");
    dpa.call("fill", [base + 100, 0x77, 1000])?;
    let from = Sge { address: base + 5, lkey: heap.lkey(), length: 3000 };
    pair.a.perform(&Write::new(from, pair.b.remote(4096)?).signaled())?;
    let mut expected = pattern(2, 3000);
    expected[95..1095].fill(0x77);
    pair.b.placed(4096, &expected, "the peer's memory has other bytes")?;
    Ok(())
}

fn cq_events_start_thread_without_loss(lab: &Lab) -> Result<(), Stop> {
    const EVENTS: u64 = 3 << LOG_CQES;
    let dpa = Dpa::new(lab)?;
    let drain = dpa.drain()?;
    ensure_eq!(drain.thread.query()?.state, DpaThreadState::IDLE, "before the first event");
    for event in 1..=EVENTS {
        // Several doorbells may come before the thread has taken the first.
        dpa.ring(RXT_DB, drain.cqn())?;
        if event % 3 == 0 {
            until("the thread to take every event", || drain.taken(&dpa, event))?;
        }
    }
    until("the thread to take the last event", || drain.taken(&dpa, EVENTS))?;
    let info = until("the thread to end its run", || drain.idle())?;
    ensure!(info.runs >= EVENTS / 3, "the thread ran {} times only", info.runs);
    ensure_eq!(u64::from(info.events), info.runs, "a run for each event");
    Ok(())
}

fn send_cqe_in_heap_cq_starts_thread(lab: &Lab) -> Result<(), Stop> {
    let pair = Pair::new(lab)?;
    let dpa = Dpa::of(Rig::of(pair.a.domain.device().clone(), pair.a.domain.pd().clone())?, 0)?;
    let drain = dpa.drain()?;
    let mut sender = rig::Sender::new(&dpa.rig, &drain.cq)?;
    sender.connect(&pair.a.domain, &pair.a)?;
    for request in 1..=5 {
        sender.post()?;
        sender.ring();
        until("the thread's run", || drain.taken(&dpa, request))?;
    }
    // The CQE in the heap is a requester's: opcode 0, of this queue pair.
    let at = dpa.process.heap_address() + rig::CQ_AT + 4 * 64 + 0x38;
    let words = dpa.call("load64", [at, 0, 0])?.to_le_bytes();
    ensure_eq!(words[1..4], sender.qpn().to_be_bytes()[1..], "the QP number of the fifth CQE");
    Ok(())
}

fn program_rings_sq_doorbell(lab: &Lab) -> Result<(), Stop> {
    let pair = Pair::new(lab)?;
    let dpa = Dpa::of(Rig::of(pair.a.domain.device().clone(), pair.a.domain.pd().clone())?, 0)?;
    let drain = dpa.drain()?;
    let mut sender = rig::Sender::new(&dpa.rig, &drain.cq)?;
    sender.connect(&pair.a.domain, &pair.a)?;
    sender.post()?;
    crate::endpoint::quiet("a request without a doorbell", || drain.taken(&dpa, 1))?;
    dpa.ring(SXD_DB, u64::from(sender.qpn()) << 32 | 1)?;
    until("the thread's run", || drain.taken(&dpa, 1))?;
    Ok(())
}

fn outbox_reaches_only_queues_of_its_uar(lab: &Lab) -> Result<(), Stop> {
    let dpa = Dpa::new(lab)?;
    let drain = dpa.drain()?;
    // Another process of ours, with an outbox of another page.
    let other = Dpa::of(dpa.rig.with_another_page()?, 0)?;
    let errno_of = |register: u64, value: u64| -> Result<u64, Stop> {
        let (context, uctl) = other.ring_and_look(register, value)?;
        ensure_eq!(uctl, if context == 0 { 0 } else { 2 }, "UCTL after the doorbell");
        Ok(context)
    };
    ensure_eq!(errno_of(RXT_DB, drain.cqn())?, 2, "errno after a CQ of another page");
    ensure_eq!(errno_of(CQ_DB, drain.cqn())?, 2, "errno after arming it");
    ensure_eq!(errno_of(SXD_DB, 0xffff << 32)?, 2, "errno after a queue that does not exist");
    ensure_eq!(errno_of(CC_DB, 0)?, 2, "errno after a doorbell that is not modelled");
    ensure_eq!(drain.thread.query()?.events, 0, "events of the thread");
    dpa.ring(RXT_DB, drain.cqn())?;
    until("the event of the right page", || drain.taken(&dpa, 1))?;
    // An offset without a register is not memory.
    let page = dpa.outbox_address();
    dpa.dies("load64", [page + 0x18, 0, 0], DpaFault::LOAD.0, page + 0x18)
}

fn doorbell_on_busy_outbox_is_lost(lab: &Lab) -> Result<(), Stop> {
    let dpa = Dpa::new(lab)?;
    let drain = dpa.drain()?;
    let entry = dpa.whole_entry("ring_twice");
    let arguments = [dpa.outbox_address(), RXT_DB, drain.cqn(), 0, 0, 0, 0, 0];
    let uctl = dpa.call_at(&entry, arguments)?;
    ensure_eq!(uctl, 3, "UCTL: busy with the first, and an error for the second");
    until("the first event", || drain.taken(&dpa, 1))?;
    until("the thread to end its run", || drain.idle())?;
    ensure_eq!(drain.thread.query()?.events, 1, "events");
    Ok(())
}

fn finished_thread_runs_no_more(lab: &Lab) -> Result<(), Stop> {
    let dpa = Dpa::new(lab)?;
    let drain = dpa.drain_by("finish_thread")?;
    dpa.ring(RXT_DB, drain.cqn())?;
    let finished = || {
        let info = drain.thread.query().ok()?;
        (info.state == DpaThreadState::FINISHED).then_some(info)
    };
    let info = until("the thread to finish", finished)?;
    ensure_eq!((info.runs, info.events), (1, 1), "runs and events");
    dpa.arm(&drain, 1)?;
    dpa.ring(RXT_DB, drain.cqn())?;
    ensure_eq!(drain.thread.query()?.runs, 1, "runs after another event");
    ensure_eq!(dpa.process.query()?.status, DpaStatus(0), "the process continues");
    Ok(())
}

fn rescheduled_thread_runs_until_destroyed(lab: &Lab) -> Result<(), Stop> {
    let dpa = Dpa::new(lab)?;
    let drain = dpa.drain_by("count_again")?;
    dpa.ring(RXT_DB, drain.cqn())?;
    until("a thousand runs", || drain.taken_at_least(&dpa, 1000))?;
    drop(drain.cq);
    drain.thread.destroy()?;
    let count = || dpa.call("load64", [dpa.process.heap_address(), 0, 0]);
    let before = count()?;
    ensure_eq!(count()?, before, "runs after the thread was destroyed");
    Ok(())
}

fn fault_ends_process_with_own_status(lab: &Lab) -> Result<(), Stop> {
    let rig = Rig::new(lab)?;
    let at = |name| rig.program.function(name);
    let nowhere = 0xdead_0000;
    for (name, argument, status, address) in [
        ("illegal", 0, DpaFault::ILLEGAL, 0),
        ("jump", nowhere, DpaFault::FETCH, nowhere),
        ("jump", DATA, DpaFault::FETCH, DATA),
        ("load64", DATA + 4, DpaFault::LOAD_MISALIGNED, DATA + 4),
        ("load64", nowhere, DpaFault::LOAD, nowhere),
        ("store64", DATA + 1, DpaFault::STORE_MISALIGNED, DATA + 1),
        ("store64", nowhere, DpaFault::STORE, nowhere),
        ("store64", CODE, DpaFault::STORE, CODE),
        ("store64", 0, DpaFault::STORE, 0),
        ("breakpoint", 0, DpaFault::BREAKPOINT, 0),
        ("unknown", 0, DpaFault::SYSTEM_CALL, 0),
    ] {
        let dpa = Dpa::of(rig.clone(), 0)?;
        dpa.dies(name, [argument, 0, 0], status.0, address)?;
        let crash = dpa.process.query()?.crash.ok_or_else(|| Stop::fail("no crash report"))?;
        let jumps = name == "jump";
        ensure!(jumps || (at(name)..at(name) + 8).contains(&crash.pc), "pc {:#x}", crash.pc);
        ensure!(crash.in_call, "a call's run");
        ensure_eq!(crash.registers[0], 0, "x0");
        ensure!(name == "unknown" || crash.registers[10] == argument, "a0 of {name}");
    }
    Ok(())
}

fn fault_leaves_other_processes_running(lab: &Lab) -> Result<(), Stop> {
    let dpa = Dpa::new(lab)?;
    let other = Dpa::of(dpa.rig.clone(), 0)?;
    let spins = other.begin("spin", [0; 3])?;
    let drain = other.drain()?;
    dpa.dies("illegal", [0; 3], DpaFault::ILLEGAL.0, 0)?;
    ensure_eq!(other.call("add", [1, 2, 0])?, 3, "a call of the other process");
    other.ring(RXT_DB, drain.cqn())?;
    until("the thread of the other process to run", || drain.taken(&other, 1))?;
    ensure_eq!(spins.state()?, DpaCallState::Running, "the state of the spinning call");
    Ok(())
}

fn process_exit_code_becomes_its_status(lab: &Lab) -> Result<(), Stop> {
    let rig = Rig::new(lab)?;
    for (name, code, status) in [
        ("error", 128, 128),
        ("error", 255, 255),
        ("error", 63, 0x42),
        ("error", 64, 64),
        ("error", 256, 0x42),
        ("finish", 0, 0x40),
    ] {
        Dpa::of(rig.clone(), 0)?.dies(name, [code, 0, 0], status, 0)?;
    }
    Ok(())
}

fn stack_overflow_ends_process(lab: &Lab) -> Result<(), Stop> {
    let dpa = Dpa::new(lab)?;
    let call = dpa.begin("recurse", [0; 3])?;
    let ended = DpaCallState::ProcessEnded(DpaStatus(DpaFault::STORE.0));
    ensure_eq!(dpa.end_of(&call)?, ended, "the call");
    let crash = dpa.process.query()?.crash.ok_or_else(|| Stop::fail("no crash report"))?;
    ensure_eq!(crash.address, crash.registers[2], "the address past the stack");
    Ok(())
}

fn ended_process_rejects_calls(lab: &Lab) -> Result<(), Stop> {
    let dpa = Dpa::new(lab)?;
    let waits = dpa.begin("spin", [0; 3])?;
    dpa.dies("finish", [0; 3], 0x40, 0)?;
    let ended = DpaCallState::ProcessEnded(DpaStatus(0x40));
    ensure_eq!(waits.state()?, ended, "a call that was under way");
    let refused = dpa.device().begin_dpa_call(&dpa.process, &dpa.entry("add"), [0; 8]);
    let error = refused.err().ok_or_else(|| Stop::fail("a process that has ended took a call"))?;
    ensure_eq!(error.kind(), ErrorKind::Command, "{error}");
    Ok(())
}

fn core_dump_has_registers_and_memory(lab: &Lab) -> Result<(), Stop> {
    let dpa = Dpa::new(lab)?;
    dpa.call("store64", [DATA + 16, 0x1122_3344_5566_7788, 0])?;
    dpa.dies("load64", [3, 0xabcd, 0], DpaFault::LOAD_MISALIGNED.0, 3)?;
    let device = dpa.device();
    // Without room the core file stays empty.
    let small = crate::raw::RegisteredMemory::new(device, 4096)?;
    small.memory.write_at(0, &[9; 64])?;
    let length = device.dump_dpa_core(&dpa.process, &small.umem, 0)?;
    let mut bytes = [0; 64];
    small.memory.read_at(0, &mut bytes)?;
    ensure!(length > 4096 && bytes == [9; 64], "nothing is written to a UMEM that is too small");
    let room = crate::raw::RegisteredMemory::new(device, (length as usize).next_multiple_of(4096))?;
    ensure_eq!(device.dump_dpa_core(&dpa.process, &room.umem, 0)?, length, "the same length");
    let mut file = vec![0; length as usize];
    room.memory.read_at(0, &mut file)?;
    let core = rig::Core::parse(&file)?;
    ensure_eq!(core.registers[0], dpa.rig.program.function("load64"), "pc");
    ensure_eq!(core.registers[10..12], [3, 0xabcd], "a0 and a1");
    ensure_eq!(core.word(DATA + 16)?, 0x1122_3344_5566_7788, "a word of its data");
    let first =
        u64::from_le_bytes(*dpa.rig.program.file[0x1000..].first_chunk().unwrap_or(&[0; 8]));
    ensure_eq!(core.word(CODE)?, first, "the code in the core dump");
    Ok(())
}

fn watchdog_stops_endless_run(lab: &Lab) -> Result<(), Stop> {
    let dpa = Dpa::of(Rig::new(lab)?, 1_000_000)?;
    let began = Instant::now();
    let call = dpa.begin("spin", [0; 3])?;
    let ended = DpaCallState::ProcessEnded(DpaStatus(DpaFault::WATCHDOG.0));
    ensure_eq!(dpa.end_of(&call)?, ended, "the call");
    ensure!(began.elapsed() < Duration::from_secs(30), "the watchdog took {:?}", began.elapsed());
    let took = dpa.process.query()?.instructions;
    ensure!(
        (1_000_000..2_000_000).contains(&took),
        "the watchdog ended the call after {took} instructions"
    );
    Ok(())
}

fn call_destroy_ends_endless_run(lab: &Lab) -> Result<(), Stop> {
    let dpa = Dpa::new(lab)?;
    // A group of more EUs than the device has would leave none.
    let calls: Vec<_> = (0..200).map(|_| dpa.begin("spin", [0; 3])).collect::<Result<_, _>>()?;
    ensure_eq!(dpa.call("add", [1, 1, 0])?, 2, "another call while they spin");
    for call in calls {
        call.destroy()?;
    }
    ensure_eq!(dpa.call("add", [1, 2, 0])?, 3, "a call after them");
    Ok(())
}

fn watchdog_spares_polling_thread(lab: &Lab) -> Result<(), Stop> {
    const LIMIT: u64 = 200_000;
    for polling in [true, false] {
        let dpa = Dpa::of(Rig::new(lab)?, LIMIT)?;
        let drain = dpa.drain_as("spin", polling)?;
        let rung = dpa.ring(RXT_DB, drain.cqn());
        if polling {
            // The watchdog may end the process, and with it the call that woke the thread.
            rung?;
        }
        // Calls share the EU with it: after enough of them it has had more time than the watchdog
        // allows.
        let ended = || {
            let _ = dpa.begin("add", [1, 1, 0]).and_then(|call| dpa.end_of(&call));
            dpa.process.query().ok().filter(|info| !info.status.runs())
        };
        match polling {
            true => crate::endpoint::quiet("the watchdog stopped a polling thread", ended)?,
            false => {
                let info = until("the watchdog to stop the thread", ended)?;
                ensure_eq!(info.status, DpaStatus(DpaFault::WATCHDOG.0), "status");
                let crash = info.crash.ok_or_else(|| Stop::fail("no crash report"))?;
                ensure!(!crash.in_call, "a thread's run");
                ensure_eq!(crash.runner, drain.thread.id(), "which thread");
            }
        }
    }
    Ok(())
}

fn program_wakes_host_by_cq_event(lab: &Lab) -> Result<(), Stop> {
    let mut pair = Pair::new(lab)?;
    let events = CqEvents::new(&pair.a.device)?;
    events.add(&mut pair.a.send_cq, 7)?;
    let uar = pair.a.send_cq.object().attr().uar.clone();
    let cqn = u64::from(pair.a.send_cq.object().cqn().0);
    let rig = Rig::at(pair.a.domain.device().clone(), pair.a.domain.pd().clone(), uar)?;
    let dpa = Dpa::of(rig, 0)?;
    for _ in 0..3 {
        ensure_eq!(events.park(&mut pair.a.send_cq)?, Parked::Armed, "an empty queue");
        dpa.ring(RXT_DB, cqn)?;
        ensure_eq!(events.wait(Some(TIMEOUT))?, Some(7), "token");
        // The CQE belongs to no queue pair: every field but the owner is 0.
        let Pair { a, .. } = &mut pair;
        let done = until("the CQE", || a.qp.poll(&mut a.send_cq))?;
        ensure!(done.is_err(), "a CQE of zeros completed a request: {done:?}");
    }
    Ok(())
}

fn unknown_eu_is_rejected(lab: &Lab) -> Result<(), Stop> {
    let dpa = Dpa::new(lab)?;
    for affinity in [Affinity::Strict(u16::MAX), Affinity::Group(77)] {
        let entry = DpaEntry { affinity, ..dpa.entry("add") };
        let refused = dpa.device().begin_dpa_call(&dpa.process, &entry, [0; 8]);
        let error = refused.err().ok_or_else(|| Stop::fail("an EU that does not exist"))?;
        ensure_eq!(error.kind(), ErrorKind::Command, "{error}");
    }
    Ok(())
}

fn call_with_strict_affinity_waits_for_its_eu(lab: &Lab) -> Result<(), Stop> {
    let dpa = Dpa::new(lab)?;
    let entry = |unit| DpaEntry { affinity: Affinity::Strict(unit), ..dpa.entry("spin") };
    let spins = dpa.device().begin_dpa_call(&dpa.process, &entry(5), [0; 8])?;
    let waits = DpaEntry { affinity: Affinity::Strict(5), ..dpa.entry("add") };
    let call = dpa.device().begin_dpa_call(&dpa.process, &waits, [2, 3, 0, 0, 0, 0, 0, 0])?;
    ensure_eq!(dpa.call("add", [1, 2, 0])?, 3, "a call on another EU");
    ensure_eq!(call.state()?, DpaCallState::Running, "a call whose EU is taken");
    spins.destroy()?;
    ensure_eq!(dpa.wait(&call)?, 5, "a call whose EU is free");
    Ok(())
}

fn eu_group_confines_calls_to_its_eus(lab: &Lab) -> Result<(), Stop> {
    let dpa = Dpa::new(lab)?;
    let group = dpa.device().create_dpa_group("pair", &[7, 40])?;
    ensure_eq!(group.units()?, vec![7, 40], "the EUs");
    let begin = |name| {
        let affinity = Affinity::Group(group.id());
        let entry = DpaEntry { affinity, ..dpa.entry(name) };
        dpa.device().begin_dpa_call(&dpa.process, &entry, [20, 3, 0, 0, 0, 0, 0, 0])
    };
    let (one, two, add) = (begin("spin")?, begin("spin")?, begin("add")?);
    ensure_eq!(dpa.call("add", [1, 2, 0])?, 3, "a call on any other EU");
    ensure_eq!(add.state()?, DpaCallState::Running, "the third of a group of two");
    one.destroy()?;
    ensure_eq!(dpa.wait(&add)?, 23, "the third once one has ended");
    add.destroy()?;
    let third = begin("spin")?;
    let waits = begin("add")?;
    ensure_eq!(waits.state()?, DpaCallState::Running, "the group is full again");
    group.set_units(&[7, 40, 41])?;
    ensure_eq!(dpa.wait(&waits)?, 23, "once the group has another EU");
    let Err(failed) = group.destroy() else {
        return Err(Stop::fail("a group that is in use was destroyed"));
    };
    ensure_eq!(failed.error.kind(), ErrorKind::Command, "destroying a group that is in use");
    let group = failed.object;
    for units in [&[][..], &[u16::from(u8::MAX)], &[1023]] {
        let made = dpa.device().create_dpa_group("none", units);
        ensure!(made.is_err(), "a group of {units:?}");
    }
    drop((third, two, waits));
    group.destroy()?;
    dpa.device().create_dpa_group("again", &[7, 40, 41])?.destroy()?;
    Ok(())
}

/// Writes to the register of groups; gives the group's number from the answer.
fn write_group(
    device: &Device,
    operation: NicDpaOperation,
    id: u16,
    units: &[u16],
) -> Result<u16, verbless_command::Error> {
    let mut register = NicDpaEugReg::default();
    register.set_operation(operation).set_eug_id(id);
    register.set_modify_field_select(NicDpaEugModify::MEMBER_MASK.0);
    for unit in units {
        let at = usize::from(unit / 32);
        register.set_member_mask(at, register.member_mask(at) | 1 << (unit % 32));
    }
    let mut head = AccessRegisterUserIn::new();
    head.set_op_mod(AccessRegisterUserIn::WRITE).set_register_id(RegisterId::NIC_DPA_EUG);
    let input = [head.as_bytes().as_slice(), register.as_bytes()].concat();
    let mut output = vec![0; AccessRegisterUserOut::BYTES + NicDpaEugReg::BYTES];
    device.devx_other(&input, &mut output)?;
    let answer = NicDpaEugReg::from_prefix(&output[AccessRegisterUserOut::BYTES..]);
    Ok(answer.map_or(u16::MAX, NicDpaEugReg::eug_id))
}

fn eu_group_belongs_to_its_context(lab: &Lab) -> Result<(), Stop> {
    let (mine, other) = (lab.device()?, lab.device()?);
    let id = write_group(&mine, NicDpaOperation::CREATE, 0, &[60, 61])?;
    let status = |it: CommandStatus| (!other.hides_refusals()).then_some(it.0);
    for operation in [NicDpaOperation::MODIFY, NicDpaOperation::DESTROY] {
        let error = write_group(&other, operation, id, &[62]).err();
        let error = error
            .ok_or_else(|| Stop::fail(format!("{operation:?} of another function's group")))?;
        ensure_eq!(error.status(), status(CommandStatus::BAD_RES), "{operation:?}: {error}");
    }
    write_group(&mine, NicDpaOperation::MODIFY, id, &[60, 62])?;
    let error = write_group(&other, NicDpaOperation::CREATE, 0, &[62]).err();
    let error = error.ok_or_else(|| Stop::fail("an EU of another function's group"))?;
    ensure_eq!(error.status(), status(CommandStatus::BAD_PARAM), "{error}");
    // No handle destroys it; its context ends.
    drop(mine);
    let again = until("the EUs of a closed context", || {
        Some(write_group(&other, NicDpaOperation::CREATE, 0, &[60, 62])).filter(Result::is_ok)
    })??;
    write_group(&other, NicDpaOperation::DESTROY, again, &[])?;
    Ok(())
}

fn dpa_caps_report_units_and_groups(lab: &Lab) -> Result<(), Stop> {
    let caps = lab.device()?.dpa_caps()?;
    ensure!(caps.units > 0 && caps.max_groups > 0 && caps.max_units_per_group > 0, "{caps:?}");
    ensure!(caps.max_units_per_group <= caps.units, "{caps:?}");
    Ok(())
}
