//! Creation of QPs.

use verbless_prm::{
    CreateQpIn, DestroyQpIn, Qp2errIn, Qp2rstIn, QpContextExtension, QueryQpIn, RqType,
    Rst2initQpIn, ScatterToCqeResponder, ServiceType, TimestampFormat,
};

use super::rig::{Rig, UMEM};
use crate::engine;
use crate::hca::Refusal;
use crate::hca::registry::ObjectKind;
use crate::profile::{Link, Profile};

#[test]
fn qp_without_queues_needs_no_cq_or_memory() {
    let mut rig = Rig::up(Link::Infiniband);
    let user = rig.user();
    // As DPDK creates it and DevX passes it: both UMEMs are flagged valid.
    let (made, _) = rig
        .call::<CreateQpIn>(user.uid, 0, &[], 0, |input| {
            input.set_wq_umem_valid(true);
            let context = input.qpc_mut();
            context.set_st(ServiceType::RC).set_pd(user.pd).set_rq_type(RqType::NONE);
            context.set_no_sq(true).set_dbr_umem_valid(true);
        })
        .unwrap();
    let state = |rig: &mut Rig| {
        let query = rig.send::<QueryQpIn>(user.uid, |input| _ = input.set_qpn(made.qpn()));
        query.unwrap().qpc().state()
    };
    assert_eq!(state(&mut rig), verbless_prm::QpState::RST);
    rig.send::<Rst2initQpIn>(user.uid, |input| {
        input.set_qpn(made.qpn()).qpc_mut().primary_address_path_mut().set_vhca_port_num(1);
    })
    .unwrap();
    assert_eq!(state(&mut rig), verbless_prm::QpState::INIT);
    rig.send::<Qp2errIn>(user.uid, |input| _ = input.set_qpn(made.qpn())).unwrap();
    while engine::step(&mut rig.locked) {}
    rig.send::<Qp2rstIn>(user.uid, |input| _ = input.set_qpn(made.qpn())).unwrap();
    rig.send::<DestroyQpIn>(user.uid, |input| _ = input.set_qpn(made.qpn())).unwrap();
    // A QP with a queue needs both CQs.
    let without = rig.qp(user, |input| _ = input.qpc_mut().set_cqn_snd(0));
    assert_eq!(without, Err(Refusal::NoSuchCq));
}

#[test]
fn create_qp_refuses_each_invalid_field() {
    type Edit = fn(&mut CreateQpIn);
    let cases: &[(Edit, Refusal)] = &[
        (
            |input| {
                input.set_input_qpn(5);
            },
            Refusal::QpNumber,
        ),
        (
            |input| {
                input.set_opt_param_mask(2);
            },
            Refusal::QpOptional,
        ),
        (
            |input| {
                input.set_ece(1);
            },
            Refusal::Unsupported,
        ),
        (
            |input| {
                input.set_cmd_on_behalf(true).set_function_id(1);
            },
            Refusal::NoSuchFunction,
        ),
        (
            |input| {
                input.set_qpc_ext(true);
            },
            Refusal::ListTooShort,
        ),
        (
            |input| {
                input.qpc_mut().set_st(ServiceType::DCI);
            },
            Refusal::TransportService,
        ),
        (
            |input| {
                input.qpc_mut().set_st(ServiceType(0x77));
            },
            Refusal::TransportService,
        ),
        (
            |input| {
                input.qpc_mut().set_pm_state(verbless_prm::PathMigrationState::ARMED);
            },
            Refusal::QpMigration,
        ),
        (
            |input| {
                input.qpc_mut().set_pd(1);
            },
            Refusal::NoSuchPd,
        ),
        (
            |input| {
                input.qpc_mut().set_uar_page(1);
            },
            Refusal::NoSuchUar,
        ),
        (
            |input| {
                input.qpc_mut().set_cqn_snd(1);
            },
            Refusal::NoSuchCq,
        ),
        (
            |input| {
                input.qpc_mut().set_cqn_rcv(1);
            },
            Refusal::NoSuchCq,
        ),
        (
            |input| {
                input.qpc_mut().set_counter_set_id(7);
            },
            Refusal::NoSuchCounter,
        ),
        (
            |input| {
                input.qpc_mut().set_rq_type(RqType::SRQ);
            },
            Refusal::NoSuchSrq,
        ),
        (
            |input| {
                input.qpc_mut().set_rq_type(RqType(7));
            },
            Refusal::Unsupported,
        ),
        (
            |input| {
                input.qpc_mut().set_log_rq_stride(6);
            },
            Refusal::QpStride,
        ),
        (
            |input| {
                input.set_wq_umem_id(1);
            },
            Refusal::NoSuchUmem,
        ),
        (
            |input| {
                input.set_wq_umem_offset(UMEM - 64);
            },
            Refusal::UmemBounds,
        ),
        (
            |input| {
                input.set_wq_umem_offset(u64::MAX - 63);
            },
            Refusal::UmemBounds,
        ),
        (
            |input| {
                input.set_wq_umem_offset(32);
            },
            Refusal::BufferMisaligned,
        ),
        (
            |input| {
                input.qpc_mut().set_log_rq_size(0).set_log_rq_stride(1);
            },
            Refusal::BufferMisaligned,
        ),
        (
            |input| {
                input.set_wq_umem_valid(false);
            },
            Refusal::ListTooShort,
        ),
        (
            |input| {
                input.qpc_mut().set_dbr_umem_id(1);
            },
            Refusal::NoSuchUmem,
        ),
        (
            |input| {
                input.qpc_mut().set_dbr_addr(UMEM);
            },
            Refusal::UmemBounds,
        ),
        (
            |input| {
                input.qpc_mut().set_dbr_addr(12);
            },
            Refusal::RecordMisaligned,
        ),
        (
            |input| {
                input.qpc_mut().set_wq_signature(true);
            },
            Refusal::Unsupported,
        ),
        (
            |input| {
                input.qpc_mut().set_cd_master(true);
            },
            Refusal::Unsupported,
        ),
        (
            |input| {
                input.qpc_mut().set_ts_format(TimestampFormat::REAL_TIME);
            },
            Refusal::TimestampFormat,
        ),
        (
            |input| {
                input.qpc_mut().set_cs_res(ScatterToCqeResponder(3));
            },
            Refusal::Unsupported,
        ),
        (
            |input| {
                input.qpc_mut().set_packet_pacing_rate_limit_index(1);
            },
            Refusal::Unsupported,
        ),
    ];
    let mut rig = Rig::up(Link::Infiniband);
    let user = rig.user();
    for (number, (edit, expected)) in cases.iter().enumerate() {
        assert_eq!(rig.qp(user, edit), Err(*expected), "case {number}");
    }
    assert_eq!(rig.counts().qps, 0);
    let hca = &rig.locked.functions[0].hca;
    assert!(!hca.objects.is_used(ObjectKind::Cq, user.cq), "a refused QP uses it");
    rig.qp(user, |_| {}).unwrap();
}

