//! Ethernet frame queues of FlexIO's host library, and a program that sends frames back to the
//! function that they came from.

use std::sync::Arc;

use verbless_command::{Device, FlowAttr, KeyAccess, QCounter};
use verbless_flexio::{
    CqElement, DpaCq, DpaCqConfig, DpaRq, DpaRqConfig, DpaSq, DpaSqConfig, EventHandler,
    EventHandlerConfig, Handler, Mkey, MkeyConfig, Process, ProcessConfig, QueueMemory, SqTis,
    TransportDomain, WqConfig, WqEndPadMode, WqTsFormat, WqType,
};
use verbless_flexio_dev::segment::CompletionMode;
use verbless_flexio_dev::{Request, Segment};
use verbless_prm::{RqState, SqState, TimestampFormat};
use verbless_queue::wr::{EthSend, Inline};
use verbless_queue::{CqConfig, Domain, RqConfig, SqConfig};

use super::rig::{Rig, ends_with};
use super::{failed, fatal};
use crate::case::cases;
use crate::need::{ETHERNET, FRAME_QUEUES, cap};
use crate::raw::{self, RegisteredMemory};
use crate::{Lab, Need, Stop, ensure, ensure_eq, until};

cases!(
    "dpa_frames",
    "FlexIO's queues of Ethernet frames: their objects, and a program that sends frames back.",
    needs [
        Need::DpaLayouts,
        cap!(apu),
        Need::DpaProgram,
        ETHERNET,
        Need::NetRaw,
        FRAME_QUEUES,
        Need::FlowRules,
    ]:
    new_sq_and_rq_are_ready,
    rq_error_state_flushes_receives,
    sq_and_rq_keep_tis_and_transport_domain,
    unsupported_queue_attributes_are_rejected,
    queue_timestamp_format_matches_config,
    sq_and_rq_are_destroyable_after_fatal_error,
    program_reflects_frames_with_swapped_macs [Need::Peer, Need::Lossless],
    burst_frames_return_or_count_as_lost [Need::Peer, Need::Lossless],
    frames_without_receive_are_counted_as_lost [Need::Peer, Need::Lossless],
    cross_device_queues_require_host_memory,
);

const LOG_DEPTH: u8 = 3;
const DEPTH: usize = 1 << LOG_DEPTH;
/// Bytes of a frame's buffer.
const BYTES: usize = 2048;
/// An EtherType that is free for experiments.
const ETHERTYPE: u16 = 0x88b5;

fn polled(process: &Process) -> Result<DpaCq, Stop> {
    Ok(DpaCq::create(process, &DpaCqConfig::new(LOG_DEPTH, CqElement::NonDpa { vector: 0 }))?)
}

/// The opcode of CQE `index`, once it is written.
fn opcode(process: &Process, cq: &DpaCq, index: u64) -> Result<u8, Stop> {
    let opcode = || {
        let mut cqe = [0; 64];
        process.read(cq.ring_address() + 64 * index, &mut cqe).ok()?;
        (cqe[63] >> 4 != 0xf).then_some(cqe[63] >> 4)
    };
    until("a CQE", opcode)
}

fn new_sq_and_rq_are_ready(lab: &Lab) -> Result<(), Stop> {
    let Rig { process } = Rig::new(lab)?;
    let cq = polled(&process)?;
    let (sq, rq) = (
        DpaSq::create(&process, &cq, &DpaSqConfig::new(LOG_DEPTH))?,
        DpaRq::create(&process, &cq, &DpaRqConfig::new(LOG_DEPTH))?,
    );
    ensure_eq!(sq.object().query()?.state(), SqState::RDY, "the state of the SQ");
    ensure_eq!(rq.object().query()?.state(), RqState::RDY, "the state of the RQ");
    ensure_eq!(sq.object().query()?.cqn(), cq.number().0, "the CQ of the SQ");
    ensure_eq!(rq.tir().query()?.inline_rqn(), rq.number().0, "where the TIR leads");
    ensure!(sq.ring_address() != rq.ring_address(), "two rings at one address");
    // Through a CQ of the host.
    let host = process.domain().completion_queue(&CqConfig::new(16))?;
    let by_host = DpaSq::create(&process, &host, &DpaSqConfig::new(LOG_DEPTH))?;
    ensure_eq!(by_host.object().query()?.cqn(), host.object().cqn().0, "the host's CQ");
    by_host.destroy()?;
    failed("a CQ with queues", cq.clone().destroy(), "in use")?;
    sq.destroy()?;
    rq.destroy()?;
    Ok(cq.destroy()?)
}

