//! The registry of object kinds: a list of them, and an entry each.
//!
//! The list has the map of a kind in [`Objects`], the type of its numbers and of its objects. The
//! end of a user context destroys kinds in the order of the list: users before the objects that
//! they use. An entry, in the file of the kind's family, has two parts: a [`KindEntry`] is what an
//! object is and uses; an [`ObjectCommands`] is the commands on objects of the kind, with their
//! handlers, and the further effects of their removal. Both traits explain their items.
//!
//! Besides its row and its entry, a new kind needs
//! - its structure, in a module of `objects`;
//! - the functions that its entry names, in a module of `commands`;
//! - its refusals, in `refusal/table.rs`;
//! - the range of its numbers, in `allocators.rs`;
//! - an object of it in `one_of_each` of `tests/registry.rs`.
//!
//! [`KindEntry`]: crate::hca::registry::KindEntry
//! [`ObjectCommands`]: crate::hca::commands::command::ObjectCommands
//! [`Objects`]: crate::hca::registry::Objects

mod base;
mod cq;
mod dpa;
mod memory;
mod queues;

/// Passes the list to the macro `$then`.
macro_rules! kinds {
    ($then:ident) => {
        $then! {
            /// Queue pairs.
            qps: Qp(u32) = objects::QpObject,
            /// Send queues without a QP. Their numbers and those of QPs share one range.
            sqs: Sq(u32) = objects::Sq,
            /// Flow tables, with their groups and entries.
            flow_tables: FlowTable(u32) = objects::flow::FlowTable,
            /// Transport interfaces for receiving.
            tirs: Tir(u32) = objects::Tir,
            /// Receive queues of Ethernet frames. Their numbers and those of QPs share one range.
            rqs: Rq(u32) = objects::Rq,
            /// Transport interfaces for sending.
            tises: Tis(u32) = objects::Tis,
            /// Receive queues that QPs share: XRC SRQs and RMPs.
            srqs: Srq(u32) = objects::Srq,
            /// XRC domains.
            xrcds: Xrcd(u32) = objects::Uid,
            /// CQE-generating doorbells of emulated devices.
            emulated_doorbells: EmulatedDoorbell(u32) = objects::EmulatedDoorbell,
            /// Completion queues.
            cqs: Cq(u32) = objects::Cq,
            /// Event queues of the DPA.
            dpa_eqs: DpaEq(u32) = objects::DpaEq,
            /// PCI devices that programs of the DPA emulate.
            emulated_devices: EmulatedDevice(u32) = objects::EmulatedDevice,
            /// Calls of functions on the DPA.
            dpa_calls: DpaCall(u32) = objects::DpaCall,
            /// Threads of the DPA.
            dpa_threads: DpaThread(u32) = objects::DpaThread,
            /// Pages of doorbells for the DPA.
            dpa_outboxes: DpaOutbox(u32) = objects::DpaOutbox,
            /// UAR pages whose queues the DPA of another function may ring for.
            uar_extensions: UarExtension(u32) = objects::UarExtension,
            /// Windows of the DPA to memory.
            dpa_windows: DpaWindow(u32) = objects::DpaWindow,
            /// Core dumps of processes of the DPA.
            dpa_core_dumps: DpaCoreDump(u32) = objects::DpaCoreDump,
            /// Processes of the DPA.
            dpa_processes: DpaProcess(u32) = objects::DpaProcess,
            /// Memory keys, by their index (key >> 8).
            mkeys: Mkey(u32) = objects::Mkey,
            /// Aliases of memory keys of other functions. Aliases and keys share one range of
            /// indexes.
            aliases: Alias(u32) = objects::Alias,
            /// Registered user memory.
            umems: Umem(u32) = objects::Umem,
            /// Event queues, which CQs of every user context may use.
            eqs: Eq(u32) = objects::Eq,
            /// UAR pages of the kernel and of user contexts; a front end may treat the two
            /// differently.
            uars: Uar(u32) = objects::Uid,
            /// Transport domains.
            tds: Td(u32) = objects::Uid,
            /// Protection domains.
            pds: Pd(u32) = objects::Uid,
            /// Q counters.
            counters: Counter(u8) = objects::QCounter,
            /// User contexts. Each object of a context names it as its owner, and is destroyed with
            /// it.
            uctxs: Uctx(u16) = objects::Uctx,
        }
    };
}

pub(super) use kinds;
