//! The ioctl ABI as the kernel declares it: object, method and attribute ids, and what each method
//! takes.
//!
//! The tables are the kernel's, not the driver's. They are separate from `verbless_devx`, so a
//! wrong id there fails here. Names are the kernel's too, for log lines. Source: Linux 6.12,
//! `include/uapi/rdma/{ib,mlx5}_user_ioctl_cmds.h` and the declarations in `uverbs_std_types_*.c`,
//! `hw/mlx5/devx.c` and `hw/mlx5/main.c`.

mod verbs;

pub(super) use verbs::VerbsCall;

/// Ids from here on belong to the driver.
pub(super) const DRIVER: u16 = 0x1000;
/// RDMA_DRIVER_MLX5, in every request.
pub const DRIVER_ID: u32 = 1;
/// The kernel must know the attribute.
pub(super) const MANDATORY: u16 = 1;
/// The kernel wrote this output.
pub(super) const VALID_OUTPUT: u16 = 2;
/// The object id of an attribute that takes a handle of any object.
pub(super) const ANY_OBJECT: u16 = 0xffff;

/// Object ids.
pub(super) mod object {
    use crate::abi::DRIVER;
    pub(crate) const DEVICE: u16 = 0;
    pub(crate) const PD: u16 = 1;
    pub(crate) const COMP_CHANNEL: u16 = 2;
    pub(crate) const CQ: u16 = 3;
    pub(crate) const QP: u16 = 4;
    pub(crate) const SRQ: u16 = 5;
    pub(crate) const AH: u16 = 6;
    pub(crate) const MR: u16 = 7;
    pub(crate) const MW: u16 = 8;
    pub(crate) const FLOW: u16 = 9;
    pub(crate) const ASYNC_EVENT: u16 = 16;
    pub(crate) const DEVX: u16 = DRIVER;
    pub(crate) const DEVX_OBJ: u16 = DRIVER + 1;
    pub(crate) const DEVX_UMEM: u16 = DRIVER + 2;
    pub(crate) const FLOW_MATCHER: u16 = DRIVER + 3;
    pub(crate) const DEVX_ASYNC_CMD_FD: u16 = DRIVER + 4;
    pub(crate) const DEVX_ASYNC_EVENT_FD: u16 = DRIVER + 5;
    pub(crate) const UAR: u16 = DRIVER + 8;
}

