//! What a report leaves out without `--identify`: GIDs, GUIDs, LIDs, MAC and IP addresses, and
//! numbers of one card. A report is sent to strangers.

use verbless_prm::CommandInfo;
use verbless_prm::reflect::View;

use super::document::{DeviceFacts, Report};
use super::fields::{Leaf, of_view};
use super::hex::Hex;

/// What a text has in place of an identifier.
const LEFT_OUT: &str = "(left out)";

/// Names of fields that identify a device, a port or a network, or parts of such names.
const NAMES: [&str; 9] =
    ["guid", "gid", "mac", "lid", "l3_address", "ipv4", "ipv6", "vsd", "permanent_address"];

/// Names that contain one of [`NAMES`] and identify nothing.
const HARMLESS: [&str; 3] = ["vsd_contd_psid", "gid_table_size", "valid"];

/// Fields with exactly these names and more than one bit: the serial number of a card, a management
/// datagram with its addresses, and the text that a driver gives the device.
const WHOLE_NAMES: [&str; 3] = ["vuid", "mad", "driver_version"];

/// Whether a field identifies a device, a port or a network.
pub(super) fn identifies(leaf: &Leaf) -> bool {
    // A capability bit of the same name says only that the device knows the field.
    if leaf.field.width > 1 && WHOLE_NAMES.contains(&leaf.field.name) {
        return true;
    }
    let mut parts = leaf.path.split('.').map(|part| part.split('[').next().unwrap_or(part));
    parts.any(|part| {
        let named = NAMES.iter().any(|name| part.contains(name));
        named && !HARMLESS.iter().any(|name| part.contains(name))
    })
}

/// Zeroes the identifiers in the bytes of a view.
fn mask(view: View<'_>) -> Vec<u8> {
    let mut bytes = view.bytes.to_vec();
    for leaf in of_view(&view).iter().filter(|leaf| identifies(leaf)) {
        let width = leaf.field.width as usize;
        (0..width).for_each(|bit| {
            verbless_prm::bits::set(&mut bytes, leaf.bit + bit, 1, 0);
        });
    }
    bytes
}

/// Zeroes the identifiers in a command's input. Of a command that the PRM does not know, the opcode
/// remains.
fn mask_input(input: &[u8]) -> Vec<u8> {
    match CommandInfo::of_input(input) {
        Some(info) => mask(info.view_input(input)),
        None => input.iter().take(2).copied().collect(),
    }
}

/// The same for the output of a command; of an unknown one, status and syndrome remain.
fn mask_output(input: &[u8], output: &[u8]) -> Vec<u8> {
    match CommandInfo::of_input(input) {
        Some(info) => mask(info.view_output(input, output)),
        None => output.iter().take(8).copied().collect(),
    }
}

/// Bytes that are added to a mailbox before it is masked: more than the longest field that
/// identifies something.
const PAD: usize = 0x200;

/// Masks both mailboxes of a command. [`Hex`] leaves out zeros at the end, and a recorded mailbox is
/// cut to 8 KiB: a field that lost its last bytes has no place in a view, so zeros follow it again.
fn mask_both(input: &mut Hex, output: &mut Hex) {
    let padded = |hex: &Hex| hex.padded(hex.bytes().len() + PAD);
    let (whole, answer) = (padded(input), padded(output));
    *output = Hex::new(&mask_output(&whole, &answer));
    *input = Hex::new(&mask_input(&whole));
}

impl Report {
    /// The report without what identifies its devices, ports and networks.
    #[must_use]
    pub fn without_identity(mut self) -> Self {
        let known: Vec<String> = self.devices.iter().flat_map(identifiers).collect();
        let scrub = |text: &mut String| *text = scrub(text, &known);
        scrub(&mut self.device);
        self.preconditions.iter_mut().for_each(scrub);
        for case in &mut self.cases {
            case.reason.iter_mut().for_each(scrub);
            for failed in &mut case.failed_commands {
                mask_both(&mut failed.input, &mut failed.output);
            }
        }
        self.devices = self.devices.into_iter().map(DeviceFacts::without_identity).collect();
        self
    }
}

