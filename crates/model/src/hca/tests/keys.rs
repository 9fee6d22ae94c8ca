//! UMEMs and memory keys.

use verbless_prm::{CreateMkeyIn, CreateUmemIn, MkeyAccessMode, QueryMkeyIn};

use super::rig::{Rig, UMEM, User};
use crate::hca::Refusal;
use crate::hca::objects::Translation;
use crate::profile::Link;

const LINK: Link = Link::Infiniband;

#[test]
fn umem_needs_aligned_pages_and_offset_in_first() {
    let mut rig = Rig::up(LINK);
    let uid = rig.uctx();
    let create = |rig: &mut Rig, entries: &[u64], edit: fn(&mut CreateUmemIn)| {
        let list: Vec<u8> = entries.iter().flat_map(|entry| entry.to_be_bytes()).collect();
        rig.call::<CreateUmemIn>(uid, 0, &list, 0, |input| {
            input.umem_mut().set_num_of_mtt(entries.len() as u64);
            edit(input);
        })
        .map(|_| ())
    };
    create(&mut rig, &[0x1003, 0x5003], |_| {}).unwrap();
    create(&mut rig, &[0x4_0003], |input| {
        input.umem_mut().set_log_page_size(6);
    })
    .unwrap();
    for (entries, edit, expected) in [
        (&[][..], (|_| {}) as fn(&mut CreateUmemIn), Refusal::UmemPages),
        (
            &[0x1003],
            |input| {
                input.umem_mut().set_num_of_mtt(2);
            },
            Refusal::ListTooShort,
        ),
        (
            &[0x1003],
            |input| {
                input.umem_mut().set_num_of_mtt(u64::MAX);
            },
            Refusal::ListTooShort,
        ),
        (&[0x1803], |_| {}, Refusal::PageMisaligned),
        (
            &[0x1003],
            |input| {
                input.umem_mut().set_log_page_size(6);
            },
            Refusal::PageMisaligned,
        ),
        (&[0x1007], |_| {}, Refusal::Reserved),
        (
            &[0x1003],
            |input| {
                input.umem_mut().set_page_offset(4096);
            },
            Refusal::UmemPages,
        ),
        (
            &[0x1003, 0x2003],
            |input| {
                input.umem_mut().set_page_offset(4096);
            },
            Refusal::UmemPages,
        ),
        (
            &[0x1003],
            |input| {
                input.umem_mut().set_ats(true);
            },
            Refusal::Unsupported,
        ),
    ] {
        assert_eq!(create(&mut rig, entries, edit), Err(expected), "{entries:x?}");
    }
    assert_eq!(rig.counts().umems, 2);
}

#[test]
fn query_mkey_returns_created_context() {
    let mut rig = Rig::up(LINK);
    let user = rig.user();
    let index = rig.mkey(user, |_| {}).unwrap();
    let read = rig
        .send::<QueryMkeyIn>(user.uid, |input| {
            input.set_mkey_index(index);
        })
        .unwrap();
    let context = read.memory_key_mkey_entry();
    assert_eq!((context.mkey_7_0(), context.pd()), (0x5a, user.pd));
    assert_eq!((context.start_addr(), context.len()), (0x7000_0000, 8192));
    let mkey = &rig.locked.functions[0].hca.objects.mkeys[&index];
    let Translation::Pages(memory) = &mkey.translation else { panic!("{mkey:?}") };
    assert_eq!(memory.address(0), 0x10_0000_1000);
    assert_eq!(memory.address(8191), 0x10_0000_2fff);
    assert!(mkey.access.local_write && mkey.access.remote_write && !mkey.access.remote_read);
}

#[test]
fn mkey_may_start_at_offset_of_its_umem() {
    let mut rig = Rig::up(LINK);
    let user = User { umem: 0, ..rig.user() };
    let user = User { umem: rig.umem(user.uid, 0x123, true).unwrap(), ..user };
    let index = rig
        .mkey(user, |input| {
            input.set_mkey_umem_offset(0x1000).set_translations_octword_actual_size(2);
            input.memory_key_mkey_entry_mut().set_start_addr(0x7000_0123).set_len(5000);
        })
        .unwrap();
    let Translation::Pages(memory) = &rig.locked.functions[0].hca.objects.mkeys[&index].translation
    else {
        panic!("no pages")
    };
    assert_eq!(memory.address(0), 0x10_0000_1123);
    let askew = rig.mkey(user, |input| {
        input.set_mkey_umem_offset(0x1000);
    });
    assert_eq!(askew, Err(Refusal::MkeyOffset));
}

