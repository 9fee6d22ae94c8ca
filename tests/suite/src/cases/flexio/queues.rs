//! Queues of FlexIO's host library: CQs and their event targets, QPs that DPA programs post to, and
//! QP states.

use std::sync::Arc;

use verbless_command::{DpaEqAttr, Gid, KeyAccess, Mtu, RemoteAccess};
use verbless_flexio::{
    CqElement, CqModeration, CqPeriodMode, DpaCq, DpaCqConfig, DpaQp, DpaQpConfig, DpaRq,
    DpaRqConfig, DpaSq, DpaSqConfig, EventHandler, EventHandlerConfig, Function, Handler, Mkey,
    MkeyConfig, OutboxId, Process, QpAttr, QpAttrMask, QpReceive, QpState, QpTransport,
    QueueMemory, Rmp, RmpConfig, RpcAttr, SqTis, TransportDomain, WqType,
};
use verbless_flexio_dev::Segment;
use verbless_prm::{CqState, CqStatus, MiniCqeFormat};
use verbless_queue::service::Service;
use verbless_queue::wr::Send;
use verbless_queue::{ConnectOptions, CqConfig, PeerAddress, QpConfig, Rc, Region};

use super::failed;
use super::rig::Rig;
use crate::case::cases;
use crate::endpoint::quiet;
use crate::need::cap;
use crate::raw::RegisteredMemory;
use crate::{Lab, Need, Stop, ensure, ensure_eq, pattern, until};

cases!(
    "flexio_queues",
    "FlexIO's queues: completion queues and their elements, queue pairs, states, fatal errors.",
    needs [Need::DpaLayouts, cap!(apu), Need::DpaProgram]:
    new_cq_is_armed_unless_no_arm_is_set,
    always_armed_cq_makes_event_per_cqe,
    collapsed_cq_keeps_newest_cqe_in_first_entry,
    overrun_breaks_cq_unless_ignored,
    moderation_is_set_changed_and_queried,
    moderated_cqes_share_one_event,
    non_dpa_cq_is_polled_in_host_memory,
    msix_cq_raises_vector_of_emulated_device,
    unsupported_cq_attributes_are_rejected,
    cq_and_handler_in_use_reject_destroy,
    program_qp_writes_to_host_peer,
    program_qp_receives_from_host_peer,
    program_qps_receive_from_one_rmp,
    tis_and_td_of_another_context_are_rejected,
    qp_state_follows_modify,
    qp_accepts_each_mtu_and_access_right,
    modify_in_rts_changes_only_masked_attributes,
    unsupported_transports_are_rejected_by_name,
    long_run_handles_each_event_once,
    call_attributes_set_storage_name_and_timeout,
);

/// The counters of the program's handler `drain`.
pub(super) struct Drain {
    memory: verbless_flexio::Buffer,
}

impl Drain {
    /// A CQ whose CQEs `drain` counts.
    pub(super) fn cq(
        rig: &Rig,
        log_depth: u8,
        change: impl FnOnce(&mut DpaCqConfig),
    ) -> Result<(Self, DpaCq, EventHandler), Stop> {
        let process = &rig.process;
        let config = EventHandlerConfig {
            outbox: Some(rig.outbox()?),
            ..EventHandlerConfig::new(Handler::named("drain"))
        };
        let handler = EventHandler::create(process, &config)?;
        let mut config = DpaCqConfig::new(log_depth, CqElement::Thread(handler.clone()));
        change(&mut config);
        let cq = DpaCq::create(process, &config)?;
        let memory = process.alloc_from(&[0; 64])?;
        memory.write_at(16, &cq.ring_address().to_le_bytes())?;
        memory.write_at(24, &cq.record_address().to_le_bytes())?;
        memory.write_at(32, &cq.number().0.to_le_bytes())?;
        memory.write_at(36, &u32::from(log_depth).to_le_bytes())?;
        handler.run(memory.address())?;
        Ok((Self { memory }, cq, handler))
    }

    fn count(&self) -> Option<u64> {
        let mut count = [0; 8];
        self.memory.read_at(0, &mut count).ok()?;
        Some(u64::from_le_bytes(count))
    }

    pub(super) fn waits_for(&self, count: u64) -> Result<(), Stop> {
        until("the expected number of CQEs", || self.count().filter(|&it| it >= count))?;
        ensure_eq!(self.count(), Some(count), "CQEs that the handler has polled");
        Ok(())
    }
}

