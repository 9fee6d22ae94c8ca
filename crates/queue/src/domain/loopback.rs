//! Local connections: a queue pair connected to itself, or two of our queue pairs to each other.
//!
//! Most devices support force loopback, which needs no address. Sources: DPDK
//! `drivers/common/mlx5/mlx5_devx_cmds.c` (`mlx5_devx_cmd_modify_qp_state`), rdma-core
//! `providers/mlx5/dr_send.c` (`dr_prepare_qp_to_rts`).

use verbless_command::{Error, Gid, Path, ServiceType};
use verbless_devx::LinkLayer;

use super::options::ConnectOptions;
use super::path::path_mtu;
use super::peer::PeerAddress;
use super::protection::Domain;
use super::queues::Qp;
use verbless_ring::qp::ReceiveSide;
use verbless_ring::service::Connected;

impl Domain {
    /// Connects a queue pair to itself: it receives its own sends, and accesses memory of its own
    /// device by remote keys. Such a queue pair copies memory and executes atomics locally.
    ///
    /// If the device [forces loopback](verbless_command::Device::forces_loopback), an RC queue pair
    /// needs neither an address nor an active port, unless `options` name a GID.
    ///
    /// # Errors
    /// As [`Domain::connect`].
    pub fn connect_loopback<S: Connected, R: ReceiveSide>(
        &self,
        qp: &mut Qp<S, R>,
        options: &ConnectOptions,
    ) -> Result<(), Error> {
        match self.loopback_address(qp, options)? {
            Some(own) => self.loop_back(qp, &own, options),
            None => {
                let own = self.address(qp, options)?;
                self.connect(qp, &own, options)
            }
        }
    }

    /// Connects two of our queue pairs to each other, without an address if force loopback is
    /// possible, as in [`Domain::connect_loopback`].
    ///
    /// # Errors
    /// As [`Domain::connect`].
    pub fn connect_pair<S: Connected, R: ReceiveSide>(
        &self,
        (one, other): (&mut Qp<S, R>, &mut Qp<S, R>),
        options: &ConnectOptions,
    ) -> Result<(), Error> {
        let addresses = self.loopback_address(one, options)?;
        if let (Some(first), Some(second)) = (addresses, self.loopback_address(other, options)?) {
            self.loop_back(other, &first, options)?;
            return self.loop_back(one, &second, options);
        }
        let (first, second) = (self.address(one, options)?, self.address(other, options)?);
        self.connect(other, &first, options)?;
        self.connect(one, &second, options)
    }

    /// The address by which one of our queue pairs reaches `qp` with force loopback; `None` if
    /// force loopback cannot be used.
    fn loopback_address<S: Connected, R: ReceiveSide>(
        &self,
        qp: &Qp<S, R>,
        options: &ConnectOptions,
    ) -> Result<Option<PeerAddress>, Error> {
        let by_force = S::TYPE == ServiceType::RC
            && options.gid_index.is_none()
            && self.device.forces_loopback()?;
        if !by_force {
            return Ok(None);
        }
        let port = self.device.query_port(options.port)?;
        Ok(Some(PeerAddress {
            qpn: qp.qpn(),
            psn: options.psn.unwrap_or_else(|| qp.object().first_psn()),
            ethernet: port.link_layer() == LinkLayer::Ethernet,
            lid: 0,
            gid: Gid::default(),
            grh_required: false,
            service_level: 0,
            mtu: path_mtu(&port, options)?,
            reads: self.responder_resources(options),
        }))
    }

    /// Connects `qp` to one of our queue pairs by force loopback.
    fn loop_back<S: Connected, R: ReceiveSide>(
        &self,
        qp: &mut Qp<S, R>,
        to: &PeerAddress,
        options: &ConnectOptions,
    ) -> Result<(), Error> {
        let steps = self.steps_over(qp.object(), Path::Loopback, to.mtu, to, options);
        Self::take_steps(qp, &steps)
    }
}
