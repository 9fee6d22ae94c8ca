//! Attribute ids, one module per method.
//!
//! The doc of each id gives its kind: `in` and `out` carry bytes, `handle` and `fd` refer to an
//! existing object or file, and the kernel returns a `new handle` or `new fd`. Sources: Linux
//! `ib_user_ioctl_cmds.h` and `mlx5_user_ioctl_cmds.h`; kinds and sizes from
//! `drivers/infiniband/core/uverbs_std_types_*.c` and
//! `drivers/infiniband/hw/mlx5/{devx,main,fs}.c`.

macro_rules! attributes {
    ($(
        $(#[$module_doc:meta])*
        $module:ident { $($(#[$doc:meta])* $name:ident = $id:literal,)* }
    )*) => {
        $($(#[$module_doc])* pub mod $module { $($(#[$doc])* pub const $name: u16 = $id;)* })*
    };
}

attributes! {
    /// Driver-specific input and output (`UVERBS_ATTR_UHW`) of methods that take them.
    uhw {
        /// `UVERBS_ATTR_UHW_IN`, in: the driver's request.
        IN = 0x1000,
        /// `UVERBS_ATTR_UHW_OUT`, out: the driver's response.
        OUT = 0x1001,
    }
    /// [`INVOKE_WRITE`](crate::abi::method::INVOKE_WRITE).
    invoke_write {
        /// `UVERBS_ATTR_CORE_IN`, in: the generic request, without the old command header.
        CORE_IN = 0x0,
        /// `UVERBS_ATTR_CORE_OUT`, out: the generic response.
        CORE_OUT = 0x1,
        /// `UVERBS_ATTR_WRITE_CMD`, in, u64: a
        /// [`write_command`](crate::abi::method::write_command).
        WRITE_CMD = 0x2,
    }
    /// [`QUERY_PORT`](crate::abi::method::QUERY_PORT).
    query_port {
        /// `UVERBS_ATTR_QUERY_PORT_PORT_NUM`, in, u64: 1-based.
        PORT_NUM = 0x0,
        /// `UVERBS_ATTR_QUERY_PORT_RESP`, out:
        /// [`QueryPortResponse`](crate::abi::core::QueryPortResponse).
        RESP = 0x1,
    }
    /// [`GET_CONTEXT`](crate::abi::method::GET_CONTEXT); driver data in [`uhw`].
    get_context {
        /// `UVERBS_ATTR_GET_CONTEXT_NUM_COMP_VECTORS`, out, u32.
        NUM_COMP_VECTORS = 0x0,
        /// `UVERBS_ATTR_GET_CONTEXT_CORE_SUPPORT`, out, u64.
        CORE_SUPPORT = 0x1,
    }
    /// [`QUERY_CONTEXT`](crate::abi::method::QUERY_CONTEXT).
    query_context {
        /// `UVERBS_ATTR_QUERY_CONTEXT_NUM_COMP_VECTORS`, out, u32.
        NUM_COMP_VECTORS = 0x0,
        /// `UVERBS_ATTR_QUERY_CONTEXT_CORE_SUPPORT`, out, u64.
        CORE_SUPPORT = 0x1,
        /// `MLX5_IB_ATTR_QUERY_CONTEXT_RESP_UCTX`, out:
        /// [`AllocContextResponse`](crate::abi::mlx5::AllocContextResponse).
        RESP = 0x1000,
    }
    /// [`QUERY_GID_TABLE`](crate::abi::method::QUERY_GID_TABLE).
    query_gid_table {
        /// `UVERBS_ATTR_QUERY_GID_TABLE_ENTRY_SIZE`, in, u64: bytes per entry of `RESP_ENTRIES`.
        ENTRY_SIZE = 0x0,
        /// `UVERBS_ATTR_QUERY_GID_TABLE_FLAGS`, in, u32: 0.
        FLAGS = 0x1,
        /// `UVERBS_ATTR_QUERY_GID_TABLE_RESP_ENTRIES`, out:
        /// [`GidEntry`](crate::abi::core::GidEntry) array; EINVAL if too short for all entries in
        /// use.
        RESP_ENTRIES = 0x2,
        /// `UVERBS_ATTR_QUERY_GID_TABLE_RESP_NUM_ENTRIES`, out, u64: entries written.
        RESP_NUM_ENTRIES = 0x3,
    }
    /// [`QUERY_GID_ENTRY`](crate::abi::method::QUERY_GID_ENTRY).
    query_gid_entry {
        /// `UVERBS_ATTR_QUERY_GID_ENTRY_PORT`, in, u64: 1-based.
        PORT = 0x0,
        /// `UVERBS_ATTR_QUERY_GID_ENTRY_GID_INDEX`, in, u64.
        GID_INDEX = 0x1,
        /// `UVERBS_ATTR_QUERY_GID_ENTRY_FLAGS`, in, u32: 0.
        FLAGS = 0x2,
        /// `UVERBS_ATTR_QUERY_GID_ENTRY_RESP_ENTRY`, out: [`GidEntry`](crate::abi::core::GidEntry);
        /// ENODATA if unused.
        RESP_ENTRY = 0x3,
    }
    /// [`PD_DESTROY`](crate::abi::method::PD_DESTROY).
    pd_destroy {
        /// `UVERBS_ATTR_DESTROY_PD_HANDLE`, handle.
        HANDLE = 0x0,
    }
    /// [`AH_DESTROY`](crate::abi::method::AH_DESTROY).
    ah_destroy {
        /// `UVERBS_ATTR_DESTROY_AH_HANDLE`, handle.
        HANDLE = 0x0,
    }
    /// [`ASYNC_EVENT_ALLOC`](crate::abi::method::ASYNC_EVENT_ALLOC).
    async_event_alloc {
        /// `UVERBS_ATTR_ASYNC_EVENT_ALLOC_FD_HANDLE`, new fd.
        FD_HANDLE = 0x0,
    }
    /// [`DEVX_OTHER`](crate::abi::method::DEVX_OTHER).
    devx_other {
        /// `MLX5_IB_ATTR_DEVX_OTHER_CMD_IN`, in, at least 16 bytes.
        CMD_IN = 0x1000,
        /// `MLX5_IB_ATTR_DEVX_OTHER_CMD_OUT`, out, at least 16 bytes.
        CMD_OUT = 0x1001,
    }
    /// [`DEVX_QUERY_UAR`](crate::abi::method::DEVX_QUERY_UAR).
    devx_query_uar {
        /// `MLX5_IB_ATTR_DEVX_QUERY_UAR_USER_IDX`, in, u32.
        USER_IDX = 0x1000,
        /// `MLX5_IB_ATTR_DEVX_QUERY_UAR_DEV_IDX`, out, u32.
        DEV_IDX = 0x1001,
    }
    /// [`DEVX_QUERY_EQN`](crate::abi::method::DEVX_QUERY_EQN).
    devx_query_eqn {
        /// `MLX5_IB_ATTR_DEVX_QUERY_EQN_USER_VEC`, in, u32: completion vector, from 0.
        USER_VEC = 0x1000,
        /// `MLX5_IB_ATTR_DEVX_QUERY_EQN_DEV_EQN`, out, u32.
        DEV_EQN = 0x1001,
    }
    /// [`DEVX_SUBSCRIBE_EVENT`](crate::abi::method::DEVX_SUBSCRIBE_EVENT).
    devx_subscribe_event {
        /// `MLX5_IB_ATTR_DEVX_SUBSCRIBE_EVENT_FD_HANDLE`, fd of an event channel.
        FD_HANDLE = 0x1000,
        /// `MLX5_IB_ATTR_DEVX_SUBSCRIBE_EVENT_OBJ_HANDLE`, handle; absent for events of the device
        /// or a port.
        OBJ_HANDLE = 0x1001,
        /// `MLX5_IB_ATTR_DEVX_SUBSCRIBE_EVENT_TYPE_NUM_LIST`, in: u16 event types, 1 to 16 of them.
        TYPE_NUM_LIST = 0x1002,
        /// `MLX5_IB_ATTR_DEVX_SUBSCRIBE_EVENT_FD_NUM`, in, u32: an eventfd to signal instead; not
        /// with a cookie.
        FD_NUM = 0x1003,
        /// `MLX5_IB_ATTR_DEVX_SUBSCRIBE_EVENT_COOKIE`, in, u64: returned with each event.
        COOKIE = 0x1004,
    }
    /// [`DEVX_OBJ_CREATE`](crate::abi::method::DEVX_OBJ_CREATE).
    devx_obj_create {
        /// `MLX5_IB_ATTR_DEVX_OBJ_CREATE_HANDLE`, new handle.
        HANDLE = 0x1000,
        /// `MLX5_IB_ATTR_DEVX_OBJ_CREATE_CMD_IN`, in, at least 16 bytes.
        CMD_IN = 0x1001,
        /// `MLX5_IB_ATTR_DEVX_OBJ_CREATE_CMD_OUT`, out, at least 16 bytes.
        CMD_OUT = 0x1002,
    }
    /// [`DEVX_OBJ_DESTROY`](crate::abi::method::DEVX_OBJ_DESTROY).
    devx_obj_destroy {
        /// `MLX5_IB_ATTR_DEVX_OBJ_DESTROY_HANDLE`, handle.
        HANDLE = 0x1000,
    }
    /// [`DEVX_OBJ_MODIFY`](crate::abi::method::DEVX_OBJ_MODIFY).
    devx_obj_modify {
        /// `MLX5_IB_ATTR_DEVX_OBJ_MODIFY_HANDLE`, handle (of a verbs object too).
        HANDLE = 0x1000,
        /// `MLX5_IB_ATTR_DEVX_OBJ_MODIFY_CMD_IN`, in, at least 16 bytes.
        CMD_IN = 0x1001,
        /// `MLX5_IB_ATTR_DEVX_OBJ_MODIFY_CMD_OUT`, out, at least 16 bytes.
        CMD_OUT = 0x1002,
    }
    /// [`DEVX_OBJ_QUERY`](crate::abi::method::DEVX_OBJ_QUERY).
    devx_obj_query {
        /// `MLX5_IB_ATTR_DEVX_OBJ_QUERY_HANDLE`, handle (of a verbs object too).
        HANDLE = 0x1000,
        /// `MLX5_IB_ATTR_DEVX_OBJ_QUERY_CMD_IN`, in, at least 16 bytes.
        CMD_IN = 0x1001,
        /// `MLX5_IB_ATTR_DEVX_OBJ_QUERY_CMD_OUT`, out, at least 16 bytes.
        CMD_OUT = 0x1002,
    }
    /// [`DEVX_OBJ_ASYNC_QUERY`](crate::abi::method::DEVX_OBJ_ASYNC_QUERY).
    devx_obj_async_query {
        /// `MLX5_IB_ATTR_DEVX_OBJ_QUERY_ASYNC_HANDLE`, handle.
        HANDLE = 0x1000,
        /// `MLX5_IB_ATTR_DEVX_OBJ_QUERY_ASYNC_CMD_IN`, in, at least 16 bytes.
        CMD_IN = 0x1001,
        /// `MLX5_IB_ATTR_DEVX_OBJ_QUERY_ASYNC_FD`, fd of an async command channel.
        FD = 0x1002,
        /// `MLX5_IB_ATTR_DEVX_OBJ_QUERY_ASYNC_WR_ID`, in, u64: returned with the answer.
        WR_ID = 0x1003,
        /// `MLX5_IB_ATTR_DEVX_OBJ_QUERY_ASYNC_OUT_LEN`, in, u64 that must fit u16.
        OUT_LEN = 0x1004,
    }
    /// [`DEVX_UMEM_REG`](crate::abi::method::DEVX_UMEM_REG).
    devx_umem_reg {
        /// `MLX5_IB_ATTR_DEVX_UMEM_REG_HANDLE`, new handle.
        HANDLE = 0x1000,
        /// `MLX5_IB_ATTR_DEVX_UMEM_REG_ADDR`, in, u64: user address, or offset in the dmabuf.
        ADDR = 0x1001,
        /// `MLX5_IB_ATTR_DEVX_UMEM_REG_LEN`, in, u64 bytes.
        LEN = 0x1002,
        /// `MLX5_IB_ATTR_DEVX_UMEM_REG_ACCESS`, in, u32: [`access`](crate::abi::core::access)
        /// flags.
        ACCESS = 0x1003,
        /// `MLX5_IB_ATTR_DEVX_UMEM_REG_OUT_ID`, out, u32: the umem id for command mailboxes.
        OUT_ID = 0x1004,
        /// `MLX5_IB_ATTR_DEVX_UMEM_REG_PGSZ_BITMAP`, in, u64: page sizes that the user accepts.
        PGSZ_BITMAP = 0x1005,
        /// `MLX5_IB_ATTR_DEVX_UMEM_REG_DMABUF_FD`, raw fd of a dmabuf.
        DMABUF_FD = 0x1006,
    }
    /// [`DEVX_UMEM_DEREG`](crate::abi::method::DEVX_UMEM_DEREG).
    devx_umem_dereg {
        /// `MLX5_IB_ATTR_DEVX_UMEM_DEREG_HANDLE`, handle.
        HANDLE = 0x1000,
    }
    /// [`FLOW_MATCHER_CREATE`](crate::abi::method::FLOW_MATCHER_CREATE).
    flow_matcher_create {
        /// `MLX5_IB_ATTR_FLOW_MATCHER_CREATE_HANDLE`, new handle.
        HANDLE = 0x1000,
        /// `MLX5_IB_ATTR_FLOW_MATCHER_MATCH_MASK`, in: the beginning of a `fte_match_param`.
        MATCH_MASK = 0x1001,
        /// `MLX5_IB_ATTR_FLOW_MATCHER_FLOW_TYPE`, an element of
        /// [`flow_matcher_type`](crate::abi::attr::flow_matcher_type).
        FLOW_TYPE = 0x1002,
        /// `MLX5_IB_ATTR_FLOW_MATCHER_MATCH_CRITERIA`, in, u8: match_criteria_enable.
        MATCH_CRITERIA = 0x1003,
        /// `MLX5_IB_ATTR_FLOW_MATCHER_FLOW_FLAGS`, in, u32 or u64: `enum ib_flow_flags`.
        FLOW_FLAGS = 0x1004,
        /// `MLX5_IB_ATTR_FLOW_MATCHER_FT_TYPE`, in, u64: `enum mlx5_ib_uapi_flow_table_type`.
        FT_TYPE = 0x1005,
    }
    /// [`FLOW_MATCHER_DESTROY`](crate::abi::method::FLOW_MATCHER_DESTROY).
    flow_matcher_destroy {
        /// `MLX5_IB_ATTR_FLOW_MATCHER_DESTROY_HANDLE`, handle.
        HANDLE = 0x1000,
    }
    /// [`FLOW_CREATE`](crate::abi::method::FLOW_CREATE).
    flow_create {
        /// `MLX5_IB_ATTR_CREATE_FLOW_HANDLE`, new handle.
        HANDLE = 0x1000,
        /// `MLX5_IB_ATTR_CREATE_FLOW_MATCH_VALUE`, in: values under the matcher's mask.
        MATCH_VALUE = 0x1001,
        /// `MLX5_IB_ATTR_CREATE_FLOW_DEST_QP`, handle of a QP.
        DEST_QP = 0x1002,
        /// `MLX5_IB_ATTR_CREATE_FLOW_DEST_DEVX`, handle of a DevX TIR or flow table.
        DEST_DEVX = 0x1003,
        /// `MLX5_IB_ATTR_CREATE_FLOW_MATCHER`, handle.
        MATCHER = 0x1004,
        /// `MLX5_IB_ATTR_CREATE_FLOW_TAG`, in, u32: 24 bits.
        TAG = 0x1006,
    }
    /// [`FLOW_DESTROY`](crate::abi::method::FLOW_DESTROY).
    flow_destroy {
        /// `MLX5_IB_ATTR_DESTROY_FLOW_HANDLE`, handle.
        HANDLE = 0x1000,
    }
    /// [`DEVX_ASYNC_CMD_FD_ALLOC`](crate::abi::method::DEVX_ASYNC_CMD_FD_ALLOC).
    devx_async_cmd_fd_alloc {
        /// `MLX5_IB_ATTR_DEVX_ASYNC_CMD_FD_ALLOC_HANDLE`, new fd.
        HANDLE = 0x1000,
    }
    /// [`DEVX_ASYNC_EVENT_FD_ALLOC`](crate::abi::method::DEVX_ASYNC_EVENT_FD_ALLOC).
    devx_async_event_fd_alloc {
        /// `MLX5_IB_ATTR_DEVX_ASYNC_EVENT_FD_ALLOC_HANDLE`, new fd.
        HANDLE = 0x1000,
        /// `MLX5_IB_ATTR_DEVX_ASYNC_EVENT_FD_ALLOC_FLAGS`, in, u32:
        /// [`OMIT_DATA`](crate::abi::mlx5::OMIT_DATA) or 0.
        FLAGS = 0x1001,
    }
    /// [`UAR_OBJ_ALLOC`](crate::abi::method::UAR_OBJ_ALLOC).
    uar_obj_alloc {
        /// `MLX5_IB_ATTR_UAR_OBJ_ALLOC_HANDLE`, new handle.
        HANDLE = 0x1000,
        /// `MLX5_IB_ATTR_UAR_OBJ_ALLOC_TYPE`, in, u64:
        /// [`UAR_BLUE_FLAME`](crate::abi::mlx5::UAR_BLUE_FLAME) or
        /// [`UAR_NON_CACHED`](crate::abi::mlx5::UAR_NON_CACHED).
        TYPE = 0x1001,
        /// `MLX5_IB_ATTR_UAR_OBJ_ALLOC_MMAP_OFFSET`, out, u64.
        MMAP_OFFSET = 0x1002,
        /// `MLX5_IB_ATTR_UAR_OBJ_ALLOC_MMAP_LENGTH`, out, u32 bytes.
        MMAP_LENGTH = 0x1003,
        /// `MLX5_IB_ATTR_UAR_OBJ_ALLOC_PAGE_ID`, out, u32: the uar_page of CQ and QP contexts.
        PAGE_ID = 0x1004,
    }
    /// [`UAR_OBJ_DESTROY`](crate::abi::method::UAR_OBJ_DESTROY).
    uar_obj_destroy {
        /// `MLX5_IB_ATTR_UAR_OBJ_DESTROY_HANDLE`, handle.
        HANDLE = 0x1000,
    }
}

/// Elements of [`flow_matcher_create::FLOW_TYPE`] (`enum mlx5_ib_flow_type`).
pub mod flow_matcher_type {
    /// Packets that match; the attribute's data is the priority, u16.
    pub const NORMAL: u8 = 0;
    /// Copies of all packets.
    pub const SNIFFER: u8 = 1;
    /// All packets that no other rule takes.
    pub const ALL_DEFAULT: u8 = 2;
    /// All multicast packets that no other rule takes.
    pub const MC_DEFAULT: u8 = 3;
}
