//! Completion queues: writing CQEs, overrun, arming.

use verbless_prm::CqPeriodMode;
use verbless_prm::hot::{
    CqArm, Cqe, ErrCqe, OpOwn, OpcodeQpn, cqe_format, cqe_opcode, cqe_syndrome,
};
use zerocopy::big_endian::{U16, U32, U64};

use super::events;
use super::ring::record;
use super::state::{Completion, Delayed};
use crate::hca::objects::{Arm, Cq, Qp, QueueMemory, Sq};
use crate::hca::{Hca, Refusal};
use crate::world::{HcaId, World};

/// CQ indexes count in 24 bits where software writes them.
const COUNTER: u32 = 0xff_ffff;
/// Half of it: an index this far ahead is one that lies behind.
const HALF: u32 = 1 << 23;
/// A user index that says: there is none.
const NO_USER_INDEX: u32 = 0xff_ffff;

/// Vendor syndromes that go with the syndromes of error CQEs, as hardware is reported to give them.
pub(crate) fn vendor(syndrome: u8) -> u8 {
    match syndrome {
        cqe_syndrome::LOCAL_LENGTH => 0x69,
        cqe_syndrome::LOCAL_QP_OPERATION => 0x68,
        cqe_syndrome::LOCAL_PROTECTION => 0x51,
        cqe_syndrome::FLUSHED => 0xf9,
        cqe_syndrome::REMOTE_INVALID_REQUEST => 0x8a,
        cqe_syndrome::REMOTE_ACCESS => 0x88,
        cqe_syndrome::REMOTE_OPERATION => 0x89,
        cqe_syndrome::TRANSPORT_RETRY_EXCEEDED => 0x81,
        cqe_syndrome::RNR_RETRY_EXCEEDED => 0x82,
        _ => 0,
    }
}

/// What a successful request's CQE says.
pub(crate) struct Requested {
    pub opcode: u8,
    pub index: u16,
    /// Bytes that arrived, for READs and atomics; 0 for others.
    pub bytes: u32,
    pub event: bool,
    pub now: u64,
}

/// What a received message's CQE says.
pub(crate) struct Received {
    /// One of `cqe_opcode`.
    pub opcode: u8,
    pub index: u16,
    pub bytes: u32,
    pub immediate: u32,
    pub solicited: bool,
    pub slid: u16,
    /// Who sent it, bits 23:0; of a datagram also what its headers say.
    pub peer: u32,
    pub now: u64,
}

impl Completion {
    /// The CQE of a request that succeeded; `inline` are the bytes that it carries.
    pub(crate) fn requester(
        queue: &impl Reports,
        number: u32,
        of: &Requested,
        inline: Option<&[u8]>,
    ) -> Self {
        let cqe = Cqe {
            srqn_uidx: queue.user_index(),
            byte_cnt: U32::new(of.bytes),
            timestamp: U64::new(of.now),
            sop_drop_qpn: opcode_qpn(of.opcode, number),
            wqe_counter: U16::new(of.index),
            ..Cqe::zeroed()
        };
        Self::new(cqe, cqe_opcode::REQUESTER, of.event, inline, queue.response_room())
    }

    /// The CQE of a message that arrived; `inline` are the bytes that it carries.
    pub(crate) fn responder(qp: &Qp, qpn: u32, of: &Received, inline: Option<&[u8]>) -> Self {
        let cqe = Cqe {
            slid: U16::new(of.slid),
            flags_rqpn: U32::new(of.peer),
            srqn_uidx: qp.user_index(),
            imm_inval_pkey: U32::new(of.immediate),
            byte_cnt: U32::new(of.bytes),
            timestamp: U64::new(of.now),
            sop_drop_qpn: opcode_qpn(0, qpn),
            wqe_counter: U16::new(of.index),
            ..Cqe::zeroed()
        };
        Self::new(cqe, of.opcode, of.solicited, inline, qp.responder_inline)
    }

    /// An error CQE of the send (`REQUESTER_ERROR`) or receive queue (`RESPONDER_ERROR`).
    pub(crate) fn error(
        queue: &impl Reports,
        number: u32,
        cqe_opcode: u8,
        wqe_opcode: u8,
        index: u16,
        syndrome: u8,
    ) -> Self {
        let cqe = ErrCqe {
            srqn_uidx: queue.user_index(),
            vendor_err_synd: vendor(syndrome),
            syndrome,
            s_wqe_opcode_qpn: opcode_qpn(wqe_opcode, number),
            wqe_counter: U16::new(index),
            op_own: OpOwn::new().with_opcode(cqe_opcode).into_bits(),
            ..ErrCqe::zeroed()
        };
        Self { body: zerocopy::transmute!(cqe), first_half: None, solicited: true }
    }

