//! Completion queues.

use std::mem::offset_of;
use verbless_prm::hot::{self, CqRecordConsumer};
use verbless_prm::{
    CqContext, CqErrorSyndrome, CqModifyField, CqPeriodMode, CqResizeField, CqState, CqStatus,
    CqeSize, CreateCqIn, CreateCqOut, HcaCap, MiniCqeFormat, ModifyCqIn, ModifyCqOut, QueryCqIn,
    QueryCqOut, TimestampFormat, TimestampFormatCap,
};

use super::call::{Call, Outcome};
use super::domain::check_uar;
use super::eq::INDEX_MASK;
use super::umem::{self, BufferSpec};
use crate::hca::effect::{Effect, Resize};
use crate::hca::objects::{Arm, Cq, EventTarget};
use crate::hca::refusal::Refusal;
use crate::hca::registry::kind;
use crate::hca::state::Hca;

/// Fields of the context that CREATE_CQ accepts, that depend on a capability, or that the device
/// writes.
const KNOWN: [&str; 27] = [
    "status",
    "cqe_sz",
    "scqe_break_moderation_en",
    "oi",
    "cq_period_mode",
    "cqe_comp_en",
    "mini_cqe_res_format",
    "st",
    "dbr_umem_id",
    "page_offset",
    "cq_timestamp_format",
    "log_cq_size",
    "uar_page",
    "cq_period",
    "cq_max_count",
    "c_eqn_or_apu_element",
    "log_page_size",
    "last_notified_index",
    "last_solicit_index",
    "consumer_counter",
    "producer_counter",
    "dbr_addr",
    "dbr_umem_valid",
    "apu_cq",
    "ext_element_type",
    "cc",
    "always_armed_cq",
];

/// CREATE_CQ.
pub(in crate::hca) fn create(
    call: &mut Call<'_>,
    input: &CreateCqIn,
    output: &mut CreateCqOut,
) -> Outcome {
    let context = input.cq_context();
    let general = call.hca().caps.general();
    call.check_count(call.hca().objects.cqs.len(), general.log_max_cq())?;
    check_size(context, general)?;
    let log_size = context.log_cq_size();
    let cqe_bytes = match context.cqe_sz() {
        CqeSize::BYTES_64 => 64,
        CqeSize::BYTES_128 => 128,
        CqeSize::BYTES_128_PADDED if general.cqe_128_always() => 128,
        _ => return Err(Refusal::CqeSize),
    };
    check_features(call, context)?;
    let target = target(call, context)?;
    check_uar(call, context.uar_page())?;
    let umem = input.cq_umem_valid().then(|| input.cq_umem_id());
    let record_umem = context.dbr_umem_valid().then(|| context.dbr_umem_id());
    let record = call.record(record_umem, context.dbr_addr())?;
    let spec = BufferSpec {
        umem: umem.map(|id| (id, input.cq_umem_offset())),
        log_page_size: context.log_page_size(),
        page_offset: context.page_offset(),
        page_offset_bits: umem::CONTEXT_OFFSET_BITS,
    };
    let memory = call.buffer(&spec, u64::from(cqe_bytes) << log_size, cqe_bytes.into(), true)?;
    let mut context = *context;
    context.set_status(CqStatus::OK);
    let cq = Cq {
        uid: call.uid,
        memory,
        record,
        log_size: log_size.into(),
        cqe_bytes,
        target,
        uar_page: context.uar_page(),
        overrun_ignore: context.oi(),
        producer: 0,
        failure: None,
        arm: Arm::default(),
        solicited: None,
        notified: 0,
        umems: [umem, record_umem].into_iter().flatten().collect(),
        runtime: Default::default(),
        context,
    };
    output.set_cqn(call.make(kind::Cq, cq)?);
    Ok(())
}

/// The receiver of the CQ's completion events.
fn target(call: &Call<'_>, context: &CqContext) -> Result<EventTarget, Refusal> {
    let number = context.c_eqn_or_apu_element();
    match (context.apu_cq(), context.ext_element_type()) {
        (false, 0) => call.find(kind::Eq, number).map(|_| EventTarget::Eq(number)),
        (true, of) => {
            super::dpa::target(call, of, number, context.uar_page()).map(EventTarget::Dpa)
        }
        _ => Err(Refusal::Unsupported),
    }
}

