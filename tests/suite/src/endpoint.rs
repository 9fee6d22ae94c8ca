//! One end of a connection, as most cases use it.

use std::time::{Duration, Instant};

use verbless_command::{Device, InitAttr, KeyAccess, Mtu, RemoteAccess, RtrAttr};
use verbless_queue::service::{Connected, Service};
use verbless_queue::wr::{SgList, WorkRequest};
use verbless_queue::{
    Completion, CompletionError, ConnectOptions, Cq, CqConfig, Domain, PeerAddress, Qp, QpConfig,
    Rc, Region, RemoteAddr, Sge, WcStatus,
};

use crate::{Lab, Stop};

/// How long a case waits for an expected event.
pub const TIMEOUT: Duration = Duration::from_secs(10);

/// Attempts in quick succession; later attempts sleep in between.
const BUSY_ATTEMPTS: u32 = 1000;

/// Calls `attempt` until it yields something; fails with `what` after [`TIMEOUT`].
pub fn until<T>(what: &str, mut attempt: impl FnMut() -> Option<T>) -> Result<T, Stop> {
    let end = Instant::now() + TIMEOUT;
    let mut attempts = 0;
    loop {
        if let Some(found) = attempt() {
            return Ok(found);
        }
        if Instant::now() > end {
            return Err(Stop::fail(format!("{what}: nothing after {} s", TIMEOUT.as_secs())));
        }
        if attempts < BUSY_ATTEMPTS {
            attempts += 1;
            std::thread::yield_now();
        } else {
            std::thread::sleep(Duration::from_micros(50));
        }
    }
}

/// How long a case watches that nothing happens. A later event is not missed by a case that waits
/// for what follows.
const QUIET: Duration = Duration::from_millis(50);

