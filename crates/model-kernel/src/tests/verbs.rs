//! Contexts, PDs, address handles, ports and GIDs.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use nix::errno::Errno;
use verbless_prm::{HcaCap, Opcode};

use super::super::account::{Account, Resource, ResourcePool};
use super::super::client::{Capability, Client};
use super::super::mailbox::Field;
use super::flow::matcher;
use super::support::{Device, Fixture, Request, TestClient, command};

/// INVOKE_WRITE of a command; returns the core's and the driver's output.
fn write(
    fixture: &Fixture,
    number: u64,
    core: &[u8],
    out: usize,
    driver: usize,
) -> Result<(Vec<u8>, Vec<u8>), Errno> {
    let (mut core_out, mut driver_out) = (vec![0; out], vec![0; driver]);
    let mut request = Request::new(0, 0).number(2, number).input(0, core);
    if out > 0 {
        request = request.output(1, &mut core_out);
    }
    if driver > 0 {
        request = request.output(0x1001, &mut driver_out);
    }
    request.send(&fixture.file)?;
    Ok((core_out, driver_out))
}

fn word(bytes: &[u8]) -> u32 {
    u32::from_ne_bytes(*bytes.first_chunk().expect("four bytes"))
}

#[test]
fn get_context_reports_device() {
    let fixture = Fixture::without_context(Device::new());
    let response = fixture.get_context(1).expect("a context");
    assert_eq!(word(&response[0..]), 1 << 17, "QPs");
    assert_eq!(word(&response[32..]), 1, "ports");
    assert_eq!(word(&response[40..]), 72, "length");
    assert_eq!(response[44..48], [1, 3, 0, 0], "CQE version, driver data, no inline minimum");
    assert_eq!(word(&response[56..]), 12, "4 KiB UAR pages");
    assert_eq!(fixture.get_context(1), Err(Errno::EINVAL), "one context per file");
    assert_eq!(fixture.close(), 0);
}

#[test]
fn unknown_context_request_is_rejected() {
    let cases: &[(&str, usize, usize, u8, Errno)] = &[
        ("unknown flag", 32, 8, 2, Errno::EOPNOTSUPP),
        ("comp_mask", 32, 12, 1, Errno::EOPNOTSUPP),
        ("reserved byte", 32, 17, 1, Errno::EOPNOTSUPP),
        ("reserved half", 32, 18, 1, Errno::EOPNOTSUPP),
        ("reserved word", 32, 20, 1, Errno::EOPNOTSUPP),
        ("too many low-latency registers", 32, 4, 16, Errno::EINVAL),
        ("cut", 12, 8, 1, Errno::EINVAL),
        ("empty", 0, 0, 0, Errno::EINVAL),
    ];
    for &(what, len, at, value, errno) in cases {
        let fixture = Fixture::without_context(Device::new());
        let mut request = [0u8; 32];
        (request[0], request[8], request[24]) = (16, 1, 2);
        request[at] = value;
        let result = Request::new(0, 3).input(0x1000, &request[..len]).send(&fixture.file);
        assert_eq!(result, Err(errno), "{what}");
        assert_eq!(fixture.close(), 0, "{what}");
    }
}

#[test]
fn failed_get_context_leaves_nothing() {
    for opcode in [Opcode::CREATE_UCTX.0, Opcode::ALLOC_TRANSPORT_DOMAIN.0] {
        let fixture = Fixture::without_context(Device::new());
        fixture.device.refuse_next(opcode, 8);
        assert_eq!(fixture.get_context(1), Err(Errno::ENOMEM), "{opcode:#x}");
        fixture.get_context(1).expect("the next time it works");
        assert_eq!(fixture.close(), 0);
    }
    let fixture = Fixture::without_context(Device::new());
    let mut request = [0u8; 32];
    (request[0], request[8], request[24]) = (16, 1, 2);
    let mut bad = Request::new(0, 3).input(0x1000, &request).raw(0x1001, 72, 1, 0, 8);
    assert_eq!(bad.send(&fixture.file), Err(Errno::EFAULT));
    assert_eq!(fixture.close(), 0);
}