/// Writes two CQEs of zeros to a CQ.
fn trigger(rig: &Rig, cq: &DpaCq) -> Result<(), Stop> {
    let trigger = Function::<(OutboxId, u32, bool), u64>::named("trigger_by");
    let outbox = rig.outbox()?;
    let done = rig.process.call(trigger, (outbox.id(), cq.number().0, false))?;
    ensure_eq!(done, 0, "status and errno of the doorbells");
    Ok(())
}

fn new_cq_is_armed_unless_no_arm_is_set(lab: &Lab) -> Result<(), Stop> {
    let rig = Rig::new(lab)?;
    let (drain, cq, _) = Drain::cq(&rig, 4, |_| {})?;
    ensure_eq!(cq.object().query()?.st(), CqState::ARMED, "the state of a new CQ");
    for round in 1..=3 {
        trigger(&rig, &cq)?;
        drain.waits_for(2 * round)?;
    }
    let (drain, cq, handler) = Drain::cq(&rig, 4, |config| config.no_arm = true)?;
    ensure_eq!(cq.object().query()?.st(), CqState::FIRED, "the state of a CQ with no_arm");
    trigger(&rig, &cq)?;
    quiet("a run for a CQ that is not armed", || drain.count().filter(|&it| it != 0))?;
    ensure_eq!(handler.query()?.runs, 0, "runs");
    Ok(())
}

fn long_run_handles_each_event_once(lab: &Lab) -> Result<(), Stop> {
    const LOG_DEPTH: u8 = 12;
    // Half of the ring, so that a batch cannot overrun the CQ before the handler polls it.
    const BATCH: u64 = 1 << (LOG_DEPTH - 1);
    let rig = Rig::new(lab)?;
    let (drain, cq, handler) = Drain::cq(&rig, LOG_DEPTH, |_| {})?;
    let trigger_often = || Function::<(u32, u32), ()>::named("trigger_often");
    let (events, mut made) = (lab.times(5_000, 1_000_000), 0);
    while made < events {
        let batch = BATCH.min(events - made);
        rig.process.call(trigger_often(), (cq.number().0, batch as u32))?;
        made += batch;
        drain.waits_for(made)?;
    }
    let info = handler.query()?;
    ensure!((1..=events).contains(&info.runs), "{} runs for {events} events", info.runs);
    Ok(())
}

fn always_armed_cq_makes_event_per_cqe(lab: &Lab) -> Result<(), Stop> {
    let rig = Rig::new(lab)?;
    // A handler that never arms.
    let config = EventHandlerConfig {
        continuable: true,
        ..EventHandlerConfig::new(Handler::named("continues"))
    };
    let handler = EventHandler::create(&rig.process, &config)?;
    let at = rig.process.alloc_from(&[0; 8])?;
    handler.run(at.address())?;
    let mut config = DpaCqConfig::new(6, CqElement::Thread(handler.clone()));
    config.always_armed = true;
    let cq = DpaCq::create(&rig.process, &config)?;
    ensure_eq!(cq.object().query()?.st(), CqState::ALWAYS_ARMED, "the state");
    for pairs in 1..=5_u32 {
        trigger(&rig, &cq)?;
        let handled = || handler.query().ok().filter(|it| it.events == 2 * pairs);
        until("two events for two CQEs", handled)?;
    }
    Ok(())
}

/// A queue pair that a DPA program posts to, and its peer, a queue pair of the host.
pub(super) struct ProgramPair<S: Service = Rc> {
    pub(super) qp: DpaQp,
    pub(super) host: verbless_queue::Qp<S>,
    _host_cq: verbless_queue::Cq,
    pub(super) region: Region,
    key: Mkey,
    pub(super) from: verbless_flexio::Buffer,
    posted: u16,
    log_depth: u8,
}

/// Bytes of memory at each end.
pub(super) const BYTES: usize = 4096;

impl ProgramPair {
    fn new(rig: &Rig, cq: &DpaCq, receive: QpReceive) -> Result<Self, Stop> {
        let log_depth = 3;
        let config = DpaQpConfig { receive, ..DpaQpConfig::rc(cq, cq, log_depth) };
        let options = ConnectOptions::default();
        let mut pair = Self::unconnected(rig, &config)?;
        let domain = rig.process.domain();
        let address = domain.address(&pair.host, &options)?;
        domain.connect(&mut pair.host, &pair.qp.address(&options)?, &options)?;
        pair.qp.connect(&address, &options)?;
        Ok(pair)
    }
}

