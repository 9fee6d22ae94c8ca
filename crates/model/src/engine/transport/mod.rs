//! QP types: a module for each transport service and each special use of one. A module says which
//! users may create the type, and how its messages travel: carried whole or in packets.
//!
//! To add one, write its module, and name it in [`TRANSPORTS`] and in the operations that it
//! carries (`operation`).

mod connected;
mod management;
mod rc;
mod service;
mod uc;
mod ud;
mod umr;

use verbless_prm::ServiceType;

pub(super) use connected::{Carrier, is_being_carried, leaves_the_device};
pub(super) use service::Transport;

use crate::hca::qp_type::QpType;

/// Every QP type of the model; the most frequent come first.
pub(super) static TRANSPORTS: [&Transport; 6] =
    [&rc::RC, &uc::UC, &ud::UD, &management::QP0, &management::QP1, &umr::REG_UMR];

/// The QP type with this `st`, if the model has it.
pub(crate) fn qp_type(st: ServiceType) -> Option<&'static QpType> {
    find(st).map(|transport| &transport.qp_type)
}

/// The transport of the QP type with this `st`.
#[inline]
pub(super) fn find(st: ServiceType) -> Option<&'static Transport> {
    TRANSPORTS.iter().copied().find(|transport| transport.qp_type.st == st)
}

/// The types by name.
#[cfg(test)]
pub(super) mod types {
    use super::{QpType, management, rc, uc, ud, umr};

    pub(in crate::engine) const RC: &QpType = &rc::RC.qp_type;
    pub(in crate::engine) const UC: &QpType = &uc::UC.qp_type;
    pub(in crate::engine) const UD: &QpType = &ud::UD.qp_type;
    pub(in crate::engine) const QP0: &QpType = &management::QP0.qp_type;
    pub(in crate::engine) const QP1: &QpType = &management::QP1.qp_type;
    pub(in crate::engine) const REG_UMR: &QpType = &umr::REG_UMR.qp_type;
}

#[cfg(test)]
mod tests {
    use super::TRANSPORTS;

    #[test]
    fn fuzz_targets_know_every_qp_type() {
        for (target, text) in [
            ("commands", include_str!("../../../../../tests/fuzz/src/object.rs")),
            ("requests", include_str!("../../../../../tests/fuzz/fuzz_targets/requests.rs")),
        ] {
            for transport in TRANSPORTS {
                let name = transport.qp_type.st.name().expect("a number with a name");
                assert!(text.contains(&format!("ServiceType::{name}")), "{target} has no {name}");
            }
        }
    }
}
