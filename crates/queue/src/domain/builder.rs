//! Options for a new domain.

use std::sync::{Arc, Mutex};

use verbless_command::{Device, Error, ErrorKind};
use verbless_devx::{Pd, UarKind};

use super::pages::Page;
use super::pool::Pool;
use super::protection::{Domain, DomainShared};

/// Builds a [`Domain`] with options: [`Domain::builder`].
///
/// ```no_run
/// # fn f(device: &verbless_command::Device) -> Result<(), verbless_command::Error> {
/// use verbless_queue::Domain;
///
/// // A server of 500 connections: their rings share few registrations, and 8 ring by BlueFlame.
/// let domain = Domain::builder(device).blueflame_pages(4).pool_bytes(4 << 20).build()?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use = "`build` makes the domain"]
pub struct DomainBuilder<'d> {
    pub(super) device: &'d Device,
    pub(super) blueflame_pages: usize,
    pub(super) chunk: usize,
    pub(super) pd: Option<Pd>,
}

impl DomainBuilder<'_> {
    /// Limit of UAR pages for BlueFlame, 8 by default. Each page gives two queue pairs a register
    /// of their own; the domain takes it when the first of them is created. With 0 every queue pair
    /// rings plain doorbells.
    pub fn blueflame_pages(self, blueflame_pages: usize) -> Self {
        Self { blueflame_pages, ..self }
    }

    /// Bytes per registered chunk of ring memory, 256 KiB by default, rounded up to pages of 4 KiB.
    /// Queues share chunks; a longer ring takes a chunk of its own length.
    pub fn pool_bytes(self, chunk: usize) -> Self {
        Self { chunk, ..self }
    }

    /// Uses an existing protection domain, such as one of [another
    /// library](verbless_devx::Context::foreign_pd). Its owner's keys and queue pairs then work
    /// together with this domain's.
    pub fn protection_domain(self, pd: Pd) -> Self {
        Self { pd: Some(pd), ..self }
    }

    /// Creates the domain.
    ///
    /// # Errors
    /// `pool_bytes` is 0; a given protection domain is of another context; the device was removed,
    /// or has no protection domain or UAR page left.
    pub fn build(self) -> Result<Domain, Error> {
        let Self { device, blueflame_pages, chunk, pd } = self;
        if chunk == 0 {
            let hint = "pool_bytes is 0; choose 4096 or more";
            return Err(Error::new(ErrorKind::InvalidInput, "making a domain", hint));
        }
        let pd = match pd {
            Some(pd) if pd.context().is(device) => pd,
            Some(_) => {
                let hint = "the protection domain is of another context than the device";
                return Err(Error::new(ErrorKind::InvalidInput, "making a domain", hint));
            }
            None => device.alloc_pd()?,
        };
        let plain = Page::new(device, UarKind::NonCached)?;
        let pool = Pool::new(device.clone(), chunk);
        let shared = DomainShared {
            pool,
            plain,
            blueflame: Mutex::default(),
            blueflame_pages,
            transports: Mutex::default(),
        };
        Ok(Domain { device: device.clone(), pd, shared: Arc::new(shared) })
    }
}
