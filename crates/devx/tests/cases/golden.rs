//! Requests equal those of rdma-core byte for byte, pointers aside.
#![allow(unsafe_code, reason = "registers memory, which the scripted device never touches")]
#![cfg(all(target_endian = "little", target_pointer_width = "64"))]

use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;

use crate::support::replay::Replay;
use verbless_devx::abi::core::{AhAttributes, GlobalRoute, access, port_state};
use verbless_devx::{Context, DeviceInfo, GidType, LinkLayer, PageSizes, UarKind};

const RECORDED: &str = include_str!("../data/recorded-requests.txt");
const DERIVED: &str = include_str!("../data/derived-requests.txt");

/// A mailbox in the recorded pattern: the opcode, then from byte 8 on each byte's own offset.
fn mailbox(opcode: u16, length: usize) -> Vec<u8> {
    let mut bytes: Vec<u8> = (0..length).map(|at| at as u8).collect();
    bytes[..8].fill(0);
    bytes[..2].copy_from_slice(&opcode.to_be_bytes());
    bytes
}

#[test]
fn requests_match_recording() {
    let device = Arc::new(Replay::new(RECORDED));
    let context = Context::from_device(device.clone(), DeviceInfo::default()).unwrap();
    let attributes = context.attributes();
    assert_eq!((attributes.completion_vectors, attributes.core_support), (2, 1));
    assert_eq!((attributes.null_mkey(), attributes.blue_flame_bytes()), (Some(0x300), 256));
    assert!(attributes.resolves_mac());

    let query_hca_cap = [1, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0];
    context.devx_other(&query_hca_cap, &mut vec![0xa5; 4112]).unwrap();
    context.devx_other(&mailbox(0x10b, 64), &mut [0xa5; 16]).unwrap();

    let mut out = [0xa5; 16];
    let mut alloc_pd = [0; 16];
    alloc_pd[0] = 8;
    let pd = context.obj_create(&alloc_pd, &mut out).unwrap();
    assert_eq!((pd.handle(), &out[8..12]), (2, &[0, 0, 9, 0][..]));
    let mkey = context.obj_create(&mailbox(0x200, 272), &mut out).unwrap();
    let cq = context.obj_create(&mailbox(0x400, 272), &mut out).unwrap();
    let qp = context.obj_create(&mailbox(0x500, 272), &mut out).unwrap();
    qp.query(&mailbox(0x50b, 16), &mut [0xa5; 272]).unwrap();
    qp.modify(&mailbox(0x502, 272), &mut out).unwrap();

    let (address, length) = (0x5555_5555_d000, 8192);
    // SAFETY: the scripted device does not touch the range.
    let umem =
        unsafe { context.umem_reg(address, length, access::LOCAL_WRITE, PageSizes::Any) }.unwrap();
    let all = access::LOCAL_WRITE | access::REMOTE_WRITE | access::REMOTE_READ;
    // SAFETY: as above.
    let umem_ex =
        unsafe { context.umem_reg(address, length, all, PageSizes::Bitmap(4096)) }.unwrap();
    let dmabuf = std::fs::File::open("/dev/null").unwrap();
    device.map_file(42, &dmabuf);
    let page = PageSizes::Bitmap(4096);
    let umem_dmabuf = context
        .umem_reg_dmabuf(dmabuf.as_fd(), address, length, access::LOCAL_WRITE, page)
        .unwrap();
    assert_eq!((umem.id(), umem_ex.id(), umem_dmabuf.id()), (0x904, 0x905, 0x906));

    let blue_flame = context.uar_alloc(UarKind::BlueFlame).unwrap();
    let non_cached = context.uar_alloc(UarKind::NonCached).unwrap();
    assert_eq!((blue_flame.page_id(), non_cached.page_id()), (0x41, 0x42));
    assert_eq!(blue_flame.mapping().len(), 4096);
    assert_eq!(context.query_eqn(1).unwrap(), 7);

    let commands = context.command_channel().unwrap();
    commands.query(&qp, &mailbox(0x50b, 16), 272, 0x1122_3344_5566_7788).unwrap();
    let events = context.event_channel(false).unwrap();
    let completions = context.event_channel(true).unwrap();
    events.subscribe(Some(&cq), &[0], 0xc0_0c1e).unwrap();
    events.subscribe(Some(&qp), &[0, 2, 4, 5, 0x13], 0xc0_0c1f).unwrap();
    events.subscribe(None, &[8], 5).unwrap();
    completions.subscribe_eventfd(Some(&cq), &[0], completions.as_fd()).unwrap();

    umem_dmabuf.destroy().unwrap();
    drop(umem_ex);
    umem.destroy().unwrap();
    for object in [qp, cq, mkey, pd] {
        object.destroy().unwrap();
    }

    context.query_port(1).unwrap();
    let second = context.uar_alloc(UarKind::NonCached).unwrap();
    let asynchronous = context.async_event_alloc().unwrap();
    assert!(asynchronous.as_fd().as_raw_fd() > 2);
    let pd = context.alloc_pd().unwrap();
    assert_eq!((pd.handle(), pd.pdn()), (13, 0x777));
    let third = context.uar_alloc(UarKind::BlueFlame).unwrap();
    pd.destroy().unwrap();
    third.destroy().unwrap();
    drop(second);
    assert_eq!(device.left(), Vec::<String>::new());

    drop((blue_flame, non_cached));
    let after = device.after();
    assert_eq!(
        after.len(),
        2,
        "only the pages that were never given back in the recording: {after:?}"
    );
    assert!(
        after[0].starts_with("2800081001100100") && after[1].starts_with("2800081001100100"),
        "{after:?}"
    );
    assert_eq!(context.leaked(), 0);
}

