//! One side: queue pairs, their completion queues, and memory.

use verbless_command::{Device, KeyAccess, QKey};
use verbless_queue::address::GRH_BYTES;
use verbless_queue::service::Service;
use verbless_queue::{
    ConnectOptions, Cq, CqConfig, DatagramOptions, Destination, Domain, PeerAddress, Qp, QpConfig,
    Rc, Region, RemoteAddr, Rkey, Sge, Ud,
};

use crate::{Kind, Measured, Operation, Plan, Result, bandwidth, latency};

/// The Q_Key of datagrams.
const KEY: QKey = QKey(0x0076_6270);
/// Receives of a queue pair at least.
const RECEIVES: u32 = 512;
/// Requests that may be in flight where latencies are measured.
const LATENCY_SENDS: u32 = 64;
/// Bytes that a request carries itself where latencies are measured, as perftest's do.
const INLINE: u32 = 220;
/// Bytes of a queue pair in [`End::hello`]: its address, its memory's address and key.
const HELLO: usize = PeerAddress::BYTES + 12;

/// One end of a measurement.
pub struct End {
    plan: Plan,
    sides: Sides,
}

enum Sides {
    Rc(Side<Rc, RemoteAddr>),
    Ud(Side<Ud, Destination>),
}

/// The queue pairs of a service, and the way to each of their peers.
pub(crate) struct Side<S: Service, W> {
    domain: Domain,
    pub(crate) region: Region,
    pub(crate) lanes: Vec<Lane<S>>,
    pub(crate) ways: Vec<W>,
}

/// A queue pair with its completion queues, and its parts of the memory.
pub(crate) struct Lane<S: Service> {
    pub(crate) qp: Qp<S>,
    pub(crate) send_cq: Cq,
    pub(crate) receive_cq: Cq,
    /// What it sends.
    pub(crate) from: Sge,
    /// Where messages arrive.
    pub(crate) into: Sge,
    /// Offsets of both in the region.
    pub(crate) at: [usize; 2],
    /// Receives that it posts in advance.
    receives: u32,
}

impl<S: Service, W> Side<S, W> {
    fn new(device: &Device, plan: &Plan, header: usize) -> Result<Self> {
        let domain = Domain::new(device)?;
        let region = domain.region(plan.region_bytes(header), KeyAccess::ALL)?;
        let (bytes, unit) =
            (plan.bytes as usize, plan.region_bytes(header) / plan.qps as usize / 2);
        let (sends, inline) = match plan.kind {
            Kind::Bandwidth => (plan.depth, 0),
            Kind::Latency => (LATENCY_SENDS, if is_inline(plan) { plan.bytes } else { 0 }),
        };
        let receives = if plan.operation.needs_receives() { plan.depth.max(RECEIVES) } else { 0 };
        let config = QpConfig { inline, ..QpConfig::new(sends, receives) };
        let mut lanes = Vec::new();
        for at in 0..plan.qps as usize {
            let send_cq = domain.completion_queue(&CqConfig::new(config.send_cqes::<S>()))?;
            let receive_cq = domain.completion_queue(&CqConfig::new(config.receive_cqes()))?;
            let qp = domain.queue_pair_of(&config, &send_cq, &receive_cq)?;
            let at = [2 * at * unit, (2 * at + 1) * unit];
            let from = region.sge(at[0], bytes)?;
            let into = region.sge(at[1], bytes + header)?;
            lanes.push(Lane { qp, send_cq, receive_cq, from, into, at, receives });
        }
        Ok(Self { domain, region, lanes, ways: Vec::new() })
    }

    fn hello(&self) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        for lane in &self.lanes {
            let here = self.domain.address(&lane.qp, &ConnectOptions::default())?;
            let memory = self.region.remote(lane.at[1], 0)?;
            bytes.extend(here.to_bytes());
            bytes.extend(memory.address.to_be_bytes());
            bytes.extend(memory.rkey.0.to_be_bytes());
        }
        Ok(bytes)
    }

    /// Connects each queue pair by `connect`, which returns its way to the peer, and posts its
    /// receives.
    fn connect(
        &mut self,
        hello: &[u8],
        connect: impl Fn(&Domain, &mut Qp<S>, &PeerAddress, RemoteAddr) -> Result<W>,
    ) -> Result {
        let count = self.lanes.len();
        if hello.len() != count * HELLO {
            let text = format!("{} bytes do not describe {count} queue pairs", hello.len());
            return Err(text.into());
        }
        for (lane, hello) in self.lanes.iter_mut().zip(hello.chunks_exact(HELLO)) {
            let (peer, memory) = parse(hello)?;
            self.ways.push(connect(&self.domain, &mut lane.qp, &peer, memory)?);
            for _ in 0..lane.receives {
                lane.qp.post_receive(lane.into, 0)?;
            }
        }
        Ok(())
    }
}

