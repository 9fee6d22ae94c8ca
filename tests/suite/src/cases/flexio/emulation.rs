//! Emulated devices by FlexIO's host library: doorbells that make CQEs, and MSI-X that programs
//! send.

use std::sync::Arc;

use verbless_flexio::emulation::{
    self, DoorbellToCq, EmulatedDevice, MAX_EQ_TO_MSIX_MAP_PAIRS, Msix, MsixConfig, MsixMap,
};
use verbless_flexio::{
    CqElement, DpaCq, DpaCqConfig, EventHandler, EventHandlerConfig, Function, Handler, Outbox,
    OutboxConfig, RpcAttr, Uar,
};

use super::failed;
use super::rig::{Rig, ends_with};
use crate::case::cases;
use crate::endpoint::quiet;
use crate::need::cap;
use crate::{Lab, Need, Stop, ensure, ensure_eq, until};

cases!(
    "flexio_emulation",
    "FlexIO's emulated devices: doorbells that make CQEs, and MSI-X.",
    needs [Need::DpaLayouts, cap!(apu), Need::DpaProgram]:
    doorbell_makes_cqes_until_unmapped,
    msix_map_has_one_eq_per_vector,
    program_sends_msix_to_host_of_emulated_device,
    program_uses_eq_of_vector_directly,
    msix_map_in_use_rejects_free,
    objects_of_another_context_are_rejected,
    objects_are_destroyable_after_fatal_error,
);

const LOG_CQES: u8 = 4;
const VECTORS: u16 = 4;

fn device(rig: &Rig) -> Result<Arc<EmulatedDevice>, Stop> {
    Ok(emulation::create_device(&rig.process, 3, VECTORS)?)
}

fn raised(device: &EmulatedDevice) -> Result<Vec<u32>, Stop> {
    Ok(device.raised()?)
}

fn calls_by(outbox: Outbox) -> RpcAttr {
    RpcAttr { outbox: Some(outbox), ..RpcAttr::default() }
}

/// Sends MSI-X through a CQ.
fn send(rig: &Rig, attr: &RpcAttr, cq: &DpaCq) -> Result<(), Stop> {
    let function = Function::<(u32,), ()>::named("send_msix");
    Ok(rig.process.call_with_attr(attr, function, (cq.number().0,))?)
}

/// The program's handler `serve`, and its queues and memory.
struct ServeHandler {
    memory: verbless_flexio::Buffer,
    cq: DpaCq,
    handler: EventHandler,
}

/// Offsets of the words of `serve`: the count of CQEs, and the last value read.
const COUNT: u64 = 0;
const VALUE: u64 = 52;

impl ServeHandler {
    fn new(rig: &Rig) -> Result<Self, Stop> {
        let process = &rig.process;
        let config = EventHandlerConfig {
            outbox: Some(rig.outbox()?),
            ..EventHandlerConfig::new(Handler::named("serve"))
        };
        let handler = EventHandler::create(process, &config)?;
        let cq = DpaCq::create(
            process,
            &DpaCqConfig::new(LOG_CQES, CqElement::Thread(handler.clone())),
        )?;
        let memory = process.alloc_from(&[0; 64])?;
        memory.write_at(16, &cq.ring_address().to_le_bytes())?;
        memory.write_at(24, &cq.record_address().to_le_bytes())?;
        memory.write_at(32, &cq.number().0.to_le_bytes())?;
        memory.write_at(36, &u32::from(LOG_CQES).to_le_bytes())?;
        Ok(Self { memory, cq, handler })
    }

    /// The handler reads and arms this doorbell from now on.
    fn serve(&self, doorbell: &DoorbellToCq) -> Result<(), Stop> {
        self.memory.write_at(48, &doorbell.id().0.to_le_bytes())?;
        Ok(self.handler.run(self.memory.address())?)
    }

    fn word(&self, at: u64) -> Option<u32> {
        let mut word = [0; 4];
        self.memory.read_at(at, &mut word).ok()?;
        Some(u32::from_le_bytes(word))
    }
}

