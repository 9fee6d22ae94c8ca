//! The control block of a stream, in the process's memory and shared by host and program:
//! [`Setup`], which the host writes before it attaches the stream, and [`Progress`], the counters
//! of threads.

use core::sync::atomic::{AtomicU32, AtomicU64};

/// The version of the layouts of streams. A host with another version is refused.
pub const VERSION: u32 = 2;
/// Bytes of the block. Its address is a multiple of 64.
pub const BYTES: usize = SETUP_BYTES + PROGRESS_BYTES;
/// Bytes of [`Setup`], at the block's start.
pub const SETUP_BYTES: usize = 0x80;
/// Bytes of the progress block that follows.
pub const PROGRESS_BYTES: usize = 0x40;
/// Offset in the block of the count of freed entries; the host writes it if it is the carrier.
pub const FREED_AT: usize = SETUP_BYTES + 0x18;

/// Offset in the block of the level: the program writes it when it finds the stream, before its
/// first use. Until then it may be [`UNSEEN`].
pub const LEVEL_AT: usize = SETUP_BYTES + 0x3c;
/// No level: the program has not found the stream yet.
pub const UNSEEN: u32 = u32::MAX;

/// Offset of the slots in a ring of the host, after the count of entries that the host has taken (8
/// bytes at 0, little-endian).
pub const HOST_SLOTS_AT: u64 = 0x40;

/// log2 of the maximum number of entries in a ring.
pub const MAX_LOG_ENTRIES: u8 = 20;

/// The transport of entries to the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(u8)]
pub enum Carrier {
    /// The host reads them from the process's memory, and writes its progress back.
    #[default]
    Host = 0,
    /// Threads store them into a ring of the host through a window.
    Window = 1,
    /// A queue pair sends them to a connected one of the host.
    Connected = 2,
    /// A queue pair sends them as datagrams.
    Datagram = 3,
}

/// Parameters of a stream, written by the host. Unused ones are 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Setup {
    /// [`VERSION`].
    pub version: u32,
    /// A [`Carrier`].
    pub carrier: u8,
    /// log2 of the entries of the ring.
    pub log_entries: u8,
    /// log2 of an entry's bytes.
    pub log_entry_bytes: u8,
    /// log2 of the WQEBBs of the send queue.
    pub log_wqebbs: u8,
    /// Address of the ring in the process, a multiple of 64.
    pub ring: u64,
    /// Entries per batch, a power of two. 1: each at once.
    pub batch: u32,
    /// Maximum number of entries in one WQE of the queue pair.
    pub max_entries_per_wqe: u32,
    /// Retries, each after a pause, before a thread without room counts its message as lost.
    pub room_retries: u32,
    /// The key of the host's ring, or of the ring of entries if a queue pair sends them.
    pub key: u32,
    /// Address of the host's ring under its key, a multiple of 8; it has as many slots as the ring.
    pub host_ring: u64,
    /// The window to the host's ring, used for nothing else.
    pub window: u16,
    /// The outbox for the queue pair, used for nothing else.
    pub outbox: u16,
    /// The queue pair.
    pub queue: u32,
    /// Address of the send queue.
    pub wqes: u64,
    /// Address of the send queue's CQEs; at least as many as WQEBBs.
    pub cqes: u64,
    /// Address of the CQ's doorbell record.
    pub cq_record: u64,
    /// log2 of the CQEs.
    pub log_cqes: u8,
    /// Reserved.
    pub reserved: [u8; 7],
    /// Address vector of the datagrams.
    pub destination: [u8; 48],
}

impl Setup {
    /// A stream that the host reads itself, with its ring at address `ring`.
    pub const fn new(ring: u64, log_entries: u8, log_entry_bytes: u8) -> Self {
        Self {
            version: VERSION,
            carrier: Carrier::Host as u8,
            log_entries,
            log_entry_bytes,
            log_wqebbs: 0,
            ring,
            batch: 1,
            max_entries_per_wqe: 1,
            room_retries: 0,
            key: 0,
            host_ring: 0,
            window: 0,
            outbox: 0,
            queue: 0,
            wqes: 0,
            cqes: 0,
            cq_record: 0,
            log_cqes: 0,
            reserved: [0; 7],
            destination: [0; 48],
        }
    }

