//! User contexts, and the objects that queues depend on.

macro_rules! base {
    (($($lead:tt)*) $then:ident $next:tt { $($before:tt)* }) => {
        $($lead)*! { $then $next {
            $($before)*
            /// Event queues, which CQs of every user context may use.
            eqs: Eq(u32) => objects::Eq {
                numbers: [eq: |profile| profile.first().eq..BYTE],
                object: {
                    context: true,
                    number: |numbers, _| &mut numbers.eq,
                    owner: |_| objects::SHARED_UID,
                    made: [],
                    refers: |eq, to| to(ObjectKind::Uar, eq.uar_page),
                    moving: [],
                    doorbell: [],
                    beside: [],
                },
                refusals: {
                    absent: NoSuchEq = 0x70, "No such EQ.",
                    in_use: [EqInUse = 0x71, "CQs still use the EQ: destroy them first."],
                    others: {
                        EqSize = 0x72, BAD_PARAM, "log_eq_size is above log_max_eq_sz.";
                        EqEvents = 0x73, BAD_PARAM,
                            "An event type is unknown, or mapped to another EQ already.";
                        NoSuchVector = 0x74, BAD_RES, "No such interrupt vector.";
                    },
                },
                removed: [],
                commands: {
                    kernel CreateEqIn for all => eq::create;
                    kernel QueryEqIn => eq::query;
                    kernel DestroyEqIn =>
                        |call, input, _| call.destroy(kind::Eq, input.eq_number().into());
                }
            }
            /// UAR pages of the kernel and of user contexts; a front end may treat the two
            /// differently.
            uars: Uar(u32) => objects::Uid {
                numbers: [
                    uar: |profile| profile.first().uar..profile.first().user_uar,
                    user_uar: |profile| profile.first().user_uar..profile.device().uar_pages
                ],
                object: {
                    context: false,
                    number: |numbers, uid| match *uid {
                        0 => &mut numbers.uar,
                        _ => &mut numbers.user_uar,
                    },
                    owner: |uid| *uid,
                    made: [],
                    refers: |_, _| {},
                    moving: [],
                    doorbell: [],
                    beside: [],
                },
                refusals: {
                    absent: NoSuchUar = 0x33, "No such UAR page for this uid.",
                    in_use: [UarInUse = 0x34, "Queues still use the UAR page: destroy them first."],
                    others: {},
                },
                removed: [domain::uar_removed],
                commands: {
                    user AllocUarIn => domain::alloc_uar;
                    user DeallocUarIn => |call, input, _| call.destroy(kind::Uar, input.uar());
                }
            }
            /// Transport domains.
            tds: Td(u32) => objects::Uid {
                numbers: [td: |profile| profile.first().transport_domain..THREE_BYTES],
                object: {
                    context: false,
                    number: |numbers, _| &mut numbers.td,
                    owner: |uid| *uid,
                    made: [],
                    refers: |_, _| {},
                    moving: [],
                    doorbell: [],
                    beside: [],
                },
                refusals: {
                    absent: NoSuchTd = 0x32, "No such transport domain for this uid.",
                    in_use: [TdInUse = 0xb8,
                        "TISs or TIRs still belong to the transport domain: destroy them first."],
                    others: {},
                },
                removed: [],
                commands: {
                    user AllocTransportDomainIn => domain::alloc_td;
                    user DeallocTransportDomainIn =>
                        |call, input, _| call.destroy(kind::Td, input.transport_domain());
                }
            }
            /// Protection domains.
            pds: Pd(u32) => objects::Uid {
                numbers: [pd: |profile| profile.first().pd..THREE_BYTES],
                object: {
                    context: true,
                    number: |numbers, _| &mut numbers.pd,
                    owner: |uid| *uid,
                    made: [],
                    refers: |_, _| {},
                    moving: [],
                    doorbell: [],
                    beside: [],
                },
                refusals: {
                    absent: NoSuchPd = 0x30, "No such PD for this uid.",
                    in_use: [PdInUse = 0x31, "Mkeys or QPs still use the PD: destroy them first."],
                    others: {},
                },
                removed: [],
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
                    beside: [],
                },
                refusals: {
                    absent: NoSuchCounter = 0x35, "No such Q counter for this uid.",
                    in_use: [CounterInUse = 0x36,
                        "QPs still use the Q counter: destroy them first."],
                    others: {},
                },
                removed: [],
                commands: {
                    user AllocQCounterIn for all => counter::alloc;
                    user DeallocQCounterIn => counter::dealloc;
                    user QueryQCounterIn => counter::query;
                }
            }
            /// User contexts. Each object of a context names it as its owner, and is destroyed with
            /// it.
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
                    beside: [],
                },
                refusals: {
                    absent: NoSuchUid = 0x21, "No such user context.",
                    in_use: [],
                    others: {
                        UctxCapability = 0x22, BAD_PARAM,
                            "The user context asks for a capability that uctx_cap does not offer.";
                    },
                },
                removed: [],
                commands: {
                    kernel CreateUctxIn => uctx::create;
                    kernel DestroyUctxIn => uctx::destroy;
                }
            }
        } }
    };
}

pub(in crate::hca) use base;
