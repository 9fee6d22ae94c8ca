//! Processes of the DPA and their objects, its event queues, and the devices that it emulates with
//! their CQE-generating doorbells. The commands are the model's own (`prm/dpa`).

use verbless_prm::{
    CreateGeneralObjectIn, DestroyGeneralObjectIn, GeneralObjectType, ModifyGeneralObjectIn,
    QueryGeneralObjectIn,
};

use crate::hca::allocators::NumberAllocators;
use crate::hca::commands::command::{Command, ObjectCommands, Run, user};
use crate::hca::commands::{dpa, emulated, extension};
use crate::hca::numbers::NumberAllocator;
use crate::hca::objects::{
    DpaCall, DpaCoreDump, DpaEq, DpaOutbox, DpaProcess, DpaThread, DpaWindow, EmulatedDevice,
    EmulatedDoorbell, UarExtension, Uid,
};
use crate::hca::refusal::Refusal;
use crate::hca::registry::{KindEntry, ObjectKind, kind};
use crate::hca::state::Hca;

impl KindEntry for kind::EmulatedDoorbell {
    const ABSENT: Refusal = Refusal::NoSuchEmulatedDoorbell;

    fn numbers(all: &mut NumberAllocators, _: Uid) -> &mut NumberAllocator {
        &mut all.emulated_doorbell
    }

    fn owner(it: &EmulatedDoorbell) -> Uid {
        it.uid
    }

    fn refers(it: &EmulatedDoorbell, to: &mut dyn FnMut(ObjectKind, u32)) {
        to(ObjectKind::EmulatedDevice, it.context.device_id());
        to(ObjectKind::Cq, it.context.cqn());
    }
}

impl ObjectCommands for kind::EmulatedDoorbell {
    const COMMANDS: &'static [Command] = &[
        user::<CreateGeneralObjectIn>(&Run(emulated::create_doorbell))
            .of(GeneralObjectType::DPA_EMULATED_DOORBELL),
        user::<QueryGeneralObjectIn>(&Run(|call, input, output| {
            call.query(kind::EmulatedDoorbell, input, output, |it| it.context)
        }))
        .of(GeneralObjectType::DPA_EMULATED_DOORBELL),
        user::<DestroyGeneralObjectIn>(&Run(|call, input, _| {
            call.destroy(kind::EmulatedDoorbell, input.obj_id())
        }))
        .of(GeneralObjectType::DPA_EMULATED_DOORBELL),
    ];
}

impl KindEntry for kind::DpaEq {
    const ABSENT: Refusal = Refusal::NoSuchDpaEq;
    const IN_USE: Option<Refusal> = Some(Refusal::DpaEqInUse);

    fn numbers(all: &mut NumberAllocators, _: Uid) -> &mut NumberAllocator {
        &mut all.dpa_eq
    }

    fn owner(it: &DpaEq) -> Uid {
        it.uid
    }

    fn refers(it: &DpaEq, to: &mut dyn FnMut(ObjectKind, u32)) {
        to(ObjectKind::Umem, it.context.umem_id());
        to(ObjectKind::Uar, it.context.uar_page());
        if let Some((device, _)) = it.raises() {
            to(ObjectKind::EmulatedDevice, device);
        }
    }
}

impl ObjectCommands for kind::DpaEq {
    const COMMANDS: &'static [Command] = &[
        user::<CreateGeneralObjectIn>(&Run(emulated::create_eq)).of(GeneralObjectType::DPA_EQ),
        user::<QueryGeneralObjectIn>(&Run(emulated::query_eq)).of(GeneralObjectType::DPA_EQ),
        user::<DestroyGeneralObjectIn>(&Run(|call, input, _| {
            call.destroy(kind::DpaEq, input.obj_id())
        }))
        .of(GeneralObjectType::DPA_EQ),
    ];
}

impl KindEntry for kind::EmulatedDevice {
    const ABSENT: Refusal = Refusal::NoSuchEmulatedDevice;
    const IN_USE: Option<Refusal> = Some(Refusal::EmulatedDeviceInUse);

    fn numbers(all: &mut NumberAllocators, _: Uid) -> &mut NumberAllocator {
        &mut all.emulated_device
    }

    fn owner(it: &EmulatedDevice) -> Uid {
        it.uid
    }
}

impl ObjectCommands for kind::EmulatedDevice {
    const COMMANDS: &'static [Command] = &[
        user::<CreateGeneralObjectIn>(&Run(emulated::create_device))
            .of(GeneralObjectType::DPA_EMULATED_DEVICE),
        user::<QueryGeneralObjectIn>(&Run(|call, input, output| {
            call.query(kind::EmulatedDevice, input, output, |it| it.context)
        }))
        .of(GeneralObjectType::DPA_EMULATED_DEVICE),
        user::<ModifyGeneralObjectIn>(&Run(emulated::ring_device))
            .of(GeneralObjectType::DPA_EMULATED_DEVICE),
        user::<DestroyGeneralObjectIn>(&Run(|call, input, _| {
            call.destroy(kind::EmulatedDevice, input.obj_id())
        }))
        .of(GeneralObjectType::DPA_EMULATED_DEVICE),
    ];
}

