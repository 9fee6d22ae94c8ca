//! Event queues of the DPA, emulated devices and their doorbells, reached through the registers of
//! an outbox.

use std::sync::Arc;

use verbless_command::{
    CqEventTarget, CqObject, DpaEq, DpaEqAttr, DpaEqInfo, EmulatedDevice, QueueMemory,
};
use verbless_devx::{Error, ErrorKind};
use verbless_prm::{DpaEmulatedDevice, GeneralObjectType};

use super::program::{
    BUFFER, CQ_DB, EMU_CAP, EMU_CAP_TRIGGER, EQ_DB_NO_REARM, EQ_DB_REARM, RXC_RD, RXT_DB,
};
use super::rig::{Dpa, Drain, EQ_AT};
use crate::case::cases;
use crate::need::cap;
use crate::{Lab, Need, Stop, ensure, ensure_eq};

cases!(
    "dpa_events",
    "Event queues of the DPA, devices that it emulates, their doorbells and vectors.",
    needs [Need::DpaLayouts, cap!(apu)]:
    cqe_raises_eqe_in_heap_eq,
    cqe_raises_eqe_in_host_memory_eq,
    full_eq_resumes_after_consumer_update,
    eqe_raises_vector_once_per_arm,
    emulated_device_doorbell_starts_thread,
    doorbell_rung_before_arm_is_not_lost,
    rxc_rd_returns_doorbell_value,
    emu_cap_trigger_makes_cqe_without_ring,
    outbox_rejects_objects_of_another_uar,
    emulated_device_rejects_missing_queue_or_vector,
);

const LOG_ENTRIES: u8 = 2;
const ENTRIES: u64 = 1 << LOG_ENTRIES;
const NO_QUEUE: u64 = 2;

/// A process, an EQ in its heap, and a CQ there that reports to the EQ. The CQ is dropped first.
struct Rig {
    cq: Arc<CqObject>,
    eq: DpaEq,
    dpa: Dpa,
    /// CQEs so far.
    made: u64,
}

impl Rig {
    fn new(lab: &Lab) -> Result<Self, Stop> {
        Self::in_heap(Dpa::new(lab)?, None)
    }

    fn in_heap(dpa: Dpa, device: Option<&Arc<EmulatedDevice>>) -> Result<Self, Stop> {
        dpa.call("fill", [dpa.process.heap_address() + EQ_AT, 0xff, 64 * ENTRIES])?;
        let ring = QueueMemory::new(Arc::new(dpa.process.heap()), EQ_AT);
        Self::of(dpa, ring, device)
    }

    fn of(dpa: Dpa, ring: QueueMemory, raises: Option<&Arc<EmulatedDevice>>) -> Result<Self, Stop> {
        let attr = DpaEqAttr {
            raises: raises.map(|device| (device.clone(), 1)),
            ..DpaEqAttr::new(ring, LOG_ENTRIES, dpa.rig.uar.clone())
        };
        let eq = dpa.device().create_dpa_eq(&dpa.rig.token, attr)?;
        let cq = dpa.cq(CqEventTarget::DpaEq(eq.id()))?;
        Ok(Self { cq, eq, dpa, made: 0 })
    }

    fn cqn(&self) -> u64 {
        self.cq.cqn().0.into()
    }

    /// Adds a CQE to an armed CQ, which makes an EQE.
    fn complete(&mut self) -> Result<(), Stop> {
        self.dpa.ring(CQ_DB, self.cqn() | self.made << 32)?;
        self.made += 1;
        self.dpa.ring(RXT_DB, self.cqn())
    }

    /// Entry `index`, as the process sees it: event type, CQ and owner.
    fn entry(&self, index: u64) -> Result<(u8, u32, u8), Stop> {
        let at = self.dpa.process.heap_address() + EQ_AT + 64 * (index % ENTRIES);
        let word = |offset| self.dpa.call("load64", [at + offset, 0, 0]).map(u64::to_le_bytes);
        let [_, kind, ..] = word(0)?;
        let [_, a, b, c, .., last] = word(0x38)?;
        Ok((kind, u32::from_be_bytes([0, a, b, c]), last & 1))
    }

