//! Shared receive queues: receives that several queue pairs draw from.

use std::time::Duration;

use verbless_command::{Device, KeyAccess, QKey};
use verbless_devx::{Event, EventChannel};
use verbless_prm::QpState;
use verbless_prm::hot::event_type;
use verbless_queue::completion::InvalidCqe;
use verbless_queue::service::{Connected, Service};
use verbless_queue::wr::{Inline, PostError, Send, SendImm, WriteImm};
use verbless_queue::{
    Completion, CompletionError, ConnectOptions, Cq, CqConfig, Cqe, DatagramOptions, Domain, Qp,
    QpConfig, Qpn, Rc, Region, Srq, SrqConfig, Uc, Ud, WcOpcode, WcStatus, WithSrq,
};

use crate::case::cases;
use crate::need::{SRQ, cap};
use crate::{Endpoint, Lab, Need, Stop, TIMEOUT, ensure, ensure_eq, failed, pattern, quiet, until};

cases!(
    "srq",
    "Shared receive queues: receives that several queue pairs draw from.",
    needs [SRQ]:
    message_is_scattered_over_receive_sges,
    several_qps_draw_from_one_srq,
    receives_are_reused_in_completion_order,
    qp_rejects_cqe_of_srq_receive,
    write_imm_consumes_receive,
    uc_messages_consume_receives [cap!(uc)],
    datagrams_consume_receives [cap!(ud)],
    full_srq_rejects_until_completion,
    dropped_batch_posts_nothing,
    sender_without_receive_exceeds_rnr_retries,
    oversized_message_fails_only_its_qp,
    failed_qp_leaves_receives_to_others,
    limit_event_fires_once_below_limit [Need::SrqEvents],
    limit_event_can_be_rearmed [Need::SrqEvents],
    query_returns_size_stride_and_pd,
    rmp_lives_as_long_as_its_qps,
    config_above_limit_is_rejected_with_limit,
);

/// Bytes of a message's buffer.
const SLOT: usize = 256;

/// The receiving side: two queue pairs, a completion queue each, and their SRQ.
struct Side<S: Service> {
    device: Device,
    domain: Domain,
    send_cq: Cq,
    cqs: [Cq; 2],
    qps: [Qp<S, WithSrq>; 2],
    receives: Srq,
    region: Region,
}

/// Two senders and the receiving side.
struct Rig<S: Service> {
    senders: [Endpoint<S>; 2],
    side: Side<S>,
}

impl<S: Service> Rig<S> {
    fn unconnected(lab: &Lab, config: &SrqConfig) -> Result<Self, Stop> {
        let device = lab.other_device()?;
        let domain = Domain::new(&device)?;
        let receives = domain.srq(config)?;
        let send_cq = domain.completion_queue(&CqConfig::new(128))?;
        let cqs = [(); 2].map(|()| domain.completion_queue(&CqConfig::new(128)));
        let [first, second] = cqs;
        let cqs = [first?, second?];
        let pair = |cq| domain.queue_pair_with_srq(&QpConfig::new(16, 0), &send_cq, cq, &receives);
        let qps = [pair(&cqs[0])?, pair(&cqs[1])?];
        let region = domain.region(64 << 10, KeyAccess::ALL)?;
        let sender = || Endpoint::of(lab.device()?, &QpConfig::new(64, 4), 64 << 10);
        Ok(Self {
            senders: [sender()?, sender()?],
            side: Side { device, domain, send_cq, cqs, qps, receives, region },
        })
    }
}

impl<S: Connected> Rig<S> {
    fn of(lab: &Lab, config: &SrqConfig, options: &ConnectOptions) -> Result<Self, Stop> {
        let mut rig = Self::unconnected(lab, config)?;
        for (sender, qp) in rig.senders.iter_mut().zip(&mut rig.side.qps) {
            let here = sender.domain.address(&sender.qp, options)?;
            let there = rig.side.domain.address(qp, options)?;
            sender.domain.connect(&mut sender.qp, &there, options)?;
            rig.side.domain.connect(qp, &here, options)?;
        }
        Ok(rig)
    }