impl KindEntry for kind::DpaCall {
    const ABSENT: Refusal = Refusal::NoSuchDpaCall;

    fn numbers(all: &mut NumberAllocators, _: Uid) -> &mut NumberAllocator {
        &mut all.dpa_call
    }

    fn owner(it: &DpaCall) -> Uid {
        it.uid
    }

    fn refers(it: &DpaCall, to: &mut dyn FnMut(ObjectKind, u32)) {
        to(ObjectKind::DpaProcess, it.context.process_id());
    }
}

impl ObjectCommands for kind::DpaCall {
    const COMMANDS: &'static [Command] = &[
        user::<CreateGeneralObjectIn>(&Run(dpa::create_call)).of(GeneralObjectType::DPA_CALL),
        user::<QueryGeneralObjectIn>(&Run(dpa::query_call)).of(GeneralObjectType::DPA_CALL),
        user::<DestroyGeneralObjectIn>(&Run(|call, input, _| {
            call.destroy(kind::DpaCall, input.obj_id())
        }))
        .of(GeneralObjectType::DPA_CALL),
    ];

    fn removed(hca: &mut Hca, number: u32, object: DpaCall) {
        dpa::call_removed(hca, number, object);
    }
}

impl KindEntry for kind::DpaThread {
    const ABSENT: Refusal = Refusal::NoSuchDpaThread;
    const IN_USE: Option<Refusal> = Some(Refusal::DpaThreadInUse);

    fn numbers(all: &mut NumberAllocators, _: Uid) -> &mut NumberAllocator {
        &mut all.dpa_thread
    }

    fn owner(it: &DpaThread) -> Uid {
        it.uid
    }

    fn refers(it: &DpaThread, to: &mut dyn FnMut(ObjectKind, u32)) {
        to(ObjectKind::DpaProcess, it.context.process_id());
    }
}

impl ObjectCommands for kind::DpaThread {
    const COMMANDS: &'static [Command] = &[
        user::<CreateGeneralObjectIn>(&Run(dpa::create_thread)).of(GeneralObjectType::DPA_THREAD),
        user::<QueryGeneralObjectIn>(&Run(dpa::query_thread)).of(GeneralObjectType::DPA_THREAD),
        user::<ModifyGeneralObjectIn>(&Run(dpa::modify_thread)).of(GeneralObjectType::DPA_THREAD),
        user::<DestroyGeneralObjectIn>(&Run(|call, input, _| {
            call.destroy(kind::DpaThread, input.obj_id())
        }))
        .of(GeneralObjectType::DPA_THREAD),
    ];

    fn removed(hca: &mut Hca, number: u32, object: DpaThread) {
        dpa::thread_removed(hca, number, object);
    }
}

impl KindEntry for kind::DpaOutbox {
    const ABSENT: Refusal = Refusal::NoSuchDpaOutbox;

    fn numbers(all: &mut NumberAllocators, _: Uid) -> &mut NumberAllocator {
        &mut all.dpa_outbox
    }

    fn owner(it: &DpaOutbox) -> Uid {
        it.uid
    }

    fn refers(it: &DpaOutbox, to: &mut dyn FnMut(ObjectKind, u32)) {
        to(ObjectKind::DpaProcess, it.context.process_id());
        to(ObjectKind::Uar, it.context.uar_page());
    }
}

impl ObjectCommands for kind::DpaOutbox {
    const COMMANDS: &'static [Command] = &[
        user::<CreateGeneralObjectIn>(&Run(dpa::create_outbox)).of(GeneralObjectType::DPA_OUTBOX),
        user::<QueryGeneralObjectIn>(&Run(|call, input, output| {
            call.query(kind::DpaOutbox, input, output, |it| it.context)
        }))
        .of(GeneralObjectType::DPA_OUTBOX),
        user::<DestroyGeneralObjectIn>(&Run(dpa::destroy_outbox)).of(GeneralObjectType::DPA_OUTBOX),
    ];

    fn removed(hca: &mut Hca, number: u32, object: DpaOutbox) {
        dpa::outbox_removed(hca, number, object);
    }
}

impl KindEntry for kind::UarExtension {
    const ABSENT: Refusal = Refusal::NoSuchUarExtension;

    fn numbers(all: &mut NumberAllocators, _: Uid) -> &mut NumberAllocator {
        &mut all.uar_extension
    }

    fn owner(it: &UarExtension) -> Uid {
        it.uid
    }

