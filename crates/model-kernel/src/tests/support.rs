//! A scripted device, a client with its own memory, and requests built attribute by attribute.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use nix::errno::Errno;
use verbless_devx::{Mapping, Protection};
use verbless_prm::{HcaCap, MkeyContext, Opcode};

use super::super::account::{Account, Charge, Resource};
use super::super::client::{Capability, Client, FileId, OwnProcess};
use super::super::cmd::{FunctionAccess, FunctionRegisters};
use super::super::file::File;
use super::super::kernel::Kernel;
use super::super::mailbox::{NUMBER, STATUS, SYNDROME};
use super::super::port::{GidEntry, PortState};
use super::super::refused;
use super::super::rules;
use verbless_model::memory::{HostMemory, Interrupts, Iommu, ProcessMemory};

/// A device that accepts every command, hands out numbers in order, and records its commands.
pub(super) struct Device {
    pub commands: Mutex<Vec<Vec<u8>>>,
    /// The next command with this opcode fails with this status.
    pub refuse: Mutex<Option<(u16, u8)>>,
    /// Runs during the next command with this opcode, before the kernel gets the result, as another
    /// thread could.
    pub races: Mutex<Option<(Opcode, Race)>>,
    /// The first bytes of command responses, by opcode and modifier.
    pub answers: Mutex<BTreeMap<(u16, u16), Vec<u8>>>,
    pub caps: HcaCap,
    pub ethernet: bool,
    /// The port needs a GRH: it shares a LID.
    pub grh_required: bool,
    pub alive: AtomicBool,
    /// The device was removed.
    pub removed: AtomicBool,
    /// The value of the cycle counter.
    pub cycles: AtomicU64,
    /// GIDs of its port besides the first.
    pub more_gids: Vec<GidEntry>,
    /// The offsets at which clients mapped UAR pages themselves, by page.
    pub backed: Mutex<BTreeMap<u32, u64>>,
    /// No page can be unbacked.
    pub keeps_backing: AtomicBool,
    /// Ioctls with exactly these names fail.
    pub fails: Mutex<Option<Vec<&'static str>>>,
    /// Keys that got another PD or other access flags.
    pub reconfigured: Mutex<Vec<(u32, MkeyContext)>>,
    interrupts: Mutex<Option<Arc<dyn Interrupts>>>,
    pub iommu: Arc<Iommu>,
    numbers: AtomicU32,
    /// Objects by destroying opcode and number.
    held: Mutex<BTreeMap<(Opcode, u32), ()>>,
}

/// Code that a test runs in the middle of a call.
type Race = Box<dyn FnOnce() + Send>;

/// The number of the first event queue; the device numbers every later object from there.
pub(super) const FIRST: u32 = 0x40;

impl Device {
    pub(super) fn new() -> Arc<Self> {
        let mut caps = HcaCap::zeroed();
        caps.set_log_max_uctx(4);
        caps.set_uctx_cap(3);
        caps.set_log_max_transport_domain(4);
        caps.set_num_ports(1);
        caps.set_log_max_qp(17);
        caps.set_cqe_version(1);
        caps.set_bf(true);
        Arc::new(Self::with(caps, false))
    }

    pub(super) fn with(caps: HcaCap, ethernet: bool) -> Self {
        Self {
            commands: Mutex::default(),
            refuse: Mutex::default(),
            races: Mutex::default(),
            answers: Mutex::default(),
            caps,
            ethernet,
            grh_required: false,
            backed: Mutex::default(),
            keeps_backing: AtomicBool::new(false),
            alive: AtomicBool::new(true),
            removed: AtomicBool::new(false),
            cycles: AtomicU64::new(7_000),
            more_gids: Vec::new(),
            fails: Mutex::default(),
            reconfigured: Mutex::default(),
            interrupts: Mutex::default(),
            iommu: Arc::default(),
            numbers: AtomicU32::new(FIRST),
            held: Mutex::default(),
        }
    }

    fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
        mutex.lock().expect("no test panics with the lock held")
    }

    /// The last command with an opcode.
    pub(super) fn last(&self, opcode: u16) -> Option<Vec<u8>> {
        let commands = Self::lock(&self.commands);
        commands.iter().rev().find(|command| rules::opcode(command).0 == opcode).cloned()
    }

    /// Number of commands with an opcode.
    pub(super) fn count(&self, opcode: u16) -> usize {
        let commands = Self::lock(&self.commands);
        commands.iter().filter(|command| rules::opcode(command).0 == opcode).count()
    }

    pub(super) fn refuse_next(&self, opcode: u16, status: u8) {
        *Self::lock(&self.refuse) = Some((opcode, status));
    }

    /// Calls `race` once, between the next command with this opcode and the kernel's next step.
    pub(super) fn race(&self, opcode: Opcode, race: impl FnOnce() + Send + 'static) {
        *Self::lock(&self.races) = Some((opcode, Box::new(race)));
    }

    /// Sets the first bytes of the response to an opcode and modifier.
    pub(super) fn answer(&self, opcode: Opcode, modifier: u16, bytes: &[u8]) {
        Self::lock(&self.answers).insert((opcode.0, modifier), bytes.to_vec());
    }

    /// Created objects that were not destroyed.
    pub(super) fn held(&self) -> usize {
        Self::lock(&self.held).len()
    }

    pub(super) fn raise(&self, vector: u32) {
        let interrupts = Self::lock(&self.interrupts).clone();
        if let Some(interrupts) = interrupts {
            interrupts.raise(vector);
        }
    }

    /// Writes entry number `index` into event queue number `queue` (0: asynchronous events) and
    /// raises its vector.
    pub(super) fn event(&self, queue: u32, index: u64, kind: u8, dwords: &[(usize, u32)]) {
        self.event_of((queue, index), (kind, 0), dwords);
    }

    /// Like [`Device::event`], with a sub-type.
    pub(super) fn event_of(
        &self,
        (queue, index): (u32, u64),
        (kind, sub_type): (u8, u8),
        dwords: &[(usize, u32)],
    ) {
        let create = Self::lock(&self.commands)
            .iter()
            .filter(|command| rules::opcode(command).0 == Opcode::CREATE_EQ.0)
            .nth(queue as usize)
            .cloned()
            .expect("the kernel made its queues");
        let base = u64::from_be_bytes(*create[0x110..].first_chunk().expect("a page"));
        let mut eqe = [0u8; 64];
        (eqe[1], eqe[3]) = (kind, sub_type);
        for &(dword, value) in dwords {
            eqe[0x20 + 4 * dword..][..4].copy_from_slice(&value.to_be_bytes());
        }
        let memory = ProcessMemory;
        memory.write(base + index * 64, &eqe[..63]).expect("the queue's memory");
        memory.store8(base + index * 64 + 63, 0).expect("the queue's memory");
        self.raise(queue);
    }

    fn answer_command(&self, input: &[u8], output: &mut [u8]) {
        output.fill(0);
        Self::lock(&self.commands).push(input.to_vec());
        let opcode = rules::opcode(input);
        let race = Self::lock(&self.races).take_if(|(raced, _)| *raced == opcode);
        if let Some((_, race)) = race {
            race();
        }
        let mut refuse = Self::lock(&self.refuse);
        if refuse.is_some_and(|(refused, _)| refused == opcode.0) {
            if let Some((_, status)) = refuse.take() {
                STATUS.set(output, status.into());
                SYNDROME.set(output, 0x1234);
            }
            return;
        }
        drop(refuse);
        let modifier = u16::from_be_bytes([input[6], input[7]]);
        if let Some(bytes) = Self::lock(&self.answers).get(&(opcode.0, modifier)) {
            let len = bytes.len().min(output.len());
            output[..len].copy_from_slice(&bytes[..len]);
            return;
        }
        match opcode {
            Opcode::QUERY_HCA_CAP if input[7] == 1 => {
                let len = self.caps.as_bytes().len().min(output.len() - 0x10);
                output[0x10..0x10 + len].copy_from_slice(&self.caps.as_bytes()[..len]);
            }
            Opcode::CREATE_EQ | Opcode::ALLOC_UAR | Opcode::CREATE_UCTX | Opcode::CREATE_UMEM => {
                let number = self.numbers.fetch_add(1, Ordering::Relaxed);
                NUMBER.set(output, number);
                let destroy = match opcode {
                    Opcode::CREATE_EQ => Opcode::DESTROY_EQ,
                    Opcode::ALLOC_UAR => Opcode::DEALLOC_UAR,
                    Opcode::CREATE_UCTX => Opcode::DESTROY_UCTX,
                    _ => Opcode::DESTROY_UMEM,
                };
                Self::lock(&self.held).insert((destroy, number), ());
            }
            _ if rules::is_create(input) => {
                NUMBER.set(output, self.numbers.fetch_add(1, Ordering::Relaxed));
                if let Some(created) = rules::created_object(input, output) {
                    let destroy = rules::opcode(&created.destroy);
                    Self::lock(&self.held).insert((destroy, created.id.number), ());
                }
            }
            _ => {
                let mut held = Self::lock(&self.held);
                held.remove(&(opcode, rules::destroyed_number(input).unwrap_or(NUMBER.get(input))));
                if opcode == Opcode::DESTROY_EQ {
                    held.retain(|&(held, number), ()| {
                        (held, number & 0xff) != (Opcode::DESTROY_EQ, u32::from(input[11]))
                    });
                }
            }
        }
    }
}

