//! Programs that rustc has compiled for the DPA with the device API
//! (`crates/flexio-dev/tests/program`, which documents its entry points).

use std::sync::Arc;
use std::sync::atomic::Ordering;

use verbless_command::{
    CqEventTarget, CqObject, DpaCall, DpaCallState, DpaEntry, DpaEqAttr, DpaOutbox, DpaProcess,
    DpaStatus, DpaThread, DpaThreadKind, DpaThreadState, DpaWindow, KeyAccess, MkeyObject,
    QueueMemory,
};
use verbless_flexio_dev::ThreadMetadata;
use verbless_prm::DpaFault;
use verbless_riscv::Program;

#[path = "../../../../../crates/flexio-dev/tests/program/src/formats.rs"]
mod formats;

use super::rig::{CQ_AT, EQ_AT, LOG_CQES, Rig, Sender};
use crate::case::cases;
use crate::need::cap;
use crate::{Lab, Need, Pair, Stop, ensure, ensure_eq, pattern, until};

cases!(
    "dpa_programs",
    "Compiled programs on the DPA: the device API.",
    needs [Need::DpaLayouts, cap!(apu), Need::DpaProgram]:
    calls_take_arguments_of_every_width,
    formats_match_between_dpa_and_host,
    lock_loses_no_concurrent_update,
    thread_metadata_gives_id_and_storage,
    doorbell_errno_is_cleared_by_read,
    exit_finish_and_panic_have_own_status,
    watchdog_stops_pausing_run,
    polling_thread_runs_alongside_calls,
    reschedule_in_call_ends_process,
    handler_reschedules_waits_and_finishes,
    thread_activation_is_limited_to_own_process,
    continuable_thread_resumes_at_yield,
    yield_of_uncontinuable_thread_has_no_effect,
    window_copy_is_exact_at_any_alignment,
    window_word_accesses_are_single_copy_atomic,
    window_can_be_selected_by_id,
    window_rejects_wide_address_and_faults_on_write,
    cq_arm_after_drain_loses_no_cqe,
    handler_taking_one_cqe_per_run_gets_all,
    handler_drains_cqes_of_qp,
    program_posts_rdma_write,
    doorbell_uses_selected_outbox,
    handler_serves_emulated_device_doorbell,
    program_consumes_eqes_and_sends_msix,
    doorbells_of_unknown_objects_set_errno,
);

/// Offsets in the heap, after the ring of [`CQ_AT`].
const METADATA_AT: u64 = 0x800;
const COUNT_AT: u64 = 0x880;
const DRAIN_AT: u64 = 0xa00;
const RECORD_AT: u64 = 0xb00;
const QP_AT: u64 = 0x3000;
const QP_RECORD_AT: u64 = 0x4000;

/// A process of the program, with an outbox and two windows.
struct Compiled {
    rig: Arc<Rig>,
    program: Arc<Program>,
    process: Arc<DpaProcess>,
    outbox: Arc<DpaOutbox>,
    windows: [Arc<DpaWindow>; 2],
}

impl Compiled {
    fn new(lab: &Lab) -> Result<Self, Stop> {
        Self::of(Rig::new(lab)?, 0)
    }

    fn of(rig: Arc<Rig>, watchdog: u64) -> Result<Self, Stop> {
        let path = crate::dpa_program()
            .ok_or_else(|| Stop::fail("no compiled program was given (--dpa-program)"))?;
        let file = std::fs::read(&path)?;
        let program = Program::parse(&file)?;
        let process = rig.process_of(&file, watchdog)?;
        let outbox = rig.device.create_dpa_outbox(&process, &rig.uar)?;
        let window = || rig.device.create_dpa_window(&process, &rig.pd);
        let windows = [window()?, window()?];
        Ok(Self { program: Arc::new(program), process, outbox, windows, rig })
    }

    /// Another process of the same program.
    fn another(&self) -> Result<Self, Stop> {
        Self::of(self.rig.clone(), 0)
    }

