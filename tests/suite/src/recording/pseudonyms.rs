//! Other bytes in place of what identifies devices: the same ones throughout a recording.
//!
//! A report leaves identifiers out. A recording cannot: a driver sends a GID that it was given, and
//! `hwtest replay` compares what it sends. So each GID, GUID, MAC address and serial number is
//! replaced by one made up, wherever its bytes are. LIDs have two bytes, which occur by chance, and
//! stay.

use verbless_prm::CommandInfo;
use verbless_prm::reflect::View;

use super::entry::{Cqe, Entry, Event, RecordedDevice, Wqe};
use crate::report::privacy::identifies;
use crate::report::scrub::{has_address, replace_name, scrub_text};

/// A value of fewer bytes is too common to be looked for.
const LEAST_BYTES: usize = 6;
/// A value with fewer bytes that are not 0 occurs by chance.
const LEAST_NONZERO: usize = 3;

/// Identifiers that are replaced: far more than a pair of devices has. A recording ends where there
/// are more, as none may be left in it.
const MOST: usize = 1024;

/// Identifiers, each with the bytes in its place.
#[derive(Default)]
pub(super) struct Pseudonyms {
    /// The longest first: a GUID may be part of a GID.
    known: Vec<(Vec<u8>, Vec<u8>)>,
    count: u16,
    /// There were more than [`MOST`].
    is_full: bool,
    /// Names of devices and of network devices, each with the name in its place; the longest first.
    names: Vec<(String, String)>,
}

impl Pseudonyms {
    /// Learns the identifiers of devices.
    pub(super) fn learn_devices(&mut self, devices: &[RecordedDevice]) {
        for device in devices {
            self.learn(&device.node_guid.0);
            self.learn(&device.system_image_guid.0);
            for entry in device.ports.iter().flat_map(|port| &port.gids) {
                self.learn_gid(&entry.gid.0);
            }
        }
    }

    /// Why nothing more may be recorded, if so.
    pub(super) fn limit_reached(&self) -> Option<String> {
        self.is_full.then(|| {
            format!(
                "it would have more than {MOST} GIDs, GUIDs and addresses to replace: record fewer \
                 cases (--filter), or keep them (--identify)"
            )
        })
    }

    /// Replaces the identifiers of devices, the names of their network devices, and their own names
    /// if these have an address in them.
    pub(super) fn rename_devices(&mut self, devices: &mut [RecordedDevice]) {
        self.learn_names(devices);
        let rename = |name: &mut String| {
            if let Some((_, to)) = self.names.iter().find(|(from, _)| from == name) {
                name.clone_from(to);
            }
        };
        for device in devices {
            rename(&mut device.name);
            self.rename_bytes(&mut device.node_guid.0);
            self.rename_bytes(&mut device.system_image_guid.0);
            device.netdevs.iter_mut().for_each(rename);
            for entry in device.ports.iter_mut().flat_map(|port| &mut port.gids) {
                self.rename_bytes(&mut entry.gid.0);
                entry.netdev.iter_mut().for_each(rename);
            }
        }
    }

    fn learn_names(&mut self, devices: &[RecordedDevice]) {
        let is_taken = |name: &String| devices.iter().any(|device| device.name == *name);
        let mut free = (0..).map(|number| format!("mlx5_{number}")).filter(|name| !is_taken(name));
        for device in devices {
            let is_new = !self.names.iter().any(|(from, _)| *from == device.name);
            if has_address(&device.name) && is_new {
                self.names.extend(free.next().map(|to| (device.name.clone(), to)));
            }
        }
        let of_gids = |device: &RecordedDevice| {
            let gids = device.ports.iter().flat_map(|port| &port.gids);
            gids.filter_map(|entry| entry.netdev.clone()).collect::<Vec<_>>()
        };
        let netdevs = devices.iter().flat_map(|it| it.netdevs.iter().cloned().chain(of_gids(it)));
        let mut count = 0;
        for name in netdevs {
            if !self.names.iter().any(|(from, _)| *from == name) {
                self.names.push((name, format!("netdev{count}")));
                count += 1;
            }
        }
        self.names.sort_by_key(|(from, _)| std::cmp::Reverse(from.len()));
    }

    /// Learns the identifiers in a command, by the names of its fields.
    pub(super) fn learn_command(&mut self, input: &[u8], output: &[u8]) {
        let Some(info) = CommandInfo::of_input(input) else { return };
        for view in [info.view_input(input), info.view_output(input, output)] {
            self.learn_view(&view);
        }
    }

