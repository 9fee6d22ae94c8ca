//! Counts the instructions of posting and polling. `cargo xtask bench` runs it under callgrind,
//! which counts inside the functions `measured_…`; the argument names the case. Without callgrind
//! it only checks that the cases work.
//!
//! The queues lie in ordinary memory: a ring of 256 wqebbs, everything in the L1 cache, CQEs
//! written beforehand. An operation includes filling the request from its parts, all checks
//! (SGE lengths, limits, free WQEBBs; owner bit, opcode, queue, index), the cookie and slot table,
//! the doorbell record and all barriers. There is no lock, because `&mut self` makes one
//! unnecessary, and no `lfence`, which x86 does not need between loads.
//!
//! `line_…` is the operation as a separate function, called once per operation;
//! `measured_…_inlined` has it inlined into the loop. Both counts include the loop; the first also
//! includes the call.

use std::hint::black_box;
use std::process::ExitCode;

use verbless_prm::hot::{self, cqe_opcode, opcode};
use verbless_prm::{CqeOpcode, DatagramSegment, WqeOpcode};
use verbless_ring::access::KeyAccess;
use verbless_ring::cq::{CompletionQueueParts, Notify};
use verbless_ring::qp::{BlueFlame, Polled, ReceiveQueueParts, SendQueueParts};
use verbless_ring::raw_rq::PolledFrame;
use verbless_ring::ring::{RecordMemory, RingMemory, SharedMemory};
use verbless_ring::srq::SharedReceiveQueueParts;
use verbless_ring::uar::UarPage;
use verbless_ring::wr::{EthSend, Inline, PostError, Send, Umr, Write};
use verbless_ring::{
    AddressHandle, Completion, CompletionError, CompletionQueue, Cqe, Cqn, Datagram, Destination,
    Dispatched, Dispatcher, Eth, Lkey, QKey, Qpn, QueuePair, RawRq, ReceiveQueue, RemoteAddr, Rkey,
    SendQueue, Sge, SharedReceiveQueue, Ud, WqeIndex,
};

const QPN: u32 = 0x123;
const WQEBBS: usize = 256;
/// Operations of one round; between rounds the harness frees WQEBBs and writes CQEs.
const ROUND: usize = 128;
const ROUNDS: usize = 32;
const BATCH: usize = 32;
/// Inline bytes of a frame, and the user index of the receiver.
const HEADER: usize = 18;
const USER: u32 = 7;

type Posted = Result<WqeIndex, PostError>;

#[inline(never)]
fn line_post(pair: &mut QueuePair, sge: Sge, remote: RemoteAddr, cookie: u64) -> Posted {
    pair.post(&Write::new(sge, remote).signaled(), cookie)
}

#[inline(never)]
fn line_post_inline(pair: &mut QueuePair, data: &[u8], remote: RemoteAddr, cookie: u64) -> Posted {
    pair.post(&Write::new(Inline(data), remote).signaled(), cookie)
}

#[inline(never)]
fn line_post_batch(
    pair: &mut QueuePair,
    sges: &[Sge; BATCH],
    remote: RemoteAddr,
    cookie: u64,
) -> Posted {
    post_batch(pair, sges, remote, cookie)
}

#[inline(always)]
fn post_batch(
    pair: &mut QueuePair,
    sges: &[Sge; BATCH],
    remote: RemoteAddr,
    cookie: u64,
) -> Posted {
    let mut batch = pair.batch();
    let mut last = WqeIndex(0);
    for (cookie, &sge) in (cookie..).zip(sges) {
        last = batch.post(&Write::new(sge, remote).signaled(), cookie)?;
    }
    batch.ring();
    Ok(last)
}

#[inline(never)]
fn line_poll(pair: &mut QueuePair, cq: &mut CompletionQueue) -> Polled {
    pair.poll(cq)
}

#[inline(never)]
fn line_poll_batch(
    pair: &mut QueuePair,
    cq: &mut CompletionQueue,
    into: &mut [Polled; BATCH],
) -> usize {
    poll_batch(pair, cq, into)
}

#[inline(always)]
fn poll_batch(pair: &mut QueuePair, cq: &mut CompletionQueue, into: &mut [Polled; BATCH]) -> usize {
    pair.poll_into(cq, into)
}