#[test]
fn derived_requests_match_rdma_core() {
    let open = RECORDED.split("\n\n").find(|block| block.starts_with("[GET_CONTEXT]")).unwrap();
    let pd = RECORDED.split("\n\n").find(|block| block.contains("ibv_alloc_pd")).unwrap();
    let derived = DERIVED.replace("[INVOKE_WRITE]", &format!("{pd}\n\n[INVOKE_WRITE]"));
    let device = Arc::new(Replay::new(&format!("{open}\n\n{derived}")));
    let context = Context::from_device(device.clone(), DeviceInfo::default()).unwrap();

    let table = context.gid_table().unwrap();
    assert_eq!(table.len(), 2);
    assert_eq!(table[0].gid.to_string(), "fe80:0000:0000:0000:0200:00ff:fe00:0001");
    assert_eq!((table[0].index, table[0].kind, table[0].ifindex), (0, GidType::RoceV1, 3));
    let entry = context.gid_entry(1, 1).unwrap();
    assert_eq!(entry, table[1]);
    assert_eq!((entry.kind, entry.port, entry.index), (GidType::RoceV2, 1, 1));

    let pd = context.alloc_pd().unwrap();
    let mut dgid = [0; 16];
    dgid[10..].copy_from_slice(&[0xff, 0xff, 10, 0, 0, 2]);
    let grh = GlobalRoute {
        dgid,
        flow_label: 0x12345,
        sgid_index: 1,
        hop_limit: 64,
        traffic_class: 0x60,
        ..Default::default()
    };
    let path = AhAttributes { grh, sl: 3, is_global: 1, port_num: 1, ..Default::default() };
    let ah = context.create_ah(&pd, &path).unwrap();
    assert_eq!(ah.destination_mac(), Some([2, 0, 0, 0, 0, 2]));
    let held = pd.destroy().unwrap_err();
    assert_eq!(held.object.pdn(), 0x777, "the address handle holds its protection domain");
    ah.destroy().unwrap();
    assert_eq!(device.left(), Vec::<String>::new());
}

#[test]
fn query_port_returns_state_link_and_mtu() {
    let open = RECORDED.split("\n\n").find(|block| block.starts_with("[GET_CONTEXT]")).unwrap();
    let port = DERIVED.split("\n\n").find(|block| block.starts_with("[QUERY_PORT]")).unwrap();
    let device = Arc::new(Replay::new(&format!("{open}\n\n{port}")));
    let port = Context::from_device(device, DeviceInfo::default()).unwrap().query_port(1).unwrap();
    assert_eq!((port.raw.state, port.is_active()), (port_state::ACTIVE, true));
    assert_eq!(
        (port.link_layer(), port.active_mtu(), port.raw.gid_tbl_len),
        (LinkLayer::Ethernet, Some(1024), 4)
    );
}
