//! UARs that are extended to other device contexts: a program rings for queues of another function
//! of the card, or of the same function opened a second time.

use std::sync::Arc;

use verbless_command::{
    CqAttr, CqEventTarget as Element, CqObject, CqOptions, CqeSize, Device, Eqn, KeyAccess,
};
use verbless_devx::Uar as Page;
use verbless_flexio::{
    CqElement, CqNumber, DpaCq, DpaCqConfig, DpaQp, DpaQpConfig, DpaSq, DpaSqConfig, Error,
    EventHandler, EventHandlerConfig, Function, Handler, Outbox, OutboxConfig, ProcessConfig,
    QpState, QueueMemory, Rmp, RmpConfig, RpcAttr, Uar, Window,
};
use verbless_model::Refusal;
use verbless_prm::CommandStatus;
use verbless_queue::{ConnectOptions, CqConfig, Domain, QpConfig};

use super::failed;
use super::rig::Rig;
use crate::case::cases;
use crate::need::{ETHERNET, cap};
use crate::raw::{RegisteredMemory, region_owned_by};
use crate::{Lab, Need, Stop, ensure, ensure_eq, until};

cases!(
    "flexio_cross_device",
    "UARs that are extended to other device contexts, and programs that ring for those queues.",
    needs [Need::DpaLayouts, cap!(apu), Need::DpaProgram]:
    uar_extension_rejects_own_context,
    uar_extends_only_to_reachable_functions [Need::Peer],
    outbox_rings_for_queues_of_either_context,
    outbox_starts_on_extended_uar,
    program_posts_to_sq_of_another_context [ETHERNET],
    program_posts_to_qp_of_another_context,
    cq_of_another_context_starts_event_handler,
    program_arms_cq_of_another_context,
    cross_device_queue_rejects_process_resources,
    doorbell_without_uar_extension_sets_errno,
);

const LOG_CQES: u8 = 3;
/// errno of a doorbell that reaches no queue.
const NO_QUEUE: u64 = 2;
/// A CQE that the device has not written.
const UNWRITTEN: u8 = 0xf0;

/// A process, and another context with a UAR that is extended to it.
struct Cross {
    uar: Uar,
    other: Device,
    rig: Rig,
}

impl Cross {
    fn new(lab: &Lab) -> Result<Self, Stop> {
        let (other, own) = lab.owner_and_user()?;
        let rig = Rig::on(&own, &ProcessConfig::default())?;
        let uar = rig.process.uar().extend(&other)?;
        Ok(Self { uar, other, rig })
    }

    fn device_id(&self) -> Result<u32, Stop> {
        let id = self.uar.extended_id();
        Ok(id.ok_or_else(|| Stop::fail("an extended UAR has no number"))?.0)
    }
}

/// A CQ of a device that names a page, with memory of the host.
struct FarCq {
    object: CqObject,
    ring: RegisteredMemory,
}

impl FarCq {
    fn new(device: &Device, uar: &Arc<Page>) -> Result<Self, Stop> {
        Self::to(device, uar, Element::Eq(Eqn(device.query_eqn(0)?)))
    }

    /// A CQ that makes an event for `element` at each CQE.
    fn to(device: &Device, uar: &Arc<Page>, element: Element) -> Result<Self, Stop> {
        let (ring, object) = Self::create(device, uar, element)?;
        Ok(Self { object: object?, ring })
    }

    /// Its memory, and the device's answer to CREATE_CQ.
    fn create(
        device: &Device,
        uar: &Arc<Page>,
        element: Element,
    ) -> Result<(RegisteredMemory, Result<CqObject, verbless_command::Error>), Stop> {
        let ring = RegisteredMemory::new(device, 8192)?;
        ring.memory.write_at(0, &[UNWRITTEN; 64 << LOG_CQES])?;
        let memory_at = |at| verbless_command::QueueMemory::new(ring.umem.clone(), at);
        let attr = CqAttr {
            uar: uar.clone(),
            ring: memory_at(0),
            record: memory_at(4096),
            log_cqes: LOG_CQES,
            cqe_size: CqeSize::BYTES_64,
            element,
            ignore_overrun: false,
        };
        let always_armed = matches!(element, Element::Thread(_));
        let options = CqOptions { always_armed, ..CqOptions::default() };
        let object = device.create_cq_with(attr, &options);
        Ok((ring, object))
    }

