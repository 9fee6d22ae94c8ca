//! A hart's accesses to its address space: a small cache of pages in front of the regions, and a
//! map of translated code.
//!
//! An aligned access to a page in the cache costs one comparison: the tag in a cache entry is the
//! page's address, and the compared address keeps the low bits that alignment forbids. Everything
//! else takes a slow path: the first use of a page, devices, misaligned addresses, faults, and
//! stores into pages with translated code.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::op::Amo;
use crate::ram::{PAGE, Ram, Value};
use crate::space::{Access, AddressSpace, Backing, Region};

/// How a plain load or store with a misaligned address behaves.
///
/// The specification leaves it to the environment, and the behaviour of a DPA is not published. A
/// trap is the default, because a program without such accesses works on either; compilers emit
/// none for riscv64imac unless a flag asks for them. Atomic instructions always trap.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Misaligned {
    /// A load or store address-misaligned exception.
    #[default]
    Trap,
    /// The hart accesses byte by byte: the access may be torn, and a store may be half done after a
    /// fault in its middle. Devices still refuse it.
    Emulate,
}

/// The failure of an access: the number of its cause, and the address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Failure {
    pub(crate) access: Access,
    pub(crate) misaligned: bool,
    pub(crate) address: u64,
    /// Whether the embedder must carry out the access.
    pub(crate) environment: bool,
}

/// The result of a store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stored {
    Done,
    /// The store changed translated bytes: leave the block and discard all translations.
    IntoCode,
    Failed,
}

const ENTRIES: usize = 64;
/// Matches no address: bit 0 is set, which is clear in every page tag.
const NEVER: u64 = 1;
/// Bytes that share a bit of [`Mmu::code`].
const LINE: u64 = PAGE / 64;

/// A page in the cache. Aligned, so that its index becomes a shift.
#[repr(align(64))]
struct Entry {
    /// The page's address if it may be loaded from, or [`NEVER`].
    load: u64,
    /// The page's address if a store needs no further action, or [`NEVER`].
    store: u64,
    /// The index of the page in `ram`.
    page: usize,
    ram: Ram,
}

/// The reservation of a hart's last LR.
struct Reservation {
    address: u64,
    size: u64,
    value: u64,
}

pub(crate) struct Mmu {
    space: Arc<AddressSpace>,
    misaligned: Misaligned,
    entries: Box<[Entry; ENTRIES]>,
    /// The lines of a page with translated instructions.
    code: HashMap<u64, u64>,
    code_changed: bool,
    reservation: Option<Reservation>,
    /// The last access that failed.
    failure: Failure,
}

impl Mmu {
    pub(crate) fn new(space: Arc<AddressSpace>) -> Self {
        let nothing = Ram::new(0);
        let entry = |_| Entry { load: NEVER, store: NEVER, page: 0, ram: nothing.clone() };
        let failure =
            Failure { access: Access::Load, misaligned: false, address: 0, environment: false };
        Self {
            space,
            misaligned: Misaligned::default(),
            entries: Box::new(std::array::from_fn(entry)),
            code: HashMap::new(),
            code_changed: false,
            reservation: None,
            failure,
        }
    }

    pub(crate) fn space(&self) -> &Arc<AddressSpace> {
        &self.space
    }

    /// Sets another address space; discards the cache of the old one, translated code included.
    pub(crate) fn set_space(&mut self, space: Arc<AddressSpace>) {
        *self = Self { misaligned: self.misaligned, ..Self::new(space) };
    }

    pub(crate) fn set_misaligned(&mut self, misaligned: Misaligned) {
        self.misaligned = misaligned;
    }

    pub(crate) fn failure(&self) -> Failure {
        self.failure
    }

    #[inline(always)]
    fn index(address: u64) -> usize {
        (address / PAGE) as usize % ENTRIES
    }

