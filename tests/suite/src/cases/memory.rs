//! Registered memory and keys: what can be registered, and what a key reaches.

use std::sync::Arc;

use nix::sys::resource::{Resource, getrlimit};
use verbless_command::{Device, KeyAccess, KeyMemory, Klm, MkeyAttr, MkeyObject, RemoteAccess};
use verbless_devx::abi::core::access;
use verbless_devx::{Errno, ErrorKind, PageSizes, page_size};
use verbless_prm::{CreateMkeyIn, MkeyAccessMode, MkeyReadAfterWrite};
use verbless_queue::ring::SharedMemory;
use verbless_queue::wr::{FetchAdd, Inline, Read, Write};
use verbless_queue::{CqConfig, Domain, Memory, QpConfig, RemoteAddr, Srq, SrqConfig, WcStatus};

use crate::case::cases;
use crate::need::{ATOMICS, SRQ, cap};
use crate::raw::{self, RegisteredMemory};
use crate::{Lab, Need, Pair, Stop, ensure, ensure_eq, failed, pattern};

cases!(
    "memory",
    "Registered memory and keys: registrable memory, and the reach of a key.":
    region_of_any_length_reaches_its_last_byte,
    large_region_is_huge_page_aligned,
    region_is_aligned_to_its_rounded_length,
    memory_at_any_page_is_registered,
    unaligned_memory_is_reached_exactly,
    zero_length_region_is_rejected,
    invalid_umem_registration_is_rejected,
    range_past_address_space_end_is_rejected,
    unmapped_address_is_efault,
    partly_mapped_range_is_efault,
    read_only_memory_registers_without_write_access,
    umem_above_memlock_limit_fails_with_advice [Need::MemlockLimit],
    umem_in_use_rejects_deregistration,
    mkeys_over_one_umem_have_distinct_indexes,
    new_mkey_differs_from_previous_one,
    mkey_query_returns_requested_attributes,
    mkey_may_start_at_address_zero,
    mkey_start_matches_umem_page_offset,
    mkey_may_cover_part_of_its_umem,
    mkey_past_umem_end_is_rejected,
    remote_write_without_local_write_is_rejected,
    relaxed_ordering_follows_device_caps,
    klm_mkey_concatenates_ranges_of_any_length,
    ksm_mkey_concatenates_equal_ranges [cap!(fixed_buffer_size)],
    indirect_mkey_for_atomics_covers_whole_operands [
        ATOMICS, cap!(!umr_modify_atomic_disabled)
    ],
    nested_indirect_mkeys_are_followed [cap!(max_indirection >= 2)],
    indirect_mkey_over_read_only_region_rejects_write,
    indirect_mkey_ends_with_its_klms,
    indirect_mkey_may_end_before_its_klms,
    dropped_region_is_unreachable_by_peer [Need::Lossless],
    queues_of_every_kind_share_one_umem [SRQ],
);

fn region_of_any_length_reaches_its_last_byte(lab: &Lab) -> Result<(), Stop> {
    let mut pair = Pair::new(lab)?;
    for length in [1, 2, 63, 4095, 4096, 4097, 65_537, 1 << 20, (2 << 20) + 3] {
        let region = pair.b.domain.region(length, KeyAccess::ALL)?;
        ensure_eq!(region.len(), length, "length");
        let last = region.remote(length - 1, 0)?;
        pair.a.perform(&Write::new(Inline(b"x"), last).signaled())?;
        let mut byte = [0];
        region.read_at(length - 1, &mut byte)?;
        ensure_eq!(byte, *b"x", format!("the last byte of {length}"));
    }
    Ok(())
}

fn large_region_is_huge_page_aligned(lab: &Lab) -> Result<(), Stop> {
    const HUGE: usize = 2 << 20;
    let mut pair = Pair::new(lab)?;
    for length in [HUGE, HUGE + 1, 3 * HUGE - 1] {
        let region = pair.b.domain.region(length, KeyAccess::ALL)?;
        ensure_eq!(region.address() % HUGE as u64, 0, format!("offset of {length} bytes"));
        for at in [0, HUGE - 1, length - 1] {
            let target = region.remote(at, 0)?;
            pair.a.perform(&Write::new(Inline(b"y"), target).signaled())?;
            let mut byte = [0];
            region.read_at(at, &mut byte)?;
            ensure_eq!(byte, *b"y", format!("byte {at} of {length}"));
        }
    }
    match pair.b.domain.region(usize::MAX, KeyAccess::LOCAL) {
        Ok(_) => Err(Stop::fail("memory of usize::MAX bytes was registered")),
        Err(error) => {
            ensure!(error.to_string().contains("request less"), "the error says {error}");
            Ok(())
        }
    }
}