    fn number(&self) -> u32 {
        self.object.cqn().0
    }

    /// The number of written CQEs: a doorbell's CQE is written when the call that rang has
    /// returned.
    fn written(&self) -> Result<usize, Stop> {
        let mut bytes = [0; 64 << LOG_CQES];
        self.ring.memory.read_at(0, &mut bytes)?;
        Ok(bytes.chunks(64).filter(|cqe| cqe[63] != UNWRITTEN).count())
    }
}

fn trigger_across() -> Function<(u32, u32, bool), u64> {
    Function::named("trigger_across")
}

fn trigger_here() -> Function<(u32, bool), u64> {
    Function::named("trigger_here")
}

/// Attributes of calls on a thread that begins with this outbox.
fn by(outbox: Outbox) -> RpcAttr {
    RpcAttr { outbox: Some(outbox), ..RpcAttr::default() }
}

fn uar_extension_rejects_own_context(lab: &Lab) -> Result<(), Stop> {
    let Cross { uar, other, rig } = Cross::new(lab)?;
    let process = &rig.process;
    let own = process.device();
    failed("a UAR of the own context", process.uar().extend(own), "another device context")?;
    ensure_eq!(process.uar().extended_id(), None, "the extended number of the process's UAR");
    ensure_eq!(Uar::create(process)?.extended_id(), None, "the extended number of a new UAR");
    let id = uar.extended_id();
    ensure!(id.is_some_and(|id| id.0 != u32::MAX), "the number of an extended UAR: {id:x?}");
    let second = process.uar().extend(&other)?;
    ensure!(second.extended_id() != id, "two extensions have one number");
    ensure!(uar.page().context().is(&other), "the page is not the other context's");
    Ok(())
}

fn uar_extends_only_to_reachable_functions(lab: &Lab) -> Result<(), Stop> {
    let rig = Rig::on(&lab.device()?, &ProcessConfig::default())?;
    let (own, other) = (lab.info(), lab.other_info());
    // Within one card, functions of the DPU reach those of the host, and not vice versa.
    let reached = own.system_image_guid == other.system_image_guid
        && (own.embedded_cpu || !other.embedded_cpu);
    match rig.process.uar().extend(&lab.other_device()?) {
        Ok(uar) => {
            ensure!(reached, "{:x?} is extended out of reach", uar.extended_id())
        }
        Err(Error::Device(error)) => {
            ensure!(!reached, "a function that is reached: {error}");
            let answer = (error.status(), error.syndrome().and_then(Refusal::of_syndrome));
            let expected = (Some(CommandStatus::BAD_PARAM.0), Some(Refusal::UarExtensionTo));
            ensure_eq!(answer, expected, "{error}");
        }
        Err(error) => return Err(error.into()),
    }
    Ok(())
}

