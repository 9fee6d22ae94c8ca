//! Checks of the machine code of posting and polling: the functions that it can reach, and the
//! order of its memory accesses.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use super::tally::{Tally, commonest};
use crate::workspace::Result;

/// The functions of the benchmark that each are one operation.
const ROOTS: &[&str] = &[
    "line_post",
    "line_post_inline",
    "line_post_batch",
    "line_post_receive",
    "line_poll",
    "line_poll_batch",
    "line_arm",
    "line_dispatch",
    "line_post_datagram",
    "line_poll_datagram",
    "line_post_umr",
    "line_post_shared",
    "line_complete_shared",
    "line_post_frame",
    "line_poll_frame",
    "line_poll_frames",
];

/// Names of functions that an operation must not reach.
const FORBIDDEN: &[&str] =
    &["panic", "unwrap_failed", "slice_index", "alloc", "pthread", "futex", "syscall", "mutex"];

/// Functions of other files that an operation may reach. Only a call that could panic reaches the
/// unwinder.
const HARMLESS: &[&str] = &["memcpy", "memmove", "memset", "_Unwind_Resume"];

/// Functions, by name: the instructions of each, as `mnemonic operands`.
type Functions = BTreeMap<String, Vec<String>>;

/// Checks the machine code of the benchmark.
pub(super) fn check(program: &Path, tally: &mut Tally) -> Result {
    let functions = match disassemble(program) {
        Ok(functions) => functions,
        Err(why) => {
            tally.skip("machine code", &why);
            return Ok(());
        }
    };
    for root in ROOTS {
        let name = format!("{root} cannot panic, allocate, lock or make a system call");
        tally.report(&name, reachable(&functions, root));
    }
    if cfg!(target_arch = "x86_64") {
        let line_post = functions.get("instructions::line_post").map_or(&[][..], Vec::as_slice);
        tally.report("x86-64: ring, record, sfence, doorbell, sfence", x86_order(line_post));
    }
    Ok(())
}

/// Follows every call and jump from `root`.
fn reachable(functions: &Functions, root: &str) -> std::result::Result<(), String> {
    let mut seen = BTreeSet::new();
    let mut left = vec![format!("instructions::{root}")];
    while let Some(name) = left.pop() {
        if !seen.insert(name.clone()) {
            continue;
        }
        let Some(code) = functions.get(&name) else {
            if HARMLESS.iter().any(|harmless| name.starts_with(harmless)) {
                continue;
            }
            return Err(format!("it reaches {name}, which has no code in the program"));
        };
        for instruction in code.iter().filter(|i| i.starts_with("call") || i.starts_with('j')) {
            // A generic function's name has angle brackets of its own.
            let Some((_, target)) = instruction.split_once(" <") else {
                // A jump through a table stays in its function; a call through a register could go
                // anywhere.
                if instruction.starts_with("call") {
                    return Err(format!("{name} calls through a pointer: {instruction}"));
                }
                continue;
            };
            let target = target.strip_suffix('>').unwrap_or(target);
            let target = target.rsplit_once("+0x").map_or(target, |(function, _)| function);
            if let Some(bad) = FORBIDDEN.iter().find(|bad| target.contains(**bad)) {
                return Err(format!("{name} reaches {target} ({bad})"));
            }
            left.push(target.to_string());
        }
    }
    Ok(())
}

/// The doorbell path of `line_post`: stores to the ring, one 4-byte store to the record, a fence,
/// one 8-byte store to the UAR, a fence. The queue's base is the register that most operands in
/// memory start with; between the fences, only the doorbell's store may have another base.
fn x86_order(code: &[String]) -> std::result::Result<(), String> {
    let fences: Vec<usize> = (0..code.len()).filter(|&i| code[i].starts_with("sfence")).collect();
    let [first, second] = fences[..] else {
        return Err(format!("{} fences, and not two", fences.len()));
    };
    let before: Vec<u32> = code[..first].iter().filter_map(|i| stored_bytes(i)).collect();
    if before.last() != Some(&4) {
        return Err(format!("the store before the first fence is not the record's: {before:?}"));
    }
    if before.iter().filter(|&&bytes| bytes == 8).count() < 6 {
        return Err(format!("the WQE is not in the ring before the fence: {before:?}"));
    }
    let queue = commonest(code.iter().filter_map(|i| base(i)));
    let between = first..second;
    let (own, foreign): (Vec<&String>, Vec<&String>) =
        code[between].iter().filter(|i| stores(i)).partition(|i| base(i) == queue);
    if foreign.len() != 1 || stored_bytes(foreign[0]) != Some(8) {
        return Err(format!("the stores between the fences are not one doorbell: {foreign:?}"));
    }
    // The register for the next doorbell.
    if own.len() > 1 {
        return Err(format!("more than one store to the queue between the fences: {own:?}"));
    }
    Ok(())
}