impl<S: Service> ProgramPair<S> {
    /// Both queue pairs in RESET; the program's has a send queue.
    pub(super) fn unconnected(rig: &Rig, config: &DpaQpConfig) -> Result<Self, Stop> {
        let process = &rig.process;
        let domain = process.domain();
        let host_cq = domain.completion_queue(&CqConfig::new(64))?;
        let host = domain.queue_pair_of(&QpConfig::new(8, 8), &host_cq, &host_cq)?;
        let from = process.alloc(BYTES as u64)?;
        Ok(Self {
            qp: DpaQp::create(process, config)?,
            host,
            _host_cq: host_cq,
            region: domain.region(BYTES, KeyAccess::ALL)?,
            key: Mkey::create(&from, &MkeyConfig::new(KeyAccess::LOCAL))?,
            from,
            posted: 0,
            log_depth: config.log_sq_depth.unwrap_or(0),
        })
    }

    /// The program writes `length` bytes at `at` to the same offset of the host's region.
    pub(super) fn write(&mut self, rig: &Rig, at: usize, length: u32) -> Result<(), Stop> {
        type Arguments = (u64, u32, u16, u64, u64, u64, u64, u32);
        let post = Function::<Arguments, ()>::named("post_write");
        let pi = self.posted;
        self.posted += 1;
        let slot = u64::from(pi) & ((1 << self.log_depth) - 1);
        let to = self.region.remote(at, length as usize)?;
        let keys = u64::from(self.key.id().0) << 32 | u64::from(to.rkey.0);
        let (from, record) = (self.from.address() + at as u64, self.qp.record_address() + 4);
        let ring = self.qp.sq_ring_address() + 64 * slot;
        let attr = RpcAttr { outbox: Some(rig.outbox()?), ..RpcAttr::default() };
        let words = (ring, self.qp.number().0, pi, record, from, to.address, keys, length);
        Ok(rig.process.call_with_attr(&attr, post, words)?)
    }
}

fn collapsed_cq_keeps_newest_cqe_in_first_entry(lab: &Lab) -> Result<(), Stop> {
    let rig = Rig::new(lab)?;
    let mut config = DpaCqConfig::new(1, CqElement::NonDpa { vector: 0 });
    config.collapsed = true;
    // Nothing writes the consumer index to its doorbell record.
    config.overrun_ignore = true;
    let cq = DpaCq::create(&rig.process, &config)?;
    let mut pair = ProgramPair::new(&rig, &cq, QpReceive::None)?;
    for counter in 0..6_u16 {
        pair.write(&rig, 0, 64)?;
        let newest = || {
            let mut bytes = [0; 128];
            rig.process.read(cq.ring_address(), &mut bytes).ok()?;
            let count = u16::from_be_bytes([bytes[60], bytes[61]]);
            // Opcode and owner bit: both stay 0.
            (bytes[63] == 0 && count == counter).then_some(bytes[127])
        };
        let second = until("the CQE of the newest request", newest)?;
        ensure_eq!(second, 0xf1, "the second entry");
    }
    ensure_eq!(cq.object().query()?.status(), CqStatus::OK, "the status");
    Ok(())
}

fn overrun_breaks_cq_unless_ignored(lab: &Lab) -> Result<(), Stop> {
    let rig = Rig::new(lab)?;
    for (overrun_ignore, collapsed) in [(true, false), (false, false), (false, true)] {
        let mut config = DpaCqConfig::new(1, CqElement::NonDpa { vector: 0 });
        (config.overrun_ignore, config.collapsed) = (overrun_ignore, collapsed);
        let cq = DpaCq::create(&rig.process, &config)?;
        trigger(&rig, &cq)?;
        ensure_eq!(cq.object().query()?.status(), CqStatus::OK, "the status of a full CQ");
        let more = Function::<(OutboxId, u32, bool), u64>::named("trigger_by");
        rig.process.call(more, (rig.outbox()?.id(), cq.number().0, false))?;
        let expected = if overrun_ignore { CqStatus::OK } else { CqStatus::OVERFLOW };
        let reported = || cq.object().query().ok().filter(|it| it.status() == expected);
        until("the status after an overrun", reported)?;
    }
    Ok(())
}

fn moderation_is_set_changed_and_queried(lab: &Lab) -> Result<(), Stop> {
    let rig = Rig::new(lab)?;
    let begins = CqModeration { max_count: 7, period: 100, mode: CqPeriodMode::Cqe };
    let (_, cq, _) = Drain::cq(&rig, 4, |config| config.moderation = begins)?;
    ensure_eq!(cq.query_moderation()?, begins, "the moderation of a new CQ");
    let changed = CqModeration { max_count: 9, period: 4095, mode: CqPeriodMode::Event };
    cq.modify_moderation(changed)?;
    ensure_eq!(cq.query_moderation()?, changed, "the moderation that was changed");
    let long = CqModeration { period: 4096, ..changed };
    failed("a period of 13 bits", cq.modify_moderation(long), "4095")?;
    ensure_eq!(cq.query_moderation()?, changed, "the moderation after a refusal");
    Ok(())
}