impl DeviceFacts {
    /// The facts without what identifies the device, its ports and their network.
    #[must_use]
    pub fn without_identity(mut self) -> Self {
        let known: Vec<String> = identifiers(&self).collect();
        let scrub = |text: &mut String| *text = scrub(text, &known);
        self.incomplete.iter_mut().for_each(scrub);
        for query in &mut self.queries {
            mask_both(&mut query.input, &mut query.output);
            query.error.iter_mut().for_each(scrub);
        }
        self.identity = None;
        self
    }
}

/// The GUIDs of a device as texts may have them: hexadecimal digits, with zeros before them or not.
fn identifiers(facts: &DeviceFacts) -> impl Iterator<Item = String> {
    let guids = facts.identity.iter().flat_map(|it| [&it.node_guid, &it.system_image_guid]);
    let texts = guids.flat_map(|guid| [guid.clone(), guid.trim_start_matches('0').to_owned()]);
    texts.filter(|text| text.len() > 6).collect::<Vec<_>>().into_iter()
}

/// The text without the `known` identifiers, and without any GID, GUID, MAC and IP address.
fn scrub(text: &str, known: &[String]) -> String {
    let text = known.iter().fold(text.to_owned(), |text, id| text.replace(id, LEFT_OUT));
    let is_part = |c: char| c.is_ascii_hexdigit() || matches!(c, ':' | '.');
    let mut scrubbed = String::new();
    let mut rest = &*text;
    while let Some(start) = rest.find(is_part) {
        let end = rest[start..].find(|c| !is_part(c)).map_or(rest.len(), |end| start + end);
        let word = &rest[start..end];
        // A colon or full stop after a word belongs to the sentence.
        let word = word.trim_end_matches([':', '.']);
        // The letters before and after: `mlx5` and `0x…` have digits and are no addresses.
        let alone = !rest[..start].ends_with(|c: char| c.is_alphanumeric() || c == '_');
        scrubbed.push_str(&rest[..start]);
        scrubbed.push_str(if alone && is_address(word) { LEFT_OUT } else { word });
        scrubbed.push_str(&rest[start + word.len()..end]);
        rest = &rest[end..];
    }
    scrubbed.push_str(rest);
    scrubbed
}

/// Whether a word is an address of an interface: groups with colons, or four decimal numbers.
fn is_address(word: &str) -> bool {
    // A PCI address has two colons and a full stop before its last digit.
    let colons = word.matches(':').count();
    let decimal = word.split('.').filter(|part| part.parse::<u8>().is_ok()).count();
    colons >= 3
        || word.contains("::")
        || colons == 0 && decimal == 4 && word.split('.').count() == 4
}

#[cfg(test)]
mod tests {
    use super::*;
    use verbless_prm::{
        HcaCap, Init2rtrQpIn, MadIfcIn, ModifyNicVportContextIn, NicVportContext, QueryVuidIn,
        SetDriverVersionIn,
    };

    #[test]
    fn scrub_removes_addresses_alone() {
        let known = ["02564c0000010001".to_owned(), "2564c0000010001".to_owned()];
        for (text, scrubbed) in [
            (
                "mlx5_0 port 1: InfiniBand, ACTIVE, GID 0 \
                 fe80:0000:0000:0000:0200:00ff:fe00:0001 (IB) and 3 more",
                "mlx5_0 port 1: InfiniBand, ACTIVE, GID 0 (left out) (IB) and 3 more",
            ),
            ("sent from 02:00:00:00:00:01.", "sent from (left out)."),
            ("guid 0c42:a103:0065:1234: no", "guid (left out): no"),
            ("peer ::ffff:10.0.0.1, and 10.0.0.1", "peer (left out), and (left out)"),
            ("peer fe80::1", "peer (left out)"),
            ("0000:08:00.0 has firmware 22.40.1000", "0000:08:00.0 has firmware 22.40.1000"),
            ("command 0x50a: status 3, a.b", "command 0x50a: status 3, a.b"),
            ("GUID 0x2564c0000010001 is 02564c0000010001", "GUID 0x(left out) is (left out)"),
            ("é: ", "é: "),
        ] {
            assert_eq!(scrub(text, &known), scrubbed);
        }
    }

