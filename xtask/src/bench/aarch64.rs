//! Checks the order of memory accesses of post and poll in the machine code for Arm.
//!
//! BlueField's cores are weakly ordered, and no test on x86 detects a missing barrier. The
//! benchmark is compiled for aarch64 with assembly as output; nothing is linked or run.

use std::path::PathBuf;
use std::process::Command;

use super::tally::commonest;
use crate::workspace::{Result, workspace_root};

/// rustup has its standard library.
pub(crate) const TARGET: &str = "aarch64-unknown-linux-musl";

/// Compiles the benchmark and checks the order; `Err` describes the mistake.
pub(crate) fn check() -> Result {
    let assembly = std::fs::read_to_string(compile()?)?;
    post_order(&function(&assembly, "line_post")?)?;
    poll_order(&function(&assembly, "line_poll")?)?;
    copy_order(&function(&assembly, "ring_by_copy")?)?;
    println!(
        "ok      aarch64: BlueFlame loads a block, then stores it by four stp and nothing between"
    );
    println!("ok      aarch64: ring, dmb oshst, record, dsb st, doorbell, dsb st");
    println!(
        "ok      aarch64: owner bit, dmb oshld, the rest of the CQE, dmb oshld, consumer record"
    );
    Ok(())
}

fn compile() -> Result<PathBuf> {
    let directory = workspace_root().join("target/aarch64");
    let status = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args([
            "rustc",
            "--profile",
            "bench",
            "--package",
            "verbless-ring",
            "--bench",
            "instructions",
        ])
        .args(["--target", TARGET])
        .args(["--config", "profile.bench.lto=\"off\""])
        // Code of other crates that is inlined into these functions is compiled with them.
        .args(["--config", "profile.bench.package.\"*\".opt-level=0"])
        // There is no linker for the target here, and none is needed.
        .args(["--config", &format!("target.{TARGET}.linker=\"true\"")])
        // Names in which a function's own name follows its length.
        .args(["--", "--emit", "asm", "-Csymbol-mangling-version=v0"])
        .current_dir(workspace_root())
        .env("CARGO_TARGET_DIR", &directory)
        .status()?;
    if !status.success() {
        return Err("the benchmark does not compile for aarch64".into());
    }
    let mut found = None;
    for entry in std::fs::read_dir(directory.join(TARGET).join("release/deps"))? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if name.starts_with("instructions-") && name.ends_with(".s") {
            let when = path.metadata()?.modified()?;
            found = found.max(Some((when, path)));
        }
    }
    found.map(|(_, path)| path).ok_or_else(|| "the compiler left no assembly".into())
}

/// The instructions of the function of this name, or of one of its instances.
fn function(assembly: &str, name: &str) -> Result<Vec<String>> {
    // As Rust mangles a path: the length comes first.
    let part = format!("{}{name}", name.len());
    let is_label = |line: &str| {
        let behind = line.split_once(&part).map(|(_, behind)| behind);
        line.starts_with("_R")
            && line.ends_with(':')
            && behind
                .is_some_and(|it| !it.starts_with(|c: char| c.is_ascii_lowercase() || c == '_'))
    };
    let mut lines = assembly.lines().skip_while(|line| !is_label(line));
    lines.next().ok_or_else(|| format!("no code of {name}"))?;
    let code = lines
        .take_while(|line| !line.starts_with(".Lfunc_end"))
        .filter_map(|line| line.strip_prefix('\t'))
        .filter(|line| line.starts_with(|c: char| c.is_ascii_lowercase()))
        .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
        .collect();
    Ok(code)
}

/// The indexes of the instructions that begin with `start`, in order.
fn positions(code: &[String], start: &str) -> Vec<usize> {
    (0..code.len()).filter(|&i| code[i].starts_with(start)).collect()
}

/// Stores of one register to memory that is not the stack: `x` for 8 bytes, `w` for 4.
fn stores(code: &[String]) -> Vec<char> {
    code.iter()
        .filter(|i| i.starts_with("str ") && !i.contains("[sp"))
        .filter_map(|i| i.chars().nth(4))
        .collect()
}