    /// The block of a stream that begins with entry 0, in memory order.
    pub fn to_bytes(&self) -> [u8; BYTES] {
        let mut bytes = [0; BYTES];
        let mut put = |at: usize, word: &[u8]| bytes[at..at + word.len()].copy_from_slice(word);
        put(0x00, &self.version.to_le_bytes());
        put(0x04, &[self.carrier, self.log_entries, self.log_entry_bytes, self.log_wqebbs]);
        put(0x08, &self.ring.to_le_bytes());
        put(0x10, &self.batch.to_le_bytes());
        put(0x14, &self.max_entries_per_wqe.to_le_bytes());
        put(0x18, &self.room_retries.to_le_bytes());
        put(0x1c, &self.key.to_le_bytes());
        put(0x20, &self.host_ring.to_le_bytes());
        put(0x28, &self.window.to_le_bytes());
        put(0x2a, &self.outbox.to_le_bytes());
        put(0x2c, &self.queue.to_le_bytes());
        put(0x30, &self.wqes.to_le_bytes());
        put(0x38, &self.cqes.to_le_bytes());
        put(0x40, &self.cq_record.to_le_bytes());
        put(0x48, &[self.log_cqes]);
        put(0x50, &self.destination);
        bytes
    }

    /// The carrier, if the value is valid.
    pub(crate) const fn carrier(&self) -> Option<Carrier> {
        match self.carrier {
            0 => Some(Carrier::Host),
            1 => Some(Carrier::Window),
            2 => Some(Carrier::Connected),
            3 => Some(Carrier::Datagram),
            _ => None,
        }
    }

    /// Whether the parameters are consistent. Addresses are not checked: the host promises that
    /// they are the process's.
    pub(crate) const fn is_sound(&self) -> bool {
        let Some(carrier) = self.carrier() else { return false };
        let entries = 1_u64 << if self.log_entries > 31 { 31 } else { self.log_entries };
        let ring = self.version == VERSION
            && self.log_entries <= MAX_LOG_ENTRIES
            && self.log_entry_bytes >= 6
            && self.log_entry_bytes <= 12
            && self.ring.is_multiple_of(64)
            && self.batch.is_power_of_two()
            && self.batch as u64 <= entries;
        ring && match carrier {
            Carrier::Host => true,
            Carrier::Window => self.host_ring.is_multiple_of(8),
            Carrier::Connected | Carrier::Datagram => {
                self.max_entries_per_wqe != 0
                    && self.log_wqebbs >= 1
                    && self.log_wqebbs <= 15
                    && self.log_cqes >= self.log_wqebbs
                    && self.log_cqes <= 22
                    && self.wqes.is_multiple_of(64)
                    && self.cqes.is_multiple_of(64)
                    && self.cq_record.is_multiple_of(4)
            }
        }
    }
}

/// Counters of a stream; the host reads them from the process's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Progress {
    /// Claimed entries, and so the number of the next one.
    pub claimed: u64,
    /// Complete entries.
    pub written: u64,
    /// Entries handed to the carrier.
    pub carried: u64,
    /// Entries whose slot in the ring may be written again.
    pub freed: u64,
    /// Messages or records that found no room.
    pub lost: u64,
    /// The syndrome of the queue pair's error CQE, after which it sends nothing; 0 while it sends.
    pub error_syndrome: u32,
}

impl Progress {
    /// Decodes the bytes that follow [`Setup`].
    pub fn from_bytes(bytes: &[u8; PROGRESS_BYTES]) -> Self {
        let (words, _) = bytes.as_chunks::<8>();
        let word = |index: usize| u64::from_le_bytes(words[index]);
        Self {
            claimed: word(0),
            written: word(1),
            carried: word(2),
            freed: word(3),
            lost: word(4),
            error_syndrome: word(7) as u32,
        }
    }
}

/// The control block, for threads.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Control {
    pub(crate) setup: Setup,
    pub(crate) claimed: AtomicU64,
    pub(crate) written: AtomicU64,
    pub(crate) carried: AtomicU64,
    pub(crate) freed: AtomicU64,
    pub(crate) lost: AtomicU64,
    /// 1 while a thread hands over entries.
    pub(crate) lock: AtomicU32,
    /// WQEBBs posted and completed, modulo 2^32.
    pub(crate) posted: AtomicU32,
    pub(crate) completed: AtomicU32,
    /// CQEs consumed.
    pub(crate) consumer: AtomicU32,
    pub(crate) error_syndrome: AtomicU32,
    /// Messages above the level in bits 7:0 are not written (0: none is), and [`HOLDS`].
    pub(crate) level: AtomicU32,
}

/// Flag in a stream's level: entries stay in the process's memory, with any carrier.
pub const HOLDS: u32 = 1 << 8;

impl Control {
    /// A block without a host.
    #[cfg(test)]
    pub(crate) const fn new(setup: Setup) -> Self {
        Self {
            setup,
            claimed: AtomicU64::new(0),
            written: AtomicU64::new(0),
            carried: AtomicU64::new(0),
            freed: AtomicU64::new(0),
            lost: AtomicU64::new(0),
            lock: AtomicU32::new(0),
            posted: AtomicU32::new(0),
            completed: AtomicU32::new(0),
            consumer: AtomicU32::new(0),
            error_syndrome: AtomicU32::new(0),
            level: AtomicU32::new(0),
        }
    }
}

