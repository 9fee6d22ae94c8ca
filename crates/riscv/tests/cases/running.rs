//! Runs of a program: budgets, exits, stops, counters, breakpoints, changed code.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::support::*;
use verbless_riscv::{
    Cause, Exit, Misaligned, Permissions, Ram, Region, Registers, Transfer, Trap,
};

#[test]
fn run_ends_exactly_at_its_budget() {
    // A loop of 3 blocks, with instructions that are executed in pairs.
    let code = [
        addi(A0, A0, 1),
        0x1234_5537,
        addi(A0, A0, 1),
        b(0, A1, A2, 8),
        addi(A3, A3, 1),
        addi(T0, T0, -1),
        b(1, T0, 0, -24),
        ECALL,
    ];
    let mut steps = Machine::new(&code);
    steps.set(T0, 50);
    let mut trace = vec![steps.hart.registers()];
    while steps.hart.run(1) == Exit::Budget {
        trace.push(steps.hart.registers());
        assert_eq!(steps.hart.instructions(), trace.len() as u64 - 1);
    }
    assert_eq!(trace.len(), 301);
    for budget in [2, 3, 5, 64, 100, 299, 300] {
        let mut machine = Machine::new(&code);
        machine.set(T0, 50);
        for done in (budget as usize..trace.len()).step_by(budget as usize) {
            assert_eq!(machine.hart.run(budget), Exit::Budget);
            assert_eq!(machine.hart.registers(), trace[done], "{budget}, after {done}");
            assert_eq!(machine.hart.instructions(), done as u64);
        }
        let left = 300 % budget;
        assert_eq!(machine.hart.run(left + 1), Exit::Ecall);
        assert_eq!(machine.hart.instructions(), 300);
    }
}

#[test]
fn run_without_budget_executes_nothing() {
    let mut machine = Machine::new(&[addi(A0, A0, 1)]);
    assert_eq!(machine.hart.run(0), Exit::Budget);
    assert_eq!(machine.hart.registers(), Registers { pc: CODE, ..Registers::default() });
}

#[test]
fn exits_leave_documented_pc() {
    let mut machine = Machine::new(&[0x1050_0073, 0x0100_000f, ECALL, EBREAK, 0x9002]);
    let exits = [
        (Exit::Wait, 4, 0),
        (Exit::Pause, 8, 0),
        (Exit::Ecall, 8, 4),
        (Exit::Ebreak, 12, 4),
        (Exit::Ebreak, 16, 2),
        (Exit::Trap(Trap { cause: Cause::Illegal, value: 0 }), 18, 0),
    ];
    for (exit, pc, skip) in exits {
        assert_eq!(machine.hart.run(100), exit);
        assert_eq!(machine.hart.pc(), CODE + pc);
        if skip != 0 {
            machine.hart.skip();
            assert_eq!(machine.hart.pc(), CODE + pc + skip);
        }
    }
    assert_eq!(machine.hart.instructions(), 2, "WFI and PAUSE");
}

#[test]
fn another_thread_stops_spinning_hart() {
    // A jump to itself, directly and through a register.
    for code in [vec![j(0, 0)], vec![i(0x67, 0, 0, A0, 0)]] {
        let mut machine = Machine::new(&code);
        machine.set(A0, CODE);
        let stopper = machine.hart.stopper();
        let (exit, took) = std::thread::scope(|scope| {
            let run = scope.spawn(|| (machine.hart.run(u64::MAX), Instant::now()));
            std::thread::sleep(Duration::from_millis(20));
            let asked = Instant::now();
            stopper.stop();
            let (exit, ended) = run.join().unwrap();
            (exit, ended.saturating_duration_since(asked))
        });
        assert_eq!(exit, Exit::Stopped);
        assert!(took < Duration::from_secs(2), "{took:?}");
        assert!(machine.hart.instructions() > 1000);
        assert_eq!(machine.hart.run(5), Exit::Budget, "a stop is taken once");
        stopper.stop();
        assert_eq!(machine.hart.run(5), Exit::Stopped, "a stop before a run counts");
    }
}