    #[test]
    fn mask_zeroes_identifiers_alone() {
        let mut context = NicVportContext::zeroed();
        context.set_mtu(1500).set_node_guid(5).set_port_guid(6).set_system_image_guid(7);
        context.permanent_address_mut().set_mac_addr_47_32(8).set_mac_addr_31_0(9);
        let masked = mask(View::new(NicVportContext::INFO, context.as_bytes()));
        let mut expected = NicVportContext::zeroed();
        expected.set_mtu(1500);
        assert_eq!(masked, expected.as_bytes());
    }

    #[test]
    fn mailboxes_without_their_zeros_are_masked() {
        let mut context = NicVportContext::zeroed();
        context.set_mtu(1500).set_node_guid(5);
        let output = [&[0; 16], &context.as_bytes()[..]].concat();
        let (mut input, mut output) = (Hex::new(&[0x07, 0x54]), Hex::new(&output));
        mask_both(&mut input, &mut output);
        context.set_node_guid(0);
        assert_eq!(output, Hex::new(&[&[0; 16], &context.as_bytes()[..]].concat()));
        assert_eq!(input, Hex::new(&[0x07, 0x54]));
    }

    #[test]
    fn identifier_without_its_last_bytes_is_masked() {
        let mut context = NicVportContext::zeroed();
        context.set_mtu(1500);
        let plain = [&[0; 16], &context.as_bytes()[..]].concat();
        context.permanent_address_mut().set_mac_addr_47_32(0xb859).set_mac_addr_31_0(0x9f12_3400);
        let output = [&[0; 16], &context.as_bytes()[..]].concat();
        // The zero at the end of the address, and a cut within it.
        for end in [output.len(), output.len() - 2] {
            let (mut input, mut output) = (Hex::new(&[0x07, 0x54]), Hex::new(&output[..end]));
            mask_both(&mut input, &mut output);
            assert_eq!(output, Hex::new(&plain));
        }
    }

    #[test]
    fn serial_number_datagram_and_driver_text_are_masked() {
        let vuid = [&[0; 0x40], &b"MT2116X09299"[..]].concat();
        let mut output = Hex::new(&vuid);
        mask_both(&mut Hex::new(QueryVuidIn::new().as_bytes()), &mut output);
        assert_eq!(output, Hex::default());
        let mut text = SetDriverVersionIn::new();
        text.set_driver_version(&[b'x'; 0x40]);
        assert_eq!(mask_input(text.as_bytes()), SetDriverVersionIn::new().as_bytes());
        let mut datagram = MadIfcIn::new();
        datagram.set_mad(&[7; 0x100]);
        assert_eq!(mask_input(datagram.as_bytes()), MadIfcIn::new().as_bytes());
        let mut offered = HcaCap::zeroed();
        offered.set_driver_version(true);
        assert_eq!(mask(View::new(HcaCap::INFO, offered.as_bytes())), offered.as_bytes());
    }

    #[test]
    fn unknown_command_keeps_its_opcode_alone() {
        assert_eq!(mask_input(&[0xff, 0xfe, 1, 2, 3]), [0xff, 0xfe]);
        let known = ModifyNicVportContextIn::new();
        assert_eq!(mask_input(known.as_bytes()), known.as_bytes());
        assert_eq!(mask_output(&[0xff, 0xfe], &[1; 16]), [1; 8]);
        assert_eq!(mask_output(known.as_bytes(), &[5; 16])[..8], [5; 8]);
    }

    #[test]
    fn peer_of_a_queue_pair_is_masked() {
        let mut input = Init2rtrQpIn::new();
        input.qpc_mut().primary_address_path_mut().set_rmac_47_32(7).set_rmac_31_0(8);
        input.qpc_mut().primary_address_path_mut().set_rlid(9);
        input.qpc_mut().primary_address_path_mut().set_rgid_rip(&[3; 16]);
        input.qpc_mut().set_remote_qpn(5);
        let mut expected = Init2rtrQpIn::new();
        expected.qpc_mut().set_remote_qpn(5);
        assert_eq!(mask_input(input.as_bytes()), expected.as_bytes());
    }
}
