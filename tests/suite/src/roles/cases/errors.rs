//! Two live programs, one of which makes a mistake or disconnects: the requests of its peer fail
//! with the reason, and both connect again.

use verbless_queue::wr::{Inline, Read, Send, Write};
use verbless_queue::{ConnectOptions, WcStatus};

use super::link::{BYTES, connect, endpoint, impatient, is_silent, meet};
use crate::roles::case::Case;
use crate::roles::role::Role;
use crate::{Need, Stop, ensure_eq, failed};

pub(super) fn cases() -> Vec<Case> {
    // The responder does not repeat a lost fatal NAK: the requester then gives up by itself.
    vec![
        Case::new("send_without_receive_exceeds_rnr_retries", sends_in_vain, posts_late)
            .needs(Need::Lossless),
        Case::new("write_past_region_completes_with_remote_access_error", misses, is_missed)
            .needs(Need::Lossless),
        Case::new("message_longer_than_receive_fails_at_both_ends", sends_too_much, has_no_room)
            .needs(Need::Lossless),
        Case::new("disconnected_peer_is_silent_until_it_connects_again", is_left, leaves),
    ]
}

/// Takes the queue pair through RESET and connects it again; a write and a read succeed.
fn starts_over(role: &mut Role, end: &mut crate::Endpoint) -> Result<(), Stop> {
    end.qp.reset()?;
    let there = connect(role, end, &ConnectOptions::default())?;
    end.perform(&Write::new(Inline(b"again"), there).signaled())?;
    let into = end.sge(BYTES - 64, 5)?;
    end.perform(&Read::new(into, there).signaled())?;
    ensure_eq!(end.bytes(BYTES - 64, 5)?, b"again", "the bytes at the peer");
    meet(role, b"end")
}

/// The other role of [`starts_over`]: connects again, and finds the written bytes.
fn is_there_again(role: &mut Role, end: &mut crate::Endpoint) -> Result<(), Stop> {
    end.qp.reset()?;
    connect(role, end, &ConnectOptions::default())?;
    meet(role, b"end")?;
    ensure_eq!(end.bytes(0, 5)?, b"again", "the bytes that were written");
    Ok(())
}

fn sends_in_vain(role: &mut Role) -> Result<(), Stop> {
    let mut end = endpoint(role)?;
    connect(role, &mut end, &impatient())?;
    end.qp.post(&Send::new(Inline(b"anybody?")).signaled(), 3)?;
    ensure_eq!(failed(end.sent()?, WcStatus::RnrRetryExceeded)?, 3, "cookie");
    meet(role, b"failed")?;
    starts_over(role, &mut end)
}

fn posts_late(role: &mut Role) -> Result<(), Stop> {
    let mut end = endpoint(role)?;
    connect(role, &mut end, &impatient())?;
    meet(role, b"failed")?;
    is_there_again(role, &mut end)
}

fn misses(role: &mut Role) -> Result<(), Stop> {
    let mut end = endpoint(role)?;
    let mut there = connect(role, &mut end, &impatient())?;
    there.address += BYTES as u64 - 4;
    end.qp.post(&Write::new(Inline(b"too far"), there).signaled(), 3)?;
    ensure_eq!(failed(end.sent()?, WcStatus::RemoteAccess)?, 3, "cookie");
    meet(role, b"failed")?;
    starts_over(role, &mut end)
}

fn is_missed(role: &mut Role) -> Result<(), Stop> {
    let mut end = endpoint(role)?;
    connect(role, &mut end, &impatient())?;
    meet(role, b"failed")?;
    ensure_eq!(end.bytes(BYTES - 4, 4)?, [0; 4], "the last bytes of the region");
    is_there_again(role, &mut end)
}

fn sends_too_much(role: &mut Role) -> Result<(), Stop> {
    let mut end = endpoint(role)?;
    connect(role, &mut end, &impatient())?;
    meet(role, b"posted")?;
    let from = end.sge(0, 1000)?;
    end.qp.post(&Send::new(from).signaled(), 3)?;
    ensure_eq!(failed(end.sent()?, WcStatus::RemoteInvalidRequest)?, 3, "cookie");
    meet(role, b"failed")?;
    starts_over(role, &mut end)
}

fn has_no_room(role: &mut Role) -> Result<(), Stop> {
    let mut end = endpoint(role)?;
    connect(role, &mut end, &impatient())?;
    end.receive(0, 999, 4)?;
    meet(role, b"posted")?;
    ensure_eq!(failed(end.received()?, WcStatus::LocalLength)?, 4, "cookie");
    meet(role, b"failed")?;
    is_there_again(role, &mut end)
}

fn is_left(role: &mut Role) -> Result<(), Stop> {
    let mut end = endpoint(role)?;
    let there = connect(role, &mut end, &impatient())?;
    end.perform(&Write::new(Inline(b"hello"), there).signaled())?;
    meet(role, b"leave")?;
    meet(role, b"left")?;
    is_silent(&mut end, there)?;
    meet(role, b"noticed")?;
    starts_over(role, &mut end)
}

fn leaves(role: &mut Role) -> Result<(), Stop> {
    let mut end = endpoint(role)?;
    connect(role, &mut end, &impatient())?;
    meet(role, b"leave")?;
    end.qp.reset()?;
    meet(role, b"left")?;
    meet(role, b"noticed")?;
    is_there_again(role, &mut end)
}
