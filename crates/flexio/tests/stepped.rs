//! On a stepped model the DPA moves by steps only, and the same steps lead to the same.

use verbless::model::{InProcess, Model, Profile};
use verbless::prelude::*;
use verbless_command::{Affinity, DpaCallState, DpaEntry};
use verbless_flexio::{App, Process, ProcessConfig};

const CODE: u64 = 0x4000_0000;
/// `count`: adds a1 to the word at 0x80000000 a0 times, and returns it.
const COUNT: [u32; 8] = [
    0x0010_0293, // li   t0, 1
    0x01f2_9293, // slli t0, t0, 31
    0x00b2_b02f, // amoadd.d zero, a1, (t0)
    0xfff5_0513, // addi a0, a0, -1
    0xfe05_1ce3, // bnez a0, -8
    0x0002_b503, // ld   a0, (t0)
    0x0000_8067, // ret
    0,
];

/// An ELF file with code at 0x40000000 and a page of data at 0x80000000.
fn file() -> Vec<u8> {
    const HEADERS: usize = 64 + 2 * 56;
    let mut file = vec![0; HEADERS];
    let mut put = |at: usize, bytes: &[u8]| file[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, b"\x7fELF\x02\x01\x01");
    put(16, &[2, 0, 243, 0, 1]);
    put(32, &64_u64.to_le_bytes());
    put(52, &[64, 0, 56, 0, 2, 0, 64]);
    let bytes = size_of_val(&COUNT) as u64;
    let segments = [(5_u32, HEADERS as u64, CODE, bytes, bytes), (6, 0, 0x8000_0000, 0, 4096)];
    for (at, (flags, offset, address, inside, length)) in [64, 120].into_iter().zip(segments) {
        put(at, &1_u32.to_le_bytes());
        put(at + 4, &flags.to_le_bytes());
        let words = [(8, offset), (16, address), (32, inside), (40, length), (48, 1)];
        words.iter().for_each(|(word, value)| put(at + word, &value.to_le_bytes()));
    }
    file.extend(COUNT.iter().flat_map(|word| word.to_le_bytes()));
    file
}

type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error>>;
/// What each call does, and how many instructions ended runs have taken.
type Shown = (Vec<DpaCallState>, u64);

/// What calls on two units show after each step.
fn trace() -> Result<Vec<Shown>> {
    let model = Model::builder().device(Profile::load("bluefield3")?).stepped().build();
    let backend = InProcess::of(&model);
    let device = Device::open(&backend, &backend.find("mlx5_0")?)?;
    let process =
        Process::create(&device, &App::new("count", &file())?, &ProcessConfig::default())?;
    let calls = [(0, 150_000, 1), (1, 90_000, 1_000), (0, 10, 1 << 32), (1, 1, 1 << 40)];
    let begin = |(unit, times, step)| {
        let entry = DpaEntry { affinity: Affinity::Strict(unit), ..DpaEntry::at(CODE) };
        device.begin_dpa_call(process.object(), &entry, [times, step, 0, 0, 0, 0, 0, 0])
    };
    let calls = calls.map(begin).into_iter().collect::<std::result::Result<Vec<_>, _>>()?;
    let mut trace = Vec::new();
    loop {
        let states =
            calls.iter().map(|call| call.state()).collect::<std::result::Result<Vec<_>, _>>()?;
        trace.push((states, process.status()?.instructions));
        if !model.step() {
            return Ok(trace);
        }
    }
}

#[test]
fn the_same_steps_lead_to_the_same() -> Result {
    let first = trace()?;
    // Nothing moves before the first step, and no step is all of it.
    assert!(first[0].0.iter().all(|state| *state == DpaCallState::Running));
    assert!(first.len() > 6, "{} steps", first.len());
    let (end, instructions) = &first[first.len() - 1];
    let total = 150_000 + 90_000 * 1_000 + 10 * (1_u64 << 32) + (1 << 40);
    assert!(end.contains(&DpaCallState::Returned(total)), "{end:?}, of which none is {total}");
    assert_eq!(*instructions, 3 * 240_011 + 4 * 5);
    assert_eq!(trace()?, first);
    Ok(())
}
