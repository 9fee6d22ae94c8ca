//! A function's life cycle, its pages and capabilities, and the checks that all commands share.

use verbless_prm::{
    AllocPdIn, AllocUarIn, AtomicCap, AtomicReqEndianness, CommandInput, CreateUctxIn,
    DeallocUarIn, DestroyEqIn, DisableHcaIn, EnableHcaIn, HcaCap, HcaCapPage, InitHcaIn,
    ManagePagesIn, NopIn, Opcode, QueryAdapterIn, QueryHcaCapIn, QueryIssiIn, QueryPagesIn,
    QuerySpecialContextsIn, QueryVuidIn, ServiceType, SetHcaCapIn, SetIssiIn, TeardownHcaIn,
    TeardownProfile,
};

use super::rig::{Rig, pages};
use crate::ObjectCounts;
use crate::hca::Refusal;
use crate::profile::{Link, Profile, Side};

const LINK: Link = Link::Infiniband;

#[test]
fn command_is_refused_outside_its_function_states() {
    let mut rig = Rig::new(LINK);
    assert_eq!(rig.send::<NopIn>(0, |_| {}), Err(Refusal::NotEnabled));
    assert_eq!(rig.send::<InitHcaIn>(0, |_| {}), Err(Refusal::NotEnabled));
    rig.send::<EnableHcaIn>(0, |_| {}).unwrap();
    assert_eq!(rig.send::<EnableHcaIn>(0, |_| {}), Err(Refusal::AlreadyEnabled));
    rig.send::<NopIn>(0, |_| {}).unwrap();
    assert_eq!(rig.send::<AllocPdIn>(0, |_| {}), Err(Refusal::NotInitialised));
    assert_eq!(rig.send::<InitHcaIn>(0, |_| {}), Err(Refusal::PagesLacking));
    rig.give_pages(262).unwrap();
    rig.send::<InitHcaIn>(0, |_| {}).unwrap();
    assert_eq!(rig.send::<InitHcaIn>(0, |_| {}), Err(Refusal::AlreadyInitialised));
    assert_eq!(rig.send::<DisableHcaIn>(0, |_| {}), Err(Refusal::AlreadyInitialised));
    rig.send::<TeardownHcaIn>(0, |_| {}).unwrap();
    assert_eq!(rig.send::<TeardownHcaIn>(0, |_| {}), Err(Refusal::NotInitialised));
    rig.send::<DisableHcaIn>(0, |_| {}).unwrap();
    rig.send::<EnableHcaIn>(0, |_| {}).unwrap();
}

#[test]
fn init_hca_accepts_short_input() {
    let mut rig = Rig::new(LINK);
    rig.send::<EnableHcaIn>(0, |_| {}).unwrap();
    rig.give_pages(262).unwrap();
    let mut input = [0; 0x10];
    input[..2].copy_from_slice(&0x102_u16.to_be_bytes());
    rig.raw(&input, &mut [0; 0x10]).unwrap();
}

#[test]
fn pages_are_requested_given_once_and_reclaimed() {
    let mut rig = Rig::new(LINK);
    rig.send::<EnableHcaIn>(0, |_| {}).unwrap();
    let lacking = |rig: &mut Rig, kind| {
        rig.call::<QueryPagesIn>(0, kind, &[], 0, |_| {}).unwrap().0.num_pages()
    };
    assert_eq!(lacking(&mut rig, QueryPagesIn::BOOT_PAGES), 6);
    rig.give_pages(6).unwrap();
    assert_eq!(lacking(&mut rig, QueryPagesIn::BOOT_PAGES), 0);
    assert_eq!(lacking(&mut rig, QueryPagesIn::INIT_PAGES), 256);
    assert_eq!(lacking(&mut rig, QueryPagesIn::REGULAR_PAGES), 0);
    let give = |rig: &mut Rig, list: &[u8], count| {
        rig.call::<ManagePagesIn>(0, ManagePagesIn::ALLOCATION_SUCCESS, list, 0, |input| {
            input.set_input_num_entries(count);
        })
        .map(|_| ())
    };
    assert_eq!(give(&mut rig, &[0; 7], 1), Err(Refusal::ListTooShort));
    assert_eq!(give(&mut rig, &[], u32::MAX), Err(Refusal::ListTooShort));
    assert_eq!(give(&mut rig, &0x1800_u64.to_be_bytes(), 1), Err(Refusal::PageMisaligned));
    assert_eq!(give(&mut rig, &0x1000_u64.to_be_bytes(), 1), Err(Refusal::PageTwice));
    let twice = [pages(1), pages(1)].concat();
    assert_eq!(give(&mut rig, &twice, 2), Err(Refusal::PageTwice));
    let take = |rig: &mut Rig, count, room| {
        rig.call::<ManagePagesIn>(0, ManagePagesIn::HCA_RETURN_PAGES, &[], room, |input| {
            input.set_input_num_entries(count);
        })
        .map(|(output, list)| (output.output_num_entries(), list))
    };
    assert_eq!(take(&mut rig, 2, 8), Err(Refusal::OutputTooShort));
    assert_eq!(take(&mut rig, 1, 8).unwrap(), (1, 0x6000_u64.to_be_bytes().to_vec()));
    assert_eq!(take(&mut rig, 100, 800).unwrap().0, 5);
    assert_eq!(lacking(&mut rig, QueryPagesIn::BOOT_PAGES), 6);
}