    fn new(lab: &Lab) -> Result<Self, Stop> {
        Self::of(lab, &SrqConfig::new(15), &ConnectOptions::default())
    }

    /// A message of sender `from`, without a wait.
    fn send(&mut self, from: usize, text: &[u8]) -> Result<(), Stop> {
        self.senders[from].qp.post(&Send::new(Inline(text)).signaled(), 0)?;
        Ok(())
    }
}

impl<S: Service> Side<S> {
    /// Posts slot `slot` of the region, with its number as the cookie.
    fn post(&mut self, slot: usize) -> Result<(), Stop> {
        let into = self.region.sge(slot * SLOT, SLOT)?;
        self.receives.post(into, slot as u64)?;
        Ok(())
    }

    fn cqe(&mut self, of: usize) -> Result<Cqe, Stop> {
        until("a completion of an SRQ WQE", || self.cqs[of].poll())
    }

    /// The next receive of queue pair `of`.
    fn receive(&mut self, of: usize) -> Result<Result<Completion, CompletionError>, Stop> {
        let cqe = self.cqe(of)?;
        ensure!(cqe.is_receive(), "{cqe:?} is of no receive");
        ensure_eq!(cqe.qpn(), self.qps[of].qpn(), "queue pair of the receive");
        Ok(self.receives.complete(cqe))
    }

    fn text(&self, slot: u64, length: usize) -> Result<Vec<u8>, Stop> {
        let mut bytes = vec![0; length];
        self.region.read_at(slot as usize * SLOT, &mut bytes)?;
        Ok(bytes)
    }
}

fn message_is_scattered_over_receive_sges(lab: &Lab) -> Result<(), Stop> {
    let config = SrqConfig { sges: 3, ..SrqConfig::new(4) };
    let mut rig = Rig::<Rc>::of(lab, &config, &ConnectOptions::default())?;
    let sge = |at, length| rig.side.region.sge(at, length);
    let (all, two) = ([sge(0, 3)?, sge(100, 0)?, sge(200, 60)?], [sge(300, 1)?, sge(400, 90)?]);
    rig.side.receives.post(all, 1)?;
    rig.side.receives.post(two, 2)?;
    let text = pattern(7, 60);
    for cookie in [1, 2] {
        rig.send(0, &text)?;
        ensure_eq!(rig.side.receive(0)??.cookie, cookie, "cookie");
    }
    let mut memory = [0; 512];
    rig.side.region.read_at(0, &mut memory)?;
    ensure!(memory[..3] == text[..3] && memory[200..257] == text[3..], "other data in the first");
    ensure!(memory[300] == text[0] && memory[400..459] == text[1..], "other data in the second");
    Ok(())
}

fn several_qps_draw_from_one_srq(lab: &Lab) -> Result<(), Stop> {
    let mut rig = Rig::<Rc>::new(lab)?;
    for round in 0..20u8 {
        (0..4).try_for_each(|slot| rig.side.post(slot))?;
        for (slot, from) in (0..).zip([0, 1, 1, 0]) {
            let text = pattern(4 * round + slot as u8, 50);
            rig.send(from, &text)?;
            let done = rig.side.receive(from)??;
            ensure_eq!((done.cookie, done.byte_len()), (slot, 50), "completion");
            ensure_eq!(done.operation(), WcOpcode::Receive, "operation");
            ensure!(rig.side.text(slot, 50)? == text, "message {slot} of round {round}");
        }
    }
    Ok(())
}

