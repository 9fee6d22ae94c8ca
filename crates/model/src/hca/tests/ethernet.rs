//! The objects on the path of Ethernet frames: TISs, RQs, TIRs and flow tables: creation, query,
//! change and destruction.

use verbless_prm as prm;
use verbless_prm::{
    AllocTransportDomainIn, CreateFlowGroupIn, CreateFlowTableIn, CreateRqIn, CreateTirIn,
    CreateTisIn, DeleteFlowTableEntryIn, DestroyFlowGroupIn, DestroyFlowTableIn, DestroyRqIn,
    DestroyTirIn, FlowContextAction, FlowDestination, FlowDestinationType, MatchCriteriaEnable,
    ModifyFlowTableIn, ModifyRqIn, ModifyTisIn, QueryFlowGroupIn, QueryFlowTableEntryIn,
    QueryFlowTableIn, QueryRqIn, QueryTirIn, QueryTisIn, RqModifyField, RqState,
    SetFlowTableEntryIn, SetFlowTableRootIn, TableMissAction, TimestampFormat, TirDispType, WqType,
};

use super::rig::{Rig, UMEM, User};
use crate::hca::Refusal;
use crate::profile::Link;

const LINK: Link = Link::Ethernet;
/// The kernel as the sender of commands.
const KERNEL: u16 = 0;

impl Rig {
    pub(super) fn td(&mut self, user: User) -> u32 {
        self.send::<AllocTransportDomainIn>(user.uid, |_| {}).unwrap().transport_domain()
    }

    pub(super) fn tis(
        &mut self,
        user: User,
        td: u32,
        edit: impl FnOnce(&mut CreateTisIn),
    ) -> Result<u32, Refusal> {
        let made = self.send::<CreateTisIn>(user.uid, |input| {
            input.ctx_mut().set_transport_domain(td).set_prio(6);
            edit(input);
        });
        made.map(|output| output.tisn())
    }

    /// An RQ of 16 WQEs of one data segment each, at offset 192 KiB of the user's UMEM.
    pub(super) fn rq(
        &mut self,
        user: User,
        edit: impl FnOnce(&mut CreateRqIn),
    ) -> Result<u32, Refusal> {
        let made = self.send::<CreateRqIn>(user.uid, |input| {
            let context = input.ctx_mut();
            context.set_vsd(true).set_flush_in_error_en(true).set_cqn(user.cq);
            let wq = context.wq_mut();
            wq.set_wq_type(WqType::CYCLIC).set_pd(user.pd);
            wq.set_log_wq_stride(4).set_log_wq_sz(4);
            wq.set_wq_umem_valid(true).set_wq_umem_id(user.umem).set_wq_umem_offset(0x3_0000);
            wq.set_dbr_umem_valid(true).set_dbr_umem_id(user.umem).set_dbr_addr(UMEM - 40);
            edit(input);
        });
        made.map(|output| output.rqn())
    }

    pub(super) fn tir(
        &mut self,
        user: User,
        (td, rq): (u32, u32),
        edit: impl FnOnce(&mut CreateTirIn),
    ) -> Result<u32, Refusal> {
        let made = self.send::<CreateTirIn>(user.uid, |input| {
            input.ctx_mut().set_transport_domain(td).set_inline_rqn(rq);
            edit(input);
        });
        made.map(|output| output.tirn())
    }

    /// A table of 16 entries.
    pub(super) fn table(
        &mut self,
        uid: u16,
        edit: impl FnOnce(&mut CreateFlowTableIn),
    ) -> Result<u32, Refusal> {
        let made = self.send::<CreateFlowTableIn>(uid, |input| {
            input.flow_table_context_mut().set_log_size(4).set_level(1);
            edit(input);
        });
        made.map(|output| output.table_id())
    }

