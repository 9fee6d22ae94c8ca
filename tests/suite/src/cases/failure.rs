//! Unresponsive peers, and failed queue pairs: all later requests are flushed in order.

use verbless_prm::QpState;
use verbless_queue::wr::{Inline, Nop, Send, Write, WriteImm};
use verbless_queue::{ConnectOptions, QpConfig, RemoteAddr, Rkey, WcStatus};

use crate::case::cases;
use crate::{Endpoint, Lab, Pair, Stop, ensure, ensure_eq, failed, quiet, until};

cases!(
    "failure",
    "Unresponsive peers, and failed queue pairs: later requests are flushed in order.",
    needs [crate::Need::Lossless]:
    send_without_receive_exceeds_rnr_retries,
    send_waits_for_late_receive,
    write_imm_waits_for_receive,
    gone_peer_exceeds_transport_retries,
    peer_connected_elsewhere_ignores_stranger,
    psn_of_another_connection_is_rejected,
    wqes_behind_failure_are_flushed_in_order,
    receives_are_flushed_in_order,
    wqes_posted_in_error_state_are_flushed,
    wqe_posted_in_error_is_flushed_last,
    reset_discards_unflushed_wqes,
    failed_qp_and_peer_report_error_state,
    failed_qp_works_after_reset,
    qp_failure_leaves_other_qps_alone,
    failure_text_names_rkey_wqe_and_syndrome,
);

fn send_without_receive_exceeds_rnr_retries(lab: &Lab) -> Result<(), Stop> {
    let mut pair = Pair::with_short_timeouts(lab)?;
    pair.a.qp.post(&Send::new(Inline(b"anybody?")).signaled(), 9)?;
    ensure_eq!(failed(pair.a.sent()?, WcStatus::RnrRetryExceeded)?, 9, "cookie");
    // The peer is unaffected.
    ensure_eq!(pair.b.qp.object().state()?, QpState::RTS, "state of the peer");
    Ok(())
}

fn send_waits_for_late_receive(lab: &Lab) -> Result<(), Stop> {
    let mut pair = Pair::new(lab)?;
    for cookie in 0..3 {
        pair.a.qp.post(&Send::new(Inline(&[cookie + 1; 8])).signaled(), cookie.into())?;
    }
    let Endpoint { qp, send_cq, .. } = &mut pair.a;
    quiet("a SEND completed without a receive", || qp.poll(send_cq))?;
    for cookie in 0..3 {
        pair.b.receive(64 * cookie as usize, 64, cookie)?;
        ensure_eq!(pair.a.sent()??.cookie, cookie, "cookie of the send");
        ensure_eq!(pair.b.received()??.cookie, cookie, "cookie of the receive");
        let byte = cookie as u8 + 1;
        ensure_eq!(pair.b.bytes(64 * cookie as usize, 8)?, [byte; 8], "message");
    }
    Ok(())
}

fn write_imm_waits_for_receive(lab: &Lab) -> Result<(), Stop> {
    let mut pair = Pair::new(lab)?;
    let to = pair.b.remote(0)?;
    pair.a.qp.post(&WriteImm::new(Inline(b"late"), to, 5).signaled(), 0)?;
    let Endpoint { qp, send_cq, .. } = &mut pair.a;
    quiet("the WRITE_IMM completed without a receive", || qp.poll(send_cq))?;
    pair.b.receive(64, 0, 1)?;
    pair.a.sent()??;
    ensure_eq!(pair.b.received()??.byte_len(), 4, "bytes");
    Ok(())
}

fn gone_peer_exceeds_transport_retries(lab: &Lab) -> Result<(), Stop> {
    for destroyed in [false, true] {
        let Pair { mut a, b } = Pair::with_short_timeouts(lab)?;
        let to = b.remote(0)?;
        a.perform(&Write::new(Inline(b"hello"), to).signaled())?;
        let mut peer = (!destroyed).then_some(b);
        if let Some(peer) = &mut peer {
            peer.qp.reset()?;
        }
        a.qp.post(&Write::new(Inline(b"hello?"), to).signaled(), 6)?;
        let cookie = failed(a.sent()?, WcStatus::TransportRetryExceeded)?;
        ensure_eq!(cookie, 6, format!("cookie, with the peer destroyed: {destroyed}"));
    }
    Ok(())
}

