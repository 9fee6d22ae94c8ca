//! Transport domains, and what send queues of frames send through (TIS).
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

/// A transport domain (`flexio_transport_domain`). Clones are the same one.
#[derive(Debug, Clone)]
pub struct TransportDomain {
    object: Arc<Object>,
    device: Device,
}

impl TransportDomain {
    /// Makes one (`flexio_transport_domain_create`).
    ///
    /// # Errors
    /// The device's refusal.
    pub fn create(device: &Device) -> Result<Self, Error> {
        let object = Arc::new(device.alloc_transport_domain()?);
        Ok(Self { object, device: device.clone() })
    }

    /// The object of the device.
    pub const fn object(&self) -> &Arc<Object> {
        &self.object
    }

    /// Checks that the transport domain belongs to the context of `device`.
    pub(crate) fn on(&self, device: &Device) -> Result<(), Error> {
        same(&self.device, device, "the transport domain")
    }

    /// Destroys the transport domain, and returns whether that worked
    /// (`flexio_transport_domain_destroy`); dropping the last handle does the same.
    ///
    /// # Errors
    /// A TIS, a queue or a clone keeps it; the device's refusal.
    pub fn destroy(self) -> Result<(), Error> {
        let why = "the transport domain is in use: destroy its TISs and queues first";
        let object = Arc::into_inner(self.object).ok_or_else(|| Error::Failed(why.into()))?;
        Ok(object.destroy()?)
    }
}

/// A TIS for send queues (`flexio_sq_tis`). Clones refer to the same one.
#[derive(Debug, Clone)]
pub struct SqTis {
    object: Arc<TisObject>,
    device: Device,
}

impl SqTis {
    /// Makes a TIS in a transport domain of the same device context (`flexio_sq_tis_create`).
    ///
    /// # Errors
    /// The domain is of another context; the device's refusal.
    pub fn create(device: &Device, domain: &TransportDomain) -> Result<Self, Error> {
        domain.on(device)?;
        let domain = domain.object.clone();
        let object = device.create_tis(TisAttr { domain, priority: 0, pd: None })?;
        Ok(Self { object: Arc::new(object), device: device.clone() })
    }

    /// The object of the device.
    pub const fn object(&self) -> &Arc<TisObject> {
        &self.object
    }

    /// Checks that the TIS belongs to the context of `device`.
    pub(crate) fn on(&self, device: &Device) -> Result<(), Error> {
        same(&self.device, device, "the TIS")
    }

    /// Destroys the TIS, and returns whether that worked (`flexio_sq_tis_destroy`); dropping the
    /// last handle does the same.
    ///
    /// # Errors
    /// A queue or a clone keeps it; the device's refusal.
    pub fn destroy(self) -> Result<(), Error> {
        let why = "the TIS is in use: destroy its send queues first";
        let object = Arc::into_inner(self.object).ok_or_else(|| Error::Failed(why.into()))?;
        Ok(object.destroy()?)
    }
}

fn same(own: &Device, other: &Device, what: &str) -> Result<(), Error> {
    match own.is(other) {
        true => Ok(()),
        false => Err(Error::Failed(format!(
            "{what} is of another device context than what is made with it: make it on the same"
        ))),
    }
}
