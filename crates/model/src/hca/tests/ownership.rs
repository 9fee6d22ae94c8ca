//! Access rights of owners, and that no object in use can be destroyed.

use verbless_prm::{
    AllocPdIn, AllocQCounterIn, AllocTransportDomainIn, AllocUarIn, CommandInput, CreateEqIn,
    CreateUctxIn, DeallocPdIn, DeallocQCounterIn, DeallocTransportDomainIn, DeallocUarIn,
    DestroyCqIn, DestroyEqIn, DestroyMkeyIn, DestroyQpIn, DestroyUctxIn, DestroyUmemIn, Qp2errIn,
    QueryCqIn, QueryMkeyIn, QueryQCounterIn, QueryQpIn,
};

use super::rig::Rig;
use crate::hca::Refusal;
use crate::profile::Link;

const LINK: Link = Link::Infiniband;

fn refused<I: CommandInput>(rig: &mut Rig, uid: u16, edit: impl FnOnce(&mut I)) -> Option<Refusal> {
    rig.send::<I>(uid, edit).err()
}

#[test]
fn objects_of_other_contexts_are_invisible() {
    let mut rig = Rig::up(LINK);
    let mine = rig.user();
    let other = rig.user();
    let qp = rig.qp(mine, |_| {}).unwrap();
    let mkey = rig.mkey(mine, |_| {}).unwrap();
    let td = rig.send::<AllocTransportDomainIn>(mine.uid, |_| {}).unwrap().transport_domain();
    let counter = rig.send::<AllocQCounterIn>(mine.uid, |_| {}).unwrap().counter_set_id();
    let before = rig.counts();
    macro_rules! all {
        ($($input:ident $set:ident($value:expr) => $refusal:ident;)*) => {$(
            assert_eq!(
                refused::<$input>(&mut rig, other.uid, |input| { input.$set($value); }),
                Some(Refusal::$refusal),
                stringify!($input)
            );
        )*};
    }
    all! {
        DeallocPdIn set_pd(mine.pd) => NoSuchPd;
        DeallocTransportDomainIn set_transport_domain(td) => NoSuchTd;
        DeallocUarIn set_uar(mine.uar) => NoSuchUar;
        DeallocQCounterIn set_counter_set_id(counter) => NoSuchCounter;
        QueryQCounterIn set_counter_set_id(counter) => NoSuchCounter;
        DestroyUmemIn set_umem_id(mine.umem) => NoSuchUmem;
        DestroyMkeyIn set_mkey_index(mkey) => NoSuchMkey;
        QueryMkeyIn set_mkey_index(mkey) => NoSuchMkey;
        DestroyCqIn set_cqn(mine.cq) => NoSuchCq;
        QueryCqIn set_cqn(mine.cq) => NoSuchCq;
        DestroyQpIn set_qpn(qp) => NoSuchQp;
        QueryQpIn set_qpn(qp) => NoSuchQp;
        Qp2errIn set_qpn(qp) => NoSuchQp;
    }
    // Nor can another context's objects use them.
    let with_foreign = |pick: fn(&mut super::rig::User, super::rig::User)| {
        let mut user = other;
        pick(&mut user, mine);
        user
    };
    let pd = with_foreign(|user, mine| user.pd = mine.pd);
    let uar = with_foreign(|user, mine| user.uar = mine.uar);
    let umem = with_foreign(|user, mine| user.umem = mine.umem);
    let cq = with_foreign(|user, mine| user.cq = mine.cq);
    assert_eq!(rig.qp(pd, |_| {}), Err(Refusal::NoSuchPd));
    assert_eq!(rig.qp(uar, |_| {}), Err(Refusal::NoSuchUar));
    assert_eq!(rig.qp(umem, |_| {}), Err(Refusal::NoSuchUmem));
    assert_eq!(rig.qp(cq, |_| {}), Err(Refusal::NoSuchCq));
    assert_eq!(rig.mkey(pd, |_| {}), Err(Refusal::NoSuchPd));
    assert_eq!(rig.mkey(umem, |_| {}), Err(Refusal::NoSuchUmem));
    assert_eq!(rig.cq(umem, |_| {}), Err(Refusal::NoSuchUmem));
    assert_eq!(rig.cq(uar, |_| {}), Err(Refusal::NoSuchUar));
    assert_eq!(rig.counts(), before);
    // The kernel may access them all.
    let counters = rig.send::<QueryQpIn>(0, |input| {
        input.set_qpn(qp);
    });
    assert!(counters.is_ok());
}

