//! What a QP type is: a transport service, or a special use of one. Each is described in a module
//! of its own (`engine::transport`), and a function is made with the types that there are.

use std::fmt;

use verbless_prm::{HcaCap, ServiceType};

use crate::wire;

/// A QP type, as commands and the data path ask about it.
pub(crate) struct QpType {
    /// The number that CREATE_QP asks for it by.
    pub st: ServiceType,
    pub users: Users,
    /// The optional fields (bits of `opt_param_mask`) by which a transition changes what others may
    /// do to the QP.
    pub rights: u32,
    /// The service that its packets name; `None`: it sends none.
    pub service: Option<wire::Service>,
    /// It has a peer, which INIT2RTR names.
    pub connected: bool,
    /// What it sends is acknowledged.
    pub reliable: bool,
    /// What datagrams mean to it, if each of its requests says where it goes.
    pub datagrams: Option<Datagrams>,
    /// Its UMR requests may change keys of any domain; its own PD is not looked at.
    pub any_domain: bool,
    /// Its QPs may be set up for copies of memory (`mmo`), where the device has them.
    pub copies: bool,
}

/// Who may have a QP of a type.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Users {
    /// Everybody, if the device has this capability.
    Capability(fn(&HcaCap) -> bool),
    /// The kernel: management packets and other people's keys are its business.
    Kernel,
}

/// How datagrams find a QP, and what its CQEs say of them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Datagrams {
    /// The number by which packets name the one QP of its port; `None`: its own number.
    pub number: Option<u32>,
    pub q_key: QKey,
    /// It may join multicast groups.
    pub groups: bool,
    /// CQEs have the packet's P_Key where immediate data goes.
    pub pkey_in_cqe: bool,
}

/// The Q_Key that a datagram must have.
#[derive(Debug, Clone, Copy)]
pub(crate) enum QKey {
    /// That of the QP's context.
    Context,
    /// Always the same.
    Fixed(u32),
    /// Its packets have another key inside.
    Any,
}

/// Finds the QP type of a number.
pub(crate) type QpTypes = fn(ServiceType) -> Option<&'static QpType>;

impl QpType {
    /// Each request says where it goes.
    pub(crate) fn is_datagram(&self) -> bool {
        self.datagrams.is_some()
    }

    /// Its QPs may be set up for copies of memory, on a device of these capabilities.
    pub(crate) fn offers_copies(&self, general: &HcaCap) -> bool {
        self.copies && general.dma_mmo_qp()
    }

    /// A request that fails stops the send queue alone, until SQERR2RTS.
    pub(crate) fn goes_on_receiving(&self) -> bool {
        self.service.is_some() && !self.reliable
    }
}

/// Each type is described once, and known by where.
impl PartialEq for QpType {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self, other)
    }
}

impl fmt::Debug for QpType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.st.fmt(f)
    }
}
