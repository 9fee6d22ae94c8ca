//! Header fields that a WQE asks the device to fill in, shown by WQEs that our driver would not
//! write.

use std::sync::Arc;

use verbless_command::{QueueMemory, SqAttr, SqObject, TisAttr};
use verbless_devx::{Uar, UarKind};
use verbless_prm::MinWqeInlineMode;

use verbless_queue::{CompletionQueue, Sge};

use super::rig::{Hosts, Packet, Side};
use crate::raw::{self, RegisteredMemory};
use crate::{Lab, Stop, ensure, ensure_eq, until};

/// Offset of the doorbell record, after the ring.
const RECORD: usize = 4096;

/// A send queue whose ring the case writes.
struct RawSq {
    object: SqObject,
    memory: RegisteredMemory,
    uar: Arc<Uar>,
    posted: u16,
}

impl RawSq {
    fn new(side: &Side, min_inline: MinWqeInlineMode) -> Result<Self, Stop> {
        let device = &side.device;
        let memory = RegisteredMemory::new(device, 2 * RECORD)?;
        let memory_at = |at| QueueMemory::new(memory.umem.clone(), at as u64);
        let uar = Arc::new(device.uar_alloc(UarKind::NonCached)?);
        let domain = Arc::new(device.alloc_transport_domain()?);
        let tis = device.create_tis(TisAttr { domain, priority: 0, pd: None })?;
        let object = device.create_sq(SqAttr {
            pd: side.domain.pd().clone(),
            uar: uar.clone(),
            cq: side.cq.object().clone(),
            tis: Some(Arc::new(tis)),
            ring: memory_at(0),
            record: memory_at(RECORD),
            log_wqebbs: 4,
            min_inline,
            user_index: 0,
            flush_in_error: true,
            multi_packet: false,
            timestamps: device.caps().sq_timestamps,
        })?;
        object.to_ready()?;
        Ok(Self { object, memory, uar, posted: 0 })
    }

    /// Posts a frame: `header` inline, the rest from memory.
    fn post(&mut self, header: &[u8], flags: u8, rest: Sge) -> Result<(), Stop> {
        const SEND: u8 = 0x0a;
        const SIGNALED: u8 = 8;
        let (start, tail) = header.split_at(header.len().min(2));
        let mut wqe = vec![0, (self.posted >> 8) as u8, self.posted as u8, SEND];
        let segments = 3 + tail.len().div_ceil(16);
        wqe.extend((self.object.sqn().0 << 8 | segments as u32).to_be_bytes());
        wqe.extend([0, 0, 0, SIGNALED, 0, 0, 0, 0]);
        wqe.extend([0, 0, 0, 0, flags, 0, 0, 0, 0, 0, 0, 0]);
        wqe.extend((header.len() as u16).to_be_bytes());
        wqe.extend(start);
        wqe.resize(32, 0);
        wqe.extend(tail);
        wqe.resize(wqe.len().next_multiple_of(16), 0);
        wqe.extend(rest.length.to_be_bytes());
        wqe.extend(rest.lkey.0.to_be_bytes());
        wqe.extend(rest.address.to_be_bytes());
        // A WQE of two wqebbs at most, and the ring has sixteen.
        self.memory.memory.write_at(64 * usize::from(self.posted), &wqe)?;
        self.posted += wqe.len().div_ceil(64) as u16;
        self.memory.memory.write_at(RECORD + 4, &u32::from(self.posted).to_be_bytes())?;
        let doorbell = *wqe.first_chunk().ok_or_else(|| Stop::fail("a WQE"))?;
        raw::ring(&self.uar, u64::from_ne_bytes(doorbell));
        Ok(())
    }

    /// The CQE's opcode and syndrome.
    fn done(&self, cq: &mut CompletionQueue) -> Result<(u8, u8), Stop> {
        let cqe = until("the completion of a frame", || cq.poll())?;
        ensure_eq!(cqe.qpn(), self.object.sqn(), "whose completion it is");
        Ok((cqe.opcode(), cqe.syndrome()))
    }
}

pub(super) fn inline_header_below_sq_minimum_fails(lab: &Lab) -> Result<(), Stop> {
    const GOOD: (u8, u8) = (0, 0);
    const REQUESTER_ERROR: u8 = 0xd;
    const LOCAL_QP_OPERATION: u8 = 2;
    let mut hosts = Hosts::new(lab)?;
    let _rule = hosts.steer(&verbless_queue::FlowAttr::to(hosts.there))?;
    let bytes = Packet::udp4().frame(hosts.there, hosts.here);
    let modes = [
        (MinWqeInlineMode::NONE, 0),
        (MinWqeInlineMode::L2, 14),
        (MinWqeInlineMode::IP, 34),
        (MinWqeInlineMode::TCP_UDP, 42),
    ];
    for (mode, min) in modes {
        for inline in [min, min + 1, 60] {
            let mut sq = RawSq::new(&hosts.from, mode)?;
            hosts.from.region.write_at(0, &bytes[inline..])?;
            let rest = hosts.from.region.sge(0, bytes.len() - inline)?;
            hosts.receive(0)?;
            sq.post(&bytes[..inline], 0, rest)?;
            let done = sq.done(&mut hosts.from.cq)?;
            ensure_eq!(done, GOOD, "{inline} bytes inline, of mode {mode:?}");
            ensure!(hosts.arrived()??.1 == bytes, "the frame with {inline} bytes inline");
        }
        let refused = (REQUESTER_ERROR, LOCAL_QP_OPERATION);
        let rest = hosts.from.region.sge(0, 100)?;
        if let Some(less) = usize::checked_sub(min, 1) {
            let mut sq = RawSq::new(&hosts.from, mode)?;
            sq.post(&bytes[..less], 0, rest)?;
            let done = sq.done(&mut hosts.from.cq)?;
            ensure_eq!(done, refused, "{less} bytes inline, of mode {mode:?}");
        }
        // A checksum offload, if the device has none.
        if hosts.from.device.caps().ethernet.as_ref().is_some_and(|page| page.csum_cap()) {
            continue;
        }
        let mut sq = RawSq::new(&hosts.from, mode)?;
        sq.post(&bytes[..60], 0x80, rest)?;
        ensure_eq!(sq.done(&mut hosts.from.cq)?, refused, "a checksum of the device's");
    }
    Ok(())
}
