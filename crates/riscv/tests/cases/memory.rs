//! Loads, stores, LR/SC, AMOs and their faults; devices; memory shared with other agents.

use std::sync::{Arc, Mutex};

use crate::support::*;
use verbless_riscv::{
    Cause, Device, Exit, Hart, Misaligned, PAGE, Permissions, Ram, Refused, Region, Trap,
};

/// The register value for the eight bytes at an address.
type Extend = fn(u64) -> u64;

/// funct3, bytes, result.
const LOADS: [(u32, u64, Extend); 7] = [
    (0, 1, |value| value as i8 as u64),
    (1, 2, |value| value as i16 as u64),
    (2, 4, |value| value as i32 as u64),
    (3, 8, |value| value),
    (4, 1, |value| value as u8 as u64),
    (5, 2, |value| value as u16 as u64),
    (6, 4, |value| value as u32 as u64),
];

const PATTERN: [u64; 4] =
    [0x8182_8384_8586_8788, 0x0102_0304_0506_0708, 0xfffe_7f80_0080_ff7f, 0x7fff_8000_ffff_0001];

fn trap(cause: Cause, value: u64) -> Exit {
    Exit::Trap(Trap { cause, value })
}

#[test]
fn loads_extend_by_their_kind() {
    for (funct3, size, extend) in LOADS {
        for offset in (0..32 - size as i32 + 1).step_by(size as usize) {
            for base in [0, 2047] {
                let mut machine = Machine::new(&[i(0x03, funct3, A0, A1, offset - base), ECALL]);
                let mut bytes = Vec::new();
                PATTERN.iter().for_each(|it| bytes.extend(it.to_le_bytes()));
                machine.data.write(0, &bytes);
                machine.set(A1, DATA + base as u64).finish();
                bytes.resize(40, 0);
                let at = offset as usize;
                let value = u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
                assert_eq!(machine.get(A0), extend(value), "{funct3} at {offset}");
            }
        }
    }
}

#[test]
fn stores_change_their_bytes_and_no_others() {
    for (funct3, size) in [(0, 1usize), (1, 2), (2, 4), (3, 8)] {
        for offset in (0..24).step_by(size) {
            let mut machine = Machine::new(&[s(funct3, A1, A0, offset as i32 - 24), ECALL]);
            machine.data.write(0, &[0xa5; 32]);
            machine.set(A1, DATA + 24).set(A0, 0x1122_3344_5566_7788).finish();
            let mut expected = [0xa5; 32];
            let value = 0x1122_3344_5566_7788_u64.to_le_bytes();
            expected[offset..offset + size].copy_from_slice(&value[..size]);
            let mut bytes = [0; 32];
            machine.data.read(0, &mut bytes);
            assert_eq!(bytes, expected, "{funct3} at {offset}");
        }
    }
}

#[test]
fn load_into_x0_still_accesses_memory() {
    let mut machine = Machine::new(&[i(0x03, 3, 0, A1, 0), ECALL]);
    machine.store(0, 7);
    machine.set(A1, DATA).finish();
    assert_eq!(machine.get(0), 0);
    machine.hart.set_pc(CODE);
    machine.set(A1, 0x10);
    assert_eq!(machine.hart.run(10), trap(Cause::LoadAccess, 0x10));
}

#[test]
fn fault_names_its_address_and_changes_nothing() {
    let last = DATA + SIZE - 8;
    // Past the region; without the permission; unmapped.
    for (code, address, cause) in [
        (i(0x03, 3, A0, A1, 8), last, Cause::LoadAccess),
        (s(3, A1, A0, 8), last, Cause::StoreAccess),
        (s(0, A1, A0, 0), 0x1000_0000, Cause::StoreAccess),
        (i(0x03, 0, A0, A1, -1), 0, Cause::LoadAccess),
        (amo(2, true, A0, A1, 0), last + 8, Cause::LoadAccess),
        (amo(3, true, A0, A1, A2), last + 8, Cause::StoreAccess),
        (amo(0, false, A0, A1, A2), 0x1000_0000, Cause::StoreAccess),
    ] {
        let mut machine = Machine::new(&[addi(A2, 0, 1), code, addi(A2, 0, 2), ECALL]);
        let read_only = Region::ram(0x1000_0000, &Ram::new(PAGE), Permissions::R);
        let space = machine.hart.space().with(read_only).unwrap();
        machine.hart.set_space(Arc::new(space));
        machine.set(A0, 77).set(A1, address);
        let imm = if code & 0x7f == 0x2f || address == 0x1000_0000 { 0 } else { 8 };
        let at = if address == 0 { u64::MAX } else { address + imm };
        assert_eq!(machine.hart.run(10), trap(cause, at), "{code:#x}");
        assert_eq!((machine.get(A0), machine.get(A2)), (77, 1));
        assert_eq!(machine.hart.pc(), CODE + 4);
        assert_eq!(machine.hart.instructions(), 1);
    }
}

