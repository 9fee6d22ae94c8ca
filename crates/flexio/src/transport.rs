//! Transport domains, and the TISs of frame send queues.
//!
//! ```
//! # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/documented.rs"));
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let process = process_on_ethernet()?;
//! use verbless_flexio::{SqTis, TransportDomain};
//!
//! let domain = TransportDomain::create(process.device())?;
//! let tis = SqTis::create(process.device(), &domain)?;
//! assert!(domain.clone().destroy().is_err(), "the TIS keeps it");
//! tis.destroy()?;
//! domain.destroy()?;
//! # Ok(())
//! # }
//! ```

use std::sync::Arc;

use verbless_command::{Device, TisAttr, TisObject, TransportDomain as Object};

use crate::error::Error;
use crate::holders::{Holding, in_use, key};

/// A transport domain (`flexio_transport_domain`). Clones are the same domain.
#[derive(Debug, Clone)]
pub struct TransportDomain {
    object: Arc<Object>,
    device: Device,
}

impl TransportDomain {
    /// Creates a transport domain (`flexio_transport_domain_create`).
    ///
    /// # Errors
    /// The device refuses.
    pub fn create(device: &Device) -> Result<Self, Error> {
        let object = Arc::new(device.alloc_transport_domain()?);
        Ok(Self { object, device: device.clone() })
    }

    /// The `TransportDomain` of `verbless-command`.
    pub const fn object(&self) -> &Arc<Object> {
        &self.object
    }

    /// Checks that the transport domain belongs to the context of `device`.
    pub(crate) fn on(&self, device: &Device) -> Result<(), Error> {
        same(&self.device, device, "the transport domain")
    }

    /// Destroys the transport domain (`flexio_transport_domain_destroy`). The drop of the last
    /// handle destroys it too, and ignores the error.
    ///
    /// # Errors
    /// A TIS, a queue or a clone keeps it alive; the device refuses.
    pub fn destroy(self) -> Result<(), Error> {
        let key = key(&self.object);
        let in_use = || in_use("the transport domain", key);
        let object = Arc::into_inner(self.object).ok_or_else(in_use)?;
        Ok(object.destroy()?)
    }
}

/// A TIS for send queues (`flexio_sq_tis`). Clones refer to the same one.
#[derive(Debug, Clone)]
pub struct SqTis {
    object: Arc<TisObject>,
    device: Device,
    _holding: Arc<Holding>,
}

impl SqTis {
    /// Creates a TIS in a transport domain of the same device context (`flexio_sq_tis_create`).
    ///
    /// # Errors
    /// The domain is of another context; the device refuses.
    pub fn create(device: &Device, domain: &TransportDomain) -> Result<Self, Error> {
        domain.on(device)?;
        let domain = domain.object.clone();
        let holds = vec![key(&domain)];
        let object = device.create_tis(TisAttr { domain, priority: 0, pd: None })?;
        let _holding = Arc::new(Holding::new("a TIS".into(), holds));
        Ok(Self { object: Arc::new(object), device: device.clone(), _holding })
    }

    /// The [`TisObject`] of `verbless-command`.
    pub const fn object(&self) -> &Arc<TisObject> {
        &self.object
    }

    /// Checks that the TIS belongs to the context of `device`.
    pub(crate) fn on(&self, device: &Device) -> Result<(), Error> {
        same(&self.device, device, "the TIS")
    }

    /// Destroys the TIS (`flexio_sq_tis_destroy`). The drop of the last handle destroys it too, and
    /// ignores the error.
    ///
    /// # Errors
    /// A queue or a clone keeps it alive; the device refuses.
    pub fn destroy(self) -> Result<(), Error> {
        let key = key(&self.object);
        let in_use = || in_use("the TIS", key);
        let object = Arc::into_inner(self.object).ok_or_else(in_use)?;
        Ok(object.destroy()?)
    }
}

fn same(own: &Device, other: &Device, what: &str) -> Result<(), Error> {
    match own.is(other) {
        true => Ok(()),
        false => Err(Error::Failed(format!(
            "{what} is of another device context than the new object: create both on one context"
        ))),
    }
}
