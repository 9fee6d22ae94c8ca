//! Processes of the DPA and their objects, its event queues, and the devices that it emulates with
//! their CQE-generating doorbells. The commands are the model's own (`prm/dpa`).

macro_rules! doorbells {
    (($($lead:tt)*) $then:ident $next:tt { $($before:tt)* }) => {
        $($lead)*! { $then $next {
            $($before)*
            /// CQE-generating doorbells of emulated devices.
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
                removed: [],
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
        } }
    };
}

pub(in crate::hca) use doorbells;

macro_rules! dpa {
    (($($lead:tt)*) $then:ident $next:tt { $($before:tt)* }) => {
        $($lead)*! { $then $next {
            $($before)*
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
                removed: [],
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
                removed: [],
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
            /// Calls of functions on the DPA.
            dpa_calls: DpaCall(u32) => objects::DpaCall {
                numbers: [dpa_call: |profile| profile.first_dpa_object()..HALF],
                object: {
                    context: true,
                    number: |numbers, _| &mut numbers.dpa_call,
                    owner: |it| it.uid,
                    made: [],
                    refers: |it, to| { to(ObjectKind::DpaProcess, it.context.process_id()) },
                    moving: [],
                    doorbell: [],
                    beside: [],
                },
                refusals: {
                    absent: NoSuchDpaCall = 0xc7, "No such call on the DPA for this uid.",
                    in_use: [],
                    others: {},
                },
                removed: [dpa::call_removed],
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
                    refers: |it, to| { to(ObjectKind::DpaProcess, it.context.process_id()) },
                    moving: [],
                    doorbell: [],
                    beside: [],
                },
                refusals: {
                    absent: NoSuchDpaThread = 0xc2, "No such thread on the DPA for this uid.",
                    in_use: [DpaThreadInUse = 0xc3,
                        "CQs still start the thread: destroy them first."],
                    others: {},
                },
                removed: [dpa::thread_removed],
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
                        to(ObjectKind::DpaProcess, it.context.process_id());
                        to(ObjectKind::Uar, it.context.uar_page());
                    },
                    moving: [],
                    doorbell: [],
                    beside: [],
                },
                refusals: {
                    absent: NoSuchDpaOutbox = 0xc4, "No such outbox of the DPA for this uid.",
                    in_use: [],
                    others: {},
                },
                removed: [dpa::outbox_removed],
                commands: {
                    user CreateGeneralObjectIn of DPA_OUTBOX => dpa::create_outbox;
                    user QueryGeneralObjectIn of DPA_OUTBOX =>
                        |call, input, output| {
                            call.query(kind::DpaOutbox, input, output, |it| it.context)
                        };
                    user DestroyGeneralObjectIn of DPA_OUTBOX => dpa::destroy_outbox;
                }
            }
            /// UAR pages whose queues the DPA of another function may ring for.
            uar_extensions: UarExtension(u32) => objects::UarExtension {
                numbers: [uar_extension: |profile| profile.first_dpa_object()..HALF],
                object: {
                    context: true,
                    number: |numbers, _| &mut numbers.uar_extension,
                    owner: |it| it.uid,
                    made: [],
                    refers: |it, to| to(ObjectKind::Uar, it.context.uar_page()),
                    moving: [],
                    doorbell: [],
                    beside: [],
                },
                refusals: {
                    absent: NoSuchUarExtension = 0xed, "No such UAR extension for this uid.",
                    in_use: [],
                    others: {
                        UarExtensionTo = 0xee, BAD_PARAM,
                            "The process is of no function of the card that has this vhca_id and \
                             reaches this one.";
                    },
                },
                removed: [],
                commands: {
                    user CreateGeneralObjectIn of DPA_UAR_EXTENSION => extension::create;
                    user QueryGeneralObjectIn of DPA_UAR_EXTENSION =>
                        |call, input, output| {
                            call.query(kind::UarExtension, input, output, |it| it.context)
                        };
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
                        to(ObjectKind::DpaProcess, it.context.process_id());
                        to(ObjectKind::Pd, it.context.pd());
                    },
                    moving: [],
                    doorbell: [],
                    beside: [],
                },
                refusals: {
                    absent: NoSuchDpaWindow = 0xc6, "No such window of the DPA for this uid.",
                    in_use: [],
                    others: {},
                },
                removed: [dpa::window_removed],
                commands: {
                    user CreateGeneralObjectIn of DPA_WINDOW => dpa::create_window;
                    user QueryGeneralObjectIn of DPA_WINDOW =>
                        |call, input, output| {
                            call.query(kind::DpaWindow, input, output, |it| it.context)
                        };
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
                        to(ObjectKind::DpaProcess, it.context.process_id());
                        // The dump is written in chunks; other threads use the function between
                        // them.
                        to(ObjectKind::Umem, it.context.umem_id());
                    },
                    moving: [],
                    doorbell: [],
                    beside: [],
                },
                refusals: {
                    absent: NoSuchDpaCoreDump = 0xc8, "No such core dump for this uid.",
                    in_use: [],
                    others: {},
                },
                removed: [],
                commands: {
                    user CreateGeneralObjectIn of DPA_CORE_DUMP => dpa::create_core_dump;
                    user QueryGeneralObjectIn of DPA_CORE_DUMP =>
                        |call, input, output| {
                            call.query(kind::DpaCoreDump, input, output, |it| it.context)
                        };
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
                    refers: |_, _| {},
                    moving: [],
                    doorbell: [],
                    beside: [],
                },
                refusals: {
                    absent: NoSuchDpaProcess = 0xc0, "No such process on the DPA for this uid.",
                    in_use: [DpaProcessInUse = 0xc1,
                        "Threads, calls, outboxes, windows, mkeys or queues still use the process: \
                         destroy them first."],
                    others: {
                        DpaProgram = 0xc9, BAD_PARAM, "The file is not a program for the DPA.";
                        DpaEnded = 0xcb, BAD_RES_STATE, "The process has ended: see its status.";
                        DpaHasThreads = 0xdf, BAD_RES_STATE,
                            "The process has had a thread: its error handler is set before the \
                             first one.";
                    },
                },
                removed: [dpa::process_removed],
                commands: {
                    user CreateGeneralObjectIn of DPA_PROCESS => dpa::create_process;
                    user QueryGeneralObjectIn of DPA_PROCESS => dpa::query_process;
                    user ModifyGeneralObjectIn of DPA_PROCESS => dpa::modify_process;
                    user DestroyGeneralObjectIn of DPA_PROCESS => dpa::destroy_process;
                }
            }
        } }
    };
}

pub(in crate::hca) use dpa;