#[test]
fn misaligned_accesses_trap_unless_they_are_emulated() {
    for (funct3, size, extend) in LOADS {
        for at in (PAGE - 9..PAGE + 9).filter(|it| it % size != 0) {
            let store = s(funct3 & 3, A1, A2, 0);
            let mut machine = Machine::new(&[i(0x03, funct3, A0, A1, 0), store, ECALL]);
            machine.data.write(at, &PATTERN[0].to_le_bytes());
            machine.set(A1, DATA + at).set(A2, PATTERN[1]);
            assert_eq!(machine.hart.run(9), trap(Cause::LoadMisaligned, DATA + at));
            machine.hart.skip();
            assert_eq!(machine.hart.run(9), trap(Cause::StoreMisaligned, DATA + at));

            machine.hart.set_misaligned(Misaligned::Emulate);
            machine.hart.set_pc(CODE);
            machine.finish();
            assert_eq!(machine.get(A0), extend(PATTERN[0]));
            let mut bytes = [0; 8];
            machine.data.read(at, &mut bytes);
            let mut expected = PATTERN[0].to_le_bytes();
            expected[..size as usize].copy_from_slice(&PATTERN[1].to_le_bytes()[..size as usize]);
            assert_eq!(bytes, expected);
        }
    }
}

#[test]
fn emulated_access_past_region_faults_at_its_end() {
    let mut machine = Machine::new(&[i(0x03, 3, A0, A1, 0), s(3, A1, A0, 0)]);
    machine.hart.set_misaligned(Misaligned::Emulate);
    machine.set(A1, DATA + SIZE - 3);
    assert_eq!(machine.hart.run(9), trap(Cause::LoadAccess, DATA + SIZE));
    machine.hart.skip();
    assert_eq!(machine.hart.run(9), trap(Cause::StoreAccess, DATA + SIZE));
}

#[test]
fn misaligned_atomics_always_trap() {
    for (funct5, cause) in
        [(2, Cause::LoadMisaligned), (3, Cause::StoreMisaligned), (0, Cause::StoreMisaligned)]
    {
        for (wide, by) in [(false, 2), (false, 1), (true, 4)] {
            let mut machine = Machine::new(&[amo(funct5, wide, A0, A1, 0)]);
            machine.hart.set_misaligned(Misaligned::Emulate);
            machine.set(A1, DATA + by);
            assert_eq!(machine.hart.run(9), trap(cause, DATA + by));
        }
    }
}

#[test]
fn amos_return_old_and_store_new_value() {
    type Combine = fn(i64, i64) -> i64;
    let amos: [(&str, u32, Combine); 9] = [
        ("swap", 0x01, |_, b| b),
        ("add", 0x00, |a, b| a.wrapping_add(b)),
        ("xor", 0x04, |a, b| a ^ b),
        ("and", 0x0c, |a, b| a & b),
        ("or", 0x08, |a, b| a | b),
        ("min", 0x10, |a, b| a.min(b)),
        ("max", 0x14, |a, b| a.max(b)),
        ("minu", 0x18, |a, b| (a as u64).min(b as u64) as i64),
        ("maxu", 0x1c, |a, b| (a as u64).max(b as u64) as i64),
    ];
    let values = [0, 1, -1, i64::MIN, i64::MAX, 0x8000_0000, 0x7fff_ffff, -0x8000_0000];
    for (name, funct5, combine) in amos {
        for (rd, rs2) in [(A0, A2), (A2, A2), (0, A2), (A1, A2)] {
            let mut wide = Machine::new(&[amo(funct5, true, rd, A1, rs2), ECALL]);
            let mut narrow = Machine::new(&[amo(funct5, false, rd, A1, rs2), ECALL]);
            for (a, b) in values.iter().flat_map(|&a| values.map(|b| (a, b))) {
                wide.hart.set_pc(CODE);
                wide.store(0, a as u64);
                wide.set(A1, DATA).set(A2, b as u64).finish();
                assert_eq!(wide.load(0), combine(a, b) as u64, "{name}.d {a:#x} {b:#x}");
                let old = if rd == 0 { 0 } else { a as u64 };
                assert_eq!(wide.get(rd), old, "{name}.d {a:#x}");

                // The upper word: the lower one must stay, and the high half of the operand is
                // ignored.
                narrow.hart.set_pc(CODE);
                narrow.store(8, (a as u64) << 32 | 0x5555_5555);
                narrow.set(A1, DATA + 12).set(A2, b as u64 ^ 0xdead << 32).finish();
                let (a, b) = (a as i32, b as i32);
                let new = match name {
                    "minu" => (a as u32).min(b as u32) as i32,
                    "maxu" => (a as u32).max(b as u32) as i32,
                    _ => combine(a.into(), b.into()) as i32,
                };
                let expected = (new as u32 as u64) << 32 | 0x5555_5555;
                assert_eq!(narrow.load(8), expected, "{name}.w {a:#x} {b:#x}");
                let old = if rd == 0 { 0 } else { a as u64 };
                assert_eq!(narrow.get(rd), old, "{name}.w {a:#x}");
            }
        }
    }
}

