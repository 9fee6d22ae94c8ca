//! Texts and accessors of values (causes, regions, RAM), and the release of translated code and
//! breakpoints.

use std::sync::Arc;

use crate::support::*;
use verbless_riscv::{
    Access, AddressSpace, Cause, Exit, MapError, PAGE, Permissions, Ram, Region, Transfer, Trap,
};

#[test]
fn cause_has_code_access_and_text() {
    let causes = [
        (Cause::FetchAccess, 1, Access::Fetch, "instruction access fault"),
        (Cause::Illegal, 2, Access::Fetch, "illegal instruction"),
        (Cause::LoadMisaligned, 4, Access::Load, "load address misaligned"),
        (Cause::LoadAccess, 5, Access::Load, "load access fault"),
        (Cause::StoreMisaligned, 6, Access::Store, "store address misaligned"),
        (Cause::StoreAccess, 7, Access::Store, "store access fault"),
    ];
    for (cause, code, access, words) in causes {
        assert_eq!((cause.code(), cause.access(), cause.to_string()), (code, access, words.into()));
        assert_eq!(Trap { cause, value: 0x1f }.to_string(), format!("{words} (0x1f)"));
    }
}

#[test]
fn memory_reports_its_size_and_base() {
    let ram = Ram::new(PAGE + 1);
    assert_eq!(format!("{ram:?}"), format!("Ram({:#x} bytes)", 2 * PAGE));
    assert!(!ram.is_empty() && Ram::new(0).is_empty());
    assert!(ram.write(8, &7_u64.to_le_bytes()));
    // SAFETY: the second word of memory that `ram` keeps alive; accesses to it are atomic.
    #[allow(unsafe_code)]
    let word = unsafe { &*ram.as_ptr().add(1) };
    assert_eq!(u64::from_le(word.load(std::sync::atomic::Ordering::Relaxed)), 7);
    let regions = [
        Region::ram(CODE, &ram, Permissions::RWX),
        Region::environment(DATA, PAGE),
        Region::environment(0, PAGE),
    ];
    let space = AddressSpace::new(regions).unwrap();
    let bases: Vec<u64> = space.regions().iter().map(|region| region.base).collect();
    assert_eq!(bases, [0, CODE, DATA]);
    assert_eq!(space.without(CODE).regions().len(), 2);
    let shown = format!("{:?}", space.regions());
    assert!(shown.contains("Ram(0x2000 bytes) from 0x0"), "{shown}");
    assert!(shown.contains("environment"), "{shown}");
    for (refused, words) in [
        (MapError::Unaligned, "must be multiples of"),
        (MapError::TooLong, "ends beyond its RAM"),
        (MapError::Overlap(0x4000), "overlaps that at 0x4000"),
    ] {
        assert!(refused.to_string().contains(words), "{refused}");
    }
}

#[test]
fn translated_bytes_count_until_release() {
    let mut machine = Machine::new(&[addi(A0, A0, 1), addi(A1, A1, 1), ECALL]);
    assert_eq!(machine.hart.translated(), 0);
    machine.finish();
    let translated = machine.hart.translated();
    assert!((64..1 << 16).contains(&translated), "{translated} bytes");
    machine.hart.add_breakpoint(CODE + 4);
    machine.hart.release();
    assert_eq!(machine.hart.translated(), 0, "the translated code is freed");
    machine.hart.set_pc(CODE);
    assert_eq!((machine.hart.run(10), machine.hart.pc()), (Exit::Breakpoint, CODE + 4));
    let shown = format!("{:?}", machine.hart);
    assert!(shown.starts_with("Hart") && shown.contains("instructions"), "{shown}");
}

#[test]
fn remove_breakpoints_removes_all() {
    let mut machine = Machine::new(&[addi(A0, A0, 1), addi(A0, A0, 1), addi(A0, A0, 1), ECALL]);
    machine.hart.remove_breakpoints();
    machine.finish();
    machine.hart.set_pc(CODE);
    machine.hart.add_breakpoint(CODE + 4);
    machine.hart.add_breakpoint(CODE + 8);
    assert_eq!((machine.hart.run(10), machine.hart.pc()), (Exit::Breakpoint, CODE + 4));
    machine.hart.remove_breakpoints();
    machine.finish();
    assert!(!machine.hart.remove_breakpoint(CODE + 8), "the breakpoint was removed before");
    assert_eq!(machine.get(A0), 6);
}

#[test]
fn environment_accesses_have_size_and_extension() {
    const VALUE: u64 = 0xfedc_ba98_8081_8283;
    // Opcode 0x03 by funct3, and the result for VALUE.
    let loads = [
        (0, 1, 0xffff_ffff_ffff_ff83),
        (1, 2, 0xffff_ffff_ffff_8283),
        (2, 4, 0xffff_ffff_8081_8283),
        (3, 8, VALUE),
        (4, 1, 0x83),
        (5, 2, 0x8283),
        (6, 4, 0x8081_8283),
    ];
    let mut machine = Machine::new(&[]);
    let space = machine.hart.space().with(Region::environment(0, PAGE)).unwrap();
    machine.hart.set_space(Arc::new(space));
    for (funct3, size, expected) in loads {
        machine.put(0, &[i(0x03, funct3, A0, A1, 16), ECALL]);
        machine.hart.flush();
        machine.hart.set_pc(CODE);
        let transfer = Transfer { address: 16, size, store: None };
        assert_eq!(machine.hart.run(100), Exit::Environment(transfer), "load {funct3}");
        machine.hart.complete(VALUE);
        machine.finish();
        assert_eq!(machine.get(A0), expected, "load {funct3}");
    }
    for (funct3, size) in [(0, 1), (1, 2), (2, 4), (3, 8)] {
        machine.put(0, &[s(funct3, A1, A2, 16), ECALL]);
        machine.hart.flush();
        machine.hart.set_pc(CODE);
        machine.set(A2, VALUE);
        let store = Some(VALUE & (u64::MAX >> (64 - 8 * size)));
        let transfer = Transfer { address: 16, size, store };
        assert_eq!(machine.hart.run(100), Exit::Environment(transfer), "store {funct3}");
        machine.hart.complete(0);
        machine.finish();
    }
}
