//! Two live programs, by service: UC, UD, several QPs of one SRQ, immediates, compare and swap.

use verbless_command::QKey;
use verbless_queue::address::GRH_BYTES;
use verbless_queue::wr::{CompareSwap, Inline, Send, SendImm, Write, WriteImm};
use verbless_queue::{
    ConnectOptions, CqConfig, DatagramOptions, PeerAddress, QpConfig, Rc, SrqConfig, Uc, Ud,
};

use super::link::{connect, connect_qp, endpoint, endpoint_of, introduce, meet, read};
use crate::need::{SRQ, cap};
use crate::roles::case::Case;
use crate::roles::role::Role;
use crate::{Endpoint, Need, Stop, ensure, ensure_eq, pattern, quiet, until};

pub(super) fn cases() -> Vec<Case> {
    let datagrams = |name, a, b| Case::new(name, a, b).needs(cap!(ud)).needs(Need::Lossless);
    vec![
        Case::new("uc_messages_and_writes_arrive", sends_by_uc, receives_by_uc)
            .needs(cap!(uc))
            .needs(Need::Lossless),
        datagrams("datagrams_up_to_port_mtu_arrive", sends_datagrams, receives_datagrams),
        datagrams("datagram_with_wrong_qkey_is_dropped", uses_wrong_key, hears_right_key),
        Case::new("qps_of_one_srq_get_messages_of_two_senders", sends_by_two, shares_receives)
            .needs(SRQ),
        Case::new("immediates_arrive_with_their_data", sends_immediates, gets_immediates),
        Case::new("compare_and_swap_changes_word_of_peer_once", swaps, has_word)
            .needs(Need::Cap("atomics", |caps| caps.atomics)),
    ]
}

/// Message lengths. 4096 is a multiple of every path MTU, so 4095 to 4097 straddle a packet
/// boundary at each.
const LENGTHS: [usize; 9] = [1, 64, 255, 256, 257, 4095, 4096, 4097, 100_000];

fn sends_by_uc(role: &mut Role) -> Result<(), Stop> {
    let mut end = endpoint_of::<Uc>(role)?;
    let there = connect(role, &mut end, &ConnectOptions::default())?;
    for length in LENGTHS {
        end.fill(0, &pattern(length as u8, length))?;
        // The receive is posted.
        meet(role, b"next")?;
        let from = end.sge(0, length)?;
        end.perform(&Send::new(from).signaled())?;
        meet(role, b"got")?;
        end.perform(&Write::new(from, there).signaled())?;
        // UC has no ACKs: the receive of the SEND shows that the WRITE before it has landed.
        meet(role, b"last")?;
        end.perform(&Send::new(Inline(b"written")).signaled())?;
    }
    meet(role, b"end")
}

fn receives_by_uc(role: &mut Role) -> Result<(), Stop> {
    let mut end = endpoint_of::<Uc>(role)?;
    connect(role, &mut end, &ConnectOptions::default())?;
    let at = super::link::BYTES / 2;
    for length in LENGTHS {
        end.receive(at, length, 1)?;
        meet(role, b"next")?;
        ensure_eq!(end.received()??.byte_len() as usize, length, "bytes of the message");
        ensure!(end.bytes(at, length)? == pattern(length as u8, length), "other bytes arrived");
        end.receive(at, 64, 2)?;
        meet(role, b"got")?;
        meet(role, b"last")?;
        end.received()??;
        ensure!(end.bytes(0, length)? == pattern(length as u8, length), "other bytes are written");
    }
    meet(role, b"end")
}

const KEY: QKey = QKey(0x1122_3344);
/// Bytes of a UD receive buffer: the GRH and 4096 bytes of payload.
const SLOT: usize = GRH_BYTES + 4096;

/// An end that sends and receives datagrams, and the address of the other role's.
fn datagram_end(role: &mut Role) -> Result<(Endpoint<Ud>, PeerAddress), Stop> {
    let mut end = endpoint_of::<Ud>(role)?;
    end.qp.start(&DatagramOptions::new(KEY))?;
    introduce(role, &end, &ConnectOptions::default())?;
    let (peer, _) = read(&role.message()?)?;
    Ok((end, peer))
}