    /// A group of entries 2 to 5 that match a destination MAC.
    pub(super) fn group(
        &mut self,
        (uid, table): (u16, u32),
        edit: impl FnOnce(&mut CreateFlowGroupIn),
    ) -> Result<u32, Refusal> {
        let made = self.send::<CreateFlowGroupIn>(uid, |input| {
            input.set_table_id(table).set_start_flow_index(2).set_end_flow_index(5);
            input.set_match_criteria_enable(MatchCriteriaEnable::OUTER_HEADERS.0);
            let outer = input.match_criteria_mut().outer_headers_mut();
            outer.set_dmac_47_16(u32::MAX).set_dmac_15_0(u16::MAX);
            edit(input);
        });
        made.map(|output| output.group_id())
    }

    /// Sets entry 3, which forwards to a destination.
    pub(super) fn entry(
        &mut self,
        (uid, table, group): (u16, u32, u32),
        to: (FlowDestinationType, u32),
        edit: impl FnOnce(&mut SetFlowTableEntryIn),
    ) -> Result<(), Refusal> {
        let mut list = FlowDestination::zeroed();
        list.set_destination_type(to.0).set_destination_id(to.1);
        self.call::<SetFlowTableEntryIn>(uid, 0, list.as_bytes(), 0, |input| {
            input.set_table_id(table).set_flow_index(3);
            let context = input.flow_context_mut();
            context.set_group_id(group).set_action(FlowContextAction::FWD_DEST.0);
            context.set_destination_list_size(1).set_flow_tag(0x77);
            context.match_value_mut().outer_headers_mut().set_dmac_47_16(0x0200_0000);
            edit(input);
        })
        .map(|_| ())
    }

    fn root(&mut self, op_mod: u16, table: u32) -> Result<(), Refusal> {
        let set = self.call::<SetFlowTableRootIn>(KERNEL, op_mod, &[], 0, |input| {
            input.set_table_id(table);
        });
        set.map(|_| ())
    }
}

fn modify_state(
    rig: &mut Rig,
    user: User,
    rq: u32,
    from: RqState,
    to: RqState,
) -> Result<(), Refusal> {
    rig.send::<ModifyRqIn>(user.uid, |input| {
        input.set_rqn(rq).set_rq_state(from).ctx_mut().set_state(to);
    })
    .map(|_| ())
}

fn state(rig: &mut Rig, user: User, rq: u32) -> RqState {
    let output = rig.send::<QueryRqIn>(user.uid, |input| {
        input.set_rqn(rq);
    });
    output.unwrap().rq_context().state()
}

#[test]
fn create_rq_refuses_each_invalid_field() {
    type Edit = fn(&mut CreateRqIn);
    macro_rules! context {
        ($set:ident($value:expr)) => {
            |input| {
                input.ctx_mut().$set($value);
            }
        };
    }
    macro_rules! wq {
        ($set:ident($value:expr)) => {
            |input| {
                input.ctx_mut().wq_mut().$set($value);
            }
        };
    }
    let cases: &[(Edit, Refusal)] = &[
        (context!(set_state(RqState::RDY)), Refusal::RqBegin),
        (context!(set_hairpin(true)), Refusal::Unsupported),
        (context!(set_scatter_fcs(true)), Refusal::Unsupported),
        (context!(set_delay_drop_en(true)), Refusal::Unsupported),
        (context!(set_counter_set_id(1)), Refusal::NoSuchCounter),
        (context!(set_ts_format(TimestampFormat::REAL_TIME)), Refusal::TimestampFormat),
        (context!(set_cqn(1)), Refusal::NoSuchCq),
        (context!(set_mem_rq_type(prm::MemRqType::RMP)), Refusal::NoSuchSrq),
        (context!(set_mem_rq_type(prm::MemRqType(2))), Refusal::Unsupported),
        (wq!(set_wq_signature(true)), Refusal::Unsupported),
        (wq!(set_lwm(1)), Refusal::Unsupported),
        (wq!(set_wq_type(WqType::LINKED_LIST)), Refusal::WqShape),
        (wq!(set_log_wq_stride(3)), Refusal::WqShape),
        (wq!(set_log_wq_stride(10)), Refusal::WqShape),
        (wq!(set_log_wq_sz(16)), Refusal::WqSize),
        (wq!(set_wq_umem_offset(UMEM - 64)), Refusal::UmemBounds),
        (wq!(set_pd(0)), Refusal::NoSuchPd),
        (wq!(set_wq_umem_id(0)), Refusal::NoSuchUmem),
        (wq!(set_wq_umem_offset(8)), Refusal::BufferMisaligned),
        (wq!(set_dbr_umem_id(0)), Refusal::NoSuchUmem),
        (wq!(set_dbr_addr(UMEM - 12)), Refusal::RecordMisaligned),
    ];
    let mut rig = Rig::up(LINK);
    let user = rig.user();
    let before = rig.counts();
    for (index, (edit, refusal)) in cases.iter().enumerate() {
        assert_eq!(rig.rq(user, edit), Err(*refusal), "case {index}");
    }
    assert_eq!(rig.counts(), before);
}

