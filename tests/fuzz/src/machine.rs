//! The guests of one device, and their object numbers.

use std::sync::OnceLock;
use std::time::Duration;

use arbitrary::Arbitrary;
use verbless_model::memory::UAR_PAGE;
use verbless_model::{Link, ObjectCounts, Profile};
use verbless_model_host::pci::{FuzzDevice, Region};
use verbless_prm::{
    CommandInfo, CommandInput, EnableHcaIn, InitHcaIn, ManagePagesIn, QueryPagesIn, TeardownHcaIn,
    TeardownProfile,
};

use crate::address::{COMMANDS, DATA, QUEUES};
use crate::guest::{Corruption, Guest};
use crate::object::{self, Object, Step};
use crate::tweak::{self, Tweak};

/// The kinds of objects whose numbers a guest knows.
#[derive(Arbitrary, Debug, Clone, Copy, PartialEq, Eq)]
pub enum ObjectKind {
    Pd,
    Td,
    Uar,
    Xrcd,
    Counter,
    Uid,
    Umem,
    /// A key's index.
    Mkey,
    /// The key itself.
    Key,
    Cq,
    Eq,
    Qp,
    Shared,
}

const KIND_COUNT: usize = ObjectKind::Shared as usize + 1;

/// A QP as its guest sees it.
#[derive(Debug, Clone, Copy)]
pub struct Queue {
    pub qpn: u32,
    /// The receive ring; the send ring follows it.
    pub ring: u64,
    pub record: u64,
    pub uar: u32,
    /// The next send index and the next receive index.
    pub posted: u16,
    pub received: u16,
}

/// A shared receive queue as its guest sees it.
#[derive(Debug, Clone, Copy)]
pub struct Pool {
    pub number: u32,
    pub ring: u64,
    pub record: u64,
    pub received: u16,
}

/// The objects that a guest has made, including destroyed ones.
#[derive(Default)]
pub struct ObjectNumbers {
    numbers: [Vec<u32>; KIND_COUNT],
    pub queues: Vec<Queue>,
    pub pools: Vec<Pool>,
    /// The doorbell records of CQs.
    pub records: Vec<(u32, u64)>,
    /// The address of the next ring.
    next: u64,
}

impl ObjectNumbers {
    /// A number of this kind; some indexes give a number that no object has.
    pub fn pick(&self, kind: ObjectKind, index: u8) -> u32 {
        let numbers = &self.numbers[kind as usize];
        match index {
            0xfe => 0xff_ffff,
            0xff => 1,
            _ if numbers.is_empty() => 0,
            _ => numbers[usize::from(index) % numbers.len()],
        }
    }

    pub fn add(&mut self, kind: ObjectKind, number: u32) {
        self.numbers[kind as usize].push(number);
    }

    /// Allocates pages for rings and records. After the last page it returns the first ones again.
    pub fn allocate(&mut self, pages: u64) -> u64 {
        let at = QUEUES + self.next;
        self.next = (self.next + pages * 0x1000) % (DATA - QUEUES - 0x8000);
        at
    }
}

/// A device and the guests of its functions.
pub struct Machine {
    pub device: FuzzDevice,
    pub guests: Vec<Guest>,
    pub known: Vec<ObjectNumbers>,
    links: Link,
}

/// A device that wants fewer pages and has fewer doorbells than a real one, so that a run starts
/// quickly.
pub fn profile(link: Link) -> &'static Profile {
    static PROFILES: OnceLock<[Profile; 2]> = OnceLock::new();
    let [infiniband, ethernet] = PROFILES.get_or_init(|| {
        let text = include_str!("../../../crates/model/profiles/bluefield3.toml")
            .replace("boot_pages = 6", "boot_pages = 1")
            .replace("init_pages = 256", "init_pages = 1")
            .replace("uar_pages = 8192", "uar_pages = 2048");
        [Link::Infiniband, Link::Ethernet]
            .map(|link| Profile::from_toml(&text).expect("the profile is valid").with_link(link))
    });
    if link == Link::Infiniband { infiniband } else { ethernet }
}

impl Machine {
    /// A device with this many functions, which knows only the addresses of the command queues.
    pub fn new(functions: usize, link: Link) -> Self {
        let guests: Vec<Guest> = (0..functions).map(Guest::new).collect();
        let mut device = FuzzDevice::new(profile(link), guests.iter().map(Guest::dma).collect());
        for guest in &guests {
            guest.set_queue(&mut device, COMMANDS);
        }
        let known = guests.iter().map(|_| ObjectNumbers::default()).collect();
        Self { device, guests, known, links: link }
    }

    pub fn link(&self) -> Link {
        self.links
    }

    /// Sends bytes as a command of a user context (0: the kernel).
    pub fn send(
        &mut self,
        function: usize,
        uid: u32,
        mut input: Vec<u8>,
        room: usize,
        tweaks: &[Tweak],
        corruption: Option<Corruption>,
    ) -> Option<Vec<u8>> {
        tweak::apply(&mut input, tweaks, &self.known[function]);
        if let Some(stamp) = input.get_mut(2..4) {
            stamp.copy_from_slice(&(uid as u16).to_be_bytes());
        }
        self.guests[function].send(&mut self.device, &input, room, corruption)
    }

