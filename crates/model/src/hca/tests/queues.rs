//! CQs and EQs.

use verbless_prm::{
    CqErrorSyndrome, CqModifyField, CqPeriodMode, CqResizeField, CqState, CqStatus, CqeSize,
    CreateCqIn, CreateEqIn, CreateRmpIn, CreateUmemIn, DestroyEqIn, ModifyCqIn, QueryCqIn,
    QueryEqIn, WqType,
};

use super::rig::{Rig, UMEM, User, pages};
use crate::hca::Refusal;
use crate::hca::objects::{Arm, EventTarget};
use crate::profile::{Link, Profile};

const LINK: Link = Link::Infiniband;

#[test]
fn one_entry_cq_must_be_collapsed() {
    let mut rig = Rig::up(LINK);
    let user = rig.user();
    for collapsed in [false, true] {
        let made = rig.cq(user, |input: &mut CreateCqIn| {
            input.cq_context_mut().set_log_cq_size(0).set_cc(collapsed);
        });
        assert_eq!(made.err(), (!collapsed).then_some(Refusal::CqSize));
    }
}

#[test]
fn create_cq_refuses_each_invalid_field() {
    type Edit = fn(&mut CreateCqIn);
    let cases: &[(Edit, Refusal)] = &[
        (
            |input| {
                input.cq_context_mut().set_log_cq_size(0);
            },
            Refusal::CqSize,
        ),
        (
            |input| {
                input.cq_context_mut().set_log_cq_size(23);
            },
            Refusal::CqSize,
        ),
        (
            |input| {
                input.cq_context_mut().set_log_cq_size(15);
            },
            Refusal::UmemBounds,
        ),
        (
            |input| {
                input.cq_context_mut().set_cqe_sz(CqeSize(3));
            },
            Refusal::CqeSize,
        ),
        (
            |input| {
                input.cq_context_mut().set_cqe_sz(CqeSize::BYTES_128_PADDED);
            },
            Refusal::CqeSize,
        ),
        (
            |input| {
                input.cq_context_mut().set_c_eqn_or_apu_element(0x11);
            },
            Refusal::NoSuchEq,
        ),
        (
            |input| {
                input.cq_context_mut().set_c_eqn_or_apu_element(u32::MAX);
            },
            Refusal::NoSuchEq,
        ),
        (
            |input| {
                input.cq_context_mut().set_uar_page(1);
            },
            Refusal::NoSuchUar,
        ),
        (
            |input| {
                input.cq_context_mut().set_dbr_umem_id(1);
            },
            Refusal::NoSuchUmem,
        ),
        (
            |input| {
                input.cq_context_mut().set_dbr_addr(UMEM - 4);
            },
            Refusal::UmemBounds,
        ),
        (
            |input| {
                input.cq_context_mut().set_dbr_addr(u64::MAX - 7);
            },
            Refusal::UmemBounds,
        ),
        (
            |input| {
                input.cq_context_mut().set_dbr_addr(4);
            },
            Refusal::RecordMisaligned,
        ),
        (
            |input| {
                input.set_cq_umem_id(1);
            },
            Refusal::NoSuchUmem,
        ),
        (
            |input| {
                input.set_cq_umem_offset(UMEM - 64);
            },
            Refusal::UmemBounds,
        ),
        (
            |input| {
                input.set_cq_umem_offset(u64::MAX);
            },
            Refusal::UmemBounds,
        ),
        (
            |input| {
                input.set_cq_umem_offset(32);
            },
            Refusal::BufferMisaligned,
        ),
        (
            |input| {
                input.cq_context_mut().set_page_offset(1);
            },
            Refusal::BufferMisaligned,
        ),
        (
            |input| {
                input.set_cq_umem_valid(false);
            },
            Refusal::ListTooShort,
        ),
        (
            |input| {
                input.cq_context_mut().set_as_notify(true);
            },
            Refusal::Unsupported,
        ),
        (
            |input| {
                input.cq_context_mut().set_apu_cq(true);
            },
            Refusal::NoSuchDpaThread,
        ),
        (
            |input| {
                input.cq_context_mut().set_apu_cq(true).set_ext_element_type(2);
            },
            Refusal::NoSuchDpaEq,
        ),
        (
            |input| {
                input.cq_context_mut().set_apu_cq(true).set_ext_element_type(1);
            },
            Refusal::Unsupported,
        ),
        (
            |input| {
                input.cq_context_mut().set_ext_element_type(2);
            },
            Refusal::Unsupported,
        ),
        (
            |input| {
                input.cq_context_mut().set_cqe_comp_en(true);
            },
            Refusal::Unsupported,
        ),
        (
            |input| {
                input.cq_context_mut().set_cq_period_mode(CqPeriodMode(2));
            },
            Refusal::Unsupported,
        ),
    ];
    let mut rig = Rig::up(LINK);
    let user = rig.user();
    for (number, (edit, expected)) in cases.iter().enumerate() {
        assert_eq!(rig.cq(user, edit), Err(*expected), "case {number}");
    }
    assert_eq!(rig.counts().cqs, 1);
    let read_only = User { umem: rig.umem(user.uid, 0, false).unwrap(), ..user };
    assert_eq!(rig.cq(read_only, |_| {}), Err(Refusal::UmemReadOnly));
}

