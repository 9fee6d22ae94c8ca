//! RDMA: the ranges of properties, and the lengths of messages.

use std::sync::Arc;
use std::time::Duration;

use verbless_devx::Backend;
use verbless_doca::rdma::{Mtu, Rdma, RdmaBuilder, RdmaState, TransportType};
use verbless_doca::{AccessFlags, Buf, Dev, DevInfo, ErrorKind, JobType};
use verbless_model::{Model, Profile};
use verbless_model_kernel::InProcess;

use crate::support::rdma::{End, NETWORKS, all, connect, ends, ends_of, kind};

/// The two devices of a model with a changed line in their profile.
fn changed(from: &str, to: &str) -> Vec<DevInfo> {
    let text = include_str!("../../../model/profiles/bluefield3.toml");
    assert!(text.contains(from), "{from}");
    let card = Profile::from_toml(&text.replace(from, to)).unwrap();
    let model = Model::builder().device(card.clone()).device(card).build();
    let backend: Arc<dyn Backend> = Arc::new(InProcess::of(&model));
    DevInfo::list_of(&backend).unwrap()
}

/// The error of a failed start.
fn start_error(builder: RdmaBuilder) -> (ErrorKind, String) {
    let error = builder.start().expect_err("the value is above the limit").error;
    (error.kind(), error.to_string())
}

#[test]
fn limits_are_known_before_open() {
    for network in NETWORKS {
        let info = &DevInfo::list_of(&crate::support::backend(network)).unwrap()[0];
        let dev = info.open().unwrap();
        let of_info = [
            Rdma::max_message_size(info).unwrap(),
            Rdma::max_send_queue_size(info).unwrap().into(),
            Rdma::max_recv_queue_size(info).unwrap().into(),
            Rdma::max_send_buf_chain_len(info).unwrap().into(),
            Rdma::max_recv_buf_chain_len(info).unwrap().into(),
        ];
        let of_dev = [
            Rdma::max_message_size(&dev).unwrap(),
            Rdma::max_send_queue_size(&dev).unwrap().into(),
            Rdma::max_recv_queue_size(&dev).unwrap().into(),
            Rdma::max_send_buf_chain_len(&dev).unwrap().into(),
            Rdma::max_recv_buf_chain_len(&dev).unwrap().into(),
        ];
        assert_eq!(of_info, of_dev);
        assert!(of_dev.iter().all(|&most| most > 1), "{of_dev:?}");
        for job in [JobType::RdmaReceive, JobType::RdmaRead, JobType::RdmaFetchAdd] {
            Rdma::job_supported(info, job).unwrap();
        }
        assert_eq!(kind(Rdma::job_supported(info, JobType::DmaMemcpy)), ErrorKind::InvalidValue);
        Rdma::transport_type_supported(info, TransportType::Rc).unwrap();
        let dc = Rdma::transport_type_supported(info, TransportType::Dc);
        assert_eq!(kind(dc), ErrorKind::NotSupported);
    }
}