    /// Sends a valid command.
    pub fn say<I: CommandInput>(&mut self, function: usize, input: &I) -> Option<Vec<u8>> {
        let room = <I as CommandInput>::INFO.output.bytes;
        self.send(function, 0, input.as_bytes().to_vec(), room, &[], None)
    }

    /// Brings a function up.
    pub fn bring_up(&mut self, function: usize) {
        self.say(function, &EnableHcaIn::new());
        let mut query = QueryPagesIn::new();
        query.set_op_mod(QueryPagesIn::INIT_PAGES);
        let count = self.say(function, &query).map_or(0, |output| word(&output, 12));
        let mut give = ManagePagesIn::new();
        give.set_op_mod(ManagePagesIn::ALLOCATION_SUCCESS).set_input_num_entries(count);
        let pages = (1..=u64::from(count)).flat_map(|page| (page << 32).to_be_bytes());
        let input = give.as_bytes().iter().copied().chain(pages).collect();
        self.send(function, 0, input, 16, &[], None);
        self.say(function, &InitHcaIn::new());
    }

    /// Makes an object; returns its number if the device made it.
    pub fn make(
        &mut self,
        function: usize,
        uid: u32,
        wanted: &Object,
        tweaks: &[Tweak],
        corruption: Option<Corruption>,
    ) -> Option<u32> {
        let built = object::build(wanted, &mut self.known[function]);
        let room = CommandInfo::of_input(&built.input)?.output.bytes;
        if let Some((address, bytes)) = built.memory {
            self.guests[function].memory.put(address, &bytes);
        }
        let output = self.send(function, uid, built.input, room, tweaks, corruption)?;
        let number = word(&output, 8) & built.mask;
        let known = &mut self.known[function];
        known.add(built.sort, number);
        match built.sort {
            ObjectKind::Mkey => {
                known.add(ObjectKind::Key, number << 8 | u32::from(object::VARIANT))
            }
            ObjectKind::Cq => known.records.push((number, built.record)),
            ObjectKind::Qp => known.queues.push(Queue {
                qpn: number,
                ring: built.ring,
                record: built.record,
                uar: built.uar,
                posted: 0,
                received: 0,
            }),
            ObjectKind::Shared => known.pools.push(Pool {
                number,
                ring: built.ring,
                record: built.record,
                received: 0,
            }),
            _ => {}
        }
        Some(number)
    }

    /// Takes a QP through a transition; `lid` and `peer` name its peer.
    pub fn step_queue(
        &mut self,
        function: usize,
        uid: u32,
        step: Step,
        qpn: u32,
        peer: (u16, u32),
        tweaks: &[Tweak],
        corruption: Option<Corruption>,
    ) {
        let input = object::step(step, qpn, peer);
        self.send(function, uid, input, 0x20, tweaks, corruption);
    }

    /// Stores to a UAR page, through the mapping or as a trapped access.
    pub fn store(&mut self, function: usize, page: u32, register: u64, value: u64, trapped: bool) {
        if trapped {
            let at = u64::from(page) * UAR_PAGE + register % UAR_PAGE;
            self.device.write(function, Region::Bar, at, &value.to_be_bytes());
        } else {
            self.device.store(function, page, register, value);
        }
    }

    /// Gives the device up to `turns` turns, and checks each.
    pub fn turn(&mut self, turns: u32) {
        for _ in 0..turns {
            let before = self.moved();
            let worked = self.device.model().step();
            for (guest, before) in self.guests.iter().zip(before) {
                guest.memory.check_turn(before);
            }
            if !worked || self.is_over_budget() {
                break;
            }
        }
    }

    pub fn advance(&mut self, by: Duration) {
        self.device.model().advance(by);
    }

    fn moved(&self) -> Vec<u64> {
        self.guests.iter().map(|guest| guest.memory.moved()).collect()
    }

    /// Whether the device has moved so many bytes that the run must end.
    pub fn is_over_budget(&self) -> bool {
        const MAX_MOVED_BYTES: u64 = 64 << 20;
        self.moved().iter().any(|&moved| moved > MAX_MOVED_BYTES)
    }

    /// Tears all functions down, and asserts that no object is left.
    pub fn finish(mut self) {
        for function in 0..self.guests.len() {
            self.guests[function].set_queue(&mut self.device, COMMANDS);
            let mut teardown = TeardownHcaIn::new();
            teardown.set_profile(TeardownProfile::FORCE_CLOSE);
            self.say(function, &teardown);
            self.device.reset(function);
            let left = self.device.model().counts(function);
            assert_eq!(left, ObjectCounts::default(), "function {function}");
        }
    }
}

fn word(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).map_or(0, |word| u32::from_be_bytes(word.try_into().unwrap_or_default()))
}
