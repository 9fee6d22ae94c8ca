//! NETLINK_RDMA's view of the model's objects (`rdma res`, `rdma statistic`): their counts, one
//! object, all objects of a kind.
//!
//! Formats are those of Linux 6.12, `fill_res_*_entry` of `drivers/infiniband/core/nldev.c`. Keys
//! are omitted: the kernel shows them to CAP_NET_ADMIN only.

use std::collections::BTreeMap;

use nix::errno::Errno;
use verbless_model::{CqResource, MkeyResource, PdResource, QpResource, Resources, SrqResource};
use verbless_prm::ServiceType;

use super::super::sysfs::ShownDevice;
use super::{Header, MULTI, NESTED, NetlinkMessage, attribute, find, handle, number};

/// Bytes of a message in a dump: `rdma` reads into a buffer of one page.
const MAX_MESSAGE: usize = 4096 - 256;
/// Messages in a dump, bounded by a socket's receive buffer.
const MAX_TABLES: usize = 32;
/// An upper bound for the objects in a dump, of any kind.
const MAX_OBJECTS: usize = MAX_TABLES * MAX_MESSAGE / 16;
/// QPs listed per SRQ.
const MAX_USERS: usize = 100;

/// A kind of object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ResourceKind {
    Qp,
    CmId,
    Cq,
    Mr,
    Pd,
    Ctx,
    Srq,
}

/// NLDEV command and attributes of a resource kind.
struct KindNumbers {
    command: u16,
    table: u16,
    entry: u16,
    id: u16,
}

impl ResourceKind {
    /// In the kernel's order.
    const ALL: [Self; 7] =
        [Self::Pd, Self::Cq, Self::Qp, Self::CmId, Self::Mr, Self::Ctx, Self::Srq];

    const fn numbers(self) -> KindNumbers {
        let (command, table, entry, id) = match self {
            Self::Qp => (10, 19, 20, attribute::RES_LQPN),
            Self::CmId => (11, 30, 31, attribute::RES_CM_IDN),
            Self::Cq => (12, 35, 36, attribute::RES_CQN),
            Self::Mr => (13, 40, 41, attribute::RES_MRN),
            Self::Pd => (14, 46, 47, attribute::RES_PDN),
            Self::Ctx => (22, 86, 87, attribute::RES_CTXN),
            Self::Srq => (23, 88, 89, attribute::RES_SRQN),
        };
        KindNumbers { command, table, entry, id }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Qp => "qp",
            Self::CmId => "cm_id",
            Self::Cq => "cq",
            Self::Mr => "mr",
            Self::Pd => "pd",
            Self::Ctx => "ctx",
            Self::Srq => "srq",
        }
    }

    /// The kind that a command lists.
    pub(super) fn of_command(command: u16) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.numbers().command == command)
    }

    /// The kind whose statistics a request names, by its table attribute.
    pub(super) fn of_table(table: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| u32::from(kind.numbers().table) == table)
    }

    /// Whether the objects belong to ports.
    const fn is_of_port(self) -> bool {
        matches!(self, Self::Qp | Self::CmId)
    }

    fn count(self, all: &Resources) -> usize {
        match self {
            Self::Qp => all.qps.len(),
            Self::CmId => 0,
            Self::Cq => all.cqs.len(),
            Self::Mr => all.mkeys.len(),
            Self::Pd => all.pds.len(),
            Self::Ctx => all.contexts.len(),
            Self::Srq => all.srqs.len(),
        }
    }

    /// The objects selected by number and port, at most as many as a dump holds.
    fn entries(
        self,
        all: &Resources,
        wanted: &dyn Fn(u32, Option<u8>) -> bool,
    ) -> Vec<NetlinkMessage> {
        fn select<T>(
            all: &[T],
            wanted: impl Fn(&T) -> bool,
            show: impl Fn(&T) -> NetlinkMessage,
        ) -> Vec<NetlinkMessage> {
            all.iter().filter(|it| wanted(it)).take(MAX_OBJECTS).map(show).collect()
        }
        match self {
            Self::Qp => select(&all.qps, |it| wanted(it.qpn, Some(it.port)), qp),
            Self::CmId => Vec::new(),
            Self::Cq => select(&all.cqs, |it| wanted(it.cqn, None), cq),
            Self::Mr => select(&all.mkeys, |it| wanted(it.index, None), mr),
            Self::Pd => select(&all.pds, |it| wanted(it.pdn, None), pd),
            Self::Ctx => select(&all.contexts, |&uid| wanted(uid.into(), None), context),
            Self::Srq => {
                let users = users_of_srqs(all);
                select(&all.srqs, |it| wanted(it.srqn, None), |it| srq(it, &users))
            }
        }
    }
}

