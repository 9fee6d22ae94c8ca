//! Memory of another function of the device, reached through an alias or a crossing key. On a
//! device with one function, that function is both the owner and the user of the memory.

use std::sync::Arc;

use verbless_command::{AliasAttr, Device, KeyAccess, KeyMemory, MkeyAttr, RemoteAccess};
use verbless_devx::ErrorKind;
use verbless_queue::wr::{DmaMmo, FetchAdd, Read, Write};
use verbless_queue::{AccessKey, ConnectOptions, CqConfig, Domain, QpConfig, Sge, WcStatus};

use crate::case::cases;
use crate::endpoint::until;
use crate::need::{ATOMICS, LARGE_COPIES, SHARES_KEYS, cap};
use crate::{Endpoint, Lab, Need, Pair, Stop, ensure, ensure_eq, failed, pattern};

cases!(
    "foreign",
    "Memory of another function of the device, reached by an alias or a crossing key.",
    needs [SHARES_KEYS]:
    alias_reads_and_writes_memory_of_another_function,
    long_messages_cross_functions_intact,
    alias_serves_peer_as_remote_memory,
    atomics_reach_memory_of_another_function [ATOMICS],
    memory_copy_reaches_another_function [cap!(dma_mmo_qp), LARGE_COPIES],
    wrong_access_key_is_rejected,
    unshared_mkey_is_rejected,
    unknown_vhca_is_rejected,
    new_access_key_replaces_old_one,
    alias_fails_after_its_mkey_is_destroyed,
    alias_does_not_reach_reused_mkey_index,
    destroyed_alias_fails_with_local_protection,
    alias_has_access_rights_of_its_mkey,
    alias_ends_at_mkey_bounds,
    alias_is_limited_to_its_pd,
    share_rejects_mkey_of_another_context,
    indirect_mkey_is_shareable,
    host_cannot_import_dpu_memory [Need::Model, Need::Sides],
    crossing_mkey_reaches_crossing_enabled_mkey [cap!(crossing_vhca_mkey)],
    crossing_mkey_rejects_unknown_function [cap!(crossing_vhca_mkey)],
);

const SECRET: AccessKey = AccessKey::new([0x5a; 32]);

/// The owner of the memory and its user: two functions of one device where there are two.
struct Functions {
    pair: Pair,
}

/// Opens and connects both functions; `a` is the owner.
fn functions(lab: &Lab) -> Result<Functions, Stop> {
    let (owner, user) = lab.owner_and_user()?;
    functions_of(owner, user)
}

fn functions_of(owner: Device, user: Device) -> Result<Functions, Stop> {
    let config = QpConfig::new(64, 64);
    let mut pair = Pair {
        a: Endpoint::new(owner, &config, 64 << 10)?,
        b: Endpoint::new(user, &config, 64 << 10)?,
    };
    pair.connect(&ConnectOptions::default())?;
    Ok(Functions { pair })
}

impl Functions {
    /// The user (`b`) posts a WRITE from the owner's memory and a READ into it: `at` makes the
    /// local SGE of an offset and a length there. Checks the bytes.
    fn works(&mut self, at: impl Fn(u64, u32) -> Result<Sge, Stop>) -> Result<(), Stop> {
        let Pair { a, b } = &mut self.pair;
        a.fill(0, &pattern(3, 4096))?;
        // The target is the user's own memory; the queue pair at the other end is the owner's.
        let into = a.remote(32 << 10)?;
        b.perform(&Write::new(at(100, 3000)?, into).signaled())?;
        a.placed(32 << 10, &pattern(3, 4096)[100..3100], "the WRITE took wrong bytes")?;
        a.fill(40 << 10, &pattern(4, 3000))?;
        b.perform(&Read::new(at(8 << 10, 3000)?, a.remote(40 << 10)?).signaled())?;
        ensure!(a.bytes(8 << 10, 3000)? == pattern(4, 3000), "the READ left wrong bytes");
        Ok(())
    }

