//! Streams against a host in the test's memory: its rings, queues and registers.
#![allow(unsafe_code, reason = "the test is the host that promises what memory it gives")]

use std::boxed::Box;
use std::format;
use std::string::{String, ToString};
use std::vec;
use std::vec::Vec;

use core::sync::atomic::{AtomicU64, Ordering};

use super::control::{Carrier, Control, HOLDS, HOST_SLOTS_AT, Setup};
use super::entry::{CONTINUES, LOG_RECORD_BYTES, LOG_TEXT_ENTRY_BYTES, MORE, TEXT_BYTES};
use super::table::{FAILED, TRACER, first_argument, manage, operation};
use crate::calls::with_context::puts;
use crate::context::ThreadContext;
use crate::message::{Level, Stream};
use crate::outbox::{PAGE_BYTES, SXD_DB};
use crate::system::tests::calls;
use crate::trace::{flush, flush_tracer, pass, record};

const LOG_ENTRIES: u8 = 2;
const WQEBBS: usize = 8;

/// Words at a multiple of 64 that the code under test writes, too.
struct Words(&'static [AtomicU64]);

impl Words {
    fn new(bytes: usize) -> Self {
        #[repr(align(64))]
        struct Line(#[allow(dead_code, reason = "it is looked at as words")] [AtomicU64; 8]);
        let lines: Vec<Line> =
            (0..bytes.div_ceil(64)).map(|_| Line([const { AtomicU64::new(0) }; 8])).collect();
        let lines = Box::leak(lines.into_boxed_slice());
        let words = lines.as_ptr().cast::<AtomicU64>();
        // SAFETY: lines are words, and are leaked.
        Self(unsafe { core::slice::from_raw_parts(words, lines.len() * 8) })
    }

    fn address(&self) -> u64 {
        self.0.as_ptr().expose_provenance() as u64
    }

    fn get(&self, at: usize) -> u64 {
        self.0[at / 8].load(Ordering::Acquire)
    }

    fn set(&self, at: usize, value: u64) {
        self.0[at / 8].store(value, Ordering::Release);
    }
}

/// A host: window 0 maps its own memory, and outbox 1 is a page of memory.
struct Host {
    keys: Words,
    pages: Words,
    ring: Words,
    host_ring: Words,
    wqes: Words,
    cqes: Words,
    record: Words,
    control: &'static Control,
    number: u64,
    context: ThreadContext,
}

impl Host {
    fn new(number: u64, setup: impl FnOnce(&mut Setup)) -> Self {
        let mut host = Self::bare(number);
        let entry = if number == TRACER { LOG_RECORD_BYTES } else { LOG_TEXT_ENTRY_BYTES };
        let mut made = Setup::new(host.ring.address(), LOG_ENTRIES, entry);
        made.host_ring = host.host_ring.address();
        made.key = 0x77;
        made.outbox = 1;
        made.queue = 0x12_3456;
        made.log_wqebbs = WQEBBS.ilog2() as u8;
        made.log_cqes = WQEBBS.ilog2() as u8;
        (made.wqes, made.cqes) = (host.wqes.address(), host.cqes.address());
        made.cq_record = host.record.address();
        setup(&mut made);
        host.control = Box::leak(Box::new(Control::new(made)));
        host
    }

    fn bare(number: u64) -> Self {
        let bytes = HOST_SLOTS_AT as usize + (256 << LOG_ENTRIES);
        let (keys, pages) = (Words::new(64 * 16), Words::new(2 * PAGE_BYTES));
        let context = ThreadContext::at(pages.address(), keys.address(), 0);
        let cqes = Words::new(64 * WQEBBS);
        (0..WQEBBS).for_each(|index| cqes.set(64 * index + 56, 0xf0 << 56));
        let control = Box::leak(Box::new(Control::new(Setup::new(0, 0, 6))));
        Self {
            keys,
            pages,
            ring: Words::new(bytes),
            host_ring: Words::new(bytes),
            wqes: Words::new(64 * WQEBBS),
            cqes,
            record: Words::new(8),
            control,
            number,
            context,
        }
    }

    fn window(number: u64) -> Self {
        Self::new(number, |setup| setup.carrier = Carrier::Window as u8)
    }

    fn do_it(&self, operation: u64, level: u32) -> u64 {
        let address = core::ptr::from_ref(self.control).expose_provenance() as u64;
        // SAFETY: all of it is leaked.
        unsafe { manage(&self.context, first_argument(operation, level), self.number, address) }
    }

    fn attach(self, level: Level) -> Self {
        assert_eq!(self.do_it(operation::ATTACH, level as u32), 0);
        self
    }

    fn stream(&self) -> Stream {
        Stream::new(self.number as u8)
    }

    fn write(&self, level: Level, text: &str) -> usize {
        self.stream().write(&self.context, level, format_args!("{text}"))
    }

    /// Entry `number` of a ring: its text, level, flags.
    fn entry(ring: &Words, at: usize, number: u64) -> Option<(String, u8, u8)> {
        let at = at + (number as usize % (1 << LOG_ENTRIES)) * 256;
        if ring.get(at + 8) != number + 1 {
            return None;
        }
        let head = ring.get(at);
        let bytes: Vec<u8> =
            (2..32).flat_map(|word| ring.get(at + 8 * word).to_le_bytes()).collect();
        let text = String::from_utf8(bytes[..usize::from(head as u16)].into()).unwrap();
        Some((text, (head >> 16) as u8, (head >> 24) as u8))
    }

    /// An entry that arrived through the window.
    fn slot(&self, number: u64) -> Option<(String, u8, u8)> {
        Self::entry(&self.host_ring, HOST_SLOTS_AT as usize, number)
    }

    fn lost(&self) -> u64 {
        self.control.lost.load(Ordering::Relaxed)
    }

    /// The posted index of the last doorbell.
    fn rung(&self) -> u64 {
        self.pages.get(PAGE_BYTES + SXD_DB)
    }

    /// Completes a request with this opcode.
    fn completes(&self, opcode: u64, syndrome: u64) {
        let consumer = self.control.consumer.load(Ordering::Relaxed) as usize;
        let index = (0..).map(|more| consumer + more).find(|index| {
            let op_own = self.cqes.get(64 * (index % WQEBBS) + 56) >> 56;
            op_own >> 4 == 0xf || op_own & 1 != (index / WQEBBS) as u64 & 1
        });
        let index = index.unwrap();
        let owner = (index / WQEBBS) as u64 & 1;
        self.cqes.set(64 * (index % WQEBBS) + 48, syndrome << 56);
        self.cqes.set(64 * (index % WQEBBS) + 56, (opcode << 4 | owner) << 56);
    }
}

#[test]
fn messages_are_written_in_order_with_level() {
    let host = Host::window(10);
    assert_eq!(host.write(Level::Error, "absent"), 0);
    let host = host.attach(Level::Info);
    assert_eq!(host.keys.get(0) as u32, 0x77, "the window's key");
    assert_eq!(host.write(Level::Info, "12 packets"), 10);
    assert_eq!(host.write(Level::Error, "none left"), 9);
    assert_eq!(host.slot(0), Some(("12 packets".into(), 4, 0)));
    assert_eq!(host.slot(1), Some(("none left".into(), 2, 0)));
    assert_eq!(host.slot(2), None);
}

#[test]
fn messages_above_stream_level_are_dropped() {
    let host = Host::window(11).attach(Level::Warn);
    let rows = [
        (Level::Info, false),
        (Level::Warn, true),
        (Level::None, false),
        (Level::Always, true),
        (Level::Debug, false),
    ];
    for (level, written) in rows {
        assert_eq!(host.write(level, "x") == 1, written, "{level:?}");
    }
    assert_eq!(host.do_it(operation::LEVEL, Level::None as u32), 0);
    assert_eq!(host.write(Level::Always, "x"), 0, "a stream that shows nothing");
}

#[test]
fn long_text_spans_entries_or_is_lost() {
    let host = Host::window(12).attach(Level::Info);
    let text: String = ('a'..='z').cycle().take(TEXT_BYTES + 60).collect();
    assert_eq!(host.write(Level::Info, &text), text.len());
    let (first, _, flags) = host.slot(0).unwrap();
    assert_eq!((&*first, flags), (&text[..TEXT_BYTES], MORE));
    let (second, _, flags) = host.slot(1).unwrap();
    assert_eq!((&*second, flags), (&text[TEXT_BYTES..], CONTINUES));
    assert_eq!(host.write(Level::Info, &"x".repeat(5 * TEXT_BYTES)), 0);
    assert_eq!(host.lost(), 1);
}

#[test]
fn full_ring_counts_loss_and_overwrites_nothing() {
    let host = Host::window(13).attach(Level::Info);
    for number in 0..5 {
        let written = host.write(Level::Info, &number.to_string());
        assert_eq!(written, usize::from(number < 4));
    }
    assert_eq!(host.lost(), 1);
    assert_eq!(host.slot(0).unwrap().0, "0");
    host.host_ring.set(0, 3);
    assert_eq!(host.write(Level::Info, "five"), 4);
    assert_eq!(host.slot(4).unwrap().0, "five");
    assert_eq!(host.slot(3).unwrap().0, "3");
}

#[test]
fn text_growing_between_passes_stays_in_its_entries() {
    struct Grows(core::cell::Cell<usize>);
    impl core::fmt::Display for Grows {
        fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
            let round = self.0.replace(self.0.get() + 1);
            (0..1 + 500 * round).try_for_each(|_| f.write_str("x"))
        }
    }
    let host = Host::window(14).attach(Level::Info);
    let text = Grows(0.into());
    let written = host.stream().write(&host.context, Level::Info, format_args!("{text}"));
    assert_eq!(written, TEXT_BYTES);
    assert!(host.slot(0).is_some());
    assert_eq!(host.slot(1), None);
}

#[test]
fn concurrent_writers_lose_no_message() {
    const THREADS: usize = 3;
    const EACH: usize = 300;
    let host = Host::new(15, |setup| {
        setup.carrier = Carrier::Window as u8;
        setup.room_retries = u32::MAX;
    });
    let host = host.attach(Level::Info);
    let mut next = vec![0; THREADS];
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let host = &host;
            scope.spawn(move || {
                for it in 0..EACH {
                    assert_ne!(host.write(Level::Info, &format!("{thread} {it}")), 0);
                }
            });
        }
        for number in 0..(THREADS * EACH) as u64 {
            let text = loop {
                match host.slot(number) {
                    Some((text, ..)) => break text,
                    None => std::thread::yield_now(),
                }
            };
            host.host_ring.set(0, number + 1);
            let (thread, it) = text.split_once(' ').unwrap();
            let thread: usize = thread.parse().unwrap();
            assert_eq!(it.parse(), Ok(next[thread]), "thread {thread}");
            next[thread] += 1;
        }
    });
    assert_eq!((next, host.lost()), (vec![EACH; THREADS], 0));
}

