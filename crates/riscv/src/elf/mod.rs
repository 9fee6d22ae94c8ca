//! Programs as linkers write them: static ELF files for RV64IMAC.
//!
//! A file may hold anything, so the parser trusts nothing in it: [`ElfError`] says why it refuses a
//! file and what to do, and the size of an accepted file is bounded ([`MAX_MEMORY`],
//! [`MAX_SYMBOLS`], [`MAX_NAMES`]). It reads only segments, symbols of functions and objects, the
//! template of thread-local storage, and the attribute that names the extensions.
//!
//! Sources: the System V ABI, chapters 4 and 5, and the RISC-V ELF psABI, version 1.0 ("Object
//! Files": `e_flags`, `SHT_RISCV_ATTRIBUTES`).

mod attributes;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use crate::ram::{PAGE, Ram};
use crate::space::{Permissions, Region};

/// Maximum bytes of memory of a program's segments.
pub const MAX_MEMORY: u64 = 256 << 20;
/// Maximum number of program headers, and of sections, of a file.
const MAX_HEADERS: usize = 1024;
/// Maximum number of symbols of a file.
pub const MAX_SYMBOLS: usize = 1 << 20;
/// Maximum bytes of a symbol's name.
pub const MAX_NAME: usize = 64 << 10;
/// Maximum bytes of the names of a program's functions and objects together. Names may share bytes
/// of the file.
pub const MAX_NAMES: usize = 64 << 20;
/// The end of the addresses that programs may use: the lower half of the address space.
const ADDRESS_END: u64 = 1 << 47;

/// Why a file is not a program for the core, and what to do about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ElfError(Cow<'static, str>);

impl fmt::Display for ElfError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for ElfError {}

type Result<T> = std::result::Result<T, ElfError>;

fn refused<T>(why: impl Into<Cow<'static, str>>) -> Result<T> {
    Err(ElfError(why.into()))
}

/// A program.
#[derive(Debug, Clone)]
pub struct Program {
    /// The entry point; `None` if the file has 0 there, because its functions are called by their
    /// symbols.
    pub entry: Option<u64>,
    /// The segments in order of address; no two share a page.
    pub segments: Vec<Segment>,
    /// The template of each thread's local storage.
    pub tls: Option<Tls>,
    symbols: BTreeMap<String, Symbol>,
}

/// A part of a program's memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Segment {
    /// The address of the first byte.
    pub address: u64,
    /// Length in memory in bytes; the bytes after `bytes` are 0.
    pub length: u64,
    /// The bytes in the file.
    pub bytes: Vec<u8>,
    /// The permissions of the program.
    pub permissions: Permissions,
}

/// The template of thread-local storage (PT_TLS).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tls {
    /// Address of the template, in a segment.
    pub address: u64,
    /// Bytes of the template; the bytes after it are 0.
    pub initial: u64,
    /// Bytes of each thread's storage.
    pub length: u64,
    /// Alignment of each thread's first byte; a power of two.
    pub alignment: u64,
}

/// A function or an object of a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Symbol {
    /// The address of the first byte.
    pub address: u64,
    /// The size in bytes; 0 if the file does not give it.
    pub length: u64,
    /// Whether the symbol can be called: it is a function in an executable segment.
    pub function: bool,
}

impl Segment {
    /// The segment with its bytes, as a region of whole pages.
    pub fn region(&self) -> Region {
        let within = self.address % PAGE;
        let ram = Ram::new(within + self.length);
        ram.write(within, &self.bytes);
        Region::ram(self.address - within, &ram, self.permissions)
    }

    /// The index of the first page, and the one after the last.
    const fn pages(&self) -> (u64, u64) {
        (self.address / PAGE, (self.address + self.length).div_ceil(PAGE))
    }

    fn holds(&self, address: u64, length: u64) -> bool {
        address >= self.address
            && length <= self.length
            && address - self.address <= self.length - length
    }
}

impl Program {
    /// Reads a file.
    ///
    /// # Errors
    /// The file is not a static ELF file for RV64IMAC without floating point, it needs an extension
    /// that the core does not have, it is inconsistent, or it is too large.
    pub fn parse(file: &[u8]) -> Result<Self> {
        Self::read(file, true)
    }

