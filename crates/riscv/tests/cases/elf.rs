//! Programs of ELF files: their contents, and the messages for invalid files.

use std::sync::Arc;

use proptest::prelude::*;
use verbless_riscv::elf::{MAX_MEMORY, MAX_NAME, MAX_NAMES, MAX_SYMBOLS};
use verbless_riscv::{AddressSpace, Exit, Hart, Permissions, Program};

const CODE: u64 = 0x4000_0000;
const DATA: u64 = 0x8000_0000;

/// A file: the header, two segments (code; data with zeros after it), three sections (symbols,
/// their names, attributes), then their contents.
#[derive(Clone)]
struct Elf {
    bytes: Vec<u8>,
}

/// Offsets in the file.
const PROGRAMS: usize = 64;
const SECTIONS: usize = PROGRAMS + 3 * 56;
const CONTENT: usize = SECTIONS + 4 * 64;

impl Elf {
    fn new() -> Self {
        let mut elf = Self { bytes: vec![0; CONTENT] };
        elf.bytes[..8].copy_from_slice(b"\x7fELF\x02\x01\x01\0");
        elf.put(16, &2_u16.to_le_bytes()).put(18, &243_u16.to_le_bytes());
        elf.long(24, CODE).long(32, PROGRAMS as u64).long(40, SECTIONS as u64);
        elf.word(48, 1);
        for (at, number) in [(52, 64_u16), (54, 56), (56, 3), (58, 64), (60, 4)] {
            elf.put(at, &number.to_le_bytes());
        }
        // addi a0, a0, 1; ecall
        let code = [0x0015_0513_u32, 0x73].iter().flat_map(|it| it.to_le_bytes()).collect();
        let code = elf.add(code);
        elf.program(0, [1, 5], code, CODE, 8);
        let data = elf.add(b"some data".to_vec());
        elf.program(1, [1, 6], data, DATA + 16, 5000);
        elf.program(2, [7, 4], (data.0, 4), DATA + 16, 12);
        let names = elf.add(b"\0start\0data\0local\0weak\0".to_vec());
        let symbol = |name: u32, info: u8, section: u16, address: u64, length: u64| {
            let mut bytes = name.to_le_bytes().to_vec();
            bytes.extend([info, 0]);
            bytes.extend(section.to_le_bytes());
            bytes.extend(address.to_le_bytes());
            bytes.extend(length.to_le_bytes());
            bytes
        };
        let table = [
            symbol(0, 0, 0, 0, 0),
            symbol(1, 0x12, 1, CODE, 8),
            symbol(7, 0x11, 1, DATA + 16, 9),
            symbol(12, 0x02, 1, CODE, 4),
            symbol(18, 0x20, 0, 0, 0),
        ];
        let table = elf.add(table.concat());
        elf.section(1, 2, table, 2);
        elf.section(2, 3, names, 0);
        let attributes = elf.add(attributes("rv64i2p1_m2p0_a2p1_c2p0_zicsr2p0_zmmul1p0"));
        elf.section(3, 0x7000_0003, attributes, 0);
        elf
    }

    fn put(&mut self, at: usize, bytes: &[u8]) -> &mut Self {
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
        self
    }

    fn word(&mut self, at: usize, word: u32) -> &mut Self {
        self.put(at, &word.to_le_bytes())
    }

    fn long(&mut self, at: usize, long: u64) -> &mut Self {
        self.put(at, &long.to_le_bytes())
    }

    /// Appends content; returns its offset and length.
    fn add(&mut self, bytes: Vec<u8>) -> (u64, u64) {
        let range = (self.bytes.len() as u64, bytes.len() as u64);
        self.bytes.extend(bytes);
        range
    }

    /// A program header, by type and flags.
    fn program(
        &mut self,
        index: usize,
        [kind, flags]: [u32; 2],
        at: (u64, u64),
        to: u64,
        len: u64,
    ) {
        let header = PROGRAMS + 56 * index;
        self.word(header, kind).word(header + 4, flags).long(header + 8, at.0);
        self.long(header + 16, to).long(header + 32, at.1).long(header + 40, len);
        self.long(header + 48, 8);
    }

    fn section(&mut self, index: usize, kind: u32, at: (u64, u64), link: u32) {
        let header = SECTIONS + 64 * index;
        self.word(header + 4, kind).long(header + 24, at.0).long(header + 32, at.1);
        self.word(header + 40, link);
    }

    fn parse(&self) -> Result<Program, String> {
        Program::parse(&self.bytes).map_err(|error| error.to_string())
    }
}

