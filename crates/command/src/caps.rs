//! Capabilities of a device: the capability pages, read once at opening.

use std::ops::RangeInclusive;

use verbless_prm as prm;
use verbless_prm::{
    AtomicCap, AtomicReqEndianness, EthernetOffloadCap, HcaCap, HcaCap2, QueryHcaCapIn,
    QueryHcaCapOut, RoceCap, TimestampFormat, TimestampFormatCap,
};

use verbless_devx::{Context, Error};

use crate::error::{fits, refused};
use crate::execute;

/// The capability page, by its number in QUERY_HCA_CAP's op_mod.
pub use prm::HcaCapPage as CapPage;

/// Which capabilities to query: current or maximum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CapMode {
    /// The maximum that the device supports.
    Maximum,
    /// Current capabilities.
    Current,
}

/// The capabilities that the driver uses, as numbers in the units of their docs, and the whole
/// capability pages.
#[derive(Clone)]
pub struct Caps {
    /// log2 of the maximum number of WQEBBs (64 bytes) of a send ring, and of WQEs of a receive
    /// ring.
    pub log_max_qp_wqebbs: u8,
    /// log2 of the maximum number of queue pairs.
    pub log_max_qps: u8,
    /// log2 of the maximum number of CQEs of a completion queue.
    pub log_max_cqes: u8,
    /// log2 of the maximum number of completion queues.
    pub log_max_cqs: u8,
    /// log2 of the maximum number of memory keys.
    pub log_max_mkeys: u8,
    /// log2 of the maximum bytes of a message.
    pub log_max_message: u8,
    /// Maximum bytes of a send WQE.
    pub max_send_wqe_bytes: u16,
    /// Maximum bytes of a receive WQE.
    pub max_receive_wqe_bytes: u16,
    /// Maximum number of outstanding READs and atomics of a queue pair, as requester.
    pub max_reads_out: u8,
    /// Maximum number of outstanding READs and atomics of a queue pair, as responder.
    pub max_reads_in: u8,
    /// Ports, including ports with a function of their own.
    pub ports: u8,
    /// InfiniBand or Ethernet.
    pub port_type: prm::PortType,
    /// BlueFlame: bytes of a register (two buffers), or `None`.
    pub blue_flame_register: Option<u16>,
    /// 8-byte atomics on queue pairs, compare-and-swap and fetch-and-add, with results in the
    /// host's byte order.
    pub atomics: bool,
    /// Keys may let the device's writes to memory pass each other on PCI.
    pub relaxed_writes: bool,
    /// Every key must allow relaxed writes, because the device has no other keys
    /// (`mkc_order_write_after_write_ro_only`).
    pub relaxed_writes_only: bool,
    /// Keys may let the device's reads pass each other on PCI. Not set if the device allows it only
    /// with a certain setting of its PCI function (`relaxed_ordering_read_pci_enabled`): a user
    /// process cannot read that setting.
    pub relaxed_reads: bool,
    /// Keys state how reads are ordered after writes (`mkc_order_read_after_write`). A key with
    /// relaxed ordering then lets reads pass writes.
    pub reads_after_writes: bool,
    /// Timestamp format for queue pair contexts: free-running clock, or the device default if only
    /// real time exists.
    pub qp_timestamps: TimestampFormat,
    /// Timestamp format for contexts of raw Ethernet send queues.
    pub sq_timestamps: TimestampFormat,
    /// Timestamp format for contexts of raw Ethernet receive queues.
    pub rq_timestamps: TimestampFormat,
    /// The whole general page.
    pub general: Box<HcaCap>,
    /// The whole second general page, if the device has it.
    pub general_2: Option<Box<HcaCap2>>,
    /// The whole page of atomics, if the device has them.
    pub atomic: Option<Box<AtomicCap>>,
    /// The whole RoCE page, if the port has it.
    pub roce: Option<Box<RoceCap>>,
    /// The whole page of Ethernet offloads, if the device has them.
    pub ethernet: Option<Box<EthernetOffloadCap>>,
}

/// The timestamp format for a queue's context, by the capability of its queue type: the
/// free-running clock if the device has it, else the device's default. A device set to real time
/// only refuses the free-running clock, whose value is 0, like an unset field. Linux chooses in the
/// same way (`get_ts_format` of mlx5_ib).
const fn timestamp_format(cap: TimestampFormatCap) -> TimestampFormat {
    match cap {
        TimestampFormatCap::REAL_TIME => TimestampFormat::DEFAULT,
        _ => TimestampFormat::FREE_RUNNING,
    }
}

/// Refuses a CQE clock that the queue type does not support.
pub(crate) fn check_timestamp_format(
    command: &'static str,
    format: TimestampFormat,
    cap: TimestampFormatCap,
) -> Result<(), Error> {
    fits(command, "the timestamp format", format.0.into(), 2)?;
    let has = match format {
        TimestampFormat::FREE_RUNNING => cap != TimestampFormatCap::REAL_TIME,
        TimestampFormat::REAL_TIME => cap != TimestampFormatCap::FREE_RUNNING,
        _ => true,
    };
    if has {
        return Ok(());
    }
    let what = format!("the device has no clock {format:?} for such queues: it has {cap:?}");
    Err(refused(command, what))
}

