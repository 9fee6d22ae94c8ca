//! Requests of Linux's own drivers beyond those of user contexts: shared queues, objects that all
//! contexts share.

use verbless_prm::{
    AllocPdIn, AllocQCounterIn, AllocUarIn, AllocXrcdIn, ArmXrcSrqIn, CreateCqIn, CreateEqIn,
    CreateQpIn, CreateRmpIn, CreateXrcSrqIn, DeallocPdIn, DeallocQCounterIn, DeallocXrcdIn,
    DestroyCqIn, DestroyQpIn, DestroyRmpIn, DestroyXrcSrqIn, ModifyRmpIn, PathMigrationState,
    QueryHcaCapIn, QueryHcaCapOut, QueryRmpIn, QueryXrcSrqIn, RmpState, RqType, ServiceType,
    WqType,
};

use super::rig::{Rig, User, pages};
use crate::hca::Refusal;
use crate::profile::Link;

/// The uid of objects that all user contexts share.
const SHARED: u16 = 0xffff;

/// The kernel with a PD, a UAR page and a CQ, in listed pages.
fn kernel(rig: &mut Rig) -> User {
    let pd = rig.send::<AllocPdIn>(0, |_| {}).unwrap().pd();
    let uar = rig.send::<AllocUarIn>(0, |_| {}).unwrap().uar();
    let (output, _) = rig
        .call::<CreateCqIn>(0, 0, &pages(1), 0, |input| {
            let context = input.cq_context_mut();
            context.set_log_cq_size(6).set_c_eqn_or_apu_element(0x10).set_uar_page(uar);
            context.set_dbr_addr(0x1000);
        })
        .unwrap();
    User { uid: 0, pd, uar, umem: 0, cq: output.cqn() }
}

fn xrc_srq(rig: &mut Rig, user: User, xrcd: u32) -> Result<u32, Refusal> {
    rig.call::<CreateXrcSrqIn>(0, 0, &pages(1), 0, |input| {
        let context = input.xrc_srq_context_entry_mut();
        context.set_log_xrc_srq_size(4).set_log_rq_stride(1).set_pd(user.pd).set_xrcd(xrcd);
        context.set_cqn(user.cq).set_db_record_addr_l(0x2000 >> 2);
    })
    .map(|(output, _)| output.xrc_srqn())
}

fn rmp(rig: &mut Rig, user: User) -> Result<u32, Refusal> {
    rig.call::<CreateRmpIn>(0, 0, &pages(1), 0, |input| {
        input.ctx_mut().set_state(RmpState::RDY);
        let wq = input.ctx_mut().wq_mut();
        wq.set_pd(user.pd).set_log_wq_sz(4).set_log_wq_stride(5).set_dbr_addr(0x3000);
    })
    .map(|(output, _)| output.rmpn())
}

/// A QP as the kernel creates it.
fn qp(rig: &mut Rig, user: User, edit: impl FnOnce(&mut CreateQpIn)) -> Result<u32, Refusal> {
    rig.call::<CreateQpIn>(0, 0, &pages(2), 0, |input| {
        let context = input.qpc_mut();
        context.set_st(ServiceType::UD).set_pm_state(PathMigrationState::MIGRATED);
        context.set_pd(user.pd).set_uar_page(user.uar).set_rq_type(RqType::REGULAR);
        context.set_log_rq_size(4).set_log_rq_stride(2).set_log_sq_size(6);
        context.set_cqn_snd(user.cq).set_cqn_rcv(user.cq).set_dbr_addr(0x4000);
        edit(input);
    })
    .map(|(output, _)| output.qpn())
}