#[test]
fn counters_are_read_only_and_count_instructions() {
    let csr = |funct3: u32, rd: u32, rs1: u32, number: u32| {
        0x73 | rd << 7 | funct3 << 12 | rs1 << 15 | number << 20
    };
    let mut machine = Machine::new(&[
        addi(0, 0, 0),
        csr(2, A0, 0, 0xc02),
        csr(2, A1, 0, 0xc00),
        addi(T0, T0, 1),
        csr(3, A2, 0, 0xc01),
        csr(6, A3, 0, 0xc02),
        ECALL,
    ]);
    machine.hart.set_clock(Arc::new(|| 0x1234_5678_9abc_def0));
    machine.finish();
    let values = [A0, A1, A2, A3].map(|it| machine.get(it));
    assert_eq!(values, [1, 2, 0x1234_5678_9abc_def0, 5]);
    // Writes, even those that would change nothing; other CSRs: cycleh, hpmcounter3, fcsr, misa.
    let refused = [
        csr(1, A0, 0, 0xc00),
        csr(2, A0, A1, 0xc00),
        csr(3, A0, A1, 0xc01),
        csr(5, 0, 0, 0xc02),
        csr(6, A0, 1, 0xc02),
        csr(7, A0, 31, 0xc02),
        csr(4, A0, 0, 0xc00),
        csr(2, A0, 0, 0xc80),
        csr(2, A0, 0, 0xc03),
        csr(2, A0, 0, 0x003),
        csr(2, A0, 0, 0x301),
    ];
    for code in refused {
        let mut machine = Machine::new(&[code]);
        let illegal = Trap { cause: Cause::Illegal, value: code.into() };
        assert_eq!(machine.hart.run(1), Exit::Trap(illegal), "{code:#x}");
    }
}

#[test]
fn store_into_code_takes_effect_at_once() {
    // Replaces the next instruction in its own block, then one that was executed before.
    let new = u64::from(addi(A0, A0, 16));
    let code = [
        addi(A0, A0, 1),
        s(2, A1, A2, 8),
        addi(A0, A0, 1),
        addi(A3, A3, -1),
        b(1, A3, 0, -16),
        ECALL,
    ];
    for budget in [1, 2, 3, 1000] {
        let mut machine = Machine::new(&code);
        machine.set(A1, CODE).set(A2, new).set(A3, 2);
        while machine.hart.run(budget) == Exit::Budget {}
        assert_eq!(machine.get(A0), 1 + 16 + 1 + 16, "{budget}");
        assert_eq!(machine.hart.instructions(), 10);
    }
}

#[test]
fn atomic_store_into_code_takes_effect_at_once() {
    let new = u64::from(addi(A0, A0, 16));
    for store in [amo(1, false, 0, A1, A2), amo(3, false, 0, A1, A2)] {
        let lr = amo(2, false, 0, A1, 0);
        let mut machine = Machine::new(&[lr, store, addi(A0, A0, 1), ECALL]);
        machine.set(A1, CODE + 8).set(A2, new).finish();
        assert_eq!(machine.get(A0), 16);
    }
}

#[test]
fn partly_failed_store_may_change_code() {
    // The last instruction of the region is replaced by the first bytes of a store across its end.
    let mut machine = Machine::new(&[s(3, A1, A2, 0)]);
    machine.put(SIZE - 4, &[EBREAK]);
    machine.hart.set_pc(CODE + SIZE - 4);
    assert_eq!(machine.hart.run(9), Exit::Ebreak);
    machine.hart.set_misaligned(Misaligned::Emulate);
    machine.hart.set_pc(CODE);
    machine.set(A1, CODE + SIZE - 4).set(A2, ECALL.into());
    let fault = Trap { cause: Cause::StoreAccess, value: CODE + SIZE };
    assert_eq!(machine.hart.run(9), Exit::Trap(fault));
    machine.hart.set_pc(CODE + SIZE - 4);
    machine.finish();
}

#[test]
fn external_code_write_needs_fence_or_flush() {
    let mut machine = Machine::new(&[j(0, 8), FENCE_I, addi(A0, 0, 1), ECALL]);
    machine.finish();
    machine.put(8, &[addi(A0, 0, 2)]);
    machine.hart.set_pc(CODE + 4);
    assert_eq!(machine.finish().get(A0), 2);
    machine.put(8, &[addi(A0, 0, 3)]);
    machine.hart.flush();
    machine.hart.set_pc(CODE);
    assert_eq!(machine.finish().get(A0), 3);
}

#[test]
fn store_beside_code_keeps_code_valid() {
    // A counter in the page of the loop, but not in its line.
    let code = [
        i(0x03, 3, A0, A1, 0x200),
        addi(A0, A0, 1),
        s(3, A1, A0, 0x200),
        addi(A2, A2, -1),
        b(1, A2, 0, -16),
        ECALL,
    ];
    let mut machine = Machine::new(&code);
    machine.set(A1, CODE).set(A2, 100).finish();
    let mut bytes = [0; 8];
    machine.code.read(0x200, &mut bytes);
    assert_eq!(u64::from_le_bytes(bytes), 100);
}

