//! QUERY_HCA_CAP and SET_HCA_CAP, and the check of the function that a command names.

use verbless_prm::{HcaCapPage, QueryHcaCapIn, QueryHcaCapOut, SetHcaCapIn, SetHcaCapOut};

use super::call::{Call, Outcome};
use crate::hca::refusal::Refusal;
use crate::hca::state::{Hca, HostFunction, Life};
use crate::profile::Side;

/// Refuses a command for another function: this one manages none.
pub(super) fn own_function(other: bool, id: u16) -> Outcome {
    if other || id != 0 { Err(Refusal::NoSuchFunction) } else { Ok(()) }
}

/// Refuses a command for another function, by `id` or by the flag `embedded_cpu`, which only
/// drivers of the embedded CPU set.
pub(super) fn own_side(hca: &Hca, embedded_cpu: bool, id: u16) -> Outcome {
    own_function(embedded_cpu != (hca.profile.side() == Side::Dpu), id)
}

/// QUERY_HCA_CAP.
pub(super) fn query(
    call: &mut Call<'_>,
    input: &QueryHcaCapIn,
    output: &mut QueryHcaCapOut,
) -> Outcome {
    let hca = call.hca();
    let caps = match input.other_function() {
        false => &hca.caps,
        true => {
            // function_id_type 0 names a function behind the managed switch by its number.
            let named = |it: &&HostFunction| it.id() == input.function_id();
            let is_host = !input.ec_vf_function() && input.function_id_type().0 == 0;
            let found = hca.behind.iter().find(named).filter(|_| is_host);
            &found.ok_or(Refusal::NoSuchFunction)?.caps
        }
    };
    let page = caps.page(call.op_mod >> 1)?;
    let values = if call.op_mod & 1 == 1 { &page.current } else { &page.max };
    let mut capability = *output.capability();
    capability[..values.len()].copy_from_slice(values);
    output.set_capability(&capability);
    Ok(())
}

/// SET_HCA_CAP.
pub(super) fn set(call: &mut Call<'_>, input: &SetHcaCapIn, _: &mut SetHcaCapOut) -> Outcome {
    if call.hca().life == Life::Up {
        return Err(Refusal::AlreadyInitialised);
    }
    own_function(input.other_function(), 0)?;
    if call.op_mod & 1 == 1 {
        return Err(Refusal::NoSuchPage);
    }
    let number = call.op_mod >> 1;
    call.hca_mut().caps.set(number, input.capability()).map_err(
        |(refusal, field)| match field {
            Some(field) => call.about(refusal, format!("{field} is set above its maximum")),
            None => refusal,
        },
    )?;
    if number != HcaCapPage::ATOMIC.0 {
        call.hca_mut().capabilities_changed();
    }
    Ok(())
}
