//! The data that a file keeps of each object of verbs.

use super::super::abi::object;
use super::super::client::Client;
use super::super::cmd::command;
use super::super::kernel::Kernel;
use super::super::mailbox::{NUMBER, inbox};
use super::super::pinned::Pinned;
use super::super::refused::refused;
use super::listener::{EndingListener, ListenerKind};
use nix::errno::Errno;
use verbless_prm::{DetachFromMcgIn, Opcode, ServiceType};

/// An object of verbs.
#[derive(Debug)]
pub(crate) enum Verbs {
    Mr(Mr),
    /// A memory window.
    Mw {
        destroy: Vec<u8>,
    },
    Cq(Cq),
    Qp(VerbsQp),
    Srq(Srq),
}

impl Verbs {
    pub(crate) fn is_queue_pair(&self) -> bool {
        matches!(self, Self::Qp(_))
    }

    pub(crate) fn kind(&self) -> u16 {
        match self {
            Self::Mr(_) => object::MR,
            Self::Mw { .. } => object::MW,
            Self::Cq(_) => object::CQ,
            Self::Qp(_) => object::QP,
            Self::Srq(_) => object::SRQ,
        }
    }

    /// The DevX command that creates such a queue, and the queue's number on the device.
    pub(crate) fn queue(&self) -> Option<(Opcode, u32)> {
        match self {
            Self::Cq(cq) => Some((Opcode::CREATE_CQ, cq.cqn)),
            Self::Qp(qp) => Some((Opcode::CREATE_QP, qp.qpn)),
            // Shared receive queues are RMPs since ISSI 1.
            Self::Srq(srq) => Some((Opcode::CREATE_RMP, srq.srqn)),
            Self::Mr(_) | Self::Mw { .. } => None,
        }
    }

    /// Destroys the object on the device; returns the receiver of its events. `client` destroys it;
    /// `None`: its file is closing. EAGAIN: the client's unread events of the object cannot be
    /// retracted now.
    pub(crate) fn destroy(
        &self,
        kernel: &Kernel,
        client: Option<&dyn Client>,
    ) -> Result<Option<EndingListener>, Errno> {
        let listeners = &kernel.listeners;
        let by = |destroy: &[u8]| kernel.exec(destroy, &mut [0; 16]);
        match self {
            Self::Mr(Mr { destroy, .. }) | Self::Mw { destroy } => by(destroy).map(|()| None),
            Self::Cq(cq) => listeners.destroy(ListenerKind::Cq, cq.cqn, client, || by(&cq.destroy)),
            Self::Qp(qp) => {
                if !qp.groups.is_empty() && client.is_some() {
                    let words = "the QP is in a multicast group: detach it first";
                    return Err(refused(Errno::EBUSY, words));
                }
                listeners.destroy(ListenerKind::Qp, qp.qpn, client, || {
                    qp.leave(kernel);
                    by(&qp.destroy)
                })
            }
            Self::Srq(srq) => {
                listeners.destroy(ListenerKind::Srq, srq.srqn, client, || by(&srq.destroy))
            }
        }
    }
}

/// A completion queue.
#[derive(Debug)]
pub(crate) struct Cq {
    pub cqn: u32,
    pub destroy: Vec<u8>,
    pub cqe_bytes: u32,
    pub real_time: bool,
    /// Whether the client reads timestamps.
    pub timestamps: bool,
    pub(super) padded: bool,
    pub(super) entries: u32,
    pub(super) pinned: Pinned,
}

/// A memory region.
#[derive(Debug)]
pub(crate) struct Mr {
    pub destroy: Vec<u8>,
    pub(super) key: u32,
    pub(super) range: RegionRange,
    pub(super) access_flags: u32,
    pub(super) _pinned: Pinned,
    /// Whether the memory was pinned for writing by the device.
    pub(super) writable: bool,
}

/// The memory of a region: its address in the client and under its key.
#[derive(Debug, Clone, Copy)]
pub(super) struct RegionRange {
    pub(super) start: u64,
    pub(super) length: u64,
    pub(super) virtual_address: u64,
}

/// A shared receive queue.
#[derive(Debug)]
pub(crate) struct Srq {
    pub srqn: u32,
    pub destroy: Vec<u8>,
    pub(super) uid: u16,
    pub(super) entries: u32,
    pub(super) sges: u32,
    pub(super) _pinned: Pinned,
}

/// Work requests per queue, and SGEs per work request.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct QpCapacity {
    pub(super) send_requests: u32,
    pub(super) receive_requests: u32,
    pub(super) send_sges: u32,
    pub(super) receive_sges: u32,
    pub(super) inline_bytes: u32,
}

/// A queue pair.
#[derive(Debug)]
pub(crate) struct VerbsQp {
    pub qpn: u32,
    pub uid: u16,
    pub destroy: Vec<u8>,
    /// RC, UC or UD.
    pub service: ServiceType,
    pub pdn: u32,
    pub cqns: [u32; 2],
    /// The state (`ib_qp_state`).
    pub state: u8,
    pub port: u8,
    /// `access` and `max_dest_rd_atomic` as last set: one MODIFY_QP may change only one of them.
    pub access: u32,
    pub max_dest_rd_atomic: u8,
    pub record: u64,
    pub has_receive_queue: bool,
    pub(super) capacity: QpCapacity,
    /// The capacities that QUERY_QP returns: those of the receive queue at creation; the library
    /// computes those of the send queue.
    pub(super) queried: QpCapacity,
    pub(super) signal_all: bool,
    /// Multicast groups that the queue pair joined.
    pub groups: Vec<([u8; 16], u16)>,
    pub(super) _pinned: Option<Pinned>,
}

impl VerbsQp {
    /// Leaves the multicast groups and stops the queue pair before it is destroyed.
    pub(crate) fn leave(&self, kernel: &Kernel) {
        for (gid, _) in &self.groups {
            let mut input = DetachFromMcgIn::new();
            input.set_uid(self.uid).set_qpn(self.qpn).set_multicast_gid(gid);
            let _ = command(&*kernel.function, &input);
        }
        if self.state != state::RESET {
            let mut input = inbox(Opcode::QP_2RST, 0, self.uid, 16);
            NUMBER.set(&mut input, self.qpn);
            let _ = kernel.exec(&input, &mut [0; 16]);
        }
    }
}

/// `ib_qp_state`.
pub(super) mod state {
    pub(crate) const RESET: u8 = 0;
    pub(crate) const INIT: u8 = 1;
    pub(crate) const RTR: u8 = 2;
    pub(crate) const RTS: u8 = 3;
    pub(crate) const SQD: u8 = 4;
    pub(crate) const SQE: u8 = 5;
    pub(crate) const ERR: u8 = 6;
}