#[test]
fn rq_leaves_err_only_to_rst() {
    use RqState as S;
    let mut rig = Rig::up(LINK);
    let user = rig.user();
    let all = [S::RST, S::RDY, S::ERR];
    for from in all {
        for to in all {
            let rq = rig.rq(user, |_| {}).unwrap();
            if from != S::RST {
                modify_state(&mut rig, user, rq, S::RST, from).unwrap();
            }
            let legal = (from, to) != (S::ERR, S::RDY);
            assert_eq!(
                modify_state(&mut rig, user, rq, from, to).is_ok(),
                legal,
                "{from:?} to {to:?}"
            );
            assert_eq!(state(&mut rig, user, rq), if legal { to } else { from });
            let wrong = if from == S::RST { S::ERR } else { S::RST };
            let now = state(&mut rig, user, rq);
            if now != wrong {
                assert_eq!(modify_state(&mut rig, user, rq, wrong, S::RST), Err(Refusal::RqState));
            }
        }
    }
}

#[test]
fn only_vlan_stripping_of_an_rq_is_modifiable() {
    let mut rig = Rig::up(LINK);
    let user = rig.user();
    let rq = rig.rq(user, |_| {}).unwrap();
    let mut modify = |select, edit: fn(&mut prm::RqContext)| {
        rig.send::<ModifyRqIn>(user.uid, |input| {
            edit(input.set_rqn(rq).set_modify_bitmask(select).ctx_mut());
        })
        .map(|_| ())
    };
    assert_eq!(modify(2, |_| {}), Ok(()));
    assert_eq!(modify(1, |context| _ = context.wq_mut().set_lwm(3)), Err(Refusal::Unsupported));
    assert_eq!(modify(4, |context| _ = context.set_scatter_fcs(true)), Err(Refusal::Unsupported));
    assert_eq!(modify(8, |context| _ = context.set_counter_set_id(1)), Err(Refusal::Unsupported));
    assert_eq!(modify(0x10, |_| {}), Err(Refusal::RqField));
    // An unselected field is ignored, and an equal value changes nothing.
    let all = |context: &mut prm::RqContext| {
        context.set_scatter_fcs(true).set_counter_set_id(1).wq_mut().set_lwm(3);
    };
    assert_eq!((modify(0, all), modify(0xd, |_| {})), (Ok(()), Ok(())));
    let context = rig.send::<QueryRqIn>(user.uid, |input| {
        input.set_rqn(rq);
    });
    assert!(!context.unwrap().rq_context().vsd());
}

