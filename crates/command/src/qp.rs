//! Queue pairs: creation, the transitions between their states, and query.
//!
//! CREATE_QP leaves a queue pair in RESET. INIT, RTR (ready to receive) and RTS (ready to send)
//! follow in this order; each transition has a function that takes its legal attributes only. The
//! functions take `&mut self`: the owner of the rings must see each transition, because RESET
//! discards posted WQEs and the owner must drop their cookies.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use verbless_devx::{Errno, Error, ErrorKind, Pd, Uar};
use verbless_prm as prm;
use verbless_prm::{
    AtomicMode, CreateQpIn, CreateQpOut, Init2rtrQpIn, OptParamMask, PathMigrationState, QpContext,
    QpState, QueryQpIn, RqType, Rst2initQpIn, Rtr2rtsQpIn, Rts2rtsQpIn, ServiceType,
};

use crate::caps::Caps;
use crate::cq::CqObject;
use crate::device::Device;
use crate::error::{all_of, fits, invalid, limit, refused};
use crate::execute;
use crate::memory::{QueueMemory, memory_parts, set_record};
use crate::owned::Owned;
use crate::path::Path;
use crate::random::random_u64;
use crate::rmp::RmpObject;
use verbless_prm::access::RemoteAccess;
use verbless_prm::number::{QKey, Qpn};

/// The opt_param_mask bits of rre, rwe and rae that the service has.
const fn access_opt_mask(service: ServiceType) -> u32 {
    match service {
        ServiceType::RC => OptParamMask::RRE.0 | OptParamMask::RWE.0 | OptParamMask::RAE.0,
        ServiceType::UC => OptParamMask::RWE.0,
        _ => 0,
    }
}

/// Attributes of a queue pair. The memory of its queues lies in user memory that the caller
/// registered.
///
/// Its `counter_set_id` stays 0. mlx5_ib gives its own queue pairs the counter set of their port in
/// RST2INIT, but a DevX user cannot read the number of that set. So the port's `hw_counters` of
/// Linux may not count these queue pairs.
#[derive(Debug, Clone)]
pub struct QpAttr {
    /// Transport service: RC, UC or UD.
    pub service: ServiceType,
    /// Protection domain of the queue pair and of the keys that it may use.
    pub pd: Pd,
    /// The UAR page for its doorbells.
    pub uar: Arc<Uar>,
    /// Completion queue of sends.
    pub send_cq: Arc<CqObject>,
    /// Completion queue of receives.
    pub receive_cq: Arc<CqObject>,
    /// Memory of the receive ring followed by the send ring.
    pub rings: QueueMemory,
    /// Memory of the doorbell record: 8 bytes, receive counter then send counter.
    pub record: QueueMemory,
    /// log2 of the number of WQEBBs (64 bytes) of the send ring; `None` for no send queue.
    pub log_send_wqebbs: Option<u8>,
    /// log2 of the number of receive WQEs; `None` for no receive queue of its own.
    pub log_receive_wqes: Option<u8>,
    /// The RMP, if the queue pair has no RQ of its own. If this and `log_receive_wqes` are `None`,
    /// the queue pair cannot receive.
    pub rmp: Option<Arc<RmpObject>>,
    /// log2 of the bytes per receive WQE, at least 4 (one data segment).
    pub log_receive_stride: u8,
    /// User index (24 bits): the device writes it into CQEs beside the QPN.
    pub user_index: u32,
    /// Whether the queue pair takes DMA MMO WQEs (`DmaMmo` of verbless-ring). It needs the service
    /// RC, and the capability `dma_mmo_qp` or `dma_mmo_sq`.
    pub dma_mmo: bool,
}

/// Attributes of RESET → INIT.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InitAttr {
    /// Port, counted from 1.
    pub port: u8,
    /// Index of the partition key in the port's table.
    pub pkey_index: u16,
    /// Rights of the peer.
    pub access: RemoteAccess,
}