fn region_is_aligned_to_its_rounded_length(lab: &Lab) -> Result<(), Stop> {
    let domain = Domain::new(&lab.device()?)?;
    for length in [1, 4096, 4097, 40_000, 1 << 16, (1 << 20) - 1, (1 << 20) + 1] {
        let region = domain.region(length, KeyAccess::ALL)?;
        let align = length.next_power_of_two().max(4096) as u64;
        ensure_eq!(region.address() % align, 0, format!("offset of {length} bytes"));
    }
    Ok(())
}

/// Behind an IOMMU a UMEM's pages are as large as the request allows, at any address.
fn memory_at_any_page_is_registered(lab: &Lab) -> Result<(), Stop> {
    let mut pair = Pair::new(lab)?;
    let page = pair.b.device.page_size();
    let whole = Memory::allocate(64 * page)?;
    for (first, pages) in [(0, 1), (1, 1), (1, 2), (1, 16), (2, 16), (3, 32), (16, 32), (8, 8)] {
        for odd in [0, 8] {
            let (offset, length) = (first * page + odd, pages * page);
            let region = pair.b.domain.region_of(&whole.slice(offset, length)?, KeyAccess::ALL)?;
            for at in [0, length / 2, length - 1] {
                pair.a.perform(&Write::new(Inline(b"z"), region.remote(at, 0)?).signaled())?;
                let mut byte = [0];
                whole.read_at(offset + at, &mut byte)?;
                ensure_eq!(byte, *b"z", format!("byte {at} of {length} from {offset:#x}"));
                whole.write_at(offset + at, b"-")?;
            }
        }
    }
    Ok(())
}

fn unaligned_memory_is_reached_exactly(lab: &Lab) -> Result<(), Stop> {
    let mut pair = Pair::new(lab)?;
    let whole = SharedMemory::zeroed(3 * SharedMemory::PAGE);
    for (offset, length) in [(1, 1), (4095, 2), (7, 5000), (4097, 4095), (63, 8192)] {
        whole.fill(0xee);
        let region = raw::region_within(&pair.b.domain, &whole, offset, length, KeyAccess::ALL)?;
        let sent = pattern(3, length);
        pair.a.fill(0, &sent)?;
        let to = region.remote(0, 0)?;
        let from = pair.a.sge(0, length)?;
        pair.a.perform(&Write::new(from, to).signaled())?;
        let mut found = vec![0; whole.len()];
        whole.read_at(0, &mut found)?;
        let mut expected = vec![0xee; whole.len()];
        expected[offset..offset + length].copy_from_slice(&sent);
        ensure!(found == expected, "other data in {length} bytes at offset {offset}");
    }
    Ok(())
}

fn zero_length_region_is_rejected(lab: &Lab) -> Result<(), Stop> {
    let domain = Domain::new(&lab.device()?)?;
    let refused = domain.region(0, KeyAccess::ALL).err();
    ensure_eq!(
        refused.map(|error| error.kind()),
        Some(ErrorKind::InvalidInput),
        "a region of 0 bytes"
    );
    let whole = SharedMemory::zeroed(1);
    ensure!(raw::region_within(&domain, &whole, 8, 0, KeyAccess::ALL).is_err(), "0 raw bytes");
    Ok(())
}

/// The errno of a refused registration.
fn refusal(
    device: &Device,
    address: u64,
    length: u64,
    access: u32,
    pages: PageSizes,
) -> Option<Errno> {
    raw::register_forbidden_range(device, address, length, access, pages).err()?.errno()
}

