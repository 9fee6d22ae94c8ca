//! A program for a core without an operating system, such as a DPU's data path accelerator: it
//! compiles, and links only the rings, the formats and the parts of `core` that these need.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use crate::workspace::{Result, workspace_root};

const TARGET: &str = "riscv64imac-unknown-none-elf";
const PROGRAM: &str = "crates/ring/tests/device";

/// Our crates, and their allowed dependencies. No dependency contains a part of `std`.
const ALLOWED: [&str; 8] = [
    "device",
    "verbless_ring",
    "verbless_prm",
    "zerocopy",
    "thiserror",
    "core",
    "alloc",
    "compiler_builtins",
];
/// The crates that must be linked.
const NEEDED: [&str; 3] = ["device", "verbless_ring", "core"];

/// The barriers of post and poll as instructions: predecessors in bits 27:24, successors in 23:20,
/// each of the bits i, o, r, w.
const FENCES: [(&str, u32); 4] = [
    ("fence w, w", 0x0110_000f),
    ("fence ow, ow", 0x0550_000f),
    ("fence r, r", 0x0220_000f),
    ("fence r, w", 0x0210_000f),
];

/// Builds the program against the standard library's `sources`; returns the crates that it links.
pub(crate) fn check(sources: &Path) -> Result {
    let directory = workspace_root().join("target/riscv64imac");
    let status = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args(["build", "--release", "--locked", "--target", TARGET, "-Zbuild-std=core,alloc"])
        .current_dir(workspace_root().join(PROGRAM))
        .env("RUSTC_BOOTSTRAP", "1")
        .env("__CARGO_TESTS_ONLY_SRC_ROOT", sources)
        .env("CARGO_TARGET_DIR", &directory)
        .status()?;
    if !status.success() {
        return Err(format!("{PROGRAM} does not compile for {TARGET}").into());
    }
    let archive = std::fs::read(directory.join(TARGET).join("release/libdevice.a"))?;
    let crates = crates(&members(&archive)?);
    println!("links {}", crates.iter().cloned().collect::<Vec<_>>().join(", "));
    if let Some(other) = crates.iter().find(|name| !ALLOWED.contains(&name.as_str())) {
        return Err(format!("{PROGRAM} links {other}").into());
    }
    for (fence, encoding) in FENCES {
        if !archive.windows(4).any(|word| word == encoding.to_le_bytes()) {
            return Err(format!("{PROGRAM} has no `{fence}`").into());
        }
    }
    match NEEDED.iter().find(|name| !crates.contains(**name)) {
        Some(missing) => Err(format!("{PROGRAM} does not link {missing}").into()),
        None => Ok(()),
    }
}

/// The names of the object files in an archive (`ar`, in the GNU variant).
fn members(archive: &[u8]) -> Result<Vec<String>> {
    const HEADER: usize = 60;
    let mut rest = archive.strip_prefix(b"!<arch>\n").ok_or("not an archive")?;
    let (mut long, mut names) = (&[][..], Vec::new());
    while rest.len() >= HEADER {
        let (header, behind) = rest.split_at(HEADER);
        let text = |range: std::ops::Range<usize>| {
            header.get(range).and_then(|it| std::str::from_utf8(it).ok()).unwrap_or("").trim_end()
        };
        let length: usize = text(48..58).parse()?;
        let content = behind.get(..length).ok_or("the archive ends within a member")?;
        match text(0..16) {
            "/" | "/SYM64/" => {}
            "//" => long = content,
            name => {
                let name = match name.strip_prefix('/').and_then(|at| at.parse::<usize>().ok()) {
                    Some(at) => {
                        let name = long.get(at..).ok_or("a name is not in the archive")?;
                        let end = name.iter().position(|&byte| byte == b'/' || byte == b'\n');
                        String::from_utf8_lossy(&name[..end.unwrap_or(name.len())]).into_owned()
                    }
                    None => name.trim_end_matches('/').into(),
                };
                names.push(name);
            }
        }
        rest = behind.get(length.next_multiple_of(2)..).unwrap_or(&[]);
    }
    Ok(names)
}

/// The crates of object files, which rustc names `crate-hash.…`.
fn crates(members: &[String]) -> BTreeSet<String> {
    members.iter().filter_map(|name| Some(name.split_once('-')?.0.to_owned())).collect()
}

#[cfg(test)]
mod tests {
    use super::{crates, members};

    #[test]
    fn archive_members_name_their_crates() {
        let member = |name: &str, content: &str| {
            let padding = if content.len() % 2 == 1 { "\n" } else { "" };
            format!(
                "{name:<16}{:<12}{:<6}{:<6}{:<8}{:<10}`\n{content}{padding}",
                0,
                0,
                0,
                644,
                content.len()
            )
        };
        let archive = [
            "!<arch>\n".into(),
            member("/", "abc"),
            member("//", "verbless_ring-0a1b.x.0-cgu.0.rcgu.o/\n"),
            member("core-12.o/", "odd"),
            member("/0", "even"),
        ];
        let names = members(archive.concat().as_bytes()).unwrap();
        assert_eq!(names, ["core-12.o", "verbless_ring-0a1b.x.0-cgu.0.rcgu.o"]);
        assert_eq!(crates(&names).into_iter().collect::<Vec<_>>(), ["core", "verbless_ring"]);
        assert!(members(b"no archive").is_err());
    }
}