/// Attributes of RESET → INIT of a datagram queue pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DatagramAttr {
    /// Port, counted from 1.
    pub port: u8,
    /// Index of the partition key in the port's table.
    pub pkey_index: u16,
    /// The Q_Key that a datagram must carry.
    pub q_key: QKey,
}

/// Payload bytes of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Mtu {
    /// 256 bytes.
    B256 = 1,
    /// 512 bytes.
    B512 = 2,
    /// 1024 bytes.
    B1024 = 3,
    /// 2048 bytes.
    B2048 = 4,
    /// 4096 bytes.
    B4096 = 5,
}

impl Mtu {
    /// All values, in ascending order.
    pub const ALL: [Self; 5] = [Self::B256, Self::B512, Self::B1024, Self::B2048, Self::B4096];

    /// Bytes of payload.
    pub const fn bytes(self) -> u32 {
        128 << self as u32
    }

    /// The MTU of `bytes` bytes; `None` if no such MTU exists.
    pub fn of_bytes(bytes: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|mtu| mtu.bytes() == bytes)
    }

    /// The MTU with this code in the device's contexts and in InfiniBand.
    pub fn of_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|&mtu| mtu as u8 == code)
    }
}

/// Attributes of INIT → RTR.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RtrAttr {
    /// The path to the peer.
    pub path: Path,
    /// Path MTU; at most the port's active MTU.
    pub mtu: Mtu,
    /// The peer's queue pair.
    pub remote_qpn: Qpn,
    /// First packet sequence number that the peer will send (24 bits).
    pub receive_psn: u32,
    /// READs and atomics that the peer may have outstanding here, at most
    /// [`Caps::max_reads_in`](crate::Caps::max_reads_in); rounded up to a power of two. 0 forbids
    /// both, whatever access flags INIT set. Reliable services only.
    pub max_destination_reads: u8,
    /// RNR NAK timer code, 0 to 31 (1: 0.01 ms, 12: 0.64 ms, 0: 655.36 ms). Reliable services only.
    pub min_rnr_timer: u8,
}

/// Attributes of RTR → RTS. All but the first are for reliable services only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RtsAttr {
    /// First packet sequence number sent (24 bits); the peer's `receive_psn`.
    pub send_psn: u32,
    /// ACK timeout code, 0 to 31: 4.096 µs · 2^n; 0 means no timeout.
    pub ack_timeout: u8,
    /// Retries after a timeout or sequence error, 0 to 7.
    pub retry_count: u8,
    /// Retries after the peer had no receive WQE, 0 to 7; 7: no limit.
    pub rnr_retry: u8,
    /// READs and atomics that may be outstanding, at most
    /// [`Caps::max_reads_out`](crate::Caps::max_reads_out); rounded up to a power of two.
    pub max_reads: u8,
}

/// Attributes that RTS2RTS_QP may change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RtsChange {
    /// New access flags of the peer.
    pub access: Option<RemoteAccess>,
    /// RNR NAK timer code, 0 to 31.
    pub min_rnr_timer: Option<u8>,
}

/// A queue pair on the device, without rings and requests; `verbless_queue::Qp` adds them.
#[derive(Debug)]
pub struct QpObject {
    qpn: Qpn,
    /// The attributes of RST2INIT, which INIT2RTR repeats.
    init: InitAttr,
    /// INIT2RTR requested 0 inbound reads. log_rra_max cannot express 0, so rre and rae are cleared
    /// instead.
    no_reads: bool,
    log_max_message: u8,
    atomics: bool,
    max_reads_in: u8,
    max_reads_out: u8,
    /// Ports of the device, and entries of a port's P_Key table.
    ports: u8,
    pkeys: u32,
    /// Port of a bond that the queue pair sends from, 0 without a bond.
    lag_port: u8,
    /// The value of [`QpObject::first_psn`].
    psn: u32,
    /// The PSN that [`QpObject::advertise_psn`] last returned; [`NO_PSN`] if none.
    advertised_psn: AtomicU32,
    left_reset: bool,
    /// Whether it has reached RTR since its creation or last reset.
    reached_rtr: bool,
    /// Whether the context enables memory copies: only with `dma_mmo_qp`, not with `dma_mmo_sq`
    /// alone.
    enables_dma_mmo: bool,
    owned: Owned<QpAttr>,
}

