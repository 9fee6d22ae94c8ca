//! A program for tests: an ELF file of given instructions.

use verbless::model::{InProcess, Model, Profile};
use verbless::prelude::*;

use crate::app::App;
use crate::process::{Process, ProcessConfig};

/// Addresses of the instructions, and of a page of data.
pub(crate) const CODE: u64 = 0x4000_0000;
pub(crate) const DATA: u64 = 0x8000_0000;

/// A model, and a process of a program with these instructions, these words at the start of its
/// data, and a function called `name` at each index.
pub(crate) fn process(
    code: &[u32],
    data: &[u64],
    functions: &[(&str, usize)],
    config: &ProcessConfig,
) -> (Model, Process) {
    let model = Model::builder().device(Profile::load("bluefield3").unwrap()).build();
    let backend = InProcess::of(&model);
    let device = Device::open(&backend, &backend.find("mlx5_0").unwrap()).unwrap();
    let app = App::new("program", &file(code, data, functions)).unwrap();
    let process = Process::create(&device, &app, config).unwrap();
    (model, process)
}

fn file(code: &[u32], data: &[u64], functions: &[(&str, usize)]) -> Vec<u8> {
    let bytes =
        |words: &[u64]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<_>>();
    let mut names = vec![0];
    let mut symbols = vec![0; 24];
    for (name, at) in functions {
        symbols.extend((names.len() as u32).to_le_bytes());
        // A global function of the first section.
        symbols.extend([0x12, 0, 1, 0]);
        symbols.extend(bytes(&[CODE + 4 * *at as u64, 0]));
        names.extend(name.as_bytes());
        names.push(0);
    }
    let code: Vec<u8> = code.iter().flat_map(|word| word.to_le_bytes()).collect();
    let data = bytes(data);
    let parts = [&code, &data, &symbols, &names];
    let headers = 64 + 2 * 56;
    let mut at = headers;
    let ranges = parts.map(|part| {
        let offset = at;
        at = (at + part.len()).next_multiple_of(8);
        (offset, part.len())
    });
    let sections = at;
    let mut file = vec![0; sections + 3 * 64];
    let mut put = |at: usize, bytes: &[u8]| file[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, b"\x7fELF\x02\x01\x01");
    put(16, &[2, 0, 243, 0, 1]);
    put(24, &bytes(&[CODE, 64, sections as u64]));
    put(52, &[64, 0, 56, 0, 2, 0, 64, 0, 3, 0, 2, 0]);
    for (index, (flags, address, length)) in
        [(5_u32, CODE, code.len()), (6, DATA, 4096)].into_iter().enumerate()
    {
        let (offset, length_in_file) = ranges[index];
        let head = 64 + 56 * index;
        put(head, &1_u32.to_le_bytes());
        put(head + 4, &flags.to_le_bytes());
        put(head + 8, &bytes(&[offset as u64, address]));
        put(head + 32, &bytes(&[length_in_file as u64, length as u64, 1]));
    }
    for (range, part) in ranges.iter().zip(parts) {
        put(range.0, part);
    }
    // Symbols and their names.
    for (index, kind, part, more, each) in [(1, 2_u32, 2, [2_u32, 1], 24), (2, 3, 3, [0, 0], 0)] {
        let head = sections + index * 64;
        put(head + 4, &kind.to_le_bytes());
        put(head + 24, &bytes(&[ranges[part].0 as u64, ranges[part].1 as u64]));
        put(head + 40, more.map(u32::to_le_bytes).as_flattened());
        put(head + 56, &bytes(&[each]));
    }
    file
}
