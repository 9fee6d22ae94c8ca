//! Raw Ethernet queues: send queues (SQ), and receive queues (RQ) with a TIR as the target of flow
//! rules.
//!
//! ```no_run
//! # use verbless_queue::{Domain, RqConfig, SqConfig, CqConfig};
//! # use verbless_queue::wr::EthSend;
//! # fn f(domain: &Domain) -> Result<(), Box<dyn std::error::Error>> {
//! let mut cq = domain.completion_queue(&CqConfig::new(64))?;
//! let mut sq = domain.sq(&SqConfig::new(32), &cq)?;
//! let frame = [[0xff; 6], [2, 0, 0, 0, 0, 1], [0x88, 0xb5, 1, 2, 3, 4]].concat();
//! sq.post(&EthSend::new(&frame, []).signaled(), 7)?;
//! while sq.poll(&mut cq).transpose()?.is_none() {}
//! # Ok(())
//! # }
//! ```
//!
//! Frames are sent through a TIS and received through a TIR. A [`Domain`] has one transport domain
//! for all its TISs and TIRs.

use std::any::Any;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, PoisonError, Weak};

use verbless_command::{
    Error, ErrorKind, FlowAttr, FlowRule, RqAttr, RqObject, RqWqes, SelfLoopback, SqAttr, SqObject,
    TirObject, TisAttr, TisObject, TransportDomain,
};
use verbless_devx::DevxObject;
use verbless_prm::{MinInlineMode, MinWqeInlineMode, RqState, SqState, WqeInlineModeCap};

use super::pool::layout;
use super::protection::Domain;
use super::queues::{Cq, WQ_ERRORS, check_limit, checked_power_of_two};
use super::raw::{RawQueue, RqObjects, SqObjects};
use super::requirements;
use crate::events::{Watchable, sealed};
use verbless_ring::completion::{Completion, CompletionError};
use verbless_ring::cq::Cqe;
use verbless_ring::dispatch::{SendCqe, WorkQueue};
use verbless_ring::qp::{BlueFlame, ReceiveQueue, ReceiveQueueParts, SendQueue, SendQueueParts};
use verbless_ring::raw_rq::RawRq;
use verbless_ring::service::Eth;
use verbless_ring::types::Qpn;
use verbless_ring::wr::MIN_INLINE_HEADER;

/// Raw Ethernet send queue configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SqConfig {
    /// Minimum number of frames that can be outstanding; 0 counts as 1. A frame with 1 to 13 bytes
    /// of header and an inline payload may take one wqebb more than the ring counts for it.
    pub sends: u32,
    /// Maximum number of scatter/gather entries of a frame after its header.
    pub sges: u32,
    /// Maximum inline bytes of a frame, header and payload together; at least the device's minimum.
    pub inline: u32,
    /// Every frame gets a completion, signaled or not.
    pub signal_all: bool,
    /// When a request is copied to the device along with its doorbell, if a BlueFlame register is
    /// free: see [`domain`](crate::domain).
    pub blueflame: BlueFlame,
    /// User index (24 bits): the device writes it into `srqn_uidx` of the queue's CQEs.
    pub user_index: u32,
    /// Priority of the frames (IEEE 802.1p), 0 to 7.
    pub priority: u8,
}

impl SqConfig {
    /// Room for `sends` frames, each of 18 inline bytes and one scatter/gather entry.
    pub const fn new(sends: u32) -> Self {
        Self {
            sends,
            sges: 1,
            inline: MIN_INLINE_HEADER,
            signal_all: false,
            blueflame: BlueFlame::Always,
            user_index: 0,
            priority: 0,
        }
    }

    /// Wqebbs of the longest frame whose header is empty, or has at least an Ethernet header's
    /// bytes; `least` is the queue's minimum of inline bytes.
    fn wqebbs_per_send(&self, least: u32) -> u32 {
        const ETHERNET_HEADER: u32 = 14;
        let none = (least == 0).then_some(0);
        self.longest_ds((least.max(ETHERNET_HEADER)..=self.inline).chain(none)).div_ceil(4)
    }

    /// The ds of the longest WQE of frames with these bytes of header: the rest of the inline bytes
    /// is payload. A frame with the longest header may have all SGEs.
    fn longest_ds(&self, headers: impl Iterator<Item = u32>) -> u32 {
        // Control and Ethernet segment, which has the first 2 bytes of the header.
        const HEAD: u32 = 2;
        let header_ds = |bytes: u32| bytes.saturating_sub(2).div_ceil(16);
        let inlined = headers.map(|header| {
            let body = match self.inline - header {
                0 => 0,
                bytes => (4 + bytes).div_ceil(16),
            };
            header_ds(header) + body
        });
        let gathered = header_ds(self.inline) + self.sges;
        HEAD + gathered.max(inlined.max().unwrap_or(0))
    }
}

