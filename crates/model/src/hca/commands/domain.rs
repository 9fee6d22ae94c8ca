//! Protection domains, transport domains and UAR pages: numbers with an owner.

use verbless_prm::{
    AllocPdIn, AllocPdOut, AllocTransportDomainIn, AllocTransportDomainOut, AllocUarIn,
    AllocUarOut, DeallocUarIn, DeallocUarOut,
};

use super::call::{Call, Outcome};
use crate::hca::objects::Uid;
use crate::hca::refusal::Refusal;
use crate::hca::registry::{ObjectKind, kind};
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

/// Checks the UAR that a queue's context names: the sender's, or one of the kernel, because Linux
/// before 5.16 allocates those of user contexts with uid 0 too (commit d2c8a1554c10).
pub(super) fn check_uar(call: &Call<'_>, page: u32) -> Outcome {
    match call.hca().objects.uars.get(&page) {
        Some(0) => Ok(()),
        _ => call.find(kind::Uar, page).map(|_| ()),
    }
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

/// ALLOC_UAR: the UARs of one system page, which are numbered from the answered one on.
pub(in crate::hca) fn alloc_uar(
    call: &mut Call<'_>,
    _: &AllocUarIn,
    output: &mut AllocUarOut,
) -> Outcome {
    let first = make_uar(call)?;
    for number in 1..call.hca().caps.uars_per_page() {
        let next = make_uar(call)?;
        debug_assert_eq!(next, first + number, "a group of UARs is free as a whole");
    }
    output.set_uar(first);
    Ok(())
}

fn make_uar(call: &mut Call<'_>) -> Result<u32, Refusal> {
    let page = call.make(kind::Uar, call.uid)?;
    // Clears the page's words, and reads them from here on.
    call.hca_mut().bar.set_allocated(page, true);
    Ok(page)
}

/// DEALLOC_UAR: frees all UARs that ALLOC_UAR answered with this number.
pub(in crate::hca) fn dealloc_uar(
    call: &mut Call<'_>,
    input: &DeallocUarIn,
    _: &mut DeallocUarOut,
) -> Outcome {
    let (first, count) = (input.uar(), call.hca().caps.uars_per_page());
    if !first.is_multiple_of(count) {
        return Err(Refusal::NoSuchUar);
    }
    // None is freed unless all can be.
    for uar in first..first + count {
        call.find(kind::Uar, uar)?;
        if call.hca().objects.is_used(ObjectKind::Uar, uar) {
            return Err(Refusal::UarInUse);
        }
    }
    (first..first + count).try_for_each(|uar| call.destroy(kind::Uar, uar))
}

/// Frees a UAR page: the device stops reading its words.
pub(in crate::hca) fn uar_removed(hca: &mut Hca, page: u32, _: Uid) {
    hca.bar.set_allocated(page, false);
}
