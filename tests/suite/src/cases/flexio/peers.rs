//! Messages of programs to peers at the host: RDMA writes that an event handler posts, writes over
//! an unreliable connection, datagrams.

use verbless_command::{KeyAccess, QKey};
use verbless_devx::LinkLayer;
use verbless_flexio::{
    CqElement, DpaCq, DpaCqConfig, DpaQp, DpaQpConfig, EventHandler, EventHandlerConfig, Function,
    Handler, Mkey, MkeyConfig, QpAttr, QpAttrMask, QpNumber, QpReceive, QpState, QpTransport,
    RpcAttr,
};
use verbless_flexio_dev::Segment;
use verbless_prm::ServiceType;
use verbless_queue::address::GRH_BYTES;
use verbless_queue::wr::Send;
use verbless_queue::{ConnectOptions, CqConfig, DatagramOptions, QpConfig, Uc, Ud, WcOpcode};

use super::queues::{BYTES, Drain, ProgramPair, with_peer_address};
use super::rig::Rig;
use crate::case::cases;
use crate::endpoint::quiet;
use crate::need::cap;
use crate::{Lab, Need, Stop, ensure, ensure_eq, pattern, until};

cases!(
    "flexio_peers",
    "Messages of programs to peers at the host: writes of an event handler, UC writes, datagrams.",
    needs [Need::DpaLayouts, cap!(apu), Need::DpaProgram]:
    event_handler_posts_rdma_writes_to_host_peer,
    program_writes_over_uc [cap!(uc), Need::Lossless],
    program_sends_datagrams_to_host_peer [cap!(ud), Need::Lossless],
);

fn event_handler_posts_rdma_writes_to_host_peer(lab: &Lab) -> Result<(), Stop> {
    const LOG_DEPTH: u8 = 2;
    const DEPTH: usize = 1 << LOG_DEPTH;
    const LENGTH: usize = 256;
    const MESSAGES: usize = 5 * DEPTH;
    const UNWRITTEN: u8 = 0xa5;
    let rig = Rig::new(lab)?;
    let process = &rig.process;
    let config = EventHandlerConfig {
        outbox: Some(rig.outbox()?),
        ..EventHandlerConfig::new(Handler::named("answers"))
    };
    let handler = EventHandler::create(process, &config)?;
    let cq =
        DpaCq::create(process, &DpaCqConfig::new(LOG_DEPTH, CqElement::Thread(handler.clone())))?;
    // The writes make CQEs for errors only.
    let mut errors = DpaCqConfig::new(LOG_DEPTH, CqElement::NonDpa { vector: 0 });
    errors.overrun_ignore = true;
    let errors = DpaCq::create(process, &errors)?;
    let mut config = DpaQpConfig::rc(&errors, &cq, LOG_DEPTH);
    config.receive = QpReceive::Regular { log_depth: LOG_DEPTH };
    let mut qp = DpaQp::create(process, &config)?;

    let domain = process.domain();
    let queues = QpConfig::new(DEPTH as u32, DEPTH as u32);
    let mut host_cq =
        domain.completion_queue(&CqConfig::new(queues.cqes::<verbless_queue::Rc>()))?;
    let mut host = domain.queue_pair(&queues, &host_cq, &host_cq)?;
    let options = ConnectOptions::default();
    let address = domain.address(&host, &options)?;
    domain.connect(&mut host, &qp.address(&options)?, &options)?;
    qp.connect(&address, &options)?;
    let requests = domain.region(LENGTH, KeyAccess::LOCAL)?;
    // Memory for the answers, and after it bytes that no answer reaches.
    let replies = domain.region((DEPTH + 1) * LENGTH, KeyAccess::ALL)?;
    replies.write_at(0, &[UNWRITTEN; (DEPTH + 1) * LENGTH])?;

    // Memory for messages and for answers.
    let memory = process.alloc((2 * DEPTH * LENGTH) as u64)?;
    let key = Mkey::create(&memory, &MkeyConfig::new(KeyAccess::LOCAL))?;
    for slot in 0..DEPTH as u64 {
        let into = memory.address() + slot * LENGTH as u64;
        let segment = Segment::data(LENGTH as u32, key.id().0, into);
        process.write(qp.rq_ring_address() + 16 * slot, segment.as_bytes())?;
    }
    process.write(qp.record_address(), &(DEPTH as u32).to_be_bytes())?;
    let to = replies.remote(0, DEPTH * LENGTH)?;
    let addresses = [
        cq.ring_address(),
        cq.record_address(),
        qp.sq_ring_address(),
        qp.record_address(),
        memory.address(),
        memory.address() + (DEPTH * LENGTH) as u64,
        to.address,
    ];
    let (depth, length) = (u32::from(LOG_DEPTH), LENGTH as u32);
    let numbers = [cq.number().0, qp.number().0, key.id().0, to.rkey.0, depth, length, 0, 0];
    let words = addresses.iter().flat_map(|word| word.to_le_bytes());
    let setup: Vec<u8> = words.chain(numbers.iter().flat_map(|it| it.to_le_bytes())).collect();
    let setup = process.alloc_from(&setup)?;
    handler.run(setup.address())?;

    for index in 0..MESSAGES {
        let message = pattern(index as u8, LENGTH);
        requests.write_at(0, &message)?;
        // The immediate data of an answer consumes a receive, which has no memory.
        host.post_receive(replies.sge(0, 0)?, 0)?;
        host.post(&Send::new(requests.sge(0, LENGTH)?).signaled(), 1)?;
        let answer = until("an answer", || match host.poll(&mut host_cq)? {
            Ok(done) if done.operation() == WcOpcode::Send => None,
            done => Some(done),
        })??;
        ensure_eq!(answer.operation(), WcOpcode::ReceiveWriteImm, "the answer's operation");
        let slot = index % DEPTH;
        ensure_eq!(answer.immediate(), Some(slot as u32), "the slot of answer {index}");
        let mut answered = [0; LENGTH];
        replies.read_at(slot * LENGTH, &mut answered)?;
        let turned: Vec<u8> = message.iter().map(|byte| !byte).collect();
        ensure!(answered[..] == turned, "answer {index} has other bytes");
    }
    let mut past_slots = [0; LENGTH];
    replies.read_at(DEPTH * LENGTH, &mut past_slots)?;
    ensure!(past_slots.iter().all(|&byte| byte == UNWRITTEN), "a write exceeded its slot");
    ensure!(handler.query()?.runs > 0, "the handler did not run");
    Ok(())
}