fn rq_error_state_flushes_receives(lab: &Lab) -> Result<(), Stop> {
    const RESPONDER_ERROR: u8 = 0xe;
    let Rig { process } = Rig::new(lab)?;
    let cq = polled(&process)?;
    let rq = DpaRq::create(&process, &cq, &DpaRqConfig::new(LOG_DEPTH))?;
    let memory = process.alloc(BYTES as u64)?;
    let key = Mkey::create(&memory, &MkeyConfig::new(KeyAccess::LOCAL))?;
    let segment = Segment::data(BYTES as u32, key.id().0, memory.address());
    process.write(rq.ring_address(), segment.as_bytes())?;
    process.write(rq.record_address(), &1_u32.to_be_bytes())?;
    rq.set_err_state()?;
    ensure_eq!(rq.object().query()?.state(), RqState::ERR, "the state");
    ensure_eq!(opcode(&process, &cq, 0)?, RESPONDER_ERROR, "the opcode of its completion");
    Ok(())
}

fn sq_and_rq_keep_tis_and_transport_domain(lab: &Lab) -> Result<(), Stop> {
    let Rig { process } = Rig::new(lab)?;
    let cq = polled(&process)?;
    let domain = TransportDomain::create(process.device())?;
    let tis = SqTis::create(process.device(), &domain)?;
    let (mut send, mut receive) = (DpaSqConfig::new(LOG_DEPTH), DpaRqConfig::new(LOG_DEPTH));
    (send.tis, receive.td) = (Some(tis.clone()), Some(domain.clone()));
    let sq = DpaSq::create(&process, &cq, &send)?;
    let rq = DpaRq::create(&process, &cq, &receive)?;
    ensure_eq!(sq.object().query()?.tis_num_0(), tis.object().tisn().0, "the TIS of the SQ");
    let number = rq.tir().query()?.transport_domain();
    ensure_eq!(number, domain.object().number(), "the transport domain of the RQ");
    (send.tis, receive.td) = (None, None);
    failed("a TIS with an SQ", tis.clone().destroy(), "in use")?;
    failed("a domain with an RQ", domain.clone().destroy(), "in use")?;
    sq.destroy()?;
    rq.destroy()?;
    tis.destroy()?;
    Ok(domain.destroy()?)
}

fn unsupported_queue_attributes_are_rejected(lab: &Lab) -> Result<(), Stop> {
    let Rig { process } = Rig::new(lab)?;
    let cq = polled(&process)?;
    let good = DpaRqConfig::new(LOG_DEPTH);
    let list = DpaRqConfig { wq_type: WqType::LinkedList, ..good.clone() };
    failed("a list", DpaRq::create(&process, &cq, &list), "LinkedList")?;
    let padded = DpaRqConfig { end_pad_mode: WqEndPadMode::Align, ..good.clone() };
    failed("padding", DpaRq::create(&process, &cq, &padded), "Align")?;
    let mut wide = good.clone();
    wide.wq.log_wq_stride = Some(10);
    failed("WQEs of 1024 bytes", DpaRq::create(&process, &cq, &wide), "2^9")?;
    let deep = DpaRqConfig { wq: WqConfig::new(30), ..good };
    failed("2^30 receives", DpaRq::create(&process, &cq, &deep), "2^15")?;
    let mut several = DpaSqConfig::new(LOG_DEPTH);
    several.allow_multi_pkt_send_wqe = true;
    let sq = DpaSq::create(&process, &cq, &several);
    failed("WQEs of several frames", sq, "enhanced_multi_pkt_send_wqe")
}

