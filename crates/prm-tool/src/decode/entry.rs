//! Recognizes and formats a dump: CQEs, WQEs, commands. The dump's title and bytes show its kind.

use verbless_prm::CommandInfo;
use verbless_prm::command::Decoded;
use verbless_prm::dump::parse_log;
use verbless_prm::numbers::{CodeTable, Meaning};
use verbless_prm::reflect::View;

use super::super::runtime::Runtime;
use super::known::{Known, shortfall};
use super::paste::Dump;
use super::wqe::{self, WQEBB, hex};

/// Bytes of a CQE.
const CQE: usize = 64;

/// The kind of bytes that a dump's title announces.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Hint {
    Cqe,
    SendWqe,
    ReceiveWqe,
    None,
}

impl Hint {
    fn of(title: &str) -> Self {
        let title = title.to_ascii_lowercase();
        let has = |marks: &[&str]| marks.iter().any(|mark| title.contains(mark));
        if has(&["error rq"]) {
            Self::ReceiveWqe
        } else if has(&["wqe dump", "error sq", "error wqe", "wqe:", "dump wqe"]) {
            Self::SendWqe
        } else if has(&["cqe", "error cq", "completion with error"]) {
            Self::Cqe
        } else {
            Self::None
        }
    }
}

/// The kind of the bytes.
enum Kind {
    Cqes,
    SendWqes,
    ReceiveWqes,
    /// A command queue entry, with mailbox blocks or without.
    CommandEntry,
    /// The input of a command.
    Input(&'static CommandInfo),
    /// The head of a command's output: status and syndrome.
    Output,
    Unknown,
}

/// Formats the dump as lines.
pub(super) fn show(known: &Known<'_>, dump: &Dump) -> String {
    let hint = Hint::of(&dump.title);
    let mut out = String::new();
    let swapped = swap(&dump.bytes, dump.group);
    let (mut bytes, mut kind) = (dump.bytes.as_slice(), kind(known, &dump.bytes, hint));
    if let Some(swapped) = &swapped
        && !is_convincing(known, bytes, &kind)
    {
        let other = self::kind(known, swapped, hint);
        if is_convincing(known, swapped, &other) {
            (bytes, kind) = (swapped, other);
            out += &format!(
                "  the dump shows {}-byte words of a little-endian machine; bytes swapped\n",
                dump.group
            );
        }
    }
    for &(from, to) in &dump.missing {
        out += &format!("  bytes {from:#x} to {:#x} are not in the dump; read as 0\n", to - 1);
    }
    out += &match kind {
        Kind::Cqes => cqes(known, bytes),
        Kind::SendWqes => send_wqes(known, bytes, &dump.title),
        Kind::ReceiveWqes => receive_wqes(known, bytes),
        Kind::CommandEntry => command_entry(known, bytes),
        Kind::Input(command) => input(known, command, bytes, bytes.len(), None),
        Kind::Output => {
            let syndrome = u32::from_be_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]);
            format!(
                "  output of a command\n    {}\n    {}\n",
                known.code("command status", bytes[0].into()),
                known.firmware_syndrome(syndrome),
            ) + &rest(&bytes[8..])
        }
        Kind::Unknown => {
            let what = match bytes.first_chunk() {
                Some(&opcode) => format!("opcode {:#06x} is unknown", u16::from_be_bytes(opcode)),
                None => "too short".to_owned(),
            };
            let title = "not an error CQE, a WQE or a command";
            let mut out = format!("  {} bytes: {title} ({what}):\n", bytes.len());
            bytes.chunks(16).for_each(|row| out += &format!("    {}\n", hex(row)));
            out + "    --of NAME decodes another structure\n"
        }
    };
    out
}

/// The bytes with each group reversed.
fn swap(bytes: &[u8], group: usize) -> Option<Vec<u8>> {
    (group > 1 && bytes.len().is_multiple_of(group))
        .then(|| bytes.chunks(group).flat_map(|word| word.iter().rev().copied()).collect())
}

/// Whether the bytes show their kind without the title.
fn is_convincing(known: &Known<'_>, bytes: &[u8], kind: &Kind) -> bool {
    match kind {
        Kind::Cqes => bytes.chunks(CQE).any(|cqe| error_syndrome(known, cqe).is_some()),
        Kind::SendWqes => wqe::is_wqe(known.runtime, bytes),
        Kind::ReceiveWqes | Kind::Unknown => false,
        Kind::CommandEntry | Kind::Input(_) | Kind::Output => true,
    }
}