fn moderated_cqes_share_one_event(lab: &Lab) -> Result<(), Stop> {
    const CQES: u32 = 6;
    const ROUNDS: u32 = 20;
    let rig = Rig::new(lab)?;
    let at = rig.process.alloc_from(&[0; 8])?;
    let trigger = |cq: &DpaCq| {
        let attr = RpcAttr { outbox: Some(rig.outbox()?), ..RpcAttr::default() };
        let often = Function::<(u32, u32), ()>::named("trigger_often");
        Ok::<_, Stop>(rig.process.call_with_attr(&attr, often, (cq.number().0, CQES))?)
    };
    // The number of events that six CQEs make on an always armed CQ.
    let events = |moderation: CqModeration| -> Result<Vec<u32>, Stop> {
        let handler = Handler::named("continues");
        let config = EventHandlerConfig { continuable: true, ..EventHandlerConfig::new(handler) };
        let handler = EventHandler::create(&rig.process, &config)?;
        handler.run(at.address())?;
        let mut config = DpaCqConfig::new(7, CqElement::Thread(handler.clone()));
        (config.always_armed, config.moderation) = (true, moderation);
        let cq = DpaCq::create(&rig.process, &config)?;
        let mut all = Vec::new();
        for _ in 0..ROUNDS {
            let before = handler.query()?.events;
            trigger(&cq)?;
            let some = || handler.query().ok().map(|it| it.events - before).filter(|&it| it > 0);
            until("an event", some)?;
            // One period, after which no CQE waits.
            std::thread::sleep(std::time::Duration::from_millis(5));
            all.push(handler.query()?.events - before);
        }
        Ok(all)
    };
    ensure_eq!(events(CqModeration::default())?, [CQES; ROUNDS as usize], "events without it");
    // On a busy machine the period of 4 ms may end among the six.
    let moderated = CqModeration { max_count: 6, period: 4095, mode: CqPeriodMode::Cqe };
    let some = events(moderated)?;
    ensure!(some.contains(&1) && some.iter().sum::<u32>() < ROUNDS * CQES, "events: {some:?}");
    Ok(())
}

fn non_dpa_cq_is_polled_in_host_memory(lab: &Lab) -> Result<(), Stop> {
    let rig = Rig::new(lab)?;
    let device = rig.process.device();
    let host = RegisteredMemory::new(device, 4096)?;
    host.memory.write_at(0, &[0xf0; 1024])?;
    let mut config = DpaCqConfig::new(4, CqElement::NonDpa { vector: 0 });
    config.ring = Some(QueueMemory::host(host.umem.clone(), 0));
    config.record = Some(QueueMemory::host(host.umem.clone(), 1024));
    let cq = DpaCq::create(&rig.process, &config)?;
    ensure_eq!(cq.ring_address(), host.umem.address(), "the address of the ring, in host memory");
    let mut pair = ProgramPair::new(&rig, &cq, QpReceive::None)?;
    pair.from.write_at(0, &pattern(1, BYTES))?;
    for counter in 0..3_u16 {
        pair.write(&rig, 0, 100)?;
        let cqe = || {
            let mut bytes = [0; 64];
            host.memory.read_at(64 * usize::from(counter), &mut bytes).ok()?;
            (bytes[63] == 0).then_some(u16::from_be_bytes([bytes[60], bytes[61]]))
        };
        ensure_eq!(until("a CQE in host memory", cqe)?, counter, "the wqe_counter of the CQE");
    }
    let mut bytes = vec![0; 100];
    pair.region.read_at(0, &mut bytes)?;
    ensure!(bytes == pattern(1, BYTES)[..100], "the bytes that were written");
    Ok(())
}

