//! Work queues, and the objects that steer frames to them or carry frames from them.

use verbless_prm::{
    AllocXrcdIn, ArmXrcSrqIn, AttachToMcgIn, CreateFlowGroupIn, CreateFlowTableIn, CreateQpIn,
    CreateRmpIn, CreateRqIn, CreateSqIn, CreateTirIn, CreateTisIn, CreateXrcSrqIn, DeallocXrcdIn,
    DeleteFlowTableEntryIn, DestroyFlowGroupIn, DestroyFlowTableIn, DestroyQpIn, DestroyRmpIn,
    DestroyRqIn, DestroySqIn, DestroyTirIn, DestroyTisIn, DestroyXrcSrqIn, DetachFromMcgIn,
    Init2initQpIn, Init2rtrQpIn, ModifyFlowTableIn, ModifyRmpIn, ModifyRqIn, ModifySqIn,
    ModifyTirIn, ModifyTisIn, Qp2errIn, Qp2rstIn, QueryFlowGroupIn, QueryFlowTableEntryIn,
    QueryFlowTableIn, QueryQpIn, QueryRmpIn, QueryRqIn, QuerySqIn, QueryTirIn, QueryTisIn,
    QueryXrcSrqIn, Rst2initQpIn, Rtr2rtsQpIn, Rts2rtsQpIn, SetFlowTableEntryIn, SetFlowTableRootIn,
    SqdRtsQpIn, Sqerr2rtsQpIn,
};

use crate::hca::allocators::NumberAllocators;
use crate::hca::commands::command::{Command, ObjectCommands, Run, kernel, user};
use crate::hca::commands::{flow_table, multicast, qp, rq, sq, srq, transition, transport};
use crate::hca::doorbell::PageDoorbell;
use crate::hca::numbers::NumberAllocator;
use crate::hca::objects::flow::FlowTable;
use crate::hca::objects::{QpObject, Rq, Sq, Srq, Tir, Tis, Uid};
use crate::hca::refusal::Refusal;
use crate::hca::registry::{KindEntry, ObjectKind, kind};
use crate::hca::state::Hca;

impl KindEntry for kind::Qp {
    const ABSENT: Refusal = Refusal::NoSuchQp;

    fn numbers(all: &mut NumberAllocators, _: Uid) -> &mut NumberAllocator {
        &mut all.qp
    }

    fn owner(qp: &QpObject) -> Uid {
        qp.uid
    }

    fn refers(qp: &QpObject, to: &mut dyn FnMut(ObjectKind, u32)) {
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
    }

    fn doorbell(qp: &QpObject) -> Option<(PageDoorbell, u32)> {
        Some((PageDoorbell::Send, qp.uar_page))
    }
}

impl ObjectCommands for kind::Qp {
    const COMMANDS: &'static [Command] = &[
        user::<CreateQpIn>(&Run(qp::create)),
        user::<QueryQpIn>(&Run(qp::query)),
        user::<DestroyQpIn>(&Run(|call, input, _| call.destroy(kind::Qp, input.qpn()))),
        user::<Rst2initQpIn>(&Run(transition::rst2init)),
        user::<Init2initQpIn>(&Run(transition::init2init)).min_input_bytes(0x110),
        user::<Init2rtrQpIn>(&Run(transition::init2rtr)),
        user::<Rtr2rtsQpIn>(&Run(transition::rtr2rts)),
        user::<Rts2rtsQpIn>(&Run(transition::rts2rts)).min_input_bytes(0x110),
        user::<Sqerr2rtsQpIn>(&Run(transition::sqerr2rts)),
        user::<SqdRtsQpIn>(&Run(transition::sqd2rts)),
        user::<Qp2errIn>(&Run(transition::to_error)),
        user::<Qp2rstIn>(&Run(transition::to_reset)),
        user::<AttachToMcgIn>(&Run(multicast::attach)),
        user::<DetachFromMcgIn>(&Run(multicast::detach)),
    ];

    fn removed(hca: &mut Hca, number: u32, object: QpObject) {
        qp::removed(hca, number, object);
    }
}

impl KindEntry for kind::Sq {
    const ABSENT: Refusal = Refusal::NoSuchSq;

    fn numbers(all: &mut NumberAllocators, _: Uid) -> &mut NumberAllocator {
        &mut all.qp
    }

    fn owner(sq: &Sq) -> Uid {
        sq.uid
    }

