//! Queues over time: signaling, batches, doorbells, wrapping, sharing.

use verbless_command::KeyAccess;
use verbless_devx::UarKind;
use verbless_model::Fault;
use verbless_queue::qp::BlueFlame;
use verbless_queue::wr::{Inline, Nop, PostError, Read, Send, Write};
use verbless_queue::{ConnectOptions, Cq, CqConfig, Dispatcher, Domain, Qp, QpConfig};

use crate::case::cases;
use crate::need::cap;
use crate::{Endpoint, Lab, Need, Pair, Stop, ensure, ensure_eq, quiet, raw, until};

cases!(
    "queue",
    "Queues over time: signaling, batches, doorbells, wrapping, sharing.":
    unsignaled_wqe_completes_with_next_signaled,
    signal_all_completes_each_wqe,
    full_sq_rejects_until_completion,
    full_rq_rejects_until_message,
    batches_are_executed_in_order,
    batch_rings_one_doorbell [Need::Model],
    dropped_batch_posts_nothing,
    blueflame_and_plain_doorbells_are_equivalent,
    sq_wraps_with_wqes_of_every_size,
    sq_index_wraps_after_65536_wqes,
    rq_index_wraps_after_65536_messages,
    reads_beyond_outstanding_limit_wait,
    qp_connected_to_itself_works,
    two_qps_of_one_port_reach_each_other,
    sixteen_qps_share_one_cq,
    qps_on_one_doorbell_do_not_block_each_other,
    blueflame_uar_carries_no_plain_doorbells [Need::BlueFlame],
    blueflame_copies_alternate_between_two_buffers
        [Need::BlueFlame, Need::Model, cap!(log_bf_reg_size >= 9)],
    thousand_qps_share_few_doorbell_pages,
    dispatcher_routes_cqe_to_its_qp,
    two_threads_drive_one_connection,
    eight_threads_drive_eight_connections,
);

fn unsignaled_wqe_completes_with_next_signaled(lab: &Lab) -> Result<(), Stop> {
    let mut pair = Pair::new(lab)?;
    let free = pair.a.qp.send.free();
    let to = pair.b.remote(0)?;
    for _ in 0..10 {
        for cookie in 0..5 {
            pair.a.qp.post(&Write::new(Inline(b"quiet"), to), cookie)?;
        }
        pair.a.qp.post(&Write::new(Inline(b"aloud"), to).signaled(), 5)?;
        ensure_eq!(pair.a.sent()??.cookie, 5, "cookie");
        ensure_eq!(pair.a.qp.send.free(), free, "free WQEBBs");
    }
    let Endpoint { qp, send_cq, .. } = &mut pair.a;
    quiet("an unsignaled request completed", || qp.poll(send_cq))
}

fn signal_all_completes_each_wqe(lab: &Lab) -> Result<(), Stop> {
    let config = QpConfig { signal_all: true, ..QpConfig::new(16, 4) };
    let mut pair = Pair::with(lab, &config, 4096)?;
    let to = pair.b.remote(0)?;
    for cookie in 0..10 {
        pair.a.qp.post(&Write::new(Inline(b"each"), to), cookie)?;
    }
    for cookie in 0..10 {
        ensure_eq!(pair.a.sent()??.cookie, cookie, "cookie");
    }
    Ok(())
}

fn full_sq_rejects_until_completion(lab: &Lab) -> Result<(), Stop> {
    let mut pair = Pair::with(lab, &QpConfig::new(4, 4), 4096)?;
    for _ in 0..3 {
        let room = u64::from(pair.a.qp.send.free());
        for cookie in 0..room {
            pair.a.qp.post(&Nop::new().signaled(), cookie)?;
        }
        ensure_eq!(pair.a.qp.post(&Nop::new(), 0), Err(PostError::Full), "one more");
        ensure_eq!(pair.a.sent()??.cookie, 0, "cookie");
        pair.a.qp.post(&Nop::new().signaled(), room)?;
        for cookie in 1..=room {
            ensure_eq!(pair.a.sent()??.cookie, cookie, "cookie");
        }
    }
    Ok(())
}