#[cfg(test)]
#[allow(unsafe_code, reason = "the block is read as bytes")]
mod tests {
    use core::mem::offset_of;
    use core::sync::atomic::Ordering;

    use super::*;

    fn setup() -> Setup {
        Setup {
            carrier: Carrier::Datagram as u8,
            log_wqebbs: 5,
            batch: 4,
            max_entries_per_wqe: 2,
            room_retries: 0x1111,
            key: 0x2222_0001,
            host_ring: 0x3333_0000_0008,
            window: 0x44,
            outbox: 0x55,
            queue: 0x66_7788,
            wqes: 0x1_0000_0040,
            cqes: 0x1_0000_0080,
            cq_record: 0x1_0000_00c0,
            log_cqes: 6,
            destination: core::array::from_fn(|at| at as u8),
            ..Setup::new(0x1_0000_1000, 3, 8)
        }
    }

    #[test]
    fn setup_bytes_match_control_layout() {
        #[repr(align(64))]
        struct Memory([u8; BYTES]);
        let memory = Memory(setup().to_bytes());
        assert_eq!(size_of::<Control>(), BYTES);
        // SAFETY: the memory has the size and alignment, and every bit pattern is a valid block.
        let control = unsafe { &*memory.0.as_ptr().cast::<Control>() };
        assert_eq!(control.setup, setup());
        assert_eq!(control.claimed.load(Ordering::Relaxed), 0);
        assert!(control.setup.is_sound());
        assert_eq!(offset_of!(Control, freed), FREED_AT);
        assert_eq!(offset_of!(Control, claimed), SETUP_BYTES);
        assert_eq!(offset_of!(Control, level), LEVEL_AT);
    }

    #[test]
    fn progress_reads_control_counters() {
        let control = Control::new(setup());
        control.claimed.store(7, Ordering::Relaxed);
        control.written.store(6, Ordering::Relaxed);
        control.carried.store(5, Ordering::Relaxed);
        control.freed.store(4, Ordering::Relaxed);
        control.lost.store(3, Ordering::Relaxed);
        control.error_syndrome.store(0x22, Ordering::Relaxed);
        let mut bytes = [0; PROGRESS_BYTES];
        let from = (&raw const control).cast::<u8>();
        // SAFETY: the block is as long.
        unsafe { from.add(SETUP_BYTES).copy_to(bytes.as_mut_ptr(), PROGRESS_BYTES) };
        let (claimed, written, carried, freed, lost) = (7, 6, 5, 4, 3);
        let expected = Progress { claimed, written, carried, freed, lost, error_syndrome: 0x22 };
        assert_eq!(Progress::from_bytes(&bytes), expected);
    }

    #[test]
    fn unusable_setup_is_not_sound() {
        let wrong: [fn(&mut Setup); 17] = [
            |it| it.version = 1,
            |it| it.carrier = 4,
            |it| it.log_entries = 21,
            |it| it.log_entries = 64,
            |it| it.log_entry_bytes = 5,
            |it| it.log_entry_bytes = 13,
            |it| it.ring += 8,
            |it| it.batch = 3,
            |it| it.batch = 16,
            |it| it.max_entries_per_wqe = 0,
            |it| it.log_wqebbs = 0,
            |it| it.log_wqebbs = 16,
            |it| it.log_cqes = 4,
            |it| it.log_cqes = 23,
            |it| it.wqes += 32,
            |it| it.cqes += 32,
            |it| it.cq_record += 2,
        ];
        for (index, change) in wrong.into_iter().enumerate() {
            let mut setup = setup();
            change(&mut setup);
            assert!(!setup.is_sound(), "change {index}");
        }
        let extremes: [fn(&mut Setup); 7] = [
            |it| it.log_entries = 20,
            |it| it.log_entry_bytes = 6,
            |it| it.log_entry_bytes = 12,
            |it| it.batch = 8,
            |it| it.log_wqebbs = 1,
            |it| (it.log_wqebbs, it.log_cqes) = (15, 15),
            |it| it.log_cqes = 22,
        ];
        for (index, change) in extremes.into_iter().enumerate() {
            let mut setup = setup();
            change(&mut setup);
            assert!(setup.is_sound(), "extreme {index}");
        }
        let odd = Setup { carrier: Carrier::Window as u8, host_ring: 4, ..setup() };
        assert!(!odd.is_sound());
    }
}