/// Attribute ids, by the method that takes them.
pub(super) mod attr {
    use crate::abi::DRIVER;
    pub(crate) const UHW_IN: u16 = DRIVER;
    pub(crate) const UHW_OUT: u16 = DRIVER + 1;
    pub(crate) const CORE_IN: u16 = 0;
    pub(crate) const CORE_OUT: u16 = 1;
    pub(crate) const WRITE_CMD: u16 = 2;
    pub(crate) const PORT_NUM: u16 = 0;
    pub(crate) const PORT_RESP: u16 = 1;
    pub(crate) const NUM_COMP_VECTORS: u16 = 0;
    pub(crate) const CORE_SUPPORT: u16 = 1;
    pub(crate) const CONTEXT_RESP: u16 = DRIVER;
    pub(crate) const GID_ENTRY_SIZE: u16 = 0;
    pub(crate) const GID_TABLE_FLAGS: u16 = 1;
    pub(crate) const GID_ENTRIES: u16 = 2;
    pub(crate) const GID_NUM_ENTRIES: u16 = 3;
    pub(crate) const GID_PORT: u16 = 0;
    pub(crate) const GID_INDEX: u16 = 1;
    pub(crate) const GID_FLAGS: u16 = 2;
    pub(crate) const GID_ENTRY: u16 = 3;
    pub(crate) const PD_HANDLE: u16 = 0;
    pub(crate) const AH_HANDLE: u16 = 0;
    pub(crate) const ASYNC_FD: u16 = 0;
    pub(crate) const MR_HANDLE: u16 = 0;
    pub(crate) const MW_HANDLE: u16 = 0;
    pub(crate) const QUERY_MR_LKEY: u16 = 1;
    pub(crate) const QUERY_MR_RKEY: u16 = 2;
    pub(crate) const QUERY_MR_LENGTH: u16 = 3;
    pub(crate) const QUERY_MR_IOVA: u16 = 4;
    pub(crate) const QUERY_PD_NUMBER: u16 = DRIVER + 1;
    /// The handle of a CQ, QP or SRQ that a method creates or destroys, and the response of its
    /// destruction.
    pub(crate) const HANDLE: u16 = 0;
    pub(crate) const DESTROY_RESP: u16 = 1;
    pub(crate) const CQ_CQE: u16 = 1;
    pub(crate) const CQ_USER_HANDLE: u16 = 2;
    pub(crate) const CQ_CHANNEL: u16 = 3;
    pub(crate) const CQ_VECTOR: u16 = 4;
    pub(crate) const CQ_FLAGS: u16 = 5;
    pub(crate) const CQ_RESP_CQE: u16 = 6;
    pub(crate) const CQ_EVENT_FD: u16 = 7;
    pub(crate) const QP_PD: u16 = 2;
    pub(crate) const QP_SRQ: u16 = 3;
    pub(crate) const QP_SEND_CQ: u16 = 4;
    pub(crate) const QP_RECV_CQ: u16 = 5;
    pub(crate) const QP_USER_HANDLE: u16 = 7;
    pub(crate) const QP_CAP: u16 = 8;
    pub(crate) const QP_TYPE: u16 = 9;
    pub(crate) const QP_FLAGS: u16 = 10;
    pub(crate) const QP_SOURCE_QPN: u16 = 11;
    pub(crate) const QP_EVENT_FD: u16 = 12;
    pub(crate) const QP_RESP_CAP: u16 = 13;
    pub(crate) const QP_RESP_NUM: u16 = 14;
    pub(crate) const SRQ_PD: u16 = 1;
    pub(crate) const SRQ_USER_HANDLE: u16 = 4;
    pub(crate) const SRQ_MAX_WR: u16 = 5;
    pub(crate) const SRQ_MAX_SGE: u16 = 6;
    pub(crate) const SRQ_LIMIT: u16 = 7;
    pub(crate) const SRQ_TYPE: u16 = 9;
    pub(crate) const SRQ_EVENT_FD: u16 = 10;
    pub(crate) const SRQ_RESP_MAX_WR: u16 = 11;
    pub(crate) const SRQ_RESP_MAX_SGE: u16 = 12;
    /// The first attribute of every DevX method: the handle, the fd or the inbox.
    pub(crate) const FIRST: u16 = DRIVER;
    pub(crate) const OTHER_IN: u16 = DRIVER;
    pub(crate) const OTHER_OUT: u16 = DRIVER + 1;
    /// Inbox and outbox of OBJ_CREATE, OBJ_MODIFY, OBJ_QUERY and the inbox of OBJ_ASYNC_QUERY.
    pub(crate) const OBJ_IN: u16 = DRIVER + 1;
    pub(crate) const OBJ_OUT: u16 = DRIVER + 2;
    pub(crate) const ASYNC_QUERY_FD: u16 = DRIVER + 2;
    pub(crate) const ASYNC_QUERY_WR_ID: u16 = DRIVER + 3;
    pub(crate) const ASYNC_QUERY_OUT_LEN: u16 = DRIVER + 4;
    pub(crate) const QUERY_IN: u16 = DRIVER;
    pub(crate) const QUERY_OUT: u16 = DRIVER + 1;
    pub(crate) const SUBSCRIBE_FD: u16 = DRIVER;
    pub(crate) const SUBSCRIBE_OBJ: u16 = DRIVER + 1;
    pub(crate) const SUBSCRIBE_TYPES: u16 = DRIVER + 2;
    pub(crate) const SUBSCRIBE_FD_NUM: u16 = DRIVER + 3;
    pub(crate) const SUBSCRIBE_COOKIE: u16 = DRIVER + 4;
    pub(crate) const CHANNEL_FLAGS: u16 = DRIVER + 1;
    pub(crate) const UMEM_ADDR: u16 = DRIVER + 1;
    pub(crate) const UMEM_LEN: u16 = DRIVER + 2;
    pub(crate) const UMEM_ACCESS: u16 = DRIVER + 3;
    pub(crate) const UMEM_OUT_ID: u16 = DRIVER + 4;
    pub(crate) const UMEM_PGSZ_BITMAP: u16 = DRIVER + 5;
    pub(crate) const UMEM_DMABUF_FD: u16 = DRIVER + 6;
    pub(crate) const MATCHER_MASK: u16 = DRIVER + 1;
    pub(crate) const MATCHER_FLOW_TYPE: u16 = DRIVER + 2;
    pub(crate) const MATCHER_CRITERIA: u16 = DRIVER + 3;
    pub(crate) const MATCHER_FLOW_FLAGS: u16 = DRIVER + 4;
    pub(crate) const MATCHER_FT_TYPE: u16 = DRIVER + 5;
    pub(crate) const FLOW_MATCH_VALUE: u16 = DRIVER + 1;
    pub(crate) const FLOW_DEST_QP: u16 = DRIVER + 2;
    pub(crate) const FLOW_DEST_DEVX: u16 = DRIVER + 3;
    pub(crate) const FLOW_MATCHER: u16 = DRIVER + 4;
    pub(crate) const FLOW_TAG: u16 = DRIVER + 6;
    pub(crate) const FLOW_FLAGS: u16 = DRIVER + 9;
    pub(crate) const UAR_TYPE: u16 = DRIVER + 1;
    pub(crate) const UAR_MMAP_OFFSET: u16 = DRIVER + 2;
    pub(crate) const UAR_MMAP_LENGTH: u16 = DRIVER + 3;
    pub(crate) const UAR_PAGE_ID: u16 = DRIVER + 4;
}

