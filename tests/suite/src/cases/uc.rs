//! The unreliable connected service: no acknowledgements, so a lost message is not sent again.

use verbless_command::{Mtu, RemoteAccess};
use verbless_prm::QpState;
use verbless_queue::wr::{Inline, Nop, Send, Write};
use verbless_queue::{ConnectOptions, QpConfig, RemoteAddr, Rkey, Sge, Uc, WcOpcode, WcStatus};

use super::path::sends_as_many_packets;
use crate::case::cases;
use crate::need::cap;
use crate::{Lab, Pair, Stop, ensure, ensure_eq, failed, pattern, quiet};

cases!(
    "uc",
    "The unreliable connected service: no acknowledgements, no retransmission of lost messages.",
    needs [cap!(uc), crate::Need::Lossless]:
    messages_of_every_size_arrive_whole,
    every_path_mtu_up_to_port_mtu_works,
    sequence_numbers_wrap_at_24_bits,
    both_sides_send_concurrently,
    request_to_reset_peer_succeeds,
    message_without_receive_is_lost,
    refused_write_is_lost,
    bad_sge_stops_only_sends,
    recovered_qp_continues_its_connection,
    recover_rejects_qp_in_rts,
    error_state_flushes_sends_and_receives,
    qp_starts_over_after_reset,
);

fn config() -> QpConfig {
    QpConfig::new(64, 64)
}

fn pair(lab: &Lab) -> Result<Pair<Uc>, Stop> {
    connected(lab, &ConnectOptions::default())
}

fn connected(lab: &Lab, options: &ConnectOptions) -> Result<Pair<Uc>, Stop> {
    Pair::connected_of(lab, &config(), 2 << 20, options)
}

/// Sends a message from `a` to `b`, which must arrive.
fn message(pair: &mut Pair<Uc>, text: &[u8]) -> Result<(), Stop> {
    pair.b.fill(0, &vec![0; text.len()])?;
    pair.b.receive(0, text.len(), 7)?;
    pair.a.fill(0, text)?;
    let sge = pair.a.sge(0, text.len())?;
    pair.a.perform(&Send::new(sge).signaled())?;
    let done = pair.b.received()??;
    ensure_eq!((done.cookie, done.operation()), (7, WcOpcode::Receive), "completion");
    ensure_eq!(done.byte_len() as usize, text.len(), "bytes received");
    ensure!(pair.b.bytes(0, text.len())? == text, "other data arrived");
    Ok(())
}

fn messages_of_every_size_arrive_whole(lab: &Lab) -> Result<(), Stop> {
    let mut pair = pair(lab)?;
    for length in [1, 2, 63, 64, 255, 256, 257, 4095, 4096, 4097, 65_536, 1 << 20] {
        message(&mut pair, &pattern(length as u8, length))?;
    }
    pair.b.receive(0, 64, 1)?;
    pair.a.perform(&Send::new(Inline(b"")).signaled())?;
    ensure_eq!(pair.b.received()??.byte_len(), 0, "bytes of an empty message");
    Ok(())
}

fn every_path_mtu_up_to_port_mtu_works(lab: &Lab) -> Result<(), Stop> {
    let active = lab.device()?.query_port(1)?.active_mtu().unwrap_or(256);
    let sizes = [Mtu::B256, Mtu::B512, Mtu::B1024, Mtu::B2048, Mtu::B4096];
    for (bytes, mtu) in [256, 512, 1024, 2048, 4096].into_iter().zip(sizes) {
        if bytes <= active {
            let options = ConnectOptions { mtu: Some(mtu), ..Default::default() };
            let mut pair = connected(lab, &options)?;
            for end in [&pair.a, &pair.b] {
                ensure_eq!(end.qp.object().query()?.mtu().0, mtu as u8, "path MTU in the context");
            }
            message(&mut pair, &pattern(2, 30_000))?;
            sends_as_many_packets(&mut pair, bytes)?;
        }
    }
    Ok(())
}

fn sequence_numbers_wrap_at_24_bits(lab: &Lab) -> Result<(), Stop> {
    let options =
        ConnectOptions { psn: Some(0xff_fff0), mtu: Some(Mtu::B256), ..Default::default() };
    let mut pair = connected(lab, &options)?;
    for round in 0..5 {
        message(&mut pair, &pattern(round, 3000))?;
    }
    Ok(())
}

fn both_sides_send_concurrently(lab: &Lab) -> Result<(), Stop> {
    const MESSAGES: u64 = 32;
    let mut pair = pair(lab)?;
    for end in [&mut pair.a, &mut pair.b] {
        (0..MESSAGES).try_for_each(|cookie| end.receive(64 * cookie as usize, 64, cookie))?;
    }
    for cookie in 0..MESSAGES {
        for end in [&mut pair.a, &mut pair.b] {
            end.qp.post(&Send::new(Inline(&cookie.to_ne_bytes())).signaled(), cookie)?;
        }
    }
    for end in [&mut pair.a, &mut pair.b] {
        for cookie in 0..MESSAGES {
            ensure_eq!(end.sent()??.cookie, cookie, "cookie of the send");
            ensure_eq!(end.received()??.cookie, cookie, "cookie of the receive");
            let there = end.bytes(64 * cookie as usize, 8)?;
            ensure_eq!(there, cookie.to_ne_bytes(), "message");
        }
    }
    Ok(())
}