fn full_rq_rejects_until_message(lab: &Lab) -> Result<(), Stop> {
    let mut pair = Pair::with(lab, &QpConfig::new(4, 4), 4096)?;
    let into = pair.b.sge(0, 64)?;
    for cookie in 0..4 {
        pair.b.qp.post_receive(into, cookie)?;
    }
    ensure_eq!(pair.b.qp.post_receive(into, 4), Err(PostError::Full), "one more");
    pair.a.perform(&Send::new(Inline(b"one")).signaled())?;
    ensure_eq!(pair.b.received()??.cookie, 0, "cookie");
    pair.b.qp.post_receive(into, 4)?;
    Ok(())
}

/// When its doorbell is lost, the whole batch waits; a second doorbell would reach the device.
fn batch_rings_one_doorbell(lab: &Lab) -> Result<(), Stop> {
    let mut pair = Pair::new(lab)?;
    let to = pair.b.remote(0)?;
    lab.model()?.inject(0, Fault::LoseDoorbell, 0, 1);
    let mut batch = pair.a.qp.batch();
    for cookie in 0..5 {
        batch.post(&Write::new(Inline(b"batch"), to).signaled(), cookie)?;
    }
    batch.ring();
    let Endpoint { qp, send_cq, .. } = &mut pair.a;
    quiet("a batch ran although its only doorbell was lost", || qp.poll(send_cq))?;
    ensure_eq!(pair.b.bytes(0, 5)?, [0; 5], "the peer's memory");
    pair.a.qp.post(&Nop::new().signaled(), 5)?;
    for cookie in 0..6 {
        ensure_eq!(pair.a.sent()??.cookie, cookie, "cookie");
    }
    Ok(())
}

fn batches_are_executed_in_order(lab: &Lab) -> Result<(), Stop> {
    let mut pair = Pair::new(lab)?;
    let to = [pair.b.remote(0)?, pair.b.remote(8)?, pair.b.remote(16)?];
    for round in 1..20u8 {
        let mut batch = pair.a.qp.batch();
        for (cookie, to) in (0..).zip(to) {
            batch.post(&Write::new(Inline(&[round; 8]), to).signaled(), cookie)?;
        }
        batch.ring();
        for cookie in 0..3 {
            ensure_eq!(pair.a.sent()??.cookie, cookie, "cookie");
        }
        pair.b.placed(0, &[round; 24], "the written bytes")?;
        // Receives too.
        let into = [pair.b.sge(64, 8)?, pair.b.sge(72, 8)?];
        let mut batch = pair.b.qp.receive.batch();
        for (cookie, into) in (0..).zip(into) {
            batch.post(into, cookie)?;
        }
        batch.ring();
        for cookie in 0..2 {
            pair.a.perform(&Send::new(Inline(&[round; 8])).signaled())?;
            ensure_eq!(pair.b.received()??.cookie, cookie, "cookie of the receive");
        }
    }
    Ok(())
}

fn dropped_batch_posts_nothing(lab: &Lab) -> Result<(), Stop> {
    let mut pair = Pair::new(lab)?;
    let to = pair.b.remote(0)?;
    let free = pair.a.qp.send.free();
    for _ in 0..3 {
        let mut batch = pair.a.qp.batch();
        batch.post(&Write::new(Inline(b"never"), to).signaled(), 13)?;
        drop(batch);
        ensure_eq!(pair.a.qp.send.free(), free, "free WQEBBs");
        pair.a.qp.post(&Nop::new().signaled(), 1)?;
        ensure_eq!(pair.a.sent()??.cookie, 1, "cookie");
    }
    ensure_eq!(pair.b.bytes(0, 8)?, [0; 8], "the peer's memory");
    Ok(())
}

