//! Limits on the host memory that a hostile driver can use.

use verbless_prm::{AllocPdIn, CreateRmpIn, DestroyMkeyIn, MkeyAccessMode, WqType};

use super::rig::{Rig, User, pages};
use crate::hca::Refusal;
use crate::hca::budget::Budget;
use crate::hca::objects::Translation;
use crate::profile::Link;

/// An indirect key of `count` entries.
fn klms(rig: &mut Rig, user: User, count: u32) -> Result<u32, Refusal> {
    let list = vec![0; 16 * count as usize];
    let create = rig.call::<verbless_prm::CreateMkeyIn>(user.uid, 0, &list, 0, |input| {
        input.set_translations_octword_actual_size(count);
        let context = input.memory_key_mkey_entry_mut();
        let mode = MkeyAccessMode::KSM.0;
        context.set_access_mode_1_0(mode & 3).set_access_mode_4_2(mode >> 2).set_pd(user.pd);
        context.set_qpn(0xff_ffff).set_len(4096 * u64::from(count)).set_log_page_size(12);
        context.set_translations_octword_size(count);
    });
    create.map(|(output, _)| output.mkey_index())
}

#[test]
fn function_over_budget_creates_no_objects() {
    let mut rig = Rig::up(Link::Infiniband);
    let user = rig.user();
    let hca = &mut rig.locked.functions[0].hca;
    hca.budget = Budget::of(hca.objects.bytes() + 100_000);
    let mut made = Vec::new();
    let refusal = loop {
        match klms(&mut rig, user, 1024) {
            Ok(index) => made.push(index),
            Err(refusal) => break refusal,
        }
    };
    assert_eq!(refusal, Refusal::OverBudget);
    assert!((2..=100_000 / 16_384 + 1).contains(&made.len()), "{} keys", made.len());
    assert_eq!(rig.send::<AllocPdIn>(user.uid, |_| {}).map(|_| ()), Err(Refusal::OverBudget));
    for index in made {
        rig.send::<DestroyMkeyIn>(user.uid, |input| {
            input.set_mkey_index(index);
        })
        .unwrap();
    }
    rig.send::<AllocPdIn>(user.uid, |_| {}).unwrap();
    klms(&mut rig, user, 1024).unwrap();
}

#[test]
fn mkeys_and_queues_share_page_list_of_umem() {
    let mut rig = Rig::up(Link::Infiniband);
    let user = rig.user();
    let key = rig.mkey(user, |_| {}).unwrap();
    let qpn = rig.qp(user, |_| {}).unwrap();
    let objects = &rig.locked.functions[0].hca.objects;
    let list = objects.umems[&user.umem].memory.pages.as_ptr();
    let Translation::Pages(memory) = &objects.mkeys[&key].translation else { panic!("pages") };
    assert_eq!(memory.pages.as_ptr(), list);
    assert_eq!(memory.address(0), objects.umems[&user.umem].memory.address(4096));
    let ring = &objects.qps[&qpn].sq.as_ref().unwrap().memory;
    assert_eq!(ring.pages.as_ptr(), list);
    assert_eq!(objects.cqs[&user.cq].memory.pages.as_ptr(), list);
}

#[test]
fn excess_driver_pages_are_rejected() {
    let mut rig = Rig::up(Link::Infiniband);
    rig.give_pages(1 << 20).unwrap();
    assert_eq!(rig.give_pages(1), Err(Refusal::TooManyPages));
}

#[test]
fn srq_wqe_holds_next_index() {
    let mut rig = Rig::up(Link::Infiniband);
    let user = rig.user();
    for log_stride in 0..5 {
        let made = rig.call::<CreateRmpIn>(0, 0, &pages(1), 0, |input| {
            let wq = input.ctx_mut().wq_mut();
            wq.set_wq_type(WqType::LINKED_LIST).set_pd(user.pd).set_log_wq_sz(2);
            wq.set_log_wq_stride(log_stride);
        });
        let expected = if log_stride < 4 { Err(Refusal::QpStride) } else { Ok(()) };
        assert_eq!(made.map(|_| ()), expected, "{log_stride}");
    }
}
