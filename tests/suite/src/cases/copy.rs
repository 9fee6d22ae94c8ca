//! Copies of memory within the device: queue pairs with `mmo`, connected to themselves.

use std::sync::Arc;

use verbless_command::KeyAccess;
use verbless_queue::wr::{DmaMmo, Fence, Nop, PostError, Read, Request, Scratch, Write};
use verbless_queue::{
    Completion, CompletionError, ConnectOptions, Cq, CqConfig, Domain, Qp, QpConfig, Region, Sge,
    WcOpcode, WcStatus,
};

use crate::case::cases;
use crate::endpoint::until;
use crate::need::{LARGE_COPIES, cap};
use crate::{Lab, Stop, ensure, ensure_eq, failed, pattern};

cases!(
    "copy",
    "Copies of memory within the device, by queue pairs with `mmo`.",
    needs [cap!(dma_mmo_qp)]:
    copy_changes_only_its_destination_range,
    copies_of_any_length_and_alignment_are_exact [LARGE_COPIES],
    batched_copies_complete_in_order,
    copy_gathers_through_indirect_mkey,
    fenced_copy_sees_data_of_prior_read,
    copy_rejects_mkey_of_another_pd,
    read_only_mkey_is_copy_source_only,
    read_only_scratch_fails_with_local_protection,
    copy_past_mkey_end_fails_and_writes_nothing [LARGE_COPIES],
    qp_without_memory_copies_rejects_copy,
    failed_qp_copies_again_after_reset,
    invalid_copy_length_is_rejected_at_post,
);

/// Bytes of a region.
const BYTES: usize = 1 << 20;

/// A region of 64 bytes as the scratch that the device writes while it copies.
pub(super) fn scratch(region: &Region) -> Result<Scratch, Stop> {
    Scratch::new(region.sge(0, 64)?).ok_or_else(|| Stop::fail("a region that is not aligned"))
}

/// A queue pair that is its own peer.
struct Copier {
    domain: Domain,
    qp: Qp,
    cq: Cq,
    from: Arc<Region>,
    to: Region,
    scratch: Region,
}

impl Copier {
    fn new(lab: &Lab) -> Result<Self, Stop> {
        Self::made(lab, true)
    }

    fn made(lab: &Lab, dma_mmo: bool) -> Result<Self, Stop> {
        let domain = Domain::new(&lab.device()?)?;
        let cq = domain.completion_queue(&CqConfig::new(128))?;
        let config = QpConfig { dma_mmo, ..QpConfig::new(32, 4) };
        let mut qp = domain.queue_pair(&config, &cq, &cq)?;
        domain.connect_loopback(&mut qp, &ConnectOptions::default())?;
        let from = Arc::new(domain.region(BYTES, KeyAccess::ALL)?);
        let to = domain.region(BYTES, KeyAccess::ALL)?;
        let scratch = domain.region(64, KeyAccess::LOCAL)?;
        Ok(Self { domain, qp, cq, from, to, scratch })
    }

    fn own(&self) -> Result<Scratch, Stop> {
        scratch(&self.scratch)
    }

    fn copy(&mut self, from: Sge, to: Sge) -> Result<(), Stop> {
        let own = self.own()?;
        self.qp.post(&DmaMmo::new(own, from, to).signaled(), 9)?;
        Ok(())
    }

    fn done(&mut self) -> Result<Result<Completion, CompletionError>, Stop> {
        let Self { qp, cq, .. } = self;
        until("a completion", || qp.poll(cq))
    }

    /// The bytes of a region.
    fn bytes(region: &Region, at: usize, length: usize) -> Result<Vec<u8>, Stop> {
        let mut bytes = vec![0; length];
        region.read_at(at, &mut bytes)?;
        Ok(bytes)
    }

    /// A copy must fail with `status`; then the queue pair is reconnected.
    fn refused(&mut self, from: Sge, to: Sge, status: WcStatus) -> Result<(), Stop> {
        self.copy(from, to)?;
        ensure_eq!(failed(self.done()?, status)?, 9, "cookie");
        self.qp.reset()?;
        Ok(self.domain.connect_loopback(&mut self.qp, &ConnectOptions::default())?)
    }
}

fn copy_changes_only_its_destination_range(lab: &Lab) -> Result<(), Stop> {
    let mut copier = Copier::new(lab)?;
    let text = pattern(3, 5000);
    copier.from.write_at(100, &text)?;
    copier.to.write_at(0, &vec![0xa5; BYTES])?;
    let (from, to) = (copier.from.sge(100, 5000)?, copier.to.sge(3000, 5000)?);
    copier.copy(from, to)?;
    let done = copier.done()??;
    ensure_eq!((done.cookie, done.operation()), (9, WcOpcode::DmaMmo), "completion");
    let mut expected = vec![0xa5; BYTES];
    expected[3000..8000].copy_from_slice(&text);
    ensure!(Copier::bytes(&copier.to, 0, BYTES)? == expected, "the target region");
    ensure!(Copier::bytes(&copier.from, 100, 5000)? == text, "the source changed");
    Ok(())
}

