//! Queries about a function: QUERY_ADAPTER, QUERY_VUID, QUERY_ESW_FUNCTIONS, QUERY_LAG,
//! QUERY_SPECIAL_CONTEXTS; and NOP.

use verbless_prm::{
    NopIn, NopOut, QueryAdapterIn, QueryAdapterOut, QueryEswFunctionsIn, QueryEswFunctionsOut,
    QueryLagIn, QueryLagOut, QuerySpecialContextsIn, QuerySpecialContextsOut, QueryVuidIn,
    QueryVuidOut,
};

use super::call::{Call, Outcome};
use crate::hca::refusal::Refusal;
use crate::hca::state::{Hca, HostFunction};
use crate::profile::{FunctionPlace, Role, Side};

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
    if input.data_direct() {
        return Err(Refusal::Unsupported);
    }
    let vuids = vuids(call.hca(), input.vhca_id(), input.query_vfs_vuid())?;
    let at = QueryVuidOut::BYTES;
    let room = call.output.get_mut(at..at + vuids.len() * VUID_BYTES);
    room.ok_or(Refusal::OutputTooShort)?.copy_from_slice(vuids.as_flattened());
    output.set_num_of_entries(vuids.len() as u16);
    Ok(())
}

/// Bytes of a VUID in the answer.
const VUID_BYTES: usize = 128;

/// The VUID of function `vhca_id`, and with `vfs` those of its VFs after it, in the order of their
/// numbers. A function may query itself; the manager of a switch may also query the host's
/// functions after it.
fn vuids(hca: &Hca, vhca_id: u16, vfs: bool) -> Result<Vec<[u8; VUID_BYTES]>, Refusal> {
    if vhca_id == hca.caps.general().vhca_id() {
        // The function has no VFs of its own.
        return Ok(vec![hca.identity.vuid()]);
    }
    let named = |it: &&HostFunction| it.caps.general().vhca_id() == vhca_id;
    let named_function = hca.host_functions.iter().find(named).ok_or(Refusal::NoSuchFunction)?;
    let has_vfs = vfs && named_function.on_card.role == Role::Pf;
    let mut vf_list: Vec<_> =
        hca.host_functions.iter().filter(|it| it.on_card.role == Role::Vf).collect();
    vf_list.sort_unstable_by_key(|it| it.on_card.number);
    let vf_list = vf_list.into_iter().filter(|_| has_vfs);
    Ok(std::iter::once(named_function).chain(vf_list).map(|it| it.vuid).collect())
}

/// QUERY_ESW_FUNCTIONS: the host's PF at the embedded switch that this function manages.
pub(super) fn esw_functions(
    call: &mut Call<'_>,
    _: &QueryEswFunctionsIn,
    output: &mut QueryEswFunctionsOut,
) -> Outcome {
    let hca = call.hca();
    if hca.on_card.side != Side::Dpu || hca.on_card.role != Role::Pf {
        return Err(Refusal::NoSwitchManager);
    }
    let host = output.host_params_context_mut();
    let vfs = hca.host_functions.iter().filter(|it| it.on_card.role == Role::Vf).count() as u16;
    host.set_host_num_of_vfs(vfs).set_host_total_vfs(vfs);
    match hca.host_functions.iter().find(|it| it.on_card.role == Role::Pf) {
        Some(pf) => {
            // A function whose PCI address the front end chooses has none here.
            let [bus, device, function] = pci_numbers(&pf.on_card).ok_or(Refusal::Unsupported)?;
            host.set_host_pci_bus(bus).set_host_pci_device(device).set_host_pci_function(function);
        }
        None => {
            host.set_host_pf_not_exist(true);
        }
    }
    Ok(())
}

/// Bus, device and function of a PCI address such as 0b:00.2.
fn pci_numbers(on_card: &FunctionPlace) -> Option<[u16; 3]> {
    let (bus, rest) = on_card.address.as_deref()?.split_once(':')?;
    let (device, function) = rest.split_once('.')?;
    let number = |text| u16::from_str_radix(text, 16).ok();
    Some([number(bus)?, number(device)?, number(function)?])
}

/// QUERY_LAG: whether the ports are bonded. A device without a bond answers too and refuses no
/// sender: UCX sends this to every device.
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