#[test]
fn qpc_extension_enables_mmo_where_supported() {
    let make = |profile: &str, edit: fn(&mut QpContextExtension), service| {
        let mut rig = Rig::up_of(Profile::load(profile).expect("the profile is built in"));
        let user = rig.user();
        let mut extension = QpContextExtension::zeroed();
        edit(&mut extension);
        let made = rig.qp_with(user, extension.as_bytes(), |input| {
            input.set_qpc_ext(true).qpc_mut().set_st(service);
        });
        made.map(|qpn| rig.locked.functions[0].hca.objects.qps[&qpn].mmo)
    };
    let mmo = |extension: &mut QpContextExtension| {
        extension.set_mmo(true);
    };
    let other = |extension: &mut QpContextExtension| {
        extension.set_mmo(true).set_vl15(true);
    };
    assert_eq!(make("bluefield3", mmo, ServiceType::RC), Ok(true));
    assert_eq!(make("bluefield3", |_| {}, ServiceType::RC), Ok(false));
    assert_eq!(make("bluefield3", other, ServiceType::RC), Err(Refusal::Unsupported));
    assert_eq!(make("bluefield3", mmo, ServiceType::UC), Err(Refusal::Unsupported));
    assert_eq!(make("connectx6dx", |_| {}, ServiceType::RC), Ok(false));
    assert_eq!(make("connectx6dx", mmo, ServiceType::RC), Err(Refusal::Unsupported));
}

#[test]
fn sq_follows_rq_in_ring_buffer() {
    let mut rig = Rig::up(Link::Infiniband);
    let user = rig.user();
    let number = rig.qp(user, |_| {}).unwrap();
    let qp = &rig.locked.functions[0].hca.objects.qps[&number];
    let (rq, sq) = (qp.rq.as_ref().unwrap(), qp.sq.as_ref().unwrap());
    assert_eq!((rq.memory.address(0), rq.memory.length), (0x10_0001_0000, 1024));
    assert_eq!((sq.memory.address(0), sq.memory.length), (0x10_0001_0400, 4096));
    assert_eq!(qp.record, 0x10_000f_fff0);
    let without = rig
        .qp(user, |input| {
            input.qpc_mut().set_rq_type(RqType::NONE);
        })
        .unwrap();
    let qp = &rig.locked.functions[0].hca.objects.qps[&without];
    assert!(qp.rq.is_none());
    assert_eq!(qp.sq.as_ref().unwrap().memory.address(0), 0x10_0001_0000);
}