#[test]
fn only_kernel_creates_eqs_and_user_contexts() {
    let mut rig = Rig::up(LINK);
    let uid = rig.uctx();
    assert_eq!(refused::<CreateUctxIn>(&mut rig, uid, |_| {}), Some(Refusal::KernelOnly));
    assert_eq!(refused::<CreateEqIn>(&mut rig, uid, |_| {}), Some(Refusal::KernelOnly));
    assert_eq!(refused::<AllocPdIn>(&mut rig, uid + 1, |_| {}), Some(Refusal::NoSuchUid));
}

#[test]
fn objects_in_use_cannot_be_destroyed() {
    let mut rig = Rig::up(LINK);
    let before = rig.counts();
    let user = rig.user();
    let qp = rig.qp(user, |_| {}).unwrap();
    let mkey = rig.mkey(user, |_| {}).unwrap();
    let uid = user.uid;
    let eq = refused::<DestroyEqIn>(&mut rig, 0, |input| {
        input.set_eq_number(0x10);
    });
    assert_eq!(eq, Some(Refusal::EqInUse));
    macro_rules! step {
        ($input:ident $set:ident($value:expr) => $expected:expr) => {
            assert_eq!(
                refused::<$input>(&mut rig, uid, |input| {
                    input.$set($value);
                }),
                $expected,
                stringify!($input)
            );
        };
    }
    step!(DestroyCqIn set_cqn(user.cq) => Some(Refusal::CqInUse));
    step!(DeallocPdIn set_pd(user.pd) => Some(Refusal::PdInUse));
    step!(DeallocUarIn set_uar(user.uar) => Some(Refusal::UarInUse));
    step!(DestroyUmemIn set_umem_id(user.umem) => Some(Refusal::UmemInUse));
    step!(DestroyQpIn set_qpn(qp) => None);
    step!(DeallocPdIn set_pd(user.pd) => Some(Refusal::PdInUse));
    step!(DestroyMkeyIn set_mkey_index(mkey) => None);
    step!(DeallocPdIn set_pd(user.pd) => None);
    step!(DeallocUarIn set_uar(user.uar) => Some(Refusal::UarInUse));
    step!(DestroyCqIn set_cqn(user.cq) => None);
    step!(DeallocUarIn set_uar(user.uar) => None);
    step!(DestroyUmemIn set_umem_id(user.umem) => None);
    // All of them are gone; each command reports it.
    step!(DestroyQpIn set_qpn(qp) => Some(Refusal::NoSuchQp));
    step!(DestroyMkeyIn set_mkey_index(mkey) => Some(Refusal::NoSuchMkey));
    step!(DestroyCqIn set_cqn(user.cq) => Some(Refusal::NoSuchCq));
    step!(DeallocPdIn set_pd(user.pd) => Some(Refusal::NoSuchPd));
    step!(DeallocUarIn set_uar(user.uar) => Some(Refusal::NoSuchUar));
    step!(DestroyUmemIn set_umem_id(user.umem) => Some(Refusal::NoSuchUmem));
    let destroyed = rig.send::<DestroyUctxIn>(0, |input| {
        input.set_uid(uid);
    });
    assert!(destroyed.is_ok());
    assert_eq!(rig.counts(), before);
}

#[test]
fn destroy_uctx_destroys_its_objects() {
    let mut rig = Rig::up(LINK);
    let bystander = rig.user();
    let before = rig.counts();
    let user = rig.user();
    for _ in 0..3 {
        rig.qp(user, |_| {}).unwrap();
        rig.mkey(user, |_| {}).unwrap();
        rig.cq(user, |_| {}).unwrap();
    }
    rig.send::<AllocTransportDomainIn>(user.uid, |_| {}).unwrap();
    rig.send::<AllocQCounterIn>(user.uid, |_| {}).unwrap();
    rig.send::<AllocUarIn>(user.uid, |_| {}).unwrap();
    rig.send::<DestroyUctxIn>(0, |input| {
        input.set_uid(user.uid);
    })
    .unwrap();
    assert_eq!(rig.counts(), before);
    rig.qp(bystander, |_| {}).unwrap();
    assert_eq!(refused::<AllocPdIn>(&mut rig, user.uid, |_| {}), Some(Refusal::NoSuchUid));
    let again = rig.send::<DestroyUctxIn>(0, |input| {
        input.set_uid(user.uid);
    });
    assert_eq!(again, Err(Refusal::NoSuchUid));
}