/// Counts of each kind, under Linux's names. DevX objects count too; Linux does not track them.
pub(super) fn summary(
    message: NetlinkMessage,
    index: usize,
    device: &ShownDevice,
    all: &Resources,
) -> NetlinkMessage {
    let entries = ResourceKind::ALL.into_iter().fold(NetlinkMessage::nested(), |entries, kind| {
        let entry = NetlinkMessage::nested()
            .text(attribute::RES_SUMMARY_ENTRY_NAME, kind.name())
            .u64(attribute::RES_SUMMARY_ENTRY_CURR, kind.count(all) as u64);
        entries.put(NESTED | attribute::RES_SUMMARY_ENTRY, &entry.0)
    });
    handle(message, index, device).put(NESTED | attribute::RES_SUMMARY, &entries.0)
}

/// One object.
pub(super) fn one(
    kind: ResourceKind,
    message: NetlinkMessage,
    devices: &[ShownDevice],
    resources: super::ObjectLists<'_>,
    body: &[u8],
) -> Result<NetlinkMessage, Errno> {
    let id = number(body, kind.numbers().id).ok_or(Errno::EINVAL)?;
    let (index, device) = find(devices, body)?;
    let port = port(device, body)?;
    if port.is_some() != kind.is_of_port() {
        return Err(Errno::EINVAL);
    }
    let found = kind.entries(&resources(device.number), &|number, _| number == id);
    let entry = found.first().ok_or(Errno::ENOENT)?;
    Ok(handle(message, index, device).plain(&entry.0))
}

/// All objects of a device.
pub(super) fn all(
    kind: ResourceKind,
    header: &Header,
    devices: &[ShownDevice],
    resources: super::ObjectLists<'_>,
    body: &[u8],
) -> Result<Vec<NetlinkMessage>, Errno> {
    let (index, device) = find(devices, body)?;
    let port = port(device, body)?;
    let on_port =
        |of: Option<u8>| port.is_none_or(|port| of.is_none_or(|of| port == u32::from(of)));
    let entries = kind.entries(&resources(device.number), &|_, port| on_port(port));
    let KindNumbers { table, entry, .. } = kind.numbers();
    Ok(tables(header, index, device, (table, entry), entries))
}

/// Statistics of all objects of a kind. No QP is bound to a counter, and MRs only have on-demand
/// paging counters.
pub(super) fn statistics(
    header: &Header,
    devices: &[ShownDevice],
    resources: super::ObjectLists<'_>,
    body: &[u8],
) -> Result<Vec<NetlinkMessage>, Errno> {
    let table = number(body, attribute::STAT_RES).ok_or(Errno::EINVAL)?;
    let kind = ResourceKind::of_table(table).ok_or(Errno::EINVAL)?;
    let (index, device) = find(devices, body)?;
    port(device, body)?;
    match kind {
        ResourceKind::Qp => Ok(Vec::new()),
        ResourceKind::Mr => {
            let KindNumbers { table, entry, id, .. } = kind.numbers();
            let all = resources(device.number);
            let keys = all.mkeys.iter().take(MAX_OBJECTS);
            let keys = keys.map(|it| NetlinkMessage::nested().u32(id, it.index)).collect();
            Ok(tables(header, index, device, (table, entry), keys))
        }
        _ => Err(Errno::EINVAL),
    }
}

/// The port that a request names; EINVAL: the device does not have the port.
fn port(device: &ShownDevice, body: &[u8]) -> Result<Option<u32>, Errno> {
    let port = number(body, attribute::PORT_INDEX);
    let is_present = |port: u32| (1..=device.ports.len()).contains(&(port as usize));
    if port.is_some_and(|port| !is_present(port)) {
        return Err(Errno::EINVAL);
    }
    Ok(port)
}

/// Packs entries into messages.
fn tables(
    header: &Header,
    index: usize,
    device: &ShownDevice,
    (table, entry): (u16, u16),
    entries: Vec<NetlinkMessage>,
) -> Vec<NetlinkMessage> {
    let mut messages = vec![NetlinkMessage::nested()];
    for one in entries {
        let last = messages.last_mut().expect("there is one");
        if last.0.is_empty() || last.0.len() + one.0.len() <= MAX_MESSAGE {
            *last = std::mem::take(last).put(entry, &one.0);
        } else if messages.len() < MAX_TABLES {
            messages.push(NetlinkMessage::nested().put(entry, &one.0));
        } else {
            tracing::info!("NETLINK_RDMA: dump truncated: a socket's buffer holds no more");
            break;
        }
    }
    let finish = |filled: NetlinkMessage| {
        handle(NetlinkMessage::new(header.kind, MULTI, header), index, device).put(table, &filled.0)
    };
    // The kernel sends no empty table.
    messages.into_iter().filter(|filled| !filled.0.is_empty()).map(finish).collect()
}