/// One queue pair keeps its completions while the other's receives come and go: the list is then
/// not in index order.
fn receives_are_reused_in_completion_order(lab: &Lab) -> Result<(), Stop> {
    let mut rig = Rig::<Rc>::of(lab, &SrqConfig::new(7), &ConnectOptions::default())?;
    let mut free: Vec<usize> = (0..7).collect();
    let mut kept = 0;
    for round in 0..400usize {
        while let Some(slot) = free.pop() {
            rig.side.post(slot)?;
        }
        ensure_eq!(rig.side.receives.free(), 0, "free receives");
        // Every third message goes to the queue pair that does not poll; it polls once it has
        // three.
        let from = usize::from(round % 3 == 0);
        let text = pattern(round as u8, 1 + round % 60);
        rig.send(from, &text)?;
        ensure_eq!(rig.senders[from].sent()??.operation(), WcOpcode::Send, "operation");
        if from == 1 {
            kept += 1;
        } else {
            let done = rig.side.receive(0)??;
            ensure!(rig.side.text(done.cookie, text.len())? == text, "message of round {round}");
            free.push(done.cookie as usize);
        }
        if kept == 3 {
            for _ in 0..std::mem::take(&mut kept) {
                free.push(rig.side.receive(1)??.cookie as usize);
            }
        }
    }
    Ok(())
}

fn qp_rejects_cqe_of_srq_receive(lab: &Lab) -> Result<(), Stop> {
    let mut rig = Rig::<Rc>::new(lab)?;
    rig.side.post(0)?;
    rig.senders[0].qp.post(&SendImm::new(Inline(b"whose?"), 0x5ead).signaled(), 0)?;
    let Side { qps, cqs, .. } = &mut rig.side;
    let cqe = until("a completion", || cqs[0].poll())?;
    let done = qps[0].complete(cqe);
    let Err(CompletionError::OtherSrq(cqe)) = done else {
        return Err(Stop::fail(format!("{done:?}, though the receive is shared")));
    };
    // No receive is lost.
    let receives = &mut rig.side.receives;
    let free = receives.free();
    let done = receives.complete(cqe)?;
    ensure_eq!((done.cookie, done.byte_len(), done.immediate()), (0, 6, Some(0x5ead)), "receive");
    ensure_eq!(receives.free(), free + 1, "free receives");
    // A send's completion does not belong to the SRQ.
    rig.senders[0].qp.post(&Send::new(Inline(b"")).signaled(), 0)?;
    let Endpoint { send_cq, .. } = &mut rig.senders[0];
    let sent = until("a completion of a send", || send_cq.poll())?;
    ensure!(!sent.is_receive(), "a send's completion is a receive's");
    let refused = rig.side.receives.complete(sent).err();
    ensure!(
        matches!(refused, Some(CompletionError::InvalidCqe(InvalidCqe::Opcode(_)))),
        "{refused:?}"
    );
    Ok(())
}

fn write_imm_consumes_receive(lab: &Lab) -> Result<(), Stop> {
    let mut rig = Rig::<Rc>::new(lab)?;
    rig.side.post(3)?;
    let far = rig.side.region.remote(32 << 10, 0)?;
    rig.senders[1].perform(&WriteImm::new(Inline(b"elsewhere"), far, 0xabc).signaled())?;
    let done = rig.side.receive(1)??;
    ensure_eq!((done.cookie, done.immediate()), (3, Some(0xabc)), "completion");
    ensure_eq!(rig.side.text(3, 9)?, [0; 9], "the receive's own memory");
    ensure_eq!(rig.side.text(128, 9)?, b"elsewhere", "the arrived bytes");
    Ok(())
}

fn uc_messages_consume_receives(lab: &Lab) -> Result<(), Stop> {
    let mut rig = Rig::<Uc>::new(lab)?;
    // Without a receive the message is lost.
    rig.send(0, b"too early")?;
    rig.senders[0].sent()??;
    let Side { cqs, .. } = &mut rig.side;
    quiet("a receive that was not posted", || cqs[0].poll())?;
    for slot in 0..4 {
        rig.side.post(slot)?;
    }
    for (slot, from) in [0, 1, 1, 0].into_iter().enumerate() {
        rig.send(from, &[slot as u8; 9])?;
        ensure_eq!(rig.side.receive(from)??.cookie, slot as u64, "cookie");
        ensure_eq!(rig.side.text(slot as u64, 9)?, [slot as u8; 9], "message");
    }
    Ok(())
}