#[inline(never)]
fn line_post_receive(pair: &mut QueuePair, into: [Sge; 1], cookie: u64) -> Posted {
    pair.post_receive(into, cookie)
}

#[inline(never)]
fn line_post_datagram(pair: &mut QueuePair<Ud>, sge: Sge, to: &Destination, cookie: u64) -> Posted {
    pair.post(&Send::new(sge).signaled().to(to), cookie)
}

#[inline(never)]
fn line_poll_datagram(
    pair: &mut QueuePair<Ud>,
    cq: &mut CompletionQueue,
) -> Option<Result<Datagram, CompletionError>> {
    pair.poll_datagram(cq)
}

#[inline(never)]
fn line_post_umr(pair: &mut QueuePair, key: Rkey, klms: &[Sge], cookie: u64) -> Posted {
    pair.post(&Umr::map(key, KeyAccess::ALL, klms).signaled(), cookie)
}

#[inline(never)]
fn line_post_shared(srq: &mut SharedReceiveQueue, into: [Sge; 1], cookie: u64) -> Posted {
    srq.post(into, cookie)
}

#[inline(never)]
fn line_complete_shared(
    srq: &mut SharedReceiveQueue,
    cq: &mut CompletionQueue,
) -> Option<Result<Completion, CompletionError>> {
    cq.poll().map(|cqe| srq.complete(cqe))
}

#[inline(never)]
fn line_dispatch(
    table: &mut Dispatcher<QueuePair>,
    cq: &mut CompletionQueue,
) -> Option<Dispatched> {
    table.poll(cq)
}

#[inline(never)]
fn line_post_frame(
    queue: &mut SendQueue<Eth>,
    header: &[u8; HEADER],
    body: Sge,
    cookie: u64,
) -> Posted {
    queue.post(&EthSend::new(header, body).ip_checksum().l4_checksum().signaled(), cookie)
}

#[inline(never)]
fn line_poll_frame(frames: &mut RawRq, cq: &mut CompletionQueue) -> PolledFrame {
    frames.poll(cq)
}

#[inline(never)]
fn line_poll_frames(
    frames: &mut RawRq,
    cq: &mut CompletionQueue,
    into: &mut [PolledFrame; BATCH],
) -> usize {
    frames.poll_into(cq, into)
}

#[inline(never)]
fn line_arm(cq: &mut CompletionQueue) {
    cq.arm(Notify::Next);
    cq.event_received();
}

/// The queues, and the memory that a device would see.
struct Harness {
    pair: QueuePair,
    cq: CompletionQueue,
    cqes: SharedMemory,
    /// WQEs that have completed.
    completed: usize,
    /// CQEs that have been written.
    produced: usize,
    sges: [Sge; BATCH],
    remote: RemoteAddr,
    data: [u8; 8],
    into: [Polled; BATCH],
    datagrams: QueuePair<Ud>,
    peer: Destination,
    srq: SharedReceiveQueue,
    table: Dispatcher<QueuePair>,
    frames: SendQueue<Eth>,
    header: [u8; HEADER],
    receiver: RawRq,
    received: [PolledFrame; BATCH],
}

/// `length` bytes, exactly.
fn memory(length: usize) -> SharedMemory {
    SharedMemory::zeroed(length).slice(0, length).unwrap()
}

/// `memory` as a ring of a queue.
#[allow(unsafe_code, reason = "the bench acts as the device")]
fn ring_of(memory: &SharedMemory) -> RingMemory {
    // SAFETY: the code that acts as the device runs on the queue's thread, or stores single bytes,
    // the last of which marks the others as written.
    unsafe { RingMemory::new(memory.clone()) }
}

/// `memory` as a doorbell record.
fn record_of(memory: &SharedMemory) -> RecordMemory {
    RecordMemory::new(ring_of(memory)).unwrap()
}

/// A queue pair with this number and this many wqebbs, which rings plain doorbells.
fn small(qpn: u32, wqebbs: usize, page: &UarPage) -> QueuePair {
    let send = SendQueue::new(SendQueueParts {
        qpn: Qpn(qpn),
        ring: ring_of(&memory(64 * wqebbs)),
        record: record_of(&memory(8)),
        doorbell: page.doorbell(),
        max_sges: 4,
        max_inline: 256,
        signal_all: false,
        blueflame: BlueFlame::Never,
    });
    let receive = ReceiveQueue::new(ReceiveQueueParts {
        qpn: Qpn(qpn),
        ring: ring_of(&memory(256)),
        stride: 16,
        record: record_of(&memory(8)),
    });
    QueuePair::new(send.unwrap(), receive.unwrap())
}

