//! One side of a connection: what most cases need.

use std::time::{Duration, Instant};

use verbless_command::{Device, KeyAccess};
use verbless_queue::{
    Completion, CompletionError, ConnectOptions, Cq, CqConfig, Domain, Qp, QpConfig, Region,
};

use crate::{Lab, Stop};

/// How long a case waits for what must happen.
pub const TIMEOUT: Duration = Duration::from_secs(10);

/// Calls `attempt` until it yields something; fails with `what` after [`TIMEOUT`].
pub fn until<T>(what: &str, mut attempt: impl FnMut() -> Option<T>) -> Result<T, Stop> {
    let end = Instant::now() + TIMEOUT;
    loop {
        if let Some(found) = attempt() {
            return Ok(found);
        }
        if Instant::now() > end {
            return Err(Stop::fail(format!("{what}: nothing after {} s", TIMEOUT.as_secs())));
        }
        std::thread::yield_now();
    }
}

/// A queue pair with completion queues of its own and a region.
pub struct Endpoint {
    /// The device.
    pub device: Device,
    /// Its protection domain.
    pub domain: Domain,
    /// Completions of sends.
    pub send_cq: Cq,
    /// Completions of receives.
    pub receive_cq: Cq,
    /// The queue pair.
    pub qp: Qp,
    /// Memory that both sides may do everything to.
    pub region: Region,
}

impl Endpoint {
    /// An endpoint in RESET on `device`, with a region of `bytes`.
    pub fn new(device: Device, config: &QpConfig, bytes: usize) -> Result<Self, Stop> {
        let domain = Domain::new(&device)?;
        let send_cq = domain.completion_queue(&CqConfig::new(config.sends.max(1) * 2))?;
        let receive_cq = domain.completion_queue(&CqConfig::new(config.receives.max(1) * 2))?;
        let qp = domain.queue_pair(config, &send_cq, &receive_cq)?;
        let region = domain.region(bytes, KeyAccess::ALL)?;
        Ok(Self { device, domain, send_cq, receive_cq, qp, region })
    }

    /// Waits for the next completion of a send.
    pub fn sent(&mut self) -> Result<Result<Completion, CompletionError>, Stop> {
        let Self { qp, send_cq, .. } = self;
        until("a completion of a send", || qp.poll(send_cq))
    }

    /// Waits for the next completion of a receive.
    pub fn received(&mut self) -> Result<Result<Completion, CompletionError>, Stop> {
        let Self { qp, receive_cq, .. } = self;
        until("a completion of a receive", || qp.poll(receive_cq))
    }

    /// The bytes of the region.
    pub fn bytes(&self, offset: usize, length: usize) -> Result<Vec<u8>, Stop> {
        let mut bytes = vec![0; length];
        self.region.read_at(offset, &mut bytes)?;
        Ok(bytes)
    }
}

/// Two endpoints.
pub struct Pair {
    /// One side.
    pub a: Endpoint,
    /// The other.
    pub b: Endpoint,
}

impl Pair {
    /// Two endpoints in RESET, on two devices where there are two.
    pub fn unconnected(lab: &Lab, config: &QpConfig, bytes: usize) -> Result<Self, Stop> {
        Ok(Self {
            a: Endpoint::new(lab.device()?, config, bytes)?,
            b: Endpoint::new(lab.other_device()?, config, bytes)?,
        })
    }

    /// Two endpoints connected to each other: 64 sends and receives, regions of 64 KiB.
    pub fn new(lab: &Lab) -> Result<Self, Stop> {
        Self::with(lab, &QpConfig::new(64, 64), 64 << 10)
    }

    /// The same with a configuration and region size of the case's own.
    pub fn with(lab: &Lab, config: &QpConfig, bytes: usize) -> Result<Self, Stop> {
        Self::connected(lab, config, bytes, &ConnectOptions::default())
    }

    /// The same with connection options of the case's own.
    pub fn connected(
        lab: &Lab,
        config: &QpConfig,
        bytes: usize,
        options: &ConnectOptions,
    ) -> Result<Self, Stop> {
        let pair = Self::unconnected(lab, config, bytes)?;
        pair.connect(options)?;
        Ok(pair)
    }

    /// Connects both sides.
    pub fn connect(&self, options: &ConnectOptions) -> Result<(), Stop> {
        let Self { a, b } = self;
        let (here, there) = (a.domain.address(&a.qp, options)?, b.domain.address(&b.qp, options)?);
        a.domain.connect(&a.qp, &there, options)?;
        b.domain.connect(&b.qp, &here, options)?;
        Ok(())
    }
}
