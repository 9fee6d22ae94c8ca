//! UMR: keys whose memory and rights change while queues run.

use verbless_command::{KeyAccess, RemoteAccess};
use verbless_prm::QpState;
use verbless_queue::wr::{
    CompareSwap, FetchAdd, Inline, LocalInvalidate, PostError, Read, Send, SendInvalidate, Umr,
    Write,
};
use verbless_queue::{
    ConnectOptions, Lkey, QpConfig, RemoteAddr, Rkey, Sge, UmrKey, WcOpcode, WcStatus,
};

use crate::case::cases;
use crate::need::{ATOMICS, cap};
use crate::{Lab, Pair, Stop, ensure, ensure_eq, failed, pattern};

cases!(
    "umr",
    "UMR: keys whose memory and rights change while queues run.",
    needs [cap!(!umr_indirect_mkey_disabled)]:
    mapped_mkey_is_one_range_over_klms,
    mapped_mkey_works_as_lkey,
    mapped_mkey_may_start_at_any_address [crate::Need::Lossless],
    atomics_reach_memory_under_mapped_mkey
        [ATOMICS, cap!(!umr_modify_atomic_disabled)],
    unmapped_mkey_gives_no_access,
    remapped_mkey_revokes_old_rkey [crate::Need::Lossless],
    request_after_umr_sees_the_change,
    klm_list_may_be_in_memory [cap!(umr_ptr_rlky)],
    klm_lists_of_every_length_wrap_the_sq [cap!(max_wqe_sz_sq >= 1024)],
    mapped_mkeys_nest,
    rights_change_keeps_mapping [crate::Need::Lossless],
    access_past_klms_fails [crate::Need::Lossless],
    klm_contributes_only_local_rights,
    invalidated_mkey_gives_no_access_until_remapped [crate::Need::Lossless],
    send_invalidate_revokes_permitting_mkey [crate::Need::Lossless],
    send_invalidate_fails_on_protected_mkey,
    klms_above_mkey_capacity_are_rejected,
    umr_on_mkey_of_another_pd_fails,
    region_mkey_rejects_umr_and_invalidate,
    invalid_umr_is_rejected_at_post,
);

/// All rights but atomics: every device with UMR can give them.
pub(super) const SHARED: KeyAccess = KeyAccess::READ_WRITE;
/// Bytes of a region.
const BYTES: usize = 64 << 10;

/// Two sides; `b` has a UMR key.
fn pair(lab: &Lab, klms: u32) -> Result<(Pair, UmrKey), Stop> {
    let config = QpConfig { sends: 64, ..QpConfig::new(64, 16) };
    let options = ConnectOptions {
        ack_timeout: 8,
        retry_count: 1,
        rnr_retry: 2,
        min_rnr_timer: 1,
        ..Default::default()
    };
    let pair = Pair::connected(lab, &config, BYTES, &options)?;
    let key = pair.b.domain.umr_key(klms, true)?;
    Ok((pair, key))
}

/// `count` KLMs of `b`'s region, of `length` bytes, in a mixed order.
fn klms(pair: &Pair, count: usize, length: usize) -> Result<Vec<Sge>, Stop> {
    (0..count).map(|at| pair.b.sge((count - 1 - at) * 2 * length, length)).collect()
}

fn map(pair: &mut Pair, key: Rkey, klms: &[Sge]) -> Result<(), Stop> {
    let done = pair.b.perform(&Umr::map(key, SHARED, klms).signaled())?;
    ensure_eq!(done.operation(), WcOpcode::Umr, "operation");
    Ok(())
}

/// The bytes that `a` reads under a key of `b`.
fn read(pair: &mut Pair, at: u64, key: Rkey, length: usize) -> Result<Vec<u8>, Stop> {
    let into = pair.a.sge(0, length)?;
    pair.a.perform(&Read::new(into, RemoteAddr::new(at, key)).signaled())?;
    pair.a.bytes(0, length)
}

/// `a`'s READ under a key of `b` must be refused. Both sides are reconnected.
fn refused(pair: &mut Pair, at: u64, key: Rkey, length: usize) -> Result<(), Stop> {
    let into = pair.a.sge(0, length)?;
    pair.a.qp.post(&Read::new(into, RemoteAddr::new(at, key)).signaled(), 0)?;
    failed(pair.a.sent()?, WcStatus::RemoteAccess)?;
    pair.restart()
}

/// The bytes of the KLMs, concatenated.
fn gathered(pair: &Pair, klms: &[Sge]) -> Result<Vec<u8>, Stop> {
    let mut all = Vec::new();
    for klm in klms {
        let offset = (klm.address - pair.b.region.address()) as usize;
        all.extend(pair.b.bytes(offset, klm.length as usize)?);
    }
    Ok(all)
}