#[test]
fn set_hca_cap_changes_only_atomic_byte_order() {
    let mut rig = Rig::new(LINK);
    rig.send::<EnableHcaIn>(0, |_| {}).unwrap();
    let before = *rig.locked.functions[0].hca.caps.atomic();
    let set = |rig: &mut Rig, mode| {
        let mut page = [0; 0x1000];
        let cap = AtomicCap::from_prefix_mut(&mut page).unwrap();
        cap.set_atomic_req_8b_endianness_mode(AtomicReqEndianness(mode));
        let set = rig.call::<SetHcaCapIn>(0, HcaCapPage::ATOMIC.0 << 1, &[], 0, |input| {
            input.set_capability(&page);
        });
        set.err()
    };
    assert_eq!(set(&mut rig, 0), None);
    assert_eq!(
        rig.locked.functions[0].hca.caps.atomic().atomic_operations(),
        before.atomic_operations()
    );
    assert_eq!(set(&mut rig, 2), Some(Refusal::CapabilityExceeded));
    assert_eq!(set(&mut rig, 1), None);
    assert_eq!(*rig.locked.functions[0].hca.caps.atomic(), before);
}

#[test]
fn capabilities_narrow_before_init_within_max() {
    let mut rig = Rig::new(LINK);
    rig.send::<EnableHcaIn>(0, |_| {}).unwrap();
    let query = |rig: &mut Rig, op_mod| {
        let query = rig.call::<QueryHcaCapIn>(0, op_mod, &[], 0, |_| {});
        query.map(|(output, _)| *HcaCap::from_prefix(output.capability()).unwrap())
    };
    let set = |rig: &mut Rig, cap: &HcaCap| {
        let mut page = [0; 0x1000];
        page[..HcaCap::BYTES].copy_from_slice(cap.as_bytes());
        rig.send::<SetHcaCapIn>(0, |input| {
            input.set_capability(&page);
        })
        .map(|_| ())
    };
    let mut cap = query(&mut rig, QueryHcaCapIn::GENERAL_CUR).unwrap();
    let max = query(&mut rig, QueryHcaCapIn::GENERAL_MAX).unwrap();
    assert!(max.cache_line_128byte() && !cap.cache_line_128byte());
    assert_eq!(query(&mut rig, 0x7e), Err(Refusal::NoSuchPage));
    cap.set_log_max_pd(1).set_cache_line_128byte(true);
    set(&mut rig, &cap).unwrap();
    assert_eq!(query(&mut rig, QueryHcaCapIn::GENERAL_CUR).unwrap(), cap);
    assert_eq!(set(&mut rig, cap.clone().set_log_max_pd(24)), Err(Refusal::CapabilityExceeded));
    assert_eq!(set(&mut rig, cap.clone().set_cd(true)), Err(Refusal::CapabilityExceeded));
    rig.give_pages(262).unwrap();
    rig.send::<InitHcaIn>(0, |_| {}).unwrap();
    assert_eq!(set(&mut rig, &cap), Err(Refusal::AlreadyInitialised));
    rig.send::<AllocPdIn>(0, |_| {}).unwrap();
    rig.send::<AllocPdIn>(0, |_| {}).unwrap();
    assert_eq!(rig.send::<AllocPdIn>(0, |_| {}), Err(Refusal::TooMany));
}

