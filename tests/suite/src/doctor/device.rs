//! The device's links: a context with DevX, firmware, port, and the objects of one message and one
//! event.

use std::time::{Duration, Instant};

use verbless_command::{Device, KeyAccess};
use verbless_devx::{Error, ErrorKind};
use verbless_queue::wr::{Send, Write};
use verbless_queue::{
    ConnectOptions, Cq, CqConfig, CqEvents, Domain, Memory, Qp, QpConfig, Region,
};

use super::chain::{Broken, Chain, Finding, Link};
use super::host::{Host, LOCKED_FOR_ALL};
use super::port;
use crate::need::{CAP_IPC_LOCK, CAP_NET_RAW, privilege};
use crate::{Lab, Stop, pattern, raw};

/// Bytes of the small region.
const SMALL: usize = 4 << 10;

/// Bytes of the large region.
pub(super) const LARGE: usize = 64 << 20;

/// Bytes of the message: it crosses a page of the large region.
const MESSAGE: usize = 2 << 10;

/// How long the message and the event may take, also on an emulated processor that is busy. A lost
/// message fails earlier, when its retries end.
const MESSAGE_TIMEOUT: Duration = Duration::from_secs(3);

/// Checks the links from the context to the event.
pub(super) fn check(chain: &mut Chain, lab: &Lab, host: &Host) -> Result<(), Broken> {
    let device = open(chain, lab)?;
    chain.check(Link::Memlock, || host.memlock())?;
    chain.check(Link::Firmware, || firmware(&device))?;
    chain.check(Link::Port, || ports(&device, lab))?;
    let domain = chain.make(Link::Pd, || {
        let domain = Domain::new(&device).map_err(text)?;
        let facts = format!("PD {}", domain.pd().pdn());
        Ok((domain, Finding::Holds(facts)))
    })?;
    let small = chain.make(Link::SmallMr, || {
        let region = domain.region(SMALL, KeyAccess::ALL).map_err(text)?;
        let facts = format!("lkey {:#010x}", region.lkey().0);
        Ok((region, Finding::Holds(facts)))
    })?;
    let large = chain.make(Link::LargeMr, || large(&domain))?;
    let mut cq = chain.make(Link::Cq, || {
        let cq = domain.completion_queue(&CqConfig::new(64)).map_err(text)?;
        let facts = format!("CQ {:#x}, 64 CQEs", cq.cqn().0);
        Ok((cq, Finding::Holds(facts)))
    })?;
    let mut qp = chain.make(Link::Qp, || {
        let qp = domain.queue_pair(&QpConfig::new(4, 4), &cq, &cq).map_err(text)?;
        let facts = format!("QP {:#x}, RC", qp.qpn().0);
        Ok((qp, Finding::Holds(facts)))
    })?;
    chain.check(Link::Message, || {
        let sent = send_to_itself(&domain, &mut qp, &mut cq, &small, large.as_ref());
        sent.unwrap_or_else(|Stop(why)| {
            Finding::Fails(format!(
                "a message of QP {:#x} to itself through port 1 failed: {why}; a card returns \
                 such a message itself: see its counters (`rdma statistic show`) and the kernel's \
                 log",
                qp.qpn().0
            ))
        })
    })?;
    chain.check(Link::Event, || {
        let waited = wait_for_event(&device, &mut qp, &mut cq, &small);
        waited.unwrap_or_else(|Stop(why)| {
            Finding::Fails(format!(
                "no completion event: {why}; see the device's lines in /proc/interrupts, whether \
                 they count, and the kernel's log"
            ))
        })
    })
}

/// An error's text: what failed, why, and what to do.
fn text(error: Error) -> String {
    error.to_string()
}

/// Opens the device. EACCES on its node is reported under [`Link::Permission`].
fn open(chain: &mut Chain, lab: &Lab) -> Result<Device, Broken> {
    let opened = lab.shared_backend().clone();
    let opened = Device::open(&*opened, lab.info());
    let link = match &opened {
        Err(error) if error.kind() == ErrorKind::Permission => Link::Permission,
        _ => Link::Devx,
    };
    chain.make(link, || {
        let device = opened.map_err(text)?;
        let vectors = device.attributes().completion_vectors;
        let facts = format!("a context with DevX, {vectors} completion vectors");
        // The cases about frames run on the model alone.
        let finding = match !device.adapter().is_model() || privilege(CAP_NET_RAW) {
            true => Finding::Holds(facts),
            false => Finding::Limited(format!(
                "{facts}; without CAP_NET_RAW no frame is steered and no raw Ethernet frame is \
                 sent, so cases about frames are skipped: run as root, or `setcap cap_net_raw+ep` \
                 the program"
            )),
        };
        Ok((device, finding))
    })
}

/// Version of the firmware, and whether it answers.
fn firmware(device: &Device) -> Finding {
    let version = &device.info().firmware;
    let start = Instant::now();
    if let Err(error) = device.nop() {
        return Finding::Fails(format!(
            "firmware {version} does not answer a NOP: {error}; see its health in `devlink health` \
             and the kernel's log"
        ));
    }
    let micros = start.elapsed().as_micros();
    if version.is_empty() {
        return Finding::Limited(format!(
            "it answers a NOP in {micros} µs, but the kernel shows no version (fw_ver): see \
             `devlink dev info`"
        ));
    }
    // No public source gives the date of a firmware version, and neither does the kernel.
    Finding::Holds(format!(
        "{version}, of unknown age (its number has no date); it answers a NOP in {micros} µs"
    ))
}