/// The attributes of a file that was compiled for `arch`.
fn attributes(arch: &str) -> Vec<u8> {
    // Tag_RISCV_stack_align 16.
    attributes_after(&[4, 16], arch)
}

/// The attribute of `arch` after other attributes.
fn attributes_after(others: &[u8], arch: &str) -> Vec<u8> {
    // Tag_RISCV_arch.
    let of_file = [others, &[5], arch.as_bytes(), &[0]].concat();
    let mut vendor = b"riscv\0\x01".to_vec();
    vendor.extend((of_file.len() as u32 + 5).to_le_bytes());
    vendor.extend(of_file);
    let mut all = vec![b'A'];
    all.extend((vendor.len() as u32 + 4).to_le_bytes());
    all.extend(vendor);
    all
}

/// A change that makes a file invalid.
type Break = fn(&mut Elf);

#[test]
fn program_has_segments_symbols_and_tls() {
    let program = Elf::new().parse().unwrap();
    assert_eq!(program.entry, Some(CODE));
    let [code, data] = &program.segments[..] else { panic!("{:?}", program.segments) };
    assert_eq!((code.address, code.length, code.permissions), (CODE, 8, Permissions::RX));
    assert_eq!((data.address, data.length, data.permissions), (DATA + 16, 5000, Permissions::RW));
    assert_eq!(data.bytes, b"some data");
    let tls = program.tls.as_ref().unwrap();
    assert_eq!((tls.address, tls.initial, tls.length, tls.alignment), (DATA + 16, 4, 12, 8));
    let start = program.symbol("start").unwrap();
    assert_eq!((start.address, start.length, start.function), (CODE, 8, true));
    assert!(!program.symbol("data").unwrap().function);
    let names: Vec<_> = program.symbols().map(|(name, _)| name).collect();
    assert_eq!(names, ["data", "start"], "without local and undefined symbols");
}

#[test]
fn program_runs_from_its_segments() {
    let program = Elf::new().parse().unwrap();
    let space = AddressSpace::new(program.regions()).unwrap();
    let mut bytes = [1; 16];
    assert_eq!(space.peek(DATA + 16, &mut bytes), 16);
    assert_eq!(&bytes, b"some data\0\0\0\0\0\0\0");
    assert_eq!(space.peek(DATA + 8192, &mut bytes), 0, "two pages");
    let mut hart = Hart::new(Arc::new(space));
    hart.set_pc(program.entry.unwrap());
    hart.set_x(10, 6);
    assert_eq!(hart.run(100), Exit::Ecall);
    assert_eq!(hart.x(10), 7);
    // Each call allocates new memory.
    let (one, other) = (program.regions().nth(1).unwrap(), program.regions().nth(1).unwrap());
    let space = AddressSpace::new([one]).unwrap();
    space.poke(DATA + 16, b"x");
    AddressSpace::new([other]).unwrap().peek(DATA + 16, &mut bytes[..1]);
    assert_eq!(&bytes[..1], b"s");
}

#[test]
fn invalid_files_are_rejected_with_reasons() {
    const SEGMENT: usize = PROGRAMS;
    let cases: [(&str, Break); 24] = [
        ("not an ELF file", |elf| elf.bytes[0] = 0),
        ("cut off", |elf| elf.bytes.truncate(63)),
        ("riscv64imac", |elf| elf.bytes[4] = 1),
        ("riscv64imac", |elf| elf.bytes[18] = 62),
        ("relocation-model=static", |elf| elf.bytes[16] = 3),
        ("link it", |elf| elf.bytes[16] = 1),
        ("lp64", |elf| _ = elf.word(48, 5)),
        ("RVE", |elf| _ = elf.word(48, 8)),
        ("0x10 of e_flags", |elf| _ = elf.word(48, 0x11)),
        ("program headers are of 32 bytes", |elf| elf.bytes[54] = 32),
        ("program headers is outside", |elf| _ = elf.long(32, u64::MAX - 8)),
        ("section headers is outside", |elf| _ = elf.long(40, 1 << 40)),
        ("no segment to load", |elf| elf.bytes[56] = 0),
        ("dynamically", |elf| _ = elf.word(PROGRAMS + 2 * 56, 2)),
        ("writable and executable", |elf| _ = elf.word(SEGMENT + 4, 7)),
        ("no permissions", |elf| _ = elf.word(SEGMENT + 4, 0)),
        ("a segment is outside", |elf| _ = elf.long(SEGMENT + 8, 1 << 30)),
        ("in the file and", |elf| _ = elf.long(SEGMENT + 40, 7)),
        ("ends above", |elf| _ = elf.long(SEGMENT + 16, u64::MAX - 4)),
        ("bytes of memory", |elf| _ = elf.long(SEGMENT + 40, MAX_MEMORY + 1)),
        ("share a page", |elf| _ = elf.long(SEGMENT + 16, DATA + 8192 - 16)),
        ("the entry point", |elf| _ = elf.long(24, DATA + 16)),
        ("the entry point", |elf| _ = elf.long(24, CODE + 1)),
        ("thread-local", |elf| _ = elf.long(PROGRAMS + 2 * 56 + 48, 3)),
    ];
    for (expected, change) in cases {
        let mut elf = Elf::new();
        change(&mut elf);
        let error = elf.parse().expect_err(expected);
        assert!(error.contains(expected), "{expected:?}: {error}");
    }
}