/// `enum ib_qp_type`; other types are driver types (IB_QPT_DRIVER).
fn qp_type(service: ServiceType) -> u8 {
    match service {
        ServiceType::QP0 => 0,
        ServiceType::QP1 => 1,
        ServiceType::RC => 2,
        ServiceType::UC => 3,
        ServiceType::UD => 4,
        _ => 0xff,
    }
}

fn qp(it: &QpResource) -> NetlinkMessage {
    /// `IB_MIG_MIGRATED`: the QP has no alternate path.
    const MIGRATED: u8 = 0;
    let mut message = NetlinkMessage::nested();
    if it.port != 0 {
        message = message.u32(attribute::PORT_INDEX, it.port.into());
    }
    message = message.u32(attribute::RES_LQPN, it.qpn).u32(attribute::RES_PDN, it.pdn);
    if let Some(remote) = it.remote_qpn {
        message = message.u32(attribute::RES_RQPN, remote).u32(attribute::RES_RQ_PSN, it.rq_psn);
    }
    message = message.u32(attribute::RES_SQ_PSN, it.sq_psn);
    if it.remote_qpn.is_some() {
        message = message.u8(attribute::RES_PATH_MIG_STATE, MIGRATED);
    }
    message.u8(attribute::RES_TYPE, qp_type(it.service)).u8(attribute::RES_STATE, it.state)
}

fn cq(it: &CqResource) -> NetlinkMessage {
    // mlx5_ib reports one less, the value given to `ibv_create_cq`.
    let message = NetlinkMessage::nested()
        .u32(attribute::RES_CQE, it.entries.saturating_sub(1))
        .u64(attribute::RES_USECNT, it.users.into())
        .u8(attribute::DEV_DIM, 0)
        .u32(attribute::RES_CQN, it.cqn);
    with_context(message, it.uid)
}

fn mr(it: &MkeyResource) -> NetlinkMessage {
    NetlinkMessage::nested()
        .u64(attribute::RES_MRLEN, it.length.unwrap_or(u64::MAX))
        .u32(attribute::RES_MRN, it.index)
        .u32(attribute::RES_PDN, it.pdn)
}

fn pd(it: &PdResource) -> NetlinkMessage {
    let message = NetlinkMessage::nested()
        .u64(attribute::RES_USECNT, it.users.into())
        .u32(attribute::RES_PDN, it.pdn);
    with_context(message, it.uid)
}

fn context(uid: &u16) -> NetlinkMessage {
    NetlinkMessage::nested().u32(attribute::RES_CTXN, (*uid).into())
}

/// QPs of each SRQ, by SRQN.
fn users_of_srqs(all: &Resources) -> BTreeMap<u32, Vec<u32>> {
    let mut users: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for (srqn, qpn) in all.qps.iter().filter_map(|qp| Some((qp.srqn?, qp.qpn))) {
        let users = users.entry(srqn).or_default();
        if users.len() < MAX_USERS {
            users.push(qpn);
        }
    }
    users
}

fn srq(it: &SrqResource, users: &BTreeMap<u32, Vec<u32>>) -> NetlinkMessage {
    /// `ib_srq_type`.
    const BASIC: u8 = 0;
    const XRC: u8 = 1;
    let kind = if it.cqn.is_some() { XRC } else { BASIC };
    let mut message = NetlinkMessage::nested()
        .u32(attribute::RES_SRQN, it.srqn)
        .u8(attribute::RES_TYPE, kind)
        .u32(attribute::RES_PDN, it.pdn);
    if let Some(cqn) = it.cqn {
        message = message.u32(attribute::RES_CQN, cqn);
    }
    let KindNumbers { table, entry, id, .. } = ResourceKind::Qp.numbers();
    let users = users.get(&it.srqn).into_iter().flatten();
    let users = users.fold(NetlinkMessage::nested(), |users, &qpn| {
        users.put(entry, &NetlinkMessage::nested().u32(id, qpn).0)
    });
    message.put(NESTED | table, &users.0)
}

/// Adds RES_CTXN if a user context owns the object.
fn with_context(message: NetlinkMessage, uid: u16) -> NetlinkMessage {
    match uid {
        0 => message,
        uid => message.u32(attribute::RES_CTXN, uid.into()),
    }
}