fn blueflame_and_plain_doorbells_are_equivalent(lab: &Lab) -> Result<(), Stop> {
    for blueflame in [BlueFlame::Always, BlueFlame::Inline, BlueFlame::Never] {
        let config = QpConfig { blueflame, inline: 200, ..QpConfig::new(16, 16) };
        let mut pair = Pair::with(lab, &config, 4096)?;
        pair.a.fill(0, b"gathered")?;
        let (from, to) = (pair.a.sge(0, 8)?, pair.b.remote(0)?);
        for round in 0..100u8 {
            // One wqebb, several wqebbs, and no inline data: each uses another kind of doorbell.
            pair.a.perform(&Write::new(Inline(&[round; 12]), to).signaled())?;
            pair.b.placed(0, &[round; 12], format!("{blueflame:?}, 12 bytes"))?;
            pair.a.perform(&Write::new(Inline(&[round; 200]), to).signaled())?;
            pair.b.placed(0, &[round; 200], format!("{blueflame:?}, 200 bytes"))?;
            pair.a.perform(&Write::new(from, to).signaled())?;
            pair.b.placed(0, b"gathered", format!("{blueflame:?}, gathered"))?;
        }
    }
    Ok(())
}

fn sq_wraps_with_wqes_of_every_size(lab: &Lab) -> Result<(), Stop> {
    let max = lab.device()?.caps().max_inline().min(900);
    let config = QpConfig { inline: max as u32, ..QpConfig::new(2, 1) };
    let mut pair = Pair::with(lab, &config, 4096)?;
    let to = pair.b.remote(0)?;
    // Requests of 1 to 16 wqebbs in a ring of 32: each starts at another index, and many wrap
    // around the end.
    for round in 0..400usize {
        let length = round * 131 % max;
        let data = crate::pattern(round as u8, length);
        pair.a.perform(&Write::new(Inline(&data), to).signaled())?;
        pair.b.placed(0, &data, format!("round {round}, {length} bytes"))?;
    }
    Ok(())
}

/// More requests than a 16-bit index counts.
const ROLLOVER_REQUESTS: u64 = 70_000;

fn sq_index_wraps_after_65536_wqes(lab: &Lab) -> Result<(), Stop> {
    let mut pair = Pair::with(lab, &QpConfig::new(256, 4), 4096)?;
    let to = pair.b.remote(0)?;
    let mut next = 0;
    while next < ROLLOVER_REQUESTS {
        let mut batch = pair.a.qp.batch();
        for cookie in next..next + 63 {
            batch.post(&Nop::new(), cookie)?;
        }
        let number = next.to_ne_bytes();
        batch.post(&Write::new(Inline(&number), to).signaled(), next + 63)?;
        batch.ring();
        ensure_eq!(pair.a.sent()??.cookie, next + 63, "cookie");
        pair.b.placed(0, &number, "number written")?;
        next += 64;
    }
    Ok(())
}

fn rq_index_wraps_after_65536_messages(lab: &Lab) -> Result<(), Stop> {
    const EACH: u64 = 50;
    let mut pair = Pair::with(lab, &QpConfig::new(256, 64), 4096)?;
    let into = pair.b.sge(0, 64)?;
    let mut next = 0;
    while next < ROLLOVER_REQUESTS {
        let mut receives = pair.b.qp.receive.batch();
        (next..next + EACH).try_for_each(|cookie| receives.post(into, cookie).map(|_| ()))?;
        receives.ring();
        let mut batch = pair.a.qp.batch();
        for _ in 1..EACH {
            batch.post(&Send::new(Inline(b"")), 0)?;
        }
        batch.post(&Send::new(Inline(b"")).signaled(), 0)?;
        batch.ring();
        for cookie in next..next + EACH {
            ensure_eq!(pair.b.received()??.cookie, cookie, "cookie");
        }
        pair.a.sent()??;
        next += EACH;
    }
    Ok(())
}

