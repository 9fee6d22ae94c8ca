//! The management QPs of the kernel: QP 0 (subnet management) and QP 1 (general services) of each
//! port, which exchange unreliable datagrams.
//!
//! Source: InfiniBand specification, volume 1, 10.2.5 (Q_Keys), 13.5 (management datagrams).

use verbless_prm::{OptParamMask as Opt, ServiceType};

use super::super::packets::datagram;
use super::service::{Transport, one_by_one};
use crate::hca::qp_type::{Datagrams, QKey, QpType, Users};
use verbless_wire::Service;

/// The fixed Q_Key of QP 1.
const GENERAL_SERVICES_KEY: u32 = 0x8001_0000;

pub(super) static QP0: Transport = transport(
    ServiceType::QP0,
    Datagrams { number: Some(0), q_key: QKey::Any, groups: false, pkey_in_cqe: false },
);

pub(super) static QP1: Transport = transport(
    ServiceType::QP1,
    Datagrams {
        number: Some(1),
        q_key: QKey::Fixed(GENERAL_SERVICES_KEY),
        groups: false,
        pkey_in_cqe: true,
    },
);

const fn transport(st: ServiceType, datagrams: Datagrams) -> Transport {
    Transport {
        qp_type: QpType {
            st,
            users: Users::Kernel,
            access_opts: Opt::Q_KEY.0,
            service: Some(Service::Ud),
            connected: false,
            reliable: false,
            datagrams: Some(datagrams),
            any_domain: false,
            copies: false,
        },
        carry: None,
        turn: |pair, scratch| one_by_one(pair, scratch, datagram::send),
        take: datagram::take,
    }
}
