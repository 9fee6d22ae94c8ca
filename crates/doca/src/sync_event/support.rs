//! Capabilities of a device for sync events (`doca_sync_event_…_supported`).

use verbless_queue::Rc;
use verbless_queue::wr::{FetchAdd, Read, Request, Wait, Write};

use crate::context::job_type::JobType;
use crate::device::Dev;
use crate::error::{Error, ErrorKind, Result};

/// Checks that `dev` supports jobs of this type.
pub(super) fn check_job(dev: &Dev, job_type: JobType) -> Result<()> {
    let operation = match job_type {
        JobType::SyncEventGet => &Read::<verbless_queue::Sge>::INFO,
        JobType::SyncEventSet => &Write::<verbless_queue::Sge>::INFO,
        JobType::SyncEventAdd => &FetchAdd::INFO,
        JobType::SyncEventWait => &Wait::INFO,
        other => {
            let text = format!("{other:?} is not a sync event job");
            return Err(Error::new(ErrorKind::InvalidValue, text));
        }
    };
    dev.domain().supports::<Rc>(operation).map_err(|why| {
        let text = format!("{dev:?} does not support {job_type:?}: {why}");
        Error::new(ErrorKind::NotSupported, text).with_source(why)
    })
}

/// The error for the location DPA, which the guides do not support yet.
pub(super) fn dpa_error() -> Error {
    let text = "a DPA cannot use a sync event, as in DOCA 2.2: publish and wait on the host or \
                the DPU";
    Error::plain(ErrorKind::NotSupported, text)
}

pub(super) fn gpu_error() -> Error {
    Error::plain(ErrorKind::NotSupported, "a GPU cannot use a sync event")
}
