//! Parts of another context, access flags of mkeys, keys and numbers of new objects, and ISSI.

use verbless_command::{
    CqAttr, ErrorKind, KeyAccess, KeyMemory, MkeyAttr, QpAttr, RemoteAccess, ServiceType,
    check_access,
};
use verbless_model::Link;

use crate::support::{connectx6dx, cq_attr, qp_attr, register_pages};

#[test]
fn part_of_another_device_is_rejected_by_name() {
    let ((_model, device), (_other_model, other)) =
        (connectx6dx(Link::Ethernet), connectx6dx(Link::Ethernet));
    let pd = || other.alloc_pd().expect("a protection domain");
    let uar = cq_attr(&other).uar;
    let umem = register_pages(&other);
    let key = MkeyAttr {
        pd: device.alloc_pd().expect("a protection domain"),
        access: KeyAccess::LOCAL,
        start: umem.address(),
        length: umem.length(),
        memory: KeyMemory::Umem { umem, offset: 0 },
    };
    let queue_pair = qp_attr(&device, ServiceType::RC);
    for (part, error) in [
        ("UAR", device.create_cq(CqAttr { uar, ..cq_attr(&device) }).map(drop)),
        ("memory", device.create_mkey(key.clone()).map(drop)),
        ("protection domain", device.create_mkey(MkeyAttr { pd: pd(), ..key }).map(drop)),
        ("protection domain", device.create_qp(QpAttr { pd: pd(), ..queue_pair }).map(drop)),
    ] {
        let error = error.expect_err(part);
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
        let expected = format!("the {part} is of another device context");
        assert!(error.to_string().contains(&expected), "{error}");
    }
}

#[test]
fn remote_write_and_atomic_need_local_write() {
    for (write, atomic, local_write) in
        (0..8).map(|bits| (bits & 1 != 0, bits & 2 != 0, bits & 4 != 0))
    {
        let remote = RemoteAccess { read: true, write, atomic };
        let access = KeyAccess { local_write, remote, ..KeyAccess::LOCAL };
        let allowed = local_write || !(write || atomic);
        assert_eq!(check_access(access).is_ok(), allowed, "{access:?}");
    }
}

#[test]
fn q_counters_have_distinct_ids_and_start_at_0() {
    let (_model, device) = connectx6dx(Link::Ethernet);
    let counters = [(); 3].map(|()| device.alloc_q_counter().expect("a counter"));
    let numbers = counters.each_ref().map(|counter| counter.number());
    assert!(numbers[0] != numbers[1] && numbers[1] != numbers[2], "{numbers:?}");
    for counter in counters {
        assert_eq!(format!("{counter:?}"), format!("QCounter({})", counter.number()));
        assert_eq!(counter.query().expect("the Q counter").out_of_buffer(), 0);
        counter.destroy().expect("no queue uses it");
    }
}

#[test]
fn lkey_equals_rkey() {
    let (_model, device) = connectx6dx(Link::Ethernet);
    let umem = register_pages(&device);
    let attr = MkeyAttr {
        pd: device.alloc_pd().expect("a protection domain"),
        access: KeyAccess::ALL,
        start: umem.address(),
        length: umem.length(),
        memory: KeyMemory::Umem { umem, offset: 0 },
    };
    let [one, other] = [(); 2].map(|()| device.create_mkey(attr.clone()).expect("a key"));
    assert_eq!((one.lkey().0, other.lkey().0), (one.rkey().0, other.rkey().0));
    assert_ne!(one.lkey().0 >> 8, other.lkey().0 >> 8, "each has an index of its own");
}

#[test]
fn dma_mmo_qp_must_be_rc() {
    let (_model, device) = connectx6dx(Link::Ethernet);
    for service in [ServiceType::UC, ServiceType::UD] {
        let attr = QpAttr { dma_mmo: true, ..qp_attr(&device, service) };
        let error = device.create_qp(attr).expect_err("only RC has DMA MMO");
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
        assert!(error.to_string().contains("dma_mmo_qp"), "{error}");
    }
}

#[test]
fn query_issi_returns_supported_steps() {
    let (_model, device) = connectx6dx(Link::Ethernet);
    let (current, supported) = device.query_issi().expect("the answer");
    assert_eq!((current, supported), (1, vec![0, 0, 0, 3]), "ISSI 0 and 1; Linux selects 1");
}
