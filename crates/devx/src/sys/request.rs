//! Builds requests that are sound to send: every pointer in one borrows its buffer.

use std::marker::PhantomData;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use verbless_prm::Opcode;
use zerocopy::{FromBytes, IntoBytes};

use super::backend::{Errno, OpenDevice};
use super::descriptor::adopt;
use crate::abi::attr::devx_other;
use crate::abi::request::{ATTRIBUTE_WORDS, HEADER_WORDS, INLINE_BYTES, MANDATORY, VALID_OUTPUT};
use crate::abi::{Attribute, Header, Method, method};
use crate::error::{Error, ErrorKind, Result};

/// Maximum number of attributes that any method used here takes (UMEM_REG of a dmabuf).
const MAX_ATTRIBUTES: usize = 7;

/// A call under construction. Attributes keep the order in which they are added.
///
/// It stays inside the crate: with it, safe code could register any memory.
pub(crate) struct Request<'a> {
    method: Method,
    attributes: [Attribute; MAX_ATTRIBUTES],
    count: usize,
    too_long: Option<(u16, usize)>,
    buffers: PhantomData<&'a mut [u8]>,
}

impl<'a> Request<'a> {
    /// A call of `method` without attributes.
    pub(crate) fn new(method: Method) -> Self {
        Self {
            method,
            attributes: Default::default(),
            count: 0,
            too_long: None,
            buffers: PhantomData,
        }
    }

    /// An input. Up to 8 bytes travel in the attribute, more by pointer.
    pub(crate) fn input(self, id: u16, bytes: &'a [u8]) -> Self {
        let data = if bytes.len() <= INLINE_BYTES {
            let mut inline = [0; INLINE_BYTES];
            inline[..bytes.len()].copy_from_slice(bytes);
            u64::from_ne_bytes(inline)
        } else {
            bytes.as_ptr().expose_provenance() as u64
        };
        self.push(id, bytes.len(), data)
    }

    /// An element of an enumerated input, with its data.
    pub(crate) fn element(self, id: u16, element: u8, data: &'a [u8]) -> Self {
        let mut request = self.input(id, data);
        request.attributes[request.count - 1].elem_id = element;
        request
    }

    pub(crate) fn input_u32(self, id: u16, value: u32) -> Self {
        let mut inline = [0; INLINE_BYTES];
        inline[..4].copy_from_slice(&value.to_ne_bytes());
        self.push(id, 4, u64::from_ne_bytes(inline))
    }

    pub(crate) fn input_u64(self, id: u16, value: u64) -> Self {
        self.push(id, 8, value)
    }

    /// An output of exactly `bytes.len()` bytes.
    pub(crate) fn output(self, id: u16, bytes: &'a mut [u8]) -> Self {
        let (length, data) = (bytes.len(), bytes.as_mut_ptr().expose_provenance() as u64);
        self.push(id, length, data)
    }

    /// An output with the layout of `T`.
    pub(crate) fn output_of<T: FromBytes + IntoBytes>(self, id: u16, value: &'a mut T) -> Self {
        self.output(id, value.as_mut_bytes())
    }

    /// The handle of an existing object.
    pub(crate) fn handle(self, id: u16, handle: u32) -> Self {
        self.push(id, 0, u64::from(handle))
    }

    /// An open file.
    pub(crate) fn descriptor(self, id: u16, file: BorrowedFd<'a>) -> Self {
        self.push(id, 0, i64::from(file.as_raw_fd()).cast_unsigned())
    }

    /// A handle or descriptor that the kernel writes.
    pub(crate) fn new_handle(self, id: u16) -> Self {
        self.push(id, 0, 0)
    }

    /// Marks the last attribute as one that a kernel may ignore if it does not know it.
    pub(crate) fn optional(mut self) -> Self {
        if let Some(last) = self.count.checked_sub(1) {
            self.attributes[last].flags &= !MANDATORY;
        }
        self
    }

    /// Applies `add`, which adds attributes, within a chain of calls.
    pub(crate) fn with(self, add: impl FnOnce(Self) -> Self) -> Self {
        add(self)
    }

    fn push(mut self, id: u16, length: usize, data: u64) -> Self {
        let len = u16::try_from(length).unwrap_or_else(|_| {
            self.too_long.get_or_insert((id, length));
            0
        });
        self.attributes[self.count] =
            Attribute { attr_id: id, len, flags: MANDATORY, elem_id: 0, reserved: 0, data };
        self.count += 1;
        self
    }

