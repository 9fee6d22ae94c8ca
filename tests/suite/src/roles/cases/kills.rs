//! One of two programs is killed, at each point before and after it connects, by itself or from
//! outside. The other program notices only silence, and its own device continues.

use verbless_command::KeyAccess;
use verbless_queue::wr::{Inline, Read, Send, Write};
use verbless_queue::{CompletionError, ConnectOptions, QpConfig, RemoteAddr, WcStatus};

use super::link::{
    BYTES, both_are_connected, connect, endpoint, impatient, introduce, is_silent, read,
};
use crate::roles::case::{By, Case, Side};
use crate::roles::role::{Received, Role};
use crate::{Endpoint, Stop, ensure, ensure_eq, failed, pattern};

/// The kill points of the victim of [`survives`], and what it does there.
pub(super) const POINTS: [(&str, &str); 7] = [
    ("opened", "after_opening_its_device"),
    ("registered", "after_creating_its_objects"),
    ("addressed", "before_connecting"),
    ("connected", "after_connecting"),
    ("receives posted", "while_waiting_for_messages"),
    ("writing", "while_writing"),
    ("reading", "while_reading"),
];

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (point, when) in POINTS {
        for (by, how) in [(By::Itself, "kills_itself"), (By::Director, "is_killed")] {
            let name = format!("peer_survives_program_that_{how}_{when}");
            cases.push(Case::new(&name, survives, victim).kill(Side::B, point, by));
        }
    }
    cases.push(
        Case::new("writes_to_killed_program_fail_once_and_flush", writes_on, is_written_to).kill(
            Side::B,
            "written to",
            By::Director,
        ),
    );
    cases.push(
        Case::new("key_of_dead_program_gives_no_access", uses_key_of_the_dead, exports_and_dies)
            .kill(Side::B, "exported", By::Itself)
            .opens_both(),
    );
    cases
}

/// Bytes of each WRITE and READ that the victim has in flight.
const LENGTH: usize = 200_000;

/// Passes every point; it is killed at one of them.
pub(super) fn victim(role: &mut Role) -> Result<(), Stop> {
    let device = role.device()?;
    role.point("opened")?;
    let mut end = Endpoint::new(device, &QpConfig::new(64, 64), BYTES)?;
    role.point("registered")?;
    introduce(role, &end, &impatient())?;
    let (peer, there) = read(&role.message()?)?;
    role.point("addressed")?;
    end.domain.connect(&mut end.qp, &peer, &impatient())?;
    both_are_connected(role)?;
    role.point("connected")?;
    for slot in 0..4 {
        end.receive(64 * slot, 64, slot as u64)?;
    }
    role.point("receives posted")?;
    let sge = end.sge(0, LENGTH)?;
    end.fill(0, &pattern(3, LENGTH))?;
    for cookie in 0..16 {
        end.qp.post(&Write::new(sge, there).signaled(), cookie)?;
    }
    role.point("writing")?;
    for _ in 0..16 {
        end.sent()??;
    }
    for cookie in 0..16 {
        end.qp.post(&Read::new(sge, there).signaled(), cookie)?;
    }
    role.point("reading")?;
    Err(Stop::fail("it was not killed at any of its points"))
}

/// Continues without the victim.
pub(super) fn survives(role: &mut Role) -> Result<(), Stop> {
    works_alone(&mut outlives(role)?)
}

/// Connects if the victim lives that long, then finds it silent.
pub(super) fn outlives(role: &mut Role) -> Result<Endpoint, Stop> {
    let mut end = endpoint(role)?;
    introduce(role, &end, &impatient())?;
    let mut peer = None;
    loop {
        match role.receive()? {
            Received::Gone => break,
            Received::Message(bytes) if bytes == b"connected" => role.send(b"connected")?,
            Received::Message(bytes) => {
                let (address, there) = read(&bytes)?;
                end.domain.connect(&mut end.qp, &address, &impatient())?;
                peer = Some(there);
            }
        }
    }
    if let Some(there) = peer {
        is_silent(&mut end, there)?;
        // The victim's writes, if any, carry the expected bytes.
        let expected = pattern(3, LENGTH);
        let found = end.bytes(0, LENGTH)?;
        let strange =
            found.iter().zip(&expected).any(|(&found, &sent)| found != 0 && found != sent);
        ensure!(!strange, "the dead program has written other bytes than its own");
        ensure!(end.bytes(LENGTH, 4096)? == [0; 4096], "the victim has written outside its slots");
    }
    Ok(end)
}