#[test]
fn vlan_stripping_needs_vlan_cap() {
    let mut rig = Rig::up(LINK);
    let user = rig.user();
    let strips = |rig: &mut Rig| rig.rq(user, |it| _ = it.ctx_mut().set_vsd(false));
    strips(&mut rig).expect("the device has vlan_cap");
    rig.locked.functions[0].hca.caps.ethernet_mut().set_vlan_cap(false);
    assert_eq!(strips(&mut rig), Err(Refusal::Unsupported));
    let rq = rig.rq(user, |_| {}).expect("an RQ that keeps the tags");
    let mut modify = |vsd| {
        let changed = rig.send::<ModifyRqIn>(user.uid, |input| {
            input.set_rqn(rq).set_modify_bitmask(RqModifyField::VSD.0).ctx_mut().set_vsd(vsd);
        });
        changed.map(drop)
    };
    assert_eq!([true, false].map(&mut modify), [Ok(()), Err(Refusal::Unsupported)]);
}

#[test]
fn tis_and_tir_need_own_domain_and_direct_rq() {
    let mut rig = Rig::up(LINK);
    let (user, other) = (rig.user(), rig.user());
    let (td, rq) = (rig.td(user), rig.rq(user, |_| {}).unwrap());
    let foreign = rig.td(other);
    assert_eq!(rig.tis(user, foreign, |_| {}), Err(Refusal::NoSuchTd));
    assert_eq!(rig.tir(user, (foreign, rq), |_| {}), Err(Refusal::NoSuchTd));
    assert_eq!(rig.tir(user, (td, rq + 100), |_| {}), Err(Refusal::NoSuchRq));
    let spread = |input: &mut CreateTirIn| _ = input.ctx_mut().set_disp_type(TirDispType::INDIRECT);
    assert_eq!(rig.tir(user, (td, rq), spread), Err(Refusal::Unsupported));
    let (tis, tir) = (rig.tis(user, td, |_| {}).unwrap(), rig.tir(user, (td, rq), |_| {}).unwrap());
    let asked = rig.send::<QueryTisIn>(user.uid, |input| _ = input.set_tisn(tis)).unwrap();
    assert_eq!((asked.tis_context().prio(), asked.tis_context().transport_domain()), (6, td));
    let asked = rig.send::<QueryTirIn>(user.uid, |input| _ = input.set_tirn(tir)).unwrap();
    assert_eq!(asked.tir_context().inline_rqn(), rq);
    let asked = rig.send::<QueryTirIn>(other.uid, |input| _ = input.set_tirn(tir));
    assert_eq!(asked.err(), Some(Refusal::NoSuchTir));
    let destroyed = rig.send::<DestroyRqIn>(user.uid, |input| _ = input.set_rqn(rq));
    assert_eq!(destroyed.err(), Some(Refusal::RqInUse));
    rig.send::<DestroyTirIn>(user.uid, |input| _ = input.set_tirn(tir)).unwrap();
    rig.send::<DestroyRqIn>(user.uid, |input| _ = input.set_rqn(rq)).unwrap();
}

#[test]
fn tis_lag_port_must_exist() {
    let refused = Err(Refusal::TisLagPort);
    for (affinity, ports, max, strict) in
        [(false, 0, 0, false), (true, 0, 0, false), (false, 2, 0, true), (true, 2, 2, true)]
    {
        let mut rig = Rig::up(LINK);
        let user = rig.user();
        let td = rig.td(user);
        let general = rig.locked.functions[0].hca.caps.general_mut();
        general.set_lag_tx_port_affinity(affinity).set_num_lag_ports(ports);
        let changed = rig.tis(user, td, |_| {}).expect("a TIS that names no port");
        for port in 0..4 {
            let made = rig.tis(user, td, |it| _ = it.ctx_mut().set_lag_tx_port_affinity(port));
            let modified = rig.send::<ModifyTisIn>(user.uid, |it| {
                it.set_tisn(changed).bitmask_mut().set_lag_tx_port_affinity(true);
                it.ctx_mut().set_lag_tx_port_affinity(port);
            });
            let expected = if port <= max { Ok(()) } else { refused };
            assert_eq!(made.map(drop), expected, "{affinity}, port {port} of {ports}");
            assert_eq!(modified.map(drop), expected, "{affinity}, port {port} of {ports}");
        }
        let set = |it: &mut CreateTisIn| _ = it.ctx_mut().set_strict_lag_tx_port_affinity(true);
        let expected = if strict { Ok(()) } else { refused };
        assert_eq!(rig.tis(user, td, set).map(drop), expected, "strict, of {ports} ports");
        let modified = rig.send::<ModifyTisIn>(user.uid, |it| {
            it.set_tisn(changed).bitmask_mut().set_strict_lag_tx_port_affinity(true);
            it.ctx_mut().set_strict_lag_tx_port_affinity(true).set_prio(2);
        });
        assert_eq!(modified.map(drop), expected, "strict, of {ports} ports");
        let asked = rig.send::<QueryTisIn>(user.uid, |it| _ = it.set_tisn(changed)).unwrap();
        let context = asked.tis_context();
        let has = (context.lag_tx_port_affinity(), context.strict_lag_tx_port_affinity());
        assert_eq!((has, context.prio()), ((max, strict), 6));
    }
}

