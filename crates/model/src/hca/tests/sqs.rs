//! SQs: creation, transitions, query, destruction.

use verbless_prm::{
    CreateSqIn, DeallocPdIn, DeallocUarIn, DestroyCqIn, DestroySqIn, DestroyUctxIn, DestroyUmemIn,
    ModifySqIn, QuerySqIn, SqState, TimestampFormat, WqType,
};

use super::rig::{Rig, UMEM, User, pages};
use crate::hca::Refusal;
use crate::profile::Link;

const LINK: Link = Link::Infiniband;

/// MODIFY_SQ from one state to another.
fn go(rig: &mut Rig, user: User, sq: u32, from: SqState, to: SqState) -> Result<(), Refusal> {
    rig.send::<ModifySqIn>(user.uid, |input| {
        input.set_sqn(sq).set_sq_state(from).ctx_mut().set_state(to);
    })
    .map(|_| ())
}

fn state(rig: &mut Rig, user: User, sq: u32) -> SqState {
    let output = rig.send::<QuerySqIn>(user.uid, |input| {
        input.set_sqn(sq);
    });
    output.unwrap().sq_context().state()
}

#[test]
fn create_sq_refuses_each_invalid_field() {
    type Edit = fn(&mut CreateSqIn);
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
        (context!(set_state(SqState::RDY)), Refusal::SqBegin),
        (context!(set_hairpin(true)), Refusal::Unsupported),
        (context!(set_reg_umr(true)), Refusal::Unsupported),
        (context!(set_ts_cqe_to_dest_cqn(1)), Refusal::Unsupported),
        (context!(set_packet_pacing_rate_limit_index(1)), Refusal::Unsupported),
        (context!(set_ts_format(TimestampFormat::REAL_TIME)), Refusal::TimestampFormat),
        (context!(set_cqn(1)), Refusal::NoSuchCq),
        (context!(set_tis_lst_sz(1)), Refusal::NoSuchTis),
        (wq!(set_wq_signature(true)), Refusal::Unsupported),
        (wq!(set_cd_slave(true)), Refusal::Unsupported),
        (wq!(set_wq_type(WqType::LINKED_LIST)), Refusal::WqShape),
        (wq!(set_log_wq_stride(7)), Refusal::WqShape),
        (wq!(set_log_wq_sz(16)), Refusal::WqSize),
        (wq!(set_log_wq_sz(15)), Refusal::UmemBounds),
        (wq!(set_pd(0)), Refusal::NoSuchPd),
        (wq!(set_uar_page(1)), Refusal::NoSuchUar),
        (wq!(set_wq_umem_id(0)), Refusal::NoSuchUmem),
        (wq!(set_wq_umem_offset(32)), Refusal::BufferMisaligned),
        (wq!(set_dbr_umem_id(0)), Refusal::NoSuchUmem),
        (wq!(set_dbr_addr(UMEM - 4)), Refusal::UmemBounds),
        (wq!(set_dbr_addr(UMEM - 12)), Refusal::RecordMisaligned),
    ];
    let mut rig = Rig::up(LINK);
    let user = rig.user();
    let before = rig.counts();
    for (index, (edit, refusal)) in cases.iter().enumerate() {
        assert_eq!(rig.sq(user, edit), Err(*refusal), "case {index}");
    }
    assert_eq!(rig.counts(), before);
}

#[test]
fn sq_transition_names_current_state_and_leaves_err_to_rst() {
    use SqState as S;
    let mut rig = Rig::up(LINK);
    let user = rig.user();
    let all = [S::RST, S::RDY, S::ERR];
    for from in all {
        for to in all {
            let sq = rig.sq(user, |_| {}).unwrap();
            if from != S::RST {
                go(&mut rig, user, sq, S::RST, from).unwrap();
            }
            let moved = go(&mut rig, user, sq, from, to);
            let legal = (from, to) != (S::ERR, S::RDY);
            assert_eq!(moved.is_ok(), legal, "{from:?} to {to:?}");
            let now = state(&mut rig, user, sq);
            assert_eq!(now, if legal { to } else { from });
            for wrong in all.into_iter().filter(|&it| it != now) {
                assert_eq!(go(&mut rig, user, sq, wrong, wrong), Err(Refusal::SqState), "{now:?}");
            }
            assert_eq!(go(&mut rig, user, sq, now, SqState(2)), Err(Refusal::SqState), "{now:?}");
            assert_eq!(state(&mut rig, user, sq), now, "a refusal changes nothing");
        }
    }
}

