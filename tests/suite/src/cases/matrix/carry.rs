//! Differences between services: connecting, and the requests that a queue pair takes.

use verbless_queue::address::GRH_BYTES;
use verbless_queue::qp::{SendBatch, SendQueue};
use verbless_queue::service::{Connected, Service};
use verbless_queue::wr::{
    CompareSwap, EthSend, FetchAdd, Inline, LocalInvalidate, Nop, OperationInfo, Payload, Read,
    Request, Send, SendImm, SendInvalidate, SendTo, Umr, WorkRequest, Write, WriteImm,
};
use verbless_queue::{
    ConnectOptions, DatagramOptions, Destination, QKey, Rc, RemoteAddr, Rkey, Sge, Uc, Ud,
};

use super::super::umr::SHARED;
use super::cell::CellOperation;
use super::memory;
use crate::need::cap;
use crate::{Need, Pair, Stop, ensure_eq};

/// One request.
pub(super) struct Job {
    pub(super) operation: CellOperation,
    pub(super) remote: RemoteAddr,
    /// The key that a UMR maps or LOCAL_INVALIDATE invalidates; other operations ignore it.
    pub(super) key: Rkey,
    pub(super) signaled: bool,
    pub(super) number: u64,
}

impl Job {
    /// A signaled WRITE; the caller changes its fields.
    pub(super) fn plain(key: Rkey) -> Self {
        let (operation, remote) = (CellOperation::Write, RemoteAddr::new(0, Rkey(0)));
        Self { operation, remote, key, signaled: true, number: 0 }
    }
}

/// What FETCH_AND_ADD adds, and COMPARE_SWAP swaps in.
const OPERAND: u64 = 0x1_0000_0000_0005;

/// The value that an atomic writes over `before`.
pub(super) fn after(operation: CellOperation, before: u64) -> u64 {
    match operation {
        CellOperation::FetchAdd => before.wrapping_add(OPERAND),
        _ => OPERAND,
    }
}

/// The immediate data of request `number`.
pub(super) fn immediate(number: u64) -> u32 {
    [0xfeed_1234, 0, u32::MAX][number as usize % 3]
}

/// Where requests are posted: to the send queue, or to a batch.
pub(super) enum PostTarget<'q, S: Service> {
    Single(&'q mut SendQueue<S>),
    Batch(SendBatch<'q, S>),
}

impl<S: Service> PostTarget<'_, S> {
    /// Posts a request, whose cookie is `number`.
    pub(super) fn put<W: WorkRequest<S>>(&mut self, request: &W, number: u64) -> Result<(), Stop> {
        match self {
            Self::Single(queue) => queue.post(request, number)?,
            Self::Batch(batch) => batch.post(request, number)?,
        };
        Ok(())
    }

    /// Ends a batch.
    pub(super) fn ring(self) {
        if let Self::Batch(batch) = self {
            batch.ring();
        }
    }
}

impl<S: MatrixService> PostTarget<'_, S> {
    fn post<W: WorkRequest<S>>(&mut self, request: &W, job: &Job) -> Result<(), Stop> {
        ensure_eq!(W::INFO.name, S::info(job.operation).name, "request that is posted");
        self.put(request, job.number)
    }
}

/// Posts a request, signaled if the job is.
macro_rules! put {
    ($poster:expr, $job:expr, $request:expr $(, to $destination:expr)?) => {
        if $job.signaled {
            $poster.post(&$request.signaled()$(.to($destination))?, $job)
        } else {
            $poster.post(&$request$(.to($destination))?, $job)
        }
    };
}

/// How the matrix connects a service and posts to it.
pub(super) trait MatrixService: Service {
    /// The destination that each request needs: an AH for UD, nothing for RC and UC.
    type Destination;
    /// Bytes in front of a SEND's payload at the receiver.
    const HEADER: usize;
    /// Needs of the service, for every operation.
    const NEEDS: &'static [Need];

    /// Connects two queue pairs in RESET; returns the destination of requests from `a` to `b`.
    fn connect(pair: &mut Pair<Self>) -> Result<Self::Destination, Stop>;

    /// Reconnects a pair through RESET, after a failed request.
    fn restart(pair: &mut Pair<Self>) -> Result<Self::Destination, Stop> {
        for end in [&mut pair.a, &mut pair.b] {
            end.qp.reset()?;
        }
        Self::connect(pair)
    }

    /// The `OperationInfo` of the work request type that posts `operation`.
    fn info(operation: CellOperation) -> OperationInfo {
        match operation {
            CellOperation::Send => Send::<Sge>::INFO,
            CellOperation::SendImm => SendImm::<Sge>::INFO,
            CellOperation::SendInvalidate => SendInvalidate::<Sge>::INFO,
            CellOperation::Write => Write::<Sge>::INFO,
            CellOperation::WriteImm => WriteImm::<Sge>::INFO,
            CellOperation::Read => Read::<Sge>::INFO,
            CellOperation::CompareSwap => CompareSwap::INFO,
            CellOperation::FetchAdd => FetchAdd::INFO,
            CellOperation::Umr => Umr::INFO,
            CellOperation::LocalInvalidate => LocalInvalidate::INFO,
            CellOperation::EthSend => EthSend::<Sge>::INFO,
            CellOperation::Nop => Nop::INFO,
        }
    }

    /// Posts a request with its bytes in memory.
    fn post(
        poster: &mut PostTarget<'_, Self>,
        destination: &Self::Destination,
        job: &Job,
        sges: &[Sge],
    ) -> Result<(), Stop>;

    /// Posts a request with inline bytes.
    fn post_inline(
        poster: &mut PostTarget<'_, Self>,
        destination: &Self::Destination,
        job: &Job,
        data: &[u8],
    ) -> Result<(), Stop>;
}