fn outbox_rings_for_queues_of_either_context(lab: &Lab) -> Result<(), Stop> {
    let cross = Cross::new(lab)?;
    let (process, device_id) = (&cross.rig.process, cross.device_id()?);
    let far = FarCq::new(&cross.other, cross.uar.page())?;
    let near = FarCq::new(process.device(), process.uar().page())?;
    let attr = by(cross.rig.outbox()?);
    for round in 1..=2 {
        let arguments = (device_id, far.number(), round == 2);
        let errno = process.call_with_attr(&attr, trigger_across(), arguments)?;
        ensure_eq!(errno, 0, "errno of a doorbell for the other context");
        ensure_eq!(far.written()?, 2 * round - 1, "CQEs of the other context");
        // The device id belongs to the outbox, and outlives the call.
        let errno = process.call_with_attr(&attr, trigger_here(), (far.number(), false))?;
        ensure_eq!((errno, far.written()?), (0, 2 * round), "errno, and CQEs of the other context");
        let errno = process.call_with_attr(&attr, trigger_here(), (near.number(), true))?;
        ensure_eq!((errno, near.written()?), (0, round), "errno, and CQEs of the own context");
    }
    ensure_eq!(far.written()?, 4, "CQEs of the other context after both rounds");
    // A page without an extension, also one of the same context.
    let away = Arc::new(cross.other.uar_alloc(verbless_devx::UarKind::NonCached)?);
    let away = FarCq::new(&cross.other, &away)?;
    let errno =
        process.call_with_attr(&attr, trigger_across(), (device_id, away.number(), false))?;
    ensure_eq!((errno, away.written()?), (NO_QUEUE, 0), "errno, and CQEs of another page");
    Ok(())
}

fn outbox_starts_on_extended_uar(lab: &Lab) -> Result<(), Stop> {
    let cross = Cross::new(lab)?;
    let process = &cross.rig.process;
    let config = OutboxConfig { uar: Some(cross.uar.clone()), ..OutboxConfig::default() };
    let outbox = Outbox::create(process, &config)?;
    ensure_eq!(outbox.uar().extended_id(), cross.uar.extended_id(), "the UAR of the outbox");
    let (far, near) = (
        FarCq::new(&cross.other, cross.uar.page())?,
        FarCq::new(process.device(), process.uar().page())?,
    );
    let attr = by(outbox);
    for (cq, again) in [(&far, false), (&near, true), (&near, false)] {
        let before = cq.written()?;
        let errno = process.call_with_attr(&attr, trigger_here(), (cq.number(), again))?;
        ensure_eq!((errno, cq.written()?), (0, before + 1), "errno, and CQEs");
    }
    let stranger = Rig::on(process.device(), &ProcessConfig::default())?;
    failed(
        "a UAR of another process",
        Outbox::create(&stranger.process, &config),
        "another process",
    )
}

fn program_posts_to_sq_of_another_context(lab: &Lab) -> Result<(), Stop> {
    const LOG_DEPTH: u8 = 3;
    let cross = Cross::new(lab)?;
    let (process, device_id) = (&cross.rig.process, cross.device_id()?);
    let domain = Domain::new(&cross.other)?;
    let mut cq = domain.completion_queue(&CqConfig::new(16))?;
    let shared = RegisteredMemory::new(&cross.other, 8192)?;
    let memory_at = |at| Some(QueueMemory::host(shared.umem.clone(), at));
    let mut config = DpaSqConfig::new(LOG_DEPTH);
    (config.wq.ring, config.wq.record) = (memory_at(0), memory_at(4096));
    (config.wq.uar, config.wq.pd) = (Some(cross.uar.clone()), Some(domain.pd().clone()));
    let sq = DpaSq::create_cross_dev(process, &cross.other, &cq, &config)?;

    // The program reaches the ring by a key of its own context.
    let memory = shared.memory.clone();
    let key = region_owned_by(process.domain(), &memory, memory.clone(), KeyAccess::ALL)?;
    let window = Window::create(process, process.pd())?;
    let attr = RpcAttr { windows: [Some(window), None], ..RpcAttr::default() };
    let post = |number: u32, pi: u16| {
        let function = Function::<(u32, u32, u32, u64, u16), u64>::named("post_across");
        let arguments = (device_id, number, key.lkey().0, key.address(), pi);
        process.call_with_attr(&attr, function, arguments)
    };
    for pi in 0..5 {
        ensure_eq!(post(sq.number().0, pi)?, 0, "status and errno");
        let cqe = until("the CQE of the WQE", || cq.poll())?;
        ensure_eq!(cqe.qpn().0, sq.number().0, "the completed queue");
    }
    ensure_eq!(
        post(sq.number().0 + 1, 5)?,
        1 << 32 | NO_QUEUE,
        "the result for a queue that does not exist"
    );
    Ok(sq.destroy()?)
}