#[test]
fn embedded_cpu_flag_must_match_function_side() {
    let profile = Profile::load("bluefield3").unwrap();
    for (side, embedded) in [(Side::Host, false), (Side::Dpu, true)] {
        let mut rig = Rig::of(profile.clone().on(side).unwrap());
        let other = Err(Refusal::NoSuchFunction);
        let enable = |rig: &mut Rig, embedded| {
            rig.send::<EnableHcaIn>(0, |input| {
                input.set_embedded_cpu_function(embedded);
            })
        };
        assert_eq!(enable(&mut rig, !embedded).map(drop), other);
        enable(&mut rig, embedded).unwrap();
        let query = |rig: &mut Rig, embedded| {
            let kind = QueryPagesIn::BOOT_PAGES;
            rig.call::<QueryPagesIn>(0, kind, &[], 0, |input| {
                input.set_embedded_cpu_function(embedded);
            })
        };
        assert_eq!(query(&mut rig, !embedded).map(drop), other);
        let (answer, _) = query(&mut rig, embedded).unwrap();
        assert_eq!((answer.embedded_cpu_function(), answer.num_pages()), (embedded, 6));
        let give = |rig: &mut Rig, embedded| {
            let list: Vec<u8> = (1..=6_u64).flat_map(|page| (page << 12).to_be_bytes()).collect();
            rig.call::<ManagePagesIn>(0, ManagePagesIn::ALLOCATION_SUCCESS, &list, 0, |input| {
                input.set_input_num_entries(6).set_embedded_cpu_function(embedded);
            })
        };
        assert_eq!(give(&mut rig, !embedded).map(drop), other);
        give(&mut rig, embedded).unwrap();
        let disable = |rig: &mut Rig, embedded| {
            rig.send::<DisableHcaIn>(0, |input| {
                input.set_embedded_cpu_function(embedded);
            })
        };
        assert_eq!(disable(&mut rig, !embedded).map(drop), other);
        disable(&mut rig, embedded).unwrap();
    }
}

#[test]
fn ecpf_may_enable_and_disable_host_function() {
    let profile = Profile::load("bluefield3").unwrap().on(Side::Dpu).unwrap();
    let mut rig = Rig::of(profile);
    rig.send::<EnableHcaIn>(0, |input| {
        input.set_embedded_cpu_function(true);
    })
    .unwrap();
    assert_eq!(rig.send::<DisableHcaIn>(0, |_| {}), Err(Refusal::NoSuchFunction));
    let list: Vec<u8> = (1..=262_u64).flat_map(|page| (page << 12).to_be_bytes()).collect();
    rig.call::<ManagePagesIn>(0, ManagePagesIn::ALLOCATION_SUCCESS, &list, 0, |input| {
        input.set_input_num_entries(262).set_embedded_cpu_function(true);
    })
    .unwrap();
    rig.send::<InitHcaIn>(0, |_| {}).unwrap();
    for _ in 0..2 {
        rig.send::<EnableHcaIn>(0, |_| {}).unwrap();
        rig.send::<DisableHcaIn>(0, |_| {}).unwrap();
    }
    rig.send::<AllocPdIn>(0, |_| {}).unwrap();
    let other = rig.send::<EnableHcaIn>(0, |input| {
        input.set_function_id(1);
    });
    assert_eq!(other, Err(Refusal::NoSuchFunction));
}

#[test]
fn device_identifies_as_model() {
    let mut rig = Rig::up(LINK);
    let adapter = rig.send::<QueryAdapterIn>(0, |_| {}).unwrap();
    assert_eq!(adapter.query_adapter_struct().vsd_contd_psid(), b"VBL0000000001\0\0\0");
    let keys = rig.send::<QuerySpecialContextsIn>(0, |_| {}).unwrap();
    assert_eq!((keys.null_mkey(), keys.resd_lkey()), (0x200, 0x100));
    let (vuid, text) = rig
        .call::<QueryVuidIn>(0, 0, &[], 128, |input| {
            input.set_vhca_id(1);
        })
        .unwrap();
    assert_eq!(vuid.num_of_entries(), 1);
    assert!(text.starts_with(b"VBL"), "{text:?}");
    assert_eq!(rig.send::<QueryVuidIn>(0, |_| {}), Err(Refusal::NoSuchFunction));
}