fn peer_connected_elsewhere_ignores_stranger(lab: &Lab) -> Result<(), Stop> {
    let mut pair = Pair::with_short_timeouts(lab)?;
    let intruder = Pair::unconnected(lab, &QpConfig::new(4, 4), 4096)?;
    let Pair { a: mut stranger, .. } = intruder;
    let options = ConnectOptions { ack_timeout: 8, retry_count: 1, ..Default::default() };
    let there = pair.b.domain.address(&pair.b.qp, &options)?;
    stranger.domain.connect(&mut stranger.qp, &there, &options)?;
    let to = pair.b.remote(0)?;
    stranger.qp.post(&Write::new(Inline(b"let me in"), to).signaled(), 0)?;
    failed(stranger.sent()?, WcStatus::TransportRetryExceeded)?;
    ensure_eq!(pair.b.bytes(0, 9)?, [0; 9], "the peer's memory");
    pair.a.perform(&Write::new(Inline(b"welcome"), to).signaled())?;
    Ok(())
}

fn psn_of_another_connection_is_rejected(lab: &Lab) -> Result<(), Stop> {
    let mut pair = Pair::unconnected(lab, &QpConfig::new(4, 4), 4096)?;
    let options = ConnectOptions { ack_timeout: 8, retry_count: 1, ..Default::default() };
    let here = pair.a.domain.address(&pair.a.qp, &options)?;
    let there = pair.b.domain.address(&pair.b.qp, &options)?;
    pair.a.domain.connect(&mut pair.a.qp, &there, &options)?;
    // The peer expects packets with another start PSN.
    let elsewhere = verbless_queue::PeerAddress { psn: (here.psn + 0x40_0000) & 0xff_ffff, ..here };
    pair.b.domain.connect(&mut pair.b.qp, &elsewhere, &options)?;
    let to = pair.b.remote(0)?;
    pair.a.qp.post(&Write::new(Inline(b"ghost"), to).signaled(), 0)?;
    ensure!(pair.a.sent()?.is_err(), "a packet of another connection was accepted");
    ensure_eq!(pair.b.bytes(0, 5)?, [0; 5], "the peer's memory");
    Ok(())
}

/// A WRITE that the peer must refuse.
fn refused_write(pair: &Pair) -> Result<Write<Inline<'static>>, Stop> {
    let to = RemoteAddr { rkey: Rkey(0), ..pair.b.remote(0)? };
    Ok(Write::new(Inline(b"doomed"), to))
}

fn wqes_behind_failure_are_flushed_in_order(lab: &Lab) -> Result<(), Stop> {
    let mut pair = Pair::new(lab)?;
    let (doomed, to) = (refused_write(&pair)?, pair.b.remote(0)?);
    let mut batch = pair.a.qp.batch();
    batch.post(&Write::new(Inline(b"good"), to).signaled(), 0)?;
    batch.post(&doomed, 1)?;
    for cookie in 2..20 {
        batch.post(&Write::new(Inline(b"late"), to).signaled(), cookie)?;
    }
    batch.ring();
    ensure_eq!(pair.a.sent()??.cookie, 0, "cookie before the failure");
    ensure_eq!(failed(pair.a.sent()?, WcStatus::RemoteAccess)?, 1, "cookie of the failure");
    for cookie in 2..20 {
        ensure_eq!(failed(pair.a.sent()?, WcStatus::Flushed)?, cookie, "cookie of a flushed WQE");
    }
    pair.b.placed(0, b"good", "the peer's memory")?;
    Ok(())
}

fn receives_are_flushed_in_order(lab: &Lab) -> Result<(), Stop> {
    let mut pair = Pair::new(lab)?;
    for cookie in 0..10 {
        pair.b.receive(0, 64, cookie)?;
    }
    pair.a.perform(&Send::new(Inline(b"the only one")).signaled())?;
    let doomed = refused_write(&pair)?;
    pair.a.qp.post(&doomed, 0)?;
    failed(pair.a.sent()?, WcStatus::RemoteAccess)?;
    ensure_eq!(pair.b.received()??.cookie, 0, "cookie of the message");
    for cookie in 1..10 {
        ensure_eq!(
            failed(pair.b.received()?, WcStatus::Flushed)?,
            cookie,
            "cookie of a flushed WQE"
        );
    }
    Ok(())
}

fn wqes_posted_in_error_state_are_flushed(lab: &Lab) -> Result<(), Stop> {
    let mut pair = Pair::new(lab)?;
    pair.a.qp.to_error()?;
    for cookie in 0..5 {
        pair.a.qp.post(&Nop::new(), cookie)?;
        ensure_eq!(failed(pair.a.sent()?, WcStatus::Flushed)?, cookie, "cookie of the send");
        pair.a.receive(0, 64, cookie)?;
        ensure_eq!(failed(pair.a.received()?, WcStatus::Flushed)?, cookie, "cookie of the receive");
    }
    Ok(())
}