    /// The error status of a WRITE by the user whose local SGE is `from`; `None` if it succeeds.
    fn reads_from(&mut self, from: Sge) -> Result<Option<WcStatus>, Stop> {
        let Pair { a, b } = &mut self.pair;
        b.qp.post(&Write::new(from, a.remote(0)?).signaled(), 0)?;
        match b.sent()? {
            Ok(_) => Ok(None),
            Err(verbless_queue::CompletionError::Failed(failure)) => Ok(Some(failure.status)),
            Err(error) => Err(error.into()),
        }
    }
}

fn alias_reads_and_writes_memory_of_another_function(lab: &Lab) -> Result<(), Stop> {
    let mut functions = functions(lab)?;
    let Pair { a, b } = &functions.pair;
    let shared = a.domain.share(&a.region, &SECRET)?;
    ensure_eq!(shared.vhca_id, a.device.vhca_id(), "the function in the description");
    let imported = b.domain.import(&shared, &SECRET)?;
    ensure_eq!(imported.len(), 64 << 10, "length");
    ensure!(imported.sge(64 << 10, 1).is_err() && imported.remote(0, 65_537).is_err(), "bounds");
    functions.works(|offset, length| Ok(imported.sge(offset, length)?))
}

fn long_messages_cross_functions_intact(lab: &Lab) -> Result<(), Stop> {
    let Functions { pair: Pair { a, mut b } } = functions(lab)?;
    let bytes = 3 << 20;
    let (from, into) =
        (a.domain.region(bytes, KeyAccess::ALL)?, a.domain.region(bytes, KeyAccess::ALL)?);
    from.write_at(0, &pattern(9, bytes))?;
    let shared = a.domain.share(&from, &SECRET)?;
    let imported = b.domain.import(&shared, &SECRET)?;
    let all = imported.sge(0, bytes as u32)?;
    b.perform(&Write::new(all, into.remote(0, bytes)?).signaled())?;
    let mut back = vec![0; bytes];
    into.read_at(0, &mut back)?;
    ensure!(back == pattern(9, bytes), "the WRITE took wrong bytes");
    into.write_at(0, &pattern(10, bytes))?;
    b.perform(&Read::new(all, into.remote(0, bytes)?).signaled())?;
    from.read_at(0, &mut back)?;
    ensure!(back == pattern(10, bytes), "the READ left wrong bytes");
    Ok(())
}

fn alias_serves_peer_as_remote_memory(lab: &Lab) -> Result<(), Stop> {
    let Functions { pair: Pair { mut a, b } } = functions(lab)?;
    // The owner is also the user's peer: its request names the alias as the peer's memory, and
    // reaches its own memory.
    let imported = b.domain.import(&a.domain.share(&a.region, &SECRET)?, &SECRET)?;
    a.fill(0, &pattern(5, 2000))?;
    let from = a.sge(0, 2000)?;
    a.perform(&Write::new(from, imported.remote(32 << 10, 2000)?).signaled())?;
    a.placed(32 << 10, &pattern(5, 2000), "other bytes arrived")?;
    let into = a.sge(8 << 10, 2000)?;
    a.perform(&Read::new(into, imported.remote(32 << 10, 2000)?).signaled())?;
    ensure!(a.bytes(8 << 10, 2000)? == pattern(5, 2000), "the READ returned other bytes");
    Ok(())
}

fn atomics_reach_memory_of_another_function(lab: &Lab) -> Result<(), Stop> {
    let Functions { pair: Pair { mut a, b } } = functions(lab)?;
    let imported = b.domain.import(&a.domain.share(&a.region, &SECRET)?, &SECRET)?;
    a.fill(256, &40u64.to_ne_bytes())?;
    let before = a.sge(512, 8)?;
    a.perform(&FetchAdd::new(before, imported.remote(256, 8)?, 2).signaled())?;
    ensure_eq!(a.bytes(256, 8)?, 42u64.to_ne_bytes(), "the word");
    ensure_eq!(a.bytes(512, 8)?, 40u64.to_ne_bytes(), "old value");
    Ok(())
}