#[test]
fn modify_sq_rejects_rate_and_queue_group() {
    let mut rig = Rig::up(LINK);
    let user = rig.user();
    let sq = rig.sq(user, |_| {}).unwrap();
    let mut modify = |select, rate, group| {
        rig.send::<ModifySqIn>(user.uid, |input| {
            let context = input.set_sqn(sq).set_modify_bitmask(select).ctx_mut();
            context.set_packet_pacing_rate_limit_index(rate).set_qos_queue_group_id(group);
        })
        .map(|_| ())
    };
    assert_eq!(modify(1, 0, 0), Ok(()), "no rate");
    assert_eq!(modify(4, 0, 0), Ok(()), "no group");
    assert_eq!(modify(1, 7, 0), Err(Refusal::Unsupported));
    assert_eq!(modify(4, 0, 7), Err(Refusal::Unsupported));
    assert_eq!(modify(2, 0, 0), Err(Refusal::SqField));
    assert_eq!(modify(0, 7, 7), Ok(()), "an unselected field is ignored");
}

#[test]
fn sq_belongs_to_its_creator() {
    let mut rig = Rig::up(LINK);
    let (user, other) = (rig.user(), rig.user());
    let sq = rig.sq(user, |_| {}).unwrap();
    assert_eq!(go(&mut rig, other, sq, SqState::RST, SqState::RDY), Err(Refusal::NoSuchSq));
    let destroyed = rig.send::<DestroySqIn>(other.uid, |input| {
        input.set_sqn(sq);
    });
    assert_eq!(destroyed.map(|_| ()), Err(Refusal::NoSuchSq));
    assert_eq!(rig.sq(User { pd: other.pd, ..user }, |_| {}), Err(Refusal::NoSuchPd));
    assert_eq!(rig.sq(User { cq: other.cq, ..user }, |_| {}), Err(Refusal::NoSuchCq));
}

#[test]
fn sq_holds_its_pd_uar_umem_and_cq() {
    let mut rig = Rig::up(LINK);
    let user = rig.user();
    let before = rig.counts();
    let sq = rig.sq(user, |_| {}).unwrap();
    let User { uid, pd, uar, umem, cq } = user;
    macro_rules! kept {
        ($command:ident, $set:ident($number:expr), $refusal:ident) => {
            let answer = rig.send::<$command>(uid, |input| {
                input.$set($number);
            });
            assert_eq!(answer.map(|_| ()), Err(Refusal::$refusal));
        };
    }
    kept!(DeallocPdIn, set_pd(pd), PdInUse);
    kept!(DeallocUarIn, set_uar(uar), UarInUse);
    kept!(DestroyUmemIn, set_umem_id(umem), UmemInUse);
    kept!(DestroyCqIn, set_cqn(cq), CqInUse);
    rig.send::<DestroySqIn>(uid, |input| {
        input.set_sqn(sq);
    })
    .unwrap();
    assert_eq!(rig.counts(), before);
    rig.send::<DestroyCqIn>(uid, |input| {
        input.set_cqn(cq);
    })
    .unwrap();
}

#[test]
fn sq_is_destroyed_with_its_user_context() {
    let mut rig = Rig::up(LINK);
    let before = rig.counts();
    let user = rig.user();
    rig.sq(user, |_| {}).unwrap();
    rig.send::<DestroyUctxIn>(0, |input| {
        input.set_uid(user.uid);
    })
    .unwrap();
    assert_eq!(rig.counts(), before);
}

#[test]
fn sqs_and_qps_share_one_number_range() {
    let mut rig = Rig::up(LINK);
    let user = rig.user();
    let numbers = [
        rig.qp(user, |_| {}).unwrap(),
        rig.sq(user, |_| {}).unwrap(),
        rig.qp(user, |_| {}).unwrap(),
        rig.sq(user, |_| {}).unwrap(),
    ];
    assert!(numbers.windows(2).all(|pair| pair[0] < pair[1]), "{numbers:?}");
    let query = rig.send::<verbless_prm::QueryQpIn>(user.uid, |input| {
        input.set_qpn(numbers[1]);
    });
    assert_eq!(query.map(|_| ()), Err(Refusal::NoSuchQp), "an SQ is no QP");
}

/// As Linux's write-combining test creates it without a network interface: without a PD, a TIS or a
/// UMEM.
#[test]
fn kernel_sq_needs_no_pd_tis_or_umem() {
    let mut rig = Rig::up(LINK);
    let user = rig.user();
    let (output, _) = rig
        .call::<CreateSqIn>(0, 0, &pages(4), 0, |input| {
            let context = input.ctx_mut();
            context.set_flush_in_error_en(true).set_cqn(user.cq);
            let wq = context.wq_mut();
            wq.set_wq_type(WqType::CYCLIC).set_log_wq_stride(6).set_log_wq_sz(8);
            wq.set_uar_page(user.uar).set_dbr_addr(0x1000);
        })
        .unwrap();
    let kernel = User { uid: 0, ..user };
    go(&mut rig, kernel, output.sqn(), SqState::RST, SqState::RDY).unwrap();
    assert_eq!(state(&mut rig, kernel, output.sqn()), SqState::RDY);
}
