//! The end of a file's objects on close, and of the kernel's own objects on the last close.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use nix::errno::Errno;
use verbless_prm::Opcode;

use super::super::account::{Account, Resource, ResourcePool};
use super::super::client::Client as _;
use super::super::rules;
use super::super::verbs::listener::ListenerKind;
use super::support::{Device, Fixture, Request, TestClient, buffer, command};
use super::verbs_rig::{Verbs, fields};

#[test]
fn close_destroys_objects_newest_first() {
    let fixture = Fixture::new();
    let (_memory, address) = buffer(1);
    fixture.umem(address, 4096, 1, None).expect("a UMEM");
    fixture.create(&command(Opcode::ALLOC_PD.0, 0, 16)).expect("a PD");
    fixture.create(&command(Opcode::CREATE_MKEY.0, 0, 0x110)).expect("a key");
    fixture.create(&command(Opcode::CREATE_QP.0, 0, 0x110)).expect("a QP");
    let device = fixture.device.clone();
    assert_eq!(fixture.close(), 0);
    let commands = device.commands.lock().expect("no panic");
    let order: Vec<u16> = commands
        .iter()
        .map(|command| rules::opcode(command).0)
        .skip_while(|&opcode| opcode != Opcode::DESTROY_QP.0)
        .collect();
    let expected = [
        Opcode::DESTROY_QP.0,
        Opcode::DESTROY_MKEY.0,
        Opcode::DEALLOC_PD.0,
        Opcode::DESTROY_UMEM.0,
        Opcode::DEALLOC_TRANSPORT_DOMAIN.0,
        Opcode::DESTROY_UCTX.0,
        Opcode::DESTROY_UCTX.0,
        Opcode::DESTROY_EQ.0,
        Opcode::DESTROY_EQ.0,
        Opcode::DESTROY_EQ.0,
        Opcode::DEALLOC_UAR.0,
        Opcode::TEARDOWN_HCA.0,
        Opcode::DISABLE_HCA.0,
    ];
    assert_eq!(order, expected);
}

#[test]
fn close_destroys_qps_before_mkeys() {
    let fixture = Fixture::new();
    fixture.create(&command(Opcode::CREATE_QP.0, 0, 0x110)).expect("a QP");
    fixture.create(&command(Opcode::CREATE_QP.0, 0, 0x110)).expect("another QP");
    fixture.create(&command(Opcode::CREATE_MKEY.0, 0, 0x110)).expect("a key");
    let device = fixture.device.clone();
    assert_eq!(fixture.close(), 0);
    let commands = device.commands.lock().expect("no panic");
    let order: Vec<u16> = commands
        .iter()
        .map(|command| rules::opcode(command).0)
        .filter(|opcode| [Opcode::DESTROY_QP.0, Opcode::DESTROY_MKEY.0].contains(opcode))
        .collect();
    assert_eq!(order, [Opcode::DESTROY_QP.0, Opcode::DESTROY_QP.0, Opcode::DESTROY_MKEY.0]);
}

#[test]
fn close_destroys_verbs_qps_before_mkeys() {
    let verbs = Verbs::new();
    verbs.rc();
    verbs.reg_mr(verbs.address, 0x1000, verbs.address, 1).expect("a region");
    let device = verbs.fixture.device.clone();
    assert_eq!(verbs.fixture.close(), 0);
    let commands = device.commands.lock().expect("no panic");
    let at = |opcode| commands.iter().position(|command| rules::opcode(command) == opcode);
    assert!(at(Opcode::DESTROY_QP).expect("sent") < at(Opcode::DESTROY_MKEY).expect("sent"));
}