/// The end of the addresses that programs may use.
const HIGHEST: u64 = 1 << 47;

#[test]
fn parse_limits_are_inclusive() {
    const DATA_HEADER: usize = PROGRAMS + 56;
    const TLS_HEADER: usize = PROGRAMS + 2 * 56;
    const PAGE: u64 = 0x1000;
    fn data(elf: &mut Elf, address: u64, length: u64) {
        elf.long(DATA_HEADER + 16, address).long(DATA_HEADER + 40, length);
        // The template of thread-local storage is at another address, and empty.
        elf.long(TLS_HEADER + 32, 0);
    }
    fn tls(elf: &mut Elf, initial: u64, length: u64, alignment: u64) {
        elf.long(TLS_HEADER + 32, initial).long(TLS_HEADER + 40, length);
        elf.long(TLS_HEADER + 48, alignment);
    }
    /// Sets the number of program headers; those after the third have no type.
    fn headers(elf: &mut Elf, count: u16) {
        let mut table = elf.bytes[PROGRAMS..SECTIONS].to_vec();
        table.resize(56 * usize::from(count), 0);
        let (at, _) = elf.add(table);
        elf.long(32, at).put(56, &count.to_le_bytes());
    }
    fn symbols(elf: &mut Elf, count: usize) {
        // Local symbols.
        let table = elf.add(vec![0; 24 * count]);
        elf.section(1, 2, table, 2);
    }
    let taken: [(&str, Break); 15] = [
        ("memory", |elf| data(elf, DATA, MAX_MEMORY - PAGE)),
        ("addresses", |elf| data(elf, HIGHEST - PAGE, PAGE)),
        ("the page after", |elf| data(elf, CODE + PAGE, 16)),
        ("only executable", |elf| _ = elf.word(PROGRAMS + 4, 1)),
        ("only readable", |elf| _ = elf.word(DATA_HEADER + 4, 4)),
        ("only writable", |elf| _ = elf.word(DATA_HEADER + 4, 2)),
        ("an empty segment", |elf| {
            elf.word(TLS_HEADER, 1).word(TLS_HEADER + 4, 0).long(TLS_HEADER + 40, 0);
        }),
        ("all of it in the file", |elf| tls(elf, 4, 4, 8)),
        ("the storage of a thread", |elf| tls(elf, 4, MAX_MEMORY, 8)),
        ("a page's alignment", |elf| tls(elf, 4, 12, PAGE)),
        ("no alignment", |elf| tls(elf, 4, 12, 0)),
        ("no template", |elf| _ = elf.long(TLS_HEADER + 16, 0x10).long(TLS_HEADER + 32, 0)),
        ("headers", |elf| headers(elf, 1024)),
        ("symbols", |elf| symbols(elf, MAX_SYMBOLS)),
        ("the last instruction", |elf| _ = elf.long(24, CODE + 6)),
    ];
    for (what, change) in taken {
        let mut elf = Elf::new();
        change(&mut elf);
        assert_eq!(elf.parse().map(drop), Ok(()), "{what}");
    }
    let refused: [(&str, Break); 12] = [
        ("bytes of memory", |elf| data(elf, DATA, MAX_MEMORY - PAGE + 1)),
        ("bytes of memory", |elf| data(elf, DATA + PAGE - 1, MAX_MEMORY - PAGE)),
        ("ends above", |elf| data(elf, HIGHEST - PAGE + 1, PAGE)),
        ("share a page", |elf| data(elf, CODE + PAGE - 1, 16)),
        ("share a page", |elf| data(elf, CODE - 1, 16)),
        ("is invalid", |elf| tls(elf, 5, 4, 8)),
        ("is invalid", |elf| tls(elf, 4, MAX_MEMORY + 1, 8)),
        ("is invalid", |elf| tls(elf, 4, 12, 2 * PAGE)),
        ("in no segment", |elf| _ = elf.long(TLS_HEADER + 16, DATA + 16 + 4997)),
        ("1025 program headers, and may have 1024", |elf| headers(elf, 1025)),
        ("symbols: strip it", |elf| symbols(elf, MAX_SYMBOLS + 1)),
        ("the entry point", |elf| _ = elf.long(24, CODE + 8)),
    ];
    for (expected, change) in refused {
        let mut elf = Elf::new();
        change(&mut elf);
        let error = elf.parse().expect_err(expected);
        assert!(error.contains(expected), "{expected:?}: {error}");
    }
}

