//! Compares a request with a recorded one, field by field.
//!
//! Addresses and memory keys differ from run to run. A recorded address equals the sent one if both
//! have the same place in the same registered memory; a recorded key equals the sent one if both
//! have the index that the same CREATE_MKEY made. PSNs and user indexes, which a program chooses,
//! may be others, but the same ones throughout a case. The variants of keys (`mkey_7_0`) and the
//! pages that suit an address are not compared.

use std::collections::{HashMap, HashSet};

use verbless_prm::{CommandInfo, Opcode, bits};

use super::attributes::address_bytes;
use super::entry::{Attr, Ioctl};
use crate::report::fields::{Leaf, of_view};
use verbless_devx::abi::{Method, attr, method};

/// Which recorded addresses and keys are which of this run.
#[derive(Default)]
pub(super) struct Translation {
    /// Recorded address, address here, and bytes; the newest last.
    memory: Vec<(u64, u64, u64)>,
    keys: HashMap<u32, u32>,
    /// The indexes of keys that the case made.
    indexes: HashSet<u32>,
    /// Numbers that programs choose, by the kind of number.
    chosen: HashMap<(usize, u32), u32>,
}

impl Translation {
    /// The address here of a recorded one.
    pub(super) fn address(&self, recorded: u64) -> Option<u64> {
        let within = |&&(start, _, len): &&(u64, u64, u64)| {
            recorded.checked_sub(start).is_some_and(|offset| offset < len)
        };
        let &(start, here, _) = self.memory.iter().rev().find(within)?;
        here.checked_add(recorded - start)
    }

    fn is_same(&self, recorded: u64, sent: u64, width: usize) -> bool {
        match width {
            _ if recorded == sent => true,
            32 => self.is_same_key(recorded as u32, sent as u32),
            // An address, or an entry of a KLM list, which begins with a length and a key.
            64 => {
                let is_same_entry =
                    recorded >> 32 == sent >> 32 && self.is_same_key(recorded as u32, sent as u32);
                self.address(recorded) == Some(sent) || is_same_entry
            }
            _ => false,
        }
    }

    /// Whether two keys have the same index, of a key that the case made: each UMR may give it
    /// another variant. A UMR names no index with it, but a QP, mostly any (0xffffff).
    fn is_same_key(&self, recorded: u32, sent: u32) -> bool {
        let index = recorded >> 8;
        index == sent >> 8 && (index == 0xff_ffff || self.indexes.contains(&index))
    }

    /// The key here of a recorded one.
    pub(super) fn key(&self, recorded: u32) -> u32 {
        self.keys.get(&recorded).copied().unwrap_or(recorded)
    }

    /// Learns the variants of keys from WQEs that are the same.
    pub(super) fn learn_keys(&mut self, recorded: &[u8], sent: &[u8]) {
        for (recorded, sent) in recorded.chunks_exact(4).zip(sent.chunks_exact(4)) {
            let [recorded, sent] = [recorded, sent].map(|word| bits::get(word, 0, 32) as u32);
            if recorded != sent && self.is_same_key(recorded, sent) {
                self.keys.insert(recorded, sent);
            }
        }
    }

    /// Learns from a request that was answered: the memory that it registered.
    pub(super) fn learn_memory(&mut self, recorded: &Ioctl, sent: &Ioctl) {
        use attr::devx_umem_reg::{ADDR, LEN};
        let is_registration = method_of(recorded) == method::DEVX_UMEM_REG;
        if !is_registration || recorded.errno != 0 {
            return;
        }
        let of = |ioctl: &Ioctl, id| ioctl.attributes.iter().find(|attr| attr.id == id).cloned();
        let len = of(recorded, LEN).and_then(|attr| attr.input).map_or(0, |bytes| word(&bytes.0));
        if let (Some(old), Some(new)) = (of(recorded, ADDR), of(sent, ADDR)) {
            self.memory.push((old.address.unwrap_or(0), new.address.unwrap_or(0), len));
        }
    }

