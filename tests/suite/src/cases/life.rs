//! Lifetimes of objects: which objects share resources, and which may be dropped before others.

use std::sync::Arc;

use verbless_command::KeyAccess;
use verbless_queue::wr::{Inline, Nop, Send, Write};
use verbless_queue::{ConnectOptions, Cq, CqConfig, Domain, Qp, QpConfig};

use crate::case::cases;
use crate::{Endpoint, Lab, Pair, Stop, ensure, ensure_eq, quiet, until};

cases!(
    "life",
    "Lifetimes of objects: shared resources, and the order of drops.":
    qp_outlives_device_and_domain_handles,
    cq_lives_as_long_as_its_qp,
    queues_in_shared_umem_drop_in_any_order,
    pooled_ring_memory_is_reused,
    new_qp_ignores_receives_of_its_predecessor,
    small_queues_share_umems,
    doorbell_registers_are_reused,
    indirect_mkey_keeps_its_regions_alive,
    destroy_reports_success_or_in_use,
    objects_are_created_and_destroyed_1000_times,
);

fn qp_outlives_device_and_domain_handles(lab: &Lab) -> Result<(), Stop> {
    let Pair { a, b } = Pair::new(lab)?;
    let Endpoint { device, domain, mut send_cq, receive_cq, mut qp, region } = a;
    drop(device);
    drop(domain);
    let to = b.remote(0)?;
    qp.post(&Write::new(Inline(b"still here"), to).signaled(), 1)?;
    ensure_eq!(until("a completion", || qp.poll(&mut send_cq))??.cookie, 1, "cookie");
    drop(receive_cq);
    drop(region);
    qp.post(&Write::new(Inline(b"and here"), to).signaled(), 2)?;
    ensure_eq!(until("a completion", || qp.poll(&mut send_cq))??.cookie, 2, "cookie");
    Ok(())
}

fn cq_lives_as_long_as_its_qp(lab: &Lab) -> Result<(), Stop> {
    let mut pair = Pair::new(lab)?;
    let object = Arc::downgrade(pair.a.receive_cq.object());
    let other = pair.a.domain.completion_queue(&CqConfig::new(8))?;
    drop(std::mem::replace(&mut pair.a.receive_cq, other));
    ensure!(object.upgrade().is_some(), "the CQ was destroyed while a queue pair used it");
    let to = pair.b.remote(0)?;
    pair.a.perform(&Write::new(Inline(b"x"), to).signaled())?;
    drop(pair);
    ensure!(object.upgrade().is_none(), "the object outlives the queue pair");
    Ok(())
}

/// A queue pair connected to itself, with a completion queue.
fn loopback_qp(domain: &Domain) -> Result<(Qp, Cq), Stop> {
    let cq = domain.completion_queue(&CqConfig::new(32))?;
    let mut qp = domain.queue_pair(&QpConfig::new(8, 8), &cq, &cq)?;
    let options = ConnectOptions::default();
    let address = domain.address(&qp, &options)?;
    domain.connect(&mut qp, &address, &options)?;
    Ok((qp, cq))
}

fn works((qp, cq): &mut (Qp, Cq)) -> Result<(), Stop> {
    qp.post(&Nop::new().signaled(), 1)?;
    ensure_eq!(until("a completion", || qp.poll(cq))??.cookie, 1, "cookie");
    Ok(())
}

fn queues_in_shared_umem_drop_in_any_order(lab: &Lab) -> Result<(), Stop> {
    let domain = Domain::new(&lab.device()?)?;
    let mut all = Vec::new();
    for _ in 0..9 {
        all.push(loopback_qp(&domain)?);
    }
    let umem = all[0].0.object().attr().rings.umem().id();
    let shared = all.iter().filter(|(qp, _)| qp.object().attr().rings.umem().id() == umem).count();
    ensure!(shared > 1, "no two queue pairs share a registration");
    // The middle, the ends, and the rest; the remaining ones work throughout.
    for index in [4, 0, 6, 2, 2, 0] {
        drop(all.remove(index));
        all.iter_mut().try_for_each(works)?;
    }
    Ok(())
}

fn pooled_ring_memory_is_reused(lab: &Lab) -> Result<(), Stop> {
    let domain = Domain::new(&lab.device()?)?;
    let rings_of = |qp: &Qp| {
        let rings = &qp.object().attr().rings;
        (rings.umem().id(), rings.offset())
    };
    let (first, cq) = loopback_qp(&domain)?;
    let at = rings_of(&first);
    drop(first);
    drop(cq);
    for _ in 0..20 {
        let mut again = loopback_qp(&domain)?;
        ensure_eq!(rings_of(&again.0), at, "address of the rings");
        // WQEs of the queue pair before it in the ring must not be taken for its own.
        works(&mut again)?;
        ensure!(again.1.poll().is_none(), "a completion of the previous queue pair");
    }
    Ok(())
}