#[test]
fn symbols_are_classified_and_must_lie_in_segments() {
    let table = Elf::new();
    let at = SECTIONS + 64 + 24;
    let table = u64::from_le_bytes(table.bytes[at..at + 8].try_into().unwrap()) as usize + 24;
    // Type, address and length of the symbol `start`; whether it is a function, if the program has
    // it.
    for (kind, address, length, expected) in [
        (0, CODE, 8, Some(true)),
        (1, CODE, 8, Some(false)),
        (2, CODE, 8, Some(true)),
        (2, DATA + 16, 8, Some(false)),
        (0, DATA + 16, 8, Some(false)),
        (3, CODE, 8, None),
        (2, CODE + 4, 4, Some(true)),
        (2, CODE + 4, 5, None),
        (2, CODE + 7, 1, Some(true)),
        (2, CODE, 9, None),
        (2, CODE - 1, 4, None),
        (1, DATA + 16 + 4999, 1, Some(false)),
    ] {
        let mut elf = Elf::new();
        elf.put(table + 4, &[0x10 | kind]).long(table + 8, address).long(table + 16, length);
        let found = elf.parse().unwrap().symbol("start");
        let what = format!("type {kind}, {length} bytes at {address:#x}");
        assert_eq!(found.map(|symbol| symbol.function), expected, "{what}");
        assert!(found.is_none_or(|it| (it.address, it.length) == (address, length)), "{what}");
    }
}

#[test]
fn invalid_symbols_are_rejected_with_reasons() {
    let table = |elf: &Elf| {
        let at = SECTIONS + 64 + 24;
        u64::from_le_bytes(elf.bytes[at..at + 8].try_into().unwrap()) as usize
    };
    let mut elf = Elf::new();
    elf.word(table(&Elf::new()) + 24, 1000);
    assert!(elf.parse().unwrap_err().contains("a symbol's name"));
    let mut elf = Elf::new();
    elf.put(table(&Elf::new()) + 24 + 6, &[0, 0]);
    assert!(elf.parse().unwrap_err().contains("\"start\" is undefined"));
    let mut elf = Elf::new();
    elf.word(SECTIONS + 64 + 40, 9);
    assert!(elf.parse().unwrap_err().contains("names a section that does not exist"));
    // A symbol in no segment is the linker's own.
    let mut elf = Elf::new();
    elf.long(table(&Elf::new()) + 24 + 8, 0x1234);
    assert!(elf.parse().unwrap().symbol("start").is_none());
}

/// A file with `count` functions, the names of which share one string of `length` bytes: each
/// begins `step` bytes after the one before. `local` names are not visible outside.
fn of_shared_names(length: usize, count: u32, local: bool, step: u32) -> Elf {
    let mut elf = Elf::new();
    let mut names = vec![b'a'; length + 1];
    (names[0], names[length]) = (0, 0);
    let names = elf.add(names);
    let mut table = Vec::new();
    for name in (0..count).map(|index| 1 + step * index) {
        table.extend(name.to_le_bytes());
        table.extend([if local { 2 } else { 0x12 }, 0, 1, 0]);
        table.extend([CODE, 4].map(u64::to_le_bytes).concat());
    }
    let table = elf.add(table);
    elf.section(1, 2, table, 2);
    elf.section(2, 3, names, 0);
    elf
}

#[test]
fn shared_symbol_names_are_bounded_in_total() {
    // All have the same name, of the maximum length.
    let fits = (MAX_NAMES / MAX_NAME) as u32;
    let file_of = |count| of_shared_names(MAX_NAME + 1, count, false, 0).parse();
    assert_eq!(file_of(fits).unwrap().symbols().count(), 1);
    let error = file_of(fits + 1).unwrap_err();
    assert!(error.contains("its names have more than"), "{error}");
    let error = of_shared_names(MAX_NAME + 2, 1, false, 0).parse().unwrap_err();
    assert!(error.contains("does not end"), "{error}");
    assert_eq!(of_shared_names(100, 50, false, 1).parse().unwrap().symbols().count(), 50);
    // Names of local symbols are not read: these are of 256 GiB.
    assert_eq!(of_shared_names(4 << 20, 1 << 16, true, 1).parse().unwrap().symbols().count(), 0);
}

