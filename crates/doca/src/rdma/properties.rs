//! Properties of an instance, and the limits of devices.

use verbless_devx::LinkLayer;
use verbless_queue::ConnectOptions;
use verbless_queue::access::RemoteAccess;
use verbless_queue::wr::{FetchAdd, Request};
use verbless_queue::{ErrorKind as LowerKind, QpConfig, Rc};

pub use verbless_command::Mtu;

use crate::context::job_type::JobType;
use crate::device::Dev;
use crate::error::{Error, ErrorKind, Result};
use crate::types::AccessFlags;

/// The transport service of a connection (`enum doca_rdma_transport_type`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[doc(alias = "doxa_rdma_transport_type")]
pub enum TransportType {
    /// Reliable connected.
    #[default]
    Rc,
    /// Dynamically connected; not supported.
    Dc,
}

/// The properties of an instance. The guide names only `recv_buf_chain_len`; the others are this
/// crate's. Their setters are methods of [`RdmaBuilder`](super::RdmaBuilder).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Properties {
    /// Maximum number of jobs in flight other than receives; 64 by default.
    pub send_queue_size: u32,
    /// Maximum number of receives in flight; 64 by default.
    pub recv_queue_size: u32,
    /// Maximum number of buffers in the chain of a receive's destination (`recv_buf_chain_len`); 1
    /// by default.
    pub recv_buf_chain_len: u32,
    /// Maximum number of buffers in the chain of a send's, write's or read's local buffer; 4 by
    /// default.
    pub send_buf_chain_len: u32,
    /// Rights of the peer: any of `RDMA_READ`, `RDMA_WRITE`, `RDMA_ATOMIC`; none by default. The
    /// map must grant them, too. `LOCAL_READ_WRITE` is accepted and changes nothing; rights of the
    /// DPU are refused.
    pub permissions: AccessFlags,
    /// The transport service.
    pub transport_type: TransportType,
    /// The device's port, counted from 1; 1 by default.
    pub port: u8,
    /// Index of our GID in the port's table. Default as for [`ConnectOptions::gid_index`]: on
    /// Ethernet the first routable RoCE v2 GID, else the first RoCE v2 GID, else the first GID.
    pub gid_index: Option<u8>,
    /// Index of the partition key in the port's table; 0 by default. Both sides use keys of one
    /// partition.
    pub pkey_index: u16,
    /// LID of the router towards a peer in another InfiniBand subnet; such a peer needs it
    /// ([`ConnectOptions::router_lid`]).
    pub router_lid: Option<u16>,
    /// Upper limit of the path MTU; the port's active one by default. Both sides use the smaller of
    /// their two values.
    pub mtu: Option<Mtu>,
    /// Service level, 0 to 15; on Ethernet the 802.1p priority, 0 to 7. The peer's by default.
    pub service_level: Option<u8>,
    /// Traffic class of packets with a global route; its upper six bits are the DSCP of RoCE v2.
    pub traffic_class: u8,
    /// Retries after a timeout, 0 to 7; 7 by default.
    pub retry_count: u8,
    /// Retries while the peer has no receive in flight, 0 to 7, where 7 means without limit; 7 by
    /// default.
    pub rnr_retry_count: u8,
    /// Timeout code: 4.096 µs · 2^n, 0 to 31, where 0 means no timeout; 14 (67 ms) by default.
    pub ack_timeout: u8,
    /// RNR NAK timer code, 0 to 31: the peer's pause before it resends a message that found no
    /// receive here; 12 (0.64 ms) by default.
    pub min_rnr_timer: u8,
    /// Maximum number of reads and atomics in progress at a time, in each direction; 16 by default.
    /// A lower limit of the device, or of the peer, applies instead.
    pub reads: u8,
}

impl Default for Properties {
    fn default() -> Self {
        Self {
            send_queue_size: 64,
            recv_queue_size: 64,
            recv_buf_chain_len: 1,
            send_buf_chain_len: 4,
            permissions: AccessFlags::default(),
            transport_type: TransportType::Rc,
            port: 1,
            gid_index: None,
            pkey_index: 0,
            router_lid: None,
            mtu: None,
            service_level: None,
            traffic_class: 0,
            retry_count: 7,
            rnr_retry_count: 7,
            ack_timeout: 14,
            min_rnr_timer: 12,
            reads: 16,
        }
    }
}

/// The permissions that an instance may have. Programs on DOCA give it those of their map: the
/// local one does not affect a peer.
const PERMISSIONS: u32 = AccessFlags::LOCAL_READ_WRITE.bits()
    | AccessFlags::RDMA_READ.bits()
    | AccessFlags::RDMA_WRITE.bits()
    | AccessFlags::RDMA_ATOMIC.bits();

