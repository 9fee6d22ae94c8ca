//! Our end of a connection: a queue pair with one completion queue, and memory.

use std::time::Duration;

use verbless::command::Gid;
use verbless::prelude::*;
use verbless::queue::service::Service;
use verbless::queue::wr::WorkRequest;

use crate::job::Result;

/// How long to wait for a completion: longer than all retries of a request take.
const COMPLETION_TIMEOUT: Duration = Duration::from_secs(20);

pub(crate) struct End<S: Service> {
    pub qp: Qp<S>,
    cq: Cq,
    events: CqEvents,
    pub region: Region,
}

impl<S: Service> End<S> {
    pub(crate) fn new(
        domain: &Domain,
        sends: usize,
        receives: usize,
        bytes: usize,
    ) -> Result<Self> {
        let config = QpConfig::new(sends as u32, receives as u32);
        let mut cq = domain.completion_queue(&CqConfig::new(config.cqes::<S>()))?;
        let events = CqEvents::new(domain.device())?;
        events.add(&mut cq, 0)?;
        let qp = domain.queue_pair_of(&config, &cq, &cq)?;
        Ok(Self { qp, cq, events, region: domain.region(bytes, KeyAccess::ALL)? })
    }

    /// Posts a receive.
    pub(crate) fn receive(&mut self, offset: usize, length: usize) -> Result {
        self.qp.post_receive(self.region.sge(offset, length)?, offset as u64)?;
        Ok(())
    }

    /// Posts a signaled request.
    pub(crate) fn post<W: WorkRequest<S>>(&mut self, request: &W) -> Result {
        self.qp.post(request, 0)?;
        Ok(())
    }

    /// Sleeps until the next completion.
    pub(crate) fn next(&mut self) -> Result<std::result::Result<Completion, CompletionError>> {
        loop {
            if let Some(done) = self.qp.poll(&mut self.cq) {
                return Ok(done);
            }
            if !self.events.wait_for(&mut self.cq, Some(COMPLETION_TIMEOUT))? {
                return Err(format!("nothing completed within {COMPLETION_TIMEOUT:?}").into());
            }
        }
    }

    pub(crate) fn bytes(&self, offset: usize, length: usize) -> Result<Vec<u8>> {
        let mut bytes = vec![0; length];
        self.region.read_at(offset, &mut bytes)?;
        Ok(bytes)
    }
}

/// The address of a peer from these values; the other fields are those of our port.
pub(crate) fn peer(ours: &PeerAddress, qpn: u32, psn: u32, gid: [u8; 16]) -> PeerAddress {
    PeerAddress { qpn: verbless::queue::Qpn(qpn), psn, gid: Gid(gid), ..*ours }
}