    /// The value that a tag must have for an aligned access of type `V` at `address`.
    #[inline(always)]
    fn tag<V: Value>(address: u64) -> u64 {
        address & (!(PAGE - 1) | (V::SIZE - 1))
    }

    /// Loads a `V`, zero-extended; on failure [`Self::failure`] has the cause.
    #[inline(always)]
    pub(crate) fn load<V: Value>(&mut self, address: u64) -> Option<u64> {
        let entry = &self.entries[Self::index(address)];
        if entry.load == Self::tag::<V>(address)
            && let Some(cell) = entry.ram.cell_of_page::<V>(entry.page, address)
        {
            return Some(V::load(cell).widen());
        }
        self.load_slowly::<V>(address)
    }

    #[inline(always)]
    pub(crate) fn store<V: Value>(&mut self, address: u64, value: u64) -> Stored {
        let entry = &self.entries[Self::index(address)];
        if entry.store == Self::tag::<V>(address)
            && let Some(cell) = entry.ram.cell_of_page::<V>(entry.page, address)
        {
            V::store(cell, V::narrow(value));
            return Stored::Done;
        }
        self.store_slowly::<V>(address, value)
    }

    #[cold]
    #[inline(never)]
    fn load_slowly<V: Value>(&mut self, address: u64) -> Option<u64> {
        if address.is_multiple_of(V::SIZE) {
            return self.load_aligned::<V>(address);
        }
        if self.misaligned == Misaligned::Trap || self.reaches_device(address, V::SIZE) {
            return self.fail(Access::Load, true, address);
        }
        let mut value = 0;
        for byte in 0..V::SIZE {
            value |= self.load_aligned::<u8>(address.wrapping_add(byte))? << (8 * byte);
        }
        Some(value)
    }

    fn load_aligned<V: Value>(&mut self, address: u64) -> Option<u64> {
        match self.allowed(address, Access::Load) {
            Some(Region { backing: Backing::Ram(ram, from), base, .. }) => {
                let at = from + (address - base);
                let value = V::load(ram.cell::<V>(at)?).widen();
                let ram = ram.clone();
                self.fill(address, at, ram, Access::Load);
                Some(value)
            }
            Some(Region { backing: Backing::Device(device), base, .. }) => {
                match device.load(address - base, V::SIZE) {
                    Ok(value) => Some(V::narrow(value).widen()),
                    Err(_) => self.fail(Access::Load, false, address),
                }
            }
            Some(Region { backing: Backing::Environment, .. }) => {
                self.leave_to_environment(Access::Load, address);
                None
            }
            None => self.fail(Access::Load, false, address),
        }
    }

    #[cold]
    #[inline(never)]
    fn store_slowly<V: Value>(&mut self, address: u64, value: u64) -> Stored {
        if address.is_multiple_of(V::SIZE) {
            return self.store_aligned::<V>(address, value);
        }
        if self.misaligned == Misaligned::Trap || self.reaches_device(address, V::SIZE) {
            self.fail(Access::Store, true, address);
            return Stored::Failed;
        }
        let mut done = Stored::Done;
        for byte in 0..V::SIZE {
            match self.store_aligned::<u8>(address.wrapping_add(byte), value >> (8 * byte)) {
                Stored::Done => {}
                Stored::IntoCode => done = Stored::IntoCode,
                Stored::Failed => return Stored::Failed,
            }
        }
        done
    }

    fn store_aligned<V: Value>(&mut self, address: u64, value: u64) -> Stored {
        match self.allowed(address, Access::Store) {
            Some(Region { backing: Backing::Ram(ram, from), base, .. }) => {
                let at = from + (address - base);
                let Some(cell) = ram.cell::<V>(at) else { return Stored::Failed };
                V::store(cell, V::narrow(value));
                let ram = ram.clone();
                self.stored(address, at, ram)
            }
            Some(Region { backing: Backing::Device(device), base, .. }) => {
                match device.store(address - base, V::SIZE, V::narrow(value).widen()) {
                    Ok(()) => Stored::Done,
                    Err(_) => {
                        self.fail(Access::Store, false, address);
                        Stored::Failed
                    }
                }
            }
            Some(Region { backing: Backing::Environment, .. }) => {
                self.leave_to_environment(Access::Store, address);
                Stored::Failed
            }
            None => {
                self.fail(Access::Store, false, address);
                Stored::Failed
            }
        }
    }