/// Takes a queue pair from RST to RTS by the transitions of FlexIO.
fn to_rts(qp: &mut DpaQp, attr: QpAttr) -> Result<(), Stop> {
    for next_state in [QpState::Init, QpState::Rtr, QpState::Rts] {
        qp.modify(&QpAttr { next_state, ..attr }, &QpAttrMask::default())?;
        ensure_eq!(qp.state()?, next_state, "the state");
    }
    Ok(())
}

fn program_writes_over_uc(lab: &Lab) -> Result<(), Stop> {
    const WRITES: usize = 20;
    let rig = Rig::new(lab)?;
    let (drain, cq, _) = Drain::cq(&rig, 4, |_| {})?;
    let config = DpaQpConfig { transport: QpTransport::Uc, ..DpaQpConfig::rc(&cq, &cq, 3) };
    let mut pair = ProgramPair::<Uc>::unconnected(&rig, &config)?;
    ensure_eq!(pair.qp.object().query()?.st(), ServiceType::UC, "the service");
    let (domain, options) = (rig.process.domain(), ConnectOptions::default());
    let (own, peer) = (pair.qp.address(&options)?, domain.address(&pair.host, &options)?);
    domain.connect(&mut pair.host, &own, &options)?;
    let attr = QpAttr {
        remote_qp_num: QpNumber(peer.qpn.0),
        next_rcv_psn: peer.psn,
        next_send_psn: own.psn,
        path_mtu: own.mtu,
        ..QpAttr::default()
    };
    to_rts(&mut pair.qp, with_peer_address(&rig.process, &peer, attr)?)?;

    let bytes = pattern(3, BYTES);
    pair.from.write_at(0, &bytes)?;
    let part = BYTES / WRITES;
    for index in 0..WRITES {
        pair.write(&rig, index * part, part as u32)?;
        drain.waits_for(index as u64 + 1)?;
    }
    let mut back = vec![0; WRITES * part];
    // A write completes once it has left.
    until("the bytes at the host", || {
        pair.region.read_at(0, &mut back).ok()?;
        (back == bytes[..WRITES * part]).then_some(())
    })?;
    // No peer answers: a write to a missing peer completes, and the state stays.
    pair.host.reset()?;
    pair.from.write_at(0, &[0; 64])?;
    pair.write(&rig, 0, 64)?;
    drain.waits_for(WRITES as u64 + 1)?;
    ensure_eq!(pair.qp.state()?, QpState::Rts, "the state after a write without a peer");
    pair.region.read_at(0, &mut back)?;
    ensure!(back == bytes[..WRITES * part], "a peer in RESET was written to");
    Ok(())
}