impl FunctionAccess for Device {
    fn execute(&self, input: &[u8], output: &mut [u8]) -> bool {
        self.answer_command(input, output);
        true
    }

    fn mmio_write(&self, _offset: u64, _bytes: &[u8]) {}

    fn is_alive(&self) -> bool {
        self.alive.load(Ordering::Relaxed)
    }

    fn is_released(&self) -> bool {
        self.removed.load(Ordering::Relaxed)
    }

    fn vectors(&self) -> u32 {
        3
    }

    fn set_interrupts(&self, interrupts: Option<Arc<dyn Interrupts>>) {
        *Self::lock(&self.interrupts) = interrupts;
    }

    fn registers(&self) -> FunctionRegisters {
        FunctionRegisters { firmware: [22, 35, 1012], device_id: 0x101d, embedded_cpu: false }
    }

    fn back_uar(
        &self,
        page: u32,
        _: std::os::fd::BorrowedFd<'_>,
        offset: u64,
    ) -> Result<(), Errno> {
        Self::lock(&self.backed).insert(page, offset);
        Ok(())
    }

    fn unback_uar(&self, page: u32) -> Result<(), Errno> {
        if self.keeps_backing.load(Ordering::Relaxed) {
            return Err(Errno::ENOMEM);
        }
        Self::lock(&self.backed).remove(&page);
        Ok(())
    }

    fn iommu(&self) -> Arc<Iommu> {
        self.iommu.clone()
    }

    fn take_ioctl_fault(&self, _: (u16, u16), names: &[&str]) -> Option<Errno> {
        let fails = Self::lock(&self.fails).clone()?;
        (names == fails).then_some(Errno::ENODEV)
    }

    fn map_uar(&self, _page: u32, length: usize, protection: Protection) -> Result<Mapping, Errno> {
        use std::os::fd::AsFd;
        let file = nix::sys::memfd::memfd_create(c"uar", nix::sys::memfd::MFdFlags::MFD_CLOEXEC)?;
        nix::unistd::ftruncate(&file, 4096)?;
        Mapping::shared(file.as_fd(), 0, length, protection)
    }

    fn cycles(&self) -> u64 {
        self.cycles.load(Ordering::Relaxed)
    }

    fn port(&self, number: u32) -> Option<PortState> {
        let mut gid = [0xfe; 16];
        gid[15] = 1;
        let first = GidEntry { index: 0, gid, kind: if self.ethernet { 2 } else { 0 } };
        (number == 1).then(|| PortState {
            ethernet: self.ethernet,
            active: true,
            lid: 7,
            sm_lid: 1,
            grh_required: self.grh_required,
            capability_mask: 0x48,
            capability_mask_2: 0x2,
            lmc: 1,
            sm_sl: 3,
            subnet_timeout: 18,
            init_type_reply: 0,
            max_vls: 4,
            max_mtu: 5,
            active_mtu: 5,
            width: 2,
            speed: 64,
            gids: std::iter::once(first).chain(self.more_gids.iter().copied()).collect(),
        })
    }

    fn network_addresses(&self) -> Option<([u8; 6], Vec<[u8; 16]>)> {
        None
    }

