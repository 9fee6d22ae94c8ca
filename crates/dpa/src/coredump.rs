//! Core files: ELF, with the registers of the run that ended the process, the registers of the
//! other unfinished runs, and the memory of the process.
//!
//! Sources: the System V ABI, chapter 5 (program headers, notes); Linux `elfcore.h` and
//! `arch/riscv/include/uapi/asm/ptrace.h` for NT_PRSTATUS, which debuggers read: pc, then x1 to
//! x31, from byte 112 of 376.

use std::sync::Arc;

use verbless_riscv::{AddressSpace, Backing, PAGE, Permissions, Region, Registers};

use super::context;
use super::process::{Process, Stopped};

const HEADER: u64 = 64;
const PROGRAM_HEADER: u64 = 56;
const NT_PRSTATUS: u32 = 1;
const PRSTATUS: usize = 376;
const PRSTATUS_REGISTERS: usize = 112;

/// Bytes of memory that are measured, or copied, at a time.
pub const CHUNK: usize = 1 << 16;

/// A core file that is read in chunks. Nothing stops the process meanwhile: each chunk of a running
/// process is as it is when it is read.
pub struct CoreDump {
    space: Arc<AddressSpace>,
    note: Vec<u8>,
    segments: Vec<CoreSegment>,
    /// The number of segments whose length in the file is known.
    measured: usize,
    /// The bytes of the file before the memory, once all segments are measured.
    head: Vec<u8>,
}

/// A region of memory.
struct CoreSegment {
    base: u64,
    length: u64,
    permissions: Permissions,
    /// The number of bytes in the file: all but the zeros at the end.
    in_file: u64,
}

impl CoreDump {
    /// A core dump of a process, with the registers of its stopped runs.
    pub(super) fn new(process: &Process, stopped: &Stopped) -> Self {
        let regions = process.space.regions().iter();
        let dumped = regions.filter(|region| is_dumped(region, &process.slots));
        let segments = dumped.map(|region| CoreSegment {
            base: region.base,
            length: region.length,
            permissions: region.permissions,
            in_file: region.length,
        });
        Self {
            space: process.space.clone(),
            note: notes(process, stopped),
            segments: segments.collect(),
            measured: 0,
            head: Vec::new(),
        }
    }

    /// Measures a chunk of the memory; returns the length of the file once all memory is measured.
    pub fn measure(&mut self) -> Option<u64> {
        let mut bytes = [0; PAGE as usize];
        let mut read = 0;
        while let Some(segment) = self.segments.get_mut(self.measured) {
            if read >= CHUNK {
                return None;
            }
            let from = segment.in_file.saturating_sub(1) / PAGE * PAGE;
            let last = &mut bytes[..(segment.in_file - from) as usize];
            self.space.peek(segment.base + from, last);
            read += last.len();
            match segment.in_file == 0 || last.iter().any(|&byte| byte != 0) {
                true => self.measured += 1,
                false => segment.in_file = from,
            }
        }
        if self.head.is_empty() {
            self.head = self.head();
        }
        let memory: u64 = self.segments.iter().map(|segment| segment.in_file).sum();
        Some(self.head.len() as u64 + memory)
    }

    /// The bytes of the file before the memory.
    fn head(&self) -> Vec<u8> {
        let headers = self.segments.len() as u64 + 1;
        let mut at = HEADER + headers * PROGRAM_HEADER;
        let mut file = header(headers as u16);
        program_header(&mut file, 4, 0, at, 0, self.note.len() as u64, 0, 4);
        at += self.note.len() as u64;
        at = at.next_multiple_of(8);
        for segment in &self.segments {
            let Permissions { read, write, execute } = segment.permissions;
            let flags = u32::from(execute) | u32::from(write) << 1 | u32::from(read) << 2;
            program_header(
                &mut file,
                1,
                flags,
                at,
                segment.base,
                segment.in_file,
                segment.length,
                1,
            );
            at += segment.in_file;
        }
        file.extend_from_slice(&self.note);
        file.resize(file.len().next_multiple_of(8), 0);
        file
    }

    /// Copies the file's bytes from `at` on. They must all be in the file, which has been measured.
    pub fn read(&self, at: u64, into: &mut [u8]) {
        let (mut at, mut into) = (at, into);
        if let Some(head) = self.head.get(at as usize..) {
            let here = head.len().min(into.len());
            into[..here].copy_from_slice(&head[..here]);
            (at, into) = (at + here as u64, &mut into[here..]);
        }
        let mut begin = self.head.len() as u64;
        for segment in &self.segments {
            let end = begin + segment.in_file;
            if (begin..end).contains(&at) {
                let here = (end - at).min(into.len() as u64);
                let (now, rest) = into.split_at_mut(here as usize);
                self.space.peek(segment.base + (at - begin), now);
                (at, into) = (at + here, rest);
            }
            begin = end;
        }
    }
}

fn is_dumped(region: &Region, used: &[bool]) -> bool {
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
    // e_flags: EF_RISCV_RVC.
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

/// A note with registers for each run: first the run that ended the process, if it has ended, then
/// threads, then calls, by their numbers.
fn notes(process: &Process, stopped: &Stopped) -> Vec<u8> {
    let first = process.state.crash.map(|crash| (signal(process.state.status), crash.registers));
    let others = stopped.values().map(|&registers| (0, registers));
    let all = (1..).zip(first.into_iter().chain(others));
    all.flat_map(|(number, (signal, registers))| note(number, signal, &registers)).collect()
}

/// The note of one run; debuggers show its number as a thread.
fn note(number: u32, signal: u16, registers: &Registers) -> Vec<u8> {
    let mut status = [0; PRSTATUS];
    status[12..14].copy_from_slice(&signal.to_le_bytes());
    status[32..36].copy_from_slice(&number.to_le_bytes());
    let registers = std::iter::once(&registers.pc).chain(&registers.x[1..]);
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

/// The signal by which debuggers show why a process ended.
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

#[cfg(test)]
mod tests {
    use super::signal;

    #[test]
    fn process_error_maps_to_unix_signal() {
        let signals = [6, 4, 11, 7, 11, 7, 11, 5, 4, 24, 11, 6];
        for (status, expected) in (0..).zip(signals) {
            assert_eq!(signal(status), expected, "{status}");
        }
    }
}