    /// Handles a store to offset `at` of RAM; returns whether it hit translated code. For a page
    /// without code, later stores skip this.
    fn stored(&mut self, address: u64, at: u64, ram: Ram) -> Stored {
        match self.code.get(&(address / PAGE)) {
            None => {
                self.fill(address, at, ram, Access::Store);
                Stored::Done
            }
            Some(lines) if lines >> (address % PAGE / LINE) & 1 != 0 => {
                self.code_changed = true;
                Stored::IntoCode
            }
            Some(_) => Stored::Done,
        }
    }

    /// The region of an address, if it allows the access.
    fn allowed(&self, address: u64, access: Access) -> Option<&Region> {
        let region = self.space.region(address)?;
        let allowed = match access {
            Access::Load => region.permissions.read,
            Access::Store => region.permissions.write,
            Access::Fetch => region.permissions.execute,
        };
        allowed.then_some(region)
    }

    fn reaches_device(&self, address: u64, size: u64) -> bool {
        let device = |at| {
            let region = self.space.region(at);
            region.is_some_and(|it| !matches!(it.backing, Backing::Ram(..)))
        };
        device(address) || device(address.wrapping_add(size - 1))
    }

    fn fail(&mut self, access: Access, misaligned: bool, address: u64) -> Option<u64> {
        self.failure = Failure { access, misaligned, address, environment: false };
        None
    }

    fn leave_to_environment(&mut self, access: Access, address: u64) {
        self.failure = Failure { access, misaligned: false, address, environment: true };
    }

    fn fill(&mut self, address: u64, at: u64, ram: Ram, access: Access) {
        let page = address & !(PAGE - 1);
        let entry = &mut self.entries[Self::index(address)];
        // The entry may hold another page, or this page for the other kind of access.
        if entry.load != page && entry.store != page {
            *entry = Entry { load: NEVER, store: NEVER, page: (at / PAGE) as usize, ram };
        }
        match access {
            Access::Store => entry.store = page,
            _ => entry.load = page,
        }
    }

    /// The halfword at `address`, for execution.
    pub(crate) fn fetch(&self, address: u64) -> Option<u16> {
        match self.allowed(address, Access::Fetch)? {
            Region { backing: Backing::Ram(ram, from), base, .. } => {
                Some(u16::load(ram.cell::<u16>(from + (address - base))?))
            }
            _ => None,
        }
    }

    /// Makes stores to the line of `address` count as stores into code.
    pub(crate) fn mark_code(&mut self, address: u64) {
        let page = address / PAGE;
        *self.code.entry(page).or_default() |= 1 << (address % PAGE / LINE);
        let entry = &mut self.entries[Self::index(address)];
        if entry.store == page * PAGE {
            entry.store = NEVER;
        }
    }

    /// Whether a store hit translated bytes since [`Self::forget_code`].
    pub(crate) fn code_changed(&self) -> bool {
        self.code_changed
    }

    /// Discards all translated code.
    pub(crate) fn forget_code(&mut self) {
        self.code.clear();
        self.code_changed = false;
    }

    /// Makes the next SC fail.
    pub(crate) fn forget_reservation(&mut self) {
        self.reservation = None;
    }

