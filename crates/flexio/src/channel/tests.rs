use verbless_command::DpaThreadState;
use verbless_prm::CqeSyndrome;

use crate::event_handler::{EventHandler, EventHandlerConfig};
use crate::function::Handler;
use crate::process::ProcessConfig;
use crate::program::{CODE, process};

use super::*;

/// Two calls of a test time out after it. Copies, too, must complete within it while harts spin.
const TIMEOUT: Duration = Duration::from_secs(2);
/// Offset in the block of the claimed entries' count; the count of written entries follows.
const CLAIMED_AT: u64 = SETUP_BYTES as u64;

/// A substitute for a program's `verbless_stream`. Its data are the found block, the count of
/// attaches until one hangs, and its result for the users of a detached stream. Other operations
/// return the block's address, or [`FAILED`].
const MANAGES: [u32; 26] = [
    0x0ff5_7293, // andi  t0, a0, 0xff
    0x0010_0313, // li    t1, 1
    0x01f3_1313, // slli  t1, t1, 31
    0x0202_8463, // beqz  t0, attach
    0x0010_0393, // li    t2, 1
    0x0072_8a63, // beq   t0, t2, detach
    0x0003_3503, // ld    a0, 0(t1)
    0x0005_1463, // bnez  a0, 8
    0xfff5_0513, // addi  a0, a0, -1
    0x0000_8067, // ret
    0x0003_3023, // detach: sd zero, 0(t1)
    0x0103_3503, // ld    a0, 16(t1)
    0x0000_8067, // ret
    0x0105_5513, // attach: srli a0, a0, 16
    0x0aa6_2e23, // sw    a0, 0xbc(a2)
    0x00c3_3023, // sd    a2, 0(t1)
    0x0083_3383, // ld    t2, 8(t1)
    0xfff3_8393, // addi  t2, t2, -1
    0x0073_3423, // sd    t2, 8(t1)
    0x0003_8063, // beqz  t2, 0
    0x0000_0513, // li    a0, 0
    0x0000_8067, // ret
    0x0000_006f, // runs: j 0
    0x0070_0893, // starts: li a7, 7
    0x0000_0073, // ecall
    0x0000_8067, // ret
];
/// A handler that never returns.
const RUNS: u64 = CODE + 4 * 22;
/// The function that starts a thread by its number.
const STARTS: u64 = CODE + 4 * 23;

fn managed(hangs_at: u64, users: u64) -> (verbless::model::Model, Process) {
    let config = ProcessConfig { timeout: TIMEOUT, ..ProcessConfig::default() };
    process(&MANAGES, &[0, hangs_at, users], &[(MANAGER, 0)], &config)
}

/// A process of a program whose `verbless_stream` accepts all operations: it returns 0.
pub(crate) fn agreeing() -> (verbless::model::Model, Process) {
    // li a0, 0; ret
    process(&[0x0000_0513, 0x0000_8067], &[], &[(MANAGER, 0)], &ProcessConfig::default())
}

/// A process of a program whose `verbless_stream` returns `count` for a flush, and otherwise 0.
pub(crate) fn flushing(count: u32) -> (verbless::model::Model, Process) {
    let code = [
        0x0ff5_7293,          // andi t0, a0, 0xff
        0x0030_0313,          // li   t1, 3
        0x0000_0513,          // li   a0, 0
        0x0062_9463,          // bne  t0, t1, 8
        0x0513 | count << 20, // li   a0, count
        0x0000_8067,          // ret
    ];
    let config = ProcessConfig { timeout: Duration::from_millis(500), ..ProcessConfig::default() };
    process(&code, &[], &[(MANAGER, 0)], &config)
}

impl Channel {
    /// Writes an entry, with its number, like a program: to the memory that the host reads.
    pub(crate) fn write(&self, index: u64, head: u64, content: &[u8]) {
        let within = index % self.entries() * self.entry_bytes() as u64;
        let mut entry = vec![0; self.entry_bytes()];
        entry[..8].copy_from_slice(&head.to_le_bytes());
        entry[8..16].copy_from_slice(&(index + 1).to_le_bytes());
        entry[16..][..content.len()].copy_from_slice(content);
        match &self.receiver {
            Receiver::Window { ring, .. } => {
                let at = (control::HOST_SLOTS_AT + within) as usize / 8;
                for (word, bytes) in ring[at..].iter().zip(entry.as_chunks::<8>().0).rev() {
                    let order = std::sync::atomic::Ordering::Release;
                    word.store(u64::from_ne_bytes(*bytes), order);
                }
            }
            _ => self.process.write(self.ring_at + within, &entry).unwrap(),
        }
        // The counts of claimed, written, and handed-over entries.
        [0x00, 0x08, 0x10].into_iter().for_each(|at| self.put(at, index + 1));
    }

