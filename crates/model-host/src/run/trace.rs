//! The output of `--trace`: one line per ioctl and per command, in strace's style.
//!
//! ```text
//!   [     0.012340] function 0 CREATE_CQ(cq_context.log_cq_size=8, …) -> cqn=0x400
//!   1234 uverbs0 ioctl CQ_CREATE(cqe=255, user_handle=…, vector=0) -> handle=2, resp_cqe=255
//! ```
//!
//! A command's fields come from the PRM description. Fields that are 0 are omitted, and lists are
//! truncated.

use std::fmt::Write as _;

use nix::errno::Errno;
use verbless_prm::reflect::{Kind, Leaf, Path, StructInfo, View};
use verbless_prm::{CommandInfo, CommandStatus};

use verbless_model::Executed;
use verbless_model_kernel::remote::IoctlDescription;

/// Maximum number of list elements that are printed.
const MAX_LIST_ELEMENTS: usize = 2;
/// The smallest number that is printed in hexadecimal.
const FIRST_HEX: u64 = 10;

/// Formats a command.
pub(super) fn command(executed: &Executed<'_>) -> String {
    let opcode = executed.input.first_chunk().map_or(0, |bytes| u16::from_be_bytes(*bytes));
    let mut line = format!("[{:>13.6}] function {} ", executed.at.as_secs_f64(), executed.function);
    let Some(info) = CommandInfo::by_opcode(opcode) else {
        let _ = write!(line, "opcode {opcode:#x}, {} bytes", executed.input.len());
        return line;
    };
    let status = executed.output.first().copied().unwrap_or_default();
    let input = fields(info.input, executed.input);
    let _ = write!(line, "{}({input}) -> ", info.name);
    if status == 0 {
        let output = fields(info.output, executed.output);
        line.push_str(if output.is_empty() { "ok" } else { &output });
    } else {
        let syndrome = executed.output.get(4..8).and_then(|bytes| bytes.first_chunk());
        let syndrome = syndrome.map_or(0, |bytes| u32::from_be_bytes(*bytes));
        let status = CommandStatus(status);
        let _ = write!(line, "refused: {status:?}, syndrome {syndrome:#x}");
    }
    line
}

/// Formats an ioctl. The lines of its commands precede this one.
pub(super) fn ioctl(
    tid: u32,
    node: &str,
    words: &IoctlDescription,
    result: &Result<(), Errno>,
) -> String {
    let IoctlDescription { name, request, response } = words;
    let answer = match result {
        Ok(()) if response.is_empty() => "0".into(),
        Ok(()) => response.clone(),
        Err(errno) => format!("{errno:?} ({})", errno.desc()),
    };
    format!("{tid} {node} ioctl {name}({request}) -> {answer}")
}

/// The fields of a structure that are not 0.
fn fields(info: &'static StructInfo, bytes: &[u8]) -> String {
    let mut text = String::new();
    let mut left_out = 0;
    View::new(info, bytes).leaves(&mut |path: &Path<'_>, leaf: Leaf| {
        // The line starts with the opcode's name.
        if leaf.width > 64 || path.field.name == "opcode" {
            return;
        }
        let value = verbless_prm::bits::get(bytes, leaf.bit, leaf.width);
        if value == 0 {
            return;
        }
        if path.field.count != 1 && path.index >= MAX_LIST_ELEMENTS {
            left_out += 1;
            return;
        }
        append_omitted(&mut text, &mut left_out);
        let comma = if text.is_empty() { "" } else { ", " };
        let name = qualified_name(path);
        let named = match path.field.kind {
            Kind::Enum(names) => names.name_of(value),
            _ => None,
        };
        let _ = match (named, value) {
            (Some(word), _) => write!(text, "{comma}{name}={word}"),
            (None, 0..FIRST_HEX) => write!(text, "{comma}{name}={value}"),
            (None, _) => write!(text, "{comma}{name}={value:#x}"),
        };
    });
    append_omitted(&mut text, &mut left_out);
    text
}

/// Appends the number of omitted list elements, and resets it.
fn append_omitted(text: &mut String, left_out: &mut u32) {
    if *left_out > 0 {
        let _ = write!(text, ", … {left_out} more");
        *left_out = 0;
    }
}