#[test]
fn mkey_page_list_counts_from_page_of_start() {
    let mut rig = Rig::up(LINK);
    let pd = rig.send::<verbless_prm::AllocPdIn>(0, |_| {}).unwrap().pd();
    let list: Vec<u8> = (1..=4_u64).flat_map(|page| (page << 12).to_be_bytes()).collect();
    // Two octwords hold four pages; the first of them counts from 0x123 on.
    for (length, octwords, covered) in
        [(4 * 4096 - 0x123, 2, true), (4 * 4096 - 0x122, 2, false), (1, 0, false)]
    {
        let made = rig.call::<CreateMkeyIn>(0, 0, &list, 0, |input| {
            input.set_translations_octword_actual_size(octwords);
            let context = input.memory_key_mkey_entry_mut();
            context.set_access_mode_1_0(MkeyAccessMode::MTT.0).set_pd(pd).set_qpn(0xff_ffff);
            context.set_lr(true).set_log_page_size(12).set_start_addr(0x7000_0123).set_len(length);
        });
        let expected = if covered { Ok(()) } else { Err(Refusal::MkeyTranslations) };
        assert_eq!(made.map(|_| ()), expected, "{length} bytes");
    }
}

#[test]
fn umem_mkey_needs_no_page_size_or_count() {
    let mut rig = Rig::up(LINK);
    let user = rig.user();
    for (log_page_size, octwords) in [(0, 0), (0, 1), (12, 2), (12, 0)] {
        rig.mkey(user, |input| {
            input.set_translations_octword_actual_size(octwords);
            input.memory_key_mkey_entry_mut().set_log_page_size(log_page_size);
        })
        .unwrap();
    }
}

#[test]
fn mkey_start_matches_offset_in_the_umems_page() {
    let mut rig = Rig::up(LINK);
    let user = rig.user();
    // Two pages of 64 KiB at bus addresses unknown to software.
    let list: Vec<u8> = [0x10_0003_u64, 0x40_0003].iter().flat_map(|at| at.to_be_bytes()).collect();
    let umem = rig.call::<CreateUmemIn>(user.uid, 0, &list, 0, |input| {
        input.umem_mut().set_log_page_size(4).set_num_of_mtt(2);
    });
    let user = User { umem: umem.unwrap().0.umem_id(), ..user };
    for (start, offset, fits) in [
        (0x7000_0000, 0, true),
        (0x7001_0000, 0, true),
        (0x7000_1000, 0, false),
        (0x7000_8000, 0, false),
        (0x7000_1000, 0x1000, true),
        (0x7000_1000, 0x1_1000, true),
        (0x7000_0000, 0x1000, false),
    ] {
        let made = rig.mkey(user, |input| {
            input.set_mkey_umem_offset(offset);
            input.memory_key_mkey_entry_mut().set_start_addr(start).set_len(64);
        });
        let expected = if fits { Ok(()) } else { Err(Refusal::MkeyOffset) };
        assert_eq!(made.map(|_| ()), expected, "start {start:#x}, offset {offset:#x}");
    }
}

#[test]
fn umem_pages_of_an_iommu_are_complete_and_aligned() {
    let mut rig = Rig::up(LINK);
    let user = rig.user();
    let iommu = rig.locked.functions[0].hca.iommu.clone();
    let mapped = iommu.map(0x7000_3000, 0x1_0000, 0x1000).expect("there is room");
    let bus = mapped.bus_address();
    let create = |rig: &mut Rig, page: u64| {
        rig.call::<CreateUmemIn>(user.uid, 0, &(page | 3).to_be_bytes(), 0, |input| {
            input.umem_mut().set_log_page_size(4).set_num_of_mtt(1);
        })
    };
    let umem = create(&mut rig, bus).unwrap().0.umem_id();
    let memory = &rig.locked.functions[0].hca.objects.umems[&umem].memory;
    assert_eq!((memory.address(0), memory.address(0xffff)), (0x7000_3000, 0x7001_2fff));
    assert!(matches!(create(&mut rig, bus + 0x1000), Err(Refusal::PageMisaligned)));
}