/// A UMEM of two pages of 256 KiB; a 64th of one is 4 KiB.
fn umem_of_large_pages(rig: &mut Rig, uid: u16) -> u32 {
    let list: Vec<u8> =
        (0..2_u64).flat_map(|n| ((0x10_0000_0000 + (n << 18)) | 3).to_be_bytes()).collect();
    let umem = rig.call::<CreateUmemIn>(uid, 0, &list, 0, |input| {
        input.umem_mut().set_log_page_size(6).set_num_of_mtt(2);
    });
    umem.unwrap().0.umem_id()
}

#[test]
fn queue_offset_is_a_multiple_of_page_size_over_64() {
    let mut rig = Rig::up(LINK);
    let user = rig.user();
    let umem = umem_of_large_pages(&mut rig, user.uid);
    let large = |offset: u64| (umem, offset);
    let cases = [
        (large(0x1000), Ok(())),
        (large(0x3_f000), Ok(())),
        (large(0x4_1000), Ok(())),
        (large(0x40), Err(Refusal::BufferOffset)),
        (large(0x1800), Err(Refusal::BufferOffset)),
        (large(0x4_0800), Err(Refusal::BufferOffset)),
        ((user.umem, 0x840), Ok(())),
    ];
    for ((umem, offset), expected) in cases {
        let cq = rig.cq(user, |input| {
            input.set_cq_umem_id(umem).set_cq_umem_offset(offset);
        });
        assert_eq!(cq.map(drop), expected, "CQ at {offset:#x}");
        let qp = rig.qp(user, |input| {
            input.set_wq_umem_id(umem).set_wq_umem_offset(offset);
        });
        assert_eq!(qp.map(drop), expected, "QP at {offset:#x}");
    }
}

#[test]
fn wq_offset_lies_in_first_half_of_page() {
    let mut rig = Rig::up(LINK);
    let user = rig.user();
    let umem = umem_of_large_pages(&mut rig, user.uid);
    let cases = [
        (umem, 0x1_f000, Ok(())),
        (umem, 0x4_1000, Ok(())),
        (umem, 0x2_0000, Err(Refusal::BufferOffset)),
        (umem, 0x3_f000, Err(Refusal::BufferOffset)),
        (umem, 0x1040, Err(Refusal::BufferOffset)),
        (user.umem, 0x1000, Ok(())),
        (user.umem, 0x17c0, Ok(())),
        (user.umem, 0x1800, Err(Refusal::BufferOffset)),
    ];
    for (umem, offset, expected) in cases {
        let sq = rig.sq(user, |input| {
            input.ctx_mut().wq_mut().set_wq_umem_id(umem).set_wq_umem_offset(offset);
        });
        assert_eq!(sq.map(drop), expected, "SQ at {offset:#x}");
        let rmp = rig.send::<CreateRmpIn>(user.uid, |input| {
            let wq = input.ctx_mut().wq_mut();
            wq.set_wq_type(WqType::LINKED_LIST).set_pd(user.pd).set_log_wq_sz(4);
            wq.set_log_wq_stride(6).set_wq_umem_valid(true).set_wq_umem_id(umem);
            wq.set_wq_umem_offset(offset).set_dbr_umem_valid(true).set_dbr_umem_id(user.umem);
        });
        assert_eq!(rmp.map(drop), expected, "RMP at {offset:#x}");
    }
}

