//! The driver of one device: the attach of `mlx5_core` and `mlx5_ib`, and their state.
//!
//! It uses commands and doorbells only. It attaches when the first client opens the device and
//! detaches when the last one closes it, so an unused device holds no object.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, PoisonError, TryLockError, Weak};
use std::thread;

use nix::errno::Errno;
use verbless_prm::hot::event_type as event;
use verbless_prm::{
    AtomicCap, AtomicReqEndianness, CreateEqOut, DestroyEqIn, Eqe, EqePortState, HcaCap, Opcode,
    PortChangeSubtype, PortType,
};

use super::boot::Booted;
use super::clock::Clock;
use super::cmd::{FunctionAccess, cmd_do, cmd_exec, command, succeeds_on_dead_device};
use super::event_queue::EventQueue;
use super::event_rules::{self, Subscribable};
use super::mailbox::{Field, NUMBER, UID, inbox};
use super::page::PAGE;
use super::pages::SystemPage;
use super::release::KernelRelease;
use super::rules;
use super::steering::Flows;
use super::subscriptions::Subscriptions;
use super::verbs::listener::Listeners;
use verbless_model::memory::Interrupts;

/// Maximum number of completion vectors, each with an EQ and an interrupt; a device may have fewer.
/// This kernel has a fixed number; Linux derives it from the CPUs.
const COMPLETION_VECTORS: u32 = 4;
/// log2 of the entries of the async EQ, and of the completion EQs.
const LOG_ASYNC: u32 = 12;
const LOG_COMPLETION: u32 = 10;
/// How often [`Kernel::serve`] looks for pending vectors.
const MAX_PASSES: usize = 16;
/// MSI-X vector of the async EQ; completion vector n uses n + 1.
const ASYNC_VECTOR: u32 = 0;
/// Doorbell that updates the consumer index and arms the EQ, in its UAR page.
const EQ_ARM: u64 = 0x40;
/// Doorbell that updates the consumer index only.
const EQ_CONSUMER: u64 = 0x48;

/// `ib_event_type` values that async event files carry.
pub(super) mod ib_event {
    pub(crate) const DEVICE_FATAL: u32 = 8;
    pub(crate) const PORT_ACTIVE: u32 = 9;
    pub(crate) const PORT_ERR: u32 = 10;
    pub(crate) const LID_CHANGE: u32 = 11;
    pub(crate) const PKEY_CHANGE: u32 = 12;
    pub(crate) const CLIENT_REREGISTER: u32 = 17;
    pub(crate) const GID_CHANGE: u32 = 18;
}

/// An attached device.
pub(super) struct Kernel {
    pub release: KernelRelease,
    pub page: SystemPage,
    pub function: Arc<dyn FunctionAccess>,
    pub caps: HcaCap,
    /// The events open to subscription; `None`: the device reports no events to users.
    pub subscribable: Option<Subscribable>,
    /// `qp_ts_format` of the RoCE capabilities; 0 without RoCE.
    pub roce_timestamps: u32,
    /// Entries of the RoCE address table.
    pub roce_table: u32,
    /// `wqe_inline_mode` of the Ethernet capabilities.
    pub inline_mode: u32,
    /// Dump-fill mkey, if the device has one.
    pub dump_fill_mkey: u32,
    /// The uid for the few queries of clients without DevX; 0 if the device has none.
    pub spare_uid: u16,
    pub subscriptions: Subscriptions,
    pub clock: Clock,
    /// Receivers of events on verbs objects.
    pub listeners: Listeners,
    /// Steering rules for received packets.
    pub flows: Flows,
    /// The device supports InfiniBand atomics.
    pub atomics: bool,
    /// Low byte of the last mkey.
    key_variant: AtomicU8,
    /// The kernel's UAR page, for its EQs.
    uar: Option<u32>,
    /// The async EQ, then the completion EQs.
    queues: Mutex<Vec<EventQueue>>,
    completion_queues: Vec<u32>,
    /// One bit per EQ: its interrupt fired, and its EQEs are unread.
    pending: AtomicU64,
    dead: AtomicBool,
    /// The device is gone, and its channels have ended.
    ended: AtomicBool,
    /// `None` once detached.
    booted: Mutex<Option<Booted>>,
}