    fn learn_view(&mut self, view: &View<'_>) {
        for leaf in crate::report::fields::of_view(view) {
            let (first, len) = (leaf.bit / 8, leaf.field.width as usize / 8);
            // Half a MAC address is in each of two fields: what is learnt is whole bytes.
            if let Some(at) = mac_at(view, &leaf) {
                self.learn(view.bytes.get(at..at + 6).unwrap_or_default());
            } else if leaf.bit.is_multiple_of(8) && identifies(&leaf) {
                match view.bytes.get(first..first + len).unwrap_or_default() {
                    gid if len == 16 => self.learn_gid(gid),
                    bytes => self.learn(bytes),
                }
            }
        }
    }

    /// Learns a GID, the GUID in it and the MAC address that this was made of.
    fn learn_gid(&mut self, gid: &[u8]) {
        if let Some((_, interface)) = gid.split_last_chunk::<8>() {
            if let &[a, b, c, 0xff, 0xfe, d, e, f] = interface {
                self.learn(&[a ^ 2, b, c, d, e, f]);
            }
            self.learn(interface);
        }
        // Sixteen bytes do not occur by chance, however few of them are not 0: ::ffff:10.0.0.5.
        if gid.iter().any(|&byte| byte != 0) {
            self.add(gid);
        }
    }

    /// Learns an identifier, unless it occurs by chance.
    fn learn(&mut self, bytes: &[u8]) {
        let nonzero = bytes.iter().filter(|&&byte| byte != 0 && byte != 0xff).count();
        if bytes.len() >= LEAST_BYTES && nonzero >= LEAST_NONZERO {
            self.add(bytes);
        }
    }

    fn add(&mut self, bytes: &[u8]) {
        if self.known.iter().any(|(from, to)| from == bytes || to == bytes) {
            return;
        }
        if self.known.len() == MOST {
            self.is_full = true;
            return;
        }
        self.count = self.count.wrapping_add(1);
        let pseudonym = self.made_up(bytes);
        self.known.push((bytes.to_vec(), pseudonym));
        self.known.sort_by_key(|(from, _)| std::cmp::Reverse(from.len()));
    }

    /// A value of the same kind.
    fn made_up(&self, bytes: &[u8]) -> Vec<u8> {
        let [high, low] = self.count.to_be_bytes();
        let of = |bytes: &[u8]| self.known.iter().find(|(from, _)| from == bytes).map(|it| &it.1);
        match bytes {
            // A locally administered MAC address.
            [_, _, _, _, _, _] => vec![2, 0, 0, 0xaa, high, low],
            &[a, b, c, 0xff, 0xfe, d, e, f] => match of(&[a ^ 2, b, c, d, e, f]).map(|it| &**it) {
                Some(&[a, b, c, d, e, f]) => vec![a ^ 2, b, c, 0xff, 0xfe, d, e, f],
                _ => vec![0, 0, 0, 0xff, 0xfe, 0xaa, high, low],
            },
            // IPv4 in IPv6: a network for documentation (RFC 5737).
            [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, ..] if bytes.len() == 16 => {
                [&bytes[..12], &[192, 0, 2, low]].concat()
            }
            _ if bytes.len() == 16 => {
                let (prefix, interface) = bytes.split_at(8);
                // Link-local, or a prefix for documentation (RFC 3849).
                let prefix = match prefix {
                    [0xfe, 0x80, 0, 0, 0, 0, 0, 0] => prefix,
                    _ => &[0x20, 0x01, 0x0d, 0xb8, 0, 0, 0, 0],
                };
                let made_up = [0, 0, 0, 0xff, 0xfe, 0xaa, high, low];
                [prefix, of(interface).map_or(&made_up[..], |it| it)].concat()
            }
            _ => {
                let letter = |at: usize| b'A' + ((at as u16).wrapping_add(self.count) % 26) as u8;
                let other = |(at, &byte): (usize, &u8)| match byte {
                    0 => 0,
                    byte if byte.is_ascii_graphic() => letter(at),
                    _ => low,
                };
                bytes.iter().enumerate().map(other).collect()
            }
        }
    }

    /// Replaces each identifier in the bytes.
    pub(super) fn rename_bytes(&self, bytes: &mut [u8]) {
        let mut at = 0;
        'next: while at + LEAST_BYTES <= bytes.len() {
            for (from, to) in &self.known {
                let end = at + from.len();
                if let Some(place) = bytes.get_mut(at..end).filter(|place| place == from) {
                    place.copy_from_slice(to);
                    at = end;
                    continue 'next;
                }
            }
            at += 1;
        }
    }

    /// Replaces them in an entry.
    pub(super) fn rename(&self, entry: &mut Entry) {
        match entry {
            Entry::Ioctl(ioctl) => {
                for attribute in &mut ioctl.attributes {
                    for bytes in attribute.input.iter_mut().chain(&mut attribute.output) {
                        self.rename_bytes(&mut bytes.0);
                    }
                }
            }
            Entry::Open(open) => {
                if let Some((_, to)) = self.names.iter().find(|(from, _)| *from == open.device) {
                    open.device.clone_from(to);
                }
                if let Some(error) = &mut open.error {
                    *error = self.rename_text(error);
                }
            }
            Entry::Wqe(Wqe { bytes, .. })
            | Entry::Cqe(Cqe { bytes, .. })
            | Entry::Event(Event { bytes, .. }) => {
                self.rename_bytes(&mut bytes.0);
            }
            Entry::Map(_) | Entry::Control(_) | Entry::Unseen(_) => {}
        }
    }

    /// The text with the other names, and without addresses.
    pub(super) fn rename_text(&self, text: &str) -> String {
        let renamed = |text: String, (from, to): &(String, String)| replace_name(&text, from, to);
        scrub_text(&self.names.iter().fold(text.to_owned(), renamed))
    }
}