/// A queue pair's part of a hello.
fn parse(hello: &[u8]) -> Result<(PeerAddress, RemoteAddr)> {
    let parts = hello.split_first_chunk::<{ PeerAddress::BYTES }>().and_then(|(peer, memory)| {
        let (address, key) = memory.split_first_chunk::<8>()?;
        let key = Rkey(u32::from_be_bytes(key.try_into().ok()?));
        Some((peer, RemoteAddr::new(u64::from_be_bytes(*address), key)))
    });
    let (peer, memory) = parts.ok_or_else(|| format!("{} bytes: no queue pair", hello.len()))?;
    Ok((PeerAddress::from_bytes(peer)?, memory))
}

/// Whether a message is within its request.
pub(crate) fn is_inline(plan: &Plan) -> bool {
    plan.kind == Kind::Latency && plan.bytes <= INLINE && plan.operation != Operation::Read
}

impl End {
    /// Makes queue pairs and memory on a device.
    ///
    /// # Errors
    /// The plan is out of range, the device refuses something, or its port carries no such
    /// datagrams.
    pub fn new(device: &Device, plan: &Plan) -> Result<Self> {
        plan.check()?;
        let sides = match plan.operation {
            Operation::UdSend => {
                let mut side = Side::<Ud, Destination>::new(device, plan, GRH_BYTES)?;
                let longest = side.domain.max_datagram_bytes(1)?;
                if plan.bytes > longest {
                    let bytes = plan.bytes;
                    return Err(format!("a datagram of {bytes} bytes: {longest} at most").into());
                }
                for lane in &mut side.lanes {
                    lane.qp.start(&DatagramOptions::new(KEY))?;
                }
                Sides::Ud(side)
            }
            _ => Sides::Rc(Side::new(device, plan, 0)?),
        };
        Ok(Self { plan: *plan, sides })
    }

    /// The data that the other end needs to connect.
    pub fn hello(&self) -> Result<Vec<u8>> {
        match &self.sides {
            Sides::Rc(side) => side.hello(),
            Sides::Ud(side) => side.hello(),
        }
    }

    /// Connects to the other end, whose hello this is. Messages may come once both have connected.
    pub fn connect(&mut self, hello: &[u8]) -> Result {
        let options = ConnectOptions::default();
        match &mut self.sides {
            Sides::Rc(side) => side.connect(hello, |domain, qp, peer, memory| {
                domain.connect(qp, peer, &options)?;
                Ok(memory)
            }),
            Sides::Ud(side) => side
                .connect(hello, |domain, _, peer, _| Ok(domain.destination(peer, KEY, &options)?)),
        }
    }

    /// Measures, while the other end responds.
    ///
    /// # Errors
    /// A request failed, nothing arrived for 10 s, or it takes longer than 100 s.
    pub fn measure(&mut self) -> Result<Measured> {
        let plan = &self.plan;
        Ok(match (&mut self.sides, plan.kind) {
            (Sides::Rc(side), Kind::Bandwidth) => {
                Measured::Bandwidth(bandwidth::of_connections(side, plan)?)
            }
            (Sides::Ud(side), Kind::Bandwidth) => {
                Measured::Bandwidth(bandwidth::of_datagrams(side, plan)?)
            }
            (Sides::Rc(side), Kind::Latency) => {
                Measured::Latency(latency::of_connection(side, plan)?)
            }
            (Sides::Ud(side), Kind::Latency) => {
                Measured::Latency(latency::of_datagrams(side, plan)?)
            }
        })
    }

    /// Responds to the measuring end: posts receives, answers messages. Returns how many messages
    /// arrived.
    pub fn respond(&mut self) -> Result<u64> {
        let plan = &self.plan;
        match (&mut self.sides, plan.kind) {
            (Sides::Rc(side), Kind::Bandwidth) if plan.operation.needs_receives() => {
                bandwidth::receive(&mut side.lanes, plan, false)
            }
            (Sides::Ud(side), Kind::Bandwidth) => bandwidth::receive(&mut side.lanes, plan, true),
            (Sides::Rc(side), Kind::Latency) => latency::answer_connection(side, plan),
            (Sides::Ud(side), Kind::Latency) => latency::answer_datagrams(side, plan),
            (Sides::Rc(_), Kind::Bandwidth) => Ok(0),
        }
    }
}