impl Device {
    /// CREATE_QP: a queue pair in RESET.
    pub fn create_qp(&self, attr: QpAttr) -> Result<QpObject, Error> {
        let caps = self.caps();
        let most = caps.log_max_qp_wqebbs;
        for (what, log) in [
            ("log2 of the send ring's WQEBBs", attr.log_send_wqebbs),
            ("log2 of the receive WQEs", attr.log_receive_wqes),
        ] {
            if let Some(log) = log.filter(|&log| log > most) {
                return Err(limit("CREATE_QP", what, log.into(), most.into()));
            }
        }
        if attr.log_receive_wqes.is_some() && !(4..=9).contains(&attr.log_receive_stride) {
            return Err(invalid("CREATE_QP", "the receive stride must be 16 to 512 bytes"));
        }
        fits("CREATE_QP", "the user index", attr.user_index, 24)?;
        if attr.dma_mmo && (attr.service != ServiceType::RC || !caps.dma_mmo()) {
            let hint = "DMA MMO needs an RC queue pair and the capability dma_mmo_qp or \
                        dma_mmo_sq";
            return Err(invalid("CREATE_QP", hint));
        }
        let parts = [
            ("protection domain", attr.pd.context()),
            ("UAR", attr.uar.context()),
            ("CQ of the sends", attr.send_cq.object().context()),
            ("CQ of the receives", attr.receive_cq.object().context()),
        ];
        let rmp = attr.rmp.as_ref().map(|rmp| ("RMP", rmp.object().context()));
        all_of(
            self,
            "CREATE_QP",
            parts.into_iter().chain(memory_parts(&attr.rings, &attr.record)).chain(rmp),
        )?;
        let mut input = CreateQpIn::new();
        input.set_wq_umem_id(attr.rings.umem().id()).set_wq_umem_offset(attr.rings.offset());
        input.set_wq_umem_valid(true);
        let context = input.qpc_mut();
        context
            .set_st(attr.service)
            .set_pm_state(PathMigrationState::MIGRATED)
            .set_ts_format(caps.qp_timestamps)
            .set_pd(attr.pd.pdn())
            .set_uar_page(attr.uar.page_id())
            .set_cqn_snd(attr.send_cq.cqn().0)
            .set_cqn_rcv(attr.receive_cq.cqn().0)
            .set_user_index(attr.user_index);
        set_record!(context, attr.record);
        match attr.log_send_wqebbs {
            Some(log) => context.set_log_sq_size(log),
            None => context.set_no_sq(true),
        };
        match (attr.log_receive_wqes, &attr.rmp) {
            (Some(_), Some(_)) => {
                let hint =
                    "a queue pair has either a receive queue of its own or a shared one, not both";
                return Err(invalid("CREATE_QP", hint));
            }
            (None, Some(rmp)) => context.set_rq_type(RqType::SRQ).set_srqn_rmpn_xrqn(rmp.rmpn().0),
            (Some(log), None) => context
                .set_log_rq_size(log)
                .set_log_rq_stride(attr.log_receive_stride - 4)
                .set_rq_type(RqType::REGULAR),
            (None, None) => context.set_rq_type(RqType::NONE),
        };
        let mut output = CreateQpOut::zeroed();
        let object = self.create(&input, &mut output)?;
        Ok(QpObject {
            qpn: Qpn(output.qpn()),
            no_reads: false,
            init: InitAttr { port: 1, pkey_index: 0, access: RemoteAccess::default() },
            log_max_message: caps.log_max_message,
            atomics: caps.atomics,
            max_reads_in: caps.max_reads_in,
            max_reads_out: caps.max_reads_out,
            ports: caps.ports,
            pkeys: pkeys(caps),
            lag_port: self.next_lag_port(),
            psn: random_psn(),
            advertised_psn: AtomicU32::new(NO_PSN),
            left_reset: false,
            reached_rtr: false,
            enables_dma_mmo: attr.dma_mmo && caps.general.dma_mmo_qp(),
            owned: Owned::new(object, attr),
        })
    }
}