#[test]
fn uctx_rejects_unoffered_capability() {
    let mut rig = Rig::up(LINK);
    let create = |rig: &mut Rig, cap| {
        rig.send::<CreateUctxIn>(0, |input| {
            input.uctx_mut().set_cap(cap);
        })
        .map(|_| ())
    };
    create(&mut rig, 0x7).unwrap();
    assert_eq!(create(&mut rig, 0x8), Err(Refusal::UctxCapability));
}

#[test]
fn freed_number_is_reused() {
    let mut rig = Rig::up(LINK);
    let pds: Vec<u32> = (0..4).map(|_| rig.send::<AllocPdIn>(0, |_| {}).unwrap().pd()).collect();
    rig.send::<DeallocPdIn>(0, |input| {
        input.set_pd(pds[1]);
    })
    .unwrap();
    assert_eq!(rig.send::<AllocPdIn>(0, |_| {}).unwrap().pd(), pds[1]);
    assert_eq!(rig.send::<AllocPdIn>(0, |_| {}).unwrap().pd(), pds[3] + 1);
}

#[test]
fn kernel_and_user_uar_pages_are_disjoint() {
    let mut rig = Rig::up(LINK);
    let user = rig.user();
    for (uid, pages) in [(0, 0x10..0x400), (user.uid, 0x400..8192)] {
        let taken: Vec<u32> = std::iter::from_fn(|| rig.send::<AllocUarIn>(uid, |_| {}).ok())
            .map(|out| out.uar())
            .collect();
        assert!(taken.iter().all(|page| pages.contains(page)));
        assert!(taken.len() >= pages.len() - 1, "the rig has one itself");
        assert_eq!(rig.send::<AllocUarIn>(uid, |_| {}), Err(Refusal::NoNumber));
    }
}

#[test]
fn user_queues_take_uar_of_the_kernel() {
    let mut rig = Rig::up(LINK);
    let (mut user, other) = (rig.user(), rig.user());
    user.uar = rig.send::<AllocUarIn>(0, |_| {}).unwrap().uar();
    user.cq = rig.cq(user, |_| {}).unwrap();
    rig.qp(user, |_| {}).unwrap();
    user.uar = other.uar;
    assert_eq!(rig.cq(user, |_| {}), Err(Refusal::NoSuchUar));
}

#[test]
fn q_counter_in_use_stays_and_clears_on_read() {
    let mut rig = Rig::up(LINK);
    let user = rig.user();
    let counter = rig.send::<AllocQCounterIn>(user.uid, |_| {}).unwrap().counter_set_id();
    let qp = rig
        .qp(user, |input| {
            input.qpc_mut().set_counter_set_id(counter);
        })
        .unwrap();
    let dealloc = |rig: &mut Rig| {
        rig.send::<DeallocQCounterIn>(user.uid, |input| {
            input.set_counter_set_id(counter);
        })
        .map(|_| ())
    };
    assert_eq!(dealloc(&mut rig), Err(Refusal::CounterInUse));
    let values =
        &mut rig.locked.functions[0].hca.objects.counters.get_mut(&counter).unwrap().values;
    values.set_out_of_buffer(3);
    for expected in [3, 0] {
        let read = rig
            .send::<QueryQCounterIn>(user.uid, |input| {
                input.set_counter_set_id(counter).set_clear(true);
            })
            .unwrap();
        assert_eq!(read.out_of_buffer(), expected);
    }
    rig.send::<DestroyQpIn>(user.uid, |input| {
        input.set_qpn(qp);
    })
    .unwrap();
    dealloc(&mut rig).unwrap();
}
