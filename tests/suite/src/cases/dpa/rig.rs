//! The rig of the cases: a device with memory and a UAR, a process on it, a thread that takes CQEs,
//! and a queue pair whose completions go into the process's heap.

use std::sync::Arc;

use verbless_command::{
    CqAttr, CqEventTarget, CqObject, CqeSize, Device, DpaCall, DpaCallState, DpaEntry, DpaOutbox,
    DpaProcess, DpaProcessAttr, DpaStatus, DpaThread, DpaThreadInfo, DpaThreadKind, DpaThreadState,
    DpaWindow, Error, KeyAccess, KeyMemory, MkeyAttr, MkeyObject, ModelToken, QpAttr, QpObject,
    QueueMemory, RtsAttr, ServiceType,
};
use verbless_devx::{Pd, Uar, UarKind};
use verbless_queue::{ConnectOptions, Domain, PeerAddress};

use super::program::{CQ_DB, Program, UCTL};
use crate::endpoint::to_receive;
use crate::raw::{self, RegisteredMemory};
use crate::{Endpoint, Lab, Stop, ensure_eq, until};

/// Offsets in the heap.
const HEAP_BYTES: u32 = 1 << 16;
const ARGUMENT_AT: u64 = 0;
const RECORD_AT: u64 = 0x40;
pub(super) const CQ_AT: u64 = 0x1000;
/// The offset of an EQ.
pub(super) const EQ_AT: u64 = 0x3000;
pub(super) const LOG_CQES: u8 = 4;
const HOST_BYTES: usize = 1 << 14;

/// A device, the memory and UAR that programs reach, and the program.
pub(super) struct Rig {
    pub(super) device: Device,
    pub(super) token: ModelToken,
    pub(super) pd: Pd,
    pub(super) uar: Arc<Uar>,
    pub(super) host: RegisteredMemory,
    pub(super) program: Program,
}

impl Rig {
    pub(super) fn new(lab: &Lab) -> Result<Arc<Self>, Stop> {
        let device = lab.device()?;
        let pd = device.alloc_pd()?;
        Self::of(device, pd)
    }

    /// A rig in an existing protection domain.
    pub(super) fn of(device: Device, pd: Pd) -> Result<Arc<Self>, Stop> {
        let uar = Arc::new(device.uar_alloc(UarKind::NonCached)?);
        Self::at(device, pd, uar)
    }

    /// A rig in an existing protection domain, with an existing UAR.
    pub(super) fn at(device: Device, pd: Pd, uar: Arc<Uar>) -> Result<Arc<Self>, Stop> {
        let token = device.as_model().ok_or_else(|| Stop::fail("the device is not a model"))?;
        let host = RegisteredMemory::new(&device, HOST_BYTES)?;
        Ok(Arc::new(Self { device, token, pd, uar, host, program: Program::new() }))
    }

    /// A rig of the same device and protection domain with another UAR.
    pub(super) fn with_another_page(&self) -> Result<Arc<Self>, Stop> {
        Self::of(self.device.clone(), self.pd.clone())
    }

    /// A process of an ELF file.
    pub(super) fn process_of(&self, file: &[u8], watchdog: u64) -> Result<Arc<DpaProcess>, Error> {
        let bytes = file.len().next_multiple_of(4096);
        let memory = RegisteredMemory::new(&self.device, bytes)?;
        memory.memory.write_at(0, file).expect("room for the file");
        let attr = DpaProcessAttr {
            file: memory.umem,
            offset: 0,
            length: file.len() as u64,
            heap: HEAP_BYTES,
            watchdog,
        };
        self.device.create_dpa_process(&self.token, &attr)
    }

    /// The attributes of a key over the host's memory.
    pub(super) fn key_attr(&self, access: KeyAccess) -> MkeyAttr {
        MkeyAttr {
            pd: self.pd.clone(),
            access,
            start: self.host.umem.address(),
            length: self.host.umem.length(),
            memory: KeyMemory::Umem { umem: self.host.umem.clone(), offset: 0 },
        }
    }

    pub(super) fn key(&self, access: KeyAccess) -> Result<MkeyObject, Stop> {
        Ok(self.device.create_mkey(self.key_attr(access))?)
    }

