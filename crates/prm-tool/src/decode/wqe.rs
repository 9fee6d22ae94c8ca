//! Decodes a send WQE to its segments.
//!
//! The opcode and the queue's service select the segments after the control segment, but no byte of
//! the WQE states the service: an address vector, an Ethernet segment or data may follow a SEND's
//! control segment. The decoder chooses a plausible layout and prints its assumption.

use verbless_prm::reflect::View;

use super::super::runtime::Runtime;

/// Bytes of an octoword, the unit of `ds`, and of a WQEBB.
const OCTOWORD: usize = 16;
pub(super) const WQEBB: usize = 64;

mod opcode {
    pub(super) const NOP: u8 = 0x00;
    pub(super) const SEND_INVALIDATE: u8 = 0x01;
    pub(super) const WRITE: u8 = 0x08;
    pub(super) const WRITE_IMM: u8 = 0x09;
    pub(super) const SEND: u8 = 0x0a;
    pub(super) const SEND_IMM: u8 = 0x0b;
    pub(super) const LSO: u8 = 0x0e;
    pub(super) const WAIT: u8 = 0x0f;
    pub(super) const READ: u8 = 0x10;
    pub(super) const COMPARE_SWAP: u8 = 0x11;
    pub(super) const FETCH_ADD: u8 = 0x12;
    pub(super) const MASKED_COMPARE_SWAP: u8 = 0x14;
    pub(super) const MASKED_FETCH_ADD: u8 = 0x15;
    pub(super) const SEND_ENABLE: u8 = 0x17;
    pub(super) const FMR: u8 = 0x19;
    pub(super) const LOCAL_INVALIDATE: u8 = 0x1b;
    pub(super) const SET_PSV: u8 = 0x20;
    pub(super) const GET_PSV: u8 = 0x21;
    pub(super) const CHECK_PSV: u8 = 0x22;
    pub(super) const DUMP: u8 = 0x23;
    pub(super) const UMR: u8 = 0x25;
    pub(super) const TAG_MATCHING: u8 = 0x28;
    pub(super) const ENHANCED_MPSW: u8 = 0x29;
    pub(super) const FLOW_TABLE_ACCESS: u8 = 0x2c;
    pub(super) const ACCESS_ASO: u8 = 0x2d;
    pub(super) const MMO: u8 = 0x2f;
}

/// The control segment of a WQE.
struct Control {
    op_mod: u8,
    opcode: u8,
    qpn: u32,
    /// Length of the WQE in bytes.
    length: usize,
}

impl Control {
    fn of(runtime: &Runtime, bytes: &[u8]) -> Option<Self> {
        let view = View::new(runtime.structure("ctrl_segment")?, bytes.get(..OCTOWORD)?);
        let get = |field| view.get(field);
        let this = Self {
            op_mod: get("opmod")? as u8,
            opcode: get("opcode")? as u8,
            qpn: get("qpn")? as u32,
            length: get("ds")? as usize * OCTOWORD,
        };
        let known = runtime.enumeration("wqe_opcode")?.name_of(this.opcode.into()).is_some();
        (known && this.length > 0).then_some(this)
    }
}

/// Whether the bytes begin with a control segment.
pub(super) fn is_wqe(runtime: &Runtime, bytes: &[u8]) -> bool {
    let Some(control) = Control::of(runtime, bytes) else { return false };
    let reserved = bytes[7] & 0xc0 | bytes[11] & 0x11;
    reserved == 0 && control.qpn != 0 && (control.opcode != opcode::NOP || control.length == 16)
}

/// Bytes of the WQE at the start of `bytes`, in whole WQEBBs.
pub(super) fn length(runtime: &Runtime, bytes: &[u8]) -> usize {
    Control::of(runtime, bytes).map_or(0, |it| it.length).next_multiple_of(WQEBB)
}

