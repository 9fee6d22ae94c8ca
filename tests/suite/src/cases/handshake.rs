//! Connecting over a stream, and exchanging memory regions: a program's first steps.

use std::io::{self, Read};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use verbless_command::KeyAccess;
use verbless_devx::ErrorKind;
use verbless_queue::wr::{FetchAdd, Inline, Read as RdmaRead, Send, Write};
use verbless_queue::{CqConfig, Domain, QpConfig, Rc, RemoteRegion, Uc};

use crate::case::cases;
use crate::need::{ATOMICS, cap};
use crate::{Endpoint, Lab, Pair, Stop, TIMEOUT, ensure, ensure_eq};

cases!(
    "handshake",
    "Connecting over a stream, and exchanging memory regions: a program's first steps.":
    both_sides_send_right_after_handshake,
    handshake_waits_for_peer_to_connect,
    handshake_rejects_peer_of_another_service [cap!(uc)],
    garbage_is_rejected_and_qp_still_connects,
    closed_stream_ends_handshake_with_io_error,
    region_words_match_peer_reads_and_atomics [ATOMICS],
    domain_without_blueflame_has_one_uar,
    read_only_region_sends_bytes_of_its_slice,
);

/// Two ends do the handshake, each in a thread; returns the region that each received.
fn shake_hands(pair: &mut Pair) -> Result<(RemoteRegion, RemoteRegion), Stop> {
    let (near, far) = UnixStream::pair()?;
    let greet = |end: &mut Endpoint, stream: UnixStream| -> Result<RemoteRegion, Stop> {
        stream.set_read_timeout(Some(TIMEOUT))?;
        let ours = end.region.remote_region()?.to_bytes();
        let peer = end.domain.handshake(&mut end.qp, &stream, &ours, &Default::default())?;
        Ok(RemoteRegion::from_bytes(&peer.data)?)
    };
    let Pair { a, b } = pair;
    std::thread::scope(|scope| {
        let other = scope.spawn(|| greet(b, far));
        let ours = greet(a, near)?;
        let theirs = other.join().map_err(|_| Stop::fail("the other side panicked"))??;
        Ok((ours, theirs))
    })
}

fn both_sides_send_right_after_handshake(lab: &Lab) -> Result<(), Stop> {
    let mut pair = Pair::unconnected(lab, &QpConfig::new(8, 8), 4096)?;
    pair.a.receive(0, 64, 1)?;
    let (at_b, at_a) = shake_hands(&mut pair)?;
    ensure_eq!((at_a.len(), at_b.len()), (4096, 4096), "lengths");
    ensure!(at_b.at(4090, 8).is_err(), "an address past the end of the peer's region");
    pair.b.perform(&Send::new(Inline(b"at once")).signaled())?;
    ensure_eq!(pair.a.received()??.cookie, 1, "cookie");
    pair.a.perform(&Write::new(Inline(b"written"), at_b.at(100, 7)?).signaled())?;
    pair.b.placed(100, b"written", "the written bytes")?;
    Ok(())
}

fn handshake_waits_for_peer_to_connect(lab: &Lab) -> Result<(), Stop> {
    let mut pair = Pair::unconnected(lab, &QpConfig::new(4, 4), 4096)?;
    let (near, far) = UnixStream::pair()?;
    let called = &AtomicBool::new(false);
    let Pair { a, b } = &mut pair;
    std::thread::scope(|scope| {
        let slow = scope.spawn(move || -> Result<(), Stop> {
            std::thread::sleep(Duration::from_millis(30));
            called.store(true, Ordering::Relaxed);
            b.domain.handshake(&mut b.qp, &far, &[], &Default::default())?;
            Ok(())
        });
        near.set_read_timeout(Some(TIMEOUT))?;
        a.domain.handshake(&mut a.qp, &near, &[], &Default::default())?;
        ensure!(called.load(Ordering::Relaxed), "the handshake did not wait for the other side");
        slow.join().map_err(|_| Stop::fail("the slow side panicked"))?
    })
}

fn handshake_rejects_peer_of_another_service(lab: &Lab) -> Result<(), Stop> {
    let config = QpConfig::new(4, 4);
    let mut reliable = Endpoint::<Rc>::of(lab.device()?, &config, 4096)?;
    let mut unreliable = Endpoint::<Uc>::of(lab.other_device()?, &config, 4096)?;
    let (near, far) = UnixStream::pair()?;
    let (one, other) = std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            let Endpoint { domain, qp, .. } = &mut unreliable;
            domain.handshake(qp, far, &[], &Default::default())
        });
        let Endpoint { domain, qp, .. } = &mut reliable;
        let one = domain.handshake(qp, near, &[], &Default::default());
        other.join().map(|other| (one, other)).map_err(|_| Stop::fail("a side panicked"))
    })?;
    for refused in [one, other] {
        let Err(error) = refused else { return Err(Stop::fail("a side connected")) };
        ensure_eq!(error.kind(), ErrorKind::Peer, format!("the kind of {error}"));
        ensure!(error.to_string().contains("service"), "{error} does not say what differs");
    }
    Ok(())
}