    /// Parses a file for running it. The result has no [symbols](Self::symbol), and the time it
    /// takes is bounded by the length of the file.
    ///
    /// # Errors
    /// As for [`Program::parse`].
    pub fn load(file: &[u8]) -> Result<Self> {
        Self::read(file, false)
    }

    fn read(file: &[u8], with_names: bool) -> Result<Self> {
        let file = File(file);
        let header = Header::read(file)?;
        let segments = segments(file, &header)?;
        let holds = |address, length| segments.iter().find(|it| it.holds(address, length));
        let entry = (header.entry != 0).then_some(header.entry);
        if let Some(entry) = entry
            && !(entry.is_multiple_of(2)
                && holds(entry, 2).is_some_and(|it| it.permissions.execute))
        {
            return refused(format!("the entry point {entry:#x} is not in an executable segment"));
        }
        let tls = tls(file, &header)?;
        if let Some(tls) = &tls
            && tls.initial > 0
            && holds(tls.address, tls.initial).is_none()
        {
            return refused("the template of thread-local storage is in no segment");
        }
        let symbols = symbols(file, &header, &segments, with_names)?;
        Ok(Self { entry, segments, tls, symbols })
    }

    /// The function or object with this name.
    pub fn symbol(&self, name: &str) -> Option<Symbol> {
        self.symbols.get(name).copied()
    }

    /// All symbols, in order of name.
    pub fn symbols(&self) -> impl Iterator<Item = (&str, Symbol)> {
        self.symbols.iter().map(|(name, symbol)| (name.as_str(), *symbol))
    }

    /// The segments with their bytes. Each call allocates new memory.
    pub fn regions(&self) -> impl Iterator<Item = Region> {
        self.segments.iter().map(Segment::region)
    }
}

/// The bytes of a file.
#[derive(Clone, Copy)]
struct File<'f>(&'f [u8]);

impl<'f> File<'f> {
    fn bytes(self, at: u64, length: u64, what: &str) -> Result<&'f [u8]> {
        let end = at.checked_add(length);
        let range = usize::try_from(at).ok().zip(end.and_then(|end| usize::try_from(end).ok()));
        let found = range.and_then(|(at, end)| self.0.get(at..end));
        found.ok_or_else(|| {
            let size = self.0.len();
            let text = format!("{what} is outside the file, which has {size} bytes: it is cut off");
            ElfError(text.into())
        })
    }

    /// The entries of a table.
    fn table(
        self,
        at: u64,
        count: u16,
        size: u16,
        want: u16,
        what: &str,
    ) -> Result<Vec<Entry<'f>>> {
        if count == 0 {
            return Ok(Vec::new());
        }
        if size != want {
            return refused(format!("{what} are of {size} bytes each, and not of {want}"));
        }
        if usize::from(count) > MAX_HEADERS {
            return refused(format!("it has {count} {what}, and may have {MAX_HEADERS}"));
        }
        let all = self.bytes(at, u64::from(count) * u64::from(size), what)?;
        Ok(all.chunks_exact(want.into()).map(Entry).collect())
    }
}

/// Bytes of a known size, with fields at known offsets.
#[derive(Clone, Copy)]
struct Entry<'f>(&'f [u8]);

impl Entry<'_> {
    fn number<const N: usize>(self, at: usize) -> u64 {
        let mut bytes = [0; 8];
        if let Some(found) = self.0.get(at..at + N) {
            bytes[..N].copy_from_slice(found);
        }
        u64::from_le_bytes(bytes)
    }

    fn half(self, at: usize) -> u16 {
        self.number::<2>(at) as u16
    }

    fn word(self, at: usize) -> u32 {
        self.number::<4>(at) as u32
    }

    fn long(self, at: usize) -> u64 {
        self.number::<8>(at)
    }
}

/// The file's header, and its tables.
struct Header<'f> {
    entry: u64,
    programs: Vec<Entry<'f>>,
    sections: Vec<Entry<'f>>,
}

