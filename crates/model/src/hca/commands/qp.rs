//! Queue pairs: creation in state RST, query, destruction. `transition` holds their transitions.

use std::mem::offset_of;
use verbless_prm::hot::{self, QpRecordReceive};
use verbless_prm::{
    CreateQpIn, CreateQpOut, EndPaddingMode, HcaCap, PathMigrationState, QpContext,
    QpContextExtension, QueryQpIn, QueryQpOut, RqType, ScatterToCqeRequester,
    ScatterToCqeResponder,
};

use super::call::{Call, Outcome, own_function};
use super::domain::check_uar;
use super::umem::{self, BufferSpec};
use crate::connection::PSN_MASK;
use crate::hca::capability::check_timestamps;
use crate::hca::effect::Effect;
use crate::hca::objects::{QpObject, QpState, ReceiveQueue, SendQueue};
use crate::hca::qp_type::QpType;
use crate::hca::refusal::Refusal;
use crate::hca::registry::kind;
use crate::hca::state::Hca;

/// Fields of the context that CREATE_QP accepts, that depend on a capability, or that later
/// commands set and query.
const KNOWN: [&str; 62] = [
    "state",
    "st",
    "isolate_vl_tc",
    "pm_state",
    "req_e2e_credit_mode",
    "end_padding_mode",
    "wq_signature",
    "block_lb_mc",
    "latency_sensitive",
    "drain_sigerr",
    "pd",
    "mtu",
    "log_msg_max",
    "log_rq_size",
    "log_rq_stride",
    "no_sq",
    "log_sq_size",
    "ts_format",
    "rlky",
    "fre",
    "counter_set_id",
    "uar_page",
    "user_index",
    "log_page_size",
    "remote_qpn",
    "deth_sqpn",
    "xrcd",
    "primary_address_path",
    "secondary_address_path",
    "log_ack_req_freq",
    "log_sra_max",
    "retry_count",
    "rnr_retry",
    "cur_rnr_retry",
    "cur_retry_count",
    "next_send_psn",
    "cqn_snd",
    "last_acked_psn",
    "ssn",
    "log_rra_max",
    "atomic_mode",
    "rre",
    "rwe",
    "rae",
    "page_offset",
    "cd_slave_receive",
    "cd_slave_send",
    "cd_master",
    "min_rnr_nak",
    "next_rcv_psn",
    "cqn_rcv",
    "dbr_addr",
    "q_key",
    "rq_type",
    "srqn_rmpn_xrqn",
    "rmsn",
    "hw_sq_wqebb_counter",
    "sw_sq_wqebb_counter",
    "cs_req",
    "cs_res",
    "dbr_umem_valid",
    "dbr_umem_id",
];

/// Bytes of a WQEBB.
const WQEBB: u64 = 64;
/// log2 of the unit of log_rq_stride in bytes.
const LOG_STRIDE_UNIT: u32 = 4;

