//! Work queues, and the objects that steer frames to them or carry frames from them.

macro_rules! queues {
    (($($lead:tt)*) $then:ident $next:tt { $($before:tt)* }) => {
        $($lead)*! { $then $next {
            $($before)*
            /// Queue pairs.
            qps: Qp(u32) => objects::QpObject {
                numbers: [qp: |profile| profile.first().qp..THREE_BYTES],
                object: {
                    context: true,
                    number: |numbers, _| &mut numbers.qp,
                    owner: |qp| qp.uid,
                    made: [],
                    refers: |qp, to| {
                        to(ObjectKind::Pd, qp.pd);
                        // A QP that only receives from an SRQ uses no doorbell on the page.
                        if qp.sq.is_some() || qp.rq.is_some() {
                            to(ObjectKind::Uar, qp.uar_page);
                        }
                        to(ObjectKind::Cq, qp.context.cqn_snd());
                        to(ObjectKind::Cq, qp.context.cqn_rcv());
                        qp.srq.iter().for_each(|&srq| to(ObjectKind::Srq, srq));
                        to(ObjectKind::Counter, qp.context.counter_set_id().into());
                        qp.umems.iter().for_each(|&umem| to(ObjectKind::Umem, umem));
                    },
                    moving: [],
                    doorbell: [Send: |qp| qp.uar_page],
                    beside: [
                        /// The QPs in each multicast group.
                        groups(objects::multicast::Groups): |groups| groups.bytes()
                    ],
                },
                refusals: {
                    absent: NoSuchQp = 0x80, "No such QP for this uid.",
                    in_use: [],
                    others: {
                        QpState = 0x81, BAD_QP_STATE,
                            "The transition does not start from the state that the QP is in.";
                        QpInlineCqe = 0x83, BAD_PARAM,
                            "cs_req or cs_res asks for 64 bytes in CQEs of 64: the CQ needs CQEs \
                             of 128.";
                        QpSize = 0x84, LIM, "A work queue is larger than log_max_qp_sz.";
                        QpStride = 0x85, BAD_PARAM,
                            "The receive stride is larger than max_wqe_sz_rq, or too short for a \
                             WQE.";
                        QpOptional = 0x87, BAD_PARAM,
                            "opt_param_mask selects a field that the transition does not accept.";
                        QpMigration = 0x88, BAD_PARAM,
                            "pm_state is not MIGRATED, and path migration is not supported.";
                        QpMtu = 0x89, BAD_PARAM,
                            "The MTU is invalid, or above the port's active MTU.";
                        QpMessage = 0x8a, BAD_PARAM, "log_msg_max is above the capability.";
                        QpReads = 0x8b, BAD_PARAM,
                            "More outstanding READs and atomics than the capability allows.";
                        QpAtomicMode = 0x8c, BAD_PARAM, "The atomic mode is not supported.";
                        QpNumber = 0x8d, BAD_PARAM, "A QP's number cannot be chosen.";
                        PathPort = 0x8e, IX, "The path names a port that the device does not have.";
                        PathPkey = 0x8f, IX,
                            "pkey_index is outside the P_Key table, or its entry is empty.";
                        PathGid = 0x90, IX,
                            "src_addr_index is outside the GID table, or its entry is empty.";
                        PathLid = 0x91, BAD_PARAM, "The path needs a unicast destination LID.";
                        PathMac = 0x92, BAD_PARAM, "The path needs a unicast destination MAC.";
                        PathUdpPort = 0x93, BAD_PARAM,
                            "The UDP source port is outside the RoCE range.";
                        PathLoopback = 0x9d, BAD_PARAM,
                            "The path forces loopback (fl), which the device does for no QP of \
                             this type now.";
                        QpLagPort = 0x97, BAD_PARAM,
                            "lag_tx_port_affinity names a port that is not in a bond.";
                        Group = 0x94, BAD_PARAM,
                            "The GID is not a multicast GID, or the QP is not a UD QP.";
                        NotInGroup = 0x95, BAD_RES, "The QP is not in the multicast group.";
                    },
                },
                removed: [qp::removed],
                commands: {
                    user CreateQpIn => qp::create;
                    user QueryQpIn => qp::query;
                    user DestroyQpIn => |call, input, _| call.destroy(kind::Qp, input.qpn());
                    user Rst2initQpIn => transition::rst2init;
                    user Init2initQpIn from 0x110 => transition::init2init;
                    user Init2rtrQpIn => transition::init2rtr;
                    user Rtr2rtsQpIn => transition::rtr2rts;
                    user Rts2rtsQpIn from 0x110 => transition::rts2rts;
                    user Sqerr2rtsQpIn => transition::sqerr2rts;
                    user SqdRtsQpIn => transition::sqd2rts;
                    user Qp2errIn => transition::to_error;
                    user Qp2rstIn => transition::to_reset;
                    user AttachToMcgIn => multicast::attach;
                    user DetachFromMcgIn => multicast::detach;
                }
            }
            /// Send queues without a QP. Their numbers and those of QPs share one range.
            sqs: Sq(u32) => objects::Sq {
                numbers: [],
                object: {
                    context: true,
                    number: |numbers, _| &mut numbers.qp,
                    owner: |sq| sq.uid,
                    made: [],
                    refers: |sq, to| {
                        to(ObjectKind::Pd, sq.pd);
                        to(ObjectKind::Uar, sq.uar_page);
                        to(ObjectKind::Cq, sq.queue.cqn);
                        if sq.context.tis_lst_sz() != 0 {
                            to(ObjectKind::Tis, sq.context.tis_num_0());
                        }
                        sq.umems.iter().for_each(|&umem| to(ObjectKind::Umem, umem));
                    },
                    moving: [],
                    doorbell: [Send: |sq| sq.uar_page],
                    beside: [],
                },
                refusals: {
                    absent: NoSuchSq = 0xb0, "No such SQ for this uid.",
                    in_use: [],
                    others: {
                        SqState = 0xb1, BAD_RES_STATE,
                            "The SQ is not in sq_state, or cannot change from there to the new \
                             state.";
                        SqBegin = 0xb2, BAD_PARAM, "An SQ must be created in state RST.";
                        SqField = 0xb3, BAD_PARAM, "A selected field cannot be modified.";
                        RawTransmit = 0xef, BAD_PARAM,
                            "The user context may not send raw frames (RAW_TX of uctx_cap): \
                             CAP_NET_RAW is needed.";
                    },
                },
                removed: [sq::removed],
                commands: {
                    user CreateSqIn => sq::create;
                    user QuerySqIn => sq::query;
                    user ModifySqIn => sq::modify;
                    user DestroySqIn => |call, input, _| call.destroy(kind::Sq, input.sqn());
                }
            }
            /// Flow tables, with their groups and entries.
            flow_tables: FlowTable(u32) => objects::flow::FlowTable {
                numbers: [flow_table: |_| 0x10..THREE_BYTES],
                object: {
                    context: true,
                    number: |numbers, _| &mut numbers.flow_table,
                    owner: |table| table.uid,
                    made: [],
                    refers: |table, to| {
                        table.miss().iter().for_each(|&table| to(ObjectKind::FlowTable, table));
                        for at in table.entries.values().flat_map(|entry| &entry.to) {
                            match *at {
                                objects::flow::Destination::Tir(tir) => to(ObjectKind::Tir, tir),
                                objects::flow::Destination::Table(table) => {
                                    to(ObjectKind::FlowTable, table);
                                }
                            }
                        }
                    },
                    moving: [],
                    doorbell: [],
                    beside: [
                        /// The first flow table for frames.
                        flow_root(Option<u32>): |_| 0
                    ],
                },
                refusals: {
                    absent: NoSuchFlowTable = 0xe0, "No such flow table for this uid.",
                    in_use: [FlowTableInUse = 0xe1,
                        "The flow table has groups, or another table leads to it."],
                    others: {
                        FlowTableSize = 0xe2, LIM, "The flow table is larger than log_max_ft_size.";
                        FlowTableLevel = 0xe3, BAD_PARAM,
                            "The level is above max_ft_level, or a table leads to one that is not \
                             of a higher level.";
                        NoSuchFlowGroup = 0xe4, BAD_RES, "The flow table has no such group.";
                        FlowGroupInUse = 0xe5, BAD_RES_STATE,
                            "Entries are still in the flow group: delete them first.";
                        FlowGroupRange = 0xe6, BAD_PARAM,
                            "The flow group's range is not in its table, or overlaps that of \
                             another group.";
                        FlowCriteria = 0xe7, BAD_PARAM,
                            "The criteria hold a field that cannot be matched (ft_field_support).";
                        NoSuchFlowEntry = 0xe8, BAD_RES,
                            "The flow table has no entry at the index.";
                        FlowEntryExists = 0xe9, BAD_RES_STATE,
                            "The flow table has an entry at the index.";
                        FlowIndex = 0xea, BAD_PARAM,
                            "The index is not in the flow group of the entry.";
                        FlowAction = 0xeb, BAD_PARAM,
                            "An entry either drops, allows or forwards, and only one that forwards \
                             has destinations.";
                        FlowDestinations = 0xec, LIM,
                            "The entry has more destinations than log_max_destination.";
                    },
                },
                removed: [flow_table::removed],
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
                numbers: [tir: |_| 0x200..THREE_BYTES],
                object: {
                    context: true,
                    number: |numbers, _| &mut numbers.tir,
                    owner: |tir| tir.uid,
                    made: [],
                    refers: |tir, to| {
                        to(ObjectKind::Td, tir.context.transport_domain());
                        to(ObjectKind::Rq, tir.context.inline_rqn());
                    },
                    moving: [],
                    doorbell: [],
                    beside: [],
                },
                refusals: {
                    absent: NoSuchTir = 0xbe, "No such TIR for this uid.",
                    in_use: [TirInUse = 0xbf,
                        "Flow table entries still lead to the TIR: delete them first."],
                    others: {},
                },
                removed: [],
                commands: {
                    user CreateTirIn => transport::create_tir;
                    user ModifyTirIn => transport::modify_tir;
                    user QueryTirIn => transport::query_tir;
                    user DestroyTirIn => |call, input, _| call.destroy(kind::Tir, input.tirn());
                }
            }
            /// Receive queues of Ethernet frames. Their numbers and those of QPs share one range.
            rqs: Rq(u32) => objects::Rq {
                numbers: [],
                object: {
                    context: true,
                    number: |numbers, _| &mut numbers.qp,
                    owner: |rq| rq.uid,
                    made: [],
                    refers: |rq, to| {
                        rq.pd.iter().for_each(|&pd| to(ObjectKind::Pd, pd));
                        to(ObjectKind::Cq, rq.context.cqn());
                        to(ObjectKind::Counter, rq.context.counter_set_id().into());
                        rq.srq.iter().for_each(|&srq| to(ObjectKind::Srq, srq));
                        rq.umems.iter().for_each(|&umem| to(ObjectKind::Umem, umem));
                    },
                    moving: [],
                    doorbell: [],
                    beside: [],
                },
                refusals: {
                    absent: NoSuchRq = 0xb9, "No such RQ for this uid.",
                    in_use: [RqInUse = 0xba, "TIRs still lead to the RQ: destroy them first."],
                    others: {
                        RqState = 0xbb, BAD_RES_STATE,
                            "The RQ is not in rq_state, or cannot change from there to the new \
                             state.";
                        RqBegin = 0xbc, BAD_PARAM, "An RQ must be created in state RST.";
                        RqField = 0xbd, BAD_PARAM, "A selected field cannot be modified.";
                    },
                },
                removed: [rq::removed],
                commands: {
                    user CreateRqIn => rq::create;
                    user QueryRqIn => rq::query;
                    user ModifyRqIn => rq::modify;
                    user DestroyRqIn => |call, input, _| call.destroy(kind::Rq, input.rqn());
                }
            }
            /// Transport interfaces for sending.
            tises: Tis(u32) => objects::Tis {
                numbers: [tis: |_| 0x300..THREE_BYTES],
                object: {
                    context: true,
                    number: |numbers, _| &mut numbers.tis,
                    owner: |tis| tis.uid,
                    made: [],
                    refers: |tis, to| {
                        to(ObjectKind::Td, tis.context.transport_domain());
                        if tis.context.pd() != 0 {
                            to(ObjectKind::Pd, tis.context.pd());
                        }
                    },
                    moving: [],
                    doorbell: [],
                    beside: [],
                },
                refusals: {
                    absent: NoSuchTis = 0xb4, "No such TIS for this uid.",
                    in_use: [TisInUse = 0xb7,
                        "SQs still send through the TIS: destroy them first."],
                    others: {
                        TisLagPort = 0x9e, BAD_PARAM,
                            "lag_tx_port_affinity names a port that is not in a bond, or \
                             strict_lag_tx_port_affinity is set where there are no such ports.";
                    },
                },
                removed: [],
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
                        to(ObjectKind::Pd, srq.pd);
                        srq.cqn.iter().for_each(|&cqn| to(ObjectKind::Cq, cqn));
                        srq.xrcd.iter().for_each(|&xrcd| to(ObjectKind::Xrcd, xrcd));
                        srq.umems.iter().for_each(|&umem| to(ObjectKind::Umem, umem));
                    },
                    moving: [],
                    doorbell: [],
                    beside: [],
                },
                refusals: {
                    absent: NoSuchSrq = 0x86, "No such SRQ, XRC SRQ or RMP for this uid.",
                    in_use: [SrqInUse = 0x9a,
                        "QPs still use the receive queue: destroy them first."],
                    others: {
                        SrqState = 0x9b, BAD_RES_STATE,
                            "The queue is not in the given state, or cannot change to the new one.";
                        SrqLimit = 0x9c, BAD_PARAM, "The limit is above the size of the queue.";
                    },
                },
                removed: [],
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
            xrcds: Xrcd(u32) => objects::Uid {
                numbers: [xrcd: |profile| profile.first().xrcd..THREE_BYTES],
                object: {
                    context: false,
                    number: |numbers, _| &mut numbers.xrcd,
                    owner: |uid| *uid,
                    made: [],
                    refers: |_, _| {},
                    moving: [],
                    doorbell: [],
                    beside: [],
                },
                refusals: {
                    absent: NoSuchXrcd = 0x98, "No such XRC domain for this uid.",
                    in_use: [XrcdInUse = 0x99,
                        "Queues still use the XRC domain: destroy them first."],
                    others: {},
                },
                removed: [],
                commands: {
                    user AllocXrcdIn => srq::alloc_xrcd;
                    user DeallocXrcdIn => |call, input, _| call.destroy(kind::Xrcd, input.xrcd());
                }
            }
        } }
    };
}

pub(in crate::hca) use queues;