/// Checks the number of CQEs: only a collapsed CQ may have a single one.
///
/// Source: UCX `src/uct/ib/mlx5/dv/ib_mlx5_dv.c` (`uct_ib_mlx5_devx_create_cq_common`), which sets
/// `cc` in a CQ of one entry, and in no other.
fn check_size(context: &CqContext, general: &HcaCap) -> Outcome {
    let min = u8::from(!context.cc());
    let fits = (min..=general.log_max_cq_sz()).contains(&context.log_cq_size());
    if fits { Ok(()) } else { Err(Refusal::CqSize) }
}

/// Refuses features without their capability.
fn check_features(call: &Call<'_>, context: &CqContext) -> Outcome {
    let general = call.hca().caps.general();
    let moderated = context.cq_period() != 0 || context.cq_max_count() != 0;
    let from_cqe = context.cq_period_mode() == CqPeriodMode::START_FROM_CQE;
    let free_running_only = general.sq_ts_format() == TimestampFormatCap::FREE_RUNNING;
    call.check_known_fields(context, &KNOWN)?;
    let unsupported = (context.oi() && !general.cq_oi())
        || (context.apu_cq() && !general.apu())
        || (context.scqe_break_moderation_en() && !general.scqe_break_moderation())
        || !compression_offered(context, general)
        || (moderated && !general.cq_moderation())
        || (from_cqe && !general.cq_period_start_from_cqe())
        || context.cq_period_mode().0 > 1
        || (context.cq_timestamp_format() == TimestampFormat::REAL_TIME && free_running_only);
    if unsupported { Err(Refusal::Unsupported) } else { Ok(()) }
}

/// Whether the capabilities offer the compression of a context, if it has any: for its CQE size and
/// its mini-CQE format.
fn compression_offered(context: &CqContext, general: &HcaCap) -> bool {
    let format = context.mini_cqe_res_format();
    if !context.cqe_comp_en() && format == MiniCqeFormat::RX_HASH {
        return true;
    }
    let of_size = match context.cqe_sz() {
        CqeSize::BYTES_64 => general.cqe_compression(),
        _ => general.cqe_compression_128(),
    };
    of_size
        && match format {
            MiniCqeFormat::FLOW_TAG_STRIDE_INDEX => general.mini_cqe_resp_flow_tag(),
            MiniCqeFormat::CHECKSUM_STRIDE_INDEX => general.mini_cqe_resp_stride_index(),
            _ => true,
        }
}

/// QUERY_CQ: the context with the current counters.
pub(in crate::hca) fn query(
    call: &mut Call<'_>,
    input: &QueryCqIn,
    output: &mut QueryCqOut,
) -> Outcome {
    let cq = call.find(kind::Cq, input.cqn())?;
    let context = output.cq_context_mut();
    *context = cq.context;
    context.set_status(match cq.failure {
        None => CqStatus::OK,
        Some(CqErrorSyndrome::OVERRUN) => CqStatus::OVERFLOW,
        Some(_) => CqStatus::WRITE_FAIL,
    });
    context.set_st(match cq.arm {
        _ if cq.context.always_armed_cq() => CqState::ALWAYS_ARMED,
        Arm::Idle => CqState::FIRED,
        Arm::Next { .. } => CqState::ARMED,
        Arm::Solicited { .. } => CqState::SOLICITED_ARMED,
    });
    context.set_producer_counter(cq.producer & INDEX_MASK);
    let word = call.hca().memory.load32(
        cq.record.wrapping_add(offset_of!(hot::CqDoorbellRecord, cq_record_consumer) as u64),
    );
    let taken = CqRecordConsumer::from_bits(word.map(u32::from_be).unwrap_or(0));
    context.set_consumer_counter(taken.consumer_index());
    context.set_last_notified_index(cq.notified & INDEX_MASK);
    context.set_last_solicit_index(cq.solicited.unwrap_or(0) & INDEX_MASK);
    Ok(())
}