    fn heap(&self, at: u64) -> u64 {
        self.process.heap_address() + at
    }

    fn entry(&self, name: &str) -> Result<DpaEntry, Stop> {
        let symbol = self.program.symbol(name).filter(|symbol| symbol.function);
        let symbol = symbol.ok_or_else(|| Stop::fail(format!("the program has no {name}")))?;
        Ok(DpaEntry {
            outbox: Some(self.outbox.clone()),
            windows: self.windows.each_ref().map(|window| Some(window.clone())),
            ..DpaEntry::at(symbol.address)
        })
    }

    fn begin(&self, name: &str, given: &[u64]) -> Result<DpaCall, Stop> {
        self.begin_at(&self.entry(name)?, given)
    }

    fn begin_at(&self, entry: &DpaEntry, given: &[u64]) -> Result<DpaCall, Stop> {
        let mut arguments = [0; 8];
        arguments[..given.len()].copy_from_slice(given);
        Ok(self.rig.device.begin_dpa_call(&self.process, entry, arguments)?)
    }

    fn end_of(&self, call: &DpaCall) -> Result<DpaCallState, Stop> {
        let ended = || match call.state() {
            Ok(DpaCallState::Running) => None,
            other => Some(other),
        };
        Ok(until("the end of a call", ended)??)
    }

    fn wait(&self, call: &DpaCall) -> Result<u64, Stop> {
        match self.end_of(call)? {
            DpaCallState::Returned(result) => Ok(result),
            other => {
                let report = self.process.query()?;
                Err(Stop::fail(format!("a call did not return: {other:?}; {report}")))
            }
        }
    }

    fn call(&self, name: &str, arguments: &[u64]) -> Result<u64, Stop> {
        self.wait(&self.begin(name, arguments)?)
    }

    /// The status with which a call ends its process.
    fn dies(&self, name: &str, arguments: &[u64]) -> Result<u8, Stop> {
        match self.end_of(&self.begin(name, arguments)?)? {
            DpaCallState::ProcessEnded(DpaStatus(status)) => Ok(status),
            other => Err(Stop::fail(format!("{name} did not end its process: {other:?}"))),
        }
    }

    fn load(&self, at: u64) -> Result<u64, Stop> {
        self.call("load", &[self.heap(at)])
    }

    fn store(&self, at: u64, value: u64) -> Result<(), Stop> {
        self.call("store", &[self.heap(at), value]).map(drop)
    }

    fn store_bytes(&self, at: u64, bytes: &[u8]) -> Result<(), Stop> {
        for (at, part) in (at..).step_by(8).zip(bytes.chunks(8)) {
            let mut word = [0; 8];
            word[..part.len()].copy_from_slice(part);
            self.store(at, u64::from_le_bytes(word))?;
        }
        Ok(())
    }

    fn thread(&self, name: &str, argument: u64, kind: DpaThreadKind) -> Result<DpaThread, Stop> {
        let entry = self.entry(name)?;
        Ok(self.rig.device.create_dpa_thread(&self.process, &entry, argument, kind)?)
    }

    /// Gives a thread an event and waits until it waits again, or has finished.
    fn activate(&self, thread: &DpaThread, runs: u64, end: DpaThreadState) -> Result<(), Stop> {
        ensure_eq!(self.call("activate", &[thread.id().into()])?, 0, "errno after the activation");
        let ended = || thread.query().ok().filter(|it| it.runs == runs && it.state == end);
        until(&format!("the end of run {runs}"), ended).map(drop)
    }

    /// A CQ in the heap; the program takes its CQEs.
    fn drain(&self) -> Result<Drain, Stop> {
        self.drain_by("drain")
    }