fn reads_beyond_outstanding_limit_wait(lab: &Lab) -> Result<(), Stop> {
    let options = ConnectOptions { reads: 1, ..Default::default() };
    let mut pair = Pair::connected(lab, &QpConfig::new(64, 4), 64 << 10, &options)?;
    pair.b.fill(0, &crate::pattern(1, 64 * 64))?;
    let mut batch = pair.a.qp.batch();
    for slot in 0..64 {
        let (into, from) = (pair.a.region.sge(64 * slot, 64)?, pair.b.remote(64 * slot)?);
        batch.post(&Read::new(into, from).signaled(), slot as u64)?;
    }
    batch.ring();
    for slot in 0..64 {
        ensure_eq!(pair.a.sent()??.cookie, slot, "cookie");
    }
    ensure!(pair.a.bytes(0, 64 * 64)? == crate::pattern(1, 64 * 64), "the read bytes");
    Ok(())
}

fn qp_connected_to_itself_works(lab: &Lab) -> Result<(), Stop> {
    let mut end = Endpoint::new(lab.device()?, &QpConfig::new(8, 8), 4096)?;
    let options = ConnectOptions::default();
    let address = end.domain.address(&end.qp, &options)?;
    end.domain.connect(&mut end.qp, &address, &options)?;
    end.receive(0, 64, 1)?;
    end.perform(&Send::new(Inline(b"myself")).signaled())?;
    ensure_eq!(end.received()??.cookie, 1, "cookie");
    let to = end.remote(64)?;
    end.perform(&Write::new(Inline(b"me too"), to).signaled())?;
    ensure_eq!(end.bytes(0, 6)?, b"myself", "the sent bytes");
    end.placed(64, b"me too", "the written bytes")?;
    Ok(())
}

fn two_qps_of_one_port_reach_each_other(lab: &Lab) -> Result<(), Stop> {
    let config = QpConfig::new(8, 8);
    let device = lab.device()?;
    let mut pair = Pair {
        a: Endpoint::new(device.clone(), &config, 4096)?,
        b: Endpoint::new(device, &config, 4096)?,
    };
    pair.connect(&ConnectOptions::default())?;
    pair.b.receive(0, 64, 1)?;
    pair.a.perform(&Send::new(Inline(b"neighbour")).signaled())?;
    pair.b.received()??;
    ensure_eq!(pair.b.bytes(0, 9)?, b"neighbour", "the arrived bytes");
    Ok(())
}

fn sixteen_qps_share_one_cq(lab: &Lab) -> Result<(), Stop> {
    let device = lab.device()?;
    let domain = Domain::new(&device)?;
    let mut cq = domain.completion_queue(&CqConfig::new(2048))?;
    let region = domain.region(4096, KeyAccess::ALL)?;
    let options = ConnectOptions::default();
    let mut qps: Vec<Qp> = Vec::new();
    for index in 0..16 {
        let config = QpConfig { user_index: index, ..QpConfig::new(32, 32) };
        qps.push(domain.queue_pair(&config, &cq, &cq)?);
    }
    // Neighbours are connected in pairs.
    for index in 0..16 {
        let peer = domain.address(&qps[index ^ 1], &options)?;
        domain.connect(&mut qps[index], &peer, &options)?;
    }
    for qp in &mut qps {
        for cookie in 0..20 {
            qp.post_receive(region.sge(0, 64)?, cookie)?;
        }
    }
    for qp in &mut qps {
        for cookie in 0..20 {
            qp.post(&Send::new(Inline(b"hello")).signaled(), 100 + cookie)?;
        }
    }
    let mut next = [(0, 100); 16];
    for _ in 0..16 * 40 {
        let cqe = until("a completion", || cq.poll())?;
        let index = cqe.user_index() as usize;
        let qp = qps.get_mut(index).ok_or_else(|| Stop::fail(format!("user index {index}")))?;
        ensure_eq!(cqe.qpn(), qp.qpn(), "QP number");
        let cookie = qp.complete(cqe)?.cookie;
        let next = &mut next[index];
        let expected = if cookie < 100 { &mut next.0 } else { &mut next.1 };
        ensure_eq!(cookie, *expected, format!("cookie of queue pair {index}"));
        *expected += 1;
    }
    ensure_eq!(next, [(20, 120); 16], "completions");
    Ok(())
}