/// Raw Ethernet receive queue configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RqConfig {
    /// Minimum number of receives that can be outstanding; 0 counts as 1.
    pub receives: u32,
    /// Maximum number of scatter/gather entries of a receive.
    pub sges: u32,
    /// User index (24 bits, and not 0xffffff): the device writes it into CQEs. It identifies the
    /// receive queue if several complete in one completion queue.
    pub user_index: u32,
    /// Whether frames keep their VLAN tag; otherwise, on a device with `vlan_cap`, the device
    /// strips the tag and reports it in the completion.
    pub keep_vlan: bool,
    /// Which frames that this domain sends are looped back to the queue.
    pub loopback: SelfLoopback,
    /// Allocates a Q counter for this queue, which counts frames that find no posted receive
    /// ([`Rq::lost`]).
    pub count_lost: bool,
}

impl RqConfig {
    /// A receive queue for `receives` frames of one SGE each, without frames that this domain sent.
    pub const fn new(receives: u32) -> Self {
        let loopback = SelfLoopback { allow_unicast: false, allow_multicast: false };
        Self { receives, sges: 1, user_index: 0, keep_vlan: true, loopback, count_lost: false }
    }
}

/// A frame send queue on a device, in RDY. It derefs to the [`SendQueue`] for posting.
///
/// A failed frame takes it to ERR, and the frames posted after it complete as flushed:
/// [`Sq::recover`] starts over. A drop moves it to RST and removes its CQEs from the completion
/// queue before it destroys the object.
pub struct Sq {
    device: RawQueue<SqObjects>,
    queue: SendQueue<Eth>,
}

/// A frame receive queue on a device, in RDY, with a TIR. It derefs to the [`RawRq`] for
/// posting and polling. Frames arrive once flow rules forward to its TIR.
///
/// [`Rq::recover`] starts over after an error. A drop moves it to RST and removes its CQEs from the
/// completion queue. Its objects live until the last flow rule to them is dropped; until then the
/// device drops its frames.
pub struct Rq {
    device: RawQueue<RqObjects>,
    queue: RawRq,
}

impl Domain {
    /// Creates a frame send queue that completes in `cq`.
    ///
    /// # Errors
    /// The device sends no raw Ethernet frames; `config` exceeds its limits; it refuses the
    /// command.
    pub fn sq(&self, config: &SqConfig, cq: &Cq) -> Result<Sq, Error> {
        const WHAT: &str = "making a send queue of frames";
        let caps = self.device.caps();
        let (min_inline, least) = self.min_inline_header()?;
        let config = SqConfig { inline: config.inline.max(least), ..*config };
        check_limit(WHAT, "sges", config.sges, caps.max_send_sges())?;
        check_limit(WHAT, "inline", config.inline, caps.max_inline())?;
        check_limit(WHAT, "priority", config.priority.into(), 7)?;
        let ds = config.longest_ds(least..=config.inline);
        if ds as usize > caps.max_send_ds() {
            let hint = format!(
                "the longest WQE, of {} inline bytes and {} SGEs, has {} bytes; this device \
                 supports at most {}: choose a smaller inline or sges",
                config.inline,
                config.sges,
                16 * ds,
                16 * caps.max_send_ds()
            );
            return Err(Error::new(ErrorKind::InvalidInput, WHAT, hint));
        }
        let wqebbs = config.sends.max(1).saturating_mul(config.wqebbs_per_send(least));
        let most = caps.general.log_max_wq_sz().min(15);
        let wqebbs = checked_power_of_two("wqebbs of a send ring of frames", wqebbs, most)?;
        let tis = self.tis(config.priority)?;
        let target = cq.target();
        let reports = target.users().sender(wqebbs)?;
        let ring = self.shared.pool.ring(wqebbs as usize * 64)?;
        let (record, record_memory) = self.shared.pool.record()?;
        let (page, doorbell) = self.doorbell(config.blueflame != BlueFlame::Never);
        let object = self.device.create_sq(SqAttr {
            pd: self.pd.clone(),
            uar: page.uar,
            cq: target.object.clone(),
            tis: Some(tis),
            ring: ring.queue,
            record: record_memory,
            log_wqebbs: wqebbs.ilog2() as u8,
            min_inline,
            user_index: config.user_index,
            flush_in_error: true,
            multi_packet: false,
            timestamps: caps.sq_timestamps,
        })?;
        let mut queue = SendQueue::of(SendQueueParts {
            qpn: object.sqn(),
            ring: ring.memory,
            record,
            doorbell,
            max_sges: config.sges,
            max_inline: config.inline,
            signal_all: config.signal_all,
            blueflame: config.blueflame,
        })
        .map_err(layout)?;
        queue.set_min_inline_header(least).map_err(layout)?;
        queue.set_capabilities(|capability| requirements::has(caps, capability));
        queue.close();
        let device = RawQueue::new(SqObjects(object), target.cleaner(), Some(reports));
        let mut sq = Sq { device, queue };
        sq.start()?;
        Ok(sq)
    }