    fn drain_by(&self, handler: &str) -> Result<Drain, Stop> {
        let thread = self.thread(handler, self.heap(DRAIN_AT), DpaThreadKind::default())?;
        let cq = self.cq(CqEventTarget::Thread(thread.id()))?;
        let number = u64::from(cq.cqn().0);
        let words =
            [0, 0, self.heap(CQ_AT), self.heap(RECORD_AT), number | u64::from(LOG_CQES) << 32, 0];
        for (at, word) in (DRAIN_AT..).step_by(8).zip(words) {
            self.store(at, word)?;
        }
        // The handler arms the CQ itself, after it has found no CQE.
        self.activate(&thread, 1, DpaThreadState::IDLE)?;
        Ok(Drain { cq, thread })
    }

    /// A CQ in the heap.
    fn cq(&self, element: CqEventTarget) -> Result<Arc<CqObject>, Stop> {
        for entry in 0..1_u64 << LOG_CQES {
            self.store(CQ_AT + 64 * entry + 56, 0xf0 << 56)?;
        }
        self.rig.cq(&self.process, RECORD_AT, element)
    }

    fn drained(&self, count: u64) -> Result<(), Stop> {
        let all = || self.load(DRAIN_AT).ok().filter(|&seen| seen >= count);
        let seen = until(&format!("{count} CQEs"), all)?;
        ensure_eq!(seen, count, "CQEs that the handler has taken");
        Ok(())
    }
}

/// A CQ and the thread that takes its CQEs. The CQ is dropped first.
struct Drain {
    cq: Arc<CqObject>,
    thread: DpaThread,
}

fn calls_take_arguments_of_every_width(lab: &Lab) -> Result<(), Stop> {
    let dpa = Compiled::new(lab)?;
    ensure_eq!(dpa.call("add", &[40, 2])?, 42, "the sum");
    ensure_eq!(dpa.call("add", &[1, u64::MAX])?, 1 + u64::from(u32::MAX), "a word cut to 32 bits");
    let negative = |value: i64| value as u64;
    let widths = [negative(-3), 300, 1, negative(-40_000), 5, negative(-6), 7, 0x1ff];
    let sum = -3 + 300 + 1 - 40_000 + 5 - 6 + 7 + 255;
    ensure_eq!(dpa.call("widths", &widths)? as i64, sum, "the sum of eight widths");
    ensure_eq!(dpa.call("nothing", &[])?, 0, "the result of a function without a result");
    Ok(())
}

fn formats_match_between_dpa_and_host(lab: &Lab) -> Result<(), Stop> {
    let dpa = Compiled::new(lab)?;
    for seed in [0, 1, 0xa5a5_5a5a_1234_8765, u64::MAX] {
        ensure_eq!(dpa.call("formats_of", &[seed])?, formats::all(seed), "formats of {seed:#x}");
    }
    Ok(())
}

fn lock_loses_no_concurrent_update(lab: &Lab) -> Result<(), Stop> {
    const TIMES: u64 = 3_000;
    let dpa = Compiled::new(lab)?;
    let calls = (0..8).map(|_| dpa.begin("increment", &[TIMES]));
    let calls = calls.collect::<Result<Vec<_>, _>>()?;
    for call in &calls {
        dpa.wait(call)?;
    }
    ensure_eq!(dpa.call("count", &[])?, 8 * TIMES, "updates");
    Ok(())
}

fn thread_metadata_gives_id_and_storage(lab: &Lab) -> Result<(), Stop> {
    let dpa = Compiled::new(lab)?;
    ensure_eq!(dpa.call("thread_id", &[])?, 0, "the number of a thread that has none");
    let metadata = ThreadMetadata::new(7, dpa.heap(COUNT_AT), "worker");
    dpa.store_bytes(METADATA_AT, &metadata.to_bytes())?;
    for (name, expected) in [("thread_id", 7), ("thread_storage", dpa.heap(COUNT_AT))] {
        let entry = DpaEntry { metadata: dpa.heap(METADATA_AT), ..dpa.entry(name)? };
        ensure_eq!(dpa.wait(&dpa.begin_at(&entry, &[])?)?, expected, "{name}");
    }
    Ok(())
}