/// The kind of a segment.
enum WqePart {
    /// A structure of this name.
    Named(&'static str, usize),
    /// Bytes, and their description.
    Bytes(&'static str, usize),
}

impl WqePart {
    fn length(&self) -> usize {
        match self {
            Self::Named(_, length) | Self::Bytes(_, length) => *length,
        }
    }
}

/// The service assumed for a WQE.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Service {
    Connected,
    Datagram,
    Ethernet,
}

/// The WQE in lines, each indented by two spaces; `is_ethernet` comes from the dump's title.
pub(super) fn show(runtime: &Runtime, bytes: &[u8], is_ethernet: bool, all: bool) -> String {
    let Some(control) = Control::of(runtime, bytes) else { return String::new() };
    let whole = bytes.len().min(control.length);
    let mut out = String::new();
    let body = &bytes[OCTOWORD.min(whole)..whole];
    let (service, parts) = layout(&control, body, is_ethernet);
    if matches!(control.opcode, opcode::SEND | opcode::SEND_IMM | opcode::SEND_INVALIDATE)
        || service != Service::Connected
    {
        out += match service {
            Service::Connected => "  assumed: WQE of a connected queue (data follows)\n",
            Service::Datagram => "  assumed: WQE of a datagram queue (an address vector follows)\n",
            Service::Ethernet => {
                "  assumed: WQE of an Ethernet queue (an Ethernet segment follows)\n"
            }
        };
    }
    let mut at = 0;
    let put = |name: &str, from: usize, length: usize| match bytes
        .get(from..(from + length).min(whole))
    {
        Some(slice) if !slice.is_empty() => segment(runtime, name, from, slice, all),
        _ => String::new(),
    };
    out += &put("ctrl_segment", 0, OCTOWORD);
    // Parameters of an MMO operation are imm of the control segment and the first dword after it.
    if control.opcode == opcode::MMO {
        out += &match control.op_mod {
            2 => put("mmo_compress_control", 12, 4),
            3 => put("mmo_decompress_control", 12, 4),
            4 => put("mmo_regex_control", 12, 8),
            6 => put("mmo_crypto_control", 12, 8),
            _ => String::new(),
        };
    }
    for part in &parts {
        let from = OCTOWORD + at;
        match part {
            WqePart::Named(name, length) => out += &put(name, from, *length),
            WqePart::Bytes(what, length) => {
                let end = (from + length).min(whole);
                if let Some(slice) = bytes.get(from..end) {
                    out += &format!("  +{from:#04x} {what}: {}\n", hex(slice));
                }
            }
        }
        at += part.length();
    }
    if control.length > bytes.len() {
        out += &format!("  only {} of its {} bytes are here\n", bytes.len(), control.length);
    }
    let end = (control.length.next_multiple_of(WQEBB)).min(bytes.len());
    if let Some(rest) = bytes.get(control.length..end)
        && rest.iter().any(|&byte| byte != 0)
    {
        out += &format!("  after it, up to the next WQEBB: {}\n", hex(rest));
    }
    out
}

fn segment(runtime: &Runtime, name: &str, from: usize, bytes: &[u8], all: bool) -> String {
    let Some(info) = runtime.structure(name) else { return String::new() };
    let mut out = format!("  +{from:#04x} {name}\n");
    let view = View::new(info, bytes);
    let lines = if all { format!("{view:#}") } else { view.to_string() };
    lines.lines().for_each(|line| out += &format!("    {line}\n"));
    if let Some((bit, width)) = view.nonzero_reserved() {
        out += &format!("    reserved bits are not 0: {width} from bit {bit}\n");
    }
    out
}

/// Bytes in groups of four.
pub(super) fn hex(bytes: &[u8]) -> String {
    let words = bytes.chunks(4).map(|word| word.iter().map(|byte| format!("{byte:02x}")).collect());
    words.collect::<Vec<String>>().join(" ")
}

/// The segments after the control segment.
fn layout(control: &Control, body: &[u8], is_ethernet: bool) -> (Service, Vec<WqePart>) {
    let sends = matches!(control.opcode, opcode::SEND | opcode::SEND_IMM | opcode::SEND_INVALIDATE);
    let is_xrc = has_xrc_segment(body);
    let service = match control.opcode {
        opcode::LSO | opcode::ENHANCED_MPSW => Service::Ethernet,
        opcode::SEND if is_ethernet => Service::Ethernet,
        opcode::FMR | opcode::SET_PSV..=opcode::TAG_MATCHING => Service::Connected,
        opcode::FLOW_TABLE_ACCESS..=opcode::MMO => Service::Connected,
        _ if has_address_vector(body) => Service::Datagram,
        _ if sends && !is_data(body) && !is_xrc && has_ethernet_segment(body) => Service::Ethernet,
        _ => Service::Connected,
    };
    let mut parts = match service {
        Service::Connected => Vec::new(),
        Service::Datagram => vec![WqePart::Named("datagram_segment", 0x30)],
        Service::Ethernet => ethernet(body),
    };
    let carries_xrc = sends || matches!(control.opcode, opcode::WRITE..=opcode::FETCH_ADD);
    if service == Service::Connected && carries_xrc && is_xrc {
        parts.push(WqePart::Named("xrc_segment", 16));
    }
    let at = parts.iter().map(WqePart::length).sum::<usize>();
    let rest = body.get(at..).unwrap_or_default();
    match control.opcode {
        opcode::WRITE | opcode::WRITE_IMM | opcode::READ => {
            parts.push(WqePart::Named("raddr_segment", 16));
        }
        opcode::COMPARE_SWAP | opcode::FETCH_ADD => {
            parts.extend([
                WqePart::Named("raddr_segment", 16),
                WqePart::Named("atomic_segment", 16),
            ]);
        }
        opcode::MASKED_COMPARE_SWAP | opcode::MASKED_FETCH_ADD => {
            let is_swap = control.opcode == opcode::MASKED_COMPARE_SWAP;
            parts.push(WqePart::Named("raddr_segment", 16));
            // The lower bits of op_mod are the size of an operand: 4 bytes, 8, 16 and so on.
            parts.push(match (is_swap, control.op_mod & 7) {
                (true, 0) => WqePart::Named("masked_swap_32_segment", 16),
                (true, 1) => WqePart::Named("masked_atomic_segment", 32),
                (false, 0) => WqePart::Named("masked_add_32_segment", 16),
                (false, 1) => WqePart::Named("masked_add_64_segment", 16),
                _ => {
                    let at = parts.iter().map(WqePart::length).sum::<usize>();
                    let what = "operands of more than 8 bytes, and what follows";
                    parts.push(WqePart::Bytes(what, body.len().saturating_sub(at)));
                    return (service, parts);
                }
            });
        }
        opcode::WAIT if control.op_mod == 0 => parts.push(WqePart::Named("wait_cq_segment", 16)),
        opcode::WAIT => parts.push(WqePart::Named("wait_data_segment", 32)),
        opcode::SEND_ENABLE => parts.push(WqePart::Named("send_enable_segment", 16)),
        opcode::FMR => parts.push(WqePart::Named("fmr_segment", 48)),
        opcode::SET_PSV if control.op_mod == 0 => parts.push(WqePart::Named("set_psv_segment", 16)),
        opcode::SET_PSV => parts.push(WqePart::Named("tls_progress_segment", 16)),
        opcode::GET_PSV => parts.push(WqePart::Named("get_psv_segment", 48)),
        opcode::CHECK_PSV => parts.push(WqePart::Named("check_psv_segment", 48)),
        opcode::TAG_MATCHING => parts.push(WqePart::Named("tag_matching_segment", 32)),
        opcode::MMO => parts.push(WqePart::Named("mmo_segment", 16)),
        opcode::ACCESS_ASO => {
            parts.push(WqePart::Named("aso_ctrl_segment", 48));
            if rest.len() > 48 {
                parts.push(WqePart::Named(aso_data(control.op_mod), 64));
            }
            return (service, parts);
        }
        opcode::FLOW_TABLE_ACCESS => {
            parts.push(WqePart::Named("table_access_ctrl_segment", 48));
            let data = match control.op_mod {
                0 => "table_access_ste_segment",
                _ => "table_access_argument_segment",
            };
            let count = rest.len().saturating_sub(48).div_ceil(64);
            parts.extend((0..count).map(|_| WqePart::Named(data, 64)));
            return (service, parts);
        }
        opcode::UMR => {
            parts.extend([
                WqePart::Named("umr_ctrl_segment", 48),
                WqePart::Named("mkey_context", 64),
            ]);
            let after = rest.get(48 + 64..).unwrap_or_default();
            let is_inline = rest.first().is_some_and(|flags| flags & 0x80 != 0);
            if control.op_mod != 0 {
                parts.push(WqePart::Named("tls_static_params", 64));
                return (service, parts);
            }
            if is_inline {
                parts.extend(umr_inline(rest, after));
                return (service, parts);
            }
        }
        opcode::SEND | opcode::SEND_IMM | opcode::SEND_INVALIDATE => {}
        opcode::LSO | opcode::ENHANCED_MPSW | opcode::NOP => {}
        opcode::DUMP | opcode::LOCAL_INVALIDATE => {}
        _ => {
            let length = body.len().saturating_sub(at);
            if length > 0 {
                parts.push(WqePart::Bytes("segments that prm/ does not describe", length));
            }
            return (service, parts);
        }
    }
    let mut at = parts.iter().map(WqePart::length).sum::<usize>();
    while let Some(rest) = body.get(at..).filter(|rest| !rest.is_empty()) {
        let before = at;
        for part in data(rest) {
            at += part.length();
            parts.push(part);
        }
        if at == before {
            break;
        }
    }
    (service, parts)
}

/// The layout of an object's state that an ACCESS_ASO WQE writes, by its op_mod.
fn aso_data(op_mod: u8) -> &'static str {
    match op_mod {
        0 => "ipsec_aso",
        1 => "conn_track_aso",
        2 => "aso_meter_data",
        5 => "macsec_aso",
        _ => "aso_data_segment",
    }
}