/// Whether the device has atomics in InfiniBand's sense (`get_atomic_caps` of mlx5_ib): both
/// operations, of 8 bytes, with the result in the host's byte order.
fn has_atomics(page: &AtomicCap) -> bool {
    const COMPARE_SWAP_AND_FETCH_ADD: u16 = 1 | 1 << 1;
    const OF_8_BYTES: u16 = 1 << 3;
    page.atomic_operations() & COMPARE_SWAP_AND_FETCH_ADD == COMPARE_SWAP_AND_FETCH_ADD
        && page.atomic_size_qp() & OF_8_BYTES != 0
        && page.atomic_req_8b_endianness_mode() == AtomicReqEndianness::HOST
}

/// log2 of the largest page or entry of a key, if the device reports no limit.
const LOG_MAX_ENTITY: u8 = 31;

impl Caps {
    pub(crate) fn read(context: &Context) -> Result<Self, Error> {
        let page = query_hca_cap(context, CapPage::GENERAL, CapMode::Current)?;
        let general = Box::new(*HcaCap::from_prefix(&page[..]).ok_or_else(short)?);
        let general_2 = match general.hca_cap_2() {
            true => {
                let page = query_hca_cap(context, CapPage::GENERAL_2, CapMode::Current)?;
                Some(Box::new(*HcaCap2::from_prefix(&page[..]).ok_or_else(short)?))
            }
            false => None,
        };
        let g = &*general;
        let atomic = match g.atomic() {
            true => {
                let page = query_hca_cap(context, CapPage::ATOMIC, CapMode::Current)?;
                Some(Box::new(*AtomicCap::from_prefix(&page[..]).ok_or_else(short)?))
            }
            false => None,
        };
        let roce = match g.roce() {
            true => {
                let page = query_hca_cap(context, CapPage::ROCE, CapMode::Current)?;
                Some(Box::new(*RoceCap::from_prefix(&page[..]).ok_or_else(short)?))
            }
            false => None,
        };
        let ethernet = match g.eth_net_offloads() {
            true => {
                let page = query_hca_cap(context, CapPage::ETHERNET_OFFLOADS, CapMode::Current)?;
                Some(Box::new(*EthernetOffloadCap::from_prefix(&page[..]).ok_or_else(short)?))
            }
            false => None,
        };
        // The RoCE page, if there is one, has the format of queue pairs.
        let qp_timestamps = roce.as_ref().map_or(g.sq_ts_format(), |roce| roce.qp_ts_format());
        Ok(Self {
            qp_timestamps: timestamp_format(qp_timestamps),
            sq_timestamps: timestamp_format(g.sq_ts_format()),
            rq_timestamps: timestamp_format(g.rq_ts_format()),
            log_max_qp_wqebbs: g.log_max_qp_sz(),
            log_max_qps: g.log_max_qp(),
            log_max_cqes: g.log_max_cq_sz(),
            log_max_cqs: g.log_max_cq(),
            log_max_mkeys: g.log_max_mkey(),
            log_max_message: g.log_max_msg(),
            max_send_wqe_bytes: g.max_wqe_sz_sq(),
            max_receive_wqe_bytes: g.max_wqe_sz_rq(),
            max_reads_out: 1u8.checked_shl(g.log_max_ra_req_qp().into()).unwrap_or(0x80),
            max_reads_in: 1u8.checked_shl(g.log_max_ra_res_qp().into()).unwrap_or(0x80),
            // Each port of a dual-port card may be a function of its own.
            ports: g.num_ports().max(g.num_vhca_ports()),
            port_type: g.port_type(),
            blue_flame_register: g
                .bf()
                .then(|| 1u16.checked_shl(g.log_bf_reg_size().into()))
                .flatten(),
            atomics: atomic.as_ref().is_some_and(|page| has_atomics(page)),
            relaxed_writes: g.relaxed_ordering_write(),
            relaxed_writes_only: g.mkc_order_write_after_write_ro_only(),
            relaxed_reads: g.relaxed_ordering_read(),
            reads_after_writes: g.mkc_order_read_after_write(),
            general,
            general_2,
            atomic,
            roce,
            ethernet,
        })
    }

    /// Whether the function may bond its ports, so that its driver chooses the egress port
    /// (`mlx5_lag_is_lacp_owner` of Linux).
    pub(crate) fn is_lag_capable(&self) -> bool {
        let general = &self.general;
        general.vport_group_manager() && general.num_lag_ports() > 1 && general.lag_master()
    }

    /// Whether queue pairs of service RC, set up for it, can copy memory (DMA MMO). rdma-core
    /// accepts either capability (`mlx5.h`, `verbs.c`: RC and DCI support DMA MMO).
    pub fn dma_mmo(&self) -> bool {
        self.general.dma_mmo_qp() || self.general.dma_mmo_sq()
    }