/// Reads a page of current capabilities.
pub(super) fn capabilities(function: &dyn FunctionAccess, page: u16) -> Result<Vec<u8>, Errno> {
    let mut output = vec![0; 0x1010];
    cmd_exec(function, &inbox(Opcode::QUERY_HCA_CAP, (page << 1) + 1, 0, 16), &mut output)?;
    Ok(output.split_off(0x10))
}

/// Passes interrupts to the kernel while it exists.
struct Vectors(Weak<Kernel>);

impl Interrupts for Vectors {
    fn raise(&self, vector: u32) {
        if let Some(kernel) = self.0.upgrade() {
            kernel.interrupt(vector);
        }
    }

    fn fatal(&self) {
        if let Some(kernel) = self.0.upgrade() {
            kernel.is_dead();
        }
    }
}

impl Kernel {
    /// Attaches to a device: reads its capabilities, creates the EQs, and takes its interrupts.
    pub(super) fn attach(
        function: Arc<dyn FunctionAccess>,
        (release, page): (KernelRelease, SystemPage),
    ) -> Result<Arc<Self>, Errno> {
        let booted = Booted::new(function.clone(), page)?;
        let device = &*function;
        let general = capabilities(device, 0)?;
        let caps = *HcaCap::from_prefix(&general).ok_or(Errno::EIO)?;
        let subscribable =
            caps.event_cap().then(|| capabilities(device, 0x14)).transpose()?.map(|page| {
                Subscribable { affiliated: mask(&page, 0), unaffiliated: mask(&page, 32) }
            });
        let roce = if caps.roce() { capabilities(device, 4)? } else { Vec::new() };
        let ethernet = capabilities(device, 1).unwrap_or_default();
        let dump_fill_mkey = if caps.dump_fill_mkey() {
            let mut output = [0; 0x20];
            cmd_exec(device, &inbox(Opcode::QUERY_SPECIAL_CONTEXTS, 0, 0, 16), &mut output)?;
            Field(0x8, 31, 0).get(&output)
        } else {
            0
        };
        let mut kernel = Self {
            release,
            page,
            function: function.clone(),
            caps,
            subscribable,
            roce_timestamps: Field(0, 1, 0).get(&roce),
            roce_table: Field(0x1c, 15, 0).get(&roce),
            inline_mode: Field(0, 13, 12).get(&ethernet),
            dump_fill_mkey,
            spare_uid: 0,
            subscriptions: Subscriptions::default(),
            clock: Clock::default(),
            listeners: Listeners::default(),
            flows: Flows::default(),
            atomics: caps.atomic() && capabilities(device, 3).is_ok_and(|page| atomics(&page)),
            key_variant: AtomicU8::new(0),
            uar: None,
            queues: Mutex::default(),
            completion_queues: Vec::new(),
            pending: AtomicU64::new(0),
            dead: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            booted: Mutex::new(Some(booted)),
        };
        kernel.bring_up()?;
        let kernel = Arc::new(kernel);
        function.set_interrupts(Some(Arc::new(Vectors(Arc::downgrade(&kernel)))));
        for vector in 0..=kernel.completion_vectors() {
            kernel.interrupt(vector);
        }
        Ok(kernel)
    }

    /// Creates the kernel's own objects; on failure, [`Kernel::detach`] destroys the rest.
    fn bring_up(&mut self) -> Result<(), Errno> {
        let mut output = [0; 16];
        self.exec(&inbox(Opcode::ALLOC_UAR, 0, 0, 16), &mut output)?;
        self.uar = Some(NUMBER.get(&output));
        let mut mask = [0; 4];
        for kind in [
            event::PATH_MIGRATED,
            event::COMMUNICATION_ESTABLISHED,
            event::SQ_DRAINED,
            event::SRQ_LAST_WQE,
            event::SRQ_LIMIT,
            event::CQ_ERROR,
            event::WQ_CATASTROPHIC_ERROR,
            event::PATH_MIGRATION_FAILED,
            event::WQ_INVALID_REQUEST_ERROR,
            event::WQ_ACCESS_ERROR,
            event::SRQ_CATASTROPHIC_ERROR,
            event::PORT_CHANGE,
            event::PAGE_REQUEST,
        ] {
            mask[usize::from(kind / 64)] |= 1u64 << (kind % 64);
        }
        if let Some(events) = &self.subscribable {
            for (index, word) in mask.iter_mut().enumerate() {
                *word |= events.affiliated[index] | events.unaffiliated[index];
            }
        }
        self.add_queue(LOG_ASYNC, ASYNC_VECTOR, mask)?;
        let vectors = self.function.vectors().saturating_sub(1).clamp(1, COMPLETION_VECTORS);
        for vector in 0..vectors {
            let number = self.add_queue(LOG_COMPLETION, vector + 1, [0; 4])?;
            self.completion_queues.push(number);
        }
        if self.caps.log_max_uctx() != 0 {
            self.spare_uid = self.create_uctx(0)?;
        }
        let booted = self.booted.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let (Some((mac, gids)), Some(booted)) = (self.function.network_addresses(), booted) {
            booted.set_gids(mac, &gids)?;
        }
        Ok(())
    }

