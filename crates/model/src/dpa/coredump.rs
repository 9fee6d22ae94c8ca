//! Core files: ELF, with the registers of the run that ended the process and the memory of it.
//!
//! Sources: the System V ABI, chapter 5 (program headers, notes); Linux `elfcore.h` and
//! `arch/riscv/include/uapi/asm/ptrace.h` for NT_PRSTATUS, which debuggers read: pc, then x1 to
//! x31, from byte 112 of 376.

use verbless_riscv::{Backing, PAGE, Permissions, Region};

use super::context;
use super::process::Process;

const HEADER: u64 = 64;
const PROGRAM_HEADER: u64 = 56;
const NT_PRSTATUS: u32 = 1;
const PRSTATUS: usize = 376;
const PRSTATUS_REGISTERS: usize = 112;

/// The file; `used` says which stacks and contexts are in use.
pub(super) fn write(process: &Process, used: &[bool]) -> Vec<u8> {
    let note = note(process);
    let regions: Vec<(&Region, Vec<u8>)> = process
        .space
        .regions()
        .iter()
        .filter(|region| is_interesting(region, used))
        .map(|region| (region, contents(process, region)))
        .collect();
    let headers = regions.len() as u64 + 1;
    let mut at = HEADER + headers * PROGRAM_HEADER;
    let mut file = header(headers as u16);
    program_header(&mut file, 4, 0, at, 0, note.len() as u64, 0, 4);
    at += note.len() as u64;
    at = at.next_multiple_of(8);
    for (region, bytes) in &regions {
        let Permissions { read, write, execute } = region.permissions;
        let flags = u32::from(execute) | u32::from(write) << 1 | u32::from(read) << 2;
        let length = bytes.len() as u64;
        program_header(&mut file, 1, flags, at, region.base, length, region.length, 1);
        at += length;
    }
    file.extend_from_slice(&note);
    file.resize(file.len().next_multiple_of(8), 0);
    for (_, bytes) in &regions {
        file.extend_from_slice(bytes);
    }
    file
}

fn is_interesting(region: &Region, used: &[bool]) -> bool {
    if !matches!(region.backing, Backing::Ram(..)) {
        return false;
    }
    let stacks = context::STACKS..context::stack_top(used.len());
    match stacks.contains(&region.base) {
        true => {
            let slot = (region.base - context::STACKS) / context::STACK_STRIDE;
            used.get(slot as usize).copied().unwrap_or(false)
        }
        false => true,
    }
}

/// The bytes of a region without the zeros at its end.
fn contents(process: &Process, region: &Region) -> Vec<u8> {
    let mut bytes = vec![0; region.length as usize];
    process.space.peek(region.base, &mut bytes);
    let pages = bytes.chunks(PAGE as usize).rposition(|page| page.iter().any(|&byte| byte != 0));
    bytes.truncate(pages.map_or(0, |last| (last + 1) * PAGE as usize));
    bytes
}

fn header(program_headers: u16) -> Vec<u8> {
    let mut file = vec![0x7f, b'E', b'L', b'F', 2, 1, 1, 0];
    file.resize(16, 0);
    // ET_CORE, EM_RISCV.
    file.extend_from_slice(&4_u16.to_le_bytes());
    file.extend_from_slice(&243_u16.to_le_bytes());
    file.extend_from_slice(&1_u32.to_le_bytes());
    for value in [0, HEADER, 0] {
        file.extend_from_slice(&value.to_le_bytes());
    }
    // Compressed instructions.
    file.extend_from_slice(&1_u32.to_le_bytes());
    for half in [HEADER as u16, PROGRAM_HEADER as u16, program_headers, 0, 0, 0] {
        file.extend_from_slice(&half.to_le_bytes());
    }
    file
}

#[expect(clippy::too_many_arguments, reason = "the fields of a program header")]
fn program_header(
    file: &mut Vec<u8>,
    kind: u32,
    flags: u32,
    offset: u64,
    address: u64,
    in_file: u64,
    in_memory: u64,
    alignment: u64,
) {
    file.extend_from_slice(&kind.to_le_bytes());
    file.extend_from_slice(&flags.to_le_bytes());
    for value in [offset, address, 0, in_file, in_memory, alignment] {
        file.extend_from_slice(&value.to_le_bytes());
    }
}

/// The note with the registers; empty of a process that has not ended.
fn note(process: &Process) -> Vec<u8> {
    let Some(crash) = process.state.crash else { return Vec::new() };
    let mut status = [0; PRSTATUS];
    status[12..14].copy_from_slice(&signal(process.state.status).to_le_bytes());
    status[32..36].copy_from_slice(&1_u32.to_le_bytes());
    let registers = std::iter::once(crash.registers.pc).chain(crash.registers.x[1..].to_vec());
    for (index, value) in registers.enumerate() {
        let at = PRSTATUS_REGISTERS + 8 * index;
        status[at..at + 8].copy_from_slice(&value.to_le_bytes());
    }
    let mut note = Vec::new();
    for word in [5, PRSTATUS as u32, NT_PRSTATUS] {
        note.extend_from_slice(&word.to_le_bytes());
    }
    note.extend_from_slice(b"CORE\0\0\0\0");
    note.extend_from_slice(&status);
    note
}

/// The signal by which a debugger names why a process ended.
fn signal(status: u8) -> u16 {
    const SIGILL: u16 = 4;
    const SIGTRAP: u16 = 5;
    const SIGABRT: u16 = 6;
    const SIGBUS: u16 = 7;
    const SIGSEGV: u16 = 11;
    const SIGXCPU: u16 = 24;
    match status {
        1 | 8 => SIGILL,
        2 | 4 | 6 | 10 => SIGSEGV,
        3 | 5 => SIGBUS,
        7 => SIGTRAP,
        9 => SIGXCPU,
        _ => SIGABRT,
    }
}
