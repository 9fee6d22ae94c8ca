//! Unreliable datagram: messages of one packet, each to the address in its WQE.

use verbless_prm::{HcaCap, OptParamMask as Opt, ServiceType};

use super::super::packets::datagram;
use super::service::{Transport, one_by_one};
use crate::hca::qp_type::{Datagrams, QKey, QpType, Users};
use verbless_wire::Service;

pub(super) static UD: Transport = Transport {
    qp_type: QpType {
        st: ServiceType::UD,
        users: Users::Capability(HcaCap::ud),
        access_opts: Opt::Q_KEY.0,
        service: Some(Service::Ud),
        connected: false,
        reliable: false,
        datagrams: Some(Datagrams {
            number: None,
            q_key: QKey::Context,
            groups: true,
            pkey_in_cqe: false,
        }),
        any_domain: false,
        copies: false,
    },
    carry: None,
    turn: |pair, scratch| one_by_one(pair, scratch, datagram::send),
    take: datagram::take,
};