#[test]
fn mkey_start_matches_umem_in_every_offset_bit() {
    let mut rig = Rig::up(LINK);
    let user = rig.user();
    let with = |rig: &mut Rig, start: u64, at: u64| {
        rig.mkey(user, |input| {
            input.set_mkey_umem_offset(at);
            input.memory_key_mkey_entry_mut().set_start_addr(start).set_len(64);
        })
    };
    for bit in 0..12 {
        let askew = with(&mut rig, 0x7000_0000, 0x1000 | 1 << bit);
        assert_eq!(askew, Err(Refusal::MkeyOffset), "bit {bit} of the UMEM's offset");
        let askew = with(&mut rig, 0x7000_0000 | 1 << bit, 0x1000);
        assert_eq!(askew, Err(Refusal::MkeyOffset), "bit {bit} of the start");
        with(&mut rig, 0x7000_0000 | 1 << bit, 0x1000 | 1 << bit).unwrap();
    }
    with(&mut rig, 0x7000_1000, 0x2000).expect("only the offsets within a page must agree");
}

#[test]
fn create_mkey_refuses_each_invalid_field() {
    type Edit = fn(&mut CreateMkeyIn);
    let cases: &[(Edit, Refusal)] = &[
        (
            |input| {
                input.memory_key_mkey_entry_mut().set_pd(1);
            },
            Refusal::NoSuchPd,
        ),
        (
            |input| {
                input.set_mkey_umem_id(1);
            },
            Refusal::NoSuchUmem,
        ),
        (
            |input| {
                input.memory_key_mkey_entry_mut().set_len(0);
            },
            Refusal::MkeyLength,
        ),
        (
            |input| {
                input.memory_key_mkey_entry_mut().set_start_addr(u64::MAX - 4095);
            },
            Refusal::MkeyLength,
        ),
        (
            |input| {
                input.memory_key_mkey_entry_mut().set_length64(true);
            },
            Refusal::MkeyLength64,
        ),
        (
            |input| {
                input.memory_key_mkey_entry_mut().set_log_page_size(11);
            },
            Refusal::MkeyPageSize,
        ),
        (
            |input| {
                input.memory_key_mkey_entry_mut().set_log_page_size(13);
            },
            Refusal::MkeyPageSize,
        ),
        (
            |input| {
                input.memory_key_mkey_entry_mut().set_log_page_size(63);
            },
            Refusal::MkeyPageSize,
        ),
        (
            |input| {
                input.set_mkey_umem_offset(UMEM);
            },
            Refusal::UmemBounds,
        ),
        (
            |input| {
                input.set_mkey_umem_offset(UMEM - 4096);
            },
            Refusal::UmemBounds,
        ),
        (
            |input| {
                input.set_mkey_umem_offset(u64::MAX - 4095);
            },
            Refusal::UmemBounds,
        ),
        (
            |input| {
                input.set_mkey_umem_offset(64);
            },
            Refusal::MkeyOffset,
        ),
        (
            |input| {
                input.memory_key_mkey_entry_mut().set_access_mode_1_0(0);
            },
            Refusal::MkeyMode,
        ),
        (
            |input| {
                input.memory_key_mkey_entry_mut().set_access_mode_1_0(2);
            },
            Refusal::MkeyMode,
        ),
        (
            |input| {
                input.memory_key_mkey_entry_mut().set_access_mode_4_2(1);
            },
            Refusal::MkeyMode,
        ),
        (
            |input| {
                input.memory_key_mkey_entry_mut().set_free(true);
            },
            Refusal::MkeyMode,
        ),
        (
            |input| {
                input.memory_key_mkey_entry_mut().set_bsf_en(true);
            },
            Refusal::Unsupported,
        ),
        (
            |input| {
                input.memory_key_mkey_entry_mut().set_sync_umr(true);
            },
            Refusal::Unsupported,
        ),
        (
            |input| {
                input.set_data_direct(true);
            },
            Refusal::Unsupported,
        ),
        (
            |input| {
                input.set_pg_access(true);
            },
            Refusal::Unsupported,
        ),
    ];
    let mut rig = Rig::up(LINK);
    let user = rig.user();
    for (number, (edit, expected)) in cases.iter().enumerate() {
        assert_eq!(rig.mkey(user, edit), Err(*expected), "case {number}");
    }
    let read_only = User { umem: rig.umem(user.uid, 0, false).unwrap(), ..user };
    assert_eq!(rig.mkey(read_only, |_| {}), Err(Refusal::UmemReadOnly));
    rig.mkey(read_only, |input| {
        input.memory_key_mkey_entry_mut().set_lw(false).set_rw(false).set_rr(true);
    })
    .unwrap();
    assert_eq!(rig.counts().mkeys, 1);
}

