//! User contexts, and the end of everything that one holds.

use verbless_prm::{CreateUctxIn, CreateUctxOut, DestroyUctxIn, DestroyUctxOut};

use super::call::{Call, Outcome};
use super::{counter, cq, domain, eq, mkey, qp, sq, srq, uctx, umem};
use crate::hca::effect::Effect;
use crate::hca::kinds::kinds;
use crate::hca::objects::{Object, Uctx, Uid};
use crate::hca::refusal::Refusal;
use crate::hca::state::Hca;

/// CREATE_UCTX.
pub(super) fn create(
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
    let hca = call.hca_mut();
    let uid = hca.numbers.uid.take().ok_or(Refusal::NoNumber)? as Uid;
    hca.objects.uctxs.insert(uid, Uctx);
    output.set_uid(uid);
    Ok(())
}

/// DESTROY_UCTX: what the context still holds goes with it.
pub(super) fn destroy(
    call: &mut Call<'_>,
    input: &DestroyUctxIn,
    _: &mut DestroyUctxOut,
) -> Outcome {
    let uid = input.uid();
    if uid == 0 || !call.hca().objects.uctxs.contains_key(&uid) {
        return Err(Refusal::NoSuchUid);
    }
    destroy_held(call.hca_mut(), |owner| owner == uid);
    remove(call.hca_mut(), uid);
    Ok(())
}

/// Removes a user context that holds nothing any more.
pub(super) fn remove(hca: &mut Hca, uid: Uid) {
    if hca.objects.uctxs.remove(&uid).is_some() {
        hca.numbers.uid.give(uid.into());
    }
}

/// Destroys every object of a function.
pub(super) fn destroy_all(hca: &mut Hca) {
    destroy_held(hca, |_| true);
    // There is no need to look for each queue.
    hca.effects.clear();
    hca.effects.push(Effect::AllForgotten);
}

macro_rules! destroy_held {
    ($($(#[$doc:meta])* $kind:ident: $key:ty => $object:ty {
        context: $context:literal,
        numbers: [$($numbers:tt)*],
        remove: $remove:path,
        commands: { $($commands:tt)* }
    })*) => {
        /// Destroys what belongs to the owners that `of` picks, users before what they use.
        fn destroy_held(hca: &mut Hca, of: impl Fn(Uid) -> bool) {
            $({
                let held = hca.objects.$kind.iter().filter(|(_, it)| of(it.owner()));
                for number in held.map(|(&number, _)| number).collect::<Vec<$key>>() {
                    $remove(hca, number);
                }
            })*
        }
    };
}

kinds!(destroy_held);