/// How a method uses the object that an attribute names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Access {
    New,
    Read,
    Destroy,
}

/// The content of an attribute.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AttrKind {
    /// Data from the client: at least `min` bytes, at most `len`. A longer input is allowed only
    /// with `zero_tail`, and its tail must be zero. `copied`: the kernel reads it before the method
    /// runs, so a bad pointer fails first.
    In { min: u16, len: u16, zero_tail: bool, copied: bool },
    /// Room for data to the client.
    Out { min: u16, len: u16, zero_tail: bool },
    /// A handle.
    Handle { object: u16, access: Access },
    /// A file descriptor that the kernel creates.
    Fd { object: u16, access: Access },
    /// Any file descriptor.
    RawFd,
}

/// Description of a method's attribute.
#[derive(Debug, Clone, Copy)]
pub(super) struct AttrSpec {
    /// The kernel's name, without the prefix that all attributes of the method share.
    pub name: &'static str,
    pub id: u16,
    pub mandatory: bool,
    pub kind: AttrKind,
}

/// The code that runs for a method.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Call {
    InvokeWrite,
    QueryPort,
    GetContext,
    QueryContext,
    PdQuery,
    QueryGidTable,
    QueryGidEntry,
    AsyncEventAlloc,
    Other,
    QueryUar,
    QueryEqn,
    Subscribe,
    ObjCreate,
    ObjModify,
    ObjQuery,
    ObjAsyncQuery,
    UmemReg,
    CommandFdAlloc,
    EventFdAlloc,
    UarAlloc,
    FlowMatcherCreate,
    FlowCreate,
    Verbs(VerbsCall),
    /// The attribute with access `Destroy` describes the whole method.
    Destroy,
}