    /// Whether a field that a program chooses may have these values: any for the first time.
    fn may_be(&self, name: &str, recorded: u64, sent: u64) -> bool {
        let known = |kind| self.chosen.get(&(kind, recorded as u32));
        let is_known = |kind| known(kind).is_none_or(|&number| u64::from(number) == sent);
        name == VARIANT || chosen_kind(name).is_some_and(is_known)
    }

    /// Learns the numbers that the program chose in a request that was answered.
    pub(super) fn learn_chosen(&mut self, recorded: &[u8], sent: &[u8]) {
        let Some(info) = CommandInfo::of_input(recorded).filter(|_| recorded.len() == sent.len())
        else {
            return;
        };
        for leaf in of_view(&info.view_input(recorded)) {
            if let Some(kind) = chosen_kind(leaf.field.name) {
                let of = |bytes| bits::get(bytes, leaf.bit, leaf.field.width as usize) as u32;
                self.chosen.insert((kind, of(recorded)), of(sent));
            }
        }
    }

    /// The output of a command as this run must see it: with its own addresses, variants of keys
    /// and numbers.
    pub(super) fn output(&self, input: &[u8], output: &[u8]) -> Vec<u8> {
        let mut own = output.to_vec();
        let Some(info) = CommandInfo::of_input(input) else { return own };
        let index = info.view_input(input).get("mkey_index");
        for leaf in of_view(&info.view_output(input, output)) {
            let width = leaf.field.width as usize;
            if width > 64 || leaf.bit + width > output.len() * 8 {
                continue;
            }
            let value = bits::get(output, leaf.bit, width);
            let here = match (chosen_kind(leaf.field.name), index) {
                (Some(kind), _) => self.chosen.get(&(kind, value as u32)).map(|&it| it.into()),
                (None, Some(index)) if leaf.field.name == VARIANT => {
                    let key = (index as u32) << 8 | value as u32;
                    self.keys.get(&key).map(|&key| u64::from(key & 0xff))
                }
                (None, _) if width == 64 && value != 0 => self.address(value),
                _ => None,
            };
            if let Some(here) = here {
                bits::set(&mut own, leaf.bit, width, here);
            }
        }
        own
    }

    /// Learns the key that CREATE_MKEY made.
    pub(super) fn learn_key(&mut self, recorded: &[u8], sent: &[u8], output: &[u8]) {
        let key = |input: &[u8]| {
            let info = CommandInfo::of_input(input).filter(|it| it.opcode == CREATE_MKEY)?;
            let variant = of_view(&info.view_input(input))
                .iter()
                .find(|leaf| leaf.field.name == VARIANT)
                .map(|leaf| bits::get(input, leaf.bit, leaf.field.width as usize))?;
            let index = info.view_output(input, output).get("mkey_index")?;
            Some((index as u32) << 8 | variant as u32)
        };
        if let (Some(recorded), Some(sent)) = (key(recorded), key(sent)) {
            self.keys.insert(recorded, sent);
            self.indexes.insert(recorded >> 8);
        }
    }
}

const CREATE_MKEY: u16 = Opcode::CREATE_MKEY.0;
/// The variant of a new memory key.
const VARIANT: &str = "mkey_7_0";
/// Fields whose values a program chooses at random or counts from its start, and their kinds: the
/// first PSNs of a connection, and a user's index of a queue.
const CHOSEN: [(&str, usize); 3] = [("next_rcv_psn", 0), ("next_send_psn", 0), ("user_index", 1)];

fn chosen_kind(name: &str) -> Option<usize> {
    CHOSEN.iter().find(|(chosen, _)| *chosen == name).map(|(_, kind)| *kind)
}

/// The method of a recorded request.
pub(super) fn method_of(ioctl: &Ioctl) -> Method {
    Method { object: ioctl.object, method: ioctl.method }
}