fn doorbell_errno_is_cleared_by_read(lab: &Lab) -> Result<(), Stop> {
    const NO_QUEUE: u64 = 2;
    let dpa = Compiled::new(lab)?;
    let seen = dpa.call("errno_of", &[0xff_ffff])?;
    ensure_eq!(seen, NO_QUEUE << 32 | NO_QUEUE << 16, "errno, as taken, and after that");
    Ok(())
}

fn exit_finish_and_panic_have_own_status(lab: &Lab) -> Result<(), Stop> {
    let dpa = Compiled::new(lab)?;
    ensure_eq!(dpa.call("panics", &[1])?, 2, "what does not panic");
    for (name, argument, status) in [
        ("ends_with", 128, 128),
        ("ends_with", 255, 255),
        ("ends_with", 127, DpaFault::ILLEGAL_ERROR.0),
        ("ends_with", 0, DpaFault::ILLEGAL_ERROR.0),
        ("finishes", 0, DpaFault::FINISHED.0),
        ("finishes_as_before", 0, DpaFault::FINISHED.0),
        ("panics", 3, DpaFault::PANIC.0),
    ] {
        ensure_eq!(dpa.another()?.dies(name, &[argument])?, status, "{name}({argument})");
    }
    ensure_eq!(dpa.process.query()?.status, DpaStatus(0), "the status of the first process");
    Ok(())
}

fn watchdog_stops_pausing_run(lab: &Lab) -> Result<(), Stop> {
    let rig = Rig::new(lab)?;
    for name in ["wait_for", "lock_twice"] {
        let dpa = Compiled::of(rig.clone(), 20_000)?;
        ensure_eq!(dpa.dies(name, &[u64::MAX])?, DpaFault::WATCHDOG.0, "the status of {name}");
    }
    Ok(())
}

fn polling_thread_runs_alongside_calls(lab: &Lab) -> Result<(), Stop> {
    let dpa = Compiled::of(Rig::new(lab)?, 20_000)?;
    let polling = DpaThreadKind { polling: true, ..DpaThreadKind::default() };
    let thread = dpa.thread("polls", 0, polling)?;
    ensure_eq!(dpa.call("activate", &[thread.id().into()])?, 0, "errno");
    // Longer than the watchdog would allow.
    let counted = || dpa.call("count", &[]).ok().filter(|&count| count > 20_000);
    until("20,000 rounds", counted)?;
    thread.destroy()?;
    let count = dpa.call("count", &[])?;
    ensure_eq!(dpa.call("count", &[])?, count, "rounds of a destroyed thread");
    Ok(())
}

fn reschedule_in_call_ends_process(lab: &Lab) -> Result<(), Stop> {
    let dpa = Compiled::new(lab)?;
    ensure_eq!(dpa.dies("reschedules", &[])?, DpaFault::SYSTEM_CALL.0, "status");
    Ok(())
}

fn handler_reschedules_waits_and_finishes(lab: &Lab) -> Result<(), Stop> {
    let dpa = Compiled::new(lab)?;
    let thread = dpa.thread("runs", 3, DpaThreadKind::default())?;
    // Two runs start themselves again; the third waits, and the fourth was the last.
    dpa.activate(&thread, 3, DpaThreadState::IDLE)?;
    dpa.activate(&thread, 4, DpaThreadState::FINISHED)?;
    dpa.activate(&thread, 4, DpaThreadState::FINISHED)
}

fn thread_activation_is_limited_to_own_process(lab: &Lab) -> Result<(), Stop> {
    const NO_THREAD: u64 = 3;
    let (one, two) = (Compiled::new(lab)?, Compiled::new(lab)?);
    let two = match Arc::ptr_eq(&one.rig, &two.rig) {
        true => two,
        false => one.another()?,
    };
    let thread = one.thread("runs", 1, DpaThreadKind::default())?;
    let number = thread.id().into();
    ensure_eq!(two.call("activate", &[number])?, NO_THREAD, "errno of another process");
    ensure_eq!(one.call("activate", &[number ^ 1])?, NO_THREAD, "errno for no thread");
    ensure_eq!(thread.query()?.events, 0, "events of the thread");
    one.activate(&thread, 1, DpaThreadState::IDLE)
}