fn invalid_umem_registration_is_rejected(lab: &Lab) -> Result<(), Stop> {
    let memory = SharedMemory::zeroed(4096);
    let device = lab.device()?;
    let write = access::LOCAL_WRITE;
    for (what, length, access, pages) in [
        ("0 bytes", 0, write, PageSizes::Any),
        ("remote without local write", 4096, access::REMOTE_WRITE, PageSizes::Any),
        ("atomics, which belong to the key", 4096, write | 1 << 3, PageSizes::Any),
        ("an undefined access bit", 4096, 1 << 30, PageSizes::Any),
        ("no page size", 4096, write, PageSizes::Bitmap(0)),
        ("pages of 32 bytes", 4096, write, PageSizes::Bitmap(1 << 5)),
    ] {
        let got = refusal(&device, memory.address(), length, access, pages);
        // A kernel before Linux 5.13 knows no page sizes.
        let ignored = matches!(pages, PageSizes::Bitmap(_)) && device.pages_follow_address();
        ensure_eq!(got, (!ignored).then_some(Errno::EINVAL), what);
    }
    let system = PageSizes::Bitmap(device.page_size() as u64);
    Ok(raw::register_forbidden_range(&device, memory.address(), 4096, write, system)?)
}

fn range_past_address_space_end_is_rejected(lab: &Lab) -> Result<(), Stop> {
    let device = lab.device()?;
    let page = device.page_size() as u64;
    for (address, length) in [(u64::MAX, 2), (u64::MAX - page + 1, 2 * page), (page, u64::MAX)] {
        let got = refusal(&device, address, length, access::LOCAL_WRITE, PageSizes::Any);
        ensure!(got.is_some(), "{length:#x} bytes at {address:#x} were registered");
    }
    Ok(device.nop()?)
}

fn unmapped_address_is_efault(lab: &Lab) -> Result<(), Stop> {
    let device = lab.device()?;
    for address in [0, 0x10, 0x1000, 1 << 46, 0xffff_8000_0000_0000] {
        for flags in [0, access::LOCAL_WRITE] {
            let got = refusal(&device, address, 64, flags, PageSizes::Any);
            ensure_eq!(got, Some(Errno::EFAULT), format!("address {address:#x}"));
        }
    }
    Ok(device.nop()?)
}

fn partly_mapped_range_is_efault(lab: &Lab) -> Result<(), Stop> {
    let (map, address) = raw::read_only(page_size())?;
    let device = lab.device()?;
    // Part of the 4 GiB from there is unmapped.
    let got = refusal(&device, address, 1 << 32, access::LOCAL_WRITE, PageSizes::Any);
    ensure!(matches!(got, Some(Errno::EFAULT | Errno::ENOMEM)), "4 GiB from a page on: {got:?}");
    drop(map);
    Ok(())
}

fn read_only_memory_registers_without_write_access(lab: &Lab) -> Result<(), Stop> {
    let (map, address) = raw::read_only(page_size())?;
    let device = lab.device()?;
    let length = map.len() as u64;
    raw::register_forbidden_range(&device, address, length, access::REMOTE_READ, PageSizes::Any)?;
    let got = refusal(&device, address, length, access::LOCAL_WRITE, PageSizes::Any);
    ensure_eq!(got, Some(Errno::EFAULT), "for writing");
    Ok(())
}

fn umem_above_memlock_limit_fails_with_advice(lab: &Lab) -> Result<(), Stop> {
    let (limit, _) = getrlimit(Resource::RLIMIT_MEMLOCK)?;
    let domain = Domain::new(&lab.device()?)?;
    raw::respect_memlock()?;
    let page = domain.device().page_size();
    let error = match domain.region(limit as usize + page, KeyAccess::ALL) {
        Ok(_) => return Err(Stop::fail("more than the limit was registered")),
        Err(error) => error,
    };
    ensure_eq!(error.kind(), ErrorKind::MemoryLimit, format!("the kind of {error}"));
    ensure!(error.hint().contains("ulimit -l"), "{error} does not say what to do");
    Ok(())
}

/// All rights over the whole of a registration, at our own addresses.
fn whole(domain: &Domain, shared: &RegisteredMemory) -> MkeyAttr {
    MkeyAttr {
        pd: domain.pd().clone(),
        access: KeyAccess::ALL,
        start: shared.umem.address(),
        length: shared.umem.length(),
        memory: KeyMemory::Umem { umem: shared.umem.clone(), offset: 0 },
    }
}

