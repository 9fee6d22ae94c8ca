//! Transport interfaces: SQs send frames through TISs, and RQs receive frames through TIRs.

use verbless_prm::{
    CreateTirIn, CreateTirOut, CreateTisIn, CreateTisOut, ModifyTirIn, ModifyTirOut, ModifyTisIn,
    ModifyTisOut, QueryTirIn, QueryTirOut, QueryTisIn, QueryTisOut, RxHashFn, TirDispType,
    TisContext,
};

use super::call::{Call, Outcome};
use crate::hca::objects::{Tir, Tis};
use crate::hca::refusal::Refusal;
use crate::hca::registry::kind;

/// Fields of the contexts that CREATE_TIS and CREATE_TIR accept. Priorities have no effect: the
/// model has no congestion.
const KNOWN_TIS: [&str; 5] =
    ["prio", "transport_domain", "pd", "lag_tx_port_affinity", "strict_lag_tx_port_affinity"];
const KNOWN_TIR: [&str; 5] =
    ["disp_type", "inline_rqn", "rx_hash_fn", "transport_domain", "self_lb_block"];

/// CREATE_TIS.
pub(in crate::hca) fn create_tis(
    call: &mut Call<'_>,
    input: &CreateTisIn,
    output: &mut CreateTisOut,
) -> Outcome {
    let context = *input.ctx();
    call.check_count(call.hca().objects.tises.len(), call.hca().caps.general().log_max_tis())?;
    call.check_known_fields(&context, &KNOWN_TIS)?;
    check_lag_port(call, &context)?;
    call.find(kind::Td, context.transport_domain())?;
    // Only IPoIB needs a PD.
    if context.pd() != 0 {
        call.find(kind::Pd, context.pd())?;
    }
    output.set_tisn(call.make(kind::Tis, Tis { uid: call.uid, context })?);
    Ok(())
}

/// Checks the bond port that a TIS sends from; 0 leaves the choice to the device. Strict affinity
/// is for functions with ports that can be bonded.
fn check_lag_port(call: &Call<'_>, context: &TisContext) -> Outcome {
    let general = call.hca().caps.general();
    let max_port = if general.lag_tx_port_affinity() { general.num_lag_ports() } else { 0 };
    let strict = context.strict_lag_tx_port_affinity() && general.num_lag_ports() < 2;
    match context.lag_tx_port_affinity() <= max_port && !strict {
        true => Ok(()),
        false => Err(Refusal::TisLagPort),
    }
}

/// MODIFY_TIS: sets the priority and the bond port.
pub(in crate::hca) fn modify_tis(
    call: &mut Call<'_>,
    input: &ModifyTisIn,
    _: &mut ModifyTisOut,
) -> Outcome {
    let number = input.tisn();
    let (select, new) = (input.bitmask(), input.ctx());
    let mut context = call.find(kind::Tis, number)?.context;
    if select.prio() {
        context.set_prio(new.prio());
    }
    if select.lag_tx_port_affinity() {
        context.set_lag_tx_port_affinity(new.lag_tx_port_affinity());
    }
    if select.strict_lag_tx_port_affinity() {
        context.set_strict_lag_tx_port_affinity(new.strict_lag_tx_port_affinity());
    }
    check_lag_port(call, &context)?;
    call.change(kind::Tis, number, |tis| tis.context = context)
}

/// QUERY_TIS.
pub(in crate::hca) fn query_tis(
    call: &mut Call<'_>,
    input: &QueryTisIn,
    output: &mut QueryTisOut,
) -> Outcome {
    *output.tis_context_mut() = call.find(kind::Tis, input.tisn())?.context;
    Ok(())
}

/// CREATE_TIR: direct TIRs only; the model has no RQ tables.
pub(in crate::hca) fn create_tir(
    call: &mut Call<'_>,
    input: &CreateTirIn,
    output: &mut CreateTirOut,
) -> Outcome {
    let context = *input.ctx();
    call.check_count(call.hca().objects.tirs.len(), call.hca().caps.general().log_max_tir())?;
    call.check_known_fields(&context, &KNOWN_TIR)?;
    if context.disp_type() != TirDispType::DIRECT || context.rx_hash_fn() != RxHashFn::NONE {
        return Err(Refusal::Unsupported);
    }
    call.find(kind::Td, context.transport_domain())?;
    call.find(kind::Rq, context.inline_rqn())?;
    output.set_tirn(call.make(kind::Tir, Tir { uid: call.uid, context })?);
    Ok(())
}

/// MODIFY_TIR: sets which frames of its own transport domain loop back to it.
pub(in crate::hca) fn modify_tir(
    call: &mut Call<'_>,
    input: &ModifyTirIn,
    _: &mut ModifyTirOut,
) -> Outcome {
    let number = input.tirn();
    call.find(kind::Tir, number)?;
    let select = input.bitmask();
    let other = select.hash()
        || select.packet_merge()
        || select.indirect_table()
        || select.tunneled_offload_en();
    if other {
        return Err(Refusal::Unsupported);
    }
    if select.self_lb_en() {
        let loopback = input.ctx().self_lb_block();
        call.change(kind::Tir, number, |tir| {
            tir.context.set_self_lb_block(loopback);
        })?;
    }
    Ok(())
}

/// QUERY_TIR.
pub(in crate::hca) fn query_tir(
    call: &mut Call<'_>,
    input: &QueryTirIn,
    output: &mut QueryTirOut,
) -> Outcome {
    *output.tir_context_mut() = call.find(kind::Tir, input.tirn())?.context;
    Ok(())
}
