//! Send queues without a QP: for Ethernet frames, through a TIS, and for requests without a wire.

use verbless_prm::{
    CreateSqIn, CreateSqOut, HcaCap, ModifySqIn, ModifySqOut, QuerySqIn, QuerySqOut, SqContext,
    SqModifyField, SqState, WqType,
};

use super::call::{Call, Outcome};
use super::domain::check_uar;
use super::wq::{self, WqMemory};
use crate::hca::capability::check_timestamps;
use crate::hca::effect::Effect;
use crate::hca::objects::{SendQueue, Sq};
use crate::hca::refusal::Refusal;
use crate::hca::registry::kind;
use crate::hca::state::Hca;

/// Fields of the context that CREATE_SQ accepts.
const KNOWN: [&str; 9] = [
    "flush_in_error_en",
    "min_wqe_inline_mode",
    "state",
    "ts_format",
    "user_index",
    "cqn",
    "tis_lst_sz",
    "tis_num_0",
    "wq",
];

/// log2 of the bytes of a WQEBB.
const LOG_WQEBB: u8 = 6;

/// CREATE_SQ.
pub(in crate::hca) fn create(
    call: &mut Call<'_>,
    input: &CreateSqIn,
    output: &mut CreateSqOut,
) -> Outcome {
    let context = input.ctx();
    let wq = context.wq();
    let general = call.hca().caps.general();
    call.check_count(call.hca().objects.sqs.len(), general.log_max_sq())?;
    check_features(call, context, general)?;
    if context.state() != SqState::RST {
        return Err(Refusal::SqBegin);
    }
    if wq.wq_type() != WqType::CYCLIC || wq.log_wq_stride() != LOG_WQEBB {
        return Err(Refusal::WqShape);
    }
    if wq.log_wq_sz() > general.log_max_wq_sz() {
        return Err(Refusal::WqSize);
    }
    // Without a network interface, Linux creates the SQ of its write-combining test with PD 0,
    // which no context owns.
    if call.uid != 0 || wq.pd() != 0 {
        call.find(kind::Pd, wq.pd())?;
    }
    // The SQ of that test has no TIS and sends no frame.
    match context.tis_lst_sz() {
        0 => {}
        1 => {
            call.check_raw_transmit()?;
            call.find(kind::Tis, context.tis_num_0())?;
        }
        _ => return Err(Refusal::Unsupported),
    }
    check_uar(call, wq.uar_page())?;
    call.find(kind::Cq, context.cqn())?;
    let WqMemory { ring, record, umems } =
        call.wq_memory(&wq.into(), 1 << (LOG_WQEBB + wq.log_wq_sz()), 1 << LOG_WQEBB)?;
    let sq = Sq {
        uid: call.uid,
        state: SqState::RST,
        pd: wq.pd(),
        uar_page: wq.uar_page(),
        record,
        queue: SendQueue::new(ring, wq.log_wq_sz().into(), context.cqn()),
        umems,
        context: *context,
    };
    output.set_sqn(call.make(kind::Sq, sq)?);
    Ok(())
}

impl Call<'_> {
    /// Refuses the command of a user context that may not send arbitrary frames.
    ///
    /// Source: Linux `drivers/infiniband/hw/mlx5/devx.c` (`mlx5_ib_devx_create`), which requests
    /// the right for a process with CAP_NET_RAW. No public source says which command a device
    /// refuses.
    fn check_raw_transmit(&self) -> Outcome {
        const RAW_TX: u32 = 1;
        let hca = self.hca();
        let may = match hca.objects.uctxs.get(&self.uid) {
            Some(uctx) => uctx.cap & RAW_TX != 0,
            None => self.uid == 0,
        };
        let offered = hca.caps.general().uctx_cap() & RAW_TX != 0;
        if may || !offered { Ok(()) } else { Err(Refusal::RawTransmit) }
    }
}

/// Refuses features that the model or the capabilities do not offer.
fn check_features(call: &Call<'_>, context: &SqContext, general: &HcaCap) -> Outcome {
    call.check_known_fields(context, &KNOWN)?;
    call.only_wq(context.wq(), "uar_page")?;
    check_timestamps(context.ts_format(), general.sq_ts_format())
}

/// MODIFY_SQ.
pub(in crate::hca) fn modify(
    call: &mut Call<'_>,
    input: &ModifySqIn,
    _: &mut ModifySqOut,
) -> Outcome {
    let number = input.sqn();
    let new = input.ctx();
    let (from, to) = (call.find(kind::Sq, number)?.state, new.state());
    if input.sq_state() != from || !wq::is_legal_transition(from, to) {
        return Err(Refusal::SqState);
    }
    let select = input.modify_bitmask();
    if !wq::selects_known(select, SqModifyField::INFO) {
        return Err(Refusal::SqField);
    }
    // Neither pacing nor scheduling is modelled, so only the values for "none" are accepted.
    let chosen = |field: SqModifyField, value: u16| select & field.0 != 0 && value != 0;
    if chosen(SqModifyField::PACKET_PACING_RATE_LIMIT_INDEX, new.packet_pacing_rate_limit_index())
        || chosen(SqModifyField::QOS_QUEUE_GROUP_ID, new.qos_queue_group_id())
    {
        return Err(Refusal::Unsupported);
    }
    let hca = call.hca_mut();
    let sq = hca.objects.sqs.get_mut(&number).ok_or(Refusal::NoSuchSq)?;
    hca.effects.push(match to {
        SqState::RST => Effect::SqForgotten(number, sq.queue.reset()),
        SqState::ERR => Effect::SqToError(number),
        _ => Effect::SenderReady(number),
    });
    sq.state = to;
    Ok(())
}

/// QUERY_SQ: the context with the current state and counters.
pub(in crate::hca) fn query(
    call: &mut Call<'_>,
    input: &QuerySqIn,
    output: &mut QuerySqOut,
) -> Outcome {
    let sq = call.find(kind::Sq, input.sqn())?;
    let context = output.sq_context_mut();
    *context = sq.context;
    context.set_state(sq.state);
    let wq = context.wq_mut();
    wq.set_hw_counter(sq.queue.consumer.into()).set_sw_counter(sq.queue.producer.into());
    Ok(())
}

/// Removes an SQ from the engine.
pub(in crate::hca) fn removed(hca: &mut Hca, number: u32, sq: Sq) {
    hca.effects.push(Effect::SqForgotten(number, sq.queue.runtime));
}