    fn reconfigure_key(&self, index: u32, change: &MkeyContext) -> bool {
        Self::lock(&self.reconfigured).push((index, *change));
        self.caps.umr_extended_translation_offset()
    }

    fn neighbour(&self, gid: &[u8; 16]) -> Option<[u8; 6]> {
        (gid[15] == 9).then_some([2, 0, 0, 0, 0, 9])
    }
}

/// This process, but with limits and privileges of the test's choice.
pub(super) struct TestClient {
    process: OwnProcess,
    pub memlock: AtomicU64,
    /// Capabilities by bit.
    pub capabilities: AtomicU64,
    /// Descriptors given out; closed with the client.
    pub installed: Mutex<Vec<OwnedFd>>,
    pub account: Arc<Account>,
    /// Maximum number of descriptors that may be kept for the client.
    pub most_claims: AtomicU64,
    /// The client's descriptors cannot be listed.
    pub hides_descriptors: AtomicBool,
    /// Listing the client's descriptors waits for this.
    pub descriptors: Mutex<()>,
}

impl TestClient {
    pub(super) fn new() -> Arc<Self> {
        Self::with(Arc::new(Arc::new(Account::default()).of_process()))
    }

    pub(super) fn with(account: Arc<Account>) -> Arc<Self> {
        Arc::new(Self {
            process: OwnProcess::default(),
            memlock: AtomicU64::new(u64::MAX),
            capabilities: AtomicU64::new(0),
            installed: Mutex::default(),
            account,
            most_claims: AtomicU64::new(u32::MAX.into()),
            hides_descriptors: AtomicBool::new(false),
            descriptors: Mutex::default(),
        })
    }
}

impl Client for TestClient {
    fn read(&self, address: u64, into: &mut [u8]) -> Result<(), Errno> {
        self.process.read(address, into)
    }
    fn write(&self, address: u64, from: &[u8]) -> Result<(), Errno> {
        self.process.write(address, from)
    }
    fn pin(&self, address: u64, length: u64, writable: bool) -> Result<(), Errno> {
        self.process.pin(address, length, writable)
    }
    fn dma_address(&self, address: u64) -> u64 {
        address
    }
    fn memlock(&self) -> u64 {
        self.memlock.load(Ordering::Relaxed)
    }
    fn pinned(&self) -> &AtomicU64 {
        self.process.pinned()
    }
    fn eventfds(&self) -> &super::super::eventfds::Eventfds {
        self.process.eventfds()
    }
    fn capable(&self, capability: Capability) -> bool {
        self.capabilities.load(Ordering::Relaxed) >> capability as u32 & 1 == 1
    }
    fn install(&self, fd: OwnedFd) -> Result<i32, Errno> {
        use std::os::fd::AsRawFd;
        let number = fd.as_raw_fd();
        self.installed.lock().expect("no test panics with the lock held").push(fd);
        Ok(number)
    }
    fn identify(&self, fd: i32) -> Result<FileId, Errno> {
        self.process.identify(fd)
    }
    fn borrow(&self, fd: i32) -> Result<OwnedFd, Errno> {
        self.process.borrow(fd)
    }
    fn descriptors(&self) -> Result<Vec<i32>, Errno> {
        drop(self.descriptors.lock());
        match self.hides_descriptors.load(Ordering::Relaxed) {
            true => Err(Errno::EAGAIN),
            false => self.process.descriptors(),
        }
    }
    fn account(&self) -> &Arc<Account> {
        &self.account
    }
    fn claim(&self) -> Result<Charge, Errno> {
        let most = self.most_claims.load(Ordering::Relaxed) as usize;
        self.account.charge_up_to(most, Resource::Descriptors, 1)
    }
}

/// A request, attribute by attribute. Data longer than eight bytes goes by pointer, as libraries
/// do.
pub(super) struct Request {
    pub words: Vec<u64>,
}

impl Request {
    pub(super) fn new(object: u16, method: u16) -> Self {
        let ids = u64::from(object) << 16 | u64::from(method) << 32;
        let mut request = Self { words: vec![ids, 0, 1] };
        request.fix();
        request
    }

