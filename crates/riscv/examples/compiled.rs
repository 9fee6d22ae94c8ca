//! Runs a program that rustc compiled for riscv64imac (`crates/riscv/tests/program`) and compares
//! what its functions return with what the same functions return on this machine.
//!
//! `compiled FILE` prints a line for each function, and `N passed, N failed`.

#[path = "../tests/program/src/work.rs"]
mod work;

use std::process::ExitCode;
use std::sync::Arc;

use verbless_riscv::{AddressSpace, Cause, Exit, Hart, PAGE, Permissions, Ram, Region, Trap};

const STACK: u64 = 0xf000_0000;
const STACK_BYTES: u64 = 0x1_0000;
/// Where functions return to: nothing is there.
const NOWHERE: u64 = 0xdead_0000;
/// Calls of each function.
const SEEDS: u64 = 50;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

fn main() -> Result<ExitCode> {
    let path = std::env::args().nth(1).ok_or("usage: compiled FILE")?;
    let (space, entry) = load(&std::fs::read(path)?)?;
    let mut hart = Hart::new(Arc::new(space));
    let mut failed = 0;
    for (which, (name, function)) in (0..).zip(work::WORK) {
        let before = hart.instructions();
        let wrong = (0..SEEDS).find_map(|seed| {
            let (expected, result) = (function(seed), call(&mut hart, entry, which, seed));
            (result != Ok(expected)).then(|| format!("{expected:#x}, not {result:x?}, for {seed}"))
        });
        let instructions = hart.instructions() - before;
        match &wrong {
            None => println!("ok      {name}: {instructions} instructions"),
            Some(why) => println!("FAILED  {name}: {why}"),
        }
        failed += usize::from(wrong.is_some());
    }
    println!("{} passed, {failed} failed", work::WORK.len() - failed);
    Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Calls the entry point; what it returns, or how it ended otherwise.
fn call(hart: &mut Hart, entry: u64, which: u64, seed: u64) -> std::result::Result<u64, Exit> {
    let registers = [(1, NOWHERE), (2, STACK + STACK_BYTES), (10, which), (11, seed)];
    registers.into_iter().for_each(|(register, value)| hart.set_x(register, value));
    hart.set_pc(entry);
    match hart.run(100_000_000) {
        Exit::Trap(Trap { cause: Cause::FetchAccess, value: NOWHERE }) => Ok(hart.x(10)),
        exit => Err(exit),
    }
}

/// The segments of a static ELF file and a stack; and the entry point.
fn load(file: &[u8]) -> Result<(AddressSpace, u64)> {
    let number = |at: usize, size: usize| -> Result<u64> {
        let mut bytes = [0; 8];
        let found = file.get(at..at + size).ok_or("the file ends within its headers")?;
        bytes[..size].copy_from_slice(found);
        Ok(u64::from_le_bytes(bytes))
    };
    if !file.starts_with(b"\x7fELF\x02\x01") || number(18, 2)? != 243 {
        return Err("this is no ELF file for RV64".into());
    }
    let stack = Region::ram(STACK, &Ram::new(STACK_BYTES), Permissions::RW);
    let mut space = AddressSpace::new([stack])?;
    let (headers, count) = (number(32, 8)? as usize, number(56, 2)? as usize);
    for at in (0..count).map(|index| headers + 56 * index) {
        let (flags, address, bytes) =
            (number(at + 4, 4)?, number(at + 16, 8)?, number(at + 40, 8)?);
        if number(at, 4)? != 1 || bytes == 0 {
            continue;
        }
        let (from, length) = (number(at + 8, 8)? as usize, number(at + 32, 8)? as usize);
        let content = file.get(from..from + length).ok_or("a segment is not in the file")?;
        let ram = Ram::new(address % PAGE + bytes);
        ram.write(address % PAGE, content);
        let permissions =
            Permissions { read: flags & 4 != 0, write: flags & 2 != 0, execute: flags & 1 != 0 };
        space = space.with(Region::ram(address - address % PAGE, &ram, permissions))?;
    }
    Ok((space, number(24, 8)?))
}