#[test]
fn kernel_cq_lies_in_its_listed_pages() {
    let mut rig = Rig::up(LINK);
    let create = |rig: &mut Rig, list: &[u8]| {
        rig.call::<CreateCqIn>(0, 0, list, 0, |input| {
            let context = input.cq_context_mut();
            context.set_log_cq_size(7).set_c_eqn_or_apu_element(0x10).set_uar_page(0x10);
            context.set_page_offset(2).set_dbr_addr(0x8000);
        })
        .map(|(output, _)| output.cqn())
    };
    // 128 CQEs of 64 bytes, 128 bytes into the first page: three pages.
    assert_eq!(create(&mut rig, &pages(2)), Err(Refusal::ListTooShort));
    let cqn = create(&mut rig, &pages(3)).unwrap();
    let cq = &rig.locked.functions[0].hca.objects.cqs[&cqn];
    assert_eq!(cq.memory.address(0), 0x20_0000_0080);
    assert_eq!(cq.memory.address(127 * 64), 0x20_0000_2040);
    let askew: Vec<u8> = (0..3_u64).flat_map(|n| (0x1800 + (n << 12)).to_be_bytes()).collect();
    assert_eq!(create(&mut rig, &askew), Err(Refusal::PageMisaligned));
}

#[test]
fn query_cq_shows_counters_arm_and_overrun() {
    let mut rig = Rig::up(LINK);
    let user = rig.user();
    let query = |rig: &mut Rig| {
        let output = rig
            .send::<QueryCqIn>(user.uid, |input| {
                input.set_cqn(user.cq);
            })
            .unwrap();
        *output.cq_context()
    };
    let context = query(&mut rig);
    assert_eq!((context.status(), context.st()), (CqStatus::OK, CqState::FIRED));
    assert_eq!((context.log_cq_size(), context.producer_counter()), (6, 0));
    let cq = rig.locked.functions[0].hca.objects.cqs.get_mut(&user.cq).unwrap();
    (cq.producer, cq.failure) = (0x100_0005, Some(CqErrorSyndrome::OVERRUN));
    cq.arm = Arm::Solicited { consumer: 0, sequence: 0 };
    let context = query(&mut rig);
    assert_eq!((context.status(), context.st()), (CqStatus::OVERFLOW, CqState::SOLICITED_ARMED));
    assert_eq!(context.producer_counter(), 5);
}

#[test]
fn modify_cq_changes_only_selected_fields() {
    let mut rig = Rig::up(LINK);
    let user = rig.user();
    let modify = |rig: &mut Rig, op_mod, select| {
        rig.call::<ModifyCqIn>(user.uid, op_mod, &[], 0, |input| {
            input.set_cqn(user.cq).set_modify_field_select(select);
            let context = input.cq_context_mut();
            context.set_cq_period(17).set_cq_max_count(9).set_oi(true);
            context.set_c_eqn_or_apu_element(0x99);
        })
        .map(|_| ())
    };
    modify(&mut rig, 0, CqModifyField::PERIOD.0).unwrap();
    let context = rig.locked.functions[0].hca.objects.cqs[&user.cq].context;
    assert_eq!((context.cq_period(), context.cq_max_count(), context.oi()), (17, 0, false));
    modify(&mut rig, 0, CqModifyField::MAX_COUNT.0 | CqModifyField::OVERRUN_IGNORE.0).unwrap();
    let cq = &rig.locked.functions[0].hca.objects.cqs[&user.cq];
    assert!(cq.overrun_ignore && cq.context.cq_max_count() == 9);
    assert_eq!(modify(&mut rig, 0, CqModifyField::EQN.0), Err(Refusal::NoSuchEq));
    assert_eq!(modify(&mut rig, 0, 0x8000_0000), Err(Refusal::CqField));
    assert_eq!(modify(&mut rig, 5, 1), Err(Refusal::UnknownOpMod));
    assert_eq!(rig.locked.functions[0].hca.objects.cqs[&user.cq].target, EventTarget::Eq(0x10));
}

