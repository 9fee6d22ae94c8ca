//! What a report leaves out without `--identify`: GIDs, GUIDs, LIDs, MAC and IP addresses, and
//! numbers of one card. A report is sent to other people.

use verbless_prm::CommandInfo;
use verbless_prm::reflect::View;

use super::document::{DeviceFacts, Report};
use super::fields::{Leaf, of_view};
use super::hex::Hex;
use super::run::{Outcome, Run};
use super::scrub::{Known, scrub, scrub_kernel};

/// Names of fields that identify a device, a port or a network, or parts of such names.
const NAMES: [&str; 9] =
    ["guid", "gid", "mac", "lid", "l3_address", "ipv4", "ipv6", "vsd", "permanent_address"];

/// Names that contain one of [`NAMES`] and identify nothing.
const HARMLESS: [&str; 3] = ["vsd_contd_psid", "gid_table_size", "valid"];

/// Fields with exactly these names and more than one bit: the serial number of a card, a management
/// datagram with its addresses, and the text that a driver gives the device.
const WHOLE_NAMES: [&str; 3] = ["vuid", "mad", "driver_version"];

/// Whether a field identifies a device, a port or a network.
pub(crate) fn identifies(leaf: &Leaf) -> bool {
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

/// Zeroes the identifiers in a command's output. Of a command that the PRM does not know, status
/// and syndrome remain.
fn mask_output(input: &[u8], output: &[u8]) -> Vec<u8> {
    match CommandInfo::of_input(input) {
        Some(info) => mask(info.view_output(input, output)),
        None => output.iter().take(8).copied().collect(),
    }
}

/// Bytes that are added to a mailbox before it is masked: more than the longest field that
/// identifies something.
const PAD: usize = 0x200;

/// Masks both mailboxes of a command. [`Hex`] leaves out zeros at the end, and a recorded mailbox
/// is cut to 8 KiB: a field that lost its last bytes has no place in a view, so zeros follow it.
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
        let known = Known::of(&self.devices);
        let scrub = |text: &mut String| *text = scrub(text, &known);
        scrub(&mut self.device);
        self.preconditions.iter_mut().for_each(scrub);
        for case in &mut self.cases {
            case.reason.iter_mut().for_each(scrub);
            case.kernel_log.iter_mut().for_each(|line| *line = scrub_kernel(line, &known));
            for failed in &mut case.failed_commands {
                mask_both(&mut failed.input, &mut failed.output);
            }
        }
        self.performance.iter_mut().filter_map(|it| it.error.as_mut()).for_each(scrub);
        self.devices.iter_mut().for_each(|facts| facts.leave_out(&known));
        self
    }
}

impl Run {
    /// The run without what identifies its devices, ports and networks, for results whose commands
    /// are not written. `devices`: the facts of its devices, with their identity.
    #[must_use]
    pub fn without_identity(mut self, devices: &[DeviceFacts]) -> Self {
        let known = Known::of(devices);
        let scrub = |text: &mut String| *text = scrub(text, &known);
        scrub(&mut self.device);
        self.preconditions.iter_mut().for_each(scrub);
        for row in &mut self.cases {
            if let Outcome::Failed(reason) | Outcome::Skipped(reason) | Outcome::Blocked(reason) =
                &mut row.outcome
            {
                scrub(reason);
            }
            row.failed_commands.clear();
            row.kernel_log.iter_mut().for_each(|line| *line = scrub_kernel(line, &known));
        }
        self
    }
}

impl DeviceFacts {
    /// The facts without what identifies the device, its ports and their network.
    #[must_use]
    pub fn without_identity(mut self) -> Self {
        let known = Known::of(std::slice::from_ref(&self));
        self.leave_out(&known);
        self
    }

    /// Leaves out the device's own identity, and `known` from the texts.
    fn leave_out(&mut self, known: &Known) {
        let scrub = |text: &mut String| *text = scrub(text, known);
        // rdma-core names a device by its GUID where it knows nothing better.
        scrub(&mut self.name);
        self.incomplete.iter_mut().for_each(scrub);
        for query in &mut self.queries {
            mask_both(&mut query.input, &mut query.output);
            query.error.iter_mut().for_each(scrub);
        }
        self.identity = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Row;
    use crate::report::tests::report;
    use verbless_prm::{
        HcaCap, Init2rtrQpIn, MadIfcIn, ModifyNicVportContextIn, NicVportContext, QueryVuidIn,
        SetDriverVersionIn,
    };

    #[test]
    fn texts_of_all_devices_name_no_device() {
        let mut report = report("bluefield3", None, true);
        let guid = report.devices[1].identity.as_ref().expect("asked for").node_guid.clone();
        let first = &mut report.devices[0];
        first.identity.as_mut().expect("asked for").netdevs = vec!["ens1f0np0".into()];
        first.name = format!("rocex{guid}");
        first.incomplete = Some("ens1f0np0 is down".into());
        first.queries[0].error = Some(format!("{guid} is gone"));
        report.devices[1].incomplete = Some("the other end is ens1f0np0".into());
        report.preconditions.push("`ip link set ens1f0np0 up`".into());
        let json = report.without_identity().json().expect("a report is JSON");
        assert!(!json.contains("ens1f0np0") && !json.contains(&guid), "{json}");
        assert!(json.contains("the other end is (left out)"), "{json}");
    }

    #[test]
    fn junit_names_no_device() {
        let mut facts = report("bluefield3", None, true).devices;
        let guid = facts[0].identity.as_ref().expect("asked for").node_guid.clone();
        facts[0].identity.as_mut().expect("asked for").netdevs = vec!["ens1f0np0".into()];
        let row = |case: &str, outcome| Row {
            case: case.into(),
            outcome,
            seconds: 0.0,
            failed_commands: Vec::new(),
            kernel_log: Vec::new(),
        };
        let run = Run {
            device: format!("hardware rocex{guid}"),
            preconditions: Vec::new(),
            cases: vec![
                row("qp::one", Outcome::Failed("ens1f0np0 sent from 02:00:00:00:00:01".into())),
                row("qp::two", Outcome::Blocked("ens1f0np0 is down".into())),
                row("qp::three", Outcome::Skipped("no LID 7".into())),
            ],
        };
        let xml = run.without_identity(&facts).junit().expect("XML");
        for secret in [&*guid, "ens1f0np0", "02:00:00", "LID 7"] {
            assert!(!xml.contains(secret), "{secret}: {xml}");
        }
        assert_eq!(xml.matches("(left out)").count(), 5, "{xml}");
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
