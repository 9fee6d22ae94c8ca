//! Programs for the DPA's cores: an arbitrary ELF file, or bare instructions, which then run.
#![no_main]

use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use verbless_riscv::{AddressSpace, Hart, Permissions, Program, Ram, Region};

/// Maximum number of executed instructions.
const BUDGET: u64 = 2000;
const CODE: u64 = 0x4000_0000;
const DATA: u64 = 0x8000_0000;

/// Runs a hart from `pc`, with registers that point into DATA, aligned and not.
fn run(space: AddressSpace, pc: u64) {
    let mut hart = Hart::new(Arc::new(space));
    hart.set_pc(pc);
    (1..32).for_each(|index| hart.set_x(index, DATA + 64 * index as u64 + index as u64 % 9));
    let _exit = hart.run(BUDGET);
    assert!(hart.instructions() <= BUDGET, "the hart exceeded its budget");
    assert_eq!(hart.x(0), 0);
}

fuzz_target!(|data: &[u8]| {
    let Some((&kind, rest)) = data.split_first() else { return };
    if kind % 2 == 0 {
        let Ok(program) = Program::parse(rest) else { return };
        let memory: u64 = program.segments.iter().map(|segment| segment.length).sum();
        // Skip large programs: they cost time and find nothing new.
        if memory > 1 << 20 {
            return;
        }
        let space = AddressSpace::new(program.regions()).expect("its segments share no page");
        for (_, symbol) in program.symbols() {
            assert!(space.region(symbol.address).is_some() || symbol.length == 0);
        }
        if let Some(entry) = program.entry {
            run(space, entry);
        }
        return;
    }
    let (code, data) = (Ram::new(4096), Ram::new(8192));
    code.write(0, &rest[..rest.len().min(4096)]);
    // Every second program may write to its code.
    let code_permissions = if kind % 4 == 1 { Permissions::RX } else { Permissions::RWX };
    let regions =
        [Region::ram(CODE, &code, code_permissions), Region::ram(DATA, &data, Permissions::RW)];
    run(AddressSpace::new(regions).expect("the regions share no page"), CODE);
});
