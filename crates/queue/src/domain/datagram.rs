//! Datagram queue pairs: starting them, and resolving the path to peers.

use verbless_command::{DatagramAttr, Error, Mtu, Path, QKey};

use super::options::ConnectOptions;
use super::peer::PeerAddress;
use super::protection::Domain;
use super::queues::Qp;
use verbless_ring::address::{AddressHandle, Destination};
use verbless_ring::qp::ReceiveSide;
use verbless_ring::service::Ud;

/// Options for starting a datagram queue pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DatagramOptions {
    /// Our port, counted from 1.
    pub port: u8,
    /// Index of the partition key in the port's table.
    pub pkey_index: u16,
    /// Q_Key that a datagram must carry.
    pub q_key: QKey,
    /// First packet sequence number; receivers do not check it.
    pub psn: u32,
}

impl DatagramOptions {
    /// Port 1, the first partition key, PSN 0.
    pub const fn new(q_key: QKey) -> Self {
        Self { port: 1, pkey_index: 0, q_key, psn: 0 }
    }
}

impl<R: ReceiveSide> Qp<Ud, R> {
    /// Takes the queue pair from RESET to RTS. It can then send to any peer, and receives from
    /// senders that know its Q_Key.
    pub fn start(&mut self, options: &DatagramOptions) -> Result<(), Error> {
        let DatagramOptions { port, pkey_index, q_key, psn } = *options;
        self.to_init_datagram(&DatagramAttr { port, pkey_index, q_key })?;
        self.to_rtr_datagram()?;
        self.to_rts_datagram(psn)
    }
}

impl Domain {
    /// The address handle of a peer; on Ethernet the kernel resolves its MAC. `q_key` is the
    /// peer's.
    pub fn destination(
        &self,
        peer: &PeerAddress,
        q_key: QKey,
        options: &ConnectOptions,
    ) -> Result<Destination, Error> {
        let handle = self.address_handle(&self.path(peer, options)?)?;
        Ok(handle.to(peer.qpn, q_key))
    }

    /// The address handle of a path, without QPN and Q_Key. Use it to reply to the source in a CQE.
    ///
    /// # Errors
    /// A field of the path that does not fit.
    pub fn address_handle(&self, path: &Path) -> Result<AddressHandle, Error> {
        Ok(AddressHandle::new(path.address_vector()?))
    }

    /// The longest datagram that a port can send, in bytes: its active MTU, or the smallest MTU if
    /// the port reports an unknown code.
    pub fn max_datagram_bytes(&self, port: u8) -> Result<u32, Error> {
        let mtu = self.device.query_port(port)?.active_mtu();
        Ok(mtu.unwrap_or(Mtu::B256.bytes()))
    }
}
