//! libibverbs and libmlx5, loaded at run time: only the functions that the cases use.
//!
//! Drop destroys each object; a failure shows in the recording.
#![allow(unsafe_code, reason = "calls into C libraries; this module holds it")]

mod raw;

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

use nix::errno::Errno;

pub use raw::{AddressHandle, Capabilities, QpAttributes, mask};
use raw::{Functions, Handle};

use crate::memory::Pages;
use crate::result::Result;

/// The two libraries.
pub struct Verbs {
    functions: Functions,
}

/// Checks the pointer that a function returned.
fn given(pointer: Handle, what: &str) -> Result<Handle> {
    if pointer.is_null() { Err(format!("{what}: {}", Errno::last()).into()) } else { Ok(pointer) }
}

/// Checks the error number that a function returned.
fn zero(code: c_int, what: &str) -> Result {
    match code {
        0 => Ok(()),
        code if code > 0 => Err(format!("{what}: {}", Errno::from_raw(code)).into()),
        _ => Err(format!("{what}: {}", Errno::last()).into()),
    }
}

macro_rules! objects {
    ($($(#[$doc:meta])* $name:ident, $destroy:ident;)*) => { $(
        $(#[$doc])*
        pub struct $name<'v> {
            verbs: &'v Verbs,
            handle: Handle,
        }

        impl Drop for $name<'_> {
            fn drop(&mut self) {
                // SAFETY: the handle is of this kind and is destroyed once; objects made from it
                // borrow the context or are dropped before it, as the cases are written.
                unsafe { (self.verbs.functions.$destroy)(self.handle) };
            }
        }
    )* };
}

objects! {
    /// An open device, with DevX.
    Context, close_device;
    /// A protection domain.
    Pd, dealloc_pd;
    /// A completion queue.
    Cq, destroy_cq;
    /// A queue pair.
    Qp, destroy_qp;
    /// A shared receive queue.
    Srq, destroy_srq;
    /// A memory region.
    Mr, dereg_mr;
    /// An object of a DevX command.
    Object, devx_obj_destroy;
    /// Registered memory of DevX.
    Umem, devx_umem_dereg;
    /// A page of doorbells of DevX.
    Uar, devx_free_uar;
    /// A channel of DevX events.
    Events, devx_destroy_event_channel;
    /// A channel of DevX answers.
    Answers, devx_destroy_cmd_comp;
}

impl Verbs {
    /// Loads the system's libraries.
    ///
    /// # Errors
    /// If they are missing, or lack a function.
    pub fn load() -> Result<Self> {
        // SAFETY: the libraries are the C libraries that their names say.
        Ok(Self { functions: unsafe { Functions::load() }? })
    }

    /// Opens the first device.
    ///
    /// # Errors
    /// If there is none, or it does not open with DevX.
    pub fn open(&self) -> Result<Context<'_>> {
        // SAFETY: the list is read up to its first entry, which is null if there is none, and then
        // freed.
        let handle = unsafe {
            let mut count = 0;
            let list = (self.functions.get_device_list)(&mut count);
            if list.is_null() || count == 0 {
                return Err("libibverbs finds no device".into());
            }
            let attributes = raw::ContextAttributes { flags: 1, comp_mask: 0, fds: null_mut() };
            let opened = (self.functions.open_device)(*list, &attributes);
            (self.functions.free_device_list)(list);
            opened
        };
        Ok(Context { verbs: self, handle: given(handle, "opening the device")? })
    }
}

impl<'v> Context<'v> {
    /// `mlx5dv_devx_general_cmd`.
    ///
    /// # Errors
    /// If the kernel or the device refuses it.
    pub fn general_command(&self, input: &[u8], output: &mut [u8]) -> Result {
        let functions = &self.verbs.functions;
        // SAFETY: both buffers have the stated lengths.
        let code = unsafe {
            (functions.devx_general_cmd)(
                self.handle,
                input.as_ptr().cast(),
                input.len(),
                output.as_mut_ptr().cast(),
                output.len(),
            )
        };
        zero(code, "a general command")
    }

