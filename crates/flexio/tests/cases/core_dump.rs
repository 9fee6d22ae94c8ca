//! readelf and gdb-multiarch read the host library's core dumps.

use std::io::Write as _;
use std::process::Command;

use verbless::model::{InProcess, Model, Profile};
use verbless::prelude::*;
use verbless_command::{DpaCallState, DpaEntry, DpaStatus};
use verbless_flexio::{App, Process, ProcessConfig};

use crate::support::{file, function};

type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error>>;

/// The name of the running test: the harness names the thread after it.
fn test_name() -> String {
    std::thread::current().name().unwrap_or("a test").to_string()
}

/// The output of a program; `None`, with a note of the reason, if this machine lacks it.
fn printed(program: &str, arguments: &[&str]) -> Option<String> {
    match Command::new(program).args(arguments).output() {
        Ok(output) => {
            let text = [output.stdout, output.stderr].concat();
            Some(String::from_utf8_lossy(&text).into_owned())
        }
        Err(error) => {
            let line = format!("skipped: {}: {program}: {error}\n", test_name());
            // The test harness hides `eprintln!` of a passing test.
            std::io::stderr().write_all(line.as_bytes()).expect("standard error is open");
            None
        }
    }
}

#[test]
fn core_dump_is_readable_by_readelf_and_gdb() -> Result {
    let backend = InProcess::of(&Model::builder().device(Profile::load("bluefield3")?).build());
    let device = Device::open(&backend, &backend.find("mlx5_0")?)?;
    let process =
        Process::create(&device, &App::new("dumped", &file())?, &ProcessConfig::default())?;
    let word = process.alloc_from(&0x1122_3344_5566_7788_u64.to_le_bytes())?;
    // Loads from address 8.
    let entry = DpaEntry::at(function::FAULT);
    let call = device.begin_dpa_call(process.object(), &entry, [7, 9, 0, 0, 0, 0, 0, 0])?;
    let end = std::time::Instant::now() + std::time::Duration::from_secs(10);
    while call.state()? == DpaCallState::Running && std::time::Instant::now() < end {
        std::thread::yield_now();
    }
    assert_eq!(call.state()?, DpaCallState::ProcessEnded(DpaStatus(4)));
    drop(call);

    let stem = std::env::temp_dir().join(format!("verbless-dump-{}", std::process::id()));
    let dump = process.core_dump(Some(&stem))?;
    assert_eq!(dump, stem.with_extension(format!("{}.core", process.object().id())));
    let dump = dump.to_str().ok_or("a path of text")?;
    if let Some(text) = printed("readelf", &["--wide", "-h", "-l", "-n", dump]) {
        for part in ["CORE (Core file)", "RISC-V", "NT_PRSTATUS", "LOAD", "0x0000000040000000"] {
            assert!(text.contains(part), "readelf says no {part}:\n{text}");
        }
        assert!(!text.contains("arning"), "{text}");
    }
    let program = std::env::temp_dir().join(format!("verbless-dump-{}.elf", std::process::id()));
    std::fs::write(&program, file())?;
    let commands = ["info registers pc a0 a1", &format!("x/1gx {:#x}", word.address()), "x/1i $pc"]
        .map(|command| ["-ex".to_owned(), command.to_owned()]);
    let mut arguments = vec!["-nx", "-batch", program.to_str().ok_or("a path of text")?, dump];
    arguments.extend(commands.as_flattened().iter().map(String::as_str));
    if let Some(text) = printed("gdb-multiarch", &arguments) {
        for part in ["0x40000060", "0x7", "0x9", "0x1122334455667788", "ld\ta0,8(zero)"] {
            assert!(text.contains(part), "gdb says no {part}:\n{text}");
        }
    }
    std::fs::remove_file(program)?;
    Ok(std::fs::remove_file(dump)?)
}

/// The notes with registers in a core file: number, signal, pc and x1 to x31.
fn notes(file: &[u8]) -> Vec<(u32, u16, [u64; 32])> {
    const HEADER: usize = 64;
    const SIZE: usize = 12 + 8 + 376;
    let word = |at: usize| u64::from_le_bytes(file[at..at + 8].try_into().expect("8 bytes"));
    let half = |at: usize| u32::from_le_bytes(file[at..at + 4].try_into().expect("4 bytes"));
    // The first program header is the notes'.
    assert_eq!(half(HEADER), 4, "PT_NOTE");
    let (from, length) = (word(HEADER + 8) as usize, word(HEADER + 32) as usize);
    assert_eq!(length % SIZE, 0, "{length} bytes of notes");
    let note = |at: usize| {
        assert_eq!((half(at), half(at + 4), half(at + 8)), (5, 376, 1), "an NT_PRSTATUS");
        let status = at + 20;
        let registers = std::array::from_fn(|index| word(status + 112 + 8 * index));
        (half(status + 32), half(status + 12) as u16, registers)
    };
    (from..from + length).step_by(SIZE).map(note).collect()
}