/// A queue pair goes through RESET and connects to itself.
pub(super) fn works_alone(end: &mut Endpoint) -> Result<(), Stop> {
    let options = ConnectOptions::default();
    end.qp.reset()?;
    let itself = end.domain.address(&end.qp, &options)?;
    end.domain.connect(&mut end.qp, &itself, &options)?;
    end.receive(BYTES - 64, 64, 1)?;
    end.perform(&Send::new(Inline(b"alone")).signaled())?;
    ensure_eq!(end.received()??.byte_len(), 5, "bytes of a message to itself");
    ensure_eq!(end.bytes(BYTES - 64, 5)?, b"alone", "a message to itself");
    Ok(())
}

/// Writes until a request fails: the requests in flight complete in order, one with the reason and
/// the rest flushed.
fn writes_on(role: &mut Role) -> Result<(), Stop> {
    let mut end = endpoint(role)?;
    let there = connect(role, &mut end, &impatient())?;
    end.fill(0, &pattern(4, LENGTH))?;
    let sge = end.sge(0, LENGTH)?;
    let (mut posted, mut done) = (0, 0);
    let mut failure = None;
    while failure.is_none() {
        while posted - done < 8 {
            end.qp.post(&Write::new(sge, there).signaled(), posted)?;
            posted += 1;
        }
        match end.sent()? {
            Ok(completion) => {
                ensure_eq!(completion.cookie, done, "cookie");
                done += 1;
                if done == 8 {
                    role.send(b"now")?;
                }
                ensure!(done < 1_000_000, "the peer lives for ever");
            }
            Err(CompletionError::Failed(error)) => failure = Some(error),
            Err(error) => return Err(error.into()),
        }
    }
    let failure = failure.ok_or_else(|| Stop::fail("nothing failed"))?;
    // A kernel destroys a dead program's objects newest first: its key may go before its queue
    // pair, which then refuses the access.
    ensure!(
        matches!(failure.status, WcStatus::TransportRetryExceeded | WcStatus::RemoteAccess),
        "status of the first that failed: {:?}, neither retries exceeded nor remote access",
        failure.status
    );
    ensure_eq!(failure.cookie, done, "cookie of the first that failed");
    for cookie in done + 1..posted {
        ensure_eq!(failed(end.sent()?, WcStatus::Flushed)?, cookie, "cookie of a flushed WRITE");
    }
    role.until_peer_is_gone()?;
    works_alone(&mut end)
}

fn is_written_to(role: &mut Role) -> Result<(), Stop> {
    let mut end = endpoint(role)?;
    connect(role, &mut end, &impatient())?;
    ensure_eq!(role.message()?, b"now", "message");
    role.point("written to")
}

fn exports_and_dies(role: &mut Role) -> Result<(), Stop> {
    let mut end = endpoint(role)?;
    connect(role, &mut end, &impatient())?;
    ensure_eq!(role.message()?, b"used", "message");
    role.point("exported")
}

/// The key was valid, and is invalid once its owner is dead: both over the connection to the owner
/// and over one to a program that uses the same device afterwards.
fn uses_key_of_the_dead(role: &mut Role) -> Result<(), Stop> {
    let mut end = endpoint(role)?;
    let there = connect(role, &mut end, &impatient())?;
    end.perform(&Write::new(Inline(b"good"), there).signaled())?;
    role.send(b"used")?;
    role.until_peer_is_gone()?;
    is_silent(&mut end, there)?;
    let mut heir = Endpoint::new(role.other_device()?, &QpConfig::new(4, 4), 64)?;
    if heir.remote(0)?.rkey == there.rkey {
        // Two keys cannot have one number, and the old key exists until the next is made.
        heir.region = heir.domain.region(64, KeyAccess::ALL)?;
    }
    end.qp.reset()?;
    let here = end.domain.address(&end.qp, &impatient())?;
    let address = heir.domain.address(&heir.qp, &impatient())?;
    end.domain.connect(&mut end.qp, &address, &impatient())?;
    heir.domain.connect(&mut heir.qp, &here, &impatient())?;
    let good = heir.remote(0)?;
    end.perform(&Write::new(Inline(b"good"), good).signaled())?;
    let stale = RemoteAddr::new(good.address, there.rkey);
    end.qp.post(&Write::new(Inline(b"bad"), stale).signaled(), 3)?;
    ensure_eq!(failed(end.sent()?, WcStatus::RemoteAccess)?, 3, "cookie");
    Ok(())
}
