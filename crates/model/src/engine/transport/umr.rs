//! The kernel's QP for UMR requests, which may change keys of any domain and sends nothing.

use verbless_prm::ServiceType;
use verbless_prm::hot::cqe_syndrome;

use super::super::completion;
use super::service::{Transport, one_by_one};
use crate::hca::qp_type::{QpType, Users};

pub(super) static REG_UMR: Transport = Transport {
    qp_type: QpType {
        st: ServiceType::REG_UMR,
        users: Users::Kernel,
        access_opts: 0,
        service: None,
        connected: false,
        reliable: false,
        datagrams: None,
        any_domain: true,
        copies: false,
    },
    carry: None,
    turn: |pair, scratch| {
        // A UMR is executed where the request begins; nothing is left to send.
        one_by_one(pair, scratch, |pair, posted, _| {
            completion::finish(pair, posted, Err(cqe_syndrome::LOCAL_QP_OPERATION))
        })
    },
    // No packet names this QP: it has no service.
    take: |_, _, _, _| {},
};
