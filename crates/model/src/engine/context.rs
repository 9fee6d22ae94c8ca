//! What a queue works with in its turn: the rest of its function, borrowed for as long as the turn
//! lasts; and the error when a queue that must exist does not.

use std::collections::BTreeMap;
use std::fmt;

use super::cq::CompletionQueue;
use super::events::Events;
use super::function::Function;
use super::keys::Keys;
use super::packets::path::Addresses;
use super::state::State;
use verbless_prm::ServiceType;

use crate::hca::budget::Budget;
use crate::hca::capability::Capabilities;
use crate::hca::objects::{Cq, Limits, Mkey, QCounter, QpObject, Sq, Srq};
use crate::memory::{HostMemory, Space, Spaces};

/// Everything of a function but its QPs and SQs.
pub(super) struct Context<'a> {
    pub cqs: &'a mut BTreeMap<u32, Cq>,
    pub mkeys: &'a mut BTreeMap<u32, Mkey>,
    pub srqs: &'a mut BTreeMap<u32, Srq>,
    pub counters: &'a mut BTreeMap<u8, QCounter>,
    pub events: Events<'a>,
    pub limits: &'a Limits,
    pub caps: &'a Capabilities,
    pub budget: &'a Budget,
    /// The function's own memory: where its rings are.
    pub memory: &'a dyn HostMemory,
    /// Where payload is: the memory of every function.
    pub spaces: &'a Spaces,
    /// Which of them is the function's own.
    pub space: Space,
    pub addresses: Addresses<'a>,
    pub state: &'a mut State,
    /// The engine's time in nanoseconds.
    pub now: u64,
}

/// A QP at work: sending (`requester`), receiving (`responder`), failing (`failure`).
pub(super) struct QueuePair<'a> {
    pub qpn: u32,
    pub qp: &'a mut QpObject,
    pub context: Context<'a>,
}

/// An SQ at work.
pub(super) struct StandaloneSq<'a> {
    pub sqn: u32,
    pub sq: &'a mut Sq,
    pub context: Context<'a>,
}

/// An object that does not exist, though another or the engine names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Missing {
    Qp(u32),
    /// The send queue of this QP.
    SendQueue(u32),
    Sq(u32),
    Cq(u32),
    Srq(u32),
    /// This QP is of a type whose messages have no way.
    Transport(u32, ServiceType),
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Qp(number) => write!(f, "there is no QP {number:#x}"),
            Self::SendQueue(number) => write!(f, "QP {number:#x} has no send queue"),
            Self::Sq(number) => write!(f, "there is no SQ {number:#x}"),
            Self::Cq(number) => write!(f, "there is no CQ {number:#x}"),
            Self::Srq(number) => write!(f, "there is no SRQ or RMP {number:#x}"),
            Self::Transport(number, st) => {
                write!(f, "QP {number:#x} is of type {st:?}, which no transport is for")
            }
        }
    }
}

impl Context<'_> {
    pub(super) fn cq(&mut self, cqn: u32) -> Result<CompletionQueue<'_>, Missing> {
        let cq = self.cqs.get_mut(&cqn).ok_or(Missing::Cq(cqn))?;
        let Self { state, memory, now, .. } = self;
        Ok(CompletionQueue {
            cqn,
            cq,
            events: self.events.reborrow(),
            state,
            memory: *memory,
            now: *now,
        })
    }

    pub(super) fn keys(&self) -> Keys<'_> {
        Keys { mkeys: self.mkeys, limits: self.limits, space: self.space }
    }

    /// The device's free-running clock, as CQEs show it.
    pub(super) fn ticks(&self) -> u64 {
        self.limits.ticks(self.now)
    }
}

/// QPs, SQs, and what they work with.
struct Parts<'a> {
    qps: &'a mut BTreeMap<u32, QpObject>,
    sqs: &'a mut BTreeMap<u32, Sq>,
    context: Context<'a>,
}

impl Function {
    fn parts(&mut self, now: u64) -> Parts<'_> {
        let Self { hca, engine, space, spaces } = self;
        let memory = &*hca.memory;
        let addresses =
            Addresses { link: hca.profile.link(), ports: &hca.ports, roce: &hca.roce_addresses };
        let objects = &mut hca.objects;
        let events = Events { eqs: &mut objects.eqs, raised: &mut hca.raised, memory };
        let context = Context {
            cqs: &mut objects.cqs,
            mkeys: &mut objects.mkeys,
            srqs: &mut objects.srqs,
            counters: &mut objects.counters,
            events,
            limits: &objects.limits,
            caps: &hca.caps,
            budget: &hca.budget,
            memory,
            spaces,
            space: *space,
            addresses,
            state: engine,
            now,
        };
        Parts { qps: &mut objects.qps, sqs: &mut objects.sqs, context }
    }

    /// What is there beside QPs and SQs, at a time.
    pub(super) fn context(&mut self, now: u64) -> Context<'_> {
        self.parts(now).context
    }

    /// A QP, to do something with it.
    pub(super) fn pair(&mut self, qpn: u32, now: u64) -> Result<QueuePair<'_>, Missing> {
        let Parts { qps, context, .. } = self.parts(now);
        let qp = qps.get_mut(&qpn).ok_or(Missing::Qp(qpn))?;
        Ok(QueuePair { qpn, qp, context })
    }

    /// An SQ, to do something with it.
    pub(super) fn sq(&mut self, sqn: u32, now: u64) -> Result<StandaloneSq<'_>, Missing> {
        let Parts { sqs, context, .. } = self.parts(now);
        let sq = sqs.get_mut(&sqn).ok_or(Missing::Sq(sqn))?;
        Ok(StandaloneSq { sqn, sq, context })
    }

    /// The event queues.
    pub(super) fn events(&mut self) -> Events<'_> {
        let Self { hca, .. } = self;
        Events { eqs: &mut hca.objects.eqs, raised: &mut hca.raised, memory: &*hca.memory }
    }
}