#[test]
fn sc_needs_a_matching_lr_and_succeeds_once() {
    let store = |machine: &mut Machine, words: &[u32]| {
        machine.put(0, words);
        machine.hart.flush();
        machine.hart.set_pc(CODE);
        machine.store(0, 0xffff_ffff_8000_0001);
        machine.store(8, 0xffff_ffff_8000_0001);
        machine.set(A1, DATA).set(A2, 5).set(A3, DATA + 8).finish();
        (machine.get(A0), machine.load(0))
    };
    let machine = &mut Machine::new(&[]);
    let (lr_d, sc_d) = (amo(2, true, T0, A1, 0), amo(3, true, A0, A1, A2));
    let (lr_w, sc_w) = (amo(2, false, T0, A1, 0), amo(3, false, A0, A1, A2));
    let kept = 0xffff_ffff_8000_0001;
    assert_eq!(store(machine, &[lr_d, sc_d, ECALL]), (0, 5));
    assert_eq!(machine.get(T0), kept);
    assert_eq!(store(machine, &[lr_w, sc_w, ECALL]), (0, 0xffff_ffff_0000_0005));
    assert_eq!(machine.get(T0), 0xffff_ffff_8000_0001, "the sign is extended");
    assert_eq!(store(machine, &[sc_d, ECALL]), (1, kept), "without LR");
    assert_eq!(store(machine, &[lr_d, sc_w, ECALL]), (1, kept), "another width");
    let other_lr = amo(2, true, T0, A3, 0);
    assert_eq!(store(machine, &[other_lr, sc_d, ECALL]), (1, kept), "another address");
    assert_eq!(store(machine, &[lr_d, other_lr, sc_d, ECALL]), (1, kept), "an LR between");
    let twice = [lr_d, sc_d, addi(A2, 0, 9), sc_d, ECALL];
    assert_eq!(store(machine, &twice), (1, 5), "a second SC");
    let failed = [lr_d, amo(3, true, 0, A3, A2), sc_d, ECALL];
    assert_eq!(store(machine, &failed), (1, kept), "after an SC that failed");
    let changed = [lr_d, s(3, A1, A3, 0), sc_d, ECALL];
    assert_eq!(store(machine, &changed), (1, DATA + 8), "after another store");
}

#[test]
fn system_call_ends_reservation() {
    let mut machine =
        Machine::new(&[amo(2, true, T0, A1, 0), ECALL, amo(3, true, A0, A1, A2), ECALL]);
    machine.set(A1, DATA).finish();
    machine.hart.skip();
    machine.finish();
    assert_eq!(machine.get(A0), 1);
}

#[test]
fn concurrent_harts_lose_no_increments() {
    // LR/SC and AMOADD alternately, on the two halves of a doubleword.
    let code = [
        amo(2, false, T0, A1, 0),
        addi(T0, T0, 1),
        amo(3, false, A0, A1, T0),
        b(1, A0, 0, -12),
        addi(A0, 0, 1),
        amo(0, false, 0, A2, A0),
        addi(A3, A3, -1),
        b(1, A3, 0, -28),
        ECALL,
    ];
    let machine = Machine::new(&code);
    let space = machine.hart.space();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut hart = Hart::new(space.clone());
                hart.set_pc(CODE);
                hart.set_x(A1 as usize, DATA);
                hart.set_x(A2 as usize, DATA + 4);
                hart.set_x(A3 as usize, 5000);
                while hart.run(1000) == Exit::Budget {}
            });
        }
    });
    assert_eq!(machine.load(0), 20_000 << 32 | 20_000);
}

/// Records its accesses, and returns more bits than it should.
#[derive(Default)]
struct Log(Mutex<Vec<(char, u64, u64, u64)>>);

impl Device for Log {
    fn load(&self, offset: u64, size: u64) -> Result<u64, Refused> {
        self.0.lock().unwrap().push(('l', offset, size, 0));
        if offset < 0x100 { Ok(0xf1f2_f3f4_f5f6_f7f8) } else { Err(Refused) }
    }