fn continuable_thread_resumes_at_yield(lab: &Lab) -> Result<(), Stop> {
    let dpa = Compiled::new(lab)?;
    let kind = DpaThreadKind { continuable: true, ..DpaThreadKind::default() };
    let thread = dpa.thread("continues", dpa.heap(COUNT_AT), kind)?;
    for runs in [1, 2] {
        dpa.activate(&thread, runs, DpaThreadState::IDLE)?;
        ensure_eq!(dpa.load(COUNT_AT)?, runs, "rounds of the loop");
    }
    // The third round yields with an event, which starts a fourth.
    dpa.activate(&thread, 4, DpaThreadState::IDLE)?;
    ensure_eq!(dpa.load(COUNT_AT)?, 4, "rounds of the loop");
    Ok(())
}

fn yield_of_uncontinuable_thread_has_no_effect(lab: &Lab) -> Result<(), Stop> {
    let dpa = Compiled::of(Rig::new(lab)?, 300_000)?;
    let thread = dpa.thread("continues", dpa.heap(COUNT_AT), DpaThreadKind::default())?;
    // The run never ends, so the watchdog ends it. The call may end with it.
    let _call = dpa.begin("activate", &[thread.id().into()])?;
    let ended = || dpa.process.query().ok().filter(|info| info.status.0 != 0);
    let info = until("the watchdog", ended)?;
    ensure_eq!(info.status, DpaStatus(DpaFault::WATCHDOG.0), "status");
    Ok(())
}

/// Copies within the host's memory, by `copy`.
fn copies(
    dpa: &Compiled,
    key: &MkeyObject,
    mut copy: impl FnMut(u64, u64, u64, u64) -> Result<u64, Stop>,
) -> Result<(), Stop> {
    const TO: usize = 4096;
    let host = &dpa.rig.host;
    let base = host.umem.address();
    for (from, to, length) in
        [(0, 0, 512), (1, 0, 64), (0, 3, 100), (5, 7, 33), (2, 6, 17), (0, 0, 1), (3, 1, 0)]
    {
        host.memory.write_at(0, &pattern(3, 600))?;
        host.memory.write_at(TO, &[0xa5; 600])?;
        let (source, target) = (base + from, base + TO as u64 + to);
        let done = copy(key.lkey().0.into(), source, target, length)?;
        ensure_eq!(done, 0, "the status of {length} bytes from {from} to {to}");
        let mut found = vec![0; 600];
        host.memory.read_at(TO, &mut found)?;
        let mut expected = vec![0xa5; 600];
        expected[to as usize..][..length as usize]
            .copy_from_slice(&pattern(3, 600)[from as usize..][..length as usize]);
        ensure!(found == expected, "{length} bytes from {from} to {to} are others");
    }
    Ok(())
}

fn window_copy_is_exact_at_any_alignment(lab: &Lab) -> Result<(), Stop> {
    let dpa = Compiled::new(lab)?;
    let key = dpa.rig.key(KeyAccess::ALL)?;
    for second in [0, 1] {
        copies(&dpa, &key, |key, from, to, length| {
            dpa.call("copy", &[second, key, from, to, length])
        })?;
    }
    // The signatures of 2022.
    copies(&dpa, &key, |key, from, to, length| {
        dpa.call("copy_with_context", &[key, from, to, length])
    })
}