fn umem_in_use_rejects_deregistration(lab: &Lab) -> Result<(), Stop> {
    let device = lab.device()?;
    let pd = device.alloc_pd()?;
    let (memory, umem) = raw::bare_umem(&device)?;
    let mut input = CreateMkeyIn::new();
    input.set_mkey_umem_id(umem.id()).set_mkey_umem_valid(true);
    let only = device.caps().relaxed_writes_only;
    if only && device.caps().reads_after_writes {
        let context = input.memory_key_mkey_entry_mut();
        context.set_order_read_after_write(MkeyReadAfterWrite::RELAXED);
    }
    input
        .memory_key_mkey_entry_mut()
        .set_access_mode_1_0(MkeyAccessMode::MTT.0)
        .set_lr(true)
        .set_qpn(0xff_ffff)
        .set_pd(pd.pdn())
        .set_start_addr(memory.address())
        .set_len(4096)
        .set_relaxed_ordering_write(only);
    let key = device.obj_create(input.as_bytes(), &mut [0; 16])?;
    let umem = match umem.destroy() {
        Ok(()) => return Err(Stop::fail("a UMEM that a key uses was destroyed")),
        Err(refused) => refused.object,
    };
    key.destroy()?;
    Ok(umem.destroy()?)
}

fn mkeys_over_one_umem_have_distinct_indexes(lab: &Lab) -> Result<(), Stop> {
    let device = lab.device()?;
    let domain = Domain::new(&device)?;
    let shared = RegisteredMemory::new(&device, 4096)?;
    let keys: Vec<MkeyObject> =
        (0..100).map(|_| device.create_mkey(whole(&domain, &shared))).collect::<Result<_, _>>()?;
    let mut numbers: Vec<u32> = keys.iter().map(|key| key.lkey().0 >> 8).collect();
    numbers.sort_unstable();
    numbers.dedup();
    ensure_eq!(numbers.len(), 100, "key indexes");
    Ok(())
}

fn new_mkey_differs_from_previous_one(lab: &Lab) -> Result<(), Stop> {
    let domain = Domain::new(&lab.device()?)?;
    // Not compared with all variants before: other cases of this process count variants, too, and
    // there are 256.
    let mut before = None;
    for _ in 0..64 {
        let key = domain.region(64, KeyAccess::ALL)?.lkey();
        ensure!(before != Some(key), "key {key} was reused at once");
        before = Some(key);
    }
    Ok(())
}

fn mkey_query_returns_requested_attributes(lab: &Lab) -> Result<(), Stop> {
    let device = lab.device()?;
    let domain = Domain::new(&device)?;
    let shared = RegisteredMemory::new(&device, 3 * 4096)?;
    let rights = [
        KeyAccess::LOCAL_READ,
        KeyAccess::LOCAL,
        KeyAccess::ALL,
        KeyAccess {
            remote: RemoteAccess { read: true, ..Default::default() },
            ..KeyAccess::LOCAL_READ
        },
    ];
    for access in rights {
        let length = shared.umem.length() - 100;
        let key = device.create_mkey(MkeyAttr { access, length, ..whole(&domain, &shared) })?;
        let context = key.query()?;
        let got = (context.lr(), context.lw(), context.rr(), context.rw(), context.a());
        let remote = access.remote;
        let asked = (
            true,
            access.local_write,
            remote.read,
            remote.write,
            remote.atomic && device.caps().atomics,
        );
        ensure_eq!(got, asked, "rights");
        ensure_eq!(context.start_addr(), shared.umem.address(), "start");
        ensure_eq!(context.len(), length, "length");
        ensure_eq!(context.pd(), domain.pd().pdn(), "PD");
        ensure!(!context.free(), "the key is free");
        let mode = context.access_mode_4_2() << 2 | context.access_mode_1_0();
        ensure_eq!(mode, MkeyAccessMode::MTT.0, "access mode");
        ensure_eq!(u32::from(context.mkey_7_0()), key.lkey().0 & 0xff, "variant");
    }
    Ok(())
}

