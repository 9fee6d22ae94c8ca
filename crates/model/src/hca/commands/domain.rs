//! Protection domains, transport domains and UAR pages: numbers with an owner.

use verbless_prm::{
    AllocPdIn, AllocPdOut, AllocTransportDomainIn, AllocTransportDomainOut, AllocUarIn, AllocUarOut,
};

use super::call::{Call, Outcome};
use crate::hca::objects::Uid;
use crate::hca::registry::kind;
use crate::hca::state::Hca;

/// ALLOC_PD.
pub(in crate::hca) fn alloc_pd(
    call: &mut Call<'_>,
    _: &AllocPdIn,
    output: &mut AllocPdOut,
) -> Outcome {
    call.check_count(call.hca().objects.pds.len(), call.hca().caps.general().log_max_pd())?;
    output.set_pd(call.make(kind::Pd, call.uid)?);
    Ok(())
}

/// ALLOC_TRANSPORT_DOMAIN.
pub(in crate::hca) fn alloc_td(
    call: &mut Call<'_>,
    _: &AllocTransportDomainIn,
    output: &mut AllocTransportDomainOut,
) -> Outcome {
    let log_max = call.hca().caps.general().log_max_transport_domain();
    call.check_count(call.hca().objects.tds.len(), log_max)?;
    output.set_transport_domain(call.make(kind::Td, call.uid)?);
    Ok(())
}

/// ALLOC_UAR.
pub(in crate::hca) fn alloc_uar(
    call: &mut Call<'_>,
    _: &AllocUarIn,
    output: &mut AllocUarOut,
) -> Outcome {
    let page = call.make(kind::Uar, call.uid)?;
    // Clears the page's words, and reads them from here on.
    call.hca_mut().bar.set_allocated(page, true);
    output.set_uar(page);
    Ok(())
}

/// Frees a UAR page: the device stops reading its words.
pub(in crate::hca) fn uar_removed(hca: &mut Hca, page: u32, _: Uid) {
    hca.bar.set_allocated(page, false);
}