impl Harness {
    fn new(blueflame: bool) -> Self {
        // SAFETY: only this page uses the memory.
        #[allow(unsafe_code, reason = "ordinary memory replaces a UAR page")]
        let page = unsafe { UarPage::new(memory(4096)) }.unwrap();
        let (record, cqes) = (record_of(&memory(8)), memory(64 * WQEBBS));
        let send = SendQueue::new(SendQueueParts {
            qpn: Qpn(QPN),
            ring: ring_of(&memory(64 * WQEBBS)),
            record: record.clone(),
            doorbell: if blueflame { page.blueflame(0x800, 256).unwrap() } else { page.doorbell() },
            max_sges: 4,
            max_inline: 256,
            signal_all: false,
            blueflame: BlueFlame::Always,
        });
        let receive = ReceiveQueue::new(ReceiveQueueParts {
            qpn: Qpn(QPN),
            ring: ring_of(&memory(256)),
            stride: 16,
            record,
        });
        let datagrams = SendQueue::of(SendQueueParts {
            qpn: Qpn(QPN),
            ring: ring_of(&memory(64 * WQEBBS)),
            record: record_of(&memory(8)),
            doorbell: page.doorbell(),
            max_sges: 4,
            max_inline: 256,
            signal_all: false,
            blueflame: BlueFlame::Never,
        });
        let datagram_receives = ReceiveQueue::new(ReceiveQueueParts {
            qpn: Qpn(QPN),
            ring: ring_of(&memory(256)),
            stride: 16,
            record: record_of(&memory(8)),
        });
        let frames = SendQueue::of(SendQueueParts {
            qpn: Qpn(QPN),
            ring: ring_of(&memory(64 * WQEBBS)),
            record: record_of(&memory(8)),
            doorbell: page.doorbell(),
            max_sges: 4,
            max_inline: 256,
            signal_all: false,
            blueflame: BlueFlame::Never,
        });
        let frame_receives = ReceiveQueue::new(ReceiveQueueParts {
            qpn: Qpn(QPN),
            ring: ring_of(&memory(16 * WQEBBS)),
            stride: 16,
            record: record_of(&memory(8)),
        });
        let srq = SharedReceiveQueue::new(SharedReceiveQueueParts {
            ring: ring_of(&memory(32 * WQEBBS)),
            stride: 32,
            record: record_of(&memory(8)),
        });
        let mut table = Dispatcher::new();
        for qpn in QPN - 50..QPN + 50 {
            let wqebbs = if qpn == QPN { WQEBBS } else { 1 };
            table.insert(qpn, small(qpn, wqebbs, &page)).unwrap();
        }
        let cq = CompletionQueue::new(CompletionQueueParts {
            cqn: Cqn(0x456),
            ring: ring_of(&cqes),
            entry_size: 64,
            record: record_of(&memory(8)),
            uar: page,
        });
        let mut way = DatagramSegment::zeroed();
        way.set_ext(true).set_rlid(7);
        Self {
            pair: QueuePair::new(send.unwrap(), receive.unwrap()),
            cq: cq.unwrap(),
            cqes,
            completed: 0,
            produced: 0,
            sges: std::array::from_fn(|i| Sge::new(0x1000 * i as u64, 64, Lkey(0x1234))),
            remote: RemoteAddr::new(0x7f00_0000_1000, Rkey(0x5678)),
            data: [1, 2, 3, 4, 5, 6, 7, 8],
            into: [const { None }; BATCH],
            datagrams: QueuePair::new(datagrams.unwrap(), datagram_receives.unwrap()),
            peer: AddressHandle::new(way).to(Qpn(0x99), QKey(1)),
            srq: srq.unwrap(),
            table,
            frames: frames.unwrap(),
            header: [0x12; HEADER],
            receiver: RawRq::new(frame_receives.unwrap(), USER).unwrap(),
            received: [const { None }; BATCH],
        }
    }

