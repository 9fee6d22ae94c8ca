//! Protection domains, transport domains and UAR pages: numbers that belong to somebody.

use verbless_prm::{
    AllocPdIn, AllocPdOut, AllocTransportDomainIn, AllocTransportDomainOut, AllocUarIn,
    AllocUarOut, DeallocPdIn, DeallocPdOut, DeallocTransportDomainIn, DeallocTransportDomainOut,
    DeallocUarIn, DeallocUarOut,
};

use super::call::{Call, Outcome};
use crate::hca::refusal::Refusal;
use crate::hca::state::Hca;

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
        || objects.srqs.values().any(|queue| queue.pd == pd)
    {
        return Err(Refusal::PdInUse);
    }
    remove_pd(call.hca_mut(), pd);
    Ok(())
}

/// Removes a PD.
pub(super) fn remove_pd(hca: &mut Hca, pd: u32) {
    if hca.objects.pds.remove(&pd).is_some() {
        hca.numbers.pd.give(pd);
    }
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
    remove_td(call.hca_mut(), td);
    Ok(())
}

/// Removes a transport domain.
pub(super) fn remove_td(hca: &mut Hca, td: u32) {
    if hca.objects.tds.remove(&td).is_some() {
        hca.numbers.td.give(td);
    }
}

/// ALLOC_UAR.
pub(super) fn alloc_uar(call: &mut Call<'_>, _: &AllocUarIn, output: &mut AllocUarOut) -> Outcome {
    let uid = call.uid;
    let hca = call.hca_mut();
    let page = hca.numbers.uars_of(uid).take().ok_or(Refusal::NoNumber)?;
    hca.objects.uars.insert(page, uid);
    // Its words are cleared, and looked at from now on.
    hca.bar.set_allocated(page, true);
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
    if hca.objects.is_named(page) || hca.objects.eqs.values().any(|eq| eq.uar_page == page) {
        return Err(Refusal::UarInUse);
    }
    remove_uar(call.hca_mut(), page);
    Ok(())
}

/// Frees a UAR page: nobody looks at its words any more.
pub(super) fn remove_uar(hca: &mut Hca, page: u32) {
    if let Some(owner) = hca.objects.uars.remove(&page) {
        hca.bar.set_allocated(page, false);
        hca.numbers.uars_of(owner).give(page);
    }
}
