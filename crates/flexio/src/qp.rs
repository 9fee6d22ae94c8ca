//! Queue pairs with rings in a process's heap: programs on the DPA post to them.
//!
//! The receive queue is first in the ring, and the send queue follows, as the device requires.
//!
//! ```
//! # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/documented.rs"));
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let process = process()?;
//! use verbless_flexio::{DpaCq, DpaCqConfig, CqElement, DpaQp, DpaQpConfig, QpState};
//! use verbless_queue as queue;
//!
//! let cq = DpaCq::create(&process, &DpaCqConfig::new(4, CqElement::NonDpa { vector: 0 }))?;
//! let mut qp = DpaQp::create(&process, &DpaQpConfig::rc(&cq, &cq, 4))?;
//! // The other end: a queue pair of the host.
//! let domain = process.domain();
//! let host_cq = domain.completion_queue(&queue::CqConfig::new(32))?;
//! let mut host = domain.queue_pair(&queue::QpConfig::new(4, 4), &host_cq, &host_cq)?;
//! let options = queue::ConnectOptions::default();
//! let address = domain.address(&host, &options)?;
//! domain.connect(&mut host, &qp.address(&options)?, &options)?;
//! qp.connect(&address, &options)?;
//! assert_eq!(qp.state()?, QpState::Rts);
//! # Ok(())
//! # }
//! ```

use std::sync::Arc;

use verbless_command::{
    DatagramAttr, Device, Gid, InitAttr, Mtu, Path, QKey, QpAttr as CommandAttr, QpObject, Qpn,
    RemoteAccess, RmpObject, RtrAttr, RtsAttr, RtsChange, ServiceType,
};
use verbless_devx::Pd;
use verbless_queue::{ConnectOptions, Domain, PeerAddress};

use crate::cq::CqHandle;
use crate::error::Error;
use crate::holders::{Holding, key};
use crate::ids::QpNumber;
use crate::memory::{QueueMemory, RECORD};
use crate::process::Process;
use crate::uar::Uar;
use crate::wq::check_cross_device;

mod route;

const WQEBB: u64 = verbless_flexio_dev::segment::WQEBB as u64;

/// Transport services (`flexio_qp_transport_type`); the first three are supported.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[repr(u8)]
pub enum QpTransport {
    /// `FLEXIO_QPC_ST_RC`.
    #[default]
    Rc = 0x0,
    /// `FLEXIO_QPC_ST_UC`.
    Uc = 0x1,
    /// `FLEXIO_QPC_ST_UD`.
    Ud = 0x2,
    /// `FLEXIO_QPC_ST_XRC`: not supported.
    Xrc = 0x3,
    /// `FLEXIO_QPC_ST_IBL2`: not supported.
    IbL2 = 0x4,
    /// `FLEXIO_QPC_ST_DCI`: not supported.
    Dci = 0x5,
    /// `FLEXIO_QPC_ST_QP0`: reserved for the kernel.
    Qp0 = 0x7,
    /// `FLEXIO_QPC_ST_QP1`: reserved for the kernel.
    Qp1 = 0x8,
    /// `FLEXIO_QPC_ST_RAW_DATAGRAM`: not supported; SQs and RQs carry raw packets.
    RawDatagram = 0x9,
    /// `FLEXIO_QPC_ST_REG_UMR`: not supported.
    RegUmr = 0xc,
    /// `FLEXIO_QPC_ST_DC_CNAK`: reserved for the device.
    DcCnak = 0x10,
}

impl QpTransport {
    fn service(self) -> Result<ServiceType, Error> {
        match self {
            Self::Rc => Ok(ServiceType::RC),
            Self::Uc => Ok(ServiceType::UC),
            Self::Ud => Ok(ServiceType::UD),
            other => Err(Error::Failed(format!(
                "the transport {other:?} is not supported: Rc, Uc and Ud are"
            ))),
        }
    }
}

/// States of a queue pair (`flexio_qp_state`), including those without a name in the C library.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum QpState {
    /// `FLEXIO_QP_STATE_RST`.
    #[default]
    Rst,
    /// `FLEXIO_QP_STATE_INIT`.
    Init,
    /// `FLEXIO_QP_STATE_RTR`.
    Rtr,
    /// `FLEXIO_QP_STATE_RTS`.
    Rts,
    /// `FLEXIO_QP_STATE_ERR`.
    Err,
    /// Another state, by the device's number, for example 4: SQER, in which only the send queue has
    /// failed.
    Other(u8),
}

