//! A program that is killed and restarted: its peer reaches it by its new address, and the old
//! address and keys are useless.

use verbless_queue::wr::{Inline, Read, Write};
use verbless_queue::{RemoteAddr, WcStatus};

use super::link::{connect, endpoint, impatient, is_silent};
use crate::roles::case::{By, Case, Side};
use crate::roles::role::Role;
use crate::{Stop, ensure, ensure_eq, failed, pattern};

pub(super) fn cases() -> Vec<Case> {
    let point = "connected";
    vec![
        Case::new("restarted_program_is_reached_by_its_new_address", reconnects, lives_again).kill(
            Side::B,
            point,
            By::Director,
        ),
        Case::new("key_of_previous_life_gives_no_access", tries_old_keys, lives_again)
            .kill(Side::B, point, By::Itself)
            .lives(2),
    ]
}

/// Serves its memory. The first process of this role is killed at the point `connected`; the next
/// one runs to the end.
fn lives_again(role: &mut Role) -> Result<(), Stop> {
    let mut end = endpoint(role)?;
    end.fill(0, &pattern(role.life() as u8, 4096))?;
    connect(role, &mut end, &impatient())?;
    role.point("connected")?;
    ensure!(role.life() > 1, "the role was not killed");
    ensure_eq!(role.message()?, b"end", "message");
    ensure!(
        end.bytes(0, 4096)? == pattern(role.life() as u8, 4096),
        "the role's memory has changed"
    );
    Ok(())
}

fn reconnects(role: &mut Role) -> Result<(), Stop> {
    let mut end = endpoint(role)?;
    let old = connect(role, &mut end, &impatient())?;
    role.until_peer_is_gone()?;
    is_silent(&mut end, old)?;
    role.restart_peer()?;
    end.qp.reset()?;
    let there = connect(role, &mut end, &impatient())?;
    let into = end.sge(0, 4096)?;
    end.perform(&Read::new(into, there).signaled())?;
    ensure!(end.bytes(0, 4096)? == pattern(2, 4096), "not the memory of its second life");
    role.send(b"end")
}

/// In each life the peer gets the same key indexes, and starts with a random variant: three equal
/// keys are not an accident.
fn tries_old_keys(role: &mut Role) -> Result<(), Stop> {
    let mut end = endpoint(role)?;
    let mut old = vec![connect(role, &mut end, &impatient())?];
    for _ in 0..2 {
        role.until_peer_is_gone()?;
        is_silent(&mut end, old[0])?;
        role.restart_peer()?;
        end.qp.reset()?;
        old.push(connect(role, &mut end, &impatient())?);
    }
    let there = old[2];
    let stale = old.iter().find(|address| address.rkey != there.rkey);
    let stale =
        stale.ok_or_else(|| Stop::fail(format!("all lives have the key {}", there.rkey)))?;
    let stale = RemoteAddr::new(there.address, stale.rkey);
    end.qp.post(&Write::new(Inline(b"to the dead"), stale).signaled(), 2)?;
    ensure_eq!(failed(end.sent()?, WcStatus::RemoteAccess)?, 2, "cookie");
    role.send(b"end")
}