fn queue_timestamp_format_matches_config(lab: &Lab) -> Result<(), Stop> {
    let Rig { process } = Rig::new(lab)?;
    let cq = polled(&process)?;
    let clocks = [
        (WqTsFormat::FreeRunning, TimestampFormat::FREE_RUNNING),
        (WqTsFormat::Default, TimestampFormat::DEFAULT),
    ];
    let (mut send, mut receive) = (DpaSqConfig::new(LOG_DEPTH), DpaRqConfig::new(LOG_DEPTH));
    for (wanted, expected) in clocks {
        (send.ext.ts_format, receive.ts_format) = (wanted, wanted);
        let (sq, rq) =
            (DpaSq::create(&process, &cq, &send)?, DpaRq::create(&process, &cq, &receive)?);
        ensure_eq!(sq.object().query()?.ts_format(), expected, "the clock of an SQ");
        ensure_eq!(rq.object().query()?.ts_format(), expected, "the clock of an RQ");
    }
    // Real time, which the device does not support.
    (send.ext.ts_format, receive.ts_format) = (WqTsFormat::RealTime, WqTsFormat::RealTime);
    failed("an SQ of real time", DpaSq::create(&process, &cq, &send), "REAL_TIME")?;
    failed("an RQ of real time", DpaRq::create(&process, &cq, &receive), "REAL_TIME")
}

fn sq_and_rq_are_destroyable_after_fatal_error(lab: &Lab) -> Result<(), Stop> {
    let Rig { process } = Rig::new(lab)?;
    let cq = polled(&process)?;
    let sq = DpaSq::create(&process, &cq, &DpaSqConfig::new(LOG_DEPTH))?;
    let rq = DpaRq::create(&process, &cq, &DpaRqConfig::new(LOG_DEPTH))?;
    fatal("the call that ends it", process.call(ends_with(), (200,)))?;
    fatal("the error state", rq.set_err_state())?;
    fatal("an SQ", DpaSq::create(&process, &cq, &DpaSqConfig::new(LOG_DEPTH)))?;
    fatal("an RQ", DpaRq::create(&process, &cq, &DpaRqConfig::new(LOG_DEPTH)))?;
    sq.destroy()?;
    rq.destroy()?;
    cq.destroy()?;
    Ok(process.destroy()?)
}

fn cross_device_queues_require_host_memory(lab: &Lab) -> Result<(), Stop> {
    let (other, own) = lab.owner_and_user()?;
    let Rig { process } = Rig::on(&own, &ProcessConfig::default())?;
    let uar = process.uar().extend(&other)?;
    let own = process.device();
    let domain = Domain::new(&other)?;
    let mut cq = domain.completion_queue(&CqConfig::new(16))?;
    let memory = RegisteredMemory::new(&other, 8192)?;
    let memory_at = |at| Some(QueueMemory::host(memory.umem.clone(), at));
    let mut send = DpaSqConfig::new(LOG_DEPTH);
    let near = DpaSq::create_cross_dev(&process, own, &cq, &send);
    failed("an SQ on the own context", near, "process's own")?;
    let heap = DpaSq::create_cross_dev(&process, &other, &cq, &send);
    failed("an SQ in the heap", heap, "memory of the host")?;
    (send.wq.ring, send.wq.record) = (memory_at(0), memory_at(4096));
    let foreign = DpaSq::create_cross_dev(&process, &other, &cq, &send);
    failed("an SQ without an extended UAR", foreign, "Uar::extend")?;
    (send.wq.uar, send.wq.pd) = (Some(uar.clone()), Some(domain.pd().clone()));
    let sq = DpaSq::create_cross_dev(&process, &other, &cq, &send)?;
    // The host posts to it: that the device takes it shows where it is.
    let nop = Segment::ctrl(0, sq.number().0, CompletionMode::Always, Request::Nop);
    memory.memory.write_at(0, nop.as_bytes())?;
    memory.memory.write_at(4096 + 4, &1_u32.to_be_bytes())?;
    let [a, b, c, d, e, f, g, h, ..] = *nop.as_bytes();
    raw::ring(uar.page(), u64::from_ne_bytes([a, b, c, d, e, f, g, h]));
    let cqe = until("the CQE of the NOP", || cq.poll())?;
    ensure_eq!(cqe.qpn().0, sq.number().0, "whose completion it is");

    let mut receive = DpaRqConfig::new(LOG_DEPTH);
    let near = DpaRq::create_cross_dev(&process, own, &cq, &receive);
    failed("an RQ on the own context", near, "process's own")?;
    (receive.wq.ring, receive.wq.record) = (memory_at(4096 + 1024), memory_at(4096 + 64));
    (receive.wq.uar, receive.wq.pd) = (Some(uar), Some(domain.pd().clone()));
    let rq = DpaRq::create_cross_dev(&process, &other, &cq, &receive)?;
    ensure_eq!(rq.object().query()?.state(), RqState::RDY, "the state of the RQ");
    rq.destroy()?;
    Ok(sq.destroy()?)
}

