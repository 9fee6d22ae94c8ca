//! Protection domains, transport domains and UAR pages: numbers that belong to somebody.

use verbless_prm::{
    AllocPdIn, AllocPdOut, AllocTransportDomainIn, AllocTransportDomainOut, AllocUarIn,
    AllocUarOut, DeallocPdIn, DeallocPdOut, DeallocTransportDomainIn, DeallocTransportDomainOut,
    DeallocUarIn, DeallocUarOut,
};

use super::call::{Call, Outcome};
use super::refusal::Refusal;
use crate::engine;

impl Call<'_> {
    /// Refuses the command unless the PD exists and is the sender's.
    pub(super) fn check_pd(&self, pd: u32) -> Outcome {
        let owner = self.hca().objects.pds.get(&pd).ok_or(Refusal::NoSuchPd)?;
        if self.owns(*owner) { Ok(()) } else { Err(Refusal::NoSuchPd) }
    }

    /// Refuses the command unless the UAR page exists and is the sender's.
    pub(super) fn check_uar(&self, page: u32) -> Outcome {
        let owner = self.hca().objects.uars.get(&page).ok_or(Refusal::NoSuchUar)?;
        if self.owns(*owner) { Ok(()) } else { Err(Refusal::NoSuchUar) }
    }

    /// Refuses the command if there are 2^`log_max` objects of a kind already.
    pub(super) fn check_count(&self, count: usize, log_max: u8) -> Outcome {
        let full = 1_usize.checked_shl(log_max.into()).is_some_and(|most| count >= most);
        if full { Err(Refusal::TooMany) } else { Ok(()) }
    }
}

/// ALLOC_PD.
pub(super) fn alloc_pd(call: &mut Call<'_>, _: &AllocPdIn, output: &mut AllocPdOut) -> Outcome {
    call.check_count(call.hca().objects.pds.len(), call.hca().caps.general().log_max_pd())?;
    let uid = call.uid;
    let hca = call.hca_mut();
    let pd = hca.numbers.pd.take().ok_or(Refusal::NoNumber)?;
    hca.objects.pds.insert(pd, uid);
    output.set_pd(pd);
    Ok(())
}

/// DEALLOC_PD.
pub(super) fn dealloc_pd(
    call: &mut Call<'_>,
    input: &DeallocPdIn,
    _: &mut DeallocPdOut,
) -> Outcome {
    let pd = input.pd();
    call.check_pd(pd)?;
    let objects = &call.hca().objects;
    if objects.mkeys.values().any(|mkey| mkey.pd == pd)
        || objects.qps.values().any(|qp| qp.pd == pd)
        || objects.sqs.values().any(|sq| sq.pd == pd)
        || objects.shared.values().any(|queue| queue.pd == pd)
    {
        return Err(Refusal::PdInUse);
    }
    let hca = call.hca_mut();
    hca.objects.pds.remove(&pd);
    hca.numbers.pd.give(pd);
    Ok(())
}

/// ALLOC_TRANSPORT_DOMAIN.
pub(super) fn alloc_td(
    call: &mut Call<'_>,
    _: &AllocTransportDomainIn,
    output: &mut AllocTransportDomainOut,
) -> Outcome {
    let log_max = call.hca().caps.general().log_max_transport_domain();
    call.check_count(call.hca().objects.tds.len(), log_max)?;
    let uid = call.uid;
    let hca = call.hca_mut();
    let td = hca.numbers.td.take().ok_or(Refusal::NoNumber)?;
    hca.objects.tds.insert(td, uid);
    output.set_transport_domain(td);
    Ok(())
}

/// DEALLOC_TRANSPORT_DOMAIN.
pub(super) fn dealloc_td(
    call: &mut Call<'_>,
    input: &DeallocTransportDomainIn,
    _: &mut DeallocTransportDomainOut,
) -> Outcome {
    let td = input.transport_domain();
    let owner = *call.hca().objects.tds.get(&td).ok_or(Refusal::NoSuchTd)?;
    if !call.owns(owner) {
        return Err(Refusal::NoSuchTd);
    }
    let hca = call.hca_mut();
    hca.objects.tds.remove(&td);
    hca.numbers.td.give(td);
    Ok(())
}

/// ALLOC_UAR.
pub(super) fn alloc_uar(call: &mut Call<'_>, _: &AllocUarIn, output: &mut AllocUarOut) -> Outcome {
    let uid = call.uid;
    let hca = call.hca_mut();
    let page = hca.numbers.uars_of(uid).take().ok_or(Refusal::NoNumber)?;
    hca.objects.uars.insert(page, uid);
    engine::uar_allocated(call.world, call.id, page);
    output.set_uar(page);
    Ok(())
}

/// DEALLOC_UAR.
pub(super) fn dealloc_uar(
    call: &mut Call<'_>,
    input: &DeallocUarIn,
    _: &mut DeallocUarOut,
) -> Outcome {
    let page = input.uar();
    call.check_uar(page)?;
    let hca = call.hca();
    if engine::is_named(hca, page) || hca.objects.eqs.values().any(|eq| eq.uar_page == page) {
        return Err(Refusal::UarInUse);
    }
    engine::uar_freed(call.world, call.id, page);
    let hca = call.hca_mut();
    if let Some(owner) = hca.objects.uars.remove(&page) {
        hca.numbers.uars_of(owner).give(page);
    }
    Ok(())
}