/// Posts a request that every connected service supports.
fn put_connected<S: MatrixService + Connected, P: Payload>(
    poster: &mut PostTarget<'_, S>,
    job: &Job,
    payload: P,
) -> Result<(), Stop> {
    let immediate = immediate(job.number);
    match job.operation {
        CellOperation::Send => put!(poster, job, Send::new(payload)),
        CellOperation::SendImm => put!(poster, job, SendImm::new(payload, immediate)),
        CellOperation::Write => put!(poster, job, Write::new(payload, job.remote)),
        CellOperation::WriteImm => put!(poster, job, WriteImm::new(payload, job.remote, immediate)),
        CellOperation::LocalInvalidate => put!(poster, job, LocalInvalidate::new(job.key)),
        CellOperation::Nop => put!(poster, job, Nop::new()),
        other => Err(Stop::fail(format!("{} has no {other:?} with this payload", S::NAME))),
    }
}

/// A UMR that maps a key to these SGEs as one range.
fn put_umr<S: MatrixService + Connected>(
    poster: &mut PostTarget<'_, S>,
    job: &Job,
    klms: &[Sge],
) -> Result<(), Stop> {
    put!(poster, job, Umr::map(job.key, SHARED, klms))
}

impl MatrixService for Rc {
    type Destination = ();
    const HEADER: usize = 0;
    const NEEDS: &'static [Need] = &[cap!(rc)];

    fn connect(pair: &mut Pair<Self>) -> Result<(), Stop> {
        pair.connect(&ConnectOptions::default())
    }

    fn post(
        poster: &mut PostTarget<'_, Self>,
        (): &(),
        job: &Job,
        sges: &[Sge],
    ) -> Result<(), Stop> {
        match job.operation {
            CellOperation::Read => put!(poster, job, Read::new(sges, job.remote)),
            CellOperation::CompareSwap => {
                let there = memory::number(&memory::data(job.number as usize, 8));
                put!(poster, job, CompareSwap::new(sges[0], job.remote, there, OPERAND))
            }
            CellOperation::FetchAdd => {
                put!(poster, job, FetchAdd::new(sges[0], job.remote, OPERAND))
            }
            CellOperation::SendInvalidate => put!(poster, job, SendInvalidate::new(sges, job.key)),
            CellOperation::Umr => put_umr(poster, job, sges),
            _ => put_connected(poster, job, sges),
        }
    }

    fn post_inline(
        poster: &mut PostTarget<'_, Self>,
        (): &(),
        job: &Job,
        data: &[u8],
    ) -> Result<(), Stop> {
        match job.operation {
            CellOperation::SendInvalidate => {
                put!(poster, job, SendInvalidate::new(Inline(data), job.key))
            }
            _ => put_connected(poster, job, Inline(data)),
        }
    }
}

impl MatrixService for Uc {
    type Destination = ();
    const HEADER: usize = 0;
    const NEEDS: &'static [Need] = &[cap!(uc), Need::Lossless];

    fn connect(pair: &mut Pair<Self>) -> Result<(), Stop> {
        pair.connect(&ConnectOptions::default())
    }

    fn post(
        poster: &mut PostTarget<'_, Self>,
        (): &(),
        job: &Job,
        sges: &[Sge],
    ) -> Result<(), Stop> {
        match job.operation {
            CellOperation::Umr => put_umr(poster, job, sges),
            _ => put_connected(poster, job, sges),
        }
    }

    fn post_inline(
        poster: &mut PostTarget<'_, Self>,
        (): &(),
        job: &Job,
        data: &[u8],
    ) -> Result<(), Stop> {
        put_connected(poster, job, Inline(data))
    }
}

const KEY: QKey = QKey(0x1122_3344);

/// Posts a request as a datagram.
fn put_datagram<P: Payload>(
    poster: &mut PostTarget<'_, Ud>,
    to: &Destination,
    job: &Job,
    payload: P,
) -> Result<(), Stop> {
    match job.operation {
        CellOperation::Send => put!(poster, job, Send::new(payload), to to),
        CellOperation::SendImm => {
            put!(poster, job, SendImm::new(payload, immediate(job.number)), to to)
        }
        CellOperation::Nop => put!(poster, job, Nop::new()),
        other => Err(Stop::fail(format!("UD has no {other:?}"))),
    }
}

impl MatrixService for Ud {
    type Destination = Destination;
    const HEADER: usize = GRH_BYTES;
    const NEEDS: &'static [Need] = &[cap!(ud), Need::Lossless];

    fn connect(pair: &mut Pair<Self>) -> Result<Destination, Stop> {
        for end in [&mut pair.a, &mut pair.b] {
            end.qp.start(&DatagramOptions::new(KEY))?;
        }
        let options = ConnectOptions::default();
        let peer = pair.b.domain.address(&pair.b.qp, &options)?;
        Ok(pair.a.domain.destination(&peer, KEY, &options)?)
    }

    fn info(operation: CellOperation) -> OperationInfo {
        match operation {
            CellOperation::Send => SendTo::<Send<Sge>>::INFO,
            CellOperation::SendImm => SendTo::<SendImm<Sge>>::INFO,
            // No destination: the operation sends nothing, or no datagram carries it.
            _ => Rc::info(operation),
        }
    }

    fn post(
        poster: &mut PostTarget<'_, Self>,
        destination: &Destination,
        job: &Job,
        sges: &[Sge],
    ) -> Result<(), Stop> {
        put_datagram(poster, destination, job, sges)
    }

    fn post_inline(
        poster: &mut PostTarget<'_, Self>,
        destination: &Destination,
        job: &Job,
        data: &[u8],
    ) -> Result<(), Stop> {
        put_datagram(poster, destination, job, Inline(data))
    }
}