/// The base register of an instruction's memory operand.
fn base(instruction: &str) -> Option<&str> {
    let register = instruction.split_once("(%")?.1.split([',', ')']).next()?;
    (register != "rsp").then_some(register)
}

/// Whether an instruction writes to memory that is not the stack: its last operand is in memory,
/// and it is not one of those that only read or compute there.
fn stores(instruction: &str) -> bool {
    const READERS: [&str; 7] = ["call", "cmp", "jmp", "nop", "prefetch", "push", "test"];
    instruction.ends_with(')')
        && base(instruction).is_some()
        && !READERS.iter().any(|reader| instruction.starts_with(reader))
}

/// The bytes that a plain store of a register writes (AT&T syntax); `None` for every other
/// instruction. Pushes and stores to the stack do not count.
fn stored_bytes(instruction: &str) -> Option<u32> {
    let (_, operands) = instruction.strip_prefix("mov")?.split_once(' ')?;
    let (source, target) = operands.split_once(',')?;
    let register = source.strip_prefix('%')?;
    if !target.ends_with(')') || target.contains("(%rsp") {
        return None;
    }
    match register {
        r if r.starts_with('e') => Some(4),
        r if r.ends_with('d') => Some(4),
        r if r.ends_with('w') => Some(2),
        r if r.ends_with('b') || r.ends_with('l') => Some(1),
        r if r.starts_with('r') => Some(8),
        _ => Some(2),
    }
}

/// Disassembles the program by objdump. Calls through the global offset table are rewritten as
/// direct calls.
fn disassemble(program: &Path) -> std::result::Result<Functions, String> {
    let code = objdump(program, &["-d", "--no-show-raw-insn", "-C"])?;
    let table = offset_table(&objdump(program, &["-R"])?);
    let mut names = BTreeMap::new();
    for line in code.lines() {
        if let Some((address, name)) = header(line) {
            names.insert(address, name);
        }
    }
    let mut functions = Functions::new();
    let mut current = "";
    for line in code.lines() {
        if let Some((_, name)) = header(line) {
            current = name;
        } else if let Some((_, instruction)) = line.split_once(":\t") {
            let words: Vec<&str> = instruction.split_whitespace().collect();
            let mut instruction = words.join(" ");
            if let Some((head, slot)) = instruction.split_once(" # ")
                && let Some(slot) = slot.split_whitespace().next()
                && let Some(name) = hexadecimal(slot).and_then(|slot| names.get(table.get(&slot)?))
            {
                instruction = format!("{head} <{name}>");
            }
            functions.entry(current.to_string()).or_default().push(instruction);
        }
    }
    Ok(functions)
}

/// `ADDRESS <NAME>:`
fn header(line: &str) -> Option<(u64, &str)> {
    let (address, name) = line.split_once(" <")?;
    Some((hexadecimal(address)?, name.strip_suffix(">:")?))
}

/// The slots of the global offset table that the loader fills with an address of the program
/// itself.
fn offset_table(relocations: &str) -> BTreeMap<u64, u64> {
    let entry = |line: &str| {
        let (slot, target) = line.split_once(' ')?;
        Some((hexadecimal(slot)?, hexadecimal(target.rsplit_once("*ABS*+0x")?.1)?))
    };
    relocations.lines().filter_map(entry).collect()
}

fn hexadecimal(digits: &str) -> Option<u64> {
    u64::from_str_radix(digits.trim(), 16).ok()
}

