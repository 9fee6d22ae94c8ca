//! Random bytes as code: no panic, no instruction beyond the budget, no access outside.

use crate::support::*;
use proptest::prelude::*;
use verbless_riscv::{Exit, Misaligned};

/// Bytes that are valid instructions more often than not.
fn code() -> impl Strategy<Value = Vec<u32>> {
    let opcodes =
        [0x03, 0x0f, 0x13, 0x17, 0x1b, 0x23, 0x2f, 0x33, 0x37, 0x3b, 0x63, 0x67, 0x6f, 0x73];
    let likely = (any::<u32>(), proptest::sample::select(opcodes.to_vec()))
        .prop_map(|(word, opcode)| word & !0x7f | opcode);
    prop::collection::vec(prop_oneof![4 => likely, 1 => any::<u32>()], 1..200)
}

/// Registers that often lead into memory.
fn registers() -> impl Strategy<Value = Vec<u64>> {
    let value = prop_oneof![
        (CODE..CODE + 1024),
        (DATA..DATA + SIZE),
        Just(DATA),
        any::<u64>(),
        (0u64..64),
    ];
    prop::collection::vec(value, 32)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn sliced_run_equals_one_run(
        code in code(),
        registers in registers(),
        budget in 1u64..2000,
        slice in 1u64..100,
        emulate in any::<bool>(),
    ) {
        let mut machines = [Machine::new(&code), Machine::new(&code)];
        for machine in &mut machines {
            if emulate {
                machine.hart.set_misaligned(Misaligned::Emulate);
            }
            for (index, value) in (0..).zip(&registers) {
                machine.set(index, *value);
            }
        }
        let [one_run, sliced] = &mut machines;
        let exit = one_run.hart.run(budget);
        let mut last = sliced.hart.run(slice.min(budget));
        let mut done = sliced.hart.instructions();
        while last == Exit::Budget && done < budget {
            last = sliced.hart.run(slice.min(budget - done));
            done = sliced.hart.instructions();
        }
        prop_assert!(one_run.hart.instructions() <= budget);
        prop_assert_eq!(exit, last);
        prop_assert_eq!(one_run.hart.registers(), sliced.hart.registers());
        prop_assert_eq!(one_run.hart.instructions(), sliced.hart.instructions());
        let [mut one, mut two] = [vec![0; SIZE as usize], vec![0; SIZE as usize]];
        for (one_ram, two_ram) in [(&one_run.code, &sliced.code), (&one_run.data, &sliced.data)] {
            one_ram.read(0, &mut one);
            two_ram.read(0, &mut two);
            prop_assert!(one == two, "memory differs");
        }
    }
}