/// The lengths of datagrams that both ports carry.
fn datagram_lengths(end: &Endpoint<Ud>) -> Result<Vec<usize>, Stop> {
    let longest = end.domain.max_datagram_bytes(1)? as usize;
    Ok([1, 64, 255, 1024, 2048, 4096].into_iter().filter(|&it| it <= longest).collect())
}

fn sends_datagrams(role: &mut Role) -> Result<(), Stop> {
    let (mut end, peer) = datagram_end(role)?;
    let to = end.domain.destination(&peer, KEY, &ConnectOptions::default())?;
    let longest = datagram_lengths(&end)?.last().copied().unwrap_or(0) as u32;
    role.send(&longest.to_be_bytes())?;
    let theirs: [u8; 4] = role.message()?.try_into().unwrap_or_default();
    let longest = longest.min(u32::from_be_bytes(theirs)) as usize;
    for length in datagram_lengths(&end)?.into_iter().filter(|&it| it <= longest) {
        end.fill(0, &pattern(length as u8, length))?;
        meet(role, b"next")?;
        let from = end.sge(0, length)?;
        end.perform(&Send::new(from).signaled().to(&to))?;
        meet(role, b"got")?;
    }
    Ok(())
}

fn receives_datagrams(role: &mut Role) -> Result<(), Stop> {
    let (mut end, peer) = datagram_end(role)?;
    let longest = datagram_lengths(&end)?.last().copied().unwrap_or(0) as u32;
    role.send(&longest.to_be_bytes())?;
    let theirs: [u8; 4] = role.message()?.try_into().unwrap_or_default();
    let longest = longest.min(u32::from_be_bytes(theirs)) as usize;
    for length in datagram_lengths(&end)?.into_iter().filter(|&it| it <= longest) {
        end.receive(0, SLOT, 1)?;
        meet(role, b"next")?;
        let Endpoint { qp, receive_cq, .. } = &mut end;
        let got = until("a datagram", || qp.poll_datagram(receive_cq))??;
        ensure_eq!(got.message_len() as usize, length, "bytes of the datagram");
        let source = got.source.map(|source| source.qpn());
        ensure_eq!(source, Some(peer.qpn), "number of its sender");
        let bytes = end.bytes(GRH_BYTES, length)?;
        ensure!(bytes == pattern(length as u8, length), "other bytes arrived");
        meet(role, b"got")?;
    }
    Ok(())
}

fn uses_wrong_key(role: &mut Role) -> Result<(), Stop> {
    let (mut end, peer) = datagram_end(role)?;
    let options = ConnectOptions::default();
    meet(role, b"ready")?;
    let to = end.domain.destination(&peer, QKey(KEY.0 ^ 1), &options)?;
    end.perform(&Send::new(Inline(b"wrong")).signaled().to(&to))?;
    meet(role, b"sent")?;
    meet(role, b"again")?;
    let to = end.domain.destination(&peer, KEY, &options)?;
    end.perform(&Send::new(Inline(b"right")).signaled().to(&to))?;
    meet(role, b"end")
}

fn hears_right_key(role: &mut Role) -> Result<(), Stop> {
    let (mut end, _) = datagram_end(role)?;
    end.receive(0, SLOT, 1)?;
    meet(role, b"ready")?;
    meet(role, b"sent")?;
    let Endpoint { qp, receive_cq, .. } = &mut end;
    quiet("a datagram arrived", || qp.poll(receive_cq))?;
    meet(role, b"again")?;
    end.received()??;
    ensure_eq!(end.bytes(GRH_BYTES, 5)?, b"right", "the message");
    meet(role, b"end")
}

/// Messages of each sender.
const EACH: u64 = 100;
/// Receives of the SRQ.
const RECEIVES: u32 = 15;

/// Connects each of these queue pairs to one of the other role's, in order.
fn connect_both(role: &mut Role, ends: &mut [Endpoint; 2]) -> Result<(), Stop> {
    for end in ends {
        connect(role, end, &ConnectOptions::default())?;
    }
    Ok(())
}