fn program_sends_datagrams_to_host_peer(lab: &Lab) -> Result<(), Stop> {
    type Arguments = (u64, u32, u16, u64, u64, u64, u32, u32);
    const KEY: QKey = QKey(0x1122_3344);
    const LENGTH: usize = 100;
    const SLOT: usize = GRH_BYTES + LENGTH;
    /// Byte and bit of an address vector's extension flag.
    const EXTENDED: (usize, u8) = (8, 0x80);
    let rig = Rig::new(lab)?;
    let process = &rig.process;
    let (drain, cq, _) = Drain::cq(&rig, 4, |_| {})?;
    let config = DpaQpConfig { transport: QpTransport::Ud, ..DpaQpConfig::rc(&cq, &cq, 5) };
    let mut qp = DpaQp::create(process, &config)?;
    ensure_eq!(qp.object().query()?.st(), ServiceType::UD, "the service");
    to_rts(&mut qp, QpAttr { q_key: KEY.0, next_send_psn: 7, ..QpAttr::default() })?;

    let domain = process.domain();
    let mut host_cq = domain.completion_queue(&CqConfig::new(16))?;
    let mut host = domain.queue_pair_of::<Ud>(&QpConfig::new(1, 1), &host_cq, &host_cq)?;
    host.start(&DatagramOptions::new(KEY))?;
    let options = ConnectOptions::default();
    let peer = domain.address(&host, &options)?;
    let whole = domain.destination(&peer, KEY, &options)?.as_bytes().to_vec();
    let mut short = whole.clone();
    short[EXTENDED.0] &= !EXTENDED.1;
    let mut strange = whole.clone();
    strange[..4].copy_from_slice(&(KEY.0 + 1).to_be_bytes());
    // Without its extension an address vector holds a LID only.
    let by_lid =
        process.device().query_port(1)?.link_layer() == LinkLayer::InfiniBand && !peer.grh_required;
    let last = if by_lid { short.clone() } else { whole.clone() };
    let ways = [(&whole, true), (&last, true), (&strange, false), (&last, true), (&whole, true)];

    let memory = domain.region(SLOT, KeyAccess::LOCAL)?;
    let (address, from) = (process.alloc(whole.len() as u64)?, process.alloc(LENGTH as u64)?);
    let key = Mkey::create(&from, &MkeyConfig::new(KeyAccess::LOCAL))?;
    let attr = RpcAttr { outbox: Some(rig.outbox()?), ..RpcAttr::default() };
    host.post_receive(memory.sge(0, SLOT)?, 0)?;
    let mut pi = 0;
    for (index, (vector, arrives)) in (0_u8..).zip(ways) {
        let message = pattern(index, LENGTH);
        from.write_at(0, &message)?;
        address.write_at(0, vector)?;
        let words = (
            qp.sq_ring_address() + 64 * u64::from(pi),
            qp.number().0,
            pi,
            qp.record_address() + 4,
            address.address(),
            from.address(),
            key.id().0,
            LENGTH as u32,
        );
        let post = Function::<Arguments, u16>::named("post_datagram");
        let wqebbs = process.call_with_attr(&attr, post, words)?;
        ensure_eq!(wqebbs, if *vector == short { 1 } else { 2 }, "WQEBBs of datagram {index}");
        pi += wqebbs;
        drain.waits_for(u64::from(index) + 1)?;
        if !arrives {
            quiet("a datagram with another key", || host.poll_datagram(&mut host_cq))?;
            continue;
        }
        let datagram = until("a datagram", || host.poll_datagram(&mut host_cq))??;
        ensure_eq!(datagram.message_len() as usize, LENGTH, "bytes of datagram {index}");
        let source = datagram.source.ok_or_else(|| Stop::fail("no source QPN"))?;
        ensure_eq!(source.qpn().0, qp.number().0, "source QPN of datagram {index}");
        let mut came = [0; LENGTH];
        memory.read_at(GRH_BYTES, &mut came)?;
        ensure!(came[..] == message, "datagram {index} has other bytes");
        host.post_receive(memory.sge(0, SLOT)?, 0)?;
    }
    Ok(())
}
