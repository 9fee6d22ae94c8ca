//! What the attributes of each method are: bytes, handles or files, of the request or the answer.
//!
//! A request does not say this: an output and a long input are both an address and a length.

use verbless_devx::abi::method::write_command;
use verbless_devx::abi::request::INLINE_BYTES;
use verbless_devx::abi::{Attribute, Method, attr, method};

/// What an attribute holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Bytes of the request.
    Input,
    /// An input mailbox of a command.
    InputMailbox,
    /// An address in the caller's memory, which differs from run to run.
    Address,
    /// Bytes that say which pages suit an address.
    OfAddress,
    /// Bytes of the answer.
    Output,
    /// An output mailbox of a command.
    OutputMailbox,
    /// An object that exists.
    Handle,
    /// An object that the call makes.
    NewHandle,
    /// A channel that exists.
    File,
    /// A channel that the call opens.
    NewFile,
    /// A file of the caller, such as an eventfd.
    OwnFile,
}

/// What an attribute of a call of `method` holds.
pub(super) fn kind(method: Method, attribute: &Attribute) -> Kind {
    use attr::{
        async_event_alloc, devx_async_cmd_fd_alloc, devx_async_event_fd_alloc,
        devx_obj_async_query, devx_obj_create, devx_obj_modify, devx_obj_query, devx_other,
        devx_query_eqn, devx_query_uar, devx_subscribe_event, devx_umem_reg, flow_create,
        flow_matcher_create, get_context, invoke_write, query_context, query_gid_entry,
        query_gid_table, query_port, uar_obj_alloc, uhw,
    };
    let known = match (method, attribute.attr_id) {
        (method::GET_CONTEXT | method::INVOKE_WRITE, uhw::OUT)
        | (method::GET_CONTEXT, get_context::NUM_COMP_VECTORS | get_context::CORE_SUPPORT)
        | (
            method::QUERY_CONTEXT,
            query_context::NUM_COMP_VECTORS | query_context::CORE_SUPPORT | query_context::RESP,
        )
        | (method::INVOKE_WRITE, invoke_write::CORE_OUT)
        | (method::QUERY_PORT, query_port::RESP)
        | (
            method::QUERY_GID_TABLE,
            query_gid_table::RESP_ENTRIES | query_gid_table::RESP_NUM_ENTRIES,
        )
        | (method::QUERY_GID_ENTRY, query_gid_entry::RESP_ENTRY)
        | (method::DEVX_QUERY_UAR, devx_query_uar::DEV_IDX)
        | (method::DEVX_QUERY_EQN, devx_query_eqn::DEV_EQN)
        | (method::DEVX_UMEM_REG, devx_umem_reg::OUT_ID)
        | (
            method::UAR_OBJ_ALLOC,
            uar_obj_alloc::MMAP_OFFSET | uar_obj_alloc::MMAP_LENGTH | uar_obj_alloc::PAGE_ID,
        ) => Kind::Output,
        (method::DEVX_OTHER, devx_other::CMD_IN)
        | (method::DEVX_OBJ_CREATE, devx_obj_create::CMD_IN)
        | (method::DEVX_OBJ_MODIFY, devx_obj_modify::CMD_IN)
        | (method::DEVX_OBJ_QUERY, devx_obj_query::CMD_IN)
        | (method::DEVX_OBJ_ASYNC_QUERY, devx_obj_async_query::CMD_IN) => Kind::InputMailbox,
        (method::DEVX_OTHER, devx_other::CMD_OUT)
        | (method::DEVX_OBJ_CREATE, devx_obj_create::CMD_OUT)
        | (method::DEVX_OBJ_MODIFY, devx_obj_modify::CMD_OUT)
        | (method::DEVX_OBJ_QUERY, devx_obj_query::CMD_OUT) => Kind::OutputMailbox,
        (method::DEVX_OBJ_CREATE, devx_obj_create::HANDLE)
        | (method::DEVX_UMEM_REG, devx_umem_reg::HANDLE)
        | (method::FLOW_MATCHER_CREATE, flow_matcher_create::HANDLE)
        | (method::FLOW_CREATE, flow_create::HANDLE)
        | (method::UAR_OBJ_ALLOC, uar_obj_alloc::HANDLE) => Kind::NewHandle,
        (method::ASYNC_EVENT_ALLOC, async_event_alloc::FD_HANDLE)
        | (method::DEVX_ASYNC_CMD_FD_ALLOC, devx_async_cmd_fd_alloc::HANDLE)
        | (method::DEVX_ASYNC_EVENT_FD_ALLOC, devx_async_event_fd_alloc::HANDLE) => Kind::NewFile,
        (method::DEVX_SUBSCRIBE_EVENT, devx_subscribe_event::FD_HANDLE)
        | (method::DEVX_OBJ_ASYNC_QUERY, devx_obj_async_query::FD) => Kind::File,
        (method::DEVX_SUBSCRIBE_EVENT, devx_subscribe_event::FD_NUM)
        | (method::DEVX_UMEM_REG, devx_umem_reg::DMABUF_FD) => Kind::OwnFile,
        (method::DEVX_UMEM_REG, devx_umem_reg::ADDR) => Kind::Address,
        (method::DEVX_UMEM_REG, devx_umem_reg::PGSZ_BITMAP) => Kind::OfAddress,
        (_, _) if attribute.len == 0 => Kind::Handle,
        _ => Kind::Input,
    };
    match known {
        // A command has at least 16 bytes; a shorter mailbox is what a case about bad requests
        // sends.
        Kind::InputMailbox if usize::from(attribute.len) <= INLINE_BYTES => Kind::Input,
        known => known,
    }
}

/// Bytes at the beginning of [`invoke_write::CORE_IN`](attr::invoke_write::CORE_IN) that hold the
/// address of the answer (`ib_user_verbs.h`), which INVOKE_WRITE does not use; with it, ALLOC_PD
/// and CREATE_AH carry the caller's handle.
pub(super) fn address_bytes(method: Method, id: u16, write_command: u64) -> usize {
    match (method, id) {
        (method::INVOKE_WRITE, attr::invoke_write::CORE_IN) => {
            if write_command == u64::from(write_command::CREATE_AH) { 16 } else { 8 }
        }
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mailboxes_outputs_and_files_are_told_apart() {
        let of = |method, attr_id, len| {
            kind(method, &Attribute { attr_id, len, ..Attribute::default() })
        };
        assert_eq!(of(method::DEVX_OTHER, 0x1000, 16), Kind::InputMailbox);
        assert_eq!(of(method::DEVX_OTHER, 0x1000, 8), Kind::Input);
        assert_eq!(of(method::DEVX_OTHER, 0x1001, 8), Kind::OutputMailbox);
        assert_eq!(of(method::DEVX_OBJ_DESTROY, 0x1000, 0), Kind::Handle);
        assert_eq!(of(method::DEVX_OBJ_CREATE, 0x1000, 0), Kind::NewHandle);
        assert_eq!(of(method::DEVX_ASYNC_EVENT_FD_ALLOC, 0x1000, 0), Kind::NewFile);
        assert_eq!(of(Method { object: 99, method: 9 }, 1, 4), Kind::Input);
    }

    #[test]
    fn only_core_in_has_an_address_in_it() {
        let core = attr::invoke_write::CORE_IN;
        assert_eq!(address_bytes(method::INVOKE_WRITE, core, 3), 8);
        assert_eq!(address_bytes(method::INVOKE_WRITE, core, 5), 16);
        assert_eq!(address_bytes(method::DEVX_OTHER, core, 3), 0);
    }
}
