//! One hash over every format of the device API that needs no device: a program on the DPA and its
//! host, of another architecture, must compute the same. The crate's own tests check the formats
//! themselves.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use verbless_flexio_dev::calls::with_context;
use verbless_flexio_dev::event::{CompressedCqe, CqRing, Cqe, CqeError, EqRing, Eqe, eqe_cqn};
use verbless_flexio_dev::message::MAX_STREAMS;
use verbless_flexio_dev::segment::{
    CompletionMode, DatagramSegment, LOG_PER_WQEBB, WaitDataSegment, eth,
};
use verbless_flexio_dev::{Request, Segment, SpinLock, outbox, record};

/// FNV-1a over the input.
struct Fold(u64);

impl Fold {
    fn bytes(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
        }
    }

    fn number(&mut self, number: impl Into<u64>) {
        self.bytes(&number.into().to_le_bytes());
    }
}

/// The hash; `seed` varies the contents of the formats.
pub(super) fn all(seed: u64) -> u64 {
    let mut fold = Fold(0xcbf2_9ce4_8422_2325 ^ seed);
    segments(&mut fold, seed);
    words(&mut fold, seed as u32);
    entries(&mut fold, seed as u8);
    fold.0
}

fn segments(fold: &mut Fold, seed: u64) {
    let requests = [
        Request::EthernetSend,
        Request::ConnectedSend,
        Request::DatagramSend,
        Request::LocalDma,
        Request::RdmaWrite,
        Request::RdmaRead,
        Request::Lso,
        Request::Nop,
        Request::RdmaWriteImm,
        Request::Transpose,
        Request::WaitOnData,
        Request::CompareSwap,
        Request::FetchAdd,
    ];
    let modes = [
        CompletionMode::OnError,
        CompletionMode::OnFirstError,
        CompletionMode::Always,
        CompletionMode::AlwaysAndEvent,
    ];
    let number = seed as u32;
    for request in requests {
        for mode in modes {
            let segment = Segment::ctrl_with_imm(seed as u16, number, mode, request, number);
            fold.bytes(segment.as_bytes());
        }
    }
    let flags = eth::L3_CHECKSUM
        | eth::L4_CHECKSUM
        | eth::INNER_L3_CHECKSUM
        | eth::INNER_L4_CHECKSUM
        | eth::INNER_L3_IPV6
        | eth::INNER_L4_UDP
        | eth::TRAILER_ALIGN;
    let [a, b, ..] = seed.to_be_bytes();
    for segment in [
        Segment::eth(flags, seed as u16, 18, [a, b]),
        Segment::rdma(number, seed),
        Segment::data(number, !number, seed),
        Segment::inline(&seed.to_le_bytes()).unwrap_or_default(),
        Segment::bytes([a; 16]),
        Segment::atomic(seed, !seed),
        Segment::shared_receive(seed as u16, a),
        Segment::transpose(a, b, 3),
    ] {
        fold.bytes(segment.as_bytes());
    }
    fold.number(Segment::data(1, 2, seed).data_address());
    let mut set = Segment::default();
    let (mode, request) = (CompletionMode::Always, Request::RdmaWrite);
    for status in [
        with_context::swqe_seg_ctrl_set(&mut set, number, !number, mode, request),
        with_context::swqe_seg_eth_set(&mut set, flags, seed as u16, 18, [a, b]),
        with_context::swqe_seg_rdma_set(&mut set, number, seed),
        with_context::swqe_seg_data_set(&mut set, number, !number, seed),
        with_context::swqe_seg_atomic_set(&mut set, seed, !seed),
    ] {
        fold.number(status as u8);
    }
    fold.bytes(set.as_bytes());
    let mut address = DatagramSegment::zeroed();
    address.set_q_key(number);
    address.set_ext(true);
    address.set_dqp_dct(number & 0xff_ffff);
    let mut wait = WaitDataSegment::zeroed();
    wait.set_lkey(number);
    wait.set_va(seed & !7);
    wait.set_value(seed);
    wait.set_mask(!seed);
    let parts = Segment::datagram(&address).into_iter().chain(Segment::wait_on_data(&wait));
    parts.for_each(|segment| fold.bytes(segment.as_bytes()));
    fold.number(LOG_PER_WQEBB);
    fold.number(MAX_STREAMS as u64);
}