#[test]
fn close_unbacks_client_mapped_pages() {
    let fixture = Fixture::with_own_mappings(Device::new());
    let mut get = Request::new(0, 3).input(0x1000, &[4, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(get.send(&fixture.file), Ok(()));
    let device = fixture.device.clone();
    assert_eq!(device.backed.lock().expect("no panic").len(), 2);
    assert_eq!(fixture.close(), 0);
    assert!(device.backed.lock().expect("no panic").is_empty());
}

#[test]
fn close_retries_object_in_use() {
    let fixture = Fixture::new();
    fixture.create(&command(Opcode::ALLOC_PD.0, 0, 16)).expect("a PD");
    fixture.create(&command(Opcode::CREATE_QP.0, 0, 0x110)).expect("a QP");
    fixture.device.refuse_next(Opcode::DESTROY_QP.0, 6);
    let device = fixture.device.clone();
    assert_eq!(fixture.close(), 0);
    assert_eq!(device.count(Opcode::DESTROY_QP.0), 2);
    assert_eq!(device.count(Opcode::DEALLOC_PD.0), 1);
}

#[test]
fn handles_are_given_out_again_lowest_first() {
    let fixture = Fixture::new();
    let pd = || fixture.create(&command(Opcode::ALLOC_PD.0, 0, 16)).expect("a PD");
    assert_eq!((pd(), pd(), pd()), (0, 1, 2));
    assert_eq!(fixture.destroy(0x1001, 1), Ok(()));
    assert_eq!((pd(), pd()), (1, 3));
    assert_eq!(fixture.close(), 0);
}

#[test]
fn failed_attach_releases_everything() {
    use super::super::kernel::Kernel;
    for opcode in
        [Opcode::QUERY_HCA_CAP.0, Opcode::ALLOC_UAR.0, Opcode::CREATE_EQ.0, Opcode::CREATE_UCTX.0]
    {
        let device = Device::new();
        device.refuse_next(opcode, 8);
        let result = Kernel::attach(device.clone(), Default::default()).map(drop);
        assert_eq!(result, Err(Errno::ENOMEM), "{opcode:#x}");
        assert_eq!(device.held(), 0, "{opcode:#x}");
    }
}

#[test]
fn handles_are_private_to_their_file() {
    let fixture = Fixture::new();
    let second = super::super::file::File::new(fixture.file.kernel.clone(), fixture.client.clone());
    let pd = fixture.create(&command(Opcode::ALLOC_PD.0, 0, 16)).expect("a PD");
    let mut destroy = Request::new(0x1001, 0x1001).handle(0x1000, pd);
    assert_eq!(destroy.send(&second), Err(Errno::ENOENT));
    drop(second);
    assert_eq!(fixture.destroy(0x1001, pd), Ok(()));
    assert_eq!(fixture.close(), 0);
}

#[test]
fn destroy_keeps_listener_of_new_object_with_same_number() {
    let verbs = Verbs::new();
    let kernel = verbs.fixture.file.kernel.clone();
    let (qp, qpn, _) = verbs.rc();
    let ((cq, cqn), (srq, srqn)) = (verbs.plain_cq(), verbs.srq());
    for (object, kind, opcode, handle, number) in [
        (4, ListenerKind::Qp, Opcode::DESTROY_QP, qp, qpn),
        (3, ListenerKind::Cq, Opcode::DESTROY_CQ, cq, cqn),
        (5, ListenerKind::Srq, Opcode::DESTROY_RMP, srq, srqn),
    ] {
        let of_old = kernel.listeners.get(kind, number).expect("the object has one");
        let other = kernel.clone();
        verbs.fixture.device.race(opcode, move || {
            other.listeners.add(kind, number, 77, None, None);
        });
        let mut reply = [0; 8];
        let reply = if object == 3 { &mut reply[..] } else { &mut reply[..4] };
        assert_eq!(verbs.destroy(object, handle, reply), Ok(()));
        let of_new = kernel.listeners.get(kind, number).expect("the new object has one");
        assert!(!Arc::ptr_eq(&of_old, &of_new), "{kind:?}");
    }
    let (cq, cqn) = verbs.plain_cq();
    assert_eq!(verbs.destroy(3, cq, &mut [0; 8]), Ok(()));
    assert!(
        kernel.listeners.get(ListenerKind::Cq, cqn).is_none(),
        "the listener ends with its object"
    );
}

#[test]
fn refused_destroy_keeps_listener() {
    let verbs = Verbs::new();
    let listeners = &verbs.fixture.file.kernel.listeners;
    let (cq, cqn) = verbs.plain_cq();
    verbs.fixture.device.refuse_next(Opcode::DESTROY_CQ.0, 6);
    assert_eq!(verbs.destroy(3, cq, &mut [0; 8]), Err(Errno::EBUSY));
    assert!(listeners.get(ListenerKind::Cq, cqn).is_some());
}

/// Sends UAR_ALLOC; returns the page's handle.
fn uar(fixture: &Fixture) -> Result<u64, Errno> {
    let (mut offset, mut length, mut page) = ([0; 8], [0; 4], [0; 4]);
    let mut alloc = Request::new(0x1008, 0x1000)
        .handle(0x1000, 0)
        .number(0x1001, 0)
        .output(0x1002, &mut offset)
        .output(0x1003, &mut length)
        .output(0x1004, &mut page);
    alloc.send(&fixture.file)?;
    Ok(alloc.data(0))
}

/// Sends GET_CONTEXT with this many UAR pages.
fn static_uars(fixture: &Fixture, pages: u8) -> Result<(), Errno> {
    Request::new(0, 3).input(0x1000, &[2 * pages, 0, 0, 0, 0, 0, 0, 0]).send(&fixture.file)
}

#[test]
fn uar_pages_of_a_filter_leave_mappings_to_others() {
    // 16 mappings. A UAR page takes two, and each of two filters may hold half of all.
    let pool = ResourcePool::of([100, 16, 0, 0]);
    let filters = [(); 2].map(|()| Arc::new(Account::with(pool.clone())));
    let taken = |filter: &Arc<Account>| filter.taken(Resource::Mappings);
    let [first, second, third] = [0, 0, 1].map(|filter| {
        let filter: &Arc<Account> = &filters[filter];
        Fixture::of_client(Device::new(), TestClient::with(filter.clone()))
    });
    super::support::get_context(&first.file, 1).expect("a context");
    let pages: Vec<_> = (0..4).map(|_| uar(&first).expect("a page")).collect();
    let held = first.device.held();
    assert_eq!(uar(&first).map(drop), Err(Errno::ENOMEM));
    assert_eq!(first.device.held(), held, "no page is allocated");
    assert_eq!(static_uars(&second, 1), Err(Errno::ENOMEM), "same filter as the first");
    assert_eq!((static_uars(&third, 2), taken(&filters[1])), (Ok(()), 4));
    assert_eq!((first.destroy(0x1008, pages[0]), taken(&filters[0])), (Ok(()), 6));
    // A UAR page that stays backed by the client's memory is not freed, and still counts.
    first.device.keeps_backing.store(true, Ordering::Relaxed);
    assert_eq!(first.destroy(0x1008, pages[1]), Err(Errno::ENOMEM));
    assert_eq!(taken(&filters[0]), 6);
    first.device.keeps_backing.store(false, Ordering::Relaxed);
    assert_eq!((first.close(), taken(&filters[0])), (0, 0));
    third.device.keeps_backing.store(true, Ordering::Relaxed);
    assert_eq!((third.close(), taken(&filters[1])), (2, 4));
}

#[test]
fn uar_page_is_unbacked_before_it_is_freed() {
    // The context's page, and one of UAR_ALLOC.
    for dynamic in [false, true] {
        let fixture = Fixture::with_own_mappings(Device::new());
        let device = fixture.device.clone();
        if dynamic {
            super::support::get_context(&fixture.file, 1).expect("a context");
            assert!(uar(&fixture).is_ok());
        } else {
            assert_eq!(static_uars(&fixture, 1), Ok(()));
        }
        let page = *device.backed.lock().expect("no panic").keys().next().expect("a page");
        // Another client gets the page and maps it.
        let other = device.clone();
        device.race(Opcode::DEALLOC_UAR, move || {
            other.backed.lock().expect("no panic").insert(page, 0x77_0000);
        });
        assert_eq!(fixture.close(), 0);
        let backed = device.backed.lock().expect("no panic");
        assert_eq!(backed.get(&page), Some(&0x77_0000), "dynamic: {dynamic}");
    }
}

#[test]
fn close_keeps_memory_of_undestroyed_objects() {
    let fixture = Fixture::new();
    let (_memory, address) = buffer(3);
    fixture.umem(address, 0x3000, 1, None).expect("a UMEM");
    let (device, client) = (fixture.device.clone(), fixture.client.clone());
    let pinned = client.pinned().load(Ordering::Relaxed);
    assert_eq!(pinned, 3);
    device.refuse_next(Opcode::DESTROY_UMEM.0, 6);
    assert_eq!(fixture.close(), 1, "the device still has the UMEM");
    assert_eq!(client.pinned().load(Ordering::Relaxed), pinned);
}

#[test]
fn create_without_response_keeps_pins_if_device_refuses_destroy() {
    // No client has memory there.
    const NOWHERE: u64 = 8;
    let verbs = Verbs::new();
    let Verbs { address, pd, ref fixture, .. } = verbs;
    let (device, client) = (fixture.device.clone(), fixture.client.clone());
    let pinned = || client.pinned().load(Ordering::Relaxed);
    let umem = Request::new(0x1002, 0x1000)
        .handle(0x1000, 0)
        .number(0x1001, address)
        .number(0x1002, 0x3000)
        .input(0x1003, &1u32.to_ne_bytes())
        .raw(0x1004, 4, 1, 0, NOWHERE);
    let region = fields(&[8, 8, 8, 8, 4, 4], &[0, address, 0x3000, address, pd.into(), 1]);
    let region = Request::new(0, 0).number(2, 9).input(0, &region).raw(1, 12, 1, 0, NOWHERE);
    let driver = verbs.cq_driver();
    let cq = Request::new(3, 0)
        .handle(0, 0)
        .input(1, &63u32.to_ne_bytes())
        .number(2, 0)
        .input(4, &0u32.to_ne_bytes())
        .input(0x1000, &driver);
    let mut size = [0; 4];
    let cq = cq.output(6, &mut size).raw(0x1001, 8, 1, 0, NOWHERE);
    for (what, opcode, mut request) in [
        ("UMEM", Opcode::DESTROY_UMEM, umem),
        ("MR", Opcode::DESTROY_MKEY, region),
        ("CQ", Opcode::DESTROY_CQ, cq),
    ] {
        let (before, words) = (pinned(), request.words.clone());
        assert_eq!((request.send(&fixture.file), pinned()), (Err(Errno::EFAULT), before), "{what}");
        device.refuse_next(opcode.0, 6);
        request.words = words;
        assert_eq!(request.send(&fixture.file), Err(Errno::EFAULT), "{what}");
        assert!(pinned() > before, "{what}");
    }
    assert_eq!((verbs.fixture.close(), pinned()), (0, 0));
}