#[test]
fn qp_sends_entries_and_cqes_free_them() {
    let host = Host::new(16, |setup| {
        setup.carrier = Carrier::Connected as u8;
        setup.max_entries_per_wqe = 1;
    });
    let host = host.attach(Level::Info);
    assert_eq!(host.write(Level::Info, "one"), 3);
    assert_eq!(host.rung(), 0x12_3456 << 32 | 1, "the doorbell");
    let bytes: Vec<u8> = (0..4).flat_map(|word| host.wqes.get(8 * word).to_ne_bytes()).collect();
    let base = host.ring.address().to_be_bytes();
    let expected: Vec<u8> = [
        &[0, 0, 0, 0x0a, 0x12, 0x34, 0x56, 2, 0, 0, 0, 8, 0, 0, 0, 0][..],
        &[0, 0, 1, 0, 0, 0, 0, 0x77],
        &base,
    ]
    .concat();
    assert_eq!(bytes, expected, "control and data segments");
    assert_eq!(Host::entry(&host.ring, 0, 0), Some(("one".into(), 4, 0)));
    // Room for four, until completions free some.
    for number in 1..5 {
        let written = host.write(Level::Info, &number.to_string());
        assert_eq!(written, usize::from(number < 4));
    }
    assert_eq!((host.rung(), host.lost()), (0x12_3456 << 32 | 4, 1));
    (0..3).for_each(|_| host.completes(0, 0));
    assert_eq!(host.write(Level::Info, "more"), 4);
    assert_eq!(host.record.get(0) as u32, 3_u32.to_be(), "the CQ's record");
    assert_eq!(host.control.freed.load(Ordering::Relaxed), 3);
    // Several passes through the rings.
    for round in 0..40 {
        let posted = host.control.posted.load(Ordering::Relaxed);
        (host.control.completed.load(Ordering::Relaxed)..posted).for_each(|_| host.completes(0, 0));
        (0..3).for_each(|_| assert_eq!(host.write(Level::Info, "again"), 5, "{round}"));
    }
    assert_eq!(host.lost(), 1);
}

