//! The types of jobs, and the reasons why they fail.

use std::fmt;
use std::num::NonZeroU64;
use std::sync::{Mutex, MutexGuard, PoisonError};

use verbless_queue::completion::FailedRequest;
use verbless_queue::{Qpn, WcStatus, WqeIndex};

use crate::error::{Error, ErrorKind};

/// The type of an event's job (`doca_event::type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum JobType {
    /// A DMA copy.
    DmaMemcpy,
    /// A hash of one buffer.
    ShaHash,
    /// A part of a hash.
    ShaPartial,
    /// A read of a sync event's value.
    SyncEventGet,
    /// A new value of a sync event.
    SyncEventSet,
    /// An addition to a sync event's value.
    SyncEventAdd,
    /// A wait for a sync event.
    SyncEventWait,
    /// A receive of RDMA (`DOCA_RDMA_JOB_RECV`).
    RdmaReceive,
    /// A send (`DOCA_RDMA_JOB_SEND`).
    RdmaSend,
    /// A send with immediate (`DOCA_RDMA_JOB_SEND_IMM`).
    RdmaSendImm,
    /// A write (`DOCA_RDMA_JOB_WRITE`).
    RdmaWrite,
    /// A write with immediate (`DOCA_RDMA_JOB_WRITE_IMM`).
    RdmaWriteImm,
    /// A read (`DOCA_RDMA_JOB_READ`).
    RdmaRead,
    /// A compare and swap (`DOCA_RDMA_JOB_ATOMIC_CMP_SWP`).
    RdmaCompareSwap,
    /// A fetch and add (`DOCA_RDMA_JOB_ATOMIC_FETCH_ADD`).
    RdmaFetchAdd,
    /// An instance of a graph (`DOCA_GRAPH_JOB`).
    Graph,
    /// No job: an external event of a device.
    AsyncEvent,
}

/// Why a job failed.
///
/// It is `Copy`, and has two words: events with drop code, or longer ones, would slow down each
/// job.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct JobError {
    /// The number of the kind, and above it the number of the [`JobErrorCause`].
    head: NonZeroU64,
    /// The other fields of a failure of the device: queue pair and user index.
    rest: u64,
}

/// The reason of a job's failure, as far as known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum JobErrorCause {
    Unknown,
    Device(FailedRequest),
    /// Why the context ended its jobs.
    Reason(&'static str),
}

/// Bit positions of the fields in the words of a [`JobError`].
mod at {
    // Fields of the head.
    pub(super) const CAUSE: u32 = 8;
    pub(super) const SYNDROME: u32 = 16;
    pub(super) const VENDOR: u32 = 24;
    pub(super) const INDEX: u32 = 32;
    pub(super) const RECEIVE: u32 = 48;
    /// In `rest`, above the queue pair's number.
    pub(super) const USER: u32 = 32;
}

const DEVICE: u64 = 1;
const REASON: u64 = 2;

/// Maximum of stored texts; one per way in which contexts gave up.
const TEXTS: usize = 256;

static KEPT: Mutex<Vec<&'static str>> = Mutex::new(Vec::new());

fn kept() -> MutexGuard<'static, Vec<&'static str>> {
    KEPT.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Stores a text for good, once, and returns its index; `None` if the limit is reached.
fn keep(kept: &mut Vec<&'static str>, text: String) -> Option<usize> {
    if let Some(at) = kept.iter().position(|kept| **kept == text) {
        return Some(at);
    }
    (kept.len() < TEXTS).then(|| {
        kept.push(text.leak());
        kept.len() - 1
    })
}

impl JobError {
    pub(crate) const fn new(kind: ErrorKind) -> Self {
        Self::of_words(kind, 0, 0)
    }

    /// The bits of `cause` do not overlap those of the kind.
    const fn of_words(kind: ErrorKind, cause: u64, rest: u64) -> Self {
        let head = match NonZeroU64::new(cause | kind.number() as u64) {
            Some(head) => head,
            // No kind has the number 0.
            None => NonZeroU64::MIN,
        };
        Self { head, rest }
    }

    fn of_failure(kind: ErrorKind, failure: &FailedRequest) -> Self {
        let head = DEVICE << at::CAUSE
            | u64::from(failure.status.syndrome()) << at::SYNDROME
            | u64::from(failure.vendor_syndrome) << at::VENDOR
            | u64::from(failure.wqe_index.0) << at::INDEX
            | u64::from(failure.receive) << at::RECEIVE;
        let rest = u64::from(failure.qpn.0) | u64::from(failure.user_index) << at::USER;
        Self::of_words(kind, head, rest)
    }

    /// The failure of a job that was not posted because of `error`.
    pub(crate) fn unposted(error: &Error) -> Self {
        match keep(&mut kept(), error.to_string()) {
            Some(text) => Self::of_words(error.kind(), REASON << at::CAUSE, text as u64),
            None => Self::new(error.kind()),
        }
    }

    /// This failure with another kind, for a caller that knows a better one.
    pub(crate) const fn of_kind(self, kind: ErrorKind) -> Self {
        Self::of_words(kind, self.head.get() & !0xff, self.rest)
    }

    /// The kind of failure: DOCA's value.
    pub const fn kind(&self) -> ErrorKind {
        let number = self.head.get() as u8 as usize;
        ErrorKind::ALL[number - 1]
    }

    fn what(&self) -> JobErrorCause {
        let part = |above: u32| self.head.get() >> above;
        match u64::from(part(at::CAUSE) as u8) {
            DEVICE => JobErrorCause::Device(FailedRequest {
                cookie: 0,
                status: WcStatus::from_syndrome(part(at::SYNDROME) as u8),
                vendor_syndrome: part(at::VENDOR) as u8,
                wqe_index: WqeIndex(part(at::INDEX) as u16),
                receive: part(at::RECEIVE) != 0,
                qpn: Qpn(self.rest as u32),
                user_index: (self.rest >> at::USER) as u32,
            }),
            REASON => kept()
                .get(self.rest as usize)
                .copied()
                .map_or(JobErrorCause::Unknown, JobErrorCause::Reason),
            _ => JobErrorCause::Unknown,
        }
    }

    /// The device's failure, if the device reported one. Its cookie is 0: the event identifies the
    /// job.
    pub fn cause(&self) -> Option<FailedRequest> {
        match self.what() {
            JobErrorCause::Device(failure) => Some(failure),
            _ => None,
        }
    }

    /// Why the context gave up, if that ended the job.
    pub(crate) fn why(&self) -> Option<&'static str> {
        match self.what() {
            JobErrorCause::Reason(why) => Some(why),
            _ => None,
        }
    }
}