    /// `ibv_alloc_pd`.
    ///
    /// # Errors
    /// When it fails.
    pub fn pd(&self) -> Result<Pd<'v>> {
        // SAFETY: the context is open.
        let handle = unsafe { (self.verbs.functions.alloc_pd)(self.handle) };
        Ok(Pd { verbs: self.verbs, handle: given(handle, "ibv_alloc_pd")? })
    }

    /// `ibv_create_cq` on vector 0.
    ///
    /// # Errors
    /// When it fails.
    pub fn cq(&self, cqe: u32) -> Result<Cq<'v>> {
        let create = self.verbs.functions.create_cq;
        // SAFETY: the context is open; a user context and a channel are optional.
        let handle = unsafe { create(self.handle, cqe as c_int, null_mut(), null_mut(), 0) };
        Ok(Cq { verbs: self.verbs, handle: given(handle, "ibv_create_cq")? })
    }

    /// `mlx5dv_create_cq` with 128-byte entries, and with overrun, if requested.
    ///
    /// # Errors
    /// When it fails.
    pub fn special_cq(&self, cqe: u32, wide: bool, overrun: bool) -> Result<Cq<'v>> {
        const HAS_FLAGS: u32 = 1 << 0;
        const IGNORE_OVERRUN: u32 = 1 << 1;
        const HAS_CQE_SIZE: u64 = 1 << 2;
        let mut attributes = raw::CqAttributes { cqe, ..Default::default() };
        if overrun {
            (attributes.comp_mask, attributes.flags) = (HAS_FLAGS, IGNORE_OVERRUN);
        }
        let mut more = raw::Mlx5CqAttributes::default();
        if wide {
            (more.comp_mask, more.cqe_size) = (HAS_CQE_SIZE, 128);
        }
        let create = self.verbs.functions.mlx5_create_cq;
        // SAFETY: the context is open; both structures are whole, and only read. The extended queue
        // begins as a plain one.
        let handle = unsafe { create(self.handle, &mut attributes, &mut more) };
        Ok(Cq { verbs: self.verbs, handle: given(handle, "mlx5dv_create_cq")? })
    }

    /// `ibv_query_port`, only for its request.
    ///
    /// # Errors
    /// When it fails.
    pub fn query_port(&self, port: u8) -> Result {
        let mut attributes = [0u64; 32];
        // SAFETY: the kernel writes at most 52 bytes in every version.
        let code = unsafe {
            (self.verbs.functions.query_port)(self.handle, port, attributes.as_mut_ptr().cast())
        };
        zero(code, "ibv_query_port")
    }

    /// `ibv_query_gid_table` with room for `room` entries.
    ///
    /// # Errors
    /// When it fails.
    pub fn gid_table(&self, room: usize) -> Result {
        let mut entries = vec![0u64; room * raw::GID_ENTRY / 8];
        let query = self.verbs.functions.query_gid_table;
        // SAFETY: there is room for the stated number of entries of that size.
        let found =
            unsafe { query(self.handle, entries.as_mut_ptr().cast(), room, 0, raw::GID_ENTRY) };
        if found < 0 { zero(-(found as c_int), "ibv_query_gid_table") } else { Ok(()) }
    }

    /// `ibv_query_gid_ex`.
    ///
    /// # Errors
    /// When it fails.
    pub fn gid_entry(&self, port: u32, index: u32) -> Result {
        let mut entry = [0u64; raw::GID_ENTRY / 8];
        let query = self.verbs.functions.query_gid_ex;
        // SAFETY: the buffer has the size of an entry.
        let code = unsafe {
            query(self.handle, port, index, entry.as_mut_ptr().cast(), 0, raw::GID_ENTRY)
        };
        zero(code, "ibv_query_gid_ex")
    }

    /// `mlx5dv_devx_query_eqn`.
    ///
    /// # Errors
    /// When it fails.
    pub fn eqn(&self, vector: u32) -> Result<u32> {
        let mut eqn = 0;
        // SAFETY: the number is written to a variable of its size.
        let code = unsafe { (self.verbs.functions.devx_query_eqn)(self.handle, vector, &mut eqn) };
        zero(code, "mlx5dv_devx_query_eqn")?;
        Ok(eqn)
    }

    /// `mlx5dv_devx_alloc_uar` and its number.
    ///
    /// # Errors
    /// When it fails.
    pub fn uar(&self, kind: u32) -> Result<(Uar<'v>, u32)> {
        // SAFETY: the context is open; the result begins with two pointers and the number.
        let (handle, number) = unsafe {
            let handle = (self.verbs.functions.devx_alloc_uar)(self.handle, kind);
            let handle = given(handle, "mlx5dv_devx_alloc_uar")?;
            (handle, (*handle.cast::<raw::Uar>()).page_id)
        };
        Ok((Uar { verbs: self.verbs, handle }, number))
    }

    /// `mlx5dv_devx_umem_reg`, or with a bitmap of page sizes `mlx5dv_devx_umem_reg_ex`; and its
    /// number. The memory must stay.
    ///
    /// # Errors
    /// When it fails.
    pub fn umem(&self, pages: &Pages, access: u32, sizes: Option<u64>) -> Result<(Umem<'v>, u32)> {
        let functions = &self.verbs.functions;
        let address = std::ptr::with_exposed_provenance_mut::<c_void>(pages.address() as usize);
        // SAFETY: this program makes no reference into the pages; the result begins with the
        // number.
        let (handle, number) = unsafe {
            std::mem::forget(pages.clone());
            let handle = match sizes {
                None => (functions.devx_umem_reg)(self.handle, address, pages.len(), access),
                Some(pgsz_bitmap) => {
                    let mut input = raw::UmemIn {
                        addr: address,
                        size: pages.len(),
                        access,
                        pgsz_bitmap,
                        comp_mask: 0,
                        dmabuf_fd: 0,
                    };
                    (functions.devx_umem_reg_ex)(self.handle, &mut input)
                }
            };
            let handle = given(handle, "mlx5dv_devx_umem_reg")?;
            (handle, *handle.cast::<u32>())
        };
        Ok((Umem { verbs: self.verbs, handle }, number))
    }

    /// `mlx5dv_devx_obj_create`.
    ///
    /// # Errors
    /// If the kernel or the device refuses it.
    pub fn object(&self, input: &[u8], output: &mut [u8]) -> Result<Object<'v>> {
        let create = self.verbs.functions.devx_obj_create;
        // SAFETY: both buffers have the stated lengths.
        let handle = unsafe {
            create(
                self.handle,
                input.as_ptr().cast(),
                input.len(),
                output.as_mut_ptr().cast(),
                output.len(),
            )
        };
        Ok(Object { verbs: self.verbs, handle: given(handle, "mlx5dv_devx_obj_create")? })
    }

    /// `mlx5dv_devx_create_event_channel`.
    ///
    /// # Errors
    /// When it fails.
    pub fn events(&self, omit_data: bool) -> Result<Events<'v>> {
        let create = self.verbs.functions.devx_create_event_channel;
        // SAFETY: the context is open.
        let handle = unsafe { create(self.handle, c_int::from(omit_data)) };
        Ok(Events { verbs: self.verbs, handle: given(handle, "mlx5dv_devx_create_event_channel")? })
    }

    /// `mlx5dv_devx_create_cmd_comp`.
    ///
    /// # Errors
    /// When it fails.
    pub fn answers(&self) -> Result<Answers<'v>> {
        // SAFETY: the context is open.
        let handle = unsafe { (self.verbs.functions.devx_create_cmd_comp)(self.handle) };
        Ok(Answers { verbs: self.verbs, handle: given(handle, "mlx5dv_devx_create_cmd_comp")? })
    }
}