#[test]
fn xrcd_holds_srqs_and_srq_holds_cq_and_pd() {
    let mut rig = Rig::up(Link::Infiniband);
    let before = rig.counts();
    let user = kernel(&mut rig);
    let xrcd = rig.send::<AllocXrcdIn>(0, |_| {}).unwrap().xrcd();
    assert_eq!(xrc_srq(&mut rig, user, xrcd + 1), Err(Refusal::NoSuchXrcd));
    let srq = xrc_srq(&mut rig, user, xrcd).unwrap();
    let dealloc = |rig: &mut Rig| {
        rig.send::<DeallocXrcdIn>(0, |input| {
            input.set_xrcd(xrcd);
        })
        .err()
    };
    let destroy_cq = |rig: &mut Rig| {
        rig.send::<DestroyCqIn>(0, |input| {
            input.set_cqn(user.cq);
        })
        .err()
    };
    let dealloc_pd = |rig: &mut Rig| {
        rig.send::<DeallocPdIn>(0, |input| {
            input.set_pd(user.pd);
        })
        .err()
    };
    assert_eq!(dealloc(&mut rig), Some(Refusal::XrcdInUse));
    assert_eq!(destroy_cq(&mut rig), Some(Refusal::CqInUse));
    assert_eq!(dealloc_pd(&mut rig), Some(Refusal::PdInUse));
    let destroy = |rig: &mut Rig| {
        rig.send::<DestroyXrcSrqIn>(0, |input| {
            input.set_xrc_srqn(srq);
        })
        .err()
    };
    assert_eq!(destroy(&mut rig), None);
    assert_eq!(destroy(&mut rig), Some(Refusal::NoSuchSrq));
    assert_eq!((dealloc(&mut rig), destroy_cq(&mut rig), dealloc_pd(&mut rig)), (None, None, None));
    assert_eq!(rig.counts().uars, before.uars + 1, "only the page is left");
}

#[test]
fn armed_srq_limit_is_visible_in_query() {
    let mut rig = Rig::up(Link::Infiniband);
    let user = kernel(&mut rig);
    let xrcd = rig.send::<AllocXrcdIn>(0, |_| {}).unwrap().xrcd();
    let srq = xrc_srq(&mut rig, user, xrcd).unwrap();
    let rmp = rmp(&mut rig, user).unwrap();
    assert_ne!(srq, rmp, "a QP names either in the same field");
    let arm = |rig: &mut Rig, number, limit| {
        rig.call::<ArmXrcSrqIn>(0, ArmXrcSrqIn::XRC_SRQ, &[], 0, |input| {
            input.set_xrc_srqn(number).set_lwm(limit);
        })
        .err()
    };
    assert_eq!(arm(&mut rig, srq, 5), None);
    assert_eq!(arm(&mut rig, srq, 17), Some(Refusal::SrqLimit));
    assert_eq!(arm(&mut rig, rmp, 5), Some(Refusal::NoSuchSrq));
    let shown = rig.send::<QueryXrcSrqIn>(0, |input| {
        input.set_xrc_srqn(srq);
    });
    assert_eq!(shown.unwrap().xrc_srq_context_entry().lwm(), 5);
    let modify = |rig: &mut Rig, state| {
        rig.send::<ModifyRmpIn>(0, |input| {
            input.set_rmpn(rmp).set_rmp_state(state).bitmask_mut().set_lwm(true);
            input.ctx_mut().set_state(state).wq_mut().set_lwm(7);
        })
        .err()
    };
    assert_eq!(modify(&mut rig, RmpState::RDY), None);
    assert_eq!(modify(&mut rig, RmpState::ERR), Some(Refusal::SrqState));
    let shown = rig.send::<QueryRmpIn>(0, |input| {
        input.set_rmpn(rmp);
    });
    assert_eq!(shown.unwrap().rmp_context().wq().lwm(), 7);
    let refused = rig.send::<QueryRmpIn>(0, |input| {
        input.set_rmpn(srq);
    });
    assert_eq!(refused, Err(Refusal::NoSuchSrq));
}

