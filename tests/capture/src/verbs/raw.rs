//! Functions and structures of the two libraries. Sources: rdma-core `libibverbs/verbs.h` and
//! `providers/mlx5/mlx5dv.h`.

use std::ffi::{CStr, c_char, c_int, c_void};

use crate::result::Result;

/// A pointer to an object of the libraries.
pub(super) type Handle = *mut c_void;

/// A command on an object: `mlx5dv_devx_obj_query`, `mlx5dv_devx_obj_modify`.
pub(super) type Command =
    unsafe extern "C" fn(Handle, *const c_void, usize, *mut c_void, usize) -> c_int;

/// `modify_cq` of an extended context.
pub(super) type ModifyCqFunction = unsafe extern "C" fn(Handle, *mut ModifyCq) -> c_int;

/// `modify_cq` of an extended context is this many pointers before the plain context. New members
/// come at the front, so this never changes.
pub(super) const MODIFY_CQ: usize = 23;

/// Bytes of `struct ibv_gid_entry`.
pub(super) const GID_ENTRY: usize = 32;

macro_rules! functions {
    ($($library:ident $name:ident = $symbol:literal: fn($($argument:ty),*) -> $result:ty;)*) => {
        /// The functions that the cases call.
        pub(super) struct Functions {
            $(pub(super) $name: unsafe extern "C" fn($($argument),*) -> $result,)*
        }

        impl Functions {
            /// Loads the libraries and finds their functions.
            ///
            /// # Safety
            /// The libraries are those of rdma-core.
            pub(super) unsafe fn load() -> Result<Self> {
                load_provider()?;
                Ok(Self {
                    // SAFETY: a function of that name has that type.
                    $($name: unsafe {
                        std::mem::transmute::<
                            Handle,
                            unsafe extern "C" fn($($argument),*) -> $result,
                        >(
                            symbol(library($library)?, concat!($symbol, "\0"))?,
                        )
                    },)*
                })
            }
        }
    };
}

functions! {
    IBVERBS get_device_list = "ibv_get_device_list": fn(*mut c_int) -> *mut Handle;
    IBVERBS free_device_list = "ibv_free_device_list": fn(*mut Handle) -> ();
    IBVERBS close_device = "ibv_close_device": fn(Handle) -> c_int;
    IBVERBS alloc_pd = "ibv_alloc_pd": fn(Handle) -> Handle;
    IBVERBS dealloc_pd = "ibv_dealloc_pd": fn(Handle) -> c_int;
    IBVERBS create_cq = "ibv_create_cq": fn(Handle, c_int, Handle, Handle, c_int) -> Handle;
    IBVERBS destroy_cq = "ibv_destroy_cq": fn(Handle) -> c_int;
    IBVERBS create_qp = "ibv_create_qp": fn(Handle, *mut QpInitAttributes) -> Handle;
    IBVERBS modify_qp = "ibv_modify_qp": fn(Handle, *mut QpAttributes, c_int) -> c_int;
    IBVERBS destroy_qp = "ibv_destroy_qp": fn(Handle) -> c_int;
    IBVERBS create_srq = "ibv_create_srq": fn(Handle, *mut SrqAttributes) -> Handle;
    IBVERBS modify_srq = "ibv_modify_srq": fn(Handle, Handle, c_int) -> c_int;
    IBVERBS destroy_srq = "ibv_destroy_srq": fn(Handle) -> c_int;
    IBVERBS reg_mr = "ibv_reg_mr": fn(Handle, Handle, usize, c_int) -> Handle;
    IBVERBS dereg_mr = "ibv_dereg_mr": fn(Handle) -> c_int;
    IBVERBS query_port = "ibv_query_port": fn(Handle, u8, Handle) -> c_int;
    IBVERBS query_gid_table = "_ibv_query_gid_table":
        fn(Handle, Handle, usize, u32, usize) -> isize;
    IBVERBS query_gid_ex = "_ibv_query_gid_ex": fn(Handle, u32, u32, Handle, u32, usize) -> c_int;
    MLX5 open_device = "mlx5dv_open_device": fn(Handle, *const ContextAttributes) -> Handle;
    MLX5 mlx5_create_cq = "mlx5dv_create_cq":
        fn(Handle, *mut CqAttributes, *mut Mlx5CqAttributes) -> Handle;
    MLX5 devx_general_cmd = "mlx5dv_devx_general_cmd":
        fn(Handle, *const c_void, usize, *mut c_void, usize) -> c_int;
    MLX5 devx_obj_create = "mlx5dv_devx_obj_create":
        fn(Handle, *const c_void, usize, *mut c_void, usize) -> Handle;
    MLX5 devx_obj_query = "mlx5dv_devx_obj_query":
        fn(Handle, *const c_void, usize, *mut c_void, usize) -> c_int;
    MLX5 devx_obj_modify = "mlx5dv_devx_obj_modify":
        fn(Handle, *const c_void, usize, *mut c_void, usize) -> c_int;
    MLX5 devx_obj_destroy = "mlx5dv_devx_obj_destroy": fn(Handle) -> c_int;
    MLX5 devx_obj_query_async = "mlx5dv_devx_obj_query_async":
        fn(Handle, *const c_void, usize, usize, u64, Handle) -> c_int;
    MLX5 devx_create_cmd_comp = "mlx5dv_devx_create_cmd_comp": fn(Handle) -> Handle;
    MLX5 devx_destroy_cmd_comp = "mlx5dv_devx_destroy_cmd_comp": fn(Handle) -> ();
    MLX5 devx_umem_reg = "mlx5dv_devx_umem_reg": fn(Handle, Handle, usize, u32) -> Handle;
    MLX5 devx_umem_reg_ex = "mlx5dv_devx_umem_reg_ex": fn(Handle, *mut UmemIn) -> Handle;
    MLX5 devx_umem_dereg = "mlx5dv_devx_umem_dereg": fn(Handle) -> c_int;
    MLX5 devx_alloc_uar = "mlx5dv_devx_alloc_uar": fn(Handle, u32) -> Handle;
    MLX5 devx_free_uar = "mlx5dv_devx_free_uar": fn(Handle) -> ();
    MLX5 devx_query_eqn = "mlx5dv_devx_query_eqn": fn(Handle, u32, *mut u32) -> c_int;
    MLX5 devx_create_event_channel = "mlx5dv_devx_create_event_channel":
        fn(Handle, c_int) -> Handle;
    MLX5 devx_destroy_event_channel = "mlx5dv_devx_destroy_event_channel": fn(Handle) -> ();
    MLX5 devx_subscribe_devx_event = "mlx5dv_devx_subscribe_devx_event":
        fn(Handle, Handle, u16, *const u16, u64) -> c_int;
    MLX5 devx_subscribe_devx_event_fd = "mlx5dv_devx_subscribe_devx_event_fd":
        fn(Handle, c_int, Handle, u16) -> c_int;
}