    /// Sends the request. After an EIO it sends a NOP too, which a removed device does not answer.
    pub(crate) fn send(self, device: &dyn OpenDevice) -> Result<IoctlOutputs, IoctlFailure> {
        self.send_once(device).map_err(|failure| match failure {
            IoctlFailure::Errno { method, errno: Errno::EIO, .. } => {
                IoctlFailure::Errno { method, errno: Errno::EIO, responds: responds(device) }
            }
            other => other,
        })
    }

    fn send_once(self, device: &dyn OpenDevice) -> Result<IoctlOutputs, IoctlFailure> {
        let Self { method, mut attributes, count, too_long, .. } = self;
        if let Some((id, length)) = too_long {
            return Err(IoctlFailure::TooLong { method, id, length });
        }
        let mut words = [0; HEADER_WORDS + MAX_ATTRIBUTES * ATTRIBUTE_WORDS];
        words[..HEADER_WORDS].copy_from_slice(&Header::new(method, count as u16).words());
        words[HEADER_WORDS..].as_mut_bytes().copy_from_slice(attributes.as_bytes());
        // SAFETY: every pointer attribute was made by `input` or `output` from a slice of that
        // length, borrowed for 'a, which outlives `self` and so this call; outputs are borrowed
        // exclusively. Lengths above u16 were refused. The header describes exactly these words.
        unsafe { device.ioctl(&mut words[..HEADER_WORDS + count * ATTRIBUTE_WORDS]) }
            .map_err(|errno| IoctlFailure::Errno { method, errno, responds: false })?;
        attributes.as_mut_bytes().copy_from_slice(words[HEADER_WORDS..].as_bytes());
        Ok(IoctlOutputs { method, attributes, count })
    }
}

/// Whether the device answers a NOP (DEVX_OTHER). The kernel returns EIO for a removed device, but
/// also when a command of its own (a destroy, a UMEM) ended with INTERNAL_ERR, BAD_SYS_STATE, a
/// wrong length or an unknown status (Linux `mlx5_status_to_errno`).
#[cold]
fn responds(device: &dyn OpenDevice) -> bool {
    use devx_other::{CMD_IN, CMD_OUT};
    let mut input = [0; 16];
    input[..2].copy_from_slice(&Opcode::NOP.0.to_be_bytes());
    let request = Request::new(method::DEVX_OTHER).input(CMD_IN, &input);
    let mut output = [0; 16];
    match request.output(CMD_OUT, &mut output).send_once(device) {
        Ok(_) => true,
        Err(IoctlFailure::Errno { errno, .. }) => errno == Errno::EREMOTEIO,
        Err(IoctlFailure::TooLong { .. }) => false,
    }
}

/// Whether the kernel returns an errno of its own for a command that the device refuses, without
/// the outbox (mlx5_core before Linux 5.18). It sends a command that a device refuses with
/// BAD_PARAM: QUERY_HCA_CAP of a page that does not exist. `None` if it returns any other result.
#[cold]
pub(crate) fn hides_refusals(device: &dyn OpenDevice) -> Option<bool> {
    use devx_other::{CMD_IN, CMD_OUT};
    let mut input = [0; 16];
    input[..2].copy_from_slice(&Opcode::QUERY_HCA_CAP.0.to_be_bytes());
    input[6..8].copy_from_slice(&NO_CAPABILITY_PAGE.to_be_bytes());
    let mut output = [0; CAPABILITY_OUTBOX];
    let request = Request::new(method::DEVX_OTHER).input(CMD_IN, &input);
    match request.output(CMD_OUT, &mut output).send_once(device) {
        Err(IoctlFailure::Errno { errno: Errno::EREMOTEIO, .. }) => Some(false),
        Err(IoctlFailure::Errno { errno: Errno::EINVAL, .. }) => Some(true),
        _ => None,
    }
}

/// Operation modifier of QUERY_HCA_CAP for the current values of the last page that the field can
/// name.
const NO_CAPABILITY_PAGE: u16 = 0xffff;
/// Bytes of QUERY_HCA_CAP's outbox.
const CAPABILITY_OUTBOX: usize = 16 + 4096;

/// A request that did not succeed.
#[derive(Debug)]
pub(crate) enum IoctlFailure {
    /// The kernel refused the request. `responds`: the device answered a NOP after EIO.
    Errno { method: Method, errno: Errno, responds: bool },
    /// A payload does not fit an attribute; nothing was sent.
    TooLong { method: Method, id: u16, length: usize },
}

impl IoctlFailure {
    /// Whether the kernel refused the request with one of these errnos.
    pub(crate) fn is(&self, errnos: &[Errno]) -> bool {
        matches!(self, Self::Errno { errno, .. } if errnos.contains(errno))
    }