/// Entries of a port's P_Key table. For RoCE, Linux has only the default one
/// (`mlx5_query_port_roce`).
fn pkeys(caps: &Caps) -> u32 {
    match caps.port_type {
        prm::PortType::ETHERNET => 1,
        _ => 128 << caps.general.pkey_table_size().0.min(16),
    }
}

impl QpObject {
    /// The QPN, for WQEs, doorbells and peers.
    pub fn qpn(&self) -> Qpn {
        self.qpn
    }

    /// The attributes that the queue pair was created with.
    pub fn attr(&self) -> &QpAttr {
        self.owned.attr()
    }

    /// The DevX object, for subscribing to its events.
    pub fn object(&self) -> &verbless_devx::DevxObject {
        self.owned.object()
    }

    /// The first packet sequence number, drawn at random at creation and at each reset, so that a
    /// new connection does not accept packets of an old one.
    pub fn first_psn(&self) -> u32 {
        self.psn
    }

    /// Returns [`QpObject::first_psn`] and records that the peer gets it.
    pub fn advertise_psn(&self) -> u32 {
        self.advertised_psn.store(self.psn, Ordering::Relaxed);
        self.psn
    }

    /// Fails if the queue pair was reset since its first PSN was last
    /// [advertised](QpObject::advertise_psn): the peer expects the old PSN, and would receive
    /// nothing.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`](verbless_devx::ErrorKind::InvalidInput).
    pub fn check_advertised_psn(&self) -> Result<(), Error> {
        let old = self.advertised_psn.load(Ordering::Relaxed);
        if old == NO_PSN || old == self.psn {
            return Ok(());
        }
        let hint = format!(
            "QP {} was reset after its address went to the peer: its first PSN is {:#08x}, and the \
             peer expects {old:#08x}. Send the new address to the peer, then connect",
            self.qpn, self.psn
        );
        Err(refused("connecting a queue pair", hint))
    }

    /// RST2INIT_QP: RESET → INIT. Receives may be posted after it.
    pub fn to_init(&mut self, attr: &InitAttr) -> Result<(), Error> {
        self.check_connected("RST2INIT_QP")?;
        self.check_port_and_pkey("RST2INIT_QP", attr.port, attr.pkey_index)?;
        let mut input = Rst2initQpIn::new();
        input.set_qpn(self.qpn.0);
        let context = input.qpc_mut();
        self.set_service(context);
        self.no_reads = false;
        self.set_access(context, attr.access);
        context.set_lag_tx_port_affinity(self.lag_port);
        context
            .primary_address_path_mut()
            .set_vhca_port_num(attr.port)
            .set_pkey_index(attr.pkey_index);
        self.modify(&input, "INIT needs RESET")?;
        self.init = *attr;
        if self.enables_dma_mmo { self.enable_dma_mmo() } else { Ok(()) }
    }

    /// INIT2INIT_QP with mmo of the context's extension: enables memory copies until the next
    /// RESET.
    fn enable_dma_mmo(&mut self) -> Result<(), Error> {
        let mut input = prm::Init2initQpIn::new();
        input.set_qpn(self.qpn.0).set_qpc_ext(true);
        input.set_opt_param_mask_95_32(prm::OptParamMask9532::INIT2INIT_MMO.0);
        input.qpc_data_ext_mut().set_mmo(true);
        self.set_service(input.qpc_mut());
        self.modify(&input, "the queue pair must be in INIT")
    }

