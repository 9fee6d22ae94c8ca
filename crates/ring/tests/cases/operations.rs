//! `OPERATIONS` and `post` agree on what a send queue supports: every operation, on every service.

use std::marker::PhantomData;

use crate::support::{Sender, Settings, to_lid};
use verbless_ring::access::KeyAccess;
use verbless_ring::service::{SERVICES, Service};
use verbless_ring::wr::{
    Capability, CompareSwap, DmaMmo, EthSend, FetchAdd, LocalInvalidate, MIN_INLINE_HEADER, Nop,
    OPERATIONS, OperationInfo, PostError, Read, Request, Scratch, Send, SendImm, SendInvalidate,
    Umr, Unsupported, Wait, WaitCondition, WorkRequest, Write, WriteImm,
};
use verbless_ring::{Eth, Lkey, QKey, Qpn, Rc, RemoteAddr, Rkey, SendQueue, Sge, Uc, Ud};

/// A request and the service of a queue.
struct Posting<S, W>(PhantomData<S>, W);

/// Posts the request if the service carries its type (`Some`); otherwise method resolution falls
/// back to [`NotCarried::post`] (`None`).
impl<S: Service, W: WorkRequest<S>> Posting<S, W> {
    fn post(&self, queue: &mut SendQueue<S>) -> Option<Result<(), PostError>> {
        Some(queue.post(&self.1, 0).map(drop))
    }
}

trait NotCarried<S: Service> {
    fn post(&self, _: &mut SendQueue<S>) -> Option<Result<(), PostError>> {
        None
    }
}
impl<S: Service, W> NotCarried<S> for Posting<S, W> {}

/// What a queue of service `S` reports for an operation, and the result of its post.
struct Outcome {
    operation: OperationInfo,
    service: &'static str,
    supports: Result<(), Unsupported>,
    posted: Option<Result<(), PostError>>,
}

fn queue<S: Service>(wqebbs: usize, lacks: Option<Capability>) -> SendQueue<S> {
    let settings =
        Settings { wqebbs, max_sges: 1, max_inline: MIN_INLINE_HEADER, ..Settings::default() };
    let mut queue = Sender::<S>::of(settings).queue;
    queue.set_capabilities(|capability| Some(capability) != lacks);
    queue
}

/// Calls `supports` and `post` for each request on a queue of each service.
macro_rules! query_and_post {
    ($wqebbs:expr, $lacks:expr, $outcomes:ident, $($request:expr),* $(,)?) => {
        query_and_post!(@ Rc, $wqebbs, $lacks, $outcomes, $($request),*);
        query_and_post!(@ Uc, $wqebbs, $lacks, $outcomes, $($request),*);
        query_and_post!(@ Ud, $wqebbs, $lacks, $outcomes, $($request),*);
        query_and_post!(@ Eth, $wqebbs, $lacks, $outcomes, $($request),*);
    };
    (@ $service:ty, $wqebbs:expr, $lacks:expr, $outcomes:ident, $($request:expr),*) => {$({
        let mut queue = queue::<$service>($wqebbs, $lacks);
        let operation = info(&$request);
        let supports = queue.supports(&operation);
        let posted = Posting(PhantomData::<$service>, $request).post(&mut queue);
        let service = <$service as Service>::NAME;
        $outcomes.push(Outcome { operation, service, supports, posted });
    })*};
}

fn info<W: Request>(_: &W) -> OperationInfo {
    W::INFO
}

/// The results of every operation on every service.
fn outcomes(wqebbs: usize, lacks: Option<Capability>) -> Vec<Outcome> {
    let (sge, remote) = (Sge::new(0x1000, 8, Lkey(1)), RemoteAddr::new(0, Rkey(0x200)));
    let to = to_lid(7).to(Qpn(0x99), QKey(1));
    let mut outcomes = vec![];
    query_and_post!(
        wqebbs,
        lacks,
        outcomes,
        Nop::new(),
        Send::new(sge),
        Send::new(sge).to(&to),
        SendImm::new(sge, 1),
        SendImm::new(sge, 1).to(&to),
        SendInvalidate::new(sge, Rkey(0x200)),
        Write::new(sge, remote),
        WriteImm::new(sge, remote, 1),
        Read::new(sge, remote),
        CompareSwap::new(sge, remote, 1, 2),
        FetchAdd::new(sge, remote, 1),
        LocalInvalidate::new(Rkey(0x200)),
        DmaMmo::new(Scratch::new(Sge::new(0x2000, 64, Lkey(1))).unwrap(), sge, sge),
        Wait::new(0x1000, Lkey(1), WaitCondition::equal(1)),
        Umr::access_flags(Rkey(0x200), KeyAccess::LOCAL),
        EthSend::new(&[0; MIN_INLINE_HEADER as usize], sge),
    );
    outcomes
}

#[test]
fn queue_accepts_exactly_supported_operations() {
    let mut seen = [false; 4];
    for wqebbs in [1, 2, 4] {
        for lacks in Capability::ALL.into_iter().map(Some).chain([None]) {
            let outcomes = outcomes(wqebbs, lacks);
            assert_eq!(outcomes.len(), OPERATIONS.len() * SERVICES.len());
            for Outcome { operation, service, supports, posted } in outcomes {
                let what = format!("{} on {service}, {wqebbs} wqebbs, {lacks:?}", operation.name);
                assert!(OPERATIONS.contains(&operation), "{what}: not in the list");
                match (supports, posted) {
                    (Ok(()), Some(Ok(()))) => seen[0] = true,
                    (Err(Unsupported::Service { .. }), None) => seen[1] = true,
                    (
                        Err(Unsupported::Capability { needs, .. }),
                        Some(Err(PostError::Unsupported)),
                    ) => {
                        assert_eq!(Some(needs), lacks, "{what}");
                        seen[2] = true;
                    }
                    (Err(Unsupported::Ring { .. }), Some(Err(PostError::TooLong))) => {
                        seen[3] = true;
                    }
                    other => panic!("{what}: {other:?}"),
                }
            }
        }
    }
    assert_eq!(seen, [true; 4], "each of the outcomes");
}

#[test]
fn operations_are_tested_once_in_list_order() {
    let called: Vec<_> =
        outcomes(4, None).into_iter().map(|answer| answer.operation.name).collect();
    let listed: Vec<_> = OPERATIONS.iter().map(|operation| operation.name).collect();
    assert_eq!(called[..listed.len()], listed);
}

#[test]
fn too_short_ring_is_named_with_length() {
    let mut queue = queue::<Rc>(1, None);
    let why = queue.supports(&Umr::INFO).unwrap_err().to_string();
    assert!(why.starts_with("UMR takes 2 wqebbs of 64 bytes, and this send ring has 1"), "{why}");
    let refused = queue.post(&Umr::access_flags(Rkey(0x200), KeyAccess::LOCAL), 0);
    assert_eq!(refused, Err(PostError::TooLong));
    queue.post(&Nop::new(), 0).unwrap();
    assert_eq!(queue.post(&Nop::new(), 0), Err(PostError::Full), "polling frees a slot");
}
