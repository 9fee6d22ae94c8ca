//! UAR pages that the kernel maps, as doorbells.
#![allow(unsafe_code, reason = "maps device registers")]

use std::sync::Arc;

use verbless_command::CqObject;
use verbless_devx::Uar;

use verbless_ring::ring::{LayoutError, SharedMemory};
use verbless_ring::uar::UarPage;

/// Maps the page of a UAR; also returns the UAR, for the contexts that name it. The function takes
/// the UAR itself, so that each page is mapped once: two `UarPage`s would give one BlueFlame
/// register to two queues.
pub(crate) fn map_uar(uar: Uar) -> Result<(Arc<Uar>, UarPage), LayoutError> {
    let uar = Arc::new(uar);
    // SAFETY: no other code has the UAR yet. Later code uses it only to name it, or for
    // `arm_new_cq`.
    let page = unsafe { page_of(uar.clone()) }?;
    Ok((uar, page))
}

/// Arms a new CQ that another program polls, for its first CQE, through the UAR of its context
/// ([`UarPage::arm_new_cq`]).
///
/// # Errors
/// The mapping of the UAR is not a whole page.
pub fn arm_new_cq(cq: &CqObject) -> Result<(), LayoutError> {
    // SAFETY: this page only arms a CQ, which `UarPage::new` allows beside another `UarPage`.
    let page = unsafe { page_of(cq.attr().uar.clone()) }?;
    page.arm_new_cq(cq.cqn());
    Ok(())
}

/// The page that the kernel mapped for us. The driver only writes to it.
///
/// # Safety
/// As for [`UarPage::new`].
unsafe fn page_of(uar: Arc<Uar>) -> Result<UarPage, LayoutError> {
    let (base, length) = (uar.mapping().as_ptr(), uar.mapping().len());
    // SAFETY: the mapping lives in its owner; a `UarPage` stores to it and never loads, and makes
    // no reference. It is a page of device registers, outside of all memory that Rust knows. The
    // caller promises the rest.
    unsafe { UarPage::new(SharedMemory::from_raw(base, length, uar)) }
}