    /// INIT2INIT_QP: changes port, partition key and access of a queue pair in INIT.
    pub fn change_init(&mut self, attr: &InitAttr) -> Result<(), Error> {
        self.check_port_and_pkey("INIT2INIT_QP", attr.port, attr.pkey_index)?;
        let mut input = prm::Init2initQpIn::new();
        input.set_qpn(self.qpn.0);
        self.check_connected("INIT2INIT_QP")?;
        let access = access_opt_mask(self.owned.attr().service);
        input.set_opt_param_mask(access | OptParamMask::PKEY_INDEX.0 | OptParamMask::PRI_PORT.0);
        let context = input.qpc_mut();
        self.set_service(context);
        self.set_access(context, attr.access);
        context
            .primary_address_path_mut()
            .set_vhca_port_num(attr.port)
            .set_pkey_index(attr.pkey_index);
        self.modify(&input, "the queue pair must be in INIT")?;
        self.init = *attr;
        Ok(())
    }

    /// RST2INIT_QP of a datagram queue pair. Receives may be posted after it.
    pub fn to_init_datagram(&mut self, attr: &DatagramAttr) -> Result<(), Error> {
        self.check_datagram("RST2INIT_QP")?;
        self.check_port_and_pkey("RST2INIT_QP", attr.port, attr.pkey_index)?;
        let mut input = Rst2initQpIn::new();
        input.set_qpn(self.qpn.0);
        let context = input.qpc_mut();
        self.set_service(context);
        context.set_q_key(attr.q_key.0).set_lag_tx_port_affinity(self.lag_port);
        context
            .primary_address_path_mut()
            .set_vhca_port_num(attr.port)
            .set_pkey_index(attr.pkey_index);
        self.modify(&input, "INIT needs RESET")
    }

    /// INIT2RTR_QP of a datagram queue pair, which can then receive.
    pub fn to_rtr_datagram(&mut self) -> Result<(), Error> {
        self.check_datagram("INIT2RTR_QP")?;
        let mut input = Init2rtrQpIn::new();
        input.set_qpn(self.qpn.0);
        let context = input.qpc_mut();
        self.set_service(context);
        // A message is one packet; the port's MTU limits its length.
        context.set_mtu(prm::PathMtu(Mtu::B4096 as u8)).set_log_msg_max(LOG_DATAGRAM);
        self.init2rtr(&input, "RTR needs INIT")
    }

    /// RTR2RTS_QP of a datagram queue pair: sends may be posted after it. Receivers do not check
    /// its sequence numbers, which begin with `send_psn` (24 bits).
    pub fn to_rts_datagram(&mut self, send_psn: u32) -> Result<(), Error> {
        self.check_datagram("RTR2RTS_QP")?;
        fits("RTR2RTS_QP", "the send PSN", send_psn, 24)?;
        let mut input = Rtr2rtsQpIn::new();
        input.set_qpn(self.qpn.0);
        let context = input.qpc_mut();
        self.set_service(context);
        context.set_next_send_psn(send_psn).set_log_ack_req_freq(LOG_ACK_REQUEST_FREQUENCY);
        self.modify(&input, "RTS needs RTR")
    }

    /// RTS2RTS_QP of a datagram queue pair: messages must then carry the new Q_Key.
    pub fn change_q_key(&mut self, q_key: QKey) -> Result<(), Error> {
        self.check_datagram("RTS2RTS_QP")?;
        let mut input = Rts2rtsQpIn::new();
        input.set_qpn(self.qpn.0).set_opt_param_mask(OptParamMask::Q_KEY.0);
        let context = input.qpc_mut();
        self.set_service(context);
        context.set_q_key(q_key.0);
        self.modify(&input, "the queue pair must be in RTS")
    }