fn copies_of_any_length_and_alignment_are_exact(lab: &Lab) -> Result<(), Stop> {
    let mut copier = Copier::new(lab)?;
    copier.from.write_at(0, &pattern(7, BYTES))?;
    for (at, length) in [(0, 1), (1, 7), (63, 4096), (4095, 2), (5, 70_000), (0, BYTES)] {
        let to_at = (BYTES - length).min(at * 3);
        copier.to.write_at(0, &vec![0; BYTES])?;
        let (from, to) = (copier.from.sge(at, length)?, copier.to.sge(to_at, length)?);
        copier.copy(from, to)?;
        copier.done()??;
        let (was, is) =
            (Copier::bytes(&copier.from, at, length)?, Copier::bytes(&copier.to, to_at, length)?);
        ensure!(was == is, "{length} bytes from {at} to {to_at}");
    }
    Ok(())
}

fn batched_copies_complete_in_order(lab: &Lab) -> Result<(), Stop> {
    let mut copier = Copier::new(lab)?;
    copier.from.write_at(0, &pattern(1, 32 * 64))?;
    for round in 0..8 {
        copier.to.write_at(0, &[0; 32 * 64])?;
        let own = copier.own()?;
        let mut batch = copier.qp.batch();
        for at in 0..32 {
            let (from, to) = (copier.from.sge(64 * at, 64)?, copier.to.sge(64 * (31 - at), 64)?);
            batch.post(&DmaMmo::new(own, from, to).signaled(), at as u64)?;
        }
        batch.ring();
        for at in 0..32 {
            ensure_eq!(copier.done()??.cookie, at, "cookie");
        }
        for at in 0..32 {
            let (was, is) = (
                Copier::bytes(&copier.from, 64 * at, 64)?,
                Copier::bytes(&copier.to, 64 * (31 - at), 64)?,
            );
            ensure!(was == is, "round {round}, copy {at}");
        }
    }
    Ok(())
}

fn copy_gathers_through_indirect_mkey(lab: &Lab) -> Result<(), Stop> {
    let mut copier = Copier::new(lab)?;
    copier.from.write_at(0, &pattern(2, 3000))?;
    // A key over ranges of another key: the device copies through it as through one range.
    let ranges = [2000, 0, 1000].map(|at| (copier.from.clone(), at, 1000));
    let strung = copier.domain.indirect_key(&ranges, KeyAccess::LOCAL)?;
    let to = copier.to.sge(0, 3000)?;
    copier.copy(Sge::new(0, 3000, strung.lkey()), to)?;
    copier.done()??;
    let whole = Copier::bytes(&copier.from, 0, 3000)?;
    let expected = [&whole[2000..], &whole[..1000], &whole[1000..2000]].concat();
    ensure!(Copier::bytes(&copier.to, 0, 3000)? == expected, "the copied bytes");
    Ok(())
}

fn fenced_copy_sees_data_of_prior_read(lab: &Lab) -> Result<(), Stop> {
    let mut copier = Copier::new(lab)?;
    copier.from.write_at(0, &pattern(5, 4096))?;
    let own = copier.own()?;
    // The queue pair is its own peer: the READ brings the bytes that the copy then moves on.
    let (into, onward) = (copier.to.sge(0, 4096)?, copier.to.sge(8192, 4096)?);
    let remote = copier.from.remote(0, 4096)?;
    copier.qp.post(&Read::new(into, remote), 1)?;
    let copy = DmaMmo::new(own, into, onward).fence_with(Fence::Full).signaled();
    copier.qp.post(&copy, 2)?;
    ensure_eq!(copier.done()??.cookie, 2, "cookie");
    ensure!(Copier::bytes(&copier.to, 8192, 4096)? == pattern(5, 4096), "the copied bytes");
    copier.qp.post(&Write::new(onward, remote).signaled(), 3)?;
    copier.qp.post(&Nop::new().signaled(), 4)?;
    ensure_eq!((copier.done()??.cookie, copier.done()??.cookie), (3, 4), "other requests");
    Ok(())
}

fn copy_rejects_mkey_of_another_pd(lab: &Lab) -> Result<(), Stop> {
    let mut copier = Copier::new(lab)?;
    let stranger = Domain::new(copier.domain.device())?.region(4096, KeyAccess::ALL)?;
    stranger.write_at(0, &[7; 64])?;
    let (ours, theirs) = (copier.to.sge(0, 64)?, stranger.sge(0, 64)?);
    copier.refused(theirs, ours, WcStatus::LocalProtection)?;
    copier.refused(ours, theirs, WcStatus::LocalProtection)?;
    ensure_eq!(Copier::bytes(&stranger, 0, 64)?, [7; 64], "the other domain's memory");
    ensure_eq!(Copier::bytes(&copier.to, 0, 64)?, [0; 64], "ours");
    Ok(())
}