#[test]
fn sq_uses_one_tis_of_its_owner() {
    let mut rig = Rig::up(LINK);
    let (user, other) = (rig.user(), rig.user());
    let (td, foreign) = (rig.td(user), rig.td(other));
    let tis = rig.tis(user, td, |_| {}).unwrap();
    let foreign = rig.tis(other, foreign, |_| {}).unwrap();
    let mut through = |size, tis| {
        rig.sq(user, |input| _ = input.ctx_mut().set_tis_lst_sz(size).set_tis_num_0(tis))
    };
    assert_eq!(through(1, foreign), Err(Refusal::NoSuchTis));
    assert_eq!(through(2, tis), Err(Refusal::Unsupported));
    through(1, tis).unwrap();
    let destroyed = rig.send::<prm::DestroyTisIn>(user.uid, |input| _ = input.set_tisn(tis));
    assert_eq!(destroyed.err(), Some(Refusal::TisInUse));
}

#[test]
fn sq_with_tis_needs_raw_transmit_right() {
    let mut rig = Rig::up(LINK);
    let uid = rig.uctx_with_caps(2);
    let user = rig.user_of(uid);
    let td = rig.td(user);
    let tis = rig.tis(user, td, |_| {}).unwrap();
    let with_tis = |rig: &mut Rig| {
        rig.sq(user, |input| _ = input.ctx_mut().set_tis_lst_sz(1).set_tis_num_0(tis)).map(|_| ())
    };
    assert_eq!(with_tis(&mut rig), Err(Refusal::RawTransmit));
    assert!(rig.sq(user, |_| {}).is_ok(), "an SQ without a TIS sends nothing");
    rig.locked.functions[0].hca.caps.general_mut().set_uctx_cap(2);
    assert_eq!(with_tis(&mut rig), Ok(()), "the device does not require the right");
}

#[test]
fn rq_holds_q_counter_of_its_owner() {
    let mut rig = Rig::up(LINK);
    let (user, other) = (rig.user(), rig.user());
    let [own, foreign] = [user, other]
        .map(|user| rig.send::<prm::AllocQCounterIn>(user.uid, |_| {}).unwrap().counter_set_id());
    let with = |rig: &mut Rig, counter| {
        rig.rq(user, |input| _ = input.ctx_mut().set_counter_set_id(counter))
    };
    assert_eq!(with(&mut rig, foreign), Err(Refusal::NoSuchCounter));
    with(&mut rig, own).unwrap();
    let freed = rig.send::<prm::DeallocQCounterIn>(user.uid, |input| {
        input.set_counter_set_id(own);
    });
    assert_eq!(freed.err(), Some(Refusal::CounterInUse));
}