    /// The RAM for an atomic access of `V`, with the offset of the `V`. With `access` Load the
    /// region must allow loads, otherwise loads and stores.
    fn atomic<V: Value>(&mut self, address: u64, access: Access) -> Option<(Ram, u64)> {
        if !address.is_multiple_of(V::SIZE) {
            self.fail(access, true, address);
            return None;
        }
        let region = self.allowed(address, access).filter(|it| it.permissions.read);
        if let Some(Region { backing: Backing::Ram(ram, from), base, .. }) = region {
            return Some((ram.clone(), from + (address - base)));
        }
        self.fail(access, false, address);
        None
    }

    /// LR: loads a `V` and remembers it.
    pub(crate) fn load_reserved<V: Exchange>(&mut self, address: u64) -> Option<u64> {
        self.reservation = None;
        let (ram, at) = self.atomic::<V>(address, Access::Load)?;
        let value = V::load_acquire(ram.cell::<V>(at)?).widen();
        self.reservation = Some(Reservation { address, size: V::SIZE, value });
        Some(value)
    }

    /// SC: stores a `V` if the memory still has the value that LR found; returns whether it did.
    ///
    /// An intermediate change to another value and back goes unnoticed. A program cannot tell that
    /// from a later LR, except by its knowledge of the writers.
    pub(crate) fn store_conditional<V: Exchange>(
        &mut self,
        address: u64,
        value: u64,
    ) -> (Stored, bool) {
        let reservation = self.reservation.take();
        let Some((ram, at)) = self.atomic::<V>(address, Access::Store) else {
            return (Stored::Failed, false);
        };
        let kept = reservation.filter(|it| it.address == address && it.size == V::SIZE);
        let (Some(kept), Some(cell)) = (kept, ram.cell::<V>(at)) else {
            return (Stored::Done, false);
        };
        if V::exchange(cell, V::narrow(kept.value), V::narrow(value)).is_err() {
            return (Stored::Done, false);
        }
        (self.stored(address, at, ram), true)
    }

    /// Executes an AMO; returns the old value, sign-extended.
    pub(crate) fn amo<V: Exchange>(
        &mut self,
        amo: Amo,
        address: u64,
        operand: u64,
    ) -> (Stored, u64) {
        let Some((ram, at)) = self.atomic::<V>(address, Access::Store) else {
            return (Stored::Failed, 0);
        };
        let Some(cell) = ram.cell::<V>(at) else { return (Stored::Failed, 0) };
        let mut old = V::load_acquire(cell);
        while let Err(other) = V::exchange(cell, old, old.combine(amo, V::narrow(operand))) {
            old = other;
        }
        (self.stored(address, at, ram), old.signed())
    }
}

/// Integers of atomic instructions.
pub(crate) trait Exchange: Value {
    fn load_acquire(cell: &Self::Atomic) -> Self;
    /// Stores `new` if the memory holds `old`, in the order of all such exchanges.
    fn exchange(cell: &Self::Atomic, old: Self, new: Self) -> Result<Self, Self>;
    fn combine(self, amo: Amo, operand: Self) -> Self;
    fn signed(self) -> u64;
}

macro_rules! exchanges {
    ($($int:ty, $signed:ty;)*) => {$(
        impl Exchange for $int {
            fn load_acquire(cell: &Self::Atomic) -> Self {
                cell.load(Ordering::SeqCst)
            }
            fn exchange(cell: &Self::Atomic, old: Self, new: Self) -> Result<Self, Self> {
                cell.compare_exchange(old, new, Ordering::SeqCst, Ordering::SeqCst)
            }
            fn combine(self, amo: Amo, operand: Self) -> Self {
                match amo {
                    Amo::Swap => operand,
                    Amo::Add => self.wrapping_add(operand),
                    Amo::Xor => self ^ operand,
                    Amo::And => self & operand,
                    Amo::Or => self | operand,
                    Amo::Min => (self as $signed).min(operand as $signed) as Self,
                    Amo::Max => (self as $signed).max(operand as $signed) as Self,
                    Amo::Minu => self.min(operand),
                    Amo::Maxu => self.max(operand),
                }
            }
            fn signed(self) -> u64 {
                self as $signed as i64 as u64
            }
        }
    )*};
}

