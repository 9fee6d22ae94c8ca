//! Operations on a device, in terms of verbs.

use verbless_prm::{CqeSize, ServiceType};

const RC: ServiceType = ServiceType::RC;
const UC: ServiceType = ServiceType::UC;
const UD: ServiceType = ServiceType::UD;

/// A case: the object that it makes, with its attributes.
#[derive(Debug, Clone, PartialEq)]
pub enum Case {
    /// Opens the device a second time.
    Open,
    /// A completion queue.
    Cq(Cq),
    /// A queue pair with two completion queues, and its transitions.
    Qp(QpCase),
    /// A memory region.
    Mr(Mr),
    /// A shared receive queue.
    Srq(Srq),
}

/// Attributes of `ibv_create_cq` and `mlx5dv_create_cq`, and of `ibv_modify_cq`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Cq {
    /// The minimum number of entries.
    pub cqe: u32,
    /// Size of an entry.
    pub cqe_size: CqeSize,
    /// `IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN`.
    pub overrun: bool,
    /// Completions and microseconds before an event.
    pub moderation: Option<(u16, u16)>,
}

/// Attributes of `ibv_create_qp`, and of the transitions.
#[derive(Debug, Clone, PartialEq)]
pub struct QpCase {
    /// RC, UC or UD.
    pub service: ServiceType,
    /// `max_send_wr`.
    pub sends: u32,
    /// `max_recv_wr`.
    pub receives: u32,
    /// `max_send_sge`.
    pub send_sges: u32,
    /// `max_recv_sge`.
    pub receive_sges: u32,
    /// `max_inline_data`.
    pub inline: u32,
    /// `sq_sig_all`.
    pub signal_all: bool,
    /// Receives come from an SRQ of 64.
    pub shared: bool,
    /// One completion queue takes both sides' completions.
    pub one_cq: bool,
    /// The transitions.
    pub steps: Vec<Step>,
}

/// Access rights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Access {
    /// `IBV_ACCESS_LOCAL_WRITE`.
    pub local_write: bool,
    /// `IBV_ACCESS_REMOTE_WRITE`.
    pub remote_write: bool,
    /// `IBV_ACCESS_REMOTE_READ`.
    pub remote_read: bool,
    /// `IBV_ACCESS_REMOTE_ATOMIC`.
    pub remote_atomic: bool,
    /// `IBV_ACCESS_RELAXED_ORDERING`.
    pub relaxed: bool,
}

impl Access {
    /// Local reads only.
    pub const NONE: Self = Self {
        local_write: false,
        remote_write: false,
        remote_read: false,
        remote_atomic: false,
        relaxed: false,
    };
    /// Local writes.
    pub const LOCAL: Self = Self { local_write: true, ..Self::NONE };
    /// All rights but relaxed ordering.
    pub const ALL: Self =
        Self { remote_write: true, remote_read: true, remote_atomic: true, ..Self::LOCAL };

    /// The rights as verbs encode them.
    #[must_use]
    pub fn bits(self) -> u32 {
        u32::from(self.local_write)
            | u32::from(self.remote_write) << 1
            | u32::from(self.remote_read) << 2
            | u32::from(self.remote_atomic) << 3
            | u32::from(self.relaxed) << 20
    }
}

/// A path over an InfiniBand port.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Route {
    /// Destination LID.
    pub dlid: u16,
    /// Service level.
    pub sl: u8,
    /// Source path bits.
    pub path_bits: u8,
    /// Global route: destination, flow label, source index, hop limit, traffic class.
    pub global: Option<([u8; 16], u32, u8, u8, u8)>,
}

/// A transition with its attributes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Step {
    /// RESET to INIT.
    Init {
        /// Index of the partition key.
        pkey_index: u16,
        /// Rights of the peer.
        access: Access,
    },
    /// INIT to INIT: the rights.
    Again {
        /// Rights of the peer.
        access: Access,
    },
    /// INIT to RTR.
    Rtr {
        /// Path MTU as verbs encode it, 1 to 5.
        mtu: u8,
        /// The peer's QP number.
        qpn: u32,
        /// `rq_psn`.
        psn: u32,
        /// `max_dest_rd_atomic`.
        reads: u8,
        /// `min_rnr_timer`.
        rnr_timer: u8,
        /// The path.
        route: Route,
    },
    /// RTR to RTS.
    Rts {
        /// `sq_psn`.
        psn: u32,
        /// `timeout`.
        timeout: u8,
        /// `retry_cnt`.
        retries: u8,
        /// `rnr_retry`.
        rnr_retries: u8,
        /// `max_rd_atomic`.
        reads: u8,
    },
    /// RTS to RTS: the RNR timer and the rights.
    Change {
        /// `min_rnr_timer`.
        rnr_timer: u8,
        /// Rights of the peer.
        access: Access,
    },
    /// To ERR.
    Error,
    /// To RESET.
    Reset,
}