fn msix_cq_raises_vector_of_emulated_device(lab: &Lab) -> Result<(), Stop> {
    let rig = Rig::new(lab)?;
    let process = &rig.process;
    let device = process.device();
    let emulated = device.create_emulated_device(process.token(), 1, 4)?;
    let eq = |raises| -> Result<_, Stop> {
        let ring = process.alloc(64 << 6)?;
        ring.fill(1)?;
        let ring = QueueMemory::dpa(&ring).for_command();
        let uar = process.uar().page().clone();
        let attr = DpaEqAttr { raises, ..DpaEqAttr::new(ring, 6, uar) };
        Ok(Arc::new(device.create_dpa_eq(process.token(), attr)?))
    };
    let mute = eq(None)?;
    let config = DpaCqConfig::new(4, CqElement::DpaMsixEmulated(mute.clone()));
    failed("MSI-X by an EQ without a vector", DpaCq::create(process, &config), "raises no vector")?;
    let raises = eq(Some((emulated.clone(), 2)))?;
    let external = DpaCq::create(process, &DpaCqConfig::new(4, CqElement::ExtEq(mute.clone())))?;
    ensure_eq!(CqElement::ExtEq(mute).element_type(), 2, "the element type of a DPA EQ");
    let element = CqElement::DpaMsixEmulated(raises.clone());
    ensure_eq!(element.element_type(), 9, "the element type of emulated MSI-X");
    let cq = DpaCq::create(process, &DpaCqConfig::new(4, element))?;
    let arm = Function::<(u32, u32), ()>::named("arm_events");
    let attr = RpcAttr { outbox: Some(rig.outbox()?), ..RpcAttr::default() };
    process.call_with_attr(&attr, arm, (raises.id(), 0))?;
    trigger(&rig, &external)?;
    quiet("a vector by an EQ without one", || emulated.raised().ok().filter(|it| it[2] != 0))?;
    trigger(&rig, &cq)?;
    until("the vector", || emulated.raised().ok().filter(|it| it[2] == 1))?;
    Ok(())
}

fn unsupported_cq_attributes_are_rejected(lab: &Lab) -> Result<(), Stop> {
    let rig = Rig::new(lab)?;
    let process = &rig.process;
    let plain = DpaCqConfig::new(4, CqElement::NonDpa { vector: 0 });
    ensure_eq!(plain.element.element_type(), 8, "the element type of a non-DPA CQ");
    let mut config = plain.clone();
    config.compression = Some(MiniCqeFormat::RX_HASH);
    failed("compression", DpaCq::create(process, &config), "cqe_compression")?;
    let mut config = plain.clone();
    config.log_depth = 31;
    failed("2^31 CQEs", DpaCq::create(process, &config), "2^22")?;
    let other = Rig::new(lab)?;
    let handler = other.handler("drain")?;
    ensure_eq!(
        CqElement::Thread(handler.clone()).element_type(),
        0,
        "the element type of a thread"
    );
    let config = DpaCqConfig::new(4, CqElement::Thread(handler));
    failed("a handler of another process", DpaCq::create(process, &config), "another process")
}

fn cq_and_handler_in_use_reject_destroy(lab: &Lab) -> Result<(), Stop> {
    let rig = Rig::new(lab)?;
    let (_, cq, handler) = Drain::cq(&rig, 4, |_| {})?;
    let qp = DpaQp::create(&rig.process, &DpaQpConfig::rc(&cq, &cq, 2))?;
    failed("a CQ with a queue pair", cq.clone().destroy(), "in use")?;
    failed("the handler of a CQ", handler.clone().destroy(), "in use")?;
    qp.destroy()?;
    cq.destroy()?;
    Ok(handler.destroy()?)
}

fn program_qp_writes_to_host_peer(lab: &Lab) -> Result<(), Stop> {
    let rig = Rig::new(lab)?;
    let (drain, cq, _) = Drain::cq(&rig, 4, |_| {})?;
    let mut pair = ProgramPair::new(&rig, &cq, QpReceive::None)?;
    let bytes = pattern(5, BYTES);
    pair.from.write_at(0, &bytes)?;
    for part in 0..16 {
        pair.write(&rig, part * 256, 256)?;
        drain.waits_for(part as u64 + 1)?;
    }
    let mut back = vec![0; BYTES];
    pair.region.read_at(0, &mut back)?;
    ensure!(back == bytes, "the bytes at the host");
    Ok(())
}

fn program_qp_receives_from_host_peer(lab: &Lab) -> Result<(), Stop> {
    let rig = Rig::new(lab)?;
    let (drain, cq, _) = Drain::cq(&rig, 4, |_| {})?;
    let receive = QpReceive::Regular { log_depth: 2 };
    let mut pair = ProgramPair::new(&rig, &cq, receive)?;
    ensure_eq!(pair.qp.sq_ring_address(), pair.qp.rq_ring_address() + 64, "the SQ follows the RQ");
    let into = rig.process.alloc(4 * 64)?;
    into.fill(0)?;
    let key = Mkey::create(&into, &MkeyConfig::new(KeyAccess::LOCAL))?;
    for slot in 0..4_u64 {
        let segment = Segment::data(64, key.id().0, into.address() + 64 * slot);
        rig.process.write(pair.qp.rq_ring_address() + 16 * slot, segment.as_bytes())?;
    }
    rig.process.write(pair.qp.record_address(), &4_u32.to_be_bytes())?;
    let bytes = pattern(6, 256);
    pair.region.write_at(0, &bytes)?;
    for part in 0..4 {
        pair.host.post(&Send::new(pair.region.sge(part * 64, 64)?).signaled(), 0)?;
    }
    drain.waits_for(4)?;
    let mut back = vec![0; 256];
    into.read_at(0, &mut back)?;
    ensure!(back == bytes, "the bytes that were received");
    Ok(())
}