fn datagrams_consume_receives(lab: &Lab) -> Result<(), Stop> {
    const KEY: QKey = QKey(7);
    let mut rig = Rig::<Ud>::unconnected(lab, &SrqConfig::new(15))?;
    let start = DatagramOptions::new(KEY);
    let options = ConnectOptions::default();
    let mut ways = Vec::new();
    for qp in &mut rig.side.qps {
        qp.start(&start)?;
        let peer = rig.side.domain.address(qp, &options)?;
        ways.push(rig.senders[0].domain.destination(&peer, KEY, &options)?);
    }
    rig.senders[0].qp.start(&start)?;
    for slot in 0..6 {
        rig.side.post(slot)?;
    }
    let us: Qpn = rig.senders[0].qp.qpn();
    for (slot, to) in [0, 1, 1, 0, 1, 0].into_iter().enumerate() {
        let text = [slot as u8; 20];
        let request = SendImm::new(Inline(&text), 99).signaled().to(&ways[to]);
        rig.senders[0].qp.post(&request, 0)?;
        let cqe = rig.side.cqe(to)?;
        ensure_eq!(cqe.source().map(|source| source.qpn()), Some(us), "source QPN");
        let done = rig.side.receives.complete(cqe)?;
        ensure_eq!((done.cookie, done.byte_len()), (slot as u64, 60), "completion");
        ensure_eq!(done.immediate(), Some(99), "immediate");
        ensure_eq!(rig.side.text(slot as u64, 60)?[40..], [slot as u8; 20], "message");
    }
    Ok(())
}

fn full_srq_rejects_until_completion(lab: &Lab) -> Result<(), Stop> {
    let mut rig = Rig::<Rc>::new(lab)?;
    let capacity = rig.side.receives.capacity();
    ensure_eq!(capacity, 15, "receives of a ring of 16: one is kept back");
    for slot in 0..capacity as usize {
        rig.side.post(slot)?;
    }
    let sge = rig.side.region.sge(0, SLOT)?;
    ensure_eq!(rig.side.receives.post(sge, 0), Err(PostError::Full), "one more");
    ensure_eq!(rig.side.receives.post([sge; 2], 0), Err(PostError::TooManySges), "two sges");
    rig.send(0, b"room")?;
    rig.side.receive(0)??;
    rig.side.post(0)?;
    ensure_eq!(rig.side.receives.post(sge, 0), Err(PostError::Full), "one more");
    Ok(())
}

fn dropped_batch_posts_nothing(lab: &Lab) -> Result<(), Stop> {
    let mut rig = Rig::<Rc>::new(lab)?;
    let sges = [rig.side.region.sge(0, SLOT)?, rig.side.region.sge(SLOT, SLOT)?];
    for _ in 0..3 {
        let mut batch = rig.side.receives.batch();
        for _ in 0..15 {
            batch.post(sges[1], 77)?;
        }
        ensure_eq!(batch.post(sges[1], 77), Err(PostError::Full), "a sixteenth");
        drop(batch);
        ensure_eq!(rig.side.receives.free(), 15, "free receives");
    }
    let mut batch = rig.side.receives.batch();
    batch.post(sges[0], 1)?;
    batch.post(sges[1], 2)?;
    batch.ring();
    for cookie in [1, 2] {
        rig.send(0, b"posted")?;
        ensure_eq!(rig.side.receive(0)??.cookie, cookie, "cookie");
    }
    Ok(())
}

fn with_short_timeouts() -> ConnectOptions {
    ConnectOptions {
        ack_timeout: 8,
        retry_count: 1,
        rnr_retry: 2,
        min_rnr_timer: 1,
        ..Default::default()
    }
}