    /// The device's side: a CQE for each of the next WQEs, whether or not they are posted yet.
    fn write_cqes(&mut self, count: usize) {
        for i in 0..count {
            let mut cqe = hot::Cqe::zeroed();
            cqe.set_wqe_opcode(WqeOpcode::WRITE).set_qpn(QPN).set_opcode(CqeOpcode::REQUESTER);
            cqe.set_wqe_counter((self.completed + i) as u16);
            cqe.set_owner(self.produced & WQEBBS != 0);
            self.cqes.write_at(self.produced % WQEBBS * 64, cqe.as_bytes()).unwrap();
            self.produced += 1;
        }
        self.completed += count;
    }

    /// A CQE of any queue, polled.
    fn cqe(&mut self, cqe_opcode: u8, wqe_opcode: u8, index: u16) -> Cqe {
        let mut cqe = hot::Cqe::zeroed();
        cqe.set_wqe_opcode(WqeOpcode(wqe_opcode)).set_qpn(QPN).set_opcode(CqeOpcode(cqe_opcode));
        cqe.set_wqe_counter(index).set_owner(self.produced & WQEBBS != 0);
        self.cqes.write_at(self.produced % WQEBBS * 64, cqe.as_bytes()).unwrap();
        self.produced += 1;
        self.cq.poll().expect("a CQE was written")
    }

    /// Completes all datagrams, of two wqebbs each, by one CQE of the last.
    fn complete_datagrams(&mut self) {
        self.completed += 2 * ROUND;
        let cqe = self.cqe(cqe_opcode::REQUESTER, opcode::SEND, self.completed as u16 - 2);
        self.datagrams.complete(cqe).unwrap();
        assert_eq!(self.datagrams.send.free() as usize, WQEBBS);
    }

    /// Completes all sent frames, of one wqebb each, by one CQE of the last.
    fn complete_frames(&mut self) {
        self.completed += ROUND;
        let cqe = self.cqe(cqe_opcode::REQUESTER, opcode::SEND, self.completed as u16 - 1);
        self.frames.complete(cqe).unwrap();
        assert_eq!(self.frames.free() as usize, WQEBBS);
    }

    /// Posts receives of frames, and writes the CQE of each.
    fn receive_frames(&mut self) {
        for _ in 0..ROUND {
            self.receiver.post(self.sges[0], 0).unwrap();
            let mut cqe = hot::Cqe::zeroed();
            cqe.set_opcode(CqeOpcode::RESPONDER_SEND).set_srqn_uidx(USER).set_l2_ok(true);
            cqe.set_wqe_counter(self.completed as u16).set_owner(self.produced & WQEBBS != 0);
            self.cqes.write_at(self.produced % WQEBBS * 64, cqe.as_bytes()).unwrap();
            self.produced += 1;
            self.completed += 1;
        }
    }

    /// Checks that all frames were polled.
    fn received_all(&mut self) {
        assert_eq!(self.receiver.free() as usize, WQEBBS);
        assert!(self.cq.is_empty());
    }

    /// Completes every SRQ WQE, the last first.
    fn complete_shared(&mut self) {
        for index in (0..WQEBBS as u16).rev() {
            let cqe = self.cqe(cqe_opcode::RESPONDER_SEND, 0, index);
            let _ = self.srq.complete(cqe);
        }
        assert_eq!(self.srq.free(), self.srq.capacity());
    }

    /// CQEs for the operations of one round.
    fn write_round(&mut self) {
        self.write_cqes(ROUND);
    }

    /// Fills the queue, not measured.
    fn post(&mut self, count: usize) {
        for _ in 0..count {
            self.pair.post(&Write::new(self.sges[0], self.remote), 0).unwrap();
        }
    }

    /// Empties the completion queue, not measured.
    fn poll(&mut self) {
        while let Some(polled) = self.pair.poll(&mut self.cq) {
            polled.unwrap();
        }
        assert_eq!(self.pair.send.free() as usize, WQEBBS);
    }
}

/// A case: set-up and checks around `ROUND` operations, and the function whose instructions are
/// counted.
struct Case {
    name: &'static str,
    blueflame: bool,
    before: fn(&mut Harness),
    measured: fn(&mut Harness),
    after: fn(&mut Harness),
}

fn nothing(_: &mut Harness) {}

fn posted(world: &mut Harness) {
    world.post(ROUND);
    world.write_round();
}