fn words(fold: &mut Fold, seed: u32) {
    for word in [
        outbox::cq_arm(seed, !seed),
        outbox::eq_update(seed, !seed),
        outbox::send(seed, seed as u16),
        outbox::emulation(seed, !seed),
        outbox::zero_cqe(seed),
        outbox::emulated_read(seed),
    ] {
        fold.number(word);
    }
    let words = [const { AtomicU32::new(0) }; 3];
    record::cq_set_ci(&words[0], seed);
    words[1].store(0xffff_u32.to_be(), Ordering::Relaxed);
    record::rq_inc_pi(&words[1]);
    record::sq_set_pi(&words[2], seed as u16);
    for word in &words {
        fold.bytes(&word.load(Ordering::Relaxed).to_ne_bytes());
    }
    for status in [
        with_context::dbr_cq_set_ci(&words[0], !seed),
        with_context::dbr_rq_inc_pi(&words[1]),
        with_context::dbr_sq_set_pi(&words[2], !seed),
    ] {
        fold.number(status as u8);
    }
    for word in &words {
        fold.bytes(&word.load(Ordering::Relaxed).to_ne_bytes());
    }
    let lock = SpinLock::new();
    let held = lock.try_lock();
    fold.number(lock.try_lock().is_some());
    drop(held);
    fold.number(lock.try_lock().is_some());
    // The copies of `flexio_dev_memcpy16` and its siblings.
    let mut halves = [0_u16; 4];
    halves.copy_from_slice(&[1, 2, seed as u16, 4]);
    fold.number(halves[2]);
    let (mut words, mut longs) = ([0_u32; 2], [0_u64; 2]);
    words.copy_from_slice(&[seed, !seed]);
    longs.copy_from_slice(&[1, seed.into()]);
    fold.number(words[1]);
    fold.bytes(&(seed as u16).to_be().to_ne_bytes());
    fold.bytes(&seed.to_be().to_ne_bytes());
    fold.bytes(&u64::from(seed).to_be().to_ne_bytes());
    fold.number(u16::from_be(seed as u16) ^ u16::from_le(seed as u16).to_le());
    fold.number(u32::from_be(seed) ^ u32::from_le(seed).to_le());
    fold.number(u64::from_be(seed.into()) ^ u64::from_le(seed.into()).to_le());
    fold.number(longs[1]);
}

fn entries(fold: &mut Fold, seed: u8) {
    let mut bytes: [u8; 64] = core::array::from_fn(|at| at as u8 ^ seed);
    let words = [const { AtomicU64::new(0) }; 8];
    let fill = |bytes: &[u8; 64]| {
        for (word, part) in words.iter().zip(bytes.as_chunks().0) {
            word.store(u64::from_ne_bytes(*part), Ordering::Relaxed);
        }
    };
    // New in the first pass.
    bytes[63] = 0xd0;
    fill(&bytes);
    if let Some(cqe) = CqRing::new(&words, 0).and_then(|mut ring| ring.poll()) {
        for number in [
            cqe.byte_cnt(),
            cqe.qpn(),
            cqe.wqe_counter().into(),
            cqe.srqn_uidx(),
            cqe.check_sum().into(),
            cqe.signature().into(),
            cqe.opcode().0.into(),
            cqe.format().0.into(),
            cqe.owner().into(),
        ] {
            fold.number(number);
        }
    }
    if let Some(cqe) = CqeError::from_prefix(&bytes) {
        fold.number(cqe.syndrome().0);
        fold.number(cqe.hw_error_syndrome());
        fold.number(cqe.vendor_err_synd().0);
    }
    if let Some(eqe) = EqRing::new(&words, 0).and_then(|mut ring| ring.poll()) {
        let of: &Eqe = &eqe;
        fold.number(eqe_cqn(of));
        fold.number(of.owner());
        fold.number(of.event_type().0);
    }
    if let Some(cqn) = EqRing::new(&words, 0).and_then(|mut ring| ring.poll_cqn()) {
        fold.number(cqn);
    }
    fold.number(Cqe::from_prefix(&bytes).is_some());
    bytes[63] = 5 << 4 | 3 << 2;
    CompressedCqe::prepare(&mut bytes, seed);
    fold.number(CompressedCqe::validity(&bytes));
    if let Some(block) = CompressedCqe::of(&bytes) {
        for index in 0..=block.count() {
            let mini = block.get(index);
            fold.number(mini.map_or(0, |mini| mini.rx_hash_result()));
            fold.number(mini.map_or(0, |mini| mini.byte_cnt()));
        }
    }
}
