//! A device whose requests to make objects are kept: the commands as they reach the kernel.
#![allow(unsafe_code, reason = "looks at a request that its maker keeps alive meanwhile")]

use std::ptr::with_exposed_provenance;
use std::sync::{Arc, Mutex};

use verbless_devx::abi::attr::devx_obj_create::CMD_IN;
use verbless_devx::abi::frame::{ATTRIBUTE_WORDS, Attribute, HEADER_WORDS, Header};
use verbless_devx::abi::method::DEVX_OBJ_CREATE;
use verbless_devx::{
    Backend, DeviceInfo, Errno, Error, Mapping, OpenDevice, Protection, RepresentorInfo,
};
use zerocopy::{FromBytes, IntoBytes};

/// A backend that keeps what goes through it.
pub(crate) struct Recorder {
    backend: Arc<dyn Backend>,
    commands: Arc<Mutex<Vec<Vec<u8>>>>,
}

struct Recorded {
    device: Arc<dyn OpenDevice>,
    commands: Arc<Mutex<Vec<Vec<u8>>>>,
}

impl Recorder {
    pub(crate) fn new(backend: impl Backend + 'static) -> Self {
        Self { backend: Arc::new(backend), commands: Arc::default() }
    }

    /// The input of the last command that made an object.
    pub(crate) fn last(&self) -> Vec<u8> {
        self.commands.lock().expect("no panic").last().expect("a command").clone()
    }
}

impl Backend for Recorder {
    fn name(&self) -> &str {
        self.backend.name()
    }

    fn enumerate(&self) -> Result<Vec<DeviceInfo>, Error> {
        self.backend.enumerate()
    }

    fn representors(&self, device: &DeviceInfo) -> Result<Vec<RepresentorInfo>, Error> {
        self.backend.representors(device)
    }

    fn open(&self, device: &DeviceInfo) -> Result<Arc<dyn OpenDevice>, Error> {
        let device = self.backend.open(device)?;
        Ok(Arc::new(Recorded { device, commands: self.commands.clone() }))
    }
}

impl OpenDevice for Recorded {
    unsafe fn ioctl(&self, request: &mut [u64]) -> Result<(), Errno> {
        let (header, attributes) = request.split_at(HEADER_WORDS);
        let header = Header::ref_from_bytes(header.as_bytes()).expect("a header");
        if (header.object_id, header.method_id) == (DEVX_OBJ_CREATE.object, DEVX_OBJ_CREATE.method)
        {
            let attributes = attributes.chunks_exact(ATTRIBUTE_WORDS);
            let mut attributes =
                attributes.map(|words| Attribute::read_from_bytes(words.as_bytes()).expect("one"));
            let input = attributes.find(|it| it.attr_id == CMD_IN).expect("a command");
            let at = with_exposed_provenance(input.data as usize);
            // SAFETY: the caller keeps the command until the request returns, and commands are
            // longer than what travels in the attribute itself.
            let bytes: &[u8] = unsafe { std::slice::from_raw_parts(at, input.len.into()) };
            self.commands.lock().expect("no panic").push(bytes.to_vec());
        }
        // SAFETY: as the caller promises.
        unsafe { self.device.ioctl(request) }
    }

    fn mmap(&self, offset: u64, length: usize, protection: Protection) -> Result<Mapping, Errno> {
        self.device.mmap(offset, length, protection)
    }
}