/// Up to eight bytes in the CPU's order.
fn word(bytes: &[u8]) -> u64 {
    let mut word = [0; 8];
    let len = bytes.len().min(8);
    word[..len].copy_from_slice(&bytes[..len]);
    u64::from_ne_bytes(word)
}

/// A request's name: the method, and the command that it carries.
pub(super) fn name(ioctl: &Ioctl, input: &[u8]) -> String {
    let method = match &*ioctl.name {
        "" if !ioctl.well_formed => "words that are no request".into(),
        "" => format!("object {:#x}, method {:#x}", ioctl.object, ioctl.method),
        name => name.to_owned(),
    };
    match CommandInfo::of_input(input) {
        Some(info) => format!("{method}, {}", info.name),
        None => method,
    }
}

/// The differences of two requests, each in words; none if they are the same.
pub(super) fn differences(
    (recorded, recorded_input): (&Ioctl, &[u8]),
    (sent, sent_input): (&Ioctl, &[u8]),
    translation: &Translation,
) -> Vec<String> {
    let mut found = Vec::new();
    let method = method_of(recorded);
    if (method, recorded.well_formed) != (method_of(sent), sent.well_formed) {
        found.push(format!(
            "recorded {}, sent {}",
            name(recorded, recorded_input),
            name(sent, sent_input)
        ));
        return found;
    }
    if recorded.odd_header != sent.odd_header {
        found.push(format!(
            "header: recorded {:?}, sent {:?}",
            recorded.odd_header, sent.odd_header
        ));
    }
    let ids = |ioctl: &Ioctl| ioctl.attributes.iter().map(|attr| attr.id).collect::<Vec<_>>();
    if ids(recorded) != ids(sent) {
        let (recorded, sent) = (ids(recorded), ids(sent));
        found.push(format!("attributes: recorded {recorded:x?}, sent {sent:x?}"));
        return found;
    }
    let command = recorded.attributes.iter().find(|it| it.id == attr::invoke_write::WRITE_CMD);
    let command = command.and_then(|it| it.input.as_ref()).map_or(0, |bytes| word(&bytes.0));
    for (old, new) in recorded.attributes.iter().zip(&sent.attributes) {
        let skipped = address_bytes(method, old.id, command);
        if let Some(what) = attribute_difference(old, new, skipped, translation) {
            found.push(format!("attribute {:#x}: {what}", old.id));
        }
    }
    found.extend(mailbox_differences(recorded_input, sent_input, translation));
    found
}

/// How two attributes differ, apart from the first `skipped` bytes of an input.
fn attribute_difference(
    recorded: &Attr,
    sent: &Attr,
    skipped: usize,
    translation: &Translation,
) -> Option<String> {
    if (recorded.flags, recorded.element) != (sent.flags, sent.element) {
        let of = |attr: &Attr| format!("flags {:?}, element {:#x}", attr.flags, attr.element);
        return Some(format!("recorded {}, sent {}", of(recorded), of(sent)));
    }
    if recorded.room != sent.room || recorded.mailbox != sent.mailbox {
        return Some(format!("recorded {} bytes, sent {}", recorded.room, sent.room));
    }
    if (recorded.handle, recorded.channel) != (sent.handle, sent.channel) {
        let of = |attr: &Attr| match (attr.handle, attr.channel) {
            (Some(handle), _) => format!("handle {handle}"),
            (_, Some(channel)) => format!("channel {channel}"),
            _ => "neither a handle nor a channel".into(),
        };
        return Some(format!("recorded {}, sent {}", of(recorded), of(sent)));
    }
    match (&recorded.input, &sent.input) {
        (Some(old), Some(new)) => {
            let (old, new) = (&old.0[..], &new.0[..]);
            let same_word =
                old.len() == 8 && new.len() == 8 && translation.is_same(word(old), word(new), 64);
            if same_word || (old.len() == new.len() && old.get(skipped..) == new.get(skipped..)) {
                return None;
            }
            Some(format!("recorded {}, sent {}", shown(old), shown(new)))
        }
        (None, None) => None,
        _ => Some("bytes in one of the two requests".into()),
    }
}

