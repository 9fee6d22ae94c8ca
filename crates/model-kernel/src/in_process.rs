//! A model's devices as a `verbless-devx` backend, in the model's process.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nix::errno::Errno;
use verbless_devx::{
    Backend, DeviceInfo, Error, ErrorKind, Gid, GidInfo, GidType, LinkLayer, Mapping, OpenDevice,
    PortInfo, Protection, RepresentorInfo,
};
use verbless_model::function::Function;
use verbless_model::{Link, Model, Role, Side};
use verbless_wire::gid_of;

use super::client::{Client, OwnProcess};
use super::file::File;
use super::function::{ModelFunction, described_port};
use super::fwctl::{self, Fwctl};
use super::kernel::Kernel;
use super::network::{Neighbour, Network};
use super::pages::SystemPage;
use super::port::PortState;
use super::refusal_log::{logged, logged_fwctl};
use super::release::KernelRelease;
use super::topology;

/// A model's devices as a `verbless-devx` backend: all of them, or those of one side. Clones are
/// handles to the same devices.
#[derive(Clone)]
pub struct InProcess {
    inner: Arc<InProcessInner>,
    /// The visible side; `None`: all devices.
    side: Option<Side>,
}

struct InProcessInner {
    devices: Arc<[Function]>,
    client: Arc<dyn Client>,
    network: Arc<Network>,
    /// The kernels of the devices, by device number.
    kernels: Mutex<Vec<Attached>>,
    /// Release and page size of the kernels.
    like: Mutex<(KernelRelease, SystemPage)>,
    /// Unplugged devices.
    absent: Mutex<BTreeSet<usize>>,
}

/// The kernel of an open device, and its open count.
type Attached = Option<(Arc<Kernel>, usize)>;

impl InProcessInner {
    fn is_present(&self, device: &Function) -> bool {
        let absent = self.absent.lock().unwrap_or_else(PoisonError::into_inner);
        !absent.contains(&device.number())
    }