#[test]
fn srq_in_use_by_a_qp_cannot_be_destroyed() {
    let mut rig = Rig::up(Link::Infiniband);
    let user = kernel(&mut rig);
    let rmp = rmp(&mut rig, user).unwrap();
    let shared = |number: u32| {
        move |input: &mut CreateQpIn| {
            let context = input.qpc_mut();
            context.set_st(ServiceType::RC).set_rq_type(RqType::SRQ).set_srqn_rmpn_xrqn(number);
        }
    };
    assert_eq!(qp(&mut rig, user, shared(rmp + 1)), Err(Refusal::NoSuchSrq));
    let qpn = qp(&mut rig, user, shared(rmp)).unwrap();
    let destroy = |rig: &mut Rig| {
        rig.send::<DestroyRmpIn>(0, |input| {
            input.set_rmpn(rmp);
        })
        .err()
    };
    assert_eq!(destroy(&mut rig), Some(Refusal::SrqInUse));
    rig.send::<DestroyQpIn>(0, |input| {
        input.set_qpn(qpn);
    })
    .unwrap();
    assert_eq!(destroy(&mut rig), None);
}

#[test]
fn only_kernel_destroys_shared_uid_objects() {
    let mut rig = Rig::up(Link::Infiniband);
    let user = rig.user();
    let counter = rig.send::<AllocQCounterIn>(SHARED, |_| {}).unwrap().counter_set_id();
    let qpn = rig.qp(user, |input| {
        input.qpc_mut().set_counter_set_id(counter);
    });
    rig.send::<DestroyQpIn>(user.uid, |input| {
        input.set_qpn(qpn.unwrap());
    })
    .unwrap();
    let free = |rig: &mut Rig, uid| {
        rig.send::<DeallocQCounterIn>(uid, |input| {
            input.set_counter_set_id(counter);
        })
        .err()
    };
    assert_eq!(free(&mut rig, user.uid), Some(Refusal::NoSuchCounter));
    assert_eq!(free(&mut rig, 0), None);
    // A shared EQ rings on a page of the kernel.
    let page = rig.send::<AllocUarIn>(0, |_| {}).unwrap().uar();
    let eq = rig.call::<CreateEqIn>(SHARED, 0, &pages(1), 0, |input| {
        input.eq_context_entry_mut().set_log_eq_size(4).set_uar_page(page);
    });
    assert!(eq.is_ok());
    assert_eq!(rig.send::<AllocPdIn>(SHARED, |_| {}).err(), Some(Refusal::NoSuchUid));
}

#[test]
fn only_host_endianness_register_is_writable() {
    let mut rig = Rig::up(Link::Infiniband);
    let write = |rig: &mut Rig, id, value: &[u8]| {
        rig.call::<verbless_prm::AccessRegisterIn>(
            0,
            verbless_prm::AccessRegisterIn::WRITE,
            value,
            value.len(),
            |input| {
                input.set_register_id(id);
            },
        )
        .map(|(_, register)| register)
    };
    let endianness = verbless_prm::RegisterId::HOST_ENDIANNESS;
    let value = [&[0x80][..], &[0; 15]].concat();
    assert_eq!(write(&mut rig, endianness, &value), Ok(value.clone()));
    assert_eq!(rig.register(endianness.0, &[0; 16]), Ok(value));
    let refused = write(&mut rig, verbless_prm::RegisterId::PMTU, &[0; 16]);
    assert_eq!(refused, Err(Refusal::RegisterReadOnly));
}