fn mapped_mkey_is_one_range_over_klms(lab: &Lab) -> Result<(), Stop> {
    let (mut pair, mut key) = pair(lab, 8)?;
    pair.b.fill(0, &pattern(3, BYTES))?;
    let klms = klms(&pair, 5, 1000)?;
    let rkey = key.renew();
    map(&mut pair, rkey, &klms)?;
    let whole = gathered(&pair, &klms)?;
    ensure!(read(&mut pair, 0, rkey, 5000)? == whole, "other data in the whole range");
    ensure!(read(&mut pair, 990, rkey, 2020)? == whole[990..3010], "other data in a part");
    let text = pattern(9, 1500);
    pair.a.fill(0, &text)?;
    let from = pair.a.sge(0, text.len())?;
    pair.a.perform(&Write::new(from, RemoteAddr::new(2700, rkey)).signaled())?;
    ensure!(gathered(&pair, &klms)?[2700..4200] == text, "the written bytes");
    Ok(())
}

fn atomics_reach_memory_under_mapped_mkey(lab: &Lab) -> Result<(), Stop> {
    let (mut pair, mut key) = pair(lab, 4)?;
    let klms = klms(&pair, 3, 96)?;
    let rkey = key.renew();
    pair.b.perform(&Umr::map(rkey, KeyAccess::ALL, &klms).signaled())?;
    // In the second KLM, so that the address is not the region's.
    let (old, at) = (pair.a.sge(0, 8)?, RemoteAddr::new(96 + 16, rkey));
    pair.a.perform(&Write::new(Inline(&41_u64.to_ne_bytes()), at).signaled())?;
    pair.a.perform(&FetchAdd::new(old, at, 1).signaled())?;
    ensure_eq!(pair.a.bytes(0, 8)?, 41_u64.to_ne_bytes(), "old value");
    pair.a.perform(&CompareSwap::new(old, at, 42, 7).signaled())?;
    ensure_eq!(gathered(&pair, &klms)?[112..120], 7_u64.to_ne_bytes(), "new value");
    // The same memory under a key without the right.
    let rkey = key.renew();
    map(&mut pair, rkey, &klms)?;
    pair.a.qp.post(&FetchAdd::new(old, RemoteAddr::new(112, rkey), 1).signaled(), 1)?;
    failed(pair.a.sent()?, WcStatus::RemoteAccess)?;
    ensure_eq!(gathered(&pair, &klms)?[112..120], 7_u64.to_ne_bytes(), "the unchanged value");
    Ok(())
}

fn mapped_mkey_works_as_lkey(lab: &Lab) -> Result<(), Stop> {
    let (mut pair, mut key) = pair(lab, 4)?;
    let klms = klms(&pair, 3, 100)?;
    let rkey = key.renew();
    map(&mut pair, rkey, &klms)?;
    let text = pattern(4, 300);
    pair.a.fill(0, &text)?;
    // `b` receives through the key, and sends back through it.
    pair.b.receive_into(Sge::new(0, 300, key.lkey()), 1)?;
    let from = pair.a.sge(0, 300)?;
    pair.a.perform(&Send::new(from).signaled())?;
    ensure_eq!(pair.b.received()??.byte_len(), 300, "bytes received");
    ensure!(gathered(&pair, &klms)? == text, "the arrived bytes");
    pair.a.receive(1000, 300, 2)?;
    pair.b.perform(&Send::new(Sge::new(0, 300, key.lkey())).signaled())?;
    pair.a.received()??;
    ensure!(pair.a.bytes(1000, 300)? == text, "the returned bytes");
    Ok(())
}

fn mapped_mkey_may_start_at_any_address(lab: &Lab) -> Result<(), Stop> {
    let (mut pair, mut key) = pair(lab, 4)?;
    pair.b.fill(0, &pattern(1, BYTES))?;
    let klms = klms(&pair, 2, 64)?;
    for start in [1, 0x1_2345_6789, 1 << 62] {
        let rkey = key.renew();
        let request = Umr::map(rkey, SHARED, &klms).starting_at(start).signaled();
        pair.b.perform(&request)?;
        let whole = gathered(&pair, &klms)?;
        ensure!(read(&mut pair, start + 60, rkey, 8)? == whole[60..68], "at {start:#x}");
        refused(&mut pair, start - 1, rkey, 8)?;
    }
    Ok(())
}

