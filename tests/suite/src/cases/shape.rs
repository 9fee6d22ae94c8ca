//! Messages of every shape: lengths, alignments, scatter/gather lists, inline data.

use verbless_command::KeyAccess;
use verbless_queue::wr::{Inline, PostError, Read, Send, Write};
use verbless_queue::{QpConfig, Region, RemoteAddr, Rkey, Sge};

use crate::case::cases;
use crate::{Lab, Need, Pair, Stop, ensure, ensure_eq, pattern};

cases!(
    "shape",
    "Messages of every shape: lengths, alignments, scatter/gather lists, inline data.":
    inline_data_of_every_length_arrives,
    writes_gather_any_number_of_sges,
    reads_scatter_to_any_number_of_sges,
    sends_scatter_to_any_number_of_sges,
    zero_length_sges_are_skipped,
    zero_length_operation_needs_no_valid_key,
    messages_around_mtu_multiples_arrive,
    writes_reach_every_alignment,
    message_of_16_mib_arrives_whole [Need::Memlock(LARGE_PINNED)],
);

/// A pair with requests as wide as the device allows.
fn pair_with_most_sges(lab: &Lab) -> Result<Pair, Stop> {
    let device = lab.device()?;
    let caps = device.caps();
    let config = QpConfig {
        send_sges: caps.max_send_sges() as u32,
        receive_sges: caps.max_receive_sges() as u32,
        inline: caps.max_inline() as u32,
        ..QpConfig::new(8, 8)
    };
    Pair::with(lab, &config, 64 << 10)
}

fn inline_data_of_every_length_arrives(lab: &Lab) -> Result<(), Stop> {
    let mut pair = pair_with_most_sges(lab)?;
    let max = pair.a.device.caps().max_inline();
    let to = pair.b.remote(3)?;
    for length in 0..=max {
        let data = pattern(length as u8, length);
        pair.a.perform(&Write::new(Inline(&data), to).signaled())?;
        pair.b.placed(3, &data, format!("other data in a WRITE of {length} bytes"))?;
        ensure!(pair.b.bytes(3 + length, 16)? == [0; 16], "more than {length} bytes were written");
    }
    for length in 0..=max {
        let data = pattern(!length as u8, length);
        pair.b.receive(8, max, 0)?;
        pair.a.perform(&Send::new(Inline(&data)).signaled())?;
        ensure_eq!(pair.b.received()??.byte_len() as usize, length, "bytes received");
        ensure!(pair.b.bytes(8, length)? == data, "other data in a SEND of {length} bytes");
    }
    Ok(())
}

/// `count` SGEs of a region, of 1 to 13 bytes, not adjacent and in no order; and their
/// total length.
fn scattered_sges(region: &Region, count: usize) -> Result<(Vec<Sge>, usize), Stop> {
    let mut sges = Vec::new();
    let mut total = 0;
    for piece in 0..count {
        let length = 1 + piece * 5 % 13;
        let slot = piece * 37 % 256;
        sges.push(region.sge(16 * slot, length)?);
        total += length;
    }
    Ok((sges, total))
}

/// The bytes of these SGEs of a region, one after the other.
fn gathered(region: &Region, sges: &[Sge]) -> Result<Vec<u8>, Stop> {
    let mut all = Vec::new();
    for sge in sges {
        let mut bytes = vec![0; sge.length as usize];
        region.read_at((sge.address - region.address()) as usize, &mut bytes)?;
        all.extend(bytes);
    }
    Ok(all)
}

fn writes_gather_any_number_of_sges(lab: &Lab) -> Result<(), Stop> {
    let mut pair = pair_with_most_sges(lab)?;
    pair.a.fill(0, &pattern(1, 4096))?;
    for count in 1..=pair.a.device.caps().max_send_sges() {
        let (sges, _) = scattered_sges(&pair.a.region, count)?;
        let to = pair.b.remote(0)?;
        pair.a.perform(&Write::new(&sges[..], to).signaled())?;
        let expected = gathered(&pair.a.region, &sges)?;
        pair.b.placed(0, &expected, format!("{count} SGEs moved other bytes"))?;
    }
    Ok(())
}

fn reads_scatter_to_any_number_of_sges(lab: &Lab) -> Result<(), Stop> {
    let mut pair = pair_with_most_sges(lab)?;
    for count in 1..=pair.a.device.caps().max_read_sges() {
        let data = pattern(count as u8, 4096);
        pair.b.fill(0, &data)?;
        pair.a.fill(0, &[0; 4096])?;
        let (sges, total) = scattered_sges(&pair.a.region, count)?;
        let from = pair.b.remote(0)?;
        let done = pair.a.perform(&Read::new(&sges[..], from).signaled())?;
        ensure_eq!(done.byte_len() as usize, total, "bytes read");
        let found = gathered(&pair.a.region, &sges)?;
        ensure!(found == data[..total], "{count} SGEs moved other bytes");
    }
    let (sges, _) = scattered_sges(&pair.a.region, pair.a.device.caps().max_read_sges() + 1)?;
    let refused = pair.a.qp.post(&Read::new(&sges[..], pair.b.remote(0)?).signaled(), 0);
    ensure_eq!(refused, Err(PostError::TooManySges), "a READ of one more");
    Ok(())
}

fn sends_scatter_to_any_number_of_sges(lab: &Lab) -> Result<(), Stop> {
    let mut pair = pair_with_most_sges(lab)?;
    for count in 1..=pair.b.device.caps().max_receive_sges() {
        let (sges, total) = scattered_sges(&pair.b.region, count)?;
        let data = pattern(count as u8, total);
        pair.a.fill(0, &data)?;
        pair.b.receive_into(&sges[..], count as u64)?;
        let from = pair.a.sge(0, total)?;
        pair.a.perform(&Send::new(from).signaled())?;
        ensure_eq!(pair.b.received()??.byte_len() as usize, total, "bytes received");
        let found = gathered(&pair.b.region, &sges)?;
        ensure!(found == data, "{count} SGEs moved other bytes");
    }
    Ok(())
}