    /// INIT2RTR_QP: INIT → RTR. The queue pair then answers its peer.
    pub fn to_rtr(&mut self, attr: &RtrAttr) -> Result<(), Error> {
        self.check_connected("INIT2RTR_QP")?;
        if let Some(problem) = attr.path.problem() {
            return Err(invalid("INIT2RTR_QP", problem));
        }
        fits("INIT2RTR_QP", "the remote QPN", attr.remote_qpn.0, 24)?;
        fits("INIT2RTR_QP", "the receive PSN", attr.receive_psn, 24)?;
        fits("INIT2RTR_QP", "the RNR timer", attr.min_rnr_timer.into(), 5)?;
        let log_reads = match self.is_reliable() {
            true => {
                let (reads, most) = (attr.max_destination_reads, self.max_reads_in);
                log_reads("INIT2RTR_QP", "log_max_ra_res_qp", reads, most)?
            }
            false => 0,
        };
        let mut input = Init2rtrQpIn::new();
        input.set_qpn(self.qpn.0);
        let context = input.qpc_mut();
        self.set_service(context);
        context
            .set_mtu(prm::PathMtu(attr.mtu as u8))
            .set_log_msg_max(self.log_max_message)
            .set_remote_qpn(attr.remote_qpn.0)
            .set_next_rcv_psn(attr.receive_psn);
        if self.is_reliable() {
            context.set_min_rnr_nak(attr.min_rnr_timer).set_log_rra_max(log_reads);
        }
        let init = self.init;
        attr.path.emit(init.port, context.primary_address_path_mut());
        if self.is_reliable() {
            // INIT2RTR sets the access flags and atomic_mode again, as mlx5_ib does for
            // IB_QP_MAX_DEST_RD_ATOMIC.
            self.no_reads = attr.max_destination_reads == 0;
            self.set_access(context, init.access);
            input.set_opt_param_mask(access_opt_mask(self.owned.attr().service));
        }
        self.init2rtr(
            &input,
            "RTR needs INIT, an MTU within the port's active one, and a source GID that exists",
        )
    }

    /// RTR2RTS_QP: RTR → RTS. Sends may be posted after it.
    pub fn to_rts(&mut self, attr: &RtsAttr) -> Result<(), Error> {
        self.check_connected("RTR2RTS_QP")?;
        fits("RTR2RTS_QP", "the send PSN", attr.send_psn, 24)?;
        fits("RTR2RTS_QP", "the ACK timeout", attr.ack_timeout.into(), 5)?;
        fits("RTR2RTS_QP", "the retry count", attr.retry_count.into(), 3)?;
        fits("RTR2RTS_QP", "the RNR retry count", attr.rnr_retry.into(), 3)?;
        let log_reads = match self.is_reliable() {
            true => {
                log_reads("RTR2RTS_QP", "log_max_ra_req_qp", attr.max_reads, self.max_reads_out)?
            }
            false => 0,
        };
        let mut input = Rtr2rtsQpIn::new();
        input.set_qpn(self.qpn.0);
        let context = input.qpc_mut();
        self.set_service(context);
        context.set_next_send_psn(attr.send_psn).set_log_ack_req_freq(LOG_ACK_REQUEST_FREQUENCY);
        if self.is_reliable() {
            context
                .set_retry_count(attr.retry_count)
                .set_rnr_retry(attr.rnr_retry)
                .set_log_sra_max(log_reads);
            context.primary_address_path_mut().set_ack_timeout(attr.ack_timeout);
        }
        self.modify(&input, "RTS needs RTR")
    }

    /// RTS2RTS_QP: changes attributes of a queue pair in RTS.
    pub fn change(&mut self, change: &RtsChange) -> Result<(), Error> {
        self.check_connected("RTS2RTS_QP")?;
        if change.min_rnr_timer.is_some() && !self.is_reliable() {
            return Err(invalid("RTS2RTS_QP", "only a reliable service has an RNR timer"));
        }
        let mut input = Rts2rtsQpIn::new();
        input.set_qpn(self.qpn.0);
        let mut mask = 0;
        let context = input.qpc_mut();
        self.set_service(context);
        if let Some(allowed) = change.access {
            self.set_access(context, allowed);
            mask |= access_opt_mask(self.owned.attr().service);
        }
        if let Some(timer) = change.min_rnr_timer {
            fits("RTS2RTS_QP", "the RNR timer", timer.into(), 5)?;
            context.set_min_rnr_nak(timer);
            mask |= OptParamMask::RNR_TIMEOUT.0;
        }
        input.set_opt_param_mask(mask);
        self.modify(&input, "the queue pair must be in RTS")
    }