#[test]
fn create_mkey_lists_entries_of_indirect_mkey() {
    let mut rig = Rig::up(LINK);
    let user = rig.user();
    let entry = |length: u32, key: u32, address: u64| {
        [length.to_be_bytes().as_slice(), &key.to_be_bytes(), &address.to_be_bytes()].concat()
    };
    let create = |rig: &mut Rig, mode: MkeyAccessMode, list: &[u8], length: u64, count: u32| {
        rig.call::<CreateMkeyIn>(user.uid, 0, list, 0, |input| {
            input.set_translations_octword_actual_size(count);
            let context = input.memory_key_mkey_entry_mut();
            context.set_access_mode_1_0(mode.0).set_pd(user.pd).set_qpn(0xff_ffff).set_lr(true);
            context.set_len(length).set_log_page_size(12);
        })
        .map(|(output, _)| output.mkey_index())
    };
    let klms = [entry(100, 0x1_0001, 0x5000), entry(200, 0x1_0002, 0xffff_ffff_0000)].concat();
    let index = create(&mut rig, MkeyAccessMode::KLMS, &klms, 300, 2).unwrap();
    let Translation::Indirect { entries, log_entry_size: None } =
        &rig.locked.functions[0].hca.objects.mkeys[&index].translation
    else {
        panic!("not indirect")
    };
    assert_eq!((entries[1].length, entries[1].key), (200, 0x1_0002));
    assert_eq!(entries[1].address, 0xffff_ffff_0000);
    assert_eq!(
        create(&mut rig, MkeyAccessMode::KLMS, &klms, 301, 2),
        Err(Refusal::MkeyTranslations)
    );
    assert_eq!(create(&mut rig, MkeyAccessMode::KLMS, &klms, 300, 3), Err(Refusal::ListTooShort));
    let huge = create(&mut rig, MkeyAccessMode::KLMS, &klms, 300, u32::MAX);
    assert_eq!(huge, Err(Refusal::MkeyEntries));
    // All entries of a KSM have the key's size, whatever length a driver writes into them.
    let ksms = [entry(1 << 31, 0x1_0001, 0), entry(0, 0x1_0002, 0)].concat();
    let index = create(&mut rig, MkeyAccessMode::KSM, &ksms, 8192, 2).unwrap();
    let translation = &rig.locked.functions[0].hca.objects.mkeys[&index].translation;
    assert_eq!(translation.covers(), 8192);
    assert_eq!(
        create(&mut rig, MkeyAccessMode::KSM, &ksms, 8193, 2),
        Err(Refusal::MkeyTranslations)
    );
}

/// CREATE_MKEY of an indirect key over these entries, with changes.
fn indirect(
    rig: &mut Rig,
    user: User,
    entries: &[(u32, u32, u64)],
    edit: impl Fn(&mut verbless_prm::MkeyContext),
) -> Result<(), Refusal> {
    let list: Vec<u8> = entries
        .iter()
        .flat_map(|(length, key, address)| {
            let words = [length.to_be_bytes(), key.to_be_bytes()].concat();
            [&words[..], &address.to_be_bytes()].concat()
        })
        .collect();
    let count = entries.len() as u32;
    rig.call::<CreateMkeyIn>(user.uid, 0, &list, 0, |input| {
        input.set_translations_octword_actual_size(count);
        let context = input.memory_key_mkey_entry_mut();
        context.set_access_mode_1_0(MkeyAccessMode::KLMS.0).set_pd(user.pd).set_qpn(0xff_ffff);
        context.set_lr(true).set_lw(true).set_len(4096).set_log_page_size(12);
        edit(context);
    })
    .map(|_| ())
}