#[test]
fn context_privileges_follow_capabilities() {
    let cases = [(0, 0), (Capability::NetRaw as u32, 1), (Capability::SysRawio as u32, 2)];
    for (capability, cap) in cases {
        let fixture = Fixture::without_context(Device::new());
        let bits = if capability == 0 { 0 } else { 1 << capability };
        fixture.client.capabilities.store(bits, Ordering::Relaxed);
        fixture.get_context(1).expect("a context");
        let sent = fixture.device.last(Opcode::CREATE_UCTX.0).expect("the command was sent");
        assert_eq!(Field(0x10, 31, 0).get(&sent), cap, "capability {capability}");
    }
}

#[test]
fn context_privileges_are_of_caller_not_opener() {
    let privileged = !0;
    for (openers, callers, cap) in [(privileged, 0, 0), (0, privileged, 3)] {
        let fixture = Fixture::without_context(Device::new());
        fixture.client.capabilities.store(openers, Ordering::Relaxed);
        let caller = TestClient::new();
        caller.capabilities.store(callers, Ordering::Relaxed);
        let mut request = [0; 32];
        (request[0], request[4], request[8], request[16], request[24]) = (16, 4, 1, 1, 3);
        let mut response = [0; 72];
        let mut ioctl = Request::new(0, 3).input(0x1000, &request).output(0x1001, &mut response);
        let caller: Arc<dyn Client> = caller;
        fixture.file.ioctl_of(&caller, ioctl.words()).expect("a context");
        let sent = fixture.device.last(Opcode::CREATE_UCTX.0).expect("the command was sent");
        assert_eq!(Field(0x10, 31, 0).get(&sent), cap, "opener {openers:#x}");
    }
}

#[test]
fn device_without_uctx_offers_no_devx() {
    let mut caps = HcaCap::zeroed();
    caps.set_num_ports(1);
    let fixture = Fixture::without_context(Arc::new(Device::with(caps, false)));
    assert_eq!(fixture.get_context(1), Err(Errno::EINVAL));
    fixture.get_context(0).expect("a context without DevX");
    assert_eq!(fixture.close(), 0);
}

#[test]
fn static_pages_come_with_an_old_librarys_context() {
    let fixture = Fixture::without_context(Device::new());
    let request = [16u8, 0, 0, 0, 4, 0, 0, 0];
    let mut response = [0; 72];
    let mut get = Request::new(0, 3).input(0x1000, &request).output(0x1001, &mut response);
    assert_eq!(get.send(&fixture.file), Ok(()));
    assert_eq!(word(&response[8..]), 16, "registers");
    let page = |register: u32| {
        let mut page = [0; 4];
        Request::new(0x1000, 0x1001)
            .input(0x1000, &register.to_ne_bytes())
            .output(0x1001, &mut page)
            .send(&fixture.file)
            .map(|()| u32::from_ne_bytes(page))
    };
    assert_eq!(page(0), page(1));
    assert_ne!(page(1), page(2));
    assert_eq!(page(16), Err(Errno::EINVAL));
    let map = fixture.file.mmap(7 << 12, 4096, verbless_devx::Protection::Write);
    assert!(map.is_ok());
    let past = fixture.file.mmap(8 << 12, 4096, verbless_devx::Protection::Write);
    assert_eq!(past.map(drop), Err(Errno::EINVAL));
    assert_eq!(fixture.close(), 0);
}

#[test]
fn clock_page_is_mapped_read_only() {
    use verbless_devx::Protection::{Read, Write};
    let mut device = Device::with(Device::new().caps, false);
    device.caps.set_device_frequency_khz(156_250);
    let fixture = Fixture::without_context(Arc::new(device));
    let map = |page: u64, length, how| fixture.file.mmap(page << 12, length, how).map(drop);
    assert_eq!(map(0x700, 4096, Read), Err(Errno::EINVAL), "there is no context");
    assert_eq!(fixture.get_context(1).expect("a context")[47], 1, "version 1 of it is offered");
    assert_eq!(map(0x700, 4096, Write), Err(Errno::EPERM));
    assert_eq!(map(0x700, 8192, Read), Err(Errno::EINVAL));
    assert_eq!(map(0x701, 4096, Read), Err(Errno::EOPNOTSUPP), "another version");
    assert_eq!(map(0x700, 4096, Read), Ok(()));
    assert_eq!(map(0x700, 4096, Read), Ok(()), "again");
    assert_eq!(fixture.close(), 0);
    let fixture = Fixture::new();
    let map = fixture.file.mmap(0x700 << 12, 4096, Read);
    assert_eq!(map.map(drop), Err(Errno::EOPNOTSUPP), "a device that reports no frequency");
}

