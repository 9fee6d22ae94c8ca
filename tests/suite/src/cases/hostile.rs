//! Hostile memory: corrupt WQEs, a doorbell record ahead of the posted WQEs, arbitrary CQEs.

use std::sync::Arc;

use verbless_command::{
    CqAttr, CqEventTarget, CqeSize, Eqn, QpAttr, QpObject as Object, QueueMemory, RtsAttr,
};
use verbless_devx::{Uar, UarKind};
use verbless_queue::cq::{CompletionQueue, CompletionQueueParts};
use verbless_queue::qp::{
    BlueFlame, QueuePair, ReceiveQueue, ReceiveQueueParts, SendQueue, SendQueueParts,
};
use verbless_queue::wr::{Inline, Nop, Write};
use verbless_queue::{CompletionError, ConnectOptions, Domain, PeerAddress, QpConfig, WcStatus};

use crate::case::cases;
use crate::raw::{self, RegisteredMemory};
use crate::{Endpoint, Lab, Need, Pair, Stop, ensure, ensure_eq, failed, to_receive, until};

cases!(
    "hostile",
    "Corrupt WQEs, a doorbell record ahead of the posted WQEs, arbitrary CQEs.",
    needs [Need::Lossless]:
    corrupt_wqe_fails_only_its_qp,
    doorbell_record_ahead_fails_only_its_qp [Need::ModelDevice],
    arbitrary_send_cqe_is_accepted_or_rejected,
);

const SEND_WQEBBS: usize = 16;
const CQES: usize = 64;
/// Offsets in the registered memory, which holds both rings, the CQ and the doorbell records.
const RECEIVES_AT: usize = 0;
const SENDS_AT: usize = 64;
const CQ_AT: usize = 4096;
const RECORDS_AT: usize = 2 * 4096;
const BYTES: usize = 3 * 4096;

/// A queue pair and its completion queue whose memory the case can write.
struct RawQp {
    shared: RegisteredMemory,
    uar: Arc<Uar>,
    qp: QueuePair,
    cq: CompletionQueue,
    object: Object,
}

impl RawQp {
    /// A queue pair connected to itself.
    fn new(domain: &Domain) -> Result<Self, Stop> {
        let device = domain.device();
        let shared = RegisteredMemory::new(device, BYTES)?;
        let uar = Arc::new(device.uar_alloc(UarKind::NonCached)?);
        let page = raw::uar_page(&uar)?;
        let memory_at = |at: usize| QueueMemory::new(shared.umem.clone(), at as u64);
        let parts = CompletionQueueParts {
            cqn: Default::default(),
            ring: shared.ring(CQ_AT, 64 * CQES)?,
            entry_size: 64,
            record: shared.record(RECORDS_AT)?,
            uar: page.clone(),
        };
        let queue = CompletionQueue::new(parts)?;
        let cq = Arc::new(device.create_cq(CqAttr {
            uar: uar.clone(),
            ring: memory_at(CQ_AT),
            record: memory_at(RECORDS_AT),
            log_cqes: CQES.ilog2() as u8,
            cqe_size: CqeSize::BYTES_64,
            element: CqEventTarget::Eq(Eqn(device.query_eqn(0)?)),
            ignore_overrun: false,
        })?);
        let queue = queue.with_cqn(cq.cqn())?;
        let record = shared.record(RECORDS_AT + 64)?;
        let object = device.create_qp(QpAttr {
            service: verbless_command::ServiceType::RC,
            pd: domain.pd().clone(),
            uar: uar.clone(),
            send_cq: cq.clone(),
            receive_cq: cq,
            rings: memory_at(RECEIVES_AT),
            record: memory_at(RECORDS_AT + 64),
            log_send_wqebbs: Some(SEND_WQEBBS.ilog2() as u8),
            log_receive_wqes: Some(2),
            rmp: None,
            log_receive_stride: 4,
            user_index: 0,
            dma_mmo: false,
        })?;
        let send = SendQueue::new(SendQueueParts {
            qpn: object.qpn(),
            ring: shared.ring(SENDS_AT, 64 * SEND_WQEBBS)?,
            record: record.clone(),
            doorbell: page.doorbell(),
            max_sges: 2,
            max_inline: 64,
            signal_all: false,
            blueflame: BlueFlame::Never,
        })?;
        let receive = ReceiveQueue::new(ReceiveQueueParts {
            qpn: object.qpn(),
            ring: shared.ring(RECEIVES_AT, 64)?,
            stride: 16,
            record,
        })?;
        Ok(Self { shared, uar, qp: QueuePair::new(send, receive), cq: queue, object })
    }