/// CREATE_QP.
pub(in crate::hca) fn create(
    call: &mut Call<'_>,
    input: &CreateQpIn,
    output: &mut CreateQpOut,
) -> Outcome {
    let context = input.qpc();
    let qp_type = call.qp_type(context.st())?;
    let mmo = if input.qpc_ext() { extension(call, qp_type)? } else { false };
    let general = call.hca().caps.general();
    call.check_count(call.hca().objects.qps.len(), general.log_max_qp())?;
    if input.input_qpn() != 0 {
        return Err(Refusal::QpNumber);
    }
    if input.opt_param_mask() != 0 {
        return Err(Refusal::QpOptional);
    }
    if input.ece() != 0 {
        return Err(Refusal::Unsupported);
    }
    own_function(input.cmd_on_behalf(), input.function_id())?;
    check_features(call, context, general)?;
    // Only the kernel may use the reserved lkey (all memory) and fast registration.
    if call.uid != 0 && (context.rlky() || context.fre()) {
        return Err(Refusal::KernelOnlyField);
    }
    check_timestamps(context.ts_format(), call.hca().caps.qp_timestamps())?;
    // A UMR QP accesses mkeys of every PD: the PD in its context is ignored.
    if !qp_type.any_domain {
        call.find(kind::Pd, context.pd())?;
    }
    call.check_counter(context.counter_set_id())?;

    let has_sq = !context.no_sq();
    let has_rq = match context.rq_type() {
        RqType::REGULAR => true,
        RqType::NONE => false,
        RqType::SRQ => false,
        _ => return Err(Refusal::Unsupported),
    };
    let srq = match context.rq_type() {
        RqType::SRQ => {
            call.find(kind::Srq, context.srqn_rmpn_xrqn())?;
            Some(context.srqn_rmpn_xrqn())
        }
        _ => None,
    };
    let has_queue = has_queue(context);
    let log_stride = u32::from(context.log_rq_stride()) + LOG_STRIDE_UNIT;
    let (log_rq, log_sq) = (u32::from(context.log_rq_size()), u32::from(context.log_sq_size()));
    let max = u32::from(general.log_max_qp_sz());
    if (has_rq && log_rq > max) || (has_sq && log_sq > max) {
        return Err(Refusal::QpSize);
    }
    if has_rq && 1 << log_stride > u32::from(general.max_wqe_sz_rq()) {
        return Err(Refusal::QpStride);
    }
    if has_sq || has_rq {
        check_uar(call, context.uar_page())?;
    }
    // A QP with only one of the two queues still needs both CQs, as on hardware. A UMR QP without
    // an RQ needs only the send CQ.
    let sends_only = qp_type.any_domain && !has_rq;
    if has_queue {
        call.find(kind::Cq, context.cqn_snd())?;
    }
    if has_queue && !sends_only || context.cqn_rcv() != 0 {
        call.find(kind::Cq, context.cqn_rcv())?;
    }

    let (requester_inline, responder_inline) = inline(call, context)?;
    // DevX sets both flags as valid, whatever the client wrote.
    let umem = (has_queue && input.wq_umem_valid()).then(|| input.wq_umem_id());
    let record_umem = (has_queue && context.dbr_umem_valid()).then(|| context.dbr_umem_id());
    let record = match has_queue {
        true => call.record(record_umem, context.dbr_addr())?,
        false => 0,
    };
    let rq_bytes = if has_rq { 1 << (log_rq + log_stride) } else { 0 };
    let sq_bytes = if has_sq { WQEBB << log_sq } else { 0 };
    let spec = BufferSpec {
        umem: umem.map(|id| (id, input.wq_umem_offset())),
        log_page_size: context.log_page_size(),
        page_offset: context.page_offset(),
        page_offset_bits: umem::CONTEXT_OFFSET_BITS,
    };
    // One buffer: the receive queue, then the send queue, which begins on a whole WQEBB.
    let whole = match has_queue {
        true => Some(call.buffer(&spec, rq_bytes + sq_bytes, WQEBB, false)?),
        false => None,
    };
    let queue = |at, length| {
        whole.as_ref().and_then(|whole| whole.slice(at, length)).ok_or(Refusal::UmemBounds)
    };
    let rq = has_rq.then(|| {
        queue(0, rq_bytes).map(|memory| ReceiveQueue {
            memory,
            log_size: log_rq,
            log_stride,
            cqn: context.cqn_rcv(),
            consumer: 0,
        })
    });
    let sq = has_sq.then(|| {
        let memory = queue(rq_bytes, sq_bytes)?;
        if memory.offset % WQEBB != 0 {
            return Err(Refusal::BufferMisaligned);
        }
        Ok(SendQueue::new(memory, log_sq, context.cqn_snd()))
    });
    let qp = QpObject {
        uid: call.uid,
        state: QpState::Reset,
        qp_type,
        pd: context.pd(),
        uar_page: context.uar_page(),
        record,
        sq: sq.transpose()?,
        rq: rq.transpose()?,
        srq,
        remote_qpn: 0,
        remote: None,
        port: 1,
        user_index: context.user_index(),
        requester_inline,
        mmo,
        responder_inline,
        log_mtu: 8,
        requester: Default::default(),
        responder: Default::default(),
        umems: [umem, record_umem].into_iter().flatten().collect(),
        groups: Vec::new(),
        runtime: Default::default(),
        context: *context,
    };
    output.set_qpn(call.make(kind::Qp, qp)?);
    Ok(())
}

/// Whether a QP has an SQ, an RQ or an SRQ. A QP with none of them is used by the device itself,
/// and has neither CQs nor a doorbell record.
///
/// Source: DPDK `drivers/common/mlx5/mlx5_devx_cmds.c` (`mlx5_devx_cmd_create_qp`) creates such QPs
/// for `vdpa`; it sets no pm_state in them.
fn has_queue(context: &QpContext) -> bool {
    !context.no_sq() || context.rq_type() != RqType::NONE
}

/// Bytes that a requester's and a responder's CQE may carry inline. 64 bytes need a 128-byte CQE,
/// and go into its first half.
///
/// Source: Linux `drivers/infiniband/hw/mlx5/qp.c` (`configure_requester_scat_cqe`) and UCX
/// (`uct_ib_mlx5_inl_cqe`) request 64 for CQEs of 128 bytes, and 32 otherwise.
fn inline(call: &Call<'_>, context: &QpContext) -> Result<(u8, u8), Refusal> {
    let requester = match context.cs_req() {
        ScatterToCqeRequester::UP_TO_32B => 32,
        ScatterToCqeRequester::UP_TO_64B => 64,
        _ => 0,
    };
    let responder = match context.cs_res() {
        ScatterToCqeResponder::UP_TO_32B => 32,
        ScatterToCqeResponder::UP_TO_64B => 64,
        _ => 0,
    };
    for (bytes, cqn) in [(requester, context.cqn_snd()), (responder, context.cqn_rcv())] {
        if bytes == 64 && call.find(kind::Cq, cqn)?.cqe_bytes != 128 {
            return Err(Refusal::QpInlineCqe);
        }
    }
    Ok((requester, responder))
}

