//! The list of a function's objects, as in a kernel's resource tracking.

use verbless_prm::ServiceType;

use super::objects::{QpState, Uid};
use super::registry::{ObjectKind, Objects};

/// The objects of a device that programs use, each kind by number.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Resources {
    /// User contexts, by uid.
    pub contexts: Vec<u16>,
    /// Protection domains.
    pub pds: Vec<PdResource>,
    /// Completion queues.
    pub cqs: Vec<CqResource>,
    /// Queue pairs.
    pub qps: Vec<QpResource>,
    /// Memory keys, without the null key.
    pub mkeys: Vec<MkeyResource>,
    /// Shared receive queues.
    pub srqs: Vec<SrqResource>,
}

/// A protection domain.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PdResource {
    /// Its number.
    pub pdn: u32,
    /// The uid of its owner; 0 is the kernel.
    pub uid: u16,
    /// Number of objects that use it.
    pub users: u32,
}

/// A completion queue.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CqResource {
    /// Its number.
    pub cqn: u32,
    /// The uid of its owner; 0 is the kernel.
    pub uid: u16,
    /// Number of CQEs that its ring holds.
    pub entries: u32,
    /// Number of queues that complete to it.
    pub users: u32,
}

/// A queue pair.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct QpResource {
    /// Its number.
    pub qpn: u32,
    /// The number of its protection domain.
    pub pdn: u32,
    /// Its type, as in CREATE_QP.
    pub service: ServiceType,
    /// Its state, in verbs' numbers.
    pub state: u8,
    /// Its port, from 1; 0 before INIT.
    pub port: u8,
    /// The number of its peer, if it has one.
    pub remote_qpn: Option<u32>,
    /// The PSN of the next request that it sends.
    pub sq_psn: u32,
    /// The PSN that it expects.
    pub rq_psn: u32,
    /// The number of its shared receive queue.
    pub srqn: Option<u32>,
}

/// A memory key.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MkeyResource {
    /// Its index: the key without the variant.
    pub index: u32,
    /// The number of its protection domain.
    pub pdn: u32,
    /// Its length in bytes; `None`: all of the address space.
    pub length: Option<u64>,
}

/// A shared receive queue.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SrqResource {
    /// Its number.
    pub srqn: u32,
    /// The number of its protection domain.
    pub pdn: u32,
    /// The CQ of an XRC SRQ.
    pub cqn: Option<u32>,
}

impl QpState {
    /// The state's number in verbs, which swap the two states of a halted send queue.
    fn in_verbs(self) -> u8 {
        match self {
            Self::SqDrained => 4,
            Self::SqError => 5,
            other => other as u8,
        }
    }
}

impl Objects {
    /// Lists the objects.
    pub(crate) fn resources(&self) -> Resources {
        let uses = |kind, number| self.uses.count(kind, number);
        let pd = |(&pdn, &uid): (&u32, &Uid)| {
            let users = uses(ObjectKind::Pd, pdn);
            PdResource { pdn, uid, users }
        };
        Resources {
            contexts: self.uctxs.keys().copied().collect(),
            pds: self.pds.iter().map(pd).collect(),
            cqs: self
                .cqs
                .iter()
                .map(|(&cqn, cq)| CqResource {
                    cqn,
                    uid: cq.uid,
                    entries: 1 << cq.log_size,
                    users: uses(ObjectKind::Cq, cqn),
                })
                .collect(),
            qps: self
                .qps
                .iter()
                .map(|(&qpn, qp)| QpResource {
                    qpn,
                    pdn: qp.pd,
                    service: qp.qp_type.st,
                    state: qp.state.in_verbs(),
                    port: qp.port,
                    remote_qpn: qp.qp_type.connected.then_some(qp.remote_qpn),
                    sq_psn: qp.requester.psn,
                    rq_psn: qp.responder.psn,
                    srqn: qp.srq,
                })
                .collect(),
            mkeys: self
                .mkeys
                .iter()
                .filter(|(_, mkey)| !mkey.is_null())
                .map(|(&index, mkey)| MkeyResource { index, pdn: mkey.pd, length: mkey.length })
                .collect(),
            srqs: self
                .srqs
                .iter()
                .map(|(&srqn, srq)| SrqResource { srqn, pdn: srq.pd, cqn: srq.xrcd.and(srq.cqn) })
                .collect(),
        }
    }
}