fn window_word_accesses_are_single_copy_atomic(lab: &Lab) -> Result<(), Stop> {
    const TIMES: u64 = 10_000;
    let dpa = Compiled::new(lab)?;
    let key = dpa.rig.key(KeyAccess::ALL)?;
    let host = dpa.rig.host.umem.address();
    // SAFETY: nothing else reaches the memory meanwhile but the DPA.
    #[allow(unsafe_code, reason = "words take a promise")]
    let words = unsafe { dpa.rig.host.memory.words() };
    let call = dpa.begin("words", &[key.lkey().0.into(), host, TIMES])?;
    let (mut bits, mut broken, mut changes) = (0_u64, 0, [0; 2]);
    let mut before = [0; 2];
    while call.state()? == DpaCallState::Running {
        for _ in 0..1000 {
            bits = !bits;
            words[0].store(bits, Ordering::Relaxed);
            words[1].store(bits, Ordering::Relaxed);
            // The upper half of the second one stays unwritten.
            let now = [2, 3].map(|it| words[it].load(Ordering::Relaxed));
            let now = [now[0], u64::from(now[1].to_le() as u32) * 0x1_0000_0001];
            broken += now.iter().filter(|word| ![0, u64::MAX].contains(word)).count();
            (0..2).for_each(|at| changes[at] += u64::from(now[at] != before[at]));
            before = now;
        }
    }
    ensure_eq!(dpa.wait(&call)?, 0, "torn words that the program saw");
    ensure_eq!(broken, 0, "torn words that the host saw");
    ensure!(changes.iter().all(|&it| it > 0), "the host saw no change: {changes:?}");
    Ok(())
}

fn window_can_be_selected_by_id(lab: &Lab) -> Result<(), Stop> {
    let dpa = Compiled::new(lab)?;
    let key = dpa.rig.key(KeyAccess::ALL)?;
    let third = dpa.rig.device.create_dpa_window(&dpa.process, &dpa.rig.pd)?;
    dpa.rig.host.memory.write_at(64, &0x1122_3344_5566_7788_u64.to_le_bytes())?;
    let host = dpa.rig.host.umem.address() + 64;
    let peek = |id: u16, address| dpa.call("peek", &[id.into(), key.lkey().0.into(), address]);
    ensure_eq!(peek(third.id(), host)?, 0x1122_3344_5566_7788, "memory of the third window");
    for absent in [third.id() + 1, 255, 256] {
        ensure_eq!(peek(absent, host)?, u64::MAX, "window {absent}, which does not exist");
    }
    ensure_eq!(peek(third.id(), 1 << 48)?, u64::MAX - 1, "an address of 49 bits");
    Ok(())
}

fn window_rejects_wide_address_and_faults_on_write(lab: &Lab) -> Result<(), Stop> {
    let dpa = Compiled::new(lab)?;
    let read_only = dpa.rig.key(KeyAccess::LOCAL_READ)?;
    let key = u64::from(read_only.lkey().0);
    let host = dpa.rig.host.umem.address();
    ensure_eq!(dpa.call("poke", &[key, 1 << 48, 1])?, 1, "the status of an address of 49 bits");
    let end = (1 << 48) - 4;
    ensure_eq!(dpa.call("copy", &[0, key, host, end, 16])?, 1, "of a range that ends above it");
    ensure_eq!(dpa.dies("poke", &[key, host, 1])?, DpaFault::WINDOW.0, "status of the process");
    let mut word = [1; 8];
    dpa.rig.host.memory.read_at(0, &mut word)?;
    ensure_eq!(word, [0; 8], "memory of the rejected write");
    Ok(())
}

fn cq_arm_after_drain_loses_no_cqe(lab: &Lab) -> Result<(), Stop> {
    let dpa = Compiled::new(lab)?;
    let drain = dpa.drain()?;
    // An outbox takes doorbells of one thread only.
    let outbox = Some(dpa.rig.device.create_dpa_outbox(&dpa.process, &dpa.rig.uar)?);
    let entry = DpaEntry { outbox, ..dpa.entry("trigger")? };
    let number = drain.cq.cqn().0.into();
    // At most as many as the CQ has room for.
    for round in 1..=40_u64 {
        for _ in 0..5 {
            dpa.wait(&dpa.begin_at(&entry, &[number])?)?;
        }
        dpa.drained(5 * round)?;
    }
    let runs = drain.thread.query()?.runs;
    ensure!(runs > 40, "200 CQEs in 40 rounds took {runs} runs");
    Ok(())
}

