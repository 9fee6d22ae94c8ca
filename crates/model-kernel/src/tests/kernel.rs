//! What the kernel derives from a device's capabilities and events for itself.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use nix::errno::Errno;
use verbless_prm::hot::event_type as event;
use verbless_prm::{AtomicCap, AtomicReqEndianness, CreateEqIn, Opcode, PortChangeSubtype};

use super::super::kernel::Kernel;
use super::super::numbers::IdAllocator;
use super::super::{ioctl, refusal_log};
use super::support::{Device, Fixture, Request, command};

#[test]
fn atomics_need_capability_operations_size_and_order() {
    let has = |atomic: bool, operations: u16, sizes: u16, order: u8| {
        let mut device = Device::with(Device::new().caps, false);
        device.caps.set_atomic(atomic);
        let mut caps = AtomicCap::zeroed();
        caps.set_atomic_operations(operations).set_atomic_size_qp(sizes);
        caps.set_atomic_req_8b_endianness_mode(AtomicReqEndianness(order));
        let page = [&[0; 0x10][..], caps.as_bytes()].concat();
        device.answer(Opcode::QUERY_HCA_CAP, 3 << 1 | 1, &page);
        Kernel::attach(Arc::new(device), Default::default()).expect("the device accepts it").atomics
    };
    assert!(has(true, 3, 8, 1) && has(true, 0xff, 0xf8, 1));
    assert!(!has(false, 3, 8, 1), "no capability");
    assert!(!has(true, 1, 8, 1) && !has(true, 2, 8, 1), "one of two operations");
    assert!(!has(true, 3, 0xf7, 1), "not of eight bytes");
    assert!(!has(true, 3, 8, 0), "not in the host's order");
}

#[test]
fn user_events_are_enabled_in_general_eq() {
    let mut device = Device::with(Device::new().caps, false);
    device.caps.set_event_cap(true);
    let mut page = [0; 0x50];
    let (affiliated, unaffiliated) = ([1u64, 2, 3, 4 << 32], [1u64 << 40, 6, 2, 8]);
    for (at, word) in affiliated.into_iter().chain(unaffiliated).enumerate() {
        page[0x10 + 8 * at..][..8].copy_from_slice(&word.to_be_bytes());
    }
    device.answer(Opcode::QUERY_HCA_CAP, 0x14 << 1 | 1, &page);
    let device = Arc::new(device);
    let kernel = Kernel::attach(device.clone(), Default::default()).expect("the device accepts it");
    let subscribable = kernel.subscribable.as_ref().expect("the device says");
    assert_eq!((subscribable.affiliated, subscribable.unaffiliated), (affiliated, unaffiliated));
    let commands = device.commands.lock().expect("no panic");
    let queue = commands.iter().find(|it| it[..2] == Opcode::CREATE_EQ.0.to_be_bytes());
    let queue = CreateEqIn::from_prefix(queue.expect("sent")).expect("the command is whole");
    let bitmask: [u64; 4] = std::array::from_fn(|at| queue.event_bitmask(at));
    assert_eq!(bitmask[0] & (1 | 1 << 40 | 1 << event::PORT_CHANGE), 1 | 1 << 40 | 1 << 9);
    assert_eq!(bitmask[1..], [6, 3, 4 << 32 | 8]);
}

fn async_file(fixture: &Fixture) -> OwnedFd {
    let mut alloc = Request::new(0x10, 0).handle(0, 0);
    assert_eq!(alloc.send(&fixture.file), Ok(()));
    fixture.take_fd(alloc.data(0))
}

/// Port and kind of the next event of an async file; `None`: there is none.
fn next_async_event(fd: &OwnedFd) -> Option<(u64, u32)> {
    let mut bytes = [0; 64];
    let len = crate::descriptor::receive(fd, &mut bytes).ok().filter(|&len| len == 16)?;
    assert_eq!(bytes[12..len], [0; 4]);
    let port = u64::from_ne_bytes(*bytes.first_chunk()?);
    Some((port, u32::from_ne_bytes(*bytes[8..].first_chunk()?)))
}

#[test]
fn changes_of_a_port_are_events_of_verbs() {
    use PortChangeSubtype as Change;
    let fixture = Fixture::new();
    let file = async_file(&fixture);
    let changes = [
        (Change::ACTIVE, Some(9)),
        (Change::DOWN, Some(10)),
        (Change::INITIALIZED, Some(10)),
        (Change::LID, Some(11)),
        (Change::PKEY, Some(12)),
        (Change::GUID, Some(18)),
        (Change::CLIENT_REREGISTER, Some(17)),
        (PortChangeSubtype(0), None),
    ];
    for (index, (change, expected)) in (0..).zip(changes) {
        let port = [(2, 1 << 28)];
        fixture.device.event_of((0, index), (event::PORT_CHANGE, change.0), &port);
        assert_eq!(next_async_event(&file), expected.map(|kind| (1, kind)), "{change:?}");
    }
}