/// Fails with `what` if `attempt` yields something within 50 ms.
pub fn quiet<T>(what: &str, mut attempt: impl FnMut() -> Option<T>) -> Result<(), Stop> {
    let end = Instant::now() + QUIET;
    while Instant::now() < end {
        if attempt().is_some() {
            return Err(Stop::fail(format!("{what}, though it must not")));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// `length` bytes that differ by position and by `seed`, and are rarely 0.
pub fn pattern(seed: u8, length: usize) -> Vec<u8> {
    (0..length).map(|at| (at as u8) ^ ((at >> 8) as u8).wrapping_mul(31) ^ seed | 1).collect()
}

/// Fails unless the request failed with this status; returns the request's cookie.
pub fn failed(done: Result<Completion, CompletionError>, status: WcStatus) -> Result<u64, Stop> {
    match done {
        Err(CompletionError::Failed(failure)) if failure.status == status => Ok(failure.cookie),
        Err(other) => Err(Stop::fail(format!("it failed with {other}, not with {status}"))),
        Ok(done) => Err(Stop::fail(format!("{done:?}, but it should fail with {status}"))),
    }
}

/// Takes a queue pair from RESET to RTR, connected to a peer whose path MTU is also [`SMALL_MTU`].
pub fn ready_to_receive(domain: &Domain, qp: &mut Qp, peer: &PeerAddress) -> Result<(), Stop> {
    let (init, rtr) = to_receive(domain, peer)?;
    qp.to_init(&init)?;
    Ok(qp.to_rtr(&rtr)?)
}

/// The attributes of those transitions.
pub fn to_receive(domain: &Domain, peer: &PeerAddress) -> Result<(InitAttr, RtrAttr), Stop> {
    let init = InitAttr { port: 1, pkey_index: 0, access: RemoteAccess::ALL };
    let rtr = RtrAttr {
        path: domain.path(peer, &ConnectOptions::default())?,
        mtu: SMALL_MTU,
        remote_qpn: peer.qpn,
        receive_psn: peer.psn,
        max_destination_reads: 4,
        min_rnr_timer: 12,
    };
    Ok((init, rtr))
}

/// A path MTU that every port has.
pub const SMALL_MTU: Mtu = Mtu::B512;

/// A queue pair with completion queues of its own and a region.
pub struct Endpoint<S: Service = Rc> {
    /// The device.
    pub device: Device,
    /// The protection domain.
    pub domain: Domain,
    /// Completions of sends.
    pub send_cq: Cq,
    /// Completions of receives.
    pub receive_cq: Cq,
    /// The queue pair.
    pub qp: Qp<S>,
    /// Memory with all rights for both sides.
    pub region: Region,
}

impl Endpoint {
    /// A reliable connected endpoint in RESET on `device`, with a region of `bytes`.
    pub fn new(device: Device, config: &QpConfig, bytes: usize) -> Result<Self, Stop> {
        Self::of(device, config, bytes)
    }
}

impl<S: Service> Endpoint<S> {
    /// An endpoint of any service in RESET on `device`, with a region of `bytes`.
    pub fn of(device: Device, config: &QpConfig, bytes: usize) -> Result<Self, Stop> {
        let domain = Domain::new(&device)?;
        let send_cq = domain.completion_queue(&CqConfig::new(2 * config.send_cqes::<S>()))?;
        let receive_cq = domain.completion_queue(&CqConfig::new(2 * config.receive_cqes()))?;
        let qp = domain.queue_pair_of(config, &send_cq, &receive_cq)?;
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

    /// Posts a signaled request, and waits for its completion.
    pub fn perform<W: WorkRequest<S>>(&mut self, request: &W) -> Result<Completion, Stop> {
        self.qp.post(request, 0)?;
        Ok(self.sent()??)
    }

    /// Posts this part of the region as a receive.
    pub fn receive(&mut self, offset: usize, length: usize, cookie: u64) -> Result<(), Stop> {
        let into = self.region.sge(offset, length)?;
        self.receive_into(into, cookie)
    }

    /// Posts memory as a receive.
    pub fn receive_into<G: SgList>(&mut self, into: G, cookie: u64) -> Result<(), Stop> {
        self.qp.post_receive(into, cookie)?;
        Ok(())
    }

    /// An SGE over a part of the region.
    pub fn sge(&self, offset: usize, length: usize) -> Result<Sge, Stop> {
        Ok(self.region.sge(offset, length)?)
    }

    /// An address in the region, or past its end, as the peer names it.
    pub fn remote(&self, offset: usize) -> Result<RemoteAddr, Stop> {
        let RemoteAddr { address, rkey } = self.region.remote(0, 0)?;
        Ok(RemoteAddr::new(address.wrapping_add(offset as u64), rkey))
    }

    /// Puts bytes into the region.
    pub fn fill(&self, offset: usize, bytes: &[u8]) -> Result<(), Stop> {
        Ok(self.region.write_at(offset, bytes)?)
    }

    /// Waits until the region has these bytes, which a WRITE of the peer places there; `what` names
    /// them in the failure. The peer's completion of a WRITE does not promise that this side's CPU
    /// sees the data: that takes a later completion here.
    pub fn placed(
        &self,
        offset: usize,
        expected: &[u8],
        what: impl Into<String>,
    ) -> Result<(), Stop> {
        let mut found = vec![0; expected.len()];
        let mut look = || match self.region.read_at(offset, &mut found) {
            Ok(()) => (found == expected).then_some(Ok(())),
            Err(error) => Some(Err(error)),
        };
        let Ok(looked) = until("bytes of a WRITE", &mut look) else {
            let (what, at) = (what.into(), (0..).zip(&found).zip(expected));
            let differs = { at }.find_map(|((at, found), expected)| {
                (found != expected).then(|| format!("byte {at} is {found:#x}, not {expected:#x}"))
            });
            return Err(Stop::fail(format!("{what}: {}", differs.unwrap_or_default())));
        };
        Ok(looked?)
    }

    /// The bytes of the region.
    pub fn bytes(&self, offset: usize, length: usize) -> Result<Vec<u8>, Stop> {
        let mut bytes = vec![0; length];
        self.region.read_at(offset, &mut bytes)?;
        Ok(bytes)
    }
}

/// Two endpoints.
pub struct Pair<S: Service = Rc> {
    /// The first end.
    pub a: Endpoint<S>,
    /// The second end.
    pub b: Endpoint<S>,
}

impl<S: Service> Pair<S> {
    /// Two endpoints of any service in RESET, on two devices if the lab has two.
    pub fn unconnected_of(lab: &Lab, config: &QpConfig, bytes: usize) -> Result<Self, Stop> {
        Ok(Self {
            a: Endpoint::of(lab.device()?, config, bytes)?,
            b: Endpoint::of(lab.other_device()?, config, bytes)?,
        })
    }
}

impl Pair {
    /// Two reliable connected endpoints in RESET, on two devices if the lab has two.
    pub fn unconnected(lab: &Lab, config: &QpConfig, bytes: usize) -> Result<Self, Stop> {
        Self::unconnected_of(lab, config, bytes)
    }

    /// Two endpoints connected to each other: 64 sends and receives, regions of 64 KiB.
    pub fn new(lab: &Lab) -> Result<Self, Stop> {
        Self::with(lab, &QpConfig::new(64, 64), 64 << 10)
    }

    /// Connects two ends with the case's own configuration and region size.
    pub fn with(lab: &Lab, config: &QpConfig, bytes: usize) -> Result<Self, Stop> {
        Self::connected(lab, config, bytes, &ConnectOptions::default())
    }

    /// Two endpoints connected to each other; they detect a missing peer soon, and give up soon.
    pub fn with_short_timeouts(lab: &Lab) -> Result<Self, Stop> {
        let options = ConnectOptions {
            ack_timeout: 8,
            retry_count: 1,
            rnr_retry: 2,
            min_rnr_timer: 1,
            ..Default::default()
        };
        Self::connected(lab, &QpConfig::new(64, 64), 64 << 10, &options)
    }

    /// Connects two ends with the case's own configuration, region size and connection options.
    pub fn connected(
        lab: &Lab,
        config: &QpConfig,
        bytes: usize,
        options: &ConnectOptions,
    ) -> Result<Self, Stop> {
        Self::connected_of(lab, config, bytes, options)
    }
}

impl<S: Connected> Pair<S> {
    /// Two endpoints of any connected service, connected to each other.
    pub fn connected_of(
        lab: &Lab,
        config: &QpConfig,
        bytes: usize,
        options: &ConnectOptions,
    ) -> Result<Self, Stop> {
        let mut pair = Self::unconnected_of(lab, config, bytes)?;
        pair.connect(options)?;
        Ok(pair)
    }

    /// Connects both sides.
    pub fn connect(&mut self, options: &ConnectOptions) -> Result<(), Stop> {
        let Self { a, b } = self;
        let (here, there) = (a.domain.address(&a.qp, options)?, b.domain.address(&b.qp, options)?);
        a.domain.connect(&mut a.qp, &there, options)?;
        b.domain.connect(&mut b.qp, &here, options)?;
        Ok(())
    }

    /// Takes both sides through RESET and connects them again. Posted requests are discarded.
    pub fn restart(&mut self) -> Result<(), Stop> {
        for end in [&mut self.a, &mut self.b] {
            end.qp.reset()?;
        }
        self.connect(&ConnectOptions::default())
    }
}