/// Attributes of `ibv_reg_mr`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Mr {
    /// Offset in its first page.
    pub offset: usize,
    /// Length in bytes.
    pub length: usize,
    /// Access rights.
    pub access: Access,
}

/// Attributes of `ibv_create_srq` and `ibv_modify_srq`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Srq {
    /// `max_wr`.
    pub receives: u32,
    /// `max_sge`.
    pub sges: u32,
    /// `srq_limit`.
    pub limit: Option<u16>,
}

const CQ: Cq = Cq { cqe: 100, cqe_size: CqeSize::BYTES_64, overrun: false, moderation: None };

const NEAR: Route = Route { dlid: 1, sl: 0, path_bits: 0, global: None };

const FAR: Route = Route {
    dlid: 0x31,
    sl: 5,
    path_bits: 0,
    global: Some((
        [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0x02, 0x11, 0x22, 0xff, 0xfe, 0x33, 0x44, 0x55],
        0x5_4321,
        0,
        63,
        0xa8,
    )),
};

const TO_INIT: Step = Step::Init { pkey_index: 0, access: Access::ALL };
const TO_RTR: Step =
    Step::Rtr { mtu: 3, qpn: 0x123, psn: 0x45_6789, reads: 16, rnr_timer: 12, route: NEAR };
const TO_RTS: Step =
    Step::Rts { psn: 0x98_7654, timeout: 14, retries: 6, rnr_retries: 5, reads: 8 };

fn qp(service: ServiceType) -> QpCase {
    QpCase {
        service,
        sends: 16,
        receives: 16,
        send_sges: 1,
        receive_sges: 1,
        inline: 0,
        signal_all: false,
        shared: false,
        one_cq: false,
        steps: vec![],
    }
}