#[test]
fn client_mapped_uar_page_is_backed_at_its_offset() {
    let fixture = Fixture::with_own_mappings(Device::new());
    let map = |page: u64, length| {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        fixture.file.mapped_by_client(page << 12, length, protection)
    };
    assert_eq!(map(0, 4096), Err(Errno::EINVAL), "there is no context");
    let mut response = [0; 72];
    let request = [16u8, 0, 0, 0, 4, 0, 0, 0];
    let mut get = Request::new(0, 3).input(0x1000, &request).output(0x1001, &mut response);
    assert_eq!(get.send(&fixture.file), Ok(()));
    let offsets = || {
        let backed = fixture.device.backed.lock().expect("no panic");
        backed.values().map(|offset| offset >> 12).collect::<Vec<_>>()
    };
    assert_eq!(offsets(), [0, 1, 2, 3, 4, 5, 6, 7]);
    let [regular, combined, uncached] = [0, 0x200, 0x300];
    assert_eq!(map(uncached | 2, 4096), Ok(()));
    assert_eq!(map(combined | 3, 1), Ok(()));
    assert_eq!(map(regular | 4, 4096), Ok(()));
    assert_eq!(map(uncached | 2, 4096), Ok(()), "again");
    assert_eq!(offsets(), [0, 1, 0x302, 0x203, 4, 5, 6, 7]);
    assert_eq!(map(regular | 2, 4096), Err(Errno::ENOMEM), "in two ways");
    assert_eq!(map(uncached | 5, 8192), Err(Errno::EINVAL));
    assert_eq!(map(uncached | 8, 4096), Err(Errno::EINVAL));
    assert_eq!(map(0x900, 4096), Err(Errno::EINVAL), "an unallocated page");
    assert_eq!(fixture.close(), 0);
}

#[test]
fn lone_command_number_is_a_probe() {
    let fixture = Fixture::new();
    let probe = |number: u64| Request::new(0, 0).number(2, number).send(&fixture.file);
    assert_eq!(probe(1), Err(Errno::ENOSPC));
    assert_eq!(probe(12), Err(Errno::EOPNOTSUPP), "QUERY_MR by the old command");
    assert_eq!(probe(0x8000_0001), Ok(()), "extended commands have no least sizes");
    assert_eq!(probe(0x8000_001a), Err(Errno::ENOENT), "MODIFY_QP_EX of queue pair 0");
    assert_eq!(probe(0x8000_0039), Err(Errno::EINVAL), "MODIFY_CQ_EX of nothing");
    assert_eq!(probe(0x8000_0003), Err(Errno::EOPNOTSUPP));
    assert_eq!(probe(0x101), Err(Errno::EINVAL));
    assert_eq!(probe(1 << 32), Err(Errno::EINVAL));
}

#[test]
fn query_checks_context_before_request() {
    let (mut long, extended) = ([0; 24], 1 << 31 | 1);
    long[23] = 1;
    let send = |fixture: &Fixture, number, out| write(fixture, number, &long, out, 0).map(drop);
    let fixture = Fixture::without_context(Device::new());
    for (number, out) in [(2, 40), (1, 176), (extended, 304)] {
        assert_eq!(send(&fixture, number, out), Err(Errno::EINVAL), "{number:#x}");
    }
    assert_eq!(send(&fixture, 3, 4), Err(Errno::EOPNOTSUPP), "ALLOC_PD reads it first");
    fixture.get_context(1).expect("a context");
    for (number, out) in [(2, 40), (1, 176), (extended, 304)] {
        assert_eq!(send(&fixture, number, out), Err(Errno::EOPNOTSUPP), "{number:#x}");
    }
}

