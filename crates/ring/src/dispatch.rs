//! Many queues on one completion queue: finds the queue of a CQE by the number in it.
//!
//! ```no_run
//! # fn f(a: verbless_ring::QueuePair, b: verbless_ring::QueuePair,
//! #      mut cq: verbless_ring::CompletionQueue) -> Result<(), Box<dyn std::error::Error>> {
//! use verbless_ring::Dispatcher;
//!
//! let mut queues = Dispatcher::new();
//! for qp in [a, b] {
//!     queues.insert(qp.qpn().0, qp)?;
//! }
//! while let Some((qpn, completed)) = queues.poll(&mut cq) {
//!     println!("QP {qpn:#x}: request {}", completed?.cookie);
//! }
//! # Ok(())
//! # }
//! ```

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::mem::offset_of;

use core::marker::PhantomData;

use verbless_prm::hot::{self, CqeUserIndex, cqe_opcode};

use crate::completion::{Completion, CompletionError, WcOpcode};
use crate::cq::{CompletionQueue, Cqe, Outcome, RequestId};
use crate::qp::{QueuePair, ReceiveQueue, ReceiveSide, SendQueue};
use crate::ring::{CqeView, LayoutError, RETIRED};
use crate::service::Service;
use crate::srq::SharedReceiveQueue;

/// Entries of a page, and number of pages: together all numbers of 24 bits.
const PAGE: usize = 1 << 12;
/// No queue: above every index in `queues`.
const NONE: u32 = u32::MAX;

/// A queue that completes requests by CQEs.
pub trait WorkQueue {
    /// Completes the request of this queue that the CQE reports; frees its slots.
    fn complete(&mut self, cqe: Cqe) -> Result<Completion, CompletionError>;

    /// A faster [`WorkQueue::complete`] for a successful CQE without inline data, the usual kind.
    /// `None` if the CQE completes no request of this queue: nothing has changed, and the
    /// dispatcher calls [`WorkQueue::complete`]. Implementing it is optional.
    fn complete_success(&mut self, cqe: SendCqe<'_>) -> Option<Completion> {
        let _ = cqe;
        None
    }
}

/// A successful requester CQE without inline data.
pub struct SendCqe<'r> {
    request: RequestId,
    view: CqeView<'r>,
}

impl SendCqe<'_> {
    /// Identifies the request that the CQE completes.
    #[inline(always)]
    pub fn request(&self) -> RequestId {
        self.request
    }

    /// The user index that the CQE's queue was created with, 24 bits.
    #[inline(always)]
    pub fn user_index(&self) -> u32 {
        let word = self.view.dword::<{ offset_of!(hot::Cqe, cqe_user_index) }>();
        CqeUserIndex::from_raw(word).srqn_uidx()
    }
}

/// A successful receive CQE without inline data, of a queue pair with its own receive queue.
pub struct ReceiveCqe<'r> {
    request: RequestId,
    operation: WcOpcode,
    outcome: Outcome,
    view: PhantomData<CqeView<'r>>,
}

impl ReceiveCqe<'_> {
    /// Identifies the receive that the CQE completes.
    #[inline(always)]
    pub fn request(&self) -> RequestId {
        self.request
    }

    /// The user index that the CQE's queue was created with, 24 bits.
    #[inline(always)]
    pub fn user_index(&self) -> u32 {
        CqeUserIndex::from_bits(self.outcome.user_index.get()).srqn_uidx()
    }

    /// The receive's operation, such as [`WcOpcode::ReceiveImm`].
    #[inline(always)]
    pub fn operation(&self) -> WcOpcode {
        self.operation
    }

    /// Bytes received, or written by the peer.
    #[inline(always)]
    pub fn byte_len(&self) -> u32 {
        self.outcome.byte_count.get()
    }

    /// The immediate data of the message, if it has any.
    #[inline(always)]
    pub fn immediate(&self) -> Option<u32> {
        let has = matches!(self.operation, WcOpcode::ReceiveImm | WcOpcode::ReceiveWriteImm);
        has.then(|| self.outcome.immediate.get())
    }
}

