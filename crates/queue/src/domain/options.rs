//! Connection parameters, with their defaults.

use verbless_command::{Mtu, RemoteAccess};

/// Connection parameters. Both sides use the same values, except for port and GID.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConnectOptions {
    /// Our port, counted from 1.
    pub port: u8,
    /// Index of our GID. Default on Ethernet: the first routable RoCE v2 GID, else the first RoCE
    /// v2 GID, else the first GID. Default on InfiniBand: 0.
    pub gid_index: Option<u8>,
    /// Index of the partition key in the port's table.
    pub pkey_index: u16,
    /// The peer's access to our memory. A queue pair gets atomics only if the device has them
    /// ([`Caps::atomics`]); otherwise it connects without that flag.
    ///
    /// [`Caps::atomics`]: verbless_command::Caps::atomics
    pub access: RemoteAccess,
    /// First packet sequence number that we send, 24 bits. Default: the queue pair's own random
    /// PSN.
    pub psn: Option<u32>,
    /// Upper limit of the path MTU. It must not exceed the port's active MTU, which is the default.
    /// Both sides use the smaller of their two values.
    pub mtu: Option<Mtu>,
    /// Service level, 0 to 15. Default: the peer's, or 0 if neither side sets it. On Ethernet it is
    /// the 802.1p priority, 0 to 7.
    pub service_level: Option<u8>,
    /// Traffic class; its upper six bits are the DSCP of a RoCE v2 packet.
    pub traffic_class: u8,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// Hops that a packet may take. To a peer in another subnet, 2 or more.
    pub hop_limit: u8,
    /// LID of the router towards a peer in another InfiniBand subnet, from the subnet manager's
    /// path record (`saquery PathRecord`). Only peers whose GID has another prefix than ours need
    /// and use it.
    pub router_lid: Option<u16>,
    /// UDP source port of RoCE v2, 0xc000 and up. By default it follows from the flow label, or
    /// from the two QPNs if the flow label is 0, so that connections spread over the links of a
    /// network.
    pub udp_source_port: Option<u16>,
    /// ACK timeout code: 4.096 µs · 2^n; 0 means no timeout. This field and those below apply to
    /// [`Rc`](crate::Rc) only.
    pub ack_timeout: u8,
    /// Retries after a timeout, 0 to 7.
    pub retry_count: u8,
    /// Retries after the peer had no receive posted, 0 to 7; 7: no limit.
    pub rnr_retry: u8,
    /// RNR NAK timer code (12: 0.64 ms).
    pub min_rnr_timer: u8,
    /// READs and atomics outstanding in each direction. A lower limit of either device, or of the
    /// peer, applies instead.
    pub reads: u8,
}

impl Default for ConnectOptions {
    /// Port 1, all access, a random PSN, 64 hops, about 67 ms to a timeout, seven retries.
    fn default() -> Self {
        Self {
            port: 1,
            gid_index: None,
            pkey_index: 0,
            access: RemoteAccess::ALL,
            psn: None,
            mtu: None,
            service_level: None,
            traffic_class: 0,
            flow_label: 0,
            hop_limit: 64,
            router_lid: None,
            udp_source_port: None,
            ack_timeout: 14,
            retry_count: 7,
            rnr_retry: 7,
            min_rnr_timer: 12,
            reads: 16,
        }
    }
}