#[test]
fn set_issi_accepts_only_offered_versions() {
    let mut rig = Rig::up(LINK);
    assert_eq!(rig.send::<QueryIssiIn>(0, |_| {}).unwrap().supported_issi_dw0(), 0b11);
    let set = |rig: &mut Rig, issi| {
        rig.send::<SetIssiIn>(0, |input| {
            input.set_current_issi(issi);
        })
        .map(|_| ())
    };
    set(&mut rig, 1).unwrap();
    assert_eq!(set(&mut rig, 2), Err(Refusal::NoSuchIssi));
    assert_eq!(set(&mut rig, 40), Err(Refusal::NoSuchIssi));
    assert_eq!(rig.send::<QueryIssiIn>(0, |_| {}).unwrap().current_issi(), 1);
}

#[test]
fn only_forced_teardown_removes_live_objects() {
    let mut rig = Rig::up(LINK);
    let user = rig.user();
    rig.qp(user, |_| {}).unwrap();
    rig.mkey(user, |_| {}).unwrap();
    let teardown = |rig: &mut Rig, profile| {
        rig.send::<TeardownHcaIn>(0, |input| {
            input.set_profile(profile);
        })
        .map(|_| ())
    };
    assert_eq!(teardown(&mut rig, TeardownProfile::GRACEFUL_CLOSE), Err(Refusal::ObjectsExist));
    assert_eq!(teardown(&mut rig, TeardownProfile(9)), Err(Refusal::BadProfile));
    for (profile, set) in [
        (TeardownProfile::FORCE_CLOSE, HcaCap::set_force_teardown as fn(&mut _, _) -> &mut _),
        (TeardownProfile::PREPARE_FAST_TEARDOWN, HcaCap::set_fast_teardown),
    ] {
        set(rig.locked.functions[0].hca.caps.general_mut(), false);
        assert_eq!(teardown(&mut rig, profile), Err(Refusal::BadProfile));
        set(rig.locked.functions[0].hca.caps.general_mut(), true);
    }
    for profile in [TeardownProfile::FORCE_CLOSE, TeardownProfile::PREPARE_FAST_TEARDOWN] {
        let mut rig = Rig::up(LINK);
        rig.user();
        teardown(&mut rig, profile).unwrap();
        // The driver waits on an EQ for the completion of this command.
        assert_eq!(rig.counts(), ObjectCounts { eqs: 1, ..Default::default() });
        rig.send::<DisableHcaIn>(0, |_| {}).unwrap();
        assert_eq!(rig.counts(), Default::default());
    }
}

#[test]
fn malformed_command_headers_are_rejected() {
    let mut rig = Rig::up(LINK);
    let nop = |edit: fn(&mut [u8; 16])| {
        let mut input = [0; 16];
        input[..2].copy_from_slice(&<NopIn as CommandInput>::INFO.opcode.to_be_bytes());
        edit(&mut input);
        input
    };
    rig.raw(&nop(|_| {}), &mut [0; 16]).unwrap();
    for (edit, expected) in [
        ((|input| input[0] = 0xff) as fn(&mut [u8; 16]), Refusal::UnknownOpcode),
        (|input| input[7] = 1, Refusal::UnknownOpMod),
        (|input| input[4] = 1, Refusal::Reserved),
        (|input| input[15] = 1, Refusal::Reserved),
        (|input| input[3] = 77, Refusal::NoSuchUid),
    ] {
        assert_eq!(rig.raw(&nop(edit), &mut [0; 16]), Err(expected));
    }
    for length in 0..16 {
        let refused = rig.raw(&nop(|_| {})[..length], &mut [0; 16]);
        assert_eq!(refused, Err(Refusal::InputTooShort), "{length} bytes in");
    }
    for length in 8..16 {
        let refused = rig.raw(&nop(|_| {}), &mut vec![0; length]);
        assert_eq!(refused, Err(Refusal::OutputTooShort), "{length} bytes out");
    }
    // An outbox too short for a status and a syndrome gets the bytes that fit.
    for length in 0..8 {
        let mut output = vec![0xa5; length];
        crate::engine::execute(&mut rig.locked, 0, &nop(|_| {}), &mut output);
        assert!(output.iter().all(|&byte| byte == 0 || byte == 0x51), "{output:?}");
    }
}

