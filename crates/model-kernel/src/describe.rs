//! Describes an ioctl as text for a trace: its request and its answer.
//!
//! The tables list the useful numbers in the structures of the write interface's commands. Source:
//! Linux `include/uapi/rdma/ib_user_verbs.h`.

use std::fmt::Write as _;

use verbless_prm::CommandInfo;

use super::abi::{self, Access, AttrKind, attr};
use super::client::Client;
use super::ioctl::{RawAttr, method_and_attributes};
use super::write;

/// The smallest number that is printed in hexadecimal.
const FIRST_HEX: u64 = 4096;
/// Maximum bytes of a structure that are decoded.
const MAX_BYTES: usize = 256;

/// An ioctl as text.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct IoctlDescription {
    /// The method, or the command of the write interface.
    pub name: String,
    /// The request's attributes: `name=value`, separated by commas.
    pub request: String,
    /// The answer's attributes, if the call succeeded.
    pub response: String,
}

/// A number in a structure: its name, offset and size in bytes.
type Field = (&'static str, usize, usize);

/// A command of the write interface: its name, request and response.
type Layout = (&'static str, &'static [Field], &'static [Field]);

static LAYOUTS: &[Layout] = &[
    ("QUERY_PORT", &[("port_num", 8, 1)], &[]),
    ("ALLOC_PD", &[], &[("pd_handle", 0, 4)]),
    ("DEALLOC_PD", &[("pd_handle", 0, 4)], &[]),
    (
        "CREATE_AH",
        &[
            ("pd_handle", 16, 4),
            ("sgid_index", 44, 1),
            ("dlid", 48, 2),
            ("sl", 50, 1),
            ("is_global", 53, 1),
            ("port_num", 54, 1),
        ],
        &[("ah_handle", 0, 4)],
    ),
    ("DESTROY_AH", &[("ah_handle", 0, 4)], &[]),
    (
        "REG_MR",
        &[
            ("start", 8, 8),
            ("length", 16, 8),
            ("hca_va", 24, 8),
            ("pd_handle", 32, 4),
            ("access_flags", 36, 4),
        ],
        &[("mr_handle", 0, 4), ("lkey", 4, 4), ("rkey", 8, 4)],
    ),
    (
        "REREG_MR",
        &[
            ("mr_handle", 8, 4),
            ("flags", 12, 4),
            ("start", 16, 8),
            ("length", 24, 8),
            ("hca_va", 32, 8),
            ("pd_handle", 40, 4),
            ("access_flags", 44, 4),
        ],
        &[("lkey", 0, 4), ("rkey", 4, 4)],
    ),
    ("DEREG_MR", &[("mr_handle", 0, 4)], &[]),
    (
        "ALLOC_MW",
        &[("pd_handle", 8, 4), ("mw_type", 12, 1)],
        &[("mw_handle", 0, 4), ("rkey", 4, 4)],
    ),
    ("DEALLOC_MW", &[("mw_handle", 0, 4)], &[]),
    ("CREATE_COMP_CHANNEL", &[], &[("fd", 0, 4)]),
    (
        "CREATE_CQ",
        &[("cqe", 16, 4), ("comp_vector", 20, 4), ("comp_channel", 24, 4)],
        &[("cq_handle", 0, 4), ("cqe", 4, 4)],
    ),
    (
        "MODIFY_CQ_EX",
        &[("cq_handle", 0, 4), ("attr_mask", 4, 4), ("cq_count", 8, 2), ("cq_period", 10, 2)],
        &[],
    ),
    (
        "DESTROY_CQ",
        &[("cq_handle", 8, 4)],
        &[("comp_events_reported", 0, 4), ("async_events_reported", 4, 4)],
    ),
    (
        "CREATE_QP",
        &[
            ("pd_handle", 16, 4),
            ("send_cq_handle", 20, 4),
            ("recv_cq_handle", 24, 4),
            ("srq_handle", 28, 4),
            ("max_send_wr", 32, 4),
            ("max_recv_wr", 36, 4),
            ("max_send_sge", 40, 4),
            ("max_recv_sge", 44, 4),
            ("max_inline_data", 48, 4),
            ("sq_sig_all", 52, 1),
            ("qp_type", 53, 1),
            ("is_srq", 54, 1),
        ],
        &[("qp_handle", 0, 4), ("qpn", 4, 4)],
    ),
    ("QUERY_QP", &[("qp_handle", 8, 4), ("attr_mask", 12, 4)], &[]),
    ("MODIFY_QP", MODIFY_QP, &[]),
    ("MODIFY_QP_EX", MODIFY_QP, &[]),
    ("DESTROY_QP", &[("qp_handle", 8, 4)], &[("events_reported", 0, 4)]),
    ("ATTACH_MCAST", &[("qp_handle", 16, 4), ("mlid", 20, 2)], &[]),
    ("DETACH_MCAST", &[("qp_handle", 16, 4), ("mlid", 20, 2)], &[]),
    (
        "CREATE_SRQ",
        &[("pd_handle", 16, 4), ("max_wr", 20, 4), ("max_sge", 24, 4), ("srq_limit", 28, 4)],
        &[("srq_handle", 0, 4), ("max_wr", 4, 4), ("max_sge", 8, 4), ("srqn", 12, 4)],
    ),
    (
        "MODIFY_SRQ",
        &[("srq_handle", 0, 4), ("attr_mask", 4, 4), ("max_wr", 8, 4), ("srq_limit", 12, 4)],
        &[],
    ),
    (
        "QUERY_SRQ",
        &[("srq_handle", 8, 4)],
        &[("max_wr", 0, 4), ("max_sge", 4, 4), ("srq_limit", 8, 4)],
    ),
    ("DESTROY_SRQ", &[("srq_handle", 8, 4)], &[("events_reported", 0, 4)]),
];

const MODIFY_QP: &[Field] = &[
    ("qp_handle", 64, 4),
    ("attr_mask", 68, 4),
    ("qp_state", 96, 1),
    ("dlid", 20, 2),
    ("sgid_index", 24, 1),
    ("sl", 27, 1),
    ("is_global", 30, 1),
    ("port_num", 104, 1),
    ("pkey_index", 92, 2),
    ("qkey", 72, 4),
    ("path_mtu", 98, 1),
    ("rq_psn", 76, 4),
    ("sq_psn", 80, 4),
    ("dest_qp_num", 84, 4),
    ("qp_access_flags", 88, 4),
    ("max_rd_atomic", 101, 1),
    ("max_dest_rd_atomic", 102, 1),
    ("min_rnr_timer", 103, 1),
    ("timeout", 105, 1),
    ("retry_cnt", 106, 1),
    ("rnr_retry", 107, 1),
];

/// Describes an ioctl as text, from its header and attributes before and after the call.
///
/// This reads the data at a pointer again: if the client changed it meanwhile, the trace shows the
/// changed data.
pub fn describe(before: &[u64], after: &[u64], client: &dyn Client) -> IoctlDescription {
    let (method, attributes) = method_and_attributes(before);
    let Some(method) = method else {
        let ids = before.first().copied().unwrap_or_default();
        let name = format!("object {:#x}, method {:#x}", ids >> 16 & 0xffff, ids >> 32 & 0xffff);
        return IoctlDescription { name, ..IoctlDescription::default() };
    };
    let mut words = IoctlDescription { name: method.name.into(), ..IoctlDescription::default() };
    let mut layout = None;
    for (old, new) in attributes.zip(method_and_attributes(after).1) {
        if method.call == abi::Call::InvokeWrite {
            if old.id == attr::WRITE_CMD {
                let name = write::name(old.data);
                layout = name.and_then(|name| LAYOUTS.iter().find(|it| it.0 == name));
                words.name = name.map_or_else(|| format!("write {:#x}", old.data), str::to_string);
            }
            continue;
        }
        let Some(spec) = method.attrs.iter().find(|spec| spec.id == old.id) else {
            add(&mut words.request, &format!("{:#x}", old.id), "unknown");
            continue;
        };
        match spec.kind {
            AttrKind::Handle { access, .. } | AttrKind::Fd { access, .. } => match access {
                Access::New => add(&mut words.response, spec.name, &number(new.data)),
                _ => add(&mut words.request, spec.name, &number(old.data)),
            },
            AttrKind::RawFd => add(&mut words.request, spec.name, &(old.data as i32).to_string()),
            AttrKind::In { .. } => {
                add(&mut words.request, spec.name, &input(spec.name, old, client))
            }
            AttrKind::Out { .. } if new.flags & abi::VALID_OUTPUT == 0 => {}
            AttrKind::Out { .. } => add(&mut words.response, spec.name, &output(new, client)),
        }
    }
    if let Some((_, request, response)) = layout {
        let find = |id| method_and_attributes(before).1.find(|it| it.id == id);
        if let Some(core) = find(attr::CORE_IN) {
            numbers(&mut words.request, request, &bytes(core, client));
        }
        if let Some(core) = find(attr::CORE_OUT) {
            numbers(&mut words.response, response, &pointed_to(core, client));
        }
    }
    words
}

fn add(text: &mut String, name: &str, value: &str) {
    let comma = if text.is_empty() { "" } else { ", " };
    let _ = write!(text, "{comma}{name}={value}");
}

fn number(value: u64) -> String {
    if value < FIRST_HEX { value.to_string() } else { format!("{value:#x}") }
}

/// Prints the fields that are present, and skips those that are 0 unless they are handles.
fn numbers(text: &mut String, fields: &[Field], bytes: &[u8]) {
    for &(name, at, size) in fields {
        match bytes.get(at..at + size).map(little) {
            None => {}
            Some(0) if !name.ends_with("handle") => {}
            Some(value) => add(text, name, &number(value)),
        }
    }
}

/// Up to eight bytes in the CPU's order, which is little-endian.
fn little(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |value, &byte| (value << 8) + u64::from(byte))
}

/// The first bytes of an input: in the attribute itself, or where it points.
fn bytes(attribute: RawAttr, client: &dyn Client) -> Vec<u8> {
    if attribute.len <= 8 {
        return attribute.data.to_ne_bytes()[..attribute.len.into()].to_vec();
    }
    pointed_to(attribute, client)
}

fn pointed_to(attribute: RawAttr, client: &dyn Client) -> Vec<u8> {
    let mut bytes = vec![0; usize::from(attribute.len).min(MAX_BYTES)];
    if client.read(attribute.data, &mut bytes).is_err() {
        bytes.clear();
    }
    bytes
}

fn input(name: &str, attribute: RawAttr, client: &dyn Client) -> String {
    if attribute.len <= 8 {
        return number(little(&bytes(attribute, client)));
    }
    // A command's mailbox: the command itself has its own line.
    let opcode = pointed_to(attribute, client).first_chunk().map(|it| u16::from_be_bytes(*it));
    match opcode.and_then(CommandInfo::by_opcode).filter(|_| name == "in") {
        Some(command) => command.name.into(),
        None => format!("[{} bytes]", attribute.len),
    }
}

fn output(attribute: RawAttr, client: &dyn Client) -> String {
    if attribute.len > 8 {
        return format!("[{} bytes]", attribute.len);
    }
    number(little(&pointed_to(attribute, client)))
}

#[cfg(test)]
mod tests {
    use super::super::client::OwnProcess;
    use super::*;

    fn head(object: u16, method: u16, attributes: u16) -> Vec<u64> {
        let length = 24 + 16 * u64::from(attributes);
        let ids = length | u64::from(object) << 16 | u64::from(method) << 32;
        vec![ids | u64::from(attributes) << 48, 0, 1]
    }

    fn attribute(id: u16, len: u16, data: u64) -> [u64; 2] {
        [u64::from(id) | u64::from(len) << 16 | u64::from(abi::MANDATORY) << 32, data]
    }

    #[test]
    fn numbers_and_handles_are_described_by_name() {
        let id = 7u32;
        let mut before = head(abi::object::DEVX_UMEM, 0x1000, 4);
        before.extend(attribute(attr::FIRST, 0, 0));
        before.extend(attribute(attr::UMEM_ADDR, 8, 0x7000_1000));
        before.extend(attribute(attr::UMEM_LEN, 8, 64));
        before.extend(attribute(attr::UMEM_OUT_ID, 4, &raw const id as u64));
        let mut after = before.clone();
        after[4] = 3;
        after[9] |= u64::from(abi::VALID_OUTPUT) << 32;
        let words = describe(&before, &after, &OwnProcess::default());
        assert_eq!(words.name, "DEVX_UMEM_REG");
        assert_eq!(words.request, "addr=0x70001000, len=64");
        assert_eq!(words.response, "handle=3, out_id=7");
    }

    #[test]
    fn write_interface_commands_are_described() {
        let mut request = [0u8; 40];
        request[8..16].copy_from_slice(&0x7f00_0000_0000u64.to_ne_bytes());
        request[16..24].copy_from_slice(&4096u64.to_ne_bytes());
        request[36] = 7;
        let response = [5u32, 0x1234, 0x5678];
        let mut words = head(abi::object::DEVICE, 0, 3);
        words.extend(attribute(attr::CORE_IN, 40, request.as_ptr() as u64));
        words.extend(attribute(attr::CORE_OUT, 12, response.as_ptr() as u64));
        words.extend(attribute(attr::WRITE_CMD, 8, 9));
        let described = describe(&words, &words, &OwnProcess::default());
        assert_eq!(described.name, "REG_MR");
        let given = "start=0x7f0000000000, length=0x1000, pd_handle=0, access_flags=7";
        assert_eq!(described.request, given);
        assert_eq!(described.response, "mr_handle=5, lkey=0x1234, rkey=0x5678");
    }

    #[test]
    fn unknown_and_unreadable_attributes_are_described() {
        let words = head(77, 3, 0);
        let unknown = describe(&words, &words, &OwnProcess::default());
        assert_eq!(unknown.name, "object 0x4d, method 0x3");
        let mut words = head(abi::object::DEVX, 0x1000, 3);
        words.extend(attribute(attr::OTHER_IN, 16, 8));
        words.extend(attribute(attr::OTHER_OUT, 16, 8));
        words.extend(attribute(0x1234, 0, 0));
        let misread = describe(&words, &words, &OwnProcess::default());
        assert_eq!(misread.request, "in=[16 bytes], 0x1234=unknown");
        assert_eq!(misread.response, "", "nothing was written");
        assert_eq!(describe(&[], &[], &OwnProcess::default()).request, "");
    }

    #[test]
    fn describe_names_command_and_prints_u64_answer() {
        let input = [0x08, 0x00, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        let mut before = head(abi::object::DEVX, 0x1000, 2);
        before.extend(attribute(attr::OTHER_IN, 16, input.as_ptr() as u64));
        before.extend(attribute(attr::OTHER_OUT, 16, input.as_ptr() as u64));
        let mut after = before.clone();
        after[5] |= u64::from(abi::VALID_OUTPUT) << 32;
        let words = describe(&before, &after, &OwnProcess::default());
        assert_eq!(words.request, "in=ALLOC_PD");
        assert_eq!(words.response, "out=[16 bytes]");
        let count = 0x1_0000_0001u64;
        let mut words = head(abi::object::DEVICE, 5, 1);
        words.extend(attribute(attr::GID_NUM_ENTRIES, 8, &raw const count as u64));
        words[3] |= u64::from(abi::VALID_OUTPUT) << 32;
        let words = describe(&words, &words, &OwnProcess::default());
        assert_eq!(words.response, "num_entries=0x100000001");
        let mask = [8, 0, 0, 0, 0, 0, 0, 0, 0];
        let mut words = head(abi::object::FLOW_MATCHER, 0x1000, 1);
        words.extend(attribute(attr::MATCHER_MASK, 9, mask.as_ptr() as u64));
        let words = describe(&words, &words, &OwnProcess::default());
        assert_eq!(words.request, "match_mask=[9 bytes]", "it is no command");
    }

    #[test]
    fn layouts_are_those_of_known_commands() {
        for (name, ..) in LAYOUTS {
            assert!(
                (0..=0xff).any(|number| {
                    [number, 1 << 31 | number].iter().any(|&it| write::name(it) == Some(name))
                }),
                "{name}"
            );
        }
    }
}