#[test]
fn resize_cq_refuses_each_invalid_field() {
    let mut rig = Rig::up(LINK);
    let user = rig.user();
    let all = CqResizeField::LOG_CQ_SIZE.0
        | CqResizeField::PAGE_OFFSET.0
        | CqResizeField::LOG_PAGE_SIZE.0;
    type Edit = fn(&mut ModifyCqIn);
    let cases: &[(u32, Edit, Refusal)] = &[
        (all | 8, |_| (), Refusal::CqField),
        (
            all,
            |input| {
                input.cq_context_mut().set_log_cq_size(0);
            },
            Refusal::CqSize,
        ),
        (
            all,
            |input| {
                input.cq_context_mut().set_log_cq_size(30);
            },
            Refusal::CqSize,
        ),
        (
            all,
            |input| {
                input.set_cq_umem_offset(1 << 20);
            },
            Refusal::UmemBounds,
        ),
        (
            all,
            |input| {
                input.set_cq_umem_offset(0x1020);
            },
            Refusal::BufferMisaligned,
        ),
        (
            all,
            |input| {
                input.set_cq_umem_id(0x99);
            },
            Refusal::NoSuchUmem,
        ),
        (
            all,
            |input| {
                input.set_cq_umem_valid(false);
            },
            Refusal::ListTooShort,
        ),
        (
            all,
            |input| {
                input.set_cqn(0x99_9999);
            },
            Refusal::NoSuchCq,
        ),
        // The CQE that ends the buffer cannot be written there: the address is unmapped.
        (all, |_| (), Refusal::CqState),
        (all, |_| (), Refusal::CqState),
    ];
    for (case, &(select, edit, refusal)) in cases.iter().enumerate() {
        let answer = rig.call::<ModifyCqIn>(user.uid, ModifyCqIn::RESIZE, &[], 0, |input| {
            input.set_cqn(user.cq).set_modify_field_select(select);
            input.set_cq_umem_valid(true).set_cq_umem_id(user.umem).set_cq_umem_offset(0x2000);
            input.cq_context_mut().set_log_cq_size(5);
            edit(input);
        });
        assert_eq!(answer.map(drop), Err(refusal), "case {case}");
        assert_eq!(rig.locked.functions[0].hca.objects.cqs[&user.cq].log_size, 6, "case {case}");
    }
    let mut rig = Rig::up_of(Profile::load("connectx6vf").unwrap().with_link(LINK));
    let user = rig.user();
    let answer = rig.call::<ModifyCqIn>(user.uid, ModifyCqIn::RESIZE, &[], 0, |input| {
        input.set_cqn(user.cq).set_modify_field_select(all);
        input.set_cq_umem_valid(true).set_cq_umem_id(user.umem);
        input.cq_context_mut().set_log_cq_size(5);
    });
    assert_eq!(answer.map(drop), Err(Refusal::Unsupported), "without the capability");
}

#[test]
fn event_type_belongs_to_one_eq() {
    let mut rig = Rig::up(LINK);
    let first = rig.eq(0x10, 9).unwrap();
    assert_eq!(rig.eq(0x10, 9), Err(Refusal::EqEvents));
    assert_eq!(rig.eq(0x10, 200), Err(Refusal::EqEvents));
    let second = rig.eq(0x10, 4).unwrap();
    let context = rig
        .send::<QueryEqIn>(0, |input| {
            input.set_eq_number(first);
        })
        .unwrap();
    assert_eq!(context.event_bitmask(), 1 << 9);
    let counters = context.eq_context_entry();
    assert_eq!((counters.consumer_counter(), counters.producer_counter()), (0, 0));
    for number in [first, second] {
        rig.send::<DestroyEqIn>(0, |input| {
            input.set_eq_number(number);
        })
        .unwrap();
    }
    rig.eq(0x10, 9).unwrap();
}

#[test]
fn create_eq_refuses_each_invalid_field() {
    type Edit = fn(&mut CreateEqIn);
    let cases: &[(Edit, Refusal)] = &[
        (
            |input| {
                input.eq_context_entry_mut().set_log_eq_size(23);
            },
            Refusal::EqSize,
        ),
        (
            |input| {
                input.eq_context_entry_mut().set_log_eq_size(7);
            },
            Refusal::ListTooShort,
        ),
        (
            |input| {
                input.eq_context_entry_mut().set_uar_page(0x11);
            },
            Refusal::NoSuchUar,
        ),
        (
            |input| {
                input.eq_context_entry_mut().set_intr(64);
            },
            Refusal::NoSuchVector,
        ),
        (
            |input| {
                input.eq_context_entry_mut().set_ec(true);
            },
            Refusal::Unsupported,
        ),
    ];
    let mut rig = Rig::up(LINK);
    for (number, (edit, expected)) in cases.iter().enumerate() {
        let created = rig.call::<CreateEqIn>(0, 0, &pages(1), 0, |input| {
            input.eq_context_entry_mut().set_log_eq_size(6).set_uar_page(0x10);
            edit(input);
        });
        assert_eq!(created.err(), Some(*expected), "case {number}");
    }
}

#[test]
fn eq_count_is_limited_by_capability() {
    let mut rig = Rig::up(LINK);
    for _ in 1..64 {
        rig.eq(0x10, 0).unwrap();
    }
    assert_eq!(rig.eq(0x10, 0), Err(Refusal::TooMany));
}