/// Every case with its name, in the order in which they run.
#[must_use]
pub fn cases() -> Vec<(&'static str, Case)> {
    let rights = |remote_write, remote_read, remote_atomic| Access {
        remote_write,
        remote_read,
        remote_atomic,
        ..Access::LOCAL
    };
    let init =
        |access| Case::Qp(QpCase { steps: vec![Step::Init { pkey_index: 0, access }], ..qp(RC) });
    let mr = |offset, length, access| Case::Mr(Mr { offset, length, access });
    vec![
        ("open", Case::Open),
        ("cq 1", Case::Cq(Cq { cqe: 1, ..CQ })),
        ("cq 100", Case::Cq(CQ)),
        ("cq 255", Case::Cq(Cq { cqe: 255, ..CQ })),
        ("cq 256", Case::Cq(Cq { cqe: 256, ..CQ })),
        ("cq 4000", Case::Cq(Cq { cqe: 4000, ..CQ })),
        ("cq wide", Case::Cq(Cq { cqe_size: CqeSize::BYTES_128, ..CQ })),
        ("cq overrun", Case::Cq(Cq { overrun: true, ..CQ })),
        ("cq moderated", Case::Cq(Cq { moderation: Some((17, 40)), ..CQ })),
        ("rc", Case::Qp(QpCase { steps: vec![TO_INIT, TO_RTR, TO_RTS], ..qp(RC) })),
        ("rc one cq", Case::Qp(QpCase { one_cq: true, ..qp(RC) })),
        ("rc one of each", Case::Qp(QpCase { sends: 1, receives: 1, ..qp(RC) })),
        (
            "rc 100 of 4",
            Case::Qp(QpCase { sends: 100, receives: 100, send_sges: 4, receive_sges: 4, ..qp(RC) }),
        ),
        (
            "rc 1000 of 3",
            Case::Qp(QpCase {
                sends: 1000,
                receives: 1000,
                send_sges: 3,
                receive_sges: 3,
                ..qp(RC)
            }),
        ),
        ("rc sends only", Case::Qp(QpCase { receives: 0, receive_sges: 0, ..qp(RC) })),
        ("rc receives only", Case::Qp(QpCase { sends: 0, send_sges: 0, ..qp(RC) })),
        ("rc inline 64", Case::Qp(QpCase { inline: 64, ..qp(RC) })),
        ("rc inline 400", Case::Qp(QpCase { inline: 400, ..qp(RC) })),
        ("rc signal all", Case::Qp(QpCase { signal_all: true, ..qp(RC) })),
        ("rc without rights", init(Access::NONE)),
        ("rc for writes", init(rights(true, false, false))),
        ("rc for reads", init(rights(false, true, false))),
        ("rc for atomics", init(rights(false, false, true))),
        (
            "rc far",
            Case::Qp(QpCase {
                steps: vec![
                    TO_INIT,
                    Step::Rtr {
                        mtu: 5,
                        qpn: 0xff_fffe,
                        psn: 1,
                        reads: 1,
                        rnr_timer: 0,
                        route: FAR,
                    },
                    Step::Rts { psn: 0, timeout: 0, retries: 0, rnr_retries: 7, reads: 1 },
                ],
                ..qp(RC)
            }),
        ),
        (
            "rc without reads",
            Case::Qp(QpCase {
                steps: vec![
                    TO_INIT,
                    Step::Rtr { mtu: 1, qpn: 7, psn: 0, reads: 0, rnr_timer: 31, route: NEAR },
                    Step::Rts { psn: 0xff_ffff, timeout: 31, retries: 7, rnr_retries: 0, reads: 0 },
                ],
                ..qp(RC)
            }),
        ),
        (
            "rc again",
            Case::Qp(QpCase {
                steps: vec![TO_INIT, Step::Again { access: rights(true, false, false) }],
                ..qp(RC)
            }),
        ),
        (
            "rc changed",
            Case::Qp(QpCase {
                steps: vec![
                    TO_INIT,
                    TO_RTR,
                    TO_RTS,
                    Step::Change { rnr_timer: 25, access: rights(false, true, false) },
                    Step::Error,
                    Step::Reset,
                ],
                ..qp(RC)
            }),
        ),
        ("rc shared", Case::Qp(QpCase { shared: true, receives: 0, ..qp(RC) })),
        (
            "uc",
            Case::Qp(QpCase {
                inline: 64,
                steps: vec![
                    Step::Init { pkey_index: 0, access: rights(true, false, false) },
                    TO_RTR,
                    TO_RTS,
                ],
                ..qp(UC)
            }),
        ),
        ("uc shared", Case::Qp(QpCase { shared: true, receives: 0, ..qp(UC) })),
        ("ud", Case::Qp(QpCase { inline: 64, steps: vec![TO_INIT, TO_RTR, TO_RTS], ..qp(UD) })),
        ("srq", Case::Srq(Srq { receives: 100, sges: 2, limit: None })),
        ("srq of one", Case::Srq(Srq { receives: 1, sges: 1, limit: None })),
        ("srq with limit", Case::Srq(Srq { receives: 255, sges: 1, limit: Some(9) })),
        ("mr byte", mr(0, 1, Access::ALL)),
        ("mr page", mr(0, 4096, Access::ALL)),
        ("mr pages", mr(0x123, 3 * 4096, Access::ALL)),
        ("mr large", mr(0, 4 << 20, Access::ALL)),
        ("mr without rights", mr(0, 8192, Access::NONE)),
        ("mr local", mr(0, 8192, Access::LOCAL)),
        ("mr for writes", mr(0, 8192, rights(true, false, false))),
        ("mr for reads", mr(0, 8192, rights(false, true, false))),
        ("mr for atomics", mr(0, 8192, rights(false, false, true))),
        ("mr relaxed", mr(0, 8192, Access { relaxed: true, ..Access::ALL })),
    ]
}

/// `Q_Key` of the datagram cases.
pub const QKEY: u32 = 0x1122_3344;

#[cfg(test)]
mod tests {
    use verbless_queue::service::{Eth, SERVICES, Service};

    use super::*;

    #[test]
    fn every_qp_service_is_recorded_to_rts() {
        for service in SERVICES.into_iter().filter(|it| *it != Eth::INFO) {
            let reaches_rts = |case: &Case| {
                matches!(case, Case::Qp(case) if case.service == service.service
                    && case.steps.iter().any(|step| matches!(step, Step::Rts { .. })))
            };
            assert!(cases().iter().any(|(_, case)| reaches_rts(case)), "{} is not", service.name);
        }
    }
}