#[test]
fn indirect_mkey_for_atomics_is_aligned_to_the_largest() {
    let mut rig = Rig::up(LINK);
    let user = rig.user();
    let klms = [(8192, 0x1_0001, 0x5000)];
    let mut make = |start: u64, length: u64, atomic: bool| {
        indirect(&mut rig, user, &klms, |context| {
            context.set_start_addr(start).set_len(length).set_a(atomic);
        })
    };
    assert_eq!(make(0, 100, true), Err(Refusal::MkeyAtomic));
    assert_eq!(make(4, 104, true), Err(Refusal::MkeyAtomic));
    assert_eq!(make(8, 104, true), Ok(()));
    assert_eq!(make(4, 100, false), Ok(()));
    let caps = &mut rig.locked.functions[0].hca.caps;
    caps.general_mut().set_umr_modify_atomic_disabled(true);
    let made = indirect(&mut rig, user, &klms, |context| {
        context.set_a(true);
    });
    assert_eq!(made, Ok(()), "umr_modify_atomic_disabled concerns only UMR");
}

#[test]
fn ksm_entries_count_from_entry_boundary() {
    let mut rig = Rig::up(LINK);
    let user = rig.user();
    let ksms = [(0, 0x1_0001, 0), (0, 0x1_0002, 0)];
    let mut make = |start: u64, length: u64, log: u8| {
        indirect(&mut rig, user, &ksms, |context| {
            context.set_access_mode_1_0(MkeyAccessMode::KSM.0);
            context.set_start_addr(start).set_len(length).set_log_page_size(log);
        })
    };
    assert_eq!(make(0x3000, 8192, 12), Ok(()));
    assert_eq!(make(0x3008, 8184, 12), Ok(()));
    assert_eq!(make(0x3008, 8185, 12), Err(Refusal::MkeyTranslations));
    for (log, expected) in [
        (9, Err(Refusal::MkeyPageSize)),
        (10, Ok(())),
        (31, Ok(())),
        (32, Err(Refusal::MkeyPageSize)),
    ] {
        assert_eq!(make(0, 64, log), expected, "2^{log} bytes");
    }
    rig.locked.functions[0].hca.caps.general_mut().set_fixed_buffer_size(false);
    let made = indirect(&mut rig, user, &ksms, |context| {
        context.set_access_mode_1_0(MkeyAccessMode::KSM.0);
    });
    assert_eq!(made, Err(Refusal::Unsupported));
}

#[test]
fn klm_has_at_most_2_gib() {
    let mut rig = Rig::up(LINK);
    let user = rig.user();
    for (length, expected) in [(1 << 31, Ok(())), ((1 << 31) + 1, Err(Refusal::MkeyTranslations))] {
        assert_eq!(indirect(&mut rig, user, &[(length, 0x1_0001, 0)], |_| {}), expected);
    }
}

#[test]
fn mkey_page_is_within_the_capability() {
    let mut rig = Rig::up(LINK);
    let pd = rig.send::<verbless_prm::AllocPdIn>(0, |_| {}).unwrap().pd();
    for (log, fits) in [(11, false), (12, true), (31, true), (32, false)] {
        let made = rig.call::<CreateMkeyIn>(0, 0, &[0; 16], 0, |input| {
            input.set_translations_octword_actual_size(1);
            let context = input.memory_key_mkey_entry_mut();
            context.set_access_mode_1_0(MkeyAccessMode::MTT.0).set_pd(pd).set_qpn(0xff_ffff);
            context.set_lr(true).set_log_page_size(log).set_len(64);
        });
        let expected = if fits { Ok(()) } else { Err(Refusal::MkeyPageSize) };
        assert_eq!(made.map(|_| ()), expected, "2^{log} bytes");
    }
}

#[test]
fn create_mkey_rejects_chosen_index() {
    let mut rig = Rig::up(LINK);
    let pd = rig.send::<verbless_prm::AllocPdIn>(0, |_| {}).unwrap().pd();
    let mut create = |wanted: u32| {
        rig.call::<CreateMkeyIn>(0, 0, &[0; 16], 0, |input| {
            input.set_input_mkey_index(wanted).set_translations_octword_actual_size(1);
            let context = input.memory_key_mkey_entry_mut();
            context.set_pd(pd).set_qpn(0xff_ffff).set_lr(true).set_len(8).set_log_page_size(12);
            context.set_access_mode_1_0(MkeyAccessMode::MTT.0);
        })
        .map(drop)
    };
    assert_eq!(create(0x1234), Err(Refusal::Unsupported));
    assert_eq!(create(0), Ok(()));
}