/// The field `mmo` of the context's extension, which precedes the page addresses. The model knows
/// no other field of it.
///
/// Source: DPDK `drivers/common/mlx5/mlx5_devx_cmds.c` (`mlx5_devx_cmd_create_qp`) sets it in this
/// way for queue pairs that copy memory, and never by INIT2INIT.
fn extension(call: &mut Call<'_>, qp_type: &QpType) -> Result<bool, Refusal> {
    let list = call.list;
    let extension = QpContextExtension::from_prefix(list).ok_or(Refusal::ListTooShort)?;
    call.list = &list[QpContextExtension::BYTES..];
    let mut known = QpContextExtension::zeroed();
    known.set_mmo(extension.mmo());
    let offered = qp_type.offers_copies(call.hca().caps.general());
    if extension.as_bytes() != known.as_bytes() || (extension.mmo() && !offered) {
        return Err(Refusal::Unsupported);
    }
    Ok(extension.mmo())
}

/// Refuses features without their capability.
fn check_features(call: &Call<'_>, context: &QpContext, general: &HcaCap) -> Outcome {
    let inline = context.cs_req() != ScatterToCqeRequester::DISABLED
        || context.cs_res() != ScatterToCqeResponder::DISABLED;
    let inline_known = ScatterToCqeRequester::name(context.cs_req()).is_some()
        && ScatterToCqeResponder::name(context.cs_res()).is_some();
    let cross_channel =
        context.cd_master() || context.cd_slave_send() || context.cd_slave_receive();
    call.check_known_fields(context, &KNOWN)?;
    let unsupported = context.wq_signature()
        || (context.block_lb_mc() && !general.block_lb_mc())
        || (context.drain_sigerr() && !general.drain_sigerr())
        || (context.isolate_vl_tc() && !general.isolate_vl_tc_new())
        || (context.end_padding_mode() != EndPaddingMode::SCATTER_AS_IS && !general.end_pad())
        || (inline && !general.sctr_data_cqe())
        || !inline_known
        || (cross_channel && !general.cd())
        || (context.deth_sqpn() != 0 && !general.set_deth_sqpn())
        || (context.req_e2e_credit_mode() != 0 && !general.qp_packet_based());
    if unsupported {
        return Err(Refusal::Unsupported);
    }
    if has_queue(context) { check_migration(context) } else { Ok(()) }
}

/// Checks that the migration state is MIGRATED: path migration is not modelled.
pub(super) fn check_migration(context: &QpContext) -> Outcome {
    let migrated = context.pm_state() == PathMigrationState::MIGRATED;
    if migrated { Ok(()) } else { Err(Refusal::QpMigration) }
}

/// QUERY_QP: the context with the current state and counters.
pub(in crate::hca) fn query(
    call: &mut Call<'_>,
    input: &QueryQpIn,
    output: &mut QueryQpOut,
) -> Outcome {
    let qp = call.find(kind::Qp, input.qpn())?;
    // The model has no context extension to return.
    if input.qpc_ext() {
        return Err(Refusal::Unsupported);
    }
    let context = output.qpc_mut();
    *context = qp.context;
    context.set_state(qp.state.to_prm());
    context.set_next_send_psn(qp.requester.psn & PSN_MASK);
    context.set_next_rcv_psn(qp.responder.psn & PSN_MASK);
    context.set_cur_retry_count(qp.requester.retries_left.min(7));
    context.set_cur_rnr_retry(qp.requester.rnr_retries_left.min(7));
    if let Some(sq) = &qp.sq {
        context.set_hw_sq_wqebb_counter(sq.consumer);
        context.set_sw_sq_wqebb_counter(sq.producer);
    }
    if let Some(rq) = &qp.rq {
        // The indexes as the device last read them. A record that cannot be read counts as 0.
        let word = call.hca().memory.load32(
            qp.record.wrapping_add(offset_of!(hot::QpDoorbellRecord, qp_record_receive) as u64),
        );
        let posted = QpRecordReceive::from_bits(word.map(u32::from_be).unwrap_or(0));
        context.set_hw_rq_counter(rq.consumer.into());
        context.set_sw_rq_counter(posted.receive_counter().into());
    }
    Ok(())
}

/// Removes a QP from its groups and from the engine.
pub(in crate::hca) fn removed(hca: &mut Hca, number: u32, qp: QpObject) {
    for group in &qp.groups {
        hca.objects.groups.leave(group, number);
    }
    let send = qp.sq.map(|sq| sq.runtime);
    hca.effects.push(Effect::QpForgotten(number, qp.runtime, send));
}