    fn like(&self) -> (KernelRelease, SystemPage) {
        *self.like.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn kernels(&self) -> MutexGuard<'_, Vec<Attached>> {
        self.kernels.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Keeps a device attached.
pub(super) struct Lease {
    inner: Arc<InProcessInner>,
    id: usize,
    pub kernel: Arc<Kernel>,
}

impl Drop for Lease {
    fn drop(&mut self) {
        // The lock makes the next open find the device detached.
        let mut kernels = self.inner.kernels();
        if let Some(entry) = kernels.get_mut(self.id)
            && let Some((kernel, users)) = entry
            && Arc::ptr_eq(kernel, &self.kernel)
        {
            *users -= 1;
            if *users == 0 {
                kernel.detach();
                *entry = None;
            }
        }
    }
}

impl InProcess {
    /// A model's devices. All backends of a model share one kernel.
    pub fn of(model: &Model) -> Self {
        let inner = model.driver(|| InProcessInner {
            devices: model.all_devices().into(),
            client: Arc::new(OwnProcess::default()),
            network: Arc::default(),
            kernels: Mutex::default(),
            like: Mutex::default(),
            absent: Mutex::default(),
        });
        Self { inner, side: None }
    }

    /// Makes the model's kernel like another Linux release, for devices that are opened for the
    /// first time after this.
    pub fn like(self, release: KernelRelease) -> Self {
        self.inner.like.lock().unwrap_or_else(PoisonError::into_inner).0 = release;
        self
    }

    /// Gives the model's kernel pages of another size than this process has, for devices that are
    /// opened for the first time after this.
    pub fn with_pages(self, page: SystemPage) -> Self {
        self.inner.like.lock().unwrap_or_else(PoisonError::into_inner).1 = page;
        self
    }

    /// Restricts the backend to one side's devices, numbered from 0 as programs on that side see
    /// them.
    pub fn on_side(self, side: Side) -> Self {
        Self { side: Some(side), ..self }
    }

    /// The uid of the kernel's own user context on a device; `None`: the device is not open, or has
    /// no user contexts. The device lists it in its [`Resources`](verbless_model::Resources);
    /// Linux's resource tracking does not.
    pub fn own_context(&self, device: usize) -> Option<u16> {
        let kernels = self.inner.kernels();
        let (kernel, _) = kernels.get(device)?.as_ref()?;
        Some(kernel.spare_uid).filter(|&uid| uid != 0)
    }

    /// A port of a device, counted from 1, as the kernel reports it.
    pub fn port(&self, device: usize, number: u32) -> Option<PortState> {
        described_port(self.inner.devices.get(device)?, number, &self.inner.network)
    }

    /// Adds an IP address to the netdev of a device, as `ip address add` does. It adds two GIDs,
    /// one per RoCE version, after the existing ones. `device` is a number as in the methods of
    /// [`Model`].
    ///
    /// ```
    /// # use verbless_devx::Backend;
    /// # use verbless_model::{Link, Model, Profile};
    /// # use verbless_model_kernel::InProcess;
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let card = Profile::load("connectx6dx")?.with_link(Link::Ethernet);
    /// let backend = InProcess::of(&Model::builder().device(card).build());
    /// backend.add_address(0, "192.0.2.1".parse()?)?;
    /// let gids = &backend.enumerate()?[0].ports[0].gids;
    /// assert_eq!(gids[3].gid.to_string(), "0000:0000:0000:0000:0000:ffff:c000:0201");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The device does not exist or has no Ethernet port; a client has it open; it already has the
    /// address; the address is not a host's; the GID table is full.
    pub fn add_address(&self, device: usize, address: IpAddr) -> Result<(), Error> {
        let refuse = |hint: String| {
            Error::new(
                ErrorKind::InvalidInput,
                format!("adding {address} to device {device}"),
                hint,
            )
        };
        let Some(at) = self.inner.devices.get(device) else {
            let count = self.inner.devices.len();
            return Err(refuse(format!("there is no such device: there are {count}, from 0")));
        };
        if at.profile().link() != Link::Ethernet {
            return Err(refuse("its ports are InfiniBand: choose a profile of Ethernet".into()));
        }
        if address.is_unspecified() || address.is_multicast() {
            return Err(refuse("this is no address of a host".into()));
        }
        let kernels = self.inner.kernels();
        if kernels.get(device).is_some_and(Option::is_some) {
            return Err(refuse("it is open: add addresses before a program opens it".into()));
        }
        let (gid, there) = (gid_of(address), self.port(device, 1));
        let there = there.map_or(Vec::new(), |port| port.gids);
        if there.iter().any(|entry| entry.gid == gid) {
            return Err(refuse("it has this address".into()));
        }
        let room = at.gid_table_length();
        if there.len() as u32 + 2 > room {
            return Err(refuse(format!("its GID table of {room} entries is full")));
        }
        self.inner.network.add_address(device, gid);
        Ok(())
    }

    /// Moves the netdev of a device to another network namespace, as `ip link set netns` does: an
    /// Ethernet port then has no GID here. Programs that have the device open keep theirs.
    pub fn move_netdev_away(&self, device: usize) {
        self.inner.network.move_netdev_away(device);
    }

    /// Adds a static neighbour for all devices, as `ip neigh add` does, for a host outside the
    /// model, which ARP does not reach.
    pub fn add_neighbour(&self, neighbour: &Neighbour) {
        self.inner.network.add_neighbour(gid_of(neighbour.address), neighbour.mac);
    }

    /// The visible devices, in order of their numbers.
    pub fn shown(&self) -> impl Iterator<Item = &Function> {
        self.numbered().map(|(_, device)| device)
    }

    /// The visible devices with their numbers, which do not change when others come and go.
    fn numbered(&self) -> impl Iterator<Item = (usize, &Function)> {
        let side = self.side;
        let is_shown =
            move |device: &&Function| side.is_none_or(|side| device.profile().side() == side);
        let of_side = self.inner.devices.iter().filter(is_shown).enumerate();
        let (release, _) = self.inner.like();
        of_side.filter(move |(_, device)| {
            self.inner.is_present(device) && release.knows_device(device.device_id())
        })
    }

    /// Hides a device and its representors, or shows them again, as when the number of VFs changes.
    /// Clients that have it open keep it. `device` is a number as in the methods of [`Model`]; all
    /// devices are present at first.
    pub fn set_present(&self, device: usize, present: bool) {
        let mut absent = self.inner.absent.lock().unwrap_or_else(PoisonError::into_inner);
        if present {
            absent.remove(&device);
        } else {
            absent.insert(device);
        }
    }

    /// The representors of other functions on a device's e-switch. `device` is a number as in the
    /// methods of [`Model`].
    pub fn represented(&self, device: usize) -> Vec<RepresentorInfo> {
        let all = &self.inner.devices;
        let present = all.iter().filter(|other| self.inner.is_present(other));
        all.get(device).map_or(Vec::new(), |device| topology::representors(device, present))
    }

    /// Attaches device `id` if needed. After a reset it is attached again; earlier clients keep a
    /// kernel that has released it.
    pub(super) fn lease(&self, id: usize) -> Result<Lease, Errno> {
        let mut kernels = self.inner.kernels();
        let len = kernels.len().max(id + 1);
        kernels.resize_with(len, || None);
        let fabric = self.inner.devices.clone();
        let device = fabric.get(id).ok_or(Errno::ENODEV)?.clone();
        let was_reset = |(kernel, _): &(Arc<Kernel>, usize)| {
            device.is_alive() && kernel.is_dead() && kernel.is_gone()
        };
        if kernels[id].as_ref().is_none_or(was_reset) {
            // On Linux, the driver attached before the device died, and GET_CONTEXT fails with this
            // errno; here the open does.
            if !device.is_alive() {
                return Err(if device.is_removed() { Errno::EIO } else { Errno::EAGAIN });
            }
            let network = self.inner.network.clone();
            let function = Arc::new(ModelFunction::new(device, fabric, network)?);
            kernels[id] = Some((Kernel::attach(function, self.inner.like())?, 0));
        }
        let (kernel, users) = kernels[id].as_mut().ok_or(Errno::ENODEV)?;
        *users += 1;
        Ok(Lease { inner: self.inner.clone(), id, kernel: kernel.clone() })
    }
}

impl Backend for InProcess {
    fn name(&self) -> &str {
        "model"
    }

    fn enumerate(&self) -> Result<Vec<DeviceInfo>, Error> {
        let shown = self.numbered();
        let network = &self.inner.network;
        let devices: Vec<_> =
            shown.map(|(number, device)| describe(number, device, network)).collect();
        let (release, _) = self.inner.like();
        if let Some(unknown) = self
            .inner
            .devices
            .iter()
            .map(Function::device_id)
            .find(|&id| devices.is_empty() && !release.knows_device(id))
        {
            return Err(Error::new(
                ErrorKind::NoDevice,
                "looking for the model's devices",
                format!(
                    "the mlx5_core of Linux {release} does not know the PCI id 15b3:{unknown:04x}: \
                     choose a newer kernel or an older device"
                ),
            ));
        }
        if devices.is_empty() {
            return Err(Error::new(
                ErrorKind::NoDevice,
                "looking for the model's devices",
                match self.side {
                    None => "the model has none: add one to its builder",
                    Some(Side::Host) => {
                        "the model has none on the host side: add one to its builder"
                    }
                    Some(Side::Dpu) => {
                        "the model has none on the DPU side: add one to its builder by \
                         `device_with_sides`, of a profile that has a section `dpu`"
                    }
                },
            ));
        }
        Ok(devices)
    }

    fn representors(&self, device: &DeviceInfo) -> Result<Vec<RepresentorInfo>, Error> {
        let Some((_, manager)) = self.numbered().find(|(number, _)| name(*number) == device.name)
        else {
            return Err(Error::new(
                ErrorKind::DeviceGone,
                format!("listing the representors of {} of the model", device.name),
                "it was unplugged: list the devices again",
            ));
        };
        Ok(self.represented(manager.number()))
    }

    fn open(&self, device: &DeviceInfo) -> Result<Arc<dyn OpenDevice>, Error> {
        let failed = |function: &Function, errno| {
            let attempted = format!("opening {} of the model", device.name);
            let (kind, hint) = if function.is_removed() {
                (ErrorKind::DeviceGone, "it was removed: open another device")
            } else if !function.is_alive() {
                (ErrorKind::Refused, "it is in a fatal error: reset it")
            } else {
                let hint = "the modelled device refused a command while attaching; its log names \
                            the command";
                (ErrorKind::Refused, hint)
            };
            Error::new(kind, attempted, hint).with_errno(errno)
        };
        let devices = self.enumerate()?;
        let called = |(number, _): &(usize, &Function)| name(*number) == device.name;
        let Some((_, function)) = self.numbered().find(called) else {
            let known: Vec<&str> = devices.iter().map(|known| &*known.name).collect();
            return Err(Error::new(
                ErrorKind::NoDevice,
                format!("opening {} of the model", device.name),
                format!("the model's devices are {}: open one of them", known.join(", ")),
            ));
        };
        let lease = self.lease(function.number()).map_err(|errno| failed(function, errno))?;
        let file = File::new(lease.kernel.clone(), self.inner.client.clone());
        Ok(Arc::new(Opened { file, backend: self.clone(), lease }))
    }
}

/// A device that another process opened.
pub struct DeviceFile {
    file: File,
    /// Must drop after the file.
    _lease: Lease,
}

impl DeviceFile {
    /// Opens a device for a client that maps its doorbells from `doorbells`, a sealed file of
    /// `mmap_span` bytes.
    pub fn open(
        backend: &InProcess,
        device: usize,
        client: Arc<dyn Client>,
        doorbells: Arc<OwnedFd>,
    ) -> Result<Self, Errno> {
        let lease = backend.lease(device)?;
        let file = File::new(lease.kernel.clone(), client).with_doorbells(doorbells);
        Ok(Self { file, _lease: lease })
    }

    /// Executes an ioctl of a client, which may not be the opener.
    pub fn ioctl(&self, client: &Arc<dyn Client>, words: &mut [u64]) -> Result<(), Errno> {
        logged(&**client, words, |words| self.file.ioctl_of(client, words))
    }

    /// The cost of closing the file, in destroyed objects; `None` during an ioctl.
    pub fn close_cost(&self) -> Option<usize> {
        self.file.close_cost()
    }

    /// Whether a client may map the doorbell page at this offset with these `PROT_` bits.
    pub fn map(&self, offset: u64, length: u64, protection: i32) -> Result<(), Errno> {
        self.file.mapped_by_client(offset, length, protection)
    }
}

/// A control file that another process opened.
pub struct FwctlFile {
    control: Fwctl,
    /// Must drop after the file.
    _lease: Lease,
}

impl FwctlFile {
    /// Whether a device has a control file.
    pub fn is_offered(device: &Function) -> bool {
        fwctl::is_offered(device.capabilities().uctx_cap(), device.on_card().role == Role::Sf)
    }

    /// Opens the control file of a device that has one.
    ///
    /// # Errors
    /// Linux's errno, if the device refuses a user context.
    pub fn open(backend: &InProcess, device: usize) -> Result<Self, Errno> {
        // The driver creates the user context on open.
        let dead = |errno| if errno == Errno::EAGAIN { Errno::ENOLINK } else { errno };
        let lease = backend.lease(device).map_err(dead)?;
        Ok(Self { control: Fwctl::open(lease.kernel.clone())?, _lease: lease })
    }

    /// Executes an ioctl of a client, whose structure is at `argument`.
    pub fn ioctl(&self, client: &dyn Client, request: u32, argument: u64) -> Result<(), Errno> {
        logged_fwctl(client, request, || self.control.ioctl(client, request, argument))
    }
}

/// A control file that this process opened.
struct OpenedFwctl {
    file: FwctlFile,
    client: Arc<dyn Client>,
}

#[allow(
    unsafe_code,
    reason = "the trait's method is unsafe to call; this implementation needs nothing of its caller"
)]
// SAFETY: only system calls use the addresses, within the argument's length.
unsafe impl verbless_devx::OpenFwctl for OpenedFwctl {
    // SAFETY (of the callee): the structure must be as long as its request and its own size field
    // say, or nothing is accessed; only system calls use its pointers, and they return EFAULT for
    // wild ones.
    unsafe fn ioctl(&self, request: u32, argument: &mut [u64]) -> Result<(), Errno> {
        let fwctl = verbless_devx::abi::fwctl::structure_bytes(request);
        if fwctl.is_some() && !verbless_devx::abi::fwctl::is_whole(request, argument) {
            return Err(Errno::EINVAL);
        }
        let address = argument.as_mut_ptr().expose_provenance() as u64;
        self.file.ioctl(&*self.client, request, address)
    }
}