#[test]
fn properties_are_accepted_up_to_their_limits() {
    let dev = crate::support::dev();
    let limits = [
        Rdma::max_send_queue_size(&dev).unwrap(),
        Rdma::max_recv_queue_size(&dev).unwrap(),
        Rdma::max_send_buf_chain_len(&dev).unwrap(),
        Rdma::max_recv_buf_chain_len(&dev).unwrap(),
    ];
    type Set = fn(RdmaBuilder, u32) -> RdmaBuilder;
    let sets: [(&str, u32, Set); 9] = [
        // One buffer each: a longer chain takes more WQEBBs, which lowers the limit.
        ("send_queue_size", limits[0], |b, n| b.send_buf_chain_len(1).send_queue_size(n)),
        ("recv_queue_size", limits[1], |b, n| b.recv_queue_size(n)),
        ("send_buf_chain_len", limits[2], |b, n| b.send_buf_chain_len(n)),
        ("recv_buf_chain_len", limits[3], |b, n| b.recv_buf_chain_len(n)),
        ("service_level", 15, |b, n| b.service_level(n as u8)),
        ("retry_count", 7, |b, n| b.retry_count(n as u8)),
        ("rnr_retry_count", 7, |b, n| b.rnr_retry_count(n as u8)),
        ("ack_timeout", 31, |b, n| b.ack_timeout(n as u8)),
        ("min_rnr_timer", 31, |b, n| b.min_rnr_timer(n as u8)),
    ];
    for (name, most, set) in sets {
        let rdma = set(Rdma::builder(&dev), most).start().unwrap();
        // The export creates the QP: the device accepts the value.
        rdma.export().unwrap_or_else(|error| panic!("{name} = {most}: {error}"));
        let (kind, text) = start_error(set(Rdma::builder(&dev), most + 1));
        assert_eq!(kind, ErrorKind::InvalidValue, "{name}");
        assert!(text.contains(name) && text.contains(&most.to_string()), "{text}");
    }
    let none: [Set; 4] = [
        |b, n| b.send_queue_size(n),
        |b, n| b.recv_queue_size(n),
        |b, n| b.send_buf_chain_len(n),
        |b, n| b.recv_buf_chain_len(n),
    ];
    for set in none {
        assert_eq!(start_error(set(Rdma::builder(&dev), 0)).0, ErrorKind::InvalidValue);
    }
    for reads in [0, 129] {
        let (kind, text) = start_error(Rdma::builder(&dev).reads(reads));
        assert_eq!(kind, ErrorKind::InvalidValue, "{text}");
    }
    for port in [0, 9] {
        assert_eq!(start_error(Rdma::builder(&dev).port(port)).0, ErrorKind::InvalidValue);
    }
    for right in [AccessFlags::DPU_READ_ONLY, AccessFlags::DPU_READ_WRITE] {
        let (kind, text) = start_error(Rdma::builder(&dev).permissions(right));
        assert_eq!(kind, ErrorKind::InvalidValue, "{text}");
        assert!(text.ends_with("and LOCAL_READ_WRITE, which changes nothing"), "{text}");
    }
    let (kind, text) = start_error(Rdma::builder(&dev).gid_index(255));
    assert_eq!(kind, ErrorKind::InvalidValue, "{text}");
}

#[test]
fn ethernet_service_level_is_at_most_7() {
    let [dev, _] = crate::support::rdma::devices("bluefield3 on Ethernet");
    Rdma::builder(&dev).service_level(7).start().unwrap();
    let (kind, text) = start_error(Rdma::builder(&dev).service_level(8));
    assert_eq!(kind, ErrorKind::InvalidValue, "{text}");
}

#[test]
fn messages_use_each_mtu() {
    for mtu in [Mtu::B256, Mtu::B512, Mtu::B1024, Mtu::B2048, Mtu::B4096] {
        let ends = ends("bluefield3", |builder| builder.mtu(mtu), all());
        connect(&ends);
        let [mut a, mut b] = ends;
        let bytes = a.fill(0, 9000, 1);
        b.workq.submit(b.rdma().receive(b.room(0, 9000))).unwrap();
        a.workq.submit(a.rdma().send(a.data(0, 9000))).unwrap();
        assert_eq!(b.done().local.unwrap().to_vec().unwrap(), bytes);
        a.done();
    }
}

#[test]
fn connect_rejects_other_link_type() {
    let [infiniband, _] = crate::support::rdma::devices("bluefield3");
    let [ethernet, _] = crate::support::rdma::devices("bluefield3 on Ethernet");
    let both = [infiniband, ethernet].map(|dev| Rdma::builder(&dev).start().unwrap());
    for (here, there) in [(0, 1), (1, 0)] {
        let theirs = both[there].export().unwrap();
        assert_eq!(kind(both[here].connect(theirs)), ErrorKind::InvalidValue);
        assert_eq!(both[here].state(), RdmaState::Init);
    }
}

