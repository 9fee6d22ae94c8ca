//! Finds a section of a 64-bit little-endian ELF file by its name.
//!
//! Three uses: the dependencies of a kernel module (`.modinfo`), whether a program needs a loader
//! (`.interp`), and the libraries that it loads (`.dynamic`).

/// The content of the section `name`; `None` if `file` is not such a file, has no such section, or
/// is truncated.
pub(crate) fn section<'a>(file: &'a [u8], name: &str) -> Option<&'a [u8]> {
    if !is_elf(file) {
        return None;
    }
    let headers = usize::try_from(u64_at(file, 0x28)?).ok()?;
    let size = usize::from(u16_at(file, 0x3a)?);
    let count = usize::from(u16_at(file, 0x3c)?);
    let names = usize::from(u16_at(file, 0x3e)?);
    let header = |index: usize| {
        let start = headers.checked_add(index.checked_mul(size)?)?;
        file.get(start..start.checked_add(0x40)?)
    };
    let content = |header: &[u8]| {
        let start = usize::try_from(u64_at(header, 0x18)?).ok()?;
        let length = usize::try_from(u64_at(header, 0x20)?).ok()?;
        file.get(start..start.checked_add(length)?)
    };
    let names = content(header(names)?)?;
    (0..count).filter_map(header).find_map(|header| {
        let own = names.get(u32_at(header, 0)? as usize..)?;
        let own = &own[..own.iter().position(|&byte| byte == 0)?];
        (own == name.as_bytes()).then(|| content(header))?
    })
}

/// The names of the libraries that a program or library loads.
pub(crate) fn needed(file: &[u8]) -> impl Iterator<Item = &str> {
    /// The tag of an entry that names a library.
    const NEEDED: u64 = 1;
    let entries = section(file, ".dynamic").unwrap_or_default();
    let names = section(file, ".dynstr").unwrap_or_default();
    entries.chunks_exact(16).filter(|entry| u64_at(entry, 0) == Some(NEEDED)).filter_map(|entry| {
        let name = names.get(usize::try_from(u64_at(entry, 8)?).ok()?..)?;
        str::from_utf8(&name[..name.iter().position(|&byte| byte == 0)?]).ok()
    })
}

/// The kind of processor that an ELF file is for.
pub(crate) fn machine(file: &[u8]) -> Option<u16> {
    is_elf(file).then(|| u16_at(file, 0x12))?
}

/// Whether it is an ELF file of the kind that `section` reads.
pub(crate) fn is_elf(file: &[u8]) -> bool {
    file.starts_with(b"\x7fELF\x02\x01")
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::{machine, needed, section};

    /// A file with one section beside the section of names.
    pub(crate) fn with_section(name: &str, content: &[u8]) -> Vec<u8> {
        let names = format!("\0.names\0{name}\0");
        let mut file = vec![0; 0x40];
        file[..6].copy_from_slice(b"\x7fELF\x02\x01");
        file[0x28..0x30].copy_from_slice(&0x40u64.to_le_bytes());
        file[0x3a..0x3c].copy_from_slice(&0x40u16.to_le_bytes());
        file[0x3c..0x3e].copy_from_slice(&2u16.to_le_bytes());
        let mut data = 0x40 + 2 * 0x40;
        for (at, length) in [(1u32, names.len()), (8, content.len())] {
            let mut header = [0; 0x40];
            header[..4].copy_from_slice(&at.to_le_bytes());
            header[0x18..0x20].copy_from_slice(&(data as u64).to_le_bytes());
            header[0x20..0x28].copy_from_slice(&(length as u64).to_le_bytes());
            file.extend_from_slice(&header);
            data += length;
        }
        file.extend_from_slice(names.as_bytes());
        file.extend_from_slice(content);
        file
    }

    #[test]
    fn section_is_found_by_name() {
        let file = with_section(".modinfo", b"depends=a,b\0");
        assert_eq!(section(&file, ".modinfo"), Some(&b"depends=a,b\0"[..]));
        assert_eq!(section(&file, ".interp"), None);
    }

    #[test]
    fn this_very_program_has_text() {
        let program = std::fs::read(std::env::current_exe().expect("a path")).expect("readable");
        assert!(section(&program, ".text").is_some_and(|text| !text.is_empty()));
        assert!(needed(&program).any(|name| name == "libc.so.6"));
        let own = if cfg!(target_arch = "x86_64") { 62 } else { 183 };
        assert_eq!(machine(&program), Some(own));
    }

    #[test]
    fn truncated_file_has_no_section() {
        let file = with_section(".modinfo", b"depends=a,b\0");
        for length in 0..file.len() {
            assert_eq!(section(&file[..length], ".modinfo"), None, "cut to {length} bytes");
        }
        assert_eq!(section(b"#!/bin/sh\n", ".modinfo"), None);
        assert_eq!((machine(b"#!/bin/sh\n"), needed(b"#!/bin/sh\n").count()), (None, 0));
    }
}
