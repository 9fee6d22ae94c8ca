//! Snippets in one program: as an ELF file for QEMU, and as regions for our hart.
//!
//! x31 points to the state of the snippet: 30 doublewords for the initial x1 to x30, 30 for the
//! final ones, and the address after the snippet, where the signal handler continues. After the
//! last snippet the program writes all states and the shared memory to its standard output.

use std::sync::Arc;

use verbless_riscv::{AddressSpace, Cause, Exit, Hart, Misaligned, Permissions, Ram, Region};

use crate::generate::Snippet;
use crate::support::*;

/// Snippets in a program.
pub const SNIPPETS: usize = 2000;
const TEXT: u64 = 0x10_0000;
const STATES: u64 = 0x100_0000;
/// Bytes of a state.
const STATE: u64 = 512;
/// Address of the memory that snippets share.
pub const SHARED: u64 = 0x200_0000;
/// Bytes of the shared memory. The `sigaction`, the `stack_t` and the signal stack follow it.
pub const SCRATCH: u64 = 4096;
const ALTERNATE_STACK: u64 = 0x1_0000;
/// The handler of signals, before the first snippet.
const HANDLER: u64 = TEXT + 0x200;
const FIRST: u64 = TEXT + 0x400;
/// Bytes of code for each snippet.
const SLOT: u64 = 512;
/// Offset of a snippet's instructions in its slot: after 30 loads.
const BODY: u64 = 4 * 30;
/// Offset of the stores.
const TAIL: u64 = SLOT - 4 * 31;

const POINTER: u32 = 31;

/// The address of the instructions of a snippet.
pub fn body(index: usize) -> u64 {
    FIRST + index as u64 * SLOT + BODY
}

/// `rd = value`, for a value of 31 bits.
fn li(rd: u32, value: u64) -> [u32; 2] {
    let upper = (value + 0x800) & !0xfff;
    let low = (value as i64 - upper as i64) as i32;
    [upper as u32 | rd << 7 | 0x37, i(0x1b, 0, rd, rd, low)]
}

/// A system call with these arguments.
fn call(number: u64, arguments: &[u64]) -> Vec<u32> {
    let registers = [17].into_iter().chain(10..);
    let values = [number].into_iter().chain(arguments.iter().copied());
    let mut code: Vec<_> = registers.zip(values).flat_map(|(rd, value)| li(rd, value)).collect();
    code.push(ECALL);
    code
}

/// A program: its parts with their addresses.
pub struct Image {
    text: Vec<u8>,
    states: Vec<u8>,
    shared: Vec<u8>,
}

impl Image {
    pub fn new(snippets: &[Snippet]) -> Self {
        let end = FIRST + snippets.len() as u64 * SLOT;
        let mut image = Self {
            text: vec![0; (end + 0x200 - TEXT) as usize],
            states: Vec::new(),
            shared: vec![0; (SCRATCH + 4096 + ALTERNATE_STACK) as usize],
        };
        // struct sigaction: handler, flags (SA_ONSTACK), mask; stack_t: address, flags, bytes.
        let (action, stack) = (SHARED + SCRATCH, SHARED + SCRATCH + 64);
        let words = [HANDLER, 0x0800_0000, 0, 0, 0, 0, 0, 0, SHARED + SCRATCH + 4096, 0];
        let words = words.into_iter().chain([ALTERNATE_STACK]);
        let bytes: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
        image.shared[SCRATCH as usize..][..bytes.len()].copy_from_slice(&bytes);

        // sigaltstack, and rt_sigaction for SIGILL, SIGTRAP, SIGBUS and SIGSEGV.
        let mut start = call(132, &[stack, 0]);
        for signal in [4, 5, 7, 11] {
            start.extend(call(134, &[signal, action, 0, 8]));
        }
        start.extend(li(POINTER, STATES));
        start.push(j(0, (FIRST - TEXT) as i32 - 4 * start.len() as i32));
        image.put(TEXT, &start, HANDLER);
        // x30 = the signal; continues after the snippet. Registers are in the context (a2) from
        // byte 176 on, with the pc in the slot of x0.
        let handler = [
            i(0x03, 3, T0, A2, 176 + 8 * POINTER as i32),
            i(0x03, 3, T0, T0, 480),
            s(3, A2, T0, 176),
            s(3, A2, A0, 176 + 8 * 30),
            i(0x67, 0, 0, RA, 0),
        ];
        image.put(HANDLER, &handler, FIRST);
        for (index, snippet) in snippets.iter().enumerate() {
            image.add(index, snippet);
        }
        let bytes = snippets.len() as u64 * STATE;
        let mut exit = call(64, &[1, STATES, bytes]);
        exit.extend(call(64, &[1, SHARED, SCRATCH]));
        exit.extend(call(94, &[0]));
        image.put(end, &exit, end + 0x200);
        image
    }

    fn put(&mut self, at: u64, words: &[u32], end: u64) {
        assert!(at + 4 * words.len() as u64 <= end, "the code at {at:#x} exceeds its slot");
        let bytes: Vec<u8> = words.iter().flat_map(|it| it.to_le_bytes()).collect();
        self.text[(at - TEXT) as usize..][..bytes.len()].copy_from_slice(&bytes);
    }