    /// Steers matching frames to any TIR while the rule lives, for example to the receive queue of
    /// a program on a DPA (`verbless_flexio::Rq::tir`). [`Rq::steer`] steers to the queue's own
    /// TIR. Needs CAP_NET_RAW.
    ///
    /// # Errors
    /// The TIR is of another device context; as
    /// [`Device::create_flow_rule`](verbless_command::Device::create_flow_rule).
    pub fn steer(&self, attr: &FlowAttr, tir: &Arc<TirObject>) -> Result<FlowRule, Error> {
        self.device.create_flow_rule(attr, tir)
    }

    /// Creates a frame receive queue that completes in `cq`.
    ///
    /// # Errors
    /// The device receives no raw Ethernet frames; `config` exceeds its limits; `cq` has queue
    /// pairs, or a receive queue of the same user index; the device refuses the command.
    pub fn rq(&self, config: &RqConfig, cq: &Cq) -> Result<Rq, Error> {
        const WHAT: &str = "making a receive queue of frames";
        let caps = self.device.caps();
        if caps.general.cqe_version() == 0 {
            let hint = "this device's CQEs have no user index (hca_cap.cqe_version is 0), which \
                        identifies a frame's receive queue";
            return Err(Error::new(ErrorKind::InvalidInput, WHAT, hint));
        }
        let of_stride = (1_usize << caps.general.log_max_stride_sz_rq().min(9)) / 16;
        check_limit(WHAT, "sges", config.sges.max(1), caps.max_receive_sges().min(of_stride))?;
        let stride = (config.sges.max(1) * 16).next_power_of_two() as usize;
        let most = caps.general.log_max_wq_sz().min(15);
        let count = checked_power_of_two("receives of frames", config.receives.max(1), most)?;
        let target = cq.target();
        let reports = target.users().receiver(config.user_index, count)?;
        let ring = self.shared.pool.ring(count as usize * stride)?;
        let (record, record_memory) = self.shared.pool.record()?;
        let transport_domain = self.transport_domain()?;
        let counter = match config.count_lost {
            true => Some(Arc::new(self.device.alloc_q_counter()?)),
            false => None,
        };
        let object = self.device.create_rq(RqAttr {
            cq: target.object.clone(),
            wqes: RqWqes::Own {
                pd: self.pd.clone(),
                ring: ring.queue,
                record: record_memory,
                log_wqes: count.ilog2() as u8,
                log_stride: stride.ilog2() as u8,
            },
            user_index: config.user_index,
            flush_in_error: true,
            keep_vlan: config.keep_vlan,
            timestamps: caps.rq_timestamps,
            counter,
        })?;
        let queue = ReceiveQueue::new(ReceiveQueueParts {
            qpn: Qpn(object.rqn().0),
            ring: ring.memory,
            stride,
            record,
        });
        let queue = queue.and_then(|queue| RawRq::new(queue, config.user_index));
        let queue = queue.map_err(layout)?;
        let object = Arc::new(object);
        let tir = self.device.create_tir(transport_domain, object.clone(), config.loopback)?;
        let side = RqObjects { tir: Arc::new(tir), object, device: self.device.clone() };
        let device = RawQueue::new(side, target.cleaner(), Some(reports));
        let mut rq = Rq { device, queue };
        rq.start()?;
        Ok(rq)
    }

    /// How many bytes of a frame a send queue needs inline: the mode in the queue's context, and a
    /// number. If the device requires headers after the Ethernet header, their length varies, and
    /// the number covers only the Ethernet header; the caller adds the rest.
    ///
    /// # Errors
    /// The device does not answer.
    pub fn min_inline_header(&self) -> Result<(MinWqeInlineMode, u32), Error> {
        let ethernet = self.device.caps().ethernet.as_ref();
        let mode = match ethernet.map(|page| page.wqe_inline_mode()) {
            Some(WqeInlineModeCap::NOT_REQUIRED) => MinWqeInlineMode::NONE,
            Some(WqeInlineModeCap::VPORT_CONTEXT) => {
                let context = self.device.query_nic_vport_context()?;
                MinWqeInlineMode(context.min_wqe_inline_mode().0)
            }
            _ => MinWqeInlineMode::L2,
        };
        const { assert!(MinInlineMode::NONE.0 == MinWqeInlineMode::NONE.0) };
        Ok((mode, if mode == MinWqeInlineMode::NONE { 0 } else { MIN_INLINE_HEADER }))
    }