impl CompletionQueue {
    /// The next CQE if it is a successful receive, as [`CompletionQueue::peek_send`] for sends.
    /// `None` also if SRQ receives complete here.
    #[inline(always)]
    pub fn peek_receive(&self) -> Option<ReceiveCqe<'_>> {
        let view = self.view();
        let operation = match view.plain_opcode() {
            cqe_opcode::RESPONDER_SEND => WcOpcode::Receive,
            cqe_opcode::RESPONDER_SEND_IMM => WcOpcode::ReceiveImm,
            cqe_opcode::RESPONDER_WRITE_IMM => WcOpcode::ReceiveWriteImm,
            _ => return None,
        };
        let request = RequestId::read(&view);
        if request.opcode_qpn.get() == RETIRED || self.claims_receives() {
            return None;
        }
        let outcome = Outcome::read(&view);
        Some(ReceiveCqe { request, operation, outcome, view: PhantomData })
    }

    /// The next CQE, without taking it, if it is a successful requester CQE without inline data: it
    /// stays in the queue until [`CompletionQueue::consume_peeked`]. `None` also if there is
    /// another CQE or none.
    #[inline(always)]
    pub fn peek_send(&self) -> Option<SendCqe<'_>> {
        let view = self.view();
        view.is_plain_request().then(|| SendCqe { request: RequestId::read(&view), view })
    }

    /// Takes the [peeked](CompletionQueue::peek_send) CQE after its queue completed it as a
    /// [request](SendQueue::try_complete) or a [receive](QueuePair::try_complete_receive). Do not
    /// call it without a peeked CQE: it would skip the CQE that the device writes next.
    #[inline(always)]
    pub fn consume_peeked(&mut self) {
        self.step();
        self.publish();
    }
}

impl<S: Service> SendQueue<S> {
    /// Whether the CQE completes the request of this cookie without an error; if so, frees the
    /// slots of that request and all before it. Otherwise nothing changes. Use it when the next
    /// request to complete is known.
    #[inline(always)]
    pub fn try_complete(&mut self, request: RequestId, cookie: u64) -> bool {
        self.succeed_with(request, cookie)
    }
}

impl<S: Service> QueuePair<S> {
    /// Whether the CQE completes the receive of this cookie, which must be the oldest; if so, frees
    /// its slot. Otherwise nothing changes.
    #[inline(always)]
    pub fn try_complete_receive(&mut self, request: RequestId, cookie: u64) -> bool {
        self.receive.try_complete(request, cookie)
    }
}

impl<S: Service> WorkQueue for SendQueue<S> {
    #[inline(always)]
    fn complete(&mut self, cqe: Cqe) -> Result<Completion, CompletionError> {
        Self::complete(self, cqe)
    }

    #[inline(always)]
    fn complete_success(&mut self, cqe: SendCqe<'_>) -> Option<Completion> {
        Self::complete_success(self, cqe.request, || Outcome::read(&cqe.view))
    }
}

impl WorkQueue for ReceiveQueue {
    #[inline(always)]
    fn complete(&mut self, cqe: Cqe) -> Result<Completion, CompletionError> {
        Self::complete(self, cqe)
    }
}

impl<S: Service, R: ReceiveSide> WorkQueue for QueuePair<S, R> {
    #[inline(always)]
    fn complete(&mut self, cqe: Cqe) -> Result<Completion, CompletionError> {
        Self::complete(self, cqe)
    }

    #[inline(always)]
    fn complete_success(&mut self, cqe: SendCqe<'_>) -> Option<Completion> {
        WorkQueue::complete_success(&mut self.send, cqe)
    }
}

/// Queues of several services are boxed: `Dispatcher<Box<dyn WorkQueue>>`.
impl<Q: WorkQueue + ?Sized> WorkQueue for Box<Q> {
    #[inline(always)]
    fn complete(&mut self, cqe: Cqe) -> Result<Completion, CompletionError> {
        (**self).complete(cqe)
    }