    /// The last CQE of a buffer that its CQ leaves.
    fn resize() -> Self {
        let cqe = Cqe {
            op_own: OpOwn::new().with_opcode(cqe_opcode::RESIZE).into_bits(),
            ..Cqe::zeroed()
        };
        Self { body: zerocopy::transmute!(cqe), first_half: None, solicited: false }
    }

    fn new(cqe: Cqe, opcode: u8, solicited: bool, inline: Option<&[u8]>, room: u8) -> Self {
        let mut op_own = OpOwn::new().with_opcode(opcode).with_se(solicited);
        let mut body: [u8; 64] = zerocopy::transmute!(cqe);
        let mut first_half = None;
        match inline {
            Some(bytes) if room == 64 => {
                let mut half = [0; 64];
                half[..bytes.len()].copy_from_slice(bytes);
                first_half = Some(half);
                op_own.set_format(cqe_format::INLINE_64);
            }
            Some(bytes) => {
                body[..bytes.len()].copy_from_slice(bytes);
                op_own.set_format(cqe_format::INLINE_32);
            }
            None => {}
        }
        body[63] = op_own.into_bits();
        Self { body, first_half, solicited }
    }
}

/// Whose work a CQE reports.
pub(crate) trait Reports {
    /// What the CQE names it by.
    fn user_index(&self) -> U32;

    /// Bytes of a response that the CQE may carry.
    fn response_room(&self) -> u8;
}

impl Reports for Qp {
    fn user_index(&self) -> U32 {
        U32::new(match self.user_index {
            NO_USER_INDEX => self.srq.unwrap_or(0),
            index => index,
        })
    }

    fn response_room(&self) -> u8 {
        self.requester_inline
    }
}

impl Reports for Sq {
    fn user_index(&self) -> U32 {
        U32::new(match self.context.user_index() {
            NO_USER_INDEX => 0,
            index => index,
        })
    }

    fn response_room(&self) -> u8 {
        0
    }
}

fn opcode_qpn(opcode: u8, qpn: u32) -> U32 {
    U32::new(OpcodeQpn::new().with_wqe_opcode(opcode).with_qpn(qpn & 0xff_ffff).into_bits())
}

/// The CQ takes no more CQEs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Overrun;

/// Writes a CQE and the event that it causes; faults that a test injected may drop or delay it.
pub(crate) fn complete(
    world: &mut World,
    id: HcaId,
    cqn: u32,
    completion: Completion,
) -> Result<(), Overrun> {
    let hca = &mut world.hcas[id];
    let faults = &mut hca.engine.faults;
    if faults.lose_completions.strikes() {
        tracing::info!(cqn, "a completion is lost, as asked");
        return Ok(());
    }
    // Those of one CQ stay in order.
    let behind = hca.objects.cqs.get(&cqn).map_or((0, 0), |cq| cq.runtime.delayed);
    let due = if behind.0 > 0 { behind.1 } else { 0 };
    let due = due.max(match hca.engine.faults.delay_completions.strikes() {
        true => world.clock.now.saturating_add(hca.engine.faults.delay),
        false => 0,
    });
    if due == 0 {
        let now = world.clock.now;
        return write(hca, cqn, &completion, now);
    }
    if let Some(cq) = hca.objects.cqs.get_mut(&cqn) {
        cq.runtime.delayed = (behind.0 + 1, due);
    }
    hca.engine.delays += 1;
    hca.engine.delayed.insert((due, hca.engine.delays), Delayed { cqn, completion });
    Ok(())
}

/// Writes the CQEs whose delay is over; true if there was one.
pub(crate) fn write_delayed(world: &mut World, id: HcaId) -> bool {
    let now = world.clock.now;
    let hca = &mut world.hcas[id];
    let mut worked = false;
    while let Some(entry) = hca.engine.delayed.first_entry().filter(|entry| entry.key().0 <= now) {
        let Delayed { cqn, completion } = entry.remove();
        if let Some(cq) = hca.objects.cqs.get_mut(&cqn) {
            cq.runtime.delayed.0 = cq.runtime.delayed.0.saturating_sub(1);
        }
        let _ = write(hca, cqn, &completion, now);
        worked = true;
    }
    worked
}