    fn update(&self, taken: u64, arm: bool) -> Result<(), Stop> {
        let register = if arm { EQ_DB_REARM } else { EQ_DB_NO_REARM };
        self.dpa.ring(register, u64::from(self.eq.id()) | taken << 32)
    }

    fn info(&self) -> Result<(u32, u32, bool), Stop> {
        let DpaEqInfo { producer, consumer, armed } = self.eq.query()?;
        Ok((producer, consumer, armed))
    }
}

fn device(lab: &Lab) -> Result<(Dpa, Arc<EmulatedDevice>), Stop> {
    let dpa = Dpa::new(lab)?;
    let device = dpa.device().create_emulated_device(&dpa.rig.token, 4, 2)?;
    Ok((dpa, device))
}

fn cqe_raises_eqe_in_heap_eq(lab: &Lab) -> Result<(), Stop> {
    let mut rig = Rig::new(lab)?;
    ensure_eq!(rig.entry(0)?.2, 1, "the owner of an unwritten entry");
    // More than three times round, so that the owner changes.
    for index in 0..3 * ENTRIES + 1 {
        rig.complete()?;
        let owner = (index / ENTRIES % 2) as u8;
        ensure_eq!(rig.entry(index)?, (0, rig.cq.cqn().0, owner), "entry {index}");
        rig.update(index + 1, false)?;
        ensure_eq!(rig.info()?, (index as u32 + 1, index as u32 + 1, false), "indexes");
    }
    Ok(())
}

fn cqe_raises_eqe_in_host_memory_eq(lab: &Lab) -> Result<(), Stop> {
    let dpa = Dpa::new(lab)?;
    let ring = QueueMemory::new(dpa.rig.host.umem.clone(), 4096);
    dpa.rig.host.memory.write_at(4096, &[0xff; 64 * ENTRIES as usize])?;
    let mut rig = Rig::of(dpa, ring, None)?;
    rig.complete()?;
    let mut entry = [0; 64];
    rig.dpa.rig.host.memory.read_at(4096, &mut entry)?;
    ensure_eq!((entry[1], entry[63] & 1), (0, 0), "event type and owner");
    let number = u32::from_be_bytes([0, entry[0x39], entry[0x3a], entry[0x3b]]);
    ensure_eq!(number, rig.cq.cqn().0, "the CQ that it names");
    Ok(())
}

fn full_eq_resumes_after_consumer_update(lab: &Lab) -> Result<(), Stop> {
    let mut rig = Rig::new(lab)?;
    for _ in 0..ENTRIES + 1 {
        rig.complete()?;
    }
    ensure_eq!(rig.info()?, (ENTRIES as u32, 0, false), "an entry too many is lost");
    rig.update(1, false)?;
    rig.complete()?;
    ensure_eq!(rig.info()?, (ENTRIES as u32 + 1, 1, false), "entries after one was consumed");
    ensure_eq!(rig.entry(ENTRIES)?.2, 1, "the owner in the second round");
    Ok(())
}

fn eqe_raises_vector_once_per_arm(lab: &Lab) -> Result<(), Stop> {
    let (dpa, device) = device(lab)?;
    let mut rig = Rig::in_heap(dpa, Some(&device))?;
    rig.complete()?;
    ensure_eq!(device.raised()?, [0, 0], "vectors before the EQ was armed");
    rig.update(1, true)?;
    ensure!(rig.info()?.2, "the EQ is not armed");
    rig.complete()?;
    rig.complete()?;
    ensure_eq!(device.raised()?, [0, 1], "vectors after two entries of an EQ armed once");
    ensure!(!rig.info()?.2, "the EQ is still armed");
    rig.update(2, true)?;
    ensure_eq!(device.raised()?, [0, 2], "vectors after an arm with one of two entries consumed");
    rig.update(3, true)?;
    ensure_eq!(device.raised()?, [0, 2], "vectors after an arm with all entries consumed");
    Ok(())
}