    /// Changes a counter of the program.
    pub(crate) fn put(&self, at: u64, value: u64) {
        let at = self.control.address() + SETUP_BYTES as u64 + at;
        self.process.write(at, &value.to_le_bytes()).unwrap();
    }

    /// A word of the block.
    pub(crate) fn word(&self, at: u64) -> u64 {
        let mut bytes = [0; 8];
        self.process.read(self.control.address() + at, &mut bytes).unwrap();
        u64::from_le_bytes(bytes)
    }
}

fn config(transport: EntryTransport, ring_at: Option<u64>) -> ChannelConfig {
    ChannelConfig {
        number: 1,
        transport,
        log_entry_bytes: 6,
        ring_bytes: 4096,
        ring_at,
        host_bytes: 4096,
        batch: 1,
        room_retries: 0,
        affinity: Affinity::None,
    }
}

fn channel(process: &Process, transport: EntryTransport, ring_at: Option<u64>) -> Channel {
    Channel::create(process, config(transport, ring_at)).unwrap()
}

/// Claims entry 0 of the ring of the block at `block`, and completes it if `whole`.
fn claim(process: &Process, block: u64, whole: bool) {
    process.write(block + CLAIMED_AT, &1_u64.to_le_bytes()).unwrap();
    if whole {
        let mut ring = [0; 8];
        process.copying(|copier| copier.read(block + 8, &mut ring)).unwrap();
        let ring = u64::from_le_bytes(ring);
        process.write(ring + NUMBER_AT as u64, &1_u64.to_le_bytes()).unwrap();
        process.write(block + CLAIMED_AT + 8, &1_u64.to_le_bytes()).unwrap();
    }
}

/// Starts a run of an event handler.
fn start(process: &Process, handler: &EventHandler) {
    let words = [handler.activation_id().0.into(), 0, 0, 0, 0, 0, 0, 0];
    process.finish(process.begin(&DpaEntry::at(STARTS), words).unwrap()).unwrap();
    let end = Instant::now() + Duration::from_secs(10);
    while handler.query().unwrap().state != DpaThreadState::RUNNING {
        assert!(Instant::now() < end, "the event handler does not run");
        thread::sleep(PAUSE);
    }
}

#[test]
fn extreme_entry_numbers_do_not_overflow() {
    let (mut next, mut losses) =
        (u64::MAX - (1 << 20), EntryLosses { lost: u64::MAX - 3, damaged: 0 });
    let mut entry = vec![0; 64];
    entry[NUMBER_AT..NUMBER_AT + 8].copy_from_slice(&u64::MAX.to_le_bytes());
    let mut delivered = Vec::new();
    assert!(accept(&mut next, &mut losses, &entry, &mut |index, _| delivered.push(index)));
    assert_eq!((next, losses.lost, delivered), (u64::MAX, u64::MAX, vec![u64::MAX - 1]));
}

#[test]
fn distant_entry_is_damaged_and_old_one_dropped() {
    let (mut next, mut losses) = (5, EntryLosses::default());
    let mut take = |number: u64| {
        let mut entry = [0; 64];
        entry[NUMBER_AT..NUMBER_AT + 8].copy_from_slice(&number.to_le_bytes());
        let mut delivered = None;
        let taken = accept(&mut next, &mut losses, &entry, &mut |index, _| delivered = Some(index));
        assert_eq!(taken, delivered.is_some());
        (delivered, next, losses.lost, losses.damaged)
    };
    assert_eq!(take(0), (None, 5, 0, 1), "no number");
    assert_eq!(take(5), (None, 5, 0, 1), "the entry came before");
    assert_eq!(take(6), (Some(5), 6, 0, 1));
    assert_eq!(take(9), (Some(8), 9, 2, 1), "two are lost");
    assert_eq!(take(MAX_GAP + 11), (None, 9, 2, 2));
    assert_eq!(take(MAX_GAP + 10), (Some(MAX_GAP + 9), MAX_GAP + 10, MAX_GAP + 2, 2));
}

#[test]
fn ring_above_entry_limit_is_rejected() {
    let (_model, process) = managed(2, 0);
    for more in [1, 2] {
        let ring_bytes = 64 << (MAX_LOG_ENTRIES + more);
        let made = Channel::create(
            &process,
            ChannelConfig { ring_bytes, ..config(EntryTransport::Heap, None) },
        );
        let Err(error) = made else { panic!("a ring of {ring_bytes} bytes") };
        assert!(error.to_string().contains("more than the limit of"), "{error}");
    }
}