/// Memory of the other context for a CQ and the ring of a queue, and its address.
struct Memories(RegisteredMemory);

impl Memories {
    fn new(device: &Device) -> Result<Self, Stop> {
        let shared = RegisteredMemory::new(device, 4 * 4096)?;
        shared.memory.write_at(0, &[UNWRITTEN; 64 << LOG_CQES])?;
        Ok(Self(shared))
    }

    fn at(&self, page: u64) -> Option<QueueMemory> {
        Some(QueueMemory::host(self.0.umem.clone(), 4096 * page))
    }

    /// A CQ in its first two pages.
    fn cq(&self, uar: &Uar) -> DpaCqConfig {
        let mut config = DpaCqConfig::new(LOG_CQES, CqElement::NonDpa { vector: 0 });
        (config.ring, config.record) = (self.at(0), self.at(1));
        config.uar = Some(uar.clone());
        config
    }
}

fn program_posts_to_qp_of_another_context(lab: &Lab) -> Result<(), Stop> {
    const LOG_DEPTH: u8 = 3;
    let cross = Cross::new(lab)?;
    let (process, device_id) = (&cross.rig.process, cross.device_id()?);
    let (domain, memories) = (Domain::new(&cross.other)?, Memories::new(&cross.other)?);
    let cq = DpaCq::create_cross_dev(process, &cross.other, &memories.cq(&cross.uar))?;
    let mut config = DpaQpConfig::rc(&cq, &cq, LOG_DEPTH);
    (config.ring, config.record) = (memories.at(2), memories.at(3));
    (config.uar, config.pd) = (Some(cross.uar.clone()), Some(domain.pd().clone()));
    let mut qp = DpaQp::create_cross_dev(process, &cross.other, &config)?;
    // A peer in the same context.
    let host_cq = domain.completion_queue(&CqConfig::new(8))?;
    let mut host = domain.queue_pair(&QpConfig::new(1, 1), &host_cq, &host_cq)?;
    let options = ConnectOptions::default();
    let address = domain.address(&host, &options)?;
    domain.connect(&mut host, &qp.address(&options)?, &options)?;
    qp.connect(&address, &options)?;
    ensure_eq!(qp.state()?, QpState::Rts, "the state");

    let memory = memories.0.memory.clone();
    let key = region_owned_by(process.domain(), &memory, memory.clone(), KeyAccess::ALL)?;
    let window = Window::create(process, process.pd())?;
    let attr = RpcAttr { windows: [Some(window), None], ..RpcAttr::default() };
    let ring = key.address() + 2 * 4096;
    for pi in 0..5_u16 {
        let function = Function::<(u32, u32, u32, u64, u16), u64>::named("post_across");
        let arguments = (device_id, qp.number().0, key.lkey().0, ring, pi);
        ensure_eq!(process.call_with_attr(&attr, function, arguments)?, 0, "status and errno");
        let counter = || {
            let mut cqe = [0; 64];
            memory.read_at(64 * usize::from(pi), &mut cqe).ok()?;
            (cqe[63] != UNWRITTEN).then_some([cqe[60], cqe[61]])
        };
        ensure_eq!(until("the CQE of the WQE", counter)?, pi.to_be_bytes(), "the completed queue");
    }
    drop(config);
    failed("a CQ with a queue pair", cq.clone().destroy(), "in use")?;
    qp.destroy()?;
    Ok(cq.destroy()?)
}

