//! Runs of the DPA: how long a run holds its function, failed runs, and core dumps.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use verbless_dpa::{
    CHUNK, DeviceAnswer, DeviceRequest, Dpa, DpaRefusal, MAX_TRANSLATED_BYTES, RunnerId, Start,
    Turn, WINDOW_CONFIGS, WINDOWS,
};
use verbless_riscv::{AddressSpace, Device, Region};

use super::lookups::{errors, one_error};
use super::rig::{PD, Rig};
use crate::engine::dpa::{
    HoldLimit, MAX_HELD_VISITS, ServeResult, VISITS_PER_ACCESS, serve_window_requests,
};
use crate::hca::objects::{Klm, Translation};

/// Writes key a1 to the window's register at a2, then loads from address a0 in a loop.
const PROGRAM: [u32; 3] = [
    0x00b6_2023, // sw a1, 0(a2)
    0x0005_3283, // ld t0, 0(a0)
    0xffdf_f06f, // j  -4
];
const CODE: u64 = 0x4000_0000;
const HEAD: usize = 64 + 56;

/// An ELF file with that program.
fn file() -> Vec<u8> {
    let words = PROGRAM.iter();
    file_of(&words.flat_map(|word| word.to_le_bytes()).collect::<Vec<_>>())
}

/// An ELF file with this code.
fn file_of(code: &[u8]) -> Vec<u8> {
    let mut file = vec![0; HEAD];
    let mut put = |at: usize, bytes: &[u8]| file[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, b"\x7fELF\x02\x01\x01");
    put(16, &[2, 0, 243, 0, 1]);
    put(32, &64_u64.to_le_bytes());
    put(52, &[64, 0, 56, 0, 1, 0, 64]);
    put(64, &[1, 0, 0, 0, 5]);
    let bytes = code.len() as u64;
    for (at, word) in [(72, HEAD as u64), (80, CODE), (96, bytes), (104, bytes), (112, 1)] {
        put(at, &word.to_le_bytes());
    }
    file.extend(code);
    file
}

/// A run that repeatedly loads from an address of a key, stopped at its first access.
fn loads(rig: &Rig, key: u32, address: u64) -> (Arc<Dpa>, Turn, DeviceRequest) {
    let dpa = rig.locked.functions[0].hca.dpa.clone().expect("the profile has a DPA");
    dpa.create(1, &file(), 0, 0).expect("a process");
    let window = dpa.add_window(1, PD).expect("a window");
    let window = u64::from(window);
    let mut start = Start { entry: CODE, ..Start::default() };
    let config = WINDOW_CONFIGS + 64 * window;
    start.arguments[..3].copy_from_slice(&[WINDOWS | window << 48 | address, key.into(), config]);
    dpa.add(RunnerId::Call(1), 1, start).expect("a call");
    let turn = dpa.turn().expect("its turn");
    let run = dpa.run(turn);
    let (turn, request) = run.unwrap_or_else(|| panic!("no access: {:x?}", dpa.process(1)));
    assert!(matches!(request, DeviceRequest::RemoteMemory { size: 8, .. }), "{request:?}");
    (dpa, turn, request)
}

#[test]
fn event_for_absent_thread_is_logged() {
    let mut rig = Rig::new();
    let (address, key) = rig.region(0, 64);
    let (dpa, turn, request) = loads(&rig, key, address);
    let logged = errors(|| dpa.event(0x77));
    one_error(&logged, &["the runner of an event", "119"]);
    dpa.remove_runner(RunnerId::Call(1));
    let logged = errors(|| assert!(dpa.answer(turn, &request, DeviceAnswer::Refused).is_none()));
    assert_eq!(logged, [""; 0]);
}

#[test]
fn core_dump_omits_trailing_zeros_of_regions() {
    const HEAP: u64 = 3 << 20;
    let rig = Rig::new();
    let dpa = rig.locked.functions[0].hca.dpa.clone().expect("the profile has a DPA");
    let (heap, _) = dpa.create(1, &file(), HEAP, 0).expect("a process");
    let end = (1 << 20) + 100;
    heap.write(end - 8, b"the last");
    let mut dump = dpa.core_dump(1).expect("a core dump");
    let mut calls_of_measure = 1;
    let length = loop {
        match dump.measure() {
            Some(length) => break length,
            None => calls_of_measure += 1,
        }
    };
    // The heap's zeros, and the contexts of 256 threads.
    assert_eq!(calls_of_measure, ((2 << 20) + (1 << 20)) / CHUNK + 1);
    let mut whole = vec![0; length as usize];
    dump.read(0, &mut whole);
    let mut parts = vec![0; length as usize];
    for at in (0..length).step_by(1000) {
        let end = (at + 1000).min(length);
        dump.read(at, &mut parts[at as usize..end as usize]);
    }
    assert!(whole == parts);
    assert!(whole.starts_with(b"\x7fELF"));
    let found = whole.windows(8).position(|bytes| bytes == b"the last").expect("the heap");
    let pages = end.next_multiple_of(4096);
    assert!(length < pages + (1 << 16), "{length} bytes, {found}");
    // If the program still runs, each read gives the memory at that time.
    heap.write(0, b"changed");
    dump.read(0, &mut parts);
    assert!(parts.windows(7).any(|bytes| bytes == b"changed"));
}

/// Memory that panics.
struct PanickingDevice;

