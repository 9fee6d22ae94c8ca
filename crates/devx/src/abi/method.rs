//! Object and method ids.
//!
//! Sources: Linux `include/uapi/rdma/ib_user_ioctl_cmds.h` (objects below 0x1000) and
//! `mlx5_user_ioctl_cmds.h` (from 0x1000).

/// A method of an object, as a request names it. Constants of this type may be used as patterns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Method {
    /// Object id.
    pub object: u16,
    /// Method id, counted per object.
    pub method: u16,
}

macro_rules! methods {
    ($($(#[$doc:meta])* $name:ident = $object:literal, $method:literal;)*) => {
        $($(#[$doc])* pub const $name: Method = Method { object: $object, method: $method };)*

        /// Every method of this module, with its name.
        pub const ALL: &[(Method, &str)] = &[$(($name, stringify!($name)),)*];
    };
}

methods! {
    /// `UVERBS_METHOD_INVOKE_WRITE`: the older write() commands, numbered by [`write_command`].
    INVOKE_WRITE = 0x0, 0x0;
    /// `UVERBS_METHOD_QUERY_PORT`.
    QUERY_PORT = 0x0, 0x2;
    /// `UVERBS_METHOD_GET_CONTEXT`: the first call on a file; everything else needs it.
    GET_CONTEXT = 0x0, 0x3;
    /// `UVERBS_METHOD_QUERY_CONTEXT`: returns the GET_CONTEXT response of an open context.
    QUERY_CONTEXT = 0x0, 0x4;
    /// `UVERBS_METHOD_QUERY_GID_TABLE`.
    QUERY_GID_TABLE = 0x0, 0x5;
    /// `UVERBS_METHOD_QUERY_GID_ENTRY`.
    QUERY_GID_ENTRY = 0x0, 0x6;
    /// `UVERBS_METHOD_PD_DESTROY` of `UVERBS_OBJECT_PD`.
    PD_DESTROY = 0x1, 0x0;
    /// `UVERBS_METHOD_AH_DESTROY` of `UVERBS_OBJECT_AH`.
    AH_DESTROY = 0x6, 0x0;
    /// `MLX5_IB_METHOD_CREATE_FLOW` of `UVERBS_OBJECT_FLOW`.
    FLOW_CREATE = 0x9, 0x1000;
    /// `MLX5_IB_METHOD_DESTROY_FLOW`.
    FLOW_DESTROY = 0x9, 0x1001;
    /// `UVERBS_METHOD_ASYNC_EVENT_ALLOC` of `UVERBS_OBJECT_ASYNC_EVENT`.
    ASYNC_EVENT_ALLOC = 0x10, 0x0;
    /// `MLX5_IB_METHOD_DEVX_OTHER`: a command that acts on no object (`devx_is_general_cmd` lists
    /// them).
    DEVX_OTHER = 0x1000, 0x1000;
    /// `MLX5_IB_METHOD_DEVX_QUERY_UAR`: for contexts without dynamic UARs; never sent here.
    DEVX_QUERY_UAR = 0x1000, 0x1001;
    /// `MLX5_IB_METHOD_DEVX_QUERY_EQN`: the EQ number of a completion vector.
    DEVX_QUERY_EQN = 0x1000, 0x1002;
    /// `MLX5_IB_METHOD_DEVX_SUBSCRIBE_EVENT`.
    DEVX_SUBSCRIBE_EVENT = 0x1000, 0x1003;
    /// `MLX5_IB_METHOD_DEVX_OBJ_CREATE`.
    DEVX_OBJ_CREATE = 0x1001, 0x1000;
    /// `MLX5_IB_METHOD_DEVX_OBJ_DESTROY`.
    DEVX_OBJ_DESTROY = 0x1001, 0x1001;
    /// `MLX5_IB_METHOD_DEVX_OBJ_MODIFY`.
    DEVX_OBJ_MODIFY = 0x1001, 0x1002;
    /// `MLX5_IB_METHOD_DEVX_OBJ_QUERY`.
    DEVX_OBJ_QUERY = 0x1001, 0x1003;
    /// `MLX5_IB_METHOD_DEVX_OBJ_ASYNC_QUERY`.
    DEVX_OBJ_ASYNC_QUERY = 0x1001, 0x1004;
    /// `MLX5_IB_METHOD_DEVX_UMEM_REG`.
    DEVX_UMEM_REG = 0x1002, 0x1000;
    /// `MLX5_IB_METHOD_DEVX_UMEM_DEREG`.
    DEVX_UMEM_DEREG = 0x1002, 0x1001;
    /// `MLX5_IB_METHOD_FLOW_MATCHER_CREATE` of `MLX5_IB_OBJECT_FLOW_MATCHER`.
    FLOW_MATCHER_CREATE = 0x1003, 0x1000;
    /// `MLX5_IB_METHOD_FLOW_MATCHER_DESTROY`.
    FLOW_MATCHER_DESTROY = 0x1003, 0x1001;
    /// `MLX5_IB_METHOD_DEVX_ASYNC_CMD_FD_ALLOC`.
    DEVX_ASYNC_CMD_FD_ALLOC = 0x1004, 0x1000;
    /// `MLX5_IB_METHOD_DEVX_ASYNC_EVENT_FD_ALLOC`.
    DEVX_ASYNC_EVENT_FD_ALLOC = 0x1005, 0x1000;
    /// `MLX5_IB_METHOD_UAR_OBJ_ALLOC`.
    UAR_OBJ_ALLOC = 0x1008, 0x1000;
    /// `MLX5_IB_METHOD_UAR_OBJ_DESTROY`.
    UAR_OBJ_DESTROY = 0x1008, 0x1001;
}

impl Method {
    /// Name as in this module, or `"unknown method"`.
    #[must_use]
    pub fn name(self) -> &'static str {
        ALL.iter().find(|(method, _)| *method == self).map_or("unknown method", |(_, name)| name)
    }
}

/// Numbers of the older commands that [`INVOKE_WRITE`] carries (`enum ib_uverbs_write_cmds` of
/// `ib_user_verbs.h`).
pub mod write_command {
    /// `IB_USER_VERBS_CMD_ALLOC_PD`.
    pub const ALLOC_PD: u32 = 3;
    /// `IB_USER_VERBS_CMD_CREATE_AH`.
    pub const CREATE_AH: u32 = 5;
}