    /// A key over a process's heap; its addresses are the process's.
    pub(super) fn heap_key(&self, process: &Arc<DpaProcess>) -> Result<MkeyObject, Stop> {
        let umem = Arc::new(process.heap());
        Ok(self.device.create_mkey(MkeyAttr {
            pd: self.pd.clone(),
            access: KeyAccess::ALL,
            start: umem.address(),
            length: umem.length(),
            memory: KeyMemory::Umem { umem, offset: 0 },
        })?)
    }

    /// A CQ in a process's heap; its entries are marked as the device's.
    pub(super) fn cq(
        &self,
        process: &Arc<DpaProcess>,
        record_at: u64,
        element: CqEventTarget,
    ) -> Result<Arc<CqObject>, Stop> {
        let heap = Arc::new(process.heap());
        Ok(Arc::new(self.device.create_cq(CqAttr {
            uar: self.uar.clone(),
            ring: QueueMemory::new(heap.clone(), CQ_AT),
            record: QueueMemory::new(heap, record_at),
            log_cqes: LOG_CQES,
            cqe_size: CqeSize::BYTES_64,
            element,
            ignore_overrun: false,
        })?))
    }
}

/// A process of the program, with an outbox and a window.
pub(super) struct Dpa {
    pub(super) rig: Arc<Rig>,
    pub(super) process: Arc<DpaProcess>,
    pub(super) outbox: Arc<DpaOutbox>,
    pub(super) window: Arc<DpaWindow>,
    /// Addresses of the outboxes, of the windows' configuration and of the windows, from the
    /// context.
    bases: [u64; 3],
}

impl Dpa {
    pub(super) fn new(lab: &Lab) -> Result<Self, Stop> {
        Self::of(Rig::new(lab)?, 0)
    }

    pub(super) fn of(rig: Arc<Rig>, watchdog: u64) -> Result<Self, Stop> {
        let process = rig.process_of(&rig.program.file, watchdog)?;
        let outbox = rig.device.create_dpa_outbox(&process, &rig.uar)?;
        let window = rig.device.create_dpa_window(&process, &rig.pd)?;
        let mut dpa = Self { rig, process, outbox, window, bases: [0; 3] };
        let context = dpa.call("context", [0; 3])?;
        let word = |at| dpa.call("load64", [context + at, 0, 0]);
        let (base, configs, shape) = (word(8)?, word(0x18)?, word(0x30)?);
        // The outbox of the run, if it has one.
        let outboxes = base - 4096 * (word(0)? >> 32 & 0xffff);
        ensure_eq!(shape >> 8 & 0xff, 48, "log2 of a window's bytes");
        dpa.bases = [outboxes, configs, (shape & 0xff) << 56];
        Ok(dpa)
    }

    pub(super) fn device(&self) -> &Device {
        &self.rig.device
    }

    pub(super) fn entry(&self, name: &str) -> DpaEntry {
        DpaEntry::at(self.rig.program.function(name))
    }

    /// An entry point with outbox and window.
    pub(super) fn whole_entry(&self, name: &str) -> DpaEntry {
        DpaEntry {
            outbox: Some(self.outbox.clone()),
            windows: [Some(self.window.clone()), None],
            ..self.entry(name)
        }
    }

    pub(super) fn begin(&self, name: &str, [a, b, c]: [u64; 3]) -> Result<DpaCall, Stop> {
        let arguments = [a, b, c, 0, 0, 0, 0, 0];
        Ok(self.device().begin_dpa_call(&self.process, &self.entry(name), arguments)?)
    }

    /// The state in which a call ends.
    pub(super) fn end_of(&self, call: &DpaCall) -> Result<DpaCallState, Stop> {
        let ended = || match call.state() {
            Ok(DpaCallState::Running) => None,
            other => Some(other),
        };
        Ok(until("the end of a call", ended)??)
    }

    /// The return value of a call.
    pub(super) fn wait(&self, call: &DpaCall) -> Result<u64, Stop> {
        match self.end_of(call)? {
            DpaCallState::Returned(result) => Ok(result),
            other => {
                let report = self.process.query()?;
                Err(Stop::fail(format!("a call did not return: {other:?}; {report}")))
            }
        }
    }

