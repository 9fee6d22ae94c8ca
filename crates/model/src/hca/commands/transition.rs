//! QP transitions: each starts from certain states, sets certain fields of the context, and leaves
//! the others unchanged.

use verbless_prm::{
    AtomicMode, Init2initQpIn, Init2initQpOut, Init2rtrQpIn, Init2rtrQpOut, OptParamMask,
    OptParamMask9532, PathMigrationState, PathMtu, Qp2errIn, Qp2errOut, Qp2rstIn, Qp2rstOut,
    QpContext, Rst2initQpIn, Rst2initQpOut, Rtr2rtsQpIn, Rtr2rtsQpOut, Rts2rtsQpIn, Rts2rtsQpOut,
    SqdRtsQpIn, SqdRtsQpOut, Sqerr2rtsQpIn, Sqerr2rtsQpOut,
};

use super::call::{Call, Outcome};
use super::qp::check_migration;
use super::service::{Transition, options};
use crate::hca::effect::Effect;
use crate::hca::objects::{QpObject, QpState};
use crate::hca::refusal::Refusal;
use crate::hca::registry::kind;

/// The parameters of a transition, from any command.
struct TransitionRequest<'a> {
    qpn: u32,
    optional: u32,
    ece: u32,
    context: &'a QpContext,
}

macro_rules! request {
    ($input:ident) => {
        TransitionRequest {
            qpn: $input.qpn(),
            optional: $input.opt_param_mask(),
            ece: $input.ece(),
            context: $input.qpc(),
        }
    };
}

impl TransitionRequest<'_> {
    /// Refuses the transition unless the QP is in `from` and every optional field is in `accepted`.
    fn check(&self, call: &Call<'_>, from: QpState, accepted: u32) -> Outcome {
        if call.find(kind::Qp, self.qpn)?.state != from {
            return Err(Refusal::QpState);
        }
        if self.optional & !accepted != 0 {
            return Err(Refusal::QpOptional);
        }
        if self.ece != 0 && !call.hca().caps.general().ece_support() {
            return Err(Refusal::Unsupported);
        }
        if self.selects(OptParamMask::PM_STATE) {
            check_migration(self.context)?;
        }
        if self.selects(OptParamMask::ALT_ADDR_PATH) && !call.hca().caps.general().apm() {
            return Err(Refusal::Unsupported);
        }
        if self.selects(OptParamMask::LAG_TX_AFF) {
            check_lag_port(call, self.context)?;
        }
        if self.selects(OptParamMask::PKEY_INDEX) {
            check_pkey(call, self.context)?;
        }
        if self.selects(OptParamMask::PRI_PORT) {
            check_port(call, self.context)?;
        }
        if self.selects(OptParamMask::COUNTER_SET_ID) {
            call.check_counter(self.context.counter_set_id())?;
        }
        Ok(())
    }

    /// The optional fields that a QP of this type accepts in a transition.
    fn options(&self, call: &Call<'_>, step: Transition) -> Result<u32, Refusal> {
        let general = call.hca().caps.general();
        Ok(options(call.find(kind::Qp, self.qpn)?.qp_type, step, general))
    }

    fn selects(&self, field: OptParamMask) -> bool {
        self.optional & field.0 != 0
    }

    /// Copies the selected optional fields; `check` must have passed.
    fn copy_selected(&self, qp: &mut QpObject) {
        let new = self.context;
        if self.selects(OptParamMask::RRE) {
            qp.context.set_rre(new.rre());
        }
        if self.selects(OptParamMask::RWE) {
            qp.context.set_rwe(new.rwe());
        }
        if self.selects(OptParamMask::RAE) {
            qp.context.set_rae(new.rae()).set_atomic_mode(new.atomic_mode());
        }
        if self.selects(OptParamMask::Q_KEY) {
            qp.context.set_q_key(new.q_key());
        }
        if self.selects(OptParamMask::LAG_TX_AFF) {
            qp.context.set_lag_tx_port_affinity(new.lag_tx_port_affinity());
        }
        if self.selects(OptParamMask::RNR_TIMEOUT) {
            qp.context.set_min_rnr_nak(new.min_rnr_nak());
        }
        if self.selects(OptParamMask::COUNTER_SET_ID) {
            qp.context.set_counter_set_id(new.counter_set_id());
        }
        let path = new.primary_address_path();
        let own_path = qp.context.primary_address_path_mut();
        if self.selects(OptParamMask::PKEY_INDEX) {
            own_path.set_pkey_index(path.pkey_index());
        }
        if self.selects(OptParamMask::PRI_PORT) {
            own_path.set_vhca_port_num(path.vhca_port_num());
        }
        update_from_context(qp);
    }
}