fn kind(known: &Known<'_>, bytes: &[u8], hint: Hint) -> Kind {
    let runtime = known.runtime;
    let is_error = |cqe: &[u8]| error_syndrome(known, cqe).is_some();
    let command = runtime.command_of(bytes).filter(|_| {
        // The dword after opcode and uid has reserved bits, then op_mod.
        bytes.get(4..6).is_none_or(|reserved| reserved == [0, 0])
    });
    match hint {
        Hint::Cqe if bytes.len() >= CQE => return Kind::Cqes,
        Hint::SendWqe if bytes.len() >= 16 => return Kind::SendWqes,
        Hint::ReceiveWqe => return Kind::ReceiveWqes,
        _ => {}
    }
    if bytes.len() >= CQE && bytes.len().is_multiple_of(CQE) && bytes.chunks(CQE).any(is_error) {
        return Kind::Cqes;
    }
    if is_command_entry(runtime, bytes) {
        return Kind::CommandEntry;
    }
    if let Some(command) = command {
        return Kind::Input(command);
    }
    if wqe::is_wqe(runtime, bytes) {
        return Kind::SendWqes;
    }
    let is_status = |status: u8| {
        let statuses = CodeTable::of_kind(known.code_tables, "command status");
        status != 0 && statuses.is_some_and(|it| it.get(status.into()).is_some())
    };
    match bytes {
        [status, 0, 0, 0, syndrome @ ..]
            if is_status(*status) && (4..=28).contains(&syndrome.len()) =>
        {
            Kind::Output
        }
        _ => Kind::Unknown,
    }
}

/// The syndrome of an error CQE; `None` if it is not an error CQE.
fn error_syndrome<'a>(known: &Known<'a>, cqe: &[u8]) -> Option<Meaning<'a>> {
    let (&syndrome, &last) = (cqe.get(0x37)?, cqe.get(0x3f)?);
    let is_error = matches!(last >> 4, 0xd | 0xe);
    is_error
        .then(|| CodeTable::of_kind(known.code_tables, "CQE syndrome")?.get(syndrome.into()))
        .flatten()
}

fn is_command_entry(runtime: &Runtime, bytes: &[u8]) -> bool {
    bytes.len() >= 64 && bytes[..4] == [7, 0, 0, 0] && runtime.command_of(&bytes[16..]).is_some()
}

/// A command queue entry without a title, as copied from a log.
fn command_entry(known: &Known<'_>, bytes: &[u8]) -> String {
    let mut text = "dump command entry INPUT\n".to_owned();
    for (at, row) in bytes.chunks(16).enumerate() {
        text += &format!("{:03x}: {}\n", at * 16, hex(row));
    }
    match parse_log(&text).as_deref() {
        Ok([dumped]) => {
            let Some(command) = known.runtime.command_of(&dumped.input) else { return rest(bytes) };
            input(known, command, &dumped.input, dumped.input_length, None)
        }
        _ => rest(bytes),
    }
}

/// A command with its input, and its output if present.
pub(super) fn input(
    known: &Known<'_>,
    command: &'static CommandInfo,
    input: &[u8],
    length: usize,
    output: Option<&[u8]>,
) -> String {
    let decoded = Decoded { command, input, output };
    let mut out = if known.all { format!("{decoded:#}") } else { decoded.to_string() };
    let short = shortfall(input.len(), length.max(command.input.bytes));
    if !short.is_empty() {
        out += &format!("  input{short}\n");
    }
    out
}

fn rest(bytes: &[u8]) -> String {
    if bytes.iter().all(|&byte| byte == 0) {
        return String::new();
    }
    format!("    then: {}\n", hex(bytes))
}

fn fields(known: &Known<'_>, name: &str, bytes: &[u8]) -> String {
    let Some(info) = known.runtime.structure(name) else { return String::new() };
    let view = View::new(info, bytes);
    let lines = if known.all { format!("{view:#}") } else { view.to_string() };
    let mut out = format!("  {name}\n");
    lines.lines().for_each(|line| out += &format!("    {line}\n"));
    let mut reserved = Vec::new();
    view.gaps(&mut |bit, width| {
        let (first, end) = (bit / 8, (bit + width).div_ceil(8).min(bytes.len()));
        let is_whole = bit.is_multiple_of(8) && width.is_multiple_of(8);
        let set = |&at: &usize| bytes[at] != 0;
        if let (true, Some(from), Some(last)) =
            (is_whole, (first..end).find(set), (first..end).rev().find(set))
        {
            reserved.push((from, &bytes[from..=last]));
        }
    });
    for (at, bytes) in reserved {
        out += &format!("    reserved bytes from {at:#04x} are not 0: {}", hex(bytes));
        out += match bytes.windows(4).any(|word| word == b"seen") {
            true => " (DPDK writes \"seen\" into a CQE that it has dumped)\n",
            false => "\n",
        };
    }
    out
}

