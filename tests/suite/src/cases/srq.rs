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
use crate::{Endpoint, Lab, Stop, TIMEOUT, ensure, ensure_eq, failed, pattern, quiet, until};

cases!(
    "srq",
    "Shared receive queues: receives that several queue pairs draw from.",
    needs [SRQ]:
    message_consumes_next_receive,
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
    limit_event_fires_once_below_limit,
    limit_event_can_be_rearmed,
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
struct Hall<S: Service> {
    senders: [Endpoint<S>; 2],
    side: Side<S>,
}

impl<S: Service> Hall<S> {
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

impl<S: Connected> Hall<S> {
    fn of(lab: &Lab, config: &SrqConfig, options: &ConnectOptions) -> Result<Self, Stop> {
        let mut hall = Self::unconnected(lab, config)?;
        for (sender, qp) in hall.senders.iter_mut().zip(&mut hall.side.qps) {
            let here = sender.domain.address(&sender.qp, options)?;
            let there = hall.side.domain.address(qp, options)?;
            sender.domain.connect(&mut sender.qp, &there, options)?;
            hall.side.domain.connect(qp, &here, options)?;
        }
        Ok(hall)
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
        until("a completion of a shared receive", || self.cqs[of].poll())
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

fn message_consumes_next_receive(lab: &Lab) -> Result<(), Stop> {
    let mut hall = Hall::<Rc>::new(lab)?;
    for slot in 0..10 {
        hall.side.post(slot)?;
    }
    for slot in 0..10 {
        hall.send(0, &pattern(slot as u8, 50))?;
        let done = hall.side.receive(0)??;
        ensure_eq!((done.cookie, done.byte_len()), (slot, 50), "completion");
        ensure_eq!(done.operation(), WcOpcode::Receive, "operation");
        ensure!(hall.side.text(slot, 50)? == pattern(slot as u8, 50), "message {slot}");
    }
    Ok(())
}

fn message_is_scattered_over_receive_sges(lab: &Lab) -> Result<(), Stop> {
    let config = SrqConfig { sges: 3, ..SrqConfig::new(4) };
    let mut hall = Hall::<Rc>::of(lab, &config, &ConnectOptions::default())?;
    let piece = |at, length| hall.side.region.sge(at, length);
    let (all, two) =
        ([piece(0, 3)?, piece(100, 0)?, piece(200, 60)?], [piece(300, 1)?, piece(400, 90)?]);
    hall.side.receives.post(all, 1)?;
    hall.side.receives.post(two, 2)?;
    let text = pattern(7, 60);
    for cookie in [1, 2] {
        hall.send(0, &text)?;
        ensure_eq!(hall.side.receive(0)??.cookie, cookie, "cookie");
    }
    let mut memory = [0; 512];
    hall.side.region.read_at(0, &mut memory)?;
    ensure!(
        memory[..3] == text[..3] && memory[200..257] == text[3..],
        "the first came out otherwise"
    );
    ensure!(
        memory[300] == text[0] && memory[400..459] == text[1..],
        "the second came out otherwise"
    );
    Ok(())
}

fn several_qps_draw_from_one_srq(lab: &Lab) -> Result<(), Stop> {
    let mut hall = Hall::<Rc>::new(lab)?;
    for round in 0..20u8 {
        (0..4).try_for_each(|slot| hall.side.post(slot))?;
        let mut seen = [false; 4];
        for from in [0, 1, 1, 0] {
            let text = [round, from as u8, 0x55];
            hall.send(from, &text)?;
            let done = hall.side.receive(from)??;
            ensure_eq!(hall.side.text(done.cookie, 3)?, text, "message");
            ensure!(!std::mem::replace(&mut seen[done.cookie as usize], true), "taken twice");
        }
    }
    Ok(())
}

/// One queue pair keeps its completions while the other's receives come and go: the list is then
/// not in index order.
fn receives_are_reused_in_completion_order(lab: &Lab) -> Result<(), Stop> {
    let mut hall = Hall::<Rc>::of(lab, &SrqConfig::new(7), &ConnectOptions::default())?;
    let mut free: Vec<usize> = (0..7).collect();
    let mut kept = 0;
    for round in 0..400usize {
        while let Some(slot) = free.pop() {
            hall.side.post(slot)?;
        }
        ensure_eq!(hall.side.receives.free(), 0, "free receives");
        // Every third message goes to the queue pair that does not poll; it polls once it has
        // three.
        let from = usize::from(round % 3 == 0);
        let text = pattern(round as u8, 1 + round % 60);
        hall.send(from, &text)?;
        ensure_eq!(hall.senders[from].sent()??.operation(), WcOpcode::Send, "operation");
        if from == 1 {
            kept += 1;
        } else {
            let done = hall.side.receive(0)??;
            ensure!(hall.side.text(done.cookie, text.len())? == text, "message of round {round}");
            free.push(done.cookie as usize);
        }
        if kept == 3 {
            for _ in 0..std::mem::take(&mut kept) {
                free.push(hall.side.receive(1)??.cookie as usize);
            }
        }
    }
    Ok(())
}

fn qp_rejects_cqe_of_srq_receive(lab: &Lab) -> Result<(), Stop> {
    let mut hall = Hall::<Rc>::new(lab)?;
    hall.side.post(0)?;
    hall.senders[0].qp.post(&SendImm::new(Inline(b"whose?"), 0x5ead).signaled(), 0)?;
    let Side { qps, cqs, .. } = &mut hall.side;
    let cqe = until("a completion", || cqs[0].poll())?;
    let done = qps[0].complete(cqe);
    let Err(CompletionError::OtherSrq(cqe)) = done else {
        return Err(Stop::fail(format!("{done:?}, though the receive is shared")));
    };
    // No receive is lost.
    let receives = &mut hall.side.receives;
    let free = receives.free();
    let done = receives.complete(cqe)?;
    ensure_eq!((done.cookie, done.byte_len(), done.immediate()), (0, 6, Some(0x5ead)), "receive");
    ensure_eq!(receives.free(), free + 1, "free receives");
    // A send's completion does not belong to the SRQ.
    hall.senders[0].qp.post(&Send::new(Inline(b"")).signaled(), 0)?;
    let Endpoint { send_cq, .. } = &mut hall.senders[0];
    let sent = until("a completion of a send", || send_cq.poll())?;
    ensure!(!sent.is_receive(), "a send's completion is a receive's");
    let refused = hall.side.receives.complete(sent).err();
    ensure!(
        matches!(refused, Some(CompletionError::InvalidCqe(InvalidCqe::Opcode(_)))),
        "{refused:?}"
    );
    Ok(())
}

fn write_imm_consumes_receive(lab: &Lab) -> Result<(), Stop> {
    let mut hall = Hall::<Rc>::new(lab)?;
    hall.side.post(3)?;
    let far = hall.side.region.remote(32 << 10, 0)?;
    hall.senders[1].perform(&WriteImm::new(Inline(b"elsewhere"), far, 0xabc).signaled())?;
    let done = hall.side.receive(1)??;
    ensure_eq!((done.cookie, done.immediate()), (3, Some(0xabc)), "completion");
    ensure_eq!(hall.side.text(3, 9)?, [0; 9], "the receive's own memory");
    ensure_eq!(hall.side.text(128, 9)?, b"elsewhere", "what arrived");
    Ok(())
}

fn uc_messages_consume_receives(lab: &Lab) -> Result<(), Stop> {
    let mut hall = Hall::<Uc>::new(lab)?;
    // Without a receive the message is lost.
    hall.send(0, b"too early")?;
    hall.senders[0].sent()??;
    let Side { cqs, .. } = &mut hall.side;
    quiet("a receive that was not posted", || cqs[0].poll())?;
    for slot in 0..4 {
        hall.side.post(slot)?;
    }
    for (slot, from) in [0, 1, 1, 0].into_iter().enumerate() {
        hall.send(from, &[slot as u8; 9])?;
        ensure_eq!(hall.side.receive(from)??.cookie, slot as u64, "cookie");
        ensure_eq!(hall.side.text(slot as u64, 9)?, [slot as u8; 9], "message");
    }
    Ok(())
}

fn datagrams_consume_receives(lab: &Lab) -> Result<(), Stop> {
    const KEY: QKey = QKey(7);
    let mut hall = Hall::<Ud>::unconnected(lab, &SrqConfig::new(15))?;
    let start = DatagramOptions::new(KEY);
    let options = ConnectOptions::default();
    let mut ways = Vec::new();
    for qp in &mut hall.side.qps {
        hall.side.domain.start(qp, &start)?;
        let peer = hall.side.domain.address(qp, &options)?;
        ways.push(hall.senders[0].domain.destination(&peer, KEY, &options)?);
    }
    hall.senders[0].domain.start(&mut hall.senders[0].qp, &start)?;
    for slot in 0..6 {
        hall.side.post(slot)?;
    }
    let us: Qpn = hall.senders[0].qp.qpn();
    for (slot, to) in [0, 1, 1, 0, 1, 0].into_iter().enumerate() {
        let text = [slot as u8; 20];
        let request = SendImm::new(Inline(&text), 99).signaled().to(&ways[to]);
        hall.senders[0].qp.post(&request, 0)?;
        let cqe = hall.side.cqe(to)?;
        ensure_eq!(cqe.source().map(|source| source.qpn()), Some(us), "who sent it");
        let done = hall.side.receives.complete(cqe)?;
        ensure_eq!((done.cookie, done.byte_len()), (slot as u64, 60), "completion");
        ensure_eq!(done.immediate(), Some(99), "immediate");
        ensure_eq!(hall.side.text(slot as u64, 60)?[40..], [slot as u8; 20], "message");
    }
    Ok(())
}

fn full_srq_rejects_until_completion(lab: &Lab) -> Result<(), Stop> {
    let mut hall = Hall::<Rc>::new(lab)?;
    let capacity = hall.side.receives.capacity();
    ensure_eq!(capacity, 15, "receives of a ring of 16: one is kept back");
    for slot in 0..capacity as usize {
        hall.side.post(slot)?;
    }
    let piece = hall.side.region.sge(0, SLOT)?;
    ensure_eq!(hall.side.receives.post(piece, 0), Err(PostError::Full), "one more");
    ensure_eq!(hall.side.receives.post([piece; 2], 0), Err(PostError::TooManySges), "two pieces");
    hall.send(0, b"room")?;
    hall.side.receive(0)??;
    hall.side.post(0)?;
    ensure_eq!(hall.side.receives.post(piece, 0), Err(PostError::Full), "one more");
    Ok(())
}

fn dropped_batch_posts_nothing(lab: &Lab) -> Result<(), Stop> {
    let mut hall = Hall::<Rc>::new(lab)?;
    let pieces = [hall.side.region.sge(0, SLOT)?, hall.side.region.sge(SLOT, SLOT)?];
    for _ in 0..3 {
        let mut batch = hall.side.receives.batch();
        for _ in 0..15 {
            batch.post(pieces[1], 77)?;
        }
        ensure_eq!(batch.post(pieces[1], 77), Err(PostError::Full), "a sixteenth");
        drop(batch);
        ensure_eq!(hall.side.receives.free(), 15, "free receives");
    }
    let mut batch = hall.side.receives.batch();
    batch.post(pieces[0], 1)?;
    batch.post(pieces[1], 2)?;
    batch.ring();
    for cookie in [1, 2] {
        hall.send(0, b"posted")?;
        ensure_eq!(hall.side.receive(0)??.cookie, cookie, "cookie");
    }
    Ok(())
}

fn impatient() -> ConnectOptions {
    ConnectOptions {
        ack_timeout: 8,
        retry_count: 1,
        rnr_retry: 2,
        min_rnr_timer: 1,
        ..Default::default()
    }
}

fn sender_without_receive_exceeds_rnr_retries(lab: &Lab) -> Result<(), Stop> {
    let mut hall = Hall::<Rc>::of(lab, &SrqConfig::new(3), &impatient())?;
    hall.send(0, b"no listener")?;
    failed(hall.senders[0].sent()?, WcStatus::RnrRetryExceeded)?;
    // The other sender finds a receive in time.
    hall.side.post(0)?;
    hall.send(1, b"in time")?;
    ensure_eq!(hall.side.receive(1)??.byte_len(), 7, "bytes");
    Ok(())
}

fn oversized_message_fails_only_its_qp(lab: &Lab) -> Result<(), Stop> {
    let mut hall = Hall::<Rc>::new(lab)?;
    let short = hall.side.region.sge(0, 8)?;
    hall.side.receives.post(short, 5)?;
    hall.side.post(1)?;
    hall.send(0, b"more than eight")?;
    ensure_eq!(failed(hall.side.receive(0)?, WcStatus::LocalLength)?, 5, "cookie");
    failed(hall.senders[0].sent()?, WcStatus::RemoteInvalidRequest)?;
    ensure_eq!(hall.side.qps[0].object().state()?, QpState::ERR, "state of the first");
    ensure_eq!(hall.side.receives.free(), 14, "free receives");
    hall.send(1, b"more than eight")?;
    ensure_eq!(hall.side.receive(1)??.cookie, 1, "cookie");
    Ok(())
}

fn failed_qp_leaves_receives_to_others(lab: &Lab) -> Result<(), Stop> {
    let mut hall = Hall::<Rc>::new(lab)?;
    (0..4).try_for_each(|slot| hall.side.post(slot))?;
    hall.side.qps[0].to_error()?;
    hall.side.qps[0].post(&Send::new(Inline(b"late")), 9)?;
    let Side { qps, send_cq, .. } = &mut hall.side;
    let flushed = until("a completion", || send_cq.poll())?;
    ensure_eq!(failed(qps[0].complete(flushed), WcStatus::Flushed)?, 9, "the send");
    let Side { cqs, .. } = &mut hall.side;
    quiet("a shared receive was flushed", || cqs[0].poll())?;
    for slot in 0..4 {
        hall.send(1, b"still here")?;
        ensure_eq!(hall.side.receive(1)??.cookie, slot, "cookie");
    }
    Ok(())
}

fn watched(lab: &Lab) -> Result<(Hall<Rc>, EventChannel), Stop> {
    let hall = Hall::<Rc>::new(lab)?;
    let channel = hall.side.device.event_channel(false)?;
    hall.side.receives.subscribe(&channel, 0xbeef)?;
    Ok((hall, channel))
}

fn limit_reached(channel: &EventChannel) -> Result<Event, Stop> {
    if !channel.wait(Some(TIMEOUT))? {
        return Err(Stop::fail("no limit event came"));
    }
    channel.read()?.ok_or_else(|| Stop::fail("the channel was readable, and had nothing"))
}

fn limit_event_fires_once_below_limit(lab: &Lab) -> Result<(), Stop> {
    let (mut hall, channel) = watched(lab)?;
    (0..8).try_for_each(|slot| hall.side.post(slot))?;
    hall.side.receives.arm_limit(5)?;
    for left in (0..8).rev() {
        hall.send(left % 2, b"one less")?;
        hall.side.receive(left % 2)??;
        if left >= 5 {
            ensure!(!channel.wait(Some(Duration::from_millis(20)))?, "an event, with {left} left");
        } else if left == 4 {
            let event = limit_reached(&channel)?;
            ensure_eq!(event.cookie, 0xbeef, "cookie");
            let eqe = event.eqe.ok_or_else(|| Stop::fail("the event came without its data"))?;
            ensure_eq!(eqe[1], event_type::SRQ_LIMIT, "type");
            let number = u32::from_be_bytes([eqe[0x38], eqe[0x39], eqe[0x3a], eqe[0x3b]]);
            ensure_eq!(number & 0xff_ffff, hall.side.receives.object().rmpn().0, "pool");
        }
    }
    ensure!(!channel.wait(Some(Duration::from_millis(20)))?, "a second event");
    Ok(())
}

fn limit_event_can_be_rearmed(lab: &Lab) -> Result<(), Stop> {
    let (mut hall, channel) = watched(lab)?;
    for _ in 0..3 {
        while hall.side.receives.free() > 9 {
            hall.side.post(0)?;
        }
        hall.side.receives.arm_limit(6)?;
        let limit = hall.side.receives.object().query()?.wq().lwm();
        ensure_eq!(limit, 6, "limit");
        hall.send(0, b"one less")?;
        hall.side.receive(0)??;
        limit_reached(&channel)?;
    }
    // Disarmed, it makes no event.
    while hall.side.receives.free() > 9 {
        hall.side.post(0)?;
    }
    hall.side.receives.arm_limit(6)?;
    hall.side.receives.arm_limit(0)?;
    hall.send(0, b"one less")?;
    hall.side.receive(0)??;
    ensure!(!channel.wait(Some(Duration::from_millis(30)))?, "an event without a request");
    Ok(())
}

fn query_returns_size_stride_and_pd(lab: &Lab) -> Result<(), Stop> {
    let hall =
        Hall::<Rc>::of(lab, &SrqConfig { receives: 100, sges: 3 }, &ConnectOptions::default())?;
    let shown = hall.side.receives.object().query()?;
    ensure_eq!(shown.wq().log_wq_sz(), 7, "log2 of the receives");
    ensure_eq!(shown.wq().log_wq_stride(), 6, "log2 of the bytes of each");
    ensure_eq!(shown.wq().pd(), hall.side.domain.pd().pdn(), "protection domain");
    ensure_eq!(shown.wq().lwm(), 0, "limit");
    let qp = hall.side.qps[0].object().query()?;
    ensure_eq!(qp.srqn_rmpn_xrqn(), hall.side.receives.object().rmpn().0, "pool of a queue pair");
    Ok(())
}

fn rmp_lives_as_long_as_its_qps(lab: &Lab) -> Result<(), Stop> {
    let mut hall = Hall::<Rc>::of(lab, &SrqConfig::new(3), &impatient())?;
    (0..2).try_for_each(|slot| hall.side.post(slot))?;
    let config = SrqConfig::new(3);
    let other = hall.side.domain.srq(&config)?;
    drop(std::mem::replace(&mut hall.side.receives, other));
    // Its posted receives still exist, though no message can complete them.
    for from in [0, 1] {
        hall.send(from, b"into the old one")?;
        hall.senders[from].sent()??;
        ensure!(hall.side.cqe(from)?.is_receive(), "no receive's completion");
    }
    hall.send(0, b"there are none left")?;
    failed(hall.senders[0].sent()?, WcStatus::RnrRetryExceeded)?;
    Ok(())
}

fn config_above_limit_is_rejected_with_limit(lab: &Lab) -> Result<(), Stop> {
    let device = lab.device()?;
    let domain = Domain::new(&device)?;
    let caps = device.caps();
    let most = 1u32 << caps.general.log_max_srq_sz();
    // One of the entries links a receive to the next.
    let sges = caps.max_receive_sges() as u32 - 1;
    for (config, limit) in [
        (SrqConfig::new(2 * most), most),
        (SrqConfig::new(u32::MAX), most),
        (SrqConfig { sges: 1000, ..SrqConfig::new(4) }, sges),
    ] {
        let error = domain.srq(&config).err();
        let error = error.ok_or_else(|| Stop::fail(format!("{config:?} was taken")))?.to_string();
        let names_limit = error.contains(&format!("at most {limit}"));
        ensure!(names_limit, "{config:?}: {error:?} does not name the limit {limit}");
    }
    Ok(())
}
