//! A DPA program reads and writes memory of the host through a window; protection stops it when it
//! exceeds the key's rights.
//!
//! `cargo xtask dpa examples` builds and runs it; by hand `window target/dpa/window.elf`.

mod support;

use std::process::ExitCode;

use support::{Result, expect};
use verbless::Device;
use verbless_command::{DpaStatus, KeyAccess};
use verbless_flexio::{App, Error, Function, Process, ProcessConfig, Window};
use verbless_prm::DpaFault;

const WORDS: u64 = 1000;

/// The window's number, a key, an address and a word count.
type Words = (u16, u32, u64, u64);

fn sum() -> Function<Words, u64> {
    Function::named("sum")
}

fn double() -> Function<Words, ()> {
    Function::named("double")
}

fn main() -> ExitCode {
    support::main(|device, app| {
        inside(device, app)?;
        for access in [KeyAccess::LOCAL, KeyAccess::LOCAL_READ] {
            outside(device, app, access)?;
        }
        foreign(device, app)
    })
}

/// Accesses within the key's rights.
fn inside(device: &Device, app: &App) -> Result {
    let process = Process::create(device, app, &ProcessConfig::default())?;
    let window = Window::create(&process, process.pd())?;
    let memory = process.domain().region(8192, KeyAccess::LOCAL)?;
    for word in 0..WORDS {
        memory.write_at(word as usize * 8, &word.to_le_bytes())?;
    }
    let (id, mkey, at) = (window.id().0, memory.lkey().0, memory.address());
    expect("the sum", process.call(sum(), (id, mkey, at, WORDS))?, WORDS * (WORDS - 1) / 2)?;
    process.call(double(), (id, mkey, at, WORDS))?;
    expect("the sum", process.call(sum(), (id, mkey, at, WORDS))?, WORDS * (WORDS - 1))?;
    let mut word = [0; 8];
    memory.read_at(8 * 7, &mut word)?;
    expect("word 7 as the host sees it", u64::from_le_bytes(word), 14)?;

    memory.write_at(1, b"a text for the DPA")?;
    let reverse = Function::<(u16, u32, u64, u64, usize), ()>::named("reverse");
    process.call(reverse, (id, mkey, at + 1, at + 8001, 18))?;
    let mut text = [0; 20];
    memory.read_at(8000, &mut text)?;
    expect("the copy", &text, b"\0APD eht rof txet a\0")?;
    println!("the program read and wrote {} words of the host's memory", WORDS);
    Ok(())
}

/// Accesses beyond the key's rights: past the last byte, or a store under a read-only key.
fn outside(device: &Device, app: &App, access: KeyAccess) -> Result {
    let process = Process::create(device, app, &ProcessConfig::default())?;
    let window = Window::create(&process, process.pd())?;
    let (memory, beside) =
        (process.domain().region(4096, access)?, process.domain().region(4096, KeyAccess::LOCAL)?);
    for region in [&memory, &beside] {
        region.write_at(0, &[1; 4096])?;
    }
    // 512 words are 4096 bytes.
    let (words, wrong) = match access.local_write {
        true => (513, memory.address() + 4096),
        false => (512, memory.address()),
    };
    let all = (window.id().0, memory.lkey().0, memory.address(), words);
    match process.call(double(), all) {
        Err(Error::Fatal(status)) => expect("the status", status, DpaStatus(DpaFault::WINDOW.0))?,
        other => return Err(format!("an access that the key does not allow: {other:?}").into()),
    }
    let crash = process.status()?.crash.ok_or("no crash report")?;
    // The bits from 48 on identify the window.
    expect("where it was stopped", crash.address & ((1 << 48) - 1), wrong)?;
    let mut bytes = [0; 4096];
    memory.read_at(0, &mut bytes)?;
    let expected = if access.local_write { 2 } else { 1 };
    expect("bytes under the key", bytes.iter().all(|&byte| byte == expected), true)?;
    beside.read_at(0, &mut bytes)?;
    expect("bytes of another key", bytes.iter().all(|&byte| byte == 1), true)?;
    let what = match access.local_write {
        true => "past the last byte",
        false => "at a store under a key that only reads",
    };
    println!("protection stopped the program {what}, at {:#x}", crash.address);
    Ok(())
}

/// A key of another protection domain than the window's.
fn foreign(device: &Device, app: &App) -> Result {
    let processes = [(); 2].map(|()| Process::create(device, app, &ProcessConfig::default()));
    let [process, other] = processes;
    let (process, other) = (process?, other?);
    let window = Window::create(&process, process.pd())?;
    let memory = other.domain().region(4096, KeyAccess::LOCAL)?;
    match process.call(sum(), (window.id().0, memory.lkey().0, memory.address(), 1)) {
        Err(Error::Fatal(status)) => expect("the status", status, DpaStatus(DpaFault::WINDOW.0))?,
        other => return Err(format!("a key of another protection domain: {other:?}").into()),
    }
    println!("protection stopped the program at a key of another protection domain");
    Ok(())
}
