//! Checks the order of memory accesses when a program of a DPA polls, in its machine code: the
//! software core executes in order, so no program on it detects a missing fence.

use std::path::PathBuf;

use super::build::TARGET;
use crate::commands::cargo;
use crate::workspace::{Result, workspace_root};

/// The library of programs for the DPA.
const PACKAGE: &str = "verbless-flexio-dev";

/// The `poll` of a ring of CQEs and of one of EQEs, as they are mangled: the length of a name
/// precedes it.
const POLLS: [&str; 2] = ["3hot3CqeE4poll:", "3hot3EqeE4poll:"];

/// Bytes before the last word of an entry, which has the owner bit.
const LAST: u32 = 56;

/// Compiles the library for the DPA and checks the order; `Err` describes the mistake.
pub(super) fn check() -> Result {
    let assembly = std::fs::read_to_string(compile()?)?;
    for name in POLLS {
        let code = function(&assembly, name).ok_or_else(|| format!("no code of {name}"))?;
        poll_order(&code).map_err(|why| format!("{name} {why}"))?;
    }
    println!("ok      riscv64imac: owner bit, fence r, rw, the rest of the CQE or EQE");
    Ok(())
}

fn compile() -> Result<PathBuf> {
    let directory = workspace_root().join("target/riscv64imac");
    let arguments = ["rustc", "--release", "--package", PACKAGE, "--lib", "--target", TARGET];
    let status = cargo(&arguments)
        .args(["--", "--emit", "asm", "-Csymbol-mangling-version=v0"])
        .env("CARGO_TARGET_DIR", &directory)
        .status()?;
    if !status.success() {
        return Err(format!("{PACKAGE} does not compile for {TARGET}").into());
    }
    let mut found = None;
    for entry in std::fs::read_dir(directory.join(TARGET).join("release/deps"))? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if name.starts_with("verbless_flexio_dev-") && name.ends_with(".s") {
            found = found.max(Some((path.metadata()?.modified()?, path)));
        }
    }
    found.map(|(_, path)| path).ok_or_else(|| "the compiler left no assembly".into())
}

/// The instructions of the function whose label ends with `name`.
fn function<'a>(assembly: &'a str, name: &str) -> Option<Vec<&'a str>> {
    let mut lines = assembly.lines();
    lines.find(|line| line.starts_with("_R") && line.ends_with(name))?;
    let code = lines.take_while(|line| !line.starts_with(".Lfunc_end"));
    let code = code.filter_map(|line| line.strip_prefix('\t'));
    Some(code.filter(|line| line.starts_with(|c: char| c.is_ascii_lowercase())).collect())
}

/// The load of 8 bytes that an instruction is: offset and base.
fn load(instruction: &str) -> Option<(u32, &str)> {
    let (_, operand) = instruction.strip_prefix("ld\t")?.split_once(", ")?;
    let (offset, base) = operand.strip_suffix(')')?.split_once('(')?;
    Some((offset.parse().ok()?, base))
}

fn poll_order(code: &[&str]) -> std::result::Result<(), String> {
    let is_fence = |at: &usize| code[*at].starts_with("fence");
    let fences: Vec<usize> = (0..code.len()).filter(is_fence).collect();
    let [fence] = fences[..] else { return Err(format!("has {} fences", fences.len())) };
    if code[fence] != "fence\tr, rw" {
        return Err(format!("has `{}`", code[fence]));
    }
    let (before, after) = code.split_at(fence);
    let last = before.iter().rev().filter_map(|it| load(it)).find(|&(offset, _)| offset == LAST);
    let (_, entry) = last.ok_or("does not load the last word before the fence")?;
    let mut loads = before.iter().filter_map(|it| load(it));
    let early = loads.any(|(offset, base)| base == entry && offset != LAST);
    let late: Vec<u32> = after
        .iter()
        .filter_map(|it| load(it))
        .filter_map(|(offset, base)| (base == entry).then_some(offset))
        .collect();
    let rest = (0..LAST).step_by(8);
    match rest.filter(|offset| !late.contains(offset)).collect::<Vec<_>>()[..] {
        [] if !early => Ok(()),
        [] => Err("loads another word of the entry before the fence".into()),
        ref missing => Err(format!("does not load the words at {missing:?} after the fence")),
    }
}

#[cfg(test)]
mod tests {
    use super::{function, poll_order};

    const HEAD: &str = "_RNv3hot3CqeE4poll:\n\tld\ts1, 0(a1)\n\tadd\ts1, s1, a3\n";
    const LAST: &str = "\tld\ta3, 56(s1)\n";
    const FENCE: &str = "\tfence\tr, rw\n";
    const END: &str = "\tret\n.Lfunc_end1:\n\tfence\trw, rw\n";

    fn rest() -> String {
        (0..7).map(|word| format!("\tld\ta{word}, {}(s1)\n", 8 * word)).collect()
    }

    fn checked(parts: &[&str]) -> Result<(), String> {
        let text = [&[HEAD], parts, &[END]].concat().concat();
        poll_order(&function(&text, "3hot3CqeE4poll:").expect("the function"))
    }

    #[test]
    fn poll_order_needs_fence_between_owner_and_rest() {
        let rest = rest();
        assert_eq!(checked(&[LAST, FENCE, &rest]), Ok(()));
        assert!(checked(&[LAST, &rest]).unwrap_err().contains("0 fences"));
        assert!(checked(&[LAST, "\tfence\tw, w\n", &rest]).unwrap_err().contains("fence\tw, w"));
        assert!(checked(&[LAST, &rest, FENCE]).unwrap_err().contains("[0, 8, 16"));
        assert!(checked(&[FENCE, LAST, &rest]).unwrap_err().contains("last word"));
        let early = "\tld\ta4, 8(s1)\n";
        assert!(checked(&[LAST, early, FENCE, &rest]).unwrap_err().contains("another word"));
        assert!(function(HEAD, "3hot3EqeE4poll:").is_none());
    }
}