    pub(super) fn call_at(&self, entry: &DpaEntry, arguments: [u64; 8]) -> Result<u64, Stop> {
        let call = self.device().begin_dpa_call(&self.process, entry, arguments)?;
        self.wait(&call)
    }

    pub(super) fn call_with(&self, name: &str, arguments: [u64; 8]) -> Result<u64, Stop> {
        self.call_at(&self.entry(name), arguments)
    }

    pub(super) fn call(&self, name: &str, [a, b, c]: [u64; 3]) -> Result<u64, Stop> {
        self.call_with(name, [a, b, c, 0, 0, 0, 0, 0])
    }

    /// A call that ends its process with this status, and at this address if `at` is given.
    pub(super) fn dies(
        &self,
        name: &str,
        arguments: [u64; 3],
        status: u8,
        address: u64,
    ) -> Result<(), Stop> {
        let call = self.begin(name, arguments)?;
        let ended = DpaCallState::ProcessEnded(DpaStatus(status));
        ensure_eq!(self.end_of(&call)?, ended, "the end of a call of {name}");
        let info = self.process.query()?;
        ensure_eq!(info.status, DpaStatus(status), "the process's status");
        let crash = info.crash.ok_or_else(|| Stop::fail("no crash report"))?;
        ensure_eq!(crash.address, address, "the address in the report of {name}");
        Ok(())
    }

    /// The address of the outbox's page.
    pub(super) fn outbox_address(&self) -> u64 {
        self.page_of(&self.outbox)
    }

    fn page_of(&self, outbox: &DpaOutbox) -> u64 {
        self.bases[0] + u64::from(outbox.id()) * 4096
    }

    /// The process's address of byte `address` of a window.
    pub(super) fn window_address(&self, id: u16, address: u64) -> u64 {
        self.bases[2] | u64::from(id) << 48 | address
    }

    /// Points the window to a key, and gives the process's address of `address` there.
    pub(super) fn through_window(&self, key: u32, address: u64) -> Result<u64, Stop> {
        let config = self.bases[1] + (u64::from(self.window.id()) << 6);
        self.call("store32", [config, key.into(), 0])?;
        ensure_eq!(self.call("load32", [config, 0, 0])?, u64::from(key), "the window's key");
        Ok(self.window_address(self.window.id(), address))
    }

    /// Rings a doorbell of the outbox.
    pub(super) fn ring(&self, register: u64, value: u64) -> Result<(), Stop> {
        self.call("ring", [self.outbox_address(), register, value])?;
        Ok(())
    }

    /// Rings a doorbell, and gives os_errno of that run and UCTL after it.
    pub(super) fn ring_and_look(&self, register: u64, value: u64) -> Result<(u64, u64), Stop> {
        let entry = self.whole_entry("ring");
        let arguments = [self.outbox_address(), register, value, 0, 0, 0, 0, 0];
        let call = self.device().begin_dpa_call(&self.process, &entry, arguments)?;
        self.wait(&call)?;
        let uctl = self.call("load64", [self.outbox_address() + UCTL, 0, 0])?;
        // The call's context still exists, and no other run has it.
        let context = self.call("context", [0; 3])? - 4096;
        let errno = self.call("load32", [context + 0x28, 0, 0])?;
        Ok((errno, uctl))
    }

    /// A thread that takes the CQEs of an armed CQ in the heap.
    pub(super) fn drain(&self) -> Result<Drain, Stop> {
        self.drain_by("take")
    }

    /// A thread whose event handler `name` takes the CQEs of an armed CQ in the heap.
    pub(super) fn drain_by(&self, name: &str) -> Result<Drain, Stop> {
        self.drain_as(name, false)
    }

    pub(super) fn drain_as(&self, name: &str, polling: bool) -> Result<Drain, Stop> {
        let base = self.process.heap_address();
        let argument = base + ARGUMENT_AT;
        // One run has an outbox at a time; calls ring by the other outbox while the thread runs.
        let outbox = self.device().create_dpa_outbox(&self.process, &self.rig.uar)?;
        let page = self.page_of(&outbox);
        let entry = DpaEntry { outbox: Some(outbox), ..self.whole_entry(name) };
        let kind = DpaThreadKind { polling, ..DpaThreadKind::default() };
        let thread = self.device().create_dpa_thread(&self.process, &entry, argument, kind)?;
        let cq = self.cq(CqEventTarget::Thread(thread.id()))?;
        let drain = Drain { cq, thread };
        self.call("store64", [argument + 8, page, 0])?;
        self.call("store64", [argument + 16, drain.cqn(), 0])?;
        self.call("store64", [argument + 24, base + RECORD_AT, 0])?;
        self.arm(&drain, 0)?;
        Ok(drain)
    }