impl<'v> Pd<'v> {
    /// `ibv_reg_mr` of a part of these pages, which must stay.
    ///
    /// # Errors
    /// When it fails.
    pub fn register(
        &self,
        pages: &Pages,
        offset: usize,
        length: usize,
        access: u32,
    ) -> Result<Mr<'v>> {
        let address = std::ptr::with_exposed_provenance_mut(pages.address() as usize + offset);
        // SAFETY: this program makes no reference into the pages, and they are never unmapped.
        let handle = unsafe {
            std::mem::forget(pages.clone());
            (self.verbs.functions.reg_mr)(self.handle, address, length, access as c_int)
        };
        Ok(Mr { verbs: self.verbs, handle: given(handle, "ibv_reg_mr")? })
    }

    /// `ibv_create_srq`.
    ///
    /// # Errors
    /// When it fails.
    pub fn srq(&self, max_wr: u32, max_sge: u32) -> Result<Srq<'v>> {
        let mut attributes =
            raw::SrqAttributes { srq_context: null_mut(), max_wr, max_sge, srq_limit: 0 };
        // SAFETY: the structure is whole.
        let handle = unsafe { (self.verbs.functions.create_srq)(self.handle, &mut attributes) };
        Ok(Srq { verbs: self.verbs, handle: given(handle, "ibv_create_srq")? })
    }

    /// `ibv_create_qp`.
    ///
    /// # Errors
    /// When it fails.
    pub fn qp(
        &self,
        qp_type: u32,
        cap: Capabilities,
        signal_all: bool,
        send: &Cq<'_>,
        receive: &Cq<'_>,
        srq: Option<&Srq<'_>>,
    ) -> Result<Qp<'v>> {
        let mut attributes = raw::QpInitAttributes {
            qp_context: null_mut(),
            send_cq: send.handle,
            recv_cq: receive.handle,
            srq: srq.map_or(null_mut(), |srq| srq.handle),
            cap,
            qp_type,
            sq_sig_all: signal_all.into(),
        };
        // SAFETY: the structure is whole, and its queues are alive.
        let handle = unsafe { (self.verbs.functions.create_qp)(self.handle, &mut attributes) };
        Ok(Qp { verbs: self.verbs, handle: given(handle, "ibv_create_qp")? })
    }
}