impl Properties {
    /// Checks that an instance on `dev` can have these properties.
    pub(super) fn check(&self, dev: &Dev) -> Result<()> {
        transport_type_supported(dev, self.transport_type)?;
        let within = |name: &str, value: u32, least: u32, most: u32| {
            if (least..=most).contains(&value) {
                return Ok(());
            }
            let text = format!("{name} is {value}, and can be {least} to {most} on {dev:?}");
            Err(Error::new(ErrorKind::InvalidValue, text))
        };
        let chain = self.send_buf_chain_len;
        within("send_buf_chain_len", chain, 1, max_send_buf_chain_len(dev))?;
        let chain = self.recv_buf_chain_len;
        within("recv_buf_chain_len", chain, 1, max_recv_buf_chain_len(dev))?;
        let most = max_wqebbs(dev) / wqebbs_per_send(self.send_buf_chain_len);
        within("send_queue_size", self.send_queue_size, 1, most)?;
        within("recv_queue_size", self.recv_queue_size, 1, max_wqebbs(dev))?;
        within("port", self.port.into(), 1, dev.caps().ports.into())?;
        within("retry_count", self.retry_count.into(), 0, 7)?;
        within("rnr_retry_count", self.rnr_retry_count.into(), 0, 7)?;
        within("ack_timeout", self.ack_timeout.into(), 0, 31)?;
        within("min_rnr_timer", self.min_rnr_timer.into(), 0, 31)?;
        within("reads", self.reads.into(), 1, 128)?;
        let port = dev.device().query_port(self.port)?;
        let last = u32::from(port.raw.pkey_tbl_len).saturating_sub(1);
        within("pkey_index", self.pkey_index.into(), 0, last)?;
        let level = if port.link_layer() == LinkLayer::Ethernet { 7 } else { 15 };
        within("service_level", self.service_level.unwrap_or(0).into(), 0, level)?;
        if self.permissions.bits() & !PERMISSIONS != 0 {
            let text = format!(
                "the permissions of an instance are {:?}: it takes RDMA_READ, RDMA_WRITE and \
                 RDMA_ATOMIC, and LOCAL_READ_WRITE, which changes nothing",
                self.permissions
            );
            return Err(Error::new(ErrorKind::InvalidValue, text));
        }
        if self.permissions.contains(AccessFlags::RDMA_ATOMIC) {
            job_supported(dev, JobType::RdmaFetchAdd)?;
        }
        let checked = dev.domain().check_options(&self.options());
        checked.map_err(|error| match (self.gid_index, error.kind()) {
            (Some(index), LowerKind::Refused | LowerKind::NotFound) => {
                let port = self.port;
                let text = format!(
                    "gid_index is {index}, and port {port} of {dev:?} has no such GID: {error}"
                );
                Error::new(ErrorKind::InvalidValue, text).with_source(error)
            }
            _ => error.into(),
        })
    }

    /// The options of the connection.
    pub(super) fn options(&self) -> ConnectOptions {
        let may = |right| self.permissions.contains(right);
        ConnectOptions {
            port: self.port,
            gid_index: self.gid_index,
            pkey_index: self.pkey_index,
            router_lid: self.router_lid,
            access: RemoteAccess {
                read: may(AccessFlags::RDMA_READ),
                write: may(AccessFlags::RDMA_WRITE),
                atomic: may(AccessFlags::RDMA_ATOMIC),
            },
            mtu: self.mtu,
            service_level: self.service_level,
            traffic_class: self.traffic_class,
            ack_timeout: self.ack_timeout,
            retry_count: self.retry_count,
            rnr_retry: self.rnr_retry_count,
            min_rnr_timer: self.min_rnr_timer,
            reads: self.reads,
            ..ConnectOptions::default()
        }
    }

    /// The configuration of the queue pair.
    pub(super) fn config(&self, user_index: u32) -> QpConfig {
        QpConfig {
            send_sges: sges(self.send_buf_chain_len),
            receive_sges: sges(self.recv_buf_chain_len),
            // Sent data is in registered memory.
            inline: 0,
            user_index,
            ..QpConfig::new(self.send_queue_size, self.recv_queue_size)
        }
    }
}

/// Scatter/gather entries for chains of this many buffers: an entry has less than 2 GiB, so one
/// buffer of that size takes two.
const fn sges(chain: u32) -> u32 {
    if chain < 2 { 2 } else { chain }
}