fn unmapped_mkey_gives_no_access(lab: &Lab) -> Result<(), Stop> {
    let (mut pair, key) = pair(lab, 4)?;
    // Key 0 is refused, too: the case must show that this key is refused.
    ensure_eq!((key.rkey().0, key.lkey().0), (key.mkey().rkey().0, key.mkey().lkey().0), "keys");
    ensure!(key.rkey().0 >> 8 != 0, "a key without an index: {:#x}", key.rkey().0);
    refused(&mut pair, 0, key.rkey(), 8)?;
    pair.b.qp.post(&Send::new(Sge::new(0, 8, key.lkey())), 3)?;
    ensure_eq!(failed(pair.b.sent()?, WcStatus::LocalProtection)?, 3, "cookie");
    Ok(())
}

fn remapped_mkey_revokes_old_rkey(lab: &Lab) -> Result<(), Stop> {
    let (mut pair, mut key) = pair(lab, 4)?;
    let mut before = None;
    for round in 0..20 {
        let at = 64 * round;
        pair.b.fill(at, &pattern(round as u8, 64))?;
        let klm = pair.b.sge(at, 64)?;
        let rkey = key.renew();
        map(&mut pair, rkey, &[klm])?;
        ensure!(read(&mut pair, 0, rkey, 64)? == pattern(round as u8, 64), "round {round}");
        if let Some(stale) = before.replace(rkey) {
            refused(&mut pair, 0, stale, 64)?;
        }
    }
    Ok(())
}

fn request_after_umr_sees_the_change(lab: &Lab) -> Result<(), Stop> {
    let (mut pair, mut key) = pair(lab, 4)?;
    for round in 0..50u8 {
        let at = 64 * usize::from(round);
        pair.b.fill(at, &[round; 64])?;
        let (klm, to) = ([pair.b.sge(at, 64)?], pair.a.remote(4096)?);
        let rkey = key.renew();
        let mut batch = pair.b.qp.batch();
        batch.post(&Umr::map(rkey, SHARED, &klm), 0)?;
        let through = Sge::new(0, 64, Lkey(rkey.0));
        batch.post(&Write::new(through, to).signaled(), 1)?;
        batch.ring();
        pair.b.sent()??;
        ensure_eq!(pair.a.bytes(4096, 64)?, [round; 64], "the arrived bytes");
    }
    Ok(())
}

fn klm_list_may_be_in_memory(lab: &Lab) -> Result<(), Stop> {
    let (mut pair, mut key) = pair(lab, 200)?;
    pair.b.fill(0, &pattern(5, BYTES))?;
    let klms = klms(&pair, 99, 100)?;
    let list = pair.b.domain.region(8192, KeyAccess::LOCAL_READ)?;
    for (at, klm) in klms.iter().enumerate() {
        list.write_at(at * Umr::ENTRY_BYTES, &Umr::entry(klm))?;
    }
    let rkey = key.renew();
    let at = list.sge(0, 100 * Umr::ENTRY_BYTES)?;
    pair.b.perform(&Umr::map_from(rkey, SHARED, at, 9900).signaled())?;
    let whole = gathered(&pair, &klms)?;
    ensure!(read(&mut pair, 0, rkey, 9900)? == whole, "other bytes were read");
    refused(&mut pair, 1, rkey, 9900)
}

fn klm_lists_of_every_length_wrap_the_sq(lab: &Lab) -> Result<(), Stop> {
    let (mut pair, mut key) = pair(lab, Umr::MAX_INLINE as u32)?;
    pair.b.fill(0, &pattern(6, BYTES))?;
    for count in (1..=Umr::MAX_INLINE).chain([1, 51, 7, 52, 13]) {
        let klms = klms(&pair, count, 16)?;
        let rkey = key.renew();
        map(&mut pair, rkey, &klms)?;
        let whole = gathered(&pair, &klms)?;
        ensure!(read(&mut pair, 0, rkey, whole.len())? == whole, "{count} KLMs");
    }
    Ok(())
}

fn mapped_mkeys_nest(lab: &Lab) -> Result<(), Stop> {
    let (mut pair, mut inner) = pair(lab, 4)?;
    pair.b.fill(0, &pattern(8, BYTES))?;
    let klms = klms(&pair, 4, 100)?;
    let below = inner.renew();
    map(&mut pair, below, &klms)?;
    let mut outer = pair.b.domain.umr_key(4, false)?;
    let above = outer.renew();
    let parts = [Sge::new(250, 100, inner.lkey()), Sge::new(10, 20, inner.lkey())];
    let request = Umr::map(above, SHARED, &parts).signaled();
    pair.b.perform(&request)?;
    let whole = gathered(&pair, &klms)?;
    let expected = [&whole[250..350], &whole[10..30]].concat();
    ensure!(read(&mut pair, 0, above, 120)? == expected, "other bytes were read");
    Ok(())
}