fn posted_in_table(world: &mut Harness) {
    let (sge, remote) = (world.sges[0], world.remote);
    for _ in 0..ROUND {
        world.table.get_mut(QPN).unwrap().post(&Write::new(sge, remote), 0).unwrap();
    }
    world.write_round();
}

fn poll_table(world: &mut Harness) {
    while let Some((_, completed)) = world.table.poll(&mut world.cq) {
        completed.unwrap();
    }
    assert_eq!(world.table.get(QPN).unwrap().send.free() as usize, WQEBBS);
}

fn complete(world: &mut Harness) {
    world.write_round();
    world.poll();
}

/// Defines `measured_NAME`: `ROUND` times the operation, its arguments hidden from the optimizer.
macro_rules! measured {
    ($($name:ident: $times:expr, |$world:ident, $cookie:ident| $operation:expr;)*) => {
        $(
            #[inline(never)]
            fn $name($world: &mut Harness) {
                for $cookie in 0..$times as u64 {
                    black_box(&$operation);
                }
            }
        )*
    };
}

measured! {
    measured_post: ROUND, |w, cookie|
        line_post(&mut w.pair, *black_box(&w.sges[0]), *black_box(&w.remote), cookie);
    measured_post_inlined: ROUND, |w, cookie|
        w.pair.post(&Write::new(*black_box(&w.sges[0]), *black_box(&w.remote)).signaled(), cookie);
    measured_inline: ROUND, |w, cookie|
        line_post_inline(&mut w.pair, black_box(&w.data[..]), *black_box(&w.remote), cookie);
    measured_inline_inlined: ROUND, |w, cookie|
        w.pair.post(
            &Write::new(Inline(black_box(&w.data[..])), *black_box(&w.remote)).signaled(),
            cookie,
        );
    measured_batch: ROUND / BATCH, |w, cookie|
        line_post_batch(&mut w.pair, black_box(&w.sges), *black_box(&w.remote), cookie);
    measured_batch_inlined: ROUND / BATCH, |w, cookie|
        post_batch(&mut w.pair, black_box(&w.sges), *black_box(&w.remote), cookie);
    measured_poll: ROUND, |w, _cookie| line_poll(&mut w.pair, &mut w.cq);
    measured_poll_inlined: ROUND, |w, _cookie| w.pair.poll(&mut w.cq);
    measured_polls: ROUND / BATCH, |w, _cookie|
        line_poll_batch(&mut w.pair, &mut w.cq, black_box(&mut w.into));
    measured_polls_inlined: ROUND / BATCH, |w, _cookie|
        poll_batch(&mut w.pair, &mut w.cq, black_box(&mut w.into));
    measured_dispatch: ROUND, |w, _cookie| line_dispatch(&mut w.table, &mut w.cq);
    measured_dispatch_inlined: ROUND, |w, _cookie| w.table.poll(&mut w.cq);
    measured_datagram: ROUND, |w, cookie|
        line_post_datagram(&mut w.datagrams, *black_box(&w.sges[0]), black_box(&w.peer), cookie);
    measured_datagram_inlined: ROUND, |w, cookie|
        w.datagrams.post(
            &Send::new(*black_box(&w.sges[0])).signaled().to(black_box(&w.peer)),
            cookie,
        );
    measured_shared: ROUND, |w, cookie|
        line_post_shared(&mut w.srq, [*black_box(&w.sges[0])], cookie);
    measured_shared_inlined: ROUND, |w, cookie|
        w.srq.post([*black_box(&w.sges[0])], cookie);
    measured_frame: ROUND, |w, cookie|
        line_post_frame(&mut w.frames, black_box(&w.header), *black_box(&w.sges[0]), cookie);
    measured_frame_inlined: ROUND, |w, cookie|
        w.frames.post(
            &EthSend::new(black_box(&w.header), *black_box(&w.sges[0]))
                .ip_checksum()
                .l4_checksum()
                .signaled(),
            cookie,
        );
    measured_receive: ROUND, |w, _cookie| line_poll_frame(&mut w.receiver, &mut w.cq);
    measured_receive_inlined: ROUND, |w, _cookie| w.receiver.poll(&mut w.cq);
    measured_receives: ROUND / BATCH, |w, _cookie|
        line_poll_frames(&mut w.receiver, &mut w.cq, black_box(&mut w.received));
    measured_receives_inlined: ROUND / BATCH, |w, _cookie|
        w.receiver.poll_into(&mut w.cq, black_box(&mut w.received));
    measured_pair: ROUND, |w, cookie| {
        black_box(&line_post(&mut w.pair, *black_box(&w.sges[0]), *black_box(&w.remote), cookie));
        line_poll(&mut w.pair, &mut w.cq)
    };
    measured_pair_inlined: ROUND, |w, cookie| {
        black_box(&w.pair.post(
            &Write::new(*black_box(&w.sges[0]), *black_box(&w.remote)).signaled(),
            cookie,
        ));
        w.pair.poll(&mut w.cq)
    };
}