#[test]
fn load_skips_symbol_names() {
    let elf = of_shared_names(4 << 20, 1 << 16, false, 1);
    let program = Program::load(&elf.bytes).unwrap();
    assert_eq!((program.entry, program.symbols().count()), (Some(CODE), 0));
    assert_eq!(program.segments, Elf::new().parse().unwrap().segments);
    // A missing symbol is still reported.
    let mut elf = of_shared_names(100, 2, false, 1);
    let last = elf.bytes.len() - 24;
    elf.put(last + 6, &[0, 0]);
    let error = Program::load(&elf.bytes).unwrap_err().to_string();
    assert!(error.contains("is undefined"), "{error}");
}

#[test]
fn second_symbol_or_attribute_table_is_rejected() {
    for (kind, what) in [(2, "symbol tables"), (0x7000_0003, "sections of attributes")] {
        let mut elf = Elf::new();
        let range = elf.add(vec![0; 24]);
        // Replaces the table of names; section 2 then links to itself.
        elf.section(2, kind, range, 2);
        let error = elf.parse().unwrap_err();
        assert!(error.contains(what), "{error}");
    }
}

fn with_attributes(attributes: Vec<u8>) -> Result<(), String> {
    let mut elf = Elf::new();
    let range = elf.add(attributes);
    elf.section(3, 0x7000_0003, range, 0);
    elf.parse().map(drop)
}

#[test]
fn architecture_string_is_limited_to_4096_bytes() {
    let of_length = |length| attributes(&format!("rv64{}i", "m_".repeat(length))[..length]);
    assert_eq!(with_attributes(of_length(4095)), Ok(()));
    assert!(with_attributes(of_length(4096)).unwrap_err().contains("extension \"\""));
    assert!(with_attributes(of_length(4097)).unwrap_err().contains("over 4096 bytes"));
}

#[test]
fn architecture_is_found_among_other_attributes() {
    // A number of two bytes; a text whose tag has two bytes, with the architecture's tag in the low
    // bits of the first; and an empty text of a single byte.
    let others = [&[4, 0x80, 1][..], &[0x85, 1], b"rv64gc\0", &[7, 0]].concat();
    let error = with_attributes(attributes_after(&others, "rv64i2p1_f2p2")).unwrap_err();
    assert!(error.contains("\"f\""), "{error}");
    assert_eq!(with_attributes(attributes_after(&others, "rv64i2p1")), Ok(()));
}

#[test]
fn program_for_other_core_is_rejected_by_extension() {
    let for_arch = |arch: &str| with_attributes(attributes(arch));
    for known in ["rv64imac", "rv64i2p1", "rv64i2p0_m2p0_a2p0_c2p0_zifencei2p0_zca1p0"] {
        assert_eq!(for_arch(known), Ok(()), "{known}");
    }
    for (arch, needs) in [
        ("rv64i2p1_f2p2", "\"f\""),
        ("rv64i2p1_m2p0_zba1p0", "\"zba\""),
        ("rv64gc", "\"gc\""),
        ("rv32i2p1", "rv32"),
    ] {
        let error = for_arch(arch).unwrap_err();
        assert!(error.contains(needs), "{arch}: {error}");
    }
    // Attributes that cannot be parsed are ignored.
    for broken in [&b""[..], b"B", b"A\xff\xff\xff\xff", b"A\x0c\0\0\0riscv\0\x01"] {
        assert_eq!(with_attributes(broken.to_vec()), Ok(()), "{broken:?}");
    }
}

proptest! {
    #[test]
    fn mutated_file_is_rejected_or_loadable(
        changes in proptest::collection::vec((0..CONTENT + 400, any::<u8>()), 1..12),
        length in proptest::option::of(0..CONTENT + 400),
    ) {
        let mut elf = Elf::new();
        for (at, byte) in changes {
            if let Some(there) = elf.bytes.get_mut(at) {
                *there = byte;
            }
        }
        elf.bytes.truncate(length.unwrap_or(usize::MAX));
        if let Ok(program) = elf.parse() {
            let memory: u64 = program.segments.iter().map(|segment| segment.length).sum();
            prop_assert!(memory <= MAX_MEMORY);
            // Mapping much memory repeatedly takes long.
            if memory < 1 << 20 {
                prop_assert!(AddressSpace::new(program.regions()).is_ok());
            }
        }
    }
}