    /// The transport domain of this domain's frame queues.
    fn transport_domain(&self) -> Result<Arc<TransportDomain>, Error> {
        let mut shared = self.shared.transports.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(domain) = &shared.domain {
            return Ok(domain.clone());
        }
        let domain = Arc::new(self.device.alloc_transport_domain()?);
        shared.domain = Some(domain.clone());
        Ok(domain)
    }

    /// The TIS that sends frames of this priority, created on first use.
    fn tis(&self, priority: u8) -> Result<Arc<TisObject>, Error> {
        let domain = self.transport_domain()?;
        let mut shared = self.shared.transports.lock().unwrap_or_else(PoisonError::into_inner);
        let slot = &mut shared.tis[usize::from(priority & 7)];
        if let Some(tis) = slot {
            return Ok(tis.clone());
        }
        let tis = Arc::new(self.device.create_tis(TisAttr { domain, priority, pd: None })?);
        *slot = Some(tis.clone());
        Ok(tis)
    }
}

impl Sq {
    /// The object on the device, to query it and to subscribe to its events.
    pub fn object(&self) -> &SqObject {
        &self.device.side().0
    }

    /// MODIFY_SQ: RST → RDY.
    fn start(&mut self) -> Result<(), Error> {
        self.device.start()?;
        self.queue.open();
        Ok(())
    }

    /// MODIFY_SQ to ERR: the posted frames complete as flushed, after this call returns. Poll those
    /// completions before [`recover`](Self::recover), which discards the rest.
    ///
    /// # Errors
    /// The device's refusal.
    pub fn to_error(&mut self) -> Result<(), Error> {
        self.object().to_error()
    }

    /// MODIFY_SQ to RST and RDY, with ring and record cleared: for a queue in ERR, after a frame
    /// failed. It discards the posted frames and their unpolled CQEs. Do not complete a [`Cqe`]
    /// that was polled before.
    ///
    /// # Errors
    /// The device refuses. The queue then takes no frames until a later call succeeds.
    pub fn recover(&mut self) -> Result<(), Error> {
        self.device.reset()?;
        self.queue.start_over();
        self.queue.close();
        self.start()
    }

    /// Resets and destroys the queue, and returns whether that worked. A drop instead counts a
    /// failure in [`Context::leaked`](verbless_devx::Context::leaked).
    ///
    /// # Errors
    /// The device's refusal.
    pub fn destroy(self) -> Result<(), Error> {
        self.device.destroy()
    }
}

impl Rq {
    /// The object on the device, to query it and to subscribe to its events.
    pub fn object(&self) -> &Arc<RqObject> {
        &self.device.side().object
    }

    /// Steers matching frames to this queue while the rule lives. Needs the capability CAP_NET_RAW.
    ///
    /// # Errors
    /// As [`Device::create_flow_rule`](verbless_command::Device::create_flow_rule).
    pub fn steer(&self, attr: &FlowAttr) -> Result<FlowRule, Error> {
        self.device.side().device.create_flow_rule(attr, self.tir())
    }

    /// The TIR of this queue, for flow rules to forward frames to.
    pub fn tir(&self) -> &Arc<TirObject> {
        &self.device.side().tir
    }

    /// QUERY_Q_COUNTER: frames that were steered here and found no posted receive; `None` without
    /// a counter ([`RqConfig::count_lost`]).
    ///
    /// A Q counter counts for every queue whose context names it. This one is the queue's own,
    /// unless you create another queue with it (`self.object().attr().counter`): the number then
    /// includes the losses of both.
    ///
    /// # Errors
    /// The device's refusal.
    pub fn lost(&self) -> Result<Option<u32>, Error> {
        let counter = self.object().attr().counter.as_ref();
        counter.map(|counter| Ok(counter.query()?.out_of_buffer())).transpose()
    }

    /// MODIFY_RQ: RST → RDY. Writes the count of posted receives to the record again, because the
    /// device may have ignored it before.
    fn start(&mut self) -> Result<(), Error> {
        self.device.start()?;
        self.queue.publish();
        Ok(())
    }

    /// MODIFY_RQ to ERR: the posted receives complete as flushed, after this call returns, and the
    /// device drops frames. Poll those completions before [`recover`](Self::recover), which
    /// discards the rest.
    ///
    /// # Errors
    /// The device's refusal.
    pub fn to_error(&mut self) -> Result<(), Error> {
        self.object().to_error()
    }