#[test]
fn core_dump_has_registers_of_every_run() -> Result {
    const LOOP: std::ops::Range<u64> = function::COUNT_FOREVER..function::COUNT_FOREVER + 4 * 8;
    let model = Model::builder().device(Profile::load("bluefield3")?).stepped().build();
    let backend = InProcess::of(&model);
    let device = Device::open(&backend, &backend.find("mlx5_0")?)?;
    let process =
        Process::create(&device, &App::new("dumped", &file())?, &ProcessConfig::default())?;
    let heap = process.heap_info().base;
    let begin = |at, words| {
        let call = device.begin_dpa_call(process.object(), &DpaEntry::at(at), words);
        model.step();
        call
    };
    let stem = std::env::temp_dir().join(format!("verbless-runs-{}", std::process::id()));
    let dump = || -> Result<_> {
        let path = process.core_dump(Some(&stem))?;
        let found = notes(&std::fs::read(&path)?);
        std::fs::remove_file(path)?;
        Ok(found)
    };
    assert_eq!(dump()?, [], "notes of a process in which nothing runs");
    let counts = |word: u64| [heap + 64 * word, 0, heap, 0, 0, 0, 0, 0];
    let first = begin(function::COUNT_FOREVER, counts(1))?;
    let second = begin(function::COUNT_FOREVER, counts(2))?;
    let third = begin(function::COUNT_FOREVER, counts(3))?;
    // A terminated run is not in the dump.
    third.destroy()?;
    let is_of = |(_, signal, registers): &(u32, u16, [u64; 32]), word: u64| {
        *signal == 0 && LOOP.contains(&registers[0]) && registers[10] == heap + 64 * word
    };
    let running = dump()?;
    assert_eq!(running.iter().map(|note| note.0).collect::<Vec<_>>(), [1, 2]);
    assert!(is_of(&running[0], 1) && is_of(&running[1], 2), "{running:x?}");

    let fault = begin(function::FAULT, [7, 9, 0, 0, 0, 0, 0, 0])?;
    while fault.state()? == DpaCallState::Running {
        assert!(model.step());
    }
    // The handles are dropped; the dump's registers remain.
    drop((first, second, fault));
    let ended = dump()?;
    assert_eq!(ended.iter().map(|note| note.0).collect::<Vec<_>>(), [1, 2, 3]);
    assert_eq!((ended[0].1, ended[0].2[0], ended[0].2[10]), (11, function::FAULT, 7), "the fault");
    assert!(is_of(&ended[1], 1) && is_of(&ended[2], 2), "{ended:x?}");
    Ok(())
}

#[test]
fn core_dump_has_runs_concurrent_with_fault() -> Result {
    let backend = InProcess::of(&Model::builder().device(Profile::load("bluefield3")?).build());
    let device = Device::open(&backend, &backend.find("mlx5_0")?)?;
    let process =
        Process::create(&device, &App::new("dumped", &file())?, &ProcessConfig::default())?;
    let word = process.alloc_from(&[0; 128])?;
    let stem = std::env::temp_dir().join(format!("verbless-executed-{}", std::process::id()));
    let begin = |at, words| device.begin_dpa_call(process.object(), &DpaEntry::at(at), words);
    let counts = [word.address(), 0, word.address() + 64, 0, 0, 0, 0, 0];
    let _runs = begin(function::COUNT_FOREVER, counts)?;
    let mut count = [0; 8];
    let end = std::time::Instant::now() + std::time::Duration::from_secs(10);
    while count == [0; 8] && std::time::Instant::now() < end {
        word.read_at(0, &mut count)?;
    }
    let fault = begin(function::FAULT, [7, 9, 0, 0, 0, 0, 0, 0])?;
    while fault.state()? == DpaCallState::Running && std::time::Instant::now() < end {
        std::thread::yield_now();
    }
    let path = process.core_dump(Some(&stem))?;
    let found = notes(&std::fs::read(&path)?);
    assert_eq!(found.len(), 2, "{found:x?}");
    assert_eq!((found[0].2[0], found[1].2[10]), (function::FAULT, word.address()), "{found:x?}");
    let program = stem.with_extension("elf");
    std::fs::write(&program, file())?;
    let (program, dump) = (program.display().to_string(), path.display().to_string());
    let arguments = ["-nx", "-batch", &program, &dump, "-ex", "info threads"];
    if let Some(text) = printed("gdb-multiarch", &arguments) {
        for part in ["LWP 1", "LWP 2", "0x0000000040000060"] {
            assert!(text.contains(part), "gdb says no {part}:\n{text}");
        }
    }
    std::fs::remove_file(program)?;
    Ok(std::fs::remove_file(path)?)
}