fn request_to_reset_peer_succeeds(lab: &Lab) -> Result<(), Stop> {
    let mut pair = pair(lab)?;
    let to = pair.b.remote(0)?;
    // A QP in RESET receives nothing.
    pair.b.qp.reset()?;
    pair.a.perform(&Write::new(Inline(b"no write"), to).signaled())?;
    pair.a.perform(&Send::new(Inline(b"no send")).signaled())?;
    ensure_eq!(pair.a.qp.object().state()?, QpState::RTS, "state of the sender");
    ensure_eq!(pair.b.bytes(0, 8)?, [0; 8], "the peer's memory");
    Ok(())
}

fn message_without_receive_is_lost(lab: &Lab) -> Result<(), Stop> {
    let mut pair = pair(lab)?;
    for round in 1..=5u8 {
        pair.a.perform(&Send::new(Inline(&[0xee; 32])).signaled())?;
        let Pair { b, .. } = &mut pair;
        quiet("a receive completed that was not posted", || b.qp.poll(&mut b.receive_cq))?;
        message(&mut pair, &[round; 40])?;
    }
    ensure_eq!(pair.b.qp.object().state()?, QpState::RTS, "state of the receiver");
    Ok(())
}

fn refused_write_is_lost(lab: &Lab) -> Result<(), Stop> {
    for (what, access, wrong) in
        [("no right", RemoteAccess::default(), 0), ("a wrong key", RemoteAccess::ALL, 1)]
    {
        let mut pair = connected(lab, &ConnectOptions { access, ..Default::default() })?;
        let to = pair.b.remote(0)?;
        let to = RemoteAddr { rkey: Rkey(to.rkey.0 ^ wrong), ..to };
        pair.a.perform(&Write::new(Inline(b"denied"), to).signaled())?;
        let Pair { a, b } = &mut pair;
        let changed = || b.bytes(0, 6).ok().filter(|bytes| bytes != &[0; 6]);
        quiet(&format!("a WRITE with {what} changed the memory"), changed)?;
        ensure_eq!(a.qp.object().state()?, QpState::RTS, format!("the sender's state, {what}"));
    }
    Ok(())
}

/// Makes a request of `a` fail, with another one queued after it.
fn fail(pair: &mut Pair<Uc>) -> Result<(), Stop> {
    let sge = pair.a.sge(0, 64)?;
    let wrong = Sge { length: 4 << 20, ..sge };
    let mut batch = pair.a.qp.batch();
    batch.post(&Send::new(wrong), 1)?;
    batch.post(&Nop::new().signaled(), 2)?;
    batch.ring();
    ensure_eq!(failed(pair.a.sent()?, WcStatus::LocalProtection)?, 1, "the failed request");
    ensure_eq!(failed(pair.a.sent()?, WcStatus::Flushed)?, 2, "the next request");
    Ok(())
}

fn bad_sge_stops_only_sends(lab: &Lab) -> Result<(), Stop> {
    let mut pair = pair(lab)?;
    fail(&mut pair)?;
    ensure_eq!(pair.a.qp.object().state()?, QpState::SQER, "state");
    pair.a.qp.post(&Nop::new().signaled(), 3)?;
    ensure_eq!(failed(pair.a.sent()?, WcStatus::Flushed)?, 3, "the later request");
    // SQER stops only the send queue.
    let Pair { a, b } = pair;
    message(&mut Pair { a: b, b: a }, b"one way")
}

fn recovered_qp_continues_its_connection(lab: &Lab) -> Result<(), Stop> {
    let mut pair = pair(lab)?;
    for round in 0..5 {
        message(&mut pair, &pattern(round, 300))?;
        fail(&mut pair)?;
        pair.a.qp.recover()?;
        ensure_eq!(pair.a.qp.object().state()?, QpState::RTS, "state");
        message(&mut pair, &pattern(round, 400))?;
    }
    Ok(())
}

fn recover_rejects_qp_in_rts(lab: &Lab) -> Result<(), Stop> {
    let mut pair = pair(lab)?;
    let refused = pair.a.qp.recover().err();
    let refused = refused.ok_or_else(|| Stop::fail("a queue pair in RTS recovered"))?;
    ensure!(refused.to_string().contains("RTS"), "the state is not in {refused}");
    message(&mut pair, b"as before")
}

fn error_state_flushes_sends_and_receives(lab: &Lab) -> Result<(), Stop> {
    let mut pair = pair(lab)?;
    (0..3).try_for_each(|cookie| pair.a.receive(0, 64, cookie))?;
    pair.a.qp.to_error()?;
    pair.a.qp.post(&Send::new(Inline(b"too late")), 9)?;
    for cookie in 0..3 {
        ensure_eq!(failed(pair.a.received()?, WcStatus::Flushed)?, cookie, "a receive");
    }
    ensure_eq!(failed(pair.a.sent()?, WcStatus::Flushed)?, 9, "the send");
    Ok(())
}

fn qp_starts_over_after_reset(lab: &Lab) -> Result<(), Stop> {
    let mut pair = pair(lab)?;
    for round in 0..3 {
        fail(&mut pair)?;
        pair.restart()?;
        message(&mut pair, &pattern(round, 5000))?;
    }
    Ok(())
}