    /// SQERR2RTS_QP: lets a queue pair of an unreliable service send again after a failed request.
    /// The requests posted after the failed one complete as flushed: count those completions
    /// first. The queue continues after them.
    pub fn recover(&mut self) -> Result<(), Error> {
        let mut input = prm::Sqerr2rtsQpIn::new();
        input.set_qpn(self.qpn.0);
        self.set_service(input.qpc_mut());
        self.modify(
            &input,
            "the queue pair must be in SQER, the state after a failed request of UC or UD",
        )
    }

    /// 2ERR_QP: from any state to ERR. Every posted request completes as flushed after this call
    /// returns. Count the completions before [`to_reset`](Self::to_reset), which discards the
    /// requests that have not completed.
    pub fn to_error(&mut self) -> Result<(), Error> {
        let mut input = prm::Qp2errIn::new();
        input.set_qpn(self.qpn.0);
        self.modify(&input, "the queue pair or its context was destroyed")
    }

    /// 2RST_QP: from any state to RESET. It discards the posted requests, including those that a
    /// queue pair in ERR has not flushed yet; the rings start over.
    pub fn to_reset(&mut self) -> Result<(), Error> {
        let mut input = prm::Qp2rstIn::new();
        input.set_qpn(self.qpn.0);
        self.modify(&input, "the queue pair or its context was destroyed")?;
        (self.left_reset, self.reached_rtr) = (false, false);
        self.psn = random_psn();
        Ok(())
    }

    /// Whether a transition was sent since creation or the last reset, so that the queue pair may
    /// have written CQEs. Raw commands through [`QpObject::object`] are not tracked: reset such a
    /// queue pair before you drop it.
    pub fn has_left_reset(&self) -> bool {
        self.left_reset
    }

    /// Whether the queue pair has reached RTR since its creation or last reset, and so may have
    /// received.
    pub fn has_reached_rtr(&self) -> bool {
        self.reached_rtr
    }

    /// QUERY_QP: the current context.
    pub fn query(&self) -> Result<QpContext, Error> {
        let mut input = QueryQpIn::new();
        input.set_qpn(self.qpn.0);
        let mut output = prm::QueryQpOut::zeroed();
        execute::query_object(self.owned.object(), &input, &mut output)?;
        Ok(*output.qpc())
    }

    /// The state that the device reports.
    pub fn state(&self) -> Result<QpState, Error> {
        self.query().map(|context| context.state())
    }

    /// Fails if the queue pair is in the error state. It executes a command (QUERY_QP).
    ///
    /// # Errors
    /// [`ErrorKind::QueueFailed`]; the device refuses QUERY_QP.
    pub fn check(&self) -> Result<(), Error> {
        if self.state()? != QpState::ERR {
            return Ok(());
        }
        let attempted = format!("waiting for QP {}", self.qpn);
        let hint = "it is in ERR, and completes nothing after the flushed requests: poll those, \
                    then reset it";
        Err(Error::new(ErrorKind::QueueFailed, attempted, hint))
    }

    /// DESTROY_QP. On failure the queue pair and its parents are leaked.
    pub fn destroy(self) -> Result<(), Error> {
        self.owned.destroy()
    }

    /// Every transition repeats the service type and migration state.
    fn set_service(&self, context: &mut QpContext) {
        let service = self.owned.attr().service;
        context.set_st(service).set_pm_state(PathMigrationState::MIGRATED);
    }

    fn set_access(&self, context: &mut QpContext, mut access: RemoteAccess) {
        context.set_rwe(access.write);
        if self.is_reliable() {
            if self.no_reads {
                (access.read, access.atomic) = (false, false);
            }
            // A device without atomics refuses atomic_mode IB_SPEC.
            access.atomic &= self.atomics;
            context.set_rre(access.read).set_rae(access.atomic).set_atomic_mode(if access.atomic {
                AtomicMode::IB_SPEC
            } else {
                AtomicMode::NONE
            });
        }
    }