/// The first ports of the device and of its peer, which the cases use.
fn ports(device: &Device, lab: &Lab) -> Finding {
    let own = first_port(device);
    let peer = match own {
        Finding::Holds(_) if lab.has_peer() => lab.other_device(),
        _ => return own,
    };
    match peer.map(|peer| first_port(&peer)) {
        Ok(Finding::Fails(why)) => Finding::Fails(format!("the peer's {why}")),
        Ok(_) => own,
        Err(Stop(why)) => Finding::Fails(format!("the peer does not open: {why}")),
    }
}

fn first_port(device: &Device) -> Finding {
    let queried = device.query_port(1).and_then(|port| Ok((port, device.gid_table()?)));
    match queried {
        Ok((port, gids)) => {
            let info = device.info();
            port::describe(&info.name, &info.netdevs, 1, &port, &gids)
        }
        Err(error) => Finding::Fails(error.to_string()),
    }
}

/// A region of scattered pages, unless the limit of locked memory forbids it.
fn large(domain: &Domain) -> Result<(Option<Region>, Finding), String> {
    use nix::sys::resource::{Resource, getrlimit};
    let (limit, _) = getrlimit(Resource::RLIMIT_MEMLOCK).unwrap_or((u64::MAX, u64::MAX));
    if limit < LOCKED_FOR_ALL && !privilege(CAP_IPC_LOCK) {
        let why = format!("not tried: the limit of locked memory is {} KiB", limit >> 10);
        return Ok((None, Finding::Limited(why)));
    }
    let memory: Memory = raw::scattered(LARGE).map_err(|Stop(why)| why)?;
    let region = domain.region_of(&memory, KeyAccess::ALL).map_err(text)?;
    let pages = LARGE / verbless_devx::page_size();
    let facts = format!("lkey {:#010x}, {pages} scattered pages", region.lkey().0);
    Ok((Some(region), Finding::Holds(facts)))
}

/// WRITEs to the large region across a page boundary, then SENDs the data back. Without a large
/// region the target is `small` behind the source.
fn send_to_itself(
    domain: &Domain,
    qp: &mut Qp,
    cq: &mut Cq,
    small: &Region,
    large: Option<&Region>,
) -> Result<Finding, Stop> {
    let options = ConnectOptions::default();
    let own = domain.address(qp, &options)?;
    domain.connect(qp, &own, &options)?;
    let data = pattern(7, MESSAGE);
    small.write_at(0, &data)?;
    let middle = LARGE / 2 - MESSAGE / 2;
    let (into, offset) = large.map_or((small, MESSAGE), |region| (region, middle));
    let start = Instant::now();
    qp.post(&Write::new(small.sge(0, MESSAGE)?, into.remote(offset, MESSAGE)?).signaled(), 1)?;
    await_cqes(qp, cq, 1)?;
    let micros = start.elapsed().as_micros();
    let mut arrived = vec![0; MESSAGE];
    into.read_at(offset, &mut arrived)?;
    if arrived != data {
        let at = arrived.iter().zip(&data).position(|(a, b)| a != b).unwrap_or(0);
        return Err(Stop::fail(format!("byte {at} of {MESSAGE} arrived changed")));
    }
    qp.post_receive(small.sge(0, MESSAGE)?, 2)?;
    qp.post(&Send::new(into.sge(offset, MESSAGE)?).signaled(), 3)?;
    await_cqes(qp, cq, 2)?;
    Ok(Finding::Holds(format!("{MESSAGE} bytes written and sent to itself, in {micros} µs")))
}

/// Waits for that many successful CQEs.
fn await_cqes(qp: &mut Qp, cq: &mut Cq, count: usize) -> Result<(), Stop> {
    let end = Instant::now() + MESSAGE_TIMEOUT;
    let mut seen = 0;
    while seen < count {
        match qp.poll(cq) {
            Some(done) => {
                done?;
                seen += 1;
            }
            None if Instant::now() > end => {
                let seconds = MESSAGE_TIMEOUT.as_secs();
                return Err(Stop::fail(format!("{seen} of {count} CQEs after {seconds} s")));
            }
            None => std::thread::sleep(Duration::from_micros(20)),
        }
    }
    Ok(())
}

/// Sleeps until the event of a message's completion.
fn wait_for_event(
    device: &Device,
    qp: &mut Qp,
    cq: &mut Cq,
    small: &Region,
) -> Result<Finding, Stop> {
    let events = CqEvents::new(device)?;
    events.add(cq, 0)?;
    // Nothing is outstanding, so `park` arms the CQ, and the next completion raises the event.
    let _armed = events.park(cq)?;
    let start = Instant::now();
    qp.post(&Write::new(small.sge(0, 8)?, small.remote(64, 8)?).signaled(), 4)?;
    if events.wait(Some(MESSAGE_TIMEOUT))?.is_none() {
        let seconds = MESSAGE_TIMEOUT.as_secs();
        return Err(Stop::fail(format!("the CQ was armed, and no event came within {seconds} s")));
    }
    let micros = start.elapsed().as_micros();
    await_cqes(qp, cq, 1)?;
    Ok(Finding::Holds(format!("from doorbell to wake-up in {micros} µs")))
}