/// A field's name, qualified by its structures.
fn qualified_name(path: &Path<'_>) -> String {
    let own = match path.field.count {
        1 => path.field.name.to_string(),
        _ => format!("{}[{}]", path.field.name, path.index),
    };
    match path.parent {
        Some(parent) => format!("{}.{own}", qualified_name(parent)),
        None => own,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use verbless_prm::{AllocPdIn, AllocPdOut, CqeSize, CreateCqIn, ManagePagesIn};

    use super::*;

    #[test]
    fn command_trace_line_names_fields_and_status() {
        let mut input = AllocPdIn::new();
        input.set_uid(3);
        let mut output = AllocPdOut::default();
        output.set_pd(0x20);
        let at = Duration::from_millis(12);
        let line =
            |output: &[u8]| command(&Executed { function: 1, at, input: input.as_bytes(), output });
        assert_eq!(
            line(output.as_bytes()),
            "[     0.012000] function 1 ALLOC_PD(uid=3) -> pd=0x20"
        );
        let mut refused = [0; 16];
        (refused[0], refused[7]) = (8, 0x12);
        let text = line(&refused);
        assert!(text.ends_with("refused: LIM, syndrome 0x12"), "{text}");
        assert!(line(&[0; 16]).ends_with("-> ok"));
        let unknown = Executed { function: 0, at, input: &[0xff; 16], output: &[0; 16] };
        assert!(command(&unknown).ends_with("opcode 0xffff, 16 bytes"));
    }

    #[test]
    fn command_trace_prints_small_numbers_in_decimal() {
        let line = |set: &dyn Fn(&mut CreateCqIn)| {
            let mut input = CreateCqIn::new();
            set(&mut input);
            let at = Duration::ZERO;
            let input = input.as_bytes();
            command(&Executed { function: 0, at, input, output: &[0; 16] })
        };
        for (eqn, expected) in [(9, "c_eqn_or_apu_element=9)"), (10, "c_eqn_or_apu_element=0xa)")] {
            let text = line(&|input| {
                input.cq_context_mut().set_c_eqn_or_apu_element(eqn);
            });
            assert!(text.contains(expected), "{text}");
        }
        let text = line(&|input| {
            input.cq_context_mut().set_cqe_sz(CqeSize::BYTES_128);
        });
        assert!(text.contains("cq_context.cqe_sz=BYTES_128"), "{text}");
    }

    #[test]
    fn trace_line_shortens_lists() {
        let mut input = ManagePagesIn::new();
        input.set_op_mod(ManagePagesIn::ALLOCATION_SUCCESS).set_input_num_entries(9);
        let mut bytes = input.as_bytes().to_vec();
        bytes.extend((1..=9_u64).flat_map(|page| (page << 12).to_be_bytes()));
        let executed =
            Executed { function: 0, at: Duration::ZERO, input: &bytes, output: &[0; 16] };
        let text = command(&executed);
        assert!(text.contains("pas[0]=0x1000, pas[1]=0x2000, … 7 more) -> ok"), "{text}");
    }

    #[test]
    fn ioctl_trace_line_ends_with_errno() {
        let words = IoctlDescription {
            name: "DEVX_UMEM_REG".into(),
            request: "len=64".into(),
            response: "handle=2".into(),
        };
        assert_eq!(
            ioctl(7, "uverbs0", &words, &Ok(())),
            "7 uverbs0 ioctl DEVX_UMEM_REG(len=64) -> handle=2"
        );
        let nothing = IoctlDescription {
            name: words.name.clone(),
            request: "len=64".into(),
            ..Default::default()
        };
        let done = ioctl(7, "uverbs0", &nothing, &Ok(()));
        assert_eq!(done, "7 uverbs0 ioctl DEVX_UMEM_REG(len=64) -> 0");
        let refused = ioctl(7, "uverbs1", &words, &Err(Errno::EINVAL));
        assert_eq!(refused, "7 uverbs1 ioctl DEVX_UMEM_REG(len=64) -> EINVAL (Invalid argument)");
    }
}
