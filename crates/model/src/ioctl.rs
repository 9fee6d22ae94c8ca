//! The ioctls of a device's driver, as fault requests name them.
//!
//! The model answers no ioctl. A front end that plays the kernel answers them, and checks here
//! first ([`Function::take_ioctl_fault`](crate::function::Function::take_ioctl_fault)). That front
//! end compares [`NAMES`] with the ioctls that it implements.

use std::ops::RangeInclusive;

/// The valid values of an errno.
pub(crate) const ERRNOS: RangeInclusive<i32> = 1..=4095;

/// Selects ioctls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ioctl {
    /// All.
    Any,
    /// The ioctls of a method, or of a command of the write interface, by its name in [`NAMES`].
    Named(&'static str),
    /// The ioctls of a method, by its ids.
    Method {
        /// `UVERBS_OBJECT_` or `MLX5_IB_OBJECT_`.
        object: u16,
        /// `UVERBS_METHOD_` or `MLX5_IB_METHOD_` of the object.
        method: u16,
    },
}

/// The modelled methods of uverbs, and the commands of the write interface that `INVOKE_WRITE`
/// carries, by the names that `verbless-model run --trace` prints.
pub const NAMES: &[&str] = &[
    "ALLOC_MW",
    "ALLOC_PD",
    "ATTACH_MCAST",
    "CREATE_AH",
    "CREATE_COMP_CHANNEL",
    "CREATE_CQ",
    "CREATE_QP",
    "CREATE_SRQ",
    "DEALLOC_MW",
    "DEALLOC_PD",
    "DEREG_MR",
    "DESTROY_AH",
    "DESTROY_CQ",
    "DESTROY_QP",
    "DESTROY_SRQ",
    "DETACH_MCAST",
    "MODIFY_CQ_EX",
    "MODIFY_QP",
    "MODIFY_QP_EX",
    "MODIFY_SRQ",
    "QUERY_DEVICE",
    "QUERY_DEVICE_EX",
    "QUERY_PORT",
    "QUERY_QP",
    "QUERY_SRQ",
    "REG_MR",
    "REREG_MR",
    "RESIZE_CQ",
    "INVOKE_WRITE",
    "GET_CONTEXT",
    "QUERY_CONTEXT",
    "QUERY_GID_TABLE",
    "QUERY_GID_ENTRY",
    "PD_DESTROY",
    "PD_QUERY",
    "AH_DESTROY",
    "MR_DESTROY",
    "QUERY_MR",
    "MW_DESTROY",
    "CQ_CREATE",
    "CQ_DESTROY",
    "QP_CREATE",
    "QP_DESTROY",
    "SRQ_CREATE",
    "SRQ_DESTROY",
    "ASYNC_EVENT_ALLOC",
    "DEVX_OTHER",
    "DEVX_QUERY_UAR",
    "DEVX_QUERY_EQN",
    "DEVX_SUBSCRIBE_EVENT",
    "DEVX_OBJ_CREATE",
    "DEVX_OBJ_DESTROY",
    "DEVX_OBJ_MODIFY",
    "DEVX_OBJ_QUERY",
    "DEVX_OBJ_ASYNC_QUERY",
    "DEVX_UMEM_REG",
    "DEVX_UMEM_DEREG",
    "DEVX_ASYNC_CMD_FD_ALLOC",
    "DEVX_ASYNC_EVENT_FD_ALLOC",
    "FLOW_MATCHER_CREATE",
    "FLOW_MATCHER_DESTROY",
    "CREATE_FLOW",
    "DESTROY_FLOW",
    "UAR_OBJ_ALLOC",
    "UAR_OBJ_DESTROY",
];

impl Ioctl {
    /// The ioctls of this name; `None`: no such name exists.
    pub fn named(name: &str) -> Option<Self> {
        NAMES.iter().find(|known| **known == name).map(|known| Self::Named(known))
    }

    /// Whether this selects an ioctl with these ids and names.
    pub(crate) fn is(self, ids: (u16, u16), names: &[&str]) -> bool {
        match self {
            Self::Any => true,
            Self::Named(name) => names.contains(&name),
            Self::Method { object, method } => (object, method) == ids,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ioctl_matches_by_ids_name_or_any() {
        let names = &["INVOKE_WRITE", "CREATE_CQ"];
        let is = |ioctl: Ioctl| ioctl.is((0, 0), names);
        let named = |name| Ioctl::named(name).unwrap();
        assert!(is(Ioctl::Any) && is(named("CREATE_CQ")) && is(named("INVOKE_WRITE")));
        assert!(is(Ioctl::Method { object: 0, method: 0 }));
        assert!(!is(Ioctl::Method { object: 0, method: 1 }) && !is(named("CQ_CREATE")));
        assert_eq!(Ioctl::named("CQ"), None);
    }
}