    fn fix(&mut self) {
        let count = (self.words.len() as u64 - 3) / 2;
        let length = 24 + 16 * count;
        self.words[0] = self.words[0] & 0x0000_ffff_ffff_0000 | length | count << 48;
    }

    /// An attribute, word by word.
    pub(super) fn raw(mut self, id: u16, len: u16, flags: u16, reserved: u16, data: u64) -> Self {
        let header = u64::from(id)
            | u64::from(len) << 16
            | u64::from(flags) << 32
            | u64::from(reserved) << 48;
        self.words.extend([header, data]);
        self.fix();
        self
    }

    /// An input; `bytes` must outlive the call.
    pub(super) fn input(self, id: u16, bytes: &[u8]) -> Self {
        let mut data = [0; 8];
        let data = if bytes.len() <= 8 {
            data[..bytes.len()].copy_from_slice(bytes);
            u64::from_ne_bytes(data)
        } else {
            bytes.as_ptr() as u64
        };
        self.raw(id, bytes.len() as u16, 1, 0, data)
    }

    pub(super) fn output(self, id: u16, bytes: &mut [u8]) -> Self {
        self.raw(id, bytes.len() as u16, 1, 0, bytes.as_mut_ptr() as u64)
    }

    pub(super) fn number(self, id: u16, value: u64) -> Self {
        self.input(id, &value.to_ne_bytes())
    }

    pub(super) fn handle(self, id: u16, handle: u64) -> Self {
        self.raw(id, 0, 1, 0, handle)
    }

    /// The data word of attribute number `index`.
    pub(super) fn data(&self, index: usize) -> u64 {
        self.words[3 + 2 * index + 1]
    }

    /// The flags of attribute number `index`.
    pub(super) fn flags(&self, index: usize) -> u16 {
        (self.words[3 + 2 * index] >> 32) as u16
    }

    /// The words of the ioctl's buffer.
    pub(super) fn words(&mut self) -> &mut [u64] {
        &mut self.words
    }

    /// Sends the request. A refused request must have a reason, except one with an unmapped
    /// address.
    pub(super) fn send(&mut self, file: &File) -> Result<(), Errno> {
        refused::take();
        let result = file.ioctl(&mut self.words);
        let reason = refused::take();
        if let Err(errno) = result
            && errno != Errno::EFAULT
        {
            let request = &self.words[..2];
            assert!(reason.is_some(), "{request:x?} is refused with {errno}, without a reason");
        }
        REASON.set(reason.map(|(_, words)| words.into_owned()));
        result
    }
}