fn rights_change_keeps_mapping(lab: &Lab) -> Result<(), Stop> {
    let (mut pair, mut key) = pair(lab, 4)?;
    let text = pattern(2, 64);
    pair.b.fill(0, &text)?;
    let klm = pair.b.sge(0, 64)?;
    let rkey = key.renew();
    map(&mut pair, rkey, &[klm])?;
    let read_only =
        KeyAccess { remote: RemoteAccess { read: true, ..Default::default() }, ..KeyAccess::LOCAL };
    pair.b.perform(&Umr::access_flags(rkey, read_only).signaled())?;
    ensure!(read(&mut pair, 0, rkey, 64)? == text, "the mapping changed");
    pair.a.qp.post(&Write::new(Inline(b"may I?"), RemoteAddr::new(0, rkey)), 4)?;
    ensure_eq!(failed(pair.a.sent()?, WcStatus::RemoteAccess)?, 4, "cookie");
    pair.restart()?;
    pair.b.perform(&Umr::access_flags(rkey, SHARED).signaled())?;
    pair.a.perform(&Write::new(Inline(b"now I may"), RemoteAddr::new(0, rkey)).signaled())?;
    pair.b.placed(0, b"now I may", "the written bytes")?;
    pair.b.perform(&Umr::access_flags(rkey, KeyAccess::LOCAL).signaled())?;
    refused(&mut pair, 0, rkey, 8)
}

fn access_past_klms_fails(lab: &Lab) -> Result<(), Stop> {
    let (mut pair, mut key) = pair(lab, 4)?;
    let klms = klms(&pair, 3, 10)?;
    let rkey = key.renew();
    map(&mut pair, rkey, &klms)?;
    read(&mut pair, 29, rkey, 1)?;
    for (at, length) in [(29, 2), (30, 1), (1 << 40, 1), (0, 31)] {
        refused(&mut pair, at, rkey, length)?;
    }
    Ok(())
}

fn klm_contributes_only_local_rights(lab: &Lab) -> Result<(), Stop> {
    let (mut pair, mut key) = pair(lab, 4)?;
    // The key that the peer names gives the remote rights: a KLM need not have them. It must be
    // writable for a write.
    let (quiet, constant) = (KeyAccess::LOCAL, KeyAccess::LOCAL_READ);
    let quiet = pair.b.domain.region(4096, quiet)?;
    let constant = pair.b.domain.region(4096, constant)?;
    let rkey = key.renew();
    map(&mut pair, rkey, &[quiet.sge(0, 64)?, constant.sge(0, 64)?])?;
    read(&mut pair, 60, rkey, 8)?;
    let from = pair.a.sge(0, 64)?;
    pair.a.perform(&Write::new(from, RemoteAddr::new(0, rkey)).signaled())?;
    let from = pair.a.sge(0, 8)?;
    pair.a.qp.post(&Write::new(from, RemoteAddr::new(60, rkey)).signaled(), 0)?;
    failed(pair.a.sent()?, WcStatus::RemoteAccess)?;
    pair.restart()?;
    // A KLM whose range exceeds its key.
    let end = pair.b.region.address() + BYTES as u64;
    let rkey = key.renew();
    let beyond = Sge { address: end - 32, ..pair.b.sge(0, 64)? };
    map(&mut pair, rkey, &[beyond])?;
    read(&mut pair, 0, rkey, 32)?;
    refused(&mut pair, 0, rkey, 33)
}

fn invalidated_mkey_gives_no_access_until_remapped(lab: &Lab) -> Result<(), Stop> {
    let (mut pair, mut key) = pair(lab, 4)?;
    let klm = pair.b.sge(0, 64)?;
    for _ in 0..5 {
        let rkey = key.renew();
        map(&mut pair, rkey, &[klm])?;
        read(&mut pair, 0, rkey, 64)?;
        let done = pair.b.perform(&LocalInvalidate::new(rkey).signaled())?;
        ensure_eq!(done.operation(), WcOpcode::Umr, "operation");
        refused(&mut pair, 0, rkey, 8)?;
    }
    Ok(())
}

