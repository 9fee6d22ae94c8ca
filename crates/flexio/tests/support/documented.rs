// The setup of the documentation's examples: a process on the model's DPA, of a program built from
// instructions here: an RPC `add`, and an event handler `handler` that returns at once. Or of a
// compiled program: each `cargo test` compiles such examples, and `cargo xtask dpa test` runs them,
// which compiles the program and sets `verbless_dpa_program`.

pub(crate) fn program() -> Vec<u8> {
    // `add a0, a0, a1` and `ret`; `ret` again is the handler.
    const CODE: [u32; 3] = [0x00b5_0533, 0x0000_8067, 0x0000_8067];
    const NAMES: &[u8] = b"\0handler\0dpa:handler\0.strtab\0add\0dpa:add(u64,u32)->u64\0";
    const BEGIN: u64 = 0x4000_0000;
    const LENGTH: usize = 4 * CODE.len();
    let symbol = |name: u32, value: u64, kind: u8| {
        let mut bytes = [0; 24];
        bytes[..4].copy_from_slice(&name.to_le_bytes());
        (bytes[4], bytes[6]) = (0x10 | kind, 1);
        bytes[8..16].copy_from_slice(&value.to_le_bytes());
        bytes
    };
    let handler = BEGIN + 8;
    let symbols = [
        symbol(0, 0, 0),
        symbol(1, handler, 2),
        symbol(9, handler, 1),
        symbol(29, BEGIN, 2),
        symbol(33, BEGIN, 1),
    ];
    let symbols = symbols.concat();
    let (code_at, symbols_at) = (64 + 56, 64 + 56 + 16);
    let names_at = symbols_at + symbols.len();
    let sections_at = (names_at + NAMES.len()).next_multiple_of(8);
    let mut file = vec![0; sections_at + 3 * 64];
    let mut put = |at: usize, bytes: &[u8]| file[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, b"\x7fELF\x02\x01\x01");
    put(16, &[2, 0, 243, 0, 1]);
    put(24, &BEGIN.to_le_bytes());
    put(32, &64_u64.to_le_bytes());
    put(40, &(sections_at as u64).to_le_bytes());
    put(52, &[64, 0, 56, 0, 1, 0, 64, 0, 3, 0, 2, 0]);
    put(64, &[1, 0, 0, 0, 5, 0, 0, 0]);
    let length = LENGTH as u64;
    let words = [(8, code_at as u64), (16, BEGIN), (32, length), (40, length), (48, 1)];
    words.iter().for_each(|&(at, word)| put(64 + at, &word.to_le_bytes()));
    put(code_at, CODE.map(u32::to_le_bytes).as_flattened());
    put(symbols_at, &symbols);
    put(names_at, NAMES);
    let mut section = |index: usize, kind: u32, at: usize, length: usize, more: [u32; 2], each| {
        let head = sections_at + index * 64;
        put(head, &21_u32.to_le_bytes());
        put(head + 4, &kind.to_le_bytes());
        put(head + 24, &(at as u64).to_le_bytes());
        put(head + 32, &(length as u64).to_le_bytes());
        put(head + 40, &more[0].to_le_bytes());
        put(head + 44, &more[1].to_le_bytes());
        put(head + 56, &u64::to_le_bytes(each));
    };
    section(1, 2, symbols_at, symbols.len(), [2, 1], 24);
    section(2, 3, names_at, NAMES.len(), [0, 0], 0);
    file
}

pub(crate) type Documented<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// A model device, on a port of its own type or an Ethernet one.
pub(crate) fn device(ethernet: bool) -> Documented<verbless::Device> {
    use verbless::model::{InProcess, Link, Model, Profile};
    use verbless::prelude::*;

    let card = Profile::load("bluefield3")?;
    let card = if ethernet { card.with_link(Link::Ethernet) } else { card };
    let backend = InProcess::of(&Model::builder().device(card).build());
    Ok(Device::open(&backend, &backend.find("mlx5_0")?)?)
}

pub(crate) fn process() -> Documented<verbless_flexio::Process> {
    use verbless_flexio::{App, Process, ProcessConfig};

    let app = App::new("documented", &program())?;
    Ok(Process::create(&device(false)?, &app, &ProcessConfig::default())?)
}

/// Creates a process on a device with an Ethernet port.
pub(crate) fn process_on_ethernet() -> Documented<verbless_flexio::Process> {
    use verbless_flexio::{App, Process, ProcessConfig};

    let app = App::new("documented", &program())?;
    Ok(Process::create(&device(true)?, &app, &ProcessConfig::default())?)
}

/// A process of the compiled program of the device API's tests.
pub(crate) fn compiled() -> Documented<verbless_flexio::Process> {
    use verbless_flexio::{App, Process, ProcessConfig};

    let path = std::env::var_os("VERBLESS_DPA_PROGRAM")
        .ok_or("VERBLESS_DPA_PROGRAM names no program: `cargo xtask dpa test` compiles one")?;
    let app = App::new("documented", &std::fs::read(path)?)?;
    Ok(Process::create(&device(false)?, &app, &ProcessConfig::default())?)
}
