//! Connecting two queue pairs: the values that the sides exchange, and the three transitions after
//! that.

use verbless_command::{Error, InitAttr, Mtu, Path, QpObject, RtrAttr, RtsAttr};
use verbless_devx::LinkLayer;

use super::options::ConnectOptions;
use super::path::{needs_grh, path_mtu};
use super::peer::PeerAddress;
use super::protection::Domain;
use super::queues::Qp;
use verbless_ring::qp::ReceiveSide;
use verbless_ring::service::{Connected, Service};

/// The transitions of a queue pair from RESET to RTS.
pub(super) struct ConnectSteps {
    pub(super) init: InitAttr,
    pub(super) rtr: RtrAttr,
    pub(super) rts: RtsAttr,
}

impl ConnectOptions {
    /// Fails if `qp` was reset after its address was last taken: its PSN has changed.
    pub(super) fn check_advertised_psn(&self, qp: &QpObject) -> Result<(), Error> {
        match self.psn {
            Some(_) => Ok(()),
            None => qp.check_advertised_psn(),
        }
    }

    /// The attributes of the transition to INIT.
    pub(super) const fn init(&self) -> InitAttr {
        let Self { port, pkey_index, access, .. } = *self;
        InitAttr { port, pkey_index, access }
    }
}

impl Domain {
    /// The address by which a peer reaches `qp`, until its next [`Qp::reset`]. It contains the
    /// first PSN that `qp` sends. A reset draws another PSN, so that the new connection does not
    /// accept packets of the old one. A peer that connects with an older address receives nothing
    /// and gets no error. [`Domain::connect`] therefore refuses a queue pair that was reset after
    /// its address was taken, unless [`ConnectOptions::psn`] is set.
    ///
    /// # Errors
    /// The port or the GID of the options does not exist; an Ethernet port has no GID; the path MTU
    /// exceeds the port's.
    pub fn address<S: Service, R: ReceiveSide>(
        &self,
        qp: &Qp<S, R>,
        options: &ConnectOptions,
    ) -> Result<PeerAddress, Error> {
        self.address_of(qp.object(), options)
    }

    /// The address by which a peer reaches `qp`, a queue pair whose rings are outside this process,
    /// for example in the memory of a DPA.
    ///
    /// # Errors
    /// As [`Domain::address`].
    pub fn address_of(
        &self,
        qp: &QpObject,
        options: &ConnectOptions,
    ) -> Result<PeerAddress, Error> {
        let port = self.device.query_port(options.port)?;
        let ethernet = port.link_layer() == LinkLayer::Ethernet;
        let gid = match ethernet {
            true => Some(self.roce_gid(options)?.0),
            false => self.infiniband_gid(options)?,
        };
        Ok(PeerAddress {
            qpn: qp.qpn(),
            psn: options.psn.unwrap_or_else(|| qp.advertise_psn()),
            ethernet,
            lid: if ethernet { 0 } else { port.raw.lid },
            gid: gid.unwrap_or_default(),
            grh_required: needs_grh(&port),
            service_level: options.service_level.unwrap_or(0),
            mtu: path_mtu(&port, options)?,
            reads: self.responder_resources(options),
        })
    }

    /// Checks these options without connecting: the port, GID and path MTU exist.
    ///
    /// # Errors
    /// As [`Domain::address`].
    pub fn check_options(&self, options: &ConnectOptions) -> Result<(), Error> {
        let port = self.device.query_port(options.port)?;
        path_mtu(&port, options)?;
        match port.link_layer() {
            LinkLayer::Ethernet => self.roce_gid(options).map(drop),
            _ => self.infiniband_gid(options).map(drop),
        }
    }

    /// READs and atomics of a peer that we answer at a time; the device takes powers of two only.
    pub(super) fn responder_resources(&self, options: &ConnectOptions) -> u8 {
        match options.reads.min(self.device.caps().max_reads_in) {
            0 => 0,
            some => some.min(128).next_power_of_two(),
        }
    }

    /// Takes `qp` from RESET through INIT and RTR to RTS, towards `peer`, which must be of the same
    /// service. Post receives before you send our address to the peer: it may send at once.
    ///
    /// # Errors
    /// `qp` was reset after its address was last taken ([`Domain::address`]); the peer is on
    /// another fabric, or in another subnet without a router; the path MTU exceeds the port's; a
    /// GID or a neighbour does not exist; the device refuses a transition (the error has the queue
    /// pair's state).
    pub fn connect<S: Connected, R: ReceiveSide>(
        &self,
        qp: &mut Qp<S, R>,
        peer: &PeerAddress,
        options: &ConnectOptions,
    ) -> Result<(), Error> {
        Self::take_steps(qp, &self.steps(qp.object(), peer, options)?)
    }

    /// The attributes of the transitions to INIT, RTR and RTS, connected to `peer`; finds the path.
    pub(super) fn steps(
        &self,
        qp: &QpObject,
        peer: &PeerAddress,
        options: &ConnectOptions,
    ) -> Result<ConnectSteps, Error> {
        options.check_advertised_psn(qp)?;
        let (path, mtu) = self.resolve_peer_path(qp.qpn(), peer, options)?;
        Ok(self.steps_over(qp, path, mtu, peer, options))
    }

    /// The attributes of the transitions to INIT, RTR and RTS, connected to `peer` over `path`.
    pub(super) fn steps_over(
        &self,
        qp: &QpObject,
        path: Path,
        mtu: Mtu,
        peer: &PeerAddress,
        options: &ConnectOptions,
    ) -> ConnectSteps {
        ConnectSteps {
            init: options.init(),
            rtr: RtrAttr {
                path,
                mtu,
                remote_qpn: peer.qpn,
                receive_psn: peer.psn,
                max_destination_reads: self.responder_resources(options),
                min_rnr_timer: options.min_rnr_timer,
            },
            rts: RtsAttr {
                send_psn: options.psn.unwrap_or_else(|| qp.first_psn()),
                ack_timeout: options.ack_timeout,
                retry_count: options.retry_count,
                rnr_retry: options.rnr_retry,
                max_reads: options.reads.min(self.device.caps().max_reads_out).min(peer.reads),
            },
        }
    }

    /// Executes the three transitions.
    pub(super) fn take_steps<S: Connected, R: ReceiveSide>(
        qp: &mut Qp<S, R>,
        steps: &ConnectSteps,
    ) -> Result<(), Error> {
        qp.to_init(&steps.init)?;
        qp.to_rtr(&steps.rtr)?;
        qp.to_rts(&steps.rts)
    }
}
