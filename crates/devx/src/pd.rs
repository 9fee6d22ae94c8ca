//! Protection domains.

use std::sync::Arc;

use zerocopy::IntoBytes;

use crate::abi::attr::{invoke_write, pd_destroy, uhw};
use crate::abi::core::{AllocPd, AllocPdResponse};
use crate::abi::method::{self, write_command};
use crate::abi::mlx5::AllocPdDriverResponse;
use crate::context::Context;
use crate::error::{Error, ErrorKind, Result};
use crate::handle::{DestroyError, Handle, Release};
use crate::sys::Request;

const RELEASE: Release =
    Release { what: "pd", method: method::PD_DESTROY, attribute: pd_destroy::HANDLE };

/// A protection domain of the kernel. Clones are one domain, destroyed with the last of them, so
/// what lives in it holds a clone.
#[derive(Clone, Debug)]
pub struct Pd(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    handle: Handle,
    pdn: u32,
}

impl Context {
    /// Allocates a protection domain (ALLOC_PD of uverbs).
    ///
    /// # Errors
    /// ENOMEM at the device's limit.
    pub fn alloc_pd(&self) -> Result<Pd> {
        let mut core = AllocPdResponse::default();
        let mut driver = AllocPdDriverResponse::default();
        let ask = AllocPd { response: (&raw mut core).expose_provenance() as u64 };
        Request::new(method::INVOKE_WRITE)
            .input_u64(invoke_write::WRITE_CMD, u64::from(write_command::ALLOC_PD))
            .input(invoke_write::CORE_IN, ask.as_bytes())
            .output_of(invoke_write::CORE_OUT, &mut core)
            .output_of(uhw::OUT, &mut driver)
            .send(self.device())?
            .filled(&[invoke_write::CORE_OUT, uhw::OUT])?;
        let handle = Handle::new(self, &RELEASE, core.pd_handle);
        Ok(Pd(Arc::new(Inner { handle, pdn: driver.pdn })))
    }
}

impl Pd {
    /// The number by which command mailboxes name it.
    #[must_use]
    pub fn pdn(&self) -> u32 {
        self.0.pdn
    }

    /// Its uverbs handle.
    #[must_use]
    pub fn handle(&self) -> u32 {
        self.0.handle.number()
    }

    /// The context that it belongs to.
    #[must_use]
    pub fn context(&self) -> &Context {
        self.0.handle.context()
    }

    /// Destroys it.
    ///
    /// # Errors
    /// [`ErrorKind::Refused`] while clones exist, and EBUSY while the kernel has objects in it.
    pub fn destroy(self) -> Result<(), DestroyError<Self>> {
        match Arc::try_unwrap(self.0) {
            Ok(inner) => DestroyError::attempt(inner, |inner| &mut inner.handle).map_err(
                |DestroyError { object, error }| DestroyError {
                    object: Self(Arc::new(object)),
                    error,
                },
            ),
            Err(shared) => Err(DestroyError {
                object: Self(shared),
                error: Error::new(
                    ErrorKind::Refused,
                    "PD_DESTROY",
                    "other objects hold this protection domain; destroy them first",
                ),
            }),
        }
    }
}