thread_local! {
    /// Why the last request was refused.
    static REASON: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// A device, a client, and a file of it with a DevX context.
pub(super) struct Fixture {
    pub device: Arc<Device>,
    pub client: Arc<TestClient>,
    pub file: File,
}

impl Fixture {
    /// Why the last request was refused.
    pub(super) fn reason(&self) -> Option<String> {
        REASON.take()
    }

    pub(super) fn new() -> Self {
        Self::of(Device::new())
    }

    pub(super) fn of(device: Arc<Device>) -> Self {
        let fixture = Self::without_context(device);
        fixture.get_context(1).expect("a context");
        fixture
    }

    pub(super) fn without_context(device: Arc<Device>) -> Self {
        let kernel =
            Kernel::attach(device.clone(), Default::default()).expect("the device accepts it");
        let client = TestClient::new();
        let file = File::new(kernel, client.clone());
        Self { device, client, file }
    }

    /// A context on a kernel of this release.
    pub(super) fn like(release: crate::KernelRelease) -> Self {
        Self::on_pages(release, crate::SystemPage::default())
    }

    /// A context on a kernel of this release, with pages of this size.
    pub(super) fn on_pages(release: crate::KernelRelease, page: crate::SystemPage) -> Self {
        let mut device = Device::with(Device::new().caps, false);
        device.caps.set_uar_4k(page.bytes() > 4096);
        let device = Arc::new(device);
        let kernel =
            Kernel::attach(device.clone(), (release, page)).expect("the device accepts it");
        let client = TestClient::new();
        let file = File::new(kernel, client.clone());
        let fixture = Self { device, client, file };
        fixture.get_context(1).expect("a context");
        fixture
    }

    /// A file without a user context; its client maps doorbells itself.
    pub(super) fn with_own_mappings(device: Arc<Device>) -> Self {
        Self::of_client(device, TestClient::new())
    }

    /// A file of this client without a user context.
    pub(super) fn of_client(device: Arc<Device>, client: Arc<TestClient>) -> Self {
        let kernel =
            Kernel::attach(device.clone(), Default::default()).expect("the device accepts it");
        let doorbells = std::fs::File::open("/dev/null").expect("a file");
        let file = File::new(kernel, client.clone()).with_doorbells(Arc::new(doorbells.into()));
        Self { device, client, file }
    }

    pub(super) fn get_context(&self, flags: u32) -> Result<[u8; 72], Errno> {
        get_context(&self.file, flags)
    }

    /// Sends OBJ_CREATE with a mailbox; returns the handle.
    pub(super) fn create(&self, input: &[u8]) -> Result<u64, Errno> {
        let mut output = [0; 16];
        let mut request = Request::new(0x1001, 0x1000)
            .handle(0x1000, 0)
            .input(0x1001, input)
            .output(0x1002, &mut output);
        request.send(&self.file)?;
        Ok(request.data(0))
    }

    pub(super) fn destroy(&self, object: u16, handle: u64) -> Result<(), Errno> {
        Request::new(object, 0x1001).handle(0x1000, handle).send(&self.file)
    }

    /// UMEM_REG with access flags and an optional page-size bitmap; handle and id.
    pub(super) fn umem(
        &self,
        address: u64,
        length: u64,
        access: u32,
        bitmap: Option<u64>,
    ) -> Result<(u64, u32), Errno> {
        let mut id = [0; 4];
        let mut request = Request::new(0x1002, 0x1000)
            .handle(0x1000, 0)
            .number(0x1001, address)
            .number(0x1002, length)
            .input(0x1003, &access.to_ne_bytes())
            .output(0x1004, &mut id);
        if let Some(bitmap) = bitmap {
            request = request.number(0x1005, bitmap);
        }
        request.send(&self.file)?;
        Ok((request.data(0), u32::from_ne_bytes(id)))
    }

    /// An event channel.
    pub(super) fn channel(&self, flags: u32) -> Result<OwnedFd, Errno> {
        let mut request =
            Request::new(0x1005, 0x1000).handle(0x1000, 0).input(0x1001, &flags.to_ne_bytes());
        request.send(&self.file)?;
        Ok(self.take_fd(request.data(0)))
    }

    /// Takes a descriptor over from the client that received it.
    pub(super) fn take_fd(&self, number: u64) -> OwnedFd {
        use std::os::fd::AsRawFd;
        let mut installed = self.client.installed.lock().expect("no panic");
        let at = installed
            .iter()
            .position(|fd| fd.as_raw_fd() as u64 == number)
            .expect("the number was given out");
        installed.swap_remove(at)
    }

    /// Closes the file; returns how many objects the device still holds for it or for the kernel.
    pub(super) fn close(self) -> usize {
        drop(self.file);
        self.device.held()
    }
}

/// GET_CONTEXT as the library sends it, with these flags; the response.
pub(super) fn get_context(file: &File, flags: u32) -> Result<[u8; 72], Errno> {
    let mut request = [0; 32];
    (request[0], request[4], request[16], request[24]) = (16, 4, 1, 3);
    request[8..12].copy_from_slice(&flags.to_ne_bytes());
    let mut response = [0; 72];
    Request::new(0, 3).input(0x1000, &request).output(0x1001, &mut response).send(file)?;
    Ok(response)
}

/// An inbox of `bytes` bytes with an opcode and, in the third dword, a number.
pub(super) fn command(opcode: u16, number: u32, bytes: usize) -> Vec<u8> {
    let mut input = vec![0; bytes];
    input[..2].copy_from_slice(&opcode.to_be_bytes());
    input[8..12].copy_from_slice(&number.to_be_bytes());
    input
}

/// A page-aligned buffer of `pages` pages: itself, and its address.
pub(super) fn buffer(pages: usize) -> (Vec<u8>, u64) {
    let buffer = vec![0u8; (pages + 1) * 4096];
    let address = (buffer.as_ptr() as u64).next_multiple_of(4096);
    (buffer, address)
}