exchanges! {
    u32, i32;
    u64, i64;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::space::Permissions;

    const BASE: u64 = 4 * PAGE;

    #[test]
    fn store_into_code_line_is_reported_until_forgotten() {
        let ram = Ram::new(2 * PAGE);
        let space = AddressSpace::new([Region::ram(BASE, &ram, Permissions::RWX)]).unwrap();
        let mut mmu = Mmu::new(Arc::new(space));
        // The page is in the cache before and after.
        assert_eq!(mmu.store::<u64>(BASE + 2 * LINE, 1), Stored::Done);
        mmu.mark_code(BASE + LINE);
        mmu.mark_code(BASE + PAGE - 1);
        let into_code = |mmu: &mut Mmu, at| mmu.store::<u8>(BASE + at, 1) == Stored::IntoCode;
        for (at, is_code) in [
            (LINE - 1, false),
            (LINE, true),
            (2 * LINE - 1, true),
            (2 * LINE, false),
            (PAGE - LINE - 1, false),
            (PAGE - LINE, true),
            (PAGE, false),
            (PAGE + LINE, false),
        ] {
            assert_eq!(into_code(&mut mmu, at), is_code, "{at:#x}");
        }
        assert!(mmu.code_changed());
        mmu.forget_code();
        assert!(!mmu.code_changed());
        assert!(!into_code(&mut mmu, LINE) && !mmu.code_changed());
    }

    #[test]
    fn used_page_stays_cached_until_replaced() {
        const FAR: u64 = ENTRIES as u64 * PAGE;
        let ram = Ram::new(FAR + 3 * PAGE);
        let region = Region {
            base: BASE,
            length: FAR + 2 * PAGE,
            permissions: Permissions::RW,
            backing: Backing::Ram(ram, PAGE),
        };
        let mut mmu = Mmu::new(Arc::new(AddressSpace::new([region]).unwrap()));
        // The cached state of an address's page: loads, stores, and the page of the RAM.
        let cached = |mmu: &Mmu, address: u64| {
            let page = BASE + address / PAGE * PAGE;
            let entry = &mmu.entries[Mmu::index(page)];
            (entry.load == page, entry.store == page, entry.page as u64)
        };
        assert_eq!(mmu.load::<u64>(BASE + 8), Some(0));
        assert_eq!(cached(&mmu, 8), (true, false, 1));
        assert_eq!(mmu.store::<u8>(BASE + PAGE + 3, 7), Stored::Done);
        assert_eq!((cached(&mmu, PAGE), cached(&mmu, 8)), ((false, true, 2), (true, false, 1)));
        assert_eq!(mmu.store::<u64>(BASE + 8, 5), Stored::Done);
        assert_eq!(cached(&mmu, 8), (true, true, 1));
        assert_eq!(mmu.load::<u64>(BASE + FAR), Some(0));
        assert_eq!(cached(&mmu, FAR), (true, false, FAR / PAGE + 1));
        assert_eq!((cached(&mmu, 8).0, cached(&mmu, PAGE).1), (false, true));
        assert_eq!(mmu.load::<u64>(BASE + 8), Some(5));
    }

    #[test]
    fn tag_equals_page_only_for_aligned_addresses() {
        for at in [0, 8, PAGE - 8] {
            assert_eq!(Mmu::tag::<u64>(BASE + at), BASE);
            for odd in 1..8 {
                assert_eq!(Mmu::tag::<u64>(BASE + at + odd), BASE + odd);
                assert_eq!(Mmu::tag::<u8>(BASE + at + odd), BASE);
            }
            assert_eq!(Mmu::tag::<u32>(BASE + at + 4), BASE);
            assert_eq!(Mmu::tag::<u16>(BASE + at + 3), BASE + 1);
        }
    }
}