#[test]
fn new_ring_is_read_after_attach_timeout() {
    for transport in [EntryTransport::Heap, EntryTransport::Rc] {
        let (_model, process) = managed(2, 0);
        let before = process.heap_info();
        let mut channel = channel(&process, transport, None);
        channel.attach(3).unwrap();
        // A run is terminated in the first entry.
        claim(&process, channel.control.address(), false);
        let mut none = |index, _: &[u8]| panic!("entry {index}");
        assert!(channel.is_held_up(&mut none).unwrap());
        // The program finds the new ring, and does not confirm it in time.
        let renewed = channel.renew(&mut none);
        assert!(matches!(renewed, Err(Error::Timeout(_))), "{renewed:?}");
        let found = channel.manage(operation::FLUSH, 0).expect("the program has a stream");
        assert_ne!(found, channel.control.address());
        claim(&process, found, true);
        let lost = channel.losses().lost;
        channel.flush(&mut none).unwrap();
        assert_eq!(channel.losses().lost, lost, "nothing is lost that comes yet");
        assert!(channel.is_held_up(&mut none).unwrap());
        channel.renew(&mut none).unwrap();
        assert_eq!(channel.control.address(), found);
        // No transport sends it here.
        let mut delivered = Vec::new();
        channel.read_heap(&mut |index, _| delivered.push(index)).unwrap();
        assert_eq!(delivered, [1], "the entry after the one that was held up");
        channel.detach().unwrap();
        drop(channel);
        assert_eq!(process.heap_info(), before, "the heap after {transport:?}");
    }
}

#[test]
fn dropped_channel_is_detached() {
    let (_model, process) = managed(0, 0);
    let (mut first, second) = (
        channel(&process, EntryTransport::Heap, None),
        channel(&process, EntryTransport::Heap, None),
    );
    first.attach(3).unwrap();
    assert_eq!(second.manage(operation::FLUSH, 0).unwrap(), first.control.address());
    drop(first);
    let error = second.manage(operation::FLUSH, 0).unwrap_err().to_string();
    assert!(error.contains("refuses stream 1"), "{error}");
}

#[test]
fn old_ring_is_delivered_after_failed_read() {
    let (model, process) = managed(2, 0);
    let mut channel = channel(&process, EntryTransport::Heap, None);
    channel.attach(3).unwrap();
    let old = channel.control.address();
    claim(&process, old, true);
    let mut none = |index, _: &[u8]| panic!("entry {index}");
    let renewed = channel.renew(&mut none);
    assert!(matches!(renewed, Err(Error::Timeout(_))), "{renewed:?}");
    // The new ring exists now; the next copy is the first read of the old one.
    model.fail_request(0, None, 1, CqeSyndrome::LOCAL_PROTECTION);
    let renewed = channel.renew(&mut none);
    assert!(matches!(renewed, Err(Error::Failed(_))), "{renewed:?}");
    assert_eq!(channel.control.address(), old, "the old one is in use");
    let mut delivered = Vec::new();
    channel.renew(&mut |index, _| delivered.push(index)).unwrap();
    assert_eq!(delivered, [0]);
    assert_ne!(channel.control.address(), old);
    assert_eq!(channel.losses(), EntryLosses::default());
    channel.detach().unwrap();
}

#[test]
fn user_buffer_is_kept_while_threads_use_ring() {
    for (users, stays) in [(0, false), (1, true)] {
        let (_model, process) = managed(0, users);
        let buffer = process.alloc(4096).unwrap();
        let mut channel = channel(&process, EntryTransport::Heap, Some(buffer.address()));
        channel.keep(Some(buffer.clone()));
        channel.attach(3).unwrap();
        assert_eq!(channel.detach().is_err(), stays);
        drop(channel);
        assert_eq!(buffer.free().is_err(), stays, "{users} threads");
    }
}

#[test]
fn detach_ignores_handler_destroyed_in_run() {
    for runs in [false, true] {
        let (_model, process) = managed(0, 1);
        let before = process.heap_info();
        let mut channel = channel(&process, EntryTransport::Heap, None);
        channel.attach(3).unwrap();
        let mut config = EventHandlerConfig::new(Handler::named("runs"));
        config.polling = true;
        let handler = EventHandler::create_at(&process, RUNS, &config).unwrap();
        handler.run(0).unwrap();
        if runs {
            start(&process, &handler);
        }
        match runs {
            true => drop(handler),
            false => handler.destroy().unwrap(),
        }
        assert_eq!(channel.detach().is_ok(), runs);
        drop(channel);
        assert_eq!(process.heap_info() == before, runs, "its memory is free again");
    }
}
