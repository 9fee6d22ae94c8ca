//! Objects of the DPA: each has its own number and the requested attributes, and runs report how
//! they ended.

use std::os::fd::AsFd;
use std::sync::{Arc, Mutex};

use verbless_command::{
    Affinity, CqAttr, CqEventTarget, CqObject, Device, DpaCallState, DpaEntry, DpaEqAttr,
    DpaProcess, DpaProcessAttr, DpaThreadKind, QueueMemory,
};
use verbless_devx::{ModelToken, UarKind};
use verbless_model::Model;
use verbless_prm::{
    self as prm, CreateGeneralObjectIn, DpaAffinity, DpaFault, DpaThreadState, Opcode, Structure,
};

use crate::support::{cq_attr, refusal_is_reported, register_pages, with_dpa};

/// Address of the program's code.
const CODE: u64 = 0x4000_0000;
/// `add a0, a0, a1; ret`, followed by an illegal instruction.
const WORDS: [u32; 3] = [0x00b5_0533, 0x0000_8067, 0];
const ADD: u64 = CODE;
const ILLEGAL: u64 = CODE + 8;
const HEAP: u32 = 1 << 16;

fn open() -> (Model, Device, ModelToken) {
    let (model, device) = with_dpa();
    let token = device.as_model().expect("the device is a model");
    (model, device, token)
}