#[test]
fn create_flow_table_refuses_each_invalid_field() {
    let mut rig = Rig::up(LINK);
    let uid = rig.user().uid;
    type Edit = fn(&mut CreateFlowTableIn);
    macro_rules! context {
        ($set:ident($value:expr)) => {
            |input| {
                input.flow_table_context_mut().$set($value);
            }
        };
    }
    let cases: &[(Edit, Refusal)] = &[
        (|input| _ = input.set_table_type(prm::FlowTableType::NIC_TX), Refusal::Unsupported),
        (|input| _ = input.set_other_vport(true), Refusal::Unsupported),
        (context!(set_log_size(17)), Refusal::FlowTableSize),
        (context!(set_level(129)), Refusal::FlowTableLevel),
        (context!(set_reformat_en(true)), Refusal::Unsupported),
        (context!(set_sw_owner(true)), Refusal::Unsupported),
        (context!(set_table_miss_action(TableMissAction::SWITCH_DOMAIN)), Refusal::Unsupported),
        (context!(set_table_miss_action(TableMissAction::FWD)), Refusal::NoSuchFlowTable),
    ];
    for (index, (edit, refusal)) in cases.iter().enumerate() {
        assert_eq!(rig.table(uid, edit), Err(*refusal), "case {index}");
    }
    assert_eq!(rig.counts().flow_tables, 0);
    let mut infiniband = Rig::up(Link::Infiniband);
    let refused = infiniband.table(KERNEL, |_| {});
    assert_eq!(refused, Err(Refusal::Unsupported), "InfiniBand ports have no flow tables");
}

#[test]
fn flow_table_miss_needs_table_of_higher_level() {
    let mut rig = Rig::up(LINK);
    let uid = rig.user().uid;
    let miss = |table: u32| {
        move |input: &mut CreateFlowTableIn| {
            let context = input.flow_table_context_mut();
            context.set_table_miss_action(TableMissAction::FWD).set_table_miss_id(table);
        }
    };
    let last = rig.table(uid, |input| _ = input.flow_table_context_mut().set_level(2)).unwrap();
    let first = rig.table(uid, miss(last)).unwrap();
    assert_eq!(rig.table(uid, miss(first)), Err(Refusal::FlowTableLevel), "of the same level");
    let destroy = |rig: &mut Rig, table| {
        rig.send::<DestroyFlowTableIn>(uid, |input| _ = input.set_table_id(table)).map(|_| ())
    };
    assert_eq!(destroy(&mut rig, last), Err(Refusal::FlowTableInUse));
    let mut change = |select, action| {
        rig.send::<ModifyFlowTableIn>(uid, |input| {
            input.set_table_id(first).set_modify_field_select(select);
            input.flow_table_context_mut().set_table_miss_action(action).set_table_miss_id(first);
        })
        .map(|_| ())
    };
    assert_eq!(change(1, TableMissAction::FWD), Err(Refusal::FlowTableLevel));
    assert_eq!(change(0x8000, TableMissAction::DEF), Err(Refusal::Unsupported));
    assert_eq!(change(1, TableMissAction::DEF), Ok(()));
    let asked = rig.send::<QueryFlowTableIn>(uid, |input| _ = input.set_table_id(first)).unwrap();
    assert_eq!(asked.flow_table_context().table_miss_action(), TableMissAction::DEF);
    assert_eq!(destroy(&mut rig, last), Ok(()));
}