/// The log's detail of the last refusal, besides its reason.
fn detail(rig: &Rig) -> Option<&str> {
    rig.locked.functions[0].hca.refused.last()?.detail.as_deref()
}

#[test]
fn refusal_log_names_the_offending_field() {
    let mut rig = Rig::up(LINK);
    let user = rig.user();
    let mut nop = [0; 16];
    nop[..2].copy_from_slice(&Opcode::NOP.0.to_be_bytes());
    nop[15] = 0x06;
    assert_eq!(rig.raw(&nop, &mut [0; 16]), Err(Refusal::Reserved));
    assert_eq!(detail(&rig), Some("64 reserved bits from bit 64 on"));
    let made = rig.qp(user, |input| {
        input.qpc_mut().set_st(ServiceType::MLX);
    });
    assert_eq!(made, Err(Refusal::TransportService));
    assert_eq!(detail(&rig), Some("MLX, requested by a user"));
    let made = rig.qp(user, |input| {
        input.qpc_mut().set_atomic_like_write_en(true);
    });
    assert_eq!(made, Err(Refusal::Unsupported));
    assert_eq!(detail(&rig), Some("qp_context.atomic_like_write_en is not modelled"));
    assert_eq!(rig.register(0x1234, &[0; 16]), Err(Refusal::NoSuchRegister));
    assert_eq!(detail(&rig), Some("register 0x1234"));
    // A later refusal does not repeat an earlier detail.
    nop[3] = 77;
    assert_eq!(rig.raw(&nop, &mut [0; 16]), Err(Refusal::NoSuchUid));
    assert_eq!(detail(&rig), None);
}

#[test]
fn unmodelled_command_is_rejected_by_name() {
    let mut rig = Rig::up(LINK);
    // CREATE_XRQ has a name and no layout.
    for (opcode, name) in [
        (0x700_u16, Some("CREATE_SRQ")),
        (0x918, Some("DESTROY_RQT")),
        (0x717, Some("CREATE_XRQ")),
        (0xa7f, None),
    ] {
        let mut input = vec![0; 0x400];
        input[..2].copy_from_slice(&opcode.to_be_bytes());
        let expected = match name {
            Some(_) => Refusal::NotModelled,
            None => Refusal::UnknownOpcode,
        };
        assert_eq!(rig.raw(&input, &mut [0; 0x400]), Err(expected), "{opcode:#x}");
        let refused =
            rig.locked.functions[0].hca.refused.last().expect("the refusal is kept for the log");
        assert_eq!((refused.opcode, refused.command()), (opcode, name));
    }
}

#[test]
fn injected_failure_has_no_side_effect() {
    let mut rig = Rig::up(LINK);
    rig.locked.functions[0].hca.faults.add(
        <AllocPdIn as CommandInput>::INFO.opcode,
        2,
        (0xf, 0x1234_5678),
    );
    rig.send::<AllocPdIn>(0, |_| {}).unwrap();
    let before = rig.counts();
    let mut input = [0; 16];
    input[..2].copy_from_slice(&<AllocPdIn as CommandInput>::INFO.opcode.to_be_bytes());
    let mut output = [0xa5; 16];
    crate::engine::execute(&mut rig.locked, 0, &input, &mut output);
    assert_eq!(output[..8], [0xf, 0, 0, 0, 0x12, 0x34, 0x56, 0x78]);
    assert_eq!(rig.counts(), before);
    rig.send::<AllocPdIn>(0, |_| {}).unwrap();
}