fn sender_without_receive_exceeds_rnr_retries(lab: &Lab) -> Result<(), Stop> {
    let mut rig = Rig::<Rc>::of(lab, &SrqConfig::new(3), &with_short_timeouts())?;
    rig.send(0, b"no listener")?;
    failed(rig.senders[0].sent()?, WcStatus::RnrRetryExceeded)?;
    // The other sender finds a receive in time.
    rig.side.post(0)?;
    rig.send(1, b"in time")?;
    ensure_eq!(rig.side.receive(1)??.byte_len(), 7, "bytes");
    Ok(())
}

fn oversized_message_fails_only_its_qp(lab: &Lab) -> Result<(), Stop> {
    let mut rig = Rig::<Rc>::new(lab)?;
    let short = rig.side.region.sge(0, 8)?;
    rig.side.receives.post(short, 5)?;
    rig.side.post(1)?;
    rig.send(0, b"more than eight")?;
    ensure_eq!(failed(rig.side.receive(0)?, WcStatus::LocalLength)?, 5, "cookie");
    failed(rig.senders[0].sent()?, WcStatus::RemoteInvalidRequest)?;
    ensure_eq!(rig.side.qps[0].object().state()?, QpState::ERR, "state of the first");
    ensure_eq!(rig.side.receives.free(), 14, "free receives");
    rig.send(1, b"more than eight")?;
    ensure_eq!(rig.side.receive(1)??.cookie, 1, "cookie");
    Ok(())
}

fn failed_qp_leaves_receives_to_others(lab: &Lab) -> Result<(), Stop> {
    let mut rig = Rig::<Rc>::new(lab)?;
    (0..4).try_for_each(|slot| rig.side.post(slot))?;
    rig.side.qps[0].to_error()?;
    rig.side.qps[0].post(&Send::new(Inline(b"late")), 9)?;
    let Side { qps, send_cq, .. } = &mut rig.side;
    let flushed = until("a completion", || send_cq.poll())?;
    ensure_eq!(failed(qps[0].complete(flushed), WcStatus::Flushed)?, 9, "the send");
    let Side { cqs, .. } = &mut rig.side;
    quiet("an SRQ WQE was flushed", || cqs[0].poll())?;
    for slot in 0..4 {
        rig.send(1, b"still here")?;
        ensure_eq!(rig.side.receive(1)??.cookie, slot, "cookie");
    }
    Ok(())
}

fn watched(lab: &Lab) -> Result<(Rig<Rc>, EventChannel), Stop> {
    let rig = Rig::<Rc>::new(lab)?;
    let channel = rig.side.device.event_channel(false)?;
    rig.side.receives.subscribe(&channel, 0xbeef)?;
    Ok((rig, channel))
}

fn limit_reached(channel: &EventChannel) -> Result<Event, Stop> {
    if !channel.wait(Some(TIMEOUT))? {
        return Err(Stop::fail(
            "no limit event came: Linux delivers none before 6.17 and its stable updates \
             (85fe9f565d2d), and one is missing on a newer kernel",
        ));
    }
    channel.read()?.ok_or_else(|| Stop::fail("the channel was readable, but had no event"))
}

fn limit_event_fires_once_below_limit(lab: &Lab) -> Result<(), Stop> {
    let (mut rig, channel) = watched(lab)?;
    (0..8).try_for_each(|slot| rig.side.post(slot))?;
    rig.side.receives.arm_limit(5)?;
    for left in (0..8).rev() {
        rig.send(left % 2, b"one less")?;
        rig.side.receive(left % 2)??;
        if left >= 5 {
            ensure!(!channel.wait(Some(Duration::from_millis(20)))?, "an event, with {left} left");
        } else if left == 4 {
            let event = limit_reached(&channel)?;
            ensure_eq!(event.cookie, 0xbeef, "cookie");
            let eqe = event.eqe.ok_or_else(|| Stop::fail("the event has no EQE"))?;
            ensure_eq!(eqe[1], event_type::SRQ_LIMIT, "type");
            let number = u32::from_be_bytes([eqe[0x38], eqe[0x39], eqe[0x3a], eqe[0x3b]]);
            ensure_eq!(number & 0xff_ffff, rig.side.receives.object().rmpn().0, "pool");
        }
    }
    ensure!(!channel.wait(Some(Duration::from_millis(20)))?, "a second event");
    Ok(())
}

