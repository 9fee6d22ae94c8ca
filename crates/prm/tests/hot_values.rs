//! The constants of the hot formats against the enums of prm/: the same names mean the same numbers.

use verbless_prm as prm;
use verbless_prm::hot::*;

macro_rules! same_values {
    ($($hot:path = $view:expr;)*) => { $(assert_eq!($hot, $view.0, stringify!($hot));)* };
}

#[test]
fn named_values_are_those_of_the_description() {
    use prm::{CqeFormat, CqeOpcode, CqeSyndrome, EventType, WqeCompletion, WqeFence, WqeOpcode};
    same_values! {
        opcode::NOP = WqeOpcode::NOP;
        opcode::SEND_INVALIDATE = WqeOpcode::SEND_INVALIDATE;
        opcode::WRITE = WqeOpcode::RDMA_WRITE;
        opcode::WRITE_IMM = WqeOpcode::RDMA_WRITE_IMM;
        opcode::SEND = WqeOpcode::SEND;
        opcode::SEND_IMM = WqeOpcode::SEND_IMM;
        opcode::LSO = WqeOpcode::LSO;
        opcode::WAIT = WqeOpcode::WAIT;
        opcode::READ = WqeOpcode::RDMA_READ;
        opcode::COMPARE_SWAP = WqeOpcode::ATOMIC_CS;
        opcode::FETCH_ADD = WqeOpcode::ATOMIC_FA;
        opcode::MASKED_COMPARE_SWAP = WqeOpcode::ATOMIC_MASKED_CS;
        opcode::MASKED_FETCH_ADD = WqeOpcode::ATOMIC_MASKED_FA;
        opcode::LOCAL_INVALIDATE = WqeOpcode::LOCAL_INVALIDATE;
        opcode::SET_PSV = WqeOpcode::SET_PSV;
        opcode::UMR = WqeOpcode::UMR;
        opcode::MMO = WqeOpcode::MMO;
        fence::NONE = WqeFence::NONE;
        fence::INITIATOR_SMALL = WqeFence::INITIATOR_SMALL;
        fence::FENCE = WqeFence::FENCE;
        fence::STRONG_ORDERING = WqeFence::STRONG_ORDERING;
        fence::FENCE_AND_INITIATOR_SMALL = WqeFence::SMALL_AND_FENCE;
        completion::ON_ERROR = WqeCompletion::ON_ERROR;
        completion::ON_FIRST_ERROR = WqeCompletion::ON_FIRST_ERROR;
        completion::ALWAYS = WqeCompletion::ALWAYS;
        completion::ALWAYS_AND_EVENT = WqeCompletion::ALWAYS_AND_EVENT;
        cqe_opcode::REQUESTER = CqeOpcode::REQUESTER;
        cqe_opcode::RESPONDER_WRITE_IMM = CqeOpcode::RESPONDER_WRITE_IMM;
        cqe_opcode::RESPONDER_SEND = CqeOpcode::RESPONDER_SEND;
        cqe_opcode::RESPONDER_SEND_IMM = CqeOpcode::RESPONDER_SEND_IMM;
        cqe_opcode::RESPONDER_SEND_INVALIDATE = CqeOpcode::RESPONDER_SEND_INVALIDATE;
        cqe_opcode::RESIZE = CqeOpcode::RESIZE;
        cqe_opcode::NO_PACKET = CqeOpcode::NO_PACKET;
        cqe_opcode::SIGNATURE_ERROR = CqeOpcode::SIGNATURE_ERROR;
        cqe_opcode::REQUESTER_ERROR = CqeOpcode::REQUESTER_ERROR;
        cqe_opcode::RESPONDER_ERROR = CqeOpcode::RESPONDER_ERROR;
        cqe_opcode::INVALID = CqeOpcode::INVALID;
        cqe_format::PLAIN = CqeFormat::NO_INLINE;
        cqe_format::INLINE_32 = CqeFormat::INLINE_32;
        cqe_format::INLINE_64 = CqeFormat::INLINE_64;
        cqe_format::COMPRESSED = CqeFormat::COMPRESSED;
        cqe_syndrome::LOCAL_LENGTH = CqeSyndrome::LOCAL_LENGTH;
        cqe_syndrome::LOCAL_QP_OPERATION = CqeSyndrome::LOCAL_QP_OPERATION;
        cqe_syndrome::LOCAL_PROTECTION = CqeSyndrome::LOCAL_PROTECTION;
        cqe_syndrome::FLUSHED = CqeSyndrome::WR_FLUSHED;
        cqe_syndrome::MEMORY_WINDOW_BIND = CqeSyndrome::MW_BIND;
        cqe_syndrome::BAD_RESPONSE = CqeSyndrome::BAD_RESPONSE;
        cqe_syndrome::LOCAL_ACCESS = CqeSyndrome::LOCAL_ACCESS;
        cqe_syndrome::REMOTE_INVALID_REQUEST = CqeSyndrome::REMOTE_INVALID_REQUEST;
        cqe_syndrome::REMOTE_ACCESS = CqeSyndrome::REMOTE_ACCESS;
        cqe_syndrome::REMOTE_OPERATION = CqeSyndrome::REMOTE_OPERATION;
        cqe_syndrome::TRANSPORT_RETRY_EXCEEDED = CqeSyndrome::TRANSPORT_RETRY_EXCEEDED;
        cqe_syndrome::RNR_RETRY_EXCEEDED = CqeSyndrome::RNR_RETRY_EXCEEDED;
        cqe_syndrome::REMOTE_ABORTED = CqeSyndrome::REMOTE_ABORTED;
        event_type::COMPLETION = EventType::COMPLETION;
        event_type::PATH_MIGRATED = EventType::PATH_MIGRATED;
        event_type::COMMUNICATION_ESTABLISHED = EventType::COMMUNICATION_ESTABLISHED;
        event_type::SQ_DRAINED = EventType::SQ_DRAINED;
        event_type::CQ_ERROR = EventType::CQ_ERROR;
        event_type::WQ_CATASTROPHIC = EventType::WQ_CATASTROPHIC_ERROR;
        event_type::PATH_MIGRATION_FAILED = EventType::PATH_MIGRATION_FAILED;
        event_type::INTERNAL_ERROR = EventType::INTERNAL_ERROR;
        event_type::PORT_CHANGE = EventType::PORT_CHANGE;
        event_type::COMMAND = EventType::COMMAND_COMPLETION;
        event_type::PAGE_REQUEST = EventType::PAGE_REQUEST;
        event_type::PAGE_FAULT = EventType::PAGE_FAULT;
        event_type::NIC_VPORT_CHANGE = EventType::NIC_VPORT_CHANGE;
        event_type::WQ_INVALID_REQUEST = EventType::WQ_INVALID_REQUEST_ERROR;
        event_type::WQ_ACCESS_ERROR = EventType::WQ_ACCESS_ERROR;
        event_type::SRQ_CATASTROPHIC = EventType::SRQ_CATASTROPHIC_ERROR;
        event_type::SRQ_LAST_WQE = EventType::SRQ_LAST_WQE;
        event_type::SRQ_LIMIT = EventType::SRQ_LIMIT;
        event_type::DCT_DRAINED = EventType::DCT_DRAINED;
        event_type::DCT_KEY_VIOLATION = EventType::DCT_KEY_VIOLATION;
        event_type::GENERAL = EventType::GENERAL;
        event_type::OBJECT_CHANGE = EventType::OBJECT_CHANGE;
    }
}