impl Device for PanickingDevice {
    fn load(&self, _: u64, _: u64) -> Result<u64, verbless_riscv::Refused> {
        panic!("a bug of the model")
    }

    fn store(&self, _: u64, _: u64, _: u64) -> Result<(), verbless_riscv::Refused> {
        panic!("a bug of the model")
    }
}

#[test]
fn halt_does_not_wait_for_panicked_run() {
    let rig = Rig::new();
    let dpa = rig.locked.functions[0].hca.dpa.clone().expect("the profile has a DPA");
    dpa.create(1, &file(), 0, 0).expect("a process");
    let start = Start { entry: CODE, ..Start::default() };
    dpa.add(RunnerId::Call(1), 1, start).expect("a call");
    let mut turn = dpa.turn().expect("its turn");
    // The program's first access is to address 0.
    let code = turn.hart().space().region(CODE).expect("the code").clone();
    let space = AddressSpace::new([code, Region::device(0, 4096, Arc::new(PanickingDevice))]);
    turn.hart().set_space(Arc::new(space.expect("the regions do not overlap")));
    let run = catch_unwind(AssertUnwindSafe(|| dpa.run(turn).is_some()));
    assert!(run.is_err(), "the code executed");
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        dpa.halt();
        sender.send(())
    });
    assert_eq!(
        receiver.recv_timeout(Duration::from_secs(60)),
        Ok(()),
        "`halt` waits for the panicked run"
    );
}

/// Jumps over jumps: each is a block of its own.
#[test]
fn translated_code_is_bounded_across_harts() {
    const JUMPS: usize = 1 << 16;
    let mut code = [0x09, 0xa0].repeat(JUMPS);
    // Then an endless loop: j -2.
    code.extend([0xfd, 0xbf]);
    let rig = Rig::new();
    let dpa = rig.locked.functions[0].hca.dpa.clone().expect("the profile has a DPA");
    dpa.create(1, &file_of(&code), 0, 0).expect("a process");
    let calls = 32;
    for call in 0..calls {
        dpa.add(RunnerId::Call(call), 1, Start { entry: CODE, ..Start::default() })
            .expect("a call");
    }
    let mut max = 0;
    // A turn executes all jumps; the first calls get a second turn.
    for _ in 0..calls + 4 {
        let turn = dpa.turn().expect("all can continue");
        assert!(dpa.run(turn).is_none(), "the run makes no request");
        max = max.max(dpa.translated());
    }
    let each = JUMPS * size_of::<[u64; 5]>();
    assert!(max > each, "{max} bytes: the harts translate");
    assert!(max <= MAX_TRANSLATED_BYTES, "{max} bytes of {MAX_TRANSLATED_BYTES}");
    assert!(
        calls as usize * each > MAX_TRANSLATED_BYTES,
        "the translations of all harts would exceed the limit"
    );
    for call in 0..calls {
        dpa.remove_runner(RunnerId::Call(call));
    }
    assert_eq!(dpa.translated(), 0);
}

#[test]
fn program_with_thread_local_storage_is_rejected() {
    let rig = Rig::new();
    let dpa = rig.locked.functions[0].hca.dpa.clone().expect("the profile has a DPA");
    // A second program header, after the first one; the code keeps its offset.
    let mut file = file();
    file.splice(HEAD..HEAD, [0; 56]);
    file[56] = 2;
    file[72..80].copy_from_slice(&(HEAD as u64 + 56).to_le_bytes());
    assert!(dpa.create(1, &file, 0, 0).is_ok(), "a program header of type 0");
    let mut storage = |bytes: u64| {
        file[HEAD] = 7;
        file[HEAD + 40..HEAD + 48].copy_from_slice(&bytes.to_le_bytes());
        dpa.create(2, &file, 0, 0).map(drop)
    };
    let refused = storage(8);
    let Err(DpaRefusal::Program(why)) = refused else { panic!("{refused:?}") };
    assert!(why.contains("thread-local variables") && why.contains("metadata"), "{why}");
    assert_eq!(storage(0), Ok(()), "no thread-local variables");
}

#[test]
fn run_work_is_bounded_for_any_klm_list_length() {
    const ENTRIES: u32 = 10_000;
    for entries in [0, 104, ENTRIES] {
        let mut rig = Rig::new();
        let (address, plain) = rig.region(0, u64::from(ENTRIES) + 8);
        let (_, list) = rig.region(0, 64);
        let mut klms: Vec<Klm> =
            (0..entries).map(|_| Klm { key: plain, length: 1, address }).collect();
        klms.push(Klm { key: plain, length: 8, address });
        let mkey = rig.mkey_mut(0, list);
        mkey.translation = Translation::Indirect { entries: klms.into(), log_entry_size: None };
        (mkey.start, mkey.length) = (0, Some(u64::from(entries) + 8));
        let (dpa, turn, request) = loads(&rig, list, entries.into());
        let mut hold = HoldLimit::default();
        let served = serve_window_requests(&mut rig.locked, 0, &dpa, (turn, request), &mut hold);
        assert!(
            matches!(served, ServeResult::Requests(_, DeviceRequest::RemoteMemory { .. })),
            "{entries} entries"
        );
        let access = VISITS_PER_ACCESS + entries + 1;
        assert_eq!(hold.work, MAX_HELD_VISITS.next_multiple_of(access), "{entries} entries");
    }
}