    #[inline(always)]
    fn complete_success(&mut self, cqe: SendCqe<'_>) -> Option<Completion> {
        (**self).complete_success(cqe)
    }
}

/// A queue's number, and the result of its request.
pub type Dispatched = (u32, Result<Completion, CompletionError>);

/// The queues of one completion queue, found by a number of 24 bits: the queue number or the user
/// index.
///
/// The upper half of the number selects a page, the lower half an entry in it. A page has 16 KiB
/// and is allocated with its first number: inserting may allocate, polling does not.
#[derive(Debug)]
pub struct Dispatcher<Q> {
    /// Index in `queues` for each number, or [`NONE`].
    pages: Box<[Option<Box<[u32; PAGE]>>; PAGE]>,
    queues: Vec<(u32, Q)>,
}

impl<Q> Default for Dispatcher<Q> {
    fn default() -> Self {
        Self { pages: Box::new([const { None }; PAGE]), queues: Vec::new() }
    }
}

impl<Q> Dispatcher<Q> {
    /// A dispatcher without queues.
    pub fn new() -> Self {
        Self::default()
    }

    /// The number of queues.
    pub fn len(&self) -> usize {
        self.queues.len()
    }

    /// Whether there are no queues.
    pub fn is_empty(&self) -> bool {
        self.queues.is_empty()
    }

    /// Adds a queue under `number`; returns the queue that it replaces.
    ///
    /// # Errors
    /// The number has more than 24 bits.
    pub fn insert(&mut self, number: u32, queue: Q) -> Result<Option<Q>, LayoutError> {
        if number >> 24 != 0 {
            return Err(LayoutError::new("number", "has more than 24 bits", number.into()));
        }
        if let Some(there) = self.get_mut(number) {
            return Ok(Some(core::mem::replace(there, queue)));
        }
        let place = self.queues.len() as u32;
        self.queues.push((number, queue));
        self.set(number, place);
        Ok(None)
    }

    /// Removes the queue under `number`.
    pub fn remove(&mut self, number: u32) -> Option<Q> {
        let place = self.place(number)?;
        // `place` is out of range if the page has no entry for the number.
        self.queues.get(place)?;
        let (_, queue) = self.queues.swap_remove(place);
        self.set(number, NONE);
        if let Some(&(moved, _)) = self.queues.get(place) {
            self.set(moved, place as u32);
        }
        Some(queue)
    }

    /// The queue under `number`.
    pub fn get(&self, number: u32) -> Option<&Q> {
        self.queues.get(self.place(number)?).map(|(_, queue)| queue)
    }

    /// The queue under `number`, mutable.
    #[inline(always)]
    pub fn get_mut(&mut self, number: u32) -> Option<&mut Q> {
        let place = self.place(number)?;
        self.queues.get_mut(place).map(|(_, queue)| queue)
    }

    /// The queues with their numbers, in no order.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (u32, &mut Q)> {
        self.queues.iter_mut().map(|(number, queue)| (*number, queue))
    }

    /// The index in `queues` of the queue with this number; out of range if no queue has it.
    #[inline(always)]
    fn place(&self, number: u32) -> Option<usize> {
        if number >> 24 != 0 {
            return None;
        }
        let page = self.pages[number as usize >> 12 & (PAGE - 1)].as_deref()?;
        Some(page[number as usize & (PAGE - 1)] as usize)
    }

    fn set(&mut self, number: u32, place: u32) {
        let page = &mut self.pages[number as usize >> 12 & (PAGE - 1)];
        page.get_or_insert_with(|| Box::new([NONE; PAGE]))[number as usize & (PAGE - 1)] = place;
    }
}

impl<Q: WorkQueue> Dispatcher<Q> {
    /// Polls the completion queue and completes the CQE on the queue of its [`Cqe::qpn`]; returns
    /// that number and the result.
    ///
    /// The CQE of an unknown queue comes back in [`CompletionError::OtherQueue`]: complete it on
    /// its queue.
    #[inline(always)]
    pub fn poll(&mut self, cq: &mut CompletionQueue) -> Option<Dispatched> {
        let view = cq.view();
        if view.is_plain_request() {
            let request = RequestId::read(&view);
            let number = request.opcode_qpn().qpn();
            if let Some(queue) = self.get_mut(number)
                && let Some(completion) = queue.complete_success(SendCqe { request, view })
            {
                cq.step();
                cq.publish();
                return Some((number, Ok(completion)));
            }
        } else if view.is_device_owned() {
            return None;
        }
        self.poll_slow(cq)
    }

