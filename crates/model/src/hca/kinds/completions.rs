//! Completion queues, and devices that the DPA emulates, with their doorbells, which make CQEs, and
//! event queues.

macro_rules! completions {
    ($then:ident { $($before:tt)* }) => {
        $crate::hca::kinds::dpa::dpa! { $then {
            $($before)*
            /// Doorbells of emulated devices that make CQEs.
            emulated_doorbells: EmulatedDoorbell(u32) => objects::EmulatedDoorbell {
                numbers: [emulated_doorbell: |profile| profile.first_dpa_object()..HALF],
                object: {
                    context: true,
                    number: |numbers, _| &mut numbers.emulated_doorbell,
                    owner: |it| it.uid,
                    made: [],
                    refers: |it, to| {
                        to(ObjectKind::EmulatedDevice, it.context.device_id());
                        to(ObjectKind::Cq, it.context.cqn());
                    },
                    moving: [],
                    doorbell: [],
                    beside: [],
                },
                refusals: {
                    absent: NoSuchEmulatedDoorbell = 0xd7,
                        "No such doorbell of an emulated device for this uid.",
                    in_use: [],
                    others: {
                        EmulatedDoorbellTaken = 0xd8, BAD_RES_STATE,
                            "Another object has the queue's doorbell: destroy it first.";
                    },
                },
                gone: [],
                commands: {
                    user CreateGeneralObjectIn of DPA_EMULATED_DOORBELL =>
                        emulated::create_doorbell;
                    user QueryGeneralObjectIn of DPA_EMULATED_DOORBELL =>
                        |call, input, output| {
                            call.query(kind::EmulatedDoorbell, input, output, |it| it.context)
                        };
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
                            objects::Element::Eq(eqn) => to(ObjectKind::Eq, eqn),
                            objects::Element::Thread(thread) => to(ObjectKind::DpaThread, thread),
                            objects::Element::DpaEq(eqn) => to(ObjectKind::DpaEq, eqn),
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
                        CqSize = 0x62, BAD_PARAM, "log_cq_size is 0 or above log_max_cq_sz.";
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
                gone: [cq::gone],
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
                        to(ObjectKind::Umem, it.context.umem_id());
                        to(ObjectKind::Uar, it.context.uar_page());
                        if let Some((device, _)) = it.raises() {
                            to(ObjectKind::EmulatedDevice, device);
                        }
                    },
                    moving: [],
                    doorbell: [],
                    beside: [],
                },
                refusals: {
                    absent: NoSuchDpaEq = 0xd1, "No such event queue of the DPA for this uid.",
                    in_use: [DpaEqInUse = 0xd2,
                        "CQs still name the event queue of the DPA: destroy them first."],
                    others: {},
                },
                gone: [],
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
                    beside: [],
                },
                refusals: {
                    absent: NoSuchEmulatedDevice = 0xd3, "No such emulated device for this uid.",
                    in_use: [EmulatedDeviceInUse = 0xd4,
                        "Event queues or doorbells are still of the emulated device: destroy them \
                         first."],
                    others: {
                        EmulatedDeviceSize = 0xd5, BAD_PARAM,
                            "An emulated device has at least one queue, and at most 64 vectors.";
                        EmulatedDeviceParts = 0xd6, BAD_PARAM,
                            "The emulated device has no such queue or vector.";
                    },
                },
                gone: [],
                commands: {
                    user CreateGeneralObjectIn of DPA_EMULATED_DEVICE => emulated::create_device;
                    user QueryGeneralObjectIn of DPA_EMULATED_DEVICE =>
                        |call, input, output| {
                            call.query(kind::EmulatedDevice, input, output, |it| it.context)
                        };
                    user ModifyGeneralObjectIn of DPA_EMULATED_DEVICE => emulated::ring_device;
                    user DestroyGeneralObjectIn of DPA_EMULATED_DEVICE =>
                        |call, input, _| call.destroy(kind::EmulatedDevice, input.obj_id());
                }
            }
        } }
    };
}

pub(in crate::hca) use completions;
