//! Why jobs fail.

use std::fmt;
use std::num::NonZeroU64;
use std::sync::{Mutex, MutexGuard, PoisonError};

use verbless_queue::completion::FailedRequest;
use verbless_queue::{Qpn, WcStatus, WqeIndex};

use crate::error::{Error, ErrorKind};

/// Why a job failed.
///
/// It is `Copy` and 16 bytes long, because each event holds one: a larger event, or one with a
/// `Drop`, slows down every job.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct JobError {
    /// The number of the kind, and above it the number of the [`JobErrorCause`].
    word0: NonZeroU64,
    /// The other fields of a failure of the device: queue pair and user index.
    word1: u64,
}

/// The reason of a job's failure, as far as known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum JobErrorCause {
    Unknown,
    Device(FailedRequest),
    /// The message of the error that stopped the context.
    Message(&'static str),
}

/// Shifts of the fields in the words of a [`JobError`].
mod shift {
    // Fields of word 0.
    pub(super) const CAUSE: u32 = 8;
    pub(super) const SYNDROME: u32 = 16;
    pub(super) const VENDOR: u32 = 24;
    pub(super) const INDEX: u32 = 32;
    pub(super) const RECEIVE: u32 = 48;
    /// In word 1, above the queue pair's number.
    pub(super) const USER: u32 = 32;
}

const DEVICE: u64 = 1;
const MESSAGE: u64 = 2;

/// Maximum number of interned messages. Each distinct message is stored once and never freed.
const MAX_MESSAGES: usize = 256;

static MESSAGES: Mutex<Vec<&'static str>> = Mutex::new(Vec::new());

fn messages() -> MutexGuard<'static, Vec<&'static str>> {
    MESSAGES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Interns `text` and returns its index; `None` if [`MAX_MESSAGES`] messages are interned.
fn intern(messages: &mut Vec<&'static str>, text: String) -> Option<usize> {
    if let Some(at) = messages.iter().position(|message| **message == text) {
        return Some(at);
    }
    (messages.len() < MAX_MESSAGES).then(|| {
        messages.push(text.leak());
        messages.len() - 1
    })
}

impl JobError {
    pub(crate) const fn new(kind: ErrorKind) -> Self {
        Self::of_words(kind, 0, 0)
    }

    /// Bits 7:0 of `cause` must be clear: the kind goes there.
    const fn of_words(kind: ErrorKind, cause: u64, word1: u64) -> Self {
        let word0 = match NonZeroU64::new(cause | kind.number() as u64) {
            Some(word0) => word0,
            // No kind has the number 0.
            None => NonZeroU64::MIN,
        };
        Self { word0, word1 }
    }

    fn of_failure(kind: ErrorKind, failure: &FailedRequest) -> Self {
        let word0 = DEVICE << shift::CAUSE
            | u64::from(failure.status.syndrome()) << shift::SYNDROME
            | u64::from(failure.vendor_syndrome) << shift::VENDOR
            | u64::from(failure.wqe_index.0) << shift::INDEX
            | u64::from(failure.receive) << shift::RECEIVE;
        let word1 = u64::from(failure.qpn.0) | u64::from(failure.user_index) << shift::USER;
        Self::of_words(kind, word0, word1)
    }

    /// The failure of a job that was not posted because of `error`.
    pub(crate) fn unposted(error: &Error) -> Self {
        match intern(&mut messages(), error.to_string()) {
            Some(index) => Self::of_words(error.kind(), MESSAGE << shift::CAUSE, index as u64),
            None => Self::new(error.kind()),
        }
    }

    /// This failure with another kind, for a caller that knows a better one.
    pub(crate) const fn of_kind(self, kind: ErrorKind) -> Self {
        Self::of_words(kind, self.word0.get() & !0xff, self.word1)
    }

    /// The kind of failure: DOCA's value.
    pub const fn kind(&self) -> ErrorKind {
        let number = self.word0.get() as u8 as usize;
        ErrorKind::ALL[number - 1]
    }

    fn decode(&self) -> JobErrorCause {
        let part = |above: u32| self.word0.get() >> above;
        match u64::from(part(shift::CAUSE) as u8) {
            DEVICE => JobErrorCause::Device(FailedRequest {
                cookie: 0,
                status: WcStatus::from_syndrome(part(shift::SYNDROME) as u8),
                vendor_syndrome: part(shift::VENDOR) as u8,
                wqe_index: WqeIndex(part(shift::INDEX) as u16),
                receive: part(shift::RECEIVE) != 0,
                qpn: Qpn(self.word1 as u32),
                user_index: (self.word1 >> shift::USER) as u32,
            }),
            MESSAGE => messages()
                .get(self.word1 as usize)
                .copied()
                .map_or(JobErrorCause::Unknown, JobErrorCause::Message),
            _ => JobErrorCause::Unknown,
        }
    }

    /// The device's failure, if the device reported one. Its cookie is 0: the event identifies the
    /// job.
    pub fn device_failure(&self) -> Option<FailedRequest> {
        match self.decode() {
            JobErrorCause::Device(failure) => Some(failure),
            _ => None,
        }
    }

    /// The message of the error that stopped the context before it posted the job.
    pub(crate) fn message(&self) -> Option<&'static str> {
        match self.decode() {
            JobErrorCause::Message(why) => Some(why),
            _ => None,
        }
    }
}

impl fmt::Debug for JobError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JobError")
            .field("kind", &self.kind())
            .field("cause", &self.decode())
            .finish()
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
        match &self.decode() {
            JobErrorCause::Unknown => Ok(()),
            JobErrorCause::Device(failure) => {
                write!(f, ": {failure}")?;
                match failure.status {
                    WcStatus::LocalProtection | WcStatus::RemoteAccess => f.write_str(
                        "; if another function exported the memory, it may have revoked the \
                         export",
                    ),
                    _ => Ok(()),
                }
            }
            JobErrorCause::Message(why) => write!(f, ": {why}"),
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
            assert_eq!(error.device_failure(), Some(failure));
            for &kind in ErrorKind::ALL {
                let other = error.of_kind(kind);
                assert_eq!(
                    (other.kind(), other.device_failure(), other.message()),
                    (kind, Some(failure), None)
                );
            }
            assert!(format!("{error}").contains(&failure.to_string()), "{error}");
        }
        for &kind in ErrorKind::ALL {
            let plain = JobError::new(kind);
            assert_eq!((plain.kind(), plain.device_failure(), plain.message()), (kind, None, None));
            let error = Error::new(kind, format!("number {}", kind.number()));
            let failure = JobError::unposted(&error);
            let text = error.to_string();
            assert_eq!(
                (failure.kind(), failure.device_failure(), failure.message()),
                (kind, None, Some(&*text))
            );
        }
        assert_eq!(size_of::<std::result::Result<(), JobError>>(), 16);
    }

    #[test]
    fn messages_are_interned_once_up_to_limit() {
        let mut messages = Vec::new();
        for number in 0..MAX_MESSAGES {
            assert_eq!(intern(&mut messages, number.to_string()), Some(number));
        }
        assert_eq!(intern(&mut messages, "one more".to_owned()), None);
        assert_eq!(intern(&mut messages, "7".to_owned()), Some(7));
        assert_eq!(messages.len(), MAX_MESSAGES);
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
            assert_eq!(text.contains("may have revoked the export"), says, "{text}");
        }
    }
}
