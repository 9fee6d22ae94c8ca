//! The device's queue for reads and changes of a sync event's word.

use verbless_queue::wr::{FetchAdd, Inline, PostError, Read, Wait, WaitCondition, Write};
use verbless_queue::{ConnectOptions, Cq, CqConfig, Qp, QpConfig, Region, Sge};
use verbless_queue::{access::KeyAccess, completion::FailedRequest};

use std::time::{Duration, Instant};

use super::word::{BYTES, CounterWord};
use crate::context::failure::JobError;
use crate::error::{Error, ErrorKind, Result};

/// The largest threshold of a wait by the device; the word may be one larger.
///
/// The device compares big-endian words, and this one is little-endian: its lowest byte is the most
/// significant one. While the number fits that byte, the order is right.
pub(super) const MAX_THRESHOLD: u64 = 254;

/// An operation on the word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LinkOperation {
    Get,
    Set(u64),
    Add(u64),
    /// Wait until the value is above this threshold, at most [`MAX_THRESHOLD`].
    WaitGt(u64),
}

/// A queue pair and its peer, both this engine's. All requests except waits access the word by its
/// remote key.
///
/// It is not its own peer: a responder that refuses a request goes to the error state, which would
/// flush the request before its answer, and the reason would be lost.
pub(super) struct Link {
    pub(super) qp: Qp,
    peer: Qp,
}

impl Link {
    /// Creates a queue for `requests` requests at a time.
    pub(super) fn new(word: &CounterWord, cq: &Cq, requests: u32, user_index: u32) -> Result<Self> {
        let config = QpConfig { inline: BYTES as u32, user_index, ..QpConfig::new(requests, 1) };
        let qp = word.domain().queue_pair(&config, cq, cq)?;
        let config = QpConfig { inline: 0, user_index, ..QpConfig::new(1, 1) };
        let mut this = Self { qp, peer: word.domain().queue_pair(&config, cq, cq)? };
        this.connect(word)?;
        Ok(this)
    }

    /// Posts a request; the old value of the word, if requested, goes to `into`.
    pub(super) fn post(
        &mut self,
        word: &CounterWord,
        operation: LinkOperation,
        into: Sge,
        cookie: u64,
    ) -> Result<()> {
        let (qp, remote) = (&mut self.qp, word.remote());
        let posted = match operation {
            LinkOperation::Get => qp.post(&Read::new(into, remote).signaled(), cookie),
            LinkOperation::Set(value) => {
                let bytes = value.to_ne_bytes();
                qp.post(&Write::new(Inline(&bytes), remote).signaled(), cookie)
            }
            LinkOperation::Add(value) => {
                qp.post(&FetchAdd::new(into, remote, value).signaled(), cookie)
            }
            LinkOperation::WaitGt(threshold) => {
                let (address, lkey) = word.local();
                let until = WaitCondition::above(u64::from_be_bytes(threshold.to_ne_bytes()));
                qp.post(&Wait::new(address, lkey, until).signaled(), cookie)
            }
        };
        posted.map(drop).map_err(refused)
    }

    /// Returns from the error state; the device has no request of this queue.
    pub(super) fn recover(&mut self, word: &CounterWord) -> Result<()> {
        self.qp.reset()?;
        self.peer.reset()?;
        self.connect(word)
    }

    fn connect(&mut self, word: &CounterWord) -> Result<()> {
        let ends = (&mut self.qp, &mut self.peer);
        Ok(word.domain().connect_pair(ends, &ConnectOptions::default())?)
    }
}

#[cold]
fn refused(error: PostError) -> Error {
    match error {
        PostError::Full => {
            let text = "the device's queue of requests is full: retrieve some jobs first";
            Error::plain(ErrorKind::Again, text)
        }
        PostError::Unsupported => {
            let text = "the device does not support this job: ask SyncEvent::job_supported";
            Error::plain(ErrorKind::NotSupported, text)
        }
        other => Error::new(ErrorKind::Unexpected, other.to_string()),
    }
}

/// A link with blocking requests.
pub(super) struct BlockingLink {
    link: Link,
    cq: Cq,
    /// The memory for the word's previous value.
    result: Region,
}

/// Time limit for a request of the device.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);

impl BlockingLink {
    pub(super) fn new(word: &CounterWord) -> Result<Self> {
        let cq = word.domain().completion_queue(&CqConfig::new(16))?;
        let link = Link::new(word, &cq, 1, 0)?;
        let result = word.domain().region(BYTES, KeyAccess::LOCAL)?;
        Ok(Self { link, cq, result })
    }

    /// Performs the operation, and returns the word's value if the operation reads it.
    pub(super) fn perform(&mut self, word: &CounterWord, operation: LinkOperation) -> Result<u64> {
        self.perform_within(REQUEST_TIMEOUT, word, operation)
    }

    fn perform_within(
        &mut self,
        timeout: Duration,
        word: &CounterWord,
        operation: LinkOperation,
    ) -> Result<u64> {
        let into = Sge::new(self.result.address(), BYTES as u32, self.result.lkey());
        self.link.post(word, operation, into, 0)?;
        let mut end = None;
        let mut turns = 0u32;
        let cqe = loop {
            if let Some(cqe) = self.cq.poll() {
                break cqe;
            }
            std::hint::spin_loop();
            turns = turns.wrapping_add(1);
            // Reads the clock rarely.
            if turns.is_multiple_of(1 << 12) {
                let end = *end.get_or_insert_with(|| Instant::now() + timeout);
                if Instant::now() > end {
                    self.cq.check()?;
                    self.link.recover(word)?;
                    let text = format!(
                        "the device did not execute a sync event's request within {timeout:?}"
                    );
                    return Err(Error::new(ErrorKind::TimeOut, text));
                }
            }
        };
        match self.link.qp.complete(cqe) {
            Ok(_) => {
                let mut bytes = [0; BYTES];
                self.result.read_at(0, &mut bytes).map_err(|error| {
                    Error::new(ErrorKind::Unexpected, error.to_string()).with_source(error)
                })?;
                Ok(u64::from_ne_bytes(bytes))
            }
            Err(verbless_queue::CompletionError::Failed(failure)) => {
                self.link.recover(word)?;
                Err(failed(failure))
            }
            Err(other) => {
                Err(Error::new(ErrorKind::Unexpected, other.to_string()).with_source(other))
            }
        }
    }
}

#[cold]
fn failed(failure: FailedRequest) -> Error {
    let kind = JobError::from(failure).kind();
    let text = format!(
        "the device did not reach the sync event's word: {failure}; of an imported one, its owner \
         may be gone"
    );
    Error::new(kind, text)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use verbless_devx::Backend;
    use verbless_model::{Model, Profile};
    use verbless_model_kernel::InProcess;

    use super::*;
    use crate::device::DevInfo;

    #[test]
    fn idle_device_times_out_each_call() {
        let model = Model::builder().device(Profile::load("bluefield3").unwrap()).stepped().build();
        let backend: Arc<dyn Backend> = Arc::new(InProcess::of(&model));
        let dev = DevInfo::list_of(&backend).unwrap()[0].open().unwrap();
        let word = CounterWord::own(&dev, None).unwrap();
        let mut calls = BlockingLink::new(&word).unwrap();
        let timeout = Duration::from_millis(1);
        for _ in 0..2 {
            let error = calls.perform_within(timeout, &word, LinkOperation::Add(1)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::TimeOut, "{error}");
            assert!(error.to_string().ends_with("in 1ms"), "{error}");
            model.run_until_idle();
        }
        assert_eq!(word.here().unwrap().load(std::sync::atomic::Ordering::Relaxed), 0);
    }
}