/// A DPU copies its host's memory this way: no peer takes part.
fn memory_copy_reaches_another_function(lab: &Lab) -> Result<(), Stop> {
    const BYTES: usize = 1 << 20;
    let (owner, user) = lab.owner_and_user()?;
    let (owner, user) = (Domain::new(&owner)?, Domain::new(&user)?);
    let mut cq = user.completion_queue(&CqConfig::new(16))?;
    let config = QpConfig { dma_mmo: true, ..QpConfig::new(4, 1) };
    let mut qp = user.queue_pair(&config, &cq, &cq)?;
    user.connect_loopback(&mut qp, &ConnectOptions::default())?;
    let room = user.region(64, KeyAccess::LOCAL)?;
    let scratch = super::copy::scratch(&room)?;
    let here = user.region(BYTES, KeyAccess::LOCAL)?;
    let there = owner.region(BYTES, KeyAccess::LOCAL)?;
    let imported = user.import(&owner.share(&there, &SECRET)?, &SECRET)?;
    let (far, near) = (imported.sge(0, BYTES as u32)?, here.sge(0, BYTES)?);
    let mut bytes = vec![0; BYTES];
    there.write_at(0, &pattern(12, BYTES))?;
    qp.post(&DmaMmo::new(scratch, far, near).signaled(), 0)?;
    until("a completion", || qp.poll(&mut cq))??;
    here.read_at(0, &mut bytes)?;
    ensure!(bytes == pattern(12, BYTES), "the copy to the user has wrong bytes");
    here.write_at(0, &pattern(13, BYTES))?;
    qp.post(&DmaMmo::new(scratch, near, far).signaled(), 0)?;
    until("a completion", || qp.poll(&mut cq))??;
    there.read_at(0, &mut bytes)?;
    ensure!(bytes == pattern(13, BYTES), "the copy to the owner has wrong bytes");
    drop(there);
    qp.post(&DmaMmo::new(scratch, far, near).signaled(), 0)?;
    failed(until("a completion", || qp.poll(&mut cq))?, WcStatus::LocalProtection)?;
    Ok(())
}

/// Fails unless the device refuses the command of an import or of a crossing key.
fn is_refused<T>(outcome: Result<T, verbless_queue::DeviceError>, what: &str) -> Result<(), Stop> {
    match outcome {
        Ok(_) => Err(Stop::fail(format!("the device did not refuse the command: {what}"))),
        Err(error) if error.kind() == ErrorKind::Command => Ok(()),
        Err(error) => {
            let text = format!("{what}: it failed before the device could refuse it: {error}");
            Err(Stop::fail(text))
        }
    }
}

fn wrong_access_key_is_rejected(lab: &Lab) -> Result<(), Stop> {
    let Functions { pair: Pair { a, b } } = functions(lab)?;
    let shared = a.domain.share(&a.region, &SECRET)?;
    for at in [0, 17, 31] {
        let mut wrong = *SECRET.as_bytes();
        wrong[at] ^= 1;
        let import = b.domain.import(&shared, &AccessKey::new(wrong));
        is_refused(import, &format!("byte {at} of the access key is wrong"))?;
    }
    b.domain.import(&shared, &SECRET)?;
    Ok(())
}

fn unshared_mkey_is_rejected(lab: &Lab) -> Result<(), Stop> {
    let Functions { pair: Pair { a, b } } = functions(lab)?;
    let mut shared = a.domain.share(&a.region, &SECRET)?;
    let other = a.domain.region(4096, KeyAccess::ALL)?;
    shared.key = other.lkey().0;
    for secret in [SECRET, AccessKey::new([0; 32])] {
        is_refused(b.domain.import(&shared, &secret), "the mkey is not shared")?;
    }
    Ok(())
}

