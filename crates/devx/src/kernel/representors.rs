//! Representors through sysfs: the network devices of an embedded switch's ports.
//!
//! A kernel in switchdev mode has one for each function behind the switch, with the switch's id in
//! `phys_switch_id` and the function in `phys_port_name`. Sources: Linux
//! `Documentation/ABI/testing/sysfs-class-net`, `net/devlink/port.c` (the names), mlx5's `en_rep.c`
//! (before Linux 5.14 only the uplink's network device has a `device`), BlueField's udev rules
//! (`pf0hpf`), `drivers/platform/mellanox/mlxbf-bootctl.c` (`MLNXBF04`).

use std::path::{Path, PathBuf};

use super::sysfs::{link_name, names, resolved, text};
use crate::info::{FunctionKind, RepresentorInfo};

/// A PCI function's own network devices, and the representors behind its switch.
#[derive(Debug, Default)]
pub(super) struct Netdevs {
    pub own: Vec<String>,
    pub representors: Vec<RepresentorInfo>,
}

/// The network devices of a PCI function, given by its sysfs directory.
pub(super) fn of_function(sysfs: &Path, function: &Path) -> Netdevs {
    let mut found = Netdevs::default();
    let mut switches: Vec<String> = Vec::new();
    for name in names(function.join("net")) {
        let netdev = function.join("net").join(&name);
        match representor(&netdev, &name, function) {
            Some(it) => found.representors.push(it),
            None => {
                switches.extend(text(netdev.join("phys_switch_id")));
                found.own.push(name);
            }
        }
    }
    let class = sysfs.join("class/net");
    let orphans = names(&class).into_iter().filter(|name| {
        // A network device with a `device` is found there, or belongs to another function.
        !class.join(name).join("device").exists()
            && found.representors.iter().all(|known| known.name != *name)
    });
    let candidates = orphans.filter_map(|name| representor(&class.join(&name), &name, function));
    // The switches of a card's PFs may share one id.
    let pf = function.extension().and_then(|it| it.to_str()?.parse().ok());
    let managed = candidates.filter(|it| switches.contains(&it.switch_id) && Some(it.pf) == pf);
    let managed: Vec<_> = managed.collect();
    found.representors.extend(managed);
    // Before Linux 5.9, names do not say whose VFs they are; an embedded CPU has no VFs.
    if found.representors.iter().any(|it| it.external) {
        let virtuals = found.representors.iter_mut();
        virtuals
            .filter(|it| it.function == FunctionKind::Virtual)
            .for_each(|it| it.external = true);
    }
    found
}

/// Describes a network device as a representor; `None` if it represents no function.
fn representor(netdev: &Path, name: &str, function: &Path) -> Option<RepresentorInfo> {
    let port = parse(&text(netdev.join("phys_port_name"))?)?;
    // Only the model's kernel shows these attributes of the function; Linux does not.
    let attribute_of = |attribute: &str| text(netdev.join("represents").join(attribute));
    Some(RepresentorInfo {
        name: name.to_owned(),
        switch_id: text(netdev.join("phys_switch_id"))?,
        external: port.external,
        function: port.kind,
        pf: port.pf,
        number: port.number,
        pci_address: attribute_of("pci_address").or_else(|| own_virtual(function, &port)),
        vuid: attribute_of("vuid"),
    })
}

/// The PCI address of a VF of this machine, from the link in its PF's directory.
fn own_virtual(function: &Path, port: &PortName) -> Option<String> {
    let is_own = !port.external && port.kind == FunctionKind::Virtual;
    let link: PathBuf = function.join(format!("virtfn{}", port.number?));
    is_own.then(|| link_name(link)).flatten()
}

/// The parts of a representor's `phys_port_name`.
#[derive(Debug, PartialEq, Eq)]
struct PortName {
    external: bool,
    kind: FunctionKind,
    pf: u32,
    number: Option<u32>,
}

/// Parses `pf0hpf`, `pf0vf1`, `pf0sf88`, and the same after an external controller's number:
/// `c1pf0`, `c1pf0vf1`. `None` for uplinks (`p0`) and other names.
fn parse(name: &str) -> Option<PortName> {
    let (controller, rest) = match name.strip_prefix('c') {
        Some(rest) => number(rest).map(|(number, rest)| (Some(number), rest))?,
        None => (None, name),
    };
    let (pf, rest) = number(rest.strip_prefix("pf")?)?;
    let (kind, number) = match rest {
        "" | "hpf" => (FunctionKind::Physical, None),
        _ => {
            let (kind, digits) = match rest.strip_prefix("vf") {
                Some(digits) => (FunctionKind::Virtual, digits),
                None => (FunctionKind::Sub, rest.strip_prefix("sf")?),
            };
            let (number, end) = number(digits)?;
            (kind, Some(number).filter(|_| end.is_empty()))
        }
    };
    if number.is_none() && kind != FunctionKind::Physical {
        return None;
    }
    let external = controller.is_some() || rest == "hpf";
    Some(PortName { external, kind, pf, number })
}

/// A decimal number, and the rest of the text.
fn number(text: &str) -> Option<(u32, &str)> {
    let end = text.find(|it: char| !it.is_ascii_digit()).unwrap_or(text.len());
    let (digits, rest) = text.split_at(end);
    digits.parse().ok().map(|number| (number, rest))
}

/// Whether this PCI function belongs to a DPU's embedded CPU: host functions are behind its switch,
/// or the machine is a BlueField.
pub(super) fn is_embedded(sysfs: &Path, netdevs: &Netdevs) -> bool {
    netdevs.representors.iter().any(|it| it.external && it.function == FunctionKind::Physical)
        || names(sysfs.join("bus/platform/devices")).iter().any(|it| it.starts_with("MLNXBF"))
}

/// The directory of the PCI function at this address.
pub(super) fn directory(sysfs: &Path, address: &str) -> PathBuf {
    resolved(sysfs.join("bus/pci/devices").join(address))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn external_pf_representor_means_embedded_cpu() {
        use FunctionKind::{Physical, Sub, Virtual};
        let nowhere = Path::new("/no/such/sysfs");
        for (external, function, expected) in [
            (true, Physical, true),
            (false, Physical, false),
            (true, Virtual, false),
            (false, Virtual, false),
            (false, Sub, false),
        ] {
            let it = RepresentorInfo { external, function, ..Default::default() };
            let netdevs = Netdevs { own: Vec::new(), representors: vec![it] };
            assert_eq!(is_embedded(nowhere, &netdevs), expected, "{external} {function:?}");
        }
        assert!(!is_embedded(nowhere, &Netdevs::default()));
    }

    #[test]
    fn port_names_parse_to_function() {
        use FunctionKind::{Physical, Sub, Virtual};
        for (name, external, kind, pf, number) in [
            ("pf0hpf", true, Physical, 0, None),
            ("c1pf1", true, Physical, 1, None),
            ("c1pf0vf12", true, Virtual, 0, Some(12)),
            ("pf0vf1", false, Virtual, 0, Some(1)),
            ("pf1sf88", false, Sub, 1, Some(88)),
            ("pf3", false, Physical, 3, None),
        ] {
            assert_eq!(parse(name), Some(PortName { external, kind, pf, number }), "{name}");
        }
        for name in ["", "p0", "p1s2", "pf", "pf0vf", "pf0vfx", "pf0vf1x", "pf0sf", "c1", "cpf0"] {
            assert_eq!(parse(name), None, "{name}");
        }
        assert_eq!(parse("pf4294967296"), None);
    }
}