fn handler_taking_one_cqe_per_run_gets_all(lab: &Lab) -> Result<(), Stop> {
    let dpa = Compiled::new(lab)?;
    let drain = dpa.drain_by("drain_one")?;
    let outbox = Some(dpa.rig.device.create_dpa_outbox(&dpa.process, &dpa.rig.uar)?);
    let entry = DpaEntry { outbox, ..dpa.entry("trigger")? };
    for round in 1..=20_u64 {
        // Some come while the handler runs, some before it has armed: each arms for the next one.
        for _ in 0..5 {
            dpa.wait(&dpa.begin_at(&entry, &[drain.cq.cqn().0.into()])?)?;
        }
        dpa.drained(5 * round)?;
    }
    Ok(())
}

fn handler_drains_cqes_of_qp(lab: &Lab) -> Result<(), Stop> {
    let pair = Pair::new(lab)?;
    let device = pair.a.domain.device().clone();
    let dpa = Compiled::of(Rig::of(device, pair.a.domain.pd().clone())?, 0)?;
    let drain = dpa.drain()?;
    let mut sender = Sender::new(&dpa.rig, &drain.cq)?;
    sender.connect(&pair.a.domain, &pair.a)?;
    // More than the CQ has entries, so that the consumer index must reach the device.
    for request in 1..=40 {
        sender.post()?;
        sender.ring();
        dpa.drained(request)?;
    }
    Ok(())
}

fn program_posts_rdma_write(lab: &Lab) -> Result<(), Stop> {
    let pair = Pair::new(lab)?;
    let device = pair.a.domain.device().clone();
    let dpa = Compiled::of(Rig::of(device, pair.a.domain.pd().clone())?, 0)?;
    let drain = dpa.drain()?;
    let heap = Arc::new(dpa.process.heap());
    let memory_at = |at| QueueMemory::new(heap.clone(), at);
    let mut sender = Sender::at(&dpa.rig, &drain.cq, memory_at(QP_AT), memory_at(QP_RECORD_AT))?;
    sender.connect(&pair.a.domain, &pair.a)?;
    let (key, heap_key) = (dpa.rig.key(KeyAccess::ALL)?, dpa.rig.heap_key(&dpa.process)?);
    let keys = u64::from(heap_key.lkey().0) << 32 | u64::from(key.rkey().0);
    let host = dpa.rig.host.umem.address();
    for index in 0..20_u64 {
        dpa.store(COUNT_AT, 0x1111 * (index + 1))?;
        let wqe = dpa.heap(QP_AT) + 64 + 64 * (index % 16);
        let record = dpa.heap(QP_RECORD_AT) + 4;
        let (from, to) = (dpa.heap(COUNT_AT), host + 8 * index);
        let number = u64::from(sender.qpn());
        dpa.call("post_write", &[wqe, number, index, record, from, to, keys, 8])?;
        dpa.drained(index + 1)?;
        let mut word = [0; 8];
        dpa.rig.host.memory.read_at(8 * index as usize, &mut word)?;
        ensure_eq!(u64::from_le_bytes(word), 0x1111 * (index + 1), "what write {index} brought");
    }
    Ok(())
}