fn doorbell_makes_cqes_until_unmapped(lab: &Lab) -> Result<(), Stop> {
    let rig = Rig::new(lab)?;
    let device = device(&rig)?;
    let serves = ServeHandler::new(&rig)?;
    let doorbell = DoorbellToCq::map(&device, 1, &serves.cq)?;
    ensure_eq!(doorbell.cq().number(), serves.cq.number(), "the CQ of the doorbell");
    failed("a doorbell twice", DoorbellToCq::map(&device, 1, &serves.cq), "BAD_RES_STATE")?;
    failed("queue 3 of 3", DoorbellToCq::map(&device, 3, &serves.cq), "BAD_PARAM")?;
    serves.serve(&doorbell)?;
    // The first one is armed by hand.
    rig.activate(&serves.handler)?;
    until("the doorbell is armed", || doorbell.query().ok().filter(|it| it.armed))?;
    for round in 1..=5 {
        device.ring(1, 0x1000 + round)?;
        until("the handler has read it", || serves.word(VALUE).filter(|&it| it == 0x1000 + round))?;
        until("the handler has taken a CQE", || serves.word(COUNT).filter(|&it| it == round))?;
        until("the doorbell is armed again", || doorbell.query().ok().filter(|it| it.armed))?;
    }
    failed("a CQ with a doorbell", serves.cq.clone().destroy(), "in use")?;
    let id = doorbell.id();
    doorbell.unmap()?;
    device.ring(1, 0x2000)?;
    quiet("a CQE of an unmapped doorbell", || serves.word(COUNT).filter(|&it| it != 5))?;
    // Another mapping can take it.
    let again = DoorbellToCq::map(&device, 1, &serves.cq)?;
    ensure_eq!(again.query()?.rings, 0, "rings of {id:#x} that a new one counts");
    Ok(())
}

fn msix_map_has_one_eq_per_vector(lab: &Lab) -> Result<(), Stop> {
    let rig = Rig::new(lab)?;
    let device = device(&rig)?;
    for count in [0, MAX_EQ_TO_MSIX_MAP_PAIRS + 1] {
        failed("so many", MsixMap::create(&rig.process, &device, count), "MAX_EQ_TO_MSIX")?;
    }
    let some = MsixMap::create(&rig.process, &device, 2)?;
    let all = MsixMap::create(&rig.process, &device, MAX_EQ_TO_MSIX_MAP_PAIRS)?;
    let vectors = |map: &MsixMap| map.pairs().map(|(_, vector)| vector).collect::<Vec<_>>();
    ensure_eq!(vectors(&some), [0, 1], "vectors of a map of two");
    ensure_eq!(vectors(&all), [0, 1, 2, 3], "vectors of a map of all");
    let mut numbers: Vec<u32> = some.pairs().chain(all.pairs()).map(|(eqn, _)| eqn).collect();
    numbers.sort_unstable();
    numbers.dedup();
    ensure_eq!(numbers.len(), 6, "different event queues");
    ensure_eq!(all.device().id(), device.id(), "the device of a map");
    let none = emulation::create_device(&rig.process, 1, 0)?;
    let map = MsixMap::create(&rig.process, &none, 1)?;
    ensure_eq!(map.pairs().len(), 0, "pairs of a device without vectors");
    failed(
        "a vector of a device without vectors",
        Msix::create(&map, &MsixConfig::default()),
        "vector 0 of a map of 0",
    )
}

fn program_sends_msix_to_host_of_emulated_device(lab: &Lab) -> Result<(), Stop> {
    let rig = Rig::new(lab)?;
    let device = device(&rig)?;
    let map = MsixMap::create(&rig.process, &device, VECTORS)?;
    let config = |vector| MsixConfig { vector, ..MsixConfig::default() };
    failed("vector 4 of 4", Msix::create(&map, &config(4)), "vector 4 of a map of 4")?;
    let (first, second) = (Msix::create(&map, &config(0))?, Msix::create(&map, &config(2))?);
    let by_process = calls_by(rig.outbox()?);
    let cq = |msix: &Msix| msix.cq().cloned().ok_or_else(|| Stop::fail("the MSI-X has no CQ"));
    // More often than its CQ and its EQ have entries; no reader takes any.
    for round in 1..=100 {
        send(&rig, &by_process, &cq(&first)?)?;
        ensure_eq!(raised(&device)?, [round, 0, 0, 0], "vectors after {round}");
    }
    send(&rig, &by_process, &cq(&second)?)?;
    ensure_eq!(raised(&device)?, [100, 0, 1, 0], "vectors after another one's");
    // The MSI-X has its own UAR: outboxes of another UAR do not reach its CQ.
    let uar = Uar::create(&rig.process)?;
    let own = MsixConfig { uar: Some(uar.clone()), ..config(3) };
    let own = Msix::create(&map, &own)?;
    ensure_eq!(own.vector(), 3, "the vector of the MSI-X");
    send(&rig, &by_process, &cq(&own)?)?;
    ensure_eq!(raised(&device)?, [100, 0, 1, 0], "vectors by an outbox of another UAR");
    let outbox = OutboxConfig { uar: Some(uar), ..OutboxConfig::default() };
    send(&rig, &calls_by(Outbox::create(&rig.process, &outbox)?), &cq(&own)?)?;
    ensure_eq!(raised(&device)?, [100, 0, 1, 1], "vectors by one of its UAR");
    Ok(())
}