fn emulated_device_doorbell_starts_thread(lab: &Lab) -> Result<(), Stop> {
    let (dpa, device) = device(lab)?;
    let drain = dpa.drain()?;
    let doorbell = dpa.device().create_emulated_doorbell(&device, 3, &drain.cq)?;
    let arm = |dpa: &Dpa| dpa.ring(EMU_CAP, drain.cqn() | u64::from(doorbell.id()) << 32);
    for round in 1..=5 {
        arm(&dpa)?;
        ensure!(doorbell.query()?.armed, "the doorbell is not armed");
        device.ring(3, 0x100 + round as u32)?;
        taken(&dpa, &drain, round)?;
        let info = doorbell.query()?;
        ensure_eq!((info.value, info.rings), (0x100 + round as u32, round as u32), "value, rings");
        ensure!(!info.armed && !info.pending, "what made a CQE is armed or pending: {info:?}");
    }
    // No program listens to the others.
    device.ring(0, 1)?;
    ensure_eq!(doorbell.query()?.rings, 5, "what another doorbell counts");
    Ok(())
}

fn taken(dpa: &Dpa, drain: &Drain, count: u64) -> Result<(), Stop> {
    crate::until(&format!("{count} CQEs"), || drain.taken(dpa, count)).map(drop)
}

fn doorbell_rung_before_arm_is_not_lost(lab: &Lab) -> Result<(), Stop> {
    let (dpa, device) = device(lab)?;
    let drain = dpa.drain()?;
    let doorbell = dpa.device().create_emulated_doorbell(&device, 0, &drain.cq)?;
    let arm = |dpa: &Dpa| dpa.ring(EMU_CAP, drain.cqn() | u64::from(doorbell.id()) << 32);
    device.ring(0, 1)?;
    device.ring(0, 2)?;
    ensure!(doorbell.query()?.pending, "a doorbell was rung and is not pending");
    ensure_eq!(drain.thread.query()?.events, 0, "events before the doorbell was armed");
    arm(&dpa)?;
    taken(&dpa, &drain, 1)?;
    // Two doorbells that reached no program make one CQE: a doorbell holds a value, not a count.
    arm(&dpa)?;
    let info = doorbell.query()?;
    ensure!(info.armed && !info.pending, "armed again: {info:?}");
    ensure_eq!(drain.thread.query()?.events, 1, "events");
    Ok(())
}

fn rxc_rd_returns_doorbell_value(lab: &Lab) -> Result<(), Stop> {
    let (dpa, device) = device(lab)?;
    let drain = dpa.drain()?;
    let doorbells =
        [0, 1].map(|queue| dpa.device().create_emulated_doorbell(&device, queue, &drain.cq));
    let [first, second] = doorbells;
    let (first, second) = (first?, second?);
    device.ring(0, 0xdead_beef)?;
    device.ring(1, 7)?;
    for (doorbell, value) in [(&first, 0xdead_beef), (&second, 7), (&first, 0xdead_beef)] {
        dpa.ring(RXC_RD, u64::from(doorbell.id()) << 2)?;
        let buffer = dpa.call("load64", [dpa.outbox_address() + BUFFER, 0, 0])?;
        ensure_eq!(buffer, value, "BUFFER");
    }
    Ok(())
}

fn emu_cap_trigger_makes_cqe_without_ring(lab: &Lab) -> Result<(), Stop> {
    let (dpa, device) = device(lab)?;
    let drain = dpa.drain()?;
    let doorbell = dpa.device().create_emulated_doorbell(&device, 0, &drain.cq)?;
    dpa.ring(EMU_CAP_TRIGGER, drain.cqn() | u64::from(doorbell.id()) << 32)?;
    taken(&dpa, &drain, 1)?;
    ensure_eq!(doorbell.query()?.rings, 0, "rings");
    Ok(())
}