fn zero_length_sges_are_skipped(lab: &Lab) -> Result<(), Stop> {
    let mut pair = pair_with_most_sges(lab)?;
    pair.a.fill(0, b"one two")?;
    let (one, none, two) = (pair.a.sge(0, 4)?, pair.a.sge(9, 0)?, pair.a.sge(4, 3)?);
    let to = pair.b.remote(0)?;
    pair.a.perform(&Write::new([none, one, none, two, none], to).signaled())?;
    pair.b.placed(0, b"one two\0", "the written bytes")?;
    let (none, some) = (pair.b.sge(0, 0)?, pair.b.sge(100, 7)?);
    pair.b.receive_into([none, some, none], 0)?;
    pair.a.perform(&Send::new([one, none, two]).signaled())?;
    pair.b.received()??;
    ensure_eq!(pair.b.bytes(100, 8)?, b"one two\0", "the received bytes");
    Ok(())
}

fn zero_length_operation_needs_no_valid_key(lab: &Lab) -> Result<(), Stop> {
    let mut pair = Pair::new(lab)?;
    let (none, wild) = (pair.a.sge(0, 0)?, RemoteAddr::new(0x1234, Rkey(0xdead_be00)));
    pair.a.perform(&Write::new(none, wild).signaled())?;
    pair.a.perform(&Read::new(none, wild).signaled())?;
    Ok(())
}

fn messages_around_mtu_multiples_arrive(lab: &Lab) -> Result<(), Stop> {
    let mut pair = Pair::new(lab)?;
    let mtu = pair.a.device.query_port(1)?.active_mtu().unwrap_or(1024) as usize;
    for packets in [1, 2, 3, 7] {
        for length in packets * mtu - 1..=packets * mtu + 1 {
            let data = pattern(packets as u8, length);
            pair.a.fill(0, &data)?;
            pair.b.receive(32 << 10, length, 0)?;
            let (from, to) = (pair.a.sge(0, length)?, pair.b.remote(0)?);
            pair.a.qp.post(&Write::new(from, to), 0)?;
            pair.a.perform(&Send::new(from).signaled())?;
            ensure_eq!(pair.b.received()??.byte_len() as usize, length, "bytes received");
            ensure!(pair.b.bytes(0, length)? == data, "a WRITE of {length} bytes");
            ensure!(pair.b.bytes(32 << 10, length)? == data, "a SEND of {length} bytes");
        }
    }
    Ok(())
}

fn writes_reach_every_alignment(lab: &Lab) -> Result<(), Stop> {
    let mut pair = Pair::new(lab)?;
    let data = pattern(7, 64);
    pair.a.fill(0, &data)?;
    for source in 0..9 {
        for target in 0..9 {
            pair.b.fill(0, &[0; 64])?;
            let (from, to) = (pair.a.sge(source, 21)?, pair.b.remote(target)?);
            pair.a.perform(&Write::new(from, to).signaled())?;
            let mut expected = [0; 64];
            expected[target..target + 21].copy_from_slice(&data[source..source + 21]);
            pair.b.placed(0, &expected, format!("from {source} to {target}"))?;
        }
    }
    Ok(())
}

const LARGE: usize = 16 << 20;

/// Bytes that a case pins for a region of [`LARGE`] bytes on each side, its queues and the rest.
const LARGE_PINNED: u64 = 2 * LARGE as u64 + (1 << 20);

/// Two regions of [`LARGE`] bytes, of a and b, the first one with a pattern.
fn large_regions(pair: &Pair) -> Result<(Region, Region, Vec<u8>), Stop> {
    let (here, there) = (
        pair.a.domain.region(LARGE, KeyAccess::ALL)?,
        pair.b.domain.region(LARGE, KeyAccess::ALL)?,
    );
    // The bytes at 64 Ki and at 0 differ: the pattern has a long period.
    let data: Vec<u8> =
        (0..LARGE as u32).map(|at| (at.wrapping_mul(0x9e37_79b1) >> 24) as u8).collect();
    Ok((here, there, data))
}

fn bytes(region: &Region) -> Result<Vec<u8>, Stop> {
    let mut found = vec![0; region.len()];
    region.read_at(0, &mut found)?;
    Ok(found)
}

fn message_of_16_mib_arrives_whole(lab: &Lab) -> Result<(), Stop> {
    let mut pair = Pair::new(lab)?;
    let (here, there, data) = large_regions(&pair)?;
    here.write_at(0, &data)?;
    let at = there.remote(0, 0)?;
    pair.a.perform(&Write::new(here.sge(0, LARGE)?, at).signaled())?;
    ensure!(bytes(&there)? == data, "other data was written");
    here.write_at(0, &vec![0; LARGE])?;
    let done = pair.a.perform(&Read::new(here.sge(0, LARGE)?, at).signaled())?;
    ensure_eq!(done.byte_len() as usize, LARGE, "bytes read");
    ensure!(bytes(&here)? == data, "other data was read");
    there.write_at(0, &vec![0; LARGE])?;
    pair.b.receive_into(there.sge(0, LARGE)?, 0)?;
    pair.a.perform(&Send::new(here.sge(0, LARGE)?).signaled())?;
    ensure_eq!(pair.b.received()??.byte_len() as usize, LARGE, "bytes received");
    ensure!(bytes(&there)? == data, "other data was received");
    Ok(())
}