#[test]
fn pd_lives_until_its_handles_are_gone() {
    let fixture = Fixture::new();
    let (core, driver) = write(&fixture, 3, &[0; 8], 4, 4).expect("a PD");
    assert_ne!(word(&driver), 0);
    let pd = word(&core);
    let ah = create_ah(&fixture, pd, 1, 0, 1).expect("an address handle").0;
    assert_eq!(write(&fixture, 4, &pd.to_ne_bytes(), 0, 0), Err(Errno::EBUSY));
    assert_eq!(write(&fixture, 4, &ah.to_ne_bytes(), 0, 0), Err(Errno::EINVAL), "not a PD");
    assert_eq!(write(&fixture, 8, &ah.to_ne_bytes(), 0, 0).map(drop), Ok(()));
    let mut destroy = Request::new(1, 0).handle(0, pd.into());
    assert_eq!(destroy.send(&fixture.file), Ok(()));
    assert_eq!(destroy.send(&fixture.file), Err(Errno::ENOENT));
    assert_eq!(write(&fixture, 3, &[0; 8], 3, 4), Err(Errno::ENOSPC));
    assert_eq!(write(&fixture, 3, &[0; 7], 4, 4), Err(Errno::ENOSPC));
    assert_eq!(write(&fixture, 3, &[0; 8], 4, 0), Err(Errno::EFAULT), "no room for the number");
    let mut long = [0; 24];
    write(&fixture, 3, &long, 4, 4).expect("zeros follow");
    long[23] = 1;
    assert_eq!(write(&fixture, 3, &long, 4, 4), Err(Errno::EOPNOTSUPP));
    assert_eq!(fixture.close(), 0);
}

/// CREATE_AH to the GID that ends in `gid`; handle and MAC.
fn create_ah(
    fixture: &Fixture,
    pd: u32,
    port: u8,
    global: u8,
    gid: u8,
) -> Result<(u32, Vec<u8>), Errno> {
    let mut request = [0; 56];
    request[16..20].copy_from_slice(&pd.to_ne_bytes());
    (request[39], request[53], request[54]) = (gid, global, port);
    let (core, driver) = write(fixture, 5, &request, 4, 16)?;
    Ok((word(&core), driver[4..10].to_vec()))
}

#[test]
fn malformed_roce_ah_is_rejected() {
    let mut caps = HcaCap::zeroed();
    caps.set_num_ports(1);
    caps.set_log_max_uctx(4);
    let mut device = Device::with(caps, true);
    device.caps.set_roce(true);
    let fixture = Fixture::of(Arc::new(device));
    let pd = word(&write(&fixture, 3, &[0; 8], 4, 4).expect("a PD").0);
    let cases = [
        ("no such port", pd, 2, 1, 9, Errno::EINVAL),
        ("no such PD", pd + 1, 1, 1, 9, Errno::ENOENT),
        ("not global", pd, 1, 0, 9, Errno::EINVAL),
    ];
    for (what, pd, port, global, gid, errno) in cases {
        assert_eq!(create_ah(&fixture, pd, port, global, gid).map(drop), Err(errno), "{what}");
    }
    assert_eq!(fixture.close(), 0);
}

#[test]
fn multicast_ah_has_mac_of_its_gid() {
    let mut caps = HcaCap::zeroed();
    caps.set_num_ports(1);
    caps.set_log_max_uctx(4);
    let mut device = Device::with(caps, true);
    device.caps.set_roce(true);
    let mut roce = [0; 0x40];
    roce[0x2f] = 1;
    device.answer(Opcode::QUERY_HCA_CAP, 4 << 1 | 1, &roce);
    let fixture = Fixture::of(Arc::new(device));
    let pd = word(&write(&fixture, 3, &[0; 8], 4, 4).expect("a PD").0);
    let mac = |gid: &str| {
        let gid: std::net::Ipv6Addr = gid.parse().expect("an address");
        let mut request = [0; 56];
        request[16..20].copy_from_slice(&pd.to_ne_bytes());
        request[24..40].copy_from_slice(&gid.octets());
        (request[53], request[54]) = (1, 1);
        write(&fixture, 5, &request, 4, 16).map(|(_, driver)| driver[4..10].to_vec())
    };
    assert_eq!(mac("ff0e::8102:305"), Ok(vec![0x33, 0x33, 0x81, 2, 3, 5]));
    assert_eq!(mac("::ffff:239.129.2.3"), Ok(vec![1, 0, 0x5e, 1, 2, 3]));
    assert_eq!(mac("::ffff:223.1.2.3"), Err(Errno::ETIMEDOUT));
    assert_eq!(mac("::239.129.2.3"), Err(Errno::ETIMEDOUT));
}