/// Writes and reads back `length` bytes at `address` under a key of b.
fn round_trip(pair: &mut Pair, address: RemoteAddr, length: usize) -> Result<Vec<u8>, Stop> {
    let sent = pattern(9, length);
    pair.a.fill(0, &sent)?;
    let (from, into) = (pair.a.sge(0, length)?, pair.a.sge(32 << 10, length)?);
    pair.a.perform(&Write::new(from, address).signaled())?;
    pair.a.perform(&Read::new(into, address).signaled())?;
    ensure!(pair.a.bytes(32 << 10, length)? == sent, "the read bytes differ from the written ones");
    Ok(sent)
}

fn mkey_may_start_at_address_zero(lab: &Lab) -> Result<(), Stop> {
    let mut pair = Pair::new(lab)?;
    let shared = RegisteredMemory::new(&pair.b.device, 2 * 4096)?;
    let attr = MkeyAttr { start: 0, ..whole(&pair.b.domain, &shared) };
    let key = pair.b.device.create_mkey(attr)?;
    let sent = round_trip(&mut pair, RemoteAddr::new(4090, key.rkey()), 100)?;
    let mut found = vec![0; 100];
    shared.memory.read_at(4090, &mut found)?;
    ensure!(found == sent, "the bytes are not where address 4090 leads");
    let past = RemoteAddr::new(2 * 4096 - 1, key.rkey());
    let from = pair.a.sge(0, 2)?;
    pair.a.qp.post(&Write::new(from, past).signaled(), 0)?;
    failed(pair.a.sent()?, WcStatus::RemoteAccess)?;
    Ok(())
}

fn mkey_start_matches_umem_page_offset(lab: &Lab) -> Result<(), Stop> {
    let mut pair = Pair::new(lab)?;
    let page = pair.b.device.page_size();
    let whole = SharedMemory::zeroed(34 * page);
    // It begins at an odd page; the allocation need not begin at a system page.
    let first = (whole.address() as usize).div_ceil(page);
    let odd = (first | 1) * page - whole.address() as usize;
    let part = whole.slice(odd, 16 * page)?;
    let umem = RegisteredMemory::of(&pair.b.device, &part, PageSizes::Any)?.umem;
    let key = |start: u64, offset: u64| {
        pair.b.device.create_mkey(MkeyAttr {
            pd: pair.b.domain.pd().clone(),
            access: KeyAccess::ALL,
            start,
            length: page as u64,
            memory: KeyMemory::Umem { umem: umem.clone(), offset },
        })
    };
    // Linux before 5.13 has pages as the address is aligned: to one page.
    let pages = if pair.b.device.pages_follow_address() { 1 } else { 16 };
    let wide = pages * page as u64;
    let starts = [(part.address(), 0), (page as u64, 0), (0, page as u64), (1, 0)];
    for (start, offset) in starts.into_iter().filter(|(start, at)| (start ^ at) % wide != 0) {
        let error = key(start, offset).err().map(|error| (error.kind(), error.to_string()));
        let says = error.as_ref().is_some_and(|(kind, text)| {
            *kind == ErrorKind::InvalidInput && text.contains(&format!("{wide:#x} bytes"))
        });
        ensure!(says, "a start of {start:#x} for offset {offset:#x}: {error:?}");
    }
    for (start, offset) in [(0, 0), (wide, 0), (wide + page as u64, page as u64)] {
        let key = key(start, offset)?;
        let to = RemoteAddr::new(start + 5, key.rkey());
        pair.a.perform(&Write::new(Inline(b"k"), to).signaled())?;
        let mut byte = [0];
        part.read_at(offset as usize + 5, &mut byte)?;
        ensure_eq!(byte, *b"k", format!("byte 5 of {start:#x} for offset {offset:#x}"));
        part.write_at(offset as usize + 5, b"-")?;
    }
    Ok(())
}