    fn add(&mut self, index: usize, snippet: &Snippet) {
        let slot = FIRST + index as u64 * SLOT;
        let load = |it: u32| i(0x03, 3, it, POINTER, 8 * (it as i32 - 1));
        self.put(slot, &(1..=30).map(load).collect::<Vec<_>>(), slot + BODY);
        let mut bytes: Vec<u8> = snippet.code.iter().flat_map(|it| it.to_le_bytes()).collect();
        // Jumps over the rest of the slot.
        let left = (TAIL - BODY) as i32 - bytes.len() as i32;
        assert!(left >= 4, "the snippet exceeds its slot: {snippet:x?}");
        bytes.extend(j(0, left).to_le_bytes());
        self.text[(slot + BODY - TEXT) as usize..][..bytes.len()].copy_from_slice(&bytes);
        let store = |it: u32| s(3, POINTER, it, 240 + 8 * (it as i32 - 1));
        let mut tail: Vec<_> = (1..=30).map(store).collect();
        tail.push(addi(POINTER, POINTER, STATE as i32));
        self.put(slot + TAIL, &tail, slot + SLOT);

        let mut state: Vec<u8> = snippet.registers.iter().flat_map(|it| it.to_le_bytes()).collect();
        state.resize(480, 0xa5);
        state.extend((slot + TAIL).to_le_bytes());
        state.resize(STATE as usize, 0);
        self.states.extend(state);
    }

    fn parts(&self) -> [(u64, &[u8], Permissions); 3] {
        [
            (TEXT, &self.text, Permissions::RWX),
            (STATES, &self.states, Permissions::RW),
            (SHARED, &self.shared, Permissions::RW),
        ]
    }

    /// The final registers of a snippet, from a program's output.
    pub fn results(&self, output: &[u8], index: usize) -> Vec<u64> {
        let at = index * STATE as usize + 240;
        let bytes = output.get(at..at + 240).expect("the program ends with all its output");
        bytes.as_chunks().0.iter().map(|it| u64::from_le_bytes(*it)).collect()
    }

    /// The output of our hart.
    pub fn run(&self) -> Vec<u8> {
        let parts = self.parts().map(|(base, bytes, permissions)| {
            let ram = Ram::new(bytes.len() as u64);
            ram.write(0, bytes);
            Region::ram(base, &ram, permissions)
        });
        let space = Arc::new(AddressSpace::new(parts).expect("the parts are apart"));
        let mut hart = Hart::new(space.clone());
        hart.set_misaligned(Misaligned::Emulate);
        hart.set_pc(TEXT);
        let mut output = Vec::new();
        // An odd budget, so that blocks are cut everywhere.
        loop {
            match hart.run(997) {
                Exit::Budget => {}
                // No other program needs the processor.
                Exit::Pause => {}
                Exit::Ecall if hart.x(17) == 94 => return output,
                Exit::Ecall => {
                    if hart.x(17) == 64 {
                        let mut bytes = vec![0; hart.x(12) as usize];
                        assert_eq!(space.peek(hart.x(11), &mut bytes), bytes.len());
                        output.extend(bytes);
                    }
                    hart.skip();
                }
                Exit::Ebreak => signal(&mut hart, 5),
                Exit::Trap(trap) if trap.cause == Cause::Illegal => signal(&mut hart, 4),
                Exit::Trap(_) => signal(&mut hart, 11),
                exit => panic!("{exit:?} at {:x?}", hart.registers()),
            }
        }
    }

    /// A static ELF file for RV64.
    pub fn elf(&self) -> Vec<u8> {
        let mut file = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0".to_vec();
        let parts = self.parts();
        file.extend([2u16, 243].map(u16::to_le_bytes).concat());
        file.extend(1u32.to_le_bytes());
        file.extend([TEXT, 64, 0].map(u64::to_le_bytes).concat());
        // EF_RISCV_RVC; the sizes of this header and of a program header.
        file.extend(1u32.to_le_bytes());
        file.extend([64u16, 56, parts.len() as u16, 64, 0, 0].map(u16::to_le_bytes).concat());
        let mut offset = 4096;
        for (base, bytes, permissions) in parts {
            let flags = 4 | 2 | u32::from(permissions.execute);
            file.extend([1, flags].map(u32::to_le_bytes).concat());
            let length = bytes.len() as u64;
            file.extend([offset, base, base, length, length, 4096].map(u64::to_le_bytes).concat());
            offset += length.next_multiple_of(4096);
        }
        for (_, bytes, _) in parts {
            file.resize(file.len().next_multiple_of(4096), 0);
            file.extend(bytes);
        }
        file
    }
}

/// Does what the program's signal handler does under QEMU: our hart has no signals.
fn signal(hart: &mut Hart, number: u64) {
    let mut after = [0; 8];
    assert_eq!(hart.space().peek(hart.x(POINTER as usize) + 480, &mut after), 8);
    hart.set_x(30, number);
    hart.set_pc(u64::from_le_bytes(after));
}
