//! The registry of object kinds: one entry for each, from which come the maps of [`Objects`] and
//! their counts, the ranges of numbers, who uses what, the refusals, the end of a user context, and
//! which command leads where.
//!
//! Entries stand in the order in which the end of a user context destroys them: users before what
//! they use. In an entry
//! - `numbers` are the ranges that its numbers come from, as the profile has them: SQs take theirs
//!   from the range of QPs;
//! - `context` says that an object takes a context, and so a part of a page that the driver gives;
//! - `number` is where an object's number came from, and goes back to;
//! - `owner` is whose it is;
//! - `made` tells an object that a command made from one that comes with the function;
//! - `refers` names all that an object uses: none of it is destroyed before the object is. Who
//!   changes what an object refers to does so by [`Objects::change`];
//! - `moving` names what the data path may make it use instead, without [`Objects::change`];
//! - `doorbell` is the UAR page on which it is rung for, and the list where it is looked up then;
//! - `absent` refuses a number that is no object of the sender's, `in_use` the destruction of one
//!   that another object refers to;
//! - `gone` runs when an object is destroyed, for what the table does not describe;
//! - `commands` lead to their handlers, sent by users or by the kernel alone. Those of a general
//!   object type name it: `user CreateGeneralObjectIn of SAMPLER => sampler::create;`. A type with
//!   such an entry also needs its bit in `hca_cap.general_obj_types` of the profiles, and no other
//!   type has one, but for the types from 0xff00 on: those are aliases of objects that have
//!   commands of their own.
//!
//! Beside its entry, a new kind needs
//! - its structure in `objects.rs`, or in a file of its own as those of flow tables;
//! - the refusals that `absent` and `in_use` name, with syndromes, in `refusal.rs`;
//! - its handlers, in a module that `commands/mod.rs` declares;
//! - if it has a `gone`: that function in `removal.rs`; if it has a `doorbell` in a new list: that
//!   list in `index.rs`.
//!
//! [`Objects`]: crate::hca::registry::Objects
//! [`Objects::change`]: crate::hca::registry::Objects::change

/// The fields that carry numbers in commands are so wide.
pub(super) const BYTE: u32 = 1 << 8;
pub(super) const HALF: u32 = 1 << 16;
pub(super) const THREE_BYTES: u32 = 1 << 24;

/// The first numbers of objects whose profile says nothing of them, all unlike each other.
pub(super) const FIRST_FLOW_TABLE: u32 = 0x10;
pub(super) const FIRST_TIR: u32 = 0x200;
pub(super) const FIRST_TIS: u32 = 0x300;

