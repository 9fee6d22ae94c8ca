//! Multicast groups: the UD QPs that receive messages to a multicast GID.

use verbless_prm::{AttachToMcgIn, AttachToMcgOut, DetachFromMcgIn, DetachFromMcgOut};

use super::call::{Call, Outcome};
use crate::hca::refusal::Refusal;
use crate::hca::registry::kind;
use verbless_wire::is_multicast;

/// ATTACH_TO_MCG. Joining twice is the same as joining once.
pub(in crate::hca) fn attach(
    call: &mut Call<'_>,
    input: &AttachToMcgIn,
    _: &mut AttachToMcgOut,
) -> Outcome {
    let (qpn, group) = (input.qpn(), *input.multicast_gid());
    let datagrams = call.find(kind::Qp, qpn)?.qp_type.datagrams;
    if !datagrams.is_some_and(|datagrams| datagrams.groups) || !is_multicast(&group) {
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
    let objects = &mut call.hca_mut().objects;
    if objects.groups.join(group, qpn)
        && let Some(qp) = objects.qps.get_mut(&qpn)
    {
        qp.groups.push(group);
    }
    Ok(())
}

/// DETACH_FROM_MCG.
pub(in crate::hca) fn detach(
    call: &mut Call<'_>,
    input: &DetachFromMcgIn,
    _: &mut DetachFromMcgOut,
) -> Outcome {
    let (qpn, group) = (input.qpn(), *input.multicast_gid());
    call.find(kind::Qp, qpn)?;
    let objects = &mut call.hca_mut().objects;
    let qp = objects.qps.get_mut(&qpn).ok_or(Refusal::NoSuchQp)?;
    let at = qp.groups.iter().position(|joined| *joined == group).ok_or(Refusal::NotInGroup)?;
    qp.groups.swap_remove(at);
    objects.groups.leave(&group, qpn);
    Ok(())
}