fn unknown_vhca_is_rejected(lab: &Lab) -> Result<(), Stop> {
    let Functions { pair: Pair { a, b } } = functions(lab)?;
    let mut shared = a.domain.share(&a.region, &SECRET)?;
    shared.vhca_id = 0xfff0;
    is_refused(b.domain.import(&shared, &SECRET), "the VHCA ID is unknown")
}

fn new_access_key_replaces_old_one(lab: &Lab) -> Result<(), Stop> {
    let Functions { pair: Pair { a, b } } = functions(lab)?;
    let shared = a.domain.share(&a.region, &SECRET)?;
    let other = AccessKey::random()?;
    a.domain.share(&a.region, &other)?;
    is_refused(b.domain.import(&shared, &SECRET), "the access key is the old one")?;
    b.domain.import(&shared, &other)?;
    Ok(())
}

fn alias_fails_after_its_mkey_is_destroyed(lab: &Lab) -> Result<(), Stop> {
    let mut functions = functions(lab)?;
    let Pair { a, b } = &functions.pair;
    let region = a.domain.region(4096, KeyAccess::ALL)?;
    let imported = b.domain.import(&a.domain.share(&region, &SECRET)?, &SECRET)?;
    let from = imported.sge(0, 64)?;
    ensure_eq!(functions.reads_from(from)?, None, "before the mkey is destroyed");
    drop(region);
    ensure_eq!(functions.reads_from(from)?, Some(WcStatus::LocalProtection), "after the destroy");
    Ok(())
}

fn alias_does_not_reach_reused_mkey_index(lab: &Lab) -> Result<(), Stop> {
    let mut functions = functions(lab)?;
    let Pair { a, b } = &functions.pair;
    let region = a.domain.region(4096, KeyAccess::ALL)?;
    let shared = a.domain.share(&region, &SECRET)?;
    let imported = b.domain.import(&shared, &SECRET)?;
    drop(region);
    let mut others = Vec::new();
    for _ in 0..64 {
        let other = a.domain.region(4096, KeyAccess::ALL)?;
        a.domain.share(&other, &SECRET)?;
        others.push(other);
    }
    // The old alias reaches none of the new regions, one of which may have reused the mkey index.
    for other in &others {
        let from = Sge::new(other.address(), 64, imported.lkey());
        ensure_eq!(
            functions.reads_from(from)?,
            Some(WcStatus::LocalProtection),
            "through the old alias"
        );
        functions.pair.restart()?;
    }
    Ok(())
}

fn destroyed_alias_fails_with_local_protection(lab: &Lab) -> Result<(), Stop> {
    let mut functions = functions(lab)?;
    let Pair { a, b } = &functions.pair;
    let imported = b.domain.import(&a.domain.share(&a.region, &SECRET)?, &SECRET)?;
    let from = imported.sge(0, 64)?;
    drop(imported);
    ensure_eq!(
        functions.reads_from(from)?,
        Some(WcStatus::LocalProtection),
        "through the destroyed alias"
    );
    functions.pair.restart()?;
    let Pair { a, b } = &functions.pair;
    // The owner's key still exists, and accepts new aliases.
    let again = b.domain.import(&a.domain.share(&a.region, &SECRET)?, &SECRET)?;
    functions.works(|offset, length| Ok(again.sge(offset, length)?))
}

fn alias_has_access_rights_of_its_mkey(lab: &Lab) -> Result<(), Stop> {
    let mut functions = functions(lab)?;
    let Pair { a, b } = &functions.pair;
    let read_only = a.domain.region(4096, KeyAccess::LOCAL_READ)?;
    read_only.write_at(0, &pattern(6, 4096))?;
    let imported = b.domain.import(&a.domain.share(&read_only, &SECRET)?, &SECRET)?;
    let sge = imported.sge(0, 64)?;
    ensure_eq!(functions.reads_from(sge)?, None, "reading");
    let Pair { a, b } = &mut functions.pair;
    b.qp.post(&Read::new(sge, a.remote(0)?).signaled(), 1)?;
    failed(b.sent()?, WcStatus::LocalProtection)?;
    let mut bytes = vec![0; 4096];
    read_only.read_at(0, &mut bytes)?;
    ensure!(bytes == pattern(6, 4096), "memory without write rights was written");
    // The peer has only the rights of the key.
    functions.pair.restart()?;
    let Pair { a, .. } = &mut functions.pair;
    let into = a.sge(0, 64)?;
    a.qp.post(&Read::new(into, imported.remote(0, 64)?).signaled(), 2)?;
    failed(a.sent()?, WcStatus::RemoteAccess)?;
    Ok(())
}

