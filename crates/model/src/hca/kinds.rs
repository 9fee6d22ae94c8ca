//! The registry of object kinds: one entry for each, from which come the maps of [`Objects`] and
//! their counts, the ranges of numbers, the end of a user context, and which command leads where.
//!
//! Entries stand in the order in which the end of a user context destroys them: users before what
//! they use. In an entry
//! - `context` says that an object takes a context, and so a part of a page that the driver gives;
//! - `numbers` are the ranges that its numbers come from, as the profile has them: SQs take theirs
//!   from the range of QPs;
//! - `remove` takes one object away and gives back its number and what it holds;
//! - `commands` lead to their handlers, sent by users or by the kernel alone. Those of a general
//!   object type name it: `user CreateGeneralObjectIn of SAMPLER => sampler::create;`. A type with
//!   such an entry also needs its bit in `hca_cap.general_obj_types` of the profiles, and no other
//!   type has one.
//!
//! [`Objects`]: crate::hca::objects::Objects

/// The fields that carry numbers in commands are so wide.
pub(super) const BYTE: u32 = 1 << 8;
pub(super) const HALF: u32 = 1 << 16;
pub(super) const THREE_BYTES: u32 = 1 << 24;

macro_rules! kinds {
    ($then:ident) => {
        $then! {
            /// Queue pairs.
            qps: u32 => Qp {
                context: true,
                numbers: [qp: |profile| profile.first().qp..THREE_BYTES],
                remove: qp::remove,
                commands: {
                    user CreateQpIn => qp::create;
                    user QueryQpIn => qp::query;
                    user DestroyQpIn => qp::destroy;
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
            sqs: u32 => Sq {
                context: true,
                numbers: [],
                remove: sq::remove,
                commands: {
                    user CreateSqIn => sq::create;
                    user QuerySqIn => sq::query;
                    user ModifySqIn => sq::modify;
                    user DestroySqIn => sq::destroy;
                }
            }
            /// Receive queues that QPs share: XRC SRQs and RMPs.
            srqs: u32 => Srq {
                context: true,
                numbers: [srq: |profile| profile.first().shared_queue..THREE_BYTES],
                remove: srq::remove,
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
            xrcds: u32 => Uid {
                context: false,
                numbers: [xrcd: |profile| profile.first().xrcd..THREE_BYTES],
                remove: srq::remove_xrcd,
                commands: {
                    user AllocXrcdIn => srq::alloc_xrcd;
                    user DeallocXrcdIn => srq::dealloc_xrcd;
                }
            }
            /// Memory keys, by their index (key >> 8).
            mkeys: u32 => Mkey {
                context: true,
                numbers: [mkey: |profile| profile.first().mkey..THREE_BYTES],
                remove: mkey::remove,
                commands: {
                    user CreateMkeyIn => mkey::create;
                    user QueryMkeyIn => mkey::query;
                    user DestroyMkeyIn => mkey::destroy;
                }
            }
            /// Completion queues.
            cqs: u32 => Cq {
                context: true,
                numbers: [cq: |profile| profile.first().cq..THREE_BYTES],
                remove: cq::remove,
                commands: {
                    user CreateCqIn => cq::create;
                    user QueryCqIn => cq::query;
                    user ModifyCqIn => cq::modify;
                    user DestroyCqIn => cq::destroy;
                }
            }
            /// Registered user memory.
            umems: u32 => Umem {
                context: true,
                numbers: [umem: |profile| profile.first().umem..THREE_BYTES],
                remove: umem::remove,
                commands: {
                    user CreateUmemIn => umem::create;
                    user DestroyUmemIn => umem::destroy;
                }
            }
            /// UAR pages: those of the kernel, and those of user contexts, which a front end can
            /// treat otherwise.
            uars: u32 => Uid {
                context: false,
                numbers: [
                    uar: |profile| profile.first().uar..profile.first().user_uar,
                    user_uar: |profile| profile.first().user_uar..profile.device().uar_pages
                ],
                remove: domain::remove_uar,
                commands: {
                    user AllocUarIn => domain::alloc_uar;
                    user DeallocUarIn => domain::dealloc_uar;
                }
            }
            /// Transport domains.
            tds: u32 => Uid {
                context: false,
                numbers: [td: |profile| profile.first().transport_domain..THREE_BYTES],
                remove: domain::remove_td,
                commands: {
                    user AllocTransportDomainIn => domain::alloc_td;
                    user DeallocTransportDomainIn => domain::dealloc_td;
                }
            }
            /// Protection domains.
            pds: u32 => Uid {
                context: true,
                numbers: [pd: |profile| profile.first().pd..THREE_BYTES],
                remove: domain::remove_pd,
                commands: {
                    user AllocPdIn => domain::alloc_pd;
                    user DeallocPdIn => domain::dealloc_pd;
                }
            }
            /// Q counters.
            counters: u8 => QCounter {
                context: false,
                numbers: [counter: |profile| profile.first().q_counter..BYTE],
                remove: counter::remove,
                commands: {
                    user AllocQCounterIn => counter::alloc;
                    user DeallocQCounterIn => counter::dealloc;
                    user QueryQCounterIn => counter::query;
                }
            }
            /// Event queues.
            eqs: u32 => Eq {
                context: true,
                numbers: [eq: |profile| profile.first().eq..BYTE],
                remove: eq::remove,
                commands: {
                    kernel CreateEqIn => eq::create;
                    kernel QueryEqIn => eq::query;
                    kernel DestroyEqIn => eq::destroy;
                }
            }
            /// User contexts.
            uctxs: u16 => Uctx {
                context: true,
                numbers: [uid: |profile| profile.first().uid..HALF],
                remove: uctx::remove,
                commands: {
                    kernel CreateUctxIn => uctx::create;
                    kernel DestroyUctxIn => uctx::destroy;
                }
            }
        }
    };
}

pub(super) use kinds;