    fn add_queue(&mut self, log_size: u32, vector: u32, events: [u64; 4]) -> Result<u32, Errno> {
        let mut queue = EventQueue::new(log_size, vector);
        let mut output = CreateEqOut::default();
        let create = queue.create(self.uar.unwrap_or_default(), events);
        self.exec(&create, output.as_bytes_mut())?;
        queue.number = output.eq_number().into();
        let number = queue.number;
        self.queues.get_mut().unwrap_or_else(PoisonError::into_inner).push(queue);
        Ok(number)
    }

    /// Executes a client's command. EREMOTEIO: the device refused it, with the reason in the
    /// outbox. Any other errno: the client gets no outbox.
    pub(super) fn pass(&self, input: &[u8], output: &mut [u8]) -> Result<(), Errno> {
        match self.run(input, output) {
            // For a dead device, Linux before 5.18 answers some commands itself, clients' commands
            // too.
            Err(Errno::ENXIO)
                if self.release < KernelRelease::Newest
                    && succeeds_on_dead_device(rules::opcode(input)) =>
            {
                Ok(())
            }
            result => result.map_err(|errno| self.release.refusal(errno, output)),
        }
    }

    /// Executes a client's command whose outbox arrives even if the device refused it, with
    /// EREMOTEIO.
    pub(super) fn run(&self, input: &[u8], output: &mut [u8]) -> Result<(), Errno> {
        cmd_do(&*self.function, input, output)
    }

    /// Executes a kernel command; maps its status to an errno.
    pub(super) fn exec(&self, input: &[u8], output: &mut [u8]) -> Result<(), Errno> {
        cmd_exec(&*self.function, input, output)
            .map_err(|errno| self.release.refusal(errno, output))
    }

    /// Creates a user context with the privileges `cap`; returns its uid.
    pub(super) fn create_uctx(&self, cap: u32) -> Result<u16, Errno> {
        let mut input = inbox(Opcode::CREATE_UCTX, 0, 0, 0x40);
        Field(0x10, 31, 0).set(&mut input, cap);
        let mut output = [0; 16];
        self.exec(&input, &mut output)?;
        Ok(Field(0x8, 15, 0).get(&output) as u16)
    }

    pub(super) fn destroy_uctx(&self, uid: u16) {
        let mut input = inbox(Opcode::DESTROY_UCTX, 0, 0, 0x10);
        Field(0x8, 15, 0).set(&mut input, uid.into());
        let _ = self.exec(&input, &mut [0; 16]);
    }

    /// Executes a command without arguments that allocates a number.
    pub(super) fn allocate(&self, opcode: Opcode, uid: u16) -> Result<u32, Errno> {
        let mut output = [0; 16];
        self.exec(&inbox(opcode, 0, uid, 16), &mut output)?;
        Ok(NUMBER.get(&output))
    }

    /// Frees the result of [`Kernel::allocate`].
    pub(super) fn free(&self, opcode: Opcode, uid: u16, number: u32) -> Result<(), Errno> {
        let mut input = inbox(opcode, 0, uid, 16);
        UID.set(&mut input, uid.into());
        NUMBER.set(&mut input, number);
        self.exec(&input, &mut [0; 16])
    }

    /// The uid with which a UAR of a user context is allocated.
    pub(super) fn uar_uid(&self, context: u16) -> u16 {
        if self.release.uars_have_uid() { context } else { 0 }
    }

    /// The low byte of the next mkey, which invalidates destroyed mkeys of the same index.
    pub(super) fn next_key_variant(&self) -> u8 {
        self.key_variant.fetch_add(1, Ordering::Relaxed).wrapping_add(1)
    }