/// Updates the data path's values from the context.
fn update_from_context(qp: &mut QpObject) {
    let context = &qp.context;
    qp.port = context.primary_address_path().vhca_port_num();
    qp.remote_qpn = context.remote_qpn();
    qp.responder.min_rnr_timer = context.min_rnr_nak();
    qp.responder.allow_read = context.rre();
    qp.responder.allow_write = context.rwe();
    qp.responder.allow_atomic = context.rae() && context.atomic_mode() != AtomicMode::NONE;
    qp.responder.max_dest_rd_atomic = 1 << context.log_rra_max();
    qp.requester.max_rd_atomic = 1 << context.log_sra_max();
    qp.requester.retry_limit = context.retry_count();
    qp.requester.rnr_retry_limit = context.rnr_retry();
    qp.requester.ack_timeout = context.primary_address_path().ack_timeout();
    qp.requester.retries_left = context.retry_count();
    qp.requester.rnr_retries_left = context.rnr_retry();
}

/// Refuses a context extension: none is modelled.
fn no_extension(present: bool, optional: u64) -> Outcome {
    match (present, optional) {
        (_, optional) if optional != 0 => Err(Refusal::QpOptional),
        (true, _) => Err(Refusal::Unsupported),
        _ => Ok(()),
    }
}

fn check_port(call: &Call<'_>, context: &QpContext) -> Outcome {
    let port = usize::from(context.primary_address_path().vhca_port_num());
    if (1..=call.hca().ports.len()).contains(&port) { Ok(()) } else { Err(Refusal::PathPort) }
}

/// Checks the bond port that a QP sends from: 0 leaves the choice to the device.
fn check_lag_port(call: &Call<'_>, context: &QpContext) -> Outcome {
    let general = call.hca().caps.general();
    let max = if general.lag_tx_port_affinity() { general.num_lag_ports() } else { 0 };
    if context.lag_tx_port_affinity() <= max { Ok(()) } else { Err(Refusal::QpLagPort) }
}

fn check_pkey(call: &Call<'_>, context: &QpContext) -> Outcome {
    call.hca()
        .pkey(context.primary_address_path().pkey_index().into())
        .map_err(|_| Refusal::PathPkey)?;
    Ok(())
}

fn check_atomic_mode(call: &Call<'_>, context: &QpContext) -> Outcome {
    let ok = match context.atomic_mode() {
        AtomicMode::NONE => true,
        AtomicMode::IB_SPEC | AtomicMode::ONLY_8B | AtomicMode::UP_TO_8B => {
            call.hca().caps.general().atomic()
        }
        // Each larger mode needs the capability bit of its size: bit n for 2^n bytes.
        AtomicMode(mode) if AtomicMode(mode).name().is_some() => {
            call.hca().caps.atomic().atomic_size_qp() >> mode != 0
        }
        _ => false,
    };
    if ok { Ok(()) } else { Err(Refusal::QpAtomicMode) }
}

/// RST2INIT.
pub(in crate::hca) fn rst2init(
    call: &mut Call<'_>,
    input: &Rst2initQpIn,
    output: &mut Rst2initQpOut,
) -> Outcome {
    let request = request!(input);
    request.check(call, QpState::Reset, OptParamMask::COUNTER_SET_ID.0)?;
    let new = request.context;
    // CREATE_QP set MIGRATED. A caller that leaves the field 0, as DPDK and rdma-core's steering
    // do, keeps it.
    if new.pm_state() != PathMigrationState::ARMED {
        check_migration(new)?;
    }
    check_port(call, new)?;
    check_lag_port(call, new)?;
    check_pkey(call, new)?;
    check_atomic_mode(call, new)?;
    call.check_counter(new.counter_set_id())?;
    call.change(kind::Qp, request.qpn, |qp| {
        let path = new.primary_address_path();
        let own_path = qp.context.primary_address_path_mut();
        own_path.set_pkey_index(path.pkey_index()).set_vhca_port_num(path.vhca_port_num());
        let context = &mut qp.context;
        context.set_rre(new.rre()).set_rwe(new.rwe()).set_rae(new.rae());
        context.set_atomic_mode(new.atomic_mode());
        context.set_q_key(new.q_key());
        context.set_lag_tx_port_affinity(new.lag_tx_port_affinity());
        context.set_counter_set_id(new.counter_set_id());
        request.copy_selected(qp);
        qp.state = QpState::Init;
    })?;
    output.set_ece(request.ece);
    Ok(())
}

