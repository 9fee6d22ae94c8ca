//! Receive queues of Ethernet frames, with a ring of their own or on an RMP.

use verbless_prm::{
    CreateRqIn, CreateRqOut, MemRqType, ModifyRqIn, ModifyRqOut, QueryRqIn, QueryRqOut, RqContext,
    RqModifyField, RqState, WqContext, WqType,
};

use super::call::{Call, Outcome};
use super::wq::{self, WqMemory};
use crate::hca::capability::check_timestamps;
use crate::hca::effect::Effect;
use crate::hca::objects::{ReceiveQueue, Rq, SrqContext};
use crate::hca::refusal::Refusal;
use crate::hca::registry::kind;
use crate::hca::state::Hca;

/// Fields of the context that CREATE_RQ accepts.
const KNOWN: [&str; 10] = [
    "vsd",
    "mem_rq_type",
    "state",
    "flush_in_error_en",
    "ts_format",
    "user_index",
    "cqn",
    "counter_set_id",
    "rmpn",
    "wq",
];

/// CREATE_RQ.
pub(in crate::hca) fn create(
    call: &mut Call<'_>,
    input: &CreateRqIn,
    output: &mut CreateRqOut,
) -> Outcome {
    let context = input.ctx();
    let general = call.hca().caps.general();
    call.check_count(call.hca().objects.rqs.len(), general.log_max_rq())?;
    call.check_known_fields(context, &KNOWN)?;
    check_timestamps(context.ts_format(), general.rq_ts_format())?;
    if context.state() != RqState::RST {
        return Err(Refusal::RqBegin);
    }
    check_vlan(call, context)?;
    call.find(kind::Cq, context.cqn())?;
    call.check_counter(context.counter_set_id())?;
    let mut rq = Rq {
        uid: call.uid,
        state: RqState::RST,
        pd: None,
        record: 0,
        queue: None,
        srq: None,
        umems: Vec::new(),
        context: *context,
    };
    match context.mem_rq_type() {
        MemRqType::INLINE => own_queue(call, context, &mut rq)?,
        MemRqType::RMP => {
            let pool = call.find(kind::Srq, context.rmpn())?;
            if !matches!(pool.context, SrqContext::Rmp(_)) {
                return Err(Refusal::NoSuchSrq);
            }
            rq.srq = Some(context.rmpn());
        }
        _ => return Err(Refusal::Unsupported),
    }
    output.set_rqn(call.make(kind::Rq, rq)?);
    Ok(())
}

/// Checks that vlan_cap offers the stripping of VLAN tags, which an RQ requests by a vsd of 0.
fn check_vlan(call: &Call<'_>, context: &RqContext) -> Outcome {
    let strips = call.hca().caps.ethernet().vlan_cap();
    if context.vsd() || strips { Ok(()) } else { Err(Refusal::Unsupported) }
}

/// Sets up the ring of an RQ with its own ring.
fn own_queue(call: &mut Call<'_>, context: &RqContext, rq: &mut Rq) -> Outcome {
    let wq: &WqContext = context.wq();
    let general = call.hca().caps.general();
    call.only_wq(wq, "uar_page")?;
    let strides = general.log_min_stride_sz_rq()..=general.log_max_stride_sz_rq();
    if wq.wq_type() != WqType::CYCLIC || !strides.contains(&wq.log_wq_stride()) {
        return Err(Refusal::WqShape);
    }
    if wq.log_wq_sz() > general.log_max_wq_sz() {
        return Err(Refusal::WqSize);
    }
    call.find(kind::Pd, wq.pd())?;
    let (log_size, log_stride) = (u32::from(wq.log_wq_sz()), u32::from(wq.log_wq_stride()));
    let memory = call.wq_memory(&wq.into(), 1 << (log_size + log_stride), 1 << log_stride)?;
    let WqMemory { ring, record, umems } = memory;
    rq.pd = Some(wq.pd());
    rq.record = record;
    rq.umems = umems;
    rq.queue =
        Some(ReceiveQueue { memory: ring, log_size, log_stride, cqn: context.cqn(), consumer: 0 });
    Ok(())
}

/// MODIFY_RQ.
pub(in crate::hca) fn modify(
    call: &mut Call<'_>,
    input: &ModifyRqIn,
    _: &mut ModifyRqOut,
) -> Outcome {
    let (number, new) = (input.rqn(), input.ctx());
    let (from, to) = (call.find(kind::Rq, number)?.state, new.state());
    if input.rq_state() != from || !wq::is_legal_transition(wq::as_sq(from), wq::as_sq(to)) {
        return Err(Refusal::RqState);
    }
    let select = input.modify_bitmask();
    if !wq::selects_known(select, RqModifyField::INFO) {
        return Err(Refusal::RqField);
    }
    // lwm events and scatter_fcs are not modelled, and counter_set_id cannot change.
    let chosen = |field: RqModifyField, value: u16| select & field.0 != 0 && value != 0;
    if chosen(RqModifyField::WQ_LWM, new.wq().lwm())
        || chosen(RqModifyField::SCATTER_FCS, new.scatter_fcs().into())
        || chosen(RqModifyField::COUNTER_SET_ID, new.counter_set_id().into())
    {
        return Err(Refusal::Unsupported);
    }
    if select & RqModifyField::VSD.0 != 0 {
        check_vlan(call, new)?;
    }
    let hca = call.hca_mut();
    let rq = hca.objects.rqs.get_mut(&number).ok_or(Refusal::NoSuchRq)?;
    if select & RqModifyField::VSD.0 != 0 {
        rq.context.set_vsd(new.vsd());
    }
    match to {
        RqState::RST => {
            if let Some(queue) = &mut rq.queue {
                queue.consumer = 0;
            }
            hca.effects.push(Effect::RqForgotten(number));
        }
        RqState::ERR => hca.effects.push(Effect::RqToError(number)),
        _ => {}
    }
    rq.state = to;
    Ok(())
}

/// QUERY_RQ: the context with the current state and counters.
pub(in crate::hca) fn query(
    call: &mut Call<'_>,
    input: &QueryRqIn,
    output: &mut QueryRqOut,
) -> Outcome {
    let rq = call.find(kind::Rq, input.rqn())?;
    let context = output.rq_context_mut();
    *context = rq.context;
    context.set_state(rq.state);
    let taken = rq.queue.as_ref().map_or(0, |queue| queue.consumer.into());
    context.wq_mut().set_hw_counter(taken);
    Ok(())
}

/// Removes an RQ from the engine.
pub(in crate::hca) fn removed(hca: &mut Hca, number: u32, _: Rq) {
    hca.effects.push(Effect::RqForgotten(number));
}