fn mkey_may_cover_part_of_its_umem(lab: &Lab) -> Result<(), Stop> {
    let mut pair = Pair::new(lab)?;
    let shared = RegisteredMemory::new(&pair.b.device, 4 * 4096)?;
    let start = shared.umem.address() + 4096 + 0x123;
    let key = pair.b.device.create_mkey(MkeyAttr {
        start,
        length: 5000,
        memory: KeyMemory::Umem { umem: shared.umem.clone(), offset: 4096 + 0x123 },
        ..whole(&pair.b.domain, &shared)
    })?;
    let sent = round_trip(&mut pair, RemoteAddr::new(start, key.rkey()), 5000)?;
    let mut found = vec![0; 5000];
    shared.memory.read_at(4096 + 0x123, &mut found)?;
    ensure!(found == sent, "the bytes are not where the key leads");
    for outside in [start - 1, start + 5000] {
        let to = RemoteAddr::new(outside, key.rkey());
        let from = pair.a.sge(0, 1)?;
        pair.a.qp.post(&Write::new(from, to).signaled(), 0)?;
        failed(pair.a.sent()?, WcStatus::RemoteAccess)?;
        pair.restart()?;
    }
    Ok(())
}

fn mkey_past_umem_end_is_rejected(lab: &Lab) -> Result<(), Stop> {
    let device = lab.device()?;
    let domain = Domain::new(&device)?;
    let shared = RegisteredMemory::new(&device, 4096)?;
    let attr = whole(&domain, &shared);
    for (start, length) in [(attr.start, 4097), (attr.start, u64::MAX), (u64::MAX - 4095, 4097)] {
        let refused = device.create_mkey(MkeyAttr { start, length, ..attr.clone() }).err();
        ensure!(refused.is_some(), "{length:#x} bytes at {start:#x} of a page");
    }
    let refused = device.create_mkey(MkeyAttr { length: 0, ..attr }).err();
    ensure_eq!(
        refused.map(|error| error.kind()),
        Some(ErrorKind::InvalidInput),
        "a key of 0 bytes"
    );
    Ok(())
}

fn remote_write_without_local_write_is_rejected(lab: &Lab) -> Result<(), Stop> {
    let device = lab.device()?;
    let domain = Domain::new(&device)?;
    let shared = RegisteredMemory::new(&device, 4096)?;
    for remote in [
        RemoteAccess { write: true, ..Default::default() },
        RemoteAccess { atomic: true, ..Default::default() },
    ] {
        let access = KeyAccess { remote, ..KeyAccess::LOCAL_READ };
        let refused = device.create_mkey(MkeyAttr { access, ..whole(&domain, &shared) }).err();
        let error = refused.ok_or_else(|| Stop::fail(format!("{remote:?} was accepted")))?;
        ensure_eq!(error.kind(), ErrorKind::InvalidInput, format!("the kind of {error}"));
        ensure!(error.to_string().contains("`local_write`"), "{error} does not say what to do");
    }
    Ok(())
}

fn klm_mkey_concatenates_ranges_of_any_length(lab: &Lab) -> Result<(), Stop> {
    let mut pair = Pair::new(lab)?;
    let one = Arc::new(pair.b.domain.region(1000, KeyAccess::ALL)?);
    let two = Arc::new(pair.b.domain.region(8192, KeyAccess::ALL)?);
    let ranges =
        [(one.clone(), 10, 990), (two.clone(), 4095, 3), (one.clone(), 0, 7), (two, 0, 500)];
    let key = pair.b.domain.indirect_key(&ranges, KeyAccess::READ_WRITE)?;
    let sent = round_trip(&mut pair, RemoteAddr::new(0, key.rkey()), 1500)?;
    let mut at = 0;
    for (region, offset, length) in &ranges {
        let mut found = vec![0; *length];
        region.read_at(*offset, &mut found)?;
        ensure!(found == sent[at..at + length], "the range of {length} bytes");
        at += length;
    }
    Ok(())
}

fn ksm_mkey_concatenates_equal_ranges(lab: &Lab) -> Result<(), Stop> {
    let mut pair = Pair::new(lab)?;
    let regions: Vec<_> =
        (0..3).map(|_| pair.b.domain.region(8192, KeyAccess::ALL)).collect::<Result<_, _>>()?;
    let ranges = regions
        .iter()
        .map(|region| Klm { key: region.lkey(), address: region.address() + 4096, length: 0 })
        .collect();
    let key = pair.b.device.create_mkey(MkeyAttr {
        pd: pair.b.domain.pd().clone(),
        access: KeyAccess::READ_WRITE,
        start: 0,
        length: 3 * 4096,
        memory: KeyMemory::Ksms { log_length: 12, klms: ranges },
    })?;
    let sent = round_trip(&mut pair, RemoteAddr::new(100, key.rkey()), 3 * 4096 - 100)?;
    let mut found = vec![0; 4096];
    regions[1].read_at(4096, &mut found)?;
    ensure!(found == sent[4096 - 100..8192 - 100], "the range in the middle");
    Ok(())
}