/// INIT2INIT.
pub(in crate::hca) fn init2init(
    call: &mut Call<'_>,
    input: &Init2initQpIn,
    output: &mut Init2initQpOut,
) -> Outcome {
    let request = request!(input);
    request.check(call, QpState::Init, request.options(call, Transition::Init2Init)?)?;
    let mmo = extension(call, request.qpn, input)?;
    call.change(kind::Qp, request.qpn, |qp| {
        request.copy_selected(qp);
        qp.mmo = mmo.unwrap_or(qp.mmo);
    })?;
    output.set_ece(request.ece);
    Ok(())
}

/// The field `mmo` of the context's extension in INIT2INIT; the model knows no other field of it.
fn extension(call: &Call<'_>, qpn: u32, input: &Init2initQpIn) -> Result<Option<bool>, Refusal> {
    let mask = input.opt_param_mask_95_32();
    if !input.qpc_ext() || mask != OptParamMask9532::INIT2INIT_MMO.0 {
        no_extension(input.qpc_ext(), mask)?;
        return Ok(None);
    }
    if !call.find(kind::Qp, qpn)?.qp_type.offers_copies(call.hca().caps.general()) {
        return Err(Refusal::QpOptional);
    }
    Ok(Some(input.qpc_data_ext().mmo()))
}

/// INIT2RTR.
pub(in crate::hca) fn init2rtr(
    call: &mut Call<'_>,
    input: &Init2rtrQpIn,
    output: &mut Init2rtrQpOut,
) -> Outcome {
    let request = request!(input);
    request.check(call, QpState::Init, request.options(call, Transition::Init2Rtr)?)?;
    let new = request.context;
    let general = call.hca().caps.general();
    let log_mtu = 7 + u32::from(new.mtu().0);
    let qp_type = call.find(kind::Qp, request.qpn)?.qp_type;
    let connected = qp_type.connected;
    let known = (PathMtu::MTU_256..=PathMtu::MTU_4096).contains(&new.mtu());
    // Drivers set the maximum for datagrams; the port limits their length anyway.
    let max = match connected {
        true => call.hca().profile.port().active_mtu,
        false => call.hca().profile.port().max_mtu,
    };
    if !known || 1 << log_mtu > u32::from(max) {
        return Err(Refusal::QpMtu);
    }
    if new.log_msg_max() > general.log_max_msg() {
        return Err(Refusal::QpMessage);
    }
    if new.log_rra_max() > general.log_max_ra_res_qp() {
        return Err(Refusal::QpReads);
    }
    check_atomic_mode(call, new)?;
    // A datagram QP has no peer: each request carries its own path.
    let remote = match connected {
        true => Some(super::path::destination(call, qp_type, new.primary_address_path())?),
        false => None,
    };
    call.change(kind::Qp, request.qpn, |qp| {
        let context = &mut qp.context;
        // The whole path is new except for the values of RST2INIT: its P_Key is an optional field
        // here.
        if connected {
            let pkey_index = context.primary_address_path().pkey_index();
            *context.primary_address_path_mut() = *new.primary_address_path();
            context.primary_address_path_mut().set_pkey_index(pkey_index);
        }
        context.set_mtu(new.mtu()).set_log_msg_max(new.log_msg_max());
        context.set_remote_qpn(new.remote_qpn()).set_next_rcv_psn(new.next_rcv_psn());
        context.set_min_rnr_nak(new.min_rnr_nak()).set_log_rra_max(new.log_rra_max());
        context.set_atomic_mode(new.atomic_mode());
        request.copy_selected(qp);
        qp.log_mtu = log_mtu;
        qp.remote = remote;
        qp.responder.psn = new.next_rcv_psn();
        qp.state = QpState::Rtr;
    })?;
    output.set_ece(request.ece);
    Ok(())
}

