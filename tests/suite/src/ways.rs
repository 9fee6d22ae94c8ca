//! Compares the two ways in which the model moves a message, whole or in packets: a case runs once
//! each way, and every queue must get the same CQEs and data both times.
//!
//! These may differ:
//! - the timestamps of CQEs, and the low byte of a key that a SEND invalidates, which the driver
//!   counts through all of a process;
//! - the user index of a queue, which its owner chooses (DOCA's contexts take the first free slot):
//!   all CQEs of a queue must have the same, unless several QPs reuse its QPN ([`REUSED_QPN`]);
//! - the order between different queues: CQEs are compared in the order of their queue, not of
//!   their CQ, and owner bits, which belong to the ring of the CQ, are not recorded;
//! - the last CQEs of send queues, if a case ends without waiting for them;
//! - flush-error CQEs: a failed queue flushes later, and a reset in between discards the rest;
//! - results that depend on timing even if messages move the same way: [`TIMING_DEPENDENT`];
//! - data of messages that fail after their first packets (docs/fidelity.md): [`PARTIAL_DATA`].

use verbless_model::{Arrivals, Arrived, QueueSide};
use verbless_prm::{Cqe, CqeError, CqeOpcode, CqeSyndrome};

use crate::{Case, Stop};

/// Cases that leave other data in memory when messages move in packets (docs/fidelity.md), each
/// with the reason.
const PARTIAL_DATA: &[(&str, &str)] = &[
    ("cq::overrun_raises_cq_error_event", "several WRITEs are in flight when their sender fails"),
    (
        "errors::undersized_receive_fails_both_sides",
        "the first packets of the message are in the receive buffer before it proves too small",
    ),
];

/// Cases whose results depend on timing beyond the order of CQEs, each with the part that varies.
const TIMING_DEPENDENT: &[(&str, &str)] = &[
    (
        "retired::stale_doorbells_run_nothing_after_reset",
        "how many WQEs are executed before each reset",
    ),
    ("failure::reset_discards_unflushed_wqes", "how many WQEs are flushed before each reset"),
    ("doca_workq::abort_returns_each_job_once", "how many jobs are done before the abort"),
    (
        "hostile::doorbell_record_ahead_fails_only_its_qp",
        "how many WQEs are executed when the doorbell record changes",
    ),
    (
        "qp::qp_is_destroyed_with_outstanding_wqes",
        "how many WQEs are executed before the destruction",
    ),
    ("queue::dispatcher_routes_cqe_to_its_qp", "in which order its queue pairs complete"),
    ("queue::eight_threads_drive_eight_connections", "which thread has which QPN"),
    ("retired::concurrent_poll_sees_only_live_qps", "how long each QP exists"),
];

/// Cases in which successive queue pairs with different user indexes have the same QPN.
const REUSED_QPN: &[(&str, &str)] = &[(
    "doca_rdma_states::remote_access_needs_instance_and_mmap_right",
    "each access right is tested with a new connection",
)];

fn is_in(list: &[(&str, &str)], case: &Case) -> bool {
    list.iter().any(|(id, _)| *id == case.id())
}

/// Fails unless every queue got the same both times.
pub(crate) fn compare(case: &Case, whole: &Arrivals, packets: &Arrivals) -> Result<(), Stop> {
    if is_in(TIMING_DEPENDENT, case) {
        return Ok(());
    }
    let nothing = Arrived::default();
    for at in whole.keys().chain(packets.keys()) {
        let [one, other] = [whole, packets].map(|it| it.get(at).unwrap_or(&nothing));
        let [cqes, others] = [one, other].map(|it| {
            let first = it.completions.first().map_or(0, |cqe| user_index(cqe));
            let in_turn = is_in(REUSED_QPN, case);
            it.completions
                .iter()
                .filter(|cqe| !is_flushed(cqe))
                .map(move |cqe| comparable(cqe, if in_turn { user_index(cqe) } else { first }))
        });
        for (number, (one, other)) in cqes.zip(others).enumerate() {
            if one != other {
                return Err(Stop::fail(format!(
                    "CQE {number} of {at:?} differs: carried whole {}, in packets {}",
                    hex(&one),
                    hex(&other)
                )));
            }
        }
        let [cqes, others] =
            [one, other].map(|it| it.completions.iter().filter(|cqe| !is_flushed(cqe)).count());
        // A case that waits for a completion fails by itself without one.
        if cqes != others && at.side != QueueSide::Requester {
            return Err(Stop::fail(format!(
                "{at:?} got {cqes} CQEs for messages carried whole, {others} in packets, without \
                 flushed ones"
            )));
        }
        let [data, others] = [one, other].map(|it| (it.bytes, it.digest));
        if data != others && !is_in(PARTIAL_DATA, case) {
            return Err(Stop::fail(format!(
                "{at:?} got other data: carried whole {} bytes with the digest {:#x}, in packets \
                 {} with {:#x}",
                data.0, data.1, others.0, others.1
            )));
        }
    }
    Ok(())
}

/// Offset of the CQE in an entry of 64 or 128 bytes.
fn body(bytes: &[u8]) -> usize {
    bytes.len().saturating_sub(size_of::<Cqe>())
}

/// The user index; error CQEs have it in the same field.
fn user_index(cqe: &[u8]) -> u32 {
    Cqe::from_prefix(&cqe[body(cqe)..]).map_or(0, |cqe| cqe.srqn_uidx())
}