    /// Entries of a port's P_Key table.
    pub(super) fn pkeys(&self) -> u16 {
        if self.caps.port_type() == PortType::ETHERNET { 1 } else { self.max_pkeys() }
    }

    /// Size of the P_Key table by the capability, also on Ethernet (`mlx5_query_max_pkeys`).
    pub(super) fn max_pkeys(&self) -> u16 {
        match self.caps.pkey_table_size().0 {
            log @ 0..=5 => 128 << log,
            _ => 0,
        }
    }

    pub(super) fn completion_vectors(&self) -> u32 {
        self.completion_queues.len() as u32
    }

    /// The EQ of a completion vector.
    pub(super) fn completion_queue(&self, vector: u16) -> Option<u32> {
        self.completion_queues.get(usize::from(vector)).copied()
    }

    /// Whether an EQN is that of a completion EQ.
    pub(super) fn is_completion_queue(&self, number: u32) -> bool {
        self.completion_queues.contains(&number)
    }

    /// Whether clients may map UAR pages with write combining: never without capability `bf` (Linux
    /// `mlx5_ib_test_wc`).
    pub(super) fn has_write_combining(&self) -> bool {
        self.caps.bf()
    }

    /// True once the device died. Verbs' async event files report DEVICE_FATAL at once. DevX files
    /// report nothing, because Linux's `devx_event_notifier` gets only EQEs; they end when the
    /// device is removed or reset (`devx_async_event_destroy_uobj`).
    pub(super) fn is_dead(&self) -> bool {
        let mut reported = false;
        if !self.dead.load(Ordering::Acquire)
            && !self.function.is_alive()
            && !self.dead.swap(true, Ordering::AcqRel)
        {
            reported = true;
            // The element that mlx5_core passes on (Linux `mlx5_enter_error_state`).
            let element = if self.function.is_released() { 0 } else { 1 };
            self.subscriptions.send_to_async_files(element, ib_event::DEVICE_FATAL);
        }
        let dead = self.dead.load(Ordering::Acquire);
        if dead && self.is_gone() && !self.ended.swap(true, Ordering::AcqRel) {
            if !reported {
                // For files that were created after the device died.
                self.subscriptions.send_to_async_files(0, ib_event::DEVICE_FATAL);
            }
            self.subscriptions.close_channels();
        }
        dead
    }

    /// True once the driver has released a dead device: it was removed or reset.
    pub(super) fn is_gone(&self) -> bool {
        self.dead.load(Ordering::Acquire) && self.function.is_released()
    }

    /// Takes the EQEs of `vector`'s EQs, passes them to subscribers, and arms the EQs.
    ///
    /// If another thread is serving, that thread serves this interrupt too. The caller may be any
    /// client's thread: if the device keeps adding EQEs, a thread of the kernel continues.
    fn interrupt(self: &Arc<Self>, vector: u32) {
        self.pending.fetch_or(1 << vector.min(63), Ordering::AcqRel);
        if !self.serve() {
            return;
        }
        let kernel = Arc::downgrade(self);
        let serve_rest = move || {
            while kernel.upgrade().is_some_and(|kernel| kernel.serve()) {
                // Lets other threads lock the queues.
                thread::yield_now();
            }
        };
        if let Err(error) = thread::Builder::new().name("verbless-events".into()).spawn(serve_rest)
        {
            tracing::warn!(%error, "events are delivered by the thread that caused them");
            while self.serve() {}
        }
    }

    /// Serves the pending vectors; true if some are still pending: an EQ may have more EQEs than a
    /// whole round, or others became pending [`MAX_PASSES`] times.
    fn serve(&self) -> bool {
        if self.is_dead() {
            return false;
        }
        let Some(uar) = self.uar else { return false };
        let page = u64::from(uar) * PAGE;
        for _ in 0..MAX_PASSES {
            // A thread that adds a vector fails to lock the queues, or this load sees the vector.
            fence(Ordering::SeqCst);
            if self.pending.load(Ordering::Acquire) == 0 {
                return false;
            }
            let mut queues = match self.queues.try_lock() {
                Ok(queues) => queues,
                Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
                Err(TryLockError::WouldBlock) => return false,
            };
            let vectors = self.pending.swap(0, Ordering::AcqRel);
            let mut left = false;
            for queue in queues.iter_mut().filter(|queue| vectors >> queue.vector & 1 == 1) {
                let vector = queue.vector;
                let ring = |word: [u8; 4]| self.function.mmio_write(page + EQ_CONSUMER, &word);
                if queue.serve(|eqe| self.handle(vector, eqe), ring) {
                    ring(queue.doorbell());
                    self.pending.fetch_or(1 << vector.min(63), Ordering::AcqRel);
                    left = true;
                } else {
                    self.function.mmio_write(page + EQ_ARM, &queue.doorbell());
                }
            }
            if left {
                return true;
            }
        }
        fence(Ordering::SeqCst);
        self.pending.load(Ordering::Acquire) != 0
    }

