//! Q counters: events of QPs and RQs, counted in the set that each one names.

use verbless_prm::QueryQCounterOut;
use verbless_prm::hot::cqe_syndrome;

use crate::hca::objects::QCounter;
use crate::numbered::Numbered;

macro_rules! counts {
    ($($name:ident $get:ident $set:ident;)*) => {
        /// The counters.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(super) enum Count {
            $($name,)*
        }

        impl Count {
            fn add(self, values: &mut QueryQCounterOut) {
                match self {
                    $(Self::$name => {
                        values.$set(values.$get().wrapping_add(1));
                    })*
                }
            }
        }
    };
}

counts! {
    Writes rx_write_requests set_rx_write_requests;
    Reads rx_read_requests set_rx_read_requests;
    Atomics rx_atomic_requests set_rx_atomic_requests;
    OutOfBuffer out_of_buffer set_out_of_buffer;
    OutOfSequence out_of_sequence set_out_of_sequence;
    Duplicate duplicate_request set_duplicate_request;
    RnrNak rnr_nak_retry_err set_rnr_nak_retry_err;
    SequenceNak packet_seq_err set_packet_seq_err;
    ImpliedNak implied_nak_seq_err set_implied_nak_seq_err;
    Timeout local_ack_timeout_err set_local_ack_timeout_err;
    RnrExceeded req_rnr_retries_exceeded set_req_rnr_retries_exceeded;
    RetriesExceeded req_transport_retries_exceeded set_req_transport_retries_exceeded;
    ResponderLength resp_local_length_error set_resp_local_length_error;
    ResponderQp resp_local_qp_error set_resp_local_qp_error;
    ResponderProtection resp_local_protection set_resp_local_protection;
    ResponderInvalid resp_remote_invalid_request set_resp_remote_invalid_request;
    ResponderAccess resp_remote_access_errors set_resp_remote_access_errors;
    ResponderError resp_cqe_error set_resp_cqe_error;
    ResponderFlushed resp_cqe_flush_error set_resp_cqe_flush_error;
    RequesterLength req_local_length_error set_req_local_length_error;
    RequesterOperation local_operation_error set_local_operation_error;
    RequesterProtection req_local_protection set_req_local_protection;
    RequesterBind req_mw_binding set_req_mw_binding;
    RequesterInvalid req_remote_invalid_request set_req_remote_invalid_request;
    RequesterAccess req_remote_access_errors set_req_remote_access_errors;
    RequesterRemote req_remote_operation_errors set_req_remote_operation_errors;
    RequesterError req_cqe_error set_req_cqe_error;
    RequesterFlushed req_cqe_flush_error set_req_cqe_flush_error;
    CqOverrun cq_overflow set_cq_overflow;
}

/// The counters of a queue: the set that it names.
pub(super) struct CounterSet<'a> {
    /// The set's number. Set 0 is the default of all queues; without an object it counts nothing.
    pub number: u8,
    pub sets: &'a mut Numbered<u8, QCounter>,
}

impl CounterSet<'_> {
    /// Counts an event of the queue.
    pub(super) fn count(&mut self, what: Count) {
        if self.sets.is_empty() {
            return;
        }
        match self.sets.get_mut(&self.number) {
            Some(counter) => what.add(&mut counter.values),
            None if self.number == 0 => {}
            None => tracing::error!(set = self.number, "a queue names a destroyed counter set"),
        }
    }

    /// Counts an error CQE of a request.
    pub(super) fn request_error(&mut self, syndrome: u8) {
        self.count(Count::RequesterError);
        let kind = match syndrome {
            cqe_syndrome::LOCAL_LENGTH => Count::RequesterLength,
            cqe_syndrome::LOCAL_QP_OPERATION => Count::RequesterOperation,
            cqe_syndrome::LOCAL_PROTECTION => Count::RequesterProtection,
            cqe_syndrome::MEMORY_WINDOW_BIND => Count::RequesterBind,
            cqe_syndrome::REMOTE_INVALID_REQUEST => Count::RequesterInvalid,
            cqe_syndrome::REMOTE_ACCESS => Count::RequesterAccess,
            cqe_syndrome::REMOTE_OPERATION => Count::RequesterRemote,
            cqe_syndrome::RNR_RETRY_EXCEEDED => Count::RnrExceeded,
            cqe_syndrome::TRANSPORT_RETRY_EXCEEDED => Count::RetriesExceeded,
            cqe_syndrome::FLUSHED => Count::RequesterFlushed,
            _ => return,
        };
        self.count(kind);
    }

    /// Counts an error CQE of a receive.
    pub(super) fn receive_error(&mut self, syndrome: u8) {
        self.count(Count::ResponderError);
        let kind = match syndrome {
            cqe_syndrome::LOCAL_LENGTH => Count::ResponderLength,
            cqe_syndrome::LOCAL_QP_OPERATION => Count::ResponderQp,
            cqe_syndrome::LOCAL_PROTECTION => Count::ResponderProtection,
            cqe_syndrome::FLUSHED => Count::ResponderFlushed,
            _ => return,
        };
        self.count(kind);
    }
}
