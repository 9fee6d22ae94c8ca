//! What a report leaves out without `--identify`: GIDs, GUIDs, LIDs, MAC and IP addresses, and
//! numbers of one card. A report is sent to strangers.

use verbless_prm::CommandInfo;
use verbless_prm::reflect::View;

use super::document::{DeviceFacts, Report};
use super::fields::{Leaf, of_view};
use super::hex::Hex;
use super::run::{Outcome, Run};

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

/// What identifies the devices of a report, as texts may have it.
struct Known {
    /// GUIDs in hexadecimal digits, with zeros before them or not.
    numbers: Vec<String>,
    /// Names of network devices, the longest first.
    netdevs: Vec<String>,
}

impl Known {
    fn of(devices: &[DeviceFacts]) -> Self {
        let identities = || devices.iter().filter_map(|facts| facts.identity.as_ref());
        let guids = identities().flat_map(|it| [&it.node_guid, &it.system_image_guid]);
        let texts = guids.flat_map(|guid| [guid.clone(), guid.trim_start_matches('0').to_owned()]);
        let of_gids = identities().flat_map(|it| it.gids.iter().filter_map(|it| it.netdev.clone()));
        let netdevs = identities().flat_map(|it| it.netdevs.clone()).chain(of_gids);
        let mut netdevs: Vec<_> = netdevs.collect();
        netdevs.sort_by_key(|name| std::cmp::Reverse(name.len()));
        Self { numbers: texts.filter(|text| text.len() > 6).collect(), netdevs }
    }
}

/// The text without any GID, GUID, MAC and IP address and LID.
pub(crate) fn scrub_text(text: &str) -> String {
    scrub(text, &Known { numbers: Vec::new(), netdevs: Vec::new() })
}

/// The text without the `known` identifiers, and without any GID, GUID, MAC and IP address and LID.
fn scrub(text: &str, known: &Known) -> String {
    let known_left_out =
        known.numbers.iter().fold(text.to_owned(), |text, id| text.replace(id, LEFT_OUT));
    // A name may have a character that ends a word.
    let renamed = known.netdevs.iter().fold(known_left_out, |text, name| {
        if name.chars().all(is_part) { text } else { replace_name(&text, name, LEFT_OUT) }
    });
    let text = without_lists(&renamed);
    let mut scrubbed = String::new();
    let mut rest = &*text;
    let mut after_lid = false;
    while let Some(start) = rest.find(is_part) {
        let end = rest[start..].find(|c| !is_part(c)).map_or(rest.len(), |end| start + end);
        let (between, word) = (&rest[..start], &rest[start..end]);
        scrubbed.push_str(between);
        // A colon or full stop after a word belongs to the sentence.
        let (word, tail) = word.split_at(word.trim_end_matches([':', '.']).len());
        let is_value = between.trim_matches([' ', '=', '#']).is_empty();
        match after_lid && is_value && is_lid(word) {
            true => scrubbed.push_str(LEFT_OUT),
            false => scrub_word(word, known, &mut scrubbed),
        }
        after_lid = names_lid(word);
        scrubbed.push_str(tail);
        rest = &rest[end..];
    }
    scrubbed.push_str(rest);
    scrubbed
}

/// Whether a character is part of a word, which may be a whole address.
fn is_part(c: char) -> bool {
    c.is_alphanumeric() || matches!(c, '_' | ':' | '.')
}

/// The text with another name in place of one, wherever that is no part of a longer name.
pub(crate) fn replace_name(text: &str, name: &str, other: &str) -> String {
    let (mut replaced, mut done) = (String::new(), 0);
    for at in places(text, name) {
        replaced.push_str(&text[done..at]);
        replaced.push_str(other);
        done = at + name.len();
    }
    replaced + &text[done..]
}

/// Whether a text has a name that is no part of a longer one: mlx5_1 is none in mlx5_10.
pub(crate) fn has_name(text: &str, name: &str) -> bool {
    places(text, name).next().is_some()
}

fn places(text: &str, name: &str) -> impl Iterator<Item = usize> {
    let is_name = |c: char| c.is_alphanumeric() || c == '_';
    let all = text.match_indices(name).filter(|(_, name)| !name.is_empty());
    let whole = all.filter(move |(at, name)| {
        !text[..*at].ends_with(is_name) && !text[at + name.len()..].starts_with(is_name)
    });
    whole.map(|(at, _)| at)
}