#[test]
fn broken_qp_keeps_unsent_entries() {
    let host = Host::new(17, |setup| {
        setup.carrier = Carrier::Connected as u8;
        setup.max_entries_per_wqe = 1;
    });
    let host = host.attach(Level::Info);
    for number in 0..3 {
        host.write(Level::Info, &number.to_string());
    }
    host.completes(0, 0);
    host.completes(0xd, 0x16);
    assert_eq!(host.write(Level::Info, "3"), 1);
    assert_eq!(host.control.error_syndrome.load(Ordering::Relaxed), 0x16);
    assert_eq!(host.rung(), 0x12_3456 << 32 | 3, "no doorbell after that");
    assert_eq!(host.write(Level::Info, "4"), 1, "the slot of the first is free");
    assert_eq!(host.write(Level::Info, "5"), 0);
    assert_eq!(host.lost(), 1);
    let texts = (1..5).map(|number| Host::entry(&host.ring, 0, number).unwrap().0);
    assert_eq!(texts.collect::<Vec<_>>(), ["1", "2", "3", "4"]);
}

#[test]
fn datagram_has_av_and_two_wqebbs() {
    let host = Host::new(18, |setup| {
        setup.carrier = Carrier::Datagram as u8;
        setup.max_entries_per_wqe = 1;
        setup.destination = core::array::from_fn(|at| 0x40 + at as u8);
    });
    let host = host.attach(Level::Info);
    host.write(Level::Info, "one");
    host.write(Level::Info, "two");
    assert_eq!(host.rung(), 0x12_3456 << 32 | 4);
    let wqe = |index: usize| -> Vec<u8> {
        (0..10).flat_map(|word| host.wqes.get(128 * index + 8 * word).to_ne_bytes()).collect()
    };
    assert_eq!(wqe(1)[..8], [0, 0, 2, 0x0a, 0x12, 0x34, 0x56, 5]);
    let address: Vec<u8> = (0x40..0x70).collect();
    assert_eq!(wqe(0)[16..64], address);
    assert_eq!(wqe(1)[72..80], (host.ring.address() + 256).to_be_bytes());
    (0..2).for_each(|_| host.completes(0, 0));
    host.write(Level::Info, "three");
    assert_eq!(host.control.freed.load(Ordering::Relaxed), 2);
}

