//! Methods for objects of verbs: memory regions, memory windows and queues.

use super::{
    Access, Call, FLAGS, MethodSpec, NUMBER, UHW_IN, UHW_OUT, attr, extensible, fd, handle, object,
    optional, result, spec, structure, value,
};

/// The handler of a method.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum VerbsCall {
    MrQuery,
    CqCreate,
    QpCreate,
    SrqCreate,
}

pub(super) static METHODS: &[MethodSpec] = &[
    MethodSpec {
        name: "MR_DESTROY",
        object: object::MR,
        id: 1,
        call: Call::Destroy,
        attrs: &[spec("handle", attr::MR_HANDLE, handle(object::MR, Access::Destroy))],
    },
    MethodSpec {
        name: "QUERY_MR",
        object: object::MR,
        id: 3,
        call: Call::Verbs(VerbsCall::MrQuery),
        attrs: &[
            spec("handle", attr::MR_HANDLE, handle(object::MR, Access::Read)),
            spec("resp_lkey", attr::QUERY_MR_LKEY, result(4)),
            spec("resp_rkey", attr::QUERY_MR_RKEY, result(4)),
            spec("resp_length", attr::QUERY_MR_LENGTH, result(8)),
            optional("resp_iova", attr::QUERY_MR_IOVA, result(8)),
        ],
    },
    MethodSpec {
        name: "MW_DESTROY",
        object: object::MW,
        id: 0,
        call: Call::Destroy,
        attrs: &[spec("handle", attr::MW_HANDLE, handle(object::MW, Access::Destroy))],
    },
    MethodSpec {
        name: "CQ_CREATE",
        object: object::CQ,
        id: 0,
        call: Call::Verbs(VerbsCall::CqCreate),
        attrs: &[
            spec("handle", attr::HANDLE, handle(object::CQ, Access::New)),
            spec("cqe", attr::CQ_CQE, value(4)),
            spec("user_handle", attr::CQ_USER_HANDLE, value(8)),
            optional("channel", attr::CQ_CHANNEL, fd(object::COMP_CHANNEL, Access::Read)),
            spec("vector", attr::CQ_VECTOR, value(4)),
            optional("flags", attr::CQ_FLAGS, FLAGS),
            spec("resp_cqe", attr::CQ_RESP_CQE, result(4)),
            optional("event_fd", attr::CQ_EVENT_FD, fd(object::ASYNC_EVENT, Access::Read)),
            UHW_IN,
            UHW_OUT,
        ],
    },
    MethodSpec {
        name: "CQ_DESTROY",
        object: object::CQ,
        id: 1,
        call: Call::Destroy,
        attrs: &[
            spec("handle", attr::HANDLE, handle(object::CQ, Access::Destroy)),
            spec("resp", attr::DESTROY_RESP, result(8)),
        ],
    },
    MethodSpec {
        name: "QP_CREATE",
        object: object::QP,
        id: 0,
        call: Call::Verbs(VerbsCall::QpCreate),
        attrs: &[
            spec("handle", attr::HANDLE, handle(object::QP, Access::New)),
            optional("pd", attr::QP_PD, handle(object::PD, Access::Read)),
            optional("srq", attr::QP_SRQ, handle(object::SRQ, Access::Read)),
            optional("send_cq", attr::QP_SEND_CQ, handle(object::CQ, Access::Read)),
            optional("recv_cq", attr::QP_RECV_CQ, handle(object::CQ, Access::Read)),
            spec("user_handle", attr::QP_USER_HANDLE, value(8)),
            spec("cap", attr::QP_CAP, extensible(20)),
            spec("type", attr::QP_TYPE, NUMBER),
            optional("flags", attr::QP_FLAGS, FLAGS),
            optional("source_qpn", attr::QP_SOURCE_QPN, value(4)),
            optional("event_fd", attr::QP_EVENT_FD, fd(object::ASYNC_EVENT, Access::Read)),
            spec("resp_cap", attr::QP_RESP_CAP, structure(20)),
            spec("resp_qp_num", attr::QP_RESP_NUM, result(4)),
            UHW_IN,
            UHW_OUT,
        ],
    },
    MethodSpec {
        name: "QP_DESTROY",
        object: object::QP,
        id: 1,
        call: Call::Destroy,
        attrs: &[
            spec("handle", attr::HANDLE, handle(object::QP, Access::Destroy)),
            spec("resp", attr::DESTROY_RESP, result(4)),
        ],
    },
    MethodSpec {
        name: "SRQ_CREATE",
        object: object::SRQ,
        id: 0,
        call: Call::Verbs(VerbsCall::SrqCreate),
        attrs: &[
            spec("handle", attr::HANDLE, handle(object::SRQ, Access::New)),
            spec("pd", attr::SRQ_PD, handle(object::PD, Access::Read)),
            spec("user_handle", attr::SRQ_USER_HANDLE, value(8)),
            spec("max_wr", attr::SRQ_MAX_WR, value(4)),
            spec("max_sge", attr::SRQ_MAX_SGE, value(4)),
            spec("limit", attr::SRQ_LIMIT, value(4)),
            spec("type", attr::SRQ_TYPE, NUMBER),
            optional("event_fd", attr::SRQ_EVENT_FD, fd(object::ASYNC_EVENT, Access::Read)),
            spec("resp_max_wr", attr::SRQ_RESP_MAX_WR, result(4)),
            spec("resp_max_sge", attr::SRQ_RESP_MAX_SGE, result(4)),
            UHW_IN,
            UHW_OUT,
        ],
    },
    MethodSpec {
        name: "SRQ_DESTROY",
        object: object::SRQ,
        id: 1,
        call: Call::Destroy,
        attrs: &[
            spec("handle", attr::HANDLE, handle(object::SRQ, Access::Destroy)),
            spec("resp", attr::DESTROY_RESP, result(4)),
        ],
    },
];