#[test]
fn shared_lid_ah_requires_grh() {
    let mut device = Device::with(Device::new().caps, false);
    device.grh_required = true;
    let fixture = Fixture::of(Arc::new(device));
    let pd = word(&write(&fixture, 3, &[0; 8], 4, 4).expect("a PD").0);
    assert_eq!(create_ah(&fixture, pd, 1, 0, 9).map(drop), Err(Errno::EINVAL));
    let reason = fixture.reason().expect("a reason");
    assert!(reason.contains("grh_required") && !reason.contains("RoCE"), "{reason}");
    assert_eq!(create_ah(&fixture, pd, 1, 1, 9).map(drop), Ok(()));
    for (rate, expected) in
        [(1, Err(Errno::EINVAL)), (2, Ok(())), (23, Ok(())), (24, Err(Errno::EINVAL))]
    {
        let mut request = [0; 56];
        request[16..20].copy_from_slice(&pd.to_ne_bytes());
        (request[39], request[52], request[53], request[54]) = (9, rate, 1, 1);
        assert_eq!(write(&fixture, 5, &request, 4, 16).map(drop), expected, "rate {rate}");
    }
    assert_eq!(fixture.close(), 0);
}

#[test]
fn ahs_and_matchers_leave_memory_to_other_filters() {
    let pool = ResourcePool::of([100, 100, 1 << 20, 0]);
    let filters = [(); 2].map(|()| Arc::new(Account::with(pool.clone())));
    let taken = |filter: &Arc<Account>| filter.taken(Resource::Bytes);
    let fixtures = filters
        .each_ref()
        .map(|filter| Fixture::of_client(Device::new(), TestClient::with(filter.clone())));
    let fill = |fixture: &Fixture| {
        fixture.get_context(1).expect("a context");
        let pd = word(&write(fixture, 3, &[0; 8], 4, 4).expect("a PD").0);
        (0..50).for_each(|_| drop(create_ah(fixture, pd, 1, 0, 1).expect("an AH")));
        let matchers = (0..).map_while(|_| matcher(fixture, &[1; 9], &[]).ok()).count();
        let _more = (0..).map_while(|_| create_ah(fixture, pd, 1, 0, 1).ok()).count();
        assert_eq!(matcher(fixture, &[1; 9], &[]), Err(Errno::ENOMEM));
        assert_eq!(create_ah(fixture, pd, 1, 0, 1).map(drop), Err(Errno::ENOMEM));
        assert!(matchers > 50, "{matchers}");
    };
    fill(&fixtures[0]);
    assert!(taken(&filters[0]) <= 3 << 18);
    fill(&fixtures[1]);
    assert!(taken(&filters[0]) + taken(&filters[1]) <= 1 << 20);
    assert_eq!(fixtures.map(Fixture::close), [0, 0]);
    assert_eq!(filters.each_ref().map(taken), [0, 0]);
}

#[test]
fn dead_device_allows_destroy_only() {
    let fixture = Fixture::new();
    let [pd, other] = [4, 4].map(|room| word(&write(&fixture, 3, &[0; 8], room, 4).unwrap().0));
    let ah = create_ah(&fixture, pd, 1, 0, 1).expect("an address handle").0;
    let devx = fixture.create(&command(Opcode::ALLOC_PD.0, 0, 16)).expect("an object");
    fixture.device.alive.store(false, Ordering::Relaxed);
    fixture.device.removed.store(true, Ordering::Relaxed);
    let by_write = |number, core: &[u8], out| write(&fixture, number, core, out, 0).map(drop);

    assert_eq!(by_write(99, &[0; 8], 0), Err(Errno::EOPNOTSUPP), "no such command");
    assert_eq!(by_write(3, &[0; 7], 4), Err(Errno::ENOSPC), "cut");
    assert_eq!(by_write(3, &[0; 8], 4), Err(Errno::EIO), "ALLOC_PD");
    assert_eq!(create_ah(&fixture, pd, 1, 0, 1).map(drop), Err(Errno::EIO));
    assert_eq!(fixture.get_context(1), Err(Errno::EIO));
    let page = fixture.file.mmap(0, 4096, verbless_devx::Protection::Write);
    assert_eq!(page.map(drop), Err(Errno::EIO));
    let create_qp = |pd: u32| Request::new(4, 0).handle(2, pd.into()).send(&fixture.file);
    for (handle, errno) in [(77, Errno::ENOENT), (ah, Errno::EINVAL), (pd, Errno::EIO)] {
        assert_eq!(create_qp(handle), Err(errno), "a queue pair in the PD {handle}");
    }
    let query_port = |room: usize| {
        let mut response = vec![0; room];
        Request::new(0, 2).number(0, 1).output(1, &mut response).send(&fixture.file)
    };
    assert_eq!(query_port(47), Err(Errno::EINVAL), "attributes are read first");
    assert_eq!(query_port(48), Err(Errno::EIO));
    let devx_query = |room: usize| {
        let mut response = vec![0; room];
        Request::new(0x1000, 0x1001).output(0x1001, &mut response).send(&fixture.file)
    };
    assert_eq!(devx_query(4), Err(Errno::EIO), "but not those of a driver's method");

    assert_eq!(by_write(4, &77u32.to_ne_bytes(), 0), Err(Errno::ENOENT));
    assert_eq!(by_write(4, &pd.to_ne_bytes(), 0), Ok(()), "DEALLOC_PD, before what used it");
    assert_eq!(by_write(8, &ah.to_ne_bytes(), 0), Ok(()), "DESTROY_AH");
    assert_eq!(Request::new(1, 0).handle(0, other.into()).send(&fixture.file), Ok(()));
    assert_eq!(fixture.destroy(0x1001, devx), Ok(()), "a driver's object, which was removed");
}

