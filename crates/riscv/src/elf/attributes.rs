//! The attributes of a file (`.riscv.attributes`). Only one counts here: the architecture that the
//! file was compiled for.

use super::{Entry, Result, refused};

/// Maximum bytes of the architecture's name: a core with every known extension needs fewer.
const MAX_ARCH_BYTES: usize = 4096;

/// Checks that the core has each extension of the architecture in the attributes. Attributes of
/// another vendor, or in another version, are skipped.
pub(super) fn check(attributes: &[u8]) -> Result<()> {
    let Some((&b'A', rest)) = attributes.split_first() else { return Ok(()) };
    let Some(arch) = arch(rest) else { return Ok(()) };
    if arch.len() > MAX_ARCH_BYTES {
        return refused(format!(
            "the architecture in its attributes has over {MAX_ARCH_BYTES} bytes"
        ));
    }
    let Some(list) = arch.strip_prefix("rv64") else {
        return refused(format!("it is for {arch}: compile it for rv64imac"));
    };
    for extension in list.split('_') {
        // Each is a name and a version such as `2p1`.
        let name = extension.trim_end_matches(|c: char| c.is_ascii_digit());
        let name =
            name.strip_suffix('p').filter(|_| extension.ends_with(|c: char| c.is_ascii_digit()));
        let name = name.unwrap_or(extension).trim_end_matches(|c: char| c.is_ascii_digit());
        const KNOWN: [&str; 13] = [
            "i",
            "m",
            "a",
            "c",
            "zicsr",
            "zifencei",
            "zicntr",
            "zmmul",
            "zaamo",
            "zalrsc",
            "zca",
            "zihintpause",
            "zicclsm",
        ];
        let plain = !name.is_empty() && name.bytes().all(|letter| b"imac".contains(&letter));
        if !plain && !KNOWN.contains(&name) {
            return refused(format!(
                "it needs the extension {name:?} ({arch}), which the core does not have: compile \
                 it for rv64imac"
            ));
        }
    }
    Ok(())
}

/// Tag_RISCV_arch of the vendor "riscv".
fn arch(subsections: &[u8]) -> Option<&str> {
    const OF_FILE: u64 = 1;
    const ARCH: u64 = 5;
    // A length that counts itself, and the vendor's name.
    let length = Entry(subsections).word(0) as usize;
    let rest = subsections.get(4..length)?.strip_prefix(b"riscv\0")?;
    let (tag, rest) = leb(rest)?;
    let rest = (tag == OF_FILE).then_some(rest)?;
    // After the length of these attributes, which counts its tag.
    let mut rest = rest.get(4..)?;
    loop {
        let (tag, value) = leb(rest)?;
        // Odd tags have texts, even ones numbers.
        if tag % 2 == 0 {
            rest = leb(value)?.1;
            continue;
        }
        let text = value.split(|&byte| byte == 0).next()?;
        if tag == ARCH {
            return std::str::from_utf8(text).ok();
        }
        rest = value.get(text.len() + 1..)?;
    }
}

/// An unsigned number in base 128, and the bytes after it.
fn leb(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let mut number = 0_u64;
    for (at, &byte) in bytes.iter().enumerate().take(9) {
        number |= u64::from(byte & 0x7f) << (7 * at);
        if byte & 0x80 == 0 {
            return Some((number, &bytes[at + 1..]));
        }
    }
    None
}