fn mac(device: &Device) -> Result<[u8; 6], Stop> {
    let context = device.query_nic_vport_context()?;
    let address = context.permanent_address();
    let [.., a, b] = u32::from(address.mac_addr_47_32()).to_be_bytes();
    let [c, d, e, f] = address.mac_addr_31_0().to_be_bytes();
    Ok([a, b, c, d, e, f])
}

/// Frame `n` between these addresses, of 60 to 1514 bytes.
fn frame(n: usize, to: [u8; 6], from: [u8; 6]) -> Vec<u8> {
    let length = 60 + n * 97 % 1455;
    let payload = (0..length - 14).map(|at| (n * 13 + at * 5 + at / 256) as u8);
    to.into_iter().chain(from).chain(ETHERTYPE.to_be_bytes()).chain(payload).collect()
}

/// The program's side: its queues and its handler.
struct Reflector {
    rq: DpaRq,
    _sq: DpaSq,
    _key: Mkey,
    _setup: verbless_flexio::Buffer,
}

fn reflector(rig: &Rig, counter: Option<Arc<QCounter>>) -> Result<Reflector, Stop> {
    let process = &rig.process;
    let config = EventHandlerConfig {
        outbox: Some(rig.outbox()?),
        ..EventHandlerConfig::new(Handler::named("reflects"))
    };
    let handler = EventHandler::create(process, &config)?;
    let cq =
        DpaCq::create(process, &DpaCqConfig::new(LOG_DEPTH, CqElement::Thread(handler.clone())))?;
    let rq = DpaRq::create(process, &cq, &DpaRqConfig { counter, ..DpaRqConfig::new(LOG_DEPTH) })?;
    let sent = polled(process)?;
    let sq = DpaSq::create(process, &sent, &DpaSqConfig::new(LOG_DEPTH))?;
    let memory = process.alloc((2 * DEPTH * BYTES) as u64)?;
    let key = Mkey::create(&memory, &MkeyConfig::new(KeyAccess::LOCAL))?;
    for slot in 0..DEPTH as u64 {
        let into = memory.address() + slot * BYTES as u64;
        let segment = Segment::data(BYTES as u32, key.id().0, into);
        process.write(rq.ring_address() + 16 * slot, segment.as_bytes())?;
    }
    process.write(rq.record_address(), &(DEPTH as u32).to_be_bytes())?;
    let addresses = [
        cq.ring_address(),
        cq.record_address(),
        rq.record_address(),
        sq.record_address(),
        sq.ring_address(),
        memory.address(),
        memory.address() + (DEPTH * BYTES) as u64,
        sent.ring_address(),
        sent.record_address(),
    ];
    let numbers =
        [cq.number().0, sq.number().0, key.id().0, LOG_DEPTH.into(), BYTES as u32, 0, 0, 0];
    let addresses = addresses.iter().flat_map(|word| word.to_le_bytes());
    let numbers = numbers.iter().flat_map(|number: &u32| number.to_le_bytes());
    let setup = process.alloc_from(&addresses.chain(numbers).collect::<Vec<_>>())?;
    handler.run(setup.address())?;
    Ok(Reflector { rq, _sq: sq, _key: key, _setup: setup })
}

