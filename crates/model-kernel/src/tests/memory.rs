//! Registered memory and UAR pages.

use std::sync::atomic::Ordering;

use verbless_prm::{CreateUmemIn, Opcode};

use nix::errno::Errno;
use verbless_devx::Protection;

use super::super::client::Capability;
use super::support::{Fixture, Request, buffer};

#[test]
fn umem_arguments_are_checked() {
    let fixture = Fixture::new();
    let (_memory, address) = buffer(4);
    let read_only = "a literal in read-only memory".as_ptr() as u64;
    type Case = (&'static str, u64, u64, u32, Option<u64>, Result<(), Errno>);
    let cases: &[Case] = &[
        ("plain", address, 8192, 1, None, Ok(())),
        ("all access flags", address, 8192, 7 | 1 << 20, Some(4096), Ok(())),
        ("read only", address, 8192, 0, None, Ok(())),
        ("unaligned", address + 64, 100, 1, None, Ok(())),
        ("remote write alone", address, 4096, 2, None, Err(Errno::EINVAL)),
        ("remote write and read alone", address, 4096, 6, None, Err(Errno::EINVAL)),
        ("atomics", address, 4096, 8 | 1, None, Err(Errno::EINVAL)),
        ("on demand", address, 4096, 1 << 6, None, Err(Errno::EINVAL)),
        ("empty", address, 0, 1, None, Err(Errno::EINVAL)),
        ("empty, unaligned", address + 8, 0, 1, None, Err(Errno::EINVAL)),
        ("wraps", u64::MAX - 100, 200, 1, None, Err(Errno::EINVAL)),
        ("wraps when rounded", u64::MAX - 100, 50, 1, None, Err(Errno::EINVAL)),
        ("unmapped", 64, 4096, 1, None, Err(Errno::EFAULT)),
        ("an address of the kernel", 0xffff_8000_0000_0000, 4096, 1, None, Err(Errno::EFAULT)),
        ("past the end", address, 1 << 40, 1, None, Err(Errno::EFAULT)),
        ("huge", 4096, 1 << 60, 1, None, Err(Errno::EINVAL)),
        ("not writable", read_only, 8, 1, None, Err(Errno::EFAULT)),
        ("not writable, read only", read_only, 8, 0, None, Ok(())),
        ("no page size", address, 4096, 1, Some(0), Err(Errno::EINVAL)),
        ("page size too small", address, 4096, 1, Some(2048), Err(Errno::EINVAL)),
        ("page size too large", address, 4096, 1, Some(8192), Err(Errno::EINVAL)),
    ];
    for &(what, address, length, access, bitmap, expected) in cases {
        let got = fixture.umem(address, length, access, bitmap).map(drop);
        assert_eq!(got, expected, "{what}");
    }
    assert_eq!(fixture.close(), 0);
}

#[test]
fn read_only_umem_has_no_write_right() {
    let fixture = Fixture::new();
    let (_memory, address) = buffer(1);
    for (access, mtt_access) in [(0, 1), (4, 1), (1, 3), (3, 3)] {
        fixture.umem(address, 4096, access, None).expect("the range is mapped");
        let sent = fixture.device.last(Opcode::CREATE_UMEM.0).expect("the command was sent");
        let entry = u64::from_be_bytes(*sent[0x30..].first_chunk().expect("an entry"));
        assert_eq!((entry >= 0xfffe << 48, entry & 0xfff), (true, mtt_access), "access {access}");
    }
    assert_eq!(fixture.close(), 0);
}

#[test]
fn umem_page_size_follows_bitmap_and_length() {
    let fixture = Fixture::new();
    let (_memory, address) = buffer(48);
    // The memory begins at an odd page, whatever address the allocator returned.
    let odd = address + if address & 0x1000 == 0 { 0x1000 } else { 0 };
    for (offset, length, bitmap, log, entries) in [
        (0, 0x1_0000, None, 4, 1),
        (0, 0x1_0000, Some(0xf000), 3, 2),
        (0, 0x1_0000, Some(0x1000), 0, 16),
        (0, 0x2_8000, None, 3, 5),
        (8, 0x1_0000, None, 0, 17),
        (0, 0x1_0008, None, 0, 17),
    ] {
        fixture.umem(odd + offset, length, 1, bitmap).expect("the range is mapped");
        let sent = fixture.device.last(Opcode::CREATE_UMEM.0).expect("the command was sent");
        let create = CreateUmemIn::from_prefix(&sent).expect("a whole command");
        let umem = create.umem();
        let got = (umem.log_page_size(), umem.num_of_mtt(), umem.page_offset());
        let expected = (log, entries, offset as u32);
        assert_eq!(got, expected, "{length:#x} bytes at {offset} of {bitmap:x?}");
    }
    assert_eq!(fixture.close(), 0);
}

#[test]
fn linux_5_10_refuses_page_sizes_and_follows_address() {
    let fixture = Fixture::like(crate::KernelRelease::V5_10);
    let (_memory, address) = buffer(48);
    let refused = fixture.umem(address, 4096, 1, Some(4096)).map(drop);
    assert_eq!(refused, Err(Errno::EPROTONOSUPPORT));
    let refused = fixture.umem(address, 4096, 1 | 1 << 20, None).map(drop);
    assert_eq!(refused, Err(Errno::EINVAL), "relaxed ordering");
    let odd = address + if address & 0x1000 == 0 { 0x1000 } else { 0 };
    fixture.umem(odd, 0x1_0000, 1, None).expect("the range is mapped");
    let sent = fixture.device.last(Opcode::CREATE_UMEM.0).expect("the command was sent");
    let create = CreateUmemIn::from_prefix(&sent).expect("a whole command");
    assert_eq!((create.umem().log_page_size(), create.umem().num_of_mtt()), (0, 16));
    assert_eq!(fixture.close(), 0);
}

/// A kernel with pages of 64 KiB.
fn on_64k(release: crate::KernelRelease) -> Fixture {
    Fixture::on_pages(release, "64k".parse().expect("a size"))
}

#[test]
fn umem_on_pages_of_64_kib_lists_pages_as_large_or_as_asked() {
    use crate::KernelRelease::{Newest, V5_10, V5_15};
    let (_memory, address) = buffer(64);
    let start = address.next_multiple_of(0x1_0000);
    for (release, offset, length, bitmap, expected) in [
        (Newest, 0, 0x1000, None, Ok((4, 1, 0))),
        (Newest, 0x3000, 0x1000, None, Ok((4, 1, 0x3000))),
        (Newest, 0x3040, 0x1000, Some(0x1000), Ok((0, 2, 0x40))),
        (Newest, 0, 0x2_0000, None, Ok((5, 1, 0))),
        (V5_15, 0x3000, 0x1000, Some(0x1_1000), Ok((4, 1, 0x3000))),
        (V5_15, 0x3000, 0x1000, Some(0xf000), Err(Errno::EINVAL)),
        (V5_10, 0x3000, 0x1000, None, Ok((4, 1, 0x3000))),
    ] {
        let fixture = on_64k(release);
        let made = fixture.umem(start + offset, length, 1, bitmap).map(|_| {
            let sent = fixture.device.last(Opcode::CREATE_UMEM.0).expect("the command was sent");
            let create = CreateUmemIn::from_prefix(&sent).expect("a whole command");
            let umem = create.umem();
            (umem.log_page_size(), umem.num_of_mtt(), umem.page_offset())
        });
        assert_eq!(made, expected, "{release}: {length:#x} bytes at {offset:#x} of {bitmap:x?}");
        assert_eq!(fixture.close(), 0);
    }
}

#[test]
fn pinned_memory_counts_in_pages_of_the_kernel() {
    let fixture = on_64k(crate::KernelRelease::Newest);
    let (_memory, address) = buffer(64);
    let start = address.next_multiple_of(0x1_0000);
    fixture.client.memlock.store(2 << 16, Ordering::Relaxed);
    let (one, _) = fixture.umem(start, 1, 1, None).expect("one page");
    assert_eq!(fixture.umem(start + 0xffff, 0x1_0001, 1, None), Err(Errno::ENOMEM), "two pages");
    let (other, _) = fixture.umem(start + 0xffff, 1, 1, None).expect("one page");
    assert_eq!(fixture.umem(start, 1, 1, None), Err(Errno::ENOMEM));
    for handle in [one, other] {
        assert_eq!(fixture.destroy(0x1002, handle), Ok(()));
    }
    assert_eq!(fixture.close(), 0);
}

#[test]
fn pinned_pages_count_against_the_limit() {
    let fixture = Fixture::new();
    let (_memory, address) = buffer(8);
    let client = &fixture.client;
    client.memlock.store(4 * 4096, Ordering::Relaxed);
    let (first, _) = fixture.umem(address, 3 * 4096, 1, None).expect("within the limit");
    assert_eq!(fixture.umem(address, 2 * 4096, 1, None), Err(Errno::ENOMEM));
    let (second, _) = fixture.umem(address + 4095, 1, 1, None).expect("one page is left");
    assert_eq!(fixture.umem(address, 1, 1, None), Err(Errno::ENOMEM));
    client.capabilities.store(1 << Capability::IpcLock as u32, Ordering::Relaxed);
    fixture.umem(address, 8 * 4096, 1, None).expect("the privilege lifts the limit");
    client.capabilities.store(0, Ordering::Relaxed);
    for handle in [first, second] {
        assert_eq!(fixture.destroy(0x1002, handle), Ok(()));
    }
    assert_eq!(fixture.umem(64, 4096, 1, None), Err(Errno::ENOMEM), "eight are still pinned");
    client.memlock.store(0, Ordering::Relaxed);
    assert_eq!(fixture.umem(address, 1, 1, None), Err(Errno::EPERM));
    let client = fixture.client.clone();
    assert_eq!(fixture.close(), 0);
    let pinned = super::super::client::Client::pinned(&*client).load(Ordering::Relaxed);
    assert_eq!(pinned, 0);
}

#[test]
fn failed_umem_pins_nothing() {
    let fixture = Fixture::new();
    let (_memory, address) = buffer(1);
    let pinned = || super::super::client::Client::pinned(&*fixture.client).load(Ordering::Relaxed);
    for (status, errno) in [(8, Errno::ENOMEM), (3, Errno::EINVAL), (15, Errno::EAGAIN)] {
        fixture.device.refuse_next(Opcode::CREATE_UMEM.0, status);
        assert_eq!(fixture.umem(address, 4096, 1, None), Err(errno));
    }
    let mut request = Request::new(0x1002, 0x1000)
        .handle(0x1000, 0)
        .number(0x1001, address)
        .number(0x1002, 4096)
        .input(0x1003, &[1, 0, 0, 0])
        .raw(0x1004, 4, 1, 0, 8);
    assert_eq!(request.send(&fixture.file), Err(Errno::EFAULT));
    assert_eq!(fixture.device.count(Opcode::DESTROY_UMEM.0), 1);
    assert_eq!(pinned(), 0);
    let (handle, _) = fixture.umem(address, 4096, 1, None).expect("the range is mapped");
    fixture.device.refuse_next(Opcode::DESTROY_UMEM.0, 6);
    assert_eq!(fixture.destroy(0x1002, handle), Err(Errno::EBUSY));
    assert_eq!(pinned(), 1, "still in use by the device");
}

#[test]
fn non_dmabuf_descriptor_is_rejected() {
    use std::os::fd::AsRawFd;
    let fixture = Fixture::new();
    let file = std::fs::File::open("/dev/null").expect("there is /dev/null");
    let request = |fd: u64, length: u64| {
        let mut id = [0; 4];
        Request::new(0x1002, 0x1000)
            .handle(0x1000, 0)
            .number(0x1001, 4096)
            .number(0x1002, length)
            .input(0x1003, &[1, 0, 0, 0])
            .handle(0x1006, fd)
            .output(0x1004, &mut id)
            .send(&fixture.file)
    };
    assert_eq!(request(file.as_raw_fd() as u64, 4096), Err(Errno::EINVAL));
    assert_eq!(request(1 << 20, 4096), Err(Errno::EBADF));
    assert_eq!(request(u64::MAX, 4096), Err(Errno::EBADF));
    assert_eq!(request(1 << 40, 4096), Err(Errno::EINVAL), "not an int");
    assert_eq!(request(file.as_raw_fd() as u64, u64::MAX), Err(Errno::EINVAL));
    assert_eq!(fixture.close(), 0);
}

/// UAR_ALLOC; handle, offset, length, page.
fn uar(fixture: &Fixture, kind: u64) -> Result<(u64, u64, u32, u32), Errno> {
    let (mut offset, mut length, mut page) = ([0; 8], [0; 4], [0; 4]);
    let mut request = Request::new(0x1008, 0x1000)
        .handle(0x1000, 0)
        .number(0x1001, kind)
        .output(0x1002, &mut offset)
        .output(0x1003, &mut length)
        .output(0x1004, &mut page);
    request.send(&fixture.file)?;
    let (offset, length) = (u64::from_ne_bytes(offset), u32::from_ne_bytes(length));
    Ok((request.data(0), offset, length, u32::from_ne_bytes(page)))
}

#[test]
fn uar_is_mappable_at_offset_while_allocated() {
    let fixture = Fixture::new();
    let (first, offset, length, page) = uar(&fixture, 0).expect("a page");
    let (_, other, _, other_page) = uar(&fixture, 1).expect("a page");
    assert_eq!((offset, other, length), (0x90_0000, 0x90_1000, 4096));
    assert_ne!(page, other_page);
    assert_eq!(uar(&fixture, 2), Err(Errno::EOPNOTSUPP));
    assert_eq!(uar(&fixture, 1 << 32), Err(Errno::EINVAL));
    let map =
        |offset, length| fixture.file.mmap(offset, length, Protection::Write).map(|m| m.len());
    assert_eq!(map(offset, 4096), Ok(4096));
    assert_eq!(map(other, 4096), Ok(4096));
    assert_eq!(map(offset, 8192), Err(Errno::EINVAL));
    assert_eq!(map(offset, 0), Err(Errno::EINVAL));
    assert_eq!(map(offset + 8, 4096), Err(Errno::EINVAL));
    assert_eq!(map(0x90_2000, 4096), Err(Errno::EINVAL));
    assert_eq!(map(!4095, 4096), Err(Errno::EINVAL));
    assert_eq!(fixture.destroy(0x1008, first), Ok(()));
    assert_eq!(map(offset, 4096), Err(Errno::EINVAL));
    let (_, again, _, _) = uar(&fixture, 0).expect("a page");
    assert_eq!(again, offset, "the offset is free again");
    assert_eq!(fixture.close(), 0);
}