fn cq_of_another_context_starts_event_handler(lab: &Lab) -> Result<(), Stop> {
    let cross = Cross::new(lab)?;
    let (process, device_id) = (&cross.rig.process, cross.device_id()?);
    let memories = Memories::new(&cross.other)?;
    // A handler that reads no CQE and never arms.
    let config = EventHandlerConfig {
        continuable: true,
        ..EventHandlerConfig::new(Handler::named("continues"))
    };
    let handler = EventHandler::create(process, &config)?;
    let at = process.alloc_from(&[0; 8])?;
    handler.run(at.address())?;
    let starts = DpaCqConfig {
        element: CqElement::Thread(handler.clone()),
        always_armed: true,
        ..memories.cq(&cross.uar)
    };
    let cq = DpaCq::create_cross_dev(process, &cross.other, &starts)?;
    let attr = by(cross.rig.outbox()?);
    let trigger = || {
        let arguments = (device_id, cq.number().0, false);
        process.call_with_attr(&attr, trigger_across(), arguments)
    };
    for events in 1..=3 {
        ensure_eq!(trigger()?, 0, "errno of the doorbell");
        let come = || handler.query().ok().filter(|it| it.events >= events && it.runs > 0);
        until("the event of a CQE of another context", come)?;
    }
    failed("a CQ that the host arms", cq.arm(), "another device context")?;
    failed("a handler that a CQ starts", handler.clone().destroy(), "is in use by CQ")?;
    // A page that is not extended to the process, and a thread of another process.
    let page = Arc::new(cross.other.uar_alloc(verbless_devx::UarKind::NonCached)?);
    let away = DpaCqConfig { uar: Some(Uar::of(process, page)), ..starts.clone() };
    let refused = DpaCq::create_cross_dev(process, &cross.other, &away).map(drop);
    ensure!(
        matches!(refused, Err(Error::Device(_))),
        "a CQ with a UAR of the other context: {refused:?}"
    );
    let stranger = Rig::on(process.device(), &ProcessConfig::default())?;
    let element = CqElement::Thread(stranger.handler("drain")?);
    let refused = DpaCq::create_cross_dev(
        &stranger.process,
        &cross.other,
        &DpaCqConfig { element, ..starts.clone() },
    );
    ensure!(matches!(refused, Err(Error::Device(_))), "of another process: {refused:?}");
    drop((starts, away));
    cq.destroy()?;
    let thread = Element::Thread(handler.object_id().0);
    number_of_two_threads_is_refused(&cross, thread)?;
    // A CQ that keeps no reference to its thread.
    let unreferencing = FarCq::to(&cross.other, cross.uar.page(), thread)?;
    let before = handler.query()?.events;
    let trigger = || {
        process.call_with_attr(&attr, trigger_across(), (device_id, unreferencing.number(), false))
    };
    ensure_eq!(trigger()?, 0, "errno of its doorbell");
    let come = || handler.query().ok().filter(|it| it.events > before);
    until("an event of a CQ without a reference to its thread", come)?;
    handler.destroy()?;
    ensure_eq!((trigger()?, unreferencing.written()?), (0, 2), "errno and CQEs without the thread");
    ensure!(process.status()?.status.runs(), "an event for a destroyed thread");
    Ok(())
}