/// MODIFY_CQ.
pub(in crate::hca) fn modify(
    call: &mut Call<'_>,
    input: &ModifyCqIn,
    _: &mut ModifyCqOut,
) -> Outcome {
    let number = input.cqn();
    call.find(kind::Cq, number)?;
    if call.op_mod == ModifyCqIn::RESIZE {
        return resize(call, input);
    }
    let general = call.hca().caps.general();
    let select = input.modify_field_select();
    let field = |field: CqModifyField, capable: bool| match select & field.0 != 0 {
        true if !capable => Err(Refusal::CqField),
        selected => Ok(selected),
    };
    let period = field(CqModifyField::PERIOD, general.cq_moderation())?;
    let count = field(CqModifyField::MAX_COUNT, general.cq_moderation())?;
    let overrun = field(CqModifyField::OVERRUN_IGNORE, general.cq_oi())?;
    let eq = field(CqModifyField::EQN, general.cq_eq_remap())?;
    let mode = field(CqModifyField::PERIOD_MODE, general.cq_period_mode_modify())?;
    let known = CqModifyField::INFO.values.iter().fold(0, |bits, &(_, bit)| bits | bit as u32);
    if select & !known != 0 {
        return Err(Refusal::CqField);
    }
    let new = input.cq_context();
    let eqn = new.c_eqn_or_apu_element();
    if eq {
        // The element of a CQ of the DPA cannot change.
        if !matches!(call.find(kind::Cq, number)?.target, EventTarget::Eq(_)) {
            return Err(Refusal::CqField);
        }
        call.find(kind::Eq, eqn)?;
    }
    let from_cqe = new.cq_period_mode() == CqPeriodMode::START_FROM_CQE;
    let unsupported = from_cqe && !general.cq_period_start_from_cqe();
    if mode && (unsupported || new.cq_period_mode().0 > 1) {
        return Err(Refusal::Unsupported);
    }
    call.change(kind::Cq, number, |cq| {
        if period {
            cq.context.set_cq_period(new.cq_period());
        }
        if count {
            cq.context.set_cq_max_count(new.cq_max_count());
        }
        if overrun {
            cq.overrun_ignore = new.oi();
            cq.context.set_oi(new.oi());
        }
        if eq {
            cq.target = EventTarget::Eq(eqn);
            cq.context.set_c_eqn_or_apu_element(eqn);
        }
        if mode {
            cq.context.set_cq_period_mode(new.cq_period_mode());
        }
    })
}

/// MODIFY_CQ with op_mod RESIZE: another buffer of the requested number of entries. Unselected
/// fields stay the same.
fn resize(call: &mut Call<'_>, input: &ModifyCqIn) -> Outcome {
    let number = input.cqn();
    let general = call.hca().caps.general();
    if !general.cq_resize() {
        return Err(Refusal::Unsupported);
    }
    let select = input.modify_field_select();
    let known = CqResizeField::INFO.values.iter().fold(0, |bits, &(_, bit)| bits | bit as u32);
    if select & !known != 0 {
        return Err(Refusal::CqField);
    }
    let selected = |field: CqResizeField| select & field.0 != 0;
    let (cq, new) = (call.find(kind::Cq, number)?, input.cq_context());
    let mut context = cq.context;
    if selected(CqResizeField::LOG_CQ_SIZE) {
        context.set_log_cq_size(new.log_cq_size());
    }
    if selected(CqResizeField::PAGE_OFFSET) {
        context.set_page_offset(new.page_offset());
    }
    if selected(CqResizeField::LOG_PAGE_SIZE) {
        context.set_log_page_size(new.log_page_size());
    }
    check_size(&context, general)?;
    let log_size = context.log_cq_size();
    let umem = input.cq_umem_valid().then(|| input.cq_umem_id());
    let spec = BufferSpec {
        umem: umem.map(|id| (id, input.cq_umem_offset())),
        log_page_size: context.log_page_size(),
        page_offset: context.page_offset(),
        page_offset_bits: umem::CONTEXT_OFFSET_BITS,
    };
    let entry = u64::from(cq.cqe_bytes);
    let memory = call.buffer(&spec, entry << log_size, entry, true)?;
    // The doorbell record does not move.
    let record_umem = context.dbr_umem_valid().then(|| context.dbr_umem_id());
    let umems = [umem, record_umem].into_iter().flatten().collect();
    let resize = Resize { cqn: number, memory, log_size: log_size.into(), context, umems };
    call.hca_mut().effects.push(Effect::CqResize(Box::new(resize)));
    Ok(())
}

/// Gives a CQ another buffer and releases the memory of the old one.
pub(crate) fn resized(hca: &mut Hca, cqn: u32, context: CqContext, umems: Vec<u32>) {
    hca.objects.change(kind::Cq, cqn, |cq| (cq.context, cq.umems) = (context, umems));
}

/// Removes a CQ from the engine.
pub(in crate::hca) fn removed(hca: &mut Hca, number: u32, cq: Cq) {
    hca.effects.push(Effect::CqForgotten(number, cq.runtime));
}