/// A device that this process opened.
struct Opened {
    file: File,
    backend: InProcess,
    /// Must drop after the file.
    lease: Lease,
}

#[allow(
    unsafe_code,
    reason = "the trait's method is unsafe to call; this implementation needs nothing of its caller"
)]
// SAFETY: only system calls use the pointers, within their lengths. The model follows Linux's rules
// for UMEMs, each descriptor is a new file, and the model accesses its mappings by atomics.
unsafe impl OpenDevice for Opened {
    // SAFETY (of the callee): only system calls use the pointers, and they return EFAULT for wild
    // ones.
    unsafe fn ioctl(&self, request: &mut [u64]) -> Result<(), Errno> {
        logged(&*self.file.client, request, |request| self.file.ioctl(request))
    }

    fn mmap(&self, offset: u64, length: usize, protection: Protection) -> Result<Mapping, Errno> {
        self.file.mmap(offset, length, protection)
    }

    fn page_size(&self) -> usize {
        self.file.kernel.page.bytes() as usize
    }

    fn open_fwctl(&self) -> Result<Option<Arc<dyn verbless_devx::OpenFwctl>>, Error> {
        let inner = &self.backend.inner;
        // fwctl came with Linux 6.15.
        if inner.like().0 < KernelRelease::Newest
            || !inner.devices.get(self.lease.id).is_some_and(FwctlFile::is_offered)
        {
            return Ok(None);
        }
        let file = FwctlFile::open(&self.backend, self.lease.id).map_err(|errno| {
            let hint = "the modelled device refused its user context; the log has the reason";
            Error::new(ErrorKind::Refused, "opening a control file of the model", hint)
                .with_errno(errno)
        })?;
        Ok(Some(Arc::new(OpenedFwctl { file, client: inner.client.clone() })))
    }
}

