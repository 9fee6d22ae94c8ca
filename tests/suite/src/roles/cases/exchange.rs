//! Two live programs: writes to each other's memory arrive.

use verbless_command::{KeyAccess, RemoteAccess};
use verbless_model::Fault;
use verbless_queue::wr::{FetchAdd, Inline, Read, Send, Write};
use verbless_queue::{ConnectOptions, CqConfig, QpConfig, RemoteAddr, WcStatus};

use super::link::{BYTES, connect, endpoint, impatient};
use crate::roles::case::Case;
use crate::roles::role::Role;
use crate::{Endpoint, Need, Stop, ensure, ensure_eq, failed, pattern, until};

pub(super) fn cases() -> Vec<Case> {
    vec![
        Case::new(
            "programs_connect_by_address_bytes_and_exchange_data",
            writes_and_reads,
            is_written_to,
        ),
        Case::new("thousand_messages_each_way_arrive_in_order", messages, messages),
        Case::new("concurrent_fetch_adds_of_two_programs_add_up", adds_there, adds_here)
            .needs(Need::Cap("atomics", |caps| caps.atomics)),
        // The responder does not repeat a lost fatal NAK: the requester then gives up by itself.
        Case::new("dropped_key_of_peer_gives_no_access", uses_key, drops_key).needs(Need::Lossless),
        Case::new("withheld_access_right_is_enforced", tries_to_write, grants_no_write)
            .needs(Need::Lossless),
        Case::new(
            "lost_message_between_programs_is_retransmitted",
            writes_and_reads,
            is_written_to,
        )
        .fault("connected", |model| model.inject(0, Fault::LoseMessage, 0, 2)),
        Case::new(
            "messages_of_two_programs_wait_for_port_recovery",
            writes_and_reads,
            is_written_to,
        )
        .fault("connected", |model| model.set_port(1, 1, false))
        .fault("written", |model| model.set_port(1, 1, true)),
    ]
}

/// Bytes of the messages.
const LENGTH: usize = 100_000;

fn writes_and_reads(role: &mut Role) -> Result<(), Stop> {
    let mut end = endpoint(role)?;
    let there = connect(role, &mut end, &ConnectOptions::default())?;
    role.point("connected")?;
    end.fill(0, &pattern(1, LENGTH))?;
    let from = end.sge(0, LENGTH)?;
    end.qp.post(&Write::new(from, there).signaled(), 7)?;
    role.point("written")?;
    ensure_eq!(end.sent()??.cookie, 7, "cookie of the WRITE");
    role.send(b"look")?;
    ensure_eq!(role.message()?, b"changed", "answer");
    let into = end.sge(BYTES / 2, LENGTH)?;
    end.perform(&Read::new(into, there).signaled())?;
    ensure!(end.bytes(BYTES / 2, LENGTH)? == pattern(2, LENGTH), "a READ brought other bytes");
    role.send(b"end")
}

fn is_written_to(role: &mut Role) -> Result<(), Stop> {
    let mut end = endpoint(role)?;
    connect(role, &mut end, &ConnectOptions::default())?;
    ensure_eq!(role.message()?, b"look", "message");
    ensure!(end.bytes(0, LENGTH)? == pattern(1, LENGTH), "a WRITE brought other bytes");
    ensure!(end.bytes(LENGTH, 64)? == [0; 64], "a WRITE went on past its end");
    end.fill(0, &pattern(2, LENGTH))?;
    role.send(b"changed")?;
    ensure_eq!(role.message()?, b"end", "message");
    Ok(())
}

/// Each message has its number, and 16 receives are always posted.
fn messages(role: &mut Role) -> Result<(), Stop> {
    const MESSAGES: u64 = 1000;
    const SLOTS: u64 = 16;
    let mut end = endpoint(role)?;
    let slot = |number: u64| 64 * (number % SLOTS) as usize;
    for number in 0..SLOTS {
        end.receive(slot(number), 64, number)?;
    }
    connect(role, &mut end, &ConnectOptions::default())?;
    let (mut posted, mut sent, mut received) = (0, 0, 0);
    while sent < MESSAGES || received < MESSAGES {
        if posted < MESSAGES && posted - sent < 8 {
            end.qp.post(&Send::new(Inline(&u64::to_be_bytes(posted))).signaled(), posted)?;
            posted += 1;
            continue;
        }
        let Endpoint { qp, send_cq, receive_cq, .. } = &mut end;
        let (is_send, done) = until("a completion", || {
            let send = qp.poll(send_cq).map(|done| (true, done));
            send.or_else(|| qp.poll(receive_cq).map(|done| (false, done)))
        })?;
        let done = done?;
        if is_send {
            ensure_eq!(done.cookie, sent, "cookie of the send");
            sent += 1;
        } else {
            ensure_eq!(done.cookie, received, "cookie of the receive");
            ensure_eq!(end.bytes(slot(received), 8)?, received.to_be_bytes(), "message");
            end.receive(slot(received), 64, received + SLOTS)?;
            received += 1;
        }
    }
    // Each role waits until the other has received everything.
    role.send(b"end")?;
    ensure_eq!(role.message()?, b"end", "message");
    Ok(())
}

