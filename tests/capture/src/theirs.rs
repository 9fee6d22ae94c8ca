//! Runs the cases with the real libibverbs and libmlx5.

use crate::memory::Pages;
use crate::recording::mark_of;
use crate::result::Result;
use crate::scenario::{Case, Cq, Mr, QpCase, Step};
use crate::verbs::{AddressHandle, Capabilities, Context, QpAttributes, Verbs, mask};
use crate::{mark, scenario};
use verbless_prm::{CqeSize, ServiceType};

/// The name of their side in a recording.
pub const SIDE: &str = "theirs";

/// Runs every case on the first device, each after its mark.
///
/// # Errors
/// If the libraries are missing, or refuse a call.
pub fn run(verbs: &Verbs, cases: &[(&'static str, Case)]) -> Result {
    let context = verbs.open()?;
    for (name, case) in cases {
        send_mark(&context, &mark_of(SIDE, name))?;
        do_case(verbs, &context, case).map_err(|error| format!("theirs, {name}: {error}"))?;
    }
    send_mark(&context, "end")
}

fn send_mark(context: &Context<'_>, name: &str) -> Result {
    context.general_command(&mark::command(name), &mut [0; mark::ANSWER])
}

fn do_case(verbs: &Verbs, context: &Context<'_>, case: &Case) -> Result {
    match case {
        Case::Open => verbs.open().map(drop),
        Case::Cq(Cq { cqe, cqe_size, overrun, moderation }) => {
            let wide = *cqe_size == CqeSize::BYTES_128;
            let cq = match (wide, overrun) {
                (false, false) => context.cq(*cqe)?,
                _ => context.special_cq(*cqe, wide, *overrun)?,
            };
            moderation.map_or(Ok(()), |(count, period)| cq.moderate(count, period))
        }
        Case::Mr(Mr { offset, length, access }) => {
            let pd = context.pd()?;
            let pages = Pages::new(offset + length)?;
            pd.register(&pages, *offset, *length, access.bits()).map(drop)
        }
        Case::Srq(case) => {
            let pd = context.pd()?;
            let srq = pd.srq(case.receives, case.sges)?;
            case.limit.map_or(Ok(()), |limit| srq.arm_limit(limit))
        }
        Case::Qp(qp) => do_qp(context, qp),
    }
}

fn do_qp(context: &Context<'_>, case: &QpCase) -> Result {
    let pd = context.pd()?;
    let send = context.cq(100)?;
    let other = if case.one_cq { None } else { Some(context.cq(100)?) };
    let srq = if case.shared { Some(pd.srq(64, 1)?) } else { None };
    let capabilities = Capabilities {
        max_send_wr: case.sends,
        max_recv_wr: case.receives,
        max_send_sge: case.send_sges,
        max_recv_sge: case.receive_sges,
        max_inline_data: case.inline,
    };
    let service = match case.service {
        ServiceType::RC => 2,
        ServiceType::UC => 3,
        ServiceType::UD => 4,
        other => panic!("verbs have no number for QPs of {other:?} here"),
    };
    let receive = other.as_ref().unwrap_or(&send);
    let qp = pd.qp(service, capabilities, case.signal_all, &send, receive, srq.as_ref())?;
    for step in &case.steps {
        let (attributes, given) = modification(case.service, step);
        qp.modify(&attributes, given)?;
    }
    Ok(())
}

/// The attributes and the mask for `ibv_modify_qp`.
fn modification(service: ServiceType, step: &Step) -> (QpAttributes, u32) {
    let mut it = QpAttributes::default();
    let given = match *step {
        Step::Init { pkey_index, access } => {
            (it.qp_state, it.pkey_index, it.port_num) = (1, pkey_index, 1);
            let common = mask::PKEY_INDEX | mask::PORT;
            if service == ServiceType::UD {
                it.qkey = scenario::QKEY;
                common | mask::QKEY
            } else {
                // A queue pair cannot grant the local right, but programs pass it.
                it.qp_access_flags = access.bits();
                common | mask::ACCESS
            }
        }
        Step::Again { access } => {
            (it.qp_state, it.pkey_index, it.port_num) = (1, 0, 1);
            it.qp_access_flags = access.bits();
            mask::PKEY_INDEX | mask::PORT | mask::ACCESS
        }
        Step::Rtr { mtu, qpn, psn, reads, rnr_timer, route } => {
            it.qp_state = 2;
            if service == ServiceType::UD {
                0
            } else {
                (it.path_mtu, it.dest_qp_num, it.rq_psn) = (mtu.into(), qpn, psn);
                it.ah_attr = AddressHandle {
                    dlid: route.dlid,
                    sl: route.sl,
                    src_path_bits: route.path_bits,
                    port_num: 1,
                    ..AddressHandle::default()
                };
                if let Some((gid, flow_label, index, hop_limit, traffic_class)) = route.global {
                    it.ah_attr.is_global = 1;
                    it.ah_attr.dgid = gid;
                    it.ah_attr.flow_label = flow_label;
                    it.ah_attr.sgid_index = index;
                    it.ah_attr.hop_limit = hop_limit;
                    it.ah_attr.traffic_class = traffic_class;
                }
                let connected = mask::AV | mask::PATH_MTU | mask::DEST_QPN | mask::RQ_PSN;
                if service == ServiceType::RC {
                    (it.max_dest_rd_atomic, it.min_rnr_timer) = (reads, rnr_timer);
                    connected | mask::MAX_DEST_READS | mask::MIN_RNR_TIMER
                } else {
                    connected
                }
            }
        }
        Step::Rts { psn, timeout, retries, rnr_retries, reads } => {
            (it.qp_state, it.sq_psn) = (3, psn);
            if service == ServiceType::RC {
                (it.timeout, it.retry_cnt, it.rnr_retry) = (timeout, retries, rnr_retries);
                it.max_rd_atomic = reads;
                mask::SQ_PSN | mask::TIMEOUT | mask::RETRIES | mask::RNR_RETRIES | mask::MAX_READS
            } else {
                mask::SQ_PSN
            }
        }
        Step::Change { rnr_timer, access } => {
            (it.qp_state, it.cur_qp_state) = (3, 3);
            (it.min_rnr_timer, it.qp_access_flags) = (rnr_timer, access.bits());
            mask::MIN_RNR_TIMER | mask::ACCESS
        }
        Step::Error => {
            it.qp_state = 6;
            0
        }
        Step::Reset => 0,
    };
    (it, given | mask::STATE)
}
