//! User contexts, and the end of everything that one holds.

use verbless_prm::{CreateUctxIn, CreateUctxOut, DestroyUctxIn, DestroyUctxOut};

use super::call::{Call, Outcome};
use super::objects::Uid;
use super::refusal::Refusal;
use super::{cq, eq, mkey, qp, shared, sq};
use crate::engine;
use crate::world::{HcaId, World};

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
    hca.objects.uctxs.insert(uid, cap);
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
    destroy_held(call.world, call.id, |owner| owner == uid);
    let hca = call.hca_mut();
    hca.objects.uctxs.remove(&uid);
    hca.numbers.uid.give(uid.into());
    Ok(())
}

/// Destroys every object of a function.
pub(super) fn destroy_all(world: &mut World, id: HcaId) {
    engine::all_forgotten(&mut world.hcas[id]);
    destroy_held(world, id, |_| true);
    let eqs: Vec<u32> = world.hcas[id].objects.eqs.keys().copied().collect();
    for number in eqs {
        eq::remove(&mut world.hcas[id], number);
    }
    let hca = &mut world.hcas[id];
    for (uid, _) in std::mem::take(&mut hca.objects.uctxs) {
        hca.numbers.uid.give(uid.into());
    }
}

/// Destroys what belongs to the owners that `of` picks, users before what they use.
fn destroy_held(world: &mut World, id: HcaId, of: impl Fn(Uid) -> bool) {
    macro_rules! held {
        ($map:ident, $owner:expr) => {{
            let map = &world.hcas[id].objects.$map;
            map.iter().filter(|(_, it)| of($owner(it))).map(|(n, _)| *n).collect::<Vec<_>>()
        }};
    }
    for number in held!(qps, |qp: &super::objects::Qp| qp.uid) {
        qp::remove(world, id, number);
    }
    for number in held!(sqs, |sq: &super::objects::Sq| sq.uid) {
        sq::remove(world, id, number);
    }
    for number in held!(shared, |queue: &super::objects::SharedQueue| queue.uid) {
        shared::remove(&mut world.hcas[id], number);
    }
    for number in held!(xrcds, |owner: &Uid| *owner) {
        let hca = &mut world.hcas[id];
        hca.objects.xrcds.remove(&number);
        hca.numbers.xrcd.give(number);
    }
    for number in held!(mkeys, |mkey: &super::objects::Mkey| mkey.uid) {
        mkey::remove(&mut world.hcas[id], number);
    }
    for number in held!(cqs, |cq: &super::objects::Cq| cq.uid) {
        cq::remove(&mut world.hcas[id], number);
    }
    for number in held!(umems, |umem: &super::objects::Umem| umem.uid) {
        let hca = &mut world.hcas[id];
        hca.objects.umems.remove(&number);
        hca.numbers.umem.give(number);
    }
    for page in held!(uars, |owner: &Uid| *owner) {
        engine::uar_freed(world, id, page);
        let hca = &mut world.hcas[id];
        if let Some(owner) = hca.objects.uars.remove(&page) {
            hca.numbers.uars_of(owner).give(page);
        }
    }
    for td in held!(tds, |owner: &Uid| *owner) {
        let hca = &mut world.hcas[id];
        hca.objects.tds.remove(&td);
        hca.numbers.td.give(td);
    }
    for pd in held!(pds, |owner: &Uid| *owner) {
        let hca = &mut world.hcas[id];
        hca.objects.pds.remove(&pd);
        hca.numbers.pd.give(pd);
    }
    for number in held!(counters, |counter: &super::objects::QCounter| counter.uid) {
        let hca = &mut world.hcas[id];
        hca.objects.counters.remove(&number);
        hca.numbers.counter.give(number.into());
    }
}