fn indirect_mkey_for_atomics_covers_whole_operands(lab: &Lab) -> Result<(), Stop> {
    let mut pair = Pair::new(lab)?;
    let domain = pair.b.domain.clone();
    let unit = pair.b.device.caps().max_atomic_bytes() as usize;
    let region = Arc::new(domain.region(4096, KeyAccess::ALL)?);
    for length in [1, unit - 1, unit + 1] {
        let error = domain.indirect_key(&[(region.clone(), 0, length)], KeyAccess::ALL).err();
        let says = error.as_ref().map(|error| (error.kind(), error.to_string()));
        let is_explained = says.as_ref().is_some_and(|(kind, text)| {
            *kind == ErrorKind::InvalidInput && text.contains(&format!("multiples of {unit} bytes"))
        });
        ensure!(is_explained, "{length} bytes: {says:?}");
    }
    let ranges = [(region.clone(), 64, unit), (region.clone(), 0, unit)];
    let key = domain.indirect_key(&ranges, KeyAccess::ALL)?;
    region.write_at(0, &7_u64.to_ne_bytes())?;
    let (result, to) = (pair.a.sge(0, 8)?, RemoteAddr::new(unit as u64, key.rkey()));
    pair.a.perform(&FetchAdd::new(result, to, 5).signaled())?;
    let mut word = [0; 8];
    region.read_at(0, &mut word)?;
    ensure_eq!(u64::from_ne_bytes(word), 12, "the word");
    Ok(())
}

fn nested_indirect_mkeys_are_followed(lab: &Lab) -> Result<(), Stop> {
    let mut pair = Pair::new(lab)?;
    let domain = pair.b.domain.clone();
    let region = Arc::new(domain.region(4096, KeyAccess::ALL)?);
    let inner = domain
        .indirect_key(&[(region.clone(), 1000, 100), (region, 0, 100)], KeyAccess::READ_WRITE)?;
    let klm = |address, length| Klm { key: inner.lkey(), address, length };
    let outer = pair.b.device.create_mkey(MkeyAttr {
        pd: domain.pd().clone(),
        access: KeyAccess::READ_WRITE,
        start: 0,
        length: 150,
        memory: KeyMemory::Klms(vec![klm(120, 50), klm(0, 100)]),
    })?;
    round_trip(&mut pair, RemoteAddr::new(0, outer.rkey()), 150)?;
    Ok(())
}

fn indirect_mkey_over_read_only_region_rejects_write(lab: &Lab) -> Result<(), Stop> {
    let pair = Pair::new(lab)?;
    let domain = &pair.b.domain;
    let own = domain.region(4096, KeyAccess::LOCAL_READ)?;
    let shared = domain.region_of(&Memory::allocate(4096)?, KeyAccess::LOCAL_READ)?;
    for region in [own, shared] {
        let ranges = [(Arc::new(region), 0, 100)];
        domain.indirect_key(&ranges, KeyAccess::LOCAL_READ)?;
        let local_write = KeyAccess { local_write: true, ..KeyAccess::LOCAL_READ };
        for access in [local_write, KeyAccess::ALL] {
            let Err(error) = domain.indirect_key(&ranges, access) else {
                return Err(Stop::fail(format!("a key was made with {access:?}")));
            };
            ensure_eq!(error.kind(), ErrorKind::InvalidInput, "kind");
            let text = error.to_string();
            ensure!(text.contains("the region at"), "{text} does not say which region");
        }
    }
    Ok(())
}

fn indirect_mkey_ends_with_its_klms(lab: &Lab) -> Result<(), Stop> {
    let mut pair = Pair::new(lab)?;
    let region = Arc::new(pair.b.domain.region(4096, KeyAccess::ALL)?);
    let key = pair.b.domain.indirect_key(&[(region, 0, 100)], KeyAccess::READ_WRITE)?;
    let from = pair.a.sge(0, 2)?;
    let past = RemoteAddr::new(99, key.rkey());
    pair.a.qp.post(&Write::new(from, past).signaled(), 0)?;
    failed(pair.a.sent()?, WcStatus::RemoteAccess)?;
    Ok(())
}