/// A program that does not count its flushed completions waits for a flush this way.
fn wqe_posted_in_error_is_flushed_last(lab: &Lab) -> Result<(), Stop> {
    const BARRIER: u64 = 100;
    let mut pair = Pair::new(lab)?;
    for round in 0..10 {
        for cookie in 0..4 {
            pair.a.qp.post(&Send::new(Inline(b"waiting")), cookie)?;
            pair.a.receive(0, 64, cookie)?;
        }
        pair.a.qp.to_error()?;
        pair.a.qp.post(&Nop::new().signaled(), BARRIER)?;
        pair.a.receive(0, 64, BARRIER)?;
        for cookie in (0..4).chain([BARRIER]) {
            let what = format!("cookie of a send in round {round}");
            ensure_eq!(failed(pair.a.sent()?, WcStatus::Flushed)?, cookie, what);
            let what = format!("cookie of a receive in round {round}");
            ensure_eq!(failed(pair.a.received()?, WcStatus::Flushed)?, cookie, what);
        }
        pair.restart()?;
    }
    Ok(())
}

fn reset_discards_unflushed_wqes(lab: &Lab) -> Result<(), Stop> {
    let mut pair = Pair::new(lab)?;
    for round in 0..10u8 {
        for cookie in 0..4 {
            pair.a.qp.post(&Send::new(Inline(b"waiting")).signaled(), cookie)?;
            pair.a.receive(0, 64, cookie)?;
        }
        pair.a.qp.to_error()?;
        // The completions flushed so far leave the CQs, and none comes later.
        pair.restart()?;
        let Endpoint { qp, send_cq, receive_cq, .. } = &mut pair.a;
        quiet("a send from before the reset completed", || qp.poll(send_cq))?;
        quiet("a receive from before the reset completed", || qp.poll(receive_cq))?;
        let to = pair.b.remote(0)?;
        pair.a.perform(&Write::new(Inline(&[round; 32]), to).signaled())?;
        pair.b.placed(0, &[round; 32], "the arrived bytes")?;
    }
    Ok(())
}

fn failed_qp_and_peer_report_error_state(lab: &Lab) -> Result<(), Stop> {
    let mut pair = Pair::new(lab)?;
    let doomed = refused_write(&pair)?;
    pair.a.qp.post(&doomed, 0)?;
    failed(pair.a.sent()?, WcStatus::RemoteAccess)?;
    // The peer refused, and is in the error state too.
    for end in [&pair.a, &pair.b] {
        until("the error state", || {
            end.qp.object().state().ok().filter(|state| *state == QpState::ERR)
        })?;
    }
    Ok(())
}

fn failed_qp_works_after_reset(lab: &Lab) -> Result<(), Stop> {
    let mut pair = Pair::new(lab)?;
    for round in 0..5u8 {
        let (doomed, to) = (refused_write(&pair)?, pair.b.remote(0)?);
        pair.b.receive(0, 64, 0)?;
        pair.a.qp.post(&doomed, 0)?;
        failed(pair.a.sent()?, WcStatus::RemoteAccess)?;
        failed(pair.b.received()?, WcStatus::Flushed)?;
        pair.restart()?;
        pair.a.perform(&Write::new(Inline(&[round; 32]), to).signaled())?;
        pair.b.placed(0, &[round; 32], "the arrived bytes")?;
    }
    Ok(())
}

fn qp_failure_leaves_other_qps_alone(lab: &Lab) -> Result<(), Stop> {
    let mut good = Pair::new(lab)?;
    let mut bad = Pair::new(lab)?;
    let (doomed, to) = (refused_write(&bad)?, good.b.remote(0)?);
    bad.a.qp.post(&doomed, 0)?;
    for _ in 0..20 {
        good.a.perform(&Write::new(Inline(b"unmoved"), to).signaled())?;
    }
    failed(bad.a.sent()?, WcStatus::RemoteAccess)?;
    Ok(())
}

fn failure_text_names_rkey_wqe_and_syndrome(lab: &Lab) -> Result<(), Stop> {
    let mut pair = Pair::new(lab)?;
    let doomed = refused_write(&pair)?;
    pair.a.qp.post(&doomed, 0)?;
    let Err(error) = pair.a.sent()? else { return Err(Stop::fail("the refused WRITE succeeded")) };
    let text = error.to_string();
    for word in ["remote access", "rkey", "WQE", "syndrome"] {
        ensure!(text.contains(word), "{text:?} does not say {word:?}");
    }
    Ok(())
}
