//! The context of a queue's turn: the rest of its function, borrowed for the turn. Also the error
//! for a queue that must exist and does not.

use std::fmt;

use super::counters::CounterSet;
use super::cq::CompletionQueue;
use super::events::Events;
use super::function::FunctionEngine;
use super::keys::{Keys, Neighbours, NoNeighbours};
use super::packets::path::Addresses;
use super::programs::Programs;
use super::state::EngineState;
use crate::numbered::Numbered;
use verbless_prm::ServiceType;

use crate::functions::OtherFunctions;
use crate::hca::budget::Budget;
use crate::hca::capability::Capabilities;
use crate::hca::objects::{Alias, Cq, Limits, Mkey, Objects, QCounter, QpObject, Rq, Sq, Srq, Tis};
use crate::memory::{HostMemory, Space, Spaces};

/// Everything of a function except its QPs, SQs and RQs.
pub(super) struct Context<'a> {
    pub cqs: &'a mut Numbered<u32, Cq>,
    pub mkeys: &'a mut Numbered<u32, Mkey>,
    pub aliases: &'a Numbered<u32, Alias>,
    /// The other locked functions: mkeys of this function may refer to theirs.
    pub others: OtherFunctions<'a>,
    pub srqs: &'a mut Numbered<u32, Srq>,
    pub counters: &'a mut Numbered<u8, QCounter>,
    pub tises: &'a Numbered<u32, Tis>,
    pub events: Events<'a>,
    pub limits: &'a Limits,
    pub caps: &'a Capabilities,
    pub budget: &'a Budget,
    /// The function's own memory: where its rings are.
    pub memory: &'a dyn HostMemory,
    /// The memory of every function, where payload is.
    pub spaces: &'a Spaces,
    /// Which of `spaces` is the function's own.
    pub space: Space,
    pub addresses: Addresses<'a>,
    pub state: &'a mut EngineState,
    /// The engine's time in nanoseconds.
    pub now: u64,
}

/// A standalone SQ, and the context of its turn.
pub(super) struct StandaloneSq<'a> {
    pub sqn: u32,
    pub sq: &'a mut Sq,
    pub context: Context<'a>,
}

/// A standalone RQ, and the context of its turn.
pub(super) struct StandaloneRq<'a> {
    pub rqn: u32,
    pub rq: &'a mut Rq,
    pub context: Context<'a>,
}

/// An object that another object or the engine refers to, and that does not exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Missing {
    Qp(u32),
    /// The send queue of this QP.
    SendQueue(u32),
    Sq(u32),
    Rq(u32),
    /// The ring of an RQ that has no pool.
    ReceiveRing(u32),
    Cq(u32),
    Srq(u32),
    /// The QP is of a type that cannot send messages.
    Transport(u32, ServiceType),
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Qp(number) => write!(f, "there is no QP {number:#x}"),
            Self::SendQueue(number) => write!(f, "QP {number:#x} has no send queue"),
            Self::Sq(number) => write!(f, "there is no SQ {number:#x}"),
            Self::Rq(number) => write!(f, "there is no RQ {number:#x}"),
            Self::ReceiveRing(number) => {
                write!(f, "RQ {number:#x} has neither receive WQEs of its own nor a pool")
            }
            Self::Cq(number) => write!(f, "there is no CQ {number:#x}"),
            Self::Srq(number) => write!(f, "there is no SRQ or RMP {number:#x}"),
            Self::Transport(number, st) => {
                write!(f, "QP {number:#x} is of type {st:?}, which has no transport")
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
        Keys {
            mkeys: self.mkeys,
            aliases: self.aliases,
            limits: self.limits,
            space: self.space,
            neighbours: &self.others,
        }
    }

    /// The counters of a queue that names this set.
    pub(super) fn counters(&mut self, number: u8) -> CounterSet<'_> {
        CounterSet { number, sets: self.counters }
    }

    /// The device's free-running clock, as CQEs show it.
    pub(super) fn ticks(&self) -> u64 {
        self.limits.ticks(self.now)
    }
}

impl Neighbours for OtherFunctions<'_> {
    fn keys(&self, id: usize) -> Option<Keys<'_>> {
        let FunctionEngine { hca, space, .. } = self.get(id)?;
        let Objects { mkeys, aliases, limits, .. } = &hca.objects;
        // No key reaches the memory of a dead function.
        let alive = !hca.fatal;
        alive.then_some(Keys { mkeys, aliases, limits, space: *space, neighbours: &NO_NEIGHBOURS })
    }
}