fn indirect_mkey_may_end_before_its_klms(lab: &Lab) -> Result<(), Stop> {
    let mut pair = Pair::new(lab)?;
    let region = pair.b.domain.region(4096, KeyAccess::ALL)?;
    let klm = Klm { key: region.lkey(), address: region.address(), length: 4096 };
    let key = pair.b.device.create_mkey(MkeyAttr {
        pd: pair.b.domain.pd().clone(),
        access: KeyAccess::READ_WRITE,
        start: 0x1000,
        length: 100,
        memory: KeyMemory::Klms(vec![klm]),
    })?;
    round_trip(&mut pair, RemoteAddr::new(0x1000, key.rkey()), 100)?;
    for (address, length) in [(0x1000 + 99, 2), (0x1000 + 100, 1), (0xfff, 1), (0x1000, 101)] {
        let (from, to) = (pair.a.sge(0, length)?, RemoteAddr::new(address, key.rkey()));
        pair.a.qp.post(&Write::new(from, to).signaled(), 0)?;
        failed(pair.a.sent()?, WcStatus::RemoteAccess)?;
        pair.restart()?;
    }
    Ok(())
}

fn dropped_region_is_unreachable_by_peer(lab: &Lab) -> Result<(), Stop> {
    let mut pair = Pair::new(lab)?;
    let whole = SharedMemory::zeroed(4096);
    let region = raw::region_within(&pair.b.domain, &whole, 0, 4096, KeyAccess::ALL)?;
    let to = region.remote(0, 0)?;
    pair.a.perform(&Write::new(Inline(b"before"), to).signaled())?;
    drop(region);
    pair.a.qp.post(&Write::new(Inline(b"after!"), to).signaled(), 0)?;
    failed(pair.a.sent()?, WcStatus::RemoteAccess)?;
    let mut found = [0; 6];
    whole.read_at(0, &mut found)?;
    ensure_eq!(&found, b"before", "the memory");
    Ok(())
}

/// The pages of the registration limit where a queue may begin. The device must accept all of them,
/// wherever the chunks that the queues share are.
fn queues_of_every_kind_share_one_umem(lab: &Lab) -> Result<(), Stop> {
    let pair = Pair::new(lab)?;
    for _ in 0..4 {
        let domain = Domain::new(&pair.a.device)?;
        let cq = domain.completion_queue(&CqConfig::new(1024))?;
        let mut kept = (Vec::new(), Vec::new(), Vec::<Srq>::new());
        for _ in 0..20 {
            kept.0.push(domain.completion_queue(&CqConfig::new(64))?);
            kept.1.push(domain.queue_pair(&QpConfig::new(16, 16), &cq, &cq)?);
            kept.2.push(domain.srq(&SrqConfig::new(63))?);
        }
    }
    Ok(())
}

fn relaxed_ordering_follows_device_caps(lab: &Lab) -> Result<(), Stop> {
    let device = lab.device()?;
    let domain = Domain::new(&device)?;
    let shared = RegisteredMemory::new(&device, 4096)?;
    let caps = device.caps();
    for wish in [false, true] {
        let access = KeyAccess { relaxed_ordering: wish, ..KeyAccess::ALL };
        let key = device.create_mkey(MkeyAttr { access, ..whole(&domain, &shared) })?;
        let context = key.query()?;
        let writes = wish && caps.relaxed_writes || caps.relaxed_writes_only;
        ensure_eq!(context.relaxed_ordering_write(), writes, "writes");
        let relaxed = wish || caps.relaxed_writes_only;
        ensure_eq!(context.relaxed_ordering_read(), relaxed && caps.relaxed_reads, "reads");
        let order = match relaxed && caps.reads_after_writes {
            true => MkeyReadAfterWrite::RELAXED,
            false => MkeyReadAfterWrite::STRICT,
        };
        ensure_eq!(context.order_read_after_write(), order, "reads after writes");
    }
    Ok(())
}
