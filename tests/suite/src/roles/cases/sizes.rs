//! Two live programs with long messages, with messages of every length around packets, and with
//! many queue pairs.

use verbless_command::KeyAccess;
use verbless_queue::wr::{Read, Send, Write};
use verbless_queue::{ConnectOptions, CqConfig, Domain, QpConfig};

use super::link::{connect, connect_qp, endpoint, meet};
use crate::roles::case::Case;
use crate::roles::role::Role;
use crate::{Endpoint, Stop, ensure, ensure_eq, pattern, until};

pub(super) fn cases() -> Vec<Case> {
    vec![
        Case::new("messages_of_3_mib_arrive_whole", sends_long, receives_long),
        Case::new("messages_around_packet_lengths_arrive_whole", sends_each, receives_each),
        Case::new("each_of_64_qps_writes_to_its_slot", writes_by_many, has_slots),
    ]
}

/// Bytes of a long message. Twice as many are pinned: fewer than the 8 MiB that many machines
/// allow.
const LONG: usize = 3 << 20;

fn long_end(role: &Role) -> Result<Endpoint, Stop> {
    Endpoint::new(role.device()?, &QpConfig::new(8, 8), 2 * LONG)
}

fn sends_long(role: &mut Role) -> Result<(), Stop> {
    let mut end = long_end(role)?;
    let there = connect(role, &mut end, &ConnectOptions::default())?;
    end.fill(0, &pattern(1, LONG))?;
    let (from, into) = (end.sge(0, LONG)?, end.sge(LONG, LONG)?);
    end.perform(&Write::new(from, there).signaled())?;
    end.perform(&Read::new(into, there).signaled())?;
    ensure!(end.bytes(LONG, LONG)? == pattern(1, LONG), "a READ brought other bytes");
    meet(role, b"written")?;
    end.perform(&Send::new(from).signaled())?;
    meet(role, b"end")
}

fn receives_long(role: &mut Role) -> Result<(), Stop> {
    let mut end = long_end(role)?;
    connect(role, &mut end, &ConnectOptions::default())?;
    end.receive(LONG, LONG, 1)?;
    meet(role, b"written")?;
    ensure!(end.bytes(0, LONG)? == pattern(1, LONG), "a WRITE brought other bytes");
    ensure_eq!(end.received()??.byte_len() as usize, LONG, "bytes of the message");
    ensure!(end.bytes(LONG, LONG)? == pattern(1, LONG), "a SEND brought other bytes");
    meet(role, b"end")
}

/// Lengths of one packet more or less, for every path MTU.
fn lengths() -> Vec<usize> {
    let mtus = [256, 512, 1024, 2048, 4096];
    let around = |mtu: usize| [mtu - 1, mtu, mtu + 1, 2 * mtu - 1, 2 * mtu, 2 * mtu + 1];
    mtus.into_iter().flat_map(around).collect()
}

fn sends_each(role: &mut Role) -> Result<(), Stop> {
    let mut end = endpoint(role)?;
    connect(role, &mut end, &ConnectOptions::default())?;
    for length in lengths() {
        end.fill(0, &pattern(length as u8, length))?;
        let from = end.sge(0, length)?;
        end.perform(&Send::new(from).signaled())?;
    }
    meet(role, b"end")
}

fn receives_each(role: &mut Role) -> Result<(), Stop> {
    let mut end = endpoint(role)?;
    let slot = |at: usize| 16_384 * at;
    for (at, _) in lengths().iter().enumerate() {
        end.receive(slot(at), 16_384, at as u64)?;
    }
    connect(role, &mut end, &ConnectOptions::default())?;
    for (at, length) in lengths().into_iter().enumerate() {
        let done = end.received()??;
        ensure_eq!((done.cookie, done.byte_len() as usize), (at as u64, length), "a message");
        let bytes = end.bytes(slot(at), length)?;
        ensure!(bytes == pattern(length as u8, length), "{length} bytes arrived as others");
    }
    meet(role, b"end")
}

/// Queue pairs of each role.
const QPS: usize = 64;
/// Bytes of a slot.
const SLOT: usize = 1024;

fn writes_by_many(role: &mut Role) -> Result<(), Stop> {
    let domain = Domain::new(&role.device()?)?;
    let region = domain.region(QPS * SLOT, KeyAccess::ALL)?;
    let mut cq = domain.completion_queue(&CqConfig::new(16 * QPS as u32))?;
    let mut qps = Vec::new();
    for _ in 0..QPS {
        let mut qp = domain.queue_pair(&QpConfig::new(4, 1), &cq, &cq)?;
        let there = connect_qp(role, &domain, &mut qp, &region, &ConnectOptions::default())?;
        qps.push((qp, there));
    }
    meet(role, b"connected")?;
    for (slot, (qp, there)) in qps.iter_mut().enumerate() {
        region.write_at(slot * SLOT, &pattern(slot as u8, SLOT))?;
        let mut to = *there;
        to.address += (slot * SLOT) as u64;
        qp.post(&Write::new(region.sge(slot * SLOT, SLOT)?, to).signaled(), slot as u64)?;
    }
    let mut done = [false; QPS];
    for _ in 0..QPS {
        let cqe = until("a completion", || cq.poll())?;
        let owner = qps.iter_mut().find(|(qp, _)| qp.qpn() == cqe.qpn());
        let (qp, _) = owner.ok_or_else(|| Stop::fail("a CQE of no queue pair"))?;
        let cookie = qp.complete(cqe)?.cookie as usize;
        ensure!(cookie < QPS && !done[cookie], "write {cookie} completed twice");
        done[cookie] = true;
    }
    meet(role, b"end")
}

fn has_slots(role: &mut Role) -> Result<(), Stop> {
    let domain = Domain::new(&role.device()?)?;
    let region = domain.region(QPS * SLOT, KeyAccess::ALL)?;
    let cq = domain.completion_queue(&CqConfig::new(16 * QPS as u32))?;
    let mut qps = Vec::new();
    for _ in 0..QPS {
        let mut qp = domain.queue_pair(&QpConfig::new(4, 1), &cq, &cq)?;
        connect_qp(role, &domain, &mut qp, &region, &ConnectOptions::default())?;
        qps.push(qp);
    }
    meet(role, b"connected")?;
    meet(role, b"end")?;
    for slot in 0..QPS {
        let mut bytes = [0; SLOT];
        region.read_at(slot * SLOT, &mut bytes)?;
        ensure!(bytes[..] == pattern(slot as u8, SLOT), "slot {slot} has other bytes");
    }
    Ok(())
}