fn program_qps_receive_from_one_rmp(lab: &Lab) -> Result<(), Stop> {
    [WqType::LinkedList, WqType::Cyclic].into_iter().try_for_each(|it| receive_from_rmp(lab, it))
}

/// Two queue pairs receive from an RMP whose WQEs each link to the third next one, which only a
/// linked list follows.
fn receive_from_rmp(lab: &Lab, wq_type: WqType) -> Result<(), Stop> {
    const STEP: usize = 3;
    let rig = Rig::new(lab)?;
    let process = &rig.process;
    let (drain, cq, _) = Drain::cq(&rig, 4, |_| {})?;
    let pool = Rmp::create(process, &RmpConfig { wq_type, ..RmpConfig::new(3) })?;
    let into = process.alloc(8 * 64)?;
    into.fill(0)?;
    let key = Mkey::create(&into, &MkeyConfig::new(KeyAccess::LOCAL))?;
    for slot in 0..8 {
        let next = Segment::shared_receive(((slot + STEP) % 8) as u16, 0);
        let data = Segment::data(64, key.id().0, into.address() + 64 * slot as u64);
        let at = pool.ring_address() + 32 * slot as u64;
        process.write(at, &[*next.as_bytes(), *data.as_bytes()].concat())?;
    }
    process.write(pool.record_address(), &6_u32.to_be_bytes())?;
    let mut pairs = [0, 1].map(|_| ProgramPair::new(&rig, &cq, (&pool).into()));
    let bytes = pattern(7, 6 * 64);
    for part in 0..6 {
        let pair = pairs[part % 2].as_mut().map_err(|stop| Stop::fail(format!("{stop:?}")))?;
        pair.region.write_at(part * 64, &bytes[part * 64..][..64])?;
        pair.host.post(&Send::new(pair.region.sge(part * 64, 64)?).signaled(), 0)?;
        drain.waits_for(part as u64 + 1)?;
    }
    for part in 0..6 {
        let slot = if wq_type == WqType::Cyclic { part } else { part * STEP % 8 };
        let mut back = vec![0; 64];
        into.read_at(slot as u64 * 64, &mut back)?;
        ensure!(
            back == bytes[part * 64..][..64],
            "message {part} in receive {slot} of {wq_type:?}"
        );
    }
    failed("an RMP with queue pairs", pool.clone().destroy(), "in use")?;
    drop(pairs);
    pool.destroy()?;
    let mut narrow = RmpConfig::new(3);
    narrow.wq.log_wq_stride = Some(4);
    failed("WQEs without a link", Rmp::create(process, &narrow), "32 to 512")
}

fn tis_and_td_of_another_context_are_rejected(lab: &Lab) -> Result<(), Stop> {
    let device = lab.device()?;
    let domain = TransportDomain::create(&device)?;
    let tis = SqTis::create(&device, &domain)?;
    let rig = Rig::new(lab)?;
    let cq = DpaCq::create(&rig.process, &DpaCqConfig::new(4, CqElement::NonDpa { vector: 0 }))?;
    let config = DpaSqConfig { tis: Some(tis.clone()), ..DpaSqConfig::new(3) };
    let sq = DpaSq::create(&rig.process, &cq, &config);
    drop(config);
    failed("an SQ with a TIS of another context", sq, "another device context")?;
    let mut config = DpaRqConfig::new(3);
    config.td = Some(domain.clone());
    let rq = DpaRq::create(&rig.process, &cq, &config);
    failed("an RQ with a domain of another context", rq, "another device context")?;
    config.td = None;
    tis.destroy()?;
    Ok(domain.destroy()?)
}