/// Where a MAC address begins whose first part this field is: the PRM has it in two fields, of
/// which the other has `_31_0` or `_15_0` in its name.
fn mac_at(view: &View<'_>, leaf: &crate::report::fields::Leaf) -> Option<usize> {
    let name = leaf.field.name;
    let is_high = name.ends_with("_47_32") && name.contains("mac") && leaf.field.width == 16;
    let at = leaf.bit / 8;
    (is_high && leaf.bit.is_multiple_of(8) && view.bytes.len() >= at + 6).then_some(at)
}

#[cfg(test)]
mod tests {
    use verbless_prm::{NicVportContext, QueryNicVportContextIn, QueryNicVportContextOut};

    use super::*;

    const MAC: [u8; 6] = [0x0c, 0x42, 0xa1, 0x65, 0x12, 0x34];
    const GID: [u8; 16] =
        [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0x0e, 0x42, 0xa1, 0xff, 0xfe, 0x65, 0x12, 0x34];

    #[test]
    fn parts_of_a_gid_keep_their_relation() {
        let mut names = Pseudonyms::default();
        names.learn_gid(&GID);
        let renamed = |bytes: &[u8]| {
            let mut bytes = bytes.to_vec();
            names.rename_bytes(&mut bytes);
            bytes
        };
        let (mac, gid) = (renamed(&MAC), renamed(&GID));
        assert_ne!(mac, MAC);
        assert_eq!(gid[..8], GID[..8], "it is link-local");
        assert_eq!(gid[8..], [mac[0] ^ 2, mac[1], mac[2], 0xff, 0xfe, mac[3], mac[4], mac[5]]);
        assert_eq!(renamed(&[&[1][..], &MAC, &[2]].concat()), [&[1][..], &mac, &[2]].concat());
    }

    #[test]
    fn ipv4_gid_is_replaced_however_few_of_its_bytes_are_not_zero() {
        for address in [[10, 1, 2, 3], [10, 0, 0, 5]] {
            let gid = [&[0; 10][..], &[0xff; 2], &address].concat();
            let mut names = Pseudonyms::default();
            names.learn_gid(&gid);
            let mut bytes = gid;
            names.rename_bytes(&mut bytes);
            assert_eq!(bytes[..15], [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 192, 0, 2]);
        }
    }

    #[test]
    fn identifier_above_the_limit_is_noticed() {
        let mut names = Pseudonyms::default();
        let mac = |number: u16| [&[0x0c, 0x42, 0xa1, 0x65][..], &number.to_be_bytes()].concat();
        (0..MOST as u16).for_each(|number| names.learn(&mac(number)));
        assert_eq!(names.limit_reached(), None);
        names.learn(&mac(MOST as u16));
        let why = names.limit_reached().expect("one is left");
        assert!(why.contains("more than 1024"), "{why}");
    }

    #[test]
    fn address_in_an_answer_is_learnt_by_its_field() {
        let mut context = NicVportContext::zeroed();
        context.permanent_address_mut().set_mac_addr_47_32(0x0c42).set_mac_addr_31_0(0xa165_1234);
        let mut output = QueryNicVportContextOut::zeroed();
        *output.nic_vport_context_mut() = context;
        let mut names = Pseudonyms::default();
        names.learn_command(QueryNicVportContextIn::new().as_bytes(), output.as_bytes());
        let mut bytes = MAC.to_vec();
        names.rename_bytes(&mut bytes);
        assert_ne!(bytes, MAC);
    }

    #[test]
    fn common_values_are_not_replaced() {
        let mut names = Pseudonyms::default();
        names.learn(&[0, 0, 0, 0, 0, 1]);
        names.learn(&[0xff; 16]);
        names.learn(&[1, 2, 3, 4]);
        let mut bytes = vec![0, 0, 0, 0, 0, 1, 2, 3, 4];
        names.rename_bytes(&mut bytes);
        assert_eq!(bytes, [0, 0, 0, 0, 0, 1, 2, 3, 4]);
    }
}