/// Formats CQEs by opcode; a run of CQEs without errors takes one line unless `all` is set.
pub(super) fn cqes(known: &Known<'_>, bytes: &[u8]) -> String {
    let mut out = String::new();
    let many = bytes.len() >= 2 * CQE;
    let mut run: Option<(usize, usize, String)> = None;
    let end_run = |out: &mut String, run: &mut Option<(usize, usize, String)>| {
        if let Some((first, last, what)) = run.take() {
            *out += &match first == last {
                true => format!("  entry {first}: {what}\n"),
                false => format!("  entries {first} to {last}: {what}\n"),
            };
        }
    };
    for (index, cqe) in bytes.chunks(CQE).enumerate() {
        if cqe.len() < CQE {
            end_run(&mut out, &mut run);
            out += &format!("  only {} of {CQE} bytes of a CQE: {}\n", cqe.len(), hex(cqe));
            continue;
        }
        let opcode = cqe[CQE - 1] >> 4;
        let is_error = matches!(opcode, 0xd | 0xe);
        if many && !is_error && !known.all {
            let what = plain_cqe(known, cqe);
            match &mut run {
                Some((_, last, same)) if *same == what => *last = index,
                _ => {
                    end_run(&mut out, &mut run);
                    run = Some((index, index, what));
                }
            }
            continue;
        }
        end_run(&mut out, &mut run);
        if many {
            out += &format!("  entry {index}:\n");
        }
        out += &if is_error { error_cqe(known, cqe) } else { other_cqe(known, cqe) };
    }
    end_run(&mut out, &mut run);
    out
}