#[test]
fn unsupported_srq_and_eq_options_are_rejected() {
    let mut rig = Rig::up(Link::Infiniband);
    let user = kernel(&mut rig);
    let mut pool = |edit: fn(&mut CreateRmpIn)| {
        rig.call::<CreateRmpIn>(0, 0, &pages(1), 0, |input| {
            let wq = input.ctx_mut().wq_mut();
            wq.set_pd(user.pd).set_log_wq_sz(4).set_log_wq_stride(5).set_dbr_addr(0x3000);
            edit(input);
        })
        .err()
    };
    let refused = Some(Refusal::Unsupported);
    assert_eq!(
        pool(|input| {
            input.ctx_mut().wq_mut().set_wq_type(WqType::CYCLIC);
        }),
        None
    );
    let bare = |input: &mut CreateRmpIn| {
        input.ctx_mut().set_basic_cyclic_rcv_wqe(true).wq_mut().set_wq_type(WqType::CYCLIC);
    };
    assert_eq!(pool(bare), None);
    assert_eq!(
        pool(|input| {
            input.ctx_mut().set_basic_cyclic_rcv_wqe(true);
        }),
        refused
    );
    assert_eq!(
        pool(|input| {
            input.ctx_mut().wq_mut().set_wq_type(WqType::LINKED_LIST_STRIDING);
        }),
        refused
    );
    assert_eq!(
        pool(|input| {
            input.ctx_mut().wq_mut().set_wq_signature(true);
        }),
        refused
    );
    assert_eq!(
        pool(|input| {
            input.ctx_mut().wq_mut().set_shampo_enable(true);
        }),
        refused
    );
    let xrcd = rig.send::<AllocXrcdIn>(0, |_| {}).unwrap().xrcd();
    for edit in [
        (|context| {
            context.set_rlky(true);
        }) as fn(&mut verbless_prm::XrcSrqContext),
        |context| {
            context.set_user_index_equal_xrc_srqn(true);
        },
        |context| {
            context.set_cont_srq(true);
        },
    ] {
        let made = rig.call::<CreateXrcSrqIn>(0, 0, &pages(1), 0, |input| {
            let context = input.xrc_srq_context_entry_mut();
            context.set_log_xrc_srq_size(4).set_log_rq_stride(1).set_pd(user.pd);
            context.set_xrcd(xrcd).set_cqn(user.cq).set_db_record_addr_l(0x2000 >> 2);
            edit(context);
        });
        assert_eq!(made.err(), refused);
    }
    let eq = rig.call::<CreateEqIn>(0, 0, &pages(1), 0, |input| {
        input.eq_context_entry_mut().set_log_eq_size(4).set_uar_page(user.uar).set_ec(true);
    });
    assert_eq!(eq.err(), refused);
}

#[test]
fn user_qp_rejects_rlky_fre_and_xrc() {
    let mut rig = Rig::up(Link::Infiniband);
    let user = rig.user();
    for edit in [
        (|context| {
            context.set_rlky(true);
        }) as fn(&mut verbless_prm::QpContext),
        |context| {
            context.set_fre(true);
        },
    ] {
        let made = rig.qp(user, |input| edit(input.qpc_mut()));
        assert_eq!(made, Err(Refusal::KernelOnlyField));
        let kernel = kernel(&mut rig);
        qp(&mut rig, kernel, |input| edit(input.qpc_mut())).unwrap();
    }
    let like_write = rig.qp(user, |input| {
        input.qpc_mut().set_atomic_like_write_en(true);
    });
    assert_eq!(like_write, Err(Refusal::Unsupported));
    let xrc = rig.qp(user, |input| {
        input.qpc_mut().set_st(ServiceType::XRC);
    });
    assert_eq!(xrc, Err(Refusal::TransportService));
}

#[test]
fn capability_query_accepts_shorter_outboxes() {
    let mut rig = Rig::up(Link::Infiniband);
    let mut ask = |bytes: usize| {
        let mut input = [0; 16];
        let opcode = <QueryHcaCapIn as verbless_prm::CommandInput>::INFO.opcode;
        input[..2].copy_from_slice(&opcode.to_be_bytes());
        input[7] = 1;
        let mut output = vec![0xa5; bytes];
        rig.raw(&input, &mut output).map(|()| output)
    };
    let whole = ask(<QueryHcaCapOut as verbless_prm::Structure>::BYTES).unwrap();
    // With unions of 2048 bytes and of 256.
    for bytes in [2064, 272, 16] {
        assert_eq!(ask(bytes).unwrap(), whole[..bytes]);
    }
    assert_eq!(ask(15), Err(Refusal::OutputTooShort));
}