    /// The error of a method that carries a command. `hides_refusals` is asked only when the errno
    /// could be a refusal whose status the kernel hides.
    pub(crate) fn of_command(
        self,
        input: &[u8],
        output: &[u8],
        hides_refusals: impl FnOnce() -> bool,
    ) -> Error {
        match self {
            Self::Errno { method, errno, responds }
                if Error::may_hide_refusal(errno)
                    && (errno != Errno::EIO || responds)
                    && hides_refusals() =>
            {
                Error::refusal_hidden(method, input, errno)
            }
            Self::Errno { method, errno, responds: false } => {
                Error::from_command(method, input, output, errno)
            }
            Self::Errno { method, errno, responds: true } => {
                Error::status_unknown(method, errno).with_command(input)
            }
            other => other.into(),
        }
    }
}

impl From<IoctlFailure> for Error {
    fn from(failure: IoctlFailure) -> Self {
        match failure {
            IoctlFailure::Errno { method, errno, responds: false } => Self::refused(method, errno),
            IoctlFailure::Errno { method, errno, responds: true } => {
                Self::status_unknown(method, errno)
            }
            IoctlFailure::TooLong { method, id, length } => Self::new(
                ErrorKind::InvalidInput,
                format!("{}: attribute {id:#x} of {length} bytes", method.name()),
                "a request carries at most 65535 bytes per attribute",
            ),
        }
    }
}

/// The outputs of a successful request. Their contents are not trusted.
pub(crate) struct IoctlOutputs {
    method: Method,
    attributes: [Attribute; MAX_ATTRIBUTES],
    count: usize,
}

impl IoctlOutputs {
    fn attribute(&self, id: u16) -> Result<&Attribute> {
        self.attributes[..self.count].iter().find(|attribute| attribute.attr_id == id).ok_or_else(
            || Error::answer(self.method, format_args!("the reply lacks attribute {id:#x}")),
        )
    }

    /// Checks that the kernel marked these outputs as filled.
    pub(crate) fn filled(&self, ids: &[u16]) -> Result<()> {
        for &id in ids {
            if self.attribute(id)?.flags & VALID_OUTPUT == 0 {
                return Err(Error::answer(
                    self.method,
                    format_args!("success, but output {id:#x} was not filled"),
                ));
            }
        }
        Ok(())
    }

    /// The handle that was made.
    pub(crate) fn handle(&self, id: u16) -> Result<u32> {
        let data = self.attribute(id)?.data;
        u32::try_from(data).map_err(|_| {
            Error::answer(self.method, format_args!("handle {data:#x} has more than 32 bits"))
        })
    }

    /// The descriptor that was made.
    pub(crate) fn descriptor(&self, id: u16) -> Result<OwnedFd> {
        let data = self.attribute(id)?.data;
        adopt(data).ok_or_else(|| {
            Error::answer(self.method, format_args!("{data:#x} is not an open file"))
        })
    }
}

/// Helpers for tests that play the kernel.
#[cfg(test)]
pub(crate) mod testing {
    use crate::abi::Attribute;

    /// Writes an output of a request that [`Request`](super::Request) built.
    pub(crate) fn fill(attribute: &Attribute, bytes: &[u8]) {
        let length = bytes.len().min(attribute.len.into());
        let to = std::ptr::with_exposed_provenance_mut::<u8>(attribute.data as usize);
        // SAFETY: the request promises that many writable bytes, which nothing else uses during the
        // call.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, length) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::method;

    struct UnresponsiveDevice;

    // SAFETY: it does nothing.
    unsafe impl OpenDevice for UnresponsiveDevice {
        unsafe fn ioctl(&self, _: &mut [u64]) -> Result<(), Errno> {
            Ok(())
        }

        fn page_size(&self) -> usize {
            crate::page_size()
        }

        fn mmap(&self, _: u64, _: usize, _: crate::Protection) -> Result<crate::Mapping, Errno> {
            Err(Errno::EINVAL)
        }
    }

    #[test]
    fn payload_above_65535_bytes_is_rejected() {
        let long = vec![0; 65536];
        let error: Error = Request::new(method::DEVX_OTHER)
            .input(1, &long)
            .send(&UnresponsiveDevice)
            .err()
            .unwrap()
            .into();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        assert!(
            Request::new(method::DEVX_OTHER).input(1, &long[1..]).send(&UnresponsiveDevice).is_ok()
        );
    }

    #[test]
    fn unfilled_output_is_rejected() {
        let mut out = [0; 16];
        let answer =
            Request::new(method::DEVX_OTHER).output(7, &mut out).send(&UnresponsiveDevice).unwrap();
        assert_eq!(answer.filled(&[7]).unwrap_err().kind(), ErrorKind::InvalidResponse);
    }
}