    fn refers(it: &UarExtension, to: &mut dyn FnMut(ObjectKind, u32)) {
        to(ObjectKind::Uar, it.context.uar_page());
    }
}

impl ObjectCommands for kind::UarExtension {
    const COMMANDS: &'static [Command] = &[
        user::<CreateGeneralObjectIn>(&Run(extension::create))
            .of(GeneralObjectType::DPA_UAR_EXTENSION),
        user::<QueryGeneralObjectIn>(&Run(|call, input, output| {
            call.query(kind::UarExtension, input, output, |it| it.context)
        }))
        .of(GeneralObjectType::DPA_UAR_EXTENSION),
        user::<DestroyGeneralObjectIn>(&Run(|call, input, _| {
            call.destroy(kind::UarExtension, input.obj_id())
        }))
        .of(GeneralObjectType::DPA_UAR_EXTENSION),
    ];
}

impl KindEntry for kind::DpaWindow {
    const ABSENT: Refusal = Refusal::NoSuchDpaWindow;

    fn numbers(all: &mut NumberAllocators, _: Uid) -> &mut NumberAllocator {
        &mut all.dpa_window
    }

    fn owner(it: &DpaWindow) -> Uid {
        it.uid
    }

    fn refers(it: &DpaWindow, to: &mut dyn FnMut(ObjectKind, u32)) {
        to(ObjectKind::DpaProcess, it.context.process_id());
        to(ObjectKind::Pd, it.context.pd());
    }
}

impl ObjectCommands for kind::DpaWindow {
    const COMMANDS: &'static [Command] = &[
        user::<CreateGeneralObjectIn>(&Run(dpa::create_window)).of(GeneralObjectType::DPA_WINDOW),
        user::<QueryGeneralObjectIn>(&Run(|call, input, output| {
            call.query(kind::DpaWindow, input, output, |it| it.context)
        }))
        .of(GeneralObjectType::DPA_WINDOW),
        user::<DestroyGeneralObjectIn>(&Run(dpa::destroy_window)).of(GeneralObjectType::DPA_WINDOW),
    ];

    fn removed(hca: &mut Hca, number: u32, object: DpaWindow) {
        dpa::window_removed(hca, number, object);
    }
}

impl KindEntry for kind::DpaCoreDump {
    const ABSENT: Refusal = Refusal::NoSuchDpaCoreDump;

    fn numbers(all: &mut NumberAllocators, _: Uid) -> &mut NumberAllocator {
        &mut all.dpa_core_dump
    }

    fn owner(it: &DpaCoreDump) -> Uid {
        it.uid
    }

    fn refers(it: &DpaCoreDump, to: &mut dyn FnMut(ObjectKind, u32)) {
        to(ObjectKind::DpaProcess, it.context.process_id());
        // The dump is written in chunks; other threads use the function between
        // them.
        to(ObjectKind::Umem, it.context.umem_id());
    }
}

impl ObjectCommands for kind::DpaCoreDump {
    const COMMANDS: &'static [Command] = &[
        user::<CreateGeneralObjectIn>(&Run(dpa::create_core_dump))
            .of(GeneralObjectType::DPA_CORE_DUMP),
        user::<QueryGeneralObjectIn>(&Run(|call, input, output| {
            call.query(kind::DpaCoreDump, input, output, |it| it.context)
        }))
        .of(GeneralObjectType::DPA_CORE_DUMP),
        user::<DestroyGeneralObjectIn>(&Run(|call, input, _| {
            call.destroy(kind::DpaCoreDump, input.obj_id())
        }))
        .of(GeneralObjectType::DPA_CORE_DUMP),
    ];
}

impl KindEntry for kind::DpaProcess {
    const ABSENT: Refusal = Refusal::NoSuchDpaProcess;
    const IN_USE: Option<Refusal> = Some(Refusal::DpaProcessInUse);

    fn numbers(all: &mut NumberAllocators, _: Uid) -> &mut NumberAllocator {
        &mut all.dpa_process
    }

    fn owner(it: &DpaProcess) -> Uid {
        it.uid
    }
}

impl ObjectCommands for kind::DpaProcess {
    const COMMANDS: &'static [Command] = &[
        user::<CreateGeneralObjectIn>(&Run(dpa::create_process)).of(GeneralObjectType::DPA_PROCESS),
        user::<QueryGeneralObjectIn>(&Run(dpa::query_process)).of(GeneralObjectType::DPA_PROCESS),
        user::<ModifyGeneralObjectIn>(&Run(dpa::modify_process)).of(GeneralObjectType::DPA_PROCESS),
        user::<DestroyGeneralObjectIn>(&Run(dpa::destroy_process))
            .of(GeneralObjectType::DPA_PROCESS),
    ];

    fn removed(hca: &mut Hca, number: u32, object: DpaProcess) {
        dpa::process_removed(hca, number, object);
    }
}
