//! Discovery of mlx5 devices, and the kernel's services for them: contexts, protection domains,
//! address handles, GIDs, command mailboxes (DevX), registered memory, doorbell pages and event
//! channels.
//!
//! All of it goes through the trait [`Backend`], which the [`Kernel`] and a software model
//! implement, both with real file descriptors and mappings: code that uses it cannot tell them
//! apart. A [`Context`] makes every other object. Objects hold their context and are destroyed when
//! dropped; their method `destroy` returns the object if that fails.
//!
//! ```no_run
//! use verbless_devx::{Backend, Context, Kernel, UarKind};
//!
//! let kernel = Kernel::new();
//! for device in kernel.enumerate()? {
//!     let context = Context::open(&kernel, &device)?;
//!     let pd = context.alloc_pd()?;
//!     let uar = context.uar_alloc(UarKind::NonCached)?;
//!     println!("{}: PD {:#x}, UAR page {:#x}", device.name, pd.pdn(), uar.page_id());
//! }
//! # Ok::<(), verbless_devx::Error>(())
//! ```

pub mod abi;
mod ah;
mod channel;
mod context;
mod error;
mod flow;
mod fwctl;
mod handle;
mod info;
mod kernel;
mod model;
mod object;
mod page;
mod pd;
mod port;
mod recognition;
mod sys;
mod uar;

pub use ah::Ah;
pub use channel::{
    AsyncEvent, AsyncEventChannel, AsyncQueryResponse, CommandChannel, Event, EventChannel, Waiter,
};
pub use context::{Context, ContextAttributes};
pub use error::{Command, Error, ErrorKind, Result};
pub use flow::{FlowMatcher, FlowRule};
pub use fwctl::{Fwctl, FwctlInfo, FwctlScope};
pub use handle::DestroyError;
pub use info::{
    DeviceInfo, FunctionKind, Gid, GidInfo, GidType, LinkLayer, PortInfo, RepresentorInfo,
};
pub use kernel::Kernel;
pub use model::{MODEL_PSID, ModelToken};
pub use object::DevxObject;
pub use page::page_size;
pub use pd::Pd;
pub use port::{GidTableEntry, PortAttributes};
pub use sys::umem::{PageSizes, Umem};
pub use sys::{Backend, Errno, Mapping, OpenDevice, OpenFwctl, Protection};
pub use uar::{Uar, UarKind};