#[test]
fn flow_groups_do_not_overlap_and_check_criteria() {
    let mut rig = Rig::up(LINK);
    let uid = rig.user().uid;
    let table = rig.table(uid, |_| {}).unwrap();
    let range = |first, last| {
        move |input: &mut CreateFlowGroupIn| {
            input.set_start_flow_index(first).set_end_flow_index(last);
        }
    };
    let first = rig.group((uid, table), |_| {}).unwrap();
    for (from, to) in [(0, 2), (5, 7), (3, 4), (0, 15), (9, 8), (8, 16)] {
        let refused = rig.group((uid, table), range(from, to));
        assert_eq!(refused, Err(Refusal::FlowGroupRange), "{from} to {to}");
    }
    assert_ne!(rig.group((uid, table), range(6, 15)), Ok(first));
    let more = rig.table(uid, |_| {}).unwrap();
    type Edit = fn(&mut CreateFlowGroupIn);
    let cases: &[Edit] = &[
        |input| _ = input.set_match_criteria_enable(MatchCriteriaEnable::MISC_PARAMETERS.0),
        |input| _ = input.set_group_type(1),
        |input| _ = input.set_match_criteria_enable(0),
        |input| _ = input.match_criteria_mut().outer_headers_mut().set_udp_dport(1),
        |input| _ = input.match_criteria_mut().outer_headers_mut().set_ip_dscp(1),
        |input| _ = input.match_criteria_mut().inner_headers_mut().set_ethertype(1),
    ];
    for (index, edit) in cases.iter().enumerate() {
        assert_eq!(rig.group((uid, more), edit), Err(Refusal::FlowCriteria), "case {index}");
    }
    let asked = rig.send::<QueryFlowGroupIn>(uid, |input| {
        input.set_table_id(table).set_group_id(first);
    });
    let asked = asked.unwrap();
    assert_eq!((asked.start_flow_index(), asked.end_flow_index()), (2, 5));
    assert_eq!(asked.match_criteria().outer_headers().dmac_15_0(), u16::MAX);
}

#[test]
fn flow_entry_needs_group_and_held_destination() {
    let mut rig = Rig::up(LINK);
    let user = rig.user();
    let uid = user.uid;
    let (td, rq) = (rig.td(user), rig.rq(user, |_| {}).unwrap());
    let tir = rig.tir(user, (td, rq), |_| {}).unwrap();
    let table = rig.table(uid, |_| {}).unwrap();
    let group = rig.group((uid, table), |_| {}).unwrap();
    let (entry, to) = ((uid, table, group), (FlowDestinationType::TIR, tir));
    type Edit = fn(&mut SetFlowTableEntryIn);
    let cases: &[(Edit, Refusal)] = &[
        (|input| _ = input.set_flow_index(6), Refusal::FlowIndex),
        (|input| _ = input.flow_context_mut().set_group_id(9), Refusal::NoSuchFlowGroup),
        (|input| _ = input.flow_context_mut().set_action(2), Refusal::FlowAction),
        (|input| _ = input.flow_context_mut().set_action(8), Refusal::FlowAction),
        (|input| _ = input.flow_context_mut().set_action(0), Refusal::FlowAction),
        (|input| _ = input.flow_context_mut().set_destination_list_size(0), Refusal::FlowAction),
        (|input| _ = input.flow_context_mut().set_destination_list_size(2), Refusal::ListTooShort),
        (
            |input| _ = input.flow_context_mut().set_destination_list_size(65),
            Refusal::FlowDestinations,
        ),
        (|input| _ = input.flow_context_mut().set_modify_header_id(1), Refusal::Unsupported),
        (|input| _ = input.set_ignore_flow_level(true), Refusal::Unsupported),
    ];
    for (index, (edit, refusal)) in cases.iter().enumerate() {
        assert_eq!(rig.entry(entry, to, edit), Err(*refusal), "case {index}");
    }
    let none = (FlowDestinationType::TIR, tir + 1);
    assert_eq!(rig.entry(entry, none, |_| {}), Err(Refusal::NoSuchTir));
    let own = (FlowDestinationType::FLOW_TABLE, table);
    assert_eq!(rig.entry(entry, own, |_| {}), Err(Refusal::FlowTableLevel));
    let port = (FlowDestinationType::VPORT, 1);
    assert_eq!(rig.entry(entry, port, |_| {}), Err(Refusal::Unsupported));
    rig.entry(entry, to, |_| {}).unwrap();
    assert_eq!(rig.entry(entry, to, |_| {}), Err(Refusal::FlowEntryExists));
    let asked = rig.call::<QueryFlowTableEntryIn>(uid, 0, &[], 8, |input| {
        input.set_table_id(table).set_flow_index(3);
    });
    let (asked, list) = asked.unwrap();
    assert_eq!((asked.flow_context().flow_tag(), asked.flow_context().group_id()), (0x77, group));
    assert_eq!(FlowDestination::from_prefix(&list).unwrap().destination_id(), tir);
    let destroyed = rig.send::<DestroyTirIn>(uid, |input| _ = input.set_tirn(tir));
    assert_eq!(destroyed.err(), Some(Refusal::TirInUse));
    let gone = rig.send::<DestroyFlowGroupIn>(uid, |input| {
        input.set_table_id(table).set_group_id(group);
    });
    assert_eq!(gone.err(), Some(Refusal::FlowGroupInUse));
    for expected in [None, Some(Refusal::NoSuchFlowEntry)] {
        let deleted = rig.send::<DeleteFlowTableEntryIn>(uid, |input| {
            input.set_table_id(table).set_flow_index(3);
        });
        assert_eq!(deleted.err(), expected);
    }
    rig.send::<DestroyTirIn>(uid, |input| _ = input.set_tirn(tir)).unwrap();
}