impl QpState {
    /// The number of FlexIO and the device.
    pub const fn number(self) -> u8 {
        match self {
            Self::Rst => 0x0,
            Self::Init => 0x1,
            Self::Rtr => 0x2,
            Self::Rts => 0x3,
            Self::Err => 0x6,
            Self::Other(number) => number,
        }
    }

    const fn of_number(number: u8) -> Self {
        match number {
            0x0 => Self::Rst,
            0x1 => Self::Init,
            0x2 => Self::Rtr,
            0x3 => Self::Rts,
            0x6 => Self::Err,
            other => Self::Other(other),
        }
    }
}

/// The receive queue of a queue pair (`rq_type`).
#[derive(Debug, Clone, Default)]
pub enum QpReceive {
    /// None (`FLEXIO_QP_QPC_RQ_TYPE_ZERO_SIZE_RQ`).
    #[default]
    None,
    /// A receive queue of its own, of 2^n WQEs of 16 bytes (`FLEXIO_QP_QPC_RQ_TYPE_REGULAR`).
    Regular {
        /// n (`log_rq_depth`).
        log_depth: u8,
    },
    /// A receive memory pool (`FLEXIO_QP_QPC_RQ_TYPE_SRQ_RMP_XRC_SRQ_XRQ`).
    Rmp(Arc<RmpObject>),
}

/// Configuration of a queue pair (`flexio_qp_attr`, the fields that `flexio_qp_create` reads).
#[derive(Debug, Clone)]
pub struct DpaQpConfig {
    /// The transport service.
    pub transport: QpTransport,
    /// The UAR whose outboxes ring for the queue pair; `None`: the process's.
    pub uar: Option<Uar>,
    /// The user index in the CQEs, beside the queue's number (24 bits).
    pub user_index: u32,
    /// The protection domain; by default the process's.
    pub pd: Option<Pd>,
    /// log2 of the send queue's WQEBBs of 64 bytes (`log_sq_depth`); `None`: no send queue
    /// (`no_sq`).
    pub log_sq_depth: Option<u8>,
    /// Completion queue of sends (`sq_cqn`).
    pub sq_cq: CqHandle,
    /// The receive queue.
    pub receive: QpReceive,
    /// Completion queue of receives (`rq_cqn`).
    pub rq_cq: CqHandle,
    /// Memory of the rings (`qp_wq_buff_qmem`); `None`: allocates it in the heap.
    pub ring: Option<QueueMemory>,
    /// Memory of the doorbell record, 8 bytes of zeros (`qp_wq_dbr_qmem`); `None`: allocates it in
    /// the heap.
    pub record: Option<QueueMemory>,
}

impl DpaQpConfig {
    /// Attributes of a reliable connected queue pair without receives, with 2^`log_sq_depth` WQEBBs
    /// for sends.
    pub fn rc(sq_cq: impl Into<CqHandle>, rq_cq: impl Into<CqHandle>, log_sq_depth: u8) -> Self {
        Self {
            transport: QpTransport::Rc,
            uar: None,
            user_index: 0,
            pd: None,
            log_sq_depth: Some(log_sq_depth),
            sq_cq: sq_cq.into(),
            receive: QpReceive::None,
            rq_cq: rq_cq.into(),
            ring: None,
            record: None,
        }
    }
}

/// Attributes of a queue pair's transitions (`flexio_qp_attr`, the fields that `flexio_qp_modify`
/// reads). Each transition reads only some of them; the defaults suit most connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QpAttr {
    /// The state to go to.
    pub next_state: QpState,
    /// Rights of the peer: set in INIT, and by later transitions with the mask bit
    /// (`qp_access_mask`).
    pub access: RemoteAccess,
    /// The port, counted from 1 (INIT).
    pub vhca_port_num: u8,
    /// The Q_Key that datagrams must carry (INIT of UD).
    pub q_key: u32,
    /// The peer's queue pair (RTR).
    pub remote_qp_num: QpNumber,
    /// The index of the source GID (RTR).
    pub gid_table_index: u8,
    /// Force loopback to this function: the rest of the path is ignored (RTR; `fl`).
    pub force_loopback: bool,
    /// The destination MAC, on Ethernet (RTR).
    pub dest_mac: [u8; 6],
    /// The peer's GID (RTR; `rgid_or_rip`).
    pub rgid: Gid,
    /// The peer's LID, on InfiniBand (RTR).
    pub rlid: u16,
    /// A global route header, on InfiniBand (RTR).
    pub grh: bool,
    /// The UDP source port of RoCE v2 (RTR).
    pub udp_sport: u16,
    /// Payload bytes of a packet (RTR).
    pub path_mtu: Mtu,
    /// The first PSN that the peer sends (RTR).
    pub next_rcv_psn: u32,
    /// The RNR NAK timer code: read for RTR, and after it with the mask bit.
    pub min_rnr_nak_timer: u8,
    /// log2 of the READs and atomics that the queue pair answers at a time (RTR).
    pub log_rra_max: u8,
    /// log2 of the READs and atomics that the queue pair sends at a time (RTS).
    pub log_sra_max: u8,
    /// The first PSN that the queue pair sends (RTS).
    pub next_send_psn: u32,
    /// Retries after a timeout of 67 ms, 0 to 7 (RTS).
    pub retry_count: u8,
    /// Isolates the packets in a virtual lane or traffic class of their own; not supported: `true`
    /// is refused.
    pub isolate_vl_tc: bool,
}