/// A line of the kernel's log, without what [`scrub`] removes and the name of a network device
/// after a PCI address: `mlx5_core 0000:08:00.0 lan: Link up`.
fn scrub_kernel(line: &str, known: &Known) -> String {
    let mut words = line.split_inclusive(' ').peekable();
    let mut text = String::new();
    while let Some(word) = words.next() {
        text.push_str(word);
        let Some(next) = words.peek().filter(|_| is_pci_address(word.trim_end())) else { continue };
        // A device without a name is `(unnamed net_device)`; a state may follow a name.
        let name = next.trim_end().trim_end_matches(':');
        if !name.starts_with('(') && line[text.len()..].contains(':') {
            text.push_str(LEFT_OUT);
            text.push_str(&next[name.len()..]);
            words.next();
        }
    }
    scrub(&text, known)
}

/// Whether a word is a PCI address: `0000:08:00.0`.
fn is_pci_address(word: &str) -> bool {
    let is_hex = |part: &str| !part.is_empty() && part.bytes().all(|it| it.is_ascii_hexdigit());
    let parts: Vec<_> = word.split([':', '.']).collect();
    parts.len() == 4 && parts.iter().all(|part| is_hex(part)) && word.matches(':').count() == 2
}

/// Whether a number follows that is a LID.
fn names_lid(word: &str) -> bool {
    word.ends_with("LID")
        || word.ends_with("_lid")
        || ["lid", "dlid", "rlid", "slid"].contains(&word)
}

/// Whether a word is the number of a port; 0 is none.
fn is_lid(word: &str) -> bool {
    let number = match word.strip_prefix("0x") {
        Some(digits) => u16::from_str_radix(digits, 16),
        None => word.parse(),
    };
    number.is_ok_and(|lid| lid != 0)
}

/// Appends the word without the addresses and names of interfaces in it.
fn scrub_word(word: &str, known: &Known, scrubbed: &mut String) {
    // A name before an address, as in `MAC:02:…`, and text after it are groups of their own.
    let groups: Vec<_> = word.split(':').collect();
    for (at, run) in groups.chunk_by(|a, b| is_group(a) && is_group(b)).enumerate() {
        scrubbed.push_str(if at == 0 { "" } else { ":" });
        if is_address(run) {
            scrubbed.push_str(LEFT_OUT);
            continue;
        }
        let names = run.iter().map(|group| match is_ipv4(group) || names_interface(group, known) {
            true => LEFT_OUT,
            false => group,
        });
        scrubbed.push_str(&names.collect::<Vec<_>>().join(":"));
    }
}

/// Whether a text may be a group of an address with colons; its last one may be an IPv4 address.
fn is_group(text: &str) -> bool {
    text.len() <= 4 && text.bytes().all(|byte| byte.is_ascii_hexdigit()) || is_ipv4(text)
}

/// Whether groups are an address. A PCI address has three, the last of which has a full stop.
fn is_address(groups: &[&str]) -> bool {
    let are_groups = groups.iter().all(|group| is_group(group));
    are_groups && (groups.len() >= 4 || groups.len() == 3 && groups.contains(&""))
}

fn is_ipv4(text: &str) -> bool {
    text.parse::<std::net::Ipv4Addr>().is_ok()
}

/// Whether a text is the name of a network device, or a name that has an address in it as udev and
/// rdma-core give it: `enx` and a MAC address, `rocex` and a GUID. A VLAN's number may follow.
fn names_interface(text: &str, known: &Known) -> bool {
    let name = text.split('.').next().unwrap_or(text);
    has_address(name) || known.netdevs.iter().any(|it| it == name || it == text)
}

/// Whether the name of a device has an address in it.
pub(crate) fn has_address(name: &str) -> bool {
    name.split_once('x').is_some_and(|(kind, digits)| {
        let is_kind = kind.len() >= 2 && kind.bytes().all(|byte| byte.is_ascii_lowercase());
        is_kind && digits.len() >= 12 && digits.bytes().all(|byte| byte.is_ascii_hexdigit())
    })
}

/// The text without lists of 4, 6 or 16 bytes: so arrays show IPv4, MAC and IPv6 addresses. One of
/// zeros is no address.
fn without_lists(text: &str) -> String {
    let mut scrubbed = String::new();
    let mut parts = text.split_inclusive(['[', ']']);
    let mut before = None;
    for part in parts.by_ref() {
        let list = part.strip_suffix(']').filter(|_| before == Some('['));
        match list.filter(|list| is_address_list(list)) {
            Some(_) => scrubbed.push_str(&format!("{LEFT_OUT}]")),
            None => scrubbed.push_str(part),
        }
        before = part.chars().next_back();
    }
    scrubbed
}