/// Inline translation entries of a UMR WQE and the byte stream formats after them. `control` begins
/// with the UMR control segment; `after` is what follows the mkey context.
fn umr_inline(control: &[u8], after: &[u8]) -> Vec<WqePart> {
    // Second dword of a strided layout's head: `op` of umr_repeat_block_segment.
    const REPEAT: u32 = 0x400;
    const BSF: usize = 64;
    let octowords = |at| word(control, at).map_or(0, |it| (it & 0xffff) as usize);
    // Bit BSF_EN of mkey_mask: the dword at 4 then holds bsf_octowords, not xlt_offset.
    let has_bsf = control[0] & 0x10 == 0 && word(control, 12).is_some_and(|it| it & 0x1000 != 0);
    let bsf = if has_bsf { (octowords(4) * OCTOWORD).min(after.len()) } else { 0 };
    let entries = &after[..after.len() - bsf];
    let mut parts = Vec::new();
    if word(entries, 4) == Some(REPEAT) {
        parts.push(WqePart::Named("umr_repeat_block_segment", OCTOWORD));
        let count = word(entries, 12).map_or(0, |it| (it & 0xffff) as usize);
        let count = count.min((entries.len() / OCTOWORD).saturating_sub(1));
        parts.extend((0..count).map(|_| WqePart::Named("umr_repeat_entry", OCTOWORD)));
        let padding = entries.len().saturating_sub((count + 1) * OCTOWORD);
        if padding > 0 {
            parts.push(WqePart::Bytes("padding of the translation entries", padding));
        }
    } else {
        let count = entries.len() / OCTOWORD;
        parts.extend((0..count).map(|_| WqePart::Named("klm", OCTOWORD)));
    }
    parts.extend(after[entries.len()..].chunks(BSF).map(|it| match it[0] & 3 {
        // Kind of the format (bsf_type): 1 is encryption.
        1 => WqePart::Named("crypto_bsf", BSF),
        _ => WqePart::Named("bsf", BSF),
    }));
    parts
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// Whether the body begins with an address vector, which has its extended bit set.
fn has_address_vector(body: &[u8]) -> bool {
    body.len() >= 0x30 && word(body, 8).is_some_and(|word| word >> 24 == 0x80)
}

/// Whether the body begins with an XRC segment: the number of an SRQ, then zeros. A data or a
/// remote address segment has a key or an address there.
fn has_xrc_segment(body: &[u8]) -> bool {
    let srqn = word(body, 0).unwrap_or(0);
    let zeros = body.get(4..16);
    (1..1 << 24).contains(&srqn) && zeros.is_some_and(|it| it.iter().all(|&byte| byte == 0))
}

/// Whether the body may be data segments: a length and a key each, or inline bytes that fit.
fn is_data(body: &[u8]) -> bool {
    match (word(body, 0), word(body, 4)) {
        (Some(head), _) if head >> 31 == 1 => (head & 0x3ff) as usize + 4 <= body.len(),
        (Some(head), Some(lkey)) => head != 0 && lkey != 0,
        (None, _) => body.is_empty(),
        _ => false,
    }
}

/// Whether the body may be an Ethernet segment with inlined headers or none, then data.
fn has_ethernet_segment(body: &[u8]) -> bool {
    let length = ethernet(body).iter().map(WqePart::length).sum::<usize>();
    body.len() >= 16 && length <= body.len() && is_data(&body[length..])
}

fn ethernet(body: &[u8]) -> Vec<WqePart> {
    let mut parts = vec![WqePart::Named("eth_segment", 16)];
    let inlined = word(body, 12).map_or(0, |word| (word >> 16) as usize);
    // The first two bytes are in the segment; bit 15 means that a VLAN tag is inserted instead.
    if inlined & 0x8000 == 0 && inlined > 2 {
        parts.push(WqePart::Bytes(
            "the rest of the inlined headers",
            (inlined - 2).next_multiple_of(16),
        ));
    }
    parts
}

/// The data segment at the start of `rest`: a pointer, or inline data.
fn data(rest: &[u8]) -> Vec<WqePart> {
    match word(rest, 0) {
        Some(head) if head >> 31 == 1 => {
            let length = (head & 0x3ff) as usize;
            let padded = (length + 4).next_multiple_of(OCTOWORD) - 4;
            vec![WqePart::Named("inline_header", 4), WqePart::Bytes("inline data", padded)]
        }
        _ => vec![WqePart::Named("data_segment", OCTOWORD)],
    }
}