impl Default for QpAttr {
    fn default() -> Self {
        Self {
            next_state: QpState::Rst,
            access: RemoteAccess::ALL,
            vhca_port_num: 1,
            q_key: 0,
            remote_qp_num: QpNumber(0),
            gid_table_index: 0,
            force_loopback: false,
            dest_mac: [0; 6],
            rgid: Gid([0; 16]),
            rlid: 0,
            grh: false,
            udp_sport: verbless_command::ROCE_V2_FIRST_PORT,
            path_mtu: Mtu::B1024,
            next_rcv_psn: 0,
            min_rnr_nak_timer: 12,
            log_rra_max: 0,
            log_sra_max: 0,
            next_send_psn: 0,
            retry_count: 7,
            isolate_vl_tc: false,
        }
    }
}

/// Optional attributes for a transition (`flexio_qp_attr_opt_param_mask`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct QpAttrMask {
    /// [`QpAttr::access`].
    pub qp_access_mask: bool,
    /// [`QpAttr::min_rnr_nak_timer`].
    pub min_rnr_nak_timer: bool,
}

/// A queue pair (`flexio_qp`).
#[derive(Debug)]
pub struct DpaQp {
    object: QpObject,
    process: Process,
    /// The domain through which the queue pair reaches peers.
    domain: Domain,
    ring: u64,
    record: u64,
    receive_bytes: u64,
    _holding: Holding,
}

impl DpaQp {
    /// Creates a queue pair in RST (`flexio_qp_create`).
    ///
    /// # Errors
    /// The process has ended; another transport than RC, UC and UD; the heap has no room; the
    /// device refuses. [`Error::CopyTimeout`]: nothing was created.
    pub fn create(process: &Process, config: &DpaQpConfig) -> Result<Self, Error> {
        Self::make(process, process.domain().clone(), config)
    }

    /// Creates a queue pair on another device context than the process's (`flexio_qp_create` with
    /// its `ibv_ctx`). Ring and record must be in host memory registered there, which the program
    /// accesses through a window; protection domain, UAR ([`Uar::extend`](crate::Uar::extend)) and
    /// CQs must be of that context too.
    ///
    /// # Errors
    /// `device` is the process's own context; a part of the configuration belongs to another one;
    /// as for [`DpaQp::create`].
    pub fn create_cross_dev(
        process: &Process,
        device: &Device,
        config: &DpaQpConfig,
    ) -> Result<Self, Error> {
        check_cross_device(
            process,
            device,
            [&config.ring, &config.record],
            &config.uar,
            Some(&config.pd),
        )?;
        Self::make(process, Domain::new(device)?, config)
    }

