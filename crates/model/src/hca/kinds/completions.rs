//! Completion queues.

macro_rules! completions {
    (($($lead:tt)*) $then:ident $next:tt { $($before:tt)* }) => {
        $($lead)*! { $then $next {
            $($before)*
            /// Completion queues.
            cqs: Cq(u32) => objects::Cq {
                numbers: [cq: |profile| profile.first().cq..THREE_BYTES],
                object: {
                    context: true,
                    number: |numbers, _| &mut numbers.cq,
                    owner: |cq| cq.uid,
                    made: [],
                    refers: |cq, to| {
                        match cq.target {
                            objects::EventTarget::Eq(eqn) => to(ObjectKind::Eq, eqn),
                            objects::EventTarget::Dpa(objects::DpaEventTarget::Thread(thread)) => {
                                to(ObjectKind::DpaThread, thread);
                            }
                            objects::EventTarget::Dpa(objects::DpaEventTarget::Eq(eqn)) => {
                                to(ObjectKind::DpaEq, eqn);
                            }
                            // Only the other context can destroy the thread; later events are
                            // dropped.
                            objects::EventTarget::Dpa(objects::DpaEventTarget::Far { .. }) => {}
                        }
                        to(ObjectKind::Uar, cq.uar_page);
                        cq.umems.iter().for_each(|&umem| to(ObjectKind::Umem, umem));
                    },
                    moving: [],
                    doorbell: [Arm: |cq| cq.uar_page],
                    beside: [],
                },
                refusals: {
                    absent: NoSuchCq = 0x60, "No such CQ for this uid.",
                    in_use: [CqInUse = 0x61, "Work queues still use the CQ: destroy them first."],
                    others: {
                        CqSize = 0x62, BAD_PARAM,
                            "log_cq_size is above log_max_cq_sz, or 0 without cc.";
                        CqeSize = 0x63, BAD_PARAM, "The CQE size is not supported.";
                        CqField = 0x64, BAD_PARAM, "A selected field cannot be modified.";
                        CqOutstanding = 0x65, BAD_SIZE_OUTS_CQES,
                            "The pending CQEs, with the one that ends the resize, do not fit in \
                             the old or in the new buffer: poll the CQ first.";
                        CqState = 0x66, BAD_RES_STATE,
                            "The CQ is in an error state: it overran, or its buffer cannot be \
                             written.";
                    },
                },
                removed: [cq::removed],
                commands: {
                    user CreateCqIn => cq::create;
                    user QueryCqIn => cq::query;
                    user ModifyCqIn => cq::modify;
                    user DestroyCqIn => |call, input, _| call.destroy(kind::Cq, input.cqn());
                }
            }
        } }
    };
}

pub(in crate::hca) use completions;