/// Description of an object's method.
#[derive(Debug)]
pub(super) struct MethodSpec {
    /// The kernel's name, without the prefix that all methods share.
    pub name: &'static str,
    pub object: u16,
    pub id: u16,
    pub call: Call,
    pub attrs: &'static [AttrSpec],
}

const fn spec(name: &'static str, id: u16, kind: AttrKind) -> AttrSpec {
    AttrSpec { name, id, mandatory: true, kind }
}
const fn optional(name: &'static str, id: u16, kind: AttrKind) -> AttrSpec {
    AttrSpec { name, id, mandatory: false, kind }
}
/// Exactly `len` bytes in.
const fn value(len: u16) -> AttrKind {
    AttrKind::In { min: len, len, zero_tail: false, copied: false }
}
/// An input structure; a longer buffer is allowed if its tail is zero.
const fn extensible(len: u16) -> AttrKind {
    AttrKind::In { min: len, len, zero_tail: true, copied: false }
}
/// A number, always sent as eight bytes.
const NUMBER: AttrKind = value(8);
/// Flags, four or eight bytes.
const FLAGS: AttrKind = AttrKind::In { min: 4, len: 8, zero_tail: false, copied: false };
/// At least `min` bytes in; the kernel reads them before the method runs.
const fn mailbox(min: u16) -> AttrKind {
    AttrKind::In { min, len: u16::MAX, zero_tail: false, copied: true }
}
/// Exactly `len` bytes out.
const fn result(len: u16) -> AttrKind {
    AttrKind::Out { min: len, len, zero_tail: false }
}
/// At least `min` bytes out.
const fn room(min: u16) -> AttrKind {
    AttrKind::Out { min, len: u16::MAX, zero_tail: false }
}
/// An output structure; a longer buffer is allowed.
const fn structure(len: u16) -> AttrKind {
    AttrKind::Out { min: len, len, zero_tail: true }
}
const fn handle(object: u16, access: Access) -> AttrKind {
    AttrKind::Handle { object, access }
}
const fn fd(object: u16, access: Access) -> AttrKind {
    AttrKind::Fd { object, access }
}
const UHW_IN: AttrSpec = optional(
    "uhw_in",
    attr::UHW_IN,
    AttrKind::In { min: 0, len: u16::MAX, zero_tail: false, copied: false },
);
const UHW_OUT: AttrSpec = optional("uhw_out", attr::UHW_OUT, room(0));

/// Maximum bytes of a packet mask; the device knows the first of them.
const MATCH_PARAM: u16 = 640;
/// A packet mask, or the values under it.
const fn match_param(copied: bool) -> AttrKind {
    AttrKind::In { min: 1, len: MATCH_PARAM, zero_tail: false, copied }
}

/// The smallest command header: opcode, uid, op_mod and eight bytes.
const HEADER: u16 = 16;

/// Every method that this kernel has.
pub(super) fn methods() -> impl Iterator<Item = &'static MethodSpec> {
    METHODS.iter().chain(verbs::METHODS)
}

