//! Records a driver's requests; malformed requests are derived from them.

use std::sync::{Arc, Mutex, PoisonError};

use verbless_devx::abi::request::{ATTRIBUTE_WORDS, HEADER_WORDS, INLINE_BYTES};
use verbless_devx::{
    Backend, DeviceInfo, Errno, Error, Kernel, Mapping, OpenDevice, Protection, RepresentorInfo,
};

use crate::raw;

/// A request, with the bytes that its attributes point to.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    pub(crate) words: Vec<u64>,
    /// By attribute; empty if it is not an input, or if its data is inline.
    pub(crate) inputs: Vec<Vec<u8>>,
}

impl Request {
    /// Length of an attribute's payload.
    pub(crate) fn length(words: &[u64], attribute: usize) -> usize {
        words
            .get(HEADER_WORDS + ATTRIBUTE_WORDS * attribute)
            .map_or(0, |word| (word >> 16) as u16)
            .into()
    }
}

/// Requests in the order in which they were made.
pub(crate) type Requests = Arc<Mutex<Vec<Request>>>;

/// The kernel's devices; every request to them is recorded.
pub(crate) struct Recorder {
    pub(crate) requests: Requests,
    kernel: Kernel,
}

impl Recorder {
    pub(crate) fn new() -> Self {
        Self { requests: Requests::default(), kernel: Kernel::new() }
    }
}

impl Backend for Recorder {
    fn name(&self) -> &str {
        self.kernel.name()
    }

    fn enumerate(&self) -> Result<Vec<DeviceInfo>, Error> {
        self.kernel.enumerate()
    }

    fn representors(&self, device: &DeviceInfo) -> Result<Vec<RepresentorInfo>, Error> {
        self.kernel.representors(device)
    }

    fn open(&self, device: &DeviceInfo) -> Result<Arc<dyn OpenDevice>, Error> {
        let device = self.kernel.open(device)?;
        Ok(Arc::new(Recorded { device, requests: self.requests.clone() }))
    }
}

struct Recorded {
    device: Arc<dyn OpenDevice>,
    requests: Requests,
}

#[allow(unsafe_code, reason = "the trait's method is unsafe to call")]
// SAFETY: requests and answers are those of the device inside.
unsafe impl OpenDevice for Recorded {
    unsafe fn ioctl(&self, request: &mut [u64]) -> Result<(), Errno> {
        let words = request.to_vec();
        let attributes = (request.len().saturating_sub(HEADER_WORDS)) / ATTRIBUTE_WORDS;
        let before = (0..attributes).map(|attribute| {
            let data = words[HEADER_WORDS + ATTRIBUTE_WORDS * attribute + 1];
            match Request::length(&words, attribute) {
                length if length > INLINE_BYTES => raw::bytes_of(data, length),
                _ => Vec::new(),
            }
        });
        let inputs = before.collect();
        let mut requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        requests.push(Request { words, inputs });
        drop(requests);
        raw::forward(&*self.device, request)
    }

    fn mmap(&self, offset: u64, length: usize, protection: Protection) -> Result<Mapping, Errno> {
        self.device.mmap(offset, length, protection)
    }

    fn page_size(&self) -> usize {
        self.device.page_size()
    }
}