    fn is_reliable(&self) -> bool {
        self.owned.attr().service == ServiceType::RC
    }

    /// Refuses an operation for connected queue pairs only.
    fn check_connected(&self, attempted: &'static str) -> Result<(), Error> {
        match self.owned.attr().service {
            ServiceType::UD => Err(invalid(
                attempted,
                "a datagram queue pair has no peer: its transitions are those with `datagram` in \
                 their names",
            )),
            _ => Ok(()),
        }
    }

    /// Refuses an operation for datagram queue pairs only.
    fn check_datagram(&self, attempted: &'static str) -> Result<(), Error> {
        match self.owned.attr().service {
            ServiceType::UD => Ok(()),
            _ => Err(invalid(
                attempted,
                "a connected queue pair needs a peer: its transitions are those without `datagram` \
                 in their names",
            )),
        }
    }

    /// Refuses a port beyond the device's ports, and an index beyond the P_Key table.
    fn check_port_and_pkey(
        &self,
        attempted: &'static str,
        port: u8,
        pkey_index: u16,
    ) -> Result<(), Error> {
        if !(1..=self.ports).contains(&port) {
            let what = format!("the port is {port}; this device has ports 1 to {}", self.ports);
            return Err(refused(attempted, what));
        }
        let last = self.pkeys - 1;
        if u32::from(pkey_index) > last {
            return Err(limit(attempted, "the P_Key index", pkey_index.into(), last.into()));
        }
        Ok(())
    }

    /// INIT2RTR_QP. A command that times out may have been executed: then the queue pair may have
    /// taken a receive from an SRQ.
    fn init2rtr(&mut self, input: &Init2rtrQpIn, needs: &'static str) -> Result<(), Error> {
        let moved = self.modify(input, needs);
        self.reached_rtr =
            moved.is_ok() || !matches!(self.state(), Ok(QpState::RST | QpState::INIT));
        moved
    }

    fn modify<I: prm::CommandInput>(
        &mut self,
        input: &I,
        needs: &'static str,
    ) -> Result<(), Error> {
        self.left_reset = true;
        execute::modify_object(self.owned.object(), input).map_err(|error| {
            // Other statuses do not result from the state.
            let states = [prm::CommandStatus::BAD_QP_STATE.0, prm::CommandStatus::BAD_RES_STATE.0];
            // A kernel that hides the status returns EINVAL for both, and for others.
            let hidden = error.status().is_none() && error.errno() == Some(Errno::EINVAL);
            let by_state = error.status().is_some_and(|status| states.contains(&status));
            if error.kind() != ErrorKind::Command || !(hidden || by_state) {
                return error;
            }
            match self.state().ok().and_then(|state| state.name()) {
                Some(state) if hidden => {
                    let hint =
                        format!("the queue pair is in {state}, and {needs}; {}", error.hint());
                    error.with_hint(hint)
                }
                Some(state) => error.with_hint(format!("the queue pair is in {state}; {needs}")),
                None => error,
            }
        })
    }
}

/// log2 of the maximum bytes of a datagram.
const LOG_DATAGRAM: u8 = 12;
/// No PSN; a PSN has 24 bits.
const NO_PSN: u32 = u32::MAX;

/// log2 of the number of packets after which the requester asks for an ACK.
const LOG_ACK_REQUEST_FREQUENCY: u8 = 8;

/// A random PSN of 24 bits.
fn random_psn() -> u32 {
    (random_u64() & 0xff_ffff) as u32
}

/// log2 of `reads`, rounded up. Fails if `reads` exceeds `most`, the device's limit, which is a
/// power of two.
fn log_reads(
    attempted: &'static str,
    capability: &'static str,
    reads: u8,
    most: u8,
) -> Result<u8, Error> {
    if reads > most {
        let what = format!("the number of outstanding reads (capability {capability})");
        return Err(limit(attempted, &what, reads.into(), most.into()));
    }
    Ok(if reads <= 1 { 0 } else { (reads - 1).ilog2() as u8 + 1 })
}
