//! The RDMA bridge (section 3.6 of 2.2): conversions between DOCA's objects and those of
//! verbless-queue, verbless-command and verbless-devx. A program of rdma-core passes its own
//! objects to these crates by number.
//!
//! | of rdma-core | of DOCA | there | back |
//! |---|---|---|---|
//! | `ibv_context` | a device | [`Dev::open_from_context`] | [`Dev::device`] |
//! | `ibv_pd` | [`Dev`] | [`Dev::open_from_pd`] | [`Dev::domain`] |
//! | `ibv_mr` | [`Buf`](crate::Buf) | | [`Buf::mkey`](crate::Buf::mkey) |
//!
//! A queue pair of the program's own, beside DOCA's objects in one protection domain:
//!
//! ```
//! # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doc.rs"));
//! use verbless_command::{Device, KeyAccess};
//! use verbless_doca::{Dev, DevInfo};
//! use verbless_queue::wr::Write;
//! use verbless_queue::{ConnectOptions, CqConfig, Domain, QpConfig, Sge};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let backend = doc::backend();
//! let info = DevInfo::find_in(&backend, "mlx5_0")?;
//! let domain = Domain::new(&Device::open(&*backend, info.device_info())?)?;
//! let dev = Dev::open_from_pd(&info, &domain)?;
//!
//! # let buffer = doc::data(&dev, b"by a request");
//! // A buffer of a map of `dev`, in a request of the program's own.
//! let local = Sge::new(buffer.data(), buffer.data_len() as u32, buffer.mkey(&dev)?);
//! let region = domain.region(4096, KeyAccess::ALL)?;
//! let mut cq = domain.completion_queue(&CqConfig::new(32))?;
//! let mut qp = domain.queue_pair(&QpConfig::new(8, 8), &cq, &cq)?;
//! domain.connect_loopback(&mut qp, &ConnectOptions::default())?;
//! qp.post(&Write::new(local, region.remote(0, buffer.data_len() as usize)?).signaled(), 1)?;
//! let done = loop {
//!     if let Some(done) = qp.poll(&mut cq) {
//!         break done?;
//!     }
//! };
//! assert_eq!(done.cookie, 1);
//! # let mut bytes = [0; 12];
//! # region.read_at(0, &mut bytes)?;
//! # assert_eq!(&bytes, b"by a request");
//! # Ok(())
//! # }
//! ```

use std::os::fd::OwnedFd;

use verbless_command::Device;
use verbless_devx::Kernel;
use verbless_queue::Domain;

use super::DevInfo;
use super::open::Dev;
use crate::error::{Error, ErrorKind, Result};

impl Dev {
    /// The device of a protection domain of verbless-queue (`doca_dev_open_from_pd`): its maps and
    /// contexts share the domain with the program's own regions and queue pairs. It is a different
    /// [`Dev`] than that of [`DevInfo::open`].
    ///
    /// # Errors
    /// [`ErrorKind::InvalidValue`] if the domain is not of the device that `info` describes.
    pub fn open_from_pd(info: &DevInfo, domain: &Domain) -> Result<Self> {
        let there = domain.device().info();
        let here = info.device_info();
        // Functions without a configured GUID all have 0.
        if (&there.name, there.node_guid) != (&here.name, here.node_guid) {
            let (name, other) = (info.ib_device_name(), &there.name);
            let text = format!("the protection domain is of {other}, not of {name}");
            return Err(Error::new(ErrorKind::InvalidValue, text));
        }
        Ok(Self::of(info, domain.device().clone(), domain.clone()))
    }

    /// The device behind a verbs context of another library in this process, by a duplicate of its
    /// descriptor (`cmd_fd` of rdma-core's `struct ibv_context`). With `pd`, the handle and the
    /// number of a protection domain of that context (`handle` of `struct ibv_pd` and `pdn` of
    /// `struct mlx5dv_pd`), it shares that domain; it must be dropped before the domain is
    /// destroyed.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if it is not a descriptor of an mlx5 device;
    /// [`ErrorKind::NotSupported`] or [`ErrorKind::Driver`] if it has no context, or one without
    /// DevX.
    pub fn open_from_context(cmd_fd: OwnedFd, pd: Option<(u32, u32)>) -> Result<Self> {
        let context = Kernel::new().import(cmd_fd)?;
        let foreign = pd.map(|(handle, number)| context.foreign_pd(handle, number));
        let info = DevInfo::find(&context.info().name)?;
        let device = Device::on(context)?;
        let builder = Domain::builder(&device);
        let domain = match foreign {
            Some(pd) => builder.protection_domain(pd).build()?,
            None => builder.build()?,
        };
        Ok(Self::of(&info, device, domain))
    }
}