fn new_qp_ignores_receives_of_its_predecessor(lab: &Lab) -> Result<(), Stop> {
    let domain = Domain::new(&lab.device()?)?;
    let region = domain.region(4096, KeyAccess::ALL)?;
    let (mut qp, cq) = loopback_qp(&domain)?;
    for cookie in 0..5 {
        qp.post_receive(region.sge(0, 64)?, cookie)?;
    }
    drop((qp, cq));
    // In the same memory, whose doorbell record counted five.
    let (mut qp, mut cq) = loopback_qp(&domain)?;
    qp.post(&Send::new(Inline(b"for whom?")).signaled(), 7)?;
    quiet("a message arrived without a receive", || qp.poll(&mut cq))?;
    qp.post_receive(region.sge(64, 64)?, 8)?;
    let mut cookies = Vec::new();
    for _ in 0..2 {
        cookies.push(until("a completion", || qp.poll(&mut cq))??.cookie);
    }
    cookies.sort_unstable();
    ensure_eq!(cookies, [7, 8], "cookies");
    let mut found = [1; 9];
    region.read_at(0, &mut found)?;
    ensure_eq!(found, [0; 9], "memory of the previous queue pair");
    Ok(())
}

fn small_queues_share_umems(lab: &Lab) -> Result<(), Stop> {
    let domain = Domain::new(&lab.device()?)?;
    let all: Vec<_> = (0..32).map(|_| loopback_qp(&domain)).collect::<Result<_, _>>()?;
    let mut umems: Vec<(u32, u64)> = all
        .iter()
        .flat_map(|(qp, cq)| {
            let (qp, cq) = (qp.object().attr(), cq.object().attr());
            [&qp.rings, &qp.record, &cq.ring, &cq.record].map(|memory| {
                let umem = memory.umem();
                (umem.id(), umem.page_limit())
            })
        })
        .collect();
    umems.sort_unstable();
    umems.dedup();
    // Each ring has whole pages of a UMEM.
    let page = umems.iter().map(|umem| umem.1).max().unwrap_or(4096);
    let most = 8 * page.div_ceil(16 << 10);
    ensure!(umems.len() as u64 <= most, "{} registrations for 64 queues", umems.len());
    Ok(())
}

fn doorbell_registers_are_reused(lab: &Lab) -> Result<(), Stop> {
    let domain = Domain::new(&lab.device()?)?;
    let mut pages = Vec::new();
    for _ in 0..20 {
        let mut all: Vec<_> = (0..5).map(|_| loopback_qp(&domain)).collect::<Result<_, _>>()?;
        all.iter_mut().try_for_each(works)?;
        pages.extend(all.iter().map(|(qp, _)| qp.object().attr().uar.page_id()));
    }
    pages.sort_unstable();
    pages.dedup();
    ensure!(pages.len() <= 5, "{} pages for five queue pairs at a time", pages.len());
    Ok(())
}

fn indirect_mkey_keeps_its_regions_alive(lab: &Lab) -> Result<(), Stop> {
    let mut pair = Pair::new(lab)?;
    let region = Arc::new(pair.b.domain.region(4096, KeyAccess::ALL)?);
    let key = pair.b.domain.indirect_key(&[(region.clone(), 0, 4096)], KeyAccess::READ_WRITE)?;
    let weak = Arc::downgrade(&region);
    drop(region);
    ensure!(weak.upgrade().is_some(), "the region was destroyed while an indirect key used it");
    let to = verbless_queue::RemoteAddr::new(0, key.rkey());
    pair.a.perform(&Write::new(Inline(b"kept"), to).signaled())?;
    drop(key);
    ensure!(weak.upgrade().is_none(), "the region outlives the key");
    Ok(())
}

fn destroy_reports_success_or_in_use(lab: &Lab) -> Result<(), Stop> {
    let device = lab.device()?;
    let domain = Domain::new(&device)?;
    let (qp, cq) = loopback_qp(&domain)?;
    let (_user, used) = loopback_qp(&domain)?;
    let text = used.destroy().err().map(|error| error.to_string()).unwrap_or_default();
    ensure!(text.contains("queue pairs still use it"), "a CQ in use: {text:?}");
    qp.destroy()?;
    cq.destroy()?;
    device.alloc_pd()?.destroy()?;
    ensure_eq!(device.leaked(), 0, "leaks");
    Ok(())
}

fn objects_are_created_and_destroyed_1000_times(lab: &Lab) -> Result<(), Stop> {
    let domain = Domain::new(&lab.device()?)?;
    for _ in 0..1000 {
        let cq = domain.completion_queue(&CqConfig::new(8))?;
        domain.queue_pair(&QpConfig::new(1, 1), &cq, &cq)?;
    }
    ensure_eq!(domain.device().leaked(), 0, "leaks");
    Ok(())
}