fn write(hca: &mut Hca, cqn: u32, completion: &Completion, now: u64) -> Result<(), Overrun> {
    let memory = &*hca.memory;
    let cq = hca.objects.cqs.get_mut(&cqn).filter(|cq| !cq.overrun).ok_or(Overrun)?;
    let size = 1_u32.checked_shl(cq.log_size).ok_or(Overrun)?;
    let used = |cq: &Cq| cq.producer.wrapping_sub(cq.runtime.consumer) & COUNTER;
    if used(cq) >= size && !cq.overrun_ignore {
        if let Ok(word) = record(memory, cq.record) {
            cq.runtime.consumer = word & COUNTER;
        }
        if used(cq) >= size {
            tracing::info!(cqn, size, "a completion queue overran");
            cq.overrun = true;
            events::cq_overrun(hca, cqn);
            return Err(Overrun);
        }
    }
    let entry = u64::from(cq.cqe_bytes);
    let at = u64::from(cq.producer & (size - 1)) * entry;
    let owner = (cq.producer >> cq.log_size & 1) as u8;
    let mut bytes = [0; 128];
    let (first, second) = bytes.split_at_mut(64);
    second.copy_from_slice(&completion.body);
    second[63] |= owner;
    let written = match completion.first_half.filter(|_| entry == 128) {
        Some(half) => {
            first.copy_from_slice(&half);
            cq.memory.write_entry(memory, at, &bytes)
        }
        None => cq.memory.write_entry(memory, at + entry - 64, second),
    };
    if let Err(fault) = written {
        if memory.is_gone(fault.address) {
            tracing::debug!(cqn, "a completion queue of a program that is no more");
        } else {
            tracing::warn!(cqn, %fault, "a completion queue cannot be written");
        }
        cq.overrun = true;
        events::cq_overrun(hca, cqn);
        return Err(Overrun);
    }
    cq.producer = cq.producer.wrapping_add(1);
    cq.runtime.written_at = now;
    if completion.solicited {
        cq.runtime.solicited = Some(cq.producer);
    }
    if cq.arm != Arm::Idle {
        fire_if_due(hca, cqn, Some(now));
    }
    Ok(())
}

/// Ends the CQ's buffer with a CQE that says so, and goes on in the new one; indexes count on. Software copies what it has not
/// taken to one entry further on, so that index by index the two buffers together have no gap (Linux `copy_resize_cqes`).
///
/// That CQE is one like others: it needs room, software takes it, and an arm for the next CQE reports it. Nothing
/// changes unless there is room for it in the old buffer, and for all that then waits in the new one.
pub(crate) fn cq_resize(
    hca: &mut Hca,
    cqn: u32,
    memory: QueueMemory,
    log_size: u32,
    now: u64,
) -> Result<(), Refusal> {
    let cq = hca.objects.cqs.get_mut(&cqn).ok_or(Refusal::NoSuchCq)?;
    if cq.overrun {
        return Err(Refusal::CqState);
    }
    if let Ok(word) = record(&*hca.memory, cq.record) {
        cq.runtime.consumer = word & COUNTER;
    }
    let waiting = cq.producer.wrapping_sub(cq.runtime.consumer) & COUNTER;
    let size = 1_u32.checked_shl(cq.log_size.min(log_size)).ok_or(Refusal::CqSize)?;
    // Who asked for overruns to be ignored need not keep the record.
    if waiting >= size && !cq.overrun_ignore {
        return Err(Refusal::CqOutstanding);
    }
    write(hca, cqn, &Completion::resize(), now).map_err(|Overrun| Refusal::CqState)?;
    let cq = hca.objects.cqs.get_mut(&cqn).ok_or(Refusal::NoSuchCq)?;
    (cq.memory, cq.log_size) = (memory, log_size);
    Ok(())
}

/// Takes an arm request: `word` is what the doorbell or the record says.
///
/// A sequence number that has fired already asks for nothing: the software has yet to see that event.
pub(crate) fn arm(hca: &mut Hca, cqn: u32, word: u32) {
    let Some(cq) = hca.objects.cqs.get_mut(&cqn) else { return };
    let request = CqArm::from_bits(word);
    cq.runtime.arm_word = Some(word);
    let (consumer, sequence) = (request.consumer(), request.sequence());
    if cq.runtime.fired == Some(sequence) {
        return;
    }
    cq.runtime.fired = None;
    cq.arm = match request.solicited() {
        true => Arm::Solicited { consumer, sequence },
        false => Arm::Next { consumer, sequence },
    };
    fire_if_due(hca, cqn, None);
}

