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

/// A protection domain of the kernel. Clones share one domain and the last one destroys it, so
/// objects in it hold a clone.
#[derive(Clone, Debug)]
pub struct Pd(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    owner: Owner,
    pdn: u32,
}

#[derive(Debug)]
enum Owner {
    Here(Handle),
    /// Made by another library in the same context, with this handle.
    Elsewhere(Context, u32),
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
        Ok(Pd(Arc::new(Inner { owner: Owner::Here(handle), pdn: driver.pdn })))
    }

    /// Wraps a protection domain that another library has made on this
    /// [imported](crate::Kernel::import) context: `handle` of rdma-core's `struct ibv_pd` and `pdn`
    /// of `struct mlx5dv_pd`. It is never destroyed here, and must outlive the objects made in it;
    /// the kernel refuses a number that is not the context's.
    #[must_use]
    pub fn foreign_pd(&self, handle: u32, pdn: u32) -> Pd {
        Pd(Arc::new(Inner { owner: Owner::Elsewhere(self.clone(), handle), pdn }))
    }
}

impl Pd {
    /// The number of the protection domain in command mailboxes.
    #[must_use]
    pub fn pdn(&self) -> u32 {
        self.0.pdn
    }

    /// The protection domain's uverbs handle.
    #[must_use]
    pub fn handle(&self) -> u32 {
        match &self.0.owner {
            Owner::Here(handle) => handle.number(),
            Owner::Elsewhere(_, handle) => *handle,
        }
    }

    /// The context in which the protection domain was made.
    #[must_use]
    pub fn context(&self) -> &Context {
        match &self.0.owner {
            Owner::Here(handle) => handle.context(),
            Owner::Elsewhere(context, _) => context,
        }
    }

    /// Destroys the protection domain; a [foreign](Context::foreign_pd) one is left to its owner.
    ///
    /// # Errors
    /// [`ErrorKind::Refused`] while clones exist, and EBUSY while the kernel has objects in it.
    pub fn destroy(self) -> Result<(), DestroyError<Self>> {
        match Arc::try_unwrap(self.0) {
            Ok(Inner { owner: Owner::Elsewhere(..), .. }) => Ok(()),
            Ok(Inner { owner: Owner::Here(handle), pdn }) => {
                DestroyError::attempt(handle, |handle| handle).map_err(
                    |DestroyError { object, error }| DestroyError {
                        object: Self(Arc::new(Inner { owner: Owner::Here(object), pdn })),
                        error,
                    },
                )
            }
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