/// Two connected ends with maps of `length` bytes, and chains of at most 30 buffers.
fn with_chains(devs: &[DevInfo], length: usize) -> [End; 2] {
    let devs: [Dev; 2] = std::array::from_fn(|side| devs[side].open().unwrap());
    let chains = |builder: RdmaBuilder| builder.send_buf_chain_len(30).recv_buf_chain_len(30);
    let ends = crate::support::rdma::ends_of(devs, chains, all(), length);
    connect(&ends);
    ends
}

/// A chain of `times` buffers of the same `length` bytes, and of one of `last` bytes; `full` of
/// data, or with empty datarooms.
fn chain(end: &End, times: u64, length: u64, last: u64, full: bool) -> Buf {
    let buf = |length| if full { end.data(0, length) } else { end.room(0, length) }.unwrap();
    let mut first = buf(length);
    (1..times).for_each(|_| first.link(buf(length)).unwrap());
    if last > 0 {
        first.link(buf(last)).unwrap();
    }
    first
}

#[test]
fn message_length_is_limited_by_log_max_msg() {
    const PIECE: u64 = 1 << 20;
    let devs = changed("log_max_msg = 30", "log_max_msg = 24");
    assert_eq!(Rdma::max_message_size(&devs[0]).unwrap(), 16 * PIECE);
    let [mut a, mut b] = with_chains(&devs, PIECE as usize);
    b.workq.submit(b.rdma().receive(Some(chain(&b, 16, PIECE, 0, false)))).unwrap();
    let refused = a.workq.submit(a.rdma().send(Some(chain(&a, 16, PIECE, 1, true)))).unwrap_err();
    assert_eq!(refused.error.kind(), ErrorKind::InvalidValue);
    assert!(refused.error.to_string().contains("max_message_size"), "{}", refused.error);
    a.workq.submit(a.rdma().send(Some(chain(&a, 16, PIECE, 0, true)))).unwrap();
    assert_eq!(a.done().local.unwrap().chain_data_len(), 16 * PIECE);
    assert_eq!(b.done().local.unwrap().chain_data_len(), 16 * PIECE);
}

#[test]
fn rdma_length_is_limited_by_log_max_msg() {
    const PIECE: u64 = 1 << 20;
    let devs = changed("log_max_msg = 30", "log_max_msg = 20");
    let [mut a, mut b] = with_chains(&devs, 2 * PIECE as usize);
    b.workq.submit(b.rdma().receive(None)).unwrap();
    for more in [0, 1] {
        let local = || Some(chain(&a, 1, PIECE, more, true));
        let remote = || a.remote(0, PIECE + more);
        let jobs = [
            a.rdma().write(local(), remote()),
            a.rdma().write_imm(local(), remote(), 1),
            a.rdma().read(remote(), local()),
        ];
        for job in jobs {
            match a.workq.submit(job) {
                Ok(()) => {
                    assert_eq!(more, 0);
                    a.done();
                }
                Err(refused) => {
                    assert_eq!((more, refused.error.kind()), (1, ErrorKind::InvalidValue));
                    assert!(refused.error.to_string().contains("max_message_size"));
                }
            }
        }
    }
}

#[test]
fn receive_room_may_exceed_max_message() {
    const PIECE: u64 = 1 << 20;
    // With the device's longest message, and with the longest possible one.
    for (to, pieces) in [("log_max_msg = 20", 1), ("log_max_msg = 24", 16)] {
        let devs = changed("log_max_msg = 30", to);
        let [mut a, mut b] = with_chains(&devs, PIECE as usize);
        let room = chain(&b, pieces + 2, PIECE, 1, false);
        b.workq.submit(b.rdma().receive(Some(room))).unwrap();
        a.workq.submit(a.rdma().send(Some(chain(&a, pieces, PIECE, 0, true)))).unwrap();
        a.done();
        let done = b.done().local.unwrap();
        let lengths: Vec<u64> = done.datarooms().map(|(_, length)| length).collect();
        let (filled, empty) = lengths.split_at(pieces as usize);
        assert!(filled.iter().all(|&length| length == PIECE), "{lengths:?}");
        assert_eq!(empty, [0, 0, 0]);
        // An unchained receive: its key is cached.
        b.workq.submit(b.rdma().receive(b.room(0, PIECE))).unwrap();
        a.workq.submit(a.rdma().send(a.data(0, 5))).unwrap();
        a.done();
        assert_eq!(b.done().local.unwrap().data_len(), 5);
    }
}

