//! Connecting two queue pairs: what each side tells the other, and the three transitions that follow.

use verbless_command::{
    Error, ErrorKind, Gid, GlobalRoute, InitAttr, Mtu, Path, Qpn, RemoteAccess, RoceVersion,
    RtrAttr, RtsAttr,
};
use verbless_devx::abi::core::{AhAttributes, GlobalRoute as AhRoute};
use verbless_devx::{GidType, LinkLayer};

use super::{Domain, Qp};
use crate::qp::ReceiveSide;
use crate::service::{Connected, Service};

/// What a peer must know to reach a queue pair. Send it by any means; it fits into 28 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PeerAddress {
    /// The queue pair.
    pub qpn: Qpn,
    /// First packet sequence number that it will send, 24 bits.
    pub psn: u32,
    /// LID of its port; 0 on Ethernet.
    pub lid: u16,
    /// GID of its port; zero where it has none.
    pub gid: Gid,
}

impl PeerAddress {
    /// Length of its encoding in bytes.
    pub const BYTES: usize = 28;

    /// The address as bytes, each number in network order.
    pub fn to_bytes(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..4].copy_from_slice(&self.qpn.0.to_be_bytes());
        bytes[4..8].copy_from_slice(&self.psn.to_be_bytes());
        bytes[8..10].copy_from_slice(&self.lid.to_be_bytes());
        bytes[12..].copy_from_slice(&self.gid.0);
        bytes
    }

    /// The address that a peer sent; `None` if its numbers have more than 24 bits.
    pub fn from_bytes(bytes: &[u8; Self::BYTES]) -> Option<Self> {
        let word = |at: usize| {
            u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        let mut gid = [0; 16];
        gid.copy_from_slice(&bytes[12..]);
        let (qpn, psn) = (word(0), word(4));
        (qpn >> 24 == 0 && psn >> 24 == 0).then_some(Self {
            qpn: Qpn(qpn),
            psn,
            lid: u16::from_be_bytes([bytes[8], bytes[9]]),
            gid: Gid(gid),
        })
    }
}

/// How a queue pair is connected. Both sides use the same, but for the port and the GID.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConnectOptions {
    /// Our port, counted from 1.
    pub port: u8,
    /// Index of our GID; on Ethernet the first RoCE v2 GID if not given.
    pub gid_index: Option<u8>,
    /// What the peer may do to our memory.
    pub access: RemoteAccess,
    /// First packet sequence number that we send.
    pub psn: u32,
    /// Path MTU; the port's active MTU if not given.
    pub mtu: Option<Mtu>,
    /// ACK timeout code: 4.096 µs · 2^n; 0 waits for ever. This and what follows are for [`Rc`](crate::Rc) only.
    pub ack_timeout: u8,
    /// Retries after a timeout, 0 to 7.
    pub retry_count: u8,
    /// Retries after the peer had no receive posted, 0 to 7; 7 is for ever.
    pub rnr_retry: u8,
    /// RNR NAK timer code (12: 0.64 ms).
    pub min_rnr_timer: u8,
    /// READs and atomics outstanding in each direction.
    pub reads: u8,
}

impl Default for ConnectOptions {
    /// Port 1, all access, PSN 0, about 67 ms to a timeout, seven retries.
    fn default() -> Self {
        Self {
            port: 1,
            gid_index: None,
            access: RemoteAccess::ALL,
            psn: 0,
            mtu: None,
            ack_timeout: 14,
            retry_count: 7,
            rnr_retry: 7,
            min_rnr_timer: 12,
            reads: 16,
        }
    }
}

impl Domain {
    /// What a peer must know to reach `qp`.
    pub fn address<S: Service, R: ReceiveSide>(
        &self,
        qp: &Qp<S, R>,
        options: &ConnectOptions,
    ) -> Result<PeerAddress, Error> {
        let port = self.device.query_port(options.port)?;
        let gid = match port.link_layer() {
            LinkLayer::Ethernet => Some(self.roce_gid(options)?.0),
            _ => self.device.gid_entry(options.port.into(), 0).ok().map(|entry| entry.gid),
        };
        Ok(PeerAddress {
            qpn: qp.qpn(),
            psn: options.psn,
            lid: port.raw.lid,
            gid: gid.unwrap_or_default(),
        })
    }