fn program_arms_cq_of_another_context(lab: &Lab) -> Result<(), Stop> {
    let cross = Cross::new(lab)?;
    let (process, device_id) = (&cross.rig.process, cross.device_id()?);
    let memories = Memories::new(&cross.other)?;
    let config = EventHandlerConfig {
        continuable: true,
        ..EventHandlerConfig::new(Handler::named("continues"))
    };
    let handler = EventHandler::create(process, &config)?;
    let at = process.alloc_from(&[0; 8])?;
    handler.run(at.address())?;
    let element = CqElement::Thread(handler.clone());
    let unarmed = DpaCqConfig { element, no_arm: true, ..memories.cq(&cross.uar) };
    let cq = DpaCq::create_cross_dev(process, &cross.other, &unarmed)?;
    // Its record is in memory of the other context, which the program reaches by its own key.
    let memory = memories.0.memory.clone();
    let key = region_owned_by(process.domain(), &memory, memory.clone(), KeyAccess::ALL)?;
    let window = Window::create(process, process.pd())?;
    let outbox = Some(cross.rig.outbox()?);
    let attr = RpcAttr { outbox, windows: [Some(window), None], ..RpcAttr::default() };
    let arm = |consumed: u32| {
        let function = Function::<(u32, CqNumber, u32, u64, u32), u64>::named("arm_across");
        let (key, record) = (key.lkey().0, key.address() + 4096);
        process.call_with_attr(&attr, function, (device_id, cq.number(), key, record, consumed))
    };
    let trigger = || {
        let arguments = (device_id, cq.number().0, false);
        process.call_with_attr(&attr, trigger_across(), arguments)
    };
    let events = |count| {
        let come = || handler.query().ok().filter(|it| it.events >= count);
        until("the event of an armed CQ", come)
    };
    ensure_eq!(trigger()?, 0, "errno of a CQE before the first arm");
    ensure_eq!(handler.query()?.events, 0, "events of a CQ that was not armed");
    for round in 1..=3_u32 {
        // The first CQE is not consumed, so the first arm raises the event at once.
        ensure_eq!(arm(round - 1)?, 0, "errno of the arm");
        events(round)?;
        let mut record = [0; 4];
        memory.read_at(4096, &mut record)?;
        ensure_eq!(u32::from_be_bytes(record), round - 1, "the record as the program wrote it");
        // An arm raises only one event.
        ensure_eq!(trigger()?, 0, "errno of the next CQE");
        ensure_eq!(handler.query()?.events, round, "events without another arm");
    }
    ensure_eq!(arm(4)?, 0, "errno of an arm when all CQEs are consumed");
    ensure_eq!(handler.query()?.events, 3, "events before the next CQE");
    ensure_eq!(trigger()?, 0, "errno of the next CQE");
    events(4)?;
    drop(unarmed);
    cq.destroy()?;
    Ok(handler.destroy()?)
}

/// Each function numbers its own threads: the other function may have a thread with this number.
fn number_of_two_threads_is_refused(cross: &Cross, thread: Element) -> Result<(), Stop> {
    if !cross.other.caps().general.apu() {
        return Ok(());
    }
    let theirs = Rig::on(&cross.other, &ProcessConfig::default())?;
    let mut handlers = Vec::new();
    for _ in 0..64 {
        handlers.push(theirs.handler("drain")?);
        let last = handlers.last().map(|last| Element::Thread(last.object_id().0));
        if last != Some(thread) {
            continue;
        }
        let (_ring, refused) = FarCq::create(&cross.other, cross.uar.page(), thread)?;
        let reason = refused.err().and_then(|error| error.syndrome());
        let reason = reason.and_then(Refusal::of_syndrome);
        ensure_eq!(
            reason,
            Some(Refusal::DpaNumberAmbiguous),
            "a CQ with an ambiguous thread number"
        );
        drop(FarCq::to(&cross.other, theirs.process.uar().page(), thread)?);
    }
    Ok(())
}

