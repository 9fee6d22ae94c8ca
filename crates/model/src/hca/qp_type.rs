//! QP types: transport services, and special uses of one. Each has a module (`engine::transport`);
//! the engine passes the list of types to a function.

use std::fmt;

use verbless_prm::{HcaCap, ServiceType};

use verbless_wire as wire;

/// A QP type: its properties for commands and the data path.
pub(crate) struct QpType {
    /// The type's number in CREATE_QP.
    pub st: ServiceType,
    pub users: Users,
    /// The bits of `opt_param_mask` by which a transition changes a peer's access to the QP: RRE,
    /// RWE, RAE or Q_KEY.
    pub access_opts: u32,
    /// The service of its packets; `None`: it sends no packets.
    pub service: Option<wire::Service>,
    /// Whether it has a peer, set by INIT2RTR.
    pub connected: bool,
    /// Whether its requests are acknowledged.
    pub reliable: bool,
    /// Its datagram properties, if each of its requests has an address.
    pub datagrams: Option<Datagrams>,
    /// Whether its UMR requests may change keys of any PD.
    pub any_domain: bool,
    /// Whether its QPs may be enabled for memory copies (`mmo`), if the device supports them.
    pub copies: bool,
}

/// The users that may create a QP of a type.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Users {
    /// All users, if the device has this capability.
    Capability(fn(&HcaCap) -> bool),
    /// The kernel only: it handles management packets and keys of all users.
    Kernel,
}

/// How datagrams are addressed to a QP, and how CQEs report them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Datagrams {
    /// The number by which packets address the one QP of its port; `None`: its own number.
    pub number: Option<u32>,
    pub q_key: QKey,
    /// Whether it may join multicast groups.
    pub groups: bool,
    /// Whether CQEs have the packet's P_Key instead of immediate data.
    pub pkey_in_cqe: bool,
}

/// The Q_Key that a datagram must have.
#[derive(Debug, Clone, Copy)]
pub(crate) enum QKey {
    /// The Q_Key of the QP's context.
    Context,
    /// This Q_Key.
    Fixed(u32),
    /// Any Q_Key: another key is inside its packets.
    Any,
}

/// Finds the QP type of a number.
pub(crate) type QpTypes = fn(ServiceType) -> Option<&'static QpType>;

impl QpType {
    /// Whether each of its requests has an address.
    pub(crate) fn is_datagram(&self) -> bool {
        self.datagrams.is_some()
    }

    /// Whether its QPs may be enabled for memory copies on a device with these capabilities.
    pub(crate) fn offers_copies(&self, general: &HcaCap) -> bool {
        self.copies && general.dma_mmo_qp()
    }

    /// Whether a failed request stops only the send queue, until SQERR2RTS.
    pub(crate) fn stops_only_sending(&self) -> bool {
        self.service.is_some() && !self.reliable
    }
}

/// Each type has one static; its address identifies it.
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