/// A key of another function refers to no third function.
static NO_NEIGHBOURS: NoNeighbours = NoNeighbours;

/// QPs, SQs, RQs, and the context of their turns.
pub(super) struct Parts<'a> {
    pub qps: &'a mut Numbered<u32, QpObject>,
    sqs: &'a mut Numbered<u32, Sq>,
    rqs: &'a mut Numbered<u32, Rq>,
    pub context: Context<'a>,
}

impl FunctionEngine {
    /// Borrows the parts of a function.
    #[inline(always)]
    pub(super) fn parts<'a>(&'a mut self, now: u64, others: OtherFunctions<'a>) -> Parts<'a> {
        let Self { hca, engine, space, spaces } = self;
        let memory = &*hca.memory;
        let addresses =
            Addresses { link: hca.profile.link(), ports: &hca.ports, roce: &hca.roce_addresses };
        let objects = &mut hca.objects;
        let events = Events {
            eqs: &mut objects.eqs,
            raised: &mut hca.raised,
            memory,
            programs: Programs {
                eqs: &mut objects.dpa_eqs,
                devices: &mut objects.emulated_devices,
                dpa: &hca.dpa,
                reaching: &hca.reaching_dpas,
            },
            closed: hca.closed,
        };
        let context = Context {
            cqs: &mut objects.cqs,
            mkeys: &mut objects.mkeys,
            aliases: &objects.aliases,
            others,
            srqs: &mut objects.srqs,
            counters: &mut objects.counters,
            tises: &objects.tises,
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
        let Objects { qps, sqs, rqs, .. } = objects;
        Parts { qps, sqs, rqs, context }
    }

    /// The context of a function's queues at this time.
    pub(super) fn context(&mut self, now: u64) -> Context<'_> {
        self.parts(now, OtherFunctions::default()).context
    }

    /// The context of a function's queues at this time, beside the other locked functions.
    pub(super) fn context_among<'a>(
        &'a mut self,
        now: u64,
        others: OtherFunctions<'a>,
    ) -> Context<'a> {
        self.parts(now, others).context
    }

    /// Borrows an SQ for work that needs no key of another function.
    pub(super) fn sq(&mut self, sqn: u32, now: u64) -> Result<StandaloneSq<'_>, Missing> {
        self.sq_among(sqn, now, OtherFunctions::default())
    }

    /// Borrows an RQ for work that needs no key of another function.
    pub(super) fn rq(&mut self, rqn: u32, now: u64) -> Result<StandaloneRq<'_>, Missing> {
        self.rq_among(rqn, now, OtherFunctions::default())
    }

    /// Borrows an RQ.
    pub(super) fn rq_among<'a>(
        &'a mut self,
        rqn: u32,
        now: u64,
        others: OtherFunctions<'a>,
    ) -> Result<StandaloneRq<'a>, Missing> {
        let Parts { rqs, context, .. } = self.parts(now, others);
        let rq = rqs.get_mut(&rqn).ok_or(Missing::Rq(rqn))?;
        Ok(StandaloneRq { rqn, rq, context })
    }

    /// Borrows an SQ.
    pub(super) fn sq_among<'a>(
        &'a mut self,
        sqn: u32,
        now: u64,
        others: OtherFunctions<'a>,
    ) -> Result<StandaloneSq<'a>, Missing> {
        let Parts { sqs, context, .. } = self.parts(now, others);
        let sq = sqs.get_mut(&sqn).ok_or(Missing::Sq(sqn))?;
        Ok(StandaloneSq { sqn, sq, context })
    }

    /// The event queues.
    pub(super) fn events(&mut self) -> Events<'_> {
        let Self { hca, .. } = self;
        Events {
            eqs: &mut hca.objects.eqs,
            raised: &mut hca.raised,
            memory: &*hca.memory,
            programs: Programs {
                eqs: &mut hca.objects.dpa_eqs,
                devices: &mut hca.objects.emulated_devices,
                dpa: &hca.dpa,
                reaching: &hca.reaching_dpas,
            },
            closed: hca.closed,
        }
    }
}