const IBVERBS: &CStr = c"libibverbs.so.1";
const MLX5: &CStr = c"libmlx5.so.1";

/// Makes libibverbs load its provider, by a search for devices. The provider may be another file
/// than libmlx5; if it is loaded first under the same name, a later load finds it.
fn load_provider() -> Result {
    let (list, free) = (
        symbol(library(IBVERBS)?, "ibv_get_device_list\0")?,
        symbol(library(IBVERBS)?, "ibv_free_device_list\0")?,
    );
    // SAFETY: functions of these names have these types; the list is given back.
    unsafe {
        let list: unsafe extern "C" fn(*mut c_int) -> *mut Handle = std::mem::transmute(list);
        let free: unsafe extern "C" fn(*mut Handle) = std::mem::transmute(free);
        let devices = list(std::ptr::null_mut());
        if devices.is_null() {
            return Err("libibverbs finds no devices".into());
        }
        free(devices);
    }
    Ok(())
}

fn library(name: &CStr) -> Result<Handle> {
    // SAFETY: the name is terminated; the library's constructors must run.
    let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) };
    if handle.is_null() { Err(last_error().into()) } else { Ok(handle) }
}

fn symbol(library: Handle, name: &'static str) -> Result<Handle> {
    let name = CStr::from_bytes_with_nul(name.as_bytes())?;
    // SAFETY: the library is loaded and the name terminated.
    let found = unsafe { libc::dlsym(library, name.as_ptr()) };
    if found.is_null() { Err(last_error().into()) } else { Ok(found) }
}