fn program_reflects_frames_with_swapped_macs(lab: &Lab) -> Result<(), Stop> {
    let count = lab.times(50, 10_000) as usize;
    let rig = Rig::new(lab)?;
    let device = rig.process.device();
    let other = lab.other_device()?;
    let (here, there) = (mac(device)?, mac(&other)?);
    let reflector = reflector(&rig, None)?;
    let frames = FlowAttr::to(here).ethertype(ETHERTYPE);
    let rule = rig.process.domain().steer(&frames, reflector.rq.tir())?;

    let domain = Domain::new(&other)?;
    let mut send_cq = domain.completion_queue(&CqConfig::new(64))?;
    let mut receive_cq = domain.completion_queue(&CqConfig::new(64))?;
    let mut sender = domain.sq(&SqConfig::new(64), &send_cq)?;
    let mut receiver = domain.rq(&RqConfig::new(1), &receive_cq)?;
    let back = receiver.steer(&FlowAttr::to(there).ethertype(ETHERTYPE))?;
    let region = domain.region(2 * BYTES, KeyAccess::LOCAL)?;
    for n in 0..count {
        receiver.post(region.sge(0, BYTES)?, 0)?;
        let bytes = frame(n, here, there);
        region.write_at(BYTES, &bytes)?;
        let rest = region.sge(BYTES + 18, bytes.len() - 18)?;
        sender.post(&EthSend::new(&bytes[..18], rest).signaled(), 0)?;
        until("the frame was sent", || sender.poll(&mut send_cq))??;
        let arrived = until("the reflected frame", || receiver.poll(&mut receive_cq))??;
        let expected = frame(n, there, here);
        ensure_eq!(arrived.byte_len() as usize, expected.len(), "the length of a frame");
        let mut seen = vec![0; expected.len()];
        region.read_at(0, &mut seen)?;
        ensure!(seen == expected, "frame {n} with its addresses swapped");
    }
    failed("an RQ with a rule", reflector.rq.destroy(), "in use")?;
    // Its objects are destroyed with the rule.
    rule.destroy()?;
    back.destroy()?;
    Ok(())
}