#[test]
fn records_are_sent_in_batches_and_by_flush() {
    let host = Host::new(TRACER, |setup| {
        setup.carrier = Carrier::Connected as u8;
        setup.log_entries = 3;
        setup.batch = 2;
        setup.max_entries_per_wqe = 2;
    });
    let at = |ring: &Words, number: usize, word: usize| ring.get(64 * (number % 8) + 8 * word);
    assert!(!pass(&host.context, 1, ()), "no tracer");
    let host = host.attach(Level::Debug);
    assert!(pass(&host.context, 7, (1_u8, -1_i64)));
    assert_eq!(host.rung(), 0, "half a batch");
    assert!(pass(&host.context, 8, (1_u64, 2_u64, 3_u64, 4_u64, 5_u64, 6_u64)));
    assert_eq!(host.rung(), 0x12_3456 << 32 | 1);
    assert_eq!(host.wqes.get(16).to_ne_bytes()[..4], 128_u32.to_be_bytes(), "bytes sent");
    let words = |number| (0..8).map(|word| at(&host.ring, number, word)).collect::<Vec<_>>();
    assert_eq!(words(0), [7, 1, 1, u64::MAX, 0, 0, 0, 0]);
    assert_eq!(words(1), [8, 2, 1, 2, 3, 4, 5, 6]);
    assert!(pass(&host.context, 9, ()));
    flush_tracer(&host.context);
    assert_eq!(host.rung(), 0x12_3456 << 32 | 2);
    assert_eq!(host.do_it(operation::FLUSH, 0), 3, "records handed over");
    // The tracer fills the ring, hands no record over, and then loses the other records.
    host.do_it(operation::LEVEL, Level::Debug as u32 | HOLDS);
    let passed = (0..9).filter(|&it: &u64| pass(&host.context, 10, (it,))).count();
    assert_eq!((passed, host.rung()), (5, 0x12_3456 << 32 | 2));
    assert_eq!(host.do_it(operation::LEVEL, 0), 0);
    assert!(!pass(&host.context, 1, ()), "a tracer that does not run");
    // A stream of text takes no records, and one of records no text.
    let text = Host::window(19).attach(Level::Info);
    assert!(!record(text.stream(), &text.context, Level::Error, 1, ()));
    assert_eq!(host.do_it(operation::DETACH, 0), 0, "users");
    assert_eq!(host.do_it(operation::FLUSH, 0), FAILED);
}