    /// A CQ in the heap.
    pub(super) fn cq(&self, element: CqEventTarget) -> Result<Arc<CqObject>, Stop> {
        self.call("fill", [self.process.heap_address() + CQ_AT, 0xf0, 64 << LOG_CQES])?;
        self.rig.cq(&self.process, RECORD_AT, element)
    }

    /// Arms a CQ after `taken` CQEs.
    pub(super) fn arm(&self, drain: &Drain, taken: u64) -> Result<(), Stop> {
        self.ring(CQ_DB, drain.cqn() | taken << 32)
    }
}

/// A thread and the CQ that starts it. The CQ is dropped first.
pub(super) struct Drain {
    pub(super) cq: Arc<CqObject>,
    pub(super) thread: DpaThread,
}

impl Drain {
    pub(super) fn cqn(&self) -> u64 {
        self.cq.cqn().0.into()
    }

    /// `Some` once the thread has counted `events` CQEs.
    pub(super) fn taken(&self, dpa: &Dpa, events: u64) -> Option<u64> {
        self.count(dpa).filter(|&count| count == events)
    }

    pub(super) fn taken_at_least(&self, dpa: &Dpa, events: u64) -> Option<u64> {
        self.count(dpa).filter(|&count| count >= events)
    }

    fn count(&self, dpa: &Dpa) -> Option<u64> {
        dpa.call("load64", [dpa.process.heap_address() + ARGUMENT_AT, 0, 0]).ok()
    }

    /// The thread's info once it waits for an event.
    pub(super) fn idle(&self) -> Option<DpaThreadInfo> {
        self.thread.query().ok().filter(|info| info.state == DpaThreadState::IDLE)
    }
}

/// A queue pair of the host, connected to itself; its completions go to a CQ in the heap.
pub(super) struct Sender {
    rig: Arc<Rig>,
    /// Its ring and record, if they are not in the heap.
    shared: Option<RegisteredMemory>,
    object: QpObject,
    posted: u16,
}

const SEND_WQEBBS: usize = 16;
const RECORDS_AT: usize = 4096;

impl Sender {
    pub(super) fn new(rig: &Arc<Rig>, cq: &Arc<CqObject>) -> Result<Self, Stop> {
        let shared = RegisteredMemory::new(&rig.device, 2 * 4096)?;
        let memory_at = |at: usize| QueueMemory::new(shared.umem.clone(), at as u64);
        let sender = Self::at(rig, cq, memory_at(0), memory_at(RECORDS_AT))?;
        Ok(Self { shared: Some(shared), ..sender })
    }

    /// A sender whose rings and records are in these memories; programs write them.
    pub(super) fn at(
        rig: &Arc<Rig>,
        cq: &Arc<CqObject>,
        rings: QueueMemory,
        record: QueueMemory,
    ) -> Result<Self, Stop> {
        let object = rig.device.create_qp(QpAttr {
            service: ServiceType::RC,
            pd: rig.pd.clone(),
            uar: rig.uar.clone(),
            send_cq: cq.clone(),
            receive_cq: cq.clone(),
            rings,
            record,
            log_send_wqebbs: Some(SEND_WQEBBS.ilog2() as u8),
            log_receive_wqes: Some(2),
            rmp: None,
            log_receive_stride: 4,
            user_index: 0,
            dma_mmo: false,
        })?;
        Ok(Self { rig: rig.clone(), shared: None, object, posted: 0 })
    }

    pub(super) fn qpn(&self) -> u32 {
        self.object.qpn().0
    }