fn is_address_list(list: &str) -> bool {
    let byte = |part: &str| match part.strip_prefix("0x") {
        Some(digits) => u8::from_str_radix(digits, 16).ok(),
        // `{:02x?}` prints two digits: `[10, 00]` is one or the other, and both are bytes.
        None => part
            .parse()
            .ok()
            .or_else(|| u8::from_str_radix(part, 16).ok().filter(|_| part.len() == 2)),
    };
    let bytes: Option<Vec<u8>> = list.split(',').map(|part| byte(part.trim())).collect();
    bytes.is_some_and(|it| [4, 6, 16].contains(&it.len()) && it.iter().any(|&byte| byte != 0))
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

    fn known() -> Known {
        let guids = ["02564c0000010001", "2564c0000010001"].map(str::to_owned);
        let netdevs = ["eth0", "ens1f0np0"].map(str::to_owned);
        Known { numbers: guids.into(), netdevs: netdevs.into() }
    }

    #[test]
    fn scrub_removes_addresses_alone() {
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
            ("qp::fails: PCI:0000:08:00.0", "qp::fails: PCI:0000:08:00.0"),
            // Glued to other words.
            ("GID:fe80:0000:0000:0000:0200:00ff:fe00:0001", "GID:(left out)"),
            ("MAC:02:00:00:00:00:01:port", "MAC:(left out):port"),
            ("to 10.0.0.1:4791, peer:10.0.0.1", "to (left out):4791, peer:(left out)"),
        ] {
            assert_eq!(scrub(text, &known()), scrubbed);
        }
    }

    #[test]
    fn scrub_removes_known_names_that_are_several_words() {
        let known = Known { numbers: vec![], netdevs: vec!["my-lan".into(), "p-0".into()] };
        for (text, scrubbed) in [
            ("my-lan: up", "(left out): up"),
            ("on p-0, not up-0, p-01", "on (left out), not up-0, p-01"),
        ] {
            assert_eq!(scrub(text, &known), scrubbed);
        }
    }

    #[test]
    fn kernel_line_loses_the_name_after_a_pci_address() {
        let none = Known { numbers: vec![], netdevs: vec![] };
        for (line, scrubbed) in [
            ("mlx5_core 0000:08:00.0 lan: Link up", "mlx5_core 0000:08:00.0 (left out): Link up"),
            (
                "mlx5_core 0000:08:00.0 lan (unregistering): gone",
                "mlx5_core 0000:08:00.0 (left out) (unregistering): gone",
            ),
            (
                "mlx5_core 0000:08:00.0: cmd_work: PCI 0000:08:00.0 is slow",
                "mlx5_core 0000:08:00.0: cmd_work: PCI 0000:08:00.0 is slow",
            ),
        ] {
            assert_eq!(scrub_kernel(line, &none), scrubbed);
        }
    }

    #[test]
    fn scrub_removes_lists_of_an_address_alone() {
        for (text, scrubbed) in [
            (
                "GID: found [254, 128, 0, 0, 0, 0, 0, 0, 2, 0, 0, 255, 254, 0, 0, 1], not [0, 0]",
                "GID: found [(left out)], not [0, 0]",
            ),
            ("MAC [0x2, 0x0, 0x0, 0x0, 0x0, 0x1]", "MAC [(left out)]"),
            ("at [[10, 0, 0, 1], [0a, 00, 00, 02]]", "at [[(left out)], [(left out)]]"),
            ("[0, 0, 0, 0], [1, 2, 3], [256, 1, 1, 1]", "[0, 0, 0, 0], [1, 2, 3], [256, 1, 1, 1]"),
            ("[a, b, c, d] and 1, 2, 3, 4]", "[a, b, c, d] and 1, 2, 3, 4]"),
        ] {
            assert_eq!(scrub(text, &known()), scrubbed);
        }
    }

    #[test]
    fn scrub_removes_lids_and_names_of_interfaces() {
        for (text, scrubbed) in [
            (
                "1X, LID 7, subnet manager at LID 1",
                "1X, LID (left out), subnet manager at LID (left out)",
            ),
            ("its LID 0xc007 is not valid", "its LID (left out) is not valid"),
            ("InfiniBand { dlid: 7, sl: 3 }", "InfiniBand { dlid: (left out), sl: 3 }"),
            ("router_lid=0x12", "router_lid=(left out)"),
            (
                "destination LID 0: none; valid 7, 8 LIDs",
                "destination LID 0: none; valid 7, 8 LIDs",
            ),
            ("`ip link set eth0 up`, eth0.7", "`ip link set (left out) up`, (left out)"),
            ("ip link set enx0c42a1036512 up", "ip link set (left out) up"),
            ("port 1 of rocex525400c0fe123455:", "port 1 of (left out):"),
            ("veth0 eth01 at 0x7f0123456789", "veth0 eth01 at 0x7f0123456789"),
        ] {
            assert_eq!(scrub(text, &known()), scrubbed);
        }
    }

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