#[test]
fn detach_reports_active_user() {
    let host = Host::window(20).attach(Level::Info);
    struct Detaches<'a>(&'a Host, core::cell::Cell<u64>);
    impl core::fmt::Display for Detaches<'_> {
        fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
            self.1.set(self.0.do_it(operation::DETACH, 0));
            f.write_str("x")
        }
    }
    let text = Detaches(&host, 0.into());
    assert_eq!(host.stream().write(&host.context, Level::Info, format_args!("{text}")), 1);
    assert_eq!(text.1.get(), 1, "users meanwhile");
    assert_eq!(host.do_it(operation::DETACH, 0), 0, "users afterwards");
    assert_eq!(host.write(Level::Info, "x"), 0);
}

#[test]
fn attach_rejects_invalid_stream() {
    assert_eq!(Host::window(255).do_it(operation::ATTACH, 4), FAILED, "its number");
    assert_eq!(Host::window(257).do_it(operation::ATTACH, 4), FAILED, "its number");
    let old = Host::new(21, |setup| setup.version = 1);
    assert_eq!(old.do_it(operation::ATTACH, 4), FAILED, "its version");
    assert_eq!(old.do_it(7, 0), FAILED, "no operation");
    // SAFETY: neither address is read.
    unsafe {
        assert_eq!(manage(&old.context, operation::ATTACH, 21, 0), FAILED);
        assert_eq!(manage(&old.context, operation::ATTACH, 21, 8), FAILED);
    }
    assert_eq!(old.write(Level::Info, "x"), 0);
}

#[test]
fn text_parts_are_split_at_entry_bounds() {
    let host = Host::window(0).attach(Level::Info);
    let (first, second) = ("a".repeat(TEXT_BYTES - 40), "b".repeat(TEXT_BYTES + 50));
    let text = format_args!("{first}{second}");
    assert_eq!(Stream::DEFAULT.write(&host.context, Level::Info, text), 2 * TEXT_BYTES + 10);
    let whole: String = (0..3).map(|number| host.slot(number).unwrap().0).collect();
    assert_eq!(whole, first + &second);
    assert_eq!((0..3).map(|it| host.slot(it).unwrap().2).max(), Some(MORE | CONTINUES));
    assert_eq!(puts(&host.context, "a line"), 6, "the default stream");
    assert_eq!(host.slot(3), Some(("a line".into(), Level::Info as u8, 0)));
}

#[test]
fn writer_retries_for_room_as_configured() {
    const PAUSE: (u64, [u64; 3]) = (6, [0; 3]);
    let host = Host::new(22, |setup| {
        setup.carrier = Carrier::Window as u8;
        setup.room_retries = 2;
    });
    let host = host.attach(Level::Info);
    let write = |text: &str| calls(|| assert_eq!(host.write(Level::Info, text), 0));
    assert_eq!(write(&"x".repeat(5 * TEXT_BYTES)), [], "the message never fits");
    (0..4).for_each(|_| assert_eq!(host.write(Level::Info, "x"), 1));
    assert_eq!(write("x"), [PAUSE; 3]);
    host.do_it(operation::LEVEL, Level::Info as u32 | HOLDS);
    assert_eq!(write("x"), [], "a stream that holds its entries");
    assert_eq!(host.lost(), 3);
}