    #[inline(never)]
    fn poll_slow(&mut self, cq: &mut CompletionQueue) -> Option<Dispatched> {
        cq.poll().map(|cqe| self.complete(cqe))
    }

    /// Like [`poll`](Self::poll), for queues inserted by user index ([`Cqe::user_index`]); returns
    /// the user index.
    #[inline(always)]
    pub fn poll_by_user_index(&mut self, cq: &mut CompletionQueue) -> Option<Dispatched> {
        cq.poll().map(|cqe| self.complete_as(cqe.user_index(), cqe))
    }

    /// Like [`poll`](Self::poll), for queue pairs with a shared receive queue: `receives` completes
    /// receive CQEs, the queue pair of the CQE's QPN all others. Returns the QPN.
    #[inline]
    pub fn poll_with_srq(
        &mut self,
        cq: &mut CompletionQueue,
        receives: &mut SharedReceiveQueue,
    ) -> Option<Dispatched> {
        let cqe = cq.poll()?;
        if cqe.is_receive() {
            return Some((cqe.qpn().0, receives.complete(cqe)));
        }
        Some(self.complete(cqe))
    }

    /// Completes the request of a polled CQE, for example in [`CompletionQueue::drain`], on the
    /// queue of the CQE's QPN.
    #[inline(always)]
    pub fn complete(&mut self, cqe: Cqe) -> Dispatched {
        self.complete_as(cqe.qpn().0, cqe)
    }

    #[inline(always)]
    fn complete_as(&mut self, number: u32, cqe: Cqe) -> Dispatched {
        match self.get_mut(number) {
            Some(queue) => (number, queue.complete(cqe)),
            None => (number, Err(CompletionError::OtherQueue(cqe))),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use std::vec::Vec;

    use proptest::prelude::*;

    use super::Dispatcher;

    proptest! {
        #[test]
        fn dispatcher_matches_map_by_24_bit_number(
            steps in prop::collection::vec((any::<bool>(), 0u32..40), 1..300),
        ) {
            // Neighbours, both ends of a page, and both ends of all numbers.
            let number = |n: u32| (n % 5 * 0x3f_ffff + n / 5 * 0x3ff) & 0xff_ffff;
            let (mut table, mut expected) = (Dispatcher::new(), BTreeMap::new());
            for (turn, (insert, n)) in steps.into_iter().enumerate() {
                let number = number(n);
                if insert {
                    let before = table.insert(number, turn).unwrap();
                    prop_assert_eq!(before, expected.insert(number, turn));
                } else {
                    prop_assert_eq!(table.remove(number), expected.remove(&number));
                }
                prop_assert_eq!(table.len(), expected.len());
                let mut all: Vec<_> =
                    table.iter_mut().map(|(number, &mut queue)| (number, queue)).collect();
                all.sort_unstable();
                let those: Vec<_> =
                    expected.iter().map(|(&number, &queue)| (number, queue)).collect();
                prop_assert_eq!(all, those);
                for other in [number, number ^ 1, number ^ 0x1000, number | 1 << 24] {
                    prop_assert_eq!(table.get(other), expected.get(&other));
                    prop_assert_eq!(table.get_mut(other).copied(), expected.get(&other).copied());
                }
            }
        }
    }

    #[test]
    fn number_above_24_bits_is_rejected() {
        let mut table = Dispatcher::new();
        assert!(table.insert(1 << 24, ()).is_err());
        assert!(table.is_empty());
        assert_eq!(table.insert(0xff_ffff, ()), Ok(None));
        assert_eq!((table.remove(u32::MAX), table.remove(0xff_ffff)), (None, Some(())));
    }
}