    /// Takes the queue pair to RTS, connected to itself. `like` is a queue pair of the same port.
    pub(super) fn connect(&mut self, domain: &Domain, like: &Endpoint) -> Result<(), Stop> {
        let address = domain.address(&like.qp, &ConnectOptions::default())?;
        let itself = PeerAddress { qpn: self.object.qpn(), ..address };
        let (init, rtr) = to_receive(domain, &itself)?;
        self.object.to_init(&init)?;
        self.object.to_rtr(&rtr)?;
        Ok(self.object.to_rts(&RtsAttr {
            send_psn: itself.psn,
            ack_timeout: 14,
            retry_count: 7,
            rnr_retry: 7,
            max_reads: 4,
        })?)
    }

    /// Posts a NOP that asks for a CQE, without a doorbell.
    pub(super) fn post(&mut self) -> Result<(), Stop> {
        const NOP: u32 = 0;
        const ALWAYS_CQE: u32 = 0x08;
        let index = self.posted;
        let words = [u32::from(index) << 8 | NOP, self.qpn() << 8 | 1, ALWAYS_CQE, 0];
        let bytes: Vec<u8> = words.into_iter().flat_map(u32::to_be_bytes).collect();
        let shared =
            self.shared.as_ref().ok_or_else(|| Stop::fail("the queue does not own its ring"))?;
        shared.memory.write_at(64 + 64 * (usize::from(index) % SEND_WQEBBS), &bytes)?;
        self.posted = index.wrapping_add(1);
        let record = u32::from(self.posted).to_be_bytes();
        Ok(shared.memory.write_at(RECORDS_AT + 4, &record)?)
    }

    /// Rings the doorbell of the UAR for the posted requests.
    pub(super) fn ring(&self) {
        let [_, a, b, c] = self.qpn().to_be_bytes();
        let [high, low] = self.posted.wrapping_sub(1).to_be_bytes();
        raw::ring(&self.rig.uar, u64::from_ne_bytes([0, high, low, 0, a, b, c, 1]));
    }
}

/// A core file, as far as the cases read it.
pub(in crate::cases) struct Core<'a> {
    /// pc, then x1 to x31.
    pub(in crate::cases) registers: [u64; 32],
    /// Address and bytes of each memory segment.
    memory: Vec<(u64, &'a [u8])>,
}

impl<'a> Core<'a> {
    pub(in crate::cases) fn parse(file: &'a [u8]) -> Result<Self, Stop> {
        let broken = || Stop::fail("the core file is broken");
        let word = |at: usize| {
            let bytes = file.get(at..at + 8)?.first_chunk()?;
            Some(u64::from_le_bytes(*bytes))
        };
        let half = |at: usize| Some(u16::from_le_bytes(*file.get(at..at + 2)?.first_chunk()?));
        ensure_eq!(file[..4], *b"\x7fELF", "the magic number");
        ensure_eq!((half(16), half(18)), (Some(4), Some(243)), "a core file of RISC-V");
        let (first, count) = (word(32).ok_or_else(broken)? as usize, half(56).ok_or_else(broken)?);
        let mut core = Self { registers: [0; 32], memory: Vec::new() };
        for header in (0..count.into()).map(|index: usize| first + 56 * index) {
            let field = |at| word(header + at).map(|it| it as usize).ok_or_else(broken);
            let (kind, offset, length) = (field(0)? as u32, field(8)?, field(32)?);
            let bytes = file.get(offset..offset + length).ok_or_else(broken)?;
            match kind {
                4 => {
                    // One note, NT_PRSTATUS: 12 bytes of head, 8 of name, then registers at 112.
                    for (index, register) in core.registers.iter_mut().enumerate() {
                        *register = word(offset + 20 + 112 + 8 * index).ok_or_else(broken)?;
                    }
                }
                _ => core.memory.push((field(16)? as u64, bytes)),
            }
        }
        Ok(core)
    }

    /// The word at an address of the process.
    pub(in crate::cases) fn word(&self, address: u64) -> Result<u64, Stop> {
        let found = self.memory.iter().find_map(|(base, bytes)| {
            let at = address.checked_sub(*base)? as usize;
            Some(u64::from_le_bytes(*bytes.get(at..at + 8)?.first_chunk()?))
        });
        found.ok_or_else(|| Stop::fail(format!("the core file has no memory at {address:#x}")))
    }
}