fn program_uses_eq_of_vector_directly(lab: &Lab) -> Result<(), Stop> {
    let rig = Rig::new(lab)?;
    let device = device(&rig)?;
    let map = MsixMap::create(&rig.process, &device, VECTORS)?;
    let direct = MsixConfig { vector: 1, direct: true, ..MsixConfig::default() };
    let with_uar = MsixConfig { uar: Some(rig.process.uar()), ..direct.clone() };
    failed("a UAR in direct mode", Msix::create(&map, &with_uar), "direct mode")?;
    let msix = Msix::create(&map, &direct)?;
    ensure!(msix.cq().is_none(), "an MSI-X in direct mode has a CQ");
    ensure_eq!(Some((msix.eq().id(), 1)), map.pairs().nth(1), "the EQ of the MSI-X");
    let cq = DpaCq::create(
        &rig.process,
        &DpaCqConfig {
            always_armed: true,
            ..DpaCqConfig::new(LOG_CQES, CqElement::DpaMsixEmulated(msix.eq().clone()))
        },
    )?;
    let attr = calls_by(rig.outbox()?);
    let take = |from: u32| {
        let take = Function::<(u64, u32, u32, u32), u64>::named("take_events");
        rig.process.call_with_attr(&attr, take, (msix.eq_address(), 6, from, msix.eq().id()))
    };
    for round in 1..=3 {
        send(&rig, &attr, &cq)?;
        send(&rig, &attr, &cq)?;
        ensure_eq!(raised(&device)?, [0, 2 * round, 0, 0], "vectors");
        let taken = take(2 * (round - 1))?;
        ensure_eq!(
            taken,
            u64::from(cq.number().0) << 32 | 2,
            "the CQ of the entries, and how many"
        );
        ensure_eq!(msix.eq().query()?.consumer, 2 * round, "entries that were taken");
    }
    Ok(())
}

fn msix_map_in_use_rejects_free(lab: &Lab) -> Result<(), Stop> {
    let rig = Rig::new(lab)?;
    let device = device(&rig)?;
    let map = MsixMap::create(&rig.process, &device, 1)?;
    let msix = Msix::create(&map, &MsixConfig::default())?;
    failed("a map with an MSI-X", map.free(), "in use")?;
    // The MSI-X of the map still works.
    let cq = msix.cq().cloned().ok_or_else(|| Stop::fail("the MSI-X has no CQ"))?;
    send(&rig, &calls_by(rig.outbox()?), &cq)?;
    ensure_eq!(raised(&device)?[0], 1, "the vector");
    failed("an MSI-X whose CQ is in use", msix.destroy(), "in use")?;
    drop(cq);
    let map = MsixMap::create(&rig.process, &device, 1)?;
    Msix::create(&map, &MsixConfig::default())?.destroy()?;
    map.free()?;
    let device = Arc::into_inner(device).ok_or_else(|| Stop::fail("the device is in use"))?;
    Ok(device.destroy()?)
}

fn objects_of_another_context_are_rejected(lab: &Lab) -> Result<(), Stop> {
    let (rig, other) = (Rig::new(lab)?, Rig::new(lab)?);
    let (own, foreign) = (device(&rig)?, device(&other)?);
    let cq =
        DpaCq::create(&rig.process, &DpaCqConfig::new(LOG_CQES, CqElement::NonDpa { vector: 0 }))?;
    let context = "another device context";
    failed("another context's doorbell", DoorbellToCq::map(&foreign, 0, &cq), context)?;
    failed("another context's vectors", MsixMap::create(&rig.process, &foreign, 1), context)?;
    let map = MsixMap::create(&rig.process, &own, 1)?;
    let target = Some(other.process.device().clone());
    let away = MsixConfig { target, ..MsixConfig::default() };
    failed("a CQ of another context", Msix::create(&map, &away), "not supported")?;
    let target = Some(rig.process.device().clone());
    Msix::create(&map, &MsixConfig { target, ..MsixConfig::default() })?;
    Ok(())
}

fn objects_are_destroyable_after_fatal_error(lab: &Lab) -> Result<(), Stop> {
    let rig = Rig::new(lab)?;
    let process = &rig.process;
    let device = device(&rig)?;
    let serves = ServeHandler::new(&rig)?;
    let doorbell = DoorbellToCq::map(&device, 0, &serves.cq)?;
    let map = MsixMap::create(process, &device, 1)?;
    let msix = Msix::create(&map, &MsixConfig::default())?;
    super::fatal("the call that ends it", process.call(ends_with(), (200,)))?;
    super::fatal("a device", emulation::create_device(process, 1, 1))?;
    super::fatal("a doorbell", DoorbellToCq::map(&device, 1, &serves.cq))?;
    super::fatal("a map", MsixMap::create(process, &device, 1))?;
    super::fatal("an MSI-X", Msix::create(&map, &MsixConfig::default()))?;
    doorbell.unmap()?;
    msix.destroy()?;
    map.free()?;
    Ok(Arc::into_inner(device).ok_or_else(|| Stop::fail("the device is in use"))?.destroy()?)
}