#[test]
fn fatal_device_fails_every_command() {
    let mut rig = Rig::up(LINK);
    rig.locked.functions[0].hca.fatal = true;
    assert_eq!(rig.send::<NopIn>(0, |_| {}), Err(Refusal::DeviceFatal));
    assert_eq!(rig.send::<CreateUctxIn>(0, |_| {}), Err(Refusal::DeviceFatal));
}

#[test]
fn new_function_has_4_kib_uars_for_any_profile() {
    let text = "base = \"connectx6dx\"\n[caps.general]\nuar_4k = true\nlog_uar_page_sz = 2\n\
                num_of_uars_per_page = 4\n";
    let mut rig = Rig::up_of(Profile::from_toml(text).unwrap());
    let (output, _) =
        rig.call::<QueryHcaCapIn>(0, QueryHcaCapIn::GENERAL_CUR, &[], 0, |_| {}).unwrap();
    let general = HcaCap::from_prefix(output.capability()).unwrap();
    assert_eq!((general.log_uar_page_sz(), general.num_of_uars_per_page()), (0, 1));
    let mut alloc = || rig.send::<AllocUarIn>(0, |_| {}).unwrap().uar();
    let (one, other) = (alloc(), alloc());
    assert_eq!(other, one + 1);
}

#[test]
fn function_has_255_ports() {
    let text = "base = \"connectx6dx\"\n[caps.general]\nnum_ports = 255\n";
    Rig::up_of(Profile::from_toml(text).unwrap());
}

#[test]
fn uars_of_a_larger_system_page_are_allocated_together() {
    let mut rig = Rig::new(LINK);
    rig.send::<EnableHcaIn>(0, |_| {}).unwrap();
    let query = |rig: &mut Rig, op_mod| {
        let (output, _) = rig.call::<QueryHcaCapIn>(0, op_mod, &[], 0, |_| {}).unwrap();
        *HcaCap::from_prefix(output.capability()).unwrap()
    };
    let set = |rig: &mut Rig, cap: &HcaCap| {
        let mut page = [0; 0x1000];
        page[..HcaCap::BYTES].copy_from_slice(cap.as_bytes());
        rig.send::<SetHcaCapIn>(0, |input| _ = input.set_capability(&page)).map(|_| ())
    };
    let mut cap = query(&mut rig, QueryHcaCapIn::GENERAL_CUR);
    // Pages of 16 KiB, as Linux asks for them.
    cap.set_uar_4k(true).set_log_uar_page_sz(2);
    set(&mut rig, &cap).unwrap();
    assert_eq!(query(&mut rig, QueryHcaCapIn::GENERAL_CUR).num_of_uars_per_page(), 4);
    let too_large = query(&mut rig, QueryHcaCapIn::GENERAL_MAX).log_uar_page_sz() + 1;
    for (uar_4k, log) in [(true, too_large), (false, 2)] {
        cap.set_uar_4k(uar_4k).set_log_uar_page_sz(log);
        assert_eq!(set(&mut rig, &cap), Err(Refusal::CapabilityExceeded), "{uar_4k} {log}");
    }
    rig.give_pages(262).unwrap();
    rig.send::<InitHcaIn>(0, |_| {}).unwrap();
    let alloc = |rig: &mut Rig| rig.send::<AllocUarIn>(0, |_| {}).unwrap().uar();
    let free = |rig: &mut Rig, uar| {
        rig.send::<DeallocUarIn>(0, |input| _ = input.set_uar(uar)).map(|_| ())
    };
    let (one, other) = (alloc(&mut rig), alloc(&mut rig));
    assert!(one.is_multiple_of(4) && other == one + 4, "{one:#x} {other:#x}");
    // An EQ on the third UAR of the first page holds the whole page.
    let eq = rig.eq(one + 2, 0).unwrap();
    assert_eq!(
        free(&mut rig, one + 2),
        Err(Refusal::NoSuchUar),
        "the UAR is not the first of a page"
    );
    assert_eq!(free(&mut rig, one), Err(Refusal::UarInUse));
    rig.send::<DestroyEqIn>(0, |input| _ = input.set_eq_number(eq)).unwrap();
    free(&mut rig, one).unwrap();
    assert_eq!(free(&mut rig, one), Err(Refusal::NoSuchUar));
    assert_eq!(alloc(&mut rig), one);
}