    /// Moves the queue pair to RTS, connected to itself. `like` is a queue pair of the same port.
    fn connect(&mut self, domain: &Domain, like: &Endpoint) -> Result<(), Stop> {
        let address = domain.address(&like.qp, &ConnectOptions::default())?;
        let itself = PeerAddress { qpn: self.object.qpn(), ..address };
        let (init, rtr) = to_receive(domain, &itself)?;
        self.object.to_init(&init)?;
        self.object.to_rtr(&rtr)?;
        self.object.to_rts(&RtsAttr {
            send_psn: itself.psn,
            ack_timeout: 14,
            retry_count: 7,
            rnr_retry: 7,
            max_reads: 4,
        })?;
        Ok(())
    }

    /// Rings the doorbell for the WQE at `index`, whatever the ring holds.
    fn ring(&self, index: u8) {
        let [_, a, b, c] = self.object.qpn().0.to_be_bytes();
        raw::ring(&self.uar, u64::from_ne_bytes([0, 0, index, 0, a, b, c, 1]));
    }

    fn done(&mut self) -> Result<Result<verbless_queue::Completion, CompletionError>, Stop> {
        let Self { qp, cq, .. } = self;
        until("a completion", || qp.poll(cq))
    }
}

/// A raw queue pair beside a good one.
fn beside_a_good_one(lab: &Lab) -> Result<(RawQp, Pair), Stop> {
    let pair = Pair::new(lab)?;
    let mut raw = RawQp::new(&pair.a.domain)?;
    raw.connect(&pair.a.domain, &pair.a)?;
    Ok((raw, pair))
}

fn ensure_pair_works(pair: &mut Pair) -> Result<(), Stop> {
    let to = pair.b.remote(0)?;
    pair.a.perform(&Write::new(Inline(b"unmoved"), to).signaled())?;
    Ok(())
}

/// Posts a NOP, overwrites its WQE with `spoil`, and rings the doorbell.
fn spoiled(raw: &mut RawQp, spoil: &[u8]) -> Result<(), Stop> {
    raw.qp.post(&Nop::new().signaled(), 0)?;
    ensure_eq!(raw.done()??.cookie, 0, "cookie of a NOP that is not spoiled");
    let mut batch = raw.qp.batch();
    batch.post(&Nop::new().signaled(), 1)?;
    batch.hold();
    raw.shared.memory.write_at(SENDS_AT + 64, spoil)?;
    raw.ring(1);
    failed(raw.done()?, WcStatus::LocalQpOperation)?;
    Ok(())
}

fn corrupt_wqe_fails_only_its_qp(lab: &Lab) -> Result<(), Stop> {
    // The first word of a WQE has the opcode modifier, the index and the opcode.
    for bytes in [&[0xff; 64][..], &[0, 0, 1, 0x7e]] {
        let (mut raw, mut pair) = beside_a_good_one(lab)?;
        spoiled(&mut raw, bytes)?;
        ensure_pair_works(&mut pair)?;
    }
    Ok(())
}