/// How two input mailboxes differ, by the PRM's names.
fn mailbox_differences(recorded: &[u8], sent: &[u8], translation: &Translation) -> Vec<String> {
    if recorded == sent {
        return Vec::new();
    }
    if recorded.len() != sent.len() {
        return vec![format!("recorded {} bytes, sent {}", recorded.len(), sent.len())];
    }
    let leaves = CommandInfo::of_input(recorded)
        .map(|info| of_view(&info.view_input(recorded)))
        .unwrap_or_default();
    named_differences(&leaves, recorded, sent, translation)
}

/// How two structures of equal length differ, by the names of these fields.
pub(super) fn named_differences(
    leaves: &[Leaf],
    recorded: &[u8],
    sent: &[u8],
    translation: &Translation,
) -> Vec<String> {
    // The sent bytes with all that is the same, or not compared, as it was recorded.
    let mut rest = sent.to_vec();
    let mut found = Vec::new();
    for leaf in leaves {
        let width = leaf.field.width as usize;
        if width > 64 || leaf.bit + width > recorded.len() * 8 {
            continue;
        }
        let old = bits::get(recorded, leaf.bit, width);
        let new = bits::get(sent, leaf.bit, width);
        if old == new {
            continue;
        }
        let is_same = translation.is_same(old, new, width);
        if !is_same && !translation.may_be(leaf.field.name, old, new) {
            let (old, new) = (leaf.value(recorded), leaf.value(sent));
            let (path, at) = (&leaf.path, leaf.bit / 8);
            found.push(format!("{path} (byte {at:#x}): recorded {old}, sent {new}"));
        }
        bits::set(&mut rest, leaf.bit, width, old);
    }
    // What the PRM gives no name.
    if let Some(at) = (0..rest.len()).find(|&at| rest[at] != recorded[at]) {
        let end = recorded.len().min(at + 16);
        found.push(format!(
            "bytes from {at:#x}: recorded {}, sent {}",
            shown(&recorded[at..end]),
            shown(&sent[at..end])
        ));
    }
    found
}

/// How two WQEs differ: word by word, as each segment has addresses and keys of its own.
pub(super) fn wqe_difference(
    recorded: &[u8],
    sent: &[u8],
    translation: &Translation,
) -> Option<String> {
    let word = |bytes: &[u8], at: usize| bits::get(bytes, at * 8, 32);
    let long = |bytes: &[u8], at: usize| bits::get(bytes, at * 8, 64);
    let mut at = 0;
    while at + 4 <= recorded.len().min(sent.len()) {
        let is_long = at + 8 <= recorded.len().min(sent.len()) && at.is_multiple_of(8);
        if is_long && translation.is_same(long(recorded, at), long(sent, at), 64) {
            at += 8;
        } else if translation.is_same(word(recorded, at), word(sent, at), 32) {
            at += 4;
        } else {
            let (segment, at) = (at / 16, at / 16 * 16);
            let of = |bytes: &[u8]| shown(&bytes[at..bytes.len().min(at + 16)]);
            return Some(format!(
                "segment {segment} (byte {at:#x}): recorded {}, sent {}",
                of(recorded),
                of(sent)
            ));
        }
    }
    (recorded.len() != sent.len())
        .then(|| format!("recorded {} bytes, sent {}", recorded.len(), sent.len()))
}

/// Bytes in hexadecimal, the first few.
fn shown(bytes: &[u8]) -> String {
    let digits: String = bytes.iter().take(32).map(|byte| format!("{byte:02x}")).collect();
    match bytes.len() {
        0..=32 => digits,
        len => format!("{digits}… ({len} bytes)"),
    }
}