#[test]
fn code_without_execute_permission_is_not_executed() {
    let mut machine = Machine::new(&[j(0, 0x1000 - 2)]);
    let (last, next) = (Ram::new(0x1000), Ram::new(0x1000));
    // An instruction of four bytes, of which the second half is in a page without permission.
    last.write(0xffe, &addi(A0, 0, 1).to_le_bytes()[..2]);
    next.write(0, &addi(A0, 0, 1).to_le_bytes()[2..]);
    let space = machine.hart.space().with(Region::ram(0, &last, Permissions::RX)).unwrap();
    let blocked = space.with(Region::ram(0x1000, &next, Permissions::RW)).unwrap();
    let allowed = space.with(Region::ram(0x1000, &next, Permissions::RX)).unwrap();
    let fault = |value| Exit::Trap(Trap { cause: Cause::FetchAccess, value });
    machine.hart.set_space(Arc::new(blocked));
    machine.hart.set_pc(0xffe);
    assert_eq!(machine.hart.run(1), fault(0x1000));
    assert_eq!(machine.hart.pc(), 0xffe);
    machine.hart.set_space(Arc::new(allowed));
    assert_eq!(machine.hart.run(1), Exit::Budget);
    assert_eq!((machine.get(A0), machine.hart.pc()), (1, 0x1002));
    machine.hart.set_pc(0xdead_beee);
    assert_eq!(machine.hart.run(1), fault(0xdead_beee));
}

#[test]
fn breakpoint_is_reported_once_per_arrival() {
    let mut machine = Machine::new(&[addi(A0, A0, 1), addi(A0, A0, 1), b(1, A0, A1, -8), ECALL]);
    machine.set(A1, 6);
    machine.hart.add_breakpoint(CODE + 4);
    for round in 0..3 {
        assert_eq!(machine.hart.run(1000), Exit::Breakpoint);
        assert_eq!((machine.hart.pc(), machine.get(A0)), (CODE + 4, 2 * round + 1));
    }
    assert_eq!(machine.hart.run(1000), Exit::Ecall);
    // Also where a run begins.
    machine.hart.set_pc(CODE);
    assert_eq!(machine.hart.run(1), Exit::Budget);
    assert_eq!(machine.hart.run(1), Exit::Breakpoint);
    assert!(machine.hart.remove_breakpoint(CODE + 4));
    assert!(!machine.hart.remove_breakpoint(CODE + 4));
    machine.hart.set_pc(CODE);
    machine.set(A0, 0).finish();
}

#[test]
fn environment_access_exits_and_is_completed() {
    let code = [
        i(0b000_0011, 0b011, A0, A2, 8), // ld a0, 8(a2)
        i(0b000_0011, 0b001, A1, A2, 6), // lh a1, 6(a2)
        i(0b000_0011, 0b101, A3, A2, 6), // lhu a3, 6(a2)
        s(0b010, A2, A0, 12),            // sw a0, 12(a2)
        s(0b010, A2, A0, 2),             // sw a0, 2(a2): misaligned
    ];
    let mut machine = Machine::new(&code);
    let space = machine.hart.space().with(Region::environment(0x9000, 0x1000)).unwrap();
    machine.hart.set_space(Arc::new(space));
    machine.set(A2, 0x9000);
    let expect = |machine: &mut Machine, address, size, store| {
        let transfer = Transfer { address, size, store };
        assert_eq!(machine.hart.run(100), Exit::Environment(transfer));
    };
    expect(&mut machine, 0x9008, 8, None);
    // Nothing has changed: the hart repeats the request.
    expect(&mut machine, 0x9008, 8, None);
    machine.hart.complete(0xfedc_ba98_7654_3210);
    assert_eq!((machine.get(A0), machine.hart.pc()), (0xfedc_ba98_7654_3210, CODE + 4));
    expect(&mut machine, 0x9006, 2, None);
    machine.hart.complete(0x1_ffff);
    assert_eq!(machine.get(A1), u64::MAX);
    expect(&mut machine, 0x9006, 2, None);
    machine.hart.complete(0x1_ffff);
    assert_eq!(machine.get(A3), 0xffff);
    expect(&mut machine, 0x900c, 4, Some(0x7654_3210));
    assert_eq!(machine.hart.instructions(), 3);
    machine.hart.complete(0);
    machine.hart.complete(0);
    assert_eq!(machine.hart.instructions(), 4, "the second completes nothing");
    let misaligned = Trap { cause: Cause::StoreMisaligned, value: 0x9002 };
    assert_eq!(machine.hart.run(100), Exit::Trap(misaligned));
    assert_eq!(machine.hart.pc(), CODE + 16);
    // The hart cannot fetch or execute atomics there.
    machine.hart.set_pc(0x9000);
    let fetch = Trap { cause: Cause::FetchAccess, value: 0x9000 };
    assert_eq!(machine.hart.run(100), Exit::Trap(fetch));
}