const ROUNDS: u64 = 200;

/// Adds 1 to the number at `at`, repeatedly.
fn add(end: &mut Endpoint, at: RemoteAddr) -> Result<(), Stop> {
    for _ in 0..ROUNDS {
        let old = end.sge(64, 8)?;
        end.perform(&FetchAdd::new(old, at, 1).signaled())?;
    }
    Ok(())
}

fn adds_there(role: &mut Role) -> Result<(), Stop> {
    let mut end = endpoint(role)?;
    let there = connect(role, &mut end, &ConnectOptions::default())?;
    add(&mut end, there)?;
    role.send(b"end")?;
    ensure_eq!(role.message()?, b"end", "message");
    Ok(())
}

/// Adds to its own memory, through the device, while the other role does.
fn adds_here(role: &mut Role) -> Result<(), Stop> {
    let mut end = endpoint(role)?;
    let options = ConnectOptions::default();
    // A second queue pair in the same domain, connected to itself, so that its key works there.
    let Endpoint { domain, .. } = &end;
    let mut cq = domain.completion_queue(&CqConfig::new(32))?;
    let mut itself = domain.queue_pair(&QpConfig::new(4, 4), &cq, &cq)?;
    let address = domain.address(&itself, &options)?;
    domain.connect(&mut itself, &address, &options)?;
    let (old, number) = (end.sge(64, 8)?, end.remote(0)?);
    connect(role, &mut end, &options)?;
    for _ in 0..ROUNDS {
        itself.post(&FetchAdd::new(old, number, 1).signaled(), 0)?;
        until("an addition", || itself.poll(&mut cq))??;
    }
    role.send(b"end")?;
    ensure_eq!(role.message()?, b"end", "message");
    ensure_eq!(end.bytes(0, 8)?, u64::to_ne_bytes(2 * ROUNDS), "the sum");
    Ok(())
}

fn uses_key(role: &mut Role) -> Result<(), Stop> {
    let mut end = endpoint(role)?;
    let there = connect(role, &mut end, &impatient())?;
    end.perform(&Write::new(Inline(b"first"), there).signaled())?;
    role.send(b"drop it")?;
    ensure_eq!(role.message()?, b"dropped", "answer");
    end.qp.post(&Write::new(Inline(b"later"), there).signaled(), 3)?;
    ensure_eq!(failed(end.sent()?, WcStatus::RemoteAccess)?, 3, "cookie");
    role.send(b"end")
}

fn drops_key(role: &mut Role) -> Result<(), Stop> {
    let mut end = endpoint(role)?;
    connect(role, &mut end, &impatient())?;
    ensure_eq!(role.message()?, b"drop it", "message");
    ensure_eq!(end.bytes(0, 5)?, b"first", "the written bytes");
    let Endpoint { device: _device, domain, send_cq: _s, receive_cq: _r, qp: _qp, region } = end;
    drop(region);
    // The next key may have the index of the one before.
    let next = domain.region(BYTES, KeyAccess::ALL)?;
    role.send(b"dropped")?;
    ensure_eq!(role.message()?, b"end", "message");
    let mut found = [1; 5];
    next.read_at(0, &mut found)?;
    ensure_eq!(found, [0; 5], "what a key of before has written");
    Ok(())
}

fn tries_to_write(role: &mut Role) -> Result<(), Stop> {
    let mut end = endpoint(role)?;
    let there = connect(role, &mut end, &impatient())?;
    let into = end.sge(0, 6)?;
    end.perform(&Read::new(into, there).signaled())?;
    ensure_eq!(end.bytes(0, 6)?, b"theirs", "the read bytes");
    end.qp.post(&Write::new(Inline(b"mine"), there).signaled(), 3)?;
    // The responder may report an unknown operation or a forbidden one.
    match end.sent()? {
        Ok(_) => return Err(Stop::fail("a WRITE succeeded that the peer does not allow")),
        Err(error) => {
            let text = error.to_string();
            ensure!(text.contains("remote"), "it failed with {text}");
        }
    }
    role.send(b"end")
}

fn grants_no_write(role: &mut Role) -> Result<(), Stop> {
    let mut end = endpoint(role)?;
    end.fill(0, b"theirs")?;
    let access = RemoteAccess { read: true, ..Default::default() };
    connect(role, &mut end, &ConnectOptions { access, ..impatient() })?;
    ensure_eq!(role.message()?, b"end", "message");
    ensure_eq!(end.bytes(0, 6)?, b"theirs", "the memory");
    Ok(())
}
