//! What is measured.

use crate::Result;

/// What is measured of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Bytes and messages per second, with many requests in flight.
    Bandwidth,
    /// The time of one message after the other.
    Latency,
}

/// An operation with its service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// RDMA WRITE of a reliable connection.
    Write,
    /// RDMA READ of a reliable connection.
    Read,
    /// SEND of a reliable connection.
    Send,
    /// Fetch and add of a reliable connection.
    FetchAdd,
    /// Compare and swap of a reliable connection.
    CompareSwap,
    /// SEND of a datagram.
    UdSend,
}

impl Operation {
    /// All operations.
    pub const ALL: [Self; 6] =
        [Self::Write, Self::Read, Self::Send, Self::FetchAdd, Self::CompareSwap, Self::UdSend];

    /// Its name: `write`, `read`, `send`, `fetch_add`, `compare_swap`, `ud_send`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Write => "write",
            Self::Read => "read",
            Self::Send => "send",
            Self::FetchAdd => "fetch_add",
            Self::CompareSwap => "compare_swap",
            Self::UdSend => "ud_send",
        }
    }

    /// Whether it changes a word of 8 bytes, and nothing else.
    pub const fn is_atomic(self) -> bool {
        matches!(self, Self::FetchAdd | Self::CompareSwap)
    }

    /// Whether the other end must take part: it receives, or answers with a message of its own.
    pub const fn needs_receives(self) -> bool {
        matches!(self, Self::Send | Self::UdSend)
    }
}

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plan {
    /// What of the operation.
    pub kind: Kind,
    /// The operation.
    pub operation: Operation,
    /// Bytes of a message, from 1 to 8 MiB; 8 for atomics.
    pub bytes: u32,
    /// Messages of each queue pair, from 1 to 10,000,000.
    pub iterations: u32,
    /// Requests in flight of each queue pair, from 1 to 4096; of no influence on latencies.
    pub depth: u32,
    /// Queue pairs, from 1 to 64; 1 for latencies.
    pub qps: u32,
    /// Requests per doorbell, from 1 to `depth`.
    pub batch: u32,
}

/// The longest message.
const MAX_BYTES: u32 = 8 << 20;
const MAX_ITERATIONS: u32 = 10_000_000;
const MAX_DEPTH: u32 = 4096;
const MAX_QPS: u32 = 64;
/// The most bytes that an end registers.
const MAX_REGION: u64 = 512 << 20;

impl Plan {
    /// A plan with perftest's defaults: 5000 iterations, 128 requests in flight, 1000 iterations
    /// for latencies.
    pub const fn new(operation: Operation, kind: Kind, bytes: u32) -> Self {
        let iterations = match kind {
            Kind::Bandwidth => 5000,
            Kind::Latency => 1000,
        };
        Self { kind, operation, bytes, iterations, depth: 128, qps: 1, batch: 1 }
    }

    /// Messages of a bandwidth that have one completion: 100, or one above 8 KiB, as perftest's
    /// default is.
    pub fn completes_each(&self) -> u32 {
        const GROUPED: u32 = 8192;
        const GROUP: u32 = 100;
        if self.bytes > GROUPED { 1 } else { GROUP.min(self.depth) }
    }

    /// The plan of a name such as `write_bw`, `ud_send_lat`; its bytes are those of perftest's
    /// default: 65,536 for a bandwidth, 2 for a latency, 8 for an atomic operation, 2048 for a
    /// bandwidth of datagrams.
    pub fn named(name: &str) -> Option<Self> {
        let (operation, kind) = name.rsplit_once('_')?;
        let kind = match kind {
            "bw" => Kind::Bandwidth,
            "lat" => Kind::Latency,
            _ => return None,
        };
        let operation = Operation::ALL.into_iter().find(|it| it.name() == operation)?;
        let bytes = match (operation, kind) {
            (operation, _) if operation.is_atomic() => 8,
            (_, Kind::Latency) => 2,
            (Operation::UdSend, Kind::Bandwidth) => 2048,
            (_, Kind::Bandwidth) => 65_536,
        };
        Some(Self::new(operation, kind, bytes))
    }

    /// Its name.
    pub fn name(&self) -> String {
        let kind = match self.kind {
            Kind::Bandwidth => "bw",
            Kind::Latency => "lat",
        };
        format!("{}_{kind}", self.operation.name())
    }

    /// Bytes from one queue pair's memory to the next one's.
    pub(crate) fn stride(&self) -> usize {
        (self.bytes as usize).next_multiple_of(64)
    }

    /// Bytes of an end's memory: for each queue pair a part for what it sends, and one for what
    /// arrives.
    pub(crate) fn region_bytes(&self, header: usize) -> usize {
        2 * self.qps as usize * (self.stride() + header.next_multiple_of(64))
    }

    /// Fails with what is out of range.
    pub fn check(&self) -> Result {
        let within = |what: &str, value: u32, limit: u32| match (1..=limit).contains(&value) {
            true => Ok(()),
            false => Err(format!("{value} {what}: from 1 to {limit} are possible")),
        };
        within("bytes", self.bytes, MAX_BYTES)?;
        within("iterations", self.iterations, MAX_ITERATIONS)?;
        within("requests in flight", self.depth, MAX_DEPTH)?;
        within("queue pairs", self.qps, MAX_QPS)?;
        within("requests per doorbell", self.batch, self.depth)?;
        if self.operation.is_atomic() && self.bytes != 8 {
            return Err(format!("{} bytes: an atomic operation has 8", self.bytes).into());
        }
        if self.kind == Kind::Latency && self.qps > 1 {
            return Err(format!("{} queue pairs: a latency is that of one", self.qps).into());
        }
        if self.region_bytes(0) as u64 > MAX_REGION {
            let (bytes, qps) = (self.bytes, self.qps);
            return Err(format!("{bytes} bytes for each of {qps} queue pairs: over 512 MiB").into());
        }
        Ok(())
    }

    /// Bytes of [`Self::to_bytes`].
    pub const BYTES: usize = 22;

    /// The plan for the other end.
    pub fn to_bytes(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[0] = self.kind as u8;
        bytes[1] = self.operation as u8;
        let Self { bytes: length, iterations, depth, qps, batch, .. } = *self;
        for (at, value) in
            bytes[2..].chunks_exact_mut(4).zip([length, iterations, depth, qps, batch])
        {
            at.copy_from_slice(&value.to_be_bytes());
        }
        bytes
    }

    /// A plan from the other end, which may be anybody.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let bytes: &[u8; Self::BYTES] =
            bytes.try_into().map_err(|_| format!("{} bytes are no plan", bytes.len()))?;
        let kind = match bytes[0] {
            0 => Kind::Bandwidth,
            1 => Kind::Latency,
            other => return Err(format!("{other} is no kind of a measurement").into()),
        };
        let operation = Operation::ALL.get(usize::from(bytes[1])).copied();
        let operation = operation.ok_or_else(|| format!("{} is no operation", bytes[1]))?;
        let number = |at: usize| {
            let at = 2 + 4 * at;
            u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        let [bytes, iterations, depth, qps, batch] = [0, 1, 2, 3, 4].map(number);
        let plan = Self { kind, operation, bytes, iterations, depth, qps, batch };
        plan.check()?;
        Ok(plan)
    }
}