fn qp_state_follows_modify(lab: &Lab) -> Result<(), Stop> {
    let rig = Rig::new(lab)?;
    let cq = DpaCq::create(&rig.process, &DpaCqConfig::new(4, CqElement::NonDpa { vector: 0 }))?;
    let mut qp = DpaQp::create(&rig.process, &DpaQpConfig::rc(&cq, &cq, 3))?;
    let mask = QpAttrMask::default();
    let to = |next_state| QpAttr { next_state, ..QpAttr::default() };
    ensure_eq!(qp.state()?, QpState::Rst, "the first state");
    for early in [QpState::Rtr, QpState::Rts] {
        failed(
            "a transition that skips INIT",
            qp.modify(&to(early), &mask),
            "Rst, Init, Rtr, Rts",
        )?;
    }
    qp.modify(&to(QpState::Init), &mask)?;
    ensure_eq!(qp.state()?, QpState::Init, "the state after INIT");
    qp.modify(&to(QpState::Init), &mask)?;
    let loops = QpAttr {
        remote_qp_num: qp.number(),
        force_loopback: rig.process.device().forces_loopback()?,
        log_rra_max: 2,
        ..to(QpState::Rtr)
    };
    let loops = match loops.force_loopback {
        true => loops,
        false => own_address(&rig.process, &qp, loops)?,
    };
    qp.modify(&loops, &mask)?;
    ensure_eq!(qp.state()?, QpState::Rtr, "the state after RTR");
    qp.modify(&QpAttr { log_sra_max: 2, ..to(QpState::Rts) }, &mask)?;
    ensure_eq!(qp.state()?, QpState::Rts, "the state after RTS");
    let context = qp.object().query()?;
    ensure_eq!(
        (context.log_rra_max(), context.log_sra_max()),
        (2, 2),
        "log_rra_max and log_sra_max"
    );
    failed("back to RTR", qp.modify(&loops, &mask), "does not go to Rtr")?;
    let isolated = QpAttr { isolate_vl_tc: true, ..to(QpState::Rts) };
    failed("isolate_vl_tc", qp.modify(&isolated, &mask), "not supported")?;
    qp.modify(&to(QpState::Err), &mask)?;
    ensure_eq!(qp.state()?, QpState::Err, "the state after ERR");
    qp.modify(&to(QpState::Rst), &mask)?;
    ensure_eq!(qp.state()?, QpState::Rst, "the last state");
    Ok(())
}

fn qp_accepts_each_mtu_and_access_right(lab: &Lab) -> Result<(), Stop> {
    let rig = Rig::new(lab)?;
    let cq = DpaCq::create(&rig.process, &DpaCqConfig::new(4, CqElement::NonDpa { vector: 0 }))?;
    let mask = QpAttrMask::default();
    let active = rig.process.device().query_port(1)?.active_mtu().unwrap_or(256);
    let none = RemoteAccess { read: false, write: false, atomic: false };
    let rights = [
        RemoteAccess { write: true, ..none },
        RemoteAccess { read: true, ..none },
        RemoteAccess { atomic: true, ..none },
        none,
        RemoteAccess::ALL,
    ];
    for (mtu, access) in
        [Mtu::B256, Mtu::B512, Mtu::B1024, Mtu::B2048, Mtu::B4096].into_iter().zip(rights)
    {
        let mut qp = DpaQp::create(&rig.process, &DpaQpConfig::rc(&cq, &cq, 3))?;
        let attr = QpAttr {
            access,
            path_mtu: mtu,
            remote_qp_num: qp.number(),
            force_loopback: rig.process.device().forces_loopback()?,
            ..QpAttr::default()
        };
        let attr = match attr.force_loopback {
            true => attr,
            false => own_address(&rig.process, &qp, attr)?,
        };
        qp.modify(&QpAttr { next_state: QpState::Init, ..attr }, &mask)?;
        let ready = qp.modify(&QpAttr { next_state: QpState::Rtr, ..attr }, &mask);
        if 128 << mtu as u32 > active {
            failed("an MTU above the port's", ready, "BAD_PARAM")?;
            continue;
        }
        ready?;
        let context = qp.object().query()?;
        ensure_eq!(context.mtu().0, mtu as u8, "the MTU");
        let has = (context.rwe(), context.rre(), context.rae());
        ensure_eq!(has, (access.write, access.read, access.atomic), "the peer's access rights");
    }
    Ok(())
}

/// `attr` with the address of its own port, for devices without force loopback.
fn own_address(process: &Process, qp: &DpaQp, attr: QpAttr) -> Result<QpAttr, Stop> {
    with_peer_address(process, &qp.address(&ConnectOptions::default())?, attr)
}

/// `attr` with the address of a peer.
pub(super) fn with_peer_address(
    process: &Process,
    peer: &PeerAddress,
    attr: QpAttr,
) -> Result<QpAttr, Stop> {
    Ok(match process.domain().path(peer, &ConnectOptions::default())? {
        verbless_command::Path::Roce { route, destination_mac, .. } => QpAttr {
            rgid: route.dgid,
            gid_table_index: route.sgid_index,
            dest_mac: destination_mac,
            ..attr
        },
        _ => QpAttr { rlid: peer.lid, rgid: Gid(peer.gid.0), grh: peer.grh_required, ..attr },
    })
}