    fn handle(&self, vector: u32, eqe: &Eqe) {
        if vector != ASYNC_VECTOR {
            let number = event_rules::completed_cq(eqe);
            self.listeners.completed(number);
            self.subscriptions.dispatch(event::COMPLETION.into(), Some(number), eqe);
            return;
        }
        let kind = eqe.event_type().0;
        if kind == event::PORT_CHANGE {
            self.port_changed(eqe);
        }
        if kind == event::PAGE_REQUEST {
            let mut booted = self.booted.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(booted) = &mut *booted {
                booted.page_request(event_rules::pages(eqe));
            }
        } else if kind != event::COMMAND_COMPLETION {
            self.listeners.report_event(eqe);
            let (key, number) = event_rules::keys(self.subscribable.as_ref(), eqe);
            self.subscriptions.dispatch(key, number, eqe);
        }
    }

    /// Translates a port EQE to a verbs event.
    fn port_changed(&self, eqe: &Eqe) {
        use PortChangeSubtype as Change;
        let kind = match Change(eqe.event_sub_type()) {
            Change::ACTIVE => ib_event::PORT_ACTIVE,
            Change::DOWN | Change::INITIALIZED => ib_event::PORT_ERR,
            Change::LID => ib_event::LID_CHANGE,
            Change::PKEY => ib_event::PKEY_CHANGE,
            Change::GUID => ib_event::GID_CHANGE,
            Change::CLIENT_REREGISTER => ib_event::CLIENT_REREGISTER,
            _ => return,
        };
        let port: &EqePortState = event_rules::data(eqe);
        self.subscriptions.send_to_async_files(port.port_num().into(), kind);
    }
}

impl Kernel {
    /// Detaches: destroys the kernel's objects and tears the function down. Idempotent.
    pub(super) fn detach(&self) {
        let Some(booted) = self.booted.lock().unwrap_or_else(PoisonError::into_inner).take() else {
            return;
        };
        self.function.set_interrupts(None);
        if self.spare_uid != 0 {
            self.destroy_uctx(self.spare_uid);
        }
        let mut queues = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
        for queue in queues.drain(..) {
            let mut input = DestroyEqIn::new();
            input.set_eq_number(queue.number as u8);
            if command(&*self.function, &input).is_err() {
                // The device may still write there.
                std::mem::forget(queue);
            }
        }
        drop(queues);
        if let Some(page) = self.uar {
            let _ = self.free(Opcode::DEALLOC_UAR, 0, page);
        }
        drop(booted);
    }
}

impl Drop for Kernel {
    fn drop(&mut self) {
        self.detach();
    }
}

fn mask(page: &[u8], at: usize) -> [u64; 4] {
    std::array::from_fn(|index| {
        page.get(at + 8 * index..at + 8 * index + 8)
            .and_then(|bytes| bytes.first_chunk())
            .map_or(0, |bytes| u64::from_be_bytes(*bytes))
    })
}

/// Whether the device's atomics are atomic among each other, for QPs with 8-byte operands in host
/// byte order.
fn atomics(capabilities: &[u8]) -> bool {
    const COMPARE_SWAP_AND_FETCH_ADD: u16 = 3;
    const EIGHT_BYTES: u16 = 1 << 3;
    AtomicCap::from_prefix(capabilities).is_some_and(|caps| {
        caps.atomic_operations() & COMPARE_SWAP_AND_FETCH_ADD == COMPARE_SWAP_AND_FETCH_ADD
            && caps.atomic_size_qp() & EIGHT_BYTES != 0
            && caps.atomic_req_8b_endianness_mode() != AtomicReqEndianness(0)
    })
}