/// Wqebbs of the longest request of a chain of `chain` buffers: control, remote address, and an
/// entry for each; an atomic has one wqebb.
const fn wqebbs_per_send(chain: u32) -> u32 {
    (2 + sges(chain)).div_ceil(4)
}

/// Maximum wqebbs of a send ring, and receives of a receive ring.
fn max_wqebbs(dev: &Dev) -> u32 {
    1 << dev.caps().log_max_qp_wqebbs.min(15)
}

/// Maximum number of entries while the engine builds a request.
pub(super) const MAX_SGES: usize = 32;

/// Maximum number of jobs in flight other than receives, with single buffers.
pub(super) fn max_send_queue_size(dev: &Dev) -> u32 {
    max_wqebbs(dev)
}

/// Maximum number of receives in flight.
pub(super) fn max_recv_queue_size(dev: &Dev) -> u32 {
    max_wqebbs(dev)
}

pub(super) fn max_send_buf_chain_len(dev: &Dev) -> u32 {
    dev.caps().max_send_sges().min(MAX_SGES) as u32
}

/// The longest chain of a read, at any `send_buf_chain_len`.
pub(super) fn max_read_buf_chain_len(dev: &Dev) -> u32 {
    dev.caps().max_read_sges().min(MAX_SGES) as u32
}

pub(super) fn max_recv_buf_chain_len(dev: &Dev) -> u32 {
    dev.caps().max_receive_sges().min(MAX_SGES) as u32
}

/// Maximum bytes of a message of the device.
pub(super) fn max_message_size(dev: &Dev) -> u64 {
    1 << dev.caps().log_max_message
}

/// Maximum bytes of a message, on any device.
pub(super) const MAX_MESSAGE_BYTES: u64 = 1 << 31;

/// Maximum bytes of a job, except for the room of a receive.
pub(super) fn longest(dev: &Dev) -> u64 {
    max_message_size(dev).min(MAX_MESSAGE_BYTES)
}

pub(super) fn transport_type_supported(_: &Dev, transport_type: TransportType) -> Result<()> {
    match transport_type {
        TransportType::Rc => Ok(()),
        TransportType::Dc => {
            let text = "the transport type DC is not supported: choose RC";
            Err(Error::plain(ErrorKind::NotSupported, text))
        }
    }
}

pub(super) fn job_supported(dev: &Dev, job_type: JobType) -> Result<()> {
    match job_type {
        JobType::RdmaReceive
        | JobType::RdmaSend
        | JobType::RdmaSendImm
        | JobType::RdmaWrite
        | JobType::RdmaWriteImm
        | JobType::RdmaRead => Ok(()),
        JobType::RdmaCompareSwap | JobType::RdmaFetchAdd => {
            dev.domain().supports::<Rc>(&FetchAdd::INFO).map_err(|why| {
                let text = format!("{dev:?} has no atomics: {why}");
                Error::new(ErrorKind::NotSupported, text).with_source(why)
            })
        }
        other => {
            let text = format!("{other:?} is not an RDMA job");
            Err(Error::new(ErrorKind::InvalidValue, text))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_property_reaches_the_connection_and_the_queue_pair() {
        let properties = Properties {
            send_queue_size: 11,
            recv_queue_size: 12,
            port: 2,
            gid_index: Some(3),
            mtu: Some(Mtu::B1024),
            service_level: Some(5),
            traffic_class: 0x68,
            retry_count: 6,
            rnr_retry_count: 4,
            ack_timeout: 17,
            min_rnr_timer: 13,
            reads: 9,
            ..Properties::default()
        };
        let options = properties.options();
        assert_eq!((options.port, options.gid_index), (2, Some(3)));
        assert_eq!((options.mtu, options.service_level), (Some(Mtu::B1024), Some(5)));
        assert_eq!((options.traffic_class, options.retry_count), (0x68, 6));
        assert_eq!((options.rnr_retry, options.ack_timeout), (4, 17));
        assert_eq!((options.min_rnr_timer, options.reads), (13, 9));
        for (right, expected) in [
            (AccessFlags::LOCAL_READ_ONLY, [false, false, false]),
            (AccessFlags::LOCAL_READ_WRITE, [false, false, false]),
            (AccessFlags::RDMA_READ, [true, false, false]),
            (AccessFlags::RDMA_WRITE, [false, true, false]),
            (AccessFlags::RDMA_ATOMIC, [false, false, true]),
        ] {
            let access = Properties { permissions: right, ..properties }.options().access;
            assert_eq!([access.read, access.write, access.atomic], expected, "{right:?}");
        }
        let config = properties.config(0x77);
        assert_eq!((config.inline, config.user_index), (0, 0x77));
    }
}
