//! The registry entry of CQs: numbers, owner, references, doorbell and commands.

use verbless_prm::{CreateCqIn, DestroyCqIn, ModifyCqIn, QueryCqIn};

use crate::hca::allocators::NumberAllocators;
use crate::hca::commands::command::{Command, ObjectCommands, Run, user};
use crate::hca::commands::cq;
use crate::hca::doorbell::PageDoorbell;
use crate::hca::numbers::NumberAllocator;
use crate::hca::objects::{Cq, DpaEventTarget, EventTarget, Uid};
use crate::hca::refusal::Refusal;
use crate::hca::registry::{KindEntry, ObjectKind, kind};
use crate::hca::state::Hca;

impl KindEntry for kind::Cq {
    const ABSENT: Refusal = Refusal::NoSuchCq;
    const IN_USE: Option<Refusal> = Some(Refusal::CqInUse);

    fn numbers(all: &mut NumberAllocators, _: Uid) -> &mut NumberAllocator {
        &mut all.cq
    }

    fn owner(cq: &Cq) -> Uid {
        cq.uid
    }

    fn refers(cq: &Cq, to: &mut dyn FnMut(ObjectKind, u32)) {
        match cq.target {
            EventTarget::Eq(eqn) => to(ObjectKind::Eq, eqn),
            EventTarget::Dpa(DpaEventTarget::Thread(thread)) => to(ObjectKind::DpaThread, thread),
            EventTarget::Dpa(DpaEventTarget::Eq(eqn)) => to(ObjectKind::DpaEq, eqn),
            // Only the other context can destroy the thread; later events are dropped.
            EventTarget::Dpa(DpaEventTarget::OtherContext { .. }) => {}
        }
        to(ObjectKind::Uar, cq.uar_page);
        cq.umems.iter().for_each(|&umem| to(ObjectKind::Umem, umem));
    }

    fn doorbell(cq: &Cq) -> Option<(PageDoorbell, u32)> {
        Some((PageDoorbell::Arm, cq.uar_page))
    }
}

impl ObjectCommands for kind::Cq {
    const COMMANDS: &'static [Command] = &[
        user::<CreateCqIn>(&Run(cq::create)),
        user::<QueryCqIn>(&Run(cq::query)),
        user::<ModifyCqIn>(&Run(cq::modify)),
        user::<DestroyCqIn>(&Run(|call, input, _| call.destroy(kind::Cq, input.cqn()))),
    ];

    fn removed(hca: &mut Hca, number: u32, object: Cq) {
        cq::removed(hca, number, object);
    }
}