fn doorbell_uses_selected_outbox(lab: &Lab) -> Result<(), Stop> {
    const NO_QUEUE: u64 = 2;
    let dpa = Compiled::new(lab)?;
    let drain = dpa.drain()?;
    let other = dpa.rig.device.create_dpa_outbox(&dpa.process, &dpa.rig.uar)?;
    let page = dpa.rig.with_another_page()?;
    let away = dpa.rig.device.create_dpa_outbox(&dpa.process, &page.uar)?;
    let number = drain.cq.cqn().0.into();
    let by = |id: u16, fast: u64| dpa.call("trigger_by", &[id.into(), number, fast]);
    for fast in [0, 1] {
        ensure_eq!(by(other.id(), fast)?, 0, "status and errno");
        dpa.drained(2 * (fast + 1))?;
        ensure_eq!(by(away.id(), fast)?, NO_QUEUE << 8, "errno of an outbox of another page");
    }
    ensure_eq!(by(256, 0)?, 1, "the status of an outbox that no process has");
    dpa.drained(4)
}

fn handler_serves_emulated_device_doorbell(lab: &Lab) -> Result<(), Stop> {
    /// Where the handler keeps the value that it has read, after the words at `DRAIN_AT`.
    const CONTEXT_AT: u64 = DRAIN_AT + 48;
    let dpa = Compiled::new(lab)?;
    let drain = dpa.drain_by("serve")?;
    let device = dpa.rig.device.create_emulated_device(&dpa.rig.token, 1, 1)?;
    let doorbell = dpa.rig.device.create_emulated_doorbell(&device, 0, &drain.cq)?;
    dpa.store(CONTEXT_AT, doorbell.id().into())?;
    // A doorbell from before the first arm counts, too.
    device.ring(0, 1)?;
    ensure_eq!(dpa.call("activate", &[drain.thread.id().into()])?, 0, "errno");
    dpa.drained(1)?;
    for value in [2, u32::MAX, 0] {
        let armed = || doorbell.query().ok().filter(|it| it.armed);
        until("the doorbell to be armed", armed)?;
        device.ring(0, value)?;
        let read = || dpa.load(CONTEXT_AT).ok().filter(|word| (word >> 32) as u32 == value);
        until("the doorbell's value", read)?;
    }
    Ok(())
}

fn program_consumes_eqes_and_sends_msix(lab: &Lab) -> Result<(), Stop> {
    const LOG_ENTRIES: u8 = 2;
    let dpa = Compiled::new(lab)?;
    let device = dpa.rig.device.create_emulated_device(&dpa.rig.token, 1, 3)?;
    for entry in 0..1 << LOG_ENTRIES {
        dpa.store(EQ_AT + 64 * entry + 56, 1 << 56)?;
    }
    let attr = DpaEqAttr {
        raises: Some((device.clone(), 2)),
        ..DpaEqAttr::new(
            QueueMemory::new(Arc::new(dpa.process.heap()), EQ_AT),
            LOG_ENTRIES,
            dpa.rig.uar.clone(),
        )
    };
    let eq = dpa.rig.device.create_dpa_eq(&dpa.rig.token, attr)?;
    let cq = dpa.cq(CqEventTarget::DpaEq(eq.id()))?;
    let (number, eqn) = (u64::from(cq.cqn().0), u64::from(eq.id()));
    for index in 0..10 {
        dpa.call("arm_events", &[eqn, index])?;
        dpa.call("arm", &[number, index])?;
        dpa.call("send_msix", &[number])?;
        ensure_eq!(device.raised()?, [0, 0, index as u32 + 1], "vectors raised");
        let arguments = [dpa.heap(EQ_AT), LOG_ENTRIES.into(), index, eqn];
        ensure_eq!(dpa.call("take_events", &arguments)?, number << 32 | 1, "CQ and events");
        ensure_eq!(eq.query()?.consumer, index as u32 + 1, "the consumer index");
    }
    Ok(())
}

fn doorbells_of_unknown_objects_set_errno(lab: &Lab) -> Result<(), Stop> {
    let dpa = Compiled::new(lab)?;
    ensure_eq!(dpa.call("refused_doorbells", &[1])?, 4, "doorbells that set errno");
    Ok(())
}
