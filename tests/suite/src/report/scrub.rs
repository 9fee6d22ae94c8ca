//! Texts of a report without addresses, LIDs and names of network devices.

use super::document::DeviceFacts;

/// What a text has in place of an identifier.
const LEFT_OUT: &str = "(left out)";

/// What identifies the devices of a report, as texts may have it.
pub(super) struct Known {
    /// GUIDs in hexadecimal digits, with zeros before them or not.
    numbers: Vec<String>,
    /// Names of network devices, the longest first.
    netdevs: Vec<String>,
}

impl Known {
    /// The identifiers of these devices.
    pub(super) fn of(devices: &[DeviceFacts]) -> Self {
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
pub(super) fn scrub(text: &str, known: &Known) -> String {
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

/// Whether a text contains the name as a whole word: mlx5_10 does not contain mlx5_1.
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
pub(super) fn scrub_kernel(line: &str, known: &Known) -> String {
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
}