/// Whether a CQE is that of a flushed request or receive.
fn is_flushed(cqe: &[u8]) -> bool {
    CqeError::from_prefix(&cqe[body(cqe)..]).is_some_and(|cqe| {
        let error = [CqeOpcode::REQUESTER_ERROR, CqeOpcode::RESPONDER_ERROR];
        error.contains(&cqe.opcode()) && cqe.syndrome() == CqeSyndrome::FLUSHED
    })
}

/// A CQE without the fields that may differ; its user index is relative to that of its queue's
/// first CQE.
fn comparable(cqe: &[u8], first: u32) -> Vec<u8> {
    let mut bytes = cqe.to_vec();
    let body = body(&bytes);
    if let Some(cqe) = Cqe::from_prefix_mut(&mut bytes[body..]) {
        cqe.set_srqn_uidx(cqe.srqn_uidx().wrapping_sub(first) & 0xff_ffff);
        match cqe.opcode() {
            // Error CQEs have other fields there.
            CqeOpcode::REQUESTER_ERROR | CqeOpcode::RESPONDER_ERROR => {}
            opcode => {
                cqe.set_timestamp(0);
                if opcode == CqeOpcode::RESPONDER_SEND_INVALIDATE {
                    cqe.set_imm_inval_pkey(cqe.imm_inval_pkey() & !0xff);
                }
            }
        }
    }
    bytes
}

fn hex(bytes: &[u8]) -> String {
    bytes
        .chunks(4)
        .map(|word| word.iter().map(|it| format!("{it:02x}")).collect::<String>() + " ")
        .collect()
}

#[cfg(test)]
mod tests {
    use verbless_model::QueueId;

    use super::*;

    /// The arrivals of a queue: a CQE with this byte at this offset, and data with this digest.
    fn arrivals(at: usize, byte: u8, opcode: CqeOpcode, digest: u64) -> Arrivals {
        let mut cqe = Cqe::zeroed();
        cqe.set_opcode(opcode);
        cqe.as_bytes_mut()[at] = byte;
        let completions = vec![cqe.as_bytes()[..].into()];
        let queue = QueueId { function: 0, qpn: 0x80, side: QueueSide::Responder };
        [(queue, Arrived { completions, bytes: 1, digest })].into()
    }

    fn case(id: &str) -> &'static Case {
        crate::cases().find(|case| case.id() == id).expect("there is such a case")
    }

    #[test]
    fn excused_cases_exist() {
        for (id, reason) in PARTIAL_DATA.iter().chain(TIMING_DEPENDENT).chain(REUSED_QPN) {
            assert!(crate::cases().any(|case| case.id() == *id), "{id}");
            assert!(!reason.is_empty());
        }
    }

    #[test]
    fn compare_reports_only_unexpected_differences() {
        use CqeOpcode as Op;
        let strict = case("cq::ignored_overrun_keeps_cq_working");
        let same = |one: &Arrivals, other: &Arrivals| compare(strict, one, other).is_ok();
        let base = arrivals(0, 0, Op::RESPONDER_SEND, 1);
        assert!(same(&base, &base));
        assert!(!same(&base, &arrivals(0x2f, 1, Op::RESPONDER_SEND, 1)), "another length");
        assert!(!same(&base, &arrivals(0, 0, Op::RESPONDER_SEND, 2)), "other data");
        assert!(!same(&base, &Arrivals::new()) && !same(&Arrivals::new(), &base), "nothing");
        assert!(same(&base, &arrivals(0x37, 9, Op::RESPONDER_SEND, 1)), "another time");
        assert!(!same(&base, &arrivals(0x27, 9, Op::RESPONDER_SEND, 1)), "another immediate");
        let invalidated = |byte| arrivals(0x27, byte, Op::RESPONDER_SEND_INVALIDATE, 1);
        assert!(same(&invalidated(1), &invalidated(2)), "another variant of a key");
        let error = |byte| arrivals(0x37, byte, Op::RESPONDER_ERROR, 1);
        assert!(!same(&error(4), &error(5)), "another syndrome");
        let flushed = error(CqeSyndrome::FLUSHED.0);
        let none = || Arrived { completions: Vec::new(), bytes: 1, digest: 1 };
        let nothing: Arrivals = flushed.keys().map(|&at| (at, none())).collect();
        assert!(same(&flushed, &nothing) && same(&nothing, &flushed), "not yet flushed");
        assert!(!same(&error(4), &nothing), "another error is missing");

        assert!(same(&base, &arrivals(0x23, 7, Op::RESPONDER_SEND, 1)), "another user index");
        let mixed = |index| {
            let mut mixed = base.clone();
            for (at, more) in arrivals(0x23, index, Op::RESPONDER_SEND, 1) {
                let arrived = mixed.get_mut(&at).expect("the same queue");
                arrived.completions.extend(more.completions);
            }
            mixed
        };
        assert!(!same(&mixed(0), &mixed(1)), "user indexes that differ within a queue");

        let sent = |count| {
            let mut sent = arrivals(0, 0, Op::REQUESTER, 1);
            let (mut at, mut arrived) = sent.pop_first().expect("one queue");
            at.side = QueueSide::Requester;
            arrived.completions.resize(count, arrived.completions[0].clone());
            sent.insert(at, arrived);
            sent
        };
        assert!(same(&sent(2), &sent(1)), "the case did not wait for the last one");

        let other = arrivals(0, 0, Op::RESPONDER_SEND, 2);
        assert!(compare(case(PARTIAL_DATA[0].0), &base, &other).is_ok());
        let other = arrivals(0x2f, 1, Op::RESPONDER_SEND, 1);
        assert!(
            compare(case(PARTIAL_DATA[0].0), &base, &other).is_err(),
            "CQEs are compared there"
        );
    }
}