fn post_order(code: &[String]) -> Result {
    let (ring, fences) = (positions(code, "dmb oshst"), positions(code, "dsb st"));
    let ([ring], [before, after]) = (&ring[..], &fences[..]) else {
        return Err(format!("line_post has barriers at {ring:?} and {fences:?}").into());
    };
    let wqe = stores(&code[..*ring]).iter().filter(|&&register| register == 'x').count();
    let record = stores(&code[*ring..*before]);
    if wqe < 6 || record != ['w'] {
        return Err(format!("line_post: {wqe} ring stores, then {record:?}").into());
    }
    // The queue's base is the register that most operands in memory start with; between the
    // barriers, only the doorbell's store may have another base.
    let queue = commonest(code.iter().filter_map(|i| base(i)));
    let (own, doorbell): (Vec<&String>, Vec<&String>) = code[*before..*after]
        .iter()
        .filter(|i| i.starts_with("st") && base(i).is_some())
        .partition(|i| base(i) == queue);
    if doorbell.len() != 1 || !doorbell[0].starts_with("str x") || own.len() > 1 {
        return Err(format!("line_post: doorbell {doorbell:?}, stores to the queue {own:?}").into());
    }
    Ok(())
}

/// The base register of an instruction's memory operand, unless it is the stack's.
fn base(instruction: &str) -> Option<&str> {
    let register = instruction.split_once('[')?.1.split([',', ']']).next()?;
    (register != "sp").then_some(register)
}

fn poll_order(code: &[String]) -> Result {
    let barriers = positions(code, "dmb oshld");
    let [owner, release] = barriers[..] else {
        return Err(format!("line_poll has barriers at {barriers:?}").into());
    };
    let before = code[..owner].iter().any(|i| i.starts_with("ldrb") && i.ends_with("#63]"));
    let rest = ["#44]", "#56]", "#60]"].map(|field| {
        code[owner..release].iter().filter(|i| i.starts_with("ldr ") && i.ends_with(field)).count()
    });
    let record = stores(&code[release..]);
    if !before || rest != [1, 1, 1] || record.first() != Some(&'w') {
        return Err(
            format!("line_poll: owner first {before}, then {rest:?}, then {record:?}").into()
        );
    }
    Ok(())
}

/// Each block is loaded whole, and then stored by consecutive instructions. The compiler may unroll
/// the loop over the blocks: then there are several such groups.
fn copy_order(code: &[String]) -> Result {
    let pair = |i: &String| i.starts_with("stp x") && !i.contains("[sp");
    let ends = ["]", "#16]", "#32]", "#48]"];
    // Before the copy, the queue stores the register for the next copy. Its address is the first
    // argument, in x0, as long as no instruction names x0 but to address memory.
    let single: Vec<usize> =
        (0..code.len()).filter(|&i| !stores(&code[i..=i]).is_empty()).collect();
    let to_the_queue = |at: usize| {
        let names = |i: &String| {
            i.split('[').next().is_some_and(|it| it.contains("x0") || it.contains("w0"))
        };
        let copy = code.iter().position(pair).unwrap_or(0);
        at < copy && base(&code[at]) == Some("x0") && !code[..at].iter().any(names)
    };
    if single.len() > 1 || single.iter().any(|&at| !to_the_queue(at)) {
        return Err("ring_by_copy stores words one by one".into());
    }
    let (mut rest, mut blocks) = (code, 0);
    while let Some(first) = rest.iter().position(pair) {
        let block = rest.get(first..first + 4).unwrap_or_default();
        let whole = block.iter().zip(ends).filter(|(i, end)| pair(i) && i.ends_with(end)).count();
        if whole != 4 {
            return Err(format!("ring_by_copy stores a block by {block:?}").into());
        }
        let words: usize = rest[..first].iter().map(|i| loaded(i)).sum();
        if words < 8 {
            return Err(format!("ring_by_copy loads {words} words before it stores eight").into());
        }
        (rest, blocks) = (&rest[first + 4..], blocks + 1);
    }
    if blocks == 0 { Err("ring_by_copy has no stp".into()) } else { Ok(()) }
}