impl<'f> Header<'f> {
    fn read(file: File<'f>) -> Result<Self> {
        const EXECUTABLE: u16 = 2;
        const SHARED: u16 = 3;
        const RISCV: u16 = 243;
        if !file.0.starts_with(b"\x7fELF") {
            return refused("it is not an ELF file");
        }
        let header = Entry(file.bytes(0, 64, "the file's header")?);
        let [class, order] = [header.0[4], header.0[5]];
        if class != 2 || order != 1 || header.half(18) != RISCV {
            return refused(
                "it is not a little-endian ELF file for 64-bit RISC-V: compile it for \
                 riscv64imac-unknown-none-elf",
            );
        }
        match header.half(16) {
            EXECUTABLE => {}
            SHARED => {
                return refused(
                    "it is position-independent, and the core does not relocate it: link it with \
                     relocation-model=static",
                );
            }
            other => return refused(format!("its type is {other}: link it to an executable")),
        }
        flags(header.word(48))?;
        let programs =
            file.table(header.long(32), header.half(56), header.half(54), 56, "program headers")?;
        let sections =
            file.table(header.long(40), header.half(60), header.half(58), 64, "section headers")?;
        Ok(Self { entry: header.long(24), programs, sections })
    }
}

/// Checks the requirements in `e_flags`.
fn flags(flags: u32) -> Result<()> {
    const COMPRESSED: u32 = 1;
    const FLOAT: u32 = 6;
    const EMBEDDED: u32 = 8;
    if flags & FLOAT != 0 {
        return refused("it passes floating-point numbers in registers: compile it for lp64");
    }
    if flags & EMBEDDED != 0 {
        return refused("it is for cores of 16 registers (RVE): compile it for rv64imac");
    }
    match flags & !COMPRESSED {
        0 => Ok(()),
        other => refused(format!("it needs {other:#x} of e_flags, which the core does not have")),
    }
}

/// The memory of the program.
fn segments(file: File<'_>, header: &Header<'_>) -> Result<Vec<Segment>> {
    const LOAD: u32 = 1;
    const DYNAMIC: u32 = 2;
    const INTERPRETER: u32 = 3;
    let mut segments = Vec::new();
    let mut memory = 0_u64;
    for entry in &header.programs {
        let (address, length) = (entry.long(16), entry.long(40));
        match entry.word(0) {
            DYNAMIC | INTERPRETER => {
                return refused("it is dynamically linked: link it statically");
            }
            LOAD if length > 0 => {}
            _ => continue,
        }
        if address.checked_add(length).is_none_or(|end| end > ADDRESS_END) {
            return refused(format!(
                "a segment of {length:#x} bytes at {address:#x} ends above {ADDRESS_END:#x}"
            ));
        }
        let (at, of_file) = (entry.long(8), entry.long(32));
        if of_file > length {
            return refused(format!(
                "the segment at {address:#x} has {of_file} bytes in the file and {length} in memory"
            ));
        }
        let permissions = permissions(entry.word(4), address)?;
        memory += (address % PAGE + length).next_multiple_of(PAGE);
        if memory > MAX_MEMORY {
            return refused(format!("its segments have more than {MAX_MEMORY:#x} bytes of memory"));
        }
        let bytes = file.bytes(at, of_file, "a segment")?.to_vec();
        segments.push(Segment { address, length, bytes, permissions });
    }
    if segments.is_empty() {
        return refused("it has no segment to load");
    }
    segments.sort_by_key(|segment| segment.address);
    for pair in segments.windows(2) {
        if pair[1].pages().0 < pair[0].pages().1 {
            return refused(format!(
                "the segments at {:#x} and {:#x} share a page of {PAGE} bytes: align them in the \
                 linker script",
                pair[0].address, pair[1].address
            ));
        }
    }
    Ok(segments)
}

fn permissions(flags: u32, address: u64) -> Result<Permissions> {
    let (execute, write, read) = (flags & 1 != 0, flags & 2 != 0, flags & 4 != 0);
    if execute && write {
        return refused(format!(
            "the segment at {address:#x} is writable and executable: keep code and data apart"
        ));
    }
    if !(execute || write || read) {
        return refused(format!("the segment at {address:#x} has no permissions"));
    }
    Ok(Permissions { read: read || write, write, execute })
}

fn tls(file: File<'_>, header: &Header<'_>) -> Result<Option<Tls>> {
    const TLS: u32 = 7;
    let Some(entry) = header.programs.iter().find(|entry| entry.word(0) == TLS) else {
        return Ok(None);
    };
    let (initial, length) = (entry.long(32), entry.long(40));
    let alignment = entry.long(48).max(1);
    file.bytes(entry.long(8), initial, "the template of thread-local storage")?;
    if initial > length || length > MAX_MEMORY || !alignment.is_power_of_two() || alignment > PAGE {
        return refused(format!(
            "thread-local storage of {length} bytes, {initial} of them in the file, aligned to \
             {alignment}, is invalid"
        ));
    }
    Ok(Some(Tls { address: entry.long(16), initial, length, alignment }))
}