macro_rules! kinds {
    ($then:ident) => {
        $then! {
            /// Queue pairs.
            qps: Qp(u32) => objects::QpObject {
                numbers: [qp: |profile| profile.first().qp..THREE_BYTES],
                object: {
                    context: true,
                    number: |numbers, _| &mut numbers.qp,
                    owner: |qp| qp.uid,
                    made: [],
                    refers: |qp, to| {
                        to(Kind::Pd, qp.pd);
                        // Of a QP that only receives from an SRQ, nobody looks at the page.
                        if qp.sq.is_some() || qp.rq.is_some() {
                            to(Kind::Uar, qp.uar_page);
                        }
                        to(Kind::Cq, qp.context.cqn_snd());
                        to(Kind::Cq, qp.context.cqn_rcv());
                        qp.srq.iter().for_each(|&srq| to(Kind::Srq, srq));
                        to(Kind::Counter, qp.context.counter_set_id().into());
                        qp.umems.iter().for_each(|&umem| to(Kind::Umem, umem));
                    },
                    moving: [],
                    doorbell: [senders: |qp| qp.uar_page],
                    absent: NoSuchQp,
                    in_use: [],
                    gone: [qp_gone],
                },
                commands: {
                    user CreateQpIn => qp::create;
                    user QueryQpIn => qp::query;
                    user DestroyQpIn => |call, input, _| call.destroy(kind::Qp, input.qpn());
                    user Rst2initQpIn => transition::rst2init;
                    user Init2initQpIn => transition::init2init;
                    user Init2rtrQpIn => transition::init2rtr;
                    user Rtr2rtsQpIn => transition::rtr2rts;
                    user Rts2rtsQpIn => transition::rts2rts;
                    user Sqerr2rtsQpIn => transition::sqerr2rts;
                    user SqdRtsQpIn => transition::sqd2rts;
                    user Qp2errIn => transition::to_error;
                    user Qp2rstIn => transition::to_reset;
                    user AttachToMcgIn => multicast::attach;
                    user DetachFromMcgIn => multicast::detach;
                }
            }
            /// Send queues of no QP. Their numbers are of one range with those of QPs.
            sqs: Sq(u32) => objects::Sq {
                numbers: [],
                object: {
                    context: true,
                    number: |numbers, _| &mut numbers.qp,
                    owner: |sq| sq.uid,
                    made: [],
                    refers: |sq, to| {
                        to(Kind::Pd, sq.pd);
                        to(Kind::Uar, sq.uar_page);
                        to(Kind::Cq, sq.queue.cqn);
                        if sq.context.tis_lst_sz() != 0 {
                            to(Kind::Tis, sq.context.tis_num_0());
                        }
                        sq.umems.iter().for_each(|&umem| to(Kind::Umem, umem));
                    },
                    moving: [],
                    doorbell: [senders: |sq| sq.uar_page],
                    absent: NoSuchSq,
                    in_use: [],
                    gone: [sq_gone],
                },
                commands: {
                    user CreateSqIn => sq::create;
                    user QuerySqIn => sq::query;
                    user ModifySqIn => sq::modify;
                    user DestroySqIn => |call, input, _| call.destroy(kind::Sq, input.sqn());
                }
            }
            /// Flow tables, with their groups and entries.
            flow_tables: FlowTable(u32) => flow::FlowTable {
                numbers: [flow_table: |_| FIRST_FLOW_TABLE..THREE_BYTES],
                object: {
                    context: true,
                    number: |numbers, _| &mut numbers.flow_table,
                    owner: |table| table.uid,
                    made: [],
                    refers: |table, to| {
                        table.miss().iter().for_each(|&table| to(Kind::FlowTable, table));
                        for at in table.entries.values().flat_map(|entry| &entry.to) {
                            match *at {
                                flow::Destination::Tir(tir) => to(Kind::Tir, tir),
                                flow::Destination::Table(table) => to(Kind::FlowTable, table),
                            }
                        }
                    },
                    moving: [],
                    doorbell: [],
                    absent: NoSuchFlowTable,
                    in_use: [FlowTableInUse],
                    gone: [flow_table_gone],
                },
                commands: {
                    user CreateFlowTableIn => flow_table::create_table;
                    user ModifyFlowTableIn => flow_table::modify_table;
                    user QueryFlowTableIn => flow_table::query_table;
                    user DestroyFlowTableIn => flow_table::destroy_table;
                    kernel SetFlowTableRootIn => flow_table::set_root;
                    user CreateFlowGroupIn => flow_table::create_group;
                    user QueryFlowGroupIn => flow_table::query_group;
                    user DestroyFlowGroupIn => flow_table::destroy_group;
                    user SetFlowTableEntryIn => flow_table::set_entry;
                    user QueryFlowTableEntryIn => flow_table::query_entry;
                    user DeleteFlowTableEntryIn => flow_table::delete_entry;
                }
            }
            /// Transport interfaces for receiving.
            tirs: Tir(u32) => objects::Tir {
                numbers: [tir: |_| FIRST_TIR..THREE_BYTES],
                object: {
                    context: true,
                    number: |numbers, _| &mut numbers.tir,
                    owner: |tir| tir.uid,
                    made: [],
                    refers: |tir, to| {
                        to(Kind::Td, tir.context.transport_domain());
                        to(Kind::Rq, tir.context.inline_rqn());
                    },
                    moving: [],
                    doorbell: [],
                    absent: NoSuchTir,
                    in_use: [TirInUse],
                    gone: [],
                },
                commands: {
                    user CreateTirIn => transport::create_tir;
                    user ModifyTirIn => transport::modify_tir;
                    user QueryTirIn => transport::query_tir;
                    user DestroyTirIn => |call, input, _| call.destroy(kind::Tir, input.tirn());
                }
            }
            /// Receive queues of Ethernet frames. Their numbers are of one range with those of QPs.
            rqs: Rq(u32) => objects::Rq {
                numbers: [],
                object: {
                    context: true,
                    number: |numbers, _| &mut numbers.qp,
                    owner: |rq| rq.uid,
                    made: [],
                    refers: |rq, to| {
                        rq.pd.iter().for_each(|&pd| to(Kind::Pd, pd));
                        to(Kind::Cq, rq.context.cqn());
                        to(Kind::Counter, rq.context.counter_set_id().into());
                        rq.srq.iter().for_each(|&srq| to(Kind::Srq, srq));
                        rq.umems.iter().for_each(|&umem| to(Kind::Umem, umem));
                    },
                    moving: [],
                    doorbell: [],
                    absent: NoSuchRq,
                    in_use: [RqInUse],
                    gone: [rq_gone],
                },
                commands: {
                    user CreateRqIn => rq::create;
                    user QueryRqIn => rq::query;
                    user ModifyRqIn => rq::modify;
                    user DestroyRqIn => |call, input, _| call.destroy(kind::Rq, input.rqn());
                }
            }
            /// Transport interfaces for sending.
            tises: Tis(u32) => objects::Tis {
                numbers: [tis: |_| FIRST_TIS..THREE_BYTES],
                object: {
                    context: true,
                    number: |numbers, _| &mut numbers.tis,
                    owner: |tis| tis.uid,
                    made: [],
                    refers: |tis, to| {
                        to(Kind::Td, tis.context.transport_domain());
                        if tis.context.pd() != 0 {
                            to(Kind::Pd, tis.context.pd());
                        }
                    },
                    moving: [],
                    doorbell: [],
                    absent: NoSuchTis,
                    in_use: [TisInUse],
                    gone: [],
                },
                commands: {
                    user CreateTisIn => transport::create_tis;
                    user ModifyTisIn => transport::modify_tis;
                    user QueryTisIn => transport::query_tis;
                    user DestroyTisIn => |call, input, _| call.destroy(kind::Tis, input.tisn());
                }
            }
            /// Receive queues that QPs share: XRC SRQs and RMPs.
            srqs: Srq(u32) => objects::Srq {
                numbers: [srq: |profile| profile.first().shared_queue..THREE_BYTES],
                object: {
                    context: true,
                    number: |numbers, _| &mut numbers.srq,
                    owner: |srq| srq.uid,
                    made: [],
                    refers: |srq, to| {
                        to(Kind::Pd, srq.pd);
                        srq.cqn.iter().for_each(|&cqn| to(Kind::Cq, cqn));
                        srq.xrcd.iter().for_each(|&xrcd| to(Kind::Xrcd, xrcd));
                        srq.umems.iter().for_each(|&umem| to(Kind::Umem, umem));
                    },
                    moving: [],
                    doorbell: [],
                    absent: NoSuchSrq,
                    in_use: [SrqInUse],
                    gone: [],
                },
                commands: {
                    user CreateXrcSrqIn => srq::create_xrc_srq;
                    user QueryXrcSrqIn => srq::query_xrc_srq;
                    user ArmXrcSrqIn => srq::arm_xrc_srq;
                    user DestroyXrcSrqIn => srq::destroy_xrc_srq;
                    user CreateRmpIn => srq::create_rmp;
                    user QueryRmpIn => srq::query_rmp;
                    user ModifyRmpIn => srq::modify_rmp;
                    user DestroyRmpIn => srq::destroy_rmp;
                }
            }
            /// XRC domains.
            xrcds: Xrcd(u32) => Uid {
                numbers: [xrcd: |profile| profile.first().xrcd..THREE_BYTES],
                object: {
                    context: false,
                    number: |numbers, _| &mut numbers.xrcd,
                    owner: |uid| *uid,
                    made: [],
                    refers: |_, _| {},
                    moving: [],
                    doorbell: [],
                    absent: NoSuchXrcd,
                    in_use: [XrcdInUse],
                    gone: [],
                },
                commands: {
                    user AllocXrcdIn => srq::alloc_xrcd;
                    user DeallocXrcdIn => |call, input, _| call.destroy(kind::Xrcd, input.xrcd());
                }
            }
            /// Memory keys, by their index (key >> 8).
            mkeys: Mkey(u32) => objects::Mkey {
                numbers: [mkey: |profile| profile.first().mkey..THREE_BYTES],
                object: {
                    context: true,
                    number: |numbers, _| &mut numbers.mkey,
                    owner: |mkey| mkey.uid,
                    made: [|mkey| !mkey.is_null()],
                    refers: |mkey, to| mkey.umem.iter().for_each(|&umem| to(Kind::Umem, umem)),
                    // A UMR of the kernel's gives a key another PD.
                    moving: [Pd: |mkey| mkey.pd],
                    doorbell: [],
                    absent: NoSuchMkey,
                    in_use: [],
                    gone: [mkey_gone],
                },
                commands: {
                    user CreateMkeyIn => mkey::create;
                    user QueryMkeyIn => mkey::query;
                    user DestroyMkeyIn =>
                        |call, input, _| call.destroy(kind::Mkey, input.mkey_index());
                }
            }
            /// Aliases of memory keys of other functions. Their indexes are of one range with those
            /// of keys.
            aliases: Alias(u32) => objects::Alias {
                numbers: [],
                object: {
                    context: true,
                    number: |numbers, _| &mut numbers.mkey,
                    owner: |alias| alias.uid,
                    made: [],
                    refers: |alias, to| to(Kind::Pd, alias.pd),
                    moving: [],
                    doorbell: [],
                    absent: NoSuchAlias,
                    in_use: [],
                    gone: [alias_gone],
                },
                commands: {
                    user CreateGeneralObjectIn of MKEY => alias::create;
                    user DestroyGeneralObjectIn of MKEY =>
                        |call, input, _| call.destroy(kind::Alias, input.obj_id());
                }
            }
            /// Doorbells of emulated devices that make CQEs.
            emulated_doorbells: EmulatedDoorbell(u32) => objects::EmulatedDoorbell {
                numbers: [emulated_doorbell: |profile| profile.first_dpa_object()..HALF],
                object: {
                    context: true,
                    number: |numbers, _| &mut numbers.emulated_doorbell,
                    owner: |it| it.uid,
                    made: [],
                    refers: |it, to| {
                        to(Kind::EmulatedDevice, it.context.device_id());
                        to(Kind::Cq, it.context.cqn());
                    },
                    moving: [],
                    doorbell: [],
                    absent: NoSuchEmulatedDoorbell,
                    in_use: [],
                    gone: [],
                },
                commands: {
                    user CreateGeneralObjectIn of DPA_EMULATED_DOORBELL =>
                        emulated::create_doorbell;
                    user QueryGeneralObjectIn of DPA_EMULATED_DOORBELL => emulated::query_doorbell;
                    user DestroyGeneralObjectIn of DPA_EMULATED_DOORBELL =>
                        |call, input, _| call.destroy(kind::EmulatedDoorbell, input.obj_id());
                }
            }
            /// Completion queues.
            cqs: Cq(u32) => objects::Cq {
                numbers: [cq: |profile| profile.first().cq..THREE_BYTES],
                object: {
                    context: true,
                    number: |numbers, _| &mut numbers.cq,
                    owner: |cq| cq.uid,
                    made: [],
                    refers: |cq, to| {
                        match cq.element {
                            objects::Element::Eq(eqn) => to(Kind::Eq, eqn),
                            objects::Element::Thread(thread) => to(Kind::DpaThread, thread),
                            objects::Element::DpaEq(eqn) => to(Kind::DpaEq, eqn),
                        }
                        to(Kind::Uar, cq.uar_page);
                        cq.umems.iter().for_each(|&umem| to(Kind::Umem, umem));
                    },
                    moving: [],
                    doorbell: [cqs: |cq| cq.uar_page],
                    absent: NoSuchCq,
                    in_use: [CqInUse],
                    gone: [cq_gone],
                },
                commands: {
                    user CreateCqIn => cq::create;
                    user QueryCqIn => cq::query;
                    user ModifyCqIn => cq::modify;
                    user DestroyCqIn => |call, input, _| call.destroy(kind::Cq, input.cqn());
                }
            }
            /// Event queues of the DPA.
            dpa_eqs: DpaEq(u32) => objects::DpaEq {
                numbers: [dpa_eq: |profile| profile.first_dpa_object()..HALF],
                object: {
                    context: true,
                    number: |numbers, _| &mut numbers.dpa_eq,
                    owner: |it| it.uid,
                    made: [],
                    refers: |it, to| {
                        to(Kind::Umem, it.context.umem_id());
                        to(Kind::Uar, it.context.uar_page());
                        if let Some((device, _)) = it.raises() {
                            to(Kind::EmulatedDevice, device);
                        }
                    },
                    moving: [],
                    doorbell: [],
                    absent: NoSuchDpaEq,
                    in_use: [DpaEqInUse],
                    gone: [],
                },
                commands: {
                    user CreateGeneralObjectIn of DPA_EQ => emulated::create_eq;
                    user QueryGeneralObjectIn of DPA_EQ => emulated::query_eq;
                    user DestroyGeneralObjectIn of DPA_EQ =>
                        |call, input, _| call.destroy(kind::DpaEq, input.obj_id());
                }
            }
            /// PCI devices that programs of the DPA emulate.
            emulated_devices: EmulatedDevice(u32) => objects::EmulatedDevice {
                numbers: [emulated_device: |profile| profile.first_dpa_object()..HALF],
                object: {
                    context: true,
                    number: |numbers, _| &mut numbers.emulated_device,
                    owner: |it| it.uid,
                    made: [],
                    refers: |_, _| {},
                    moving: [],
                    doorbell: [],
                    absent: NoSuchEmulatedDevice,
                    in_use: [EmulatedDeviceInUse],
                    gone: [],
                },
                commands: {
                    user CreateGeneralObjectIn of DPA_EMULATED_DEVICE => emulated::create_device;
                    user QueryGeneralObjectIn of DPA_EMULATED_DEVICE => emulated::query_device;
                    user ModifyGeneralObjectIn of DPA_EMULATED_DEVICE => emulated::ring_device;
                    user DestroyGeneralObjectIn of DPA_EMULATED_DEVICE =>
                        |call, input, _| call.destroy(kind::EmulatedDevice, input.obj_id());
                }
            }
            /// Calls of functions on the DPA.
            dpa_calls: DpaCall(u32) => objects::DpaCall {
                numbers: [dpa_call: |profile| profile.first_dpa_object()..HALF],
                object: {
                    context: true,
                    number: |numbers, _| &mut numbers.dpa_call,
                    owner: |it| it.uid,
                    made: [],
                    refers: |it, to| { to(Kind::DpaProcess, it.context.process_id()) },
                    moving: [],
                    doorbell: [],
                    absent: NoSuchDpaCall,
                    in_use: [],
                    gone: [dpa_call_gone],
                },
                commands: {
                    user CreateGeneralObjectIn of DPA_CALL => dpa::create_call;
                    user QueryGeneralObjectIn of DPA_CALL => dpa::query_call;
                    user DestroyGeneralObjectIn of DPA_CALL =>
                        |call, input, _| call.destroy(kind::DpaCall, input.obj_id());
                }
            }
            /// Threads of the DPA.
            dpa_threads: DpaThread(u32) => objects::DpaThread {
                numbers: [dpa_thread: |profile| profile.first_dpa_object()..HALF],
                object: {
                    context: true,
                    number: |numbers, _| &mut numbers.dpa_thread,
                    owner: |it| it.uid,
                    made: [],
                    refers: |it, to| { to(Kind::DpaProcess, it.context.process_id()) },
                    moving: [],
                    doorbell: [],
                    absent: NoSuchDpaThread,
                    in_use: [DpaThreadInUse],
                    gone: [dpa_thread_gone],
                },
                commands: {
                    user CreateGeneralObjectIn of DPA_THREAD => dpa::create_thread;
                    user QueryGeneralObjectIn of DPA_THREAD => dpa::query_thread;
                    user ModifyGeneralObjectIn of DPA_THREAD => dpa::modify_thread;
                    user DestroyGeneralObjectIn of DPA_THREAD =>
                        |call, input, _| call.destroy(kind::DpaThread, input.obj_id());
                }
            }
            /// Pages of doorbells for the DPA.
            dpa_outboxes: DpaOutbox(u32) => objects::DpaOutbox {
                numbers: [dpa_outbox: |profile| profile.first_dpa_object()..HALF],
                object: {
                    context: true,
                    number: |numbers, _| &mut numbers.dpa_outbox,
                    owner: |it| it.uid,
                    made: [],
                    refers: |it, to| {
                        to(Kind::DpaProcess, it.context.process_id());
                        to(Kind::Uar, it.context.uar_page());
                     },
                    moving: [],
                    doorbell: [],
                    absent: NoSuchDpaOutbox,
                    in_use: [],
                    gone: [dpa_outbox_gone],
                },
                commands: {
                    user CreateGeneralObjectIn of DPA_OUTBOX => dpa::create_outbox;
                    user QueryGeneralObjectIn of DPA_OUTBOX => dpa::query_outbox;
                    user DestroyGeneralObjectIn of DPA_OUTBOX => dpa::destroy_outbox;
                }
            }
            /// UAR pages whose queues the DPA of another function rings for.
            uar_extensions: UarExtension(u32) => objects::UarExtension {
                numbers: [uar_extension: |profile| profile.first_dpa_object()..HALF],
                object: {
                    context: true,
                    number: |numbers, _| &mut numbers.uar_extension,
                    owner: |it| it.uid,
                    made: [],
                    refers: |it, to| to(Kind::Uar, it.context.uar_page()),
                    moving: [],
                    doorbell: [],
                    absent: NoSuchUarExtension,
                    in_use: [],
                    gone: [],
                },
                commands: {
                    user CreateGeneralObjectIn of DPA_UAR_EXTENSION => extension::create;
                    user QueryGeneralObjectIn of DPA_UAR_EXTENSION => extension::query;
                    user DestroyGeneralObjectIn of DPA_UAR_EXTENSION =>
                        |call, input, _| call.destroy(kind::UarExtension, input.obj_id());
                }
            }
            /// Windows of the DPA to memory.
            dpa_windows: DpaWindow(u32) => objects::DpaWindow {
                numbers: [dpa_window: |profile| profile.first_dpa_object()..HALF],
                object: {
                    context: true,
                    number: |numbers, _| &mut numbers.dpa_window,
                    owner: |it| it.uid,
                    made: [],
                    refers: |it, to| {
                        to(Kind::DpaProcess, it.context.process_id());
                        to(Kind::Pd, it.context.pd());
                     },
                    moving: [],
                    doorbell: [],
                    absent: NoSuchDpaWindow,
                    in_use: [],
                    gone: [dpa_window_gone],
                },
                commands: {
                    user CreateGeneralObjectIn of DPA_WINDOW => dpa::create_window;
                    user QueryGeneralObjectIn of DPA_WINDOW => dpa::query_window;
                    user DestroyGeneralObjectIn of DPA_WINDOW => dpa::destroy_window;
                }
            }
            /// Core dumps of processes of the DPA.
            dpa_core_dumps: DpaCoreDump(u32) => objects::DpaCoreDump {
                numbers: [dpa_core_dump: |profile| profile.first_dpa_object()..HALF],
                object: {
                    context: true,
                    number: |numbers, _| &mut numbers.dpa_core_dump,
                    owner: |it| it.uid,
                    made: [],
                    refers: |it, to| {
                        to(Kind::DpaProcess, it.context.process_id());
                        // It is written while others have the function.
                        to(Kind::Umem, it.context.umem_id());
                    },
                    moving: [],
                    doorbell: [],
                    absent: NoSuchDpaCoreDump,
                    in_use: [],
                    gone: [],
                },
                commands: {
                    user CreateGeneralObjectIn of DPA_CORE_DUMP => dpa::create_core_dump;
                    user QueryGeneralObjectIn of DPA_CORE_DUMP => dpa::query_core_dump;
                    user DestroyGeneralObjectIn of DPA_CORE_DUMP =>
                        |call, input, _| call.destroy(kind::DpaCoreDump, input.obj_id());
                }
            }
            /// Processes of the DPA.
            dpa_processes: DpaProcess(u32) => objects::DpaProcess {
                numbers: [dpa_process: |profile| profile.first_dpa_object()..HALF],
                object: {
                    context: true,
                    number: |numbers, _| &mut numbers.dpa_process,
                    owner: |it| it.uid,
                    made: [],
                    refers: |it, to| { let _ = (it, to); },
                    moving: [],
                    doorbell: [],
                    absent: NoSuchDpaProcess,
                    in_use: [DpaProcessInUse],
                    gone: [dpa_process_gone],
                },
                commands: {
                    user CreateGeneralObjectIn of DPA_PROCESS => dpa::create_process;
                    user QueryGeneralObjectIn of DPA_PROCESS => dpa::query_process;
                    user ModifyGeneralObjectIn of DPA_PROCESS => dpa::modify_process;
                    user DestroyGeneralObjectIn of DPA_PROCESS => dpa::destroy_process;
                }
            }
            /// Registered user memory.
            umems: Umem(u32) => objects::Umem {
                numbers: [umem: |profile| profile.first().umem..THREE_BYTES],
                object: {
                    context: true,
                    number: |numbers, _| &mut numbers.umem,
                    owner: |umem| umem.uid,
                    made: [],
                    refers: |_, _| {},
                    moving: [],
                    doorbell: [],
                    absent: NoSuchUmem,
                    in_use: [UmemInUse],
                    gone: [],
                },
                commands: {
                    user CreateUmemIn => umem::create;
                    user DestroyUmemIn => umem::destroy;
                }
            }
            /// UAR pages: those of the kernel, and those of user contexts, which a front end can
            /// treat otherwise.
            uars: Uar(u32) => Uid {
                numbers: [
                    uar: |profile| profile.first().uar..profile.first().user_uar,
                    user_uar: |profile| profile.first().user_uar..profile.device().uar_pages
                ],
                object: {
                    context: false,
                    number: |numbers, uid| numbers.uars_of(*uid),
                    owner: |uid| *uid,
                    made: [],
                    refers: |_, _| {},
                    moving: [],
                    doorbell: [],
                    absent: NoSuchUar,
                    in_use: [UarInUse],
                    gone: [uar_gone],
                },
                commands: {
                    user AllocUarIn => domain::alloc_uar;
                    user DeallocUarIn => |call, input, _| call.destroy(kind::Uar, input.uar());
                }
            }
            /// Transport domains.
            tds: Td(u32) => Uid {
                numbers: [td: |profile| profile.first().transport_domain..THREE_BYTES],
                object: {
                    context: false,
                    number: |numbers, _| &mut numbers.td,
                    owner: |uid| *uid,
                    made: [],
                    refers: |_, _| {},
                    moving: [],
                    doorbell: [],
                    absent: NoSuchTd,
                    in_use: [TdInUse],
                    gone: [],
                },
                commands: {
                    user AllocTransportDomainIn => domain::alloc_td;
                    user DeallocTransportDomainIn =>
                        |call, input, _| call.destroy(kind::Td, input.transport_domain());
                }
            }
            /// Protection domains.
            pds: Pd(u32) => Uid {
                numbers: [pd: |profile| profile.first().pd..THREE_BYTES],
                object: {
                    context: true,
                    number: |numbers, _| &mut numbers.pd,
                    owner: |uid| *uid,
                    made: [],
                    refers: |_, _| {},
                    moving: [],
                    doorbell: [],
                    absent: NoSuchPd,
                    in_use: [PdInUse],
                    gone: [],
                },
                commands: {
                    user AllocPdIn => domain::alloc_pd;
                    user DeallocPdIn => |call, input, _| call.destroy(kind::Pd, input.pd());
                }
            }
            /// Q counters.
            counters: Counter(u8) => objects::QCounter {
                numbers: [counter: |profile| profile.first().q_counter..BYTE],
                object: {
                    context: false,
                    number: |numbers, _| &mut numbers.counter,
                    owner: |counter| counter.uid,
                    made: [],
                    refers: |_, _| {},
                    moving: [],
                    doorbell: [],
                    absent: NoSuchCounter,
                    in_use: [CounterInUse],
                    gone: [],
                },
                commands: {
                    user AllocQCounterIn => counter::alloc;
                    user DeallocQCounterIn => counter::dealloc;
                    user QueryQCounterIn => counter::query;
                }
            }
            /// Event queues: every user context may name them in its CQs.
            eqs: Eq(u32) => objects::Eq {
                numbers: [eq: |profile| profile.first().eq..BYTE],
                object: {
                    context: true,
                    number: |numbers, _| &mut numbers.eq,
                    owner: |_| SHARED_UID,
                    made: [],
                    refers: |eq, to| to(Kind::Uar, eq.uar_page),
                    moving: [],
                    doorbell: [],
                    absent: NoSuchEq,
                    in_use: [EqInUse],
                    gone: [],
                },
                commands: {
                    kernel CreateEqIn => eq::create;
                    kernel QueryEqIn => eq::query;
                    kernel DestroyEqIn =>
                        |call, input, _| call.destroy(kind::Eq, input.eq_number().into());
                }
            }
            /// User contexts. What one holds names it as its owner, and ends with it.
            uctxs: Uctx(u16) => objects::Uctx {
                numbers: [uid: |profile| profile.first().uid..HALF],
                object: {
                    context: true,
                    number: |numbers, _| &mut numbers.uid,
                    owner: |_| 0,
                    made: [],
                    refers: |_, _| {},
                    moving: [],
                    doorbell: [],
                    absent: NoSuchUid,
                    in_use: [],
                    gone: [],
                },
                commands: {
                    kernel CreateUctxIn => uctx::create;
                    kernel DestroyUctxIn => uctx::destroy;
                }
            }
        }
    };
}

pub(super) use kinds;