/// RDMA device name.
fn name(number: usize) -> String {
    format!("mlx5_{number}")
}

/// Describes a device before it is opened, under its visible number.
fn describe(number: usize, device: &Function, network: &Network) -> DeviceInfo {
    let profile = device.profile();
    let numbers = profile.device();
    let on_card = device.on_card();
    let [major, minor, sub_minor] = numbers.firmware;
    let ports = (1..).map_while(|port| {
        let state = described_port(device, port, network)?;
        Some(PortInfo {
            number: port as u8,
            link_layer: if state.ethernet { LinkLayer::Ethernet } else { LinkLayer::InfiniBand },
            state: if state.active { 4 } else { 1 },
            gids: state
                .gids
                .iter()
                .map(|entry| GidInfo {
                    index: entry.index,
                    gid: Gid(entry.gid),
                    kind: GidType::from_code(entry.kind),
                    netdev: None,
                })
                .collect(),
        })
    });
    DeviceInfo {
        name: name(number),
        node: format!("uverbs{number}"),
        has_node: true,
        pci_address: topology::pci_address(&on_card),
        function: topology::kind(&on_card),
        vendor_id: numbers.vendor_id,
        device_id: device.device_id(),
        board_id: numbers.board_id.clone(),
        firmware: format!("{major}.{minor}.{sub_minor:04}"),
        node_guid: device.node_guid(),
        system_image_guid: device.system_image_guid(),
        embedded_cpu: profile.side() == Side::Dpu,
        netdevs: Vec::new(),
        ports: ports.collect(),
    }
}