fn last_error() -> String {
    // SAFETY: the text, if there is one, is terminated and stays until the next call of its kind.
    let text: *const c_char = unsafe { libc::dlerror() };
    if text.is_null() {
        return "its address is null".into();
    }
    // SAFETY: as above.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

/// `struct ibv_qp_cap`.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
#[allow(missing_docs, reason = "the names are those of verbs.h")]
pub struct Capabilities {
    pub max_send_wr: u32,
    pub max_recv_wr: u32,
    pub max_send_sge: u32,
    pub max_recv_sge: u32,
    pub max_inline_data: u32,
}

/// `struct ibv_qp_init_attr`.
#[repr(C)]
pub(super) struct QpInitAttributes {
    pub(super) qp_context: Handle,
    pub(super) send_cq: Handle,
    pub(super) recv_cq: Handle,
    pub(super) srq: Handle,
    pub(super) cap: Capabilities,
    pub(super) qp_type: u32,
    pub(super) sq_sig_all: c_int,
}

/// `struct ibv_ah_attr`, its global route first.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
#[allow(missing_docs, reason = "the names are those of verbs.h")]
pub struct AddressHandle {
    pub dgid: [u8; 16],
    pub flow_label: u32,
    pub sgid_index: u8,
    pub hop_limit: u8,
    pub traffic_class: u8,
    pub dlid: u16,
    pub sl: u8,
    pub src_path_bits: u8,
    pub static_rate: u8,
    pub is_global: u8,
    pub port_num: u8,
}

/// `struct ibv_qp_attr`.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
#[allow(missing_docs, reason = "the names are those of verbs.h")]
pub struct QpAttributes {
    pub qp_state: u32,
    pub cur_qp_state: u32,
    pub path_mtu: u32,
    pub path_mig_state: u32,
    pub qkey: u32,
    pub rq_psn: u32,
    pub sq_psn: u32,
    pub dest_qp_num: u32,
    pub qp_access_flags: u32,
    pub cap: Capabilities,
    pub ah_attr: AddressHandle,
    pub alt_ah_attr: AddressHandle,
    pub pkey_index: u16,
    pub alt_pkey_index: u16,
    pub en_sqd_async_notify: u8,
    pub sq_draining: u8,
    pub max_rd_atomic: u8,
    pub max_dest_rd_atomic: u8,
    pub min_rnr_timer: u8,
    pub port_num: u8,
    pub timeout: u8,
    pub retry_cnt: u8,
    pub rnr_retry: u8,
    pub alt_port_num: u8,
    pub alt_timeout: u8,
    pub rate_limit: u32,
}

/// `enum ibv_qp_attr_mask`.
#[allow(missing_docs, reason = "the names are nearly those of verbs.h")]
pub mod mask {
    pub const STATE: u32 = 1 << 0;
    pub const ACCESS: u32 = 1 << 3;
    pub const PKEY_INDEX: u32 = 1 << 4;
    pub const PORT: u32 = 1 << 5;
    pub const QKEY: u32 = 1 << 6;
    pub const AV: u32 = 1 << 7;
    pub const PATH_MTU: u32 = 1 << 8;
    pub const TIMEOUT: u32 = 1 << 9;
    pub const RETRIES: u32 = 1 << 10;
    pub const RNR_RETRIES: u32 = 1 << 11;
    pub const RQ_PSN: u32 = 1 << 12;
    pub const MAX_READS: u32 = 1 << 13;
    pub const MIN_RNR_TIMER: u32 = 1 << 15;
    pub const SQ_PSN: u32 = 1 << 16;
    pub const MAX_DEST_READS: u32 = 1 << 17;
    pub const DEST_QPN: u32 = 1 << 20;
}

/// `struct ibv_srq_init_attr`.
#[repr(C)]
pub(super) struct SrqAttributes {
    pub(super) srq_context: Handle,
    pub(super) max_wr: u32,
    pub(super) max_sge: u32,
    pub(super) srq_limit: u32,
}

/// `struct ibv_cq_init_attr_ex`.
#[repr(C)]
pub(super) struct CqAttributes {
    pub(super) cqe: u32,
    pub(super) cq_context: Handle,
    pub(super) channel: Handle,
    pub(super) comp_vector: u32,
    pub(super) wc_flags: u64,
    pub(super) comp_mask: u32,
    pub(super) flags: u32,
    pub(super) parent_domain: Handle,
}

impl Default for CqAttributes {
    fn default() -> Self {
        let none = std::ptr::null_mut();
        Self {
            cqe: 0,
            cq_context: none,
            channel: none,
            comp_vector: 0,
            wc_flags: 0,
            comp_mask: 0,
            flags: 0,
            parent_domain: none,
        }
    }
}

/// `struct mlx5dv_cq_init_attr`.
#[derive(Default)]
#[repr(C)]
pub(super) struct Mlx5CqAttributes {
    pub(super) comp_mask: u64,
    pub(super) cqe_comp_res_format: u8,
    pub(super) flags: u32,
    pub(super) cqe_size: u16,
}

/// `struct ibv_modify_cq_attr`.
#[repr(C)]
pub(super) struct ModifyCq {
    pub(super) attr_mask: u32,
    pub(super) cq_count: u16,
    pub(super) cq_period: u16,
}

/// `struct mlx5dv_context_attr`.
#[repr(C)]
pub(super) struct ContextAttributes {
    pub(super) flags: u32,
    pub(super) comp_mask: u64,
    pub(super) fds: Handle,
}

/// `struct mlx5dv_devx_umem_in`.
#[repr(C)]
pub(super) struct UmemIn {
    pub(super) addr: Handle,
    pub(super) size: usize,
    pub(super) access: u32,
    pub(super) pgsz_bitmap: u64,
    pub(super) comp_mask: u64,
    pub(super) dmabuf_fd: c_int,
}

/// The beginning of `struct mlx5dv_devx_uar`.
#[repr(C)]
pub(super) struct Uar {
    reg_addr: Handle,
    base_addr: Handle,
    pub(super) page_id: u32,
}
