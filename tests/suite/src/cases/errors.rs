//! Refused requests: each completes with the status of its cause, and changes no byte.

use verbless_command::{KeyAccess, RemoteAccess};
use verbless_queue::wr::{CompareSwap, FetchAdd, Inline, Read, Send, Write};
use verbless_queue::{
    CompletionError, ConnectOptions, Domain, QpConfig, Region, RemoteAddr, Rkey, Sge, WcStatus,
};

use crate::case::cases;
use crate::need::ATOMICS;
use crate::{Lab, Pair, Stop, ensure_eq, failed};

cases!(
    "errors",
    "Refused requests: each completes with the status of its cause, and changes no byte.",
    needs [crate::Need::Lossless]:
    write_outside_region_fails_with_remote_access_error,
    read_past_region_fails_with_remote_access_error,
    wrong_rkey_fails_with_remote_access_error,
    stale_rkey_fails_with_remote_access_error,
    rkey_without_write_right_rejects_writes,
    rkey_without_read_right_rejects_reads,
    rkey_without_atomic_right_rejects_atomics [ATOMICS],
    rkey_of_another_pd_fails_with_remote_access_error,
    qp_without_access_right_rejects_permitting_rkey,
    misaligned_atomic_is_remote_invalid_request [ATOMICS],
    unusable_sge_fails_with_local_protection_error,
    read_into_read_only_lkey_fails_locally,
    bad_receive_lkey_fails_both_sides,
    undersized_receive_fails_both_sides,
);

/// Expects a remote access error; `length` bytes at the start of the peer's region must be
/// unchanged.
fn refused(
    pair: &mut Pair,
    request: impl FnOnce(&mut Pair) -> Result<(), Stop>,
) -> Result<(), Stop> {
    pair.b.fill(0, &[0xee; 256])?;
    request(pair)?;
    failed(pair.a.sent()?, WcStatus::RemoteAccess)?;
    ensure_eq!(pair.b.bytes(0, 256)?, [0xee; 256], "the peer's memory");
    Ok(())
}

fn write_outside_region_fails_with_remote_access_error(lab: &Lab) -> Result<(), Stop> {
    let mut pair = Pair::new(lab)?;
    let (start, length) = (pair.b.remote(0)?, pair.b.region.len() as u64);
    let end = start.address + length;
    for (what, address, bytes) in [
        ("over the end", end - 1, 2),
        ("at the end", end, 1),
        ("longer than to the end", end - 64, 65),
        ("on a later page", end + 4096, 1),
        ("before the start", start.address - 1, 2),
        ("over the last address", u64::MAX, 128),
        ("up to address 0 and on", u64::MAX - 63, 128),
        ("at address 0", 0, 128),
    ] {
        refused(&mut pair, |pair| {
            let (from, to) = (pair.a.sge(0, bytes)?, RemoteAddr { address, ..start });
            pair.a.qp.post(&Write::new(from, to).signaled(), 0)?;
            Ok(())
        })
        .map_err(|Stop(why)| Stop(format!("{what}: {why}")))?;
        let last = pair.b.bytes(length as usize - 1, 1)?;
        ensure_eq!(last, [0], format!("{what}: the last byte of the region"));
        pair.restart()?;
    }
    // Up to the end, access is allowed.
    let (from, to) = (pair.a.sge(0, 64)?, RemoteAddr { address: end - 64, ..start });
    pair.a.perform(&Write::new(from, to).signaled())?;
    Ok(())
}

fn read_past_region_fails_with_remote_access_error(lab: &Lab) -> Result<(), Stop> {
    let mut pair = Pair::new(lab)?;
    let from = pair.b.remote(pair.b.region.len() - 10)?;
    pair.a.fill(0, &[7; 64])?;
    let into = pair.a.sge(0, 11)?;
    pair.a.qp.post(&Read::new(into, from).signaled(), 0)?;
    failed(pair.a.sent()?, WcStatus::RemoteAccess)?;
    ensure_eq!(pair.a.bytes(0, 64)?, [7; 64], "our memory");
    Ok(())
}

fn wrong_rkey_fails_with_remote_access_error(lab: &Lab) -> Result<(), Stop> {
    let mut pair = Pair::new(lab)?;
    let right = pair.b.remote(0)?;
    // Another variant, an index without a key, no key at all, and the reserved key.
    for key in [right.rkey.0 ^ 1, right.rkey.0 ^ 0x7f_ff00, 0, u32::MAX] {
        refused(&mut pair, |pair| {
            let to = RemoteAddr::new(right.address, Rkey(key));
            pair.a.qp.post(&Write::new(Inline(b"wrong"), to).signaled(), 0)?;
            Ok(())
        })?;
        pair.restart()?;
    }
    Ok(())
}