#[test]
fn receive_room_may_exceed_2_gib() {
    const PIECE: u64 = 128 << 20;
    let devs = changed("log_max_msg = 30", "log_max_msg = 31");
    let [mut a, mut b] = with_chains(&devs, PIECE as usize);
    let bytes = a.fill(0, 100, 1);
    b.workq.submit(b.rdma().receive(Some(chain(&b, 17, PIECE, 1, false)))).unwrap();
    a.workq.submit(a.rdma().send(a.data(0, 100))).unwrap();
    a.done();
    assert_eq!(b.done().local.unwrap().chain_to_vec().unwrap(), bytes);
}

#[test]
fn job_length_is_limited_to_2_gib() {
    const PIECE: u64 = 128 << 20;
    let devs = changed("log_max_msg = 30", "log_max_msg = 31");
    let [mut a, mut b] = with_chains(&devs, PIECE as usize);
    b.workq.submit(b.rdma().receive(Some(chain(&b, 16, PIECE, 0, false)))).unwrap();
    let refused = a.workq.submit(a.rdma().send(Some(chain(&a, 16, PIECE, 1, true)))).unwrap_err();
    assert_eq!(refused.error.kind(), ErrorKind::InvalidValue);
    assert!(refused.error.to_string().contains("2 GiB"), "{}", refused.error);
    a.workq.submit(a.rdma().send(Some(chain(&a, 16, PIECE, 0, true)))).unwrap();
    assert_eq!(a.done().local.unwrap().chain_data_len(), 2 << 30);
    assert_eq!(b.done().local.unwrap().chain_data_len(), 2 << 30);
    assert_eq!(b.workq.retrieve_within(Some(Duration::ZERO)).unwrap().map(drop), None);
}

#[test]
fn chain_length_is_limited_by_property() {
    let [mut a, mut b] = with_chains(&changed("log_max_msg = 30", "log_max_msg = 30"), 4096);
    b.workq.submit(b.rdma().receive(Some(chain(&b, 30, 8, 0, false)))).unwrap();
    let longer = b.workq.submit(b.rdma().receive(Some(chain(&b, 31, 8, 0, false)))).unwrap_err();
    assert_eq!(longer.error.kind(), ErrorKind::InvalidValue);
    assert!(longer.error.to_string().contains("recv_buf_chain_len"), "{}", longer.error);
    let longer = a.workq.submit(a.rdma().send(Some(chain(&a, 31, 8, 0, true)))).unwrap_err();
    assert_eq!(longer.error.kind(), ErrorKind::InvalidValue);
    assert!(longer.error.to_string().contains("send_buf_chain_len"), "{}", longer.error);
    a.workq.submit(a.rdma().send(Some(chain(&a, 30, 8, 0, true)))).unwrap();
    assert_eq!(a.done().local.unwrap().chain_data_len(), 240);
    assert_eq!(b.done().local.unwrap().chain_data_len(), 240);
    // A read may have 30 buffers at any setting.
    let read = a.rdma().read(a.remote(0, 240), Some(chain(&a, 30, 8, 0, true)));
    a.workq.submit(read).unwrap();
    a.done();
}