fn objdump(program: &Path, options: &[&str]) -> std::result::Result<String, String> {
    let output = Command::new("objdump")
        .args(options)
        .arg(program)
        .output()
        .map_err(|error| format!("objdump: {error} (binutils are not installed?)"))?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stored_bytes_follow_register_size() {
        assert_eq!(stored_bytes("mov %rsi,0x8(%r13,%r12,1)"), Some(8));
        assert_eq!(stored_bytes("mov %ecx,(%rdx)"), Some(4));
        assert_eq!(stored_bytes("mov %r10d,(%rdx)"), Some(4));
        assert_eq!(stored_bytes("mov %rsi,0x8(%rsp)"), None);
        assert_eq!(stored_bytes("mov (%rdi),%r13"), None);
        assert_eq!(stored_bytes("movabs $0x800000000,%rbp"), None);
        assert_eq!(stored_bytes("movzwl %r9w,%r13d"), None);
    }

    const POST: &str = "mov 0xa8(%rdi),%edx\ncmp %edx,0xac(%rdi)\nmov 0x28(%rdi),%r10\nmov \
        0x40(%rdi),%r9\nmov 0x48(%rdi),%rdx\nmov 0x88(%rdi),%r8\nmov 0x90(%rdi),%r8
        mov %rcx,0x10(%r11,%r10,1)\nmov %r8,0x18(%r11,%r10,1)\nmov %rax,0x20(%r11,%r10,1)
        mov %rsi,0x28(%r11,%r10,1)\nmov %rax,(%r11,%r10,1)\nmov %rcx,0x8(%r11,%r10,1)
        mov %ecx,(%rsi)\nsfence\nmov 0x70(%rdi),%rcx\nmov %rsi,0x70(%rdi)
        mov %rax,(%rcx)\nsfence\nret";

    fn order(text: &str) -> std::result::Result<(), String> {
        x86_order(&text.lines().map(|line| line.trim().to_string()).collect::<Vec<_>>())
    }

    #[test]
    fn order_allows_doorbell_store_only() {
        assert_eq!(order(POST), Ok(()));
        let with = |other: &str| order(&POST.replace("(%rcx)\nsfence", other));
        for second in ["mov %rdx,0x8(%rcx)", "mov %edx,(%r9)", "movq $0x0,(%r9)", "incl (%r9)"] {
            let why = with(&format!("(%rcx)\n{second}\nsfence")).unwrap_err();
            assert!(why.contains(second) && why.contains("not one doorbell"), "{why}");
        }
        let why = with("(%rcx)\nmov %esi,0x78(%rdi)\nsfence").unwrap_err();
        assert!(why.contains("more than one store to the queue"), "{why}");
        assert_eq!(with("(%rcx)\ncmp %rdx,(%r9)\nsfence"), Ok(()), "the instruction only reads");
        assert!(order(&POST.replace("mov %rax,(%rcx)", "mov %eax,(%rcx)")).is_err(), "4 bytes");
    }

    #[test]
    fn doorbell_before_fence_is_found() {
        let early = POST.replace("mov %rax,(%rcx)\n", "");
        let early = early.replace("mov %ecx,(%rsi)\n", "mov %ecx,(%rsi)\nmov %rax,(%r9)\n");
        assert!(order(&early).unwrap_err().contains("not the record's"));
        let before_the_record = POST.replace("mov %rax,(%rcx)\n", "");
        let before_the_record =
            before_the_record.replace("mov %ecx,(%rsi)", "mov %rax,(%r9)\nmov %ecx,(%rsi)");
        assert!(order(&before_the_record).unwrap_err().contains("not one doorbell"));
    }

    #[test]
    fn offset_table_maps_slot_to_function() {
        let table = offset_table("000000000005cf10 R_X86_64_RELATIVE  *ABS*+0x1e960\n");
        assert_eq!(table.get(&0x5cf10), Some(&0x1e960));
        assert_eq!(header("000000000001e960 <a::b<c>>:"), Some((0x1e960, "a::b<c>")));
    }

    #[test]
    fn indirect_call_to_panic_is_found() {
        let functions = Functions::from([
            ("instructions::line_post".into(), vec!["call 10 <other>".into(), "ret".into()]),
            ("other".into(), vec!["call 15 <queue::Queue<S>::complete_unmatched>".into()]),
            (
                "queue::Queue<S>::complete_unmatched".into(),
                vec!["jmp 20 <core::panicking::panic_fmt+0x10>".into()],
            ),
        ]);
        assert!(reachable(&functions, "line_post").unwrap_err().contains("panic_fmt"));
    }
}
