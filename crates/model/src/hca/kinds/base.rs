//! User contexts, and the objects that queues depend on.

use verbless_prm::{
    AllocPdIn, AllocQCounterIn, AllocTransportDomainIn, AllocUarIn, CreateEqIn, CreateUctxIn,
    DeallocPdIn, DeallocQCounterIn, DeallocTransportDomainIn, DeallocUarIn, DestroyEqIn,
    DestroyUctxIn, QueryEqIn, QueryQCounterIn,
};

use crate::hca::allocators::NumberAllocators;
use crate::hca::commands::command::{Command, ObjectCommands, Run, kernel, user};
use crate::hca::commands::{counter, domain, eq, uctx};
use crate::hca::numbers::NumberAllocator;
use crate::hca::objects::{Eq, QCounter, SHARED_UID, Uctx, Uid};
use crate::hca::refusal::Refusal;
use crate::hca::registry::{KindEntry, ObjectKind, kind};
use crate::hca::state::Hca;

impl KindEntry for kind::Eq {
    const ABSENT: Refusal = Refusal::NoSuchEq;
    const IN_USE: Option<Refusal> = Some(Refusal::EqInUse);

    fn numbers(all: &mut NumberAllocators, _: Uid) -> &mut NumberAllocator {
        &mut all.eq
    }

    fn owner(_: &Eq) -> Uid {
        SHARED_UID
    }

    fn refers(eq: &Eq, to: &mut dyn FnMut(ObjectKind, u32)) {
        to(ObjectKind::Uar, eq.uar_page);
    }
}

impl ObjectCommands for kind::Eq {
    const COMMANDS: &'static [Command] = &[
        kernel::<CreateEqIn>(&Run(eq::create)).shared(),
        kernel::<QueryEqIn>(&Run(eq::query)),
        kernel::<DestroyEqIn>(&Run(|call, input, _| {
            call.destroy(kind::Eq, input.eq_number().into())
        })),
    ];
}

impl KindEntry for kind::Uar {
    const ABSENT: Refusal = Refusal::NoSuchUar;
    const IN_USE: Option<Refusal> = Some(Refusal::UarInUse);
    const TAKES_CONTEXT: bool = false;

    fn numbers(all: &mut NumberAllocators, owner: Uid) -> &mut NumberAllocator {
        match owner {
            0 => &mut all.uar,
            _ => &mut all.user_uar,
        }
    }

    fn owner(uid: &Uid) -> Uid {
        *uid
    }
}

impl ObjectCommands for kind::Uar {
    const COMMANDS: &'static [Command] = &[
        user::<AllocUarIn>(&Run(domain::alloc_uar)),
        user::<DeallocUarIn>(&Run(domain::dealloc_uar)),
    ];

    fn removed(hca: &mut Hca, number: u32, object: Uid) {
        domain::uar_removed(hca, number, object);
    }
}

impl KindEntry for kind::Td {
    const ABSENT: Refusal = Refusal::NoSuchTd;
    const IN_USE: Option<Refusal> = Some(Refusal::TdInUse);
    const TAKES_CONTEXT: bool = false;

    fn numbers(all: &mut NumberAllocators, _: Uid) -> &mut NumberAllocator {
        &mut all.td
    }

    fn owner(uid: &Uid) -> Uid {
        *uid
    }
}

impl ObjectCommands for kind::Td {
    const COMMANDS: &'static [Command] = &[
        user::<AllocTransportDomainIn>(&Run(domain::alloc_td)),
        user::<DeallocTransportDomainIn>(&Run(|call, input, _| {
            call.destroy(kind::Td, input.transport_domain())
        })),
    ];
}

impl KindEntry for kind::Pd {
    const ABSENT: Refusal = Refusal::NoSuchPd;
    const IN_USE: Option<Refusal> = Some(Refusal::PdInUse);

    fn numbers(all: &mut NumberAllocators, _: Uid) -> &mut NumberAllocator {
        &mut all.pd
    }

    fn owner(uid: &Uid) -> Uid {
        *uid
    }
}

impl ObjectCommands for kind::Pd {
    const COMMANDS: &'static [Command] = &[
        user::<AllocPdIn>(&Run(domain::alloc_pd)),
        user::<DeallocPdIn>(&Run(|call, input, _| call.destroy(kind::Pd, input.pd()))),
    ];
}

impl KindEntry for kind::Counter {
    const ABSENT: Refusal = Refusal::NoSuchCounter;
    const IN_USE: Option<Refusal> = Some(Refusal::CounterInUse);
    const TAKES_CONTEXT: bool = false;

    fn numbers(all: &mut NumberAllocators, _: Uid) -> &mut NumberAllocator {
        &mut all.counter
    }

    fn owner(counter: &QCounter) -> Uid {
        counter.uid
    }
}

impl ObjectCommands for kind::Counter {
    const COMMANDS: &'static [Command] = &[
        user::<AllocQCounterIn>(&Run(counter::alloc)).shared(),
        user::<DeallocQCounterIn>(&Run(counter::dealloc)),
        user::<QueryQCounterIn>(&Run(counter::query)),
    ];
}

impl KindEntry for kind::Uctx {
    const ABSENT: Refusal = Refusal::NoSuchUid;

    fn numbers(all: &mut NumberAllocators, _: Uid) -> &mut NumberAllocator {
        &mut all.uid
    }

    fn owner(_: &Uctx) -> Uid {
        0
    }
}

impl ObjectCommands for kind::Uctx {
    const COMMANDS: &'static [Command] =
        &[kernel::<CreateUctxIn>(&Run(uctx::create)), kernel::<DestroyUctxIn>(&Run(uctx::destroy))];
}