#[test]
fn closed_channel_leaves_events_of_others() {
    let fixture = Fixture::new();
    let [first, second, third] = [0; 3].map(|_| async_file(&fixture));
    let channels = [0; 3].map(|_| fixture.channel(0).expect("a channel"));
    let subscribe = |channel: &OwnedFd| {
        use std::os::fd::AsRawFd;
        Request::new(0x1000, 0x1003)
            .handle(0x1000, channel.as_raw_fd() as u64)
            .input(0x1002, &[9, 0])
            .number(0x1004, 5)
            .send(&fixture.file)
            .expect("a subscription");
    };
    channels.iter().for_each(subscribe);
    let [gone, other, last] = channels;
    drop((second, gone));
    // The next ioctl notices the closed channels.
    let _ = Request::new(0, 0).number(2, 99).send(&fixture.file);
    assert_eq!(fixture.file.kernel.subscriptions.len(), 2);
    let change = (event::PORT_CHANGE, PortChangeSubtype::LID.0);
    fixture.device.event_of((0, 0), change, &[(2, 1 << 28)]);
    assert_eq!([next_async_event(&first), next_async_event(&third)], [Some((1, 11)); 2]);
    for channel in [&other, &last] {
        assert_eq!(crate::descriptor::receive(channel, &mut [0; 128]), Ok(72));
    }
    fixture.device.alive.store(false, Ordering::Relaxed);
    assert!(fixture.file.kernel.is_dead());
    for channel in [&other, &last] {
        let received = crate::descriptor::receive(channel, &mut [0; 128]);
        assert_eq!(received, Err(Errno::EAGAIN), "a fatal error ends no channel of DevX");
    }
    fixture.device.removed.store(true, Ordering::Relaxed);
    assert!(fixture.file.kernel.is_dead());
    for channel in [&other, &last] {
        assert_eq!(
            crate::descriptor::receive(channel, &mut [0; 128]),
            Ok(0),
            "the channel has ended"
        );
    }
}

#[test]
fn page_requests_are_served_by_manage_pages() {
    let fixture = Fixture::new();
    let pages = || fixture.device.count(Opcode::MANAGE_PAGES.0);
    let before = pages();
    for (index, count, more) in [(0, 0, 0), (1, 2, 1), (2, -1i32 as u32, 2)] {
        fixture.device.event(0, index, event::PAGE_REQUEST, &[(1, count)]);
        assert_eq!(pages() - before, more, "{count}");
    }
}

#[test]
fn dead_device_succeeds_commands_of_linux_list_only() {
    let fixture = Fixture::new();
    let kernel = &fixture.file.kernel;
    fixture.device.alive.store(false, Ordering::Relaxed);
    let exec = |opcode: Opcode| kernel.exec(&command(opcode.0, 0, 16), &mut [0; 16]);
    for opcode in [
        Opcode::DESTROY_CQ,
        Opcode::DEALLOC_PD,
        Opcode::DESTROY_UCTX,
        Opcode::DEALLOC_MEMIC,
        Opcode::DEALLOC_SF,
        Opcode::DESTROY_LAG,
        Opcode::DESTROY_VPORT_LAG,
        Opcode::DESTROY_QOS_PARA_VPORT,
        Opcode::FPGA_DESTROY_QP,
        Opcode::MANAGE_PAGES,
        Opcode::PAGE_FAULT_RESUME,
        Opcode::QUERY_ESW_FUNCTIONS,
        Opcode::QP_2ERR,
        Opcode::QP_2RST,
        Opcode::MODIFY_RQT,
        Opcode::MODIFY_NIC_VPORT_CONTEXT,
        Opcode::MODIFY_FLOW_TABLE,
        Opcode::SET_FLOW_TABLE_ENTRY,
        Opcode::SET_FLOW_TABLE_ROOT,
    ] {
        assert_eq!(exec(opcode), Ok(()), "{opcode:?}");
    }
    for opcode in [
        Opcode::CREATE_CQ,
        Opcode::QUERY_QP,
        Opcode::ALLOC_PD,
        Opcode::RTR2RTS_QP,
        Opcode::MODIFY_CQ,
        Opcode::DRAIN_DCT,
        Opcode::SET_ROCE_ADDRESS,
    ] {
        assert_eq!(exec(opcode), Err(Errno::ENOLINK), "{opcode:?}");
    }
}

#[test]
fn planned_ioctl_fault_matches_method_and_command() {
    let fixture = Fixture::new();
    let fails = |names: &[&'static str], request: &mut Request| {
        *fixture.device.fails.lock().expect("no panic") = Some(names.to_vec());
        request.send(&fixture.file) == Err(Errno::ENODEV)
    };
    let mut alloc = Request::new(0, 0).number(2, 3).number(0, 9);
    assert!(fails(&["INVOKE_WRITE", "ALLOC_PD"], &mut alloc), "9 is no command here");
    assert!(!fails(&["INVOKE_WRITE", "REG_MR"], &mut alloc));
    let mut entry = Request::new(0, 6).number(2, 9);
    assert!(fails(&["QUERY_GID_ENTRY"], &mut entry), "nor here");
}

#[test]
fn numbers_are_exhausted_at_upper_bound() {
    let mut numbers = IdAllocator::new(5, 7);
    for number in [5, 6] {
        assert_eq!(numbers.lowest(), Some(number));
        numbers.allocate_this(number);
    }
    assert_eq!(numbers.lowest(), None);
    numbers.release(5);
    assert_eq!(numbers.lowest(), Some(5));
}

#[test]
fn ioctl_length_matches_attribute_count() {
    let header = |length: u64, count: u64| [length | 3 << 32 | count << 48, 0, 1];
    assert_eq!(ioctl::length(&header(24, 0)), Ok(24));
    assert_eq!(ioctl::length(&header(56, 2)), Ok(56));
    assert_eq!(ioctl::length(&header(57, 2)), Err(Errno::EINVAL));
    assert_eq!(ioctl::length(&header(4088, 254)), Ok(4088));
    assert_eq!(ioctl::length(&header(4104, 255)), Err(Errno::EINVAL), "more than a page");
}

#[test]
fn fwctl_ioctls_are_logged_by_name() {
    use verbless_devx::abi::fwctl::{FWCTL_INFO, FWCTL_RPC};
    assert_eq!(refusal_log::fwctl_request(FWCTL_INFO), "FWCTL_INFO");
    assert_eq!(refusal_log::fwctl_request(FWCTL_RPC), "FWCTL_RPC");
    assert_eq!(refusal_log::fwctl_request(0x1234), "ioctl 0x1234 of fwctl");
}