    /// Maximum bytes of a memory copy (DMA MMO); 0 if the device has none. A device that
    /// reports no limit takes 2 GiB (rdma-core `MLX5_DMA_MMO_MAX_SIZE`).
    pub fn max_dma_mmo_bytes(&self) -> u64 {
        match self.general.log_dma_mmo_size() {
            _ if !self.dma_mmo() => 0,
            0 => 1 << 31,
            log => 1 << log,
        }
    }

    /// Bytes of the largest operand of an atomic on a queue pair. An indirect key with atomics has
    /// a start and a length that are multiples of it.
    pub fn max_atomic_bytes(&self) -> u64 {
        // One bit per size; the bit's value is the size.
        let sizes = self.atomic.as_ref().map_or(0, |page| page.atomic_size_qp());
        sizes.checked_ilog2().map_or(1, |log| 1 << log)
    }

    /// log2 of the largest page of a key, in bytes (`get_max_log_entity_size_cap` of mlx5_ib).
    pub fn log_max_key_page(&self) -> u8 {
        let stated = self.general_2.as_ref().map_or(0, |page| page.max_mkey_log_entity_size_mtt());
        if stated == 0 { LOG_MAX_ENTITY } else { stated }
    }

    /// log2 of the smallest and the largest entry of a key with entries of one size (KSM), in
    /// bytes; `None`: the device has no such keys (`fixed_buffer_size`).
    pub fn log_fixed_buffers(&self) -> Option<RangeInclusive<u8>> {
        let page = self.general_2.as_deref();
        let least = page.filter(|page| page.min_mkey_log_entity_size_fixed_buffer_valid());
        let least = least.map_or(12, |page| page.min_mkey_log_entity_size_fixed_buffer());
        let most = page.map_or(0, |page| page.max_mkey_log_entity_size_fixed_buffer());
        let most = if most == 0 { LOG_MAX_ENTITY } else { most };
        self.general.fixed_buffer_size().then_some(least..=most)
    }

    /// Maximum length of a send WQE in ds of 16 bytes, control segment included.
    pub fn max_send_ds(&self) -> usize {
        (usize::from(self.max_send_wqe_bytes) / 16).min(MAX_DS)
    }

    /// Maximum number of scatter/gather entries of a send of a connected queue pair: the room in
    /// the largest WQE beside its other segments. For a datagram: [`Self::max_datagram_sges`].
    pub fn max_send_sges(&self) -> usize {
        // An atomic has the longest head: control, remote address and atomic segments.
        (usize::from(self.max_send_wqe_bytes).min(MAX_SEND_WQE_BYTES) / 16).saturating_sub(3)
    }

    /// Maximum number of scatter/gather entries of a READ: its WQE has at most 512 bytes (Linux
    /// `include/linux/mlx5/device.h`, `MLX5_MAX_SGE_RD`).
    pub fn max_read_sges(&self) -> usize {
        self.max_send_sges().min((512 - 32) / 16)
    }

    /// Maximum bytes of inline data of a send of a connected queue pair: the room in the largest
    /// WQE beside control, remote address and the inline header. For a datagram:
    /// [`Self::max_datagram_inline`].
    pub fn max_inline(&self) -> usize {
        usize::from(self.max_send_wqe_bytes).min(MAX_SEND_WQE_BYTES).saturating_sub(32 + 4)
    }

    /// Maximum number of scatter/gather entries of a datagram: its WQE begins with control and an
    /// address vector of 48 bytes.
    pub fn max_datagram_sges(&self) -> usize {
        self.max_send_ds().saturating_sub(4).min(self.max_send_sges())
    }

    /// Maximum bytes of inline data of a datagram: the room in the largest WQE beside control,
    /// address vector and the inline header.
    pub fn max_datagram_inline(&self) -> usize {
        (self.max_send_ds() * 16).saturating_sub(64 + 4).min(self.max_inline())
    }

    /// Maximum number of scatter/gather entries of a receive.
    pub fn max_receive_sges(&self) -> usize {
        usize::from(self.max_receive_wqe_bytes) / 16
    }
}

impl std::fmt::Debug for Caps {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.general.fmt(f)
    }
}

fn short() -> Error {
    crate::error::wrong_answer("QUERY_HCA_CAP", "the page is shorter than its description")
}

/// QUERY_HCA_CAP: one page, as the device returns it.
pub(crate) fn query_hca_cap(
    context: &Context,
    page: CapPage,
    mode: CapMode,
) -> Result<Box<[u8; 0x1000]>, Error> {
    let mut input = QueryHcaCapIn::new();
    input.set_op_mod(page.0 << 1 | u16::from(mode == CapMode::Current));
    let mut output = Box::new(QueryHcaCapOut::zeroed());
    execute::execute(context, &input, &mut *output)?;
    Ok(Box::new(*output.capability()))
}

/// The `ds` field of a control segment counts up to 63.
const MAX_DS: usize = 63;

/// Control and remote address segments, and 59 ds of payload: the limit of a send queue of
/// verbless-ring.
const MAX_SEND_WQE_BYTES: usize = 61 * 16;