    fn make(process: &Process, domain: Domain, config: &DpaQpConfig) -> Result<Self, Error> {
        process.alive()?;
        let device = domain.device();
        let service = config.transport.service()?;
        let (log_receive_wqes, shared) = match &config.receive {
            QpReceive::None => (None, None),
            QpReceive::Regular { log_depth } => (Some(*log_depth), None),
            QpReceive::Rmp(pool) => (None, Some(pool.clone())),
        };
        let most = device.caps().log_max_qp_wqebbs;
        if let Some(log) = [config.log_sq_depth, log_receive_wqes].into_iter().flatten().max()
            && log > most
        {
            return Err(Error::Failed(format!(
                "a queue of depth 2^{log}: the device has 2^{most} at most"
            )));
        }
        let receive_bytes = log_receive_wqes.map_or(0, |log| 16_u64 << log);
        let bytes = receive_bytes + config.log_sq_depth.map_or(0, |log| WQEBB << log);
        let ring = match &config.ring {
            Some(ring) => ring.clone(),
            None => {
                let buffer = process.alloc(bytes.max(WQEBB))?;
                buffer.fill(0)?;
                QueueMemory::dpa(&buffer)
            }
        };
        let record = match &config.record {
            Some(record) => record.clone(),
            None => QueueMemory::holding(process, &[0; 8])?,
        };
        ring.check("ring of the queue pair", process, bytes)?;
        record.check("doorbell record of the queue pair", process, RECORD)?;
        let mut holds = vec![process.key(), key(&config.sq_cq.0), key(&config.rq_cq.0)];
        holds.extend(shared.as_ref().map(key));
        holds.extend([&ring, &record].into_iter().filter_map(|it| it.buffer));
        let attr = CommandAttr {
            service,
            pd: config.pd.as_ref().unwrap_or_else(|| process.pd()).clone(),
            uar: config.uar.clone().unwrap_or_else(|| process.uar()).page().clone(),
            send_cq: config.sq_cq.0.clone(),
            receive_cq: config.rq_cq.0.clone(),
            rings: ring.for_command(),
            record: record.for_command(),
            log_send_wqebbs: config.log_sq_depth,
            log_receive_wqes,
            rmp: shared,
            log_receive_stride: 4,
            user_index: config.user_index,
            dma_mmo: false,
        };
        let object = device.create_qp(attr).map_err(|error| process.fatal_or(error))?;
        crate::log::debug!("made QP {}", object.qpn());
        let _holding = Holding::new(format!("QP {}", object.qpn().0), holds);
        Ok(Self {
            _holding,
            object,
            process: process.clone(),
            domain,
            ring: ring.address(),
            record: record.address(),
            receive_bytes,
        })
    }

    /// The number of the queue pair (`flexio_qp_get_qp_num`).
    pub fn number(&self) -> QpNumber {
        QpNumber(self.object.qpn().0)
    }

    /// The number of the queue pair, as a type of `verbless-command`.
    pub fn qpn(&self) -> Qpn {
        self.object.qpn()
    }

    /// The [`QpObject`] of `verbless-command`.
    pub const fn object(&self) -> &QpObject {
        &self.object
    }

    /// Address of the receive queue for a program.
    pub const fn rq_ring_address(&self) -> u64 {
        self.ring
    }

    /// Address of the send queue for a program.
    pub const fn sq_ring_address(&self) -> u64 {
        self.ring + self.receive_bytes
    }

    /// Address of the doorbell record: the receive counter, and the send counter 4 bytes after it.
    pub const fn record_address(&self) -> u64 {
        self.record
    }

    /// The process.
    pub const fn process(&self) -> &Process {
        &self.process
    }

    /// The state that the device reports (`flexio_qp_state_get`).
    ///
    /// # Errors
    /// The device does not respond.
    pub fn state(&self) -> Result<QpState, Error> {
        Ok(QpState::of_number(self.object.state()?.0))
    }