fn qps_on_one_doorbell_do_not_block_each_other(lab: &Lab) -> Result<(), Stop> {
    let domain = Domain::new(&lab.device()?)?;
    let config = QpConfig { blueflame: BlueFlame::Never, ..QpConfig::new(64, 1) };
    let options = ConnectOptions::default();
    let mut all = Vec::new();
    for _ in 0..8 {
        let cq = domain.completion_queue(&CqConfig::new(256))?;
        let mut qp = domain.queue_pair(&config, &cq, &cq)?;
        let address = domain.address(&qp, &options)?;
        domain.connect(&mut qp, &address, &options)?;
        all.push((qp, cq));
    }
    let page = all[0].0.object().attr().uar.page_id();
    for (qp, cq) in &all {
        ensure_eq!(qp.object().attr().uar.page_id(), page, "UAR page");
        ensure_eq!(cq.object().attr().uar.page_id(), page, "UAR page to arm through");
    }
    for cookie in 0..50 {
        for (qp, _) in &mut all {
            qp.post(&Nop::new().signaled(), cookie)?;
        }
    }
    for (qp, cq) in &mut all {
        for cookie in 0..50 {
            ensure_eq!(until("a completion", || qp.poll(cq))??.cookie, cookie, "cookie");
        }
    }
    Ok(())
}

fn two_threads_drive_one_connection(lab: &Lab) -> Result<(), Stop> {
    const MESSAGES: u64 = 2000;
    let Pair { mut a, b } = Pair::new(lab)?;
    let Endpoint { mut receive_cq, mut qp, region, .. } = b;
    for cookie in 0..64 {
        qp.post_receive(region.sge(0, 64)?, cookie)?;
    }
    std::thread::scope(|scope| {
        let receiver = scope.spawn(move || -> Result<(), Stop> {
            for message in 0..MESSAGES {
                let done = until("a message", || qp.poll(&mut receive_cq))??;
                ensure_eq!(done.cookie, message, "cookie");
                qp.post_receive(region.sge(0, 64)?, message + 64)?;
            }
            Ok(())
        });
        for message in 0..MESSAGES {
            a.qp.post(&Send::new(Inline(b"onwards")).signaled(), message)?;
            if message >= 32 {
                ensure_eq!(a.sent()??.cookie, message - 32, "cookie");
            }
        }
        for message in MESSAGES - 32..MESSAGES {
            ensure_eq!(a.sent()??.cookie, message, "cookie");
        }
        receiver.join().map_err(|_| Stop::fail("the receiver panicked"))?
    })
}

fn eight_threads_drive_eight_connections(lab: &Lab) -> Result<(), Stop> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8u8)
            .map(|thread| {
                scope.spawn(move || -> Result<(), Stop> {
                    let mut pair = Pair::new(lab)?;
                    let to = pair.b.remote(0)?;
                    for round in 0..100u8 {
                        let data = [thread.wrapping_mul(31) ^ round; 48];
                        pair.a.perform(&Write::new(Inline(&data), to).signaled())?;
                        pair.b.placed(0, &data, format!("thread {thread}, round {round}"))?;
                    }
                    Ok(())
                })
            })
            .collect();
        for thread in threads {
            thread.join().map_err(|_| Stop::fail("a thread panicked"))??;
        }
        Ok(())
    })
}

/// Pages of the queue pairs, sorted.
fn pages(all: &[(Qp, Cq)]) -> Vec<u32> {
    let mut pages: Vec<_> = all.iter().map(|(qp, _)| qp.object().attr().uar.page_id()).collect();
    pages.sort_unstable();
    pages
}