/// Reads the arm word of the record, for a CQ whose doorbell may have been overwritten by another's on the same page.
///
/// A record that still holds zeros may be a first request (sequence 0, index 0) as well as none; it counts as one,
/// since an event too many is harmless and one too few hangs.
pub(crate) fn arm_from_record(hca: &mut Hca, cqn: u32) {
    let Some(cq) = hca.objects.cqs.get(&cqn) else { return };
    let Ok(word) = record(&*hca.memory, cq.record.wrapping_add(4)) else { return };
    if cq.runtime.arm_word != Some(word) {
        arm(hca, cqn, word);
    }
}

/// Reports to the EQ, once, if the CQ holds what its arm request waits for: a CQE that software has not seen, and that no
/// event has told of. So software may arm first and poll then what the last event was about (perftest does), and
/// the next event is about something new.
///
/// Moderation may hold the event back; without `now`, that is decided when the time is known.
fn fire_if_due(hca: &mut Hca, cqn: u32, now: Option<u64>) {
    let Some(cq) = hca.objects.cqs.get_mut(&cqn) else { return };
    let notified = cq.runtime.notified;
    let ahead = |index: u32, of: u32| {
        let distance = index.wrapping_sub(of) & COUNTER;
        distance != 0 && distance < HALF
    };
    let after = |index: u32, consumer: u32| ahead(index, consumer) && ahead(index, notified);
    let sequence = match cq.arm {
        Arm::Next { consumer, sequence } if after(cq.producer, consumer) => sequence,
        Arm::Solicited { consumer, sequence }
            if cq.runtime.solicited.is_some_and(|index| after(index, consumer)) =>
        {
            sequence
        }
        _ => return,
    };
    if let Some(due) = moderation(cq, now) {
        if !std::mem::replace(&mut cq.runtime.moderated, true) {
            hca.engine.moderated.insert((due, cqn));
        }
        return;
    }
    cq.runtime.reported_at = now.unwrap_or(cq.runtime.reported_at);
    cq.arm = Arm::Idle;
    cq.runtime.fired = Some(sequence);
    cq.runtime.notified = cq.producer;
    let eqn = cq.eqn;
    events::completion(hca, eqn, cqn);
}

/// Until when moderation holds a CQ's event back: until there are `cq_max_count` CQEs to tell of, or `cq_period` microseconds have
/// gone since the last event, or the last CQE. 0 in either field is no moderation, and so is a time that is not known yet: 0.
fn moderation(cq: &Cq, now: Option<u64>) -> Option<u64> {
    let context = &cq.context;
    let (period, most) = (context.cq_period(), context.cq_max_count());
    if period == 0 || most == 0 {
        return None;
    }
    let since = cq.producer.wrapping_sub(cq.runtime.notified) & COUNTER;
    let told =
        |index: u32| index.wrapping_sub(cq.runtime.notified).wrapping_sub(1) & COUNTER >= HALF;
    let urgent = context.scqe_break_moderation_en()
        && cq.runtime.solicited.is_some_and(|index| !told(index));
    if since >= most.into() || urgent {
        return None;
    }
    let Some(now) = now else { return Some(0) };
    let from = match context.cq_period_mode() {
        CqPeriodMode::START_FROM_CQE => cq.runtime.written_at,
        _ => cq.runtime.reported_at,
    };
    let due = from.saturating_add(u64::from(period) * 1000);
    (due > now).then_some(due)
}

/// Reports what moderation held back long enough; true if there was anything to look at.
pub(crate) fn report_late(world: &mut World, id: HcaId) -> bool {
    let now = world.clock.now;
    let hca = &mut world.hcas[id];
    let mut worked = false;
    while let Some(&(due, cqn)) = hca.engine.moderated.first().filter(|&&(due, _)| due <= now) {
        hca.engine.moderated.remove(&(due, cqn));
        if let Some(cq) = hca.objects.cqs.get_mut(&cqn) {
            cq.runtime.moderated = false;
            fire_if_due(hca, cqn, Some(now));
        }
        worked = true;
    }
    worked
}