    /// Moves the queue pair to another state (`flexio_qp_modify`): from any to RST and ERR, from
    /// RST to INIT, from INIT to INIT and RTR, from RTR to RTS, from RTS to RTS. For datagrams,
    /// INIT to INIT changes nothing: the transition from RST sets the Q_Key. In ERR the posted
    /// requests complete as flushed, after this call returns; RST discards the rest.
    ///
    /// # Errors
    /// The process has ended; no such transition; a value that the transition does not accept. The
    /// state is then the old one, unless the mask needs a second command: RTR and RTS with optional
    /// attributes do.
    pub fn modify(&mut self, attr: &QpAttr, mask: &QpAttrMask) -> Result<(), Error> {
        self.process.alive()?;
        if attr.isolate_vl_tc {
            return Err(Error::Failed("isolate_vl_tc is not supported".into()));
        }
        let from = self.state()?;
        let datagrams = self.object.attr().service == ServiceType::UD;
        let init = InitAttr { port: attr.vhca_port_num, pkey_index: 0, access: attr.access };
        match (from, attr.next_state) {
            (_, QpState::Rst) => self.object.to_reset()?,
            (_, QpState::Err) => self.object.to_error()?,
            (QpState::Rst, QpState::Init) if datagrams => {
                let (port, q_key) = (attr.vhca_port_num, QKey(attr.q_key));
                self.object.to_init_datagram(&DatagramAttr { port, pkey_index: 0, q_key })?;
            }
            (QpState::Rst, QpState::Init) => self.object.to_init(&init)?,
            (QpState::Init, QpState::Init) => self.object.change_init(&init)?,
            (QpState::Init, QpState::Rtr) if datagrams => self.object.to_rtr_datagram()?,
            (QpState::Init, QpState::Rtr) => {
                if mask.qp_access_mask {
                    self.object.change_init(&init)?;
                }
                self.object.to_rtr(&RtrAttr {
                    path: self.path(attr)?,
                    mtu: attr.path_mtu,
                    remote_qpn: Qpn(attr.remote_qp_num.0),
                    receive_psn: attr.next_rcv_psn,
                    max_destination_reads: reads(attr.log_rra_max)?,
                    min_rnr_timer: attr.min_rnr_nak_timer,
                })?;
            }
            (QpState::Rtr, QpState::Rts) if datagrams => {
                self.object.to_rts_datagram(attr.next_send_psn)?;
            }
            (QpState::Rtr, QpState::Rts) => {
                self.object.to_rts(&RtsAttr {
                    send_psn: attr.next_send_psn,
                    ack_timeout: 14,
                    retry_count: attr.retry_count,
                    rnr_retry: 7,
                    max_reads: reads(attr.log_sra_max)?,
                })?;
                self.change(attr, mask)?;
            }
            (QpState::Rts, QpState::Rts) => self.change(attr, mask)?,
            (from, to) => {
                return Err(Error::Failed(format!(
                    "a queue pair in {from:?} does not go to {to:?}: the order is Rst, Init, Rtr, \
                     Rts"
                )));
            }
        }
        Ok(())
    }

    /// RTS2RTS_QP with the attributes that it may change.
    fn change(&mut self, attr: &QpAttr, mask: &QpAttrMask) -> Result<(), Error> {
        let change = RtsChange {
            access: mask.qp_access_mask.then_some(attr.access),
            min_rnr_timer: mask.min_rnr_nak_timer.then_some(attr.min_rnr_nak_timer),
        };
        match change == RtsChange::default() {
            true => Ok(()),
            false => Ok(self.object.change(&change)?),
        }
    }

    fn path(&self, attr: &QpAttr) -> Result<Path, Error> {
        route::path(self.domain.device(), attr)
    }

    /// The address by which a peer reaches the queue pair.
    ///
    /// # Errors
    /// The port has no address.
    pub fn address(&self, options: &ConnectOptions) -> Result<PeerAddress, Error> {
        Ok(self.domain.address_of(&self.object, options)?)
    }

    /// Connects the queue pair to a peer, from RST to RTS: the transitions of [`DpaQp::modify`],
    /// with the peer's address. The peer connects with [`DpaQp::address`] under the same options.
    ///
    /// # Errors
    /// As [`DpaQp::modify`]; a datagram queue pair; no path to the peer; the last
    /// [`DpaQp::address`] is from before a reset.
    pub fn connect(&mut self, peer: &PeerAddress, options: &ConnectOptions) -> Result<(), Error> {
        self.process.alive()?;
        let domain = &self.domain;
        if options.psn.is_none() {
            self.object.check_advertised_psn()?;
        }
        let own = domain.address_of(&self.object, options)?;
        let path = domain.path(peer, options)?;
        let (port, pkey_index, access) = (options.port, options.pkey_index, options.access);
        self.object.to_init(&InitAttr { port, pkey_index, access })?;
        self.object.to_rtr(&RtrAttr {
            path,
            mtu: own.mtu.min(peer.mtu),
            remote_qpn: peer.qpn,
            receive_psn: peer.psn,
            max_destination_reads: own.reads,
            min_rnr_timer: options.min_rnr_timer,
        })?;
        self.object.to_rts(&RtsAttr {
            send_psn: own.psn,
            ack_timeout: options.ack_timeout,
            retry_count: options.retry_count,
            rnr_retry: options.rnr_retry,
            max_reads: own.reads.min(peer.reads),
        })?;
        Ok(())
    }

    /// Destroys the queue pair (`flexio_qp_destroy`). A drop destroys it too, and ignores the
    /// error.
    ///
    /// # Errors
    /// The device refuses.
    pub fn destroy(self) -> Result<(), Error> {
        Ok(self.object.destroy()?)
    }
}

/// Checks the log2 of a number of READs and atomics.
fn reads(log: u8) -> Result<u8, Error> {
    1_u8.checked_shl(log.into()).ok_or_else(|| {
        Error::Failed(format!("2^{log} READs and atomics at a time: 2^7 at most are possible"))
    })
}