fn alias_ends_at_mkey_bounds(lab: &Lab) -> Result<(), Stop> {
    let mut functions = functions(lab)?;
    let Pair { a, b } = &functions.pair;
    let region = a.domain.region(4096, KeyAccess::ALL)?;
    let imported = b.domain.import(&a.domain.share(&region, &SECRET)?, &SECRET)?;
    for (offset, length) in [(4096, 1), (4095, 2), (u64::MAX, 1)] {
        let address = imported.address().wrapping_add(offset);
        let from = Sge::new(address, length, imported.lkey());
        ensure_eq!(functions.reads_from(from)?, Some(WcStatus::LocalProtection), "past the end");
        functions.pair.restart()?;
    }
    let last = imported.sge(4095, 1)?;
    ensure_eq!(functions.reads_from(last)?, None, "the last byte");
    Ok(())
}

fn alias_is_limited_to_its_pd(lab: &Lab) -> Result<(), Stop> {
    let mut functions = functions(lab)?;
    let Pair { a, b } = &functions.pair;
    let another = Domain::new(&b.device)?;
    let imported = another.import(&a.domain.share(&a.region, &SECRET)?, &SECRET)?;
    let from = imported.sge(0, 64)?;
    ensure_eq!(
        functions.reads_from(from)?,
        Some(WcStatus::LocalProtection),
        "through an alias in another PD"
    );
    Ok(())
}

/// Another context of the device may have a key of the same number, or none.
fn share_rejects_mkey_of_another_context(lab: &Lab) -> Result<(), Stop> {
    let (ours, another) = (Domain::new(&lab.device()?)?, Domain::new(&lab.device()?)?);
    let region = ours.region(4096, KeyAccess::LOCAL)?;
    let refused = another.share(&region, &SECRET).map_err(|error| error.kind());
    ensure_eq!(refused, Err(ErrorKind::InvalidInput), "share by another context");
    ours.share(&region, &SECRET)?;
    Ok(())
}

/// UCX shares memory this way: an indirect key over the region's key.
fn indirect_mkey_is_shareable(lab: &Lab) -> Result<(), Stop> {
    let mut functions = functions(lab)?;
    let Pair { a, b } = &functions.pair;
    let regions: Vec<_> = (0..2)
        .map(|_| a.domain.region(4096, KeyAccess::LOCAL).map(Arc::new))
        .collect::<Result<_, _>>()?;
    regions[0].write_at(4000, &pattern(7, 96))?;
    regions[1].write_at(0, &pattern(8, 96))?;
    let both = [(regions[0].clone(), 4000, 96), (regions[1].clone(), 0, 96)];
    let access = KeyAccess { remote: RemoteAccess::default(), ..KeyAccess::ALL };
    let key = a.domain.indirect_key(&both, access)?;
    key.mkey().allow(&a.device, &SECRET)?;
    let alias = b.device.create_alias_key(AliasAttr {
        pd: b.domain.pd().clone(),
        vhca_id: a.device.vhca_id(),
        key: key.rkey(),
        access_key: SECRET,
    })?;
    let from = Sge::new(0, 192, alias.lkey());
    ensure_eq!(functions.reads_from(from)?, None, "over both");
    let both = [pattern(7, 96), pattern(8, 96)].concat();
    functions.pair.a.placed(0, &both, "the WRITE took wrong bytes")?;
    // A dropped region is not part of it.
    drop((both, regions, key));
    ensure_eq!(functions.reads_from(from)?, Some(WcStatus::LocalProtection), "after its end");
    Ok(())
}

