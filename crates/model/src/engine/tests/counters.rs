//! Counters of QPs.

use verbless_prm::QueryQCounterOut;
use verbless_prm::hot::cqe_syndrome;

use super::rig::Rig;
use crate::engine::queue_pair::QueuePair;
use crate::hca::objects::QCounter;

/// The counters in the set of a QP after one CQE with this syndrome.
fn counted(act: impl FnOnce(&mut QueuePair<'_>)) -> QueryQCounterOut {
    let mut rig = Rig::new();
    let (end, _) = rig.pair();
    rig.qp(&end).context.set_counter_set_id(7);
    let function = &mut rig.locked.functions[0];
    let values = QueryQCounterOut::zeroed();
    function.hca.objects.counters.insert(7, QCounter { uid: 0, values });
    act(&mut function.pair(end.qpn, 0).unwrap());
    function.hca.objects.counters[&7].values
}

#[test]
fn error_cqe_counts_in_total_and_by_syndrome() {
    type Set = fn(&mut QueryQCounterOut, u32) -> &mut QueryQCounterOut;
    let of_requests: [(u8, Set); 10] = [
        (cqe_syndrome::LOCAL_LENGTH, QueryQCounterOut::set_req_local_length_error),
        (cqe_syndrome::LOCAL_QP_OPERATION, QueryQCounterOut::set_local_operation_error),
        (cqe_syndrome::LOCAL_PROTECTION, QueryQCounterOut::set_req_local_protection),
        (cqe_syndrome::MEMORY_WINDOW_BIND, QueryQCounterOut::set_req_mw_binding),
        (cqe_syndrome::REMOTE_INVALID_REQUEST, QueryQCounterOut::set_req_remote_invalid_request),
        (cqe_syndrome::REMOTE_ACCESS, QueryQCounterOut::set_req_remote_access_errors),
        (cqe_syndrome::REMOTE_OPERATION, QueryQCounterOut::set_req_remote_operation_errors),
        (cqe_syndrome::RNR_RETRY_EXCEEDED, QueryQCounterOut::set_req_rnr_retries_exceeded),
        (
            cqe_syndrome::TRANSPORT_RETRY_EXCEEDED,
            QueryQCounterOut::set_req_transport_retries_exceeded,
        ),
        (cqe_syndrome::FLUSHED, QueryQCounterOut::set_req_cqe_flush_error),
    ];
    for (syndrome, set) in of_requests {
        let mut expected = QueryQCounterOut::zeroed();
        set(expected.set_req_cqe_error(1), 1);
        assert_eq!(
            counted(|pair| pair.counters().request_error(syndrome)),
            expected,
            "{syndrome:#x}"
        );
    }
    let of_receives: [(u8, Set); 4] = [
        (cqe_syndrome::LOCAL_LENGTH, QueryQCounterOut::set_resp_local_length_error),
        (cqe_syndrome::LOCAL_QP_OPERATION, QueryQCounterOut::set_resp_local_qp_error),
        (cqe_syndrome::LOCAL_PROTECTION, QueryQCounterOut::set_resp_local_protection),
        (cqe_syndrome::FLUSHED, QueryQCounterOut::set_resp_cqe_flush_error),
    ];
    for (syndrome, set) in of_receives {
        let mut expected = QueryQCounterOut::zeroed();
        set(expected.set_resp_cqe_error(1), 1);
        assert_eq!(
            counted(|pair| pair.counters().receive_error(syndrome)),
            expected,
            "{syndrome:#x}"
        );
    }
    let mut other = QueryQCounterOut::zeroed();
    other.set_req_cqe_error(1);
    assert_eq!(counted(|pair| pair.counters().request_error(0xff)), other);
}
