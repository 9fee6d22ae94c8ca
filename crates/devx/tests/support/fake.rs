//! A device that answers by a function. Requests that the function leaves out succeed with
//! plausible values.

use std::os::fd::{AsFd, IntoRawFd, OwnedFd};
use std::sync::{Arc, Mutex};
use zerocopy::IntoBytes;

use nix::sys::memfd::{MFdFlags, memfd_create};
use verbless_devx::abi::attr::{get_context, uar_obj_alloc, uhw};
use verbless_devx::abi::mlx5::AllocContextResponse;
use verbless_devx::abi::request::VALID_OUTPUT;
use verbless_devx::abi::{Attribute, Header, Method, method};
use verbless_devx::{Context, DeviceInfo, Errno, Mapping, OpenDevice, Protection};

use super::pair;

/// Decides a request: `None` leaves it to the default.
pub(crate) type Decide = dyn Fn(Method, &mut Call<'_>) -> Option<Result<(), Errno>> + Send + Sync;

pub(crate) struct Fake {
    decide: Box<Decide>,
    ends: Mutex<Vec<OwnedFd>>,
    /// Bytes of a page of its kernel.
    page: usize,
}

/// Offset at which mmap maps half the requested length.
pub(crate) const MAPPED_HALF: u64 = 1 << 32;

/// The attributes of a request.
pub(crate) struct Call<'a>(&'a mut [Attribute]);

impl Call<'_> {
    fn find(&mut self, id: u16) -> Option<&mut Attribute> {
        self.0.iter_mut().find(|attribute| attribute.attr_id == id)
    }

    /// Whether the request has an attribute.
    pub(crate) fn has(&mut self, id: u16) -> bool {
        self.find(id).is_some()
    }

    /// Data of an attribute.
    pub(crate) fn data(&mut self, id: u16) -> u64 {
        self.find(id).unwrap().data
    }

    /// Bytes of an attribute.
    pub(crate) fn length(&mut self, id: u16) -> u16 {
        self.find(id).unwrap().len
    }

    /// Element of an enumerated attribute.
    pub(crate) fn element(&mut self, id: u16) -> u8 {
        self.find(id).unwrap().elem_id
    }

    /// Writes a new handle or file number.
    pub(crate) fn set(&mut self, id: u16, data: u64) {
        self.find(id).unwrap().data = data;
    }

    /// Writes an output without VALID_OUTPUT.
    pub(crate) fn write(&mut self, id: u16, bytes: &[u8]) {
        let attribute = self.find(id).unwrap();
        assert!(bytes.len() <= attribute.len.into());
        // SAFETY: the caller of the request promises writable bytes of that length.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), attribute.data as *mut u8, bytes.len())
        };
    }

    /// Writes an output.
    pub(crate) fn fill(&mut self, id: u16, bytes: &[u8]) {
        self.write(id, bytes);
        self.find(id).unwrap().flags |= VALID_OUTPUT;
    }

    /// Marks every output as filled.
    fn mark(&mut self) {
        for attribute in &mut *self.0 {
            attribute.flags |= VALID_OUTPUT;
        }
    }
}

/// The driver's part of the default answer to GET_CONTEXT.
pub(crate) fn context_response() -> AllocContextResponse {
    AllocContextResponse {
        num_ports: 1,
        bf_reg_size: 512,
        response_length: 72,
        ..Default::default()
    }
}

impl Fake {
    pub(crate) fn new(
        decide: impl Fn(Method, &mut Call<'_>) -> Option<Result<(), Errno>> + Send + Sync + 'static,
    ) -> Arc<Self> {
        Self::with_pages(4096, decide)
    }

    /// Like `new`, for a kernel with pages of `page` bytes.
    pub(crate) fn with_pages(
        page: usize,
        decide: impl Fn(Method, &mut Call<'_>) -> Option<Result<(), Errno>> + Send + Sync + 'static,
    ) -> Arc<Self> {
        Arc::new(Self { decide: Box::new(decide), ends: Mutex::new(Vec::new()), page })
    }

    /// Our end of the last file handed out.
    pub(crate) fn end(&self) -> OwnedFd {
        self.ends.lock().unwrap().pop().unwrap()
    }
}

/// A context on a [`Fake`] with `decide`.
pub(crate) fn context(
    decide: impl Fn(Method, &mut Call<'_>) -> Option<Result<(), Errno>> + Send + Sync + 'static,
) -> Context {
    Context::from_device(Fake::new(decide), info()).unwrap()
}

pub(crate) fn info() -> DeviceInfo {
    DeviceInfo { name: "mlx5_0".to_owned(), ..Default::default() }
}

// SAFETY: the answers write to outputs only, and each descriptor is a new file.
unsafe impl OpenDevice for Fake {
    unsafe fn ioctl(&self, request: &mut [u64]) -> Result<(), Errno> {
        let (header, attributes) = Header::split(request).unwrap();
        let method = header.method();
        let mut call = Call(attributes);
        if let Some(decided) = (self.decide)(method, &mut call) {
            return decided;
        }
        match method {
            method::GET_CONTEXT => {
                call.fill(get_context::NUM_COMP_VECTORS, &2u32.to_ne_bytes());
                call.fill(uhw::OUT, context_response().as_bytes());
            }
            method::UAR_OBJ_ALLOC => call.fill(uar_obj_alloc::MMAP_LENGTH, &4096u32.to_ne_bytes()),
            method::ASYNC_EVENT_ALLOC
            | method::DEVX_ASYNC_CMD_FD_ALLOC
            | method::DEVX_ASYNC_EVENT_FD_ALLOC => {
                let (ours, theirs) = pair();
                call.0[0].data = theirs.into_raw_fd() as u64;
                self.ends.lock().unwrap().push(ours);
            }
            _ => {}
        }
        call.mark();
        Ok(())
    }

    fn mmap(&self, offset: u64, length: usize, protection: Protection) -> Result<Mapping, Errno> {
        let length = if offset == MAPPED_HALF { length / 2 } else { length };
        let file = memfd_create(c"uar", MFdFlags::MFD_CLOEXEC)?;
        nix::unistd::ftruncate(&file, length as i64)?;
        Mapping::shared(file.as_fd(), 0, length, protection)
    }

    fn page_size(&self) -> usize {
        self.page
    }
}