#[test]
fn kernel_mkeys_may_be_physical_free_or_listed() {
    let mut rig = Rig::up(LINK);
    let pd = rig.send::<verbless_prm::AllocPdIn>(0, |_| {}).unwrap().pd();
    let create = |rig: &mut Rig, list: &[u8], edit: &dyn Fn(&mut CreateMkeyIn)| {
        rig.call::<CreateMkeyIn>(0, 0, list, 0, |input| {
            input.memory_key_mkey_entry_mut().set_pd(pd).set_qpn(0xff_ffff).set_lr(true);
            edit(input);
        })
        .map(|(output, _)| output.mkey_index())
    };
    create(&mut rig, &[], &|input| {
        input.memory_key_mkey_entry_mut().set_length64(true);
    })
    .unwrap();
    // Memory budget for entries that UMR writes.
    let free = create(&mut rig, &[], &|input| {
        let context = input.memory_key_mkey_entry_mut();
        context.set_free(true).set_umr_en(true).set_access_mode_1_0(MkeyAccessMode::MTT.0);
        context.set_translations_octword_size(16).set_log_page_size(12);
    })
    .unwrap();
    assert!(rig.locked.functions[0].hca.objects.mkeys[&free].free);
    // Pages in the command itself, larger than 4 KiB.
    let pages: Vec<u8> =
        [0x1000_0000_u64, 0x3000_0000].iter().flat_map(|page| page.to_be_bytes()).collect();
    let listed = |input: &mut CreateMkeyIn| {
        input.set_translations_octword_actual_size(1);
        let context = input.memory_key_mkey_entry_mut();
        context.set_access_mode_1_0(MkeyAccessMode::MTT.0).set_log_page_size(21);
        context.set_start_addr(0x20_0040).set_len(0x20_0000);
    };
    let index = create(&mut rig, &pages, &listed).unwrap();
    let Translation::Pages(memory) = &rig.locked.functions[0].hca.objects.mkeys[&index].translation
    else {
        panic!("no pages")
    };
    assert_eq!((memory.address(0), memory.address(0x1f_ffc0)), (0x1000_0040, 0x3000_0000));
    assert_eq!(create(&mut rig, &pages[..8], &listed), Err(Refusal::ListTooShort));
}

#[test]
fn mkey_read_after_write_order_follows_capability() {
    use verbless_prm::MkeyReadAfterWrite as Order;
    let mut rig = Rig::up(LINK);
    let user = rig.user();
    for (only, states, made) in [
        (false, false, [true, false, false, false]),
        (true, false, [true, false, false, false]),
        (false, true, [true, true, true, false]),
        (true, true, [false, false, true, false]),
    ] {
        let caps = rig.locked.functions[0].hca.caps.general_mut();
        caps.set_mkc_order_write_after_write_ro_only(only).set_relaxed_ordering_write(true);
        caps.set_mkc_order_read_after_write(states);
        let orders = [Order::STRICT, Order::SAME_ADDRESS, Order::RELAXED, Order(3)];
        let found = orders.map(|order| {
            let made = rig.mkey(user, |input| {
                let context = input.memory_key_mkey_entry_mut();
                context.set_relaxed_ordering_write(only).set_order_read_after_write(order);
            });
            made.is_ok()
        });
        assert_eq!(found, made, "only: {only}, states: {states}");
    }
}

#[test]
fn ro_only_device_rejects_write_ordered_mkeys() {
    let mut rig = Rig::up(LINK);
    let user = rig.user();
    let relaxed = |relaxed| {
        move |input: &mut CreateMkeyIn| {
            input.memory_key_mkey_entry_mut().set_relaxed_ordering_write(relaxed);
        }
    };
    for (only, may, ordered, unordered) in
        [(false, false, true, false), (false, true, true, true), (true, false, false, true)]
    {
        let caps = rig.locked.functions[0].hca.caps.general_mut();
        caps.set_mkc_order_write_after_write_ro_only(only).set_relaxed_ordering_write(may);
        assert_eq!(rig.mkey(user, relaxed(false)).is_ok(), ordered, "{only} {may}");
        assert_eq!(rig.mkey(user, relaxed(true)).is_ok(), unordered, "{only} {may}");
    }
}