fn send_invalidate_revokes_permitting_mkey(lab: &Lab) -> Result<(), Stop> {
    let (mut pair, mut key) = pair(lab, 4)?;
    let klm = pair.b.sge(0, 64)?;
    for _ in 0..3 {
        let rkey = key.renew();
        map(&mut pair, rkey, &[klm])?;
        pair.b.receive(1024, 64, 1)?;
        pair.a.perform(&SendInvalidate::new(Inline(b"I am done"), rkey).signaled())?;
        let done = pair.b.received()??;
        ensure_eq!(done.operation(), WcOpcode::ReceiveInvalidate, "operation");
        ensure_eq!((done.invalidated(), done.byte_len()), (Some(rkey), 9), "completion");
        refused(&mut pair, 0, rkey, 8)?;
    }
    Ok(())
}

fn send_invalidate_fails_on_protected_mkey(lab: &Lab) -> Result<(), Stop> {
    let (mut pair, _) = pair(lab, 4)?;
    let mut closed = pair.b.domain.umr_key(4, false)?;
    let klm = pair.b.sge(0, 64)?;
    let rkey = closed.renew();
    map(&mut pair, rkey, &[klm])?;
    pair.b.receive(1024, 64, 1)?;
    pair.a.qp.post(&SendInvalidate::new(Inline(b"I am done"), rkey), 5)?;
    ensure_eq!(failed(pair.a.sent()?, WcStatus::RemoteAccess)?, 5, "cookie");
    pair.restart()?;
    read(&mut pair, 0, rkey, 64)?;
    Ok(())
}

/// A UMR that `b`'s device must refuse.
fn unchanged(pair: &mut Pair, key: Rkey, klms: &[Sge]) -> Result<(), Stop> {
    pair.b.qp.post(&Umr::map(key, SHARED, klms), 6)?;
    ensure_eq!(failed(pair.b.sent()?, WcStatus::MemoryWindowBind)?, 6, "cookie");
    ensure_eq!(pair.b.qp.object().state()?, QpState::ERR, "state");
    pair.restart()
}

fn klms_above_mkey_capacity_are_rejected(lab: &Lab) -> Result<(), Stop> {
    let (mut pair, mut key) = pair(lab, 4)?;
    let klms = klms(&pair, 5, 16)?;
    let rkey = key.renew();
    map(&mut pair, rkey, &klms[..4])?;
    let next = key.renew();
    unchanged(&mut pair, next, &klms)?;
    ensure_eq!(read(&mut pair, 0, rkey, 64)?.len(), 64, "the memory under the name that it kept");
    Ok(())
}

fn umr_on_mkey_of_another_pd_fails(lab: &Lab) -> Result<(), Stop> {
    let (mut pair, _) = pair(lab, 4)?;
    let other = verbless_queue::Domain::new(&pair.b.device)?;
    let mut foreign = other.umr_key(4, true)?;
    let klm = pair.b.sge(0, 64)?;
    unchanged(&mut pair, foreign.renew(), &[klm])
}

fn region_mkey_rejects_umr_and_invalidate(lab: &Lab) -> Result<(), Stop> {
    let (mut pair, _) = pair(lab, 4)?;
    let rkey = pair.b.remote(0)?.rkey;
    pair.b.qp.post(&LocalInvalidate::new(rkey), 6)?;
    ensure_eq!(failed(pair.b.sent()?, WcStatus::MemoryWindowBind)?, 6, "cookie");
    pair.restart()?;
    let klm = pair.b.sge(0, 64)?;
    unchanged(&mut pair, rkey, &[klm])?;
    let address = pair.b.region.address();
    read(&mut pair, address, rkey, 64)?;
    Ok(())
}

fn invalid_umr_is_rejected_at_post(lab: &Lab) -> Result<(), Stop> {
    let (mut pair, mut key) = pair(lab, 4)?;
    let (klm, rkey) = (pair.b.sge(0, 16)?, key.renew());
    let many = [klm; Umr::MAX_INLINE + 1];
    let askew = Sge { address: klm.address + 16, length: 64, ..klm };
    let unpaired = KeyAccess { local_write: false, ..SHARED };
    let qp = &mut pair.b.qp;
    let free = qp.send.free();
    let refused = [
        (qp.post(&Umr::map(rkey, SHARED, &many), 0), PostError::TooManyKlms),
        (qp.post(&Umr::map_from(rkey, SHARED, askew, 64), 0), PostError::BadKlmList),
        (qp.post(&Umr::map(rkey, unpaired, &[klm]), 0), PostError::UmrAccess),
        (qp.post(&Umr::access_flags(rkey, unpaired), 0), PostError::UmrAccess),
    ];
    for (got, why) in refused {
        ensure_eq!(got, Err(why), "what cannot be posted");
    }
    ensure_eq!(qp.send.free(), free, "free wqebbs");
    for klms in [0, 65_533] {
        ensure!(pair.b.domain.umr_key(klms, true).is_err(), "{klms} KLMs were taken");
    }
    Ok(())
}
