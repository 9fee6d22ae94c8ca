//! Features of queues that need a capability: each is accepted with it and refused without.

use verbless_prm::{
    CqModifyField, CqPeriodMode, CqeSize, CreateCqIn, CreateMkeyIn, CreateQpIn, CreateRmpIn,
    EndPaddingMode, HcaCap, MiniCqeFormat, MkeyContext, ModifyCqIn, ModifyTirIn,
    ScatterToCqeRequester, ScatterToCqeResponder, TimestampFormat, TimestampFormatCap, WqType,
};

use super::rig::{Rig, User, pages};
use crate::hca::Refusal;
use crate::profile::Link;

type Capability = fn(&mut HcaCap, bool);
type Case<I> = (&'static str, Capability, SetField<I>);
type SetField<I> = fn(&mut I);
type Create<I> = fn(&mut Rig, User, SetField<I>) -> Result<u32, Refusal>;

/// Creates an object with each feature, with its capability and without.
fn each<I>(cases: &[Case<I>], create: Create<I>) {
    let mut rig = Rig::up(Link::Ethernet);
    let user = rig.user();
    let plain = *rig.locked.functions[0].hca.caps.general();
    for &(name, capability, feature) in cases {
        for offered in [false, true] {
            let general = rig.locked.functions[0].hca.caps.general_mut();
            *general = plain;
            capability(general, offered);
            let refused = create(&mut rig, user, feature).err();
            assert_eq!(refused != Some(Refusal::Unsupported), offered, "{name}: {refused:?}");
        }
    }
}

#[test]
fn cq_features_follow_capabilities() {
    let cases: &[Case<CreateCqIn>] = &[
        ("oi", |caps, on| _ = caps.set_cq_oi(on), |it| _ = it.cq_context_mut().set_oi(true)),
        ("apu_cq", |caps, on| _ = caps.set_apu(on), |it| _ = it.cq_context_mut().set_apu_cq(true)),
        (
            "scqe_break_moderation_en",
            |caps, on| _ = caps.set_scqe_break_moderation(on),
            |it| _ = it.cq_context_mut().set_scqe_break_moderation_en(true),
        ),
        (
            "cqe_comp_en",
            |caps, on| _ = caps.set_cqe_compression(on),
            |it| _ = it.cq_context_mut().set_cqe_comp_en(true),
        ),
        (
            "mini_cqe_res_format",
            |caps, on| _ = caps.set_cqe_compression(on),
            |it| _ = it.cq_context_mut().set_mini_cqe_res_format(MiniCqeFormat::CHECKSUM),
        ),
        (
            "cqe_comp_en of 128 bytes",
            |caps, on| _ = caps.set_cqe_compression(true).set_cqe_compression_128(on),
            |it| {
                let context = it.cq_context_mut().set_cqe_comp_en(true);
                _ = context.set_cqe_sz(verbless_prm::CqeSize::BYTES_128);
            },
        ),
        (
            "mini CQEs with the flow tag",
            |caps, on| _ = caps.set_cqe_compression(true).set_mini_cqe_resp_flow_tag(on),
            |it| {
                let context = it.cq_context_mut().set_cqe_comp_en(true);
                _ = context.set_mini_cqe_res_format(MiniCqeFormat::FLOW_TAG_STRIDE_INDEX);
            },
        ),
        (
            "mini CQEs with the stride index",
            |caps, on| _ = caps.set_cqe_compression(true).set_mini_cqe_resp_stride_index(on),
            |it| {
                let context = it.cq_context_mut().set_cqe_comp_en(true);
                _ = context.set_mini_cqe_res_format(MiniCqeFormat::CHECKSUM_STRIDE_INDEX);
            },
        ),
        (
            "cq_period",
            |caps, on| _ = caps.set_cq_moderation(on),
            |it| _ = it.cq_context_mut().set_cq_period(1),
        ),
        (
            "cq_max_count",
            |caps, on| _ = caps.set_cq_moderation(on),
            |it| _ = it.cq_context_mut().set_cq_max_count(1),
        ),
        (
            "cq_period_mode",
            |caps, on| _ = caps.set_cq_period_start_from_cqe(on),
            |it| _ = it.cq_context_mut().set_cq_period_mode(CqPeriodMode::START_FROM_CQE),
        ),
        (
            "cq_timestamp_format",
            |caps, on| {
                caps.set_sq_ts_format(match on {
                    true => TimestampFormatCap::FREE_RUNNING_AND_REAL_TIME,
                    false => TimestampFormatCap::FREE_RUNNING,
                });
            },
            |it| _ = it.cq_context_mut().set_cq_timestamp_format(TimestampFormat::REAL_TIME),
        ),
    ];
    each(cases, |rig, user, feature| rig.cq(user, feature));
    let mut rig = Rig::up(Link::Ethernet);
    let user = rig.user();
    let made = rig.cq(user, |it| _ = it.cq_context_mut().set_cq_period_mode(CqPeriodMode(2)));
    assert_eq!(made, Err(Refusal::Unsupported), "an undefined mode");
}

#[test]
fn qp_features_follow_capabilities() {
    let cases: &[Case<CreateQpIn>] = &[
        (
            "block_lb_mc",
            |caps, on| _ = caps.set_block_lb_mc(on),
            |it| _ = it.qpc_mut().set_block_lb_mc(true),
        ),
        (
            "drain_sigerr",
            |caps, on| _ = caps.set_drain_sigerr(on),
            |it| _ = it.qpc_mut().set_drain_sigerr(true),
        ),
        (
            "isolate_vl_tc",
            |caps, on| _ = caps.set_isolate_vl_tc_new(on),
            |it| _ = it.qpc_mut().set_isolate_vl_tc(true),
        ),
        (
            "end_padding_mode",
            |caps, on| _ = caps.set_end_pad(on),
            |it| _ = it.qpc_mut().set_end_padding_mode(EndPaddingMode(1)),
        ),
        (
            "cs_req",
            |caps, on| _ = caps.set_sctr_data_cqe(on),
            |it| _ = it.qpc_mut().set_cs_req(ScatterToCqeRequester::UP_TO_32B),
        ),
        (
            "cs_res",
            |caps, on| _ = caps.set_sctr_data_cqe(on),
            |it| _ = it.qpc_mut().set_cs_res(ScatterToCqeResponder::UP_TO_32B),
        ),
        ("cd_master", |caps, on| _ = caps.set_cd(on), |it| _ = it.qpc_mut().set_cd_master(true)),
        (
            "cd_slave_send",
            |caps, on| _ = caps.set_cd(on),
            |it| _ = it.qpc_mut().set_cd_slave_send(true),
        ),
        (
            "cd_slave_receive",
            |caps, on| _ = caps.set_cd(on),
            |it| _ = it.qpc_mut().set_cd_slave_receive(true),
        ),
        (
            "deth_sqpn",
            |caps, on| _ = caps.set_set_deth_sqpn(on),
            |it| _ = it.qpc_mut().set_deth_sqpn(1),
        ),
        (
            "req_e2e_credit_mode",
            |caps, on| _ = caps.set_qp_packet_based(on),
            |it| _ = it.qpc_mut().set_req_e2e_credit_mode(1),
        ),
    ];
    each(cases, |rig, user, feature| rig.qp(user, feature));
    let mut rig = Rig::up(Link::Ethernet);
    let user = rig.user();
    for unknown in [1, 0x12] {
        let requester = ScatterToCqeRequester(unknown);
        let made = rig.qp(user, |it| _ = it.qpc_mut().set_cs_req(requester));
        assert_eq!(made, Err(Refusal::Unsupported), "{unknown:#x} of the requester");
        let responder = ScatterToCqeResponder(unknown | 0x10);
        let made = rig.qp(user, |it| _ = it.qpc_mut().set_cs_res(responder));
        assert_eq!(made, Err(Refusal::Unsupported), "{unknown:#x} of the responder");
    }
}

#[test]
fn rmp_cyclic_wqe_format_follows_capability() {
    let cases: &[Case<CreateRmpIn>] = &[(
        "basic_cyclic_rcv_wqe",
        |caps, on| _ = caps.set_basic_cyclic_rcv_wqe(on),
        |it| _ = it.ctx_mut().set_basic_cyclic_rcv_wqe(true),
    )];
    each(cases, |rig, user, feature| rmp(rig, user, WqType::CYCLIC, feature));
    let mut rig = Rig::up(Link::Ethernet);
    let user = rig.user();
    rig.locked.functions[0].hca.caps.general_mut().set_basic_cyclic_rcv_wqe(true);
    let linked = rmp(&mut rig, user, WqType::LINKED_LIST, |it| {
        it.ctx_mut().set_basic_cyclic_rcv_wqe(true);
    });
    assert_eq!(linked, Err(Refusal::Unsupported), "without next segments there is no linked list");
    for (kind, expected) in [(2, Err(Refusal::Unsupported)), (3, Err(Refusal::Unsupported))] {
        let made = rmp(&mut rig, user, WqType(kind), |_| {});
        assert_eq!(made.map(drop), expected, "{kind}");
    }
    let log = rig.locked.functions[0].hca.caps.general().log_max_srq_sz();
    for (more, expected) in [(0, Refusal::ListTooShort), (1, Refusal::QpSize)] {
        let size = log + more;
        let made = rig.call::<CreateRmpIn>(0, 0, &pages(1), 0, |it| {
            let wq = it.ctx_mut().wq_mut();
            wq.set_wq_type(WqType::CYCLIC).set_pd(user.pd).set_log_wq_sz(size);
            wq.set_log_wq_stride(6);
        });
        assert_eq!(made.map(|_| ()), Err(expected), "{size}");
    }
}

fn rmp(
    rig: &mut Rig,
    user: User,
    kind: WqType,
    feature: fn(&mut CreateRmpIn),
) -> Result<u32, Refusal> {
    let made = rig.call::<CreateRmpIn>(0, 0, &pages(1), 0, |it| {
        let wq = it.ctx_mut().wq_mut();
        wq.set_wq_type(kind).set_pd(user.pd).set_log_wq_sz(2).set_log_wq_stride(5);
        feature(it);
    })?;
    Ok(made.0.rmpn())
}

#[test]
fn mkey_features_follow_capabilities() {
    let cases: &[Case<CreateMkeyIn>] = &[
        ("pg_access", |caps, on| _ = caps.set_pg(on), |it| _ = it.set_pg_access(true)),
        (
            "a",
            |caps, on| _ = caps.set_atomic(on),
            |it| _ = it.memory_key_mkey_entry_mut().set_a(true),
        ),
        (
            "crossed_side_mkey",
            |caps, on| _ = caps.set_crossing_vhca_mkey(on),
            |it| _ = it.memory_key_mkey_entry_mut().set_crossed_side_mkey(true),
        ),
        (
            "relaxed_ordering_read",
            |caps, on| {
                caps.set_relaxed_ordering_read(on).set_relaxed_ordering_read_pci_enabled(false);
            },
            |it| _ = it.memory_key_mkey_entry_mut().set_relaxed_ordering_read(true),
        ),
        (
            "relaxed_ordering_read as PCI allows",
            |caps, on| {
                caps.set_relaxed_ordering_read(false).set_relaxed_ordering_read_pci_enabled(on);
            },
            |it| _ = it.memory_key_mkey_entry_mut().set_relaxed_ordering_read(true),
        ),
    ];
    each(cases, |rig, user, feature| rig.mkey(user, feature));
    let mut rig = Rig::up(Link::Ethernet);
    let user = rig.user();
    let direct = rig.mkey(user, |it| _ = it.set_data_direct(true));
    assert_eq!(direct, Err(Refusal::Unsupported));
    let chosen = rig.mkey(user, |it| _ = it.set_input_mkey_index(1));
    assert_eq!(chosen, Err(Refusal::Unsupported));
}

#[test]
fn cq_modify_fields_follow_capabilities() {
    let fields: [(CqModifyField, Capability); 5] = [
        (CqModifyField::PERIOD, |caps, on| _ = caps.set_cq_moderation(on)),
        (CqModifyField::MAX_COUNT, |caps, on| _ = caps.set_cq_moderation(on)),
        (CqModifyField::OVERRUN_IGNORE, |caps, on| _ = caps.set_cq_oi(on)),
        (CqModifyField::EQN, |caps, on| _ = caps.set_cq_eq_remap(on)),
        (CqModifyField::PERIOD_MODE, |caps, on| _ = caps.set_cq_period_mode_modify(on)),
    ];
    let mut rig = Rig::up(Link::Ethernet);
    let user = rig.user();
    let modify = |rig: &mut Rig, select: u32, mode: u8| {
        rig.send::<ModifyCqIn>(user.uid, |it| {
            it.set_cqn(user.cq).set_modify_field_select(select);
            let context = it.cq_context_mut();
            context.set_c_eqn_or_apu_element(0x10).set_cq_period(5).set_cq_max_count(6);
            context.set_oi(true).set_cq_period_mode(CqPeriodMode(mode));
        })
        .map(drop)
    };
    let context = |rig: &Rig| rig.locked.functions[0].hca.objects.cqs[&user.cq].context;
    for (field, capability) in fields {
        for (offered, expected) in [(false, Err(Refusal::CqField)), (true, Ok(()))] {
            capability(rig.locked.functions[0].hca.caps.general_mut(), offered);
            let before = context(&rig);
            assert_eq!(modify(&mut rig, field.0, 1), expected, "{field:?}");
            let changed = context(&rig).as_bytes() != before.as_bytes();
            assert_eq!(changed, offered && field != CqModifyField::EQN, "{field:?}");
        }
    }
    let after = context(&rig);
    assert_eq!((after.cq_period(), after.cq_max_count(), after.oi()), (5, 6, true));
    assert_eq!(after.cq_period_mode(), CqPeriodMode(1));
    assert_eq!(modify(&mut rig, 0x20, 1), Err(Refusal::CqField), "there is no such field");
    let unknown = modify(&mut rig, CqModifyField::PERIOD_MODE.0, 2);
    assert_eq!(unknown, Err(Refusal::Unsupported));
    rig.locked.functions[0].hca.caps.general_mut().set_cq_period_start_from_cqe(false);
    let from =
        |rig: &mut Rig, mode: CqPeriodMode| modify(rig, CqModifyField::PERIOD_MODE.0, mode.0);
    assert_eq!(from(&mut rig, CqPeriodMode::START_FROM_CQE), Err(Refusal::Unsupported));
    assert_eq!(from(&mut rig, CqPeriodMode::START_FROM_EQE), Ok(()));
}

#[test]
fn unmodelled_tir_fields_cannot_be_modified() {
    let mut rig = Rig::up(Link::Ethernet);
    let user = rig.user();
    let td = rig.td(user);
    let rqn = rig.rq(user, |_| {}).unwrap();
    let tirn = rig.tir(user, (td, rqn), |_| {}).unwrap();
    let of_a_tir: [fn(&mut ModifyTirIn); 4] = [
        |it| _ = it.bitmask_mut().set_hash(true),
        |it| _ = it.bitmask_mut().set_packet_merge(true),
        |it| _ = it.bitmask_mut().set_indirect_table(true),
        |it| _ = it.bitmask_mut().set_tunneled_offload_en(true),
    ];
    for (index, select) in of_a_tir.into_iter().enumerate() {
        let modified = rig.send::<ModifyTirIn>(user.uid, |it| {
            it.set_tirn(tirn);
            select(it);
        });
        assert_eq!(modified.map(drop), Err(Refusal::Unsupported), "field {index} of a TIR");
    }
}

#[test]
fn inline_cqe_size_follows_qp_context() {
    let mut rig = Rig::up(Link::Ethernet);
    let user = rig.user();
    let of_128_bytes = |it: &mut CreateCqIn| {
        it.cq_context_mut().set_cqe_sz(CqeSize::BYTES_128).set_log_cq_size(2);
    };
    let cq_128 = rig.cq(user, of_128_bytes).unwrap();
    for (requester, responder, expected) in [
        (ScatterToCqeRequester::DISABLED, ScatterToCqeResponder::DISABLED, (0, 0)),
        (ScatterToCqeRequester::UP_TO_32B, ScatterToCqeResponder::UP_TO_64B, (32, 64)),
        (ScatterToCqeRequester::UP_TO_64B, ScatterToCqeResponder::UP_TO_32B, (64, 32)),
    ] {
        let mut made = |send, receive| {
            rig.qp(user, |it| {
                let context = it.qpc_mut().set_cs_req(requester).set_cs_res(responder);
                context.set_cqn_snd(send).set_cqn_rcv(receive);
            })
        };
        let qpn = made(cq_128, cq_128).unwrap();
        // UP_TO_64B needs 128-byte CQEs in the CQ of that side.
        let refused = |inline_bytes: u32| (inline_bytes == 64).then_some(Refusal::QpInlineCqe);
        assert_eq!(made(user.cq, cq_128).err(), refused(expected.0), "{requester:?}");
        assert_eq!(made(cq_128, user.cq).err(), refused(expected.1), "{responder:?}");
        let qp = &rig.locked.functions[0].hca.objects.qps[&qpn];
        let inline = (qp.requester_inline, qp.responder_inline);
        assert_eq!((u32::from(inline.0), u32::from(inline.1)), expected, "{requester:?}");
    }
}

#[test]
fn reconfigure_key_requires_umr_en() {
    let mut rig = Rig::up(Link::Ethernet);
    let user = rig.user();
    let [fixed, key] = [false, true].map(|umr_en| umr_mkey(&mut rig, user, umr_en));
    let hca = &mut rig.locked.functions[0].hca;
    let mut change = MkeyContext::zeroed();
    change.set_pd(user.pd + 1).set_lr(true);
    assert!(!crate::hca::reconfigure_key(hca, fixed, &change), "umr_en is clear");
    assert!(!crate::hca::reconfigure_key(hca, key + fixed, &change), "no mkey has this index");
    assert!(crate::hca::reconfigure_key(hca, key, &change), "umr_en is set");
}

/// An mkey with this `umr_en`.
fn umr_mkey(rig: &mut Rig, user: User, umr_en: bool) -> u32 {
    let mkey = rig.mkey(user, |it| _ = it.memory_key_mkey_entry_mut().set_umr_en(umr_en));
    mkey.unwrap()
}

#[test]
fn reconfigure_key_sets_pd_and_access_flags() {
    let mut rig = Rig::up(Link::Ethernet);
    let user = rig.user();
    let key = umr_mkey(&mut rig, user, true);
    let hca = &mut rig.locked.functions[0].hca;
    let change = |flags: u32| {
        let on = |bit: u32| flags >> bit & 1 != 0;
        let mut change = MkeyContext::zeroed();
        change.set_pd(user.pd + 1).set_lr(on(0)).set_lw(on(1)).set_rr(on(2)).set_rw(on(3));
        change.set_a(on(4)).set_relaxed_ordering_write(on(5)).set_relaxed_ordering_read(on(6));
        change
    };
    for bit in 0..7 {
        assert!(crate::hca::reconfigure_key(hca, key, &change(1 << bit)));
        let mkey = &hca.objects.mkeys[&key];
        let (context, access) = (&mkey.context, &mkey.access);
        let flags = [context.lr(), context.lw(), context.rr(), context.rw(), context.a()];
        let relaxed = [context.relaxed_ordering_write(), context.relaxed_ordering_read()];
        let expected: [bool; 7] = std::array::from_fn(|at| at == bit);
        assert_eq!([&flags[..], &relaxed].concat(), expected, "bit {bit}");
        let held = [access.local_read, access.local_write, access.remote_read, access.remote_write];
        assert_eq!([&held[..], &[access.atomic]].concat(), expected[..5], "bit {bit}");
        assert_eq!((mkey.pd, context.pd()), (user.pd + 1, user.pd + 1));
    }
}
