//! A function's life: enabled, given pages, initialised, torn down.

use verbless_prm::{
    DisableHcaIn, DisableHcaOut, EnableHcaIn, EnableHcaOut, InitHcaIn, InitHcaOut, ManagePagesIn,
    ManagePagesOut, QueryIssiIn, QueryIssiOut, QueryPagesIn, QueryPagesOut, SetIssiIn, SetIssiOut,
    TeardownHcaIn, TeardownHcaOut, TeardownProfile,
};

use super::call::{Call, Outcome};
use super::capability::own_function;
use super::objects::Mkey;
use super::refusal::Refusal;
use super::{Life, uctx};
use crate::world::{HcaId, World};

/// ENABLE_HCA.
pub(super) fn enable(call: &mut Call<'_>, input: &EnableHcaIn, _: &mut EnableHcaOut) -> Outcome {
    own_function(false, input.function_id())?;
    if call.hca().life != Life::Disabled {
        return Err(Refusal::AlreadyEnabled);
    }
    call.hca_mut().life = Life::Enabled;
    Ok(())
}

/// DISABLE_HCA. Pages that were not taken back are forgotten: the function starts afresh.
pub(super) fn disable(call: &mut Call<'_>, input: &DisableHcaIn, _: &mut DisableHcaOut) -> Outcome {
    own_function(false, input.function_id())?;
    if call.hca().life == Life::Up {
        return Err(Refusal::AlreadyInitialised);
    }
    call.hca_mut().start_afresh();
    Ok(())
}

/// Resets a function: nothing is left of what commands did, and of the pages that it was given.
pub(crate) fn reset(world: &mut World, id: HcaId) {
    uctx::destroy_all(world, id);
    world.hcas[id].start_afresh();
}

/// How many pages the function needs: before anything, and once it is up.
fn needed(call: &Call<'_>, whole: bool) -> usize {
    let device = call.hca().profile.device();
    device.boot_pages as usize + if whole { device.init_pages as usize } else { 0 }
}

/// QUERY_PAGES: how many are lacking for the next step.
pub(super) fn query_pages(
    call: &mut Call<'_>,
    input: &QueryPagesIn,
    output: &mut QueryPagesOut,
) -> Outcome {
    own_function(false, input.function_id())?;
    let given = call.hca().pages.len();
    let lacking = match call.op_mod {
        QueryPagesIn::BOOT_PAGES => needed(call, false).saturating_sub(given),
        QueryPagesIn::INIT_PAGES => needed(call, true).saturating_sub(given),
        _ => 0,
    };
    output.set_num_pages(lacking as u32);
    Ok(())
}

/// MANAGE_PAGES.
pub(super) fn manage_pages(
    call: &mut Call<'_>,
    input: &ManagePagesIn,
    output: &mut ManagePagesOut,
) -> Outcome {
    own_function(false, input.function_id())?;
    let entries = input.input_num_entries() as usize;
    match call.op_mod {
        ManagePagesIn::ALLOCATION_SUCCESS => {
            let list = call.list.get(..entries.saturating_mul(8)).ok_or(Refusal::ListTooShort)?;
            let pages = &mut call.hca_mut().pages;
            let mut new = Vec::with_capacity(entries);
            for page in addresses(list) {
                if page % 4096 != 0 {
                    return Err(Refusal::PageMisaligned);
                }
                if pages.contains(&page) {
                    return Err(Refusal::PageTwice);
                }
                new.push(page);
            }
            new.sort_unstable();
            if new.windows(2).any(|pair| pair[0] == pair[1]) {
                return Err(Refusal::PageTwice);
            }
            pages.extend(new);
        }
        ManagePagesIn::HCA_RETURN_PAGES => {
            let keep = if call.hca().life == Life::Up { needed(call, true) } else { 0 };
            let spare = call.hca().pages.len().saturating_sub(keep);
            let count = entries.min(spare);
            let start = ManagePagesOut::BYTES;
            if call.output.len() < start + count * 8 {
                return Err(Refusal::OutputTooShort);
            }
            for index in 0..count {
                let page = call.hca_mut().pages.pop_last().unwrap_or(0);
                call.output[start + index * 8..][..8].copy_from_slice(&page.to_be_bytes());
            }
            output.set_output_num_entries(count as u32);
        }
        // The driver has no memory to give; the function goes on with what it has.
        _ => {}
    }
    Ok(())
}

/// The 64-bit addresses in a list.
pub(super) fn addresses(list: &[u8]) -> impl Iterator<Item = u64> {
    list.chunks_exact(8).map(|bytes| u64::from_be_bytes(bytes.try_into().unwrap_or_default()))
}

/// INIT_HCA.
pub(super) fn init(call: &mut Call<'_>, _: &InitHcaIn, _: &mut InitHcaOut) -> Outcome {
    if call.hca().life == Life::Up {
        return Err(Refusal::AlreadyInitialised);
    }
    if call.hca().pages.len() < needed(call, true) {
        return Err(Refusal::PagesLacking);
    }
    let hca = call.hca_mut();
    hca.life = Life::Up;
    if hca.caps.general().null_mkey() {
        let key = hca.profile.keys().null_mkey;
        hca.objects.mkeys.insert(key >> 8, Mkey::null(key as u8));
    }
    Ok(())
}

/// TEARDOWN_HCA.
pub(super) fn teardown(
    call: &mut Call<'_>,
    input: &TeardownHcaIn,
    output: &mut TeardownHcaOut,
) -> Outcome {
    if call.hca().life != Life::Up {
        return Err(Refusal::NotInitialised);
    }
    let general = call.hca().caps.general();
    match input.profile() {
        TeardownProfile::GRACEFUL_CLOSE if call.hca().objects.counts() != Default::default() => {
            return Err(Refusal::ObjectsExist);
        }
        TeardownProfile::GRACEFUL_CLOSE => {}
        TeardownProfile::FORCE_CLOSE if general.force_teardown() => {}
        TeardownProfile::PREPARE_FAST_TEARDOWN if general.fast_teardown() => {}
        _ => return Err(Refusal::BadProfile),
    }
    output.set_state(false);
    uctx::destroy_all(call.world, call.id);
    call.hca_mut().life = Life::Enabled;
    Ok(())
}

/// QUERY_ISSI.
pub(super) fn query_issi(
    call: &mut Call<'_>,
    _: &QueryIssiIn,
    output: &mut QueryIssiOut,
) -> Outcome {
    output.set_current_issi(call.hca().issi);
    output.set_supported_issi_dw0(call.hca().profile.device().issi);
    Ok(())
}

/// SET_ISSI.
pub(super) fn set_issi(call: &mut Call<'_>, input: &SetIssiIn, _: &mut SetIssiOut) -> Outcome {
    let issi = input.current_issi();
    if issi >= 32 || call.hca().profile.device().issi >> issi & 1 == 0 {
        return Err(Refusal::NoSuchIssi);
    }
    call.hca_mut().issi = issi;
    Ok(())
}
