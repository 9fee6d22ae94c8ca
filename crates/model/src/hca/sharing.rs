//! Sharing of a DPA's execution units among the functions of a card.

use verbless_dpa::{EuSharing, Rights, Units};

use crate::hca::state::Hca;
use crate::profile::{Role, Side};

/// Lets the functions of a card share the execution units of its DPA; each function comes with its
/// number in the model. PFs are in the default partition. The PFs of the DPU side create other
/// partitions, or PF 0 on a card without a DPU side.
pub(crate) fn share_units(card: &[(usize, &Hca)]) {
    let has_dpu = card.iter().any(|(_, hca)| hca.profile.side() == Side::Dpu);
    let mut sharing: Option<EuSharing> = None;
    for (_, hca) in card {
        let Some(dpa) = &hca.dpa else { continue };
        let sharing = sharing.get_or_insert_with(|| dpa.limits().sharing());
        let is_pf = hca.on_card.role == Role::Pf;
        let manages = match has_dpu {
            true => is_pf && hca.profile.side() == Side::Dpu,
            false => is_pf && hca.on_card.pf == 0,
        };
        sharing.join(hca.caps.general().vhca_id(), Rights { by_default: is_pf, manages });
    }
    let Some(units) = sharing.map(Units::new) else { return };
    for (id, hca) in card {
        if let Some(dpa) = &hca.dpa {
            dpa.share(&units, hca.caps.general().vhca_id(), *id);
        }
    }
}