    /// Takes `qp` from RESET through INIT and RTR to RTS, towards `peer`, which must be of the same service.
    pub fn connect<S: Connected, R: ReceiveSide>(
        &self,
        qp: &Qp<S, R>,
        peer: &PeerAddress,
        options: &ConnectOptions,
    ) -> Result<(), Error> {
        let port = self.device.query_port(options.port)?;
        let path = self.path(peer, options)?;
        let active = match port.active_mtu() {
            Some(256) => Mtu::B256,
            Some(512) => Mtu::B512,
            Some(2048) => Mtu::B2048,
            Some(4096) => Mtu::B4096,
            _ => Mtu::B1024,
        };
        let caps = self.device.caps();
        let object = qp.object();
        object.to_init(&InitAttr { port: options.port, pkey_index: 0, access: options.access })?;
        object.to_rtr(&RtrAttr {
            path,
            mtu: options.mtu.unwrap_or(active),
            remote_qpn: peer.qpn,
            receive_psn: peer.psn,
            max_destination_reads: options.reads.min(caps.max_reads_in),
            min_rnr_timer: options.min_rnr_timer,
        })?;
        object.to_rts(&RtsAttr {
            send_psn: options.psn,
            ack_timeout: options.ack_timeout,
            retry_count: options.retry_count,
            rnr_retry: options.rnr_retry,
            max_reads: options.reads.min(caps.max_reads_out),
        })
    }

    /// The way to `peer`; on Ethernet the kernel finds out its MAC.
    pub fn path(&self, peer: &PeerAddress, options: &ConnectOptions) -> Result<Path, Error> {
        match self.device.query_port(options.port)?.link_layer() {
            LinkLayer::Ethernet => self.roce_path(peer, options),
            _ => Ok(Path::to_lid(peer.lid)),
        }
    }

    /// The GID that RoCE packets of ours come from, and its index.
    fn roce_gid(&self, options: &ConnectOptions) -> Result<(Gid, u8, RoceVersion), Error> {
        let table = self.device.gid_table()?;
        let found = table.iter().find(|entry| {
            entry.port == options.port.into()
                && match options.gid_index {
                    Some(index) => entry.index == index.into(),
                    None => entry.kind == GidType::RoceV2,
                }
        });
        let usable = found.and_then(|entry| {
            let version = match entry.kind {
                GidType::RoceV1 => RoceVersion::V1,
                _ => RoceVersion::V2,
            };
            Some((entry.gid, u8::try_from(entry.index).ok()?, version))
        });
        usable.ok_or_else(|| {
            Error::new(
                ErrorKind::Input,
                format!("choosing a GID of port {}", options.port),
                "the port has no such GID: is its network interface up, with an address?",
            )
        })
    }

    fn roce_path(&self, peer: &PeerAddress, options: &ConnectOptions) -> Result<Path, Error> {
        let (_, index, version) = self.roce_gid(options)?;
        let route = GlobalRoute::new(peer.gid, index);
        let ah = self.device.create_ah(
            &self.pd,
            &AhAttributes {
                grh: AhRoute {
                    dgid: peer.gid.0,
                    flow_label: route.flow_label,
                    sgid_index: route.sgid_index,
                    hop_limit: route.hop_limit,
                    traffic_class: route.traffic_class,
                    ..Default::default()
                },
                is_global: 1,
                port_num: options.port,
                ..Default::default()
            },
        )?;
        let mac = ah.destination_mac().ok_or_else(|| {
            Error::new(
                ErrorKind::Answer,
                "CREATE_AH",
                "the kernel did not say the destination MAC; it needs to be 4.10 or newer",
            )
        })?;
        Ok(match Path::to_gid(route, mac) {
            Path::Roce { route, destination_mac, udp_source_port, priority, .. } => {
                Path::Roce { version, route, destination_mac, udp_source_port, priority }
            }
            other => other,
        })
    }
}
