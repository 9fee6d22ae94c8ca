//! The devices of a model as `verbless-devx` sees them, in the process that holds the model.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nix::errno::Errno;
use verbless_devx::{
    Backend, DeviceInfo, Error, ErrorKind, Gid, GidInfo, GidType, LinkLayer, Mapping, OpenDevice,
    PortInfo, Protection,
};

use super::client::{Client, Ourselves};
use super::file::File;
use super::function::{Modelled, described_port};
use super::kernel::Kernel;
use crate::hca::Hca;
use crate::world::{HcaId, Shared};

/// The devices of a model as `verbless-devx` sees them. Cloning gives another handle to the same.
#[derive(Clone)]
pub struct InProcess {
    inner: Arc<Inner>,
}

struct Inner {
    shared: Arc<Shared>,
    client: Arc<dyn Client>,
    /// By device.
    kernels: Mutex<Vec<Attached>>,
}

/// The kernel's side of a device while somebody has it open, and how many have.
type Attached = Option<(Arc<Kernel>, usize)>;

impl Inner {
    fn kernels(&self) -> MutexGuard<'_, Vec<Attached>> {
        self.kernels.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A device that is kept attached.
pub(super) struct Lease {
    inner: Arc<Inner>,
    id: HcaId,
    pub kernel: Arc<Kernel>,
}

impl Drop for Lease {
    fn drop(&mut self) {
        // Detaching and attaching exclude each other, so that whoever opens the device next finds it down.
        let mut kernels = self.inner.kernels();
        if let Some(entry) = kernels.get_mut(self.id)
            && let Some((kernel, users)) = entry
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
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        let client: Arc<dyn Client> = Arc::new(Ourselves::default());
        Self { inner: Arc::new(Inner { shared, client, kernels: Mutex::default() }) }
    }

    /// Device `id`, attached if it is not yet.
    pub(super) fn lease(&self, id: HcaId) -> Result<Lease, Errno> {
        let mut kernels = self.inner.kernels();
        let len = kernels.len().max(id + 1);
        kernels.resize_with(len, || None);
        if kernels[id].is_none() {
            let function = Arc::new(Modelled { shared: self.inner.shared.clone(), id });
            kernels[id] = Some((Kernel::attach(function)?, 0));
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
        let world = self.inner.shared.lock();
        if world.hcas.is_empty() {
            return Err(Error::new(
                ErrorKind::NoDevice,
                "looking for the model's devices",
                "the model has none: add one to its builder",
            ));
        }
        Ok(world.hcas.iter().enumerate().map(|(id, hca)| describe(id, hca)).collect())
    }

    fn open(&self, device: &DeviceInfo) -> Result<Arc<dyn OpenDevice>, Error> {
        let failed = |errno| {
            let attempted = format!("opening {} of the model", device.name);
            let hint = "the modelled device refused what the kernel does when it takes a device; its log says which command";
            Error::new(ErrorKind::Refused, attempted, hint).with_errno(errno)
        };
        let devices = self.enumerate()?;
        let Some(id) = devices.iter().position(|known| known.name == device.name) else {
            let known: Vec<&str> = devices.iter().map(|known| &*known.name).collect();
            return Err(Error::new(
                ErrorKind::NoDevice,
                format!("opening {} of the model", device.name),
                format!("the model has {}", known.join(", ")),
            ));
        };
        let lease = self.lease(id).map_err(failed)?;
        let file = File::new(lease.kernel.clone(), self.inner.client.clone());
        Ok(Arc::new(Opened { file, _lease: lease }))
    }
}

/// A device that another process has open.
pub(crate) struct DeviceFile {
    file: File,
    /// Ends after the file.
    _lease: Lease,
}

impl DeviceFile {
    /// Opens a device for a client, which maps its doorbells from `doorbells` by itself: a sealed file of
    /// [`super::MMAP_SPAN`] bytes.
    pub(crate) fn open(
        backend: &InProcess,
        device: usize,
        client: Arc<dyn Client>,
        doorbells: Arc<OwnedFd>,
    ) -> Result<Self, Errno> {
        let lease = backend.lease(device)?;
        let file = File::new(lease.kernel.clone(), client).with_doorbells(doorbells);
        Ok(Self { file, _lease: lease })
    }

    /// Answers an ioctl of a client's, who may be another than the one who opened the device.
    pub(crate) fn ioctl(&self, client: &Arc<dyn Client>, words: &mut [u64]) -> Result<(), Errno> {
        self.file.ioctl_of(client, words)
    }
}

/// A device that this process has open.
struct Opened {
    file: File,
    /// Ends after the file.
    _lease: Lease,
}

#[allow(
    unsafe_code,
    reason = "the trait's method is unsafe to call; this implementation needs nothing of its caller"
)]
impl OpenDevice for Opened {
    // SAFETY (of the callee): pointers are followed by system calls only, which answer EFAULT for wild ones.
    unsafe fn ioctl(&self, request: &mut [u64]) -> Result<(), Errno> {
        self.file.ioctl(request)
    }

    fn mmap(&self, offset: u64, length: usize, protection: Protection) -> Result<Mapping, Errno> {
        self.file.mmap(offset, length, protection)
    }
}

/// What is known of a device before it is opened.
fn describe(id: HcaId, hca: &Hca) -> DeviceInfo {
    let numbers = hca.profile.device();
    let [major, minor, sub_minor] = numbers.firmware;
    let ports = (1..).map_while(|number| {
        let state = described_port(hca, number)?;
        Some(PortInfo {
            number: number as u8,
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
        name: format!("mlx5_{id}"),
        node: format!("uverbs{id}"),
        pci_address: None,
        vendor_id: numbers.vendor_id,
        device_id: numbers.device_id,
        board_id: numbers.board_id.clone(),
        firmware: format!("{major}.{minor}.{sub_minor:04}"),
        node_guid: hca.identity.node_guid,
        system_image_guid: hca.identity.system_image_guid,
        netdevs: Vec::new(),
        ports: ports.collect(),
    }
}
