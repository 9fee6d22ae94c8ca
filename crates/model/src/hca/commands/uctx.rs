//! User contexts, and the removal of all objects of one.

use verbless_prm::{CreateUctxIn, CreateUctxOut, DestroyUctxIn, DestroyUctxOut};

use super::call::{Call, Outcome};
use crate::hca::effect::Effect;
use crate::hca::objects::Uctx;
use crate::hca::refusal::Refusal;
use crate::hca::registry::kind;
use crate::hca::state::Hca;

/// CREATE_UCTX.
pub(in crate::hca) fn create(
    call: &mut Call<'_>,
    input: &CreateUctxIn,
    output: &mut CreateUctxOut,
) -> Outcome {
    let general = call.hca().caps.general();
    let cap = input.uctx().cap();
    if cap & !general.uctx_cap() != 0 {
        return Err(Refusal::UctxCapability);
    }
    call.check_count(call.hca().objects.uctxs.len(), general.log_max_uctx())?;
    output.set_uid(call.make(kind::Uctx, Uctx { cap })?);
    Ok(())
}

/// DESTROY_UCTX: destroys the context's remaining objects too.
pub(in crate::hca) fn destroy(
    call: &mut Call<'_>,
    input: &DestroyUctxIn,
    _: &mut DestroyUctxOut,
) -> Outcome {
    let uid = input.uid();
    if uid == 0 || !call.hca().objects.uctxs.contains_key(&uid) {
        return Err(Refusal::NoSuchUid);
    }
    call.hca_mut().remove_held(&|owner| owner == uid);
    call.hca().remove_groups(Some(uid));
    call.destroy(kind::Uctx, uid)
}

/// Destroys every object of a function, including those of user contexts.
pub(super) fn destroy_all(hca: &mut Hca) {
    hca.remove_held(&|_| true);
    hca.remove_groups(None);
    // No queue is left: drop the effects on single queues.
    hca.effects.clear();
    hca.effects.push(Effect::AllForgotten);
}
