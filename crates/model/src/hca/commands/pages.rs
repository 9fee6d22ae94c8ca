//! Pages of host memory that the driver gives a function for its contexts.
//!
//! The function requests some at boot and more for INIT_HCA (QUERY_PAGES). Later, as objects come
//! and go, it requests more and offers pages back by PAGE_REQUEST events, which the driver answers
//! with MANAGE_PAGES. The model stores nothing in them: a function whose request fails continues
//! with its pages, where hardware would wait or run out.

use verbless_prm::hot::event_type;
use verbless_prm::{EqePageRequest, ManagePagesIn, ManagePagesOut, QueryPagesIn, QueryPagesOut};

use super::call::{Call, Outcome, own_side};
use crate::hca::effect::Effect;
use crate::hca::refusal::Refusal;
use crate::hca::state::{Hca, Life};
use crate::profile::Side;

/// Maximum number of pages that the model tracks; one command may exceed it once. A driver that
/// gives more pages than requested must not use up the host's memory.
const MAX_PAGES: usize = 1 << 20;

/// Pages for boot; with `with_init`, for INIT_HCA too.
pub(super) fn startup_pages(hca: &Hca, with_init: bool) -> usize {
    let device = hca.profile.device();
    device.boot_pages as usize + if with_init { device.init_pages as usize } else { 0 }
}

/// Pages for a running function with `objects` objects, rounded up to batches, so that not every
/// object causes an event.
fn pages_for(hca: &Hca, objects: usize) -> usize {
    let device = hca.profile.device();
    let contexts = objects.div_ceil(device.contexts_per_page as usize);
    startup_pages(hca, true) + contexts.next_multiple_of(device.page_batch as usize)
}

/// Requests or returns pages, if the number of objects requires it.
pub(super) fn balance(hca: &mut Hca) {
    let objects = hca.objects.len();
    if hca.life != Life::Up
        || hca.pages.objects == objects
        || hca.caps.general().page_request_disable()
    {
        return;
    }
    hca.pages.objects = objects;
    let batch = i64::from(hca.profile.device().page_batch);
    let lacking =
        pages_for(hca, objects) as i64 - (hca.pages.given.len() as i64 + hca.pages.pending);
    // One batch may be spare, so that creating and destroying one object transfers no pages.
    let wanted = if lacking < -batch { lacking + batch } else { lacking.max(0) };
    if wanted == 0 || !hca.objects.takes_event(event_type::PAGE_REQUEST) {
        return;
    }
    hca.pages.pending += wanted;
    let mut request = EqePageRequest::zeroed();
    request.set_embedded_cpu_function(hca.profile.side() == Side::Dpu);
    // num_pages is signed: a negative number offers pages back.
    request.set_num_pages(wanted as u32);
    let mut data = [0; EqePageRequest::BYTES];
    data.copy_from_slice(request.as_bytes());
    hca.effects.push(Effect::Event { kind: event_type::PAGE_REQUEST, data });
}

/// QUERY_PAGES: how many pages boot or INIT_HCA still needs.
pub(super) fn query(
    call: &mut Call<'_>,
    input: &QueryPagesIn,
    output: &mut QueryPagesOut,
) -> Outcome {
    own_side(call.hca(), input.embedded_cpu_function(), input.function_id())?;
    let hca = call.hca();
    let needed = match call.op_mod {
        QueryPagesIn::BOOT_PAGES => startup_pages(hca, false),
        QueryPagesIn::INIT_PAGES => startup_pages(hca, true),
        // REGULAR_PAGES: the function requests these by PAGE_REQUEST events only.
        _ => 0,
    };
    output.set_embedded_cpu_function(hca.profile.side() == Side::Dpu);
    output.set_num_pages(needed.saturating_sub(hca.pages.given.len()) as u32);
    Ok(())
}

/// MANAGE_PAGES.
pub(super) fn manage(
    call: &mut Call<'_>,
    input: &ManagePagesIn,
    output: &mut ManagePagesOut,
) -> Outcome {
    own_side(call.hca(), input.embedded_cpu_function(), input.function_id())?;
    let entries = input.input_num_entries() as usize;
    match call.op_mod {
        ManagePagesIn::ALLOCATION_SUCCESS => give(call, entries),
        ManagePagesIn::HCA_RETURN_PAGES => {
            output.set_output_num_entries(take_back(call, entries)?);
            Ok(())
        }
        // ALLOCATION_FAIL: the driver has no memory.
        _ => {
            let pages = &mut call.hca_mut().pages;
            pages.pending = pages.pending.min(0);
            Ok(())
        }
    }
}

fn give(call: &mut Call<'_>, entries: usize) -> Outcome {
    let list = call.list.get(..entries.saturating_mul(8)).ok_or(Refusal::ListTooShort)?;
    let pages = &mut call.hca_mut().pages;
    if pages.given.len() > MAX_PAGES {
        return Err(Refusal::TooManyPages);
    }
    let mut new = Vec::with_capacity(entries);
    for page in addresses(list) {
        if page % 4096 != 0 {
            return Err(Refusal::PageMisaligned);
        }
        if pages.given.contains(&page) {
            return Err(Refusal::PageTwice);
        }
        new.push(page);
    }
    new.sort_unstable();
    if new.windows(2).any(|pair| pair[0] == pair[1]) {
        return Err(Refusal::PageTwice);
    }
    if pages.pending > 0 {
        pages.pending = (pages.pending - new.len() as i64).max(0);
    }
    pages.given.extend(new);
    Ok(())
}

/// Releases up to `entries` pages that the function does not need; returns how many.
fn take_back(call: &mut Call<'_>, entries: usize) -> Result<u32, Refusal> {
    let hca = call.hca();
    let keep = if hca.life == Life::Up { pages_for(hca, hca.objects.len()) } else { 0 };
    let count = entries.min(hca.pages.given.len().saturating_sub(keep));
    let start = ManagePagesOut::BYTES;
    if call.output.len() < start + count * 8 {
        return Err(Refusal::OutputTooShort);
    }
    for index in 0..count {
        let page = call.hca_mut().pages.given.pop_last().unwrap_or(0);
        call.output[start + index * 8..][..8].copy_from_slice(&page.to_be_bytes());
    }
    let pages = &mut call.hca_mut().pages;
    if pages.pending < 0 {
        pages.pending = (pages.pending + count as i64).min(0);
    }
    Ok(count as u32)
}

/// The 64-bit addresses in a list.
pub(super) fn addresses(list: &[u8]) -> impl Iterator<Item = u64> {
    list.chunks_exact(8).map(|bytes| u64::from_be_bytes(bytes.try_into().unwrap_or_default()))
}