/// The two registers of a user's page begin at 0x800; each is two buffers of half its size. The
/// copy stays in the model's page, except for its first 8 bytes, the doorbell, which the model
/// takes.
fn blueflame_copies_alternate_between_two_buffers(lab: &Lab) -> Result<(), Stop> {
    let device = lab.device()?;
    let register = device.attributes().driver.bf_reg_size as usize;
    let domain = Domain::new(&device)?;
    let target = domain.region(4096, KeyAccess::ALL)?;
    let to = target.remote(0, 64)?;
    let config = QpConfig { blueflame: BlueFlame::Always, ..QpConfig::new(8, 1) };
    let mut pages = std::collections::BTreeMap::<u32, Vec<usize>>::new();
    let mut kept = Vec::new();
    for _ in 0..4 {
        let mut cq = domain.completion_queue(&CqConfig::new(32))?;
        let mut qp = domain.queue_pair(&config, &cq, &cq)?;
        let options = ConnectOptions::default();
        let itself = domain.address(&qp, &options)?;
        domain.connect(&mut qp, &itself, &options)?;
        let uar = qp.object().attr().uar.clone();
        // The second segment of a WRITE begins with the address of its target.
        let copies = || (0x800..0x1000).step_by(256).map(|at| raw::peek(&uar, at + 16));
        let mut buffers = Vec::new();
        for turn in 0..4u64 {
            let before: Vec<u64> = copies().collect();
            let at = verbless_queue::RemoteAddr::new(to.address + 8 * (turn + 1), to.rkey);
            qp.post(&Write::new(Inline(b"8 bytes."), at).signaled(), turn)?;
            until("a completion", || qp.poll(&mut cq))??;
            let changed: Vec<_> = copies().zip(&before).map(|(now, &then)| now != then).collect();
            let buffer = changed.iter().position(|&it| it);
            let buffer = buffer.ok_or_else(|| Stop::fail("no copy was made"))?;
            ensure_eq!(changed.iter().filter(|&&it| it).count(), 1, "buffers that changed");
            buffers.push(0x800 + 256 * buffer);
        }
        let first = buffers[0].min(buffers[1]);
        ensure_eq!((first - 0x800) % register, 0, "offset of a register in the page");
        let other = buffers[0].max(buffers[1]);
        ensure_eq!(other - first, register / 2, "bytes between the two buffers");
        ensure_eq!(buffers[2..], buffers[..2], "buffers of the later copies");
        pages.entry(uar.page_id()).or_default().push(first);
        // It keeps its register while it lives.
        kept.push((qp, cq));
    }
    for registers in pages.values_mut() {
        registers.sort_unstable();
        ensure_eq!(*registers, [0x800, 0x800 + register], "registers of a page");
    }
    Ok(())
}

/// Another queue's copy with a doorbell in its middle would reach the device as a request of
/// neither queue.
fn blueflame_uar_carries_no_plain_doorbells(lab: &Lab) -> Result<(), Stop> {
    let device = lab.device()?;
    let domain = Domain::new(&device)?;
    let make = |blueflame| -> Result<_, Stop> {
        let cq = domain.completion_queue(&CqConfig::new(16))?;
        let config = QpConfig { blueflame, ..QpConfig::new(4, 4) };
        Ok((domain.queue_pair(&config, &cq, &cq)?, cq))
    };
    let (mut plain, mut copying) = (Vec::new(), Vec::new());
    for turn in 0..48 {
        let kind = if turn % 3 == 0 { BlueFlame::Never } else { BlueFlame::Always };
        if turn % 3 == 0 { &mut plain } else { &mut copying }.push(make(kind)?);
    }
    let page = pages(&plain)[0];
    for (qp, _) in &plain {
        ensure_eq!(
            qp.object().attr().uar.kind(),
            UarKind::NonCached,
            "mapping of a plain doorbell"
        );
    }
    for (qp, cq) in plain.iter().chain(&copying) {
        let arms = &cq.object().attr().uar;
        ensure_eq!(
            (arms.page_id(), arms.kind()),
            (page, UarKind::NonCached),
            "page to arm through"
        );
        if qp.object().attr().uar.kind() == UarKind::NonCached {
            ensure_eq!(qp.object().attr().uar.page_id(), page, "page of a plain doorbell");
        }
    }
    let of_registers = pages(&copying).into_iter().filter(|&it| it != page).collect::<Vec<_>>();
    ensure!(of_registers.len() <= 16, "{} registers for one domain", of_registers.len());
    for one in &of_registers {
        let sharing = of_registers.iter().filter(|&other| other == one).count();
        ensure!(sharing <= 2, "{sharing} queue pairs on the two registers of page {one:#x}");
    }
    Ok(())
}