fn host_cannot_import_dpu_memory(lab: &Lab) -> Result<(), Stop> {
    let (host, dpu) = lab.owner_and_user()?;
    let (host, dpu) = (Domain::new(&host)?, Domain::new(&dpu)?);
    let region = dpu.region(4096, KeyAccess::ALL)?;
    let shared = dpu.share(&region, &SECRET)?;
    is_refused(host.import(&shared, &SECRET), "the memory belongs to the DPU")?;
    dpu.import(&shared, &SECRET)?;
    Ok(())
}

fn crossing_mkey_reaches_crossing_enabled_mkey(lab: &Lab) -> Result<(), Stop> {
    let (owner, user) = lab.owner_and_user()?;
    // Within one function, only keys of one context can cross each other.
    let own = owner.vhca_id() == user.vhca_id();
    let user = if own { owner.clone() } else { user };
    let mut functions = functions_of(owner, user)?;
    let Pair { a, b } = &functions.pair;
    let access = KeyAccess { crossing: true, ..KeyAccess::LOCAL };
    let region = a.domain.region(64 << 10, access)?;
    let crossing = |target: &verbless_queue::Region, length: u64| {
        b.device.create_mkey(MkeyAttr {
            pd: b.domain.pd().clone(),
            access: KeyAccess::ALL,
            start: 0,
            length,
            memory: KeyMemory::Crossing {
                vhca_id: a.device.vhca_id(),
                key: verbless_queue::Rkey(target.lkey().0),
            },
        })
    };
    let end = region.address() + region.len() as u64;
    let key = crossing(&region, end)?;
    let ordinary = a.domain.region(4096, KeyAccess::ALL)?;
    let to_ordinary = crossing(&ordinary, ordinary.address() + 4096)?;
    region.write_at(0, &pattern(11, 64 << 10))?;
    let from = Sge::new(region.address() + 5, 1000, key.lkey());
    let at_ordinary = Sge::new(ordinary.address(), 64, to_ordinary.lkey());
    let past = Sge::new(end, 1, key.lkey());
    ensure_eq!(functions.reads_from(from)?, None, "through the crossing key");
    let written = &pattern(11, 64 << 10)[5..1005];
    functions.pair.a.placed(0, written, "the WRITE took wrong bytes")?;
    // Within one function a crossing key may also reach an mkey without `crossing`.
    if !own {
        let status = functions.reads_from(at_ordinary)?;
        ensure_eq!(status, Some(WcStatus::LocalProtection), "to an mkey without `crossing`");
        functions.pair.restart()?;
    }
    ensure_eq!(functions.reads_from(past)?, Some(WcStatus::LocalProtection), "past the end");
    functions.pair.restart()?;
    drop(region);
    ensure_eq!(
        functions.reads_from(from)?,
        Some(WcStatus::LocalProtection),
        "after the target's end"
    );
    Ok(())
}

fn crossing_mkey_rejects_unknown_function(lab: &Lab) -> Result<(), Stop> {
    let Functions { pair: Pair { b, .. } } = functions(lab)?;
    let attr = MkeyAttr {
        pd: b.domain.pd().clone(),
        access: KeyAccess::LOCAL,
        start: 0,
        length: 4096,
        memory: KeyMemory::Crossing { vhca_id: 0xfff0, key: b.region.remote(0, 0)?.rkey },
    };
    is_refused(b.device.create_mkey(attr.clone()), "the VHCA ID is unknown")?;
    let shifted = MkeyAttr { start: 4096, ..attr };
    let error = b.device.create_mkey(shifted).err().map(|error| error.kind());
    ensure_eq!(error, Some(ErrorKind::InvalidInput), "kind of the error for start 4096");
    Ok(())
}
