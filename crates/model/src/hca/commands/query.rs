//! Queries about a function: QUERY_ADAPTER, QUERY_VUID, QUERY_LAG, QUERY_SPECIAL_CONTEXTS; and NOP.

use verbless_prm::{
    NopIn, NopOut, QueryAdapterIn, QueryAdapterOut, QueryLagIn, QueryLagOut,
    QuerySpecialContextsIn, QuerySpecialContextsOut, QueryVuidIn, QueryVuidOut,
};

use super::call::{Call, Outcome};
use crate::hca::refusal::Refusal;

/// NOP.
pub(super) fn nop(_: &mut Call<'_>, _: &NopIn, _: &mut NopOut) -> Outcome {
    Ok(())
}

/// QUERY_ADAPTER: includes the board id (PSID), by which software recognizes the model.
pub(super) fn adapter(
    call: &mut Call<'_>,
    _: &QueryAdapterIn,
    output: &mut QueryAdapterOut,
) -> Outcome {
    let device = call.hca().profile.device();
    let adapter = output.query_adapter_struct_mut();
    adapter.set_ieee_vendor_id(device.ieee_vendor_id);
    adapter.set_vsd_vendor_id(device.vendor_id);
    let mut psid = [0; 16];
    psid[..device.board_id.len()].copy_from_slice(device.board_id.as_bytes());
    adapter.set_vsd_contd_psid(&psid);
    Ok(())
}

/// QUERY_VUID.
pub(super) fn vuid(call: &mut Call<'_>, input: &QueryVuidIn, output: &mut QueryVuidOut) -> Outcome {
    if !call.hca().caps.general_2().query_vuid() {
        return Err(Refusal::Unsupported);
    }
    if input.query_vfs_vuid() || input.data_direct() {
        return Err(Refusal::Unsupported);
    }
    if input.vhca_id() != call.hca().caps.general().vhca_id() {
        return Err(Refusal::NoSuchFunction);
    }
    let vuid = call.hca().identity.vuid();
    let at = QueryVuidOut::BYTES;
    call.output.get_mut(at..at + vuid.len()).ok_or(Refusal::OutputTooShort)?.copy_from_slice(&vuid);
    output.set_num_of_entries(1);
    Ok(())
}

/// QUERY_LAG: whether the ports are bonded. A device without a bond answers so, and refuses nobody:
/// UCX asks every device.
pub(super) fn lag(call: &mut Call<'_>, _: &QueryLagIn, output: &mut QueryLagOut) -> Outcome {
    *output.ctx_mut() = *call.hca().profile.lag();
    Ok(())
}

/// QUERY_SPECIAL_CONTEXTS: keys that exist without being created.
pub(super) fn special_contexts(
    call: &mut Call<'_>,
    _: &QuerySpecialContextsIn,
    output: &mut QuerySpecialContextsOut,
) -> Outcome {
    let keys = call.hca().profile.keys();
    let general = call.hca().caps.general();
    output.set_resd_lkey(keys.reserved_lkey);
    if general.null_mkey() {
        output.set_null_mkey(keys.null_mkey);
    }
    if general.dump_fill_mkey() {
        output.set_dump_fill_mkey(keys.dump_fill_mkey);
    }
    if general.terminate_scatter_list_mkey() {
        output.set_terminate_scatter_list_mkey(keys.terminate_scatter_list_mkey);
    }
    if general.repeated_mkey() {
        output.set_repeated_mkey(keys.repeated_mkey);
    }
    Ok(())
}