    /// MODIFY_RQ to RST and RDY, with ring and record cleared, like [`Sq::recover`]. Flow rules to
    /// the queue stay.
    ///
    /// # Errors
    /// The device refuses. Then no frame arrives until a later call succeeds.
    pub fn recover(&mut self) -> Result<(), Error> {
        self.device.reset()?;
        self.queue.reset();
        self.start()
    }

    /// Resets and destroys the queue, and returns whether that worked.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] while flow rules forward to it; the device refuses.
    pub fn destroy(self) -> Result<(), Error> {
        self.device.destroy()
    }
}

impl Watchable for Sq {}

impl sealed::Sealed for Sq {
    fn name(&self) -> (&'static str, u32) {
        ("SQ", Self::object(self).sqn().0)
    }

    fn life(&self) -> Weak<dyn Any + Send + Sync> {
        let life: Weak<()> = Arc::downgrade(self.device.life());
        life
    }

    fn errors(&self) -> &'static [u16] {
        &WQ_ERRORS
    }

    fn object(&self) -> &DevxObject {
        Self::object(self).object()
    }

    fn is_failed(&self) -> Result<bool, Error> {
        Ok(Self::object(self).query()?.state() == SqState::ERR)
    }
}

impl Deref for Sq {
    type Target = SendQueue<Eth>;

    fn deref(&self) -> &SendQueue<Eth> {
        &self.queue
    }
}

impl DerefMut for Sq {
    fn deref_mut(&mut self) -> &mut SendQueue<Eth> {
        &mut self.queue
    }
}

impl Watchable for Rq {}

impl sealed::Sealed for Rq {
    fn name(&self) -> (&'static str, u32) {
        ("RQ", Self::object(self).rqn().0)
    }

    fn life(&self) -> Weak<dyn Any + Send + Sync> {
        let life: Weak<()> = Arc::downgrade(self.device.life());
        life
    }

    fn errors(&self) -> &'static [u16] {
        &WQ_ERRORS
    }

    fn object(&self) -> &DevxObject {
        Self::object(self).object()
    }

    fn is_failed(&self) -> Result<bool, Error> {
        Ok(Self::object(self).query()?.state() == RqState::ERR)
    }
}

impl Deref for Rq {
    type Target = RawRq;

    fn deref(&self) -> &RawRq {
        &self.queue
    }
}

impl DerefMut for Rq {
    fn deref_mut(&mut self) -> &mut RawRq {
        &mut self.queue
    }
}

impl WorkQueue for Sq {
    #[inline(always)]
    fn complete(&mut self, cqe: Cqe) -> Result<Completion, CompletionError> {
        self.queue.complete(cqe)
    }

    #[inline(always)]
    fn complete_success(&mut self, cqe: SendCqe<'_>) -> Option<Completion> {
        WorkQueue::complete_success(&mut self.queue, cqe)
    }
}

impl WorkQueue for Rq {
    fn complete(&mut self, cqe: Cqe) -> Result<Completion, CompletionError> {
        WorkQueue::complete(&mut self.queue, cqe)
    }
}

impl fmt::Debug for Sq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sq({})", self.queue.qpn())
    }
}

impl fmt::Debug for Rq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Rq({})", self.queue.rqn())
    }
}

#[cfg(test)]
mod tests {
    use super::SqConfig;

    #[test]
    fn wqebbs_per_send_fit_header_and_sges_or_inline_payload() {
        // Control and Ethernet segment take 32 bytes, with the first 2 of the header in them; an
        // inline payload begins with a word of its own.
        for (least, inline, sges, wqebbs) in [
            (0, 0, 2, 1),
            (0, 0, 3, 2),
            (18, 18, 1, 1),
            (0, 18, 1, 1),
            (18, 18, 2, 2),
            (18, 18, 5, 2),
            (18, 18, 6, 3),
            // A header of 19 bytes, or of 18 and an inline payload of 1.
            (18, 19, 0, 1),
            (18, 20, 0, 2),
            (18, 19, 1, 2),
            (18, 34, 2, 2),
            (18, 66, 1, 2),
            // A header of 19 and a payload of 61 bytes: 2 + 2 + 5 ds.
            (18, 80, 0, 3),
            (18, 83, 1, 3),
        ] {
            let config = SqConfig { inline, sges, ..SqConfig::new(1) };
            let shape = format!("{inline} bytes, at least {least}, and {sges} entries");
            assert_eq!(config.wqebbs_per_send(least), wqebbs, "{shape}");
        }
    }
}