fn thousand_qps_share_few_doorbell_pages(lab: &Lab) -> Result<(), Stop> {
    let device = lab.device()?;
    let domain = Domain::new(&device)?;
    let mut cq = domain.completion_queue(&CqConfig::new(6000))?;
    let options = ConnectOptions::default();
    let mut table = Dispatcher::new();
    let mut pages = std::collections::BTreeSet::from([cq.object().attr().uar.page_id()]);
    for _ in 0..1000 {
        let mut qp = domain.queue_pair(&QpConfig::new(1, 1), &cq, &cq)?;
        let address = domain.address(&qp, &options)?;
        domain.connect(&mut qp, &address, &options)?;
        pages.insert(qp.object().attr().uar.page_id());
        table.insert(qp.qpn().0, qp)?;
    }
    ensure_eq!(table.len(), 1000, "queue pairs");
    let max = 1 + verbless_queue::domain::BLUEFLAME_PAGES;
    ensure!(pages.len() <= max, "{} pages for a thousand queue pairs", pages.len());
    for (number, qp) in table.iter_mut() {
        qp.post(&Nop::new().signaled(), number.into())?;
    }
    for _ in 0..1000 {
        let (number, done) = until("a completion", || table.poll(&mut cq))?;
        ensure_eq!(done?.cookie, u64::from(number), "cookie");
    }
    // Another domain still finds room on the device.
    Domain::new(&device)?.completion_queue(&CqConfig::new(1))?;
    Ok(())
}

fn dispatcher_routes_cqe_to_its_qp(lab: &Lab) -> Result<(), Stop> {
    let domain = Domain::new(&lab.device()?)?;
    let mut cq = domain.completion_queue(&CqConfig::new(256))?;
    let region = domain.region(4096, KeyAccess::ALL)?;
    let options = ConnectOptions::default();
    for by_user_index in [false, true] {
        let mut table = Dispatcher::new();
        for turn in 0..8 {
            let user_index = turn * 0x1f_ffff;
            let config = QpConfig { user_index, ..QpConfig::new(8, 8) };
            let mut qp = domain.queue_pair(&config, &cq, &cq)?;
            let address = domain.address(&qp, &options)?;
            domain.connect(&mut qp, &address, &options)?;
            table.insert(if by_user_index { user_index } else { qp.qpn().0 }, qp)?;
        }
        for (number, qp) in table.iter_mut() {
            for turn in 0..4 {
                qp.post_receive(region.sge(0, 64)?, u64::from(number) << 8 | turn)?;
            }
            for turn in 4..8 {
                let message = Send::new(Inline(b"to itself")).signaled();
                qp.post(&message, u64::from(number) << 8 | turn)?;
            }
        }
        let mut seen = std::collections::BTreeSet::new();
        for _ in 0..8 * 8 {
            let (number, done) = until("a completion", || match by_user_index {
                true => table.poll_by_user_index(&mut cq),
                false => table.poll(&mut cq),
            })?;
            let cookie = done?.cookie;
            ensure_eq!(cookie >> 8, u64::from(number), "the queue of the cookie");
            ensure!(seen.insert(cookie), "cookie {cookie:#x} completed twice");
        }
        // A destroyed queue makes no event; the others do.
        let numbers: Vec<u32> = table.iter_mut().map(|(number, _)| number).collect();
        for (_, qp) in table.iter_mut() {
            qp.post(&Nop::new().signaled(), 1)?;
        }
        for &number in &numbers[..4] {
            table.remove(number);
        }
        for _ in 0..4 {
            let (number, done) = until("a completion", || match by_user_index {
                true => table.poll_by_user_index(&mut cq),
                false => table.poll(&mut cq),
            })?;
            done?;
            ensure!(numbers[4..].contains(&number), "{number:#x} was removed");
        }
        ensure!(cq.poll().is_none(), "a completion too many");
    }
    Ok(())
}