#[test]
fn flow_entry_modify_changes_only_selected_fields() {
    let mut rig = Rig::up(LINK);
    let user = rig.user();
    let uid = user.uid;
    let (td, rq) = (rig.td(user), rig.rq(user, |_| {}).unwrap());
    let tir = rig.tir(user, (td, rq), |_| {}).unwrap();
    let table = rig.table(uid, |_| {}).unwrap();
    let group = rig.group((uid, table), |_| {}).unwrap();
    let change = |rig: &mut Rig, mask| {
        rig.call::<SetFlowTableEntryIn>(uid, SetFlowTableEntryIn::MODIFY, &[], 0, |input| {
            input.set_table_id(table).set_flow_index(3).set_modify_enable_mask(mask);
            input.flow_context_mut().set_flow_tag(0x99).set_action(FlowContextAction::DROP.0);
        })
        .map(|_| ())
    };
    assert_eq!(change(&mut rig, 2), Err(Refusal::NoSuchFlowEntry));
    rig.entry((uid, table, group), (FlowDestinationType::TIR, tir), |_| {}).unwrap();
    assert_eq!(change(&mut rig, 0x10), Err(Refusal::Unsupported));
    assert_eq!(change(&mut rig, 1), Err(Refusal::FlowAction), "the entry still has a destination");
    change(&mut rig, 2).unwrap();
    let entry = &rig.locked.functions[0].hca.objects.flow_tables[&table].entries[&3];
    assert_eq!((entry.context.flow_tag(), entry.context.action()), (0x99, 4));
    change(&mut rig, 5).unwrap();
    let entry = &rig.locked.functions[0].hca.objects.flow_tables[&table].entries[&3];
    assert_eq!((entry.to.len(), entry.context.action()), (0, FlowContextAction::DROP.0));
}

#[test]
fn only_kernel_sets_flow_table_root() {
    let mut rig = Rig::up(LINK);
    let user = rig.user();
    let (table, other) = (rig.table(KERNEL, |_| {}).unwrap(), rig.table(KERNEL, |_| {}).unwrap());
    let set = rig.send::<SetFlowTableRootIn>(user.uid, |input| _ = input.set_table_id(table));
    assert_eq!(set.err(), Some(Refusal::KernelOnly));
    assert_eq!(rig.root(0, other + 1), Err(Refusal::NoSuchFlowTable));
    let root = |rig: &Rig| rig.locked.functions[0].hca.objects.flow_root;
    rig.root(SetFlowTableRootIn::CONNECT, table).unwrap();
    assert_eq!(root(&rig), Some(table));
    rig.root(SetFlowTableRootIn::DISCONNECT, other).unwrap();
    assert_eq!(root(&rig), Some(table), "the table is not the root");
    rig.root(SetFlowTableRootIn::DISCONNECT, table).unwrap();
    assert_eq!(root(&rig), None);
    rig.root(SetFlowTableRootIn::CONNECT, table).unwrap();
    rig.send::<DestroyFlowTableIn>(KERNEL, |input| _ = input.set_table_id(table)).unwrap();
    assert_eq!(root(&rig), None, "the destroyed table is no root");
}