impl fmt::Debug for JobError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JobError").field("kind", &self.kind()).field("cause", &self.what()).finish()
    }
}

impl From<FailedRequest> for JobError {
    fn from(failure: FailedRequest) -> Self {
        let kind = match failure.status {
            WcStatus::LocalProtection | WcStatus::LocalAccess | WcStatus::RemoteAccess => {
                ErrorKind::NotPermitted
            }
            WcStatus::Flushed => ErrorKind::Shutdown,
            // No answer came: whether the other side executed the request is unknown.
            WcStatus::TransportRetryExceeded | WcStatus::RnrRetryExceeded => ErrorKind::TimeOut,
            WcStatus::LocalLength | WcStatus::RemoteInvalidRequest => ErrorKind::InvalidValue,
            WcStatus::RemoteAborted => ErrorKind::ConnectionAborted,
            _ => ErrorKind::IoFailed,
        };
        Self::of_failure(kind, &failure)
    }
}

impl fmt::Display for JobError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the job failed: {}", self.kind().name())?;
        match &self.what() {
            JobErrorCause::Unknown => Ok(()),
            JobErrorCause::Device(failure) => {
                write!(f, ": {failure}")?;
                match failure.status {
                    WcStatus::LocalProtection | WcStatus::RemoteAccess => f.write_str(
                        "; of memory that another function exported, its owner may have taken it \
                         back",
                    ),
                    _ => Ok(()),
                }
            }
            JobErrorCause::Reason(why) => write!(f, ": {why}"),
        }
    }
}

impl std::error::Error for JobError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn job_error_round_trips_cause_and_reason() {
        for syndrome in 0..=u8::MAX {
            let failure = FailedRequest {
                cookie: 0,
                status: WcStatus::from_syndrome(syndrome),
                vendor_syndrome: !syndrome,
                wqe_index: WqeIndex(0xffff - u16::from(syndrome)),
                receive: syndrome % 2 == 1,
                qpn: Qpn(0xff_fffe),
                user_index: 0xff_fffd,
            };
            let error = JobError::from(FailedRequest { cookie: 7, ..failure });
            assert_eq!(error.cause(), Some(failure));
            for &kind in ErrorKind::ALL {
                let other = error.of_kind(kind);
                assert_eq!((other.kind(), other.cause(), other.why()), (kind, Some(failure), None));
            }
            assert!(format!("{error}").contains(&failure.to_string()), "{error}");
        }
        for &kind in ErrorKind::ALL {
            let plain = JobError::new(kind);
            assert_eq!((plain.kind(), plain.cause(), plain.why()), (kind, None, None));
            let error = Error::new(kind, format!("number {}", kind.number()));
            let failure = JobError::unposted(&error);
            let text = error.to_string();
            assert_eq!(
                (failure.kind(), failure.cause(), failure.why()),
                (kind, None, Some(&*text))
            );
        }
        assert_eq!(size_of::<std::result::Result<(), JobError>>(), 16);
    }

    #[test]
    fn error_texts_are_kept_once_up_to_limit() {
        let mut kept = Vec::new();
        for number in 0..TEXTS {
            assert_eq!(keep(&mut kept, number.to_string()), Some(number));
        }
        assert_eq!(keep(&mut kept, "one more".to_owned()), None);
        assert_eq!(keep(&mut kept, "7".to_owned()), Some(7));
        assert_eq!(kept.len(), TEXTS);
    }

    #[test]
    fn access_error_mentions_revoked_memory() {
        for (syndrome, says) in [(0x04, true), (0x13, true), (0x02, false), (0x15, false)] {
            let failure = FailedRequest {
                cookie: 0,
                status: WcStatus::from_syndrome(syndrome),
                vendor_syndrome: 0,
                wqe_index: WqeIndex(0),
                receive: false,
                qpn: Qpn(1),
                user_index: 0,
            };
            let text = JobError::from(failure).to_string();
            assert!(text.contains(&failure.to_string()), "{text}");
            assert_eq!(text.contains("its owner may have taken it back"), says, "{text}");
        }
    }
}
