//! Core dumps of the host library are files that readelf and gdb-multiarch read.

mod support;

use std::io::Write as _;
use std::process::Command;

use verbless::model::{InProcess, Model, Profile};
use verbless::prelude::*;
use verbless_command::{DpaCallState, DpaEntry, DpaStatus};
use verbless_flexio::{App, Process, ProcessConfig};

use support::{file, function};

type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error>>;

/// The test of this thread.
fn test_name() -> String {
    std::thread::current().name().unwrap_or("a test").to_string()
}

/// What a program prints; `None`, and why, if this machine does not have it.
fn printed(program: &str, arguments: &[&str]) -> Option<String> {
    match Command::new(program).args(arguments).output() {
        Ok(output) => {
            let text = [output.stdout, output.stderr].concat();
            Some(String::from_utf8_lossy(&text).into_owned())
        }
        Err(error) => {
            let line = format!("skipped: {}: {program}: {error}\n", test_name());
            // What `eprintln!` says would be kept back of a test that passes.
            std::io::stderr().write_all(line.as_bytes()).expect("standard error is open");
            None
        }
    }
}

#[test]
fn readelf_and_gdb_find_registers_and_memory_in_a_core_dump() -> Result {
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