    fn refers(sq: &Sq, to: &mut dyn FnMut(ObjectKind, u32)) {
        to(ObjectKind::Pd, sq.pd);
        to(ObjectKind::Uar, sq.uar_page);
        to(ObjectKind::Cq, sq.queue.cqn);
        if sq.context.tis_lst_sz() != 0 {
            to(ObjectKind::Tis, sq.context.tis_num_0());
        }
        sq.umems.iter().for_each(|&umem| to(ObjectKind::Umem, umem));
    }

    fn doorbell(sq: &Sq) -> Option<(PageDoorbell, u32)> {
        Some((PageDoorbell::Send, sq.uar_page))
    }
}

impl ObjectCommands for kind::Sq {
    const COMMANDS: &'static [Command] = &[
        user::<CreateSqIn>(&Run(sq::create)),
        user::<QuerySqIn>(&Run(sq::query)),
        user::<ModifySqIn>(&Run(sq::modify)),
        user::<DestroySqIn>(&Run(|call, input, _| call.destroy(kind::Sq, input.sqn()))),
    ];

    fn removed(hca: &mut Hca, number: u32, object: Sq) {
        sq::removed(hca, number, object);
    }
}

impl KindEntry for kind::FlowTable {
    const ABSENT: Refusal = Refusal::NoSuchFlowTable;
    const IN_USE: Option<Refusal> = Some(Refusal::FlowTableInUse);

    fn numbers(all: &mut NumberAllocators, _: Uid) -> &mut NumberAllocator {
        &mut all.flow_table
    }

    fn owner(table: &FlowTable) -> Uid {
        table.uid
    }

    fn refers(table: &FlowTable, to: &mut dyn FnMut(ObjectKind, u32)) {
        table.miss().iter().for_each(|&table| to(ObjectKind::FlowTable, table));
        for at in table.entries.values().flat_map(|entry| &entry.to) {
            let (kind, number) = flow_table::reference(at);
            to(kind, number);
        }
    }
}

impl ObjectCommands for kind::FlowTable {
    const COMMANDS: &'static [Command] = &[
        user::<CreateFlowTableIn>(&Run(flow_table::create_table)),
        user::<ModifyFlowTableIn>(&Run(flow_table::modify_table)),
        user::<QueryFlowTableIn>(&Run(flow_table::query_table)),
        user::<DestroyFlowTableIn>(&Run(flow_table::destroy_table)),
        kernel::<SetFlowTableRootIn>(&Run(flow_table::set_root)),
        user::<CreateFlowGroupIn>(&Run(flow_table::create_group)),
        user::<QueryFlowGroupIn>(&Run(flow_table::query_group)),
        user::<DestroyFlowGroupIn>(&Run(flow_table::destroy_group)),
        user::<SetFlowTableEntryIn>(&Run(flow_table::set_entry)),
        user::<QueryFlowTableEntryIn>(&Run(flow_table::query_entry)),
        user::<DeleteFlowTableEntryIn>(&Run(flow_table::delete_entry)),
    ];

    fn removed(hca: &mut Hca, number: u32, object: FlowTable) {
        flow_table::removed(hca, number, object);
    }
}

impl KindEntry for kind::Tir {
    const ABSENT: Refusal = Refusal::NoSuchTir;
    const IN_USE: Option<Refusal> = Some(Refusal::TirInUse);

    fn numbers(all: &mut NumberAllocators, _: Uid) -> &mut NumberAllocator {
        &mut all.tir
    }

    fn owner(tir: &Tir) -> Uid {
        tir.uid
    }

    fn refers(tir: &Tir, to: &mut dyn FnMut(ObjectKind, u32)) {
        to(ObjectKind::Td, tir.context.transport_domain());
        to(ObjectKind::Rq, tir.context.inline_rqn());
    }
}

impl ObjectCommands for kind::Tir {
    const COMMANDS: &'static [Command] = &[
        user::<CreateTirIn>(&Run(transport::create_tir)),
        user::<ModifyTirIn>(&Run(transport::modify_tir)),
        user::<QueryTirIn>(&Run(transport::query_tir)),
        user::<DestroyTirIn>(&Run(|call, input, _| call.destroy(kind::Tir, input.tirn()))),
    ];
}

impl KindEntry for kind::Rq {
    const ABSENT: Refusal = Refusal::NoSuchRq;
    const IN_USE: Option<Refusal> = Some(Refusal::RqInUse);

    fn numbers(all: &mut NumberAllocators, _: Uid) -> &mut NumberAllocator {
        &mut all.qp
    }

    fn owner(rq: &Rq) -> Uid {
        rq.uid
    }