#[test]
fn query_port_reports_state_and_rejects_absent_port() {
    let fixture = Fixture::new();
    let query = |port: u64, room: usize| {
        let mut response = vec![0xff; room];
        Request::new(0, 2)
            .number(0, port)
            .output(1, &mut response)
            .send(&fixture.file)
            .map(|()| response)
    };
    let response = query(1, 48).expect("the port");
    assert_eq!(word(&response), 0x48);
    assert_eq!(response[22..24], [7, 0], "LID");
    assert_eq!(response[26..29], [4, 5, 5], "ACTIVE, 4096, 4096");
    assert_eq!((response[34], response[35], response[37]), (2, 64, 1));
    assert_eq!(response[29..34], [1, 4, 3, 18, 0], "lmc, VLs, the SM's SL, its timeout");
    assert_eq!(response[40..42], [2, 0], "the second mask of capabilities");
    assert_eq!(query(1, 60).expect("the port")[48..], [0; 12], "a longer buffer is zeroed");
    for (port, room, errno) in [
        (0, 48, Errno::EINVAL),
        (2, 48, Errno::EINVAL),
        (256, 48, Errno::EINVAL),
        (1, 47, Errno::EINVAL),
    ] {
        assert_eq!(query(port, room).map(drop), Err(errno), "port {port}, {room} bytes");
    }
}

#[test]
fn gids_are_listed_and_looked_up() {
    let fixture = Fixture::new();
    let table = |entry: u64, room: usize| {
        let (mut entries, mut count) = (vec![0xff; room], [0; 8]);
        Request::new(0, 5)
            .number(0, entry)
            .output(2, &mut entries)
            .output(3, &mut count)
            .send(&fixture.file)
            .map(|()| (entries, u64::from_ne_bytes(count)))
    };
    let (entries, count) = table(32, 64).expect("the table");
    assert_eq!((count, entries[15], word(&entries[16..]), word(&entries[20..])), (1, 1, 0, 1));
    let (entries, _) = table(40, 40).expect("longer entries");
    assert_eq!(entries[32..], [0; 8]);
    for (entry, room) in [(0, 64), (32, 0), (32, 33), (32, 16), (24, 32)] {
        assert_eq!(table(entry, room).map(drop), Err(Errno::EINVAL), "{entry} in {room}");
    }
    let entry = |port: u64, index: u64| {
        let mut entry = [0; 32];
        Request::new(0, 6)
            .number(0, port)
            .number(1, index)
            .input(2, &[0; 4])
            .output(3, &mut entry)
            .send(&fixture.file)
            .map(|()| entry[15])
    };
    assert_eq!(entry(1, 0), Ok(1));
    assert_eq!(entry(1, 1), Err(Errno::ENODATA));
    assert_eq!(entry(1, 8), Err(Errno::EINVAL), "past the table");
    assert_eq!(entry(2, 0), Err(Errno::EINVAL));
}