static METHODS: &[MethodSpec] = &[
    MethodSpec {
        name: "INVOKE_WRITE",
        object: object::DEVICE,
        id: 0,
        call: Call::InvokeWrite,
        attrs: &[
            spec("write_cmd", attr::WRITE_CMD, NUMBER),
            optional(
                "core_in",
                attr::CORE_IN,
                AttrKind::In { min: 4, len: u16::MAX, zero_tail: false, copied: false },
            ),
            optional("core_out", attr::CORE_OUT, room(0)),
            UHW_IN,
            UHW_OUT,
        ],
    },
    MethodSpec {
        name: "QUERY_PORT",
        object: object::DEVICE,
        id: 2,
        call: Call::QueryPort,
        attrs: &[
            spec("port_num", attr::PORT_NUM, NUMBER),
            spec("resp", attr::PORT_RESP, structure(48)),
        ],
    },
    MethodSpec {
        name: "GET_CONTEXT",
        object: object::DEVICE,
        id: 3,
        call: Call::GetContext,
        attrs: &[
            optional("num_comp_vectors", attr::NUM_COMP_VECTORS, result(4)),
            optional("core_support", attr::CORE_SUPPORT, result(8)),
            UHW_IN,
            UHW_OUT,
        ],
    },
    MethodSpec {
        name: "QUERY_CONTEXT",
        object: object::DEVICE,
        id: 4,
        call: Call::QueryContext,
        attrs: &[
            optional("num_comp_vectors", attr::NUM_COMP_VECTORS, result(4)),
            optional("core_support", attr::CORE_SUPPORT, result(8)),
            spec("resp", attr::CONTEXT_RESP, structure(72)),
        ],
    },
    MethodSpec {
        name: "QUERY_GID_TABLE",
        object: object::DEVICE,
        id: 5,
        call: Call::QueryGidTable,
        attrs: &[
            spec("entry_size", attr::GID_ENTRY_SIZE, NUMBER),
            optional("flags", attr::GID_TABLE_FLAGS, FLAGS),
            spec("entries", attr::GID_ENTRIES, room(0)),
            spec("num_entries", attr::GID_NUM_ENTRIES, result(8)),
        ],
    },
    MethodSpec {
        name: "QUERY_GID_ENTRY",
        object: object::DEVICE,
        id: 6,
        call: Call::QueryGidEntry,
        attrs: &[
            spec("port", attr::GID_PORT, NUMBER),
            spec("index", attr::GID_INDEX, NUMBER),
            spec("flags", attr::GID_FLAGS, FLAGS),
            spec("entry", attr::GID_ENTRY, structure(32)),
        ],
    },
    MethodSpec {
        name: "PD_DESTROY",
        object: object::PD,
        id: 0,
        call: Call::Destroy,
        attrs: &[spec("handle", attr::PD_HANDLE, handle(object::PD, Access::Destroy))],
    },
    MethodSpec {
        name: "PD_QUERY",
        object: object::PD,
        id: DRIVER,
        call: Call::PdQuery,
        attrs: &[
            spec("handle", attr::FIRST, handle(object::PD, Access::Read)),
            spec("resp_pdn", attr::QUERY_PD_NUMBER, result(4)),
        ],
    },
    MethodSpec {
        name: "AH_DESTROY",
        object: object::AH,
        id: 0,
        call: Call::Destroy,
        attrs: &[spec("handle", attr::AH_HANDLE, handle(object::AH, Access::Destroy))],
    },
    MethodSpec {
        name: "FLOW_MATCHER_CREATE",
        object: object::FLOW_MATCHER,
        id: DRIVER,
        call: Call::FlowMatcherCreate,
        attrs: &[
            spec("handle", attr::FIRST, handle(object::FLOW_MATCHER, Access::New)),
            spec("match_mask", attr::MATCHER_MASK, match_param(false)),
            // The priority of rules of the first flow type; no other type exists here.
            spec("flow_type", attr::MATCHER_FLOW_TYPE, value(2)),
            spec("match_criteria", attr::MATCHER_CRITERIA, value(1)),
            optional("flow_flags", attr::MATCHER_FLOW_FLAGS, FLAGS),
            optional("ft_type", attr::MATCHER_FT_TYPE, NUMBER),
        ],
    },
    MethodSpec {
        name: "FLOW_MATCHER_DESTROY",
        object: object::FLOW_MATCHER,
        id: DRIVER + 1,
        call: Call::Destroy,
        attrs: &[spec("handle", attr::FIRST, handle(object::FLOW_MATCHER, Access::Destroy))],
    },
    MethodSpec {
        name: "CREATE_FLOW",
        object: object::FLOW,
        id: DRIVER,
        call: Call::FlowCreate,
        attrs: &[
            spec("handle", attr::FIRST, handle(object::FLOW, Access::New)),
            spec("match_value", attr::FLOW_MATCH_VALUE, match_param(true)),
            optional("dest_qp", attr::FLOW_DEST_QP, handle(object::QP, Access::Read)),
            optional("dest_devx", attr::FLOW_DEST_DEVX, handle(object::DEVX_OBJ, Access::Read)),
            spec("matcher", attr::FLOW_MATCHER, handle(object::FLOW_MATCHER, Access::Read)),
            optional("tag", attr::FLOW_TAG, value(4)),
            optional("flags", attr::FLOW_FLAGS, FLAGS),
        ],
    },
    MethodSpec {
        name: "DESTROY_FLOW",
        object: object::FLOW,
        id: DRIVER + 1,
        call: Call::Destroy,
        attrs: &[spec("handle", attr::FIRST, handle(object::FLOW, Access::Destroy))],
    },
    MethodSpec {
        name: "ASYNC_EVENT_ALLOC",
        object: object::ASYNC_EVENT,
        id: 0,
        call: Call::AsyncEventAlloc,
        attrs: &[spec("fd", attr::ASYNC_FD, fd(object::ASYNC_EVENT, Access::New))],
    },
    MethodSpec {
        name: "DEVX_OTHER",
        object: object::DEVX,
        id: DRIVER,
        call: Call::Other,
        attrs: &[
            spec("in", attr::OTHER_IN, mailbox(HEADER)),
            spec("out", attr::OTHER_OUT, room(HEADER)),
        ],
    },
    MethodSpec {
        name: "DEVX_QUERY_UAR",
        object: object::DEVX,
        id: DRIVER + 1,
        call: Call::QueryUar,
        attrs: &[spec("in", attr::QUERY_IN, value(4)), spec("out", attr::QUERY_OUT, result(4))],
    },
    MethodSpec {
        name: "DEVX_QUERY_EQN",
        object: object::DEVX,
        id: DRIVER + 2,
        call: Call::QueryEqn,
        attrs: &[spec("in", attr::QUERY_IN, value(4)), spec("out", attr::QUERY_OUT, result(4))],
    },
    MethodSpec {
        name: "DEVX_SUBSCRIBE_EVENT",
        object: object::DEVX,
        id: DRIVER + 3,
        call: Call::Subscribe,
        attrs: &[
            spec("fd", attr::SUBSCRIBE_FD, fd(object::DEVX_ASYNC_EVENT_FD, Access::Read)),
            optional("obj", attr::SUBSCRIBE_OBJ, handle(object::DEVX_OBJ, Access::Read)),
            spec("type_num_list", attr::SUBSCRIBE_TYPES, mailbox(2)),
            optional("cookie", attr::SUBSCRIBE_COOKIE, value(8)),
            optional("fd_num", attr::SUBSCRIBE_FD_NUM, value(4)),
        ],
    },
    MethodSpec {
        name: "DEVX_OBJ_CREATE",
        object: object::DEVX_OBJ,
        id: DRIVER,
        call: Call::ObjCreate,
        attrs: &[
            spec("handle", attr::FIRST, handle(object::DEVX_OBJ, Access::New)),
            spec("in", attr::OBJ_IN, mailbox(HEADER)),
            spec("out", attr::OBJ_OUT, room(HEADER)),
        ],
    },
    MethodSpec {
        name: "DEVX_OBJ_DESTROY",
        object: object::DEVX_OBJ,
        id: DRIVER + 1,
        call: Call::Destroy,
        attrs: &[spec("handle", attr::FIRST, handle(object::DEVX_OBJ, Access::Destroy))],
    },
    MethodSpec {
        name: "DEVX_OBJ_MODIFY",
        object: object::DEVX_OBJ,
        id: DRIVER + 2,
        call: Call::ObjModify,
        attrs: &[
            spec("handle", attr::FIRST, handle(ANY_OBJECT, Access::Read)),
            spec("in", attr::OBJ_IN, mailbox(HEADER)),
            spec("out", attr::OBJ_OUT, room(HEADER)),
        ],
    },
    MethodSpec {
        name: "DEVX_OBJ_QUERY",
        object: object::DEVX_OBJ,
        id: DRIVER + 3,
        call: Call::ObjQuery,
        attrs: &[
            spec("handle", attr::FIRST, handle(ANY_OBJECT, Access::Read)),
            spec("in", attr::OBJ_IN, mailbox(HEADER)),
            spec("out", attr::OBJ_OUT, room(HEADER)),
        ],
    },
    MethodSpec {
        name: "DEVX_OBJ_ASYNC_QUERY",
        object: object::DEVX_OBJ,
        id: DRIVER + 4,
        call: Call::ObjAsyncQuery,
        attrs: &[
            spec("handle", attr::FIRST, handle(ANY_OBJECT, Access::Read)),
            spec("in", attr::OBJ_IN, mailbox(HEADER)),
            spec("out_len", attr::ASYNC_QUERY_OUT_LEN, NUMBER),
            spec("fd", attr::ASYNC_QUERY_FD, fd(object::DEVX_ASYNC_CMD_FD, Access::Read)),
            spec("wr_id", attr::ASYNC_QUERY_WR_ID, value(8)),
        ],
    },
    MethodSpec {
        name: "DEVX_UMEM_REG",
        object: object::DEVX_UMEM,
        id: DRIVER,
        call: Call::UmemReg,
        attrs: &[
            spec("handle", attr::FIRST, handle(object::DEVX_UMEM, Access::New)),
            spec("addr", attr::UMEM_ADDR, value(8)),
            spec("len", attr::UMEM_LEN, value(8)),
            optional("dmabuf_fd", attr::UMEM_DMABUF_FD, AttrKind::RawFd),
            optional("access", attr::UMEM_ACCESS, FLAGS),
            optional("pgsz_bitmap", attr::UMEM_PGSZ_BITMAP, NUMBER),
            spec("out_id", attr::UMEM_OUT_ID, result(4)),
        ],
    },
    MethodSpec {
        name: "DEVX_UMEM_DEREG",
        object: object::DEVX_UMEM,
        id: DRIVER + 1,
        call: Call::Destroy,
        attrs: &[spec("handle", attr::FIRST, handle(object::DEVX_UMEM, Access::Destroy))],
    },
    MethodSpec {
        name: "DEVX_ASYNC_CMD_FD_ALLOC",
        object: object::DEVX_ASYNC_CMD_FD,
        id: DRIVER,
        call: Call::CommandFdAlloc,
        attrs: &[spec("fd", attr::FIRST, fd(object::DEVX_ASYNC_CMD_FD, Access::New))],
    },
    MethodSpec {
        name: "DEVX_ASYNC_EVENT_FD_ALLOC",
        object: object::DEVX_ASYNC_EVENT_FD,
        id: DRIVER,
        call: Call::EventFdAlloc,
        attrs: &[
            spec("fd", attr::FIRST, fd(object::DEVX_ASYNC_EVENT_FD, Access::New)),
            spec("flags", attr::CHANNEL_FLAGS, FLAGS),
        ],
    },
    MethodSpec {
        name: "UAR_OBJ_ALLOC",
        object: object::UAR,
        id: DRIVER,
        call: Call::UarAlloc,
        attrs: &[
            spec("handle", attr::FIRST, handle(object::UAR, Access::New)),
            spec("type", attr::UAR_TYPE, NUMBER),
            spec("page_id", attr::UAR_PAGE_ID, result(4)),
            spec("mmap_length", attr::UAR_MMAP_LENGTH, result(4)),
            spec("mmap_offset", attr::UAR_MMAP_OFFSET, result(8)),
        ],
    },
    MethodSpec {
        name: "UAR_OBJ_DESTROY",
        object: object::UAR,
        id: DRIVER + 1,
        call: Call::Destroy,
        attrs: &[spec("handle", attr::FIRST, handle(object::UAR, Access::Destroy))],
    },
];