fn modify_in_rts_changes_only_masked_attributes(lab: &Lab) -> Result<(), Stop> {
    let rig = Rig::new(lab)?;
    let cq = DpaCq::create(&rig.process, &DpaCqConfig::new(4, CqElement::NonDpa { vector: 0 }))?;
    let mut pair = ProgramPair::new(&rig, &cq, QpReceive::None)?;
    let before = pair.qp.object().query()?;
    ensure!(before.rwe() && before.rre(), "the peer may write and read");
    let access = RemoteAccess { read: false, write: true, atomic: false };
    let attr =
        QpAttr { next_state: QpState::Rts, access, min_rnr_nak_timer: 31, ..QpAttr::default() };
    pair.qp.modify(&attr, &QpAttrMask::default())?;
    let same = pair.qp.object().query()?;
    ensure_eq!((same.rre(), same.min_rnr_nak()), (true, before.min_rnr_nak()), "without a mask");
    pair.qp.modify(&attr, &QpAttrMask { min_rnr_nak_timer: true, ..QpAttrMask::default() })?;
    let timer = pair.qp.object().query()?;
    ensure_eq!((timer.rre(), timer.min_rnr_nak()), (true, 31), "with the timer's mask");
    pair.qp.modify(&attr, &QpAttrMask { qp_access_mask: true, ..QpAttrMask::default() })?;
    let rights = pair.qp.object().query()?;
    ensure_eq!((rights.rwe(), rights.rre()), (true, false), "with the mask of rights");
    Ok(())
}

fn unsupported_transports_are_rejected_by_name(lab: &Lab) -> Result<(), Stop> {
    let rig = Rig::new(lab)?;
    let cq = DpaCq::create(&rig.process, &DpaCqConfig::new(4, CqElement::NonDpa { vector: 0 }))?;
    for transport in [
        QpTransport::Xrc,
        QpTransport::IbL2,
        QpTransport::Dci,
        QpTransport::Qp0,
        QpTransport::Qp1,
        QpTransport::RawDatagram,
        QpTransport::RegUmr,
        QpTransport::DcCnak,
    ] {
        let config = DpaQpConfig { transport, ..DpaQpConfig::rc(&cq, &cq, 3) };
        let name = format!("{transport:?}");
        failed(&name, DpaQp::create(&rig.process, &config), &name)?;
    }
    for transport in [QpTransport::Uc, QpTransport::Ud] {
        let config = DpaQpConfig { transport, ..DpaQpConfig::rc(&cq, &cq, 3) };
        let mut qp = DpaQp::create(&rig.process, &config)?;
        let attr = QpAttr { next_state: QpState::Init, q_key: 5, ..QpAttr::default() };
        qp.modify(&attr, &QpAttrMask::default())?;
        ensure_eq!(qp.state()?, QpState::Init, "the state of {transport:?}");
    }
    let config = DpaQpConfig { log_sq_depth: Some(30), ..DpaQpConfig::rc(&cq, &cq, 3) };
    failed("2^30 WQEBBs", DpaQp::create(&rig.process, &config), "at most")
}

fn call_attributes_set_storage_name_and_timeout(lab: &Lab) -> Result<(), Stop> {
    let rig = Rig::new(lab)?;
    let storage = rig.process.alloc(64)?;
    let attr =
        RpcAttr { storage: Some(storage.clone()), name: "worker".into(), ..RpcAttr::default() };
    let find = Function::<(), u64>::named("thread_storage");
    ensure_eq!(rig.process.call_with_attr(&attr, find, ())?, storage.address(), "the storage");
    let id = Function::<(), u64>::named("thread_id");
    let named = rig.process.call_with_attr(&attr, id, ())?;
    ensure!(named != u64::MAX && named != 0, "a thread of this name has number {named}");
    let wait_for = Function::<(u64,), ()>::named("wait_for");
    let timeout = std::time::Duration::from_millis(30);
    let attr = RpcAttr { timeout: Some(timeout), ..RpcAttr::default() };
    match rig.process.call_with_attr(&attr, wait_for, (1,)) {
        Err(verbless_flexio::Error::Timeout(after)) => ensure_eq!(after, timeout, "the timeout"),
        other => {
            return Err(Stop::fail(format!("a call that exceeds its timeout returned {other:?}")));
        }
    }
    Ok(())
}
