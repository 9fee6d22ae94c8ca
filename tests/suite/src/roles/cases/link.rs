//! A connection of two roles: their addresses and keys go through the director as bytes.

use std::time::Instant;

use verbless_command::Mtu;
use verbless_queue::qp::ReceiveSide;
use verbless_queue::service::{Connected, Service};
use verbless_queue::wr::{Inline, Write};
use verbless_queue::{
    ConnectOptions, Domain, PeerAddress, Qp, QpConfig, Rc, Region, RemoteAddr, Rkey, WcStatus,
};

use crate::roles::role::Role;
use crate::{Endpoint, Stop, TIMEOUT, ensure, ensure_eq, failed};

/// Bytes of each side's region.
pub(super) const BYTES: usize = 1 << 20;
/// Bytes of a remote address: a region's address and key.
const REMOTE: usize = 12;

/// Gives up soon: 5 tries of some milliseconds each, enough for lossy links.
pub(super) fn impatient() -> ConnectOptions {
    ConnectOptions {
        ack_timeout: 12,
        retry_count: 4,
        rnr_retry: 2,
        min_rnr_timer: 1,
        mtu: Some(Mtu::B1024),
        ..Default::default()
    }
}

/// A queue pair in RESET with a region.
pub(super) fn endpoint(role: &Role) -> Result<Endpoint, Stop> {
    endpoint_of(role)
}

/// A queue pair of any service in RESET with a region.
pub(super) fn endpoint_of<S: Service>(role: &Role) -> Result<Endpoint<S>, Stop> {
    Endpoint::of(role.device()?, &QpConfig::new(64, 64), BYTES)
}

/// Sends this role's address to the other role: its queue pair and its region.
pub(super) fn introduce<S: Service>(
    role: &mut Role,
    end: &Endpoint<S>,
    options: &ConnectOptions,
) -> Result<(), Stop> {
    let address = end.domain.address(&end.qp, options)?;
    introduce_as(role, &address, &end.region)
}

fn introduce_as(role: &mut Role, address: &PeerAddress, region: &Region) -> Result<(), Stop> {
    let remote = region.remote(0, 0)?;
    let mut bytes = address.to_bytes().to_vec();
    bytes.extend(remote.address.to_be_bytes());
    bytes.extend(remote.rkey.0.to_be_bytes());
    role.send(&bytes)
}

/// Connects a queue pair to one of the other role, which does the same, and does not wait until
/// that is connected; returns the address of the other's region.
pub(super) fn connect_qp<R: ReceiveSide>(
    role: &mut Role,
    domain: &Domain,
    qp: &mut Qp<Rc, R>,
    region: &Region,
    options: &ConnectOptions,
) -> Result<RemoteAddr, Stop> {
    introduce_as(role, &domain.address(qp, options)?, region)?;
    let (peer, remote) = read(&role.message()?)?;
    domain.connect(qp, &peer, options)?;
    Ok(remote)
}

/// Parses the other role's message of [`introduce`].
pub(super) fn read(bytes: &[u8]) -> Result<(PeerAddress, RemoteAddr), Stop> {
    let address = bytes.split_last_chunk::<REMOTE>().and_then(|(address, remote)| {
        let (at, key) = remote.split_at(8);
        let at = u64::from_be_bytes(at.try_into().ok()?);
        let key = Rkey(u32::from_be_bytes(key.try_into().ok()?));
        Some((PeerAddress::from_bytes(address.try_into().ok()?), RemoteAddr::new(at, key)))
    });
    let (peer, remote) = address.ok_or_else(|| {
        Stop::fail(format!("{} bytes: not a peer's address and a remote address", bytes.len()))
    })?;
    Ok((peer?, remote))
}

/// Connects to the other role, which does the same; returns the address of its region.
pub(super) fn connect<S: Connected>(
    role: &mut Role,
    end: &mut Endpoint<S>,
    options: &ConnectOptions,
) -> Result<RemoteAddr, Stop> {
    introduce(role, end, options)?;
    let (peer, remote) = read(&role.message()?)?;
    end.domain.connect(&mut end.qp, &peer, options)?;
    both_are_connected(role)?;
    Ok(remote)
}

/// Waits until the other role is connected, too: a sender to an unconnected role only waits longer.
pub(super) fn both_are_connected(role: &mut Role) -> Result<(), Stop> {
    meet(role, b"connected")
}

/// Waits until both roles have said the same.
pub(super) fn meet(role: &mut Role, word: &[u8]) -> Result<(), Stop> {
    role.send(word)?;
    let said = role.message()?;
    ensure!(said == word, "the other program says {said:?}");
    Ok(())
}

/// Writes until the dead peer stops answering. That may take a moment: a device learns of a
/// program's end later than the processes that wait for the program.
pub(super) fn is_silent(end: &mut Endpoint, there: RemoteAddr) -> Result<(), Stop> {
    let limit = Instant::now() + TIMEOUT;
    loop {
        end.qp.post(&Write::new(Inline(b"still there?"), there).signaled(), 9)?;
        match end.sent()? {
            Ok(_) => ensure!(Instant::now() < limit, "a dead program still answers"),
            Err(error) => {
                ensure_eq!(failed(Err(error), WcStatus::TransportRetryExceeded)?, 9, "cookie");
                return Ok(());
            }
        }
    }
}