fn burst_frames_return_or_count_as_lost(lab: &Lab) -> Result<(), Stop> {
    const FRAMES: usize = 200;
    let rig = Rig::new(lab)?;
    let device = rig.process.device();
    let other = lab.other_device()?;
    let (here, there) = (mac(device)?, mac(&other)?);
    let counter = Arc::new(device.alloc_q_counter()?);
    let reflector = reflector(&rig, Some(counter.clone()))?;
    let frames = FlowAttr::to(here).ethertype(ETHERTYPE);
    let _rule = rig.process.domain().steer(&frames, reflector.rq.tir())?;

    let domain = Domain::new(&other)?;
    let mut send_cq = domain.completion_queue(&CqConfig::new(256))?;
    let mut receive_cq = domain.completion_queue(&CqConfig::new(256))?;
    let mut sender = domain.sq(&SqConfig::new(FRAMES as u32), &send_cq)?;
    let mut receiver = domain.rq(&RqConfig::new(FRAMES as u32), &receive_cq)?;
    let _back = receiver.steer(&FlowAttr::to(there).ethertype(ETHERTYPE))?;
    let region = domain.region(2 * FRAMES * BYTES, KeyAccess::LOCAL)?;
    for n in 0..FRAMES {
        receiver.post(region.sge(n * BYTES, BYTES)?, n as u64)?;
        region.write_at((FRAMES + n) * BYTES, &frame(n, here, there))?;
    }
    // All at once: more than the program's rings hold.
    let mut batch = sender.batch();
    for n in 0..FRAMES {
        let bytes = frame(n, here, there);
        let rest = region.sge((FRAMES + n) * BYTES + 18, bytes.len() - 18)?;
        let request = EthSend::new(&bytes[..18], rest);
        match n + 1 == FRAMES {
            true => batch.post(&request.signaled(), 0)?,
            false => batch.post(&request, 0)?,
        };
    }
    batch.ring();
    until("the frames were sent", || sender.poll(&mut send_cq))??;
    let (mut came, mut last) = (0, None);
    until("all frames are accounted for", || {
        while let Some(done) = receiver.poll(&mut receive_cq) {
            last = Some(done.map(|done| done.cookie as usize));
            came += 1;
        }
        let lost = counter.query().ok()?.out_of_buffer() as usize;
        (came + lost == FRAMES).then_some(())
    })?;
    ensure!(came >= DEPTH, "only {came} frames were reflected into {DEPTH} receives");
    ensure!(matches!(last, Some(Ok(at)) if at + 1 == came), "{last:?} after {came} frames");
    // They are a subsequence of the sent frames.
    let mut sent = 0..FRAMES;
    for at in 0..came {
        let mut seen = vec![0; BYTES];
        region.read_at(at * BYTES, &mut seen)?;
        let is_it = |n: &usize| seen.starts_with(&frame(*n, there, here));
        ensure!(sent.find(is_it).is_some(), "reflected frame {at} was never sent");
    }
    Ok(())
}

fn frames_without_receive_are_counted_as_lost(lab: &Lab) -> Result<(), Stop> {
    const RESPONDER_SEND: u8 = 2;
    let Rig { process } = Rig::new(lab)?;
    let (device, other) = (process.device(), lab.other_device()?);
    let (here, there) = (mac(device)?, mac(&other)?);
    let cq = polled(&process)?;
    let counter = Arc::new(device.alloc_q_counter()?);
    let config = DpaRqConfig { counter: Some(counter.clone()), ..DpaRqConfig::new(LOG_DEPTH) };
    let rq = DpaRq::create(&process, &cq, &config)?;
    let _rule = process.domain().steer(&FlowAttr::to(here), rq.tir())?;
    let domain = Domain::new(&other)?;
    let mut send_cq = domain.completion_queue(&CqConfig::new(32))?;
    let mut sender = domain.sq(&SqConfig { inline: 64, ..SqConfig::new(16) }, &send_cq)?;
    let mut send = |n| -> Result<(), Stop> {
        let bytes = frame(n, here, there);
        sender.post(&EthSend::new(&bytes[..18], Inline(&bytes[18..60])).signaled(), 0)?;
        until("the frame was sent", || sender.poll(&mut send_cq))??;
        Ok(())
    };
    for lost in 1..=3 {
        send(0)?;
        let counted = || counter.query().ok().filter(|it| it.out_of_buffer() >= lost);
        let count = until("a lost frame", counted)?.out_of_buffer();
        ensure_eq!(count, lost, "frames that were lost");
    }
    let memory = process.alloc(BYTES as u64)?;
    let key = Mkey::create(&memory, &MkeyConfig::new(KeyAccess::LOCAL))?;
    let segment = Segment::data(BYTES as u32, key.id().0, memory.address());
    process.write(rq.ring_address(), segment.as_bytes())?;
    process.write(rq.record_address(), &1_u32.to_be_bytes())?;
    send(0)?;
    ensure_eq!(opcode(&process, &cq, 0)?, RESPONDER_SEND, "the opcode of the next frame");
    let mut seen = vec![0; 60];
    memory.read_at(0, &mut seen)?;
    ensure!(seen == frame(0, here, there), "the next frame");
    Ok(())
}
