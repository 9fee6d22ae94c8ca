//! Multicast groups: which UD QPs hear what is sent to a multicast GID.

use verbless_prm::{AttachToMcgIn, AttachToMcgOut, DetachFromMcgIn, DetachFromMcgOut};

use super::Hca;
use super::call::{Call, Outcome};
use super::objects::Service;
use super::refusal::Refusal;

/// The first byte of every multicast GID.
const MULTICAST: u8 = 0xff;

/// ATTACH_TO_MCG. Who joins twice is in once.
pub(super) fn attach(
    call: &mut Call<'_>,
    input: &AttachToMcgIn,
    _: &mut AttachToMcgOut,
) -> Outcome {
    let (qpn, group) = (input.qpn(), *input.multicast_gid());
    if call.qp(qpn)?.service != Service::Ud || group[0] != MULTICAST {
        return Err(Refusal::Group);
    }
    let general = call.hca().caps.general();
    let groups = &call.hca().objects.groups;
    match groups.get(&group) {
        Some(members) if members.len() >= general.max_qp_mcg() as usize => {
            return Err(Refusal::TooMany);
        }
        Some(_) => {}
        None => call.check_count(groups.len(), general.log_max_mcg())?,
    }
    call.hca_mut().objects.groups.entry(group).or_default().insert(qpn);
    Ok(())
}

/// DETACH_FROM_MCG.
pub(super) fn detach(
    call: &mut Call<'_>,
    input: &DetachFromMcgIn,
    _: &mut DetachFromMcgOut,
) -> Outcome {
    let (qpn, group) = (input.qpn(), *input.multicast_gid());
    call.qp(qpn)?;
    let groups = &mut call.hca_mut().objects.groups;
    let members = groups.get_mut(&group).ok_or(Refusal::NotInGroup)?;
    if !members.remove(&qpn) {
        return Err(Refusal::NotInGroup);
    }
    if members.is_empty() {
        groups.remove(&group);
    }
    Ok(())
}

/// A QP is destroyed: it leaves its groups.
pub(super) fn leave(hca: &mut Hca, qpn: u32) {
    hca.objects.groups.retain(|_, members| {
        members.remove(&qpn);
        !members.is_empty()
    });
}