fn doorbell_record_ahead_fails_only_its_qp(lab: &Lab) -> Result<(), Stop> {
    // Hardware may read on without end; only the model is known to stop at the first invalid WQE.
    let (mut raw, mut pair) = beside_a_good_one(lab)?;
    raw.shared.memory.write_at(RECORDS_AT + 64 + 4, &0x8000u32.to_be_bytes())?;
    raw.ring(0);
    let cqe = until("an error", || raw.cq.poll())?;
    ensure_eq!(cqe.opcode(), 0xd, "opcode of the CQE: a requester's error");
    ensure_pair_works(&mut pair)
}

/// Two requests are outstanding and never run. A CQE of arbitrary bytes completes one, or is
/// refused and completes none.
fn arbitrary_send_cqe_is_accepted_or_rejected(lab: &Lab) -> Result<(), Stop> {
    let pair = Pair::unconnected(lab, &QpConfig::new(1, 1), 64)?;
    let mut raw = RawQp::new(&pair.a.domain)?;
    let (mut succeeded, mut failed, mut refused) = (0, 0, 0);
    let mut outstanding: Vec<u64> = Vec::new();
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut posted = 0u16;
    for count in 0..5000u32 {
        if outstanding.is_empty() {
            outstanding.extend([2 * u64::from(count), 2 * u64::from(count) + 1]);
            let mut batch = raw.qp.batch();
            for &cookie in &outstanding {
                batch.post(&Nop::new(), cookie)?;
                posted += 1;
            }
            batch.hold();
        }
        let mut cqe = [0; 64];
        for word in cqe.chunks_exact_mut(8) {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            word.copy_from_slice(&state.to_ne_bytes());
        }
        if count % 2 == 0 {
            cqe[0x38..0x3c].copy_from_slice(&raw.qp.qpn().0.to_be_bytes());
            // An index near the outstanding ones, or a lap of the ring ahead.
            let index = posted.wrapping_sub(3).wrapping_add(u16::from(cqe[0x3d] & 0x13));
            cqe[0x3c..0x3e].copy_from_slice(&index.to_be_bytes());
        }
        // Software owns it on this lap; opcode 15 would mark it as invalid.
        let lap = (count as usize / CQES % 2) as u8;
        cqe[0x3f] = cqe[0x3f] & 0xfe | lap;
        if cqe[0x3f] >> 4 == 0xf {
            cqe[0x3f] &= 0xdf;
        }
        let slot = count as usize % CQES;
        raw.shared.memory.write_at(CQ_AT + 64 * slot, &cqe)?;
        let free = raw.qp.send.free();
        let cqe = raw.cq.poll().ok_or_else(|| Stop::fail("poll returned no CQE"))?;
        let outcome = raw.qp.complete(cqe);
        ensure!(raw.cq.inline_data().len() <= 64, "more inline data than a CQE has");
        let cookie = match outcome {
            Ok(done) => {
                succeeded += 1;
                done.cookie
            }
            Err(CompletionError::Failed(failure)) => {
                failed += 1;
                failure.cookie
            }
            Err(
                CompletionError::InvalidCqe(_)
                | CompletionError::OtherQueue(_)
                | CompletionError::OtherRawRq(_),
            ) => {
                refused += 1;
                ensure_eq!(raw.qp.send.free(), free, "free WQEBBs after a CQE that was refused");
                continue;
            }
            Err(CompletionError::OtherSrq(cqe)) => {
                return Err(Stop::fail(format!("{cqe:?} names an SRQ, but the QP has none")));
            }
        };
        // A completion also covers all requests posted before its own.
        let Some(at) = outstanding.iter().position(|&posted| posted == cookie) else {
            let what = format!("a completion of {cookie}, not of {outstanding:?}");
            return Err(Stop::fail(what));
        };
        outstanding.drain(..=at);
        let freed = raw.qp.send.free() - free;
        ensure_eq!(freed as usize, at + 1, format!("WQEBBs freed by {cookie}"));
    }
    ensure!(
        succeeded > 0 && failed > 0 && refused > 1000,
        "{succeeded} succeeded, {failed} failed and {refused} were refused"
    );
    Ok(())
}
