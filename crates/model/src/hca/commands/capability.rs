//! QUERY_HCA_CAP and SET_HCA_CAP.

use verbless_prm::{HcaCapPage, QueryHcaCapIn, QueryHcaCapOut, SetHcaCapIn, SetHcaCapOut};

use super::call::{Call, Outcome, own_function};
use crate::hca::refusal::Refusal;
use crate::hca::state::{HostFunction, Life};

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
            // function_id_type 0: function_id is the number of a host function (0: PF, n: VF n-1).
            let named = |it: &&HostFunction| it.id() == input.function_id();
            let names_host_function = !input.ec_vf_function() && input.function_id_type().0 == 0;
            let found = hca.host_functions.iter().find(named).filter(|_| names_host_function);
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
            Some(field) => call.with_detail(refusal, format!("{field} is set above its maximum")),
            None => refusal,
        },
    )?;
    if number == HcaCapPage::GENERAL.0 {
        let hca = call.hca_mut();
        let count = hca.caps.uars_per_page();
        hca.numbers.set_uars_per_page(&hca.profile, count);
    }
    // The data path's limits depend on other pages only.
    if number != HcaCapPage::ATOMIC.0 {
        call.hca_mut().capabilities_changed();
    }
    Ok(())
}