fn limit_event_can_be_rearmed(lab: &Lab) -> Result<(), Stop> {
    let (mut rig, channel) = watched(lab)?;
    for _ in 0..3 {
        while rig.side.receives.free() > 9 {
            rig.side.post(0)?;
        }
        rig.side.receives.arm_limit(6)?;
        let limit = rig.side.receives.object().query()?.wq().lwm();
        ensure_eq!(limit, 6, "limit");
        rig.send(0, b"one less")?;
        rig.side.receive(0)??;
        limit_reached(&channel)?;
    }
    // Disarmed, it makes no event.
    while rig.side.receives.free() > 9 {
        rig.side.post(0)?;
    }
    rig.side.receives.arm_limit(6)?;
    rig.side.receives.arm_limit(0)?;
    rig.send(0, b"one less")?;
    rig.side.receive(0)??;
    ensure!(!channel.wait(Some(Duration::from_millis(30)))?, "an event without a request");
    Ok(())
}

fn query_returns_size_stride_and_pd(lab: &Lab) -> Result<(), Stop> {
    let rig =
        Rig::<Rc>::of(lab, &SrqConfig { receives: 100, sges: 3 }, &ConnectOptions::default())?;
    let shown = rig.side.receives.object().query()?;
    ensure_eq!(shown.wq().log_wq_sz(), 7, "log2 of the receives");
    ensure_eq!(shown.wq().log_wq_stride(), 6, "log2 of the bytes of each");
    ensure_eq!(shown.wq().pd(), rig.side.domain.pd().pdn(), "protection domain");
    ensure_eq!(shown.wq().lwm(), 0, "limit");
    let qp = rig.side.qps[0].object().query()?;
    ensure_eq!(qp.srqn_rmpn_xrqn(), rig.side.receives.object().rmpn().0, "RMP of the QP");
    Ok(())
}

fn rmp_lives_as_long_as_its_qps(lab: &Lab) -> Result<(), Stop> {
    let mut rig = Rig::<Rc>::of(lab, &SrqConfig::new(3), &with_short_timeouts())?;
    (0..2).try_for_each(|slot| rig.side.post(slot))?;
    let config = SrqConfig::new(3);
    let other = rig.side.domain.srq(&config)?;
    drop(std::mem::replace(&mut rig.side.receives, other));
    // Its posted receives still exist, though no message can complete them.
    for from in [0, 1] {
        rig.send(from, b"into the old one")?;
        rig.senders[from].sent()??;
        ensure!(rig.side.cqe(from)?.is_receive(), "no receive's completion");
    }
    rig.send(0, b"there are none left")?;
    failed(rig.senders[0].sent()?, WcStatus::RnrRetryExceeded)?;
    Ok(())
}

fn config_above_limit_is_rejected_with_limit(lab: &Lab) -> Result<(), Stop> {
    let device = lab.device()?;
    let domain = Domain::new(&device)?;
    let caps = device.caps();
    let max = 1u32 << caps.general.log_max_srq_sz();
    // One of the entries links a receive to the next.
    let sges = caps.max_receive_sges() as u32 - 1;
    for (config, limit) in [
        (SrqConfig::new(2 * max), max),
        (SrqConfig::new(u32::MAX), max),
        (SrqConfig { sges: 1000, ..SrqConfig::new(4) }, sges),
    ] {
        let error = domain.srq(&config).err();
        let error = error.ok_or_else(|| Stop::fail(format!("{config:?} was taken")))?.to_string();
        let names_limit = error.contains(&format!("at most {limit}"));
        ensure!(names_limit, "{config:?}: {error:?} does not name the limit {limit}");
    }
    Ok(())
}
