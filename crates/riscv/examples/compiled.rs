//! Runs a program that rustc compiled for riscv64imac (`crates/riscv/tests/program`) and compares
//! the results of its functions with those of the same functions on this machine.
//!
//! `compiled FILE` prints a line for each function, and `N passed, N failed`.

#[path = "../tests/program/src/work.rs"]
mod work;

use std::process::ExitCode;
use std::sync::Arc;

use verbless_riscv::{AddressSpace, Cause, Exit, Hart, Permissions, Program, Ram, Region, Trap};

const STACK: u64 = 0xf000_0000;
const STACK_BYTES: u64 = 0x1_0000;
/// The return address of functions, which is not mapped.
const NOWHERE: u64 = 0xdead_0000;
/// Calls of each function.
const SEEDS: u64 = 50;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

fn main() -> Result<ExitCode> {
    let path = std::env::args().nth(1).ok_or("usage: compiled FILE")?;
    let program = Program::parse(&std::fs::read(path)?)?;
    let entry = program.entry.ok_or("the program has no entry point")?;
    let stack = Region::ram(STACK, &Ram::new(STACK_BYTES), Permissions::RW);
    let space = AddressSpace::new(program.regions().chain([stack]))?;
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

/// Calls the entry point; returns its result, or the exit that ended it.
fn call(hart: &mut Hart, entry: u64, which: u64, seed: u64) -> std::result::Result<u64, Exit> {
    let registers = [(1, NOWHERE), (2, STACK + STACK_BYTES), (10, which), (11, seed)];
    registers.into_iter().for_each(|(register, value)| hart.set_x(register, value));
    hart.set_pc(entry);
    match hart.run(100_000_000) {
        Exit::Trap(Trap { cause: Cause::FetchAccess, value: NOWHERE }) => Ok(hart.x(10)),
        exit => Err(exit),
    }
}