fn read_only_mkey_is_copy_source_only(lab: &Lab) -> Result<(), Stop> {
    let mut copier = Copier::new(lab)?;
    let fixed = copier.domain.region(4096, KeyAccess::LOCAL_READ)?;
    fixed.write_at(0, &pattern(1, 64))?;
    let (fixed_sge, to) = (fixed.sge(0, 64)?, copier.to.sge(0, 64)?);
    copier.copy(fixed_sge, to)?;
    copier.done()??;
    ensure!(Copier::bytes(&copier.to, 0, 64)? == pattern(1, 64), "the read bytes");
    let from = copier.from.sge(0, 64)?;
    copier.refused(from, fixed_sge, WcStatus::LocalProtection)?;
    ensure!(
        Copier::bytes(&fixed, 0, 64)? == pattern(1, 64),
        "the refused copy wrote to the fixed region"
    );
    Ok(())
}

fn read_only_scratch_fails_with_local_protection(lab: &Lab) -> Result<(), Stop> {
    let mut copier = Copier::new(lab)?;
    let fixed = copier.domain.region(64, KeyAccess::LOCAL_READ)?;
    let (from, to) = (copier.from.sge(0, 8)?, copier.to.sge(0, 8)?);
    copier.qp.post(&DmaMmo::new(scratch(&fixed)?, from, to), 5)?;
    ensure_eq!(failed(copier.done()?, WcStatus::LocalProtection)?, 5, "cookie");
    Ok(())
}

fn copy_past_mkey_end_fails_and_writes_nothing(lab: &Lab) -> Result<(), Stop> {
    let mut copier = Copier::new(lab)?;
    copier.from.write_at(0, &pattern(1, BYTES))?;
    let past = |region: &Region, length: u32| {
        let end = region.address() + region.len() as u64;
        Sge::new(end - u64::from(length) + 1, length, region.lkey())
    };
    // Long enough for several turns of the model: no turn may begin.
    let length = BYTES - 4096;
    let (from, to) = (copier.from.sge(0, length)?, copier.to.sge(0, length)?);
    let (bad_from, bad_to) = (past(&copier.from, length as u32), past(&copier.to, length as u32));
    copier.refused(bad_from, to, WcStatus::LocalProtection)?;
    copier.refused(from, bad_to, WcStatus::LocalProtection)?;
    ensure!(Copier::bytes(&copier.to, 0, BYTES)? == vec![0; BYTES], "something was written");
    Ok(())
}

fn qp_without_memory_copies_rejects_copy(lab: &Lab) -> Result<(), Stop> {
    let mut copier = Copier::made(lab, false)?;
    let (from, to) = (copier.from.sge(0, 64)?, copier.to.sge(0, 64)?);
    let own = copier.own()?;
    let refused = copier.qp.post(&DmaMmo::new(own, from, to), 9);
    ensure_eq!(refused, Err(PostError::Unsupported), "a post");
    ensure!(copier.qp.send.supports(&DmaMmo::INFO).is_err(), "the SQ supports DmaMmo");
    Ok(())
}

fn failed_qp_copies_again_after_reset(lab: &Lab) -> Result<(), Stop> {
    let mut copier = Copier::new(lab)?;
    copier.from.write_at(0, &pattern(4, 64))?;
    let (from, to) = (copier.from.sge(0, 64)?, copier.to.sge(0, 64)?);
    for _ in 0..3 {
        copier.to.write_at(0, &[0; 64])?;
        let unknown_key = Sge::new(from.address, 64, verbless_queue::Lkey(0));
        copier.refused(unknown_key, to, WcStatus::LocalProtection)?;
        copier.copy(from, to)?;
        copier.done()??;
        ensure!(Copier::bytes(&copier.to, 0, 64)? == pattern(4, 64), "the copied bytes");
    }
    Ok(())
}

fn invalid_copy_length_is_rejected_at_post(lab: &Lab) -> Result<(), Stop> {
    let mut copier = Copier::new(lab)?;
    let own = copier.own()?;
    let (from, to) = (copier.from.sge(0, 64)?, copier.to.sge(0, 64)?);
    let with = |sge: Sge, length: u32| Sge::new(sge.address, length, sge.lkey);
    for (from, to) in [
        (with(from, 0), with(to, 0)),
        (from, with(to, 63)),
        (with(from, 1 << 31), with(to, 1 << 31)),
    ] {
        let refused = copier.qp.post(&DmaMmo::new(own, from, to), 0);
        ensure_eq!(refused, Err(PostError::DmaMmoLength), "{from:?} {to:?}");
    }
    let room = copier.to.sge(0, 65)?;
    for scratch in [with(room, 63), room, Sge::new(room.address + 8, 64, room.lkey)] {
        ensure!(Scratch::new(scratch).is_none(), "scratch of {scratch:?}");
    }
    copier.copy(from, to)?;
    copier.done()??;
    Ok(())
}