/// 8-byte words that an instruction loads.
fn loaded(instruction: &str) -> usize {
    match instruction.split_once(" x").map(|(mnemonic, _)| mnemonic) {
        Some("ldp") => 2,
        Some("ldr" | "ldur") => 1,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copy_order_rejects_interleaved_load() {
        let good = "ldp x8, x9, [x1]\nldp x10, x11, [x1, #16]\nldp x12, x13, [x1, #32]\nldp x14, \
            x15, [x1, #48]
            dsb st\nstp x8, x9, [x0]\nstp x10, x11, [x0, #16]\nstp x12, x13, [x0, #32]\nstp x14, \
            x15, [x0, #48]\ndsb st";
        assert!(copy_order(&code(good)).is_ok());
        assert!(copy_order(&code(&format!("{good}\n{good}"))).is_ok(), "a loop that is unrolled");
        let between = good.replace("stp x14", "ldr x16, [x2]\nstp x14");
        assert!(copy_order(&code(&between)).is_err());
        let words =
            good.replace("stp x14, x15, [x0, #48]", "str x14, [x0, #48]\nstr x15, [x0, #56]");
        assert!(copy_order(&code(&words)).is_err());
        let first = |store: &str| copy_order(&code(&format!("{store}\n{good}")));
        assert!(first("ldp x13, x10, [x0, #112]\nstr x14, [x0, #112]").is_ok(), "to the queue");
        assert!(first("str x14, [x13]").is_err(), "a word of the copy");
        assert!(first("str x14, [x0, #112]\nstr x14, [x0, #120]").is_err(), "twice");
        assert!(first("ldr x0, [x0, #112]\nstr x14, [x0]").is_err(), "no longer the queue");
        assert!(copy_order(&code(&format!("{good}\nstr x14, [x0, #112]"))).is_err(), "behind it");
        let late = good.replace("ldp x14, x15, [x1, #48]\n", "").replace("ldp x8, x9, [x1]\n", "");
        assert!(copy_order(&code(&late)).is_err());
    }

    fn code(text: &str) -> Vec<String> {
        text.lines().map(|line| line.trim().to_string()).collect()
    }

    const POST: &str = "ldr w1, [x0, #168]\nldr w11, [x0, #40]\nldr x12, [x0]\nldr x11, [x0, \
        #136]\nldr w10, [x0, #64]\nldr x11, [x0, #48]\nstr w12, [x0, #168]
        str x8, [x10]\nstr x9, [x10, #8]\nstr x11, [x10, #16]\nstr x9, [x10, #24]
        str x9, [x10, #32]\nstr x11, [x10, #40]\nstr x11, [sp, #8]\ndmb oshst
        ldr x10, [x0, #72]\nstr w9, [x10]\ndsb st\nldp x10, x11, [x0, #112]
        str x11, [x0, #112]\nstr x9, [x10]\ndsb st\nret";

    #[test]
    fn post_order_requires_barriers() {
        assert!(post_order(&code(POST)).is_ok());
        assert!(post_order(&code(&POST.replace("dmb oshst\n", ""))).is_err());
        let swapped = POST.replace("str w9, [x10]\ndsb st", "dsb st\nstr w9, [x10]");
        assert!(post_order(&code(&swapped)).is_err());
    }

    #[test]
    fn post_order_allows_doorbell_store_only() {
        let with = |other: &str| post_order(&code(&POST.replace("str x9, [x10]\ndsb", other)));
        for second in ["str x8, [x10, #8]", "str w8, [x12]", "stp x8, x9, [x12]", "strb w8, [x12]"]
        {
            let why = with(&format!("str x9, [x10]\n{second}\ndsb")).unwrap_err().to_string();
            assert!(why.contains(second), "{why}");
        }
        assert!(with("str x9, [x10]\nstr w8, [x0, #120]\ndsb").is_err(), "twice to the queue");
        assert!(with("str w9, [x10]\ndsb").is_err(), "4 bytes");
        assert!(with("dsb").is_err(), "no doorbell");
    }

    #[test]
    fn doorbell_before_barrier_is_found() {
        let late = POST.replace("str x9, [x10]\ndsb", "dsb");
        for before in ["str w9, [x10]", "dmb oshst"] {
            let early = late.replace(before, &format!("{before}\nstr x9, [x12]"));
            assert!(post_order(&code(&early)).is_err());
        }
    }

    #[test]
    fn poll_order_rejects_read_before_owner() {
        let good = "ldrb w8, [x10, #63]\ndmb oshld\nldr w8, [x10, #44]\nldr w9, [x10, #56]\nldr \
            w10, [x10, #60]
            dmb oshld\nstr w11, [x12]\nret";
        assert!(poll_order(&code(good)).is_ok());
        let early = format!("ldr w8, [x10, #44]\n{}", good.replacen("ldr w8, [x10, #44]\n", "", 1));
        assert!(poll_order(&code(&early)).is_err());
    }
}