    fn refers(rq: &Rq, to: &mut dyn FnMut(ObjectKind, u32)) {
        rq.pd.iter().for_each(|&pd| to(ObjectKind::Pd, pd));
        to(ObjectKind::Cq, rq.context.cqn());
        to(ObjectKind::Counter, rq.context.counter_set_id().into());
        rq.srq.iter().for_each(|&srq| to(ObjectKind::Srq, srq));
        rq.umems.iter().for_each(|&umem| to(ObjectKind::Umem, umem));
    }
}

impl ObjectCommands for kind::Rq {
    const COMMANDS: &'static [Command] = &[
        user::<CreateRqIn>(&Run(rq::create)),
        user::<QueryRqIn>(&Run(rq::query)),
        user::<ModifyRqIn>(&Run(rq::modify)),
        user::<DestroyRqIn>(&Run(|call, input, _| call.destroy(kind::Rq, input.rqn()))),
    ];

    fn removed(hca: &mut Hca, number: u32, object: Rq) {
        rq::removed(hca, number, object);
    }
}

impl KindEntry for kind::Tis {
    const ABSENT: Refusal = Refusal::NoSuchTis;
    const IN_USE: Option<Refusal> = Some(Refusal::TisInUse);

    fn numbers(all: &mut NumberAllocators, _: Uid) -> &mut NumberAllocator {
        &mut all.tis
    }

    fn owner(tis: &Tis) -> Uid {
        tis.uid
    }

    fn refers(tis: &Tis, to: &mut dyn FnMut(ObjectKind, u32)) {
        to(ObjectKind::Td, tis.context.transport_domain());
        if tis.context.pd() != 0 {
            to(ObjectKind::Pd, tis.context.pd());
        }
    }
}

impl ObjectCommands for kind::Tis {
    const COMMANDS: &'static [Command] = &[
        user::<CreateTisIn>(&Run(transport::create_tis)),
        user::<ModifyTisIn>(&Run(transport::modify_tis)),
        user::<QueryTisIn>(&Run(transport::query_tis)),
        user::<DestroyTisIn>(&Run(|call, input, _| call.destroy(kind::Tis, input.tisn()))),
    ];
}

impl KindEntry for kind::Srq {
    const ABSENT: Refusal = Refusal::NoSuchSrq;
    const IN_USE: Option<Refusal> = Some(Refusal::SrqInUse);

    fn numbers(all: &mut NumberAllocators, _: Uid) -> &mut NumberAllocator {
        &mut all.srq
    }

    fn owner(srq: &Srq) -> Uid {
        srq.uid
    }

    fn refers(srq: &Srq, to: &mut dyn FnMut(ObjectKind, u32)) {
        to(ObjectKind::Pd, srq.pd);
        srq.cqn.iter().for_each(|&cqn| to(ObjectKind::Cq, cqn));
        srq.xrcd.iter().for_each(|&xrcd| to(ObjectKind::Xrcd, xrcd));
        srq.umems.iter().for_each(|&umem| to(ObjectKind::Umem, umem));
    }
}

impl ObjectCommands for kind::Srq {
    const COMMANDS: &'static [Command] = &[
        user::<CreateXrcSrqIn>(&Run(srq::create_xrc_srq)),
        user::<QueryXrcSrqIn>(&Run(srq::query_xrc_srq)),
        user::<ArmXrcSrqIn>(&Run(srq::arm_xrc_srq)),
        user::<DestroyXrcSrqIn>(&Run(srq::destroy_xrc_srq)),
        user::<CreateRmpIn>(&Run(srq::create_rmp)),
        user::<QueryRmpIn>(&Run(srq::query_rmp)),
        user::<ModifyRmpIn>(&Run(srq::modify_rmp)),
        user::<DestroyRmpIn>(&Run(srq::destroy_rmp)),
    ];
}

impl KindEntry for kind::Xrcd {
    const ABSENT: Refusal = Refusal::NoSuchXrcd;
    const IN_USE: Option<Refusal> = Some(Refusal::XrcdInUse);
    const TAKES_CONTEXT: bool = false;

    fn numbers(all: &mut NumberAllocators, _: Uid) -> &mut NumberAllocator {
        &mut all.xrcd
    }

    fn owner(uid: &Uid) -> Uid {
        *uid
    }
}

impl ObjectCommands for kind::Xrcd {
    const COMMANDS: &'static [Command] = &[
        user::<AllocXrcdIn>(&Run(srq::alloc_xrcd)),
        user::<DeallocXrcdIn>(&Run(|call, input, _| call.destroy(kind::Xrcd, input.xrcd()))),
    ];
}