fn opcode_name(known: &Known<'_>, opcode: u8) -> &'static str {
    let opcodes = known.runtime.enumeration("cqe_opcode");
    opcodes.and_then(|it| it.name_of(opcode.into())).unwrap_or("an unknown opcode")
}

/// One line about a CQE without an error.
fn plain_cqe(known: &Known<'_>, cqe: &[u8]) -> String {
    let last = cqe[CQE - 1];
    match last >> 4 {
        0xf => "not written yet (INVALID)".to_owned(),
        _ if cqe.iter().all(|&byte| byte == 0) => "zeros".to_owned(),
        _ if is_title(cqe) => {
            let minis = u32::from_be_bytes([cqe[0x2c], cqe[0x2d], cqe[0x2e], cqe[0x2f]]);
            format!("title of {minis} mini CQEs, which follow (COMPRESSED)")
        }
        _ if last >> 2 & 3 == 3 => "part of a block of mini CQEs (COMPRESSED)".to_owned(),
        opcode => {
            let number = u32::from_be_bytes([0, cqe[0x39], cqe[0x3a], cqe[0x3b]]);
            format!("no error ({}), of queue {number:#08x}", opcode_name(known, opcode))
        }
    }
}

/// Whether it is the title of mini CQEs in the basic layout. A block of the enhanced layout has the
/// same format, but neither a queue number or flow tag nor a WQE counter.
fn is_title(cqe: &[u8]) -> bool {
    cqe[CQE - 1] >> 2 & 3 == 3 && cqe[0x38..0x3e] != [0; 6]
}

fn other_cqe(known: &Known<'_>, cqe: &[u8]) -> String {
    let last = cqe[CQE - 1];
    let format = last >> 2 & 3;
    let name = match last >> 4 {
        0xc => "cqe_signature_error",
        0x6 => "cqe_tag_matching",
        0x5 => "cqe_resize",
        _ if format == 3 && !is_title(cqe) => "mini_cqe_block",
        _ if format == 1 => "cqe_inline_32",
        _ => "cqe",
    };
    format!("  CQE: {}\n", plain_cqe(known, cqe)) + &fields(known, name, cqe)
}

fn error_cqe(known: &Known<'_>, cqe: &[u8]) -> String {
    let (syndrome, vendor, last) = (cqe[0x37], cqe[0x36], cqe[CQE - 1]);
    let is_sender = last >> 4 == 0xd;
    let side = if is_sender { "send" } else { "receive" };
    let mut out = format!(
        "  error CQE of the {side} side ({})\n    {}\n    {}\n    {}\n",
        opcode_name(known, last >> 4),
        known.code("CQE syndrome", syndrome.into()),
        known.code_name("ibv_wc_status", wc_status(syndrome)),
        known.vendor_syndrome(vendor.into()),
    );
    let number = u32::from_be_bytes([0, cqe[0x39], cqe[0x3a], cqe[0x3b]]);
    let counter = u16::from_be_bytes([cqe[0x3c], cqe[0x3d]]);
    out += &format!("    queue {number:#08x}, WQE counter {counter:#06x} ({counter})");
    if is_sender {
        let names = known.runtime.enumeration("wqe_opcode");
        let name = names.and_then(|it| it.name_of(cqe[0x38].into()));
        out += &format!(", WQE opcode {} ({:#04x})", name.unwrap_or("unknown"), cqe[0x38]);
    }
    out.push('\n');
    out + &fields(known, "cqe_error", cqe)
}

/// The `ibv_wc_status` to which libmlx5 and mlx5_ib map a CQE syndrome (`mlx5_handle_error_cqe`).
pub(super) fn wc_status(syndrome: u8) -> u64 {
    match syndrome {
        0x01 => 1,
        0x02 => 2,
        0x04 => 4,
        0x05 => 5,
        0x06 => 6,
        0x10 => 7,
        0x11 => 8,
        0x12 => 9,
        0x13 => 10,
        0x14 => 11,
        0x15 => 12,
        0x16 => 13,
        0x22 => 16,
        _ => 21,
    }
}

/// Formats consecutive WQEs, each at a WQEBB boundary.
fn send_wqes(known: &Known<'_>, bytes: &[u8], title: &str) -> String {
    // mlx5e prints "WQE DUMP", DPDK's Ethernet queues "Error SQ".
    let is_ethernet = ["WQE DUMP", "Error SQ"].iter().any(|mark| title.contains(mark));
    let mut out = String::new();
    let mut at = 0;
    let mut zeros: Option<usize> = None;
    let end_zeros = |out: &mut String, zeros: &mut Option<usize>, at: usize| {
        if let Some(from) = zeros.take() {
            *out += &format!("  zeros from {from:#x} to {:#x}\n", at - 1);
        }
    };
    while at < bytes.len() {
        let here = &bytes[at..];
        let block = &here[..here.len().min(WQEBB)];
        let length = wqe::length(known.runtime, here).min(here.len());
        if block.iter().all(|&byte| byte == 0) {
            zeros.get_or_insert(at);
            at += block.len();
        } else if length > 0 {
            end_zeros(&mut out, &mut zeros, at);
            out += &format!("  send WQE at {at:#x}: {}\n", opcode_of(known, here));
            out += &wqe::show(known.runtime, &here[..length], is_ethernet, known.all);
            at += length;
        } else {
            end_zeros(&mut out, &mut zeros, at);
            out += &format!("  at {at:#x}, no control segment: {}\n", hex(block));
            at += block.len();
        }
    }
    end_zeros(&mut out, &mut zeros, at);
    out
}

fn opcode_of(known: &Known<'_>, wqe: &[u8]) -> String {
    let opcode = wqe[3];
    let names = known.runtime.enumeration("wqe_opcode");
    let name = names.and_then(|it| it.name_of(opcode.into())).unwrap_or("unknown");
    format!("{name} ({opcode:#04x})")
}

/// Formats data segments of a receive queue; a run of equal lengths and keys takes one line.
fn receive_wqes(known: &Known<'_>, bytes: &[u8]) -> String {
    let mut out = String::from("  receive WQEs, read as data segments of 16 bytes\n");
    let mut run: Option<(usize, usize, String)> = None;
    let chunks = bytes.chunks(16).enumerate();
    for (index, segment) in chunks.chain([(bytes.len(), [].as_slice())]) {
        let what = match segment {
            [] => String::new(),
            _ if segment.len() < 16 => format!("only {} bytes: {}", segment.len(), hex(segment)),
            _ if segment.iter().all(|&byte| byte == 0) => "zeros".to_owned(),
            _ => {
                let word =
                    |at: usize| u32::from_be_bytes(*segment[at..].first_chunk().unwrap_or(&[0; 4]));
                let (length, lkey) = (word(0) & 0x7fff_ffff, word(4));
                match known.all {
                    true => {
                        format!("{length} bytes, lkey {lkey:#x}, at {:#x}{:08x}", word(8), word(12))
                    }
                    false => format!("{length} bytes, lkey {lkey:#x}"),
                }
            }
        };
        match &mut run {
            Some((_, last, same)) if *same == what => *last = index,
            _ => {
                if let Some((first, last, what)) = run.take() {
                    out += &match first == last {
                        true => format!("    {first}: {what}\n"),
                        false => format!("    {first} to {last}: {what}\n"),
                    };
                }
                run = Some((index, index, what));
            }
        }
    }
    out
}