fn sends_by_two(role: &mut Role) -> Result<(), Stop> {
    let mut ends = [endpoint(role)?, endpoint(role)?];
    connect_both(role, &mut ends)?;
    for number in 0..EACH {
        for (sender, end) in ends.iter_mut().enumerate() {
            let text = [sender as u64, number].map(u64::to_be_bytes).concat();
            end.perform(&Send::new(Inline(&text)).signaled())?;
        }
    }
    meet(role, b"end")
}

fn shares_receives(role: &mut Role) -> Result<(), Stop> {
    let Endpoint { domain, region, .. } = endpoint(role)?;
    let mut receives = domain.srq(&SrqConfig::new(RECEIVES))?;
    let send_cq = domain.completion_queue(&CqConfig::new(128))?;
    let options = ConnectOptions::default();
    let mut ends = Vec::new();
    for _ in 0..2 {
        let cq = domain.completion_queue(&CqConfig::new(128))?;
        let config = QpConfig::new(16, 0);
        let qp = domain.queue_pair_with_srq::<Rc>(&config, &send_cq, &cq, &receives)?;
        ends.push((qp, cq));
    }
    let slot = |cookie: u64| 64 * cookie as usize;
    for cookie in 0..RECEIVES.into() {
        receives.post(region.sge(slot(cookie), 64)?, cookie)?;
    }
    for (qp, _) in &mut ends {
        connect_qp(role, &domain, qp, &region, &options)?;
        meet(role, b"connected")?;
    }
    let mut next = [0; 2];
    while next.iter().sum::<u64>() < 2 * EACH {
        let (receiver, done) = until("a message", || {
            ends.iter_mut().enumerate().find_map(|(at, (_, cq))| Some((at, cq.poll()?)))
        })?;
        let done = receives.complete(done);
        let cookie = done?.cookie;
        let mut text = [0; 16];
        region.read_at(slot(cookie), &mut text)?;
        let expected = [receiver as u64, next[receiver]].map(u64::to_be_bytes).concat();
        ensure_eq!(text[..], expected[..], "message of a sender");
        next[receiver] += 1;
        receives.post(region.sge(slot(cookie), 64)?, cookie)?;
    }
    meet(role, b"end")
}

fn sends_immediates(role: &mut Role) -> Result<(), Stop> {
    let mut end = endpoint(role)?;
    let there = connect(role, &mut end, &ConnectOptions::default())?;
    end.fill(0, &pattern(1, 5000))?;
    let from = end.sge(0, 5000)?;
    meet(role, b"ready")?;
    end.perform(&SendImm::new(from, 0xdead_beef).signaled())?;
    end.perform(&WriteImm::new(from, there, 0x0102_0304).signaled())?;
    meet(role, b"end")
}

fn gets_immediates(role: &mut Role) -> Result<(), Stop> {
    let mut end = endpoint(role)?;
    connect(role, &mut end, &ConnectOptions::default())?;
    let at = super::link::BYTES / 2;
    end.receive(at, 8192, 1)?;
    end.receive(at, 0, 2)?;
    meet(role, b"ready")?;
    for (cookie, immediate, offset) in [(1, 0xdead_beef, at), (2, 0x0102_0304, 0)] {
        let done = end.received()??;
        ensure_eq!((done.cookie, done.immediate()), (cookie, Some(immediate)), "a receive");
        ensure_eq!(done.byte_len(), 5000, "its bytes");
        ensure!(end.bytes(offset, 5000)? == pattern(1, 5000), "other bytes arrived");
    }
    meet(role, b"end")
}

fn swaps(role: &mut Role) -> Result<(), Stop> {
    let mut end = endpoint(role)?;
    let there = connect(role, &mut end, &ConnectOptions::default())?;
    let old = end.sge(64, 8)?;
    // The first swap finds the word, the second one does not.
    for (before, new) in [(0, 7), (7, 9)] {
        end.perform(&CompareSwap::new(old, there, 0, new).signaled())?;
        ensure_eq!(end.bytes(64, 8)?, u64::to_ne_bytes(before), "the word before");
    }
    meet(role, b"end")
}

fn has_word(role: &mut Role) -> Result<(), Stop> {
    let mut end = endpoint(role)?;
    connect(role, &mut end, &ConnectOptions::default())?;
    meet(role, b"end")?;
    ensure_eq!(end.bytes(0, 8)?, u64::to_ne_bytes(7), "the word");
    Ok(())
}