/// A stream of at most eight records, carried by a queue pair.
fn records(number: u64, setup: impl FnOnce(&mut Setup)) -> Host {
    Host::new(number, |made| {
        made.carrier = Carrier::Connected as u8;
        made.log_entry_bytes = LOG_RECORD_BYTES;
        made.log_entries = 3;
        setup(made);
    })
}

#[test]
fn posting_is_limited_by_send_queue() {
    let host = Host::new(23, |setup| {
        setup.carrier = Carrier::Connected as u8;
        setup.log_wqebbs = 1;
    });
    let host = host.attach(Level::Info);
    (0..3).for_each(|_| assert_eq!(host.write(Level::Info, "x"), 1));
    assert_eq!(host.rung(), 0x12_3456 << 32 | 2);
    host.completes(0, 0);
    assert_eq!(host.write(Level::Info, "x"), 1);
    assert_eq!(host.rung(), 0x12_3456 << 32 | 3, "the third");
    host.pages.set(PAGE_BYTES + SXD_DB, 0);
    assert_eq!(host.do_it(operation::FLUSH, 0), 3, "handed over");
    assert_eq!(host.rung(), 0, "nothing was posted");
}

#[test]
fn records_follow_level_and_are_sent_by_flush() {
    let host = records(24, |setup| setup.batch = 4).attach(Level::Warn);
    let record = |level| record(host.stream(), &host.context, level, 9, (5_u8,));
    assert_eq!((record(Level::Info), record(Level::Warn)), (false, true));
    assert_eq!((host.ring.get(0), host.ring.get(16)), (9, 5));
    assert_eq!(host.rung(), 0);
    flush(host.stream(), &host.context);
    assert_eq!(host.rung(), 0x12_3456 << 32 | 1);
}

#[test]
fn qp_message_ends_at_ring_end() {
    let host =
        records(25, |setup| (setup.batch, setup.max_entries_per_wqe) = (4, 4)).attach(Level::Debug);
    let record = || assert!(record(host.stream(), &host.context, Level::Debug, 9, ()));
    (0..6).for_each(|_| record());
    host.do_it(operation::FLUSH, 0);
    (0..2).for_each(|_| host.completes(0, 0));
    assert_eq!(host.do_it(operation::FLUSH, 0), 6);
    host.do_it(operation::LEVEL, Level::Debug as u32 | HOLDS);
    (0..4).for_each(|_| record());
    host.do_it(operation::LEVEL, Level::Debug as u32);
    assert_eq!(host.do_it(operation::FLUSH, 0), 10);
    let sent = |wqe: usize| {
        let [head, address] = [16, 24].map(|at| host.wqes.get(64 * wqe + at).to_ne_bytes());
        let bytes = u32::from_be_bytes(*head.first_chunk().unwrap());
        (u64::from(bytes) / 64, (u64::from_be_bytes(address) - host.ring.address()) / 64)
    };
    assert_eq!([0, 1, 2, 3].map(sent), [(4, 0), (2, 4), (2, 6), (2, 0)]);
}

#[test]
fn hand_over_takes_only_whole_batches() {
    let host = records(26, |setup| (setup.batch, setup.max_entries_per_wqe) = (2, 2));
    let (control, context) = (host.control, &host.context);
    let fill = |index| control.fill(index, 0, core::iter::empty());
    let carried = |batch| {
        control.hand_over(context, batch);
        control.carried.load(Ordering::Relaxed)
    };
    assert_eq!(control.claim(context, 5), Some(0));
    assert_eq!([0, 1, 2, 4].map(fill), [1, 2, 3, 4]);
    assert_eq!(carried(2), 2, "the third is not a batch, and the fourth is incomplete");
    assert_eq!(fill(3), 5, "the fifth entry completes all five");
    assert_eq!((carried(2), carried(1)), (4, 5));
}

#[test]
fn words_beyond_entry_are_dropped() {
    let host = records(27, |_| ());
    host.control.fill(1, 7, core::iter::repeat_n(9, 40));
    let words: Vec<u64> = (0..24).map(|word| host.ring.get(8 * word)).collect();
    assert_eq!(words[8..16], [7, 2, 9, 9, 9, 9, 9, 9]);
    assert_eq!((&words[..8], &words[16..]), (&[0; 8][..], &[0; 8][..]));
}