fn stale_rkey_fails_with_remote_access_error(lab: &Lab) -> Result<(), Stop> {
    let mut pair = Pair::new(lab)?;
    let other = pair.b.domain.region(4096, KeyAccess::ALL)?;
    let stale = other.remote(0, 0)?;
    pair.a.perform(&Write::new(Inline(b"fresh"), stale).signaled())?;
    drop(other);
    // The next key may have the index of the one before.
    let _next = pair.b.domain.region(4096, KeyAccess::ALL)?;
    pair.a.qp.post(&Write::new(Inline(b"stale"), stale).signaled(), 0)?;
    failed(pair.a.sent()?, WcStatus::RemoteAccess)?;
    Ok(())
}

/// A key of b over b's own memory, with only these rights.
fn keyed(pair: &Pair, remote: RemoteAccess) -> Result<(Region, RemoteAddr), Stop> {
    let region = pair.b.domain.region(4096, KeyAccess { remote, ..KeyAccess::LOCAL })?;
    let to = region.remote(0, 0)?;
    Ok((region, to))
}

fn rkey_without_write_right_rejects_writes(lab: &Lab) -> Result<(), Stop> {
    let mut pair = Pair::new(lab)?;
    let (region, at) = keyed(&pair, RemoteAccess { write: false, ..RemoteAccess::ALL })?;
    let into = pair.a.sge(0, 8)?;
    pair.a.perform(&Read::new(into, at).signaled())?;
    pair.a.qp.post(&Write::new(Inline(b"mine now"), at).signaled(), 0)?;
    failed(pair.a.sent()?, WcStatus::RemoteAccess)?;
    let mut found = [1; 8];
    region.read_at(0, &mut found)?;
    ensure_eq!(found, [0; 8], "the memory");
    Ok(())
}

fn rkey_without_read_right_rejects_reads(lab: &Lab) -> Result<(), Stop> {
    let mut pair = Pair::new(lab)?;
    let (region, at) = keyed(&pair, RemoteAccess { read: false, ..RemoteAccess::ALL })?;
    region.write_at(0, b"secret")?;
    pair.a.perform(&Write::new(Inline(b"S"), at).signaled())?;
    let into = pair.a.sge(0, 6)?;
    pair.a.qp.post(&Read::new(into, at).signaled(), 0)?;
    failed(pair.a.sent()?, WcStatus::RemoteAccess)?;
    ensure_eq!(pair.a.bytes(0, 6)?, [0; 6], "the read bytes");
    Ok(())
}

fn rkey_without_atomic_right_rejects_atomics(lab: &Lab) -> Result<(), Stop> {
    let mut pair = Pair::new(lab)?;
    let (region, at) = keyed(&pair, RemoteAccess { atomic: false, ..RemoteAccess::ALL })?;
    let old = pair.a.sge(0, 8)?;
    pair.a.qp.post(&FetchAdd::new(old, at, 1).signaled(), 0)?;
    failed(pair.a.sent()?, WcStatus::RemoteAccess)?;
    pair.restart()?;
    pair.a.qp.post(&CompareSwap::new(old, at, 0, 1).signaled(), 0)?;
    failed(pair.a.sent()?, WcStatus::RemoteAccess)?;
    let mut found = [1; 8];
    region.read_at(0, &mut found)?;
    ensure_eq!(found, [0; 8], "the memory");
    Ok(())
}

fn rkey_of_another_pd_fails_with_remote_access_error(lab: &Lab) -> Result<(), Stop> {
    let mut pair = Pair::new(lab)?;
    let stranger = Domain::new(&pair.b.device)?.region(4096, KeyAccess::ALL)?;
    let to = stranger.remote(0, 0)?;
    refused(&mut pair, |pair| {
        pair.a.qp.post(&Write::new(Inline(b"wrong door"), to).signaled(), 0)?;
        Ok(())
    })?;
    let mut found = [1; 8];
    stranger.read_at(0, &mut found)?;
    ensure_eq!(found, [0; 8], "memory of the other PD's region");
    Ok(())
}

fn qp_without_access_right_rejects_permitting_rkey(lab: &Lab) -> Result<(), Stop> {
    let options = ConnectOptions { access: RemoteAccess::default(), ..Default::default() };
    let operations = if lab.device()?.caps().atomics { 3 } else { 2 };
    for operation in 0..operations {
        let mut pair = Pair::connected(lab, &QpConfig::new(4, 4), 4096, &options)?;
        let (sge, at) = (pair.a.sge(0, 8)?, pair.b.remote(0)?);
        match operation {
            0 => pair.a.qp.post(&Write::new(sge, at).signaled(), 0)?,
            1 => pair.a.qp.post(&Read::new(sge, at).signaled(), 0)?,
            _ => pair.a.qp.post(&FetchAdd::new(sge, at, 1).signaled(), 0)?,
        };
        // The responder may report an unknown operation or a forbidden one.
        match pair.a.sent()? {
            Err(CompletionError::Failed(failure))
                if [WcStatus::RemoteInvalidRequest, WcStatus::RemoteAccess]
                    .contains(&failure.status) => {}
            other => return Err(Stop::fail(format!("operation {operation}: {other:?}"))),
        }
    }
    Ok(())
}