#[test]
fn read_chain_is_limited_to_30_bufs() {
    let devs = changed("log_max_msg = 30", "log_max_msg = 30");
    assert_eq!(Rdma::max_read_buf_chain_len(&devs[0]).unwrap(), 30);
    let devs: [Dev; 2] = std::array::from_fn(|side| devs[side].open().unwrap());
    let chains = |builder: RdmaBuilder| builder.send_buf_chain_len(32);
    let ends = crate::support::rdma::ends_of(devs, chains, all(), 4096);
    connect(&ends);
    let [mut a, _] = ends;
    a.workq.submit(a.rdma().write(Some(chain(&a, 32, 8, 0, true)), a.remote(0, 256))).unwrap();
    a.done();
    let job = a.rdma().read(a.remote(0, 248), Some(chain(&a, 31, 8, 0, true)));
    let refused = a.workq.submit(job).unwrap_err();
    assert_eq!(refused.error.kind(), ErrorKind::InvalidValue);
    assert!(refused.error.to_string().contains("max_read_buf_chain_len"), "{}", refused.error);
    a.workq.submit(a.rdma().read(a.remote(0, 240), Some(chain(&a, 30, 8, 0, true)))).unwrap();
    a.done();
}

#[test]
fn read_or_write_without_remote_buf_is_rejected() {
    let [mut a, _b] = crate::support::rdma::pair("bluefield3");
    let text = |refused: verbless_doca::Refused<_>| {
        assert_eq!(refused.error.kind(), ErrorKind::InvalidValue);
        refused.error.to_string()
    };
    let (read, write) = (a.rdma().read(None, a.data(0, 8)), a.rdma().write(a.data(0, 8), None));
    let read = text(a.workq.submit(read).unwrap_err());
    assert!(read.contains("a read without a source"), "{read}");
    let write = text(a.workq.submit(write).unwrap_err());
    assert!(write.contains("a write without a destination"), "{write}");
    let nothing = a.rdma().write(a.data(0, 0), None);
    a.workq.submit(nothing).unwrap();
    assert_eq!(a.done().job_type, JobType::RdmaWrite);
}

#[test]
fn longer_send_chains_limit_queue_size() {
    let dev = crate::support::dev();
    let most = Rdma::max_send_queue_size(&dev).unwrap();
    for (chain, fewer) in [(1, 1), (2, 1), (3, 2), (6, 2), (7, 3)] {
        let builder = |size| {
            Rdma::builder(&dev).permissions(all()).send_buf_chain_len(chain).send_queue_size(size)
        };
        builder(most / fewer).start().unwrap();
        let (kind, text) = start_error(builder(most / fewer + 1));
        assert_eq!(kind, ErrorKind::InvalidValue);
        assert!(text.contains(&format!("can be 1 to {}", most / fewer)), "{text}");
    }
}

#[test]
fn unsupported_atomic_returns_its_bufs() {
    let infos = changed("\natomic = true", "\natomic = false");
    let devs = [0, 1].map(|at: usize| infos[at].open().unwrap());
    let access = AccessFlags::LOCAL_READ_WRITE | AccessFlags::RDMA_READ | AccessFlags::RDMA_WRITE;
    let permissions = AccessFlags::RDMA_READ | AccessFlags::RDMA_WRITE;
    let ends = ends_of(devs, |builder| builder.permissions(permissions), access, 4096);
    connect(&ends);
    let [mut a, _b] = ends;
    a.workq.submit(a.rdma().write(a.data(0, 8), a.remote(0, 8))).unwrap();
    a.done();
    let (mut here, mut there) = (a.data(8, 8), a.remote(8, 8));
    for _ in 0..3 {
        let job = a.rdma().fetch_and_add(there.unwrap(), here.unwrap(), 1).user_data(6);
        let refused = a.workq.submit(job).unwrap_err();
        assert_eq!(refused.error.kind(), ErrorKind::NotSupported);
        (here, there) = refused.given.into_bufs();
        assert_eq!(a.workq.in_flight(), 0);
    }
    // More jobs than the work queue is deep: the rejected ones have left no slot taken.
    for _ in 0..100 {
        a.workq.submit(a.rdma().read(a.remote(0, 8), a.data(0, 8))).unwrap();
        a.done();
    }
}