const fn case(
    name: &'static str,
    blueflame: bool,
    before: fn(&mut Harness),
    measured: fn(&mut Harness),
    after: fn(&mut Harness),
) -> Case {
    Case { name, blueflame, before, measured, after }
}

const CASES: &[Case] = &[
    case("post", false, nothing, measured_post, complete),
    case("post_inlined", false, nothing, measured_post_inlined, complete),
    case("blueflame", true, nothing, measured_post, complete),
    case("blueflame_inlined", true, nothing, measured_post_inlined, complete),
    case("inline", false, nothing, measured_inline, complete),
    case("inline_inlined", false, nothing, measured_inline_inlined, complete),
    case("batch", false, nothing, measured_batch, complete),
    case("batch_inlined", false, nothing, measured_batch_inlined, complete),
    case("poll", false, posted, measured_poll, Harness::poll),
    case("poll_inlined", false, posted, measured_poll_inlined, Harness::poll),
    case("polls", false, posted, measured_polls, Harness::poll),
    case("polls_inlined", false, posted, measured_polls_inlined, Harness::poll),
    case("dispatch", false, posted_in_table, measured_dispatch, poll_table),
    case("dispatch_inlined", false, posted_in_table, measured_dispatch_inlined, poll_table),
    case("datagram", false, nothing, measured_datagram, Harness::complete_datagrams),
    case(
        "datagram_inlined",
        false,
        nothing,
        measured_datagram_inlined,
        Harness::complete_datagrams,
    ),
    case("shared", false, nothing, measured_shared, Harness::complete_shared),
    case("shared_inlined", false, nothing, measured_shared_inlined, Harness::complete_shared),
    case("frame", false, nothing, measured_frame, Harness::complete_frames),
    case("frame_inlined", false, nothing, measured_frame_inlined, Harness::complete_frames),
    case("receive", false, Harness::receive_frames, measured_receive, Harness::received_all),
    case(
        "receive_inlined",
        false,
        Harness::receive_frames,
        measured_receive_inlined,
        Harness::received_all,
    ),
    case("receives", false, Harness::receive_frames, measured_receives, Harness::received_all),
    case(
        "receives_inlined",
        false,
        Harness::receive_frames,
        measured_receives_inlined,
        Harness::received_all,
    ),
    case("pair", false, Harness::write_round, measured_pair, Harness::poll),
    case("pair_inlined", false, Harness::write_round, measured_pair_inlined, Harness::poll),
];

fn run(case: &Case) {
    let mut world = Harness::new(case.blueflame);
    for _ in 0..ROUNDS {
        (case.before)(&mut world);
        (case.measured)(&mut world);
        (case.after)(&mut world);
    }
    // `cargo xtask bench` divides by this number.
    println!("{} operations: {}", case.name, ROUND * ROUNDS);
}

/// Functions whose machine code is inspected, not measured.
fn others() {
    let mut world = Harness::new(false);
    line_post_receive(&mut world.pair, [world.sges[0]], 0).unwrap();
    line_arm(&mut world.cq);
    line_dispatch(&mut world.table, &mut world.cq);
    line_poll_datagram(&mut world.datagrams, &mut world.cq);
    line_post_umr(&mut world.pair, Rkey(1), &world.sges[..5], 0).unwrap();
    line_complete_shared(&mut world.srq, &mut world.cq);
}

fn main() -> ExitCode {
    others();
    // Cargo passes `--bench` or a test runner's options to this program.
    let name = std::env::args().nth(1).filter(|argument| !argument.starts_with('-'));
    let mut found = name.is_none();
    for case in CASES.iter().filter(|case| name.as_ref().is_none_or(|name| name == case.name)) {
        run(case);
        found = true;
    }
    if found { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