    fn store(&self, offset: u64, size: u64, value: u64) -> Result<(), Refused> {
        self.0.lock().unwrap().push(('s', offset, size, value));
        if offset < 0x100 { Ok(()) } else { Err(Refused) }
    }
}

#[test]
fn device_receives_whole_accesses_and_may_reject() {
    let device = Arc::new(Log::default());
    let mut machine = Machine::new(&[
        i(0x03, 0, A0, A1, 0x18),
        s(1, A1, A2, 0x22),
        s(2, A1, A2, 0x24),
        s(3, A1, A2, 0x28),
        i(0x03, 5, A2, A1, 2),
        ECALL,
        i(0x03, 3, A0, A1, 0x100),
        s(3, A1, A2, 0x108),
        i(0x03, 3, A0, A1, 4),
        amo(0, true, A0, A1, A2),
        amo(2, true, A0, A1, 0),
    ]);
    let space = machine.hart.space().with(Region::device(0x5000, PAGE, device.clone())).unwrap();
    machine.hart.set_space(Arc::new(space));
    machine.hart.set_misaligned(Misaligned::Emulate);
    machine.set(A1, 0x5000).set(A2, 0x1122_3344_5566_7788).finish();
    assert_eq!((machine.get(A0), machine.get(A2)), (0xffff_ffff_ffff_fff8, 0xf7f8));
    let log = std::mem::take(&mut *device.0.lock().unwrap());
    let expected = [
        ('l', 0x18, 1, 0),
        ('s', 0x22, 2, 0x7788),
        ('s', 0x24, 4, 0x5566_7788),
        ('s', 0x28, 8, 0x1122_3344_5566_7788),
        ('l', 2, 2, 0),
    ];
    assert_eq!(log, expected);
    for expected in [
        trap(Cause::LoadAccess, 0x5100),
        trap(Cause::StoreAccess, 0x5108),
        trap(Cause::LoadMisaligned, 0x5004),
        trap(Cause::StoreAccess, 0x5000),
        trap(Cause::LoadAccess, 0x5000),
    ] {
        machine.hart.skip();
        assert_eq!(machine.hart.run(1), expected);
    }
    machine.hart.set_pc(0x5000);
    assert_eq!(machine.hart.run(1), trap(Cause::FetchAccess, 0x5000), "devices are not executed");
}

#[test]
fn access_partly_in_a_device_traps_as_misaligned() {
    let device = Arc::new(Log::default());
    let mut machine = Machine::new(&[i(0x03, 3, A0, A1, 0), s(3, A1, A0, 0)]);
    let at = DATA + SIZE;
    let space = machine.hart.space().with(Region::device(at, PAGE, device.clone())).unwrap();
    let next = Region::ram(at + PAGE, &Ram::new(PAGE), Permissions::RW);
    machine.hart.set_space(Arc::new(space.with(next).unwrap()));
    machine.hart.set_misaligned(Misaligned::Emulate);
    for address in [at - 7, at - 1, at + PAGE - 7, at + PAGE - 1] {
        machine.hart.set_pc(CODE);
        machine.set(A1, address);
        assert_eq!(machine.hart.run(9), trap(Cause::LoadMisaligned, address));
        machine.hart.skip();
        assert_eq!(machine.hart.run(9), trap(Cause::StoreMisaligned, address));
    }
    assert!(device.0.lock().unwrap().is_empty());
    // Up to the device's first byte, and from the one after its last.
    for address in [at - 9, at + PAGE + 1] {
        machine.hart.set_pc(CODE);
        machine.set(A1, address);
        assert_eq!(machine.hart.run(2), Exit::Budget, "{address:#x}");
    }
}

#[test]
fn pages_in_same_cache_slot_do_not_mix() {
    let mut machine = Machine::new(&[i(0x03, 3, A0, A1, 0), s(3, A2, A0, 0), ECALL]);
    let far = Ram::new(SIZE);
    let region = Region::ram(DATA + (1 << 30), &far, Permissions::R);
    let space = Arc::new(machine.hart.space().with(region).unwrap());
    machine.hart.set_space(space);
    for round in 0..4 {
        far.write(0, &[round + 1; 8]);
        machine.store(0, 0);
        machine.hart.set_pc(CODE);
        machine.set(A1, DATA + (1 << 30)).set(A2, DATA).finish();
        assert_eq!(machine.load(0), u64::from_le_bytes([round + 1; 8]));
        // A page that allows loads must not become writable because of a store to another page.
        machine.hart.set_pc(CODE);
        machine.set(A1, DATA).set(A2, DATA + (1 << 30));
        let fault = trap(Cause::StoreAccess, DATA + (1 << 30));
        assert_eq!(machine.hart.run(9), fault);
    }
}