/// A stream whose other end has already written everything.
struct Canned<'a> {
    answer: &'a [u8],
    written: Vec<u8>,
}

impl Read for Canned<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.answer.read(into)
    }
}

impl io::Write for Canned<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.written.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn garbage_is_rejected_and_qp_still_connects(lab: &Lab) -> Result<(), Stop> {
    let mut pair = Pair::unconnected(lab, &QpConfig::new(4, 4), 4096)?;
    for nonsense in [&[0; 2048][..], &b"GET / HTTP/1.1\r\n".repeat(128)] {
        let mut stream = Canned { answer: nonsense, written: Vec::new() };
        let Endpoint { domain, qp, .. } = &mut pair.a;
        let Err(error) = domain.handshake(qp, &mut stream, &[], &Default::default()) else {
            return Err(Stop::fail("the handshake accepted an invalid answer"));
        };
        ensure_eq!(error.kind(), ErrorKind::Peer, format!("the kind of {error}"));
        ensure_eq!(
            stream.written.get(..4),
            Some(&b"vbls"[..]),
            "the magic that the handshake sends"
        );
    }
    let too_long = [7; Domain::MAX_HANDSHAKE_DATA + 1];
    let (near, _far) = UnixStream::pair()?;
    let Endpoint { domain, qp, .. } = &mut pair.a;
    let refused = domain.handshake(qp, near, &too_long, &Default::default()).err();
    ensure_eq!(refused.map(|error| error.kind()), Some(ErrorKind::InvalidInput), "too much data");
    shake_hands(&mut pair)?;
    Ok(())
}

fn closed_stream_ends_handshake_with_io_error(lab: &Lab) -> Result<(), Stop> {
    let mut pair = Pair::unconnected(lab, &QpConfig::new(4, 4), 4096)?;
    let (near, far) = UnixStream::pair()?;
    far.shutdown(std::net::Shutdown::Write)?;
    let Endpoint { domain, qp, .. } = &mut pair.a;
    let Err(error) = domain.handshake(qp, near, &[], &Default::default()) else {
        return Err(Stop::fail("the handshake succeeded without a peer"));
    };
    ensure_eq!(error.kind(), ErrorKind::Io, format!("the kind of {error}"));
    ensure!(error.to_string().contains("closed"), "{error} does not say that the peer closed");
    drop(far);
    Ok(())
}

fn region_words_match_peer_reads_and_atomics(lab: &Lab) -> Result<(), Stop> {
    let mut pair = Pair::new(lab)?;
    let [a, b] = [&pair.a, &pair.b].map(|end| end.domain.words(16, KeyAccess::ALL));
    let (a, b) = (a?, b?);
    b[3].store(40, Ordering::Release);
    let (into, word) = (a.sge(0, 8)?, b.remote(24, 8)?);
    pair.a.perform(&FetchAdd::new(into, word, 2).signaled())?;
    ensure_eq!(a[0].load(Ordering::Acquire), 40, "old value of the atomic");
    ensure_eq!(b[3].load(Ordering::Acquire), 42, "the word");
    b[0].store(0xa5a5_5a5a, Ordering::Release);
    let (into, from) = (a.sge(64, 8)?, b.remote(0, 8)?);
    pair.a.perform(&RdmaRead::new(into, from).signaled())?;
    let read = a[8].load(Ordering::Acquire);
    ensure_eq!(read, 0xa5a5_5a5a, "the word that was read");
    Ok(())
}

fn domain_without_blueflame_has_one_uar(lab: &Lab) -> Result<(), Stop> {
    let device = lab.device()?;
    let domain = Domain::builder(&device).blueflame_pages(0).pool_bytes(1).build()?;
    let mut pages = std::collections::BTreeSet::new();
    for _ in 0..3 {
        let cq = domain.completion_queue(&CqConfig::new(16))?;
        let mut qp = domain.queue_pair(&QpConfig::new(4, 4), &cq, &cq)?;
        pages.insert(cq.object().attr().uar.page_id());
        pages.insert(qp.object().attr().uar.page_id());
        let itself = domain.address(&qp, &Default::default())?;
        domain.connect(&mut qp, &itself, &Default::default())?;
    }
    ensure_eq!(pages.len(), 1, "UAR pages");
    let refused = Domain::builder(&device).pool_bytes(0).build().err();
    ensure_eq!(
        refused.map(|error| error.kind()),
        Some(ErrorKind::InvalidInput),
        "a pool of 0 bytes"
    );
    Ok(())
}

fn read_only_region_sends_bytes_of_its_slice(lab: &Lab) -> Result<(), Stop> {
    let mut pair = Pair::new(lab)?;
    let mut from = pair.a.domain.region(4096, KeyAccess::LOCAL_READ)?;
    crate::raw::fill_in_place(&mut from, 8, &[1, 2, 3, 4])?;
    let to = pair.b.remote(0)?;
    pair.a.perform(&Write::new(from.sge(8, 16)?, to).signaled())?;
    let mut arrived = [0u32; 4];
    pair.b.region.read_slice(0, &mut arrived)?;
    ensure_eq!(arrived, [1, 2, 3, 4], "the arrived bytes");
    Ok(())
}