fn outbox_rejects_objects_of_another_uar(lab: &Lab) -> Result<(), Stop> {
    let (dpa, device) = device(lab)?;
    let drain = dpa.drain()?;
    let doorbell = dpa.device().create_emulated_doorbell(&device, 0, &drain.cq)?;
    device.ring(0, 5)?;
    let number = u64::from(doorbell.id());
    let away = Dpa::of(dpa.rig.with_another_page()?, 0)?;
    let attr = |log_entries| {
        DpaEqAttr::new(
            QueueMemory::new(dpa.rig.host.umem.clone(), 0),
            log_entries,
            dpa.rig.uar.clone(),
        )
    };
    let eq = dpa.device().create_dpa_eq(&dpa.rig.token, attr(LOG_ENTRIES))?;
    let all = [
        (EQ_DB_REARM, u64::from(eq.id()) | 1 << 32),
        (EQ_DB_NO_REARM, u64::from(eq.id()) | 1 << 32),
        (EMU_CAP, drain.cqn() | number << 32),
        (EMU_CAP_TRIGGER, drain.cqn() | number << 32),
        (RXC_RD, number << 2),
    ];
    for (register, word) in all {
        let (errno, uctl) = away.ring_and_look(register, word)?;
        ensure_eq!((errno, uctl >> 1 & 1), (NO_QUEUE, 1), "register {register:#x}");
    }
    // A number without an object, and the doorbell with a CQ other than its own.
    for (register, word) in [
        (EQ_DB_REARM, u64::from(eq.id()) + 1),
        (EMU_CAP, drain.cqn() | (number + 1) << 32),
        (EMU_CAP_TRIGGER, (drain.cqn() + 1) | number << 32),
        (RXC_RD, (number + 1) << 2),
    ] {
        let (errno, uctl) = dpa.ring_and_look(register, word)?;
        ensure_eq!((errno, uctl >> 1 & 1), (NO_QUEUE, 1), "register {register:#x}");
    }
    ensure_eq!(eq.query()?.consumer, 0, "the consumer index");
    let info = doorbell.query()?;
    ensure!(!info.armed && info.pending, "the doorbell: {info:?}");
    Ok(())
}

fn emulated_device_rejects_missing_queue_or_vector(lab: &Lab) -> Result<(), Stop> {
    let (dpa, device) = device(lab)?;
    let drain = dpa.drain()?;
    let refused = |what: &str, outcome: Result<(), Error>| match outcome {
        Ok(()) => Err(Stop::fail(format!("{what} was not refused"))),
        Err(error) => {
            ensure_eq!(error.kind(), ErrorKind::Command, "{error}");
            Ok(())
        }
    };
    let make = |queues, vectors| {
        dpa.device().create_emulated_device(&dpa.rig.token, queues, vectors).map(drop)
    };
    refused("a device without queues", make(0, 1))?;
    refused("a device with 65 vectors", make(1, 65))?;
    make(1, 64)?;
    make(u16::MAX, 0)?;
    refused("the doorbell of queue 4 of 4", device.ring(4, 0))?;
    let kind = GeneralObjectType::DPA_EMULATED_DEVICE;
    let mut context = DpaEmulatedDevice::default();
    context.set_queues(1);
    let bare = dpa.device().create_general_object(kind, context.as_bytes())?;
    bare.modify(DpaEmulatedDevice::default().as_bytes())?;
    refused("to change its creation attributes", bare.modify(context.as_bytes()))?;
    let listen = |queue| dpa.device().create_emulated_doorbell(&device, queue, &drain.cq);
    refused("to listen to queue 4 of 4", listen(4).map(drop))?;
    let first = listen(2)?;
    refused("to listen to a queue that has a listener", listen(2).map(drop))?;
    drop(first);
    listen(2)?;
    let eq = |vector, log_entries| {
        let attr = DpaEqAttr {
            raises: Some((device.clone(), vector)),
            ..DpaEqAttr::new(
                QueueMemory::new(dpa.rig.host.umem.clone(), 0),
                log_entries,
                dpa.rig.uar.clone(),
            )
        };
        dpa.device().create_dpa_eq(&dpa.rig.token, attr).map(drop)
    };
    refused("vector 2 of 2", eq(2, LOG_ENTRIES))?;
    // The memory ends a page of its UMEM after its last byte at most.
    let past = dpa.rig.host.umem.length() + dpa.rig.host.umem.page_limit();
    let log = (past / 64).ilog2() + 1;
    refused("an EQ that is longer than its memory", eq(1, log as u8))?;
    Ok(eq(1, 8)?)
}