/// A static RV64 program with one segment.
fn elf() -> Vec<u8> {
    const HEADER: u64 = 64;
    const PROGRAM_HEADER: u64 = 56;
    const CODE_AT: u64 = 0x1000;
    let mut file = vec![0x7f, b'E', b'L', b'F', 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    // ET_EXEC, EM_RISCV.
    file.extend([2_u16, 243].into_iter().flat_map(u16::to_le_bytes));
    file.extend(1_u32.to_le_bytes());
    file.extend([0, HEADER, 0].into_iter().flat_map(u64::to_le_bytes));
    file.extend(0_u32.to_le_bytes());
    let halves = [HEADER as u16, PROGRAM_HEADER as u16, 1, 0, 0, 0];
    file.extend(halves.into_iter().flat_map(u16::to_le_bytes));
    // PT_LOAD, read and execute.
    file.extend([1_u32, 5].into_iter().flat_map(u32::to_le_bytes));
    let length = size_of_val(&WORDS) as u64;
    let fields = [CODE_AT, CODE, CODE, length, length, 0x1000];
    file.extend(fields.into_iter().flat_map(u64::to_le_bytes));
    file.resize(CODE_AT as usize, 0);
    file.extend(WORDS.into_iter().flat_map(u32::to_le_bytes));
    file
}

fn process(device: &Device, token: &ModelToken) -> Arc<DpaProcess> {
    let file = elf();
    let attr = DpaProcessAttr {
        file: crate::support::register_bytes(device, &file),
        offset: 0,
        length: file.len() as u64,
        heap: HEAP,
        watchdog: 0,
    };
    device.create_dpa_process(token, &attr).expect("a process")
}

#[test]
fn processes_have_distinct_ids_and_heaps() {
    let (_model, device, token) = open();
    let [one, other] = [(); 2].map(|()| process(&device, &token));
    assert_ne!(one.id(), other.id());
    assert_ne!(one.serial(), other.serial());
    for process in [&one, &other] {
        let heap = process.heap();
        assert_eq!((process.heap_bytes(), heap.length()), (HEAP, u64::from(HEAP)));
        assert!(process.heap_address() > CODE, "{:#x}", process.heap_address());
        assert_eq!(heap.address(), process.heap_address());
        let shown = format!("umem {:#x}: {HEAP} bytes at {:#x}", heap.id(), heap.address());
        assert_eq!(format!("{heap:?}"), shown);
        let info = process.query().expect("the context");
        assert!(info.status.runs() && !info.ending && info.crash.is_none(), "{info:?}");
        assert_eq!(info.instructions, 0);
    }
    assert_ne!(one.heap().id(), other.heap().id());
}

#[test]
fn outbox_and_window_ids_are_unique_until_destroy() {
    let (_model, device, token) = open();
    let process = process(&device, &token);
    let pd = device.alloc_pd().expect("a protection domain");
    let uar = Arc::new(device.uar_alloc(UarKind::NonCached).expect("a page"));
    let outboxes = [(); 3].map(|()| device.create_dpa_outbox(&process, &uar).expect("an outbox"));
    let windows = [(); 3].map(|()| device.create_dpa_window(&process, &pd).expect("a window"));
    for ids in [outboxes.each_ref().map(|it| it.id()), windows.each_ref().map(|it| it.id())] {
        assert!(ids[0] != ids[1] && ids[1] != ids[2] && ids[0] != ids[2], "{ids:?}");
    }
    let [first, ..] = windows;
    let id = first.id();
    only_handle(first).destroy().expect("no thread or call has the window in its entry");
    let next = device.create_dpa_window(&process, &pd).expect("room for another");
    assert_eq!(next.id(), id, "the number is free again");
}

#[test]
fn call_returns_value_and_fault_ends_process() {
    let (model, device, token) = open();
    let process = process(&device, &token);
    let unit = device.dpa_caps().expect("there is a DPA").units - 1;
    let entry = DpaEntry { affinity: Affinity::Strict(unit), ..DpaEntry::at(ADD) };
    let begin = |entry: &DpaEntry| {
        device.begin_dpa_call(&process, entry, [20, 3, 0, 0, 0, 0, 0, 0]).expect("a call")
    };
    let call = begin(&entry);
    assert_eq!(call.state().expect("the context"), DpaCallState::Running);
    model.run_until_idle();
    assert_eq!(call.state().expect("the context"), DpaCallState::Returned(23));
    assert!(
        process.query().expect("the context").instructions >= 2,
        "add, ret and the return to the host"
    );

    let call = begin(&DpaEntry::at(ILLEGAL));
    model.run_until_idle();
    let info = process.query().expect("the context");
    assert_eq!(info.status.0, DpaFault::ILLEGAL.0);
    assert_eq!(call.state().expect("the context"), DpaCallState::ProcessEnded(info.status));
    let crash = info.crash.as_ref().expect("the run that ended it");
    assert!(crash.in_call);
    assert_eq!((crash.pc, crash.registers[10], crash.registers[11]), (ILLEGAL, 20, 3));
    let text = info.to_string();
    assert!(text.starts_with("illegal instruction (status"), "{text}");
    assert!(text.contains(" at pc 0x40000008,"), "{text}");
    // Four registers per line.
    assert!(text.contains("\n  x8 ") && text.contains(" x10 0000000000000014"), "{text}");
    assert!(!text.contains("\n  x9 "), "{text}");
}

#[test]
fn new_thread_is_idle() {
    let (model, device, token) = open();
    let process = process(&device, &token);
    let make = |kind| device.create_dpa_thread(&process, &DpaEntry::at(ADD), 0, kind);
    let [one, other] = [false, true]
        .map(|held| make(DpaThreadKind { held, ..Default::default() }).expect("a thread"));
    assert_ne!(one.id(), other.id());
    model.run_until_idle();
    for thread in [&one, &other] {
        let info = thread.query().expect("the context");
        assert_eq!(info.state, DpaThreadState::IDLE);
        assert_eq!((info.runs, info.instructions, info.events), (0, 0, 0));
    }
    other.run(7).expect("the process runs");
}

#[test]
fn dump_reports_needed_length_if_room_is_short() {
    let (_model, device, token) = open();
    let process = process(&device, &token);
    let small = register_pages(&device);
    let needed = device
        .dump_dpa_core(&process, &small, small.length() - 64)
        .expect("the core dump's length");
    assert!(needed > 64, "{needed} bytes");
}

fn cq(device: &Device) -> Arc<CqObject> {
    Arc::new(device.create_cq(cq_attr(device)).expect("a CQ"))
}

#[test]
fn emulated_device_has_queues_vectors_and_doorbells() {
    let (_model, device, token) = open();
    let emulated = [(1, 2), (4, 3)].map(|(queues, vectors)| {
        let made = device.create_emulated_device(&token, queues, vectors).expect("a device");
        assert_eq!((made.queues(), made.vectors()), (queues, vectors));
        made
    });
    let [one, other] = &emulated;
    assert_ne!(one.id(), other.id());
    assert_eq!(one.raised().expect("the context"), [0; 2]);
    assert_eq!(other.raised().expect("the context"), [0; 3]);

    let cq = cq(&device);
    let doorbell =
        |emulated_device, queue| device.create_emulated_doorbell(emulated_device, queue, &cq);
    let bells = [(one, 0), (other, 3)]
        .map(|(emulated_device, queue)| doorbell(emulated_device, queue).expect("a doorbell"));
    assert_ne!(bells[0].id(), bells[1].id());
    doorbell(one, 1).expect_err("device `one` has queue 0 only");
    doorbell(other, 3).expect_err("the queue has a doorbell");
    other.ring(3, 0x17).expect("device `other` has queues 0 to 3");
    other.ring(3, 0x18).expect("device `other` has queues 0 to 3");
    other.ring(4, 0).expect_err("device `other` has queues 0 to 3");
    let infos = bells.each_ref().map(|bell| bell.query().expect("the context"));
    assert_eq!((infos[0].value, infos[0].rings, infos[0].pending), (0, 0, false));
    assert_eq!((infos[1].value, infos[1].rings, infos[1].pending), (0x18, 2, true));
    assert!(!infos[1].armed, "no program armed it");
    let [_, second] = bells;
    second.destroy().expect("the device destroys it");
    doorbell(other, 3).expect("the queue has no doorbell");
}

#[test]
fn dpa_eq_checks_attributes_and_serves_cq() {
    let (_model, device, token) = open();
    let emulated = device.create_emulated_device(&token, 1, 2).expect("a device");
    let uar = Arc::new(device.uar_alloc(UarKind::NonCached).expect("a page"));
    let attr = || DpaEqAttr::new(QueueMemory::new(register_pages(&device), 0), 4, uar.clone());
    let [one, other] = [(); 2].map(|()| device.create_dpa_eq(&token, attr()).expect("an EQ"));
    assert_ne!(one.id(), other.id());
    assert_eq!(one.attr().log_entries, 4);
    let info = one.query().expect("the context");
    assert_eq!((info.producer, info.consumer, info.armed), (0, 0, false));
    let raising = |vector| DpaEqAttr { raises: Some((emulated.clone(), vector)), ..attr() };
    device.create_dpa_eq(&token, raising(1)).expect("the last vector");
    device.create_dpa_eq(&token, raising(2)).expect_err("the device has vectors 0 and 1");
    let always = DpaEqAttr { always_armed: true, ..attr() };
    device
        .create_dpa_eq(&token, always)
        .expect_err("an EQ that raises no vector cannot be always armed");
    let long = device.create_dpa_eq(&token, DpaEqAttr { log_entries: 32, ..attr() });
    let error = long.expect_err("the field has 5 bits").to_string();
    assert!(error.contains("entries is 32; at most 31"), "{error}");
    let on_eq = CqAttr { element: CqEventTarget::DpaEq(one.id()), ..cq_attr(&device) };
    let cq = device.create_cq(on_eq.clone()).expect("a CQ of the EQ");
    assert_eq!(cq.query().expect("the context").c_eqn_or_apu_element(), one.id());
    other.destroy().expect("no CQ reports to the EQ");
    cq.destroy().expect("no object uses the CQ");
    one.destroy().expect("the CQ of the EQ is destroyed");
    device.create_cq(on_eq).expect_err("the EQ is gone");
}

#[test]
fn failed_destroy_is_reported() {
    let (model, device, token) = open();
    let process = process(&device, &token);
    let pd = device.alloc_pd().expect("a protection domain");
    let uar = Arc::new(device.uar_alloc(UarKind::NonCached).expect("a page"));
    let entry = DpaEntry::at(ADD);
    let call = device.begin_dpa_call(&process, &entry, [0; 8]).expect("a call");
    let kind = DpaThreadKind::default();
    let thread = device.create_dpa_thread(&process, &entry, 0, kind).expect("a thread");
    let window = device.create_dpa_window(&process, &pd).expect("a window");
    let outbox = device.create_dpa_outbox(&process, &uar).expect("an outbox");
    let ring = QueueMemory::new(register_pages(&device), 0);
    let eq = device.create_dpa_eq(&token, DpaEqAttr::new(ring, 4, uar)).expect("an EQ");
    let emulated = device.create_emulated_device(&token, 1, 0).expect("a device");
    let other = device.create_emulated_device(&token, 1, 0).expect("a device");
    let bell = device.create_emulated_doorbell(&other, 0, &cq(&device)).expect("a doorbell");
    const DESTROY: Opcode = Opcode::DESTROY_GENERAL_OBJECT;
    refusal_is_reported(&model, DESTROY, || call.destroy());
    refusal_is_reported(&model, DESTROY, || thread.destroy());
    refusal_is_reported(&model, DESTROY, || eq.destroy());
    refusal_is_reported(&model, DESTROY, || bell.destroy());
    refusal_is_reported(&model, DESTROY, || only_handle(window).destroy());
    refusal_is_reported(&model, DESTROY, || only_handle(outbox).destroy());
    refusal_is_reported(&model, DESTROY, || only_handle(emulated).destroy());
    let unused = self::process(&device, &token);
    refusal_is_reported(&model, DESTROY, || only_handle(unused).destroy());
}

fn only_handle<T>(object: Arc<T>) -> T {
    Arc::into_inner(object).expect("the caller has the only handle")
}

#[test]
fn signal_end_rejects_non_eventfd() {
    let (_model, device, token) = open();
    let process = process(&device, &token);
    let channel = device.event_channel(true).expect("a channel");
    let file = std::fs::File::open("/dev/null").expect("a file");
    process.signal_end(&channel, file.as_fd()).expect_err("the file is not an eventfd");
}

/// The context in the next CREATE_GENERAL_OBJECT.
fn sent<S: Structure + Send, R>(model: &Model, make: impl FnOnce() -> R) -> (S, R) {
    let seen = Arc::new(Mutex::new(S::default()));
    let log = seen.clone();
    let watch = model.watch_commands(move |executed| {
        if executed.input[..2] == Opcode::CREATE_GENERAL_OBJECT.0.to_be_bytes() {
            let body = &executed.input[CreateGeneralObjectIn::BYTES..][..S::BYTES];
            log.lock().unwrap().as_mut_bytes().copy_from_slice(body);
        }
    });
    let made = make();
    drop(watch);
    let context = *seen.lock().unwrap();
    (context, made)
}

#[test]
fn thread_and_call_send_all_entry_fields() {
    let (model, device, token) = open();
    let process = process(&device, &token);
    let pd = device.alloc_pd().expect("a protection domain");
    let uar = Arc::new(device.uar_alloc(UarKind::NonCached).expect("a page"));
    let [_, outbox] =
        [(); 2].map(|()| device.create_dpa_outbox(&process, &uar).expect("an outbox"));
    let [_, first, second] =
        [(); 3].map(|()| device.create_dpa_window(&process, &pd).expect("a window"));
    let entry = DpaEntry {
        address: ADD,
        metadata: 0x1234_5678_9abc_def0,
        outbox: Some(outbox.clone()),
        windows: [Some(first.clone()), Some(second.clone())],
        affinity: Affinity::Strict(3),
    };
    let none = DpaEntry::at(ILLEGAL);
    for (kind, bits) in [(1, [true, false, false]), (2, [false, true, false])] {
        let [polling, continuable, held] = bits;
        let kind = (kind, DpaThreadKind { polling, continuable, held });
        let (sent, thread) = sent::<prm::DpaThread, _>(&model, || {
            device.create_dpa_thread(&process, &entry, kind.0, kind.1).expect("a thread")
        });
        assert_eq!((sent.process_id(), sent.argument()), (process.id(), kind.0));
        assert_eq!([sent.polling(), sent.continuable(), sent.held()], bits);
        assert_eq!((sent.entry(), sent.metadata()), (ADD, entry.metadata));
        assert_eq!((sent.affinity(), sent.affinity_id()), (DpaAffinity::STRICT, 3));
        assert_eq!(sent.outbox_id(), outbox.id());
        assert_eq!([sent.window_id(), sent.second_window_id()], [first.id(), second.id()]);
        thread.destroy().expect("no event starts the thread");
    }
    let arguments = [1, 2, 3, 4, 5, 6, 7, u64::MAX];
    let (sent, _call) = sent::<prm::DpaCall, _>(&model, || {
        device.begin_dpa_call(&process, &none, arguments).expect("a call")
    });
    assert_eq!(std::array::from_fn(|index| sent.arguments(index)), arguments);
    assert_eq!((sent.process_id(), sent.entry(), sent.metadata()), (process.id(), ILLEGAL, 0));
    assert_eq!((sent.affinity(), sent.affinity_id()), (DpaAffinity::NONE, 0));
    let ids = [sent.outbox_id(), sent.window_id(), sent.second_window_id()];
    assert_eq!(ids, [0xffff; 3], "no outbox and no windows");
}

#[test]
fn outbox_or_window_of_another_process_is_rejected() {
    let (_model, device, token) = open();
    let [one, other] = [(); 2].map(|()| process(&device, &token));
    let pd = device.alloc_pd().expect("a protection domain");
    let uar = Arc::new(device.uar_alloc(UarKind::NonCached).expect("a page"));
    let outbox = device.create_dpa_outbox(&other, &uar).expect("an outbox");
    let window = device.create_dpa_window(&other, &pd).expect("a window");
    let at = DpaEntry::at(ADD);
    for (entry, what) in [
        (DpaEntry { outbox: Some(outbox), ..at.clone() }, "the outbox is of another process"),
        (DpaEntry { windows: [None, Some(window)], ..at }, "the window is of another process"),
    ] {
        let kind = DpaThreadKind::default();
        let thread = device.create_dpa_thread(&one, &entry, 0, kind).map(drop);
        let call = device.begin_dpa_call(&one, &entry, [0; 8]).map(drop);
        for refused in [thread, call] {
            let error = refused.expect_err(what);
            assert!(error.to_string().contains(what), "{error}");
        }
        device
            .create_dpa_thread(&other, &entry, 0, kind)
            .expect("the outbox and window are of this process");
    }
}

#[test]
fn error_handler_and_held_argument_are_sent() {
    let (model, device, token) = open();
    let process = process(&device, &token);
    let body = |opcode, act: &mut dyn FnMut()| {
        let (mut inputs, ()) = crate::sent::sent(&model, opcode, act);
        assert_eq!(inputs.len(), 1);
        inputs.remove(0).split_off(prm::ModifyGeneralObjectIn::BYTES)
    };
    let modify = Opcode::MODIFY_GENERAL_OBJECT;
    let sent = body(modify, &mut || process.set_error_handler(ILLEGAL).expect("the process runs"));
    let sent = prm::DpaProcess::from_prefix(&sent).expect("a whole context");
    assert_eq!(sent.error_handler(), ILLEGAL);
    let kind = DpaThreadKind { held: true, ..Default::default() };
    let thread = device.create_dpa_thread(&process, &DpaEntry::at(ADD), 0, kind).expect("a thread");
    let sent = body(modify, &mut || thread.run(0x77).expect("the process runs"));
    let sent = prm::DpaThread::from_prefix(&sent).expect("a whole context");
    assert_eq!(sent.argument(), 0x77);
}

#[test]
fn uar_extensions_have_distinct_device_ids() {
    let (model, device, token) = open();
    let process = process(&device, &token);
    let [one, other] = [(); 2].map(|()| {
        let uar = Arc::new(device.uar_alloc(UarKind::NonCached).expect("a page"));
        let made = device.create_dpa_uar_extension(&token, &uar, &device, &process);
        let made = made.expect("the function reaches itself");
        assert!(Arc::ptr_eq(made.uar(), &uar));
        made
    });
    assert_ne!(one.device_id(), other.device_id());
    one.destroy().expect("no object uses the first one");
    refusal_is_reported(&model, Opcode::DESTROY_GENERAL_OBJECT, || other.destroy());
}
