//! Common parts of work queues: their memory, and the constants of the C library.

use verbless_command::{Device, TimestampFormat};
use verbless_devx::Pd;

use crate::error::Error;
use crate::holders::Key;
use crate::memory::{MemoryKind, QueueMemory, RECORD};
use crate::process::Process;
use crate::uar::Uar;

/// The order of a queue's WQEs (`flexio_wq_type`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[repr(u8)]
pub enum WqType {
    /// Each has the index of the next one (`FLEXIO_WQ_TYPE_LINKED_LIST`): receive memory pools
    /// only.
    LinkedList = 0,
    /// A ring (`FLEXIO_WQ_TYPE_CYCLIC`).
    #[default]
    Cyclic = 1,
}

/// Padding at the end of received data (`flexio_wq_end_pad_mode`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[repr(u8)]
pub enum WqEndPadMode {
    /// No padding (`FLEXIO_WQ_END_PAD_NONE`).
    #[default]
    None = 0,
    /// To the cache line (`FLEXIO_WQ_END_PAD_ALIGN`): not supported.
    Align = 1,
}

/// The clock of a queue's CQEs (`flexio_wq_ts_format`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[repr(u8)]
pub enum WqTsFormat {
    /// The device's counter (`FLEXIO_WQC_TS_FORMAT_FREE_RUNNING_TS`).
    FreeRunning = 0,
    /// The device's default (`FLEXIO_WQC_TS_FORMAT_DEFAULT_TS`).
    #[default]
    Default = 1,
    /// The time of day (`FLEXIO_WQC_TS_FORMAT_REAL_TIME_TS`), if the device keeps it (capabilities
    /// `sq_ts_format` and `rq_ts_format`).
    RealTime = 2,
}

impl WqTsFormat {
    /// The format for queue contexts.
    pub(crate) const fn to_prm(self) -> TimestampFormat {
        match self {
            Self::FreeRunning => TimestampFormat::FREE_RUNNING,
            Self::Default => TimestampFormat::DEFAULT,
            Self::RealTime => TimestampFormat::REAL_TIME,
        }
    }
}

/// Bytes of a page of the heap.
const PAGE: u64 = 4096;

/// Attributes of every work queue (`flexio_wq_attr`).
#[derive(Debug, Clone)]
pub struct WqConfig {
    /// log2 of the bytes of a receive WQE; `None` is the minimum: 4, or 5 for a pool.
    pub log_wq_stride: Option<u8>,
    /// log2 of the number of WQEs; for a send queue, of WQEBBs of 64 bytes.
    pub log_wq_depth: u8,
    /// The UAR whose outboxes ring for the queue; `None`: the process's.
    pub uar: Option<Uar>,
    /// The user index in the CQEs, beside the queue's number (24 bits).
    pub user_index: u32,
    /// The protection domain of the keys in the WQEs; `None`: the process's.
    pub pd: Option<Pd>,
    /// Memory of the WQEs (`wq_ring_qmem`); they begin at a multiple of 64 in the first half of a
    /// page of 4096 bytes. `None`: allocates it in the heap.
    pub ring: Option<QueueMemory>,
    /// Memory of the doorbell record, 8 bytes of zeros (`wq_dbr_qmem`); `None`: allocates it in the
    /// heap.
    pub record: Option<QueueMemory>,
}

impl WqConfig {
    /// 2^`log_wq_depth` WQEs in the heap.
    pub const fn new(log_wq_depth: u8) -> Self {
        Self {
            log_wq_stride: None,
            log_wq_depth,
            uar: None,
            user_index: 0,
            pd: None,
            ring: None,
            record: None,
        }
    }

    /// Checks that all parts of the queue are of `device`, another device context than the
    /// process's.
    pub(crate) fn check_cross_device(
        &self,
        process: &Process,
        device: &Device,
    ) -> Result<(), Error> {
        check_cross_device(process, device, [&self.ring, &self.record], &self.uar, Some(&self.pd))
    }

    /// The protection domain.
    pub(crate) fn pd<'a>(&'a self, process: &'a Process) -> &'a Pd {
        self.pd.as_ref().unwrap_or_else(|| process.pd())
    }

    /// Ring and record for WQEs of 2^`log_stride` bytes, for a queue on that device.
    pub(crate) fn allocate(
        &self,
        process: &Process,
        device: &Device,
        log_stride: u8,
    ) -> Result<WqMemory, Error> {
        let (log, most) = (self.log_wq_depth, device.caps().general.log_max_wq_sz());
        if log > most {
            return Err(Error::Failed(format!(
                "a work queue of depth 2^{log}: the device has 2^{most} at most"
            )));
        }
        if log_stride > 9 {
            return Err(Error::Failed(format!(
                "WQEs of 2^{log_stride} bytes: 2^9 at most are possible"
            )));
        }
        let ring = match &self.ring {
            Some(ring) => ring.clone(),
            None => {
                // The offset of a work queue in a page has 5 bits only.
                let buffer = process.alloc_aligned(1 << (log + log_stride), PAGE)?;
                buffer.fill(0)?;
                QueueMemory::dpa(&buffer)
            }
        };
        let record = match &self.record {
            Some(record) => record.clone(),
            None => QueueMemory::holding(process, &[0; 8])?,
        };
        ring.check("ring of the work queue", process, 1 << (log + log_stride))?;
        record.check("doorbell record of the work queue", process, RECORD)?;
        Ok(WqMemory { ring, record })
    }
}

/// Checks that all parts of a queue are of `device`, another device context than the process's.
///
/// `pd` is `None` for a queue without one.
pub(crate) fn check_cross_device(
    process: &Process,
    device: &Device,
    memory: [&Option<QueueMemory>; 2],
    uar: &Option<Uar>,
    pd: Option<&Option<Pd>>,
) -> Result<(), Error> {
    if device.is(process.device()) {
        let why = "a queue of another device context cannot be on the process's own context: use \
                   `create`";
        return Err(Error::Failed(why.into()));
    }
    let host = |memory: &Option<QueueMemory>| {
        memory.as_ref().is_some_and(|memory| memory.kind() == MemoryKind::Host)
    };
    let own = |context: &verbless_devx::Context| context.is(device);
    if !memory.into_iter().all(host) {
        let why = "ring and record of a queue of another device context are memory of the host \
                   that is registered there: a process's heap is its own context's alone";
        return Err(Error::Failed(why.into()));
    }
    let domain = |pd: &Option<Pd>| pd.as_ref().is_some_and(|pd| own(pd.context()));
    if !pd.is_none_or(domain) || !uar.as_ref().is_some_and(|uar| own(uar.page().context())) {
        let why = "a queue of another device context needs a protection domain and a UAR of that \
                   context (Uar::extend)";
        return Err(Error::Failed(why.into()));
    }
    Ok(())
}

/// Memory of a queue.
#[derive(Debug)]
pub(crate) struct WqMemory {
    pub(crate) ring: QueueMemory,
    pub(crate) record: QueueMemory,
}

impl WqMemory {
    /// The buffers of the memory, for the holder registry.
    pub(crate) fn buffers(&self) -> impl Iterator<Item = Key> + use<> {
        [self.ring.buffer, self.record.buffer].into_iter().flatten()
    }
}