/// RTR2RTS.
pub(in crate::hca) fn rtr2rts(
    call: &mut Call<'_>,
    input: &Rtr2rtsQpIn,
    output: &mut Rtr2rtsQpOut,
) -> Outcome {
    let request = request!(input);
    request.check(call, QpState::Rtr, request.options(call, Transition::Rtr2Rts)?)?;
    let new = request.context;
    if new.log_sra_max() > call.hca().caps.general().log_max_ra_req_qp() {
        return Err(Refusal::QpReads);
    }
    call.change(kind::Qp, request.qpn, |qp| {
        let context = &mut qp.context;
        context.set_next_send_psn(new.next_send_psn()).set_log_sra_max(new.log_sra_max());
        context.set_retry_count(new.retry_count()).set_rnr_retry(new.rnr_retry());
        context.set_log_ack_req_freq(new.log_ack_req_freq());
        let ack_timeout = new.primary_address_path().ack_timeout();
        context.primary_address_path_mut().set_ack_timeout(ack_timeout);
        request.copy_selected(qp);
        qp.requester.psn = new.next_send_psn();
        qp.state = QpState::Rts;
    })?;
    call.hca_mut().effects.push(Effect::SenderReady(request.qpn));
    output.set_ece(request.ece);
    Ok(())
}

/// RTS2RTS.
pub(in crate::hca) fn rts2rts(
    call: &mut Call<'_>,
    input: &Rts2rtsQpIn,
    output: &mut Rts2rtsQpOut,
) -> Outcome {
    let request = request!(input);
    let mut accepted = request.options(call, Transition::Rts2Rts)?;
    if call.hca().caps.general().rts2rts_qp_counters_set_id() {
        accepted |= OptParamMask::COUNTER_SET_ID.0;
    }
    request.check(call, QpState::Rts, accepted)?;
    no_extension(input.qpc_ext(), input.opt_param_mask_95_32())?;
    call.change(kind::Qp, request.qpn, |qp| request.copy_selected(qp))?;
    output.set_ece(request.ece);
    Ok(())
}

/// SQERR2RTS: restarts a QP of an unreliable service after a failed request.
pub(in crate::hca) fn sqerr2rts(
    call: &mut Call<'_>,
    input: &Sqerr2rtsQpIn,
    _: &mut Sqerr2rtsQpOut,
) -> Outcome {
    let request = TransitionRequest {
        qpn: input.qpn(),
        optional: input.opt_param_mask(),
        ece: 0,
        context: input.qpc(),
    };
    request.check(call, QpState::SqError, request.options(call, Transition::Recover)?)?;
    call.change(kind::Qp, request.qpn, |qp| {
        request.copy_selected(qp);
        qp.state = QpState::Rts;
    })?;
    call.hca_mut().effects.push(Effect::SenderReady(request.qpn));
    Ok(())
}

/// SQD_RTS: no modelled QP can be in the state SQD.
pub(in crate::hca) fn sqd2rts(
    call: &mut Call<'_>,
    input: &SqdRtsQpIn,
    _: &mut SqdRtsQpOut,
) -> Outcome {
    let request = TransitionRequest {
        qpn: input.qpn(),
        optional: input.opt_param_mask(),
        ece: 0,
        context: input.qpc(),
    };
    request.check(call, QpState::SqDrained, request.options(call, Transition::Recover)?)?;
    call.change(kind::Qp, request.qpn, |qp| {
        request.copy_selected(qp);
        qp.state = QpState::Rts;
    })?;
    call.hca_mut().effects.push(Effect::SenderReady(request.qpn));
    Ok(())
}

/// 2ERR, from any state: flushes the posted requests.
pub(in crate::hca) fn to_error(
    call: &mut Call<'_>,
    input: &Qp2errIn,
    _: &mut Qp2errOut,
) -> Outcome {
    call.find(kind::Qp, input.qpn())?;
    call.hca_mut().effects.push(Effect::QpToError(input.qpn()));
    Ok(())
}

/// 2RST, from any state: empties the queues and clears the counters.
pub(in crate::hca) fn to_reset(
    call: &mut Call<'_>,
    input: &Qp2rstIn,
    _: &mut Qp2rstOut,
) -> Outcome {
    call.find(kind::Qp, input.qpn())?;
    let (runtime, send) = call.change(kind::Qp, input.qpn(), |qp| {
        qp.state = QpState::Reset;
        qp.requester = Default::default();
        qp.responder = Default::default();
        qp.remote = None;
        qp.mmo = false;
        if let Some(rq) = &mut qp.rq {
            rq.consumer = 0;
        }
        (std::mem::take(&mut qp.runtime), qp.sq.as_mut().map(|sq| sq.reset()))
    })?;
    call.hca_mut().effects.push(Effect::QpForgotten(input.qpn(), runtime, send));
    Ok(())
}