fn cross_device_queue_rejects_process_resources(lab: &Lab) -> Result<(), Stop> {
    let cross = Cross::new(lab)?;
    let (process, other) = (&cross.rig.process, &cross.other);
    let (domain, memories) = (Domain::new(other)?, Memories::new(other)?);
    let good = memories.cq(&cross.uar);
    let cq = |config: &DpaCqConfig| DpaCq::create_cross_dev(process, other, config);
    let near = DpaCq::create_cross_dev(process, process.device(), &good);
    failed("a CQ on the own context", near, "process's own")?;
    failed(
        "a CQ in the heap",
        cq(&DpaCqConfig { ring: None, ..good.clone() }),
        "memory of the host",
    )?;
    failed("a CQ without a UAR", cq(&DpaCqConfig { uar: None, ..good.clone() }), "Uar::extend")?;
    let element = CqElement::Thread(cross.rig.handler("drain")?);
    let armed_by_host = cq(&DpaCqConfig { element, ..good.clone() });
    failed("a CQ that its host would arm", armed_by_host, "armed by its program")?;
    let far = cq(&good)?;
    let mut config = DpaQpConfig::rc(&far, &far, 2);
    (config.ring, config.record) = (memories.at(2), memories.at(3));
    config.uar = Some(cross.uar.clone());
    let qp = |config: &DpaQpConfig| DpaQp::create_cross_dev(process, other, config);
    failed("a queue pair without a protection domain", qp(&config), "protection domain")?;
    config.pd = Some(process.pd().clone());
    failed("a queue pair with the process's protection domain", qp(&config), "protection domain")?;
    config.pd = Some(domain.pd().clone());
    let here = DpaCqConfig::new(2, CqElement::NonDpa { vector: 0 });
    let near = DpaCq::create(process, &here)?;
    let strange = DpaQpConfig { rq_cq: (&near).into(), ..config.clone() };
    failed(
        "a queue pair with the process's CQ",
        qp(&strange),
        "CQ of the receives is of another device",
    )?;
    drop((strange, near, config));
    let strange = DpaCqConfig { ring: memories.at(2), ..here };
    let why = "memory of the ring is of another device";
    failed("a CQ of the process's in memory of another", DpaCq::create(process, &strange), why)?;
    drop(strange);
    let mut config = RmpConfig::new(2);
    failed("a pool in the heap", Rmp::create_cross_dev(process, other, &config), "of the host")?;
    (config.wq.ring, config.wq.record) = (memories.at(2), memories.at(3));
    (config.wq.uar, config.wq.pd) = (Some(cross.uar.clone()), Some(domain.pd().clone()));
    let near = Rmp::create_cross_dev(process, process.device(), &config);
    failed("a pool on the own context", near, "process's own")?;
    Rmp::create_cross_dev(process, other, &config)?.destroy()?;
    Ok(far.destroy()?)
}

fn doorbell_without_uar_extension_sets_errno(lab: &Lab) -> Result<(), Stop> {
    let cross = Cross::new(lab)?;
    let (process, device_id) = (&cross.rig.process, cross.device_id()?);
    let far = FarCq::new(&cross.other, cross.uar.page())?;
    let attr = by(cross.rig.outbox()?);
    let rings = |process: &verbless_flexio::Process, attr: &RpcAttr, device: u32| {
        process.call_with_attr(attr, trigger_across(), (device, far.number(), false))
    };
    // An unused number, that of a missing function, that of the process's own function.
    for number in [0, device_id + 1, device_id ^ 0x8000_0000, u32::MAX] {
        ensure_eq!(rings(process, &attr, number)?, NO_QUEUE, "errno of extension {number:#x}");
    }
    let stranger = Rig::on(process.device(), &ProcessConfig::default())?;
    let strange = by(stranger.outbox()?);
    ensure_eq!(
        rings(&stranger.process, &strange, device_id)?,
        NO_QUEUE,
        "errno for a process without the extension"
    );
    ensure_eq!(far.written()?, 0, "CQEs after refused doorbells");
    ensure_eq!(rings(process, &attr, device_id)?, 0, "errno for the process with the extension");
    ensure_eq!(far.written()?, 1, "CQEs");
    // A thread without an outbox uses the extension of its process's outbox.
    let none = RpcAttr::default();
    ensure_eq!(rings(process, &none, device_id)?, 0, "errno of the process's own outbox");
    ensure_eq!(far.written()?, 2, "CQEs after the doorbell without an outbox");
    // Without the extension the doorbells have no effect, though the page and the CQ exist.
    let Cross { uar, rig, .. } = cross;
    let page = uar.page().clone();
    drop(uar);
    ensure_eq!(rings(&rig.process, &attr, device_id)?, NO_QUEUE, "errno without the extension");
    ensure_eq!(far.written()?, 2, "CQEs after the refused doorbell");
    drop(page);
    Ok(())
}
