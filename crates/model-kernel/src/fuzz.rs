//! An open device file that a fuzzer drives. The client is not this process: the fuzzer supplies
//! its memory, which may change between two reads.

use std::os::fd::OwnedFd;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError};

use nix::errno::Errno;

use super::abi::{Access, AttrKind};
use super::client::{self, Capability, Client, FileId};
use super::eventfds::Eventfds;
use super::file::File;
use super::fwctl::Fwctl;
use super::in_process::{InProcess, Lease};
use super::page::PAGE;
use verbless_model::Model;
use verbless_model::memory::HostMemory;

/// An open device file.
pub struct FuzzFile {
    file: File,
    control: Option<Fwctl>,
    /// Must drop after the files.
    _lease: Lease,
}

/// A method and its attributes.
pub struct Method {
    /// The object type.
    pub object: u16,
    /// The method's id.
    pub id: u16,
    /// The attributes by id.
    pub attributes: Vec<(u16, AttrContent)>,
}

/// The content of an attribute.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AttrContent {
    /// Data in: at least this many bytes.
    In(u16),
    /// Data out: at least this many bytes.
    Out(u16),
    /// The handle of an object of this kind, or of any (0xffff).
    Handle(u16),
    /// A handle that the call returns.
    New(u16),
    /// A descriptor.
    Descriptor,
}

impl FuzzFile {
    /// Opens a device of a model. `privileged`: the client has every capability of Linux. `None`:
    /// the device did not come up.
    pub fn open(
        model: &Model,
        device: usize,
        memory: Arc<dyn HostMemory>,
        privileged: bool,
    ) -> Option<Self> {
        let lease = InProcess::of(model).lease(device).ok()?;
        let client = Arc::new(FuzzClient {
            memory,
            privileged,
            pinned: AtomicU64::new(0),
            eventfds: Eventfds::default(),
            descriptors: Mutex::default(),
        });
        let control = Fwctl::open(lease.kernel.clone()).ok();
        Some(Self { file: File::new(lease.kernel.clone(), client), control, _lease: lease })
    }

    /// Every method of the ABI.
    pub fn methods() -> Vec<Method> {
        let content = |kind| match kind {
            AttrKind::In { min, .. } => AttrContent::In(min),
            AttrKind::Out { min, .. } => AttrContent::Out(min),
            AttrKind::Handle { object, access: Access::New } => AttrContent::New(object),
            AttrKind::Handle { object, .. } => AttrContent::Handle(object),
            AttrKind::Fd { object, access: Access::New } => AttrContent::New(object),
            AttrKind::Fd { .. } | AttrKind::RawFd => AttrContent::Descriptor,
        };
        let methods = super::abi::methods().map(|method| Method {
            object: method.object,
            id: method.id,
            attributes: method.attrs.iter().map(|spec| (spec.id, content(spec.kind))).collect(),
        });
        methods.collect()
    }

    /// Calls an ioctl; returns the errno if it fails.
    pub fn ioctl(&self, words: &mut [u64]) -> Result<(), i32> {
        self.file.ioctl(words).map_err(|errno| errno as i32)
    }

    /// Calls an ioctl of the function's control file; the errno, if it fails.
    pub fn control(&self, request: u32, argument: u64) -> Result<(), i32> {
        let Some(control) = &self.control else { return Err(Errno::ENODEV as i32) };
        control.ioctl(&*self.file.client, request, argument).map_err(|errno| errno as i32)
    }

    /// Maps a page at an offset and unmaps it again.
    pub fn mmap(&self, offset: u64, length: usize) {
        let _ = self.file.mmap(offset, length, verbless_devx::Protection::ReadWrite);
    }
}

/// A client with its own memory and descriptors.
struct FuzzClient {
    memory: Arc<dyn HostMemory>,
    privileged: bool,
    pinned: AtomicU64,
    eventfds: Eventfds,
    descriptors: Mutex<Vec<OwnedFd>>,
}

/// Bytes that the client may pin without a privilege.
const MEMLOCK: u64 = 1 << 20;

impl FuzzClient {
    fn with<R>(&self, fd: i32, f: impl FnOnce(&OwnedFd) -> Result<R, Errno>) -> Result<R, Errno> {
        let descriptors = self.descriptors.lock().unwrap_or_else(PoisonError::into_inner);
        let at = usize::try_from(fd).map_err(|_| Errno::EBADF)?;
        f(descriptors.get(at).ok_or(Errno::EBADF)?)
    }
}

impl Client for FuzzClient {
    fn read(&self, address: u64, into: &mut [u8]) -> Result<(), Errno> {
        self.memory.read(address, into).map_err(|_| Errno::EFAULT)
    }

    fn write(&self, address: u64, from: &[u8]) -> Result<(), Errno> {
        self.memory.write(address, from).map_err(|_| Errno::EFAULT)
    }

    fn pin(&self, address: u64, length: u64, _: bool) -> Result<(), Errno> {
        let first = address & !(PAGE - 1);
        let length = (address - first).checked_add(length).ok_or(Errno::EFAULT)?;
        let length = length.checked_next_multiple_of(PAGE).ok_or(Errno::EFAULT)?;
        self.memory.direct(first, length).map(drop).ok_or(Errno::EFAULT)
    }

    fn dma_address(&self, address: u64) -> u64 {
        address
    }

    fn memlock(&self) -> u64 {
        MEMLOCK
    }

    fn pinned(&self) -> &AtomicU64 {
        &self.pinned
    }

    fn eventfds(&self) -> &Eventfds {
        &self.eventfds
    }

    fn capable(&self, _: Capability) -> bool {
        self.privileged
    }

    fn install(&self, fd: OwnedFd) -> Result<i32, Errno> {
        let mut descriptors = self.descriptors.lock().unwrap_or_else(PoisonError::into_inner);
        descriptors.push(fd);
        i32::try_from(descriptors.len() - 1).map_err(|_| Errno::EMFILE)
    }

    fn identify(&self, fd: i32) -> Result<FileId, Errno> {
        self.with(fd, client::identify)
    }

    fn descriptors(&self) -> Result<Vec<i32>, Errno> {
        let descriptors = self.descriptors.lock().unwrap_or_else(PoisonError::into_inner);
        Ok((0..).zip(&*descriptors).map(|(number, _)| number).collect())
    }

    fn borrow(&self, fd: i32) -> Result<OwnedFd, Errno> {
        self.with(fd, |fd| fd.try_clone().map_err(|_| Errno::EMFILE))
    }
}