fn misaligned_atomic_is_remote_invalid_request(lab: &Lab) -> Result<(), Stop> {
    let mut pair = Pair::new(lab)?;
    for offset in [1, 4, 7] {
        let (old, at) = (pair.a.sge(0, 8)?, pair.b.remote(offset)?);
        pair.a.qp.post(&FetchAdd::new(old, at, 1).signaled(), 0)?;
        failed(pair.a.sent()?, WcStatus::RemoteInvalidRequest)?;
        ensure_eq!(pair.b.bytes(0, 16)?, [0; 16], "the peer's memory");
        pair.restart()?;
    }
    Ok(())
}

fn unusable_sge_fails_with_local_protection_error(lab: &Lab) -> Result<(), Stop> {
    let mut pair = Pair::new(lab)?;
    let stranger = Domain::new(&pair.a.device)?.region(4096, KeyAccess::ALL)?;
    let (good, length) = (pair.a.sge(0, 8)?, pair.a.region.len() as u64);
    let keyed = |key| Sge { lkey: verbless_queue::Lkey(key), ..good };
    let at = |address, length| Sge { address, length, ..good };
    for (what, sge) in [
        ("another variant of the key", keyed(good.lkey.0 ^ 1)),
        ("an index without a key", keyed(good.lkey.0 ^ 0x7f_ff00)),
        ("key 0", keyed(0)),
        ("the reserved key", keyed(u32::MAX)),
        ("a key of another PD", stranger.sge(0, 8)?),
        ("over the end", at(good.address + length - 7, 8)),
        ("before the start", at(good.address - 1, 8)),
        ("longer than the region", at(good.address, length as u32 + 1)),
        ("over the last address", at(u64::MAX - 3, 8)),
    ] {
        let to = pair.b.remote(0)?;
        pair.a.qp.post(&Write::new(sge, to).signaled(), 0)?;
        let status = failed(pair.a.sent()?, WcStatus::LocalProtection);
        status.map_err(|Stop(why)| Stop(format!("{what}: {why}")))?;
        ensure_eq!(pair.b.bytes(0, 64)?, [0; 64], format!("{what}: the peer's memory"));
        pair.restart()?;
    }
    Ok(())
}

fn read_into_read_only_lkey_fails_locally(lab: &Lab) -> Result<(), Stop> {
    let mut pair = Pair::new(lab)?;
    let read_only = pair.a.domain.region(4096, KeyAccess::LOCAL_READ)?;
    let (sge, at) = (read_only.sge(0, 8)?, pair.b.remote(0)?);
    pair.a.perform(&Write::new(sge, at).signaled())?;
    pair.b.fill(0, b"not mine")?;
    pair.a.qp.post(&Read::new(sge, at).signaled(), 0)?;
    failed(pair.a.sent()?, WcStatus::LocalProtection)?;
    let mut found = [1; 8];
    read_only.read_at(0, &mut found)?;
    ensure_eq!(found, [0; 8], "the memory");
    Ok(())
}

fn bad_receive_lkey_fails_both_sides(lab: &Lab) -> Result<(), Stop> {
    let mut pair = Pair::new(lab)?;
    let read_only = pair.b.domain.region(4096, KeyAccess::LOCAL_READ)?;
    pair.b.receive_into(read_only.sge(0, 64)?, 3)?;
    pair.a.qp.post(&Send::new(Inline(b"into what?")).signaled(), 4)?;
    ensure_eq!(failed(pair.b.received()?, WcStatus::LocalProtection)?, 3, "cookie of the receive");
    ensure_eq!(failed(pair.a.sent()?, WcStatus::RemoteOperation)?, 4, "cookie of the send");
    Ok(())
}

fn undersized_receive_fails_both_sides(lab: &Lab) -> Result<(), Stop> {
    let mut pair = Pair::new(lab)?;
    for (room, message) in [(8, 9), (1, 64), (0, 1), (4096, 20_000)] {
        pair.b.receive(0, room, 3)?;
        let from = pair.a.sge(0, message)?;
        pair.a.qp.post(&Send::new(from).signaled(), 4)?;
        ensure_eq!(failed(pair.b.received()?, WcStatus::LocalLength)?, 3, "cookie of the receive");
        let got = failed(pair.a.sent()?, WcStatus::RemoteInvalidRequest)?;
        ensure_eq!(got, 4, "cookie of the send");
        pair.restart()?;
    }
    Ok(())
}