/// The functions and objects with global names, if `with_names`; also checks that the core has the
/// extensions in the attributes.
fn symbols(
    file: File<'_>,
    header: &Header<'_>,
    segments: &[Segment],
    with_names: bool,
) -> Result<BTreeMap<String, Symbol>> {
    const SYMBOLS: u32 = 2;
    const ATTRIBUTES: u32 = 0x7000_0003;
    let content = |section: &Entry<'_>, what| file.bytes(section.long(24), section.long(32), what);
    if let Some(section) = only(header, ATTRIBUTES, "sections of attributes")? {
        attributes::check(content(section, "the attributes")?)?;
    }
    let Some(section) = only(header, SYMBOLS, "symbol tables")? else {
        return Ok(BTreeMap::new());
    };
    let Some(names) = header.sections.get(section.word(40) as usize) else {
        return refused("the symbol table names a section that does not exist");
    };
    let names = content(names, "the symbols' names")?;
    read_symbols(content(section, "the symbol table")?, names, segments, with_names)
}

/// The section of a type that a file has once at most.
fn only<'h, 'f>(header: &'h Header<'f>, kind: u32, what: &str) -> Result<Option<&'h Entry<'f>>> {
    let mut found = header.sections.iter().filter(|section| section.word(4) == kind);
    match (found.next(), found.next()) {
        (first, None) => Ok(first),
        _ => refused(format!("it has several {what}: link it again with one")),
    }
}

fn read_symbols(
    table: &[u8],
    names: &[u8],
    segments: &[Segment],
    with_names: bool,
) -> Result<BTreeMap<String, Symbol>> {
    /// Bytes of an entry.
    const SIZE: usize = 24;
    const LOCAL: u8 = 0;
    const WEAK: u8 = 2;
    if table.len() / SIZE > MAX_SYMBOLS {
        return refused(format!("it has more than {MAX_SYMBOLS} symbols: strip it"));
    }
    let (mut found, mut kept) = (BTreeMap::new(), 0);
    for entry in table.chunks_exact(SIZE).map(Entry) {
        let (kind, binding) = (entry.0[4] & 0xf, entry.0[4] >> 4);
        // Offset 0 of a string table is the empty name.
        if binding == LOCAL || entry.word(0) == 0 {
            continue;
        }
        if entry.half(6) == 0 {
            if binding == WEAK {
                continue;
            }
            let name: String = name(names, entry.word(0))?.chars().take(200).collect();
            return refused(format!("{name:?} is undefined: link the object that defines it"));
        }
        let (address, length) = (entry.long(8), entry.long(16));
        // 0: no type, as labels of assembly have; 1: an object; 2: a function.
        if !with_names || kind > 2 {
            continue;
        }
        let end = segments.partition_point(|segment| segment.address <= address);
        let within = segments[..end].last().filter(|segment| segment.holds(address, length));
        // The linker's own symbols are at the end of a segment, or in none.
        let Some(segment) = within else { continue };
        let name = name(names, entry.word(0))?;
        if name.is_empty() {
            continue;
        }
        kept += name.len();
        if kept > MAX_NAMES {
            return refused(format!("its names have more than {MAX_NAMES} bytes: strip it"));
        }
        let function = kind != 1 && segment.permissions.execute;
        found.insert(name.to_owned(), Symbol { address, length, function });
    }
    Ok(found)
}

/// A name of a string table.
fn name(names: &[u8], at: u32) -> Result<&str> {
    let rest = names.get(at as usize..).unwrap_or_default();
    let Some(length) = rest.iter().take(MAX_NAME + 1).position(|&byte| byte == 0) else {
        return refused(format!(
            "a symbol's name does not end within its table, or within {MAX_NAME} bytes"
        ));
    };
    match std::str::from_utf8(&rest[..length]) {
        Ok(name) => Ok(name),
        Err(_) => refused("a symbol's name is no UTF-8"),
    }
}
