//! The kernel's description of a function on its card, and of its representors.

use verbless_devx::{FunctionKind, RepresentorInfo};
use verbless_model::function::Function;
use verbless_model::{FunctionPlace, Role, Side};

/// The type of the function.
pub(super) fn kind(on_card: &FunctionPlace) -> FunctionKind {
    match on_card.role {
        Role::Pf => FunctionKind::Physical,
        Role::Vf => FunctionKind::Virtual,
        Role::Sf => FunctionKind::Sub,
    }
}

/// The PCI address in domain 0, the domain of most machines.
pub(super) fn pci_address(on_card: &FunctionPlace) -> Option<String> {
    on_card.address.as_ref().map(|address| format!("0000:{address}"))
}

/// The representors on a function's switch, of the functions in `others`. A PF of an embedded CPU
/// has those of the host's PF with its number, of that PF's VFs, and of its own SFs.
pub(super) fn representors<'a>(
    function: &Function,
    others: impl Iterator<Item = &'a Function>,
) -> Vec<RepresentorInfo> {
    let own = function.on_card();
    if own.role != Role::Pf || own.side != Side::Dpu {
        return Vec::new();
    }
    let card = function.system_image_guid();
    let switch_id: String = card.to_le_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
    let on_switch = others.filter_map(|other| {
        let on_card = other.on_card();
        let is_represented =
            on_card.pf == own.pf && (on_card.side == Side::Host || on_card.role == Role::Sf);
        if !is_represented || other.system_image_guid() != card {
            return None;
        }
        Some(RepresentorInfo {
            name: name(&on_card),
            switch_id: switch_id.clone(),
            external: on_card.side == Side::Host,
            function: kind(&on_card),
            pf: on_card.pf.into(),
            number: on_card.number.map(u32::from),
            pci_address: pci_address(&on_card).filter(|_| on_card.role != Role::Sf),
            vuid: Some(other.vuid()),
        })
    });
    on_switch.collect()
}

/// The name that a BlueField gives a representor: `pf0hpf`, `pf0vf1`, `pf0sf0`.
fn name(on_card: &FunctionPlace) -> String {
    let (pf, number) = (on_card.pf, on_card.number.unwrap_or_default());
    match on_card.role {
        Role::Pf => format!("pf{pf}hpf"),
        Role::Vf => format!("pf{pf}vf{number}"),
        Role::Sf => format!("pf{pf}sf{number}"),
    }
}