impl Cq<'_> {
    /// `ibv_modify_cq`: an event after `count` completions, or `period` microseconds.
    ///
    /// # Errors
    /// When it fails.
    pub fn moderate(&self, count: u16, period: u16) -> Result {
        let mut attributes = raw::ModifyCq { attr_mask: 1, cq_count: count, cq_period: period };
        // SAFETY: a queue begins with its context, which is the last part of an extended context;
        // see `raw::MODIFY_CQ`.
        let code = unsafe {
            let context = *self.handle.cast::<*const raw::ModifyCqFunction>();
            (*context.sub(raw::MODIFY_CQ))(self.handle, &mut attributes)
        };
        zero(code, "ibv_modify_cq")
    }
}

impl Srq<'_> {
    /// `ibv_modify_srq`: an event when fewer receives than this are left.
    ///
    /// # Errors
    /// When it fails.
    pub fn arm_limit(&self, limit: u16) -> Result {
        const LIMIT: c_int = 1 << 1;
        let mut attributes = [0, 0, u32::from(limit)];
        // SAFETY: the structure is three numbers.
        let code = unsafe {
            (self.verbs.functions.modify_srq)(self.handle, attributes.as_mut_ptr().cast(), LIMIT)
        };
        zero(code, "ibv_modify_srq")
    }
}

impl Qp<'_> {
    /// `ibv_modify_qp`.
    ///
    /// # Errors
    /// When it fails.
    pub fn modify(&self, attributes: &QpAttributes, given: u32) -> Result {
        let mut attributes = *attributes;
        // SAFETY: the structure is whole.
        let code = unsafe {
            (self.verbs.functions.modify_qp)(self.handle, &mut attributes, given as c_int)
        };
        zero(code, "ibv_modify_qp")
    }
}

impl Object<'_> {
    /// `mlx5dv_devx_obj_query`.
    ///
    /// # Errors
    /// If the kernel or the device refuses it.
    pub fn query(&self, input: &[u8], output: &mut [u8]) -> Result {
        self.command(self.verbs.functions.devx_obj_query, input, output)
    }

    /// `mlx5dv_devx_obj_modify`.
    ///
    /// # Errors
    /// If the kernel or the device refuses it.
    pub fn modify(&self, input: &[u8], output: &mut [u8]) -> Result {
        self.command(self.verbs.functions.devx_obj_modify, input, output)
    }

    fn command(&self, function: raw::Command, input: &[u8], output: &mut [u8]) -> Result {
        // SAFETY: both buffers have the stated lengths.
        let code = unsafe {
            function(
                self.handle,
                input.as_ptr().cast(),
                input.len(),
                output.as_mut_ptr().cast(),
                output.len(),
            )
        };
        zero(code, "a command on an object")
    }

    /// `mlx5dv_devx_obj_query_async`.
    ///
    /// # Errors
    /// When it fails.
    pub fn query_later(&self, input: &[u8], room: usize, id: u64, answers: &Answers<'_>) -> Result {
        let query = self.verbs.functions.devx_obj_query_async;
        // SAFETY: the input has the stated length.
        let code = unsafe {
            query(self.handle, input.as_ptr().cast(), input.len(), room, id, answers.handle)
        };
        zero(code, "mlx5dv_devx_obj_query_async")
    }
}

impl Events<'_> {
    /// `mlx5dv_devx_subscribe_devx_event`.
    ///
    /// # Errors
    /// When it fails.
    pub fn subscribe(&self, object: Option<&Object<'_>>, events: &[u16], cookie: u64) -> Result {
        let object = object.map_or(null_mut(), |object| object.handle);
        let bytes = size_of_val(events) as u16;
        let subscribe = self.verbs.functions.devx_subscribe_devx_event;
        // SAFETY: the list has the stated length.
        let code = unsafe { subscribe(self.handle, object, bytes, events.as_ptr(), cookie) };
        zero(code, "mlx5dv_devx_subscribe_devx_event")
    }

    /// `mlx5dv_devx_subscribe_devx_event_fd`, to the channel's own descriptor.
    ///
    /// # Errors
    /// When it fails.
    pub fn subscribe_fd(&self, fd: c_int, object: &Object<'_>, event: u16) -> Result {
        let subscribe = self.verbs.functions.devx_subscribe_devx_event_fd;
        // SAFETY: both are alive.
        let code = unsafe { subscribe(self.handle, fd, object.handle, event) };
        zero(code, "mlx5dv_devx_subscribe_devx_event_fd")
    }
}
